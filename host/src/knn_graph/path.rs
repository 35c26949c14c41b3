//! The path whose largest edge is as small as possible: equation 12 of Johnson, Douze and Jégou, section 6.6.
//!
//! # Problem
//! Between nodes S and D find the path p_1 = S, .., p_n = D that minimises max d(p_i, p_{i+1}): smooth transitions
//! rather than few. Edges are read in both directions, for distances are symmetric: whether b is among the nearest of a
//! but a not among those of b depends only on the local density. For similarities, where larger is better, "largest"
//! means worst.
//!
//! Many paths have the same largest edge; of these we take one with the fewest edges, and of those the one whose nodes
//! come first in the order of numbers. So the result is unique and does not depend on the order of the work.
//!
//! # Algorithm
//! ```text
//! components by all edges: without a common one there is no path
//! distances of the component's edges                                  in parallel
//! sort (distance, node); join the ends of edges in that order until S and D meet
//!     the distance at which they do, the limit, is the smallest largest edge (Kruskal; the path in the minimum spanning tree has it)
//! breadth first from D over edges up to the limit: steps of each node to D
//! from S always to the lowest neighbour that is one step nearer
//! ```
//! Joining takes all edges of one distance at once, so ties need no order. Dijkstra's algorithm with the maximum in
//! place of the sum would also find a path, but each access to its queue of nodes misses the caches, and its path may
//! have more edges than necessary.
//!
//! Cost: O(edges · dim) for the distances, O(edges · log edges) for the sort, both in parallel. Memory: up to 16 bytes
//! for each edge of the component in addition to the graph's 4, and 20 for each node: 2 GB for 10 million nodes with 10
//! edges each.

use rayon::prelude::*;

use super::components::Forest;
use super::{Graph, NO_NODE, check_rows};
use crate::metric::canonical;
use crate::select::{Best, Key};
use crate::validate::{check_dim, check_vectors};
use crate::{Element, Error, Input, Metric, Result};

/// A path in a [`Graph`].
#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct Path {
    /// The nodes of the path, first and last included.
    pub nodes: Vec<u64>,
    /// The canonical distance ([`crate::metric`]) of the worst edge of the path; none if the path has no edge.
    #[cfg_attr(feature = "serde", serde(with = "crate::serialised::Numbers"))]
    pub largest: Option<f32>,
}

impl Graph {
    /// The path from node `from` to node `to` whose largest edge, by the canonical distance between the rows of `base`
    /// (row-major, `dim` components each), is as small as possible; for similarities, the smallest similarity is as
    /// large as possible. Of such paths it is one with the fewest edges, and of these the first by the numbers of the
    /// nodes. Edges are used in both directions.
    ///
    /// # Errors
    /// [`Error::Zero`], [`Error::Ragged`], [`Error::NotFinite`], and [`Error::WrongLength`] if the base does not have
    /// one row for each node; [`Error::UnknownId`]; [`Error::NotConnected`]; [`Error::Mismatch`] for
    /// [`Metric::Hamming`] of other vectors than u8.
    pub fn path<T: Element>(&self, base: &[T], dim: usize, metric: Metric, from: u64, to: u64) -> Result<Path> {
        check_dim(dim)?;
        metric.check_element(T::TYPE)?;
        check_rows(self.len(), check_vectors(base, dim, Input::Base)?)?;
        let (source, target) = (self.node(from)?, self.node(to)?);
        let mut forest = self.forest();
        let (root, other) = (forest.find(source), forest.find(target));
        if root != other {
            let (from_size, to_size) = (forest.size(root), forest.size(other));
            return Err(Error::NotConnected { from, to, from_size, to_size });
        }
        if source == target {
            return Ok(Path { nodes: vec![from], largest: None });
        }
        let row = |node: u32| &base[node as usize * dim..(node as usize + 1) * dim];
        let distance = |a: u32, b: u32| canonical(metric, row(a), row(b));
        let inside: Vec<bool> = (0..self.len() as u32).map(|node| forest.find(node) == root).collect();
        drop(forest);
        let best = if metric.larger_is_better() { Best::Largest } else { Best::Smallest };
        // The ranks of empty slots and of slots outside the component are never read.
        let rank = |(slot, &other): (usize, &u32)| {
            let node = slot / self.k;
            if inside[node] && other != NO_NODE { distance(node as u32, other).rank(best) } else { 0 }
        };
        let ranks: Vec<u32> = self.neighbours.par_iter().enumerate().map(rank).collect();
        let edges = Edges { graph: self, inside, ranks };
        let nodes = edges.shortest(source, target, edges.limit(source, target));
        let worst = |pair: &[u32]| distance(pair[0], pair[1]);
        let largest = nodes.windows(2).map(worst).max_by(|a, b| metric.order(*a, *b));
        Ok(Path { nodes: nodes.into_iter().map(u64::from).collect(), largest })
    }
}

