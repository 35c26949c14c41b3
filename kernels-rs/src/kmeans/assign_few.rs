//! The nearest centroid of every point if all centroids fit into shared memory.
//!
//! # Problem
//! The problem of [`crate::kmeans::assign`], with the same proof, for few centroids ([`AssignFew::config`]: with the
//! 227 KiB of an H200 864 of 128 components, 1024 of 64). Then a point is compared with few tiles, and the work that
//! [`crate::kmeans::assign`] does once for a point (its start, its list in shared memory, barriers) costs more than the
//! product.
//!
//! # Algorithm
//! With v and E as there, and E split into a part that depends on the point only and the rest, E = own + D:
//!
//! ```text
//! every centroid:  low = v − D;  keep the three smallest low, with the numbers of two of them: a, b, (c)
//! limit = low_a + 2·D_a + 2·own                  // low > limit: the score is proved to be above that of a
//! low_b > limit:   a is the nearest
//! low_c > limit:   a or b: the point joins the queue of pending points           // canonical distances: `settle`
//! else:            the point joins the queue of unbounded points                 // all distances: `settle_all`
//! ```
//!
//! Three centroids within the error of half precision are rare. If centroids are duplicates, this costs only time.
//!
//! The three smallest of a lane are kept by minima and maxima without a branch. The number of a score's centroid is in
//! the low bits of the score: `NUMBER_BITS` of the mantissa, an error below 2^-15, which the comparison takes into
//! account.
//!
//! # How it maps to the machine
//! 1. One block on each multiprocessor copies all centroids to shared memory once. After that its warps have no common
//!    barrier.
//! 2. A warp processes 32 points at a time and keeps them in registers as the A operand of all products. They are read
//!    from global memory directly into place, 16 bytes for each lane. For that the components are permuted within each
//!    64 bytes, in the same way on both sides: the 16 bytes of lane t of a quad belong to two steps of `mma`, four
//!    components each.
//! 3. The B operand is read by one 16-byte load for two steps. The 64-byte parts of odd rows are swapped in pairs, so
//!    eight lanes have no bank conflict. One read is used for 32 points: 64 KiB for each warp and group for 256 × 128.
//! 4. After 32 centroids the lane's 32 scores (8 columns, 4 rows) go into the minima and the registers are free.
//! 5. At the end the lanes of a quad exchange rows by butterfly, and each ends with one point.
//!
//! # Why it is separate
//! It is not a pass of [`crate::product::mainloop`]: the operands of the points stay in registers, the centroids do not
//! pass through a ring, and the warps have no common barrier. It shares bounds, operands and queues with the passes.
//!
//! # Cost
//! 2·n·k·d operations; three fused multiply-adds and six ALU instructions for each score, about the same issue time as
//! the product at d = 128; one read of the points' copies. 1,000,000 × 128 against 256 on an H200: by these counts 0.11
//! ms of product, 0.10 ms of ALU and 0.06 ms of memory, which should overlap; measured by ncu, at its clock, 0.38 ms.

use cuda_std::launch::LaunchConfig;
use cuda_std::math::{max_f32, min_f32, mul_add_f32};
use cuda_std::shared::SharedPtr;
use cuda_std::warp::{Exchange, FULL_MASK};
use cuda_std::{Ptr, async_copy, device_inline, global, kernel, mma, shared, thread, unroll, warp};

use crate::NO_ROW;
use crate::kmeans::assign::{Assignment, queue_place};
use crate::kmeans::nearest_lists::LIST;
use crate::product::bounds::{Bounds, QueryTerms};
use crate::product::metric::{product_factor, scale_of};
use crate::product::tile::CHUNK;
use crate::select::entry::{key_of, pack, payload, value_of};

/// Number of warps of a block.
const WARPS: u32 = 12;
/// Number of threads of a block.
const THREADS: u32 = WARPS * 32;
/// Number of points that a warp processes at once.
const WARP_POINTS: u32 = 32;
/// Number of centroids of one turn.
const TURN: u32 = 32;
/// Number of tiles of eight centroids in a turn; eight are the columns of one `mma`.
const COLUMN_TILES: usize = TURN as usize / 8;
/// Number of low bits of a float in which a lane numbers its centroids: 8 in a turn, up to 1024 / 32 turns.
const NUMBER_BITS: u32 = 8;
/// Largest number of centroids, for any size of shared memory.
const MOST_CENTROIDS: u32 = (TURN / 8) << NUMBER_BITS;
const NUMBER: u32 = (1 << NUMBER_BITS) - 1;
/// Relative error of a float whose low bits were replaced, rounded up.
const PACKED: f32 = 1.0 / 16_384.0;
/// The score of columns without a centroid: above all others.
const NONE: f32 = 3e38;

