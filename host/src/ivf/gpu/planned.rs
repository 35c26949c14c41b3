//! A search from device memory to device memory that only enqueues work on a stream: no copy to or from the host, no
//! allocation, no wait.
//!
//! ```text
//! queries ──stage_rows──► padded, checked ──[widen]──[rotate]──► compared with the image
//!     ──probes──[rescan_probes]──pairs, scan, selection, re-ranking──[rescan]──► ranks ──name_results──► ids
//! ```
//!
//! The steps are those of an ordinary search ([`Search`]). What the host decides in an ordinary search is decided here
//! when the plan is made, or on the device:
//!
//! | decision | here |
//! |---|---|
//! | queries must be finite, rotated ones as well | `stage_rows` flags those that are not; they get no neighbours |
//! | a query without a certificate is searched again | `warpann_kernels::ivf::rescan` completes it |
//! | under a filter, further lists are read | not done: a query reads the planned number of lists |
//! | the sizes of the scratch and the ways to scan | by the number of queries, of which some are planned |
//!
//! # Numbers of queries
//! Sizes and ways of a search depend on its number of queries, and scratch does not grow evenly with it. So there is a
//! plan for the largest number of queries of a tile, for half of it, a quarter, down to one. A call uses the smallest
//! plan that has room for its queries, and searches for zeros in the rest.

use std::iter::successors;
use std::sync::{Arc, Weak};

use cuda_std::{Ptr, PtrMut};
use warpann_kernels::pq::mix::Mix;

use super::device::IvfDevice;
use super::image::Resident;
use super::plan::SearchPlan;
use super::search::Search;
use super::{MOST_PAIRS, filter_words};
use crate::device::lanes::COUNTERS;
use crate::device::queue::OnStream;
use crate::device::runtime::{Memory, Runtime};
use crate::device::scratch::{Layout, Reserved, Scratch};
use crate::device::tiling::{Budget, Planned, Tiling};
use crate::ivf::SearchRequest;
use crate::ivf::view::View;
use crate::product::gpu::VectorShape;
use crate::search::staging::{StagedRows, stage_rows};
use crate::search::{Found, Given, PlannedSearch, Range, TileSearch, narrow_k, table_bytes};
use crate::threads::apart;
use crate::{ElementType, Error, Metric, Result, events};

/// Device arrays that all searches of a plan share.
#[derive(Clone, Copy)]
struct Tables {
    /// A bit of each rank; `None` if there is no filter.
    filter: Option<Reserved<u32>>,
    /// As [`Search::counters`].
    counters: Reserved<u32>,
    /// The queries of a tile as they came, padded; empty if they are compared in this form.
    staged: Reserved<u8>,
    /// The same as f32, and then rotated; empty without a rotation.
    widened: Reserved<f32>,
    rotated: Reserved<f32>,
}

/// The sizes of [`Tables`], except the number of queries.
struct TableSizes {
    shape: VectorShape,
    filter: Option<usize>,
    /// Whether queries are normalised, rotated or only converted before they are compared; or not at all.
    transforms: bool,
    rotates: bool,
}

impl TableSizes {
    fn reserve(&self, layout: &mut Layout, queries: usize) -> Tables {
        let (dim, stride) = (self.shape.dim, self.shape.stride());
        let rotated = if self.rotates { queries } else { 0 };
        Tables {
            filter: self.filter.map(|words| layout.array(words)),
            counters: layout.array(COUNTERS),
            staged: layout.array(if self.transforms { queries.saturating_mul(self.shape.row_bytes()) } else { 0 }),
            widened: layout.array(rotated.saturating_mul(stride)),
            rotated: layout.array(rotated.saturating_mul(dim)),
        }
    }
}

/// The plans of searches of a tile, and its tables.
struct TilePlan {
    /// For the number of queries of a tile, and for each half of it. None if there are no vectors.
    plans: Vec<SearchPlan>,
    tables: Tables,
    table_bytes: usize,
}

