//! Inverted files on a device: an image of the lists in device memory, and searches of it.
//!
//! | file | what |
//! |---|---|
//! | `image` | the lists in device memory, made at the first search after a change |
//! | `plan` | what a search takes: scratch, and the choices that sizes make |
//! | `search` | one search: queries, probes, pairs, scan |
//! | `stage` | scores to the exact best k: selection, re-ranking, certificate |
//!
//! The master copy stays in host memory; this file cuts batches so that their scratch fits the budget, searches again what lacks a
//! certificate, and turns ranks into ids.
//!
//! # What hides behind what
//! Queries are copied in three parts, and each part's probes are found while the next is copied; whether they are finite is seen in the
//! same pass. Flat, 10,000 queries, 16 of 4096 lists, H200, 2026-11-22: kernels take 0.49 ms of 0.83 (two parts).
//! Two lanes, a half of the queries each, scan the lists twice, in 220 µs for 143, and hide the results as well: as fast with 16 lists (0.83
//! to 0.86 ms both), faster with one (0.70 for 0.75), slower with 64 (1.36 for 1.32). Five parts took 1.4 ms where two took 0.93 to 1.0.

pub(super) mod coder;
mod image;
mod plan;
mod search;
mod stage;
pub(super) mod tables;
#[cfg(test)]
mod tests;

use std::marker::PhantomData;
use std::ops::Range;
use std::sync::Arc;

use cuda_std::PtrMut;
use warpann_kernels::NO_ROW;
use warpann_kernels::ivf::range::CountWithin;

use self::image::{Resident, Stored};
use self::plan::{Ask, SearchPlan};
use self::search::Search;
use self::stage::Stage;
use super::{Bitset, IvfBackend, Request, Scan, View};
use crate::device::lanes::{Lane, Lanes};
use crate::device::limits::Limits;
use crate::device::queue::OnStream;
use crate::device::runtime::Runtime;
use crate::device::scratch::Layout;
use crate::neighbors::RangeNeighbors;
use crate::neighbors::slots::{Found, Slots};
use crate::parallel::{Loop, ParallelSlice};
use crate::product::gpu::{Shape, upload_queries, upload_rows};
use crate::shards::share;
use crate::threads::Exclusive;
use crate::validate::check_vectors;
use crate::{Device, Element, ElementType, Error, Input, Metric, Result};

/// Share of the budget that an image may take: numerator and denominator.
const RESIDENT_SHARE: (u64, u64) = (3, 4);
/// Parts that queries are cut into, at most, while they are copied.
const MOST_PARTS: usize = 3;
/// Pairs of one batch: their numbers are u32.
const MOST_PAIRS: usize = 1 << 30;

/// Inverted files on one device.
pub(crate) struct IvfDevice<T: Element> {
    runtime: Runtime,
    device: Device,
    budget: u64,
    resident: Exclusive<Option<Arc<Resident>>>,
    lanes: Lanes,
    element: PhantomData<T>,
}

/// A call: what is asked, and where results go.
struct Call<'a, 'v, T: Element> {
    view: &'a View<'v, T>,
    queries: &'a [T],
    k: usize,
    request: &'a Request<'a>,
    ids: &'a mut [u64],
    distances: &'a mut [f32],
}

/// A range search.
#[derive(Clone, Copy)]
struct RangeCall<'a, 'v, T: Element> {
    view: &'a View<'v, T>,
    radius: f32,
    request: &'a Request<'a>,
}

impl<T: Element> IvfDevice<T> {
    /// `budget` defaults to nine tenths of the device's free memory.
    pub fn new(runtime: Runtime, device: Device, budget: Option<u64>) -> Result<Self> {
        let budget = runtime.budget(budget)?;
        let resident = Exclusive::new(None);
        Ok(IvfDevice { runtime, device, budget, resident, lanes: Lanes::new(), element: PhantomData })
    }

