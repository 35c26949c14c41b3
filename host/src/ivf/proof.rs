//! The proof that a refined search has lost nothing: the `k` best of all vectors of the lists that were read, by the
//! original vectors, although only their codes were compared.
//!
//! # Problem
//! A search by codes returns the candidates of a query: those whose codes are nearest. Original vectors then order
//! them. Is some vector that is no candidate nearer than the k-th best candidate?
//!
//! # Bound
//! ```text
//! x   an original vector, x' what the index made of it before coding (normalised for cosine, rotated)
//! r   what the code of x stands for;  q, q' a query, as x and x'
//! R   the greatest rest of the lists: rest ≥ ‖x' − r‖ + s·‖x'‖, for cosine ‖x'/‖x'‖ − r/‖r‖‖ + s;  s = SLACK
//!
//! L2              ‖q − x‖ ≥ ‖q' − r‖ − R − s·‖q‖                 (triangle)
//! inner product   ⟨q, x⟩ ≤ ⟨q', r⟩ + ‖q‖·R                       (Cauchy and Schwarz)
//! cosine          cos(q, x) ≤ cos(q', r) + R + s                 (the same for vectors of length 1)
//! ```
//!
//! Every vector that is no candidate has a code as far as that of the last candidate, or farther. So if the bound of
//! the last candidate's distance is worse than the distance of the k-th best, no other vector belongs among the k best.
//! Otherwise the search takes twice the candidates. If there are no more vectors in the lists, nothing is left to
//! prove.
//!
//! No chance is involved, unlike in RaBitQ, whose bound holds with high probability (Gao and Long 2024),
//! and no rotation is assumed to be random.
//!
//! # The probable bound ([`Proof::Probable`])
//! ```text
//! y   = x' − c, c the centroid of the list;  e = x' − r = y − step · levels, orthogonal to the levels
//! e   = a part along y of length |e|²/|y|, and a part p orthogonal to y
//! u   = q' − x'.  D² = ‖q' − r‖² = ‖u + e‖² = ‖u‖² + 2⟨u, e⟩ + ‖e‖²
//! ```
//!
//! The code depends on y only. So, given y, the rotation leaves the part of u that is orthogonal to y with a uniformly
//! random direction among dim − 1 dimensions, and ⟨u, p⟩ = ‖u⊥‖·‖p‖·t, where t exceeds s with a chance of at most
//! exp(−(dim − 1)·s²/2). With s = ε/√(dim − 2), and by Cauchy and Schwarz over the two parts of u,
//!
//! ```text
//! ⟨u, e⟩ ≤ ‖u‖·B,   B = √(A² + s²·R²)      A the greatest |e|²/|y| of the lists; a chance of exp(−ε²/2) at most that not
//! L2              ‖u‖ ≥ √(D² − R² + B²) − B                      (the certain bound is that of B = R)
//! inner product   ⟨q, x⟩ ≤ ⟨q', r⟩ + ‖q‖·B                       (the same for q' in the place of u)
//! cosine          cos(q, x) ≤ cos(q', r) + min(R, 2.5·B)
//! ```
//!
//! Under cosine x' = r + e has the length 1, so cos(q, x) = ‖r‖·cos(q', r) + ⟨q', e⟩ for q' of length 1, and ‖r‖² = 1 −
//! ‖e‖² − 2⟨c, e⟩. ‖c‖ is at most 1, so ⟨c, e⟩ has the bound B with the same chance, and the sum of both is at most
//! known + 2B. R and A are of ‖x' − r/‖r‖‖, of which ‖e‖ is at most 1.09 times as much while B < .4·R; for more, 2.5·B
//! exceeds R. Two chances make 2·exp(−ε²/2).
//!
//! ε is [`CHANCE`] = 4: exp(−8) is below 1 in 2,900. It is the chance to lose one of the k best, and not of a query for
//! each vector: no other vector can be lost. The worst case over all directions of u and the greatest rests of all
//! lists make it rarer; a test counts. The rotation is one of signs and butterflies ([`crate::pq::mixing`]), which is
//! not uniform, and the chance is over rotations: a query that fails does so in each search of this index.
//!
//! # Slack
//! The bound is for real numbers; the slack is for rounding. A rotation ([`crate::pq::mixing`]) changes a vector by
//! less than 2⁻²³ of its length, its division by its length under cosine by 2⁻²³ more, and sums have f64. So s = 2⁻¹⁶
//! of both vectors is much more than all of these. Canonical distances are rounded to f32 once (2⁻²⁴); [`ROUNDING`] is
//! more. Lengths below 2⁻¹²⁰ and distances below 2⁻¹⁰⁰, which may be subnormal, count as 0.
//!
//! # Cost
//! Candidates for the 10 best of 16 of 400 lists, 100,000 clustered vectors, calculated for codes with the same steps
//! and levels (2026-11-30): with 3, 4, 5, 6 and 7 bits 257, 100, 42, 22 and 15 of 5,964 for 384 components, and 624,
//! 108, 44, 23 and 15 of 5,420 for 128. With the rest of each vector in the place of the greatest they would be 82, 34,
//! 20, 14 and 12, and 77, 32, 19, 14 and 12.

