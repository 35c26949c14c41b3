//! The filter of exact search: a half-precision matrix product on tensor cores. It keeps every base row that may be
//! among the best k of a query, and proves that every dropped row is not (paper section 5.1, in two precisions).
//!
//! # Problem
//! For queries x and base rows y, find all y whose distance could be among the k smallest of x. On an H200 the
//! full-precision product costs 20 times as much as the half-precision one, but half precision alone returns wrong
//! neighbours.
//!
//! # Algorithm
//! Let x̂, ŷ be the f16 copies of [`crate::product::prepare`], and score(x, y) = ‖y‖² − 2⟨x, y⟩ (squared L2 without the
//! constant ‖x‖²) or −⟨x, y⟩. The tile product gives v = score(x̂, ŷ) with a known error bound E ≥ |v − score(x, y)|,
//! so u = v + E is an upper and v − E a lower bound of the true score.
//!
//! ```text
//! dense pass:   u of each query with a sample of the base's tiles -> k-select -> threshold = k-th smallest u
//! append pass:  for each row y of further tiles: if v - E <= threshold, append (u, y) to the query's list
//! between:      k-select over the list -> tighter threshold; compact the list ([`crate::flat::candidates`])
//! at the end:   canonical distances of the remaining rows ([`crate::product::canonical`]), k-select
//! ```
//!
//! The threshold is correct for any sample: the k-th smallest upper bound of *any* subset is at least the k-th smallest
//! score of all rows. So the result is exact, and equal to the bit to the result of a search without a filter.
//!
//! [`crate::product::bounds`] has the bound E and its proof.
//!
//! # How it maps to the machine
//! 1. A block has 128 queries and iterates over tiles of 128 base rows, with 8 warps and one of the instructions of
//!    [`crate::product::instruction`].
//! 2. Chunks pass through the ring of [`crate::product::mainloop`] in the layout of [`crate::product::tile`]. Queries
//!    of up to [`RESIDENT_CHUNKS`] · 64 components stay in shared memory.
//! 3. The block index runs over queries first, so blocks in flight share base tiles through L2. Blocks of other shares
//!    read neighbours of these tiles (8,000,000 rows on an H200: 1 to 3 % faster than shares of consecutive tiles,
//!    measured together with a change of the host's copies).
//! 4. The epilogue takes one FMA and one minimum for each pair, and one compare for eight pairs of a row. It examines a
//!    group of eight again only if one of its pairs is a hit in any lane of the warp.
//! 5. Pairs that are kept wait in shared memory, in one queue for each warp, until there are enough of them for the
//!    atomics that give them places in the lists. Each atomic is a round trip to L2, and a warp that waited for one at
//!    a time delayed its whole block.
//! 6. The data of a tile that the epilogue needs (values, greatest norm and residual) passes through the same pipeline.
//!    When the epilogue loaded it, four of eight warps waited for a round trip to L2 in every tile.
//!
//! # Cost
//! Floor: 2·nq·n·d operations at the f16 rate (3.2 ms for 10,000 × 1,000,000 × 128 on an H200). Survivors: about k
//! times the ratio of base to sample, plus those within 2E of the threshold (some percent of k on clustered data).
//! Measured on an H200 (one launch, 5,000 queries × 1,000,000 × 128, 252 pairs kept for each query): 3.03 ms with
//! `wgmma` (423 TFLOP/s), 4.26 with `mma.sync` (300). With no pair kept: 2.40 (534) and 4.02 (319).
//!
//! # What lost
//! - `mma.sync`, four warps of 64 × 64 (246 registers): a third less shared-memory traffic, and 5 % faster if nothing
//!   is appended. But eight warps on a multiprocessor do not hide the appends: 5.6 ms instead of 4.0 at k = 10, and a
//!   search with k = 100 took 30.7 ms instead of 14.6.
//! - `wgmma`, the launch above, one atomic of each lane for each row as soon as it keeps a pair: 3.40 ms.
//! - `wgmma`, all 32 pairs of a row examined again instead of eight: 3.61 ms.
//! - `wgmma`, three groups of 64 queries that do not wait for each other, with a fourth group that feeds them by bulk
//!   copies and barriers in memory: 3.36 ms (2.31 with no pair kept).

use cuda_std::launch::LaunchConfig;
use cuda_std::math::{min_f32, mul_add_f32};
use cuda_std::shared::SharedPtr;
use cuda_std::{Ptr, async_copy, device_inline, global, kernel, thread};

