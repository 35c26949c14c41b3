//! Where training begins: random numbers, sub-samples, and the first centroids.
//!
//! *Random*: distinct points, every set of them equally likely.
//!
//! *k-means++* (Arthur and Vassilvitskii 2007): the first point at random, each next one with probability proportional to
//! w · D², D the distance to the nearest centroid so far. It is done on the CPU, whatever the device, so that it has the same
//! bits everywhere: D² is the canonical f64 sum, and the sums over points are formed in blocks of [`BLOCK`], in ascending order.
//! That costs points · clusters · d f64 operations, several times one iteration. So points are sampled first, down to
//! [`SAMPLE`] a centroid.

use super::sums::normalise;
use crate::Element;
use crate::parallel::{Loop, ParallelSlice};
use crate::product::cpu::exact;
use crate::product::cpu::exact::Term;
use crate::random::Random;
use crate::simd::Isa;

/// Points whose D² are added up together.
const BLOCK: usize = 1024;
/// Components that are worth a task of their own: fewer are done before another thread is awake.
const TASK: usize = 1 << 16;
/// Points a centroid that k-means++ looks at.
pub(super) const SAMPLE: usize = 64;

/// `clusters` rows, chosen by D² sampling, of `rows` as f32. For spherical k-means D is taken between points divided by their
/// norms. Where all other points coincide with centroids, the lowest that was not chosen is next.
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
    // w · D², +infinity standing for "no centroid yet" only before the first.
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

/// The point at which the running sum of masses passes `unit` of their total; none where the total is 0.
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
    // Rounding ran past the end of the block, or of all: the last point with mass up to there.
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
        // Every number is as likely as the next: 2 of 4, 6000 times, 3000 times each, give or take six deviations.
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
        // Eight groups a thousand apart, points of a group within 1: a second one of a group has a chance of about 10^-6.
        let rows: Vec<f32> = (0..800).flat_map(|i| [(i % 8 * 1000) as f32 + (i / 8) as f32 * 0.01, 1.0]).collect();
        for seed in 0..20 {
            let centroids = plus_plus(&rows, 2, None, 8, false, &mut Random::new(seed));
            let mut groups: Vec<i32> = centroids.chunks(2).map(|c| (c[0] / 1000.0) as i32).collect();
            groups.sort_unstable();
            assert_eq!(groups, [0, 1, 2, 3, 4, 5, 6, 7], "seed {seed}");
        }
        // Weight 0 is never chosen while there is another; equal points fill up in order.
        let weights = [0.0, 1.0, 0.0, 0.0];
        let centroids = plus_plus(&[1u8, 2, 3, 4], 1, Some(&weights), 1, false, &mut Random::new(1));
        assert_eq!(centroids, [2.0]);
        assert_eq!(plus_plus(&[7u8; 5], 1, None, 5, false, &mut Random::new(1)), [7.0; 5]);
    }
}
