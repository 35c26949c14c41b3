//! Labels with a limit on cluster sizes.
//!
//! ```text
//! every cluster with more than `most` points keeps the `most` points nearest to its centroid and is closed
//! while points are left over:
//!     each goes to the nearest centroid among the clusters with room
//!     a cluster with too little room for its new points takes the nearest of them until it is full, and is closed
//! ```
//!
//! "Nearest" is by (canonical distance, lower number), so the result is the same on every device. Each round closes a
//! cluster or is the last one, so there are at most as many rounds as clusters. A round costs left-over points · open
//! clusters · d, and the number of left-over points falls quickly. clusters · most must be at least the number of
//! points.

use super::nearest::Nearest;
use super::points::Points;
use crate::Element;
use crate::metric::Assign;
use crate::parallel::{Loop, ParallelSlice};

/// Changes `labels`, the nearest centroid of each point, so that no cluster has more than `most` points.
pub(super) fn balance<T: Element>(
    metric: Assign,
    points: Points<'_, T>,
    centroids: &[f32],
    most: usize,
    labels: &mut [u32],
) {
    let dim = points.dim;
    let mut held = vec![0usize; centroids.len() / dim];
    let mut arriving: Vec<u32> = (0..labels.len() as u32).collect();
    // The clusters with room, ascending.
    let mut open: Vec<u32> = (0..held.len() as u32).collect();
    loop {
        let mut groups: Vec<Vec<u32>> = vec![Vec::new(); held.len()];
        arriving.iter().for_each(|&point| groups[labels[point as usize] as usize].push(point));
        let all = Nearest::new(metric, centroids, dim, 0);
        let left_over = |(cluster, group): (usize, &mut Vec<u32>)| {
            let room = most - held[cluster];
            if group.len() <= room {
                return Vec::new();
            }
            let distance = |&point: &u32| (all.distance(points.row(point as usize), cluster as u32), point);
            let mut ranked: Vec<(f32, u32)> = group.iter().map(distance).collect();
            ranked.sort_unstable_by(|a, b| metric.metric().order(a.0, b.0).then(a.1.cmp(&b.1)));
            group.truncate(room);
            ranked[room..].iter().map(|&(_, point)| point).collect()
        };
        let mut next: Vec<u32> = groups.par_iter_mut().enumerate().map(left_over).collect().concat();
        for (held, group) in held.iter_mut().zip(&groups) {
            *held += group.len();
        }
        if next.is_empty() {
            return;
        }
        next.sort_unstable();
        open.retain(|&cluster| held[cluster as usize] < most);
        let mut near = Vec::with_capacity(open.len() * dim);
        open.iter().for_each(|&cluster| near.extend_from_slice(&centroids[cluster as usize * dim..][..dim]));
        let rows: Vec<T> = next.iter().flat_map(|&point| points.row(point as usize)).copied().collect();
        let squares: Vec<f64> = next.iter().map(|&point| points.squares[point as usize]).collect();
        let mut found = vec![0; next.len()];
        Nearest::new(metric, &near, dim, next.len()).assign(&rows, &squares, &mut found);
        for (&point, &found) in next.iter().zip(&found) {
            labels[point as usize] = open[found as usize];
        }
        arriving = next;
    }
}

#[cfg(test)]
mod tests {
    use super::super::points::Greatest;
    use super::*;

    fn balanced(rows: &[f32], centroids: &[f32], most: usize, mut labels: Vec<u32>) -> Vec<u32> {
        let squares: Vec<f64> = rows.iter().map(|&x| f64::from(x) * f64::from(x)).collect();
        let points = Points { rows, dim: 1, weights: None, squares: &squares, greatest: Greatest::default() };
        balance(Assign::L2, points, centroids, most, &mut labels);
        labels
    }

    #[test]
    fn the_farthest_go_to_the_nearest_cluster_with_room() {
        // Centroids 0, 10, 100; five points near 0 and one at 10; at most two points for each centroid. Points 3, 4 and
        // 5 leave 0. Point 5 goes to 10, where point 10 stays because it was there first. Points 3 and 4 go to 100.
        let labels = balanced(&[1.0, 2.0, 3.0, 4.0, 5.0, 10.0], &[0.0, 10.0, 100.0], 2, vec![0, 0, 0, 0, 0, 1]);
        assert_eq!(labels, [0, 0, 2, 2, 1, 1]);
        // No cluster is too large.
        assert_eq!(balanced(&[1.0, 9.0], &[0.0, 10.0], 1, vec![0, 1]), [0, 1]);
        // All points are equal: the lower numbers stay.
        assert_eq!(balanced(&[3.0; 5], &[0.0, 1.0], 3, vec![1; 5]), [1, 1, 1, 0, 0]);
    }
}
