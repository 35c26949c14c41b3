//! Global accesses, checked against the launch's arguments.

use crate::{
    Site,
    emulator::{
        context::{Lane, access, current, fail, meet},
        registry::Live,
        violation::{Access, Operation, ViolationKind},
    },
};
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

/// Checks that the launch may access `bytes` bytes at `address` like this, and that they are aligned. Gives whether it
/// may write any of them: if not, they cannot be part of a race.
///
/// # Safety
/// `lane` is the running thread.
#[inline(always)]
pub(super) unsafe fn check(
    lane: *mut Lane,
    address: usize,
    bytes: usize,
    alignment: usize,
    access: Access,
    site: Site,
) -> bool {
    // SAFETY: the running thread's block is alive; nothing else runs on this OS thread.
    let known = unsafe { *(*(*lane).block).range(address) };
    let mut writable = known.writable;
    if !known.holds(address, bytes) || access.writes() && !writable {
        // SAFETY: same contract.
        writable = unsafe { look_up(lane, address, bytes, access, site) };
    }
    if !address.is_multiple_of(alignment) {
        // SAFETY: same contract.
        unsafe { fail(lane, site, ViolationKind::GlobalMisaligned { address, alignment }) }
    }
    writable
}

/// Finds the piece of memory and remembers it; stops an access that is not allowed.
///
/// # Safety
/// `lane` is the running thread.
#[inline(never)]
unsafe fn look_up(lane: *mut Lane, address: usize, bytes: usize, access: Access, site: Site) -> bool {
    // SAFETY: the block is alive, and the arguments outlive the launch.
    let (block, arguments) = unsafe { (&mut *(*lane).block, &*(*(*lane).block).arguments) };
    if let Some(piece) = arguments.piece(address, bytes)
        && (piece.writable || !access.writes())
    {
        *block.range(address) = piece;
        return piece.writable;
    }
    let kind = match arguments.coverage(address, bytes) {
        Some(coverage) => match coverage.read_only.filter(|_| access.writes()) {
            None => return coverage.writable,
            Some(first) => ViolationKind::ReadOnlyArgument { access, address: first, holder: arguments.holder(first) },
        },
        None if Live::lock().is_freed(address) => ViolationKind::GlobalFreed { address, bytes },
        None => {
            let nearest = arguments.nearest(address, bytes);
            ViolationKind::GlobalOutOfBounds { access, address, bytes, nearest }
        }
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
    unsafe { access(lane, site, |block, by| block.global.access(by, address..address + bytes, kind, site)) }
}

/// Checks and records an access that writes.
///
/// # Safety
/// `lane` is the running thread.
#[inline(always)]
pub(super) unsafe fn write<T>(lane: *mut Lane, p: *const T, alignment: usize, kind: Access, site: Site) {
    // SAFETY: the running thread, whose block is alive; nothing else runs on this OS thread.
    unsafe {
        check(lane, p.addr(), size_of::<T>(), alignment, kind, site);
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
        if check(lane, p.addr(), size_of::<T>(), align_of::<T>(), Access::Read, site) {
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
/// As `global::prefetch`.
#[inline(always)]
pub unsafe fn prefetch<T>(p: *const T, site: Site) {
    // SAFETY: a kernel's lane calls this, so there is a current one.
    unsafe { check(current(), p.addr(), 1, 1, Access::Read, site) };
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
        if check(lane, p.addr(), size_of::<T>(), align_of::<T>(), Access::Read, site) {
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
        let recorded = check(lane, p.addr(), size_of::<T>(), align_of::<T>(), Access::VolatileRead, site);
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
