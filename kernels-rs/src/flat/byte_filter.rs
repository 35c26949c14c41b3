//! The filter of exact search for vectors of bytes: [`crate::flat::filter`] with exact products of the stored rows.
//!
//! # Problem
//! As for f16 copies: find all base rows that may be among the best k of a query. Bytes need no copy: their products
//! are exact in 32-bit sums, at twice the rate of f16, and a row takes half the bytes of its f16 copy.
//!
//! # Algorithm
//! With A = ⟨x, y⟩ from the tensor cores, exact, and the value of the row ([`crate::product::prepare_bytes`]):
//!
//! | metric | value | score | a group of pairs is examined if one has |
//! |---|---|---|---|
//! | squared L2 | ⌊‖y‖² / 2⌋ as i32 | 2 · (value − A) | A − value ≥ −limit / 2, in integers |
//! | inner product | 0 | −A | A ≥ −limit, in integers |
//! | cosine | −1 / ‖y‖ as f32 | A · value / ‖x‖ | that ≤ limit, in f32 |
//!
//! The passes, lists and thresholds are those of the filter of f16 copies, and so is the proof, with an error E that
//! covers the roundings of numbers to f32 only ([`QueryTerms::exact`]), and for squared L2 the bit that the half of
//! ‖y‖² lacks (`LOST_BIT`). E is that of the greatest norm of the base.
//!
//! The integer look is never stricter than the score: A − value is an integer, so it is at least −limit / 2 rounded
//! towards zero. Rows that take no part, and padding, have the bits of +∞ as their value: as an integer it exceeds
//! every ‖y‖², so they do not pass, and where they are examined their score is +∞.
//!
//! # Limits
//! A sum of d products of u8 is at most 255² · d, and of i8 at most 2¹⁴ · d. ‖y‖² must stay below the bits of +∞, and
//! A − ⌊‖y‖² / 2⌋ above −2³¹: [`most_row_bytes`]. Longer vectors take the filter of f16 copies.
//!
//! # Bits
//! Rows of bits are rows of bytes with eight components each. The instruction differs: ⟨x, y⟩ is the number of places
//! with a 1 in both. ‖y‖² is the number of ones, and squared L2 is the Hamming distance. A chunk has 1,024 components,
//! in as much time as 128 components of a byte. Longer rows than [`most_row_bytes`] have no filter.
//!
//! # How it maps to the machine
//! As the filter of f16 copies. A chunk has 128 components. Rows are not padded to whole chunks: the copy fills the
//! rest with zeros. The integer look costs an addition with a maximum for each pair. The conversion to f32, which takes
//! twice the time of a multiplication, is left to pairs that are examined, and to cosine.
//!
//! # Cost
//! Floor: 2·nq·n·d operations at the rate of bytes (1.3 ms for 10,000 × 1,000,000 × 128 on an H200), and one read of
//! the base for every 128 queries, from L2. Measured on an H200 (all launches of a search of that size): 2.7 ms for k =
//! 1, 3.3 for k = 10, 4.6 for k = 100, 8.3 for k = 1,000.
//!
//! With one chunk a row the instructions of the warps decide: 224 for each warp and tile at k = 1, 1.8 a cycle for a
//! multiprocessor. Before, it was 330 (3.8 ms: the limit of each query was computed for each tile, with that tile's
//! greatest norm, tiles were numbered by a division, and addresses of products differed by thread), and 258 (3.0 ms:
//! ‖y‖² was halved at each look, and each group was compared with its limit).
//!
//! Pairs that are kept ([`super::filter`] says why there are more than k) add 16 % to these instructions for k = 10,
//! 71 % for k = 100 and 222 % for k = 1,000. When each lane worked off its own hits, the launches took 3.9, 5.9 and
//! 10.8 ms.
//!
//! # What lost
//! - A loop of its own for rows of one chunk, loads by 36 instructions instead of 52, and shorter descriptors: some 30
//!   of 224 instructions fewer. Predicted: 10 % for k = 1. Measured (two rounds in turn, 2026-11-29): 2.5 % for k = 1,
//!   1 % for k = 10 and 100, and nothing for f16 copies. A multiprocessor issues the instructions of a tile in some
//!   450 cycles, and its tensor cores need some 630 for one at their full rate. So waits, and not instructions, are
//!   probably the limit now.
//! - Half a tile multiplied while the other half is used (two products of 64 columns in flight by turns): 4.6 ms for k
//!   = 1. The products overlapped, but there were 396 instructions, and still two a cycle.

