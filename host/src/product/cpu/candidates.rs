//! The vectors that may still be among a query's best k.
//!
//! A buffer takes survivors of the scan as (score, id). A full buffer is *thinned*: let E be the largest error bound
//! among its entries. The k-th smallest score + E is a bound U of the k-th best distance, and entries with score > U +
//! E are dropped. (One E for all entries lets the selection run on plain integers.) Too many entries stay if the error
//! bound is large against the differences of the data: a base far from the origin, many duplicates, components near the
//! overflow. Then the buffer is *settled*: canonical distances replace all scores, and the best k stay. So memory is
//! bounded for all data, and the worst case is one canonical distance for every vector of the base.
//!
//! If all scores in the buffer are exact (E = 0), the distances follow from the scores without the vectors.

use std::sync::atomic::{AtomicU32, Ordering};

use super::bound::{QueryBound, ceil_f32};
use crate::Metric;

/// The query and the base, as thinning and settling see them.
pub(crate) trait Judge {
    /// The canonical distance of base vector `id` from this query.
    fn canonical(&mut self, id: u32) -> f32;
    /// Stores the canonical distances of base vectors `ids` in `to`, of the same length; at most [`TOGETHER`].
    fn canonicals(&mut self, ids: &[u32], to: &mut [f32]) {
        ids.iter().zip(to).for_each(|(&id, to)| *to = self.canonical(id));
    }
    /// The id of base vector `id` in results. Of equal distances the lower one wins.
    fn rank(&mut self, id: u32) -> u32 {
        id
    }
    /// The error bound of this query.
    fn bound(&self) -> &QueryBound;
    /// Prefetches base vector `id`, because its canonical distance follows shortly.
    fn prefetch(&mut self, id: u32);
    /// Metric of the distances.
    fn metric(&self) -> Metric;
}

/// The candidates of one query (module documentation).
#[derive(Debug)]
pub(crate) struct Candidates {
    k: usize,
    capacity: usize,
    /// Survivors without a canonical distance: (score, id) as ordered keys.
    scored: Vec<u64>,
    /// Largest error bound in `scored`.
    error: f64,
    /// Candidates with canonical distances: (distance, id) as ordered keys, unsorted. Settling reduces them to k.
    settled: Vec<u64>,
    /// U: at least k vectors have t ≤ this; +∞ while fewer are known.
    limit: f32,
}

impl Candidates {
    /// No candidates yet, for the best `k` of a base of `rows` vectors, `1 <= k <= rows`. Allocates nothing.
    pub(crate) fn new(k: usize, rows: usize) -> Self {
        let capacity = Self::capacity(k, rows);
        Self { k, capacity, scored: Vec::new(), error: 0.0, settled: Vec::new(), limit: f32::INFINITY }
    }

    /// Number of entries of the buffer. With room for k more than k there are about ln(rows / k) thinnings; [`SLACK`]
    /// avoids a thinning for every few survivors if k is small.
    fn capacity(k: usize, rows: usize) -> usize {
        k.saturating_add(k.max(SLACK)).min(rows).max(1)
    }

    /// Largest memory of one query's candidates in bytes.
    pub(crate) fn bytes(k: usize, rows: usize) -> usize {
        Self::capacity(k, rows) * size_of::<u64>() + k * size_of::<u64>() + size_of::<Self>()
    }

    /// The caller must push the vectors of a block with this error bound whose score is at or below this threshold, or
    /// NaN. `shared` is the lowest limit that any thread has found for the query.
    pub(crate) fn threshold(&self, error: f64, shared: &Limit) -> f32 {
        let sum = f64::from(self.limit.min(shared.get())) + error;
        if sum < f64::INFINITY { ceil_f32(sum) } else { f32::INFINITY }
    }

    /// Takes a survivor of a block with this error bound. Returns whether the buffer is full: then the caller must call
    /// [`Self::make_room`].
    #[inline]
    #[must_use]
    pub(crate) fn push(&mut self, score: f32, id: u32, error: f64) -> bool {
        if self.scored.capacity() == 0 {
            self.scored.reserve_exact(self.capacity);
        }
        self.error = self.error.max(error);
        self.scored.push(u64::from(ascending(score)) << 32 | u64::from(id));
        self.scored.len() >= self.capacity
    }

