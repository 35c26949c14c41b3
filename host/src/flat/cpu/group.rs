//! One group of queries: its scan of the base, divided among workers, and the canonical distances of the rows that pass the scan.

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::FlatCpu;
use crate::flat::FlatBackend;
use crate::parallel::{Loop, ParallelSlice, owned, turns};
use crate::product::cpu::bound::QueryBound;
use crate::product::cpu::candidates::{Candidates, Judge, Limit};
use crate::product::cpu::collect::Collect;
use crate::product::cpu::exact;
use crate::product::cpu::scan::{self, MAX_PANEL, PANEL_VECS, Sink, Tile};
use crate::product::cpu::{BLOCK, DIRECT_QUERIES, Line, Queries, TILE_BYTES, as_f32, tile_rows};
use crate::simd;
use crate::{Bitset, Element, Metric, Result};

/// Queries scanned together, if there are enough. Past 256 the base's share of the traffic is negligible; below it the base is streamed
/// too often.
const GROUP: std::ops::RangeInclusive<usize> = 256..=512;

/// The division of a search into groups and runs.
#[derive(Debug, Clone, Copy)]
pub(super) struct ScanPlan {
    /// Number of queries scanned together.
    pub(super) group: usize,
    /// Number of tasks that share the base of a group; 1 if the groups alone keep the threads busy.
    pub(super) workers: usize,
    /// Number of rows that a worker takes at a time, a multiple of [`BLOCK`].
    run: usize,
    /// Whether the lanes are along the components (few queries) instead of along the queries.
    pub(super) direct: bool,
}

impl ScanPlan {
    /// A plan for `threads` threads. The collector of a query takes up to `bytes` bytes.
    pub(super) fn new<T: Element>(index: &FlatCpu<T>, queries: usize, bytes: usize, threads: usize) -> Self {
        let rows = index.len();
        let lanes = index.isa.lanes();
        let fit = index.budget / (bytes as u64).saturating_mul(threads as u64);
        let fit = usize::try_from(fit).unwrap_or(usize::MAX).max(1);
        let wanted = queries.div_ceil(4 * threads).clamp(*GROUP.start(), *GROUP.end()).min(fit);
        let groups = queries.div_ceil(wanted);
        let group = queries.div_ceil(groups).next_multiple_of(lanes).min(wanted);
        let groups = queries.div_ceil(group);
        let workers = (4 * threads).div_ceil(groups).min(threads).min(rows.div_ceil(BLOCK)).max(1);
        let run = if workers == 1 { rows } else { (rows / (workers * 8)).min(4096) };
        let run = run.max(1).next_multiple_of(BLOCK);
        Self { group, workers, run, direct: group.min(queries) <= DIRECT_QUERIES }
    }
}

/// A group of queries, packed for the scan.
struct Prepared {
    queries: Queries,
    /// The queries as the scan multiplies them (x' of [`bound`]): panels, or row-major for the direct kernel.
    packed: Vec<Line>,
    panels: Vec<Panel>,
}

/// The queries of one call of the panel kernel.
#[derive(Debug, Clone, Copy)]
struct Panel {
    first: usize,
    queries: usize,
    vecs: usize,
    /// First f32 of the panel in `packed`.
    start: usize,
}

impl Prepared {
    fn new<T: Element>(index: &FlatCpu<T>, queries: &[T], direct: bool) -> Self {
        let (dim, lanes) = (index.dim, index.isa.lanes());
        let count = queries.len() / dim;
        let queries = Queries::new(index.isa, index.metric, dim, queries);
        let mut panels = Vec::new();
        let mut total = 0;
        if direct {
            panels.push(Panel { first: 0, queries: count, vecs: 0, start: 0 });
            total = count * dim;
        } else {
            // Registers are divided evenly: 4 become 2 + 2, not 3 + 1.
            let vecs = count.div_ceil(lanes);
            let parts = vecs.div_ceil(PANEL_VECS);
            let mut first = 0;
            for part in 0..parts {
                let vecs = vecs / parts + usize::from(part < vecs % parts);
                panels.push(Panel { first, queries: (count - first).min(vecs * lanes), vecs, start: total });
                first += vecs * lanes;
                total += (vecs * lanes * dim).next_multiple_of(16);
            }
        }
        let mut packed = vec![Line([0.0; 16]); total.div_ceil(16)];
        let values: &mut [f32] = bytemuck::cast_slice_mut(&mut packed);
        if direct {
            for (query, values) in values[..total].chunks_exact_mut(dim).enumerate() {
                values.iter_mut().zip(queries.factored(query)).for_each(|(value, x)| *value = x);
            }
        } else {
            for panel in &panels {
                let width = panel.vecs * lanes;
                for q in 0..panel.queries {
                    let lane = values[panel.start + q..panel.start + width * dim].iter_mut().step_by(width);
                    lane.zip(queries.factored(panel.first + q)).for_each(|(value, x)| *value = x);
                }
            }
        }
        Self { queries, packed, panels }
    }
}

