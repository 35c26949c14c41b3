//! The searches of an [`IvfIndex`]. This module checks the arguments, once for all devices.

use std::borrow::Cow;
use std::sync::{Mutex, PoisonError};

use super::proof::Bound;
use super::{Bitset, Ivf, IvfIndex, RangeNeighbors, Refiner, SearchOptions, SearchRequest};
use crate::index::private::{Searched, Searching, Stored};
use crate::neighbors::cut_off;
use crate::product::cpu::canonical_square;
use crate::random::gather;
use crate::simd::Isa;
use crate::vectors::VectorSlice;
use crate::{Element, Error, Filter, Input, NONE, Neighbors, Proof, Result, SearchStatistics};

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
    /// # Proof
    /// With [`SearchOptions::prove`] the results are the `k` best of all vectors in the lists that were read, by the
    /// original vectors, as a search of these lists with [`Encoding::Flat`](super::Encoding::Flat) would find them: to
    /// the bit, and with no chance of an error. [`SearchOptions::refine`] is then the number of candidates to begin
    /// with. Codes of [`Encoding::Bits`](super::Encoding::Bits) have a bound of their error. While it leaves room for a
    /// vector that is no candidate, the query is searched again with twice the candidates. More bits need fewer; see
    /// docs/SEARCHES.md. [`SearchStatistics::refined`] counts them, over all passes. [`Proof::Probable`] needs fewer,
    /// and has a chance of an error.
    ///
    /// The original vectors must be those that were added. Where the distance of a candidate contradicts its code, the
    /// call fails.
    ///
    /// ```
    /// use warpann::ivf::{Encoding, Refiner};
    /// use warpann::{Device, IvfIndex, Metric, SearchOptions};
    ///
    /// let base: Vec<f32> = (0..8000).map(|i| (i as f32 * 0.37).sin()).collect();
    /// let [mut codes, mut whole] = [Encoding::Bits { bits: 4 }, Encoding::Flat].map(|encoding| {
    ///     IvfIndex::<f32>::builder(8, 4).encoding(encoding).device(Device::Cpu).build().unwrap()
    /// });
    /// codes.train(&base)?;
    /// whole.train(&base)?;
    /// codes.add(&base)?;
    /// whole.add(&base)?;
    /// let options = SearchOptions::new().probes(4).refine(10).prove(true);
    /// let refiner = Refiner::new(Metric::L2, 8, &base)?;
    /// let (found, _) = codes.search_refined(&base[..80], 3, &options, &refiner)?;
    /// assert_eq!(found, whole.search_with(&base[..80], 3, &options)?);
    /// # Ok::<(), warpann::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`search_with`](Self::search_with); [`Error::BadNumber`]; [`Error::WrongDimension`] and [`Error::Mismatch`]
    /// if index and refiner differ; [`Error::UnknownId`] if the refiner lacks the vector of a candidate;
    /// [`Error::NotFinite`] for a candidate's vector. With a proof also [`Error::Mismatch`] for an encoding whose codes
    /// have no bound, and for vectors that are not those of the index.
    pub fn search_refined(
        &self,
        queries: &[T],
        k: usize,
        options: &SearchOptions<'_>,
        refiner: &Refiner<'_, T>,
    ) -> Result<(Neighbors, SearchStatistics)> {
        options.check_radius()?;
        refiner.check_for(self.dim(), self.metric())?;
        let mut candidates = options.candidates(k)?;
        let proof = match options.prove {
            Proof::None => None,
            proof => Some(self.kind.bound(proof)?),
        };
        let refined = Refined { index: self, refiner, k, radius: options.radius, proof };
        let unlimited = options.radius(None);
        let (mut found, mut statistics, mut open) = refined.pass(queries, candidates, &unlimited)?;
        while !open.is_empty() {
            candidates = candidates.saturating_mul(2).min(self.len());
            let mut still = Vec::new();
            for part in open.chunks((TOGETHER / candidates).max(1)) {
                let of_part = gather(queries, self.dim(), part)?;
                let filters: Vec<Filter<'_>> = match options.filter {
                    Some(Filter::Each(filters)) => part.iter().map(|&row| filters[row]).collect(),
                    _ => Vec::new(),
                };
                let filter = if filters.is_empty() { options.filter } else { Some(Filter::Each(&filters)) };
                let (best, more, rows) = refined.pass(&of_part, candidates, &unlimited.filter(filter))?;
                for ((&row, ids), distances) in part.iter().zip(best.ids.chunks(k)).zip(best.distances.chunks(k)) {
                    found.ids[row * k..][..k].copy_from_slice(ids);
                    found.distances[row * k..][..k].copy_from_slice(distances);
                }
                // These queries have been counted.
                statistics.add(SearchStatistics { queries: 0, accepted: 0, exact_queries: 0, ..more });
                still.extend(rows.into_iter().map(|at| part[at]));
            }
            open = still;
        }
        cut_off(self.metric(), options.radius, k, &mut found.ids, &mut found.distances);
        Ok((found, statistics))
    }
}

