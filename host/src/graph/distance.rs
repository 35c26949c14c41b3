//! The distance of walks: for bytes an exact integer, for floats an f32 sum in a fixed order, so that walks take the
//! same path on every device.
//!
//! # Definition for bytes
//! x·y is the integer Σ x_i y_i. For a query x and a vector y:
//!
//! - squared L2: the [`Key`] is Σ (x_i − y_i)², or `Key::MAX` if that is greater;
//! - inner product: −x·y, clamped to the 2³² integers that keys stand for: those from 1 − 2³² on for u8, from −2³¹ for
//!   i8;
//! - Hamming: the number of bits in which x and y differ;
//! - cosine: −`f32(x·y) / (sqrt(f32(x·x)) · sqrt(f32(y·y)))` in binary32, 0 if the divisor is 0, and its key by step 5
//!   below.
//!
//! # Definition for floats
//! All arithmetic is IEEE binary32, round to nearest, without fused multiply-add. For a query x and a vector y of
//! dimension d:
//!
//! 0. For cosine, x is divided by sqrt(Σx²), with Σx² by steps 1 to 3, unless that is 0. If Σx² is less than 2⁻⁸⁰ or
//!    more than 2¹²⁰, x is multiplied by 2¹⁰⁰ or 2⁻⁸⁰ first ([`scale_for_norm`]), so that squares are neither lost nor
//!    overflow.
//! 1. `term(i)` = (x_i − y_i)² for squared L2 (one subtraction, one multiplication), x_i · y_i otherwise.
//! 2. `acc[j]`, j in 0..32, is the sum of `term(i)` over i ≡ j (mod 32), in ascending i, starting from 0.
//! 3. `sum` is the sum of `acc` by a balanced binary tree of neighbours: (acc\[0\] + acc\[1\]) + (acc\[2\] + acc\[3\])
//!    and so on.
//! 4. The value is `sum` for squared L2, −`sum` for the inner product. For cosine it is −`sum` / sqrt(Σy²), with Σy² by
//!    steps 1 to 3, and 0 if Σy² is 0. A short or long y is multiplied as in step 0, in both sums.
//! 5. The [`Key`] of a value orders as the value does. −0 counts as +0, and NaN, which an overflow can make, as worse
//!    than all numbers.
//!
//! # Why this order
//! A GPU lets 8 lanes read a vector of f32, 4 components each at a time: a lane has 4 of the 32 sums, adds them itself,
//! and three shuffles add those of the lanes. A CPU keeps the 32 sums in two registers of AVX-512 or four of AVX2. With
//! d = 128 and the vectors in the cache, a distance takes 6.1 ns with AVX-512, 7.0 ns with AVX2 and 11.8 ns with SSE2
//! (AMD EPYC, one thread, 2026-11-25).
//!
//! Sums of integers are exact in any order, so bytes need none. A processor with AVX2 multiplies 16 differences or
//! components of 16 bits and adds pairs of the products in one instruction: with d = 128 and the vectors in the cache,
//! a distance takes 3.4 ns, and 6.2 as a loop over 32-bit numbers (AMD EPYC, one thread, 2026-11-28). Bits are counted
//! by the instructions of exact search: 128 bytes in 9 ns, and 121 as a loop over bytes (AMD EPYC with POPCNT, one
//! thread, 2026-11-29).

use warpann_kernels::graph::distance::scale_for_norm;
use warpann_kernels::product::element::RowKey;

use bytemuck::cast_slice;

use crate::metric::differing_bits_of;
use crate::product::cpu::bits::BitCount;
use crate::product::cpu::convert;
use crate::product::gpu::VectorShape;
use crate::simd::{Isa, prefetch};
use crate::vectors::{VectorSlice, with_components};
use crate::{Element, ElementType, Metric};

/// Number of partial sums.
const LANES: usize = 32;
/// Number of vectors that are prefetched ahead of the one whose distance is computed.
const AHEAD: usize = 4;

/// A value of a walk, as a number in the order of the values.
pub(super) type Key = u32;

/// The query of a walk: the components as f32, divided by the norm for cosine, or as bytes.
#[derive(Debug, Default)]
pub(super) struct Query {
    floats: Vec<f32>,
    bytes: Vec<u8>,
}

impl Query {
    /// The sum of the squares of a query of codes.
    pub(super) fn square_of_codes(&self) -> u32 {
        let codes: &[i8] = bytemuck::cast_slice(&self.bytes);
        integer(codes, codes, Term::Product).try_into().unwrap_or(u32::MAX)
    }
}

