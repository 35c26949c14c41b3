//! Global accesses, checked against the buffers.

use crate::{
    Site,
    emulator::{
        context::{Lane, current, fail, meet},
        registry::{Range, is_freed},
        violation::{Access, Nearest, Operation, ViolationKind},
    },
};
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

/// Checks that `bytes` bytes at `address` belong to one live buffer and are aligned. Gives whether the launch may write that buffer.
///
/// # Safety
/// `lane` is the running thread.
#[inline(always)]
pub(super) unsafe fn check(lane: *mut Lane, address: usize, bytes: usize, alignment: usize, site: Site) -> bool {
    // SAFETY: the running thread's block is alive; nothing else runs on this OS thread.
    let mut known = unsafe { *(*(*lane).block).range(address) };
    if !known.holds(address, bytes) {
        // SAFETY: same contract.
        known = unsafe { look_up(lane, address, bytes, site) };
    }
    if !address.is_multiple_of(alignment) {
        // SAFETY: same contract.
        unsafe { fail(lane, site, ViolationKind::GlobalMisaligned { address, alignment }) }
    }
    known.writable
}

/// Finds the buffer and remembers it.
///
/// # Safety
/// `lane` is the running thread.
#[inline(never)]
unsafe fn look_up(lane: *mut Lane, address: usize, bytes: usize, site: Site) -> Range {
    // SAFETY: the block is alive, and the snapshot outlives the launch.
    let (block, buffers) = unsafe { (&mut *(*lane).block, &*(*(*lane).block).buffers) };
    let below = buffers.below(address);
    if let Some(range) = below
        && range.holds(address, bytes)
    {
        *block.range(address) = range;
        return range;
    }
    let kind = if is_freed(address) {
        ViolationKind::GlobalFreed { address, bytes }
    } else {
        let nearest = below.map(|range| Nearest { offset: address - range.start, len: range.len });
        ViolationKind::GlobalOutOfBounds { address, bytes, nearest }
    };
    // SAFETY: same contract.
    unsafe { fail(lane, site, kind) }
}

/// Records an access, or stops at a race.
///
/// # Safety
/// `lane` is the running thread, and the access was checked.
#[inline(never)]
pub(super) unsafe fn record(lane: *mut Lane, address: usize, bytes: usize, kind: Access, site: Site) {
    // SAFETY: the running thread's block is alive; nothing else runs on this OS thread.
    unsafe {
        if let Err(kind) = (*(*lane).block).global.access(lane, address..address + bytes, kind, site) {
            fail(lane, site, kind);
        }
    }
}

/// Checks and records an access that writes.
///
/// # Safety
/// `lane` is the running thread.
#[inline(always)]
pub(super) unsafe fn write<T>(lane: *mut Lane, p: *const T, alignment: usize, kind: Access, site: Site) {
    // SAFETY: the running thread, whose block is alive; nothing else runs on this OS thread.
    unsafe {
        if !check(lane, p.addr(), size_of::<T>(), alignment, site) {
            (*(*lane).block).make_writable(p.addr());
        }
        record(lane, p.addr(), size_of::<T>(), kind, site);
    }
}

/// # Safety
/// As `global::load`.
#[inline(always)]
pub unsafe fn load<T: Copy>(p: *const T, site: Site) -> T {
    let lane = current();
    // SAFETY: the access was checked; the rest is the caller's contract.
    unsafe {
        if check(lane, p.addr(), size_of::<T>(), align_of::<T>(), site) {
            record(lane, p.addr(), size_of::<T>(), Access::Read, site);
        }
        (*(*lane).block).stats.global_load_bytes += size_of::<T>() as u64;
        p.read()
    }
}

/// Stops a read through the read-only cache of what the block wrote.
///
/// # Safety
/// `lane` is the running thread, and the access was checked.
#[inline(never)]
unsafe fn check_read_only(lane: *mut Lane, address: usize, bytes: usize, site: Site) {
    // SAFETY: the running thread's block is alive; nothing else runs on this OS thread.
    unsafe {
        if let Err(kind) = (*(*lane).block).global.read_only(address..address + bytes) {
            fail(lane, site, kind);
        }
    }
}

