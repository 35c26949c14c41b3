//! Queries in the form in which they are compared with centroids and codes: f32, and normalised if the index keeps
//! normalised vectors.
//!
//! # Problem
//! The host converts queries on their way to the device. Queries in device memory are converted there, to the same
//! bits: a component of a normalised vector is f32(x / ‖x‖), where ‖x‖ is the square root of the canonical Σx² and the
//! division is in f64; a zero vector stays. A bit becomes 0 or 1.
//!
//! # Algorithm
//! One warp for each query. A query that was refused may become NaN, so that a rotation that follows keeps this.
//!
//! # Cost
//! One read and one write of the queries; two reads if they are normalised.

use cuda_std::global::F32x4;
use cuda_std::launch::LaunchConfig;
use cuda_std::{Ptr, PtrMut, device_inline, global, kernel, math, thread, unroll, warp};

use crate::product::canonical::squares;
use crate::product::element::{self, Element, RowKey};

/// Number of warps in a block of these kernels.
const WARPS_PER_BLOCK: u32 = 4;

/// Writes each query as f32, divided by its norm if `normalise` is not 0.
///
/// # Safety
/// The arrays are as long as the fields say.
#[kernel(
    key = RowKey,
    max_threads = 128,
    RowKey::F32 => widen_f32 = widen::<element::F32>,
    RowKey::F16 => widen_f16 = widen::<element::F16>,
    RowKey::Bf16 => widen_bf16 = widen::<element::Bf16>,
    RowKey::U8 => widen_u8 = widen::<element::U8>,
    RowKey::I8 => widen_i8 = widen::<element::I8>,
    RowKey::Bits => widen_bits = widen::<element::Bits>,
)]
pub struct WidenQueries {
    /// `count` rows of `stride` stored units, with the content of the key.
    pub rows: Ptr<u8>,
    /// Number of queries.
    pub count: u32,
    /// Distance from one row to the next in stored units, components or eight bits: a multiple of 4, zero padded.
    pub stride: u32,
    /// Whether queries are divided by their norms: 0 for no.
    pub normalise: u32,
    /// A word of each query: all components of a query become NaN if it is not 0. Absent: no query does.
    pub refused: Option<Ptr<u32>>,
    /// Room for `count` rows of `to_stride` components.
    pub to: PtrMut<f32>,
    /// Distance from one row of `to` to the next in components: a multiple of 4, at most those of a row.
    pub to_stride: u32,
}

impl WidenQueries {
    /// One warp for each query.
    pub fn config(&self) -> LaunchConfig {
        LaunchConfig::warps(self.count as u64, WARPS_PER_BLOCK)
    }
}

/// # Safety
/// As [`WidenQueries`].
#[device_inline]
unsafe fn widen<E: Element>(launch: WidenQueries) {
    let WidenQueries { rows, count, stride, normalise, refused, to, to_stride } = launch;
    let query = thread::block_idx_x() * WARPS_PER_BLOCK + warp::warp_id();
    if query >= count {
        return;
    }
    let lane = warp::lane_id();
    let quads = stride / 4;
    let row = rows.cast::<E::Stored>().wrapping_add(query as usize * stride as usize);
    let to = to.wrapping_add(query as usize * to_stride as usize).cast::<F32x4>();
    // SAFETY: query < count, and quads are below the strides.
    unsafe {
        let square = if normalise != 0 { squares::<E>(row, quads, lane) } else { 0.0 };
        let norm = if square == 0.0 { 1.0 } else { math::sqrt_f64(square) };
        let is_refused = match refused {
            Some(refused) => global::load_nc(refused.wrapping_add(query as usize)) != 0,
            None => false,
        };
        let mut quad = lane;
        while quad < to_stride / 4 {
            let mut x = E::load4(row, quad);
            unroll::<4>(|e| {
                let divided = if normalise != 0 { (x[e] as f64 / norm) as f32 } else { x[e] };
                x[e] = if is_refused { f32::NAN } else { divided };
            });
            global::store(to.wrapping_add(quad as usize), F32x4(x));
            quad += 32;
        }
    }
}
