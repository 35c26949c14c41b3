//! Codes of vectors ([`Encode`]), against the definition written out: components are shifted, scaled, clamped and
//! rounded to bytes, and vectors of which too much was cut off are marked.

use cuda_std::emulator::Buffer;
use test_random::Random;
use warpann_kernels::graph::encode::{Encode, FloatKey};
use warpann_kernels::product::element::ElementKey;
use warpann_kernels::product::metric::Metric;

use crate::lists::{METRICS, stored};

const KEYS: [(FloatKey, ElementKey); 3] =
    [(FloatKey::F32, ElementKey::F32), (FloatKey::F16, ElementKey::F16), (FloatKey::Bf16, ElementKey::Bf16)];
/// The value of the bytes behind the codes and the stored rows of a launch's vectors.
const BEHIND: u8 = 0xa5;

/// The vectors of a launch and its options.
struct Case {
    dim: usize,
    /// Rows of `dim` components, which the element type has.
    rows: Vec<f32>,
    metric: Metric,
    shifts: Vec<f32>,
    scale: f32,
    limit: u64,
    code_stride: usize,
}

impl Case {
    fn new(dim: usize, rows: Vec<f32>) -> Case {
        let (shifts, code_stride) = (vec![0.0; dim], dim.next_multiple_of(4));
        Case { dim, rows, metric: Metric::L2, shifts, scale: 1.0, limit: u64::MAX, code_stride }
    }

    fn count(&self) -> usize {
        self.rows.len() / self.dim
    }

    /// The codes of all vectors, padded to the stride, and the words of the vectors.
    fn encoded(&self, (key, element): (FloatKey, ElementKey)) -> (Vec<u8>, Vec<u32>) {
        let (count, stride) = (self.count(), self.dim.next_multiple_of(4));
        let mut padded = Vec::new();
        for row in self.rows.chunks(self.dim) {
            padded.extend_from_slice(row);
            padded.resize(padded.len().next_multiple_of(stride), 0.0);
        }
        // An absent vector has room, which nothing reads or writes.
        padded.resize(padded.len() + stride, 1.0);
        let (rows, shifts) = (Buffer::from_slice(&stored(element, &padded)), Buffer::from_slice(&self.shifts));
        let mut codes = Buffer::from_slice(&vec![BEHIND; (count + 1) * self.code_stride]);
        let mut doubtful = Buffer::from_slice(&vec![u32::from(BEHIND); count + 1]);
        let launch = Encode {
            count: count as u32,
            rows: rows.as_ptr(),
            stride: stride as u32,
            dim: self.dim as u32,
            metric: self.metric,
            shifts: shifts.as_ptr(),
            scale: self.scale,
            limit: self.limit,
            codes: codes.as_mut_ptr(),
            code_stride: self.code_stride as u32,
            doubtful: doubtful.as_mut_ptr(),
        };
        // SAFETY: the arrays have these shapes.
        unsafe { crate::launch(Encode::kernel(key), launch.config(), launch) };
        let (mut codes, mut doubtful) = (codes.to_vec(), doubtful.to_vec());
        assert!(codes.split_off(count * self.code_stride).iter().all(|&code| code == BEHIND), "codes behind the last");
        assert_eq!(doubtful.split_off(count), [u32::from(BEHIND)], "words behind the last");
        (codes, doubtful)
    }

    /// A component of a vector in units of codes, in f64. Shifts and scales of the tests are exact in f32.
    fn scaled(&self, row: &[f32], at: usize) -> f64 {
        let wide = |x: f32| f64::from(x);
        let norm = match self.metric {
            Metric::L2 | Metric::InnerProduct => 1.0,
            Metric::Cosine => row.iter().map(|&x| wide(x) * wide(x)).sum::<f64>().sqrt(),
        };
        let norm = if norm == 0.0 { 1.0 } else { norm };
        let x = wide(row[at]) / norm - wide(self.shifts[at]);
        let greatest = row.iter().map(|&x| wide(x).abs() / norm).fold(0.0, f64::max);
        match self.scale {
            0.0 if greatest == 0.0 => 0.0,
            0.0 => x / greatest * 127.0,
            scale => x * wide(scale),
        }
    }

