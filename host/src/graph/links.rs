//! The edges of the graph, and the proof that walks can reach every node.
//!
//! # Invariant
//! Each node, that is each row but the [`twins`](Links::twins), has a parent: a node with an edge to it. Parents lead
//! to a start node in finitely many steps. A walk begins at start nodes, and at all of them if its beam is as wide as
//! the graph, so such a walk reaches every node. The edge from a parent to its child is *held*: no change drops it
//! unless the child gets another parent. [`Links::connect_without`] makes the parents of a new graph by a breadth-first
//! search, and gives the nodes that the search did not find a parent near them ([`Links::adopt`]). A graph of m nodes
//! has fewer than m held edges, and m · degree places for edges, so a place for one more is always found.

mod adopt;

use std::borrow::Cow;
use std::mem::take;
use std::sync::atomic::{AtomicU32, Ordering};

use rayon::prelude::*;

use super::distance::WalkDistance;
use super::edges_back::Back;
use super::entrance::Entrance;
use super::twins::{Nodes, Twins, hashed};
use crate::knn_graph::NO_NODE;
use crate::shared::{catch_up, replace_rows};
use crate::simd::prefetch;
use crate::{Element, Result, host_memory};

/// Number of nodes whose edges are prefetched ahead of those that are followed.
const AHEAD: usize = 8;
/// From this number on, the edges of nodes are followed by all threads.
const MANY: usize = if cfg!(test) { 16 } else { 4096 };
/// Number of nodes whose edges one thread follows at a time.
const PART: usize = if cfg!(test) { 7 } else { 512 };

/// Start nodes are added when more than one in this number is missing: to list all of them costs more than to insert a
/// row.
const STARTS_OF_ONE_MISSING: usize = 64;

/// The edges of a graph, at most `degree` of each node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Links {
    degree: usize,
    /// Nodes × degree: the nodes that edges lead to, then [`NO_NODE`].
    edges: Vec<u32>,
    /// The parent of each node, or [`NO_NODE`]; a start node is its own parent.
    parents: Vec<u32>,
    /// The nodes with which walks begin, ascending.
    starts: Vec<u32>,
    /// The lists of the start nodes.
    entrance: Entrance,
    /// The rows that are not nodes. They have no edges, and none lead to them.
    twins: Twins,
    /// Number of rows that were inserted after the graph was made.
    inserted: usize,
}

/// Number of start nodes for a graph of `nodes` nodes: enough that some are near every cluster of vectors.
pub(super) fn start_count(nodes: usize) -> usize {
    ((4.0 * (nodes as f64).sqrt()) as usize).max(nodes / 64).min(nodes)
}

/// The start nodes of a graph of `rows` rows, which are nodes or twins: every so-manieth node.
pub(super) fn starts_of(rows: usize, twins: &Twins) -> Vec<u32> {
    let nodes = rows - twins.len();
    let count = start_count(nodes);
    let starts = (0..count).map(|at| (at as u64 * nodes as u64 / count as u64) as u32);
    if twins.is_empty() {
        return starts.collect();
    }
    let nodes: Vec<u32> = (0..rows as u32).filter(|&row| !twins.contains(row)).collect();
    starts.map(|at| nodes[at as usize]).collect()
}

impl Links {
    /// A graph without edges. [`connect_without`](Self::connect_without) chooses the start nodes and makes the parents.
    pub(super) fn new(rows: usize, degree: usize, twins: Twins) -> Result<Self> {
        let edges = host_memory::filled(NO_NODE, host_memory::count::<u32>(&[rows, degree])?)?;
        Ok(Links { twins, ..Self::with_edges(edges, degree)? })
    }

    /// As [`new`](Self::new), with these edges: `degree` places for each node.
    pub(super) fn with_edges(edges: Vec<u32>, degree: usize) -> Result<Self> {
        let parents = host_memory::filled(NO_NODE, edges.len() / degree)?;
        let (starts, entrance, twins) = (Vec::new(), Entrance::default(), Twins::default());
        Ok(Links { degree, edges, parents, starts, entrance, twins, inserted: 0 })
    }

