//! The main loop of every tile product. The tiles of the other side pass chunk by chunk through a ring of stages in
//! shared memory, and each is multiplied with the rows of the block.
//!
//! # Problem
//! Kernels that compare many vectors with many others have the same inner loop. Chunks of 64 components are loaded from
//! global memory into shared memory, the warps of a block multiply them, and the products of a tile are used. This file
//! is that loop. The parts that differ are traits:
//!
//! | part | trait | examples |
//! |---|---|---|
//! | the source of the rows | [`Operands`] | f16 copies, codes that are decoded on the way |
//! | the instruction that multiplies, and its sums | [`TileProduct`] | `mma.sync`, `wgmma` |
//! | the use of the products of a tile | [`Epilogue`] | bounds, candidates, the nearest, scores |
//!
//! # How it maps to the machine
//! 1. The rows of the block stay in shared memory if they fit ([`Residency`]), which halves the traffic. Otherwise
//!    their chunks pass through the ring with those of the tiles.
//! 2. The load cursor is `stages - 1` steps ahead of the products, across the borders of tiles, so the pipeline does
//!    not drain before the last tile. A step is one chunk of one tile.
//! 3. With one stage a chunk is made just before its use: for operands that are computed and leave no room for more
//!    stages.
//! 4. Two chunks can share a wait and a barrier: warps that differ in their use of a tile then meet half as often.

use cuda_std::shared::SharedPtr;
use cuda_std::{async_copy, device_inline, thread, unroll, warp};

use crate::product::instruction::{Scores, TileProduct};
pub use crate::product::ring::{RESIDENT_CHUNKS, Residency, Ring};
use crate::product::tile::CHUNK_TILE_BYTES;

/// Waits for the oldest chunk of a ring of `stages` stages; the chunks of all stages but one are in flight.
#[device_inline]
pub fn wait_for_stage(stages: u32) {
    match stages {
        1 => async_copy::wait_all(),
        2 => async_copy::wait_group::<0>(),
        3 => async_copy::wait_group::<1>(),
        _ => async_copy::wait_group::<2>(),
    }
}

/// The source of the rows of a block and of the tiles. All threads of the block make the same calls. A chunk is
/// complete after a commit of the asynchronous copies, the wait for it, and a barrier.
pub trait Operands {
    /// Starts to load chunk `chunk` of the rows of the block.
    ///
    /// # Safety
    /// The chunk exists, and `to` has room for it.
    unsafe fn load_rows(&mut self, to: SharedPtr<u8>, chunk: u32);

    /// Starts to load chunk `chunk` of tile `tile`, and with the first chunk the data of the tile that the epilogue
    /// needs. The calls are in the order of tiles, and of chunks in a tile.
    ///
    /// # Safety
    /// The tile and the chunk exist, and `to` has room for 16 KiB.
    unsafe fn load_tile(&mut self, to: SharedPtr<u8>, tile: u32, chunk: u32);
}

/// The use of the products of a tile. All threads of the block make the same calls.
pub trait Epilogue<P: TileProduct<ROWS, COLUMNS>, const ROWS: usize, const COLUMNS: usize> {
    /// Work while the first chunks are in flight. The rows of the block are at `rows` if they are resident.
    ///
    /// # Safety
    /// The first steps of the pipeline were started.
    #[device_inline]
    unsafe fn begin(&mut self, _rows: SharedPtr<u8>) {}

    /// Work before the first product of a tile. One barrier separates it from the last [`Self::tile`], and another from
    /// the next, unless two chunks share one.
    ///
    /// # Safety
    /// The tile exists.
    #[device_inline]
    unsafe fn before_tile(&mut self, _tile: u32) {}

    /// Whether the products of this part of the tile are used. The lanes that multiply together return the same.
    #[device_inline]
    fn wanted(&self, _part: &P) -> bool {
        true
    }

    /// Uses the products of a tile. Products that are not [wanted](Self::wanted) are unspecified.
    ///
    /// # Safety
    /// The data that [`Operands::load_tile`] loaded with the tile is in shared memory.
    unsafe fn tile(&mut self, part: &P, tile: u32, scores: &Scores<ROWS, COLUMNS, P::Sum>);
}

/// One pass of tiles over the rows of a block.
#[derive(Clone, Copy)]
pub struct Pass {
    /// The chunks in shared memory: those of the rows of the block if they are resident, then the stages.
    pub at: SharedPtr<u8>,
    /// Number of bytes of a chunk of the rows of the block.
    pub rows_bytes: u32,
    /// Number of chunks of a row.
    pub chunks: u32,
    /// Number of tiles of the pass.
    pub tiles: u32,
    /// Number of stages of the ring.
    pub stages: u32,
}

