//! Walks from device memory to device memory, which only enqueue work on a stream: no copy to or from the host, no allocation, no wait.
//!
//! ```text
//! queries ──stage_rows──► padded, checked ──as from the host (`mod.rs`)──► rows ──name_results──► ids
//! ```

use std::sync::Arc;

use cuda_std::{Ptr, PtrMut};
use warpann_kernels::flat::name_results::NameResults;

use super::{Batch, DeviceLinks, DeviceWalk, Image, Plan, WalkShape, nodes_and_rows};
use crate::device::queue::OnStream;
use crate::device::runtime::{Memory, Runtime, Stream};
use crate::device::scratch::{Layout, Reserved};
use crate::search::staging::{StagedRows, stage_rows, stage_rows_to};
use crate::search::{Enqueue, Tiles};
use crate::{Result, threads::apart};

/// Planned walks with their memory.
pub(in super::super) struct EnqueuedWalk {
    runtime: Runtime,
    image: Arc<Image>,
    rows: PtrMut<u8>,
    shape: WalkShape,
    plan: Plan,
    scratch: Memory,
    /// The id of each row; `None` if it is the row.
    names: Option<Reserved<u64>>,
    /// A bit for each node, and one for each row if rows are equal; `None` if all may be results.
    bits: Option<[Reserved<u32>; 2]>,
    /// A word of each query of a tile: whether it was refused.
    refused: Reserved<u32>,
    table_memory: Memory,
    table_bytes: usize,
    /// Number of queries of a tile.
    tile: usize,
}

impl DeviceWalk<'_> {
    /// Plans walks for up to `queries` queries, of which a tile is done at a time. `ids` has the id of each row; `None` means that it is the row.
    /// Allocates, uploads the graph, runs one query so that all kernels are loaded, and waits for all of it.
    ///
    /// # Errors
    /// [`Error::OutOfDeviceMemory`](crate::Error::OutOfDeviceMemory), errors of the device's driver.
    pub(in super::super) fn enqueued(
        &self,
        device: &DeviceLinks,
        queries: usize,
        ids: Option<Vec<u64>>,
    ) -> Result<EnqueuedWalk> {
        let runtime = self.resident.runtime;
        let tile = queries.clamp(1, self.most_of_tile());
        let plan = self.plan(tile);
        let mut layout = Layout::default();
        let names = ids.as_ref().map(|ids| layout.array(ids.len()));
        let bits = self.bits().map(|bits| bits.map(|bits| layout.array(bits.len())));
        let refused = layout.array(tile);
        let walk = EnqueuedWalk {
            runtime: runtime.clone(),
            image: self.image(device)?,
            rows: self.resident.rows,
            shape: self.shape_of_walks(),
            scratch: runtime.allocate(plan.bytes)?,
            plan,
            names,
            bits,
            refused,
            table_memory: runtime.allocate(layout.bytes())?,
            table_bytes: layout.bytes(),
            tile,
        };
        apart(|| {
            self.resident.lanes.with(runtime, |lane| {
                let tables = runtime.scratch(&walk.table_memory);
                // SAFETY: the tables have room for an id and a bit of each row, and no other work uses them.
                unsafe {
                    if let (Some(to), Some(ids)) = (names, &ids) {
                        runtime.copy_to_device(&lane.stream, tables.at(to), ids)?;
                    }
                    for (to, bits) in bits.into_iter().flatten().zip(self.bits().into_iter().flatten()) {
                        runtime.copy_to_device(&lane.stream, tables.at(to), bits)?;
                    }
                }
                let mut layout = Layout::default();
                let shape = self.shape();
                let query = layout.array::<u8>(shape.dim * shape.element.size());
                let (ids, distances) = (layout.array(self.k), layout.array(self.k));
                let scratch = lane.scratch(runtime, layout.bytes())?;
                let (query, ids, distances) = (scratch.at(query), scratch.at(ids), scratch.at(distances));
                // SAFETY: the scratch has room for one query and its results.
                unsafe {
                    runtime.fill(&lane.stream, query, 0)?;
                    walk.enqueue(&lane.stream, query.into(), 1, (ids, distances), None)?;
                }
                runtime.synchronize(&lane.stream)
            })
        })?;
        Ok(walk)
    }
}

impl Enqueue for EnqueuedWalk {
    fn bytes(&self) -> u64 {
        (self.plan.bytes + self.table_bytes) as u64
    }

    fn tiles(&self) -> Tiles<'_> {
        Tiles { runtime: &self.runtime, shape: self.shape.vectors, k: self.shape.k as usize, most: self.tile }
    }

    unsafe fn enqueue_tile(
        &self,
        stream: &Stream,
        queries: Ptr<u8>,
        count: u32,
        ids: PtrMut<u64>,
        distances: PtrMut<f32>,
    ) -> Result<()> {
        let runtime = &self.runtime;
        let (on, tables) = (OnStream { runtime, stream }, runtime.scratch(&self.table_memory));
        let (shape, slots) = (self.shape.vectors, count as usize * self.shape.k as usize);
        let filters = self.bits.map(|bits| nodes_and_rows(bits.map(|bits| tables.at(bits))));
        let places = self.plan.places(runtime.scratch(&self.scratch), filters);
        let refused = tables.at(self.refused).take(count as usize);
        // SAFETY: the plan reserved every part for a tile, the stream runs these in order, and the caller promises queries and results.
        unsafe {
            let notes = StagedRows { refused: Some(refused), first_refused: None };
            stage_rows(on, shape, queries, count, places.queries, notes)?;
            if !self.shape.own_rows && self.shape.coded.is_none() {
                let notes = StagedRows { refused: None, first_refused: None };
                stage_rows_to(on, shape, queries, count, places.codes, self.shape.stride, notes)?;
            }
            let (image, rows, count) = (&*self.image, self.rows, count as usize);
            let batch = Batch { shape: self.shape, on, image, rows, places: &places, count };
            batch.enqueue_walks()?;
            batch.enqueue_doubtful()?;
            batch.enqueue_ranking()?;
            let launch = NameResults {
                rows: places.ranks.take(slots).into(),
                distances: places.keys.take(slots).into(),
                found: self.shape.k,
                names: self.names.map(|names| tables.at(names).into()),
                refused: refused.into(),
                worst: shape.metric.worst(),
                k: self.shape.k,
                slots: slots as u64,
                out_ids: ids,
                out_distances: distances,
            };
            runtime.launch(stream, &NameResults::KERNEL, launch.config(), launch)
        }
    }
}
