//! Search of an inverted file on the CPU: the certified f32 filter of [`crate::flat::cpu`], list by list.
//!
//! # Algorithm
//! The same three parts as in exact search make results exact: f32 scores whose distance from the canonical value has a
//! proved bound ([`crate::product::cpu::bound`]), candidates ([`crate::product::cpu::candidates`]), and canonical
//! distances for the remaining candidates. Only the scored pairs differ:
//!
//! ```text
//! probes = exact search of the queries over the centroids                        FlatCpu
//! cut the queries into groups; for each group:                                   group.rs
//!     sort the (query, probe) pairs by list
//!     codes only: workers take query after query, for its lists that few others probe:
//!         make its lookup tables; score codes by them                            tables.rs
//!     workers take list after list of the others, those that were some query's nearest first:
//!         pack the list's queries into panels (few: leave them row by row)
//!         for each tile of the list:                                             PQ codes are decoded here, once a list
//!             for each panel: scan; what passes its query's threshold and the filter becomes a candidate
//!     merge the workers' candidates; canonical distances for the rest; select k
//! ```
//!
//! If few queries probe a list of codes, each of them reads the list separately. If most lists are such lists (few
//! queries or probes for the number of lists), a large group gains nothing. Then each thread takes a small group
//! through all stages, probes included. With 16 bytes, one probe and two threads a search takes four fifths of the
//! time, because threads never wait for each other and their data stays in their caches (2000 queries, 1024 lists,
//! AVX2). Lists of vectors are better read once for all queries. With one probe, queries in the order of their lists
//! can be divided into small groups that share no list, which saves a tenth of the time.
//!
//! A candidate is identified by its location until it is judged, and then by its rank, the order of ids. The location
//! of a vector is its number in the order of the lists. Range search is the same with a constant limit.
//!
//! Vectors of bits are scanned as bytes: the distance of each is counted ([`crate::product::cpu::bits`]), and exact.
//!
//! Scores and bounds need norms of vectors. They are computed when a list is first scanned, and kept until the list
//! changes: 4 bytes for each vector under squared L2, 12 under cosine. The first search after a change keeps those of
//! the other lists: O(lists).
//!
//! # Cost
//! For each query, 2 · lists · dim operations for the probes and 2 · dim for each vector of the probed lists, at the
//! rate of exact search if lists have several queries. Decoding a PQ vector costs about as much as scoring it for ten
//! queries. With few queries the speed of memory is the limit; lists are divided among the threads.
//!
//! With one probe the scan is one part of many. This is the cost of a query of 128 components with 1024 lists, on one
//! core with AVX-512, in µs (each function's share of a profiler's samples of many searches by 2000 queries on one
//! thread):
//!
//! | stage | floor | costs |
//! |---|---|---|
//! | probes | 1024 · 128 multiply-adds, 1.6 at 165 GFLOP/s | 1.7, and 0.7 for selection |
//! | tables (codes) | 256 · 128 multiply-adds and as many loads, 0.5 | 1.0; 1.4 for M = 64 |
//! | scores of one list | codes: M look-ups each, 1.5 a cycle; vectors: memory | 1 for M = 16 to 3 for 64; 3 |
//! | re-rank of 100 codes | 5 f64 instructions for 8 components, 2 | 2.1, and 1.8 (M = 16) to 3.6 (64) for decoding |
//! | re-rank of whole numbers | nothing: scores are exact ([`crate::product::cpu::bound`]) | 0 |
//! | buffers, selection, order of results | | 2 for k = 10, 4.5 for k = 100 |
//!
//! # Tried, and lost
//! - Tables of all queries of a group, kept from list to list: clearing them, writing them to memory and reading them
//!   back costs three times as much as computing them. Query by query they stay in the L1 or L2 cache; they are
//!   computed again only if workers share a query.
//! - Judging candidates one by one: the search for the list of each candidate, an allocation for each decoded vector,
//!   and loads that wait for short stores took twice the time of decoding and summing. Now eight are decoded and then
//!   eight are summed; the list is searched for when it changes.
//! - Candidates always in the order of the base: within one list the sort costs more than it saves.

mod group;
mod job;
mod judge;
mod tables;

use std::sync::{Arc, Mutex, PoisonError};

use self::group::Group;
use self::job::{Image, Job};
use super::backend::{IvfBackend, RowSearch};
use super::view::View;
use super::{Scan, SearchRequest};
use crate::device::open::describe_cpu;
use crate::flat::FlatBackend;
use crate::flat::cpu::FlatCpu;
use crate::neighbors::RangeNeighbors;
use crate::parallel::{Loop, ParallelSlice, owned};
use crate::product::cpu::DEFAULT_BUDGET;
use crate::product::cpu::candidates::{self, Candidates};
use crate::product::cpu::collect::{Ball, Collect};
use crate::simd::Isa;
use crate::vectors::VectorSlice;
use crate::{Device, Input, NONE, Result, events};