/// Number of candidates up to which queries that lack a proof are searched together.
const TOGETHER: usize = 1 << 22;

/// A refined search, whose passes differ in queries and candidates.
struct Refined<'a, T: Element> {
    index: &'a IvfIndex<T>,
    refiner: &'a Refiner<'a, T>,
    k: usize,
    radius: Option<f32>,
    proof: Option<Bound>,
}

impl<T: Element> Refined<'_, T> {
    /// The best of some candidates, statistics, and the rows of the queries that need more candidates for a proof.
    fn pass(
        &self,
        queries: &[T],
        candidates: usize,
        options: &SearchOptions<'_>,
    ) -> Result<(Neighbors, SearchStatistics, Vec<usize>)> {
        let (rough, mut statistics) = self.index.search_with_statistics(queries, candidates, options)?;
        statistics.refined = rough.ids.iter().filter(|&&id| id != NONE).count() as u64;
        self.refiner.check_known(&rough)?;
        let Some(proof) = self.proof else {
            let found = self.refiner.refine_each(queries, &rough, self.k, |_, _| Ok(()))?;
            return Ok((found, statistics, Vec::new()));
        };
        let (isa, dim, metric) = (Isa::detect(), self.index.dim(), self.index.metric());
        let open = Mutex::new(Vec::new());
        let found = self.refiner.refine_each(queries, &rough, self.k, |row, ranked| {
            let length = canonical_square(isa, &queries[row * dim..][..dim]).sqrt();
            if ranked.iter().any(|best| proof.is_contradicted(length, best.distance, best.rough)) {
                let (expected, actual) = ("the vector that was added", "another vector");
                return Err(Error::Mismatch { what: "vector of the refiner", expected, actual });
            }
            let last = (row + 1) * candidates - 1;
            let Some(kth) = ranked.get(self.k - 1).filter(|_| rough.ids[last] != NONE) else { return Ok(()) };
            // A vector beyond the radius is as good as none.
            let kth = [Some(kth.distance), self.radius].into_iter().flatten().min_by(|&a, &b| metric.order(a, b));
            let holds = kth.is_some_and(|kth| proof.holds(length, kth, rough.distances[last]));
            if !holds && candidates < self.index.len() {
                open.lock().unwrap_or_else(PoisonError::into_inner).push(row);
            }
            Ok(())
        })?;
        let mut open = open.into_inner().unwrap_or_else(PoisonError::into_inner);
        open.sort_unstable();
        Ok((found, statistics, open))
    }
}

impl<T: Element> Ivf<T> {
    /// The bound that the codes of all lists give.
    fn bound(&self, proof: Proof) -> Result<Bound> {
        let codec = &self.trained_for("search_refined")?.codec;
        let rest = codec.rest(&[]).and_then(|_| self.lists.rest(&|codes| codec.rest(codes)));
        let (expected, actual) = ("flat or bits", self.settings.encoding.scheme().name());
        let what = "encoding of a search with a proof";
        let rest = rest.ok_or(Error::Mismatch { what, expected, actual })?;
        Ok(Bound::new(self.settings.metric, rest, self.settings.dim, proof))
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
