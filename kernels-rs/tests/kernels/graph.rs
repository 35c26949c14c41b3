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
use warpann_kernels::graph::insert::{AppendOthers, BeginCandidates};
use warpann_kernels::graph::prune::{Count, Fill, Join, Prune};
use warpann_kernels::graph::reach::{Claim, OPEN, Settle};
use warpann_kernels::graph::repair::RepairCandidates;
use warpann_kernels::graph::walk::{EXPANSIONS, PerQuery, Walk, least_slots, slots};
use warpann_kernels::product::element::RowKey;
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
            let key = [RowKey::U8, RowKey::F32, RowKey::I8, RowKey::F16][turn % 4];
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
/// Listed nodes with held candidates, of which some are left to another launch, and some have few candidates.
#[test]
fn held_candidates_are_edges_in_any_case() {
    let mut random = Random::new(96);
    let rows = 90;
    for (turn, (most, degree, whole)) in
        [(1, 4, 0), (12, 4, 4), (40, 9, 0), (70, 32, 32), (64, 40, 20), (8, 16, 16)].into_iter().enumerate()
    {
        let key = [RowKey::F32, RowKey::I8, RowKey::U8, RowKey::Bf16][turn % 4];
        let metric = Metric::UNNORMALISED[turn % 2];
        let values = random.whole(rows * STRIDE, 3);
        let row = |row: u32| &values[row as usize * STRIDE..][..STRIDE];
        let order = |a: u32, b: u32| badness(metric, distance(metric, row(a), row(b)));
        let nodes = distinct(&mut random, rows, 7, 7, None);
        let candidates: Vec<Vec<u32>> = nodes
            .iter()
            .map(|&node| {
                let count = 1 + random.below(most);
                distinct(&mut random, rows, count, most, Some(node))
            })
            .collect();
        let counts = candidates.iter().map(|all| all.iter().filter(|&&other| other != NO_ROW).count());
        let held: Vec<u32> = counts.map(|count| random.below(count.min(degree) + 1) as u32).collect();
        let words: Vec<u32> = nodes.iter().map(|_| random.below(2) as u32).collect();
        for by_codes in [0, 1] {
            let expected = nodes.iter().enumerate().map(|(at, &node)| {
                if words[at] == by_codes {
                    return vec![77; degree];
                }
                let all: Vec<u32> = candidates[at].iter().copied().filter(|&other| other != NO_ROW).collect();
                let (first, others) = all.split_at(held[at] as usize);
                let mut edges = first.to_vec();
                if all.len() <= whole {
                    edges.extend(others);
                } else {
                    // From near to far, those that are not occluded, and then the others.
                    let mut near = others.to_vec();
                    near.sort_by(|&a, &b| order(node, a).partial_cmp(&order(node, b)).unwrap().then(a.cmp(&b)));
                    let (mut chosen, mut rest) = (edges.clone(), Vec::new());
                    for other in near {
                        let occluded = chosen.iter().any(|&some| order(other, some) < order(node, other));
                        if occluded { &mut rest } else { &mut chosen }.push(other);
                    }
                    chosen.truncate(degree);
                    edges = chosen;
                    edges.extend(rest);
                }
                edges.resize(edges.len().max(degree), NO_ROW);
                edges.truncate(degree);
                edges
            });
            let expected: Vec<u32> = expected.collect::<Vec<_>>().concat();
            let (rows_at, candidates_at) =
                (Buffer::from_slice(&stored(key, &values)), Buffer::from_slice(&candidates.concat()));
            let (nodes_at, held_at) = (Buffer::from_slice(&nodes), Buffer::from_slice(&held));
            let words_at = Buffer::from_slice(&words);
            let mut edges = Buffer::from_slice(&vec![77u32; expected.len()]);
            let launch = Prune {
                rows: rows_at.as_ptr(),
                stride: STRIDE as u32,
                metric,
                nodes: Some(nodes_at.as_ptr()),
                count: nodes.len() as u32,
                doubtful: Some(words_at.as_ptr()),
                by_codes,
                held: Some(held_at.as_ptr()),
                whole: whole as u32,
                candidates: candidates_at.as_ptr(),
                most: most as u32,
                edges: edges.as_mut_ptr(),
                degree: degree as u32,
                ..Prune::default()
            };
            // SAFETY: the arrays have these shapes.
            unsafe { crate::launch(Prune::kernel(key), launch.config(), launch) };
            assert_eq!(edges.to_vec(), expected, "{metric:?}, {key:?}, {degree} of {most}, {whole} whole, {held:?}");
        }
    }
}

