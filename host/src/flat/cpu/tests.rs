//! Tests of the CPU path: values against a separate float64 reference, bits against the canonical definition.

use std::cell::Cell;

use half::{bf16, f16};
use test_random::Random;

use super::{FlatBits, FlatCpu};
use crate::flat::FlatBackend;
use crate::metric::canonical;
use crate::product::cpu::bits::BitCount;
use crate::product::cpu::bound::{QueryBound, all_whole, largest_norm};
use crate::product::cpu::scan;
use crate::product::cpu::scan::{Sink, Tile};
use crate::search_options::SearchRequest;
use crate::simd::Isa;
use crate::vectors::VectorSlice;
use crate::{Bitset, Element, Metric, NONE};

fn vectors<T: Element>(random: &mut Random, len: usize, scale: f32) -> Vec<T> {
    (0..len).map(|_| T::from_f32(random.signed_unit() * scale)).collect()
}

/// The distance by the textbook formula in f64, which shares no code with the definition.
fn textbook<T: Element>(metric: Metric, x: &[T], y: &[T]) -> f64 {
    let pairs = || x.iter().zip(y).map(|(x, y)| (f64::from(x.to_f32()), f64::from(y.to_f32())));
    match metric {
        Metric::L2 => pairs().map(|(x, y)| (x - y).powi(2)).sum(),
        Metric::InnerProduct => pairs().map(|(x, y)| x * y).sum(),
        Metric::Cosine => {
            let norms =
                pairs().map(|(x, _)| x * x).sum::<f64>().sqrt() * pairs().map(|(_, y)| y * y).sum::<f64>().sqrt();
            if norms == 0.0 { 0.0 } else { pairs().map(|(x, y)| x * y).sum::<f64>() / norms }
        }
        Metric::Hamming => {
            let bit = |x: f64, at: i32| (x / 2f64.powi(at)) as u32 % 2;
            pairs().map(|(x, y)| (0..8).filter(|&at| bit(x, at) != bit(y, at)).count() as f64).sum()
        }
    }
}

fn square_norm(row: &[f32]) -> f64 {
    row.iter().map(|&x| f64::from(x).powi(2)).sum()
}

/// (distance, row) of all rows whose bits are set by the definition, best first.
fn ranked<T: Element>(metric: Metric, base: &[T], query: &[T], among: Option<&Bitset>) -> Vec<(f32, u64)> {
    let all = base.chunks(query.len()).map(|y| canonical(metric, query, y)).zip(0..);
    let mut ranked: Vec<(f32, u64)> = all.filter(|&(_, row)| among.is_none_or(|bits| bits.get(row as usize))).collect();
    ranked.sort_by(|a, b| metric.order(a.0, b.0).then(a.1.cmp(&b.1)));
    ranked
}

/// Searches with every instruction set and checks the whole contract.
fn check<T: Element>(metric: Metric, dim: usize, base: &[T], queries: &[T], k: usize, budget: Option<u64>) {
    let mut first = None;
    for isa in Isa::all() {
        let mut index = FlatCpu::<T>::with_isa(dim, metric, budget, isa);
        index.add(VectorSlice::of(base, dim)).unwrap();
        let results = search(&index, queries, k);
        // The first result is compared with the references, the others with the first, bit by bit.
        let bits = (results.0.clone(), results.1.iter().map(|d| d.to_bits()).collect::<Vec<u32>>());
        match &first {
            None => {
                check_results(metric, dim, base, queries, k, &results, isa);
                first = Some(bits);
            }
            Some(first) => {
                let shape = (dim, base.len() / dim, queries.len() / dim, k);
                assert!(*first == bits, "{:?} {metric:?}: {isa:?} differs, {shape:?}", T::TYPE);
            }
        }
    }
}

/// As [`check`], for one index that has `base`.
fn check_index<T: Element>(index: &FlatCpu<T>, base: &[T], queries: &[T], k: usize) {
    check_results(index.metric, index.dim, base, queries, k, &search(index, queries, k), index.isa);
}

fn search<T: Element>(index: &FlatCpu<T>, queries: &[T], k: usize) -> (Vec<u64>, Vec<f32>) {
    let slots = queries.len() / index.dim * k;
    let (mut ids, mut distances) = (vec![7; slots], vec![f32::NAN; slots]);
    index.search(&SearchRequest::among_all(VectorSlice::of(queries, index.dim)), k, &mut ids, &mut distances).unwrap();
    (ids, distances)
}

