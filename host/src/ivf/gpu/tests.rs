//! Tests of the image and its search on the emulator: results must have the same bits as on the CPU. (The package of tests has the tests of
//! the results themselves.)

use test_random::Random;

use crate::ivf::{Bitset, Encoding, IvfIndex, Scan, SearchOptions};
use crate::{Device, Element, Metric, Neighbors};

/// Components in −1 .. 1, in clusters (times 100 for integer types).
fn vectors<T: Element>(count: usize, dim: usize, seed: u64) -> Vec<T> {
    let mut random = Random::new(seed);
    let mut next = || random.unit_f32() - 0.5;
    let centres: Vec<f32> = (0..8 * dim).map(|_| next()).collect();
    let scale = if matches!(T::TYPE, crate::ElementType::I8 | crate::ElementType::U8) { 100.0 } else { 1.0 };
    let mut rows = Vec::new();
    for row in 0..count {
        for i in 0..dim {
            rows.push(T::from_f32((centres[row % 8 * dim + i] + 0.3 * next()) * scale));
        }
    }
    rows
}

fn same(what: &str, expected: &Neighbors, found: &Neighbors) {
    let bits = |found: &Neighbors| found.distances.iter().map(|d| d.to_bits()).collect::<Vec<_>>();
    assert_eq!(expected.ids, found.ids, "{what}");
    assert_eq!(bits(expected), bits(found), "{what}");
}

struct Case {
    dim: usize,
    n: usize,
    lists: usize,
    queries: usize,
    k: usize,
    probes: usize,
}

fn check<T: Element>(metric: Metric, encoding: Encoding, case: &Case) {
    check_batches::<T>(metric, encoding, case, &[case.queries]);
}

/// As [`check`], with batches of these numbers of queries.
fn check_batches<T: Element>(metric: Metric, encoding: Encoding, case: &Case, batches: &[usize]) {
    let &Case { dim, n, lists, .. } = case;
    let base = vectors::<T>(n, dim, 5);
    let builder = IvfIndex::<T>::builder(dim, lists).metric(metric).encoding(encoding).device(Device::Cpu);
    let mut cpu = builder.iterations(2).build().unwrap();
    cpu.train(&base).unwrap();
    cpu.add(&base[..n / 2 * dim]).unwrap();
    let ids: Vec<u64> = (n / 2..n).rev().map(|id| 3 * id as u64 + 1_000_000_000_000).collect();
    cpu.add_with_ids(&base[n / 2 * dim..], &ids).unwrap();
    // Through a file, because training on the emulator takes long and has other tests.
    let file = tempfile::NamedTempFile::new().unwrap();
    cpu.save(file.path()).unwrap();
    let emulated = IvfIndex::<T>::load(file.path(), Device::Emulator, None).unwrap();
    for &queries in batches {
        compare(&cpu, &emulated, &Case { queries, ..*case });
    }
}

fn compare<T: Element>(cpu: &IvfIndex<T>, emulated: &IvfIndex<T>, case: &Case) {
    let &Case { dim, n, lists, queries, k, probes } = case;
    let (metric, encoding) = (cpu.metric(), cpu.encoding());
    let wanted = vectors::<T>(queries, dim, 6);
    let what = format!("{metric:?} {encoding:?} {} d{dim} n{n} l{lists} q{queries} k{k} p{probes}", T::TYPE.name());
    let expected = cpu.search(&wanted, k, probes).unwrap();
    same(&what, &expected, &emulated.search(&wanted, k, probes).unwrap());
    let options = SearchOptions::new().probes(probes).scan(Scan::QueryMajor);
    same(&format!("{what} by queries"), &expected, &emulated.search_with(&wanted, k, &options).unwrap());
    let filter: Bitset = (0..n).map(|rank| rank % 3 != 0).collect();
    let options = SearchOptions::new().probes(probes).filter(&filter).widen(false);
    let filtered = cpu.search_with(&wanted, k, &options).unwrap();
    same(&format!("{what} filtered"), &filtered, &emulated.search_with(&wanted, k, &options).unwrap());
    let radius = expected.distances[k / 2];
    if radius.is_finite() {
        let options = SearchOptions::new().probes(probes);
        let near = cpu.range_search(&wanted, radius, &options).unwrap();
        assert_eq!(near, emulated.range_search(&wanted, radius, &options).unwrap(), "{what} range");
    }
}

#[test]
fn flat_lists_of_every_metric_and_element() {
    let case = Case { dim: 20, n: 700, lists: 9, queries: 21, k: 7, probes: 4 };
    for metric in Metric::ALL {
        check::<f32>(metric, Encoding::Flat, &case);
        check::<half::f16>(metric, Encoding::Flat, &case);
        check::<half::bf16>(metric, Encoding::Flat, &case);
        check::<i8>(metric, Encoding::Flat, &case);
        check::<u8>(metric, Encoding::Flat, &case);
    }
}

