//! The edges of a batch of inserted nodes, and the edges back along them.

use std::ops::Range;

use crate::knn_graph::NO_NODE;
use crate::parallel::{Loop, turns};

/// Largest number of nodes that are inserted at a time. Each is compared with all others. The number of a node in its
/// batch has 16 bits in [`Back`].
pub(super) const BATCH: usize = 1024;

/// How many times the degree a node gets edges back from a batch, at most. A long vector can be among the edges of
/// every row of a batch, and each step of a device has a size that the degree gives. With once the degree, graphs under
/// inner product into which a tenth of 40,000 vectors of 32 components came from elsewhere found .884 instead of .889
/// at a beam of 16 (CPU, 2026-11-28).
pub(super) const MOST_BACK: usize = 3;

/// The edges of the nodes of a batch.
pub(super) struct Chosen {
    /// `degree` places for each node.
    pub edges: Vec<u32>,
    /// Whether vectors have decided the edges of a node, because codes could not.
    pub by_vectors: Vec<bool>,
}

/// The nodes to which a batch has edges, and for each those that have an edge to it.
#[derive(Default)]
pub(super) struct Back {
    /// Each node to which an edge of the batch leads, once, ascending.
    pub nodes: Vec<u32>,
    /// For each node where its list begins in `others`, and after the last where that list ends.
    pub begins: Vec<u32>,
    /// For each node at most [`MOST_BACK`] · `degree` nodes of the batch: those first at whose edges it comes first,
    /// then those with the lower numbers.
    pub others: Vec<u32>,
    /// The numbers of `others` in the batch.
    numbers: Vec<u16>,
    /// Whether vectors decide the edges of a node: they have decided its own, or those of a node of its list.
    pub by_vectors: Vec<bool>,
}

/// Number of parts of the nodes that threads do. Each reads all edges of the batch.
const PARTS: usize = 16;
/// One edge of so many is sampled to cut the nodes into parts.
const EVERY: usize = 32;

impl Back {
    /// The edges back along the edges of a batch, which ascends. O(edges · log edges).
    pub(super) fn of(batch: &[u32], chosen: &Chosen, degree: usize) -> Self {
        let edges = || chosen.edges.iter().copied().filter(|&other| other != NO_NODE);
        // The nodes of a part are about as many as those of another: those below a sampled node, from the one before.
        let mut some: Vec<u32> = edges().step_by(EVERY).collect();
        some.sort_unstable();
        let parts = PARTS.min(some.len()).max(1);
        let end = |part: usize| if part == parts { NO_NODE } else { some[part * some.len() / parts] };
        let first = |part: usize| if part == 0 { 0 } else { end(part) };
        let of_part = |part: usize| Self::among(first(part)..end(part + 1), batch, chosen, degree);
        let all = turns(0..parts).with_max_len(1).map(of_part).collect();
        let mut back = Back { begins: vec![0], ..Back::default() };
        for part in all {
            let first = back.others.len() as u32;
            back.begins.extend(part.begins.iter().map(|end| first + end));
            back.nodes.extend(part.nodes);
            back.others.extend(part.others);
            back.numbers.extend(part.numbers);
            back.by_vectors.extend(part.by_vectors);
        }
        back
    }

    /// The edges back of some nodes. `begins` has the end of each list instead.
    fn among(nodes: Range<u32>, batch: &[u32], chosen: &Chosen, degree: usize) -> Self {
        let mut keys: Vec<u64> = Vec::new();
        for (number, edges) in chosen.edges.chunks_exact(degree).enumerate() {
            for (place, &other) in edges.iter().enumerate().filter(|(_, other)| nodes.contains(other)) {
                keys.push(u64::from(other) << 32 | (place << 16 | number) as u64);
            }
        }
        keys.sort_unstable();
        let mut back = Back::default();
        // The number of the first node of the batch that is not below the node.
        let mut own = 0;
        for of_node in keys.chunk_by(|a, b| a >> 32 == b >> 32) {
            let node = (of_node[0] >> 32) as u32;
            while batch.get(own).is_some_and(|&other| other < node) {
                own += 1;
            }
            let numbers = of_node.iter().take(MOST_BACK * degree).map(|&key| key as u16);
            let own_by_vectors = batch.get(own).is_some_and(|&own| own == node) && chosen.by_vectors[own];
            back.by_vectors.push(own_by_vectors || numbers.clone().any(|number| chosen.by_vectors[number as usize]));
            back.others.extend(numbers.clone().map(|number| batch[number as usize]));
            back.numbers.extend(numbers);
            back.nodes.push(node);
            back.begins.push(back.others.len() as u32);
        }
        back
    }

    /// The list of node number `at`.
    pub(super) fn of_node(&self, at: usize) -> &[u32] {
        &self.others[self.range(at)]
    }

    /// The numbers in the batch of the nodes of list number `at`.
    pub(super) fn numbers_of(&self, at: usize) -> &[u16] {
        &self.numbers[self.range(at)]
    }

    fn range(&self, at: usize) -> Range<usize> {
        self.begins[at] as usize..self.begins[at + 1] as usize
    }
}