fn check_results<T: Element>(
    metric: Metric,
    dim: usize,
    base: &[T],
    queries: &[T],
    k: usize,
    (ids, distances): &(Vec<u64>, Vec<f32>),
    isa: Isa,
) {
    let (count, rows) = (queries.len() / dim, base.len() / dim);
    let case = format!("{:?} {metric:?} {isa:?} dim {dim} rows {rows} queries {count} k {k}", T::TYPE);
    for (query, (ids, distances)) in queries.chunks(dim).zip(ids.chunks(k).zip(distances.chunks(k))) {
        // The bits: the definition for every vector, sorted.
        let mut expected = ranked(metric, base, query, None);
        expected.resize(k, (metric.worst(), NONE));
        for (slot, &(distance, id)) in expected.iter().enumerate() {
            assert_eq!((ids[slot], distances[slot].to_bits()), (id, distance.to_bits()), "{case}: slot {slot}");
        }
        // The values: the textbook distance of each id, and no better vector left out.
        let reference: Vec<f64> = base.chunks(dim).map(|y| textbook(metric, query, y)).collect();
        let sign = if metric.larger_is_better() { -1.0 } else { 1.0 };
        let mut sorted: Vec<f64> = reference.iter().map(|d| d * sign).collect();
        sorted.sort_by(f64::total_cmp);
        let norm = |v: &[T]| v.iter().map(|v| f64::from(v.to_f32()).powi(2)).sum::<f64>().sqrt();
        for (slot, &id) in ids.iter().enumerate().take(rows) {
            let y = &base[id as usize * dim..][..dim];
            let scale = match metric {
                Metric::L2 => reference[id as usize],
                Metric::InnerProduct => reference[id as usize].abs() + norm(query) * norm(y) * 1e-8,
                Metric::Cosine => 1.0,
                Metric::Hamming => 0.0,
            };
            let tolerance = scale * 2f64.powi(-23) + f64::from(f32::from_bits(1));
            let value = f64::from(distances[slot]);
            // Values beyond f32 are all ±∞ in the result, and tie.
            let in_range = |value: f64| value.abs() < f64::from(f32::MAX);
            if in_range(reference[id as usize]) && in_range(sorted[slot]) {
                assert!((value - reference[id as usize]).abs() <= tolerance, "{case}: value in slot {slot}");
                assert!(
                    reference[id as usize] * sign - sorted[slot] <= 2.0 * tolerance,
                    "{case}: order at slot {slot}"
                );
            }
        }
    }
}

fn all_types(metric: Metric, dim: usize, rows: usize, queries: usize, k: usize, random: &mut Random) {
    fn one<T: Element>(
        metric: Metric,
        dim: usize,
        rows: usize,
        queries: usize,
        k: usize,
        random: &mut Random,
        scale: f32,
    ) {
        let base: Vec<T> = vectors(random, rows * dim, scale);
        let queries: Vec<T> = vectors(random, queries * dim, scale);
        check(metric, dim, &base, &queries, k, None);
    }
    one::<f32>(metric, dim, rows, queries, k, random, 1.0);
    one::<f16>(metric, dim, rows, queries, k, random, 8.0);
    one::<bf16>(metric, dim, rows, queries, k, random, 1e3);
    one::<u8>(metric, dim, rows, queries, k, random, 255.0);
    one::<i8>(metric, dim, rows, queries, k, random, 127.0);
}

#[test]
fn small_shapes_of_every_type_and_metric() {
    let mut random = Random::new(1);
    for metric in Metric::OF_NUMBERS {
        for (dim, rows, queries, k) in [
            (1, 1, 1, 1),
            (1, 300, 9, 4),
            (2, 5, 3, 9),
            (3, 257, 17, 1),
            (7, 600, 8, 100),
            (15, 513, 50, 10),
            (16, 1000, 1, 10),
            (17, 256, 33, 256),
            (33, 255, 65, 300),
            (96, 700, 10, 7),
            (127, 300, 24, 2),
            (128, 1200, 49, 20),
            (129, 100, 12, 99),
            (500, 90, 9, 5),
            (2048, 40, 11, 3),
        ] {
            all_types(metric, dim, rows, queries, k, &mut random);
        }
    }
}

