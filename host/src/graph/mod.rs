//! The graph index: approximate search by walks in a graph of near neighbours.
//!
//! # Problem
//! For a query, find the k nearest of n vectors with a few thousand distances instead of n, and miss few of them. An
//! inverted file ([`crate::ivf`]) reads whole lists. A walk in a graph reads only the neighbours of the nearest vectors
//! that it has met, so it needs fewer distances for the same recall, and it reads single vectors instead of consecutive
//! ones.
//!
//! # Algorithm
//! Each vector is a node with edges to at most `degree` others near it. A search walks from nodes near the query to
//! nodes nearer to it (`walk.rs`):
//!
//! ```text
//! beam = the nearest of some start nodes
//! while a node of the beam is not expanded: expand the nearest eight; keep the `width` nearest nodes of all that were met
//! results = the k best of the beam by canonical distance
//! ```
//!
//! | file | content |
//! |---|---|
//! | `distance` | the distance of walks, with the same bits on every device, so that every device takes the same path |
//! | `codes` | floats as bytes, by which walks go |
//! | `fit` | the codes of an index |
//! | `walk` | one walk |
//! | `links` | the edges, and the proof that every node can be reached |
//! | `twins` | rows with equal vectors, which are one node |
//! | `entrance` | the start nodes with which a query is compared |
//! | `prune` | the choice of a node's edges |
//! | `candidates` | the nodes among which the edges of a new graph are chosen |
//! | `build` | a new graph; insertion and removal |
//! | `edges_back` | the edges of a batch that is inserted, and those back |
//! | `search` | walk or exact search; the results |
//! | `device` | searches from device memory to device memory |
//! | `change` | what each change of the vectors does to the graph |
//! | `spare` | the arrays of an older version, which the next change takes over |
//! | `given` | an index of edges or neighbours that the caller has, and the edges of an index |
//! | `file` | index files |
//! | `hnsw` | files of HNSW graphs, which FAISS and hnswlib search |
//!
//! The vectors, their ids and removed vectors are those of a [`FlatIndex`] inside. The graph has only edges between its
//! rows, and every exact search is one of the flat index.
//!
//! # Results
//! Distances are canonical ([`crate::metric`]), results are in the order (distance, lower id), and no vector comes
//! twice. Which of the true neighbours are missed depends on the graph and on the beam alone: the graph depends on the
//! vectors, the order in which they came, and the settings. Equal vectors are one node, so they hide no others
//! (`twins.rs`). Under a filter and after removals a walk goes through all nodes and returns the accepted ones; its
//! beam is wider by the share of nodes that are not accepted. Where comparing all accepted vectors costs no more than
//! the walk, or a walk found fewer than k, the search is exact ([`GraphIndexBuilder::exact_ratio`]).
//!
//! # Cost
//! Memory: 4 · (degree + 1) bytes a vector beside the flat index, and one byte for each component that is a float.
//! Building: the nearest of all vectors, of every sixteenth and of every 128th for each vector, and O(degree²)
//! distances. A walk of width w computes about w · degree / 3 distances after those of the start nodes.
//! [`GraphIndexBuilder::build_with_neighbors`] takes neighbours from a k-NN graph, whose computation can be interrupted
//! and resumed. Adding a vector costs a walk, O(degree²) distances, and another choice of edges for each of its
//! `degree` neighbours, on the device that has the rows; removing one costs a bit until a quarter of the rows is left
//! over.

mod build;
mod candidates;
mod change;
mod codes;
#[cfg(feature = "cuda")]
mod device;
mod distance;
mod edges_back;
mod entrance;
pub(crate) mod file;
mod fit;
mod given;
#[cfg(test)]
mod given_tests;
mod gpu;
pub mod hnsw;
#[cfg(test)]
mod insert_tests;
mod links;
#[cfg(test)]
mod moved_tests;
mod prune;
mod search;
mod spare;
#[cfg(test)]
mod tests;
mod twins;
mod walk;

use std::fmt;
use std::sync::Arc;

