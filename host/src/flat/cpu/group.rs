//! One group of queries: its scan of the base, divided among workers, and the canonical distances of the rows that pass
//! the scan.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::among::Among;
use crate::parallel::{Loop, ParallelSlice, owned};
use crate::product::cpu::bound::QueryBound;
use crate::product::cpu::candidates::{self, Candidates, Judge, Limit};
use crate::product::cpu::collect::{Ball, Collect, CollectedTile, merged};
use crate::product::cpu::{BLOCK, TILE_BYTES};
use crate::{Bitset, Metric, NONE, RangeNeighbors, Result, host_memory};

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
    /// A plan for `threads` threads that scan `rows` rows. The collector of a query takes up to `bytes` bytes of the
    /// budget of each thread. Groups are multiples of `lanes` queries.
    pub(super) fn new(
        (budget, lanes): (u64, usize),
        rows: usize,
        queries: usize,
        bytes: usize,
        threads: usize,
    ) -> Self {
        let fit = budget / (bytes as u64).saturating_mul(threads as u64);
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

    /// Finds the `kept` best of the accepted rows for each query, a vector of `dim` units, with `k` slots in `ids` and
    /// `distances`, of which the others become empty. `ready` makes some of the queries ready for comparisons.
    pub(super) fn search<'q, T: Sync, Q: Comparison>(
        &self,
        (metric, dim): (Metric, usize),
        among: &Among<'_>,
        queries: &'q [T],
        (k, kept): (usize, usize),
        (ids, distances): (&mut [u64], &mut [f32]),
        ready: &(impl Fn(&'q [T]) -> Q + Sync),
    ) {
        let fill = |ids: &mut [u64], distances: &mut [f32], found: Vec<u64>| {
            ids.fill(NONE);
            distances.fill(metric.worst());
            for ((id, distance), key) in ids.iter_mut().zip(distances).zip(found) {
                *id = u64::from(candidates::id(key));
                *distance = candidates::distance(metric, key);
            }
        };
        queries
            .par_chunks(self.group * dim)
            .with_max_len(1)
            .zip(ids.par_chunks_mut(self.group * k))
            .zip(distances.par_chunks_mut(self.group * k))
            .for_each(|((queries, ids), distances)| {
                QueryGroup::new(ready(queries), self, among).search((k, kept), ids, distances, &fill);
            });
    }

    /// Finds all accepted rows within `radius` of each query, best first; the other arguments are those of
    /// [`search`](Self::search).
    pub(super) fn search_range<'q, T: Sync, Q: Comparison>(
        &self,
        (metric, dim): (Metric, usize),
        among: &Among<'_>,
        queries: &'q [T],
        radius: f32,
        ready: &(impl Fn(&'q [T]) -> Q + Sync),
    ) -> Result<RangeNeighbors> {
        let ball = || Ball::new(metric, radius);
        let groups = queries.par_chunks(self.group * dim).with_max_len(1);
        let of_groups: Vec<_> =
            groups.map(|queries| QueryGroup::new(ready(queries), self, among).find_all(&ball)).collect();
        let mut found = host_memory::with_room(queries.len() / dim)?;
        for keys in of_groups.into_iter().flatten() {
            found.push(keys?);
        }
        RangeNeighbors::of_rows(&found, |key| (u64::from(candidates::id(key)), candidates::distance(metric, key)))
    }
}

/// The rows of a tile.
#[derive(Debug, Clone)]
pub(super) enum Rows<'a> {
    /// Consecutive rows of one [`BLOCK`]. With bits, those whose bits are set may be results.
    Range(Range<usize>, Option<&'a Bitset>),
    /// Rows with these numbers, all of which may be results.
    Listed(&'a [u32]),
}

impl Rows<'_> {
    /// Whether the search may return the row with the id `id` in the tile.
    pub(super) fn accepts(&self, id: u32) -> bool {
        match self {
            Rows::Range(_, bits) => bits.is_none_or(|bits| bits.get(id as usize)),
            Rows::Listed(_) => true,
        }
    }

    /// The row with the id `id` in the tile.
    pub(super) fn row(&self, id: u32) -> u32 {
        match self {
            Rows::Range(..) => id,
            Rows::Listed(listed) => listed[id as usize],
        }
    }
}

/// The limits and the collectors of the queries of a group.
pub(super) struct Collected<'a, C> {
    pub(super) limits: &'a [Limit],
    pub(super) found: &'a mut [C],
}

/// The queries of a group, ready to be compared with the rows of an index.
pub(super) trait Comparison: Sync {
    /// Memory of a worker.
    type Scratch: Default;
    /// Whether all scores are exact distances.
    const EXACT: bool;
    /// Number of queries.
    fn queries(&self) -> usize;
    /// Number of rows of the index.
    fn rows(&self) -> usize;
    /// Number of rows of a tile, a power of two up to [`BLOCK`].
    fn tile_rows(&self) -> usize;
    /// Bytes of a row.
    fn row_bytes(&self) -> usize;
    /// Compares all queries with the rows of a tile.
    fn compare<C: Collect>(&self, rows: &Rows<'_>, to: Collected<'_, C>, scratch: &mut Self::Scratch);
    /// The judge for a query.
    fn judge(&self, query: usize) -> impl Judge;
}

/// A tile of the base, for all queries of a group.
pub(super) struct GroupTile<'a, Q> {
    pub(super) queries: &'a Q,
    pub(super) rows: &'a Rows<'a>,
    /// Largest norm of the blocks of the rows. Exact scores have no use for it.
    pub(super) largest: f32,
}

