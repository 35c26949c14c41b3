//! Chunks of rows in shared memory: layout and copies.
//!
//! Rows are f16 copies of [`crate::product::prepare`], or vectors of bytes. A tile has 128 of them, and a chunk has 64
//! components of each, or 128 bytes: 128 bytes in a row, in 16-byte parts. Part p of row r is at part `p ^ (r & 7)` of
//! the row. With this layout neither `ldmatrix` nor `cp.async` has bank conflicts, and `wgmma` reads it directly.

use cuda_std::shared::SharedPtr;
use cuda_std::{async_copy, device_inline, unroll};

/// Number of rows of a tile.
pub const TILE_ROWS: u32 = 128;
/// Number of components of a chunk, the unit of the pipeline; f16 copies are padded to a multiple.
pub const CHUNK: u32 = 64;
/// Number of bytes of a row of a chunk.
pub const CHUNK_BYTES: u32 = CHUNK * 2;
/// Number of bytes of a chunk of a tile.
pub const CHUNK_TILE_BYTES: u32 = TILE_ROWS * CHUNK_BYTES;
/// Number of threads of a block: eight warps.
pub const THREADS: u32 = 256;
/// Number of rows of which a block copies a chunk at once, with eight threads for each row.
pub const ROWS_AT_ONCE: u32 = THREADS / 8;
/// Number of rows of a tile of which a thread copies one 16-byte part.
pub const ROWS_A_THREAD: usize = (TILE_ROWS / ROWS_AT_ONCE) as usize;
/// The alignment in bytes of chunks in dynamic shared memory, which `wgmma` needs.
pub const CHUNK_ALIGNMENT: u32 = 1024;
/// Shared memory in bytes that a block has on every device from compute capability 8.0 on (8.6, 8.9 and 12.0 have no
/// more).
pub const LEAST_SHARED_BYTES: u32 = 99 << 10;

/// The offset of 16-byte part `part` of row `row` of a chunk in shared memory, in bytes.
#[device_inline]
pub fn part_offset(row: u32, part: u32) -> u32 {
    row * CHUNK_BYTES + ((part ^ (row & 7)) << 4)
}

/// One thread's share of the copies of chunks: 16 bytes of every [`ROWS_AT_ONCE`]-th row.
#[derive(Clone, Copy)]
pub struct ChunkCopy {
    /// The start of the share in a chunk in global memory, in components (`from`), and in shared memory, in bytes
    /// (`to`).
    from: u32,
    to: u32,
    /// Distance from one row of the share to the next, in components.
    down: u32,
}

impl ChunkCopy {
    /// The share of thread `thread`, for rows of `stride` components.
    #[device_inline]
    pub fn new(thread: u32, stride: u32) -> ChunkCopy {
        let (row, part) = (thread / 8, thread % 8);
        ChunkCopy { from: row * stride + 8 * part, to: part_offset(row, part), down: ROWS_AT_ONCE * stride }
    }

    /// The start of the share of a chunk whose rows start at `rows`.
    #[device_inline]
    pub fn start(&self, rows: *const u16) -> *const u16 {
        rows.wrapping_add(self.from as usize)
    }

    /// Starts the copy of one chunk of 128 rows into shared memory. All threads of the block arrive.
    ///
    /// # Safety
    /// `from` is the [start](Self::start) of a chunk of 128 rows; `to` has room for 16 KiB.
    #[device_inline]
    pub unsafe fn copy(&self, to: SharedPtr<u8>, from: *const u16) {
        // SAFETY: rows of source and destination are below 128, as the caller promises. The swizzle depends on the low
        // three bits of the row, which repeat after 8 rows.
        unsafe {
            let to = to.add(self.to);
            unroll::<ROWS_A_THREAD>(|i| {
                let from = from.wrapping_add((i as u32 * self.down) as usize).cast();
                async_copy::copy_16(to.add(i as u32 * ROWS_AT_ONCE * CHUNK_BYTES), from);
            });
        }
    }
}

/// Starts the copy of a 16-byte part of a row. If rows are `partial`, a constant, a part that is not `there`, behind
/// the end of the row, becomes zeros. Rows end at multiples of 16 bytes, so a part is all there or not at all.
///
/// # Safety
/// `from` is a part of a row if it is there, and aligned; `to` has room for it.
#[device_inline]
pub unsafe fn copy_part(to: SharedPtr<u8>, from: *const u8, partial: bool, there: bool) {
    // SAFETY: as the caller promises.
    unsafe {
        if partial {
            async_copy::copy_16_zfill(to, from, if there { 16 } else { 0 });
        } else {
            async_copy::copy_16(to, from);
        }
    }
}

/// One thread's share of the copies of chunks of rows of bytes, which need not fill their last chunk: 16 bytes of every
/// [`ROWS_AT_ONCE`]-th row.
#[derive(Clone, Copy)]
pub struct ByteCopy {
    /// The start of the share in a tile in global memory, and in shared memory, in bytes.
    from: u32,
    to: u32,
    /// Distance from one row of the share to the next, in bytes.
    down: u32,
    /// Number of bytes from the start of the share to the end of its row.
    left: u32,
}

impl ByteCopy {
    /// The share of thread `thread`, for rows of `stride` bytes, a multiple of 16.
    #[device_inline]
    pub fn new(thread: u32, stride: u32) -> ByteCopy {
        let (row, part) = (thread / 8, thread % 8);
        ByteCopy {
            from: row * stride + 16 * part,
            to: part_offset(row, part),
            down: ROWS_AT_ONCE * stride,
            left: stride.saturating_sub(16 * part),
        }
    }

    /// Starts the copy of chunk `chunk` of 128 rows into shared memory, with zeros behind the ends of rows. All threads
    /// of the block arrive.
    ///
    /// # Safety
    /// `rows` has 128 rows, aligned to 16 bytes, and the chunk starts in them; `to` has room for 16 KiB.
    #[device_inline]
    pub unsafe fn copy(&self, to: SharedPtr<u8>, rows: *const u8, chunk: u32) {
        let skipped = chunk * CHUNK_BYTES;
        let rows = rows.wrapping_add((self.from + skipped) as usize);
        // SAFETY: rows of source and destination are below 128, as the caller promises. The swizzle depends on the low
        // three bits of the row, which repeat after 8 rows.
        unsafe {
            let to = to.add(self.to);
            unroll::<ROWS_A_THREAD>(|i| {
                let from = rows.wrapping_add((i as u32 * self.down) as usize);
                copy_part(to.add(i as u32 * ROWS_AT_ONCE * CHUNK_BYTES), from, true, skipped < self.left);
            });
        }
    }
}
