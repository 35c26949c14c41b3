//! Tests that the case table of the tests crate does not cover: sizes beyond the CPU's blocks, instruction sets, and
//! the lists.

use std::collections::BTreeSet;
use std::ops::ControlFlow;

use test_random::Random;

use super::*;
use crate::generate::Generator;
use crate::{Filter, FlatIndex, Input, NONE, Neighbors, Proof, SearchOptions, Watch};

/// Whole numbers from -8 to 7, so that distances tie.
fn numbers(count: usize, seed: u64) -> Vec<f32> {
    Random::new(seed).whole(count, 16).into_iter().map(|number| number - 8.0).collect()
}

/// If every list is probed, an inverted file finds the same bits as exact search.
#[test]
fn all_lists_are_exact_search_past_every_block_on_every_instruction_set() {
    // More queries of a list than are packed together; a list of several runs; short rows and long ones.
    for (dim, n, lists, nq, k) in
        [(128, 600, 2, 1100, 5), (3, 9_000, 2, 7, 40), (1500, 90, 3, 60, 100), (17, 5_000, 90, 300, 3)]
    {
        let (base, queries) = (numbers(n * dim, 1), numbers(nq * dim, 2));
        for metric in Metric::OF_NUMBERS {
            let mut flat = FlatIndex::new(dim, metric, Device::Cpu).unwrap();
            flat.add(&base).unwrap();
            let expected = flat.search(&queries, k).unwrap();
            for simd in [true, false] {
                let builder = IvfIndex::builder(dim, lists).metric(metric).device(Device::Cpu).iterations(2);
                let mut index = builder.simd(simd).build().unwrap();
                index.train(&base).unwrap();
                index.add(&base).unwrap();
                for scan in [Scan::Auto, Scan::QueryMajor] {
                    let options = SearchOptions::new().probes(lists).scan(scan);
                    let found = index.search_with(&queries, k, &options).unwrap();
                    assert_eq!(found, expected, "{metric:?}, {dim}, {n}, {lists}, {nq}, {k}, {simd}, {scan:?}");
                }
            }
        }
    }
}

/// Each query that probes few lists finds the same in any group as it does alone.
#[test]
fn many_queries_with_few_probes_find_what_each_finds_alone() {
    let (dim, n, lists, nq, k) = (12, 3_000, 40, 333, 7);
    let (base, queries) = (numbers(n * dim, 5), numbers(nq * dim, 6));
    let pq = Encoding::Pq { sub_quantizers: 4, bits: 6, rotate: false };
    for metric in Metric::OF_NUMBERS {
        for encoding in [Encoding::Flat, pq, Encoding::F16, Encoding::Scalar8] {
            let builder = IvfIndex::<f32>::builder(dim, lists).metric(metric).encoding(encoding).device(Device::Cpu);
            let mut index = builder.iterations(2).build().unwrap();
            index.train(&base).unwrap();
            index.add(&base).unwrap();
            let every_third = index.filter(|id| id % 3 == 0);
            for (probes, filter) in [(1, None), (1, Some(&every_third)), (2, None)] {
                let options =
                    |scan| SearchOptions::new().probes(probes).filter(filter.map(Filter::Bits)).widen(false).scan(scan);
                let alone = index.search_with(&queries, k, &options(Scan::QueryMajor)).unwrap();
                let radius = alone.distances[k - 1];
                let ball = index.range_search(&queries, radius, &options(Scan::QueryMajor)).unwrap();
                assert!(ball.ids.len() > k, "{metric:?}, {encoding:?}");
                for threads in [1, 2, 5] {
                    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
                    let found = pool.install(|| index.search_with(&queries, k, &options(Scan::Auto))).unwrap();
                    assert_eq!(found, alone, "{metric:?}, {encoding:?}, {probes} probes, {threads} threads");
                    let found = pool.install(|| index.range_search(&queries, radius, &options(Scan::Auto))).unwrap();
                    assert_eq!(found, ball, "{metric:?}, {encoding:?}, {probes} probes, {threads} threads");
                }
            }
        }
    }
}

/// Scores of small whole numbers are exact. Exact search does not use this.
#[test]
fn whole_numbers_small_and_large_give_the_bits_of_exact_search() {
    let (dim, n, nq, k) = (24, 1_500, 70, 20);
    // Norms are about 22 times the factor: the square of the sum of two reaches 2²⁴ at 90. Also halves of whole
    // numbers.
    for (base_factor, query_factor, shift) in [
        (1.0, 1.0, 0.0),
        (45.0, 45.0, 0.0),
        (95.0, 95.0, 1.0),
        (3001.0, 3001.0, 0.0),
        (1.0, 40_001.0, 0.0),
        (0.5, 1.0, 0.0),
    ] {
        let base: Vec<f32> = numbers(n * dim, 3).iter().map(|x| x * base_factor).collect();
        for shift in [shift, 0.5] {
            let queries: Vec<f32> = numbers(nq * dim, 4).iter().map(|x| x * query_factor + shift).collect();
            for metric in Metric::OF_NUMBERS {
                let mut flat = FlatIndex::new(dim, metric, Device::Cpu).unwrap();
                flat.add(&base).unwrap();
                let expected = flat.search(&queries, k).unwrap();
                let builder = IvfIndex::builder(dim, 7).metric(metric).device(Device::Cpu).iterations(2);
                let mut index = builder.build().unwrap();
                index.train(&base).unwrap();
                index.add(&base).unwrap();
                let found = index.search_with(&queries, k, &SearchOptions::new().probes(7)).unwrap();
                assert_eq!(found, expected, "{metric:?}, {base_factor}, {query_factor}, {shift}");
            }
        }
    }
}

