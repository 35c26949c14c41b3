//! Matrix products of a warpgroup (`wgmma.mma_async`, sm_90a alone): four warps multiply matrices in shared memory.
//!
//! D (64×N) += A (64×K) · Bᵀ, B N×K, where N is 64 or 128. A *chunk* of A or B is 128 bytes a row, row after row: K =
//! 64 components of 16 bits, K = 128 bytes, or K = 1024 bits. 16-byte part p of row r lies at part p ^ (r mod 8) of the
//! row. A chunk starts at a multiple of 1024 bytes.
//!
//! Warp w of the group (0 to 3, in the order of the warps' numbers) gets rows 16w to 16w + 15 of D. With g = lane / 4
//! and t = lane % 4, element `[j][r]` of its fragment is row 16w + g + 8·(r / 2), column 8j + 2t + r % 2.
//!
//! A kernel that uses this module must declare it, by `#[kernel(.., arch = "sm_90a")]`: other devices refuse its PTX.
//!
//! # Rounding
//! Sums round as in [`crate::mma`].
//!
//! # Visibility
//! These products read shared memory through another path (the asynchronous proxy) than ordinary loads and stores. A
//! thread that wrote operands, by a store or by an asynchronous copy that it has waited for, calls [`publish`] before
//! the barrier that precedes the product.
//!
//! # Who must arrive
//! All 128 threads of four consecutive warps must reach the same call. The number of the first warp is a multiple of
//! four.

use crate::{imp, shared::SharedPtr};
use core::panic::Location;

/// Makes this thread's finished writes to shared memory visible to the products after the next barrier
/// (`fence.proxy.async`).
#[track_caller]
#[inline(always)]
pub fn publish() {
    imp::wgmma::publish(Location::caller());
}

/// A lane's part of D: `[[f32; 4]; N / 8]` for products of f16 components, `[[i32; 4]; N / 8]` for products of bytes
/// and of bits, for N of 64 and of 128.
pub trait Fragment: imp::wgmma::Sums {}

impl Fragment for [[f32; 4]; 8] {}
impl Fragment for [[f32; 4]; 16] {}
impl Fragment for [[i32; 4]; 8] {}
impl Fragment for [[i32; 4]; 16] {}

/// Starts D += A · Bᵀ for chunks of f16 components at `a` (64 rows) and `b` (N rows), with f32 sums
/// (4 × `wgmma.mma_async.m64nNk16.f32.f16.f16`). If `add` is false, D starts at zero, whatever `d` holds. Before
/// [`wait`] the values of `d` are undefined; the thread can do other work while the product runs.
///
/// In a kernel whose branches differ by lane, call [`crate::warp::sync_warp`] with all lanes directly before this
/// function and before [`wait`], as with [`crate::mma`].
///
/// # Safety
/// Both chunks were written and published before a barrier, and no thread writes them before the barrier after the
/// wait. Until the wait only further products read, write or move `d`. All threads of the warpgroup arrive, with the
/// same arguments.
#[track_caller]
#[inline(always)]
pub unsafe fn start_f16<F: Fragment + imp::wgmma::HalfSums>(d: &mut F, a: SharedPtr<u8>, b: SharedPtr<u8>, add: bool) {
    // SAFETY: same contract.
    unsafe { d.start_f16(a.address(), b.address(), add, Location::caller()) }
}

/// As [`start_f16`] for chunks of bytes from -128 to 127, with exact sums that wrap around beyond 32 bits
/// (4 × `wgmma.mma_async.m64nNk32.s32.s8.s8`).
///
/// # Safety
/// As [`start_f16`].
#[track_caller]
#[inline(always)]
pub unsafe fn start_s8<F: Fragment + imp::wgmma::ByteSums>(d: &mut F, a: SharedPtr<u8>, b: SharedPtr<u8>, add: bool) {
    // SAFETY: same contract.
    unsafe { d.start_s8(a.address(), b.address(), add, Location::caller()) }
}

/// As [`start_f16`] for chunks of bytes from 0 to 255, with exact sums that wrap around beyond 32 bits
/// (4 × `wgmma.mma_async.m64nNk32.s32.u8.u8`).
///
/// # Safety
/// As [`start_f16`].
#[track_caller]
#[inline(always)]
pub unsafe fn start_u8<F: Fragment + imp::wgmma::ByteSums>(d: &mut F, a: SharedPtr<u8>, b: SharedPtr<u8>, add: bool) {
    // SAFETY: same contract.
    unsafe { d.start_u8(a.address(), b.address(), add, Location::caller()) }
}

/// As [`start_f16`] for chunks of bits, with exact sums that wrap around beyond 32 bits: the numbers of places with a 1
/// in both rows (4 × `wgmma.mma_async.m64nNk256.s32.b1.b1.and.popc`).
///
/// # Safety
/// As [`start_f16`].
#[track_caller]
#[inline(always)]
pub unsafe fn start_b1<F: Fragment + imp::wgmma::ByteSums>(d: &mut F, a: SharedPtr<u8>, b: SharedPtr<u8>, add: bool) {
    // SAFETY: same contract.
    unsafe { d.start_b1(a.address(), b.address(), add, Location::caller()) }
}

/// Waits for all products that this thread has started. `d` then holds their sums.
///
/// # Safety
/// All threads of the warpgroup arrive.
#[track_caller]
#[inline(always)]
pub unsafe fn wait<F: Fragment>(d: &mut F) {
    // SAFETY: same contract.
    unsafe { d.wait(Location::caller()) }
}
