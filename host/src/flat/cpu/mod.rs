//! Exact search on the CPU: a certified f32 filter, and the canonical distance for the pairs that pass it.
//!
//! # Problem
//!
//! For each of nq queries find, among n vectors of dimension d, the k best by (canonical distance, lower id). The canonical distance
//! ([`crate::metric`]) is a float64 sum in a fixed order, which is far slower than a float32 matrix product. So all pairs get a float32
//! *score*. A proof ([`bound`]) bounds its difference from the canonical value, and only pairs that the bound cannot exclude get the
//! canonical distance.
//!
//! # Algorithm
//!
//! ```text
//! divide the queries into groups of 256 to 512; if there are few groups, workers share the base of a group
//! worker:
//!     for each tile of the base (at most 256 rows and 1 MiB as f32):          converts other element types to f32
//!         for each panel of the group (up to 3 registers of queries):
//!             threshold[q] = limit[q] + E(q, largest norm of the tile)
//!             for each 8 to 16 rows of the tile:                              product/cpu/scan.rs
//!                 scores = rows x panel, accumulated in registers
//!                 for each score not above its threshold:                     one comparison for 16 scores
//!                     append (score, id) to the buffer of its query
//!                     if the buffer is full: thin it, lower limit[q] and threshold[q]   product/cpu/candidates.rs
//! group:
//!     merge the workers' buffers; thin once more
//!     canonical distances for the rest, in the order of the base; select and sort k
//! ```
//!
//! limit\[q\] is an upper bound of the k-th best distance. It never rises, and workers share it through an atomic. Timing decides which
//! candidates survive, but not the result: every candidate that could be among the k best survives.
//!
//! # What makes it fast
//!
//! 1. *No memory of size nq · n.* Scores stay in registers. A score that fails (nearly all do) costs a sixteenth of a comparison.
//! 2. *The base is never packed.* Queries are the lanes and are packed once for each group; the base's components are broadcast from its
//!    row-major storage. With a base stored in panels, the re-rank would gather d cache lines for each vector.
//! 3. *Prefetch.* The processor's prefetcher does not follow 16 rows read side by side by broadcasts. Prefetching the next rows made 16
//!    queries 2.2 times as fast and one query 1.3 times.
//! 4. *Few queries* ([`DIRECT_QUERIES`]) have the lanes along the components instead, because with one query 15 of 16 lanes would be
//!    idle. Then memory is the limit: 39 GB/s of base on two cores.
//! 5. *Scale and sign in the query.* The packed query is −2x, −x or −x/‖x‖, so a score is one product or sum after the dot product.
//! 6. *Thinning on integers.* (score, id) is one u64 in the order of the scores.
//! 7. *Finishing several queries together.* A group's candidates are judged in the order of the base, so a row that several queries need
//!    comes from the L2 cache. With the query widened to f64 once, k = 1000 of 20,000 × 960 became 1.4 times as fast.
//!
//! # Cost
//!
//! 2 · nq · n · d float32 operations, at 165 GFLOP/s per core from a few hundred queries up. The base is streamed once for each group. A
//! query appends about k + k·log₂(n/2k) candidates, and takes k canonical distances plus those within 2E of the k-th. Memory: n · d
//! elements, at most 12 bytes more per vector, and 8(2k + max(k, 64)) bytes for each query of the groups in flight. If E exceeds the
//! differences of the data (all vectors alike, or a cloud far from the origin), each pair gets its canonical distance: slow, and right.
//!
//! # Tried, and lost
//!
//! (AVX-512 of a Sapphire Rapids Xeon, 2 cores, 200,000 × 128 f32; CPU time of both threads together.)
//!
//! - Lanes along the components for up to 8 queries: 14.6 ms for 8; panels take 8.6 ms for 1 to 16.
//! - Each query finished alone, in the order of the scores: 1.37 s against 1.16 s for 2000 queries, k = 1000.
//! - 2 MiB pages for the base (through the allocator's tunable): 5 to 12 % faster. Not kept, since it needs a system call that no
//!   dependency offers safely.

#[cfg(test)]
mod tests;

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::FlatBackend;
use crate::device::open::describe_cpu;
use crate::parallel::{Loop, ParallelSlice, turns};
use crate::product::cpu::bound::{self, QueryBound, has_offset, largest_norm};
use crate::product::cpu::candidates::{self, Candidates, Judge, Limit};
use crate::product::cpu::exact;
use crate::product::cpu::scan::{self, MAX_PANEL, PANEL_VECS, Sink, Tile};
use crate::product::cpu::{
    BLOCK, DEFAULT_BUDGET, DIRECT_QUERIES, Line, Queries, TILE_BYTES, as_f32, canonical_square, tile_rows,
};
use crate::simd::{self, Isa};
use crate::vectors::{VectorSlice, VectorSliceMut};
use crate::{Element, Metric, NONE, Result, events, host_memory};

