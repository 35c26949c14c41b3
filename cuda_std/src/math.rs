//! Arithmetic that maps to one GPU instruction and gives the same bits on every back end.
//!
//! The compiler never fuses `a * b + c`; only [`mul_add_f32`] and [`mul_add_f64`] are fused.

use crate::imp;

macro_rules! functions {
    ($($(#[$doc:meta])* $name:ident($($argument:ident: $t:ty),*) -> $result:ty;)*) => {$(
        $(#[$doc])*
        #[inline(always)]
        pub fn $name($($argument: $t),*) -> $result {
            imp::math::$name($($argument),*)
        }
    )*};
}

functions! {
    /// `a · b + c` with one rounding (`fma.rn.f32`).
    mul_add_f32(a: f32, b: f32, c: f32) -> f32;
    /// `a · b + c` with one rounding (`fma.rn.f64`).
    mul_add_f64(a: f64, b: f64, c: f64) -> f64;
    /// The smaller of `a` and `b`, with −0 below +0. If exactly one of them is NaN, the other (`min.f32`).
    min_f32(a: f32, b: f32) -> f32;
    /// The larger of `a` and `b`, with +0 above −0. If exactly one of them is NaN, the other (`max.f32`).
    max_f32(a: f32, b: f32) -> f32;
    /// The smaller of `a` and `b`, with −0 below +0. If exactly one of them is NaN, the other (`min.f64`).
    min_f64(a: f64, b: f64) -> f64;
    /// The larger of `a` and `b`, with +0 above −0. If exactly one of them is NaN, the other (`max.f64`).
    max_f64(a: f64, b: f64) -> f64;
    /// Square root of `x`, rounded to nearest (`sqrt.rn.f32`).
    sqrt_f32(x: f32) -> f32;
    /// Square root of `x`, rounded to nearest (`sqrt.rn.f64`).
    sqrt_f64(x: f64) -> f64;
    /// The value of the f16 bit pattern `bits`; exact (`cvt.f32.f16`).
    f16_to_f32(bits: u16) -> f32;
    /// Adds the low f16 of `a` and `b` and the high f16 of `a` and `b`, each sum rounded to nearest, ties to even
    /// (`add.rn.f16x2`).
    add_f16x2(a: u32, b: u32) -> u32;
    /// Computes a · b + c for the low f16 of the three and for the high f16, each rounded once to nearest, ties to even
    /// (`fma.rn.f16x2`).
    fma_f16x2(a: u32, b: u32, c: u32) -> u32;
    /// `c` plus the sum of the products of the four signed bytes of `a` and `b` (`dp4a.s32.s32`).
    dot4_i8(a: u32, b: u32, c: i32) -> i32;
    /// `c` plus the sum of the products of the four unsigned bytes of `a` and `b` (`dp4a.u32.u32`).
    dot4_u8(a: u32, b: u32, c: u32) -> u32;
    /// The nearest f16 of `x`, ties to even. Overflow gives infinity, NaN gives 0x7fff (`cvt.rn.f16.f32`).
    f32_to_f16(x: f32) -> u16;
    /// The nearest bf16 of `x`, ties to even. Overflow gives infinity, NaN gives 0x7fff (`cvt.rn.bf16.f32`).
    f32_to_bf16(x: f32) -> u16;
    /// The nearest tf32 of `x`, ties away from zero, as an f32 bit pattern (`cvt.rna.tf32.f32`).
    f32_to_tf32(x: f32) -> u32;
}

/// The value of the bf16 bit pattern `bits`; exact (a shift).
#[inline(always)]
pub const fn bf16_to_f32(bits: u16) -> f32 {
    f32::from_bits((bits as u32) << 16)
}
