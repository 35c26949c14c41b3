//! Tests: vectors of every magnitude that f32 holds, through the half-precision products and their error bounds.
//!
//! Norms whose squares overflow f32, products that underflow or overflow, and mixtures of them must give the results of
//! the definition ([`crate::metric`]), which these tests evaluate for every pair.

use std::ops::Range;

use test_random::Random;

use super::{Device, FlatIndex, Metric, Neighbors};
use crate::ivf::{Encoding, IvfIndex, Scan, SearchOptions};
use crate::metric::canonical;

/// A random number in [-1, 1).
fn unit(random: &mut Random) -> f64 {
    random.signed_unit().into()
}

/// A random number in `range`.
fn whole(random: &mut Random, range: Range<i32>) -> i32 {
    range.start + random.below((range.end - range.start) as usize) as i32
}

/// `value` · 2^`exponent`, finite.
fn scaled(value: f64, exponent: i32) -> f32 {
    (value * 2f64.powi(exponent)).clamp(f64::from(f32::MIN), f64::from(f32::MAX)) as f32
}

/// The k best of every query by the definition: (distance, lower id).
fn defined(metric: Metric, dim: usize, base: &[f32], queries: &[f32], k: usize) -> Neighbors {
    let mut found = Neighbors::none(metric, queries.len() / dim, k).unwrap();
    for (query, x) in queries.chunks(dim).enumerate() {
        let distance = |y: &[f32]| canonical(metric, x, y);
        let mut all: Vec<(f32, u64)> = base.chunks(dim).map(distance).zip(0..).collect();
        all.sort_by(|a, b| metric.order(a.0, b.0).then(a.1.cmp(&b.1)));
        for (slot, (distance, id)) in all.into_iter().take(k).enumerate() {
            found.distances[query * k + slot] = distance;
            found.ids[query * k + slot] = id;
        }
    }
    found
}

fn same(case: &str, expected: &Neighbors, found: &Neighbors) {
    let bits = |found: &Neighbors| found.distances.iter().map(|d| d.to_bits()).collect::<Vec<_>>();
    assert_eq!(expected.ids, found.ids, "{case}");
    assert_eq!(bits(expected), bits(found), "{case}");
}

/// Checks that searches of flat indexes, on the emulator and the CPU, give the results of the definition for each batch
/// of queries. Returns them.
fn check_flat(
    case: &str,
    metric: Metric,
    dim: usize,
    base: &[f32],
    batches: &[impl AsRef<[f32]>],
    k: usize,
) -> Vec<Neighbors> {
    let expected: Vec<Neighbors> =
        batches.iter().map(|queries| defined(metric, dim, base, queries.as_ref(), k)).collect();
    for device in [Device::Cpu, Device::Emulator] {
        let mut index = FlatIndex::<f32>::new(dim, metric, device).unwrap();
        index.add(base).unwrap();
        for (batch, (queries, expected)) in batches.iter().zip(&expected).enumerate() {
            let found = index.search(queries.as_ref(), k).unwrap();
            same(&format!("{case}, batch {batch}, {metric:?}, {device:?}"), expected, &found);
        }
    }
    expected
}

/// Checks that searches of all `lists` lists of an inverted file, by either scan, give the results of the definition
/// for the stored vectors, and so does range search.
fn check_lists(
    case: &str,
    (metric, encoding): (Metric, Encoding),
    dim: usize,
    (base, queries): (&[f32], &[f32]),
    (k, lists): (usize, usize),
) {
    let builder = IvfIndex::<f32>::builder(dim, lists).metric(metric).encoding(encoding).device(Device::Cpu);
    let mut cpu = builder.iterations(1).build().unwrap();
    cpu.train(base).unwrap();
    cpu.add(base).unwrap();
    let stored: Vec<f32> = match encoding {
        Encoding::Flat => base.to_vec(),
        _ => (0..base.len() / dim).flat_map(|id| cpu.reconstruct(id as u64).unwrap()).collect(),
    };
    let expected = defined(metric, dim, &stored, queries, k);
    let file = tempfile::NamedTempFile::new().unwrap();
    cpu.save(file.path()).unwrap();
    for device in [Device::Cpu, Device::Emulator] {
        let index = IvfIndex::<f32>::load(file.path(), device, None).unwrap();
        for scan in [Scan::ListMajor, Scan::QueryMajor] {
            let options = SearchOptions::new().probes(lists).scan(scan);
            let case = format!("{case}, {metric:?}, {encoding:?}, {device:?}, {scan:?}");
            same(&case, &expected, &index.search_with(queries, k, &options).unwrap());
        }
        // With the distance of a middle neighbour as radius, the results are the neighbours up to it and those at the
        // same distance.
        let options = SearchOptions::new().probes(lists);
        for (query, found) in queries.chunks(dim).zip(expected.distances.chunks(k)) {
            let radius = found[k / 2];
            let near = |y: &&[f32]| metric.order(canonical(metric, query, y), radius).is_le();
            let count = stored.chunks(dim).filter(near).count();
            let rows = index.range_search(query, radius, &options).unwrap();
            assert_eq!(rows.ids.len(), count, "{case}, {metric:?}, {encoding:?}, {device:?}, radius {radius}");
        }
    }
}

