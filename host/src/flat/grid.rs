//! A flat index over several devices: every shard has a part of the rows.
//!
//! An addition is divided into one run of rows for each shard, so that the row counts of shards become as even as
//! possible. So shard s has total / S + (s < total mod S) rows for any sequence of additions, and no row is copied on
//! the host. A shard numbers its rows in the order of their ids, so the lower id is the lower row and ties have the
//! right order. Consecutive runs become one run.
//!
//! An id here is the number of a row in the whole index. A removal takes rows from each shard, and the ids of the kept
//! rows become consecutive again. Afterwards shards may have different numbers of rows, which later additions make
//! even.

use std::borrow::Cow;
use std::ops::Range;

use super::backend::{FlatBackend, runs_of};
use crate::parallel::{Loop, ParallelSlice};
use crate::search_options::SearchRequest;
use crate::shards::{Grid, merge_ranges, search_parts};
use crate::threads::at_once;
use crate::undo::undone_unless_ok;
use crate::vectors::{VectorBuffer, VectorSlice, VectorSliceMut};
use crate::{Bitset, Error, Metric, NONE, Placement, RangeNeighbors, Result, host_memory};

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
    /// Number of rows of each shard.
    counts: Vec<u64>,
    /// Number of rows of all shards.
    len: u64,
}

impl Runs {
    fn new(shards: usize) -> Self {
        Runs { by_id: Vec::new(), of_shard: vec![Vec::new(); shards], counts: vec![0; shards], len: 0 }
    }

    /// Number of the rows of `shard` whose ids are below `id`.
    fn rows_below(&self, shard: usize, id: u64) -> u64 {
        let runs = &self.of_shard[shard];
        let later = runs.partition_point(|run| run.id < id);
        let end = runs.get(later).map_or(self.counts[shard], |run| run.row);
        runs[..later].last().map_or(0, |run| (run.row + (id - run.id)).min(end))
    }

    /// The part of `count` new rows that each shard takes, in the order of shards.
    fn cut(&self, count: u64) -> Vec<Range<usize>> {
        // A shard that has more rows than `level` takes none. The others are filled up to `level`, and the first of
        // them get one row more until all rows are distributed.
        let total = self.len + count;
        let mut level = total / self.counts.len() as u64;
        let (mut open, mut rest);
        loop {
            let full = self.counts.iter().filter(|&&rows| rows > level);
            open = (self.counts.len() - full.clone().count()) as u64;
            rest = total - full.sum::<u64>();
            if rest / open == level {
                break;
            }
            level = rest / open;
        }
        let mut more = rest % open;
        let mut end = 0;
        let part = |&rows: &u64| {
            let start = end;
            if rows <= level {
                end += (level + u64::from(more > 0) - rows) as usize;
                more = more.saturating_sub(1);
            }
            start..end
        };
        self.counts.iter().map(part).collect()
    }

    /// Records the parts that [`Runs::cut`] returned.
    fn append(&mut self, parts: &[Range<usize>]) {
        parts.iter().enumerate().for_each(|(shard, part)| self.push(shard, part.len() as u64));
    }

    /// Records `count` further rows of `shard`, which have the next ids.
    fn push(&mut self, shard: usize, count: u64) {
        if count == 0 {
            return;
        }
        let run = Run { id: self.len, shard, row: self.counts[shard] };
        let continues =
            self.by_id.last().is_some_and(|last| last.shard == shard && last.row + (run.id - last.id) == run.row);
        if !continues {
            self.by_id.push(run);
            self.of_shard[shard].push(run);
        }
        self.counts[shard] += count;
        self.len += count;
    }

    /// Removes the rows from `len` on.
    fn truncate(&mut self, len: u64) {
        for shard in 0..self.counts.len() {
            self.counts[shard] = self.rows_below(shard, len);
        }
        self.by_id.retain(|run| run.id < len);
        self.of_shard.iter_mut().for_each(|runs| runs.retain(|run| run.id < len));
        self.len = self.len.min(len);
    }

    /// The shard and the ids of each run, in order of ids.
    fn ids(&self) -> impl Iterator<Item = (usize, Range<usize>)> {
        let ends = self.by_id.iter().skip(1).map(|run| run.id).chain([self.len]);
        self.by_id.iter().zip(ends).map(|(run, end)| (run.shard, run.id as usize..end as usize))
    }

