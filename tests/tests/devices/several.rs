//! Several devices give the results of one: the case tables on CPU replicas and shards, what the tables do not have, a
//! few on the emulator, and on two GPUs where there are two
//! (`cargo test -p warpann-tests --test devices several -- --ignored`).

use std::ops::ControlFlow;

use warpann::SearchOptions;
use warpann::ivf::{Encoding, IvfIndex};

use warpann::kmeans::KMeans;
use warpann::{Device, Error, Filter, FlatIndex, Metric, NONE, NoDeviceReason, Placement};
use warpann_tests::cases::{Size, VectorData, search_cases};
use warpann_tests::data;
use warpann_tests::ivf::cases::ivf_cases;
use warpann_tests::{ivf, runner};

/// Replicas, shards, and both; more shards than some cases have vectors.
const CPUS: [&str; 4] = ["cpu,cpu", "cpu+cpu", "cpu+cpu,cpu+cpu", "cpu+cpu+cpu+cpu+cpu"];

fn placement(text: &str) -> Placement {
    text.parse().unwrap()
}

/// Runs one of each `every` small cases; each placement runs different ones.
fn tables(placements: &[&str], every: usize) {
    for (at, text) in placements.iter().enumerate() {
        let small = search_cases().into_iter().filter(|case| case.size == Size::Small);
        for case in small.skip(at).step_by(every) {
            runner::search(&case, placement(text)).unwrap_or_else(|failure| panic!("{failure}"));
        }
        let small = ivf_cases().into_iter().filter(|case| case.size == Size::Small);
        for case in small.skip(at).step_by(every) {
            ivf::runner::run(&case, placement(text)).unwrap_or_else(|failure| panic!("{failure}"));
        }
    }
}

#[test]
fn the_tables_on_several_cpus() {
    tables(&CPUS, 4);
}

#[test]
fn large_cases_on_several_cpus() {
    let large = search_cases().into_iter().filter(|case| case.size == Size::Large && case.nq >= 64);
    for (case, text) in large.step_by(9).take(4).zip(CPUS) {
        runner::search(&case, placement(text)).unwrap_or_else(|failure| panic!("{failure}"));
    }
}

/// An index that grows by uneven portions, shrinks where it can, and is kept in a file; against one CPU, to the bit.
fn life(text: &str, n: usize, encoding: Encoding) {
    let (dim, nq, lists) = (8, 40, 7);
    let vectors = data::vectors::<f32>(VectorData::Duplicates, dim, n, nq, 5);
    let ids: Vec<u64> = (0..n as u64).map(|at| at * 7 % n as u64 * 3 + 1).collect();
    let build = |placement: Placement| -> Result<IvfIndex, Error> {
        let builder = IvfIndex::<f32>::builder(dim, lists).metric(Metric::L2).encoding(encoding);
        let mut index = builder.device(placement).iterations(2).build()?;
        index.train(&vectors.base)?;
        let mut from = 0;
        for to in [1, n / 3, n / 3 + 2, n] {
            index.add_with_ids(&vectors.base[from * dim..to * dim], &ids[from..to])?;
            from = to;
        }
        let gone: Vec<u64> = ids.iter().copied().filter(|id| id % 5 == 0).collect();
        index.remove(&gone)?;
        Ok(index)
    };
    let one = build(Device::Cpu.into()).unwrap();
    let several = build(placement(text)).unwrap();
    let folder = std::env::temp_dir().join(format!("warpann-several-{}-{n}-{}", std::process::id(), text.len()));
    several.save(&folder).unwrap();
    let loaded = IvfIndex::<f32>::load(&folder, placement(text), None).unwrap();
    std::fs::remove_file(&folder).unwrap();
    let even = one.filter(|id| id % 2 == 0);
    for (k, probes, filter) in
        [(1, 1, None), (10, 3, Some(Filter::Bits(&even))), (n + 3, lists, None), (3, lists, Some(Filter::Bits(&even)))]
    {
        let options = SearchOptions::new().probes(probes).filter(filter);
        let expected = one.search_with(&vectors.queries, k, &options).unwrap();
        let radius = expected.distances.iter().copied().filter(|d| d.is_finite()).fold(0.0, f32::max) / 2.0;
        let near = one.range_search(&vectors.queries, radius, &options).unwrap();
        for index in [&several, &loaded] {
            assert_eq!(index.search_with(&vectors.queries, k, &options).unwrap(), expected, "{text} {n} k = {k}");
            assert_eq!(index.range_search(&vectors.queries, radius, &options).unwrap(), near, "{text} {n} k = {k}");
        }
    }
}

