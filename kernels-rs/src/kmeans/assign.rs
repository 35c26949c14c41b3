//! The nearest centroid of every point, by a half-precision matrix product with a proof (k-means, inverted lists; paper
//! section 5).
//!
//! # Problem
//! For points x and centroids c find argmin ‖x − c‖² or argmax ⟨x, c⟩, by the canonical distance
//! ([`crate::product::canonical`]) and lower number. This is k-selection with k = 1: every point is compared with every
//! centroid, and the result is one number for each point.
//!
//! # Algorithm
//! As in [`crate::flat::filter`], v is the score of the f16 copies (‖c‖² − 2⟨x, c⟩ or −⟨x, c⟩) and E(x, c) ≥ |v −
//! score| its proved error bound, so v ± E are bounds of the true score. A point has `best`, the smallest upper bound
//! so far, and a short list of candidates:
//!
//! ```text
//! start:       best = v + E of the centroid that was nearest before, if there was one      // see below
//! first tile:  else best = min over its centroids of v + E      // a first look: keeps the lists short
//! each tile:   for each c with v − E <= best:  best = min(best, v + E); append (v − E, c) to the point's list
//! after 2, 4, 8, .. tiles and at the end:  drop entries with v − E > best from the list       // if more than half full
//! one left:    it is the nearest; this is proved
//! several:     point and list join the queue of `pending` points         // canonical distances to the list: `settle`
//! overflow:    the point joins the queue of `unbounded` points           // canonical distances to all: `settle_all`
//! ```
//!
//! If the bound of a point against the greatest norm and residual of all centroids is infinite
//! ([`crate::product::bounds`]), it proves nothing, and the point is unbounded at once. So labels equal the definition
//! for any input; adversarial input costs only time.
//!
//! The upper bound of any centroid is a valid start. In an iteration of k-means the best one available is that of the
//! centroid that was nearest before the centroids moved: nearly always it is still the nearest, or few are nearer. Then
//! a point adds little more than one candidate to its list, instead of one for each new minimum (ln of the number of
//! tiles, plus those of the first tile), and the product is seldom interrupted.
//!
//! In both cases the number of new minima between tile t and 2t is at most ln 2 for each point on data in random order.
//! So lists of [`LIST`] overflow only if that many centroids lie within 2E of the nearest: duplicates.
//!
//! # How it maps to the machine
//! 1. A block has 128 points and iterates over all tiles of 128 centroids ([`crate::product::mainloop`]). Points of up
//!    to [`RESIDENT_CHUNKS`] · 64 components stay in shared memory.
//! 2. Two blocks run on a multiprocessor: the product of one hides the barriers and list work of the other. This
//!    determines the sizes of ring and lists: 113 KiB (with `wgmma`).
//! 3. The epilogue takes one FMA and one minimum for each pair, and one compare for a lane's pairs of a row (8 with
//!    `mma.sync`, 32 with `wgmma`). The compare uses the greatest norm and residual of the tile. Only centroids that
//!    pass are tested with their own numbers, so one far centroid does not make its 127 neighbours candidates. Compares
//!    of all rows come first, then one branch for all rare cases, which the whole warp takes. There a lane iterates
//!    over the bits of the centroids that passed: the code has the test once for a row, not once for a pair, which
//!    saves instruction cache.
//! 4. Centroids that were nearest before are read during the first loads of the pipeline, eight lanes for a row. Their
//!    products with the points are computed from shared memory while the first tiles arrive.
//!
//! # Cost
//! 2·n·k·d operations. On an H200, 1,000,000 points × 4096 centroids × 128 (one launch): 2.68 ms with `wgmma` (392
//! TFLOP/s) with labels of an iteration before, 3.12 without; 4.06 and 4.87 with `mma.sync`.
//!
//! # What lost
//! With `wgmma`, compares for eight pairs of a row, as in [`crate::flat::filter`]: 2.85 ms and 3.69.

