//! Views of vectors and results in the memory of a GPU: raw addresses, buffers of the crates cust and cudarc, and
//! DLPack tensors.
//!
//! A view owns nothing and reads nothing. The functions that use one are `unsafe`, because only the caller knows that
//! the memory has what the view says. What can be checked is checked: addresses for null and alignment, buffers for
//! their length, tensors for device, type, shape and strides.
//!
//! ```
//! use warpann::views::DeviceVectors;
//!
//! // 1,000 vectors of f32 at an address that another library gave.
//! let queries = DeviceVectors::<f32>::new(0x7f00_0000_0000, 1_000);
//! assert_eq!(queries.len(), 1_000);
//! ```

#[cfg(feature = "cudarc")]
pub mod cudarc;
pub mod dlpack;

use std::fmt;
use std::marker::PhantomData;

use self::dlpack::{DLDataType, DLTensor};
use crate::validate::check_length;
use crate::{Element, Error, MemoryDefect, Result};

/// Vectors of elements `T` in the memory of a GPU, row-major, one after the other.
pub struct DeviceVectors<T> {
    address: u64,
    len: usize,
    /// The GPU, if the view knows it.
    gpu: Option<usize>,
    element: PhantomData<fn(T)>,
}

impl<T> Clone for DeviceVectors<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for DeviceVectors<T> {}

impl<T> fmt::Debug for DeviceVectors<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} vectors of {} at {:#x}", self.len, std::any::type_name::<T>(), self.address)
    }
}

impl<T: Element> DeviceVectors<T> {
    /// `len` vectors at a device address.
    pub fn new(address: u64, len: usize) -> Self {
        DeviceVectors { address, len, gpu: None, element: PhantomData }
    }

    /// The vectors of `dim` components in a buffer of cust.
    ///
    /// # Errors
    /// [`Error::Zero`]; [`Error::Ragged`] if the buffer is not a whole number of vectors.
    #[cfg(feature = "cuda")]
    pub fn of_slice(slice: &cust::memory::DeviceSlice<T>, dim: usize) -> Result<Self>
    where
        T: cust::memory::DeviceCopy,
    {
        Ok(Self::new(slice.as_device_ptr().as_raw(), whole_vectors(slice.len(), dim)?))
    }

    /// The vectors in a DLPack tensor: a matrix with a vector in each row, or one vector. The view does not own the
    /// tensor.
    ///
    /// # Errors
    /// [`Error::BadMemory`] if the tensor is not in the memory of a CUDA device, has other elements than `T` or other
    /// columns than `dim`, or is not contiguous.
    ///
    /// # Safety
    /// `shape` of the tensor has `ndim` readable entries, and so has `strides` unless it is null.
    pub unsafe fn of_tensor(tensor: &DLTensor, dim: usize) -> Result<Self> {
        // SAFETY: as the caller promises.
        let (matrix, columns) = unsafe { tensor.matrix("vectors", &[DLDataType::of::<T>()])? };
        if matrix.rows > 0 && columns != dim {
            return Err(Error::WrongDimension { expected: dim, actual: columns });
        }
        Ok(DeviceVectors { address: matrix.address, len: matrix.rows, gpu: Some(matrix.gpu), element: PhantomData })
    }

    /// Device address of the first component.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Number of the GPU, if the view was made of a tensor or of a buffer of cudarc, which know it.
    pub fn gpu(&self) -> Option<usize> {
        self.gpu
    }

    /// Number of vectors.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no vectors.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Checks a view of `what` for an index on GPU `gpu`.
    #[cfg(feature = "cuda")]
    pub(crate) fn check(&self, what: &'static str, gpu: usize) -> Result<()> {
        check_gpu(what, self.gpu, gpu)?;
        if self.is_empty() { Ok(()) } else { check_address::<T>(what, self.address) }
    }
}

