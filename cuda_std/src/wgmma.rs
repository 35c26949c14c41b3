//! Matrix products of a warpgroup (`wgmma.mma_async`, sm_90a alone): four warps multiply what lies in shared memory.
//!
//! D (64×N) += A (64×64) · Bᵀ, B N×64, where N is 64 or 128. A *chunk* of A or B is 64 components of 16 bits a row, 128 bytes, row after row;
//! 16-byte part p of row r lies at part p ^ (r mod 8) of the row. A chunk starts at a multiple of 1024 bytes.
//!
//! Warp w of the group (of its four, in the order of their numbers) gets rows 16w to 16w + 15 of D. With g = lane / 4 and
//! t = lane % 4, element `[j][r]` of its fragment is row 16w + g + 8·(r / 2), column 8j + 2t + r % 2.
//!
//! A kernel that uses this says so, by `#[kernel(.., arch = "sm_90a")]`: other devices refuse its PTX.
//!
//! # Rounding
//! As for [`crate::mma`].
//!
//! # What is seen
//! These products read shared memory past the path of ordinary loads and stores. Whoever wrote what they read, by store or by
//! asynchronous copy (once it was waited for), calls [`publish`] before the barrier that comes before the product.
//!
//! # Who must arrive
//! All 128 threads of four consecutive warps, the first a multiple of four, at the same call.

use crate::{imp, shared::SharedPtr};
use core::panic::Location;

/// Has later products see what this thread wrote to shared memory (`fence.proxy.async`), after the next barrier.
#[track_caller]
#[inline(always)]
pub fn publish() {
    imp::wgmma::publish(Location::caller());
}

/// A lane's part of D: `[[f32; 4]; N / 8]`, for N of 64 and of 128.
pub trait Fragment: imp::wgmma::Sums {}

impl Fragment for [[f32; 4]; 8] {}
impl Fragment for [[f32; 4]; 16] {}

/// Starts D += A · Bᵀ for chunks of f16 components at `a` (64 rows) and `b` (N rows), with f32 sums
/// (4 × `wgmma.mma_async.m64nNk16.f32.f16.f16`). Unless it is to `add`, D starts at zero, whatever `d` holds. Until [`wait`] the sums
/// mean nothing, and other work of the thread runs beside the product.
///
/// As with [`crate::mma`], put a [`crate::warp::sync_warp`] of all lanes straight before this and [`wait`] in a kernel whose branches differ
/// by lane.
///
/// # Safety
/// Both chunks were written and published before a barrier, and nobody writes them before the barrier after the wait. Until then `d`
/// is neither read, written nor moved but by further products. All threads of the warpgroup arrive, with the same arguments.
#[track_caller]
#[inline(always)]
pub unsafe fn start_f16<F: Fragment>(d: &mut F, a: SharedPtr<u8>, b: SharedPtr<u8>, add: bool) {
    // SAFETY: same contract.
    unsafe { d.start(a.address(), b.address(), add, Location::caller()) }
}

/// Waits for all products that this thread has started; their sums are `d`.
///
/// # Safety
/// All threads of the warpgroup arrive.
#[track_caller]
#[inline(always)]
pub unsafe fn wait<F: Fragment>(d: &mut F) {
    // SAFETY: same contract.
    unsafe { d.wait(Location::caller()) }
}