use cuda_std::launch::LaunchConfig;
use cuda_std::math::{f16_to_f32, max_f32, min_f32, mul_add_f32};
use cuda_std::shared::SharedPtr;
use cuda_std::warp::FULL_MASK;
use cuda_std::{Ptr, PtrMut, async_copy, atomic, device_inline, global, group, kernel, shared, thread, unroll, warp};

use crate::NO_ROW;
pub use crate::kmeans::nearest_lists::LIST;
use crate::kmeans::nearest_lists::{LISTS_BYTES, Lists};
use crate::product::bounds::{Bounds, QueryTerms};
use crate::product::instruction::{Instruction, MmaSync, Scores, TileProduct, Wgmma, entry_of};
use crate::product::mainloop::{Epilogue, Operands, Pass, wait_for_stage};
use crate::product::metric::{Metric, product_factor, scale_of};
use crate::product::ring::{RESIDENT_CHUNKS, Residency};
use crate::product::tile::{
    CHUNK, CHUNK_TILE_BYTES, ChunkCopy, LEAST_SHARED_BYTES, ROWS_A_THREAD, ROWS_AT_ONCE, THREADS, TILE_ROWS,
    part_offset,
};
use crate::select::entry::key_of;

/// Largest number of column pairs of a lane whose values stay in registers from row to row.
const FEW_COLUMNS: usize = 4;
/// Bytes of the data of a tile of centroids that the epilogue needs: values, norms, residuals, the greatest norm and
/// residual.
const INFO_BYTES: u32 = 3 * TILE_ROWS * 4 + 16;

/// Number of tiles whose chunks can be in flight, or in use, at once.
const INFOS: u32 = 4;
const HEADER_BYTES: u32 = (LISTS_BYTES + INFOS * INFO_BYTES).next_multiple_of(1024);

/// Dynamic shared memory of a block, in bytes, for f16 copies of `chunks` chunks.
const fn shared_bytes(instruction: Instruction, chunks: u32) -> u32 {
    HEADER_BYTES + instruction.ring().bytes(chunks)
}

const _: () = assert!(shared_bytes(Instruction::MmaSync, 2) <= LEAST_SHARED_BYTES);
const _: () = assert!(shared_bytes(Instruction::MmaSync, 3) <= LEAST_SHARED_BYTES);

/// Reserves a place in a queue for each lane with `wanted`; the result is valid on those lanes only. All 32 lanes
/// arrive.
///
/// # Safety
/// `size` is a word of global memory that only atomics change.
#[device_inline]
pub(crate) unsafe fn queue_place(size: *mut u32, wanted: bool, lane: u32) -> u32 {
    let wanting = warp::ballot(FULL_MASK, wanted);
    let mut first = 0;
    if lane == 0 && wanting != 0 {
        // SAFETY: as the caller promises.
        first = unsafe { atomic::add_u32(size, wanting.count_ones()) };
    }
    warp::shuffle_idx(FULL_MASK, first, 0) + (wanting & ((1 << lane) - 1)).count_ones()
}

/// Adds the product of eight f16 components of two rows to `sum`.
#[device_inline]
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