use cuda_std::launch::LaunchConfig;
use cuda_std::math::{min_f32, mul_add_f32};
use cuda_std::shared::SharedPtr;
use cuda_std::{Ptr, async_copy, device_inline, global, kernel, thread};

use crate::flat::epilogue::{HEADER_BYTES, PairBounds, TileWord, Visited, hits_of, info_at, terms_at, visit};
use crate::flat::pass::{FilterOutput, FilterPass, Share, TILE_QUERIES, TileWalk};
use crate::product::bounds::{Bounds, QueryTerms};
use crate::product::element::{Bits, ExactKey, I8, U8};
use crate::product::instruction::{Instruction, MmaSync, TileProduct, Wgmma};
use crate::product::mainloop::Operands;
use crate::product::metric::Metric;
use crate::product::ring::Residency;
use crate::product::tile::{ByteCopy, CHUNK_BYTES, TILE_ROWS};

/// The value of rows that take no part and of padding, as bits: +∞.
const LEFT_OUT: u32 = f32::INFINITY.to_bits();

/// Bound of the error of a score of squared L2 whose half of ‖y‖² is rounded down: 1, and the rounding of its sum with
/// E.
const LOST_BIT: f32 = 1.0625;

/// Largest number of bytes of a row for which sums, comparisons and offsets stay in 32 bits (module documentation).
pub const fn most_row_bytes(element: ExactKey) -> u32 {
    match element {
        // 255² · d < LEFT_OUT.
        ExactKey::U8 => (LEFT_OUT - 1) / (255 * 255),
        // 2¹⁴ · d + LEFT_OUT / 2 ≤ 2³¹.
        ExactKey::I8 => ((1 << 31) - LEFT_OUT / 2) >> 14,
        // 128 padded rows of d bytes have offsets below 2³²; 8 · d is far below LEFT_OUT.
        ExactKey::Bits => (1 << 25) - 16,
    }
}

const _: () = assert!(most_row_bytes(ExactKey::U8) == 32_896 && most_row_bytes(ExactKey::I8) == 65_792);

/// Number of chunks of a row of `stride` bytes.
#[device_inline]
const fn chunks(stride: u32) -> u32 {
    stride.div_ceil(CHUNK_BYTES)
}

