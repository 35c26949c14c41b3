//! Searches: the choice between walks and an exact search, and the walks of a batch.

use super::GraphIndex;
use super::distance::WalkDistance;
use super::gpu::DeviceWalk;
use super::links::Links;
use super::walk::{Walker, node_of};
use crate::neighbors::cut_off;
use crate::neighbors::slots::search_again;
use crate::parallel::{Loop, ParallelSlice};
use crate::product::cpu::Scorer;
use crate::validate::check_results;
use crate::vectors::{VectorSlice, with_components};
use crate::{Bitset, Element, Error, NONE, Neighbors, RangeNeighbors, Result, SearchOptions, SearchStatistics, events};

/// Smallest width of a beam. Narrower ones save little time.
const LEAST_BEAM: usize = 16;

/// What the walks of a batch have in common.
struct Walk<'a> {
    distance: WalkDistance<'a>,
    links: &'a Links,
    width: usize,
    /// The rows that may be results; `None` if all may.
    among: Option<&'a Bitset>,
}

impl<T: Element> GraphIndex<T> {
    /// Finds about the `k` nearest vectors of each query, with the index's beam: see [`search_with`](Self::search_with).
    ///
    /// # Errors
    /// As [`search_with`](Self::search_with).
    pub fn search(&self, queries: &[T], k: usize) -> Result<Neighbors> {
        self.search_with(queries, k, &SearchOptions::new())
    }

    /// Finds about the `k` nearest vectors of each query (`queries`: row-major, `dim` components each), best first, equal distances by lower id.
    /// Of the options, [`SearchOptions::beam`], [`SearchOptions::filter`] and [`SearchOptions::radius`] have an effect. Distances are the canonical
    /// ones of the vectors that are returned; a true neighbour may be missing. A row ends in [`NONE`] only if the index, the filter or the radius
    /// has fewer than `k` vectors.
    ///
    /// If few vectors can be results, the search compares all of them and misses none: see
    /// [`GraphIndexBuilder::exact_ratio`](super::GraphIndexBuilder::exact_ratio).
    ///
    /// # Errors
    /// [`Error::ZeroK`], [`Error::ZeroBeam`], [`Error::RaggedVectors`], [`Error::NotFinite`] with query and column, [`Error::WrongFilterLength`],
    /// [`Error::StaleFilter`], [`Error::BadRadius`], [`Error::ResultTooLarge`], [`Error::OutOfHostMemory`], and those of [`FlatIndex::search`](crate::FlatIndex::search).
    pub fn search_with(&self, queries: &[T], k: usize, options: &SearchOptions<'_>) -> Result<Neighbors> {
        Ok(self.search_with_statistics(queries, k, options)?.0)
    }

    /// As [`search_with`](Self::search_with), and says what the search did.
    ///
    /// # Errors
    /// As [`search_with`](Self::search_with).
    pub fn search_with_statistics(
        &self,
        queries: &[T],
        k: usize,
        options: &SearchOptions<'_>,
    ) -> Result<(Neighbors, SearchStatistics)> {
        let count = self.flat.check_search(queries, k)?;
        let mut found = Neighbors::none(self.metric(), count, k)?;
        let statistics = self.search_checked(queries, k, options, &mut found.ids, &mut found.distances)?;
        Ok((found, statistics))
    }

    /// As [`search_with`](Self::search_with), into the caller's memory: `ids` and `distances` have queries × `k` slots each.
    ///
    /// # Errors
    /// As [`search_with`](Self::search_with); and [`Error::WrongResultLength`] if a slice has another length.
    pub fn search_into(
        &self,
        queries: &[T],
        k: usize,
        options: &SearchOptions<'_>,
        ids: &mut [u64],
        distances: &mut [f32],
    ) -> Result<()> {
        let count = self.flat.check_search(queries, k)?;
        check_results(count, k, ids, distances)?;
        self.search_checked(queries, k, options, ids, distances).map(drop)
    }