    /// The image of the index as it is now. Of the searches that come first one makes it, within the budget, and the others wait.
    fn resident(&self, view: &View<'_, T>) -> Result<Arc<Resident>> {
        // It takes a pool to make, so it is made before the lock is held.
        view.sparse_directory();
        self.resident.with(|resident| {
            // A stale one goes first: both may not fit.
            *resident = resident.take().filter(|image| image.version == view.version);
            if let Some(image) = resident {
                return Ok(image.clone());
            }
            let budget = self.budget / RESIDENT_SHARE.1 * RESIDENT_SHARE.0;
            let made =
                self.lanes.with(&self.runtime, |lane| Resident::new(&self.runtime, &lane.stream, view, budget))?;
            Ok(resident.insert(Arc::new(made)).clone())
        })
    }

    fn scratch(&self, resident: &Resident) -> u64 {
        self.budget.saturating_sub(resident.bytes)
    }

    /// What so many queries ask in attempt number `attempt`.
    fn ask(resident: &Resident, queries: usize, k: usize, request: &Request<'_>, attempt: u32) -> Ask {
        let probes = request.probes.min(resident.image.lists as usize) as u32;
        let k = k.min(resident.columns(probes).most as usize) as u32;
        let filter_words = request.filter.map(filter_words);
        let coded = matches!(resident.image.stored, Stored::Codes(_));
        let by_tables = coded
            && filter_words.is_none()
            && match request.scan {
                Scan::Auto => resident.tables_pay(queries, probes),
                Scan::ListMajor => false,
                Scan::QueryMajor => true,
            };
        let ask = Ask { queries: queries as u32, k, probes, attempt, filter_words, by_tables, dense_probes: probes };
        // A retry keeps all scores: then what is selected grows until nothing is left to prove.
        // Where few vectors pass a filter, the first lists give no threshold.
        let appends = attempt == 0 && !by_tables && filter_words.is_none();
        let dense_probes = if appends { resident.dense_probes(ask) } else { probes };
        Ask { dense_probes, ..ask }
    }

    /// Copies the queries of a search and its filter to the device, and finds the probes: of some queries while the next are copied.
    ///
    /// # Safety
    /// The scratch of `search` is as its plan says, for these queries.
    unsafe fn begin(
        &self,
        search: &Search<'_>,
        view: &View<'_, T>,
        queries: &[T],
        request: &Request<'_>,
    ) -> Result<()> {
        let (runtime, dim) = (&self.runtime, view.dim);
        let shape = |element| Shape { element, metric: view.metric, dim };
        let count = queries.len() / dim;
        let parts = (count / Overlap::of(&runtime.limits()).part_queries).clamp(1, MOST_PARTS);
        let stream = if parts == 1 { search.on.stream } else { search.copies };
        let (own, wide) = (shape(T::TYPE), shape(ElementType::F32));
        // SAFETY: the plan reserved room for the queries and the filter.
        unsafe {
            if let Some(filter) = request.filter {
                let words = &bytemuck::cast_slice(filter.words())[..filter_words(filter)];
                runtime.copy_to_device(stream, search.filter(), words)?;
            }
            for rows in (0..parts).map(|part| share(count, part, parts)) {
                let queries = &queries[rows.start * dim..rows.end * dim];
                let part = |all: PtrMut<u8>, shape: Shape| {
                    all.skip(rows.start * shape.row_bytes()).take(rows.len() * shape.row_bytes())
                };
                if let Stored::Rows { .. } = search.resident.image.stored {
                    upload_queries(runtime, stream, own, part(search.queries(), own), queries)?;
                    if let Some(to) = search.wide_queries() {
                        upload_rows(runtime, stream, wide, part(to, wide), &view.queries(queries, self.device)?)?;
                    }
                } else {
                    let queries = view.queries(queries, self.device)?;
                    upload_queries(runtime, stream, wide, part(search.queries(), wide), &queries)?;
                }
                if parts > 1 {
                    runtime.wait_for(search.on.stream, stream)?;
                }
                search.probe(rows.start as u32..rows.end as u32)?;
            }
        }
        Ok(())
    }

