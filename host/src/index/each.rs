//! Searches whose queries have filters of their own ([`Filter::Each`]).
//!
//! ```text
//! queries ──by filter──► groups ──one search by the kind──► results of groups ──► results in the order of the queries
//! ```
//!
//! A kind searches all groups in one call, and decides what they share. Results are those of a search for each query
//! under its filter.

use super::private::Searching;
use crate::filter::{FilterGroup, FilterGroups};
use crate::parallel::{Loop, owned};
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
    let results = (&mut found.ids[..], &mut found.distances[..]);
    let statistics = kind.search_groups(sorted, k, &options, &groups, results)?;
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

/// Searches for groups of queries, one search for each group: at the same time if `together`. The places of the groups
/// ascend, and may leave out queries. `options` have no filter.
pub(crate) fn group_by_group<K: Searching>(
    kind: &K,
    queries: &[K::Element],
    k: usize,
    options: &SearchOptions<'_>,
    groups: &[FilterGroup<'_>],
    (mut ids, mut distances): (&mut [u64], &mut [f32]),
    together: bool,
) -> Result<SearchStatistics> {
    let (mut jobs, mut taken) = (Vec::with_capacity(groups.len()), 0);
    for (filter, places) in groups {
        let (skipped, count) = ((places.start - taken) * k, places.len() * k);
        let (own_ids, rest_of_ids) = ids[skipped..].split_at_mut(count);
        let (own_distances, rest_of_distances) = distances[skipped..].split_at_mut(count);
        (ids, distances, taken) = (rest_of_ids, rest_of_distances, places.end);
        let queries = &queries[places.start * kind.dim()..places.end * kind.dim()];
        jobs.push((*filter, queries, own_ids, own_distances));
    }
    let search = |(filter, queries, ids, distances): (Filter<'_>, &[K::Element], &mut [u64], &mut [f32])| {
        let options = SearchOptions { filter: Some(filter), ..*options };
        let (statistics, among) = kind.search(queries, k, &options, (ids, distances))?;
        let accepted = among.map_or(kind.len(), |among| among.count_ones()) as u64;
        Ok(SearchStatistics { accepted: accepted * statistics.queries, ..statistics })
    };
    let mut all = SearchStatistics::default();
    let mut add = |found: Result<SearchStatistics>| found.map(|found| all.add(found));
    if together {
        owned(jobs).map(search).collect().into_iter().try_for_each(&mut add)?;
    } else {
        jobs.into_iter().map(search).try_for_each(&mut add)?;
    }
    Ok(all)
}
