//! Vectors for random cases: values of several kinds, at any magnitude of the element type, with properties that make
//! searches hard.
//!
//! A [`Form`] is drawn first, and printed where a case fails. Its parts are independent of each other: the distribution
//! of the numbers, their magnitude, and changes to some of the rows.

use std::fmt;

use half::{bf16, f16};
use test_random::Random;
use warpann::{Element, ElementType};

use crate::word;

/// An element type of the tests, with conversions that are independent of the library.
pub trait Component: Element {
    /// The nearest finite value of this type.
    fn nearest(value: f64) -> Self;
    /// The value as f64, which is exact.
    fn exact(self) -> f64;
    /// A factor that makes numbers around 1 fill the type's range well, and an offset into its middle.
    const SPREAD: (f64, f64);
    /// Whether all values are whole.
    const WHOLE: bool;
}

impl Component for f32 {
    fn nearest(value: f64) -> Self {
        value.clamp(f64::from(f32::MIN), f64::from(f32::MAX)) as f32
    }
    fn exact(self) -> f64 {
        f64::from(self)
    }
    const SPREAD: (f64, f64) = (1.0, 0.0);
    const WHOLE: bool = false;
}

impl Component for f16 {
    fn nearest(value: f64) -> Self {
        f16::from_f64(value.clamp(-65504.0, 65504.0))
    }
    fn exact(self) -> f64 {
        self.to_f64()
    }
    const SPREAD: (f64, f64) = (1.0, 0.0);
    const WHOLE: bool = false;
}

impl Component for bf16 {
    fn nearest(value: f64) -> Self {
        bf16::from_f64(value.clamp(bf16::MIN.to_f64(), bf16::MAX.to_f64()))
    }
    fn exact(self) -> f64 {
        self.to_f64()
    }
    const SPREAD: (f64, f64) = (1.0, 0.0);
    const WHOLE: bool = false;
}

impl Component for u8 {
    fn nearest(value: f64) -> Self {
        value.clamp(0.0, 255.0).round_ties_even() as u8
    }
    fn exact(self) -> f64 {
        f64::from(self)
    }
    const SPREAD: (f64, f64) = (50.0, 128.0);
    const WHOLE: bool = true;
}

impl Component for i8 {
    fn nearest(value: f64) -> Self {
        value.clamp(-128.0, 127.0).round_ties_even() as i8
    }
    fn exact(self) -> f64 {
        f64::from(self)
    }
    const SPREAD: (f64, f64) = (50.0, 0.0);
    const WHOLE: bool = true;
}

/// An element type: f32 half of the time, because it has the most to go wrong.
pub fn element(random: &mut Random) -> ElementType {
    if random.once_in(2) { ElementType::F32 } else { random.pick(&ElementType::ALL) }
}

/// `base` and `queries`, row-major, and the same as f64.
#[derive(Debug, Clone)]
pub struct Vectors<T> {
    /// `n` vectors.
    pub base: Vec<T>,
    /// `nq` vectors.
    pub queries: Vec<T>,
    /// `base`, exactly.
    pub exact_base: Vec<f64>,
    /// `queries`, exactly.
    pub exact_queries: Vec<f64>,
}

impl<T: Component> Vectors<T> {
    /// The nearest vectors of the type.
    pub fn of(base: Vec<f64>, queries: Vec<f64>) -> Self {
        let nearest = |values: Vec<f64>| values.into_iter().map(T::nearest).collect::<Vec<T>>();
        let (base, queries) = (nearest(base), nearest(queries));
        let exact = |values: &[T]| values.iter().map(|value| value.exact()).collect();
        Self { exact_base: exact(&base), exact_queries: exact(&queries), base, queries }
    }
}

/// The distribution of the numbers before they are scaled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Values {
    /// Components are normally distributed around 0.
    Normal,
    /// Components are 0 to 3, or −2 to 1, so that many distances are equal.
    Integers,
    /// Components are 1 or −1.
    Signs,
    /// All components are positive.
    Positive,
    /// All vectors are equal up to about 2^−bits of each number, so that many distances are nearly equal.
    Near {
        /// Bits that the vectors have in common.
        bits: i32,
    },
}