const PQ: Encoding = Encoding::Pq { sub_quantizers: 4, bits: 4, rotate: true };

#[test]
fn an_inverted_file_lives_on_several_cpus_as_on_one() {
    for text in CPUS {
        life(text, 2_500, Encoding::Flat);
        life(text, 40, PQ);
    }
    life(CPUS[2], 2_500, PQ);
}

/// Additions one by one, few vectors, moves; against one CPU, to the bit.
fn exact_life<T: data::Component>(text: &str, n: usize) {
    let (dim, nq) = (5, 40);
    let vectors = data::vectors::<T>(VectorData::Duplicates, dim, n, nq, 3);
    let build = |placement: Placement| {
        let mut index = FlatIndex::<T>::new(dim, Metric::Cosine, placement).unwrap();
        for (at, row) in vectors.base.chunks(dim).enumerate().take(9) {
            index.add(row).unwrap();
            assert_eq!(index.vector(at as u64).unwrap(), row);
        }
        index.add(&vectors.base[(9 * dim).min(n * dim)..]).unwrap();
        index
    };
    let one = build(Device::Cpu.into());
    let mut several = build(placement(text));
    assert_eq!(several.len(), n);
    for k in [1, 7, n + 2] {
        let expected = one.search(&vectors.queries, k).unwrap();
        assert_eq!(several.search(&vectors.queries, k).unwrap(), expected, "{text}, {n} vectors, k = {k}");
        assert_eq!(several.search(&vectors.queries[..dim], k).unwrap().ids, expected.ids[..k]);
    }
    let expected = one.search(&vectors.queries, 4).unwrap();
    for text in ["cpu", "cpu+cpu+cpu", text] {
        several.move_to(placement(text)).unwrap();
        assert_eq!(several.search(&vectors.queries, 4).unwrap(), expected, "moved to {text}");
        assert!((0..n as u64).all(|id| several.reconstruct(id).unwrap() == one.reconstruct(id).unwrap()));
    }
}

#[test]
fn an_exact_index_lives_on_several_cpus_as_on_one() {
    for text in CPUS {
        exact_life::<f32>(text, 700);
        exact_life::<u8>(text, 3);
    }
    let empty = FlatIndex::<f32>::new(2, Metric::L2, placement("cpu+cpu")).unwrap();
    assert_eq!(empty.search(&[0.0; 4], 1).unwrap().ids, [NONE; 2]);
}

/// k-means on several devices, against one CPU, to the bit.
fn clusters(text: &str, points: usize) {
    let dim = 6;
    let vectors = data::vectors::<f32>(VectorData::Duplicates, dim, points, 1, 8);
    let weights: Vec<f32> = (0..points).map(|at| (at % 4) as f32 * 0.3).collect();
    let plain = KMeans::new(9).iterations(3).labels(true).points_per_centroid(None);
    let all = [plain.clone(), plain.clone().spherical(true), plain.clone().balanced(Some(1.2))];
    for (settings, weights) in all.iter().flat_map(|settings| [(settings, None), (settings, Some(&weights[..]))]) {
        let train = |placement: Placement| {
            settings
                .clone()
                .device(placement)
                .train_watched(&vectors.base, dim, weights, &mut |_| ControlFlow::Continue(()))
                .unwrap()
        };
        let (one, several) = (train(Device::Cpu.into()), train(placement(text)));
        assert_eq!(several.centroids, one.centroids, "{text} {settings:?}");
        assert_eq!((&several.labels, &several.objectives), (&one.labels, &one.objectives), "{text} {settings:?}");
        assert_eq!(
            several.assign(&vectors.base, placement(text)).unwrap(),
            one.assign(&vectors.base, Device::Cpu).unwrap()
        );
    }
}

#[test]
fn k_means_on_several_cpus_is_that_of_one() {
    for text in ["cpu,cpu", "cpu+cpu+cpu"] {
        clusters(text, 5_000);
    }
    // Too few points for two: one does it.
    clusters("cpu,cpu", 300);
}