    /// The runs of the rows whose bits are set, after the others were removed.
    fn retained(&self, kept: &Bitset) -> Runs {
        let mut runs = Runs::new(self.counts.len());
        self.ids().for_each(|(shard, ids)| runs.push(shard, kept.count_ones_in(ids) as u64));
        runs
    }

    /// The bits of each shard, in the order of its rows. `bits` has one bit for each id.
    fn bits_of_shards<'a>(&self, bits: &'a Bitset) -> Result<Vec<Cow<'a, Bitset>>> {
        if self.counts.len() == 1 {
            return Ok(vec![Cow::Borrowed(bits)]);
        }
        let room = self.counts.iter().map(|&rows| Bitset::with_room(rows as usize));
        let mut of_shards = room.collect::<Result<Vec<_>>>()?;
        self.ids().for_each(|(shard, ids)| of_shards[shard].extend_from(bits, ids));
        Ok(of_shards.into_iter().map(Cow::Owned).collect())
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
            place.backend.truncate(self.runs.rows_below(at % self.grid.shards, len) as usize);
        }
    }

    /// Replaces the rows of `shard` in `ids` by their ids.
    fn name(&self, shard: usize, ids: &mut [u64]) {
        if self.grid.shards > 1 {
            let named = |id: &mut u64| *id = if *id == NONE { NONE } else { self.runs.id(shard, *id) };
            ids.par_iter_mut().with_min_len(1 << 14).for_each(named);
        }
    }

    /// The shards that have rows among which a search may choose, and the bits of all shards.
    fn shards_among<'a>(&self, among: Option<&'a Bitset>) -> Result<(Vec<usize>, ShardBits<'a>)> {
        let bits = ShardBits(among.map(|among| self.runs.bits_of_shards(among)).transpose()?);
        let has_rows = |&shard: &usize| {
            self.runs.counts[shard] > 0 && bits.of(shard).is_none_or(|bits| bits.words().iter().any(|&word| word != 0))
        };
        Ok(((0..self.grid.shards).filter(has_rows).collect(), bits))
    }

    /// Fails with [`Error::ShardLost`] if a shard for which `needed` holds has no place left.
    fn check_left(&self, needed: impl Fn(usize) -> bool) -> Result<()> {
        let shards = self.grid.shards;
        for shard in (0..shards).filter(|&shard| needed(shard)) {
            if !self.grid.places.iter().skip(shard).step_by(shards).any(|place| place.alive()) {
                return Err(Error::ShardLost { shard, replicas: self.grid.places.len() / shards });
            }
        }
        Ok(())
    }

    /// Calls `work` at the same time for all working places of the shards for which `needed` holds, with the shard and
    /// the back end of the place. Returns the number of each place and its result.
    fn at_places<V: Send>(
        &mut self,
        needed: impl Fn(usize) -> bool,
        work: impl Fn(usize, &mut dyn FlatBackend) -> Result<V> + Sync,
    ) -> Vec<(usize, Result<V>)> {
        let shards = self.grid.shards;
        let places = self.grid.places.iter_mut().enumerate();
        let needed = places.filter(|(at, place)| place.alive() && needed(at % shards));
        let jobs = needed.map(|(at, place)| (at, &mut place.backend)).collect();
        let done = at_once(jobs, |(at, backend)| (at, work(at % shards, backend.as_mut())));
        done.into_iter().map(|(at, result)| (at, self.grid.judge(at, result))).collect()
    }

    /// Replaces the rows with these numbers at all working places.
    ///
    /// # Errors
    /// [`Error::OutOfHostMemory`] before any place has changed.
    fn replace_at_places(&mut self, numbers: &[u64], rows: VectorSlice<'_>) -> Result<Vec<(usize, Result<()>)>> {
        // The rows of each shard, and their places in the call.
        let mut of_shards = vec![(Vec::new(), Vec::new()); self.grid.shards];
        for (place, &number) in numbers.iter().enumerate() {
            for (shard, row) in self.runs.pieces(number..number + 1) {
                of_shards[shard].0.push(row.start);
                of_shards[shard].1.push(place);
            }
        }
        let dim = self.dim;
        let gathered = of_shards.into_iter().map(|(own, places)| Ok((own, rows.gather(&places)?)));
        let of_shards: Vec<(Vec<u64>, VectorBuffer)> = gathered.collect::<Result<_>>()?;
        let replace = |shard: usize, backend: &mut dyn FlatBackend| {
            let (numbers, rows) = &of_shards[shard];
            backend.replace(numbers, rows.as_slice(dim))
        };
        Ok(self.at_places(|shard| !of_shards[shard].0.is_empty(), replace))
    }
}

