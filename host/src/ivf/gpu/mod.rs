//! Inverted files on a device: an image of the lists in device memory, and searches of the image.
//!
//! | file | content |
//! |---|---|
//! | `device` | the device and the image; the first search makes the image |
//! | `image` | the lists in device memory |
//! | `stored` | the arrays of an image as searches read them |
//! | `stored_plan` | the part of an image that an encoding plans and prepares |
//! | `changes` | the first search after a change brings the image up to date |
//! | `planned` | a search from device memory to device memory |
//! | `plan` | the scratch of a search, and the choices that follow from sizes |
//! | `search` | one search: queries, probes, pairs, scan |
//! | `storage` | the places of the lists in an image |
//! | `turn` | the rotation of queries |
//! | `stage` | from scores to the exact best k: selection, re-ranking, certificate |
//!
//! The master copy stays in host memory. This file divides queries into batches whose scratch fits the budget and
//! converts ranks to ids.
//!
//! # Overlap of copies and kernels
//! Queries are copied in three parts; the probes of a part are found while the next part is copied. The same pass
//! checks whether queries are finite. Flat, 10,000 queries, 16 of 4096 lists, H200, 2026-11-22: kernels take 0.49 ms of
//! 0.83 (two parts). Two lanes, each with half of the queries, scan the lists twice, in 220 µs instead of 143, but
//! overlap the copies of results as well: with 16 lists they are as fast (0.83 to 0.86 ms both), with one list faster
//! (0.70 ms instead of 0.75), with 64 slower (1.36 ms instead of 1.32). Five parts took 1.4 ms, two parts 0.93 to 1.0.

mod changes;
mod device;
mod image;
mod plan;
mod planned;
mod search;
mod stage;
mod storage;
pub(super) mod stored;
pub(super) mod stored_plan;
pub(super) mod tables;
#[cfg(test)]
mod tests;
mod turn;

use std::ops::Range;
use std::sync::Arc;

use cuda_std::PtrMut;
use warpann_kernels::NO_ROW;
use warpann_kernels::ivf::range::CountWithin;

pub(crate) use self::device::IvfDevice;
use self::image::Resident;
use self::plan::{Reading, SearchPlan, SearchShape};
use self::search::Search;
use self::stage::Stage;
use super::backend::{IvfBackend, RowSearch};
use super::cpu::IvfCpu;
use super::view::View;
use super::{Bitset, Scan, SearchRequest};
use crate::device::lanes::Lane;
use crate::device::limits::Limits;
use crate::device::queue::OnStream;
use crate::device::scratch::Layout;
use crate::device::tiling::{Attempt, Planned, Tiling, resident_share};
use crate::flat::FlatBackend;
use crate::flat::gpu::FlatDevice;
use crate::neighbors::RangeNeighbors;
use crate::neighbors::slots::{FoundRows, Slots};
use crate::parallel::{Loop, ParallelSlice};
use crate::product::gpu::{VectorShape, upload_accepted, upload_checked};
use crate::shards::share;
use crate::vectors::VectorSlice;
use crate::{Element, ElementType, Input, Result, events};

/// Largest number of parts in which queries are copied.
const MOST_PARTS: usize = 3;
/// Largest number of pairs of one batch: pairs have u32 numbers.
const MOST_PAIRS: usize = 1 << 30;

/// Number of products of components below which gathered rows are searched on the CPU: about 2 ms on one core with
/// AVX-512 at the rate in [`super::cpu`]. The device needs memory, streams and a copy of the rows first.
const FEW_PRODUCTS: u64 = 1 << 27;
/// The same for the emulator, so that small tests take both ways.
const FEW_PRODUCTS_EMULATED: u64 = 1 << 13;

/// Ids and distances of the vectors within a radius, best first, for each of some queries.
type Ranges = Vec<Vec<(u64, f32)>>;

impl IvfDevice {
    /// How the lists are read for `queries` of the request's queries, if list by list takes `batches` batches.
    fn preferred(resident: &Resident, queries: usize, request: &SearchRequest<'_>, batches: usize) -> Reading {
        let probes = request.probes.min(resident.image.lists as usize) as u32;
        let by_tables = resident.image.stored.tables.is_some()
            && request.filter.is_none()
            && match request.scan {
                Scan::Auto => resident.tables_pay(queries, probes, batches),
                Scan::ListMajor => false,
                Scan::QueryMajor => true,
            };
        if by_tables { Reading::Tables } else { Reading::Lists }
    }

