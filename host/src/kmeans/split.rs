//! Empty clusters get half of the largest: both take its centroid, nudged a little in opposite directions, so that the next
//! assignment shares its points out between them (the remedy of Johnson, Douze, Jégou's implementation, here without chance).

use std::collections::BinaryHeap;

use super::sums::normalise;
use super::worker::Totals;
use crate::cpu::simd::Isa;

/// The nudge, as a share of the centroid's largest component.
const NUDGE: f32 = 1.0 / 1024.0;

/// Splits the largest cluster for each cluster without weight, in ascending order; a cluster that was split counts as two of half
/// the points. Equal sizes: the lower number. Returns how many were filled; with fewer than two points in every cluster left
/// there is nothing to split. `greatest` nudges a centroid of zeros. O(clusters + empty · (log(clusters) + dim)).
pub(super) fn split_empty(centroids: &mut [f32], dim: usize, totals: &Totals, greatest: f32, spherical: bool) -> usize {
    let empty = || (0..totals.weights.len()).filter(|&cluster| totals.weights[cluster] == 0);
    if empty().next().is_none() {
        return 0;
    }
    let full = (0..totals.weights.len()).filter(|&cluster| totals.weights[cluster] != 0);
    let mut largest: BinaryHeap<(u32, std::cmp::Reverse<usize>)> =
        full.map(|cluster| (totals.counts[cluster], std::cmp::Reverse(cluster))).collect();
    let mut filled = 0;
    for cluster in empty() {
        let Some((count, from)) = largest.pop().filter(|&(count, _)| count > 1) else { break };
        let (given, kept) = (count / 2, count - count / 2);
        largest.extend([(kept, from), (given, std::cmp::Reverse(cluster))]);
        let source = centroids[from.0 * dim..][..dim].to_vec();
        let peak = source.iter().fold(0.0f32, |peak, x| peak.max(x.abs()));
        let nudge = NUDGE * if peak > 0.0 { peak } else { greatest };
        for (target, sign) in [(from.0, 1.0), (cluster, -1.0)] {
            let to = &mut centroids[target * dim..][..dim];
            for (j, (to, x)) in to.iter_mut().zip(&source).enumerate() {
                let sign = if j % 2 == 0 { sign } else { -sign };
                *to = (x + sign * nudge).clamp(f32::MIN, f32::MAX);
            }
            if spherical {
                normalise(Isa::detect(), to);
            }
        }
        filled += 1;
    }
    filled
}

#[cfg(test)]
mod tests {
    use super::*;

    fn totals(counts: &[u32]) -> Totals {
        Totals { counts: counts.to_vec(), weights: counts.iter().map(|&c| i64::from(c)).collect(), ..Totals::default() }
    }

    #[test]
    fn the_largest_is_split_and_then_its_halves_count() {
        let mut centroids = [1.0, -2.0, 4.0, 8.0, 9.0, 9.0, 9.0, 9.0];
        // Cluster 0 of 10 is split into 5 and 5, then cluster 1 of 6.
        assert_eq!(split_empty(&mut centroids, 2, &totals(&[10, 6, 0, 0]), 1.0, false), 2);
        let (near, far) = (2.0 / 1024.0, 8.0 / 1024.0);
        assert_eq!(
            centroids,
            [1.0 + near, -2.0 - near, 4.0 + far, 8.0 - far, 1.0 - near, -2.0 + near, 4.0 - far, 8.0 + far]
        );
    }

    #[test]
    fn single_points_are_not_split_and_nothing_leaves_the_range() {
        let mut centroids = [5.0, 6.0, 7.0];
        assert_eq!(split_empty(&mut centroids, 1, &totals(&[1, 0, 1]), 1.0, false), 0);
        assert_eq!(centroids, [5.0, 6.0, 7.0]);
        let mut centroids = [f32::MAX, 0.0];
        assert_eq!(split_empty(&mut centroids, 1, &totals(&[2, 0]), f32::MAX, false), 1);
        assert!(centroids[0].is_finite() && centroids[1] < centroids[0]);
        // A centroid of zeros.
        let mut centroids = [0.0, 0.0];
        assert_eq!(split_empty(&mut centroids, 1, &totals(&[2, 0]), 2.0, false), 1);
        assert_eq!(centroids, [2.0 / 1024.0, -2.0 / 1024.0]);
    }
}
