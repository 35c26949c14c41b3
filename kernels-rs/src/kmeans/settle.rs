//! Canonical distances for the points whose nearest centroid [`crate::kmeans::assign`] did not prove, and the best of
//! them.
//!
//! # Problem
//! `assign` writes two queues on the device: points with a few candidates each (some percent of all: two centroids
//! within the error of half precision), and points for which nothing is proved (duplicates of centroids, numbers near
//! f32's limits). Their labels are argmin of (canonical distance as f32, lower number), over the candidates or over all
//! centroids.
//!
//! # Algorithm
//! [`Settle`]: one warp for each point, `BATCH` candidates at once ([`crate::product::canonical`]). [`SettleAll`]: one
//! block for each point. Its warps share the centroids, and an atomic minimum in shared memory finds the smallest (key,
//! number). Only the device has the queues' lengths, so blocks iterate over the queues with the grid as the stride.
//!
//! # Cost
//! About d/8 f64 operations for each lane and candidate. The time is that of reading one row of points and a few
//! centroids from L2.

use cuda_std::launch::LaunchConfig;
use cuda_std::{Ptr, PtrMut, atomic, device_inline, global, kernel, shared_array, thread, unroll, warp};

use crate::NO_ROW;
use crate::kmeans::assign::LIST;
use crate::product::canonical::{self, BATCH};
use crate::product::element::{self, Element, ElementKey};
use crate::product::metric::Metric;
use crate::select::entry::{EMPTY, key_of, pack, payload};

/// Number of warps in a block of [`Settle`].
const WARPS_PER_BLOCK: u32 = 4;
/// Number of warps in a block of [`SettleAll`].
const WARPS_FOR_ALL: u32 = 16;

/// The points and centroids of a launch.
#[derive(Clone, Copy)]
struct Sides<E: Element> {
    points: *const E::Stored,
    centroids: *const f32,
    stride: u32,
    metric: Metric,
}

impl<E: Element> Sides<E> {
    /// The best of `BATCH` centroids for a point as (key, number), on all lanes; `NO_ROW` stands for no centroid. All
    /// 32 lanes arrive.
    ///
    /// # Safety
    /// The point exists, and so does each centroid that is not `NO_ROW`.
    #[device_inline]
    unsafe fn best(self, point: u32, clusters: [u32; BATCH], lane: u32) -> u64 {
        let x = self.points.wrapping_add(point as usize * self.stride as usize);
        let mut rows = [self.centroids; BATCH];
        unroll::<BATCH>(|b| {
            let row = if clusters[b] == NO_ROW { 0 } else { clusters[b] };
            rows[b] = self.centroids.wrapping_add(row as usize * self.stride as usize);
        });
        let quads = self.stride / 4;
        // SAFETY: as the caller promises; row 0 is read instead of `NO_ROW`.
        let sums = unsafe {
            canonical::sums_by(
                self.metric,
                |quad| E::load4(x, quad),
                |b, quad| element::F32::load4(rows[b], quad),
                quads,
                lane,
            )
        };
        let mut best = EMPTY;
        unroll::<BATCH>(|b| {
            let key = key_of(sums[b] as f32);
            let entry = pack(self.metric.order(key), clusters[b]);
            best = best.min(if clusters[b] == NO_ROW { EMPTY } else { entry });
        });
        best
    }
}

/// Labels each pending point with the best of its candidates, by canonical squared L2 or inner product.
///
/// # Safety
/// The arrays are as long as the fields say, and every point and candidate of the queue exists.
#[kernel(
    key = ElementKey,
    max_threads = 128,
    min_blocks = 4,
    ElementKey::F32 => settle_f32 = settle::<element::F32>,
    ElementKey::F16 => settle_f16 = settle::<element::F16>,
    ElementKey::Bf16 => settle_bf16 = settle::<element::Bf16>,
    ElementKey::U8 => settle_u8 = settle::<element::U8>,
    ElementKey::I8 => settle_i8 = settle::<element::I8>,
)]
pub struct Settle {
    /// Rows of `stride` components, of the type of the key.
    pub points: Ptr<u8>,
    /// Rows of `stride` components.
    pub centroids: Ptr<f32>,
    /// Distance from one row to the next in components: a multiple of 4, zero padded.
    pub stride: u32,
    /// Squared L2 or inner product.
    pub metric: Metric,
    /// Number of pending points: one word.
    pub queue_size: Ptr<u32>,
    /// The numbers of the pending points: at least `queue_size`.
    pub pending: Ptr<u32>,
    /// The candidates of each pending point: [`LIST`] centroids, [`NO_ROW`] after the last.
    pub pending_lists: Ptr<u32>,
    /// A label for each point, by the point's number.
    pub labels: PtrMut<u32>,
}

