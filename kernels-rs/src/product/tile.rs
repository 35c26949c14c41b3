//! A tile product on tensor cores: 128 rows against 128 rows, both f16 copies of [`crate::product::prepare`], chunk by chunk.
//!
//! # Problem
//! Kernels that compare many vectors with many others ([`crate::flat::filter`], [`crate::kmeans::assign`]) have the same inner loop:
//! chunks of 64 components come from global memory into shared memory, and warps multiply them. This is that loop's
//! body.
//!
//! # How it maps to the machine
//! 1. A block has 8 warps. By [`MmaSync`] they stand as 2 × 4, each with 64 × 32 of the 128 × 128 scores, by `mma.m16n8k16`: any device.
//!    By [`Wgmma`] they are two warpgroups with 64 × 128 each, by `wgmma.m64n128k16` straight from shared memory: sm_90a alone.
//! 2. A chunk is 128 bytes a row, copied by `cp.async`; its 16-byte parts are stored at `part ^ (row & 7)`: neither
//!    `ldmatrix` nor `cp.async` meets a bank conflict, and it is the layout that `wgmma` reads.
//!
//! What lost: four warps of 64 × 64, see [`crate::flat::filter`].

use cuda_std::shared::SharedPtr;
use cuda_std::warp::FULL_MASK;
use cuda_std::{async_copy, mma, unroll, warp, wgmma};

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
const CHUNK_BYTES: u32 = CHUNK * 2;
const WARP_COLUMNS: u32 = TILE_ROWS / WARPS_ACROSS;

/// A lane's share of a tile's scores: `[i][j]` holds rows [`Product::row`] (i, 0) and (i, 1), each at columns
/// [`Product::column`] + 8j and the next.
pub type Scores<const ROWS: usize, const COLUMNS: usize> = [[[f32; 4]; COLUMNS]; ROWS];

/// The number `at` of 2 · `COLUMNS`, at most 32, that `entry` has for columns and their halves: by selects, one bit of `at` after the other,
/// so that they stay in registers.
#[inline(always)]
pub fn entry_of<const COLUMNS: usize>(entry: impl Fn(usize, usize) -> f32, at: u32) -> f32 {
    let mut found = [0.0f32; 16];
    unroll::<COLUMNS>(|j| {
        let (even, odd) = (entry(j, 0), entry(j, 1));
        found[j] = if at & 1 != 0 { odd } else { even };
    });
    let mut halve = |left: usize, bit: u32| {
        unroll::<8>(|j| {
            if j < left {
                let (even, odd) = (found[2 * j], found[2 * j + 1]);
                found[j] = if at & bit != 0 { odd } else { even };
            }
        });
    };
    halve(COLUMNS / 2, 2);
    halve(COLUMNS / 4, 4);
    halve(COLUMNS / 8, 8);
    halve(COLUMNS / 16, 16);
    found[0]
}

/// Rows of which a block moves a chunk at once, eight threads a row.
pub const ROWS_AT_ONCE: u32 = THREADS / 8;

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
            unroll::<{ (TILE_ROWS / ROWS_AT_ONCE) as usize }>(|i| {
                let from = from.wrapping_add((i as u32 * self.down) as usize).cast();
                async_copy::copy_16(to.add(i as u32 * ROWS_AT_ONCE * CHUNK_BYTES), from);
            });
        }
    }
}

/// Chunks of one side that stay in shared memory while those of the other pass by, at most.
pub const RESIDENT_CHUNKS: u32 = 2;

/// Stages of a ring of chunks in shared memory.
#[derive(Clone, Copy)]
pub struct Ring {
    /// Where one side is resident: a stage then holds a chunk of the other.
    pub resident: u32,
    /// Where both sides pass by: a stage holds a chunk of either.
    pub streamed: u32,
}

impl Ring {
    /// Stages.
    #[inline(always)]
    pub const fn stages(self, resident: bool) -> u32 {
        if resident { self.resident } else { self.streamed }
    }

