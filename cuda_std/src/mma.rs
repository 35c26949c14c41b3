//! Matrix products of a warp (`mma.sync`, sm_80) and the loads that feed them (`ldmatrix`).
//!
//! D (16×8) += A (16×K) · B (K×8). Every lane holds a fragment of each matrix. With g = lane / 4 and t = lane % 4:
//!
//! | fragment | register r holds | element |
//! | --- | --- | --- |
//! | A, K = 16, 16-bit elements | 2 elements, low half first | row g + 8·(r % 2), columns 2t + 8·(r / 2) and the next |
//! | B, K = 16, 16-bit elements | 2 elements, low half first | column g, rows 2t + 8·r and the next |
//! | A, K = 8, tf32 | 1 element | row g + 8·(r % 2), column t + 4·(r / 2) |
//! | B, K = 8, tf32 | 1 element | column g, row t + 4·r |
//! | A, K = 32, bytes | 4 elements, lowest byte first | row g + 8·(r % 2), columns 4t + 16·(r / 2) and the next three |
//! | B, K = 32, bytes | 4 elements, lowest byte first | column g, rows 4t + 16·r and the next three |
//! | A, K = 256, bits | 32 elements, lowest bit first | row g + 8·(r % 2), columns 32t + 128·(r / 2) and the next 31 |
//! | B, K = 256, bits | 32 elements, lowest bit first | column g, rows 32t + 128·r and the next 31 |
//! | C and D, f32 or i32 | 1 element | row g + 8·(r / 2), column 2t + r % 2 |
//!
//! In memory, all these fragments of A have one layout, and so have those of B: `ldmatrix` loads all of them.
//!
//! # Rounding
//! Sums of bytes and of bits are exact, and wrap around beyond 32 bits. Products of floats are exact. The GPU adds the
//! products of one instruction in an undocumented order and alignment, and truncates. The emulator adds them to C one
//! by one, k ascending, and rounds each sum to nearest. So the GPU and the emulator agree to the bit only if all sums
//! are exact.
//!
//! # Who must arrive
//! All 32 lanes of the warp must reach the same call (the instructions are `.aligned`).

use crate::{imp, shared::SharedPtr};
use core::panic::Location;

/// Loads four 8×8 matrices of 16-bit elements (`ldmatrix.m8n8.x4.b16`).
///
/// Lane l passes the address of row l % 8 of matrix l / 8: 16 bytes, 16-byte aligned. Register i of the result holds
/// two adjacent elements of matrix i: row lane / 4, columns 2·(lane % 4) and the next.
///
/// # Safety
/// The addressed rows lie in shared memory and were written, and no thread writes them before the next synchronisation.
/// All lanes of the warp arrive.
#[track_caller]
#[inline(always)]
pub unsafe fn ldmatrix_x4(row: SharedPtr<u8>) -> [u32; 4] {
    // SAFETY: same contract.
    unsafe { imp::mma::ldmatrix_x4(row.address(), Location::caller()) }
}

/// Loads two 8×8 matrices: as [`ldmatrix_x4`], with the addresses of lanes 0..16 only (`ldmatrix.m8n8.x2.b16`).
///
/// # Safety
/// As [`ldmatrix_x4`].
#[track_caller]
#[inline(always)]
pub unsafe fn ldmatrix_x2(row: SharedPtr<u8>) -> [u32; 2] {
    // SAFETY: same contract.
    unsafe { imp::mma::ldmatrix_x2(row.address(), Location::caller()) }
}

/// Loads four 8×8 matrices transposed: register i holds rows 2·(lane % 4) and the next of column lane / 4 of matrix i
/// (`ldmatrix.m8n8.x4.trans.b16`).
///
/// # Safety
/// As [`ldmatrix_x4`].
#[track_caller]
#[inline(always)]
pub unsafe fn ldmatrix_x4_trans(row: SharedPtr<u8>) -> [u32; 4] {
    // SAFETY: same contract.
    unsafe { imp::mma::ldmatrix_x4_trans(row.address(), Location::caller()) }
}

/// C += A · B with f16 elements and f32 sums, K = 16 (`mma.m16n8k16.f32.f16.f16.f32`).
///
/// LLVM does not treat this function and the `ldmatrix` functions as convergent. In a kernel whose branches differ by
/// lane, call [`crate::warp::sync_warp`] with all lanes directly before a group of these calls.
///
/// # Safety
/// All lanes of the warp arrive, at the same call.
#[track_caller]
#[inline(always)]
pub unsafe fn mma_m16n8k16_f16(c: &mut [f32; 4], a: &[u32; 4], b: [u32; 2]) {
    // SAFETY: same contract.
    unsafe { imp::mma::m16n8k16_f16(c, a, b, Location::caller()) }
}

/// C += A · B with bf16 elements and f32 sums, K = 16 (`mma.m16n8k16.f32.bf16.bf16.f32`).
///
/// # Safety
/// All lanes of the warp arrive, at the same call.
#[track_caller]
#[inline(always)]
pub unsafe fn mma_m16n8k16_bf16(c: &mut [f32; 4], a: &[u32; 4], b: [u32; 2]) {
    // SAFETY: same contract.
    unsafe { imp::mma::m16n8k16_bf16(c, a, b, Location::caller()) }
}

/// C += A · B with tf32 elements and f32 sums, K = 8 (`mma.m16n8k8.f32.tf32.tf32.f32`).
///
/// Elements are f32 bit patterns. The product ignores their low 13 bits; [`crate::math::f32_to_tf32`] rounds them
/// first.
///
/// # Safety
/// All lanes of the warp arrive, at the same call.
#[track_caller]
#[inline(always)]
pub unsafe fn mma_m16n8k8_tf32(c: &mut [f32; 4], a: &[u32; 4], b: [u32; 2]) {
    // SAFETY: same contract.
    unsafe { imp::mma::m16n8k8_tf32(c, a, b, Location::caller()) }
}

macro_rules! byte_products {
    ($($(#[$doc:meta])* $name:ident, $imp:ident;)*) => {$(
        $(#[$doc])*
        ///
        /// # Safety
        /// All lanes of the warp arrive, at the same call.
        #[track_caller]
        #[inline(always)]
        pub unsafe fn $name(c: &mut [i32; 4], a: &[u32; 4], b: [u32; 2]) {
            // SAFETY: same contract.
            unsafe { imp::mma::$imp(c, a, b, Location::caller()) }
        }
    )*};
}

byte_products! {
    /// C += A · B with elements from -128 to 127 and exact sums, K = 32 (`mma.m16n8k32.s32.s8.s8.s32`).
    mma_m16n8k32_s8, m16n8k32_s8;
    /// C += A · B with elements from 0 to 255 and exact sums, K = 32 (`mma.m16n8k32.s32.u8.u8.s32`).
    mma_m16n8k32_u8, m16n8k32_u8;
    /// C += A · B with bits as elements and exact sums, K = 256: the number of places with a 1 in both
    /// (`mma.m16n8k256.s32.b1.b1.s32.and.popc`).
    mma_m16n8k256_b1, m16n8k256_b1;
}
