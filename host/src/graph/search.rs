//! Searches: the choice between walks and an exact search, and the walks of a batch.

use std::borrow::Cow;

use super::LinkedVectors;
use super::codes::Distances;
use super::gpu::DeviceWalk;
use super::links::Links;
use super::walk::{Ranks, Walker, key_of, node_of};
use crate::flat::RowSet;
use crate::index::each::{search_all, slots_of_groups};
use crate::index::private::{Searched, Searching, Stored};
use crate::neighbors::slots::search_again;
use crate::parallel::{Loop, ParallelSlice};
use crate::product::cpu::Scorer;
use crate::search_options::{GroupedSearch, SearchRequest};
use crate::vectors::{VectorSlice, with_components};
use crate::{Bitset, Element, Error, Metric, NONE, RangeNeighbors, Result, SearchOptions, SearchStatistics, events};

/// Smallest width of a beam. Narrower ones save little time.
const LEAST_BEAM: usize = 16;

/// The parameters that all walks of a batch share.
struct Walk<'a> {
    distances: Distances<'a>,
    metric: Metric,
    links: &'a Links,
    width: usize,
    /// The request of the batch. The rows of its filter may be results.
    request: SearchRequest<'a>,
    /// The nodes of which one row at least may be a result; `None` if all may.
    nodes: Option<Cow<'a, Bitset>>,
    ranks: Ranks,
}

impl<T: Element> Searching for LinkedVectors<T> {
    fn check_queries(&self, queries: &[T], call: &'static str) -> Result<()> {
        self.flat.check_queries(queries, call)
    }

    fn search<'a>(
        &'a self,
        queries: &[T],
        k: usize,
        options: &SearchOptions<'a>,
        (ids, distances): (&mut [u64], &mut [f32]),
    ) -> Result<Searched<'a>> {
        let accepted = self.flat.among(options)?;
        let request = SearchRequest::new(VectorSlice::of(queries, self.dim()), options, accepted.as_deref());
        let statistics = self.search_request(&request, k, options.beam, (ids, distances))?;
        Ok((statistics, accepted))
    }

    fn search_groups(
        &self,
        &GroupedSearch { queries, k, options, groups }: &GroupedSearch<'_, T>,
        results: (&mut [u64], &mut [f32]),
    ) -> Result<Option<SearchStatistics>> {
        let Some(device) = self.flat.one_device() else { return Ok(None) };
        let accepted = self.flat.accepted_by(groups)?;
        let (mut exact, mut walking) = (Vec::new(), Vec::new());
        for set in RowSet::all(&accepted, groups) {
            let walks = self.width(set.count, k, options.beam)?.is_some();
            (if walks { &mut walking } else { &mut exact }).push(set);
        }
        let (ids, distances) = results;
        let mut statistics = SearchStatistics::default();
        if !exact.is_empty() {
            events::path("graph search", || self.device(), "exact", exact.iter().map(|set| set.queries.len()).sum());
            statistics = self.flat.search_sets(device, queries, k, &exact, (ids, distances))?;
        }
        let slots = slots_of_groups(k, walking.iter().map(|set| set.queries.clone()), (ids, distances));
        let jobs = walking.iter().zip(slots).collect();
        let walked = search_all(jobs, |(set, slots): (&RowSet<'_>, _)| {
            let some = VectorSlice::of(queries, self.dim()).part(set.queries.clone());
            let request = SearchRequest::new(some, options, Some(set.rows));
            let statistics = self.search_request(&request, k, options.beam, slots)?;
            Ok(SearchStatistics { accepted: set.count as u64 * statistics.queries, ..statistics })
        })?;
        statistics.add(walked);
        Ok(Some(statistics))
    }

    fn shares_filters(&self) -> bool {
        self.flat.shares_filters()
    }

    fn range_search(&self, queries: &[T], radius: f32, options: &SearchOptions<'_>) -> Result<RangeNeighbors> {
        self.flat.range_search(queries, radius, options)
    }

    fn prefixes(&self, _options: &SearchOptions<'_>) -> bool {
        // The width of a walk follows from k.
        false
    }

    fn most_effort(&self) -> Option<(usize, &'static str)> {
        Some((self.flat.row_ids().rows(), "a beam of all vectors"))
    }

    fn search_all(&self, queries: &[T], k: usize, results: (&mut [u64], &mut [f32])) -> Result<()> {
        self.flat.search_all(queries, k, results)
    }

    fn with_effort(&self, beam: usize) -> SearchOptions<'static> {
        SearchOptions::new().beam(beam)
    }

    fn set_effort(&mut self, beam: usize) -> usize {
        if self.links().is_some() {
            self.builder.beam = beam.max(LEAST_BEAM);
        }
        self.builder.beam
    }

    fn kept(&self, vectors: &[T]) -> Result<Vec<f32>> {
        self.flat.kept(vectors)
    }
}

