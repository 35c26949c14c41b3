//! The parts of a launch: a kernel, its arguments by name, and the shape of the grid. [`kernel`](macro@crate::kernel)
//! makes the first two.

#[cfg(not(target_arch = "nvptx64"))]
mod dependent;
#[cfg(not(target_arch = "nvptx64"))]
mod kernel;

pub use cuda_std_macros::Param;
#[cfg(not(target_arch = "nvptx64"))]
pub use dependent::dependent_ptx;
#[cfg(not(target_arch = "nvptx64"))]
pub use kernel::{ArgumentRange, Choice, Kernel, KernelArgs, MAX_PARAMS, Param, RawArgs, raw_arg};

/// Shape of a launch. Numbers of blocks are 64 bits wide, so that computing them from data sizes does not overflow; the
/// launch checks them against [`MOST_BLOCKS`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LaunchConfig {
    /// Numbers of blocks in x, y and z, each at least 1.
    pub grid: [u64; 3],
    /// Numbers of threads of a block in x, y and z, each at least 1; their product is at most 1024.
    pub block: [u32; 3],
    /// Bytes of dynamic shared memory of each block.
    pub shared_bytes: u32,
    /// Number of blocks of a cluster, consecutive along x: 1, 2, 4, 8 or [`MOST_CLUSTER_BLOCKS`]. 1 means that there
    /// are no clusters. The number of blocks in x is a multiple of it. See [`crate::cluster`].
    pub cluster: u32,
}

/// Largest numbers of blocks of a grid in x, y and z.
pub const MOST_BLOCKS: [u64; 3] = [(1 << 31) - 1, 65_535, 65_535];
/// Largest number of blocks of a cluster. Devices that have clusters take [`PORTABLE_CLUSTER_BLOCKS`]; some take more.
pub const MOST_CLUSTER_BLOCKS: u32 = 16;
/// Largest number of blocks of a cluster that every device with clusters takes.
pub const PORTABLE_CLUSTER_BLOCKS: u32 = 8;

impl LaunchConfig {
    /// `blocks` blocks of `threads` threads, both along x, without dynamic shared memory.
    pub const fn linear(blocks: u64, threads: u32) -> Self {
        Self { grid: [blocks, 1, 1], block: [threads, 1, 1], shared_bytes: 0, cluster: 1 }
    }

    /// At least `warps` warps along x, in blocks of `warps_per_block` warps, without dynamic shared memory. The last
    /// block may have more warps than needed.
    pub const fn warps(warps: u64, warps_per_block: u32) -> Self {
        Self::linear(warps.div_ceil(warps_per_block as u64), 32 * warps_per_block)
    }

    /// The same launch with `rows` blocks along y.
    pub const fn along_y(self, rows: u64) -> Self {
        Self { grid: [self.grid[0], rows, self.grid[2]], ..self }
    }

    /// The same launch with `shared_bytes` bytes of dynamic shared memory per block.
    pub const fn with_shared(self, shared_bytes: u32) -> Self {
        Self { shared_bytes, ..self }
    }

    /// The same launch with clusters of `blocks` blocks along x.
    pub const fn with_cluster(self, blocks: u32) -> Self {
        Self { cluster: blocks, ..self }
    }

    /// Whether the clusters are of a size that exists and divide the blocks along x.
    pub const fn clusters_fit(&self) -> bool {
        self.cluster.is_power_of_two()
            && self.cluster <= MOST_CLUSTER_BLOCKS
            && self.grid[0].is_multiple_of(self.cluster as u64)
    }
}
