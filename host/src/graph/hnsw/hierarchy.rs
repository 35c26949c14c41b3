//! The levels of an HNSW file above the graph of an index.
//!
//! # Problem
//! A walk of HNSW goes down the levels: at each it moves to the neighbour nearest to the query until none is nearer,
//! and at level 0 it walks with a beam from the node that it has reached. Our walks have no levels. They begin at the
//! nearest of many start nodes, of which one is near every cluster of vectors. An HNSW walk needs levels that lead to
//! such a start node, or it misses clusters.
//!
//! # Levels
//! ```text
//! level 1      the start nodes: each 64th node, and more in small graphs
//! level l + 1  each 16th node of level l, at random
//! top          the first level of at most 2 · degree + 1 nodes
//! ```
//! The edges of the top level lead from each of its nodes to all others, so a walk finds the nearest of them. The edges
//! of a level between are those of a graph index of its nodes, which are chosen as those of level 0: near, in different
//! directions, and some far.
//!
//! These levels have room for twice as many edges as level 0, where HNSW has half as many. One node in 64 has such
//! edges, so they cost 3 % of the memory of edges, and moves without a beam need more choice.
//!
//! # Equal vectors
//! Rows with equal vectors are one node of our graph. In the file, each of them has the edges of that node and one
//! more, to the next of them. So level 0 has one place more than the degree if there are such rows.

use std::borrow::Cow;
use std::collections::HashMap;

use crate::graph::distance::normalise;
use crate::graph::links::Links;
use crate::graph::{DEGREES, GraphIndex, GraphIndexBuilder, LinkedVectors};
use crate::index::private::{Changed, Stored};
use crate::knn_graph::NO_NODE;
use crate::random::{Random, gather};
use crate::{Element, Error, Metric, Result, host_memory};

/// Number of nodes of a level for one of the next level.
const NODES_A_NEXT_ONE: usize = 16;

/// A level above level 0.
struct Level {
    /// The rows of the level, ascending.
    nodes: Vec<u32>,
    /// Nodes × [places](places_above): the nodes that edges lead to, then [`NO_NODE`].
    edges: Vec<u32>,
}

/// The graph of an index and the levels above it.
pub(super) struct Hierarchy<T: Element> {
    /// An index without removed rows. It has a graph, unless it is empty.
    index: LinkedVectors<T>,
    /// Level 1 and those above.
    levels: Vec<Level>,
    /// The next one of the rows with an equal vector.
    next_equal: HashMap<u32, u32>,
}

impl<T: Element> Hierarchy<T> {
    /// The hierarchy of an index. O(len · degree) for an index with removed rows, and the building of the upper levels.
    ///
    /// # Errors
    /// [`Error::OutOfHostMemory`]; errors of the device's driver.
    pub(super) fn of(index: &LinkedVectors<T>) -> Result<Self> {
        let mut index = index.snapshot();
        if index.flat.row_ids().removed() > 0 {
            index.compact()?;
        }
        if index.links().is_none() && !index.is_empty() {
            index = linked(&index.builder, &index.flat.all_rows()?, index.flat.row_ids().names()?)?;
        }
        let (mut levels, mut next_equal) = (Vec::new(), HashMap::new());
        if let Some(links) = index.links() {
            levels = levels_above(&index, links)?;
            for (_, rows) in links.twins().groups() {
                next_equal.extend(rows.windows(2).map(|pair| (pair[0], pair[1])));
            }
        }
        Ok(Hierarchy { index, levels, next_equal })
    }

    /// Number of rows, which are the nodes of the file.
    pub(super) fn len(&self) -> usize {
        self.index.len()
    }

    pub(super) fn dim(&self) -> usize {
        self.index.dim()
    }

    pub(super) fn metric(&self) -> Metric {
        self.index.metric()
    }

    /// The ids of the rows; `None` if they are the numbers of the rows.
    pub(super) fn ids(&self) -> Result<Option<Vec<u64>>> {
        self.index.flat.row_ids().names()
    }

    pub(super) fn id(&self, row: usize) -> u64 {
        self.index.flat.row_ids().id(row)
    }

    /// Number of vectors that a walk keeps.
    pub(super) fn beam(&self) -> usize {
        self.index.builder.beam
    }

    /// The largest number of edges of a node of the index.
    pub(super) fn degree(&self) -> usize {
        self.index.builder.settings.degree
    }

