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
use cuda_std::warp::FULL_MASK;
use cuda_std::{Ptr, PtrMut, async_copy, atomic, global, kernel, shared, thread, unroll, warp};

use crate::product::bounds::{Bounds, QueryTerms};
use crate::product::instruction::{Instruction, MmaSync, Scores, TileProduct, Wgmma, entry_of};
use crate::product::mainloop::{Epilogue, Operands, Pass};
use crate::product::metric::{Metric, product_factor, scale_of};
pub use crate::product::ring::RESIDENT_CHUNKS;
use crate::product::ring::Residency;
pub use crate::product::tile::{CHUNK, TILE_ROWS};
use crate::product::tile::{CHUNK_TILE_BYTES, ChunkCopy, LEAST_SHARED_BYTES, THREADS};

/// Number of queries in a tile.
pub const TILE_QUERIES: u32 = 128;
/// Bytes of the data of a tile that the epilogue needs: 128 values, greatest norm, greatest residual, number of the
/// tile.
const INFO_BYTES: u32 = TILE_ROWS * 4 + 16;
/// Number of tiles whose chunks can be in flight at once.
const INFOS: u32 = 4;
/// Bytes of the data of the queries that the epilogue needs: four numbers for each ([`QueryTerms`] and the threshold).
const TERMS_BYTES: u32 = TILE_QUERIES * 16;
/// Largest number of groups of eight pairs that a lane has in one row.
const GROUPS: usize = 4;
/// Capacity of the queue of a warp in shared memory, in pairs. At the end of a tile, a queue that is more than half
/// full is appended to the lists.
const QUEUE: u32 = 64;
const QUEUES_AT: u32 = (TERMS_BYTES + INFOS * INFO_BYTES).next_multiple_of(16);
const HEADER_BYTES: u32 = (QUEUES_AT + THREADS / 32 * QUEUE * 16).next_multiple_of(1024);

/// Dynamic shared memory of a block, in bytes, for f16 copies of `chunks` chunks.
const fn shared_bytes(instruction: Instruction, chunks: u32) -> u32 {
    HEADER_BYTES + instruction.ring().bytes(chunks)
}

const _: () = assert!(shared_bytes(Instruction::MmaSync, 2) <= LEAST_SHARED_BYTES);
const _: () = assert!(shared_bytes(Instruction::MmaSync, 3) <= LEAST_SHARED_BYTES);

/// Number of the base tile that a launch visits as its tile `visited`.
///
/// `skip` = 0: tiles 0, stride, 2·stride, ..; else all tiles that are not multiples of `skip`.
#[inline(always)]
pub fn tile_number(visited: u32, stride: u32, skip: u32) -> u32 {
    // `max(1)` shows the compiler that the divisor is not 0. A skip of 1 would visit no tile.
    if skip == 0 { visited * stride } else { visited + visited / (skip - 1).max(1) + 1 }
}

/// The output of a filter kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FilterOutput {
    /// Upper bounds u of the scores of every query with every visited row.
    Dense,
    /// (u, row) for each pair whose lower bound is at most the query's threshold.
    Append,
}

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
    /// Number of queries without padding.
    pub query_count: u32,
    /// Number of base rows without padding.
    pub row_count: u32,
    /// The metric of the scores.
    pub metric: Metric,
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
    /// Number of tiles that the launch visits: the tiles [`tile_number`] of 0 .. `tiles`.
    pub tiles: u32,
    /// The `stride` of [`tile_number`].
    pub tile_stride: u32,
    /// The `skip` of [`tile_number`].
    pub tile_skip: u32,
    /// The threshold of each query. Empty for dense kernels, which do not read it.
    pub thresholds: Ptr<f32>,
    /// The upper bounds u, `query_count` rows of `out_stride` numbers. Dense: row r of visited tile t is in column 128
    /// · t + r of the query's row. Append: entry p of a query's list is at place p of the query's row.
    pub out_values: PtrMut<f32>,
    /// Append: the base row of each entry of `out_values`. Dense: empty.
    pub out_rows: PtrMut<u32>,
    /// Append: the length of each query's list. The launch adds the number of entries that it finds, including those
    /// that exceed the capacity. Dense: empty.
    pub counts: PtrMut<u32>,
    /// Distance from one row of `out_values` and `out_rows` to the next. Dense: even, at least 128 · `tiles`. Append:
    /// the capacity of a list.
    pub out_stride: u32,
}

