//! Walks on a device, one block for each query ([`warpann_kernels::proximity::walk`]).
//!
//! The rows are those of the flat index in device memory. Edges and start nodes are uploaded by the first search after a change. The results of a walk
//! get their canonical distances from the kernel that re-ranks results of inverted files.

use std::sync::Arc;

use warpann_kernels::NO_ROW;
use warpann_kernels::ivf::rerank::{self, PerQuery, Rerank};
use warpann_kernels::proximity::walk::{self, Walk};

use super::entrance::Entrance;
use super::links::Links;
use crate::device::lanes::Lane;
use crate::device::runtime::{Memory, Runtime, Stream};
use crate::device::scratch::{Layout, Reserved};
use crate::flat::ResidentRows;
use crate::product::gpu::{VectorShape, upload_vectors};
use crate::threads::{Exclusive, apart};
use crate::vectors::VectorSlice;
use crate::{Bitset, NONE, Result, host_memory};

/// Bytes of scratch memory for the queries of one launch.
const SCRATCH_BYTES: usize = 64 << 20;

/// Edges and start nodes in device memory.
struct Image {
    memory: Memory,
    edges: Reserved<u32>,
    starts: Reserved<u32>,
    pivots: Reserved<u32>,
    ends: Reserved<u32>,
}

impl Image {
    fn bytes(&self) -> u64 {
        4 * [self.edges, self.starts, self.pivots, self.ends].map(Reserved::len).iter().sum::<usize>() as u64
    }
}

/// The graph in the memory of a device, once a search has uploaded it.
#[derive(Default)]
pub(super) struct DeviceLinks {
    image: Exclusive<Option<Arc<Image>>>,
}

impl DeviceLinks {
    /// Bytes of device memory.
    pub(super) fn bytes(&self) -> u64 {
        self.image.with(|image| image.as_ref().map_or(0, |image| image.bytes()))
    }

    /// The graph in device memory.
    fn image(&self, runtime: &Runtime, stream: &Stream, links: &Links) -> Result<Arc<Image>> {
        self.image.with(|image| {
            if let Some(image) = image {
                return Ok(Arc::clone(image));
            }
            let entrance = links.entrance();
            let arrays = [links.edges(), entrance.listed(), entrance.pivots(), entrance.ends()];
            let mut layout = Layout::default();
            let places = arrays.map(|array| layout.array::<u32>(array.len()));
            let memory = runtime.allocate(layout.bytes())?;
            let scratch = runtime.scratch(&memory);
            for (array, place) in arrays.into_iter().zip(places) {
                // SAFETY: the layout has room for every array.
                unsafe { runtime.copy_to_device(stream, scratch.at(place), array)? };
            }
            let [edges, starts, pivots, ends] = places;
            runtime.synchronize(stream)?;
            Ok(Arc::clone(image.insert(Arc::new(Image { memory, edges, starts, pivots, ends }))))
        })
    }
}

/// The walks of a batch on a device.
pub(super) struct DeviceWalk<'a> {
    pub(super) resident: ResidentRows<'a>,
    pub(super) links: &'a Links,
    pub(super) width: usize,
    pub(super) among: Option<&'a Bitset>,
    pub(super) k: usize,
    /// Number of nodes of a beam that get their canonical distances.
    pub(super) ranked: usize,
}

/// The arrays of a launch in scratch memory.
struct Plan {
    queries: Reserved<u8>,
    filter: Reserved<u32>,
    places: Reserved<u32>,
    /// First the keys, then the rows, so that one copy brings both.
    results: Reserved<u32>,
    bytes: usize,
}