    /// Bytes of shared memory for rows of `chunks` chunks, resident where [`Residency::of`] says so.
    pub const fn bytes(self, chunks: u32) -> u32 {
        if chunks <= RESIDENT_CHUNKS {
            (chunks + self.resident) * CHUNK_TILE_BYTES
        } else {
            self.streamed * 2 * CHUNK_TILE_BYTES
        }
    }
}

/// Where the rows of a block lie while the rows of the other side pass by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Residency {
    /// All their chunks stay in shared memory: [`RESIDENT_CHUNKS`] at most.
    Resident,
    /// Their chunks pass through the ring with those of the other side: any number.
    Streamed,
}

impl Residency {
    /// Of rows of `stride` components, a multiple of [`CHUNK`].
    pub const fn of(stride: u32) -> Residency {
        if stride / CHUNK <= RESIDENT_CHUNKS { Residency::Resident } else { Residency::Streamed }
    }
}

/// The instruction that multiplies a tile. Kernels of either are chosen by it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Instruction {
    /// `mma.sync`, by warps ([`MmaSync`]): any device.
    MmaSync,
    /// `wgmma`, by warpgroups ([`Wgmma`]): devices of compute capability 9.0 alone.
    Wgmma,
}

impl Instruction {
    /// The ring of its kernels.
    pub const fn ring(self) -> Ring {
        match self {
            // What every device has room for.
            Instruction::MmaSync => Ring { resident: 3, streamed: 2 },
            // Two blocks a multiprocessor of 228 KiB.
            Instruction::Wgmma => Ring { resident: 4, streamed: 3 },
        }
    }
}

/// Shared memory that a block has on every device from compute capability 8.0 on (8.6, 8.9 and 12.0 have no more).
pub const LEAST_SHARED_BYTES: u32 = 99 << 10;

/// Waits until a ring of `stages` stages, of which all but one were asked for, has one more.
#[inline(always)]
pub fn wait_for_stage(stages: u32) {
    match stages {
        2 => async_copy::wait_group::<0>(),
        3 => async_copy::wait_group::<1>(),
        _ => async_copy::wait_group::<2>(),
    }
}

/// How the warps of a block multiply a tile: a lane has 2 · `ROWS` rows of it, each at 2 · `COLUMNS` columns.
pub trait Product<const ROWS: usize, const COLUMNS: usize>: Copy {
    /// The ring that its kernels have.
    const RING: Ring;

    /// The part of `lane` of `warp`.
    fn new(warp: u32, lane: u32) -> Self;

    /// Has the products of others see what this thread copied and waited for. Before the barrier between.
    fn publish();

    /// The row of the scores `[i][..][2 · half ..]`.
    fn row(&self, i: usize, half: usize) -> u32;

    /// The column of the scores `[..][0][0]`.
    fn column(&self) -> u32;

    /// Makes `scores` ready for the first chunk of a tile.
    fn clear(scores: &mut Scores<ROWS, COLUMNS>);

    /// Adds the products of a chunk to `scores`: rows of `a` times rows of `b`. `add` says that it is not the first of the tile. `meanwhile`
    /// is done beside the product, where that runs by itself. All threads of the block arrive.
    ///
    /// # Safety
    /// Both places hold a chunk that [`ChunkCopy`] wrote, waited for, [published](Self::publish) and behind a barrier; they are aligned to
    /// 1024 bytes.
    unsafe fn multiply_chunk(
        &self,
        scores: &mut Scores<ROWS, COLUMNS>,
        a: SharedPtr<u8>,
        b: SharedPtr<u8>,
        add: bool,
        meanwhile: impl FnOnce(),
    );
}

/// Each warp by itself, with 64 × 32 of the scores.
#[derive(Clone, Copy)]
pub struct MmaSync {
    warp_row: u32,
    warp_column: u32,
    lane: u32,
}

impl Product<4, 4> for MmaSync {
    const RING: Ring = Instruction::MmaSync.ring();

    #[inline(always)]
    fn new(warp: u32, lane: u32) -> Self {
        MmaSync { warp_row: warp / WARPS_ACROSS, warp_column: warp % WARPS_ACROSS, lane }
    }

