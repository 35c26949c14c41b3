//! Indexes of other libraries: crates, used as their documentation recommends.
//!
//! Rows are f32, as both crates take them; bytes are widened by the caller.

use std::num::NonZero;

use hnsw_rs::prelude::{DistL2, Hnsw};
use kiddo::{ImmutableKdTree, SquaredEuclidean};
use rayon::prelude::*;
use warpann::Neighbors;

use crate::record::Library;

/// The library with a graph index (HNSW), and its version.
pub const HNSW: Library = ("hnsw_rs", "0.3.5");
/// The library with a k-d tree, and its version.
pub const KD_TREE: Library = ("kiddo", "6.3.0");

/// An index of another library.
pub trait Peer: Sync {
    /// Writes the nearest rows of a query and their squared distances, best first, as many as there are places.
    /// `effort` is the search parameter of the index: ef for HNSW; a tree has none.
    fn nearest(&self, query: &[f32], effort: usize, ids: &mut [u64], distances: &mut [f32]);
}

/// Searches for all queries, which `found` has places for. In parallel.
pub fn search(peer: &dyn Peer, queries: &[f32], dim: usize, effort: usize, found: &mut Neighbors) {
    let Neighbors { k, ids, distances } = found;
    let places = ids.par_chunks_exact_mut(*k).zip(distances.par_chunks_exact_mut(*k));
    let queries = queries.par_chunks_exact(dim).zip(places);
    queries.for_each(|(query, (ids, distances))| peer.nearest(query, effort, ids, distances));
}

/// Largest number of layers of the graph, as in the crate's examples.
const LAYERS: usize = 16;

/// A hierarchical navigable small world graph: `links` neighbours a row, built with a queue of `ef_construction`, in
/// parallel. The order of insertions, and with it the graph, differs from run to run.
pub fn hnsw(rows: &[f32], dim: usize, links: usize, ef_construction: usize) -> impl Peer + use<> {
    let numbered: Vec<(&[f32], usize)> = rows.chunks_exact(dim).zip(0..).collect();
    let mut graph = Hnsw::<f32, DistL2>::new(links, numbered.len(), LAYERS, ef_construction, DistL2);
    graph.parallel_insert_slice(&numbered);
    graph.set_searching_mode(true);
    graph
}

impl Peer for Hnsw<'_, f32, DistL2> {
    fn nearest(&self, query: &[f32], effort: usize, ids: &mut [u64], distances: &mut [f32]) {
        let found = self.search(query, ids.len(), effort.max(ids.len()));
        for (place, row) in found.into_iter().enumerate() {
            (ids[place], distances[place]) = (row.d_id as u64, row.distance * row.distance);
        }
    }
}

/// An exact KD-tree; `None` for dimensions without an instance, because the crate needs the dimension at compile time.
pub fn kd_tree(rows: &[f32], dim: usize) -> Option<Box<dyn Peer>> {
    match dim {
        2 => tree::<2>(rows),
        3 => tree::<3>(rows),
        6 => tree::<6>(rows),
        24 => tree::<24>(rows),
        96 => tree::<96>(rows),
        128 => tree::<128>(rows),
        _ => None,
    }
}

fn tree<const DIM: usize>(rows: &[f32]) -> Option<Box<dyn Peer>> {
    let (points, _) = rows.as_chunks::<DIM>();
    let tree = ImmutableKdTree::<f32, DIM>::new_from_slice(points).ok()?;
    Some(Box::new(Tree(tree)))
}

struct Tree<const DIM: usize>(ImmutableKdTree<f32, DIM>);

impl<const DIM: usize> Peer for Tree<DIM> {
    fn nearest(&self, query: &[f32], _: usize, ids: &mut [u64], distances: &mut [f32]) {
        let (Some(query), Some(k)) = (query.first_chunk::<DIM>(), NonZero::new(ids.len())) else { return };
        let found = self.0.query(query).nearest_n::<SquaredEuclidean<f32>>(k).execute();
        for (place, row) in found.into_iter().enumerate() {
            (ids[place], distances[place]) = (u64::from(row.item), row.distance);
        }
    }
}

#[cfg(test)]
mod tests {
    use warpann::{Device, Metric, NONE};

    use super::*;
    use crate::set::exact;
    use crate::vectors::clustered;

    /// The fraction of the true neighbours' distances that the other library returns.
    fn right(peer: &dyn Peer, base: &[f32], queries: &[f32], dim: usize, k: usize, effort: usize) -> (usize, usize) {
        let truth = exact(base, dim, Device::Cpu).unwrap().search(queries, k).unwrap();
        let slots = truth.ids.len();
        let mut found = Neighbors { k, ids: vec![NONE; slots], distances: vec![0.0; slots] };
        search(peer, queries, dim, effort, &mut found);
        assert!(!found.ids.contains(&NONE));
        let mut right = 0;
        for ((query, (_, expected)), (ids, distances)) in queries.chunks(dim).zip(truth.rows()).zip(found.rows()) {
            assert!(distances.is_sorted(), "{distances:?}");
            for ((&id, &distance), &expected) in ids.iter().zip(distances).zip(expected) {
                let row = &base[id as usize * dim..][..dim];
                let own = warpann::metric::canonical(Metric::L2, query, row);
                assert!((own - distance).abs() <= 1e-5 * (own + 1.0), "row {id} at {own}, not {distance}");
                right += usize::from((own - expected).abs() <= 1e-5 * (own + 1.0));
            }
        }
        (right, slots)
    }

    #[test]
    fn the_tree_is_exact_and_the_graph_nearly() {
        for dim in [2, 3, 6, 24] {
            let mut base = clustered(3000, dim, 5);
            // Many rows with equal coordinates, as bytes have.
            base.iter_mut().step_by(2).for_each(|x| *x = x.round());
            let queries = clustered(40, dim, 6);
            let tree = kd_tree(&base, dim).unwrap();
            let (found, all) = right(tree.as_ref(), &base, &queries, dim, 10, 0);
            assert_eq!(found, all, "dimension {dim}");
            let (found, all) = right(&hnsw(&base, dim, 16, 100), &base, &queries, dim, 10, 200);
            assert!(found as f64 > 0.95 * all as f64, "dimension {dim}: {found} of {all}");
        }
        assert!(kd_tree(&[0.0; 14], 7).is_none());
    }

    #[test]
    fn the_versions_are_those_that_are_built() {
        let lock = include_str!("../../Cargo.lock");
        for (name, version) in [HNSW, KD_TREE] {
            assert!(lock.contains(&format!("name = \"{name}\"\nversion = \"{version}\"\n")), "{name}");
        }
    }
}
