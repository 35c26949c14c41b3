//! The numbers of vectors of bytes, or of bits, that the filter of bytes needs beside the vectors
//! ([`crate::flat::byte_filter`]).
//!
//! # Algorithm
//! ```text
//! squares = Σ x², exact in 32 bits
//! value = ⌊squares / 2⌋ (squared L2), 0 (inner product), the bits of −1 / √squares as f32, 0 without a direction (cosine)
//! norm ≥ √squares, rounded up (cosine: ≥ 1, the norm of the vector divided by its norm)
//! ```
//!
//! For the list scan of inverted files ([`crate::ivf::encoding::bytes`]) values are f32: squares, 0, or 1 / √squares.
//!
//! There is no copy, no scale and no centre: exact products need none of them.
//!
//! # Cost
//! One read of the vectors, one warp a row. 8 bytes a row are written.

use cuda_std::launch::LaunchConfig;
use cuda_std::{Ptr, PtrMut, device_inline, global, kernel, thread, warp};

use crate::product::bounds::Bounds;
use crate::product::canonical::squares;
use crate::product::element::{Bits, ExactKey, I8, Row, U8};
use crate::product::metric::{Metric, normaliser};
use crate::product::prepare::{listed_row, raise};
use crate::product::tile::TILE_ROWS;

/// Number of warps in a block of these kernels.
const WARPS_PER_BLOCK: u32 = 4;

/// Writes value and norm of each row, and raises the norm of the set.
///
/// # Safety
/// The arrays are as long as the fields say.
#[kernel(
    key = ExactKey,
    max_threads = 128,
    ExactKey::U8 => prepare_bytes_u8 = prepare::<U8>,
    ExactKey::I8 => prepare_bytes_i8 = prepare::<I8>,
    ExactKey::Bits => prepare_bytes_bits = prepare::<Bits>,
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
    /// Whether values are those of the list scan: 0 for no.
    pub of_lists: u32,
    /// Upper bound of the norm of each padded row; absent: not written.
    pub norms: Option<PtrMut<f32>>,
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

/// An upper bound of the norm of a vector with Σx² = `squares`, divided by its norm for cosine.
#[device_inline]
pub(crate) fn row_norm(metric: Metric, squares: f64) -> f32 {
    let squares = match metric {
        Metric::L2 | Metric::InnerProduct => squares,
        // 1, or 0 if there is no direction.
        Metric::Cosine => squares.min(1.0),
    };
    Bounds::of_squares(squares, 0.0).norm
}

/// # Safety
/// As [`PrepareBytes`].
#[device_inline]
unsafe fn prepare<E: Row>(launch: PrepareBytes) {
    let PrepareBytes { rows, count, padded_count, stride, metric, values, of_lists, norms, .. } = launch;
    let PrepareBytes { set_norm, row_squares: canonical, .. } = launch;
    let at = thread::block_idx_x() * WARPS_PER_BLOCK + warp::warp_id();
    // SAFETY: a block has as many rows as warps, which divide a tile, so each row of the grid is one of a listed tile.
    let row = unsafe { listed_row(launch.tiles, at) };
    if row >= padded_count {
        return;
    }
    let lane = warp::lane_id();
    let exists = row < count;
    let x = rows.cast::<E::Stored>().wrapping_add(if exists { row as usize * stride as usize } else { 0 });
    // SAFETY: the row exists, or nothing is read.
    let exact = unsafe { squares::<E>(x, if exists { stride / 4 } else { 0 }, lane) };
    if lane == 0 {
        let squares = exact as u32;
        let value = match metric {
            Metric::L2 if of_lists != 0 => (exact as f32).to_bits(),
            Metric::L2 => squares / 2,
            Metric::InnerProduct => 0,
            Metric::Cosine if squares == 0 => 0,
            Metric::Cosine => {
                let inverse = normaliser(metric, exact) as f32;
                (if of_lists != 0 { inverse } else { -inverse }).to_bits()
            }
        };
        let norm = row_norm(metric, exact);
        // SAFETY: the caller promises the shapes.
        unsafe {
            global::store(values.wrapping_add(row as usize), if exists { value } else { f32::INFINITY.to_bits() });
            if let Some(norms) = norms {
                global::store(norms.wrapping_add(row as usize), norm);
            }
            raise(*set_norm, norm);
            if let Some(canonical) = canonical
                && exists
            {
                global::store(canonical.wrapping_add(row as usize), exact);
            }
        }
    }
}
