//! The filter of exact search: a half-precision matrix product on tensor cores that keeps every base row which may be
//! among a query's best k, and proves that it drops no other (paper section 5.1, in two precisions).
//!
//! # Problem
//! For queries x and base rows y, find all y whose distance could be among the k smallest of x. The full-precision
//! product costs 20 times the half-precision one on an H200; but half precision alone returns wrong neighbours.
//!
//! # Algorithm
//! Let x̂, ŷ be the f16 copies of [`crate::prepare`], and score(x, y) = ‖y‖² − 2⟨x, y⟩ (squared L2 without the constant
//! ‖x‖²) or −⟨x, y⟩. The tile product gives v = score(x̂, ŷ) with a known error bound E ≥ |v − score(x, y)|, so
//! u = v + E is an upper and v − E a lower bound of the true score.
//!
//! ```text
//! dense pass:   u of each query with a sample of the base's tiles -> k-select -> limit = k-th smallest u
//! append pass:  for each row y of further tiles: if v - E <= limit, append (u, y) to the query's list
//! between:      k-select over the list -> tighter limit; compact the list ([`crate::candidates`])
//! at the end:   canonical distances of what is left ([`crate::canonical`]), k-select, done
//! ```
//!
//! The limit is sound whatever the sample was: the k-th smallest upper bound of *any* subset is at least the k-th smallest
//! score of all. So the answer is exact, and equal to the bit to a search without a filter.
//!
//! # The bound
//! ⟨x, y⟩ − ⟨x̂, ŷ⟩ = ⟨x − x̂, ŷ⟩ + ⟨x, y − ŷ⟩, so by Cauchy and Schwarz its size is at most ‖x − x̂‖·‖ŷ‖ + ‖x‖·‖y − ŷ‖:
//! the residuals and norms that `prepare` measured. f16 products are exact in f32; an addition on the tensor core is wrong
//! by at most 2⁻²³ of the largest magnitude involved, and with at most 18 of them for 16 components the sum by less than
//! d·2⁻²²·‖x̂‖·‖ŷ‖ =: γ‖x̂‖‖ŷ‖. Rounding of ‖y‖², of the score and of the limit, and that of the canonical distance to f32,
//! are covered by 2⁻²⁰(‖x‖² + ‖y‖²) (inner products: 2⁻²⁰‖x‖‖y‖). [`QueryTerms`] adds these up with the greatest norm and
//! residual of the tile: one number a query and tile. A NaN or infinite bound (components near f32's limits) keeps all.
//!
//! One factor takes a product of copies to one of vectors: a power of two, that of both scales. With components of about
//! 10⁻¹⁸ on either side, or 10²³, it is 0 or infinite in f32, although some scores are not: then every bound is infinite.
//!
//! # How it maps to the machine
//! 1. A block owns 128 queries and walks over tiles of 128 base rows; 8 warps as 2 × 4, each 64 × 32, `mma.m16n8k16`.
//! 2. `cp.async` fills a ring of stages of 64 components (128 bytes a row) across tile borders: the pipeline never drains.
//! 3. Where the queries fit (up to [`RESIDENT_CHUNKS`] · 64 components) they stay in shared memory: half the traffic.
//! 4. 16-byte chunks are stored at `chunk ^ (row & 7)`: `ldmatrix` and `cp.async` meet no bank conflict.
//! 5. The block index runs over queries first, so that blocks in flight share base tiles through L2; and blocks of other shares read the
//!    neighbours of these tiles (8,000,000 rows on an H200: 1 to 3 % faster than shares of consecutive tiles, measured together with a change
//!    of the host's copies).
//! 6. The epilogue is one FMA and one compare a pair; appending is rare and out of line, with one atomic for a lane's eight
//!    pairs of a row.
//! 7. What the epilogue needs of a tile (values, greatest norm and residual) comes through the same pipeline: loading it where
//!    it is used stalled four of eight warps for a trip to L2 in every tile.
//!
//! # Cost
//! Floor: 2·nq·n·d operations at the f16 rate (3.2 ms for 10,000 × 1,000,000 × 128 on an H200). Survivors: about k times the
//! ratio of base to sample, plus those within 2E of the limit (some percent of k on clustered data). Measured on an H200: 4.0 ms
//! for 5,000 queries × 0.91 M rows × 128 (290 TFLOP/s); `mma.sync` alone would allow half of that.
//!
//! # What lost
//! Four warps of 64 × 64 (246 registers): a third less shared-memory traffic, and 5 % faster where nothing is
//! appended; but eight warps an SM do not hide the appends: 5.6 ms for 4.0 at k = 10, and a search with k = 100 took 30.7 ms for
//! 14.6. One atomic a kept pair: 40.0 ms for 36.4 for a search with k = 1000.

