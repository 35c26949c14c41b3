//! The flat index on a device: changes of its rows, and the tiling of a search.
//!
//! If rows and their f16 copies take at most a share of the budget, they stay in device memory. Otherwise the base
//! stays in host memory and is streamed: during the search of one block, the next is uploaded into the other of two
//! slots. Queries are divided into tiles whose scratch fits the rest of the budget. Two lanes (streams with scratch)
//! work on different tiles at the same time, so that the selection of one overlaps the matrix product of the other.
//!
//! | file | content |
//! |---|---|
//! | `added` | rows that come from device memory |
//! | `among` | the blocks of a search: all rows, or those that a filter accepts |
//! | `block` | a block, and the launches that its searches have in common |
//! | `copies` | copies of rows within the device |
//! | `planned` | a search from device memory to device memory |
//! | `exact` | the k best of a block |
//! | `mask` | the rows of a block that take part in a search |
//! | `passes` | the distances from which the k best are selected |
//! | `preparation` | copies, norms and bounds of the rows that have changed |
//! | `prepared` | the rows that have copies, norms and bounds |
//! | `range` | the rows of a block within a radius |
//! | `rows` | the memory of the rows |
//! | `sets` | queries that may each find other rows |
//! | `steps` | the k best of a block for queries in device memory |

#[cfg(any(feature = "cuda", test))]
mod added;
mod among;
pub(crate) mod block;
pub(crate) mod copies;
mod exact;
mod mask;
mod passes;
mod planned;
mod preparation;
mod prepared;
mod range;
mod rows;
pub(super) mod sets;
mod steps;
#[cfg(test)]
mod tests;

use std::iter::once;
use std::ops::Range;
use std::sync::Arc;

use self::among::{MOST_LEFT_OUT, accepted, numbers_of};
use self::block::Block;
use self::copies::{gather_rows, scatter_rows};
use self::prepared::Preparation;
use self::rows::{BaseRows, Left, Resident, Slots, set_layout};
pub(crate) use self::rows::{FlatDevice, ResidentRows};
use super::backend::{FlatBackend, runs_of};
use crate::device::queue::OnStream;
use crate::device::runtime::Memory;
use crate::device::scratch::Layout;
use crate::device::tiling::Budget;
use crate::product::gpu::{VectorSet, upload_vectors};
use crate::search_options::SearchRequest;
use crate::shards::merge_apart;
use crate::threads::{Exclusive, apart};
use crate::vectors::{VectorBuffer, VectorSlice, VectorSliceMut};
use crate::{Bitset, Error, NONE, RangeNeighbors, Result, events, host_memory};

/// Smallest number of queries for which two lanes pay.
const TWO_LANES_FROM: usize = 2048;
/// Largest number of queries of a tile. It fills any device. In a large batch the lanes drift out of step, so that one
/// lane's copies over the bus overlap the other's kernels.
const TILE_QUERIES: usize = 16_384;
/// Bytes that are copied to the host at a time when a base outgrows the device.
const FETCH_BYTES: usize = 64 << 20;
/// One in this number of rows may have changed since a former version whose rows are brought up to date.
const ROWS_A_CHANGED_ONE: usize = 4;
/// Replaced rows of at most this number of bytes are uploaded to the scratch of a lane.
const STAGED_BYTES: usize = 64 << 20;

impl FlatDevice {
    /// Memory of this number of bytes: that of a former version, if it has the same number, or else new memory.
    fn memory_of(&self, bytes: usize) -> Result<Memory> {
        self.spare.take(bytes as u64).map_or_else(|| self.runtime.allocate(bytes), |left| Ok(left.resident.memory))
    }

    /// Allocates memory for `rows` rows and copies the first `self.count` rows to it, or returns an out-of-memory
    /// error.
    fn grown(&self, old: &Resident, rows: usize) -> Result<Resident> {
        let (layout, all) = set_layout(self.shape, rows);
        let memory = self.memory_of(all.bytes())?;
        let set = |memory: &Memory, layout| VectorSet::new(self.runtime.scratch(memory), layout, self.count as u32);
        let (to, from) = (set(&memory, layout).rows(), set(&old.memory, old.layout).rows());
        self.lanes.with(&self.runtime, |lane| {
            // SAFETY: both sets have room for `count` rows, and lie in different memory.
            unsafe { self.runtime.copy(&lane.background, to, from.take(self.count * self.shape.row_bytes()))? };
            self.runtime.synchronize(&lane.background)
        })?;
        Ok(Resident { memory, layout, capacity: rows, prepared: Exclusive::new(Preparation::default()) })
    }

