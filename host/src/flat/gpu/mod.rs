//! The flat index on a device: the memory of its rows, and the tiling of a search.
//!
//! If rows and their f16 copies take at most [`RESIDENT_SHARE`] of the budget, they stay in device memory. Otherwise the base stays in host
//! memory and is streamed: during the search of one block, the next is uploaded into the other of two slots. Queries are divided into tiles
//! whose scratch fits the rest of the budget. Two lanes (streams with scratch) work on different tiles at the same time, so that the
//! selection of one overlaps the matrix product of the other.

pub(crate) mod exact;

use self::exact::{Block, Tuning};
use super::FlatBackend;
use crate::device::lanes::Lanes;
use crate::device::runtime::{Memory, Runtime, Stream};
use crate::device::scratch::Layout;
use crate::device::tiling::{Budget, Tiling};
use crate::product::gpu::{SetLayout, VectorSet, VectorShape, prepare_set, upload_vectors};
use crate::shards::merge_apart;
use crate::threads::{Exclusive, apart, meanwhile};
use crate::vectors::{VectorBuffer, VectorSlice, VectorSliceMut, with_components};
use crate::{Element, Error, Result, events, host_memory};

/// Share of the budget that resident rows may take: numerator and denominator.
const RESIDENT_SHARE: (u64, u64) = (3, 4);
/// Smallest number of queries for which two lanes pay.
const TWO_LANES_FROM: usize = 2048;
/// Largest number of queries of a tile. It fills any device. In a large batch the lanes drift out of step, so that one lane's copies over
/// the bus overlap the other's kernels.
const TILE_QUERIES: usize = 16_384;
/// Bytes that are copied to the host at a time when a base outgrows the device.
const FETCH_BYTES: usize = 64 << 20;
/// Number of rows that the centre is estimated from.
const CENTRE_SAMPLE: usize = 4096;

/// A flat index on one device.
pub(crate) struct FlatDevice {
    runtime: Runtime,
    shape: VectorShape,
    tuning: Tuning,
    budget: u64,
    count: usize,
    rows: BaseRows,
    centre: Centre,
    lanes: Lanes,
}

/// The memory of the rows: the device, or the host with slots on the device.
enum BaseRows {
    Device(Resident),
    Host { rows: VectorBuffer, slots: Exclusive<Option<Slots>> },
}

/// Rows in device memory.
struct Resident {
    memory: Memory,
    layout: SetLayout,
    capacity: usize,
    /// Whether the f16 copies and norms belong to the rows. The first search after an `add` makes them.
    prepared: Exclusive<bool>,
}

/// Two places in device memory for blocks of a base in host memory.
struct Slots {
    memory: [Memory; 2],
    layout: SetLayout,
    rows: usize,
}

/// A point near the middle of the base. Subtracting it from every vector changes no squared L2 distance, and lowers the norms and thus the
/// filter's error bound.
#[derive(Default)]
pub(crate) struct Centre {
    sum: Vec<f64>,
    rows: usize,
    integers: bool,
}

impl Centre {
    /// Adds a sample of the rows to the estimate.
    pub fn add(&mut self, rows: VectorSlice<'_>) {
        with_components!(rows, components: T => self.add_components::<T>(components, rows.dim()));
    }

    fn add_components<T: Element>(&mut self, rows: &[T], dim: usize) {
        let count = rows.len() / dim;
        if self.rows == 0 {
            *self = Centre { sum: vec![0.0; dim], rows: 0, integers: true };
        }
        if self.rows >= CENTRE_SAMPLE {
            return;
        }
        let step = count.div_ceil(CENTRE_SAMPLE).max(1);
        for row in rows.chunks_exact(dim).step_by(step) {
            for (sum, value) in self.sum.iter_mut().zip(row) {
                let value = value.to_f32();
                *sum += f64::from(value);
                self.integers &= value.trunc() == value;
            }
            self.rows += 1;
        }
    }

    /// The estimate, with zeros up to `stride`. For integer components it is an integer, so that f16 still holds the differences exactly.
    pub fn components(&self, stride: usize) -> Vec<f32> {
        let mean = |sum: &f64| sum / self.rows.max(1) as f64;
        let round = |value: f64| if self.integers { value.round() } else { value };
        let mut centre: Vec<f32> = self.sum.iter().map(mean).map(round).map(|value| value as f32).collect();
        centre.resize(stride, 0.0);
        // Sums of components near f32's limit may overflow: then there is no centre.
        if centre.iter().all(|value| value.is_finite()) { centre } else { vec![0.0; stride] }
    }
}

