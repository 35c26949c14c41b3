//! A flat index over several devices: every shard has a part of the rows.
//!
//! An addition is divided into one run of rows for each shard, so that the row counts of shards differ by at most one afterwards. So shard
//! s has total / S + (s < total mod S) rows for any sequence of additions, and no row is copied on the host. A shard numbers its rows in
//! the order of their ids, so the lower id is the lower row and ties have the right order. Consecutive runs become one run.

use std::ops::Range;

use super::FlatBackend;
use crate::parallel::{Loop, ParallelSlice};
use crate::shards::{Grid, Part, merge};
use crate::threads::at_once;
use crate::vectors::{VectorSlice, VectorSliceMut};
use crate::{Error, Metric, NONE, Neighbors, Placement, Result};

/// Rows with consecutive ids that are consecutive rows of one shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Run {
    /// Id of the first row.
    id: u64,
    /// Number of the shard.
    shard: usize,
    /// Number of the first row in the shard.
    row: u64,
}

/// The shards and rows of all ids.
#[derive(Debug, Default, Clone)]
struct Runs {
    /// The runs by ascending id.
    by_id: Vec<Run>,
    /// The runs of each shard by ascending row.
    of_shard: Vec<Vec<Run>>,
    len: u64,
}

impl Runs {
    fn new(shards: usize) -> Self {
        Runs { by_id: Vec::new(), of_shard: vec![Vec::new(); shards], len: 0 }
    }

    /// Number of rows that `shard` has if the index has `total`.
    fn rows_of(&self, shard: usize, total: u64) -> u64 {
        let shards = self.of_shard.len() as u64;
        total / shards + u64::from((shard as u64) < total % shards)
    }

    /// The part of `count` new rows that each shard takes, in the order of shards.
    fn cut(&self, count: u64) -> Vec<Range<usize>> {
        let mut end = 0;
        let part = |shard| {
            let start = end;
            end += (self.rows_of(shard, self.len + count) - self.rows_of(shard, self.len)) as usize;
            start..end
        };
        (0..self.of_shard.len()).map(part).collect()
    }

    /// Records the parts that [`Runs::cut`] returned.
    fn append(&mut self, parts: &[Range<usize>]) {
        let before = self.len;
        for (shard, part) in parts.iter().enumerate().filter(|(_, part)| !part.is_empty()) {
            let run = Run { id: before + part.start as u64, shard, row: self.rows_of(shard, before) };
            let continues =
                self.by_id.last().is_some_and(|last| last.shard == shard && last.row + (run.id - last.id) == run.row);
            if !continues {
                self.by_id.push(run);
                self.of_shard[shard].push(run);
            }
        }
        self.len += parts.last().map_or(0, |part| part.end) as u64;
    }

    /// Removes the rows from `len` on.
    fn truncate(&mut self, len: u64) {
        self.by_id.retain(|run| run.id < len);
        self.of_shard.iter_mut().for_each(|runs| runs.retain(|run| run.id < len));
        self.len = len;
    }

    /// The id of row `row` of `shard`.
    fn id(&self, shard: usize, row: u64) -> u64 {
        let runs = &self.of_shard[shard];
        let run = runs[runs.partition_point(|run| run.row <= row) - 1];
        run.id + (row - run.row)
    }

    /// The places of the rows of `ids`: shard and rows of each piece, in order of ids.
    fn pieces(&self, ids: Range<u64>) -> impl Iterator<Item = (usize, Range<u64>)> {
        let first = self.by_id.partition_point(|run| run.id <= ids.start).saturating_sub(1);
        let runs = self.by_id[first..].iter().enumerate().take_while(move |(_, run)| run.id < ids.end);
        runs.map(move |(at, run)| {
            let end = self.by_id.get(first + at + 1).map_or(self.len, |next| next.id).min(ids.end);
            let start = run.id.max(ids.start);
            (run.shard, run.row + (start - run.id)..run.row + (end - run.id))
        })
    }
}