/// Computes bounds of the scores of queries against tiles of the base; see the module documentation.
///
/// # Safety
/// The arrays are as long as the fields say; the rows, and `base_values`, are padded to whole tiles of 128 rows,
/// whatever the padding rows hold. The residency in the kernel's key is [`Self::residency`].
#[kernel(
    key = (ExactKey, Instruction, FilterOutput, Residency),
    max_threads = 256,
    (ExactKey::U8, Instruction::MmaSync, FilterOutput::Dense, Residency::Resident)
        => filter_u8_dense_resident(min_blocks = 2) = filter::<MmaSync<2, 4, 4, U8>, 4, 4, true, true>,
    /// One block a multiprocessor, as for f16 copies.
    (ExactKey::U8, Instruction::MmaSync, FilterOutput::Dense, Residency::Streamed)
        => filter_u8_dense_streamed(min_blocks = 1) = filter::<MmaSync<2, 4, 4, U8>, 4, 4, false, true>,
    (ExactKey::U8, Instruction::MmaSync, FilterOutput::Append, Residency::Resident)
        => filter_u8_append_resident(min_blocks = 2) = filter::<MmaSync<2, 4, 4, U8>, 4, 4, true, false>,
    (ExactKey::U8, Instruction::MmaSync, FilterOutput::Append, Residency::Streamed)
        => filter_u8_append_streamed(min_blocks = 2) = filter::<MmaSync<2, 4, 4, U8>, 4, 4, false, false>,
    (ExactKey::U8, Instruction::Wgmma, FilterOutput::Dense, Residency::Resident)
        => filter_u8_dense_resident_sm90(min_blocks = 2, arch = "sm_90a")
        = filter::<Wgmma<16, U8>, 1, 16, true, true>,
    (ExactKey::U8, Instruction::Wgmma, FilterOutput::Dense, Residency::Streamed)
        => filter_u8_dense_streamed_sm90(min_blocks = 2, arch = "sm_90a")
        = filter::<Wgmma<16, U8>, 1, 16, false, true>,
    (ExactKey::U8, Instruction::Wgmma, FilterOutput::Append, Residency::Resident)
        => filter_u8_append_resident_sm90(min_blocks = 2, arch = "sm_90a") = filter::<Wgmma<16, U8>, 1, 16, true, false>,
    (ExactKey::U8, Instruction::Wgmma, FilterOutput::Append, Residency::Streamed)
        => filter_u8_append_streamed_sm90(min_blocks = 2, arch = "sm_90a")
        = filter::<Wgmma<16, U8>, 1, 16, false, false>,
    (ExactKey::I8, Instruction::MmaSync, FilterOutput::Dense, Residency::Resident)
        => filter_i8_dense_resident(min_blocks = 2) = filter::<MmaSync<2, 4, 4, I8>, 4, 4, true, true>,
    /// One block a multiprocessor, as for f16 copies.
    (ExactKey::I8, Instruction::MmaSync, FilterOutput::Dense, Residency::Streamed)
        => filter_i8_dense_streamed(min_blocks = 1) = filter::<MmaSync<2, 4, 4, I8>, 4, 4, false, true>,
    (ExactKey::I8, Instruction::MmaSync, FilterOutput::Append, Residency::Resident)
        => filter_i8_append_resident(min_blocks = 2) = filter::<MmaSync<2, 4, 4, I8>, 4, 4, true, false>,
    (ExactKey::I8, Instruction::MmaSync, FilterOutput::Append, Residency::Streamed)
        => filter_i8_append_streamed(min_blocks = 2) = filter::<MmaSync<2, 4, 4, I8>, 4, 4, false, false>,
    (ExactKey::I8, Instruction::Wgmma, FilterOutput::Dense, Residency::Resident)
        => filter_i8_dense_resident_sm90(min_blocks = 2, arch = "sm_90a")
        = filter::<Wgmma<16, I8>, 1, 16, true, true>,
    (ExactKey::I8, Instruction::Wgmma, FilterOutput::Dense, Residency::Streamed)
        => filter_i8_dense_streamed_sm90(min_blocks = 2, arch = "sm_90a")
        = filter::<Wgmma<16, I8>, 1, 16, false, true>,
    (ExactKey::I8, Instruction::Wgmma, FilterOutput::Append, Residency::Resident)
        => filter_i8_append_resident_sm90(min_blocks = 2, arch = "sm_90a") = filter::<Wgmma<16, I8>, 1, 16, true, false>,
    (ExactKey::I8, Instruction::Wgmma, FilterOutput::Append, Residency::Streamed)
        => filter_i8_append_streamed_sm90(min_blocks = 2, arch = "sm_90a")
        = filter::<Wgmma<16, I8>, 1, 16, false, false>,
    (ExactKey::Bits, Instruction::MmaSync, FilterOutput::Dense, Residency::Resident)
        => filter_bits_dense_resident(min_blocks = 2) = filter::<MmaSync<2, 4, 4, Bits>, 4, 4, true, true>,
    /// One block a multiprocessor, as for f16 copies.
    (ExactKey::Bits, Instruction::MmaSync, FilterOutput::Dense, Residency::Streamed)
        => filter_bits_dense_streamed(min_blocks = 1) = filter::<MmaSync<2, 4, 4, Bits>, 4, 4, false, true>,
    (ExactKey::Bits, Instruction::MmaSync, FilterOutput::Append, Residency::Resident)
        => filter_bits_append_resident(min_blocks = 2) = filter::<MmaSync<2, 4, 4, Bits>, 4, 4, true, false>,
    (ExactKey::Bits, Instruction::MmaSync, FilterOutput::Append, Residency::Streamed)
        => filter_bits_append_streamed(min_blocks = 2) = filter::<MmaSync<2, 4, 4, Bits>, 4, 4, false, false>,
    (ExactKey::Bits, Instruction::Wgmma, FilterOutput::Dense, Residency::Resident)
        => filter_bits_dense_resident_sm90(min_blocks = 2, arch = "sm_90a")
        = filter::<Wgmma<16, Bits>, 1, 16, true, true>,
    (ExactKey::Bits, Instruction::Wgmma, FilterOutput::Dense, Residency::Streamed)
        => filter_bits_dense_streamed_sm90(min_blocks = 2, arch = "sm_90a")
        = filter::<Wgmma<16, Bits>, 1, 16, false, true>,
    (ExactKey::Bits, Instruction::Wgmma, FilterOutput::Append, Residency::Resident)
        => filter_bits_append_resident_sm90(min_blocks = 2, arch = "sm_90a") = filter::<Wgmma<16, Bits>, 1, 16, true, false>,
    (ExactKey::Bits, Instruction::Wgmma, FilterOutput::Append, Residency::Streamed)
        => filter_bits_append_streamed_sm90(min_blocks = 2, arch = "sm_90a")
        = filter::<Wgmma<16, Bits>, 1, 16, false, false>,
)]
pub struct ByteFilter {
    /// The queries as stored: rows of `stride` bytes, aligned to 16.
    pub queries: Ptr<u8>,
    /// The base as stored: rows of `stride` bytes, aligned to 16.
    pub base: Ptr<u8>,
    /// Distance from one row to the next in bytes: a multiple of 16, padded with zeros, at most
    /// [`most_row_bytes`] padded.
    pub stride: u32,
    /// The value of each query ([`crate::product::prepare_bytes`]).
    pub query_values: Ptr<u32>,
    /// Upper bound of the norm of each query.
    pub query_norms: Ptr<f32>,
    /// The value of each base row ([`crate::product::prepare_bytes`]); the bits of +∞ for padding and for rows that
    /// take no part.
    pub base_values: Ptr<u32>,
    /// The greatest norm of the base: one number.
    pub base_norm: Ptr<f32>,
    /// The tiles and the output.
    #[group]
    pub pass: FilterPass,
}