    /// Thins the buffer, and settles it if thinning did not free half of the entries beyond k.
    pub(crate) fn make_room(&mut self, judge: &mut impl Judge, shared: &Limit) {
        self.thin(shared);
        if self.scored.len() > self.k + self.capacity.saturating_sub(self.k) / 2 || self.scored.len() >= self.capacity {
            self.settle(judge, shared);
        }
    }

    /// Drops the entries that cannot be among the best k.
    fn thin(&mut self, shared: &Limit) {
        let mut kept = 0;
        // With an infinite error, where scores may be NaN, no entry is dropped.
        if self.scored.len() > self.k && self.error < f64::INFINITY {
            let (_, last, _) = self.scored.select_nth_unstable(self.k - 1);
            let score = f64::from(from_ascending((*last >> 32) as u32));
            self.lower_limit(ceil_f32(score + self.error), shared);
            kept = self.k;
        }
        let limit = f64::from(self.limit.min(shared.get())) + self.error;
        if limit < f64::INFINITY {
            let limit = u64::from(ascending(ceil_f32(limit))) << 32 | u64::from(u32::MAX);
            if self.limit <= shared.get() {
                // The first k are within this limit, so the loop may start after them.
                let mut end = kept;
                for at in kept..self.scored.len() {
                    let key = self.scored[at];
                    self.scored[end] = key;
                    end += usize::from(key <= limit);
                }
                self.scored.truncate(end);
            } else {
                self.scored.retain(|&key| key <= limit);
            }
        }
    }

    /// Replaces scores by canonical distances, and keeps the best k.
    fn settle(&mut self, judge: &mut impl Judge, shared: &Limit) {
        self.judge_in(0..self.scored.len(), judge);
        self.scored.clear();
        self.error = 0.0;
        self.keep_best();
        if self.settled.len() == self.k
            && let Some(&last) = self.settled.iter().max()
        {
            let score = judge.bound().score_of(distance(judge.metric(), last));
            self.lower_limit(ceil_f32(score), shared);
        }
    }

    fn judge_in(&mut self, range: std::ops::Range<usize>, judge: &mut impl Judge) {
        let metric = judge.metric();
        self.settled.reserve(range.len());
        if self.error == 0.0 {
            let bound = *judge.bound();
            let settle = |&scored: &u64| {
                let score = from_ascending((scored >> 32) as u32);
                key(metric, bound.canonical_of(score), judge.rank(id(scored)))
            };
            self.settled.extend(self.scored[range].iter().map(settle));
            return;
        }
        let (mut ids, mut distances) = ([0; TOGETHER], [0.0; TOGETHER]);
        self.scored[range.clone()].iter().take(TOGETHER).for_each(|&first| judge.prefetch(id(first)));
        for start in range.clone().step_by(TOGETHER) {
            let end = (start + TOGETHER).min(range.end);
            let later = end..(end + TOGETHER).min(range.end);
            self.scored[later].iter().for_each(|&later| judge.prefetch(id(later)));
            let (ids, distances) = (&mut ids[..end - start], &mut distances[..end - start]);
            ids.iter_mut().zip(&self.scored[start..end]).for_each(|(to, &scored)| *to = id(scored));
            judge.canonicals(ids, distances);
            let judged = ids.iter().zip(distances).map(|(&id, &mut distance)| key(metric, distance, judge.rank(id)));
            self.settled.extend(judged);
        }
    }

    fn keep_best(&mut self) {
        if self.settled.len() > self.k {
            self.settled.select_nth_unstable(self.k - 1);
            self.settled.truncate(self.k);
        }
    }

    fn lower_limit(&mut self, limit: f32, shared: &Limit) {
        if limit < self.limit {
            self.limit = limit;
            shared.lower(limit);
        }
    }

    /// Adds the candidates that another thread found in its share of the base.
    pub(crate) fn absorb(&mut self, mut other: Self) {
        if self.scored.len() < other.scored.len() {
            std::mem::swap(&mut self.scored, &mut other.scored);
        }
        self.scored.extend(other.scored);
        self.settled.extend(other.settled);
        self.error = self.error.max(other.error);
        self.limit = self.limit.min(other.limit);
    }