    /// Searches some queries of a call, in batches that fit the scratch, one lane after the other; those without certificate again.
    ///
    /// With two lanes a batch is copied and its kernels are queued while the one before is searched, and results are dealt with while the
    /// next is: one thread does it all, so that the first batch gets the whole memory and is on the device as soon as can be.
    fn search_some(
        &self,
        resident: &Resident,
        lanes: &mut [Lane],
        call: &mut Call<'_, '_, T>,
        which: Batch<'_>,
        attempt: u32,
    ) -> Result<()> {
        let count = which.len();
        let limits = self.runtime.limits();
        let scratch = self.scratch(resident) / lanes.len() as u64;
        let plan = |queries: usize| {
            SearchPlan::new(resident, T::TYPE, Self::ask(resident, queries, call.k, call.request, attempt), &limits)
        };
        let probes = call.request.probes.min(resident.image.lists as usize).max(1);
        let mut batch = count.div_ceil(lanes.len()).min(MOST_PAIRS / probes).max(1);
        let mut fitting = plan(batch)?;
        while batch > 1 && fitting.bytes as u64 > scratch {
            batch = batch.div_ceil(2);
            fitting = plan(batch)?;
        }
        if fitting.bytes as u64 > scratch {
            let device = self.runtime.describe();
            return Err(Error::OutOfDeviceMemory { device, asked: fitting.bytes as u64, available: scratch });
        }
        let last = if count.is_multiple_of(batch) { None } else { Some(plan(count % batch)?) };
        let batches: Vec<_> = (0..count)
            .step_by(batch)
            .map(|first| {
                let end = (first + batch).min(count);
                let plan = last.as_ref().filter(|_| end - first < batch).unwrap_or(&fitting);
                (which.part(first..end), plan)
            })
            .collect();
        // Batches look at their queries on the way, but the first results come before the third batch goes.
        if batches.len() > lanes.len() {
            check_vectors(call.queries, call.view.dim, Input::Queries)?;
        }
        let mut unproved = Vec::new();
        let apart = lanes.len();
        for step in 0..batches.len() + apart {
            let lane = &mut lanes[step % apart];
            // What this lane did last comes back before it goes on.
            if let Some(&(batch, plan)) = step.checked_sub(apart).map(|before| &batches[before]) {
                self.copy_results(&self.search_on(resident, lane, plan)?, call, batch, &mut unproved)?;
            }
            if let Some(&(batch, plan)) = batches.get(step) {
                self.submit(&self.search_on(resident, lane, plan)?, call, batch)?;
            }
        }
        if unproved.is_empty() {
            return Ok(());
        }
        self.search_some(resident, lanes, call, Batch::Numbers(&unproved), attempt + 1)
    }

    /// A search by a lane.
    fn search_on<'a>(&'a self, resident: &'a Resident, lane: &'a mut Lane, plan: &'a SearchPlan) -> Result<Search<'a>> {
        let scratch = lane.scratch(&self.runtime, plan.bytes)?;
        Ok(Search {
            on: OnStream { runtime: &self.runtime, stream: &lane.stream },
            copies: &lane.copies,
            resident,
            element: T::TYPE,
            plan,
            scratch,
        })
    }

    /// Copies the queries of a batch to the device and launches their search.
    fn submit(&self, search: &Search<'_>, call: &Call<'_, '_, T>, batch: Batch<'_>) -> Result<()> {
        let dim = call.view.dim;
        let gathered: Vec<T>;
        let queries = match batch {
            Batch::Range(first, end) => &call.queries[first * dim..end * dim],
            Batch::Numbers(numbers) => {
                gathered = numbers.iter().flat_map(|&query| &call.queries[query * dim..][..dim]).copied().collect();
                &gathered
            }
        };
        // SAFETY: the scratch has the plan's size, and the plan is for so many queries.
        unsafe {
            self.begin(search, call.view, queries, call.request)?;
            search.run()
        }
    }