impl ByteFilter {
    /// The residency of the queries, which depends on `stride`.
    pub fn residency(&self) -> Residency {
        Residency::of_chunks(chunks(self.stride))
    }

    /// The grid of [`FilterPass`].
    pub fn config(&self, instruction: Instruction, multiprocessors: u32) -> LaunchConfig {
        self.pass.config(multiprocessors, HEADER_BYTES + instruction.ring().bytes(chunks(self.stride)))
    }
}

/// Loads queries, tiles of the base, and the data of a tile that the epilogue needs.
struct BaseTiles {
    launch: ByteFilter,
    walk: TileWalk,
    copy: ByteCopy,
    query_tile: *const u8,
    thread: u32,
    /// The number of the current tile.
    tile: u32,
}

impl Operands for BaseTiles {
    #[device_inline]
    unsafe fn load_rows(&mut self, to: SharedPtr<u8>, chunk: u32) {
        // SAFETY: the queries are padded to whole tiles.
        unsafe { self.copy.copy(to, self.query_tile, chunk) }
    }

    #[device_inline]
    unsafe fn load_tile(&mut self, to: SharedPtr<u8>, visit: u32, chunk: u32) {
        let ByteFilter { base, stride, base_values, .. } = self.launch;
        let thread = self.thread;
        // SAFETY: the tile exists, and the arrays of the base cover whole tiles; so do their norms.
        unsafe {
            if chunk == 0 {
                self.tile = self.walk.next();
                let info = info_at(visit);
                let (tile, part) = (self.tile as usize, thread as usize);
                if thread < TILE_ROWS / 4 {
                    let from = base_values.wrapping_add(tile * TILE_ROWS as usize + 4 * part);
                    async_copy::copy_16(info.add(16 * thread), from.cast());
                } else if thread == TILE_ROWS / 4 {
                    TileWord::Number.of::<u32>(info).store(self.tile);
                }
            }
            // 128 · stride fits 32 bits, because `most_row_bytes` bounds stride.
            let at = self.tile as usize * (TILE_ROWS * stride) as usize;
            self.copy.copy(to, base.wrapping_add(at), chunk);
        }
    }
}