impl<T: Element> LinkedVectors<T> {
    fn search_request(
        &self,
        request: &SearchRequest<'_>,
        k: usize,
        beam: Option<usize>,
        (ids, distances): (&mut [u64], &mut [f32]),
    ) -> Result<SearchStatistics> {
        let accepted = request.filter.map_or(self.flat.row_ids().rows(), Bitset::count_ones);
        let walk = self.walk(request, k, beam)?;
        let (vectors, count) = (request.queries, request.queries.len());
        let mut statistics = SearchStatistics { queries: count as u64, ..SearchStatistics::default() };
        let Some(walk) = walk else {
            events::path("graph search", || self.device(), "exact", count);
            if count > 0 && !self.is_empty() {
                statistics.compared_all(count);
            }
            self.flat.search_checked(request, k, ids, distances)?;
            return Ok(statistics);
        };
        self.walk_all(&walk, vectors, k, ids, distances)?;
        if count > 0 {
            statistics.walked(walk.width);
        }
        // A walk finds too few where the accepted vectors lie far from the query.
        let wanted = k.min(accepted);
        let again: Vec<usize> = (0..count).filter(|query| ids[query * k + wanted - 1] == NONE).collect();
        if !again.is_empty() {
            statistics.compared_all(again.len());
        }
        search_again(vectors, &again, k, (ids, distances), |queries, ids, distances| {
            events::path("graph search", || self.device(), "exact, because a walk found too few", queries.len());
            self.flat.search_checked(&SearchRequest { queries, ..*request }, k, ids, distances)
        })?;
        // The rows that walks found become ids; the exact results have ids already.
        let mut exact_queries = again.iter().peekable();
        for (query, ids) in ids.chunks_exact_mut(k).enumerate() {
            if exact_queries.next_if(|&&again| again == query).is_none() {
                self.flat.row_ids().name(ids);
            }
        }
        Ok(statistics)
    }

    /// The width of the walks among `accepted` rows, and their graph; `None` if the search is exact.
    fn width(&self, accepted: usize, k: usize, beam: Option<usize>) -> Result<Option<(usize, &Links)>> {
        let beam = beam.unwrap_or_else(|| self.builder.beam.max(k.saturating_mul(2)));
        if beam == 0 {
            return Err(Error::Zero { what: "beam" });
        }
        let rows = self.flat.row_ids().rows();
        // Of the nodes of a beam, about as large a share is accepted as of all rows.
        let width = beam.max(k).max(LEAST_BEAM).saturating_mul(rows).div_ceil(accepted.max(1)).min(rows);
        let links = self.links().filter(|_| accepted > self.builder.exact_ratio.saturating_mul(width));
        Ok(links.map(|links| (width, links)))
    }

    /// The walks of a search for `k` vectors; `None` if it is exact.
    fn walk<'a>(&'a self, request: &SearchRequest<'a>, k: usize, beam: Option<usize>) -> Result<Option<Walk<'a>>> {
        let among = request.filter;
        let accepted = among.map_or(self.flat.row_ids().rows(), Bitset::count_ones);
        let Some((width, links)) = self.width(accepted, k, beam)? else { return Ok(None) };
        let (nodes, later) = match among {
            Some(among) if !links.twins().is_empty() => {
                let (nodes, later) = links.twins().accepted_nodes(among)?;
                (Some(Cow::Owned(nodes)), later)
            }
            among => (among.map(Cow::Borrowed), 0),
        };
        let (distances, metric) = (self.query_distances(), self.metric());
        let ranks = Ranks::new(k, later, width, distances.codes.is_some());
        Ok(Some(Walk { distances, metric, links, width, request: *request, nodes, ranks }))
    }

    /// The walks of a search on the device that has the rows; `None` if the search is exact, or the device cannot make
    /// them.
    #[cfg(feature = "cuda")]
    pub(super) fn device_walk<'a>(
        &'a self,
        request: &SearchRequest<'a>,
        k: usize,
        beam: Option<usize>,
    ) -> Result<Option<DeviceWalk<'a>>> {
        Ok(self.walk(request, k, beam)?.and_then(|walk| self.walk_on_device(&walk, k)))
    }

    /// Fills `ids` (row numbers) and `distances` by walks, k for each query: on the device that has the rows, or on the
    /// CPU.
    fn walk_all(
        &self,
        walk: &Walk<'_>,
        queries: VectorSlice<'_>,
        k: usize,
        ids: &mut [u64],
        distances: &mut [f32],
    ) -> Result<()> {
        if let Some(device) = self.walk_on_device(walk, k) {
            events::path("graph search", || self.device(), "walks on the device", queries.len());
            return device.run(&self.made.device_links, queries, ids, distances);
        }
        let coded = walk.distances.codes.map(|codes| codes.coder.encoded_queries(queries)).transpose()?;
        events::path("graph search", || self.device(), "walks on the CPU", queries.len());
        let coded = coded.as_ref().map(|(codes, outside)| (VectorSlice::of(codes, queries.dim()), &outside[..]));
        walk.all((queries, coded), k, ids, distances);
        Ok(())
    }

    /// The walks on the device that has the rows, if there is one that can make them.
    fn walk_on_device<'a>(&'a self, walk: &Walk<'a>, k: usize) -> Option<DeviceWalk<'a>> {
        let resident = self.flat.resident_rows()?;
        let &Walk { distances, links, width, request, ref nodes, ranks, .. } = walk;
        Some(DeviceWalk { resident, distances, links, width, request, nodes: nodes.clone(), k, ranks })
            .filter(DeviceWalk::fits)
    }
}