/// Queries scanned together, if there are enough. Past 256 the base's share of the traffic is negligible; below it the base is streamed
/// too often.
const GROUP: std::ops::RangeInclusive<usize> = 256..=512;
/// The vectors of a flat index, in host memory.
#[derive(Debug)]
pub(crate) struct FlatCpu<T: Element> {
    dim: usize,
    metric: Metric,
    isa: Isa,
    budget: u64,
    rows: Vec<T>,
    /// f32(1/‖y‖) for cosine, otherwise empty.
    scale: Vec<f32>,
    /// Σy² by the canonical definition, for cosine; otherwise empty.
    squares: Vec<f64>,
    /// f32(‖y‖²) for L2, otherwise empty.
    offset: Vec<f32>,
    /// [`largest_norm`] of each [`BLOCK`] rows.
    largest: Vec<f32>,
}

impl<T: Element> FlatCpu<T> {
    pub(crate) fn new(dim: usize, metric: Metric, budget: Option<u64>) -> Self {
        Self::with_isa(dim, metric, budget, Isa::detect())
    }

    /// As [`new`](Self::new). The processor must have `isa`.
    pub(crate) fn with_isa(dim: usize, metric: Metric, budget: Option<u64>, isa: Isa) -> Self {
        let budget = budget.unwrap_or(DEFAULT_BUDGET);
        Self {
            dim,
            metric,
            isa,
            budget,
            rows: Vec::new(),
            scale: Vec::new(),
            squares: Vec::new(),
            offset: Vec::new(),
            largest: Vec::new(),
        }
    }

    fn row(&self, id: u32) -> &[T] {
        let start = id as usize * self.dim;
        &self.rows[start..start + self.dim]
    }
}

impl<T: Element> FlatBackend for FlatCpu<T> {
    fn add(&mut self, rows: VectorSlice<'_>) -> Result<()> {
        let rows: &[T] = rows.components();
        let (before, count) = (self.len(), rows.len() / self.dim);
        let blocks = (before + count).div_ceil(BLOCK);
        let (has_offset, has_scale) = (has_offset(self.metric), self.metric.divides_by_norms());
        // Memory comes first: from here on nothing fails.
        host_memory::reserve(&mut self.rows, rows.len())?;
        host_memory::reserve(&mut self.offset, if has_offset { count } else { 0 })?;
        host_memory::reserve(&mut self.scale, if has_scale { count } else { 0 })?;
        host_memory::reserve(&mut self.squares, if has_scale { count } else { 0 })?;
        let more = blocks - self.largest.len();
        host_memory::reserve(&mut self.largest, more)?;
        let square = |row| canonical_square(self.isa, row);
        let squares = host_memory::collected_in_parallel(rows.par_chunks(self.dim).with_min_len(256).map(square))?;
        self.rows.extend_from_slice(rows);
        if has_offset {
            self.offset.extend(squares.iter().map(|&square| square as f32));
        }
        if has_scale {
            self.scale.extend(squares.iter().map(|&square| bound::scale(square)));
            self.squares.extend_from_slice(&squares);
        }
        self.largest.resize(blocks, 0.0);
        // The first block may already be partly filled.
        let head = before.next_multiple_of(BLOCK).min(before + count) - before;
        let (head, rest) = squares.split_at(head);
        let whole = rest.chunks(BLOCK);
        for (block, squares) in (before / BLOCK..).zip([head].into_iter().filter(|h| !h.is_empty()).chain(whole)) {
            self.largest[block] = self.largest[block].max(largest_norm(self.metric, squares.iter().copied()));
        }
        Ok(())
    }

    fn search(&self, queries: VectorSlice<'_>, k: usize, ids: &mut [u64], distances: &mut [f32]) -> Result<()> {
        let plan = ScanPlan::new(self, queries.len(), k.min(self.len()), rayon::current_num_threads());
        let path = if plan.direct { "query by query" } else { "panels of queries" };
        events::path("exact search", || self.describe(), path, queries.len());
        self.search_planned(plan, queries.components(), k, ids, distances);
        Ok(())
    }

    fn len(&self) -> usize {
        self.rows.len() / self.dim
    }

    fn truncate(&mut self, len: usize) {
        self.rows.truncate(len * self.dim);
        self.offset.truncate(len);
        self.scale.truncate(len);
        self.squares.truncate(len);
        // The norm of the last block may now be larger than needed, which is still a bound.
        self.largest.truncate(len.div_ceil(BLOCK));
    }

