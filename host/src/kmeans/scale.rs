//! The fixed-point formats in which points and weights are added up.
//!
//! # Problem
//! Sums are integers, so that their order changes no bit. With one format for all numbers, the largest number decides the unit: one
//! component of 1e16, a usual marker for "missing", or one large constant component, would round all others to 0.
//!
//! # Levels
//! ```text
//! one level:   unit = 2^(e − room), where |w·x| < 2^e for all                   ordinary data
//! more:        the top level takes magnitudes of the last room − 24 powers of two; the next begins at the largest magnitude below,
//!              and so on, until the unit is 2^-16 of what is usual in every component
//! ```
//! Each number belongs to one level by its own magnitude, and a cluster has a sum for each level. What a level takes has 24 bits there, as
//! many as an f32, but for the last level, which takes all that is smaller. So the sum of a level does not depend on what is in
//! another one.
//!
//! *What is usual.* The sixteenth part of the magnitudes in a component, zeros left out, lies below its usual magnitude; the smallest of all
//! components counts. It is taken from a sample of [`SAMPLE`] points, and decides about precision only: what no level rounds well is
//! rounded to the last level's unit.
//!
//! # Cost
//! Ordinary data pays for the sample. Further levels read the points once more to choose them, and once more a level in every iteration;
//! sums take 8 · clusters · d bytes a level.

use super::cpu::Points;
use crate::Element;
use crate::parallel::{Loop, turns};
use crate::random::Random;

/// Levels, at most.
pub(crate) const MOST_LEVELS: usize = 8;
/// Points that are looked at to find out what is usual.
const SAMPLE: usize = 1024;
/// Bits that the usual magnitude of a component has in the last level, at least.
const USUAL_BITS: i32 = 16;
/// Bits that a number has in a level above the last, at least: those of an f32.
const LEVEL_BITS: i32 = 24;
/// The share of the points that are left out because they are the farthest, as its inverse, where the spread of the rest is asked for.
const FARTHEST: usize = 8;

/// A fixed-point format, and the magnitudes that have it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Level {
    /// s: numbers are multiplied by 2^s and rounded.
    pub exponent: i32,
    /// The least magnitude.
    pub from: f64,
    /// The magnitude above all.
    pub below: f64,
}

impl Level {
    /// Takes nothing.
    const NONE: Level = Level { exponent: 0, from: f64::INFINITY, below: f64::INFINITY };

    /// Whether a number has this format.
    #[inline(always)]
    pub fn takes(&self, number: f64) -> bool {
        (self.from..self.below).contains(&number.abs())
    }
}

/// The formats of a run, from the largest numbers to the smallest.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Levels {
    levels: [Level; MOST_LEVELS],
    count: usize,
}

impl Levels {
    /// One for all numbers.
    fn one(exponent: i32) -> Levels {
        Levels::between(&[exponent])
    }

    /// Of these exponents; the magnitudes of each level but the first lie below 2^`room` of its units.
    fn new(room: i32, tops: &[i32]) -> Levels {
        let mut levels = Self::between(&tops.iter().map(|top| room - top).collect::<Vec<_>>());
        for (at, &top) in tops.iter().enumerate().skip(1) {
            levels.levels[at - 1].from = power_of_two(top);
            levels.levels[at].below = power_of_two(top);
        }
        levels
    }

    fn between(exponents: &[i32]) -> Levels {
        let mut levels = [Level::NONE; MOST_LEVELS];
        for (level, &exponent) in levels.iter_mut().zip(exponents) {
            *level = Level { exponent, from: 0.0, below: f64::INFINITY };
        }
        Levels { levels, count: exponents.len() }
    }

    /// For numbers up to `greatest`, such that the unit of the last level is fine enough for magnitudes about 2^`usual`. `seen` looks up
    /// which exponents there are.
    fn choose(room: i32, greatest: f64, usual: Option<i32>, seen: impl FnOnce() -> Exponents) -> Levels {
        let mut tops = vec![exponent(greatest)];
        let fine = |top: i32| usual.is_none_or(|usual| top - room <= usual - USUAL_BITS);
        if !fine(tops[0]) {
            let seen = seen();
            while let Some(&top) = tops.last().filter(|&&top| !fine(top) && tops.len() < MOST_LEVELS) {
                let Some(next) = seen.largest(top - (room - LEVEL_BITS)) else { break };
                tops.push(next);
            }
        }
        Levels::new(room, &tops)
    }
}

/// The formats of a run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Scale {
    components: Levels,
    weights: Levels,
}

impl Scale {
    /// One level for `points` points whose largest |w·x| is `greatest` and largest weight `greatest_weight` (1 without weights:
    /// then t = 0). |q| · points < 2^62, and |q| <= 2^50: adding 1.5 · 2^52 in f64 then rounds to an integer.
    #[cfg(any(test, feature = "cuda"))]
    pub fn new(points: usize, greatest: f64, greatest_weight: Option<f64>) -> Scale {
        let room = room(points);
        Scale {
            components: Levels::one(room - exponent(greatest)),
            weights: Levels::one(greatest_weight.map_or(0, |weight| room - exponent(weight))),
        }
    }

