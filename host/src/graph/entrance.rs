//! The entrance of a walk: the nearest of the start nodes, found without comparing all of them.
//!
//! A graph has more start nodes than a query should be compared with: one near every cluster of the vectors must be
//! among them. So some of them are pivots, and every start node is in the list of the nearest pivot whose list has
//! room. A walk compares its query with the pivots, and then with the start nodes in the lists of the nearest pivots,
//! until it has compared [`Entrance::wanted`] of them. That is an inverted file of start nodes, and it costs about 2 √s
//! distances of s.
//!
//! Without a limit, few pivots are nearest to many nodes, as it is among vectors of many dimensions. A query was
//! compared with about 3,000 of the 15,625 start nodes of a million clustered f32 vectors of 128 components, and waited
//! 60 µs for a walk with a beam of 16. With lists of at most twice the mean, one query from device memory by a captured
//! graph takes 50 µs in all, and 77 before (H100, 2026-11-25, other changes of the kernel aside).
//!
//! A walk whose beam is as wide as the graph compares all start nodes, because it takes all lists.

use super::distance::{Key, Query, WalkDistance};
use crate::Result;
use crate::parallel::{Loop, ParallelSlice};

/// Smallest number of start nodes that has lists: at least [`TRIED`] pivots. All of fewer are compared.
const LEAST_LISTED: usize = if cfg!(test) { TRIED * TRIED } else { 512 };
/// Smallest number of start nodes that are compared, unless the graph has fewer.
const LEAST_WANTED: usize = 128;
/// Number of the nearest pivots into whose lists a start node can come. There are more pivots.
pub(super) const TRIED: usize = 8;
/// How many times the mean number of start nodes a list has at most, unless all lists that a start node can come into
/// are full.
const MOST_OF_MEAN: u32 = 2;

/// The lists of start nodes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Entrance {
    /// Start nodes, ascending. None: all start nodes are one list.
    pivots: Vec<u32>,
    /// For each pivot the end of its list in `listed`.
    ends: Vec<u32>,
    /// All start nodes, list after list; in a list they ascend.
    listed: Vec<u32>,
    /// For each start node its nearest pivots; none without pivots.
    near: Vec<Near>,
}

/// The numbers of the pivots into whose lists a start node can come, nearest first.
type Near = [u32; TRIED];

/// Memory of a thread for distances from pivots.
type Scratch = (Query, Vec<Key>);

/// The nearest pivots of a node.
fn nearest(distance: &WalkDistance<'_>, pivots: &[u32], (query, keys): &mut Scratch, node: u32) -> Near {
    keys.clear();
    distance.query(distance.rows(), node as usize, query);
    distance.keys(query, pivots, keys);
    let mut tried = [(Key::MAX, u32::MAX); TRIED];
    for pivot in keys.iter().copied().zip(0..) {
        if pivot < tried[TRIED - 1] {
            let at = tried.partition_point(|other| *other < pivot);
            tried[at..].rotate_right(1);
            tried[at] = pivot;
        }
    }
    tried.map(|(_, pivot)| pivot)
}

impl Entrance {
    /// The lists of these start nodes, which ascend. O(starts^1.5 · dim).
    pub(super) fn new(starts: &[u32], distance: &WalkDistance<'_>) -> Self {
        let pivots = Self::pivots_of(starts);
        if pivots.is_empty() {
            return Self::one_list(starts);
        }
        let mut near: Vec<Near> = Vec::new();
        let of_start = |scratch: &mut Scratch, &node: &u32| nearest(distance, &pivots, scratch, node);
        starts.par_iter().map_init(Default::default, of_start, &mut near);
        Self::listed_by(starts, pivots, near)
    }

    /// As [`new`](Self::new). `find` finds the [`TRIED`] nearest of the pivots, which are nodes, for each start node,
    /// nearest first.
    ///
    /// # Errors
    /// Those of `find`.
    pub(super) fn found(starts: &[u32], find: impl FnOnce(&[u32]) -> Result<Vec<u32>>) -> Result<Self> {
        let pivots = Self::pivots_of(starts);
        if pivots.is_empty() {
            return Ok(Self::one_list(starts));
        }
        let nearest = find(&pivots)?;
        let number = |pivot: u32| pivots.binary_search(&pivot).unwrap_or(0) as u32;
        let (near, _) = nearest.as_chunks::<TRIED>();
        let near = near.iter().map(|near| near.map(number)).collect();
        Ok(Self::listed_by(starts, pivots, near))
    }

    /// All start nodes in one list.
    fn one_list(starts: &[u32]) -> Self {
        Entrance { listed: starts.to_vec(), ..Self::default() }
    }

    /// Number of pivots of so many start nodes; none if these have no lists.
    pub(super) fn pivot_count(starts: usize) -> usize {
        if starts < LEAST_LISTED { 0 } else { (starts as f64).sqrt() as usize }
    }

    fn pivots_of(starts: &[u32]) -> Vec<u32> {
        let count = Self::pivot_count(starts.len());
        (0..count).map(|at| starts[at * starts.len() / count]).collect()
    }

