//! Versions of an index that changes while it is searched, and batches of single requests.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::{Duration, Instant};

use pyo3::prelude::*;
use warpann::{Answer, BatcherBuilder, ElementType, Error, Neighbors, Placement};

use crate::arrays::{Vectors, neighbors};
use crate::call::{self, called, detached, inside};
use crate::ending::{attach, detach};
use crate::errors::{Failure, wrong_type};
use crate::filter;
use crate::held::{Held, Serving, Writing};
use crate::index::{Index, options};
use crate::layer;

/// Changes an index, version after version, while any number of threads search it.
///
/// A version never changes once it is published. So a search never waits for a change, and its result is right for one
/// version: it sees all of a change or nothing of it. A change copies what it changes, so give :meth:`change` many
/// vectors at a time.
///
/// Args:
///     index: the first version: a snapshot of it.
///
/// >>> import numpy as np, warpann
/// >>> index = warpann.FlatIndex(1)
/// >>> index.add(np.float32([[0], [1], [2]]))
/// >>> writer = warpann.IndexWriter(index)
/// >>> writer.change(lambda next: next.upsert(np.float32([[9]]), [1]))
/// 1
/// >>> writer.current().search(np.float32([1.2]), 1).ids.tolist()
/// [2]
#[pyclass(frozen, module = "warpann")]
pub struct IndexWriter {
    writing: Box<dyn Writing>,
    element: ElementType,
    dim: usize,
    place: (Placement, Option<u64>),
}

impl IndexWriter {
    fn object(&self, py: Python<'_>, held: Box<dyn Held>) -> PyResult<Py<PyAny>> {
        Index::of(held, self.place.0.clone(), self.place.1).object(py)
    }
}

#[pymethods]
impl IndexWriter {
    #[new]
    #[pyo3(signature = (index, /))]
    fn new(py: Python<'_>, index: &Bound<'_, Index>) -> PyResult<Self> {
        let index = index.get();
        let writing = index.reading(py, |held| Ok(held.writer()))?;
        Ok(IndexWriter { writing, element: index.element, dim: index.dim, place: index.place(py)? })
    }

    /// The last version, as an index of its own.
    fn current(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let (_, held) = detached(py, || Ok(self.writing.current()))?;
        self.object(py, held)
    }

    /// Number of the last version: the number of changes that were published.
    #[getter]
    fn version(&self, py: Python<'_>) -> PyResult<u64> {
        detached(py, || Ok(self.writing.version()))
    }

    /// Calls a function with an index that is the next version, and publishes what the function has made of it. Changes
    /// of several threads come one after the other.
    ///
    /// Args:
    ///     function: takes the index and changes it. If it raises, nothing is published. The index is its own after the
    ///         call: later changes of it are in no version.
    ///
    /// Returns:
    ///     What the function returns.
    ///
    /// Raises:
    ///     The exceptions of the function; Busy if it calls ``change`` of the same writer.
    #[pyo3(signature = (function, /))]
    fn change(&self, py: Python<'_>, function: Py<PyAny>) -> PyResult<Py<PyAny>> {
        let mut returned = None;
        detached(py, || {
            self.writing.change(&mut |held| {
                let changed = attach(|py| {
                    let next = self.object(py, held)?;
                    let next = next.bind(py);
                    returned = Some(called(|| function.bind(py).call1((next,)))?.unbind());
                    let index = next.cast::<Index>().map_err(PyErr::from)?.get();
                    Ok(index.reading(py, |held| Ok(held.snapshot()))?)
                });
                changed.unwrap_or(Err(Failure::Busy))
            })
        })?;
        Ok(returned.unwrap_or_else(|| py.None()))
    }

    /// Frees the memory of former versions that nobody has any more. Every change begins with this, so only a program
    /// that has no more changes for a while needs it.
    ///
    /// Raises:
    ///     Busy: a function in ``change`` of the same writer calls it.
    fn release(&self, py: Python<'_>) -> PyResult<()> {
        detached(py, || self.writing.release())
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let (number, held) = detached(py, || Ok(self.writing.current()))?;
        Ok(format!("<warpann.IndexWriter: version {number} of {}>", held.description()))
    }
}

