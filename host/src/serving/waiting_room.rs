//! The requests on their way to the workers, and the workers on their way to the requests.
//!
//! # Problem
//! Waking a thread takes as long as a search: 50 µs on a virtual machine. And if requests and workers share one lock,
//! a million requests a second wait for it.
//!
//! # Algorithm
//! ```text
//! request: count it; put it into the inbox                        // a lock for a few instructions
//!          if no worker watches and some sleep: wake one, to watch
//! worker:  empty the inbox into the groups; take a batch; search
//!          no batch: watch, unless another worker does, and after a while sleep
//! watcher: looks at the count of requests; it takes a batch as soon as there is one, and leaves its watch to another
//! ```
//!
//! At most one worker watches, so an idle batcher keeps one core busy, and only for a moment. While a worker watches,
//! a request wakes nobody.
//!
//! No request is forgotten: it is counted before its thread asks who watches and who sleeps, and a worker looks at the
//! count after it has said that it sleeps. Both in one order of all threads (`SeqCst`), so one of the two sees the
//! other.

use std::mem::{swap, take};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Instant;

use super::queue::{Pending, Queue};
use crate::threads::awake;
use crate::{Element, Error, Refusal, Result};

pub(super) struct WaitingRoom<T> {
    inbox: Mutex<Inbox<T>>,
    /// Locked before the inbox by a thread that has both.
    groups: Mutex<Groups<T>>,
    /// Number of requests in the inbox and in the groups, or on their way to the inbox.
    waiting: AtomicUsize,
    /// Largest number of requests that wait.
    most: usize,
    /// Whether a worker watches, or was woken to watch.
    watched: AtomicBool,
    sleepers: AtomicUsize,
    /// Whether a worker that sleeps shall watch.
    handed: Mutex<bool>,
    woken: Condvar,
    closed: AtomicBool,
}

struct Inbox<T> {
    requests: Vec<Pending<T>>,
    closed: bool,
}

struct Groups<T> {
    queue: Queue<T>,
    /// The memory of the inbox before.
    emptied: Vec<Pending<T>>,
}

fn locked<V>(lock: &Mutex<V>) -> MutexGuard<'_, V> {
    lock.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<T: Element> WaitingRoom<T> {
    /// A room for this number of requests.
    pub fn new(most: usize) -> Self {
        WaitingRoom {
            inbox: Mutex::new(Inbox { requests: Vec::new(), closed: false }),
            groups: Mutex::new(Groups { queue: Queue::default(), emptied: Vec::new() }),
            waiting: AtomicUsize::new(0),
            most,
            watched: AtomicBool::new(false),
            sleepers: AtomicUsize::new(0),
            handed: Mutex::new(false),
            woken: Condvar::new(),
            closed: AtomicBool::new(false),
        }
    }

    /// Number of requests that wait, with those that were given up.
    pub fn len(&self) -> usize {
        self.waiting.load(SeqCst)
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether requests are refused, because the room is closed.
    pub fn is_closed(&self) -> bool {
        self.closed.load(SeqCst)
    }

    /// Lets a request in.
    ///
    /// # Errors
    /// [`Refusal::Full`], [`Refusal::Closed`].
    pub fn push(&self, pending: Pending<T>) -> Result<()> {
        let most = self.most;
        if self.waiting.fetch_add(1, SeqCst) >= most {
            self.waiting.fetch_sub(1, SeqCst);
            return Err(Error::Refused(Refusal::Full { most }));
        }
        let mut inbox = locked(&self.inbox);
        if inbox.closed {
            self.waiting.fetch_sub(1, SeqCst);
            return Err(Error::Refused(Refusal::Closed));
        }
        inbox.requests.push(pending);
        drop(inbox);
        self.call();
        Ok(())
    }

    /// Wakes a worker to watch, unless one watches or none sleeps.
    fn call(&self) {
        if self.sleepers.load(SeqCst) == 0 || self.watched.swap(true, SeqCst) {
            return;
        }
        let mut handed = locked(&self.handed);
        if self.sleepers.load(SeqCst) > 0 {
            *handed = true;
            self.woken.notify_one();
        } else {
            // All are awake, and look at the count before they sleep.
            self.watched.store(false, SeqCst);
        }
    }

    /// Waits for requests, and takes the oldest with those of its group behind it, at most `limit` in all. Returns
    /// false when the room is closed and empty.
    pub fn next(&self, limit: impl Fn() -> usize, batch: &mut Vec<Pending<T>>) -> bool {
        let mut watches = false;
        loop {
            self.take(limit(), batch);
            let over = self.is_closed() && self.is_empty();
            if !batch.is_empty() || over {
                if watches {
                    self.watched.store(false, SeqCst);
                }
                if !self.is_empty() {
                    self.call();
                }
                return !batch.is_empty();
            }
            watches = watches || !self.watched.swap(true, SeqCst);
            if !(watches && self.watch()) {
                watches = self.sleep(watches);
            }
        }
    }

    fn take(&self, limit: usize, batch: &mut Vec<Pending<T>>) {
        if self.is_empty() {
            return;
        }
        let mut groups = locked(&self.groups);
        let Groups { queue, emptied } = &mut *groups;
        swap(&mut locked(&self.inbox).requests, emptied);
        emptied.drain(..).for_each(|pending| queue.push(pending));
        queue.take(limit, batch);
        self.waiting.fetch_sub(batch.len(), SeqCst);
    }

    /// Looks for requests for a while. Returns whether there are some, or the room was closed.
    fn watch(&self) -> bool {
        let (begin, awake) = (Instant::now(), awake());
        loop {
            if !self.is_empty() || self.is_closed() {
                return true;
            }
            if begin.elapsed() >= awake {
                return false;
            }
            thread::yield_now();
        }
    }

    /// Sleeps until there is a reason to look. `watches` is whether this worker has watched. Returns whether it shall
    /// watch now.
    fn sleep(&self, watches: bool) -> bool {
        let mut handed = locked(&self.handed);
        self.sleepers.fetch_add(1, SeqCst);
        if watches {
            self.watched.store(false, SeqCst);
        }
        while !*handed && self.is_empty() && !self.is_closed() {
            handed = self.woken.wait(handed).unwrap_or_else(PoisonError::into_inner);
        }
        self.sleepers.fetch_sub(1, SeqCst);
        take(&mut *handed)
    }

    /// Lets no further requests in. Workers go on until the room is empty.
    pub fn close(&self) {
        locked(&self.inbox).closed = true;
        self.closed.store(true, SeqCst);
        // A worker that did not see it yet is in front of this lock, or waits.
        drop(locked(&self.handed));
        self.woken.notify_all();
    }
}
