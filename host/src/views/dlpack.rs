//! DLPack, the exchange format of tensors: the C structures of version 1 and of those before, checks of tensors that
//! come in, and tensors that go out.
//!
//! PyTorch, JAX, CuPy and others exchange tensors as a pointer to a [`DLManagedTensorVersioned`] or a
//! [`DLManagedTensor`], in Python inside a capsule named `dltensor_versioned` or `dltensor`. The names of the
//! structures are those of `dlpack.h`.
//!
//! ```
//! use warpann::views::dlpack::{DLDataType, DLManagedTensorVersioned, ForeignTensor, export};
//!
//! // A tensor of 2 × 3 numbers, which owns its memory. (That of this one is on the host; the format does not care.)
//! let numbers: Box<[f32]> = (0..6).map(|i| i as f32).collect();
//! let address = numbers.as_ptr().addr() as u64;
//! let pointer: *mut DLManagedTensorVersioned = export(numbers, address, &[2, 3], DLDataType::F32, 0);
//!
//! // The consumer has the pointer only. The tensor is deleted when `tensor` is dropped.
//! // SAFETY: nobody else consumes the tensor.
//! let tensor = unsafe { ForeignTensor::new(pointer)? };
//! assert_eq!(tensor.tensor().ndim, 2);
//! # Ok::<(), warpann::Error>(())
//! ```

use std::ffi::c_void;
use std::ptr::{self, NonNull};

use crate::error::MemoryDefect;
use crate::{Element, ElementType, Error, Result};

/// `kDLCUDA`: memory of a CUDA device.
pub const CUDA: i32 = 2;

/// The version of the structures of this module.
pub const VERSION: DLPackVersion = DLPackVersion { major: 1, minor: 0 };
/// `DLPACK_FLAG_BITMASK_READ_ONLY`: the consumer must not write to the tensor.
pub const READ_ONLY: u64 = 1;

/// The device of a tensor.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DLDevice {
    /// Kind of the device: 1 is the CPU, [`CUDA`] a CUDA device.
    pub device_type: i32,
    /// Number of the device among those of its kind.
    pub device_id: i32,
}

/// The type of the elements of a tensor.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DLDataType {
    /// 0: signed integer, 1: unsigned integer, 2: IEEE float, 4: bfloat16.
    pub code: u8,
    /// Size of an element in bits.
    pub bits: u8,
    /// Number of lanes of a vector type; 1 for ordinary elements.
    pub lanes: u16,
}

impl DLDataType {
    /// f32.
    pub const F32: DLDataType = DLDataType { code: 2, bits: 32, lanes: 1 };
    /// u32, such as numbers of vectors.
    pub const UINT32: DLDataType = DLDataType { code: 1, bits: 32, lanes: 1 };
    /// i32, which libraries without u32 take for numbers of vectors.
    pub const INT32: DLDataType = DLDataType { code: 0, bits: 32, lanes: 1 };
    /// u64, such as ids.
    pub const UINT64: DLDataType = DLDataType { code: 1, bits: 64, lanes: 1 };
    /// i64, which libraries without u64 take for ids.
    pub const INT64: DLDataType = DLDataType { code: 0, bits: 64, lanes: 1 };

    /// The type of vectors of element type `T`.
    pub const fn of<T: Element>() -> DLDataType {
        let (code, bits) = match T::TYPE {
            ElementType::F32 => (2, 32),
            ElementType::F16 => (2, 16),
            ElementType::Bf16 => (4, 16),
            ElementType::U8 => (1, 8),
            ElementType::I8 => (0, 8),
        };
        DLDataType { code, bits, lanes: 1 }
    }
}

/// A tensor that somebody else owns.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct DLTensor {
    /// Address of the memory; the first element is `byte_offset` bytes behind it.
    pub data: *mut c_void,
    /// The device of the memory.
    pub device: DLDevice,
    /// Number of dimensions.
    pub ndim: i32,
    /// Type of the elements.
    pub dtype: DLDataType,
    /// Size of each dimension.
    pub shape: *mut i64,
    /// Distance between neighbours along each dimension, in elements; null: row-major without gaps.
    pub strides: *mut i64,
    /// Bytes from `data` to the first element.
    pub byte_offset: u64,
}

