//! The distance of walks for rows that are longer than a team of lanes reads at once, against f64 sums. A walk that
//! starts from all nodes sorts them by it, and the choice of edges compares rows with rows.
//!
//! No result tells this change: by cosine, the first pass reads rows at another scale than 1. The value is divided by
//! the norm at the same scale.

use cuda_std::emulator::Buffer;
use test_random::Random;
use warpann_kernels::NO_ROW;
use warpann_kernels::graph::prune::Prune;
use warpann_kernels::graph::walk::{PerQuery, Walk, slots};
use warpann_kernels::product::element::RowKey;
use warpann_kernels::product::metric::Metric;

use crate::graph::pruned;
use crate::lists::{METRICS, stored, units};

const KEYS: [RowKey; 6] = [RowKey::F32, RowKey::F16, RowKey::Bf16, RowKey::U8, RowKey::I8, RowKey::Bits];
/// Cosines that are as near as this may come in any order: f32 sums of 300 terms have errors of some 2^-20.
const NEAR: f64 = 1e-5;

/// Numbers of which less is nearer, in f64: squared distances and products of these whole numbers are exact.
fn badness(metric: Metric, x: &[f32], y: &[f32]) -> f64 {
    let wide = || x.iter().zip(y).map(|(&x, &y)| (f64::from(x), f64::from(y)));
    match metric {
        Metric::L2 => wide().map(|(x, y)| (x - y) * (x - y)).sum(),
        Metric::InnerProduct => -wide().map(|(x, y)| x * y).sum::<f64>(),
        Metric::Cosine => {
            let norms = wide().map(|(x, _)| x * x).sum::<f64>().sqrt() * wide().map(|(_, y)| y * y).sum::<f64>().sqrt();
            if norms == 0.0 { 0.0 } else { -wide().map(|(x, y)| x * y).sum::<f64>() / norms }
        }
    }
}

/// The metrics of rows with this content: of bits, squared L2 is the number of those that differ.
fn metrics(key: RowKey) -> &'static [Metric] {
    if key == RowKey::Bits { &[Metric::L2] } else { &METRICS }
}

/// `rows` rows of `dim` whole numbers, zero padded to `stride`: 0 and 1 for bits, bytes from their whole range, floats
/// such that f32 sums are exact. Rows 1 and 2 are zero and equal to row 0. With `scaled` some rows of floats are so
/// long or short that squares leave the range of f32.
fn vectors(random: &mut Random, key: RowKey, rows: usize, dim: usize, stride: usize, scaled: bool) -> Vec<f32> {
    let mut all = vec![0.0; rows * stride];
    for (row, values) in all.chunks_mut(stride).enumerate() {
        let power = if scaled { random.pick(&[-100, -80, -41, 0, 60, 64, 100]) } else { 0 };
        for value in &mut values[..dim] {
            *value = match key {
                RowKey::U8 => random.below(256) as f32,
                RowKey::I8 => random.below(256) as f32 - 128.0,
                RowKey::Bits => random.below(2) as f32,
                RowKey::F32 | RowKey::F16 | RowKey::Bf16 => (random.below(31) as f32 - 15.0) * 2f32.powi(power),
            };
        }
        if row == 1 {
            values.fill(0.0);
        }
    }
    if rows > 2 {
        all.copy_within(..stride, 2 * stride);
    }
    all
}

/// Strides around the four components of a lane, the 32 of a team, and the 128 that are loaded together; dimensions
/// with and without padding.
fn lengths(key: RowKey) -> Vec<(usize, usize)> {
    let multiple = match key {
        RowKey::Bits => 128,
        RowKey::U8 | RowKey::I8 => 16,
        RowKey::F32 | RowKey::F16 | RowKey::Bf16 => 4,
    };
    let dims = [1, 15, 17, 31, 33, 36, 65, 100, 128, 129, 144, 160, 257, 300];
    let longer = [1_000, 1_024, 1_030, 2_500];
    let longer = if key == RowKey::Bits { &longer[..] } else { &[] };
    dims.iter().chain(longer).copied().map(|dim: usize| (dim, dim.next_multiple_of(multiple))).collect()
}

/// The nodes that a walk from all rows finds for each query, nearest first.
fn sorted_by_walks(
    key: RowKey,
    per_query: PerQuery,
    metric: Metric,
    stride: usize,
    rows: &[f32],
    queries: &[f32],
) -> Vec<u32> {
    let (count, query_count) = (rows.len() / stride, queries.len() / stride);
    let (rows_at, queries_at) = (Buffer::from_slice(&stored(key, rows)), Buffer::from_slice(&stored(key, queries)));
    let edges = Buffer::from_slice(&vec![NO_ROW; count]);
    let starts = Buffer::from_slice(&(0..count as u32).collect::<Vec<_>>());
    let mut places = Buffer::<u32>::new_poisoned(query_count * count);
    let launch = Walk {
        query_count: query_count as u32,
        queries: queries_at.as_ptr(),
        rows: rows_at.as_ptr(),
        stride: units(key, stride),
        metric,
        edges: edges.as_ptr(),
        degree: 1,
        starts: starts.as_ptr(),
        start_count: count as u32,
        wanted: count as u32,
        width: count as u32,
        slots: slots(count as u32, 1),
        selected: count as u32,
        places: places.as_mut_ptr(),
        ..Walk::default()
    };
    // SAFETY: edges and start nodes are rows, and slots are a power of two.
    unsafe { crate::launch(Walk::kernel((key, per_query)), launch.config(key, per_query), launch) };
    places.to_vec()
}