/// Candidates begin with the held edges of each node and, if wanted, its others. Lists of one length or of several add
/// the accepted nodes that are not there yet.
#[test]
fn candidates_begin_with_held_edges() {
    let mut random = Random::new(97);
    for (degree, most) in [(4, 3), (9, 20), (32, 65), (40, 40), (65, 33)] {
        let rows = 120;
        let edges: Vec<Vec<u32>> = (0..rows)
            .map(|row| {
                let count = random.below(degree + 1);
                distinct(&mut random, rows, count, degree, Some(row as u32))
            })
            .collect();
        let nodes = distinct(&mut random, rows, 6, 6, None);
        // A row's parent is one of the nodes with an edge to it, another row, or none.
        let parent_of = |row: u32| {
            let with_edge: Vec<u32> =
                nodes.iter().copied().filter(|&node| edges[node as usize].contains(&row)).collect();
            match random.below(4) {
                0 => NO_ROW,
                1 => random.below(rows) as u32,
                _ if with_edge.is_empty() => NO_ROW,
                _ => with_edge[random.below(with_edge.len())],
            }
        };
        let parents: Vec<u32> = (0..rows as u32).map(parent_of).collect();
        let is_held = |at: usize, place: usize| parents[edges[nodes[at] as usize][place] as usize] == nodes[at];
        let accepted: Vec<u32> = (0..rows.div_ceil(32)).map(|_| random.bits() as u32 | random.bits() as u32).collect();
        let lists: Vec<Vec<u32>> = nodes
            .iter()
            .map(|_| {
                let count = random.below(most + 1);
                distinct(&mut random, rows, count, most, None)
            })
            .collect();
        let width = degree + most;
        for (others, ragged, filtered) in [(0, false, true), (1, true, false), (1, false, false)] {
            let first: Vec<Vec<u32>> = nodes
                .iter()
                .enumerate()
                .map(|(at, &node)| {
                    let own = edges[node as usize].iter().enumerate().filter(|&(_, &other)| other != NO_ROW);
                    let (some, rest): (Vec<_>, Vec<_>) = own.partition(|&(place, _)| is_held(at, place));
                    some.iter().chain(rest.iter().filter(|_| others == 1)).map(|&(_, &other)| other).collect()
                })
                .collect();
            let counts: Vec<u32> = nodes
                .iter()
                .enumerate()
                .map(|(at, &node)| {
                    let own = edges[node as usize].iter().enumerate();
                    own.filter(|&(place, &other)| other != NO_ROW && is_held(at, place)).count() as u32
                })
                .collect();
            let padded = |mut all: Vec<u32>| {
                all.resize(width, NO_ROW);
                all
            };
            let (edges_at, nodes_at) = (Buffer::from_slice(&edges.concat()), Buffer::from_slice(&nodes));
            let parents_at = Buffer::from_slice(&parents);
            let mut candidates = Buffer::<u32>::new_poisoned(nodes.len() * width);
            let mut held_counts = Buffer::<u32>::new_poisoned(nodes.len());
            let begin = BeginCandidates {
                nodes: nodes_at.as_ptr(),
                count: nodes.len() as u32,
                edges: edges_at.as_ptr(),
                degree: degree as u32,
                parents: parents_at.as_ptr(),
                others,
                candidates: candidates.as_mut_ptr(),
                width: width as u32,
                held_counts: held_counts.as_mut_ptr(),
            };
            // SAFETY: the arrays have these shapes.
            unsafe { crate::launch(&BeginCandidates::KERNEL, begin.config(), begin) };
            let case = format!("degree {degree}, {most} listed, others {others}, ragged {ragged}");
            assert_eq!(candidates.to_vec(), first.iter().cloned().flat_map(padded).collect::<Vec<_>>(), "{case}");
            assert_eq!(held_counts.to_vec(), counts, "{case}");

            let some = |list: &Vec<u32>| list.iter().copied().filter(|&other| other != NO_ROW).collect::<Vec<u32>>();
            let expected: Vec<u32> = (0..nodes.len())
                .flat_map(|at| {
                    let mut all = first[at].clone();
                    for other in some(&lists[at]) {
                        let is_accepted = !filtered || accepted[other as usize / 32] >> (other % 32) & 1 == 1;
                        if other != nodes[at] && is_accepted && !all.contains(&other) {
                            all.push(other);
                        }
                    }
                    padded(all)
                })
                .collect();
            let ends = lists.iter().scan(0, |end, list| {
                *end += some(list).len() as u32;
                Some(*end)
            });
            let begins: Vec<u32> = std::iter::once(0).chain(ends).collect();
            let all = if ragged { lists.iter().flat_map(some).collect() } else { lists.concat() };
            let (lists_at, begins_at) = (Buffer::from_slice(&all), Buffer::from_slice(&begins));
            let accepted_at = Buffer::from_slice(&accepted);
            let append = AppendOthers {
                nodes: nodes_at.as_ptr(),
                count: nodes.len() as u32,
                lists: lists_at.as_ptr(),
                begins: ragged.then(|| begins_at.as_ptr()),
                most: most as u32,
                accepted: filtered.then(|| accepted_at.as_ptr()),
                candidates: candidates.as_mut_ptr(),
                width: width as u32,
            };
            // SAFETY: the arrays have these shapes.
            unsafe { crate::launch(&AppendOthers::KERNEL, append.config(), append) };
            assert_eq!(candidates.to_vec(), expected, "{case}");
        }
    }
}