/// Dynamic shared memory of a block for centroids of `chunks` chunks, in bytes. `None` if there are too many centroids
/// for these kernels and a block with at most `available` bytes.
const fn shared_bytes(centroids: u32, chunks: u32, available: u32) -> Option<u32> {
    if centroids > MOST_CENTROIDS {
        return None;
    }
    let bytes = centroids.next_multiple_of(TURN) * (chunks * CHUNK * 2 + 3 * 4);
    if bytes <= available { Some(bytes) } else { None }
}

/// The three smallest scores of one point so far.
#[derive(Clone, Copy)]
struct Smallest {
    first: f32,
    second: f32,
    third: f32,
}

impl Smallest {
    const START: Smallest = Smallest { first: NONE, second: NONE, third: NONE };

    #[device_inline]
    fn insert(&mut self, score: f32) {
        let beyond_first = max_f32(self.first, score);
        self.first = min_f32(self.first, score);
        let beyond_second = max_f32(self.second, beyond_first);
        self.second = min_f32(self.second, beyond_first);
        self.third = min_f32(self.third, beyond_second);
    }

    /// The same with centroid numbers in full, for a lane that is lane `t` of its quad.
    #[device_inline]
    fn numbered(self, t: u32) -> Numbered {
        let number = |score: f32| {
            let number = score.to_bits() & NUMBER;
            // A turn has eight, in four pairs.
            pack(key_of(score), number / 8 * TURN + number % 8 / 2 * 8 + 2 * t + number % 2)
        };
        Numbered { first: number(self.first), second: number(self.second), third: self.third }
    }
}

/// [`Smallest`] of several lanes, as entries of score and centroid.
#[derive(Clone, Copy)]
struct Numbered {
    first: u64,
    second: u64,
    third: f32,
}

impl Numbered {
    /// The smallest of both. The third of the four entries is the larger of the two that follow the first in their
    /// lists: no later entry of a list can be smaller.
    #[device_inline]
    fn merge(self, other: Numbered) -> Numbered {
        let (low, high) = (self.first.min(other.first), self.first.max(other.first));
        let second = self.second.min(other.second);
        let third = value_of(crate::select::entry::key(high.max(second)));
        Numbered { first: low, second: high.min(second), third: min_f32(third, min_f32(self.third, other.third)) }
    }
}

impl Exchange for Numbered {
    #[device_inline]
    fn exchange(self, lane_mask: u32) -> Numbered {
        let (first, second, third) = (self.first, self.second, self.third).exchange(lane_mask);
        Numbered { first, second, third }
    }
}

/// `a` if `first` is true, else `b`, by selects.
#[device_inline]
fn choose(first: bool, a: Numbered, b: Numbered) -> Numbered {
    Numbered {
        first: if first { a.first } else { b.first },
        second: if first { a.second } else { b.second },
        third: if first { a.third } else { b.third },
    }
}

/// Width of an f16 copy; each has a kernel. More than 128 components do not fit into registers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CopyWidth {
    /// One chunk: 64 components.
    Of64,
    /// Two chunks: 128 components.
    Of128,
}

impl CopyWidth {
    const fn chunks(self) -> u32 {
        match self {
            CopyWidth::Of64 => 1,
            CopyWidth::Of128 => 2,
        }
    }

    /// The width of copies of `stride` components; `None` if they are too wide for these kernels.
    pub const fn of(stride: u32) -> Option<CopyWidth> {
        match stride / CHUNK {
            1 => Some(CopyWidth::Of64),
            2 => Some(CopyWidth::Of128),
            _ => None,
        }
    }
}

/// Finds the nearest centroid of each point, or puts the point in a queue, as [`crate::kmeans::assign::Assign`] does.
///
/// # Safety
/// The arrays are as long as the fields say; the f16 copies are padded to whole tiles of 128 rows and have the number
/// of components of the key; there is at least one point and one centroid.
#[kernel(
    key = CopyWidth,
    max_threads = 384,
    min_blocks = 1,
    CopyWidth::Of128 => assign_few_128 = assign_few::<4>,
    CopyWidth::Of64 => assign_few_64 = assign_few::<2>,
)]
pub struct AssignFew {
    /// The points, the centroids and the results. `stride` is that of the key.
    #[group]
    pub assignment: Assignment,
    /// ‖c‖² (squared L2) or 0 of each centroid.
    pub centroid_values: Ptr<f32>,
    /// Upper bound of the norm of each centroid.
    pub centroid_norms: Ptr<f32>,
    /// Upper bound of the residual of each centroid: the norm of the centroid minus its f16 copy.
    pub centroid_residuals: Ptr<f32>,
}