    /// Sum of the squares of the whole codes that are cut off from each component, at most 65535 of one.
    fn cut_off(&self, row: &[f32]) -> u64 {
        let of = |at: usize| (self.scaled(row, at).abs() - 127.0).clamp(0.0, 65_535.0) as u64;
        (0..self.dim).map(|at| of(at) * of(at)).sum()
    }

    fn check(&self, keys: (FloatKey, ElementKey)) {
        let (codes, doubtful) = self.encoded(keys);
        let what = format!(
            "{:?}, {:?}, {} rows of {}, scale {}, limit {}",
            keys.0,
            self.metric,
            self.count(),
            self.dim,
            self.scale,
            self.limit
        );
        let vectors = self.rows.chunks(self.dim).zip(codes.chunks(self.code_stride)).zip(doubtful);
        for (number, ((row, codes), word)) in vectors.enumerate() {
            for (at, &code) in codes[..self.dim].iter().enumerate() {
                let wanted = self.scaled(row, at).clamp(-127.0, 127.0);
                let code = f64::from(code.cast_signed());
                // Norms and quotients are rounded, so a number beside a half may get either neighbour. Others are
                // exact.
                let is_exact = self.scale != 0.0 && !matches!(self.metric, Metric::Cosine);
                let right = if is_exact { code == wanted.round_ties_even() } else { (code - wanted).abs() <= 0.5001 };
                assert!(right, "{what}: component {at} of vector {number} is {code}, expected {wanted}");
            }
            assert!(codes[self.dim..].iter().all(|&code| code == 0), "{what}: padding of vector {number}");
            let expected = self.cut_off(row) > self.limit;
            assert_eq!(word, u32::from(expected), "{what}: vector {number} with {} cut off", self.cut_off(row));
        }
    }
}

/// Numbers with at most eight significant bits, which every element type has: some are halves, some lie beyond the
/// range of codes.
fn numbers(random: &mut Random, len: usize) -> Vec<f32> {
    let number = |random: &mut Random| (random.below(255) as f32 - 127.0) * random.pick(&[0.5, 0.5, 1.0, 2.0]);
    (0..len).map(|_| number(random)).collect()
}

#[test]
fn codes_are_rounded_components() {
    let mut random = Random::new(111);
    for keys in KEYS {
        for dim in [1, 3, 4, 15, 16, 17, 33, 127, 128, 129, 300] {
            for (count, scale) in [(1, 1.0), (3, 0.5), (2, 4.0)] {
                let mut case = Case::new(dim, numbers(&mut random, count * dim));
                case.scale = scale;
                // Shifts by halves: products with the scale are exact.
                case.shifts = (0..dim).map(|_| random.below(65) as f32 * 0.5 - 16.0).collect();
                case.metric = random.pick(&[Metric::L2, Metric::InnerProduct]);
                case.code_stride = dim.next_multiple_of(random.pick(&[4, 16, 64]));
                // The limit is what one of the vectors loses, or one less.
                case.limit = case
                    .rows
                    .chunks(dim)
                    .next()
                    .map_or(0, |row| case.cut_off(row))
                    .saturating_sub(random.below(2) as u64);
                case.check(keys);
            }
        }
    }
}

#[test]
fn halves_are_rounded_to_even_and_ends_are_clamped() {
    let rows =
        [0.5, 1.5, -0.5, -1.5, 2.5, 126.5, -126.5, 127.0, -127.0, 127.5, -127.5, 128.0, -128.0, 300.0, -300.0, -0.0];
    let codes: [i8; 16] = [0, 2, 0, -2, 2, 126, -126, 127, -127, 127, -127, 127, -127, 127, -127, 0];
    for keys in KEYS {
        let (found, doubtful) = Case::new(16, rows.to_vec()).encoded(keys);
        assert_eq!(found, codes.map(i8::cast_unsigned), "{keys:?}");
        assert_eq!(doubtful, [0]);
        // Whole codes count: 1 + 1 for ±128, and 173 each for ±300.
        for (limit, expected) in [(2 + 2 * 173 * 173, 0), (1 + 2 * 173 * 173, 1), (0, 1)] {
            let case = Case { limit, ..Case::new(16, rows.to_vec()) };
            assert_eq!(case.encoded(keys).1, [expected], "{keys:?}, limit {limit}");
        }
    }
}