    /// Ends the scan of one query: settles and returns the keys of the best k in ascending order, or of all candidates
    /// if there are fewer. For scans that finish each query separately.
    pub(crate) fn finish(mut self, judge: &mut impl Judge, shared: &Limit) -> Vec<u64> {
        self.thin(shared);
        let (first, last) =
            self.scored.iter().fold((u32::MAX, 0), |(first, last), &key| (first.min(id(key)), last.max(id(key))));
        if self.error > 0.0 && last.saturating_sub(first) > NEAR {
            self.sort_by_id();
        }
        self.judge_in(0..self.scored.len(), judge);
        self.take_best()
    }

    /// Ends the scan before [`Self::settle_below`]: thins the buffer and sorts it by the order of the base. The error
    /// bound must be above 0.
    pub(crate) fn close(&mut self, shared: &Limit) {
        self.thin(shared);
        self.sort_by_id();
    }

    /// Ends the scan and settles the candidates, whose error bound is 0.
    pub(crate) fn close_exact(&mut self, judge: &mut impl Judge, shared: &Limit) {
        self.thin(shared);
        self.judge_in(0..self.scored.len(), judge);
    }

    /// Replaces the entries of the buffer by their ids, in the order of the base. Their scores are lost.
    fn sort_by_id(&mut self) {
        self.scored.iter_mut().for_each(|key| *key = u64::from(id(*key)));
        self.scored.sort_unstable();
    }

    /// Settles the candidates with ids below `end`, after [`Self::close`]. `done` counts the settled candidates and
    /// starts at 0.
    pub(crate) fn settle_below(&mut self, end: u64, done: &mut usize, judge: &mut impl Judge) {
        let count = self.scored[*done..].iter().take_while(|&&id| id < end).count();
        self.judge_in(*done..*done + count, judge);
        *done += count;
    }

    /// The keys of the best k in ascending order, once all candidates are settled; fewer if the base has fewer vectors.
    pub(crate) fn take_best(&mut self) -> Vec<u64> {
        self.keep_best();
        self.settled.sort_unstable();
        std::mem::take(&mut self.settled)
    }
}

/// Number of candidates whose distances are computed together. The rows of the next ones are prefetched meanwhile,
/// because the latency of memory is several times the time of a distance.
pub(crate) const TOGETHER: usize = 8;
/// Candidates whose ids differ by at most this are settled in any order, because sorting them would cost more.
const NEAR: u32 = 4096;
/// Smallest number of entries beyond k. For k = 1 of 1024 rows there are 80 survivors; with 128 entries there are twice
/// as many.
const SLACK: usize = 64;

/// The lowest limit that any thread found for a query. Every value that it ever had is a valid limit, so relaxed order
/// suffices.
#[derive(Debug)]
pub(crate) struct Limit(AtomicU32);

impl Limit {
    /// The limit +∞, which excludes nothing.
    pub(crate) fn new() -> Self {
        Self(AtomicU32::new(ascending(f32::INFINITY)))
    }

    fn get(&self) -> f32 {
        from_ascending(self.0.load(Ordering::Relaxed))
    }

    fn lower(&self, limit: f32) {
        self.0.fetch_min(ascending(limit), Ordering::Relaxed);
    }
}

/// Maps f32 to u32. The order of the integers is that of `f32::total_cmp`.
fn ascending(value: f32) -> u32 {
    let bits = value.to_bits();
    if bits >> 31 == 0 { bits | 1 << 31 } else { !bits }
}

fn from_ascending(bits: u32) -> f32 {
    f32::from_bits(if bits >> 31 == 1 { bits & !(1 << 31) } else { !bits })
}

/// Packs (distance, id) into one integer. In ascending order the best distance is first; of equal distances, the lower
/// id.
pub(crate) fn key(metric: Metric, distance: f32, id: u32) -> u64 {
    let order = ascending(distance);
    u64::from(if metric.larger_is_better() { !order } else { order }) << 32 | u64::from(id)
}

/// The distance of a [`key`].
pub(crate) fn distance(metric: Metric, key: u64) -> f32 {
    let order = (key >> 32) as u32;
    from_ascending(if metric.larger_is_better() { !order } else { order })
}

/// The id of a [`key`], its lower 32 bits.
pub(crate) fn id(key: u64) -> u32 {
    key as u32
}