/// The layout of a set of `rows` rows in its memory.
fn set_layout(shape: VectorShape, rows: usize) -> (SetLayout, Layout) {
    let mut layout = Layout::default();
    let set = SetLayout::reserve(&mut layout, shape, rows);
    (set, layout)
}

impl FlatDevice {
    /// An empty index; `budget` defaults to nine tenths of the device's free memory.
    pub fn new(runtime: Runtime, shape: VectorShape, budget: Option<u64>) -> Result<Self> {
        let budget = runtime.budget(budget)?;
        let (layout, _) = set_layout(shape, 0);
        let memory = runtime.allocate(0)?;
        let rows = BaseRows::Device(Resident { memory, layout, capacity: 0, prepared: Exclusive::new(true) });
        let tuning = Tuning::of(&runtime.limits());
        Ok(FlatDevice {
            runtime,
            shape,
            tuning,
            budget,
            count: 0,
            rows,
            centre: Centre::default(),
            lanes: Lanes::new(),
        })
    }

    fn resident_limit(&self) -> u64 {
        self.budget / RESIDENT_SHARE.1 * RESIDENT_SHARE.0
    }

    /// Allocates memory for `rows` rows and copies the first `self.count` rows to it, or returns an out-of-memory error.
    fn grown(&self, old: &Resident, rows: usize) -> Result<Resident> {
        let (layout, all) = set_layout(self.shape, rows);
        let memory = self.runtime.allocate(all.bytes())?;
        let set = |memory, layout| VectorSet::new(self.runtime.scratch(memory), layout, self.count as u32);
        let (to, from) = (set(&memory, layout).rows(), set(&old.memory, old.layout).rows());
        self.lanes.with(&self.runtime, |lane| {
            // SAFETY: both sets have room for `count` rows, and lie in different memory.
            unsafe { self.runtime.copy(&lane.stream, to, from.take(self.count * self.shape.row_bytes()))? };
            self.runtime.synchronize(&lane.stream)
        })?;
        Ok(Resident { memory, layout, capacity: rows, prepared: Exclusive::new(false) })
    }

    /// The set of resident rows.
    fn set(&self, resident: &Resident) -> VectorSet {
        VectorSet::new(self.runtime.scratch(&resident.memory), resident.layout, self.count as u32)
    }

    /// Copies resident rows from row `first` on to the host.
    fn fetch(&self, resident: &Resident, first: usize, to: &mut [u8]) -> Result<()> {
        let (stride, row) = (self.shape.row_bytes(), self.shape.dim * self.shape.element.size());
        let from = self.set(resident).rows().skip(first * stride);
        let copy = |to: &mut [u8]| {
            self.lanes.with(&self.runtime, |lane| {
                // SAFETY: the caller asks only for rows that exist.
                unsafe { self.runtime.copy_to_host(&lane.stream, to, from) }
            })
        };
        if stride == row {
            return copy(to);
        }
        let mut padded = vec![0; to.len() / row * stride];
        copy(&mut padded)?;
        for (to, from) in to.chunks_exact_mut(row).zip(padded.chunks_exact(stride)) {
            to.copy_from_slice(&from[..row]);
        }
        Ok(())
    }

    /// Appends to device memory. Returns `Ok(false)` if the rows do not fit; nothing has then changed.
    fn add_resident(&mut self, rows: VectorSlice<'_>) -> Result<bool> {
        let BaseRows::Device(resident) = &self.rows else { return Ok(false) };
        let needed = self.count + rows.len();
        if needed > resident.capacity {
            let fits = |rows: usize| set_layout(self.shape, rows).1.bytes() as u64 <= self.resident_limit();
            // Extra room if rows come in portions; the exact size for the first rows, or if memory is short.
            let roomy = needed.max(resident.capacity + resident.capacity / 2);
            let capacity = if resident.capacity > 0 && fits(roomy) { roomy } else { needed };
            if !fits(capacity) {
                return Ok(false);
            }
            let grown = match self.grown(resident, capacity) {
                Ok(grown) => grown,
                Err(Error::OutOfDeviceMemory { .. }) => return Ok(false),
                Err(error) => return Err(error),
            };
            self.rows = BaseRows::Device(grown);
        }
        let BaseRows::Device(resident) = &mut self.rows else { return Ok(false) };
        let set = VectorSet::new(self.runtime.scratch(&resident.memory), resident.layout, self.count as u32);
        let to = set.rows().skip(self.count * self.shape.row_bytes());
        let (runtime, shape) = (&self.runtime, self.shape);
        let started = events::Started::now();
        self.lanes.with(runtime, |lane| {
            // SAFETY: the set has capacity for the new rows, as checked above.
            unsafe { upload_vectors(runtime, &lane.stream, shape, to, rows)? };
            runtime.synchronize(&lane.stream)
        })?;
        events::uploaded("base", || runtime.describe(), (rows.len() * shape.row_bytes()) as u64, &started);
        resident.prepared = Exclusive::new(false);
        Ok(true)
    }