/// The points and the centroids of an assignment, and its results.
#[group]
pub struct Assignment {
    /// f16 copies of the points: rows of `stride` components.
    pub points: Ptr<u16>,
    /// f16 copies of the centroids: rows of `stride` components.
    pub centroids: Ptr<u16>,
    /// Distance from one copy to the next in components: a multiple of [`CHUNK`], at most
    /// [`MOST_COMPONENTS`](crate::product::bounds::MOST_COMPONENTS).
    pub stride: u32,
    /// Number of points without padding.
    pub point_count: u32,
    /// Number of centroids without padding.
    pub cluster_count: u32,
    /// The metric of the scores.
    pub metric: Metric,
    /// Bits of the greatest |component| of the points, from [`crate::product::prepare::Greatest`]: one word.
    pub point_greatest: Ptr<u32>,
    /// Bits of the greatest |component| of the centroids, from [`crate::product::prepare::Greatest`]: one word.
    pub centroid_greatest: Ptr<u32>,
    /// Upper bound of the norm of each point.
    pub point_norms: Ptr<f32>,
    /// Upper bound of the residual of each point: the norm of the point minus its f16 copy.
    pub point_residuals: Ptr<f32>,
    /// The greatest norm and the greatest residual of all centroids: two numbers.
    pub set_bounds: Ptr<f32>,
    /// The label of each point: becomes the nearest centroid if that is proved.
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

/// Finds the nearest centroid of each point, or puts the point in a queue; see the module documentation.
///
/// A point whose nearest centroid is proved gets it in `labels`. Every other point gets a place in a queue, in no
/// order: in that of the pending points with its candidates, or in that of the unbounded points.
///
/// # Safety
/// The arrays are as long as the fields say; the f16 copies are padded to whole tiles of 128 rows; there is at least
/// one centroid. The residency in the kernel's key is [`Self::residency`].
#[kernel(
    key = (Instruction, Residency),
    max_threads = 256,
    min_blocks = 2,
    (Instruction::MmaSync, Residency::Resident) => assign_resident = assign::<MmaSync<2, 4, 4>, 4, 4, true>,
    (Instruction::MmaSync, Residency::Streamed) => assign_streamed = assign::<MmaSync<2, 4, 4>, 4, 4, false>,
    (Instruction::Wgmma, Residency::Resident) => assign_resident_sm90(arch = "sm_90a") = assign::<Wgmma<16>, 1, 16, true>,
    (Instruction::Wgmma, Residency::Streamed) => assign_streamed_sm90(arch = "sm_90a") = assign::<Wgmma<16>, 1, 16, false>,
)]
pub struct Assign {
    /// The points, the centroids and the results.
    #[group]
    pub assignment: Assignment,
    /// Values, norms and residuals of the centroids: three consecutive arrays. Each is padded to whole tiles.
    pub centroid_numbers: Ptr<f32>,
    /// The greatest norm of each tile of centroids.
    pub tile_norms: Ptr<f32>,
    /// The greatest residual of each tile of centroids.
    pub tile_residuals: Ptr<f32>,
    /// Not 0: `labels` has a guess for each point, at best the centroid that was nearest before the centroids moved.
    /// Any number is valid; a good one saves time.
    pub labelled: u32,
}

impl Assign {
    /// The residency of the points, which depends on `stride`.
    pub fn residency(&self) -> Residency {
        Residency::of(self.assignment.stride)
    }

    /// Number of tiles of points.
    pub fn tiles(&self) -> u32 {
        self.assignment.point_count.div_ceil(TILE_ROWS)
    }

    /// One block for each tile of points.
    pub fn config(&self, instruction: Instruction) -> LaunchConfig {
        LaunchConfig::linear(self.tiles() as u64, THREADS)
            .with_shared(shared_bytes(instruction, self.assignment.stride / CHUNK))
    }
}

/// Loads points, tiles of centroids, and the data of a tile that the epilogue needs.
struct CentroidTiles {
    launch: Assign,
    copy: ChunkCopy,
    point_tile: *const u16,
    infos_at: SharedPtr<u8>,
    tiles: u32,
    thread: u32,
    lane: u32,
}

impl Operands for CentroidTiles {
    #[device_inline]
    unsafe fn load_rows(&mut self, to: SharedPtr<u8>, chunk: u32) {
        // SAFETY: the copies of points are padded to whole tiles.
        unsafe { self.copy.copy(to, self.copy.start(self.point_tile).wrapping_add((chunk * CHUNK) as usize)) }
    }

