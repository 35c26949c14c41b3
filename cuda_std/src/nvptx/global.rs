//! Global loads and stores. LLVM infers that pointer parameters of a kernel are global, so plain accesses become
//! `ld.global` and `st.global`.

use crate::Site;
use core::{arch::asm, mem::transmute_copy};

/// # Safety
/// As `global::load`.
#[inline(always)]
pub unsafe fn load<T: Copy>(p: *const T, _: Site) -> T {
    // SAFETY: same contract.
    unsafe { p.read() }
}

/// As `global::prefetch`.
#[inline(always)]
pub unsafe fn prefetch<T>(p: *const T, _: Site) {
    // SAFETY: the address exists by contract, and a prefetch changes no value.
    unsafe { asm!("prefetch.global.L2 [{0}];", in(reg64) p, options(nostack, readonly)) };
}

/// # Safety
/// As `global::load_nc`.
#[inline(always)]
pub unsafe fn load_nc<T: Copy>(p: *const T, _: Site) -> T {
    if align_of::<T>() < size_of::<T>() {
        // SAFETY: same contract.
        return unsafe { p.read() };
    }
    // SAFETY: p is readable and aligned by contract; the loaded bytes are a valid T, and the sizes are equal in each
    // arm.
    unsafe {
        match size_of::<T>() {
            1 => {
                let v: u16;
                asm!("ld.global.nc.u8 {0}, [{1}];", out(reg16) v, in(reg64) p, options(pure, readonly, nostack));
                transmute_copy(&(v as u8))
            }
            2 => {
                let v: u16;
                asm!("ld.global.nc.b16 {0}, [{1}];", out(reg16) v, in(reg64) p, options(pure, readonly, nostack));
                transmute_copy(&v)
            }
            4 => {
                let v: u32;
                asm!("ld.global.nc.b32 {0}, [{1}];", out(reg32) v, in(reg64) p, options(pure, readonly, nostack));
                transmute_copy(&v)
            }
            8 => {
                let v: u64;
                asm!("ld.global.nc.b64 {0}, [{1}];", out(reg64) v, in(reg64) p, options(pure, readonly, nostack));
                transmute_copy(&v)
            }
            16 => {
                let (a, b, c, d): (u32, u32, u32, u32);
                asm!(
                    "ld.global.nc.v4.b32 {{{0}, {1}, {2}, {3}}}, [{4}];",
                    out(reg32) a, out(reg32) b, out(reg32) c, out(reg32) d, in(reg64) p,
                    options(pure, readonly, nostack)
                );
                transmute_copy(&[a, b, c, d])
            }
            _ => p.read(),
        }
    }
}

/// # Safety
/// As `global::store`.
#[inline(always)]
pub unsafe fn store<T: Copy>(p: *mut T, value: T, _: Site) {
    // SAFETY: same contract.
    unsafe { p.write(value) }
}

/// # Safety
/// As `global::load_volatile`.
#[inline(always)]
pub unsafe fn load_volatile<T: Copy>(p: *const T, _: Site) -> T {
    // SAFETY: same contract.
    unsafe { p.read_volatile() }
}

/// # Safety
/// As `global::store_volatile`.
#[inline(always)]
pub unsafe fn store_volatile<T: Copy>(p: *mut T, value: T, _: Site) {
    // SAFETY: same contract.
    unsafe { p.write_volatile(value) }
}
