//! The blocks of a search: prepared rows in device memory, in the order of their numbers.
//!
//! | rows | blocks |
//! |---|---|
//! | resident, all | one block, in place |
//! | resident, most of them | one block, in place, which leaves out the others |
//! | resident, some of them | pieces that are gathered into scratch memory |
//! | on the host | pieces that are uploaded into two slots; of a filter's rows, only these are uploaded |
//!
//! # Search among some rows
//! A search among the rows of a filter is an exact search of a smaller base: the accepted rows are copied next to each
//! other ([`gather_rows`](warpann_kernels::flat::gather_rows)) and prepared, and the ordinary search of a block returns
//! their places. The list of accepted numbers ascends, so places have the order of numbers, and equal distances stay in
//! the order of lower numbers when the caller replaces places by numbers.
//!
//! Cost for m accepted rows: one read and one write of them, their preparation, and the search of m rows. No other row
//! is read, and the filter of the exact search works as in an index that has only these rows. Gathered pieces take at
//! most half of the scratch memory; the search has the rest.
//!
//! # Search among most rows
//! If at least a quarter of the rows are accepted, the search reads all rows in place and leaves out the others
//! (`steps`). One million rows of 128 components on an H100 (2026-11-25): 100 queries take 0.24 ms among all rows, 0.27
//! ms among every second one in place, and 1.66 ms among copies of these.
//!
//! Cost: one bit of each row over the bus, one read and one write of a number for each row, and a search of all rows.

use cuda_std::PtrMut;

use super::block::Block;
use super::copies::gather_rows;
use super::mask::MaskPlan;
use super::rows::{BaseRows, FlatDevice, Resident, Slots, set_layout};
use crate::device::queue::OnStream;
use crate::device::scratch::{Layout, Reserved};
use crate::device::tiling::{Budget, Planned, Tiling};
use crate::product::centre::{CENTRE_SAMPLE, Centre};
use crate::product::gpu::{SetLayout, VectorSet, VectorShape, upload_listed, upload_vectors};
use crate::search_options::SearchRequest;
use crate::threads::{apart, meanwhile};
use crate::vectors::VectorSlice;
use crate::{Bitset, Result, events, host_memory};

/// A search reads all rows if at least one of this number is accepted.
pub(super) const MOST_LEFT_OUT: usize = 4;

/// The work on a block, with the bytes of scratch that it may use.
pub(super) type BlockWork<'a> = dyn FnMut(&Block, u64) -> Result<()> + 'a;

/// The numbers of the rows that a filter accepts, ascending; `None` if it accepts all.
pub(super) fn accepted(among: Option<&Bitset>) -> Result<Option<Vec<u32>>> {
    let some = among.filter(|bits| bits.count_ones() < bits.len());
    some.map(numbers_of).transpose()
}

/// The numbers of the set bits, ascending. There are at most [`MAX_ROWS`](crate::MAX_ROWS) bits.
pub(super) fn numbers_of(bits: &Bitset) -> Result<Vec<u32>> {
    let mut numbers = host_memory::with_room(bits.count_ones())?;
    for (at, &word) in bits.words().iter().enumerate() {
        let mut word = word;
        while word != 0 {
            numbers.push((at * 64) as u32 + word.trailing_zeros());
            word &= word - 1;
        }
    }
    Ok(numbers)
}

/// The memory of a gathered piece.
struct Piece {
    set: SetLayout,
    numbers: Reserved<u32>,
    bytes: usize,
}

impl Piece {
    fn new(shape: VectorShape, rows: usize) -> Piece {
        let mut layout = Layout::default();
        let (set, numbers) = (SetLayout::reserve(&mut layout, shape, rows), layout.array(rows));
        Piece { set, numbers, bytes: layout.bytes() }
    }
}

impl Planned for Piece {
    fn bytes(&self) -> usize {
        self.bytes
    }
}

/// Rows in host memory that a search streams: all, or those whose numbers are listed.
#[derive(Clone, Copy)]
struct HostRows<'a> {
    rows: VectorSlice<'a>,
    numbers: Option<&'a [u32]>,
}

