//! The nearest centroid of every point, by a half-precision matrix product with a proof (k-means, inverted lists; paper
//! section 5).
//!
//! # Problem
//! For points x and centroids c find argmin ‖x − c‖² or argmax ⟨x, c⟩, by the canonical distance ([`crate::product::canonical`])
//! and lower number: k-selection with k = 1, where every point meets every centroid and nothing but one number a point
//! is kept.
//!
//! # Algorithm
//! As in [`crate::flat::filter`]: v is the score of the f16 copies (‖c‖² − 2⟨x, c⟩ or −⟨x, c⟩) and E(x, c) ≥ |v − score| its
//! proved error bound, so v ± E are bounds of the true score. A point keeps `best`, the smallest upper bound so far,
//! and a short list of candidates:
//!
//! ```text
//! start:       best = v + E of the centroid that was nearest before, if there was one      // see below
//! first tile:  else best = min over its centroids of v + E      // a first look: keeps the lists short
//! each tile:   for each c with v − E <= best:  best = min(best, v + E); append (v − E, c) to the point's list
//! after 2, 4, 8, .. tiles and at the end:  drop from the list what has v − E > best       // if more than half full
//! one left:    it is the nearest, certainly
//! several:     point and list join the queue of `pending` points         // canonical distances to the list: `settle`
//! overflow:    the point joins the queue of `unbounded` points           // canonical distances to all: `settle_all`
//! ```
//!
//! Where the bound of a point against the greatest norm and residual of all centroids is infinite ([`crate::product::bounds`]) it
//! proves nothing, and the point is unbounded at once. So labels equal the definition for any input; adversarial input costs time
//! only.
//!
//! An upper bound of any centroid will do for a start. In an iteration of k-means the best at hand is that of the
//! centroid that was nearest before the centroids moved: nearly always it is the nearest still, or few are nearer. A
//! point then offers little more than one candidate to its list, instead of one for each new minimum (ln of the number
//! of tiles, and those of the first), and the product is seldom interrupted.
//!
//! Either way the number of new minima between tile t and 2t is at most ln 2 a point on data in random order, so lists
//! of [`LIST`] overflow only where that many centroids lie within 2E of the nearest: duplicates.
//!
//! # How it maps to the machine
//! 1. A block owns 128 points and walks over all tiles of 128 centroids ([`crate::product::tile`]), through a ring of stages
//!    filled by `cp.async` across tile borders. Up to [`RESIDENT_CHUNKS`] · 64 components the points stay in shared
//!    memory.
//! 2. Two blocks an SM: one's barriers and list work hide behind the other's product. That is what sets ring and lists:
//!    113 KiB (by warpgroups).
//! 3. The epilogue is one FMA and one minimum a pair, and one compare for a lane's pairs of a row (8 by warps, 32 by warpgroups). The
//!    compare uses the greatest norm and residual of the tile; only what passes is tested with its own, so that one far
//!    centroid does not make its 127 neighbours candidates. Compares of all rows come first, then one branch for all
//!    that is rare, taken by the whole warp. There a lane walks over the bits of what passed: the test is in the code
//!    once a row, not once a pair, for the sake of the instruction cache.
//! 4. Centroids that were nearest before are read beside the first loads of the pipeline, eight lanes a row; products
//!    with their points are made from shared memory while the first tiles arrive.
//!
//! # Cost
//! 2·n·k·d operations. On an H200, 1,000,000 points × 4096 centroids × 128 (one launch): 2.68 ms by warpgroups (392 TFLOP/s) with labels of
//! an iteration before, 3.12 without; 4.06 and 4.87 by warps.
//!
//! # What lost
//! By warpgroups: compares for eight pairs of a row, as [`crate::flat::filter`] has them: 2.85 ms and 3.69.

use cuda_std::launch::LaunchConfig;
use cuda_std::math::{f16_to_f32, max_f32, min_f32, mul_add_f32};
use cuda_std::warp::FULL_MASK;
use cuda_std::{Ptr, PtrMut, async_copy, atomic, global, kernel, shared, thread, unroll, warp};

