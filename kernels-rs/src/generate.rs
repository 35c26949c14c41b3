//! Generated clustered vectors: a substitute for sets that are too large to store or to copy.
//!
//! # Problem
//! A billion vectors of 96 components are 384 GB. Measuring an index of that size needs vectors that resemble real ones
//! and have the same bits on every device. Each vector must follow from its number alone, so that ground truth and
//! checks need no stored vectors.
//!
//! # Algorithm
//! ```text
//! row     = key(seed, 1, number)                        // 64 bits, different for all numbers
//! cluster = mix(row) / 2³² mod clusters                 // a power of two
//! group   = cluster / 64
//! v[j]    = 3 · deviate(key(seed, 3, group), j) + 2 · deviate(key(seed, 2, cluster), j) + 2 · deviate(row, j)
//! x[j]    = v[j] / (j + 8)
//! ```
//!
//! `key` and `mix` are the finaliser of splitmix64, a bijection; `deviate` hashes key and component to 32 bits and adds
//! up their four bytes: a bell curve (Irwin and Hall's) of standard deviation 148 in integers, its middle subtracted. v
//! is an integer below 2¹², so the division is the only rounding, by IEEE the same on every device.
//!
//! Standard deviations fall with 1 / (j + 8), as those of principal components do: about twenty of 96 components
//! matter, as in the descriptors of such sets. Clusters of a group overlap, and with them the lists of an inverted
//! file: most vectors near a query, but not all, are in its cluster.
//!
//! # Cost
//! Three hashes of about twenty integer operations for each component: 10⁹ × 96 components take about 10¹³ operations,
//! one or two seconds on an H200.

use cuda_std::global::F32x4;
use cuda_std::launch::LaunchConfig;
use cuda_std::{PtrMut, device_inline, global, kernel, thread, unroll, warp};

/// Number of rows of a block; one warp makes one row.
const ROWS_PER_BLOCK: u32 = 8;
/// Binary logarithm of the number of clusters of a group.
const GROUP_BITS: u32 = 6;

/// The finaliser of splitmix64.
#[device_inline]
fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A key for each number: for one seed and level a bijection.
#[device_inline]
fn key(seed: u64, level: u64, number: u64) -> u64 {
    mix(mix(seed.wrapping_add(level)) ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

/// A pseudo-random number from −510 to 510, from a bell curve of standard deviation 148.
#[device_inline]
fn deviate(key: u64, component: u32) -> i32 {
    let mut x = key as u32 ^ component.wrapping_mul(0x9e37_79b9);
    x = (x ^ x >> 16).wrapping_mul(0x85eb_ca6b);
    x = (x ^ x >> 13).wrapping_mul(0xc2b2_ae35);
    // Mixes in the upper half, so that keys with equal lower halves give different results.
    x ^= x >> 16 ^ (key >> 32) as u32;
    x = (x ^ x >> 16).wrapping_mul(0x7feb_352d);
    x = (x ^ x >> 15).wrapping_mul(0x846c_a68b);
    x ^= x >> 16;
    let pairs = (x & 0x00ff_00ff) + (x >> 8 & 0x00ff_00ff);
    ((pairs & 0xffff) + (pairs >> 16)) as i32 - 510
}

/// The keys from which the components of one row are made.
#[derive(Debug, Clone, Copy)]
pub struct RowKeys {
    row: u64,
    cluster: u64,
    group: u64,
}

impl RowKeys {
    /// The keys of row `number` for this seed and number of clusters, which is a power of two.
    #[device_inline]
    pub fn new(seed: u64, clusters: u32, number: u64) -> RowKeys {
        let row = key(seed, 1, number);
        let cluster = (mix(row) >> 32) as u32 & clusters.wrapping_sub(1);
        let group = key(seed, 3, (cluster >> GROUP_BITS) as u64);
        RowKeys { row, cluster: key(seed, 2, cluster as u64), group }
    }

    /// Component `j` of the row.
    #[device_inline]
    pub fn component(self, j: u32) -> f32 {
        let sum = 3 * deviate(self.group, j) + 2 * deviate(self.cluster, j) + 2 * deviate(self.row, j);
        sum as f32 / (j + 8) as f32
    }
}

/// Writes rows of generated vectors.
///
/// # Safety
/// `out` has the length that its documentation states.
#[kernel(max_threads = 256)]
pub unsafe fn generate_rows(
    /// The seed. Vectors of different seeds are independent.
    seed: u64,
    /// Number of clusters, a power of two.
    clusters: u32,
    /// The number of the first row.
    first: u64,
    /// Number of rows.
    count: u32,
    /// Number of components of a row.
    dim: u32,
    /// Distance from one row to the next in components, a multiple of 4. Components from `dim` on become 0.
    stride: u32,
    /// `count` rows, aligned to 16 bytes.
    out: PtrMut<f32>,
) {
    let row = thread::block_idx_x() * ROWS_PER_BLOCK + warp::warp_id();
    if row >= count {
        return;
    }
    let keys = RowKeys::new(seed, clusters, first.wrapping_add(row as u64));
    let to = out.wrapping_add(row as usize * stride as usize);
    let mut quad = warp::lane_id();
    while quad < stride / 4 {
        let mut values = [0.0f32; 4];
        unroll::<4>(|e| {
            let j = 4 * quad + e as u32;
            values[e] = if j < dim { keys.component(j) } else { 0.0 };
        });
        // SAFETY: row < count and quad < stride / 4.
        unsafe { global::store(to.wrapping_add(4 * quad as usize).cast::<F32x4>(), F32x4(values)) };
        quad += 32;
    }
}

impl GenerateRows {
    /// One warp for each row.
    pub fn config(&self) -> LaunchConfig {
        LaunchConfig::warps(self.count as u64, ROWS_PER_BLOCK)
    }
}
