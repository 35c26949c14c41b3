//! The classes of indexes: `Index` has the methods of all, and each kind its own.

use std::path::PathBuf;
use std::sync::{PoisonError, RwLock, TryLockError};

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyTuple};
use warpann::element::ElementType;
use warpann::flat::FaissBits;
use warpann::graph::hnsw::HnswInfo;
use warpann::io::Open;
use warpann::ivf::{Encoding, FaissInfo, IvfIndexBuilder};
use warpann::{
    AnyIndex, FlatIndex, GraphIndex, IndexInfo, IndexKind, IvfIndex, Metric, Placement, Proof, SearchOptions,
    SearchStatistics, SharedFilter,
};

use crate::arrays::{Ids, Vectors, matrix, neighbors, range_neighbors, vector, widened};
use crate::call::{self, accepted, detached, watched};
use crate::errors::{ELEMENTS, parsed, placement, wrong_type};
use crate::filter::{self, Filter};
use crate::held::{Held, Statistics, with_element};
use crate::layer;

/// Additions of as many vectors look for signals and report progress. An index with many more vectors would copy them
/// for a short call, to bring them back if it is cancelled.
const LONG: usize = 10_000;

/// The index and where it is.
pub struct State {
    pub held: Box<dyn Held>,
    placement: Placement,
}

/// The base of all indexes: vectors with ids, of one dimension, element type and metric.
///
/// Indexes are made by :class:`FlatIndex`, :class:`IvfIndex`, :class:`GraphIndex`, :func:`load` and :func:`from_bytes`.
///
/// **Vectors** are arrays of shape (rows, dim), or (dim,) for a single vector: numpy arrays, or anything that numpy or
/// Arrow's capsules can read. Contiguous arrays of the element type of the index are read in place. Other numbers
/// become the nearest ones of this type, once: float64 becomes float32 for an index of float32. Do not write to an
/// array during a call that reads it.
///
/// **Ids** are int64 from 0 to 2**63 - 1: numbers of the caller's choice, or 0, 1, 2, ..; −1 means none.
///
/// **Threads.** Every call releases the lock of the interpreter. Any number of threads may search at the same time. A
/// change waits for the searches before it, and later searches wait for the change. :class:`IndexWriter` has searches
/// that do not wait.
///
/// **Errors.** All calls raise subclasses of :class:`WarpannError` (``warpann.errors``) with the numbers of the
/// fault. A call that fails, is cancelled or is interrupted leaves the index as it was.
#[pyclass(frozen, subclass, module = "warpann")]
pub struct Index {
    pub state: RwLock<State>,
    pub element: ElementType,
    pub dim: usize,
    budget: Option<u64>,
}

impl Index {
    pub fn of(held: Box<dyn Held>, placement: Placement, budget: Option<u64>) -> Self {
        let (element, dim) = (held.element(), held.dim());
        Index { state: RwLock::new(State { held, placement }), element, dim, budget }
    }

    /// An index of the right class for what is held.
    pub fn object(mut self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let kind = self.state.get_mut().unwrap_or_else(PoisonError::into_inner).held.kind();
        let new = PyClassInitializer::from(self);
        Ok(match kind {
            IndexKind::Ivf => Py::new(py, new.add_subclass(PyIvfIndex))?.into_any(),
            IndexKind::Graph => Py::new(py, new.add_subclass(PyGraphIndex))?.into_any(),
            _ => Py::new(py, new.add_subclass(PyFlatIndex))?.into_any(),
        })
    }

    /// A quick look at the index. If it changes at the moment, the call waits without the interpreter's lock.
    ///
    /// `look` is O(1), and never work of the library's threads: these may wait for the interpreter's lock, in a filter
    /// of another search, and then nobody goes on.
    pub fn look<V: Send>(&self, py: Python<'_>, look: impl Fn(&State) -> V + Send + Sync) -> PyResult<V> {
        match self.state.try_read() {
            Ok(state) => Ok(look(&state)),
            Err(TryLockError::Poisoned(poisoned)) => Ok(look(&poisoned.into_inner())),
            Err(TryLockError::WouldBlock) => detached(py, || Ok(look(&*call::read(&self.state)?))),
        }
    }

    /// A call that reads the index.
    pub fn reading<V: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&dyn Held) -> warpann::Result<V> + Send,
    ) -> PyResult<V> {
        detached(py, || Ok(work(&*call::read(&self.state)?.held)?))
    }

    /// A call that changes the index.
    fn changing<V: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&mut dyn Held) -> warpann::Result<V> + Send,
    ) -> PyResult<V> {
        detached(py, || Ok(work(&mut *call::write(&self.state)?.held)?))
    }

    pub fn vectors<'py>(&self, value: &Bound<'py, PyAny>, argument: &str) -> PyResult<Vectors<'py>> {
        Vectors::of(value, self.element, self.dim, argument)
    }
}

/// The options of a search.
pub fn options<'a>(
    probes: Option<usize>,
    beam: Option<usize>,
    radius: Option<f32>,
    widen: bool,
    filter: Option<&'a SharedFilter>,
) -> SearchOptions<'a> {
    let options = SearchOptions::new().probes(probes).beam(beam).radius(radius).widen(widen);
    options.filter(filter.map(SharedFilter::as_filter))
}

