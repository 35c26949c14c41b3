//! The number of lists to search for a given recall, found by measurement.

use rayon::prelude::*;

use super::{IvfIndex, SearchOptions};
use crate::validate::check_vectors;
use crate::{Element, Error, Input, NONE, Result};

/// The mean over queries of |first `at` found ∩ first `at` true| / |first `at` true|, from 0 to 1: k-recall@k with k = `at`.
///
/// `found` and `truth` hold rows of `k` and `truth_k` ids, one row for each query, best first, with [`NONE`] in slots without a neighbour;
/// `at` is at most `k` and at most `truth_k`. A query without true neighbours is not counted; without queries the recall is 1. O(queries ·
/// at · log at).
///
/// ```
/// use warpann::ivf::recall;
///
/// // Two queries; the first has two true neighbours, of which one is found.
/// assert_eq!(recall(&[1, 2, 5, 6], 2, &[1, 3, 5, 6], 2, 2), 0.75);
/// assert_eq!(recall(&[1, 2, 5, 6], 2, &[1, 3, 5, 6], 2, 1), 1.0);
/// ```
///
/// # Panics
/// If `at` exceeds `k` or `truth_k`, as with slicing.
pub fn recall(found: &[u64], k: usize, truth: &[u64], truth_k: usize, at: usize) -> f64 {
    let rows = found.par_chunks_exact(k.max(1)).zip(truth.par_chunks_exact(truth_k.max(1)));
    let shares: Vec<f64> = rows
        .filter_map(|(found, truth)| {
            let mut truth: Vec<u64> = truth[..at].iter().copied().filter(|&id| id != NONE).collect();
            truth.sort_unstable();
            let hits = found[..at].iter().filter(|id| truth.binary_search(id).is_ok()).count();
            (!truth.is_empty()).then(|| hits as f64 / truth.len() as f64)
        })
        .collect();
    if shares.is_empty() { 1.0 } else { shares.iter().sum::<f64>() / shares.len() as f64 }
}

impl<T: Element> IvfIndex<T> {
    /// Returns the smallest number of probes with which searches for the `k` best of `queries` (row-major) reach the recall `target`, and
    /// the recall with this number. `truth` holds the ids of the `k` true neighbours of each query, and [`NONE`] in slots without one. The
    /// cost is O(log lists) searches of all queries.
    ///
    /// More probes find more true neighbours, so doubling and then bisection find the smallest number. Only with encodings that keep codes
    /// can one more list displace a true neighbour. In this case the result is a number that reaches the target while the number below it
    /// misses the target.
    ///
    /// # Errors
    /// [`Error::RecallOutOfReach`] if a search of all lists misses the target, or the target is not above 0 and at most 1;
    /// [`Error::WrongResultLength`] if the length of `truth` is not queries × `k`; and the errors of [`search_with`](Self::search_with).
    pub fn probes_for_recall(&self, queries: &[T], k: usize, truth: &[u64], target: f64) -> Result<(usize, f64)> {
        let count = check_vectors(queries, self.dim(), Input::Queries)?;
        let slots = count.checked_mul(k).ok_or(Error::ResultTooLarge { queries: count, k })?;
        if truth.len() != slots {
            return Err(Error::WrongResultLength { expected: slots, actual: truth.len() });
        }
        let measure = |probes: usize| -> Result<f64> {
            let options = SearchOptions::new().probes(probes);
            let found = self.search_with(queries, k, &options)?;
            Ok(recall(&found.ids, k, truth, k, k))
        };
        if !(target > 0.0 && target <= 1.0) {
            return Err(Error::RecallOutOfReach { target, best: measure(self.lists())? });
        }
        // `low` misses the target (0 lists find nothing), `high` reaches it.
        let (mut low, mut high) = (0, 1);
        let mut reached = measure(high)?;
        while reached < target {
            if high == self.lists() {
                return Err(Error::RecallOutOfReach { target, best: reached });
            }
            (low, high) = (high, (2 * high).min(self.lists()));
            reached = measure(high)?;
        }
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            let recall = measure(middle)?;
            if recall >= target { (high, reached) = (middle, recall) } else { low = middle }
        }
        Ok((high, reached))
    }
}