impl AssignFew {
    /// One block for each multiprocessor, or fewer if there are few points. `None` if there are too many centroids for
    /// the `available` bytes of a block's shared memory.
    pub fn config(&self, width: CopyWidth, multiprocessors: u32, available: u32) -> Option<LaunchConfig> {
        let shared = shared_bytes(self.assignment.cluster_count, width.chunks(), available)?;
        let blocks = self.assignment.point_count.div_ceil(WARPS * WARP_POINTS).min(multiprocessors);
        Some(LaunchConfig::linear(blocks as u64, THREADS).with_shared(shared))
    }
}

/// The data of the centroids in shared memory, and numbers that all points need.
struct Staged {
    launch: AssignFew,
    /// The centroids' f16 copies, in rows of `row_bytes`; the 64-byte parts of odd rows are swapped in pairs.
    rows: SharedPtr<u8>,
    row_bytes: u32,
    /// Number of centroids, padded to whole turns.
    columns: u32,
    /// The value of each centroid; then its norm and residual.
    values: SharedPtr<f32>,
    norms: SharedPtr<f32>,
    residuals: SharedPtr<f32>,
    /// [`product_factor`] of points and centroids.
    scale: f32,
    /// The greatest norm and residual of all centroids.
    all: Bounds,
    lane: u32,
}

/// A lane's terms of its four points, negated.
struct PointTerms {
    per_norm: [[f32; 2]; 2],
    per_residual: [[f32; 2]; 2],
}

impl Staged {
    /// Copies all centroids to shared memory. All threads of the block arrive.
    ///
    /// # Safety
    /// As [`AssignFew`].
    #[device_inline]
    unsafe fn new(launch: AssignFew, row_bytes: u32) -> Staged {
        let AssignFew { assignment, centroid_values, centroid_norms, centroid_residuals } = launch;
        let Assignment { centroids, cluster_count, metric, point_greatest, .. } = assignment;
        let Assignment { centroid_greatest, set_bounds, .. } = assignment;
        let thread = thread::thread_idx_x();
        let columns = cluster_count.next_multiple_of(TURN);
        // SAFETY: copies are padded to whole tiles of 128 rows; all other indices are compared with cluster_count, and
        // shared addresses lie inside `shared_bytes`.
        unsafe {
            let rows_at = shared::dynamic::<u8>();
            let values_at = rows_at.add(columns * row_bytes).cast::<f32>();
            let (norms_at, residuals_at) = (values_at.add(columns), values_at.add(2 * columns));
            let point_scale = scale_of(metric, f32::from_bits(global::load_nc(*point_greatest)));
            let centroid_scale = scale_of(metric, f32::from_bits(global::load_nc(*centroid_greatest)));
            let scale = product_factor(metric, point_scale, centroid_scale);
            let all =
                Bounds { norm: global::load_nc(*set_bounds), residual: global::load_nc(set_bounds.wrapping_add(1)) };

            let mut piece = thread;
            while piece < columns * row_bytes / 16 {
                let (row, at) = (piece / (row_bytes / 16), piece % (row_bytes / 16));
                let to = row * row_bytes + ((at / 4) ^ (row & 1)) * 64 + at % 4 * 16;
                async_copy::copy_16(rows_at.add(to), centroids.wrapping_add(8 * piece as usize).cast());
                piece += THREADS;
            }
            let mut column = thread;
            while column < columns {
                let at = column as usize;
                let exists = column < cluster_count;
                let (mut value, mut norm, mut residual) = (NONE, 0.0, 0.0);
                if exists {
                    norm = global::load_nc(centroid_norms.wrapping_add(at));
                    residual = global::load_nc(centroid_residuals.wrapping_add(at));
                    // Twice, because the second covers the rounding of low.
                    let own = 2.0 * QueryTerms::of_base(metric, Bounds { norm, residual });
                    value = global::load_nc(centroid_values.wrapping_add(at)) - own;
                }
                values_at.add(column).store(value);
                norms_at.add(column).store(norm);
                residuals_at.add(column).store(residual);
                column += THREADS;
            }
            async_copy::commit();
            async_copy::wait_all();
            thread::sync_threads();

            Staged {
                launch,
                rows: rows_at,
                row_bytes,
                columns,
                values: values_at,
                norms: norms_at,
                residuals: residuals_at,
                scale,
                all,
                lane: warp::lane_id(),
            }
        }
    }