impl HostRows<'_> {
    /// The centre of the rows of a set, the first of which is row `first`.
    fn centre(self, shape: VectorShape, set: VectorSet, first: usize) -> Vec<f32> {
        let (mut centre, some) = (Centre::default(), first..first + set.count as usize);
        match self.numbers {
            _ if !shape.metric.ignores_translation() => return Vec::new(),
            None => centre.add(self.rows.part(some)),
            Some(numbers) => {
                for &number in numbers[some].iter().step_by((set.count as usize).div_ceil(CENTRE_SAMPLE).max(1)) {
                    centre.add(self.rows.part(number as usize..number as usize + 1));
                }
            }
        }
        centre.components(shape.stride())
    }

    fn len(self) -> usize {
        self.numbers.map_or(self.rows.len(), <[u32]>::len)
    }

    /// Uploads rows `first` .. `first + set.count` to a set.
    ///
    /// # Safety
    /// The set has room for them, and no other work uses it.
    unsafe fn upload(self, on: OnStream<'_>, shape: VectorShape, set: VectorSet, first: usize) -> Result<()> {
        let some = first..first + set.count as usize;
        // SAFETY: as the caller promises.
        unsafe {
            match self.numbers {
                None => upload_vectors(on.runtime, on.stream, shape, set.rows(), self.rows.part(some)),
                Some(numbers) => upload_listed(on.runtime, on.stream, shape, set.rows(), self.rows, &numbers[some]),
            }
        }
    }
}

impl FlatDevice {
    /// Calls `work` for each block of the rows whose numbers are listed, or of all rows. The first row of a block has
    /// the place of this row in the list, or its number. There is at least one row.
    pub(super) fn each_block(&self, numbers: Option<&[u32]>, work: &mut BlockWork<'_>) -> Result<()> {
        // `apart` keeps a pool thread from starting another search while it has a lane.
        match &self.rows {
            BaseRows::Device(resident) => apart(|| match numbers {
                None => self.resident_block(resident, work),
                Some(numbers) => self.gathered_blocks(resident, numbers, work),
            }),
            BaseRows::Host { rows, slots } => slots.with(|slots| {
                let slots = match slots {
                    Some(slots) => slots,
                    none => none.insert(self.slots()?),
                };
                self.streamed_blocks(HostRows { rows: rows.as_slice(self.shape.dim), numbers }, slots, work)
            }),
        }
    }

    pub(super) fn block(&self, base: VectorSet, first: usize) -> Block {
        let (shape, centred, tuning) = (self.shape, self.centred(), self.tuning);
        Block { shape, base, centred, first_id: first as u64, tuning, mask: None }
    }

    /// All resident rows, prepared.
    pub(super) fn prepared_block(&self, resident: &Resident) -> Result<Block> {
        let set = self.set(resident);
        resident.prepared.with(|prepared| {
            if prepared.is_stale(set.count as usize, self.centred()) {
                self.lanes.with(&self.runtime, |lane| self.prepare_stale(lane, set, prepared))?;
            }
            Result::Ok(())
        })?;
        Ok(self.block(set, 0))
    }

    fn resident_block(&self, resident: &Resident, work: &mut BlockWork<'_>) -> Result<()> {
        work(&self.prepared_block(resident)?, self.budget.saturating_sub(self.resident_bytes(resident)))
    }

    /// The resident rows, if a search among these of them should leave out the others. At least `k` are accepted then,
    /// and the filter pays.
    pub(super) fn mostly(&self, among: &Bitset, queries: usize, k: usize) -> Option<&Resident> {
        let BaseRows::Device(resident) = &self.rows else { return None };
        let accepted = among.count_ones();
        let most = accepted.saturating_mul(MOST_LEFT_OUT) >= among.len() && accepted >= k;
        (most && self.block(self.set(resident), 0).uses_filter(queries, u32::try_from(k).unwrap_or(u32::MAX)))
            .then_some(resident)
    }

    /// Searches all resident rows and leaves out those whose bits are clear. At least `k` bits are set.
    pub(super) fn search_most(
        &self,
        resident: &Resident,
        among: &Bitset,
        request: &SearchRequest<'_>,
        k: usize,
        ids: &mut [u64],
        distances: &mut [f32],
    ) -> Result<()> {
        let block = self.prepared_block(resident)?;
        let mut layout = Layout::default();
        let plan = MaskPlan::reserve(&mut layout, &block, among);
        let free = self.budget.saturating_sub(self.resident_bytes(resident) + layout.bytes() as u64);
        // The mask is the scratch of a lane. The search takes other lanes.
        self.lanes.with(&self.runtime, |lane| {
            let scratch = lane.scratch(&self.runtime, layout.bytes())?;
            let on = OnStream { runtime: &self.runtime, stream: &lane.stream };
            // SAFETY: the scratch has room for the mask, and no other work uses it.
            let mask = unsafe { block.make_mask(on, plan, scratch, among)? };
            self.runtime.synchronize(&lane.stream)?;
            self.search_block(&Block { mask: Some(mask), ..block }, free, request, k, ids, distances)
        })
    }

