//! Arrays in and out: vectors and ids that are read in place, and results whose memory numpy takes over.

use std::slice;

use numpy::ndarray::{Array1, Array2};
use numpy::{PyArray, PyArrayDescrMethods, PyUntypedArray, PyUntypedArrayMethods, npyffi};
use pyo3::prelude::*;
use warpann::element::ElementType;
use warpann::{Error, NONE, Neighbors, RangeNeighbors};

use crate::errors::{raise, raised, wrong_shape};
use crate::layer;

/// An array that the library reads: contiguous, aligned, in the byte order of the machine.
///
/// The reference keeps the memory; numpy does not move it while there is one. A program that writes to an array during
/// a call gets results of no particular vectors.
pub struct Readable<'py> {
    array: Bound<'py, PyUntypedArray>,
}

impl<'py> Readable<'py> {
    /// The array itself, if the library can read it.
    pub fn of(value: &Bound<'py, PyAny>, kind: u8, size: usize) -> Option<Self> {
        // Subclasses of arrays, such as masked ones, may mean more than their memory.
        let array = value.cast_exact::<PyUntypedArray>().ok()?;
        Self::checked(array, kind, size)
    }

    fn checked(array: &Bound<'py, PyUntypedArray>, kind: u8, size: usize) -> Option<Self> {
        let dtype = array.dtype();
        let same = dtype.kind() == kind && dtype.itemsize() == size && dtype.is_native_byteorder() != Some(false);
        (same && array.is_c_contiguous() && array.is_aligned()).then(|| Readable { array: array.clone() })
    }

    fn shape(&self) -> &[usize] {
        self.array.shape()
    }

    /// The memory of the array.
    pub fn bytes(&self) -> &[u8] {
        let len = self.array.len() * self.array.dtype().itemsize();
        if len == 0 {
            // Empty memory may lie anywhere; this lies where every element type may.
            let empty: &[u64] = &[];
            return bytemuck::cast_slice(empty);
        }
        // SAFETY: the pointer is that of a live array.
        let data = unsafe { (*npyffi::_PyArray_GET_ITEM_DATA(self.array.as_array_ptr().cast_const())).data };
        // SAFETY: the array is contiguous, so its memory has this length, and lives as long as `self`.
        unsafe { slice::from_raw_parts(data.cast::<u8>().cast_const(), len) }
    }
}

/// The memory of vectors.
enum Memory<'py> {
    Array(Readable<'py>),
    /// A copy of a tensor on a GPU.
    #[cfg(feature = "cuda")]
    Copy(crate::tensors::HostCopy),
}

/// Vectors of an element type.
pub struct Vectors<'py> {
    memory: Memory<'py>,
    pub element: ElementType,
    /// Number of vectors.
    pub count: usize,
    dim: usize,
    /// Whether the array has one axis: a single vector.
    pub single: bool,
}

/// The element type in which the vectors of an array are read: their own, if the library has it, else float32.
pub fn own_element(value: &Bound<'_, PyAny>) -> ElementType {
    let Ok(array) = value.cast::<PyUntypedArray>() else { return ElementType::F32 };
    let dtype = array.dtype();
    match (dtype.kind(), dtype.itemsize()) {
        (b'f', 2) => ElementType::F16,
        (b'u', 1) => ElementType::U8,
        (b'i', 1) => ElementType::I8,
        _ => ElementType::F32,
    }
}

/// Kind and size of the numpy type that has an element type's bits.
fn numpy_type(element: ElementType) -> Option<(u8, usize)> {
    match element {
        ElementType::F32 => Some((b'f', 4)),
        ElementType::F16 => Some((b'f', 2)),
        ElementType::Bf16 => Some((b'u', 2)),
        ElementType::U8 => Some((b'u', 1)),
        ElementType::I8 => Some((b'i', 1)),
        _ => None,
    }
}

impl<'py> Vectors<'py> {
    /// The vectors of `value`, whose name in messages is `argument`, with `dim` components each; with any number of
    /// components if `dim` is 0.
    pub fn of(value: &Bound<'py, PyAny>, element: ElementType, dim: usize, argument: &str) -> PyResult<Self> {
        let py = value.py();
        let Some((kind, size)) = numpy_type(element) else {
            return Err(crate::errors::wrong_type(py, argument, element.name(), "another element type"));
        };
        // An array of uint16 has no numbers of bfloat16.
        let here = if element == ElementType::Bf16 { None } else { Readable::of(value, kind, size) };
        let here = here.filter(|memory| matches!(memory.shape().len(), 1 | 2));
        let memory = match here {
            Some(memory) => memory,
            None => {
                let made = layer::as_vectors(py)?.call1((value, element.name(), argument))?;
                let array = made.cast::<PyUntypedArray>()?;
                let whole = Readable::checked(array, kind, size);
                whole.ok_or_else(|| wrong_shape(py, argument, array.shape(), "a contiguous array"))?
            }
        };
        let (count, width, single) = match *memory.shape() {
            [components] => (1, components, true),
            [rows, components] => (rows, components, false),
            ref shape => return Err(wrong_shape(py, argument, shape, "(rows, components)")),
        };
        if dim != 0 && width != dim {
            return Err(raised(py, Error::WrongDimension { expected: dim, actual: width }));
        }
        Ok(Vectors { memory: Memory::Array(memory), element, count, dim: width, single })
    }

