//! A bound of the difference between the scan's f32 score and the canonical distance, and the proof that the filter
//! loses nothing.
//!
//! # What is bounded
//!
//! The scan gives a pair (query x, base vector y) of dimension d a *score*, smaller is better, computed in f32 as
//! `s = fl(fl(acc · scale) + offset)`, where `acc` is the f32 sum of d products `x'_i · y_i`, in any order, fused or
//! not:
//!
//! | metric | x' | scale | offset | s approximates t = |
//! |---|---|---|---|---|
//! | L2 | −2x | 1 | f32(‖y‖²) | c − ‖x‖² |
//! | inner product | −x | 1 | 0 | −c |
//! | cosine | f32(−x/‖x‖) | f32(1/‖y‖), 0 for y = 0 | 0 | −c |
//!
//! Hamming distances are counted ([`super::bits`]): their score is c itself. A score from products of bytes would say
//! nothing about them, so its E is +∞.
//!
//! c is the canonical distance, an f32. [`QueryBound::error`] returns E with |s − t| ≤ E for every y of a block whose
//! largest norm is M. Let U be any number such that at least k vectors have t ≤ U. Then every vector among the best k,
//! ties included, has s ≤ U + E. U is computed from the k-th best known canonical distance, or is the k-th smallest s +
//! E.
//!
//! # Proof
//!
//! u = 2⁻²⁴, γ = d·u / (1 − d·u). A sum of d products in any order, fused or not, errs by at most γ·Σ|x'_i y_i|, which
//! by Cauchy-Schwarz is at most γ‖x'‖‖y‖, plus 2⁻¹⁵⁰ for each product that underflows (adding subnormals is exact).
//! After the other roundings these make at most η = d·2⁻¹⁴⁹ in all. The f64 sums of norms and canonical distances have
//! a relative error below d·2⁻⁵², which is below 2⁻³¹ = 2⁻⁷u for d ≤ 2²¹. The round factors below leave room for this
//! error and for every product of two small terms. d ≤ 2²¹ also gives γ ≤ 1/7.
//!
//! *L2.* Let S = (‖x‖ + M)². The dot product errs by 2γ‖x‖M + η; the rounding of ‖y‖² by uM²; the final addition by
//! u(M² + 2‖x‖M(1 + γ)); c, the rounding of the distance D ≤ S, by uS. The last three make at most
//! u(‖x‖² + 4⅓‖x‖M + 3M²) ≤ 3uS. E = 2γ‖x‖M + 4uS + 2η. The spare uS covers the f64 terms, also that of ‖x‖² where t
//! is computed from c.
//!
//! *Inner product.* The dot product errs by γ‖x‖M + η, c by u‖x‖M. E = (γ + 2u)‖x‖M + 2η.
//!
//! *Cosine.* Each component of x' has a relative error of at most 1.01u (or 2⁻¹⁵⁰ where it underflows, √d·2⁻¹⁵⁰ in
//! all), so the product with y/‖y‖ errs by 1.01u; the dot product by 1.01γ‖y‖ + η, where ‖y‖ ≥ 2⁻¹⁰⁰ makes η/‖y‖ ≤
//! d·2⁻⁴⁹ ≪ γ; the scale by 1.01u and the product with it by u; c by 1.01u. E = 1.1γ + 8u. A zero vector scores exactly
//! 0 = c.
//!
//! *Lookup tables.* A vector r_i = f32(c_i + p_i) may be scored by `acc` = fl(⟨x', c⟩) + Σ_m T\[m\] instead, where
//! T\[m\] is the f32 sum of the w products of part m of x' and p, x' is −2x or −x exactly, and M + 1 numbers are added
//! in any order ([`QueryBound::error_by_tables`]). ⟨x', r⟩ differs from ⟨x', c⟩ + ⟨x', p⟩ by at most 1.01u‖x'‖‖r‖;
//! fl(⟨x', c⟩), an f64 sum rounded, errs by 1.01u‖x'‖‖c‖; the tables by γ_w‖x'‖‖p‖ + η; their sum by γ_M(1 +
//! γ_w)‖x'‖(‖p‖ + ‖c‖). As ‖p‖ ≤ (1 + 1.01u)‖r‖ + ‖c‖, these errors are at most 1.1γ_n‖x'‖(‖r‖ + 2‖c‖) + η with n = w +
//! M + 2, which is added to E. Partial sums are at most 1.1‖x'‖(‖r‖ + 2‖c‖). Cosine multiplies the sum by the scale of
//! r, so these errors are divided by ‖r‖: at most 1.1γ_n(1 + 2‖c‖/‖r‖) + η/‖r‖. There x' has an error of 1.01u in each
//! component, for which n has room, because w and M are at least 1. The fold over a block uses its greatest scale for
//! 1/‖r‖.
//!
//! *Whole numbers.* Where x and y have whole components and S ≤ 2²⁴ (L2) or ‖x‖M ≤ 2²⁴ (inner product), every sum of
//! some of the products and squares is a whole number of at most that magnitude (Cauchy-Schwarz). So no operation
//! rounds, in any order: s = t, E = 0, and c follows from s ([`QueryBound::canonical_of`]). Bytes such as SIFT's meet
//! this condition up to some thousand components.
//!
//! *Overflow.* Partial sums are at most (1 + γ)‖x'‖‖y‖ by Cauchy-Schwarz, so nothing overflows while S < 2¹²⁵ (L2),
//! ‖x‖M < 2¹²⁵ (inner product), or all norms of the block lie in [2⁻¹⁰⁰, 2¹⁰⁰] or are 0 (cosine). Otherwise E = +∞:
//! every vector of the block survives with any score, NaN included, and only its canonical distance decides.

