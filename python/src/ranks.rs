//! Groups of processes: any communicator of Python as the library's group of ranks.

use std::fmt;
use std::panic::resume_unwind;
use std::path::PathBuf;

use numpy::{PyReadonlyArray2, PyUntypedArrayMethods};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};
use warpann::distributed::{self, Ranks as _};
use warpann::{Metric, Neighbors};

use crate::arrays::neighbors;
use crate::call::detached;
use crate::ending::attach;
use crate::errors::{Failure, parsed, wrong_type};

/// Shown to the other ranks.
impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Library(error) => error.fmt(f),
            // It has the name of the class, and then the message.
            Failure::Python(error) => error.fmt(f),
            Failure::Busy => f.write_str("the index is in use"),
        }
    }
}

/// A group of processes, by a communicator: an object with ``rank``, ``size``, ``bcast(value, root)`` and
/// ``gather(value, root)``, as those of mpi4py. Only bytes pass through it.
///
/// All methods except ``part`` are collective: every rank calls them in the same order. If the communicator raises, the
/// exception leaves the call, and the ranks are then out of step.
#[pyclass(frozen, module = "warpann._warpann")]
pub struct Ranks {
    communicator: Py<PyAny>,
    rank: usize,
    count: usize,
}

impl Ranks {
    /// Calls a method of the communicator. The library calls without the interpreter's lock, and an exception leaves it
    /// as a panic, which [`detached`] catches.
    fn call<V>(&self, call: impl FnOnce(&Bound<'_, PyAny>) -> PyResult<V>) -> Option<V> {
        match attach(|py| call(self.communicator.bind(py))) {
            Some(Ok(value)) => Some(value),
            Some(Err(error)) => resume_unwind(Box::new(error)),
            // The interpreter ends, and nobody reads the result.
            None => None,
        }
    }
}

/// The bytes that a communicator returned.
fn bytes(value: &Bound<'_, PyAny>, method: &str) -> PyResult<Vec<u8>> {
    let received = value.cast::<PyBytes>().map(|bytes| bytes.as_bytes().to_vec());
    received.map_err(|_| wrong_reply(value, method, "the bytes that were sent"))
}

/// A reply of a communicator that is not what was sent.
fn wrong_reply(value: &Bound<'_, PyAny>, method: &str, expected: &str) -> PyErr {
    let actual = value.get_type().name().map_or_else(|_| "an object".into(), |name| name.to_string());
    wrong_type(value.py(), &format!("{method} of the communicator"), &actual, expected)
}

impl distributed::Ranks for Ranks {
    fn rank(&self) -> usize {
        self.rank
    }

    fn count(&self) -> usize {
        self.count
    }

    fn broadcast(&self, mine: Vec<u8>) -> Vec<u8> {
        let all = self.call(|communicator| {
            let py = communicator.py();
            let mine = (self.rank == 0).then(|| PyBytes::new(py, &mine));
            bytes(&communicator.call_method1("bcast", (mine, 0))?, "bcast")
        });
        all.unwrap_or_default()
    }

    fn gather(&self, mine: Vec<u8>) -> Vec<Vec<u8>> {
        let all = self.call(|communicator| {
            let all = communicator.call_method1("gather", (PyBytes::new(communicator.py(), &mine), 0))?;
            if self.rank > 0 {
                return Ok(Vec::new());
            }
            let parts: Vec<Bound<'_, PyAny>> =
                all.extract().map_err(|_| wrong_reply(&all, "gather", "the bytes of every rank"))?;
            if parts.len() != self.count {
                return Err(wrong_reply(&all, "gather", "the bytes of every rank"));
            }
            parts.iter().map(|part| bytes(part, "gather")).collect()
        });
        all.unwrap_or_default()
    }
}

#[pymethods]
impl Ranks {
    #[new]
    #[pyo3(signature = (communicator, /))]
    fn new(communicator: Bound<'_, PyAny>) -> PyResult<Self> {
        let number = |name: &str| communicator.getattr(name).and_then(|number| number.extract::<usize>()).ok();
        match (number("rank"), number("size")) {
            (Some(rank), Some(count)) if rank < count => Ok(Ranks { rank, count, communicator: communicator.unbind() }),
            _ => Err(wrong_reply(&communicator, "rank and size", "integers, 0 <= rank < size")),
        }
    }