/// Codes in lists longer than one run of a worker, for so few queries that tables score them, and for more queries.
#[test]
fn codes_of_long_lists_are_found_as_they_are_reconstructed() {
    let (dim, n, lists, k) = (8, 9_500, 2, 30);
    let base = numbers(n * dim, 5);
    for metric in [Metric::L2, Metric::InnerProduct] {
        let encoding = Encoding::Pq { sub_quantizers: 4, bits: 8, rotate: false };
        let builder = IvfIndex::builder(dim, lists).metric(metric).encoding(encoding).device(Device::Cpu).iterations(2);
        let mut index = builder.build().unwrap();
        index.train(&base).unwrap();
        index.add(&base).unwrap();
        let stored: Vec<Vec<f32>> = (0..n as u64).map(|id| index.reconstruct(id).unwrap()).collect();
        for nq in [1, 3, 40] {
            let queries = numbers(nq * dim, 6);
            for scan in [Scan::Auto, Scan::QueryMajor] {
                let options = SearchOptions::new().probes(lists).scan(scan);
                let found = index.search_with(&queries, k, &options).unwrap();
                for (query, x) in queries.chunks(dim).enumerate() {
                    let mut all: Vec<(f32, u64)> =
                        (0..).zip(&stored).map(|(id, y)| (crate::metric::canonical(metric, x, y), id)).collect();
                    all.sort_by(|a, b| metric.order(a.0, b.0).then(a.1.cmp(&b.1)));
                    let (ids, distances) = found.row(query);
                    let got: Vec<(f32, u64)> = distances.iter().copied().zip(ids.iter().copied()).collect();
                    assert_eq!(got, all[..k], "{metric:?}, query {query} of {nq}, {scan:?}");
                }
            }
        }
    }
}

#[test]
fn adding_gives_each_vector_to_its_nearest_centroid_and_counts() {
    let mut index = IvfIndex::<f32>::builder(1, 3).device(Device::Cpu).build().unwrap();
    index.train(&[0.0, 10.0, 20.0]).unwrap();
    let mut centroids = index.centroids().to_vec();
    centroids.sort_by(f32::total_cmp);
    assert_eq!(centroids, [0.0, 10.0, 20.0]);
    index.add(&[1.0, 2.0, 3.0, 9.0]).unwrap();
    let statistics = index.statistics();
    assert_eq!((statistics.empty_lists, statistics.shortest, statistics.longest), (1, 0, 3));
    assert_eq!((statistics.mean, statistics.imbalance), (4.0 / 3.0, 3.0 * 10.0 / 16.0));
    assert_eq!((statistics.code_bytes, statistics.bytes), (4, 4 * 12 + 12));
    assert_eq!(index.search_with(&[8.0], 2, &SearchOptions::new().probes(1)).unwrap().ids, [3, crate::NONE]);
    assert_eq!(index.search_with(&[8.0], 3, &SearchOptions::new().probes(2)).unwrap().ids, [3, 2, 1]);
    assert_eq!(index.search_with(&[16.0], 1, &SearchOptions::new().probes(1)).unwrap().ids, [crate::NONE]);
    assert!(index.device().starts_with("cpu"));
}

/// An empty index on `device`, whose training on the CPU used the first rows.
fn trained_on_cpu(
    generator: &Generator,
    encoding: Encoding,
    metric: Metric,
    device: impl Into<Placement>,
) -> IvfIndex<f32> {
    let builder = || IvfIndex::<f32>::builder(generator.dim(), 7).encoding(encoding).metric(metric).iterations(3);
    let mut index = builder().device(Device::Cpu).build().unwrap();
    index.train(&generator.rows(0, 300)).unwrap();
    let lists = Lists::new(7, index.kind.master().code_bytes());
    let trained = index.kind.trained().unwrap().clone();
    Index::of(builder().device(device).restore(trained, lists, 2, Clamped::default()).unwrap())
}

fn same_lists(one: &IvfIndex<f32>, other: &IvfIndex<f32>) {
    assert_eq!(one.len(), other.len());
    for list in 0..one.lists() {
        assert_eq!(one.kind.lists.ids(list), other.kind.lists.ids(list), "list {list}");
        let codes = |index: &IvfIndex<f32>| index.kind.lists.codes(list).runs().collect::<Vec<_>>().concat();
        assert_eq!(codes(one), codes(other), "list {list}");
    }
}

/// Batches of any size, generated on any device, give the same bits as one `add` on the CPU.
#[test]
fn streams_give_the_index_of_one_add() {
    // Six components, which a device pads.
    let generator = Generator::new(6, 16, 9).unwrap();
    let pq = |rotate| Encoding::Pq { sub_quantizers: 3, bits: 4, rotate };
    let all = generator.rows(0, 700);
    for (encoding, metric) in [
        (pq(false), Metric::L2),
        (pq(false), Metric::InnerProduct),
        (pq(false), Metric::Cosine),
        (pq(true), Metric::L2),
        (Encoding::Flat, Metric::L2),
        (Encoding::F16, Metric::InnerProduct),
        (Encoding::Scalar8, Metric::L2),
        (Encoding::Scalar8, Metric::Cosine),
        (Encoding::Bits { bits: 1 }, Metric::Cosine),
        (Encoding::Bits { bits: 3 }, Metric::InnerProduct),
        (Encoding::Bits { bits: 8 }, Metric::L2),
    ] {
        let mut expected = trained_on_cpu(&generator, encoding, metric, Device::Cpu);
        expected.add(&all).unwrap();
        for device in [Device::Cpu, Device::Emulator] {
            let empty = || trained_on_cpu(&generator, encoding, metric, device);
            let mut whole = empty();
            whole.add(&all).unwrap();
            same_lists(&whole, &expected);
            let mut pieces = empty();
            pieces.add_batches(all.chunks(6 * 250)).unwrap();
            same_lists(&pieces, &expected);
            let mut made = empty();
            made.add_generated(&generator, 0..450).unwrap();
            made.add_generated(&generator, 450..700).unwrap();
            same_lists(&made, &expected);
            assert_eq!(made.ids(), (0..700).collect::<Vec<_>>());
        }
    }
}

