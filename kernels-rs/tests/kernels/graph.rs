//! Graphs: candidates, the choice of edges, parents from the start nodes, and walks. Vectors are small whole numbers
//! with many equal distances.
//!
//! No result tells these changes:
//! - A line of edges more is prefetched.
//! - The first number of chosen nodes that are only named is another: it is always overwritten.

use cuda_std::emulator::Buffer;
use test_random::Random;
use warpann_kernels::NO_ROW;
use warpann_kernels::graph::candidates::AppendCandidates;
use warpann_kernels::graph::prune::{Count, Fill, Join, Prune};
use warpann_kernels::graph::reach::{Claim, OPEN, Settle};
use warpann_kernels::graph::walk::{EXPANSIONS, PerQuery, Walk, least_slots, slots};
use warpann_kernels::product::element::ElementKey;
use warpann_kernels::product::metric::Metric;

use crate::lists::{badness, distance, stored};

/// Components of a row: of bytes a multiple of 16.
const STRIDE: usize = 16;

/// Up to `most` different numbers below `below` without `without`, then `NO_ROW` up to `places`.
fn distinct(random: &mut Random, below: usize, most: usize, places: usize, without: Option<u32>) -> Vec<u32> {
    let mut all: Vec<u32> = (0..below as u32).filter(|&number| Some(number) != without).collect();
    random.shuffle(&mut all);
    all.truncate(most);
    all.resize(places, NO_ROW);
    all
}

#[test]
fn candidates_are_appended_once() {
    let mut random = Random::new(91);
    for (most, width, share, taken) in [(1, 1, 1, 0), (5, 40, 1, 7), (40, 90, 3, 33), (70, 70, 2, 0), (33, 64, 1, 60)] {
        let (rows, first) = (6, 2);
        let before: Vec<Vec<u32>> = (0..rows)
            .map(|row| {
                let count = if row == 0 { taken } else { random.below(taken + 1) };
                distinct(&mut random, 100, count, width, Some(first + row as u32))
            })
            .collect();
        // The row itself may be among those that were found.
        let found: Vec<Vec<u64>> = (0..rows)
            .map(|_| {
                let count = random.below(most + 2);
                let ids = distinct(&mut random, 100, count, most + 1, None);
                ids.iter().map(|&id| if id == NO_ROW { u64::MAX } else { u64::from(id) }).collect()
            })
            .collect();
        let expected: Vec<u32> = (0..rows)
            .flat_map(|row| {
                let known: Vec<u32> = before[row].iter().copied().filter(|&other| other != NO_ROW).collect();
                let rows_found = found[row].iter().filter(|&&id| id != u64::MAX).map(|&id| id as u32 * share);
                let new = rows_found.filter(|other| *other != first + row as u32 && !known.contains(other)).take(most);
                let mut all: Vec<u32> = known.iter().copied().chain(new).take(width).collect();
                all.resize(width, NO_ROW);
                all
            })
            .collect();
        let (found, mut candidates) = (Buffer::from_slice(&found.concat()), Buffer::from_slice(&before.concat()));
        let launch = AppendCandidates {
            found: found.as_ptr(),
            most: most as u32,
            share,
            first,
            count: rows as u32,
            candidates: candidates.as_mut_ptr(),
            width: width as u32,
        };
        // SAFETY: the arrays have these shapes.
        unsafe { crate::launch(&AppendCandidates::KERNEL, launch.config(), launch) };
        assert_eq!(candidates.to_vec(), expected, "{most} of every {share}th, {width} places, {taken} taken");
    }
}

/// The edges of a node as the definition chooses them. `order` is the distance of two rows.
pub fn pruned<T: PartialOrd>(
    node: u32,
    candidates: &[u32],
    degree: usize,
    in_order: bool,
    order: impl Fn(u32, u32) -> T,
) -> Vec<u32> {
    let mut near: Vec<u32> = candidates.iter().copied().filter(|&other| other != NO_ROW).collect();
    near.sort_by(|&a, &b| order(node, a).partial_cmp(&order(node, b)).unwrap().then(a.cmp(&b)));
    let (mut chosen, mut others) = (Vec::new(), Vec::new());
    for other in near {
        if chosen.len() == degree {
            break;
        }
        let occluded = chosen.iter().any(|&some| order(other, some) < order(node, other));
        if occluded { &mut others } else { &mut chosen }.push(other);
    }
    if in_order {
        others = candidates.iter().copied().filter(|other| *other != NO_ROW && !chosen.contains(other)).collect();
    }
    chosen.extend(others);
    chosen.resize(chosen.len().max(degree), NO_ROW);
    chosen.truncate(degree);
    chosen
}