    #[device_inline]
    unsafe fn load_tile(&mut self, to: SharedPtr<u8>, tile: u32, chunk: u32) {
        let Assign { assignment, centroid_numbers, tile_norms, tile_residuals, .. } = self.launch;
        let (thread, lane) = (self.thread, self.lane);
        // SAFETY: the tile exists, and the arrays of the centroids cover whole tiles; its info is below `INFOS`.
        unsafe {
            if chunk == 0 {
                let info = self.infos_at.add((tile % INFOS) * INFO_BYTES);
                let at = tile as usize;
                if thread < 3 * TILE_ROWS / 4 {
                    // One warp for each of the three arrays.
                    let array = (thread / (TILE_ROWS / 4) * self.tiles) as usize;
                    let from = centroid_numbers.wrapping_add((array + at) * TILE_ROWS as usize);
                    async_copy::copy_16(info.add(16 * thread), from.wrapping_add(4 * lane as usize).cast());
                } else if thread == 3 * TILE_ROWS / 4 {
                    async_copy::copy_4(info.add(3 * TILE_ROWS * 4), tile_norms.wrapping_add(at).cast());
                } else if thread == 3 * TILE_ROWS / 4 + 1 {
                    async_copy::copy_4(info.add(3 * TILE_ROWS * 4 + 4), tile_residuals.wrapping_add(at).cast());
                }
            }
            // 128 · stride fits 32 bits, because `MOST_COMPONENTS` limits stride.
            let at = tile as usize * (TILE_ROWS * assignment.stride) as usize + (chunk * CHUNK) as usize;
            self.copy.copy(to, self.copy.start(assignment.centroids.wrapping_add(at)));
        }
    }
}

/// The values, norms and residuals of a tile's centroids, in shared memory.
#[derive(Clone, Copy)]
struct TileNumbers {
    values: SharedPtr<f32>,
    norms: SharedPtr<f32>,
    residuals: SharedPtr<f32>,
    /// The greatest norm and residual of the tile.
    all: Bounds,
}

/// The values of a lane's columns, if they are few. With more values, scores would not stay in registers.
type FewValues = [[f32; 2]; FEW_COLUMNS];

impl TileNumbers {
    /// The values of columns `column` and `column` + 1.
    ///
    /// # Safety
    /// Both are columns of the tile.
    #[device_inline]
    unsafe fn value(&self, column: u32) -> [f32; 2] {
        // SAFETY: as the caller promises.
        unsafe { self.values.add(column).cast::<global::F32x2>().load().0 }
    }

    /// The values of a lane's columns from `column` on, if they are few.
    ///
    /// # Safety
    /// The columns belong to the tile.
    #[device_inline]
    unsafe fn few<const COLUMNS: usize>(&self, column: u32) -> FewValues {
        let mut few = [[0.0f32; 2]; FEW_COLUMNS];
        if COLUMNS <= FEW_COLUMNS {
            // SAFETY: as the caller promises.
            unroll::<COLUMNS>(|j| few[j] = unsafe { self.value(column + 8 * j as u32) });
        }
        few
    }

    /// The values of column pair j of a lane, from `few` if they are there.
    ///
    /// # Safety
    /// As [`Self::few`].
    #[device_inline]
    unsafe fn of<const COLUMNS: usize>(&self, few: &FewValues, column: u32, j: usize) -> [f32; 2] {
        // SAFETY: as the caller promises.
        if COLUMNS <= FEW_COLUMNS { few[j % FEW_COLUMNS] } else { unsafe { self.value(column + 8 * j as u32) } }
    }
}

/// Finds for each point of the block the centroids that may be its nearest.
struct Nearest<const RESIDENT: bool> {
    launch: Assign,
    first_point: u32,
    tiles: u32,
    /// [`product_factor`] of points and centroids.
    scale: f32,
    lists: Lists,
    infos_at: SharedPtr<u8>,
    thread: u32,
    lane: u32,
}

