//! `wgmma`: two warpgroups multiply directly from shared memory, 64 rows at a time, while their threads do other work.
//! Devices of compute capability 9.0 only.
//!
//! The sums of f16 components are f32, as those of `mma.sync`, but the order of additions may differ, so scores may
//! differ in their last bits. [`crate::product::bounds`] covers either order, so results are the same.

use core::marker::PhantomData;

use cuda_std::shared::SharedPtr;
use cuda_std::warp;
use cuda_std::warp::FULL_MASK;
use cuda_std::wgmma;

use super::{Instruction, Operand, Scores, TileProduct};
use crate::product::element::{F16, I8, U8};
use crate::product::tile::{CHUNK_BYTES, TILE_ROWS};

/// Number of rows that a warpgroup multiplies.
const GROUP_ROWS: u32 = 64;
/// Groups of eight columns in half a tile.
pub const HALF_COLUMNS: usize = 8;

/// Components that a warpgroup multiplies, with 8 · COLUMNS columns.
pub trait GroupOperand<const COLUMNS: usize>: Operand {
    /// Starts the product of a chunk of 64 rows and of the columns' rows of another.
    ///
    /// # Safety
    /// As [`wgmma::start_f16`].
    unsafe fn start(sums: &mut [[Self::Sum; 4]; COLUMNS], rows: SharedPtr<u8>, tile: SharedPtr<u8>, add: bool);

    /// As [`start`](Self::start) with `add` false.
    ///
    /// # Safety
    /// As [`wgmma::start_f16`].
    unsafe fn start_new(sums: &mut [[Self::Sum; 4]; COLUMNS], rows: SharedPtr<u8>, tile: SharedPtr<u8>);

    /// Waits for all products that were started.
    ///
    /// # Safety
    /// As [`wgmma::wait`].
    unsafe fn wait(sums: &mut [[Self::Sum; 4]; COLUMNS]);

    /// [`wgmma::copied`].
    fn copied(sums: &[[Self::Sum; 4]; COLUMNS]) -> [[Self::Sum; 4]; COLUMNS];
}

macro_rules! group_operands {
    ($($columns:literal: $name:ident = $start:ident, $start_new:ident;)*) => {$(
        impl GroupOperand<$columns> for $name {
            #[inline(always)]
            unsafe fn start(sums: &mut [[Self::Sum; 4]; $columns], rows: SharedPtr<u8>, tile: SharedPtr<u8>, add: bool) {
                // SAFETY: the same contract.
                unsafe { wgmma::$start(sums, rows, tile, add) }
            }

            #[inline(always)]
            unsafe fn start_new(sums: &mut [[Self::Sum; 4]; $columns], rows: SharedPtr<u8>, tile: SharedPtr<u8>) {
                // SAFETY: the same contract.
                unsafe { wgmma::$start_new(sums, rows, tile) }
            }

            #[inline(always)]
            unsafe fn wait(sums: &mut [[Self::Sum; 4]; $columns]) {
                // SAFETY: the same contract.
                unsafe { wgmma::wait(sums) }
            }

            #[inline(always)]
            fn copied(sums: &[[Self::Sum; 4]; $columns]) -> [[Self::Sum; 4]; $columns] {
                wgmma::copied(sums)
            }
        }
    )*};
}

group_operands! {
    8: F16 = start_f16, start_new_f16;
    8: U8 = start_u8, start_new_u8;
    8: I8 = start_s8, start_new_s8;
    16: F16 = start_f16, start_new_f16;
    16: U8 = start_u8, start_new_u8;
    16: I8 = start_s8, start_new_s8;
}

/// Two warpgroups with 64 × 8 · COLUMNS of the products each: one below the other for 128 rows and COLUMNS = 16, side
/// by side for 64 rows and COLUMNS = 8, and for half a tile one below the other with COLUMNS = 8
/// ([`Wgmma::halves`]). The components have type `O`.
#[derive(Clone, Copy)]
pub struct Wgmma<const COLUMNS: usize, O = F16> {
    warp: u32,
    lane: u32,
    /// The first row and the first column of the warpgroup.
    first_row: u32,
    first_column: u32,
    /// Whether this is the second half of a tile.
    continues: bool,
    operand: PhantomData<O>,
}

impl<const COLUMNS: usize, O> Wgmma<COLUMNS, O> {
    /// Number of warpgroups side by side.
    const ACROSS: u32 = TILE_ROWS / (8 * COLUMNS as u32);