#[test]
fn edges_are_chosen_from_near_to_far() {
    let mut random = Random::new(92);
    let (rows, first) = (80, 3);
    for (turn, (most, degree)) in [(1, 1), (12, 4), (33, 9), (70, 32), (40, 40), (8, 16)].into_iter().enumerate() {
        for in_order in [false, true] {
            let key = [ElementKey::U8, ElementKey::F32, ElementKey::I8, ElementKey::F16][turn % 4];
            let metric = Metric::UNNORMALISED[turn % 2];
            let values = random.whole(rows * STRIDE, [3, 2][turn % 2]);
            let row = |row: u32| &values[row as usize * STRIDE..][..STRIDE];
            let order = |a: u32, b: u32| badness(metric, distance(metric, row(a), row(b)));
            let nodes = 5;
            let candidates: Vec<Vec<u32>> = (0..nodes)
                .map(|node| {
                    let count = most - random.below(most.min(4));
                    distinct(&mut random, rows, count, most, Some(first + node))
                })
                .collect();
            let choose = |node: u32| pruned(first + node, &candidates[node as usize], degree, in_order, order);
            let expected: Vec<u32> = (0..nodes).flat_map(choose).collect();
            let (rows_at, candidates_at) =
                (Buffer::from_slice(&stored(key, &values)), Buffer::from_slice(&candidates.concat()));
            let mut edges = Buffer::<u32>::new_poisoned(expected.len());
            let launch = Prune {
                rows: rows_at.as_ptr(),
                stride: STRIDE as u32,
                metric,
                first,
                count: nodes,
                candidates: candidates_at.as_ptr(),
                most: most as u32,
                edges: edges.as_mut_ptr(),
                degree: degree as u32,
                in_order: in_order.into(),
                ..Prune::default()
            };
            // SAFETY: the arrays have these shapes.
            unsafe { crate::launch(Prune::kernel(key), launch.config(), launch) };
            assert_eq!(edges.to_vec(), expected, "{metric:?}, {key:?}, {degree} of {most}, in order: {in_order}");
        }
    }
}

/// A random graph: for each node up to `degree` edges, then `NO_ROW`.
fn graph(random: &mut Random, nodes: usize, degree: usize) -> Vec<u32> {
    let edges = |node: u32, random: &mut Random| {
        let count = degree - random.below(degree.min(3));
        // Many edges lead to the first nodes.
        let below = if random.once_in(2) { nodes } else { nodes.min(2 * degree) };
        distinct(random, below, count, degree, Some(node))
    };
    (0..nodes as u32).flat_map(|node| edges(node, random)).collect()
}

#[test]
fn edges_back_are_joined() {
    let mut random = Random::new(93);
    for (nodes, degree) in [(2, 1), (40, 3), (300, 8), (90, 33), (150, 40)] {
        let edges = graph(&mut random, nodes, degree);
        let edges_at = Buffer::from_slice(&edges);
        let places = edges.len() as u32;
        let mut counts = Buffer::<u32>::new(nodes);
        let launch = Count { edges: edges_at.as_ptr(), places, counts: counts.as_mut_ptr() };
        // SAFETY: edges lead to nodes.
        unsafe { crate::launch(&Count::KERNEL, launch.config(), launch) };
        let counts = counts.to_vec();
        for node in 0..nodes as u32 {
            assert_eq!(counts[node as usize] as usize, edges.iter().filter(|&&other| other == node).count());
        }
        let begins: Vec<u32> = counts.iter().scan(0, |sum, count| Some(std::mem::replace(sum, *sum + count))).collect();
        let mut ends = Buffer::from_slice(&begins);
        let mut lists = Buffer::<u32>::new_poisoned(edges.len());
        let launch = Fill { edges: edges_at.as_ptr(), places, ends: ends.as_mut_ptr(), lists: lists.as_mut_ptr() };
        // SAFETY: each list has room for its edges.
        unsafe { crate::launch(&Fill::KERNEL, launch.config(), launch) };
        // All nodes, and those from the second on.
        for first in [0, 1] {
            let count = nodes - first;
            let mut joined = Buffer::<u32>::new_poisoned(count * 2 * degree);
            let launch = Join {
                edges: edges_at.as_ptr(),
                first: first as u32,
                count: count as u32,
                degree: degree as u32,
                ends: ends.as_ptr(),
                lists: lists.as_ptr(),
                joined: joined.as_mut_ptr(),
            };
            // SAFETY: the arrays have these shapes.
            unsafe { crate::launch(&Join::KERNEL, launch.config(), launch) };
            let joined = joined.to_vec();
            for node in first..nodes {
                let own = &edges[node * degree..(node + 1) * degree];
                let mut back: Vec<(usize, u32)> = (0..edges.len())
                    .filter(|&edge| edges[edge] == node as u32)
                    .map(|edge| (edge % degree, (edge / degree) as u32))
                    .collect();
                back.sort();
                back.truncate(degree);
                let (near, far) = own.split_at(degree / 2);
                let mut expected: Vec<u32> = Vec::new();
                for &other in near.iter().chain(back.iter().map(|(_, from)| from)).chain(far) {
                    if other != NO_ROW && !expected.contains(&other) {
                        expected.push(other);
                    }
                }
                expected.resize(2 * degree, NO_ROW);
                let at = (node - first) * 2 * degree;
                assert_eq!(joined[at..at + 2 * degree], expected, "node {node} of {nodes}, degree {degree}");
            }
        }
    }
}

