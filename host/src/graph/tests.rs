//! Tests of graph indexes against exact search and the definition of distances. The property `changes` of the crate
//! `warpann-tests` adds random sequences of changes.

use super::links::start_count;
use super::*;
use crate::knn_graph::NO_NODE;
use crate::metric::canonical;
use crate::random::Random;
use crate::{Device, FileDefect, NONE, Neighbors, SearchOptions};

pub(super) const DIM: usize = 24;
pub(super) const K: usize = 10;

/// Vectors around random centres: most neighbours of a vector have its centre, and nothing leads from one centre to
/// another.
pub(super) fn clustered<T: Element>(count: usize, seed: u64) -> Vec<T> {
    let (mut of_centres, mut random) = (Random::new(99), Random::new(seed));
    let centres: Vec<f32> = (0..60 * DIM).map(|_| of_centres.unit() as f32 * 80.0).collect();
    let row = |_| {
        let centre = random.below(60) * DIM;
        (0..DIM).map(|j| T::from_f32(centres[centre + j] + random.unit() as f32 * 30.0)).collect::<Vec<_>>()
    };
    (0..count).flat_map(row).collect()
}

/// An index that walks also where it is small.
pub(super) fn walking<T: Element>(metric: Metric) -> GraphIndex<T> {
    GraphIndex::builder(DIM).metric(metric).device(Device::Cpu).exact_ratio(0).degree(24).build().unwrap()
}

/// The share of the true neighbours that were found.
pub(super) fn recall(found: &Neighbors, truth: &Neighbors) -> f64 {
    let rows = found.ids.chunks_exact(found.k).zip(truth.ids.chunks_exact(truth.k));
    let hits: usize = rows.map(|(found, truth)| truth.iter().filter(|id| found.contains(id)).count()).sum();
    hits as f64 / truth.ids.iter().filter(|&&id| id != NONE).count() as f64
}

/// Fails unless every result is a vector of the index at its canonical distance, once, in the right order.
pub(super) fn check_results<T: Element>(index: &GraphIndex<T>, queries: &[T], found: &Neighbors) {
    for (query, (ids, distances)) in queries.chunks_exact(DIM).zip(found.rows()) {
        for (&id, &distance) in ids.iter().zip(distances) {
            let expected = canonical(index.metric(), query, &index.vector(id).unwrap());
            assert_eq!(distance.to_bits(), expected.to_bits());
        }
        let order = |at: usize| index.metric().order(distances[at - 1], distances[at]).then(ids[at - 1].cmp(&ids[at]));
        assert!((1..ids.len()).all(|at| order(at).is_lt()), "{ids:?} {distances:?}");
    }
}

/// Fails unless every row has a place in the graph that can be reached, no edge twice, and a parent with an edge to it.
pub(super) fn check_graph<T: Element>(index: &GraphIndex<T>) {
    let (links, degree) = (index.kind.links().unwrap(), index.degree());
    let rows: Vec<&[u32]> = links.edges().chunks(degree).collect();
    assert_eq!(rows.len(), index.kind.flat.row_ids().rows());
    let mut reached = vec![false; rows.len()];
    let mut nodes: Vec<usize> = links.starts().iter().map(|&node| node as usize).collect();
    while let Some(node) = nodes.pop() {
        if !std::mem::replace(&mut reached[node], true) {
            nodes.extend(rows[node].iter().filter(|&&other| other != NO_NODE).map(|&other| other as usize));
        }
    }
    // A row that cannot be reached has no edges, and its vector is that of one that can.
    let vector = |row: usize| index.kind.rows()[row * DIM..][..DIM].iter().map(|x| x.to_f32()).collect::<Vec<f32>>();
    let mut equal = 0;
    for row in (0..rows.len()).filter(|&row| !reached[row]) {
        equal += 1;
        assert!(rows[row].iter().all(|&other| other == NO_NODE));
        assert!((0..rows.len()).any(|other| reached[other] && vector(other) == vector(row)), "{row} cannot be reached");
    }
    assert_eq!(index.statistics().equal, equal);
    for (node, row) in rows.iter().enumerate() {
        let mut some: Vec<u32> = row.iter().copied().take_while(|&other| other != NO_NODE).collect();
        assert!(row[some.len()..].iter().all(|&other| other == NO_NODE));
        some.sort_unstable();
        some.dedup();
        assert_eq!(some.len(), row.iter().filter(|&&other| other != NO_NODE).count());
        assert!(!some.contains(&(node as u32)));
    }
    assert_eq!(index.statistics().reachable, rows.len() as u64);
}