/// The version of a tensor. A consumer reads a tensor only if it knows the major version.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DLPackVersion {
    /// Version of the structures.
    pub major: u32,
    /// Version of the numbers in them.
    pub minor: u32,
}

/// A tensor with the function that releases it, as of version 1.
#[repr(C)]
#[derive(Debug)]
pub struct DLManagedTensorVersioned {
    /// Version of this structure.
    pub version: DLPackVersion,
    /// Data of the owner.
    pub manager_ctx: *mut c_void,
    /// Releases this structure and the tensor. The consumer calls it once, when it needs the tensor no more.
    pub deleter: Option<unsafe extern "C" fn(*mut DLManagedTensorVersioned)>,
    /// Bits such as [`READ_ONLY`].
    pub flags: u64,
    /// The owned tensor: memory, its shape and its type.
    pub dl_tensor: DLTensor,
}

/// A tensor with the function that releases it, as before version 1. Most libraries still exchange it.
#[repr(C)]
#[derive(Debug)]
pub struct DLManagedTensor {
    /// The owned tensor: memory, its shape and its type.
    pub dl_tensor: DLTensor,
    /// Data of the owner.
    pub manager_ctx: *mut c_void,
    /// Releases this structure and the tensor. The consumer calls it once, when it needs the tensor no more.
    pub deleter: Option<unsafe extern "C" fn(*mut DLManagedTensor)>,
}

/// A structure that owns a tensor: [`DLManagedTensorVersioned`] or [`DLManagedTensor`].
pub trait Managed: sealed::Managed {}

impl Managed for DLManagedTensorVersioned {}
impl Managed for DLManagedTensor {}

mod sealed {
    use super::{DLManagedTensor, DLManagedTensorVersioned, DLPackVersion, DLTensor, VERSION};

    /// The functions that both structures have.
    pub trait Managed: Sized {
        /// A tensor that may be written.
        fn new(dl_tensor: DLTensor, deleter: unsafe extern "C" fn(*mut Self)) -> Self;
        fn deleter(&self) -> Option<unsafe extern "C" fn(*mut Self)>;
        /// The version; `None` before version 1. If its major number is another than 1, only [`deleter`](Self::deleter)
        /// may be used.
        fn version(&self) -> Option<DLPackVersion>;
        fn flags(&self) -> u64;
        fn tensor(&self) -> &DLTensor;
    }

    impl Managed for DLManagedTensorVersioned {
        fn new(dl_tensor: DLTensor, deleter: unsafe extern "C" fn(*mut Self)) -> Self {
            let manager_ctx = std::ptr::null_mut();
            DLManagedTensorVersioned { version: VERSION, manager_ctx, deleter: Some(deleter), flags: 0, dl_tensor }
        }
        fn deleter(&self) -> Option<unsafe extern "C" fn(*mut Self)> {
            self.deleter
        }
        fn version(&self) -> Option<DLPackVersion> {
            Some(self.version)
        }
        fn flags(&self) -> u64 {
            self.flags
        }
        fn tensor(&self) -> &DLTensor {
            &self.dl_tensor
        }
    }

    impl Managed for DLManagedTensor {
        fn new(dl_tensor: DLTensor, deleter: unsafe extern "C" fn(*mut Self)) -> Self {
            DLManagedTensor { dl_tensor, manager_ctx: std::ptr::null_mut(), deleter: Some(deleter) }
        }
        fn deleter(&self) -> Option<unsafe extern "C" fn(*mut Self)> {
            self.deleter
        }
        fn version(&self) -> Option<DLPackVersion> {
            None
        }
        fn flags(&self) -> u64 {
            0
        }
        fn tensor(&self) -> &DLTensor {
            &self.dl_tensor
        }
    }
}

/// A tensor that another library gave away. It is deleted when this is dropped: views of it must not be used after
/// that.
#[derive(Debug)]
pub struct ForeignTensor<M: Managed = DLManagedTensorVersioned>(NonNull<M>);