#[test]
fn what_is_cut_off_is_counted_in_64_bits_up_to_the_most() {
    // Components far beyond the range, also of another sign, and a product with the scale that is infinite.
    for (dim, x, scale) in [(1, 1e30, 1.0), (33, -1e30, 1.0), (17, 3e38, 1e10), (300, -3e38, 1e10)] {
        let most = 65_535 * 65_535 * dim as u64;
        for (limit, expected) in [(most, 0), (most - 1, 1)] {
            let case = Case { scale, limit, ..Case::new(dim, vec![x; dim]) };
            let (codes, doubtful) = case.encoded(KEYS[0]);
            let code = if x > 0.0 { 127i8 } else { -127 };
            assert!(codes[..dim].iter().all(|&found| found.cast_signed() == code), "{dim} times {x}: {codes:?}");
            assert_eq!(doubtful, [expected], "{dim} times {x}, limit {limit}");
        }
    }
}

#[test]
fn each_vector_may_have_a_scale_of_its_own() {
    let mut random = Random::new(112);
    for keys in KEYS {
        for dim in [1, 15, 16, 17, 32, 33, 128, 130] {
            let mut rows = numbers(&mut random, 4 * dim);
            // A vector of zeros, and one whose greatest component is the last and negative.
            rows[dim..2 * dim].fill(0.0);
            rows[3 * dim - 1] = -508.0;
            for metric in METRICS {
                let case = Case { scale: 0.0, limit: 0, metric, ..Case::new(dim, rows.clone()) };
                case.check(keys);
                let (codes, _) = case.encoded(keys);
                let code = |vector: usize, at: usize| codes[vector * case.code_stride + at].cast_signed();
                assert_eq!(code(2, dim - 1), -127, "{keys:?}, {metric:?}, {dim}");
                assert!((0..dim).all(|at| code(1, at) == 0), "{keys:?}, {metric:?}, {dim}");
            }
        }
    }
}

#[test]
fn cosine_divides_by_the_norm() {
    let mut random = Random::new(113);
    for keys in KEYS {
        for dim in [1, 15, 16, 17, 33, 130] {
            let mut rows = numbers(&mut random, 5 * dim);
            rows[dim..2 * dim].fill(0.0);
            // Norms with squares beyond the range of f32, and below it: the direction counts.
            if !matches!(keys.0, FloatKey::F16) {
                rows[3 * dim..4 * dim].iter_mut().for_each(|x| *x *= 2f32.powi(70));
                rows[4 * dim..].iter_mut().for_each(|x| *x *= 2f32.powi(-90));
            }
            // Components of normalised vectors are at most 1, so scaled by 100 none is cut off.
            let (metric, scale) = (Metric::Cosine, 100.0);
            let case = Case { metric, scale, limit: 0, ..Case::new(dim, rows.clone()) };
            case.check(keys);
            let (_, doubtful) = case.encoded(keys);
            assert_eq!(doubtful, [0; 5], "{keys:?}, {dim}");
            // One component is the norm, and becomes 1: by 1000 codes it is 873 beyond the range.
            let mut row = vec![0.0; dim];
            row[dim - 1] = -6.0;
            for (limit, expected) in [(873 * 873, 0), (873 * 873 - 1, 1)] {
                let case = Case { metric: Metric::Cosine, scale: 1000.0, limit, ..Case::new(dim, row.clone()) };
                let (codes, doubtful) = case.encoded(keys);
                assert_eq!(
                    (codes[dim - 1].cast_signed(), doubtful),
                    (-127, vec![expected]),
                    "{keys:?}, {dim}, {limit}"
                );
            }
        }
    }
}