use cuda_std::math::mul_add_f32;
use cuda_std::warp::FULL_MASK;
use cuda_std::{async_copy, atomic, global, kernel, shared, thread, unroll, warp};

use crate::prepare::{METRIC_L2, product_factor, scale_of};
pub use crate::tile::{CHUNK, THREADS, TILE_ROWS};
use crate::tile::{CHUNK_TILE_BYTES, COLUMN_TILES, Part, copy_chunk};

/// Queries of a tile.
pub const TILE_QUERIES: u32 = 128;
/// Chunks of a query tile that the resident kernels keep in shared memory, at most.
pub const RESIDENT_CHUNKS: u32 = 3;

const RESIDENT_STAGES: u32 = 4;
const STREAMED_STAGES: u32 = 3;
/// What the epilogue needs of a tile: 128 values, greatest norm, greatest residual.
const INFO_BYTES: u32 = TILE_ROWS * 4 + 16;
/// Tiles whose chunks can be under way at once.
const INFOS: u32 = 4;
/// What the epilogue needs of a query: [`QueryTerms`].
const TERMS_BYTES: u32 = TILE_QUERIES * 16;
const HEADER_BYTES: u32 = (TERMS_BYTES + INFOS * INFO_BYTES).next_multiple_of(128);

/// Dynamic shared memory of a block, in bytes, for copies of `chunks` chunks.
pub const fn shared_bytes(chunks: u32) -> u32 {
    if chunks <= RESIDENT_CHUNKS {
        HEADER_BYTES + (chunks + RESIDENT_STAGES) * CHUNK_TILE_BYTES
    } else {
        HEADER_BYTES + STREAMED_STAGES * 2 * CHUNK_TILE_BYTES
    }
}

/// The norms of one side of a pair: `norm` ≥ ‖v‖ and ‖v̂‖, `residual` ≥ ‖v − v̂‖.
#[derive(Clone, Copy)]
pub struct Bounds {
    /// Upper bound of the vector's and its copy's norm.
    pub norm: f32,
    /// Upper bound of the norm of what the copy lost.
    pub residual: f32,
}

/// E of the module documentation as a function of the base's side: E = per_norm · norm + per_residual · residual + own +
/// [`Self::of_base`].
#[derive(Clone, Copy)]
pub struct QueryTerms {
    pub(crate) per_norm: f32,
    pub(crate) per_residual: f32,
    pub(crate) own: f32,
}

impl QueryTerms {
    /// Covers rounding; also of the bound itself, upwards.
    pub(crate) const UNIT: f32 = 1.0 / 1_048_576.0;
    /// Below this, f32 products of norms may round to zero.
    const TINY: f32 = 1e-35;

    /// The terms of a query, for copies of `padded` components.
    #[inline(always)]
    pub fn new(metric: u32, padded: u32, x: Bounds) -> QueryTerms {
        let gamma = (padded + 16) as f32 * (1.0 / 4_194_304.0);
        let per_norm = x.residual + gamma * x.norm;
        let up = 1.0 + Self::UNIT;
        if metric == METRIC_L2 {
            let own = Self::UNIT * x.norm * x.norm * up + Self::TINY;
            QueryTerms { per_norm: 2.0 * per_norm * up, per_residual: 2.0 * x.norm * up, own }
        } else {
            QueryTerms { per_norm: (per_norm + Self::UNIT * x.norm) * up, per_residual: x.norm * up, own: Self::TINY }
        }
    }

    /// These terms where `factor` ([`crate::prepare::product_factor`]) says what products stand for; if it left the range of
    /// f32, an infinite bound.
    #[inline(always)]
    pub fn with_factor(self, factor: f32) -> QueryTerms {
        let lost = factor == 0.0 || !factor.is_finite();
        QueryTerms { own: if lost { f32::INFINITY } else { self.own }, ..self }
    }

    /// The part of the bound that depends on the base's side alone.
    #[inline(always)]
    pub fn of_base(metric: u32, y: Bounds) -> f32 {
        if metric == METRIC_L2 { Self::UNIT * y.norm * y.norm * (1.0 + Self::UNIT) } else { 0.0 }
    }

    /// The error bound against `y`, added to `start`.
    #[inline(always)]
    pub fn error_from(&self, start: f32, y: Bounds) -> f32 {
        mul_add_f32(self.per_norm, y.norm, mul_add_f32(self.per_residual, y.residual, start))
    }

