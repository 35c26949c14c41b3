//! The edges of a batch of inserted nodes, and the edges back along them.

use std::ops::Range;

use crate::knn_graph::NO_NODE;
use crate::parallel::{Loop, ParallelSlice, owned};

/// Largest number of nodes that are inserted at a time. Each is compared with all others. The number of a node in its
/// batch has 16 bits in [`Back`].
///
/// 100,000 vectors of 128 components came into 900,000 in 407 ms with 2,048 and 386 with 4,096, and in 470 to 510 with
/// 1,024 in an earlier revision; the recall at a beam of 24 was .985, .964 and .972, and that of a new graph .962. With
/// memory that is used again, 4,096 took 322 to 346 ms (H200s with 16 cores, 2026-11-28).
pub(super) const BATCH: usize = if cfg!(test) { 256 } else { 4096 };

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

/// The nodes to which a batch has edges, and for each those that have an edge to it. The next batch uses its memory
/// again: fresh pages cost as much as the work.
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
    parts: [Part; PARTS],
}

/// Number of parts into which the nodes are divided. The thread of a part reads all edges of the batch.
const PARTS: usize = 16;
/// One edge of so many is sampled to cut the nodes into parts.
const EVERY: usize = 32;

/// The edges back of some nodes.
#[derive(Default)]
struct Part {
    /// For each edge the node to which it leads, its place among the edges of a node of the batch, and the number of
    /// that node; ascending.
    keys: Vec<u64>,
    /// Number of nodes.
    nodes: usize,
    /// Number of edges back.
    others: usize,
}

/// The places of the edges back of a part.
struct Places<'a> {
    keys: &'a [u64],
    nodes: &'a mut [u32],
    /// For each node the end of its list.
    ends: &'a mut [u32],
    /// The place of the first list in `others` of all parts.
    first: usize,
    others: &'a mut [u32],
    numbers: &'a mut [u16],
    by_vectors: &'a mut [bool],
}

fn node_of(key: u64) -> u32 {
    (key >> 32) as u32
}

/// The edges back of each node of some keys: the node, and the numbers in the batch.
fn by_node(keys: &[u64], degree: usize) -> impl Iterator<Item = (u32, impl ExactSizeIterator<Item = u16> + Clone)> {
    let most = MOST_BACK * degree;
    let lists = keys.chunk_by(|a, b| node_of(*a) == node_of(*b));
    lists.map(move |keys| (node_of(keys[0]), keys[..keys.len().min(most)].iter().map(|&key| key as u16)))
}

impl Part {
    /// Finds the edges of a batch that lead to some nodes.
    fn find(&mut self, nodes: Range<u32>, chosen: &Chosen, degree: usize) {
        self.keys.clear();
        for (number, edges) in chosen.edges.chunks_exact(degree).enumerate() {
            for (place, &other) in edges.iter().enumerate().filter(|(_, other)| nodes.contains(other)) {
                self.keys.push(u64::from(other) << 32 | (place << 16 | number) as u64);
            }
        }
        self.keys.sort_unstable();
        (self.nodes, self.others) = (0, 0);
        for (_, numbers) in by_node(&self.keys, degree) {
            self.nodes += 1;
            self.others += numbers.len();
        }
    }
}

impl Places<'_> {
    fn fill(self, batch: &[u32], chosen: &Chosen, degree: usize) {
        let Places { keys, nodes, ends, first, others, numbers: to, by_vectors } = self;
        // The number of the first node of the batch that is not below the node.
        let (mut own, mut end) = (0, 0);
        for (at, (node, numbers)) in by_node(keys, degree).enumerate() {
            while batch.get(own).is_some_and(|&other| other < node) {
                own += 1;
            }
            let own_by_vectors = batch.get(own).is_some_and(|&own| own == node) && chosen.by_vectors[own];
            by_vectors[at] = own_by_vectors || numbers.clone().any(|number| chosen.by_vectors[number as usize]);
            nodes[at] = node;
            for number in numbers {
                (others[end], to[end]) = (batch[number as usize], number);
                end += 1;
            }
            ends[at] = (first + end) as u32;
        }
    }
}

