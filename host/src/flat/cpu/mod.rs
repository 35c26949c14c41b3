//! Exact search on the CPU: a certified f32 filter, and the canonical distance for the pairs that pass it.
//!
//! # Problem
//!
//! For each of nq queries find, among n vectors of dimension d, the k best by (canonical distance, lower id). The
//! canonical distance ([`crate::metric`]) is a float64 sum in a fixed order, which is far slower than a float32 matrix
//! product. So all pairs get a float32 *score*. A proof ([`bound`](crate::product::cpu::bound)) bounds its difference
//! from the canonical value, and only pairs that the bound cannot exclude get the canonical distance.
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
//! limit\[q\] is an upper bound of the k-th best distance. It never rises, and workers share it through an atomic.
//! Timing decides which candidates survive, but not the result: every candidate that could be among the k best
//! survives.
//!
//! A range search is the same scan with constant thresholds: a row within the radius has a score of at most the
//! radius's t plus E ([`bound`](crate::product::cpu::bound)). Rows that pass get their canonical distances, in batches
//! for each query. A search among some of the rows drops the other rows as they pass the scan, or scans only the
//! accepted rows if these are few (`among.rs`).
//!
//! # What makes it fast
//!
//! 1. *No memory of size nq · n.* Scores stay in registers. A score that fails (nearly all do) costs a sixteenth of a
//!    comparison.
//! 2. *The base is never packed.* Queries are the lanes and are packed once for each group; the base's components are
//!    broadcast from its row-major storage. With a base stored in panels, the re-rank would gather d cache lines for
//!    each vector.
//! 3. *Prefetch.* The processor's prefetcher does not follow 16 rows read side by side by broadcasts. Prefetching the
//!    next rows made 16 queries 2.2 times as fast and one query 1.3 times.
//! 4. *Few queries* ([`DIRECT_QUERIES`]) have the lanes along the components instead, because with one query 15 of 16
//!    lanes would be idle. Then memory is the limit: 39 GB/s of base on two cores.
//! 5. *Scale and sign in the query.* The packed query is −2x, −x or −x/‖x‖, so a score is one product or sum after the
//!    dot product.
//! 6. *Thinning on integers.* (score, id) is one u64 in the order of the scores.
//! 7. *Finishing several queries together.* A group's candidates are judged in the order of the base, so a row that
//!    several queries need comes from the L2 cache. With the query widened to f64 once, k = 1000 of 20,000 × 960 became
//!    1.4 times as fast.
//!
//! # Cost
//!
//! 2 · nq · n · d float32 operations, at 165 GFLOP/s per core from a few hundred queries up. The base is streamed once
//! for each group. A query appends about k + k·log₂(n/2k) candidates, and takes k canonical distances plus those within
//! 2E of the k-th. Memory: n · d elements, at most 12 bytes more per vector, and 8(2k + max(k, 64)) bytes for each
//! query of the groups in flight. If E exceeds the differences of the data (all vectors alike, or a cloud far from the
//! origin), each pair gets its canonical distance: slow, and right.
//!
//! # Tried, and lost
//!
//! (AVX-512 of a Sapphire Rapids Xeon, 2 cores, 200,000 × 128 f32; CPU time of both threads together.)
//!
//! - Lanes along the components for up to 8 queries: 14.6 ms for 8; panels take 8.6 ms for 1 to 16.
//! - Each query finished alone, in the order of the scores: 1.37 s against 1.16 s for 2000 queries, k = 1000.
//! - 2 MiB pages for the base (through the allocator's tunable): 5 to 12 % faster. Not kept, since it needs a system
//!   call that no dependency offers safely.

mod among;
mod bits;
mod group;
mod numbers;
mod rows;
#[cfg(test)]
mod tests;

use self::among::Among;
pub(crate) use self::bits::FlatBits;
use self::group::ScanPlan;
use self::numbers::Packed;
pub(crate) use self::rows::FlatCpu;
use super::backend::{FlatBackend, runs_of};
use crate::device::open::describe_cpu;
use crate::parallel::{Loop, ParallelSlice};
use crate::product::cpu::bound::{has_offset, largest_norm};
use crate::product::cpu::candidates::Candidates;
use crate::product::cpu::collect::Ball;
use crate::product::cpu::{BLOCK, DIRECT_QUERIES, canonical_square};
use crate::search_options::SearchRequest;
use crate::vectors::{VectorSlice, VectorSliceMut};
use crate::{Bitset, Element, Metric, RangeNeighbors, Result, events, host_memory};

impl<T: Element> FlatBackend for FlatCpu<T> {
    fn copied(&self, more: usize) -> Result<Box<dyn FlatBackend>> {
        let mut copy = FlatCpu::<T>::with_isa(self.dim, self.metric, Some(self.budget), self.isa);
        host_memory::reserve(&mut copy.rows, self.rows.len() + more * self.dim)?;
        copy.add(VectorSlice::of(&self.rows, self.dim))?;
        Ok(Box::new(copy))
    }

    fn emptied(&self) -> Box<dyn FlatBackend> {
        Box::new(FlatCpu::<T>::with_isa(self.dim, self.metric, Some(self.budget), self.isa))
    }