/// The powers of two by which the numbers are scaled. Only floating-point elements are scaled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Magnitude {
    /// Vectors are not scaled.
    Plain,
    /// All numbers are scaled by one power.
    All(i32),
    /// Queries and base are scaled by different powers.
    Apart {
        /// Binary exponent of the scale of the base.
        base: i32,
        /// Binary exponent of the scale of the queries.
        queries: i32,
    },
    /// Each row is scaled by a random power, from `low` to `high`.
    Rows {
        /// The smallest binary exponent.
        low: i32,
        /// The largest binary exponent.
        high: i32,
    },
    /// Each component is scaled by a random power, the same in all rows.
    Components {
        /// The smallest binary exponent.
        low: i32,
        /// The largest binary exponent.
        high: i32,
    },
    /// Each number is scaled by a random power.
    Numbers {
        /// The smallest binary exponent.
        low: i32,
        /// The largest binary exponent.
        high: i32,
    },
    /// One row of the base is scaled by this power, the others are not scaled.
    FarRow(i32),
    /// One number of the base is scaled by this power.
    FarNumber(i32),
}

/// A change to some of the rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Twist {
    /// The vectors have no such rows.
    None,
    /// Most rows are copies of others.
    Copies,
    /// Some rows are others times −1, 2, ½ or 0.
    Multiples,
    /// Half of the rows are zero.
    Zeros,
    /// From some component on all rows have the same numbers.
    ConstantColumns,
    /// All rows are equal but one.
    AllButOne,
}

/// The distribution of the vectors of a case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Form {
    /// Distribution of the numbers.
    pub values: Values,
    /// Magnitude of the numbers.
    pub magnitude: Magnitude,
    /// Change to some of the rows.
    pub twist: Twist,
    /// Whether some queries are rows of the base.
    pub own: bool,
}

/// The parts in words, such as `normal+rows+copies`.
impl fmt::Display for Form {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&word(&self.values))?;
        let parts = [word(&self.magnitude), word(&self.twist)];
        parts.iter().filter(|&part| part != "plain" && part != "none").try_for_each(|part| write!(f, "+{part}"))
    }
}

/// An exponent of f32 from `low` to `high`: often one at which products or norms leave the range of f32.
fn exponent(random: &mut Random, (low, high): (i32, i32)) -> i32 {
    // Squares overflow, or a sum of few does; components near the greatest; squares underflow; components are
    // subnormal.
    let windows = [(58, 76), (58, 76), (100, 127), (-80, -60), (-149, -126), (-30, 30), (-149, 127)];
    let (from, to) = random.pick(&windows);
    (from + random.below((to - from + 1) as usize) as i32).clamp(low, high)
}

/// Two exponents, in order, mostly near each other.
fn window(random: &mut Random, range: (i32, i32)) -> (i32, i32) {
    let low = exponent(random, range);
    let width = random.pick(&[1, 3, 10, 20, 60, 276]);
    (low, (low + width).min(range.1))
}

/// A form for elements whose components lie between powers of two `range`; without a range for elements that are not
/// scaled.
pub fn form(random: &mut Random, range: Option<(i32, i32)>) -> Form {
    let values = match random.below(8) {
        0..3 => Values::Normal,
        3 => Values::Integers,
        4 => Values::Signs,
        5 => Values::Positive,
        _ => Values::Near { bits: 1 + random.below(24) as i32 },
    };
    let twist = match random.below(12) {
        0 => Twist::Copies,
        1 => Twist::Multiples,
        2 => Twist::Zeros,
        3 => Twist::ConstantColumns,
        4 => Twist::AllButOne,
        _ => Twist::None,
    };
    let own = random.once_in(3);
    let magnitude = match (range, random.below(12)) {
        (None, _) | (_, 0..3) => Magnitude::Plain,
        (Some(range), 3 | 4) => Magnitude::All(exponent(random, range)),
        (Some(range), 5 | 6) => Magnitude::Apart { base: exponent(random, range), queries: exponent(random, range) },
        (Some(range), 7) => {
            let (low, high) = window(random, range);
            Magnitude::Components { low, high }
        }
        (Some(range), 8) => {
            let (low, high) = window(random, range);
            Magnitude::Numbers { low, high }
        }
        (Some((_, high)), 9) => Magnitude::FarRow((4 + random.below(72) as i32).min(high)),
        (Some((_, high)), 10) => Magnitude::FarNumber((4 + random.below(72) as i32).min(high)),
        (Some(range), _) => {
            let (low, high) = window(random, range);
            Magnitude::Rows { low, high }
        }
    };
    Form { values, magnitude, twist, own }
}

