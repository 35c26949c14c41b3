//! The searches of an [`IvfIndex`]. This module checks the arguments, once for all devices.

use std::borrow::Cow;

use super::{Bitset, Ivf, IvfIndex, RangeNeighbors, Refiner, SearchOptions, SearchRequest};
use crate::index::private::{Searched, Searching, Stored};
use crate::neighbors::cut_off;
use crate::vectors::VectorSlice;
use crate::{Element, Error, Input, NONE, Neighbors, Result, SearchStatistics};

impl<T: Element> IvfIndex<T> {
    /// As [`search_with_statistics`](Self::search_with_statistics), but finds [`SearchOptions::refine`] · `k`
    /// candidates by what the index keeps of vectors, and ranks them by the original vectors of `refiner`: the results
    /// are the `k` best candidates by (canonical distance from the original vector, lower id). The filter holds for the
    /// candidates. The radius holds for the distances from the original vectors. The cost is that of a search for the
    /// candidates, and O(candidates · (dim + log rows)) on the CPU.
    ///
    /// ```
    /// use warpann::ivf::{Encoding, Refiner};
    /// use warpann::{Device, IvfIndex, Metric, SearchOptions};
    ///
    /// let base: Vec<f32> = (0..600).map(|i| (i as f32 * 0.37).sin()).collect();
    /// let encoding = Encoding::Pq { sub_quantizers: 1, bits: 4, rotate: false };
    /// let mut index = IvfIndex::<f32>::builder(2, 4).encoding(encoding).device(Device::Cpu).build()?;
    /// index.train(&base)?;
    /// index.add(&base)?;
    /// // The id of a vector is its row in `base`.
    /// let refiner = Refiner::new(Metric::L2, 2, &base)?;
    /// let options = SearchOptions::new().probes(4).refine(20);
    /// let (found, statistics) = index.search_refined(&base[10..12], 3, &options, &refiner)?;
    /// assert_eq!((found.ids[0], found.distances[0]), (5, 0.0));
    /// assert_eq!(statistics.refined, 60);
    /// # Ok::<(), warpann::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`search_with`](Self::search_with); [`Error::Zero`]; [`Error::WrongDimension`] and [`Error::Mismatch`] if
    /// index and refiner differ; [`Error::UnknownId`] if the refiner lacks the vector of a candidate;
    /// [`Error::NotFinite`] for a candidate's vector.
    pub fn search_refined(
        &self,
        queries: &[T],
        k: usize,
        options: &SearchOptions<'_>,
        refiner: &Refiner<'_, T>,
    ) -> Result<(Neighbors, SearchStatistics)> {
        options.check_radius()?;
        refiner.check_for(self.dim(), self.metric())?;
        if options.refine == 0 {
            return Err(Error::Zero { what: "refine" });
        }
        let too_large = || Error::ResultTooLarge { queries: queries.len() / self.dim(), k };
        let candidates = k.checked_mul(options.refine).ok_or_else(too_large)?;
        let (rough, mut statistics) = self.search_with_statistics(queries, candidates, &options.radius(None))?;
        statistics.refined = rough.ids.iter().filter(|&&id| id != NONE).count() as u64;
        let mut found = refiner.refine(queries, &rough, k)?;
        cut_off(self.metric(), options.radius, k, &mut found.ids, &mut found.distances);
        Ok((found, statistics))
    }
}

impl<T: Element> Searching for Ivf<T> {
    fn check_queries(&self, _: &[T], call: &'static str) -> Result<()> {
        // The devices find queries that are not finite.
        self.trained_for(call).map(drop)
    }

    fn search<'a>(
        &'a self,
        queries: &[T],
        k: usize,
        options: &SearchOptions<'a>,
        (ids, distances): (&mut [u64], &mut [f32]),
    ) -> Result<Searched<'a>> {
        let view = self.view(self.trained_for("search")?);
        let filter = self.accepted(options)?;
        let request = self.request(queries, options, filter.as_deref())?;
        let count = request.queries.len();
        let mut statistics = SearchStatistics { queries: count as u64, ..SearchStatistics::default() };
        if count == 0 || self.is_empty() {
            request.queries.check_finite(Input::Queries)?;
            ids.fill(NONE);
            distances.fill(self.metric().worst());
            return Ok((statistics, filter));
        }
        let found = match request.filter {
            Some(among) if options.widen || request.probes == self.lists() => {
                self.search_filtered(&view, (&request, queries), among, k, (ids, distances), &mut statistics)
            }
            _ => {
                statistics.read_lists(count, request.probes, self.lists());
                self.backend.search(&view, &request, k, ids, distances)
            }
        };
        request.queries.located(Input::Queries, found)?;
        Ok((statistics, filter))
    }

    fn range_search(&self, queries: &[T], radius: f32, options: &SearchOptions<'_>) -> Result<RangeNeighbors> {
        let trained = self.trained_for("range_search")?;
        let filter = self.accepted(options)?;
        let request = self.request(queries, options, filter.as_deref())?;
        let count = request.queries.len();
        if count == 0 || self.is_empty() {
            request.queries.check_finite(Input::Queries)?;
            return Ok(RangeNeighbors::none(count));
        }
        request.queries.located(Input::Queries, self.backend.range_search(&self.view(trained), &request, radius))
    }

    fn prefixes(&self, options: &SearchOptions<'_>) -> bool {
        // A search that may widen reads more lists if it has fewer than k results.
        options.filter.is_none() || !options.widen
    }

    fn most_effort(&self) -> Option<(usize, &'static str)> {
        // Before an index has trained itself, searches are exact, and probes are for later.
        self.waits_for.is_none().then(|| (self.lists(), "a search of all lists"))
    }

    fn search_all(&self, queries: &[T], k: usize, results: (&mut [u64], &mut [f32])) -> Result<()> {
        self.search(queries, k, &self.with_effort(self.lists()), results).map(drop)
    }

    fn with_effort(&self, probes: usize) -> SearchOptions<'static> {
        SearchOptions::new().probes(probes)
    }

    fn set_effort(&mut self, probes: usize) -> usize {
        self.probes = probes;
        probes
    }

    fn kept(&self, vectors: &[T]) -> Result<Vec<f32>> {
        self.decoded(vectors)
    }
}

impl<T: Element> Ivf<T> {
    /// The ranks of the vectors that a search with these options may return; `None` if it may return all.
    pub(super) fn accepted<'a>(&self, options: &SearchOptions<'a>) -> Result<Option<Cow<'a, Bitset>>> {
        options.filter.map(|filter| self.lists.accepted(filter)).transpose()
    }

    /// The request of whole queries among the [`accepted`](Self::accepted) vectors.
    pub(super) fn request<'a>(
        &self,
        queries: &'a [T],
        options: &SearchOptions<'_>,
        filter: Option<&'a Bitset>,
    ) -> Result<SearchRequest<'a>> {
        let probes = options.probes.unwrap_or(self.probes).min(self.lists());
        if probes == 0 {
            return Err(Error::Zero { what: "probes" });
        }
        let queries = VectorSlice::of(queries, self.dim());
        Ok(SearchRequest { probes, ..SearchRequest::new(queries, options, filter) })
    }
}