    /// A new graph of these edges, in which every node can be reached from these start nodes. `parents` are those of
    /// the nodes to which the edges lead, if they are known.
    pub(super) fn connected(
        edges: Vec<u32>,
        degree: usize,
        parents: Option<Vec<u32>>,
        (starts, entrance): (Vec<u32>, Entrance),
        twins: Twins,
        distance: &WalkDistance<'_>,
    ) -> Result<Self> {
        let mut links = match parents {
            Some(parents) => Links { degree, edges, parents, starts, entrance, twins, inserted: 0 },
            None => {
                let mut links = Links { starts, entrance, twins, ..Self::with_edges(edges, degree)? };
                links.reach_from_starts();
                links
            }
        };
        links.adopt_without(distance, &[]);
        Ok(links)
    }

    /// The graph of these edges, `degree` places of each node, whose start nodes are not [listed](Self::list_starts)
    /// yet; `None` if an edge or a start leads nowhere, starts do not ascend, an edge leads to its own node, an empty
    /// place comes before an edge, or a node has two edges to another. Rows may be left that cannot be reached: see
    /// [`complete`](Self::complete).
    pub(super) fn of_edges(edges: Vec<u32>, degree: usize, starts: Vec<u32>) -> Result<Option<Self>> {
        let nodes = edges.len() / degree;
        if starts.last().is_some_and(|&last| last as usize >= nodes) || !starts.is_sorted_by(|a, b| a < b) {
            return Ok(None);
        }
        let right = |(node, edges): (usize, &[u32])| {
            let count = edges.iter().position(|&other| other == NO_NODE).unwrap_or(degree);
            let (some, none) = edges.split_at(count);
            none.iter().all(|&other| other == NO_NODE)
                && some.iter().all(|&other| (other as usize) < nodes && other as usize != node)
                && (1..count).all(|at| !some[..at].contains(&some[at]))
        };
        if !edges.chunks_exact(degree).enumerate().all(right) {
            return Ok(None);
        }
        let mut links = Links { starts, ..Self::with_edges(edges, degree)? };
        links.reach_from_starts();
        Ok(Some(links))
    }

    /// Makes each row that cannot be reached a twin of a node with an equal vector. Returns whether all rows are nodes
    /// or twins then.
    ///
    /// # Errors
    /// [`Error::OutOfHostMemory`](crate::Error::OutOfHostMemory).
    pub(super) fn complete<T: Element>(&mut self, rows: &[T], dim: usize) -> Result<bool> {
        if self.all_reached() {
            return Ok(true);
        }
        let nodes = Nodes::of(rows, dim, |row| self.is_reached(row))?;
        let alone: Vec<u32> = (0..self.len() as u32).filter(|&row| !self.is_reached(row)).collect();
        for hashed @ (_, row) in hashed(rows, dim, &alone) {
            let node = nodes.find(rows, dim, hashed).filter(|&node| node < row && self.of(row).is_empty());
            let Some(node) = node else { return Ok(false) };
            self.twins.add(node, row);
        }
        Ok(true)
    }

    /// Makes rows that are nodes twins of others: edges to them lead to their nodes. Chooses start nodes and parents
    /// anew.
    pub(super) fn join(&mut self, twins: Twins, distance: &WalkDistance<'_>) {
        twins.join(&mut self.edges, self.degree);
        self.twins = twins;
        self.connect_without(distance, &[]);
    }

