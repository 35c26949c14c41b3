//! Recall on data that moved: approximate indexes of bases that are unlike a random sample of one distribution, after
//! changes that make them so, for queries of another scale or from another place. The reference is brute force in
//! float64.
//!
//! Each case states a floor, which a right index reaches on every base of [`Shape`]. A neighbour counts as found if it
//! is as near as the k-th nearest, so equal distances do not matter. What was found is checked as well: no id twice, no
//! id that does not exist, and the distance that the vectors have.

pub mod graph;
pub mod ivf;

use std::collections::{BTreeMap, HashSet};

use warpann::{Metric, Neighbors};

use crate::data::{Component, Random};
use crate::reference::{NO_ID, badness, textbook};

/// How the vectors of a base lie.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Shape {
    /// Normally distributed around 0, with variance 1 in each component.
    Normal,
    /// From this number of classes far from each other, one class after the other.
    Sorted(usize),
    /// From this number of classes, row i from class i modulo their number: a sample with a stride sees one class.
    Periodic(usize),
    /// Normally distributed, but one in 200 rows, which are far from all others.
    Rare,
    /// Groups of 32 rows that differ by 10⁻⁴ of the distances between groups.
    NearDuplicates,
    /// Normally distributed, but this percentage of the rows is zero.
    Zeros(usize),
    /// 40 vectors stand in four of five rows, in random order, and each other row is normally distributed.
    Copies,
    /// One component of one row is a thousand times as large.
    FarComponent,
    /// The components have scales from 1 to 1/50.
    Scales,
}

/// The kind of a case's queries.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Queries {
    /// New vectors that are distributed as those of the base that came last.
    Like,
    /// Vectors of the base.
    Own,
    /// As [`Queries::Like`], times a factor.
    Scaled(f64),
    /// As [`Queries::Like`], with a component that is larger by 10 standard deviations.
    Shifted,
    /// Uniformly distributed, with half of the components 0.
    Other,
}

/// The shapes of cases, of which the plain one is twice as likely.
fn shapes(random: &mut Random) -> [Shape; 10] {
    [
        Shape::Normal,
        Shape::Normal,
        Shape::Sorted(10),
        Shape::Periodic(10),
        Shape::Rare,
        Shape::NearDuplicates,
        Shape::Zeros(random.pick(&[5, 25, 75])),
        Shape::Copies,
        Shape::FarComponent,
        Shape::Scales,
    ]
}

/// The queries of cases. `of_l2` are the factors of [`Queries::Scaled`] under L2.
fn kinds_of_queries(random: &mut Random, metric: Metric, of_l2: &[f64]) -> [Queries; 5] {
    let factors: &[f64] = if metric == Metric::L2 { of_l2 } else { &[0.001, 0.01, 0.1, 10.0, 100.0, 1e4] };
    [Queries::Like, Queries::Own, Queries::Scaled(random.pick(factors)), Queries::Shifted, Queries::Other]
}

/// The unit of an element type, and the number that stands for 0. Bytes clamp at about 20.
fn unit<T: Component>() -> (f64, f64) {
    if T::WHOLE { (T::SPREAD.0 / 8.0, T::SPREAD.1) } else { (1.0, 0.0) }
}

/// How far the classes of [`Shape::Sorted`], [`Shape::Periodic`] and [`Shape::Rare`] lie from each other: so near for
/// bytes that few clamp, because clamped vectors are equal.
fn spread<T: Component>() -> f64 {
    if T::WHOLE { 6.0 } else { 20.0 }
}

/// Makes vectors of a shape.
struct Source {
    shape: Shape,
    dim: usize,
    /// Centres of classes, or the rows that are copied.
    centres: Vec<f64>,
    /// Scale of all numbers.
    scale: f64,
    /// Numbers that were made so far: row i of a base.
    made: usize,
}

