//! One group of queries: its scan of the base, divided among workers, and the canonical distances of the rows that pass
//! the scan.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::among::{Among, Gathered};
use super::rows::FlatCpu;
use crate::flat::backend::FlatBackend;
use crate::parallel::{Loop, ParallelSlice, owned};
use crate::product::cpu::bound::QueryBound;
use crate::product::cpu::candidates::{Candidates, Judge, Limit};
use crate::product::cpu::collect::{Collect, CollectedTile, Collecting, merged};
use crate::product::cpu::exact;
use crate::product::cpu::panels::Panels;
use crate::product::cpu::scan::Tile;
use crate::product::cpu::{BLOCK, Queries, TILE_BYTES, as_f32, tile_rows};
use crate::simd;
use crate::{Bitset, Element, Metric, Result};

/// Queries scanned together, if there are enough. Past 256 the base's share of the traffic is negligible; below it the
/// base is streamed too often.
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
}

impl ScanPlan {
    /// A plan for `threads` threads. The collector of a query takes up to `bytes` bytes.
    pub(super) fn new<T: Element>(
        index: &FlatCpu<T>,
        among: &Among<'_>,
        queries: usize,
        bytes: usize,
        threads: usize,
    ) -> Self {
        let rows = among.scanned(index.len());
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
        Self { group, workers, run }
    }
}

/// A group of queries, and the rows among which it searches.
pub(super) struct QueryGroup<'a, T: Element> {
    index: &'a FlatCpu<T>,
    plan: &'a ScanPlan,
    queries: Queries,
    panels: Panels,
    limits: Vec<Limit>,
    among: &'a Among<'a>,
}