    /// As [`of`](Self::of), also for a tensor on a GPU, which is copied to the host. The element type is that of the
    /// vectors if it is `None`.
    pub fn on_host(
        value: &Bound<'py, PyAny>,
        element: Option<ElementType>,
        dim: usize,
        argument: &str,
    ) -> PyResult<Self> {
        #[cfg(feature = "cuda")]
        if crate::tensors::gpu_of(value)?.is_some() {
            let (copy, element, [count, dim]) = crate::tensors::to_host(value, element, dim, argument)?;
            return Ok(Vectors { memory: Memory::Copy(copy), element, count, dim, single: false });
        }
        Self::of(value, element.unwrap_or_else(|| own_element(value)), dim, argument)
    }

    /// The components of all vectors, row after row.
    pub fn bytes(&self) -> &[u8] {
        match &self.memory {
            Memory::Array(array) => array.bytes(),
            #[cfg(feature = "cuda")]
            Memory::Copy(copy) => copy.bytes(),
        }
    }

    /// Number of components of a vector.
    pub fn dim(&self) -> usize {
        self.dim
    }
}

/// Ids from 0 to 2⁶³ − 1.
pub struct Ids<'py>(Readable<'py>);

impl<'py> Ids<'py> {
    pub fn of(value: &Bound<'py, PyAny>, argument: &str) -> PyResult<Self> {
        let py = value.py();
        let memory = match Readable::of(value, b'i', 8).filter(|memory| memory.shape().len() == 1) {
            Some(memory) => memory,
            None => {
                let made = layer::as_ids(py)?.call1((value, argument))?;
                let array = made.cast::<PyUntypedArray>()?;
                let whole = Readable::checked(array, b'i', 8);
                whole.ok_or_else(|| wrong_shape(py, argument, array.shape(), "a contiguous array"))?
            }
        };
        let ids = Ids(memory);
        match ids.get().iter().find(|&&id| id > i64::MAX as u64) {
            Some(&id) => Err(bad_id(py, id as i64)),
            None => Ok(ids),
        }
    }

    pub fn optional(value: Option<&Bound<'py, PyAny>>, argument: &str) -> PyResult<Option<Self>> {
        value.map(|value| Self::of(value, argument)).transpose()
    }

    pub fn get(&self) -> &[u64] {
        bytemuck::cast_slice(self.0.bytes())
    }
}

/// An id that no vector can have.
fn bad_id(py: Python<'_>, id: i64) -> PyErr {
    raise(py, "IdOutOfRange", &format!("id {id} is not in 0 .. 2**63 - 1"), |facts| {
        facts.set_item("kind", "id_out_of_range")?;
        facts.set_item("id", id)
    })
}

/// Ids as Python has them: [`NONE`] becomes −1.
pub fn signed(ids: Vec<u64>) -> Vec<i64> {
    bytemuck::cast_vec(ids)
}

/// 32-bit numbers as ids, where all ones mean none.
pub fn widened(numbers: &[u32]) -> Vec<i64> {
    numbers.iter().map(|&number| if number == u32::MAX { NONE as i64 } else { i64::from(number) }).collect()
}

/// An array of one axis, which takes over the memory.
pub fn vector<T: numpy::Element>(py: Python<'_>, values: Vec<T>) -> Bound<'_, PyAny> {
    PyArray::from_owned_array(py, Array1::from_vec(values)).into_any()
}

/// An array of rows of `columns`, which takes over the memory.
pub fn matrix<T: numpy::Element>(py: Python<'_>, values: Vec<T>, columns: usize) -> PyResult<Bound<'_, PyAny>> {
    let rows = values.len().checked_div(columns).unwrap_or(0);
    // numpy refuses an array without elements whose rows are longer than all memory, and the crate numpy does not
    // expect that.
    if columns > isize::MAX as usize / size_of::<T>() {
        return Err(raised(py, Error::ResultTooLarge { queries: rows, k: columns }));
    }
    let array = Array2::from_shape_vec((rows, columns), values);
    let array = array.map_err(|error| pyo3::exceptions::PyValueError::new_err(error.to_string()))?;
    Ok(PyArray::from_owned_array(py, array).into_any())
}

/// The neighbours of queries, or of a single one, whose arrays have one axis.
pub fn neighbors(py: Python<'_>, found: Neighbors, single: bool) -> PyResult<Bound<'_, PyAny>> {
    let Neighbors { k, ids, distances } = found;
    let (distances, ids) = match single {
        true => (vector(py, distances), vector(py, signed(ids))),
        false => (matrix(py, distances, k)?, matrix(py, signed(ids), k)?),
    };
    layer::neighbors(py)?.call1((distances, ids))
}

/// The results of a range search.
pub fn range_neighbors(py: Python<'_>, found: RangeNeighbors) -> PyResult<Bound<'_, PyAny>> {
    let RangeNeighbors { offsets, ids, distances } = found;
    let limits: Vec<i64> = offsets.into_iter().map(|offset| offset as i64).collect();
    layer::range_neighbors(py)?.call1((vector(py, limits), vector(py, distances), vector(py, signed(ids))))
}
