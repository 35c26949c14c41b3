//! Asynchronous copies from global to shared memory (`cp.async`, sm_80): issued in groups, complete when waited for.
//!
//! A thread that has waited for its own copies sees their data; other threads see them after a barrier that follows the
//! wait. Until then the destination must not be touched, nor the source written.

use crate::{imp, shared::SharedPtr};
use core::panic::Location;

macro_rules! copies {
    ($($(#[$doc:meta])* $name:ident, $(#[$doc_zfill:meta])* $name_zfill:ident, $bytes:literal;)*) => {$(
        $(#[$doc])*
        ///
        /// # Safety
        /// `src` points to that many readable bytes of global memory, `dst` to that many of shared memory, both aligned
        /// to that size; nobody touches `dst` or writes `src` until the copy was waited for.
        #[track_caller]
        #[inline(always)]
        pub unsafe fn $name(dst: SharedPtr<u8>, src: *const u8) {
            // SAFETY: same contract.
            unsafe { imp::async_copy::copy::<$bytes>(dst.address(), src, Location::caller()) }
        }

        $(#[$doc_zfill])*
        ///
        /// # Safety
        /// As for the full copy, with only `src_bytes` bytes readable at `src`; `src` is aligned even if nothing is read.
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
    /// Starts a copy of `src_bytes` ≤ 4 bytes, and zeros for the rest of 4 (`cp.async.ca`).
    copy_4_zfill, 4;
    /// Starts a copy of 8 bytes (`cp.async.ca`).
    copy_8,
    /// Starts a copy of `src_bytes` ≤ 8 bytes, and zeros for the rest of 8 (`cp.async.ca`).
    copy_8_zfill, 8;
    /// Starts a copy of 16 bytes (`cp.async.cg`, which skips the L1 cache and fetches 128 bytes into L2).
    copy_16,
    /// Starts a copy of `src_bytes` ≤ 16 bytes, and zeros for the rest of 16 (`cp.async.cg`).
    copy_16_zfill, 16;
}

/// Closes the group of copies that this thread started since the last call; a group may be empty
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
