//! Rows with equal vectors: one node of the graph with several rows.
//!
//! Were each of them a node, their nearest neighbours would be each other. A walk that comes to a group of more equal
//! rows than its beam has places fills the beam with them, their edges lead to each other only, and the walk ends
//! there, far from its query. A wider beam meets larger groups, so it can find less. So the first row of a group is a
//! node, and the others, its twins, have no edges, and none lead to them. A walk finds nodes, and the rows of a node
//! are results together, because they have the same distance from every query.
//!
//! Vectors are equal if their components are; −0 equals +0.
//!
//! # How equal rows are found
//! By a hash of 64 bits of each row, and a comparison where hashes are equal. A new graph sorts the hashes of all rows,
//! while its edges are chosen. A row that is added is looked up in a table ([`Nodes`]), which the first addition makes:
//! 16 to 32 bytes a row.
//!
//! The node of a group is its first row, so that nodes at one distance come in the order of their first rows.
//!
//! A row that gets another vector stays a node, even if another row has that vector: its edges and its children stay.
//! If so many rows become equal in this way that walks could suffer, the graph is made anew (`change.rs`).

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use crate::knn_graph::NO_NODE;
use crate::parallel::{Loop, ParallelSlice, turns};
use crate::{Bitset, Element, Error, Result, host_memory};
use bytemuck::Pod;

/// The hash of a row, and the row.
type Hashed = (u64, u32);

/// The rows that are not nodes, and the rows of each node that is several.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Twins {
    /// For each node that is several rows: all of them, ascending. The node is the first.
    rows: HashMap<u32, Vec<u32>>,
    /// For each row that is not a node, its node.
    nodes: HashMap<u32, u32>,
}

impl Twins {
    /// The groups of equal rows: the first row of each is its node. O(rows · (dim + log rows)).
    ///
    /// # Errors
    /// [`Error::OutOfHostMemory`](crate::Error::OutOfHostMemory).
    pub(super) fn of<T: Element>(rows: &[T], dim: usize) -> Result<Self> {
        let mut hashes: Vec<Hashed> = host_memory::filled((0, 0), rows.len() / dim)?;
        let hash = |(row, (to, vector)): (usize, (&mut Hashed, &[T]))| *to = (hash(vector), row as u32);
        hashes.par_iter_mut().zip(rows.par_chunks_exact(dim)).enumerate().for_each(hash);
        hashes.par_sort_unstable();
        let mut twins = Twins::default();
        for run in hashes.chunk_by(|a, b| a.0 == b.0).filter(|run| run.len() > 1) {
            // Rows of one hash are equal, as good as always: a row is compared with the first row of each group.
            let mut nodes: Vec<u32> = Vec::new();
            for &(_, row) in run {
                match nodes.iter().find(|&&node| are_equal(vector(rows, dim, node), vector(rows, dim, row))) {
                    Some(&node) => twins.add(node, row),
                    None => nodes.push(row),
                }
            }
        }
        Ok(twins)
    }

    /// Whether all rows are nodes.
    pub(super) fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// Number of rows that are not nodes.
    pub(super) fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Number of rows of the largest group.
    pub(super) fn largest(&self) -> usize {
        self.rows.values().map(Vec::len).max().unwrap_or(0)
    }

    /// Whether a row is not a node.
    pub(super) fn contains(&self, row: u32) -> bool {
        self.nodes.contains_key(&row)
    }

    /// The node of a row.
    pub(super) fn node_of(&self, row: u32) -> u32 {
        *self.nodes.get(&row).unwrap_or(&row)
    }

    /// The rows of a node that is several, ascending.
    pub(super) fn rows_of(&self, node: u32) -> Option<&[u32]> {
        self.rows.get(&node).map(Vec::as_slice)
    }

    /// All groups: node and rows.
    pub(super) fn groups(&self) -> impl Iterator<Item = (u32, &[u32])> {
        self.rows.iter().map(|(&node, rows)| (node, rows.as_slice()))
    }

    /// Puts a row, which is in no group, into the group of a node. The lower one of the two is the node then.
    pub(super) fn add(&mut self, node: u32, row: u32) {
        let mut rows = self.rows.remove(&node).unwrap_or_else(|| vec![node]);
        rows.insert(rows.partition_point(|&other| other < row), row);
        let first = node.min(row);
        self.nodes.remove(&first);
        let others = if first == node { std::slice::from_ref(&row) } else { &rows[1..] };
        self.nodes.extend(others.iter().map(|&other| (other, first)));
        self.rows.insert(first, rows);
    }

