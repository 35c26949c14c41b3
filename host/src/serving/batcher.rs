//! Workers, their limits, and what they did.

use std::fmt;
use std::mem::take;
use std::num::NonZero;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::answer::{Answer, Outcome, Slot, Ticket};
use super::queue::Pending;
use super::request::Request;
use super::waiting_room::WaitingRoom;
use crate::filter::FilterGroups;
use crate::neighbors::cut_off;
use crate::{Element, Error, Filter, Index, IndexReader, Kind, Neighbors, Refusal, Result, SearchOptions};

/// Least number of requests of a full batch, whatever it takes: a smaller one hardly takes less.
const LEAST: usize = 16;
/// Largest number of requests of a batch.
const MOST: usize = 4_096;

/// Processors for one worker, and the limits of the number of workers. On a machine with 16 processors and an H200, a
/// graph answered 1.30 to 1.46 million requests a second by 4 workers and 1.57 to 1.84 by 8; at 80 % of this the p99
/// was 1.1 to 1.5 and .41 to .47 ms. An exact index answered 1.06 million by 4 and .61 and .96 by 8: there, more
/// workers make smaller batches, each of which reads all vectors (2026-11-28).
const PROCESSORS_OF_A_WORKER: usize = 2;
const LEAST_WORKERS: usize = 4;
const MOST_WORKERS: usize = 8;

/// The number of workers for an index, unless the caller has set it. An exact index has the least.
fn workers_for<K: Kind>(index: &Index<K>) -> usize {
    let processors = thread::available_parallelism().map_or(1, NonZero::get);
    let most = if index.kind.most_effort().is_none() { LEAST_WORKERS } else { MOST_WORKERS };
    (processors / PROCESSORS_OF_A_WORKER).clamp(LEAST_WORKERS, most)
}

/// Settings of a [`Batcher`].
///
/// ```
/// use std::time::Duration;
/// use warpann::{BatcherBuilder, Device, FlatIndex, Metric};
///
/// let index = FlatIndex::<f32>::new(2, Metric::L2, Device::Cpu)?;
/// let batcher = BatcherBuilder::new().waiting(1_000).target(Duration::from_millis(5)).serve(index)?;
/// # Ok::<(), warpann::Error>(())
/// ```
#[derive(Debug, Clone, Copy)]
#[must_use]
pub struct BatcherBuilder {
    waiting: usize,
    target: Duration,
    workers: Option<usize>,
}

impl Default for BatcherBuilder {
    fn default() -> Self {
        BatcherBuilder { waiting: 1 << 16, target: Duration::from_millis(2), workers: None }
    }
}

impl BatcherBuilder {
    /// The default settings: 65,536 requests may wait, a target of 2 ms, 4 workers for an exact index, and for others
    /// one for two processors, at least 4 and at most 8.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the largest number of requests that wait. Further ones are refused ([`Refusal::Full`]).
    pub fn waiting(mut self, requests: usize) -> Self {
        self.waiting = requests;
        self
    }

    /// Sets the time from a request to its result that the batcher keeps, as long as no more requests wait than one
    /// batch takes: a batch takes about half of it. A shorter target makes smaller batches, and fewer results a second.
    /// Batches of 16 requests are made even if they take longer.
    pub fn target(mut self, target: Duration) -> Self {
        self.target = target;
        self
    }

    /// Sets the number of searches at once, on a thread each. On a GPU several hide the time of copies and launches; on
    /// the CPU each search uses all cores.
    pub fn workers(mut self, workers: usize) -> Self {
        self.workers = Some(workers);
        self
    }

