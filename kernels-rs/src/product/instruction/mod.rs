//! The instructions that multiply tiles, with one file for each.
//!
//! | module | instruction | devices |
//! |---|---|---|
//! | [`mma_sync`] | `mma.sync`, by warps | all |
//! | [`wgmma`] | `wgmma`, by warpgroups, straight from shared memory | compute capability 9.0 |
//!
//! A new instruction is a file here, with its sums and their places, and rows in the `#[kernel]` of the products that
//! use it. Sums may have any place (tensor memory) if [`TileProduct::scores`] returns them in registers. [`Operand`]
//! says what is multiplied: f16 components, with f32 sums, or bytes or bits, with exact i32 sums.

pub mod mma_sync;
pub mod wgmma;

pub use mma_sync::MmaSync;
pub use wgmma::Wgmma;

use cuda_std::shared::SharedPtr;
use cuda_std::{device_inline, mma, unroll};

use crate::product::element::{Bits, F16, I8, U8};
use crate::product::ring::Ring;

/// The instruction that multiplies a tile: a part of the key of kernels that exist for several.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Instruction {
    /// `mma.sync`, by warps ([`MmaSync`]): any device.
    MmaSync,
    /// `wgmma`, by warpgroups ([`Wgmma`]): devices of compute capability 9.0 only.
    Wgmma,
}

impl Instruction {
    /// The ring of the instruction's kernels if a block has 128 rows.
    pub const fn ring(self) -> Ring {
        match self {
            // Every device has room for this ring.
            Instruction::MmaSync => Ring { resident: 3, streamed: 2 },
            // Two blocks of this ring fit a multiprocessor of 228 KiB.
            Instruction::Wgmma => Ring { resident: 4, streamed: 3 },
        }
    }
}

/// The type of a sum of products.
pub trait Sum: Copy + Default {
    /// The nearest f32.
    fn to_f32(self) -> f32;

    /// The sum as a word.
    fn bits(self) -> u32;

    /// The sum of a [word](Self::bits).
    fn of_bits(bits: u32) -> Self;
}

impl Sum for f32 {
    #[device_inline]
    fn to_f32(self) -> f32 {
        self
    }

    #[device_inline]
    fn bits(self) -> u32 {
        self.to_bits()
    }

    #[device_inline]
    fn of_bits(bits: u32) -> f32 {
        f32::from_bits(bits)
    }
}

impl Sum for i32 {
    #[device_inline]
    fn to_f32(self) -> f32 {
        self as f32
    }

    #[device_inline]
    fn bits(self) -> u32 {
        self as u32
    }

    #[device_inline]
    fn of_bits(bits: u32) -> i32 {
        bits as i32
    }
}

/// The components that are multiplied. In a chunk in shared memory the components of all of them lie in the same way,
/// so instructions differ by name and by their sums only.
pub trait Operand: Copy {
    /// The type of the sums: exact i32 for bytes and bits.
    type Sum: Sum;

    /// The sum of no products.
    const ZERO: Self::Sum;

    /// Adds the products of 32 bytes of 16 rows and of 8 columns (`mma.sync`).
    ///
    /// # Safety
    /// All lanes of the warp arrive, at the same call.
    unsafe fn multiply(sums: &mut [Self::Sum; 4], rows: &[u32; 4], columns: [u32; 2]);
}

macro_rules! operands {
    ($($name:ident: $sum:ty, $zero:literal, $mma:ident;)*) => {$(
        impl Operand for $name {
            type Sum = $sum;
            const ZERO: $sum = $zero;

            #[device_inline]
            unsafe fn multiply(sums: &mut [$sum; 4], rows: &[u32; 4], columns: [u32; 2]) {
                // SAFETY: the same contract.
                unsafe { mma::$mma(sums, rows, columns) }
            }
        }
    )*};
}

operands! {
    F16: f32, 0.0, mma_m16n8k16_f16;
    U8: i32, 0, mma_m16n8k32_u8;
    I8: i32, 0, mma_m16n8k32_s8;
    Bits: i32, 0, mma_m16n8k256_b1;
}

/// A lane's share of the products of a tile: `[i][j]` has rows [`TileProduct::row`] (i, 0) and (i, 1), each at columns
/// [`TileProduct::column`] + 8j and + 8j + 1.
pub type Scores<const ROWS: usize, const COLUMNS: usize, Sum = f32> = [[[Sum; 4]; COLUMNS]; ROWS];

/// Number `at` of the 2 · `COLUMNS`, at most 32, numbers that `entry` returns for columns and their halves. It is found
/// by selects, one bit of `at` after the other, so that the numbers stay in registers.
#[device_inline]
pub fn entry_of<const COLUMNS: usize, T: Copy + Default>(entry: impl Fn(usize, usize) -> T, at: u32) -> T {
    let mut found = [T::default(); 16];
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

/// The way in which the warps of a block multiply its rows with the 128 rows of a tile, which are the columns of the
/// products. A lane has 2 · `ROWS` of the block's rows, each at 2 · `COLUMNS` columns.
pub trait TileProduct<const ROWS: usize, const COLUMNS: usize>: Copy {
    /// The instruction of this product.
    const INSTRUCTION: Instruction;

    /// The type of a product: f32 for f16 components, i32 for bytes.
    type Sum: Sum;

    /// The type of all sums of a lane.
    type Sums: Copy;

    /// The sums before the first tile.
    const START: Self::Sums;

    /// The part of lane `lane` of warp `warp`.
    fn new(warp: u32, lane: u32) -> Self;

    /// Makes this thread's writes to shared memory, and its finished copies, visible to products. Call it before the
    /// barrier that precedes the product.
    fn publish();

    /// The row of the scores `[i][..][2 · half ..]`.
    fn row(&self, i: usize, half: usize) -> u32;

    /// The column of the scores `[..][0][0]`.
    fn column(&self) -> u32;

    /// The first column of the lanes that multiply together, the same for all of them.
    fn first_column(&self) -> u32;

    /// The first row of the lanes that multiply together, the same for all of them.
    fn first_row(&self) -> u32;

    /// Makes `sums` ready for the first chunk of a tile.
    fn clear(sums: &mut Self::Sums);

    /// Adds the products of a chunk to `sums`: rows of the block at `rows` times those of the tile at `tile`. `add` is
    /// false for the first chunk of the tile. If the products are not `wanted`, the sums are unspecified afterwards.
    /// `meanwhile` is called during the product if that is asynchronous. All threads of the block arrive.
    ///
    /// # Safety
    /// Both places hold a chunk in the layout of [`crate::product::tile`], which was [published](Self::publish) before
    /// a barrier; they are aligned to 1024 bytes. The lanes that multiply together pass the same `wanted`.
    unsafe fn multiply_chunk(
        &self,
        sums: &mut Self::Sums,
        rows: SharedPtr<u8>,
        tile: SharedPtr<u8>,
        add: bool,
        wanted: bool,
        meanwhile: impl FnOnce(),
    );

    /// The sums of a tile.
    fn scores(sums: &Self::Sums) -> Scores<ROWS, COLUMNS, Self::Sum>;
}
