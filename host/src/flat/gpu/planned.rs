//! A search from device memory to device memory that only enqueues work on a stream: no copy to or from the host, no allocation, no wait.
//!
//! ```text
//! queries ──stage_rows──► padded, checked ──[filter, or all distances]──► lists ──[mask]──[rescan]──select──► rows ──name_results──► ids
//! ```
//!
//! The plan has all memory of the search except queries and results. It is made for a number of queries; a call may have fewer. What the host
//! decides in an ordinary search is decided here when the plan is made, or on the device:
//!
//! | decision | here |
//! |---|---|
//! | queries must be finite | `stage_rows` flags those that are not; they get no neighbours |
//! | a query whose candidates overflow is searched again | `rescan` reads the list of these queries |
//! | rows that a filter excludes, or that removed vectors left | few accepted rows are copied when the plan is made; among most rows the others are left out by value, and in the lists by `mask_distances` |
//! | more rows are within a radius than a query has places | `CountRows` counts all of them |
//! | the filter or all distances | by the planned number of queries |

use cuda_std::{Ptr, PtrMut};
use warpann_kernels::flat::count_within::{CountRows, CutResults};
use warpann_kernels::flat::name_results::NameResults;

use super::among::{MOST_LEFT_OUT, numbers_of};
use super::exact::{Block, MOST_QUERIES};
use super::steps::{MaskPlan, Steps};
use super::{BaseRows, FlatDevice, Resident, TILE_QUERIES};
use crate::device::queue::OnStream;
use crate::device::runtime::{Memory, Runtime, Stream};
use crate::device::scratch::{Layout, Reserved, Scratch};
use crate::device::tiling::{Budget, Planned, Tiling};
use crate::product::gpu::VectorSet;
use crate::search::staging::{StagedRows, stage_rows};
use crate::search::{Enqueue, Range, Tiles, narrow_k};
use crate::threads::apart;
use crate::{Bitset, Error, Result, events, host_memory};

/// The work of a tile of queries.
enum Work {
    /// There are no rows: the queries are checked. Room for them, and its bytes.
    NoRows(Reserved<u8>, usize),
    Steps(Steps),
}

impl Planned for Work {
    fn bytes(&self) -> usize {
        match self {
            Work::NoRows(_, bytes) => *bytes,
            Work::Steps(steps) => steps.bytes(),
        }
    }
}

/// What belongs to the rows and the queries of a plan beside the work of a tile.
#[derive(Clone, Copy)]
struct Tables {
    /// The id of each row; `None` if it is the row.
    names: Option<Reserved<u64>>,
    /// `None` if all rows take part.
    mask: Option<MaskPlan>,
    /// A word of each query of a tile: whether it was refused.
    refused: Reserved<u32>,
    /// The number of queries of a tile whose slots are all within a radius, and then the numbers of these queries.
    listed: Reserved<u32>,
}

/// A planned exact search with its memory.
pub(crate) struct EnqueuedSearch {
    runtime: Runtime,
    block: Block,
    /// Copies of the rows that take part, to which `block` then belongs.
    copies: Option<Resident>,
    tables: Tables,
    table_memory: Memory,
    table_bytes: usize,
    work: Work,
    scratch: Memory,
    /// Number of queries of a tile.
    tile: usize,
    /// Number of slots of a query, and how many of them may have a neighbour.
    k: u32,
    found: u32,
}

impl FlatDevice {
    /// Plans searches of up to `queries` queries for `k` neighbours among the rows whose bits are set, or all rows. `ids` has the id of each
    /// row; `None` means that it is the row. Prepares rows, allocates, runs one query so that all kernels are loaded, and waits for all of it.
    ///
    /// # Errors
    /// [`Error::NotInDeviceMemory`] if the rows are streamed, [`Error::LaunchLimit`] for a `k` beyond 32 bits, [`Error::OutOfDeviceMemory`].
    pub fn plan_search(
        &self,
        queries: usize,
        k: usize,
        among: Option<&Bitset>,
        ids: Option<Vec<u64>>,
    ) -> Result<EnqueuedSearch> {
        let BaseRows::Device(resident) = &self.rows else {
            return Err(Error::NotInDeviceMemory { index: super::FlatBackend::describe(self) });
        };
        let k = narrow_k(k)?;
        // `apart` keeps a pool thread from starting another search while it has a lane.
        apart(|| self.planned(resident, queries, k, among, ids))
    }