fn search_statistics(py: Python<'_>, statistics: SearchStatistics) -> PyResult<Bound<'_, PyAny>> {
    let SearchStatistics { queries, accepted, exact_queries, lists, most_lists, beam, refined, passes, .. } =
        statistics;
    let all = (queries, accepted, exact_queries, lists, most_lists, beam, refined, passes);
    layer::search_statistics(py)?.call1(all)
}

#[pymethods]
impl Index {
    /// Number of components of a vector.
    #[getter]
    fn dim(&self) -> usize {
        self.dim
    }

    /// The element type: "f32", "f16", "bf16", "u8" or "i8".
    #[getter]
    fn dtype(&self) -> &'static str {
        self.element.name()
    }

    /// The metric: "l2" (squared Euclidean distance), "ip" (inner product), "cosine" or "hamming" (differing bits).
    #[getter]
    fn metric(&self, py: Python<'_>) -> PyResult<&'static str> {
        self.look(py, |state| state.held.metric().name())
    }

    /// A description of the devices in use: what "auto" has chosen, the threads and instructions of the CPU.
    #[getter]
    fn device(&self, py: Python<'_>) -> PyResult<String> {
        self.look(py, |state| state.held.device())
    }

    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        self.look(py, |state| state.held.len())
    }

    fn __contains__(&self, py: Python<'_>, id: &Bound<'_, PyAny>) -> PyResult<bool> {
        match id.extract::<u64>() {
            // The first look for an id may make a table, in parallel.
            Ok(id) => self.reading(py, |held| Ok(held.contains(id))),
            Err(_) => Ok(false),
        }
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        self.reading(py, |held| Ok(format!("<warpann.{}>", held.description())))
    }

    /// All ids, ascending: int64, (vectors,). Entry r of a mask stands for the r-th of them. O(vectors).
    fn ids<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let ids = self.reading(py, |held| Ok(held.ids()))?;
        Ok(vector(py, crate::arrays::signed(ids)))
    }

    /// A filter for the ids that the index has now, made once for many searches.
    ///
    /// Args:
    ///     accepts: a function of an id (int) that returns whether a search may return the vector. It is called once
    ///         for each vector. For many vectors a mask is much faster: ``Filter(index.ids() % 2 == 0)``.
    ///
    /// Returns:
    ///     A :class:`Filter`. Searches refuse it after ids were added or removed (``StaleFilter``).
    #[pyo3(signature = (accepts, /))]
    fn filter(&self, py: Python<'_>, accepts: Py<PyAny>) -> PyResult<Filter> {
        let bits = self.reading(py, |held| Ok(held.filter(&mut |id| accepted(&accepts, id))))?;
        Ok(Filter { shared: bits.into() })
    }

    /// The vectors with these ids: those that were added, or in an index of codes those that the codes stand for.
    ///
    /// Args:
    ///     ids: integers, (n,).
    ///
    /// Returns:
    ///     float32, (n, dim), which holds the values of every element type.
    ///
    /// Raises:
    ///     UnknownId: the index has no vector with an id.
    #[pyo3(signature = (ids, /))]
    fn reconstruct<'py>(&self, py: Python<'py>, ids: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let ids = Ids::of(ids, "ids")?;
        let (wanted, dim) = (ids.get(), self.dim);
        let components = self.reading(py, |held| {
            let mut to: Vec<f32> = Vec::new();
            let count = wanted.len().saturating_mul(dim);
            let short = warpann::Error::OutOfHostMemory { asked: (count as u64).saturating_mul(4) };
            to.try_reserve_exact(count).map_err(|_| short)?;
            to.resize(count, 0.0);
            held.reconstruct(wanted, &mut to)?;
            Ok(to)
        })?;
        matrix(py, components, dim)
    }

    /// The number of vectors, the memory, and what else the kind of index counts.
    ///
    /// Returns:
    ///     FlatStatistics, IvfStatistics or GraphStatistics.
    fn statistics<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        match self.reading(py, |held| Ok(held.statistics()))? {
            Statistics::Flat(of) => {
                layer::flat_statistics(py)?.call1((of.vectors, of.removed, of.host_bytes, of.device_bytes))
            }
            Statistics::Ivf(of) => {
                let lists = (of.vectors, of.lists, of.empty_lists, of.shortest, of.mean, of.longest, of.imbalance);
                let rest = (of.code_bytes, of.bytes, of.clamped_vectors, of.clamped_components);
                let (lists, rest) = (lists.into_pyobject(py)?, rest.into_pyobject(py)?);
                let all: Vec<_> = lists.iter().chain(rest.iter()).collect();
                layer::ivf_statistics(py)?.call1(PyTuple::new(py, all)?)
            }
            Statistics::Graph(of) => layer::graph_statistics(py)?.call1((
                of.vectors,
                of.removed,
                of.edges,
                of.mean_degree,
                of.starts,
                of.reachable,
                of.equal,
                of.codes,
                of.outside,
                of.host_bytes,
                of.device_bytes,
            )),
        }
    }

    /// Adds vectors.
    ///
    /// Args:
    ///     vectors: (rows, dim) or (dim,). A tensor on the GPU of the index (``__dlpack__``, in a build with
    ///         ``cuda``) is copied there, without a progress function.
    ///     ids: integers, (rows,), all different and none in the index. Without ids they count up from 0, or from one
    ///         past the greatest id.
    ///     progress: a function of a :class:`Progress`, called from time to time on any thread. If it returns False or
    ///         raises, the call ends and nothing is added. A call with a progress function, or with 10,000 vectors or
    ///         more and at least a quarter of those in the index, can also be interrupted by Ctrl-C.
    ///
    /// Raises:
    ///     NotTrained, WrongDimension, WrongLength, DuplicateId, IdOutOfRange, NotFinite, DoesNotFit, TooMany,
    ///     Cancelled, OutOfHostMemory, DeviceError.
    #[pyo3(signature = (vectors, ids=None, *, progress=None))]
    fn add(
        &self,
        py: Python<'_>,
        vectors: &Bound<'_, PyAny>,
        ids: Option<&Bound<'_, PyAny>>,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<()> {
        let ids = Ids::optional(ids, "ids")?;
        #[cfg(feature = "cuda")]
        if let Some(gpu) = crate::tensors::gpu_of(vectors)? {
            return self.add_tensor(py, vectors, gpu, ids.as_ref().map(Ids::get));
        }
        let vectors = self.vectors(vectors, "vectors")?;
        let (rows, ids) = (vectors.bytes(), ids.as_ref().map(Ids::get));
        let long = vectors.count >= LONG && vectors.count >= self.look(py, |state| state.held.len())? / 4;
        if progress.is_some() || long {
            return watched(py, progress, |watch| Ok(call::write(&self.state)?.held.add(rows, ids, watch)?));
        }
        self.changing(py, |held| held.add(rows, ids, &warpann::Watch::none()))
    }

    /// Adds vectors with ids, and replaces those whose ids the index has.
    ///
    /// Args:
    ///     vectors: (rows, dim) or (dim,).
    ///     ids: integers, (rows,), all different.
    ///
    /// Returns:
    ///     The number of replaced vectors.
    ///
    /// Raises:
    ///     As :meth:`add`, but an id of the index is no error.
    fn upsert(&self, py: Python<'_>, vectors: &Bound<'_, PyAny>, ids: &Bound<'_, PyAny>) -> PyResult<usize> {
        let (vectors, ids) = (self.vectors(vectors, "vectors")?, Ids::of(ids, "ids")?);
        let (rows, ids) = (vectors.bytes(), ids.get());
        self.changing(py, |held| held.upsert(rows, ids))
    }

    /// Removes the vectors with these ids.
    ///
    /// Args:
    ///     ids: integers, (n,), all different.
    ///     missing_ok: whether ids that the index does not have are skipped.
    ///
    /// Returns:
    ///     The number of removed vectors.
    ///
    /// Raises:
    ///     UnknownId: the least id that the index does not have, unless ``missing_ok``.
    ///     DuplicateId: an id occurs twice.
    #[pyo3(signature = (ids, *, missing_ok=false))]
    fn remove(&self, py: Python<'_>, ids: &Bound<'_, PyAny>, missing_ok: bool) -> PyResult<usize> {
        let ids = Ids::of(ids, "ids")?;
        let ids = ids.get();
        self.changing(py, |held| match missing_ok {
            true => held.remove_if_present(ids),
            false => held.remove(ids).map(|()| ids.len()),
        })
    }

    /// Removes all vectors. Training and settings stay.
    fn clear(&self, py: Python<'_>) -> PyResult<()> {
        self.changing(py, |held| {
            held.clear();
            Ok(())
        })
    }

    /// Adds the vectors of another index with their ids. Inverted files must have the same training.
    ///
    /// Raises:
    ///     Incompatible: kind, dimension, metric or training differ.
    ///     Mismatch: the element types differ.
    ///     DuplicateId: both indexes have an id.
    #[pyo3(signature = (other, /))]
    fn merge(&self, py: Python<'_>, other: &Bound<'_, Index>) -> PyResult<()> {
        let other = other.get();
        detached(py, || {
            // Of a snapshot, so that this call never has two locks: two threads may merge two indexes both ways.
            let other = call::read(&other.state)?.held.snapshot();
            Ok(call::write(&self.state)?.held.merge(&*other)?)
        })
    }

    /// Frees the memory that removed vectors left. O(vectors · dim).
    fn compact(&self, py: Python<'_>) -> PyResult<()> {
        self.changing(py, |held| held.compact())
    }

    /// Moves the index to other devices, through host memory.
    ///
    /// Args:
    ///     device: as for a new index.
    #[pyo3(signature = (device, /))]
    fn move_to(&self, py: Python<'_>, device: &str) -> PyResult<()> {
        let placement = placement(py, device)?;
        detached(py, || {
            let mut state = call::write(&self.state)?;
            state.held.move_to(placement.clone())?;
            state.placement = placement;
            Ok(())
        })
    }

    /// An index of its own with the vectors of now. The two share memory until one changes: O(1) now, and the first
    /// change of either copies what it changes.
    fn snapshot(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let (held, placement) = detached(py, || {
            let state = call::read(&self.state)?;
            Ok((state.held.snapshot(), state.placement.clone()))
        })?;
        Index::of(held, placement, self.budget).object(py)
    }

    /// Finds the k nearest vectors of each query, best first, equal distances by lower id.
    ///
    /// Args:
    ///     queries: (queries, dim), or (dim,) for a single query.
    ///     k: number of neighbours of a query, at least 1.
    ///     filter: the vectors that may be results: a :class:`Filter`, or what it takes (a boolean mask, ids, a
    ///         range, a function). None means all.
    ///     probes: lists to read in inverted files; None means the number of the index.
    ///     beam: vectors that a walk in a graph keeps; None means the number of the index.
    ///     radius: the largest distance of a neighbour (similarity: the smallest), squared for "l2".
    ///     widen: whether a filtered search of inverted files may read more lists, until k vectors are found.
    ///
    /// Options that a kind of index does not have are ignored.
    ///
    /// Returns:
    ///     Neighbors: ``distances`` (float32) and ``ids`` (int64), both (queries, k), or (k,) for a single query.
    ///     Places without a neighbour have the id −1 and the distance +∞ (similarities: −∞).
    ///
    /// Raises:
    ///     WrongDimension, WrongShape, WrongType, NotFinite, Zero, NotTrained, StaleFilter, WrongLength,
    ///     ResultTooLarge, DeviceError; the exceptions of a filter function.
    #[pyo3(signature = (queries, k, *, filter=None, probes=None, beam=None, radius=None, widen=true))]
    #[allow(clippy::too_many_arguments, reason = "Python passes them by name")]
    fn search<'py>(
        &self,
        py: Python<'py>,
        queries: &Bound<'py, PyAny>,
        k: usize,
        filter: Option<&Bound<'py, PyAny>>,
        probes: Option<usize>,
        beam: Option<usize>,
        radius: Option<f32>,
        widen: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (queries, filter) = (self.vectors(queries, "queries")?, filter::optional(filter)?);
        let options = options(probes, beam, radius, widen, filter.as_ref());
        let rows = queries.bytes();
        let found = match options == SearchOptions::new() {
            true => self.reading(py, |held| held.search(rows, k))?,
            false => self.reading(py, |held| held.search_with(rows, k, &options))?,
        };
        neighbors(py, found, queries.single)
    }

    /// As :meth:`search`, and says what the search did.
    ///
    /// Returns:
    ///     (Neighbors, SearchStatistics)
    #[pyo3(signature = (queries, k, *, filter=None, probes=None, beam=None, radius=None, widen=true))]
    #[allow(clippy::too_many_arguments, reason = "Python passes them by name")]
    fn search_with_statistics<'py>(
        &self,
        py: Python<'py>,
        queries: &Bound<'py, PyAny>,
        k: usize,
        filter: Option<&Bound<'py, PyAny>>,
        probes: Option<usize>,
        beam: Option<usize>,
        radius: Option<f32>,
        widen: bool,
    ) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyAny>)> {
        let (queries, filter) = (self.vectors(queries, "queries")?, filter::optional(filter)?);
        let options = options(probes, beam, radius, widen, filter.as_ref());
        let rows = queries.bytes();
        let (found, statistics) = self.reading(py, |held| held.search_with_statistics(rows, k, &options))?;
        Ok((neighbors(py, found, queries.single)?, search_statistics(py, statistics)?))
    }

    /// Finds all vectors within a radius of each query, best first. An exact index and a graph compare all vectors;
    /// inverted files those in the probed lists.
    ///
    /// Args:
    ///     queries: (queries, dim), or (dim,) for a single query.
    ///     radius: the largest distance (similarity: the smallest), squared for "l2".
    ///     filter, probes: as for :meth:`search`.
    ///
    /// Returns:
    ///     RangeNeighbors: ``limits`` (queries + 1,), ``distances`` and ``ids``; the results of query q are those at
    ///     ``limits[q]:limits[q + 1]``.
    #[pyo3(signature = (queries, radius, *, filter=None, probes=None))]
    fn range_search<'py>(
        &self,
        py: Python<'py>,
        queries: &Bound<'py, PyAny>,
        radius: f32,
        filter: Option<&Bound<'py, PyAny>>,
        probes: Option<usize>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (queries, filter) = (self.vectors(queries, "queries")?, filter::optional(filter)?);
        let options = options(probes, None, None, true, filter.as_ref());
        let rows = queries.bytes();
        let found = self.reading(py, |held| held.range_search(rows, radius, &options))?;
        range_neighbors(py, found)
    }

    /// Finds the least effort (probes, beam) with which searches for k vectors reach a recall, and makes it that of the
    /// index.
    ///
    /// Args:
    ///     queries: (queries, dim): a hundred or more, like those of later searches.
    ///     k: number of neighbours.
    ///     recall: the share of the true neighbours, above 0 and at most 1.
    ///
    /// Returns:
    ///     Tuned: ``effort``, and the ``recall`` that it reaches. Exact indexes: 1 and 1.0.
    ///
    /// Raises:
    ///     RecallOutOfReach, NoTrueNeighbors; as :meth:`search`.
    fn tune<'py>(
        &self,
        py: Python<'py>,
        queries: &Bound<'py, PyAny>,
        k: usize,
        recall: f64,
    ) -> PyResult<Bound<'py, PyAny>> {
        let queries = self.vectors(queries, "queries")?;
        let rows = queries.bytes();
        let tuned = self.changing(py, |held| held.tune(rows, k, recall))?;
        layer::tuned(py)?.call1(tuned)
    }

    /// Plans searches from GPU memory to GPU memory, and allocates all of their memory. The index must be on one GPU.
    ///
    /// Args:
    ///     queries: the most queries of a search.
    ///     k: number of neighbours of a query.
    ///     filter, probes, beam: as for :meth:`search`.
    ///
    /// Returns:
    ///     Workspace: its ``search`` takes and returns tensors. It is for the index as it is now.
    ///
    /// Raises:
    ///     NotInDeviceMemory: the index is not on one GPU, or the wheel was built without ``cuda``.
    ///     NotTrained, Zero, StaleFilter, OutOfDeviceMemory.
    #[pyo3(signature = (queries, k, *, filter=None, probes=None, beam=None))]
    fn device_workspace(
        slf: &Bound<'_, Self>,
        queries: usize,
        k: usize,
        filter: Option<&Bound<'_, PyAny>>,
        probes: Option<usize>,
        beam: Option<usize>,
    ) -> PyResult<Py<PyAny>> {
        let py = slf.py();
        #[cfg(feature = "cuda")]
        {
            let filter = filter::optional(filter)?;
            let options = options(probes, beam, None, true, filter.as_ref());
            Ok(Py::new(py, crate::tensors::Workspace::new(py, slf, queries, k, &options)?)?.into_any())
        }
        #[cfg(not(feature = "cuda"))]
        {
            let _ = (queries, k, filter, probes, beam);
            let index = slf.get().look(py, |state| state.held.device())?;
            Err(crate::errors::raised(py, warpann::Error::NotInDeviceMemory { index }))
        }
    }

    /// Writes the index to a file, which gets its name when it is complete. :func:`load` reads it.
    ///
    /// Args:
    ///     path: the file.
    ///     progress: as for :meth:`add`. If the call ends early, the old file stays as it was.
    ///
    /// Raises:
    ///     NotTrained, Io, OutOfHostMemory, Cancelled.
    #[pyo3(signature = (path, *, progress=None))]
    fn save(&self, py: Python<'_>, path: PathBuf, progress: Option<Py<PyAny>>) -> PyResult<()> {
        watched(py, progress, |watch| Ok(call::read(&self.state)?.held.save(&path, watch)?))
    }

    /// The bytes of the file that :meth:`save` writes. :func:`from_bytes` reads them; ``pickle`` uses them.
    fn to_bytes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let bytes = self.reading(py, |held| held.to_bytes())?;
        // `PyBytes::new` would panic without memory.
        PyBytes::new_with(py, bytes.len(), |to| {
            to.copy_from_slice(&bytes);
            Ok(())
        })
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyTuple>)> {
        let placement = self.look(py, |state| state.placement.to_string())?;
        let arguments = (self.to_bytes(py)?, placement, self.budget).into_pyobject(py)?;
        Ok((py.import("warpann")?.getattr("from_bytes")?, arguments))
    }
}

