//! Shared accesses, checked and recorded.

use crate::{
    Site,
    emulator::{
        context::{Lane, access, current, fail},
        shared_memory::DYNAMIC_BASE,
        violation::Access,
    },
};

/// Calls a method that takes the size of an access as a const generic, for the size of `T`.
macro_rules! sized {
    ($T:ty, $shared:ident.$method:ident($($argument:expr),*)) => {
        match size_of::<$T>() {
            1 => $shared.$method::<1>($($argument),*),
            2 => $shared.$method::<2>($($argument),*),
            4 => $shared.$method::<4>($($argument),*),
            8 => $shared.$method::<8>($($argument),*),
            _ => $shared.$method::<16>($($argument),*),
        }
    };
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
        access(lane, site);
        let shared = &mut (*(*lane).block).shared;
        if let Err(kind) = sized!(T, shared.read(Lane::accessor(lane), address, site)) {
            fail(lane, site, kind);
        }
        shared.place(address).cast::<T>().read()
    }
}

/// # Safety
/// As `SharedPtr::store`.
#[inline(always)]
pub unsafe fn store<T: Copy>(address: u32, value: T, site: Site) {
    let lane = current();
    // SAFETY: as for load.
    unsafe {
        access(lane, site);
        let shared = &mut (*(*lane).block).shared;
        if let Err(kind) = sized!(T, shared.write(Lane::accessor(lane), address, Access::Write, site)) {
            fail(lane, site, kind);
        }
        shared.place(address).cast::<T>().write(value);
    }
}
