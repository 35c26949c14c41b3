//! What k-means makes of a cluster's sums: the totals of an iteration, and the next centroid. One warp a cluster.
//!
//! ```text
//! totals:  ⟨c, S⟩ and ‖c‖² in the canonical order of [`crate::product::canonical`];  W = number of points where they have no weights
//! update:  c = f32((S · 2^-s) / (W · 2^-t)), in f64; nothing changes where W = 0
//!          S · 2^-s and W · 2^-t are added up over levels, the last first, where the sums have several
//!          spherical: c = f32(c / ‖c‖), ‖c‖² in the canonical order; zero stays zero
//! ```
//!
//! # Cost
//! One read of k·d sums of 8 bytes and centroids of 4: 6 MB for 4096 × 128, microseconds.

use cuda_std::launch::LaunchConfig;
use cuda_std::warp::butterfly_sum;
use cuda_std::{Ptr, PtrMut, global, kernel, math, thread, unroll, warp};

use crate::product::element::{self, Element};

/// Warps in a block of these kernels.
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
    /// `COUNT` sums of each level from `first` on, as numbers.
    ///
    /// # Safety
    /// They are readable, as are the units.
    #[inline(always)]
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

/// Writes ⟨c, S⟩ and ‖c‖² of each cluster, and its number of points where they have no weights.
///
/// # Safety
/// The arrays are as long as the fields say.
#[kernel(max_threads = 128, cluster_totals = totals)]
pub struct ClusterTotals {
    /// Clusters.
    pub clusters: u32,
    /// Components from one row of `centroids` and `sums` to the next: a multiple of 4, zero padded.
    pub stride: u32,
    /// A row for each cluster.
    pub centroids: Ptr<f32>,
    /// S: for each level a row for each cluster, of i64 in two's complement.
    pub sums: Ptr<u64>,
    /// Levels of the sums.
    pub levels: u32,
    /// What 1 stands for in the sums of each level.
    pub units: Ptr<f64>,
    /// The points of each cluster.
    pub counts: Ptr<u32>,
    /// Whether points have weights: where it is 0, `counts` goes to `weights`.
    pub weighted: u32,
    /// A word for each cluster, in the first level.
    pub weights: PtrMut<u64>,
    /// ⟨c, S⟩ of each cluster.
    pub products: PtrMut<f64>,
    /// ‖c‖² of each cluster.
    pub norms: PtrMut<f64>,
}

impl ClusterTotals {
    /// A warp a cluster.
    pub fn config(&self) -> LaunchConfig {
        LaunchConfig::warps(self.clusters as u64, WARPS_PER_BLOCK)
    }
}

/// # Safety
/// As [`ClusterTotals`].
#[inline(always)]
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

/// Replaces each centroid that has weight by the mean of its points, S / W.
///
/// # Safety
/// The arrays are as long as the fields say, after [`ClusterTotals`].
#[kernel(max_threads = 128, update_centroids = update)]
pub struct UpdateCentroids {
    /// Clusters.
    pub clusters: u32,
    /// Components from one row of `centroids` and `sums` to the next: a multiple of 4, zero padded.
    pub stride: u32,
    /// S: for each level a row for each cluster, of i64 in two's complement.
    pub sums: Ptr<u64>,
    /// Levels of the sums and of the weights.
    pub levels: u32,
    /// What 1 stands for in the sums of each level.
    pub units: Ptr<f64>,
    /// W: for each level a word for each cluster.
    pub weights: Ptr<u64>,
    /// What 1 stands for in the weights of each level.
    pub weight_units: Ptr<f64>,
    /// Not 0: centroids are divided by their norms.
    pub spherical: u32,
    /// A row for each cluster.
    pub centroids: PtrMut<f32>,
}

impl UpdateCentroids {
    /// A warp a cluster.
    pub fn config(&self) -> LaunchConfig {
        LaunchConfig::warps(self.clusters as u64, WARPS_PER_BLOCK)
    }
}

/// # Safety
/// As [`UpdateCentroids`].
#[inline(always)]
unsafe fn update(launch: UpdateCentroids) {
    let UpdateCentroids { clusters, stride, sums, levels, units, weights, weight_units, spherical, centroids } = launch;
    let cluster = thread::block_idx_x() * WARPS_PER_BLOCK + warp::warp_id();
    if cluster >= clusters {
        return;
    }
    let lane = warp::lane_id();
    let quads = stride / 4;
    // SAFETY: cluster < clusters, quads below `quads`; a lane reads back what it wrote itself.
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
                // One sum at a time: with four of them in registers the divisions' calls spill.
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