#[test]
fn random_shapes() {
    let mut random = Random::new(2);
    for _ in 0..40 {
        let metric = Metric::OF_NUMBERS[random.below(3)];
        let dim = if random.below(4) == 0 { 1 + random.below(700) } else { 1 + random.below(70) };
        let (rows, queries) = (1 + random.below(900), 1 + random.below(70));
        let k = if random.below(2) == 0 { 1 + random.below(12) } else { 1 + random.below(rows + 5) };
        all_types(metric, dim, rows, queries, k, &mut random);
    }
}

#[test]
fn many_rows_thin_the_buffers_many_times() {
    let mut random = Random::new(3);
    let base: Vec<f32> = vectors(&mut random, 20_000 * 12, 1.0);
    for queries in [1, 5, 40, 300] {
        let queries: Vec<f32> = vectors(&mut random, queries * 12, 1.0);
        for k in [1, 10, 300] {
            let mut index = FlatCpu::new(12, Metric::L2, None);
            index.add(VectorSlice::of(&base, index.dim)).unwrap();
            check_index(&index, &base, &queries, k);
        }
    }
}

#[test]
fn ties_go_to_the_lower_id() {
    let mut random = Random::new(4);
    for metric in Metric::OF_NUMBERS {
        // Few distinct vectors, each many times, then one vector only.
        let distinct: Vec<f32> = vectors(&mut random, 5 * 10, 1.0);
        let base: Vec<f32> = (0..1500).flat_map(|_| distinct[random.below(5) * 10..][..10].to_vec()).collect();
        let queries: Vec<f32> = vectors(&mut random, 20 * 10, 1.0);
        for k in [1, 3, 128, 700] {
            check(metric, 10, &base, &queries, k, None);
            check(metric, 10, &distinct[..10].repeat(800), &queries, k, None);
        }
        let integers: Vec<u8> = (0..2000 * 3).map(|_| random.below(3) as u8).collect();
        check(metric, 3, &integers, &integers[..60], 50, None);
    }
}

#[test]
fn magnitudes_at_the_ends_of_the_range_lose_nothing() {
    let mut random = Random::new(5);
    for metric in Metric::OF_NUMBERS {
        for (rows_scale, query_scale) in [
            (1e30, 1e30),
            (3.4e38, 1.0),
            (3.4e38, 3.4e38),
            (1e-38, 1e-38),
            (1e-44, 1e-44),
            (1e-44, 3e38),
            (1e30, 1e-30),
            (1e19, 1e19),
            (1e-30, 1.0),
        ] {
            let base: Vec<f32> = vectors(&mut random, 700 * 9, rows_scale);
            for queries in [3, 20] {
                let queries: Vec<f32> = vectors(&mut random, queries * 9, query_scale);
                check(metric, 9, &base, &queries, 5, None);
            }
        }
        // Every magnitude in one base, with zero vectors and zero queries.
        let mut base: Vec<f32> =
            (0..900).flat_map(|i| vectors::<f32>(&mut random, 9, 2f32.powi(i % 267 - 140))).collect();
        base[9 * 31..9 * 35].fill(0.0);
        let mut queries: Vec<f32> =
            (0..12).flat_map(|i| vectors::<f32>(&mut random, 9, 2f32.powi(i * 20 - 120))).collect();
        queries[9..18].fill(0.0);
        check(metric, 9, &base, &queries, 40, None);
    }
}

#[test]
fn data_far_from_the_origin_is_settled_by_canonical_distances() {
    let mut random = Random::new(6);
    // The differences are below the resolution of the f32 score, so nothing can be filtered.
    let base: Vec<f32> = (0..3000 * 20).map(|_| 1000.0 + random.signed_unit() * 0.01).collect();
    let queries: Vec<f32> = (0..20 * 20).map(|_| 1000.0 + random.signed_unit() * 0.01).collect();
    for k in [1, 10, 200] {
        check(Metric::L2, 20, &base, &queries, k, None);
        check(Metric::Cosine, 20, &base, &queries[..60], k, None);
    }
    // One huge vector weakens the bound of its block only, and changes no result.
    let mut base: Vec<f32> = vectors(&mut random, 3000 * 20, 1.0);
    base[20 * 1234] = 1e25;
    for metric in Metric::OF_NUMBERS {
        check(metric, 20, &base, &vectors::<f32>(&mut random, 30 * 20, 1.0), 10, None);
    }
}