    /// The shape of a search of `queries` of the request's queries in one batch.
    fn search_shape(resident: &Resident, queries: usize, k: usize, request: &SearchRequest<'_>) -> SearchShape {
        Self::shape_by(resident, queries, k, request, Self::preferred(resident, queries, request, 1))
    }

    /// As [`search_shape`](Self::search_shape), with the given way to read the lists.
    fn shape_by(
        resident: &Resident,
        queries: usize,
        k: usize,
        request: &SearchRequest<'_>,
        reading: Reading,
    ) -> SearchShape {
        let probes = request.probes.min(resident.image.lists as usize) as u32;
        let k = k.min(resident.columns(probes).most as usize) as u32;
        let filter_words = request.filter.map(filter_words);
        let by_tables = reading == Reading::Tables;
        // If few vectors pass a filter, the first lists give no threshold.
        let appends = !by_tables && filter_words.is_none();
        let small_tiles = !(appends && reading == Reading::Appending) && resident.small_tiles(queries, probes);
        let shape = SearchShape {
            queries: queries as u32,
            k,
            probes,
            filter_words,
            by_tables,
            small_tiles,
            shares_scores: true,
            needs_scores: request.scan != Scan::Auto,
            budget: None,
            dense_probes: probes,
        };
        let dense_probes = if appends { resident.dense_probes(shape) } else { probes };
        SearchShape { dense_probes, ..shape }
    }

    /// Chooses how the lists are read, and cuts `count` queries into tiles, which `tiling` does for a way of reading.
    /// Each batch list by list reads and decodes the lists again ([`Resident::tables_pay`]). Only a search of several
    /// batches costs a second plan. Tiles of [`Reading::Measured`] are not those of the search.
    fn reading(
        resident: &Resident,
        count: usize,
        request: &SearchRequest<'_>,
        lanes: usize,
        tiling: impl Fn(Reading) -> Result<Tiling<SearchPlan>>,
    ) -> Result<(Reading, Tiling<SearchPlan>)> {
        let preferred = |batches| Self::preferred(resident, count.div_ceil(lanes), request, batches);
        let first = preferred(1);
        let tiles = tiling(first)?;
        if first == Reading::Tables || tiles.len() <= lanes {
            return Ok((first, tiles));
        }
        if tiles.plan.search_shape.small_tiles && resident.image.stored.scan.strips.is_some() {
            return Ok((Reading::Measured, tiles));
        }
        let appending = tiling(Reading::Appending)?;
        let (reading, tiles) =
            if appending.len() < tiles.len() { (Reading::Appending, appending) } else { (first, tiles) };
        match preferred(tiles.len().div_ceil(lanes)) {
            Reading::Tables => Ok((Reading::Tables, tiling(Reading::Tables)?)),
            _ => Ok((reading, tiles)),
        }
    }