/// The bounds of pairs of bytes.
#[derive(Clone, Copy)]
struct ByteBounds {
    pass: FilterPass,
}

impl ByteBounds {
    /// Writes the numbers of the block's queries to shared memory: their limit in the form of
    /// [`PairBounds::Limit`], the factor of their scores, their error, and their limit. Other threads may read them
    /// after the next barrier. Dense kernels have no thresholds.
    ///
    /// # Safety
    /// As [`ByteFilter`]; the header of the block's shared memory is free.
    #[device_inline]
    unsafe fn new(launch: ByteFilter, first_query: u32, dense: bool) -> ByteBounds {
        let ByteFilter { query_values, query_norms, base_norm, pass, .. } = launch;
        let FilterPass { metric, query_count, thresholds, .. } = pass;
        let thread = thread::thread_idx_x();
        // Padded queries have the threshold −∞, so no pair of them is kept.
        if thread < TILE_QUERIES {
            let query = (first_query + thread) as usize;
            let (mut norm, mut value, mut threshold) = (0.0, 0, f32::NEG_INFINITY);
            // SAFETY: the caller promises the shapes; queries are compared with their number.
            unsafe {
                if query < query_count as usize {
                    norm = global::load_nc(query_norms.wrapping_add(query));
                    value = global::load_nc(query_values.wrapping_add(query));
                    if !dense {
                        threshold = global::load_nc(thresholds.wrapping_add(query));
                    }
                }
                let base = Bounds { norm: global::load_nc(*base_norm), residual: 0.0 };
                let lost = match metric {
                    Metric::L2 => LOST_BIT,
                    Metric::InnerProduct | Metric::Cosine => 0.0,
                };
                let error = QueryTerms::exact(metric, norm).error(metric, base) + lost;
                let limit = threshold + error;
                let (factor, surplus) = match metric {
                    Metric::L2 => (-2.0, least_surplus(limit * -0.5)),
                    Metric::InnerProduct => (-1.0, least_surplus(-limit)),
                    // Not negative zero, so that a product with it is not NaN where the other factor is +∞.
                    Metric::Cosine => (0.0 - f32::from_bits(value), limit.to_bits() as i32),
                };
                let words = [f32::from_bits(surplus as u32), factor, error, limit];
                terms_at().add(thread).store(global::F32x4(words));
            }
        }
        ByteBounds { pass }
    }
}

/// The least whole number that a product less a value must reach, rounded towards zero. Infinite numbers saturate.
#[device_inline]
fn least_surplus(least: f32) -> i32 {
    if least.is_nan() { i32::MIN } else { least as i32 }
}

/// The numbers of query `row` of the block.
///
/// # Safety
/// `row` < 128, and the numbers of the queries were written before a barrier.
#[device_inline]
unsafe fn query(row: u32) -> [f32; 4] {
    // SAFETY: as the caller promises.
    unsafe { terms_at().add(row).load() }.0
}

impl PairBounds for ByteBounds {
    type Sum = i32;
    /// The least A − value; for cosine the bits of the limit.
    type Limit = i32;

    #[device_inline]
    fn pass(&self) -> FilterPass {
        self.pass
    }

    #[device_inline]
    unsafe fn factor(&self, row: u32) -> f32 {
        // SAFETY: as the caller promises.
        let [_, factor, ..] = unsafe { query(row) };
        factor
    }

    #[device_inline]
    unsafe fn error(&self, row: u32, _: SharedPtr<u8>) -> f32 {
        // SAFETY: as the caller promises.
        let [.., error, _] = unsafe { query(row) };
        error
    }

    #[device_inline]
    unsafe fn limit(&self, row: u32, _: SharedPtr<u8>) -> i32 {
        // SAFETY: as the caller promises.
        unsafe { terms_at().add(row).cast::<i32>().load() }
    }

