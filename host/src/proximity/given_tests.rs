//! Graphs that the caller made, and the edges of an index.

use super::tests::{DIM, K, check_graph, check_results, clustered, walking};
use super::*;
use crate::graph::{Graph, NO_NODE};
use crate::io::IdMatrix;
use crate::random::Random;
use crate::{Device, Element, FileDefect, NONE, SearchOptions};

fn builder<T: Element>(metric: Metric) -> GraphIndexBuilder<T> {
    GraphIndex::builder(DIM).metric(metric).device(Device::Cpu).exact_ratio(0)
}

fn graph_of(rows: Vec<Vec<u64>>, k: usize) -> Graph {
    let ids = rows.iter().flat_map(|row| row.iter().copied().chain([NONE].repeat(k - row.len()))).collect();
    Graph::from_ids(&IdMatrix { rows: rows.len(), k, ids }).unwrap()
}

/// The edges of each node of an index.
fn edges_of<T: Element>(index: &GraphIndex<T>) -> Vec<Vec<u64>> {
    let graph = index.graph().unwrap().unwrap();
    let row = |node| graph.row(node).iter().filter(|&&other| other != NO_NODE).map(|&other| u64::from(other)).collect();
    (0..graph.len()).map(row).collect()
}

/// The bytes of an index with the edges of another, whose nodes come in any order, are those of the other. After removals the edges are; the
/// codes may differ, because they are fitted to the vectors of now.
fn check_round_trip<T: Element>(metric: Metric) {
    let mut index = walking::<T>(metric);
    let ids: Vec<u64> = (0..700).map(|at| 5 * at + 3).collect();
    index.add_with_ids(&clustered::<T>(700, 1), &ids).unwrap();
    for removed in [0, 40] {
        index.remove(&ids[700 - 10 * removed..].iter().copied().step_by(10).collect::<Vec<_>>()).unwrap();
        let (ids, graph, bytes) = (index.ids(), index.graph().unwrap().unwrap(), index.to_bytes().unwrap());
        assert_eq!((graph.len(), graph.k()), (index.len(), index.degree()));
        let vector = |&id: &u64| index.reconstruct(id).unwrap();
        let rows: Vec<T> = ids.iter().flat_map(vector).collect();
        let same = builder(metric).build_with_graph(&rows, Some(&ids), &graph).unwrap();
        let is_same = |other: &GraphIndex<T>| {
            other.graph().unwrap().as_ref() == Some(&graph) && (removed > 0 || other.to_bytes().unwrap() == bytes)
        };
        assert!(is_same(&same), "{} {metric}", T::TYPE);

        // Node n of the other graph is row `order[n]`.
        let mut order: Vec<usize> = (0..ids.len()).collect();
        let mut random = Random::new(7);
        (1..order.len()).for_each(|at| order.swap(at, random.below(at + 1)));
        let mut node_of = vec![0; order.len()];
        order.iter().enumerate().for_each(|(node, &row)| node_of[row] = node as u64);
        let renumbered = |&row: &usize| -> Vec<u64> {
            graph.row(row).iter().filter(|&&other| other != NO_NODE).map(|&other| node_of[other as usize]).collect()
        };
        let shuffled = graph_of(order.iter().map(renumbered).collect(), graph.k());
        let shuffled_ids: Vec<u64> = order.iter().map(|&row| ids[row]).collect();
        let rows: Vec<T> = shuffled_ids.iter().flat_map(vector).collect();
        let same = builder(metric).build_with_graph(&rows, Some(&shuffled_ids), &shuffled).unwrap();
        assert!(is_same(&same), "{} {metric}", T::TYPE);
    }
}

#[test]
fn an_index_of_the_edges_of_another_has_its_bytes() {
    check_round_trip::<f32>(Metric::L2);
    check_round_trip::<half::f16>(Metric::InnerProduct);
    check_round_trip::<u8>(Metric::Cosine);
}

/// Edges keep their order; loops, repeated edges and gaps go, and nothing else changes where places are free.
#[test]
fn given_edges_stay_and_every_node_is_reached() {
    let base = clustered::<f32>(400, 1);
    let mut random = Random::new(3);
    let edges = |node: usize| -> Vec<u64> {
        // Every eighth node has no edges, and no edges lead to every fifth one.
        let some = if node % 8 == 1 { 0 } else { 6 };
        (0..some).map(|_| random.below(400) as u64).filter(|other| other % 5 != 4).collect()
    };
    let given: Vec<Vec<u64>> = (0..400).map(edges).collect();
    let clean = |(node, row): (usize, &Vec<u64>)| -> Vec<u64> {
        let first = |at: usize| row[at] != node as u64 && !row[..at].contains(&row[at]);
        (0..row.len()).filter(|&at| first(at)).map(|at| row[at]).collect()
    };
    let expected: Vec<Vec<u64>> = given.iter().enumerate().map(clean).collect();
    // A loop, a repeated edge and an empty slot in front of the others.
    let dirty = |(node, row): (usize, &Vec<u64>)| -> Vec<u64> {
        [NONE, node as u64].into_iter().chain(row.first().copied()).chain(row.iter().copied()).collect()
    };
    let graph = graph_of(given.iter().enumerate().map(dirty).collect(), 16);
    let mut index = builder::<f32>(Metric::L2).degree(90).build_with_graph(&base, None, &graph).unwrap();
    assert_eq!(index.degree(), 16);
    check_graph(&index);
    let mut added = 0;
    for (node, (found, expected)) in edges_of(&index).iter().zip(&expected).enumerate() {
        assert_eq!(found[..expected.len()], expected[..], "node {node}");
        added += found.len() - expected.len();
    }
    // One for each node to which no edge leads (none of them is a start), and for some to which only such nodes lead.
    assert!((80..100).contains(&added), "{added}");

    let all = SearchOptions::new().beam(400);
    let queries = clustered::<f32>(5, 2);
    let truth = index.flat.search(&queries, K).unwrap();
    assert_eq!(index.search_with(&queries, K, &all).unwrap(), truth);
    // It lives on as any other.
    index.add(&clustered::<f32>(100, 5)).unwrap();
    check_graph(&index);
    index.remove(&(0..500).step_by(3).collect::<Vec<u64>>()).unwrap();
    check_graph(&index);
    check_results(&index, &queries, &index.search(&queries, K).unwrap());
    let loaded = GraphIndex::<f32>::from_bytes(&index.to_bytes().unwrap(), Device::Cpu, None).unwrap();
    assert_eq!(loaded.graph().unwrap(), index.graph().unwrap());
}

