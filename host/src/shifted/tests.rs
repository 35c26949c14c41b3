//! Shifted sort against a naive search in float64, and the devices against each other.

use proptest::prelude::*;
use test_random::Random;

use super::*;
use crate::FlatIndex;

fn squared(x: &[f32], y: &[f32]) -> f64 {
    x.iter().zip(y).map(|(&x, &y)| (f64::from(x) - f64::from(y)).powi(2)).sum()
}

/// All others of `base`, by (distance, id).
fn naive(base: &[f32], dim: usize, query: &[f32], own: Option<usize>) -> Vec<(f64, u64)> {
    let rows = base.chunks(dim).enumerate().filter(|&(id, _)| Some(id) != own);
    let mut all: Vec<(f64, u64)> = rows.map(|(id, row)| (squared(row, query), id as u64)).collect();
    all.sort_by(|a, b| a.partial_cmp(b).unwrap());
    all
}

fn built(builder: ShiftedIndexBuilder, device: Device, rows: &[f32]) -> ShiftedIndex {
    let mut index = builder.device(device).build().unwrap();
    index.add(rows).unwrap();
    index
}

/// Exactly the naive answer; for whole numbers, where both are exact.
fn assert_complete(found: &Neighbors, base: &[f32], dim: usize, queries: &[f32], own: bool) {
    assert_eq!(found.queries(), queries.len() / dim);
    for (number, query) in queries.chunks(dim).enumerate() {
        let mut expected = naive(base, dim, query, own.then_some(number));
        expected.truncate(found.k);
        let (ids, distances) = found.row(number);
        let of_query: Vec<(f64, u64)> = found.found(number).map(|(id, distance)| (f64::from(distance), id)).collect();
        assert_eq!(of_query, expected, "query {number}");
        assert!(ids[expected.len()..].iter().all(|&id| id == NONE));
        assert!(distances[expected.len()..].iter().all(|&distance| distance == f32::INFINITY));
    }
}

/// Checks the results: sorted, each id once, and the distance of each right to f32.
fn assert_sound(found: &Neighbors, base: &[f32], dim: usize, queries: &[f32]) {
    for (number, query) in queries.chunks(dim).enumerate() {
        let of_query: Vec<(u64, f32)> = found.found(number).collect();
        assert!(of_query.is_sorted_by(|a, b| (a.1, a.0) < (b.1, b.0)), "{of_query:?}");
        let mut ids: Vec<u64> = of_query.iter().map(|&(id, _)| id).collect();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), of_query.len());
        for (id, distance) in of_query {
            let exact = squared(query, &base[id as usize * dim..][..dim]);
            assert!((f64::from(distance) - exact).abs() <= exact * 1e-7, "{distance} {exact}");
        }
    }
}

#[test]
fn a_neighbourhood_of_everything_is_exact() {
    let mut random = Random::new(1);
    for (dim, n, k) in [(1, 50, 3), (3, 300, 8), (6, 200, 5), (12, 130, 200), (2, 1, 2)] {
        let (base, queries) = (random.whole(n * dim, 7), random.whole(40 * dim, 9));
        let index = built(ShiftedIndex::builder(dim).shifts(2).neighborhood(usize::MAX), Device::Cpu, &base);
        assert_complete(&index.search(&queries, k).unwrap(), &base, dim, &queries, false);
        assert_complete(&index.self_join(k).unwrap(), &base, dim, &base, true);
    }
}

#[test]
fn little_is_missed_in_low_dimension() {
    let mut random = Random::new(2);
    for (dim, least) in [(2, 0.97), (3, 0.93), (6, 0.6)] {
        let (base, queries) = (random.units(5000 * dim), random.units(300 * dim));
        let index = built(ShiftedIndex::builder(dim), Device::Cpu, &base);
        let mut flat = FlatIndex::new(dim, Metric::L2, Device::Cpu).unwrap();
        flat.add(&base).unwrap();
        for k in [1, 8, 20] {
            let found = index.search(&queries, k).unwrap();
            assert_sound(&found, &base, dim, &queries);
            assert!(found.ids.iter().all(|&id| id != NONE));
            let measured = quality(&found, &flat.search(&queries, k).unwrap()).unwrap();
            assert!(measured.recall > least, "dimension {dim}, k = {k}: {measured:?}");
            assert!(measured.epsilon.mean < 0.2, "dimension {dim}, k = {k}: {measured:?}");
        }
        // More copies find more.
        let few = built(ShiftedIndex::builder(dim).shifts(1), Device::Cpu, &base).search(&queries, 8).unwrap();
        let exact = flat.search(&queries, 8).unwrap();
        let many = quality(&index.search(&queries, 8).unwrap(), &exact).unwrap();
        assert!(quality(&few, &exact).unwrap().recall < many.recall);
    }
}