use crate::Metric;

/// Largest dimension for which the bounds are proved. Beyond it only canonical distances decide.
const MAX_DIM: usize = 1 << 21;
const U: f64 = f64::EPSILON * (1u64 << 28) as f64; // 2⁻²⁴

/// The part of the bound that depends on the query.
#[derive(Debug, Clone, Copy)]
pub(crate) struct QueryBound {
    metric: Metric,
    /// An upper bound of ‖x‖.
    norm: f64,
    /// ‖x‖² as computed in f64.
    square: f64,
    /// γ; +∞ beyond [`MAX_DIM`].
    gamma: f64,
    /// 2η, the room for underflow.
    tiny: f64,
    /// Whether all components of the query are whole numbers.
    whole: bool,
}

impl QueryBound {
    /// The bound of a query of `dim` components. `square` is ‖x‖², summed in f64.
    pub(crate) fn new(metric: Metric, dim: usize, square: f64) -> Self {
        let du = dim as f64 * U;
        let gamma = if dim <= MAX_DIM { du / (1.0 - du) } else { f64::INFINITY };
        Self { metric, norm: round_up(square.sqrt()), square, gamma, tiny: dim as f64 * 2f64.powi(-148), whole: false }
    }

    /// The same bound for a query whose components are all whole numbers, or not.
    pub(crate) fn with_whole(self, whole: bool) -> Self {
        Self { whole, ..self }
    }

    /// E for a block whose largest norm is `largest`. `whole` says whether all its components are whole numbers. E is 0
    /// only where all scores are proved exact.
    #[inline]
    pub(crate) fn error_or_exact(&self, largest: f32, whole: bool) -> f64 {
        let largest_wide = f64::from(largest);
        let reach = match self.metric {
            Metric::L2 => (self.norm + largest_wide) * (self.norm + largest_wide),
            Metric::InnerProduct => self.norm * largest_wide,
            Metric::Cosine => f64::INFINITY,
            Metric::Hamming => f64::INFINITY,
        };
        if self.whole && whole && reach <= EXACT { 0.0 } else { self.error(largest) }
    }

    /// E for a block whose largest norm is `largest`; +∞ marks a block with norms outside the range of the proof for
    /// cosine.
    #[inline]
    pub(crate) fn error(&self, largest: f32) -> f64 {
        let largest = f64::from(largest);
        let error = match self.metric {
            Metric::L2 => {
                let sum = self.norm + largest;
                let square = sum * sum;
                if square < LIMIT { 2.0 * self.gamma * self.norm * largest + 4.0 * U * square } else { f64::INFINITY }
            }
            Metric::InnerProduct => {
                let product = self.norm * largest;
                if product < LIMIT { (self.gamma + 2.0 * U) * product } else { f64::INFINITY }
            }
            Metric::Cosine => {
                if largest < f32::MAX.into() {
                    1.1 * self.gamma + 8.0 * U
                } else {
                    f64::INFINITY
                }
            }
            Metric::Hamming => f64::INFINITY,
        };
        // NaN is ∞ · 0 from an infinite γ. `round_up` covers the f64 roundings of this function itself.
        if error.is_nan() { f64::INFINITY } else { round_up(error) + self.tiny }
    }

