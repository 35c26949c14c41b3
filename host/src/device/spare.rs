//! Device memory that a former version of an index leaves for a later one.
//!
//! The first change of a snapshot copies what the device has of the index. Allocation and release of ordinary device
//! memory wait until the device is free ([`super::cuda`]), so each change would let searches wait twice. Instead the
//! memory of a former version stays here, and the next version takes it. Versions follow each other, so one is enough.
//!
//! An index that never changes beside a snapshot has none, nor does one of which two versions exceed its budget.

use std::ops::Deref;
use std::sync::{Arc, Mutex, PoisonError};

use super::runtime::{Memory, Runtime};
use crate::Result;

/// Memory of a former version, with its size in bytes, for the versions that share this.
pub(crate) struct Spare<T>(Mutex<Option<(T, u64)>>);

impl<T> Default for Spare<T> {
    fn default() -> Self {
        Spare(Mutex::new(None))
    }
}

impl<T> Spare<T> {
    /// Keeps `memory`, of a version that is dropped, unless nothing else has this, or two versions exceed `budget`
    /// bytes. No work of the device may use the memory any more.
    pub fn keep(self: &Arc<Self>, memory: T, bytes: u64, budget: u64) {
        if Arc::strong_count(self) > 1 && bytes > 0 && bytes <= budget / 2 {
            let before = self.0.lock().unwrap_or_else(PoisonError::into_inner).replace((memory, bytes));
            // Released without the lock.
            drop(before);
        }
    }

    /// Takes memory of this number of bytes. Memory of another size is of no use any more, and is released.
    pub fn take(&self, bytes: u64) -> Option<T> {
        let spare = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        spare.filter(|&(_, spare_bytes)| spare_bytes == bytes).map(|(memory, _)| memory)
    }

    /// Bytes of the memory that is kept.
    pub fn bytes(&self) -> u64 {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).as_ref().map_or(0, |&(_, bytes)| bytes)
    }
}

impl Spare<Memory> {
    /// The memory that is kept, if it has this number of bytes, or else new memory. Its content is unspecified.
    ///
    /// # Errors
    /// [`Error::OutOfDeviceMemory`](crate::Error::OutOfDeviceMemory), errors of the device's driver.
    pub fn allocate(self: &Arc<Self>, runtime: &Runtime, bytes: usize, budget: u64) -> Result<VersionMemory> {
        let memory = self.take(bytes as u64).map_or_else(|| runtime.allocate(bytes), Ok)?;
        Ok(VersionMemory { memory: Some(memory), bytes: bytes as u64, budget, spare: Arc::clone(self) })
    }
}

/// Memory of one version, which is kept for another one when this is dropped, as [`Spare::keep`] says.
pub(crate) struct VersionMemory {
    /// Something, until the drop.
    memory: Option<Memory>,
    bytes: u64,
    budget: u64,
    spare: Arc<Spare<Memory>>,
}

impl VersionMemory {
    pub fn none(runtime: &Runtime) -> VersionMemory {
        VersionMemory { memory: Some(runtime.no_memory()), bytes: 0, budget: 0, spare: Arc::default() }
    }

    /// Size of the memory in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Notes that the version has outgrown the memory, so later ones have no use for it.
    pub fn outgrow(&mut self) {
        self.budget = 0;
    }
}

impl Deref for VersionMemory {
    type Target = Memory;

    fn deref(&self) -> &Memory {
        self.memory.as_ref().unwrap_or_else(|| unreachable!("the memory goes with the drop"))
    }
}

impl Drop for VersionMemory {
    fn drop(&mut self) {
        if let Some(memory) = self.memory.take() {
            self.spare.keep(memory, self.bytes, self.budget);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_kept_for_another_version_within_the_budget() {
        let spare = Arc::new(Spare::default());
        spare.keep("alone", 8, 100);
        assert_eq!((spare.bytes(), spare.take(8)), (0, None));
        let other_version = Arc::clone(&spare);
        spare.keep("large", 51, 100);
        spare.keep("empty", 0, 100);
        assert_eq!(spare.bytes(), 0);
        spare.keep("first", 50, 100);
        spare.keep("second", 40, 100);
        assert_eq!((spare.bytes(), other_version.take(40), spare.bytes()), (40, Some("second"), 0));
        spare.keep("third", 30, 100);
        assert_eq!((spare.take(31), spare.take(30)), (None, None), "another size: nobody needs the memory any more");
    }
}
