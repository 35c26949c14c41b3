//! Fixed-point formats for the sums of points and weights.
//!
//! # Problem
//! Sums are integers, so that their order changes no bit. With one format for all numbers, the largest number decides
//! the unit. One component of 1e16, a usual marker for "missing", or one large constant component would then round all
//! other numbers to 0.
//!
//! # Levels
//! ```text
//! one level:   unit = 2^(e − room), where |w·x| < 2^e for all                   ordinary data
//! more:        the top level takes magnitudes of the top room − 24 powers of two; the next begins at the largest magnitude below,
//!              and so on, until the unit is 2^-16 of the usual magnitude of every component
//! ```
//! The magnitude of a number decides its level, and a cluster has a sum for each level. A number has at least 24 bits
//! in its level, as many as an f32, except in the last level, which takes all smaller numbers. So the sum of a level
//! does not depend on the numbers in other levels.
//!
//! *Usual magnitude.* One sixteenth of the magnitudes of a component, without zeros, lie below its usual magnitude. The
//! smallest usual magnitude of all components counts. It comes from a sample of [`SAMPLE`] points and affects precision
//! only: a number that no level rounds well is rounded to the last level's unit.
//!
//! # Cost
//! Ordinary data pays for the sample. Further levels read the points once more to choose the levels, and once more for
//! each level in every iteration. Sums take 8 · clusters · d bytes per level.
//!
//! There are as many levels as the usual magnitudes need. For 2000 points a level takes 26 powers of two, so numbers of
//! every magnitude of f32 need at most 11 levels, and products with weights of every magnitude at most 21. A level of
//! more points takes fewer powers. With at most eight levels the unit was 2^-104 at best beside numbers near f32::MAX,
//! and a component of smaller numbers got the mean 0.

use super::points::Points;
use crate::Element;
use crate::parallel::{Loop, turns};
use crate::random::Random;
use crate::validate::MAX_ROWS;

/// Largest number of levels: products of two nonzero f32 have at most 2 · 277 exponents, and a level takes at least
/// `room − LEVEL_BITS` of them.
const MOST_LEVELS: usize = 1 + (2usize * 277).div_ceil((room(MAX_ROWS as usize) - LEVEL_BITS) as usize);
/// Number of points that the usual magnitudes are taken from.
const SAMPLE: usize = 1024;
/// Number of components whose usual magnitudes one thread finds. A product quantizer has 8 components and three other
/// runs beside each; with a thread for each component, the choice of levels took 0.65 ms of a run, and 0.22 without the
/// sample (16 threads of a Xeon, 2026-11-26). With two threads the sample takes the same time either way.
const COMPONENTS: usize = 32;
/// Smallest number of bits of a component's usual magnitude in the last level.
const USUAL_BITS: i32 = 16;
/// Smallest number of bits of a number in a level above the last: those of an f32.
const LEVEL_BITS: i32 = 24;
/// [`spread`] leaves out the farthest points, 1 / `FARTHEST` of the sample.
const FARTHEST: usize = 8;

/// A fixed-point format and the range of magnitudes that have it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Level {
    /// s of the definition: numbers are multiplied by 2^s and rounded.
    pub exponent: i32,
    /// Smallest magnitude of the level.
    pub from: f64,
    /// Upper end of the magnitudes, not included.
    pub below: f64,
}

impl Level {
    /// A level that takes no number.
    const NONE: Level = Level { exponent: 0, from: f64::INFINITY, below: f64::INFINITY };

    /// Whether `number` belongs to this level.
    #[inline(always)]
    pub fn takes(&self, number: f64) -> bool {
        (self.from..self.below).contains(&number.abs())
    }
}

/// The formats of components or of weights, from the largest numbers to the smallest.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Levels {
    /// The unit of a level is 2^(top − `room`).
    room: i32,
    /// The magnitudes of a level are below 2^top. The entries after the first `count` are 0.
    tops: [i16; MOST_LEVELS],
    count: usize,
}

impl Levels {
    /// Levels with magnitudes below 2^top for each of `tops`; the unit of a level is 2^(top − `room`).
    fn new(room: i32, tops: &[i32]) -> Levels {
        let mut levels = Levels { room, tops: [0; MOST_LEVELS], count: tops.len() };
        levels.tops[..tops.len()].iter_mut().zip(tops).for_each(|(to, &top)| *to = top as i16);
        levels
    }

    /// Levels for numbers up to `greatest`. The unit of the last level is fine enough for magnitudes about 2^`usual`.
    /// `seen` looks up the exponents that occur.
    fn choose(room: i32, greatest: f64, usual: Option<i32>, seen: impl FnOnce() -> Exponents) -> Levels {
        let mut tops = vec![exponent(greatest)];
        let fine = |top: i32| usual.is_none_or(|usual| top - room <= usual - USUAL_BITS);
        if !fine(tops[0]) {
            let seen = seen();
            while let Some(&top) = tops.last().filter(|&&top| !fine(top)) {
                let Some(next) = seen.largest(top - (room - LEVEL_BITS)) else { break };
                tops.push(next);
            }
        }
        Levels::new(room, &tops)
    }

