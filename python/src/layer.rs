//! Classes and functions of the Python layer, looked up once.

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

macro_rules! looked_up {
    ($($(#[$doc:meta])* $function:ident = $module:literal, $name:literal;)*) => {$(
        $(#[$doc])*
        pub fn $function(py: Python<'_>) -> PyResult<&Bound<'_, PyAny>> {
            static FOUND: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
            let found = FOUND.get_or_try_init(py, || Ok::<_, PyErr>(py.import($module)?.getattr($name)?.unbind()))?;
            Ok(found.bind(py))
        }
    )*};
}

looked_up! {
    /// The vectors of any object, as an array of an element type.
    as_vectors = "warpann._arrays", "as_vectors";
    /// The ids of any object, as an array of int64.
    as_ids = "warpann._arrays", "as_ids";
    /// The name of an element type of any object that names one.
    element_name = "warpann._arrays", "element_name";
    /// Classes of results, which are named tuples.
    neighbors = "warpann._results", "Neighbors";
    range_neighbors = "warpann._results", "RangeNeighbors";
    /// Progress of long calls.
    progress = "warpann._results", "Progress";
    search_statistics = "warpann._results", "SearchStatistics";
    flat_statistics = "warpann._results", "FlatStatistics";
    ivf_statistics = "warpann._results", "IvfStatistics";
    graph_statistics = "warpann._results", "GraphStatistics";
    batcher_statistics = "warpann._results", "BatcherStatistics";
    selection = "warpann._results", "Selection";
    clustering = "warpann._results", "Clustering";
    tuned = "warpann._results", "Tuned";
    device_info = "warpann._results", "DeviceInfo";
    build_info = "warpann._results", "BuildInfo";
    answer = "warpann._answer", "Answer";
}