/// The distances of walks among some vectors.
#[derive(Debug, Clone, Copy)]
pub(super) struct WalkDistance<'a> {
    isa: Isa,
    metric: Metric,
    rows: VectorSlice<'a>,
}

impl<'a> WalkDistance<'a> {
    /// The distances by `metric` from these vectors.
    pub(super) fn new(metric: Metric, rows: VectorSlice<'a>) -> Self {
        Self { isa: Isa::detect(), metric, rows }
    }

    /// The vectors to which distances are measured.
    pub(super) fn rows(&self) -> VectorSlice<'a> {
        self.rows
    }

    /// The metric by which nodes are near each other.
    pub(super) fn metric(&self) -> Metric {
        self.metric
    }

    /// The content of the vectors, as kernels name it.
    pub(super) fn row_key(&self) -> RowKey {
        VectorShape::of_rows(self.rows.element(), self.metric, self.rows.dim()).row_key()
    }

    /// Makes vector `at` of `vectors` a query, as [`keys`](Self::keys) takes it. If the walk compares bytes, `vectors`
    /// are bytes of the same type.
    pub(super) fn query(&self, vectors: VectorSlice<'_>, at: usize, query: &mut Query) {
        let vector = vectors.part(at..at + 1);
        if matches!(self.rows.element(), ElementType::U8 | ElementType::I8) {
            debug_assert_eq!(vectors.element(), self.rows.element(), "the type of a query");
            query.bytes.clear();
            query.bytes.extend_from_slice(vector.bytes());
            return;
        }
        let floats = &mut query.floats;
        floats.resize(vectors.dim(), 0.0);
        with_components!(vector, components: T => convert::<T>(components, floats));
        normalise(self.metric, floats);
    }

    /// Appends the key of the distance between `query` and each of the listed vectors, which exist, to `keys`. O(listed
    /// · dim).
    pub(super) fn keys(&self, query: &Query, listed: &[u32], keys: &mut Vec<Key>) {
        let Query { floats, bytes } = query;
        match self.rows.element() {
            ElementType::U8 => self.keys_of_bytes::<u8>(bytes, listed, keys),
            ElementType::I8 => self.keys_of_bytes::<i8>(bytes, listed, keys),
            ElementType::F32 => self.keys_of_floats::<f32>(floats, listed, keys),
            ElementType::F16 => self.keys_of_floats::<half::f16>(floats, listed, keys),
            ElementType::Bf16 => self.keys_of_floats::<half::bf16>(floats, listed, keys),
        }
    }

    fn keys_of_floats<T: Element>(&self, query: &[f32], listed: &[u32], keys: &mut Vec<Key>) {
        let rows: &[T] = self.rows.components();
        match self.isa {
            // SAFETY: `isa` comes from `Isa::detect`, so the processor has the instructions.
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => unsafe { avx512::<T>(self.metric, query, rows, listed, keys) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => unsafe { avx2::<T>(self.metric, query, rows, listed, keys) },
            Isa::Portable => of_all::<T>(self.metric, query, rows, listed, keys),
        }
    }

    fn keys_of_bytes<T: Byte>(&self, query: &[u8], listed: &[u32], keys: &mut Vec<Key>) {
        let (query, rows): (&[T], &[T]) = (bytemuck::cast_slice(query), self.rows.components());
        match self.isa {
            // SAFETY: `isa` comes from `Isa::detect`, and a processor with AVX-512 has AVX2.
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 | Isa::Avx2 => unsafe { avx2_bytes::<T>(self.metric, query, rows, listed, keys) },
            Isa::Portable => of_all_bytes::<T>(self.metric, query, rows, listed, keys, integer),
        }
    }

    /// As a definition for tests: the key without vector instructions.
    #[cfg(test)]
    pub(super) fn on(self, isa: Isa) -> Self {
        Self { isa, ..self }
    }
}

/// # Safety
/// The processor has AVX-512F.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
unsafe fn avx512<T: Element>(metric: Metric, query: &[f32], rows: &[T], listed: &[u32], keys: &mut Vec<Key>) {
    of_all(metric, query, rows, listed, keys);
}

/// # Safety
/// The processor has AVX2.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn avx2<T: Element>(metric: Metric, query: &[f32], rows: &[T], listed: &[u32], keys: &mut Vec<Key>) {
    of_all(metric, query, rows, listed, keys);
}