/// Memory of a GPU for the results of a search: ids (u64) and distances (f32), k of each for every query, row-major.
#[derive(Debug, Clone, Copy)]
pub struct DeviceNeighbors {
    ids: u64,
    distances: u64,
    /// Number of slots, if the view knows it.
    slots: Option<usize>,
    gpu: Option<usize>,
}

impl DeviceNeighbors {
    /// Ids and distances at two device addresses.
    pub fn new(ids: u64, distances: u64) -> Self {
        DeviceNeighbors { ids, distances, slots: None, gpu: None }
    }

    /// Ids and distances in two buffers of cust.
    ///
    /// # Errors
    /// [`Error::WrongLength`] if the buffers differ in length.
    #[cfg(feature = "cuda")]
    pub fn of_slices(
        ids: &mut cust::memory::DeviceSlice<u64>,
        distances: &mut cust::memory::DeviceSlice<f32>,
    ) -> Result<Self> {
        let slots = Some(slots_of(ids.len(), distances.len())?);
        let view = Self::new(ids.as_device_ptr().as_raw(), distances.as_device_ptr().as_raw());
        Ok(DeviceNeighbors { slots, ..view })
    }

    /// Ids and distances in two DLPack tensors: matrices with k columns, or vectors. Ids may be unsigned or signed
    /// integers of 64 bits; in the latter, [`NONE`](crate::NONE) is −1.
    ///
    /// # Errors
    /// [`Error::BadMemory`] as for [`DeviceVectors::of_tensor`], or if the tensors are on two devices;
    /// [`Error::WrongLength`] if they differ in length.
    ///
    /// # Safety
    /// As [`DeviceVectors::of_tensor`], for both tensors.
    pub unsafe fn of_tensors(ids: &DLTensor, distances: &DLTensor) -> Result<Self> {
        // SAFETY: as the caller promises.
        let (found, columns, of_distances, distance_columns) = unsafe {
            let (found, columns) = ids.matrix("ids", &[DLDataType::UINT64, DLDataType::INT64])?;
            let (of_distances, distance_columns) = distances.matrix("distances", &[DLDataType::F32])?;
            (found, columns, of_distances, distance_columns)
        };
        check_gpu("distances", Some(of_distances.gpu), found.gpu)?;
        let size = |rows: usize, columns: usize| rows.saturating_mul(columns);
        let slots = slots_of(size(found.rows, columns), size(of_distances.rows, distance_columns))?;
        let view = Self::new(found.address, of_distances.address);
        Ok(DeviceNeighbors { slots: Some(slots), gpu: Some(found.gpu), ..view })
    }

    /// Device addresses of ids and distances.
    pub fn addresses(&self) -> (u64, u64) {
        (self.ids, self.distances)
    }

    /// Number of the GPU, if the view was made of tensors or of buffers of cudarc, which know it.
    pub fn gpu(&self) -> Option<usize> {
        self.gpu
    }

    /// Number of ids for which there is room, unless the view was made of addresses only.
    pub fn slots(&self) -> Option<usize> {
        self.slots
    }

    /// Checks the memory for `slots` results of an index on GPU `gpu`.
    #[cfg(feature = "cuda")]
    pub(crate) fn check(&self, slots: usize, gpu: usize) -> Result<()> {
        check_gpu("ids", self.gpu, gpu)?;
        self.slots.map_or(Ok(()), |actual| check_length("results", slots, actual))?;
        if slots == 0 {
            return Ok(());
        }
        check_address::<u64>("ids", self.ids)?;
        check_address::<f32>("distances", self.distances)
    }
}

/// Memory of a GPU for numbers of vectors (u32), one for each query.
#[derive(Debug, Clone, Copy)]
pub struct DeviceCounts {
    address: u64,
    /// Number of places, if the view knows it.
    len: Option<usize>,
    gpu: Option<usize>,
}

impl DeviceCounts {
    /// Numbers at a device address.
    pub fn new(address: u64) -> Self {
        DeviceCounts { address, len: None, gpu: None }
    }

