//! The number of lists to search for a given recall, found by measurement.

use rayon::prelude::*;

use super::{IvfIndex, SearchOptions};
use crate::validate::{check_length, check_vectors};
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
    /// [`Error::NoTrueNeighbors`] if no query has a true neighbour, also without queries; [`Error::WrongLength`] if the length of
    /// `truth` is not queries × `k`; and the errors of [`search_with`](Self::search_with).
    pub fn probes_for_recall(&self, queries: &[T], k: usize, truth: &[u64], target: f64) -> Result<(usize, f64)> {
        let count = check_vectors(queries, self.dim(), Input::Queries)?;
        let slots = count.checked_mul(k).ok_or(Error::ResultTooLarge { queries: count, k })?;
        check_length("results", slots, truth.len())?;
        check_truth(truth, count, self.len())?;
        let measure = |probes: usize| -> Result<f64> {
            let options = SearchOptions::new().probes(probes);
            let found = self.search_with(queries, k, &options)?;
            Ok(recall(&found.ids, k, truth, k, k))
        };
        smallest(self.lists(), target, "a search of all lists", measure)
    }

    /// Finds the smallest number of probes with which searches for the `k` best of `queries` (row-major) find the share `target` of the neighbours
    /// that a search of all lists finds. Makes it the number of the index ([`probes`](Self::probes)), which searches use unless their options
    /// set another, and which index files keep. Returns it, and the share that it finds. Encodings of vectors find the true neighbours in all
    /// lists. For encodings of codes, [`probes_for_recall`](Self::probes_for_recall) takes the true neighbours from the caller. The cost is O(log
    /// lists) searches of all queries, and one of all lists.
    ///
    /// Queries like those of later searches give their recall; a hundred or more are enough to estimate .95.
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
    /// [`Error::RecallOutOfReach`] if the target is not above 0 and at most 1; [`Error::NoTrueNeighbors`] without queries or if the index
    /// is empty; the errors of [`search_with`](Self::search_with). The index is then as it was.
    pub fn tune(&mut self, queries: &[T], k: usize, target: f64) -> Result<(usize, f64)> {
        let truth = self.search(queries, k, self.lists())?;
        let (probes, reached) = self.probes_for_recall(queries, k, &truth.ids, target)?;
        self.set_probes(probes)?;
        Ok((probes, reached))
    }
}

/// Checks that a recall can be measured: that one of `queries` queries has a true neighbour among `vectors` vectors. `truth` holds the ids
/// of the true neighbours, and [`NONE`] in slots without one.
///
/// # Errors
/// [`Error::NoTrueNeighbors`].
pub(crate) fn check_truth(truth: &[u64], queries: usize, vectors: usize) -> Result<()> {
    match truth.iter().all(|&id| id == NONE) {
        true => Err(Error::NoTrueNeighbors { queries, vectors: vectors as u64 }),
        false => Ok(()),
    }
}

/// The smallest number from 1 to `most` that reaches the recall `target`, and its recall, if a greater number has no smaller recall.
/// `widest` names the search with `most` in errors. O(log most) measurements.
///
/// # Errors
/// [`Error::RecallOutOfReach`] if `most` misses the target, or the target is not above 0 and at most 1; the errors of `measure`.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Device;
    use test_random::Random;

    #[test]
    fn the_smallest_number_is_found_in_few_measurements() {
        for (most, needed) in [(1, 1), (7, 1), (7, 5), (7, 7), (1000, 333)] {
            let count = std::cell::Cell::new(0);
            let measure = |number: usize| {
                count.set(count.get() + 1);
                Ok(if number >= needed { 0.9 } else { 0.5 })
            };
            assert_eq!(smallest(most, 0.8, "all", measure).unwrap(), (needed, 0.9), "{needed} of {most}");
            assert!(count.get() <= 2 * (most.ilog2() as usize + 1), "{needed} of {most}: {}", count.get());
            let out_of_reach = |target| {
                matches!(smallest(most, target, "all", measure), Err(Error::RecallOutOfReach { best: 0.9, .. }))
            };
            assert!([0.95, 0.0, -1.0, 1.5, f64::NAN].into_iter().all(out_of_reach));
        }
    }

    #[test]
    fn a_tuned_index_keeps_the_smallest_number_of_probes() {
        let mut random = Random::new(5);
        let base = random.whole(2_000 * 3, 50);
        let queries = random.whole(50 * 3, 50);
        let mut index = IvfIndex::<f32>::builder(3, 40).device(Device::Cpu).build().unwrap();
        index.train(&base).unwrap();
        index.add(&base).unwrap();
        let truth = index.search(&queries, 5, 40).unwrap();
        let (probes, reached) = index.tune(&queries, 5, 0.95).unwrap();
        assert_eq!(index.probes(), probes);
        let at = |probes| recall(&index.search(&queries, 5, probes).unwrap().ids, 5, &truth.ids, 5, 5);
        assert!(probes > 1 && at(probes) == reached && reached >= 0.95 && at(probes - 1) < 0.95);
        let loaded = IvfIndex::<f32>::from_bytes(&index.to_bytes().unwrap(), Device::Cpu, None).unwrap();
        assert_eq!(loaded.probes(), probes);
        let error = index.tune(&queries, 5, 2.0).unwrap_err();
        assert!(error.to_string().contains("a search of all lists has 1"), "{error}");
        assert_eq!(index.probes(), probes);
    }

    /// Without a true neighbour every number of probes would have the recall 1, and the smallest would be kept.
    #[test]
    fn an_index_is_not_tuned_without_true_neighbours() {
        let base = Random::new(6).whole(500 * 3, 50);
        let mut index = IvfIndex::<f32>::builder(3, 10).device(Device::Cpu).build().unwrap();
        index.train(&base).unwrap();
        index.set_probes(7).unwrap();
        let none = |queries: usize, vectors: u64, result: Result<(usize, f64)>| {
            let Err(Error::NoTrueNeighbors { queries: q, vectors: v }) = result else { panic!("{result:?}") };
            assert_eq!((q, v), (queries, vectors));
        };
        none(2, 0, index.tune(&base[..6], 5, 0.9));
        index.add(&base).unwrap();
        none(0, 500, index.tune(&[], 5, 0.9));
        none(0, 500, index.probes_for_recall(&[], 5, &[], 0.9));
        none(2, 500, index.probes_for_recall(&base[..6], 5, &[NONE; 10], 0.9));
        assert_eq!(index.probes(), 7);
        index.remove(&(0..500).collect::<Vec<_>>()).unwrap();
        none(2, 0, index.tune(&base[..6], 5, 0.9));
        assert_eq!(index.probes(), 7);
    }
}
