//! Walks on a device, one block for each query ([`warpann_kernels::graph::walk`]).
//!
//! The rows are those of the flat index in device memory. Edges, start nodes and codes are an image (`image.rs`), which
//! the first search uploads and insertions change (`insert.rs`). The results of a walk get their canonical distances
//! from the kernel that re-ranks results of inverted files.
//!
//! ```text
//! queries ──encode──► codes, doubtful ──walk by codes──► places, more doubtful ──walk by vectors, doubtful only──► places
//! places ──rerank──► nodes ──expand, if rows are equal──► rows
//! ```
//! The device decides whether a query is doubtful ([`super::codes`]). A search that returns to the host brings the
//! words of its queries along, and only if one says so, it walks by vectors and ranks a second time. A search that only
//! enqueues work always walks twice; where no query is doubtful, the blocks of the second launch end at once. That
//! costs about 4 µs (H200, 2026-11-26).

mod build;
mod image;
mod insert;
#[cfg(feature = "cuda")]
pub(super) mod planned;
mod repair;

use std::borrow::Cow;
use std::sync::Arc;

use cuda_std::{Ptr, PtrMut};
use warpann_kernels::graph::encode::{Encode, FloatKey};
use warpann_kernels::graph::twins::ExpandTwins;
use warpann_kernels::graph::walk::{self, PerQuery, Walk};
use warpann_kernels::ivf::encoding::StoredRows;
use warpann_kernels::ivf::rerank::{self, Certificate, Rerank};
use warpann_kernels::product::element::RowKey;

pub(super) use self::build::{DeviceBuild, Source};
pub(super) use self::image::{DeviceLinks, Image};
use self::image::{code_stride, compared_codes, upload_codes};
pub(super) use self::insert::DeviceInsert;
use super::codes::Distances;
use super::entrance::Entrance;
use super::links::Links;
use super::walk::Ranks;
use crate::device::backend::ResultArray;
use crate::device::lanes::Lane;
use crate::device::queue::OnStream;
use crate::device::runtime::Runtime;
use crate::device::scratch::{Layout, Reserved, Scratch};
use crate::device::tiling::{Budget, Tiling};
use crate::flat::ResidentRows;
use crate::neighbors::slots::{FoundRows, Slots};
use crate::product::gpu::{VectorShape, upload_vectors};
use crate::search_options::SearchRequest;
use crate::threads::apart;
use crate::vectors::VectorSlice;
use crate::{Bitset, ElementType, Metric, Result};

/// Up to this number of queries for each multiprocessor, a block walks for each.
const BLOCKS_OF_FEW: usize = 2;
/// The same on the emulator, in all, so that small tests run both kernels.
const FEW_EMULATED: usize = 2;
/// From this width of the beam on, two warps walk for each of many queries: shared memory lets fewer queries walk at a
/// time.
const WIDE: u32 = 80;
/// From this number of queries on, copies of some overlap walks of others.
const OVERLAPPED: usize = 4096;
/// Number of tiles of a batch whose copies overlap walks.
const TILES: usize = 4;
/// Largest number of queries of a tile.
const MOST_OF_TILE: usize = 1 << 14;
/// Bytes of scratch memory for the queries of one launch.
const SCRATCH_BYTES: usize = 64 << 20;

/// The key of the kernels for an element type of floats.
fn float_key(element: ElementType) -> Option<FloatKey> {
    match element {
        ElementType::F32 => Some(FloatKey::F32),
        ElementType::F16 => Some(FloatKey::F16),
        ElementType::Bf16 => Some(FloatKey::Bf16),
        ElementType::U8 | ElementType::I8 => None,
    }
}

/// The walks of a batch on a device.
pub(super) struct DeviceWalk<'a> {
    pub(super) resident: ResidentRows<'a>,
    pub(super) distances: Distances<'a>,
    pub(super) links: &'a Links,
    pub(super) width: usize,
    /// The request of the batch. The rows of its filter may be results.
    pub(super) request: SearchRequest<'a>,
    /// The nodes that may be results.
    pub(super) nodes: Option<Cow<'a, Bitset>>,
    pub(super) k: usize,
    /// Number of nodes of a beam that get their canonical distances.
    pub(super) ranks: Ranks,
}

/// The parameters by which the queries of a search are coded.
#[derive(Clone, Copy)]
struct CodedShape {
    scale: f32,
    limit: u64,
    greatest_square: u32,
}