    /// Copies the filter and the queries of a search to the device, and finds the probes of each part of the queries
    /// while the next part is copied.
    ///
    /// # Safety
    /// The scratch of `search` has the size of its plan, and the plan is for these queries.
    unsafe fn begin(&self, search: &Search<'_>, view: &View<'_>, request: &SearchRequest<'_>) -> Result<()> {
        let (runtime, queries, dim) = (&self.runtime, request.queries, view.dim);
        let count = queries.len();
        let parts = (count / BatchSizes::of(runtime.limits()).part_queries).clamp(1, MOST_PARTS);
        let stream = if parts == 1 { search.on.stream } else { search.copies };
        let own = VectorShape::of_rows(view.element, view.metric, queries.dim());
        let wide = VectorShape::new(ElementType::F32, view.metric, dim);
        let in_place = search.resident.image.stored.in_place;
        // The device widens queries where it can: on a CPU that takes longer than the search of a small index.
        let widens = own.element != ElementType::F32 && view.codec.turn().is_none();
        let widened = if in_place { search.wide_queries() } else { Some(search.queries()) };
        // SAFETY: the plan reserved room for the queries and the filter.
        unsafe {
            if let Some(filter) = request.filter {
                let words = &bytemuck::cast_slice(filter.words())[..filter_words(filter)];
                runtime.copy_to_device(stream, search.filter(), words)?;
            }
            for rows in (0..parts).map(|part| share(count, part, parts)) {
                let queries = queries.part(rows.clone());
                let part = |all: PtrMut<u8>, shape: VectorShape| {
                    all.skip(rows.start * shape.row_bytes()).take(rows.len() * shape.row_bytes())
                };
                let mut unrotated = None;
                let given = if in_place {
                    Some(part(search.queries(), own))
                } else {
                    widens.then(|| search.given_queries(&rows, own))
                };
                if let Some(to) = given {
                    upload_checked(runtime, stream, own, to, queries, Input::Queries)?;
                } else if let Some(turn) = search.resident.image.turn {
                    let queries = view.unrotated(queries)?;
                    let (to, queries) = (search.unrotated(&rows), VectorSlice::of(&queries, dim));
                    let safe = |some: VectorSlice<'_>| view.rotates_safely(bytemuck::cast_slice(some.bytes()));
                    unrotated =
                        upload_accepted(runtime, stream, wide, to.as_bytes(), queries, safe)?.then_some((to, turn));
                }
                if given.is_none() && unrotated.is_none() {
                    let queries = view.queries(queries, self.device)?;
                    let (to, queries) = (part(search.queries(), wide), VectorSlice::of(&queries, dim));
                    upload_checked(runtime, stream, wide, to, queries, Input::Queries)?;
                }
                if parts > 1 {
                    runtime.wait_for(search.on.stream, stream)?;
                }
                if let (Some(given), Some(to)) = (given, widened) {
                    search.widen(own, (given.into(), rows.len() as u32), None, part(to, wide).cast())?;
                }
                if let Some((from, turn)) = unrotated {
                    let (from, to) = ((from.into(), rows.len() as u32), part(search.queries(), wide).cast());
                    turn.enqueue(search.on, wide, from, (to, wide.stride() as u32))?;
                }
                search.probe(rows.start as u32..rows.end as u32)?;
            }
        }
        Ok(())
    }

    /// Searches the queries of a request in batches that fit the scratch.
    ///
    /// With two lanes, a batch is copied and its kernels are queued while the device searches the previous batch;
    /// results are written to their slots while the device searches the next one.
    fn search_all(
        &self,
        resident: &Resident,
        lanes: &mut [Lane],
        view: &View<'_>,
        request: &SearchRequest<'_>,
        slots: &mut Slots<'_>,
    ) -> Result<()> {
        let count = request.queries.len();
        let limits = self.runtime.limits();
        let plan = |queries: usize, reading: Reading| {
            let shape = Self::shape_by(resident, queries, slots.k, request, reading);
            SearchPlan::new(resident, view.element, shape, limits)
        };
        let probes = request.probes.min(resident.image.lists as usize).max(1);
        let (reading, tiling) = Self::reading(resident, count, request, lanes.len(), |reading| {
            let most = (count, MOST_PAIRS / probes);
            Tiling::new(self.scratch(resident), most, lanes.len(), |queries| plan(queries, reading))
        })?;
        if let (Reading::Measured, Some(lane)) = (reading, lanes.first_mut()) {
            return self.search_measured(resident, lane, view, request, slots);
        }
        let path = if tiling.plan.search_shape.by_tables { "query by query, by tables" } else { "list by list" };
        events::path("inverted file", || self.runtime.describe(), path, count);
        // The copy of a batch checks its queries, but with more batches than lanes the first results are written before
        // the last batches are copied.
        if tiling.len() > lanes.len() {
            request.queries.check_finite(Input::Queries)?;
        }
        let last = if tiling.last_rows() == tiling.rows { None } else { Some(plan(tiling.last_rows(), reading)?) };
        let plan_of = |queries: usize| last.as_ref().filter(|_| queries < tiling.rows).unwrap_or(&tiling.plan);
        let completes = count >= BatchSizes::of(limits).completes_from;
        let submit = |lane: &mut Lane, batch: Range<usize>| {
            let search = self.search_on(resident, lane, view.element, plan_of(batch.len()), completes)?;
            // SAFETY: the scratch has the plan's size, and the plan is for this number of queries.
            unsafe {
                self.begin(&search, view, &request.part(batch))?;
                search.run()
            }
        };
        let finish = |lane: &mut Lane, batch: Range<usize>| {
            let search = self.search_on(resident, lane, view.element, plan_of(batch.len()), completes)?;
            if !self.copy_results(&search, view, slots, batch.start)? {
                return Ok(());
            }
            let search = Search { completes: true, ..search };
            // SAFETY: the queries and the filter are still on the device, and the scratch has the plan's size.
            unsafe {
                search.probe(0..search.queries)?;
                search.run()?;
            }
            self.copy_results(&search, view, slots, batch.start).map(drop)
        };
        tiling.pipelined(lanes, submit, finish)
    }

