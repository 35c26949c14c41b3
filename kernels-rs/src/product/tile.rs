//! Chunks of rows in shared memory: how they are laid out, and how they come there.
//!
//! Rows are f16 copies of [`crate::product::prepare`]. A tile is 128 of them, a chunk 64 components of each: 128 bytes a row, in 16-byte
//! parts. Part p of row r lies at part `p ^ (r & 7)` of the row. With this layout neither `ldmatrix` nor `cp.async` has bank conflicts,
//! and `wgmma` reads it as it is.

use cuda_std::shared::SharedPtr;
use cuda_std::{async_copy, unroll};

/// Rows of a tile.
pub const TILE_ROWS: u32 = 128;
/// Components of a chunk, the unit of the pipeline; copies are padded to a multiple.
pub const CHUNK: u32 = 64;
/// Bytes of a row of a chunk.
pub const CHUNK_BYTES: u32 = CHUNK * 2;
/// Bytes of a chunk of a tile.
pub const CHUNK_TILE_BYTES: u32 = TILE_ROWS * CHUNK_BYTES;
/// Threads of a block: eight warps.
pub const THREADS: u32 = 256;
/// Rows of which a block moves a chunk at once, eight threads a row.
pub const ROWS_AT_ONCE: u32 = THREADS / 8;
/// Rows of a tile of which a thread moves one 16-byte part.
pub const ROWS_A_THREAD: usize = (TILE_ROWS / ROWS_AT_ONCE) as usize;
/// Dynamic shared memory of a chunk starts at multiples of this (`wgmma`).
pub const CHUNK_ALIGNMENT: u32 = 1024;
/// Shared memory that a block has on every device from compute capability 8.0 on (8.6, 8.9 and 12.0 have no more).
pub const LEAST_SHARED_BYTES: u32 = 99 << 10;

/// Where 16-byte part `part` of row `row` of a chunk lies in shared memory, in bytes.
#[inline(always)]
pub fn part_offset(row: u32, part: u32) -> u32 {
    row * CHUNK_BYTES + ((part ^ (row & 7)) << 4)
}

/// One thread's share of the copies of chunks: 16 bytes of every so many-th row.
#[derive(Clone, Copy)]
pub struct ChunkCopy {
    /// Where it begins in a chunk in global memory, in components, and in shared memory, in bytes.
    from: u32,
    to: u32,
    /// Components from one of its rows to the next.
    down: u32,
}

impl ChunkCopy {
    /// The share of thread `thread`, for rows of `stride` components.
    #[inline(always)]
    pub fn new(thread: u32, stride: u32) -> ChunkCopy {
        let (row, part) = (thread / 8, thread % 8);
        ChunkCopy { from: row * stride + 8 * part, to: part_offset(row, part), down: ROWS_AT_ONCE * stride }
    }

    /// Where the share begins of a chunk of rows that begin at `rows`.
    #[inline(always)]
    pub fn start(&self, rows: *const u16) -> *const u16 {
        rows.wrapping_add(self.from as usize)
    }

    /// Starts the copy of one chunk of 128 rows into shared memory. All threads of the block.
    ///
    /// # Safety
    /// `from` is the [start](Self::start) of a chunk of 128 rows; `to` has room for 16 KiB.
    #[inline(always)]
    pub unsafe fn copy(&self, to: SharedPtr<u8>, from: *const u16) {
        // SAFETY: rows below 128 of source and destination, as the caller promises. A multiple of 8 rows on, the low three bits of
        // the row and so the swizzle are the same.
        unsafe {
            let to = to.add(self.to);
            unroll::<ROWS_A_THREAD>(|i| {
                let from = from.wrapping_add((i as u32 * self.down) as usize).cast();
                async_copy::copy_16(to.add(i as u32 * ROWS_AT_ONCE * CHUNK_BYTES), from);
            });
        }
    }
}
