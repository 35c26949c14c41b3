//! Tests of HNSW files: files that FAISS and hnswlib wrote (tests/data/hnsw), files that come back, and damage. The
//! files that this library writes are read here by a naive search of hnswlib's format. python/tests/test_hnsw.py has
//! the searches by FAISS and hnswlib themselves.

use std::path::{Path, PathBuf};

use super::*;
use crate::graph::tests::{DIM, K, clustered, recall, walking};
use crate::knn_graph::NO_NODE;
use crate::random::Random;
use crate::{Device, Metric, SearchOptions};

/// Number of vectors of a file of another program.
const COUNT: usize = 40;

fn sample(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data/hnsw").join(name)
}

/// The vectors of these files.
fn sample_vector(i: usize) -> Vec<f32> {
    (0..4).map(|j| ((7 * i * i + 13 * j + 5 * i * j) % 97) as f32).collect()
}

fn loaded(name: &str, metric: Metric) -> GraphIndex<f32> {
    GraphIndex::builder(4)
        .metric(metric)
        .device(Device::Cpu)
        .exact_ratio(0)
        .load_hnsw(sample(name), Open::Auto)
        .unwrap()
}

/// The edges of a row of an index.
fn row(index: &GraphIndex<f32>, row: usize) -> Vec<u32> {
    let graph = index.graph().unwrap().unwrap();
    graph.row(row).iter().copied().filter(|&other| other != NO_NODE).collect()
}

/// Files of FAISS and hnswlib have their vectors, ids, edges and settings here, and a walk with a beam of all vectors
/// finds what a comparison of all does.
#[test]
fn files_of_other_programs_are_read() {
    let info = |name| HnswInfo::read(sample(name)).unwrap();
    let (dim, vectors) = (4, COUNT as u64);
    let of_faiss = HnswInfo { format: HnswFormat::Faiss, dim, metric: Some(Metric::L2), vectors };
    assert_eq!(info("l2.faiss"), of_faiss);
    assert_eq!(info("ip_ids.faiss"), HnswInfo { metric: Some(Metric::InnerProduct), ..of_faiss });
    assert_eq!(info("l2.hnswlib"), HnswInfo { format: HnswFormat::Hnswlib, metric: None, ..of_faiss });

    let by_name = |name, metric, id: fn(usize) -> u64, removed: &[usize], (degree, beam)| {
        let index = loaded(name, metric);
        let live: Vec<usize> = (0..COUNT).filter(|i| !removed.contains(i)).collect();
        let mut ids: Vec<u64> = live.iter().map(|&i| id(i)).collect();
        ids.sort_unstable();
        assert_eq!((index.ids(), index.degree(), index.beam()), (ids, degree, beam), "{name}");
        for i in 0..COUNT {
            let query = sample_vector(i);
            assert_eq!(index.vector(id(i)).ok(), live.contains(&i).then(|| query.clone()), "{name} {i}");
            let distance = |of: usize| -> f32 {
                let terms = sample_vector(of).into_iter().zip(&query);
                match metric {
                    Metric::L2 => terms.map(|(x, y)| (x - y) * (x - y)).sum(),
                    _ => terms.map(|(x, y)| -x * y).sum(),
                }
            };
            let mut all: Vec<(f32, u64)> = live.iter().map(|&of| (distance(of), id(of))).collect();
            all.sort_unstable_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
            let found = index.search_with(&query, 5, &SearchOptions::new().beam(COUNT)).unwrap();
            assert_eq!(found.ids, all[..5].iter().map(|one| one.1).collect::<Vec<_>>(), "{name} {i}");
        }
        index
    };
    let index = by_name("l2.faiss", Metric::L2, |i| i as u64, &[], (6, 24));
    // A node to which no edge led may have got a free place.
    assert!(row(&index, 0).starts_with(&[19]) && row(&index, 39).starts_with(&[24, 32, 3]));
    // Row r is vector 39 − r, because ids descend.
    let index = by_name("ip_ids.faiss", Metric::InnerProduct, |i| 3000 - 7 * i as u64, &[], (8, 16));
    let of_vector = |edges: &[u32]| -> Vec<u32> { edges.iter().map(|&other| 39 - other).collect() };
    let first = [36, 15, 11, 22, 12, 21, 32, 29];
    assert_eq!(of_vector(&row(&index, 39)), first);
    by_name("l2.hnswlib", Metric::L2, |i| 3 * i as u64 + 7, &[0, 11], (8, 64));
    // The inner product is what a file for cosine has.
    assert_eq!(loaded("ip_ids.faiss", Metric::Cosine).metric(), Metric::Cosine);
}