/// Magnitudes at which the squares of norms, or the inner products, of rows of `dim` numbers around 1 lie around 2^128:
/// some leave the range of f32, others do not.
pub fn edge_of_f32(random: &mut Random, dim: usize) -> Magnitude {
    let of_norm = (dim as f64).log2() / 2.0;
    let near = |exponent: f64, random: &mut Random| exponent.round() as i32 - 2 + random.below(4) as i32;
    if random.once_in(2) {
        return Magnitude::All(near(64.0 - of_norm, random));
    }
    let base = 20 + random.below(100) as i32;
    Magnitude::Apart { base, queries: near(128.0 - 2.0 * of_norm, random) - base }
}

/// The powers of two between which components of a type lie, f32 within `of_f32`; none for whole numbers.
pub fn range(element: ElementType, of_f32: (i32, i32)) -> Option<(i32, i32)> {
    match element {
        ElementType::F32 => Some(of_f32),
        ElementType::F16 => Some((-24, 15)),
        ElementType::Bf16 => Some((of_f32.0.max(-133), of_f32.1)),
        _ => None,
    }
}

/// The whole range of f32.
pub const ALL_OF_F32: (i32, i32) = (-149, 127);

fn power(exponent: i32) -> f64 {
    2f64.powi(exponent)
}

/// `n` vectors and `nq` queries of this form.
pub fn vectors<T: Component>(form: &Form, dim: usize, n: usize, nq: usize, random: &mut Random) -> Vectors<T> {
    let common: Vec<f64> = (0..dim).map(|_| random.normal()).collect();
    let mut of_components = random.clone();
    let (far_row, far_component) = (random.below(n.max(1)), random.below(dim));
    let between = |random: &mut Random, low: i32, high: i32| low + random.below((high - low + 1) as usize) as i32;
    let columns: Vec<i32> = (0..dim)
        .map(|_| match form.magnitude {
            Magnitude::Components { low, high } => between(&mut of_components, low, high),
            _ => 0,
        })
        .collect();
    let mut rows = |count: usize, queries: bool| -> Vec<f64> {
        let mut rows = Vec::with_capacity(count * dim);
        for row in 0..count {
            let of_row = match form.magnitude {
                Magnitude::All(exponent) => exponent,
                Magnitude::Apart { base, queries: own } => {
                    if queries {
                        own
                    } else {
                        base
                    }
                }
                Magnitude::Rows { low, high } => between(random, low, high),
                Magnitude::FarRow(exponent) if !queries && row == far_row => exponent,
                _ => 0,
            };
            for component in 0..dim {
                let of_number = match form.magnitude {
                    Magnitude::Numbers { low, high } => between(random, low, high),
                    Magnitude::FarNumber(exponent) if !queries && (row, component) == (far_row, far_component) => {
                        exponent
                    }
                    _ => columns[component],
                };
                rows.push(value::<T>(form.values, common[component], random) * power(of_row + of_number));
            }
        }
        twist(form.twist, &mut rows, dim, random);
        rows
    };
    let base = rows(n, false);
    let mut queries = rows(nq, true);
    if form.own && n > 0 {
        for query in queries.chunks_mut(dim).step_by(2) {
            query.copy_from_slice(&base[random.below(n) * dim..][..dim]);
        }
    }
    Vectors::of(base, queries)
}