#[test]
fn k_means_on_the_emulator_beside_a_cpu() {
    let dim = 3;
    let vectors = data::vectors::<f32>(VectorData::Duplicates, dim, 1_100, 1, 8);
    let train = |text: &str| {
        let settings = KMeans::new(3).iterations(2).labels(true).points_per_centroid(None).device(placement(text));
        settings.train(&vectors.base, dim).unwrap()
    };
    let (one, several) = (train("cpu"), train("emulator,cpu"));
    assert_eq!((several.centroids, several.labels), (one.centroids, one.labels));
    assert_eq!(several.device, placement("emulator,cpu"));
}

#[test]
fn shards_and_replicas_on_the_emulator() {
    let vectors = data::vectors::<f32>(VectorData::Duplicates, 4, 70, 20, 2);
    for encoding in [Encoding::Flat, Encoding::Pq { sub_quantizers: 2, bits: 4, rotate: false }] {
        let build = |text: &str| {
            let builder = IvfIndex::<f32>::builder(4, 3).encoding(encoding).iterations(2).device(Device::Cpu);
            let mut index = builder.build().unwrap();
            index.train(&vectors.base).unwrap();
            index.add(&vectors.base).unwrap();
            index.move_to(placement(text)).unwrap();
            index.search_with(&vectors.queries, 5, &SearchOptions::new().probes(2)).unwrap()
        };
        assert_eq!(build("emulator+emulator"), build("cpu"), "{encoding:?}");
    }
    let search = |text: &str| {
        let mut index = FlatIndex::<f32>::new(4, Metric::L2, placement(text)).unwrap();
        index.add(&vectors.base).unwrap();
        index.search(&vectors.queries, 40).unwrap()
    };
    assert_eq!(search("emulator+emulator,cpu+emulator"), search("cpu"));
}

/// A filter has a bit for each vector of the whole index, of which a shard has a part: more bits than the shard has
/// room for by its own vectors were cut short once.
#[test]
fn filters_are_of_the_whole_index_on_shards_of_the_emulator() {
    let vectors = data::vectors::<f32>(VectorData::Gaussian, 2, 5_000, 3, 11);
    let mut index = IvfIndex::<f32>::builder(2, 3).iterations(1).device(Device::Cpu).build().unwrap();
    index.train(&vectors.base).unwrap();
    index.add(&vectors.base).unwrap();
    let some = index.filter(|id| id % 3 != 1);
    let options = SearchOptions::new().probes(3).filter(&some);
    let expected = index.search_with(&vectors.queries, 20, &options).unwrap();
    let near = index.range_search(&vectors.queries, 0.01, &options).unwrap();
    assert!(expected.ids.iter().all(|id| id % 3 != 1) && expected.ids.iter().any(|&id| id > 4_500));
    index.move_to(placement("emulator+emulator")).unwrap();
    assert_eq!(index.search_with(&vectors.queries, 20, &options).unwrap(), expected);
    assert_eq!(index.range_search(&vectors.queries, 0.01, &options).unwrap(), near);
}

#[test]
fn a_device_that_is_not_there_is_named() {
    let missing = "cpu,gpu:4096".parse::<Placement>().unwrap();
    let flat = FlatIndex::<f32>::new(2, Metric::L2, missing.clone());
    let Err(Error::NoDevice { reason }) = flat else { panic!("{flat:?}") };
    assert!(!matches!(reason, NoDeviceReason::NoSuchDevice { asked, .. } if asked != 4096), "{reason}");
    let mut index = IvfIndex::<f32>::builder(1, 1).device(placement("cpu,cpu")).build().unwrap();
    index.train(&[1.0, 2.0]).unwrap();
    index.add(&[1.0, 2.0]).unwrap();
    assert!(index.move_to(missing).is_err());
    assert_eq!(index.search_with(&[1.9], 1, &SearchOptions::new().probes(1)).unwrap().ids, [1]);
    assert_eq!(index.device().matches("cpu").count(), 2, "{}", index.device());
}

#[test]
#[ignore = "needs two CUDA devices"]
fn the_tables_on_two_gpus() {
    tables(&["gpu:0,gpu:1", "gpu:0+gpu:1", "gpu:0+gpu:1,gpu:1+gpu:0", "cpu+gpu:1"], 1);
    for text in ["gpu:0,gpu:1", "gpu:0+gpu:1"] {
        life(text, 20_000, Encoding::Flat);
        life(text, 20_000, PQ);
        exact_life::<f32>(text, 20_000);
        clusters(text, 200_000);
    }
}
