//! `mma.sync.m16n8k16`, and `m16n8k32` for bytes: each warp reads its rows and columns with `ldmatrix` and multiplies
//! them, independent of other warps. Any device.
//!
//! What lost: four warps of 64 × 64, see [`crate::flat::filter`].

use core::marker::PhantomData;

use cuda_std::shared::SharedPtr;
use cuda_std::warp::FULL_MASK;
use cuda_std::{device_inline, mma, unroll, warp};

use super::{Instruction, Operand, Scores, TileProduct};
use crate::product::element::F16;
use crate::product::tile::part_offset;

/// Number of warps of a block.
const WARPS: u32 = 8;
/// Largest number of columns of a warp, in eights.
const MOST_COLUMNS: usize = 4;

/// Eight warps, `DOWN` of them one below the other. Each has 16 · ROWS of the rows and 8 · COLUMNS of the columns, with
/// components of type `O`.
#[derive(Clone, Copy)]
pub struct MmaSync<const DOWN: u32, const ROWS: usize, const COLUMNS: usize, O: Operand = F16> {
    warp_row: u32,
    warp_column: u32,
    lane: u32,
    operand: PhantomData<O>,
}

impl<const DOWN: u32, const ROWS: usize, const COLUMNS: usize, O: Operand> TileProduct<ROWS, COLUMNS>
    for MmaSync<DOWN, ROWS, COLUMNS, O>
{
    const INSTRUCTION: Instruction = Instruction::MmaSync;
    type Sum = O::Sum;
    type Sums = Scores<ROWS, COLUMNS, O::Sum>;
    const START: Self::Sums = [[[O::ZERO; 4]; COLUMNS]; ROWS];

    #[device_inline]
    fn new(warp: u32, lane: u32) -> Self {
        const { assert!(COLUMNS <= MOST_COLUMNS && COLUMNS.is_multiple_of(2), "two columns of `mma` a load") };
        let across = WARPS / DOWN;
        MmaSync { warp_row: warp / across, warp_column: warp % across, lane, operand: PhantomData }
    }

    #[device_inline]
    fn publish() {}

    #[device_inline]
    fn clear(sums: &mut Self::Sums) {
        *sums = Self::START;
    }

    #[device_inline]
    fn first_row(&self) -> u32 {
        self.warp_row * 16 * ROWS as u32
    }

    #[device_inline]
    fn first_column(&self) -> u32 {
        self.warp_column * 8 * COLUMNS as u32
    }

    #[device_inline]
    fn row(&self, i: usize, half: usize) -> u32 {
        self.first_row() + 16 * i as u32 + 8 * half as u32 + (self.lane >> 2)
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
        _: bool,
        wanted: bool,
        meanwhile: impl FnOnce(),
    ) {
        meanwhile();
        // Copies branch by lane; `ldmatrix` and `mma` need all lanes of the warp together.
        warp::sync_warp(FULL_MASK);
        if !wanted {
            return;
        }
        let lane = self.lane;
        // Addresses for `ldmatrix`: 16 rows by two 16-byte halves; two groups of 8 columns by two halves.
        let (a_row, a_half) = (self.first_row() + (lane & 15), lane >> 4);
        let (b_row, b_half) = (self.first_column() + (lane & 7) + ((lane >> 4) << 3), (lane >> 3) & 1);
        unroll::<4>(|step| {
            let step = 2 * step as u32;
            let mut a = [[0u32; 4]; ROWS];
            let mut b = [[0u32; 4]; MOST_COLUMNS / 2];
            // SAFETY: rows and columns are of the product, parts are below 8, and both chunks are in shared memory, as
            // the caller promises.
            unsafe {
                unroll::<ROWS>(|i| {
                    a[i] = mma::ldmatrix_x4(rows.add(part_offset(a_row + 16 * i as u32, step + a_half)));
                });
                unroll::<{ MOST_COLUMNS / 2 }>(|j| {
                    if 2 * j < COLUMNS {
                        b[j] = mma::ldmatrix_x4(tile.add(part_offset(b_row + 16 * j as u32, step + b_half)));
                    }
                });
                unroll::<ROWS>(|i| {
                    unroll::<COLUMNS>(|j| {
                        let b = [b[j / 2][2 * (j % 2)], b[j / 2][2 * (j % 2) + 1]];
                        O::multiply(&mut sums[i][j], &a[i], b);
                    });
                });
            }
        });
    }

    #[device_inline]
    fn scores(sums: &Self::Sums) -> Scores<ROWS, COLUMNS, O::Sum> {
        *sums
    }
}