    fn planned(
        &self,
        resident: &Resident,
        queries: usize,
        k: u32,
        among: Option<&Bitset>,
        ids: Option<Vec<u64>>,
    ) -> Result<EnqueuedSearch> {
        let among = among.filter(|among| among.count_ones() < among.len());
        let few = among.filter(|among| among.count_ones().saturating_mul(MOST_LEFT_OUT) < among.len());
        let (block, copies, names, mask) = match few {
            None => {
                let block =
                    if self.count > 0 { self.prepared_block(resident)? } else { self.block(self.set(resident), 0) };
                (block, None, ids, among)
            }
            Some(some) => {
                let numbers = numbers_of(some)?;
                let (block, copies) = self.copied_block(resident, &numbers)?;
                let mut names = host_memory::with_room(numbers.len())?;
                names.extend(numbers.iter().map(|&row| ids.as_ref().map_or(u64::from(row), |ids| ids[row as usize])));
                (block, Some(copies), Some(names), None)
            }
        };
        let mut own = self.resident_bytes(resident);
        own += copies.as_ref().map_or(0, |copies| self.resident_bytes(copies));
        let rows = block.base.count;
        let found = k.min(rows);
        let mut layout = Layout::default();
        let tables = Tables {
            names: names.as_ref().map(|names| layout.array(names.len())),
            mask: mask.map(|bits| MaskPlan::reserve(&mut layout, &block, bits)),
            refused: layout.array(queries.min(TILE_QUERIES)),
            listed: layout.array(1 + queries.min(TILE_QUERIES)),
        };
        let limits = self.runtime.limits();
        let budget = Budget::new(&self.runtime, self.budget.saturating_sub(own)).with_shared(layout.bytes());
        let most = (queries, TILE_QUERIES.min(MOST_QUERIES));
        let tiling = Tiling::new(budget, most, 1, |queries: usize| {
            if rows > 0 {
                return Ok(Work::Steps(Steps::new(&block, queries, found, limits)));
            }
            let mut layout = Layout::default();
            Ok(Work::NoRows(layout.array(queries.saturating_mul(block.shape.row_bytes())), layout.bytes()))
        })?;
        events::path("exact search", || self.runtime.describe(), block.path(tiling.rows, found as usize), queries);
        let mut search = EnqueuedSearch {
            runtime: self.runtime.clone(),
            block,
            copies,
            tables,
            table_memory: self.runtime.allocate(layout.bytes())?,
            table_bytes: layout.bytes(),
            scratch: self.runtime.allocate(tiling.plan.bytes())?,
            tile: tiling.rows,
            work: tiling.plan,
            k,
            found,
        };
        self.lanes.with(&self.runtime, |lane| search.fill_tables(&lane.stream, names.as_deref(), mask))?;
        if queries > 0 {
            self.lanes.with(&self.runtime, |lane| {
                let mut layout = Layout::default();
                let row_bytes = self.shape.dim * self.shape.element.size();
                let query = layout.array::<u8>(row_bytes);
                let (ids, distances) = (layout.array(k as usize), layout.array(k as usize));
                let scratch = lane.scratch(&self.runtime, layout.bytes())?;
                let (query, ids, distances) = (scratch.at(query), scratch.at(ids), scratch.at(distances));
                // SAFETY: the scratch has room for one query and its results.
                unsafe {
                    self.runtime.fill(&lane.stream, query, 0)?;
                    search.enqueue(&lane.stream, query.into(), 1, (ids, distances), None)?;
                }
                self.runtime.synchronize(&lane.stream)
            })?;
        }
        Ok(search)
    }

    /// Copies of the listed rows, prepared.
    fn copied_block(&self, resident: &Resident, numbers: &[u32]) -> Result<(Block, Resident)> {
        let Some(copies) = self.without_others(resident, numbers)? else {
            let asked = super::set_layout(self.shape, numbers.len()).1.bytes() as u64;
            let available = self.budget.saturating_sub(self.resident_bytes(resident));
            return Err(Error::OutOfDeviceMemory { device: self.runtime.describe(), asked, available });
        };
        let set = VectorSet::new(self.runtime.scratch(&copies.memory), copies.layout, numbers.len() as u32);
        if !numbers.is_empty() {
            let centre = self.centre_of(resident)?;
            self.lanes.with(&self.runtime, |lane| self.prepare(&lane.stream, set, &centre))?;
        }
        Ok((self.block(set, 0), copies))
    }
}

impl Enqueue for EnqueuedSearch {
    fn bytes(&self) -> u64 {
        let copies =
            self.copies.as_ref().map_or(0, |copies| super::set_layout(self.block.shape, copies.capacity).1.bytes());
        (copies + self.table_bytes + self.work.bytes()) as u64
    }