    /// Numbers in a buffer of cust.
    #[cfg(feature = "cuda")]
    pub fn of_slice(counts: &mut cust::memory::DeviceSlice<u32>) -> Self {
        DeviceCounts { address: counts.as_device_ptr().as_raw(), len: Some(counts.len()), gpu: None }
    }

    /// Numbers in a DLPack tensor of unsigned or signed integers of 32 bits; the latter hold numbers beyond 2³¹ − 1 as
    /// negative ones.
    ///
    /// # Errors
    /// [`Error::BadMemory`] as for [`DeviceVectors::of_tensor`].
    ///
    /// # Safety
    /// As [`DeviceVectors::of_tensor`].
    pub unsafe fn of_tensor(counts: &DLTensor) -> Result<Self> {
        // SAFETY: as the caller promises.
        let (counts, columns) = unsafe { counts.matrix("counts", &[DLDataType::UINT32, DLDataType::INT32])? };
        let places = counts.rows.saturating_mul(columns);
        Ok(DeviceCounts { address: counts.address, len: Some(places), gpu: Some(counts.gpu) })
    }

    /// Number of the GPU, if the view was made of a tensor or of a buffer of cudarc, which know it.
    pub fn gpu(&self) -> Option<usize> {
        self.gpu
    }

    /// Device address of the first number.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Number of places, unless the view was made of an address only.
    pub fn places(&self) -> Option<usize> {
        self.len
    }

    /// Checks the memory for a number of each of `queries` queries of an index on GPU `gpu`.
    #[cfg(feature = "cuda")]
    pub(crate) fn check(&self, queries: usize, gpu: usize) -> Result<()> {
        check_gpu("counts", self.gpu, gpu)?;
        self.len.map_or(Ok(()), |actual| check_length("results", queries, actual))?;
        if queries == 0 { Ok(()) } else { check_address::<u32>("counts", self.address) }
    }
}

/// The number of vectors of `dim` components in a buffer.
///
/// # Errors
/// [`Error::Zero`]; [`Error::Ragged`] if the buffer is not a whole number of vectors.
#[cfg(any(feature = "cuda", test))]
fn whole_vectors(components: usize, dim: usize) -> Result<usize> {
    if dim == 0 {
        return Err(Error::Zero { what: "dimension" });
    }
    crate::validate::check_multiple("components", components, dim)
}

/// The number of slots in memory for `ids` ids and `distances` distances.
///
/// # Errors
/// [`Error::WrongLength`] if the numbers differ.
fn slots_of(ids: usize, distances: usize) -> Result<usize> {
    check_length("results", ids, distances).map(|()| ids)
}

/// Fails if the memory of `what` is known to belong to another GPU than `expected`.
fn check_gpu(what: &'static str, found: Option<usize>, expected: usize) -> Result<()> {
    match found {
        Some(found) if found != expected => {
            Err(Error::BadMemory { what, defect: MemoryDefect::OtherGpu { expected, found } })
        }
        _ => Ok(()),
    }
}

/// Fails if no value of `V` can lie at the address.
#[cfg(feature = "cuda")]
fn check_address<V>(what: &'static str, address: u64) -> Result<()> {
    let align = align_of::<V>() as u64;
    if address == 0 || !address.is_multiple_of(align) {
        return Err(Error::BadMemory { what, defect: MemoryDefect::Address { address, align } });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_whole_vectors() {
        assert_eq!(whole_vectors(12, 4).unwrap(), 3);
        assert_eq!(whole_vectors(0, 4).unwrap(), 0);
        assert!(matches!(whole_vectors(12, 0), Err(Error::Zero { what: "dimension" })));
        assert!(matches!(whole_vectors(13, 4), Err(Error::Ragged { what: "components", len: 13, size: 4 })));
    }

    #[test]
    fn ids_and_distances_have_one_length() {
        assert_eq!(slots_of(6, 6).unwrap(), 6);
        assert!(matches!(slots_of(6, 5), Err(Error::WrongLength { what: "results", expected: 6, actual: 5 })));
    }
}
