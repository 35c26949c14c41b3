//! The results of searches.

pub(crate) mod slots;

use crate::parallel::{Loop, ParallelSlice, owned, turns};
use crate::serialised::deserialised;
use crate::{Error, Metric, Result, host_memory};

/// The id in a slot without a neighbour, which occurs if the index has fewer than k vectors. No vector can have this
/// id.
pub const NONE: u64 = u64::MAX;

/// The neighbours of a batch of queries: `k` slots for each query, row-major, best first, equal distances by lower id.
///
/// A slot without a neighbour holds [`NONE`] and [`Metric::worst`](crate::Metric::worst); such slots come last in a
/// row.
#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Neighbors {
    /// Slots for each query; at least 1.
    pub k: usize,
    /// Ids of the neighbours, queries × `k`.
    pub ids: Vec<u64>,
    /// Canonical distances (see [`crate::metric`]), queries × `k`, in the order of `ids`.
    #[cfg_attr(feature = "serde", serde(with = "crate::serialised::Numbers"))]
    pub distances: Vec<f32>,
}

deserialised!(Neighbors {
    k: usize,
    ids: Vec<u64>,
    #[serde(with = "crate::serialised::Numbers")]
    distances: Vec<f32>,
} => |k, ids, distances| {
    if k == 0 || !ids.len().is_multiple_of(k) || distances.len() != ids.len() {
        return Err(format!("{} ids and {} distances are not rows of k = {k}", ids.len(), distances.len()));
    }
    Ok(Neighbors { k, ids, distances })
});

/// Smallest number of slots that one thread initialises.
const PAGES: usize = 1 << 16;

impl Neighbors {
    /// Empty slots for `k` neighbours of `queries` queries.
    pub(crate) fn none(metric: Metric, queries: usize, k: usize) -> Result<Neighbors> {
        let too_large = Error::ResultTooLarge { queries, k };
        let Some(slots) = queries.checked_mul(k) else { return Err(too_large) };
        let (mut ids, mut distances) = (Vec::new(), Vec::new());
        if ids.try_reserve_exact(slots).is_err() || distances.try_reserve_exact(slots).is_err() {
            return Err(too_large);
        }
        // In parallel, because the first access to new pages takes most of the time.
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
    /// Panics if there is no such query, as slice indexing does.
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
    /// Panics if there is no such query, as slice indexing does.
    pub fn found(&self, query: usize) -> impl Iterator<Item = (u64, f32)> {
        let (ids, distances) = self.row(query);
        ids.iter().copied().zip(distances.iter().copied()).take_while(|&(id, _)| id != NONE)
    }
}

/// Empties the slots of neighbours that are farther than `radius`, if there is one. Rows have `k` slots and are sorted.
/// O(rows · log k), and the slots that are emptied.
pub(crate) fn cut_off(metric: Metric, radius: Option<f32>, k: usize, ids: &mut [u64], distances: &mut [f32]) {
    let Some(radius) = radius else { return };
    let rows = ids.par_chunks_exact_mut(k).zip(distances.par_chunks_exact_mut(k));
    rows.with_min_len(1 << 10).for_each(|(ids, distances)| {
        let kept = distances.partition_point(|&distance| metric.within(distance, radius));
        ids[kept..].fill(NONE);
        distances[kept..].fill(metric.worst());
    });
}

/// The results of a range search: for each query any number of vectors, best first, equal distances by lower id.
#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct RangeNeighbors {
    /// The start of each query's results in `ids` and `distances`, followed by the number of all results: queries + 1
    /// numbers.
    pub offsets: Vec<usize>,
    /// Ids of the results of all queries.
    pub ids: Vec<u64>,
    /// Canonical distances, in the order of `ids`.
    #[cfg_attr(feature = "serde", serde(with = "crate::serialised::Numbers"))]
    pub distances: Vec<f32>,
}

deserialised!(RangeNeighbors {
    offsets: Vec<usize>,
    ids: Vec<u64>,
    #[serde(with = "crate::serialised::Numbers")]
    distances: Vec<f32>,
} => |offsets, ids, distances| {
    let whole = offsets.first() == Some(&0) && offsets.last() == Some(&ids.len()) && offsets.is_sorted();
    if !whole || distances.len() != ids.len() {
        return Err(format!("the offsets do not divide {} ids and {} distances into rows", ids.len(), distances.len()));
    }
    Ok(RangeNeighbors { offsets, ids, distances })
});

impl RangeNeighbors {
    /// Number of queries.
    pub fn queries(&self) -> usize {
        self.offsets.len().saturating_sub(1)
    }

    /// No results for these queries.
    pub(crate) fn none(queries: usize) -> RangeNeighbors {
        RangeNeighbors { offsets: vec![0; queries + 1], ids: Vec::new(), distances: Vec::new() }
    }

    /// Makes the results from one row for each query; `pair` is the id and the distance of an element.
    ///
    /// # Errors
    /// [`Error::OutOfHostMemory`].
    pub(crate) fn of_rows<V: Copy + Sync>(
        rows: &[Vec<V>],
        pair: impl Fn(V) -> (u64, f32) + Sync,
    ) -> Result<RangeNeighbors> {
        let mut offsets = host_memory::with_room(rows.len() + 1)?;
        let mut count = 0;
        offsets.push(count);
        for row in rows {
            count += row.len();
            offsets.push(count);
        }
        let (mut ids, mut distances) = (host_memory::zeroed(count)?, host_memory::zeroed(count)?);
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
            row.iter().zip(ids).zip(distances).for_each(|((&found, id), distance)| (*id, *distance) = pair(found));
        });
        Ok(RangeNeighbors { offsets, ids, distances })
    }

    /// Ids and distances of query `query`.
    ///
    /// # Panics
    /// Panics if there is no such query, as slice indexing does.
    pub fn row(&self, query: usize) -> (&[u64], &[f32]) {
        let row = self.offsets[query]..self.offsets[query + 1];
        (&self.ids[row.clone()], &self.distances[row])
    }
}