/// The flat indexes of the places of a grid.
pub(crate) struct FlatGrid {
    pub(crate) grid: Grid<dyn FlatBackend>,
    dim: usize,
    metric: Metric,
    runs: Runs,
}

impl FlatGrid {
    /// An empty index over empty `backends`, in the order of `placement`.
    pub(crate) fn new(placement: &Placement, backends: Vec<Box<dyn FlatBackend>>, dim: usize, metric: Metric) -> Self {
        FlatGrid { grid: Grid::new(placement, backends), dim, metric, runs: Runs::new(placement.shards()) }
    }

    /// Removes rows that devices have added since the index had `len` rows.
    fn restore(&mut self, len: u64) {
        for (at, place) in self.grid.places.iter_mut().enumerate() {
            place.backend.truncate(self.runs.rows_of(at % self.grid.shards, len) as usize);
        }
    }

    /// Searches the rows of one shard. The results have the same order, with ids of the index.
    fn search_part(
        &self,
        shard: usize,
        part: &Part,
        queries: VectorSlice<'_>,
        k: usize,
        ids: &mut [u64],
        distances: &mut [f32],
    ) -> Result<()> {
        let queries = queries.part(part.queries.clone());
        let found = self.grid.places[part.place].backend.search(queries, k, ids, distances);
        self.grid.judge(part.place, found)?;
        if self.grid.shards > 1 {
            let named = |id: &mut u64| *id = if *id == NONE { NONE } else { self.runs.id(shard, *id) };
            ids.par_iter_mut().with_min_len(1 << 14).for_each(named);
        }
        Ok(())
    }
}

/// The search of one device: its shard, its part of the queries, and the memory of its results.
type ShardSearch<'a> = (usize, Part, &'a mut [u64], &'a mut [f32]);

/// Divides the results of one shard among its parts.
pub(crate) fn jobs_of<'a>(
    shard: usize,
    parts: Vec<Part>,
    k: usize,
    mut ids: &'a mut [u64],
    mut distances: &'a mut [f32],
) -> Vec<ShardSearch<'a>> {
    let job = |part: Part| {
        let own_ids = ids.split_off_mut(..part.queries.len() * k).unwrap_or_default();
        let own_distances = distances.split_off_mut(..part.queries.len() * k).unwrap_or_default();
        (shard, part, own_ids, own_distances)
    };
    parts.into_iter().map(job).collect()
}

impl FlatBackend for FlatGrid {
    fn add(&mut self, rows: VectorSlice<'_>) -> Result<()> {
        let parts = self.runs.cut(rows.len() as u64);
        let shards = self.grid.shards;
        for (shard, part) in parts.iter().enumerate() {
            let left = self.grid.places.iter().skip(shard).step_by(shards).any(|place| place.alive());
            if !left && !part.is_empty() {
                return Err(Error::ShardLost { shard, replicas: self.grid.places.len() / shards });
            }
        }
        let places = self.grid.places.iter_mut().enumerate();
        let jobs: Vec<_> = places
            .filter(|(at, place)| place.alive() && !parts[at % shards].is_empty())
            .map(|(at, place)| (at, &mut place.backend, parts[at % shards].clone()))
            .collect();
        let added = at_once(jobs, |(at, backend, part)| (at, backend.add(rows.part(part))));
        let mut all = Ok(());
        for (at, result) in added {
            let result = self.grid.judge(at, result);
            all = all.and(result);
        }
        match all {
            Ok(()) => self.runs.append(&parts),
            Err(_) => self.restore(self.runs.len),
        }
        all
    }