impl Filter {
    /// The residency of the queries, which depends on `stride`.
    pub fn residency(&self) -> Residency {
        Residency::of(self.stride)
    }

    /// A block has 128 queries and a share of the visited tiles. The number of shares makes whole waves of blocks, two
    /// for each multiprocessor.
    pub fn config(&self, instruction: Instruction, multiprocessors: u32) -> LaunchConfig {
        let query_tiles = self.query_count.div_ceil(TILE_QUERIES);
        let shares = shares(query_tiles, self.tiles, multiprocessors);
        LaunchConfig::linear(query_tiles as u64, THREADS)
            .along_y(shares as u64)
            .with_shared(shared_bytes(instruction, self.stride / CHUNK))
    }
}

/// Number of shares of the tiles for which the blocks, two for each multiprocessor, make whole waves.
fn shares(query_tiles: u32, tiles: u32, multiprocessors: u32) -> u32 {
    // To fill and drain the pipeline costs a block about as much as two tiles.
    const OVERHEAD: u64 = 2;
    let slots = multiprocessors as u64 * 2;
    let cost = |shares: u32| {
        let waves = (query_tiles as u64 * shares as u64).div_ceil(slots);
        waves * (tiles.div_ceil(shares) as u64 + OVERHEAD)
    };
    (1..=tiles.min(1024)).min_by_key(|&shares| cost(shares)).unwrap_or(1)
}

/// The share of a block among the visited tiles: `first`, `first + step`, and so on, so that blocks in flight read
/// neighbouring tiles.
#[derive(Clone, Copy)]
struct Share {
    first: u32,
    step: u32,
}

impl Share {
    /// Number of tile `visit` of the share among all visited tiles.
    #[inline(always)]
    fn visited(self, visit: u32) -> u32 {
        self.first + visit * self.step
    }
}

/// Loads queries, tiles of the base, and the data of a tile that the epilogue needs.
struct BaseTiles {
    launch: Filter,
    share: Share,
    copy: ChunkCopy,
    query_tile: *const u16,
    infos_at: SharedPtr<u8>,
    thread: u32,
    /// The number of the current tile.
    tile: u32,
}

impl Operands for BaseTiles {
    #[inline(always)]
    unsafe fn load_rows(&mut self, to: SharedPtr<u8>, chunk: u32) {
        // SAFETY: the copies of queries are padded to whole tiles.
        unsafe { self.copy.copy(to, self.copy.start(self.query_tile).wrapping_add((chunk * CHUNK) as usize)) }
    }

    #[inline(always)]
    unsafe fn load_tile(&mut self, to: SharedPtr<u8>, visit: u32, chunk: u32) {
        let Filter { base, stride, base_values, tile_norms, tile_residuals, tile_stride, tile_skip, .. } = self.launch;
        let thread = self.thread;
        // SAFETY: the tile exists, and the arrays of the base cover whole tiles; its info is below `INFOS`.
        unsafe {
            if chunk == 0 {
                self.tile = tile_number(self.share.visited(visit), tile_stride, tile_skip);
                let info = self.infos_at.add((visit % INFOS) * INFO_BYTES);
                let (tile, part) = (self.tile as usize, thread as usize);
                if thread < TILE_ROWS / 4 {
                    let from = base_values.wrapping_add(tile * TILE_ROWS as usize + 4 * part);
                    async_copy::copy_16(info.add(16 * thread), from.cast());
                } else if thread == TILE_ROWS / 4 {
                    async_copy::copy_4(info.add(TILE_ROWS * 4), tile_norms.wrapping_add(tile).cast());
                } else if thread == TILE_ROWS / 4 + 1 {
                    async_copy::copy_4(info.add(TILE_ROWS * 4 + 4), tile_residuals.wrapping_add(tile).cast());
                } else if thread == TILE_ROWS / 4 + 2 {
                    info.add(TILE_ROWS * 4 + 8).cast::<u32>().store(self.tile);
                }
            }
            // 128 · stride fits 32 bits, because `MOST_COMPONENTS` bounds stride.
            let at = self.tile as usize * (TILE_ROWS * stride) as usize + (chunk * CHUNK) as usize;
            self.copy.copy(to, self.copy.start(base.wrapping_add(at)));
        }
    }
}

/// State of both epilogues: the terms of the block's queries, and the data of the tiles in flight.
#[derive(Clone, Copy)]
struct Bounding {
    launch: Filter,
    first_query: u32,
    /// [`product_factor`] of both scales.
    factor: f32,
    /// For each query of the block the [`QueryTerms`], then the own term plus the threshold.
    terms_at: SharedPtr<global::F32x4>,
    infos_at: SharedPtr<u8>,
}