#[test]
fn odd_sizes() {
    for case in [
        Case { dim: 1, n: 300, lists: 5, queries: 3, k: 10, probes: 2 },
        Case { dim: 65, n: 400, lists: 1, queries: 70, k: 3, probes: 1 },
        Case { dim: 129, n: 300, lists: 40, queries: 5, k: 30, probes: 40 },
        Case { dim: 520, n: 200, lists: 3, queries: 66, k: 2, probes: 2 },
        Case { dim: 7, n: 260, lists: 130, queries: 1, k: 300, probes: 129 },
        Case { dim: 3, n: 2000, lists: 2, queries: 2, k: 1500, probes: 1 },
        Case { dim: 4, n: 5000, lists: 2, queries: 2, k: 4200, probes: 2 },
        // Few pairs, in lists of several items.
        Case { dim: 5, n: 900, lists: 6, queries: 2, k: 9, probes: 3 },
        // Most probes append candidates.
        Case { dim: 8, n: 2000, lists: 100, queries: 30, k: 1, probes: 80 },
        Case { dim: 330, n: 900, lists: 80, queries: 30, k: 2, probes: 80 },
    ] {
        check::<f32>(Metric::L2, Encoding::Flat, &case);
    }
}

#[test]
fn codes() {
    for (dim, sub_quantizers, bits) in
        [(16, 4, 8), (16, 8, 8), (136, 68, 8), (24, 3, 4), (21, 7, 5), (12, 12, 6), (65, 13, 7), (10, 1, 8)]
    {
        for metric in Metric::ALL {
            let encoding = Encoding::Pq { sub_quantizers, bits, rotate: false };
            check::<f32>(metric, encoding, &Case { dim, n: 600, lists: 7, queries: 20, k: 5, probes: 3 });
        }
    }
    for (sub_quantizers, bits) in [(2, 4), (4, 8)] {
        let encoding = Encoding::Pq { sub_quantizers, bits, rotate: false };
        check::<f32>(Metric::L2, encoding, &Case { dim: 8, n: 2000, lists: 100, queries: 30, k: 1, probes: 90 });
    }
    let encoding = Encoding::Pq { sub_quantizers: 4, bits: 8, rotate: true };
    check::<u8>(Metric::L2, encoding, &Case { dim: 16, n: 600, lists: 7, queries: 70, k: 5, probes: 7 });
}

#[test]
fn halves_and_bytes() {
    for encoding in [Encoding::F16, Encoding::Scalar8] {
        for dim in [1, 12, 65, 330] {
            for metric in Metric::ALL {
                check::<f32>(metric, encoding, &Case { dim, n: 400, lists: 7, queries: 20, k: 5, probes: 3 });
            }
        }
        // Tiles of 64 queries, and appended candidates.
        for (dim, probes) in [(12, 7), (330, 7), (8, 90)] {
            let lists = if probes == 90 { 100 } else { 7 };
            check::<f32>(Metric::L2, encoding, &Case { dim, n: 1200, lists, queries: 70, k: 1, probes });
        }
    }
    check::<u8>(Metric::L2, Encoding::Scalar8, &Case { dim: 16, n: 600, lists: 7, queries: 70, k: 5, probes: 7 });
    check::<half::bf16>(
        Metric::Cosine,
        Encoding::Scalar8,
        &Case { dim: 9, n: 300, lists: 4, queries: 5, k: 5, probes: 2 },
    );
}

/// Scans of lists by `mma.sync` and by `wgmma`, between which the emulator chooses by the parity of the number of items: of operands and of
/// codes, resident and streamed, with stored and with appended scores.
#[test]
fn every_product_scans_soundly() {
    let encodings = |dim: usize| {
        let codes = Encoding::Pq { sub_quantizers: dim / 2, bits: 8, rotate: false };
        let long = if dim > 128 { 330 } else { dim };
        [(dim, codes), (long, Encoding::Flat), (long, Encoding::Scalar8)]
    };
    for (dim, encoding) in [64, 136].into_iter().flat_map(encodings) {
        // One item for each pair: with lists of fewer than 128 rows, the numbers of items are odd and even.
        let short = Case { dim, n: 300, lists: 5, queries: 61, k: 3, probes: 5 };
        check_batches::<f32>(Metric::L2, encoding, &short, &[61, 62]);
        let many = Case { dim, n: 2_400, lists: 75, queries: 13, k: 1, probes: 75 };
        check_batches::<f32>(Metric::L2, encoding, &many, &[13, 14]);
    }
}
