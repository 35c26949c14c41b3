//! One stage of a search: from approximate scores of a row of candidates to the exact best k, with a proof.
//!
//! The coarse quantizer (candidates are centroids, results are probes) and the search of the lists have the same three
//! steps: select k' > k candidates by score, re-rank them by canonical distance, certify the result
//! (`warpann_kernels::ivf::rerank`).

use cuda_std::{Ptr, PtrMut};
use warpann_kernels::ivf::pairs::{BeginCandidates, SHARING};
use warpann_kernels::ivf::rerank::{self, Certificate, Certify, PerQuery, ProbedLists, Rerank, SettleProbes};
use warpann_kernels::ivf::rescan::RescanProbes;
use warpann_kernels::product::metric::Metric as KernelMetric;

use super::stored::Stored;
use crate::Result;
use crate::device::limits::Limits;
use crate::device::queue::OnStream;
use crate::device::scratch::{Layout, Reserved, Scratch};
use crate::select::Best;
use crate::select::gpu::{Columns, Select, SelectPlan, select};

/// Number of scores selected beyond k: at least `MARGIN`, and at least k / `MARGIN_SHARE`. The error bound spans two or
/// three neighbours of the k-th on data of a few dozen dimensions, and more with larger k.
const MARGIN: u32 = 8;
const MARGIN_SHARE: u32 = 8;
/// The same as `MARGIN` if rows share scores: a warp then has the rows of the scores for k = 10.
const SHARED_MARGIN: u32 = rerank::WARP_SELECTED / SHARING - 10;
/// Number of scores beyond those that are selected, at least and as a share of them, to which the threshold of
/// appending belongs. So the candidates are all vectors up to a score far above that of the last selected one, and a
/// query whose selected candidates prove nothing is completed by the others. Among 1,000,000 sentence embeddings (256
/// components, 1,024 lists) the 64th squared distance is .06 above the 10th at least, and the 18th .011, for 199 of 200
/// queries.
const BEYOND: u32 = 48;
const BEYOND_SHARE: u32 = 2;
/// Room for appended candidates: at least `ROOM`, and at least `ROOM_SHARE` times the number of selected candidates.
const ROOM: u32 = 1024;
const ROOM_SHARE: u32 = 4;
/// Number of blocks of the kernel that re-ranks codes for which a multiprocessor has room.
const CODE_BLOCKS: u32 = 3;
/// Largest number of candidates that one block sorts in shared memory; k-selection orders larger numbers.
const SORTED: u32 = 4096;

/// Number of scores to select for k results, at most `columns`; `shared` if rows share scores.
pub(super) fn selected(k: u32, columns: u32, shared: bool) -> u32 {
    let margin = if shared { SHARED_MARGIN } else { MARGIN };
    k.saturating_add(margin.max(k / MARGIN_SHARE)).min(columns).max(1)
}

/// Number of centroids selected beyond the probes: a share of the probes, and at most half of the number that
/// [`Stage::settle`] compares exactly. Of 10,000 queries of the standard set with 1,024 of 4,096 lists, 1.7 % needed
/// more than 24; with 64 lists three queries needed more than 8.
const PROBE_MARGIN_SHARE: u32 = 4;
const PROBE_MARGIN: u32 = rerank::SETTLED / 2;

/// Number of centroids to select for the `probes` nearest of `lists`, of which [`Stage::settle`] compares few exactly.
pub(super) fn selected_probes(probes: u32, lists: u32) -> u32 {
    let margin = (probes / PROBE_MARGIN_SHARE).clamp(MARGIN, PROBE_MARGIN);
    probes.saturating_add(margin).min(lists).max(1)
}

/// The scratch of a stage.
#[derive(Debug)]
pub(super) struct Stage {
    pub k: u32,
    columns: u32,
    /// Number of scores that are selected from the rows of scores.
    first: u32,
    /// Number of scores whose rows are compared: `first`, or the best of the lists of candidates.
    selected: u32,
    /// Number of rows of the selected scores.
    candidates: u32,
    select: SelectPlan,
    scores: Reserved<f32>,
    places: Reserved<u32>,
    /// Scratch for ordering candidates by k-selection, if they are too many for a block to sort.
    unsorted: Option<Unsorted>,
    /// Scratch for candidates that are appended to the selected ones.
    appended: Option<Appended>,
}

