//! Streams with scratch memory, which are kept for the next search.

use std::sync::{Mutex, MutexGuard, PoisonError};

use cuda_std::PtrMut;

use super::runtime::{Memory, Runtime, Stream};
use super::scratch::{Layout, Scratch};
use crate::Result;

/// A stream with scratch memory. A search takes one or more lanes and puts them back.
pub(crate) struct Lane {
    /// The stream of kernels and of their copies.
    pub stream: Stream,
    /// A second stream, for copies to the device that overlap the kernels.
    pub copies: Stream,
    memory: Memory,
    bytes: usize,
    counters: Option<Memory>,
}

/// Number of the counters of a lane.
pub(crate) const COUNTERS: usize = 32;

impl Lane {
    /// [`COUNTERS`] words that are 0 at first, and that kernels of the lane's stream leave at 0.
    pub fn counters(&mut self, runtime: &Runtime) -> Result<PtrMut<u32>> {
        let mut layout = Layout::default();
        let words = layout.array(COUNTERS);
        if let Some(memory) = &self.counters {
            return Ok(runtime.scratch(memory).at(words));
        }
        let memory = runtime.allocate(layout.bytes())?;
        let counters = runtime.scratch(&memory).at(words);
        // SAFETY: the memory has these words.
        unsafe { runtime.fill(&self.stream, counters, 0)? };
        self.counters = Some(memory);
        Ok(counters)
    }

    /// Scratch of at least `bytes` bytes, with unspecified contents. The stream's work on earlier scratch must be done.
    pub fn scratch(&mut self, runtime: &Runtime, bytes: usize) -> Result<Scratch> {
        if bytes > self.bytes {
            // The old scratch is freed first, because the device may not have room for both.
            self.memory = runtime.no_memory();
            self.bytes = 0;
            self.memory = runtime.allocate(bytes)?;
            self.bytes = bytes;
        }
        Ok(runtime.scratch(&self.memory))
    }
}

/// The lanes that no search uses at the moment.
#[derive(Default)]
pub(crate) struct Lanes {
    idle: Mutex<Vec<Lane>>,
}

impl Lanes {
    /// No lanes yet; the first searches create them.
    pub fn new() -> Self {
        Lanes { idle: Mutex::new(Vec::new()) }
    }

    /// Calls `work` with a lane that no other search uses. A lane whose work failed is not used again.
    pub fn with<V>(&self, runtime: &Runtime, work: impl FnOnce(&mut Lane) -> Result<V>) -> Result<V> {
        self.with_some(runtime, 1, |lanes| work(&mut lanes[0]))
    }

    /// As [`with`](Self::with), with `count` lanes. The device is the thread's current one until the call returns.
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

    /// Bytes of the scratch of all lanes that no search uses.
    pub fn bytes(&self) -> usize {
        self.idle().iter().map(|lane| lane.bytes).sum()
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Lane>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes `count` lanes, idle ones first, and creates the missing ones.
    fn take(&self, runtime: &Runtime, count: usize) -> Result<Vec<Lane>> {
        let idle_or_new = |_| match self.idle().pop() {
            Some(lane) => Ok(lane),
            None => {
                let (stream, copies) = (runtime.stream()?.with_dependent_launches(), runtime.stream()?);
                Ok(Lane { stream, copies, memory: runtime.no_memory(), bytes: 0, counters: None })
            }
        };
        (0..count).map(idle_or_new).collect()
    }
}