    /// The terms of a point; after the last point, those of the last.
    ///
    /// # Safety
    /// As [`AssignFew`].
    #[device_inline]
    unsafe fn terms_of(&self, point: u32) -> QueryTerms {
        let Assignment { point_count, point_norms, point_residuals, metric, .. } = self.launch.assignment;
        let point = point.min(point_count - 1) as usize;
        // SAFETY: the point exists.
        let (norm, residual) = unsafe {
            (global::load_nc(point_norms.wrapping_add(point)), global::load_nc(point_residuals.wrapping_add(point)))
        };
        let mut terms = QueryTerms::new(metric, self.row_bytes / 2, Bounds { norm, residual }).with_factor(self.scale);
        // Covers the rounding of low that the product causes.
        terms.per_norm += 4.0 * QueryTerms::UNIT * norm;
        terms
    }

    /// The three smallest `low` of the lane's points among the lane's columns of all centroids. `x` are the points, as
    /// operand A. All lanes of the warp arrive.
    ///
    /// # Safety
    /// The centroids are in shared memory.
    #[device_inline]
    unsafe fn multiply<const PARTS: usize>(
        &self,
        x: [[[[u32; 4]; PARTS]; 2]; 2],
        PointTerms { per_norm, per_residual }: PointTerms,
    ) -> [[Smallest; 2]; 2] {
        let (g, t) = (self.lane >> 2, self.lane & 3);
        // SAFETY: columns are below `columns`, and parts belong to a row.
        unsafe {
            let mut smallest = [[Smallest::START; 2]; 2];
            let mut turn = 0;
            while turn * TURN < self.columns {
                let mut scores = [[[0.0f32; 4]; COLUMN_TILES]; 2];
                // `mma` needs all lanes of the warp together.
                warp::sync_warp(FULL_MASK);
                unroll::<PARTS>(|part| {
                    let mut y = [[0u32; 4]; COLUMN_TILES];
                    unroll::<COLUMN_TILES>(|j| {
                        let row = turn * TURN + 8 * j as u32 + g;
                        // The swap depends on the lowest bit of the row, which is that of g.
                        let at = row * self.row_bytes + ((part as u32) ^ (g & 1)) * 64 + 16 * t;
                        y[j] = self.rows.add(at).cast::<global::U32x4>().load().0;
                    });
                    unroll::<2>(|step| {
                        unroll::<2>(|i| {
                            let [above, below] = [x[i][0][part], x[i][1][part]];
                            let a = [above[2 * step], below[2 * step], above[2 * step + 1], below[2 * step + 1]];
                            unroll::<COLUMN_TILES>(|j| {
                                mma::mma_m16n8k16_f16(&mut scores[i][j], &a, [y[j][2 * step], y[j][2 * step + 1]]);
                            });
                        });
                    });
                });
                unroll::<COLUMN_TILES>(|j| {
                    let column = turn * TURN + 8 * j as u32 + 2 * t;
                    let value = self.values.add(column).cast::<global::F32x2>().load().0;
                    let norm = self.norms.add(column).cast::<global::F32x2>().load().0;
                    let residual = self.residuals.add(column).cast::<global::F32x2>().load().0;
                    unroll::<2>(|e| {
                        let number = turn * 8 + (2 * j + e) as u32;
                        unroll::<2>(|i| {
                            unroll::<2>(|half| {
                                let v = mul_add_f32(scores[i][j][2 * half + e], self.scale, value[e]);
                                let low = mul_add_f32(per_residual[i][half], residual[e], v);
                                let low = mul_add_f32(per_norm[i][half], norm[e], low);
                                smallest[i][half].insert(f32::from_bits(low.to_bits() & !NUMBER | number));
                            })
                        })
                    })
                });
                turn += 1;
            }

            smallest
        }
    }

