//! Atomic operations on global memory (relaxed, device scope) and on shared memory (relaxed, block scope).
//!
//! Each read-modify-write operation returns the value before it. If the kernel does not use the result, the assembler
//! emits `red` instead of `atom`.

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
    /// Adds `value` modulo 2³² (`atom.global.add.u32`).
    add_u32(u32);
    /// Adds `value` modulo 2⁶⁴ (`atom.global.add.u64`).
    add_u64(u64);
    /// Stores the smaller of the old value and `value` (`atom.global.min.u32`).
    min_u32(u32);
    /// Stores the larger of the old value and `value` (`atom.global.max.u32`).
    max_u32(u32);
    /// Stores the smaller of the old value and `value` (`atom.global.min.u64`).
    min_u64(u64);
    /// Stores the larger of the old value and `value` (`atom.global.max.u64`).
    max_u64(u64);
    /// Stores the bitwise or of the old value and `value` (`atom.global.or.b32`).
    or_u32(u32);
    /// Stores `value` (`atom.global.exch.b32`).
    exchange_u32(u32);
    /// Adds `value` (`atom.global.add.f32`). The order of the additions varies from run to run, and with it the last
    /// bits of the sum.
    add_f32(f32);
}

/// Stores `new` if the value at `p` is `expected`. Returns the value before the operation (`atom.global.cas.b32`).
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
        /// `p` is an aligned, initialised place in shared memory; accesses to it before the next synchronisation are
        /// atomic.
        #[track_caller]
        #[inline(always)]
        pub unsafe fn $name(p: SharedPtr<$t>, value: $t) -> $t {
            // SAFETY: same contract.
            unsafe { imp::atomic::$name(p.address(), value, Location::caller()) }
        }
    )*};
}

shared! {
    /// Adds `value` modulo 2³² (`atom.shared.add.u32`).
    shared_add_u32(u32);
    /// Stores the smaller of the old value and `value` (`atom.shared.min.u32`).
    shared_min_u32(u32);
    /// Stores the larger of the old value and `value` (`atom.shared.max.u32`).
    shared_max_u32(u32);
    /// Stores the smaller of the old value and `value` (`atom.shared.min.u64`).
    shared_min_u64(u64);
}

/// Stores `new` if the value at `p` is `expected`. Returns the value before the operation (`atom.shared.cas.b32`).
///
/// # Safety
/// `p` is an aligned, initialised place in shared memory; accesses to it before the next synchronisation are atomic.
#[track_caller]
#[inline(always)]
pub unsafe fn shared_cas_u32(p: SharedPtr<u32>, expected: u32, new: u32) -> u32 {
    // SAFETY: same contract.
    unsafe { imp::atomic::shared_cas_u32(p.address(), expected, new, Location::caller()) }
}

/// Loads the value at `p` (`ld.relaxed.shared.u32`). The load may race with the atomic operations on shared memory.
///
/// # Safety
/// `p` is an aligned, initialised place in shared memory; writes to it before the next synchronisation are atomic.
#[track_caller]
#[inline(always)]
pub unsafe fn shared_load_u32(p: SharedPtr<u32>) -> u32 {
    // SAFETY: same contract.
    unsafe { imp::atomic::shared_load_u32(p.address(), Location::caller()) }
}

/// Loads the four words at `p`, each with the guarantees of [`shared_load_u32`] (`ld.relaxed.shared.v4.u32`).
///
/// # Safety
/// As [`shared_load_u32`], for four words that start at a multiple of 16 bytes.
#[track_caller]
#[inline(always)]
pub unsafe fn shared_load_u32x4(p: SharedPtr<U32x4>) -> U32x4 {
    // SAFETY: same contract.
    U32x4(unsafe { imp::atomic::shared_load_u32x4(p.address(), Location::caller()) })
}
