//! Graphs in and out: an index with edges or neighbours that the caller has, and the edges of an index.
//!
//! ```text
//! build_with_graph:       edges = those of the caller, in their order, without edges to the node itself and repeated ones
//!                         connect                                                links.rs
//! build_with_neighbors:  candidates = those of the caller, without the node itself and repeated ones
//!                                    + the nearest of every 16th and 128th row   candidates.rs
//!                         edges, edges back, connect                             build.rs
//! graph:                  edges of the rows that hold vectors, in the order of their ids
//! ```
//! `build_with_graph` prunes nothing and adds no edges back: the walks go along the caller's edges. Only nodes that no
//! walk could reach get one edge each, by the repair of new graphs. `build_with_neighbors` treats the caller's
//! neighbours as those that a new graph searches for itself, so the exact `degree` nearest neighbours give the graph of
//! an index that searches for them exactly.

use std::sync::Arc;

use super::build::{Given, build};
use super::candidates::Candidates;
use super::links::Links;
use super::twins::Twins;
use super::{GraphIndex, GraphIndexBuilder, LinkedVectors, MAX_NODES};
use crate::index::private::Stored;
use crate::index::{Index, add_checked};
use crate::knn_graph::{Graph, NO_NODE};
use crate::parallel::{Loop, ParallelSlice};
use crate::validate::check_rows;
use crate::{Element, Error, Result, Watch, host_memory};

impl<T: Element> GraphIndexBuilder<T> {
    /// Opens the device and creates an index of the vectors of `rows` (row-major, `dim` components each) with the edges
    /// of `graph`, for example a graph of HNSW, Vamana or CAGRA that another library made. Node r of the graph is the
    /// r-th vector. Its id is the r-th of `ids`, or r.
    ///
    /// The degree of the index is [`Graph::k`]; a number that [`degree`](Self::degree) set has no effect. The edges
    /// stay as they are, except: an edge of a node to itself and a repeated edge are left out; and a node that no walk
    /// can reach gets an edge from a node near it, which takes a free place if there is one, otherwise that of the last
    /// edge that no other node depends on. So every vector can be found, as in a graph that this library made. Walks
    /// begin at nodes that the library chooses, so an entry point is not needed. Later changes of the index treat the
    /// edges as those of any graph: they prune them where a node has no place, and make the graph anew if at least half
    /// of the vectors are new.
    ///
    /// O(nodes · degree), a walk for each node that cannot be reached, and 1,024 exact searches that decide whether
    /// walks may compare codes ([`codes`](Self::codes)).
    ///
    /// ```
    /// use warpann::knn_graph::Graph;
    /// use warpann::io::IdMatrix;
    /// use warpann::{Device, GraphIndex, NONE};
    ///
    /// // A ring of six points, each with edges to both neighbours.
    /// let base: Vec<f32> = (0..6).flat_map(|i| [(i as f32).cos(), (i as f32).sin()]).collect();
    /// let ids: Vec<u64> = (0..6).flat_map(|i| [(i + 1) % 6, (i + 5) % 6, NONE, NONE]).collect();
    /// let graph = Graph::from_ids(&IdMatrix { rows: 6, k: 4, ids })?;
    /// let index = GraphIndex::<f32>::builder(2).device(Device::Cpu).build_with_graph(&base, None, &graph)?;
    /// assert_eq!(index.search(&base[4..6], 1)?.ids, [2]);
    /// assert_eq!(index.graph()?, Some(graph));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::OutOfRange`] if `graph.k()` is no degree; [`Error::WrongLength`] unless there is one vector for each
    /// node; [`Error::TooMany`] above [`MAX_NODES`]; the errors of [`build`](Self::build) and of
    /// [`GraphIndex::add_with_ids`].
    pub fn build_with_graph(self, rows: &[T], ids: Option<&[u64]>, graph: &Graph) -> Result<GraphIndex<T>> {
        let mut index = self.degree(graph.k()).build_with_rows(rows, ids, graph, &Watch::none())?;
        if index.is_empty() {
            return Ok(Index::of(index));
        }
        index.copy_all_rows()?;
        index.made.codes = index.fitted_codes(index.rows())?;
        let mut links = Links::with_edges(index.edges_of(graph, ids, graph.k())?, graph.k())?;
        links.connect_without(&index.walk_distances().fast, &[]);
        index.made.links = Some(Arc::new(links));
        Ok(Index::of(index))
    }