/// The parameters that all walks of a search share.
#[derive(Clone, Copy)]
struct WalkShape {
    /// The vectors of the index.
    vectors: VectorShape,
    /// Number of vectors.
    rows: u32,
    /// Content, metric and stride of the rows that walks compare, and whether these are those of the index.
    compared: RowKey,
    metric: Metric,
    stride: u32,
    own_rows: bool,
    /// How queries become codes; `None` if walks compare vectors.
    coded: Option<CodedShape>,
    /// Whether nodes can be several rows.
    twins: bool,
    degree: u32,
    wanted: u32,
    width: u32,
    slots: u32,
    k: u32,
    least: u32,
    selected: u32,
}

/// The arrays of a launch.
struct Places {
    queries: PtrMut<u8>,
    codes: PtrMut<u8>,
    doubtful: PtrMut<u32>,
    /// Bits of the nodes that may be results, and of the rows.
    filters: Option<(Ptr<u32>, Ptr<u32>)>,
    places: PtrMut<u32>,
    keys: PtrMut<f32>,
    ranks: PtrMut<u32>,
    /// Distances of nodes, nodes and cursors, if nodes can be several rows.
    of_nodes: (PtrMut<f32>, PtrMut<u32>, PtrMut<u32>),
}

/// The threads that walk for each of `queries` queries with beams of this width.
fn per_query(runtime: &Runtime, width: u32, queries: usize) -> PerQuery {
    let limits = runtime.limits();
    let many = if limits.emulated { FEW_EMULATED } else { BLOCKS_OF_FEW * limits.multiprocessors as usize };
    match width {
        _ if queries <= many => PerQuery::Block,
        0..WIDE => PerQuery::Warp,
        WIDE.. => PerQuery::Pair,
    }
}

/// Number of slots of the table of walks of this width.
fn slots_of(runtime: &Runtime, width: u32, degree: u32) -> u32 {
    // Small tests on the emulator make walks clear their tables.
    let slots = if runtime.limits().emulated { walk::least_slots } else { walk::slots };
    slots(width, degree)
}

/// The queries of a launch: up to as many as the arrays have room for. Codes that no coder makes are in place.
#[derive(Clone, Copy)]
struct Batch<'a> {
    shape: WalkShape,
    on: OnStream<'a>,
    /// The graph of the index, whose edges and start nodes are rows.
    image: &'a Image,
    /// The rows of the index.
    rows: PtrMut<u8>,
    places: &'a Places,
    count: usize,
}