/// The bits of each shard, or `None` for all rows.
struct ShardBits<'a>(Option<Vec<Cow<'a, Bitset>>>);

impl ShardBits<'_> {
    fn of(&self, shard: usize) -> Option<&Bitset> {
        self.0.as_ref().map(|bits| bits[shard].as_ref())
    }
}

impl FlatBackend for FlatGrid {
    fn copied(&self, more: usize) -> Result<Box<dyn FlatBackend>> {
        let parts = self.runs.cut(more as u64);
        let mut backends = Vec::with_capacity(self.grid.places.len());
        // One after the other: a thread for each place made the program of the library's page 8 KB larger.
        for (at, place) in self.grid.places.iter().enumerate() {
            backends.push(if place.alive() {
                self.grid.judge(at, place.backend.copied(parts[at % self.grid.shards].len()))?
            } else {
                // Nothing reads the rows of a device that has failed.
                place.backend.emptied()
            });
        }
        let grid = self.grid.with(backends);
        Ok(Box::new(FlatGrid { grid, dim: self.dim, metric: self.metric, runs: self.runs.clone() }))
    }

    fn emptied(&self) -> Box<dyn FlatBackend> {
        let grid = self.grid.with(self.grid.places.iter().map(|place| place.backend.emptied()).collect());
        Box::new(FlatGrid { grid, dim: self.dim, metric: self.metric, runs: Runs::new(self.grid.shards) })
    }

    fn add(&mut self, rows: VectorSlice<'_>) -> Result<()> {
        let parts = self.runs.cut(rows.len() as u64);
        let takes_rows = |shard: usize| !parts[shard].is_empty();
        self.check_left(takes_rows)?;
        let undo = |grid: &mut Self| grid.restore(grid.runs.len);
        undone_unless_ok(self, undo, |grid| {
            let added = grid.at_places(takes_rows, |shard, backend| backend.add(rows.part(parts[shard].clone())));
            added.into_iter().try_for_each(|(_, result)| result)
        })?;
        self.runs.append(&parts);
        Ok(())
    }

    fn replace(&mut self, numbers: &[u64], rows: VectorSlice<'_>) -> Result<()> {
        let row_bytes = rows.row_bytes();
        // Words of 64 bits, so that the rows are aligned for any element.
        let mut words: Vec<u64> = host_memory::zeroed(rows.bytes().len().div_ceil(size_of::<u64>()))?;
        let old = &mut bytemuck::cast_slice_mut(&mut words)[..rows.bytes().len()];
        for (first, run) in runs_of(numbers) {
            let old = &mut old[run.start * row_bytes..run.end * row_bytes];
            self.rows(first as u64, VectorSliceMut::of_bytes(rows.element(), old))?;
        }
        let all = self.replace_at_places(numbers, rows)?.into_iter().try_for_each(|(_, result)| result);
        if all.is_err() {
            let old = VectorSlice::of_bytes(rows.element(), self.dim, old);
            for (at, restored) in self.replace_at_places(numbers, old)? {
                // Some rows of this place are the old ones and some the new ones.
                if let Err(error) = restored {
                    self.grid.leave_out(at, error);
                }
            }
        }
        all
    }

    /// If some places fail and others do not, the removal goes on: removed rows cannot be brought back. The places that
    /// failed are left out like lost devices, because they still have the removed rows. So an error is returned only if
    /// no place has changed. Should a shard have no place left, later calls fail with [`Error::ShardLost`].
    fn retain(&mut self, kept: &Bitset) -> Result<()> {
        let of_shards = self.runs.bits_of_shards(kept)?;
        let removes: Vec<bool> = of_shards.iter().map(|kept| kept.count_ones() < kept.len()).collect();
        self.check_left(|shard| removes[shard])?;
        let retained = self.at_places(|shard| removes[shard], |shard, backend| backend.retain(&of_shards[shard]));
        let any = retained.iter().any(|(_, result)| result.is_ok());
        for (at, result) in retained {
            if let Err(error) = result {
                if !any {
                    return Err(error);
                }
                self.grid.leave_out(at, error);
            }
        }
        self.runs = self.runs.retained(kept);
        Ok(())
    }