    /// Makes twins of those of some rows with new vectors that are no nodes yet and whose vectors nodes have, which
    /// `nodes` lists. Returns the rows that must get edges, ascending, and whether nodes need [other
    /// parents](Self::connect_without), because a row took the place of another node. `None` if so many nodes got the
    /// vectors of others that the graph should be made anew.
    pub(super) fn join_equal<T: Element>(
        &mut self,
        nodes: &mut Nodes,
        (rows, dim): (&[T], usize),
        new: &[u32],
    ) -> Option<(Vec<u32>, bool)> {
        let is_node = |row: u32| !self.twins.contains(row) && (self.is_reached(row) || !self.of(row).is_empty());
        let were_nodes: Vec<bool> = new.iter().map(|&row| is_node(row)).collect();
        // First all rows with new vectors leave their groups: then the vectors of a group are equal again.
        let mut inserted: Vec<u32> = new.iter().filter_map(|&row| self.twins.take(row)).collect();
        inserted.retain(|heir| new.binary_search(heir).is_err());
        hashed(rows, dim, &inserted).into_iter().for_each(|heir| nodes.insert(heir));
        let (mut equal_nodes, mut replaced) = (0, false);
        for (hashed @ (_, row), is_node) in hashed(rows, dim, new).into_iter().zip(were_nodes) {
            // A lower one of the new rows has found this one under its hash.
            if self.twins.contains(row) {
                continue;
            }
            match nodes.find(rows, dim, hashed).map(|node| self.twins.node_of(node)).filter(|&node| node != row) {
                Some(node) if !is_node => {
                    self.twins.add(node, row);
                    if row < node {
                        let places = self.places(node);
                        self.edges.copy_within(places, row as usize * self.degree);
                        nodes.insert(hashed);
                        inserted.push(row);
                        replaced = true;
                    }
                }
                Some(_) => {
                    equal_nodes += 1;
                    inserted.push(row);
                }
                None => {
                    nodes.insert(hashed);
                    inserted.push(row);
                }
            }
        }
        if replaced {
            self.twins.join(&mut self.edges, self.degree);
        }
        // A lower row may have taken the place of one that took over a group.
        inserted.retain(|&row| !self.twins.contains(row));
        inserted.sort_unstable();
        inserted.dedup();
        (equal_nodes <= self.degree).then_some((inserted, replaced))
    }

    /// Number of rows that were inserted after the graph was made.
    pub(super) fn inserted(&self) -> usize {
        self.inserted
    }

    /// Counts rows that are inserted.
    pub(super) fn count_inserted(&mut self, rows: usize) {
        self.inserted += rows;
    }

    /// The rows that are not nodes.
    pub(super) fn twins(&self) -> &Twins {
        &self.twins
    }

