//! Streams with scratch memory, kept for the next search.

use std::sync::{Mutex, MutexGuard, PoisonError};

use super::runtime::{Memory, Runtime, Stream};
use super::scratch::Scratch;
use crate::Result;

/// A stream with scratch memory; searches borrow one each.
pub(crate) struct Lane {
    /// The stream.
    pub stream: Stream,
    /// Another, for copies to the device that its kernels need not wait for.
    pub copies: Stream,
    memory: Memory,
    bytes: usize,
}

impl Lane {
    /// Scratch of at least `bytes`, with unspecified contents. Work of the stream on earlier scratch must be over.
    pub fn scratch(&mut self, runtime: &Runtime, bytes: usize) -> Result<Scratch> {
        if bytes > self.bytes {
            // The old scratch goes first: both may not fit.
            self.memory = runtime.allocate(0)?;
            self.bytes = 0;
            self.memory = runtime.allocate(bytes)?;
            self.bytes = bytes;
        }
        Ok(runtime.scratch(&self.memory))
    }
}

/// Lanes that no search uses at the moment.
pub(crate) struct Lanes {
    idle: Mutex<Vec<Lane>>,
}

impl Lanes {
    /// No lanes yet; they are made when needed.
    pub fn new() -> Self {
        Lanes { idle: Mutex::new(Vec::new()) }
    }

    /// Runs `work` with a lane of its own. A lane whose work failed is not used again.
    pub fn with<V>(&self, runtime: &Runtime, work: impl FnOnce(&mut Lane) -> Result<V>) -> Result<V> {
        self.with_some(runtime, 1, |lanes| work(&mut lanes[0]))
    }

    /// The same with so many lanes.
    pub fn with_some<V>(
        &self,
        runtime: &Runtime,
        count: usize,
        work: impl FnOnce(&mut [Lane]) -> Result<V>,
    ) -> Result<V> {
        let _current = runtime.enter()?;
        let mut lanes = self.take(runtime, count)?;
        let result = work(&mut lanes)?;
        self.idle().append(&mut lanes);
        Ok(result)
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Lane>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes idle lanes, and makes those that are missing.
    fn take(&self, runtime: &Runtime, count: usize) -> Result<Vec<Lane>> {
        let idle_or_new = |_| match self.idle().pop() {
            Some(lane) => Ok(lane),
            None => Ok(Lane {
                stream: runtime.stream()?,
                copies: runtime.stream()?,
                memory: runtime.allocate(0)?,
                bytes: 0,
            }),
        };
        (0..count).map(idle_or_new).collect()
    }
}