    fn search(&self, request: &SearchRequest<'_>, k: usize, ids: &mut [u64], distances: &mut [f32]) -> Result<()> {
        let (shards, among) = self.shards_among(request.filter)?;
        if shards.is_empty() {
            ids.fill(NONE);
            distances.fill(self.metric.worst());
            return Ok(());
        }
        let parts = shards.into_iter().map(|shard| Ok((shard, self.grid.parts(shard, request.queries.len())?)));
        search_parts(self.metric, k, parts.collect::<Result<_>>()?, ids, distances, |shard, part, ids, distances| {
            let request = SearchRequest { filter: among.of(shard), ..request.part(part.queries.clone()) };
            let found = self.grid.places[part.place].backend.search(&request, k, ids, distances);
            self.grid.judge(part.place, found)?;
            self.name(shard, ids);
            Ok(())
        })
    }

    fn range_search(&self, queries: VectorSlice<'_>, radius: f32, among: Option<&Bitset>) -> Result<RangeNeighbors> {
        let (shards, among) = self.shards_among(among)?;
        let mut jobs = Vec::new();
        for shard in shards {
            jobs.extend(self.grid.parts(shard, queries.len())?.into_iter().map(|part| (shard, part)));
        }
        let done = at_once(jobs, |(shard, part)| {
            let backend = &self.grid.places[part.place].backend;
            let found = backend.range_search(queries.part(part.queries.clone()), radius, among.of(shard));
            let mut found = self.grid.judge(part.place, found)?;
            self.name(shard, &mut found.ids);
            Ok((part.queries, found))
        });
        merge_ranges(self.metric, queries.len(), &done.into_iter().collect::<Result<Vec<_>>>()?)
    }