    fn rows(&self, first: u64, to: VectorSliceMut<'_>) -> Result<()> {
        let (to, start) = (to.components::<T>(), first as usize * self.dim);
        to.copy_from_slice(&self.rows[start..start + to.len()]);
        Ok(())
    }

    fn describe(&self) -> String {
        describe_cpu(Some(self.isa))
    }
}

/// The division of a search into groups and runs.
#[derive(Debug, Clone, Copy)]
struct ScanPlan {
    /// Number of neighbours to find: min(k, rows).
    k: usize,
    /// Number of queries scanned together.
    group: usize,
    /// Number of tasks that share the base of a group; 1 if the groups alone keep the threads busy.
    workers: usize,
    /// Number of rows that a worker takes at a time, a multiple of [`BLOCK`].
    run: usize,
    /// Whether the lanes are along the components (few queries) instead of along the queries.
    direct: bool,
}

impl ScanPlan {
    fn new<T: Element>(index: &FlatCpu<T>, queries: usize, k: usize, threads: usize) -> Self {
        let rows = index.len();
        let lanes = index.isa.lanes();
        let fit = index.budget / (Candidates::bytes(k, rows) as u64).saturating_mul(threads as u64);
        let fit = usize::try_from(fit).unwrap_or(usize::MAX).max(1);
        let wanted = queries.div_ceil(4 * threads).clamp(*GROUP.start(), *GROUP.end()).min(fit);
        let groups = queries.div_ceil(wanted);
        let group = queries.div_ceil(groups).next_multiple_of(lanes).min(wanted);
        let groups = queries.div_ceil(group);
        let workers = (4 * threads).div_ceil(groups).min(threads).min(rows.div_ceil(BLOCK)).max(1);
        let run = if workers == 1 { rows } else { (rows / (workers * 8)).min(4096) };
        let run = run.max(1).next_multiple_of(BLOCK);
        Self { k, group, workers, run, direct: group.min(queries) <= DIRECT_QUERIES }
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

impl<T: Element> FlatCpu<T> {
    /// Finds the k best of every query, divided for `threads` threads.
    pub(crate) fn search_on(&self, threads: usize, queries: &[T], k: usize, ids: &mut [u64], distances: &mut [f32]) {
        let plan = ScanPlan::new(self, queries.len() / self.dim, k.min(self.len()), threads);
        self.search_planned(plan, queries, k, ids, distances);
    }

    fn search_planned(&self, plan: ScanPlan, queries: &[T], k: usize, ids: &mut [u64], distances: &mut [f32]) {
        queries
            .par_chunks(plan.group * self.dim)
            .with_max_len(1)
            .zip(ids.par_chunks_mut(plan.group * k))
            .zip(distances.par_chunks_mut(plan.group * k))
            .for_each(|((queries, ids), distances)| self.search_group(&plan, queries, k, ids, distances));
    }

    fn search_group(&self, plan: &ScanPlan, queries: &[T], k: usize, ids: &mut [u64], distances: &mut [f32]) {
        let prepared = Prepared::new(self, queries, plan.direct);
        let limits: Vec<Limit> = prepared.queries.bounds.iter().map(|_| Limit::new()).collect();
        let next = AtomicUsize::new(0);
        let mut shares: Vec<Vec<Candidates>> =
            turns(0..plan.workers).with_max_len(1).map(|_| self.scan_share(plan, &prepared, &limits, &next)).collect();
        let mut merged = shares.pop().unwrap_or_default();
        for share in shares {
            for (merged, share) in merged.iter_mut().zip(share) {
                merged.absorb(share);
            }
        }
        // The queries are finished together, in the order of the base, so that a row that several of them need is fetched once.
        let company = merged.len().div_ceil(plan.workers);
        ids.par_chunks_mut(company * k)
            .zip(distances.par_chunks_mut(company * k))
            .zip(merged.par_chunks_mut(company))
            .zip(limits.par_chunks(company))
            .enumerate()
            .for_each(|(at, (((ids, distances), candidates), limits))| {
                self.finish(&prepared, at * company, candidates, limits);
                let slots = ids.chunks_mut(k).zip(distances.chunks_mut(k));
                for ((ids, distances), candidates) in slots.zip(candidates) {
                    ids.fill(NONE);
                    distances.fill(self.metric.worst());
                    for ((id, distance), key) in ids.iter_mut().zip(distances).zip(candidates.take_best()) {
                        *id = u64::from(candidates::id(key));
                        *distance = candidates::distance(self.metric, key);
                    }
                }
            });
    }

    /// Computes the canonical distances of all remaining candidates of the queries from `first` on.
    fn finish(&self, prepared: &Prepared, first: usize, candidates: &mut [Candidates], limits: &[Limit]) {
        for (candidates, limit) in candidates.iter_mut().zip(limits) {
            candidates.close(limit);
        }
        let mut done = vec![0; candidates.len()];
        let step = (TILE_BYTES / (self.dim * size_of::<T>())).max(1);
        for start in (0..self.len()).step_by(step) {
            for (at, (candidates, done)) in candidates.iter_mut().zip(&mut done).enumerate() {
                let mut judge = self.judge(prepared, first + at);
                candidates.settle_below((start + step) as u64, done, &mut judge);
            }
        }
    }

    /// The part of one worker in a group: takes runs of the base until none is left.
    fn scan_share(
        &self,
        plan: &ScanPlan,
        prepared: &Prepared,
        limits: &[Limit],
        next: &AtomicUsize,
    ) -> Vec<Candidates> {
        let mut candidates: Vec<Candidates> = limits.iter().map(|_| Candidates::new(plan.k, self.len())).collect();
        let mut scratch = Vec::new();
        loop {
            let start = next.fetch_add(plan.run, Ordering::Relaxed);
            if start >= self.len() {
                return candidates;
            }
            let end = start.saturating_add(plan.run).min(self.len());
            for first in (start..end).step_by(tile_rows(self.dim)) {
                let last = (first + tile_rows(self.dim)).min(end);
                self.scan_tile(plan, prepared, limits, &mut candidates, &mut scratch, first..last);
            }
        }
    }

    fn scan_tile(
        &self,
        plan: &ScanPlan,
        prepared: &Prepared,
        limits: &[Limit],
        candidates: &mut [Candidates],
        scratch: &mut Vec<f32>,
        range: std::ops::Range<usize>,
    ) {
        let source = &self.rows[range.start * self.dim..range.end * self.dim];
        let rows = as_f32(source, scratch);
        let part = |factors: &'_ [f32]| if factors.is_empty() { 0..0 } else { range.clone() };
        let tile = Tile {
            dim: self.dim,
            rows,
            first_id: range.start as u32,
            scale: &self.scale[part(&self.scale)],
            offset: &self.offset[part(&self.offset)],
        };
        let largest = self.largest[range.start / BLOCK];
        let packed: &[f32] = bytemuck::cast_slice(&prepared.packed);
        for panel in &prepared.panels {
            let queries = panel.first..panel.first + panel.queries;
            // Padding lanes: only NaN passes −∞, and the sink drops NaN there.
            let thresholds = [const { Cell::new(f32::NEG_INFINITY) }; MAX_PANEL];
            let mut errors = [0.0; MAX_PANEL];
            for (lane, query) in queries.clone().enumerate() {
                errors[lane] = prepared.queries.bounds[query].error(largest);
                thresholds[lane].set(candidates[query].threshold(errors[lane], &limits[query]));
            }
            let mut survivors = Survivors {
                index: self,
                prepared,
                limits,
                first: panel.first,
                candidates: &mut candidates[queries],
                thresholds: &thresholds,
                errors: &errors,
            };
            let packed = &packed[panel.start..];
            if plan.direct {
                scan::scan_direct(self.isa, &tile, packed, &thresholds[..panel.queries], &mut survivors);
            } else {
                scan::scan_panel(self.isa, panel.vecs, &tile, packed, &thresholds, &mut survivors);
            }
        }
    }

    fn judge<'a>(&'a self, prepared: &'a Prepared, query: usize) -> PairJudge<'a, T> {
        PairJudge {
            index: self,
            query: prepared.queries.wide(query),
            bound: &prepared.queries.bounds[query],
            square: prepared.queries.squares[query],
            scratch: Vec::new(),
        }
    }
}

/// Files the pairs that pass the scan of one panel.
struct Survivors<'a, T: Element> {
    index: &'a FlatCpu<T>,
    prepared: &'a Prepared,
    limits: &'a [Limit],
    /// Number of the panel's first query.
    first: usize,
    candidates: &'a mut [Candidates],
    thresholds: &'a [Cell<f32>],
    errors: &'a [f64],
}

impl<T: Element> Sink for Survivors<'_, T> {
    fn take(&mut self, mut passed: u32, scores: &[f32; 16], first_query: usize, id: u32) {
        while passed != 0 {
            let bit = passed.trailing_zeros() as usize;
            passed &= passed - 1;
            let lane = first_query + bit;
            let Some(candidates) = self.candidates.get_mut(lane) else { return };
            if candidates.push(scores[bit % 16], id, self.errors[lane]) {
                let query = self.first + lane;
                let limit = &self.limits[query];
                candidates.make_room(&mut self.index.judge(self.prepared, query), limit);
                self.thresholds[lane].set(candidates.threshold(self.errors[lane], limit));
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