fn exact_of<T: Element>(index: &GraphIndex<T>, queries: &[T], options: &SearchOptions<'_>) -> Neighbors {
    index.exact().search_with(queries, K, options).unwrap()
}

/// Vectors of bits around random centres, from which a bit differs in one of eight cases.
fn clustered_bits(count: usize, seed: u64) -> Vec<u8> {
    let (mut of_centres, mut random) = (Random::new(99), Random::new(seed));
    let centres: Vec<u8> = (0..60 * DIM).map(|_| of_centres.below(256) as u8).collect();
    let row = |_| {
        let centre = random.below(60) * DIM;
        let flipped = |random: &mut Random| (0..8).fold(0, |byte, _| byte << 1 | u8::from(random.below(8) == 0));
        (0..DIM).map(|j| centres[centre + j] ^ flipped(&mut random)).collect::<Vec<_>>()
    };
    (0..count).flat_map(row).collect()
}

fn check_recall<T: Element>(metric: Metric, least: f64) {
    check_recall_of(metric, &clustered::<T>(4_000, 1), &clustered::<T>(100, 2), least);
}

fn check_recall_of<T: Element>(metric: Metric, base: &[T], queries: &[T], least: f64) {
    let mut index = walking::<T>(metric);
    index.add(base).unwrap();
    check_graph(&index);
    let found = index.search(queries, K).unwrap();
    check_results(&index, queries, &found);
    let recall = recall(&found, &exact_of(&index, queries, &SearchOptions::new()));
    assert!(recall >= least, "{} {metric}: recall {recall}", T::TYPE);
    // One beam as wide as the index meets every vector that can be reached.
    let all = SearchOptions::new().beam(4_000);
    assert_eq!(index.search_with(&queries[..DIM], K, &all).unwrap(), exact_of(&index, &queries[..DIM], &all));
}

#[test]
fn a_modest_beam_finds_nearly_all_neighbours_in_clustered_vectors() {
    check_recall::<f32>(Metric::L2, 0.97);
    check_recall::<half::f16>(Metric::Cosine, 0.97);
    check_recall::<i8>(Metric::InnerProduct, 0.95);
    check_recall::<u8>(Metric::L2, 0.97);
    check_recall::<half::bf16>(Metric::Cosine, 0.97);
    check_recall_of(Metric::Hamming, &clustered_bits(4_000, 1), &clustered_bits(100, 2), 0.97);
}

/// The narrowest beam that reaches the recall is kept, also in the file.
#[test]
fn a_tuned_index_finds_what_was_asked_for() {
    let (base, queries) = (clustered::<f32>(4_000, 1), clustered::<f32>(60, 2));
    let mut index = walking::<f32>(Metric::L2);
    index.add(&base).unwrap();
    let truth = exact_of(&index, &queries, &SearchOptions::new());
    for target in [0.8, 0.97, 1.0] {
        let (beam, reached) = index.tune(&queries, K, target).unwrap();
        assert_eq!(index.beam(), beam);
        let at = |beam| recall(&index.search_with(&queries, K, &SearchOptions::new().beam(beam)).unwrap(), &truth);
        assert!(reached >= target && at(beam) == reached);
        // Beams are at least 16 wide.
        assert!(beam == 16 || beam > 16 && at(beam - 1) < target, "{beam} for {target}");
        let loaded = GraphIndex::<f32>::from_bytes(&index.to_bytes().unwrap(), Device::Cpu, None).unwrap();
        assert_eq!(loaded.beam(), beam);
    }
    let before = index.beam();
    for target in [0.0, 1.1, f64::NAN] {
        let error = index.tune(&queries, K, target).unwrap_err();
        assert!(matches!(error, Error::RecallOutOfReach { .. }));
        assert!(error.to_string().contains("a beam of all vectors has 1"), "{error}");
    }
    let error = index.tune(&[], K, 0.9);
    assert!(matches!(error, Err(Error::NoTrueNeighbors { queries: 0, vectors: 4_000 })), "{error:?}");
    assert!(matches!(index.tune(&queries, 0, 0.9), Err(Error::Zero { what: "k" })));
    assert_eq!(index.beam(), before);
    let mut few = GraphIndex::<f32>::builder(DIM).device(Device::Cpu).build().unwrap();
    few.add(&base[..100 * DIM]).unwrap();
    assert_eq!(few.tune(&queries, K, 1.0).unwrap(), (64, 1.0));
    few.remove(&(0..100).collect::<Vec<_>>()).unwrap();
    let error = few.tune(&queries, K, 1.0);
    assert!(matches!(error, Err(Error::NoTrueNeighbors { queries: 60, vectors: 0 })), "{error:?}");
    assert_eq!(few.beam(), 64);
}