    /// Number of places for edges at a level.
    pub(super) fn places(&self, level: usize) -> usize {
        let degree = self.degree();
        match level {
            0 => degree + usize::from(!self.next_equal.is_empty()),
            _ => places_above(degree),
        }
    }

    /// The number of the top level.
    pub(super) fn top(&self) -> usize {
        self.levels.len()
    }

    /// A node of the top level; `None` without nodes.
    pub(super) fn entry(&self) -> Option<u32> {
        self.levels.last()?.nodes.first().copied()
    }

    /// The number of the highest level of a row.
    pub(super) fn level_of(&self, row: usize) -> usize {
        // Each level has some of the nodes of the one below.
        self.levels.iter().take_while(|level| level.nodes.binary_search(&(row as u32)).is_ok()).count()
    }

    /// Appends the edges of a row at a level: as many as it has.
    pub(super) fn edges(&self, row: usize, level: usize, to: &mut Vec<u32>) {
        let row = row as u32;
        if let Some(level) = level.checked_sub(1) {
            let Level { nodes, edges } = &self.levels[level];
            if let Ok(at) = nodes.binary_search(&row) {
                let places = self.places(1);
                to.extend(edges[at * places..][..places].iter().copied().take_while(|&other| other != NO_NODE));
            }
        } else if let Some(links) = self.index.links() {
            to.extend_from_slice(links.of(links.twins().node_of(row)));
            to.extend(self.next_equal.get(&row));
        }
    }

    /// Appends the vector of a row, as files have it.
    pub(super) fn vector(&self, row: usize, to: &mut Vec<f32>) {
        let (first, dim) = (to.len(), self.dim());
        to.extend(self.index.rows()[row * dim..][..dim].iter().map(|&component| component.to_f32()));
        normalise(self.metric(), &mut to[first..]);
    }
}

/// Number of places for edges of a node above level 0.
fn places_above(degree: usize) -> usize {
    (2 * degree).min(DEGREES.1)
}

/// An index of these rows that has a graph, however few they are.
fn linked<T: Element>(like: &GraphIndexBuilder<T>, rows: &[T], ids: Option<Vec<u64>>) -> Result<LinkedVectors<T>> {
    let mut index: GraphIndex<T> = like.clone().exact_ratio(0).build()?;
    match ids {
        Some(ids) => index.add_with_ids(rows, &ids)?,
        None => index.add(rows)?,
    }
    // An index goes on without a graph where there is no memory for one, but a file cannot.
    let places = (rows.len() / index.dim()).saturating_mul(index.degree());
    let no_memory = Error::OutOfHostMemory { asked: (places as u64).saturating_mul(4) };
    if index.kind.links().is_none() { Err(no_memory) } else { Ok(index.kind) }
}

/// The levels above the graph `links` of an index.
fn levels_above<T: Element>(index: &LinkedVectors<T>, links: &Links) -> Result<Vec<Level>> {
    let places = places_above(links.degree());
    let builder = index.builder.clone().degree(places);
    let mut random = Random::new(index.builder.settings.seed);
    let mut nodes: Cow<'_, [u32]> = Cow::Borrowed(links.starts());
    let mut levels = Vec::new();
    while nodes.len() > places + 1 {
        let rows: Vec<usize> = nodes.iter().map(|&node| node as usize).collect();
        let level = linked(&builder, &gather(index.rows(), index.dim(), &rows)?, None)?;
        let edges = level.links().map_or(&[][..], Links::edges);
        let named = |&other: &u32| if other == NO_NODE { NO_NODE } else { nodes[other as usize] };
        let edges = host_memory::collected(edges.iter().map(named), edges.len())?;
        let next = random.sample(nodes.len(), (nodes.len() / NODES_A_NEXT_ONE).max(1));
        let next = next.into_iter().map(|at| nodes[at]).collect();
        levels.push(Level { nodes: nodes.into_owned(), edges });
        nodes = Cow::Owned(next);
    }
    let mut edges = Vec::with_capacity(nodes.len() * places);
    for &node in &*nodes {
        let others = nodes.iter().copied().filter(|&other| other != node);
        edges.extend(others.chain(std::iter::repeat(NO_NODE)).take(places));
    }
    levels.push(Level { nodes: nodes.into_owned(), edges });
    Ok(levels)
}
