//! One group of queries: its (query, probe) pairs by list, and the scan of the lists.
//!
//! If few queries probe a list of codes, lookup tables score it query by query, because computing the tables is the
//! main cost of a query. All other lists are scanned one after the other, each for all queries that probe it.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::job::{Job, RowScratch};
use super::judge::{PairJudge, Query};
use super::tables::{self, Tables};
use crate::Result;
use crate::parallel::{Loop, ParallelSlice, owned};
use crate::pq::ProductQuantizer;
use crate::product::cpu::bits::{BitCount, offer};
use crate::product::cpu::bound::QueryBound;
use crate::product::cpu::candidates::{Judge, Limit, TOGETHER};
use crate::product::cpu::collect::{Collect, CollectedTile, Collecting, merged};
use crate::product::cpu::panels::Panels;
use crate::product::cpu::scan::{MAX_PANEL, Tile};
use crate::product::cpu::{BLOCK, Queries, tile_rows};
use crate::vectors::bits_together;

/// Number of rows of a list that a worker takes at a time, a multiple of [`BLOCK`].
const RUN: usize = 16 * BLOCK;
/// Number of f32 of packed queries that stay in the L2 cache during the scan of a list's tiles.
const PACKED: usize = 1 << 17;

/// The queries of a group, and their pairs with lists.
pub(super) struct Group {
    queries: Queries,
    /// x' of every query (see [`crate::product::cpu::bound`]), row-major. Empty for queries of bits.
    factored: Vec<f32>,
    /// Queries of bits, row-major.
    bits: Vec<u8>,
    /// The parts of lists that are scanned by lookup tables, query after query.
    pieces: Vec<Piece>,
    /// The start of each unit of work in `pieces`, and the end of the last unit. The pieces of a unit are for one
    /// query.
    units: Vec<u32>,
    /// The other probed lists; those that are nearest to some query come first.
    lists: Vec<u32>,
    /// The start of each list's queries in `members`, and the end of the last list's.
    starts: Vec<u32>,
    /// Indices of the group's queries, list after list.
    members: Vec<u32>,
}

impl Group {
    /// Groups whole `queries`; `lists` holds the `probes` lists of each query, nearest first.
    pub(super) fn new(job: &Job<'_>, queries: &[f32], lists: &[u64], probes: usize) -> Group {
        let (dim, bits) = (job.view.dim, job.count.map_or(Vec::new(), |_| bits_together(queries)));
        let (queries, factors) = match job.count {
            Some(_) => (Queries::of_bits(queries.len() / dim), 0),
            None => (Queries::new(job.isa, job.metric, dim, queries), queries.len()),
        };
        let mut factored = vec![0.0; factors];
        factored.par_chunks_exact_mut(dim).with_min_len(256).enumerate().for_each(|(query, to)| {
            to.iter_mut().zip(queries.factored(query, 0..dim)).for_each(|(to, x)| *to = x);
        });
        let few = job.view.codec.quantizer().map_or(0, tables::few) as u32;
        let mut counts = vec![0u32; job.view.list_count()];
        lists.iter().for_each(|&list| counts[list as usize] += 1);
        let length = |list: usize| job.view.length(list);
        // Counting sort by list. Lists are in the order in which they first appear: the nearest of all queries, the
        // second nearest, ..
        let mut places = vec![u32::MAX; counts.len()];
        let (mut order, mut starts, mut end) = (Vec::new(), vec![0], 0);
        for rank in 0..probes {
            for &list in lists[rank..].iter().step_by(probes) {
                let list = list as usize;
                if counts[list] > few && places[list] == u32::MAX && length(list) > 0 {
                    places[list] = end;
                    end += counts[list];
                    order.push(list as u32);
                    starts.push(end);
                }
            }
        }
        let mut members = vec![0; end as usize];
        let (mut pieces, mut units) = (Vec::new(), vec![0]);
        for (query, lists) in (0..).zip(lists.chunks_exact(probes)) {
            let mut rows = 0;
            for &list in lists {
                let list = list as usize;
                if places[list] != u32::MAX {
                    members[places[list] as usize] = query;
                    places[list] += 1;
                } else {
                    for row in (0..length(list)).step_by(RUN) {
                        pieces.push(Piece { query, list: list as u32, row: row as u32 });
                        rows += RUN.min(length(list) - row);
                        if rows >= RUN {
                            units.push(pieces.len() as u32);
                            rows = 0;
                        }
                    }
                }
            }
            if rows > 0 {
                units.push(pieces.len() as u32);
            }
        }
        Group { queries, factored, bits, pieces, units, lists: order, starts, members }
    }