/// Writes an index in a format and returns the bytes of the file.
fn written<T: Element>(index: &GraphIndex<T>, format: HnswFormat) -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("an.hnsw");
    index.save_hnsw(&path, format).unwrap();
    let info = HnswInfo::read(&path).unwrap();
    assert_eq!((info.format, info.dim, info.vectors), (format, index.dim(), index.len() as u64));
    std::fs::read(path).unwrap()
}

fn built(bytes: &[u8], dim: usize, metric: Metric) -> GraphIndex<f32> {
    let builder = GraphIndex::builder(dim).metric(metric).device(Device::Cpu).exact_ratio(0);
    builder.build_parsed(parsed(bytes).unwrap()).unwrap()
}

/// The edges of an index are those of `graph`. For the inner product, nodes to which no edge led have got one in a free
/// place of another node.
fn check_edges(index: &GraphIndex<f32>, graph: &Graph, metric: Metric) {
    let found = index.graph().unwrap().unwrap();
    assert_eq!((found.len(), found.k()), (graph.len(), graph.k()));
    let led_to: std::collections::HashSet<u32> = graph.neighbors().iter().copied().collect();
    for node in 0..graph.len() {
        let same = found.row(node).iter().zip(graph.row(node)).all(|(&found, &edge)| {
            found == edge || (metric == Metric::InnerProduct && edge == NO_NODE && !led_to.contains(&found))
        });
        assert!(same, "{metric} {node}: {:?} {:?}", found.row(node), graph.row(node));
    }
}

/// A file that is read again has the ids, the edges and the widened vectors of the index, in both formats.
fn check_round_trip<T: Element>(metric: Metric) {
    let mut index = walking::<T>(metric);
    index.add_with_ids(&clustered::<T>(900, 1), &(0..900).map(|at| 5 * at + 3).collect::<Vec<_>>()).unwrap();
    index.set_beam(77).unwrap();
    for removed in [false, true] {
        if removed {
            index.remove(&index.ids().into_iter().step_by(9).collect::<Vec<_>>()).unwrap();
        }
        let graph = index.graph().unwrap();
        for format in HnswFormat::ALL {
            let again = built(&written(&index, format), DIM, metric);
            assert_eq!((again.ids(), again.metric(), again.degree()), (index.ids(), metric, 24), "{format}");
            assert_eq!(again.beam(), if format == HnswFormat::Faiss { 77 } else { 64 });
            check_edges(&again, graph.as_ref().unwrap(), metric);
            for id in index.ids() {
                let wide: Vec<f64> = index.vector(id).unwrap().iter().map(|x| x.to_f32().into()).collect();
                let norm = match metric {
                    Metric::Cosine => wide.iter().map(|x| x * x).sum::<f64>().sqrt(),
                    _ => 1.0,
                };
                let is_near = |(x, &y): (&f64, &f32)| (x / norm - f64::from(y)).abs() <= 1e-6 * (x / norm).abs();
                assert!(wide.iter().zip(&again.vector(id).unwrap()).all(is_near), "{format} {metric} {id}");
            }
        }
    }
}

#[test]
fn files_come_back_as_the_graph_that_they_were() {
    check_round_trip::<f32>(Metric::L2);
    check_round_trip::<half::f16>(Metric::Cosine);
    check_round_trip::<half::bf16>(Metric::InnerProduct);
    check_round_trip::<u8>(Metric::InnerProduct);
    check_round_trip::<i8>(Metric::L2);
}

/// A file of hnswlib's format, read by its documentation alone.
struct Naive<'a> {
    bytes: &'a [u8],
    /// The bytes of each node's levels above 0.
    above: Vec<&'a [u8]>,
}

impl<'a> Naive<'a> {
    fn long(&self, at: usize) -> usize {
        u64::from_le_bytes(self.bytes[at..at + 8].try_into().unwrap()) as usize
    }

