//! Atomic operations by asm: LLVM does not translate the orderings of `core::sync::atomic` to the wanted PTX orderings
//! and scopes.

use crate::Site;
use core::arch::asm;

macro_rules! global {
    ($($name:ident($t:ty, $register:ident) $instruction:literal;)*) => {$(
        /// # Safety
        /// `p` points to an aligned value in global memory.
        #[inline(always)]
        pub unsafe fn $name(p: *mut $t, value: $t, _: Site) -> $t {
            let old: $t;
            // SAFETY: same contract.
            unsafe {
                asm!(
                    concat!("atom.relaxed.gpu.global.", $instruction, " {0}, [{1}], {2};"),
                    out($register) old, in(reg64) p, in($register) value, options(nostack)
                )
            }
            old
        }
    )*};
}

global! {
    add_u32(u32, reg32) "add.u32";
    add_u64(u64, reg64) "add.u64";
    min_u32(u32, reg32) "min.u32";
    max_u32(u32, reg32) "max.u32";
    min_u64(u64, reg64) "min.u64";
    max_u64(u64, reg64) "max.u64";
    or_u32(u32, reg32) "or.b32";
    exchange_u32(u32, reg32) "exch.b32";
    add_f32(f32, reg32) "add.f32";
}

/// # Safety
/// `p` points to an aligned value in global memory.
#[inline(always)]
pub unsafe fn cas_u32(p: *mut u32, expected: u32, new: u32, _: Site) -> u32 {
    let old: u32;
    // SAFETY: same contract.
    unsafe {
        asm!(
            "atom.relaxed.gpu.global.cas.b32 {0}, [{1}], {2}, {3};",
            out(reg32) old, in(reg64) p, in(reg32) expected, in(reg32) new, options(nostack)
        )
    }
    old
}

macro_rules! shared {
    ($($name:ident($t:ty, $register:ident) $instruction:literal;)*) => {$(
        /// # Safety
        /// `address` is an aligned, initialised place in shared memory.
        #[inline(always)]
        pub unsafe fn $name(address: u32, value: $t, _: Site) -> $t {
            let old: $t;
            // SAFETY: same contract.
            unsafe {
                asm!(
                    concat!("atom.relaxed.cta.shared.", $instruction, " {0}, [{1}], {2};"),
                    out($register) old, in(reg32) address, in($register) value, options(nostack)
                )
            }
            old
        }
    )*};
}

shared! {
    shared_add_u32(u32, reg32) "add.u32";
    shared_min_u32(u32, reg32) "min.u32";
    shared_max_u32(u32, reg32) "max.u32";
    shared_min_u64(u64, reg64) "min.u64";
}

/// # Safety
/// `address` is an aligned, initialised place in shared memory.
#[inline(always)]
pub unsafe fn shared_cas_u32(address: u32, expected: u32, new: u32, _: Site) -> u32 {
    let old: u32;
    // SAFETY: same contract.
    unsafe {
        asm!(
            "atom.relaxed.cta.shared.cas.b32 {0}, [{1}], {2}, {3};",
            out(reg32) old, in(reg32) address, in(reg32) expected, in(reg32) new, options(nostack)
        )
    }
    old
}

/// # Safety
/// `address` is an aligned, initialised place in shared memory.
#[inline(always)]
pub unsafe fn shared_load_u32(address: u32, _: Site) -> u32 {
    let value: u32;
    // SAFETY: same contract. Not `readonly`: other threads write the place between two calls.
    unsafe { asm!("ld.relaxed.cta.shared.u32 {0}, [{1}];", out(reg32) value, in(reg32) address, options(nostack)) }
    value
}

/// # Safety
/// `address` is that of four initialised words in shared memory, aligned to 16 bytes.
#[inline(always)]
pub unsafe fn shared_load_u32x4(address: u32, _: Site) -> [u32; 4] {
    let (a, b, c, d): (u32, u32, u32, u32);
    // SAFETY: same contract. Not `readonly`, as above.
    unsafe {
        asm!(
            "ld.relaxed.cta.shared.v4.u32 {{{0}, {1}, {2}, {3}}}, [{4}];",
            out(reg32) a, out(reg32) b, out(reg32) c, out(reg32) d, in(reg32) address, options(nostack)
        )
    }
    [a, b, c, d]
}