use crate::flat::epilogue::{HEADER_BYTES, PairBounds, TileWord, Visited, hits_of, info_at, terms_at, visit};
pub use crate::flat::pass::{FilterOutput, FilterPass, tile_number};
use crate::flat::pass::{Share, TILE_QUERIES, TileWalk};
use crate::product::bounds::{Bounds, QueryTerms};
use crate::product::instruction::{Instruction, MmaSync, TileProduct, Wgmma};
use crate::product::mainloop::Operands;
use crate::product::metric::{product_factor, scale_of};
pub use crate::product::ring::RESIDENT_CHUNKS;
use crate::product::ring::Residency;
pub use crate::product::tile::{CHUNK, TILE_ROWS};
use crate::product::tile::{ChunkCopy, LEAST_SHARED_BYTES};

/// Dynamic shared memory of a block, in bytes, for f16 copies of `chunks` chunks.
const fn shared_bytes(instruction: Instruction, chunks: u32) -> u32 {
    HEADER_BYTES + instruction.ring().bytes(chunks)
}

const _: () = assert!(shared_bytes(Instruction::MmaSync, 2) <= LEAST_SHARED_BYTES);
const _: () = assert!(shared_bytes(Instruction::MmaSync, 3) <= LEAST_SHARED_BYTES);

/// Computes bounds of the scores of queries against tiles of the base; see the module documentation.
///
/// # Safety
/// The arrays are as long as the fields say; the f16 copies and `base_values` are padded to whole tiles of 128 rows.
/// The residency in the kernel's key is [`Self::residency`].
#[kernel(
    key = (Instruction, FilterOutput, Residency),
    max_threads = 256,
    (Instruction::MmaSync, FilterOutput::Dense, Residency::Resident)
        => filter_dense_resident(min_blocks = 2) = filter::<MmaSync<2, 4, 4>, 4, 4, true, true>,
    /// With two blocks a multiprocessor this kernel would spill a register. One is enough, because it reads only the
    /// sample.
    (Instruction::MmaSync, FilterOutput::Dense, Residency::Streamed)
        => filter_dense_streamed(min_blocks = 1) = filter::<MmaSync<2, 4, 4>, 4, 4, false, true>,
    (Instruction::MmaSync, FilterOutput::Append, Residency::Resident)
        => filter_append_resident(min_blocks = 2) = filter::<MmaSync<2, 4, 4>, 4, 4, true, false>,
    (Instruction::MmaSync, FilterOutput::Append, Residency::Streamed)
        => filter_append_streamed(min_blocks = 2) = filter::<MmaSync<2, 4, 4>, 4, 4, false, false>,
    (Instruction::Wgmma, FilterOutput::Dense, Residency::Resident)
        => filter_dense_resident_sm90(min_blocks = 2, arch = "sm_90a") = filter::<Wgmma<16>, 1, 16, true, true>,
    (Instruction::Wgmma, FilterOutput::Dense, Residency::Streamed)
        => filter_dense_streamed_sm90(min_blocks = 2, arch = "sm_90a") = filter::<Wgmma<16>, 1, 16, false, true>,
    (Instruction::Wgmma, FilterOutput::Append, Residency::Resident)
        => filter_append_resident_sm90(min_blocks = 2, arch = "sm_90a") = filter::<Wgmma<16>, 1, 16, true, false>,
    (Instruction::Wgmma, FilterOutput::Append, Residency::Streamed)
        => filter_append_streamed_sm90(min_blocks = 2, arch = "sm_90a") = filter::<Wgmma<16>, 1, 16, false, false>,
)]
pub struct Filter {
    /// f16 copies of the queries: rows of `stride` components.
    pub queries: Ptr<u16>,
    /// f16 copies of the base: rows of `stride` components.
    pub base: Ptr<u16>,
    /// Distance from one copy to the next in components: a multiple of [`CHUNK`], at most
    /// [`MOST_COMPONENTS`](crate::product::bounds::MOST_COMPONENTS).
    pub stride: u32,
    /// Bits of the greatest |component| of the queries, from [`crate::product::prepare::Greatest`]: one word.
    pub query_greatest: Ptr<u32>,
    /// Bits of the greatest |component| of the base, from [`crate::product::prepare::Greatest`]: one word.
    pub base_greatest: Ptr<u32>,
    /// Upper bound of the norm of each query.
    pub query_norms: Ptr<f32>,
    /// Upper bound of the residual of each query: the norm of the query minus its f16 copy.
    pub query_residuals: Ptr<f32>,
    /// ‖y‖² (squared L2) or 0 of each base row; +∞ for padding.
    pub base_values: Ptr<f32>,
    /// The greatest norm of each base tile.
    pub tile_norms: Ptr<f32>,
    /// The greatest residual of each base tile.
    pub tile_residuals: Ptr<f32>,
    /// The tiles and the output.
    #[group]
    pub pass: FilterPass,
}