/// CPU and emulator, bit for bit: every width of code, every kernel, several passes, ties, windows that are cut at both
/// ends.
#[test]
fn devices_agree_to_the_bit() {
    let mut random = Random::new(3);
    let cases = [
        // dimension, points, queries, k, shifts, neighborhood; 0: as it comes
        (1, 40, 5, 1, 0, 0),
        (3, 300, 9, 8, 0, 0),
        (4, 150, 4, 40, 3, 0),
        (6, 260, 9, 8, 0, 0),
        (6, 200, 3, 150, 2, 70),
        (8, 100, 3, 31, 2, 45),
        (12, 60, 3, 16, 2, 0),
        (11, 90, 2, 100, 3, 0),
    ];
    for (dim, n, nq, k, shifts, neighborhood) in cases {
        let ties = n % 100 == 0;
        let base = if ties { random.whole(n * dim, 4) } else { random.units(n * dim) };
        let queries = if ties { random.whole(nq * dim, 5) } else { random.units(nq * dim) };
        let mut builder = ShiftedIndex::builder(dim);
        if shifts > 0 {
            builder = builder.shifts(shifts);
        }
        if neighborhood > 0 {
            builder = builder.neighborhood(neighborhood);
        }
        let [cpu, emulator] = [Device::Cpu, Device::Emulator].map(|device| {
            let index = built(builder.clone(), device, &base);
            let joined = (n <= 60).then(|| index.self_join(k).unwrap());
            (index.search(&queries, k).unwrap(), joined)
        });
        assert_sound(&cpu.0, &base, dim, &queries);
        assert_eq!(cpu, emulator, "dimension {dim}, {n} points, k = {k}");
    }
}

#[test]
fn a_self_join_leaves_out_the_point_and_keeps_its_duplicates() {
    // Every point three times.
    let third: Vec<f32> = Random::new(4).units(40 * 3);
    let base = [&third[..], &third, &third].concat();
    let index = built(ShiftedIndex::builder(3), Device::Cpu, &base);
    let found = index.self_join(3).unwrap();
    assert_eq!(found.queries(), 120);
    for id in 0..120u64 {
        let (ids, distances) = found.row(id as usize);
        let mut twins = [(id + 40) % 120, (id + 80) % 120];
        twins.sort_unstable();
        assert_eq!((&ids[..2], &distances[..2]), (&twins[..], &[0.0, 0.0][..]));
        assert!(distances[2] > 0.0);
    }
}

#[test]
fn odd_ranges_are_sorted_all_the_same() {
    let sets: [Vec<f32>; 5] = [
        // One point, many times: no extent at all.
        [0.1, -3.0, 7.0].repeat(50),
        // Two constant components.
        (0..50).flat_map(|i| [5.0, i as f32, -1.0]).collect(),
        // The whole range of f32; its squares leave it.
        (0..50).flat_map(|i| [f32::MAX, -f32::MAX, f32::MAX * (i as f32 / 25.0 - 1.0)]).collect(),
        // Squares that are subnormal.
        (0..50).flat_map(|i| [1e-20 * i as f32, 0.0, -1e-20 * (i % 3) as f32]).collect(),
        // One far outlier: all others share a cell.
        (0..50).flat_map(|i| [i as f32, if i == 7 { 1e30 } else { 0.0 }, 0.0]).collect(),
    ];
    for base in sets {
        let index = built(ShiftedIndex::builder(3).neighborhood(50), Device::Cpu, &base);
        let found = index.search(&base, 4).unwrap();
        for (query, (ids, distances)) in found.rows().enumerate() {
            assert!(distances.is_sorted() && distances[0] == 0.0);
            // The point itself, or the first that equals it.
            assert_eq!(base[ids[0] as usize * 3..][..3], base[query * 3..][..3]);
        }
    }
    // Subnormal components: the scale is beyond f32, every distance is zero.
    let base: Vec<f32> = (0..50).map(f32::from_bits).collect();
    let found = built(ShiftedIndex::builder(1), Device::Cpu, &base).search(&[0.0, 1e-45], 2).unwrap();
    assert_eq!((found.ids, found.distances), (vec![0, 1, 0, 1], vec![0.0; 4]));
}

#[test]
fn queries_outside_the_box_find_its_border() {
    let base: Vec<f32> = (0..400).flat_map(|i| [(i % 20) as f32, (i / 20) as f32]).collect();
    let index = built(ShiftedIndex::builder(2), Device::Cpu, &base);
    let found = index.search(&[-100.0, 7.2, 9.9, 1000.0, 30.0, -4.0], 1).unwrap();
    assert_eq!(found.ids, [140, 390, 19]);
}