    /// Opens the device and creates an index of the vectors of `rows` (row-major, `dim` components each) whose edges
    /// lead to some of the vectors' `neighbours`, for example to those of a k-NN graph that the caller has. Node r of
    /// the graph is the r-th vector. Its id is the r-th of `ids`, or r.
    ///
    /// The index has the edges that [`GraphIndex::add`] chooses, except that the near neighbours of a vector are not
    /// searched: they are those given, in any number and order. The vector itself and repeated neighbours are skipped.
    /// The nearest vectors among every sixteenth and among every 128th are added to them, then at most
    /// [`degree`](Self::degree) edges are chosen, edges back added, and all vectors connected. About as many neighbours
    /// as the degree are enough. An index that is so small that its searches are exact has no edges
    /// ([`exact_ratio`](Self::exact_ratio)).
    ///
    /// O(nodes² / 16 · dim) for the searches in a part of the vectors, and O(nodes · (k + degree) · degree · dim) at
    /// most for the edges, for the k of the graph. Memory during the call: 4 · k + 6 · degree bytes a vector in
    /// addition to the index and the graph.
    ///
    /// # Long builds
    /// The search for neighbours is the longest part of a new graph of many vectors, and [`GraphIndex::add`] begins it
    /// anew after an interruption. [`KnnGraph::write`](crate::knn_graph::KnnGraph::write) writes the neighbours to a
    /// file with a journal, and resumes an interrupted run there. [`Graph::read`] reads the file for this call, which
    /// needs the shorter rest of the time:
    ///
    /// ```
    /// use warpann::knn_graph::{Graph, KnnGraph};
    /// use warpann::{Device, GraphIndex, IvfIndex, Watch};
    ///
    /// # let folder = tempfile::tempdir()?;
    /// # let file = folder.path().join("neighbours.ibin");
    /// let base: Vec<f32> = (0..4000).map(|i| (i as f32 * 0.37).sin()).collect();
    /// let mut near = IvfIndex::<f32>::builder(2, 40).device(Device::Cpu).build()?;
    /// near.train(&base)?;
    /// near.add(&base)?;
    /// near.set_probes(8)?;
    /// // An interrupted program is started again, and this call goes on where its journal ends.
    /// KnnGraph::new(16).write(&near, &base, &file, None, &Watch::none())?;
    ///
    /// let builder = GraphIndex::<f32>::builder(2).device(Device::Cpu).degree(16).exact_ratio(0);
    /// let index = builder.build_with_neighbors(&base, None, &Graph::read(&file)?, &Watch::none())?;
    /// assert_eq!(index.search(&base[4..6], 1)?.ids, [2]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::WrongLength`] unless there is one vector for each node; [`Error::TooMany`] above [`MAX_NODES`];
    /// [`Error::Cancelled`]; [`Error::OutOfHostMemory`]; the errors of [`build`](Self::build) and of
    /// [`GraphIndex::add_with_ids`].
    pub fn build_with_neighbors(
        self,
        rows: &[T],
        ids: Option<&[u64]>,
        neighbours: &Graph,
        watch: &Watch<'_>,
    ) -> Result<GraphIndex<T>> {
        let mut index = self.build_with_rows(rows, ids, neighbours, watch)?;
        if index.is_small() {
            return Ok(Index::of(index));
        }
        index.copy_all_rows()?;
        index.made.codes = index.fitted_codes(index.rows())?;
        let twins = Twins::of(index.rows(), index.dim())?;
        let (settings, dim) = (index.builder.settings, index.dim());
        let far = Candidates::far(index.rows(), dim, settings, &index.place(index.rows()), watch)?;
        let width = neighbours.k() + far.most();
        let mut candidates = index.edges_of(neighbours, ids, width)?;
        far.append(index.rows(), dim, &mut candidates, watch)?;
        if !twins.is_empty() {
            twins.join(&mut candidates, width);
        }
        let graph = Graph::of_rows(candidates, width);
        let distance = index.walk_distances().fast;
        let device = index.device_build(distance)?;
        let links = build(&distance, &Given::<T>::Graph(&graph), index.builder.settings.degree, device, twins, watch)?;
        index.made.links = Some(Arc::new(links));
        Ok(Index::of(index))
    }