/// Vectors of any length, sparse ones and those that equal their centroid; steps and rests have the same bits, too.
#[test]
fn a_device_codes_by_bits_as_the_cpu_does() {
    let mut random = Random::new(3);
    for (at, dim) in [1, 2, 5, 31, 32, 33, 64, 96, 130].into_iter().enumerate() {
        let bits = 1 + at as u32 % 8;
        for metric in [Metric::L2, Metric::Cosine] {
            let builder = IvfIndex::<f32>::builder(dim, 3).encoding(Encoding::Bits { bits }).metric(metric);
            let mut on_cpu = builder.device(Device::Cpu).build().unwrap();
            let mut rows: Vec<f32> = Vec::new();
            for row in 0..200 {
                let size = random.pick(&[1.0, 1.0, 1e-3, 1e20, 1e-30, 1e-40]);
                let one =
                    (0..dim).map(|_| if row % 3 == 0 && random.below(4) > 0 { 0.0 } else { random.unit_f32() - 0.5 });
                rows.extend(one.map(|x| x * size));
            }
            rows[..dim].fill(0.0);
            on_cpu.train(&rows[..100 * dim]).unwrap();
            let mut on_device = IvfIndex::from_bytes(&on_cpu.to_bytes().unwrap(), Device::Emulator, None).unwrap();
            for index in [&mut on_cpu, &mut on_device] {
                index.add(&rows).unwrap();
            }
            same_lists(&on_device, &on_cpu);
            // Under cosine nothing is too long.
            let mut long = vec![0.0; 7 * dim];
            long[4 * dim + dim / 2] = -3e37;
            let refused =
                [on_cpu.add(&long), on_device.add(&long)].map(|added| added.err().map(|error| error.to_string()));
            assert_eq!(refused[0], refused[1], "{dim} components, {bits} bits, {metric}");
            assert_eq!(refused[0].is_some(), metric == Metric::L2, "{refused:?}");
            assert_eq!(on_device.len(), on_cpu.len());
        }
    }
}

/// A small budget divides the work, with the same result.
#[test]
fn coding_cuts_batches_to_the_budget() {
    let generator = Generator::new(8, 16, 9).unwrap();
    let encoding = Encoding::Pq { sub_quantizers: 2, bits: 4, rotate: false };
    let mut expected = trained_on_cpu(&generator, encoding, Metric::L2, Device::Cpu);
    expected.add_generated(&generator, 0..600).unwrap();
    let mut index = trained_on_cpu(&generator, encoding, Metric::L2, Device::Emulator);
    index.kind.settings.budget = Some(100_000);
    index.add_generated(&generator, 0..200).unwrap();
    index.add(&generator.rows(200, 400)).unwrap();
    same_lists(&index, &expected);
    let version = index.kind.lists.version();
    index.kind.settings.budget = Some(10_000);
    let error = index.add(&generator.rows(600, 1)).unwrap_err();
    assert!(matches!(error, Error::OutOfDeviceMemory { available: 10_000, .. }), "{error}");
    assert_eq!((index.len(), index.kind.lists.version()), (600, version));
}

/// The devices that copy vectors check them, each its part. The error names the first bad value of the call, and
/// nothing has changed.
#[test]
fn the_first_value_that_is_not_finite_is_named_wherever_it_is_found() {
    let generator = Generator::new(6, 16, 3).unwrap();
    let mut rows = generator.rows(0, 700);
    let ids: Vec<u64> = (100..800).collect();
    rows[350 * 6 + 2] = f32::INFINITY;
    rows[600 * 6 + 1] = f32::NAN;
    let pq = |rotate| Encoding::Pq { sub_quantizers: 2, bits: 4, rotate };
    for encoding in [Encoding::Flat, Encoding::F16, Encoding::Scalar8, pq(false), pq(true)] {
        for (metric, places) in [(Metric::L2, "cpu"), (Metric::L2, "emulator+emulator"), (Metric::Cosine, "emulator")] {
            let placement: Placement = places.parse().unwrap();
            let mut index = trained_on_cpu(&generator, encoding, metric, placement);
            // Several tiles for each device.
            index.kind.settings.budget = Some(100_000);
            index.add_with_ids(&rows[..300 * 6], &ids[..300]).unwrap();
            let version = index.kind.lists.version();
            let checked = |error: Error| {
                let place = matches!(error, Error::NotFinite { input: Input::Base, row: 50, column: 2, .. });
                assert!(place, "{encoding}, {metric:?}, {places}: {error}");
            };
            let rest = &rows[300 * 6..];
            checked(index.add(rest).unwrap_err());
            checked(index.add_with_ids(rest, &ids[300..]).unwrap_err());
            checked(index.upsert(rest, &ids[..400]).unwrap_err());
            checked(index.add_watched(rest, None, &Watch::new(|_| ControlFlow::Continue(()))).unwrap_err());
            checked(index.add_batches([rest]).unwrap_err());
            assert_eq!((index.len(), index.kind.lists.version()), (300, version), "{encoding}, {metric:?}, {places}");
            index.add(&rows[400 * 6..500 * 6]).unwrap();
        }
    }
}

/// k-means checks the training vectors, which may be normalised or rotated then. The error names the first bad value
/// that was given, and nothing has changed.
#[test]
fn the_first_value_that_is_not_finite_is_named_in_training() {
    let generator = Generator::new(6, 16, 3).unwrap();
    let good = generator.rows(0, 700);
    let pq = |rotate| Encoding::Pq { sub_quantizers: 2, bits: 4, rotate };
    for encoding in [Encoding::Flat, Encoding::F16, Encoding::Scalar8, pq(false), pq(true)] {
        for (metric, device) in
            [(Metric::L2, Device::Cpu), (Metric::L2, Device::Emulator), (Metric::Cosine, Device::Emulator)]
        {
            // All vectors, and a sample of 210 or fewer, which holds all rows of the second set.
            let builder = IvfIndex::<f32>::builder(6, 7).encoding(encoding).metric(metric).device(device).iterations(1);
            for (per_centroid, rows) in [(256, 700), (30, 210)] {
                let mut index = builder.clone().points_per_centroid(per_centroid).build().unwrap();
                for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                    let mut rows = good[..rows * 6].to_vec();
                    (rows[150 * 6 + 2], rows[200 * 6 + 1]) = (value, f32::NAN);
                    let error = index.train(&rows).unwrap_err();
                    let place = matches!(error, Error::NotFinite { input: Input::Training, row: 150, column: 2, .. });
                    assert!(place, "{encoding}, {metric:?}, {device}: {error}");
                    assert!(index.kind.trained().is_none(), "{encoding}, {metric:?}, {device}");
                }
                index.train(&good).unwrap();
            }
        }
    }
}