    /// Starts a batcher for an index, or for the current version of one that an [`IndexWriter`](crate::IndexWriter)
    /// changes. Its workers are threads of its own, also after [`allow_threads`](crate::allow_threads) has turned off
    /// those of the library.
    ///
    /// # Errors
    /// [`Error::Zero`] without workers; [`Error::Thread`] if the system refuses a thread.
    pub fn serve<K: Kind + 'static>(self, index: impl Into<IndexReader<Index<K>>>) -> Result<Batcher<K>> {
        self.serve_part(index.into(), |index| index)
    }

    /// As [`serve`](Self::serve), for the index that is a part of something with versions: a program's own metadata
    /// beside it, for example.
    ///
    /// # Errors
    /// As [`serve`](Self::serve).
    pub fn serve_part<K: Kind + 'static, I: Send + Sync + 'static>(
        self,
        of: IndexReader<I>,
        part: impl Fn(&I) -> &Index<K> + Send + Sync + 'static,
    ) -> Result<Batcher<K>> {
        let workers = self.workers.unwrap_or_else(|| workers_for(part(&of.current())));
        if workers == 0 {
            return Err(Error::Zero { what: "workers" });
        }
        let source = move |visit: &mut dyn FnMut(&Index<K>)| visit(part(&of.current()));
        let shared = Arc::new(Shared {
            source: Box::new(source),
            settings: self,
            workers,
            room: WaitingRoom::new(self.waiting),
            running: AtomicUsize::new(0),
            limit: AtomicUsize::new(LEAST),
            counters: Counters::default(),
        });
        // If a thread cannot start, the drop of the batcher ends the others.
        let batcher = Batcher { shared, workers: Mutex::default() };
        for number in 0..workers {
            let shared = Arc::clone(&batcher.shared);
            let started = thread::Builder::new().name(format!("warpann batcher {number}")).spawn(move || shared.work());
            batcher.workers().push(started.map_err(|source| Error::Thread { source })?);
        }
        Ok(batcher)
    }
}

/// Answers single requests of any number of threads and tasks by searches of many at once.
///
/// ```
/// use warpann::{Batcher, Device, FlatIndex, Metric, Request};
///
/// let mut index = FlatIndex::<f32>::new(1, Metric::L2, Device::Cpu)?;
/// index.add(&[0.0, 1.0, 2.0])?;
/// let batcher = Batcher::new(index)?;
/// // A thread that waits.
/// assert_eq!(batcher.search(Request::new([1.2], 1))?.ids, [1]);
/// // A task that waits: `batcher.submit(request)?.await`. Without a runtime:
/// let answer = batcher.submit(Request::new([1.9], 2))?;
/// assert_eq!(answer.wait()?.ids, [2, 1]);
/// # Ok::<(), warpann::Error>(())
/// ```
///
/// Requests are searched in the order in which they came, together with later ones that the same search can answer:
/// with the same options, a `k` up to the same power of two, and all with a filter or all without. The filters of one
/// search are one, or differ where that costs less than a search for each: on a GPU in exact indexes and
/// graphs. Each result has the bits of [`Index::search_with`] in the version of the index that was current when the
/// search began.
///
/// A batcher that is dropped first answers the requests that it has accepted.
pub struct Batcher<K: Kind> {
    shared: Arc<Shared<K>>,
    workers: Mutex<Vec<JoinHandle<()>>>,
}

/// Calls a function with the current version of the index.
type Source<K> = Box<dyn Fn(&mut dyn FnMut(&Index<K>)) + Send + Sync>;

struct Shared<K: Kind> {
    source: Source<K>,
    settings: BatcherBuilder,
    /// Largest number of searches at once.
    workers: usize,
    room: WaitingRoom<K::Element>,
    /// Number of searches that run.
    running: AtomicUsize,
    /// Largest number of requests of the next batch.
    limit: AtomicUsize,
    counters: Counters,
}

#[derive(Default)]
struct Counters {
    answered: AtomicU64,
    failed: AtomicU64,
    expired: AtomicU64,
    full: AtomicU64,
    cancelled: AtomicU64,
    searches: AtomicU64,
}

/// The numbers of a [`Batcher`] since it was made. Each request that was accepted counts once in `answered`, `failed`,
/// `expired` or `cancelled` a moment after it ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct BatcherStatistics {
    /// Requests that got their results.
    pub answered: u64,
    /// Requests that ended in an error of the search, or in a panic of their filter.
    pub failed: u64,
    /// Requests that were refused because their deadline passed before their search began.
    pub expired: u64,
    /// Requests that nobody waited for any more: before their search began, or when it ended.
    pub cancelled: u64,
    /// Requests that were refused because too many were waiting. They were not accepted.
    pub full: u64,
    /// Searches of one request or more.
    pub searches: u64,
    /// Requests that wait now.
    pub waiting: usize,
    /// Searches that run now.
    pub running: usize,
    /// Largest number of requests of the next search.
    pub limit: usize,
}