    /// An index of these vectors, one for each node of `graph`, without edges.
    fn build_with_rows(
        self,
        rows: &[T],
        ids: Option<&[u64]>,
        graph: &Graph,
        watch: &Watch<'_>,
    ) -> Result<LinkedVectors<T>> {
        let nodes = graph.len();
        check_rows(nodes as u64, MAX_NODES)?;
        let mut index = self.open()?;
        // Vectors that are not whole are refused with the others that cannot be added.
        if rows.len().is_multiple_of(index.dim()) && rows.len() / index.dim() != nodes {
            return Err(Error::WrongLength {
                what: "vectors of the base",
                expected: nodes,
                actual: rows.len() / index.dim(),
            });
        }
        add_checked(&mut index.flat, rows, ids, watch)?;
        Ok(index)
    }
}

impl<T: Element> LinkedVectors<T> {
    /// The edges among rows: of each node, those of `graph` once each, without those to itself, in the first of `width`
    /// places. `ids` are the ids of the graph's nodes, if they are not the numbers of the rows.
    fn edges_of(&self, graph: &Graph, ids: Option<&[u64]>, width: usize) -> Result<Vec<u32>> {
        let nodes = graph.len();
        // The row of each node, and the node of each row, if they differ: rows are in the order of ids.
        let mut moved: Option<(Vec<u32>, Vec<u32>)> = None;
        if let Some(ids) = ids.filter(|ids| !ids.is_sorted()) {
            let mut row_of: Vec<u32> = host_memory::with_room(nodes)?;
            // All ids have just been added.
            row_of.extend(ids.iter().map(|&id| self.flat.row_ids().find(id).map_or(NO_NODE, |row| row as u32)));
            let mut node_of: Vec<u32> = host_memory::zeroed(nodes)?;
            row_of.iter().zip(0..).for_each(|(&row, node)| node_of[row as usize] = node);
            moved = Some((row_of, node_of));
        }
        let mut edges: Vec<u32> = host_memory::filled(NO_NODE, host_memory::count::<u32>(&[nodes, width])?)?;
        edges.par_chunks_exact_mut(width).enumerate().for_each(|(row, places)| {
            let node = moved.as_ref().map_or(row, |(_, node_of)| node_of[row] as usize);
            let mut count = 0;
            for &other in graph.row(node).iter().filter(|&&other| other != NO_NODE) {
                let other = moved.as_ref().map_or(other, |(row_of, _)| row_of[other as usize]);
                if other as usize != row && !places[..count].contains(&other) {
                    places[count] = other;
                    count += 1;
                }
            }
        });
        Ok(edges)
    }
}

impl<T: Element> GraphIndex<T> {
    /// The edges of the graph: node r is the vector with the r-th of [`ids`](Self::ids), and has
    /// [`degree`](Self::degree) slots, of which the last ones may be [`NO_NODE`]. `None` if the index has no graph,
    /// because it has so few vectors that searches are exact. [`GraphIndexBuilder::build_with_graph`] makes an index of
    /// it; [`io::write_ids`](crate::io::write_ids) writes it to a file.
    ///
    /// O(len · degree). If there are rows that removed vectors left, also the time of [`compact`](Self::compact): edges
    /// to them are replaced.
    ///
    /// # Errors
    /// [`Error::OutOfHostMemory`]; errors of the device's driver.
    pub fn graph(&self) -> Result<Option<Graph>> {
        let Some(links) = self.kind.links() else { return Ok(None) };
        let links = self.kind.compacted(links)?;
        Ok(Some(Graph::of_rows(host_memory::copied(links.edges())?, links.degree())))
    }
}
