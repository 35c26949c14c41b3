//! The main loop for products of warpgroups, a tile in two halves: one half is multiplied while the other is used.
//!
//! # Problem
//! [`Pass::run`] multiplies a tile, waits, and uses its sums. A warpgroup cannot do both at once, because the sums stay
//! in its registers. Two blocks a multiprocessor hide little of it: the filter of exact search with 128 bytes a vector
//! took 1,250 cycles a tile, of which the tensor cores worked 512 and the schedulers issued for 690 (H200).
//!
//! # Algorithm
//! A warpgroup has sums for columns 0 to 63 of a tile and for columns 64 to 127:
//!
//! ```text
//! for each tile t:
//!     wait for its chunks, barrier
//!     start the product of the first half
//!     use the second half of tile t - 1
//!     wait for the product
//!     start the product of the second half
//!     start to load another tile
//!     use the first half of tile t
//!     wait for the product
//! use the second half of the last tile
//! ```
//!
//! So a product is in flight whenever sums are used, and each wait is for a product that had that time. Waits are for
//! all products: ptxas serialises the products of a loop that never does so.
//!
//! At the barrier of a tile every product of the tile before is done in all warpgroups, so another may overwrite it.

use cuda_std::warp::FULL_MASK;
use cuda_std::{async_copy, thread, warp};

use crate::product::instruction::wgmma::{GroupOperand, HALF_COLUMNS};
use crate::product::instruction::{TileProduct, Wgmma};
use crate::product::mainloop::{Epilogue, Operands, Pass, wait_for_stage};
use crate::product::ring::RESIDENT_CHUNKS;
use crate::product::tile::CHUNK_TILE_BYTES;

const _: () = assert!(RESIDENT_CHUNKS == 2);

/// The product of half a tile.
type Half<O> = Wgmma<HALF_COLUMNS, O>;

impl Pass {
    /// As [`Pass::run`], for rows of the block that are resident, with one or two chunks. The epilogue gets the two
    /// halves of a tile one after the other. It has no work before a tile and wants all products.
    ///
    /// # Safety
    /// As [`Pass::run`]. The ring has room for two tiles.
    #[inline(always)]
    pub unsafe fn run_halves<O: GroupOperand<HALF_COLUMNS>>(
        self,
        operands: &mut impl Operands,
        epilogue: &mut impl Epilogue<Half<O>, 1, HALF_COLUMNS>,
    ) {
        let Pass { at, rows_bytes, chunks, tiles, stages } = self;
        let (ring, _) = self.ring(true);
        // Places for tiles, of one or two stages each.
        let (places, place_bytes) = (stages / chunks, chunks * CHUNK_TILE_BYTES);
        // SAFETY: places are below `places` and chunks below `chunks`, so all addresses lie in the room that the caller
        // promises; a place is filled again after the barrier that follows its last product. All lanes of a warp arrive
        // at the products, since branches depend on numbers of tiles and chunks.
        unsafe {
            let mut chunk = 0;
            while chunk < chunks {
                operands.load_rows(at.add(chunk * rows_bytes), chunk);
                chunk += 1;
            }
            let (mut loaded, mut load_at) = (0u32, 0u32);
            let mut load = || {
                if loaded < tiles {
                    let to = ring.add(load_at * place_bytes);
                    operands.load_tile(to, loaded, 0);
                    if chunks == 2 {
                        operands.load_tile(to.add(CHUNK_TILE_BYTES), loaded, 1);
                    }
                    load_at = if load_at + 1 == places { 0 } else { load_at + 1 };
                    loaded += 1;
                }
                async_copy::commit();
            };
            let mut ahead = 1;
            while ahead < places {
                load();
                ahead += 1;
            }
            epilogue.begin(at);

            let (first, second) = Half::<O>::halves(warp::warp_id(), warp::lane_id());
            let (mut first_sums, mut second_sums) = (Half::<O>::START, Half::<O>::START);
            let mut carried = second_sums;
            let (mut place, mut tile) = (0, 0);
            while tile < tiles {
                wait_for_stage(places);
                Half::<O>::publish();
                thread::sync_threads();
                let tile_at = ring.add(place * place_bytes);
                place = if place + 1 == places { 0 } else { place + 1 };
                let start = |half: &Half<O>, sums: &mut _| {
                    warp::sync_warp(FULL_MASK);
                    half.start_new(sums, at, tile_at);
                    if chunks == 2 {
                        half.start(sums, at.add(rows_bytes), tile_at.add(CHUNK_TILE_BYTES));
                    }
                };
                start(&first, &mut first_sums);
                if tile > 0 {
                    epilogue.tile(&second, tile - 1, &carried);
                }
                warp::sync_warp(FULL_MASK);
                first.wait(&mut first_sums);
                start(&second, &mut second_sums);
                load();
                epilogue.tile(&first, tile, &first_sums);
                warp::sync_warp(FULL_MASK);
                second.wait(&mut second_sums);
                carried = [O::copied(&second_sums[0])];
                tile += 1;
            }
            epilogue.tile(&second, tiles - 1, &carried);
            async_copy::wait_all();
        }
    }
}