    /// The number of rows for which to allocate memory, so that `needed` rows fit, more than the memory has room for;
    /// `None` if they do not fit the device.
    fn capacity_for(&self, needed: usize, old: &Resident) -> Option<usize> {
        let fits = |rows: usize| set_layout(self.shape, rows).1.bytes() as u64 <= self.resident_limit();
        // Extra room if rows come in portions; the exact size for the first rows, or if memory is short.
        let roomy = needed.max(old.capacity + old.capacity / 2);
        if old.capacity > 0 && fits(roomy) { Some(roomy) } else { fits(needed).then_some(needed) }
    }

    /// A copy of the rows in other memory of the device, with room for `more` rows: those of a former version, brought
    /// up to date, if few rows have changed since.
    fn copy_of(&self, old: &Resident, more: usize) -> Result<Resident> {
        let needed = self.count + more;
        if needed > old.capacity {
            return self.grown(old, self.capacity_for(needed, old).unwrap_or(needed));
        }
        let bytes = set_layout(self.shape, old.capacity).1.bytes();
        let memory = match self.spare.take(bytes as u64) {
            Some(left) if self.is_near(&left, old) => return self.caught_up(left, old),
            Some(left) => left.resident.memory,
            None => self.runtime.allocate(bytes)?,
        };
        let all = Layout::default().array::<u8>(bytes);
        let [to, from] = [&memory, &old.memory].map(|memory| self.runtime.scratch(memory).at(all));
        // The lock keeps searches from preparing rows meanwhile.
        let prepared = old.prepared.with(|prepared| {
            self.lanes.with(&self.runtime, |lane| {
                // Searches wait for the lock, so the copy goes ahead of other work. On the other stream the p99.9 of
                // searches by 8 threads was 2.1 ms, when all streams had one priority 1.4, and .7 without changes (a
                // million vectors of 128 components, H200, 2026-11-28).
                // SAFETY: both memories have the bytes of the layout, and differ.
                unsafe { self.runtime.copy(&lane.stream, to, from)? };
                self.runtime.synchronize(&lane.stream)
            })?;
            Result::Ok(prepared.clone())
        })?;
        Ok(Resident { memory, layout: old.layout, capacity: old.capacity, prepared: Exclusive::new(prepared) })
    }

    /// Whether it is less work to bring rows that a former version has left up to date than to copy all: few rows have
    /// changed since, and most of what belongs to rows was made.
    fn is_near(&self, left: &Left, old: &Resident) -> bool {
        let is_made = |resident: &Resident| resident.prepared.with(|prepared| prepared.is_made());
        let changed = self.journal.count_since(left.version);
        left.resident.capacity == old.capacity
            && changed.is_some_and(|changed| changed * ROWS_A_CHANGED_ONE <= self.count)
            && (is_made(&left.resident) || !is_made(old))
    }