use self::candidates::Settings;
use self::codes::{Codes, Distances};
use self::distance::WalkDistance;
use self::gpu::DeviceLinks;
use self::links::Links;
use self::spare::Spare;
use self::twins::Nodes;
use crate::flat::{Flat, Version};
use crate::index::Index;
use crate::index::private::Stored;
use crate::shared::former::Former;
use crate::validate::check_range;
use crate::vectors::VectorSlice;
use crate::{Element, Error, FlatIndex, Metric, Placement, Result};

/// Smallest and largest number of edges of a vector.
const DEGREES: (usize, usize) = (4, 256);
/// Largest number of rows: a walk has 31 bits for the number of a node.
pub const MAX_NODES: u64 = (1 << 31) - 1;

/// An index that searches by walks in a graph of near neighbours.
///
/// It finds nearly all of the k nearest vectors and compares a query with a small part of all. Vectors can be added and
/// removed at any time, and a filter keeps the recall at every selectivity.
///
/// ```
/// use warpann::{Device, GraphIndex, Metric, SearchOptions};
///
/// let base: Vec<f32> = (0..2000).map(|i| (i as f32 * 0.37).sin()).collect();
/// let mut index = GraphIndex::<f32>::builder(2).metric(Metric::L2).device(Device::Cpu).build()?;
/// index.add(&base)?;
/// let found = index.search(&base[..4], 3)?;
/// assert_eq!((found.ids[0], found.distances[0]), (0, 0.0));
///
/// let wide = SearchOptions::new().beam(200);
/// assert_eq!(index.search_with(&base[2..4], 1, &wide)?.ids, [1]);
/// # Ok::<(), warpann::Error>(())
/// ```
pub type GraphIndex<T = f32> = Index<LinkedVectors<T>>;

/// The vectors of a [`GraphIndex`], and their graph.
pub struct LinkedVectors<T: Element> {
    builder: GraphIndexBuilder<T>,
    flat: Flat<T>,
    made: Made<T>,
}

/// Graph, codes and other data that were made of the rows of a flat index.
struct Made<T> {
    /// The version of the rows of which the rest was made. If it is not that of the flat index, the rest is of other
    /// rows, and of no use.
    of: Version,
    /// All rows of the flat index, if it does not have them in host memory; otherwise empty.
    copy: Arc<Vec<T>>,
    /// All rows as codes, if walks go by them; `None` without a graph.
    codes: Option<Codes>,
    /// The graph of the rows; `None` if there are so few that searches are exact, or if there was no memory for a
    /// graph.
    links: Option<Arc<Links>>,
    /// The nodes of the graph by their vectors, once a change has needed them.
    nodes: Option<Arc<Nodes>>,
    /// The graph in device memory.
    device_links: Arc<DeviceLinks>,
    /// The arrays of an older version, for the first change of this index or of one of its snapshots.
    spare: Former<Spare<T>>,
}

impl<T> Made<T> {
    /// Nothing of these rows.
    fn nothing(of: Version) -> Self {
        let (copy, device_links, spare) = (Arc::default(), Arc::default(), Former::default());
        Made { of, copy, codes: None, links: None, nodes: None, device_links, spare }
    }
}

/// The number of vectors and edges of a [`GraphIndex`], and its memory.
#[derive(Debug, Clone, Copy, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct GraphStatistics {
    /// Number of vectors in the index.
    pub vectors: u64,
    /// Number of rows that removed vectors left. Walks go through them until the rows move.
    pub removed: u64,
    /// Number of edges; 0 if searches are exact.
    pub edges: u64,
    /// Number of edges of a vector on average.
    pub mean_degree: f64,
    /// Number of vectors at which walks can begin.
    pub starts: u64,
    /// Number of rows that can be reached from these vectors: all, in a graph that this library made.
    pub reachable: u64,
    /// Number of rows whose vector an earlier row has too. Equal vectors are one node of the graph, which has the edges
    /// of all of them.
    pub equal: u64,
    /// Whether walks compare codes of the vectors, one byte for each component: see [`GraphIndexBuilder::codes`].
    pub codes: bool,
    /// Number of rows, at most, whose codes cannot stand for them, because they lie outside of the range of the vectors
    /// for which codes were fitted. The edges of rows that were added there are chosen by vectors, and queries there
    /// walk by vectors, until codes are fitted again.
    pub outside: u64,
    /// Bytes of host memory: vectors, ids, codes, edges, and those of an older version that the next change takes over.
    pub host_bytes: u64,
    /// Bytes of memory on devices.
    pub device_bytes: u64,
}