/// Walks by codes find about what walks by vectors find, and the results have the same distances.
#[test]
fn codes_keep_the_recall() {
    let bases = [1, 3, 4].map(|seed| clustered::<f32>(5_000, seed));
    let (base, queries) = (&bases[0], clustered::<f32>(100, 2));
    for metric in Metric::OF_NUMBERS {
        // The recall of a graph under inner product varies by .01 from base to base, so means over bases are compared.
        let recalls = bases.each_ref().map(|base| {
            let [coded, plain] = [true, false].map(|codes| {
                let builder = GraphIndex::<f32>::builder(DIM).metric(metric).device(Device::Cpu).exact_ratio(0);
                let mut index = builder.degree(24).codes(codes).build().unwrap();
                index.add(&base[..4_000 * DIM]).unwrap();
                index.add(&base[4_000 * DIM..]).unwrap();
                index.remove(&[5, 7, 4_999]).unwrap();
                assert_eq!(index.statistics().codes, codes, "{metric}");
                index
            });
            let truth = exact_of(&plain, &queries, &SearchOptions::new());
            [&coded, &plain].map(|index| {
                let found = index.search(&queries, K).unwrap();
                check_results(index, &queries, &found);
                let bytes = index.to_bytes().unwrap();
                let loaded = GraphIndex::<f32>::from_bytes(&bytes, Device::Cpu, None).unwrap();
                assert_eq!(loaded.statistics().codes, index.statistics().codes);
                assert_eq!(loaded.to_bytes().unwrap(), bytes);
                recall(&found, &truth)
            })
        });
        let [of_coded, of_plain] = [0, 1].map(|at| recalls.iter().map(|of| of[at]).sum::<f64>() / 3.0);
        assert!(of_coded >= of_plain - 0.01 && of_coded >= 0.95, "{metric}: {recalls:?}");
    }
    // Damaged numbers of the coder, with right checksums.
    let mut index = walking::<f32>(Metric::L2);
    index.add(&base[..400 * DIM]).unwrap();
    let bytes = index.to_bytes().unwrap();
    for (at, number) in [(64, f32::NAN), (64, f32::INFINITY), (64, -1.0), (bytes.len() - 4, f32::NAN)] {
        let mut damaged = bytes.clone();
        damaged[at..at + 4].copy_from_slice(&number.to_le_bytes());
        super::file::mend(&mut damaged);
        let error = GraphIndex::<f32>::from_bytes(&damaged, Device::Cpu, None).unwrap_err();
        assert!(matches!(error, Error::BadFile { defect: FileDefect::Inconsistent("codes that no graph has"), .. }));
    }
}

#[test]
fn filters_keep_the_recall_at_every_selectivity() {
    let (base, queries) = (clustered::<f32>(6_000, 1), clustered::<f32>(100, 2));
    let mut index = walking::<f32>(Metric::L2);
    index.add(&base).unwrap();
    let plain = recall(&index.search(&queries, K).unwrap(), &exact_of(&index, &queries, &SearchOptions::new()));
    for percent in [1, 10, 50, 90, 99] {
        let filter = index.filter(|id| id.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32 > (percent << 32) / 100);
        let options = SearchOptions::new().filter(&filter);
        let found = index.search_with(&queries, K, &options).unwrap();
        check_results(&index, &queries, &found);
        assert!(found.ids.iter().all(|&id| filter.get(id as usize)));
        let recall = recall(&found, &exact_of(&index, &queries, &options));
        assert!(recall >= plain - 0.01, "{percent} % excluded: {recall}, unfiltered {plain}");
    }
    // Vectors far from all queries: walks find too few of them, so that the search becomes exact.
    let queries = &queries[..3 * DIM];
    let far = exact_of(&index, &queries[..DIM], &SearchOptions::new()).ids;
    let filter = index.filter(|id| !far.contains(&id) && id % 500 == 7);
    let options = SearchOptions::new().filter(&filter).beam(1);
    assert_eq!(index.search_with(queries, K, &options).unwrap(), exact_of(&index, queries, &options));
    let none = index.filter(|_| false);
    assert_eq!(index.search_with(queries, K, &SearchOptions::new().filter(&none)).unwrap().ids, [NONE; 3 * K]);
}

