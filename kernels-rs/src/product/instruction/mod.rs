//! The instructions that multiply tiles, a file for each.
//!
//! | module | instruction | devices |
//! |---|---|---|
//! | [`mma_sync`] | `mma.sync`, by warps | all |
//! | [`wgmma`] | `wgmma`, by warpgroups, straight from shared memory | compute capability 9.0 |
//!
//! A new instruction is a file here, with its sums and where they lie, and rows in the `#[kernel]` of the products that it is for. Sums may be of
//! any type and lie anywhere (integers; tensor memory) as long as [`TileProduct::scores`] gives them as f32 in registers.

pub mod mma_sync;
pub mod wgmma;

pub use mma_sync::MmaSync;
pub use wgmma::Wgmma;

use cuda_std::shared::SharedPtr;
use cuda_std::unroll;

use crate::product::mainloop::Ring;

/// The instruction that multiplies a tile: a part of the key of the kernels that have several.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Instruction {
    /// `mma.sync`, by warps ([`MmaSync`]): any device.
    MmaSync,
    /// `wgmma`, by warpgroups ([`Wgmma`]): devices of compute capability 9.0 alone.
    Wgmma,
}

impl Instruction {
    /// The ring of its kernels where the rows of a block are 128.
    pub const fn ring(self) -> Ring {
        match self {
            // What every device has room for.
            Instruction::MmaSync => Ring { resident: 3, streamed: 2 },
            // Two blocks a multiprocessor of 228 KiB.
            Instruction::Wgmma => Ring { resident: 4, streamed: 3 },
        }
    }
}

/// A lane's share of the products of a tile: `[i][j]` holds rows [`TileProduct::row`] (i, 0) and (i, 1), each at columns
/// [`TileProduct::column`] + 8j and the next.
pub type Scores<const ROWS: usize, const COLUMNS: usize> = [[[f32; 4]; COLUMNS]; ROWS];

/// The number `at` of 2 · `COLUMNS`, at most 32, that `entry` has for columns and their halves: by selects, one bit of `at` after the other,
/// so that they stay in registers.
#[inline(always)]
pub fn entry_of<const COLUMNS: usize>(entry: impl Fn(usize, usize) -> f32, at: u32) -> f32 {
    let mut found = [0.0f32; 16];
    unroll::<COLUMNS>(|j| {
        let (even, odd) = (entry(j, 0), entry(j, 1));
        found[j] = if at & 1 != 0 { odd } else { even };
    });
    let mut halve = |left: usize, bit: u32| {
        unroll::<8>(|j| {
            if j < left {
                let (even, odd) = (found[2 * j], found[2 * j + 1]);
                found[j] = if at & bit != 0 { odd } else { even };
            }
        });
    };
    halve(COLUMNS / 2, 2);
    halve(COLUMNS / 4, 4);
    halve(COLUMNS / 8, 8);
    halve(COLUMNS / 16, 16);
    found[0]
}

/// How the warps of a block multiply its rows with the 128 rows of a tile, the columns of the products. A lane has 2 · `ROWS` of the block's
/// rows, each at 2 · `COLUMNS` columns.
pub trait TileProduct<const ROWS: usize, const COLUMNS: usize>: Copy {
    /// Which instruction it is.
    const INSTRUCTION: Instruction;

    /// A lane's sums.
    type Sums: Copy;

    /// Sums before the first tile.
    const START: Self::Sums;

    /// The part of `lane` of `warp`.
    fn new(warp: u32, lane: u32) -> Self;

    /// Makes what this thread wrote to shared memory, and its finished copies, visible to products. Call it before the barrier that precedes
    /// the product.
    fn publish();

    /// The row of the scores `[i][..][2 · half ..]`.
    fn row(&self, i: usize, half: usize) -> u32;

    /// The column of the scores `[..][0][0]`.
    fn column(&self) -> u32;

    /// The first column that the lanes have which multiply together, the same for all of them.
    fn first_column(&self) -> u32;

    /// The first row that the lanes have which multiply together, the same for all of them.
    fn first_row(&self) -> u32;

    /// Makes `sums` ready for the first chunk of a tile.
    fn clear(sums: &mut Self::Sums);

    /// Adds the products of a chunk to `sums`: rows of the block at `rows` times those of the tile at `tile`. `add` says that it is not the
    /// first chunk of the tile. Where the products are not `wanted` the sums mean nothing afterwards. `meanwhile` is done beside the product,
    /// where that runs by itself. All threads of the block arrive.
    ///
    /// # Safety
    /// Both places hold a chunk that was written as [`crate::product::tile`] says, [published](Self::publish) and behind a barrier; they are
    /// aligned to 1024 bytes. The lanes that multiply together agree on `wanted`.
    unsafe fn multiply_chunk(
        &self,
        sums: &mut Self::Sums,
        rows: SharedPtr<u8>,
        tile: SharedPtr<u8>,
        add: bool,
        wanted: bool,
        meanwhile: impl FnOnce(),
    );

    /// The sums as f32.
    fn scores(sums: &Self::Sums) -> Scores<ROWS, COLUMNS>;
}