/// Settings of a [`GraphIndex`] before it is built; see [`GraphIndex::builder`].
#[derive(Debug, Clone)]
pub struct GraphIndexBuilder<T: Element = f32> {
    dim: usize,
    placement: Placement,
    budget: Option<u64>,
    settings: Settings,
    beam: usize,
    exact_ratio: usize,
    codes: bool,
    element: std::marker::PhantomData<T>,
}

impl<T: Element> GraphIndexBuilder<T> {
    /// Sets the metric, [`Metric::L2`] by default. Under [`Metric::Hamming`] the making of a graph compares all pairs
    /// of vectors: 10¹² pairs of 1,024 bits take .6 s on an H200, and at the rate of exact search an hour on two
    /// threads of a Xeon. Vectors that are added to a graph are not compared with all.
    pub fn metric(mut self, metric: Metric) -> Self {
        self.settings.metric = metric;
        self
    }

    /// Sets the [`Device`](crate::Device), or the [`Placement`] over several devices;
    /// [`Device::Auto`](crate::Device::Auto) by default. Searches, the making of the graph and its changes use it.
    pub fn device(mut self, device: impl Into<Placement>) -> Self {
        self.placement = device.into();
        self
    }

    /// Sets the bytes that the index may use on each of its devices, as
    /// [`FlatIndexBuilder::memory_budget`](crate::FlatIndexBuilder::memory_budget).
    pub fn memory_budget(mut self, bytes: u64) -> Self {
        self.budget = Some(bytes);
        self
    }

    /// Sets the largest number of edges of a vector: 4 to 256, by default 32. More edges take more memory and time to
    /// build, and find more in data of many dimensions.
    pub fn degree(mut self, degree: usize) -> Self {
        self.settings.degree = degree;
        self
    }

    /// Sets the seed of the inverted file through which the neighbours of many vectors are found. The same vectors,
    /// settings and seed give the same graph on every device.
    pub fn seed(mut self, seed: u64) -> Self {
        self.settings.seed = seed;
        self
    }

    /// Sets the number of vectors that a walk keeps unless its options set another; 64 by default. A search for k
    /// vectors keeps at least 2 k.
    pub fn beam(mut self, beam: usize) -> Self {
        self.beam = beam;
        self
    }

    /// Sets how many vectors an exact search compares in about the time of one place of a beam; 128 by default. A
    /// search compares all vectors that may be results if they are at most this number times the width of the walk that
    /// it would make. With the default beam, these are indexes of 8,192 vectors; under a filter of a share s of the
    /// vectors, the beam is 1 / s times as wide. 0 means that all searches are walks.
    ///
    /// The choice depends neither on the device nor on the number of queries in a call, so that results do not either.
    /// The costs do: on two threads of an AMD EPYC with AVX-512 a walk under a filter took as long as the comparison of
    /// 60 vectors for each place of its beam for one query, and of 450 for a hundred queries in one call (100,000 × 128
    /// f32, 2026-11-28). A program that searches for one query at a time on a CPU may set 64. It then walks where the
    /// default is exact, with the recall of walks.
    pub fn exact_ratio(mut self, vectors: usize) -> Self {
        self.exact_ratio = vectors;
        self
    }