/// Number of queries that are scanned together, if there are enough.
const GROUP: usize = 2048;
/// Smallest and largest number of queries of a group whose queries share no lists.
const ALONE: (usize, usize) = (16, 64);
/// Number of component products for which another thread is used.
const WORK: u64 = 1 << 18;

/// The back end that searches inverted files on the CPU.
#[derive(Debug)]
pub(crate) struct IvfCpu {
    isa: Isa,
    budget: u64,
    image: Mutex<Option<Arc<Image>>>,
}

impl IvfCpu {
    /// With `simd`, searches use the widest instructions of the processor.
    pub(crate) fn new(budget: Option<u64>, simd: bool) -> Self {
        let isa = if simd { Isa::detect() } else { Isa::Portable };
        Self { isa, budget: budget.unwrap_or(DEFAULT_BUDGET), image: Mutex::new(None) }
    }

    /// The image of the index's version in `view`; made if there is none.
    fn image(&self, view: &View<'_>) -> Result<Arc<Image>> {
        let lock = || self.image.lock().unwrap_or_else(PoisonError::into_inner);
        let before = lock().clone();
        if let Some(image) = before.as_ref().filter(|image| image.version == view.version()) {
            return Ok(Arc::clone(image));
        }
        // The image is made without the lock: while its parallel parts wait, this thread may start another search that
        // comes here.
        let made = Arc::new(self.made(view, before.as_deref())?);
        let mut image = lock();
        match image.as_ref().filter(|image| image.version == view.version()) {
            Some(image) => Ok(Arc::clone(image)),
            None => Ok(Arc::clone(image.insert(made))),
        }
    }

    /// The image of the index's version in `view`. It shares with the image `before` what is still right.
    fn made(&self, view: &View<'_>, before: Option<&Image>) -> Result<Image> {
        let lengths = (0..view.list_count()).map(|list| view.length(list) as u32);
        let add = |end: &mut u32, length| {
            *end += length;
            Some(*end)
        };
        let starts = [0].into_iter().chain(lengths.scan(0, add)).collect();
        let version = view.version();
        if let Some(before) = before
            && let Some(changes) = view.changes_since(before.version)
        {
            let (coarse, mut norms) = (Arc::clone(&before.coarse), before.norms.clone());
            for changed in changes.places.chunk_by(|a, b| a.list == b.list) {
                norms[changed[0].list as usize] = Arc::default();
            }
            return Ok(Image { version, coarse, starts, norms });
        }
        let mut coarse = FlatCpu::with_isa(view.dim, view.probe_metric(), Some(self.budget), self.isa);
        coarse.add(VectorSlice::of(view.centroids, view.dim))?;
        let norms = (0..view.list_count()).map(|_| Arc::default()).collect();
        Ok(Image { version, coarse: Arc::new(coarse), starts, norms })
    }

    /// Finds the neighbours of each of the request's `queries`, which are transformed, as keys of (distance, rank),
    /// best first. `collect` makes the collector of a query, which takes up to `bytes` bytes.
    fn run<C: Collect>(
        &self,
        view: &View<'_>,
        queries: &[f32],
        request: &SearchRequest<'_>,
        bytes: usize,
        collect: &(impl Fn() -> C + Sync),
    ) -> Result<Vec<Vec<u64>>> {
        let image = self.image(view)?;
        view.directory();
        let job = Job::new(view, &image, self.isa, request.filter);
        let (dim, probes, threads) = (view.dim, request.probes, rayon::current_num_threads());
        let count = queries.len() / dim;
        // Bytes of a query: its probes before and after the sort by list, several forms of the query, and its
        // candidates on each thread.
        let query_bytes = probes * 28 + dim * 20 + bytes.saturating_mul(threads);
        let fit = usize::try_from(self.budget / query_bytes as u64).unwrap_or(usize::MAX).max(1);
        let group = GROUP.min(fit).min(count);
        let share = count.div_ceil(4 * threads).min(ALONE.1).min(fit);
        if share >= ALONE.0 && probes == 1 && request.scan == Scan::Auto && view.codec.in_place() {
            events::path("inverted file", || self.describe(), "adjacent lists of one probe", count);
            return run_by_list(&job, queries, share, collect);
        }
        let by_tables = |quantizer| group * probes <= tables::few(quantizer) * view.list_count();
        let alone = share >= ALONE.0 && view.codec.quantizer().is_some_and(by_tables);
        // Batches run one after the other; tasks of a batch, and groups of a task, run in parallel.
        let (batch, task, size) = match request.scan {
            Scan::QueryMajor => (group, group, 1),
            Scan::Auto if alone => (count, share, share),
            Scan::Auto | Scan::ListMajor => (group, group, group),
        };
        let path = match request.scan {
            Scan::QueryMajor => "query by query",
            Scan::Auto if alone => "groups of queries, by tables",
            Scan::Auto | Scan::ListMajor => "list by list",
        };
        events::path("inverted file", || self.describe(), path, count);
        let vectors = view.len() as u64 * probes as u64 / view.list_count() as u64;
        let work = usize::try_from(vectors * (size * dim) as u64 / WORK).unwrap_or(threads);
        let (threads, workers) = if task < batch { (1, 1) } else { (threads, work.clamp(1, threads)) };
        let mut found = Vec::with_capacity(count);
        for queries in queries.chunks(batch * dim) {
            let tasks = queries.par_chunks(task * dim).with_max_len(1).map(|queries| {
                let slots = queries.len() / dim * probes;
                let (mut lists, mut distances) = (vec![NONE; slots], vec![0.0; slots]);
                image.coarse.search_on(threads, queries, probes, &mut lists, &mut distances);
                let groups = queries.par_chunks(size * dim).zip(lists.par_chunks(size * probes)).with_max_len(1);
                groups
                    .map(|(queries, lists)| Group::new(&job, queries, lists, probes).search(&job, workers, collect))
                    .collect()
            });
            let of_tasks: Vec<Vec<Result<Vec<Vec<u64>>>>> = tasks.collect();
            for of_group in of_tasks.into_iter().flatten() {
                found.extend(of_group?);
            }
        }
        Ok(found)
    }
}

