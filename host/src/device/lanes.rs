//! Streams with scratch memory, which are kept for the next search.
//!
//! # Problem
//! Making a stream and allocating memory wait for the device, and while other threads search without a pause they wait
//! as long as these do ([`super::cuda`], "Calls that wait for other threads"). A pool that made a lane for each thread
//! which found none made the first search of a thread wait for the end of the others' searches: 1.5 s on an H200 with
//! 16 to 64 threads (2026-11-26).
//!
//! # Rules
//! 1. Lanes of an index are made ahead, all [`MOST_LANES`] at once, by the first call that needs one. This is a call
//!    that adds rows, or the search that makes the image of an inverted file, so other threads wait for this call
//!    anyway.
//! 2. A thread that finds no idle lane waits. Threads get lanes in the order in which they came: the one that puts a
//!    lane back gives it to the thread that has waited longest. So a wait is as long as the searches ahead.
//! 3. A caller of several lanes gets all of them at once, so no caller waits with a part of its lanes.
//! 4. A thread that has lanes never waits for another one: it gets an idle lane, or makes one. Such a thread searches
//!    rows that it has gathered in the scratch of a lane, or does other work of a pool while it waits for its own.
//!
//! By rules 3 and 4 nobody waits for a lane and has one, so the threads with lanes always go on, unless they wait for
//! something else: code of the caller that is called during a build, or a pool whose threads all wait for lanes. So
//! nobody waits longer than [`PATIENCE`] without making a lane.
//!
//! # Cost
//! A stream costs a few tens of µs to make and little memory; scratch comes later, from the memory pool of the device.
//! More lanes than the device has queues (8 by default, 32 at most) make no search faster. Making a graph makes lanes
//! for four indexes. With 32 lanes this took 5 ms of 340, and the longest call of 32 threads that search for the first
//! time was 11.6 ms (exact), 4.8 (inverted file) or 3.1 (graph); with 16 lanes 6.0, 1.5 and 2.0 (H200, 2026-11-26, two
//! runs).
//!
//! Lanes of a single call ([`Lanes::new`]) are made when they are needed.

use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cuda_std::PtrMut;

use super::runtime::{Memory, Runtime, Stream};
use super::scratch::{Layout, Scratch};
use crate::Result;

/// A stream with scratch memory. A search takes one or more lanes and puts them back.
///
/// Memory stands before the streams, because it is freed in the order of a stream.
pub(crate) struct Lane {
    memory: Memory,
    bytes: usize,
    counters: Option<Memory>,
    /// The stream of a search. Its kernels go ahead of those of other streams: beside copies of 750 MB by one kernel,
    /// .4 ms long, the p99.9 of short searches was 427 µs without that, 130 with it, and 131 alone (H200, 2026-11-28).
    pub stream: Stream,
    /// A second stream, for what searches should not wait for: changes and images of the index, and copies to the
    /// device that overlap kernels.
    pub background: Stream,
}

/// Number of the counters of a lane.
pub(crate) const COUNTERS: usize = 512;
/// Number of lanes of an index, above which threads wait.
const MOST_LANES: usize = 16;
/// The same on the emulator, so that threads of small tests wait.
const MOST_EMULATED: usize = 3;
/// The longest wait for a lane: longer than any queue of searches, except those of large batches.
const PATIENCE: Duration = Duration::from_secs(1);

impl Lane {
    fn new(runtime: &Runtime) -> Result<Lane> {
        let (stream, background) = (runtime.urgent_stream()?.with_dependent_launches(), runtime.stream()?);
        Ok(Lane { memory: runtime.no_memory(), bytes: 0, counters: None, stream, background })
    }

    /// [`COUNTERS`] words that are 0 at first, and that kernels of the lane's stream leave at 0. The stream has no work
    /// at the first call.
    pub fn counters(&mut self, runtime: &Runtime) -> Result<PtrMut<u32>> {
        let mut layout = Layout::default();
        let words = layout.array(COUNTERS);
        if let Some(memory) = &self.counters {
            return Ok(runtime.scratch(memory).at(words));
        }
        let memory = runtime.allocate_on(&self.stream, layout.bytes())?;
        let counters = runtime.scratch(&memory).at(words);
        // SAFETY: the memory has these words.
        unsafe { runtime.fill(&self.stream, counters, 0)? };
        self.counters = Some(memory);
        Ok(counters)
    }