impl Back {
    /// Makes these the edges back along the edges of a batch, which ascends. O(edges · log edges).
    pub(super) fn follow(&mut self, batch: &[u32], chosen: &Chosen, degree: usize) {
        let edges = || chosen.edges.iter().copied().filter(|&other| other != NO_NODE);
        // The nodes of a part are about as many as those of another: those below a sampled node, from the one before.
        let mut some: Vec<u32> = edges().step_by(EVERY).collect();
        some.sort_unstable();
        let sampled = |part: usize| some.get(part * some.len() / PARTS).copied().unwrap_or(0);
        let end = |part: usize| if part == PARTS { NO_NODE } else { sampled(part) };
        let first = |part: usize| if part == 0 { 0 } else { end(part) };
        let find = |(number, part): (usize, &mut Part)| part.find(first(number)..end(number + 1), chosen, degree);
        self.parts.par_iter_mut().enumerate().with_max_len(1).for_each(find);

        let count = |of: fn(&Part) -> usize| self.parts.iter().map(of).sum::<usize>();
        let (nodes, others) = (count(|part| part.nodes), count(|part| part.others));
        self.nodes.resize(nodes, 0);
        self.by_vectors.resize(nodes, false);
        self.begins.resize(nodes + 1, 0);
        self.others.resize(others, 0);
        self.numbers.resize(others, 0);
        let (mut nodes, mut ends) = (self.nodes.as_mut_slice(), &mut self.begins[1..]);
        let (mut others, mut numbers) = (self.others.as_mut_slice(), self.numbers.as_mut_slice());
        let (mut by_vectors, mut first) = (self.by_vectors.as_mut_slice(), 0);
        let places = self.parts.iter().map(|part| {
            let places = Places {
                keys: &part.keys,
                nodes: taken(&mut nodes, part.nodes),
                ends: taken(&mut ends, part.nodes),
                first,
                others: taken(&mut others, part.others),
                numbers: taken(&mut numbers, part.others),
                by_vectors: taken(&mut by_vectors, part.nodes),
            };
            first += part.others;
            places
        });
        owned(places.collect()).with_max_len(1).for_each(|places| places.fill(batch, chosen, degree));
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

/// Takes the first `count` elements of `rest`, which has as many.
fn taken<'a, V>(rest: &mut &'a mut [V], count: usize) -> &'a mut [V] {
    rest.split_off_mut(..count).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::random::Random;

    /// Edges back of batches of several sizes, in memory of the batch before, beside a map from nodes to their lists.
    #[test]
    fn edges_back_are_those_of_a_map() {
        let (mut random, mut back) = (Random::new(5), Back::default());
        for (count, degree, nodes) in [(300, 4, 50), (1, 8, 900), (7, 2, 40), (4096, 3, 9_000), (40, 4, 3), (0, 4, 9)] {
            let batch: Vec<u32> = (0..count as u32).map(|at| at * (nodes / count.max(1)).max(1) as u32 + 1).collect();
            let edges = (0..count * degree).map(|_| match random.below(5) {
                0 => NO_NODE,
                _ => random.below(nodes) as u32,
            });
            let edges = edges.collect();
            let chosen = Chosen { edges, by_vectors: (0..count).map(|_| random.below(3) == 0).collect() };
            let mut lists: BTreeMap<u32, Vec<(usize, usize)>> = BTreeMap::new();
            for at in 0..count * degree {
                if chosen.edges[at] != NO_NODE {
                    lists.entry(chosen.edges[at]).or_default().push((at % degree, at / degree));
                }
            }
            back.follow(&batch, &chosen, degree);
            assert_eq!(back.nodes, lists.keys().copied().collect::<Vec<_>>());
            assert_eq!((back.begins.len(), back.begins[0]), (lists.len() + 1, 0));
            let mut cut = 0;
            for (at, (node, mut list)) in lists.into_iter().enumerate() {
                list.sort_unstable();
                cut += usize::from(list.len() > MOST_BACK * degree);
                list.truncate(MOST_BACK * degree);
                let numbers: Vec<usize> = list.iter().map(|&(_, number)| number).collect();
                let own = batch.iter().position(|&row| row == node).is_some_and(|number| chosen.by_vectors[number]);
                assert_eq!(back.by_vectors[at], own || numbers.iter().any(|&number| chosen.by_vectors[number]));
                assert_eq!(back.of_node(at), numbers.iter().map(|&number| batch[number]).collect::<Vec<_>>());
                assert_eq!(back.numbers_of(at), numbers.iter().map(|&number| number as u16).collect::<Vec<_>>());
            }
            assert!(nodes > 3 || cut > 0, "a node has more edges back than it keeps");
        }
    }
}