#[inline(always)]
fn of_all<T: Element>(metric: Metric, query: &[f32], rows: &[T], listed: &[u32], keys: &mut Vec<Key>) {
    let dim = query.len();
    let row = |number: u32| &rows[number as usize * dim..][..dim];
    let mut halves = Vec::new();
    for (at, &number) in listed.iter().enumerate() {
        if let Some(&later) = listed.get(at + AHEAD) {
            prefetch(row(later));
        }
        let value = if T::TYPE == ElementType::F16 {
            // One value at a time, the conversion looks for the processor's instruction each time.
            halves.resize(dim, 0.0);
            convert(row(number), &mut halves);
            value::<f32>(metric, query, &halves)
        } else {
            value(metric, query, row(number))
        };
        keys.push(key(value));
    }
}

/// A byte as an element.
trait Byte: Element + Into<i32> {
    /// The key of the negative of this inner product.
    fn descending(product: i64) -> Key;
}

impl Byte for u8 {
    fn descending(product: i64) -> Key {
        !clamped(product)
    }
}

impl Byte for i8 {
    fn descending(product: i64) -> Key {
        !clamped(product + (1 << 31))
    }
}

fn clamped(sum: i64) -> u32 {
    sum.clamp(0, u32::MAX.into()) as u32
}

/// # Safety
/// The processor has AVX2.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn avx2_bytes<T: Byte>(metric: Metric, query: &[T], rows: &[T], listed: &[u32], keys: &mut Vec<Key>) {
    of_all_bytes(metric, query, rows, listed, keys, |x, y, term| integer_avx2(x, y, term));
}

#[inline(always)]
fn of_all_bytes<T: Byte>(
    metric: Metric,
    query: &[T],
    rows: &[T],
    listed: &[u32],
    keys: &mut Vec<Key>,
    integer: impl Fn(&[T], &[T], Term) -> i64,
) {
    let dim = query.len();
    let row = |number: u32| &rows[number as usize * dim..][..dim];
    let norm = |x: &[T]| (integer(x, x, Term::Product) as f32).sqrt();
    let query_norm = if metric.divides_by_norms() { norm(query) } else { 0.0 };
    let count = BitCount::detect();
    for (at, &number) in listed.iter().enumerate() {
        if let Some(&later) = listed.get(at + AHEAD) {
            prefetch(row(later));
        }
        let y = row(number);
        keys.push(match metric {
            Metric::L2 => clamped(integer(query, y, Term::SquaredDifference)),
            Metric::InnerProduct => T::descending(integer(query, y, Term::Product)),
            Metric::Cosine => {
                let norms = query_norm * norm(y);
                key(if norms == 0.0 { 0.0 } else { -(integer(query, y, Term::Product) as f32) / norms })
            }
            Metric::Hamming => clamped(count.difference(cast_slice(query), cast_slice(y)) as i64),
        });
    }
}

/// The terms that are added up over the components of two vectors of bytes: numbers between −2¹⁶ and 2¹⁶.
#[derive(Debug, Clone, Copy)]
enum Term {
    Product,
    SquaredDifference,
}

/// Number of terms whose sum fits an i32.
const PART: usize = 1 << 14;

/// The sum of the terms.
#[inline(always)]
fn integer<T: Byte>(x: &[T], y: &[T], term: Term) -> i64 {
    let of_pair = |(&x, &y): (&T, &T)| -> i32 {
        let (x, y) = (x.into(), y.into());
        match term {
            Term::Product => x * y,
            Term::SquaredDifference => (x - y) * (x - y),
        }
    };
    let parts = x.chunks(PART).zip(y.chunks(PART));
    parts.map(|(x, y)| i64::from(x.iter().zip(y).map(of_pair).sum::<i32>())).sum()
}

/// As [`integer`], 16 components at a time.
#[cfg(target_arch = "x86_64")]
#[inline]
#[target_feature(enable = "avx2")]
fn integer_avx2<T: Byte>(x: &[T], y: &[T], term: Term) -> i64 {
    use std::arch::x86_64::*;
    let mut total = 0;
    for (x, y) in x.chunks(PART).zip(y.chunks(PART)) {
        let ((xs, x), (ys, y)) = (x.as_chunks::<16>(), y.as_chunks::<16>());
        let mut sums = _mm256_setzero_si256();
        for (x, y) in xs.iter().zip(ys) {
            // SAFETY: both have 16 bytes.
            let (x, y) = unsafe { (_mm_loadu_si128(x.as_ptr().cast()), _mm_loadu_si128(y.as_ptr().cast())) };
            let (x, y) = match T::TYPE {
                ElementType::U8 => (_mm256_cvtepu8_epi16(x), _mm256_cvtepu8_epi16(y)),
                _ => (_mm256_cvtepi8_epi16(x), _mm256_cvtepi8_epi16(y)),
            };
            let difference = _mm256_sub_epi16(x, y);
            let (a, b) = match term {
                Term::Product => (x, y),
                Term::SquaredDifference => (difference, difference),
            };
            sums = _mm256_add_epi32(sums, _mm256_madd_epi16(a, b));
        }
        let mut lanes = [0i32; 8];
        // SAFETY: there is room for 32 bytes.
        unsafe { _mm256_storeu_si256(lanes.as_mut_ptr().cast(), sums) };
        total += i64::from(lanes.iter().sum::<i32>()) + integer(x, y, term);
    }
    total
}

