//! k-NN graphs, their components and paths, against plain definitions.

use test_cases::by_element;
use warpann::io::IdMatrix;
use warpann::knn_graph::{Graph, KnnGraph, NO_NODE};
use warpann::{Device, Error, FlatIndex, Metric, NONE};

use super::vectors::{self, ALL_OF_F32, Form};
use super::work;
use crate::data::{Component, Random};
use crate::reference::{self, badness};
use crate::runner::{Outcome, text};

/// A base and its graph.
#[derive(Debug)]
struct GraphCase {
    metric: Metric,
    dim: usize,
    n: usize,
    k: usize,
    /// Rows searched at a time.
    batch: Option<usize>,
    form: Form,
}

/// The case of a seed.
///
/// # Errors
/// The case and the first difference, in words.
pub fn case(seed: u64, device: Device) -> Outcome {
    let mut random = Random::new(seed);
    let element = vectors::element(&mut random);
    by_element!(element, graph(&mut random, device))
}

fn graph<T: Component>(random: &mut Random, device: Device) -> Outcome {
    let dim = 1 + random.size(39);
    let most = (work(random, device) / dim.max(16)).isqrt().min(200);
    let n = random.size(most);
    let case = GraphCase {
        metric: random.pick(&Metric::OF_NUMBERS),
        dim,
        n,
        k: 1 + random.size((n + 2).min(12)),
        batch: random.once_in(2).then(|| 1 + random.below(n + 1)),
        form: vectors::form(random, vectors::range(T::TYPE, ALL_OF_F32)),
    };
    check::<T>(&case, random, device).map_err(|failure| format!("{failure}\n{:?} {case:?}", T::TYPE))
}

fn check<T: Component>(case: &GraphCase, random: &mut Random, device: Device) -> Outcome {
    let &GraphCase { metric, dim, n, k, batch, ref form, .. } = case;
    let vectors = vectors::vectors::<T>(form, dim, n, 0, random);
    let mut index = FlatIndex::<T>::new(dim, metric, device).map_err(text)?;
    index.add(&vectors.base).map_err(text)?;
    let settings = batch.map_or(KnnGraph::new(k), |rows| KnnGraph::new(k).batch(rows));
    let (graph, distances) = settings.run(&index, &vectors.base).map_err(text)?;
    if (graph.len(), graph.neighbors().len(), distances.len()) != (n, n * k, n * k) {
        return Err(format!("{} nodes, {} slots, {} distances", graph.len(), graph.neighbors().len(), distances.len()));
    }
    let row = |node: usize| &vectors.exact_base[node * dim..][..dim];
    for node in 0..n {
        let all = reference::nearest(metric, dim, &vectors.exact_base, row(node), n);
        let others = all.into_iter().filter(|&(id, _)| id != node as u64).map(|(id, distance)| (id as u32, distance));
        let empty = std::iter::repeat((NO_NODE, reference::worst(metric)));
        for (slot, expected) in others.chain(empty).take(k).enumerate() {
            let found = (graph.row(node)[slot], distances[node * k + slot]);
            if (found.0, found.1.to_bits()) != (expected.0, expected.1.to_bits()) {
                return Err(format!("node {node}, slot {slot}: {found:?}; by definition {expected:?}"));
            }
        }
    }
    let distance = |a: usize, b: usize| reference::defined(metric, row(a), row(b));
    uses(&graph, metric, dim, &vectors.base, distance, random)?;
    // Any edges: loops, several times the same, slots without one anywhere.
    let slots = 1 + random.below(4);
    let mut any = || if n == 0 || random.once_in(3) { NONE } else { random.below(n) as u64 };
    let ids: Vec<u64> = (0..n * slots).map(|_| any()).collect();
    let other = Graph::from_ids(&IdMatrix { rows: n, k: slots, ids }).map_err(text)?;
    uses(&other, metric, dim, &vectors.base, distance, random)
        .map_err(|failure| format!("graph of any edges: {failure}"))
}

