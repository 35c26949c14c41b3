//! Progress of long calls, and their cancellation.

use std::fmt;
use std::ops::ControlFlow;
use std::sync::{Mutex, PoisonError};

use crate::names::named;
use crate::{Error, Result};

/// A stage of a long call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Stage {
    /// k-means finds the centroids of lists. Counts iterations.
    Training,
    /// A rotation for product quantization is learned. Counts rounds.
    Rotating,
    /// The codebooks of a product quantizer are learned. Counts sub-quantizers.
    Quantizing,
    /// Vectors are coded, copied or uploaded. Counts vectors.
    Adding,
    /// The nearest neighbours of vectors are searched. Counts vectors.
    Searching,
    /// The edges of vectors in a graph are chosen. Counts vectors.
    Linking,
    /// A file is written. Counts bytes.
    Saving,
}

impl Stage {
    /// All stages, in the order of the enum.
    pub const ALL: [Stage; 7] =
        [Self::Training, Self::Rotating, Self::Quantizing, Self::Adding, Self::Searching, Self::Linking, Self::Saving];

    /// Name in configuration: `training`, `rotating`, `quantizing`, `adding`, `searching`, `linking`, `saving`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Training => "training",
            Self::Rotating => "rotating",
            Self::Quantizing => "quantizing",
            Self::Adding => "adding",
            Self::Searching => "searching",
            Self::Linking => "linking",
            Self::Saving => "saving",
        }
    }

    /// The unit that the stage counts: `iterations`, `rounds`, `sub-quantizers`, `vectors`, `bytes`.
    pub const fn unit(self) -> &'static str {
        match self {
            Self::Training => "iterations",
            Self::Rotating => "rounds",
            Self::Quantizing => "sub-quantizers",
            Self::Adding | Self::Searching | Self::Linking => "vectors",
            Self::Saving => "bytes",
        }
    }
}

named!(Stage, name, "a stage of a long call");

/// How far a long call has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct Progress {
    /// The current stage of the call.
    pub stage: Stage,
    /// Number of units of the stage that are done, from 0 to `total`. It falls only where a stage begins again: an
    /// index may be trained inside the construction of another.
    pub done: u64,
    /// Number of units of the stage.
    pub total: u64,
}

/// A callback. Only one thread at a time may call it.
type Callback<'a> = Mutex<Box<dyn FnMut(Progress) -> ControlFlow<()> + Send + 'a>>;

/// Receives the progress of long calls, and can cancel them. One watch may be passed to any number of calls.
///
/// The calls that take one have names that end in `_watched`, and are otherwise the calls of the names without it: with
/// the same results, bit for bit. They call the watch from time to time, on any thread, never twice at once. If it
/// returns [`ControlFlow::Break`], the call stops as soon as it can and returns [`Error::Cancelled`], and the index is
/// as it was before the call. If the callback panics, the panic leaves the call, perhaps on another thread than that of
/// the callback, and the index is as it was before the call as well. The callback should return soon, and must not
/// begin work that takes the same watch: other threads of the call may wait for it. Work between two calls of the watch
/// is not interrupted:
///
/// | stage | the watch is called |
/// |---|---|
/// | [`Stage::Training`] | after each iteration |
/// | [`Stage::Rotating`], [`Stage::Quantizing`] | after each round, each sub-quantizer |
/// | [`Stage::Adding`], [`Stage::Linking`] | after some ten thousand vectors; in insertions into a graph, after a thousand |
/// | [`Stage::Searching`] | about once a second; for a graph index after 65,536 vectors |
/// | [`Stage::Saving`] | after each 8 MiB |
///
/// ```
/// use std::ops::ControlFlow;
/// use warpann::{Device, Error, IvfIndex, Stage, Watch};
///
/// let base: Vec<f32> = (0..1000).map(|i| (i as f32 * 0.37).sin()).collect();
/// let mut index = IvfIndex::<f32>::builder(2, 8).device(Device::Cpu).build()?;
/// let mut last = 0;
/// let watch = Watch::new(|progress| {
///     assert_eq!(progress.stage, Stage::Training);
///     last = progress.done;
///     if progress.done == 3 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
/// });
/// assert!(matches!(index.train_watched(&base, &watch), Err(Error::Cancelled)));
/// drop(watch);
/// assert_eq!((last, index.is_trained()), (3, false));
/// # Ok::<(), Error>(())
/// ```
pub struct Watch<'a> {
    callback: Option<Callback<'a>>,
}

impl<'a> Watch<'a> {
    /// A watch that calls `callback`.
    pub fn new(callback: impl FnMut(Progress) -> ControlFlow<()> + Send + 'a) -> Self {
        Self { callback: Some(Mutex::new(Box::new(callback))) }
    }

    /// A watch that never cancels. A call with it is the one without a watch.
    pub const fn none() -> Self {
        Self { callback: None }
    }

    /// Whether there is a callback.
    pub(crate) fn is_some(&self) -> bool {
        self.callback.is_some()
    }

    /// Calls the callback, and returns what it returns.
    pub(crate) fn flow(&self, stage: Stage, done: usize, total: usize) -> ControlFlow<()> {
        let Some(callback) = &self.callback else { return ControlFlow::Continue(()) };
        let progress = Progress { stage, done: done as u64, total: total as u64 };
        // A callback that panicked may be called again: it decides itself what that means.
        let mut callback = callback.lock().unwrap_or_else(PoisonError::into_inner);
        callback(progress)
    }

    /// Calls the callback. Without one the call goes on.
    ///
    /// # Errors
    /// [`Error::Cancelled`] if the callback breaks.
    pub(crate) fn report(&self, stage: Stage, done: usize, total: usize) -> Result<()> {
        match self.flow(stage, done, total) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(Error::Cancelled),
        }
    }
}

impl fmt::Debug for Watch<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watch").field("callback", &self.is_some()).finish()
    }
}