    /// Takes a row, which got another vector, out of its group. Returns the row that must become a node, if the row was
    /// the node of others.
    pub(super) fn take(&mut self, row: u32) -> Option<u32> {
        if let Some(node) = self.nodes.remove(&row) {
            let rows = self.rows.get_mut(&node)?;
            rows.retain(|&other| other != row);
            if rows.len() == 1 {
                self.rows.remove(&node);
            }
            return None;
        }
        let mut rows = self.rows.remove(&row)?;
        rows.retain(|&other| other != row);
        let node = *rows.first()?;
        self.nodes.remove(&node);
        self.nodes.extend(rows[1..].iter().map(|&other| (other, node)));
        if rows.len() > 1 {
            self.rows.insert(node, rows);
        }
        Some(node)
    }

    /// The groups after rows have moved: `moved` has the new number of each row, or [`NO_NODE`] if it is gone. If the
    /// node of a group is gone, its first row that is left takes over, and `moved` then leads from the old node to it.
    pub(super) fn moved(&self, moved: &mut [u32]) -> Self {
        let mut twins = Twins::default();
        for (node, rows) in self.groups() {
            let mut left = rows.iter().map(|&row| moved[row as usize]).filter(|&row| row != NO_NODE);
            let heir = if moved[node as usize] == NO_NODE { left.next() } else { Some(moved[node as usize]) };
            let Some(heir) = heir else { continue };
            left.filter(|&row| row != heir).for_each(|row| twins.add(heir, row));
            rows.iter().for_each(|&row| moved[row as usize] = NO_NODE);
            moved[node as usize] = heir;
        }
        twins
    }

    /// Makes each row of a table of neighbours, `width` places a row, one of nodes: those of twins become empty, and
    /// neighbours become nodes, each once and none its own.
    pub(super) fn join(&self, table: &mut [u32], width: usize) {
        table.par_chunks_exact_mut(width).enumerate().for_each(|(row, places)| {
            let mut count = 0;
            for at in 0..places.len() {
                if places[at] == NO_NODE || self.contains(row as u32) {
                    break;
                }
                let node = self.node_of(places[at]);
                if node as usize != row && !places[..count].contains(&node) {
                    places[count] = node;
                    count += 1;
                }
            }
            places[count..].fill(NO_NODE);
        });
    }

    /// The nodes of which one row at least is accepted, and the number of those whose first row is not. Twins keep
    /// their bits.
    ///
    /// # Errors
    /// [`Error::OutOfHostMemory`](crate::Error::OutOfHostMemory).
    pub(super) fn accepted_nodes(&self, among: &Bitset) -> Result<(Bitset, usize)> {
        let (mut nodes, mut later) = (among.copied()?, 0);
        let is_accepted = |&row: &u32| among.get(row as usize);
        for (node, rows) in self.groups().filter(|(node, rows)| !is_accepted(node) && rows.iter().any(is_accepted)) {
            debug_assert_eq!(node, rows[0], "the node of a group is its first row");
            nodes.set(node as usize, true);
            later += 1;
        }
        Ok((nodes, later))
    }

    /// Bytes of host memory, about.
    pub(super) fn bytes(&self) -> u64 {
        let rows: usize = self.rows.values().map(|rows| rows.capacity() * 4 + size_of::<(u32, Vec<u32>)>()).sum();
        (rows + self.nodes.capacity() * size_of::<(u32, u32)>()) as u64
    }
}

/// Number of tables of [`Nodes`]: all threads fill some.
const TABLES: usize = 32;
/// The first bit of those of a hash that choose its table. A table uses the lowest and the highest ones.
const TABLE_BIT: u32 = 32;

/// The nodes of a graph by the hashes of their vectors.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Nodes {
    /// None, or [`TABLES`].
    tables: Vec<HashMap<u64, u32, BuildHasherDefault<Same>>>,
    /// The hashes under which nodes were inserted since [`take_inserted`](Self::take_inserted).
    inserted: Vec<u64>,
}