#[test]
fn a_stream_that_fails_keeps_the_batches_before() {
    let generator = Generator::new(4, 4, 1).unwrap();
    let mut index = trained_on_cpu(&generator, Encoding::Flat, Metric::L2, Device::Cpu);
    let good = generator.rows(0, 20);
    let bad = vec![1.0, 2.0, f32::NAN, 4.0];
    let error = index.add_batches([&good, &good, &bad, &good]).unwrap_err();
    // Row 0 of the third batch, which follows two batches of 20 rows.
    assert!(matches!(error, Error::NotFinite { input: Input::Base, row: 40, column: 2, .. }), "{error}");
    assert!(error.to_string().starts_with("component NaN at row 40, column 2 of the base is not finite"), "{error}");
    assert_eq!(index.ids(), (0..40).collect::<Vec<_>>());
    // Ids count up from the greatest id that the caller gave.
    index.add_with_ids(&good[..4], &[u64::MAX - 3]).unwrap();
    let error = index.add_batches([&good[..8], &good[..4]]).unwrap_err();
    assert!(matches!(error, Error::ReservedId), "{error}");
    assert_eq!(index.ids().split_off(40), [u64::MAX - 3, u64::MAX - 2, u64::MAX - 1]);
    let other = Generator::new(5, 4, 1).unwrap();
    assert!(matches!(index.add_generated(&other, 0..1), Err(Error::WrongDimension { expected: 4, actual: 5 })));
    let mut untrained = IvfIndex::<f32>::builder(4, 2).device(Device::Cpu).build().unwrap();
    assert!(matches!(untrained.add_generated(&generator, 0..1), Err(Error::NotTrained { call: "add" })));
}

/// The meaning of a filter's bits changes with the ids, and only with the ids.
#[test]
fn a_filter_of_other_ids_is_refused() {
    let base: Vec<f32> = (0..100).map(|i| i as f32).collect();
    for device in [Device::Cpu, Device::Emulator] {
        let mut index = IvfIndex::<f32>::builder(1, 4).device(device).build().unwrap();
        index.train(&base).unwrap();
        let empty = index.filter(|_| true);
        index.add(&base).unwrap();
        let even = index.filter(|id| id % 2 == 0);
        let search = |index: &IvfIndex<f32>, filter: &Bitset| {
            let options = SearchOptions::new().probes(4).filter(filter).widen(false);
            let near = index.range_search(&[50.9], 5.0, &options).map(|found| found.ids);
            let found = index.search_with(&[50.9], 3, &options).map(|found| found.ids);
            assert_eq!(near.is_ok(), found.is_ok());
            found
        };
        let stale = |result: Result<Vec<u64>>, held: u64| {
            assert!(matches!(result, Err(Error::StaleFilter { vectors }) if vectors == held), "{result:?}");
        };
        assert_eq!(search(&index, &even).unwrap(), [50, 52, 48]);
        assert!(matches!(
            search(&index, &empty),
            Err(Error::WrongLength { what: "filter bits", expected: 100, actual: 0 })
        ));
        // One vector fewer and one more: the same number of ids, of which some have other ranks.
        index.remove(&[10]).unwrap();
        assert!(matches!(
            search(&index, &even),
            Err(Error::WrongLength { what: "filter bits", expected: 99, actual: 100 })
        ));
        index.add_with_ids(&[7.0], &[1000]).unwrap();
        stale(search(&index, &even), 100);
        stale(search(&index, &even.clone()), 100);
        // Bits without ids are accepted by their number, and a new filter is right.
        let raw: Bitset = (0..100).map(|rank| even.get(rank)).collect();
        assert_eq!(raw, even, "equal bits");
        assert_eq!(search(&index, &raw).unwrap().len(), 3);
        let again = index.filter(|id| id % 2 == 0);
        assert_eq!(search(&index, &again).unwrap(), [50, 52, 48]);
        // The same ids again, in another order and with another vector: the ranks are those of the filter.
        index.remove(&[1000, 99]).unwrap();
        index.add_with_ids(&[3.0, 99.0], &[10, 99]).unwrap();
        assert_eq!(search(&index, &even).unwrap(), [50, 52, 48]);
        stale(search(&index, &again), 100);
        // Another index with the same ids, by a file or by merging, accepts the filter; an index with other ids does
        // not.
        let file = tempfile::NamedTempFile::new().unwrap();
        index.save(file.path()).unwrap();
        let loaded = IvfIndex::<f32>::load(file.path(), device, None).unwrap();
        assert_eq!(search(&loaded, &even).unwrap(), [50, 52, 48]);
        let part = |ids: &[u64]| {
            let mut part = IvfIndex::<f32>::builder(1, 4).device(device).build().unwrap();
            part.train(&base).unwrap();
            let rows: Vec<f32> = ids.iter().map(|&id| id as f32).collect();
            part.add_with_ids(&rows, ids).unwrap();
            part
        };
        let mut merged = part(&(40..100).collect::<Vec<_>>());
        merged.merge(&part(&(0..40).collect::<Vec<_>>())).unwrap();
        assert_eq!(search(&merged, &even).unwrap(), [50, 52, 48]);
        stale(search(&part(&(1..101).collect::<Vec<_>>()), &even), 100);
    }
}

/// Vectors near the limits of f32: the differences and rotations of training may exceed f32.
#[test]
fn what_overflows_in_training_is_named_by_its_cause() {
    let mut base = vec![-3e38f32; 64 * 4];
    base[4 * 7 + 2] = 3e38;
    for device in [Device::Cpu, Device::Emulator] {
        let train = |rotate, base: &[f32]| {
            let encoding = Encoding::Pq { sub_quantizers: 2, bits: 4, rotate };
            let mut index = IvfIndex::<f32>::builder(4, 1).encoding(encoding).device(device).build().unwrap();
            let trained = index.train(base);
            assert_eq!(index.is_trained(), trained.is_ok());
            trained
        };
        let error = train(false, &base).unwrap_err();
        assert!(matches!(error, Error::Overflow { derived: "residual", row: 7, column: 2 }), "{device}: {error:?}");
        let error = train(true, &base).unwrap_err();
        assert!(matches!(error, Error::Overflow { derived: "rotated vector", .. }), "{device}: {error:?}");
        train(false, &[-3e38; 64 * 4]).unwrap();
        let small: Vec<f32> = base.iter().map(|x| x / 1024.0).collect();
        train(true, &small).unwrap();
    }
}

