//! Graphs and neighbours that the caller found, and the edges of an index.

use std::ops::ControlFlow;

use super::tests::{DIM, K, check_graph, check_results, clustered, recall, walking};
use super::*;
use crate::io::IdMatrix;
use crate::knn_graph::{Graph, KnnGraph, NO_NODE};
use crate::random::Random;
use crate::{Device, Element, FileDefect, NONE, Neighbors, SearchOptions, Watch};

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

/// The bytes of an index with the edges of another, whose nodes come in any order, are those of the other. After
/// removals the edges are; the codes may differ, because they are fitted to the vectors of now.
fn check_round_trip<T: Element>(metric: Metric) {
    let mut index = walking::<T>(metric);
    let ids: Vec<u64> = (0..700).map(|at| 5 * at + 3).collect();
    index.add_with_ids(&clustered::<T>(700, 1), &ids).unwrap();
    for removed in [0, 40] {
        index.remove(&ids[700 - 10 * removed..].iter().copied().step_by(10).collect::<Vec<_>>()).unwrap();
        let (ids, graph, bytes) = (index.ids(), index.graph().unwrap().unwrap(), index.to_bytes().unwrap());
        assert_eq!((graph.len(), graph.k()), (index.len(), index.degree()));
        let vector = |&id: &u64| index.vector(id).unwrap();
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
    let truth = index.exact().search(&queries, K).unwrap();
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
        edges_of(&index).concat().iter().zip(graph.neighbors()).filter(|(a, b)| **a != u64::from(**b)).count();
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
    assert!(matches!(
        made(&base, None, &ring(3)),
        Err(Error::OutOfRange { what: "degree", value: 3, least: 4, most: 256 })
    ));
    assert!(matches!(made(&base, None, &ring(257)), Err(Error::OutOfRange { what: "degree", value: 257, .. })));
    let short = &base[DIM..];
    assert!(matches!(
        made(short, None, &ring(4)),
        Err(Error::WrongLength { what: "vectors of the base", expected: 20, actual: 19 })
    ));
    assert!(matches!(made(&base[1..], None, &ring(4)), Err(Error::Ragged { what: "components", .. })));
    assert!(matches!(
        made(&base, Some(&ids[1..]), &ring(4)),
        Err(Error::WrongLength { what: "ids", expected: 20, actual: 19 })
    ));
    assert!(matches!(made(&base, Some(&[7; 20]), &ring(4)), Err(Error::DuplicateId { id: 7 })));
    let mut broken = base.clone();
    broken[DIM * 3 + 2] = f32::NAN;
    assert!(matches!(made(&broken, None, &ring(4)), Err(Error::NotFinite { row: 3, column: 2, .. })));
    assert!(matches!(
        builder::<f32>(Metric::L2).beam(0).build_with_graph(&base, None, &ring(4)),
        Err(Error::Zero { what: "beam" })
    ));
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

/// The exact k nearest others of each vector.
fn nearest<T: Element>(base: &[T], metric: Metric, k: usize) -> Graph {
    let mut exact = FlatIndex::<T>::new(DIM, metric, Device::Cpu).unwrap();
    exact.add(base).unwrap();
    KnnGraph::new(k).run(&exact, base).unwrap().0
}

/// The exact nearest neighbours, in any order of vectors and neighbours, with gaps, repeated ones and the vector
/// itself, make the index that `add` makes.
fn check_same_as_added<T: Element>(metric: Metric) {
    let base = clustered::<T>(700, 1);
    let ids: Vec<u64> = (0..700).map(|at| 5 * at + 3).collect();
    let mut added = walking::<T>(metric);
    added.add_with_ids(&base, &ids).unwrap();
    let expected = added.to_bytes().unwrap();
    let near = nearest(&base, metric, 24);
    let built = |base: &[T], ids: &[u64], near: &Graph| {
        let index = builder(metric).degree(24).build_with_neighbors(base, Some(ids), near, &Watch::none()).unwrap();
        index.to_bytes().unwrap()
    };
    assert!(built(&base, &ids, &near) == expected, "{} {metric}", T::TYPE);

    let mut order: Vec<usize> = (0..700).collect();
    let mut random = Random::new(7);
    (1..700).for_each(|at| order.swap(at, random.below(at + 1)));
    let mut node_of = vec![0; 700];
    order.iter().zip(0..).for_each(|(&row, node)| node_of[row] = node);
    let dirty = |(node, &row): (u64, &usize)| -> Vec<u64> {
        let others = near.row(row).iter().rev().map(|&other| node_of[other as usize]);
        [NONE, node_of[near.row(row)[3] as usize], node].into_iter().chain(others).collect()
    };
    let shuffled = graph_of((0..).zip(&order).map(dirty).collect(), 30);
    let rows: Vec<T> = order.iter().flat_map(|&row| base[row * DIM..][..DIM].to_vec()).collect();
    let shuffled_ids: Vec<u64> = order.iter().map(|&row| ids[row]).collect();
    assert!(built(&rows, &shuffled_ids, &shuffled) == expected, "{} {metric}, shuffled", T::TYPE);
}

#[test]
fn exact_neighbours_make_the_index_that_add_makes() {
    check_same_as_added::<f32>(Metric::L2);
    check_same_as_added::<half::f16>(Metric::InnerProduct);
    check_same_as_added::<u8>(Metric::Cosine);
}

/// Fewer and more neighbours than edges, and neighbours of which some are missing.
#[test]
fn given_neighbours_have_about_the_recall_of_searched_ones() {
    let (base, queries) = (clustered::<f32>(4_000, 1), clustered::<f32>(100, 2));
    let mut added = walking::<f32>(Metric::L2);
    added.add(&base).unwrap();
    let truth = added.exact().search(&queries, K).unwrap();
    let of = |found: &Neighbors| recall(found, &truth);
    let expected = of(&added.search(&queries, K).unwrap());
    let mut random = Random::new(4);
    for (k, kept) in [(12, 100), (24, 90), (40, 100)] {
        let near = nearest(&base, Metric::L2, k);
        let keep = |node: usize| -> Vec<u64> {
            near.row(node).iter().filter(|_| random.below(100) < kept).map(|&other| u64::from(other)).collect()
        };
        let some = graph_of((0..4_000).map(keep).collect(), k);
        let built = builder::<f32>(Metric::L2).degree(24).build_with_neighbors(&base, None, &some, &Watch::none());
        let mut index = built.unwrap();
        check_graph(&index);
        assert_eq!(index.degree(), 24);
        let found = index.search(&queries, K).unwrap();
        check_results(&index, &queries, &found);
        assert!(of(&found) >= expected - 0.01, "{k} neighbours: {} instead of {expected}", of(&found));
        // It lives on as any other.
        index.add(&clustered::<f32>(50, 5)).unwrap();
        index.remove(&(0..4_000).step_by(9).collect::<Vec<u64>>()).unwrap();
        check_graph(&index);
    }
}

#[test]
fn devices_choose_the_same_edges_among_given_neighbours() {
    let base = clustered::<f32>(300, 1);
    for k in [5, 19] {
        let near = nearest(&base, Metric::L2, k);
        let [cpu, emulated] = [Device::Cpu, Device::Emulator].map(|device| {
            let builder = builder::<f32>(Metric::L2).device(device).degree(8);
            builder.build_with_neighbors(&base, None, &near, &Watch::none()).unwrap().to_bytes().unwrap()
        });
        assert!(cpu == emulated, "k = {k}");
    }
}

#[test]
fn neighbours_that_do_not_fit_are_refused() {
    let base = clustered::<f32>(20, 1);
    let ring = graph_of((0..20u64).map(|node| vec![(node + 1) % 20]).collect(), 1);
    let made = |rows: &[f32], ids: Option<&[u64]>, graph: &Graph| {
        let built = builder::<f32>(Metric::L2).build_with_neighbors(rows, ids, graph, &Watch::none());
        built.map(|index| (index.len(), index.statistics().edges > 0))
    };
    assert_eq!(made(&base, None, &ring).unwrap(), (20, true));
    assert!(matches!(
        made(&base[DIM..], None, &ring),
        Err(Error::WrongLength { what: "vectors of the base", expected: 20, actual: 19 })
    ));
    assert!(matches!(made(&base[1..], None, &ring), Err(Error::Ragged { what: "components", .. })));
    assert!(matches!(
        made(&base, Some(&[1, 2]), &ring),
        Err(Error::WrongLength { what: "ids", expected: 20, actual: 2 })
    ));
    assert!(matches!(made(&base, Some(&[7; 20]), &ring), Err(Error::DuplicateId { id: 7 })));
    let mut broken = base.clone();
    broken[DIM * 3 + 2] = f32::NAN;
    assert!(matches!(made(&broken, None, &ring), Err(Error::NotFinite { row: 3, column: 2, .. })));
    let thin = builder::<f32>(Metric::L2).degree(3).build_with_neighbors(&base, None, &ring, &Watch::none());
    assert!(matches!(thin, Err(Error::OutOfRange { what: "degree", value: 3, .. })));

    // No vectors, vectors without neighbours, and too few vectors for edges.
    assert_eq!(made(&[], None, &graph_of(Vec::new(), 4)).unwrap(), (0, false));
    assert_eq!(made(&base, None, &graph_of(vec![Vec::new(); 20], 2)).unwrap(), (20, true));
    let small = GraphIndex::<f32>::builder(DIM).device(Device::Cpu);
    let small = small.build_with_neighbors(&base, None, &ring, &Watch::none()).unwrap();
    assert_eq!((small.graph().unwrap(), small.len()), (None, 20));

    // Each call of the watch can stop the build.
    let mut calls = 0;
    let count = Watch::new(|_| {
        calls += 1;
        ControlFlow::Continue(())
    });
    builder::<f32>(Metric::L2).build_with_neighbors(&base, None, &ring, &count).unwrap();
    drop(count);
    assert!(calls >= 4, "{calls}");
    for last in 1..=calls {
        let mut at = 0;
        let stop = Watch::new(|_| {
            at += 1;
            if at == last { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        let stopped = builder::<f32>(Metric::L2).build_with_neighbors(&base, None, &ring, &stop);
        assert!(matches!(stopped, Err(Error::Cancelled)), "call {last}");
    }
}
