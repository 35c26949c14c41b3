//! What launches are shaped by.

use warpann_kernels::product::instruction::Instruction;

/// What launches are shaped by.
#[derive(Debug, Clone)]
pub(crate) struct Limits {
    /// The device's product name: measured choices are kept by it.
    pub device: String,
    /// Multiprocessors: how many blocks it takes to fill the device.
    pub multiprocessors: u32,
    /// Bytes of dynamic shared memory that a block may have.
    pub shared_bytes: u32,
    /// Whether this is the emulator. Algorithms choose sizes so small there that small tests reach every path.
    pub emulated: bool,
    /// Which kernels of tile products it runs.
    pub products: Products,
}

/// Kernels of tile products (`warpann_kernels::product::instruction`): by warps on any device, by warpgroups on compute capability 9.0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "a GPU has one of them"))]
pub(crate) enum Products {
    /// By warps.
    Warps,
    /// By warpgroups.
    Groups,
    /// Both: by warpgroups where the number of tiles is even, so that the emulator's tests see either.
    Both,
}

impl Products {
    /// The instruction of a launch over so many tiles.
    pub fn instruction(self, tiles: u32) -> Instruction {
        match self {
            Products::Warps => Instruction::MmaSync,
            Products::Groups => Instruction::Wgmma,
            Products::Both if tiles.is_multiple_of(2) => Instruction::Wgmma,
            Products::Both => Instruction::MmaSync,
        }
    }
}