/// If a neighbour of a node is gone, the nodes to which it led come in its place. They are renumbered and not repeated.
#[test]
fn neighbours_of_lost_neighbours_are_candidates() {
    let mut random = Random::new(99);
    for (old_rows, degree) in [(30, 2), (60, 5), (200, 33), (90, 40)] {
        let edges = graph(&mut random, old_rows, degree);
        let of = |row: u32| {
            let places = &edges[row as usize * degree..][..degree];
            places.iter().copied().take_while(|&other| other != NO_ROW).collect::<Vec<u32>>()
        };
        // Rows that are left keep their order, and some nodes are new.
        let (mut moved, mut before) = (vec![NO_ROW; old_rows], Vec::new());
        for (row, node) in moved.iter_mut().enumerate() {
            if random.below(4) > 0 {
                *node = before.len() as u32;
                before.push(row as u32);
            }
            if random.below(9) == 0 {
                before.push(NO_ROW);
            }
        }
        let (first, width) = (3, RepairCandidates::width(degree as u32) as usize);
        let nodes = first..before.len() as u32;
        let (mut expected, mut counts) = (Vec::new(), Vec::new());
        for node in nodes.clone() {
            let mut all: Vec<u32> = Vec::new();
            let mut is_lost = false;
            let own = if before[node as usize] == NO_ROW { Vec::new() } else { of(before[node as usize]) };
            for other in own {
                let near = if moved[other as usize] == NO_ROW { of(other) } else { vec![other] };
                is_lost |= moved[other as usize] == NO_ROW;
                for other in near.iter().map(|&other| moved[other as usize]) {
                    if other != NO_ROW && other != node && !all.contains(&other) {
                        all.push(other);
                    }
                }
            }
            counts.push(if is_lost { 0 } else { all.len() as u32 });
            all.resize(width, NO_ROW);
            expected.extend(all);
        }
        let (edges_at, moved_at) = (Buffer::from_slice(&edges), Buffer::from_slice(&moved));
        let before_at = Buffer::from_slice(&before);
        let mut candidates = Buffer::<u32>::new_poisoned(expected.len());
        let mut kept = Buffer::<u32>::new_poisoned(counts.len());
        let launch = RepairCandidates {
            first,
            count: nodes.len() as u32,
            before: before_at.as_ptr(),
            moved: moved_at.as_ptr(),
            edges: edges_at.as_ptr(),
            degree: degree as u32,
            candidates: candidates.as_mut_ptr(),
            kept: kept.as_mut_ptr(),
        };
        // SAFETY: the arrays have these shapes, and edges lead to rows.
        unsafe { crate::launch(&RepairCandidates::KERNEL, launch.config(), launch) };
        assert_eq!(candidates.to_vec(), expected, "{old_rows} rows, degree {degree}");
        assert_eq!(kept.to_vec(), counts, "{old_rows} rows, degree {degree}");
    }
}