#[test]
fn adding_again_sorts_anew() {
    let mut random = Random::new(5);
    let base = random.units(200 * 3);
    let mut index = built(ShiftedIndex::builder(3), Device::Cpu, &base[..90]);
    index.add(&[]).unwrap();
    index.add(&base[90..]).unwrap();
    let queries = random.units(30);
    let whole = built(ShiftedIndex::builder(3), Device::Cpu, &base);
    assert_eq!(index.search(&queries, 5).unwrap(), whole.search(&queries, 5).unwrap());
    assert_eq!((index.len(), index.rows(), index.shifts(), index.dim()), (200, &base[..], 5, 3));
}

#[test]
fn bad_arguments_are_refused_with_the_numbers() {
    let build = |builder: ShiftedIndexBuilder| builder.device(Device::Cpu).build().map(|_| ());
    assert!(matches!(build(ShiftedIndex::builder(0)), Err(Error::Zero { what: "dimension" })));
    assert!(matches!(
        build(ShiftedIndex::builder(13)),
        Err(Error::TooMany { what: "dimensions for shifted sort", asked: 13, limit: 12 })
    ));
    assert!(matches!(build(ShiftedIndex::builder(3).shifts(0)), Err(Error::Zero { what: "shifts" })));
    assert!(matches!(build(ShiftedIndex::builder(3).shifts(1 << 16)), Err(Error::TooMany { what: "shifts", .. })));
    assert!(matches!(build(ShiftedIndex::builder(3).neighborhood(0)), Err(Error::Zero { what: "positions" })));

    for device in [Device::Cpu, Device::Emulator] {
        let mut index = ShiftedIndex::builder(2).device(device).build().unwrap();
        let none = index.search(&[0.0, 1.0], 2).unwrap();
        assert_eq!((none.ids, none.distances), (vec![NONE; 2], vec![f32::INFINITY; 2]));
        assert_eq!(index.self_join(3).unwrap().queries(), 0);
        index.add(&[0.0, 0.0, 1.0, 1.0]).unwrap();
        for bad in [f32::NAN, f32::INFINITY] {
            let rows = [0.0, 1.0, 2.0, bad];
            assert!(matches!(index.add(&rows), Err(Error::NotFinite { row: 1, column: 1, .. })));
            assert!(matches!(index.search(&rows, 1), Err(Error::NotFinite { row: 1, column: 1, .. })));
        }
        assert!(matches!(index.add(&[1.0]), Err(Error::Ragged { what: "components", len: 1, size: 2 })));
        assert!(matches!(index.search(&[1.0], 1), Err(Error::Ragged { what: "components", len: 1, size: 2 })));
        assert!(matches!(index.search(&[1.0, 1.0], 0), Err(Error::Zero { what: "k" })));
        assert!(matches!(index.self_join(0), Err(Error::Zero { what: "k" })));
        assert!(matches!(index.search(&[1.0, 1.0], usize::MAX), Err(Error::ResultTooLarge { .. })));
        let (mut ids, mut distances) = ([7; 3], [f32::NAN; 3]);
        index.search_into(&[0.75, 1.0], 3, &mut ids, &mut distances).unwrap();
        assert_eq!((ids, distances), ([1, 0, NONE], [0.0625, 1.5625, f32::INFINITY]));
        let short = index.search_into(&[0.75, 1.0], 2, &mut ids, &mut distances);
        assert!(matches!(short, Err(Error::WrongLength { what: "results", expected: 2, actual: 3 })));
    }

    let mut small = ShiftedIndex::builder(2).device(Device::Emulator).memory_budget(1000).build().unwrap();
    assert!(matches!(small.add(&[0.5; 200]), Err(Error::OutOfDeviceMemory { available: 1000, .. })));
    assert!(small.is_empty());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]
    #[test]
    fn any_shape_is_sound_and_complete_where_all_is_seen(
        dim in 1usize..=MAX_DIM, n in 1usize..120, k in 1usize..140, shifts in 1usize..6, part in 1usize..200, seed: u64,
    ) {
        let mut random = Random::new(seed);
        let (base, queries) = (random.whole(n * dim, 6), random.whole(7 * dim, 8));
        let index = built(ShiftedIndex::builder(dim).shifts(shifts).neighborhood(part), Device::Cpu, &base);
        let found = index.search(&queries, k).unwrap();
        if part >= n {
            assert_complete(&found, &base, dim, &queries, false);
        } else {
            assert_sound(&found, &base, dim, &queries);
            for query in 0..7 {
                prop_assert!(found.found(query).count() >= k.min(part));
            }
        }
        let joined = built(ShiftedIndex::builder(dim).shifts(shifts), Device::Cpu, &base).self_join(k).unwrap();
        assert_sound(&joined, &base, dim, &base);
        for query in 0..n {
            prop_assert_eq!(joined.found(query).count(), k.min(n - 1));
        }
    }
}