/// Scratch for the candidates of all queries before k-selection orders them.
#[derive(Debug)]
struct Unsorted {
    keys: Reserved<f32>,
    ranks: Reserved<u32>,
    select: SelectPlan,
}

/// Scratch for lists of candidates.
#[derive(Debug)]
struct Appended {
    capacity: u32,
    scores: Reserved<f32>,
    places: Reserved<u32>,
    thresholds: Reserved<f32>,
    select: SelectPlan,
    best_scores: Reserved<f32>,
    best_places: Reserved<u32>,
}

/// The lists of candidates that the scan fills.
#[derive(Debug, Clone, Copy)]
pub(super) struct CandidateLists {
    /// Number of places in a query's list.
    pub capacity: u32,
    pub scores: PtrMut<f32>,
    pub places: PtrMut<u32>,
    /// Number of candidates of each query, including those for which there was no place.
    pub counts: PtrMut<u32>,
    /// One threshold for each query; candidates with a higher score are not appended.
    pub thresholds: PtrMut<f32>,
}

/// Candidates of some queries: the scores from which a stage selects, the values for the proof of its results, the
/// stream of its launches, and the memory that it reserved.
#[derive(Clone, Copy)]
pub(super) struct Candidates<'a> {
    pub on: OnStream<'a>,
    pub scratch: Scratch,
    /// Number of queries, at most the number for which the stage was planned.
    pub queries: u32,
    /// The row of query q starts at q · `row_stride`, or at `row_starts[q]`.
    pub scores: Ptr<f32>,
    pub row_stride: u64,
    pub row_starts: Option<Ptr<u64>>,
    pub lists: ProbedLists,
    /// As the fields of [`Rerank`] and [`Certificate`] with the same names.
    pub live_rows: Option<Ptr<u32>>,
    pub row_count: u32,
    pub metric: KernelMetric,
    pub shifts: Option<Ptr<f32>>,
    pub errors: Ptr<f32>,
}

impl<'a> Candidates<'a> {
    /// Scores of one list, all of whose rows may be found, and no values for a proof.
    pub fn of_one_list(on: OnStream<'a>, scratch: Scratch, queries: u32, scores: Ptr<f32>, row_stride: u64) -> Self {
        Candidates {
            on,
            scratch,
            queries,
            scores,
            row_stride,
            row_starts: None,
            lists: ProbedLists::default(),
            live_rows: None,
            row_count: 0,
            metric: KernelMetric::default(),
            shifts: None,
            errors: Ptr::empty(),
        }
    }

    /// An array with `each` values for each of the queries.
    fn at<T>(&self, array: Reserved<T>, each: u32) -> PtrMut<T> {
        self.scratch.at(array).take(self.queries as usize * each as usize)
    }
}

/// Queries and centroids, with `stride` components a row.
#[derive(Debug, Clone, Copy)]
pub(super) struct Centroids {
    pub queries: Ptr<f32>,
    pub centroids: Ptr<f32>,
    pub stride: u32,
}

/// The places for results: k distances and k ranks for each query, and a flag that is set for queries without a
/// certificate.
#[derive(Debug, Clone, Copy)]
pub(super) struct Found {
    pub keys: PtrMut<f32>,
    pub ranks: PtrMut<u32>,
    pub flags: PtrMut<u32>,
}

/// Selected candidates: scores and places, best first.
#[derive(Debug, Clone, Copy)]
struct Selected {
    scores: PtrMut<f32>,
    places: PtrMut<u32>,
}

impl Stage {
    /// Plans a stage for `queries` rows of `columns` scores of which `selected` are re-ranked.
    pub fn reserve(
        layout: &mut Layout,
        queries: u32,
        columns: Columns,
        k: u32,
        selected: u32,
        limits: &Limits,
    ) -> Stage {
        Stage::reserve_with(layout, queries, columns, k, [selected; 3], limits)
    }

    /// As [`Self::reserve`], for scores that rows share.
    pub fn reserve_shared(
        layout: &mut Layout,
        queries: u32,
        columns: Columns,
        k: u32,
        selected: u32,
        limits: &Limits,
    ) -> Stage {
        let candidates = selected.saturating_mul(SHARING);
        Stage::reserve_with(layout, queries, columns, k, [selected, selected, candidates], limits)
    }

