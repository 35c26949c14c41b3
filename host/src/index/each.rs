//! Searches whose queries have filters of their own ([`Filter::Each`]).
//!
//! ```text
//! queries ──by filter──► groups ──one search by the kind──► results of groups ──► results in the order of the queries
//! ```
//!
//! A kind whose groups share work searches them in one call; else each group has a search. Results are those of a
//! search for each query under its filter.

use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use super::private::Searching;
use crate::filter::{FilterGroup, FilterGroups};
use crate::search_options::GroupedSearch;
use crate::threads::at_once;
use crate::validate::check_length;
use crate::vectors::VectorSlice;
use crate::{Filter, Input, Neighbors, RangeNeighbors, Result, SearchOptions, SearchStatistics};

/// As [`Searching::search`] with a filter for each query. Fills the results if all queries can be searched.
pub(super) fn search_each<K: Searching>(
    kind: &K,
    queries: &[K::Element],
    k: usize,
    options: &SearchOptions<'_>,
    filters: &[Filter<'_>],
    (ids, distances): (&mut [u64], &mut [f32]),
) -> Result<SearchStatistics> {
    let queries = checked(kind, queries, filters)?;
    let FilterGroups { order, groups } = FilterGroups::new(filters);
    let (options, sorted) = (SearchOptions { filter: None, ..*options }, queries.gather(&order)?);
    let sorted = sorted.as_slice(kind.dim()).components();
    let mut found = Neighbors::none(kind.metric(), order.len(), k)?;
    let search = GroupedSearch { queries: sorted, k, options: &options, groups: &groups };
    let statistics = match kind.search_groups(&search, (&mut found.ids, &mut found.distances))? {
        Some(statistics) => statistics,
        None => group_by_group(kind, &search, (&mut found.ids, &mut found.distances))?,
    };
    for (&query, (row_ids, row_distances)) in order.iter().zip(found.rows()) {
        ids[query * k..][..k].copy_from_slice(row_ids);
        distances[query * k..][..k].copy_from_slice(row_distances);
    }
    Ok(statistics)
}

/// As [`Searching::range_search`] with a filter for each query, one search for each filter.
pub(super) fn range_search_each<K: Searching>(
    kind: &K,
    queries: &[K::Element],
    radius: f32,
    options: &SearchOptions<'_>,
    filters: &[Filter<'_>],
) -> Result<RangeNeighbors> {
    let queries = checked(kind, queries, filters)?;
    let FilterGroups { order, groups } = FilterGroups::new(filters);
    let mut rows: Vec<Vec<(u64, f32)>> = vec![Vec::new(); order.len()];
    for (filter, places) in groups {
        let (of_group, options) = (&order[places], SearchOptions { filter: Some(filter), ..*options });
        let some = queries.gather(of_group)?;
        let found = kind.range_search(some.as_slice(kind.dim()).components(), radius, &options)?;
        for (at, &query) in of_group.iter().enumerate() {
            let (ids, distances) = found.row(at);
            rows[query] = ids.iter().copied().zip(distances.iter().copied()).collect();
        }
    }
    RangeNeighbors::of_rows(&rows, |found| found)
}

/// The queries, which are finite and as many as the filters.
fn checked<'a, K: Searching>(kind: &K, queries: &'a [K::Element], filters: &[Filter<'_>]) -> Result<VectorSlice<'a>> {
    let queries = VectorSlice::of(queries, kind.dim());
    check_length("filters", queries.len(), filters.len())?;
    // Devices would name the place in a group.
    queries.check_finite(Input::Queries)?;
    Ok(queries)
}

/// Number of searches that run at the same time: on a device copies of one overlap kernels of another. On the CPU each
/// search uses all threads, and more searches at a time only compete for the cache. 64 queries of 100,000 × 64 vectors,
/// each with a filter of its own that accepts 1 in 10, on two threads of an AMD EPYC, beside other work, 2026-11-28: an
/// exact index took 37 to 74 ms one search after the other, 26 to 35 with four at a time, and 83 where all shared a
/// pool of threads; inverted files 47 to 56, 30 to 56 and 98.
const AT_ONCE: usize = 4;

/// The slots of some queries: `k` ids and distances for each.
pub(crate) type Slots<'a> = (&'a mut [u64], &'a mut [f32]);

/// The slots of groups, whose places ascend and may leave out queries.
pub(crate) fn slots_of_groups<'a>(
    k: usize,
    groups: impl Iterator<Item = Range<usize>>,
    (mut ids, mut distances): Slots<'a>,
) -> Vec<Slots<'a>> {
    let (mut of_groups, mut taken) = (Vec::new(), 0);
    for places in groups {
        let (skipped, slots) = ((places.start - taken) * k, places.len() * k);
        let (own_ids, rest_of_ids) = ids[skipped..].split_at_mut(slots);
        let (own_distances, rest_of_distances) = distances[skipped..].split_at_mut(slots);
        (ids, distances, taken) = (rest_of_ids, rest_of_distances, places.end);
        of_groups.push((own_ids, own_distances));
    }
    of_groups
}

/// Searches for each of some jobs, a few at a time, and adds up what the searches did.
pub(crate) fn search_all<J: Send>(
    jobs: Vec<J>,
    search: impl Fn(J) -> Result<SearchStatistics> + Sync,
) -> Result<SearchStatistics> {
    let (threads, jobs) = (jobs.len().min(AT_ONCE), Mutex::new(jobs.into_iter()));
    let next = || jobs.lock().unwrap_or_else(PoisonError::into_inner).next();
    let work_off = |()| {
        let mut all = SearchStatistics::default();
        while let Some(job) = next() {
            all.add(search(job)?);
        }
        Ok(all)
    };
    let mut all = SearchStatistics::default();
    for found in at_once(vec![(); threads], work_off) {
        all.add(found?);
    }
    Ok(all)
}

/// A search for each group.
fn group_by_group<K: Searching>(
    kind: &K,
    &GroupedSearch { queries, k, options, groups }: &GroupedSearch<'_, K::Element>,
    results: Slots<'_>,
) -> Result<SearchStatistics> {
    let slots = slots_of_groups(k, groups.iter().map(|(_, places)| places.clone()), results);
    let jobs = groups.iter().zip(slots).collect();
    search_all(jobs, |((filter, places), slots): (&FilterGroup<'_>, Slots<'_>)| {
        let options = SearchOptions { filter: Some(*filter), ..*options };
        let queries = &queries[places.start * kind.dim()..places.end * kind.dim()];
        let (statistics, among) = kind.search(queries, k, &options, slots)?;
        let accepted = among.map_or(kind.len(), |among| among.count_ones()) as u64;
        Ok(SearchStatistics { accepted: accepted * statistics.queries, ..statistics })
    })
}
