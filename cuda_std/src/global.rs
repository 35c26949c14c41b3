//! Global memory: loads, stores, and vector types that one access moves.
//!
//! The compiler infers that a kernel's parameters of type [`Ptr`](crate::Ptr) and [`PtrMut`](crate::PtrMut), and all
//! pointers computed from them, point to global memory. An access through a pointer that the kernel loads from memory
//! is a generic access, which is slower. So each array is a parameter; [`kernel`](macro@crate::kernel) passes the
//! fields of a struct of arguments one by one.
//!
//! A kernel may also dereference raw pointers directly, but the emulator checks only the functions of this module.

use crate::imp;
use core::panic::Location;

macro_rules! vector {
    ($($(#[$doc:meta])* $name:ident [$element:ty; $len:literal] $align:literal;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq)]
        #[cfg_attr(not(target_arch = "nvptx64"), derive(bytemuck::Pod, bytemuck::Zeroable))]
        #[repr(C, align($align))]
        pub struct $name(pub [$element; $len]);
    )*};
}

vector! {
    /// Two u32, moved by one 8-byte access.
    U32x2 [u32; 2] 8;
    /// Four u32, moved by one 16-byte access.
    U32x4 [u32; 4] 16;
    /// Two f32, moved by one 8-byte access.
    F32x2 [f32; 2] 8;
    /// Four f32, moved by one 16-byte access.
    F32x4 [f32; 4] 16;
}

/// The value at `p` (`ld.global`).
///
/// # Safety
/// `p` points to a valid, aligned `T` in global memory that no other thread writes at the same time.
#[track_caller]
#[inline(always)]
pub unsafe fn load<T: Copy>(p: *const T) -> T {
    // SAFETY: same contract.
    unsafe { imp::global::load(p, Location::caller()) }
}

/// The value at `p`, through the read-only cache (`ld.global.nc`) if `T` has 1, 2, 4, 8 or 16 bytes and is aligned to
/// its size; an ordinary load otherwise.
///
/// # Safety
/// As [`load`], and nothing writes the memory while the kernel runs.
#[track_caller]
#[inline(always)]
pub unsafe fn load_nc<T: Copy>(p: *const T) -> T {
    // SAFETY: same contract.
    unsafe { imp::global::load_nc(p, Location::caller()) }
}

/// Starts to copy the cache line at `p` to the L2 cache (`prefetch.global.L2`), so that a later load waits less. Values
/// do not change.
///
/// # Safety
/// `p` points into global memory that no other thread writes at the same time.
#[track_caller]
#[inline(always)]
pub unsafe fn prefetch<T>(p: *const T) {
    // SAFETY: same contract.
    unsafe { imp::global::prefetch(p, Location::caller()) }
}

/// Writes `value` to `p` (`st.global`).
///
/// # Safety
/// `p` points to an aligned place for a `T` in global memory that no other thread accesses at the same time.
#[track_caller]
#[inline(always)]
pub unsafe fn store<T: Copy>(p: *mut T, value: T) {
    // SAFETY: same contract.
    unsafe { imp::global::store(p, value, Location::caller()) }
}

/// The value at `p`; each call loads it again (`ld.volatile.global`). For memory that other threads write at the same
/// time.
///
/// The load does not order other accesses; see [`crate::thread::fence`]. A loop that waits for a value by this function
/// makes progress in the emulator: the other threads run between two loads.
///
/// # Safety
/// `p` points to a valid, aligned `T` of 1, 2, 4 or 8 bytes in global memory.
#[track_caller]
#[inline(always)]
pub unsafe fn load_volatile<T: Copy>(p: *const T) -> T {
    // SAFETY: same contract.
    unsafe { imp::global::load_volatile(p, Location::caller()) }
}

/// Writes `value` to `p`, never delayed or merged (`st.volatile.global`).
///
/// # Safety
/// `p` points to an aligned place for a `T` of 1, 2, 4 or 8 bytes in global memory.
#[track_caller]
#[inline(always)]
pub unsafe fn store_volatile<T: Copy>(p: *mut T, value: T) {
    // SAFETY: same contract.
    unsafe { imp::global::store_volatile(p, value, Location::caller()) }
}