    /// Scans the lists with `workers` workers. Returns the results of each query's collector, which `collect` makes.
    pub(super) fn search<C: Collect>(
        &self,
        job: &Job<'_>,
        workers: usize,
        collect: &(impl Fn() -> C + Sync),
    ) -> Result<Vec<Vec<u64>>> {
        let count = self.queries.len();
        let limits: Vec<Limit> = (0..count).map(|_| Limit::new()).collect();
        let runs: Vec<(usize, usize)> = (0..self.lists.len())
            .flat_map(|at| (0..job.view.length(self.lists[at] as usize)).step_by(RUN).map(move |row| (at, row)))
            .collect();
        let (next_unit, next_run) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let work = || {
            let mut worker = Worker {
                job,
                group: self,
                limits: &limits,
                found: (0..count).map(|_| collect()).collect(),
                panels: Panels::new(job.isa, job.view.dim),
                rows: RowScratch::default(),
                judged: Vec::new(),
                tables: Tables::default(),
                numbers: Vec::new(),
                distances: Vec::new(),
            };
            if let Some(quantizer) = job.view.codec.quantizer() {
                while let Some(unit) = self.unit(next_unit.fetch_add(1, Ordering::Relaxed)) {
                    worker.scan_codes(quantizer, unit);
                }
            }
            while let Some(&(at, row)) = runs.get(next_run.fetch_add(1, Ordering::Relaxed)) {
                match job.count {
                    None => worker.scan(at, row),
                    Some(by) => worker.count(at, row, by),
                }
            }
            worker.found
        };
        let merged = merged(workers, work);
        let finish = |scratch: &mut Vec<f32>, (query, found): (usize, C)| {
            found.finish(&limits[query], &mut self.judge(job, query, scratch))
        };
        if workers == 1 {
            let mut scratch = Vec::new();
            return merged.into_iter().enumerate().map(|found| finish(&mut scratch, found)).collect();
        }
        let mut finished = Vec::new();
        owned(merged).enumerate().with_min_len(8).map_init(Vec::new, finish, &mut finished);
        finished.into_iter().collect()
    }

    /// The pieces of one unit of work.
    fn unit(&self, at: usize) -> Option<&[Piece]> {
        let (&start, &end) = (self.units.get(at)?, self.units.get(at + 1)?);
        Some(&self.pieces[start as usize..end as usize])
    }

    fn judge<'a>(&'a self, job: &'a Job<'a>, query: usize, scratch: &'a mut Vec<f32>) -> PairJudge<'a> {
        let of = match job.count {
            None => Query::Numbers(self.queries.wide(query), self.queries.squares[query]),
            Some(by) => Query::Bits(self.bits_of(job, query), by),
        };
        PairJudge::new(job, (of, &self.queries.bounds[query]), scratch)
    }

    /// The bits of a query.
    fn bits_of(&self, job: &Job<'_>, query: usize) -> &[u8] {
        let bytes = job.view.elements;
        &self.bits[query * bytes..][..bytes]
    }

    /// The queries that probe the list at place `at`.
    fn members(&self, at: usize) -> &[u32] {
        &self.members[self.starts[at] as usize..self.starts[at + 1] as usize]
    }
}

/// At most [`RUN`] rows of a list for one query.
#[derive(Debug, Clone, Copy)]
struct Piece {
    query: u32,
    list: u32,
    /// The first row, within the list.
    row: u32,
}

/// Scans lists for a group, and keeps the results.
struct Worker<'a, C> {
    job: &'a Job<'a>,
    group: &'a Group,
    limits: &'a [Limit],
    /// One collector for each query.
    found: Vec<C>,
    panels: Panels,
    /// The rows of a tile.
    rows: RowScratch,
    /// The decoded rows of candidates.
    judged: Vec<f32>,
    tables: Tables,
    numbers: Vec<u8>,
    /// The distances of a tile from a query.
    distances: Vec<u64>,
}