impl DeviceWalk<'_> {
    fn shape(&self) -> VectorShape {
        self.resident.shape
    }

    /// Number of slots of a table.
    fn slots(&self) -> Option<u32> {
        let width = u32::try_from(self.width).ok().filter(|&width| width <= 1 << 16)?;
        // Small tests on the emulator make walks clear their tables.
        let slots = if self.resident.runtime.limits().emulated { walk::least_slots } else { walk::slots };
        Some(slots(width, self.links.degree() as u32))
    }

    /// Whether the device has the shared memory for these walks.
    pub(super) fn fits(&self) -> bool {
        let shared = self.resident.runtime.limits().shared_bytes;
        let stride = u32::try_from(self.shape().stride()).ok().filter(|&stride| stride <= 1 << 16);
        let (Some(slots), Some(stride)) = (self.slots(), stride) else { return false };
        let (width, degree) = (self.width as u32, self.links.degree() as u32);
        let ranked = self.ranked <= 1 << 16 && rerank::shared_bytes(self.ranked as u32) <= shared;
        let pivots = self.links.entrance().pivots().len() as u32;
        ranked && Walk::shared_bytes(stride, width, degree, pivots, slots) <= shared
    }

    fn plan(&self, queries: usize) -> Plan {
        let mut layout = Layout::default();
        Plan {
            queries: layout.array(queries.saturating_mul(self.shape().row_bytes())),
            filter: layout.array(self.among.map_or(0, |among| 2 * among.words().len())),
            places: layout.array(queries.saturating_mul(self.ranked)),
            results: layout.array(queries.saturating_mul(self.k).saturating_mul(2)),
            bytes: layout.bytes(),
        }
    }

    /// Fills `ids` (row numbers) and `distances`, k for each query.
    pub(super) fn run(
        &self,
        device: &DeviceLinks,
        queries: VectorSlice<'_>,
        ids: &mut [u64],
        distances: &mut [f32],
    ) -> Result<()> {
        let of_query = 4 * (self.ranked + 2 * self.k) + self.shape().row_bytes();
        let tile = (SCRATCH_BYTES / of_query).clamp(1, 1 << 14);
        // `apart` keeps a pool thread from starting another search while it has a lane.
        apart(|| {
            self.resident.lanes.with(self.resident.runtime, |lane| {
                let image = device.image(self.resident.runtime, &lane.stream, self.links)?;
                for first in (0..queries.len()).step_by(tile) {
                    let some = first..queries.len().min(first + tile);
                    let slots = some.start * self.k..some.end * self.k;
                    self.tile(lane, &image, queries.part(some), &mut ids[slots.clone()], &mut distances[slots])?;
                }
                Ok(())
            })
        })
    }

    /// The results of some queries.
    fn tile(
        &self,
        lane: &mut Lane,
        image: &Image,
        queries: VectorSlice<'_>,
        ids: &mut [u64],
        distances: &mut [f32],
    ) -> Result<()> {
        let (runtime, shape, count) = (self.resident.runtime, self.shape(), queries.len());
        let plan = self.plan(count);
        let scratch = lane.scratch(runtime, plan.bytes)?;
        let stream = &lane.stream;
        let image_at = runtime.scratch(&image.memory);
        let filter = self.among.map(|among| (scratch.at(plan.filter), bytemuck::cast_slice::<u64, u32>(among.words())));
        let launch = Walk {
            query_count: count as u32,
            queries: scratch.at(plan.queries).into(),
            rows: self.resident.rows.into(),
            stride: shape.stride() as u32,
            metric: shape.metric.of_kernel(),
            edges: image_at.at(image.edges).into(),
            degree: self.links.degree() as u32,
            starts: image_at.at(image.starts).into(),
            start_count: image.starts.len() as u32,
            pivots: image_at.at(image.pivots).into(),
            pivot_count: image.pivots.len() as u32,
            ends: image_at.at(image.ends).into(),
            wanted: u32::try_from(Entrance::wanted(self.width)).unwrap_or(u32::MAX),
            width: self.width as u32,
            slots: self.slots().unwrap_or(1),
            filter: filter.map(|(to, _)| to.into()),
            selected: self.ranked as u32,
            places: scratch.at(plan.places),
        };
        let (keys, ranks) = plan.results.split_at(count * self.k);
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
            out_keys: scratch.at(keys.cast()),
            out_ranks: scratch.at(ranks),
            ..Rerank::default()
        };
        let mut results: Vec<u32> = host_memory::zeroed(plan.results.len())?;
        let few = ranked.selected <= rerank::WARP_SELECTED;
        let per_query = if few { PerQuery::Warp } else { PerQuery::Block };
        // SAFETY: the plan has room for these arrays, and the rows and the graph are resident. Edges and start nodes are rows: `Links` says so.
        unsafe {
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
            runtime.copy_to_host(stream, &mut results, scratch.at::<u32>(plan.results))?;
        }
        let (keys, ranks) = results.split_at(count * self.k);
        distances.copy_from_slice(bytemuck::cast_slice(keys));
        for (id, &rank) in ids.iter_mut().zip(ranks) {
            *id = if rank == NO_ROW { NONE } else { rank.into() };
        }
        Ok(())
    }
}
