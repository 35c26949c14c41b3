//! Connected components, by union-find.
//!
//! At the start every node is a tree of one node. An edge joins two trees: the root of the smaller one becomes a child
//! of the root of the larger one. Each search for a root halves the path to it. The cost is O(edges · α(nodes)), less
//! than five steps for each edge (Tarjan, 1975), in one pass over the neighbours, and 8 bytes for each node.

use super::{Graph, NO_NODE};
use crate::serialised::deserialised;

/// The connected components of a graph, with edges used in both directions.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Components {
    /// The number of each node's component.
    pub of: Vec<u32>,
    /// Number of nodes of each component, the largest first; components of equal size in the order of their lowest
    /// nodes.
    pub sizes: Vec<u64>,
}

deserialised!(Components { of: Vec<u32>, sizes: Vec<u64> } => |of, sizes| {
    let mut counted = vec![0u64; sizes.len()];
    for &number in &of {
        *counted.get_mut(number as usize).ok_or_else(|| format!("component {number} has no size"))? += 1;
    }
    if counted != sizes || counted.contains(&0) || !sizes.is_sorted_by(|a, b| a >= b) { Err("the sizes are not those of the components".to_owned()) } else { Ok(Components { of, sizes }) }
});

impl Graph {
    /// Computes the connected components. O(slots), on one thread.
    pub fn components(&self) -> Components {
        let mut forest = self.forest();
        let nodes = self.len() as u32;
        // Components in the order of their lowest nodes, each of which is the first node of its component in the loop.
        let mut numbers = vec![NO_NODE; self.len()];
        let mut found: Vec<(u64, u32)> = Vec::new();
        for node in 0..nodes {
            let root = forest.find(node);
            if numbers[root as usize] == NO_NODE {
                numbers[root as usize] = found.len() as u32;
                found.push((forest.size(root), root));
            }
        }
        // A stable sort keeps this order among components of equal size.
        found.sort_by_key(|&(size, _)| std::cmp::Reverse(size));
        for (number, &(_, root)) in found.iter().enumerate() {
            numbers[root as usize] = number as u32;
        }
        let of = (0..nodes).map(|node| numbers[forest.find(node) as usize]).collect();
        Components { of, sizes: found.into_iter().map(|(size, _)| size).collect() }
    }

    /// All nodes, joined by all edges.
    pub(super) fn forest(&self) -> Forest {
        let mut forest = Forest::new(self.len());
        for node in 0..self.len() {
            for &other in self.row(node).iter().filter(|&&other| other != NO_NODE) {
                forest.join(node as u32, other);
            }
        }
        forest
    }
}

/// Disjoint sets of nodes.
pub(super) struct Forest {
    /// A root is its own parent.
    parents: Vec<u32>,
    /// Number of nodes of the tree of each root.
    sizes: Vec<u32>,
}

impl Forest {
    /// Sets of one node each.
    pub fn new(nodes: usize) -> Self {
        Self { parents: (0..nodes as u32).collect(), sizes: vec![1; nodes] }
    }

    /// The root of a node's tree: the same for all nodes of a set, until the set is joined to another.
    pub fn find(&mut self, mut node: u32) -> u32 {
        loop {
            let parent = self.parents[node as usize];
            if parent == node {
                return node;
            }
            let above = self.parents[parent as usize];
            self.parents[node as usize] = above;
            node = above;
        }
    }

    /// Joins the sets of `a` and `b`.
    pub fn join(&mut self, a: u32, b: u32) {
        let (a, b) = (self.find(a), self.find(b));
        if a == b {
            return;
        }
        let (root, leaf) = if self.sizes[a as usize] >= self.sizes[b as usize] { (a, b) } else { (b, a) };
        self.parents[leaf as usize] = root;
        self.sizes[root as usize] += self.sizes[leaf as usize];
    }

    /// Number of nodes of the set with the root `root`.
    pub fn size(&self, root: u32) -> u64 {
        self.sizes[root as usize].into()
    }
}
