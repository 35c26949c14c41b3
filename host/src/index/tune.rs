//! Recall, and the least effort of searches that reaches one.

use rayon::prelude::*;

use super::{Index, Kind};
use crate::parallel::{Loop, turns};
use crate::{Error, NONE, Neighbors, Result, SearchOptions};

/// The mean over queries of |first `at` found ∩ first `at` true| / |first `at` true|, from 0 to 1: k-recall@k with k =
/// `at`.
///
/// `found` and `truth` hold rows of `k` and `truth_k` ids, one row for each query, best first, with [`NONE`] in slots
/// without a neighbour; `at` is at most `k` and at most `truth_k`. A query without true neighbours is not counted;
/// without queries the recall is 1. O(queries · at · log at).
///
/// ```
/// use warpann::recall;
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

/// # Tuning
impl<K: Kind> Index<K> {
    /// Finds the least effort with which searches for the `k` best of `queries` (row-major) find the share `target` of
    /// the true neighbours: the number of probes of inverted files, the beam of a graph. Makes it the number of the
    /// index, which searches use unless their options set another, and which index files keep. Returns it, and the
    /// share that it finds. An exact index has no such number: the result is 1 and 1.0.
    ///
    /// The true neighbours are those of a search of all lists or of all vectors. A query that is a stored vector would
    /// find itself at no effort, so this vector does not count. For codes, neighbours are those by codes;
    /// [`IvfIndex::probes_for_recall`](crate::IvfIndex::probes_for_recall) takes them from the caller. Queries like
    /// those of later searches give their recall; a hundred or more are enough to estimate .95. The cost is one search
    /// at most effort, and O(log effort) others.
    ///
    /// ```
    /// use warpann::{Device, IvfIndex};
    ///
    /// let base: Vec<f32> = (0..2000).map(|i| (i as f32 * 0.37).sin()).collect();
    /// let mut index = IvfIndex::<f32>::builder(2, 20).device(Device::Cpu).build()?;
    /// index.train(&base)?;
    /// index.add(&base)?;
    /// let (probes, recall) = index.tune(&base[..200], 10, 0.95)?;
    /// assert!(recall >= 0.95 && index.probes() == probes);
    /// # Ok::<(), warpann::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::RecallOutOfReach`] if the target is not above 0 and at most 1, or no effort reaches it;
    /// [`Error::NoTrueNeighbors`] without queries or if the index is empty; the errors of
    /// [`search_with`](Self::search_with). The index is then as it was.
    pub fn tune(&mut self, queries: &[K::Element], k: usize, target: f64) -> Result<(usize, f64)> {
        // One neighbour more, in place of the query itself.
        let more = k.checked_add(1).filter(|_| k > 0).ok_or(if k == 0 {
            Error::Zero { what: "k" }
        } else {
            Error::ResultTooLarge { queries: queries.len() / self.dim(), k }
        })?;
        let Some((most, widest)) = self.kind.most_effort() else {
            let truth = self.search(queries, k)?;
            check_truth(&truth.ids, truth.ids.len() / k, self.len())?;
            return smallest(1, target, "an exact search", |_| Ok(1.0));
        };
        let count = self.check_search(queries, more, &SearchOptions::new())?;
        let mut truth = Neighbors::none(self.metric(), count, more)?;
        self.kind.search_all(queries, more, (&mut truth.ids, &mut truth.distances))?;
        let truth = truth.ids;
        check_truth(&truth, count, self.len())?;
        let own = self.stored_queries(queries, &truth, more)?;
        let truth = without(&truth, more, &own);
        let measure = |effort: usize| -> Result<f64> {
            let found = self.search_with(queries, more, &self.kind.with_effort(effort))?;
            Ok(recall(&without(&found.ids, more, &own), k, &truth, k, k))
        };
        let (effort, reached) = smallest(most, target, widest, measure)?;
        Ok((self.kind.set_effort(effort), reached))
    }

    /// For each query the id among its `more` nearest that has the same vector, as far as the index can tell; [`NONE`]
    /// if there is none.
    fn stored_queries(&self, queries: &[K::Element], nearest: &[u64], more: usize) -> Result<Vec<u64>> {
        let (dim, kept) = (self.dim(), self.kind.kept(queries)?);
        let own = |query: usize| -> Result<u64> {
            for &id in nearest[query * more..][..more].iter().take_while(|&&id| id != NONE) {
                if self.reconstruct(id)? == kept[query * dim..][..dim] {
                    return Ok(id);
                }
            }
            Ok(NONE)
        };
        turns(0..queries.len() / dim).map(own).collect().into_iter().collect()
    }
}

/// Rows of one id fewer: without the id of `own`, or without the last one where it is not in the row.
fn without(rows: &[u64], k: usize, own: &[u64]) -> Vec<u64> {
    let rest = |(row, own): (&[u64], &u64)| {
        let left_out = row.iter().position(|id| id == own && *own != NONE).unwrap_or(k - 1);
        [&row[..left_out], &row[left_out + 1..]].concat()
    };
    rows.chunks(k).zip(own).flat_map(rest).collect()
}

/// Checks that a recall can be measured: that one of `queries` queries has a true neighbour among `vectors` vectors.
/// `truth` holds the ids of the true neighbours, and [`NONE`] in slots without one.
///
/// # Errors
/// [`Error::NoTrueNeighbors`].
pub(crate) fn check_truth(truth: &[u64], queries: usize, vectors: usize) -> Result<()> {
    match truth.iter().all(|&id| id == NONE) {
        true => Err(Error::NoTrueNeighbors { queries, vectors: vectors as u64 }),
        false => Ok(()),
    }
}

/// The smallest number from 1 to `most` that reaches the recall `target`, and its recall, if a greater number has no
/// smaller recall. `widest` names the search with `most` in errors. O(log most) measurements.
///
/// # Errors
/// [`Error::RecallOutOfReach`] if `most` misses the target, or the target is not above 0 and at most 1; the errors of
/// `measure`.
pub(crate) fn smallest(
    most: usize,
    target: f64,
    widest: &'static str,
    measure: impl Fn(usize) -> Result<f64>,
) -> Result<(usize, f64)> {
    if !(target > 0.0 && target <= 1.0) {
        return Err(Error::RecallOutOfReach { target, best: measure(most)?, widest });
    }
    // `low` misses the target (0 finds nothing), `high` reaches it.
    let (mut low, mut high) = (0, 1);
    let mut reached = measure(high)?;
    while reached < target {
        if high == most {
            return Err(Error::RecallOutOfReach { target, best: reached, widest });
        }
        (low, high) = (high, (2 * high).min(most));
        reached = measure(high)?;
    }
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        let recall = measure(middle)?;
        if recall >= target { (high, reached) = (middle, recall) } else { low = middle }
    }
    Ok((high, reached))
}
