//! One stage of a search: from approximate scores of a row of candidates to the exact best k, proved.
//!
//! The coarse quantiser (candidates are the centroids, the result is the probes) and the search of the lists are the same three steps: select
//! k' > k by score, re-rank by canonical distance, certify (`warpann_kernels::ivf::rerank`).

use cuda_std::{Ptr, PtrMut};
use warpann_kernels::ivf::pairs::BeginCandidates;
use warpann_kernels::ivf::rerank::{self, Certify, PerQuery, Rerank, SettleProbes};
use warpann_kernels::product::metric::Metric as KernelMetric;

use super::image::RerankKernels;
use crate::device::limits::Limits;
use crate::device::queue::OnStream;
use crate::device::scratch::{Layout, Reserved, Scratch};
use crate::select::Best;
use crate::select::gpu::{Columns, Select, SelectPlan, select};
use crate::{ElementType, Result};

/// Candidates selected beyond k, at least, and as a share of k: the error bound spans two or three neighbours of the k-th on
/// data of a few dozen dimensions, and more the larger k is.
const MARGIN: u64 = 8;
const MARGIN_SHARE: u64 = 8;
/// Each further attempt for queries without a certificate selects so many times more.
const GROWTH: u64 = 8;
/// Room for appended candidates, at least, and relative to those selected.
const ROOM: u32 = 1024;
const ROOM_SHARE: u32 = 4;
/// Blocks of the kernel that re-ranks codes, of which a multiprocessor has room for so many.
const CODE_BLOCKS: u32 = 3;
/// Candidates that one block sorts in shared memory, at most: more are ordered by k-selection.
const SORTED: u32 = 4096;

/// Candidates to select for k results, of at most `columns`, in attempt number `attempt`, from 0.
pub(super) fn selected(k: u32, columns: u32, attempt: u32) -> u32 {
    let k = u64::from(k);
    let wanted = (k + MARGIN.max(k / MARGIN_SHARE)).saturating_mul(GROWTH.saturating_pow(attempt));
    wanted.min(u64::from(columns)).max(1) as u32
}

/// Centroids selected beyond the probes in the first attempt: a share of the probes, and at most half of those that it compares exactly. Of
/// 10,000 queries of the standard set with 1,024 of 4,096 lists, 1.7 % wanted more than 24; with 64 of them three wanted more than 8, and to
/// search those again took 0.3 ms of 2.8.
const PROBE_MARGIN_SHARE: u32 = 4;
const PROBE_MARGIN: u32 = rerank::SETTLED / 2;

/// Centroids to select for the `probes` nearest of `lists`: in the first attempt, which compares few of them exactly
/// ([`Stage::settle`]), some more than that; then as [`selected`].
pub(super) fn selected_probes(probes: u32, lists: u32, attempt: u32) -> u32 {
    if attempt > 0 {
        return selected(probes, lists, attempt);
    }
    let margin = (probes / PROBE_MARGIN_SHARE).clamp(MARGIN as u32, PROBE_MARGIN);
    probes.saturating_add(margin).min(lists).max(1)
}

/// Scratch of a stage.
#[derive(Debug)]
pub(super) struct Stage {
    pub k: u32,
    columns: u32,
    selected: u32,
    select: SelectPlan,
    scores: Reserved<f32>,
    places: Reserved<u32>,
    /// Where k-selection orders the candidates: no block can sort as many.
    unsorted: Option<Unsorted>,
    /// Where candidates are appended to what was selected.
    appended: Option<Appended>,
}

/// Candidates of all queries before k-selection orders them: scratch.
#[derive(Debug)]
struct Unsorted {
    keys: Reserved<f32>,
    ranks: Reserved<u32>,
    select: SelectPlan,
}

/// Lists of candidates: scratch.
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

/// A launch of a stage: the stream, the memory that the stage reserved, and the candidates of the batch's queries.
#[derive(Clone, Copy)]
pub(super) struct StageBatch<'a> {
    pub on: OnStream<'a>,
    pub scratch: Scratch,
    /// At most as many as the stage was planned for.
    pub queries: u32,
    pub from: &'a Candidates,
}