use warpann_kernels::ivf::encode_bits::{LEAST_LENGTH, SLACK};

use crate::ivf::rest::Rest;
use crate::{Metric, Proof};

/// More than the relative rounding of a canonical distance.
const ROUNDING: f64 = 1.0 / 4_194_304.0;
/// More than the absolute rounding of a product that is subnormal: 2⁻¹⁴⁰.
const LEAST_PRODUCT: f64 = f64::from_bits((1023 - 140) << 52);
/// Squared distances below this count as 0: 2⁻¹⁰⁰.
const LEAST_SQUARE: f64 = f64::from_bits((1023 - 100) << 52);

/// ε of the probable bound.
const CHANCE: f64 = 4.0;

/// The bound of the distances of all vectors of an index from those of their codes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bound {
    metric: Metric,
    /// R of the module documentation.
    rest: f64,
    /// B for what decides, at most `rest`.
    share: f64,
}

impl Bound {
    /// Takes the greatest rest of all codes, which may be infinite, and the number of components of the vectors.
    pub(super) fn new(metric: Metric, rest: Rest, dim: usize, proof: Proof) -> Bound {
        let (rest, along) = (f64::from(rest.length), f64::from(rest.along));
        let share = match proof {
            Proof::None | Proof::Certain => rest,
            Proof::Probable => {
                let random = CHANCE / (dim as f64 - 2.0).max(0.0).sqrt() * rest;
                let events = match metric {
                    Metric::L2 | Metric::InnerProduct | Metric::Hamming => 1.0,
                    Metric::Cosine => 2.5,
                };
                let share = along.hypot(random) * events;
                // NaN if the rest is infinite or, with two components or fewer, zero.
                if share <= rest { share } else { rest }
            }
        };
        Bound { metric, rest, share }
    }

    /// Whether no vector whose code is at the distance `last` from a query of this length, or farther, can be as good
    /// as one at the distance `kth`.
    pub(super) fn holds(&self, length: f64, kth: f32, last: f32) -> bool {
        let (kth, best) = (within(kth), self.best(length, last, self.share));
        match self.metric {
            Metric::L2 | Metric::Hamming => best > LEAST_SQUARE && best > kth,
            Metric::InnerProduct | Metric::Cosine => best < kth,
        }
    }

    /// Whether a vector cannot be at the distance `of_vector` from a query of this length if its code is at the
    /// distance `of_code`.
    pub(super) fn is_contradicted(&self, length: f64, of_vector: f32, of_code: f32) -> bool {
        let (vector, code) = (within(of_vector), within(of_code));
        let best = |known| self.best(length, known, self.rest);
        match self.metric {
            Metric::L2 | Metric::Hamming => {
                vector < best(of_code) - LEAST_SQUARE || code < best(of_vector) - LEAST_SQUARE
            }
            Metric::InnerProduct | Metric::Cosine => vector > best(of_code) || code > best(of_vector),
        }
    }

    /// The best of what a distance can be if the other, of the vector or of its code, is `known`, by the bound with
    /// this B. `share` below the rest needs that `known` is the distance of the code.
    fn best(&self, length: f64, known: f32, share: f64) -> f64 {
        let (known, length) = (within(known), length + LEAST_LENGTH);
        match self.metric {
            // No code under Hamming but whole vectors, whose rest is 0.
            Metric::L2 | Metric::Hamming => {
                let reach = known.sqrt() * (1.0 - ROUNDING);
                let beyond = (reach.powi(2) - self.rest.powi(2) + share.powi(2)).max(0.0);
                let least = if share < self.rest { beyond.sqrt() } else { reach } - share - SLACK * length;
                least.max(0.0).powi(2) * (1.0 - ROUNDING)
            }
            Metric::InnerProduct => known + known.abs() * ROUNDING + length * share + LEAST_PRODUCT,
            Metric::Cosine => known + ROUNDING + share + SLACK,
        }
    }
}