impl Settle {
    /// One warp for each pending point, in turn. Only the device has the number of pending points, which is at most
    /// `points`; the launch has no more warps than `multiprocessors` run at once.
    pub fn config(&self, points: u32, multiprocessors: u32) -> LaunchConfig {
        LaunchConfig::warps((points as u64).min(multiprocessors as u64 * 64), WARPS_PER_BLOCK)
    }
}

/// # Safety
/// As [`Settle`].
#[device_inline]
unsafe fn settle<E: Element>(launch: Settle) {
    let Settle { centroids, stride, queue_size, pending, pending_lists, labels, .. } = launch;
    let (points, metric) = (launch.points.cast(), launch.metric);
    let sides = Sides::<E> { points: *points, centroids: *centroids, stride, metric };
    let lane = warp::lane_id();
    // SAFETY: the caller promises the queue, whose places below its size are filled.
    unsafe {
        let size = global::load_nc(*queue_size);
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

/// Labels each unbounded point with the best of all centroids, by canonical squared L2 or inner product.
///
/// # Safety
/// The arrays are as long as the fields say, and every point of the queue exists.
#[kernel(
    key = ElementKey,
    max_threads = 512,
    ElementKey::F32 => settle_all_f32 = settle_all::<element::F32>,
    ElementKey::F16 => settle_all_f16 = settle_all::<element::F16>,
    ElementKey::Bf16 => settle_all_bf16 = settle_all::<element::Bf16>,
    ElementKey::U8 => settle_all_u8 = settle_all::<element::U8>,
    ElementKey::I8 => settle_all_i8 = settle_all::<element::I8>,
)]
pub struct SettleAll {
    /// Rows of `stride` components, of the type of the key.
    pub points: Ptr<u8>,
    /// `clusters` rows of `stride` components.
    pub centroids: Ptr<f32>,
    /// Distance from one row to the next in components: a multiple of 4, zero padded.
    pub stride: u32,
    /// Squared L2 or inner product.
    pub metric: Metric,
    /// Number of centroids.
    pub clusters: u32,
    /// Number of unbounded points: one word.
    pub queue_size: Ptr<u32>,
    /// The numbers of the unbounded points: at least `queue_size`.
    pub unbounded: Ptr<u32>,
    /// A label for each point, by the point's number.
    pub labels: PtrMut<u32>,
}

impl SettleAll {
    /// One block for each unbounded point, in turn. Only the device has the number of unbounded points, which is at
    /// most `points`; the launch has no more blocks than `multiprocessors` run at once.
    pub fn config(&self, points: u32, multiprocessors: u32) -> LaunchConfig {
        LaunchConfig::linear((points as u64).min(multiprocessors as u64 * 4), 32 * WARPS_FOR_ALL)
    }
}

/// # Safety
/// As [`SettleAll`].
#[device_inline]
unsafe fn settle_all<E: Element>(launch: SettleAll) {
    let SettleAll { centroids, stride, clusters, queue_size, unbounded, labels, .. } = launch;
    let (points, metric) = (launch.points.cast(), launch.metric);
    let sides = Sides::<E> { points: *points, centroids: *centroids, stride, metric };
    let lane = warp::lane_id();
    let thread = thread::thread_idx_x();
    let winner = shared_array!(u64, 1);
    // SAFETY: the caller promises the queue, whose places below its size are filled; between barriers either thread 0
    // writes the shared word, or the warps change it by atomics.
    unsafe {
        let size = global::load_nc(*queue_size);
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
