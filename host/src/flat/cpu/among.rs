//! Searches among some of the rows: all rows are scanned and the others dropped, or, if few rows are accepted, these
//! are copied first.
//!
//! A scan of all rows costs as much as a search without bits, because only rows below a threshold are looked up. Copies
//! cost more memory traffic for each accepted row: it is read and written, the cache reads the place that is written,
//! and the scan reads the copy. So for few queries, where memory is the limit, copies are faster up to a quarter of the
//! rows. For many queries the products take most of the time, and copies are faster at larger shares too. Milliseconds
//! for 100,000 × 128 f32, k = 10, on two threads of an AMD EPYC with AVX-512, 2026-11-25
//! (`warpann-grid changes --device cpu`):
//!
//! | queries | all rows | one in 2 | one in 10 | one in 100 |
//! |---|---|---|---|---|
//! | 1 | 0.88 | 0.86, in place | 0.47 | 0.09 |
//! | 16 | 1.46 | 1.33, in place | 0.67 | 0.14 |
//! | 100 | 7.0 | 5.6 | 1.4 | 0.56 |
//! | 1,000 | 57 | 33 | 7.5 | 1.6 |

use super::rows::FlatCpu;
use crate::parallel::{Loop, ParallelSlice};
use crate::product::cpu::{BLOCK, candidates};
use crate::shards::merge;
use crate::{Bitset, Element, NONE, Neighbors, Result, host_memory};

/// The rows that a search may return.
#[derive(Debug, Clone, Copy)]
pub(super) struct Among<'a> {
    /// One bit for each row, set if a search may return the row; `None` if all are set.
    pub(super) bits: Option<&'a Bitset>,
    /// Number of these rows.
    pub(super) count: usize,
}

/// Number of queries from which up to a half of the rows are copied; with fewer queries, up to a quarter.
const MANY_QUERIES: usize = 64;

/// Smallest number of rows that are copied and searched at a time, even with a smaller budget.
pub(super) const LEAST_COPIES: usize = 4096;

impl<'a> Among<'a> {
    /// The rows whose bits are set, of `rows` rows; all rows if there are no bits.
    pub(super) fn new(bits: Option<&'a Bitset>, rows: usize) -> Among<'a> {
        let count = bits.map_or(rows, Bitset::count_ones);
        Among { bits: bits.filter(|_| count < rows), count }
    }

    /// The bits, if so few are set that the rows should be copied for a search for `queries` queries. No rows are few
    /// rows.
    pub(super) fn few(self, queries: usize) -> Option<&'a Bitset> {
        let share = if queries < MANY_QUERIES { 4 } else { 2 };
        self.bits.filter(|bits| self.count <= bits.len() / share)
    }
}

impl<T: Element> FlatCpu<T> {
    /// As [`search`](crate::flat::FlatBackend::search) among the rows whose bits are set, through copies of these rows.
    pub(super) fn search_copies(
        &self,
        few: &Bitset,
        queries: &[T],
        k: usize,
        ids: &mut [u64],
        distances: &mut [f32],
    ) -> Result<()> {
        ids.fill(NONE);
        distances.fill(self.metric.worst());
        let threads = rayon::current_num_threads();
        let mut more: Option<Neighbors> = None;
        self.for_copies(few, |piece, copies, numbers| {
            let named = |id: &mut u64| *id = if *id == NONE { NONE } else { u64::from(numbers[*id as usize]) };
            if piece == 0 {
                copies.search_on(threads, queries, k, ids, distances);
                ids.par_iter_mut().with_min_len(1 << 14).for_each(named);
                return Ok(());
            }
            let found = match &mut more {
                Some(found) => found,
                None => more.insert(Neighbors::none(self.metric, queries.len() / self.dim, k)?),
            };
            copies.search_on(threads, queries, k, &mut found.ids, &mut found.distances);
            found.ids.par_iter_mut().with_min_len(1 << 14).for_each(named);
            merge(self.metric, k, ids, distances, &[(&found.ids, &found.distances)]);
            Ok(())
        })
    }

    /// The keys of all rows whose bits are set within `radius` of each query, best first, through copies of these rows.
    pub(super) fn keys_within_of_copies(&self, few: &Bitset, queries: &[T], radius: f32) -> Result<Vec<Vec<u64>>> {
        let mut all: Vec<Vec<u64>> = host_memory::filled(Vec::new(), queries.len() / self.dim)?;
        self.for_copies(few, |_, copies, numbers| {
            let found = copies.keys_within(Among::new(None, numbers.len()), queries, radius)?;
            for (all, found) in all.iter_mut().zip(found) {
                host_memory::reserve(all, found.len())?;
                all.extend(found.iter().map(|&key| candidates::with_id(key, numbers[candidates::id(key) as usize])));
            }
            Ok(())
        })?;
        all.par_iter_mut().for_each(|keys| keys.sort_unstable());
        Ok(all)
    }

    /// Copies the rows whose bits are set, as many at a time as the budget allows. Calls `search` with the number of
    /// the piece, the copies and the numbers of their rows.
    fn for_copies(&self, few: &Bitset, mut search: impl FnMut(usize, &FlatCpu<T>, &[u32]) -> Result<()>) -> Result<()> {
        // The components, the factors of the score, the square and the number.
        let row_bytes = self.dim * size_of::<T>() + 2 * size_of::<f32>() + size_of::<f64>() + size_of::<u32>();
        let fit = usize::try_from(self.budget / row_bytes as u64).unwrap_or(usize::MAX);
        let mut numbers = host_memory::with_room(fit.max(LEAST_COPIES).min(few.count_ones()))?;
        let mut rows = few.runs().flatten().map(|row| row as u32);
        for piece in 0.. {
            numbers.clear();
            numbers.extend(rows.by_ref().take(numbers.capacity()));
            if numbers.is_empty() {
                break;
            }
            search(piece, &self.copies(&numbers)?, &numbers)?;
        }
        Ok(())
    }

    /// An index of copies of the rows with the numbers `numbers`.
    fn copies(&self, numbers: &[u32]) -> Result<FlatCpu<T>> {
        let mut rows = host_memory::zeroed(host_memory::count::<T>(&[numbers.len(), self.dim])?)?;
        let to = rows.par_chunks_exact_mut(self.dim).zip(numbers.par_iter()).with_min_len(256);
        to.for_each(|(to, &row)| to.copy_from_slice(self.row(row)));
        // The norm of a row is at most the largest of its block, so the norms need not be computed again.
        let largest = |numbers: &[u32]| {
            let norms = numbers.iter().map(|&row| self.largest[row as usize / BLOCK]);
            norms.fold(0.0, f32::max)
        };
        Ok(FlatCpu {
            rows,
            scale: gather(&self.scale, numbers)?,
            squares: gather(&self.squares, numbers)?,
            offset: gather(&self.offset, numbers)?,
            largest: host_memory::collected_in_parallel(numbers.par_chunks(BLOCK).map(largest))?,
            ..FlatCpu::with_isa(self.dim, self.metric, Some(self.budget), self.isa)
        })
    }
}

/// The values with the numbers `numbers`, or none if there are no values.
fn gather<V: Copy + Send + Sync>(values: &[V], numbers: &[u32]) -> Result<Vec<V>> {
    if values.is_empty() {
        return Ok(Vec::new());
    }
    host_memory::collected_in_parallel(numbers.par_iter().with_min_len(1 << 14).map(|&row| values[row as usize]))
}
