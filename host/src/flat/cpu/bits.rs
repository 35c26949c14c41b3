//! Vectors of bits under Hamming: scores are the distances, counted exactly.
//!
//! The scan, the groups, the thresholds and the candidates are those of [exact search](super). A score has no error, so
//! a candidate needs no second look.
//!
//! # Cost
//! nq · n · d bytes are compared, 64 at a time with AVX-512, from a tile of 256 rows in the L1 cache. Memory: the
//! vectors.

use super::among::Among;
use super::group::{Collected, Comparison, GroupTile, Rows, ScanPlan};
use crate::device::open::describe_cpu;
use crate::flat::backend::{FlatBackend, runs_of};
use crate::product::cpu::bits::{BitCount, offer};
use crate::product::cpu::bound::QueryBound;
use crate::product::cpu::candidates::{Candidates, Judge};
use crate::product::cpu::collect::{Ball, Collect, Collecting};
use crate::product::cpu::{DEFAULT_BUDGET, tile_rows};
use crate::search_options::SearchRequest;
use crate::simd::{Isa, fetched_ahead, prefetch};
use crate::vectors::{VectorSlice, VectorSliceMut};
use crate::{Bitset, Metric, RangeNeighbors, Result, events, host_memory};

/// The vectors of a flat index of bits, in host memory.
#[derive(Debug)]
pub(crate) struct FlatBits {
    /// Bytes of a vector.
    dim: usize,
    budget: u64,
    count: BitCount,
    rows: Vec<u8>,
}

impl FlatBits {
    pub(crate) fn new(dim: usize, budget: Option<u64>) -> FlatBits {
        FlatBits::counting_by(BitCount::detect(), dim, budget)
    }

    /// As [`new`](Self::new). The processor must have the instructions.
    pub(crate) fn counting_by(count: BitCount, dim: usize, budget: Option<u64>) -> FlatBits {
        FlatBits { dim, budget: budget.unwrap_or(DEFAULT_BUDGET), count, rows: Vec::new() }
    }

    fn row(&self, number: u32) -> &[u8] {
        &self.rows[number as usize * self.dim..][..self.dim]
    }

    /// A plan for all threads. The collector of a query takes up to `bytes` bytes.
    fn plan(&self, among: &Among<'_>, queries: usize, bytes: usize) -> ScanPlan {
        let threads = rayon::current_num_threads();
        ScanPlan::new((self.budget, 1), among.scanned(self.len()), queries, bytes, threads)
    }
}

impl FlatBackend for FlatBits {
    fn copied(&self, more: usize) -> Result<Box<dyn FlatBackend>> {
        let mut copy = FlatBits { rows: Vec::new(), ..*self };
        host_memory::reserve(&mut copy.rows, self.rows.len() + more * self.dim)?;
        copy.rows.extend_from_slice(&self.rows);
        Ok(Box::new(copy))
    }

    fn emptied(&self) -> Box<dyn FlatBackend> {
        Box::new(FlatBits { rows: Vec::new(), ..*self })
    }

    fn add(&mut self, rows: VectorSlice<'_>) -> Result<()> {
        host_memory::reserve(&mut self.rows, rows.bytes().len())?;
        self.rows.extend_from_slice(rows.bytes());
        Ok(())
    }

    fn replace(&mut self, numbers: &[u64], rows: VectorSlice<'_>) -> Result<()> {
        for (first, run) in runs_of(numbers) {
            let rows = rows.part(run).bytes();
            self.rows[first * self.dim..][..rows.len()].copy_from_slice(rows);
        }
        Ok(())
    }

    fn retain(&mut self, kept: &Bitset) -> Result<()> {
        let mut len = 0;
        for run in kept.runs() {
            self.rows.copy_within(run.start * self.dim..run.end * self.dim, len * self.dim);
            len += run.len();
        }
        self.truncate(len);
        Ok(())
    }

    fn search(&self, request: &SearchRequest<'_>, k: usize, ids: &mut [u64], distances: &mut [f32]) -> Result<()> {
        let count = request.queries.len();
        let among = Among::new(request.filter, self.len(), count)?;
        let kept = k.min(among.count(self.len()));
        let plan = self.plan(&among, count, Candidates::bytes(kept, self.len()));
        events::path("exact search", || self.describe(), "bits", count);
        let (of, queries) = ((Metric::Hamming, self.dim), request.queries.bytes());
        plan.search(of, &among, queries, (k, kept), (ids, distances), &|some| Counted::new(self, some));
        Ok(())
    }

