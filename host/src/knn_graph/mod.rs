//! k-nearest-neighbour graphs: making them, their components, and paths in them.
//!
//! # Problem
//! The k-NN graph of a set has a node for each vector and an edge from it to each of its k nearest others (Johnson,
//! Douze and Jégou, "Billion-scale similarity search with GPUs", sections 6.5 and 6.6). [`KnnGraph`] makes it with any
//! index. [`Graph`] holds it, computes its [connected components](Graph::components), and finds the [path](Graph::path)
//! between two nodes whose largest step is as small as possible.
//!
//! # Making a graph
//! ```text
//! for each batch of rows of the base:
//!     found = index.search(batch, k + 1)            the next batch is searched while this one is kept
//!     a row's neighbours = found without the row's own id, or without the last if that is not among them
//!     append them to the file; append their checksum to the journal
//! ```
//! The row itself is removed by its id: another vector with equal components is a neighbour like any other. With an
//! exact index the graph has the same bits on every device. Batches grow as long as memory allows and each takes less
//! than about a second, so an interruption loses at most one batch. [`KnnGraph::write`] describes the journal of a run
//! and what a resumed run takes over.
//!
//! Cost: n searches in large batches; writing, checksums and the removal of the rows' ids run at the same time as the
//! searches. Memory: three batches of results in addition to the index for [`KnnGraph::write`]; 8 bytes more for each
//! slot for [`KnnGraph::run`].
//!
//! ```
//! use warpann::knn_graph::KnnGraph;
//! use warpann::{Device, FlatIndex, Metric};
//!
//! // Two rows of points, 1 apart in each, 10 apart from each other.
//! let base: Vec<f32> = (0..20).flat_map(|i| [(i % 10) as f32, (i / 10 * 10) as f32]).collect();
//! let mut index = FlatIndex::<f32>::new(2, Metric::L2, Device::Cpu)?;
//! index.add(&base)?;
//!
//! let (graph, distances) = KnnGraph::new(2).run(&index, &base)?;
//! assert_eq!((graph.row(3), &distances[6..8]), (&[2, 4][..], &[1.0, 1.0][..]));
//! assert_eq!(graph.components().sizes, [10, 10]);
//!
//! let path = graph.path(&base, 2, Metric::L2, 2, 5)?;
//! assert_eq!((path.nodes, path.largest), (vec![2, 3, 4, 5], Some(1.0)));
//! assert!(graph.path(&base, 2, Metric::L2, 2, 15).is_err());
//! # Ok::<(), warpann::Error>(())
//! ```

mod build;
mod components;
mod index;
mod journal;
mod path;
#[cfg(test)]
pub(crate) mod tests;

use std::path::Path as FilePath;

use rayon::prelude::*;

pub use self::build::KnnGraph;
pub use self::components::Components;
pub use self::index::KnnIndex;
use self::index::without_own;
pub use self::path::Path;
use crate::error::{Error, FileDefect, Result};
use crate::io::{self, IdMatrix};
use crate::random::{Random, gather};
use crate::serialised::deserialised;
use crate::validate::{MAX_ROWS, check_length, check_vectors};
use crate::{Element, Input, NONE};

/// The content of an empty slot of a [`Graph`]: [`NONE`] in 32 bits.
pub const NO_NODE: u32 = u32::MAX;

/// A graph in which every node has `k` slots for edges: the rows of a base and their neighbours.
///
/// Nodes are numbered from 0, as the rows are. The graph takes 4 bytes for each slot.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Graph {
    k: usize,
    /// Nodes × k numbers, each of which is a node or [`NO_NODE`].
    neighbours: Vec<u32>,
}

deserialised!(Graph { k: usize, neighbours: Vec<u32> } => |k, neighbours| {
    let rows = neighbours.len().checked_div(k).unwrap_or(0);
    let beyond = |&node: &u32| node != NO_NODE && node as usize >= rows;
    if rows.checked_mul(k) != Some(neighbours.len()) || rows as u64 > MAX_ROWS || neighbours.iter().any(beyond) {
        return Err(format!("{} neighbours are not {rows} rows of k = {k} nodes", neighbours.len()));
    }
    Ok(Graph { k, neighbours })
});

impl Graph {
    /// Makes a graph of `neighbours`, which are nodes or [`NO_NODE`], in whole rows of k ≥ 1.
    pub(crate) fn of_rows(neighbours: Vec<u32>, k: usize) -> Self {
        Self { k, neighbours }
    }

