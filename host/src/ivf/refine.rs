//! Exact re-ranking of candidates by the original vectors.
//!
//! # Cost
//! Reading the vectors, which are anywhere in memory. A thread computes the distance of one vector while the next are
//! on their way ([`fetched_ahead`]), also from the last candidates of a query to the first of the next. Floor of
//! 120,000 vectors of 1,536 bytes on 16 threads of a Xeon: 2.4 ms, 78 GB/s, by a loop of nothing else (2026-11-30).
//!
//! # What lost
//! - Reading the vectors by the GPU, from registered memory over the bus: 3.65 ms, 50 GB/s, on the same machine.
//! - Ranking candidates of some queries while a device searches for others: 9.5 ms for 110,000 vectors, of which the
//!   search alone takes 2.1. One after the other took 7.6, on another machine of the kind.
//! - Threads of the device that look for work meanwhile ([`rest`]): 7.5 to 8.1 ms for 120,000 vectors, and 6.2 without,
//!   on another machine of the kind.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::ids::ascending;
use crate::parallel::{Loop, ParallelSlice, turns};
use crate::product::cpu::Scorer;
use crate::simd::{fetched_ahead, prefetch};
use crate::threads::rest;
use crate::validate::{check_dim, check_length, check_results, check_vectors, check_whole};
use crate::{Element, Error, Input, Metric, NONE, Neighbors, Result, host_memory};

/// Ranks candidates by the original vectors of an index: of the results of a search in compressed codes, it makes
/// results as exact as those of an exact search among the same candidates.
/// [`IvfIndex::search_refined`](crate::IvfIndex::search_refined) finds candidates and ranks them in one call.
///
/// It works on the CPU, on whichever device the index is: the candidates of a query are few.
///
/// ```
/// use warpann::ivf::Refiner;
/// use warpann::{Metric, Neighbors};
///
/// // Four vectors of dimension 1 and their ids. The search has found 100, 103 and 101, in the wrong order.
/// let (base, ids) = ([0.0, 1.0, 2.0, 3.0f32], [100, 101, 102, 103]);
/// let rough = Neighbors { k: 3, ids: vec![100, 103, 101], distances: vec![0.5, 0.5, 0.5] };
/// let exact = Refiner::new(Metric::L2, 1, &base)?.with_ids(&ids)?.refine(&[0.9], &rough, 2)?;
/// assert_eq!(exact.ids, [101, 100]);
/// # Ok::<(), warpann::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Refiner<'a, T: Element> {
    metric: Metric,
    dim: usize,
    base: &'a [T],
    /// Id and row of each vector, by ascending id; `None` if ids and rows are equal.
    rows: Option<Vec<(u64, usize)>>,
}

/// Bytes of candidates' vectors from which ranking fills the pool for longer than a thread takes to wake.
const POOL_BYTES: usize = 16 << 20;
/// Number of candidates of the next query whose vectors are fetched before its turn.
const NEXT: usize = 16;

/// A candidate, ranked by its original vector.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ranked {
    /// The canonical distance of the original vector.
    pub(super) distance: f32,
    pub(super) id: u64,
    /// The distance that came with the candidate.
    pub(super) rough: f32,
}

impl<'a, T: Element> Refiner<'a, T> {
    /// Takes the vectors of `base`, row-major, `dim` components each. The id of a vector is its row, unless
    /// [`with_ids`](Self::with_ids) sets ids. O(1): only the rows of candidates of a mapped base are read.
    ///
    /// # Errors
    /// [`Error::Zero`], [`Error::Ragged`]; [`Error::Mismatch`] for [`Metric::Hamming`] of other vectors than u8.
    pub fn new(metric: Metric, dim: usize, base: &'a [T]) -> Result<Self> {
        check_dim(dim)?;
        check_whole(base, dim)?;
        metric.check_element(T::TYPE)?;
        Ok(Self { metric, dim, base, rows: None })
    }