    fn reserve_with(
        layout: &mut Layout,
        queries: u32,
        columns: Columns,
        k: u32,
        [first, selected, candidates]: [u32; 3],
        limits: &Limits,
    ) -> Stage {
        let slots = |each: u32| (queries as usize).saturating_mul(each as usize);
        let select = SelectPlan::by_table(layout, queries, columns, first, limits);
        let scores = layout.array(slots(first));
        let places = layout.array(slots(first));
        let sorts = candidates <= SORTED && rerank::shared_bytes(candidates) <= limits.shared_bytes;
        let unsorted = (!sorts).then(|| Unsorted {
            keys: layout.array(slots(candidates)),
            ranks: layout.array(slots(candidates)),
            select: SelectPlan::by_table(layout, queries, candidates.into(), k, limits),
        });
        let columns = columns.most;
        Stage { k, columns, first, selected, candidates, select, scores, places, unsorted, appended: None }
    }

    /// As [`Self::reserve`], for a stage that first selects from rows of scores and then appends candidates to the
    /// selected ones.
    pub fn reserve_appended(
        layout: &mut Layout,
        queries: u32,
        columns: Columns,
        k: u32,
        selected: u32,
        limits: &Limits,
    ) -> Stage {
        let first = selected.saturating_add(BEYOND.max(selected / BEYOND_SHARE)).min(columns.most);
        let stage = Stage::reserve_with(layout, queries, columns, k, [first, selected, selected], limits);
        let capacity = (first + ROOM.max(selected.saturating_mul(ROOM_SHARE))).next_multiple_of(32);
        let (list, best) = (queries as usize * capacity as usize, queries as usize * selected as usize);
        let appended = Appended {
            capacity,
            scores: layout.array(list),
            places: layout.array(list),
            thresholds: layout.array(queries as usize),
            select: SelectPlan::by_table(layout, queries, capacity.into(), selected, limits),
            best_scores: layout.array(best),
            best_places: layout.array(best),
        };
        Stage { appended: Some(appended), ..stage }
    }

    /// Number of candidates for which a list has room, if candidates are appended.
    pub fn capacity(&self) -> Option<u32> {
        self.appended.as_ref().map(|appended| appended.capacity)
    }

    /// Selects from the rows of scores, and starts the lists of candidates with the selected ones. `counts` receives
    /// the number of candidates of each query. Returns `None` if this stage does not append.
    ///
    /// # Safety
    /// As [`Self::run`]; `counts` has one word for each query.
    pub unsafe fn begin_lists(&self, from: Candidates<'_>, counts: PtrMut<u32>) -> Result<Option<CandidateLists>> {
        let Some(lists) = self.lists(from, counts) else { return Ok(None) };
        // SAFETY: as the caller promises; the selection writes the first entries of the lists.
        unsafe {
            let Selected { scores, places } = self.select(from)?;
            let launch = BeginCandidates {
                query_count: from.queries,
                selected: self.first,
                least: self.selected,
                scores: scores.into(),
                places: places.into(),
                capacity: lists.capacity,
                list_scores: lists.scores,
                list_places: lists.places,
                counts: lists.counts,
                thresholds: lists.thresholds,
            };
            from.on.runtime.launch(from.on.stream, &BeginCandidates::KERNEL, launch.config(), launch)?;
        }
        Ok(Some(lists))
    }

    /// The lists of candidates, if this stage appends. `counts` has the number of candidates of each query.
    pub fn lists(&self, from: Candidates<'_>, counts: PtrMut<u32>) -> Option<CandidateLists> {
        self.appended.as_ref().map(|appended| CandidateLists {
            capacity: appended.capacity,
            scores: from.at(appended.scores, appended.capacity),
            places: from.at(appended.places, appended.capacity),
            counts,
            thresholds: from.at(appended.thresholds, 1),
        })
    }

    /// Selects from the rows of scores into the stage's scratch.
    ///
    /// # Safety
    /// As [`Self::run`].
    unsafe fn select(&self, from: Candidates<'_>) -> Result<Selected> {
        let to = Selected { scores: from.at(self.scores, self.first), places: from.at(self.places, self.first) };
        // SAFETY: as the caller promises; the stage reserved the places.
        unsafe { self.best(from, Best::Smallest, to.scores, to.places)? };
        Ok(to)
    }