    fn tiles(&self) -> Tiles<'_> {
        Tiles { runtime: &self.runtime, shape: self.block.shape, k: self.k as usize, most: self.tile }
    }

    unsafe fn enqueue_tile(
        &self,
        stream: &Stream,
        queries: Ptr<u8>,
        count: u32,
        ids: PtrMut<u64>,
        distances: PtrMut<f32>,
    ) -> Result<()> {
        let (runtime, block, found) = (&self.runtime, &self.block, self.found);
        let (scratch, tables) = (runtime.scratch(&self.scratch), self.tables());
        let refused = tables.at(self.tables.refused).take(count as usize);
        let on = OnStream { runtime, stream };
        // SAFETY: the plan reserved every part for a tile, and the stream runs these in order. The index has prepared the rows.
        unsafe {
            let staged = |to: PtrMut<u8>| {
                let notes = StagedRows { refused: Some(refused), first_refused: None };
                stage_rows(on, block.shape, queries, count, to, notes)
            };
            let (rows, values) = match &self.work {
                Work::NoRows(to, _) => {
                    staged(scratch.at(*to))?;
                    (Ptr::empty(), Ptr::empty())
                }
                Work::Steps(steps) => {
                    let set = VectorSet::new(scratch, steps.queries(), count);
                    staged(set.rows())?;
                    let selection = block.find(on, steps, scratch, set, found, true)?;
                    let slots = selection.rows as usize * selection.k as usize;
                    (selection.out_ids.take(slots).into(), selection.out_keys.take(slots).into())
                }
            };
            let launch = NameResults {
                rows,
                distances: values,
                found,
                names: self.tables.names.map(|names| tables.at(names).into()),
                refused: refused.into(),
                worst: block.shape.metric.worst(),
                k: self.k,
                slots: u64::from(count) * u64::from(self.k),
                out_ids: ids,
                out_distances: distances,
            };
            runtime.launch(stream, &NameResults::KERNEL, launch.config(), launch)
        }
    }

    unsafe fn enqueue_range(
        &self,
        stream: &Stream,
        count: u32,
        ids: PtrMut<u64>,
        distances: PtrMut<f32>,
        range: Range,
    ) -> Result<()> {
        let (runtime, block) = (&self.runtime, &self.block);
        let listed = self.tables().at(self.tables.listed);
        let metric = block.shape.metric.of_kernel();
        let Range { radius, counts } = range;
        // SAFETY: the tables have a word more than a tile has queries, and the scratch has the queries of the tile, with their squares.
        unsafe {
            runtime.fill(stream, listed.take(1), 0)?;
            let launch = CutResults { query_count: count, k: self.k, metric, radius, ids, distances, counts, listed };
            runtime.launch(stream, &CutResults::KERNEL, launch.config(), launch)?;
            let Some(queries) = self.staged(count) else { return Ok(()) };
            let launch = CountRows {
                scanned: block.scanned(queries),
                listed: listed.into(),
                pieces: CountRows::pieces(block.base.count),
                radius,
                counts,
            };
            let config = launch.config(runtime.limits().multiprocessors);
            runtime.launch(stream, CountRows::kernel(block.shape.element.key()), config, launch)
        }
    }
}

impl EnqueuedSearch {
    /// The queries of a tile in the scratch, as [`Enqueue::enqueue_tile`] leaves them; `None` if there are no rows.
    fn staged(&self, count: u32) -> Option<VectorSet> {
        let scratch = self.runtime.scratch(&self.scratch);
        match &self.work {
            Work::NoRows(..) => None,
            Work::Steps(steps) => Some(VectorSet::new(scratch, steps.queries(), count)),
        }
    }

    fn tables(&self) -> Scratch {
        self.runtime.scratch(&self.table_memory)
    }

    /// Uploads ids and bits, makes the values of a masked search, and waits.
    fn fill_tables(&mut self, stream: &Stream, names: Option<&[u64]>, mask: Option<&Bitset>) -> Result<()> {
        let (runtime, tables) = (&self.runtime, self.tables());
        // SAFETY: the tables have room for an id, a bit and a value of each row, and no other work uses them.
        unsafe {
            if let (Some(to), Some(names)) = (self.tables.names, names) {
                runtime.copy_to_device(stream, tables.at(to), names)?;
            }
            if let (Some(plan), Some(bits)) = (self.tables.mask, mask) {
                let mask = self.block.make_mask(OnStream { runtime, stream }, plan, tables, bits)?;
                self.block.mask = Some(mask);
            }
        }
        runtime.synchronize(stream)
    }
}
