//! Totals of an iteration of k-means, and the next centroids, from the sums of each cluster. One warp for each cluster.
//!
//! ```text
//! totals:  ⟨c, S⟩ and ‖c‖² in the canonical order of [`crate::product::canonical`];  W = number of points if they have no weights
//! update:  c = f32((S · 2^-s) / (W · 2^-t)), in f64; no change if W = 0
//!          if the sums have several levels, S · 2^-s and W · 2^-t are added up over the levels, the last first
//!          spherical: c = f32(c / ‖c‖), ‖c‖² in the canonical order; zero stays zero
//! ```
//!
//! # Cost
//! One read of k·d sums of 8 bytes and of centroids of 4 bytes: 6 MB for 4096 × 128, microseconds.

use cuda_std::launch::LaunchConfig;
use cuda_std::warp::butterfly_sum;
use cuda_std::{Ptr, PtrMut, device_inline, global, kernel, math, thread, unroll, warp};

use crate::product::element::{self, Element};

/// Number of warps in a block of these kernels.
const WARPS_PER_BLOCK: u32 = 4;

/// Sums of `levels` levels, `size` words each, and the unit of each level.
#[derive(Clone, Copy)]
struct Levels {
    sums: *const u64,
    size: usize,
    units: *const f64,
    levels: u32,
}

impl Levels {
    /// `COUNT` sums from `first` on, each added up over the levels, as numbers.
    ///
    /// # Safety
    /// The sums are readable, and so are the units.
    #[device_inline]
    unsafe fn numbers<const COUNT: usize>(self, first: usize) -> [f64; COUNT] {
        let mut numbers = [0.0; COUNT];
        let mut level = self.levels;
        while level > 0 {
            level -= 1;
            let row = self.sums.wrapping_add(level as usize * self.size + first);
            // SAFETY: as the caller promises.
            unsafe {
                let unit = global::load_nc(self.units.wrapping_add(level as usize));
                unroll::<COUNT>(|e| numbers[e] += global::load_nc(row.wrapping_add(e)) as i64 as f64 * unit);
            }
        }
        numbers
    }
}

/// Writes ⟨c, S⟩ and ‖c‖² of each cluster, and its number of points if points have no weights.
///
/// # Safety
/// The arrays are as long as the fields say.
#[kernel(max_threads = 128, cluster_totals = totals)]
pub struct ClusterTotals {
    /// Number of clusters.
    pub clusters: u32,
    /// Distance in components from one row of `centroids` and `sums` to the next: a multiple of 4, zero padded.
    pub stride: u32,
    /// The centroids: one row for each cluster.
    pub centroids: Ptr<f32>,
    /// S: for each level one row for each cluster, of i64 in two's complement.
    pub sums: Ptr<u64>,
    /// Number of levels of the sums.
    pub levels: u32,
    /// The value of 1 in the sums of each level.
    pub units: Ptr<f64>,
    /// The number of points of each cluster.
    pub counts: Ptr<u32>,
    /// Whether points have weights: if 0, `counts` is copied to `weights`.
    pub weighted: u32,
    /// W: one word for each cluster, in the first level.
    pub weights: PtrMut<u64>,
    /// ⟨c, S⟩ of each cluster.
    pub products: PtrMut<f64>,
    /// ‖c‖² of each cluster.
    pub norms: PtrMut<f64>,
}

impl ClusterTotals {
    /// One warp for each cluster.
    pub fn config(&self) -> LaunchConfig {
        LaunchConfig::warps(self.clusters as u64, WARPS_PER_BLOCK)
    }
}

/// # Safety
/// As [`ClusterTotals`].
#[device_inline]
unsafe fn totals(launch: ClusterTotals) {
    let ClusterTotals { clusters, stride, centroids, sums, levels, units, counts, .. } = launch;
    let ClusterTotals { weighted, weights, products, norms, .. } = launch;
    let cluster = thread::block_idx_x() * WARPS_PER_BLOCK + warp::warp_id();
    if cluster >= clusters {
        return;
    }
    let lane = warp::lane_id();
    let (cluster, quads) = (cluster as usize, stride / 4);
    let row = cluster * stride as usize;
    let sums = Levels { sums: *sums, size: clusters as usize * stride as usize, units: *units, levels };
    let (mut acc, mut squares) = ([0.0f64; 4], [0.0f64; 4]);
    let mut base = 0;
    while base < quads {
        let quad = base + lane;
        if quad < quads {
            // SAFETY: cluster < clusters, quad < quads.
            let (c, s) = unsafe {
                (element::F32::load4(centroids.wrapping_add(row), quad), sums.numbers::<4>(row + 4 * quad as usize))
            };
            unroll::<4>(|e| {
                acc[e] += c[e] as f64 * s[e];
                squares[e] += c[e] as f64 * c[e] as f64;
            });
        }
        base += 32;
    }
    let product = butterfly_sum((acc[0] + acc[1]) + (acc[2] + acc[3]));
    let norm = butterfly_sum((squares[0] + squares[1]) + (squares[2] + squares[3]));
    if lane == 0 {
        // SAFETY: cluster < clusters.
        unsafe {
            global::store(products.wrapping_add(cluster), product);
            global::store(norms.wrapping_add(cluster), norm);
            if weighted == 0 {
                global::store(weights.wrapping_add(cluster), global::load_nc(counts.wrapping_add(cluster)) as u64);
            }
        }
    }
}

