//! The place where a request waits for its result.

use std::any::Any;
use std::fmt;
use std::ops::Deref;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Instant;

use crate::{Error, Neighbors, Refusal, Result};

/// The result of a search, or its panic.
pub(super) type Outcome = Result<Result<Neighbors>, Box<dyn Any + Send>>;

enum State {
    /// The request is in the queue.
    Waiting(Option<Waker>),
    /// A worker searches for it.
    Running(Option<Waker>),
    Done(Outcome),
    /// The result was taken, or nobody waits for it.
    Gone,
}

/// The state of a request, which its waiter and the batcher share.
pub(super) struct Slot {
    state: Mutex<State>,
    deadline: Option<Instant>,
}

/// The batcher's hold of a slot. Whatever happens to a request, its waiter gets an answer: at the latest when this is
/// dropped.
pub(super) struct Ticket(pub Arc<Slot>);

impl Deref for Ticket {
    type Target = Slot;

    fn deref(&self) -> &Slot {
        &self.0
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.finish(Ok(Err(Error::Refused(Refusal::Closed))));
    }
}

impl Slot {
    pub fn new(deadline: Option<Instant>) -> Arc<Slot> {
        Arc::new(Slot { state: Mutex::new(State::Waiting(None)), deadline })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the deadline has passed.
    pub fn is_late(&self, now: Instant) -> bool {
        self.deadline.is_some_and(|deadline| deadline <= now)
    }

    /// A worker takes the request. Returns false if nobody waits for it.
    pub fn begin(&self) -> bool {
        let mut state = self.state();
        if let State::Waiting(waker) = &mut *state {
            let waker = waker.take();
            *state = State::Running(waker);
            return true;
        }
        false
    }

    /// Gives the waiter its result. Returns false if nobody waits.
    pub fn finish(&self, outcome: Outcome) -> bool {
        let mut state = self.state();
        let (State::Waiting(waker) | State::Running(waker)) = &mut *state else { return false };
        let waker = waker.take();
        *state = State::Done(outcome);
        drop(state);
        if let Some(waker) = waker {
            // A waker is the caller's code, and others wait for this thread.
            let _ = catch_unwind(AssertUnwindSafe(|| waker.wake()));
        }
        true
    }

    /// The waiter gives up.
    fn abandon(&self) {
        *self.state() = State::Gone;
    }

    /// Takes the request out of the queue if it is still there. Returns whether it was.
    fn expire(&self) -> bool {
        let mut state = self.state();
        let waits = matches!(*state, State::Waiting(_));
        if waits {
            *state = State::Gone;
        }
        waits
    }

    /// The result, if it is there; else `waker` is woken when it is.
    fn poll(&self, waker: &Waker) -> Option<Outcome> {
        let mut state = self.state();
        match &mut *state {
            State::Waiting(known) | State::Running(known) => {
                match known {
                    Some(known) if known.will_wake(waker) => {}
                    known => *known = Some(waker.clone()),
                }
                None
            }
            State::Done(_) => match std::mem::replace(&mut *state, State::Gone) {
                State::Done(outcome) => Some(outcome),
                State::Waiting(_) | State::Running(_) | State::Gone => None,
            },
            State::Gone => None,
        }
    }
}

/// The result of a request that was submitted: a future for any runtime, or [`wait`](Self::wait).
///
/// If it is dropped before, the request is cancelled: it is not searched, if its search has not begun.
#[must_use = "a request is cancelled when its answer is dropped"]
pub struct Answer {
    pub(super) slot: Arc<Slot>,
}

impl Answer {
    /// Waits for the result, without a runtime.
    ///
    /// # Errors
    /// Those of [`Index::search_with`](crate::Index::search_with) for this request; [`Error::Refused`] if its deadline
    /// passes before its search begins.
    ///
    /// # Panics
    /// With the panic of a filter function of the request.
    pub fn wait(self) -> Result<Neighbors> {
        let signal = Arc::new(Signal { thread: thread::current(), woken: AtomicBool::new(false) });
        let waker = Waker::from(Arc::clone(&signal));
        loop {
            if let Some(outcome) = self.slot.poll(&waker) {
                return unwrapped(outcome);
            }
            while !signal.woken.swap(false, Ordering::Acquire) {
                match self.slot.deadline.map(|deadline| deadline.saturating_duration_since(Instant::now())) {
                    Some(left) if !left.is_zero() => thread::park_timeout(left),
                    // A search that has begun is waited for.
                    Some(_) if self.slot.expire() => return Err(Error::Refused(Refusal::Expired)),
                    _ => thread::park(),
                }
            }
        }
    }
}

/// The result of a search, or its panic, on the thread that waited.
pub(super) fn unwrapped(outcome: Outcome) -> Result<Neighbors> {
    outcome.unwrap_or_else(|panic| resume_unwind(panic))
}

/// Wakes a thread. A thread may be unparked for other reasons, so there is a flag.
struct Signal {
    thread: Thread,
    woken: AtomicBool,
}

impl Wake for Signal {
    fn wake(self: Arc<Self>) {
        self.woken.store(true, Ordering::Release);
        self.thread.unpark();
    }
}

impl Future for Answer {
    type Output = Result<Neighbors>;

    /// # Panics
    /// With the panic of a filter function of the request. A second call after the result was returned never returns
    /// another one.
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.slot.poll(context.waker()).map_or(Poll::Pending, |outcome| Poll::Ready(unwrapped(outcome)))
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        self.slot.abandon();
    }
}

impl fmt::Debug for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match *self.slot.state() {
            State::Waiting(_) => "waiting",
            State::Running(_) => "running",
            State::Done(_) => "done",
            State::Gone => "gone",
        };
        f.debug_struct("Answer").field("state", &state).field("deadline", &self.slot.deadline).finish()
    }
}