#[test]
fn every_node_gets_the_lowest_parent_of_the_level_before() {
    let mut random = Random::new(94);
    for (nodes, degree) in [(1, 1), (33, 2), (300, 5), (700, 40)] {
        let edges = graph(&mut random, nodes, degree);
        let mut levels: Vec<u32> = (0..nodes).map(|node| if node % 50 == 0 { 0 } else { OPEN }).collect();
        let edges_at = Buffer::from_slice(&edges);
        let mut levels_at = Buffer::from_slice(&levels);
        let mut parents_at = Buffer::from_slice(&vec![NO_ROW; nodes]);
        let mut parents = vec![NO_ROW; nodes];
        for level in 0..4 {
            let launch = Claim {
                edges: edges_at.as_ptr(),
                count: nodes as u32,
                degree: degree as u32,
                levels: levels_at.as_ptr(),
                level,
                parents: parents_at.as_mut_ptr(),
            };
            // SAFETY: edges lead to nodes.
            unsafe { crate::launch(&Claim::KERNEL, launch.config(), launch) };
            let mut reached = Buffer::from_slice(&[10u32]);
            let launch = Settle {
                parents: parents_at.as_ptr(),
                count: nodes as u32,
                levels: levels_at.as_mut_ptr(),
                level: level + 1,
                reached: reached.as_mut_ptr(),
            };
            // SAFETY: as above.
            unsafe { crate::launch(&Settle::KERNEL, launch.config(), launch) };
            let mut new = 0;
            for node in 0..nodes as u32 {
                let leads =
                    |from: &usize| levels[*from] == level && edges[from * degree..(from + 1) * degree].contains(&node);
                if levels[node as usize] == OPEN
                    && let Some(from) = (0..nodes).find(leads)
                {
                    parents[node as usize] = from as u32;
                    new += 1;
                }
            }
            for (of, parent) in levels.iter_mut().zip(&parents) {
                *of = if *of == OPEN && *parent != NO_ROW { level + 1 } else { *of };
            }
            let what = format!("{nodes} nodes, degree {degree}, level {level}");
            assert_eq!(parents_at.to_vec(), parents, "{what}");
            assert_eq!((levels_at.to_vec(), reached.to_vec()[0]), (levels.clone(), 10 + new), "{what}");
        }
    }
}

/// A graph with start nodes, some of them pivots with lists.
struct Entered {
    edges: Vec<u32>,
    degree: usize,
    starts: Vec<u32>,
    pivots: Vec<u32>,
    ends: Vec<u32>,
    wanted: usize,
}

impl Entered {
    /// The beam of a walk as the definition has it: nodes from near to far.
    fn walk(&self, width: usize, order: impl Fn(u32) -> f32) -> Vec<u32> {
        let nearest = |mut nodes: Vec<u32>| {
            nodes.sort_by(|&a, &b| order(a).total_cmp(&order(b)).then(a.cmp(&b)));
            nodes.truncate(width);
            nodes
        };
        let mut entry = Vec::new();
        if self.pivots.is_empty() {
            entry.clone_from(&self.starts);
        } else {
            for pivot in nearest(self.pivots.clone()) {
                let list = self.pivots.iter().position(|&other| other == pivot).unwrap();
                let begin = if list == 0 { 0 } else { self.ends[list - 1] };
                if entry.len() < self.wanted {
                    entry.extend(&self.starts[begin as usize..self.ends[list] as usize]);
                }
            }
        }
        let mut beam = nearest(entry);
        let mut expanded = Vec::new();
        loop {
            let open: Vec<u32> = beam.iter().copied().filter(|node| !expanded.contains(node)).collect();
            let chosen = &open[..open.len().min(EXPANSIONS as usize)];
            if chosen.is_empty() {
                return beam;
            }
            expanded.extend(chosen);
            let mut all = beam.clone();
            for &node in chosen {
                let edges = &self.edges[node as usize * self.degree..][..self.degree];
                all.extend(edges.iter().copied().filter(|&other| other != NO_ROW));
            }
            all.sort();
            all.dedup();
            beam = nearest(all);
        }
    }
}

