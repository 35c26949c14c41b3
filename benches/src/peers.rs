//! Indexes of other libraries: crates, used as their documentation recommends.
//!
//! Rows are f32, as both crates take them; bytes are widened by the caller.

use std::num::NonZero;

use hnsw_rs::prelude::{DistL2, Hnsw};
use kiddo::{ImmutableKdTree, SquaredEuclidean};

/// A library and its version, as records name it.
pub type Name = (&'static str, &'static str);

/// The library with a graph index (HNSW), and its version.
pub const HNSW: Name = ("hnsw_rs", "0.3.5");
/// The library with a k-d tree, and its version.
pub const KD_TREE: Name = ("kiddo", "6.3.0");

/// An index of another library.
pub trait Peer: Sync {
    /// The `k` nearest rows of a query and their squared distances, best first. `effort` is the search parameter of the index: ef for HNSW;
    /// a tree has none.
    fn nearest(&self, query: &[f32], k: usize, effort: usize) -> Vec<(u64, f32)>;
}

/// Largest number of layers of the graph, as in the crate's examples.
const LAYERS: usize = 16;

/// A hierarchical navigable small world graph: `links` neighbours a row, built with a queue of `ef_construction`, in parallel. The order
/// of insertions, and with it the graph, differs from run to run.
pub fn hnsw(rows: &[f32], dim: usize, links: usize, ef_construction: usize) -> impl Peer + use<> {
    let numbered: Vec<(&[f32], usize)> = rows.chunks_exact(dim).zip(0..).collect();
    let mut graph = Hnsw::<f32, DistL2>::new(links, numbered.len(), LAYERS, ef_construction, DistL2);
    graph.parallel_insert_slice(&numbered);
    graph.set_searching_mode(true);
    graph
}

impl Peer for Hnsw<'_, f32, DistL2> {
    fn nearest(&self, query: &[f32], k: usize, effort: usize) -> Vec<(u64, f32)> {
        let found = self.search(query, k, effort.max(k));
        found.into_iter().map(|row| (row.d_id as u64, row.distance * row.distance)).collect()
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
    fn nearest(&self, query: &[f32], k: usize, _: usize) -> Vec<(u64, f32)> {
        let (Some(query), Some(k)) = (query.first_chunk::<DIM>(), NonZero::new(k)) else { return Vec::new() };
        let found = self.0.query(query).nearest_n::<SquaredEuclidean<f32>>(k).execute();
        found.into_iter().map(|row| (u64::from(row.item), row.distance)).collect()
    }
}

#[cfg(test)]
mod tests {
    use warpann::{Device, FlatIndex, Metric};

    use super::*;
    use crate::vectors::clustered;

    /// The fraction of the true neighbours' distances that the other library returns.
    fn right(peer: &dyn Peer, base: &[f32], queries: &[f32], dim: usize, k: usize, effort: usize) -> (usize, usize) {
        let mut exact = FlatIndex::<f32>::new(dim, Metric::L2, Device::Cpu).unwrap();
        exact.add(base).unwrap();
        let truth = exact.search(queries, k).unwrap();
        let mut right = 0;
        for (query, (_, distances)) in queries.chunks(dim).zip(truth.rows()) {
            let found = peer.nearest(query, k, effort);
            assert_eq!(found.len(), k);
            assert!(found.is_sorted_by(|a, b| a.1 <= b.1), "{found:?}");
            for (&(id, distance), &expected) in found.iter().zip(distances) {
                let row = &base[id as usize * dim..][..dim];
                let own = warpann::metric::canonical(Metric::L2, query, row);
                assert!((own - distance).abs() <= 1e-5 * (own + 1.0), "row {id} at {own}, not {distance}");
                right += usize::from((own - expected).abs() <= 1e-5 * (own + 1.0));
            }
        }
        (right, truth.ids.len())
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