impl Nodes {
    /// Those of `rows` that `is_node` accepts. O(rows · dim).
    ///
    /// # Errors
    /// [`Error::OutOfHostMemory`](crate::Error::OutOfHostMemory).
    pub(super) fn of<T: Element>(rows: &[T], dim: usize, is_node: impl Fn(u32) -> bool + Sync) -> Result<Self> {
        let mut hashes: Vec<u64> = host_memory::zeroed(rows.len() / dim)?;
        hashes.par_iter_mut().zip(rows.par_chunks_exact(dim)).for_each(|(to, vector)| *to = hash(vector));
        let table = |number: usize| {
            let of_table = (0..).zip(&hashes).filter(|&(_, &hash)| table_of(hash) == number);
            let mut table: HashMap<u64, u32, BuildHasherDefault<Same>> = HashMap::default();
            // Hashes are spread evenly, so few tables must grow.
            let room = table.try_reserve(hashes.len() / TABLES + hashes.len() / (16 * TABLES));
            room.map_err(|_| Error::OutOfHostMemory { asked: (hashes.len() * size_of::<Hashed>()) as u64 })?;
            for (row, &hash) in of_table.filter(|&(row, _)| is_node(row)) {
                table.entry(hash).or_insert(row);
            }
            Ok(table)
        };
        let tables = turns(0..TABLES).with_max_len(1).map(table).collect().into_iter().collect::<Result<_>>()?;
        Ok(Nodes { tables, inserted: Vec::new() })
    }

    /// Another node with the vector of a row, which has this hash.
    pub(super) fn find<T: Element>(&self, rows: &[T], dim: usize, (hash, row): Hashed) -> Option<u32> {
        // A node whose vector was replaced is still listed under the old one.
        let is_equal = |&node: &u32| node != row && are_equal(vector(rows, dim, node), vector(rows, dim, row));
        self.tables.get(table_of(hash))?.get(&hash).copied().filter(is_equal)
    }

    /// Makes a node known under the hash of its vector; a node that was known under this hash is no longer found.
    pub(super) fn insert(&mut self, (hash, node): Hashed) {
        self.tables.resize_with(TABLES, HashMap::default);
        self.tables[table_of(hash)].insert(hash, node);
        self.inserted.push(hash);
    }

    /// The hashes under which other nodes were made known since the last call.
    pub(super) fn take_inserted(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.inserted)
    }

    /// Makes this older table equal to `current`, which has other nodes under these hashes.
    pub(super) fn catch_up(&mut self, current: &Self, hashes: &[u64]) {
        self.tables.resize_with(current.tables.len(), HashMap::default);
        for &hash in hashes {
            if let Some(&node) = current.tables[table_of(hash)].get(&hash) {
                self.tables[table_of(hash)].insert(hash, node);
            }
        }
    }

    /// Bytes of host memory, about.
    pub(super) fn bytes(&self) -> u64 {
        self.tables.iter().map(|table| (table.capacity() * size_of::<Hashed>()) as u64).sum()
    }
}

/// The hash of a table whose keys are hashes.
#[derive(Debug, Clone, Copy, Default)]
struct Same(u64);

impl Hasher for Same {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.0 = self.0 << 8 | u64::from(byte));
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }
}

/// The number of the table of a hash.
fn table_of(hash: u64) -> usize {
    (hash >> TABLE_BIT) as usize % TABLES
}

/// Each of these rows with the hash of its vector.
pub(super) fn hashed<T: Element>(rows: &[T], dim: usize, listed: &[u32]) -> Vec<Hashed> {
    listed.par_iter().map(|&row| (hash(vector(rows, dim, row)), row)).collect()
}

fn vector<T>(rows: &[T], dim: usize, row: u32) -> &[T] {
    rows.get(row as usize * dim..).and_then(|rows| rows.get(..dim)).unwrap_or(&[])
}

/// The bits of a component, with +0 for −0.
#[inline(always)]
fn bits<T: Pod>(x: &T) -> u64 {
    match bytemuck::bytes_of(x) {
        &[a] => a.into(),
        &[a, b] => match u16::from_le_bytes([a, b]) {
            0x8000 => 0,
            bits => bits.into(),
        },
        &[a, b, c, d] => match u32::from_le_bytes([a, b, c, d]) {
            0x8000_0000 => 0,
            bits => bits.into(),
        },
        bytes => bytes.iter().fold(0, |bits, &byte| bits << 8 | u64::from(byte)),
    }
}

/// Whether two vectors have equal components, or bits that stand for the same numbers.
fn are_equal<T: Element>(a: &[T], b: &[T]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| bits(a) == bits(b))
}

