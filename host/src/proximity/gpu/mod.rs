//! Walks on a device, one block for each query ([`warpann_kernels::proximity::walk`]).
//!
//! The rows are those of the flat index in device memory. Edges, start nodes and codes are uploaded by the first search after a change. The results of a walk
//! get their canonical distances from the kernel that re-ranks results of inverted files.

mod build;
#[cfg(feature = "cuda")]
pub(super) mod enqueued;

use std::ops::Range;
use std::sync::Arc;

use cuda_std::{Ptr, PtrMut};
use warpann_kernels::ivf::rerank::{self, Rerank};
use warpann_kernels::proximity::encode::{Encode, FloatKey};
use warpann_kernels::proximity::walk::{self, PerQuery, Walk};

pub(super) use self::build::{DeviceBuild, Source};
use super::codes::Coder;
use super::distance::WalkDistance;
use super::entrance::Entrance;
use super::links::Links;
use crate::device::backend::ResultArray;
use crate::device::lanes::Lane;
use crate::device::queue::OnStream;
use crate::device::runtime::{Memory, Runtime, Stream};
use crate::device::scratch::{Layout, Reserved, Scratch};
use crate::device::tiling::{Budget, Tiling};
use crate::flat::ResidentRows;
use crate::neighbors::slots::{FoundRows, Slots};
use crate::product::gpu::{VectorShape, upload_vectors};
use crate::threads::{Exclusive, apart};
use crate::vectors::VectorSlice;
use crate::{Bitset, ElementType, Metric, Result};

/// Up to this number of queries for each multiprocessor, a block walks for each.
const BLOCKS_OF_FEW: usize = 2;
/// The same on the emulator, in all, so that small tests run both kernels.
const FEW_EMULATED: usize = 2;
/// From this width of the beam on, two warps walk for each of many queries: shared memory lets fewer queries walk at a time.
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
}

impl Image {
    fn bytes(&self) -> u64 {
        let words: usize = [self.edges, self.starts, self.pivots, self.ends].map(Reserved::len).iter().sum();
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
            let arrays = [links.edges(), entrance.listed(), entrance.pivots(), entrance.ends()];
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
            let [edges, starts, pivots, ends] = places;
            runtime.synchronize(stream)?;
            let made = Image { memory, codes: code_place, shifts: shift_place, edges, starts, pivots, ends };
            Ok(Arc::clone(image.insert(Arc::new(made))))
        })
    }
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

/// The rows that walks compare, if these are not those of the flat index: codes, and rows of bytes that are not aligned to 16.
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
    /// The vectors or codes that walks compare.
    pub(super) distance: WalkDistance<'a>,
    /// The coder of the codes; `None` if walks compare vectors.
    pub(super) coder: Option<&'a Coder>,
    pub(super) links: &'a Links,
    pub(super) width: usize,
    pub(super) among: Option<&'a Bitset>,
    pub(super) k: usize,
    /// Number of nodes of a beam that get their canonical distances.
    pub(super) ranked: usize,
}

/// What all walks of a search have in common.
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
    /// The scale of the coder of the codes.
    scale: Option<f32>,
    degree: u32,
    wanted: u32,
    width: u32,
    slots: u32,
    k: u32,
    ranked: u32,
}

/// The arrays of a launch.
struct Places {
    queries: PtrMut<u8>,
    codes: PtrMut<u8>,
    filter: Option<Ptr<u32>>,
    places: PtrMut<u32>,
    keys: PtrMut<f32>,
    ranks: PtrMut<u32>,
}

impl WalkShape {
    /// The threads that walk for one of so many queries.
    fn per_query(&self, runtime: &Runtime, queries: usize) -> PerQuery {
        let limits = runtime.limits();
        let many = if limits.emulated { FEW_EMULATED } else { BLOCKS_OF_FEW * limits.multiprocessors as usize };
        match self.width {
            _ if queries <= many => PerQuery::Block,
            0..WIDE => PerQuery::Warp,
            WIDE.. => PerQuery::Pair,
        }
    }

    /// Enqueues the walks for `count` queries, and the ranking of what they find. Codes that no coder makes are in place.
    ///
    /// # Safety
    /// The arrays have room for `count` queries. `rows` are those of the index, and `image` is its graph, whose edges and start nodes are rows. All
    /// live until the stream has done the work.
    unsafe fn launch(
        &self,
        on: OnStream<'_>,
        image: &Image,
        rows: PtrMut<u8>,
        places: &Places,
        count: usize,
    ) -> Result<()> {
        let OnStream { runtime, stream } = on;
        let (shape, image_at) = (self.vectors, runtime.scratch(&image.memory));
        let per_query = self.per_query(runtime, count);
        let (walk_queries, walk_rows) =
            if self.own_rows { (places.queries, rows) } else { (places.codes, image_at.at(image.codes)) };
        let walk = Walk {
            query_count: count as u32,
            queries: walk_queries.into(),
            rows: walk_rows.into(),
            stride: self.stride,
            metric: self.metric.of_kernel(),
            edges: image_at.at(image.edges).into(),
            degree: self.degree,
            starts: image_at.at(image.starts).into(),
            start_count: image.starts.len() as u32,
            pivots: image_at.at(image.pivots).into(),
            pivot_count: image.pivots.len() as u32,
            ends: image_at.at(image.ends).into(),
            wanted: self.wanted,
            width: self.width,
            slots: self.slots,
            filter: places.filter,
            selected: self.ranked,
            places: places.places,
        };
        let rerank = Rerank {
            query_count: count as u32,
            queries: places.queries.into(),
            rows: rows.into(),
            stride: shape.stride() as u32,
            places: places.places.into(),
            selected: self.ranked,
            row_count: self.rows,
            metric: shape.metric.of_kernel(),
            sort: 1,
            k: self.k,
            out_keys: places.keys,
            out_ranks: places.ranks,
            ..Rerank::default()
        };
        let few = rerank.selected <= rerank::WARP_SELECTED;
        let per_ranked = if few { rerank::PerQuery::Warp } else { rerank::PerQuery::Block };
        // SAFETY: as the caller promises.
        unsafe {
            if let Some((scale, key)) = self.scale.zip(float_key(shape.element)) {
                let encode = Encode {
                    count: count as u32,
                    rows: places.queries.into(),
                    stride: shape.stride() as u32,
                    dim: shape.dim as u32,
                    metric: shape.metric.of_kernel(),
                    shifts: image_at.at(image.shifts).into(),
                    scale,
                    codes: places.codes,
                    code_stride: self.stride,
                };
                runtime.launch(stream, Encode::kernel(key), encode.config(), encode)?;
            }
            let key = self.compared.key();
            runtime.launch(stream, Walk::kernel((key, per_query)), walk.config(key, per_query), walk)?;
            let kernel = Rerank::kernel((shape.element.key(), per_ranked));
            runtime.launch(stream, kernel, rerank.config(per_ranked), rerank)
        }
    }
}

