//! Vectors whose element type is a value. The GPU's host code and the back ends of indexes take these, so that they are
//! compiled once instead of once for each element type.

use bytemuck::{Pod, cast_slice, cast_slice_mut};
use half::{bf16, f16};

use crate::parallel::{Loop, ParallelSlice};
use crate::validate::check_vectors;
use crate::{Element, ElementType, Error, Input, Result, host_memory};

/// Vectors of one dimension, row-major, of any element type.
#[derive(Debug, Clone, Copy)]
pub(crate) struct VectorSlice<'a> {
    element: ElementType,
    dim: usize,
    bytes: &'a [u8],
}

/// Runs `$body` with `$rows: &[T]` bound to the components of a [`VectorSlice`] and `$type` to T, for the slice's
/// element type.
macro_rules! with_components {
    ($vectors:expr, $rows:ident: $type:ident => $body:expr) => {{
        let vectors: $crate::vectors::VectorSlice<'_> = $vectors;
        macro_rules! arm {
            ($element:ty) => {{
                type $type = $element;
                let $rows: &[$type] = vectors.components();
                $body
            }};
        }
        match vectors.element() {
            $crate::ElementType::F32 => arm!(f32),
            $crate::ElementType::F16 => arm!(::half::f16),
            $crate::ElementType::Bf16 => arm!(::half::bf16),
            $crate::ElementType::U8 => arm!(u8),
            $crate::ElementType::I8 => arm!(i8),
        }
    }};
}

pub(crate) use with_components;

impl<'a> VectorSlice<'a> {
    /// The vectors in `rows`, a whole number of vectors of `dim` components.
    pub fn of<T: Element>(rows: &'a [T], dim: usize) -> Self {
        debug_assert!(dim > 0 && rows.len().is_multiple_of(dim), "{} components, {dim} a vector", rows.len());
        VectorSlice { element: T::TYPE, dim, bytes: cast_slice(rows) }
    }

    /// Whole vectors of `dim` components, as bytes that are aligned for the element type.
    pub fn of_bytes(element: ElementType, dim: usize, bytes: &'a [u8]) -> Self {
        debug_assert!(dim > 0 && bytes.len().is_multiple_of(dim * element.size()), "{} bytes", bytes.len());
        VectorSlice { element, dim, bytes }
    }

    /// The element type of the vectors.
    pub fn element(self) -> ElementType {
        self.element
    }

    /// Dimension of the vectors.
    pub fn dim(self) -> usize {
        self.dim
    }

    /// Size of one vector in bytes.
    pub fn row_bytes(self) -> usize {
        self.dim * self.element.size()
    }

    /// Number of vectors.
    pub fn len(self) -> usize {
        self.bytes.len() / self.row_bytes()
    }

    /// The vectors of a range. Panics if the range exceeds the vectors.
    pub fn part(self, rows: std::ops::Range<usize>) -> Self {
        let row = self.row_bytes();
        VectorSlice { bytes: &self.bytes[rows.start * row..rows.end * row], ..self }
    }

    /// The vectors in chunks of `count`; the last chunk may be smaller.
    pub fn chunks(self, count: usize) -> impl Iterator<Item = VectorSlice<'a>> {
        (0..self.len()).step_by(count).map(move |first| self.part(first..self.len().min(first + count)))
    }

    /// The vectors of these numbers, all of which exist, one after the other.
    ///
    /// # Errors
    /// [`Error::OutOfHostMemory`](crate::Error::OutOfHostMemory).
    pub fn gather(self, numbers: &[usize]) -> Result<VectorBuffer> {
        let mut buffer = VectorBuffer::new(self.element);
        buffer.reserve(numbers.len() * self.dim)?;
        numbers.iter().for_each(|&number| buffer.extend(self.part(number..number + 1).bytes));
        Ok(buffer)
    }

    /// Checks that all components are finite; `input` is what the caller calls the vectors.
    ///
    /// # Errors
    /// [`Error::NotFinite`](crate::Error::NotFinite).
    pub fn check_finite(self, input: Input) -> Result<()> {
        with_components!(self, rows: T => check_vectors::<T>(rows, self.dim, input)).map(|_| ())
    }

    /// Returns the result of work that checks these vectors while it reads them. If the work found a value that is not
    /// finite, replaces the error by one with the value's place in these vectors, because the work may see only a part
    /// of them, or transformed ones. `input` is what the caller calls the vectors.
    ///
    /// # Errors
    /// The errors of the result.
    pub fn located<V>(self, input: Input, result: Result<V>) -> Result<V> {
        if let Err(Error::NotFinite { .. }) = result {
            self.check_finite(input)?;
        }
        result
    }

    /// The bytes of all components.
    pub fn bytes(self) -> &'a [u8] {
        self.bytes
    }

    /// All components. Panics unless `T` is the element type.
    pub fn components<T: Element>(self) -> &'a [T] {
        assert_eq!(T::TYPE, self.element, "the element type of the vectors");
        cast_slice(self.bytes)
    }
}

/// Number of bytes whose bits one task takes apart.
const BYTES_APART: usize = 1 << 12;

