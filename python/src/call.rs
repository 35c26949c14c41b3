//! Calls of the library without the interpreter's lock, and calls of the caller's functions from inside of them.

use std::any::Any;
use std::cell::Cell;
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, TryLockError};
use std::thread;
use std::time::Duration;

use pyo3::prelude::*;
use warpann::{Error, Progress, Watch};

use crate::ending::{attach, detach};
use crate::errors::{Failure, panicked};
use crate::layer;

/// The result of work without the interpreter.
pub type Result<V> = std::result::Result<V, Failure>;

/// Runs `work` without the interpreter's lock. Errors and panics become exceptions.
pub fn detached<V: Send>(py: Python<'_>, work: impl FnOnce() -> Result<V> + Send) -> PyResult<V> {
    outcome(py, detach(py, || catch_unwind(AssertUnwindSafe(work))))
}

/// The value of a call, or its exception.
pub fn outcome<V>(py: Python<'_>, outcome: std::result::Result<Result<V>, Box<dyn Any + Send>>) -> PyResult<V> {
    match outcome {
        Ok(result) => result.map_err(|failure| failure.raised(py)),
        Err(payload) => Err(panicked(py, payload)),
    }
}

/// How often a long call looks for signals.
const SIGNALS: Duration = Duration::from_millis(50);

/// Takes stage, done, total and unit, and says whether the work goes on. Any thread may call it.
pub type Report<'a> = &'a (dyn Fn(&'static str, u64, u64, &'static str) -> ControlFlow<()> + Sync);

/// Runs long `work` without the interpreter's lock, with a watch that calls `progress` and ends the work after a signal
/// (Ctrl-C).
pub fn watched<V: Send>(
    py: Python<'_>,
    progress: Option<Py<PyAny>>,
    work: impl FnOnce(&Watch<'_>) -> Result<V> + Send,
) -> PyResult<V> {
    reported(py, progress, |report| {
        let watch = Watch::new(|now: Progress| report(now.stage.name(), now.done, now.total, now.stage.unit()));
        work(&watch)
    })
}

/// As [`watched`], for work that reports by itself.
///
/// Only the main thread of Python can handle signals, and the library reports on any thread. So the work runs on
/// another thread, and this one looks for signals while it waits.
pub fn reported<V: Send>(
    py: Python<'_>,
    progress: Option<Py<PyAny>>,
    work: impl FnOnce(Report<'_>) -> Result<V> + Send,
) -> PyResult<V> {
    // The first exception, of the progress function or of a signal, and whether there is one.
    let (raised, stop) = (Mutex::new(None), AtomicBool::new(false));
    let end_with = |error: PyErr| {
        raised.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
        stop.store(true, Ordering::Relaxed);
    };
    let report = |stage: &'static str, done: u64, total: u64, unit: &'static str| {
        if stop.load(Ordering::Relaxed) {
            return ControlFlow::Break(());
        }
        let Some(progress) = &progress else { return ControlFlow::Continue(()) };
        let goes_on = attach(|py| {
            let now = layer::progress(py)?.call1((stage, done, total, unit))?;
            let returned = called(|| progress.bind(py).call1((now,)))?;
            // A function without a return value lets the call go on, as one that returns True.
            Ok(returned.is_none() || returned.is_truthy()?)
        });
        match goes_on.unwrap_or(Ok(false)) {
            Ok(true) => ControlFlow::Continue(()),
            Ok(false) => ControlFlow::Break(()),
            Err(error) => {
                end_with(error);
                ControlFlow::Break(())
            }
        }
    };
    let inside = INSIDE.get();
    let result = thread::scope(|scope| {
        let (sender, mut receiver) = channel();
        let report = &report;
        let run = move || {
            INSIDE.set(inside);
            // The receiver waits until it has the result.
            let _ = sender.send(catch_unwind(AssertUnwindSafe(|| work(report))));
        };
        let started = thread::Builder::new().name("warpann call".into()).spawn_scoped(scope, run);
        if let Err(source) = started {
            return Ok(Err(Error::Thread { source }.into()));
        }
        loop {
            let (received, back) = detach(py, move || (receiver.recv_timeout(SIGNALS), receiver));
            receiver = back;
            match received {
                Ok(result) => return result,
                Err(RecvTimeoutError::Timeout) => {
                    if let Err(error) = py.check_signals() {
                        end_with(error);
                    }
                }
                Err(RecvTimeoutError::Disconnected) => return Err(Box::new("a call ended without a result") as _),
            }
        }
    });
    match raised.into_inner().unwrap_or_else(PoisonError::into_inner) {
        // Also if the work was done before it saw the signal: the exception of a signal is never lost.
        Some(error) if matches!(result, Ok(Ok(_) | Err(Failure::Library(Error::Cancelled)))) => Err(error),
        _ => outcome(py, result),
    }
}

thread_local! {
    /// Whether this thread runs a function of the caller's that a call of the library has called.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Calls a function of the caller's from inside of a call. Locks are then tried and not waited for: the call that has
/// them may wait for this function.
pub fn called<V>(function: impl FnOnce() -> V) -> V {
    struct Before(bool);
    impl Drop for Before {
        fn drop(&mut self) {
            INSIDE.set(self.0);
        }
    }
    let _before = Before(INSIDE.replace(true));
    function()
}

/// Whether this thread runs a function of the caller's that a call of the library has called.
pub fn inside() -> bool {
    INSIDE.get()
}

/// Calls a filter function of the caller's with an id. An exception leaves the search as a panic: the library promises
/// that the index is then as it was.
pub fn accepted(function: &Py<PyAny>, id: u64) -> bool {
    let called = attach(|py| called(|| function.bind(py).call1((id,))?.is_truthy()));
    match called {
        Some(Ok(accepted)) => accepted,
        Some(Err(error)) => resume_unwind(Box::new(error)),
        // The interpreter ends, and nobody reads the result.
        None => false,
    }
}

/// Waits for a lock to read, without the interpreter's lock.
///
/// # Errors
/// [`Failure::Busy`] inside of a function that the holder of the lock may have called.
pub fn read<V>(lock: &RwLock<V>) -> Result<RwLockReadGuard<'_, V>> {
    match lock.try_read() {
        Ok(guard) => Ok(guard),
        Err(TryLockError::Poisoned(poisoned)) => Ok(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) if INSIDE.get() => Err(Failure::Busy),
        Err(TryLockError::WouldBlock) => Ok(lock.read().unwrap_or_else(PoisonError::into_inner)),
    }
}

/// As [`read`], to write. An index is as it was after a panic, so a poisoned lock is as good as another.
pub fn write<V>(lock: &RwLock<V>) -> Result<RwLockWriteGuard<'_, V>> {
    match lock.try_write() {
        Ok(guard) => Ok(guard),
        Err(TryLockError::Poisoned(poisoned)) => Ok(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) if INSIDE.get() => Err(Failure::Busy),
        Err(TryLockError::WouldBlock) => Ok(lock.write().unwrap_or_else(PoisonError::into_inner)),
    }
}

/// As [`read`], of a lock that only one thread can have.
pub fn lock<V>(lock: &Mutex<V>) -> Result<MutexGuard<'_, V>> {
    match lock.try_lock() {
        Ok(guard) => Ok(guard),
        Err(TryLockError::Poisoned(poisoned)) => Ok(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) if INSIDE.get() => Err(Failure::Busy),
        Err(TryLockError::WouldBlock) => Ok(lock.lock().unwrap_or_else(PoisonError::into_inner)),
    }
}