impl Batch<'_> {
    /// The launch of walks: by codes, if there are codes.
    fn walk(&self) -> Walk {
        let &Batch { ref shape, on, image, rows, places, count } = self;
        let (entry, at) = (&image.entry, on.runtime.scratch(&image.entry.memory));
        let rows_at = on.runtime.scratch(&image.rows.memory);
        let (queries, compared) =
            if shape.own_rows { (places.queries, rows) } else { (places.codes, rows_at.at(image.rows.codes)) };
        Walk {
            query_count: count as u32,
            queries: queries.into(),
            rows: compared.into(),
            stride: shape.stride,
            metric: shape.metric.of_kernel(),
            edges: rows_at.at(image.rows.edges).into(),
            degree: shape.degree,
            starts: at.at(entry.starts).into(),
            start_count: entry.starts.len() as u32,
            pivots: at.at(entry.pivots).into(),
            pivot_count: entry.pivots.len() as u32,
            ends: at.at(entry.ends).into(),
            wanted: shape.wanted,
            width: shape.width,
            slots: shape.slots,
            filter: places.filters.map(|(nodes, _)| nodes),
            selected: shape.selected,
            places: places.places,
            doubtful: shape.coded.map(|_| places.doubtful),
            by_codes: shape.coded.is_some().into(),
            k: shape.k,
            least: shape.least,
            greatest_square: shape.coded.map_or(0, |coded| coded.greatest_square),
            told: 0,
            starts_only: 0,
        }
    }

    /// Enqueues the coding of the queries, if walks go by codes, and the walks.
    ///
    /// # Safety
    /// The batch is what its fields say, and all of it lives until the stream has done the work.
    unsafe fn enqueue_walks(&self) -> Result<()> {
        let &Batch { shape: ref walks, on: OnStream { runtime, stream }, image, places, count, .. } = self;
        let shape = walks.vectors;
        if let Some((coded, key)) = walks.coded.zip(float_key(shape.element)) {
            let encode = Encode {
                count: count as u32,
                rows: places.queries.into(),
                stride: shape.stride() as u32,
                dim: shape.dim as u32,
                metric: shape.metric.of_kernel(),
                shifts: runtime.scratch(&image.entry.memory).at(image.entry.shifts).into(),
                scale: coded.scale,
                limit: coded.limit,
                codes: places.codes,
                code_stride: walks.stride,
                doubtful: places.doubtful,
            };
            // SAFETY: as the caller promises.
            unsafe { runtime.launch(stream, Encode::kernel(key), encode.config(), encode)? };
        }
        let walk = self.walk();
        let (key, per_query) = (walks.compared, per_query(runtime, walks.width, count));
        // SAFETY: as the caller promises.
        unsafe { runtime.launch(stream, Walk::kernel((key, per_query)), walk.config(key, per_query), walk) }
    }

    /// Enqueues the walks of the doubtful queries by vectors, if walks go by codes.
    ///
    /// # Safety
    /// As [`enqueue_walks`](Self::enqueue_walks), which came before.
    unsafe fn enqueue_doubtful(&self) -> Result<()> {
        let &Batch { shape: ref walks, on: OnStream { runtime, stream }, rows, places, count, .. } = self;
        let shape = walks.vectors;
        if walks.coded.is_none() {
            return Ok(());
        }
        let walk = Walk {
            queries: places.queries.into(),
            rows: rows.into(),
            stride: shape.stride() as u32,
            metric: shape.metric.of_kernel(),
            by_codes: 0,
            ..self.walk()
        };
        let (key, per_query) = (shape.row_key(), per_query(runtime, walks.width, count));
        // SAFETY: as the caller promises.
        unsafe { runtime.launch(stream, Walk::kernel((key, per_query)), walk.config(key, per_query), walk) }
    }

    /// Enqueues the ranking of what walks found.
    ///
    /// # Safety
    /// As [`enqueue_walks`](Self::enqueue_walks), which came before.
    unsafe fn enqueue_ranking(&self) -> Result<()> {
        let &Batch { shape: ref walks, on: OnStream { runtime, stream }, image, rows, places, count } = self;
        let (shape, entry_at) = (walks.vectors, runtime.scratch(&image.entry.memory));
        let (found, keys, ranks) = if walks.twins {
            (walks.selected, places.of_nodes.0, places.of_nodes.1)
        } else {
            (walks.k, places.keys, places.ranks)
        };
        let rerank = Rerank {
            query_count: count as u32,
            queries: places.queries.into(),
            stride: shape.stride() as u32,
            stored: StoredRows { rows: rows.into(), ..StoredRows::default() },
            places: places.places.into(),
            certificate: Certificate { selected: walks.selected, row_count: walks.rows, ..Certificate::default() },
            metric: shape.metric.of_kernel(),
            sort: 1,
            k: found,
            out_keys: keys,
            out_ranks: ranks,
            ..Rerank::default()
        };
        let few = walks.selected <= rerank::WARP_SELECTED;
        let per_ranked = if few { rerank::PerQuery::Warp } else { rerank::PerQuery::Block };
        let kernel = Rerank::kernel((shape.row_key(), per_ranked));
        // SAFETY: as the caller promises.
        unsafe {
            runtime.launch(stream, kernel, rerank.config(per_ranked), rerank)?;
            if walks.twins {
                let expand = ExpandTwins {
                    query_count: count as u32,
                    found,
                    distances: keys.into(),
                    nodes: ranks.into(),
                    groups: entry_at.at(image.entry.groups).into(),
                    members: entry_at.at(image.entry.members).into(),
                    filter: places.filters.map(|(_, rows)| rows),
                    cursors: places.of_nodes.2,
                    worst: shape.metric.worst(),
                    k: walks.k,
                    out_distances: places.keys,
                    out_rows: places.ranks,
                };
                runtime.launch(stream, &ExpandTwins::KERNEL, expand.config(), expand)?;
            }
        }
        Ok(())
    }
}

/// The bits of nodes and of rows, which are the same if there are none of rows.
fn nodes_and_rows([nodes, rows]: [PtrMut<u32>; 2]) -> (Ptr<u32>, Ptr<u32>) {
    (nodes.into(), if rows.is_empty() { nodes } else { rows }.into())
}

/// The arrays of a launch in scratch memory.
struct Plan {
    queries: Reserved<u8>,
    /// The queries that walks compare, if these are codes.
    codes: Reserved<u8>,
    doubtful: Reserved<u32>,
    /// Bits of nodes and of rows: one array if no rows are equal.
    filters: [Reserved<u32>; 2],
    places: Reserved<u32>,
    keys: Reserved<f32>,
    ranks: Reserved<u32>,
    of_nodes: (Reserved<f32>, Reserved<u32>, Reserved<u32>),
    bytes: usize,
}