    /// The offset of the group's rows in a chunk of the rows of the block, in bytes.
    #[inline(always)]
    fn rows_at(&self) -> u32 {
        self.first_row * CHUNK_BYTES
    }

    /// The offset of the rows of the group's columns in a chunk of a tile, in bytes.
    #[inline(always)]
    fn columns_at(&self) -> u32 {
        self.first_column * CHUNK_BYTES
    }
}

/// The sums of half a tile.
pub type HalfSums<O> = Scores<1, HALF_COLUMNS, <O as Operand>::Sum>;

impl<O: GroupOperand<HALF_COLUMNS>> Wgmma<HALF_COLUMNS, O> {
    /// The parts of lane `lane` of warp `warp` in both halves of a tile of 128 columns, for 128 rows.
    #[inline(always)]
    pub fn halves(warp: u32, lane: u32) -> (Self, Self) {
        let first_row = warp / 4 * GROUP_ROWS;
        let first = Wgmma { warp, lane, first_row, first_column: 0, continues: false, operand: PhantomData };
        (first, Wgmma { first_column: 8 * HALF_COLUMNS as u32, continues: true, ..first })
    }

    /// Starts the product of the first chunk of a tile, as [`TileProduct::multiply_chunk`] and without a wait for it.
    ///
    /// # Safety
    /// As [`TileProduct::multiply_chunk`], and as [`wgmma::start_f16`] for the sums.
    #[inline(always)]
    pub unsafe fn start_new(&self, sums: &mut HalfSums<O>, rows: SharedPtr<u8>, tile: SharedPtr<u8>) {
        // SAFETY: as the caller promises; the group's rows and columns are in both chunks.
        unsafe { O::start_new(&mut sums[0], rows.add(self.rows_at()), tile.add(self.columns_at())) }
    }

    /// Starts the product of another chunk of a tile.
    ///
    /// # Safety
    /// As [`start_new`](Self::start_new).
    #[inline(always)]
    pub unsafe fn start(&self, sums: &mut HalfSums<O>, rows: SharedPtr<u8>, tile: SharedPtr<u8>) {
        // SAFETY: as the caller promises; the group's rows and columns are in both chunks.
        unsafe { O::start(&mut sums[0], rows.add(self.rows_at()), tile.add(self.columns_at()), true) }
    }

    /// Waits for all products that were started.
    ///
    /// # Safety
    /// As [`wgmma::wait`].
    #[inline(always)]
    pub unsafe fn wait(&self, sums: &mut HalfSums<O>) {
        // SAFETY: the same contract.
        unsafe { O::wait(&mut sums[0]) }
    }
}

impl<const COLUMNS: usize, O: GroupOperand<COLUMNS>> TileProduct<1, COLUMNS> for Wgmma<COLUMNS, O> {
    const INSTRUCTION: Instruction = Instruction::Wgmma;
    type Sum = O::Sum;
    type Sums = Scores<1, COLUMNS, O::Sum>;
    const START: Self::Sums = [[[O::ZERO; 4]; COLUMNS]; 1];

    #[inline(always)]
    fn new(warp: u32, lane: u32) -> Self {
        let group = warp / 4;
        let (first_row, first_column) = (group / Self::ACROSS * GROUP_ROWS, group % Self::ACROSS * 8 * COLUMNS as u32);
        Wgmma { warp, lane, first_row, first_column, continues: false, operand: PhantomData }
    }

    #[inline(always)]
    fn continues(&self) -> bool {
        self.continues
    }

    #[inline(always)]
    fn publish() {
        wgmma::publish();
    }

    /// Does nothing: the first product of a tile overwrites the sums.
    #[inline(always)]
    fn clear(_: &mut Self::Sums) {}

    #[inline(always)]
    fn first_row(&self) -> u32 {
        self.first_row
    }

    #[inline(always)]
    fn first_column(&self) -> u32 {
        self.first_column
    }

    #[inline(always)]
    fn row(&self, _: usize, half: usize) -> u32 {
        self.first_row + self.warp % 4 * 16 + 8 * half as u32 + (self.lane >> 2)
    }

    #[inline(always)]
    fn column(&self) -> u32 {
        self.first_column() + 2 * (self.lane & 3)
    }

    #[inline(always)]
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
            O::start(&mut sums[0], rows.add(self.rows_at()), tile.add(self.columns_at()), add);
            meanwhile();
            warp::sync_warp(FULL_MASK);
            O::wait(&mut sums[0]);
        }
    }

    #[inline(always)]
    fn scores(sums: &Self::Sums) -> Scores<1, COLUMNS, O::Sum> {
        *sums
    }
}
