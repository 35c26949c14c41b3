//! A tile product on tensor cores: 128 rows against 128 rows, both f16 copies of [`crate::prepare`], chunk by chunk.
//!
//! # Problem
//! Kernels that compare many vectors with many others ([`crate::filter`], [`crate::assign`]) have the same inner loop:
//! chunks of 64 components come from global memory into shared memory, and warps multiply them. This is that loop's
//! body.
//!
//! # How it maps to the machine
//! 1. A block has 8 warps as 2 × 4, each with 64 × 32 of the 128 × 128 scores, by `mma.m16n8k16`.
//! 2. A chunk is 128 bytes a row, copied by `cp.async`; its 16-byte parts are stored at `part ^ (row & 7)`: neither
//!    `ldmatrix` nor `cp.async` meets a bank conflict.
//!
//! What lost: four warps of 64 × 64, see [`crate::filter`].

use cuda_std::shared::SharedPtr;
use cuda_std::{async_copy, mma, unroll};

/// Rows of either side of a tile.
pub const TILE_ROWS: u32 = 128;
/// Components of a chunk, the unit of the pipeline; copies are padded to a multiple.
pub const CHUNK: u32 = 64;
/// Warps of a block side by side; it has two rows of them.
const WARPS_ACROSS: u32 = 4;
/// Threads of a block.
pub const THREADS: u32 = 2 * WARPS_ACROSS * 32;
/// Bytes of a chunk of one side.
pub const CHUNK_TILE_BYTES: u32 = TILE_ROWS * CHUNK_BYTES;
/// Columns of a warp's part of a tile, in units of 8, the columns of one mma.
pub const COLUMN_TILES: usize = WARP_COLUMNS as usize / 8;

const CHUNK_BYTES: u32 = CHUNK * 2;
const WARP_COLUMNS: u32 = TILE_ROWS / WARPS_ACROSS;

/// A lane's share of a tile's scores: `[i][j]` holds rows [`Part::row`] (i, 0) and (i, 1), each at columns
/// [`Part::column`] + 8j and the next.
pub type Scores = [[[f32; 4]; COLUMN_TILES]; 4];

/// Rows of which a block moves a chunk at once, eight threads a row.
pub const ROWS_AT_ONCE: u32 = THREADS / 8;

/// Where 16-byte part `part` of row `row` of a chunk lies in shared memory, in bytes.
#[inline(always)]
pub fn part_offset(row: u32, part: u32) -> u32 {
    row * CHUNK_BYTES + ((part ^ (row & 7)) << 4)
}

/// Starts the copy of one chunk of 128 rows into shared memory. All threads of the block.
///
/// # Safety
/// `rows` has 128 rows of `stride` f16 components, `chunk` lies inside a row; `to` has room for 16 KiB.
#[inline(always)]
pub unsafe fn copy_chunk(to: SharedPtr<u8>, rows: *const u16, stride: u32, chunk: u32, thread: u32) {
    let (row, part) = (thread / 8, thread % 8);
    let from = rows.wrapping_add((row * stride + chunk * CHUNK + part * 8) as usize);
    unroll::<{ (TILE_ROWS / ROWS_AT_ONCE) as usize }>(|i| {
        let down = i as u32 * ROWS_AT_ONCE;
        // SAFETY: rows row + down < 128 of source and destination, as the caller promises. A multiple of 8 rows on, the
        // low three bits of the row and so the swizzle are the same.
        unsafe {
            let to = to.add(part_offset(row, part) + down * CHUNK_BYTES);
            async_copy::copy_16(to, from.wrapping_add((down * stride) as usize).cast());
        }
    });
}

/// The part of a tile that one lane works on.
#[derive(Clone, Copy)]
pub struct Part {
    warp_row: u32,
    warp_column: u32,
    lane: u32,
}

impl Part {
    /// The part of `lane` of `warp`.
    #[inline(always)]
    pub fn new(warp: u32, lane: u32) -> Part {
        Part { warp_row: warp / WARPS_ACROSS, warp_column: warp % WARPS_ACROSS, lane }
    }

    /// The row of the scores `[i][..][2 · half ..]`.
    #[inline(always)]
    pub fn row(&self, i: usize, half: usize) -> u32 {
        self.warp_row * 64 + 16 * i as u32 + 8 * half as u32 + (self.lane >> 2)
    }

    /// The column of the scores `[..][0][0]`.
    #[inline(always)]
    pub fn column(&self) -> u32 {
        self.warp_column * WARP_COLUMNS + 2 * (self.lane & 3)
    }

    /// Adds the products of one chunk to `scores`: rows of `a` times rows of `b`. All 32 lanes arrive, together.
    ///
    /// # Safety
    /// Both places hold a chunk that [`copy_chunk`] wrote, waited for and behind a barrier.
    #[inline(always)]
    pub unsafe fn multiply_chunk(&self, scores: &mut Scores, a: SharedPtr<u8>, b: SharedPtr<u8>) {
        let lane = self.lane;
        // Addresses of ldmatrix: 16 rows of a by two 16-byte halves; two groups of 8 rows of b by two halves.
        let (a_row, a_half) = (self.warp_row * 64 + (lane & 15), lane >> 4);
        let (b_row, b_half) = (self.warp_column * WARP_COLUMNS + (lane & 7) + ((lane >> 4) << 3), (lane >> 3) & 1);
        unroll::<4>(|step| {
            let step = 2 * step as u32;
            let mut a_parts = [[0u32; 4]; 4];
            let mut b_parts = [[0u32; 4]; COLUMN_TILES / 2];
            // SAFETY: rows below 128 and parts below 8 of chunks that are there, as the caller promises.
            unsafe {
                unroll::<4>(|i| {
                    a_parts[i] = mma::ldmatrix_x4(a.add(part_offset(a_row + 16 * i as u32, step + a_half)))
                });
                unroll::<{ COLUMN_TILES / 2 }>(|j| {
                    b_parts[j] = mma::ldmatrix_x4(b.add(part_offset(b_row + 16 * j as u32, step + b_half)))
                });
                unroll::<4>(|i| {
                    unroll::<COLUMN_TILES>(|j| {
                        let b = [b_parts[j / 2][2 * (j % 2)], b_parts[j / 2][2 * (j % 2) + 1]];
                        mma::mma_m16n8k16_f16(&mut scores[i][j], &a_parts[i], b);
                    });
                });
            }
        });
    }
}
