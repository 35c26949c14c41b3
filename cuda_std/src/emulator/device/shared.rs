//! Shared accesses, checked and recorded.

use crate::{
    Site,
    emulator::{
        context::{Lane, access, current, fail},
        shared_memory::DYNAMIC_BASE,
        violation::Access,
    },
};

/// Calls a function that takes the size of an access as a const generic, for the size of `T`.
macro_rules! sized {
    ($T:ty, $function:ident($($argument:expr),*)) => {
        match size_of::<$T>() {
            1 => $function::<1>($($argument),*),
            2 => $function::<2>($($argument),*),
            4 => $function::<4>($($argument),*),
            8 => $function::<8>($($argument),*),
            _ => $function::<16>($($argument),*),
        }
    };
}

/// Checks and records a read, or stops the thread. A function of its own, so that the many places of kernels that read
/// are one call each.
///
/// # Safety
/// `lane` is the running thread.
#[inline(never)]
pub(super) unsafe fn read<const BYTES: u32>(lane: *mut Lane, address: u32, site: Site) {
    // SAFETY: the running thread's block is alive; nothing else runs on this OS thread.
    unsafe { access(lane, site, |block, by| block.shared.read::<BYTES>(by, address, site)) }
}

/// Checks and records a write, or the start of an asynchronous copy, or stops the thread.
///
/// # Safety
/// As [`read`].
#[inline(never)]
pub(super) unsafe fn write<const BYTES: u32>(lane: *mut Lane, address: u32, kind: Access, site: Site) {
    // SAFETY: as in `read`.
    unsafe { access(lane, site, |block, by| block.shared.write::<BYTES>(by, address, kind, site)) }
}

/// Checks and records an atomic operation, or stops the thread.
///
/// # Safety
/// As [`read`].
#[inline(never)]
pub(super) unsafe fn atomic<const BYTES: u32>(lane: *mut Lane, address: u32, site: Site) {
    // SAFETY: as in `read`.
    unsafe { access(lane, site, |block, by| block.shared.atomic::<BYTES>(by, address, site)) }
}

#[inline(always)]
pub fn dynamic() -> u32 {
    DYNAMIC_BASE
}

pub fn static_array<T, const LEN: usize>(place: usize, site: Site) -> u32 {
    let lane = current();
    let bytes = u32::try_from(LEN * size_of::<T>()).unwrap_or(u32::MAX);
    // SAFETY: the running thread's block is alive; nothing else runs on this OS thread.
    unsafe {
        match (*(*lane).block).shared.array(place, bytes) {
            Ok(address) => address,
            Err(kind) => fail(lane, site, kind),
        }
    }
}

/// # Safety
/// As `SharedPtr::load`.
#[inline(always)]
pub unsafe fn load<T: Copy>(address: u32, site: Site) -> T {
    let lane = current();
    // SAFETY: the running thread's block is alive, and the access was checked, so the place is inside the memory.
    unsafe {
        sized!(T, read(lane, address, site));
        (*(*lane).block).shared.place(address).cast::<T>().read()
    }
}

/// # Safety
/// As `SharedPtr::store`.
#[inline(always)]
pub unsafe fn store<T: Copy>(address: u32, value: T, site: Site) {
    let lane = current();
    // SAFETY: as for load.
    unsafe {
        sized!(T, write(lane, address, Access::Write, site));
        (*(*lane).block).shared.place(address).cast::<T>().write(value);
    }
}