    fn range_search(&self, queries: VectorSlice<'_>, radius: f32, among: Option<&Bitset>) -> Result<RangeNeighbors> {
        let count = queries.len();
        let among = Among::new(among, self.len(), count)?;
        let plan = self.plan(&among, count, size_of::<Ball>());
        events::path("exact range search", || self.describe(), "bits", count);
        let (of, queries) = ((Metric::Hamming, self.dim), queries.bytes());
        plan.search_range(of, &among, queries, radius, &|some| Counted::new(self, some))
    }

    fn bytes(&self) -> (u64, u64) {
        (self.rows.capacity() as u64, 0)
    }

    fn truncate(&mut self, len: usize) {
        self.rows.truncate(len * self.dim);
    }

    fn len(&self) -> usize {
        self.rows.len() / self.dim
    }

    fn host_rows(&self) -> Option<VectorSlice<'_>> {
        Some(VectorSlice::of(&self.rows, self.dim))
    }

    fn rows(&self, first: u64, to: VectorSliceMut<'_>) -> Result<()> {
        let (to, start) = (to.components::<u8>(), first as usize * self.dim);
        to.copy_from_slice(&self.rows[start..start + to.len()]);
        Ok(())
    }

    fn describe(&self) -> String {
        describe_cpu(Some(Isa::detect()))
    }
}

/// The queries of a group.
struct Counted<'a> {
    index: &'a FlatBits,
    /// Rows of the dimension of the index.
    queries: &'a [u8],
    /// The bound of each query, of which only the metric has a meaning.
    bounds: Vec<QueryBound>,
}

impl<'a> Counted<'a> {
    fn new(index: &'a FlatBits, queries: &'a [u8]) -> Counted<'a> {
        let bounds = vec![QueryBound::new(Metric::Hamming, index.dim, 0.0); queries.len() / index.dim];
        Counted { index, queries, bounds }
    }

    fn query(&self, number: usize) -> &'a [u8] {
        &self.queries[number * self.index.dim..][..self.index.dim]
    }
}

/// Memory of a worker: gathered rows, and the distances of a tile.
#[derive(Debug, Default)]
struct TileMemory {
    gathered: Vec<u8>,
    distances: Vec<u64>,
}

impl Comparison for Counted<'_> {
    type Scratch = TileMemory;
    const EXACT: bool = true;

    fn queries(&self) -> usize {
        self.bounds.len()
    }

    fn rows(&self) -> usize {
        self.index.len()
    }

    fn tile_rows(&self) -> usize {
        tile_rows(self.index.dim)
    }

    fn row_bytes(&self) -> usize {
        self.index.dim
    }

    fn compare<C: Collect>(&self, rows: &Rows<'_>, to: Collected<'_, C>, scratch: &mut TileMemory) {
        let (index, TileMemory { gathered, distances }) = (self.index, scratch);
        let (tile, first) = match rows {
            Rows::Range(range, _) => (&index.rows[range.start * index.dim..range.end * index.dim], range.start as u32),
            Rows::Listed(listed) => {
                gathered.clear();
                fetched_ahead(listed.len(), 0, |at| index.row(listed[at]))
                    .for_each(|row| gathered.extend_from_slice(row));
                (&gathered[..], 0)
            }
        };
        distances.resize(tile.len() / index.dim, 0);
        let Collected { limits, found } = to;
        let of = GroupTile { queries: self, rows, largest: 0.0 };
        let mut to = Collecting { bounds: &self.bounds, limits, found, tile: of };
        for number in 0..self.queries() {
            index.count.differences(self.query(number), tile, distances);
            offer(number, distances, first, &mut to);
        }
    }

    fn judge(&self, query: usize) -> impl Judge {
        PairJudge { index: self.index, query: self.query(query), bound: &self.bounds[query] }
    }
}

/// Computes the distances of one query.
struct PairJudge<'a> {
    index: &'a FlatBits,
    query: &'a [u8],
    bound: &'a QueryBound,
}

impl Judge for PairJudge<'_> {
    fn canonical(&mut self, id: u32) -> f32 {
        self.index.count.difference(self.query, self.index.row(id)) as f32
    }

    fn bound(&self) -> &QueryBound {
        self.bound
    }

    fn prefetch(&mut self, id: u32) {
        prefetch(self.index.row(id));
    }

    fn metric(&self) -> Metric {
        Metric::Hamming
    }
}
