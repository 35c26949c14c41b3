//! Vectors whose element type is known at run time only.

use std::fmt;
use std::marker::PhantomData;
use std::ops::Deref;
use std::sync::Arc;

use half::{bf16, f16};

use super::bytes::{decode, reserve};
use super::open::FileBytes;
use crate::element::{Element, ElementType};
use crate::error::{Error, FileDefect, Result};
use crate::validate::check_whole;

/// A matrix of vectors, row after row, in memory or mapped from a file. Cloning a matrix whose components lie in the
/// bytes of a file costs O(1).
#[derive(Debug, Clone, PartialEq)]
pub struct Vectors {
    rows: usize,
    dim: usize,
    data: VectorData,
}

/// The components of [`Vectors`], by element type.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum VectorData {
    /// f32 components.
    F32(Elements<f32>),
    /// f16 components.
    F16(Elements<f16>),
    /// bf16 components.
    Bf16(Elements<bf16>),
    /// u8 components.
    U8(Elements<u8>),
    /// i8 components.
    I8(Elements<i8>),
}

/// Runs `$body` with `$elements` bound to the components, for any element type.
macro_rules! each {
    ($data:expr, $elements:ident => $body:expr) => {
        match $data {
            VectorData::F32($elements) => $body,
            VectorData::F16($elements) => $body,
            VectorData::Bf16($elements) => $body,
            VectorData::U8($elements) => $body,
            VectorData::I8($elements) => $body,
        }
    };
}

impl Vectors {
    /// Makes vectors of dimension `dim` from `values`, row after row. O(1).
    ///
    /// # Errors
    /// [`Error::Zero`], or [`Error::Ragged`] if `values` is not a whole number of rows.
    pub fn new<T: Element>(values: Vec<T>, dim: usize) -> Result<Self> {
        if dim == 0 {
            return Err(Error::Zero { what: "dimension" });
        }
        Ok(Self { rows: check_whole(&values, dim)?, dim, data: data_of(values) })
    }

    /// Makes f32 vectors of dimension `dim` from f64 values, row after row. Each component is the f32 nearest to its
    /// value; of two equally near ones, the one whose last bit is 0. NaN and infinities stay. O(values).
    ///
    /// # Errors
    /// [`FileDefect::ExceedsF32`] for the first finite value that is beyond the range of f32;
    /// [`FileDefect::BadDimension`] if the values are not a whole number of rows; [`FileDefect::TooLarge`] if memory is
    /// short.
    pub fn from_f64(values: impl ExactSizeIterator<Item = f64>, dim: usize) -> Result<Self, FileDefect> {
        let len = values.len();
        if !len.is_multiple_of(dim) {
            return Err(FileDefect::BadDimension(i64::try_from(dim).unwrap_or(i64::MAX)));
        }
        let rows = len.checked_div(dim).unwrap_or(0);
        let mut rounded: Vec<f32> = reserve(rows, dim)?;
        for (at, value) in values.take(len).enumerate() {
            let near = value as f32;
            if near.is_infinite() && value.is_finite() {
                let (row, column) = ((at / dim) as u64, (at % dim) as u64);
                return Err(FileDefect::ExceedsF32 { row, column, value: format!("{value:e}") });
            }
            rounded.push(near);
        }
        Ok(Self { rows, dim, data: VectorData::F32(rounded.into()) })
    }

    /// Vectors from their parts. The caller has checked that `data` has `rows · dim` components.
    pub(super) fn from_parts(rows: usize, dim: usize, data: VectorData) -> Self {
        debug_assert_eq!(each!(&data, elements => elements.len()), rows * dim);
        Self { rows, dim, data }
    }

    /// Number of vectors.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Dimension of the vectors; 0 only if there are no rows and the file has no dimension (an empty `fvecs` or
    /// `bvecs`).
    pub fn dim(&self) -> usize {
        self.dim
    }

    /// The components of all vectors, row-major.
    pub fn data(&self) -> &VectorData {
        &self.data
    }

    /// Type of the components.
    pub fn element(&self) -> ElementType {
        match self.data {
            VectorData::F32(_) => ElementType::F32,
            VectorData::F16(_) => ElementType::F16,
            VectorData::Bf16(_) => ElementType::Bf16,
            VectorData::U8(_) => ElementType::U8,
            VectorData::I8(_) => ElementType::I8,
        }
    }