impl Filter {
    /// The residency of the queries, which depends on `stride`.
    pub fn residency(&self) -> Residency {
        Residency::of(self.stride)
    }

    /// The grid of [`FilterPass`].
    pub fn config(&self, instruction: Instruction, multiprocessors: u32) -> LaunchConfig {
        self.pass.config(multiprocessors, shared_bytes(instruction, self.stride / CHUNK))
    }
}

/// Loads queries, tiles of the base, and the data of a tile that the epilogue needs.
struct BaseTiles {
    launch: Filter,
    walk: TileWalk,
    copy: ChunkCopy,
    query_tile: *const u16,
    thread: u32,
    /// The number of the current tile.
    tile: u32,
}

impl Operands for BaseTiles {
    #[device_inline]
    unsafe fn load_rows(&mut self, to: SharedPtr<u8>, chunk: u32) {
        // SAFETY: the copies of queries are padded to whole tiles.
        unsafe { self.copy.copy(to, self.copy.start(self.query_tile).wrapping_add((chunk * CHUNK) as usize)) }
    }

    #[device_inline]
    unsafe fn load_tile(&mut self, to: SharedPtr<u8>, visit: u32, chunk: u32) {
        let Filter { base, stride, base_values, tile_norms, tile_residuals, .. } = self.launch;
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
                    async_copy::copy_4(TileWord::Norm.of(info), tile_norms.wrapping_add(tile).cast());
                } else if thread == TILE_ROWS / 4 + 1 {
                    async_copy::copy_4(TileWord::Residual.of(info), tile_residuals.wrapping_add(tile).cast());
                } else if thread == TILE_ROWS / 4 + 2 {
                    TileWord::Number.of::<u32>(info).store(self.tile);
                }
            }
            // 128 · stride fits 32 bits, because `MOST_COMPONENTS` bounds stride.
            let at = self.tile as usize * (TILE_ROWS * stride) as usize + (chunk * CHUNK) as usize;
            self.copy.copy(to, self.copy.start(base.wrapping_add(at)));
        }
    }
}

/// The bounds of pairs of f16 copies.
#[derive(Clone, Copy)]
struct HalfBounds {
    launch: Filter,
    /// [`product_factor`] of both scales.
    factor: f32,
}

impl HalfBounds {
    /// Writes the numbers of the block's queries to shared memory: the [`QueryTerms`], then the own term plus the
    /// threshold. Other threads may read them after the next barrier. Dense kernels have no thresholds.
    ///
    /// # Safety
    /// As [`Filter`]; the header of the block's shared memory is free.
    #[device_inline]
    unsafe fn new(launch: Filter, first_query: u32, dense: bool) -> HalfBounds {
        let Filter { stride, query_greatest, base_greatest, query_norms, query_residuals, pass, .. } = launch;
        let FilterPass { metric, query_count, thresholds, .. } = pass;
        // SAFETY: the caller promises the shapes; queries are compared with their number.
        unsafe {
            let query_scale = scale_of(metric, f32::from_bits(global::load_nc(*query_greatest)));
            let base_scale = scale_of(metric, f32::from_bits(global::load_nc(*base_greatest)));
            let factor = product_factor(metric, query_scale, base_scale);
            let thread = thread::thread_idx_x();
            // Padded queries have the threshold −∞, so no pair of them is kept.
            if thread < TILE_QUERIES {
                let query = (first_query + thread) as usize;
                let mut terms = QueryTerms::new(metric, stride, Bounds { norm: 0.0, residual: 0.0 });
                let mut threshold = f32::NEG_INFINITY;
                if query < query_count as usize {
                    let x = Bounds {
                        norm: global::load_nc(query_norms.wrapping_add(query)),
                        residual: global::load_nc(query_residuals.wrapping_add(query)),
                    };
                    terms = QueryTerms::new(metric, stride, x).with_factor(factor);
                    if !dense {
                        threshold = global::load_nc(thresholds.wrapping_add(query));
                    }
                }
                let words = [terms.per_norm, terms.per_residual, terms.own, terms.own + threshold];
                terms_at().add(thread).store(global::F32x4(words));
            }
            HalfBounds { launch, factor }
        }
    }
}

/// The terms of the error of query `row` of the block, and the own term plus the threshold.
///
/// # Safety
/// `row` < 128, and the numbers of the queries were written before a barrier.
#[device_inline]
unsafe fn query(row: u32) -> (QueryTerms, f32) {
    // SAFETY: as the caller promises.
    let [per_norm, per_residual, own, own_and_limit] = unsafe { terms_at().add(row).load() }.0;
    (QueryTerms { per_norm, per_residual, own }, own_and_limit)
}

