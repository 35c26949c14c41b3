//! Filters: the vectors that a search may return.

use std::sync::Arc;

use numpy::{PyArrayDescrMethods, PyUntypedArray, PyUntypedArrayMethods};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyRange};
use warpann::{Bitset, SharedFilter};

use crate::arrays::{Ids, Readable};
use crate::call::accepted;
use crate::errors::{raised, wrong_shape, wrong_type};

/// The vectors that a search may return, made once for many searches.
///
/// The argument ``filter`` of a search takes what this class takes, too: a boolean mask, ids, a ``range`` of ids, or a
/// function. Making a ``Filter`` once saves the conversion, and requests of a :class:`Batcher` with the same ``Filter``
/// share a search.
///
/// Args:
///     accepts: one of
///
///         - a boolean array, (vectors,): entry r stands for the vector with the r-th id in ascending order. With the
///           ids 0, 1, 2, .. entry r stands for id r. O(vectors).
///         - ids: an array of integers, a list or a set. Ids that the index does not have accept nothing.
///         - a ``range`` of ids.
///         - a function of an id (int) that returns whether the vector is accepted. A search calls it once for each
///           vector of the index, on any thread, with the lock of the interpreter: a mask is much faster.
///
/// ``Filter.excluding(ids)`` accepts all but some ids. ``index.filter(accepts)`` makes the bits for the ids that an
/// index has now; a search refuses these bits after the ids have changed (``StaleFilter``).
///
/// Raises:
///     WrongType: another type of argument.
///     IdOutOfRange: an id is negative or above 2**63 - 1.
#[pyclass(frozen, module = "warpann")]
pub struct Filter {
    pub shared: SharedFilter,
}

#[pymethods]
impl Filter {
    #[new]
    #[pyo3(signature = (accepts, /))]
    fn new(accepts: &Bound<'_, PyAny>) -> PyResult<Self> {
        Ok(Filter { shared: shared(accepts)? })
    }

    /// All vectors except those with these ids.
    ///
    /// Args:
    ///     ids: integers, (n,). Ids that the index does not have exclude nothing.
    #[staticmethod]
    #[pyo3(signature = (ids, /))]
    fn excluding(ids: &Bound<'_, PyAny>) -> PyResult<Self> {
        Ok(Filter { shared: SharedFilter::Except(Ids::of(ids, "ids")?.get().into()) })
    }

    /// Number of accepted vectors, if the filter is a mask; None for other forms.
    fn accepted(&self) -> Option<usize> {
        if let SharedFilter::Bits(bits) = &self.shared { Some(bits.count_ones()) } else { None }
    }

    /// A mask that accepts a vector if both masks do.
    fn __and__(&self, py: Python<'_>, other: &Filter) -> PyResult<Self> {
        self.combined(py, other, Bitset::and)
    }

    /// A mask that accepts a vector if one of the masks does.
    fn __or__(&self, py: Python<'_>, other: &Filter) -> PyResult<Self> {
        self.combined(py, other, Bitset::or)
    }

    /// A mask that accepts a vector if the first mask does and the second does not.
    fn __sub__(&self, py: Python<'_>, other: &Filter) -> PyResult<Self> {
        self.combined(py, other, Bitset::without)
    }

    fn __repr__(&self) -> String {
        match &self.shared {
            SharedFilter::Bits(bits) => format!("<Filter: {} of {} vectors>", bits.count_ones(), bits.len()),
            SharedFilter::Ids(ids) => format!("<Filter: {} ids>", ids.len()),
            SharedFilter::Except(ids) => format!("<Filter: all except {} ids>", ids.len()),
            _ => "<Filter: a function>".into(),
        }
    }
}

impl Filter {
    fn combined(
        &self,
        py: Python<'_>,
        other: &Filter,
        combine: impl Fn(&mut Bitset, &Bitset) -> warpann::Result<()>,
    ) -> PyResult<Self> {
        let (SharedFilter::Bits(bits), SharedFilter::Bits(others)) = (&self.shared, &other.shared) else {
            return Err(wrong_type(py, "filter", "a filter of ids or a function", "a mask"));
        };
        let mut bits = Bitset::clone(bits);
        combine(&mut bits, others).map_err(|error| raised(py, error))?;
        Ok(Filter { shared: bits.into() })
    }
}

/// The forms of the argument of a search.
const FORMS: &str = "a mask, ids, a range or a function";

/// The filter that an argument is.
pub fn shared(value: &Bound<'_, PyAny>) -> PyResult<SharedFilter> {
    let py = value.py();
    if let Ok(filter) = value.cast::<Filter>() {
        return Ok(filter.get().shared.clone());
    }
    if let Some(mask) = mask(value)? {
        return Ok(mask.into());
    }
    if let Ok(range) = value.cast::<PyRange>() {
        let part = |name: &str| range.getattr(name)?.extract::<i128>();
        let (start, stop, step) = (part("start")?, part("stop")?, part("step")?);
        let within = move |id: i128| {
            let inside = if step > 0 { start <= id && id < stop } else { stop < id && id <= start };
            inside && (id - start) % step == 0
        };
        return Ok(SharedFilter::Function(Arc::new(move |id| within(i128::from(id)))));
    }
    if value.is_callable() {
        let function = value.clone().unbind();
        return Ok(SharedFilter::Function(Arc::new(move |id| accepted(&function, id))));
    }
    if value.is_instance_of::<pyo3::types::PyString>() || value.is_instance_of::<PyBool>() {
        return Err(wrong_type(py, "filter", value.get_type().name()?.to_cow()?.as_ref(), FORMS));
    }
    Ok(SharedFilter::Ids(Ids::of(value, "filter")?.get().into()))
}

/// The filter of a search.
pub fn optional(value: Option<&Bound<'_, PyAny>>) -> PyResult<Option<SharedFilter>> {
    value.filter(|value| !value.is_none()).map(shared).transpose()
}

/// The bits of a boolean array; None if the value is none.
fn mask(value: &Bound<'_, PyAny>) -> PyResult<Option<Bitset>> {
    let Ok(array) = value.cast::<PyUntypedArray>() else { return Ok(None) };
    if array.dtype().kind() != b'b' {
        return Ok(None);
    }
    if array.ndim() != 1 {
        return Err(wrong_shape(value.py(), "filter", array.shape(), "(vectors,)"));
    }
    let contiguous = value.call_method0("copy")?;
    let mask = Readable::of(&contiguous, b'b', 1);
    Ok(mask.map(|mask| mask.bytes().iter().map(|&byte| byte != 0).collect()))
}