    /// Sets ids of the vectors: `ids[row]` is the id of row `row`. O(rows · log rows), and 16 bytes for each row.
    ///
    /// # Errors
    /// [`Error::WrongLength`] if there is not one id for each row; [`Error::DuplicateId`], [`Error::ReservedId`];
    /// [`Error::OutOfHostMemory`].
    pub fn with_ids(self, ids: &[u64]) -> Result<Self> {
        let count = self.base.len() / self.dim;
        check_length("ids", count, ids.len())?;
        if ascending(ids)?.last() == Some(&NONE) {
            return Err(Error::ReservedId);
        }
        let mut rows = host_memory::collected_in_parallel(ids.par_iter().map(|&id| id).zip(turns(0..count)))?;
        rows.par_sort_unstable();
        Ok(Self { rows: Some(rows), ..self })
    }

    /// Checks that these are vectors for an index of this dimension and metric.
    pub(super) fn check_for(&self, dim: usize, metric: Metric) -> Result<()> {
        if self.dim != dim {
            return Err(Error::WrongDimension { expected: dim, actual: self.dim });
        }
        if self.metric != metric {
            let (expected, actual) = (metric.name(), self.metric.name());
            return Err(Error::Mismatch { what: "metric of the refiner", expected, actual });
        }
        Ok(())
    }

    /// Finds the `k` best of each query's candidates by (canonical distance from the original vector, lower id).
    /// `queries` holds one vector for each row of `candidates`. Empty slots of `candidates` are skipped, and an id that
    /// occurs twice counts once. If a query has fewer than `k` candidates, the row ends with [`NONE`] and
    /// [`Metric::worst`]. O(candidates · (dim + log rows)).
    ///
    /// # Errors
    /// [`Error::Zero`]; [`Error::Ragged`]; [`Error::NotFinite`] for a query, or for a candidate's vector;
    /// [`Error::WrongLength`] if `candidates` does not have k slots for each query; [`Error::UnknownId`] for a
    /// candidate that is not the id of a vector; [`Error::ResultTooLarge`].
    pub fn refine(&self, queries: &[T], candidates: &Neighbors, k: usize) -> Result<Neighbors> {
        if k == 0 || candidates.k == 0 {
            return Err(Error::Zero { what: "k" });
        }
        let count = check_vectors(queries, self.dim, Input::Queries)?;
        check_results(count, candidates.k, &candidates.ids, &candidates.distances)?;
        self.check_known(candidates)?;
        self.refine_each(queries, candidates, k, |_, _| Ok(()))
    }