    fn search(&self, queries: VectorSlice<'_>, k: usize, ids: &mut [u64], distances: &mut [f32]) -> Result<()> {
        let count = queries.len();
        // If there are fewer rows than shards, the first shards have them.
        let shards = (0..self.grid.shards).take_while(|&shard| self.runs.rows_of(shard, self.runs.len) > 0);
        let parts = shards.map(|shard| self.grid.parts(shard, count)).collect::<Result<Vec<_>>>()?;
        let more = parts.iter().skip(1).map(|_| Neighbors::none(self.metric, count, k));
        let mut more = more.collect::<Result<Vec<_>>>()?;
        let mut jobs = Vec::new();
        let first = [(&mut *ids, &mut *distances)].into_iter();
        let others = more.iter_mut().map(|found| (found.ids.as_mut_slice(), found.distances.as_mut_slice()));
        for ((shard, parts), (ids, distances)) in parts.into_iter().enumerate().zip(first.chain(others)) {
            jobs.extend(jobs_of(shard, parts, k, ids, distances));
        }
        let done =
            at_once(jobs, |(shard, part, ids, distances)| self.search_part(shard, &part, queries, k, ids, distances));
        done.into_iter().collect::<Result<()>>()?;
        let more: Vec<_> = more.iter().map(|found| (&found.ids, &found.distances)).collect();
        merge(self.metric, k, ids, distances, &more);
        Ok(())
    }

    fn truncate(&mut self, len: usize) {
        self.restore(len as u64);
        self.runs.truncate(len as u64);
    }

    fn len(&self) -> usize {
        self.runs.len as usize
    }

    fn rows(&self, first: u64, mut to: VectorSliceMut<'_>) -> Result<()> {
        let row_bytes = to.row_bytes(self.dim);
        let count = to.len(self.dim);
        for (shard, piece) in self.runs.pieces(first..first + count as u64) {
            let place = self.grid.parts(shard, 1)?[0].place;
            let piece_to = to.split_off((piece.end - piece.start) as usize * row_bytes);
            let found = self.grid.places[place].backend.rows(piece.start, piece_to);
            self.grid.judge(place, found)?;
        }
        Ok(())
    }

    fn describe(&self) -> String {
        self.grid.describe_with(|backend| backend.describe())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_spread_evenly_and_every_one_is_found_again() {
        for shards in 1..5 {
            let mut runs = Runs::new(shards);
            // The shard and row of every id, by the parts.
            let mut truth = Vec::new();
            for count in [1, 0, 1, 1, 7, 2, 64, 1, 13] {
                let parts = runs.cut(count);
                let mut lens = vec![0u64; shards];
                truth.iter().for_each(|&(shard, _): &(usize, u64)| lens[shard] += 1);
                for (shard, part) in parts.iter().enumerate() {
                    truth.extend((0..part.len() as u64).map(|at| (shard, lens[shard] + at)));
                }
                runs.append(&parts);
                assert_eq!(runs.len, truth.len() as u64);
                // A truncated addition leaves no trace.
                let before = runs.clone();
                let parts = runs.cut(5);
                runs.append(&parts);
                runs.truncate(before.len);
                assert_eq!((&runs.by_id, &runs.of_shard, runs.len), (&before.by_id, &before.of_shard, before.len));
            }
            let mut lens = vec![0u64; shards];
            for (id, &(shard, row)) in truth.iter().enumerate() {
                assert_eq!(runs.id(shard, row), id as u64);
                assert_eq!(runs.pieces(id as u64..id as u64 + 1).collect::<Vec<_>>(), [(shard, row..row + 1)]);
                lens[shard] += 1;
            }
            assert!(lens.iter().max().unwrap() - lens.iter().min().unwrap() <= 1, "{lens:?}");
            for (start, end) in [(0, 90), (1, 1), (3, 50), (70, 90)] {
                let pieces: Vec<_> =
                    runs.pieces(start..end).flat_map(|(shard, rows)| rows.map(move |row| (shard, row))).collect();
                assert_eq!(pieces, truth[start as usize..end as usize], "{start}..{end}");
            }
        }
    }

    #[test]
    fn a_run_that_goes_on_is_one() {
        let mut runs = Runs::new(1);
        for count in [5, 1, 9] {
            let parts = runs.cut(count);
            runs.append(&parts);
        }
        assert_eq!(runs.by_id, [Run { id: 0, shard: 0, row: 0 }]);
    }
}