    /// Makes the graph in which node r has edges to the ids of row r; [`NONE`] means no edge. O(ids).
    ///
    /// # Errors
    /// [`FileDefect::BadDimension`] if k is 0; [`FileDefect::WrongIdCount`] unless there are rows · k ids;
    /// [`FileDefect::NoSuchRow`] if an id is not the number of a row; [`FileDefect::TooLarge`] if there are more rows
    /// than 32 bits can number, or no memory for the graph.
    pub fn from_ids(ids: &IdMatrix) -> Result<Self, FileDefect> {
        let &IdMatrix { rows, k, ref ids } = ids;
        if rows.checked_mul(k) != Some(ids.len()) {
            return Err(FileDefect::WrongIdCount { rows: rows as u64, k: k as u64, ids: ids.len() as u64 });
        }
        if k == 0 && rows > 0 {
            return Err(FileDefect::BadDimension(0));
        }
        let too_large = FileDefect::TooLarge { rows: rows as u64, dim: k as u64 };
        let mut neighbours: Vec<u32> = Vec::new();
        if rows as u64 > MAX_ROWS || neighbours.try_reserve_exact(ids.len()).is_err() {
            return Err(too_large);
        }
        // The low half of NONE is NO_NODE.
        ids.par_iter().map(|&id| id as u32).collect_into_vec(&mut neighbours);
        if let Some(at) = ids.par_iter().position_first(|&id| id != NONE && id >= rows as u64) {
            let (row, column) = ((at / k) as u64, (at % k) as u64);
            return Err(FileDefect::NoSuchRow { row, column, id: ids[at], rows: rows as u64 });
        }
        Ok(Self { k, neighbours })
    }

    /// Reads a graph from a file of ids: `ibin`, `npy`, `ivecs` or `bin`, also one that another program wrote. O(file).
    ///
    /// # Errors
    /// [`Error::Io`], or [`Error::BadFile`] with the defect.
    pub fn read(path: impl AsRef<FilePath>) -> Result<Self> {
        let path = path.as_ref();
        Self::from_ids(&io::read_ids(path)?).map_err(|defect| Error::BadFile { path: path.to_owned(), defect })
    }

    /// Number of nodes.
    pub fn len(&self) -> usize {
        self.neighbours.len() / self.k.max(1)
    }

    /// Whether the graph has no nodes.
    pub fn is_empty(&self) -> bool {
        self.neighbours.is_empty()
    }

    /// Number of slots of a node.
    pub fn k(&self) -> usize {
        self.k
    }

    /// The neighbours of a node, nearest first; [`NO_NODE`] in empty slots.
    ///
    /// # Panics
    /// Panics if there is no such node, as slice indexing does.
    pub fn row(&self, node: usize) -> &[u32] {
        &self.neighbours[node * self.k..(node + 1) * self.k]
    }

    /// Nodes × k neighbours, row after row.
    pub fn neighbors(&self) -> &[u32] {
        &self.neighbours
    }

    /// Number of edges, which is the number of slots with a neighbour. O(slots).
    pub fn edges(&self) -> usize {
        self.neighbours.par_iter().filter(|&&node| node != NO_NODE).count()
    }

    /// The fraction of true k nearest neighbours that the graph contains, for `sample` nodes at random (or all, if
    /// there are fewer). `exact`, an exact index of `base` with the metric of the graph, finds the true neighbours.
    /// Every run uses the same nodes. The cost is `sample` searches.
    ///
    /// # Errors
    /// [`Error::WrongLength`] if index or base do not have one vector for each node; and the errors of the index's
    /// search.
    pub fn accuracy<T: Element>(&self, exact: &impl KnnIndex<T>, base: &[T], sample: usize) -> Result<f64> {
        let (nodes, dim) = (self.len(), exact.dim());
        for actual in [exact.len(), check_vectors(base, dim, Input::Base)?] {
            check_rows(nodes, actual)?;
        }
        let drawn = Random::new(1).sample(nodes, sample.min(nodes));
        if drawn.is_empty() {
            return Ok(1.0);
        }
        let (mut truth, mut distances) = (Vec::new(), Vec::new());
        without_own(
            &exact.nearest(&gather(base, dim, &drawn)?, self.k + 1)?,
            |at| drawn[at],
            &mut truth,
            &mut distances,
        );
        let wide = |&node: &u32| if node == NO_NODE { NONE } else { u64::from(node) };
        let found: Vec<u64> = drawn.iter().flat_map(|&row| self.row(row)).map(wide).collect();
        let truth: Vec<u64> = truth.iter().map(wide).collect();
        Ok(crate::recall(&found, self.k, &truth, self.k, self.k))
    }

    /// Checks that the graph has `node`, and returns it as u32.
    fn node(&self, node: u64) -> Result<u32> {
        let nodes = self.len() as u64;
        // There are fewer than 2³² nodes, so the cast does not change the number.
        if node < nodes { Ok(node as u32) } else { Err(Error::UnknownId { id: node, len: nodes }) }
    }
}

/// Checks that a base has `expected` rows.
fn check_rows(expected: usize, actual: usize) -> Result<()> {
    check_length("vectors of the base", expected, actual)
}
