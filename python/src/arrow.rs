//! Vectors of Arrow's arrays, by the capsules of its C data interface: a fixed-size list of numbers is a matrix.
//!
//! Layout and ownership: <https://arrow.apache.org/docs/format/CDataInterface.html>, and the page PyCapsuleInterface
//! below it. The capsules own the structures, so the array that is made of them keeps the capsule.

use std::ffi::{CStr, c_char, c_void};

use numpy::ndarray::ArrayView2;
use numpy::{Element, PyArray2};
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyCapsuleMethods, PyDict, PyTuple};

use crate::errors::wrong_type;

#[repr(C)]
struct ArrowSchema {
    format: *const c_char,
    name: *const c_char,
    metadata: *const c_char,
    flags: i64,
    n_children: i64,
    children: *const *const ArrowSchema,
    dictionary: *const ArrowSchema,
    release: *const c_void,
    private_data: *const c_void,
}

#[repr(C)]
struct ArrowArray {
    length: i64,
    null_count: i64,
    offset: i64,
    n_buffers: i64,
    n_children: i64,
    buffers: *const *const c_void,
    children: *const *const ArrowArray,
    dictionary: *const ArrowArray,
    release: *const c_void,
    private_data: *const c_void,
}

/// A matrix in the memory of an Arrow array.
struct Matrix {
    data: *const c_void,
    rows: usize,
    columns: usize,
    /// The letter of Arrow for the type of numbers.
    number: u8,
}

/// The vectors of an object with `__arrow_c_array__`, as an array in the same memory that must not be written.
///
/// Args:
///     value: an Arrow array of the type fixed_size_list of float, half_float, double, uint8 or int8, without nulls.
///     argument: the name in messages.
///
/// Raises:
///     WrongType: another type, or nulls.
#[pyfunction]
#[pyo3(signature = (value, argument, /))]
pub fn arrow_vectors<'py>(value: &Bound<'py, PyAny>, argument: &str) -> PyResult<Bound<'py, PyAny>> {
    let py = value.py();
    let bad =
        |actual: &str| wrong_type(py, argument, actual, "an Arrow array of fixed_size_list of numbers without nulls");
    let capsules = value.call_method0("__arrow_c_array__")?.cast_into::<PyTuple>()?;
    let (schema, array) = (capsules.get_item(0)?, capsules.get_item(1)?);
    let (schema, array) = (schema.cast::<PyCapsule>()?, array.cast::<PyCapsule>()?);
    let schema = schema.pointer_checked(Some(c"arrow_schema"))?.cast::<ArrowSchema>();
    let owner = array.clone().into_any();
    let array = array.pointer_checked(Some(c"arrow_array"))?.cast::<ArrowArray>();
    // SAFETY: a capsule of this name has a pointer to this structure, which it owns.
    let matrix = unsafe { matrix_of(schema.as_ref(), array.as_ref()) }.map_err(bad)?;
    let made = match matrix.number {
        // SAFETY: each letter is that of the type, and the capsule owns the memory.
        b'f' => unsafe { borrowed::<f32>(&matrix, owner) },
        // SAFETY: as above.
        b'e' => unsafe { borrowed::<half::f16>(&matrix, owner) },
        // SAFETY: as above.
        b'g' => unsafe { borrowed::<f64>(&matrix, owner) },
        // SAFETY: as above.
        b'C' => unsafe { borrowed::<u8>(&matrix, owner) },
        // SAFETY: as above.
        b'c' => unsafe { borrowed::<i8>(&matrix, owner) },
        _ => return Err(bad("an Arrow array of other values")),
    };
    let writeable = PyDict::new(py);
    writeable.set_item("write", false)?;
    made.call_method("setflags", (), Some(&writeable))?;
    Ok(made)
}