    fn new(bytes: &'a [u8]) -> Self {
        let mut naive = Naive { bytes, above: Vec::new() };
        let mut rest = &bytes[96 + naive.long(16) * naive.long(24)..];
        while let Some((len, after)) = rest.split_first_chunk::<4>() {
            let (of_node, after) = after.split_at(u32::from_le_bytes(*len) as usize);
            naive.above.push(of_node);
            rest = after;
        }
        assert_eq!(naive.above.len(), naive.long(16));
        naive
    }

    fn node(&self, node: usize) -> &'a [u8] {
        &self.bytes[96 + node * self.long(24)..][..self.long(24)]
    }

    fn edges(&self, node: usize, level: usize) -> Vec<usize> {
        let list = match level {
            0 => self.node(node),
            level => &self.above[node][(level - 1) * 4 * (self.long(56) + 1)..],
        };
        let count = u16::from_le_bytes([list[0], list[1]]) as usize;
        list[4..][..4 * count].chunks(4).map(|edge| u32::from_le_bytes(edge.try_into().unwrap()) as usize).collect()
    }

    fn label(&self, node: usize) -> u64 {
        u64::from_le_bytes(self.node(node)[self.long(32)..].try_into().unwrap())
    }

    /// The squared distance, or the negative inner product.
    fn distance(&self, query: &[f32], metric: Metric, node: usize) -> f64 {
        let vector = self.node(node)[self.long(40)..self.long(32)].chunks(4);
        let vector = vector.map(|x| f64::from(f32::from_le_bytes(x.try_into().unwrap())));
        let terms = vector.zip(query).map(|(x, &y)| (x, f64::from(y)));
        match metric {
            Metric::L2 => terms.map(|(x, y)| (x - y) * (x - y)).sum(),
            _ => terms.map(|(x, y)| -x * y).sum(),
        }
    }

    /// The labels of the nodes that the search of the paper finds (Malkov and Yashunin, algorithms 2 and 5), nearest
    /// first.
    fn search(&self, query: &[f32], metric: Metric, beam: usize) -> Vec<u64> {
        let distance = |node| self.distance(query, metric, node);
        let word = |at: usize| u32::from_le_bytes(self.bytes[at..at + 4].try_into().unwrap()) as usize;
        let mut nearest = word(52);
        for level in (1..=word(48)).rev() {
            loop {
                let next = self.edges(nearest, level).into_iter().min_by(|&a, &b| distance(a).total_cmp(&distance(b)));
                match next.filter(|&next| distance(next) < distance(nearest)) {
                    Some(next) => nearest = next,
                    None => break,
                }
            }
        }
        let mut seen = std::collections::HashSet::from([nearest]);
        let mut found = vec![(distance(nearest), nearest, false)];
        while let Some(at) = found.iter().take(beam).position(|one| !one.2) {
            found[at].2 = true;
            for other in self.edges(found[at].1, 0) {
                if seen.insert(other) {
                    found.push((distance(other), other, false));
                }
            }
            found.sort_by(|a, b| a.0.total_cmp(&b.0));
            found.truncate(beam);
        }
        found.into_iter().map(|one| self.label(one.1)).collect()
    }
}

/// A search of HNSW in the file finds what the index finds: also in clusters that no edge connects,
/// which need the upper levels, and where half of the vectors are equal to others.
#[test]
fn searches_of_files_find_what_the_index_finds() {
    for (metric, twins) in
        [(Metric::L2, false), (Metric::InnerProduct, false), (Metric::Cosine, true), (Metric::L2, true)]
    {
        let (mut base, queries) = (clustered::<f32>(4_000, 1), clustered::<f32>(200, 2));
        if twins {
            base.copy_within(..2_000 * DIM, 2_000 * DIM);
        }
        let mut index = walking::<f32>(metric);
        index.add(&base).unwrap();
        let file = written(&index, HnswFormat::Hnswlib);
        let naive = Naive::new(&file);
        // A walk of HNSW expands one node at a time, and ours eight: with a beam that is half as wide again, it finds
        // as much. Among equal vectors each row takes a place of a beam.
        let beam = 48;
        let their_beam = if twins { 3 * beam } else { beam + beam / 2 };
        let mut found = index.search_with(&queries, K, &SearchOptions::new().beam(beam)).unwrap();
        let truth = index.exact().search(&queries, K).unwrap();
        let ours = recall(&found, &truth);
        let rows = queries.chunks_exact(DIM).zip(found.ids.chunks_exact_mut(K));
        rows.for_each(|(query, ids)| ids.copy_from_slice(&naive.search(query, metric, their_beam)[..K]));
        let theirs = recall(&found, &truth);
        assert!(theirs >= ours - 0.01, "{metric}, twins {twins}: {theirs}, ours {ours}");
    }
}

