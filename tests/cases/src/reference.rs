//! The right results, computed naively. This module uses only the names of warpann's metrics, none of its functions.
//!
//! Vectors come as f64 slices: every element type's values are f64 values.

use std::cmp::Ordering;

use warpann::select::Best;
use warpann::{Metric, Neighbors};

/// The id in a slot without a neighbour, as the contract states it.
pub const NO_ID: u64 = 0xFFFF_FFFF_FFFF_FFFF;
/// The position in a slot without a key.
pub const NO_POSITION: u32 = 0xFFFF_FFFF;

/// Distance or similarity by the textbook formula, summed from left to right.
pub fn textbook(metric: Metric, x: &[f64], y: &[f64]) -> f64 {
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).fold(0.0, |sum, (a, b)| sum + a * b);
    match metric {
        Metric::L2 => x.iter().zip(y).fold(0.0, |sum, (a, b)| sum + (a - b) * (a - b)),
        Metric::InnerProduct => dot(x, y),
        Metric::Cosine => {
            let norms = dot(x, x).sqrt() * dot(y, y).sqrt();
            if norms == 0.0 { 0.0 } else { dot(x, y) / norms }
        }
        Metric::Hamming => differing_bits(x, y),
        other => panic!("the reference does not define {other}"),
    }
}

/// The number of ones among the eight binary digits of each byte.
const ONES: [u32; 256] = {
    let (mut ones, mut byte) = ([0; 256], 1);
    while byte < 256 {
        ones[byte] = ones[byte / 2] + byte as u32 % 2;
        byte += 1;
    }
    ones
};

/// The number of bits in which vectors of bytes differ.
fn differing_bits(x: &[f64], y: &[f64]) -> f64 {
    x.iter().zip(y).map(|(&x, &y)| ONES[(x as u8 ^ y as u8) as usize]).sum::<u32>().into()
}

/// ‖x‖², the squared norm of a vector.
pub fn squares(x: &[f64]) -> f64 {
    x.iter().fold(0.0, |sum, x| sum + x * x)
}

/// How far a result may lie from [`textbook`]: 2⁻²⁰ of ‖x‖² + ‖y‖², given as `squares` (of 2 for cosine, whose vectors
/// count as normalised), and the spacing of the smallest f32.
pub fn tolerance(metric: Metric, squares: f64) -> f64 {
    let scale = if metric == Metric::Cosine { 2.0 } else { squares };
    scale * 2f64.powi(-20) + 2f64.powi(-149)
}

/// The distance that the library promises to the bit, written from the six steps of its definition
/// (documentation of `warpann::metric`).
pub fn defined(metric: Metric, x: &[f64], y: &[f64]) -> f32 {
    let squares = |v| defined_squares(metric, v);
    defined_with(metric, (x, squares(x)), (y, squares(y)))
}

/// ⟨v, v⟩ by the definition, which only cosine needs; 0 for the other metrics.
pub fn defined_squares(metric: Metric, v: &[f64]) -> f64 {
    if metric == Metric::Cosine { defined_sum(v, v, |a, b| a * b) } else { 0.0 }
}

/// As [`defined`], of two vectors with their [`defined_squares`].
pub fn defined_with(metric: Metric, (x, xx): (&[f64], f64), (y, yy): (&[f64], f64)) -> f32 {
    let value = match metric {
        Metric::L2 => defined_sum(x, y, |a, b| (a - b) * (a - b)),
        Metric::InnerProduct => defined_sum(x, y, |a, b| a * b),
        Metric::Cosine if xx == 0.0 || yy == 0.0 => 0.0,
        Metric::Cosine => defined_sum(x, y, |a, b| a * b) / (xx * yy).sqrt(),
        Metric::Hamming => differing_bits(x, y),
        other => panic!("the reference does not define {other}"),
    };
    let rounded = value as f32;
    if rounded == 0.0 { 0.0 } else { rounded }
}

