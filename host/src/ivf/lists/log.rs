//! Memory to which the versions of a list append codes, each behind those of the version before.
//!
//! Bytes that a version has never change, so all versions read the same memory. What lies behind them belongs to the
//! version that claims it first ([`Shared::taken`]): where two copies of a version are both changed, one of them
//! appends here, and the other is refused.

use std::cell::UnsafeCell;
use std::fmt;
use std::mem::MaybeUninit;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::{Result, host_memory};

/// The part of a log that a version has, and what it has claimed for its changes.
pub(super) struct Log {
    shared: Arc<Shared>,
    /// Number of bytes that the version has.
    len: usize,
    /// The end of the bytes that the version may write, at least `len`.
    claimed: usize,
}

struct Shared {
    /// Words, so that every type of component is aligned.
    words: Box<[UnsafeCell<MaybeUninit<u64>>]>,
    /// Number of bytes that belong to versions. It only grows, except that the owner of the last claim gives back what
    /// it has not used.
    taken: AtomicUsize,
}

// SAFETY: every byte is written by the one owner of its claim, before any other `Log` counts it in its `len`.
unsafe impl Sync for Shared {}

impl Log {
    /// An empty log with room for `bytes` bytes.
    pub(super) fn with_room(bytes: usize) -> Result<Log> {
        let mut words = host_memory::with_room(bytes.div_ceil(8))?;
        words.resize_with(bytes.div_ceil(8), || UnsafeCell::new(MaybeUninit::uninit()));
        let shared = Shared { words: words.into_boxed_slice(), taken: AtomicUsize::new(0) };
        Ok(Log { shared: Arc::new(shared), len: 0, claimed: 0 })
    }

    /// The same bytes, for another version.
    pub(super) fn shared(&self) -> Log {
        Log { shared: Arc::clone(&self.shared), len: self.len, claimed: self.len }
    }

    /// Whether another log has these bytes, and perhaps others behind them.
    pub(super) fn is_before(&self, other: &Log) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared) && self.len <= other.len
    }

    /// The bytes of this version.
    pub(super) fn get(&self) -> &[u8] {
        // SAFETY: the first `len` bytes have been written, by this version or by one that it was copied from, which a
        // synchronised copy of the Arc passed on. Nobody writes them any more: claims begin at or behind `len`.
        unsafe { std::slice::from_raw_parts(self.shared.words.as_ptr().cast(), self.len) }
    }

    /// Makes sure that this version may append `more` bytes. Returns `false` if there is no room, or if another version
    /// has appended behind the bytes of this one.
    pub(super) fn claim(&mut self, more: usize) -> bool {
        let end = self.len + more;
        if end <= self.claimed {
            return true;
        }
        let fits = end <= size_of_val::<[_]>(&self.shared.words);
        let taken = &self.shared.taken;
        // Relaxed: only the number itself is agreed on here. The bytes reach other versions with a copy of the log.
        let taken = fits && taken.compare_exchange(self.claimed, end, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        if taken {
            self.claimed = end;
        }
        taken
    }

    /// Appends bytes, which were claimed.
    ///
    /// # Panics
    /// If they were not.
    pub(super) fn append(&mut self, bytes: &[u8]) {
        assert!(bytes.len() <= self.claimed - self.len, "the bytes were claimed");
        let start = self.shared.words.as_ptr().cast::<u8>().cast_mut();
        // SAFETY: the bytes lie within the memory, since the claim does, and behind those of every other version. Only
        // the owner of the claim writes there: `&mut self` is that owner, and `UnsafeCell` allows it.
        unsafe { start.add(self.len).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        self.len += bytes.len();
    }
}

/// Gives back what was claimed and not used, unless others have claimed behind it: a change that failed must not keep
/// the versions after it from appending.
impl Drop for Log {
    fn drop(&mut self) {
        if self.claimed > self.len {
            let _ = self.shared.taken.compare_exchange(self.claimed, self.len, Ordering::Relaxed, Ordering::Relaxed);
        }
    }
}

impl fmt::Debug for Log {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Log { shared, len, claimed } = self;
        let (taken, room) = (shared.taken.load(Ordering::Relaxed), size_of_val::<[_]>(&shared.words));
        f.debug_struct("Log")
            .field("len", len)
            .field("claimed", claimed)
            .field("taken", &taken)
            .field("room", &room)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_append_one_after_the_other_and_never_over_each_other() {
        let mut first = Log::with_room(20).unwrap();
        assert!(first.claim(3) && first.claim(2));
        first.append(&[1, 2]);
        let (mut second, mut third) = (first.shared(), first.shared());
        assert!(!second.claim(1), "the first version has one more byte claimed");
        first.append(&[3]);
        drop(first);
        assert!(!second.claim(1), "a byte of the first version lies there");
        assert!(second.claim(0) && !third.claim(1));
        assert_eq!((second.get(), third.get()), (&[1, 2][..], &[1, 2][..]));

        let mut log = Log::with_room(20).unwrap();
        assert!(log.claim(5));
        log.append(&[7; 5]);
        let (mut failed, mut next) = (log.shared(), log.shared());
        assert!(failed.claim(4) && !next.claim(4));
        // The change failed before it wrote all bytes that it claimed, but what it wrote stays its own.
        failed.append(&[8]);
        drop(failed);
        assert!(!next.claim(1));
        let mut given_back = log.shared();
        assert!(!given_back.claim(1));
        let mut log = Log::with_room(20).unwrap();
        assert!(log.claim(8));
        log.append(&[1; 8]);
        let (mut failed, mut next) = (log.shared(), log.shared());
        assert!(failed.claim(16) && !next.claim(1));
        drop(failed);
        assert!(next.claim(16) && !next.claim(17), "24 bytes in all: whole words");
        next.append(&[2; 8]);
        assert_eq!((log.get(), next.get()), (&[1; 8][..], [[1; 8], [2; 8]].concat().as_slice()));
        assert!(!log.claim(1));
    }

    /// Many threads want the memory behind the same bytes: one gets it.
    #[test]
    fn of_many_versions_one_appends() {
        for _ in 0..200 {
            let mut log = Log::with_room(64).unwrap();
            assert!(log.claim(8));
            log.append(&[1; 8]);
            let appended = std::thread::scope(|scope| {
                let version = |number: u8| {
                    let mut version = log.shared();
                    move || {
                        let claimed = version.claim(8);
                        if claimed {
                            version.append(&[number; 8]);
                        }
                        assert!(version.get()[8..].iter().all(|&byte| byte == number));
                        usize::from(claimed)
                    }
                };
                let threads: Vec<_> = (2..6).map(|number| scope.spawn(version(number))).collect();
                threads.into_iter().map(|thread| thread.join().unwrap()).sum::<usize>()
            });
            assert_eq!((appended, log.get()), (1, &[1; 8][..]));
        }
    }
}