    /// As [`refine`](Self::refine), of queries and candidates that were checked. Calls `each` with the number of each
    /// query and its candidates, best first, and returns the error of the first query that has one.
    pub(super) fn refine_each(
        &self,
        queries: &[T],
        candidates: &Neighbors,
        k: usize,
        each: impl Fn(usize, &[Ranked]) -> Result<()> + Sync,
    ) -> Result<Neighbors> {
        if (self.dim * size_of::<T>()).saturating_mul(candidates.ids.len()) >= POOL_BYTES {
            rest();
        }
        let finite = AtomicBool::new(true);
        let mut found = Neighbors::none(self.metric, queries.len() / self.dim, k)?;
        let rows = candidates.ids.par_chunks_exact(candidates.k);
        let rows = rows.zip(candidates.distances.par_chunks_exact(candidates.k)).enumerate();
        let failed: Mutex<Option<(usize, Error)>> = Mutex::new(None);
        found
            .ids
            .par_chunks_mut(k)
            .zip(found.distances.par_chunks_mut(k))
            .zip(queries.par_chunks_exact(self.dim).zip(rows))
            .for_each_init(Vec::new, |scratch, ((ids, distances), (query, (row, (of_query, rough))))| {
                // The next query is most often of the same thread.
                let next = candidates.ids.get((row + 1) * candidates.k..).unwrap_or_default();
                prefetch(queries.get((row + 1) * self.dim..).map_or(&[][..], |next| &next[..self.dim.min(next.len())]));
                let pairs = of_query.iter().copied().zip(rough.iter().copied());
                let Some(ranked) = self.ranked(query, pairs, next, scratch) else {
                    finite.store(false, Ordering::Relaxed);
                    return;
                };
                let slots = ids.iter_mut().zip(distances).zip(&ranked);
                slots.for_each(|((id, distance), best)| (*distance, *id) = (best.distance, best.id));
                if let Err(error) = each(row, &ranked) {
                    let mut failed = failed.lock().unwrap_or_else(PoisonError::into_inner);
                    if failed.as_ref().is_none_or(|&(first, _)| row < first) {
                        *failed = Some((row, error));
                    }
                }
            });
        if !finite.into_inner() {
            self.check_finite(&candidates.ids)?;
        }
        match failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
            Some((_, error)) => Err(error),
            None => Ok(found),
        }
    }

    /// The candidates of one query, pairs of an id and a distance, best first; `None` if the vector of a candidate is
    /// not finite. The first of the vectors of `next` are fetched meanwhile.
    fn ranked(
        &self,
        query: &[T],
        candidates: impl Iterator<Item = (u64, f32)>,
        next: &[u64],
        scratch: &mut Vec<f32>,
    ) -> Option<Vec<Ranked>> {
        let scorer = Scorer::new(self.metric, query);
        let row = |(id, rough)| Some((id, rough, self.row_of(id)?));
        // The caller has checked that every candidate has a row.
        let mut rows: Vec<(u64, f32, usize)> = candidates.filter(|&(id, _)| id != NONE).filter_map(row).collect();
        let count = rows.len();
        rows.extend(next.iter().take(NEXT).filter_map(|&id| row((id, 0.0))));
        let vectors = fetched_ahead(count, rows.len() - count, |at| self.vector(rows[at].2));
        let distance = |(&(id, rough, _), vector): (&(u64, f32, usize), &[T])| {
            let distance = scorer.distance(vector, scratch);
            // No vector with a component that is not finite has a finite distance.
            (distance.is_finite() || T::all_finite(vector)).then_some(Ranked { distance, id, rough })
        };
        let mut ranked: Vec<Ranked> = rows.iter().zip(vectors).map(distance).collect::<Option<_>>()?;
        ranked.sort_unstable_by(|a, b| self.metric.order(a.distance, b.distance).then(a.id.cmp(&b.id)));
        // Equal ids have equal distances.
        ranked.dedup_by_key(|best| best.id);
        Some(ranked)
    }

    /// Checks that every candidate is the id of a vector.
    pub(super) fn check_known(&self, candidates: &Neighbors) -> Result<()> {
        let unknown = |&id: &u64| id != NONE && self.row_of(id).is_none();
        match candidates.ids.par_iter().position_first(unknown) {
            Some(at) => Err(Error::UnknownId { id: candidates.ids[at], len: (self.base.len() / self.dim) as u64 }),
            None => Ok(()),
        }
    }

    /// Checks that the vectors with these ids are finite; the error names the lowest row of the base that is not.
    fn check_finite(&self, ids: &[u64]) -> Result<()> {
        let bad = |&id: &u64| self.row_of(id).filter(|&row| !T::all_finite(self.vector(row)));
        let lowest = |a: Option<usize>, b: Option<usize>| a.into_iter().chain(b).min();
        let Some(row) = ids.par_iter().map(bad).reduce(|| None, lowest) else { return Ok(()) };
        check_vectors(self.vector(row), self.dim, Input::Base).map(drop).map_err(|error| error.after_rows(row))
    }

    /// The row of the vector with this id.
    fn row_of(&self, id: u64) -> Option<usize> {
        match &self.rows {
            None => usize::try_from(id).ok().filter(|&row| row < self.base.len() / self.dim),
            Some(rows) => rows.binary_search_by_key(&id, |&(id, _)| id).ok().map(|at| rows[at].1),
        }
    }

    fn vector(&self, row: usize) -> &[T] {
        &self.base[row * self.dim..][..self.dim]
    }
}
