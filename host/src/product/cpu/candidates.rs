//! The vectors that may still be among a query's best k.
//!
//! A buffer takes survivors of the scan as (score, id). When full it is thinned: with E the largest error bound among its
//! entries, the k-th smallest score + E is a bound U on the k-th best distance, and whoever has s > U + E is out. (One E for
//! all lets the selection run on plain integers.) If too many stay, because the error bound is wide
//! against the differences of the data (a base far from the origin, many duplicates, components near the overflow), the
//! buffer is *settled*: canonical distances for all of it, of which the best k stay. Thus memory is bounded whatever the
//! data, and the worst case is one canonical distance for every vector of the base.
//!
//! Where all scores in the buffer are exact (E = 0) they are the distances: nothing is computed again.

use std::sync::atomic::{AtomicU32, Ordering};

use super::bound::{QueryBound, ceil_f32};
use crate::Metric;

/// What thinning and settling need to know of the query and the base.
pub(crate) trait Judge {
    /// The canonical distance of base vector `id` from this query.
    fn canonical(&mut self, id: u32) -> f32;
    /// The canonical distances of base vectors `ids`, as many as `to` has room for, at most [`TOGETHER`].
    fn canonicals(&mut self, ids: &[u32], to: &mut [f32]) {
        ids.iter().zip(to).for_each(|(&id, to)| *to = self.canonical(id));
    }
    /// What results name base vector `id` by, and ties are broken by.
    fn rank(&self, id: u32) -> u32 {
        id
    }
    /// The bound of this query.
    fn bound(&self) -> &QueryBound;
    /// Says that [`Judge::canonical`] of `id` will follow shortly.
    fn prefetch(&mut self, id: u32);
    /// The metric.
    fn metric(&self) -> Metric;
}

/// See the module documentation.
#[derive(Debug)]
pub(crate) struct Candidates {
    k: usize,
    capacity: usize,
    /// Scored by the scan, not yet by the definition: (score, id) as ordered keys.
    scored: Vec<u64>,
    /// Largest error bound in `scored`.
    error: f64,
    /// Settled: (distance, id) as ordered keys, at most k, in no order.
    settled: Vec<u64>,
    /// U: at least k vectors have t ≤ this. +∞ until k are known.
    limit: f32,
}

impl Candidates {
    /// For the best `k` of a base of `rows` vectors, `1 <= k <= rows`. No memory is taken yet.
    pub(crate) fn new(k: usize, rows: usize) -> Self {
        let capacity = Self::capacity(k, rows);
        Self { k, capacity, scored: Vec::new(), error: 0.0, settled: Vec::new(), limit: f32::INFINITY }
    }

    /// Entries of the buffer. Slack of k keeps the number of thinnings at about ln(rows / k); [`SLACK`] keeps small k from
    /// thinning for every few survivors.
    fn capacity(k: usize, rows: usize) -> usize {
        k.saturating_add(k.max(SLACK)).min(rows).max(1)
    }

    /// Bytes that a query's candidates take at most.
    pub(crate) fn bytes(k: usize, rows: usize) -> usize {
        Self::capacity(k, rows) * size_of::<u64>() + k * size_of::<u64>() + size_of::<Self>()
    }

    /// Scores at or below this (or NaN) are to be pushed, for vectors of a block with this error bound. `shared` is the
    /// best limit that any thread has found for the query.
    pub(crate) fn threshold(&self, error: f64, shared: &Limit) -> f32 {
        let sum = f64::from(self.limit.min(shared.get())) + error;
        if sum < f64::INFINITY { ceil_f32(sum) } else { f32::INFINITY }
    }

    /// Takes a survivor of a block with this error bound; true where the buffer is now full and [`Self::make_room`] must follow.
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

    /// Thins the buffer, and settles it where that did not free half of the slack.
    pub(crate) fn make_room(&mut self, judge: &mut impl Judge, shared: &Limit) {
        self.thin(shared);
        if self.scored.len() > self.k + self.capacity.saturating_sub(self.k) / 2 || self.scored.len() >= self.capacity {
            self.settle(judge, shared);
        }
    }

    /// Drops whoever cannot be among the best k.
    fn thin(&mut self, shared: &Limit) {
        let mut kept = 0;
        // An infinite error (scores may be NaN) drops nobody.
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
                // The first k are within this query's own limit already.
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

    /// Takes over what another thread found in its share of the base.
    pub(crate) fn absorb(&mut self, mut other: Self) {
        if self.scored.len() < other.scored.len() {
            std::mem::swap(&mut self.scored, &mut other.scored);
        }
        self.scored.extend(other.scored);
        self.settled.extend(other.settled);
        self.error = self.error.max(other.error);
        self.limit = self.limit.min(other.limit);
    }

    /// The scan is over: the keys of the best k in ascending order, fewer only where there are fewer. For scans whose queries
    /// finish alone.
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

    /// The scan is over: drops whoever is out and puts the rest, scored with errors above 0, in the order of the base, for
    /// [`Self::settle_below`].
    pub(crate) fn close(&mut self, shared: &Limit) {
        self.thin(shared);
        self.sort_by_id();
    }

    /// Puts what is scored in the order of the base; scores are lost.
    fn sort_by_id(&mut self) {
        self.scored.iter_mut().for_each(|key| *key = u64::from(id(*key)));
        self.scored.sort_unstable();
    }

    /// After [`Self::close`]: settles the candidates with ids below `end`. `done` counts the settled and starts at 0.
    pub(crate) fn settle_below(&mut self, end: u64, done: &mut usize, judge: &mut impl Judge) {
        let count = self.scored[*done..].iter().take_while(|&&id| id < end).count();
        self.judge_in(*done..*done + count, judge);
        *done += count;
    }

    /// After everything was settled: the keys of the best k in ascending order, fewer only where the base has fewer.
    pub(crate) fn take_best(&mut self) -> Vec<u64> {
        self.keep_best();
        self.settled.sort_unstable();
        std::mem::take(&mut self.settled)
    }
}

/// Candidates judged together, while the rows of as many more are fetched: their latency is several times the time of a distance.
pub(crate) const TOGETHER: usize = 8;
/// Candidates no farther apart than this are judged in any order: sorting them would cost more.
const NEAR: u32 = 4096;
/// Entries that the buffer has beyond k at least. 1 of 1024 rows: 80 survivors; twice as many with 128.
const SLACK: usize = 64;

/// The lowest limit that any thread found for a query. Any value it ever held is a valid limit, so relaxed order will do.
#[derive(Debug)]
pub(crate) struct Limit(AtomicU32);

impl Limit {
    /// No limit yet.
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

/// Maps f32 to u32 so that the order of the integers is `f32::total_cmp`.
fn ascending(value: f32) -> u32 {
    let bits = value.to_bits();
    if bits >> 31 == 0 { bits | 1 << 31 } else { !bits }
}

fn from_ascending(bits: u32) -> f32 {
    f32::from_bits(if bits >> 31 == 1 { bits & !(1 << 31) } else { !bits })
}

/// (distance, id) as one integer: ascending keys are best first, then lower id.
pub(crate) fn key(metric: Metric, distance: f32, id: u32) -> u64 {
    let order = ascending(distance);
    u64::from(if metric.larger_is_better() { !order } else { order }) << 32 | u64::from(id)
}

/// The distance in a key.
pub(crate) fn distance(metric: Metric, key: u64) -> f32 {
    let order = (key >> 32) as u32;
    from_ascending(if metric.larger_is_better() { !order } else { order })
}

/// The id in a key.
pub(crate) fn id(key: u64) -> u32 {
    key as u32
}