use crate::NO_ROW;
pub use crate::kmeans::nearest_lists::LIST;
use crate::kmeans::nearest_lists::{LISTS_BYTES, Lists};
use crate::product::bounds::{Bounds, QueryTerms};
use crate::product::metric::{Metric, product_factor, scale_of};
use crate::product::tile::{
    CHUNK, CHUNK_TILE_BYTES, ChunkCopy, Instruction, LEAST_SHARED_BYTES, MmaSync, Product, RESIDENT_CHUNKS,
    ROWS_AT_ONCE, Residency, THREADS, TILE_ROWS, Wgmma, entry_of, part_offset, wait_for_stage,
};
use crate::select::entry::key_of;

/// Columns of a lane, in pairs, whose values it keeps while it goes from row to row.
const FEW_COLUMNS: usize = 4;
/// What the epilogue needs of a tile of centroids: values, norms, residuals, the greatest norm and residual.
const INFO_BYTES: u32 = 3 * TILE_ROWS * 4 + 16;
/// Rows of a tile of which a thread works on one 16-byte part.
const ROWS_A_THREAD: usize = (TILE_ROWS / ROWS_AT_ONCE) as usize;

/// Tiles whose chunks can be under way, or in use, at once.
const INFOS: u32 = 4;
const HEADER_BYTES: u32 = (LISTS_BYTES + INFOS * INFO_BYTES).next_multiple_of(1024);

/// Dynamic shared memory of a block, in bytes, for copies of `chunks` chunks.
const fn shared_bytes(instruction: Instruction, chunks: u32) -> u32 {
    HEADER_BYTES + instruction.ring().bytes(chunks)
}

const _: () = assert!(shared_bytes(Instruction::MmaSync, 2) <= LEAST_SHARED_BYTES);
const _: () = assert!(shared_bytes(Instruction::MmaSync, 3) <= LEAST_SHARED_BYTES);

/// Reserves a place in a queue for each lane with `wanted`; the result means something on those lanes. All 32 lanes
/// arrive.
///
/// # Safety
/// `size` is a word of global memory that is changed by atomics only.
#[inline(always)]
pub(crate) unsafe fn queue_place(size: *mut u32, wanted: bool, lane: u32) -> u32 {
    let wanting = warp::ballot(FULL_MASK, wanted);
    let mut first = 0;
    if lane == 0 && wanting != 0 {
        // SAFETY: as the caller promises.
        first = unsafe { atomic::add_u32(size, wanting.count_ones()) };
    }
    warp::shuffle_idx(FULL_MASK, first, 0) + (wanting & ((1 << lane) - 1)).count_ones()
}

/// `sum` and the product of eight f16 components of two rows.
#[inline(always)]
fn product(sum: f32, x: [u32; 4], y: [u32; 4]) -> f32 {
    let mut sum = sum;
    unroll::<4>(|word| {
        let low = |word: u32| f16_to_f32(word as u16);
        let high = |word: u32| f16_to_f32((word >> 16) as u16);
        sum = mul_add_f32(low(x[word]), low(y[word]), sum);
        sum = mul_add_f32(high(x[word]), high(y[word]), sum);
    });
    sum
}