    /// The number of this rank, from 0.
    #[getter(rank)]
    fn number(&self) -> usize {
        self.rank
    }

    /// Number of ranks.
    #[getter(size)]
    fn size(&self) -> usize {
        self.count
    }

    /// The bytes of rank 0, at every rank. Other ranks pass anything.
    #[pyo3(name = "broadcast", signature = (data, /))]
    fn broadcast_bytes<'py>(&self, py: Python<'py>, data: Vec<u8>) -> PyResult<Bound<'py, PyBytes>> {
        let all = detached(py, || Ok(self.broadcast(data)))?;
        PyBytes::new_with(py, all.len(), |to| {
            to.copy_from_slice(&all);
            Ok(())
        })
    }

    /// The bytes of every rank at rank 0, and nothing at the others.
    #[pyo3(name = "gather", signature = (data, /))]
    fn gather_bytes<'py>(&self, py: Python<'py>, data: Vec<u8>) -> PyResult<Bound<'py, PyList>> {
        let all = detached(py, || Ok(self.gather(data)))?;
        PyList::new(py, all.iter().map(|part| PyBytes::new(py, part)))
    }

    /// Ends what every rank did alone: raises this rank's exception, or ``RankFailed`` if another rank has one.
    #[pyo3(signature = (failed, /))]
    fn agree(&self, py: Python<'_>, failed: Option<Bound<'_, PyAny>>) -> PyResult<()> {
        let mine = failed.map_or(Ok(()), |error| Err(Failure::Python(PyErr::from_value(error))));
        detached(py, || distributed::agree(self, mine))
    }

    /// The k best of the results of all ranks, at rank 0; None at the others. Exceptions as :meth:`agree`.
    ///
    /// Args:
    ///     metric: that of the index.
    ///     found: (distances, ids) of this rank.
    ///     failed: the exception of this rank's search.
    #[pyo3(signature = (metric, found, failed, /))]
    fn merge<'py>(
        &self,
        py: Python<'py>,
        metric: &str,
        found: Option<Found<'py>>,
        failed: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let mine = match (found, failed) {
            (_, Some(error)) => Err(PyErr::from_value(error)),
            (Some(found), None) => parsed::<Metric>(py, metric).map(|metric| (metric, part(found))),
            (None, None) => Err(PyRuntimeError::new_err("neither results nor an exception")),
        };
        let all = detached(py, || match mine {
            Ok((metric, found)) => distributed::merge(self, metric, Ok(found)),
            Err(error) => distributed::agree(self, Err(Failure::Python(error))),
        })?;
        all.map(|all| neighbors(py, all, false)).transpose()
    }

    /// The file of this rank's part of the index ``path``.
    #[pyo3(signature = (path, /))]
    fn part(&self, path: PathBuf) -> PathBuf {
        distributed::part(path, self)
    }
}

/// Distances and ids, (queries, k).
type Found<'py> = (PyReadonlyArray2<'py, f32>, PyReadonlyArray2<'py, i64>);

/// The results of a shard as the library has them.
fn part((distances, ids): Found<'_>) -> Neighbors {
    let k = ids.shape()[1];
    let ids = ids.as_array().iter().map(|&id| id as u64).collect();
    Neighbors { k, ids, distances: distances.as_array().iter().copied().collect() }
}

/// The k best of the results of several shards, which have different ids.
///
/// Args:
///     metric: that of the index.
///     parts: (distances, ids) of each shard: float32 and int64, (queries, k), best first.
///
/// Returns:
///     Neighbors: (queries, k).
///
/// Raises:
///     Incompatible: there is no part, or the shapes differ.
#[pyfunction]
#[pyo3(signature = (metric, parts, /))]
pub fn merge_parts<'py>(py: Python<'py>, metric: &str, parts: Vec<Found<'py>>) -> PyResult<Bound<'py, PyAny>> {
    let metric = parsed(py, metric)?;
    let parts = parts.into_iter().map(part).collect();
    let all = detached(py, || Ok(distributed::merge_parts(metric, parts)?))?;
    neighbors(py, all, false)
}