impl<M: Managed> ForeignTensor<M> {
    /// Takes a tensor. On error, too, it is deleted.
    ///
    /// # Errors
    /// [`Error::BadMemory`] for a null pointer, and for a version other than 1.
    ///
    /// # Safety
    /// `tensor` is null or a tensor whose layout is the one that its version says, and nobody else deletes it.
    pub unsafe fn new(tensor: *mut M) -> Result<Self> {
        let bad = |defect| Error::BadMemory { what: "tensor", defect };
        let tensor = ForeignTensor(NonNull::new(tensor).ok_or_else(|| bad(MemoryDefect::Null))?);
        // SAFETY: version and deleter have the same places in every version.
        match unsafe { tensor.0.as_ref() }.version() {
            Some(DLPackVersion { major, minor }) if major != VERSION.major => {
                Err(bad(MemoryDefect::Version { major, minor }))
            }
            _ => Ok(tensor),
        }
    }

    /// The tensor, for reading.
    pub fn tensor(&self) -> &DLTensor {
        // SAFETY: the tensor lives until this is dropped, and its version is known.
        unsafe { self.0.as_ref() }.tensor()
    }

    /// The tensor, for results.
    ///
    /// # Errors
    /// [`Error::BadMemory`] if its owner forbids to write.
    pub fn writable(&self) -> Result<&DLTensor> {
        // SAFETY: as above.
        if unsafe { self.0.as_ref() }.flags() & READ_ONLY != 0 {
            return Err(Error::BadMemory { what: "tensor", defect: MemoryDefect::ReadOnly });
        }
        Ok(self.tensor())
    }
}

impl<M: Managed> Drop for ForeignTensor<M> {
    fn drop(&mut self) {
        // SAFETY: the tensor lives. The deleter is called once, here.
        unsafe {
            if let Some(delete) = self.0.as_ref().deleter() {
                delete(self.0.as_ptr());
            }
        }
    }
}

/// A contiguous matrix in the memory of a GPU.
pub(super) struct Matrix {
    pub address: u64,
    pub rows: usize,
    pub gpu: usize,
}

impl DLTensor {
    /// The tensor as a contiguous matrix on a CUDA device, and its number of columns. A tensor of one dimension is one
    /// row. `elements` are the types that it may have; `name` is for errors.
    ///
    /// # Safety
    /// `shape` has `ndim` readable entries, and so has `strides` unless it is null.
    pub(super) unsafe fn matrix(&self, name: &'static str, elements: &[DLDataType]) -> Result<(Matrix, usize)> {
        let bad = |defect: MemoryDefect| Error::BadMemory { what: name, defect };
        let DLDevice { device_type, device_id } = self.device;
        let gpu = usize::try_from(device_id).ok().filter(|_| device_type == CUDA);
        let gpu = gpu.ok_or_else(|| bad(MemoryDefect::Device { device_type, device_id }))?;
        if !elements.contains(&self.dtype) {
            let DLDataType { code, bits, lanes } = self.dtype;
            return Err(bad(MemoryDefect::Element { code, bits, lanes }));
        }
        if !(1..=2).contains(&self.ndim) || self.shape.is_null() {
            return Err(bad(MemoryDefect::Dimensions { dimensions: self.ndim }));
        }
        let axes = self.ndim as usize;
        // SAFETY: the caller promises `ndim` entries.
        let shape = unsafe { std::slice::from_raw_parts(self.shape, axes) };
        let mut sizes = [1; 2];
        for (axis, &size) in shape.iter().enumerate() {
            sizes[2 - axes + axis] = usize::try_from(size).map_err(|_| bad(MemoryDefect::Size { axis, size }))?;
        }
        let [rows, columns] = sizes;
        if !self.strides.is_null() {
            // SAFETY: as above.
            let strides = unsafe { std::slice::from_raw_parts(self.strides, axes) };
            let mut expected = 1;
            for (axis, (&stride, &size)) in strides.iter().zip(shape).enumerate().rev() {
                // Along a dimension of one element, or in an empty tensor, no stride is ever used.
                if size > 1 && rows > 0 && columns > 0 && stride != expected {
                    return Err(bad(MemoryDefect::Stride { axis, stride, expected }));
                }
                expected = expected.saturating_mul(size);
            }
        }
        let address = (self.data.addr() as u64).checked_add(self.byte_offset);
        let address = address.ok_or_else(|| bad(MemoryDefect::Offset { byte_offset: self.byte_offset }))?;
        Ok((Matrix { address, rows, gpu }, columns))
    }
}