    fn search_checked(
        &self,
        queries: &[T],
        k: usize,
        options: &SearchOptions<'_>,
        ids: &mut [u64],
        distances: &mut [f32],
    ) -> Result<SearchStatistics> {
        let beam = options.beam.unwrap_or_else(|| self.beam().max(k.saturating_mul(2)));
        if beam == 0 {
            return Err(Error::ZeroBeam);
        }
        options.check_radius()?;
        let among = self.flat.among(options)?;
        let among = among.as_deref();
        let rows = self.flat.row_ids().rows();
        let accepted = among.map_or(rows, Bitset::count_ones);
        // Of the nodes of a beam, about as large a share is accepted as of all rows.
        let width = beam.max(k).max(LEAST_BEAM).saturating_mul(rows).div_ceil(accepted.max(1)).min(rows);
        let (count, dim) = (queries.len() / self.dim(), self.dim());
        let mut statistics =
            SearchStatistics { queries: count as u64, accepted: accepted as u64, ..SearchStatistics::default() };
        let Some(links) = self.links.as_ref().filter(|_| accepted > self.exact_ratio().saturating_mul(width)) else {
            events::path("graph search", || self.device(), "exact", count);
            if count > 0 && !self.is_empty() {
                statistics.compared_all(count);
            }
            self.flat.search_checked(queries, k, among, ids, distances)?;
            cut_off(self.metric(), options.radius, k, ids, distances);
            return Ok(statistics);
        };
        let walk = Walk { distance: self.walk_distance(), links, width, among };
        let vectors = VectorSlice::of(queries, dim);
        self.walk_all(&walk, vectors, k, ids, distances)?;
        if count > 0 {
            statistics.walked(width);
        }
        // A walk finds too few where the accepted vectors lie far from the query.
        let wanted = k.min(accepted);
        let again: Vec<usize> = (0..count).filter(|query| ids[query * k + wanted - 1] == NONE).collect();
        if !again.is_empty() {
            statistics.compared_all(again.len());
        }
        search_again(vectors, &again, k, (ids, distances), |queries, ids, distances| {
            events::path("graph search", || self.device(), "exact, because a walk found too few", queries.len());
            self.flat.search_checked(queries.components(), k, among, ids, distances)
        })?;
        // The rows that walks found become ids; the exact results have ids already.
        let mut exact_queries = again.iter().peekable();
        for (query, ids) in ids.chunks_exact_mut(k).enumerate() {
            if exact_queries.next_if(|&&again| again == query).is_none() {
                self.flat.row_ids().name(ids);
            }
        }
        cut_off(self.metric(), options.radius, k, ids, distances);
        Ok(statistics)
    }

    /// Fills `ids` (row numbers) and `distances` by walks, k for each query: on the device that has the rows, or on the CPU.
    fn walk_all(
        &self,
        walk: &Walk<'_>,
        queries: VectorSlice<'_>,
        k: usize,
        ids: &mut [u64],
        distances: &mut [f32],
    ) -> Result<()> {
        if let Some(resident) = self.flat.resident_rows() {
            let &Walk { links, width, among, .. } = walk;
            let device = DeviceWalk { resident, links, width, among, k, ranked: ranked(k) };
            if device.fits() {
                events::path("graph search", || self.device(), "walks on the device", queries.len());
                return device.run(&self.device_links, queries, ids, distances);
            }
        }
        events::path("graph search", || self.device(), "walks on the CPU", queries.len());
        walk.all(queries, k, ids, distances);
        Ok(())
    }

    /// Finds all vectors whose distance from a query is at most `radius` (similarity: at least), best first, equal distances by lower id. The
    /// search is exact. Of the options, only [`SearchOptions::filter`] has an effect. O(queries · len · dim).
    ///
    /// # Errors
    /// As [`FlatIndex::range_search`](crate::FlatIndex::range_search).
    pub fn range_search(&self, queries: &[T], radius: f32, options: &SearchOptions<'_>) -> Result<RangeNeighbors> {
        self.flat.range_search(queries, radius, options)
    }
}

/// Number of nodes of a beam that get their canonical distances. The distances of walks are rounded, so these are some more than k.
fn ranked(k: usize) -> usize {
    k.saturating_add(k / 2).saturating_add(16)
}

impl Walk<'_> {
    /// Fills `ids` (row numbers) and `distances`, k for each query.
    fn all(&self, queries: VectorSlice<'_>, k: usize, ids: &mut [u64], distances: &mut [f32]) {
        let slots = ids.par_chunks_exact_mut(k).zip(distances.par_chunks_exact_mut(k)).enumerate();
        slots.for_each_init(Default::default, |state: &mut State, (query, (ids, distances))| {
            self.one(state, queries.part(query..query + 1), ids, distances);
        });
    }

    /// The results of one query.
    fn one(&self, state: &mut State, query: VectorSlice<'_>, ids: &mut [u64], distances: &mut [f32]) {
        let State { walker, found, scratch } = state;
        let metric = self.distance.metric();
        self.distance.query(query, 0, &mut walker.query);
        let beam = walker.walk(&self.distance, self.links, self.width);
        let accepted = |&node: &u32| self.among.is_none_or(|among| among.get(node as usize));
        let nodes = beam.iter().map(|&place| node_of(place)).filter(accepted);
        let ranked = nodes.take(ranked(ids.len()));
        found.clear();
        with_components!(query, components: T => {
            let scorer = Scorer::new(metric, components);
            let (rows, dim): (&[T], usize) = (self.distance.rows().components(), components.len());
            found.extend(ranked.map(|node| (scorer.distance(&rows[node as usize * dim..][..dim], scratch), node)));
        });
        found.sort_unstable_by(|a, b| metric.order(a.0, b.0).then(a.1.cmp(&b.1)));
        ids.fill(NONE);
        distances.fill(metric.worst());
        for ((id, distance), found) in ids.iter_mut().zip(distances).zip(found.iter()) {
            (*id, *distance) = (u64::from(found.1), found.0);
        }
    }
}

/// The memory of searches on one thread.
#[derive(Default)]
struct State {
    walker: Walker,
    found: Vec<(f32, u32)>,
    scratch: Vec<f32>,
}
