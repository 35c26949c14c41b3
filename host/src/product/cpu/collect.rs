//! Collectors of the vectors that pass a scan: the k best so far, or all within a radius. [`Collecting`] fills them.

use super::bound::{QueryBound, ceil_f32};
use super::candidates::{Candidates, Judge, Limit, key};
use super::panels::Survivors;
use crate::parallel::{Loop, turns};
use crate::{Metric, Result, host_memory};

/// The vectors that one worker found for one query.
pub(crate) trait Collect: Send + Sized {
    /// The threshold for vectors of a block with this error bound: scores at or below it, and NaN, go to
    /// [`Self::take`].
    fn threshold(&self, bound: &QueryBound, error: f64, limit: &Limit) -> f32;
    /// Takes a vector that passed. Returns whether the threshold may be lower now.
    fn take<J: Judge>(&mut self, score: f32, id: u32, error: f64, limit: &Limit, judge: impl FnOnce() -> J) -> bool;
    /// Adds the vectors that another worker found.
    fn absorb(&mut self, other: Self);
    /// (distance, rank) of all found vectors as keys (see [`key`]), best first.
    ///
    /// # Errors
    /// [`Error::OutOfHostMemory`](crate::Error::OutOfHostMemory) if there was no memory for all of them.
    fn finish(self, limit: &Limit, judge: &mut impl Judge) -> Result<Vec<u64>>;
}

/// Runs `workers` workers at once, each of which returns a collector for every query, and merges what they found.
pub(crate) fn merged<C: Collect>(workers: usize, work: impl Fn() -> Vec<C> + Sync) -> Vec<C> {
    let mut shares: Vec<Vec<C>> = turns(0..workers).with_max_len(1).map(|_| work()).collect();
    let mut merged = shares.pop().unwrap_or_default();
    for share in shares {
        merged.iter_mut().zip(share).for_each(|(merged, share)| merged.absorb(share));
    }
    merged
}

/// The rows of a tile, as the collectors of a scan see them.
pub(crate) trait CollectedTile {
    /// The number in its group of a packed query.
    fn query(&self, packed: usize) -> usize;
    /// The error bound of the rows' scores with a query.
    fn error(&self, bound: &QueryBound) -> f64;
    /// Whether the search may return the row with the id `id` in the tile.
    fn accepts(&self, id: u32) -> bool;
    /// The row with the id `id` in the tile.
    fn row(&self, id: u32) -> u32 {
        id
    }
    /// The judge for a query of the group.
    fn judge(&mut self, query: usize) -> impl Judge;
}

/// Gives the survivors of a tile to the collectors of a group's queries. Each query has a bound, a limit and a
/// collector.
pub(crate) struct Collecting<'a, C, T> {
    pub(crate) bounds: &'a [QueryBound],
    pub(crate) limits: &'a [Limit],
    pub(crate) found: &'a mut [C],
    pub(crate) tile: T,
}

impl<C: Collect, T: CollectedTile> Survivors for Collecting<'_, C, T> {
    #[inline]
    fn threshold(&self, query: usize) -> (f32, f64) {
        let query = self.tile.query(query);
        let bound = &self.bounds[query];
        let error = self.tile.error(bound);
        (self.found[query].threshold(bound, error, &self.limits[query]), error)
    }

    #[inline]
    fn accepts(&self, id: u32) -> bool {
        self.tile.accepts(id)
    }

    #[inline]
    fn take(&mut self, query: usize, id: u32, score: f32, error: f64) -> Option<f32> {
        let query = self.tile.query(query);
        let (found, limit) = (&mut self.found[query], &self.limits[query]);
        let lower = found.take(score, self.tile.row(id), error, limit, || self.tile.judge(query));
        lower.then(|| found.threshold(&self.bounds[query], error, limit))
    }
}

impl Collect for Candidates {
    fn threshold(&self, _: &QueryBound, error: f64, limit: &Limit) -> f32 {
        Candidates::threshold(self, error, limit)
    }

    #[inline]
    fn take<J: Judge>(&mut self, score: f32, id: u32, error: f64, limit: &Limit, judge: impl FnOnce() -> J) -> bool {
        let full = self.push(score, id, error);
        if full {
            self.make_room(&mut judge(), limit);
        }
        full
    }

    fn absorb(&mut self, other: Self) {
        Candidates::absorb(self, other);
    }

    fn finish(self, limit: &Limit, judge: &mut impl Judge) -> Result<Vec<u64>> {
        Ok(Candidates::finish(self, judge, limit))
    }
}

/// Collects all vectors within a radius.
#[derive(Debug)]
pub(crate) struct Ball {
    metric: Metric,
    radius: f32,
    /// Vectors that passed the scan and are not judged yet.
    pending: Vec<u32>,
    /// Keys of judged vectors within the radius.
    found: Vec<u64>,
    /// The error of the first request for memory that was refused. From then on vectors are dropped.
    memory: Result<()>,
}

/// Number of pending vectors that are judged together: few compared with the results, many compared with the cost of a
/// call.
const PENDING: usize = 256;

impl Ball {
    /// Starts without vectors. `radius` is not NaN.
    pub(crate) fn new(metric: Metric, radius: f32) -> Ball {
        Ball { metric, radius, pending: Vec::new(), found: Vec::new(), memory: Ok(()) }
    }

    fn settle(&mut self, judge: &mut impl Judge) {
        self.reserve(self.pending.len());
        if self.memory.is_err() {
            return self.pending.clear();
        }
        for id in self.pending.drain(..) {
            let value = judge.canonical(id);
            let within = self.metric.within(value, self.radius);
            if within {
                self.found.push(key(self.metric, value, judge.rank(id)));
            }
        }
    }

    /// Reserves room for `more` further found vectors.
    fn reserve(&mut self, more: usize) {
        if self.memory.is_ok() {
            self.memory = host_memory::reserve(&mut self.found, more);
        }
    }
}

impl Collect for Ball {
    fn threshold(&self, bound: &QueryBound, error: f64, _: &Limit) -> f32 {
        // A vector within the radius has t at most that of the radius, and a score at most `error` above its t.
        let sum = bound.score_of(self.radius) + error;
        if sum < f64::INFINITY { ceil_f32(sum) } else { f32::INFINITY }
    }

    fn take<J: Judge>(&mut self, _: f32, id: u32, _: f64, _: &Limit, judge: impl FnOnce() -> J) -> bool {
        self.pending.push(id);
        if self.pending.len() >= PENDING {
            self.settle(&mut judge());
        }
        false
    }

    fn absorb(&mut self, mut other: Self) {
        self.pending.append(&mut other.pending);
        self.memory = std::mem::replace(&mut self.memory, Ok(())).and(other.memory);
        self.reserve(other.found.len());
        if self.memory.is_ok() {
            self.found.append(&mut other.found);
        }
    }

    fn finish(mut self, _: &Limit, judge: &mut impl Judge) -> Result<Vec<u64>> {
        self.settle(judge);
        self.memory?;
        self.found.sort_unstable();
        Ok(self.found)
    }
}