/// A tensor with all that it owns. The tensor is first, so that a pointer to it is a pointer to this.
#[repr(C)]
struct Exported<M, O> {
    tensor: M,
    /// Sizes, and then strides.
    numbers: Vec<i64>,
    owner: O,
}

/// A tensor of the memory at `address` on CUDA device `gpu`, contiguous and row-major, for another library. `owner` is
/// what keeps the memory alive, such as a device buffer; the tensor drops it, in any thread, when its consumer calls
/// the deleter. If nobody does, tensor and owner leak.
///
/// The function reads no memory. The consumer trusts the tensor: the memory must have what `shape` and `element` say
/// while `owner` lives, and the work that writes it must be done, or precede the consumer's on one stream.
pub fn export<M: Managed, O: Send + 'static>(
    owner: O,
    address: u64,
    shape: &[i64],
    element: DLDataType,
    gpu: usize,
) -> *mut M {
    let mut numbers = shape.to_vec();
    numbers.extend(
        (0..shape.len()).map(|axis| shape[axis + 1..].iter().fold(1i64, |all, &size| all.saturating_mul(size))),
    );
    let (sizes, strides) = numbers.split_at_mut(shape.len());
    let tensor = DLTensor {
        data: ptr::with_exposed_provenance_mut(address as usize),
        device: DLDevice { device_type: CUDA, device_id: gpu as i32 },
        ndim: shape.len() as i32,
        dtype: element,
        shape: sizes.as_mut_ptr(),
        strides: strides.as_mut_ptr(),
        byte_offset: 0,
    };
    Box::into_raw(Box::new(Exported { tensor: M::new(tensor, delete::<M, O>), numbers, owner })).cast()
}