    /// Scratch of at least `bytes` bytes, with unspecified contents. The stream's work on earlier scratch must be done.
    pub fn scratch(&mut self, runtime: &Runtime, bytes: usize) -> Result<Scratch> {
        if bytes > self.bytes {
            // The old scratch is freed first, because the device may not have room for both.
            self.memory = runtime.no_memory();
            self.bytes = 0;
            self.memory = runtime.allocate_on(&self.stream, bytes)?;
            self.bytes = bytes;
        }
        Ok(runtime.scratch(&self.memory))
    }
}

/// The lanes of an index or of a call.
pub(crate) struct Lanes {
    state: Mutex<State>,
    /// Whether the first caller makes all lanes.
    ahead: bool,
    /// The longest wait for a lane.
    patience: Duration,
}

#[derive(Default)]
struct State {
    /// The lanes that nobody uses.
    idle: Vec<Lane>,
    /// Number of lanes that exist or are being made.
    made: usize,
    /// The threads that wait, in the order in which they came.
    waiting: VecDeque<Arc<Turn>>,
}

/// The turn of a thread that waits.
struct Turn {
    count: usize,
    granted: Mutex<Option<Granted>>,
    changed: Condvar,
}

/// The lanes that a thread is granted.
struct Granted {
    lanes: Vec<Lane>,
    /// Number of lanes that the thread makes itself.
    missing: usize,
}

thread_local! {
    /// Number of lanes that this thread has, of all indexes.
    static HELD: Cell<usize> = const { Cell::new(0) };
}

impl State {
    /// Takes `count` lanes, idle ones first; the rest may be made.
    fn grant(&mut self, count: usize) -> Granted {
        let lanes = self.idle.split_off(self.idle.len().saturating_sub(count));
        let missing = count - lanes.len();
        self.made += missing;
        Granted { lanes, missing }
    }

    /// Whether `count` lanes can be taken without making more than `most`. A caller of more lanes than that gets them
    /// once it is alone.
    fn has(&self, count: usize, most: usize) -> bool {
        self.idle.len() + most.max(count).saturating_sub(self.made) >= count
    }

    /// Gives lanes to the threads that have waited longest.
    fn serve(&mut self, most: usize) {
        while let Some(turn) = self.waiting.pop_front() {
            if !self.has(turn.count, most) {
                return self.waiting.push_front(turn);
            }
            let granted = self.grant(turn.count);
            *turn.granted.lock().unwrap_or_else(PoisonError::into_inner) = Some(granted);
            turn.changed.notify_one();
        }
    }
}

/// Lanes that a thread has taken. Those whose work is done return to the others; those whose work failed are dropped.
struct Taken<'a> {
    of: &'a Lanes,
    runtime: &'a Runtime,
    lanes: Vec<Lane>,
    done: bool,
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        let count = self.lanes.len();
        HELD.set(HELD.get() - count);
        if self.done {
            self.of.put_back(self.runtime, &mut self.lanes, 0);
            return;
        }
        // Work may be under way that uses the scratch. The error of the call is already known.
        for lane in self.lanes.drain(..) {
            let _ = self.runtime.synchronize(&lane.background);
            let _ = self.runtime.synchronize(&lane.stream);
        }
        self.of.put_back(self.runtime, &mut Vec::new(), count);
    }
}

/// Number of lanes of an index on a device.
fn most_lanes(runtime: &Runtime) -> usize {
    if runtime.limits().emulated { MOST_EMULATED } else { MOST_LANES }
}

impl Lanes {
    /// The lanes of one call, which are made when they are needed.
    pub fn new() -> Self {
        Lanes { state: Mutex::default(), ahead: false, patience: PATIENCE }
    }

    /// The lanes of an index, which the first call makes for all searches.
    pub fn of_index() -> Self {
        Lanes { ahead: true, ..Lanes::new() }
    }

    /// Calls `work` with a lane that no other search uses. A lane whose work failed is not used again.
    pub fn with<V>(&self, runtime: &Runtime, work: impl FnOnce(&mut Lane) -> Result<V>) -> Result<V> {
        self.with_some(runtime, 1, |lanes| work(&mut lanes[0]))
    }

