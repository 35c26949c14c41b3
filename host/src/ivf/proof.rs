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
//! and no rotation is assumed to be random. The price is a bound √(dim − 1) / 1.9 times as wide.
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

use crate::Metric;

/// More than the share of a vector's length by which rotation and rounding change distances.
pub(super) const SLACK: f64 = 1.0 / 65536.0;
/// More than the relative rounding of a canonical distance.
const ROUNDING: f64 = 1.0 / 4_194_304.0;
/// Lengths below this count as 0: 2⁻¹²⁰.
pub(super) const LEAST_LENGTH: f64 = f64::from_bits((1023 - 120) << 52);
/// More than the absolute rounding of a product that is subnormal: 2⁻¹⁴⁰.
const LEAST_PRODUCT: f64 = f64::from_bits((1023 - 140) << 52);
/// Squared distances below this count as 0: 2⁻¹⁰⁰.
const LEAST_SQUARE: f64 = f64::from_bits((1023 - 100) << 52);

/// The bound of the distances of all vectors of an index from those of their codes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Proof {
    metric: Metric,
    rest: f64,
}

impl Proof {
    /// Takes the greatest rest of all codes, which may be infinite.
    pub(super) fn new(metric: Metric, rest: f32) -> Proof {
        Proof { metric, rest: f64::from(rest) }
    }

    /// Whether no vector whose code is at the distance `last` from a query of this length, or farther, can be as good
    /// as one at the distance `kth`.
    pub(super) fn holds(&self, length: f64, kth: f32, last: f32) -> bool {
        let (kth, best) = (within(kth), self.best(length, last));
        match self.metric {
            Metric::L2 | Metric::Hamming => best > LEAST_SQUARE && best > kth,
            Metric::InnerProduct | Metric::Cosine => best < kth,
        }
    }

    /// Whether a vector cannot be at the distance `of_vector` from a query of this length if its code is at the
    /// distance `of_code`.
    pub(super) fn is_contradicted(&self, length: f64, of_vector: f32, of_code: f32) -> bool {
        let (vector, code) = (within(of_vector), within(of_code));
        match self.metric {
            Metric::L2 | Metric::Hamming => {
                vector < self.best(length, of_code) - LEAST_SQUARE || code < self.best(length, of_vector) - LEAST_SQUARE
            }
            Metric::InnerProduct | Metric::Cosine => {
                vector > self.best(length, of_code) || code > self.best(length, of_vector)
            }
        }
    }

    /// The best of what a distance can be if the other, of the vector or of its code, is `known`.
    fn best(&self, length: f64, known: f32) -> f64 {
        let (known, length) = (within(known), length + LEAST_LENGTH);
        match self.metric {
            // No code under Hamming but whole vectors, whose rest is 0.
            Metric::L2 | Metric::Hamming => {
                let least = known.sqrt() * (1.0 - ROUNDING) - self.rest - SLACK * length;
                least.max(0.0).powi(2) * (1.0 - ROUNDING)
            }
            Metric::InnerProduct => known + known.abs() * ROUNDING + length * self.rest + LEAST_PRODUCT,
            Metric::Cosine => known + ROUNDING + self.rest + SLACK,
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

    #[test]
    fn bounds_by_hand() {
        let l2 = Proof::new(Metric::L2, 3.0);
        // A code at 10 stands for a vector at 7 or more.
        assert!(l2.holds(0.0, 48.9, 100.0) && !l2.holds(0.0, 49.0, 100.0));
        // Roundings of a rotated query of length 65,536 may bring the vector nearer by 1.
        assert!(l2.holds(65536.0, 35.9, 100.0) && !l2.holds(65536.0, 36.0, 100.0));
        assert!(!l2.is_contradicted(0.0, 49.1, 100.0) && l2.is_contradicted(0.0, 48.9, 100.0));
        assert!(!l2.is_contradicted(0.0, 168.9, 100.0) && l2.is_contradicted(0.0, 169.1, 100.0));
        let product = Proof::new(Metric::InnerProduct, 3.0);
        assert!(product.holds(2.0, 11.1, 5.0) && !product.holds(2.0, 11.0, 5.0));
        assert!(product.is_contradicted(2.0, 11.1, 5.0) && product.is_contradicted(2.0, -1.1, 5.0));
        assert!(!product.is_contradicted(2.0, 10.9, 5.0) && !product.is_contradicted(2.0, -0.9, 5.0));
        let cosine = Proof::new(Metric::Cosine, 0.25);
        assert!(cosine.holds(9.0, 0.76, 0.5) && !cosine.holds(9.0, 0.75, 0.5));
    }

    #[test]
    fn nothing_is_proved_of_equal_distances_and_of_what_f32_cannot_hold() {
        for metric in [Metric::L2, Metric::InnerProduct, Metric::Cosine] {
            for distance in [0.0, 1.0, f32::MIN_POSITIVE, f32::MAX, f32::from_bits(1)] {
                assert!(!Proof::new(metric, 0.0).holds(1.0, distance, distance), "{metric} {distance}");
            }
            assert!(!Proof::new(metric, f32::INFINITY).holds(1.0, 0.5, 0.5));
        }
        let l2 = Proof::new(Metric::L2, 1.0);
        assert!(!l2.holds(1.0, f32::INFINITY, f32::INFINITY) && !l2.holds(1.0, f32::MAX, f32::INFINITY));
        assert!(l2.holds(1.0, 1e38, f32::INFINITY), "what f32 cannot hold is far");
        assert!(!Proof::new(Metric::L2, 0.0).holds(0.0, 0.0, 1e-38), "distances that may be subnormal are all 0");
        let product = Proof::new(Metric::InnerProduct, 1.0);
        assert!(
            !product.holds(1.0, f32::INFINITY, f32::INFINITY)
                && !product.holds(1.0, f32::NEG_INFINITY, f32::NEG_INFINITY)
        );
        assert!(product.holds(1.0, -1e38, f32::NEG_INFINITY));
        // 2.5 · 2^-149 is rounded down or up.
        let [two, three] = [2, 3].map(f32::from_bits);
        assert!(!Proof::new(Metric::InnerProduct, 0.0).is_contradicted(0.0, two, three));
    }
}
