//! Functions without an index: k-selection, k-means, k-NN graphs, devices, recall.

use std::ops::ControlFlow;

use numpy::{PyArrayDescrMethods, PyUntypedArray, PyUntypedArrayMethods};
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use warpann::element::ElementType;
use warpann::kmeans::{Clustering, KMeans, Start};
use warpann::select::{Best, Key, Rows};
use warpann::{Device, Error};

use crate::arrays::{Readable, Vectors, matrix, own_element, vector, widened};
use crate::call::{self, detached, reported, watched};
use crate::errors::{parsed, placement, unknown_text, wrong_shape, wrong_type};
use crate::held::with_element;
use crate::index::Index;
use crate::layer;

/// Selects the k best keys of each row, best first, equal keys by lower column. NaN comes last.
///
/// Args:
///     keys: (rows, columns), or (columns,): float32, float16, int32 or uint32; contiguous arrays are read in place.
///     k: number of keys of each row, at least 1.
///     largest: whether the largest keys are best.
///     device: "auto", "cpu", "gpu:N" or "emulator".
///
/// Returns:
///     Selection: ``keys`` and ``positions`` (int64), both (rows, k), or (k,). Places beyond the row have position −1.
///
/// Raises:
///     WrongType, WrongShape, Zero, ResultTooLarge, BadRow, NoDevice.
#[pyfunction]
#[pyo3(signature = (keys, k, *, largest=false, device="auto"))]
pub fn select_k<'py>(
    py: Python<'py>,
    keys: &Bound<'py, PyAny>,
    k: usize,
    largest: bool,
    device: &str,
) -> PyResult<Bound<'py, PyAny>> {
    let device: Device = parsed(py, device)?;
    let best = if largest { Best::Largest } else { Best::Smallest };
    let array = match keys.cast::<PyUntypedArray>() {
        Ok(array) => array.clone(),
        Err(_) => py.import("numpy")?.call_method1("asarray", (keys,))?.cast_into::<PyUntypedArray>()?,
    };
    let (columns, single) = match *array.shape() {
        [columns] => (columns, true),
        [_, columns] => (columns, false),
        ref shape => return Err(wrong_shape(py, "keys", shape, "(rows, columns)")),
    };
    let rows = if single { 1 } else { array.shape()[0] };
    let whole = py.import("numpy")?.call_method1("ascontiguousarray", (&array,))?;
    let dtype = array.dtype();
    let (kind, size) = (dtype.kind(), dtype.itemsize());
    let readable = Readable::of(&whole, kind, size);
    macro_rules! selected {
        ($key:ty, $readable:expr) => {{
            let keys: &[$key] = bytemuck::cast_slice($readable.bytes());
            select_typed(py, keys, (rows, columns, single), k, best, device)
        }};
    }
    match (readable, kind, size) {
        (Some(readable), b'f', 4) => selected!(f32, readable),
        (Some(readable), b'f', 2) => selected!(half::f16, readable),
        (Some(readable), b'i', 4) => selected!(i32, readable),
        (Some(readable), b'u', 4) => selected!(u32, readable),
        _ => Err(wrong_type(py, "keys", &dtype.to_string(), "float32, float16, int32 or uint32")),
    }
}

fn select_typed<'py, K: Key + numpy::Element>(
    py: Python<'py>,
    keys: &[K],
    (rows, columns, single): (usize, usize, bool),
    k: usize,
    best: Best,
    device: Device,
) -> PyResult<Bound<'py, PyAny>> {
    let selection = detached(py, || {
        let rows = Rows::strided(keys, rows, columns, columns)?;
        Ok(warpann::select::select_k(device, &rows, k, best)?)
    })?;
    let positions = widened(&selection.positions);
    let (keys, positions) = match single {
        true => (vector(py, selection.keys), vector(py, positions)),
        false => (matrix(py, selection.keys, k)?, matrix(py, positions, k)?),
    };
    layer::selection(py)?.call1((keys, positions))
}

