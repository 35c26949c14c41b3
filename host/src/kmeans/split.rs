//! Splitting: each empty cluster takes half of the largest cluster. Both take its centroid, moved a little in opposite
//! directions, so that the next assignment divides its points between them. The implementation of Johnson, Douze and
//! Jégou does the same with random numbers; here there are none.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, HashSet};

use super::points::Points;
use super::sums::normalise;
use super::worker::Totals;
use crate::Element;
use crate::simd::Isa;

/// The nudge, as a share of the centroid's largest component.
const NUDGE: f32 = 1.0 / 1024.0;
/// The largest nudge, as a share of the spread of the points.
const MOST: f32 = 1.0 / 16.0;

/// Limits of the distance between a centroid and its halves.
#[derive(Debug, Clone, Copy)]
pub(super) struct Nudge {
    /// Largest |x| of the points. It replaces the largest component of a centroid that is zero.
    pub(super) greatest: f32,
    /// The spread of the points. Halves farther from the centroid than a sixteenth of the spread lose their points to
    /// other clusters.
    pub(super) most: f32,
}

impl Nudge {
    fn of(self, centroid: &[f32]) -> f32 {
        let peak = centroid.iter().fold(0.0f32, |peak, x| peak.max(x.abs()));
        (NUDGE * if peak > 0.0 { peak } else { self.greatest }).min(MOST * self.most)
    }
}

