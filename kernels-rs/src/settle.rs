//! The nearest centroid where [`crate::assign`] proved no single one: canonical distances, and the best of them.
//!
//! # Problem
//! `assign` leaves two queues on the device: points with a few candidates each (some percent of all: two centroids
//! within the error of half precision), and points about which nothing is proved (duplicates of centroids, numbers near
//! f32's limits). Their labels are argmin of (canonical distance as f32, lower number), over the candidates or over all
//! centroids.
//!
//! # Algorithm
//! [`settle_f32`]: a warp a point, `BATCH` candidates at once ([`canonical::sums`]). [`settle_all_f32`]: a block a
//! point, its warps share the centroids, the smallest (key, number) is found by an atomic minimum in shared memory. The
//! queues' lengths are known to the device only: blocks stride over them.
//!
//! # Cost
//! About d/8 f64 operations a lane and candidate; what counts is one row of points and a few centroids read from L2.

use cuda_std::{atomic, global, kernel, shared_array, thread, unroll, warp};

use crate::NO_ROW;
use crate::assign::LIST;
use crate::canonical::{self, BATCH};
use crate::element::{self, Element};
use crate::entry::{EMPTY, key_of, pack, payload};

/// Warps in a block of the `settle_*` kernels.
pub const WARPS_PER_BLOCK: u32 = 4;
/// Warps in a block of the `settle_all_*` kernels.
pub const WARPS_FOR_ALL: u32 = 16;

/// The points and centroids of a launch.
#[derive(Clone, Copy)]
struct Sides<E: Element> {
    points: *const E::Stored,
    centroids: *const f32,
    stride: u32,
    squared_difference: bool,
}

impl<E: Element> Sides<E> {
    /// The best of `BATCH` centroids for a point as (key, number), on all lanes; `NO_ROW` stands for none. All 32 lanes
    /// arrive.
    ///
    /// # Safety
    /// The point exists, and each centroid that is not `NO_ROW`.
    #[inline(always)]
    unsafe fn best(self, point: u32, clusters: [u32; BATCH], lane: u32) -> u64 {
        let x = self.points.wrapping_add(point as usize * self.stride as usize);
        let mut rows = [self.centroids; BATCH];
        unroll::<BATCH>(|b| {
            let row = if clusters[b] == NO_ROW { 0 } else { clusters[b] };
            rows[b] = self.centroids.wrapping_add(row as usize * self.stride as usize);
        });
        let quads = self.stride / 4;
        // SAFETY: as the caller promises; row 0 stands in for none.
        let sums = unsafe {
            if self.squared_difference {
                canonical::sums::<true>(
                    |quad| E::load4(x, quad),
                    |b, quad| element::F32::load4(rows[b], quad),
                    quads,
                    lane,
                )
            } else {
                canonical::sums::<false>(
                    |quad| E::load4(x, quad),
                    |b, quad| element::F32::load4(rows[b], quad),
                    quads,
                    lane,
                )
            }
        };
        let mut best = EMPTY;
        unroll::<BATCH>(|b| {
            let key = key_of(sums[b] as f32);
            let entry = pack(if self.squared_difference { key } else { !key }, clusters[b]);
            best = best.min(if clusters[b] == NO_ROW { EMPTY } else { entry });
        });
        best
    }
}

/// Body of the `settle_*` kernels.
///
/// # Safety
/// As [`settle_f32`].
#[inline(always)]
unsafe fn settle<E: Element>(
    sides: Sides<E>,
    queue_size: *const u32,
    pending: *const u32,
    pending_lists: *const u32,
    labels: *mut u32,
) {
    let lane = warp::lane_id();
    // SAFETY: the caller promises the queue, whose places below its size are filled.
    unsafe {
        let size = global::load_nc(queue_size);
        let mut place = thread::block_idx_x() * WARPS_PER_BLOCK + warp::warp_id();
        while place < size {
            let point = global::load_nc(pending.wrapping_add(place as usize));
            let list = pending_lists.wrapping_add(place as usize * LIST as usize);
            let mut best = EMPTY;
            let mut from = 0;
            while from < LIST {
                let mut clusters = [NO_ROW; BATCH];
                unroll::<BATCH>(|b| clusters[b] = global::load_nc(list.wrapping_add(from as usize + b)));
                // Lists are filled from the front.
                if clusters[0] != NO_ROW {
                    best = best.min(sides.best(point, clusters, lane));
                }
                from += BATCH as u32;
            }
            if lane == 0 {
                global::store(labels.wrapping_add(point as usize), payload(best));
            }
            place += thread::grid_dim_x() * WARPS_PER_BLOCK;
        }
    }
}