/// Answers single requests of any number of threads and tasks by searches of many at once.
///
/// Each answer has the bits of a search alone, in the version of the index that was current when the search began.
///
/// Args:
///     index: an index, of which the batcher takes a snapshot, or an :class:`IndexWriter`, whose versions it follows.
///     waiting: the most requests that wait; further ones are refused (``Refused``, reason "full").
///     target: seconds from a request to its answer that batches keep, as long as no more requests wait than one takes.
///     workers: number of searches at once; None: 4 for an exact index, for
///         others one for two processors, at least 4 and at most 8.
///
/// A batcher is a context manager, which closes it. A batcher that is dropped first answers what it has accepted.
///
/// >>> import numpy as np, warpann
/// >>> index = warpann.FlatIndex(1)
/// >>> index.add(np.float32([[0], [1], [2]]))
/// >>> with warpann.Batcher(index) as batcher:
/// ...     answer = batcher.submit(np.float32([1.2]), 1)
/// ...     distances, ids = answer.result()
/// >>> ids.tolist()
/// [1]
#[pyclass(frozen, module = "warpann")]
pub struct Batcher {
    serving: Arc<dyn Serving>,
    element: ElementType,
    dim: usize,
}

/// The batchers that live. At the end of the interpreter they are closed, so that no worker calls into it afterwards.
static ALIVE: Mutex<Vec<Weak<dyn Serving>>> = Mutex::new(Vec::new());

/// Closes the batchers that live, and waits for their workers.
pub fn close_batchers(py: Python<'_>) {
    let alive = std::mem::take(&mut *ALIVE.lock().unwrap_or_else(PoisonError::into_inner));
    detach(py, || alive.iter().filter_map(Weak::upgrade).for_each(|serving| serving.close()));
}

#[pymethods]
impl Batcher {
    #[new]
    #[pyo3(signature = (index, *, waiting=65536, target=0.002, workers=None))]
    fn new(
        py: Python<'_>,
        index: &Bound<'_, PyAny>,
        waiting: usize,
        target: f64,
        workers: Option<usize>,
    ) -> PyResult<Self> {
        let target = seconds(py, "target", target)?;
        let builder = BatcherBuilder::new().waiting(waiting).target(target);
        let builder = workers.iter().fold(builder, |builder, &workers| builder.workers(workers));
        let (serving, element, dim) = if let Ok(writer) = index.cast::<IndexWriter>() {
            let writer = writer.get();
            (detached(py, || Ok(writer.writing.batcher(builder)?))?, writer.element, writer.dim)
        } else if let Ok(index) = index.cast::<Index>() {
            let index = index.get();
            (index.reading(py, |held| held.batcher(builder))?, index.element, index.dim)
        } else {
            let actual = index.get_type().name()?;
            return Err(wrong_type(py, "index", actual.to_cow()?.as_ref(), "an index or an IndexWriter"));
        };
        let serving: Arc<dyn Serving> = serving.into();
        let mut alive = ALIVE.lock().unwrap_or_else(PoisonError::into_inner);
        alive.retain(|serving| serving.strong_count() > 0);
        alive.push(Arc::downgrade(&serving));
        Ok(Batcher { serving, element, dim })
    }

    /// Accepts a request and returns at once.
    ///
    /// Args:
    ///     query: (dim,).
    ///     k: number of neighbours.
    ///     filter, probes, beam, radius, widen: as for ``search`` of the index. Requests with the same
    ///         :class:`Filter` share a search.
    ///     timeout: seconds within which the search must begin; None means no limit. After it the request is refused.
    ///
    /// Returns:
    ///     Answer: a ``concurrent.futures.Future`` of :class:`Neighbors` with arrays of shape (k,). Tasks of asyncio
    ///     await it. ``cancel()`` takes the request back if its search has not begun.
    ///
    /// Raises:
    ///     Refused: too many requests wait, or the batcher is closed.
    ///     WrongDimension, WrongShape, WrongType, NotFinite, Zero, BadNumber, NotTrained. Other exceptions are those of
    ///     the answer.
    #[pyo3(signature = (query, k, *, filter=None, probes=None, beam=None, radius=None, widen=true, timeout=None))]
    #[allow(clippy::too_many_arguments, reason = "Python passes them by name")]
    fn submit<'py>(
        &self,
        py: Python<'py>,
        query: &Bound<'py, PyAny>,
        k: usize,
        filter: Option<&Bound<'py, PyAny>>,
        probes: Option<usize>,
        beam: Option<usize>,
        radius: Option<f32>,
        widen: bool,
        timeout: Option<f64>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let query = Vectors::of(query, self.element, self.dim, "query")?;
        let filter = filter::optional(filter)?;
        let options = options(probes, beam, radius, widen, None);
        let deadline = deadline(py, timeout)?;
        let row = query.bytes();
        let answer = detached(py, || Ok(self.serving.submit(row, k, options, filter, deadline)?))?;
        let future = layer::answer(py)?.call0()?;
        let pending = Arc::new(Pending { answer: Mutex::new(Some(answer)), future: future.clone().unbind() });
        future.setattr("_request", PendingRequest { pending: Arc::clone(&pending) }.into_pyobject(py)?)?;
        detach(py, || pending.poll());
        Ok(future)
    }

    /// Numbers of requests and searches until now.
    fn statistics<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let of = detach(py, || self.serving.statistics());
        layer::batcher_statistics(py)?.call1((
            of.answered,
            of.failed,
            of.expired,
            of.cancelled,
            of.full,
            of.searches,
            of.waiting,
            of.running,
            of.limit,
        ))
    }

    /// Refuses further requests, and returns when those that were accepted are answered.
    ///
    /// Raises:
    ///     Busy: in a function that the batcher calls, which would wait for itself.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        detached(py, || {
            if inside() {
                return Err(Failure::Busy);
            }
            self.serving.close();
            Ok(())
        })
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, pyo3::types::PyTuple>) -> PyResult<()> {
        self.close(py)
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        let of = detach(py, || self.serving.statistics());
        format!("<warpann.Batcher: {} answered, {} waiting>", of.answered, of.waiting)
    }
}

