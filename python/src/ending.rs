//! The end of the interpreter, while threads are inside of calls.
//!
//! A daemon thread that asks for the interpreter's lock while the interpreter ends is ended by Python, at a place where
//! its stack has frames of this library; processes then crash at their end. So a handler of `atexit` first lets the
//! threads finish that are about to run Python, and later ones wait for ever, until the process has ended.

use std::cell::Cell;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use pyo3::prelude::*;

/// The thread that ends the interpreter, once it does.
static ENDS: OnceLock<ThreadId> = OnceLock::new();
/// Number of threads that wait for the interpreter's lock to return from a call, or run a function of the caller's.
static ENTERED: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// How many of them this thread is: a function of the caller's makes calls.
    static DEPTH: Cell<usize> = const { Cell::new(0) };
}

/// How long the end waits for functions of the caller that a call of the library runs.
const PATIENCE: Duration = Duration::from_secs(2);

/// A thread that may run Python: the end of the interpreter waits for it.
pub struct Entered(());

impl Entered {
    /// None if the interpreter ends, another thread ends it, and it does not wait for this one yet.
    fn new() -> Option<Self> {
        ENTERED.fetch_add(1, Ordering::SeqCst);
        let waited_for = DEPTH.replace(DEPTH.get() + 1) > 0;
        let entered = Entered(());
        let other = ENDS.get().is_some_and(|&ends| ends != thread::current().id());
        (waited_for || !other).then_some(entered)
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        DEPTH.set(DEPTH.get() - 1);
        ENTERED.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Does work without the interpreter's lock, and waits for the lock again.
pub fn detach<V: Send>(py: Python<'_>, work: impl FnOnce() -> V + Send) -> V {
    let (value, _entered) = py.detach(|| {
        let value = work();
        match Entered::new() {
            Some(entered) => (value, entered),
            None => loop {
                thread::park();
            },
        }
    });
    value
}

/// Calls a function with the interpreter's lock; None if the interpreter ends.
pub fn attach<V>(function: impl FnOnce(Python<'_>) -> V) -> Option<V> {
    let _entered = Entered::new()?;
    Python::try_attach(function)
}

/// Waits until no other thread runs Python inside of a call. From then on none does.
pub fn end(py: Python<'_>) {
    let _ = ENDS.set(thread::current().id());
    let start = Instant::now();
    while ENTERED.load(Ordering::SeqCst) > 0 && start.elapsed() < PATIENCE {
        // Not `detach`: this thread is the one that ends.
        py.detach(|| thread::sleep(Duration::from_millis(1)));
    }
}