impl TilePlan {
    fn scratch_bytes(&self) -> usize {
        self.plans.iter().map(|plan| plan.bytes).max().unwrap_or(0)
    }
}

impl Planned for TilePlan {
    fn bytes(&self) -> usize {
        self.table_bytes.saturating_add(self.scratch_bytes())
    }
}

/// A planned search of an inverted file for a tile with its memory.
struct ListSearch {
    runtime: Runtime,
    /// The shape of queries as they come.
    shape: VectorShape,
    /// The shape of queries that are compared with centroids.
    wide: VectorShape,
    /// The image of the index; `None` if there are no vectors. The back end has it as long as the index does not
    /// change.
    resident: Option<Weak<Resident>>,
    plan: TilePlan,
    table_memory: Memory,
    scratch: Memory,
    /// Number of queries of a tile.
    tile: usize,
    /// Whether the image has vectors as they were added, with the type of queries.
    in_place: bool,
}

impl IvfDevice {
    /// Plans searches of up to `queries` queries for `k` neighbours, as `request` says, whose queries are not read.
    /// Makes the image or brings it up to date, allocates, and waits for all of it.
    ///
    /// # Errors
    /// [`Error::LaunchLimit`] for a `k` beyond 32 bits, [`Error::OutOfDeviceMemory`], errors of the device's driver.
    pub fn plan_search(
        &self,
        view: &View<'_>,
        queries: usize,
        k: usize,
        request: &SearchRequest<'_>,
    ) -> Result<PlannedSearch> {
        let k = narrow_k(k)?;
        let resident = if view.len() == 0 { None } else { Some(self.resident(view)?) };
        // `apart` keeps a pool thread from starting another search while it has a lane.
        apart(|| self.planned(view, resident.as_ref(), queries, k, request))
    }

    fn planned(
        &self,
        view: &View<'_>,
        resident: Option<&Arc<Resident>>,
        queries: usize,
        k: u32,
        request: &SearchRequest<'_>,
    ) -> Result<PlannedSearch> {
        let in_place = view.codec.in_place();
        let shape = if in_place { VectorShape::of_rows } else { VectorShape::new };
        let shape = shape(view.element, view.metric, view.elements);
        let names = match view.sparse_directory() {
            Some(directory) => directory.ids().names()?,
            None => None,
        };
        let rotates = view.codec.turn().is_some();
        let converts = view.element != ElementType::F32 || view.metric.divides_by_norms() || rotates;
        let sizes = TableSizes {
            shape,
            filter: request.filter.map(filter_words),
            transforms: resident.is_none() || !in_place && converts,
            rotates,
        };
        let limits = self.runtime.limits();
        if rotates && resident.is_some_and(|resident| resident.image.turn.is_none()) {
            let most = u64::from(Mix::longest(limits.shared_bytes));
            let what = "dimensions of queries that a device rotates";
            return Err(Error::TooMany { what, asked: view.dim as u64, limit: most });
        }
        let budget = match resident {
            Some(resident) => self.scratch(resident),
            None => Budget::new(&self.runtime, self.budget),
        };
        let budget = budget.with_shared(table_bytes(names.as_ref().map(Vec::len), queries));
        let tiling = Tiling::new(budget, (queries, MOST_PAIRS / request.probes.max(1)), 1, |queries| {
            let mut layout = Layout::default();
            let tables = sizes.reserve(&mut layout, queries);
            let halves = successors(Some(queries), |&queries| (queries > 1).then(|| queries.div_ceil(2)));
            let plans = resident.map(|resident| {
                let plan = |queries| {
                    let shape = Self::search_shape(resident, queries, k as usize, request);
                    SearchPlan::new(resident, view.element, shape, limits)
                };
                halves.map(plan).collect::<Result<Vec<_>>>()
            });
            Ok(TilePlan { plans: plans.transpose()?.unwrap_or_default(), tables, table_bytes: layout.bytes() })
        })?;
        events::path("inverted file", || self.runtime.describe(), "enqueued", queries);
        let search = ListSearch {
            runtime: self.runtime.clone(),
            shape,
            wide: VectorShape::new(ElementType::F32, Metric::InnerProduct, view.dim),
            resident: resident.map(Arc::downgrade),
            table_memory: self.runtime.allocate(tiling.plan.table_bytes)?,
            scratch: self.runtime.allocate(tiling.plan.scratch_bytes())?,
            tile: tiling.rows,
            plan: tiling.plan,
            in_place,
        };
        self.lanes.with(&self.runtime, |lane| {
            let (runtime, stream, tables) = (&self.runtime, &lane.stream, search.tables());
            let of = &search.plan.tables;
            // SAFETY: the tables have room for a bit of each rank, and no other work uses them.
            unsafe {
                runtime.fill(stream, tables.at(of.counters), 0)?;
                if let (Some(to), Some(filter)) = (of.filter, request.filter) {
                    let words = &bytemuck::cast_slice(filter.words())[..to.len()];
                    runtime.copy_to_device(stream, tables.at(to), words)?;
                }
            }
            runtime.synchronize(stream)
        })?;
        PlannedSearch::new(&self.runtime, &self.lanes, Box::new(search), k, names.as_deref())
    }
}

