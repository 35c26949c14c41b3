//! Searches in an index: their times and their results.

use std::ops::Range;

use warpann::{Error, Index, Kind, NONE, Neighbors, Result, SearchOptions};

use crate::times::{Times, timed};

/// Searches for some queries with one k and some options, and what they found.
pub struct Searches<'a, K: Kind> {
    index: &'a Index<K>,
    queries: &'a [K::Element],
    options: SearchOptions<'a>,
    /// The results of the last search for each query.
    pub found: Neighbors,
}

impl<'a, K: Kind> Searches<'a, K> {
    /// Makes room for the results.
    ///
    /// # Errors
    /// [`Error::ResultTooLarge`].
    pub fn new(
        index: &'a Index<K>,
        queries: &'a [K::Element],
        k: usize,
        options: SearchOptions<'a>,
    ) -> Result<Searches<'a, K>> {
        let count = queries.len() / index.dim().max(1);
        let slots = count.checked_mul(k).ok_or(Error::ResultTooLarge { queries: count, k })?;
        let found = Neighbors { k, ids: vec![NONE; slots], distances: vec![0.0; slots] };
        Ok(Searches { index, queries, options, found })
    }

    /// Searches for some of the queries. Returns the time in milliseconds.
    ///
    /// # Errors
    /// As [`Index::search_into`].
    pub fn search(&mut self, queries: Range<usize>) -> Result<f64> {
        let (dim, Neighbors { k, ids, distances }) = (self.index.dim(), &mut self.found);
        let slots = queries.start * *k..queries.end * *k;
        let (ids, distances) = (&mut ids[slots.clone()], &mut distances[slots]);
        let queries = &self.queries[queries.start * dim..queries.end * dim];
        Ok(timed(|| self.index.search_into(queries, *k, &self.options, ids, distances))?.1)
    }

    /// Searches for all queries twice without measuring, and then `repeat` times.
    ///
    /// # Errors
    /// As [`Index::search_into`].
    pub fn times(&mut self, repeat: usize) -> Result<Times> {
        Times::collect(2, repeat, || self.search(0..self.found.queries()))
    }
}

/// The fraction of queries whose first true neighbour is among the first `at` of `k` found ones. A query without true
/// neighbours does not count. `truth_k` is the number of true neighbours of a query. 1 if no query counts.
pub fn nearest_in(found: &[u64], k: usize, truth: &[u64], truth_k: usize, at: usize) -> f64 {
    let rows = found.chunks_exact(k).zip(truth.chunks_exact(truth_k));
    let known = rows.filter(|(_, truth)| truth[0] != NONE);
    let (hits, all) = known.fold((0usize, 0usize), |(hits, all), (found, truth)| {
        (hits + usize::from(found[..at].contains(&truth[0])), all + 1)
    });
    if all == 0 { 1.0 } else { hits as f64 / all as f64 }
}

#[cfg(test)]
mod tests {
    use warpann::{Device, FlatIndex, Metric};

    use super::*;

    #[test]
    fn searches_find_what_the_index_finds() {
        let mut index = FlatIndex::<f32>::new(1, Metric::L2, Device::Cpu).unwrap();
        index.add(&[0.0, 1.0, 5.0]).unwrap();
        let queries = [0.9, 4.0];
        let mut searches = Searches::new(&index, &queries, 2, SearchOptions::new()).unwrap();
        assert!(searches.search(1..2).unwrap() >= 0.0);
        assert_eq!(searches.found.ids, [NONE, NONE, 2, 1]);
        assert_eq!(searches.times(3).unwrap().milliseconds().len(), 3);
        assert_eq!(searches.found, index.search(&queries, 2).unwrap());
        assert!(Searches::new(&index, &queries, usize::MAX, SearchOptions::new()).is_err());
    }

    #[test]
    fn the_nearest_is_sought_among_the_first() {
        let (found, truth) = ([7, 3, 2, 9, 5, 5], [3, 7, 2, 0, NONE, NONE]);
        assert_eq!([1, 2].map(|at| nearest_in(&found, 2, &truth, 2, at)), [0.5, 1.0]);
        assert_eq!(nearest_in(&found, 2, &[NONE; 6], 2, 1), 1.0);
    }
}