/// Components, and some paths, of a graph whose nodes are the rows of `base`.
fn uses<T: Component>(
    graph: &Graph,
    metric: Metric,
    dim: usize,
    base: &[T],
    distance: impl Fn(usize, usize) -> f32,
    random: &mut Random,
) -> Outcome {
    let n = graph.len();
    let mut near = vec![Vec::new(); n];
    for node in 0..n {
        for &other in graph.row(node).iter().filter(|&&other| other != NO_NODE) {
            near[node].push(other as usize);
            near[other as usize].push(node);
        }
    }
    let lowest = lowest_nodes(&near);
    let mut sizes: Vec<(usize, usize)> = (0..n)
        .filter(|&node| lowest[node] == node)
        .map(|node| (lowest.iter().filter(|&&lowest| lowest == node).count(), node))
        .collect();
    sizes.sort_by_key(|&(size, node)| (std::cmp::Reverse(size), node));
    let of: Vec<u32> =
        lowest.iter().map(|&node| sizes.iter().position(|&(_, first)| first == node).unwrap_or(n) as u32).collect();
    let components = graph.components();
    let expected: Vec<u64> = sizes.iter().map(|&(size, _)| size as u64).collect();
    if components.of != of || components.sizes != expected {
        return Err(format!("components {components:?}; by definition {of:?}, sizes {expected:?}"));
    }
    for _ in 0..if n == 0 { 0 } else { 3 } {
        let (from, to) = (random.below(n), random.below(n));
        let found = graph.path(base, dim, metric, from as u64, to as u64);
        let size = |node: usize| expected[of[node] as usize];
        match (found, best_path(&near, |a, b| badness(metric, distance(a, b).into()), from, to)) {
            (Err(Error::NotConnected { from_size, to_size, .. }), None)
                if (from_size, to_size) == (size(from), size(to)) => {}
            (Ok(found), Some(nodes)) => {
                let steps = nodes.windows(2).map(|pair| distance(pair[0], pair[1]));
                let largest = steps.max_by(|&a, &b| badness(metric, a.into()).total_cmp(&badness(metric, b.into())));
                let nodes: Vec<u64> = nodes.into_iter().map(|node| node as u64).collect();
                if found.nodes != nodes || found.largest.map(f32::to_bits) != largest.map(f32::to_bits) {
                    return Err(format!("from {from} to {to}: {found:?}; by definition {nodes:?}, {largest:?}"));
                }
            }
            (found, expected) => return Err(format!("from {from} to {to}: {found:?}; by definition {expected:?}")),
        }
    }
    Ok(())
}

/// The lowest node that each node can reach.
fn lowest_nodes(near: &[Vec<usize>]) -> Vec<usize> {
    let mut lowest: Vec<usize> = (0..near.len()).collect();
    loop {
        let before = lowest.clone();
        for (node, others) in near.iter().enumerate() {
            lowest[node] = others.iter().map(|&other| lowest[other]).fold(lowest[node], usize::min);
        }
        if lowest == before {
            return lowest;
        }
    }
}

/// The best path: the smallest worst edge, then the fewest edges, then the lowest numbers of nodes.
fn best_path(near: &[Vec<usize>], badness: impl Fn(usize, usize) -> f64, from: usize, to: usize) -> Option<Vec<usize>> {
    // The worst edge on the best way to each node, relaxed until nothing changes; none: not reached yet.
    let mut limits: Vec<Option<f64>> = vec![None; near.len()];
    limits[from] = Some(f64::NEG_INFINITY);
    loop {
        let before = limits.clone();
        for node in 0..near.len() {
            for &other in &near[node] {
                let through = limits[other].map(|limit| limit.max(badness(node, other)));
                limits[node] = match (limits[node], through) {
                    (Some(a), Some(b)) => Some(a.min(b)),
                    (a, b) => a.or(b),
                };
            }
        }
        if limits == before {
            break;
        }
    }
    let limit = limits[to]?;
    let mut steps = vec![usize::MAX; near.len()];
    steps[to] = 0;
    for step in 0..near.len() {
        for node in 0..near.len() {
            let reached = |&&other: &&usize| steps[other] == step && badness(node, other) <= limit;
            if steps[node] == usize::MAX && near[node].iter().find(reached).is_some() {
                steps[node] = step + 1;
            }
        }
    }
    let mut nodes = vec![from];
    while nodes[nodes.len() - 1] != to {
        let node = nodes[nodes.len() - 1];
        let nearer = near[node].iter().filter(|&&other| steps[other] < steps[node] && badness(node, other) <= limit);
        nodes.push(*nearer.min()?);
    }
    Some(nodes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_and_components_found_by_hand() {
        // 0 - 1 - 2 - 3 in steps of 1; 0 - 4 - 3 with a step of 9; 5 alone. 1 - 6 - 3 in steps of 1 as well.
        let near = vec![vec![1, 4], vec![0, 2, 6], vec![1, 3], vec![2, 4, 6], vec![0, 3], vec![], vec![1, 3]];
        let badness = |a: usize, b: usize| if a == 4 || b == 4 { 9.0 } else { 1.0 };
        assert_eq!(best_path(&near, badness, 0, 3), Some(vec![0, 1, 2, 3]));
        assert_eq!(best_path(&near, |_, _| 1.0, 0, 3), Some(vec![0, 4, 3]));
        assert_eq!(best_path(&near, badness, 0, 5), None);
        assert_eq!(best_path(&near, badness, 5, 5), Some(vec![5]));
        assert_eq!(lowest_nodes(&near), [0, 0, 0, 0, 0, 5, 0]);
    }
}