/// A hash of the components: four sums of products, so that a processor does four at a time.
fn hash<T: Element>(vector: &[T]) -> u64 {
    const FACTOR: u64 = 0x9E37_79B9_7F4A_7C15;
    let step = |sum: u64, x: &T| (sum ^ bits(x)).wrapping_mul(FACTOR).rotate_left(29);
    let mut sums = [1u64, 2, 3, 4];
    let (quads, rest) = vector.as_chunks::<4>();
    quads.iter().for_each(|quad| (0..4).for_each(|at| sums[at] = step(sums[at], &quad[at])));
    rest.iter().for_each(|x| sums[0] = step(sums[0], x));
    sums.into_iter().fold(0, |all, sum| (all ^ sum).wrapping_mul(FACTOR).rotate_left(32))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    /// Groups by comparing all pairs.
    fn defined(rows: &[f32], dim: usize) -> Vec<Vec<u32>> {
        let mut groups: Vec<Vec<u32>> = Vec::new();
        for row in 0..(rows.len() / dim) as u32 {
            match groups.iter_mut().find(|group| vector(rows, dim, group[0]) == vector(rows, dim, row)) {
                Some(group) => group.push(row),
                None => groups.push(vec![row]),
            }
        }
        groups.retain(|group| group.len() > 1);
        groups
    }

    fn sorted(twins: &Twins) -> Vec<Vec<u32>> {
        let mut groups: Vec<Vec<u32>> = twins.groups().map(|(_, rows)| rows.to_vec()).collect();
        groups.sort();
        groups
    }

    #[test]
    fn equal_rows_are_found_whatever_the_signs_of_their_zeros() {
        let mut random = Random::new(1);
        for dim in [1, 3, 4, 9] {
            for values in [1, 2, 4] {
                let value = |_| [0.0, -0.0, 1.0, -1.0, 2.5][random.below(values + 1)];
                let rows: Vec<f32> = (0..300 * dim).map(value).collect();
                let twins = Twins::of(&rows, dim).unwrap();
                assert_eq!(sorted(&twins), defined(&rows, dim), "{dim} {values}");
                for (node, group) in twins.groups() {
                    assert!(group[0] == node && group.iter().all(|&row| twins.node_of(row) == node));
                    assert!(group.iter().all(|&row| twins.contains(row) == (row != node)));
                }
                let nodes = Nodes::of(&rows, dim, |row| !twins.contains(row)).unwrap();
                let all: Vec<u32> = (0..300).collect();
                for hashed @ (_, row) in hashed(&rows, dim, &all) {
                    let other = if twins.contains(row) { Some(twins.node_of(row)) } else { None };
                    assert_eq!(nodes.find(&rows, dim, hashed), other);
                }
            }
        }
    }

    #[test]
    fn groups_follow_the_changes_of_their_rows() {
        // Rows 0, 2, 5, 6 are equal, and 1 and 4.
        let rows = [7.0f32, 8.0, 7.0, 9.0, 8.0, 7.0, 7.0];
        let twins = Twins::of(&rows, 1).unwrap();
        assert_eq!((twins.len(), twins.largest()), (4, 4));
        let mut taken = twins.clone();
        assert_eq!((taken.take(5), taken.take(0), taken.take(1), taken.take(3)), (None, Some(2), Some(4), None));
        assert_eq!(sorted(&taken), [[2, 6]]);
        assert_eq!(taken.take(2), Some(6));
        assert!(taken.is_empty() && taken == Twins::default());
        // Rows 0 and 4 go, the others move together.
        let mut moved = [NO_NODE, 0, 1, 2, NO_NODE, 3, 4];
        assert_eq!(sorted(&twins.moved(&mut moved)), [[1, 3, 4]]);
        assert_eq!(moved, [1, 0, NO_NODE, 2, NO_NODE, NO_NODE, NO_NODE]);
        let mut table = [2, 5, 1, NO_NODE, 4, 1, 6, 3, 0, 1, 3, 4, NO_NODE, 0, 0, 0];
        twins.join(&mut table, 4);
        assert_eq!(
            table,
            [
                1, NO_NODE, NO_NODE, NO_NODE, 0, 3, NO_NODE, NO_NODE, NO_NODE, NO_NODE, NO_NODE, NO_NODE, NO_NODE,
                NO_NODE, NO_NODE, NO_NODE
            ]
        );
        let among: Bitset = (0..7).map(|row| row == 5 || row == 3).collect();
        let (nodes, later) = twins.accepted_nodes(&among).unwrap();
        assert_eq!(([0, 1, 2, 3].map(|node| nodes.get(node)), later), ([true, false, false, true], 1));
        // A lower row becomes the node.
        let mut lower = Twins::default();
        [(5, 7), (5, 3), (3, 4)].into_iter().for_each(|(node, row)| lower.add(node, row));
        assert_eq!((sorted(&lower), lower.node_of(5), lower.node_of(7)), (vec![vec![3, 4, 5, 7]], 3, 3));
        assert!(!lower.contains(3) && lower.len() == 3);
    }
}
