//! Asynchronous copies from global to shared memory (`cp.async`, sm_80): a thread starts copies, closes groups of them,
//! and waits for the groups.
//!
//! After a thread has waited for its copies, it may read the copied data; other threads may read them after a barrier
//! that follows the wait. Before that, no thread may access the destination or write the source.

use crate::{imp, shared::SharedPtr};
use core::panic::Location;

macro_rules! copies {
    ($($(#[$doc:meta])* $name:ident, $(#[$doc_zfill:meta])* $name_zfill:ident, $bytes:literal;)*) => {$(
        $(#[$doc])*
        ///
        /// # Safety
        /// `src` points to readable global memory and `dst` to shared memory. Both have the size of the copy and are
        /// aligned to it. No thread accesses `dst` or writes `src` until this thread has waited for the copy.
        #[track_caller]
        #[inline(always)]
        pub unsafe fn $name(dst: SharedPtr<u8>, src: *const u8) {
            // SAFETY: same contract.
            unsafe { imp::async_copy::copy::<$bytes>(dst.address(), src, Location::caller()) }
        }

        $(#[$doc_zfill])*
        ///
        /// # Safety
        /// As for the full copy, except that only `src_bytes` bytes at `src` must be readable. `src` is aligned even if
        /// `src_bytes` is 0.
        #[track_caller]
        #[inline(always)]
        pub unsafe fn $name_zfill(dst: SharedPtr<u8>, src: *const u8, src_bytes: u32) {
            // SAFETY: same contract.
            unsafe { imp::async_copy::copy_zfill::<$bytes>(dst.address(), src, src_bytes, Location::caller()) }
        }
    )*};
}

copies! {
    /// Starts a copy of 4 bytes (`cp.async.ca`).
    copy_4,
    /// Starts a copy of `src_bytes` ≤ 4 bytes and fills the rest of the 4 bytes at `dst` with zeros (`cp.async.ca`).
    copy_4_zfill, 4;
    /// Starts a copy of 8 bytes (`cp.async.ca`).
    copy_8,
    /// Starts a copy of `src_bytes` ≤ 8 bytes and fills the rest of the 8 bytes at `dst` with zeros (`cp.async.ca`).
    copy_8_zfill, 8;
    /// Starts a copy of 16 bytes (`cp.async.cg`, which skips the L1 cache and fetches 128 bytes into L2).
    copy_16,
    /// Starts a copy of `src_bytes` ≤ 16 bytes and fills the rest of the 16 bytes at `dst` with zeros (`cp.async.cg`).
    copy_16_zfill, 16;
}

/// Closes a group: the copies that this thread started since its last call of this function. A group may be empty
/// (`cp.async.commit_group`).
#[track_caller]
#[inline(always)]
pub fn commit() {
    imp::async_copy::commit(Location::caller());
}

/// Waits until at most `N` of this thread's latest groups are unfinished (`cp.async.wait_group`).
#[track_caller]
#[inline(always)]
pub fn wait_group<const N: u32>() {
    imp::async_copy::wait_group::<N>(Location::caller());
}

/// Waits for all copies of this thread, in closed groups or not (`cp.async.wait_all`).
#[track_caller]
#[inline(always)]
pub fn wait_all() {
    imp::async_copy::wait_all(Location::caller());
}
