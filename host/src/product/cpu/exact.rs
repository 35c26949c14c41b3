//! The sum of [`crate::metric`]'s definition, steps 1 to 5, evaluated with SIMD. The operations and their order are
//! those of the definition, so the bits are the same. The tests compare the sum with the plain evaluation in
//! [`crate::metric`].
//!
//! The query is passed as f64, because it is used with many rows. This saves a third of the work.

use crate::Metric;
use crate::metric::differing_bits_of;
use crate::simd::Isa;

/// The term of the sum, a function of x_i and y_i.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Term {
    /// The square (x_i − y_i)².
    SquaredDifference,
    /// The product x_i · y_i.
    Product,
}

/// The canonical distance (step 6 included) of a query, given with Σx², and a row. `yy` computes Σy² and is called only
/// for cosine.
#[inline]
pub(crate) fn distance(isa: Isa, metric: Metric, (x, xx): (&[f64], f64), y: &[f32], yy: impl FnOnce() -> f64) -> f32 {
    match metric {
        Metric::L2 => sum(isa, Term::SquaredDifference, x, y) as f32 + 0.0,
        Metric::InnerProduct => sum(isa, Term::Product, x, y) as f32 + 0.0,
        Metric::Cosine => {
            let squares = xx * yy();
            if squares == 0.0 { 0.0 } else { (sum(isa, Term::Product, x, y) / squares.sqrt()) as f32 + 0.0 }
        }
        Metric::Hamming => {
            x.iter().zip(y).map(|(&x, &y)| u64::from(differing_bits_of(x as f32, y))).sum::<u64>() as f32
        }
    }
}

/// Appends Σy² of each row of `dim` components.
pub(crate) fn squares(isa: Isa, dim: usize, rows: &[f32], to: &mut Vec<f64>) {
    let mut wide = vec![0.0; dim];
    for row in rows.chunks_exact(dim) {
        wide.iter_mut().zip(row).for_each(|(wide, &y)| *wide = f64::from(y));
        to.push(sum(isa, Term::Product, &wide, row));
    }
}