impl Source {
    fn new<T: Component>(shape: Shape, dim: usize, scale: f64, random: &mut Random) -> Source {
        let (count, spread) = match shape {
            Shape::Sorted(classes) | Shape::Periodic(classes) => (classes, spread::<T>()),
            Shape::Rare => (1, spread::<T>()),
            Shape::Copies => (40, 1.0),
            _ => (0, 0.0),
        };
        let mut centres: Vec<f64> = (0..count * dim).map(|_| spread * random.normal()).collect();
        if let Shape::Periodic(_) = shape {
            // The sample of a fixed stride, which begins with the first row, sees the class with the smallest
            // components.
            centres[..dim].fill(0.0);
        }
        Source { shape, dim, centres, scale, made: 0 }
    }

    /// `count` rows, the next of a base of `n`, moved by `shift` standard deviations in every component.
    fn rows(&mut self, count: usize, n: usize, shift: f64, random: &mut Random) -> Vec<f64> {
        let mut rows = Vec::with_capacity(count * self.dim);
        for _ in 0..count {
            let at = self.made;
            self.made += 1;
            let group = self.group(at, n, random);
            self.row(at, group, random, &mut rows);
        }
        rows.iter_mut().for_each(|x| *x = self.scale * (*x + shift));
        rows
    }

    /// The class of row `at`.
    fn group(&self, at: usize, n: usize, random: &mut Random) -> usize {
        match self.shape {
            Shape::Sorted(classes) => (at * classes / n.max(1)).min(classes - 1),
            Shape::Periodic(classes) => at % classes,
            Shape::Copies => random.below(40),
            _ => 0,
        }
    }

    fn row(&self, at: usize, group: usize, random: &mut Random, rows: &mut Vec<f64>) {
        let dim = self.dim;
        let normal = |random: &mut Random, rows: &mut Vec<f64>| rows.extend((0..dim).map(|_| random.normal()));
        let near = |random: &mut Random, rows: &mut Vec<f64>, centre: usize| {
            rows.extend(self.centres[centre * dim..][..dim].iter().map(|x| x + random.normal()));
        };
        match self.shape {
            Shape::Normal => normal(random, rows),
            Shape::Sorted(_) | Shape::Periodic(_) => near(random, rows, group),
            Shape::Rare if at % 200 == 77 => near(random, rows, 0),
            Shape::Rare => normal(random, rows),
            Shape::NearDuplicates if at.is_multiple_of(32) || rows.is_empty() => normal(random, rows),
            Shape::NearDuplicates => {
                let before = rows.len() - dim;
                rows.extend_from_within(before..);
                rows[before + dim..].iter_mut().for_each(|x| *x += 1e-5 * random.normal());
            }
            Shape::Zeros(percent) if at * 37 % 100 >= 100 - percent => rows.extend(std::iter::repeat_n(0.0, dim)),
            Shape::Zeros(_) => normal(random, rows),
            Shape::Copies if !at.is_multiple_of(5) => rows.extend_from_slice(&self.centres[group * dim..][..dim]),
            Shape::Copies => normal(random, rows),
            Shape::FarComponent => {
                normal(random, rows);
                if at == 5 {
                    let last = rows.len() - 1;
                    rows[last] = 1000.0;
                }
            }
            Shape::Scales => rows.extend((0..dim).map(|j| random.normal() * 0.02f64.powf(j as f64 / dim as f64))),
        }
    }

    /// A new vector like those of the base that came last.
    fn like(&self, n: usize, shift: f64, random: &mut Random) -> Vec<f64> {
        let mut row = Vec::new();
        // A row that is not a copy; of the rare class once in three times.
        let at = match self.shape {
            Shape::Rare if random.once_in(3) => 77,
            Shape::Sorted(_) | Shape::Periodic(_) => random.below(n),
            _ => 0,
        };
        self.row(at, self.group(at, n, random), random, &mut row);
        row.iter_mut().for_each(|x| *x = self.scale * (*x + shift));
        row
    }
}

/// The contents that an index must have: the components of each id.
type Model = BTreeMap<u64, Vec<f64>>;