/// Vectors of eight components within ±2^`exponent`.
fn uniform(exponent: i32, count: usize, seed: u64) -> Vec<f32> {
    let mut random = Random::new(seed);
    (0..count * 8).map(|_| scaled(unit(&mut random), exponent)).collect()
}

#[test]
fn squares_beyond_f32() {
    let (base, queries) = (uniform(64, 2_500, 3), uniform(64, 20, 8));
    check_flat("norms about 2^65", Metric::L2, 8, &base, &[queries], 1);
}

#[test]
fn squares_beyond_f32_in_lists() {
    // The squared norms of queries and rows near 2^64 may or may not fit in f32.
    for exponent in [63, 64] {
        let (base, queries) = (uniform(exponent, 600, 3), uniform(63, 6, 8));
        check_lists("norms about 2^64", (Metric::L2, Encoding::Flat), 8, (&base, &queries), (3, 4));
    }
}

/// Row 1,234 equals the query and is far from all other rows except row 77. The squared norm overflows f32.
fn one_far_row(n: usize) -> (Vec<f32>, Vec<f32>) {
    let mut random = Random::new(4);
    let mut base: Vec<f32> = (0..n * 4).map(|_| random.signed_unit() / 2.0).collect();
    let query = [scaled(1.2, 63); 4];
    base[4 * 1_234..][..4].copy_from_slice(&query);
    base[4 * 77..][..4].copy_from_slice(&[scaled(0.6, 63); 4]);
    (base, query.to_vec())
}

#[test]
fn a_row_whose_square_is_no_f32() {
    let (base, query) = one_far_row(3_000);
    let found = &check_flat("one far row", Metric::L2, 4, &base, &[query], 1)[0];
    assert_eq!((found.ids[0], found.distances[0]), (1_234, 0.0));
}

#[test]
fn a_row_whose_square_is_no_f32_in_lists() {
    let (base, query) = one_far_row(1_300);
    check_lists("one far row", (Metric::L2, Encoding::Flat), 4, (&base, &query), (2, 3));
}

#[test]
fn codes_whose_squares_are_no_f32() {
    let (base, queries) = (uniform(63, 500, 3), uniform(63, 6, 8));
    let encoding = Encoding::Pq { sub_quantizers: 4, bits: 4, rotate: false };
    for metric in [Metric::L2, Metric::InnerProduct] {
        check_lists("norms about 2^64", (metric, encoding), 8, (&base, &queries), (2, 3));
    }
}

/// The term γ‖x‖ of the bound is smaller than any f32, but it decides: sums lose 2^72 when they are added to 2^100.
#[test]
fn subnormal_queries() {
    let (dim, n) = (1_024, 700);
    let query = vec![f32::from_bits(1); dim];
    let mut base = vec![0.0; n * dim];
    for (row, y) in base.chunks_mut(dim).enumerate() {
        y[0] = scaled(1.0, 100);
        if row == 600 {
            y[16..].fill(scaled(1.0, 72));
        } else {
            y[1] = scaled(1.0, 80);
        }
    }
    let found = &check_flat("subnormal query", Metric::InnerProduct, dim, &base, &[query], 1)[0];
    assert_eq!(found.ids, [600]);
}

/// The inner products of rows 100 and 600, 1.0001 · 2^128 and 2^129, are infinite as f32. The inner product of the
/// half-precision copy of row 100 is 0.9998 · 2^128, which is finite.
fn infinite_products() -> (Vec<f32>, Vec<f32>) {
    let mut base: Vec<f32> = (0..700 * 3).map(|at| scaled(1.0, at % 9)).collect();
    base[100 * 3..101 * 3].fill(scaled(1.333_487, 46));
    base[600 * 3..601 * 3].copy_from_slice(&[scaled(1.0, 49), 0.0, 0.0]);
    (base, vec![scaled(1.0, 80); 3])
}