    /// Searches the queries of a request in batches whose scores fit the scratch, which is known when their lists are.
    fn search_measured(
        &self,
        resident: &Resident,
        lane: &mut Lane,
        view: &View<'_>,
        request: &SearchRequest<'_>,
        slots: &mut Slots<'_>,
    ) -> Result<()> {
        let count = request.queries.len();
        let path = "list by list, with room for the scores of the probed lists";
        events::path("inverted file", || self.runtime.describe(), path, count);
        // The results of the first batch are written before the others are copied.
        request.queries.check_finite(Input::Queries)?;
        let budget = self.scratch(resident);
        let probes = request.probes.min(resident.image.lists as usize).max(1);
        let done = budget.halving(0..count, MOST_PAIRS / probes, |batch| {
            let (first, request) = (batch.start, request.part(batch));
            let shape = Self::shape_by(resident, request.queries.len(), slots.k, &request, Reading::Measured);
            let shape = SearchShape { budget: Some(budget.bytes()), needs_scores: true, ..shape };
            let plan = SearchPlan::new(resident, view.element, shape, self.runtime.limits())?;
            if !budget.has(plan.bytes as u64) {
                return Ok(Attempt::Exceeds(plan.bytes as u64));
            }
            let search = self.search_on(resident, lane, view.element, &plan, true)?;
            // SAFETY: the scratch has the plan's size, and the plan is for this number of queries; the scores are
            // counted before they are written.
            unsafe {
                self.begin(&search, view, &request)?;
                let more = search.group_and_count()?.saturating_sub(plan.scores.len() as u64);
                if more > 0 {
                    return Ok(Attempt::Exceeds(budget.bytes().saturating_add(more * size_of::<f32>() as u64)));
                }
                search.run_grouped()?;
            }
            self.copy_results(&search, view, slots, first)?;
            Ok(Attempt::Done(()))
        });
        done.map(drop)
    }

