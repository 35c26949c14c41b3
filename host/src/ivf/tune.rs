//! The number of lists to search for a given recall of neighbours that the caller has.

use super::{IvfIndex, SearchOptions};
use crate::index::{check_truth, recall, smallest};
use crate::validate::{check_length, check_vectors};
use crate::{Element, Error, Input, Result};

impl<T: Element> IvfIndex<T> {
    /// Returns the smallest number of probes with which searches for the `k` best of `queries` (row-major) reach the
    /// recall `target`, and the recall with this number. `truth` holds the ids of the `k` true neighbours of each
    /// query, and [`NONE`](crate::NONE) in slots without one. The cost is O(log lists) searches of all queries.
    ///
    /// More probes find more true neighbours, so doubling and then bisection find the smallest number. Only with
    /// encodings that keep codes can one more list displace a true neighbour. In this case the result is a number that
    /// reaches the target while the number below it misses the target.
    ///
    /// # Errors
    /// [`Error::RecallOutOfReach`] if a search of all lists misses the target, or the target is not above 0 and at most
    /// 1; [`Error::NoTrueNeighbors`] if no query has a true neighbour, also without queries; [`Error::WrongLength`] if
    /// the length of `truth` is not queries × `k`; and the errors of [`search_with`](Self::search_with).
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
        smallest(self.kind.lists(), target, "a search of all lists", measure)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Device, NONE};
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
        // None of them is a vector of the index.
        let queries: Vec<f32> = random.whole(50 * 3, 50).into_iter().map(|x| x + 0.25).collect();
        let mut index = IvfIndex::<f32>::builder(3, 40).device(Device::Cpu).build().unwrap();
        index.train(&base).unwrap();
        index.add(&base).unwrap();
        let truth = index.search_with(&queries, 5, &SearchOptions::new().probes(40)).unwrap();
        let (probes, reached) = index.tune(&queries, 5, 0.95).unwrap();
        assert_eq!(index.probes(), probes);
        let at = |probes| {
            recall(
                &index.search_with(&queries, 5, &SearchOptions::new().probes(probes)).unwrap().ids,
                5,
                &truth.ids,
                5,
                5,
            )
        };
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