/// The element type that an argument names.
fn element(dtype: &Bound<'_, PyAny>) -> PyResult<ElementType> {
    let known = |text: &str| ELEMENTS.iter().find(|(name, _)| *name == text).map(|&(_, element)| element);
    if let Ok(text) = dtype.extract::<&str>()
        && let Some(element) = known(text)
    {
        return Ok(element);
    }
    let name: String = layer::element_name(dtype.py())?.call1((dtype,))?.extract()?;
    parsed(dtype.py(), &name)
}

/// The arguments that every kind of index takes.
struct Basis {
    dim: usize,
    metric: Metric,
    element: ElementType,
    placement: Placement,
    budget: Option<u64>,
}

impl Basis {
    fn new(
        py: Python<'_>,
        dim: usize,
        metric: &str,
        dtype: &Bound<'_, PyAny>,
        device: &str,
        budget: Option<u64>,
    ) -> PyResult<Self> {
        let (metric, element, placement) = (parsed(py, metric)?, element(dtype)?, placement(py, device)?);
        Ok(Basis { dim, metric, element, placement, budget })
    }

    fn built(&self, held: Box<dyn Held>) -> Index {
        Index::of(held, self.placement.clone(), self.budget)
    }
}

/// Sets what all builders have in common, builds, and wraps.
macro_rules! built {
    ($py:expr, $basis:expr, $type:ident => $builder:expr) => {{
        let basis = &$basis;
        let held = detached($py, || {
            with_element!(basis.element, $type => {
                let mut builder = $builder.metric(basis.metric).device(basis.placement.clone());
                if let Some(bytes) = basis.budget {
                    builder = builder.memory_budget(bytes);
                }
                Ok(Box::new(AnyIndex::<$type>::from(builder.build()?)) as Box<dyn Held>)
            })
        })?;
        basis.built(held)
    }};
}