/// Additions in portions, replacements and removals leave a graph about as good as one that is made at once.
#[test]
fn a_changed_index_is_as_good_as_a_new_one() {
    let (base, queries) = (clustered::<f32>(5_000, 1), clustered::<f32>(100, 2));
    let mut rebuilt = walking::<f32>(Metric::L2);
    rebuilt.add(&base).unwrap();
    let truth = exact_of(&rebuilt, &queries, &SearchOptions::new());
    let expected = recall(&rebuilt.search(&queries, K).unwrap(), &truth);

    let mut index = walking::<f32>(Metric::L2);
    let ids: Vec<u64> = (0..5_000).collect();
    let part = |ids: std::ops::Range<usize>| &base[ids.start * DIM..ids.end * DIM];
    // Vectors that will be replaced or removed.
    index.add(&clustered::<f32>(2_500, 3)).unwrap();
    index.upsert(part(500..2_500), &ids[500..2_500]).unwrap();
    check_graph(&index);
    index.add_with_ids(part(2_500..4_000), &ids[2_500..4_000]).unwrap();
    check_graph(&index);
    let strangers: Vec<u64> = (9_000..10_000).collect();
    index.add_with_ids(&clustered::<f32>(1_000, 4), &strangers).unwrap();
    index.remove(&ids[..500]).unwrap();
    check_graph(&index);
    let found = index.search(&queries, K).unwrap();
    assert!(found.ids.iter().all(|&id| id >= 500));
    check_results(&index, &queries, &found);
    // These ids lie between others, so that the rows move.
    index.add_with_ids(part(4_000..5_000), &ids[4_000..]).unwrap();
    check_graph(&index);
    index.remove(&strangers).unwrap();
    index.upsert(part(0..500), &ids[..500]).unwrap();
    check_graph(&index);
    assert_eq!((index.len(), index.ids()), (5_000, ids));
    let found = index.search(&queries, K).unwrap();
    check_results(&index, &queries, &found);
    let changed = recall(&found, &truth);
    assert!(changed >= expected - 0.01, "{changed}, rebuilt {expected}");

    let bytes = index.to_bytes().unwrap();
    let loaded = GraphIndex::<f32>::from_bytes(&bytes, Device::Cpu, None).unwrap();
    assert_eq!(loaded.search(&queries, K).unwrap(), found);
    assert_eq!(loaded.to_bytes().unwrap(), bytes);
}

/// A class of vectors that comes late, in parts or one by one, has as many of the start nodes as its share of the rows.
#[test]
fn late_classes_have_start_nodes() {
    let (mut index, first) = (walking::<f32>(Metric::L2), 1_000);
    index.add(&clustered::<f32>(first, 1)).unwrap();
    let far: Vec<f32> = clustered::<f32>(500, 2).iter().map(|x| x + 1e4).collect();
    let (parts, singles) = far.split_at(470 * DIM);
    for part in parts.chunks(100 * DIM).chain(singles.chunks(DIM)) {
        index.add(part).unwrap();
        let (links, rows) = (index.kind.links().unwrap(), index.len());
        let (starts, late) = (links.starts(), links.starts().iter().filter(|&&row| row as usize >= first).count());
        let expected = start_count(rows);
        assert!(starts.len() <= expected && 64 * (expected - starts.len()) <= expected, "{} starts", starts.len());
        // A class that grows has its share of the new start nodes only: the old ones stay.
        assert!(late >= starts.len() - start_count(first), "{late} of {} starts", starts.len());
        check_graph(&index);
    }
}

/// The same vectors in the same order give the same graph with any number of threads.
#[test]
fn the_graph_does_not_depend_on_threads() {
    let base = clustered::<f32>(1_500, 5);
    let made = |threads: usize| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| {
            let mut index = walking::<f32>(Metric::L2);
            index.add(&base[..1_000 * DIM]).unwrap();
            index.add(&base[1_000 * DIM..]).unwrap();
            index.to_bytes().unwrap()
        })
    };
    assert_eq!(made(1), made(3));
}

