//! The first centroids by k-means++ (Arthur and Vassilvitskii 2007).
//!
//! The first point is random. Each next point is chosen with probability proportional to w · D², where D is the
//! distance to the nearest centroid so far. All devices leave this to the CPU, so that it has the same bits everywhere:
//! D² is the canonical f64 sum, and sums over points are formed in blocks of [`BLOCK`], in ascending order.
//!
//! The cost is points · clusters · d f64 operations, several times that of one iteration. So the caller first samples
//! [`SAMPLE`] points per centroid.

use super::sums::normalise;
use crate::Element;
use crate::parallel::{Loop, ParallelSlice};
use crate::product::cpu::exact;
use crate::product::cpu::exact::Term;
use crate::random::Random;
use crate::simd::Isa;

/// Number of points whose w · D² are added up together.
const BLOCK: usize = 1024;
/// Smallest number of components of a task. Fewer are done before another thread is awake.
const TASK: usize = 1 << 16;
/// Number of points per centroid that k-means++ chooses from.
pub(super) const SAMPLE: usize = 64;

/// `clusters` of `rows`, chosen by D² sampling, as f32. For spherical k-means D is the distance between points divided
/// by their norms. If all other points equal centroids, the lowest point not chosen so far is next.
pub(super) fn plus_plus<T: Element>(
    rows: &[T],
    dim: usize,
    weights: Option<&[f32]>,
    clusters: usize,
    spherical: bool,
    random: &mut Random,
) -> Vec<f32> {
    let isa = Isa::detect();
    let points: Vec<f32> = rows.iter().map(|x| x.to_f32()).collect();
    let count = points.len() / dim;
    // Zeros behind a point change no distance, and sums of a fixed length are the fastest.
    let stride = dim.max(exact::FEW);
    let mut compared = vec![0.0; count * stride];
    compared
        .chunks_exact_mut(stride)
        .zip(points.chunks_exact(dim))
        .for_each(|(to, row)| to[..dim].copy_from_slice(row));
    if spherical {
        compared.par_chunks_mut(stride).for_each(|point| normalise(isa, point));
    }
    let weight = |point: usize| weights.map_or(1.0, |weights| f64::from(weights[point]));
    // Infinite until there is a first centroid.
    let mut distances = vec![f64::INFINITY; count];
    let mut masses: Vec<f64> = (0..count).map(weight).collect();
    let mut chosen = vec![false; count];
    let mut centroids = Vec::with_capacity(clusters * dim);
    let mut totals = vec![0.0; count.div_ceil(BLOCK)];
    for _ in 0..clusters {
        let blocks = masses.par_chunks(BLOCK).zip(totals.par_iter_mut()).with_min_len(TASK / BLOCK);
        blocks.for_each(|(masses, total)| *total = masses.iter().sum());
        let next = draw(&masses, &totals, random.unit())
            .or_else(|| chosen.iter().position(|chosen| !chosen))
            .unwrap_or_default();
        chosen[next] = true;
        centroids.extend_from_slice(&points[next * dim..][..dim]);
        let wide: Vec<f64> = compared[next * stride..][..stride].iter().map(|&x| f64::from(x)).collect();
        let update = |point: usize, distance: &mut f64, mass: &mut f64| {
            let row = &compared[point * stride..][..stride];
            *distance = distance.min(exact::sum(isa, Term::SquaredDifference, &wide, row));
            *mass = weight(point) * *distance;
        };
        let each =
            distances.par_iter_mut().zip(masses.par_iter_mut()).enumerate().with_min_len(TASK / stride.min(TASK));
        each.for_each(|(point, (distance, mass))| update(point, distance, mass));
    }
    centroids
}

/// The point at which the running sum of masses passes `unit` · total; `None` if the total is 0.
fn draw(masses: &[f64], totals: &[f64], unit: f64) -> Option<usize> {
    let total: f64 = totals.iter().sum();
    if total <= 0.0 {
        return None;
    }
    let mut left = unit * total;
    let block = totals.iter().position(|&total| {
        let here = left < total;
        if !here {
            left -= total;
        }
        here
    });
    let start = block.map_or(0, |block| block * BLOCK);
    for (at, &mass) in masses[start..].iter().enumerate().take(if block.is_some() { BLOCK } else { 0 }) {
        if left < mass {
            return Some(start + at);
        }
        left -= mass;
    }
    // Rounding passed the end of the block or of all points: the last point with mass before that end.
    let end = if block.is_some() { (start + BLOCK).min(masses.len()) } else { masses.len() };
    masses[..end].iter().rposition(|&mass| mass > 0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_ascending_and_without_repetition() {
        let mut random = Random::new(3);
        for (total, count) in [(1, 1), (10, 0), (10, 10), (1000, 37)] {
            let sample = random.sample(total, count);
            assert_eq!(sample.len(), count);
            assert!(sample.windows(2).all(|pair| pair[0] < pair[1]) && sample.iter().all(|&at| at < total));
        }
        // All numbers are equally likely: 2 of 4, 6000 times, gives 3000 each, within six standard deviations.
        let mut hits = [0i32; 4];
        (0..6000).for_each(|_| random.sample(4, 2).into_iter().for_each(|at| hits[at] += 1));
        assert!(hits.iter().all(|hits| (hits - 3000).abs() < 240), "{hits:?}");
    }

    #[test]
    fn draws_follow_the_masses() {
        let mut masses = vec![0.0; 3000];
        (masses[5], masses[2000], masses[2999]) = (1.0, 2.0, 1.0);
        let totals: Vec<f64> = masses.chunks(BLOCK).map(|block| block.iter().sum()).collect();
        let at = |unit| draw(&masses, &totals, unit);
        assert_eq!(
            [at(0.0), at(0.2), at(0.25), at(0.7), at(0.75), at(0.999)].map(Option::unwrap),
            [5, 5, 2000, 2000, 2999, 2999]
        );
        assert_eq!(at(1.0), Some(2999));
        assert_eq!(draw(&[0.0; 4], &[0.0], 0.5), None);
    }

    #[test]
    fn plus_plus_takes_one_of_each_far_group() {
        // Eight groups a thousand apart, points of a group within 1. The chance of a second point of a group is about
        // 10^-6.
        let rows: Vec<f32> = (0..800).flat_map(|i| [(i % 8 * 1000) as f32 + (i / 8) as f32 * 0.01, 1.0]).collect();
        for seed in 0..20 {
            let centroids = plus_plus(&rows, 2, None, 8, false, &mut Random::new(seed));
            let mut groups: Vec<i32> = centroids.chunks(2).map(|c| (c[0] / 1000.0) as i32).collect();
            groups.sort_unstable();
            assert_eq!(groups, [0, 1, 2, 3, 4, 5, 6, 7], "seed {seed}");
        }
        // A point of weight 0 is not chosen while there is another; equal points are chosen in order.
        let weights = [0.0, 1.0, 0.0, 0.0];
        let centroids = plus_plus(&[1u8, 2, 3, 4], 1, Some(&weights), 1, false, &mut Random::new(1));
        assert_eq!(centroids, [2.0]);
        assert_eq!(plus_plus(&[7u8; 5], 1, None, 5, false, &mut Random::new(1)), [7.0; 5]);
    }
}