    /// Sets whether walks may compare codes instead of vectors of floats: one signed byte for each component. They are
    /// faster, take one byte more for each component, and change which vectors are found only a little; distances are
    /// always those of the vectors. True by default; an index whose vectors have nearer neighbours than codes can tell
    /// apart has none. Vectors of bytes need no codes.
    ///
    /// If codes do not suffice, vectors decide, and the search takes longer: for queries and added vectors outside of
    /// the range of those for which codes were fitted, and for queries whose near vectors codes cannot tell apart.
    /// Codes are fitted again when an eighth of the vectors is outside, or half of them is newer than the codes.
    pub fn codes(mut self, codes: bool) -> Self {
        self.codes = codes;
        self
    }

    /// Opens the device and creates an empty index.
    ///
    /// # Errors
    /// [`Error::OutOfRange`], [`Error::Zero`]; as [`FlatIndexBuilder::build`](crate::FlatIndexBuilder::build).
    pub fn build(self) -> Result<GraphIndex<T>> {
        self.open().map(Index::of)
    }

    fn open(self) -> Result<LinkedVectors<T>> {
        self.with_vectors(|this| {
            let flat = FlatIndex::<T>::builder(this.dim).metric(this.settings.metric).device(this.placement.clone());
            match this.budget {
                Some(budget) => flat.memory_budget(budget).open(),
                None => flat.open(),
            }
        })
    }

    /// Checks the settings, then makes an index of the vectors that `open` returns, without edges.
    fn with_vectors(self, open: impl FnOnce(&Self) -> Result<Flat<T>>) -> Result<LinkedVectors<T>> {
        check_range("degree", self.settings.degree, DEGREES)?;
        if self.beam == 0 {
            return Err(Error::Zero { what: "beam" });
        }
        let flat = open(&self)?;
        Ok(LinkedVectors { made: Made::nothing(flat.version()), flat, builder: self })
    }
}

impl<T: Element> GraphIndex<T> {
    /// Starts the settings of an index over vectors of `dim` components.
    pub fn builder(dim: usize) -> GraphIndexBuilder<T> {
        GraphIndexBuilder {
            dim,
            placement: Placement::default(),
            budget: None,
            settings: Settings { metric: Metric::default(), degree: 32, seed: 0 },
            beam: 64,
            exact_ratio: 128,
            codes: true,
            element: std::marker::PhantomData,
        }
    }

    /// The largest number of edges of a vector.
    pub fn degree(&self) -> usize {
        self.kind.builder.settings.degree
    }

    /// Number of vectors that a walk keeps unless its options set another.
    pub fn beam(&self) -> usize {
        self.kind.builder.beam
    }

    /// Sets the number of vectors that a walk keeps unless its options set another.
    ///
    /// # Errors
    /// [`Error::Zero`] for 0.
    pub fn set_beam(&mut self, beam: usize) -> Result<()> {
        if beam == 0 {
            return Err(Error::Zero { what: "beam" });
        }
        self.kind.builder.beam = beam;
        Ok(())
    }

    /// The number of [`GraphIndexBuilder::exact_ratio`].
    pub fn exact_ratio(&self) -> usize {
        self.kind.builder.exact_ratio
    }

    /// The components of the vector with this id, with their type, as they were added. O(log len + dim).
    ///
    /// # Errors
    /// [`Error::UnknownId`](crate::Error::UnknownId), and the errors of the device's driver.
    pub fn vector(&self, id: u64) -> Result<Vec<T>> {
        self.kind.flat.vector(id)
    }

    /// An exact index of the vectors.
    #[cfg(test)]
    fn exact(&self) -> FlatIndex<T> {
        Index::of(self.kind.flat.snapshot())
    }

    /// Counts vectors, edges and bytes. O(edges).
    pub fn statistics(&self) -> GraphStatistics {
        self.kind.statistics()
    }
}