impl<const RESIDENT: bool> Nearest<RESIDENT> {
    /// Writes the states of the block's points to shared memory; other threads may read them after the next barrier.
    ///
    /// # Safety
    /// As [`Assign`]; the header of the block's shared memory is free.
    #[device_inline]
    unsafe fn new(launch: Assign, first_point: u32, tiles: u32) -> Self {
        let Assignment { stride, point_count, metric, point_greatest, centroid_greatest, .. } = launch.assignment;
        let Assignment { point_norms, point_residuals, set_bounds, .. } = launch.assignment;
        let thread = thread::thread_idx_x();
        // SAFETY: the caller promises the shapes; points are compared with their number.
        unsafe {
            let lists = Lists::at(shared::dynamic::<u8>());
            let infos_at = shared::dynamic::<u8>().add(LISTS_BYTES);
            let point_scale = scale_of(metric, f32::from_bits(global::load_nc(*point_greatest)));
            let centroid_scale = scale_of(metric, f32::from_bits(global::load_nc(*centroid_greatest)));
            let scale = product_factor(metric, point_scale, centroid_scale);
            // Rows after the last point accept no candidates. Points without a bound accept none either, and count as
            // overflowed from the start.
            if thread < TILE_ROWS {
                let point = (first_point + thread) as usize;
                let exists = point < point_count as usize;
                let mut x = Bounds { norm: 0.0, residual: 0.0 };
                if exists {
                    x.norm = global::load_nc(point_norms.wrapping_add(point));
                    x.residual = global::load_nc(point_residuals.wrapping_add(point));
                }
                let all = Bounds {
                    norm: global::load_nc(*set_bounds),
                    residual: global::load_nc(set_bounds.wrapping_add(1)),
                };
                let terms = QueryTerms::new(metric, stride, x).with_factor(scale);
                let bounded = terms.error(metric, all) < f32::INFINITY;
                let start = if exists && bounded { f32::INFINITY } else { f32::NEG_INFINITY };
                let [a, b, c] = [terms.per_norm.to_bits(), terms.per_residual.to_bits(), terms.own.to_bits()];
                lists.states.add(thread).store(global::U32x4([a, b, c, key_of(start)]));
                lists.sizes.add(thread).store(if exists && !bounded { LIST + 1 } else { 0 });
            }
            Nearest { launch, first_point, tiles, scale, lists, infos_at, thread, lane: warp::lane_id() }
        }
    }