/// Queries as codes, and of each whether it is outside.
type Coded<'a> = (VectorSlice<'a>, &'a [bool]);

impl Walk<'_> {
    /// Fills `ids` (row numbers) and `distances`, k for each query.
    fn all(
        &self,
        (queries, coded): (VectorSlice<'_>, Option<Coded<'_>>),
        k: usize,
        ids: &mut [u64],
        distances: &mut [f32],
    ) {
        let slots = ids.par_chunks_exact_mut(k).zip(distances.par_chunks_exact_mut(k)).enumerate();
        slots.for_each_init(Default::default, |state: &mut State, (query, (ids, distances))| {
            let vector = queries.part(query..query + 1);
            let coded = coded.filter(|(_, outside)| !outside[query]);
            if !coded.is_some_and(|(codes, _)| self.by_codes(state, codes, query, k)) {
                self.by_vectors(state, vector);
            }
            self.rank(state, vector, ids, distances);
        });
    }

    /// Whether the node of a place may be a result.
    fn accepts(&self, place: u64) -> bool {
        self.nodes.as_ref().is_none_or(|nodes| nodes.get(node_of(place) as usize))
    }

    /// Walks by codes, and keeps the nodes that may be among the k best. Returns whether codes can tell which.
    fn by_codes(&self, state: &mut State, codes: VectorSlice<'_>, query: usize, k: usize) -> bool {
        let State { walker, nodes, .. } = state;
        let Some(of_rows) = self.distances.codes else { return false };
        self.distances.fast.query(codes, query, &mut walker.query);
        walker.walk(&self.distances.fast, self.links, self.width);
        if self.distances.cannot_order(walker.beam(), self.width, &walker.query) {
            return false;
        }
        let tolerance = of_rows.tolerance(&walker.query);
        let accepted = || walker.beam().iter().copied().filter(|&place| self.accepts(place));
        let kth = accepted().nth(k - 1).map(key_of);
        let may_be = |&(at, place): &(usize, u64)| {
            at < self.ranks.least || kth.is_none_or(|kth| tolerance.within(kth, key_of(place)))
        };
        nodes.clear();
        nodes.extend(accepted().enumerate().take_while(may_be).map(|(_, place)| node_of(place)));
        nodes.len() <= self.ranks.most
    }

    /// Walks by vectors, and keeps the nearest nodes.
    fn by_vectors(&self, state: &mut State, vector: VectorSlice<'_>) {
        let State { walker, nodes, .. } = state;
        self.distances.exact.query(vector, 0, &mut walker.query);
        walker.walk(&self.distances.exact, self.links, self.width);
        nodes.clear();
        let accepted = walker.beam().iter().copied().filter(|&place| self.accepts(place));
        nodes.extend(accepted.take(self.ranks.most).map(node_of));
    }

    /// The results of one query among the nodes that its walk kept.
    fn rank(&self, state: &mut State, vector: VectorSlice<'_>, ids: &mut [u64], distances: &mut [f32]) {
        let State { nodes, found, scratch, .. } = state;
        let metric = self.metric;
        found.clear();
        with_components!(vector, components: T => {
            let scorer = Scorer::new(metric, components);
            let (rows, dim): (&[T], usize) = (self.distances.exact.rows().components(), components.len());
            let distance = |&node: &u32| (scorer.distance(&rows[node as usize * dim..][..dim], scratch), node);
            found.extend(nodes.iter().map(distance));
        });
        if !self.links.twins().is_empty() {
            // Each node becomes its rows, and k of them are enough.
            let accepted = |&row: &u32| self.request.filter.is_none_or(|among| among.get(row as usize));
            for (distance, node) in std::mem::take(found) {
                let rows = self.links.rows_of(node);
                found.extend(rows.iter().copied().filter(accepted).take(ids.len()).map(|row| (distance, row)));
            }
        }
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
    /// The nodes of the beam that get canonical distances.
    nodes: Vec<u32>,
    found: Vec<(f32, u32)>,
    scratch: Vec<f32>,
}