fn refined(ids: Option<&[u64]>, candidates: &[u64], k: usize) -> Result<Vec<u64>> {
    let base = [0.0f32, 1.0, 2.0, 3.0];
    let refiner = Refiner::new(Metric::L2, 1, &base)?;
    let refiner = ids.map_or(Ok(refiner.clone()), |ids| refiner.with_ids(ids))?;
    let rough = Neighbors { k: candidates.len(), ids: candidates.to_vec(), distances: vec![0.0; candidates.len()] };
    Ok(refiner.refine(&[0.9], &rough, k)?.ids)
}

#[test]
fn refining_goes_by_the_ids_of_the_caller() {
    let far = [1 << 40, u64::MAX - 1, 7, 0];
    assert_eq!(refined(Some(&far), &[0, 7, far[0], far[1]], 4).unwrap(), [far[1], far[0], 7, 0]);
    assert_eq!(refined(None, &[0, 3, 1], 2).unwrap(), [1, 0]);
    // Ids, some of which are numbers of other rows.
    assert_eq!(refined(Some(&[3, 2, 1, 0]), &[0, 3, 2], 2).unwrap(), [2, 3]);
    assert_eq!(refined(Some(&far), &[7, NONE, 7, NONE], 3).unwrap(), [7, NONE, NONE]);
}

#[test]
fn refining_refuses_what_it_cannot_do() {
    let error = |ids: &[u64], candidates: &[u64]| refined(Some(ids), candidates, 1).unwrap_err();
    assert!(matches!(error(&[5, 6, 7], &[5]), Error::WrongLength { what: "ids", expected: 4, actual: 3 }));
    assert!(matches!(error(&[5, 6, 7, 6], &[5]), Error::DuplicateId { id: 6 }));
    assert!(matches!(error(&[5, 6, 7, NONE], &[5]), Error::ReservedId));
    assert!(matches!(error(&[5, 6, 7, 8], &[5, 0]), Error::UnknownId { id: 0, len: 4 }));
    assert!(matches!(refined(None, &[4], 1), Err(Error::UnknownId { id: 4, len: 4 })));
    assert!(matches!(refined(None, &[1], 0), Err(Error::Zero { what: "k" })));
    assert!(matches!(Refiner::new(Metric::L2, 0, &[1.0f32]), Err(Error::Zero { what: "dimension" })));
    assert!(matches!(
        Refiner::new(Metric::L2, 2, &[1.0f32]),
        Err(Error::Ragged { what: "components", len: 1, size: 2 })
    ));
    // A base that is not finite: reported only for rows of candidates, the lowest row first.
    let base = [0.0, f32::NAN, 2.0, f32::INFINITY];
    let refiner = Refiner::new(Metric::L2, 1, &base).unwrap();
    let rough = |ids: &[u64]| Neighbors { k: ids.len(), ids: ids.to_vec(), distances: vec![0.0; ids.len()] };
    assert_eq!(refiner.refine(&[0.9], &rough(&[2, 0]), 2).unwrap().ids, [0, 2]);
    let error = refiner.refine(&[0.9], &rough(&[0, 3, 2, 1]), 2).unwrap_err();
    assert!(matches!(error, Error::NotFinite { input: Input::Base, row: 1, column: 0, .. }), "{error}");
    let error = refiner.refine(&[f32::NAN], &rough(&[0]), 2).unwrap_err();
    assert!(matches!(error, Error::NotFinite { input: Input::Queries, row: 0, .. }), "{error}");
    // Under each metric, whatever the query: a query of zero is 0 from every finite vector.
    for (metric, query) in Metric::OF_NUMBERS.into_iter().flat_map(|metric| [0.9, 0.0, -1.0].map(|x| (metric, x))) {
        let refiner = Refiner::new(metric, 1, &base).unwrap();
        for bad in [1, 3] {
            let error = refiner.refine(&[query], &rough(&[2, bad]), 1).unwrap_err();
            assert!(
                matches!(error, Error::NotFinite { input: Input::Base, row, .. } if row == bad as usize),
                "{metric}, {query}: {error}"
            );
        }
    }
}

/// A refined search finds, of the candidates of its codes, the nearest by the original vectors: the reference ranks the
/// candidates itself.
#[test]
fn a_refined_search_ranks_its_candidates_by_the_original_vectors() {
    let (dim, n, k) = (6, 900, 5);
    let (base, queries) = (numbers(n * dim, 5), numbers(20 * dim, 6));
    let ids: Vec<u64> = (0..n as u64).map(|row| 2 * row + 10).collect();
    let pq = Encoding::Pq { sub_quantizers: 2, bits: 4, rotate: false };
    for place in ["cpu", "emulator", "cpu+cpu"] {
        let builder = IvfIndex::<f32>::builder(dim, 6).encoding(pq).iterations(2);
        let mut index = builder.device(place.parse::<Placement>().unwrap()).build().unwrap();
        index.train(&base).unwrap();
        index.add_with_ids(&base, &ids).unwrap();
        let refiner = Refiner::new(Metric::L2, dim, &base).unwrap().with_ids(&ids).unwrap();
        let thirds = |id: u64| id.is_multiple_of(3);
        for (refine, radius) in [(1.0, None), (1.3, None), (8.0, None), (8.0, Some(60.0)), (300.0, Some(200.0))] {
            // The nearest number to 1.3 · 5 is 7.
            let wanted = if refine == 1.3 { 7 } else { k * refine as usize };
            let options = SearchOptions::new().probes(3).filter_by(&thirds);
            let rough = index.search_with(&queries, wanted, &options).unwrap();
            let refined = options.refine(refine).radius(radius);
            let (found, statistics) = index.search_refined(&queries, k, &refined, &refiner).unwrap();
            let candidates = rough.ids.iter().filter(|&&id| id != NONE).count();
            assert_eq!(statistics.refined, candidates as u64);
            for ((ids, distances), (candidates, query)) in
                found.rows().zip(rough.ids.chunks_exact(wanted).zip(queries.chunks_exact(dim)))
            {
                let of_id = |id: u64| &base[(id as usize - 10) / 2 * dim..][..dim];
                let distance = |id: u64| of_id(id).iter().zip(query).map(|(x, y)| (x - y).powi(2)).sum::<f32>();
                let some = candidates.iter().filter(|&&id| id != NONE).map(|&id| (distance(id) as u32, id));
                let mut expected: Vec<(u32, u64)> = some.collect();
                expected.retain(|&(distance, id)| thirds(id) && radius.is_none_or(|radius| distance as f32 <= radius));
                expected.sort_unstable();
                expected.truncate(k);
                let pairs = distances.iter().map(|&distance| distance as u32).zip(ids.iter().copied());
                assert!(pairs.take_while(|&(_, id)| id != NONE).eq(expected), "{place}, {refine}, {radius:?}");
            }
        }
    }
}

