//! The searches of an [`IvfIndex`]. This module checks the arguments, once for all devices.

use std::borrow::Cow;

use super::{Bitset, IvfIndex, RangeNeighbors, Refiner, SearchOptions, SearchRequest};
use crate::neighbors::cut_off;
use crate::validate::{check_results, check_whole};
use crate::vectors::VectorSlice;
use crate::{Element, Error, Input, NONE, Neighbors, Result, SearchStatistics};

impl<T: Element> IvfIndex<T> {
    /// Finds the `k` best vectors among those in the `probes` nearest lists of each query (`queries`: row-major), best first, equal
    /// distances by lower id. If these lists hold fewer than `k` vectors, the row ends with [`NONE`] and
    /// [`Metric::worst`](crate::Metric::worst). An empty index, no queries, and more probes than lists are allowed.
    ///
    /// # Errors
    /// [`Error::NotTrained`], [`Error::Zero`], [`Error::Ragged`], [`Error::NotFinite`] with query and
    /// column, [`Error::ResultTooLarge`], [`Error::OutOfDeviceMemory`], and errors of the device's driver. With several devices also
    /// [`Error::DeviceFailed`], after which the index works without the device, and [`Error::ShardLost`] when a shard has no device left,
    /// until the index moves to other devices ([`move_to`](Self::move_to)).
    pub fn search(&self, queries: &[T], k: usize, probes: usize) -> Result<Neighbors> {
        self.search_with(queries, k, &SearchOptions::new().probes(probes))
    }

    /// As [`search`](Self::search), with all options. Under a filter it reads more lists, unless [`SearchOptions::widen`] is false.
    ///
    /// # Errors
    /// As [`search`](Self::search), and [`Error::WrongFilterLength`], [`Error::StaleFilter`], [`Error::BadRadius`].
    pub fn search_with(&self, queries: &[T], k: usize, options: &SearchOptions<'_>) -> Result<Neighbors> {
        Ok(self.search_counted(queries, k, options)?.0)
    }

    /// As [`search_with`](Self::search_with), and says what the search did. Counting the accepted vectors takes O(len / 64).
    ///
    /// # Errors
    /// As [`search_with`](Self::search_with).
    pub fn search_with_statistics(
        &self,
        queries: &[T],
        k: usize,
        options: &SearchOptions<'_>,
    ) -> Result<(Neighbors, SearchStatistics)> {
        let (found, statistics, filter) = self.search_counted(queries, k, options)?;
        let accepted = filter.map_or(self.len(), |filter| filter.count_ones()) as u64;
        Ok((found, SearchStatistics { accepted, ..statistics }))
    }

    /// As [`search_with_statistics`](Self::search_with_statistics), but finds [`SearchOptions::refine`] · `k` candidates by what the index keeps of
    /// vectors, and ranks them by the original vectors of `refiner`: the results are the `k` best candidates by (canonical distance from
    /// the original vector, lower id). The filter holds for the candidates. The radius holds for the distances from the original vectors. The
    /// cost is that of a search for the candidates, and O(candidates · (dim + log rows)) on the CPU.
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
    /// As [`search_with`](Self::search_with); [`Error::Zero`]; [`Error::WrongDimension`] and [`Error::WrongMetric`] if index and refiner
    /// differ; [`Error::UnknownId`] if the refiner lacks the vector of a candidate; [`Error::NotFinite`] for a candidate's vector.
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

