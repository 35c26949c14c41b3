//! One stage of a search: from approximate scores of a row of candidates to the exact best k, proved.
//!
//! The coarse quantiser (candidates are the centroids, the result is the probes) and the search of the lists are the same three steps: select
//! k' > k by score, re-rank by canonical distance, certify (`warpann_kernels::ivf::rerank`).

use std::ptr::null;

use warpann_kernels::ivf::pairs::BeginCandidates;
use warpann_kernels::ivf::rerank::{self, Certify, PerQuery, Rerank, RowsKey, SettleProbes};

use super::image::Codes;
use crate::device::limits::Limits;
use crate::device::runtime::{Runtime, Stream};
use crate::device::scratch::Layout;
use crate::select::Best;
use crate::select::gpu::{Columns, Plan, Select, select};
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

/// Scratch of a stage, relative to its start.
#[derive(Debug)]
pub(super) struct Stage {
    pub k: u32,
    columns: u32,
    selected: u32,
    select: Plan,
    scores: usize,
    places: usize,
    /// Where the entries are ordered by k-selection: distances, ranks, and the plan.
    unsorted: Option<(usize, usize, Plan)>,
    /// Where candidates are appended to what was selected.
    appended: Option<Appended>,
}

/// Lists of candidates: scratch.
#[derive(Debug)]
struct Appended {
    capacity: u32,
    scores: usize,
    places: usize,
    limits: usize,
    select: Plan,
    best_scores: usize,
    best_places: usize,
}

/// Lists of candidates as the scan fills them: all in device memory.
#[derive(Debug, Clone, Copy)]
pub(super) struct CandidateLists {
    pub capacity: u32,
    pub scores: *mut f32,
    pub places: *mut u32,
    pub counts: *mut u32,
    pub limits: *mut f32,
}

/// What a stage goes over. The default has null pointers and zeros: one list, all of whose rows may be found.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Candidates {
    /// Scores: row q starts at q · `row_stride`, or at `row_starts[q]`.
    pub scores: *const f32,
    pub row_stride: u64,
    pub row_starts: *const u64,
    /// The fields of [`Rerank`] of these names.
    pub nprobe: u32,
    pub probes: *const u32,
    pub offsets: *const u32,
    pub list_starts: *const u32,
    pub lengths: *const u32,
    pub ranks: *const u32,
    pub filter: *const u32,
    pub live_rows: *const u32,
    pub row_count: u32,
    pub metric: u32,
    pub shifts: *const f32,
    pub errors: *const f32,
}

/// The vectors that candidates stand for, and the queries that are compared with them.
#[derive(Debug, Clone, Copy)]
pub(super) enum Vectors {
    Rows { element: ElementType, queries: *const u8, rows: *const u8, stride: u32 },
    Codes { queries: *const f32, codes: Codes, centroids: *const f32, dim: u32 },
}

/// Where results go: k distances and ranks a query, and a flag for each query without certificate (null: nobody asks).
#[derive(Debug, Clone, Copy)]
pub(super) struct Found {
    pub keys: *mut f32,
    pub ranks: *mut u32,
    pub flags: *mut u32,
}

impl Appended {
    fn lists(&self, start: *mut u8, counts: *mut u32) -> CandidateLists {
        CandidateLists {
            capacity: self.capacity,
            scores: start.wrapping_add(self.scores).cast(),
            places: start.wrapping_add(self.places).cast(),
            counts,
            limits: start.wrapping_add(self.limits).cast(),
        }
    }
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
        let select = Plan::by_table(layout, queries, columns, selected, limits);
        let scores = layout.array::<f32>(slots);
        let places = layout.array::<u32>(slots);
        let sorts = selected <= SORTED && rerank::shared_bytes(selected) <= limits.shared_bytes;
        let unsorted = (!sorts).then(|| {
            let (keys, ranks) = (layout.array::<f32>(slots), layout.array::<u32>(slots));
            (keys, ranks, Plan::by_table(layout, queries, selected.into(), k, limits))
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
            scores: layout.array::<f32>(list),
            places: layout.array::<u32>(list),
            limits: layout.array::<f32>(queries as usize),
            select: Plan::by_table(layout, queries, capacity.into(), selected, limits),
            best_scores: layout.array::<f32>(best),
            best_places: layout.array::<u32>(best),
        };
        Stage { appended: Some(appended), ..stage }
    }