/// Exact search: a search compares each query with every vector, and finds exactly the k best.
///
/// Args:
///     dim: number of components of a vector.
///     metric: "l2" (squared Euclidean distance), "ip" (inner product), "cosine", or "hamming": the number of bits in
///         which vectors of uint8 differ, eight bits in each component, as ``numpy.packbits`` makes them.
///     dtype: element type: "float32", "float16", "bfloat16", "uint8", "int8", or a dtype of numpy or torch.
///     device: "auto" (the first GPU, or the CPU), "cpu", "gpu:N", "emulator", or several: "gpu:0,gpu:1" are replicas,
///         "gpu:0+gpu:1" shards.
///     memory_budget: bytes that the index may use on each device; None means a share of the free memory.
///
/// Raises:
///     UnknownName, Zero, TooMany, NoDevice, OutOfDeviceMemory.
///     Mismatch: "hamming" with another dtype than "uint8".
///
/// >>> import numpy as np, warpann
/// >>> index = warpann.FlatIndex(2)
/// >>> index.add(np.array([[0, 0], [1, 0], [0, 2], [3, 3]], np.float32))
/// >>> distances, ids = index.search(np.float32([0.9, 0.1]), 2)
/// >>> ids.tolist()
/// [1, 0]
#[pyclass(frozen, extends = Index, name = "FlatIndex", module = "warpann")]
pub struct PyFlatIndex;