impl Bounding {
    /// Writes the terms of the block's queries to shared memory; other threads may read them after the next barrier.
    /// Dense kernels have no thresholds.
    ///
    /// # Safety
    /// As [`Filter`]; the header of the block's shared memory is free.
    #[inline(always)]
    unsafe fn new(launch: Filter, first_query: u32, dense: bool) -> Bounding {
        let Filter { stride, query_count, metric, query_greatest, base_greatest, .. } = launch;
        let Filter { query_norms, query_residuals, thresholds, .. } = launch;
        // SAFETY: the caller promises the shapes; queries are compared with their number.
        unsafe {
            let terms_at = shared::dynamic::<u8>().cast::<global::F32x4>();
            let infos_at = shared::dynamic::<u8>().add(TERMS_BYTES);
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
                terms_at.add(thread).store(global::F32x4(words));
            }
            Bounding { launch, first_query, factor, terms_at, infos_at }
        }
    }

    /// The data of a tile that was loaded with its first chunk, and the tile's greatest norm and residual.
    ///
    /// # Safety
    /// The tile was waited for.
    #[inline(always)]
    unsafe fn info(&self, visit: u32) -> (SharedPtr<u8>, Bounds) {
        // SAFETY: the place is below `INFOS`.
        unsafe {
            let info = self.infos_at.add((visit % INFOS) * INFO_BYTES);
            let numbers = info.add(TILE_ROWS * 4).cast::<f32>();
            (info, Bounds { norm: numbers.load(), residual: numbers.add(1).load() })
        }
    }

    /// The terms of a query of the block, and its own term plus its threshold.
    ///
    /// # Safety
    /// `row` < 128.
    #[inline(always)]
    unsafe fn terms(&self, row: u32) -> (QueryTerms, f32) {
        // SAFETY: as the caller promises.
        let [per_norm, per_residual, own, own_and_limit] = unsafe { self.terms_at.add(row).load() }.0;
        (QueryTerms { per_norm, per_residual, own }, own_and_limit)
    }
}

/// The values of two neighbouring rows of a tile.
///
/// # Safety
/// `column` is even and below 128.
#[inline(always)]
unsafe fn values(info: SharedPtr<u8>, column: u32) -> [f32; 2] {
    // SAFETY: as the caller promises.
    unsafe { info.add(column * 4).cast::<global::F32x2>().load().0 }
}

/// Stores the upper bounds of all pairs.
struct DenseBounds {
    bounding: Bounding,
    share: Share,
}

impl<P: TileProduct<ROWS, COLUMNS>, const ROWS: usize, const COLUMNS: usize> Epilogue<P, ROWS, COLUMNS>
    for DenseBounds
{
    #[inline(always)]
    unsafe fn tile(&mut self, part: &P, visit: u32, scores: &Scores<ROWS, COLUMNS>) {
        let Bounding { launch, first_query, factor, .. } = self.bounding;
        let Filter { metric, query_count, out_values, out_stride, .. } = launch;
        // SAFETY: the tile was waited for; stores are checked against query_count, and a row has room for all visited
        // tiles.
        unsafe {
            let (info, y) = self.bounding.info(visit);
            let of_base = QueryTerms::of_base(metric, y);
            let column = part.column();
            unroll::<ROWS>(|i| {
                unroll::<2>(|half| {
                    let query = first_query + part.row(i, half);
                    if query < query_count {
                        let terms = self.bounding.terms(part.row(i, half)).0;
                        let error = terms.error_from(terms.own + of_base, y);
                        let out = query as usize * out_stride as usize
                            + (self.share.visited(visit) * TILE_ROWS + column) as usize;
                        unroll::<COLUMNS>(|j| {
                            let value = values(info, column + 8 * j as u32);
                            let score = |e: usize| mul_add_f32(scores[i][j][2 * half + e], factor, value[e]);
                            let pair = [score(0) + error, score(1) + error];
                            let to = out_values.wrapping_add(out + 8 * j).cast::<global::F32x2>();
                            global::store(to, global::F32x2(pair));
                        });
                    }
                });
            });
        }
    }
}