/// Body of the `settle_all_*` kernels.
///
/// # Safety
/// As [`settle_all_f32`].
#[inline(always)]
unsafe fn settle_all<E: Element>(
    sides: Sides<E>,
    clusters: u32,
    queue_size: *const u32,
    unbounded: *const u32,
    labels: *mut u32,
) {
    let lane = warp::lane_id();
    let thread = thread::thread_idx_x();
    let winner = shared_array!(u64, 1);
    // SAFETY: the caller promises the queue, whose places below its size are filled; thread 0 alone writes the shared
    // word between barriers, the others by atomics.
    unsafe {
        let size = global::load_nc(queue_size);
        let mut place = thread::block_idx_x();
        while place < size {
            if thread == 0 {
                winner.store(EMPTY);
            }
            thread::sync_threads();
            let point = global::load_nc(unbounded.wrapping_add(place as usize));
            let mut best = EMPTY;
            let mut first = warp::warp_id() * BATCH as u32;
            while first < clusters {
                let mut batch = [NO_ROW; BATCH];
                unroll::<BATCH>(|b| batch[b] = if first + (b as u32) < clusters { first + b as u32 } else { NO_ROW });
                best = best.min(sides.best(point, batch, lane));
                first += WARPS_FOR_ALL * BATCH as u32;
            }
            if lane == 0 {
                atomic::shared_min_u64(winner, best);
            }
            thread::sync_threads();
            if thread == 0 {
                global::store(labels.wrapping_add(point as usize), payload(winner.load()));
            }
            place += thread::grid_dim_x();
        }
    }
}

macro_rules! define_kernels {
    ($(($element:ident, $stored:ty, $settle:ident, $sh:ident, $all:ident, $ah:ident, $add:ident, $dh:ident,
        $level:ident, $lh:ident))*) => {$(
        /// Labels of the first `*queue_size` points of `pending`: each the best of its [`LIST`] candidates in
        /// `pending_lists` (`NO_ROW`: none), by canonical squared L2 (`squared_difference` ≠ 0) or inner product.
        ///
        /// Rows of `points` and `centroids` have `stride` components, a multiple of 4, zero padded. Grid: any, blocks
        /// of 128.
        ///
        /// # Safety
        /// All pointers cover the shapes above; every point and candidate exists.
        #[kernel(max_threads = 128, min_blocks = 4)]
        pub unsafe fn $settle(
            points: *const $stored, centroids: *const f32, stride: u32, squared_difference: u32, queue_size: *const u32,
            pending: *const u32, pending_lists: *const u32, labels: *mut u32,
        ) {
            let squared_difference = squared_difference != 0;
            // SAFETY: the same contract.
            unsafe {
                settle(
                    Sides::<element::$element> { points, centroids, stride, squared_difference },
                    queue_size, pending, pending_lists, labels,
                )
            }
        }

        /// Labels of the first `*queue_size` points of `unbounded`: each the best of all `clusters` centroids;
        /// otherwise as
        #[doc = concat!("[`", stringify!($settle), "`]. Grid: any, blocks of 512.")]
        ///
        /// # Safety
        /// All pointers cover the shapes above; every point exists.
        #[kernel(max_threads = 512)]
        pub unsafe fn $all(
            points: *const $stored, centroids: *const f32, stride: u32, squared_difference: u32, clusters: u32,
            queue_size: *const u32, unbounded: *const u32, labels: *mut u32,
        ) {
            let squared_difference = squared_difference != 0;
            // SAFETY: the same contract.
            unsafe {
                settle_all(
                    Sides::<element::$element> { points, centroids, stride, squared_difference },
                    clusters, queue_size, unbounded, labels,
                )
            }
        }
    )*};
}
crate::clustering_instances!(define_kernels);