impl ListSearch {
    fn tables(&self) -> Scratch {
        self.runtime.scratch(&self.table_memory)
    }

    /// Writes the queries of a tile to `search`, in the forms in which they are compared, and zeros for the queries
    /// that are planned beyond `count`.
    ///
    /// # Safety
    /// As [`TileSearch::find`]; `search` is planned for at least this number of queries.
    unsafe fn give(&self, search: &Search<'_>, given: Given) -> Result<()> {
        let Given { count, refused, .. } = given;
        let OnStream { runtime, stream } = search.on;
        let (tables, of) = (self.tables(), &self.plan.tables);
        let (own, wide) = (self.shape, self.wide);
        let planned = search.plan.search_shape.queries as usize;
        let parts = |all: PtrMut<u8>, shape: VectorShape| {
            let (used, row_bytes) = (count as usize, shape.row_bytes());
            (all.take(used * row_bytes), all.skip(used * row_bytes).take((planned - used) * row_bytes))
        };
        let compared = if self.in_place { own } else { wide };
        let (to, rest) = parts(search.queries(), compared);
        // SAFETY: the plans reserved every part for these queries, and the stream runs these in order.
        unsafe {
            if !rest.is_empty() {
                runtime.fill(stream, rest, 0)?;
            }
            if of.staged.len() == 0 {
                given.stage(search.on, own, to)?;
                let Some(all) = search.wide_queries() else { return Ok(()) };
                let (wide_queries, rest) = parts(all, wide);
                if !rest.is_empty() {
                    runtime.fill(stream, rest, 0)?;
                }
                return search.widen(own, (to.into(), count), None, wide_queries.cast());
            }
            let staged = tables.at(of.staged).take(count as usize * own.row_bytes());
            given.stage(search.on, own, staged)?;
            let Some(turn) = search.resident.image.turn else {
                return search.widen(own, (staged.into(), count), None, to.cast());
            };
            let widened = tables.at(of.widened).take(count as usize * own.stride());
            let rotated = tables.at(of.rotated).take(count as usize * own.dim);
            search.widen(own, (staged.into(), count), Some(refused.into()), widened)?;
            turn.enqueue(search.on, wide, (widened.into(), count), (rotated, own.dim as u32))?;
            // A query that was refused became NaN, and so its rotated vector is refused.
            let notes = StagedRows { refused: Some(refused), first_refused: None };
            stage_rows(search.on, wide, rotated.as_bytes().into(), count, to, notes)
        }
    }