    fn add(&mut self, rows: VectorSlice<'_>) -> Result<()> {
        let rows: &[T] = rows.components();
        let (before, count) = (self.len(), rows.len() / self.dim);
        let blocks = (before + count).div_ceil(BLOCK);
        let (offsets, scales) = (self.factors(has_offset, count), self.factors(Metric::divides_by_norms, count));
        // Memory comes first: from here on nothing fails.
        host_memory::reserve(&mut self.rows, rows.len())?;
        host_memory::reserve(&mut self.offset, offsets)?;
        host_memory::reserve(&mut self.scale, scales)?;
        host_memory::reserve(&mut self.squares, scales)?;
        let more = blocks - self.largest.len();
        host_memory::reserve(&mut self.largest, more)?;
        let squares = self.squares_of(rows)?;
        self.rows.extend_from_slice(rows);
        self.offset.resize(self.offset.len() + offsets, 0.0);
        self.scale.resize(self.scale.len() + scales, 0.0);
        self.squares.resize(self.squares.len() + scales, 0.0);
        self.largest.resize(blocks, 0.0);
        self.set_norms(before, &squares);
        Ok(())
    }

    fn replace(&mut self, numbers: &[u64], rows: VectorSlice<'_>) -> Result<()> {
        let rows: &[T] = rows.components();
        let squares = self.squares_of(rows)?;
        for (first, run) in runs_of(numbers) {
            let rows = &rows[run.start * self.dim..run.end * self.dim];
            self.rows[first * self.dim..][..rows.len()].copy_from_slice(rows);
            self.set_norms(first, &squares[run]);
        }
        Ok(())
    }

    fn retain(&mut self, kept: &Bitset) -> Result<()> {
        let mut len = 0;
        // The rows before the first removed row stay where they are.
        let mut moved = None;
        for run in kept.runs() {
            if run.start > len {
                moved.get_or_insert(len);
                self.rows.copy_within(run.start * self.dim..run.end * self.dim, len * self.dim);
                copy_within_if_any(&mut self.offset, run.clone(), len);
                copy_within_if_any(&mut self.scale, run.clone(), len);
                copy_within_if_any(&mut self.squares, run.clone(), len);
            }
            len += run.len();
        }
        self.truncate(len);
        let block = moved.unwrap_or(len) / BLOCK;
        let (metric, isa, dim) = (self.metric, self.isa, self.dim);
        let rows = &self.rows[(block * BLOCK).min(len) * dim..];
        let largest = self.largest.get_mut(block..).unwrap_or_default();
        largest.par_iter_mut().zip(rows.par_chunks(BLOCK * dim)).for_each(|(largest, rows)| {
            *largest = largest_norm(metric, rows.chunks_exact(dim).map(|row| canonical_square(isa, row)));
        });
        Ok(())
    }

    fn search(&self, request: &SearchRequest<'_>, k: usize, ids: &mut [u64], distances: &mut [f32]) -> Result<()> {
        let count = request.queries.len();
        let among = Among::new(request.filter, self.len(), count)?;
        let kept = k.min(among.count(self.len()));
        let bytes = Candidates::bytes(kept, self.len());
        let plan = self.plan(&among, count, bytes, rayon::current_num_threads());
        let panels = plan.group.min(count) > DIRECT_QUERIES;
        let path = match (&among, panels) {
            (Among::Listed(_), _) => "few rows",
            (_, true) => "panels of queries",
            (_, false) => "query by query",
        };
        events::path("exact search", || self.describe(), path, count);
        let queries = request.queries.components();
        plan.search((self.metric, self.dim), &among, queries, (k, kept), (ids, distances), &|some| {
            Packed::new(self, some)
        });
        Ok(())
    }

    fn range_search(&self, queries: VectorSlice<'_>, radius: f32, among: Option<&Bitset>) -> Result<RangeNeighbors> {
        let count = queries.len();
        let among = Among::new(among, self.len(), count)?;
        let path = if matches!(among, Among::Listed(_)) { "few rows" } else { "all rows" };
        events::path("exact range search", || self.describe(), path, count);
        let plan = self.plan(&among, count, size_of::<Ball>(), rayon::current_num_threads());
        let queries = queries.components();
        plan.search_range((self.metric, self.dim), &among, queries, radius, &|some| Packed::new(self, some))
    }

    fn bytes(&self) -> (u64, u64) {
        let floats = self.scale.capacity() + self.offset.capacity() + self.largest.capacity();
        let bytes = self.rows.capacity() * size_of::<T>()
            + self.squares.capacity() * size_of::<f64>()
            + floats * size_of::<f32>();
        (bytes as u64, 0)
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

    fn host_rows(&self) -> Option<VectorSlice<'_>> {
        Some(VectorSlice::of(&self.rows, self.dim))
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

/// Moves the values of `range` to `to`, unless there are no values.
fn copy_within_if_any<V: Copy>(values: &mut [V], range: std::ops::Range<usize>, to: usize) {
    if !values.is_empty() {
        values.copy_within(range, to);
    }
}

impl<T: Element> FlatCpu<T> {
    /// A plan for `threads` threads. The collector of a query takes up to `bytes` bytes.
    fn plan(&self, among: &Among<'_>, queries: usize, bytes: usize, threads: usize) -> ScanPlan {
        ScanPlan::new((self.budget, self.isa.lanes()), among.scanned(self.len()), queries, bytes, threads)
    }

    /// Finds the k best of every query, divided for `threads` threads.
    pub(crate) fn search_on(&self, threads: usize, queries: &[T], k: usize, ids: &mut [u64], distances: &mut [f32]) {
        let (among, kept) = (Among::All, k.min(self.len()));
        let plan = self.plan(&among, queries.len() / self.dim, Candidates::bytes(kept, self.len()), threads);
        plan.search((self.metric, self.dim), &among, queries, (k, kept), (ids, distances), &|some| {
            Packed::new(self, some)
        });
    }
}