#[test]
fn adding_in_parts_equals_adding_at_once() {
    let mut random = Random::new(7);
    for metric in Metric::OF_NUMBERS {
        let base: Vec<f32> = vectors(&mut random, 1000 * 6, 1.0);
        let mut parts = FlatCpu::new(6, metric, None);
        let mut left = base.as_slice();
        while !left.is_empty() {
            let (now, later) = left.split_at((random.below(150) * 6).min(left.len()));
            parts.add(VectorSlice::of(now, parts.dim)).unwrap();
            left = later;
        }
        let mut whole = FlatCpu::<f32>::new(6, metric, None);
        whole.add(VectorSlice::of(&base, whole.dim)).unwrap();
        assert_eq!(parts.largest, whole.largest);
        check_index(&parts, &base, &vectors(&mut random, 30 * 6, 1.0), 11);
    }
}

#[test]
fn a_tiny_budget_only_narrows_the_groups() {
    let mut random = Random::new(8);
    let base: Vec<f32> = vectors(&mut random, 800 * 6, 1.0);
    let queries: Vec<f32> = vectors(&mut random, 50 * 6, 1.0);
    for budget in [0, 1, 100_000, 1 << 20] {
        check(Metric::L2, 6, &base, &queries, 30, Some(budget));
    }
}

/// A sink that keeps every score.
struct All(Vec<(usize, u32, f32)>);

impl Sink for All {
    fn take(&mut self, passed: u32, scores: &[f32; 16], first_query: usize, id: u32) {
        let lanes = (0..16).filter(|l| passed >> l & 1 == 1);
        self.0.extend(lanes.map(|l| (first_query + l, id, scores[l])));
    }
}

#[test]
fn scores_stay_within_the_proved_bound() {
    let mut random = Random::new(9);
    for isa in Isa::all() {
        for dim in [1, 3, 16, 33, 128, 300, 1000] {
            for far in [0.0, 50.0] {
                let rows: Vec<f32> = (0..21 * dim).map(|_| random.signed_unit() + far).collect();
                let query: Vec<f32> = (0..dim).map(|_| random.signed_unit() + far).collect();
                let squares: Vec<f64> = rows.chunks(dim).map(square_norm).collect();
                let offset: Vec<f32> = squares.iter().map(|&s| s as f32).collect();
                let doubled: Vec<f32> = query.iter().map(|x| -2.0 * x).collect();
                let bound = QueryBound::new(Metric::L2, dim, square_norm(&query));
                let error = bound.error(largest_norm(Metric::L2, squares.iter().copied()));
                let tile = Tile { dim, rows: &rows, first_id: 5, scale: &[], offset: &offset };

                // The query in the first lane of a panel of each width, and in the direct kernel.
                for vecs in 0..=3 {
                    let mut all = All(Vec::new());
                    let thresholds = [const { Cell::new(f32::NEG_INFINITY) }; 48];
                    thresholds[0].set(f32::INFINITY);
                    if vecs == 0 {
                        scan::scan_direct(isa, &tile, &doubled, &thresholds[..1], &mut all);
                    } else {
                        let width = vecs * isa.lanes();
                        let mut panel = vec![0.0; width * dim];
                        panel.iter_mut().step_by(width).zip(&doubled).for_each(|(to, from)| *to = *from);
                        scan::scan_panel(isa, vecs, &tile, &panel, &thresholds, &mut all);
                    }
                    assert_eq!(all.0.len(), 21);
                    for (at, &(lane, id, score)) in all.0.iter().enumerate() {
                        assert_eq!((lane, id as usize), (0, at + 5));
                        let y = &rows[at * dim..][..dim];
                        let square: f64 = query.iter().map(|&x| f64::from(x).powi(2)).sum();
                        let exact = f64::from(canonical(Metric::L2, &query, y)) - square;
                        let gap = (f64::from(score) - exact).abs();
                        assert!(gap <= error, "{isa:?} dim {dim} far {far}: {gap} exceeds {error}");
                    }
                }
            }
        }
    }
}