/// The greatest norm and residual of a tile.
///
/// # Safety
/// `info` is the data of a tile that was waited for.
#[device_inline]
unsafe fn tile(info: SharedPtr<u8>) -> Bounds {
    // SAFETY: as the caller promises.
    unsafe {
        Bounds { norm: TileWord::Norm.of::<f32>(info).load(), residual: TileWord::Residual.of::<f32>(info).load() }
    }
}

impl PairBounds for HalfBounds {
    type Sum = f32;
    type Limit = f32;

    #[device_inline]
    fn pass(&self) -> FilterPass {
        self.launch.pass
    }

    #[device_inline]
    unsafe fn factor(&self, _: u32) -> f32 {
        1.0
    }

    #[device_inline]
    unsafe fn error(&self, row: u32, info: SharedPtr<u8>) -> f32 {
        // SAFETY: as the caller promises.
        let ((terms, _), y) = unsafe { (query(row), tile(info)) };
        terms.error(self.launch.pass.metric, y)
    }

    #[device_inline]
    unsafe fn limit(&self, row: u32, info: SharedPtr<u8>) -> f32 {
        // SAFETY: as the caller promises.
        let ((terms, own_and_limit), y) = unsafe { (query(row), tile(info)) };
        terms.error_from(own_and_limit + QueryTerms::of_base(self.launch.pass.metric, y), y)
    }

    #[device_inline]
    fn score(&self, sum: f32, value: f32, _: f32) -> f32 {
        mul_add_f32(sum, self.factor, value)
    }

    #[device_inline]
    #[expect(clippy::neg_cmp_op_on_partial_ord, reason = "NaN on either side must keep the row")]
    unsafe fn kept(&self, sum: f32, value: f32, row: u32, info: SharedPtr<u8>) -> Option<f32> {
        let score = self.score(sum, value, 1.0);
        // SAFETY: as the caller promises.
        let (limit, error) = unsafe { (self.limit(row, info), self.error(row, info)) };
        if !(score > limit) { Some(score + error) } else { None }
    }

    #[device_inline]
    unsafe fn hits<const COLUMNS: usize>(
        &self,
        sums: &[[f32; 4]; COLUMNS],
        info: SharedPtr<u8>,
        column: u32,
        limits: [f32; 2],
        _: [u32; 2],
    ) -> Option<u32> {
        let nearest = |least: f32, sum: f32, value: f32| min_f32(least, mul_add_f32(sum, self.factor, value));
        #[expect(clippy::neg_cmp_op_on_partial_ord, reason = "NaN on either side must keep the row")]
        let within = |least: f32, half: usize| !(least > limits[half]);
        // SAFETY: as the caller promises.
        unsafe { hits_of(sums, (info, column), f32::INFINITY, nearest, min_f32, within) }
    }
}

/// The operands of the block and the bounds of its pairs; `None` if it has no tiles.
///
/// # Safety
/// As [`Filter`].
#[device_inline]
unsafe fn begin(launch: Filter, dense: bool) -> Option<(BaseTiles, HalfBounds, Visited)> {
    let share = Share::of_block(launch.pass.tiles)?;
    let first_query = thread::block_idx_x() * TILE_QUERIES;
    let thread = thread::thread_idx_x();
    // SAFETY: as the caller promises.
    let bounds = unsafe { HalfBounds::new(launch, first_query, dense) };
    let operands = BaseTiles {
        launch,
        walk: share.walk(&launch.pass),
        copy: ChunkCopy::new(thread, launch.stride),
        query_tile: launch.queries.wrapping_add(first_query as usize * launch.stride as usize),
        thread,
        tile: 0,
    };
    Some((operands, bounds, Visited { chunks: launch.stride / CHUNK, first_query, share }))
}

/// # Safety
/// As [`Filter`].
#[device_inline]
unsafe fn filter<
    P: TileProduct<ROWS, COLUMNS, Sum = f32>,
    const ROWS: usize,
    const COLUMNS: usize,
    const RESIDENT: bool,
    const DENSE: bool,
>(
    launch: Filter,
) {
    // SAFETY: the caller promises the shapes; copies are padded to whole tiles, so tile loads stay inside, and shared
    // addresses lie inside `shared_bytes`.
    unsafe {
        if let Some((mut operands, bounds, visited)) = begin(launch, DENSE) {
            visit::<P, _, ROWS, COLUMNS, RESIDENT, DENSE>(&mut operands, bounds, visited);
        }
    }
}