fn value<T: Component>(values: Values, common: f64, random: &mut Random) -> f64 {
    let (spread, middle) = T::SPREAD;
    match values {
        Values::Normal => middle + spread * random.normal(),
        Values::Integers => random.below(4) as f64 - if middle == 0.0 { 2.0 } else { 0.0 },
        Values::Signs => {
            if random.below(2) == 0 {
                1.0
            } else {
                -1.0
            }
        }
        Values::Positive => spread * (1.0 + random.unit()),
        Values::Near { bits } => middle + spread * common * (1.0 + power(-bits) * random.normal()),
    }
}

fn twist(twist: Twist, rows: &mut [f64], dim: usize, random: &mut Random) {
    let count = rows.len() / dim;
    if count == 0 {
        return;
    }
    match twist {
        Twist::None => {}
        Twist::Copies | Twist::Multiples => {
            for row in (0..count).filter(|row| row % 5 > 0) {
                let factor = if twist == Twist::Copies { 1.0 } else { random.pick(&[-1.0, 2.0, 0.5, 0.0, 1.0]) };
                let from = rows[random.below(count) * dim..][..dim].to_vec();
                rows[row * dim..][..dim].iter_mut().zip(from).for_each(|(to, from)| *to = from * factor);
            }
        }
        Twist::Zeros => {
            rows.chunks_mut(dim).for_each(|row| {
                if random.below(2) == 0 {
                    row.fill(0.0)
                }
            });
        }
        Twist::ConstantColumns => {
            let (from, first) = (random.below(dim), rows[..dim].to_vec());
            rows.chunks_mut(dim).for_each(|row| row[from..].copy_from_slice(&first[from..]));
        }
        Twist::AllButOne => {
            let (other, first) = (random.below(count), rows[..dim].to_vec());
            rows.chunks_mut(dim)
                .enumerate()
                .filter(|&(row, _)| row != other)
                .for_each(|(_, row)| row.copy_from_slice(&first));
        }
    }
}

/// The sizes of a case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VectorsShape {
    /// Number of components of a vector.
    pub dim: usize,
    /// Number of vectors.
    pub n: usize,
    /// Number of queries.
    pub nq: usize,
}

/// A shape of about `work` products of components at most, up to `most_dim` components.
pub fn shape(random: &mut Random, work: usize, most_dim: usize) -> VectorsShape {
    let dim = match random.below(3) {
        // Around the sizes at which kernels change their path.
        0 => random.pick(&[4, 8, 16, 32, 64, 128, 256]) + random.below(3) - 1,
        1 => random.size(most_dim),
        _ => 1 + random.below(20),
    };
    let dim = dim.clamp(1, most_dim);
    // The reference takes as long for a few components as for some.
    let pairs = (work / dim.max(16)).max(1);
    if random.once_in(3) {
        // Few queries and many vectors: only then does exact search filter, and in two passes.
        let nq = 1 + random.below(3);
        let most = (pairs / nq).clamp(1, 60_000);
        return VectorsShape { dim, n: most - random.below(most / 2 + 1), nq };
    }
    let nq = if random.once_in(24) { 0 } else { 1 + random.size(pairs.min(140) - 1) };
    let n = random.size((pairs / nq.max(1)).clamp(1, 60_000));
    VectorsShape { dim, n, nq }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms_cover_their_range_and_vectors_follow_from_the_seed() {
        let (mut least, mut greatest, mut near_limit) = (f64::INFINITY, 0.0f64, 0);
        for seed in 0..400 {
            let mut random = Random::new(seed);
            let form = form(&mut random, range(ElementType::F32, ALL_OF_F32));
            let first: Vectors<f32> = vectors(&form, 5, 30, 4, &mut random.clone());
            let second: Vectors<f32> = vectors(&form, 5, 30, 4, &mut random);
            assert_eq!((&first.base, &first.queries), (&second.base, &second.queries));
            assert!(first.base.iter().chain(&first.queries).all(|x| x.is_finite()));
            for x in first.exact_base.iter().map(|x| x.abs()).filter(|&x| x > 0.0) {
                (least, greatest) = (least.min(x), greatest.max(x));
                near_limit += usize::from((power(62)..power(70)).contains(&x));
            }
        }
        assert_eq!((least, greatest), (power(-149), f64::from(f32::MAX)));
        assert!(near_limit > 1000, "{near_limit}");
    }
}