    /// The rows that a former version has left, made equal to those of `old`, this version, from which the rows that
    /// have changed since are copied. Searches of `old` wait for nothing.
    fn caught_up(&self, left: Left, old: &Resident) -> Result<Resident> {
        let Left { mut resident, version, count } = left;
        let mut rows = self.journal.since(version).unwrap_or_default();
        // The last rows may have come and gone.
        rows.truncate(rows.partition_point(|&row| (row as usize) < self.count));
        let prepared = resident.prepared.get_mut();
        if self.count < count {
            prepared.truncated(self.count);
        }
        rows.iter().for_each(|&row| prepared.changed(row as usize..row as usize + 1));
        if rows.is_empty() {
            return Ok(resident);
        }
        let row_bytes = self.shape.row_bytes();
        let (from, to) = (self.set(old).rows(), self.set(&resident).rows());
        self.lanes.with(&self.runtime, |lane| {
            let each = (STAGED_BYTES / row_bytes).clamp(1, rows.len());
            let mut layout = Layout::default();
            let (list, staging) = (layout.array(rows.len()), layout.array::<u8>(each * row_bytes));
            let scratch = lane.scratch(&self.runtime, layout.bytes())?;
            let (list, staging) = (scratch.at(list), scratch.at(staging));
            let on = OnStream { runtime: &self.runtime, stream: &lane.background };
            // SAFETY: the scratch has room for the numbers and for `each` rows, and both sets have the listed rows,
            // which differ. Nobody else has the rows of the former version, and no search changes rows.
            unsafe {
                self.runtime.copy_to_device(on.stream, list, &rows)?;
                for first in (0..rows.len()).step_by(each) {
                    let list = list.skip(first).take(each.min(rows.len() - first));
                    gather_rows(on, from.into(), list.into(), staging, row_bytes)?;
                    scatter_rows(on, staging.into(), list.into(), to, row_bytes)?;
                }
            }
            self.runtime.synchronize(on.stream)
        })?;
        Ok(resident)
    }

    /// Allocates memory for the listed rows and copies them to it; `None` if old and new memory do not fit the device
    /// together.
    fn without_others(&self, old: &Resident, numbers: &[u32]) -> Result<Option<Resident>> {
        let (layout, all) = set_layout(self.shape, numbers.len());
        let asked = self.resident_bytes(old).saturating_add((all.bytes() + size_of_val(numbers)) as u64);
        if asked > self.budget {
            return Ok(None);
        }
        let memory = match self.memory_of(all.bytes()) {
            Ok(memory) => memory,
            Err(Error::OutOfDeviceMemory { .. }) => return Ok(None),
            Err(error) => return Err(error),
        };
        let to = VectorSet::new(self.runtime.scratch(&memory), layout, numbers.len() as u32).rows();
        self.lanes.with(&self.runtime, |lane| {
            let mut layout = Layout::default();
            let list = layout.array(numbers.len());
            let list = lane.scratch(&self.runtime, layout.bytes())?.at(list);
            let on = OnStream { runtime: &self.runtime, stream: &lane.background };
            // SAFETY: the scratch has room for the numbers, and the new memory for the rows. The numbers are those of
            // resident rows.
            unsafe { self.gather(on, self.set(old), numbers, list, to)? };
            self.runtime.synchronize(&lane.background)
        })?;
        Ok(Some(Resident { memory, layout, capacity: numbers.len(), prepared: Exclusive::new(Preparation::default()) }))
    }

