//! Where the vector with an id is.

use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};

use super::Lists;
use crate::parallel::{Loop, ParallelSlice, owned};

/// Locations and ranks of the vectors of [`Lists`].
#[derive(Debug)]
pub(crate) struct Directory {
    /// The first location of each list, and then the number of vectors.
    starts: Vec<u32>,
    /// The rank of each location.
    ranks: Vec<u32>,
    /// The location of each rank.
    locations: Vec<u32>,
    /// The id of each rank; empty if ranks and ids are equal.
    ids: Vec<u64>,
}

impl Directory {
    pub(super) fn new(lists: &Lists) -> Directory {
        let mut starts = vec![0];
        let mut end = 0;
        for list in 0..lists.count() {
            end += lists.length(list) as u32;
            starts.push(end);
        }
        if lists.dense() {
            let mut ranks = vec![0u32; lists.len()];
            let mut rest = &mut ranks[..];
            let mut parts = Vec::with_capacity(lists.count());
            for list in 0..lists.count() {
                let (part, others) = rest.split_at_mut(lists.length(list));
                parts.push(part);
                rest = others;
            }
            owned(parts).enumerate().for_each(|(list, ranks)| lists.ranks_into(list, 0..ranks.len(), ranks));
            let locations = inverse(&ranks);
            return Directory { starts, ranks, locations, ids: Vec::new() };
        }
        let ids = lists.all_ids();
        let mut pairs: Vec<(u64, u32)> = ids.par_iter().enumerate().map(|(at, &id)| (id, at as u32)).collect();
        pairs.par_sort_unstable();
        let ids = pairs.par_iter().map(|&(id, _)| id).collect();
        let locations: Vec<u32> = pairs.par_iter().map(|&(_, location)| location).collect();
        Directory { starts, ranks: inverse(&locations), locations, ids }
    }

    /// The locations of a list.
    pub(crate) fn range(&self, list: usize) -> Range<u32> {
        self.starts[list]..self.starts[list + 1]
    }

    /// The rank of each location.
    pub(crate) fn ranks(&self) -> &[u32] {
        &self.ranks
    }

    /// The id of a rank.
    pub(crate) fn id(&self, rank: u32) -> u64 {
        if self.ids.is_empty() { u64::from(rank) } else { self.ids[rank as usize] }
    }

    /// The rank of an id.
    pub(crate) fn rank(&self, id: u64) -> Option<u32> {
        if self.ids.is_empty() {
            return (id < self.ranks.len() as u64).then_some(id as u32);
        }
        self.ids.binary_search(&id).ok().map(|rank| rank as u32)
    }

    /// The list of a location, and the place in the list.
    pub(crate) fn place(&self, location: u32) -> (usize, usize) {
        // The last list that starts at or before the location. Empty lists with the same start come before it.
        let list = self.starts.partition_point(|&start| start <= location) - 1;
        (list, (location - self.starts[list]) as usize)
    }

    /// The list of an id, and the place in the list.
    pub(crate) fn find(&self, id: u64) -> Option<(usize, usize)> {
        self.rank(id).map(|rank| self.place(self.locations[rank as usize]))
    }

    /// All ids in ascending order.
    pub(crate) fn ids(&self) -> Vec<u64> {
        if self.ids.is_empty() { (0..self.ranks.len() as u64).collect() } else { self.ids.clone() }
    }
}

/// The inverse of a permutation.
fn inverse(of: &[u32]) -> Vec<u32> {
    let inverse: Vec<AtomicU32> = of.par_iter().map(|_| AtomicU32::new(0)).collect();
    of.par_iter().enumerate().for_each(|(at, &to)| inverse[to as usize].store(at as u32, Ordering::Relaxed));
    inverse.into_iter().map(AtomicU32::into_inner).collect()
}