/// A walk by codes whose nearest nodes are equally near leaves its query to vectors, if codes must tell them apart. A
/// walk that ends at the start nodes follows no edge, and leaves no query.
#[test]
fn walks_may_end_at_the_start_nodes() {
    let mut random = Random::new(98);
    let (nodes, degree, key) = (40, 4, RowKey::I8);
    // Node 39 is nearest to all queries, and leads from node 0 only.
    let mut values = vec![9.0; nodes * STRIDE];
    values[39 * STRIDE..].fill(1.0);
    let mut edges = graph(&mut random, nodes, degree);
    edges.iter_mut().for_each(|other| *other = if *other == 39 { NO_ROW } else { *other });
    edges[..degree].copy_from_slice(&[39, NO_ROW, NO_ROW, NO_ROW]);
    for row in edges.chunks_mut(degree) {
        row.sort();
    }
    let starts: Vec<u32> = (0..6).collect();
    let (queries_at, rows) =
        (Buffer::from_slice(&stored(key, &[0.0; 2 * STRIDE])), Buffer::from_slice(&stored(key, &values)));
    let (edges_at, starts_at) = (Buffer::from_slice(&edges), Buffer::from_slice(&starts));
    for per_query in [PerQuery::Block, PerQuery::Pair, PerQuery::Warp] {
        // The two nearest of the walk are far apart, the third is as near as the second. Of the start nodes all are.
        for (starts_only, told, word) in [(0, 0, 0), (0, 2, 0), (0, 1, 1), (1, 2, 0), (1, 0, 0)] {
            let (mut places, mut doubtful) = (Buffer::<u32>::new_poisoned(2 * 8), Buffer::from_slice(&[0u32, 1]));
            let launch = Walk {
                query_count: 2,
                queries: queries_at.as_ptr(),
                rows: rows.as_ptr(),
                stride: STRIDE as u32,
                edges: edges_at.as_ptr(),
                degree: degree as u32,
                starts: starts_at.as_ptr(),
                start_count: starts.len() as u32,
                wanted: 6,
                width: 8,
                slots: slots(8, degree as u32),
                selected: 8,
                places: places.as_mut_ptr(),
                doubtful: Some(doubtful.as_mut_ptr()),
                by_codes: 1,
                k: 8,
                least: 8,
                told,
                starts_only,
                ..Walk::default()
            };
            // SAFETY: edges and start nodes are rows, and slots are a power of two.
            unsafe { crate::launch(Walk::kernel((key, per_query)), launch.config(key, per_query), launch) };
            let places = places.to_vec();
            let case = format!("{per_query:?}, starts only: {starts_only}, {told} told");
            if starts_only == 1 {
                assert_eq!(places[..8], [0, 1, 2, 3, 4, 5, NO_ROW, NO_ROW], "{case}");
            } else {
                assert_eq!(places[0], 39, "{case}");
            }
            assert_eq!(places[8..], [NO_ROW; 8], "{case}");
            assert_eq!(doubtful.to_vec(), [word, 1], "{case}");
        }
    }
}

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
fn check_walk(random: &mut Random, graph: &Entered, key: RowKey, metric: Metric, width: usize, selected: usize) {
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
            let key = [RowKey::U8, RowKey::F32, RowKey::I8, RowKey::Bf16][turn % 4];
            check_walk(&mut random, &graph, key, Metric::UNNORMALISED[(turn + pivot_count) % 2], width, selected);
        }
    }
}