    /// These levels of w·x and w, by the powers of two that are above their magnitudes.
    #[cfg(test)]
    pub fn of_tops(points: usize, components: &[i32], weights: &[i32]) -> Scale {
        let [components, weights] = [components, weights].map(|tops| Levels::new(room(points), tops));
        Scale { components, weights }
    }

    /// The levels that these points need. O(points · dim), in parallel.
    pub(super) fn of<T: Element>(points: &Points<'_, T>) -> Scale {
        let room = room(points.len());
        let places = sample(points.len());
        let weight = |point: usize| points.weights.map_or(1.0, |weights| f64::from(weights[point]));
        let component = |j: usize| {
            usual(places.iter().map(|&point| f64::from(points.row(point)[j].to_f32()) * weight(point)).collect())
        };
        let finest = turns(0..points.dim).map(component).collect().into_iter().flatten().min();
        let seen =
            || Exponents::of(points.len(), |point| points.row(point).iter().map(move |x| (point, x.to_f32())), weight);
        let components = Levels::choose(room, points.greatest(), finest, seen);
        let weights = match points.weights {
            None => Levels::one(0),
            Some(weights) => {
                let greatest = weights.iter().fold(0.0f32, |most, &w| most.max(w));
                let finest = usual(places.iter().map(|&point| f64::from(weights[point])).collect());
                let seen = || Exponents::of(points.len(), |point| std::iter::once((point, 1.0)), weight);
                Levels::choose(room, greatest.into(), finest, seen)
            }
        };
        Scale { components, weights }
    }

    /// How many levels there are: sums of so many are kept.
    pub fn count(&self) -> usize {
        self.components.count.max(self.weights.count)
    }

    /// The levels of w·x and of w, the largest first. Of those that only one of both has, the other's takes nothing.
    pub fn levels(&self) -> impl DoubleEndedIterator<Item = (Level, Level)> + ExactSizeIterator {
        let Scale { components, weights } = *self;
        (0..self.count()).map(move |at| (components.levels[at], weights.levels[at]))
    }

    /// The units of the levels of w·x, and of w.
    pub fn units(&self) -> [Vec<f64>; 2] {
        let (components, weights) =
            self.levels().map(|(c, w)| (power_of_two(-c.exponent), power_of_two(-w.exponent))).unzip();
        [components, weights]
    }
}

/// Bits that a rounded number may have, so that the sum of so many stays in i64.
fn room(points: usize) -> i32 {
    (61 - (usize::BITS - points.leading_zeros()) as i32).min(50)
}

/// e with |value| < 2^e; small for zero.
fn exponent(value: f64) -> i32 {
    // Field of the exponent; subnormals and zero count as the smallest normal number.
    let field = (value.to_bits() >> 52 & 0x7ff).max(1) as i32;
    // The product of two f32 that are not zero lies in [2^-298, 2^256): so 2^s and all that is scaled by it stay normal f64.
    (field - 1022).clamp(-LARGEST_EXPONENT, LARGEST_EXPONENT)
}

const LARGEST_EXPONENT: i32 = 300;

/// 2^exponent, for exponents of normal numbers.
pub(crate) fn power_of_two(exponent: i32) -> f64 {
    2f64.powi(exponent)
}

/// [`SAMPLE`] of so many points, or all: one of each of as many ranges.
fn sample(points: usize) -> Vec<usize> {
    let mut random = Random::new(0);
    let start = |at: usize| (at as u128 * points as u128 / SAMPLE as u128) as usize;
    if points <= SAMPLE {
        (0..points).collect()
    } else {
        (0..SAMPLE).map(|at| start(at) + random.below(start(at + 1) - start(at))).collect()
    }
}

/// The exponent below which the sixteenth part of the numbers lies, zeros left out.
fn usual(numbers: Vec<f64>) -> Option<i32> {
    let mut exponents: Vec<i32> = numbers.into_iter().filter(|&number| number != 0.0).map(exponent).collect();
    let at = exponents.len() / 16;
    (!exponents.is_empty()).then(|| *exponents.select_nth_unstable(at).1)
}

/// How far the points spread, without the [`FARTHEST`]: the largest difference of two of a sample in a component. O(dim).
pub(super) fn spread<T: Element>(points: &Points<'_, T>) -> f32 {
    let mut places = sample(points.len());
    let peak = |&point: &usize| points.row(point).iter().fold(0, |most, x| x.to_f32().abs().to_bits().max(most));
    places.sort_by_cached_key(peak);
    places.truncate((places.len() - places.len() / FARTHEST).max(1));
    let of_component = |j: usize| {
        let values = places.iter().map(|&point| points.row(point)[j].to_f32());
        let (low, high) = values.fold((f32::MAX, f32::MIN), |(low, high), x| (low.min(x), high.max(x)));
        (high - low).min(f32::MAX)
    };
    (0..points.dim).map(of_component).fold(0.0, f32::max)
}

