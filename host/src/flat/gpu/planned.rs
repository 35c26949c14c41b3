//! A search from device memory to device memory that only enqueues work on a stream: no copy to or from the host, no
//! allocation, no wait.
//!
//! ```text
//! queries ──stage_rows──► padded, checked ──[filter, or all distances]──► lists ──[mask]──[rescan]──select──► rows ──name_results──► ids
//! ```
//!
//! The plan has all memory of the search except queries and results. It is made for a number of queries; a call may
//! have fewer. What the host decides in an ordinary search is decided here when the plan is made, or on the device:
//!
//! | decision | here |
//! |---|---|
//! | queries must be finite | `stage_rows` flags those that are not; they get no neighbours |
//! | a query whose candidates overflow is searched again | `rescan` reads the list of these queries |
//! | rows that a filter excludes, or that removed vectors left | few accepted rows are copied when the plan is made; among most rows the others are left out by value, and in the lists by `mask_distances` |
//! | more rows are within a radius than a query has places | `CountRows` counts all of them |
//! | the filter or all distances | by the planned number of queries |

use cuda_std::Ptr;
use warpann_kernels::flat::count_within::CountRows;

use super::TILE_QUERIES;
use super::among::{MOST_LEFT_OUT, numbers_of};
use super::block::{Block, MOST_QUERIES};
use super::mask::MaskPlan;
use super::rows::{BaseRows, FlatDevice, Resident, set_layout};
use super::steps::Steps;
use crate::device::queue::OnStream;
use crate::device::runtime::Memory;
use crate::device::scratch::{Layout, Reserved};
use crate::device::tiling::{Budget, Planned, Tiling};
use crate::product::gpu::{VectorSet, VectorShape};
use crate::search::{Found, Given, PlannedSearch, Range, TileSearch, narrow_k, table_bytes};
use crate::search_options::SearchRequest;
use crate::threads::apart;
use crate::{Error, Result, events, host_memory};

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

/// A planned exact search of a tile with its memory.
struct ExactSearch {
    block: Block,
    /// Copies of the rows that take part, to which `block` then belongs.
    copies: Option<Resident>,
    /// The mask of the block, if there is one, and its bytes.
    mask: (Memory, usize),
    work: Work,
    scratch: Memory,
    /// Number of queries of a tile.
    tile: usize,
    /// Number of rows that a query may find.
    found: u32,
}

impl FlatDevice {
    /// Plans searches of up to `queries` queries for `k` neighbours, with the options of `request`. `ids` has the id of
    /// each row; `None` means that it is the row. Prepares rows, allocates, and waits for all of it.
    ///
    /// # Errors
    /// [`Error::NotInDeviceMemory`] if the rows are streamed, [`Error::LaunchLimit`] for a `k` beyond 32 bits,
    /// [`Error::OutOfDeviceMemory`].
    pub fn plan_search(
        &self,
        queries: usize,
        k: usize,
        request: &SearchRequest<'_>,
        ids: Option<Vec<u64>>,
    ) -> Result<PlannedSearch> {
        let BaseRows::Device(resident) = &self.rows else {
            return Err(Error::NotInDeviceMemory { index: super::FlatBackend::describe(self) });
        };
        let k = narrow_k(k)?;
        // `apart` keeps a pool thread from starting another search while it has a lane.
        apart(|| self.planned(resident, queries, k, request, ids))
    }