/// Step 0 of the definition for floats.
pub(super) fn normalise(metric: Metric, x: &mut [f32]) {
    if !metric.divides_by_norms() {
        return;
    }
    let square = |x: &[f32], scale: f32| sum(x, x, |_, y| (y * scale) * (y * scale));
    let scale = scale_for_norm(square(x, 1.0));
    let square = square(x, scale);
    if square != 0.0 {
        let norm = square.sqrt();
        x.iter_mut().for_each(|x| *x = *x * scale / norm);
    }
}

/// Steps 1 to 4 of the definition.
#[inline(always)]
fn value<T: Element>(metric: Metric, query: &[f32], row: &[T]) -> f32 {
    match metric {
        Metric::L2 => sum(query, row, |x, y| (x - y) * (x - y)),
        Metric::InnerProduct => -sum(query, row, |x, y| x * y),
        Metric::Cosine => {
            let squares = |scale: f32| sum(query, row, |_, y| (y * scale) * (y * scale));
            let usual = squares(1.0);
            match scale_for_norm(usual) {
                1.0 => -sum(query, row, |x, y| x * y) / usual.sqrt(),
                scale => match squares(scale) {
                    0.0 => 0.0,
                    square => -sum(query, row, |x, y| x * (y * scale)) / square.sqrt(),
                },
            }
        }
        Metric::Hamming => sum(query, row, |x, y| differing_bits_of(x, y) as f32),
    }
}

/// Steps 1 to 3 of the definition.
#[inline(always)]
fn sum<T: Element>(query: &[f32], row: &[T], term: impl Fn(f32, f32) -> f32) -> f32 {
    let mut acc = [0.0f32; LANES];
    let ((queries, query), (rows, row)) = (query.as_chunks::<LANES>(), row.as_chunks::<LANES>());
    for (x, y) in queries.iter().zip(rows) {
        for lane in 0..LANES {
            acc[lane] += term(x[lane], y[lane].to_f32());
        }
    }
    for ((acc, x), y) in acc.iter_mut().zip(query).zip(row) {
        *acc += term(*x, y.to_f32());
    }
    let sums: [f32; 16] = std::array::from_fn(|lane| acc[2 * lane] + acc[2 * lane + 1]);
    let sums: [f32; 8] = std::array::from_fn(|lane| sums[2 * lane] + sums[2 * lane + 1]);
    let sums: [f32; 4] = std::array::from_fn(|lane| sums[2 * lane] + sums[2 * lane + 1]);
    (sums[0] + sums[1]) + (sums[2] + sums[3])
}

