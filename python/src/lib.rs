//! The extension module `_warpann` of the Python package `warpann`.
//!
//! | file | content |
//! |---|---|
//! | `call` | calls without the interpreter's lock; signals, progress, locks |
//! | `ending` | threads inside of calls when the interpreter ends |
//! | `errors` | errors as exceptions |
//! | `arrays` | arrays in and out |
//! | `held` | an index of any element type behind one interface |
//! | `index` | the classes of indexes |
//! | `filter` | filters of searches |
//! | `serving` | versions of an index, and batches of single requests |
//! | `functions` | k-selection, k-means, k-NN graphs, devices |
//! | `ranks` | groups of processes, and results of shards |
//! | `arrow` | vectors of Arrow's arrays |
//! | `tensors` | tensors in the memory of a GPU (feature `cuda`) |
//! | `layer` | what the module takes from the Python layer |

mod arrays;
mod arrow;
mod call;
mod ending;
mod errors;
mod filter;
mod functions;
mod held;
mod index;
mod layer;
mod ranks;
mod serving;
#[cfg(feature = "cuda")]
mod tensors;

use pyo3::prelude::*;

/// Makes the emulated driver that of the process, with two GPUs. It must be called before anything looks for a driver.
#[cfg(feature = "emulated-driver")]
#[pyfunction]
fn use_emulated_driver() -> PyResult<()> {
    let devices = vec![cuda_driver_emulator::Device::default(); 2];
    cuda_driver_emulator::install(devices).map_err(|error| pyo3::exceptions::PyRuntimeError::new_err(error.to_string()))
}

/// Runs at the end of the interpreter.
#[pyfunction]
fn at_exit(py: Python<'_>) {
    // Their workers still call Python.
    serving::close_batchers(py);
    ending::end(py);
}

#[pymodule]
fn _warpann(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<index::Index>()?;
    module.add_class::<index::PyFlatIndex>()?;
    module.add_class::<index::PyIvfIndex>()?;
    module.add_class::<index::PyGraphIndex>()?;
    module.add_class::<filter::Filter>()?;
    module.add_class::<serving::IndexWriter>()?;
    module.add_class::<serving::Batcher>()?;
    module.add_class::<serving::PendingRequest>()?;
    module.add_class::<ranks::Ranks>()?;
    #[cfg(feature = "cuda")]
    {
        module.add_class::<tensors::DeviceTensor>()?;
        module.add_class::<tensors::Workspace>()?;
        module.add_function(wrap_pyfunction!(tensors::to_device, module)?)?;
    }
    #[cfg(not(feature = "cuda"))]
    module.add_function(wrap_pyfunction!(index::to_device, module)?)?;
    #[cfg(feature = "emulated-driver")]
    module.setattr("_use_emulated_driver", wrap_pyfunction!(use_emulated_driver, module)?)?;
    let at_exit = wrap_pyfunction!(at_exit, module)?;
    module.py().import("atexit")?.call_method1("register", (at_exit,))?;
    module.add_function(wrap_pyfunction!(functions::select_k, module)?)?;
    module.add_function(wrap_pyfunction!(functions::kmeans, module)?)?;
    module.add_function(wrap_pyfunction!(functions::assign, module)?)?;
    module.add_function(wrap_pyfunction!(functions::knn_graph, module)?)?;
    module.add_function(wrap_pyfunction!(functions::devices, module)?)?;
    module.add_function(wrap_pyfunction!(functions::build_info, module)?)?;
    module.add_function(wrap_pyfunction!(functions::recall, module)?)?;
    module.add_function(wrap_pyfunction!(arrow::arrow_vectors, module)?)?;
    module.add_function(wrap_pyfunction!(ranks::merge_parts, module)?)?;
    module.add_function(wrap_pyfunction!(index::load, module)?)?;
    module.add_function(wrap_pyfunction!(index::from_bytes, module)?)?;
    Ok(())
}
