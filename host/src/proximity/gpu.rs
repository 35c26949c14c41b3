//! Walks on a device, one block for each query ([`warpann_kernels::proximity::walk`]).
//!
//! The rows are those of the flat index in device memory. Edges and start nodes are uploaded by the first search after a change. The host converts
//! queries to f32, so that walks have the same query on every device. The results of a walk get their canonical distances from the kernel that
//! re-ranks results of inverted files. A query whose walk met more nodes than its table holds is done on the CPU, with the same result.

use std::sync::Arc;

use warpann_kernels::NO_ROW;
use warpann_kernels::ivf::rerank::{self, PerQuery, Rerank};
use warpann_kernels::proximity::distance::SUMS;
use warpann_kernels::proximity::walk::{self, Walk};

use super::distance::WalkDistance;
use super::links::Links;
use crate::device::lanes::Lane;
use crate::device::runtime::{Memory, Runtime, Stream};
use crate::device::scratch::{Layout, Reserved};
use crate::flat::ResidentRows;
use crate::product::gpu::{VectorShape, upload_vectors};
use crate::threads::{Exclusive, apart, piece_rows, work_off};
use crate::vectors::VectorSlice;
use crate::{Bitset, NONE, Result, host_memory};

/// Bytes of scratch memory for the queries of one launch.
const SCRATCH_BYTES: usize = 64 << 20;

/// Edges and start nodes in device memory.
struct Image {
    memory: Memory,
    edges: Reserved<u32>,
    starts: Reserved<u32>,
}

/// The graph in the memory of a device, once a search has uploaded it.
#[derive(Default)]
pub(super) struct DeviceLinks {
    image: Exclusive<Option<Arc<Image>>>,
}

impl DeviceLinks {
    /// Forgets the graph, which has changed.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Bytes of device memory.
    pub(super) fn bytes(&self) -> u64 {
        self.image.with(|image| image.as_ref().map_or(0, |image| 4 * (image.edges.len() + image.starts.len()) as u64))
    }

    /// The graph in device memory.
    fn image(&self, runtime: &Runtime, stream: &Stream, links: &Links) -> Result<Arc<Image>> {
        self.image.with(|image| {
            if let Some(image) = image {
                return Ok(Arc::clone(image));
            }
            let mut layout = Layout::default();
            let (edges, starts) = (layout.array(links.edges().len()), layout.array(links.starts().len()));
            let memory = runtime.allocate(layout.bytes())?;
            let scratch = runtime.scratch(&memory);
            // SAFETY: the layout has room for both arrays.
            unsafe {
                runtime.copy_to_device(stream, scratch.at(edges), links.edges())?;
                runtime.copy_to_device(stream, scratch.at(starts), links.starts())?;
            }
            runtime.synchronize(stream)?;
            Ok(Arc::clone(image.insert(Arc::new(Image { memory, edges, starts }))))
        })
    }
}

/// The walks of a batch on a device.
pub(super) struct DeviceWalk<'a> {
    pub(super) resident: ResidentRows<'a>,
    pub(super) distance: WalkDistance<'a>,
    pub(super) links: &'a Links,
    pub(super) width: usize,
    pub(super) among: Option<&'a Bitset>,
    pub(super) k: usize,
    /// Number of nodes of a beam that get their canonical distances.
    pub(super) ranked: usize,
}

/// The arrays of a launch in scratch memory.
struct Plan {
    walked: Reserved<f32>,
    queries: Reserved<u8>,
    filter: Reserved<u32>,
    places: Reserved<u32>,
    overflows: Reserved<u32>,
    keys: Reserved<f32>,
    ranks: Reserved<u32>,
    bytes: usize,
}

