//! A search in the graph for one query.
//!
//! ```text
//! beam = the `width` nearest of some start nodes                         entrance.rs
//! while a node of the beam is not expanded:
//!     expand the EXPANSIONS nearest such nodes: for each of their neighbours that was never in question before
//!         compute the distance; keep the neighbour if it is among the `width` nearest so far
//! ```
//! Several nodes are expanded at a time because a GPU then reads four times as many vectors at a time, and a CPU
//! prefetches better.
//!
//! A walk may forget that a node was in question: a node that left the beam, or never came in, is farther than all of a
//! full beam, and stays out. So the table of nodes that were met saves distances, and no result depends on it.
//!
//! A node is a u64: the [`Key`] of its distance in the upper half, then 31 bits of its number, then one bit that says
//! that it is expanded. So nodes order by (distance, number), and the walk is defined to the bit.

use warpann_kernels::graph::walk::EXPANSIONS;
use warpann_kernels::ivf::rerank;

use super::distance::{Key, Query, WalkDistance};
use super::entrance::Entrance;
use super::links::Links;
use crate::knn_graph::NO_NODE;

/// The bit of an expanded node.
const EXPANDED: u64 = 1;

/// The key of a place in a beam.
pub(super) fn key_of(place: u64) -> Key {
    (place >> 32) as Key
}

/// The node of a place in a beam.
pub(super) fn node_of(place: u64) -> u32 {
    (place as u32) >> 1
}

/// The place of a node that is not expanded.
fn place(key: Key, node: u32) -> u64 {
    u64::from(key) << 32 | u64::from(node) << 1
}

/// Number of nodes that a warp of a GPU ranks at once.
const RANKED_AT_ONCE: usize = rerank::WARP_SELECTED as usize;

/// How many nodes of a beam get canonical distances.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ranks {
    /// In any case. The distances of walks are rounded, so these are some more than k; and one more for each node whose
    /// first row is no result, because it stands before others at its distance.
    pub(super) least: usize,
    /// At the most. If walks go by codes, as many as may be among the k best by what codes tell.
    pub(super) most: usize,
}

impl Ranks {
    pub(super) fn new(k: usize, later: usize, width: usize, by_codes: bool) -> Self {
        let least = k.saturating_add(k / 2).saturating_add(16).saturating_add(later.min(width));
        let more = if by_codes { least.saturating_mul(2).min(width).max(RANKED_AT_ONCE) } else { 0 };
        Ranks { least, most: least.max(more) }
    }
}

/// The memory of walks on one thread.
#[derive(Debug, Default)]
pub(super) struct Walker {
    pub(super) query: Query,
    /// Keys of the best nodes so far, nearest first.
    beam: Vec<u64>,
    seen: Seen,
    fresh: Vec<u32>,
    keys: Vec<Key>,
}

impl Walker {
    /// Walks to the `width` ≥ 1 nodes that are nearest to [`query`](Self::query), as far as the walk finds them:
    /// nearest first.
    pub(super) fn walk(&mut self, distance: &WalkDistance<'_>, links: &Links, width: usize) -> &[u64] {
        self.start(distance, links, width);
        // The first place that may hold a node that is not expanded.
        let mut from = 0;
        loop {
            self.fresh.clear();
            let mut expanded = 0;
            while let Some(place) = self.beam.get_mut(from).filter(|_| expanded < EXPANSIONS) {
                from += 1;
                if *place & EXPANDED == 0 {
                    *place |= EXPANDED;
                    expanded += 1;
                    let node = node_of(*place);
                    self.fresh.extend(links.of(node).iter().filter(|&&neighbour| self.seen.insert(neighbour)));
                }
            }
            if expanded == 0 {
                return &self.beam;
            }
            self.beam[from..].iter().take(EXPANSIONS as usize).for_each(|&next| links.prefetch(node_of(next)));
            self.keys.clear();
            distance.keys(&self.query, &self.fresh, &mut self.keys);
            for (&key, &node) in self.keys.iter().zip(&self.fresh) {
                from = from.min(keep(&mut self.beam, width, place(key, node)));
            }
        }
    }