    #[device_inline]
    fn score(&self, sum: i32, value: f32, factor: f32) -> f32 {
        // One formula with selected numbers, because a branch for each pair costs more.
        let (scale, own) = match self.pass.metric {
            Metric::L2 => (1.0, value.to_bits() as f32 * 2.0),
            Metric::InnerProduct => (1.0, 0.0),
            Metric::Cosine => (value, 0.0),
        };
        let score = mul_add_f32(sum as f32 * scale, factor, own);
        if value.to_bits() == LEFT_OUT { f32::INFINITY } else { score }
    }

    #[device_inline]
    #[expect(clippy::neg_cmp_op_on_partial_ord, reason = "NaN on either side must keep the row")]
    unsafe fn kept(&self, sum: i32, value: f32, row: u32, _: SharedPtr<u8>) -> Option<f32> {
        // SAFETY: as the caller promises.
        let [_, factor, error, limit] = unsafe { query(row) };
        let score = self.score(sum, value, factor);
        if !(score > limit) { Some(score + error) } else { None }
    }

    #[device_inline]
    unsafe fn hits<const COLUMNS: usize>(
        &self,
        sums: &[[i32; 4]; COLUMNS],
        info: SharedPtr<u8>,
        column: u32,
        limits: [i32; 2],
        rows: [u32; 2],
    ) -> Option<u32> {
        // SAFETY: as the caller promises.
        unsafe {
            match self.pass.metric {
                Metric::L2 | Metric::InnerProduct => {
                    let nearest = |most: i32, sum, value| most.max(surplus(sum, value));
                    hits_of(sums, (info, column), i32::MIN, nearest, i32::max, |most, half| most >= limits[half])
                }
                Metric::Cosine => {
                    let factors = [self.factor(rows[0]), self.factor(rows[1])];
                    let nearest = |least: f32, sum: i32, value: f32| min_f32(least, sum as f32 * value);
                    hits_of(sums, (info, column), f32::INFINITY, nearest, min_f32, |least, half| {
                        within(least, factors[half], limits[half])
                    })
                }
            }
        }
    }
}

/// A − value. That of a row that takes no part may wrap around; then its group is examined without need.
#[device_inline]
fn surplus(sum: i32, value: f32) -> i32 {
    sum.wrapping_sub(value.to_bits() as i32)
}

/// Whether a cosine score is at most the limit of these bits, or NaN.
#[device_inline]
#[expect(clippy::neg_cmp_op_on_partial_ord, reason = "NaN on either side must keep the row")]
fn within(scaled: f32, factor: f32, limit: i32) -> bool {
    !(scaled * factor > f32::from_bits(limit as u32))
}

/// The operands of the block and the bounds of its pairs; `None` if it has no tiles.
///
/// # Safety
/// As [`ByteFilter`].
#[device_inline]
unsafe fn begin(launch: ByteFilter, dense: bool) -> Option<(BaseTiles, ByteBounds, Visited)> {
    let share = Share::of_block(launch.pass.tiles)?;
    let first_query = thread::block_idx_x() * TILE_QUERIES;
    let thread = thread::thread_idx_x();
    // SAFETY: as the caller promises.
    let bounds = unsafe { ByteBounds::new(launch, first_query, dense) };
    let operands = BaseTiles {
        launch,
        walk: share.walk(&launch.pass),
        copy: ByteCopy::new(thread, launch.stride),
        query_tile: launch.queries.wrapping_add(first_query as usize * launch.stride as usize),
        thread,
        tile: 0,
    };
    Some((operands, bounds, Visited { chunks: chunks(launch.stride), first_query, share }))
}

/// # Safety
/// As [`ByteFilter`].
#[device_inline]
unsafe fn filter<
    P: TileProduct<ROWS, COLUMNS, Sum = i32>,
    const ROWS: usize,
    const COLUMNS: usize,
    const RESIDENT: bool,
    const DENSE: bool,
>(
    launch: ByteFilter,
) {
    // SAFETY: the caller promises the shapes; rows are padded to whole tiles, so tile loads stay inside, and shared
    // addresses lie inside the shared memory of the launch.
    unsafe {
        if let Some((mut operands, bounds, visited)) = begin(launch, DENSE) {
            visit::<P, _, ROWS, COLUMNS, RESIDENT, DENSE>(&mut operands, bounds, visited);
        }
    }
}