/// A distance, where f32 cannot hold it the greatest that f32 can.
fn within(distance: f32) -> f64 {
    f64::from(distance.clamp(f32::MIN, f32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A certain bound, for which only the length counts.
    fn certain(metric: Metric, length: f32) -> Bound {
        Bound::new(metric, Rest { length, along: 0.0 }, 100, Proof::Certain)
    }

    #[test]
    fn bounds_by_hand() {
        let l2 = certain(Metric::L2, 3.0);
        // A code at 10 stands for a vector at 7 or more.
        assert!(l2.holds(0.0, 48.9, 100.0) && !l2.holds(0.0, 49.0, 100.0));
        // Roundings of a rotated query of length 65,536 may bring the vector nearer by 1.
        assert!(l2.holds(65536.0, 35.9, 100.0) && !l2.holds(65536.0, 36.0, 100.0));
        assert!(!l2.is_contradicted(0.0, 49.1, 100.0) && l2.is_contradicted(0.0, 48.9, 100.0));
        assert!(!l2.is_contradicted(0.0, 168.9, 100.0) && l2.is_contradicted(0.0, 169.1, 100.0));
        let product = certain(Metric::InnerProduct, 3.0);
        assert!(product.holds(2.0, 11.1, 5.0) && !product.holds(2.0, 11.0, 5.0));
        assert!(product.is_contradicted(2.0, 11.1, 5.0) && product.is_contradicted(2.0, -1.1, 5.0));
        assert!(!product.is_contradicted(2.0, 10.9, 5.0) && !product.is_contradicted(2.0, -0.9, 5.0));
        let cosine = certain(Metric::Cosine, 0.25);
        assert!(cosine.holds(9.0, 0.76, 0.5) && !cosine.holds(9.0, 0.75, 0.5));
    }

    #[test]
    fn nothing_is_proved_of_equal_distances_and_of_what_f32_cannot_hold() {
        for metric in [Metric::L2, Metric::InnerProduct, Metric::Cosine] {
            for distance in [0.0, 1.0, f32::MIN_POSITIVE, f32::MAX, f32::from_bits(1)] {
                assert!(!certain(metric, 0.0).holds(1.0, distance, distance), "{metric} {distance}");
            }
            assert!(!certain(metric, f32::INFINITY).holds(1.0, 0.5, 0.5));
        }
        let l2 = certain(Metric::L2, 1.0);
        assert!(!l2.holds(1.0, f32::INFINITY, f32::INFINITY) && !l2.holds(1.0, f32::MAX, f32::INFINITY));
        assert!(l2.holds(1.0, 1e38, f32::INFINITY), "what f32 cannot hold is far");
        assert!(!certain(Metric::L2, 0.0).holds(0.0, 0.0, 1e-38), "distances that may be subnormal are all 0");
        let product = certain(Metric::InnerProduct, 1.0);
        assert!(
            !product.holds(1.0, f32::INFINITY, f32::INFINITY)
                && !product.holds(1.0, f32::NEG_INFINITY, f32::NEG_INFINITY)
        );
        assert!(product.holds(1.0, -1e38, f32::NEG_INFINITY));
        // 2.5 · 2^-149 is rounded down or up.
        let [two, three] = [2, 3].map(f32::from_bits);
        assert!(!certain(Metric::InnerProduct, 0.0).is_contradicted(0.0, two, three));
    }

    #[test]
    fn the_probable_bound_by_hand() {
        // s is 4 / 10, so B is √(1.8² + (0.4 · 6)²) = 3, and of the squared distance 100 from a code √(100 − 36 + 9) −
        // 3 remain, 5.544.
        let rest = Rest { length: 6.0, along: 1.8 };
        let bound = |metric| Bound::new(metric, rest, 102, Proof::Probable);
        let l2 = bound(Metric::L2);
        assert!(l2.holds(0.0, 30.7, 100.0) && !l2.holds(0.0, 30.8, 100.0));
        let certain = Bound::new(Metric::L2, rest, 102, Proof::Certain);
        assert!(certain.holds(0.0, 15.9, 100.0) && !certain.holds(0.0, 16.1, 100.0));
        // A code nearer than its rest proves nothing.
        assert!(!l2.holds(0.0, 0.0, 35.9) && l2.holds(0.0, 0.0, 36.1));
        let product = bound(Metric::InnerProduct);
        assert!(product.holds(2.0, 11.1, 5.0) && !product.holds(2.0, 10.9, 5.0));
        // Contradictions are certain.
        assert!(!l2.is_contradicted(0.0, 16.1, 100.0) && l2.is_contradicted(0.0, 15.9, 100.0));
        let cosine = |length, along| Bound::new(Metric::Cosine, Rest { length, along }, 10_002, Proof::Probable);
        // B is √(0.003² + 0.004²), of which 2.5 are 0.0125; and with a greater part along the residual the rest.
        assert!(cosine(0.1, 0.003).holds(9.0, 0.513, 0.5) && !cosine(0.1, 0.003).holds(9.0, 0.512, 0.5));
        assert!(cosine(0.1, 0.09).holds(9.0, 0.601, 0.5) && !cosine(0.1, 0.09).holds(9.0, 0.599, 0.5));
    }

    #[test]
    fn the_probable_bound_is_never_the_wider_one() {
        for dim in [1, 2, 3, 30, 1000] {
            for metric in Metric::OF_NUMBERS {
                for (length, along) in [(0.0, 0.0), (0.5, 0.0), (0.5, 0.1), (0.5, 0.5), (f32::INFINITY, f32::INFINITY)]
                {
                    let rest = Rest { length, along };
                    let [certain, probable] =
                        [Proof::Certain, Proof::Probable].map(|proof| Bound::new(metric, rest, dim, proof));
                    assert!(probable.share <= certain.share && certain.share == certain.rest);
                    for at in 1..40 {
                        let (kth, last) = (1.0, if metric == Metric::L2 { 1.0 } else { 0.0 } + at as f32 / 20.0);
                        let (kth, last) = if metric == Metric::L2 { (kth, last) } else { (last, 0.25) };
                        assert!(
                            probable.holds(1.0, kth, last) || !certain.holds(1.0, kth, last),
                            "{metric} {dim} {at}"
                        );
                    }
                }
            }
        }
    }
}