    /// The nodes that the last walk found, nearest first.
    pub(super) fn beam(&self) -> &[u64] {
        &self.beam
    }

    /// The `count` nodes of those listed that are nearest to [`query`](Self::query), nearest first. O(listed · dim).
    pub(super) fn nearest_of(&mut self, distance: &WalkDistance<'_>, listed: &[u32], count: usize) -> Vec<u32> {
        self.take_nearest(distance, listed, count);
        self.beam.iter().map(|&place| node_of(place)).collect()
    }

    /// The `count` nearest to [`query`](Self::query) of the start nodes with which a walk of the width `count` begins,
    /// nearest first.
    pub(super) fn nearest_starts(&mut self, distance: &WalkDistance<'_>, links: &Links, count: usize) -> Vec<u32> {
        self.start(distance, links, count);
        self.beam.iter().map(|&place| node_of(place)).collect()
    }

    /// Fills the beam with the nearest start nodes of the lists of the nearest pivots.
    fn start(&mut self, distance: &WalkDistance<'_>, links: &Links, width: usize) {
        let entrance = links.entrance();
        if entrance.pivots().is_empty() {
            self.take_nearest(distance, entrance.listed(), width);
        } else {
            self.take_nearest(distance, entrance.pivots(), width);
            let (mut near, wanted) = (std::mem::take(&mut self.fresh), Entrance::wanted(width));
            near.clear();
            for &pivot in &self.beam {
                near.extend_from_slice(entrance.of(node_of(pivot)));
                if near.len() >= wanted {
                    break;
                }
            }
            self.take_nearest(distance, &near, width);
            self.fresh = near;
        }
        self.seen.clear();
        self.beam.iter().for_each(|&place| {
            self.seen.insert(node_of(place));
        });
    }

    /// Makes the beam the `width` nearest of the listed nodes.
    fn take_nearest(&mut self, distance: &WalkDistance<'_>, listed: &[u32], width: usize) {
        self.keys.clear();
        self.beam.clear();
        distance.keys(&self.query, listed, &mut self.keys);
        self.beam.extend(self.keys.iter().zip(listed).map(|(&key, &node)| place(key, node)));
        if self.beam.len() > width {
            self.beam.select_nth_unstable(width - 1);
            self.beam.truncate(width);
        }
        self.beam.sort_unstable();
    }
}

/// Puts a node into a beam that is sorted, if it is among the `width` nearest. Returns its place, or `width`.
fn keep(beam: &mut Vec<u64>, width: usize, place: u64) -> usize {
    if beam.len() == width {
        match beam.last() {
            Some(&last) if place < last => beam.pop(),
            _ => return width,
        };
    }
    let at = beam.partition_point(|&other| other < place);
    beam.insert(at, place);
    at
}

/// The set of nodes that a walk has met: a hash table with linear probing, at most half full.
#[derive(Debug)]
struct Seen {
    slots: Vec<u32>,
    count: usize,
}

/// Number of slots of a table before it grows.
const SLOTS: usize = 1 << 11;

impl Default for Seen {
    fn default() -> Self {
        Seen { slots: vec![NO_NODE; SLOTS], count: 0 }
    }
}

impl Seen {
    fn clear(&mut self) {
        self.slots.fill(NO_NODE);
        self.count = 0;
    }

    /// Adds a node. Returns whether it is new.
    #[inline]
    fn insert(&mut self, node: u32) -> bool {
        let mask = self.slots.len() - 1;
        // The upper bits of the product are the mixed ones.
        let mut slot = (node.wrapping_mul(0x9E37_79B1) >> 7) as usize & mask;
        loop {
            match self.slots[slot] {
                NO_NODE => break,
                other if other == node => return false,
                _ => slot = (slot + 1) & mask,
            }
        }
        self.slots[slot] = node;
        self.count += 1;
        if 2 * self.count > self.slots.len() {
            self.grow();
        }
        true
    }

    #[cold]
    fn grow(&mut self) {
        let slots = vec![NO_NODE; 2 * self.slots.len()];
        let old = std::mem::replace(&mut self.slots, slots);
        self.count = 0;
        old.into_iter().filter(|&node| node != NO_NODE).for_each(|node| {
            self.insert(node);
        });
    }
}