impl<Q: Comparison> CollectedTile for GroupTile<'_, Q> {
    fn query(&self, packed: usize) -> usize {
        packed
    }

    fn error(&self, bound: &QueryBound) -> f64 {
        if Q::EXACT { 0.0 } else { bound.error(self.largest) }
    }

    fn accepts(&self, id: u32) -> bool {
        self.rows.accepts(id)
    }

    fn row(&self, id: u32) -> u32 {
        self.rows.row(id)
    }

    fn judge(&mut self, query: usize) -> impl Judge {
        self.queries.judge(query)
    }
}

/// A group of queries, and the rows among which it searches.
pub(super) struct QueryGroup<'a, Q> {
    queries: Q,
    plan: &'a ScanPlan,
    limits: Vec<Limit>,
    among: &'a Among<'a>,
}

impl<'a, Q: Comparison> QueryGroup<'a, Q> {
    pub(super) fn new(queries: Q, plan: &'a ScanPlan, among: &'a Among<'a>) -> QueryGroup<'a, Q> {
        let limits = (0..queries.queries()).map(|_| Limit::new()).collect();
        QueryGroup { queries, plan, limits, among }
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
        let rows = self.queries.rows();
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
        let finish = |(query, found): (usize, C)| found.finish(&self.limits[query], &mut self.queries.judge(query));
        owned(self.scan(collect)).enumerate().with_min_len(8).map(finish).collect()
    }

    /// Computes the canonical distances of all remaining candidates of the queries from `first` on.
    fn finish(&self, first: usize, candidates: &mut [Candidates]) {
        if Q::EXACT {
            for (at, candidates) in candidates.iter_mut().enumerate() {
                candidates.close_exact(&mut self.queries.judge(first + at), &self.limits[first + at]);
            }
            return;
        }
        for (candidates, limit) in candidates.iter_mut().zip(&self.limits[first..]) {
            candidates.close(limit);
        }
        let mut done = vec![0; candidates.len()];
        let step = (TILE_BYTES / self.queries.row_bytes()).max(1);
        let mut settle = |end: u64| {
            for (at, (candidates, done)) in candidates.iter_mut().zip(&mut done).enumerate() {
                candidates.settle_below(end, done, &mut self.queries.judge(first + at));
            }
        };
        match self.among {
            Among::Listed(listed) => {
                listed.chunks(step).filter_map(<[u32]>::last).for_each(|&last| settle(u64::from(last) + 1));
            }
            Among::All | Among::Bits(_) => {
                (0..self.queries.rows()).step_by(step).for_each(|start| settle((start + step) as u64))
            }
        }
    }

    /// The part of one worker in a group: takes runs of the base, or of the listed rows, until none is left.
    fn scan_share<C: Collect>(&self, next: &AtomicUsize, collect: &impl Fn() -> C) -> Vec<C> {
        let plan = self.plan;
        let rows = self.among.scanned(self.queries.rows());
        let mut found: Vec<C> = self.limits.iter().map(|_| collect()).collect();
        let (mut scratch, step) = (Q::Scratch::default(), self.queries.tile_rows());
        loop {
            let start = next.fetch_add(plan.run, Ordering::Relaxed);
            if start >= rows {
                return found;
            }
            let end = start.saturating_add(plan.run).min(rows);
            for first in (start..end).step_by(step) {
                let range = first..(first + step).min(end);
                let rows = match self.among {
                    Among::All => Rows::Range(range, None),
                    Among::Bits(bits) => Rows::Range(range, Some(bits)),
                    Among::Listed(listed) => Rows::Listed(&listed[range]),
                };
                let to = Collected { limits: &self.limits, found: &mut found };
                self.queries.compare(&rows, to, &mut scratch);
            }
        }
    }
}
