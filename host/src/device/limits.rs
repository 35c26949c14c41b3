//! Limits of a device that determine the shapes of launches, and the limits of CUDA that every launch must keep.

use std::borrow::Cow;

use cuda_std::launch::{LaunchConfig, MOST_BLOCKS, MOST_CLUSTER_BLOCKS};
use warpann_kernels::product::instruction::Instruction;

use crate::{Error, Result};

/// Limits of a device that determine the shapes of launches.
#[derive(Debug, Clone)]
pub(crate) struct Limits {
    /// Product name of the device. Tables of measured choices are indexed by it.
    pub device: Cow<'static, str>,
    /// Number of multiprocessors, from which algorithms compute how many blocks fill the device.
    pub multiprocessors: u32,
    /// Largest dynamic shared memory of a block in bytes.
    pub shared_bytes: u32,
    /// Whether this is the emulator. Algorithms choose small sizes there, so that small tests reach every path.
    pub emulated: bool,
    /// The kernels of tile products that the device runs.
    pub products: Products,
    /// Largest number of blocks of a cluster; 0 if the device does not run the kernels that use clusters.
    pub largest_cluster: u32,
}

/// Kernels of tile products (`warpann_kernels::product::instruction`): `mma.sync` on any device, `wgmma` on compute
/// capability 9.0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "a GPU has one of them"))]
pub(crate) enum Products {
    /// Products by warps, with `mma.sync`.
    Warps,
    /// Products by warpgroups, with `wgmma`.
    Groups,
    /// Both kernels: `wgmma` if the number of tiles is even, else `mma.sync`. The emulator uses this, so that its tests
    /// run both.
    Both,
}

impl Products {
    /// The instruction of a launch over `tiles` tiles.
    pub fn instruction(self, tiles: u32) -> Instruction {
        match self {
            Products::Warps => Instruction::MmaSync,
            Products::Groups => Instruction::Wgmma,
            Products::Both if tiles.is_multiple_of(2) => Instruction::Wgmma,
            Products::Both => Instruction::MmaSync,
        }
    }
}

/// Fails with [`Error::LaunchLimit`] if the grid or the block exceeds the limits of CUDA, or the block those of the
/// kernel.
pub(crate) fn check_launch(kernel: &'static str, max_threads: Option<u32>, config: LaunchConfig) -> Result<()> {
    let refused = |what, asked, limit| Err(Error::LaunchLimit { kernel, what, asked, limit });
    for ((what, asked), limit) in ["grid x", "grid y", "grid z"].into_iter().zip(config.grid).zip(MOST_BLOCKS) {
        if asked > limit {
            return refused(what, asked, limit);
        }
    }
    if !config.clusters_fit() {
        return refused("blocks a cluster", config.cluster.into(), MOST_CLUSTER_BLOCKS.into());
    }
    let threads = config.block.iter().map(|&threads| u64::from(threads)).product();
    let limit = max_threads.map_or(1024, u64::from);
    if threads > limit { refused("threads a block", threads, limit) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cuda_std::kernel(max_threads = 256)]
    unsafe fn bounded() {}

    #[test]
    fn a_grid_has_as_many_blocks_as_31_bits_count_and_16_along_the_others() {
        let checked = |grid, threads| {
            check_launch(
                Bounded::KERNEL.name(),
                Bounded::KERNEL.max_threads(),
                LaunchConfig { grid, ..LaunchConfig::linear(1, threads) },
            )
        };
        let clusters = |blocks, cluster| {
            check_launch("bounded", None, LaunchConfig::linear(blocks, 32).with_cluster(cluster)).is_ok()
        };
        assert!(clusters(1, 1) && clusters(32, 16) && clusters(6, 2));
        assert!(!clusters(32, 0) && !clusters(32, 32) && !clusters(6, 4) && !clusters(6, 3));
        for (grid, threads) in [([1, 1, 1], 256), ([0x7fff_ffff, 1, 1], 1), ([1, 65_535, 65_535], 32)] {
            checked(grid, threads).unwrap();
        }
        for (grid, threads, expected) in [
            ([0x8000_0000, 1, 1], 1, ("grid x", 0x8000_0000, 0x7fff_ffff)),
            ([u64::MAX, 1, 1], 1, ("grid x", u64::MAX, 0x7fff_ffff)),
            ([1, 65_536, 1], 1, ("grid y", 65_536, 65_535)),
            ([1, 1, 65_536], 1, ("grid z", 65_536, 65_535)),
            ([1, 1, 1], 257, ("threads a block", 257, 256)),
        ] {
            match checked(grid, threads) {
                Err(Error::LaunchLimit { kernel: "bounded", what, asked, limit }) => {
                    assert_eq!((what, asked, limit), expected);
                }
                other => panic!("{other:?}"),
            }
        }
    }
}