impl<C: Collect> Worker<'_, C> {
    /// Scans up to [`RUN`] rows from `first` on of the list at place `at` of the group, for all queries that probe it.
    fn scan(&mut self, at: usize, first: usize) {
        let (job, group) = (self.job, self.group);
        let dim = job.view.dim;
        let list = group.lists[at] as usize;
        let members = group.members(at);
        let last = (first + RUN).min(job.view.length(list));
        let together = (PACKED / dim / MAX_PANEL).max(1) * MAX_PANEL;
        for members in members.chunks(together) {
            self.panels.pack(members.len(), |packed, components| {
                group.factored[members[packed] as usize * dim..][components].iter().copied()
            });
            for start in (first..last).step_by(tile_rows(dim)) {
                self.scan_tile(list, start..(start + tile_rows(dim)).min(last), members);
            }
        }
    }

    /// As [`scan`](Self::scan), of vectors of bits: counts the bits in which they differ from a query.
    fn count(&mut self, at: usize, first: usize, by: BitCount) {
        let Worker { job, group, limits, found, rows: scratch, judged, distances, .. } = self;
        let (job, group) = (*job, *group);
        let (list, members, tile) = (group.lists[at] as usize, group.members(at), tile_rows(job.view.elements));
        let (first_id, last) = (job.image.range(list).start, (first + RUN).min(job.view.length(list)));
        for start in (first..last).step_by(tile) {
            let rows = start..(start + tile).min(last);
            distances.resize(rows.len(), 0);
            let codes = job.view.codes(list).part(rows).slice(&mut scratch.codes);
            let tile = ListTile {
                job,
                group,
                members,
                largest: 0.0,
                whole: true,
                judged,
                first: first_id,
                ranks: job.view.ranks(list),
            };
            let mut to = Collecting { bounds: &group.queries.bounds, limits, found, tile };
            for (packed, &query) in members.iter().enumerate() {
                by.differences(group.bits_of(job, query as usize), codes, distances);
                offer(packed, distances, first_id + start as u32, &mut to);
            }
        }
    }

    /// Scans pieces of lists, all for the same query, by the query's lookup tables.
    fn scan_codes(&mut self, quantizer: &ProductQuantizer, pieces: &[Piece]) {
        let Worker { job, group, limits, found, rows: scratch, judged, tables, numbers, .. } = self;
        let (job, group) = (*job, *group);
        let dim = job.view.dim;
        let Some(&Piece { query, .. }) = pieces.first() else { return };
        let (member, query) = (query, query as usize);
        let tables = tables.get(member, quantizer, &group.factored[query * dim..][..dim]);
        let (found, limit, bound) = (&mut found[query], &limits[query], &group.queries.bounds[query]);
        let mut scores = [0.0; BLOCK];
        for &Piece { list, row, .. } in pieces {
            let (list, row) = (list as usize, row as usize);
            let (norms, last) = (job.norms(list), (row + RUN).min(job.view.length(list)));
            let centroid = &job.view.centroids[list * dim..][..dim];
            let base = tables::base(job.isa, group.queries.wide(query), group.queries.factor(query), centroid);
            for start in (row..last).step_by(BLOCK) {
                let rows = start..(start + BLOCK).min(last);
                let codes = job.view.codes(list).part(rows.clone()).slice(&mut scratch.codes);
                let offset = if norms.offset.is_empty() { &[] } else { &norms.offset[rows.clone()] };
                let scores = &mut scores[..rows.len()];
                tables::score(quantizer, tables::unpacked(quantizer, codes, numbers), (tables, base), offset, scores);
                if let Some(scales) = norms.scale.get(rows.clone()) {
                    scores.iter_mut().zip(scales).for_each(|(score, scale)| *score *= scale);
                }
                let block = start / BLOCK;
                let error =
                    tables::error(bound, quantizer, (norms.largest[block], norms.steepest[block]), norms.centroid);
                let mut threshold = found.threshold(bound, error, limit);
                let first_id = job.image.range(list).start + start as u32;
                let ranks = &job.view.ranks(list)[rows.clone()];
                for (at, scores) in scores.chunks(TOGETHER).enumerate() {
                    // NaN passes, as in the other scans.
                    if scores.iter().fold(true, |out, score| out & (*score > threshold)) {
                        continue;
                    }
                    for (lane, &score) in scores.iter().enumerate() {
                        let row = TOGETHER * at + lane;
                        let id = first_id + row as u32;
                        if !matches!(score.partial_cmp(&threshold), Some(std::cmp::Ordering::Greater))
                            && job.may_be_found(ranks, row)
                            && found.take(score, id, error, limit, || group.judge(job, query, judged))
                        {
                            threshold = found.threshold(bound, error, limit);
                        }
                    }
                }
            }
        }
    }

    fn scan_tile(&mut self, list: usize, range: std::ops::Range<usize>, members: &[u32]) {
        let (job, group, block) = (self.job, self.group, range.start / BLOCK);
        let (norms, first) = (job.norms(list), job.image.range(list).start);
        let tile = Tile {
            dim: job.view.dim,
            rows: job.rows(list, range.clone(), &mut self.rows),
            first_id: first + range.start as u32,
            scale: norms.scale.get(range.clone()).unwrap_or_default(),
            offset: norms.offset.get(range).unwrap_or_default(),
        };
        let list_tile = ListTile {
            job,
            group,
            members,
            largest: norms.largest[block],
            whole: norms.whole[block],
            judged: &mut self.judged,
            first,
            ranks: job.view.ranks(list),
        };
        let (bounds, limits, found) = (&group.queries.bounds, self.limits, &mut self.found);
        self.panels.scan(&tile, &mut Collecting { bounds, limits, found, tile: list_tile });
    }
}

/// A tile within a block of a list, for some of the queries that probe the list.
struct ListTile<'a> {
    job: &'a Job<'a>,
    group: &'a Group,
    /// The queries that are packed.
    members: &'a [u32],
    /// Largest norm of the block.
    largest: f32,
    /// Whether all components of the block are whole numbers.
    whole: bool,
    judged: &'a mut Vec<f32>,
    /// The location of the list's first vector, and the ranks of its vectors.
    first: u32,
    ranks: &'a [u32],
}

impl CollectedTile for ListTile<'_> {
    fn query(&self, packed: usize) -> usize {
        self.members[packed] as usize
    }

    fn error(&self, bound: &QueryBound) -> f64 {
        if self.job.count.is_some() { 0.0 } else { bound.error_or_exact(self.largest, self.whole) }
    }

    fn accepts(&self, id: u32) -> bool {
        self.job.may_be_found(self.ranks, (id - self.first) as usize)
    }

    fn judge(&mut self, query: usize) -> impl Judge {
        self.group.judge(self.job, query, self.judged)
    }
}