/// # Safety
/// As `global::load_nc`.
#[inline(always)]
pub unsafe fn load_nc<T: Copy>(p: *const T, site: Site) -> T {
    if align_of::<T>() < size_of::<T>() {
        // SAFETY: same contract.
        return unsafe { load(p, site) };
    }
    let lane = current();
    // SAFETY: the access was checked; the rest is the caller's contract.
    unsafe {
        if check(lane, p.addr(), size_of::<T>(), align_of::<T>(), site) {
            check_read_only(lane, p.addr(), size_of::<T>(), site);
        }
        (*(*lane).block).stats.global_load_bytes += size_of::<T>() as u64;
        p.read()
    }
}

/// # Safety
/// As `global::store`.
#[inline(always)]
pub unsafe fn store<T: Copy>(p: *mut T, value: T, site: Site) {
    let lane = current();
    // SAFETY: the access was checked; the rest is the caller's contract.
    unsafe {
        write(lane, p, align_of::<T>(), Access::Write, site);
        (*(*lane).block).stats.global_store_bytes += size_of::<T>() as u64;
        p.write(value);
    }
}

/// Reads or writes as an atomic of the same size, where there is one: other OS threads may access the place.
macro_rules! by_size {
    ($T:ty, $p:expr, |$atomic:ident: $bits:ident| $access:expr, $other:expr) => {
        match size_of::<$T>() {
            1 => by_size!(@ $T, $p, AtomicU8, u8, $atomic, $bits, $access),
            2 if align_of::<$T>() == 2 => by_size!(@ $T, $p, AtomicU16, u16, $atomic, $bits, $access),
            4 if align_of::<$T>() == 4 => by_size!(@ $T, $p, AtomicU32, u32, $atomic, $bits, $access),
            8 if align_of::<$T>() == 8 => by_size!(@ $T, $p, AtomicU64, u64, $atomic, $bits, $access),
            _ => $other,
        }
    };
    (@ $T:ty, $p:expr, $Atomic:ident, $Bits:ident, $atomic:ident, $bits:ident, $access:expr) => {{
        type $bits = $Bits;
        let $atomic = $Atomic::from_ptr($p.cast::<$Bits>().cast_mut());
        $access
    }};
}

/// # Safety
/// As `global::load_volatile`.
#[inline(always)]
pub unsafe fn load_volatile<T: Copy>(p: *const T, site: Site) -> T {
    let lane = current();
    // SAFETY: the access was checked, and an atomic of the size of T is aligned like T in each arm that makes one.
    unsafe {
        let recorded = check(lane, p.addr(), size_of::<T>(), align_of::<T>(), site);
        (*(*lane).block).stats.global_load_bytes += size_of::<T>() as u64;
        // Lets others run: this may be a loop that waits for one of them.
        meet(lane, Operation::Spin, 0, site);
        if recorded {
            record(lane, p.addr(), size_of::<T>(), Access::VolatileRead, site);
        }
        by_size!(
            T,
            p,
            |place: Bits| std::mem::transmute_copy::<Bits, T>(&place.load(Ordering::Relaxed)),
            p.read_volatile()
        )
    }
}

/// # Safety
/// As `global::store_volatile`.
#[inline(always)]
pub unsafe fn store_volatile<T: Copy>(p: *mut T, value: T, site: Site) {
    let lane = current();
    // SAFETY: as for load_volatile.
    unsafe {
        write(lane, p, align_of::<T>(), Access::VolatileWrite, site);
        (*(*lane).block).stats.global_store_bytes += size_of::<T>() as u64;
        let q = p.cast_const();
        by_size!(
            T,
            q,
            |place: Bits| place.store(std::mem::transmute_copy::<T, Bits>(&value), Ordering::Relaxed),
            p.write_volatile(value)
        )
    }
}
