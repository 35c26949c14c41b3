//! How many lists to search: measured, not guessed.

use rayon::prelude::*;

use super::{IvfIndex, SearchOptions};
use crate::validate::check_vectors;
use crate::{Element, Error, Input, NONE, Result};

/// The mean over queries of |first `at` found ∩ first `at` true| / |first `at` true|, from 0 to 1: k-recall@k with k = `at`.
///
/// `found` and `truth` hold rows of `k` and `truth_k` ids, one a query, best first, with [`NONE`] where there is none; `at` is at
/// most either. A query without true neighbours misses nothing and is left out; without queries the recall is 1.
/// O(queries · at · log at).
///
/// ```
/// use warpann::ivf::recall;
///
/// // Two queries; of the first one's two true neighbours one is found.
/// assert_eq!(recall(&[1, 2, 5, 6], 2, &[1, 3, 5, 6], 2, 2), 0.75);
/// assert_eq!(recall(&[1, 2, 5, 6], 2, &[1, 3, 5, 6], 2, 1), 1.0);
/// ```
///
/// # Panics
/// If `at` exceeds `k` or `truth_k`, as slicing does.
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
    /// The smallest number of probes with which the searches for the `k` best of `queries` (row-major) reach the recall `target`,
    /// and the recall that they then have. `truth` holds the ids of the `k` true neighbours of each query, [`NONE`] where there
    /// are fewer. It takes O(log lists) searches of all queries.
    ///
    /// Looking at more lists finds more of the truth, so doubling and halving finds the smallest number. Only with codes for
    /// vectors can a list more push a true neighbour out; then the number reached is one whose predecessor misses the target.
    ///
    /// # Errors
    /// [`Error::RecallOutOfReach`] if all lists together miss the target, or it is not above 0 and at most 1;
    /// [`Error::WrongResultLength`] if `truth` has not queries × `k` ids; as [`search_with`](Self::search_with).
    pub fn probes_for_recall(&self, queries: &[T], k: usize, truth: &[u64], target: f64) -> Result<(usize, f64)> {
        let count = check_vectors(queries, self.dim(), Input::Queries)?;
        let slots = count.checked_mul(k).ok_or(Error::ResultTooLarge { queries: count, k })?;
        if truth.len() != slots {
            return Err(Error::WrongResultLength { expected: slots, actual: truth.len() });
        }
        let measure = |probes: usize| -> Result<f64> {
            let options = SearchOptions { probes: Some(probes), ..SearchOptions::default() };
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
