//! Walks on a device, one block for each query ([`warpann_kernels::graph::walk`]).
//!
//! The rows are those of the flat index in device memory. Edges, start nodes and codes are uploaded by the first search
//! after a change. The results of a walk get their canonical distances from the kernel that re-ranks results of
//! inverted files.
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
#[cfg(feature = "cuda")]
pub(super) mod planned;

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use cuda_std::{Ptr, PtrMut};
use warpann_kernels::NO_ROW;
use warpann_kernels::graph::encode::{Encode, FloatKey};
use warpann_kernels::graph::twins::ExpandTwins;
use warpann_kernels::graph::walk::{self, PerQuery, Walk};
use warpann_kernels::ivf::encoding::StoredRows;
use warpann_kernels::ivf::rerank::{self, Certificate, Rerank};

pub(super) use self::build::{DeviceBuild, Source};
use super::codes::Distances;
use super::distance::WalkDistance;
use super::entrance::Entrance;
use super::links::Links;
use super::walk::Ranks;
use crate::device::backend::ResultArray;
use crate::device::lanes::Lane;
use crate::device::queue::OnStream;
use crate::device::runtime::{Memory, Runtime, Stream};
use crate::device::scratch::{Layout, Reserved, Scratch};
use crate::device::tiling::{Budget, Tiling};
use crate::flat::ResidentRows;
use crate::neighbors::slots::{FoundRows, Slots};
use crate::product::gpu::{VectorShape, upload_vectors};
use crate::search_options::SearchRequest;
use crate::threads::{Exclusive, apart};
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

/// Edges and start nodes in device memory.
struct Image {
    memory: Memory,
    /// The rows that walks compare, [`code_stride`] bytes each, unless these are those of the flat index.
    codes: Reserved<u8>,
    /// The shifts of the coder of the codes.
    shifts: Reserved<f32>,
    edges: Reserved<u32>,
    starts: Reserved<u32>,
    pivots: Reserved<u32>,
    ends: Reserved<u32>,
    /// For each row the place in `members` where its group of equal rows begins, or `NO_ROW`; empty if no rows are
    /// equal.
    groups: Reserved<u32>,
    /// Groups of equal rows: their number and the rows.
    members: Reserved<u32>,
}