    /// The error bound against `y`.
    #[inline(always)]
    pub fn error(&self, metric: u32, y: Bounds) -> f32 {
        self.error_from(self.own + Self::of_base(metric, y), y)
    }
}

/// Which of the base's tiles a launch visits.
///
/// `skip` = 0: tiles 0, stride, 2·stride, ..; else all tiles that are not multiples of `skip`.
#[inline(always)]
pub fn tile_number(visited: u32, stride: u32, skip: u32) -> u32 {
    // `max(1)` shows the compiler that it divides by no zero; a skip of 1 would visit nothing.
    if skip == 0 { visited * stride } else { visited + visited / (skip - 1).max(1) + 1 }
}

/// Body of the filter kernels; parameters at [`filter_append_resident`].
///
/// # Safety
/// As [`filter_append_resident`].
#[inline(always)]
#[expect(clippy::too_many_arguments, reason = "kernel parameters are passed separately so that loads stay ld.global")]
unsafe fn filter<const RESIDENT: bool, const DENSE: bool>(
    queries: *const u16,
    base: *const u16,
    stride: u32,
    query_count: u32,
    row_count: u32,
    metric: u32,
    query_greatest: *const u32,
    base_greatest: *const u32,
    query_norms: *const f32,
    query_residuals: *const f32,
    base_values: *const f32,
    tile_norms: *const f32,
    tile_residuals: *const f32,
    tiles: u32,
    tile_stride: u32,
    tile_skip: u32,
    limits: *const f32,
    out_values: *mut f32,
    out_rows: *mut u32,
    counts: *mut u32,
    out_stride: u32,
) {
    let stages = if RESIDENT { RESIDENT_STAGES } else { STREAMED_STAGES };
    let thread = thread::thread_idx_x();
    let lane = warp::lane_id();
    let first_query = thread::block_idx_x() * TILE_QUERIES;
    let chunks = stride / CHUNK;

    // This block's share of the visited tiles: every so many-th, so that blocks in flight read neighbours.
    let (first_visit, step) = (thread::block_idx_y(), thread::grid_dim_y().max(1));
    if first_visit >= tiles {
        return;
    }
    let last_visit = (tiles - first_visit).div_ceil(step);
    let visited = |visit: u32| first_visit + visit * step;

    // SAFETY: for the whole body, the caller promises the shapes; copies are padded to whole tiles, so tile loads stay inside,
    // stores are checked against query_count, row_count and out_stride, and shared addresses against `shared_bytes`.
    unsafe {
        let terms_at = shared::dynamic::<u8>().cast::<global::F32x4>();
        let infos_at = shared::dynamic::<u8>().add(TERMS_BYTES);
        let queries_at = shared::dynamic::<u8>().add(HEADER_BYTES);
        let (ring, stage_bytes) = if RESIDENT {
            (queries_at.add(chunks * CHUNK_TILE_BYTES), CHUNK_TILE_BYTES)
        } else {
            (queries_at, 2 * CHUNK_TILE_BYTES)
        };
        let query_tile = queries.wrapping_add(first_query as usize * stride as usize);

        let query_scale = scale_of(metric, f32::from_bits(global::load_nc(query_greatest)));
        let base_scale = scale_of(metric, f32::from_bits(global::load_nc(base_greatest)));
        let factor = product_factor(metric, query_scale, base_scale);

        // Rows past the last query have no limit: nothing is kept.
        if thread < TILE_QUERIES {
            let query = (first_query + thread) as usize;
            let mut terms = QueryTerms::new(metric, stride, Bounds { norm: 0.0, residual: 0.0 });
            let mut limit = f32::NEG_INFINITY;
            if query < query_count as usize {
                let x = Bounds {
                    norm: global::load_nc(query_norms.wrapping_add(query)),
                    residual: global::load_nc(query_residuals.wrapping_add(query)),
                };
                terms = QueryTerms::new(metric, stride, x).with_factor(factor);
                if !DENSE {
                    limit = global::load_nc(limits.wrapping_add(query));
                }
            }
            let words = [terms.per_norm, terms.per_residual, terms.own, terms.own + limit];
            terms_at.add(thread).store(global::F32x4(words));
        }

        // The load cursor runs `stages - 1` steps ahead of the compute cursor; a step is one chunk of one tile.
        let (mut load_visit, mut load_chunk, mut load_stage) = (0, 0u32, 0u32);
        let mut load_step = || {
            if load_visit < last_visit {
                let to = ring.add(load_stage * stage_bytes);
                let tile = tile_number(visited(load_visit), tile_stride, tile_skip);
                let rows = base.wrapping_add(tile as usize * TILE_ROWS as usize * stride as usize);
                copy_chunk(to, rows, stride, load_chunk, thread);
                if !RESIDENT {
                    copy_chunk(to.add(CHUNK_TILE_BYTES), query_tile, stride, load_chunk, thread);
                }
                if load_chunk == 0 {
                    let info = infos_at.add((load_visit % INFOS) * INFO_BYTES);
                    let (tile, part) = (tile as usize, thread as usize);
                    if thread < TILE_ROWS / 4 {
                        let from = base_values.wrapping_add(tile * TILE_ROWS as usize + 4 * part);
                        async_copy::copy_16(info.add(16 * thread), from.cast());
                    } else if thread == TILE_ROWS / 4 {
                        async_copy::copy_4(info.add(TILE_ROWS * 4), tile_norms.wrapping_add(tile).cast());
                    } else if thread == TILE_ROWS / 4 + 1 {
                        async_copy::copy_4(info.add(TILE_ROWS * 4 + 4), tile_residuals.wrapping_add(tile).cast());
                    }
                }
                load_stage = if load_stage + 1 == stages { 0 } else { load_stage + 1 };
                load_chunk += 1;
                if load_chunk == chunks {
                    load_chunk = 0;
                    load_visit += 1;
                }
            }
            async_copy::commit();
        };

        if RESIDENT {
            let mut chunk = 0;
            while chunk < chunks {
                copy_chunk(queries_at.add(chunk * CHUNK_TILE_BYTES), query_tile, stride, chunk, thread);
                chunk += 1;
            }
        }
        unroll::<3>(|s| {
            if (s as u32) < stages - 1 {
                load_step();
            }
        });

        let part = Part::new(warp::warp_id(), lane);
        let mut stage = 0;
        let mut visit = 0;
        while visit < last_visit {
            let mut acc = [[[0.0f32; 4]; COLUMN_TILES]; 4];
            let mut chunk = 0;
            while chunk < chunks {
                if RESIDENT {
                    async_copy::wait_group::<{ RESIDENT_STAGES - 2 }>();
                } else {
                    async_copy::wait_group::<{ STREAMED_STAGES - 2 }>();
                }
                // Also orders the last reads of the stage and of the tile's numbers that are refilled now.
                thread::sync_threads();
                load_step();
                // The copies of a tile's numbers branch by lane; `ldmatrix` and `mma` need the whole warp together.
                warp::sync_warp(FULL_MASK);
                let b_at = ring.add(stage * stage_bytes);
                let a_at = if RESIDENT { queries_at.add(chunk * CHUNK_TILE_BYTES) } else { b_at.add(CHUNK_TILE_BYTES) };
                part.multiply_chunk(&mut acc, a_at, b_at);
                stage = if stage + 1 == stages { 0 } else { stage + 1 };
                chunk += 1;
            }

            // The tile's numbers came with its first chunk.
            let tile = tile_number(visited(visit), tile_stride, tile_skip);
            let info = infos_at.add((visit % INFOS) * INFO_BYTES);
            let numbers = info.add(TILE_ROWS * 4).cast::<f32>();
            let y = Bounds { norm: numbers.load(), residual: numbers.add(1).load() };
            let of_base = QueryTerms::of_base(metric, y);
            let column = part.column();
            let mut values = [[0.0f32; 2]; COLUMN_TILES];
            unroll::<COLUMN_TILES>(|j| {
                values[j] = info.add((column + 8 * j as u32) * 4).cast::<global::F32x2>().load().0
            });
            unroll::<4>(|i| {
                unroll::<2>(|half| {
                    let row = part.row(i, half);
                    let query = first_query + row;
                    let [per_norm, per_residual, own, own_and_limit] = terms_at.add(row).load().0;
                    let terms = QueryTerms { per_norm, per_residual, own };
                    let mut scores = [[0.0f32; 2]; COLUMN_TILES];
                    unroll::<COLUMN_TILES>(|j| {
                        unroll::<2>(|e| {
                            scores[j][e] = mul_add_f32(acc[i][j][2 * half + e], factor, values[j][e]);
                        });
                    });
                    if DENSE {
                        if query < query_count {
                            let error = terms.error(metric, y);
                            let out =
                                query as usize * out_stride as usize + (visited(visit) * TILE_ROWS + column) as usize;
                            unroll::<COLUMN_TILES>(|j| {
                                let pair = global::F32x2([scores[j][0] + error, scores[j][1] + error]);
                                global::store(out_values.wrapping_add(out + 8 * j).cast::<global::F32x2>(), pair);
                            });
                        }
                    } else {
                        let limit = terms.error_from(own_and_limit + of_base, y);
                        let mut hit = false;
                        #[expect(clippy::neg_cmp_op_on_partial_ord, reason = "NaN on either side must keep the row")]
                        unroll::<COLUMN_TILES>(|j| hit |= !(scores[j][0] > limit) | !(scores[j][1] > limit));
                        if hit && query < query_count {
                            let error = terms.error(metric, y);
                            let first = tile * TILE_ROWS + column;
                            #[expect(clippy::neg_cmp_op_on_partial_ord, reason = "as above")]
                            let keeps = |j: usize, e: usize| {
                                !(scores[j][e] > limit) & (first + ((8 * j + e) as u32) < row_count)
                            };
                            // One atomic for all pairs of the lane in this row: each is a round trip to L2.
                            let mut kept = 0;
                            unroll::<{ 2 * COLUMN_TILES }>(|je| kept += keeps(je / 2, je % 2) as u32);
                            let mut place = atomic::add_u32(counts.wrapping_add(query as usize), kept);
                            unroll::<{ 2 * COLUMN_TILES }>(|je| {
                                let (j, e) = (je / 2, je % 2);
                                if keeps(j, e) {
                                    if place < out_stride {
                                        let at = query as usize * out_stride as usize + place as usize;
                                        global::store(out_values.wrapping_add(at), scores[j][e] + error);
                                        global::store(out_rows.wrapping_add(at), first + (8 * j + e) as u32);
                                    }
                                    place += 1;
                                }
                            });
                        }
                    }
                });
            });
            visit += 1;
        }
        async_copy::wait_all();
    }
}