/// Steps 1 to 5 for two vectors of one length. Each value of `x` is an f32, widened to f64.
#[inline]
pub(crate) fn sum(isa: Isa, term: Term, x: &[f64], y: &[f32]) -> f64 {
    assert_eq!(x.len(), y.len(), "vectors of one dimension");
    if x.len() <= FEW {
        return few(term, x, y);
    }
    match (isa, term) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: `isa` comes from `Isa::detect`, so the processor has the instructions; the lengths were compared
        // above.
        (Isa::Avx512, Term::SquaredDifference) => unsafe { avx512::sum::<true>(x, y) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above.
        (Isa::Avx512, Term::Product) => unsafe { avx512::sum::<false>(x, y) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above.
        (Isa::Avx2, Term::SquaredDifference) => unsafe { avx2::sum::<true>(x, y) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above.
        (Isa::Avx2, Term::Product) => unsafe { avx2::sum::<false>(x, y) },
        (Isa::Portable, Term::SquaredDifference) => portable::<true>(x, y),
        (Isa::Portable, Term::Product) => portable::<false>(x, y),
    }
}

/// Up to this many components the sum is two levels of additions, a small fraction of the work for a block of 128
/// columns. k-means++ of sub-vectors takes millions of these sums.
pub(crate) const FEW: usize = 4;

/// Steps 1 to 5 for up to four components, where every lane but the first is 0.
#[inline(always)]
fn few(term: Term, x: &[f64], y: &[f32]) -> f64 {
    let column = |x: f64, y: f32| match term {
        Term::SquaredDifference => (x - f64::from(y)) * (x - f64::from(y)),
        // A column starts at 0, so a product of −0 becomes +0.
        Term::Product => 0.0 + x * f64::from(y),
    };
    if let (&[x0, x1, x2, x3], &[y0, y1, y2, y3]) = (x, y) {
        return (column(x0, y0) + column(x1, y1)) + (column(x2, y2) + column(x3, y3));
    }
    let at = |j: usize| x.get(j).zip(y.get(j)).map_or(0.0, |(&x, &y)| column(x, y));
    (at(0) + at(1)) + (at(2) + at(3))
}

/// The sum in plain Rust, in blocks of 128 fixed columns, which the compiler vectorises. The compiler never fuses or
/// reorders f64 operations, on any instruction set.
#[inline(always)]
fn portable<const DIFFERENCE: bool>(x: &[f64], y: &[f32]) -> f64 {
    let term = |x: f64, y: f32| {
        let y = f64::from(y);
        if DIFFERENCE { (x - y) * (x - y) } else { x * y }
    };
    let mut acc = [0.0f64; 128];
    let (xs, x_rest) = x.as_chunks::<128>();
    let (ys, y_rest) = y.as_chunks::<128>();
    for (x, y) in xs.iter().zip(ys) {
        for j in 0..128 {
            acc[j] += term(x[j], y[j]);
        }
    }
    for (acc, (&x, &y)) in acc.iter_mut().zip(x_rest.iter().zip(y_rest)) {
        *acc += term(x, y);
    }
    let mut lanes: [f64; 32] =
        std::array::from_fn(|l| (acc[4 * l] + acc[4 * l + 1]) + (acc[4 * l + 2] + acc[4 * l + 3]));
    for m in [16, 8, 4, 2, 1] {
        for l in 0..m {
            lanes[l] += lanes[l + m];
        }
    }
    lanes[0]
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use std::arch::x86_64::*;

    /// The 128 accumulators would take 32 registers, but there are 16. So four registers, 16 columns, accumulate over
    /// all components before the next four.
    ///
    /// # Safety
    /// The processor has AVX2; the lengths agree.
    #[target_feature(enable = "avx2")]
    pub(crate) unsafe fn sum<const DIFFERENCE: bool>(x: &[f64], y: &[f32]) -> f64 {
        // Step 3 is included: a register of four lanes for each 16 columns.
        let mut lanes = [_mm256_setzero_pd(); 8];
        for (part, lanes) in lanes.iter_mut().enumerate() {
            let mut acc = [_mm256_setzero_pd(); 4];
            let mut at = 16 * part;
            while at + 16 <= x.len() {
                // SAFETY: 16 values from `at` on.
                unsafe { step::<DIFFERENCE>(&mut acc, x.as_ptr().add(at), y.as_ptr().add(at)) };
                at += 128;
            }
            if at < x.len() {
                // The columns past d are zeros, as with AVX-512.
                let (mut last_x, mut last_y) = ([0.0; 16], [0.0; 16]);
                last_x[..x.len() - at].copy_from_slice(&x[at..]);
                last_y[..x.len() - at].copy_from_slice(&y[at..]);
                // SAFETY: 16 values each.
                unsafe { step::<DIFFERENCE>(&mut acc, last_x.as_ptr(), last_y.as_ptr()) };
            }
            *lanes = fours(acc);
        }
        // Step 4: m = 16, 8 and 4 add whole registers.
        for m in [4, 2, 1] {
            for l in 0..m {
                lanes[l] = _mm256_add_pd(lanes[l], lanes[l + m]);
            }
        }
        let mut lane = [0.0f64; 4];
        // SAFETY: `lane` has room for four values.
        unsafe { _mm256_storeu_pd(lane.as_mut_ptr(), lanes[0]) };
        (lane[0] + lane[2]) + (lane[1] + lane[3])
    }

    /// Steps 1 and 2 for 16 columns.
    ///
    /// # Safety
    /// The processor has AVX2; `x` and `y` have 16 values each.
    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn step<const DIFFERENCE: bool>(acc: &mut [__m256d; 4], x: *const f64, y: *const f32) {
        for (j, acc) in acc.iter_mut().enumerate() {
            // SAFETY: 4 values at 4j with j < 4 lie within 16.
            let (x, y) = unsafe { (_mm256_loadu_pd(x.add(4 * j)), _mm_loadu_ps(y.add(4 * j))) };
            let y = _mm256_cvtps_pd(y);
            let term = if DIFFERENCE {
                let difference = _mm256_sub_pd(x, y);
                _mm256_mul_pd(difference, difference)
            } else {
                _mm256_mul_pd(x, y)
            };
            *acc = _mm256_add_pd(*acc, term);
        }
    }

    /// (a0 + a1) + (a2 + a3) of each register a.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn fours([a, b, c, d]: [__m256d; 4]) -> __m256d {
        let (ab, cd) = (_mm256_hadd_pd(a, b), _mm256_hadd_pd(c, d));
        let first = _mm256_permute2f128_pd::<0x20>(ab, cd);
        let second = _mm256_permute2f128_pd::<0x31>(ab, cd);
        _mm256_add_pd(first, second)
    }
}

#[cfg(target_arch = "x86_64")]
mod avx512 {
    use std::arch::x86_64::*;

    /// The 128 accumulators take 16 registers. The columns past d are zeros, which add 0 to accumulators that are never
    /// −0. (With masked loads the compiler kept the accumulators in memory.)
    ///
    /// # Safety
    /// The processor has AVX-512F.
    #[target_feature(enable = "avx512f")]
    pub(crate) unsafe fn sum<const DIFFERENCE: bool>(x: &[f64], y: &[f32]) -> f64 {
        let mut acc = [_mm512_setzero_pd(); 16];
        let (xs, x_rest) = x.as_chunks::<128>();
        let (ys, y_rest) = y.as_chunks::<128>();
        for (x, y) in xs.iter().zip(ys) {
            step::<DIFFERENCE>(&mut acc, x, y);
        }
        if !x_rest.is_empty() {
            let (mut x, mut y) = ([0.0; 128], [0.0; 128]);
            x[..x_rest.len()].copy_from_slice(x_rest);
            y[..y_rest.len()].copy_from_slice(y_rest);
            step::<DIFFERENCE>(&mut acc, &x, &y);
        }
        // Step 3, four registers (8 lanes) at a time. The lanes come out as 0 2 1 3 4 6 5 7 of each eight.
        let lanes: [__m512d; 4] =
            std::array::from_fn(|g| fours(acc[4 * g], acc[4 * g + 1], acc[4 * g + 2], acc[4 * g + 3]));
        // Step 4: m = 16 and 8 add whole registers, 4 the halves of a register, 2 and 1 single lanes.
        let eight = _mm512_add_pd(_mm512_add_pd(lanes[0], lanes[2]), _mm512_add_pd(lanes[1], lanes[3]));
        let four = _mm256_add_pd(_mm512_castpd512_pd256(eight), _mm512_extractf64x4_pd::<1>(eight));
        let mut lane = [0.0f64; 4];
        // SAFETY: `lane` has room for four values.
        unsafe { _mm256_storeu_pd(lane.as_mut_ptr(), four) };
        let [lane0, lane2, lane1, lane3] = lane;
        (lane0 + lane2) + (lane1 + lane3)
    }

    /// Steps 1 and 2 for 128 columns.
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn step<const DIFFERENCE: bool>(acc: &mut [__m512d; 16], x: &[f64; 128], y: &[f32; 128]) {
        for (j, acc) in acc.iter_mut().enumerate() {
            // SAFETY: 8 values at 8j with j < 16 lie within 128.
            let (x, y) = unsafe { (_mm512_loadu_pd(x.as_ptr().add(8 * j)), _mm256_loadu_ps(y.as_ptr().add(8 * j))) };
            let y = _mm512_cvtps_pd(y);
            let term = if DIFFERENCE {
                let difference = _mm512_sub_pd(x, y);
                _mm512_mul_pd(difference, difference)
            } else {
                _mm512_mul_pd(x, y)
            };
            *acc = _mm512_add_pd(*acc, term);
        }
    }

    /// (a0 + a1) + (a2 + a3) of each four consecutive values of a, b, c, d.
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn fours(a: __m512d, b: __m512d, c: __m512d, d: __m512d) -> __m512d {
        let ab = _mm512_add_pd(_mm512_unpacklo_pd(a, b), _mm512_unpackhi_pd(a, b));
        let cd = _mm512_add_pd(_mm512_unpacklo_pd(c, d), _mm512_unpackhi_pd(c, d));
        let first = _mm512_shuffle_f64x2::<0b10_00_10_00>(ab, cd);
        let second = _mm512_shuffle_f64x2::<0b11_01_11_01>(ab, cd);
        _mm512_add_pd(first, second)
    }
}

#[cfg(test)]
mod tests {
    use test_random::Random;

    use super::*;
    use crate::metric::canonical;

    #[test]
    fn every_instruction_set_gives_the_bits_of_the_definition() {
        // Values of many magnitudes, so that another order of addition changes bits.
        let mut random = Random::new(1);
        let mut next = || (random.unit_f32() - 0.5) * 2f32.powi(random.below(32) as i32 - 16);
        for dim in (1..=300).chain([383, 384, 385, 512, 960, 1000, 2047, 2048]) {
            let x: Vec<f32> = (0..dim).map(|_| next()).collect();
            let y: Vec<f32> = (0..dim).map(|_| next()).collect();
            let wide: Vec<f64> = x.iter().map(|&x| f64::from(x)).collect();
            for isa in Isa::all() {
                let l2 = sum(isa, Term::SquaredDifference, &wide, &y) as f32 + 0.0;
                assert_eq!(l2.to_bits(), canonical(Metric::L2, &x, &y).to_bits(), "L2, {isa:?}, dimension {dim}");
                let product = sum(isa, Term::Product, &wide, &y);
                let ip = product as f32 + 0.0;
                assert_eq!(ip.to_bits(), canonical(Metric::InnerProduct, &x, &y).to_bits(), "{isa:?}, dimension {dim}");
                // All 64 bits, against the plain evaluation.
                assert_eq!(product.to_bits(), portable::<false>(&wide, &y).to_bits(), "{isa:?}, {dim}");
                let square = sum(isa, Term::SquaredDifference, &wide, &y);
                assert_eq!(square.to_bits(), portable::<true>(&wide, &y).to_bits(), "{isa:?}, {dim}");
            }
        }
    }

    #[test]
    fn products_of_zeros_have_the_sign_of_the_definition() {
        for dim in [1, 2, 4, 5] {
            let (x, y) = (vec![-1.0; dim], vec![0.0; dim]);
            for isa in Isa::all() {
                assert_eq!(
                    sum(isa, Term::Product, &x, &y).to_bits(),
                    portable::<false>(&x, &y).to_bits(),
                    "{isa:?}, {dim}"
                );
            }
        }
    }
}