    /// All components, row after row, if they are of type `T`; `None` if they are of another type. O(1).
    pub fn as_slice<T: Element>(&self) -> Option<&[T]> {
        if self.element() != T::TYPE {
            return None;
        }
        // The types are equal, so the cast changes nothing and cannot fail.
        Some(each!(&self.data, elements => bytemuck::cast_slice(elements)))
    }

    /// One vector as f32; exact for every element type. `None` past the last row. O(dim).
    pub fn row_f32(&self, row: usize) -> Option<Vec<f32>> {
        if row >= self.rows {
            return None;
        }
        let range = row * self.dim..(row + 1) * self.dim;
        Some(each!(&self.data, elements => elements[range].iter().map(|&x| x.to_f32()).collect()))
    }

    /// The same vectors as f32; exact for every element type. O(rows · dim); O(1) if they are f32 and lie in the bytes
    /// of a file.
    ///
    /// # Errors
    /// [`FileDefect::TooLarge`] if memory is short.
    pub fn to_f32(&self) -> Result<Self, FileDefect> {
        if let VectorData::F32(_) = self.data {
            return Ok(self.clone());
        }
        let mut values: Vec<f32> = reserve(self.rows, self.dim)?;
        each!(&self.data, elements => values.extend(elements.iter().map(|&x| x.to_f32())));
        Ok(Self { rows: self.rows, dim: self.dim, data: VectorData::F32(values.into()) })
    }
}

/// Components of one type: owned, or in the bytes of a file. Use it as a slice.
pub struct Elements<T>(Store<T>);

enum Store<T> {
    Owned(Vec<T>),
    /// `len` elements from byte `at` of the file. Bounds and alignment were checked when this value was made.
    File {
        bytes: Arc<FileBytes>,
        at: usize,
        len: usize,
        element: PhantomData<T>,
    },
}

impl<T: Element> Elements<T> {
    /// Elements of a file, in place if they are aligned, else copied. The caller has checked the bounds.
    pub(super) fn of_file(file: &Arc<FileBytes>, at: usize, len: usize) -> Result<Self, FileDefect> {
        let bytes = &file[at..at + len * size_of::<T>()];
        Ok(match bytemuck::try_cast_slice::<u8, T>(bytes) {
            Ok(_) => Self(Store::File { bytes: file.clone(), at, len, element: PhantomData }),
            Err(_) => Self(Store::Owned(decode(bytes)?)),
        })
    }

    /// Whether the elements lie in a mapped file.
    pub fn is_mapped(&self) -> bool {
        matches!(&self.0, Store::File { bytes, .. } if bytes.is_mapped())
    }
}

impl<T> From<Vec<T>> for Elements<T> {
    fn from(values: Vec<T>) -> Self {
        Self(Store::Owned(values))
    }
}

impl<T: Element> Deref for Elements<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        match &self.0 {
            Store::Owned(values) => values,
            Store::File { bytes, at, len, .. } => bytemuck::cast_slice(&bytes[*at..*at + len * size_of::<T>()]),
        }
    }
}

impl<T: Clone> Clone for Elements<T> {
    fn clone(&self) -> Self {
        Self(match &self.0 {
            Store::Owned(values) => Store::Owned(values.clone()),
            Store::File { bytes, at, len, .. } => {
                Store::File { bytes: bytes.clone(), at: *at, len: *len, element: PhantomData }
            }
        })
    }
}

impl<T: Element> PartialEq for Elements<T> {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl<T: Element> fmt::Debug for Elements<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.is_mapped() { "mapped" } else { "owned" };
        write!(f, "{} {} elements, {kind}", self.len(), T::TYPE.name())
    }
}

/// `values` as the variant of its element type.
pub(super) fn data_of<T: Element>(values: Vec<T>) -> VectorData {
    match T::TYPE {
        ElementType::F32 => VectorData::F32(bytemuck::allocation::cast_vec(values).into()),
        ElementType::F16 => VectorData::F16(bytemuck::allocation::cast_vec(values).into()),
        ElementType::Bf16 => VectorData::Bf16(bytemuck::allocation::cast_vec(values).into()),
        ElementType::U8 => VectorData::U8(bytemuck::allocation::cast_vec(values).into()),
        ElementType::I8 => VectorData::I8(bytemuck::allocation::cast_vec(values).into()),
    }
}
