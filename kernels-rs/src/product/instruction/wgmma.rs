//! `wgmma`: two warpgroups multiply directly from shared memory, 64 rows at a time, while their threads do other work.
//! Devices of compute capability 9.0 only.
//!
//! The sums of f16 components are f32, as those of `mma.sync`, but the order of additions may differ, so scores may
//! differ in their last bits. [`crate::product::bounds`] covers either order, so results are the same.

use core::marker::PhantomData;
use cuda_std::device_inline;

use cuda_std::shared::SharedPtr;
use cuda_std::warp;
use cuda_std::warp::FULL_MASK;
use cuda_std::wgmma;

use super::{Instruction, Operand, Scores, TileProduct};
use crate::product::element::{Bits, F16, I8, U8};
use crate::product::tile::{CHUNK_BYTES, TILE_ROWS};

/// Number of rows that a warpgroup multiplies.
const GROUP_ROWS: u32 = 64;

/// Components that a warpgroup multiplies, with 8 · COLUMNS columns.
pub trait GroupOperand<const COLUMNS: usize>: Operand {
    /// Starts the product of a chunk of 64 rows and of the columns' rows of another.
    ///
    /// # Safety
    /// As [`wgmma::start_f16`].
    unsafe fn start(sums: &mut [[Self::Sum; 4]; COLUMNS], rows: SharedPtr<u8>, tile: SharedPtr<u8>, add: bool);

    /// Waits for all products that were started.
    ///
    /// # Safety
    /// As [`wgmma::wait`].
    unsafe fn wait(sums: &mut [[Self::Sum; 4]; COLUMNS]);
}

macro_rules! group_operands {
    ($($columns:literal: $name:ident = $start:ident;)*) => {$(
        impl GroupOperand<$columns> for $name {
            #[device_inline]
            unsafe fn start(sums: &mut [[Self::Sum; 4]; $columns], rows: SharedPtr<u8>, tile: SharedPtr<u8>, add: bool) {
                // SAFETY: the same contract.
                unsafe { wgmma::$start(sums, rows, tile, add) }
            }

            #[device_inline]
            unsafe fn wait(sums: &mut [[Self::Sum; 4]; $columns]) {
                // SAFETY: the same contract.
                unsafe { wgmma::wait(sums) }
            }
        }
    )*};
}

group_operands! {
    8: F16 = start_f16;
    8: U8 = start_u8;
    8: I8 = start_s8;
    8: Bits = start_b1;
    16: F16 = start_f16;
    16: U8 = start_u8;
    16: I8 = start_s8;
    16: Bits = start_b1;
}

/// Two warpgroups with 64 × 8 · COLUMNS of the products each: one below the other for 128 rows and COLUMNS = 16, side
/// by side for 64 rows and COLUMNS = 8. The components have type `O`.
#[derive(Clone, Copy)]
pub struct Wgmma<const COLUMNS: usize, O = F16> {
    warp: u32,
    lane: u32,
    operand: PhantomData<O>,
}

impl<const COLUMNS: usize, O> Wgmma<COLUMNS, O> {
    /// Number of warpgroups side by side.
    const ACROSS: u32 = TILE_ROWS / (8 * COLUMNS as u32);
}

impl<const COLUMNS: usize, O: GroupOperand<COLUMNS>> TileProduct<1, COLUMNS> for Wgmma<COLUMNS, O> {
    const INSTRUCTION: Instruction = Instruction::Wgmma;
    type Sum = O::Sum;
    type Sums = Scores<1, COLUMNS, O::Sum>;
    const START: Self::Sums = [[[O::ZERO; 4]; COLUMNS]; 1];

    #[device_inline]
    fn new(warp: u32, lane: u32) -> Self {
        // The compiler sees that all lanes have the same number, and computes addresses once for a warp.
        let warp = warp::shuffle_idx(FULL_MASK, warp, 0);
        Wgmma { warp, lane, operand: PhantomData }
    }

    #[device_inline]
    fn publish() {
        wgmma::publish();
    }

    /// Does nothing: the first product of a tile overwrites the sums.
    #[device_inline]
    fn clear(_: &mut Self::Sums) {}

    #[device_inline]
    fn first_row(&self) -> u32 {
        self.warp / 4 / Self::ACROSS * GROUP_ROWS
    }

    #[device_inline]
    fn first_column(&self) -> u32 {
        self.warp / 4 % Self::ACROSS * 8 * COLUMNS as u32
    }

    #[device_inline]
    fn row(&self, _: usize, half: usize) -> u32 {
        // With one group across, the rows of the warps continue in the next group.
        let warp = if Self::ACROSS == 1 { self.warp } else { self.warp % 4 };
        warp * 16 + 8 * half as u32 + (self.lane >> 2)
    }

    #[device_inline]
    fn column(&self) -> u32 {
        self.first_column() + 2 * (self.lane & 3)
    }

    #[device_inline]
    unsafe fn multiply_chunk(
        &self,
        sums: &mut Self::Sums,
        rows: SharedPtr<u8>,
        tile: SharedPtr<u8>,
        add: bool,
        wanted: bool,
        meanwhile: impl FnOnce(),
    ) {
        if !wanted {
            return meanwhile();
        }
        // SAFETY: the group's 64 rows of one chunk and its columns' rows of the other are in shared memory, as the
        // caller promises.
        unsafe {
            warp::sync_warp(FULL_MASK);
            let (rows, tile) = (rows.add(self.first_row() * CHUNK_BYTES), tile.add(self.first_column() * CHUNK_BYTES));
            O::start(&mut sums[0], rows, tile, add);
            meanwhile();
            warp::sync_warp(FULL_MASK);
            O::wait(&mut sums[0]);
        }
    }

    #[device_inline]
    fn scores(sums: &Self::Sums) -> Scores<1, COLUMNS, O::Sum> {
        *sums
    }
}