    /// The results, what the search did, except the number of accepted vectors, and these vectors.
    fn search_counted<'a>(
        &self,
        queries: &'a [T],
        k: usize,
        options: &SearchOptions<'a>,
    ) -> Result<(Neighbors, SearchStatistics, Option<Cow<'a, Bitset>>)> {
        let checked = self.check_search(queries, k, options)?;
        let mut found = Neighbors::none(self.metric(), checked.request.queries.len(), k)?;
        let statistics = self.search_checked(&checked, k, options, &mut found.ids, &mut found.distances)?;
        Ok((found, statistics, checked.filter))
    }

    /// As [`search_with`](Self::search_with), but writes to memory of the caller: `ids` and `distances` hold queries × `k` slots each.
    ///
    /// # Errors
    /// As [`search_with`](Self::search_with), and [`Error::WrongLength`] if a slice has another length.
    pub fn search_into(
        &self,
        queries: &[T],
        k: usize,
        options: &SearchOptions<'_>,
        ids: &mut [u64],
        distances: &mut [f32],
    ) -> Result<()> {
        let checked = self.check_search(queries, k, options)?;
        check_results(checked.request.queries.len(), k, ids, distances)?;
        self.search_checked(&checked, k, options, ids, distances).map(drop)
    }

    fn check_search<'a>(&self, queries: &'a [T], k: usize, options: &SearchOptions<'a>) -> Result<Checked<'a, T>> {
        self.trained_for("search")?;
        if k == 0 {
            return Err(Error::Zero { what: "k" });
        }
        options.check_radius()?;
        self.check_options(queries, options)
    }

    fn search_checked(
        &self,
        checked: &Checked<'_, T>,
        k: usize,
        options: &SearchOptions<'_>,
        ids: &mut [u64],
        distances: &mut [f32],
    ) -> Result<SearchStatistics> {
        let (request, queries) = (&checked.request(), checked.components);
        let count = request.queries.len();
        let mut statistics = SearchStatistics { queries: count as u64, ..SearchStatistics::default() };
        if count == 0 {
            return Ok(statistics);
        }
        if self.is_empty() {
            request.queries.check_finite(Input::Queries)?;
            ids.fill(NONE);
            distances.fill(self.metric().worst());
            return Ok(statistics);
        }
        let view = self.view(self.trained_for("search")?);
        let found = match request.filter {
            Some(filter) if options.widen || request.probes == self.lists() => {
                self.search_filtered(&view, (request, queries), filter, k, (ids, distances), &mut statistics)
            }
            _ => {
                statistics.read_lists(count, request.probes, self.lists());
                self.backend.search(&view, request, k, ids, distances)
            }
        };
        request.queries.located(Input::Queries, found)?;
        cut_off(self.metric(), options.radius, k, ids, distances);
        Ok(statistics)
    }

    /// Finds all vectors in the probed lists of each query whose distance is at most `radius` (similarity: at least).
    ///
    /// # Errors
    /// [`Error::NotTrained`], [`Error::BadRadius`] for NaN, [`Error::Zero`], [`Error::WrongFilterLength`], [`Error::StaleFilter`],
    /// [`Error::Ragged`], [`Error::NotFinite`] with query and column, [`Error::OutOfDeviceMemory`], and errors of the device's
    /// driver.
    pub fn range_search(&self, queries: &[T], radius: f32, options: &SearchOptions<'_>) -> Result<RangeNeighbors> {
        let trained = self.trained_for("range_search")?;
        if radius.is_nan() {
            return Err(Error::BadRadius);
        }
        let checked = self.check_options(queries, options)?;
        let request = checked.request();
        let count = request.queries.len();
        if count == 0 || self.is_empty() {
            request.queries.check_finite(Input::Queries)?;
            return Ok(RangeNeighbors { offsets: vec![0; count + 1], ids: Vec::new(), distances: Vec::new() });
        }
        request.queries.located(Input::Queries, self.backend.range_search(&self.view(trained), &request, radius))
    }

    pub(super) fn check_options<'a>(&self, queries: &'a [T], options: &SearchOptions<'a>) -> Result<Checked<'a, T>> {
        check_whole(queries, self.dim())?;
        let probes = options.probes.unwrap_or(self.probes).min(self.lists());
        if probes == 0 {
            return Err(Error::Zero { what: "probes" });
        }
        let filter = options.filter.map(|filter| self.lists.accepted(filter)).transpose()?;
        let vectors = VectorSlice::of(queries, self.dim());
        let request = SearchRequest { queries: vectors, probes, filter: None, scan: options.scan };
        Ok(Checked { request, components: queries, filter })
    }
}

/// The arguments of a search that were checked.
pub(super) struct Checked<'a, T> {
    /// The request, without the filter.
    request: SearchRequest<'a>,
    /// The components of the queries.
    components: &'a [T],
    /// The ranks of the vectors that the search may return.
    filter: Option<Cow<'a, Bitset>>,
}

impl<T> Checked<'_, T> {
    /// The request, with the filter.
    pub(super) fn request(&self) -> SearchRequest<'_> {
        SearchRequest { filter: self.filter.as_deref(), ..self.request }
    }
}
