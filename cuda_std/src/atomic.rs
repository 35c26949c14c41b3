//! Atomic operations on global memory (relaxed, seen by the whole device) and on shared memory (relaxed, by the block).
//!
//! Each returns what the place held before. Where a result is not used the assembler drops it (`atom` becomes `red`).

use crate::{global::U32x4, imp, shared::SharedPtr};
use core::panic::Location;

macro_rules! global {
    ($($(#[$doc:meta])* $name:ident($t:ty);)*) => {$(
        $(#[$doc])*
        ///
        /// # Safety
        /// `p` points to an aligned value in global memory; concurrent accesses to it are atomic.
        #[track_caller]
        #[inline(always)]
        pub unsafe fn $name(p: *mut $t, value: $t) -> $t {
            // SAFETY: same contract.
            unsafe { imp::atomic::$name(p, value, Location::caller()) }
        }
    )*};
}

global! {
    /// Adds modulo 2³² (`atom.global.add.u32`).
    add_u32(u32);
    /// Adds modulo 2⁶⁴ (`atom.global.add.u64`).
    add_u64(u64);
    /// Keeps the smaller (`atom.global.min.u32`).
    min_u32(u32);
    /// Keeps the larger (`atom.global.max.u32`).
    max_u32(u32);
    /// Keeps the smaller (`atom.global.min.u64`).
    min_u64(u64);
    /// Keeps the larger (`atom.global.max.u64`).
    max_u64(u64);
    /// Bitwise or (`atom.global.or.b32`).
    or_u32(u32);
    /// Replaces (`atom.global.exch.b32`).
    exchange_u32(u32);
    /// Adds (`atom.global.add.f32`). The order of additions, and so the last bits of the sum, varies from run to run.
    add_f32(f32);
}

/// Writes `new` if `p` holds `expected`; returns what it held (`atom.global.cas.b32`).
///
/// # Safety
/// `p` points to an aligned value in global memory; concurrent accesses to it are atomic.
#[track_caller]
#[inline(always)]
pub unsafe fn cas_u32(p: *mut u32, expected: u32, new: u32) -> u32 {
    // SAFETY: same contract.
    unsafe { imp::atomic::cas_u32(p, expected, new, Location::caller()) }
}

macro_rules! shared {
    ($($(#[$doc:meta])* $name:ident($t:ty);)*) => {$(
        $(#[$doc])*
        ///
        /// # Safety
        /// `p` is an aligned, initialised place in shared memory; accesses to it before the next synchronisation are atomic.
        #[track_caller]
        #[inline(always)]
        pub unsafe fn $name(p: SharedPtr<$t>, value: $t) -> $t {
            // SAFETY: same contract.
            unsafe { imp::atomic::$name(p.address(), value, Location::caller()) }
        }
    )*};
}

shared! {
    /// Adds modulo 2³² (`atom.shared.add.u32`).
    shared_add_u32(u32);
    /// Keeps the smaller (`atom.shared.min.u32`).
    shared_min_u32(u32);
    /// Keeps the larger (`atom.shared.max.u32`).
    shared_max_u32(u32);
    /// Keeps the smaller (`atom.shared.min.u64`).
    shared_min_u64(u64);
}

/// What `p` holds (`ld.relaxed.shared.u32`): a load that may race with the atomics above.
///
/// # Safety
/// `p` is an aligned, initialised place in shared memory; writes to it before the next synchronisation are atomic.
#[track_caller]
#[inline(always)]
pub unsafe fn shared_load_u32(p: SharedPtr<u32>) -> u32 {
    // SAFETY: same contract.
    unsafe { imp::atomic::shared_load_u32(p.address(), Location::caller()) }
}

/// The four words that `p` holds, each as [`shared_load_u32`] gives it (`ld.relaxed.shared.v4.u32`).
///
/// # Safety
/// As [`shared_load_u32`], for four words that start at a multiple of 16 bytes.
#[track_caller]
#[inline(always)]
pub unsafe fn shared_load_u32x4(p: SharedPtr<U32x4>) -> U32x4 {
    // SAFETY: same contract.
    U32x4(unsafe { imp::atomic::shared_load_u32x4(p.address(), Location::caller()) })
}