/// Walks in the graph by each kind of block, and compares the places.
fn check_walk(random: &mut Random, graph: &Entered, key: ElementKey, metric: Metric, width: usize, selected: usize) {
    let (nodes, queries) = (graph.edges.len() / graph.degree, 3);
    let (values, of) = (random.whole(nodes * STRIDE, 6), random.whole(queries * STRIDE, 6));
    let filter: Vec<u32> = (0..nodes.div_ceil(32)).map(|_| random.bits() as u32 | random.bits() as u32).collect();
    let accepts = |node: u32| filter[node as usize / 32] >> (node % 32) & 1 == 1;
    let filtered = random.once_in(2);
    let expected: Vec<u32> = (0..queries)
        .flat_map(|query| {
            let x = &of[query * STRIDE..][..STRIDE];
            let order = |node: u32| badness(metric, distance(metric, x, &values[node as usize * STRIDE..][..STRIDE]));
            let mut places = graph.walk(width, order);
            places.retain(|&node| !filtered || accepts(node));
            places.resize(places.len().max(selected), NO_ROW);
            places.truncate(selected);
            places
        })
        .collect();
    let (queries_at, rows) = (Buffer::from_slice(&stored(key, &of)), Buffer::from_slice(&stored(key, &values)));
    let (edges, starts) = (Buffer::from_slice(&graph.edges), Buffer::from_slice(&graph.starts));
    let (pivots, ends) = (Buffer::from_slice(&graph.pivots), Buffer::from_slice(&graph.ends));
    let filter = Buffer::from_slice(&filter);
    let degree = graph.degree as u32;
    for per_query in [PerQuery::Block, PerQuery::Pair, PerQuery::Warp] {
        // Tables that are cleared often, and others.
        let slots = random.pick(&[least_slots(width as u32, degree), slots(width as u32, degree)]);
        let mut places = Buffer::<u32>::new_poisoned(queries * selected);
        let launch = Walk {
            query_count: queries as u32,
            queries: queries_at.as_ptr(),
            rows: rows.as_ptr(),
            stride: STRIDE as u32,
            metric,
            edges: edges.as_ptr(),
            degree,
            starts: starts.as_ptr(),
            start_count: graph.starts.len() as u32,
            pivots: pivots.as_ptr(),
            pivot_count: graph.pivots.len() as u32,
            ends: ends.as_ptr(),
            wanted: graph.wanted as u32,
            width: width as u32,
            slots,
            filter: filtered.then(|| filter.as_ptr()),
            selected: selected as u32,
            places: places.as_mut_ptr(),
            ..Walk::default()
        };
        // SAFETY: edges and start nodes are rows, and slots are a power of two.
        unsafe { crate::launch(Walk::kernel((key, per_query)), launch.config(key, per_query), launch) };
        let what = format!("{metric:?}, {key:?}, {per_query:?}, {nodes} nodes, beam {width}, {slots} slots");
        assert_eq!(places.to_vec(), expected, "{what}, {} pivots", graph.pivots.len());
    }
}

#[test]
fn walks_find_what_the_definition_finds() {
    let mut random = Random::new(95);
    for (turn, (nodes, degree, width, selected)) in
        [(1, 1, 1, 2), (60, 3, 5, 5), (400, 6, 33, 20), (300, 20, 70, 90), (200, 4, 150, 150)].into_iter().enumerate()
    {
        for pivot_count in [0, 1, 9] {
            let starts = distinct(&mut random, nodes, 1 + nodes / 5, 1 + nodes / 5, None);
            let starts: Vec<u32> = starts.into_iter().filter(|&start| start != NO_ROW).collect();
            let mut pivots = distinct(&mut random, starts.len(), pivot_count, pivot_count, None);
            pivots.retain(|&pivot| pivot != NO_ROW);
            let mut pivots: Vec<u32> = pivots.iter().map(|&pivot| starts[pivot as usize]).collect();
            pivots.sort();
            // Lists may be empty; the last ends with the start nodes.
            let mut ends: Vec<u32> = pivots.iter().map(|_| random.below(starts.len() + 1) as u32).collect();
            ends.sort();
            ends.iter_mut().last().into_iter().for_each(|last| *last = starts.len() as u32);
            let wanted = 1 + random.below(starts.len());
            let graph = Entered { edges: graph(&mut random, nodes, degree), degree, starts, pivots, ends, wanted };
            let key = [ElementKey::U8, ElementKey::F32, ElementKey::I8, ElementKey::Bf16][turn % 4];
            check_walk(&mut random, &graph, key, Metric::UNNORMALISED[(turn + pivot_count) % 2], width, selected);
        }
    }
}