    /// Level number `at`. After the last level: a level that takes no number.
    fn get(&self, at: usize) -> Level {
        let Some(&top) = self.tops[..self.count].get(at) else { return Level::NONE };
        // The last level takes all smaller numbers, and the first all greater ones.
        let from = self.tops[..self.count].get(at + 1).map_or(0.0, |&next| power_of_two(next.into()));
        let below = if at == 0 { f64::INFINITY } else { power_of_two(top.into()) };
        Level { exponent: self.room - i32::from(top), from, below }
    }
}

/// The formats of a run: the levels of w·x and of w.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Scale {
    components: Levels,
    weights: Levels,
}

impl Scale {
    /// One level for `points` points whose largest |w·x| is `greatest` and largest weight `greatest_weight`. `None`
    /// means no weights, and t = 0. Then |q| · points < 2^62 and |q| <= 2^50, so adding 1.5 · 2^52 in f64 rounds to an
    /// integer.
    #[cfg(any(test, all(feature = "cuda", feature = "internals")))]
    pub fn new(points: usize, greatest: f64, greatest_weight: Option<f64>) -> Scale {
        let room = room(points);
        let weights = greatest_weight.map_or(Levels::new(0, &[0]), |weight| Levels::new(room, &[exponent(weight)]));
        Scale { components: Levels::new(room, &[exponent(greatest)]), weights }
    }

    /// Levels of w·x and w, given by the exponents of the powers of two above their magnitudes.
    #[cfg(test)]
    pub fn of_tops(points: usize, components: &[i32], weights: &[i32]) -> Scale {
        let [components, weights] = [components, weights].map(|tops| Levels::new(room(points), tops));
        Scale { components, weights }
    }

    /// The levels that `points` need. O(points · dim), in parallel.
    pub(super) fn of<T: Element>(points: &Points<'_, T>) -> Scale {
        let room = room(points.len());
        let places = sample(points.len());
        let weight = |point: usize| points.weight(point);
        // The smallest usual magnitude of some components.
        let of_block = |block: usize| {
            let first = block * COMPONENTS;
            let count = COMPONENTS.min(points.dim - first);
            // Rows of the sample are far from each other in memory, so each is read once; the exponents of a component
            // are together.
            let mut exponents = vec![ZERO; places.len() * count];
            for (at, &point) in places.iter().enumerate() {
                let weight = weight(point);
                for (j, x) in points.row(point)[first..][..count].iter().enumerate() {
                    exponents[j * places.len() + at] = exponent_unless_zero(f64::from(x.to_f32()) * weight);
                }
            }
            exponents.chunks_mut(places.len().max(1)).filter_map(usual).min()
        };
        let blocks = turns(0..points.dim.div_ceil(COMPONENTS)).map(of_block);
        let finest = blocks.collect().into_iter().flatten().min();
        let seen =
            || Exponents::of(points.len(), |point| points.row(point).iter().map(move |x| (point, x.to_f32())), weight);
        let components = Levels::choose(room, points.greatest.weighted, finest, seen);
        let weights = match points.weights {
            None => Levels::new(0, &[0]),
            Some(weights) => {
                let greatest = weights.iter().fold(0.0f32, |most, &w| most.max(w));
                let of_weight = |&point: &usize| exponent_unless_zero(f64::from(weights[point]));
                let finest = usual(&mut places.iter().map(of_weight).collect::<Vec<_>>());
                let seen = || Exponents::of(points.len(), |point| std::iter::once((point, 1.0)), weight);
                Levels::choose(room, greatest.into(), finest, seen)
            }
        };
        Scale { components, weights }
    }

    /// Number of levels, which is the number of sums of a cluster.
    pub fn count(&self) -> usize {
        self.components.count.max(self.weights.count)
    }

    /// The levels of w·x and of w, the largest first. If only one of both has a level, the other one's takes no number.
    pub fn levels(&self) -> impl DoubleEndedIterator<Item = (Level, Level)> + ExactSizeIterator {
        let Scale { components, weights } = *self;
        (0..self.count()).map(move |at| (components.get(at), weights.get(at)))
    }

    /// The units of the levels of w·x and of w.
    pub fn units(&self) -> [Vec<f64>; 2] {
        let (components, weights) =
            self.levels().map(|(c, w)| (power_of_two(-c.exponent), power_of_two(-w.exponent))).unzip();
        [components, weights]
    }
}

/// Number of bits that a rounded number may have so that the sum of `points` numbers stays in i64.
const fn room(points: usize) -> i32 {
    let room = 61 - (usize::BITS - points.leading_zeros()) as i32;
    if room < 50 { room } else { 50 }
}

/// The smallest e with |value| < 2^e, clamped to ±[`LARGEST_EXPONENT`].
fn exponent(value: f64) -> i32 {
    // The exponent field; subnormals and zero count as the smallest normal number.
    let field = (value.to_bits() >> 52 & 0x7ff).max(1) as i32;
    // The product of two nonzero f32 lies in [2^-298, 2^256). So 2^s and all numbers scaled by it stay normal f64.
    (field - 1022).clamp(-LARGEST_EXPONENT, LARGEST_EXPONENT)
}