    /// A search that uses the stream and the scratch of a lane.
    fn search_on<'a>(
        &'a self,
        resident: &'a Resident,
        lane: &'a mut Lane,
        element: ElementType,
        plan: &'a SearchPlan,
        completes: bool,
    ) -> Result<Search<'a>> {
        let scratch = lane.scratch(&self.runtime, plan.bytes)?;
        let counters = lane.counters(&self.runtime)?;
        Ok(Search {
            on: OnStream { runtime: &self.runtime, stream: &lane.stream },
            copies: &lane.background,
            resident,
            element,
            plan,
            scratch,
            counters,
            queries: plan.search_shape.queries,
            completes,
        })
    }

    /// Waits for a batch whose first query has the number `first`, and writes its results to their slots. Returns
    /// whether a query lacks a certificate.
    fn copy_results(&self, search: &Search<'_>, view: &View<'_>, slots: &mut Slots<'_>, first: usize) -> Result<bool> {
        let found = search.plan.search_shape.k as usize;
        let directory = view.sparse_directory();
        let mut lacks = false;
        let mut take = |queries: Range<usize>, parts: &[&[u8]]| {
            lacks |= search.lacks_certificate(&parts[2..]);
            let found = FoundRows::new(found, parts[0], parts[1]);
            match directory {
                // A separate case, because this loop uses SIMD.
                None => slots.fill(first + queries.start, found, u64::from),
                Some(directory) => slots.fill(first + queries.start, found, |rank| directory.id(rank)),
            }
        };
        // SAFETY: the search, earlier on the same stream, writes all its results.
        unsafe {
            self.runtime.copy_results_to_host(
                search.on.stream,
                search.queries as usize,
                &search.results(),
                &mut take,
            )?;
        }
        Ok(lacks)
    }

    /// Range search of queries, in batches that fit the scratch. The results of each query are best first.
    fn range_search_on(
        &self,
        resident: &Resident,
        lane: &mut Lane,
        view: &View<'_>,
        request: &SearchRequest<'_>,
        radius: f32,
    ) -> Result<Ranges> {
        let probes = request.probes.min(resident.image.lists as usize).max(1);
        let batches = self.scratch(resident).halving(0..request.queries.len(), MOST_PAIRS / probes, |batch| {
            self.range_some(resident, lane, view, &request.part(batch), radius)
        })?;
        Ok(batches.into_iter().flatten().collect())
    }

    /// As [`range_search_on`](Self::range_search_on), for one batch.
    fn range_some(
        &self,
        resident: &Resident,
        lane: &mut Lane,
        view: &View<'_>,
        request: &SearchRequest<'_>,
        radius: f32,
    ) -> Result<Attempt<Ranges>> {
        let count = request.queries.len();
        let limits = self.runtime.limits();
        let budget = self.scratch(resident);
        let search_shape = Self::search_shape(resident, count, 1, request);
        let search_shape =
            SearchShape { needs_scores: true, shares_scores: false, dense_probes: search_shape.probes, ..search_shape };
        let plan = SearchPlan::new(resident, view.element, search_shape, limits)?;
        if !budget.has(plan.bytes as u64) {
            return Ok(Attempt::Exceeds(plan.bytes as u64));
        }
        let metric = view.metric;
        let mut within = vec![0u32; count];
        let search = self.search_on(resident, lane, view.element, &plan, true)?;
        let OnStream { runtime, stream } = search.on;
        // SAFETY: the scratch has the plan's size; each step reads what the previous steps wrote. No candidates are
        // appended, so the array of their counts is free for the numbers of vectors within the radius.
        unsafe {
            self.begin(&search, view, request)?;
            search.group(0..search_shape.probes, None)?;
            search.scan(None)?;
            let from = search.candidates();
            let launch = CountWithin {
                scores: from.scores,
                row_starts: search.row_starts().into(),
                shifts: from.shifts,
                errors: from.errors,
                radius: metric.badness(radius),
                counts: search.counts(),
            };
            runtime.launch(stream, &CountWithin::KERNEL, launch.config(count as u64), launch)?;
            runtime.copy_to_host(stream, &mut within, search.counts())?;
        }
        let most = within.iter().copied().max().unwrap_or(0).max(1);
        let mut layout = Layout::default();
        let stage =
            Stage::reserve(&mut layout, count as u32, resident.columns(search_shape.probes), most, most, limits);
        let slots = count.saturating_mul(most as usize);
        let (keys, ranks) = (layout.array::<f32>(slots), layout.array::<u32>(slots));
        let proofs = layout.array::<u32>(count);
        let asked = layout.bytes().saturating_add(plan.bytes) as u64;
        if !budget.has(asked) {
            return Ok(Attempt::Exceeds(asked));
        }
        let memory = runtime.allocate(layout.bytes())?;
        let scratch = runtime.scratch(&memory);
        let to = stage::Found { keys: scratch.at(keys), ranks: scratch.at(ranks), flags: scratch.at(proofs) };
        let (mut got_keys, mut got_ranks) = (vec![0.0f32; slots], vec![0u32; slots]);
        // SAFETY: the memory has the layout's size, and the scores are still in the search's scratch.
        unsafe {
            search.best(&stage, scratch, to)?;
            runtime.copy_to_host(stream, &mut got_keys, to.keys)?;
            runtime.copy_to_host(stream, &mut got_ranks, to.ranks)?;
        }
        let directory = view.sparse_directory();
        let id_of = |rank: u32| directory.map_or(u64::from(rank), |directory| directory.id(rank));
        let near = |distance: f32| metric.within(distance, radius);
        // All vectors within the radius are selected, because the counts are upper bounds. So no query lacks a
        // certificate.
        let rows = got_keys
            .par_chunks(most as usize)
            .zip(got_ranks.par_chunks(most as usize))
            .map(|(keys, ranks)| {
                let there = keys.iter().zip(ranks).take_while(|&(&key, &rank)| rank != NO_ROW && near(key));
                there.map(|(&key, &rank)| (id_of(rank), key)).collect()
            })
            .collect();
        Ok(Attempt::Done(rows))
    }
}