impl<K: Kind + 'static> Batcher<K> {
    /// Starts a batcher with the default settings: see [`BatcherBuilder::serve`].
    ///
    /// # Errors
    /// As [`BatcherBuilder::serve`].
    pub fn new(index: impl Into<IndexReader<Index<K>>>) -> Result<Self> {
        BatcherBuilder::new().serve(index)
    }
}

impl<K: Kind> Batcher<K> {
    /// Accepts a request and returns at once. The search begins when a worker is free and the older requests have
    /// begun.
    ///
    /// # Errors
    /// [`Error::Refused`] if too many requests wait, the deadline has passed, or the batcher closes; of the request's
    /// own faults those that need no search: [`Error::Zero`], [`Error::BadNumber`], [`Error::WrongDimension`],
    /// [`Error::NotFinite`], [`Error::NotTrained`].
    pub fn submit(&self, request: Request<K::Element>) -> Result<Answer> {
        let shares_filters = self.shared.check(&request)?;
        self.enqueue(request, shares_filters)
    }

    /// Answers a request and waits for it. While a place for a search is free and no request waits, the search runs on
    /// this thread.
    ///
    /// # Errors
    /// As [`submit`](Self::submit) and [`Answer::wait`].
    ///
    /// # Panics
    /// With the panic of a filter function of the request.
    pub fn search(&self, request: Request<K::Element>) -> Result<Neighbors> {
        let shares_filters = self.shared.check(&request)?;
        match self.shared.place_for_caller()? {
            Some(place) => {
                let counters = &self.shared.counters;
                counters.searches.fetch_add(1, Ordering::Relaxed);
                let outcome = self.shared.search_alone(&request);
                drop(place);
                counters.ended(&outcome);
                super::answer::unwrapped(outcome)
            }
            None => self.enqueue(request, shares_filters)?.wait(),
        }
    }

    /// Puts a request that was checked into the queue.
    fn enqueue(&self, request: Request<K::Element>, shares_filters: bool) -> Result<Answer> {
        let slot = Slot::new(request.deadline);
        let answer = Answer { slot: Arc::clone(&slot) };
        self.shared.push(Pending { request, slot: Ticket(slot), shares_filters })?;
        Ok(answer)
    }

    /// Counts of requests and searches until now. O(1).
    pub fn statistics(&self) -> BatcherStatistics {
        let Counters { answered, failed, expired, full, cancelled, searches } = &self.shared.counters;
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        BatcherStatistics {
            answered: of(answered),
            failed: of(failed),
            expired: of(expired),
            cancelled: of(cancelled),
            full: of(full),
            searches: of(searches),
            waiting: self.shared.room.len(),
            running: self.shared.running.load(Ordering::Relaxed),
            limit: self.shared.limit.load(Ordering::Relaxed),
        }
    }

    /// Refuses further requests ([`Refusal::Closed`]), and returns when the workers have answered all that were
    /// accepted. Dropping the batcher does the same.
    pub fn close(&self) {
        self.shared.room.close();
        let workers = take(&mut *self.workers());
        for worker in workers {
            // A worker catches the panics of searches.
            let _ = worker.join();
        }
    }

    fn workers(&self) -> MutexGuard<'_, Vec<JoinHandle<()>>> {
        self.workers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K: Kind> Drop for Batcher<K> {
    fn drop(&mut self) {
        self.close();
    }
}

impl<K: Kind> fmt::Debug for Batcher<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (settings, statistics) = (&self.shared.settings, self.statistics());
        f.debug_struct("Batcher").field("settings", settings).field("statistics", &statistics).finish()
    }
}