    fn centred(&self) -> bool {
        self.shape.metric.ignores_translation()
    }

    /// Makes copies, norms and bounds of a set of uploaded rows, and waits for them.
    fn prepare(&self, stream: &Stream, set: VectorSet) -> Result<()> {
        // SAFETY: the set was laid out by `set_layout`, so its centre has `stride` components.
        unsafe {
            if self.centred() {
                let centre = self.centre.components(self.shape.stride());
                self.runtime.copy_to_device(stream, set.centre(), &centre)?;
            }
            prepare_set(&self.runtime, stream, self.shape, set, self.centred())?;
        }
        self.runtime.synchronize(stream)
    }

    /// Searches one block for all queries, tile by tile.
    fn search_block(
        &self,
        block: &Block,
        scratch: u64,
        queries: VectorSlice<'_>,
        k: usize,
        ids: &mut [u64],
        distances: &mut [f32],
    ) -> Result<()> {
        let count = queries.len();
        let lanes = if count >= TWO_LANES_FROM { 2 } else { 1 };
        let tiling = block.tiling(Budget::new(&self.runtime, scratch), (count, TILE_QUERIES), k, lanes)?;
        events::path("exact search", || self.runtime.describe(), block.path(tiling.rows.min(count), k), count);
        let outs = ids.chunks_mut(tiling.rows * k).zip(distances.chunks_mut(tiling.rows * k));
        tiling.run(&self.runtime, &self.lanes, outs, |lane, tile, (ids, distances)| {
            block.search(&self.runtime, lane, queries.part(tile), k, ids, distances)
        })
    }

    fn search_resident(
        &self,
        resident: &Resident,
        queries: VectorSlice<'_>,
        k: usize,
        ids: &mut [u64],
        distances: &mut [f32],
    ) -> Result<()> {
        let set = self.set(resident);
        resident.prepared.with(|prepared| -> Result<()> {
            if !*prepared {
                self.lanes.with(&self.runtime, |lane| self.prepare(&lane.stream, set))?;
                *prepared = true;
            }
            Ok(())
        })?;
        let block = Block { shape: self.shape, base: set, centred: self.centred(), first_id: 0, tuning: self.tuning };
        let used = set_layout(self.shape, resident.capacity).1.bytes() as u64;
        self.search_block(&block, self.budget.saturating_sub(used), queries, k, ids, distances)
    }

    /// Allocates the two slots for a streamed base, each as large as the budget allows.
    fn slots(&self) -> Result<Slots> {
        let budget = Budget::new(&self.runtime, self.resident_limit());
        let tiling = Tiling::new(budget, (self.count, self.count), 2, |rows| Ok(set_layout(self.shape, rows)))?;
        let (layout, bytes) = (tiling.plan.0, tiling.plan.1.bytes());
        let memory = [self.runtime.allocate(bytes)?, self.runtime.allocate(bytes)?];
        Ok(Slots { memory, layout, rows: tiling.rows })
    }