    #[inline(always)]
    fn publish() {}

    #[inline(always)]
    fn clear(scores: &mut Scores<4, 4>) {
        *scores = [[[0.0; 4]; 4]; 4];
    }

    #[inline(always)]
    fn row(&self, i: usize, half: usize) -> u32 {
        self.warp_row * 64 + 16 * i as u32 + 8 * half as u32 + (self.lane >> 2)
    }

    #[inline(always)]
    fn column(&self) -> u32 {
        self.warp_column * WARP_COLUMNS + 2 * (self.lane & 3)
    }

    #[inline(always)]
    unsafe fn multiply_chunk(
        &self,
        scores: &mut Scores<4, 4>,
        a: SharedPtr<u8>,
        b: SharedPtr<u8>,
        _: bool,
        meanwhile: impl FnOnce(),
    ) {
        meanwhile();
        warp::sync_warp(FULL_MASK);
        let lane = self.lane;
        // Addresses of ldmatrix: 16 rows of a by two 16-byte halves; two groups of 8 rows of b by two halves.
        let (a_row, a_half) = (self.warp_row * 64 + (lane & 15), lane >> 4);
        let (b_row, b_half) = (self.warp_column * WARP_COLUMNS + (lane & 7) + ((lane >> 4) << 3), (lane >> 3) & 1);
        unroll::<4>(|step| {
            let step = 2 * step as u32;
            let mut a_parts = [[0u32; 4]; 4];
            let mut b_parts = [[0u32; 4]; 2];
            // SAFETY: rows below 128 and parts below 8 of chunks that are there, as the caller promises.
            unsafe {
                unroll::<4>(|i| {
                    a_parts[i] = mma::ldmatrix_x4(a.add(part_offset(a_row + 16 * i as u32, step + a_half)))
                });
                unroll::<2>(|j| {
                    b_parts[j] = mma::ldmatrix_x4(b.add(part_offset(b_row + 16 * j as u32, step + b_half)))
                });
                unroll::<4>(|i| {
                    unroll::<4>(|j| {
                        let b = [b_parts[j / 2][2 * (j % 2)], b_parts[j / 2][2 * (j % 2) + 1]];
                        mma::mma_m16n8k16_f16(&mut scores[i][j], &a_parts[i], b);
                    });
                });
            }
        });
    }
}

/// Two warpgroups, with 64 × 128 of the scores each.
#[derive(Clone, Copy)]
pub struct Wgmma {
    warp: u32,
    lane: u32,
}

impl Product<1, 16> for Wgmma {
    const RING: Ring = Instruction::Wgmma.ring();

    #[inline(always)]
    fn new(warp: u32, lane: u32) -> Self {
        Wgmma { warp, lane }
    }

    #[inline(always)]
    fn publish() {
        wgmma::publish();
    }

    /// The first product does.
    #[inline(always)]
    fn clear(_: &mut Scores<1, 16>) {}

    #[inline(always)]
    fn row(&self, _: usize, half: usize) -> u32 {
        self.warp * 16 + 8 * half as u32 + (self.lane >> 2)
    }

    #[inline(always)]
    fn column(&self) -> u32 {
        2 * (self.lane & 3)
    }

    #[inline(always)]
    unsafe fn multiply_chunk(
        &self,
        scores: &mut Scores<1, 16>,
        a: SharedPtr<u8>,
        b: SharedPtr<u8>,
        add: bool,
        meanwhile: impl FnOnce(),
    ) {
        let first_row = self.warp / 4 * 64;
        // SAFETY: the group's 64 rows of a chunk that is there, and 128 rows of another, as the caller promises.
        unsafe {
            warp::sync_warp(FULL_MASK);
            wgmma::start_f16(&mut scores[0], a.add(first_row * CHUNK_BYTES), b, add);
            meanwhile();
            warp::sync_warp(FULL_MASK);
            wgmma::wait(&mut scores[0]);
        }
    }
}