    fn bytes(&self) -> (u64, u64) {
        let of_places = self.grid.places.iter().map(|place| place.backend.bytes());
        of_places.fold((0, 0), |sum, bytes| (sum.0 + bytes.0, sum.1 + bytes.1))
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
    use crate::Device;
    use crate::flat::cpu::FlatCpu;
    use crate::random::Random;

    const DIM: usize = 3;

    fn cpu(metric: Metric) -> Box<dyn FlatBackend> {
        Box::new(FlatCpu::<f32>::new(DIM, metric, None))
    }

    fn vectors(random: &mut Random, count: usize) -> Vec<f32> {
        (0..count * DIM).map(|_| random.below(7) as f32 - 3.0).collect()
    }

    /// Compares the grid with an index that is made anew from `rows`.
    fn check(grid: &FlatGrid, metric: Metric, rows: &[f32], random: &mut Random) {
        assert_eq!(grid.len() * DIM, rows.len());
        assert_eq!(grid.runs.counts.iter().sum::<u64>(), grid.runs.len);
        for (at, place) in grid.grid.places.iter().enumerate() {
            assert_eq!(place.backend.len() as u64, grid.runs.counts[at % grid.grid.shards]);
        }
        let mut copied = vec![0.0; rows.len()];
        grid.rows(0, VectorSliceMut::of(&mut copied)).unwrap();
        assert_eq!(copied, rows);
        if rows.is_empty() {
            return;
        }
        let mut one = cpu(metric);
        one.add(VectorSlice::of(rows, DIM)).unwrap();
        let queries = vectors(random, 40);
        let queries = VectorSlice::of(&queries, DIM);
        for share in [None, Some(1), Some(2), Some(30), Some(usize::MAX)] {
            let among = share.map(|share| (0..one.len()).map(|_| random.below(share) == 0).collect::<Bitset>());
            let k = 1 + random.below(30);
            let (mut ids, mut distances) = (vec![7; 40 * k], vec![7.0; 40 * k]);
            let (mut ids_of_one, mut distances_of_one) = (vec![8; 40 * k], vec![8.0; 40 * k]);
            let request = SearchRequest { filter: among.as_ref(), ..SearchRequest::among_all(queries) };
            grid.search(&request, k, &mut ids, &mut distances).unwrap();
            one.search(&request, k, &mut ids_of_one, &mut distances_of_one).unwrap();
            assert!(ids == ids_of_one && distances == distances_of_one, "{metric:?}, {} rows, {share:?}", one.len());
            for radius in [distances[random.below(distances.len())], f32::INFINITY, f32::NEG_INFINITY] {
                let found = grid.range_search(queries, radius, among.as_ref()).unwrap();
                assert_eq!(found, one.range_search(queries, radius, among.as_ref()).unwrap());
            }
        }
    }

    #[test]
    fn a_grid_changes_as_one_index_does() {
        let mut random = Random::new(1);
        for (devices, shards) in [(4, 2), (3, 3), (2, 1)] {
            let placement = Placement::new(vec![Device::Cpu; devices], shards).unwrap();
            let metric = Metric::OF_NUMBERS[devices % 3];
            let mut grid = FlatGrid::new(&placement, (0..devices).map(|_| cpu(metric)).collect(), DIM, metric);
            let mut rows = Vec::new();
            for step in 0..24 {
                let len = grid.len();
                match step % 6 {
                    0 | 3 => {
                        let count = [1, 2, 100, 400][random.below(4)];
                        let more = vectors(&mut random, count);
                        grid.add(VectorSlice::of(&more, DIM)).unwrap();
                        if step % 4 == 0 {
                            grid.truncate(len);
                            check(&grid, metric, &rows, &mut random);
                            grid.add(VectorSlice::of(&more, DIM)).unwrap();
                        }
                        rows.extend(more);
                    }
                    1 | 4 => {
                        let first = random.below(len);
                        let count = 1 + random.below(len - first);
                        let new = vectors(&mut random, count);
                        // All rows of the range, or every third.
                        let step = [1, 3][random.below(2)];
                        let numbers: Vec<u64> = (first as u64..(first + count) as u64).step_by(step).collect();
                        let new = &new[..numbers.len() * DIM];
                        grid.replace(&numbers, VectorSlice::of(new, DIM)).unwrap();
                        for (&number, new) in numbers.iter().zip(new.chunks(DIM)) {
                            rows[number as usize * DIM..][..DIM].copy_from_slice(new);
                        }
                    }
                    _ => {
                        // The first rows, which are mostly of one shard, are removed more often than others.
                        let share = [2, 20, 200][random.below(3)];
                        let start = random.below(len + 1);
                        let all = step == 17;
                        let kept: Bitset =
                            (0..len).map(|at| !all && at >= start / 2 && random.below(share) > 0).collect();
                        grid.retain(&kept).unwrap();
                        let mut at = 0..len;
                        let old = std::mem::take(&mut rows);
                        rows = old
                            .chunks(DIM)
                            .filter(|_| at.next().is_some_and(|at| kept.get(at)))
                            .flatten()
                            .copied()
                            .collect();
                        if rows.is_empty() {
                            assert!(grid.runs.by_id.is_empty());
                        }
                    }
                }
                check(&grid, metric, &rows, &mut random);
                if grid.len() == 0 {
                    rows = vectors(&mut random, 50);
                    grid.add(VectorSlice::of(&rows, DIM)).unwrap();
                }
            }
            let of_one = (rows.len() * size_of::<f32>()) as u64;
            assert!(grid.bytes().0 >= of_one * (devices / shards) as u64 && grid.bytes().1 == 0);
        }
    }

    #[test]
    fn additions_even_out_what_removals_left() {
        let mut runs = Runs::new(3);
        runs.append(&runs.cut(30));
        // Shard 0 keeps all of its rows, shard 1 keeps 4 and shard 2 none.
        let kept: Bitset = (0..30).map(|id| id < 14).collect();
        runs = runs.retained(&kept);
        assert_eq!((runs.counts.as_slice(), runs.len), ([10, 4, 0].as_slice(), 14));
        for (count, expected) in
            [(0, [10, 4, 0]), (2, [10, 4, 2]), (3, [10, 5, 4]), (10, [10, 10, 9]), (3, [11, 11, 10])]
        {
            let parts = runs.cut(count);
            assert_eq!(parts.iter().map(|part| part.len() as u64).sum::<u64>(), count);
            assert!(parts[0].start == 0 && parts.windows(2).all(|pair| pair[0].end == pair[1].start));
            runs.append(&parts);
            assert_eq!(runs.counts, expected);
        }
    }

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
