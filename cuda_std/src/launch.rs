//! What a launch needs: a kernel, its arguments by name, and the shape of the grid. [`kernel`](macro@crate::kernel) makes the first two.

#[cfg(not(target_arch = "nvptx64"))]
mod kernel;

pub use cuda_std_macros::Param;
#[cfg(not(target_arch = "nvptx64"))]
pub use kernel::{ArgumentRange, Choice, Kernel, KernelArgs, MAX_PARAMS, Param, RawArgs, raw_arg};

/// Size of a launch. Numbers of blocks are as wide as a kernel's own sizes make them; whoever launches checks them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LaunchConfig {
    /// Blocks in x, y, z; none zero.
    pub grid: [u64; 3],
    /// Threads of a block in x, y, z; none zero, 1024 in all at most.
    pub block: [u32; 3],
    /// Bytes of dynamic shared memory a block has.
    pub shared_bytes: u32,
}

/// Most blocks of a grid in x, y and z.
pub const MOST_BLOCKS: [u64; 3] = [(1 << 31) - 1, 65_535, 65_535];

impl LaunchConfig {
    /// `blocks` blocks of `threads` threads, both along x, without dynamic shared memory.
    pub const fn linear(blocks: u64, threads: u32) -> Self {
        Self { grid: [blocks, 1, 1], block: [threads, 1, 1], shared_bytes: 0 }
    }

    /// `warps` warps, `warps_per_block` of them a block, in blocks along x, without dynamic shared memory.
    pub const fn warps(warps: u64, warps_per_block: u32) -> Self {
        Self::linear(warps.div_ceil(warps_per_block as u64), 32 * warps_per_block)
    }

    /// The same, `rows` times along y.
    pub const fn along_y(self, rows: u64) -> Self {
        Self { grid: [self.grid[0], rows, self.grid[2]], ..self }
    }

    /// The same with so many bytes of dynamic shared memory a block.
    pub const fn with_shared(self, shared_bytes: u32) -> Self {
        Self { shared_bytes, ..self }
    }
}
