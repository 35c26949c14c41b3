//! The numbers of vectors of bytes that the filter of bytes needs beside the vectors
//! ([`crate::flat::byte_filter`]).
//!
//! # Algorithm
//! ```text
//! squares = Σ x², exact in 32 bits
//! value = squares as u32 (squared L2), 0 (inner product), the bits of −1 / √squares as f32, 0 without a direction (cosine)
//! norm ≥ √squares, rounded up (cosine: ≥ 1, the norm of the vector divided by its norm)
//! ```
//!
//! There is no copy, no scale and no centre: exact products need none of them.
//!
//! # Cost
//! One read of the vectors, one warp a row. 8 bytes a row are written.

use cuda_std::launch::LaunchConfig;
use cuda_std::math::{dot4_i8, dot4_u8};
use cuda_std::warp::FULL_MASK;
use cuda_std::{Ptr, PtrMut, global, kernel, thread, warp};

use crate::product::bounds::Bounds;
use crate::product::element::ByteKey;
use crate::product::metric::{Metric, normaliser};
use crate::product::prepare::{listed_row, raise};
use crate::product::tile::TILE_ROWS;

/// Number of warps in a block of these kernels.
const WARPS_PER_BLOCK: u32 = 4;

/// Writes value and norm of each row, and raises the norms of its tile and of the set.
///
/// # Safety
/// The arrays are as long as the fields say.
#[kernel(
    key = ByteKey,
    max_threads = 128,
    ByteKey::U8 => prepare_bytes_u8 = prepare::<false>,
    ByteKey::I8 => prepare_bytes_i8 = prepare::<true>,
)]
pub struct PrepareBytes {
    /// `count` rows of `stride` bytes, of the type of the key.
    pub rows: Ptr<u8>,
    /// Number of rows without padding.
    pub count: u32,
    /// Number of rows with padding; those from `count` on get the value +∞.
    pub padded_count: u32,
    /// Distance from one row to the next in bytes: a multiple of 4, zero padded.
    pub stride: u32,
    /// The metric of the values.
    pub metric: Metric,
    /// The numbers of `tile_count` tiles of padded rows, which are prepared; absent: all rows.
    pub tiles: Option<Ptr<u32>>,
    /// Number of listed tiles, 0 without a list.
    pub tile_count: u32,
    /// The value of each padded row.
    pub values: PtrMut<u32>,
    /// Upper bound of the norm of each padded row.
    pub norms: PtrMut<f32>,
    /// Bits of the greatest norm of each tile of rows, which the launch raises.
    pub tile_norms: PtrMut<u32>,
    /// Bits of the greatest norm of all rows, which the launch raises: one word.
    pub set_norm: PtrMut<u32>,
    /// The canonical Σx² of each of `count` rows; absent: not written.
    pub row_squares: Option<PtrMut<f64>>,
}

impl PrepareBytes {
    /// One warp for each row.
    pub fn config(&self) -> LaunchConfig {
        let listed = self.tile_count as u64 * TILE_ROWS as u64;
        LaunchConfig::warps(if self.tiles.is_some() { listed } else { self.padded_count as u64 }, WARPS_PER_BLOCK)
    }
}

/// # Safety
/// As [`PrepareBytes`].
#[inline(always)]
unsafe fn prepare<const SIGNED: bool>(launch: PrepareBytes) {
    let PrepareBytes { rows, count, padded_count, stride, metric, values, norms, .. } = launch;
    let PrepareBytes { tile_norms, set_norm, row_squares, .. } = launch;
    let at = thread::block_idx_x() * WARPS_PER_BLOCK + warp::warp_id();
    // SAFETY: a block has as many rows as warps, which divide a tile, so each row of the grid is one of a listed tile.
    let row = unsafe { listed_row(launch.tiles, at) };
    if row >= padded_count {
        return;
    }
    let lane = warp::lane_id();
    let exists = row < count;
    let mut squares = 0;
    if exists {
        let x = rows.wrapping_add(row as usize * stride as usize).cast::<u32>();
        let mut word = lane;
        while word < stride / 4 {
            // SAFETY: the row has stride / 4 words.
            let four = unsafe { global::load_nc(x.wrapping_add(word as usize)) };
            squares = if SIGNED { dot4_i8(four, four, squares as i32) as u32 } else { dot4_u8(four, four, squares) };
            word += 32;
        }
    }
    let squares = warp::reduce_add(FULL_MASK, squares);
    if lane == 0 {
        let exact = squares as f64;
        let (value, of_norm) = match metric {
            Metric::L2 => (squares, exact),
            Metric::InnerProduct => (0, exact),
            // The norm of the vector divided by its norm is 1, or 0 if there is no direction.
            Metric::Cosine => {
                let value = if squares == 0 { 0 } else { (-normaliser(metric, exact) as f32).to_bits() };
                (value, exact.min(1.0))
            }
        };
        let norm = Bounds::of_squares(of_norm, 0.0).norm;
        // SAFETY: the caller promises the shapes.
        unsafe {
            global::store(values.wrapping_add(row as usize), if exists { value } else { f32::INFINITY.to_bits() });
            global::store(norms.wrapping_add(row as usize), norm);
            raise(tile_norms.wrapping_add((row / TILE_ROWS) as usize), norm);
            raise(*set_norm, norm);
            if let Some(row_squares) = row_squares
                && exists
            {
                global::store(row_squares.wrapping_add(row as usize), exact);
            }
        }
    }
}