/// A group of queries, and the rows among which it searches.
pub(super) struct QueryGroup<'a, T: Element> {
    index: &'a FlatCpu<T>,
    plan: &'a ScanPlan,
    prepared: Prepared,
    limits: Vec<Limit>,
    /// One bit for each row, set if a search may return the row; `None` if all are set.
    among: Option<&'a Bitset>,
}

impl<'a, T: Element> QueryGroup<'a, T> {
    /// Prepares the group of all `queries`.
    pub(super) fn new(
        index: &'a FlatCpu<T>,
        plan: &'a ScanPlan,
        queries: &[T],
        among: Option<&'a Bitset>,
    ) -> QueryGroup<'a, T> {
        let prepared = Prepared::new(index, queries, plan.direct);
        let limits = prepared.queries.bounds.iter().map(|_| Limit::new()).collect();
        QueryGroup { index, plan, prepared, limits, among }
    }

    /// Scans the base, and returns the collector of each query.
    fn scan<C: Collect>(&self, collect: &(impl Fn() -> C + Sync)) -> Vec<C> {
        let next = AtomicUsize::new(0);
        let mut shares: Vec<Vec<C>> =
            turns(0..self.plan.workers).with_max_len(1).map(|_| self.scan_share(&next, collect)).collect();
        let mut merged = shares.pop().unwrap_or_default();
        for share in shares {
            for (merged, share) in merged.iter_mut().zip(share) {
                merged.absorb(share);
            }
        }
        merged
    }

    /// Finds the `kept` best rows of each query, and calls `fill` with the slots and the keys of a query. `ids` and `distances` have `k` slots
    /// for each query.
    pub(super) fn search(
        &self,
        (k, kept): (usize, usize),
        ids: &mut [u64],
        distances: &mut [f32],
        fill: &(impl Fn(&mut [u64], &mut [f32], Vec<u64>) + Sync),
    ) {
        let rows = self.index.len();
        let mut found = self.scan(&|| Candidates::new(kept, rows));
        // The queries are finished together, in the order of the base, so that a row that several of them need is fetched once.
        let company = found.len().div_ceil(self.plan.workers);
        ids.par_chunks_mut(company * k)
            .zip(distances.par_chunks_mut(company * k))
            .zip(found.par_chunks_mut(company))
            .enumerate()
            .for_each(|(at, ((ids, distances), candidates))| {
                self.finish(at * company, candidates);
                let slots = ids.chunks_mut(k).zip(distances.chunks_mut(k));
                slots.zip(candidates).for_each(|((ids, distances), found)| fill(ids, distances, found.take_best()));
            });
    }

    /// The keys of all that the collectors find for each query, best first.
    pub(super) fn find_all<C: Collect>(&self, collect: &(impl Fn() -> C + Sync)) -> Vec<Result<Vec<u64>>> {
        let finish = |(query, found): (usize, C)| found.finish(&self.limits[query], &mut self.judge(query));
        owned(self.scan(collect)).enumerate().with_min_len(8).map(finish).collect()
    }

    /// Computes the canonical distances of all remaining candidates of the queries from `first` on.
    fn finish(&self, first: usize, candidates: &mut [Candidates]) {
        for (candidates, limit) in candidates.iter_mut().zip(&self.limits[first..]) {
            candidates.close(limit);
        }
        let index = self.index;
        let mut done = vec![0; candidates.len()];
        let step = (TILE_BYTES / (index.dim * size_of::<T>())).max(1);
        for start in (0..index.len()).step_by(step) {
            for (at, (candidates, done)) in candidates.iter_mut().zip(&mut done).enumerate() {
                candidates.settle_below((start + step) as u64, done, &mut self.judge(first + at));
            }
        }
    }

    /// The part of one worker in a group: takes runs of the base until none is left.
    fn scan_share<C: Collect>(&self, next: &AtomicUsize, collect: &impl Fn() -> C) -> Vec<C> {
        let (plan, index) = (self.plan, self.index);
        let mut found: Vec<C> = self.limits.iter().map(|_| collect()).collect();
        let mut scratch = Vec::new();
        loop {
            let start = next.fetch_add(plan.run, Ordering::Relaxed);
            if start >= index.len() {
                return found;
            }
            let end = start.saturating_add(plan.run).min(index.len());
            for first in (start..end).step_by(tile_rows(index.dim)) {
                let last = (first + tile_rows(index.dim)).min(end);
                self.scan_tile(&mut found, &mut scratch, first..last);
            }
        }
    }

    fn scan_tile<C: Collect>(&self, found: &mut [C], scratch: &mut Vec<f32>, range: std::ops::Range<usize>) {
        let index = self.index;
        let source = &index.rows[range.start * index.dim..range.end * index.dim];
        let rows = as_f32(source, scratch);
        let part = |factors: &'_ [f32]| if factors.is_empty() { 0..0 } else { range.clone() };
        let tile = Tile {
            dim: index.dim,
            rows,
            first_id: range.start as u32,
            scale: &index.scale[part(&index.scale)],
            offset: &index.offset[part(&index.offset)],
        };
        let largest = index.largest[range.start / BLOCK];
        let packed: &[f32] = bytemuck::cast_slice(&self.prepared.packed);
        for panel in &self.prepared.panels {
            let queries = panel.first..panel.first + panel.queries;
            // Padding lanes: only NaN passes −∞, and the sink drops NaN there.
            let thresholds = [const { Cell::new(f32::NEG_INFINITY) }; MAX_PANEL];
            let mut errors = [0.0; MAX_PANEL];
            for (lane, query) in queries.clone().enumerate() {
                let bound = &self.prepared.queries.bounds[query];
                errors[lane] = bound.error(largest);
                thresholds[lane].set(found[query].threshold(bound, errors[lane], &self.limits[query]));
            }
            let found = &mut found[queries];
            let mut survivors =
                Survivors { group: self, first: panel.first, found, thresholds: &thresholds, errors: &errors };
            let packed = &packed[panel.start..];
            if self.plan.direct {
                scan::scan_direct(index.isa, &tile, packed, &thresholds[..panel.queries], &mut survivors);
            } else {
                scan::scan_panel(index.isa, panel.vecs, &tile, packed, &thresholds, &mut survivors);
            }
        }
    }

    fn judge(&self, query: usize) -> PairJudge<'_, T> {
        let queries = &self.prepared.queries;
        PairJudge {
            index: self.index,
            query: queries.wide(query),
            bound: &queries.bounds[query],
            square: queries.squares[query],
            scratch: Vec::new(),
        }
    }
}