    /// The rows of a node.
    pub(super) fn rows_of(&self, node: u32) -> Cow<'_, [u32]> {
        self.twins.rows_of(node).map_or_else(|| Cow::Owned(vec![node]), Cow::Borrowed)
    }

    /// A copy of the graph.
    pub(super) fn copied(&self) -> Result<Self> {
        let copied = |nodes| host_memory::copied::<u32>(nodes);
        let (edges, parents, starts) = (copied(&self.edges)?, copied(&self.parents)?, copied(&self.starts)?);
        let (entrance, twins) = (self.entrance.clone(), self.twins.clone());
        Ok(Links { degree: self.degree, edges, parents, starts, entrance, twins, inserted: self.inserted })
    }

    /// Makes this older graph equal to `current`, in which `nodes` have got other edges or parents since and the nodes
    /// after the last one are new. Returns whether it is; `current` may have less nodes. O(nodes · degree).
    ///
    /// # Errors
    /// [`Error::OutOfHostMemory`](crate::Error::OutOfHostMemory).
    pub(super) fn catch_up(&mut self, current: &Self, nodes: &[u32]) -> Result<bool> {
        if self.degree != current.degree || self.len() > current.len() {
            return Ok(false);
        }
        catch_up(&mut self.edges, &current.edges, nodes, self.degree)?;
        catch_up(&mut self.parents, &current.parents, nodes, 1)?;
        self.starts.clone_from(&current.starts);
        (self.entrance, self.twins) = (current.entrance.clone(), current.twins.clone());
        self.inserted = current.inserted;
        Ok(true)
    }

    /// Number of nodes.
    pub(super) fn len(&self) -> usize {
        self.parents.len()
    }

    /// Places for edges of a node.
    pub(super) fn degree(&self) -> usize {
        self.degree
    }

    /// The nodes with which walks begin, ascending.
    pub(super) fn starts(&self) -> &[u32] {
        &self.starts
    }

    /// The lists of the start nodes.
    pub(super) fn entrance(&self) -> &Entrance {
        &self.entrance
    }

    /// Makes the lists of the start nodes, after they were chosen.
    pub(super) fn list_starts(&mut self, distance: &WalkDistance<'_>) {
        self.entrance = Entrance::new(&self.starts, distance);
    }

    /// Replaces the lists of the start nodes.
    pub(super) fn enter_by(&mut self, entrance: Entrance) {
        self.entrance = entrance;
    }

    /// Brings the lists of the start nodes up to date after rows, which ascend, got other vectors. The distance is that
    /// of the lists. Returns whether they are; otherwise they are as before, and must be made anew.
    #[must_use]
    pub(super) fn list_starts_after(&mut self, changed: &[u32], distance: &WalkDistance<'_>) -> bool {
        if !changed.iter().any(|row| self.starts.binary_search(row).is_ok()) {
            return true;
        }
        let can_follow = self.entrance.can_follow(&self.starts, changed);
        if can_follow {
            self.entrance = take(&mut self.entrance).after(&self.starts, changed, distance);
        }
        can_follow
    }

    /// All places, node after node.
    pub(super) fn edges(&self) -> &[u32] {
        &self.edges
    }

    /// The parent of each node, or [`NO_NODE`]; a start node is its own parent.
    pub(super) fn parents(&self) -> &[u32] {
        &self.parents
    }

    /// The parent of a node, or [`NO_NODE`].
    pub(super) fn parent_of(&self, node: u32) -> &[u32] {
        &self.parents[node as usize..][..1]
    }

    /// All places, for a graph that has no parents yet.
    pub(super) fn edges_mut(&mut self) -> &mut [u32] {
        &mut self.edges
    }

    /// The places of a node.
    fn places(&self, node: u32) -> std::ops::Range<usize> {
        let first = node as usize * self.degree;
        first..first + self.degree
    }

    /// Lets the processor fetch the edges of a node.
    #[inline]
    pub(super) fn prefetch(&self, node: u32) {
        prefetch(&self.edges[self.places(node)]);
    }

    /// All places of a node: its edges, then [`NO_NODE`].
    pub(super) fn places_of(&self, node: u32) -> &[u32] {
        &self.edges[self.places(node)]
    }

    /// The nodes to which a node has edges.
    #[inline]
    pub(super) fn of(&self, node: u32) -> &[u32] {
        let places = &self.edges[self.places(node)];
        let count = places.iter().position(|&other| other == NO_NODE).unwrap_or(self.degree);
        &places[..count]
    }

    /// Replaces all places of nodes, which ascend. Those with edges to their children are among the new ones.
    pub(super) fn set_all(&mut self, nodes: &[u32], edges: &[u32]) {
        let degree = self.degree;
        replace_rows(&mut self.edges, nodes, degree, |at, _| &edges[at * degree..][..degree]);
    }

    /// The nodes whose parent a node is, in the order of its edges.
    pub(super) fn children(&self, node: u32) -> impl Iterator<Item = u32> {
        self.of(node).iter().copied().filter(move |&other| self.parents[other as usize] == node)
    }

    /// Gives other parents to children of a node until at most half of its edges are held, if there are such parents:
    /// nodes that have an edge to the child anyway. The edges to these children are then as good as any others.
    /// O(children · degree²), and the way of each new parent to its start. `moved` gets the children that have other
    /// parents then.
    pub(super) fn release(&mut self, node: u32, moved: &mut Vec<u32>) {
        let (children, half): (Vec<u32>, usize) = (self.children(node).collect(), self.degree / 2);
        let mut held = children.len();
        for child in children.into_iter().rev() {
            if held <= half {
                break;
            }
            let can_hold = |&other: &u32| {
                other != node
                    && self.of(other).contains(&child)
                    && self.children(other).count() < half
                    && self.is_reached(other)
                    && !self.descends(other, child)
            };
            if let Some(parent) = self.of(child).iter().copied().find(can_hold) {
                self.parents[child as usize] = parent;
                moved.push(child);
                held -= 1;
            }
        }
    }

    /// Whether the way from a node to its start leads through `other`, or the node is it.
    fn descends(&self, mut node: u32, other: u32) -> bool {
        loop {
            let parent = self.parents[node as usize];
            if node == other || parent == node {
                return node == other;
            }
            node = parent;
        }
    }

    /// Whether a node is known to be reachable.
    pub(super) fn is_reached(&self, node: u32) -> bool {
        self.parents[node as usize] != NO_NODE
    }

    fn all_reached(&self) -> bool {
        !self.parents.contains(&NO_NODE)
    }

    /// Appends nodes without edges, which are not reachable yet. Reserve memory for them first.
    pub(super) fn grow(&mut self, nodes: usize) -> Result<()> {
        let more = nodes.saturating_sub(self.len());
        host_memory::reserve(&mut self.edges, more * self.degree)?;
        host_memory::reserve(&mut self.parents, more)?;
        self.edges.resize(nodes * self.degree, NO_NODE);
        self.parents.resize(nodes, NO_NODE);
        Ok(())
    }

    /// Makes new parents of all nodes except those listed, which ascend and to which no edges lead yet. Chooses start
    /// nodes for as many nodes as there are now. O(nodes · degree), and a walk for each node to which no edges lead.
    pub(super) fn connect_without(&mut self, distance: &WalkDistance<'_>, without: &[u32]) {
        self.starts = starts_of(self.len(), &self.twins);
        self.parents.fill(NO_NODE);
        self.list_starts(distance);
        self.reach_from_starts();
        self.adopt_without(distance, without);
    }

    /// Makes start nodes of some rows between the last start node and `end`, which were inserted since start nodes were
    /// chosen, so that there are as many as a new graph of `nodes` nodes has. So every class of vectors gets its share,
    /// though it comes late. A few missing ones wait for more, because all must be listed again, which is left to the
    /// caller. Returns the new ones.
    #[must_use]
    pub(super) fn grow_starts(&mut self, end: u32, nodes: usize) -> &[u32] {
        let first = self.starts.last().map_or(0, |&last| last + 1);
        let missing = start_count(nodes).saturating_sub(self.starts.len());
        if missing * STARTS_OF_ONE_MISSING <= self.starts.len() || first >= end {
            return &[];
        }
        let before = self.starts.len();
        let rows: Vec<u32> = (first..end).filter(|&row| !self.twins.contains(row)).collect();
        let count = missing.min(rows.len());
        for at in 1..=count {
            let start = rows[at * rows.len() / count - 1];
            self.parents[start as usize] = start;
            self.starts.push(start);
        }
        &self.starts[before..]
    }

    fn reach_from_starts(&mut self) {
        for &start in &self.starts {
            self.parents[start as usize] = start;
        }
        self.reach(self.starts.clone());
    }

    /// As [`reach`](Self::reach), from the nodes that have parents, after a batch, which ascends, got edges, and others
    /// got edges back: `joined` are all places of the latter. Only rows of the batch can be without a parent then that
    /// edges lead to.
    pub(super) fn reach_batch(&mut self, batch: &[u32], back: &Back, joined: &[u32]) {
        let is_open: Vec<bool> = batch.iter().map(|&row| !self.is_reached(row)).collect();
        if !is_open.contains(&true) {
            return;
        }
        // The lowest node with an edge to each row.
        let claims: Vec<AtomicU32> = batch.iter().map(|_| AtomicU32::new(NO_NODE)).collect();
        let nodes = back.nodes.par_iter().zip(joined.par_chunks_exact(self.degree)).enumerate();
        nodes.with_min_len(PART).for_each(|(at, (&node, edges))| {
            let numbers = back.numbers_of(at).iter().map(|&number| number as usize);
            for number in numbers.filter(|&number| is_open[number] && edges.contains(&batch[number])) {
                if self.is_reached(node) {
                    claims[number].fetch_min(node, Ordering::Relaxed);
                }
            }
        });
        // A row of the batch may be a node already.
        for &node in batch.iter().zip(&is_open).filter(|(_, is_open)| !**is_open).map(|(node, _)| node) {
            for number in self.of(node).iter().filter_map(|other| batch.binary_search(other).ok()) {
                claims[number].fetch_min(node, Ordering::Relaxed);
            }
        }
        let mut reached = Vec::new();
        for ((&row, claim), _) in batch.iter().zip(claims).zip(is_open).filter(|(_, is_open)| *is_open) {
            let node = claim.into_inner();
            if node != NO_NODE {
                self.parents[row as usize] = node;
                reached.push(row);
            }
        }
        if !batch.iter().all(|&row| self.is_reached(row)) {
            self.reach(reached);
        }
    }

    /// Gives a parent to each node that can be reached from `nodes`, which ascend and have parents: of the nodes with
    /// an edge to it that the fewest edges lead to, the lowest.
    pub(super) fn reach(&mut self, mut nodes: Vec<u32>) {
        let mut claims: Vec<AtomicU32> = Vec::new();
        while !nodes.is_empty() {
            let many =
                nodes.len() >= MANY && (claims.len() == self.len() || claims.try_reserve_exact(self.len()).is_ok());
            nodes = if many {
                claims.resize_with(self.len(), || AtomicU32::new(NO_NODE));
                self.next_level_at_once(&nodes, &claims)
            } else {
                self.next_level(&nodes)
            };
            nodes.par_sort_unstable();
        }
    }

    /// Gives parents among `nodes`, which ascend, to the nodes to which these have edges. Returns those that got one.
    fn next_level(&mut self, nodes: &[u32]) -> Vec<u32> {
        let mut next = Vec::new();
        for (at, &node) in nodes.iter().enumerate() {
            if let Some(&later) = nodes.get(at + AHEAD) {
                self.prefetch(later);
            }
            for place in self.places(node) {
                let other = self.edges[place];
                if other == NO_NODE {
                    break;
                }
                if self.parents[other as usize] == NO_NODE {
                    self.parents[other as usize] = node;
                    next.push(other);
                }
            }
        }
        next
    }

    /// As [`next_level`](Self::next_level), on all threads. `claims` has a number for each node.
    fn next_level_at_once(&mut self, nodes: &[u32], claims: &[AtomicU32]) -> Vec<u32> {
        let open = |&other: &u32| self.parents[other as usize] == NO_NODE;
        let each = |part: usize, with: &mut dyn FnMut(u32, u32)| {
            let first = part * PART;
            let part = &nodes[first..nodes.len().min(first + PART)];
            for (at, &node) in part.iter().enumerate() {
                if let Some(&later) = part.get(at + AHEAD) {
                    self.prefetch(later);
                }
                self.of(node).iter().copied().filter(open).for_each(|other| with((first + at) as u32, other));
            }
        };
        let parts: Vec<usize> = (0..nodes.len().div_ceil(PART)).collect();
        // The first node that has an edge to another one gets it. Rayon's joins order these writes before the reads
        // below.
        parts.par_iter().for_each(|&part| {
            each(part, &mut |at, other| {
                claims[other as usize].fetch_min(at, Ordering::Relaxed);
            });
        });
        let won = |&part: &usize| {
            let mut won: Vec<(u32, u32)> = Vec::new();
            each(part, &mut |at, other| {
                if claims[other as usize].load(Ordering::Relaxed) == at {
                    won.push((other, nodes[at as usize]));
                }
            });
            won
        };
        let won: Vec<Vec<(u32, u32)>> = parts.par_iter().map(won).collect();
        let mut next = Vec::with_capacity(won.iter().map(Vec::len).sum());
        for (node, parent) in won.into_iter().flatten() {
            self.parents[node as usize] = parent;
            next.push(node);
        }
        next
    }

    /// Bytes of host memory that edges, parents and start nodes take.
    pub(super) fn bytes(&self) -> u64 {
        let numbers = self.edges.capacity() + self.parents.capacity() + self.starts.capacity();
        (numbers * size_of::<u32>()) as u64 + self.entrance.bytes() + self.twins.bytes()
    }

    /// The number of rows of the nodes that edges lead to from the start nodes. O(nodes · degree).
    pub(super) fn reachable(&self) -> usize {
        let mut found = vec![false; self.len()];
        let mut nodes = self.starts.clone();
        nodes.iter().for_each(|&node| found[node as usize] = true);
        let mut at = 0;
        while let Some(&node) = nodes.get(at) {
            for &other in self.of(node) {
                if !std::mem::replace(&mut found[other as usize], true) {
                    nodes.push(other);
                }
            }
            at += 1;
        }
        nodes.iter().map(|&node| self.twins.rows_of(node).map_or(1, <[u32]>::len)).sum()
    }

    /// Number of edges. O(nodes · degree).
    pub(super) fn count(&self) -> u64 {
        self.edges.iter().filter(|&&node| node != NO_NODE).count() as u64
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::Metric;
    use crate::random::Random;
    use crate::vectors::VectorSlice;

    #[test]
    fn parents_are_those_of_a_breadth_first_search() {
        let (nodes, degree) = (900u32, 5);
        let mut random = Random::new(7);
        let mut edges = Vec::new();
        for node in 0..nodes {
            let mut places = vec![NO_NODE; degree];
            for at in 0..node as usize % (degree + 1) {
                let other = random.below(nodes as usize) as u32;
                places[at] = if places.contains(&other) { (other + 1 + at as u32) % nodes } else { other };
            }
            edges.extend(places);
        }
        let mut parents = vec![NO_NODE; nodes as usize];
        let mut level = BTreeSet::from([3, 4]);
        (parents[3], parents[4]) = (3, 4);
        while !level.is_empty() {
            let mut next = BTreeSet::new();
            for node in level {
                for &other in edges[node as usize * degree..][..degree].iter().filter(|&&other| other != NO_NODE) {
                    if parents[other as usize] == NO_NODE {
                        parents[other as usize] = node;
                        next.insert(other);
                    }
                }
            }
            level = next;
        }

        let mut links = Links::with_edges(edges, degree).unwrap();
        (links.parents[3], links.parents[4]) = (3, 4);
        links.reach(vec![3, 4]);
        let reached = parents.iter().filter(|&&parent| parent != NO_NODE).count();
        assert!(reached > 500 && links.parents == parents, "{reached}");
    }

    /// A node whose edges are all held has room again, unless nobody else can hold its children.
    #[test]
    fn children_find_other_parents() {
        // Node 0 is the start, and holds all others; the last of each set lead back to the first.
        let others = |edges: [[u32; 2]; 4]| {
            let mut all = vec![1, 2, 3, 4];
            edges.iter().for_each(|&[a, b]| all.extend([a, b, NO_NODE, NO_NODE]));
            let mut links = Links::with_edges(all, 4).unwrap();
            links.parents[0] = 0;
            links.reach(vec![0]);
            assert_eq!(links.children(0).collect::<Vec<_>>(), [1, 2, 3, 4]);
            links.release(0, &mut Vec::new());
            // Every way still leads to the start.
            for mut node in 0..5 {
                for _ in 0..5 {
                    node = links.parents[node as usize];
                }
                assert_eq!(node, 0);
            }
            links
        };
        // 1 and 2 as well as 3 and 4 have edges to each other, so one of each pair can hold the other.
        let links = others([[2, NO_NODE], [1, NO_NODE], [4, NO_NODE], [3, NO_NODE]]);
        assert_eq!((links.children(0).collect::<Vec<_>>(), links.parents), (vec![1, 3], vec![0, 0, 1, 0, 3]));
        // Nobody else has an edge to 1 or 2, and 4 and 3 only in a circle, of which one must stay.
        let links = others([[NO_NODE; 2], [NO_NODE; 2], [4, NO_NODE], [3, NO_NODE]]);
        assert_eq!(links.children(0).collect::<Vec<_>>(), [1, 2, 3]);
        // All can be held by others, and half of the places suffice.
        let links = others([[2, 3], [1, 4], [1, 4], [2, 3]]);
        assert_eq!(links.children(0).count(), 2);
        assert!((1..5).all(|node| links.children(node).count() <= 2));
    }

    /// Under inner product, a node that has no parent gets one of which less than half of the edges are held, if there
    /// is one.
    #[test]
    fn nodes_are_adopted_where_edges_are_free() {
        let rows: Vec<f32> = (0..8).map(|at| at as f32).collect();
        let distance = WalkDistance::new(Metric::InnerProduct, VectorSlice::of(&rows, 1));
        let mut edges = vec![NO_NODE; 8 * 4];
        edges[..4].copy_from_slice(&[1, 2, 3, 4]);
        // Node 7 knows the start, whose edges are held, and node 4.
        edges[28..30].copy_from_slice(&[0, 4]);
        let mut links = Links::with_edges(edges, 4).unwrap();
        (links.starts, links.parents[0]) = (vec![0], 0);
        links.list_starts(&distance);
        links.reach(vec![0]);
        links.adopt(&distance, &[5, 6, 7]);
        assert_eq!(links.of(0), [1, 2, 3, 4]);
        assert!(links.all_reached() && links.parents[7] == 4, "{:?}", links.parents);
        assert!((1..8).all(|node| links.children(node).count() <= 2));
    }
}