impl Image {
    fn bytes(&self) -> u64 {
        let words = [self.edges, self.starts, self.pivots, self.ends, self.groups, self.members];
        let words: usize = words.map(Reserved::len).iter().sum();
        (4 * (words + self.shifts.len()) + self.codes.len()) as u64
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

    /// The graph in device memory, if a search has uploaded it.
    fn made(&self) -> Option<Arc<Image>> {
        self.image.with(|image| image.as_ref().map(Arc::clone))
    }

    /// The graph in device memory.
    fn image(
        &self,
        runtime: &Runtime,
        stream: &Stream,
        links: &Links,
        (codes, shifts): (Option<VectorSlice<'_>>, &[f32]),
    ) -> Result<Arc<Image>> {
        self.image.with(|image| {
            if let Some(image) = image {
                return Ok(Arc::clone(image));
            }
            let entrance = links.entrance();
            let (groups, members) = groups_of(links);
            let arrays =
                [links.edges(), entrance.listed(), entrance.pivots(), entrance.ends(), &groups[..], &members[..]];
            let mut layout = Layout::default();
            let places = arrays.map(|array| layout.array::<u32>(array.len()));
            let code_bytes = codes.map_or(0, |codes| codes.len() * code_stride(codes.dim()));
            let code_place = layout.array::<u8>(code_bytes);
            let shift_place = layout.array::<f32>(shifts.len());
            let memory = runtime.allocate(layout.bytes())?;
            let scratch = runtime.scratch(&memory);
            // SAFETY: the layout has room for the shifts.
            unsafe { runtime.copy_to_device(stream, scratch.at(shift_place), shifts)? };
            if let Some(codes) = codes {
                // SAFETY: the layout has room for all codes.
                unsafe { upload_codes(runtime, stream, scratch.at(code_place), codes)? };
            }
            for (array, place) in arrays.into_iter().zip(places) {
                // SAFETY: the layout has room for every array.
                unsafe { runtime.copy_to_device(stream, scratch.at(place), array)? };
            }
            let [edges, starts, pivots, ends, groups, members] = places;
            runtime.synchronize(stream)?;
            let (codes, shifts) = (code_place, shift_place);
            let made = Image { memory, codes, shifts, edges, starts, pivots, ends, groups, members };
            Ok(Arc::clone(image.insert(Arc::new(made))))
        })
    }
}

/// The groups of equal rows: of each row the place of its group, and the groups. Both are empty if no rows are equal.
fn groups_of(links: &Links) -> (Vec<u32>, Vec<u32>) {
    let twins = links.twins();
    if twins.is_empty() {
        return (Vec::new(), Vec::new());
    }
    let (mut groups, mut members) = (vec![NO_ROW; links.len()], Vec::new());
    for (_, rows) in twins.groups() {
        rows.iter().for_each(|&row| groups[row as usize] = members.len() as u32);
        members.push(rows.len() as u32);
        members.extend_from_slice(rows);
    }
    (groups, members)
}

/// Distance in bytes from one row of bytes to the next for walks.
fn code_stride(dim: usize) -> usize {
    dim.next_multiple_of(16)
}

/// The key of the kernels for an element type of floats.
fn float_key(element: ElementType) -> Option<FloatKey> {
    match element {
        ElementType::F32 => Some(FloatKey::F32),
        ElementType::F16 => Some(FloatKey::F16),
        ElementType::Bf16 => Some(FloatKey::Bf16),
        ElementType::U8 | ElementType::I8 => None,
    }
}

/// The rows that walks compare, if these are not those of the flat index: codes, and rows of bytes that are not aligned
/// to 16.
fn compared_codes<'a>(resident: &ResidentRows<'_>, distance: &WalkDistance<'a>) -> Option<VectorSlice<'a>> {
    let (rows, shape) = (distance.rows(), resident.shape);
    let aligned = rows.element() == shape.element && shape.stride() == code_stride(rows.dim());
    let bytes = matches!(rows.element(), ElementType::U8 | ElementType::I8);
    (bytes && !aligned).then_some(rows)
}

/// Copies rows of bytes to device memory, zero padded.
///
/// # Safety
/// `to` has room for the rows, [`code_stride`] bytes each, and no other work uses it.
unsafe fn upload_codes(runtime: &Runtime, stream: &Stream, to: PtrMut<u8>, codes: VectorSlice<'_>) -> Result<()> {
    let (dim, stride) = (codes.dim(), code_stride(codes.dim()));
    let write = |some: Range<usize>, to: &mut [u8]| {
        for (to, from) in to.chunks_exact_mut(stride).zip(codes.part(some).bytes().chunks_exact(dim)) {
            to[..dim].copy_from_slice(from);
            to[dim..].fill(0);
        }
    };
    // SAFETY: the caller promises the room.
    unsafe { runtime.copy_rows_to_device(stream, to, codes.len(), stride, &write) }
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
    /// Type, metric and stride of the rows that walks compare, and whether these are those of the index.
    compared: ElementType,
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

impl WalkShape {
    /// The threads that walk for each of `queries` queries.
    fn per_query(&self, runtime: &Runtime, queries: usize) -> PerQuery {
        let limits = runtime.limits();
        let many = if limits.emulated { FEW_EMULATED } else { BLOCKS_OF_FEW * limits.multiprocessors as usize };
        match self.width {
            _ if queries <= many => PerQuery::Block,
            0..WIDE => PerQuery::Warp,
            WIDE.. => PerQuery::Pair,
        }
    }
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
        let at = on.runtime.scratch(&image.memory);
        let (queries, compared) =
            if shape.own_rows { (places.queries, rows) } else { (places.codes, at.at(image.codes)) };
        Walk {
            query_count: count as u32,
            queries: queries.into(),
            rows: compared.into(),
            stride: shape.stride,
            metric: shape.metric.of_kernel(),
            edges: at.at(image.edges).into(),
            degree: shape.degree,
            starts: at.at(image.starts).into(),
            start_count: image.starts.len() as u32,
            pivots: at.at(image.pivots).into(),
            pivot_count: image.pivots.len() as u32,
            ends: at.at(image.ends).into(),
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
                shifts: runtime.scratch(&image.memory).at(image.shifts).into(),
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
        let (key, per_query) = (walks.compared.key(), walks.per_query(runtime, count));
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
        let (key, per_query) = (shape.element.key(), walks.per_query(runtime, count));
        // SAFETY: as the caller promises.
        unsafe { runtime.launch(stream, Walk::kernel((key, per_query)), walk.config(key, per_query), walk) }
    }

    /// Enqueues the ranking of what walks found.
    ///
    /// # Safety
    /// As [`enqueue_walks`](Self::enqueue_walks), which came before.
    unsafe fn enqueue_ranking(&self) -> Result<()> {
        let &Batch { shape: ref walks, on: OnStream { runtime, stream }, image, rows, places, count } = self;
        let (shape, image_at) = (walks.vectors, runtime.scratch(&image.memory));
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
        let kernel = Rerank::kernel((shape.element.key(), per_ranked));
        // SAFETY: as the caller promises.
        unsafe {
            runtime.launch(stream, kernel, rerank.config(per_ranked), rerank)?;
            if walks.twins {
                let expand = ExpandTwins {
                    query_count: count as u32,
                    found,
                    distances: keys.into(),
                    nodes: ranks.into(),
                    groups: image_at.at(image.groups).into(),
                    members: image_at.at(image.members).into(),
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
        // Small tests on the emulator make walks clear their tables.
        let slots = if self.resident.runtime.limits().emulated { walk::least_slots } else { walk::slots };
        Some(slots(width, self.links.degree() as u32))
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
            compared: self.distances.fast.rows().element(),
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
                .with(runtime, |lane| device.image(runtime, &lane.stream, self.links, (self.codes(), shifts)))
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
        let of_walk = |element: ElementType, stride| {
            Walk::shared_bytes(element.key(), stride, width, degree, pivots, slots) <= shared
        };
        let own = self.shape().stride() as u32;
        // Queries that codes cannot stand for walk by vectors.
        let coded =
            self.distances.codes.is_none() || Encode::shared_bytes(own) <= shared && of_walk(self.shape().element, own);
        ranked && coded && of_walk(self.distances.fast.rows().element(), stride)
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