/// Small indexes, also empty ones, and one vector many times: each vector can be found from the entry point.
#[test]
fn every_vector_of_a_file_can_be_found() {
    for (count, distinct) in [(0, 1), (1, 1), (2, 2), (5, 5), (24, 24), (25, 25), (60, 3), (300, 1), (700, 700)] {
        let some = clustered::<f32>(distinct, 1);
        let base: Vec<f32> = some.iter().copied().cycle().take(count * DIM).collect();
        // One that searches exactly, without a graph.
        let mut index = GraphIndex::<f32>::builder(DIM).device(Device::Cpu).build().unwrap();
        index.add(&base).unwrap();
        let file = written(&index, HnswFormat::Hnswlib);
        if count > 0 {
            let mut found = Naive::new(&file).search(&base[..DIM], Metric::L2, count);
            found.sort_unstable();
            assert_eq!(found, index.ids(), "{count}, {distinct}");
        }
        for format in HnswFormat::ALL {
            let again = built(&written(&index, format), DIM, Metric::L2);
            assert_eq!((again.len(), again.ids()), (count, index.ids()));
        }
    }
}

#[test]
fn arguments_that_do_not_fit_the_file_are_refused() {
    let load = |name: &str, dim, metric| {
        GraphIndex::<f32>::builder(dim).metric(metric).device(Device::Cpu).load_hnsw(sample(name), Open::Read)
    };
    let wrong = load("l2.faiss", 4, Metric::InnerProduct).err();
    assert!(matches!(wrong, Some(Error::Mismatch { expected: "ip", actual: "l2", .. })), "{wrong:?}");
    let wrong = load("ip_ids.faiss", 4, Metric::L2).err();
    assert!(matches!(wrong, Some(Error::Mismatch { expected: "l2", actual: "ip", .. })), "{wrong:?}");
    let wrong = load("l2.hnswlib", 5, Metric::L2).err();
    assert!(matches!(wrong, Some(Error::WrongDimension { expected: 5, actual: 4 })), "{wrong:?}");
    let wrong = load("README.md", 4, Metric::L2).err();
    assert!(matches!(wrong, Some(Error::BadFile { defect: FileDefect::BadHeader(_), .. })), "{wrong:?}");

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("an.faiss");
    let mut index = GraphIndex::<f32>::builder(1).device(Device::Cpu).build().unwrap();
    index.add_with_ids(&[1.0, 2.0], &[3, 1 << 63]).unwrap();
    let refused = index.save_hnsw(&path, HnswFormat::Faiss).err();
    assert!(matches!(refused, Some(Error::OutOfRange { value, .. }) if value == 1 << 63), "{refused:?}");
    assert!(!path.exists());
    index.save_hnsw(&path, HnswFormat::Hnswlib).unwrap();
    assert_eq!(built(&std::fs::read(&path).unwrap(), 1, Metric::L2).ids(), [3, 1 << 63]);
}

/// Files that are cut, have more bytes, or changed ones are refused or give an index that can be searched.
#[test]
fn damaged_files_give_an_error_or_an_index() {
    let mut random = Random::new(5);
    let mut accepted = 0;
    for name in ["l2.faiss", "ip_ids.faiss", "l2.hnswlib"] {
        let whole = std::fs::read(sample(name)).unwrap();
        assert!(read_any_hnsw_bytes(&whole), "{name}");
        for cut in 0..whole.len() {
            assert!(!read_any_hnsw_bytes(&whole[..cut]), "{name} {cut}");
        }
        let mut longer = whole.clone();
        longer.push(0);
        assert!(matches!(parsed(&longer), Err(FileDefect::Oversized { .. })));
        for _ in 0..1_500 {
            let mut damaged = whole.clone();
            for _ in 0..1 + random.below(3) {
                // Every other time in the header, and often a number that is too large.
                let within = if random.below(2) == 0 { 200 } else { whole.len() };
                let at = random.below(within);
                damaged[at] = if random.below(2) == 0 { 0xff } else { random.bits() as u8 };
            }
            accepted += usize::from(read_any_hnsw_bytes(&damaged));
        }
    }
    assert!((100..4_400).contains(&accepted), "{accepted}");
}