/// Step 5 of the definition.
#[inline(always)]
fn key(value: f32) -> Key {
    let bits = (value + 0.0).to_bits();
    if value.is_nan() {
        Key::MAX
    } else if bits >> 31 == 1 {
        !bits
    } else {
        bits | 1 << 31
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    /// The definition, step by step.
    fn defined(metric: Metric, x: &[f32], y: &[f32]) -> f32 {
        let sum = |term: &dyn Fn(f32, f32) -> f32| {
            let mut sums = vec![0.0f32; 32];
            x.iter().zip(y).enumerate().for_each(|(i, (&x, &y))| sums[i % 32] += term(x, y));
            while sums.len() > 1 {
                sums = sums.chunks(2).map(|pair| pair[0] + pair[1]).collect();
            }
            sums[0]
        };
        let square = sum(&|_, y| y * y);
        let norm = sum(&|x, _| x * x).sqrt();
        match metric {
            Metric::L2 => sum(&|x, y| (x - y) * (x - y)),
            Metric::InnerProduct => -sum(&|x, y| x * y),
            Metric::Cosine if square == 0.0 => 0.0,
            Metric::Cosine => -sum(&|x, y| (x / norm) * y) / square.sqrt(),
            Metric::Hamming => sum(&|x, y| (x as u8 ^ y as u8).count_ones() as f32),
        }
    }

    fn check<T: Element>(random: &mut Random) {
        for dim in [1, 31, 32, 33, 100, 128, 200] {
            let mut rows: Vec<T> = (0..6 * dim).map(|_| T::from_f32((random.unit() as f32 - 0.3) * 100.0)).collect();
            rows[2 * dim..3 * dim].fill(T::default());
            let wide: Vec<f32> = rows.iter().map(|x| x.to_f32()).collect();
            let vectors = VectorSlice::of(&rows, dim);
            for metric in Metric::ALL {
                for isa in Isa::all() {
                    let distance = WalkDistance::new(metric, vectors).on(isa);
                    let (mut query, mut keys) = (Query::default(), Vec::new());
                    distance.query(vectors, 1, &mut query);
                    distance.keys(&query, &[5, 0, 2, 1], &mut keys);
                    let row = |at: usize| &wide[at * dim..(at + 1) * dim];
                    let expected = [5, 0, 2, 1].map(|at| key(defined(metric, row(1), row(at))));
                    assert_eq!(keys, expected, "{} {dim} {metric} {isa:?}", T::TYPE);
                }
            }
        }
    }

    #[test]
    fn keys_are_those_of_the_definition_on_every_instruction_set() {
        let mut random = Random::new(1);
        check::<f32>(&mut random);
        check::<half::f16>(&mut random);
        check::<half::bf16>(&mut random);
    }

    fn least_of<T: Byte>() -> f32 {
        if T::TYPE == ElementType::U8 { 0.0 } else { -128.0 }
    }

    /// The definition for bytes, in i128.
    fn check_bytes<T: Byte>(random: &mut Random, bias: i128) {
        for dim in [1, 15, 16, 33, 128, 70_000] {
            let mut rows: Vec<T> =
                (0..5 * dim).map(|_| T::from_f32(random.below(256) as f32 + least_of::<T>())).collect();
            rows[2 * dim..3 * dim].fill(T::default());
            // The greatest distance and the greatest product.
            let (least, most) = (T::from_f32(least_of::<T>()), T::from_f32(least_of::<T>() + 255.0));
            rows[3 * dim..4 * dim].fill(least);
            rows[4 * dim..].fill(most);
            let vectors = VectorSlice::of(&rows, dim);
            let wide = |at: usize| rows[at * dim..(at + 1) * dim].iter().map(|&x| i128::from(x.into()));
            let product = |a: usize, b: usize| wide(a).zip(wide(b)).map(|(x, y)| x * y).sum::<i128>();
            for metric in Metric::ALL {
                for isa in Isa::all() {
                    for of in [1, 3, 4] {
                        let distance = WalkDistance::new(metric, vectors).on(isa);
                        let (mut query, mut keys) = (Query::default(), Vec::new());
                        distance.query(vectors, of, &mut query);
                        distance.keys(&query, &[4, 0, 2, 3, 1], &mut keys);
                        let expected = [4, 0, 2, 3, 1].map(|at| match metric {
                            Metric::L2 => {
                                (product(of, of) + product(at, at) - 2 * product(of, at)).min(u32::MAX.into()) as u32
                            }
                            Metric::InnerProduct => {
                                u32::MAX - (product(of, at) + bias).clamp(0, u32::MAX.into()) as u32
                            }
                            Metric::Cosine => {
                                let norms = (product(of, of) as f32).sqrt() * (product(at, at) as f32).sqrt();
                                key(if norms == 0.0 { 0.0 } else { -(product(of, at) as f32) / norms })
                            }
                            Metric::Hamming => {
                                wide(of).zip(wide(at)).map(|(x, y)| (x as u8 ^ y as u8).count_ones()).sum()
                            }
                        });
                        assert_eq!(keys, expected, "{} {dim} {metric} {isa:?}", T::TYPE);
                    }
                }
            }
        }
    }

    #[test]
    fn keys_of_bytes_are_exact_on_every_instruction_set() {
        let mut random = Random::new(2);
        check_bytes::<u8>(&mut random, 0);
        check_bytes::<i8>(&mut random, 1 << 31);
    }

    #[test]
    fn keys_order_as_values_do() {
        let values = [f32::NEG_INFINITY, -2.0, -1e-40, 0.0, 1e-40, 3.0, f32::MAX, f32::INFINITY, f32::NAN];
        assert!(values.map(key).is_sorted_by(|a, b| a < b));
        assert_eq!(key(-0.0), key(0.0));
        assert_eq!(key(-f32::NAN), key(f32::NAN));
    }
}
