//! Limits of a device that determine the shapes of launches.

use std::borrow::Cow;

use warpann_kernels::product::instruction::Instruction;

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
}

/// Kernels of tile products (`warpann_kernels::product::instruction`): `mma.sync` on any device, `wgmma` on compute capability 9.0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "a GPU has one of them"))]
pub(crate) enum Products {
    /// Products by warps, with `mma.sync`.
    Warps,
    /// Products by warpgroups, with `wgmma`.
    Groups,
    /// Both kernels: `wgmma` if the number of tiles is even, else `mma.sync`. The emulator uses this, so that its tests run both.
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