    /// Lowers the smallest upper bound of each point to that of the centroid in `labels`.
    ///
    /// # Safety
    /// The first `stages` − 1 steps were started; the points are at `points_at` if they are resident.
    #[device_inline]
    unsafe fn begin_with_labels(&self, points_at: SharedPtr<u8>, stages: u32) {
        let Assign { assignment, centroid_numbers, .. } = self.launch;
        let Assignment { centroids, stride, point_count, cluster_count, labels, metric, .. } = assignment;
        // SAFETY: labels are read for points that exist, and limited to centroids that exist.
        unsafe {
            // Sums are in f32, and their products are exact: they round by less than E allows for the tensor cores.
            // Eight lanes have a row, one 16-byte part of each chunk for each lane; a thread has four rows.
            let (row, eighth) = (self.thread / 8, self.thread % 8);
            let mut rows = [*centroids; ROWS_A_THREAD];
            // Lane i of the eight has the numbers of the i-th of the rows.
            let mut guess = 0;
            unroll::<ROWS_A_THREAD>(|i| {
                let point = self.first_point + row + i as u32 * ROWS_AT_ONCE;
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
            let of_tiles = (self.tiles * TILE_ROWS) as usize;
            let value = global::load_nc(numbers);
            let norm = global::load_nc(numbers.wrapping_add(of_tiles));
            let residual = global::load_nc(numbers.wrapping_add(2 * of_tiles));
            let products = self.guessed_products(points_at, stages, load);
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
                let (terms, best) = self.lists.state(row);
                // Rows that accept no candidates keep −∞.
                if best == f32::INFINITY {
                    let upper = mul_add_f32(own, self.scale, value) + terms.error(metric, Bounds { norm, residual });
                    self.lists.best(row).store(key_of(upper));
                }
            }
        }
    }

    /// For each of the thread's rows, the product of the point's eighth of the components with those that `load`
    /// returns for a chunk.
    ///
    /// # Safety
    /// As [`Self::begin_with_labels`].
    #[device_inline]
    unsafe fn guessed_products(
        &self,
        points_at: SharedPtr<u8>,
        stages: u32,
        load: impl Fn(u32) -> [[u32; 4]; ROWS_A_THREAD],
    ) -> [f32; ROWS_A_THREAD] {
        let Assignment { points, stride, .. } = self.launch.assignment;
        let chunks = stride / CHUNK;
        let point_tile = points.wrapping_add(self.first_point as usize * stride as usize);
        let (row, eighth) = (self.thread / 8, self.thread % 8);
        // SAFETY: rows are below 128, and the copies of points are padded; after the wait they are in shared memory.
        unsafe {
            let mut products = [0.0f32; ROWS_A_THREAD];
            if RESIDENT {
                // All loads come first, so that they overlap with each other and with those of the points.
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
            products
        }
    }

    /// A first look at a tile: the smallest upper bound of each point that has none. All threads of the block arrive.
    ///
    /// # Safety
    /// The tile was waited for.
    #[device_inline]
    unsafe fn first_look<P: TileProduct<ROWS, COLUMNS, Sum = f32>, const ROWS: usize, const COLUMNS: usize>(
        &self,
        part: &P,
        numbers: &TileNumbers,
        scores: &Scores<ROWS, COLUMNS>,
    ) {
        let (metric, column) = (self.launch.assignment.metric, part.column());
        // SAFETY: the columns and rows belong to the tile.
        unsafe {
            // The greatest bounds of the lane's own columns. So one far centroid weakens the bounds of one lane of
            // sixteen.
            let mut own = Bounds { norm: 0.0, residual: 0.0 };
            unroll::<COLUMNS>(|j| {
                unroll::<2>(|e| {
                    let place = column + (8 * j + e) as u32;
                    own.norm = max_f32(own.norm, numbers.norms.add(place).load());
                    own.residual = max_f32(own.residual, numbers.residuals.add(place).load());
                })
            });
            let few = numbers.few::<COLUMNS>(column);
            unroll::<ROWS>(|i| {
                let least = self.least(&scores[i], numbers, &few, column);
                unroll::<2>(|half| {
                    let row = part.row(i, half);
                    let (terms, _) = self.lists.state(row);
                    let mut upper = least[half] + terms.error(metric, own);
                    upper = min_f32(upper, warp::shuffle_xor(FULL_MASK, upper, 1));
                    upper = min_f32(upper, warp::shuffle_xor(FULL_MASK, upper, 2));
                    if self.lane.is_multiple_of(4) {
                        atomic::shared_min_u32(self.lists.best(row), key_of(upper));
                    }
                });
            });
            thread::sync_threads();
        }
    }

    /// The smallest score of each of two rows among the lane's columns.
    ///
    /// # Safety
    /// As [`TileNumbers::few`].
    #[device_inline]
    unsafe fn least<const COLUMNS: usize>(
        &self,
        sums: &[[f32; 4]; COLUMNS],
        numbers: &TileNumbers,
        few: &FewValues,
        column: u32,
    ) -> [f32; 2] {
        let mut least = [f32::INFINITY; 2];
        unroll::<COLUMNS>(|j| {
            // SAFETY: as the caller promises.
            let value = unsafe { numbers.of::<COLUMNS>(few, column, j) };
            unroll::<2>(|half| {
                unroll::<2>(|e| {
                    least[half] = min_f32(least[half], mul_add_f32(sums[j][2 * half + e], self.scale, value[e]))
                })
            })
        });
        least
    }

    /// The largest score with which a centroid may be the nearest of a row: the smallest upper bound, plus the error
    /// against a tile.
    ///
    /// # Safety
    /// `row` < 128.
    #[device_inline]
    unsafe fn limit(&self, row: u32, all: Bounds) -> f32 {
        // SAFETY: as the caller promises.
        let (terms, best) = unsafe { self.lists.state(row) };
        terms.error_from(terms.own + QueryTerms::of_base(self.launch.assignment.metric, all) + best, all)
    }

    /// Offers the centroids of the lane's columns with scores up to the limit of row (`i`, `half`) to its list.
    ///
    /// # Safety
    /// The tile was waited for.
    #[device_inline]
    unsafe fn offer_row<P: TileProduct<ROWS, COLUMNS, Sum = f32>, const ROWS: usize, const COLUMNS: usize>(
        &self,
        part: &P,
        tile: u32,
        (numbers, few): (&TileNumbers, &FewValues),
        scores: &Scores<ROWS, COLUMNS>,
        (i, half): (usize, usize),
    ) {
        let Assignment { metric, cluster_count, .. } = self.launch.assignment;
        let column = part.column();
        // SAFETY: the rows and columns belong to the tile.
        unsafe {
            let row = part.row(i, half);
            // Another warp may have lowered the limit by now.
            let limit = self.limit(row, numbers.all);
            let mut few_scores = [[0.0f32; 2]; FEW_COLUMNS];
            let mut passing = 0u32;
            unroll::<COLUMNS>(|j| {
                let value = numbers.of::<COLUMNS>(few, column, j);
                #[expect(clippy::neg_cmp_op_on_partial_ord, reason = "NaN on either side must keep the centroid")]
                unroll::<2>(|e| {
                    let score = mul_add_f32(scores[i][j][2 * half + e], self.scale, value[e]);
                    passing |= (!(score > limit) as u32) << (2 * j + e);
                    if COLUMNS <= FEW_COLUMNS {
                        few_scores[j % FEW_COLUMNS][e] = score;
                    }
                })
            });
            let (terms, _) = self.lists.state(row);
            while passing != 0 {
                let at = passing.trailing_zeros();
                passing &= passing - 1;
                let place = column + 8 * (at / 2) + at % 2;
                let (norm, residual) = (numbers.norms.add(place).load(), numbers.residuals.add(place).load());
                let error = terms.error(metric, Bounds { norm, residual });
                let score = if COLUMNS <= FEW_COLUMNS {
                    entry_of::<FEW_COLUMNS, _>(|j, e| few_scores[j][e], at)
                } else {
                    let product = entry_of::<COLUMNS, _>(|j, e| scores[i][j][2 * half + e], at);
                    mul_add_f32(product, self.scale, numbers.values.add(place).load())
                };
                self.lists.offer(row, score, error, tile * TILE_ROWS + place, cluster_count);
            }
        }
    }

    /// Labels the points whose nearest centroid is proved, and queues the others.
    ///
    /// # Safety
    /// As [`Assign`]; all tiles were offered before a barrier.
    #[device_inline]
    unsafe fn finish(&self) {
        let Assignment { point_count, labels, queue_sizes, pending, .. } = self.launch.assignment;
        let Assignment { pending_lists, unbounded, .. } = self.launch.assignment;
        let (thread, lane, lists, first_point) = (self.thread, self.lane, self.lists, self.first_point);
        // SAFETY: points are compared with their number; the queues have room for all.
        unsafe {
            if thread < TILE_ROWS {
                let point = first_point + thread;
                let exists = point < point_count;
                let size = lists.compact(thread);
                // An empty list means that there was a NaN: then nothing is proved.
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
}

impl<P: TileProduct<ROWS, COLUMNS, Sum = f32>, const ROWS: usize, const COLUMNS: usize, const RESIDENT: bool>
    Epilogue<P, ROWS, COLUMNS> for Nearest<RESIDENT>
{
    #[device_inline]
    unsafe fn begin(&mut self, points_at: SharedPtr<u8>) {
        if self.launch.labelled != 0 {
            // SAFETY: as the caller promises.
            unsafe { self.begin_with_labels(points_at, P::INSTRUCTION.ring().stages(RESIDENT)) }
        }
    }

    #[device_inline]
    unsafe fn tile(&mut self, part: &P, tile: u32, scores: &Scores<ROWS, COLUMNS>) {
        // SAFETY: the tile was waited for, and all threads of the block arrive.
        unsafe {
            let values = self.infos_at.add((tile % INFOS) * INFO_BYTES).cast::<f32>();
            let greatest = values.add(3 * TILE_ROWS);
            let numbers = TileNumbers {
                values,
                norms: values.add(TILE_ROWS),
                residuals: values.add(2 * TILE_ROWS),
                all: Bounds { norm: greatest.load(), residual: greatest.add(1).load() },
            };
            if tile == 0 && self.launch.labelled == 0 {
                self.first_look(part, &numbers, scores);
            }
            // Loaded after the barrier of a first look, so that the compiler keeps none of its values in registers.
            let column = part.column();
            let few = numbers.few::<COLUMNS>(column);
            // All compares come first, without a branch, so that loads overlap. One branch follows for all rare cases.
            let mut hits = 0u32;
            #[expect(clippy::neg_cmp_op_on_partial_ord, reason = "NaN on either side must keep the centroid")]
            unroll::<ROWS>(|i| {
                if i == 2 {
                    // Limits of the second half are loaded after this barrier: with all of them in flight registers
                    // spill.
                    warp::sync_warp(FULL_MASK);
                }
                let limits = [self.limit(part.row(i, 0), numbers.all), self.limit(part.row(i, 1), numbers.all)];
                let least = self.least(&scores[i], &numbers, &few, column);
                unroll::<2>(|half| hits |= (!(least[half] > limits[half]) as u32) << (2 * i + half));
            });
            // The hits of all lanes, so that the warp branches as one. This also keeps eight conditions out of the
            // predicates.
            let hits = warp::reduce_or(FULL_MASK, hits);
            if hits != 0 {
                unroll::<ROWS>(|i| {
                    unroll::<2>(|half| {
                        if hits & (1 << (2 * i + half)) != 0 {
                            self.offer_row(part, tile, (&numbers, &few), scores, (i, half));
                        }
                    });
                });
            }
            let done = tile + 1;
            if done > 1 && done.is_power_of_two() && done < self.tiles {
                thread::sync_threads();
                // The barrier of the next step orders this before the next offers.
                if self.thread < TILE_ROWS && self.lists.sizes.add(self.thread).load() > LIST / 2 {
                    self.lists.compact(self.thread);
                }
            }
        }
    }
}

/// # Safety
/// As [`Assign`].
#[device_inline]
unsafe fn assign<
    P: TileProduct<ROWS, COLUMNS, Sum = f32>,
    const ROWS: usize,
    const COLUMNS: usize,
    const RESIDENT: bool,
>(
    launch: Assign,
) {
    let thread = thread::thread_idx_x();
    let first_point = thread::block_idx_x() * TILE_ROWS;
    let Assignment { points, stride, cluster_count, .. } = launch.assignment;
    let tiles = cluster_count.div_ceil(TILE_ROWS);
    // SAFETY: for the whole body, the caller promises the shapes; copies are padded to whole tiles, so tile loads stay
    // inside, and shared addresses lie inside `shared_bytes`.
    unsafe {
        let mut epilogue = Nearest::<RESIDENT>::new(launch, first_point, tiles);
        let mut operands = CentroidTiles {
            launch,
            copy: ChunkCopy::new(thread, stride),
            point_tile: points.wrapping_add(first_point as usize * stride as usize),
            infos_at: epilogue.infos_at,
            tiles,
            thread,
            lane: epilogue.lane,
        };
        let pass = Pass {
            at: shared::dynamic::<u8>().add(HEADER_BYTES),
            rows_bytes: CHUNK_TILE_BYTES,
            chunks: stride / CHUNK,
            tiles,
            stages: P::INSTRUCTION.ring().stages(RESIDENT),
        };
        pass.run::<P, ROWS, COLUMNS, RESIDENT, 1>(&mut operands, &mut epilogue);
        thread::sync_threads();
        epilogue.finish();
    }
}