#[test]
fn a_refined_search_refuses_other_vectors() {
    let base = numbers(60, 1);
    let mut index = IvfIndex::<f32>::builder(2, 3).device(Device::Cpu).build().unwrap();
    index.train(&base).unwrap();
    index.add(&base).unwrap();
    let refused = |metric, dim, base: &[f32], k, options: &SearchOptions<'_>| {
        let refiner = Refiner::new(metric, dim, base).unwrap();
        index.search_refined(&[1.0, 2.0], k, options, &refiner).unwrap_err()
    };
    let options = SearchOptions::new().probes(3);
    let error = refused(Metric::L2, 3, &base, 1, &options);
    assert!(matches!(error, Error::WrongDimension { expected: 2, actual: 3 }), "{error}");
    let error = refused(Metric::Cosine, 2, &base, 1, &options);
    assert_eq!(error.to_string(), "metric of the refiner: cosine; l2 is needed");
    for refine in [0.0, 0.99, -1.0, f64::NAN, f64::INFINITY] {
        let error = refused(Metric::L2, 2, &base, 1, &options.refine(refine));
        assert!(matches!(error, Error::BadNumber { what: "refine", .. }), "{error}");
    }
    assert!(matches!(refused(Metric::L2, 2, &base, 0, &options), Error::Zero { what: "k" }));
    assert!(matches!(refused(Metric::L2, 2, &base, usize::MAX, &options), Error::ResultTooLarge { .. }));
    let error = refused(Metric::L2, 2, &base, 1, &options.radius(f32::NAN));
    assert!(matches!(error, Error::BadNumber { what: "radius", .. }), "{error}");
    let error = refused(Metric::L2, 2, &base[..20], 30, &options);
    assert!(matches!(error, Error::UnknownId { len: 10, .. }), "{error}");
}

/// Rows of whole numbers around twelve centres, spread in four directions and a little in all others.
fn clustered(n: usize, dim: usize, seed: u64) -> Vec<f32> {
    let (centres, spread, noise) = (numbers(12 * dim, 3), numbers(4 * n, seed), numbers(n * dim, seed + 1));
    let component = |row: usize, i: usize| {
        16.0 * centres[row * 7 % 12 * dim + i] + 8.0 * spread[4 * row + i % 4] + (noise[row * dim + i] / 4.0).floor()
    };
    (0..n * dim).map(|at| component(at / dim, at % dim)).collect()
}

#[test]
fn proved_results_are_the_best_of_the_probed_lists_and_few_bits_need_few_candidates() {
    let (dim, n, k) = (64, 1500, 5);
    let (base, queries) = (clustered(n, dim, 5), clustered(20, dim, 6));
    let refiner = Refiner::new(Metric::L2, dim, &base).unwrap();
    let exact = |query: &[f32]| {
        let distance = |row: &[f32]| row.iter().zip(query).map(|(x, y)| (x - y).powi(2)).sum::<f32>() as u32;
        let mut all: Vec<(u32, u64)> = base.chunks_exact(dim).map(distance).zip(0..).collect();
        all.sort_unstable();
        all.truncate(k);
        all
    };
    let mut refined = Vec::new();
    for (place, bits) in [("cpu", 2), ("cpu", 4), ("cpu", 7), ("emulator", 4), ("cpu+cpu", 4)] {
        let builder = IvfIndex::<f32>::builder(dim, 12).encoding(Encoding::Bits { bits }).iterations(4);
        let mut index = builder.device(place.parse::<Placement>().unwrap()).build().unwrap();
        index.train(&base).unwrap();
        index.add(&base).unwrap();
        let options = SearchOptions::new().probes(12).refine(1).prove(true);
        let (found, statistics) = index.search_refined(&queries, k, &options, &refiner).unwrap();
        for ((ids, distances), query) in found.rows().zip(queries.chunks_exact(dim)) {
            let found: Vec<(u32, u64)> =
                distances.iter().map(|&distance| distance as u32).zip(ids.iter().copied()).collect();
            assert_eq!(found, exact(query), "{place}, {bits} bits");
        }
        assert!(statistics.queries == 20 && statistics.passes > 1);
        refined.push(statistics.refined);
    }
    // The same on every device, and fewer with more bits: with four of them less than a tenth of all vectors.
    assert!(refined[1] == refined[3] && refined[1] == refined[4]);
    assert!(refined[0] > refined[1] && refined[1] > refined[2], "{refined:?}");
    assert!(refined[1] < (20 * n / 10) as u64, "{refined:?}");
}

/// The probable proof takes far fewer candidates, and here it is right.
#[test]
fn a_probable_proof_takes_few_candidates() {
    let (dim, n, k) = (384, 1500, 5);
    let (base, queries) = (clustered(n, dim, 5), clustered(30, dim, 6));
    for metric in Metric::OF_NUMBERS {
        let builder = IvfIndex::<f32>::builder(dim, 12).metric(metric).encoding(Encoding::Bits { bits: 4 });
        let mut index = builder.iterations(4).device(Device::Cpu).build().unwrap();
        index.train(&base).unwrap();
        index.add(&base).unwrap();
        let refiner = Refiner::new(metric, dim, &base).unwrap();
        let [certain, probable] = [Proof::Certain, Proof::Probable].map(|proof| {
            let options = SearchOptions::new().probes(12).refine(1).prove(proof);
            index.search_refined(&queries, k, &options, &refiner).unwrap()
        });
        assert_eq!(probable.0, certain.0);
        let refined = [probable.1.refined, certain.1.refined];
        assert!(3 * refined[0] < 2 * refined[1], "{metric}: {refined:?}");
    }
}

