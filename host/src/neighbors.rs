//! What a search returns.

use rayon::prelude::*;

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
        rayon::iter::repeat_n(NONE, slots).with_min_len(PAGES).collect_into_vec(&mut ids);
        rayon::iter::repeat_n(metric.worst(), slots).with_min_len(PAGES).collect_into_vec(&mut distances);
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

/// Merges the sorted results of another part of the base into the sorted results so far, `k` slots a query in each: what remains is
/// sorted by (distance, lower id) as if the parts had been searched as one, provided that no vector is in both. O(queries · k).
pub(crate) fn merge(metric: Metric, k: usize, so_far: (&mut [u64], &mut [f32]), more: (&[u64], &[f32])) {
    so_far
        .0
        .par_chunks_mut(k)
        .zip(so_far.1.par_chunks_mut(k))
        .zip(more.0.par_chunks(k).zip(more.1.par_chunks(k)))
        .for_each(|((ids, distances), (more_ids, more_distances))| {
            let (old_ids, old_distances) = (ids.to_vec(), distances.to_vec());
            // Each slot advances one of the two, so neither reaches k before the last slot is filled. An empty slot has the worst
            // distance and the greatest id, so it comes after every vector.
            let (mut old, mut new) = (0, 0);
            for slot in 0..k {
                let by_distance = metric.order(more_distances[new], old_distances[old]);
                if by_distance.then(more_ids[new].cmp(&old_ids[old])).is_lt() {
                    (ids[slot], distances[slot]) = (more_ids[new], more_distances[new]);
                    new += 1;
                } else {
                    (ids[slot], distances[slot]) = (old_ids[old], old_distances[old]);
                    old += 1;
                }
            }
        });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn merging_parts_sorts_by_distance_and_lower_id_and_leaves_empty_slots_last() {
        for (metric, sign) in [(Metric::L2, 1.0f32), (Metric::InnerProduct, -1.0)] {
            let worst = metric.worst();
            let merged = |a: [(u64, f32); 3], b: [(u64, f32); 3]| {
                let (mut ids, mut distances) = (a.map(|x| x.0), a.map(|x| x.1));
                merge(metric, 3, (&mut ids, &mut distances), (&b.map(|x| x.0), &b.map(|x| x.1)));
                std::array::from_fn::<_, 3, _>(|slot| (ids[slot], distances[slot]))
            };
            let at = |distance: f32| sign * distance;
            let low = [(7, at(1.0)), (9, at(2.0)), (NONE, worst)];
            let high = [(4, at(1.0)), (8, at(2.0)), (3, at(5.0))];
            assert_eq!(merged(low, high), [(4, at(1.0)), (7, at(1.0)), (8, at(2.0))]);
            assert_eq!(merged(high, low), merged(low, high));
            let empty = [(NONE, worst); 3];
            assert_eq!((merged(low, empty), merged(empty, low)), (low, low));
            // A distance that overflowed is still a neighbour's.
            assert_eq!(merged([(5, worst), empty[0], empty[0]], low)[2], (5, worst));
        }
    }
}