#[pymethods]
impl PyFlatIndex {
    #[new]
    #[pyo3(signature = (dim, *, metric="l2", dtype=None, device="auto", memory_budget=None))]
    fn new(
        py: Python<'_>,
        dim: usize,
        metric: &str,
        dtype: Option<&Bound<'_, PyAny>>,
        device: &str,
        memory_budget: Option<u64>,
    ) -> PyResult<PyClassInitializer<Self>> {
        let basis = Basis::new(py, dim, metric, &or_float32(py, dtype), device, memory_budget)?;
        let index = built!(py, basis, T => FlatIndex::<T>::builder(basis.dim));
        Ok(PyClassInitializer::from(index).add_subclass(PyFlatIndex))
    }

    /// Writes vectors of bits as an ``IndexBinaryFlat`` of FAISS (``faiss.read_index_binary``), in an
    /// ``IndexBinaryIDMap`` if ids are other numbers than 0, 1, 2, ..
    ///
    /// Args:
    ///     path: the file, which gets its name when it is complete.
    ///
    /// Raises:
    ///     Mismatch: another metric than "hamming".
    ///     OutOfRange: an id above 2**63 - 1.
    ///     TooMany: 2**28 bytes of a vector or more.
    ///     Io, OutOfHostMemory.
    fn save_faiss(slf: PyRef<'_, Self>, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        slf.as_super().reading(py, |held| held.save_bits(&path))
    }

    /// Opens a file of bits that FAISS (``faiss.write_index_binary``) or :meth:`save_faiss` wrote, as an index with the
    /// metric "hamming".
    ///
    /// Args:
    ///     path: a file of ``IndexBinaryFlat``, also in an ``IndexBinaryIDMap`` or ``IndexBinaryIDMap2``.
    ///     device, memory_budget: as for a new index.
    ///
    /// Raises:
    ///     BadFile: it is another file, damaged, or has negative or equal ids.
    ///     Io, OutOfHostMemory, NoDevice, OutOfDeviceMemory.
    #[staticmethod]
    #[pyo3(signature = (path, *, device="auto", memory_budget=None))]
    fn load_faiss(py: Python<'_>, path: PathBuf, device: &str, memory_budget: Option<u64>) -> PyResult<Py<PyAny>> {
        let placement = placement(py, device)?;
        let held = detached(py, || {
            let mut builder = FlatIndex::<u8>::builder(FaissBits::read(&path)?.dim).device(placement.clone());
            if let Some(budget) = memory_budget {
                builder = builder.memory_budget(budget);
            }
            Ok(Box::new(AnyIndex::from(builder.load_faiss(&path, Open::Auto)?)) as Box<dyn Held>)
        })?;
        Index::of(held, placement, memory_budget).object(py)
    }
}

/// The element type of indexes whose caller names none.
fn or_float32<'py>(py: Python<'py>, dtype: Option<&Bound<'py, PyAny>>) -> Bound<'py, PyAny> {
    dtype.cloned().unwrap_or_else(|| pyo3::types::PyString::new(py, "f32").into_any())
}

/// Search in inverted files: vectors are divided into lists around centroids, and a search reads the lists nearest to
/// the query. It misses vectors outside of these lists. The index must be trained before vectors are added.
///
/// Args:
///     dim, metric, dtype, device, memory_budget: as for :class:`FlatIndex`.
///     lists: number of lists: between √n and 16 √n for n vectors.
///     encoding: what the index keeps of a vector: "flat" (the vector), "f16", "sq8" (a byte a component), "pq:16x8"
///         (product quantization by 16 sub-quantizers of 8 bits), "opq:16x8" (the same with a rotation), "bits:4" (4
///         bits a component, 1 to 8, after a random rotation).
///     seed: of the training. The same seed and vectors give the same index.
///     iterations: of the k-means that finds the centroids.
///     points_per_centroid: largest number of training vectors for each centroid.
///
/// Raises:
///     UnknownName, Zero, TooMany, NotDivisible, OutOfRange, Mismatch, NoDevice, OutOfDeviceMemory.
#[pyclass(frozen, extends = Index, name = "IvfIndex", module = "warpann")]
pub struct PyIvfIndex;