    /// Labels a point of each lane, or puts it in a queue; the points are those of the group from `first` on. All lanes
    /// of the warp arrive.
    ///
    /// # Safety
    /// As [`AssignFew`].
    #[device_inline]
    unsafe fn settle_or_queue(&self, first: u32, smallest: [[Smallest; 2]; 2]) {
        let Assignment { point_count, cluster_count, metric, labels, queue_sizes, .. } = self.launch.assignment;
        let Assignment { pending, pending_lists, unbounded, .. } = self.launch.assignment;
        let (lane, all) = (self.lane, self.all);
        let (g, t) = (lane >> 2, lane & 3);
        // Lanes exchange rows: lane t of a quad ends with row 16 · (t & 1) + 8 · (t >> 1) + g.
        let odd = t & 1 != 0;
        let mut kept = [Numbered { first: 0, second: 0, third: 0.0 }; 2];
        unroll::<2>(|half| {
            let [a, b] = [smallest[0][half].numbered(t), smallest[1][half].numbered(t)];
            kept[half] = choose(odd, b, a).merge(choose(odd, a, b).exchange(1));
        });
        let high = t & 2 != 0;
        let found = choose(high, kept[1], kept[0]).merge(choose(high, kept[0], kept[1]).exchange(2));

        // SAFETY: the point is compared with the number of points, and the centroid with that of centroids; the queues
        // have room for all points.
        unsafe {
            let point = first + 16 * (t & 1) + 8 * (t >> 1) + g;
            let exists = point < point_count;
            let terms = self.terms_of(point);
            let bounded = terms.error(metric, all) < f32::INFINITY;
            let (nearest, other) = (payload(found.first), payload(found.second));
            let [first_low, second_low] =
                [found.first, found.second].map(|entry| value_of(crate::select::entry::key(entry)));
            // For a point without a bound this may be any number.
            let at = nearest.min(cluster_count - 1);
            let own = Bounds { norm: self.norms.add(at).load(), residual: self.residuals.add(at).load() };
            let width = terms.error_from(terms.own + 2.0 * QueryTerms::of_base(metric, own), own);
            let limit = first_low + 2.0 * (1.0 + PACKED) * width;
            // The number's bits change both sides. The result is false for NaN and without a bound.
            let beyond = |low: f32| low - PACKED * low.abs() > limit + PACKED * (first_low.abs() + width);
            let proved = exists && bounded && beyond(second_low);
            let several = exists && bounded && !proved && beyond(found.third);
            let lost = exists && !proved && !several;
            if proved {
                global::store(labels.wrapping_add(point as usize), nearest);
            }
            let place = queue_place(*queue_sizes, several, lane) as usize;
            if several {
                global::store(pending.wrapping_add(place), point);
                let list = pending_lists.wrapping_add(place * LIST as usize).cast::<global::U32x4>();
                global::store(list, global::U32x4([nearest, other, NO_ROW, NO_ROW]));
                unroll::<{ LIST as usize / 4 - 1 }>(|quad| {
                    global::store(list.wrapping_add(quad + 1), global::U32x4([NO_ROW; 4]))
                });
            }
            let place = queue_place(queue_sizes.wrapping_add(1), lost, lane) as usize;
            if lost {
                global::store(unbounded.wrapping_add(place), point);
            }
        }
    }
}

/// The body of the kernels, for rows of `PARTS` 64-byte parts.
///
/// # Safety
/// As [`AssignFew`].
#[device_inline]
unsafe fn assign_few<const PARTS: usize>(launch: AssignFew) {
    let Assignment { points, point_count, .. } = launch.assignment;
    let row_bytes = PARTS as u32 * 64;
    let stride = row_bytes / 2;
    // SAFETY: for the whole body, the caller promises the shapes; copies are padded to whole tiles of 128 rows, so
    // loads of points stay inside.
    unsafe {
        let staged = Staged::new(launch, row_bytes);
        // The position of a lane in an operand: row (or column) g of eight, part t of a row's four.
        let (g, t) = (staged.lane >> 2, staged.lane & 3);
        let warps = thread::grid_dim_x() * WARPS;
        // Neighbouring groups go to different multiprocessors, so that all end together.
        let mut group = warp::warp_id() * thread::grid_dim_x() + thread::block_idx_x();
        while group < point_count.div_ceil(WARP_POINTS) {
            let first = group * WARP_POINTS;
            // [i][half][part]: row 16·i + 8·half + g, 16 bytes of each 64.
            let mut x = [[[[0u32; 4]; PARTS]; 2]; 2];
            let (mut per_norm, mut per_residual) = ([[0.0f32; 2]; 2], [[0.0f32; 2]; 2]);
            unroll::<2>(|i| {
                unroll::<2>(|half| {
                    let row = first + (16 * i + 8 * half) as u32 + g;
                    let from = points.wrapping_add((row as usize) * stride as usize + 8 * t as usize);
                    unroll::<PARTS>(|part| {
                        x[i][half][part] = global::load_nc(from.wrapping_add(32 * part).cast::<global::U32x4>()).0
                    });
                    let terms = staged.terms_of(row);
                    (per_norm[i][half], per_residual[i][half]) = (-terms.per_norm, -terms.per_residual);
                })
            });
            let smallest = staged.multiply(x, PointTerms { per_norm, per_residual });
            staged.settle_or_queue(first, smallest);
            group += warps;
        }
    }
}