/// Groups without edges between them, in which every node has all its places taken: the repair replaces edges.
#[test]
fn full_groups_are_connected() {
    let (base, groups) = (clustered::<f32>(400, 1), 80);
    let others =
        |node: usize| (0..5).map(|at| (node % groups + at * groups) as u64).filter(|&o| o != node as u64).collect();
    let graph = graph_of((0..400).map(others).collect(), 4);
    let index = builder::<f32>(Metric::L2).build_with_graph(&base, None, &graph).unwrap();
    check_graph(&index);
    let changed =
        edges_of(&index).concat().iter().zip(graph.neighbours()).filter(|(a, b)| **a != u64::from(**b)).count();
    // Sixteen of the groups have start nodes.
    assert_eq!(changed, 64);
}

/// The walks of the emulated device are those of the CPU along given edges.
#[test]
fn devices_walk_along_given_edges() {
    let (base, queries) = (clustered::<f32>(300, 1), clustered::<f32>(2, 2));
    let mut random = Random::new(5);
    let graph = graph_of((0..300).map(|_| (0..8).map(|_| random.below(300) as u64).collect()).collect(), 8);
    let [cpu, emulated] = [Device::Cpu, Device::Emulator].map(|device| {
        let index = builder::<f32>(Metric::L2).device(device).build_with_graph(&base, None, &graph).unwrap();
        (index.search(&queries, K).unwrap(), index.graph().unwrap())
    });
    assert!(cpu == emulated);
}

#[test]
fn graphs_that_do_not_fit_are_refused() {
    let base = clustered::<f32>(20, 1);
    let ring = |k: usize| graph_of((0..20u64).map(|node| vec![(node + 1) % 20]).collect(), k);
    let made = |rows: &[f32], ids: Option<&[u64]>, graph: &Graph| {
        builder::<f32>(Metric::L2).build_with_graph(rows, ids, graph).map(|index| index.len())
    };
    let ids: Vec<u64> = (0..20).collect();
    assert_eq!(made(&base, Some(&ids), &ring(4)).unwrap(), 20);
    assert!(matches!(made(&base, None, &ring(3)), Err(Error::BadDegree { degree: 3, least: 4, most: 256 })));
    assert!(matches!(made(&base, None, &ring(257)), Err(Error::BadDegree { degree: 257, .. })));
    let short = &base[DIM..];
    assert!(matches!(made(short, None, &ring(4)), Err(Error::WrongBase { expected: 20, actual: 19 })));
    assert!(matches!(made(&base[1..], None, &ring(4)), Err(Error::RaggedVectors { .. })));
    assert!(matches!(made(&base, Some(&ids[1..]), &ring(4)), Err(Error::WrongIds { ids: 19, rows: 20 })));
    assert!(matches!(made(&base, Some(&[7; 20]), &ring(4)), Err(Error::DuplicateId { id: 7 })));
    let mut broken = base.clone();
    broken[DIM * 3 + 2] = f32::NAN;
    assert!(matches!(made(&broken, None, &ring(4)), Err(Error::NotFinite { row: 3, column: 2, .. })));
    assert!(matches!(builder::<f32>(Metric::L2).beam(0).build_with_graph(&base, None, &ring(4)), Err(Error::ZeroBeam)));
    let beyond = Graph::from_ids(&IdMatrix { rows: 2, k: 4, ids: vec![1, NONE, NONE, NONE, 0, 2, NONE, NONE] });
    assert_eq!(beyond.unwrap_err(), FileDefect::NoSuchRow { row: 1, column: 1, id: 2, rows: 2 });

    // No vectors, and too few for a graph: a graph that is given is kept.
    let none = graph_of(Vec::new(), 4);
    assert_eq!(made(&[], None, &none).unwrap(), 0);
    let few = GraphIndex::<f32>::builder(DIM).device(Device::Cpu).build_with_graph(&base, None, &ring(4)).unwrap();
    assert_eq!(few.graph().unwrap(), Some(ring(4)));
    let mut exact = GraphIndex::<f32>::builder(DIM).device(Device::Cpu).build().unwrap();
    exact.add(&base).unwrap();
    assert_eq!(exact.graph().unwrap(), None);
}