#[pymethods]
impl PyIvfIndex {
    #[new]
    #[pyo3(signature = (dim, lists, *, metric="l2", encoding="flat", dtype=None, device="auto", memory_budget=None,
                        seed=1, iterations=20, points_per_centroid=256))]
    #[allow(clippy::too_many_arguments, reason = "Python passes them by name")]
    fn new(
        py: Python<'_>,
        dim: usize,
        lists: usize,
        metric: &str,
        encoding: &str,
        dtype: Option<&Bound<'_, PyAny>>,
        device: &str,
        memory_budget: Option<u64>,
        seed: u64,
        iterations: usize,
        points_per_centroid: usize,
    ) -> PyResult<PyClassInitializer<Self>> {
        let basis = Basis::new(py, dim, metric, &or_float32(py, dtype), device, memory_budget)?;
        let encoding: Encoding = parsed(py, encoding)?;
        let index = built!(py, basis, T => IvfIndex::<T>::builder(basis.dim, lists)
            .encoding(encoding).seed(seed).iterations(iterations).points_per_centroid(points_per_centroid));
        Ok(PyClassInitializer::from(index).add_subclass(PyIvfIndex))
    }

    /// Finds the centroids of the lists, and the tables of the encoding.
    ///
    /// Args:
    ///     vectors: (rows, dim): at least as many as lists, like those that will be added. Larger sets are sampled. A
    ///         tensor on a GPU by ``__dlpack__``, contiguous and of the element type of the index, is copied to host
    ///         memory as a whole, so give a sample of a large one.
    ///     progress: as for :meth:`add`. A training can always be interrupted by Ctrl-C.
    ///
    /// Raises:
    ///     NotEmpty, TooFewTrainingVectors, NotFinite, Overflow, DoesNotFit, Cancelled.
    ///     BadMemory, Driver: of a tensor.
    #[pyo3(signature = (vectors, *, progress=None))]
    fn train(
        slf: PyRef<'_, Self>,
        py: Python<'_>,
        vectors: &Bound<'_, PyAny>,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<()> {
        let index: &Index = slf.as_super();
        let vectors = Vectors::on_host(vectors, Some(index.element), index.dim, "vectors")?;
        let rows = vectors.bytes();
        watched(py, progress, |watch| Ok(call::write(&index.state)?.held.ivf_mut()?.train(rows, watch)?))
    }

    /// Whether the index is trained.
    #[getter]
    fn is_trained(slf: PyRef<'_, Self>, py: Python<'_>) -> PyResult<bool> {
        slf.as_super().look(py, |state| state.held.ivf().is_ok_and(|ivf| ivf.is_trained()))
    }

    /// Number of lists.
    #[getter]
    fn lists(slf: PyRef<'_, Self>, py: Python<'_>) -> PyResult<usize> {
        slf.as_super().look(py, |state| state.held.ivf().map_or(0, |ivf| ivf.lists()))
    }

    /// The encoding of vectors, such as "pq:16x8".
    #[getter]
    fn encoding(slf: PyRef<'_, Self>, py: Python<'_>) -> PyResult<String> {
        slf.as_super().look(py, |state| state.held.ivf().map_or(String::new(), |ivf| ivf.encoding().to_string()))
    }

    /// The centroids of the lists: float32, (lists, dim), in rotated space if the encoding rotates; (0, dim) until
    /// trained. For "hamming" (.., 8 * dim): the share of ones at each bit, the lowest bit of a byte first.
    #[getter]
    fn centroids<'py>(slf: PyRef<'py, Self>, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let index: &Index = slf.as_super();
        let found = |held: &dyn Held| Ok((held.ivf()?.centroids().to_vec(), held.metric().compares_bits()));
        let (centroids, of_bits) = index.reading(py, found)?;
        matrix(py, centroids, if of_bits { index.dim.saturating_mul(8) } else { index.dim })
    }

    /// The codebooks of product quantization: float32, (sub-quantizers, 2**bits, dim / sub-quantizers). They code the
    /// residuals of vectors, in rotated space if the encoding rotates. None for other encodings, and until trained.
    #[getter]
    fn codebooks<'py>(slf: PyRef<'py, Self>, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let found = slf.as_super().reading(py, |held| {
            let quantizer = held.ivf()?.quantizer();
            Ok(quantizer.map(|q| (q.codebooks().to_vec(), (q.sub_quantizers(), q.codewords(), q.width()))))
        })?;
        found.map(|(values, shape)| vector(py, values).call_method1("reshape", (shape,))).transpose()
    }

    /// Number of lists that a search reads unless it says otherwise; files keep it.
    #[getter]
    fn probes(slf: PyRef<'_, Self>, py: Python<'_>) -> PyResult<usize> {
        slf.as_super().look(py, |state| state.held.ivf().map_or(0, |ivf| ivf.probes()))
    }

    #[setter]
    fn set_probes(slf: PyRef<'_, Self>, py: Python<'_>, probes: usize) -> PyResult<()> {
        slf.as_super().changing(py, |held| held.ivf_mut()?.set_probes(probes))
    }

    /// Writes the index as an inverted file of FAISS (``faiss.read_index``), which searches the same lists and codes.
    ///
    /// Encoding "flat" becomes ``IndexIVFFlat``, other elements than float32 are widened, and bits (metric "hamming")
    /// ``IndexBinaryIVF`` (``faiss.read_index_binary``), whose centroids are those bits that most vectors of a list
    /// have; "pq" ``IndexIVFPQ``, and
    /// "opq" the same in an ``IndexPreTransform``; "sq8" and "f16" ``IndexIVFScalarQuantizer`` (``QT_8bit``,
    /// ``QT_fp16``). For "cosine" vectors are divided by their norms and the metric is the inner product: give FAISS
    /// queries of norm 1. Codes under "cosine" do not map, because FAISS does not divide by the norms of decoded
    /// vectors: make an index for "l2" of vectors of norm 1.
    ///
    /// Args:
    ///     path: the file, which gets its name when it is complete.
    ///
    /// Raises:
    ///     NotTrained.
    ///     Mismatch: another encoding than "flat" under "cosine".
    ///     OutOfRange: encoding "f16" scaled the vectors, which it does if all components of the training are below 1.
    ///     Overflow: encoding "sq8", and float32 does not hold the range of a component.
    ///     Io, OutOfHostMemory.
    fn save_faiss(slf: PyRef<'_, Self>, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        slf.as_super().reading(py, |held| held.ivf()?.save_faiss(&path))
    }

    /// Opens an inverted file that FAISS or :meth:`save_faiss` wrote. The index has its lists, ids, codes and number of
    /// probes, and float32 as its type; uint8 for bits.
    ///
    /// Args:
    ///     path: a file of ``IndexIVFFlat``; of ``IndexIVFPQ`` with residuals, also in an ``IndexPreTransform`` with
    ///     one
    ///         rotation; or of ``IndexIVFScalarQuantizer`` with ``QT_8bit``, or ``QT_fp16`` of vectors
    ///         (``by_residual`` False); or of ``IndexBinaryIVF``. The quantizer is an ``IndexFlat`` or
    ///         ``IndexBinaryFlat``, and there is no direct map.
    ///     metric: "l2", "ip" or "cosine"; "hamming" for bits. None means that of the file.
    ///     device, memory_budget: as for a new index.
    ///
    /// Raises:
    ///     BadFile: it is another file, or damaged.
    ///     Mismatch: the file has another metric. "cosine" fits a file for the inner product.
    ///     Io, OutOfHostMemory, NoDevice, OutOfDeviceMemory.
    #[staticmethod]
    #[pyo3(signature = (path, *, metric=None, device="auto", memory_budget=None))]
    fn load_faiss(
        py: Python<'_>,
        path: PathBuf,
        metric: Option<&str>,
        device: &str,
        memory_budget: Option<u64>,
    ) -> PyResult<Py<PyAny>> {
        let placement = placement(py, device)?;
        let metric = metric.map(|name| parsed(py, name)).transpose()?;
        let held = detached(py, || {
            let info = FaissInfo::read(&path)?;
            // Another metric is refused below.
            if info.metric.compares_bits() && metric.is_none_or(Metric::compares_bits) {
                let builder = IvfIndex::<u8>::builder(info.dim, info.lists).device(placement.clone());
                let builder = memory_budget.into_iter().fold(builder, IvfIndexBuilder::memory_budget);
                return Ok(Box::new(AnyIndex::from(builder.load_faiss(&path, Open::Auto)?)) as Box<dyn Held>);
            }
            let builder = IvfIndex::<f32>::builder(info.dim, info.lists).metric(metric.unwrap_or(info.metric));
            let builder = builder.device(placement.clone());
            let builder = memory_budget.into_iter().fold(builder, IvfIndexBuilder::memory_budget);
            Ok(Box::new(AnyIndex::from(builder.load_faiss(&path, Open::Auto)?)) as Box<dyn Held>)
        })?;
        Index::of(held, placement, memory_budget).object(py)
    }

    /// As :meth:`search_with_statistics`, but finds ``refine`` · k candidates by what the index keeps of vectors, and
    /// ranks them by the original vectors.
    ///
    /// Args:
    ///     queries, k, filter, probes, radius, widen: as for :meth:`search`.
    ///     base: (vectors, dim): the original vectors, of the element type of the index. An array of this type is read
    ///         in place, also a mapped one: only the rows of candidates are read.
    ///     ids: integers, (vectors,): the id of each row of ``base``; None means the row number.
    ///     refine: candidates for each result, at least 1; 1.2 are 12 candidates for 10 results.
    ///     prove: take more candidates until no other vector of the lists that are read can be among the k best; for
    ///         the encodings "flat" and "bits:1" to "bits:8". "probable" needs fewer of them, and misses each of the k
    ///         best with a chance below 1 in 2,900 (cosine 1 in 1,400). True is "certain"; False, None and "none" are
    ///         no proof.
    ///
    /// Returns:
    ///     (Neighbors, SearchStatistics)
    #[pyo3(signature = (
        queries, k, base, *, ids=None, refine=4.0, prove=None, filter=None, probes=None, radius=None, widen=true
    ))]
    #[allow(clippy::too_many_arguments, reason = "Python passes them by name")]
    fn search_refined<'py>(
        slf: PyRef<'py, Self>,
        py: Python<'py>,
        queries: &Bound<'py, PyAny>,
        k: usize,
        base: &Bound<'py, PyAny>,
        ids: Option<&Bound<'py, PyAny>>,
        refine: f64,
        prove: Option<&Bound<'py, PyAny>>,
        filter: Option<&Bound<'py, PyAny>>,
        probes: Option<usize>,
        radius: Option<f32>,
        widen: bool,
    ) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyAny>)> {
        let index: &Index = slf.as_super();
        let (queries, base) = (index.vectors(queries, "queries")?, index.vectors(base, "base")?);
        let (ids, filter) = (Ids::optional(ids, "ids")?, filter::optional(filter)?);
        let proof = prove.map_or(Ok(Proof::None), |value| proof(py, value))?;
        let options = options(probes, None, radius, widen, filter.as_ref()).refine(refine).prove(proof);
        let (rows, original) = (queries.bytes(), (base.bytes(), ids.as_ref().map(Ids::get)));
        let refined = index.reading(py, |held| held.ivf()?.search_refined(rows, k, &options, original));
        let (found, statistics) = refined?;
        Ok((neighbors(py, found, queries.single)?, search_statistics(py, statistics)?))
    }
}