    /// The arguments of the selection from the rows of scores.
    fn selection(&self, from: Candidates<'_>, to: Selected) -> Select<f32> {
        Select {
            keys: from.scores,
            ids: None,
            row_stride: from.row_stride,
            starts: from.row_starts,
            lengths: None,
            columns: self.columns,
            rows: from.queries,
            k: self.first,
            best: Best::Smallest,
            out_keys: to.scores,
            out_ids: to.places,
        }
    }

    /// Finds the best of the lists of candidates that [`Self::begin_lists`] started and a scan filled.
    ///
    /// # Safety
    /// As [`Self::run`].
    pub unsafe fn end_lists(
        &self,
        from: Candidates<'_>,
        lists: CandidateLists,
        of: (&Stored, Rerank),
        to: Found,
    ) -> Result<()> {
        let Some(appended) = &self.appended else { return Ok(()) };
        let best = Selected {
            scores: from.at(appended.best_scores, self.selected),
            places: from.at(appended.best_places, self.selected),
        };
        let what = Select {
            keys: lists.scores.into(),
            ids: lists.places.into(),
            row_stride: u64::from(lists.capacity),
            starts: None,
            lengths: lists.counts.into(),
            columns: lists.capacity,
            k: self.selected,
            ..self.selection(from, best)
        };
        // SAFETY: as the caller promises; the scan filled the lists before.
        unsafe {
            select(from.on.runtime, from.on.stream, &what, &appended.select, from.scratch)?;
            self.finish(from, best, of, to)
        }
    }

    /// Selects the k `best` of each row of scores, for a stage that selects no more than k. They need no proof if
    /// scores are distances.
    ///
    /// # Safety
    /// As [`Self::run`]; there is room for k scores and k places of each query.
    pub unsafe fn best(
        &self,
        from: Candidates<'_>,
        best: Best,
        scores: PtrMut<f32>,
        places: PtrMut<u32>,
    ) -> Result<()> {
        let what = Select { best, ..self.selection(from, Selected { scores, places }) };
        // SAFETY: as the caller promises.
        unsafe { select(from.on.runtime, from.on.stream, &what, &self.select, from.scratch) }
    }

    /// Finds the k nearest centroids of each query, in no particular order. Scores alone decide for most centroids.
    /// Only centroids near the k-th are compared exactly.
    ///
    /// # Safety
    /// As [`Self::run`].
    pub unsafe fn settle(
        &self,
        from: Candidates<'_>,
        vectors: Centroids,
        probed_lists: PtrMut<u32>,
        flags: PtrMut<u32>,
    ) -> Result<()> {
        // SAFETY: as the caller promises; the selection writes what the kernel reads.
        unsafe {
            let selected = self.select(from)?;
            let launch = SettleProbes {
                query_count: from.queries,
                queries: vectors.queries,
                centroids: vectors.centroids,
                stride: vectors.stride,
                places: selected.places.into(),
                certificate: self.certificate(&from, selected),
                probes: self.k,
                metric: from.metric,
                probed_lists,
                flags,
            };
            from.on.runtime.launch(from.on.stream, &SettleProbes::KERNEL, launch.config(), launch)
        }
    }

    /// Finds the k nearest centroids of the queries for which [`Self::settle`] has set a flag, in no particular order.
    ///
    /// # Safety
    /// As [`Self::settle`], which precedes this in the stream with the same arguments.
    pub unsafe fn rescan_probes(
        &self,
        from: Candidates<'_>,
        vectors: Centroids,
        probed_lists: PtrMut<u32>,
        flags: PtrMut<u32>,
    ) -> Result<()> {
        let launch = RescanProbes {
            query_count: from.queries,
            queries: vectors.queries,
            centroids: vectors.centroids,
            stride: vectors.stride,
            row_count: from.row_count,
            metric: from.metric,
            scores: from.scores,
            row_stride: from.row_stride,
            best_scores: from.at(self.scores, self.selected).into(),
            selected: self.selected,
            errors: from.errors,
            probes: self.k,
            flags: flags.into(),
            probed_lists,
        };
        let config = launch.config(from.on.runtime.limits().multiprocessors);
        // SAFETY: as the caller promises; the selection of `settle` wrote the selected scores.
        unsafe { from.on.runtime.launch(from.on.stream, &RescanProbes::KERNEL, config, launch) }
    }