/// Appends the pairs whose lower bound is at most the query's threshold to the query's list.
struct AppendWithin {
    bounding: Bounding,
    /// Number of tiles of the block.
    tiles: u32,
    lane: u32,
    /// Pairs that the warp keeps. They wait here until there are enough of them for their atomics to overlap.
    queue: SharedPtr<global::U32x4>,
    queued: u32,
}

impl AppendWithin {
    #[inline(always)]
    fn new(bounding: Bounding, tiles: u32) -> AppendWithin {
        AppendWithin { bounding, tiles, lane: warp::lane_id(), queue: SharedPtr::from_address(0), queued: 0 }
    }

    /// Appends one pair to a list; the words are its upper bound, its base row, and its query in the block.
    ///
    /// # Safety
    /// As [`Filter`].
    #[inline(always)]
    unsafe fn append(&self, [upper, row, query, _]: [u32; 4]) {
        let Bounding { launch, first_query, .. } = self.bounding;
        let Filter { row_count, query_count, counts, out_values, out_rows, out_stride, .. } = launch;
        let query = first_query + query;
        // Padded rows have the value +∞ and padded queries the threshold −∞, but an infinite threshold or a NaN lets
        // such pairs pass.
        if row >= row_count || query >= query_count {
            return;
        }
        // SAFETY: the query exists, and the place is checked.
        unsafe {
            let place = atomic::add_u32(counts.wrapping_add(query as usize), 1);
            if place < out_stride {
                let at = query as usize * out_stride as usize + place as usize;
                global::store(out_values.wrapping_add(at), f32::from_bits(upper));
                global::store(out_rows.wrapping_add(at), row);
            }
        }
    }

    /// Appends the pairs of the queue to the lists if there are more than `from`.
    ///
    /// # Safety
    /// As [`Filter`]; all lanes of the warp arrive.
    #[inline(always)]
    unsafe fn append_queue(&mut self, from: u32) {
        if self.queued > from {
            warp::sync_warp(FULL_MASK);
            let mut entry = self.lane;
            while entry < self.queued.min(QUEUE) {
                // SAFETY: entries below QUEUE, which were stored.
                unsafe { self.append(self.queue.add(entry).load().0) };
                entry += 32;
            }
            warp::sync_warp(FULL_MASK);
            self.queued = 0;
        }
    }

    /// Puts the pair `words(i)` in the queue for each bit i of `keeps`; a full queue appends it at once. All lanes of
    /// the warp arrive.
    ///
    /// # Safety
    /// As [`Filter`].
    #[inline(always)]
    unsafe fn keep(&mut self, mut keeps: u32, words: impl Fn(u32) -> [u32; 4]) {
        loop {
            let waiting = warp::ballot(FULL_MASK, keeps != 0);
            if waiting == 0 {
                break;
            }
            if keeps != 0 {
                let at = keeps.trailing_zeros();
                keeps &= keeps - 1;
                let words = words(at);
                let place = self.queued + (waiting & ((1 << self.lane) - 1)).count_ones();
                // SAFETY: the place is checked.
                unsafe {
                    if place < QUEUE {
                        self.queue.add(place).store(global::U32x4(words));
                    } else {
                        self.append(words);
                    }
                }
            }
            self.queued += waiting.count_ones();
        }
    }
}