/// The elements of numbers, and the numbers that these elements are.
fn elements<T: Component>(numbers: &[f64]) -> Vec<T> {
    let (unit, middle) = unit::<T>();
    numbers.iter().map(|x| T::nearest(middle + unit * x)).collect()
}

fn note<T: Component>(model: &mut Model, dim: usize, ids: impl Iterator<Item = u64>, rows: &[T]) {
    model.extend(ids.zip(rows.chunks(dim).map(|row| row.iter().map(|x| x.exact()).collect())));
}

/// `count` queries. `shift` is where the vectors are that came last.
fn queries<T: Component>(
    kind: Queries,
    count: usize,
    model: &Model,
    source: &Source,
    shift: f64,
    random: &mut Random,
) -> Vec<T> {
    let n = source.made;
    let all: Vec<&Vec<f64>> = model.values().collect();
    let mut queries = Vec::new();
    for _ in 0..count {
        if kind == Queries::Own && !all.is_empty() {
            queries.extend(all[random.below(all.len())].iter().map(|&x| T::nearest(x)));
            continue;
        }
        let mut row = source.like(n, shift, random);
        match kind {
            Queries::Scaled(factor) => row.iter_mut().for_each(|x| *x *= factor),
            Queries::Shifted => row[0] += 10.0 * source.scale,
            Queries::Other => {
                row.iter_mut()
                    .for_each(|x| *x = source.scale * if random.once_in(2) { 0.0 } else { 3.0 * random.unit() });
                // Cosine does not define the direction of zero.
                row[0] = source.scale;
            }
            Queries::Like | Queries::Own => {}
        }
        queries.extend(elements::<T>(&row));
    }
    queries
}

/// Results per query: how many of the k nearest were found, of how many.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Hits {
    found: usize,
    of: usize,
    /// Number of vectors that are among the k nearest of some query.
    distinct: usize,
}

impl Hits {
    fn recall(self) -> f64 {
        self.found as f64 / self.of.max(1) as f64
    }

    /// Whether the recall is less than a floor by more than chance: by three deviations of a share of as many
    /// neighbours, and one neighbour. A case has few queries, and those that are far from all vectors have the same
    /// neighbours: if a search misses one of these, it misses it for every query.
    fn is_below(self, floor: f64) -> bool {
        let (of, chance) = (self.distinct.max(1) as f64, floor * (1.0 - floor));
        let most_by_chance = if chance > 0.0 { 3.0 * (chance / of).sqrt() + 1.0 / of } else { 0.0 };
        self.recall() < floor - most_by_chance
    }
}