#[test]
fn many_threads_search_one_index() {
    let mut random = Random::new(10);
    let base: Vec<f32> = vectors(&mut random, 2000 * 8, 1.0);
    let mut index = FlatCpu::<f32>::new(8, Metric::InnerProduct, None);
    index.add(VectorSlice::of(&base, index.dim)).unwrap();
    std::thread::scope(|scope| {
        for seed in 11..15 {
            let (index, base) = (&index, &base);
            scope.spawn(move || check_index(index, base, &vectors(&mut Random::new(seed), 40 * 8, 1.0), 10));
        }
    });
}

#[test]
fn whole_numbers_are_told_from_others() {
    let whole = [0.0, -0.0, 1.0, -128.0, 255.0, 4_194_303.0, 4_194_304.0, -4_194_304.0];
    assert!(all_whole(&whole) && all_whole(&[]));
    // The sum of the third value and 1.5 · 2²³ is exact, although the value is not whole.
    for other in [0.5, -254.5, -8_388_607.5, 4_194_303.5, 1e-30, -1e-45, 1e20, f32::NAN, f32::INFINITY] {
        let mut values = vec![3.0; 600];
        values[517] = other;
        assert!(!all_whole(&values), "{other}");
    }
}

/// Checks searches and range searches among the rows whose bits are set.
fn check_among<T: Element>(
    (index, metric): (&dyn FlatBackend, Metric),
    queries: &[T],
    k: usize,
    among: Option<&Bitset>,
    random: &mut Random,
) {
    let stored = index.host_rows().unwrap();
    let (dim, rows) = (stored.dim(), stored.components::<T>());
    let accepted = among.map_or(index.len(), Bitset::count_ones);
    let case = format!("{:?} {metric:?} dim {dim}, {accepted} of {} rows, k {k}", T::TYPE, index.len());
    let expected: Vec<_> = queries.chunks(dim).map(|query| ranked(metric, rows, query, among)).collect();
    let slots = expected.len() * k;
    let (mut ids, mut distances) = (vec![7; slots], vec![f32::NAN; slots]);
    let request = SearchRequest { filter: among, ..SearchRequest::among_all(VectorSlice::of(queries, dim)) };
    index.search(&request, k, &mut ids, &mut distances).unwrap();
    for (query, expected) in expected.iter().enumerate() {
        for slot in 0..k {
            let (distance, row) = expected.get(slot).copied().unwrap_or((metric.worst(), NONE));
            let found = (ids[query * k + slot], distances[query * k + slot].to_bits());
            assert_eq!(found, (row, distance.to_bits()), "{case}: query {query}, slot {slot}");
        }
    }
    let mut radii = vec![f32::INFINITY, f32::NEG_INFINITY];
    if accepted > 0 {
        let some = &expected[random.below(expected.len())];
        let (best, last) = (some[0].0, some[accepted - 1].0);
        // Radii that occur, and their neighbours.
        radii.extend([best, some[random.below(accepted)].0, best.next_down(), best.next_up(), last, best / 2.0]);
    }
    for radius in radii {
        let found = index.range_search(VectorSlice::of(queries, dim), radius, among).unwrap();
        assert_eq!(found.queries(), expected.len());
        for (query, expected) in expected.iter().enumerate() {
            let worse = |distance| if metric.larger_is_better() { distance < radius } else { distance > radius };
            let within: Vec<_> = expected.iter().filter(|found| !worse(found.0)).copied().collect();
            let (ids, distances) = found.row(query);
            let found: Vec<_> = distances.iter().copied().zip(ids.iter().copied()).collect();
            assert_eq!(found, within, "{case}: query {query}, radius {radius}");
        }
    }
}

/// Bits of which about `percent` of 100 are set.
fn bits(random: &mut Random, rows: usize, percent: usize) -> Bitset {
    (0..rows).map(|_| random.below(100) < percent).collect()
}