#[test]
fn a_proof_needs_codes_that_tell_their_error_and_the_vectors_of_the_index() {
    let base = clustered(300, 8, 1);
    let options = SearchOptions::new().probes(3).prove(true);
    let refiner = Refiner::new(Metric::L2, 8, &base).unwrap();
    let index = |encoding| {
        let mut index = IvfIndex::<f32>::builder(8, 3).encoding(encoding).device(Device::Cpu).build().unwrap();
        index.train(&base).unwrap();
        index
    };
    for encoding in [Encoding::Scalar8, Encoding::F16, Encoding::Pq { sub_quantizers: 2, bits: 4, rotate: true }] {
        let empty = index(encoding);
        let error = empty.search_refined(&base[..8], 2, &options, &refiner).unwrap_err();
        assert!(matches!(error, Error::Mismatch { expected: "flat or bits", .. }), "{error}");
    }
    let mut moved = base.clone();
    moved[..8].iter_mut().for_each(|x| *x += 900.0);
    for encoding in [Encoding::Flat, Encoding::Bits { bits: 5 }] {
        let mut index = index(encoding);
        let nothing = index.search_refined(&base[..8], 2, &options, &refiner).unwrap().0;
        assert_eq!(nothing.ids, [crate::NONE; 2]);
        index.add(&base).unwrap();
        let (found, _) = index.search_refined(&base[..8], 2, &options, &refiner).unwrap();
        assert_eq!((found.ids[0], found.distances[0]), (0, 0.0));
        let other = Refiner::new(Metric::L2, 8, &moved).unwrap();
        let error = index.search_refined(&base[..16], 2, &options, &other).unwrap_err();
        assert!(matches!(error, Error::Mismatch { what: "vector of the refiner", .. }), "{error}");
        let error =
            |k, options: SearchOptions<'_>| index.search_refined(&base[..8], k, &options, &refiner).unwrap_err();
        assert!(matches!(error(0, options), Error::Zero { .. }));
        assert!(matches!(error(2, options.refine(0)), Error::BadNumber { .. }));
        let error = index.search_refined(&[f32::NAN; 8], 2, &options, &refiner).unwrap_err();
        assert!(matches!(error, Error::NotFinite { input: Input::Queries, row: 0, .. }), "{error}");
    }
}

/// The place of an encoding in the table of readers never changes, because files contain it.
#[test]
fn encodings_are_numbered_in_files() {
    let pq = Encoding::Pq { sub_quantizers: 7, bits: 5, rotate: true };
    let all = [
        (Encoding::Flat, [0, 0, 0, 0]),
        (pq, [1, 7, 5, 1]),
        (Encoding::F16, [2, 0, 0, 0]),
        (Encoding::Scalar8, [3, 0, 0, 0]),
        (Encoding::Bits { bits: 5 }, [4, 5, 1, 0]),
    ];
    for (encoding, words) in all {
        assert_eq!((encoding.file_words(), Encoding::of_file_words(words)), (words, Some(encoding)));
    }
    for words in [[4, 0, 1, 0], [4, 5, 0, 0], [4, 5, 2, 0], [4, 5, 1, 1], [5, 0, 0, 0]] {
        assert_eq!(Encoding::of_file_words(words), None);
    }
    assert_eq!(Encoding::plain().map(Encoding::name).collect::<Vec<_>>(), ["flat", "f16", "sq8"]);
}

/// The coder that a device keeps for few vectors is used for the next ones, changes no list and no code, and is dropped
/// with the training, the device, or a budget that is too small.
#[test]
fn centroids_stay_prepared_for_few_vectors() {
    let (dim, n, lists) = (9, 400, 12);
    let base = numbers(n * dim, 7);
    let pq = Encoding::Pq { sub_quantizers: 3, bits: 4, rotate: false };
    let ids: Vec<u64> = (0..n as u64).collect();
    for (metric, encoding) in [(Metric::L2, Encoding::Flat), (Metric::Cosine, Encoding::F16), (Metric::L2, pq)] {
        let trained = |device: Device, budget: u64| {
            let builder = IvfIndex::<f32>::builder(dim, lists).metric(metric).encoding(encoding).device(device);
            let mut index = builder.iterations(2).memory_budget(budget).build().unwrap();
            index.train(&base[..300 * dim]).unwrap();
            index
        };
        let mut expected = trained(Device::Cpu, 1 << 30);
        expected.add(&base).unwrap();
        assert_eq!(expected.kind.coders.bytes().unwrap(), 0);
        let mut index = trained(Device::Emulator, 1 << 30);
        let mut before = 0;
        for (rows, ids) in base.chunks(40 * dim).zip(ids.chunks(40)) {
            index.add(&rows[..20 * dim]).unwrap();
            index.upsert(&rows[20 * dim..], &ids[20..]).unwrap();
            let bytes = index.kind.coders.bytes().unwrap();
            assert!(bytes > 0 && (before == 0 || bytes == before), "{encoding}: {bytes} bytes after {before}");
            before = bytes;
        }
        assert_eq!(index.to_bytes().unwrap(), expected.to_bytes().unwrap(), "{encoding}");
        let mut next = index.snapshot();
        next.add(&base[..20 * dim]).unwrap();
        assert_eq!((index.kind.coders.bytes(), next.kind.coders.bytes()), (Some(before), Some(before)), "{encoding}");
        next.clear();
        next.train(&base[..300 * dim]).unwrap();
        assert_eq!((index.kind.coders.bytes(), next.kind.coders.bytes()), (Some(before), None), "{encoding}");
        index.move_to(Device::Emulator).unwrap();
        assert!(index.kind.coders.bytes().is_none());
        index.upsert(&base[..dim], &[0]).unwrap();
        index.clear();
        assert!(index.kind.coders.bytes().is_some());
        index.train(&base[..300 * dim]).unwrap();
        assert!(index.kind.coders.bytes().is_none());
        index.add_batches([&base]).unwrap();
        assert!(index.kind.coders.bytes().is_none(), "batches may be large");
        let mut index = trained(Device::Emulator, 16 * before as u64 - 1);
        index.add(&base[..20 * dim]).unwrap();
        assert!(index.kind.coders.bytes().is_none(), "{encoding}: too much for the budget");
    }
}