/// Clusters vectors by k-means. The result has the same bits on every device.
///
/// Args:
///     vectors: (rows, dim): arrays of float32, float16, uint8 and int8 are read in place, others become float32 once.
///         A tensor on a GPU by ``__dlpack__`` is copied to host memory as a whole, so give a sample of a large one.
///     clusters: number of centroids.
///     iterations: 0 returns the first centroids.
///     seed: of all random choices.
///     start: the first centroids: "random", "plusplus" (k-means++), or an array (clusters, dim).
///     spherical: whether to compare by inner product, with centroids of length 1.
///     points_per_centroid: most vectors for each centroid that are used, sampled by the seed; None means all.
///     balanced: limit of the size of each cluster as a multiple of the mean, at least 1; None means no limit.
///     weights: float32, (rows,): how often each vector counts.
///     labels: whether to return the cluster of each vector.
///     device: "auto", "cpu", "gpu:N", or several as for an index.
///     memory_budget: bytes that may be used on each GPU.
///     progress: a function of a :class:`Progress`, called after each iteration. If it returns False or raises, or at
///         Ctrl-C, the call ends.
///
/// Returns:
///     Clustering
///
/// Raises:
///     TooFewTrainingVectors, NotFinite, Zero, TooMany, BadNumber, BadWeight, WrongLength, Cancelled, NoDevice.
#[pyfunction]
#[pyo3(signature = (vectors, clusters, *, iterations=20, seed=0, start=None, spherical=false,
                    points_per_centroid=Some(256), balanced=None, weights=None, labels=false, device="auto",
                    memory_budget=None, progress=None),
       text_signature = "(vectors, clusters, *, iterations=20, seed=0, start=None, spherical=False, \
                         points_per_centroid=256, balanced=None, weights=None, labels=False, device='auto', \
                         memory_budget=None, progress=None)")]
#[allow(clippy::too_many_arguments, reason = "Python passes them by name")]
pub fn kmeans<'py>(
    py: Python<'py>,
    vectors: &Bound<'py, PyAny>,
    clusters: usize,
    iterations: usize,
    seed: u64,
    start: Option<&Bound<'py, PyAny>>,
    spherical: bool,
    points_per_centroid: Option<usize>,
    balanced: Option<f64>,
    weights: Option<&Bound<'py, PyAny>>,
    labels: bool,
    device: &str,
    memory_budget: Option<u64>,
    progress: Option<Py<PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let vectors = Vectors::on_host(vectors, None, 0, "vectors")?;
    let element = vectors.element;
    let weights = weights.map(|weights| Vectors::of(weights, ElementType::F32, 0, "weights")).transpose()?;
    let mut settings = KMeans::new(clusters)
        .iterations(iterations)
        .seed(seed)
        .spherical(spherical)
        .points_per_centroid(points_per_centroid)
        .balanced(balanced)
        .labels(labels)
        .start(first_centroids(py, start)?)
        .device(placement(py, device)?);
    if let Some(bytes) = memory_budget {
        settings = settings.memory_budget(bytes);
    }
    let (bytes, dim) = (vectors.bytes(), vectors.dim());
    let weights = weights.as_ref().map(|weights| bytemuck::cast_slice::<u8, f32>(weights.bytes()));
    let clustering = reported(py, progress, |report| {
        let mut watch = |now: &warpann::kmeans::Iteration| -> ControlFlow<()> {
            report("training", now.iteration as u64 + 1, iterations as u64, "iterations")
        };
        with_element!(element, T => {
            let rows: &[T] = bytemuck::cast_slice(bytes);
            Ok(settings.train_watched(rows, dim, weights, &mut watch)?)
        })
    })?;
    let Clustering { centroids, dim, objectives, sizes, labels, .. } = clustering;
    let labels = labels.map(|labels| vector(py, labels));
    let centroids = matrix(py, centroids, dim)?;
    layer::clustering(py)?.call1((centroids, labels, vector(py, sizes), vector(py, objectives)))
}

fn first_centroids(py: Python<'_>, start: Option<&Bound<'_, PyAny>>) -> PyResult<Start> {
    let Some(start) = start else { return Ok(Start::Random) };
    match start.extract::<&str>() {
        Ok("random") => Ok(Start::Random),
        Ok("plusplus") => Ok(Start::PlusPlus),
        Ok(text) => {
            let message = format!("'{text}' is not a start of k-means; known are random, plusplus");
            Err(unknown_text(py, text, &["random", "plusplus"], &message))
        }
        Err(_) => {
            let centroids = Vectors::of(start, ElementType::F32, 0, "start")?;
            Ok(Start::Given(bytemuck::cast_slice(centroids.bytes()).to_vec()))
        }
    }
}

/// The nearest centroid of each vector, equal distances by lower number.
///
/// Args:
///     vectors: (rows, dim), as for :func:`kmeans`.
///     centroids: float32, (clusters, dim).
///     spherical: whether to compare by inner product.
///     device: as for :func:`kmeans`.
///
/// Returns:
///     uint32, (rows,).
///
/// Raises:
///     WrongDimension, NotFinite, Zero, NoDevice.
#[pyfunction]
#[pyo3(signature = (vectors, centroids, *, spherical=false, device="auto"))]
pub fn assign<'py>(
    py: Python<'py>,
    vectors: &Bound<'py, PyAny>,
    centroids: &Bound<'py, PyAny>,
    spherical: bool,
    device: &str,
) -> PyResult<Bound<'py, PyAny>> {
    let element = own_element(vectors);
    let centroids = Vectors::of(centroids, ElementType::F32, 0, "centroids")?;
    let vectors = Vectors::of(vectors, element, centroids.dim(), "vectors")?;
    let placement = placement(py, device)?;
    let clustering = Clustering {
        centroids: bytemuck::cast_slice(centroids.bytes()).to_vec(),
        dim: centroids.dim(),
        objectives: Vec::new(),
        sizes: vec![0; centroids.count],
        labels: None,
        spherical,
        device: placement.clone(),
    };
    let bytes = vectors.bytes();
    let labels = detached(py, || {
        with_element!(element, T => {
            let rows: &[T] = bytemuck::cast_slice(bytes);
            Ok(clustering.assign(rows, placement)?)
        })
    })?;
    Ok(vector(py, labels))
}