/// Vectors that are all equal, and groups of them: nothing but the repair leads from one to the next.
#[test]
fn graphs_of_equal_vectors_are_connected() {
    for groups in [1, 7] {
        let base: Vec<f32> = (0..600 * DIM).map(|at| (at / DIM % groups) as f32).collect();
        let mut index = walking::<f32>(Metric::L2);
        index.add(&base[..400 * DIM]).unwrap();
        check_graph(&index);
        assert_eq!(index.statistics().equal, 400 - groups as u64);
        index.add(&base[400 * DIM..]).unwrap();
        check_graph(&index);
        assert_eq!(index.statistics().equal, 600 - groups as u64);
        index.remove(&(0..600).step_by(3).collect::<Vec<u64>>()).unwrap();
        check_graph(&index);
        let found = index.search(&base[..DIM], 1).unwrap();
        assert_eq!(found.distances, [0.0]);
    }
}

#[test]
fn damaged_files_are_refused() {
    let mut index = walking::<u8>(Metric::Cosine);
    index.add(&clustered::<u8>(300, 1)).unwrap();
    index.remove(&[3, 299]).unwrap();
    let bytes = index.to_bytes().unwrap();
    let load = |bytes: &[u8]| match GraphIndex::<u8>::from_bytes(bytes, Device::Cpu, None) {
        Ok(index) => Ok(index.to_bytes().unwrap()),
        Err(Error::BadFile { defect, .. }) => Err(defect),
        Err(other) => panic!("{other}"),
    };
    assert_eq!(load(&bytes).unwrap(), bytes);
    for at in (0..bytes.len()).step_by(37).chain(0..256) {
        let mut damaged = bytes.clone();
        damaged[at] ^= 1 << (at % 8);
        assert!(load(&damaged).is_err(), "byte {at}");
    }
    for length in [0, 7, 8, 100, 128, 300, bytes.len() - 1] {
        assert!(load(&bytes[..length]).is_err(), "{length} bytes");
    }
    let longer = [&bytes[..], &[0]].concat();
    let expected = bytes.len() as u64;
    assert_eq!(load(&longer).unwrap_err(), FileDefect::Oversized { expected, actual: expected + 1 });
    assert!(matches!(
        GraphIndex::<f32>::from_bytes(&bytes, Device::Cpu, None),
        Err(Error::BadFile { defect: FileDefect::WrongElement { .. }, .. })
    ));

    // Values that no saved graph has, with right checksums.
    let with = |at: usize, number: u32| {
        let mut changed = bytes.clone();
        changed[at..at + 4].copy_from_slice(&number.to_le_bytes());
        super::file::mend(&mut changed);
        load(&changed).unwrap_err()
    };
    let edges = bytes.len() - 298 * 24 * 4;
    let edge = |node: usize, place: usize| edges + (node * 24 + place) * 4;
    let no_graph = FileDefect::Inconsistent("edges that no graph has");
    let second = bytemuck::pod_read_unaligned::<u32>(&bytes[edge(0, 1)..][..4]);
    for (at, number) in
        [(edge(5, 0), 298), (edge(5, 0), 5), (edge(0, 0), NO_NODE), (edge(0, 0), second), (edges - 4, 298)]
    {
        assert_eq!(with(at, number), no_graph, "{number} at {at}");
    }
    assert_eq!(with(12, 3), FileDefect::Inconsistent("a degree that no graph has"));
    assert_eq!(with(16, 0), FileDefect::Inconsistent("a beam of 0"));
    let no_codes = FileDefect::Inconsistent("codes that no graph has");
    // A scale without shifts changes the length.
    assert_eq!(
        with(64, 1),
        FileDefect::Truncated { expected: bytes.len() as u64 + 4 * DIM as u64, actual: bytes.len() as u64 }
    );
    assert_eq!(with(68, 2), no_codes);
    assert_eq!(with(72, 1), no_codes);
    assert_eq!(with(80, 1), FileDefect::BadHeader("reserved bytes are not zero"));
    assert_eq!(with(8, 2), FileDefect::Version { found: 2, known: 1 });
    // A vector to which nothing leads.
    let mut alone = bytes.clone();
    for place in (edges..alone.len()).step_by(4) {
        if alone[place..place + 4] == 7u32.to_le_bytes() {
            let node = (place - edges) / 96;
            // Another neighbour that the node has already would be refused for another reason.
            let free = (8..298).find(|other: &u32| {
                let row = &bytes[edge(node, 0)..edge(node + 1, 0)];
                *other as usize != node && !row.chunks(4).any(|edge| edge == other.to_le_bytes())
            });
            alone[place..place + 4].copy_from_slice(&free.unwrap().to_le_bytes());
        }
    }
    super::file::mend(&mut alone);
    assert!(!index.kind.links().unwrap().starts().contains(&7));
    assert_eq!(load(&alone).unwrap_err(), no_graph);
}