macro_rules! define_kernels {
    ($($(#[$doc:meta])* $name:ident: $resident:literal, $dense:literal, $blocks:literal;)*) => {$(
        $(#[$doc])*
        ///
        /// `queries` and `base` are f16 copies of `stride` components a row (a multiple of 64; the resident kernels take at
        /// most [`RESIDENT_CHUNKS`] · 64), padded to whole tiles of 128 rows; the other inputs are what
        /// [`crate::prepare`] wrote for them. The launch visits `tiles` tiles as [`tile_number`] says.
        ///
        /// Grid: (ceil(query_count / 128), any share of the tiles), blocks of 256 threads, [`shared_bytes`] of dynamic shared
        /// memory.
        ///
        /// # Safety
        /// All pointers cover the shapes above and below.
        #[kernel(max_threads = 256, min_blocks = $blocks)]
        pub unsafe fn $name(
            queries: *const u16, base: *const u16, stride: u32, query_count: u32, row_count: u32, metric: u32,
            query_greatest: *const u32, base_greatest: *const u32, query_norms: *const f32, query_residuals: *const f32,
            base_values: *const f32, tile_norms: *const f32, tile_residuals: *const f32, tiles: u32, tile_stride: u32,
            tile_skip: u32, limits: *const f32, out_values: *mut f32, out_rows: *mut u32,
            counts: *mut u32, out_stride: u32,
        ) {
            // SAFETY: the same contract.
            unsafe {
                filter::<$resident, $dense>(
                    queries, base, stride, query_count, row_count, metric, query_greatest, base_greatest, query_norms,
                    query_residuals, base_values, tile_norms, tile_residuals, tiles, tile_stride, tile_skip, limits,
                    out_values, out_rows, counts, out_stride,
                )
            }
        }
    )*};
}

define_kernels! {
    /// Writes upper bounds u: visited tile t, row r of it, goes to column 128·t + r of row `query` of `out_values` (row-major,
    /// `out_stride` ≥ 128 · tiles, even). `limits`, `out_rows` and `counts` are not used. Queries resident.
    filter_dense_resident: true, true, 2;
    /// [`filter_dense_resident`] for any dimension: queries are streamed with the base. (Two blocks an SM would spill a
    /// register; this pass sees the sample only.)
    filter_dense_streamed: false, true, 1;
    /// Appends (u, row) to the list of each query whose lower bound is at most `limits[query]`: entry p goes
    /// to place query · out_stride + p of `out_values` and `out_rows` if p < out_stride, and `counts[query]` counts all of
    /// them, also those that found no place. Queries resident.
    filter_append_resident: true, false, 2;
    /// [`filter_append_resident`] for any dimension: queries are streamed with the base.
    filter_append_streamed: false, false, 2;
}
