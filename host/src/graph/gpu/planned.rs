//! Walks from device memory to device memory, which only enqueue work on a stream: no copy to or from the host, no
//! allocation, no wait.
//!
//! ```text
//! queries ──stage_rows──► padded, checked ──as from the host (`mod.rs`)──► rows ──name_results──► ids
//! ```

use std::sync::Arc;

use cuda_std::PtrMut;

use super::{Batch, DeviceLinks, DeviceWalk, Image, Plan, WalkShape, nodes_and_rows};
use crate::Result;
use crate::device::queue::OnStream;
use crate::device::runtime::Memory;
use crate::device::scratch::{Layout, Reserved};
use crate::product::gpu::VectorShape;
use crate::search::staging::{StagedRows, stage_rows_to};
use crate::search::{Found, Given, PlannedSearch, TileSearch};
use crate::threads::apart;

/// Planned walks for a tile with their memory.
struct PlannedWalk {
    image: Arc<Image>,
    rows: PtrMut<u8>,
    shape: WalkShape,
    plan: Plan,
    scratch: Memory,
    /// A bit for each node, and one for each row if rows are equal; `None` if all may be results.
    bits: Option<[Reserved<u32>; 2]>,
    bit_memory: Memory,
    bit_bytes: usize,
    /// Number of queries of a tile.
    tile: usize,
}

impl DeviceWalk<'_> {
    /// Plans walks for up to `queries` queries, of which a tile is done at a time. `names` has the id of each row;
    /// `None` means that it is the row. Allocates, uploads the graph, and waits for all of it.
    ///
    /// # Errors
    /// [`Error::OutOfDeviceMemory`](crate::Error::OutOfDeviceMemory), errors of the device's driver.
    pub(in super::super) fn planned(
        &self,
        device: &DeviceLinks,
        queries: usize,
        names: Option<&[u64]>,
    ) -> Result<PlannedSearch> {
        let (runtime, lanes) = (self.resident.runtime, self.resident.lanes);
        let tile = queries.clamp(1, self.most_of_tile());
        let plan = self.plan(tile);
        let mut layout = Layout::default();
        let bits = self.bits().map(|bits| bits.map(|bits| layout.array(bits.len())));
        let walk = PlannedWalk {
            image: self.image(device)?,
            rows: self.resident.rows,
            shape: self.shape_of_walks(),
            scratch: runtime.allocate(plan.bytes)?,
            plan,
            bits,
            bit_memory: runtime.allocate(layout.bytes())?,
            bit_bytes: layout.bytes(),
            tile,
        };
        if let (Some(to), Some(bits)) = (bits, self.bits()) {
            // `apart` keeps a pool thread from starting another search while it has a lane.
            apart(|| {
                lanes.with(runtime, |lane| {
                    for (to, bits) in to.into_iter().zip(bits) {
                        let to = runtime.scratch(&walk.bit_memory).at(to);
                        // SAFETY: the memory has room for the bits, and no other work uses it.
                        unsafe { runtime.copy_to_device(&lane.stream, to, bits)? };
                    }
                    runtime.synchronize(&lane.stream)
                })
            })?;
        }
        let k = walk.shape.k;
        PlannedSearch::new(runtime, lanes, Box::new(walk), k, names)
    }
}

impl TileSearch for PlannedWalk {
    fn bytes(&self) -> usize {
        self.plan.bytes + self.bit_bytes
    }

    fn shape(&self) -> VectorShape {
        self.shape.vectors
    }

    fn most(&self) -> usize {
        self.tile
    }

    unsafe fn find(&self, on: OnStream<'_>, _plan: usize, given: Given) -> Result<Found> {
        let (runtime, shape) = (on.runtime, self.shape.vectors);
        let bits = runtime.scratch(&self.bit_memory);
        let filters = self.bits.map(|places| nodes_and_rows(places.map(|place| bits.at(place))));
        let places = self.plan.places(runtime.scratch(&self.scratch), filters);
        // SAFETY: the plan reserved every part for a tile, the stream runs these in order, and the caller promises
        // queries and words.
        unsafe {
            given.stage(on, shape, places.queries)?;
            if !self.shape.own_rows && self.shape.coded.is_none() {
                let notes = StagedRows { refused: None, first_refused: None };
                stage_rows_to(on, shape, given.rows, given.count, places.codes, self.shape.stride, notes)?;
            }
            let (image, rows, count) = (&*self.image, self.rows, given.count as usize);
            let batch = Batch { shape: self.shape, on, image, rows, places: &places, count };
            batch.enqueue_walks()?;
            batch.enqueue_doubtful()?;
            batch.enqueue_ranking()?;
        }
        let (each, slots) = (self.shape.k, given.count as usize * self.shape.k as usize);
        Ok(Found { rows: places.ranks.take(slots).into(), distances: places.keys.take(slots).into(), each })
    }
}