/// Splits the largest cluster for each cluster without weight, in ascending order, and returns the number of clusters
/// filled. A cluster that was split counts as two clusters of half the points. Of equal sizes the lower number is
/// split. A cluster is not divided into more clusters than it has distinct points, since equal points always go to one
/// centroid; `more_than` says whether a cluster has more than a number of distinct points. If no cluster has a second
/// distinct point, there is nothing to split. O(clusters + empty · (log(clusters) + dim)) without `more_than`.
pub(super) fn split_empty(
    centroids: &mut [f32],
    dim: usize,
    totals: &Totals,
    nudge: Nudge,
    spherical: bool,
    mut more_than: impl FnMut(usize, usize) -> bool,
) -> usize {
    let empty: Vec<usize> = (0..totals.weights.len()).filter(|&cluster| totals.weights[cluster] == 0.0).collect();
    let full = (0..totals.weights.len()).filter(|&cluster| totals.weights[cluster] != 0.0);
    let mut largest: BinaryHeap<(u32, Reverse<usize>)> =
        full.map(|cluster| (totals.counts[cluster], Reverse(cluster))).collect();
    // For each cluster, the original cluster of its points; for each original cluster, the number of clusters it has
    // become.
    let mut whole: Vec<usize> = (0..totals.weights.len()).collect();
    let mut pieces = vec![1; totals.weights.len()];
    let mut filled = 0;
    for cluster in empty {
        let next = loop {
            match largest.pop().filter(|&(count, _)| count > 1) {
                Some((_, Reverse(from))) if !more_than(whole[from], pieces[whole[from]]) => {}
                next => break next,
            }
        };
        let Some((count, Reverse(from))) = next else { break };
        whole[cluster] = whole[from];
        pieces[whole[from]] += 1;
        let (given, kept) = (count / 2, count - count / 2);
        largest.extend([(kept, Reverse(from)), (given, Reverse(cluster))]);
        let source = centroids[from * dim..][..dim].to_vec();
        let nudge = nudge.of(&source);
        for (target, sign) in [(from, 1.0), (cluster, -1.0)] {
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

/// Counts the distinct points of clusters, only as far as needed.
pub(super) struct Distinct<'a, T: Element> {
    points: Points<'a, T>,
    labels: &'a [u32],
    /// For each cluster in question: the number of points examined, and the distinct points among them.
    clusters: HashMap<usize, (usize, HashSet<Vec<u32>>)>,
}

impl<'a, T: Element> Distinct<'a, T> {
    pub(super) fn new(points: Points<'a, T>, labels: &'a [u32]) -> Self {
        Self { points, labels, clusters: HashMap::new() }
    }

    /// Whether `cluster` has more than `number` distinct points with weight. O(points + dim · points of the cluster)
    /// for all calls about a cluster. The first two points are mostly distinct.
    pub(super) fn more_than(&mut self, cluster: usize, number: usize) -> bool {
        let (looked_at, found) = self.clusters.entry(cluster).or_default();
        while found.len() <= number {
            let here = self.labels[*looked_at..].iter().position(|&label| label as usize == cluster);
            let Some(point) = here.map(|at| at + *looked_at) else {
                *looked_at = self.labels.len();
                return false;
            };
            *looked_at = point + 1;
            if self.points.weights.is_none_or(|weights| weights[point] > 0.0) {
                // −0 equals 0.
                found.insert(self.points.row(point).iter().map(|x| (x.to_f32() + 0.0).to_bits()).collect());
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::super::points::Greatest;
    use super::*;

    fn totals(counts: &[u32]) -> Totals {
        Totals { counts: counts.to_vec(), weights: counts.iter().map(|&c| f64::from(c)).collect(), ..Totals::default() }
    }

    #[test]
    fn the_largest_is_split_and_then_its_halves_count() {
        let mut centroids = [1.0, -2.0, 4.0, 8.0, 9.0, 9.0, 9.0, 9.0];
        // Cluster 0 of 10 is split into 5 and 5, then cluster 1 of 6.
        assert_eq!(
            split_empty(
                &mut centroids,
                2,
                &totals(&[10, 6, 0, 0]),
                Nudge { greatest: 1.0, most: f32::MAX },
                false,
                |_, _| true
            ),
            2
        );
        let (near, far) = (2.0 / 1024.0, 8.0 / 1024.0);
        assert_eq!(
            centroids,
            [1.0 + near, -2.0 - near, 4.0 + far, 8.0 - far, 1.0 - near, -2.0 + near, 4.0 - far, 8.0 + far]
        );
    }

    #[test]
    fn single_points_are_not_split_and_nothing_leaves_the_range() {
        let mut centroids = [5.0, 6.0, 7.0];
        assert_eq!(
            split_empty(
                &mut centroids,
                1,
                &totals(&[1, 0, 1]),
                Nudge { greatest: 1.0, most: f32::MAX },
                false,
                |_, _| true
            ),
            0
        );
        assert_eq!(centroids, [5.0, 6.0, 7.0]);
        let mut centroids = [f32::MAX, 0.0];
        assert_eq!(
            split_empty(
                &mut centroids,
                1,
                &totals(&[2, 0]),
                Nudge { greatest: f32::MAX, most: f32::MAX },
                false,
                |_, _| true
            ),
            1
        );
        assert!(centroids[0].is_finite() && centroids[1] < centroids[0]);
        // A centroid of zeros.
        let mut centroids = [0.0, 0.0];
        assert_eq!(
            split_empty(&mut centroids, 1, &totals(&[2, 0]), Nudge { greatest: 2.0, most: f32::MAX }, false, |_, _| {
                true
            }),
            1
        );
        assert_eq!(centroids, [2.0 / 1024.0, -2.0 / 1024.0]);
    }

    #[test]
    fn a_cluster_has_no_more_parts_than_points_that_differ() {
        // The largest cluster has two distinct points, the next one has one, and all points of the third are distinct.
        let differ = [2, 1, 100, 0, 0, 0];
        let mut centroids = [10.0, 20.0, 30.0, 0.0, 0.0, 0.0];
        let more_than = |cluster: usize, number: usize| differ[cluster] > number;
        let nudge = Nudge { greatest: 1.0, most: f32::MAX };
        assert_eq!(split_empty(&mut centroids, 1, &totals(&[50, 40, 10, 0, 0, 0]), nudge, false, more_than), 3);
        assert!(centroids[0] > 10.0 && centroids[1] == 20.0 && centroids[3] < 10.0, "{centroids:?}");
        assert!([2, 4, 5].iter().all(|&at| (centroids[at] - 30.0).abs() < 0.1), "{centroids:?}");

        let rows = [1.0f32, -0.0, 1.0, 0.0, 1.0, 5.0, 2.0, 0.0];
        let points = Points { rows: &rows, dim: 1, weights: None, squares: &[], greatest: Greatest::default() };
        let labels = [0, 1, 0, 1, 0, 1, 0, 1];
        let mut distinct = Distinct::new(points, &labels);
        // Cluster 0 has 1, 1, 1, 2 and cluster 1 has −0, 0, 5, 0.
        assert_eq!([1, 2].map(|number| distinct.more_than(0, number)), [true, false]);
        assert_eq!([1, 2, 1].map(|number| distinct.more_than(1, number)), [true, false, true]);
        assert!(!distinct.more_than(2, 0));
        let weights = [1.0, 1.0, 1.0, 1.0, 1.0, 0.0, 1.0, 1.0];
        assert!(!Distinct::new(Points { weights: Some(&weights), ..points }, &labels).more_than(1, 1));
    }

    #[test]
    fn halves_stay_where_the_points_are() {
        // One component is a million times the spread of the others.
        let mut centroids = [1e6, 1.0, 0.0, 0.0];
        let nudge = Nudge { greatest: 1e6, most: 2.0 };
        assert_eq!(split_empty(&mut centroids, 2, &totals(&[5, 0]), nudge, false, |_, _| true), 1);
        assert_eq!(centroids, [1e6 + 0.125, 1.0 - 0.125, 1e6 - 0.125, 1.0 + 0.125]);
    }
}