impl<'a, T: Element> QueryGroup<'a, T> {
    /// Prepares the group of all `queries`.
    pub(super) fn new(
        index: &'a FlatCpu<T>,
        plan: &'a ScanPlan,
        queries: &[T],
        among: &'a Among<'a>,
    ) -> QueryGroup<'a, T> {
        let queries = Queries::new(index.isa, index.metric, index.dim, queries);
        let mut panels = Panels::new(index.isa, index.dim);
        panels.pack(queries.len(), |query, components| queries.factored(query, components));
        let limits = queries.bounds.iter().map(|_| Limit::new()).collect();
        QueryGroup { index, plan, queries, panels, limits, among }
    }

    /// Scans the base, and returns the collector of each query.
    fn scan<C: Collect>(&self, collect: &(impl Fn() -> C + Sync)) -> Vec<C> {
        let next = AtomicUsize::new(0);
        merged(self.plan.workers, || self.scan_share(&next, collect))
    }

    /// Finds the `kept` best rows of each query, and calls `fill` with the slots and the keys of a query. `ids` and
    /// `distances` have `k` slots for each query.
    pub(super) fn search(
        &self,
        (k, kept): (usize, usize),
        ids: &mut [u64],
        distances: &mut [f32],
        fill: &(impl Fn(&mut [u64], &mut [f32], Vec<u64>) + Sync),
    ) {
        let rows = self.index.len();
        let mut found = self.scan(&|| Candidates::new(kept, rows));
        // The queries are finished together, in the order of the base, so that a row that several of them need is
        // fetched once.
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
        let mut settle = |end: u64| {
            for (at, (candidates, done)) in candidates.iter_mut().zip(&mut done).enumerate() {
                candidates.settle_below(end, done, &mut self.judge(first + at));
            }
        };
        match self.among {
            Among::Listed(listed) => {
                listed.chunks(step).filter_map(<[u32]>::last).for_each(|&last| settle(u64::from(last) + 1));
            }
            Among::All | Among::Bits(_) => {
                (0..index.len()).step_by(step).for_each(|start| settle((start + step) as u64))
            }
        }
    }

    /// The part of one worker in a group: takes runs of the base, or of the listed rows, until none is left.
    fn scan_share<C: Collect>(&self, next: &AtomicUsize, collect: &impl Fn() -> C) -> Vec<C> {
        let (plan, index) = (self.plan, self.index);
        let rows = self.among.scanned(index.len());
        let mut found: Vec<C> = self.limits.iter().map(|_| collect()).collect();
        let (mut scratch, mut gathered) = (Vec::new(), Gathered::default());
        loop {
            let start = next.fetch_add(plan.run, Ordering::Relaxed);
            if start >= rows {
                return found;
            }
            let end = start.saturating_add(plan.run).min(rows);
            for first in (start..end).step_by(tile_rows(index.dim)) {
                let range = first..(first + tile_rows(index.dim)).min(end);
                match self.among {
                    Among::All => self.scan_range(&mut found, &mut scratch, range, None),
                    Among::Bits(bits) => self.scan_range(&mut found, &mut scratch, range, Some(bits)),
                    Among::Listed(listed) => {
                        let listed = &listed[range];
                        let (tile, largest) = gathered.tile(index, listed);
                        self.scan_tile(
                            &mut found,
                            &tile,
                            ScannedTile { group: self, largest, rows: Rows::Listed(listed) },
                        );
                    }
                }
            }
        }
    }

    /// Scans consecutive rows of one block, of which those whose bits are set may be results.
    fn scan_range<C: Collect>(
        &self,
        found: &mut [C],
        scratch: &mut Vec<f32>,
        range: std::ops::Range<usize>,
        bits: Option<&Bitset>,
    ) {
        let index = self.index;
        let source = &index.rows[range.start * index.dim..range.end * index.dim];
        let tile = Tile {
            dim: index.dim,
            rows: as_f32(source, scratch),
            first_id: range.start as u32,
            scale: index.scale.get(range.clone()).unwrap_or_default(),
            offset: index.offset.get(range.clone()).unwrap_or_default(),
        };
        let largest = index.largest[range.start / BLOCK];
        self.scan_tile(found, &tile, ScannedTile { group: self, largest, rows: Rows::Range(bits) });
    }

    fn scan_tile<C: Collect>(&self, found: &mut [C], tile: &Tile<'_>, of: ScannedTile<'_, '_, T>) {
        let (bounds, limits) = (&self.queries.bounds, &self.limits);
        self.panels.scan(tile, &mut Collecting { bounds, limits, found, tile: of });
    }

    fn judge(&self, query: usize) -> PairJudge<'_, T> {
        PairJudge {
            index: self.index,
            query: self.queries.wide(query),
            bound: &self.queries.bounds[query],
            square: self.queries.squares[query],
            scratch: Vec::new(),
        }
    }
}

/// A tile of the base, for all queries of the group.
struct ScannedTile<'a, 'g, T: Element> {
    group: &'a QueryGroup<'g, T>,
    /// Largest norm of the blocks of the rows.
    largest: f32,
    rows: Rows<'a>,
}

/// The rows of a tile.
enum Rows<'a> {
    /// Consecutive rows. With bits, those whose bits are set may be results.
    Range(Option<&'a Bitset>),
    /// Rows with these numbers, all of which may be results.
    Listed(&'a [u32]),
}

impl<T: Element> CollectedTile for ScannedTile<'_, '_, T> {
    fn query(&self, packed: usize) -> usize {
        packed
    }

    fn error(&self, bound: &QueryBound) -> f64 {
        bound.error(self.largest)
    }

    fn accepts(&self, id: u32) -> bool {
        match self.rows {
            Rows::Range(bits) => bits.is_none_or(|bits| bits.get(id as usize)),
            Rows::Listed(_) => true,
        }
    }

    fn row(&self, id: u32) -> u32 {
        match self.rows {
            Rows::Range(_) => id,
            Rows::Listed(listed) => listed[id as usize],
        }
    }

    fn judge(&mut self, query: usize) -> impl Judge {
        self.group.judge(query)
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
