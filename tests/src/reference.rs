//! The right answers, computed naively. Of warpann only the names of metrics are used here, none of its functions.
//!
//! Vectors come as f64 slices: every element type's values are f64 values.

use std::cmp::Ordering;

use warpann::Metric;
use warpann::select::Best;

/// The id in a slot without a neighbour, as the contract states it.
pub const NO_ID: u64 = 0xFFFF_FFFF_FFFF_FFFF;
/// The position in a slot without a key.
pub const NO_POSITION: u32 = 0xFFFF_FFFF;

/// Distance or similarity by the textbook, summed from left to right.
pub fn textbook(metric: Metric, x: &[f64], y: &[f64]) -> f64 {
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).fold(0.0, |sum, (a, b)| sum + a * b);
    match metric {
        Metric::L2 => x.iter().zip(y).fold(0.0, |sum, (a, b)| sum + (a - b) * (a - b)),
        Metric::InnerProduct => dot(x, y),
        Metric::Cosine => {
            let norms = dot(x, x).sqrt() * dot(y, y).sqrt();
            if norms == 0.0 { 0.0 } else { dot(x, y) / norms }
        }
    }
}

/// How far a result may lie from [`textbook`]: 2⁻²⁰ of ‖x‖² + ‖y‖² (of 2 for cosine, whose vectors count as normalised), and
/// the spacing of the smallest f32.
pub fn tolerance(metric: Metric, x: &[f64], y: &[f64]) -> f64 {
    let squares = |v: &[f64]| v.iter().fold(0.0, |sum, v| sum + v * v);
    let scale = if metric == Metric::Cosine { 2.0 } else { squares(x) + squares(y) };
    scale * 2f64.powi(-20) + 2f64.powi(-149)
}

/// The distance that the library promises to the bit, written from the six steps of its definition
/// (documentation of `warpann::metric`).
pub fn defined(metric: Metric, x: &[f64], y: &[f64]) -> f32 {
    let sum = |x: &[f64], y: &[f64], squared_difference: bool| {
        let mut accumulators = [0.0f64; 128];
        for i in 0..x.len() {
            accumulators[i % 128] += if squared_difference { (x[i] - y[i]) * (x[i] - y[i]) } else { x[i] * y[i] };
        }
        let mut lanes: [f64; 32] = std::array::from_fn(|lane| {
            let four = &accumulators[4 * lane..][..4];
            (four[0] + four[1]) + (four[2] + four[3])
        });
        for mask in [16, 8, 4, 2, 1] {
            lanes = std::array::from_fn(|lane| lanes[lane] + lanes[lane ^ mask]);
        }
        lanes[0]
    };
    let value = match metric {
        Metric::L2 => sum(x, y, true),
        Metric::InnerProduct => sum(x, y, false),
        Metric::Cosine => {
            let (xx, yy) = (sum(x, x, false), sum(y, y, false));
            if xx == 0.0 || yy == 0.0 { 0.0 } else { sum(x, y, false) / (xx * yy).sqrt() }
        }
    };
    let rounded = value as f32;
    if rounded == 0.0 { 0.0 } else { rounded }
}

/// What a slot without a neighbour holds.
pub fn worst(metric: Metric) -> f32 {
    if metric == Metric::L2 { f32::INFINITY } else { f32::NEG_INFINITY }
}

/// Badness: less is better under every metric.
pub fn badness(metric: Metric, value: f64) -> f64 {
    if metric == Metric::L2 { value } else { -value }
}

/// The `k` best rows by [`defined`] distance, equal ones by lower id, filled up with [`NO_ID`]: (id, distance).
pub fn nearest(metric: Metric, dim: usize, base: &[f64], query: &[f64], k: usize) -> Vec<(u64, f32)> {
    let mut all: Vec<(u64, f32)> =
        base.chunks(dim).enumerate().map(|(id, row)| (id as u64, defined(metric, query, row))).collect();
    // Stable: equal distances keep the order of ids.
    all.sort_by(|a, b| {
        let (a, b) = (badness(metric, f64::from(a.1)), badness(metric, f64::from(b.1)));
        a.partial_cmp(&b).expect("distances of finite vectors are not NaN")
    });
    all.resize(k, (NO_ID, worst(metric)));
    all
}

/// Best first, NaN last, −0 equal to +0.
pub fn key_order(best: Best, a: f32, b: f32) -> Ordering {
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

/// The `k` best keys of a row with their positions, by a stable sort of everything. −0 comes back as +0, NaN as `f32::NAN`;
/// slots past the end hold the worst key and [`NO_POSITION`].
pub fn select(best: Best, row: &[f32], k: usize) -> Vec<(u32, f32)> {
    let mut order: Vec<u32> = (0..row.len() as u32).collect();
    order.sort_by(|&a, &b| key_order(best, row[a as usize], row[b as usize]));
    let plain = |key: f32| {
        if key.is_nan() {
            f32::NAN
        } else if key == 0.0 {
            0.0
        } else {
            key
        }
    };
    let mut found: Vec<(u32, f32)> =
        order.into_iter().take(k).map(|position| (position, plain(row[position as usize]))).collect();
    let empty = if best == Best::Largest { f32::NEG_INFINITY } else { f32::INFINITY };
    found.resize(k, (NO_POSITION, empty));
    found
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
        // 2^53 swallows a single 1. From left to right that happens to component 2; by definition it meets component 130
        // first, and 2^53 + 2 meets −2^53 last.
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
    fn keys_selected_by_hand() {
        let row = [2.0, f32::NAN, -0.0, f32::NEG_INFINITY, 0.0, f32::INFINITY, 2.0];
        let positions = |best, k| select(best, &row, k).into_iter().map(|(at, _)| at).collect::<Vec<_>>();
        assert_eq!(positions(Best::Smallest, 9), [3, 2, 4, 0, 6, 5, 1, NO_POSITION, NO_POSITION]);
        assert_eq!(positions(Best::Largest, 8), [5, 0, 6, 2, 4, 3, 1, NO_POSITION]);
        assert_eq!(select(Best::Smallest, &row, 2)[1].1.to_bits(), 0);
        assert_eq!(select(Best::Largest, &row, 8)[7], (NO_POSITION, f32::NEG_INFINITY));
        assert_eq!(select(Best::Smallest, &[], 1), [(NO_POSITION, f32::INFINITY)]);
    }

    #[test]
    fn the_tolerance_is_what_the_contract_says() {
        let scale = 2f64.powi(20);
        assert!((tolerance(Metric::L2, &[3.0], &[4.0]) * scale - 25.0).abs() < 1e-9);
        assert!((tolerance(Metric::Cosine, &[3.0], &[4.0]) * scale - 2.0).abs() < 1e-9);
    }
}