    /// As [`with`](Self::with), with `count` lanes. The device is the thread's current one until the call returns.
    pub fn with_some<V>(
        &self,
        runtime: &Runtime,
        count: usize,
        work: impl FnOnce(&mut [Lane]) -> Result<V>,
    ) -> Result<V> {
        let _current = runtime.enter()?;
        let mut taken = self.take(runtime, count)?;
        let result = work(&mut taken.lanes)?;
        taken.done = true;
        Ok(result)
    }

    /// Bytes of the scratch of all lanes that no search uses.
    pub fn bytes(&self) -> usize {
        self.state().idle.iter().map(|lane| lane.bytes).sum()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns idle lanes, and the places of `lost` lanes, which are gone.
    fn put_back(&self, runtime: &Runtime, lanes: &mut Vec<Lane>, lost: usize) {
        let mut state = self.state();
        state.idle.append(lanes);
        state.made -= lost;
        state.serve(most_lanes(runtime));
    }

    /// Takes `count` lanes, in the order of the callers.
    fn take<'a>(&'a self, runtime: &'a Runtime, count: usize) -> Result<Taken<'a>> {
        let most = most_lanes(runtime);
        let mut state = self.state();
        let (granted, more) = if HELD.get() > 0 || (state.waiting.is_empty() && state.has(count, most)) {
            // The first caller makes all lanes.
            let more = if self.ahead && state.made == 0 { most.saturating_sub(count) } else { 0 };
            state.made += more;
            let granted = state.grant(count);
            drop(state);
            (granted, more)
        } else {
            let turn = Arc::new(Turn { count, granted: Mutex::default(), changed: Condvar::new() });
            state.waiting.push_back(Arc::clone(&turn));
            drop(state);
            (self.wait(&turn), 0)
        };
        let Granted { lanes, missing } = granted;
        HELD.set(HELD.get() + lanes.len());
        // If a lane cannot be made, those that were there return.
        let mut taken = Taken { of: self, runtime, lanes, done: true };
        let making = missing + more;
        if making > 0 {
            match self.make(runtime, making, more > 0) {
                Ok(mut made) => {
                    taken.lanes.extend(made.drain(..missing));
                    HELD.set(HELD.get() + missing);
                    self.put_back(runtime, &mut made, 0);
                }
                Err(error) => {
                    self.put_back(runtime, &mut Vec::new(), making);
                    return Err(error);
                }
            }
        }
        taken.done = false;
        Ok(taken)
    }

    /// Makes `count` lanes, and if they are made ahead, what their searches need besides.
    fn make(&self, runtime: &Runtime, count: usize, ahead: bool) -> Result<Vec<Lane>> {
        let lanes = (0..count).map(|_| Lane::new(runtime)).collect::<Result<Vec<_>>>()?;
        if let Some(lane) = lanes.first().filter(|_| ahead) {
            runtime.make_ready(&lane.stream, count)?;
        }
        Ok(lanes)
    }

    /// Waits for the turn of this thread.
    fn wait(&self, turn: &Arc<Turn>) -> Granted {
        loop {
            let granted = turn.granted.lock().unwrap_or_else(PoisonError::into_inner);
            let none = |granted: &mut Option<Granted>| granted.is_none();
            let (mut granted, _) =
                turn.changed.wait_timeout_while(granted, self.patience, none).unwrap_or_else(PoisonError::into_inner);
            if let Some(granted) = granted.take() {
                return granted;
            }
            drop(granted);
            let mut state = self.state();
            if let Some(at) = state.waiting.iter().position(|other| Arc::ptr_eq(other, turn)) {
                state.waiting.remove(at);
                return state.grant(turn.count);
            }
            // Its turn came a moment ago.
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::thread;

    use super::*;
    use crate::Error;

    const RUNTIME: Runtime = Runtime::EMULATOR;

    /// Lanes of an index, for which threads of a slow machine wait as long as it takes.
    fn patient() -> Lanes {
        Lanes { patience: Duration::from_secs(3_600), ..Lanes::of_index() }
    }

    fn waiting(lanes: &Lanes) -> usize {
        lanes.state().waiting.len()
    }

    #[test]
    fn all_lanes_of_an_index_are_made_at_once_and_those_of_a_call_when_needed() {
        for (lanes, expected) in [(Lanes::of_index(), MOST_EMULATED), (Lanes::new(), 2)] {
            lanes.with_some(&RUNTIME, 2, |_| Ok(())).unwrap();
            let state = lanes.state();
            assert_eq!((state.made, state.idle.len()), (expected, expected));
        }
    }

    #[test]
    fn threads_get_lanes_in_the_order_in_which_they_came() {
        let (lanes, order) = (patient(), Mutex::new(Vec::new()));
        thread::scope(|scope| {
            lanes
                .with_some(&RUNTIME, MOST_EMULATED, |_| {
                    for number in 0..20 {
                        // Some want more lanes than the next one returns.
                        let count = [1, 3, 2][number % 3];
                        let (lanes, order) = (&lanes, &order);
                        scope.spawn(move || {
                            lanes.with_some(&RUNTIME, count, |_| {
                                order.lock().unwrap().push(number);
                                Ok(())
                            })
                        });
                        while waiting(lanes) == number {
                            thread::yield_now();
                        }
                    }
                    Ok(())
                })
                .unwrap();
        });
        let order = order.into_inner().unwrap();
        // Two threads that have lanes at the same time may note their numbers in either order.
        assert!(order.iter().enumerate().all(|(at, &number)| at.abs_diff(number) < MOST_EMULATED), "{order:?}");
    }

    #[test]
    fn many_threads_share_few_lanes() {
        let (lanes, used, most) = (patient(), AtomicUsize::new(0), AtomicUsize::new(0));
        let (nested, start) = (AtomicUsize::new(0), Barrier::new(16));
        thread::scope(|scope| {
            for number in 0..16 {
                let (lanes, used, most, nested, start) = (&lanes, &used, &most, &nested, &start);
                scope.spawn(move || {
                    start.wait();
                    for turn in 0..120 {
                        let count = 1 + (number + turn) % 3;
                        let failed = lanes.with_some(&RUNTIME, count, |taken| {
                            assert_eq!(taken.len(), count);
                            most.fetch_max(used.fetch_add(count, Ordering::Relaxed) + count, Ordering::Relaxed);
                            taken[0].scratch(&RUNTIME, 1 << (number % 5))?;
                            // A thread that has a lane gets another one without waiting.
                            if turn % 50 == 7 {
                                nested.fetch_add(1, Ordering::Relaxed);
                                lanes.with(&RUNTIME, |_| Ok(()))?;
                            }
                            used.fetch_sub(count, Ordering::Relaxed);
                            if turn % 40 == 3 { Err(Error::Cancelled) } else { Ok(()) }
                        });
                        assert_eq!(failed.is_err(), turn % 40 == 3);
                    }
                });
            }
        });
        let state = lanes.state();
        assert_eq!((state.made, state.waiting.len()), (state.idle.len(), 0));
        // Only nested calls make more.
        assert!(most.into_inner() <= MOST_EMULATED + nested.into_inner());
        assert_eq!(HELD.get(), 0);
    }

    #[test]
    fn a_panic_returns_the_place_of_a_lane() {
        let lanes = Lanes::of_index();
        for _ in 0..2 * MOST_EMULATED {
            let work = || lanes.with(&RUNTIME, |_| -> Result<()> { std::panic::resume_unwind(Box::new(1)) });
            assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).is_err());
        }
        lanes.with_some(&RUNTIME, MOST_EMULATED, |_| Ok(())).unwrap();
        assert_eq!((lanes.state().made, HELD.get()), (MOST_EMULATED, 0));
    }

    /// All lanes are held by a thread that waits for the other one, as a callback of the caller can.
    #[test]
    fn nobody_waits_for_ever() {
        let lanes = Lanes { patience: Duration::from_millis(10), ..Lanes::of_index() };
        lanes
            .with_some(&RUNTIME, MOST_EMULATED, |_| {
                thread::scope(|scope| scope.spawn(|| lanes.with(&RUNTIME, |_| Ok(()))).join().unwrap())
            })
            .unwrap();
        assert_eq!(lanes.state().idle.len(), MOST_EMULATED + 1);
    }
}