/// The bits of each byte as components, 0 or 1, the lowest bit first.
///
/// # Errors
/// [`Error::OutOfHostMemory`].
pub(crate) fn bits_apart<T: Element>(bytes: &[u8]) -> Result<Vec<T>> {
    let mut to = host_memory::zeroed(host_memory::count::<T>(&[bytes.len(), 8])?)?;
    let parts = to.par_chunks_mut(8 * BYTES_APART).zip(bytes.par_chunks(BYTES_APART));
    parts.for_each(|(to, bytes)| bits_apart_into(bytes, to));
    Ok(to)
}

/// As [`bits_apart`], to `to`, which has eight places for each byte.
pub(crate) fn bits_apart_into<T: Element>(bytes: &[u8], to: &mut [T]) {
    let values = [T::from_f32(0.0), T::from_f32(1.0)];
    let (to, _) = to.as_chunks_mut::<8>();
    to.iter_mut()
        .zip(bytes)
        .for_each(|(to, byte)| *to = std::array::from_fn(|bit| values[usize::from(byte >> bit & 1)]));
}

/// The bytes of which [`bits_apart`] gives these components, whole bytes of them.
pub(crate) fn bits_together(components: &[f32]) -> Vec<u8> {
    let (bytes, _) = components.as_chunks::<8>();
    bytes.iter().map(|bits| (0..8).fold(0, |byte, bit| byte | u8::from(bits[bit] != 0.0) << bit)).collect()
}

/// Memory for vectors of any element type, row-major.
pub(crate) struct VectorSliceMut<'a> {
    element: ElementType,
    bytes: &'a mut [u8],
}

impl<'a> VectorSliceMut<'a> {
    /// The memory of `rows`, as memory for vectors of element type `T`.
    pub fn of<T: Element>(rows: &'a mut [T]) -> Self {
        VectorSliceMut { element: T::TYPE, bytes: cast_slice_mut(rows) }
    }

    /// Memory for vectors of this element type, as bytes that are aligned for it.
    pub fn of_bytes(element: ElementType, bytes: &'a mut [u8]) -> Self {
        VectorSliceMut { element, bytes }
    }

    /// Size of a vector of `dim` components, in bytes.
    pub fn row_bytes(&self, dim: usize) -> usize {
        dim * self.element.size()
    }

    /// Number of vectors of `dim` components that fit.
    pub fn len(&self, dim: usize) -> usize {
        self.bytes.len() / self.row_bytes(dim)
    }

    /// The memory as bytes.
    pub fn bytes(self) -> &'a mut [u8] {
        self.bytes
    }

    /// All components. Panics unless `T` is the element type.
    pub fn components<T: Element>(self) -> &'a mut [T] {
        assert_eq!(T::TYPE, self.element, "the element type of the vectors");
        cast_slice_mut(self.bytes)
    }

    /// Splits off and returns the first `bytes` bytes; `self` keeps the others.
    pub fn split_off(&mut self, bytes: usize) -> VectorSliceMut<'a> {
        let bytes = self.bytes.split_off_mut(..bytes).unwrap_or_default();
        VectorSliceMut { element: self.element, bytes }
    }
}

/// Vectors of any element type that own their memory, row-major.
#[derive(Debug)]
pub(crate) enum VectorBuffer {
    F32(Vec<f32>),
    F16(Vec<f16>),
    Bf16(Vec<bf16>),
    U8(Vec<u8>),
    I8(Vec<i8>),
}

/// Runs `$body` with `$vector` bound to the `Vec<T>` of a [`VectorBuffer`] and `$type` to T.
macro_rules! with_vector {
    ($buffer:expr, $vector:ident => $body:expr) => {
        match $buffer {
            VectorBuffer::F32($vector) => $body,
            VectorBuffer::F16($vector) => $body,
            VectorBuffer::Bf16($vector) => $body,
            VectorBuffer::U8($vector) => $body,
            VectorBuffer::I8($vector) => $body,
        }
    };
}

impl VectorBuffer {
    /// A buffer without vectors.
    pub fn new(element: ElementType) -> Self {
        match element {
            ElementType::F32 => VectorBuffer::F32(Vec::new()),
            ElementType::F16 => VectorBuffer::F16(Vec::new()),
            ElementType::Bf16 => VectorBuffer::Bf16(Vec::new()),
            ElementType::U8 => VectorBuffer::U8(Vec::new()),
            ElementType::I8 => VectorBuffer::I8(Vec::new()),
        }
    }

    /// Reserves room for `components` further components.
    ///
    /// # Errors
    /// [`Error::OutOfHostMemory`](crate::Error::OutOfHostMemory).
    pub fn reserve(&mut self, components: usize) -> Result<()> {
        with_vector!(self, vector => crate::host_memory::reserve(vector, components))
    }

    /// Appends the components in `bytes`, which have the buffer's element type. There must be room for them.
    pub fn extend(&mut self, bytes: &[u8]) {
        fn append<T: Pod>(vector: &mut Vec<T>, bytes: &[u8]) {
            let before = vector.len();
            vector.resize(before + bytes.len() / size_of::<T>(), T::zeroed());
            // Bytes may be less aligned than components, so this copies bytes.
            cast_slice_mut::<T, u8>(&mut vector[before..]).copy_from_slice(bytes);
        }
        with_vector!(self, vector => append(vector, bytes));
    }