/// A proof from its name, or from whether there is one.
fn proof(py: Python<'_>, value: &Bound<'_, PyAny>) -> PyResult<Proof> {
    if let Ok(certain) = value.extract::<bool>() {
        return Ok(certain.into());
    }
    match value.extract::<String>() {
        Ok(name) => parsed(py, &name),
        Err(_) => Err(wrong_type(py, "prove", value.get_type().name()?.to_cow()?.as_ref(), "bool or str")),
    }
}

/// Search by walks in a graph of near neighbours: for few queries at a time, or recall above about .95 on the CPU.
///
/// Args:
///     dim, metric, dtype, device, memory_budget: as for :class:`FlatIndex`.
///     degree: largest number of edges of a vector, 4 to 256.
///     beam: number of vectors that a walk keeps unless a search says otherwise.
///     exact_ratio: a search compares all vectors if they are at most this number times the width of its walk; 0:
///         always walks.
///     codes: whether walks may compare codes of one byte a component; distances are always those of the vectors.
///     seed: of the construction. The same vectors and settings give the same graph.
///
/// Raises:
///     UnknownName, Zero, TooMany, OutOfRange, NoDevice, OutOfDeviceMemory.
///     Mismatch: "hamming" with another dtype than "uint8".
#[pyclass(frozen, extends = Index, name = "GraphIndex", module = "warpann")]
pub struct PyGraphIndex;

