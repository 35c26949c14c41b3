//! Parents for nodes to which no edges lead from the start nodes.

use super::Links;
use crate::graph::distance::WalkDistance;
use crate::graph::walk::{Walker, node_of};

impl Links {
    /// Gives a parent to each node that has none, except those listed, which ascend.
    pub(super) fn adopt_without(&mut self, distance: &WalkDistance<'_>, without: &[u32]) {
        let is_node = |node: u32| !self.twins.contains(node) && without.binary_search(&node).is_err();
        let alone = |&node: &u32| !self.is_reached(node) && is_node(node);
        let alone: Vec<u32> = (0..self.len() as u32).filter(alone).collect();
        self.adopt(distance, &alone);
    }

    /// Gives each of the listed nodes that has none a parent: the first of these nodes that has a place for one more
    /// held edge. The nodes to which edges lead from the node; those that a walk to it meets; all nodes. Under inner
    /// product most nodes have edges to the same few long vectors, which would have edges to their children only; so
    /// nodes of which more than half of the edges are held are the last resort then. Returns the new parents,
    /// ascending.
    pub(in crate::graph) fn adopt(&mut self, distance: &WalkDistance<'_>, nodes: &[u32]) -> Vec<u32> {
        let mut parents = Vec::new();
        let mut walker = Walker::default();
        let most = if distance.metric().favors_length() { self.degree / 2 } else { self.degree };
        // All nodes before this one hold as many edges as they should, which they keep.
        let mut first = 0;
        for &node in nodes {
            if self.is_reached(node) {
                continue;
            }
            let place_in = |other: u32| Some((other, self.place_in(other, most)?));
            let near = self.of(node).iter().find_map(|&other| place_in(other));
            let near = near.or_else(|| {
                distance.query(distance.rows(), node as usize, &mut walker.query);
                walker.walk(distance, self, 2 * self.degree).iter().find_map(|&place| place_in(node_of(place)))
            });
            let near = near.or_else(|| {
                while self.parents.get(first as usize).is_some() && self.is_reached(first) && place_in(first).is_none()
                {
                    first += 1;
                }
                (first..self.len() as u32).find_map(place_in)
            });
            let near = near
                .or_else(|| (0..self.len() as u32).find_map(|other| Some((other, self.place_in(other, self.degree)?))));
            let Some((parent, place)) = near else { continue };
            self.edges[place] = node;
            self.parents[node as usize] = parent;
            parents.push(parent);
            self.reach(vec![node]);
        }
        parents.sort_unstable();
        parents.dedup();
        parents
    }

    /// The place of a reachable node with less than `most` held edges that an edge to another node may take: a free
    /// one, or the last without a held edge.
    fn place_in(&self, node: u32, most: usize) -> Option<usize> {
        if !self.is_reached(node) || self.children(node).count() >= most {
            return None;
        }
        let count = self.of(node).len();
        let places = self.places(node);
        if count < self.degree {
            return Some(places.start + count);
        }
        places.rev().find(|&place| self.parents[self.edges[place] as usize] != node)
    }
}