    /// Keeps the first `components` components.
    pub fn truncate(&mut self, components: usize) {
        with_vector!(self, vector => vector.truncate(components));
    }

    /// Keeps the vectors of `dim` components whose numbers are listed, in ascending order, and drops the others.
    pub fn keep(&mut self, dim: usize, numbers: &[u32]) {
        fn pack<T: Pod>(vector: &mut Vec<T>, dim: usize, numbers: &[u32]) {
            for (to, &from) in numbers.iter().enumerate() {
                let from = from as usize * dim;
                vector.copy_within(from..from + dim, to * dim);
            }
            vector.truncate(numbers.len() * dim);
        }
        with_vector!(self, vector => pack(vector, dim, numbers));
    }

    /// Overwrites components from number `first` on with those in `bytes`, which have the buffer's element type. All of
    /// them exist.
    pub fn overwrite(&mut self, first: usize, bytes: &[u8]) {
        fn copy<T: Pod>(vector: &mut [T], first: usize, bytes: &[u8]) {
            cast_slice_mut::<T, u8>(&mut vector[first..])[..bytes.len()].copy_from_slice(bytes);
        }
        with_vector!(self, vector => copy(vector, first, bytes));
    }

    /// The vectors as a slice, with `dim` components each.
    pub fn as_slice(&self, dim: usize) -> VectorSlice<'_> {
        with_vector!(self, vector => VectorSlice::of(vector, dim))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_and_components_are_those_of_the_rows() {
        let rows: Vec<f16> = (0..12).map(|at| f16::from_f32(at as f32)).collect();
        let vectors = VectorSlice::of(&rows, 3);
        assert_eq!((vectors.len(), vectors.dim(), vectors.row_bytes()), (4, 3, 6));
        assert_eq!(vectors.part(1..3).components::<f16>(), &rows[3..9]);
        assert_eq!(vectors.part(2..2).len(), 0);
        assert_eq!(VectorSlice::of_bytes(ElementType::F16, 3, vectors.bytes()).components::<f16>(), rows);
        let gathered = vectors.gather(&[3, 0, 3]).unwrap();
        assert_eq!(gathered.as_slice(3).components::<f16>(), [&rows[9..], &rows[..3], &rows[9..]].concat());
        let sum = with_components!(vectors, rows: T => rows.iter().map(|x| T::to_f32(*x)).sum::<f32>());
        assert_eq!(sum, 66.0);
    }

    #[test]
    fn bits_are_apart_from_the_lowest_on_and_come_together() {
        assert_eq!(bits_apart::<u8>(&[0b1000_0110, 255]).unwrap(), [0, 1, 1, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1]);
        let bytes: Vec<u8> = (0..2 * BYTES_APART + 3).map(|at| ((at * 37) >> 2) as u8).collect();
        let apart = bits_apart::<f32>(&bytes).unwrap();
        let bit = |at: usize| bytes[at / 8] >> (at % 8) & 1;
        assert!(apart.len() == 8 * bytes.len() && (0..apart.len()).all(|at| apart[at] == f32::from(bit(at))));
        assert_eq!(bits_together(&apart), bytes);
        assert_eq!((bits_apart::<f32>(&[]).unwrap(), bits_together(&[])), (vec![], vec![]));
    }

    #[test]
    fn buffers_grow_and_shrink_by_components_of_any_type() {
        for element in ElementType::ALL {
            let mut buffer = VectorBuffer::new(element);
            let bytes: Vec<u8> = (0..4 * element.size() as u8).collect();
            for _ in 0..3 {
                buffer.reserve(4).unwrap();
                buffer.extend(&bytes);
            }
            buffer.truncate(6);
            let vectors = buffer.as_slice(2);
            assert_eq!((vectors.element(), vectors.len()), (element, 3));
            assert_eq!(vectors.bytes()[..bytes.len()], bytes[..]);
        }
    }

    #[test]
    fn vectors_are_overwritten_and_removed_in_place() {
        for element in ElementType::ALL {
            let size = element.size();
            let mut buffer = VectorBuffer::new(element);
            let row = |value: usize| vec![value as u8; 2 * size];
            buffer.reserve(10).unwrap();
            buffer.extend(&(0..5).flat_map(row).collect::<Vec<u8>>());
            buffer.overwrite(4, &[row(7), row(8)].concat());
            assert_eq!(buffer.as_slice(2).bytes(), [0, 1, 7, 8, 4].map(row).concat());
            buffer.keep(2, &[0, 2, 4]);
            assert_eq!(buffer.as_slice(2).bytes(), [0, 7, 4].map(row).concat());
            buffer.keep(2, &[]);
            assert_eq!(buffer.as_slice(2).len(), 0);
        }
    }

    #[test]
    #[should_panic(expected = "element type")]
    fn another_element_type_is_refused() {
        VectorSlice::of(&[1u8, 2], 2).components::<i8>();
    }
}