/// Lloyd's algorithm by its definition (documentation of warpann's `kmeans::worker`), for points whose weighted sums
/// f64 holds exactly: centroids and labels after `iterations`, and the objective of each. A cluster that gets empty
/// keeps its centroid.
pub fn lloyd(
    spherical: bool,
    dim: usize,
    points: &[f64],
    weights: &[f64],
    start: &[f32],
    iterations: usize,
) -> (Vec<f32>, Vec<f64>, Vec<u32>) {
    let metric = if spherical { Metric::InnerProduct } else { Metric::L2 };
    let mut centroids = start.to_vec();
    let assign = |centroids: &[f32]| -> Vec<u32> {
        let wide: Vec<f64> = centroids.iter().map(|&c| f64::from(c)).collect();
        let base = Base::new(metric, dim, &wide);
        points.chunks(dim).map(|point| base.nearest(point, 1)[0].0 as u32).collect()
    };
    let mut objectives = Vec::new();
    for _ in 0..iterations {
        let labels = assign(&centroids);
        let mut sums = vec![0.0; centroids.len()];
        let mut masses = vec![0.0; centroids.len() / dim];
        let mut objective = 0.0;
        for ((point, &label), &weight) in points.chunks(dim).zip(&labels).zip(weights) {
            let range = label as usize * dim..(label as usize + 1) * dim;
            let centroid: Vec<f64> = centroids[range.clone()].iter().map(|&c| f64::from(c)).collect();
            objective += weight * textbook(metric, point, &centroid);
            masses[label as usize] += weight;
            sums[range].iter_mut().zip(point).for_each(|(sum, x)| *sum += weight * x);
        }
        objectives.push(objective);
        for ((centroid, sums), mass) in centroids.chunks_mut(dim).zip(sums.chunks(dim)).zip(masses) {
            if mass == 0.0 {
                continue;
            }
            centroid.iter_mut().zip(sums).for_each(|(c, sum)| *c = (sum / mass) as f32);
            let wide: Vec<f64> = centroid.iter().map(|&c| f64::from(c)).collect();
            let norm = defined_sum(&wide, &wide, |a, b| a * b).sqrt();
            if spherical && norm > 0.0 {
                centroid.iter_mut().zip(wide).for_each(|(c, x)| *c = (x / norm) as f32);
            }
        }
    }
    let labels = assign(&centroids);
    (centroids, objectives, labels)
}

/// Steps 1 to 5 of the definition, of vectors of one length. It has loops, because iterators of chunks and
/// `array::from_fn` stay calls in development builds; they took a quarter of the time of the inverted-file cases.
#[expect(clippy::needless_range_loop, reason = "see above")]
pub fn defined_sum(x: &[f64], y: &[f64], term: impl Fn(f64, f64) -> f64) -> f64 {
    assert_eq!(x.len(), y.len());
    let mut accumulators = [0.0f64; 128];
    let mut start = 0;
    while start < x.len() {
        let count = (x.len() - start).min(128);
        let (x, y) = (&x[start..start + count], &y[start..start + count]);
        for i in 0..count {
            accumulators[i] += term(x[i], y[i]);
        }
        start += count;
    }
    let mut lanes = [0.0f64; 32];
    for lane in 0..32 {
        let four = 4 * lane;
        lanes[lane] = (accumulators[four] + accumulators[four + 1]) + (accumulators[four + 2] + accumulators[four + 3]);
    }
    // Lane 0 has the result. Of the lanes with which it is exchanged, only those below the mask matter from there on.
    for mask in [16, 8, 4, 2, 1] {
        for lane in 0..mask {
            lanes[lane] += lanes[lane + mask];
        }
    }
    lanes[0]
}

/// The content of an empty slot.
pub fn worst(metric: Metric) -> f32 {
    if is_distance(metric) { f32::INFINITY } else { f32::NEG_INFINITY }
}

/// Whether the nearest vectors have the smallest values.
fn is_distance(metric: Metric) -> bool {
    matches!(metric, Metric::L2 | Metric::Hamming)
}

/// A number that is smaller for better neighbours, under every metric.
pub fn badness(metric: Metric, value: f64) -> f64 {
    if is_distance(metric) { value } else { -value }
}

/// The first `k` of `all` in the order `order`, which makes no two equal: what sorting everything would put there.
pub fn first<V>(mut all: Vec<V>, k: usize, order: impl Fn(&V, &V) -> Ordering) -> Vec<V> {
    if k < all.len() {
        all.select_nth_unstable_by(k, &order);
        all.truncate(k);
    }
    all.sort_unstable_by(order);
    all
}