#[test]
fn infinite_inner_products_tie() {
    let (mut base, query) = infinite_products();
    let found = &check_flat("2^128", Metric::InnerProduct, 3, &base, &[&query], 1)[0];
    assert_eq!((found.ids[0], found.distances[0]), (100, f32::INFINITY));
    // Just below 2^128, where the copies' product is infinite.
    base[100 * 3..101 * 3].copy_from_slice(&[scaled(1.0 - 1.0 / 16_384.0, 48), 0.0, 0.0]);
    base[300 * 3..301 * 3].copy_from_slice(&[scaled(1.0 - 1.0 / 8_192.0, 48), 0.0, 0.0]);
    check_flat("below 2^128", Metric::InnerProduct, 3, &base, &[query], 3);
}

#[test]
fn infinite_inner_products_tie_in_lists() {
    let (base, query) = infinite_products();
    check_lists("2^128", (Metric::InnerProduct, Encoding::Flat), 3, (&base, &query), (1, 2));
}

/// How the exponents of vectors are chosen.
#[derive(Debug, Clone, Copy)]
enum Magnitudes {
    /// All rows have magnitudes near 2^e for this e.
    Same(i32),
    /// Each row has a random exponent from this range.
    Rows(i32, i32),
    /// Each component has a random exponent from this range.
    Components(i32, i32),
    /// All rows have the first exponent, except row 150, which has the second.
    One(i32, i32),
    /// All rows have this exponent and are close to each other.
    Near(i32),
}

fn vectors(random: &mut Random, magnitudes: Magnitudes, dim: usize, n: usize) -> Vec<f32> {
    let centre: Vec<f64> = (0..dim).map(|_| unit(random)).collect();
    let mut rows = Vec::new();
    for row in 0..n {
        let of_row = match magnitudes {
            Magnitudes::Same(exponent) | Magnitudes::Near(exponent) => exponent,
            Magnitudes::Rows(low, high) | Magnitudes::Components(low, high) => whole(random, low..high),
            Magnitudes::One(exponent, other) => {
                if row == 150 {
                    other
                } else {
                    exponent
                }
            }
        };
        for middle in &centre {
            let value = match magnitudes {
                Magnitudes::Near(_) => middle * (1.0 + unit(random) / 4_096.0),
                _ => unit(random),
            };
            let exponent = match magnitudes {
                Magnitudes::Components(low, high) => whole(random, low..high),
                _ => of_row,
            };
            rows.push(scaled(value, exponent));
        }
    }
    rows
}

/// Batches of queries, each of one magnitude, since a batch has one scale: some near to rows of the base, some of any
/// size.
fn batches(random: &mut Random, dim: usize, base: &[f32]) -> Vec<Vec<f32>> {
    let mut batches: Vec<Vec<f32>> = [0, 150, 299]
        .into_iter()
        .map(|row| {
            let row = &base[row * dim..][..dim];
            let near = row.iter().map(|&y| scaled(f64::from(y) * (1.0 + unit(random) / 1e4), 0));
            row.iter().copied().chain(near).collect()
        })
        .collect();
    for _ in 0..2 {
        let exponent = whole(random, -149..128);
        batches.push((0..3 * dim).map(|_| scaled(unit(random), exponent)).collect());
    }
    batches
}

/// Base vectors of all magnitudes and mixtures.
fn kinds() -> Vec<Magnitudes> {
    use Magnitudes::*;
    let mut kinds: Vec<Magnitudes> =
        [-149, -127, -105, -75, -20, 0, 40, 60, 61, 62, 63, 64, 66, 75, 90, 126].map(Same).to_vec();
    kinds.extend([-146, -126, -70, -63, 0, 60, 61, 62, 63, 64, 72, 126].map(Near));
    for (low, high) in [(-149, 128), (60, 66), (-149, -120), (-80, -60), (110, 128)] {
        kinds.extend([Rows(low, high), Components(low, high)]);
    }
    kinds.extend([One(0, 64), One(0, 127), One(62, 0), One(-149, 127), One(-120, 0), One(-60, 66), One(63, -149)]);
    kinds
}

#[test]
fn every_magnitude() {
    const DIM: usize = 5;
    let mut random = Random::new(17);
    for kind in kinds() {
        let base = vectors(&mut random, kind, DIM, 300);
        let batches = batches(&mut random, DIM, &base);
        for metric in Metric::OF_NUMBERS {
            check_flat(&format!("{kind:?}"), metric, DIM, &base, &batches, 3);
        }
    }
}

#[test]
fn every_magnitude_in_lists() {
    const DIM: usize = 5;
    let mut random = Random::new(18);
    for (number, kind) in kinds().into_iter().enumerate() {
        let base = vectors(&mut random, kind, DIM, 300);
        let batches = batches(&mut random, DIM, &base);
        let metric = Metric::OF_NUMBERS[number % 3];
        check_lists(&format!("{kind:?}"), (metric, Encoding::Flat), DIM, (&base, &batches[number % 5]), (2, 3));
    }
}