impl DeviceWalk<'_> {
    fn shape(&self) -> VectorShape {
        self.resident.shape
    }

    /// Components of a query as f32.
    fn padded(&self) -> usize {
        self.shape().stride().next_multiple_of(SUMS as usize)
    }

    /// Number of slots of a table.
    fn slots(&self) -> Option<u32> {
        let width = u32::try_from(self.width).ok().filter(|&width| width <= 1 << 16)?;
        let slots = walk::slots(width, self.links.degree() as u32);
        // Small tests on the emulator fill the table of some queries.
        Some(if self.resident.runtime.limits().emulated { slots / 4 } else { slots })
    }

    /// Whether the device has the shared memory for these walks.
    pub(super) fn fits(&self) -> bool {
        let shared = self.resident.runtime.limits().shared_bytes;
        let stride = u32::try_from(self.shape().stride()).ok().filter(|&stride| stride <= 1 << 16);
        let (Some(slots), Some(stride)) = (self.slots(), stride) else { return false };
        let (width, degree) = (self.width as u32, self.links.degree() as u32);
        let ranked = self.ranked <= 1 << 16 && rerank::shared_bytes(self.ranked as u32) <= shared;
        ranked && Walk::shared_bytes(stride, width, degree, slots) <= shared
    }

    fn plan(&self, queries: usize) -> Plan {
        let mut layout = Layout::default();
        Plan {
            walked: layout.array(queries.saturating_mul(self.padded())),
            queries: layout.array(queries.saturating_mul(self.shape().row_bytes())),
            filter: layout.array(self.among.map_or(0, |among| 2 * among.words().len())),
            places: layout.array(queries.saturating_mul(self.ranked)),
            overflows: layout.array(queries),
            keys: layout.array(queries.saturating_mul(self.k)),
            ranks: layout.array(queries.saturating_mul(self.k)),
            bytes: layout.bytes(),
        }
    }

    /// Fills `ids` (row numbers) and `distances`, k for each query. Returns the queries whose tables were too small, ascending: their results have no
    /// meaning.
    pub(super) fn run(
        &self,
        device: &DeviceLinks,
        queries: VectorSlice<'_>,
        ids: &mut [u64],
        distances: &mut [f32],
    ) -> Result<Vec<usize>> {
        let of_query = 4 * (self.padded() + self.ranked + 2 * self.k + 1) + self.shape().row_bytes();
        let tile = (SCRATCH_BYTES / of_query).clamp(1, 1 << 14);
        let mut too_small = Vec::new();
        // `apart` keeps a pool thread from starting another search while it has a lane.
        apart(|| {
            self.resident.lanes.with(self.resident.runtime, |lane| {
                let image = device.image(self.resident.runtime, &lane.stream, self.links)?;
                for first in (0..queries.len()).step_by(tile) {
                    let some = first..queries.len().min(first + tile);
                    let slots = some.start * self.k..some.end * self.k;
                    let (ids, distances) = (&mut ids[slots.clone()], &mut distances[slots]);
                    let overflows = self.tile(lane, &image, queries.part(some), ids, distances)?;
                    too_small.extend(
                        (first..).zip(overflows).filter(|&(_, overflow)| overflow != 0).map(|(query, _)| query),
                    );
                }
                Ok(())
            })
        })?;
        Ok(too_small)
    }

    /// The results of some queries, and for each whether its table was too small.
    fn tile(
        &self,
        lane: &mut Lane,
        image: &Image,
        queries: VectorSlice<'_>,
        ids: &mut [u64],
        distances: &mut [f32],
    ) -> Result<Vec<u32>> {
        let (runtime, shape, count) = (self.resident.runtime, self.shape(), queries.len());
        let plan = self.plan(count);
        let scratch = lane.scratch(runtime, plan.bytes)?;
        let stream = &lane.stream;
        let mut walked: Vec<f32> = host_memory::zeroed(count * self.padded())?;
        let bytes = size_of_val(walked.as_slice());
        let piece = piece_rows(4 * self.padded());
        work_off(walked.chunks_mut(piece * self.padded()).enumerate(), bytes, |(number, walked)| {
            let mut query = Vec::new();
            for (at, walked) in (piece * number..).zip(walked.chunks_exact_mut(self.padded())) {
                self.distance.query(queries, at, &mut query);
                walked[..query.len()].copy_from_slice(&query);
            }
        });
        let image_at = runtime.scratch(&image.memory);
        let filter = self.among.map(|among| (scratch.at(plan.filter), bytemuck::cast_slice::<u64, u32>(among.words())));
        let launch = Walk {
            query_count: count as u32,
            queries: scratch.at(plan.walked).into(),
            rows: self.resident.rows.into(),
            stride: shape.stride() as u32,
            metric: shape.metric.of_kernel(),
            edges: image_at.at(image.edges).into(),
            degree: self.links.degree() as u32,
            starts: image_at.at(image.starts).into(),
            start_count: image.starts.len() as u32,
            width: self.width as u32,
            slots: self.slots().unwrap_or(1),
            filter: filter.map(|(to, _)| to.into()),
            selected: self.ranked as u32,
            places: scratch.at(plan.places),
            overflows: scratch.at(plan.overflows),
        };
        let ranked = Rerank {
            query_count: count as u32,
            queries: scratch.at(plan.queries).into(),
            rows: self.resident.rows.into(),
            stride: shape.stride() as u32,
            places: scratch.at(plan.places).into(),
            selected: self.ranked as u32,
            row_count: self.links.len() as u32,
            metric: shape.metric.of_kernel(),
            sort: 1,
            k: self.k as u32,
            out_keys: scratch.at(plan.keys),
            out_ranks: scratch.at(plan.ranks),
            ..Rerank::default()
        };
        let mut overflows: Vec<u32> = host_memory::zeroed(count)?;
        let mut ranks: Vec<u32> = host_memory::zeroed(count * self.k)?;
        let few = ranked.selected <= rerank::WARP_SELECTED;
        let per_query = if few { PerQuery::Warp } else { PerQuery::Block };
        // SAFETY: the plan has room for these arrays, and the rows and the graph are resident. Edges and start nodes are rows: `Links` says so.
        unsafe {
            runtime.copy_to_device(stream, scratch.at(plan.walked), &walked)?;
            upload_vectors(runtime, stream, shape, scratch.at(plan.queries), queries)?;
            if let Some((to, words)) = filter {
                runtime.copy_to_device(stream, to, words)?;
            }
            runtime.launch(stream, Walk::kernel(shape.element.key()), launch.config(), launch)?;
            runtime.launch(
                stream,
                Rerank::kernel((shape.element.key(), per_query)),
                ranked.config(per_query),
                ranked,
            )?;
            runtime.copy_to_host(stream, &mut overflows, scratch.at::<u32>(plan.overflows))?;
            runtime.copy_to_host(stream, &mut ranks, scratch.at::<u32>(plan.ranks))?;
            runtime.copy_to_host(stream, distances, scratch.at::<f32>(plan.keys))?;
        }
        for (id, &rank) in ids.iter_mut().zip(&ranks) {
            *id = if rank == NO_ROW { NONE } else { rank.into() };
        }
        Ok(overflows)
    }
}