/// Vectors to search, for many queries.
pub struct Base<'a> {
    metric: Metric,
    dim: usize,
    rows: &'a [f64],
    /// [`defined_squares`] of each.
    squares: Vec<f64>,
}

impl<'a> Base<'a> {
    /// The vectors `rows`, of `dim` components each.
    pub fn new(metric: Metric, dim: usize, rows: &'a [f64]) -> Self {
        Self { metric, dim, rows, squares: rows.chunks(dim).map(|row| defined_squares(metric, row)).collect() }
    }

    /// The `k` best rows by [`defined`] distance, equal ones by lower id, filled up with [`NO_ID`]: (id, distance).
    pub fn nearest(&self, query: &[f64], k: usize) -> Vec<(u64, f32)> {
        let query = (query, defined_squares(self.metric, query));
        let rows = self.rows.chunks(self.dim).zip(&self.squares);
        let all =
            rows.enumerate().map(|(id, (row, &squares))| (id as u64, defined_with(self.metric, query, (row, squares))));
        let mut best = first(all.collect(), k, |a, b| {
            let (x, y) = (badness(self.metric, f64::from(a.1)), badness(self.metric, f64::from(b.1)));
            x.partial_cmp(&y).expect("distances of finite vectors are not NaN").then(a.0.cmp(&b.0))
        });
        best.resize(k, (NO_ID, worst(self.metric)));
        best
    }

    /// [`nearest`](Self::nearest) of many queries.
    pub fn neighbors(&self, queries: &[f64], k: usize) -> Neighbors {
        let (ids, distances) = queries.chunks(self.dim).flat_map(|query| self.nearest(query, k)).unzip();
        Neighbors { k, ids, distances }
    }

    /// The first slot of `found` that no search may return, whichever rows it compares: an id that does not exist,
    /// another distance than the [`defined`] one, a slot that is not after the one before in the order of results (so
    /// also an id for the second time), or an empty slot before `least` are filled.
    pub fn first_unsound(&self, queries: &[f64], least: usize, found: &Neighbors) -> Option<usize> {
        let order = |slot: usize| (badness(self.metric, f64::from(found.distances[slot])), found.ids[slot]);
        (0..found.ids.len()).find(|&slot| {
            let (query, place) = (slot / found.k, slot % found.k);
            let (id, distance) = (found.ids[slot], found.distances[slot]);
            if id == NO_ID {
                return place < least || distance != worst(self.metric);
            }
            let row = self.rows.chunks(self.dim).nth(id as usize);
            let query = &queries[query * self.dim..][..self.dim];
            let right = |row| defined(self.metric, query, row).to_bits() == distance.to_bits();
            !row.is_some_and(right) || (place > 0 && order(slot - 1) >= order(slot))
        })
    }
}

/// [`Base::nearest`], for one query.
pub fn nearest(metric: Metric, dim: usize, base: &[f64], query: &[f64], k: usize) -> Vec<(u64, f32)> {
    Base::new(metric, dim, base).nearest(query, k)
}

/// Best first, NaN last, −0 equal to +0.
pub fn key_order(best: Best, a: f64, b: f64) -> Ordering {
    match (a.is_nan(), b.is_nan()) {
        (true, true) => Ordering::Equal,
        (true, false) => Ordering::Greater,
        (false, true) => Ordering::Less,
        (false, false) => {
            let order = if a < b {
                Ordering::Less
            } else if a > b {
                Ordering::Greater
            } else {
                Ordering::Equal
            };
            if best == Best::Largest { order.reverse() } else { order }
        }
    }
}

