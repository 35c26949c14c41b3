//! `wgmma`: two warpgroups multiply straight from shared memory, 64 rows at a time, while their threads do other work. Devices of compute
//! capability 9.0 alone.
//!
//! The sums are f32, as those of `mma.sync`, but may be added in another order: scores differ in their last bits.
//! [`crate::product::bounds`] covers either order, so what is found is the same.

use cuda_std::shared::SharedPtr;
use cuda_std::warp::FULL_MASK;
use cuda_std::{warp, wgmma};

use super::{Instruction, Scores, TileProduct};
use crate::product::tile::CHUNK_BYTES;

/// Rows that a warpgroup multiplies.
const GROUP_ROWS: u32 = 64;

/// Two warpgroups with 64 × 128 of the products each, one below the other.
#[derive(Clone, Copy)]
pub struct Wgmma {
    warp: u32,
    lane: u32,
}

impl TileProduct<1, 16> for Wgmma {
    const INSTRUCTION: Instruction = Instruction::Wgmma;
    type Sums = Scores<1, 16>;
    const START: Self::Sums = [[[0.0; 4]; 16]; 1];

    #[inline(always)]
    fn new(warp: u32, lane: u32) -> Self {
        Wgmma { warp, lane }
    }

    #[inline(always)]
    fn publish() {
        wgmma::publish();
    }

    /// The first product does.
    #[inline(always)]
    fn clear(_: &mut Self::Sums) {}

    #[inline(always)]
    fn first_row(&self) -> u32 {
        self.warp / 4 * GROUP_ROWS
    }

    #[inline(always)]
    fn first_column(&self) -> u32 {
        0
    }

    #[inline(always)]
    fn row(&self, _: usize, half: usize) -> u32 {
        self.warp * 16 + 8 * half as u32 + (self.lane >> 2)
    }

    #[inline(always)]
    fn column(&self) -> u32 {
        2 * (self.lane & 3)
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
        // SAFETY: the group's 64 rows of a chunk that is there, and 128 rows of another, as the caller promises.
        unsafe {
            warp::sync_warp(FULL_MASK);
            wgmma::start_f16(&mut sums[0], rows.add(self.first_row() * CHUNK_BYTES), tile, add);
            meanwhile();
            warp::sync_warp(FULL_MASK);
            wgmma::wait(&mut sums[0]);
        }
    }

    #[inline(always)]
    fn scores(sums: &Self::Sums) -> Scores<1, 16> {
        *sums
    }
}