    /// Waits for a batch and puts its results into their slots; notes which queries lack a certificate.
    fn copy_results(
        &self,
        search: &Search<'_>,
        call: &mut Call<'_, '_, T>,
        batch: Batch<'_>,
        unproved: &mut Vec<usize>,
    ) -> Result<()> {
        let k = call.k;
        let found = search.plan.ask.k as usize;
        let directory = call.view.sparse_directory();
        let mut slots = Slots { k, worst: call.view.metric.worst(), ids: call.ids, distances: call.distances };
        let room = search.plan.room();
        let arrays = search.results();
        let mut take = |queries: Range<usize>, parts: &[&[u8]]| {
            let words = |part: usize| bytemuck::cast_slice::<u8, u32>(parts[part]);
            let (of_probes, of_neighbours) = (words(0), words(1));
            let found = Found::new(found, parts[2], parts[3]);
            match (batch, directory) {
                // Apart, because it runs in SIMD.
                (Batch::Range(first, _), None) => slots.fill(first + queries.start, found, u64::from),
                (Batch::Range(first, _), Some(directory)) => {
                    slots.fill(first + queries.start, found, |rank| directory.id(rank));
                }
                (Batch::Numbers(numbers), _) => {
                    let id_of = |rank| directory.map_or(u64::from(rank), |directory| directory.id(rank));
                    slots.fill_some(&numbers[queries.clone()], found, id_of);
                }
            }
            let lacks =
                |at: usize| of_probes[at] | of_neighbours[at] != 0 || room.is_some_and(|room| words(4)[at] > room);
            let lacking = (0..queries.len()).filter(|&at| lacks(at));
            unproved.extend(lacking.map(|at| batch.number(queries.start + at)));
        };
        // SAFETY: the search before, on the same stream, writes all its results.
        unsafe {
            self.runtime.copy_results_to_host(search.on.stream, search.plan.ask.queries as usize, &arrays, &mut take)
        }
    }

    /// Range search of some queries: results of each, best first.
    fn range_some(
        &self,
        resident: &Resident,
        lane: &mut Lane,
        call: RangeCall<'_, '_, T>,
        queries: &[T],
        attempt: u32,
    ) -> Result<Vec<Vec<(u64, f32)>>> {
        let RangeCall { view, radius, request } = call;
        let dim = view.dim;
        let count = queries.len() / dim;
        let halves = |lane: &mut Lane| -> Result<Vec<Vec<(u64, f32)>>> {
            let (low, high) = queries.split_at(count / 2 * dim);
            let mut rows = self.range_some(resident, lane, call, low, attempt)?;
            rows.extend(self.range_some(resident, lane, call, high, attempt)?);
            Ok(rows)
        };
        let limits = self.runtime.limits();
        let available = self.scratch(resident);
        let ask = Self::ask(resident, count, 1, request, attempt);
        let ask = Ask { dense_probes: ask.probes, ..ask };
        let plan = SearchPlan::new(resident, T::TYPE, ask, &limits)?;
        let too_large = |asked: u64| Error::OutOfDeviceMemory { device: self.runtime.describe(), asked, available };
        if plan.bytes as u64 > available || count * ask.probes as usize > MOST_PAIRS {
            return if count > 1 { halves(lane) } else { Err(too_large(plan.bytes as u64)) };
        }
        let smaller_is_better = view.distance_metric() == Metric::L2;
        let bad = if smaller_is_better { radius } else { -radius };
        let mut within = vec![0u32; count];
        let mut flags = vec![0u32; count];
        let search = self.search_on(resident, lane, &plan)?;
        let OnStream { runtime, stream } = search.on;
        // SAFETY: the scratch has the plan's size; each step finds what the ones before wrote. Nothing is appended, so the counts of candidates
        // are free for the numbers of vectors within the radius.
        unsafe {
            self.begin(&search, view, queries, request)?;
            search.group(0..ask.probes, None)?;
            search.scan(None)?;
            let from = search.candidates();
            let launch = CountWithin {
                scores: from.scores,
                row_starts: search.row_starts().into(),
                shifts: from.shifts,
                errors: from.errors,
                radius: bad,
                counts: search.counts(),
            };
            runtime.launch(stream, &CountWithin::KERNEL, launch.config(count as u64), launch)?;
            runtime.copy_to_host(stream, &mut within, search.counts())?;
            runtime.copy_to_host(stream, &mut flags, search.probe_flags())?;
        }
        let most = within.iter().copied().max().unwrap_or(0).max(1);
        let mut layout = Layout::default();
        let stage = Stage::reserve(&mut layout, count as u32, resident.columns(ask.probes), most, most, &limits);
        let slots = count.saturating_mul(most as usize);
        let (keys, ranks) = (layout.array::<f32>(slots), layout.array::<u32>(slots));
        let proofs = layout.array::<u32>(count);
        let asked = layout.bytes().saturating_add(plan.bytes) as u64;
        if asked > available {
            return if count > 1 { halves(lane) } else { Err(too_large(asked)) };
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
        let near = |distance: f32| if smaller_is_better { distance <= radius } else { distance >= radius };
        let mut rows: Vec<Vec<(u64, f32)>> = got_keys
            .par_chunks(most as usize)
            .zip(got_ranks.par_chunks(most as usize))
            .map(|(keys, ranks)| {
                let there = keys.iter().zip(ranks).take_while(|&(&key, &rank)| rank != NO_ROW && near(key));
                there.map(|(&key, &rank)| (id_of(rank), key)).collect()
            })
            .collect();
        // Every vector within the radius is among the selected, whose number is proved; only probes may lack a certificate.
        for (query, _) in flags.iter().enumerate().filter(|(_, flag)| **flag != 0) {
            let one = &queries[query * dim..(query + 1) * dim];
            rows[query] = self.range_some(resident, lane, call, one, attempt + 1)?.remove(0);
        }
        Ok(rows)
    }
}

/// How queries are cut so that copies hide behind kernels.
#[derive(Debug, Clone, Copy)]
struct Overlap {
    /// Queries whose probes are found at once, while the next are copied, at least.
    part_queries: usize,
    /// Queries from which two lanes pay: half of them read every list, and the two halves read it twice.
    two_lanes_from: usize,
}

impl Overlap {
    fn of(limits: &Limits) -> Overlap {
        if limits.emulated {
            // So few that small cases have several parts and both lanes.
            return Overlap { part_queries: 4, two_lanes_from: 16 };
        }
        Overlap { part_queries: 3_000, two_lanes_from: 20_000 }
    }
}

/// Words of 32 bits that a filter takes on a device.
fn filter_words(filter: &Bitset) -> usize {
    filter.len().div_ceil(32)
}

/// Consecutive queries of a call, or chosen ones.
#[derive(Clone, Copy)]
enum Batch<'a> {
    Range(usize, usize),
    Numbers(&'a [usize]),
}

impl<'a> Batch<'a> {
    fn len(self) -> usize {
        match self {
            Batch::Range(first, end) => end - first,
            Batch::Numbers(numbers) => numbers.len(),
        }
    }

