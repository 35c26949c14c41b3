//! What a search returns.

pub(crate) mod slots;

use crate::parallel::{Loop, ParallelSlice, owned, turns};
use crate::{Error, Metric, Result};

/// The id in a slot that has no neighbour (fewer than k vectors in the index). No vector ever has it.
pub const NONE: u64 = u64::MAX;

/// The neighbours of a batch of queries: `k` slots a query, row-major, best first, equal distances by lower id.
///
/// A slot without a neighbour holds [`NONE`] and [`Metric::worst`](crate::Metric::worst); such slots come last in a row.
#[derive(Debug, Clone, PartialEq)]
pub struct Neighbors {
    /// Slots for each query; at least 1.
    pub k: usize,
    /// Ids, queries × `k`.
    pub ids: Vec<u64>,
    /// Canonical distances (see [`crate::metric`]), queries × `k`, in the places of `ids`.
    pub distances: Vec<f32>,
}

/// Slots that one thread initialises at least.
const PAGES: usize = 1 << 16;

impl Neighbors {
    /// Nothing but empty slots, for `k` neighbours of `queries` queries.
    pub(crate) fn none(metric: Metric, queries: usize, k: usize) -> Result<Neighbors> {
        let too_large = Error::ResultTooLarge { queries, k };
        let Some(slots) = queries.checked_mul(k) else { return Err(too_large) };
        let (mut ids, mut distances) = (Vec::new(), Vec::new());
        if ids.try_reserve_exact(slots).is_err() || distances.try_reserve_exact(slots).is_err() {
            return Err(too_large);
        }
        // In parallel: the first touch of fresh pages is what takes the time.
        turns(0..slots).with_min_len(PAGES).map(|_| NONE).collect_into_vec(&mut ids);
        turns(0..slots).with_min_len(PAGES).map(|_| metric.worst()).collect_into_vec(&mut distances);
        Ok(Neighbors { k, ids, distances })
    }

    /// Number of queries.
    pub fn queries(&self) -> usize {
        self.ids.len() / self.k.max(1)
    }

    /// Ids and distances of query `query`, `k` each.
    ///
    /// # Panics
    /// If there is no such query, as slice indexing does.
    pub fn row(&self, query: usize) -> (&[u64], &[f32]) {
        let row = query * self.k..(query + 1) * self.k;
        (&self.ids[row.clone()], &self.distances[row])
    }

    /// The rows in the order of the queries.
    pub fn rows(&self) -> impl ExactSizeIterator<Item = (&[u64], &[f32])> {
        let k = self.k.max(1);
        self.ids.chunks_exact(k).zip(self.distances.chunks_exact(k))
    }

    /// The neighbours of query `query` as (id, distance), without the empty slots.
    ///
    /// # Panics
    /// If there is no such query, as slice indexing does.
    pub fn found(&self, query: usize) -> impl Iterator<Item = (u64, f32)> {
        let (ids, distances) = self.row(query);
        ids.iter().copied().zip(distances.iter().copied()).take_while(|&(id, _)| id != NONE)
    }
}

/// What a range search returns: for each query some number of vectors, best first, equal distances by lower id.
#[derive(Debug, Clone, PartialEq)]
pub struct RangeNeighbors {
    /// Where each query's results start in `ids` and `distances`; then the number of all: queries + 1 numbers.
    pub offsets: Vec<usize>,
    /// Ids.
    pub ids: Vec<u64>,
    /// Canonical distances, in the places of `ids`.
    pub distances: Vec<f32>,
}

impl RangeNeighbors {
    /// Number of queries.
    pub fn queries(&self) -> usize {
        self.offsets.len().saturating_sub(1)
    }

    /// Results query by query, ids with distances.
    pub(crate) fn of_rows(rows: Vec<Vec<(u64, f32)>>) -> RangeNeighbors {
        let mut offsets = vec![0];
        for row in &rows {
            offsets.push(offsets[offsets.len() - 1] + row.len());
        }
        let count = offsets[rows.len()];
        let (mut ids, mut distances) = (vec![0; count], vec![0.0; count]);
        let (mut rest_of_ids, mut rest_of_distances) = (&mut ids[..], &mut distances[..]);
        let slots = rows.iter().map(|row| {
            let split = std::mem::take(&mut rest_of_ids).split_at_mut(row.len());
            let own_ids = split.0;
            rest_of_ids = split.1;
            let split = std::mem::take(&mut rest_of_distances).split_at_mut(row.len());
            rest_of_distances = split.1;
            (own_ids, split.0)
        });
        owned(slots.collect()).zip(rows.par_iter()).for_each(|((ids, distances), row)| {
            row.iter().zip(ids).zip(distances).for_each(|((found, id), distance)| (*id, *distance) = *found);
        });
        RangeNeighbors { offsets, ids, distances }
    }

    /// Ids and distances of query `query`.
    ///
    /// # Panics
    /// If there is no such query, as slice indexing does.
    pub fn row(&self, query: usize) -> (&[u64], &[f32]) {
        let row = self.offsets[query]..self.offsets[query + 1];
        (&self.ids[row.clone()], &self.distances[row])
    }
}