/// The positions of the `k` best keys of a row, equal ones by lower position; [`NO_POSITION`] past the row's end. Keys
/// of every type come as f64, which holds each of their values.
pub fn select(best: Best, row: &[f64], k: usize) -> Vec<u32> {
    let mut order = first((0..row.len() as u32).collect(), k, |&a, &b| {
        key_order(best, row[a as usize], row[b as usize]).then(a.cmp(&b))
    });
    order.resize(k, NO_POSITION);
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_computed_by_hand() {
        let (x, y) = ([1.0, 2.0, 3.0], [4.0, 0.0, -1.0]);
        for distance in [textbook, |metric, x: &[f64], y: &[f64]| f64::from(defined(metric, x, y))] {
            assert_eq!(distance(Metric::L2, &x, &y), 9.0 + 4.0 + 16.0);
            assert_eq!(distance(Metric::InnerProduct, &x, &y), 4.0 - 3.0);
            assert_eq!(distance(Metric::Cosine, &[3.0, 4.0], &[6.0, 8.0]), 1.0);
            assert_eq!(distance(Metric::Cosine, &[3.0, 4.0], &[-4.0, 3.0]), 0.0);
            assert_eq!(distance(Metric::Cosine, &[3.0, 4.0], &[-3.0, -4.0]), -1.0);
            assert_eq!(distance(Metric::Cosine, &[0.0, 0.0], &[1.0, 2.0]), 0.0);
        }
        assert!((textbook(Metric::Cosine, &[1.0, 0.0], &[1.0, 1.0]) - 0.5f64.sqrt()).abs() < 1e-15);
    }

    #[test]
    fn the_definition_sums_in_its_own_order() {
        // 2^53 swallows a single 1. From left to right that happens to component 2; by definition it meets component
        // 130 first, and 2^53 + 2 meets −2^53 last.
        let mut x = vec![0.0; 200];
        let large = 2f64.powi(53);
        (x[0], x[2], x[64], x[130]) = (large, 1.0, -large, 1.0);
        let ones = vec![1.0; 200];
        assert_eq!(textbook(Metric::InnerProduct, &x, &ones), 1.0);
        assert_eq!(defined(Metric::InnerProduct, &x, &ones), 2.0);
        let mut order = vec![0.0; 128];
        order[0] = large;
        order[1] = 1.0;
        order[2] = -large;
        // (2^53 + 1) + (−2^53 + 0): the one is rounded away (ties to even) in the first pair.
        assert_eq!(defined(Metric::InnerProduct, &order, &ones[..128]), 0.0);
        // In another lane it survives.
        order[1] = 0.0;
        order[4] = 1.0;
        assert_eq!(defined(Metric::InnerProduct, &order, &ones[..128]), 1.0);
        // Lanes 0 and 16 meet before 0 and 1.
        let mut lanes = vec![0.0; 128];
        lanes[0] = large;
        lanes[4] = 1.0;
        lanes[64] = -large;
        assert_eq!(defined(Metric::InnerProduct, &lanes, &ones[..128]), 1.0);
        // Never −0.
        assert_eq!(defined(Metric::InnerProduct, &[-1e-300], &[1e-300]).to_bits(), 0);
    }

    #[test]
    fn neighbours_found_by_hand() {
        let base = [0.0, 0.0, 1.0, 0.0, 0.0, 2.0, 1.0, 0.0];
        let none = (NO_ID, f32::INFINITY);
        assert_eq!(nearest(Metric::L2, 2, &base, &[1.0, 0.0], 5), [(1, 0.0), (3, 0.0), (0, 1.0), (2, 5.0), none]);
        assert_eq!(nearest(Metric::InnerProduct, 2, &base, &[-1.0, 1.0], 3), [(2, 2.0), (0, 0.0), (1, -1.0)]);
        assert_eq!(nearest(Metric::Cosine, 2, &base, &[0.0, 5.0], 2), [(2, 1.0), (0, 0.0)]);
        assert_eq!(nearest(Metric::Cosine, 2, &[], &[0.0, 5.0], 1), [(NO_ID, f32::NEG_INFINITY)]);
    }

    #[test]
    fn unsound_results_are_seen() {
        let (base, queries) = ([1.0, 3.0, 1.0, 2.0], [2.0, 9.0]);
        let right = Neighbors {
            k: 3,
            ids: vec![3, 0, 2, 1, 3, NO_ID],
            distances: vec![0.0, 1.0, 1.0, 36.0, 49.0, f32::INFINITY],
        };
        let seen = |least: usize, change: fn(&mut Neighbors)| {
            let mut found = right.clone();
            change(&mut found);
            Base::new(Metric::L2, 1, &base).first_unsound(&queries, least, &found)
        };
        assert_eq!(seen(3, |_| {}), Some(5));
        let complete = |found: &mut Neighbors| (found.ids[5], found.distances[5]) = (0, 64.0);
        assert_eq!(seen(3, complete), None);
        assert_eq!(seen(2, |_| {}), None);
        assert_eq!(seen(2, |found| found.distances[5] = 64.0), Some(5));
        assert_eq!(seen(3, |found| found.ids.swap(1, 2)), Some(2));
        assert_eq!(seen(3, |found| found.ids[2] = 0), Some(2));
        assert_eq!(seen(3, |found| found.ids[1] = 4), Some(1));
        assert_eq!(seen(3, |found| found.ids[0] = NO_ID), Some(0));
        assert_eq!(seen(3, |found| found.distances[3] = 36.0f32.next_up()), Some(3));
        // A filled slot behind an empty one.
        let late = |found: &mut Neighbors| {
            (found.ids[4], found.distances[4]) = (NO_ID, f32::INFINITY);
            (found.ids[5], found.distances[5]) = (3, 49.0);
        };
        assert_eq!(seen(1, late), Some(5));
    }

    #[test]
    fn the_first_are_those_of_a_full_sort() {
        let values = [5u32, 1, 4, 1, 5, 9, 2, 6];
        let mut sorted: Vec<(u32, usize)> = values.into_iter().zip(0..).collect();
        sorted.sort();
        for k in 0..10 {
            let all = values.into_iter().zip(0..).collect();
            assert_eq!(first(all, k, Ord::cmp), sorted[..k.min(values.len())]);
        }
    }

    #[test]
    fn clusters_found_by_hand() {
        // 0, 1, 2 and 10, 13 from 1 and 2: first {0, 1} and {2, 10, 13}, means 0.5 and 25/3; then {0, 1, 2} and {10,
        // 13}.
        let points = [0.0, 1.0, 2.0, 10.0, 13.0];
        let (centroids, objectives, labels) = lloyd(false, 1, &points, &[1.0; 5], &[1.0, 2.0], 2);
        assert_eq!(centroids, [1.0, 11.5]);
        assert_eq!(labels, [0, 0, 0, 1, 1]);
        assert_eq!(objectives[0], 1.0 + 64.0 + 121.0);
        // Weights 3 and 1: the mean is nearer to the heavy one. A cluster without points keeps its centroid.
        let (centroids, ..) = lloyd(false, 1, &[0.0, 4.0], &[3.0, 1.0], &[0.0, 99.0], 1);
        assert_eq!(centroids, [1.0, 99.0]);
        // By direction, whatever the length.
        let (centroids, _, labels) =
            lloyd(true, 2, &[3.0, 4.0, 6.0, 8.0, -1.0, 0.0], &[1.0; 3], &[1.0, 0.0, -1.0, 0.0], 1);
        assert_eq!(centroids, [0.6, 0.8, -1.0, 0.0]);
        assert_eq!(labels, [0, 0, 1]);
    }

    #[test]
    fn keys_selected_by_hand() {
        let row = [2.0, f64::NAN, -0.0, f64::NEG_INFINITY, 0.0, f64::INFINITY, 2.0];
        assert_eq!(select(Best::Smallest, &row, 9), [3, 2, 4, 0, 6, 5, 1, NO_POSITION, NO_POSITION]);
        assert_eq!(select(Best::Largest, &row, 8), [5, 0, 6, 2, 4, 3, 1, NO_POSITION]);
        assert_eq!(select(Best::Largest, &row, 2), [5, 0]);
        assert_eq!(select(Best::Smallest, &[], 1), [NO_POSITION]);
    }

    #[test]
    fn the_tolerance_is_what_the_contract_says() {
        let scale = 2f64.powi(20);
        assert!((tolerance(Metric::L2, squares(&[3.0]) + squares(&[4.0])) * scale - 25.0).abs() < 1e-9);
        assert!((tolerance(Metric::Cosine, 25.0) * scale - 2.0).abs() < 1e-9);
    }
}
