//! The extension module `_warpann` of the Python package `warpann`.
//!
//! | file | content |
//! |---|---|
//! | `call` | calls without the interpreter's lock; signals, progress, locks |
//! | `errors` | errors as exceptions |
//! | `arrays` | arrays in and out |
//! | `held` | an index of any element type behind one interface |
//! | `index` | the classes of indexes |
//! | `filter` | filters of searches |
//! | `layer` | what the module takes from the Python layer |

mod arrays;
mod call;
mod errors;
mod filter;
mod held;
mod index;
mod layer;

use pyo3::prelude::*;

#[pymodule]
fn _warpann(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<index::Index>()?;
    module.add_class::<index::PyFlatIndex>()?;
    module.add_class::<index::PyIvfIndex>()?;
    module.add_class::<index::PyGraphIndex>()?;
    module.add_class::<filter::Filter>()?;
    module.add_function(wrap_pyfunction!(index::load, module)?)?;
    module.add_function(wrap_pyfunction!(index::from_bytes, module)?)?;
    Ok(())
}