/// Finds the nearest centroid of each point, or leaves the point in a queue (module documentation).
///
/// A point whose nearest centroid is proved gets it in `labels`. Every other point goes to a place p of a queue, in no order: with its
/// candidates to the pending ones, or to the unbounded ones.
///
/// # Safety
/// The arrays are as long as the fields say; the copies are padded to whole tiles of 128 rows; there is at least one centroid. The
/// residency of the key is that of the launch ([`Self::residency`]).
#[kernel(
    key = (Instruction, Residency),
    max_threads = 256,
    min_blocks = 2,
    (Instruction::MmaSync, Residency::Resident) => assign_resident = assign::<MmaSync, 4, 4, true>,
    (Instruction::MmaSync, Residency::Streamed) => assign_streamed = assign::<MmaSync, 4, 4, false>,
    (Instruction::Wgmma, Residency::Resident) => assign_resident_sm90(arch = "sm_90a") = assign::<Wgmma, 1, 16, true>,
    (Instruction::Wgmma, Residency::Streamed) => assign_streamed_sm90(arch = "sm_90a") = assign::<Wgmma, 1, 16, false>,
)]
pub struct Assign {
    /// f16 copies of the points: rows of `stride` components.
    pub points: Ptr<u16>,
    /// f16 copies of the centroids: rows of `stride` components.
    pub centroids: Ptr<u16>,
    /// Components from one copy to the next: a multiple of [`CHUNK`], [`MOST_COMPONENTS`](crate::product::bounds::MOST_COMPONENTS) at most.
    pub stride: u32,
    /// Points without padding.
    pub point_count: u32,
    /// Centroids without padding.
    pub cluster_count: u32,
    /// The metric.
    pub metric: Metric,
    /// What [`crate::product::prepare::Greatest`] found for the points: one word.
    pub point_greatest: Ptr<u32>,
    /// What [`crate::product::prepare::Greatest`] found for the centroids: one word.
    pub centroid_greatest: Ptr<u32>,
    /// A bound of the norm of each point.
    pub point_norms: Ptr<f32>,
    /// A bound of what the copy of each point lost.
    pub point_residuals: Ptr<f32>,
    /// Values, norms and residuals of the centroids: three arrays of whole tiles, one after the other. The centroids'
    /// number is padded to whole tiles in each.
    pub centroid_numbers: Ptr<f32>,
    /// The greatest norm of each tile of centroids.
    pub tile_norms: Ptr<f32>,
    /// The greatest residual of each tile of centroids.
    pub tile_residuals: Ptr<f32>,
    /// The greatest norm and the greatest residual of all centroids: two numbers.
    pub set_bounds: Ptr<f32>,
    /// Not 0: `labels` has a guess for each point, at best the centroid that was nearest before the centroids moved. Any number will
    /// do; a good one saves time.
    pub labelled: u32,
    /// The label of each point: becomes the nearest centroid where it is proved.
    pub labels: PtrMut<u32>,
    /// The lengths of the queues of pending and of unbounded points: two words, 0 at first.
    pub queue_sizes: PtrMut<u32>,
    /// The queue of pending points, with room for all `point_count`.
    pub pending: PtrMut<u32>,
    /// The candidates of the pending points: [`LIST`] for each, filled up with [`NO_ROW`].
    pub pending_lists: PtrMut<u32>,
    /// The queue of unbounded points, with room for all `point_count`.
    pub unbounded: PtrMut<u32>,
}

impl Assign {
    /// Whether the points stay in shared memory.
    pub fn residency(&self) -> Residency {
        Residency::of(self.stride)
    }

    /// Tiles of points.
    pub fn tiles(&self) -> u32 {
        self.point_count.div_ceil(TILE_ROWS)
    }

    /// A block a tile of points.
    pub fn config(&self, instruction: Instruction) -> LaunchConfig {
        LaunchConfig::linear(self.tiles() as u64, THREADS).with_shared(shared_bytes(instruction, self.stride / CHUNK))
    }
}