/// # Safety
/// The structures are valid, and belong to each other.
unsafe fn matrix_of(schema: &ArrowSchema, array: &ArrowArray) -> Result<Matrix, &'static str> {
    if schema.release.is_null() || array.release.is_null() {
        return Err("an Arrow array that was released");
    }
    // SAFETY: the format of a valid schema is a string that ends with a zero.
    let format = unsafe { CStr::from_ptr(schema.format) }.to_str().unwrap_or_default();
    let columns = format.strip_prefix("+w:").and_then(|columns| columns.parse::<usize>().ok());
    let columns = columns.filter(|&columns| columns <= i32::MAX as usize).ok_or("an Arrow array of another type")?;
    if (schema.n_children, array.n_children, array.n_buffers) != (1, 1, 1) {
        return Err("an Arrow array with other parts");
    }
    // SAFETY: there is one child in each, by the counts above.
    let (numbers, values) = unsafe { (&**schema.children, &**array.children) };
    // SAFETY: as above, of the child.
    let number = unsafe { CStr::from_ptr(numbers.format) }.to_bytes();
    let &[number] = number else { return Err("an Arrow array of lists of other values") };
    if !numbers.dictionary.is_null() || values.n_buffers != 2 {
        return Err("an Arrow array of lists of other values");
    }
    // SAFETY: the buffers of a fixed-size list are its validity, those of numbers their validity and the numbers.
    let (validity, value_validity, data) = unsafe { (*array.buffers, *values.buffers, *values.buffers.add(1)) };
    // Without components there may be any number of rows, and no memory bounds them.
    if columns == 0 {
        return Err("an Arrow array of empty lists");
    }
    let (Ok(rows), Ok(offset)) = (usize::try_from(array.length), usize::try_from(array.offset)) else {
        return Err("an Arrow array of negative length");
    };
    let Ok(value_offset) = usize::try_from(values.offset) else { return Err("an Arrow array of negative length") };
    let beyond = "an Arrow array whose values are too few";
    // The lists end with this value of the child, which counts from its own offset.
    let end = offset.checked_add(rows).and_then(|lists| lists.checked_mul(columns)).ok_or(beyond)?;
    if usize::try_from(values.length).map_or(true, |length| end > length) {
        return Err(beyond);
    }
    let (count, first) = (rows * columns, value_offset.checked_add(offset * columns).ok_or(beyond)?);
    // SAFETY: a validity has a bit for each element up to the end of the array.
    let whole = unsafe {
        all_valid(array.null_count, validity, offset, rows)
            && all_valid(values.null_count, value_validity, first, count)
    };
    if !whole {
        return Err("an Arrow array with nulls");
    }
    let size = match number {
        b'g' => 8,
        b'f' => 4,
        b'e' => 2,
        _ => 1,
    };
    let data = data.wrapping_byte_add(first * size);
    if count > 0 && (data.is_null() || data.addr() % size != 0) {
        return Err("an Arrow array that is not aligned");
    }
    Ok(Matrix { data, rows, columns, number })
}

/// Whether `count` elements from `first` on are not null.
///
/// # Safety
/// `validity` is null, or has a bit for each of them.
unsafe fn all_valid(null_count: i64, validity: *const c_void, first: usize, count: usize) -> bool {
    if null_count == 0 || validity.is_null() {
        return true;
    }
    let bits = validity.cast::<u8>();
    // SAFETY: as the caller promises.
    (first..first + count).all(|at| unsafe { *bits.add(at / 8) } >> (at % 8) & 1 == 1)
}

/// An array in the memory of `matrix`, which `owner` owns.
///
/// # Safety
/// The memory has the numbers, and lives as long as `owner`.
unsafe fn borrowed<'py, T: Element>(matrix: &Matrix, owner: Bound<'py, PyAny>) -> Bound<'py, PyAny> {
    let shape = (matrix.rows, matrix.columns);
    // An array without numbers may have no memory.
    if matrix.rows * matrix.columns == 0 {
        return PyArray2::<T>::zeros(owner.py(), shape, false).into_any();
    }
    // SAFETY: as the caller promises; `matrix_of` has checked that the pointer is aligned and not null.
    let view = unsafe { ArrayView2::from_shape_ptr(shape, matrix.data.cast::<T>()) };
    // SAFETY: numpy keeps the owner as the base of the array.
    unsafe { PyArray2::borrow_from_array(&view, owner) }.into_any()
}