    /// Selects from the rows of scores, and begins the lists of candidates with what was selected; `counts` counts them. `None`:
    /// nothing is appended in this stage.
    ///
    /// # Safety
    /// As [`Self::run`]; `counts` has a word a query.
    pub unsafe fn begin_lists(
        &self,
        runtime: &Runtime,
        stream: &Stream,
        start: *mut u8,
        queries: u32,
        from: &Candidates,
        counts: *mut u32,
    ) -> Result<Option<CandidateLists>> {
        let Some(appended) = &self.appended else { return Ok(None) };
        let lists = appended.lists(start, counts);
        let (scores, places) =
            (start.wrapping_add(self.scores).cast::<f32>(), start.wrapping_add(self.places).cast::<u32>());
        let launch = BeginCandidates {
            query_count: queries,
            selected: self.selected,
            scores,
            places,
            capacity: lists.capacity,
            list_scores: lists.scores,
            list_places: lists.places,
            counts: lists.counts,
            limits: lists.limits,
        };
        // SAFETY: as the caller promises; the selection writes what the lists begin with.
        unsafe {
            select(runtime, stream, &self.selection(queries, from, scores, places), &self.select, start)?;
            runtime.launch(stream, &BeginCandidates::KERNEL, launch.config(), launch)?;
        }
        Ok(Some(lists))
    }

    /// Candidates that a list has room for, if candidates are appended.
    pub fn capacity(&self) -> Option<u32> {
        self.appended.as_ref().map(|appended| appended.capacity)
    }

    /// The selection from the rows of scores.
    fn selection(&self, queries: u32, from: &Candidates, scores: *mut f32, places: *mut u32) -> Select<f32> {
        Select {
            keys: from.scores,
            ids: null(),
            row_stride: from.row_stride,
            starts: from.row_starts,
            lengths: null(),
            columns: self.columns,
            rows: queries,
            k: self.selected,
            best: Best::Smallest,
            out_keys: scores,
            out_ids: places,
        }
    }

    /// The best of the lists of candidates: from the scores appended to [`Self::begin_lists`] to the result.
    ///
    /// # Safety
    /// As [`Self::run`]; `counts` are those of the lists.
    #[expect(clippy::too_many_arguments, reason = "where, what, and where to")]
    pub unsafe fn end_lists(
        &self,
        runtime: &Runtime,
        stream: &Stream,
        start: *mut u8,
        queries: u32,
        counts: *mut u32,
        from: &Candidates,
        vectors: &Vectors,
        to: Found,
    ) -> Result<()> {
        let Some(appended) = &self.appended else { return Ok(()) };
        let lists = appended.lists(start, counts);
        let (scores, places) = (
            start.wrapping_add(appended.best_scores).cast::<f32>(),
            start.wrapping_add(appended.best_places).cast::<u32>(),
        );
        let what = Select {
            keys: lists.scores,
            ids: lists.places,
            row_stride: u64::from(lists.capacity),
            starts: null(),
            lengths: lists.counts,
            columns: lists.capacity,
            ..self.selection(queries, from, scores, places)
        };
        // SAFETY: as the caller promises; the lists were filled before.
        unsafe {
            select(runtime, stream, &what, &appended.select, start)?;
            self.finish(runtime, stream, start, queries, (scores, places), from, vectors, to)
        }
    }

    /// Finds the k nearest centroids of each query, in no particular order, for [`Vectors::Rows`] of f32: most are sure by their
    /// scores, and only those near the k-th are compared exactly.
    ///
    /// # Safety
    /// As [`Self::run`].
    #[expect(clippy::too_many_arguments, reason = "where, what, and where to")]
    pub unsafe fn settle(
        &self,
        runtime: &Runtime,
        stream: &Stream,
        start: *mut u8,
        queries: u32,
        from: &Candidates,
        (vectors, centroids, stride): (*const f32, *const f32, u32),
        (probes, flags): (*mut u32, *mut u32),
    ) -> Result<()> {
        let scores = start.wrapping_add(self.scores).cast::<f32>();
        let places = start.wrapping_add(self.places).cast::<u32>();
        let launch = SettleProbes {
            query_count: queries,
            queries: vectors,
            centroids,
            stride,
            places,
            scores,
            selected: self.selected,
            nprobe: self.k,
            row_count: from.row_count,
            metric: from.metric,
            shifts: from.shifts,
            errors: from.errors,
            probes,
            flags,
        };
        // SAFETY: as the caller promises; the selection writes what the kernel reads.
        unsafe {
            select(runtime, stream, &self.selection(queries, from, scores, places), &self.select, start)?;
            runtime.launch(stream, &SettleProbes::KERNEL, launch.config(), launch)
        }
    }