impl Counters {
    /// Counts a request that was searched and had a waiter.
    fn ended(&self, outcome: &Outcome) {
        let counter = if matches!(outcome, Ok(Ok(_))) { &self.answered } else { &self.failed };
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

/// The place of a search that runs, which is free again when this is dropped.
struct Place<'a, K: Kind>(&'a Shared<K>);

impl<K: Kind> Drop for Place<'_, K> {
    fn drop(&mut self) {
        self.0.running.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Drops a request. A filter function may own values of the caller's whose drop panics; the panic ends here, because
/// other requests wait for this thread.
fn let_go<T>(pending: Pending<T>) {
    let _ = catch_unwind(AssertUnwindSafe(|| drop(pending)));
}

/// The limit after a batch of `limit` requests.
fn next_limit(limit: usize, taken: Duration, target: Duration) -> usize {
    if taken > target / 2 {
        (limit / 2).max(LEAST)
    } else if taken < target / 4 {
        (limit * 2).min(MOST)
    } else {
        limit
    }
}

impl<K: Kind> Shared<K> {
    /// Calls `visit` with the current version of the index.
    fn with<V>(&self, visit: impl FnOnce(&Index<K>) -> V) -> V {
        let (mut visit, mut result) = (Some(visit), None);
        (self.source)(&mut |index| result = visit.take().map(|visit| visit(index)));
        result.unwrap_or_else(|| unreachable!("a source calls the function that it gets"))
    }

    /// Checks a request. Returns whether one search may have it together with requests under other filters.
    fn check(&self, request: &Request<K::Element>) -> Result<bool> {
        let shares_filters = self.with(|index| request.check(&index.kind).map(|()| index.kind.shares_filters()))?;
        let late = request.deadline.is_some_and(|deadline| deadline <= Instant::now());
        if late { Err(Error::Refused(Refusal::Expired)) } else { Ok(shares_filters) }
    }

    /// A place for a search on the caller's thread, if one is free and no request waits.
    fn place_for_caller(&self) -> Result<Option<Place<'_, K>>> {
        if self.room.is_closed() {
            return Err(Error::Refused(Refusal::Closed));
        }
        let free = |running| (self.room.is_empty() && running < self.workers).then_some(running + 1);
        let taken = self.running.fetch_update(Ordering::Relaxed, Ordering::Relaxed, free);
        Ok(taken.is_ok().then(|| Place(self)))
    }

    fn push(&self, pending: Pending<K::Element>) -> Result<()> {
        let pushed = self.room.push(pending);
        if matches!(pushed, Err(Error::Refused(Refusal::Full { .. }))) {
            self.counters.full.fetch_add(1, Ordering::Relaxed);
        }
        pushed
    }

    /// The work of a thread: batches, until the batcher is closed and no request waits.
    fn work(&self) {
        let mut batch = Vec::new();
        let mut memory = Vec::new();
        while self.room.next(|| self.limit.load(Ordering::Relaxed), &mut batch) {
            self.running.fetch_add(1, Ordering::Relaxed);
            let place = Place(self);
            let (begin, count) = (Instant::now(), batch.len());
            self.serve(&mut batch, &mut memory, begin);
            drop(place);
            // Another worker may have changed the limit meanwhile.
            let next = next_limit(count, begin.elapsed(), self.settings.target);
            let _ = self.limit.compare_exchange(count, next, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    /// Ends the requests of a batch, which it empties.
    fn serve(&self, batch: &mut Vec<Pending<K::Element>>, memory: &mut Vec<K::Element>, now: Instant) {
        let counters = &self.counters;
        let ends = |pending: &mut Pending<K::Element>| {
            if pending.slot.is_late(now) {
                pending.slot.finish(Ok(Err(Error::Refused(Refusal::Expired))));
                counters.expired.fetch_add(1, Ordering::Relaxed);
                return true;
            }
            let begun = pending.slot.begin();
            counters.cancelled.fetch_add(u64::from(!begun), Ordering::Relaxed);
            !begun
        };
        batch.extract_if(.., ends).for_each(let_go);
        self.answer(&batch.iter().collect::<Vec<_>>(), memory);
        batch.drain(..).for_each(let_go);
    }

    /// Searches for requests of one group together if that can be, else for those with one filter and one k, and else
    /// for each alone. Gives each its result.
    fn answer(&self, batch: &[&Pending<K::Element>], memory: &mut Vec<K::Element>) {
        let counters = &self.counters;
        let finish = |pending: &Pending<K::Element>, outcome: Outcome| {
            let succeeded = matches!(outcome, Ok(Ok(_)));
            let counter = match (pending.slot.finish(outcome), succeeded) {
                (false, _) => &counters.cancelled,
                (true, true) => &counters.answered,
                (true, false) => &counters.failed,
            };
            counter.fetch_add(1, Ordering::Relaxed);
        };
        if let Some(rows) = self.search_together(batch, memory) {
            counters.searches.fetch_add(1, Ordering::Relaxed);
            batch.iter().zip(rows).for_each(|(pending, row)| finish(pending, Ok(Ok(row))));
            return;
        }
        let parts = alike(batch);
        if parts.len() > 1 && parts.len() < batch.len() {
            parts.iter().for_each(|part| self.answer(part, memory));
            return;
        }
        counters.searches.fetch_add(batch.len() as u64, Ordering::Relaxed);
        batch.iter().for_each(|pending| finish(pending, self.search_alone(&pending.request)));
    }

    /// Searches for one request.
    fn search_alone(&self, request: &Request<K::Element>) -> Outcome {
        let search = |index: &Index<K>| index.search_one(&request.query, request.k, &request.search_options());
        catch_unwind(AssertUnwindSafe(|| self.with(search)))
    }

    /// Searches for requests of one group. Returns the results of each; `None` if there is only one, they cannot be
    /// searched together, or the search fails.
    fn search_together(
        &self,
        batch: &[&Pending<K::Element>],
        queries: &mut Vec<K::Element>,
    ) -> Option<impl Iterator<Item = Neighbors>> {
        let [first, _, ..] = batch else { return None };
        let filters: Vec<Filter<'_>> =
            batch.iter().filter_map(|pending| pending.request.search_options().filter).collect();
        let one = filters.windows(2).all(|pair| pair[0].is(pair[1]));
        let filter = if one { filters.first().copied() } else { Some(Filter::Each(&filters)) };
        let options = SearchOptions { radius: None, filter, ..first.request.search_options() };
        let k = batch.iter().map(|pending| pending.request.k).max()?;
        let same_k = batch.iter().all(|pending| pending.request.k == k);
        let search = |index: &Index<K>| {
            // A version may have other dimensions than the one that accepted the request.
            let fits = batch.iter().all(|pending| pending.request.query.len() == index.dim());
            if !fits || !(same_k || index.kind.prefixes(&options)) {
                return None;
            }
            queries.clear();
            batch.iter().for_each(|pending| queries.extend_from_slice(&pending.request.query));
            let found = index.search_with(queries, k, &options).ok()?;
            let metric = index.metric();
            let rows = batch.iter().zip(found.rows()).map(|(pending, (ids, distances))| {
                let Request { k, options, .. } = &pending.request;
                let mut row = Neighbors { k: *k, ids: ids[..*k].to_vec(), distances: distances[..*k].to_vec() };
                cut_off(metric, options.radius, *k, &mut row.ids, &mut row.distances);
                row
            });
            Some(rows.collect::<Vec<_>>().into_iter())
        };
        catch_unwind(AssertUnwindSafe(|| self.with(search))).ok().flatten()
    }
}

/// The requests in parts that have one filter and one k each.
fn alike<'a, T: Element>(batch: &[&'a Pending<T>]) -> Vec<Vec<&'a Pending<T>>> {
    let none = Filter::Except(&[]);
    let filters: Vec<Filter<'_>> =
        batch.iter().map(|pending| pending.request.search_options().filter.unwrap_or(none)).collect();
    let FilterGroups { mut order, groups } = FilterGroups::new(&filters);
    let k_of = |at: &usize| batch[*at].request.k;
    let mut parts = Vec::new();
    for (_, places) in groups {
        order[places.clone()].sort_by_key(k_of);
        let of_k = order[places].chunk_by(|a, b| k_of(a) == k_of(b));
        parts.extend(of_k.map(|part| part.iter().map(|&at| batch[at]).collect()));
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_follows_the_target() {
        let (target, millisecond) = (Duration::from_millis(4), Duration::from_millis(1));
        assert_eq!(next_limit(64, millisecond / 2, target), 128);
        assert_eq!(next_limit(64, millisecond, target), 64);
        assert_eq!(next_limit(64, 2 * millisecond, target), 64);
        assert_eq!(next_limit(64, 3 * millisecond, target), 32);
        assert_eq!(next_limit(LEAST, 90 * millisecond, target), LEAST);
        assert_eq!(next_limit(MOST, Duration::ZERO, target), MOST);
    }
}