/// The deleter of [`export`].
///
/// # Safety
/// `tensor` is null or a result of [`export`] with these types, and was not deleted.
unsafe extern "C" fn delete<M: Managed, O>(tensor: *mut M) {
    if !tensor.is_null() {
        // SAFETY: the tensor is the first field of an `Exported<M, O>` in a box, which nobody else owns.
        let Exported { numbers, owner, .. } = *unsafe { Box::from_raw(tensor.cast::<Exported<M, O>>()) };
        drop((numbers, owner));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use half::bf16;

    use super::*;
    use crate::views::{DeviceCounts, DeviceNeighbors, DeviceVectors};

    /// A tensor on GPU 1 with these sizes and strides.
    fn tensor(dtype: DLDataType, shape: &[i64], strides: Option<&[i64]>) -> DLTensor {
        let kept = |numbers: &[i64]| numbers.to_vec().leak().as_mut_ptr();
        DLTensor {
            data: std::ptr::without_provenance_mut(4096),
            device: DLDevice { device_type: CUDA, device_id: 1 },
            ndim: shape.len() as i32,
            dtype,
            shape: kept(shape),
            strides: strides.map_or(std::ptr::null_mut(), kept),
            byte_offset: 64,
        }
    }

    fn vectors<T: Element>(tensor: &DLTensor, dim: usize) -> Result<DeviceVectors<T>> {
        // SAFETY: the tensors of these tests have as many sizes and strides as dimensions.
        unsafe { DeviceVectors::of_tensor(tensor, dim) }
    }

    fn defect(result: Result<DeviceVectors<f32>>) -> MemoryDefect {
        match result {
            Err(Error::BadMemory { what: "vectors", defect }) => defect,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn contiguous_tensors_are_vectors() {
        let place = |view: DeviceVectors<f32>| (view.address(), view.len());
        let f32s = DLDataType::F32;
        assert_eq!(place(vectors(&tensor(f32s, &[5, 3], None), 3).unwrap()), (4160, 5));
        assert_eq!(place(vectors(&tensor(f32s, &[5, 3], Some(&[3, 1])), 3).unwrap()), (4160, 5));
        assert_eq!(place(vectors(&tensor(f32s, &[3], Some(&[1])), 3).unwrap()), (4160, 1));
        // The stride along a dimension of one is any number.
        assert_eq!(place(vectors(&tensor(f32s, &[1, 3], Some(&[77, 1])), 3).unwrap()), (4160, 1));
        assert_eq!(place(vectors(&tensor(f32s, &[4, 1], Some(&[1, 9])), 1).unwrap()), (4160, 4));
        assert_eq!(place(vectors(&tensor(f32s, &[0, 3], Some(&[3, 9])), 3).unwrap()), (4160, 0));
        let halves = DLDataType { code: 4, bits: 16, lanes: 1 };
        assert_eq!(vectors::<bf16>(&tensor(halves, &[2, 8], None), 8).unwrap().len(), 2);
    }

    #[test]
    fn other_tensors_are_refused_with_the_numbers() {
        let f32s = DLDataType::F32;
        let mut on_cpu = tensor(f32s, &[5, 3], None);
        on_cpu.device = DLDevice { device_type: 1, device_id: 0 };
        let expected = MemoryDefect::Device { device_type: 1, device_id: 0 };
        assert_eq!(defect(vectors(&on_cpu, 3)), expected);
        let ints = DLDataType { code: 0, bits: 32, lanes: 1 };
        let expected = MemoryDefect::Element { code: 0, bits: 32, lanes: 1 };
        assert_eq!(defect(vectors(&tensor(ints, &[5, 3], None), 3)), expected);
        let refused = defect(vectors(&tensor(f32s, &[5, 3, 1], None), 3));
        assert_eq!(refused, MemoryDefect::Dimensions { dimensions: 3 });
        let refused = defect(vectors(&tensor(f32s, &[-5, 3], None), 3));
        assert_eq!(refused, MemoryDefect::Size { axis: 0, size: -5 });
        let refused = defect(vectors(&tensor(f32s, &[5, 3], Some(&[1, 5])), 3));
        assert_eq!(refused, MemoryDefect::Stride { axis: 1, stride: 5, expected: 1 });
        let refused = defect(vectors(&tensor(f32s, &[5, 3], Some(&[4, 1])), 3));
        assert_eq!(refused, MemoryDefect::Stride { axis: 0, stride: 4, expected: 3 });
        let mut far = tensor(f32s, &[5, 3], None);
        far.byte_offset = u64::MAX;
        assert_eq!(defect(vectors(&far, 3)), MemoryDefect::Offset { byte_offset: u64::MAX });
        let other = vectors::<f32>(&tensor(f32s, &[5, 4], None), 3);
        assert!(matches!(other, Err(Error::WrongDimension { expected: 3, actual: 4 })));
    }

    #[test]
    fn results_have_two_tensors_of_one_length_on_one_device() {
        let of = |ids: &DLTensor, distances: &DLTensor| {
            // SAFETY: as above.
            unsafe { DeviceNeighbors::of_tensors(ids, distances) }
        };
        let mut distances = tensor(DLDataType::F32, &[5, 3], None);
        for ids in [DLDataType::INT64, DLDataType::UINT64] {
            let view = of(&tensor(ids, &[5, 3], None), &distances).unwrap();
            assert_eq!(view.addresses(), (4160, 4160));
        }
        let shorter = of(&tensor(DLDataType::INT64, &[4, 3], None), &distances);
        assert!(matches!(shorter, Err(Error::WrongLength { what: "results", expected: 12, actual: 15 })));
        distances.device.device_id = 0;
        let apart = of(&tensor(DLDataType::INT64, &[5, 3], None), &distances);
        assert!(matches!(
            apart,
            Err(Error::BadMemory { what: "distances", defect: MemoryDefect::OtherGpu { expected: 1, found: 0 } })
        ));
    }

    #[test]
    fn counts_are_integers_of_32_bits() {
        let of = |counts: &DLTensor| {
            // SAFETY: as above.
            unsafe { DeviceCounts::of_tensor(counts) }
        };
        for element in [DLDataType::UINT32, DLDataType::INT32] {
            let view = of(&tensor(element, &[5], None)).unwrap();
            assert_eq!((view.address(), view.places(), view.gpu()), (4160, Some(5), Some(1)));
        }
        let refused = of(&tensor(DLDataType::INT64, &[5], None));
        let defect = MemoryDefect::Element { code: 0, bits: 64, lanes: 1 };
        assert!(matches!(refused, Err(Error::BadMemory { what: "counts", defect: found }) if found == defect));
    }

    /// The places that `dlpack.h` gives on a machine of 64 bits.
    #[test]
    fn structures_have_the_layout_of_c() {
        use std::mem::offset_of;
        assert_eq!((size_of::<DLDevice>(), size_of::<DLDataType>(), size_of::<DLPackVersion>()), (8, 4, 8));
        let of_tensor = [
            offset_of!(DLTensor, data),
            offset_of!(DLTensor, device),
            offset_of!(DLTensor, ndim),
            offset_of!(DLTensor, dtype),
            offset_of!(DLTensor, shape),
            offset_of!(DLTensor, strides),
            offset_of!(DLTensor, byte_offset),
            size_of::<DLTensor>(),
        ];
        assert_eq!(of_tensor, [0, 8, 16, 20, 24, 32, 40, 48]);
        let of_versioned = [
            offset_of!(DLManagedTensorVersioned, version),
            offset_of!(DLManagedTensorVersioned, manager_ctx),
            offset_of!(DLManagedTensorVersioned, deleter),
            offset_of!(DLManagedTensorVersioned, flags),
            offset_of!(DLManagedTensorVersioned, dl_tensor),
            size_of::<DLManagedTensorVersioned>(),
        ];
        assert_eq!(of_versioned, [0, 8, 16, 24, 32, 80]);
        let of_managed = [
            offset_of!(DLManagedTensor, dl_tensor),
            offset_of!(DLManagedTensor, manager_ctx),
            offset_of!(DLManagedTensor, deleter),
            size_of::<DLManagedTensor>(),
        ];
        assert_eq!(of_managed, [0, 48, 56, 64]);
    }

    /// Out and in again, by the structure `M`.
    fn round_trip<M: Managed>() {
        let owner = Arc::new(7);
        let out = export::<M, _>(Arc::clone(&owner), 4096, &[5, 3], DLDataType::of::<f32>(), 2);
        // SAFETY: the tensor was made a moment ago, and nobody else deletes it.
        let tensor = unsafe { ForeignTensor::new(out) }.unwrap();
        let view = vectors::<f32>(tensor.writable().unwrap(), 3).unwrap();
        assert_eq!((view.address(), view.len(), view.gpu()), (4096, 5, Some(2)));
        let DLTensor { strides, .. } = *tensor.tensor();
        // SAFETY: a tensor of two dimensions has two strides.
        assert_eq!(unsafe { [strides.read(), strides.add(1).read()] }, [3, 1]);
        assert_eq!(Arc::strong_count(&owner), 2);
        drop(tensor);
        assert_eq!(Arc::strong_count(&owner), 1);
    }

    #[test]
    fn a_tensor_keeps_its_owner_until_it_is_deleted() {
        round_trip::<DLManagedTensorVersioned>();
        round_trip::<DLManagedTensor>();
    }

    #[test]
    fn tensors_of_other_versions_are_deleted_and_read_only_ones_are_not_written() {
        let owner = Arc::new(7);
        let out = |version: DLPackVersion| {
            let out: *mut DLManagedTensorVersioned = export(Arc::clone(&owner), 4096, &[5, 3], DLDataType::F32, 2);
            // SAFETY: the tensor was made a moment ago, and nobody else uses it.
            unsafe {
                ((*out).version, (*out).flags) = (version, READ_ONLY);
                ForeignTensor::new(out)
            }
        };
        let defect = |result: Result<&DLTensor>| match result {
            Err(Error::BadMemory { what: "tensor", defect }) => defect,
            other => panic!("{other:?}"),
        };
        let read_only = out(DLPackVersion { major: 1, minor: 9 }).unwrap();
        assert_eq!(defect(read_only.writable()), MemoryDefect::ReadOnly);
        assert_eq!(read_only.tensor().ndim, 2);
        drop(read_only);
        let refused = out(DLPackVersion { major: 2, minor: 3 });
        assert!(matches!(refused, Err(Error::BadMemory { defect: MemoryDefect::Version { major: 2, minor: 3 }, .. })));
        assert_eq!(Arc::strong_count(&owner), 1);
        // SAFETY: a null pointer is no tensor.
        let null = unsafe { ForeignTensor::<DLManagedTensor>::new(ptr::null_mut()) };
        assert!(matches!(null, Err(Error::BadMemory { defect: MemoryDefect::Null, .. })));
    }
}