    fn number(self, at: usize) -> usize {
        match self {
            Batch::Range(first, _) => first + at,
            Batch::Numbers(numbers) => numbers[at],
        }
    }

    /// Some of them.
    fn part(self, of: Range<usize>) -> Batch<'a> {
        match self {
            Batch::Range(first, _) => Batch::Range(first + of.start, first + of.end),
            Batch::Numbers(numbers) => Batch::Numbers(&numbers[of]),
        }
    }
}

impl<T: Element> IvfBackend<T> for IvfDevice<T> {
    fn search(
        &self,
        view: &View<'_, T>,
        queries: &[T],
        k: usize,
        request: &Request<'_>,
        ids: &mut [u64],
        distances: &mut [f32],
    ) -> Result<()> {
        let resident = self.resident(view)?;
        let count = queries.len() / view.dim;
        // Decoding a list costs more than copying queries does, so what is decoded is decoded once.
        let decodes = matches!(resident.image.stored, Stored::Codes(_))
            && !Self::ask(&resident, count / 2, k, request, 0).by_tables;
        let lanes = if count < Overlap::of(&self.runtime.limits()).two_lanes_from || decodes { 1 } else { 2 };
        let mut call = Call { view, queries, k, request, ids, distances };
        self.lanes.with_some(&self.runtime, lanes, |lanes| {
            self.search_some(&resident, lanes, &mut call, Batch::Range(0, count), 0)
        })
    }

    fn range_search(
        &self,
        view: &View<'_, T>,
        queries: &[T],
        radius: f32,
        request: &Request<'_>,
    ) -> Result<RangeNeighbors> {
        let resident = self.resident(view)?;
        let call = RangeCall { view, radius, request };
        let search = |lane: &mut _| self.range_some(&resident, lane, call, queries, 0);
        Ok(RangeNeighbors::of_rows(self.lanes.with(&self.runtime, search)?))
    }

    fn describe(&self) -> String {
        self.runtime.describe()
    }
}