impl StageBatch<'_> {
    /// `each` values for each of the batch's queries.
    fn at<T>(&self, array: Reserved<T>, each: u32) -> PtrMut<T> {
        self.scratch.at(array).take(self.queries as usize * each as usize)
    }
}

/// Lists of candidates as the scan fills them.
#[derive(Debug, Clone, Copy)]
pub(super) struct CandidateLists {
    /// Places of a query's list.
    pub capacity: u32,
    pub scores: PtrMut<f32>,
    pub places: PtrMut<u32>,
    /// Candidates of each query, also those that found no place.
    pub counts: PtrMut<u32>,
    /// Candidates with a higher score than this are not appended; one for each query.
    pub thresholds: PtrMut<f32>,
}

/// Scores that a stage selects from, and what the proof of its results needs. The default is one list, all of whose rows may be found.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Candidates {
    /// Row q starts at q · `row_stride`, or at `row_starts[q]`.
    pub scores: Ptr<f32>,
    pub row_stride: u64,
    pub row_starts: Option<Ptr<u64>>,
    /// The fields of [`Rerank`] of these names.
    pub nprobe: u32,
    pub probes: Option<Ptr<u32>>,
    pub offsets: Ptr<u32>,
    pub list_starts: Ptr<u32>,
    pub lengths: Ptr<u32>,
    pub ranks: Option<Ptr<u32>>,
    pub filter: Option<Ptr<u32>>,
    pub live_rows: Option<Ptr<u32>>,
    pub row_count: u32,
    pub metric: KernelMetric,
    pub shifts: Option<Ptr<f32>>,
    pub errors: Ptr<f32>,
}

/// The vectors that candidates stand for, and the queries that are compared with them.
#[derive(Debug, Clone, Copy)]
pub(super) struct Vectors {
    pub rerank: RerankKernels,
    /// [`Stored::costly`](super::image::Stored::costly).
    pub costly: bool,
    /// The fields from `queries` to `centroids`; the others are not looked at.
    pub of: Rerank,
}

/// Queries and centroids of `stride` components a row.
#[derive(Debug, Clone, Copy)]
pub(super) struct Centroids {
    pub queries: Ptr<f32>,
    pub centroids: Ptr<f32>,
    pub stride: u32,
}

impl From<Centroids> for Vectors {
    fn from(Centroids { queries, centroids, stride }: Centroids) -> Vectors {
        let of = Rerank { queries: queries.as_bytes(), rows: centroids.as_bytes(), stride, ..Rerank::default() };
        Vectors { rerank: RerankKernels::Stored(ElementType::F32.key()), costly: false, of }
    }
}

