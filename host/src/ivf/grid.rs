//! Inverted files over several devices: all have the same coarse quantizer and codebooks, and every shard has a part of every list.
//!
//! The master copy in host memory holds all lists once, for any number of devices. The image of a device has the part of its shard
//! ([`View::part`](crate::ivf::View)). Ids, ranks and filters are those of the whole index. Every query probes the same lists on every
//! shard, so all shards have about equal work, even if some lists are popular. After a change each device gets the changed vectors of its part.

use super::{IvfBackend, RowSearch, SearchRequest, View};
use crate::flat::grid as flat;
use crate::neighbors::RangeNeighbors;
use crate::shards::{Grid, Part, check_queries, merge, merge_ranges};
use crate::threads::at_once;
use crate::vectors::with_components;
use crate::{Neighbors, Placement, Result};

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
        let count = with_components!(request.queries, rows: T => check_queries::<T>(places, rows, view.dim))?;
        // Makes the directory once; otherwise all shards would make it at the same time.
        view.directory();
        let (views, parts): (Vec<_>, Vec<_>) = self.parts(view, count)?.into_iter().unzip();
        let mut more = views.iter().skip(1).map(|_| Neighbors::none(metric, count, k)).collect::<Result<Vec<_>>>()?;
        let mut jobs = Vec::new();
        let first = [(&mut *ids, &mut *distances)].into_iter();
        let others = more.iter_mut().map(|found| (found.ids.as_mut_slice(), found.distances.as_mut_slice()));
        for ((shard, parts), (ids, distances)) in parts.into_iter().enumerate().zip(first.chain(others)) {
            jobs.extend(flat::jobs_of(shard, parts, k, ids, distances));
        }
        let done = at_once(jobs, |(shard, part, ids, distances)| {
            let request = request.part(part.queries.clone());
            let backend = &self.grid.places[part.place].backend;
            let found = backend.search(&views[shard], &request, k, ids, distances);
            self.grid.judge(part.place, found)
        });
        done.into_iter().collect::<Result<()>>()?;
        let more: Vec<_> = more.iter().map(|found| (&found.ids, &found.distances)).collect();
        merge(metric, k, ids, distances, &more);
        Ok(())
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
        let parts = self.grid.parts(0, search.queries.len())?;
        let done = at_once(flat::jobs_of(0, parts, k, ids, distances), |(_, part, ids, distances)| {
            let search = RowSearch { queries: search.queries.part(part.queries.clone()), ..search };
            let found = self.grid.places[part.place].backend.search_rows(search, k, ids, distances);
            self.grid.judge(part.place, found)
        });
        done.into_iter().collect()
    }

    fn snapshot(&self) -> Box<dyn IvfBackend> {
        let backends = self.grid.places.iter().map(|place| place.backend.snapshot()).collect();
        Box::new(IvfGrid { grid: self.grid.with(backends) })
    }

    fn describe(&self) -> String {
        self.grid.describe_with(|backend| backend.describe())
    }
}