#[pymethods]
impl PyGraphIndex {
    #[new]
    #[pyo3(signature = (dim, *, metric="l2", degree=32, beam=64, exact_ratio=128, codes=true, dtype=None, device="auto",
                        memory_budget=None, seed=1))]
    #[allow(clippy::too_many_arguments, reason = "Python passes them by name")]
    fn new(
        py: Python<'_>,
        dim: usize,
        metric: &str,
        degree: usize,
        beam: usize,
        exact_ratio: usize,
        codes: bool,
        dtype: Option<&Bound<'_, PyAny>>,
        device: &str,
        memory_budget: Option<u64>,
        seed: u64,
    ) -> PyResult<PyClassInitializer<Self>> {
        let basis = Basis::new(py, dim, metric, &or_float32(py, dtype), device, memory_budget)?;
        let index = built!(py, basis, T => GraphIndex::<T>::builder(basis.dim)
            .degree(degree).beam(beam).exact_ratio(exact_ratio).codes(codes).seed(seed));
        Ok(PyClassInitializer::from(index).add_subclass(PyGraphIndex))
    }

    /// Largest number of edges of a vector.
    #[getter]
    fn degree(slf: PyRef<'_, Self>, py: Python<'_>) -> PyResult<usize> {
        slf.as_super().look(py, |state| state.held.graph().map_or(0, |graph| graph.degree()))
    }

    /// Number of vectors that a walk keeps unless a search says otherwise; files keep it.
    #[getter]
    fn beam(slf: PyRef<'_, Self>, py: Python<'_>) -> PyResult<usize> {
        slf.as_super().look(py, |state| state.held.graph().map_or(0, |graph| graph.beam()))
    }

    #[setter]
    fn set_beam(slf: PyRef<'_, Self>, py: Python<'_>, beam: usize) -> PyResult<()> {
        slf.as_super().changing(py, |held| held.graph_mut()?.set_beam(beam))
    }

    /// The edges of the graph: int64, (vectors, degree), where row r belongs to the r-th id and holds ranks of ids; −1
    /// in empty places. None if the index has so few vectors that searches are exact.
    fn edges<'py>(slf: PyRef<'py, Self>, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let graph = slf.as_super().reading(py, |held| held.graph()?.edges())?;
        graph.map(|graph| matrix(py, widened(graph.neighbors()), graph.k())).transpose()
    }

    /// Writes the index as an HNSW file of another library, which finds about as much at the same beam on a CPU.
    ///
    /// The vectors become float32. For "cosine" they are divided by their norms, and the metric of the file is the
    /// inner product: give FAISS queries of norm 1, and load hnswlib's file for its space "cosine". Removed vectors are
    /// left out.
    ///
    /// Args:
    ///     path: the file, which gets its name when it is complete.
    ///     format: "faiss" (``faiss.read_index``; efSearch is :attr:`beam`) or "hnswlib" (``Index.load_index``).
    ///
    /// Raises:
    ///     UnknownName, Io, OutOfHostMemory, DeviceError.
    ///     Mismatch: the metric "hamming", which both formats lack.
    fn save_hnsw(slf: PyRef<'_, Self>, py: Python<'_>, path: PathBuf, format: &str) -> PyResult<()> {
        let format = parsed(py, format)?;
        slf.as_super().reading(py, |held| held.graph()?.save_hnsw(&path, format))
    }

    /// Opens an HNSW file that FAISS, hnswlib or :meth:`save_hnsw` wrote.
    ///
    /// Level 0 becomes the graph. FAISS's efSearch becomes :attr:`beam`, labels become ids, and vectors that hnswlib
    /// has marked as deleted are removed.
    ///
    /// Args:
    ///     path: a file of ``IndexHNSWFlat``, also inside of ``IndexIDMap2``, or of hnswlib with vectors of float32.
    ///     metric: "l2", "ip" or "cosine". None means that of FAISS's file. hnswlib's file does not have it.
    ///     exact_ratio, codes, device, memory_budget: as for a new index.
    ///
    /// Raises:
    ///     BadFile: it is another file, or damaged.
    ///     Mismatch: FAISS's file has another metric. "cosine" fits a file for the inner product.
    ///     WrongType: hnswlib's file needs a metric.
    ///     Io, DuplicateId, NotFinite, OutOfHostMemory, NoDevice, OutOfDeviceMemory.
    #[staticmethod]
    #[pyo3(signature = (path, *, metric=None, exact_ratio=128, codes=true, device="auto", memory_budget=None))]
    fn load_hnsw(
        py: Python<'_>,
        path: PathBuf,
        metric: Option<&str>,
        exact_ratio: usize,
        codes: bool,
        device: &str,
        memory_budget: Option<u64>,
    ) -> PyResult<Py<PyAny>> {
        let placement = placement(py, device)?;
        let info = detached(py, || Ok(HnswInfo::read(&path)?))?;
        let metric = match metric {
            Some(name) => parsed(py, name)?,
            None => info.metric.ok_or_else(|| {
                wrong_type(py, "metric", "None", "l2, ip or cosine: the file of hnswlib does not have it")
            })?,
        };
        let held = detached(py, || {
            let mut builder = GraphIndex::<f32>::builder(info.dim).metric(metric).device(placement.clone());
            if let Some(budget) = memory_budget {
                builder = builder.memory_budget(budget);
            }
            let index = builder.exact_ratio(exact_ratio).codes(codes).load_hnsw(&path, Open::Auto)?;
            Ok(Box::new(AnyIndex::from(index)) as Box<dyn Held>)
        })?;
        Index::of(held, placement, memory_budget).object(py)
    }
}

/// Opens the index in a file, whatever its kind and element type.
///
/// Args:
///     path: a file that ``save`` or the program ``warpann`` wrote.
///     device, memory_budget: as for :class:`FlatIndex`.
///     mapped: whether the file is mapped, so that inverted files read codes from it until they are changed. The file
///         must then not change while the index lives; replacing it by a rename is safe. None means files above 64 MiB.
///
/// Returns:
///     FlatIndex, IvfIndex or GraphIndex.
///
/// Raises:
///     Io, BadFile, OutOfHostMemory, NoDevice, OutOfDeviceMemory.
#[pyfunction]
#[pyo3(signature = (path, *, device="auto", memory_budget=None, mapped=None))]
pub fn load(
    py: Python<'_>,
    path: PathBuf,
    device: &str,
    memory_budget: Option<u64>,
    mapped: Option<bool>,
) -> PyResult<Py<PyAny>> {
    let placement = placement(py, device)?;
    let how = match mapped {
        None => Open::Auto,
        Some(true) => Open::Map,
        Some(false) => Open::Read,
    };
    let held = detached(py, || {
        let element = IndexInfo::read(&path)?.element;
        with_element!(element, T => {
            let index = AnyIndex::<T>::load_with(&path, placement.clone(), memory_budget, how)?;
            Ok(Box::new(index) as Box<dyn Held>)
        })
    })?;
    Index::of(held, placement, memory_budget).object(py)
}

/// Opens the index in the bytes of a file, whatever its kind and element type.
///
/// Args:
///     data: what ``to_bytes`` returned: bytes, or another object with a contiguous buffer of bytes.
///     device, memory_budget: as for :class:`FlatIndex`.
///
/// Returns:
///     FlatIndex, IvfIndex or GraphIndex.
///
/// Raises:
///     BadFile, OutOfHostMemory, NoDevice, OutOfDeviceMemory.
#[pyfunction]
#[pyo3(signature = (data, device="auto", memory_budget=None))]
pub fn from_bytes(
    py: Python<'_>,
    data: std::borrow::Cow<'_, [u8]>,
    device: &str,
    memory_budget: Option<u64>,
) -> PyResult<Py<PyAny>> {
    let (placement, bytes) = (placement(py, device)?, &*data);
    let held = detached(py, || {
        let element = IndexInfo::of_bytes(bytes)?.element;
        with_element!(element, T => {
            let index = AnyIndex::<T>::from_bytes(bytes, placement.clone(), memory_budget)?;
            Ok(Box::new(index) as Box<dyn Held>)
        })
    })?;
    Index::of(held, placement, memory_budget).object(py)
}

impl Index {
    /// The devices of the index, and its memory budget on each.
    pub fn place(&self, py: Python<'_>) -> PyResult<(Placement, Option<u64>)> {
        Ok((self.look(py, |state| state.placement.clone())?, self.budget))
    }
}

/// Copies an array to the memory of a GPU.
///
/// Raises:
///     NoDevice: this wheel was built without ``cuda``.
#[cfg(not(feature = "cuda"))]
#[pyfunction]
#[pyo3(signature = (array, gpu=0))]
pub fn to_device(py: Python<'_>, array: &Bound<'_, PyAny>, gpu: usize) -> PyResult<()> {
    let _ = (array, gpu);
    let reason = warpann::NoDeviceReason::FeatureOff;
    Err(crate::errors::raised(py, warpann::Error::NoDevice { reason }))
}
