//! Rotation: canonical inner products of vectors with the rows of a matrix.
//!
//! # Problem
//! Component i of a rotated vector is the canonical inner product ([`crate::product::canonical`]) of the vector and row
//! i of the matrix, with the same bits on every device. A search in product codes with a learned rotation rotates all
//! queries first.
//!
//! # How it maps to the machine
//! A warp has [`BATCH`] vectors and goes through rows of the matrix, so that a row is loaded and converted to f64 once
//! for all of them. The warps of a block have the same vectors, which stay in L1, and different rows. With few vectors,
//! several blocks share them.
//!
//! # Cost
//! For n vectors of d components n·d² products and conversions to f64, which run at a quarter of the rate, and
//! n·d²·4 / [`BATCH`] bytes of the matrix from L2. On an H200 10,000 × 384 take .4 ms of conversions by this count, and
//! .27 ms of reads beside them; with a warp for each vector, as the kernel of distances has it, the reads would be
//! [`BATCH`] times as many. Measured under a profiler:
//! 2.86 ms for 43,692 vectors, which is .65 ms for 10,000. Two rows of the matrix at once would need
//! three conversions for four products instead of five.

use cuda_std::launch::LaunchConfig;
use cuda_std::{Ptr, PtrMut, device_inline, global, kernel, thread, unroll, warp};

use crate::product::canonical::{BATCH, sums_by};
use crate::product::element::{F32, Row};
use crate::product::metric::Metric;

/// Number of warps in a block.
const WARPS_PER_BLOCK: u32 = 4;
/// Number of blocks for each multiprocessor that a launch aims at.
const BLOCKS: u32 = 4;

/// Writes the canonical inner products of each vector with each row of a matrix, and zeros behind them.
///
/// # Safety
/// The arrays are as long as the fields say.
#[kernel(max_threads = 128, rotate_vectors = rotate)]
pub struct Rotate {
    /// `count` vectors of `stride` components.
    pub vectors: Ptr<f32>,
    /// Number of vectors.
    pub count: u32,
    /// Distance from one vector, or one row of the matrix, to the next in components: a multiple of 4, zero padded.
    pub stride: u32,
    /// `rows` rows of `stride` components.
    pub matrix: Ptr<f32>,
    /// Number of rows of the matrix.
    pub rows: u32,
    /// Number of blocks that share a batch of vectors.
    pub slices: u32,
    /// `count` rows of `to_stride` components.
    pub to: PtrMut<f32>,
    /// Distance from one row of `to` to the next in components, at least `rows`.
    pub to_stride: u32,
}

impl Rotate {
    /// The number of blocks that share a batch, for some vectors and rows on a device.
    pub fn slices(count: u32, rows: u32, multiprocessors: u32) -> u32 {
        let batches = count.div_ceil(BATCH as u32).max(1);
        (multiprocessors * BLOCKS).div_ceil(batches).clamp(1, rows.div_ceil(WARPS_PER_BLOCK).max(1))
    }

    /// `slices` blocks for each batch of vectors.
    pub fn config(&self) -> LaunchConfig {
        let batches = u64::from(self.count.div_ceil(BATCH as u32));
        LaunchConfig::linear(batches * u64::from(self.slices), 32 * WARPS_PER_BLOCK)
    }
}

/// # Safety
/// As [`Rotate`].
#[device_inline]
unsafe fn rotate(launch: Rotate) {
    let Rotate { vectors, count, stride, matrix, rows, slices, to, to_stride } = launch;
    let (batch, slice) = (thread::block_idx_x() / slices.max(1), thread::block_idx_x() % slices.max(1));
    let first = batch * BATCH as u32;
    let (lane, quads) = (warp::lane_id(), stride / 4);
    if first >= count {
        return;
    }
    // SAFETY: the caller promises the shapes. After the last vector it is evaluated again and not stored.
    unsafe {
        let mut y = [*vectors; BATCH];
        unroll::<BATCH>(|b| {
            y[b] = vectors.wrapping_add((first + b as u32).min(count - 1) as usize * stride as usize);
        });
        let mut row = slice * WARPS_PER_BLOCK + warp::warp_id();
        while row < to_stride {
            let mut sums = [0.0; BATCH];
            if row < rows {
                let x = matrix.wrapping_add(row as usize * stride as usize);
                let (x, y) = (|quad| F32::quad(x, quad), |b: usize, quad| F32::quad(y[b], quad));
                sums = sums_by(Metric::InnerProduct, x, y, quads, lane);
            }
            unroll::<BATCH>(|b| {
                if lane == b as u32 && first + (b as u32) < count {
                    let at = (first + b as u32) as usize * to_stride as usize + row as usize;
                    global::store(to.wrapping_add(at), sums[b] as f32 + 0.0);
                }
            });
            row += slices * WARPS_PER_BLOCK;
        }
    }
}