#[test]
fn walks_sort_long_rows_by_their_distances() {
    let mut random = Random::new(101);
    let (count, queries) = (11, 2);
    for key in KEYS {
        for (turn, (dim, stride)) in lengths(key).into_iter().enumerate() {
            let per_query = [PerQuery::Warp, PerQuery::Pair, PerQuery::Block][turn % 3];
            for &metric in metrics(key) {
                let scaled = matches!((key, metric), (RowKey::F32 | RowKey::Bf16, Metric::Cosine));
                let rows = vectors(&mut random, key, count, dim, stride, scaled);
                let of = vectors(&mut random, key, queries, dim, stride, scaled);
                let found = sorted_by_walks(key, per_query, metric, stride, &rows, &of);
                let what = format!("{key:?}, {metric:?}, {dim} components, {per_query:?}");
                for (x, found) in of.chunks(stride).zip(found.chunks(count)) {
                    let bad: Vec<f64> = rows.chunks(stride).map(|y| badness(metric, x, y)).collect();
                    let mut expected: Vec<u32> = (0..count as u32).collect();
                    let mut order = found.to_vec();
                    order.sort();
                    assert_eq!(order, expected, "{what}: {found:?}");
                    if matches!(metric, Metric::Cosine) {
                        for pair in found.windows(2) {
                            let [a, b] = [pair[0], pair[1]].map(|node| bad[node as usize]);
                            assert!(a <= b + NEAR, "{what}: {found:?}, {bad:?}");
                        }
                    } else {
                        expected.sort_by(|&a, &b| bad[a as usize].total_cmp(&bad[b as usize]).then(a.cmp(&b)));
                        assert_eq!(found, expected, "{what}: {bad:?}");
                    }
                }
            }
        }
    }
}

#[test]
fn edges_of_long_rows_follow_from_their_distances() {
    let mut random = Random::new(102);
    let (count, most, degree) = (9, 8, 4);
    for key in KEYS {
        for (dim, stride) in lengths(key).into_iter().filter(|&(dim, _)| dim > 1) {
            for &metric in metrics(key) {
                let scaled = matches!((key, metric), (RowKey::F32 | RowKey::Bf16, Metric::Cosine));
                // Cosines that are too near to each other for f32 are drawn again.
                let (rows, bad) = loop {
                    // The zero row and the equal rows are in the other test.
                    let rows = vectors(&mut random, key, count + 3, dim, stride, scaled)[3 * stride..].to_vec();
                    let pairs = (0..count).map(|a| {
                        let of =
                            |b: usize| badness(metric, &rows[a * stride..][..stride], &rows[b * stride..][..stride]);
                        (0..count).map(of).collect::<Vec<f64>>()
                    });
                    let bad: Vec<Vec<f64>> = pairs.collect();
                    let mut all: Vec<f64> = (0..count).flat_map(|a| bad[a][..a].to_vec()).collect();
                    all.sort_by(f64::total_cmp);
                    if !matches!(metric, Metric::Cosine) || all.windows(2).all(|pair| pair[1] - pair[0] > NEAR) {
                        break (rows, bad);
                    }
                };
                let mut candidates: Vec<u32> = (1..count as u32).collect();
                random.shuffle(&mut candidates);
                let expected = pruned(0, &candidates, degree, false, |a, b| bad[a as usize][b as usize]);
                let (rows_at, candidates_at) =
                    (Buffer::from_slice(&stored(key, &rows)), Buffer::from_slice(&candidates));
                let mut edges = Buffer::<u32>::new_poisoned(degree);
                let launch = Prune {
                    rows: rows_at.as_ptr(),
                    stride: units(key, stride),
                    metric,
                    count: 1,
                    candidates: candidates_at.as_ptr(),
                    most: most as u32,
                    edges: edges.as_mut_ptr(),
                    degree: degree as u32,
                    ..Prune::default()
                };
                // SAFETY: the arrays have these shapes.
                unsafe { crate::launch(Prune::kernel(key), launch.config(), launch) };
                assert_eq!(edges.to_vec(), expected, "{key:?}, {metric:?}, {dim} components: {bad:?}");
            }
        }
    }
}