    fn search_streamed(
        &self,
        rows: VectorSlice<'_>,
        slots: &Slots,
        queries: VectorSlice<'_>,
        k: usize,
        ids: &mut [u64],
        distances: &mut [f32],
    ) -> Result<()> {
        let pieces: Vec<VectorSlice<'_>> = rows.chunks(slots.rows).collect();
        let block = |piece: usize| {
            let memory = self.runtime.scratch(&slots.memory[piece % 2]);
            let set = VectorSet::new(memory, slots.layout, pieces[piece].len() as u32);
            Block {
                shape: self.shape,
                base: set,
                centred: self.centred(),
                first_id: (piece * slots.rows) as u64,
                tuning: self.tuning,
            }
        };
        let load = |piece: usize| {
            let set = block(piece).base;
            let started = events::Started::now();
            let bytes = (pieces[piece].len() * self.shape.row_bytes()) as u64;
            self.lanes.with(&self.runtime, |lane| {
                // SAFETY: a slot has room for a piece, and the search that used it is finished.
                unsafe { upload_vectors(&self.runtime, &lane.stream, self.shape, set.rows(), pieces[piece])? };
                self.prepare(&lane.stream, set)
            })?;
            events::uploaded("piece of the base", || self.runtime.describe(), bytes, &started);
            Ok(())
        };
        let scratch = self.budget - self.resident_limit();
        ids.fill(crate::NONE);
        distances.fill(self.shape.metric.worst());
        let worst = self.shape.metric.worst();
        let mut found = (host_memory::filled(crate::NONE, ids.len())?, host_memory::filled(worst, ids.len())?);
        load(0)?;
        for piece in 0..pieces.len() {
            let next = piece + 1;
            let (ahead, own) = meanwhile(
                || if next < pieces.len() { load(next) } else { Ok(()) },
                || self.search_block(&block(piece), scratch, queries, k, &mut found.0, &mut found.1),
            );
            own.and(ahead)?;
            merge_apart(self.shape.metric, k, ids, distances, std::slice::from_ref(&found));
        }
        Ok(())
    }
}

impl FlatBackend for FlatDevice {
    fn add(&mut self, rows: VectorSlice<'_>) -> Result<()> {
        if !self.add_resident(rows)? {
            if let BaseRows::Device(resident) = &self.rows {
                events::base_streamed(|| self.runtime.describe(), self.budget);
                let mut host = VectorBuffer::new(self.shape.element);
                host.reserve((rows.len() + self.count) * self.shape.dim)?;
                // In pieces, so that the base is never on the host twice.
                let piece = (FETCH_BYTES / self.shape.row_bytes()).max(1);
                let mut fetched = host_memory::zeroed(piece.min(self.count) * rows.row_bytes())?;
                for first in (0..self.count).step_by(piece) {
                    let fetched = &mut fetched[..piece.min(self.count - first) * rows.row_bytes()];
                    self.fetch(resident, first, fetched)?;
                    host.extend(fetched);
                }
                self.rows = BaseRows::Host { rows: host, slots: Exclusive::new(None) };
            }
            if let BaseRows::Host { rows: host, slots } = &mut self.rows {
                host.reserve(rows.len() * self.shape.dim)?;
                host.extend(rows.bytes());
                *slots = Exclusive::new(None);
            }
        }
        self.centre.add(rows);
        self.count += rows.len();
        Ok(())
    }

    fn search(&self, queries: VectorSlice<'_>, k: usize, ids: &mut [u64], distances: &mut [f32]) -> Result<()> {
        // `apart` keeps a pool thread from starting another search while it has a lane.
        match &self.rows {
            BaseRows::Device(resident) => apart(|| self.search_resident(resident, queries, k, ids, distances)),
            BaseRows::Host { rows, slots } => slots.with(|slots| {
                let slots = match slots {
                    Some(slots) => slots,
                    none => none.insert(self.slots()?),
                };
                self.search_streamed(rows.as_slice(self.shape.dim), slots, queries, k, ids, distances)
            }),
        }
    }

    fn len(&self) -> usize {
        self.count
    }

    fn truncate(&mut self, len: usize) {
        self.count = self.count.min(len);
        match &mut self.rows {
            BaseRows::Device(resident) => resident.prepared = Exclusive::new(false),
            BaseRows::Host { rows, .. } => rows.truncate(len * self.shape.dim),
        }
    }

    fn rows(&self, first: u64, to: VectorSliceMut<'_>) -> Result<()> {
        let (first, count) = (first as usize, to.len(self.shape.dim));
        match &self.rows {
            BaseRows::Device(resident) => self.fetch(resident, first, to.bytes()),
            BaseRows::Host { rows, .. } => {
                to.bytes().copy_from_slice(rows.as_slice(self.shape.dim).part(first..first + count).bytes());
                Ok(())
            }
        }
    }

    fn describe(&self) -> String {
        match self.rows {
            BaseRows::Device(_) => self.runtime.describe(),
            BaseRows::Host { .. } => format!("{}, base streamed from host memory", self.runtime.describe()),
        }
    }
}
