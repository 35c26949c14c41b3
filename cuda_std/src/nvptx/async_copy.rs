//! Asynchronous copies, by asm (`cp.async`).

use crate::Site;
use core::arch::asm;

/// # Safety
/// As `async_copy::copy_16`, for `BYTES` of 4, 8 or 16.
#[inline(always)]
pub unsafe fn copy<const BYTES: u32>(dst: u32, src: *const u8, _: Site) {
    // SAFETY: same contract.
    unsafe {
        match BYTES {
            4 => asm!("cp.async.ca.shared.global [{0}], [{1}], 4;", in(reg32) dst, in(reg64) src, options(nostack)),
            8 => asm!("cp.async.ca.shared.global [{0}], [{1}], 8;", in(reg32) dst, in(reg64) src, options(nostack)),
            _ => {
                asm!("cp.async.cg.shared.global.L2::128B [{0}], [{1}], 16;", in(reg32) dst, in(reg64) src, options(nostack))
            }
        }
    }
}

/// # Safety
/// As `async_copy::copy_16_zfill`, for `BYTES` of 4, 8 or 16.
#[inline(always)]
pub unsafe fn copy_zfill<const BYTES: u32>(dst: u32, src: *const u8, src_bytes: u32, _: Site) {
    // SAFETY: same contract.
    unsafe {
        match BYTES {
            4 => asm!(
                "cp.async.ca.shared.global [{0}], [{1}], 4, {2};",
                in(reg32) dst, in(reg64) src, in(reg32) src_bytes, options(nostack)
            ),
            8 => asm!(
                "cp.async.ca.shared.global [{0}], [{1}], 8, {2};",
                in(reg32) dst, in(reg64) src, in(reg32) src_bytes, options(nostack)
            ),
            _ => asm!(
                "cp.async.cg.shared.global.L2::128B [{0}], [{1}], 16, {2};",
                in(reg32) dst, in(reg64) src, in(reg32) src_bytes, options(nostack)
            ),
        }
    }
}

#[inline(always)]
pub fn commit(_: Site) {
    // SAFETY: closes a group; touches no memory.
    unsafe { asm!("cp.async.commit_group;", options(nostack)) }
}

#[inline(always)]
pub fn wait_group<const N: u32>(_: Site) {
    // SAFETY: waits for copies; their contracts were promised when they were started.
    unsafe { asm!("cp.async.wait_group {0};", const N, options(nostack)) }
}

#[inline(always)]
pub fn wait_all(_: Site) {
    // SAFETY: as for wait_group.
    unsafe { asm!("cp.async.wait_all;", options(nostack)) }
}