#[test]
fn searches_among_bits_and_ranges_are_those_of_the_definition() {
    fn one<T: Element>(random: &mut Random, metric: Metric, scale: f32) {
        for _ in 0..2 {
            let (dim, rows, queries) = (1 + random.below(40), 1 + random.below(700), [1, 3, 20, 64][random.below(4)]);
            let mut index = FlatCpu::<T>::new(dim, metric, Some([1 << 20, 0][random.below(2)]));
            let base: Vec<T> = vectors(random, rows * dim, scale);
            index.add(VectorSlice::of(&base, dim)).unwrap();
            let queries: Vec<T> = vectors(random, queries * dim, scale);
            for percent in [100, 90, 50, 10, 1, 0] {
                let among = bits(random, rows, percent);
                let k = [1, 1 + random.below(20), rows + 2][random.below(3)];
                check_among((&index, metric), &queries, k, Some(&among), random);
            }
            check_among((&index, metric), &queries, 3, None, random);
        }
    }
    let mut random = Random::new(12);
    for metric in Metric::OF_NUMBERS {
        one::<f32>(&mut random, metric, 1.0);
        one::<f16>(&mut random, metric, 8.0);
        one::<bf16>(&mut random, metric, 1e3);
        // Few different values give many ties.
        one::<u8>(&mut random, metric, 3.0);
        one::<i8>(&mut random, metric, 3.0);
        // Products and squares overflow.
        one::<f32>(&mut random, metric, 1e25);
    }
}

#[test]
fn bits_are_found_as_by_the_definition() {
    let mut random = Random::new(15);
    for count in BitCount::all() {
        for turn in 0..24 {
            let (dim, queries) = (1 + random.below([9, 200][turn % 2]), [1, 3, 20, 600][turn % 4]);
            let mut index = FlatBits::counting_by(count, dim, Some([1 << 20, 0][random.below(2)]));
            // Few different bytes give many ties.
            let mut bytes = |count: usize| -> Vec<u8> {
                let values = if turn % 3 == 0 { 3 } else { 256 };
                (0..count * dim).map(|_| random.below(values) as u8).collect()
            };
            let (rows, queries) = (1 + turn * 70, bytes(queries));
            index.add(VectorSlice::of(&bytes(rows), dim)).unwrap();
            index.add(VectorSlice::of(&bytes(300), dim)).unwrap();
            let numbers = [0, 1, 2, rows as u64, rows as u64 + 299];
            index.replace(&numbers, VectorSlice::of(&bytes(numbers.len()), dim)).unwrap();
            let kept: Bitset = (0..rows + 300).map(|row| row % 7 != 3 || row < 20).collect();
            index.retain(&kept).unwrap();
            assert_eq!(index.len(), kept.count_ones());
            for percent in [90, 50, 10, 1, 0] {
                let among = bits(&mut random, index.len(), percent);
                let k = [1, 1 + random.below(20), rows + 2][random.below(3)];
                check_among((&index, Metric::Hamming), &queries, k, Some(&among), &mut random);
            }
            check_among((&index, Metric::Hamming), &queries, 10, None, &mut random);
            let copy = index.copied(5).unwrap();
            check_among((&*copy, Metric::Hamming), &queries, 3, None, &mut random);
        }
    }
}

#[test]
fn a_tiny_budget_changes_no_search_among_few_rows() {
    let mut random = Random::new(13);
    for metric in Metric::OF_NUMBERS {
        let base: Vec<i8> = vectors(&mut random, 40_000 * 2, 100.0);
        let mut index = FlatCpu::<i8>::new(2, metric, Some(0));
        index.add(VectorSlice::of(&base, 2)).unwrap();
        let among = bits(&mut random, 40_000, 24);
        for k in [1, 300] {
            check_among((&index, metric), &vectors::<i8>(&mut random, 2 * 2, 100.0), k, Some(&among), &mut random);
        }
    }
}

/// Checks that an index is like one that is made anew from its rows, and that its bounds hold.
fn check_like_new<T: Element>(index: &FlatCpu<T>, expected: &[T], random: &mut Random) {
    assert!(index.rows == expected);
    let mut new = FlatCpu::<T>::new(index.dim, index.metric, None);
    new.add(VectorSlice::of(expected, index.dim)).unwrap();
    assert_eq!((&index.offset, &index.scale, &index.squares), (&new.offset, &new.scale, &new.squares));
    assert_eq!(index.largest.len(), new.largest.len());
    assert!(index.largest.iter().zip(&new.largest).all(|(largest, needed)| largest >= needed));
    if !expected.is_empty() {
        let queries: Vec<T> = vectors(random, 3 * index.dim, 10.0);
        let percent = [100, 50, 10][random.below(3)];
        let among = bits(random, index.len(), percent);
        check_among((index, index.metric), &queries, 1 + random.below(9), Some(&among), random);
    }
}