/// Replaces each centroid whose weight is not 0 by the mean of its points, S / W.
///
/// # Safety
/// The arrays are as long as the fields say, after [`ClusterTotals`].
#[kernel(max_threads = 128, update_centroids = update)]
pub struct UpdateCentroids {
    /// Number of clusters.
    pub clusters: u32,
    /// Distance in components from one row of `centroids` and `sums` to the next: a multiple of 4, zero padded.
    pub stride: u32,
    /// S: for each level one row for each cluster, of i64 in two's complement.
    pub sums: Ptr<u64>,
    /// Number of levels of the sums and of the weights.
    pub levels: u32,
    /// The value of 1 in the sums of each level.
    pub units: Ptr<f64>,
    /// W: for each level one word for each cluster.
    pub weights: Ptr<u64>,
    /// The value of 1 in the weights of each level.
    pub weight_units: Ptr<f64>,
    /// Not 0: centroids are divided by their norms.
    pub spherical: u32,
    /// The centroids: one row for each cluster.
    pub centroids: PtrMut<f32>,
}

impl UpdateCentroids {
    /// One warp for each cluster.
    pub fn config(&self) -> LaunchConfig {
        LaunchConfig::warps(self.clusters as u64, WARPS_PER_BLOCK)
    }
}

/// # Safety
/// As [`UpdateCentroids`].
#[device_inline]
unsafe fn update(launch: UpdateCentroids) {
    let UpdateCentroids { clusters, stride, sums, levels, units, weights, weight_units, spherical, centroids } = launch;
    let cluster = thread::block_idx_x() * WARPS_PER_BLOCK + warp::warp_id();
    if cluster >= clusters {
        return;
    }
    let lane = warp::lane_id();
    let quads = stride / 4;
    // SAFETY: cluster < clusters, quads are below `quads`; a lane reads only its own writes.
    unsafe {
        let weights = Levels { sums: *weights, size: clusters as usize, units: *weight_units, levels };
        let [weight] = weights.numbers::<1>(cluster as usize);
        if weight == 0.0 {
            return;
        }
        let sums = Levels { sums: *sums, size: clusters as usize * stride as usize, units: *units, levels };
        let row = cluster as usize * stride as usize;
        let centroid = centroids.wrapping_add(row);
        let store = |quad: u32, c: [f32; 4]| {
            global::store(centroid.wrapping_add(4 * quad as usize).cast::<global::F32x4>(), global::F32x4(c));
        };
        let mut acc = [0.0f64; 4];
        let mut base = 0;
        while base < quads {
            let quad = base + lane;
            if quad < quads {
                let mut c = [0.0f32; 4];
                // One sum at a time: with four of them in registers the calls of the divisions spill.
                unroll::<4>(|e| {
                    let [sum] = sums.numbers::<1>(row + 4 * quad as usize + e);
                    c[e] = (sum / weight) as f32;
                    acc[e] += c[e] as f64 * c[e] as f64;
                });
                store(quad, c);
            }
            base += 32;
        }
        if spherical != 0 {
            let norm = math::sqrt_f64(butterfly_sum((acc[0] + acc[1]) + (acc[2] + acc[3])));
            let mut base = 0;
            while base < quads {
                let quad = base + lane;
                if quad < quads && norm > 0.0 {
                    let mut c = global::load(centroid.wrapping_add(4 * quad as usize).cast::<global::F32x4>()).0;
                    unroll::<4>(|e| c[e] = (c[e] as f64 / norm) as f32);
                    store(quad, c);
                }
                base += 32;
            }
        }
    }
}