impl<P: TileProduct<ROWS, COLUMNS>, const ROWS: usize, const COLUMNS: usize> Epilogue<P, ROWS, COLUMNS>
    for AppendWithin
{
    /// Sets the address of the queue. It is set here because an address that is kept during the first steps occupies
    /// registers.
    #[inline(always)]
    unsafe fn begin(&mut self, _: SharedPtr<u8>) {
        let header = shared::dynamic::<u8>();
        // SAFETY: the header has the queues of all warps.
        self.queue = unsafe { header.add(QUEUES_AT).cast::<global::U32x4>().add(warp::warp_id() * QUEUE) };
    }

    #[inline(always)]
    unsafe fn tile(&mut self, part: &P, visit: u32, sums: &Scores<ROWS, COLUMNS>) {
        let bounding = self.bounding;
        let (metric, factor) = (bounding.launch.metric, bounding.factor);
        // SAFETY: the tile was waited for, and all threads of the block arrive.
        unsafe {
            let (info, y) = bounding.info(visit);
            let of_base = QueryTerms::of_base(metric, y);
            let column = part.column();
            let value = |j: usize| values(info, column + 8 * j as u32);
            unroll::<ROWS>(|i| {
                let score = |j: usize, value: [f32; 2], half: usize, e: usize| {
                    mul_add_f32(sums[i][j % COLUMNS][2 * half + e], factor, value[e])
                };
                let threshold = |half: usize| {
                    let (terms, own_and_limit) = bounding.terms(part.row(i, half));
                    terms.error_from(own_and_limit + of_base, y)
                };
                let thresholds = [threshold(0), threshold(1)];
                // One bit for each group of eight pairs of a row: chains of compares are short, and few pairs are
                // examined twice.
                let mut hits = 0u32;
                unroll::<GROUPS>(|group| {
                    if 4 * group < COLUMNS {
                        let mut least = [f32::INFINITY; 2];
                        unroll::<4>(|j| {
                            let value = value(4 * group + j);
                            unroll::<2>(|half| {
                                unroll::<2>(|e| {
                                    least[half] = min_f32(least[half], score(4 * group + j, value, half, e))
                                })
                            });
                        });
                        #[expect(clippy::neg_cmp_op_on_partial_ord, reason = "NaN on either side must keep the row")]
                        unroll::<2>(|half| hits |= (!(least[half] > thresholds[half]) as u32) << (2 * group + half));
                    }
                });
                // The hits of all lanes, so that the warp branches as one.
                let hits = warp::reduce_or(FULL_MASK, hits);
                if hits != 0 {
                    unroll::<{ 2 * GROUPS }>(|group_half| {
                        let (group, half) = (group_half / 2, group_half % 2);
                        if 4 * group < COLUMNS && hits & (1 << group_half) != 0 {
                            let mut scores = [[0.0f32; 2]; 4];
                            let mut keeps = 0u32;
                            unroll::<4>(|j| {
                                let value = value(4 * group + j);
                                #[expect(clippy::neg_cmp_op_on_partial_ord, reason = "as above")]
                                unroll::<2>(|e| {
                                    scores[j][e] = score(4 * group + j, value, half, e);
                                    keeps |= (!(scores[j][e] > thresholds[half]) as u32) << (2 * j + e);
                                });
                            });
                            let error = bounding.terms(part.row(i, half)).0.error(metric, y);
                            self.keep(keeps, |at| {
                                let column = column + 32 * group as u32 + 8 * (at / 2) + at % 2;
                                let upper = entry_of::<4>(|j, e| scores[j][e], at) + error;
                                let tile = info.add(TILE_ROWS * 4 + 8).cast::<u32>().load();
                                [upper.to_bits(), tile * TILE_ROWS + column, part.row(i, half), 0]
                            });
                        }
                    });
                }
            });
            self.append_queue(if visit + 1 < self.tiles { QUEUE / 2 } else { 0 });
        }
    }
}

/// # Safety
/// As [`Filter`].
#[inline(always)]
unsafe fn filter<
    P: TileProduct<ROWS, COLUMNS>,
    const ROWS: usize,
    const COLUMNS: usize,
    const RESIDENT: bool,
    const DENSE: bool,
>(
    launch: Filter,
) {
    let share = Share { first: thread::block_idx_y(), step: thread::grid_dim_y().max(1) };
    if share.first >= launch.tiles {
        return;
    }
    let tiles = (launch.tiles - share.first).div_ceil(share.step);
    let first_query = thread::block_idx_x() * TILE_QUERIES;
    let thread = thread::thread_idx_x();
    // SAFETY: for the whole body, the caller promises the shapes; copies are padded to whole tiles, so tile loads stay
    // inside, and shared addresses lie inside `shared_bytes`.
    unsafe {
        let bounding = Bounding::new(launch, first_query, DENSE);
        let mut operands = BaseTiles {
            launch,
            share,
            copy: ChunkCopy::new(thread, launch.stride),
            query_tile: launch.queries.wrapping_add(first_query as usize * launch.stride as usize),
            infos_at: bounding.infos_at,
            thread,
            tile: 0,
        };
        let pass = Pass {
            at: shared::dynamic::<u8>().add(HEADER_BYTES),
            rows_bytes: CHUNK_TILE_BYTES,
            chunks: launch.stride / CHUNK,
            tiles,
            stages: P::INSTRUCTION.ring().stages(RESIDENT),
        };
        if DENSE {
            pass.run::<P, ROWS, COLUMNS, RESIDENT>(&mut operands, &mut DenseBounds { bounding, share });
        } else {
            let mut epilogue = AppendWithin::new(bounding, tiles);
            pass.run::<P, ROWS, COLUMNS, RESIDENT>(&mut operands, &mut epilogue);
        }
    }
}