/// Counts what a search found, by the distances of the vectors in float64. With `exact_distances` the distances of the
/// results must be those.
///
/// # Errors
/// A result that is none: an id that is not in the index or comes twice, or a wrong distance.
fn hits<T: Component>(
    metric: Metric,
    model: &Model,
    queries: &[T],
    dim: usize,
    found: &Neighbors,
    exact_distances: bool,
) -> Result<Hits, String> {
    let mut hits = Hits { found: 0, of: 0, distinct: 0 };
    let mut nearest = HashSet::new();
    for (number, (query, (ids, distances))) in queries.chunks(dim).zip(found.rows()).enumerate() {
        let query: Vec<f64> = query.iter().map(|x| x.exact()).collect();
        let mut all: Vec<(f64, u64)> =
            model.iter().map(|(&id, row)| (badness(metric, textbook(metric, &query, row)), id)).collect();
        let k = ids.len().min(all.len());
        if k == 0 {
            continue;
        }
        let order = |a: &(f64, u64), b: &(f64, u64)| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1));
        let kth = all.select_nth_unstable_by(k - 1, order).1.0;
        nearest.extend(all[..k].iter().map(|&(_, id)| id));
        let mut seen = HashSet::new();
        for (&id, &distance) in ids.iter().zip(distances).take(k) {
            let row = model.get(&id).filter(|_| seen.insert(id));
            let row =
                row.ok_or_else(|| format!("query {number}: id {id} is not in the index or comes twice: {ids:?}"))?;
            let value = textbook(metric, &query, row);
            // Canonical distances are sums in f64, rounded to f32.
            let rounding = 2f64.powi(-22) * value.abs() + 2f64.powi(-140);
            if exact_distances && (f64::from(distance) - value).abs() > rounding {
                return Err(format!("query {number}: id {id} at {distance:?}, by float64 at {value:?}"));
            }
            hits.found += usize::from(badness(metric, value) <= kth + rounding);
        }
        if ids[k..].iter().any(|&id| id != NO_ID) {
            return Err(format!("query {number}: more results than vectors: {ids:?}"));
        }
        hits.of += k;
    }
    hits.distinct = nearest.len();
    Ok(hits)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(ids: &[u64], distances: &[f32]) -> Neighbors {
        Neighbors { k: ids.len(), ids: ids.to_vec(), distances: distances.to_vec() }
    }

    #[test]
    fn hits_are_counted_by_distance_and_wrong_results_are_told() {
        let model: Model = [(3, vec![0.0]), (5, vec![1.0]), (7, vec![1.0]), (9, vec![4.0])].into();
        let hits = |ids: &[u64], distances: &[f32]| hits(Metric::L2, &model, &[0f32], 1, &found(ids, distances), true);
        assert_eq!(hits(&[3, 7], &[0.0, 1.0]), Ok(Hits { found: 2, of: 2, distinct: 2 }));
        assert_eq!(hits(&[3, 9], &[0.0, 16.0]), Ok(Hits { found: 1, of: 2, distinct: 2 }));
        let slots = [3, 5, 7, 9, NO_ID];
        assert_eq!(hits(&slots, &[0.0, 1.0, 1.0, 16.0, f32::INFINITY]), Ok(Hits { found: 4, of: 4, distinct: 4 }));
        assert!(hits(&[3, 3], &[0.0, 0.0]).is_err() && hits(&[4], &[0.0]).is_err() && hits(&[9], &[15.0]).is_err());
    }

    /// Thirty queries that miss one vector, which all have as their nearest, say as much as one query; thirty that each
    /// miss their own say more.
    #[test]
    fn a_neighbour_of_many_queries_counts_once() {
        assert!(!Hits { found: 0, of: 30, distinct: 1 }.is_below(0.9));
        assert!(!Hits { found: 120, of: 150, distinct: 5 }.is_below(0.9));
        assert!(Hits { found: 0, of: 30, distinct: 30 }.is_below(0.5));
        assert!(Hits { found: 120, of: 150, distinct: 150 }.is_below(0.9));
        assert!(Hits { found: 29, of: 30, distinct: 2 }.is_below(1.0));
    }

    #[test]
    fn shapes_are_what_they_are_called() {
        let mut random = Random::new(1);
        let mut rows = |shape| Source::new::<f32>(shape, 2, 1.0, &mut random).rows(400, 400, 0.0, &mut Random::new(2));
        let distinct = |rows: &[f64]| rows.chunks(2).map(|row| row[0].to_bits()).collect::<HashSet<_>>().len();
        assert_eq!(distinct(&rows(Shape::Normal)), 400);
        assert_eq!(distinct(&rows(Shape::Zeros(75))), 101);
        assert!((80..=120).contains(&distinct(&rows(Shape::Copies))));
        let near = rows(Shape::NearDuplicates);
        assert!((near[0] - near[62]).abs() < 1e-3 && (near[0] - near[64]).abs() > 1e-3, "{near:?}");
        let periodic = rows(Shape::Periodic(10));
        assert!(periodic.chunks(20).all(|rows| rows[0].abs() < 7.0));
        let far = rows(Shape::FarComponent);
        assert_eq!(far.iter().filter(|x| x.abs() > 100.0).count(), 1);
    }
}
