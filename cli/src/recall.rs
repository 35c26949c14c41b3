//! Recall: the fraction of the true neighbours that a search found.

use std::collections::HashSet;
use std::path::Path;

use serde::Serialize;
use warpann::io::GroundTruth;
use warpann::{Metric, NONE};

use crate::report::{Failure, Outcome};
use crate::vectors::Access;

/// The recall of a search, from 0 to 1.
#[derive(Serialize, Clone, Copy)]
pub struct Recall {
    pub at: usize,
    pub by_id: f64,
    /// None if the distances of the true neighbours cannot be computed, as with an index file.
    pub by_distance: Option<f64>,
}

/// Reads ground truth for `queries` queries and at least `k` neighbours each, whose ids are below `base` if it is
/// given.
pub fn read_truth(access: &Access, path: &Path, queries: usize, k: usize, base: Option<usize>) -> Outcome<GroundTruth> {
    let truth = access.ground_truth(path)?;
    let (ids, path) = (&truth.ids, path.display());
    if ids.rows != queries {
        let message = format!("{path}: ground truth of {} queries; the query file has {queries}", ids.rows);
        return Err(Failure::Message(message));
    }
    if ids.k < k && queries > 0 {
        let message = format!("{path}: ground truth has {} neighbours per query; k is {k}", ids.k);
        return Err(Failure::Message(message));
    }
    if let Some(base) = base
        && let Some(id) = ids.ids.iter().find(|&&id| id != NONE && id >= base as u64)
    {
        return Err(Failure::Message(format!(
            "{path}: ground truth contains vector {id}; the base file has {base} vectors"
        )));
    }
    Ok(truth)
}

/// The number of true neighbours of one query (k, or fewer if the base has fewer), and the numbers of those that were
/// found, by id and by distance; without `exact` the two are the same.
pub fn recall_of(
    ids: &[u64],
    distances: &[f32],
    truth: &[u64],
    metric: Metric,
    exact: Option<impl Fn(u64) -> f32>,
) -> (usize, usize, usize) {
    let truth: Vec<u64> = truth.iter().copied().filter(|&id| id != NONE).collect();
    let Some(&last) = truth.last() else { return (0, 0, 0) };
    let worst = exact.map(|exact| exact(last));
    let known: HashSet<u64> = truth.iter().copied().collect();
    let found = || ids.iter().zip(distances).filter(|&(&id, _)| id != NONE);
    let by_id = found().filter(|&(id, _)| known.contains(id)).count();
    let by_distance = found()
        .filter(|&(id, &d)| known.contains(id) || worst.is_some_and(|worst| metric.order(d, worst).is_le()))
        .count();
    (known.len(), by_id, by_distance.min(known.len()))
}

/// The mean over the queries that have true neighbours; 1 if no query has any.
pub fn mean(found: impl Iterator<Item = (usize, usize, usize)>, at: usize) -> Recall {
    let (mut queries, mut by_id, mut by_distance) = (0usize, 0.0, 0.0);
    for (total, ids, distances) in found.filter(|&(total, ..)| total > 0) {
        queries += 1;
        by_id += ids as f64 / total as f64;
        by_distance += distances as f64 / total as f64;
    }
    match queries {
        0 => Recall { at, by_id: 1.0, by_distance: Some(1.0) },
        queries => Recall { at, by_id: by_id / queries as f64, by_distance: Some(by_distance / queries as f64) },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recall_counts_ids_and_ties() {
        // True neighbours 1, 2, 3 at distances 1, 2, 2; vector 4 lies at distance 2 too, vector 5 at 3.
        let exact = |id: u64| [9.0, 1.0, 2.0, 2.0, 2.0, 3.0][id as usize];
        let of = |ids: &[u64]| {
            let distances: Vec<f32> =
                ids.iter().map(|&id| if id == NONE { f32::INFINITY } else { exact(id) }).collect();
            recall_of(ids, &distances, &[1, 2, 3], Metric::L2, Some(exact))
        };
        assert_eq!(of(&[1, 2, 3]), (3, 3, 3));
        assert_eq!(of(&[1, 2, 4]), (3, 2, 3));
        assert_eq!(of(&[1, 2, 5]), (3, 2, 2));
        assert_eq!(of(&[1, NONE, NONE]), (3, 1, 1));
        assert_eq!(recall_of(&[NONE], &[f32::INFINITY], &[NONE], Metric::L2, Some(exact)), (0, 0, 0));
        let recall = mean([(3, 3, 3), (3, 0, 3), (0, 0, 0)].into_iter(), 3);
        assert_eq!((recall.by_id, recall.by_distance), (0.5, Some(1.0)));
        assert_eq!(mean(std::iter::empty(), 3).by_id, 1.0);
    }
}