    /// As [`new`](Self::new), after some of the rows got other vectors, which `changed` has, ascending. These must be
    /// the lists of the same start nodes, with the same distance. Only start nodes that have changed are compared with
    /// pivots. The lists [can follow](Self::can_follow).
    pub(super) fn after(mut self, starts: &[u32], changed: &[u32], distance: &WalkDistance<'_>) -> Self {
        if self.pivots.is_empty() {
            return self;
        }
        let mut scratch = Scratch::default();
        for (number, &row) in changed.iter().filter_map(|row| Some((starts.binary_search(row).ok()?, row))) {
            self.near[number] = nearest(distance, &self.pivots, &mut scratch, row);
        }
        Self::listed_by(starts, self.pivots, self.near)
    }

    /// Whether these are the lists of as many start nodes, and no pivot is among the changed rows. Otherwise all start
    /// nodes are compared anew, which took 5 to 12 ms for the 15,625 of a million vectors (16 threads beside an H200,
    /// 2026-11-28).
    pub(super) fn can_follow(&self, starts: &[u32], changed: &[u32]) -> bool {
        let has_changed = |pivot: &u32| changed.binary_search(pivot).is_ok();
        let are_whole = self.listed.len() == starts.len() && self.pivots.len() == Self::pivot_count(starts.len());
        are_whole && !self.pivots.iter().any(has_changed)
    }

    /// The lists of start nodes whose nearest pivots are known.
    fn listed_by(starts: &[u32], pivots: Vec<u32>, near: Vec<Near>) -> Self {
        let count = pivots.len();
        let most = MOST_OF_MEAN * starts.len().div_ceil(count) as u32;
        let mut ends: Vec<u32> = vec![0; count];
        let mut place = |tried: &Near| {
            let len = |list: u32| ends[list as usize];
            let with_room = tried.iter().copied().find(|&list| len(list) < most);
            let list = with_room.or(tried.iter().copied().min_by_key(|&list| len(list))).unwrap_or(0);
            ends[list as usize] += 1;
            list
        };
        let lists: Vec<u32> = near.iter().map(&mut place).collect();
        let mut next: Vec<u32> =
            ends.iter().scan(0, |sum, &count| Some(std::mem::replace(sum, *sum + count))).collect();
        let mut listed = vec![0; starts.len()];
        for (&node, &list) in starts.iter().zip(&lists) {
            let place = &mut next[list as usize];
            listed[*place as usize] = node;
            *place += 1;
        }
        // Each list now ends where the next one starts.
        Entrance { pivots, ends: next, listed, near }
    }

    /// The pivots; none if all start nodes are one list.
    pub(super) fn pivots(&self) -> &[u32] {
        &self.pivots
    }

    /// For each pivot the end of its list in [`listed`](Self::listed).
    pub(super) fn ends(&self) -> &[u32] {
        &self.ends
    }

    /// All start nodes, list after list.
    pub(super) fn listed(&self) -> &[u32] {
        &self.listed
    }

    /// The list of a pivot.
    pub(super) fn of(&self, pivot: u32) -> &[u32] {
        let Ok(at) = self.pivots.binary_search(&pivot) else { return &[] };
        let first = if at == 0 { 0 } else { self.ends[at - 1] };
        &self.listed[first as usize..self.ends[at] as usize]
    }

    /// The number of start nodes with which a walk of this width compares its query, at least.
    pub(super) fn wanted(width: usize) -> usize {
        width.saturating_mul(4).max(LEAST_WANTED)
    }

    /// Bytes of host memory.
    pub(super) fn bytes(&self) -> u64 {
        let words = self.pivots.capacity() + self.ends.capacity() + self.listed.capacity();
        (4 * words + size_of::<Near>() * self.near.capacity()) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Metric;
    use crate::random::Random;
    use crate::vectors::VectorSlice;

    /// Lists that follow changes of rows are those made anew, whether pivots, other start nodes or neither change.
    #[test]
    fn lists_follow_changes_as_if_they_were_made_anew() {
        let (dim, count) = (3, 4_000);
        let mut random = Random::new(4);
        let mut rows: Vec<f32> = (0..dim * count).map(|_| random.below(1_000) as f32).collect();
        let starts: Vec<u32> = (0..count as u32).filter(|row| row % 5 == 0).collect();
        for metric in [Metric::L2, Metric::InnerProduct] {
            let made = |rows: &[f32]| Entrance::new(&starts, &WalkDistance::new(metric, VectorSlice::of(rows, dim)));
            let mut entrance = made(&rows);
            let (mut of_pivots, mut of_others) = (0, 0);
            for _ in 0..60 {
                let mut changed: Vec<u32> = (0..12).map(|_| random.below(count) as u32).collect();
                changed.sort_unstable();
                changed.dedup();
                for &row in &changed {
                    rows[row as usize * dim..][..dim].iter_mut().for_each(|x| *x = random.below(1_000) as f32);
                }
                let is_pivot = changed.iter().any(|row| entrance.pivots.contains(row));
                of_pivots += usize::from(is_pivot);
                of_others += usize::from(!is_pivot && changed.iter().any(|row| starts.contains(row)));
                let distance = WalkDistance::new(metric, VectorSlice::of(&rows, dim));
                entrance = if entrance.can_follow(&starts, &changed) {
                    entrance.after(&starts, &changed, &distance)
                } else {
                    made(&rows)
                };
                assert_eq!(entrance, made(&rows));
            }
            assert!(of_pivots > 3 && of_others > 20, "{of_pivots}, {of_others}");
        }
    }
}
