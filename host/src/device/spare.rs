//! Device memory of former versions of an index, kept for the copies that later versions need.
//!
//! The first change of a snapshot copies what the device has of the index. Allocation and release of ordinary device
//! memory wait until the device is free ([`super::cuda`]), so each change would let searches wait twice. Instead the
//! memory of a copy stays here when the last search of its version is over, and the next copy takes it.
//!
//! Versions follow each other, so one spare memory suffices. There is none if two copies exceed the budget of the
//! index, and none before the second copy: an index that never changes beside a snapshot has its own memory only.

use std::sync::{Arc, Mutex, PoisonError};

use super::runtime::{Memory, Runtime};
use crate::Result;

/// The spare memory of the versions of an index on one device, with its number of bytes.
#[derive(Default)]
pub(crate) struct Spare(Mutex<Option<(Memory, usize)>>);

/// Memory of one version of an index.
pub(crate) struct VersionMemory {
    /// `None` only while it is dropped.
    memory: Option<Memory>,
    bytes: usize,
    /// The place for the memory when this is dropped; without one the memory is released.
    spare: Option<Arc<Spare>>,
}

impl Spare {
    /// Memory for a copy of what a version has on the device, with undefined contents. An index whose budget is
    /// `budget` bytes gets the memory back when the copy is dropped. Then no work of the device may use the memory.
    pub fn allocate(self: &Arc<Self>, runtime: &Runtime, bytes: usize, budget: u64) -> Result<VersionMemory> {
        let spare = (bytes as u64 <= budget / 2).then(|| Arc::clone(self));
        // Memory of another size is of no use any more, and is released first.
        let memory = match self.take().filter(|&(_, spare_bytes)| spare_bytes == bytes) {
            Some((memory, _)) => memory,
            None => runtime.allocate(bytes)?,
        };
        Ok(VersionMemory { memory: Some(memory), bytes, spare })
    }

    /// Bytes of the spare memory.
    pub fn bytes(&self) -> u64 {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).as_ref().map_or(0, |&(_, bytes)| bytes as u64)
    }

    /// Takes the memory out, without the lock from then on.
    pub fn take(&self) -> Option<(Memory, usize)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl VersionMemory {
    /// Memory that is released at the end.
    pub fn released(memory: Memory, bytes: usize) -> VersionMemory {
        VersionMemory { memory: Some(memory), bytes, spare: None }
    }

    pub fn get(&self) -> &Memory {
        self.memory.as_ref().unwrap_or_else(|| unreachable!("the memory is there until the drop"))
    }
}

impl Drop for VersionMemory {
    fn drop(&mut self) {
        let Some((spare, memory)) = self.spare.take().zip(self.memory.take()) else { return };
        let before = spare.0.lock().unwrap_or_else(PoisonError::into_inner).replace((memory, self.bytes));
        // A second memory is released, without the lock.
        drop(before);
    }
}