    /// Copies resident rows from row `first` on to the host.
    fn fetch(&self, resident: &Resident, first: usize, to: &mut [u8]) -> Result<()> {
        let (stride, row) = (self.shape.row_bytes(), self.shape.dim * self.shape.element.size());
        let from = self.set(resident).rows().skip(first * stride);
        let copy = |to: &mut [u8]| {
            self.lanes.with(&self.runtime, |lane| {
                // SAFETY: the caller asks only for rows that exist.
                unsafe { self.runtime.copy_to_host(&lane.background, to, from) }
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

    /// Copies resident rows to a new buffer on the host, with room for `more` further rows. In pieces, so that the rows
    /// are never on the host twice.
    fn fetched(&self, resident: &Resident, rows: Range<usize>, more: usize) -> Result<VectorBuffer> {
        let row = self.shape.dim * self.shape.element.size();
        let mut host = VectorBuffer::new(self.shape.element);
        host.reserve((rows.len() + more) * self.shape.dim)?;
        let piece = (FETCH_BYTES / self.shape.row_bytes()).max(1);
        let mut fetched = host_memory::zeroed(piece.min(rows.len()) * row)?;
        for first in rows.clone().step_by(piece) {
            let fetched = &mut fetched[..piece.min(rows.end - first) * row];
            self.fetch(resident, first, fetched)?;
            host.extend(fetched);
        }
        Ok(host)
    }

    /// Uploads rows over the resident rows from row `first` on, for which there is room.
    fn upload(&self, resident: &Resident, first: usize, rows: VectorSlice<'_>) -> Result<()> {
        let to = self.set(resident).rows().skip(first * self.shape.row_bytes());
        let started = events::Started::now();
        self.lanes.with(&self.runtime, |lane| {
            // SAFETY: the caller promises the room.
            unsafe { upload_vectors(&self.runtime, &lane.background, self.shape, to, rows)? };
            self.runtime.synchronize(&lane.background)
        })?;
        let bytes = (rows.len() * self.shape.row_bytes()) as u64;
        events::uploaded("base", || self.runtime.describe(), bytes, &started);
        Ok(())
    }

    /// Uploads rows in one piece, and copies them over the resident rows with these numbers by one launch. An upload
    /// that fails has changed nothing. If the wait for the copy fails, the old rows, which the device has kept, are
    /// copied back.
    fn scatter(&self, resident: &Resident, numbers: &[u64], rows: VectorSlice<'_>) -> Result<()> {
        let numbers: Vec<u32> = numbers.iter().map(|&number| number as u32).collect();
        let mut layout = Layout::default();
        let row_bytes = self.shape.row_bytes();
        let list = layout.array(numbers.len());
        let [staging, before] = [(); 2].map(|()| layout.array::<u8>(rows.len() * row_bytes));
        let to = self.set(resident).rows();
        self.lanes.with(&self.runtime, |lane| {
            // Few rows take the scratch of a lane, which stays. Many get memory of their own.
            let own = if layout.bytes() > STAGED_BYTES { Some(self.runtime.allocate(layout.bytes())?) } else { None };
            let scratch = match &own {
                Some(memory) => self.runtime.scratch(memory),
                None => lane.scratch(&self.runtime, layout.bytes())?,
            };
            let (list, staging, before) = (scratch.at(list), scratch.at(staging), scratch.at(before));
            let on = OnStream { runtime: &self.runtime, stream: &lane.background };
            // SAFETY: the memory has room for the numbers and the rows. The numbers are those of resident rows, and
            // differ.
            unsafe {
                self.runtime.copy_to_device(&lane.background, list, &numbers)?;
                upload_vectors(&self.runtime, &lane.background, self.shape, staging, rows)?;
                gather_rows(on, to.take(self.count * row_bytes).into(), list.into(), before, row_bytes)?;
                self.runtime.synchronize(&lane.background)?;
                scatter_rows(on, staging.into(), list.into(), to, row_bytes)?;
            }
            let scattered = self.runtime.synchronize(&lane.background);
            if scattered.is_err() {
                // SAFETY: as above. A device that can do nothing any more has no rows either, so its errors do not
                // matter.
                let _ = unsafe { scatter_rows(on, before.into(), list.into(), to, row_bytes) };
                let _ = self.runtime.synchronize(&lane.background);
            }
            scattered
        })
    }

    /// Makes room for `more` rows in device memory. Returns `Ok(false)` if they do not fit.
    fn make_room(&mut self, more: usize) -> Result<bool> {
        let BaseRows::Device(resident) = &self.rows else { return Ok(false) };
        let needed = self.count + more;
        if needed > resident.capacity {
            let Some(capacity) = self.capacity_for(needed, resident) else { return Ok(false) };
            let grown = match self.grown(resident, capacity) {
                Ok(grown) => grown,
                Err(Error::OutOfDeviceMemory { .. }) => return Ok(false),
                Err(error) => return Err(error),
            };
            self.rows = BaseRows::Device(grown.into());
        }
        Ok(true)
    }

    /// Appends to device memory. Returns `Ok(false)` if the rows do not fit; nothing has then changed.
    fn add_resident(&mut self, rows: VectorSlice<'_>) -> Result<bool> {
        if !self.make_room(rows.len())? {
            return Ok(false);
        }
        let BaseRows::Device(resident) = &self.rows else { return Ok(false) };
        self.upload(resident, self.count, rows)?;
        self.changed(once(self.count..self.count + rows.len()));
        Ok(true)
    }

    /// Notes that these resident rows change, or have changed: copies and norms no longer belong to them.
    fn changed(&mut self, rows: impl IntoIterator<Item = Range<usize>>) {
        if let BaseRows::Device(resident) = &mut self.rows {
            let prepared = resident.prepared.get_mut();
            self.journal.begin();
            for rows in rows {
                self.journal.changed(rows.start as u32..rows.end as u32, self.count);
                prepared.changed(rows);
            }
        }
    }

    /// Searches one block for all queries, tile by tile.
    fn search_block(
        &self,
        block: &Block,
        scratch: u64,
        request: &SearchRequest<'_>,
        k: usize,
        ids: &mut [u64],
        distances: &mut [f32],
    ) -> Result<()> {
        let count = request.queries.len();
        let lanes = if count >= TWO_LANES_FROM { 2 } else { 1 };
        let tiling = block.tiling(Budget::new(&self.runtime, scratch), (count, TILE_QUERIES), k, lanes)?;
        events::path("exact search", || self.runtime.describe(), block.path(tiling.rows.min(count), k), count);
        let outs = ids.chunks_mut(tiling.rows * k).zip(distances.chunks_mut(tiling.rows * k));
        tiling.run(&self.runtime, &self.lanes, outs, |lane, tile, (ids, distances)| {
            block.search(&self.runtime, lane, request.queries.part(tile), k, ids, distances)
        })
    }

    /// Searches the rows whose numbers are listed, or all rows.
    fn search_listed(
        &self,
        numbers: Option<Vec<u32>>,
        request: &SearchRequest<'_>,
        k: usize,
        ids: &mut [u64],
        distances: &mut [f32],
    ) -> Result<()> {
        let worst = self.shape.metric.worst();
        if numbers.as_ref().is_some_and(Vec::is_empty) {
            ids.fill(NONE);
            distances.fill(worst);
            return Ok(());
        }
        // The results of blocks after the first, which are merged into those before.
        let mut found = (Vec::new(), Vec::new());
        self.each_block(numbers.as_deref(), &mut |block, scratch| {
            if block.first_id == 0 {
                return self.search_block(block, scratch, request, k, ids, distances);
            }
            if found.0.is_empty() {
                found = (host_memory::filled(NONE, ids.len())?, host_memory::filled(worst, ids.len())?);
            }
            self.search_block(block, scratch, request, k, &mut found.0, &mut found.1)?;
            merge_apart(self.shape.metric, k, ids, distances, std::slice::from_ref(&found));
            Ok(())
        })?;
        if let Some(numbers) = numbers {
            ids.iter_mut().filter(|id| **id != NONE).for_each(|id| *id = numbers[*id as usize].into());
        }
        Ok(())
    }
}

impl FlatBackend for FlatDevice {
    fn copied(&self, more: usize) -> Result<Box<dyn FlatBackend>> {
        let rows = match &self.rows {
            BaseRows::Device(resident) => BaseRows::Device(self.copy_of(resident, more)?.into()),
            BaseRows::Host { rows, .. } => {
                let mut copy = VectorBuffer::new(self.shape.element);
                copy.reserve((self.count + more) * self.shape.dim)?;
                copy.extend(rows.as_slice(self.shape.dim).bytes());
                BaseRows::Host { rows: copy, slots: Exclusive::new(None) }
            }
        };
        let (runtime, lanes, spare) = (self.runtime.clone(), Arc::clone(&self.lanes), Arc::clone(&self.spare));
        Ok(Box::new(FlatDevice { runtime, rows, lanes, journal: self.journal.copied(), spare, ..*self }))
    }

    fn emptied(&self) -> Box<dyn FlatBackend> {
        let (runtime, lanes) = (self.runtime.clone(), Arc::clone(&self.lanes));
        Box::new(FlatDevice::without_rows(runtime, self.shape, self.tuning, self.budget, lanes))
    }

    fn add(&mut self, rows: VectorSlice<'_>) -> Result<()> {
        if !self.add_resident(rows)? {
            if let BaseRows::Device(resident) = &self.rows {
                events::base_streamed(|| self.runtime.describe(), self.budget);
                let host = self.fetched(resident, 0..self.count, rows.len())?;
                self.rows = BaseRows::Host { rows: host, slots: Exclusive::new(None) };
            }
            if let BaseRows::Host { rows: host, slots } = &mut self.rows {
                host.reserve(rows.len() * self.shape.dim)?;
                host.extend(rows.bytes());
                *slots = Exclusive::new(None);
            }
        }
        self.count += rows.len();
        Ok(())
    }

    fn search(&self, request: &SearchRequest<'_>, k: usize, ids: &mut [u64], distances: &mut [f32]) -> Result<()> {
        let SearchRequest { queries, filter: among, .. } = *request;
        match among.and_then(|among| Some((among, self.mostly(among, queries.len(), k)?))) {
            // `apart` keeps a pool thread from starting another search while it has a lane.
            Some((among, resident)) => apart(|| self.search_most(resident, among, request, k, ids, distances)),
            None => self.search_listed(accepted(among)?, request, k, ids, distances),
        }
    }

    fn replace(&mut self, numbers: &[u64], rows: VectorSlice<'_>) -> Result<()> {
        if numbers.is_empty() {
            return Ok(());
        }
        if let BaseRows::Device(resident) = &self.rows {
            self.scatter(resident, numbers, rows)?;
            self.changed(runs_of(numbers).map(|(first, run)| first..first + run.len()));
        } else if let BaseRows::Host { rows: host, .. } = &mut self.rows {
            for (first, run) in runs_of(numbers) {
                host.overwrite(first * self.shape.dim, rows.part(run).bytes());
            }
        }
        Ok(())
    }

    /// If the device has no room for a copy of the rows that stay, they move through the host; if they then do not fit
    /// the device, they stay there.
    fn retain(&mut self, kept: &Bitset) -> Result<()> {
        let (numbers, dim) = (numbers_of(kept)?, self.shape.dim);
        if let BaseRows::Host { rows, slots } = &mut self.rows {
            rows.keep(dim, &numbers);
            *slots = Exclusive::new(None);
        } else if let BaseRows::Device(resident) = &self.rows
            && numbers.len() < self.count
        {
            if let Some(resident) = self.without_others(resident, &numbers)? {
                self.rows = BaseRows::Device(resident.into());
            } else {
                let mut host = self.fetched(resident, 0..self.count, 0)?;
                host.keep(dim, &numbers);
                self.rows = BaseRows::Device(Resident::empty(&self.runtime, self.shape).into());
                self.count = 0;
                if !matches!(self.add_resident(host.as_slice(dim)), Ok(true)) {
                    events::base_streamed(|| self.runtime.describe(), self.budget);
                    self.rows = BaseRows::Host { rows: host, slots: Exclusive::new(None) };
                }
            }
        }
        self.count = numbers.len();
        self.journal.begin();
        self.journal.everything_changed();
        Ok(())
    }

    fn range_search(&self, queries: VectorSlice<'_>, radius: f32, among: Option<&Bitset>) -> Result<RangeNeighbors> {
        // If the filter accepts most rows, all rows are searched, and the others are dropped from the results.
        let most = among.filter(|among| among.count_ones().saturating_mul(MOST_LEFT_OUT) >= among.len());
        let numbers = if most.is_some() { None } else { accepted(among)? };
        self.range(queries, radius, numbers.as_deref(), most)
    }

    fn bytes(&self) -> (u64, u64) {
        match &self.rows {
            BaseRows::Device(resident) => (0, self.resident_bytes(resident)),
            BaseRows::Host { rows, slots } => {
                let of_slot = |slots: &Slots| set_layout(self.shape, slots.rows).1.bytes() as u64;
                let of_slots = slots.with(|slots| slots.as_ref().map_or(0, |slots| 2 * of_slot(slots)));
                (rows.as_slice(self.shape.dim).bytes().len() as u64, of_slots)
            }
        }
    }

    fn len(&self) -> usize {
        self.count
    }

    fn truncate(&mut self, len: usize) {
        if len >= self.count {
            return;
        }
        self.count = len;
        // Rows that come in their place are noted then.
        self.journal.begin();
        match &mut self.rows {
            BaseRows::Device(resident) => resident.prepared.get_mut().truncated(self.count),
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

    fn as_device(&self) -> Option<&FlatDevice> {
        Some(self)
    }

    #[cfg(feature = "cuda")]
    fn as_device_mut(&mut self) -> Option<&mut FlatDevice> {
        Some(self)
    }

    fn describe(&self) -> String {
        match self.rows {
            BaseRows::Device(_) => self.runtime.describe(),
            BaseRows::Host { .. } => format!("{}, base streamed from host memory", self.runtime.describe()),
        }
    }
}