/// # Safety
/// As [`Assign`].
#[inline(always)]
unsafe fn assign<P: Product<ROWS, COLUMNS>, const ROWS: usize, const COLUMNS: usize, const RESIDENT: bool>(
    launch: Assign,
) {
    let Assign { points, centroids, stride, point_count, cluster_count, metric, .. } = launch;
    let Assign { point_greatest, centroid_greatest, point_norms, point_residuals, centroid_numbers, .. } = launch;
    let Assign { tile_norms, tile_residuals, set_bounds, labelled, labels, .. } = launch;
    let Assign { queue_sizes, pending, pending_lists, unbounded, .. } = launch;
    let stages = P::RING.stages(RESIDENT);
    let thread = thread::thread_idx_x();
    let lane = warp::lane_id();
    let first_point = thread::block_idx_x() * TILE_ROWS;
    let chunks = stride / CHUNK;
    let tiles = cluster_count.div_ceil(TILE_ROWS);

    // SAFETY: for the whole body, the caller promises the shapes; copies are padded to whole tiles, so tile loads stay
    // inside, stores are checked against point_count and cluster_count, and shared addresses lie inside `shared_bytes`.
    unsafe {
        let lists = Lists::at(shared::dynamic::<u8>());
        let infos_at = shared::dynamic::<u8>().add(LISTS_BYTES);
        let points_at = shared::dynamic::<u8>().add(HEADER_BYTES);
        let (ring, stage_bytes) = if RESIDENT {
            (points_at.add(chunks * CHUNK_TILE_BYTES), CHUNK_TILE_BYTES)
        } else {
            (points_at, 2 * CHUNK_TILE_BYTES)
        };
        let point_tile = points.wrapping_add(first_point as usize * stride as usize);

        let point_scale = scale_of(metric, f32::from_bits(global::load_nc(*point_greatest)));
        let centroid_scale = scale_of(metric, f32::from_bits(global::load_nc(*centroid_greatest)));
        let scale = product_factor(metric, point_scale, centroid_scale);

        // Rows past the last point take no candidates, nor do points without a bound: those count as overflown from the
        // start.
        if thread < TILE_ROWS {
            let point = (first_point + thread) as usize;
            let exists = point < point_count as usize;
            let mut x = Bounds { norm: 0.0, residual: 0.0 };
            if exists {
                x.norm = global::load_nc(point_norms.wrapping_add(point));
                x.residual = global::load_nc(point_residuals.wrapping_add(point));
            }
            let all =
                Bounds { norm: global::load_nc(*set_bounds), residual: global::load_nc(set_bounds.wrapping_add(1)) };
            let terms = QueryTerms::new(metric, stride, x).with_factor(scale);
            let bounded = terms.error(metric, all) < f32::INFINITY;
            let start = if exists && bounded { f32::INFINITY } else { f32::NEG_INFINITY };
            let [a, b, c] = [terms.per_norm.to_bits(), terms.per_residual.to_bits(), terms.own.to_bits()];
            lists.states.add(thread).store(global::U32x4([a, b, c, key_of(start)]));
            lists.sizes.add(thread).store(if exists && !bounded { LIST + 1 } else { 0 });
        }

        // The load cursor runs `stages - 1` steps ahead of the compute cursor; a step is one chunk of one tile.
        let copy = ChunkCopy::new(thread, stride);
        let (mut load_tile, mut load_chunk, mut load_stage) = (0u32, 0u32, 0u32);
        let mut load_step = || {
            if load_tile < tiles {
                let to = ring.add(load_stage * stage_bytes);
                if load_chunk == 0 {
                    let info = infos_at.add((load_tile % INFOS) * INFO_BYTES);
                    let tile = load_tile as usize;
                    if thread < 3 * TILE_ROWS / 4 {
                        // A warp for each of the three numbers of a centroid.
                        let array = (thread / (TILE_ROWS / 4) * tiles) as usize;
                        let from = centroid_numbers.wrapping_add((array + tile) * TILE_ROWS as usize);
                        async_copy::copy_16(info.add(16 * thread), from.wrapping_add(4 * lane as usize).cast());
                    } else if thread == 3 * TILE_ROWS / 4 {
                        async_copy::copy_4(info.add(3 * TILE_ROWS * 4), tile_norms.wrapping_add(tile).cast());
                    } else if thread == 3 * TILE_ROWS / 4 + 1 {
                        async_copy::copy_4(info.add(3 * TILE_ROWS * 4 + 4), tile_residuals.wrapping_add(tile).cast());
                    }
                }
                let at = load_tile as usize * (TILE_ROWS * stride) as usize + (load_chunk * CHUNK) as usize;
                copy.copy(to, copy.start(centroids.wrapping_add(at)));
                if !RESIDENT {
                    let from = copy.start(point_tile).wrapping_add((load_chunk * CHUNK) as usize);
                    copy.copy(to.add(CHUNK_TILE_BYTES), from);
                }
                load_stage = if load_stage + 1 == stages { 0 } else { load_stage + 1 };
                load_chunk += 1;
                if load_chunk == chunks {
                    load_chunk = 0;
                    load_tile += 1;
                }
            }
            async_copy::commit();
        };

        if RESIDENT {
            let mut chunk = 0;
            while chunk < chunks {
                let from = copy.start(point_tile).wrapping_add((chunk * CHUNK) as usize);
                copy.copy(points_at.add(chunk * CHUNK_TILE_BYTES), from);
                chunk += 1;
            }
        }
        unroll::<3>(|s| {
            if (s as u32) < stages - 1 {
                load_step();
            }
        });

        if labelled != 0 {
            // Sums in f32, of products that are exact in it: they round by less than E allows the tensor cores.
            // Eight lanes a row, one 16-byte part of each chunk a lane, four rows a thread.
            let (row, eighth) = (thread / 8, thread % 8);
            let mut rows = [*centroids; ROWS_A_THREAD];
            // Lane i of the eight keeps what belongs to the i-th of the rows.
            let mut guess = 0;
            unroll::<ROWS_A_THREAD>(|i| {
                let point = first_point + row + i as u32 * ROWS_AT_ONCE;
                let mut label = 0;
                if point < point_count {
                    label = global::load(labels.wrapping_add(point as usize)).min(cluster_count - 1);
                }
                rows[i] = centroids.wrapping_add(label as usize * stride as usize + 8 * eighth as usize);
                guess = if eighth == i as u32 { label } else { guess };
            });
            let load = |chunk: u32| {
                let mut parts = [[0u32; 4]; ROWS_A_THREAD];
                unroll::<ROWS_A_THREAD>(|i| {
                    parts[i] = global::load_nc(rows[i].wrapping_add((chunk * CHUNK) as usize).cast::<global::U32x4>()).0
                });
                parts
            };
            let numbers = centroid_numbers.wrapping_add(guess as usize);
            let of_tiles = (tiles * TILE_ROWS) as usize;
            let value = global::load_nc(numbers);
            let norm = global::load_nc(numbers.wrapping_add(of_tiles));
            let residual = global::load_nc(numbers.wrapping_add(2 * of_tiles));
            let mut products = [0.0f32; ROWS_A_THREAD];
            if RESIDENT {
                // All loads first: they overlap with each other, and with those of the points.
                let mut parts = [[[0u32; 4]; ROWS_A_THREAD]; RESIDENT_CHUNKS as usize];
                unroll::<{ RESIDENT_CHUNKS as usize }>(|chunk| {
                    if (chunk as u32) < chunks {
                        parts[chunk] = load(chunk as u32);
                    }
                });
                wait_for_stage(stages);
                thread::sync_threads();
                unroll::<{ RESIDENT_CHUNKS as usize }>(|chunk| {
                    if (chunk as u32) < chunks {
                        unroll::<ROWS_A_THREAD>(|i| {
                            let row = row + i as u32 * ROWS_AT_ONCE;
                            let at = points_at.add(chunk as u32 * CHUNK_TILE_BYTES + part_offset(row, eighth));
                            products[i] = product(products[i], at.cast::<global::U32x4>().load().0, parts[chunk][i]);
                        });
                    }
                });
            } else {
                thread::sync_threads();
                let mut chunk = 0;
                while chunk < chunks {
                    let parts = load(chunk);
                    unroll::<ROWS_A_THREAD>(|i| {
                        let row = row + i as u32 * ROWS_AT_ONCE;
                        let at = (row * stride + chunk * CHUNK + 8 * eighth) as usize;
                        let x = global::load_nc(point_tile.wrapping_add(at).cast::<global::U32x4>()).0;
                        products[i] = product(products[i], x, parts[i]);
                    });
                    chunk += 1;
                }
            }
            let mut own = 0.0;
            unroll::<ROWS_A_THREAD>(|i| {
                let mut sum = products[i];
                sum += warp::shuffle_xor(FULL_MASK, sum, 1);
                sum += warp::shuffle_xor(FULL_MASK, sum, 2);
                sum += warp::shuffle_xor(FULL_MASK, sum, 4);
                own = if eighth == i as u32 { sum } else { own };
            });
            if eighth < ROWS_A_THREAD as u32 {
                let row = row + eighth * ROWS_AT_ONCE;
                let (terms, best) = lists.state(row);
                // Rows that take no candidates keep it so.
                if best == f32::INFINITY {
                    let upper = mul_add_f32(own, scale, value) + terms.error(metric, Bounds { norm, residual });
                    lists.best(row).store(key_of(upper));
                }
            }
        }

        let part = P::new(warp::warp_id(), lane);
        let mut acc = [[[0.0f32; 4]; COLUMNS]; ROWS];
        let (mut stage, mut tile) = (0, 0);
        while tile < tiles {
            P::clear(&mut acc);
            let mut chunk = 0;
            while chunk < chunks {
                wait_for_stage(stages);
                P::publish();
                // Also orders the last reads of the stage and of the tile's numbers that are refilled now, and
                // compaction before what is appended next.
                thread::sync_threads();
                let b_at = ring.add(stage * stage_bytes);
                let a_at = if RESIDENT { points_at.add(chunk * CHUNK_TILE_BYTES) } else { b_at.add(CHUNK_TILE_BYTES) };
                part.multiply_chunk(&mut acc, a_at, b_at, chunk > 0, &mut load_step);
                stage = if stage + 1 == stages { 0 } else { stage + 1 };
                chunk += 1;
            }

            // The tile's numbers came with its first chunk.
            let values_at = infos_at.add((tile % INFOS) * INFO_BYTES).cast::<f32>();
            let (norms_at, residuals_at) = (values_at.add(TILE_ROWS), values_at.add(2 * TILE_ROWS));
            let greatest = values_at.add(3 * TILE_ROWS);
            let all = Bounds { norm: greatest.load(), residual: greatest.add(1).load() };
            let of_all = QueryTerms::of_base(metric, all);
            let column = part.column();
            let load_value = |j: usize| values_at.add(column + 8 * j as u32).cast::<global::F32x2>().load().0;
            // Few stay in registers, many would push scores out of them.
            let load_few = || {
                let mut few = [[0.0f32; 2]; FEW_COLUMNS];
                if COLUMNS <= FEW_COLUMNS {
                    unroll::<COLUMNS>(|j| few[j] = load_value(j));
                }
                few
            };
            let value = |few: &[[f32; 2]; FEW_COLUMNS], j: usize| {
                if COLUMNS <= FEW_COLUMNS { few[j % FEW_COLUMNS] } else { load_value(j) }
            };
            let score = |value: [f32; 2], i: usize, half: usize, j: usize, e: usize| {
                mul_add_f32(acc[i][j][2 * half + e], scale, value[e])
            };
            // Of each of the two rows i.
            let least = |few: &[[f32; 2]; FEW_COLUMNS], i: usize| {
                let mut least = [f32::INFINITY; 2];
                unroll::<COLUMNS>(|j| {
                    let value = value(few, j);
                    unroll::<2>(|half| unroll::<2>(|e| least[half] = min_f32(least[half], score(value, i, half, j, e))))
                });
                least
            };

            if tile == 0 && labelled == 0 {
                // The greatest bounds of the lane's own columns: one far centroid spoils the look of one lane of sixteen.
                let mut own = Bounds { norm: 0.0, residual: 0.0 };
                unroll::<COLUMNS>(|j| {
                    unroll::<2>(|e| {
                        let place = column + (8 * j + e) as u32;
                        own.norm = max_f32(own.norm, norms_at.add(place).load());
                        own.residual = max_f32(own.residual, residuals_at.add(place).load());
                    })
                });
                let few = load_few();
                unroll::<ROWS>(|i| {
                    let least = least(&few, i);
                    unroll::<2>(|half| {
                        let row = part.row(i, half);
                        let (terms, _) = lists.state(row);
                        let mut upper = least[half] + terms.error(metric, own);
                        upper = min_f32(upper, warp::shuffle_xor(FULL_MASK, upper, 1));
                        upper = min_f32(upper, warp::shuffle_xor(FULL_MASK, upper, 2));
                        if lane.is_multiple_of(4) {
                            atomic::shared_min_u32(lists.best(row), key_of(upper));
                        }
                    });
                });
                thread::sync_threads();
            }

            // Loaded behind the barrier of a first look, so that the compiler keeps nothing of that in registers.
            let few = load_few();
            // All compares without a branch, so that loads overlap; then one branch for all that is rare.
            let limit = |row: u32| {
                let (terms, best) = lists.state(row);
                terms.error_from(terms.own + of_all + best, all)
            };
            let mut hits = 0u32;
            #[expect(clippy::neg_cmp_op_on_partial_ord, reason = "NaN on either side must keep the centroid")]
            unroll::<ROWS>(|i| {
                if i == 2 {
                    // Limits of the second half are loaded behind this: with all of them under way registers spill.
                    warp::sync_warp(FULL_MASK);
                }
                let limits = [limit(part.row(i, 0)), limit(part.row(i, 1))];
                let least = least(&few, i);
                unroll::<2>(|half| hits |= (!(least[half] > limits[half]) as u32) << (2 * i + half));
            });
            // Of the whole warp, which then branches as one; that also keeps eight conditions out of the predicates.
            let hits = warp::reduce_or(FULL_MASK, hits);
            if hits != 0 {
                unroll::<ROWS>(|i| {
                    unroll::<2>(|half| {
                        if hits & (1 << (2 * i + half)) != 0 {
                            let row = part.row(i, half);
                            // By now another warp may have lowered it.
                            let limit = limit(row);
                            let mut few_scores = [[0.0f32; 2]; FEW_COLUMNS];
                            let mut passing = 0u32;
                            unroll::<COLUMNS>(|j| {
                                let value = value(&few, j);
                                #[expect(clippy::neg_cmp_op_on_partial_ord, reason = "as above")]
                                unroll::<2>(|e| {
                                    let score = score(value, i, half, j, e);
                                    passing |= (!(score > limit) as u32) << (2 * j + e);
                                    if COLUMNS <= FEW_COLUMNS {
                                        few_scores[j % FEW_COLUMNS][e] = score;
                                    }
                                })
                            });
                            let (terms, _) = lists.state(row);
                            while passing != 0 {
                                let at = passing.trailing_zeros();
                                passing &= passing - 1;
                                let place = column + 8 * (at / 2) + at % 2;
                                let (norm, residual) = (norms_at.add(place).load(), residuals_at.add(place).load());
                                let error = terms.error(metric, Bounds { norm, residual });
                                let score = if COLUMNS <= FEW_COLUMNS {
                                    entry_of::<FEW_COLUMNS>(|j, e| few_scores[j][e], at)
                                } else {
                                    let product = entry_of::<COLUMNS>(|j, e| acc[i][j][2 * half + e], at);
                                    mul_add_f32(product, scale, values_at.add(place).load())
                                };
                                lists.offer(row, score, error, tile * TILE_ROWS + place, cluster_count);
                            }
                        }
                    });
                });
            }
            tile += 1;
            if tile > 1 && tile.is_power_of_two() && tile < tiles {
                thread::sync_threads();
                if thread < TILE_ROWS && lists.sizes.add(thread).load() > LIST / 2 {
                    lists.compact(thread);
                }
            }
        }
        async_copy::wait_all();
        thread::sync_threads();

        if thread < TILE_ROWS {
            let point = first_point + thread;
            let exists = point < point_count;
            let size = lists.compact(thread);
            // An empty list would mean a NaN: nothing is proved then either.
            let lost = exists && (size > LIST || size == 0);
            let several = exists && size > 1 && size <= LIST;
            if exists && size == 1 {
                global::store(labels.wrapping_add(point as usize), lists.clusters.add(thread).load());
            }
            let place = queue_place(*queue_sizes, several, lane) as usize;
            if several {
                global::store(pending.wrapping_add(place), point);
                unroll::<{ LIST as usize }>(|entry| {
                    let mut cluster = NO_ROW;
                    if (entry as u32) < size {
                        cluster = lists.clusters.add(entry as u32 * TILE_ROWS + thread).load();
                    }
                    global::store(pending_lists.wrapping_add(place * LIST as usize + entry), cluster);
                });
            }
            let place = queue_place(queue_sizes.wrapping_add(1), lost, lane) as usize;
            if lost {
                global::store(unbounded.wrapping_add(place), point);
            }
        }
    }
}