impl Planned for SearchPlan {
    fn bytes(&self) -> usize {
        self.bytes
    }
}

/// The numbers of queries from which copies overlap with kernels, and from which further kernels cost nothing that
/// counts.
#[derive(Debug, Clone, Copy)]
struct BatchSizes {
    /// Smallest number of queries in a part whose probes are found while the next part is copied.
    part_queries: usize,
    /// Number of queries from which two lanes are faster than one, although the two halves of the queries read every
    /// list twice.
    two_lanes_from: usize,
    /// Number of queries from which a search always has the kernels that complete queries without a certificate. They
    /// are two launches that nearly always find nothing to do. So a search of fewer queries leaves them out, reads the
    /// flags of its queries, and runs once more with these kernels if a flag is set.
    completes_from: usize,
}

impl BatchSizes {
    fn of(limits: &Limits) -> BatchSizes {
        if limits.emulated {
            // Small numbers, so that small cases have several parts and both lanes.
            return BatchSizes { part_queries: 4, two_lanes_from: 16, completes_from: 8 };
        }
        BatchSizes { part_queries: 3_000, two_lanes_from: 20_000, completes_from: 1_024 }
    }
}

/// Number of 32-bit words of a filter on a device.
fn filter_words(filter: &Bitset) -> usize {
    filter.len().div_ceil(32)
}

impl IvfBackend for IvfDevice {
    fn search(
        &self,
        view: &View<'_>,
        request: &SearchRequest<'_>,
        k: usize,
        ids: &mut [u64],
        distances: &mut [f32],
    ) -> Result<()> {
        let resident = self.resident(view)?;
        let count = request.queries.len();
        // Decoding a list costs more than copying queries, so lists that the scan decodes are scanned once.
        let decodes = resident.image.stored.decodes && !Self::search_shape(&resident, count / 2, k, request).by_tables;
        let lanes = if count < BatchSizes::of(self.runtime.limits()).two_lanes_from || decodes { 1 } else { 2 };
        let mut slots = Slots { k, worst: view.metric.worst(), ids, distances };
        self.lanes.with_some(&self.runtime, lanes, |lanes| self.search_all(&resident, lanes, view, request, &mut slots))
    }

    fn range_search(&self, view: &View<'_>, request: &SearchRequest<'_>, radius: f32) -> Result<RangeNeighbors> {
        let resident = self.resident(view)?;
        let search = |lane: &mut _| self.range_search_on(&resident, lane, view, request, radius);
        RangeNeighbors::of_rows(&self.lanes.with(&self.runtime, search)?, |found| found)
    }

    /// On the device if the products are many. Few are faster on the CPU, because the rows are in host memory.
    fn search_rows(&self, search: RowSearch<'_>, k: usize, ids: &mut [u64], distances: &mut [f32]) -> Result<()> {
        let RowSearch { metric, rows, request } = search;
        let products = rows.components::<f32>().len() as u64 * request.queries.len() as u64;
        let few = if self.runtime.limits().emulated { FEW_PRODUCTS_EMULATED } else { FEW_PRODUCTS };
        if products < few || !f32::all_finite(rows.components()) {
            return IvfCpu::new(None, true).search_rows(search, k, ids, distances);
        }
        let shape = VectorShape::new(ElementType::F32, metric, rows.dim());
        // The image leaves this part of the budget.
        let budget = self.budget - resident_share(self.budget);
        let mut flat = FlatDevice::with_lanes(self.runtime.clone(), shape, budget, Arc::clone(&self.lanes));
        flat.add(rows)?;
        flat.search(&request, k, ids, distances)
    }

    fn as_device(&self) -> Option<&IvfDevice> {
        Some(self)
    }

    fn snapshot(&self) -> Box<dyn IvfBackend> {
        Box::new(self.shared())
    }

    fn describe(&self) -> String {
        self.runtime.describe()
    }
}