/// The arrays of a launch in scratch memory.
struct Plan {
    queries: Reserved<u8>,
    /// The queries that walks compare, if these are codes.
    codes: Reserved<u8>,
    filter: Reserved<u32>,
    places: Reserved<u32>,
    keys: Reserved<f32>,
    ranks: Reserved<u32>,
    bytes: usize,
}

impl Plan {
    fn places(&self, scratch: Scratch, filter: Option<Ptr<u32>>) -> Places {
        Places {
            queries: scratch.at(self.queries),
            codes: scratch.at(self.codes),
            filter,
            places: scratch.at(self.places),
            keys: scratch.at(self.keys),
            ranks: scratch.at(self.ranks),
        }
    }
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

    /// The rows that walks compare, if these are not those of the flat index.
    fn codes(&self) -> Option<VectorSlice<'_>> {
        compared_codes(&self.resident, &self.distance)
    }

    /// Distance from one compared row to the next in components.
    fn stride(&self) -> usize {
        self.codes().map_or(self.shape().stride(), |codes| code_stride(codes.dim()))
    }

    fn shape_of_walks(&self) -> WalkShape {
        WalkShape {
            vectors: self.shape(),
            rows: self.links.len() as u32,
            compared: self.distance.rows().element(),
            metric: self.distance.metric(),
            stride: self.stride() as u32,
            own_rows: self.codes().is_none(),
            scale: self.coder.map(|coder| coder.scale),
            degree: self.links.degree() as u32,
            wanted: u32::try_from(Entrance::wanted(self.width)).unwrap_or(u32::MAX),
            width: self.width as u32,
            slots: self.slots().unwrap_or(1),
            k: self.k as u32,
            ranked: self.ranked as u32,
        }
    }

    /// The graph in device memory.
    fn image(&self, device: &DeviceLinks) -> Result<Arc<Image>> {
        let (runtime, shifts) = (self.resident.runtime, self.coder.map_or(&[][..], |coder| &coder.shifts));
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
        let ranked = self.ranked <= 1 << 16 && rerank::shared_bytes(self.ranked as u32) <= shared;
        let pivots = self.links.entrance().pivots().len() as u32;
        let encoded = self.coder.is_none() || Encode::shared_bytes(self.shape().stride() as u32) <= shared;
        ranked
            && encoded
            && Walk::shared_bytes(self.distance.rows().element().key(), stride, width, degree, pivots, slots) <= shared
    }

    fn plan(&self, queries: usize) -> Plan {
        let mut layout = Layout::default();
        Plan {
            queries: layout.array(queries.saturating_mul(self.shape().row_bytes())),
            codes: layout.array(self.codes().map_or(0, |codes| queries.saturating_mul(code_stride(codes.dim())))),
            filter: layout.array(self.among.map_or(0, |among| 2 * among.words().len())),
            places: layout.array(queries.saturating_mul(self.ranked)),
            keys: layout.array(queries.saturating_mul(self.k)),
            ranks: layout.array(queries.saturating_mul(self.k)),
            bytes: layout.bytes(),
        }
    }

    /// The largest number of queries of one launch.
    fn most_of_tile(&self) -> usize {
        let of_query = 4 * (self.ranked + 2 * self.k) + self.shape().row_bytes() + self.stride();
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
        let filter = self.among.map(|among| (scratch.at(plan.filter), bytemuck::cast_slice::<u64, u32>(among.words())));
        let places = plan.places(scratch, filter.map(|(to, _)| to.into()));
        let arrays = [ResultArray::new(places.keys, self.k), ResultArray::new(places.ranks, self.k)];
        let mut slots = Slots { k: self.k, worst: shape.metric.worst(), ids, distances };
        // SAFETY: the plan has room for these arrays, and the rows and the graph are resident. Edges and start nodes are rows: `Links` says so.
        unsafe {
            upload_vectors(runtime, stream, shape, scratch.at(plan.queries), queries)?;
            if let Some((to, words)) = filter {
                runtime.copy_to_device(stream, to, words)?;
            }
            if self.codes().is_some() && self.coder.is_none() {
                upload_codes(runtime, stream, scratch.at(plan.codes), queries)?;
            }
            self.shape_of_walks().launch(OnStream { runtime, stream }, image, self.resident.rows, &places, count)?;
            runtime.copy_results_to_host(stream, count, &arrays, &mut |some, parts| {
                slots.fill(some.start, FoundRows::new(self.k, parts[0], parts[1]), u64::from);
            })?;
        }
        Ok(())
    }
}