/// Which exponents occur.
struct Exponents([bool; 2 * LARGEST_EXPONENT as usize + 1]);

impl Exponents {
    /// Those of each number of each point times the point's weight.
    fn of<I: Iterator<Item = (usize, f32)>>(
        points: usize,
        numbers: impl Fn(usize) -> I + Sync,
        weight: impl Fn(usize) -> f64 + Sync,
    ) -> Exponents {
        let none = || Exponents([false; 2 * LARGEST_EXPONENT as usize + 1]);
        let add = |mut seen: Exponents, point: usize| {
            for (point, x) in numbers(point) {
                let number = f64::from(x) * weight(point);
                seen.0[(exponent(number) + LARGEST_EXPONENT) as usize] |= number != 0.0;
            }
            seen
        };
        let both = |mut a: Exponents, b: Exponents| {
            a.0.iter_mut().zip(b.0).for_each(|(a, b)| *a |= b);
            a
        };
        turns(0..points).with_min_len(1024).fold(none, add, both)
    }

    /// The largest up to `most`.
    fn largest(&self, most: i32) -> Option<i32> {
        let end = (most + LARGEST_EXPONENT + 1).max(0) as usize;
        self.0[..end.min(self.0.len())].iter().rposition(|&seen| seen).map(|at| at as i32 - LARGEST_EXPONENT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scale_of(rows: &[f32], weights: Option<&[f32]>) -> Scale {
        Scale::of(&Points { rows, dim: 2, weights, squares: &[] })
    }

    #[test]
    fn ordinary_points_have_one_level() {
        let mut random = Random::new(1);
        let mut rows: Vec<f32> = (0..4000).map(|_| (random.unit() - 0.5) as f32).collect();
        let greatest = rows.iter().fold(0.0f32, |most, x| most.max(x.abs()));
        assert_eq!(scale_of(&rows, None), Scale::new(2000, greatest.into(), None));
        // So have points with components that are zero, and scales some powers of two apart.
        rows.iter_mut().step_by(2).for_each(|x| *x *= 1e-4);
        rows[..3000].fill(0.0);
        assert_eq!(scale_of(&rows, None).count(), 1);
        assert_eq!(scale_of(&[0.0; 10], None), Scale::new(5, 0.0, None));
        let weights: Vec<f32> = (0..2000).map(|i| i as f32).collect();
        assert_eq!(scale_of(&rows, Some(&weights)).count(), 1);
    }

    #[test]
    fn every_number_has_one_level_and_bits_enough_there() {
        let mut random = Random::new(2);
        let ordinary: Vec<f32> = (0..4000).map(|_| (random.unit() - 0.5) as f32).collect();
        for far in [&[1e16f32][..], &[f32::MAX], &[1e30, 1e20, -1e12], &[1e9]] {
            let mut rows = ordinary.clone();
            rows[..far.len()].copy_from_slice(far);
            let scale = scale_of(&rows, None);
            assert!((1..=2 + far.len()).contains(&scale.count()), "{far:?}: {scale:?}");
            for &x in &rows {
                let x = f64::from(x);
                let takes: Vec<Level> = scale.levels().map(|(c, _)| c).filter(|level| level.takes(x)).collect();
                assert_eq!(takes.len(), 1, "{x}: {scale:?}");
                let unit = power_of_two(-takes[0].exponent);
                assert!(x.abs() / unit <= power_of_two(50) && unit <= x.abs().max(0.0625) / 65536.0, "{x}: {scale:?}");
            }
        }
        // A large constant component; weights.
        let mut rows = ordinary.clone();
        rows.iter_mut().step_by(2).for_each(|x| *x = 1e16);
        assert_eq!(scale_of(&rows, None).count(), 2);
        let mut weights = vec![1.0; 2000];
        weights[7] = 1e20;
        let scale = scale_of(&ordinary, Some(&weights));
        assert_eq!(scale.weights.count, 2);
        assert!(scale.levels().any(|(_, weight)| weight.takes(1.0) && weight.exponent > 0));
    }

    #[test]
    fn the_farthest_do_not_count_for_the_spread() {
        let mut rows: Vec<f32> = (0..2000).map(|i| (i % 20) as f32).collect();
        rows[44] = 1e30;
        let points = Points { rows: &rows, dim: 2, weights: None, squares: &[] };
        assert!((10.0..=18.0).contains(&spread(&points)), "{}", spread(&points));
        assert_eq!(spread(&Points { rows: &[1e20f32, 5.0, 1e20, 6.0], ..points }), 1.0);
    }
}
