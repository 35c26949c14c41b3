//! The k best of the sorted k best of several shards: a merge of S rows, O(k · S) for each query.
//!
//! A heap would need k · log S steps, but S is the number of devices: for eight devices a scan of the heads is as fast.

use std::cmp::Ordering;
use std::ops::Range;

use crate::parallel::{Loop, ParallelSlice, turns};
use crate::threads::{piece_rows, work_off};
use crate::{Metric, NONE, RangeNeighbors, Result, host_memory};

/// Smallest number of slots that one thread merges.
const SLOTS: usize = 1 << 12;

/// Whether the first (id, distance) comes before the second: by distance, then by lower id; empty slots come last.
pub(crate) fn comes_before(metric: Metric, (id, distance): (u64, f32), (other_id, other): (u64, f32)) -> bool {
    id != NONE && (other_id == NONE || metric.order(distance, other).then(id.cmp(&other_id)) == Ordering::Less)
}

/// The rows of other shards, with the same number of slots.
type More<I, D> = [(I, D)];

/// Merges the rows of other shards (`more`) into those of `ids` and `distances`. All have rows of `k` slots, which are
/// sorted and have different ids.
pub(crate) fn merge<I: AsRef<[u64]> + Sync, D: AsRef<[f32]> + Sync>(
    metric: Metric,
    k: usize,
    ids: &mut [u64],
    distances: &mut [f32],
    more: &More<I, D>,
) {
    if more.is_empty() || k == 0 {
        return;
    }
    let rows = ids.par_chunks_mut(k).zip(distances.par_chunks_mut(k)).enumerate().with_min_len(SLOTS.div_ceil(k));
    let merger = || Merger::new(metric, k, more);
    rows.for_each_init(merger, |merger, (query, (ids, distances))| merger.merge(query, ids, distances));
}

/// As [`merge`], but [apart](crate::threads::apart) from all pools.
pub(crate) fn merge_apart<I: AsRef<[u64]> + Sync, D: AsRef<[f32]> + Sync>(
    metric: Metric,
    k: usize,
    ids: &mut [u64],
    distances: &mut [f32],
    more: &More<I, D>,
) {
    if more.is_empty() || k == 0 {
        return;
    }
    let bytes = (size_of_val(ids) + size_of_val(distances)) * (1 + more.len());
    let each = piece_rows(k * (size_of::<u64>() + size_of::<f32>()));
    let pieces = ids.chunks_mut(each * k).zip(distances.chunks_mut(each * k)).enumerate();
    work_off(pieces, bytes, |(piece, (ids, distances)): (usize, (&mut [u64], &mut [f32]))| {
        let mut merger = Merger::new(metric, k, more);
        for (row, (ids, distances)) in ids.chunks_mut(k).zip(distances.chunks_mut(k)).enumerate() {
            merger.merge(piece * each + row, ids, distances);
        }
    });
}

/// The results of range searches for `queries` queries, each of which one or more shards have searched. `parts` are the
/// queries of a part and the part's results.
///
/// # Errors
/// [`Error::OutOfHostMemory`](crate::Error::OutOfHostMemory).
pub(crate) fn merge_ranges(
    metric: Metric,
    queries: usize,
    parts: &[(Range<usize>, RangeNeighbors)],
) -> Result<RangeNeighbors> {
    let of_query = |query: usize| -> Result<Vec<(u64, f32)>> {
        let of_shards = || {
            let of_shards = parts.iter().filter(|(queries, _)| queries.contains(&query));
            of_shards.map(|(queries, found)| found.row(query - queries.start))
        };
        let mut row = host_memory::with_room(of_shards().map(|(ids, _)| ids.len()).sum())?;
        of_shards().for_each(|(ids, distances)| row.extend(ids.iter().copied().zip(distances.iter().copied())));
        row.sort_unstable_by(|&a, &b| comes_before(metric, b, a).cmp(&comes_before(metric, a, b)));
        Ok(row)
    };
    let rows = host_memory::collected_in_parallel(turns(0..queries).with_min_len(64).map(of_query))?;
    RangeNeighbors::of_rows(&rows.into_iter().collect::<Result<Vec<_>>>()?, |found| found)
}

/// Merges one row after the other.
struct Merger<'a, I, D> {
    metric: Metric,
    k: usize,
    more: &'a More<I, D>,
    own_ids: Vec<u64>,
    own_distances: Vec<f32>,
    /// The first slot of each shard's row that is not merged yet.
    heads: Vec<usize>,
}

impl<'a, I: AsRef<[u64]>, D: AsRef<[f32]>> Merger<'a, I, D> {
    fn new(metric: Metric, k: usize, more: &'a More<I, D>) -> Self {
        let (own_ids, own_distances, heads) = (vec![NONE; k], vec![0.0; k], vec![0; more.len()]);
        Merger { metric, k, more, own_ids, own_distances, heads }
    }

    /// Merges the rows of one query.
    fn merge(&mut self, query: usize, ids: &mut [u64], distances: &mut [f32]) {
        let Merger { metric, k, more, own_ids, own_distances, heads } = self;
        own_ids.copy_from_slice(ids);
        own_distances.copy_from_slice(distances);
        heads.fill(0);
        let mut own = 0;
        // Each slot advances one row, so no row ends before the last slot is filled.
        for (slot, (id, distance)) in ids.iter_mut().zip(distances).enumerate() {
            debug_assert!(own + heads.iter().sum::<usize>() == slot);
            let mut best = (own_ids[own], own_distances[own]);
            let mut from = None;
            for (row, ((ids, distances), &head)) in more.iter().zip(heads.iter()).enumerate() {
                let at = query * *k + head;
                let candidate = (ids.as_ref()[at], distances.as_ref()[at]);
                if comes_before(*metric, candidate, best) {
                    (best, from) = (candidate, Some(row));
                }
            }
            match from {
                Some(row) => heads[row] += 1,
                None => own += 1,
            }
            (*id, *distance) = best;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_merged_by_distance_then_id_and_empty_slots_come_last() {
        // Two queries, k = 3, three shards.
        let (inf, none) = (f32::INFINITY, NONE);
        let mut ids = [4, 9, none, none, none, none];
        let mut distances = [1.0, 2.0, inf, inf, inf, inf];
        let more = [
            (vec![3, 7, 11, 5, none, none], vec![1.0, 2.0, 2.0, 0.0, inf, inf]),
            (vec![1, none, none, 2, 6, 8], vec![1.5, inf, inf, 0.0, inf, inf]),
        ];
        merge(Metric::L2, 3, &mut ids, &mut distances, &more);
        assert_eq!(ids, [3, 4, 1, 2, 5, 6]);
        assert_eq!(distances, [1.0, 1.0, 1.5, 0.0, 0.0, inf]);

        let mut ids = [4, none];
        let mut distances = [1.0, f32::NEG_INFINITY];
        let more = [(vec![2, 3], vec![1.0, 0.5])];
        merge(Metric::InnerProduct, 2, &mut ids, &mut distances, &more);
        assert_eq!((ids, distances), ([2, 4], [1.0, 1.0]));
    }
}
