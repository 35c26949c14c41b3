//! The place of chunks in shared memory during a tile product: the rows of the block, and the ring of stages of the
//! tiles.

use crate::product::tile::{CHUNK, CHUNK_TILE_BYTES};
use cuda_std::device_inline;

/// Largest number of chunks of the rows of a block that stay in shared memory during a pass, if block and tile have 128
/// rows each.
pub const RESIDENT_CHUNKS: u32 = 2;

/// Number of stages of a ring of chunks in shared memory.
#[derive(Clone, Copy)]
pub struct Ring {
    /// If the rows of the block are resident: a stage then has a chunk of a tile.
    pub resident: u32,
    /// If the rows of the block are streamed: a stage has a chunk of a tile and one of the rows of the block.
    pub streamed: u32,
}

impl Ring {
    /// Number of stages of the ring.
    #[device_inline]
    pub const fn stages(self, resident: bool) -> u32 {
        if resident { self.resident } else { self.streamed }
    }

    /// Bytes of shared memory for 128 rows of `chunks` chunks, resident if [`Residency::of`] says so.
    pub const fn bytes(self, chunks: u32) -> u32 {
        if chunks <= RESIDENT_CHUNKS {
            (chunks + self.resident) * CHUNK_TILE_BYTES
        } else {
            self.streamed * 2 * CHUNK_TILE_BYTES
        }
    }
}

/// The place of the rows of a block during a pass of tiles.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Residency {
    /// All chunks of the rows stay in shared memory: at most [`RESIDENT_CHUNKS`].
    Resident,
    /// The chunks of the rows pass through the ring with those of the tiles: any number.
    Streamed,
}

impl Residency {
    /// The residency of rows of `stride` components, a multiple of [`CHUNK`].
    pub const fn of(stride: u32) -> Residency {
        Residency::of_chunks(stride / CHUNK)
    }

    /// The residency of rows of `chunks` chunks.
    pub const fn of_chunks(chunks: u32) -> Residency {
        if chunks <= RESIDENT_CHUNKS { Residency::Resident } else { Residency::Streamed }
    }
}