#[test]
fn bad_arguments_are_refused_and_change_nothing() {
    let builder = || GraphIndex::<f32>::builder(2).device(Device::Cpu);
    assert!(matches!(
        builder().degree(3).build(),
        Err(Error::OutOfRange { what: "degree", value: 3, least: 4, most: 256 })
    ));
    assert!(matches!(builder().degree(257).build(), Err(Error::OutOfRange { what: "degree", value: 257, .. })));
    assert!(matches!(builder().beam(0).build(), Err(Error::Zero { what: "beam" })));
    let mut index = builder().build().unwrap();
    index.add(&[0.0, 0.0, 1.0, 0.0]).unwrap();
    assert!(matches!(index.set_beam(0), Err(Error::Zero { what: "beam" })));
    assert!(matches!(index.search(&[0.0; 2], 0), Err(Error::Zero { what: "k" })));
    assert!(matches!(index.search(&[0.0; 3], 1), Err(Error::Ragged { what: "components", len: 3, size: 2 })));
    let none = SearchOptions::new().beam(0);
    assert!(matches!(index.search_with(&[0.0; 2], 1, &none), Err(Error::Zero { what: "beam" })));
    assert!(matches!(index.search(&[0.0; 2], usize::MAX), Err(Error::ResultTooLarge { .. })));
    assert!(matches!(index.add(&[f32::NAN, 0.0]), Err(Error::NotFinite { row: 0, column: 0, .. })));
    assert!(matches!(index.add_with_ids(&[0.0; 2], &[1]), Err(Error::DuplicateId { id: 1 })));
    assert!(matches!(index.remove(&[2]), Err(Error::UnknownId { id: 2, .. })));
    let mut other = GraphIndex::<f32>::builder(2).metric(Metric::Cosine).device(Device::Cpu).build().unwrap();
    assert!(matches!(other.merge(&index), Err(Error::Incompatible { what: "metric" })));
    assert_eq!(index.ids(), [0, 1]);
    assert_eq!(index.statistics().edges, 0);
}

/// The candidates come from inverted files of the vectors on the device, or on the CPU if the device has no memory for
/// these.
fn same_in_any_memory<T: Element>() {
    let base = clustered::<T>(600, 1);
    let made = |device: Device, budget: Option<u64>| {
        let mut builder = GraphIndex::<T>::builder(DIM).device(device).exact_ratio(0).degree(6);
        if let Some(bytes) = budget {
            builder = builder.memory_budget(bytes);
        }
        let mut index = builder.build().unwrap();
        index.add(&base).unwrap();
        let graph = index.graph().unwrap();
        graph.unwrap_or_else(|| panic!("no graph of {} with {budget:?}", T::TYPE.name()))
    };
    let (cpu, bytes) = (made(Device::Cpu, None), (base.len() * size_of::<f32>()) as u64);
    // An exact search needs a part of the last one.
    for budget in [None, Some(20 * bytes), Some(3 * bytes)] {
        assert!(made(Device::Emulator, budget) == cpu, "{} {budget:?}", T::TYPE.name());
    }
}

#[test]
fn a_device_makes_the_same_graph_in_any_memory() {
    same_in_any_memory::<f32>();
    same_in_any_memory::<u8>();
}

/// Two rows that are no nodes get the vector under which one of them is still listed: both join one group, once.
#[test]
fn rows_join_a_group_once() {
    let mut rows: Vec<f32> = (0..40).map(|row| row as f32).collect();
    // Rows 1 and 2 are twins of row 0.
    rows[..3].fill(0.0);
    let mut index = GraphIndex::<f32>::builder(1).device(Device::Cpu).exact_ratio(0).build().unwrap();
    index.add(&rows).unwrap();
    index.add(&[99.0]).unwrap();
    // Row 20 is listed under 20 and 500, and becomes a twin of row 1.
    index.upsert(&[500.0], &[20]).unwrap();
    index.upsert(&[500.0], &[1]).unwrap();
    index.upsert(&[20.0, 20.0], &[2, 20]).unwrap();
    index.add(&[20.0]).unwrap();
    index.upsert(&[777.0], &[2]).unwrap();
    index.upsert(&[600.0], &[20]).unwrap();
    let nearest = |value: f32| index.search(&[value], 1).map(|found| (found.ids[0], found.distances[0])).unwrap();
    assert_eq!([20.0, 600.0, 777.0, 500.0].map(nearest), [(41, 0.0), (20, 0.0), (2, 0.0), (1, 0.0)]);
}
