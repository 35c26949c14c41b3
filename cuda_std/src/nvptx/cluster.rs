//! Clusters by asm: the intrinsics need a target from sm_90 on, and kernels are compiled for older ones too.

use crate::Site;
use core::{arch::asm, mem::transmute_copy};

#[inline(always)]
pub fn block_rank() -> u32 {
    let rank: u32;
    // SAFETY: reads a special register.
    unsafe { asm!("mov.u32 {0}, %cluster_ctarank;", out(reg32) rank, options(pure, nomem, nostack)) }
    rank
}

#[inline(always)]
pub fn block_count() -> u32 {
    let count: u32;
    // SAFETY: reads a special register.
    unsafe { asm!("mov.u32 {0}, %cluster_nctarank;", out(reg32) count, options(pure, nomem, nostack)) }
    count
}

/// Both instructions are those without `.aligned`, which threads of a warp may execute apart: asm is not convergent.
/// Without `.release` and `.acquire`, which PTX 7.8 lacks, they have these meanings.
#[inline(always)]
pub fn sync(_: Site) {
    // SAFETY: the caller ensures that all threads of the cluster arrive; the emulator checks it.
    unsafe { asm!("barrier.cluster.arrive;", "barrier.cluster.wait;", options(nostack)) }
}

/// # Safety
/// As `cluster::peer`.
#[inline(always)]
pub unsafe fn peer(address: u32, rank: u32, _: Site) -> u32 {
    let mapped: u32;
    // SAFETY: computes an address.
    unsafe {
        asm!(
            "mapa.shared::cluster.u32 {0}, {1}, {2};",
            out(reg32) mapped, in(reg32) address, in(reg32) rank, options(pure, nomem, nostack)
        )
    }
    mapped
}

/// # Safety
/// As `PeerPtr::load`; the size of `T` is 4 or 8.
#[inline(always)]
pub unsafe fn load<T: Copy>(address: u32, _: Site) -> T {
    // SAFETY: the place is readable and aligned by contract; the loaded bytes are a valid T, and the sizes are equal in
    // each arm.
    unsafe {
        if size_of::<T>() == 4 {
            let v: u32;
            asm!("ld.shared::cluster.b32 {0}, [{1}];", out(reg32) v, in(reg32) address, options(readonly, nostack));
            transmute_copy(&v)
        } else {
            let v: u64;
            asm!("ld.shared::cluster.b64 {0}, [{1}];", out(reg64) v, in(reg32) address, options(readonly, nostack));
            transmute_copy(&v)
        }
    }
}

/// # Safety
/// As `PeerPtr::store`; the size of `T` is 4 or 8.
#[inline(always)]
pub unsafe fn store<T: Copy>(address: u32, value: T, _: Site) {
    // SAFETY: the place is writable and aligned by contract; the sizes are equal in each arm.
    unsafe {
        if size_of::<T>() == 4 {
            let v: u32 = transmute_copy(&value);
            asm!("st.shared::cluster.b32 [{0}], {1};", in(reg32) address, in(reg32) v, options(nostack));
        } else {
            let v: u64 = transmute_copy(&value);
            asm!("st.shared::cluster.b64 [{0}], {1};", in(reg32) address, in(reg64) v, options(nostack));
        }
    }
}

/// # Safety
/// As `cluster::add_u32`.
#[inline(always)]
pub unsafe fn add_u32(address: u32, value: u32, _: Site) -> u32 {
    let old: u32;
    // SAFETY: same contract.
    unsafe {
        asm!(
            "atom.relaxed.cluster.shared::cluster.add.u32 {0}, [{1}], {2};",
            out(reg32) old, in(reg32) address, in(reg32) value, options(nostack)
        )
    }
    old
}