/// Files the pairs that pass the scan of one panel.
struct Survivors<'a, 'g, T: Element, C> {
    group: &'a QueryGroup<'g, T>,
    /// Number of the panel's first query.
    first: usize,
    /// The collectors of the panel's queries.
    found: &'a mut [C],
    thresholds: &'a [Cell<f32>],
    errors: &'a [f64],
}

impl<T: Element, C: Collect> Sink for Survivors<'_, '_, T, C> {
    fn take(&mut self, mut passed: u32, scores: &[f32; 16], first_query: usize, id: u32) {
        if self.group.among.is_some_and(|among| !among.get(id as usize)) {
            return;
        }
        while passed != 0 {
            let bit = passed.trailing_zeros() as usize;
            passed &= passed - 1;
            let lane = first_query + bit;
            let Some(found) = self.found.get_mut(lane) else { return };
            let (query, error) = (self.first + lane, self.errors[lane]);
            let limit = &self.group.limits[query];
            if found.take(scores[bit % 16], id, error, limit, || self.group.judge(query)) {
                let bound = &self.group.prepared.queries.bounds[query];
                self.thresholds[lane].set(found.threshold(bound, error, limit));
            }
        }
    }
}

/// Computes the canonical distances of one query.
struct PairJudge<'a, T: Element> {
    index: &'a FlatCpu<T>,
    query: &'a [f64],
    bound: &'a QueryBound,
    square: f64,
    scratch: Vec<f32>,
}

impl<T: Element> Judge for PairJudge<'_, T> {
    fn canonical(&mut self, id: u32) -> f32 {
        let row = self.index.row(id);
        let row = as_f32(row, &mut self.scratch);
        let square = || self.index.squares[id as usize];
        exact::distance(self.index.isa, self.index.metric, (self.query, self.square), row, square)
    }

    fn bound(&self) -> &QueryBound {
        self.bound
    }

    fn prefetch(&mut self, id: u32) {
        simd::prefetch(self.index.row(id));
    }

    fn metric(&self) -> Metric {
        self.index.metric
    }
}