    fn certificate(&self, from: &Candidates<'_>, selected: Selected) -> Certificate {
        let &Candidates { live_rows, row_count, shifts, errors, .. } = from;
        let scores = selected.scores.into();
        Certificate { selected: self.selected, scores, live_rows, row_count, shifts, errors }
    }

    /// Launches all steps of the stage. `of` has the stored vectors of the candidates, and the queries that are
    /// compared with them: the fields from `queries` to `stored`.
    ///
    /// # Safety
    /// The scratch of `from` has the arrays that the stage reserved. The candidates, `of` and `to` cover their queries
    /// until the stream has finished.
    pub unsafe fn run(&self, from: Candidates<'_>, of: (&Stored, Rerank), to: Found) -> Result<()> {
        // SAFETY: as the caller promises; the selection writes what the re-ranking reads.
        unsafe {
            let selected = self.select(from)?;
            self.finish(from, selected, of, to)
        }
    }

    /// Re-ranks the selected candidates.
    ///
    /// # Safety
    /// As [`Self::run`].
    unsafe fn finish(&self, from: Candidates<'_>, selected: Selected, of: (&Stored, Rerank), to: Found) -> Result<()> {
        let OnStream { runtime, stream } = from.on;
        // SAFETY: as the caller promises.
        unsafe {
            let Some(unsorted) = &self.unsorted else {
                return self.rerank(from, selected, of, true, to);
            };
            let all = Found {
                keys: from.at(unsorted.keys, self.candidates),
                ranks: from.at(unsorted.ranks, self.candidates),
                flags: to.flags,
            };
            runtime.fill(stream, to.flags, 0)?;
            self.rerank(from, selected, of, false, all)?;
            let what = Select {
                keys: all.keys.into(),
                ids: all.ranks.into(),
                row_stride: u64::from(self.candidates),
                starts: None,
                lengths: None,
                columns: self.candidates,
                rows: from.queries,
                k: self.k,
                best: Best::Smallest,
                out_keys: to.keys,
                out_ids: to.ranks,
            };
            select(runtime, stream, &what, &unsorted.select, from.scratch)?;
            let launch = Certify {
                query_count: from.queries,
                k: self.k,
                metric: from.metric,
                certificate: self.certificate(&from, selected),
                keys: to.keys,
                ranks: to.ranks.into(),
                flags: to.flags,
            };
            runtime.launch(stream, &Certify::KERNEL, launch.config(), launch)
        }
    }

    /// # Safety
    /// As [`Self::run`].
    unsafe fn rerank(
        &self,
        from: Candidates<'_>,
        selected: Selected,
        of: (&Stored, Rerank),
        sort: bool,
        to: Found,
    ) -> Result<()> {
        let (OnStream { runtime, stream }, queries, (stored, of)) = (from.on, from.queries, of);
        let launch = Rerank {
            query_count: queries,
            places: selected.places.into(),
            certificate: self.certificate(&from, selected),
            lists: from.lists,
            metric: from.metric,
            sort: u32::from(sort),
            k: self.k,
            out_keys: to.keys,
            out_ranks: to.ranks,
            flags: Some(to.flags),
            ..of
        };
        let few = sort && self.candidates <= rerank::WARP_SELECTED;
        // For codes of a product quantizer, a block of four warps finishes sooner, and a single warp does less work in
        // total. With one query and 16 bytes a code a single warp took 33 µs, a third of all kernels (H200,
        // 2026-11-22). Vectors are read so fast that combining the results of four warps costs more: one query took 68
        // to 69 µs in all instead of 60 to 67.
        let by_warps = few && (!stored.costly || queries > runtime.limits().multiprocessors * CODE_BLOCKS);
        let per_query = if by_warps { PerQuery::Warp } else { PerQuery::Block };
        // SAFETY: as the caller promises.
        unsafe { runtime.launch(stream, stored.rerank.kernel(per_query), launch.config(per_query), launch) }
    }
}