/// As [`IvfCpu::run`] for one probe, in groups of up to `size` queries with adjacent lists.
fn run_by_list<C: Collect>(
    job: &Job<'_>,
    queries: &[f32],
    size: usize,
    collect: &(impl Fn() -> C + Sync),
) -> Result<Vec<Vec<u64>>> {
    let dim = job.view.dim;
    let count = queries.len() / dim;
    let (mut lists, mut distances) = (vec![NONE; count], vec![0.0; count]);
    job.image.coarse.search_on(rayon::current_num_threads(), queries, 1, &mut lists, &mut distances);
    let mut order: Vec<(u64, usize)> = lists.into_iter().zip(0..).collect();
    order.sort_unstable();
    let of_group = |order: &[(u64, usize)]| {
        let queries: Vec<f32> = order.iter().flat_map(|&(_, query)| &queries[query * dim..][..dim]).copied().collect();
        let lists: Vec<u64> = order.iter().map(|&(list, _)| list).collect();
        Group::new(job, &queries, &lists, 1).search(job, 1, collect)
    };
    let of_groups: Vec<Result<Vec<Vec<u64>>>> = order.par_chunks(size).with_max_len(1).map(of_group).collect();
    let mut found = vec![Vec::new(); count];
    for (order, of_group) in order.chunks(size).zip(of_groups) {
        order.iter().zip(of_group?).for_each(|(&(_, query), keys)| found[query] = keys);
    }
    Ok(found)
}

impl IvfBackend for IvfCpu {
    fn search(
        &self,
        view: &View<'_>,
        request: &SearchRequest<'_>,
        k: usize,
        ids: &mut [u64],
        distances: &mut [f32],
    ) -> Result<()> {
        request.queries.check_finite(Input::Queries)?;
        let queries = view.queries(request.queries, Device::Cpu)?;
        let (rows, metric, directory) = (view.len(), view.metric, view.directory());
        let kept = k.min(rows);
        let collect = || Candidates::new(kept, rows);
        let found = self.run(view, &queries, request, Candidates::bytes(kept, rows), &collect)?;
        let slots = ids.par_chunks_mut(k).zip(distances.par_chunks_mut(k)).with_min_len(64);
        slots.zip(owned(found)).for_each(|((ids, distances), found)| {
            ids.fill(NONE);
            distances.fill(metric.worst());
            for ((id, distance), key) in ids.iter_mut().zip(distances).zip(found) {
                (*id, *distance) = (directory.id(candidates::id(key)), candidates::distance(metric, key));
            }
        });
        Ok(())
    }

    fn range_search(&self, view: &View<'_>, request: &SearchRequest<'_>, radius: f32) -> Result<RangeNeighbors> {
        request.queries.check_finite(Input::Queries)?;
        let queries = view.queries(request.queries, Device::Cpu)?;
        let (metric, directory) = (view.metric, view.directory());
        let found = self.run(view, &queries, request, size_of::<Ball>(), &|| Ball::new(metric, radius))?;
        RangeNeighbors::of_rows(&found, |key| (directory.id(candidates::id(key)), candidates::distance(metric, key)))
    }

    fn search_rows(&self, search: RowSearch<'_>, k: usize, ids: &mut [u64], distances: &mut [f32]) -> Result<()> {
        let RowSearch { metric, rows, request } = search;
        let mut flat = FlatCpu::<f32>::with_isa(rows.dim(), metric, Some(self.budget), self.isa);
        flat.add(rows)?;
        flat.search(&request, k, ids, distances)
    }

    fn snapshot(&self) -> Box<dyn IvfBackend> {
        let image = self.image.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Box::new(IvfCpu { image: Mutex::new(image), ..*self })
    }

    fn describe(&self) -> String {
        describe_cpu(Some(self.isa))
    }
}