/// Where results go: k distances and ranks a query, and a flag for each query without certificate.
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
        let slots = (queries as usize).saturating_mul(selected as usize);
        let select = SelectPlan::by_table(layout, queries, columns, selected, limits);
        let scores = layout.array(slots);
        let places = layout.array(slots);
        let sorts = selected <= SORTED && rerank::shared_bytes(selected) <= limits.shared_bytes;
        let unsorted = (!sorts).then(|| Unsorted {
            keys: layout.array(slots),
            ranks: layout.array(slots),
            select: SelectPlan::by_table(layout, queries, selected.into(), k, limits),
        });
        Stage { k, columns: columns.most, selected, select, scores, places, unsorted, appended: None }
    }

    /// As [`Self::reserve`], for rows that are selected from first, and candidates that are appended to the selected.
    pub fn reserve_appended(
        layout: &mut Layout,
        queries: u32,
        columns: Columns,
        k: u32,
        selected: u32,
        limits: &Limits,
    ) -> Stage {
        let stage = Stage::reserve(layout, queries, columns, k, selected, limits);
        let capacity = (selected + ROOM.max(selected.saturating_mul(ROOM_SHARE))).next_multiple_of(32);
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

    /// Candidates that a list has room for, if candidates are appended.
    pub fn capacity(&self) -> Option<u32> {
        self.appended.as_ref().map(|appended| appended.capacity)
    }

    /// Selects from the rows of scores, and begins the lists of candidates with the selected ones. `counts` receives the number of candidates
    /// of each query. `None`: this stage appends nothing.
    ///
    /// # Safety
    /// As [`Self::run`]; `counts` has a word a query.
    pub unsafe fn begin_lists(&self, batch: StageBatch<'_>, counts: PtrMut<u32>) -> Result<Option<CandidateLists>> {
        let Some(appended) = &self.appended else { return Ok(None) };
        let lists = CandidateLists {
            capacity: appended.capacity,
            scores: batch.at(appended.scores, appended.capacity),
            places: batch.at(appended.places, appended.capacity),
            counts,
            thresholds: batch.at(appended.thresholds, 1),
        };
        // SAFETY: as the caller promises; the selection writes what the lists begin with.
        unsafe {
            let Selected { scores, places } = self.select(batch)?;
            let launch = BeginCandidates {
                query_count: batch.queries,
                selected: self.selected,
                scores: scores.into(),
                places: places.into(),
                capacity: lists.capacity,
                list_scores: lists.scores,
                list_places: lists.places,
                counts: lists.counts,
                limits: lists.thresholds,
            };
            batch.on.runtime.launch(batch.on.stream, &BeginCandidates::KERNEL, launch.config(), launch)?;
        }
        Ok(Some(lists))
    }

    /// Selects from the rows of scores.
    ///
    /// # Safety
    /// As [`Self::run`].
    unsafe fn select(&self, batch: StageBatch<'_>) -> Result<Selected> {
        let to =
            Selected { scores: batch.at(self.scores, self.selected), places: batch.at(self.places, self.selected) };
        let what = self.selection(batch, to);
        // SAFETY: as the caller promises.
        unsafe { select(batch.on.runtime, batch.on.stream, &what, &self.select, batch.scratch)? };
        Ok(to)
    }

    /// The selection from the rows of scores.
    fn selection(&self, batch: StageBatch<'_>, to: Selected) -> Select<f32> {
        Select {
            keys: batch.from.scores,
            ids: None,
            row_stride: batch.from.row_stride,
            starts: batch.from.row_starts,
            lengths: None,
            columns: self.columns,
            rows: batch.queries,
            k: self.selected,
            best: Best::Smallest,
            out_keys: to.scores,
            out_ids: to.places,
        }
    }

    /// Finds the best of the lists of candidates that [`Self::begin_lists`] began and a scan filled.
    ///
    /// # Safety
    /// As [`Self::run`].
    pub unsafe fn end_lists(
        &self,
        batch: StageBatch<'_>,
        lists: CandidateLists,
        vectors: &Vectors,
        to: Found,
    ) -> Result<()> {
        let Some(appended) = &self.appended else { return Ok(()) };
        let best = Selected {
            scores: batch.at(appended.best_scores, self.selected),
            places: batch.at(appended.best_places, self.selected),
        };
        let what = Select {
            keys: lists.scores.into(),
            ids: lists.places.into(),
            row_stride: u64::from(lists.capacity),
            starts: None,
            lengths: lists.counts.into(),
            columns: lists.capacity,
            ..self.selection(batch, best)
        };
        // SAFETY: as the caller promises; the lists were filled before.
        unsafe {
            select(batch.on.runtime, batch.on.stream, &what, &appended.select, batch.scratch)?;
            self.finish(batch, best, vectors, to)
        }
    }

    /// Finds the k nearest centroids of each query, in no particular order. Scores alone decide about most of them. Only those near the k-th
    /// are compared exactly.
    ///
    /// # Safety
    /// As [`Self::run`].
    pub unsafe fn settle(
        &self,
        batch: StageBatch<'_>,
        vectors: Centroids,
        probes: PtrMut<u32>,
        flags: PtrMut<u32>,
    ) -> Result<()> {
        // SAFETY: as the caller promises; the selection writes what the kernel reads.
        unsafe {
            let Selected { scores, places } = self.select(batch)?;
            let launch = SettleProbes {
                query_count: batch.queries,
                queries: vectors.queries,
                centroids: vectors.centroids,
                stride: vectors.stride,
                places: places.into(),
                scores: scores.into(),
                selected: self.selected,
                nprobe: self.k,
                row_count: batch.from.row_count,
                metric: batch.from.metric,
                shifts: batch.from.shifts,
                errors: batch.from.errors,
                probes,
                flags,
            };
            batch.on.runtime.launch(batch.on.stream, &SettleProbes::KERNEL, launch.config(), launch)
        }
    }

    /// Launches the stage.
    ///
    /// # Safety
    /// The scratch of `batch` has what the stage reserved. Its candidates, `vectors` and `to` cover its queries until the stream has done the
    /// work.
    pub unsafe fn run(&self, batch: StageBatch<'_>, vectors: &Vectors, to: Found) -> Result<()> {
        // SAFETY: as the caller promises; the selection writes what the re-ranking reads.
        unsafe {
            let selected = self.select(batch)?;
            self.finish(batch, selected, vectors, to)
        }
    }

    /// Re-ranks what was selected.
    ///
    /// # Safety
    /// As [`Self::run`].
    unsafe fn finish(&self, batch: StageBatch<'_>, selected: Selected, vectors: &Vectors, to: Found) -> Result<()> {
        let StageBatch { on: OnStream { runtime, stream }, from, .. } = batch;
        // SAFETY: as the caller promises.
        unsafe {
            let Some(unsorted) = &self.unsorted else {
                return self.rerank(batch, selected, vectors, true, to);
            };
            let all = Found {
                keys: batch.at(unsorted.keys, self.selected),
                ranks: batch.at(unsorted.ranks, self.selected),
                flags: to.flags,
            };
            runtime.fill(stream, to.flags, 0)?;
            self.rerank(batch, selected, vectors, false, all)?;
            let what = Select {
                keys: all.keys.into(),
                ids: all.ranks.into(),
                row_stride: u64::from(self.selected),
                starts: None,
                lengths: None,
                columns: self.selected,
                rows: batch.queries,
                k: self.k,
                best: Best::Smallest,
                out_keys: to.keys,
                out_ids: to.ranks,
            };
            select(runtime, stream, &what, &unsorted.select, batch.scratch)?;
            let launch = Certify {
                query_count: batch.queries,
                k: self.k,
                metric: from.metric,
                selected: self.selected,
                scores: selected.scores.into(),
                live_rows: from.live_rows,
                row_count: from.row_count,
                shifts: from.shifts,
                errors: from.errors,
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
        batch: StageBatch<'_>,
        selected: Selected,
        vectors: &Vectors,
        sort: bool,
        to: Found,
    ) -> Result<()> {
        let StageBatch { on: OnStream { runtime, stream }, queries, from, .. } = batch;
        let launch = Rerank {
            query_count: queries,
            places: selected.places.into(),
            scores: selected.scores.into(),
            selected: self.selected,
            nprobe: from.nprobe,
            probes: from.probes,
            offsets: from.offsets,
            list_starts: from.list_starts,
            lengths: from.lengths,
            ranks: from.ranks,
            filter: from.filter,
            live_rows: from.live_rows,
            row_count: from.row_count,
            metric: from.metric,
            sort: u32::from(sort),
            shifts: from.shifts,
            errors: from.errors,
            k: self.k,
            out_keys: to.keys,
            out_ranks: to.ranks,
            flags: Some(to.flags),
            ..vectors.of
        };
        let few = sort && self.selected <= rerank::WARP_SELECTED;
        // A block of four warps is sooner done with codes of a product quantizer, and a warp less work: of one query with 16 bytes a code a single
        // warp took 33 µs, a third of all kernels (H200, 2026-11-22). Vectors are read so fast that four warps cost more to bring together: one
        // query took 68 to 69 µs in all for 60 to 67.
        let by_warps = few && (!vectors.costly || queries > runtime.limits().multiprocessors * CODE_BLOCKS);
        let per_query = if by_warps { PerQuery::Warp } else { PerQuery::Block };
        // SAFETY: as the caller promises.
        unsafe { runtime.launch(stream, vectors.rerank.kernel(per_query), launch.config(per_query), launch) }
    }
}