    /// E for a block of vectors that are sums of a centroid, of norm `centroid`, and codewords, scored by lookup
    /// tables. Each product passes through at most `terms` f32 operations. `largest` is the largest norm of the block,
    /// and `steepest` its greatest scale, which only cosine has.
    pub(crate) fn error_by_tables(&self, (largest, steepest): (f32, f32), centroid: f64, terms: usize) -> f64 {
        let (norm, wide) = (f64::from(largest), 2.0 * round_up(centroid));
        // The greatest sum, and the part of a score that it is.
        let (sum, reach, tiny) = match self.metric {
            Metric::L2 => (2.0 * self.norm * (norm + wide), 2.0 * self.norm * (norm + wide), self.tiny),
            Metric::InnerProduct => (self.norm * (norm + wide), self.norm * (norm + wide), self.tiny),
            Metric::Cosine => {
                // The scale is rounded, and x' has a norm of at most 1 + 1.01u.
                let steepest = f64::from(steepest) * (1.0 + 4.0 * U);
                (norm + wide, (1.0 + 4.0 * U) + wide * steepest, self.tiny * steepest)
            }
            Metric::Hamming => return f64::INFINITY,
        };
        let gamma = terms as f64 * U / (1.0 - terms as f64 * U);
        // An infinite or NaN sum fails the comparison.
        if sum < LIMIT { self.error(largest) + round_up(1.1 * gamma * reach) + tiny } else { f64::INFINITY }
    }

    /// The canonical distance of a vector whose score is exact (E = 0).
    #[inline]
    pub(crate) fn canonical_of(&self, score: f32) -> f32 {
        match self.metric {
            Metric::L2 => (f64::from(score) + self.square) as f32 + 0.0,
            Metric::InnerProduct | Metric::Cosine => -score + 0.0,
            Metric::Hamming => score,
        }
    }

    /// U, the largest t that can be among the best k, from the k-th best canonical distance.
    #[inline]
    pub(crate) fn score_of(&self, canonical: f32) -> f64 {
        match self.metric {
            Metric::L2 => f64::from(canonical) - self.square,
            Metric::InnerProduct | Metric::Cosine => -f64::from(canonical),
            Metric::Hamming => f64::from(canonical),
        }
    }
}

/// 2²⁴: f32 has all whole numbers up to here.
const EXACT: f64 = (1u64 << 24) as f64;

/// Whether all of `values` are whole numbers of magnitude at most 2²².
pub(crate) fn all_whole(values: &[f32]) -> bool {
    // Adding and subtracting this number rounds numbers up to 2²² to whole ones. Conversions to integers take three
    // times as long.
    let round = 1.5 * (1u32 << 23) as f32;
    let whole = |&value: &f32| (value.abs() <= (1u32 << 22) as f32) & ((value + round) - round == value);
    // No exit inside a block, so that the compiler vectorises it.
    values.chunks(256).all(|values| values.iter().fold(true, |all, value| all & whole(value)))
}

/// 2¹²⁵: partial sums below this do not overflow.
const LIMIT: f64 = (1u128 << 125) as f64;

/// `value` · (1 + 2⁻³⁰). The factor covers the roundings of a few f64 operations and of the sum ‖x‖² for d ≤ 2²¹.
#[inline]
fn round_up(value: f64) -> f64 {
    value * (1.0 + 1.0 / (1u64 << 30) as f64)
}

/// An f32 at or above `value`: the one after the nearest.
#[inline]
pub(crate) fn ceil_f32(value: f64) -> f32 {
    (value as f32).next_up()
}

/// The factor of the components of a query with ‖x‖² = `square` that gives x'.
pub(crate) fn factor(metric: Metric, square: f64) -> f64 {
    match metric {
        Metric::L2 => -2.0,
        Metric::InnerProduct | Metric::Hamming => -1.0,
        Metric::Cosine if square == 0.0 => 0.0,
        Metric::Cosine => -1.0 / square.sqrt(),
    }
}

/// Whether scores have the offset f32(‖y‖²) and not 0. They have a scale where the metric divides by norms.
pub(crate) fn has_offset(metric: Metric) -> bool {
    match metric {
        Metric::L2 => true,
        Metric::InnerProduct | Metric::Cosine | Metric::Hamming => false,
    }
}

/// The scale of a row with ‖y‖² = `square`, where scores have one.
pub(crate) fn scale(square: f64) -> f32 {
    if square == 0.0 { 0.0 } else { square.sqrt().recip() as f32 }
}

/// An upper bound of the norms of a block of base vectors, +∞ where a norm is outside the range of the proof for
/// cosine. `squares` are the values ‖y‖², summed in f64.
pub(crate) fn largest_norm(metric: Metric, squares: impl Iterator<Item = f64>) -> f32 {
    let mut largest = 0.0f64;
    for square in squares {
        let out_of_range = match metric {
            Metric::L2 | Metric::InnerProduct | Metric::Hamming => false,
            Metric::Cosine => square != 0.0 && !(SMALL..=1.0 / SMALL).contains(&square),
        };
        largest = largest.max(if out_of_range { f64::INFINITY } else { square });
    }
    ceil_f32(largest.sqrt())
}

/// 2⁻²⁰⁰ = (2⁻¹⁰⁰)², the smallest square of a norm in the range of the proof for cosine.
const SMALL: f64 = 1.0 / ((1u128 << 100) as f64 * (1u128 << 100) as f64);