    fn gathered_blocks(&self, resident: &Resident, numbers: &[u32], work: &mut BlockWork<'_>) -> Result<()> {
        let free = self.budget.saturating_sub(self.resident_bytes(resident));
        let (budget, count) = (Budget::new(&self.runtime, free / 2), numbers.len());
        let tiling = Tiling::new(budget, (count, count), 1, |rows| Ok(Piece::new(self.shape, rows)))?;
        let centre = self.centre_of(resident)?;
        // The piece is the scratch of a lane, which the next search uses again. The search of the piece takes other
        // lanes.
        self.lanes.with(&self.runtime, |lane| {
            let scratch = lane.scratch(&self.runtime, tiling.plan.bytes)?;
            for tile in tiling.tiles() {
                let set = VectorSet::new(scratch, tiling.plan.set, tile.len() as u32);
                let on = OnStream { runtime: &self.runtime, stream: &lane.stream };
                let list = scratch.at(tiling.plan.numbers);
                // SAFETY: the piece has room for the tile's numbers and rows, and the search of the last piece is
                // finished. The numbers are those of resident rows.
                unsafe { self.gather(on, self.set(resident), &numbers[tile.clone()], list, set.rows())? };
                self.prepare(&lane.stream, set, &centre)?;
                work(&self.block(set, tile.start), free - tiling.plan.bytes as u64)?;
            }
            Ok(())
        })
    }

    /// Copies the listed rows of a resident set to `to`, in stream order.
    ///
    /// # Safety
    /// `list` has room for `numbers` and `to` for the rows, outside of the resident memory. The rows exist.
    pub(super) unsafe fn gather(
        &self,
        on: OnStream<'_>,
        from: VectorSet,
        numbers: &[u32],
        list: PtrMut<u32>,
        to: PtrMut<u8>,
    ) -> Result<()> {
        let (from, list) = (from.stored(self.shape), list.take(numbers.len()));
        // SAFETY: as the caller promises.
        unsafe {
            on.runtime.copy_to_device(on.stream, list, numbers)?;
            gather_rows(on, from, list.into(), to, self.shape.row_bytes())
        }
    }

    /// Allocates the two slots for a streamed base, each as large as the budget allows.
    fn slots(&self) -> Result<Slots> {
        let budget = Budget::new(&self.runtime, self.resident_limit());
        let tiling = Tiling::new(budget, (self.count, self.count), 2, |rows| Ok(set_layout(self.shape, rows)))?;
        let bytes = tiling.plan.1.bytes();
        let memory = [self.runtime.allocate(bytes)?, self.runtime.allocate(bytes)?];
        Ok(Slots { memory, rows: tiling.rows })
    }

    fn streamed_blocks(&self, host: HostRows<'_>, slots: &Slots, work: &mut BlockWork<'_>) -> Result<()> {
        let (count, most) = (host.len(), slots.rows.min(host.len()));
        // Preparation covers the whole layout, so a few rows get a small one.
        let layout = set_layout(self.shape, most).0;
        let pieces = count.div_ceil(most);
        let block = |piece: usize| {
            let memory = self.runtime.scratch(&slots.memory[piece % 2]);
            let first = piece * most;
            self.block(VectorSet::new(memory, layout, most.min(count - first) as u32), first)
        };
        let load = |piece: usize| {
            let set = block(piece).base;
            let started = events::Started::now();
            self.lanes.with(&self.runtime, |lane| {
                let on = OnStream { runtime: &self.runtime, stream: &lane.stream };
                // SAFETY: a slot has room for a piece, and the search that used it is finished.
                unsafe { host.upload(on, self.shape, set, piece * most)? };
                self.prepare(&lane.stream, set, &host.centre(self.shape, set, piece * most))
            })?;
            let bytes = u64::from(set.count) * self.shape.row_bytes() as u64;
            events::uploaded("piece of the base", || self.runtime.describe(), bytes, &started);
            Ok(())
        };
        let scratch = self.budget - self.resident_limit();
        load(0)?;
        for piece in 0..pieces {
            let next = piece + 1;
            let ahead = || if next < pieces { load(next) } else { Ok(()) };
            let (ahead, own) = meanwhile(ahead, || work(&block(piece), scratch));
            own.and(ahead)?;
        }
        Ok(())
    }
}