impl Drop for Batcher {
    /// The last reference may go on a worker of this batcher, in a callback of an answer, or while this thread has the
    /// interpreter's lock, for which workers wait. So another thread waits for the workers.
    fn drop(&mut self) {
        let serving = Arc::clone(&self.serving);
        // Without a thread the batcher is closed at the end of the interpreter.
        let _ = thread::Builder::new().name("warpann batcher end".into()).spawn(move || serving.close());
    }
}

/// A duration of an argument.
fn seconds(py: Python<'_>, what: &'static str, value: f64) -> PyResult<Duration> {
    let bad = |_| Failure::Library(Error::BadNumber { what, value, least: 0.0 }).raised(py);
    Duration::try_from_secs_f64(value).map_err(bad)
}

fn deadline(py: Python<'_>, timeout: Option<f64>) -> PyResult<Option<Instant>> {
    let Some(timeout) = timeout else { return Ok(None) };
    // A deadline beyond the clock's range is none.
    Ok(Instant::now().checked_add(seconds(py, "timeout", timeout)?))
}

/// A request that waits, and the future that gets its answer. It is its own waker.
struct Pending {
    answer: Mutex<Option<Answer>>,
    future: Py<PyAny>,
}

impl Pending {
    /// Gives the future its answer if the answer is there; else the answer wakes this again.
    fn poll(self: &Arc<Self>) {
        let mut answer = self.answer.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(waiting) = answer.as_mut() else { return };
        let waker = Waker::from(Arc::clone(self));
        let polled = catch_unwind(AssertUnwindSafe(|| Pin::new(waiting).poll(&mut Context::from_waker(&waker))));
        let outcome = match polled {
            Ok(Poll::Pending) => return,
            Ok(Poll::Ready(result)) => Ok(result),
            Err(panic) => Err(panic),
        };
        *answer = None;
        drop(answer);
        // If the interpreter ends, nobody reads the answer.
        attach(|py| {
            if let Err(error) = called(|| self.deliver(py, outcome)) {
                error.write_unraisable(py, Some(self.future.bind(py)));
            }
        });
    }

    fn deliver(
        &self,
        py: Python<'_>,
        outcome: Result<warpann::Result<Neighbors>, Box<dyn Any + Send>>,
    ) -> PyResult<()> {
        let found = call::outcome(py, outcome.map(|result| result.map_err(Failure::Library)));
        let (found, error) = match found.and_then(|found| neighbors(py, found, true)) {
            Ok(found) => (Some(found), None),
            Err(error) => (None, Some(error.into_value(py))),
        };
        self.future.bind(py).call_method1("_finish", (found, error)).map(drop)
    }
}

impl Wake for Pending {
    fn wake(self: Arc<Self>) {
        self.poll();
    }
}

/// The request of an answer.
#[pyclass(frozen, module = "warpann._warpann")]
pub struct PendingRequest {
    pending: Arc<Pending>,
}

#[pymethods]
impl PendingRequest {
    /// Takes the request back.
    fn cancel(&self, py: Python<'_>) {
        detach(py, || drop(self.pending.answer.lock().unwrap_or_else(PoisonError::into_inner).take()));
    }
}