/// The edges of one component with their distances, as integers that increase from best to worst.
struct Edges<'a> {
    graph: &'a Graph,
    /// Whether each node belongs to the component.
    inside: Vec<bool>,
    /// Rank of the distance of each slot's edge.
    ranks: Vec<u32>,
}

impl Edges<'_> {
    /// The neighbours of a node, each with the rank of its edge.
    fn of(&self, node: u32) -> impl Iterator<Item = (u32, u32)> {
        let k = self.graph.k;
        let slots = node as usize * k..(node as usize + 1) * k;
        let edges = self.graph.neighbours[slots.clone()].iter().copied().zip(self.ranks[slots].iter().copied());
        edges.filter(|&(other, _)| other != NO_NODE)
    }

    /// The lowest rank such that the edges up to it connect `source` and `target`. They must be in one component.
    fn limit(&self, source: u32, target: u32) -> u32 {
        let entry = |(slot, &rank): (usize, &u32)| {
            let node = slot / self.graph.k;
            let edge = self.inside[node] && self.graph.neighbours[slot] != NO_NODE;
            edge.then(|| u64::from(rank) << 32 | node as u64)
        };
        // (rank, node) takes 8 bytes. The rank determines the edges of the node.
        let mut entries: Vec<u64> = self.ranks.par_iter().enumerate().filter_map(entry).collect();
        entries.par_sort_unstable();
        let mut forest = Forest::new(self.graph.len());
        let mut last = 0;
        for entry in entries {
            let (rank, node) = ((entry >> 32) as u32, entry as u32);
            for (other, _) in self.of(node).filter(|&(_, other)| other == rank) {
                forest.join(node, other);
            }
            last = rank;
            if forest.find(source) == forest.find(target) {
                break;
            }
        }
        last
    }

    /// The path with the fewest edges among paths over edges of ranks up to `limit`; of several the first by the
    /// numbers of the nodes. These edges connect the two nodes.
    fn shortest(&self, source: u32, target: u32, limit: u32) -> Vec<u32> {
        let near = Adjacency::of(self, limit);
        // Number of steps to the target. The entries of nodes that are not reached are never read.
        let mut steps = vec![NO_NODE; self.graph.len()];
        steps[target as usize] = 0;
        let mut front = vec![target];
        while !front.is_empty() && steps[source as usize] == NO_NODE {
            let mut next = Vec::new();
            for node in front {
                let step = steps[node as usize] + 1;
                for &other in near.row(node) {
                    if steps[other as usize] == NO_NODE {
                        steps[other as usize] = step;
                        next.push(other);
                    }
                }
            }
            front = next;
        }
        let mut nodes = vec![source];
        let mut node = source;
        while node != target {
            let nearer = near.row(node).iter().filter(|&&other| steps[other as usize] < steps[node as usize]);
            // There is always one: the node from which the search came.
            let Some(&lowest) = nearer.min() else { break };
            nodes.push(lowest);
            node = lowest;
        }
        nodes
    }
}

/// For each node the nodes at the other ends of its edges, in either direction.
struct Adjacency {
    /// The start of each node's entries, followed by the number of all entries.
    starts: Vec<usize>,
    nodes: Vec<u32>,
}

impl Adjacency {
    /// The edges of ranks up to `limit`: first they are counted, then copied to their places.
    fn of(edges: &Edges<'_>, limit: u32) -> Self {
        let each = |work: &mut dyn FnMut(u32, u32)| {
            for node in (0..edges.graph.len() as u32).filter(|&node| edges.inside[node as usize]) {
                edges.of(node).filter(|&(_, rank)| rank <= limit).for_each(|(other, _)| work(node, other));
            }
        };
        let mut starts = vec![0usize; edges.graph.len() + 1];
        each(&mut |a, b| {
            starts[a as usize] += 1;
            starts[b as usize] += 1;
        });
        // The end of each node's entries. Filling downwards from there turns the ends into starts.
        let mut end = 0;
        for start in &mut starts {
            end += *start;
            *start = end;
        }
        let mut nodes = vec![0; end];
        each(&mut |a, b| {
            for (node, other) in [(a, b), (b, a)] {
                let place = &mut starts[node as usize];
                *place -= 1;
                nodes[*place] = other;
            }
        });
        Self { starts, nodes }
    }

    fn row(&self, node: u32) -> &[u32] {
        &self.nodes[self.starts[node as usize]..self.starts[node as usize + 1]]
    }
}
