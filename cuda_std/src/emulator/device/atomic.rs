//! Atomics: on global memory those of the processor, as blocks run on several of its threads; on shared memory plain
//! operations, as the threads of a block run one at a time.

use super::global::write;
use crate::{
    Site,
    emulator::{
        block::Block,
        context::{Lane, current, meet},
        violation::{Access, Operation},
    },
};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// Checks a global atomic and gives the running thread.
///
/// # Safety
/// Within a launch.
#[inline(always)]
unsafe fn global<T>(p: *mut T, site: Site) -> *mut Lane {
    let lane = current();
    // SAFETY: the running thread, whose block is alive.
    unsafe {
        write(lane, p, size_of::<T>(), Access::Atomic, site);
        (*(*lane).block).stats.global_atomics += 1;
    }
    lane
}

macro_rules! global {
    ($($name:ident($t:ty, $atomic:ident) = |$place:ident, $value:ident| $operation:expr;)*) => {$(
        /// # Safety
        /// `p` points to an aligned value in global memory.
        #[inline(always)]
        pub unsafe fn $name(p: *mut $t, $value: $t, site: Site) -> $t {
            // SAFETY: the access was checked.
            let $place = unsafe {
                global(p, site);
                $atomic::from_ptr(p.cast())
            };
            $operation
        }
    )*};
}

global! {
    add_u32(u32, AtomicU32) = |place, value| place.fetch_add(value, Relaxed);
    add_u64(u64, AtomicU64) = |place, value| place.fetch_add(value, Relaxed);
    min_u32(u32, AtomicU32) = |place, value| place.fetch_min(value, Relaxed);
    max_u32(u32, AtomicU32) = |place, value| place.fetch_max(value, Relaxed);
    min_u64(u64, AtomicU64) = |place, value| place.fetch_min(value, Relaxed);
    max_u64(u64, AtomicU64) = |place, value| place.fetch_max(value, Relaxed);
    or_u32(u32, AtomicU32) = |place, value| place.fetch_or(value, Relaxed);
    exchange_u32(u32, AtomicU32) = |place, value| place.swap(value, Relaxed);
    add_f32(f32, AtomicU32) = |place, value| {
        let mut old = place.load(Relaxed);
        while let Err(now) = place.compare_exchange_weak(old, (f32::from_bits(old) + value).to_bits(), Relaxed, Relaxed) {
            old = now;
        }
        f32::from_bits(old)
    };
}

/// # Safety
/// `p` points to an aligned value in global memory.
#[inline(always)]
pub unsafe fn cas_u32(p: *mut u32, expected: u32, new: u32, site: Site) -> u32 {
    // SAFETY: the access was checked; the running thread holds no reference across `meet`.
    unsafe {
        let lane = global(p, site);
        match AtomicU32::from_ptr(p).compare_exchange(expected, new, Relaxed, Relaxed) {
            Ok(old) => old,
            Err(old) => {
                // Lets others run: this may be a loop that waits for one of them.
                meet(lane, Operation::Spin, 0, site);
                old
            }
        }
    }
}

/// Checks an atomic on shared memory, and replaces the value there by what `combine` makes of it. Returns the value
/// before.
///
/// # Safety
/// `address` is an aligned, initialised place in shared memory.
#[inline(always)]
unsafe fn shared<T: Copy, const BYTES: u32>(address: u32, site: Site, combine: impl FnOnce(T) -> T) -> T {
    let lane = current();
    // SAFETY: the running thread's block is alive, and the access was checked.
    unsafe {
        super::shared::atomic::<BYTES>(lane, address, site);
        let block: &mut Block = &mut *(*lane).block;
        block.stats.shared_atomics += 1;
        let place = block.shared.place(address).cast::<T>();
        let old = place.read();
        place.write(combine(old));
        old
    }
}

macro_rules! shared {
    ($($name:ident($t:ty) = $combine:expr;)*) => {$(
        /// # Safety
        /// `address` is an aligned, initialised place in shared memory.
        #[inline(always)]
        pub unsafe fn $name(address: u32, value: $t, site: Site) -> $t {
            // SAFETY: same contract.
            unsafe { shared::<$t, { size_of::<$t>() as u32 }>(address, site, |old| $combine(old, value)) }
        }
    )*};
}

shared! {
    shared_add_u32(u32) = u32::wrapping_add;
    shared_min_u32(u32) = Ord::min;
    shared_max_u32(u32) = Ord::max;
    shared_min_u64(u64) = Ord::min;
}

/// # Safety
/// `address` is an aligned, initialised place in shared memory.
#[inline(always)]
pub unsafe fn shared_cas_u32(address: u32, expected: u32, new: u32, site: Site) -> u32 {
    // SAFETY: same contract.
    unsafe { shared::<u32, 4>(address, site, |old| if old == expected { new } else { old }) }
}

/// # Safety
/// `address` is an aligned, initialised place in shared memory.
#[inline(always)]
pub unsafe fn shared_load_u32(address: u32, site: Site) -> u32 {
    // SAFETY: same contract. Adding nothing reads and changes nothing, and counts as an atomic access.
    unsafe { shared_add_u32(address, 0, site) }
}

/// # Safety
/// `address` is that of four initialised words in shared memory, aligned to 16 bytes.
#[inline(always)]
pub unsafe fn shared_load_u32x4(address: u32, site: Site) -> [u32; 4] {
    // SAFETY: same contract; a misaligned place is none of a 16-byte access, and this refuses it by an access that is
    // checked.
    unsafe {
        if !address.is_multiple_of(16) {
            super::shared::load::<crate::global::U32x4>(address, site);
        }
        [0, 4, 8, 12].map(|offset| shared_load_u32(address + offset, site))
    }
}