    /// # Errors
    /// [`Error::StaleWorkspace`] if the back end has it no more.
    fn resident(&self) -> Result<Arc<Resident>> {
        self.resident.as_ref().and_then(Weak::upgrade).ok_or(Error::StaleWorkspace)
    }

    /// A search by a plan for at least `count` queries.
    fn search_by<'a>(
        &'a self,
        plan: &'a SearchPlan,
        on: OnStream<'a>,
        resident: &'a Resident,
        count: u32,
    ) -> Search<'a> {
        Search {
            on,
            copies: on.stream,
            resident,
            element: self.shape.element,
            plan,
            scratch: self.runtime.scratch(&self.scratch),
            counters: self.tables().at(self.plan.tables.counters),
            queries: count,
            completes: true,
        }
    }
}

impl TileSearch for ListSearch {
    fn bytes(&self) -> usize {
        self.plan.bytes()
    }

    fn shape(&self) -> VectorShape {
        self.shape
    }

    fn most(&self) -> usize {
        self.tile
    }

    fn plans(&self) -> usize {
        self.plan.plans.len().max(1)
    }

    fn plan_of(&self, count: u32) -> usize {
        self.plan.plans.iter().rposition(|plan| plan.search_shape.queries >= count).unwrap_or(0)
    }

    unsafe fn find(&self, on: OnStream<'_>, plan: usize, given: Given) -> Result<Found> {
        let tables = self.tables();
        let Some(plan) = self.plan.plans.get(plan) else {
            // SAFETY: without vectors, the tables have room for the queries of a tile.
            unsafe { given.stage(on, self.shape, tables.at(self.plan.tables.staged))? };
            return Ok(Found::NOTHING);
        };
        let resident = self.resident()?;
        let search = self.search_by(plan, on, &resident, given.count);
        // SAFETY: the scratch has the bytes of every plan, the stream runs these in order, and the caller promises
        // queries and words.
        unsafe {
            if let Some(filter) = self.plan.tables.filter {
                on.runtime.copy(on.stream, search.filter(), tables.at(filter))?;
            }
            self.give(&search, given)?;
            search.probe(0..plan.search_shape.queries)?;
            search.run()?;
        }
        let (found, each) = (search.found(), plan.search_shape.k);
        let slots = given.count as usize * each as usize;
        Ok(Found { rows: found.ranks.take(slots).into(), distances: found.keys.take(slots).into(), each })
    }

    fn counts(&self) -> bool {
        true
    }

    unsafe fn count_within(
        &self,
        on: OnStream<'_>,
        plan: usize,
        count: u32,
        range: Range,
        listed: Ptr<u32>,
    ) -> Result<()> {
        let Some(plan) = self.plan.plans.get(plan) else { return Ok(()) };
        let resident = self.resident()?;
        // SAFETY: the scratch has the search of the tile, as `find` left it; the caller promises the rest.
        unsafe { self.search_by(plan, on, &resident, count).count_within(range.radius, listed, range.counts) }
    }

    #[cfg(test)]
    fn completed(&self, stream: &crate::device::runtime::Stream, count: usize) -> Result<[usize; 3]> {
        let mut numbers = [0; 3];
        let Some(plan) = self.plan.plans.get(self.plan_of(count as u32)) else { return Ok(numbers) };
        let scratch = self.runtime.scratch(&self.scratch);
        let arrays = [plan.results.probe_flags, plan.results.flags, plan.results.counts];
        let room = plan.room();
        let least = [(!plan.compares_centroids).then_some(0), Some(0), room];
        for ((number, array), least) in numbers.iter_mut().zip(arrays).zip(least) {
            let mut words = vec![0u32; count];
            // SAFETY: the arrays have a word for each query of the plan.
            unsafe { self.runtime.copy_to_host(stream, &mut words, scratch.at(array).take(count))? };
            *number = least.map_or(0, |least| words.iter().filter(|word| **word > least).count());
        }
        Ok(numbers)
    }
}