#[test]
fn changed_rows_are_found_as_in_a_new_index() {
    fn one<T: Element>(random: &mut Random, metric: Metric) {
        let dim = 1 + random.below(6);
        let mut index = FlatCpu::<T>::new(dim, metric, None);
        let mut rows: Vec<T> = Vec::new();
        for step in 0..12 {
            let len = index.len();
            match step % 3 {
                0 => {
                    let count = 1 + random.below(600);
                    let more: Vec<T> = vectors(random, count * dim, 10.0);
                    index.add(VectorSlice::of(&more, dim)).unwrap();
                    rows.extend(&more);
                }
                1 => {
                    let first = random.below(len);
                    let count = 1 + random.below(len - first);
                    let scale = [1.0, 100.0][random.below(2)];
                    let new: Vec<T> = vectors(random, count * dim, scale);
                    // All rows of the range, or every second.
                    let step = 1 + random.below(2);
                    let numbers: Vec<u64> = (first as u64..(first + count) as u64).step_by(step).collect();
                    let new = &new[..numbers.len() * dim];
                    index.replace(&numbers, VectorSlice::of(new, dim)).unwrap();
                    for (&number, new) in numbers.iter().zip(new.chunks(dim)) {
                        rows[number as usize * dim..][..dim].copy_from_slice(new);
                    }
                }
                _ => {
                    let start = random.below(len);
                    let percent = [0, 1, 50, 99, 100][if step == 5 { 0 } else { random.below(5) }];
                    let kept: Bitset =
                        (0..len).map(|row| step != 5 && row < start || random.below(100) < percent).collect();
                    index.retain(&kept).unwrap();
                    let old = std::mem::take(&mut rows);
                    let numbered = old.chunks(dim).enumerate().filter(|(row, _)| kept.get(*row));
                    rows = numbered.flat_map(|(_, row)| row).copied().collect();
                    assert!(step != 5 || rows.is_empty());
                    if rows.is_empty() {
                        rows = vectors(random, 300 * dim, 10.0);
                        index.add(VectorSlice::of(&rows, dim)).unwrap();
                    }
                }
            }
            check_like_new(&index, &rows, random);
        }
        let bytes = index.bytes();
        assert!(bytes.0 >= (size_of_val(rows.as_slice()) + 4 * index.offset.len() + 12 * index.scale.len()) as u64);
        assert_eq!(bytes.1, 0);
    }
    let mut random = Random::new(14);
    for metric in Metric::OF_NUMBERS {
        one::<f32>(&mut random, metric);
        one::<f16>(&mut random, metric);
        one::<bf16>(&mut random, metric);
        one::<u8>(&mut random, metric);
        one::<i8>(&mut random, metric);
    }
}

#[test]
fn a_bound_falls_again_once_the_large_row_is_gone() {
    let small: Vec<f32> = vec![1.0; 700 * 2];
    let mut index = FlatCpu::<f32>::new(2, Metric::L2, None);
    index.add(VectorSlice::of(&small, 2)).unwrap();
    let before = index.largest.clone();
    index.replace(&[300], VectorSlice::of(&[1e20, 0.0], 2)).unwrap();
    assert!(index.largest[1] > 1e20 && index.largest[0] == before[0] && index.largest[2] == before[2]);
    // A part of the block: the bound stays. The whole block: the bound falls.
    index.replace(&[300], VectorSlice::of(&[1.0, 1.0], 2)).unwrap();
    assert!(index.largest[1] > 1e20);
    index.replace(&(250..520).collect::<Vec<u64>>(), VectorSlice::of(&small[..270 * 2], 2)).unwrap();
    assert_eq!(index.largest, before);
    index.replace(&[2], VectorSlice::of(&[1e20, 0.0], 2)).unwrap();
    index.retain(&(0..700).map(|row| row != 2).collect()).unwrap();
    assert_eq!(index.largest, before);
}