    fn planned(
        &self,
        resident: &Resident,
        queries: usize,
        k: u32,
        request: &SearchRequest<'_>,
        ids: Option<Vec<u64>>,
    ) -> Result<PlannedSearch> {
        let among = request.filter.filter(|among| among.count_ones() < among.len());
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
        let mask = mask.map(|bits| (MaskPlan::reserve(&mut layout, &block, bits), bits));
        let limits = self.runtime.limits();
        let tables =
            table_bytes(names.as_ref().map(Vec::len), queries.min(TILE_QUERIES)).saturating_add(layout.bytes());
        let budget = Budget::new(&self.runtime, self.budget.saturating_sub(own)).with_shared(tables);
        let most = (queries, TILE_QUERIES.min(MOST_QUERIES));
        let tiling = Tiling::new(budget, most, 1, |queries: usize| {
            if rows > 0 {
                return Ok(Work::Steps(Steps::new(&block, queries, found, limits)));
            }
            let mut layout = Layout::default();
            Ok(Work::NoRows(layout.array(queries.saturating_mul(block.shape.row_bytes())), layout.bytes()))
        })?;
        events::path("exact search", || self.runtime.describe(), block.path(tiling.rows, found as usize), queries);
        let mut search = ExactSearch {
            block,
            copies,
            mask: (self.runtime.allocate(layout.bytes())?, layout.bytes()),
            scratch: self.runtime.allocate(tiling.plan.bytes())?,
            tile: tiling.rows,
            work: tiling.plan,
            found,
        };
        if let Some((plan, bits)) = mask {
            self.lanes.with(&self.runtime, |lane| {
                let on = OnStream { runtime: &self.runtime, stream: &lane.stream };
                // SAFETY: the memory has room for a bit and a value of each row, and no other work uses it.
                search.block.mask =
                    Some(unsafe { search.block.make_mask(on, plan, self.runtime.scratch(&search.mask.0), bits)? });
                self.runtime.synchronize(&lane.stream)
            })?;
        }
        PlannedSearch::new(&self.runtime, &self.lanes, Box::new(search), k, names.as_deref())
    }

    /// Copies of the listed rows, prepared.
    fn copied_block(&self, resident: &Resident, numbers: &[u32]) -> Result<(Block, Resident)> {
        let Some(copies) = self.without_others(resident, numbers)? else {
            let asked = set_layout(self.shape, numbers.len()).1.bytes() as u64;
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

impl TileSearch for ExactSearch {
    fn bytes(&self) -> usize {
        let copies = self.copies.as_ref().map_or(0, |copies| set_layout(self.block.shape, copies.capacity).1.bytes());
        copies + self.mask.1 + self.work.bytes()
    }

    fn shape(&self) -> VectorShape {
        self.block.shape
    }

    fn most(&self) -> usize {
        self.tile
    }

    unsafe fn find(&self, on: OnStream<'_>, _plan: usize, given: Given) -> Result<Found> {
        let (block, found, scratch) = (&self.block, self.found, on.runtime.scratch(&self.scratch));
        // SAFETY: the plan reserved every part for a tile, and the stream runs these in order. The index has prepared
        // the rows.
        unsafe {
            match &self.work {
                Work::NoRows(to, _) => {
                    given.stage(on, block.shape, scratch.at(*to))?;
                    Ok(Found::NOTHING)
                }
                Work::Steps(steps) => {
                    let set = VectorSet::new(scratch, steps.queries(), given.count);
                    given.stage(on, block.shape, set.rows())?;
                    let selection = block.find(on, steps, scratch, set, found, true)?;
                    let slots = selection.rows as usize * selection.k as usize;
                    let (rows, distances) =
                        (selection.out_ids.take(slots).into(), selection.out_keys.take(slots).into());
                    Ok(Found { rows, distances, each: found })
                }
            }
        }
    }

    fn counts(&self) -> bool {
        true
    }

    unsafe fn count_within(
        &self,
        on: OnStream<'_>,
        _plan: usize,
        count: u32,
        range: Range,
        listed: Ptr<u32>,
    ) -> Result<()> {
        let (OnStream { runtime, stream }, Range { radius, counts }) = (on, range);
        let Work::Steps(steps) = &self.work else { return Ok(()) };
        let queries = VectorSet::new(runtime.scratch(&self.scratch), steps.queries(), count);
        let pieces = CountRows::pieces(self.block.base.count);
        let launch = CountRows { scanned: self.block.scanned(queries), listed, pieces, radius, counts };
        let config = launch.config(runtime.limits().multiprocessors);
        // SAFETY: the scratch has the queries of the tile, with their squares, as `find` left them; the caller promises
        // the rest.
        unsafe { runtime.launch(stream, CountRows::kernel(self.block.shape.row_key()), config, launch) }
    }
}
