//! Arithmetic; each function is one instruction.

use core::arch::asm;

unsafe extern "C" {
    #[link_name = "llvm.fma.f32"]
    fn fma_f32(a: f32, b: f32, c: f32) -> f32;
    #[link_name = "llvm.fma.f64"]
    fn fma_f64(a: f64, b: f64, c: f64) -> f64;
    #[link_name = "llvm.minnum.f32"]
    fn minnum_f32(a: f32, b: f32) -> f32;
    #[link_name = "llvm.maxnum.f32"]
    fn maxnum_f32(a: f32, b: f32) -> f32;
    #[link_name = "llvm.minnum.f64"]
    fn minnum_f64(a: f64, b: f64) -> f64;
    #[link_name = "llvm.maxnum.f64"]
    fn maxnum_f64(a: f64, b: f64) -> f64;
    #[link_name = "llvm.sqrt.f32"]
    fn sqrt_f32_(x: f32) -> f32;
    #[link_name = "llvm.sqrt.f64"]
    fn sqrt_f64_(x: f64) -> f64;
}

macro_rules! functions {
    ($($name:ident($($argument:ident: $t:ty),*) -> $result:ty = $intrinsic:ident;)*) => {$(
        #[inline(always)]
        pub fn $name($($argument: $t),*) -> $result {
            // SAFETY: arithmetic on registers.
            unsafe { $intrinsic($($argument),*) }
        }
    )*};
}

functions! {
    mul_add_f32(a: f32, b: f32, c: f32) -> f32 = fma_f32;
    mul_add_f64(a: f64, b: f64, c: f64) -> f64 = fma_f64;
    min_f32(a: f32, b: f32) -> f32 = minnum_f32;
    max_f32(a: f32, b: f32) -> f32 = maxnum_f32;
    min_f64(a: f64, b: f64) -> f64 = minnum_f64;
    max_f64(a: f64, b: f64) -> f64 = maxnum_f64;
    sqrt_f32(x: f32) -> f32 = sqrt_f32_;
    sqrt_f64(x: f64) -> f64 = sqrt_f64_;
}

macro_rules! conversions {
    ($($name:ident($x:ident: $t:ty, $in:ident) -> $result:ty, $out:ident = $instruction:literal;)*) => {$(
        #[inline(always)]
        pub fn $name($x: $t) -> $result {
            let result: $result;
            // SAFETY: arithmetic on registers.
            unsafe {
                asm!(
                    concat!($instruction, " {0}, {1};"),
                    out($out) result, in($in) $x, options(pure, nomem, nostack)
                )
            }
            result
        }
    )*};
}

/// `add.rn.f16x2`.
#[inline(always)]
pub fn add_f16x2(a: u32, b: u32) -> u32 {
    let result: u32;
    // SAFETY: arithmetic on registers.
    unsafe {
        asm!(
            "add.rn.f16x2 {0}, {1}, {2};",
            out(reg32) result, in(reg32) a, in(reg32) b, options(pure, nomem, nostack)
        )
    }
    result
}

/// `fma.rn.f16x2`.
#[inline(always)]
pub fn fma_f16x2(a: u32, b: u32, c: u32) -> u32 {
    let result: u32;
    // SAFETY: arithmetic on registers.
    unsafe {
        asm!(
            "fma.rn.f16x2 {0}, {1}, {2}, {3};",
            out(reg32) result, in(reg32) a, in(reg32) b, in(reg32) c, options(pure, nomem, nostack)
        )
    }
    result
}

/// `dp4a.s32.s32`.
#[inline(always)]
pub fn dot4_i8(a: u32, b: u32, c: i32) -> i32 {
    let result: i32;
    // SAFETY: arithmetic on registers.
    unsafe {
        asm!(
            "dp4a.s32.s32 {0}, {1}, {2}, {3};",
            out(reg32) result, in(reg32) a, in(reg32) b, in(reg32) c, options(pure, nomem, nostack)
        )
    }
    result
}

/// `dp4a.u32.u32`.
#[inline(always)]
pub fn dot4_u8(a: u32, b: u32, c: u32) -> u32 {
    let result: u32;
    // SAFETY: arithmetic on registers.
    unsafe {
        asm!(
            "dp4a.u32.u32 {0}, {1}, {2}, {3};",
            out(reg32) result, in(reg32) a, in(reg32) b, in(reg32) c, options(pure, nomem, nostack)
        )
    }
    result
}

conversions! {
    f16_to_f32(bits: u16, reg16) -> f32, reg32 = "cvt.f32.f16";
    f32_to_f16(x: f32, reg32) -> u16, reg16 = "cvt.rn.f16.f32";
    f32_to_bf16(x: f32, reg32) -> u16, reg16 = "cvt.rn.bf16.f32";
    f32_to_tf32(x: f32, reg32) -> u32, reg32 = "cvt.rna.tf32.f32";
}
