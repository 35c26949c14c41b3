//! Graphs in and out: an index with edges that the caller has, and the edges of an index.
//!
//! ```text
//! build_with_graph:  edges = those of the caller, in their order, without edges to the node itself and repeated ones
//!                    connect                                             links.rs
//! graph:             edges of the rows that hold vectors, in the order of their ids
//! ```
//! Nothing is pruned, and no edges back are added: the walks go along the caller's edges. Only nodes that no walk could reach get one edge each,
//! by the repair of new graphs.

use std::collections::HashMap;
use std::sync::Arc;

use super::codes::sample;
use super::links::{Links, NO_NODE};
use super::{GraphIndex, GraphIndexBuilder, MAX_NODES};
use crate::graph::Graph;
use crate::parallel::{Loop, ParallelSlice};
use crate::validate::check_rows;
use crate::{Element, Error, NONE, Result, host_memory};

impl<T: Element> GraphIndexBuilder<T> {
    /// Opens the device and creates an index of the vectors of `rows` (row-major, `dim` components each) with the edges of `graph`, for example a
    /// graph of HNSW, Vamana or CAGRA that another library made. Node r of the graph is the r-th vector. Its id is the r-th of `ids`, or r.
    ///
    /// The degree of the index is [`Graph::k`]; a number that [`degree`](Self::degree) set has no effect. The edges stay as they are, except:
    /// an edge of a node to itself and a repeated edge are left out; and a node that no walk can reach gets an edge from a node near it, which
    /// takes a free place if there is one, otherwise that of the last edge that no other node depends on. So every vector can be found, as in a
    /// graph that this library made. Walks begin at nodes that the library chooses, so an entry point is not needed. Later changes of the index treat the
    /// edges as those of any graph: they prune them where a node has no place, and make the graph anew if at least half of the vectors are new.
    ///
    /// O(nodes · degree), a walk for each node that cannot be reached, and 1,024 exact searches that decide whether walks may compare codes
    /// ([`codes`](Self::codes)).
    ///
    /// ```
    /// use warpann::graph::Graph;
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
    /// [`Error::BadDegree`] if `graph.k()` is no degree; [`Error::WrongBase`] unless there is one vector for each node; [`Error::TooManyRows`] above
    /// [`MAX_NODES`]; the errors of [`build`](Self::build) and of [`GraphIndex::add_with_ids`].
    pub fn build_with_graph(self, rows: &[T], ids: Option<&[u64]>, graph: &Graph) -> Result<GraphIndex<T>> {
        let nodes = graph.len();
        check_rows(nodes as u64, MAX_NODES)?;
        let mut index = self.degree(graph.k()).build()?;
        // Vectors that are not whole are refused with the others that cannot be added.
        if rows.len().is_multiple_of(index.dim()) && rows.len() / index.dim() != nodes {
            return Err(Error::WrongBase { expected: nodes as u64, actual: (rows.len() / index.dim()) as u64 });
        }
        match ids {
            Some(ids) => index.flat.add_with_ids(rows, ids)?,
            None => index.flat.add(rows)?,
        }
        if nodes == 0 {
            return Ok(index);
        }
        index.copy_all_rows()?;
        let neighbours = if index.may_have_codes() { index.far_neighbours()? } else { HashMap::new() };
        index.fit_codes(|row| *neighbours.get(&row)?)?;
        let mut links = Links::with_edges(index.edges_of(graph, ids)?, graph.k())?;
        links.connect_without(&index.walk_distance(), &[]);
        index.links = Some(Arc::new(links));
        Ok(index)
    }
}

impl<T: Element> GraphIndex<T> {
    /// The `degree`-th nearest neighbour of each row on which the codes depend, or the last if there are fewer. The caller's edges may be any
    /// neighbours, so an exact search finds it.
    fn far_neighbours(&self) -> Result<HashMap<usize, Option<u32>>> {
        let (ids, dim, degree) = (self.flat.row_ids(), self.dim(), self.degree());
        let mut rows: Vec<T> = Vec::new();
        sample(ids.rows()).for_each(|row| rows.extend_from_slice(&self.rows()[row * dim..][..dim]));
        let found = self.flat.search(&rows, degree + 1)?;
        let last = |(row, (found, _)): (usize, (&[u64], &[f32]))| {
            let others = found.iter().filter(|&&id| id != NONE && id != ids.id(row)).take(degree);
            (row, others.last().and_then(|&id| ids.find(id)).map(|row| row as u32))
        };
        Ok(sample(ids.rows()).zip(found.rows()).map(last).collect())
    }

    /// The edges among rows: of each node, those of `graph` once each, without those to itself, from the first place on. `ids` are the ids of the
    /// graph's nodes, if they are not the numbers of the rows.
    fn edges_of(&self, graph: &Graph, ids: Option<&[u64]>) -> Result<Vec<u32>> {
        let (nodes, degree) = (graph.len(), graph.k());
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
        let mut edges: Vec<u32> = host_memory::filled(NO_NODE, host_memory::count::<u32>(&[nodes, degree])?)?;
        edges.par_chunks_exact_mut(degree).enumerate().for_each(|(row, places)| {
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

    /// The edges of the graph: node r is the vector with the r-th of [`ids`](Self::ids), and has [`degree`](Self::degree) slots, of which the last
    /// ones may be [`NO_NODE`](crate::graph::NO_NODE). `None` if the index has no graph, because it has so few vectors that searches are exact.
    /// [`GraphIndexBuilder::build_with_graph`] makes an index of it; [`io::write_ids`](crate::io::write_ids) writes it to a file.
    ///
    /// O(len · degree). If there are rows that removed vectors left, also the time of [`compact`](Self::compact): edges to them are replaced.
    ///
    /// # Errors
    /// [`Error::OutOfHostMemory`]; errors of the device's driver.
    pub fn graph(&self) -> Result<Option<Graph>> {
        let Some(links) = &self.links else { return Ok(None) };
        let links = self.compacted(links)?;
        Ok(Some(Graph::of_rows(host_memory::copied(links.edges())?, links.degree())))
    }
}
