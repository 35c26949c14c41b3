//! Connected components, by union-find.
//!
//! Every node starts as a tree of its own; an edge hangs the root of the smaller tree under that of the larger; looking for a root
//! halves the path to it. That makes O(edges · α(nodes)), less than five steps an edge for any number of nodes there can be (Tarjan,
//! 1975), in one pass over the neighbours and 8 bytes a node.

use super::{Graph, NO_NODE};

/// Which nodes can be reached from which, edges read in both directions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Components {
    /// The number of each node's component.
    pub of: Vec<u32>,
    /// Nodes of each component, the largest first; equal ones in the order of their lowest nodes.
    pub sizes: Vec<u64>,
}

impl Graph {
    /// The connected components. O(slots), on one thread.
    pub fn components(&self) -> Components {
        let mut forest = self.forest();
        let nodes = self.len() as u32;
        // Components by their lowest node, which is the first that is met.
        let mut numbers = vec![NO_NODE; self.len()];
        let mut found: Vec<(u64, u32)> = Vec::new();
        for node in 0..nodes {
            let root = forest.find(node);
            if numbers[root as usize] == NO_NODE {
                numbers[root as usize] = found.len() as u32;
                found.push((forest.size(root), root));
            }
        }
        // A stable sort keeps that order among equals.
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
    /// Nodes of the tree under each root.
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

    /// Makes one set of two.
    pub fn join(&mut self, a: u32, b: u32) {
        let (a, b) = (self.find(a), self.find(b));
        if a == b {
            return;
        }
        let (root, leaf) = if self.sizes[a as usize] >= self.sizes[b as usize] { (a, b) } else { (b, a) };
        self.parents[leaf as usize] = root;
        self.sizes[root as usize] += self.sizes[leaf as usize];
    }

    /// Nodes of the set whose root is `root`.
    pub fn size(&self, root: u32) -> u64 {
        self.sizes[root as usize].into()
    }
}