/// Finds the k nearest others of each vector of an index: the k-NN graph.
///
/// Args:
///     index: an index of exactly these vectors, with the ids 0, 1, 2, ..
///     vectors: (vectors, dim).
///     k: number of neighbours of each vector, without the vector itself.
///     progress: a function of a :class:`Progress`, called about once a second. If it returns False or raises, or at
///         Ctrl-C, the call ends.
///
/// Returns:
///     Neighbors: ``distances`` and ``ids``, (vectors, k).
///
/// Raises:
///     WrongLength: the index has another number of vectors.
///     OutOfRange: an id is not a row number.
///     Zero, ResultTooLarge, Cancelled; as a search.
#[pyfunction]
#[pyo3(signature = (index, vectors, k, *, progress=None))]
pub fn knn_graph<'py>(
    py: Python<'py>,
    index: &Bound<'py, Index>,
    vectors: &Bound<'py, PyAny>,
    k: usize,
    progress: Option<Py<PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let index = index.get();
    let vectors = index.vectors(vectors, "vectors")?;
    let rows = vectors.bytes();
    let (graph, distances) =
        watched(py, progress, |watch| Ok(call::read(&index.state)?.held.knn_graph(rows, k, watch)?))?;
    let ids = widened(graph.neighbors());
    layer::neighbors(py)?.call1((matrix(py, distances, k)?, matrix(py, ids, k)?))
}

/// The GPUs of this machine that the library can use; an empty list if there is none.
///
/// Returns:
///     list[DeviceInfo]
///
/// Raises:
///     Driver: the driver is installed, and fails.
#[pyfunction]
pub fn devices(py: Python<'_>) -> PyResult<Vec<Bound<'_, PyAny>>> {
    let found = detached(py, || match warpann::device::info::devices() {
        Err(Error::NoDevice { .. }) => Ok(Vec::new()),
        found => Ok(found?),
    })?;
    let info = |of: warpann::device::info::DeviceInfo| {
        layer::device_info(py)?.call1((
            of.index,
            of.name,
            of.compute_capability,
            of.memory_total,
            of.memory_free,
            of.driver,
        ))
    };
    found.into_iter().map(info).collect()
}

/// The version of this wheel, and the kernels for GPUs in it.
///
/// Returns:
///     BuildInfo
#[pyfunction]
pub fn build_info(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
    let of = warpann::device::info::build();
    let tuple = |names: Vec<String>| PyTuple::new(py, names);
    layer::build_info(py)?.call1((of.version, of.compiler, tuple(of.ptx)?, of.assembler, tuple(of.machine_code)?))
}

/// The mean share of the true neighbours that were found: k-recall@k.
///
/// Args:
///     found: ids that a search found, int64, (queries, k).
///     truth: ids of the true neighbours, int64, (queries, k).
///
/// Returns:
///     A number from 0 to 1. Queries without true neighbours do not count.
///
/// Raises:
///     WrongShape: the shapes differ.
#[pyfunction]
#[pyo3(signature = (found, truth))]
pub fn recall(py: Python<'_>, found: &Bound<'_, PyAny>, truth: &Bound<'_, PyAny>) -> PyResult<f64> {
    let ((found, shape), (truth, true_shape)) = (id_matrix(found, "found")?, id_matrix(truth, "truth")?);
    let k = shape[1];
    if shape != true_shape {
        return Err(wrong_shape(py, "truth", &true_shape, &format!("{shape:?}")));
    }
    let (found, truth) = (bytemuck::cast_slice(found.bytes()), bytemuck::cast_slice(truth.bytes()));
    detached(py, || Ok(warpann::recall(found, k, truth, k, k)))
}

/// A matrix of ids, and its shape.
fn id_matrix<'py>(value: &Bound<'py, PyAny>, argument: &str) -> PyResult<(Readable<'py>, Vec<usize>)> {
    let py = value.py();
    let made = py.import("numpy")?.call_method1("ascontiguousarray", (value, "int64"))?;
    let shape = made.cast::<PyUntypedArray>()?.shape().to_vec();
    let wrong = || wrong_shape(py, argument, &shape, "(queries, k)");
    let readable = Readable::of(&made, b'i', 8).filter(|_| shape.len() == 2).ok_or_else(wrong)?;
    Ok((readable, shape))
}