const LARGEST_EXPONENT: i32 = 300;

/// 2^`exponent`, for exponents of normal numbers.
pub(crate) fn power_of_two(exponent: i32) -> f64 {
    2f64.powi(exponent)
}

/// Numbers of [`SAMPLE`] of `points` points, one at random from each of as many equal ranges; all points if there are
/// fewer.
fn sample(points: usize) -> Vec<usize> {
    let mut random = Random::new(0);
    let start = |at: usize| (at as u128 * points as u128 / SAMPLE as u128) as usize;
    if points <= SAMPLE {
        (0..points).collect()
    } else {
        (0..SAMPLE).map(|at| start(at) + random.below(start(at + 1) - start(at))).collect()
    }
}

/// In place of the exponent of a number that is zero: greater than all exponents.
const ZERO: i32 = i32::MAX;

/// The exponent of a number, or [`ZERO`].
fn exponent_unless_zero(number: f64) -> i32 {
    if number == 0.0 { ZERO } else { exponent(number) }
}

/// The exponent below which one sixteenth of the numbers that are not zero lie; `None` if all are zero.
fn usual(exponents: &mut [i32]) -> Option<i32> {
    let count = exponents.iter().filter(|&&exponent| exponent != ZERO).count();
    // Zeros come last.
    (count > 0).then(|| *exponents.select_nth_unstable(count / 16).1)
}

/// The spread of the points: the largest difference in a component between two points of a sample without its
/// [`FARTHEST`]. O(dim).
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

/// The set of exponents that occur.
struct Exponents([bool; 2 * LARGEST_EXPONENT as usize + 1]);

impl Exponents {
    /// The exponents of each number of each point times the point's weight.
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

    /// The largest exponent that occurs and is at most `most`.
    fn largest(&self, most: i32) -> Option<i32> {
        let end = (most + LARGEST_EXPONENT + 1).max(0) as usize;
        self.0[..end.min(self.0.len())].iter().rposition(|&seen| seen).map(|at| at as i32 - LARGEST_EXPONENT)
    }
}

#[cfg(test)]
mod tests {
    use super::super::points::{Greatest, Measures};
    use super::*;

    fn scale_of(rows: &[f32], weights: Option<&[f32]>) -> Scale {
        Scale::of(&Measures::of(rows, 2, weights).unwrap().points(rows, 2, weights))
    }

    #[test]
    fn ordinary_points_have_one_level() {
        let mut random = Random::new(1);
        let mut rows: Vec<f32> = (0..4000).map(|_| (random.unit() - 0.5) as f32).collect();
        let greatest = rows.iter().fold(0.0f32, |most, x| most.max(x.abs()));
        assert_eq!(scale_of(&rows, None), Scale::new(2000, greatest.into(), None));
        // Points with zero components, and with components some powers of two apart, have one level as well.
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
        // A large constant component, then weights.
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
    fn numbers_of_every_magnitude_have_a_unit_fine_enough() {
        let (least, greatest) = (f64::from(f32::from_bits(1)), f64::from(f32::MAX));
        for (count, expected) in [(1, [11, 21]), (2000, [11, 21]), (1 << 20, [17, 35]), (MAX_ROWS as usize, [54, 109])]
        {
            let numbers = [(least, greatest), (least * least, greatest * greatest)];
            for ((least, greatest), expected) in numbers.into_iter().zip(expected) {
                let [low, high] = [exponent(least), exponent(greatest)];
                let seen =
                    || Exponents(std::array::from_fn(|at| (low..=high).contains(&(at as i32 - LARGEST_EXPONENT))));
                let levels = Levels::choose(room(count), greatest, Some(low), seen);
                let all: Vec<Level> = (0..levels.count).map(|at| levels.get(at)).collect();
                assert_eq!(levels.get(levels.count), Level::NONE);
                for exponent in low..=high {
                    let number = power_of_two(exponent - 1);
                    let of: Vec<&Level> = all.iter().filter(|level| level.takes(number)).collect();
                    assert_eq!(of.len(), 1, "{number:e} of {count} points: {levels:?}");
                    let scaled = number * power_of_two(of[0].exponent);
                    assert!(
                        (32768.0..=power_of_two(room(count) - 1)).contains(&scaled),
                        "{number:e} of {count} points: {scaled:e}, {levels:?}"
                    );
                }
                assert_eq!(levels.count, expected, "{count} points, {least:e} to {greatest:e}");
            }
        }
    }

    #[test]
    fn the_farthest_do_not_count_for_the_spread() {
        let mut rows: Vec<f32> = (0..2000).map(|i| (i % 20) as f32).collect();
        rows[44] = 1e30;
        let points = Points { rows: &rows, dim: 2, weights: None, squares: &[], greatest: Greatest::default() };
        assert!((10.0..=18.0).contains(&spread(&points)), "{}", spread(&points));
        assert_eq!(spread(&Points { rows: &[1e20f32, 5.0, 1e20, 6.0], ..points }), 1.0);
    }
}
