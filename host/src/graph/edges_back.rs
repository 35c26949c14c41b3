//! The edges of a batch of inserted nodes, and the edges back along them.

use crate::knn_graph::NO_NODE;
use crate::parallel::{Loop, ParallelSlice};

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
pub(super) struct Back {
    /// Each node to which an edge of the batch leads, once, ascending.
    pub nodes: Vec<u32>,
    /// For each node where its list begins in `others`, and after the last where that list ends.
    pub begins: Vec<u32>,
    /// For each node at most [`MOST_BACK`] · `degree` nodes of the batch: those first at whose edges it comes first,
    /// then those with the lower numbers.
    pub others: Vec<u32>,
    /// Whether vectors decide the edges of a node: they have decided its own, or those of a node of its list.
    pub by_vectors: Vec<bool>,
}

impl Back {
    /// The edges back along the edges of a batch, which ascends. O(edges · log edges).
    pub(super) fn of(batch: &[u32], chosen: &Chosen, degree: usize) -> Self {
        const NO_EDGE: u64 = u64::MAX;
        let mut keys = vec![NO_EDGE; chosen.edges.len()];
        let edges = keys.par_chunks_mut(degree).zip(chosen.edges.par_chunks(degree)).enumerate();
        edges.with_min_len(BATCH / 16).for_each(|(number, (keys, edges))| {
            let some = edges.iter().copied().enumerate().take_while(|&(_, other)| other != NO_NODE);
            for (key, (place, other)) in keys.iter_mut().zip(some) {
                *key = u64::from(other) << 32 | (place << 16 | number) as u64;
            }
        });
        keys.par_sort_unstable();
        keys.truncate(keys.partition_point(|&key| key < NO_EDGE));
        let mut back = Back { nodes: Vec::new(), begins: vec![0], others: Vec::new(), by_vectors: Vec::new() };
        // The number of the first node of the batch that is not below the node.
        let mut own = 0;
        for of_node in keys.chunk_by(|a, b| a >> 32 == b >> 32) {
            let node = (of_node[0] >> 32) as u32;
            while batch.get(own).is_some_and(|&other| other < node) {
                own += 1;
            }
            let numbers = of_node.iter().take(MOST_BACK * degree).map(|&key| (key & 0xffff) as usize);
            let own_by_vectors = batch.get(own).is_some_and(|&own| own == node) && chosen.by_vectors[own];
            back.by_vectors.push(own_by_vectors || numbers.clone().any(|number| chosen.by_vectors[number]));
            back.others.extend(numbers.map(|number| batch[number]));
            back.nodes.push(node);
            back.begins.push(back.others.len() as u32);
        }
        back
    }

    /// Each node with each of its list.
    pub(super) fn edges(&self) -> impl Iterator<Item = (u32, u32)> {
        let of_node = |(at, &node)| self.of_node(at).iter().map(move |&other| (node, other));
        self.nodes.iter().enumerate().flat_map(of_node)
    }

    /// The list of node number `at`.
    pub(super) fn of_node(&self, at: usize) -> &[u32] {
        &self.others[self.begins[at] as usize..self.begins[at + 1] as usize]
    }
}