impl Plan {
    fn places(&self, scratch: Scratch, filters: Option<(Ptr<u32>, Ptr<u32>)>) -> Places {
        let (keys, nodes, cursors) = self.of_nodes;
        Places {
            queries: scratch.at(self.queries),
            codes: scratch.at(self.codes),
            doubtful: scratch.at(self.doubtful),
            filters,
            places: scratch.at(self.places),
            keys: scratch.at(self.keys),
            ranks: scratch.at(self.ranks),
            of_nodes: (scratch.at(keys), scratch.at(nodes), scratch.at(cursors)),
        }
    }
}

impl<'a> DeviceWalk<'a> {
    fn shape(&self) -> VectorShape {
        self.resident.shape
    }

    /// Number of slots of a table.
    fn slots(&self) -> Option<u32> {
        let width = u32::try_from(self.width).ok().filter(|&width| width <= 1 << 16)?;
        Some(slots_of(self.resident.runtime, width, self.links.degree() as u32))
    }

    /// The rows that walks compare, if these are not those of the flat index.
    fn codes(&self) -> Option<VectorSlice<'_>> {
        compared_codes(&self.resident, &self.distances.fast)
    }

    /// The bits of the nodes that may be results, and of the rows, if these are others.
    fn bits(&self) -> Option<[&[u32]; 2]> {
        let (nodes, rows) = (self.nodes.as_deref()?.words(), self.request.filter?.words());
        let rows = if self.links.twins().is_empty() { &[] } else { rows };
        Some([bytemuck::cast_slice(nodes), bytemuck::cast_slice(rows)])
    }

    /// Distance from one compared row to the next in components.
    fn stride(&self) -> usize {
        self.codes().map_or(self.shape().stride(), |codes| code_stride(codes.dim()))
    }

    fn shape_of_walks(&self) -> WalkShape {
        WalkShape {
            vectors: self.shape(),
            rows: self.links.len() as u32,
            compared: self.distances.fast.row_key(),
            metric: self.distances.fast.metric(),
            stride: self.stride() as u32,
            own_rows: self.codes().is_none(),
            coded: self.distances.codes.map(|codes| CodedShape {
                scale: codes.coder.scale_of_queries(),
                limit: codes.coder.limit,
                greatest_square: codes.of_rows().greatest_square,
            }),
            twins: !self.links.twins().is_empty(),
            degree: self.links.degree() as u32,
            wanted: u32::try_from(Entrance::wanted(self.width)).unwrap_or(u32::MAX),
            width: self.width as u32,
            slots: self.slots().unwrap_or(1),
            k: self.k as u32,
            least: self.ranks.least as u32,
            selected: self.ranks.most as u32,
        }
    }

    /// The graph in device memory.
    fn image(&self, device: &DeviceLinks) -> Result<Arc<Image>> {
        // Nearly every search finds it, without a lane, for which it may have to wait.
        if let Some(image) = device.made() {
            return Ok(image);
        }
        let runtime = self.resident.runtime;
        let shifts = self.distances.codes.map_or(&[][..], |codes| &codes.coder.shifts);
        // `apart` keeps a pool thread from starting another search while it has a lane.
        apart(|| {
            self.resident
                .lanes
                .with(runtime, |lane| device.image(runtime, &lane.background, self.links, (self.codes(), shifts)))
        })
    }

    /// Whether the device has the shared memory for these walks.
    pub(super) fn fits(&self) -> bool {
        let shared = self.resident.runtime.limits().shared_bytes;
        let stride = u32::try_from(self.stride()).ok().filter(|&stride| stride <= 1 << 16);
        let (Some(slots), Some(stride)) = (self.slots(), stride) else { return false };
        let (width, degree) = (self.width as u32, self.links.degree() as u32);
        let ranked = self.ranks.most <= 1 << 16 && rerank::shared_bytes(self.ranks.most as u32) <= shared;
        let pivots = self.links.entrance().pivots().len() as u32;
        let of_walk =
            |content: RowKey, stride| Walk::shared_bytes(content, stride, width, degree, pivots, slots) <= shared;
        let own = self.shape().stride() as u32;
        // Queries that codes cannot stand for walk by vectors.
        let coded = self.distances.codes.is_none()
            || Encode::shared_bytes(own) <= shared && of_walk(self.shape().row_key(), own);
        ranked && coded && of_walk(self.distances.fast.row_key(), stride)
    }

    fn plan(&self, queries: usize) -> Plan {
        let mut layout = Layout::default();
        let of_nodes = if self.links.twins().is_empty() { 0 } else { queries.saturating_mul(self.ranks.most) };
        Plan {
            queries: layout.array(queries.saturating_mul(self.shape().row_bytes())),
            codes: layout.array(self.codes().map_or(0, |codes| queries.saturating_mul(code_stride(codes.dim())))),
            filters: self.bits().unwrap_or_default().map(|bits| layout.array(bits.len())),
            places: layout.array(queries.saturating_mul(self.ranks.most)),
            keys: layout.array(queries.saturating_mul(self.k)),
            ranks: layout.array(queries.saturating_mul(self.k)),
            // Beside the results, so that one copy brings all of them.
            doubtful: layout.array(if self.distances.codes.is_some() { queries } else { 0 }),
            of_nodes: (layout.array(of_nodes), layout.array(of_nodes), layout.array(of_nodes)),
            bytes: layout.bytes(),
        }
    }

    /// The largest number of queries of one launch.
    fn most_of_tile(&self) -> usize {
        let of_nodes = if self.links.twins().is_empty() { 0 } else { 3 * self.ranks.most };
        let of_query = 4 * (self.ranks.most + of_nodes + 2 * self.k + 1) + self.shape().row_bytes() + self.stride();
        (SCRATCH_BYTES / of_query).clamp(1, MOST_OF_TILE)
    }

    /// Fills `ids` (row numbers) and `distances`, k for each query.
    pub(super) fn run(
        &self,
        device: &DeviceLinks,
        queries: VectorSlice<'_>,
        ids: &mut [u64],
        distances: &mut [f32],
    ) -> Result<()> {
        let runtime = self.resident.runtime;
        let most = self.most_of_tile();
        let overlapped = queries.len() >= OVERLAPPED;
        let (most, lanes) = if overlapped { (most.min(queries.len().div_ceil(TILES)), 2) } else { (most, 1) };
        // A tile's memory is less than SCRATCH_BYTES.
        let tiling = Tiling::new(Budget::new(runtime, u64::MAX), (queries.len(), most), lanes, |_| Ok(0))?;
        let outs = ids.chunks_mut(tiling.rows * self.k).zip(distances.chunks_mut(tiling.rows * self.k));
        let image = self.image(device)?;
        // `apart` keeps a pool thread from starting another search while it has a lane.
        apart(|| {
            tiling.run(runtime, self.resident.lanes, outs, |lane, some, (ids, distances)| {
                self.tile(lane, &image, queries.part(some), ids, distances)
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
        let filters = plan.filters.map(|filter| scratch.at(filter));
        let bits = self.bits();
        let places = plan.places(scratch, bits.map(|_| nodes_and_rows(filters)));
        let mut arrays = vec![ResultArray::new(places.keys, self.k), ResultArray::new(places.ranks, self.k)];
        if self.distances.codes.is_some() {
            arrays.push(ResultArray::new(places.doubtful, 1));
        }
        let mut slots = Slots { k: self.k, worst: shape.metric.worst(), ids, distances };
        let on = OnStream { runtime, stream };
        let batch = Batch { shape: self.shape_of_walks(), on, image, rows: self.resident.rows, places: &places, count };
        // SAFETY: the plan has room for these arrays, and the rows and the graph are resident. Edges and start nodes
        // are rows: `Links` says so.
        unsafe {
            upload_vectors(runtime, stream, shape, scratch.at(plan.queries), queries)?;
            for (to, words) in filters.into_iter().zip(bits.unwrap_or_default()) {
                runtime.copy_to_device(stream, to, words)?;
            }
            if self.codes().is_some() && self.distances.codes.is_none() {
                upload_codes(runtime, stream, scratch.at(plan.codes), queries)?;
            }
            batch.enqueue_walks()?;
            let mut ranked = |arrays: &[ResultArray]| -> Result<bool> {
                batch.enqueue_ranking()?;
                let mut doubt = false;
                runtime.copy_results_to_host(stream, count, arrays, &mut |some, parts| {
                    slots.fill(some.start, FoundRows::new(self.k, parts[0], parts[1]), u64::from);
                    doubt |= parts.get(2).is_some_and(|words| words.iter().any(|&byte| byte != 0));
                })?;
                Ok(doubt)
            };
            if ranked(&arrays)? {
                batch.enqueue_doubtful()?;
                ranked(&arrays[..2])?;
            }
        }
        Ok(())
    }
}