/// Lists whose codes are scattered, after changes beside snapshots, are searched, saved and followed as lists in one
/// place are.
#[test]
fn scattered_lists_are_those_in_one_place() {
    let (dim, lists, count) = (6, 4, 900);
    let generator = Generator::new(dim, 16, 11).unwrap();
    let pq = Encoding::Pq { sub_quantizers: 3, bits: 4, rotate: false };
    for encoding in [Encoding::Flat, Encoding::F16, Encoding::Scalar8, pq] {
        let made = || {
            let builder = IvfIndex::<f32>::builder(dim, lists).encoding(encoding).iterations(2);
            let mut index = builder.device(Device::Cpu).build().unwrap();
            index.train(&generator.rows(0, count)).unwrap();
            index.add(&generator.rows(0, count)).unwrap();
            index
        };
        let (mut index, mut plain) = (made(), made());
        let mut versions = Vec::new();
        for round in 0..6u64 {
            versions.push((index.snapshot(), index.to_bytes().unwrap()));
            let ids: Vec<u64> = (0..20).map(|at| (round * 311 + at * 37) % count as u64).collect();
            let rows = generator.rows(1_000 * (round + 1), ids.len());
            for index in [&mut index, &mut plain] {
                index.upsert(&rows, &ids).unwrap();
                index.remove(&[round + 100]).unwrap();
                index.add_with_ids(&generator.rows(round, 3), &[2_000 + round, 3_000 + round, 4_000 + round]).unwrap();
            }
        }
        let runs =
            |index: &IvfIndex<f32>| (0..lists).map(|list| index.kind.lists.codes(list).runs().count()).sum::<usize>();
        assert!(runs(&index) > 2 * lists && runs(&plain) == lists, "{encoding:?}");
        let queries = generator.rows(50_000, 40);
        let compare = |index: &IvfIndex<f32>, plain: &IvfIndex<f32>| {
            same_lists(index, plain);
            assert_eq!(index.kind.fingerprint().unwrap(), plain.kind.fingerprint().unwrap());
            assert_eq!(index.to_bytes().unwrap(), plain.to_bytes().unwrap());
            for (nq, scan) in [(1, Scan::Auto), (40, Scan::Auto), (40, Scan::QueryMajor)] {
                let options = SearchOptions::new().probes(3).scan(scan);
                let search = |index: &IvfIndex<f32>| index.search_with(&queries[..nq * dim], 12, &options).unwrap();
                assert_eq!(search(index), search(plain), "{encoding:?}, {nq} queries, {scan:?}");
            }
        };
        compare(&index, &plain);
        let mut compacted = index.snapshot();
        compacted.compact().unwrap();
        assert_eq!(runs(&compacted), lists);
        compare(&compacted, &plain);
        compare(&index, &plain);
        // No version has seen the changes after it.
        for (version, bytes) in versions {
            assert_eq!(version.to_bytes().unwrap(), bytes, "{encoding:?}");
        }
        // Scattered lists become empty, and begin again beside their snapshot and after it.
        let (before, ids) = (index.snapshot(), index.ids());
        let refill = |index: &mut IvfIndex<f32>, first: u64| {
            index.add_with_ids(&generator.rows(first, 50), &Vec::from_iter(first..first + 50)).unwrap();
        };
        for index in [&mut index, &mut plain] {
            index.remove(&ids).unwrap();
            refill(index, 5_000);
        }
        compare(&index, &plain);
        let mut alone = before.snapshot();
        alone.remove(&ids).unwrap();
        drop(before);
        plain.remove(&plain.ids()).unwrap();
        [&mut alone, &mut plain].into_iter().for_each(|index| refill(index, 6_000));
        compare(&alone, &plain);
    }
}

/// Versions on a device that change and go in any order, also several that follow the same one, against versions on the
/// CPU. Some take the image of a former version, which another one has left.
#[test]
fn versions_on_a_device_take_images_that_others_leave() {
    let (dim, lists, count) = (5, 6, 300);
    let generator = Generator::new(dim, 16, 3).unwrap();
    let made = |device: Device| {
        let mut index = IvfIndex::<f32>::builder(dim, lists).iterations(2).device(Device::Cpu).build().unwrap();
        index.train(&generator.rows(0, count)).unwrap();
        index.add(&generator.rows(0, count)).unwrap();
        index.move_to(device).unwrap();
        index
    };
    let (mut random, mut taken) = (Random::new(8), 0);
    let mut all = vec![(made(Device::Emulator), made(Device::Cpu))];
    for step in 0..320u64 {
        let at = random.below(all.len());
        if all.len() < 2 || all.len() < 5 && random.below(4) == 0 {
            let (index, expected) = &all[at];
            let both = (index.snapshot(), expected.snapshot());
            all.push(both);
        } else if random.below(6) == 0 {
            drop(all.swap_remove(at));
            continue;
        }
        let (index, expected) = &mut all[at];
        let spare = |index: &IvfIndex<f32>| index.kind.backend.as_device().unwrap().spare_bytes();
        let (kept, ids) = (spare(index) > 0, expected.ids());
        let some: Vec<u64> = (0..6).map(|_| ids[random.below(ids.len())]).collect();
        let (rows, removed) = (generator.rows(1_000 * (step + 1), 9), some[0]);
        let changed: Vec<u64> = BTreeSet::from_iter(some).into_iter().chain([5_000 + step]).collect();
        for index in [&mut *index, expected] {
            index.upsert(&rows[..changed.len() * dim], &changed).unwrap();
            index.remove(&[removed]).unwrap();
        }
        let search = |index: &IvfIndex<f32>| index.search_with(&rows, 7, &SearchOptions::new().probes(4)).unwrap();
        assert_eq!(search(index), search(expected), "step {step}");
        taken += usize::from(kept && spare(index) == 0);
    }
    assert!(taken > 20, "{taken}");
}
