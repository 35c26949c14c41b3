//! Inverted files over several devices: all have the same coarse quantizer and codebooks, and every shard has a part of
//! every list.
//!
//! The master copy in host memory holds all lists once, for any number of devices. The image of a device has the part
//! of its shard ([`View::part`](crate::ivf::View)). Ids, ranks and filters are those of the whole index. Every query
//! probes the same lists on every shard, so all shards have about equal work, even if some lists are popular. After a
//! change each device gets the changed vectors of its part.

use super::{IvfBackend, RowSearch, SearchRequest, View};
use crate::neighbors::RangeNeighbors;
use crate::shards::{Grid, Part, check_queries, merge_ranges, search_parts};
use crate::threads::at_once;
use crate::vectors::with_components;
use crate::{Placement, Result};

/// Inverted files at the places of a grid.
pub(crate) struct IvfGrid {
    grid: Grid<dyn IvfBackend>,
}

impl IvfGrid {
    /// A grid of `backends`, which are in the order of the places of `placement`.
    pub(crate) fn new(placement: &Placement, backends: Vec<Box<dyn IvfBackend>>) -> Self {
        IvfGrid { grid: Grid::new(placement, backends) }
    }

    /// The shards that have vectors, and the devices that search each part of the queries there.
    fn parts<'a>(&self, view: &View<'a>, queries: usize) -> Result<Vec<(View<'a>, Vec<Part>)>> {
        let shards = self.grid.shards;
        let views = (0..shards).map(|shard| (shard, view.part(shard, shards))).filter(|(_, view)| view.len() > 0);
        views.map(|(shard, view)| Ok((view, self.grid.parts(shard, queries)?))).collect()
    }
}

impl IvfBackend for IvfGrid {
    fn search(
        &self,
        view: &View<'_>,
        request: &SearchRequest<'_>,
        k: usize,
        ids: &mut [u64],
        distances: &mut [f32],
    ) -> Result<()> {
        let metric = view.metric;
        // All queries are checked before any device writes results.
        let places = self.grid.places.len();
        let count =
            with_components!(request.queries, rows: T => check_queries::<T>(places, rows, request.queries.dim()))?;
        // Makes the directory once; otherwise all shards would make it at the same time.
        view.directory();
        let (views, parts): (Vec<_>, Vec<_>) = self.parts(view, count)?.into_iter().unzip();
        let parts = parts.into_iter().enumerate().collect();
        search_parts(metric, k, parts, ids, distances, |shard, part, ids, distances| {
            let request = request.part(part.queries.clone());
            let backend = &self.grid.places[part.place].backend;
            let found = backend.search(&views[shard], &request, k, ids, distances);
            self.grid.judge(part.place, found)
        })
    }

    fn range_search(&self, view: &View<'_>, request: &SearchRequest<'_>, radius: f32) -> Result<RangeNeighbors> {
        let (metric, count) = (view.metric, request.queries.len());
        view.directory();
        let (views, parts): (Vec<_>, Vec<_>) = self.parts(view, count)?.into_iter().unzip();
        let jobs = parts.into_iter().enumerate().flat_map(|(shard, parts)| parts.into_iter().map(move |p| (shard, p)));
        let done = at_once(jobs.collect(), |(shard, part): (usize, Part)| {
            let request = request.part(part.queries.clone());
            let found = self.grid.places[part.place].backend.range_search(&views[shard], &request, radius);
            Ok((part.queries, self.grid.judge(part.place, found)?))
        });
        merge_ranges(metric, count, &done.into_iter().collect::<Result<Vec<_>>>()?)
    }

    /// Any device can search the rows. Those of the first shard do.
    fn search_rows(&self, search: RowSearch<'_>, k: usize, ids: &mut [u64], distances: &mut [f32]) -> Result<()> {
        let parts = vec![(0, self.grid.parts(0, search.request.queries.len())?)];
        search_parts(search.metric, k, parts, ids, distances, |_, part, ids, distances| {
            let search = RowSearch { request: search.request.part(part.queries.clone()), ..search };
            let found = self.grid.places[part.place].backend.search_rows(search, k, ids, distances);
            self.grid.judge(part.place, found)
        })
    }

    fn snapshot(&self) -> Box<dyn IvfBackend> {
        let backends = self.grid.places.iter().map(|place| place.backend.snapshot()).collect();
        Box::new(IvfGrid { grid: self.grid.with(backends) })
    }

    fn describe(&self) -> String {
        self.grid.describe_with(|backend| backend.describe())
    }
}