impl Pass {
    /// The start of the first stage, and the distance from one stage to the next in bytes.
    #[device_inline]
    pub fn ring(self, resident: bool) -> (SharedPtr<u8>, u32) {
        if resident {
            // SAFETY: the stages follow the chunks of the rows, for which the launch gave room.
            (unsafe { self.at.add(self.chunks * self.rows_bytes) }, CHUNK_TILE_BYTES)
        } else {
            (self.at, CHUNK_TILE_BYTES + self.rows_bytes)
        }
    }

    /// Multiplies the rows of the block with each tile. All threads of the block arrive. `TOGETHER` chunks share a wait
    /// and a barrier: 1, or 2 of 4 stages.
    ///
    /// # Safety
    /// Shared memory has room for the chunks of a pass; chunks and tiles exist. No thread uses that room any more.
    #[device_inline]
    pub unsafe fn run<
        P: TileProduct<ROWS, COLUMNS>,
        const ROWS: usize,
        const COLUMNS: usize,
        const RESIDENT: bool,
        const TOGETHER: u32,
    >(
        self,
        operands: &mut impl Operands,
        epilogue: &mut impl Epilogue<P, ROWS, COLUMNS>,
    ) {
        let Pass { at, rows_bytes, chunks, tiles, stages } = self;
        let (ring, stage_bytes) = self.ring(RESIDENT);
        // SAFETY: stages are below `stages` and chunks below `chunks`, so all addresses lie in the room that the caller
        // promises; a stage is refilled after the barrier that follows its last product.
        unsafe {
            if RESIDENT {
                let mut chunk = 0;
                while chunk < chunks {
                    operands.load_rows(at.add(chunk * rows_bytes), chunk);
                    chunk += 1;
                }
            }
            let (mut load_tile, mut load_chunk, mut load_stage) = (0u32, 0u32, 0u32);
            let mut load_step = || {
                if load_tile < tiles {
                    let to = ring.add(load_stage * stage_bytes);
                    operands.load_tile(to, load_tile, load_chunk);
                    if !RESIDENT {
                        operands.load_rows(to.add(CHUNK_TILE_BYTES), load_chunk);
                    }
                    load_stage = if load_stage + 1 == stages { 0 } else { load_stage + 1 };
                    load_chunk += 1;
                    if load_chunk == chunks {
                        load_chunk = 0;
                        load_tile += 1;
                    }
                }
                async_copy::commit();
            };
            unroll::<3>(|s| {
                if (s as u32) < stages - TOGETHER {
                    load_step();
                }
            });
            epilogue.begin(at);

            let part = P::new(warp::warp_id(), warp::lane_id());
            let mut sums = P::START;
            let (mut stage, mut tile, mut waited) = (0, 0, 0);
            while tile < tiles {
                epilogue.before_tile(tile);
                P::clear(&mut sums);
                let mut chunk = 0;
                while chunk < chunks {
                    // Whether this chunk is the first of those that come together.
                    let first = TOGETHER == 1 || waited == 0;
                    if first {
                        wait_for_stage(stages / TOGETHER);
                        if stages > 1 {
                            P::publish();
                        }
                        // Also orders the last reads of the stages, and of the data of their tiles, before the loads
                        // that overwrite them.
                        thread::sync_threads();
                    }
                    if TOGETHER > 1 {
                        waited = if waited + 1 == TOGETHER { 0 } else { waited + 1 };
                    }
                    if stages == 1 {
                        load_step();
                        P::publish();
                        thread::sync_threads();
                    }
                    let tile_at = ring.add(stage * stage_bytes);
                    let rows_at = if RESIDENT { at.add(chunk * rows_bytes) } else { tile_at.add(CHUNK_TILE_BYTES) };
                    let wanted = epilogue.wanted(&part);
                    part.multiply_chunk(&mut sums, rows_at, tile_at, chunk > 0, wanted, || {
                        if stages > 1 && first {
                            load_step();
                            if TOGETHER > 1 {
                                load_step();
                            }
                        }
                    });
                    stage = if stage + 1 == stages { 0 } else { stage + 1 };
                    chunk += 1;
                }
                epilogue.tile(&part, tile, &P::scores(&sums));
                tile += 1;
            }
            async_copy::wait_all();
        }
    }
}