impl<T: Element> LinkedVectors<T> {
    fn statistics(&self) -> GraphStatistics {
        let flat = self.flat.statistics();
        let (links, codes) = (self.links(), self.codes());
        let edges = links.map_or(0, Links::count);
        GraphStatistics {
            vectors: flat.vectors,
            removed: flat.removed,
            edges,
            mean_degree: links.map_or(0.0, |links| edges as f64 / links.len().max(1) as f64),
            starts: links.map_or(0, |links| links.starts().len() as u64),
            reachable: links.map_or(0, |links| links.reachable() as u64),
            equal: links.map_or(0, |links| links.twins().len() as u64),
            codes: codes.is_some(),
            outside: codes.map_or(0, |codes| codes.of_rows().outside),
            host_bytes: flat.host_bytes
                + (self.made.copy.capacity() * size_of::<T>()) as u64
                + codes.map_or(0, Codes::bytes)
                + links.map_or(0, Links::bytes)
                + self.made.nodes.as_ref().map_or(0, |nodes| nodes.bytes())
                + self.made.spare.get().as_ref().map_or(0, Spare::bytes),
            device_bytes: flat.device_bytes + self.made.device_links.bytes(),
        }
    }

    /// The data that were made of the current rows; `None` if they were made of other rows.
    fn made(&self) -> Option<&Made<T>> {
        (self.made.of == self.flat.version()).then_some(&self.made)
    }

    /// The graph of the rows.
    fn links(&self) -> Option<&Links> {
        self.made()?.links.as_deref()
    }

    /// The rows as codes.
    fn codes(&self) -> Option<&Codes> {
        self.made()?.codes.as_ref()
    }

    /// All rows, also those that removed vectors left. There is a graph, or [`copy_all_rows`](Self::copy_all_rows) has
    /// been called.
    fn rows(&self) -> &[T] {
        self.flat.host_rows().or(self.made().map(|made| &made.copy[..])).unwrap_or(&[])
    }

    fn walk_distances(&self) -> Distances<'_> {
        self.distances_among(self.codes(), self.rows())
    }

    /// The distances of walks among these rows, which have these codes, if any.
    fn distances_among<'a>(&self, codes: Option<&'a Codes>, rows: &'a [T]) -> Distances<'a> {
        let exact = WalkDistance::new(self.metric(), VectorSlice::of(rows, self.dim()));
        Distances { fast: codes.map_or(exact, Codes::distance), exact, codes }
    }

    /// The distances of the walks of queries: among vectors, if codes can stand for no query.
    fn query_distances(&self) -> Distances<'_> {
        self.distances_among(self.codes().filter(|codes| !codes.for_no_query()), self.rows())
    }
}

impl<T: Element> Stored for LinkedVectors<T> {
    type Element = T;
    const NAME: &'static str = "GraphIndex";

    fn dim(&self) -> usize {
        self.flat.dim()
    }

    fn metric(&self) -> Metric {
        self.flat.metric()
    }

    fn device(&self) -> String {
        self.flat.device()
    }

    fn len(&self) -> usize {
        self.flat.len()
    }

    fn contains(&self, id: u64) -> bool {
        self.flat.contains(id)
    }

    fn ids(&self) -> Vec<u64> {
        self.flat.ids()
    }

    fn stamp(&self) -> u64 {
        self.flat.stamp()
    }

    fn greatest_id(&self) -> Option<u64> {
        self.flat.greatest_id()
    }

    fn identity(&self) -> Result<String> {
        Ok(format!("graph-{:016x}", self.fingerprint()?))
    }

    fn describe(&self, to: &mut fmt::DebugStruct<'_, '_>) {
        to.field("degree", &self.builder.settings.degree);
    }

    fn snapshot(&self) -> Self {
        let flat = self.flat.snapshot();
        let made = self.made().map(|made| Made {
            of: flat.version(),
            copy: Arc::clone(&made.copy),
            codes: made.codes.clone(),
            links: made.links.clone(),
            nodes: made.nodes.clone(),
            device_links: Arc::clone(&made.device_links),
            spare: made.spare.shared(),
        });
        let made = made.unwrap_or_else(|| Made::nothing(flat.version()));
        LinkedVectors { builder: self.builder.clone(), flat, made }
    }

    fn reconstruct_into(&self, id: u64, to: &mut [f32]) -> Result<()> {
        self.flat.reconstruct_into(id, to)
    }
}