    /// Launches the stage.
    ///
    /// # Safety
    /// `start` has what the plan reserved; `from`, `vectors` and `to` cover `queries` queries, until the stream has done the work.
    #[expect(clippy::too_many_arguments, reason = "where, what, and where to")]
    pub unsafe fn run(
        &self,
        runtime: &Runtime,
        stream: &Stream,
        start: *mut u8,
        queries: u32,
        from: &Candidates,
        vectors: &Vectors,
        to: Found,
    ) -> Result<()> {
        let scores = start.wrapping_add(self.scores).cast::<f32>();
        let places = start.wrapping_add(self.places).cast::<u32>();
        // SAFETY: as the caller promises; the selection writes what the re-ranking reads.
        unsafe {
            select(runtime, stream, &self.selection(queries, from, scores, places), &self.select, start)?;
            self.finish(runtime, stream, start, queries, (scores, places), from, vectors, to)
        }
    }

    /// Re-ranks what was selected.
    ///
    /// # Safety
    /// As [`Self::run`].
    #[expect(clippy::too_many_arguments, reason = "where, what, and where to")]
    unsafe fn finish(
        &self,
        runtime: &Runtime,
        stream: &Stream,
        start: *mut u8,
        queries: u32,
        (scores, places): (*mut f32, *mut u32),
        from: &Candidates,
        vectors: &Vectors,
        to: Found,
    ) -> Result<()> {
        // SAFETY: as the caller promises.
        unsafe {
            let Some((keys, ranks, plan)) = &self.unsorted else {
                return self.rerank(runtime, stream, queries, from, vectors, places, scores, true, to);
            };
            let unsorted = Found {
                keys: start.wrapping_add(*keys).cast(),
                ranks: start.wrapping_add(*ranks).cast(),
                flags: to.flags,
            };
            runtime.fill(stream, to.flags.cast(), 0, 4 * queries as usize)?;
            self.rerank(runtime, stream, queries, from, vectors, places, scores, false, unsorted)?;
            let what = Select {
                keys: unsorted.keys,
                ids: unsorted.ranks,
                row_stride: u64::from(self.selected),
                starts: null(),
                columns: self.selected,
                k: self.k,
                ..self.selection(queries, from, to.keys, to.ranks)
            };
            select(runtime, stream, &what, plan, start)?;
            let launch = Certify {
                query_count: queries,
                k: self.k,
                metric: from.metric,
                selected: self.selected,
                scores,
                live_rows: from.live_rows,
                row_count: from.row_count,
                shifts: from.shifts,
                errors: from.errors,
                keys: to.keys,
                ranks: to.ranks,
                flags: to.flags,
            };
            runtime.launch(stream, &Certify::KERNEL, launch.config(), launch)
        }
    }

    /// # Safety
    /// As [`Self::run`].
    #[expect(clippy::too_many_arguments, reason = "where, what, and where to")]
    unsafe fn rerank(
        &self,
        runtime: &Runtime,
        stream: &Stream,
        queries: u32,
        from: &Candidates,
        vectors: &Vectors,
        places: *const u32,
        scores: *const f32,
        sort: bool,
        to: Found,
    ) -> Result<()> {
        let launch = Rerank {
            query_count: queries,
            places,
            scores,
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
            flags: to.flags,
            ..Rerank::default()
        };
        let few = sort && self.selected <= rerank::WARP_SELECTED;
        let (rows, by_warps, launch) = match *vectors {
            Vectors::Rows { element, queries, rows, stride } => {
                (RowsKey::Stored(element.key()), few, Rerank { queries, rows, stride, ..launch })
            }
            // A block of four warps is sooner done with codes, and a warp less work: of one query with 16 bytes a code a single warp took
            // 33 µs, a third of all kernels (H200, 2026-11-22). Vectors are read so fast that four warps cost more to bring together: one
            // query took 68 to 69 µs in all for 60 to 67.
            Vectors::Codes { queries: x, codes, centroids, dim } => {
                let launch = Rerank {
                    queries: x.cast(),
                    rows: codes.codes,
                    stride: dim.next_multiple_of(4),
                    code_bytes: codes.code_bytes,
                    bits: codes.bits,
                    width: codes.width,
                    dim,
                    codebooks: codes.codebooks,
                    centroids,
                    ..launch
                };
                (RowsKey::Codes, few && queries > runtime.limits().multiprocessors * CODE_BLOCKS, launch)
            }
        };
        let per_query = if by_warps { PerQuery::Warp } else { PerQuery::Block };
        // SAFETY: as the caller promises.
        unsafe { runtime.launch(stream, Rerank::kernel((rows, per_query)), launch.config(per_query), launch) }
    }
}
