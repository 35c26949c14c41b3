//! Device memory that a former version of an index leaves for a later one.
//!
//! The first change of a snapshot copies what the device has of the index. Allocation and release of ordinary device
//! memory wait until the device is free ([`super::cuda`]), so each change would let searches wait twice. Instead the
//! memory of a former version stays here, and the next version takes it. Versions follow each other, so one is enough.
//!
//! An index that never changes beside a snapshot has none, nor does one of which two versions exceed its budget.

use std::sync::{Arc, Mutex, PoisonError};

/// Memory of a former version, with its size in bytes, for the versions that share this.
pub(crate) struct Spare<T>(Mutex<Option<(T, u64)>>);

impl<T> Default for Spare<T> {
    fn default() -> Self {
        Spare(Mutex::new(None))
    }
}

impl<T> Spare<T> {
    /// Keeps `memory`, of a version that is dropped, unless no other version is left, or two versions exceed `budget`
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
