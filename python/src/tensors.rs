//! Tensors in the memory of a GPU: those of other libraries by DLPack, and those of this package.
//!
//! A producer orders its work before that of the stream that `__dlpack__` names. A search here waits for its stream, so
//! its results are there when the call returns, and index, workspace and tensors may change or go afterwards. Training
//! reads host memory, so `to_host` copies its vectors.
//!
//! Protocol: <https://data-apis.org/array-api/latest/API_specification/generated/array_api.array.__dlpack__.html>.

use std::ffi::{CStr, c_void};
use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex};

use numpy::{PyArrayDescrMethods, PyUntypedArray, PyUntypedArrayMethods};
use pyo3::exceptions::PyTypeError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyCapsule, PyDict, PyTuple};
use warpann::cust::context::{Context, CurrentContext};
use warpann::cust::error::CudaError;
use warpann::cust::memory::DeviceBuffer;
use warpann::cust::{self, sys};
use warpann::element::ElementType;
use warpann::views::DeviceVectors;
use warpann::views::dlpack::{DLDataType, DLManagedTensor, DLManagedTensorVersioned, DLTensor, ForeignTensor, export};
use warpann::{DeviceWorkspace, Error, SearchOptions};

use crate::arrays::Readable;
use crate::call::{self, detached};
use crate::errors::{Failure, raised, wrong_type};
use crate::held::{Held, with_element};
use crate::index::Index;

/// Number of DLPack for CUDA devices.
const CUDA: i32 = 2;
const VERSIONED: &CStr = c"dltensor_versioned";
const OLD: &CStr = c"dltensor";

/// The error of a call of the driver.
fn driver(call: &'static str, device: usize) -> impl Fn(CudaError) -> Failure {
    move |error| Failure::Library(Error::Driver { call, device, code: error as i32 })
}

/// Makes the primary context of a GPU, in which the library works, that of this thread.
fn enter(gpu: usize) -> call::Result<Context> {
    let failed = driver("cuDevicePrimaryCtxRetain", gpu);
    let number = u32::try_from(gpu).unwrap_or(u32::MAX);
    cust::init(cust::CudaFlags::empty()).map_err(&failed)?;
    cust::device::Device::get_device(number).and_then(Context::new).map_err(failed)
}

/// Waits for a stream of a GPU.
fn wait_for(stream: usize, gpu: usize) -> call::Result<()> {
    // SAFETY: the caller of the search gave the stream, which the search has used before.
    let code = unsafe { sys::cuStreamSynchronize(stream as sys::CUstream) };
    succeeded("cuStreamSynchronize", gpu, code)
}

/// The error of a call of the driver that was made without cust.
fn succeeded(call: &'static str, device: usize, code: sys::cudaError_enum) -> call::Result<()> {
    match code {
        sys::cudaError_enum::CUDA_SUCCESS => Ok(()),
        code => Err(Error::Driver { call, device, code: code as i32 }.into()),
    }
}

/// Whether an object is a tensor in the memory of a GPU, and of which.
pub fn gpu_of(value: &Bound<'_, PyAny>) -> PyResult<Option<usize>> {
    let Some(device) = value.getattr_opt("__dlpack_device__")? else { return Ok(None) };
    let (kind, number): (i32, i32) = device.call0()?.extract()?;
    Ok(usize::try_from(number).ok().filter(|_| kind == CUDA))
}

/// A tensor of another library, in either version of DLPack. It goes back to its owner when this is dropped.
pub enum Tensor {
    Versioned(ForeignTensor<DLManagedTensorVersioned>),
    Old(ForeignTensor<DLManagedTensor>),
}

impl Tensor {
    /// Takes the tensor of an object, whose work on it precedes later work on `stream`.
    pub fn of(value: &Bound<'_, PyAny>, argument: &str, stream: usize) -> PyResult<Self> {
        let py = value.py();
        if gpu_of(value)?.is_none() {
            return Err(wrong_type(py, argument, value.get_type().name()?.to_cow()?.as_ref(), "a tensor on a GPU"));
        }
        let method = value.getattr("__dlpack__")?;
        let keywords = PyDict::new(py);
        // The number of the default stream; others have their addresses.
        keywords.set_item("stream", if stream == 0 { 1 } else { stream })?;
        keywords.set_item("max_version", (1, 0))?;
        let capsule = match method.call((), Some(&keywords)) {
            // A producer from before the versions.
            Err(error) if error.is_instance_of::<PyTypeError>(py) => {
                keywords.del_item("max_version")?;
                method.call((), Some(&keywords))?
            }
            capsule => capsule?,
        };
        let capsule = capsule.cast_into::<PyCapsule>()?;
        if let Some(tensor) = consume(&capsule, VERSIONED, c"used_dltensor_versioned")? {
            // SAFETY: a capsule of this name has such a tensor, and the new name says that it was taken.
            let tensor = unsafe { ForeignTensor::new(tensor.as_ptr().cast::<DLManagedTensorVersioned>()) };
            return Ok(Tensor::Versioned(tensor.map_err(|error| raised(py, error))?));
        }
        if let Some(tensor) = consume(&capsule, OLD, c"used_dltensor")? {
            // SAFETY: as above.
            let tensor = unsafe { ForeignTensor::new(tensor.as_ptr().cast::<DLManagedTensor>()) };
            return Ok(Tensor::Old(tensor.map_err(|error| raised(py, error))?));
        }
        Err(wrong_type(py, argument, "a capsule of another name", "a tensor by __dlpack__"))
    }

    fn read(&self) -> Plain<'_> {
        Plain(match self {
            Tensor::Versioned(tensor) => tensor.tensor(),
            Tensor::Old(tensor) => tensor.tensor(),
        })
    }

    /// The tensor for results.
    fn written(&self, py: Python<'_>) -> PyResult<Plain<'_>> {
        let tensor = match self {
            Tensor::Versioned(tensor) => tensor.writable(),
            Tensor::Old(tensor) => tensor.writable(),
        };
        tensor.map(Plain).map_err(|error| raised(py, error))
    }
}

/// Takes what a capsule has, if it has the name, and gives it the name of one that is taken.
fn consume(capsule: &Bound<'_, PyCapsule>, name: &CStr, used: &'static CStr) -> PyResult<Option<NonNull<c_void>>> {
    // SAFETY: the capsule is alive, and the name is a string.
    if unsafe { ffi::PyCapsule_IsValid(capsule.as_ptr(), name.as_ptr()) } == 0 {
        return Ok(None);
    }
    // SAFETY: as above.
    let pointer = unsafe { ffi::PyCapsule_GetPointer(capsule.as_ptr(), name.as_ptr()) };
    // SAFETY: as above; the new name lives for ever.
    if unsafe { ffi::PyCapsule_SetName(capsule.as_ptr(), used.as_ptr()) } != 0 {
        return Err(PyErr::fetch(capsule.py()));
    }
    Ok(NonNull::new(pointer))
}

/// The description of a tensor, for a thread without the interpreter's lock.
#[derive(Clone, Copy)]
pub struct Plain<'a>(pub &'a DLTensor);

// SAFETY: nobody changes the description while the tensor is borrowed; it is plain data and addresses, which only the
// driver follows.
unsafe impl Send for Plain<'_> {}
// SAFETY: as above.
unsafe impl Sync for Plain<'_> {}

/// Memory of a GPU, and the context to which it belongs.
struct Memory {
    buffer: ManuallyDrop<DeviceBuffer<u8>>,
    context: Context,
    gpu: usize,
}

// SAFETY: a context and its memory may be used from any thread, one call of the driver at a time or many.
unsafe impl Send for Memory {}
// SAFETY: as above; nothing here changes through a reference.
unsafe impl Sync for Memory {}

impl Memory {
    fn new(bytes: usize, gpu: usize) -> call::Result<Self> {
        let context = enter(gpu)?;
        // SAFETY: what a kernel or a copy does not write is never read: both write all of it, or the call fails.
        let buffer = unsafe { DeviceBuffer::uninitialized(bytes.max(1)) };
        let buffer = ManuallyDrop::new(buffer.map_err(driver("cuMemAlloc", gpu))?);
        Ok(Memory { buffer, context, gpu })
    }

    fn address(&self) -> u64 {
        self.buffer.as_device_ptr().as_raw()
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // Memory is freed in its context. If the driver refuses the context, it is lost, and its memory with it.
        if CurrentContext::set_current(&self.context).is_ok() {
            // SAFETY: this is the only drop of the buffer.
            unsafe { ManuallyDrop::drop(&mut self.buffer) };
        }
    }
}

/// A tensor in the memory of a GPU: results of searches, or an array that :func:`to_device` has copied.
///
/// Other libraries take it by ``__dlpack__`` without a copy (``torch.from_dlpack``, ``cupy.from_dlpack``).
#[pyclass(frozen, module = "warpann")]
pub struct DeviceTensor {
    memory: Arc<Memory>,
    shape: Vec<i64>,
    element: DLDataType,
}

/// The types of elements: that of DLPack, and numpy's name.
const TYPES: [(DLDataType, &str); 7] = [
    (DLDataType::F32, "float32"),
    (DLDataType::INT64, "int64"),
    (DLDataType::UINT32, "uint32"),
    (DLDataType { code: 2, bits: 16, lanes: 1 }, "float16"),
    (DLDataType { code: 1, bits: 8, lanes: 1 }, "uint8"),
    (DLDataType { code: 0, bits: 8, lanes: 1 }, "int8"),
    (DLDataType { code: 4, bits: 16, lanes: 1 }, "uint16"),
];

impl DeviceTensor {
    fn new(shape: Vec<i64>, element: DLDataType, gpu: usize) -> call::Result<Self> {
        let too_large = Error::OutOfHostMemory { asked: u64::MAX };
        let count = shape.iter().try_fold(1usize, |count, &size| count.checked_mul(usize::try_from(size).ok()?));
        let bytes = count.and_then(|count| count.checked_mul(usize::from(element.bits) / 8)).ok_or(too_large)?;
        Ok(DeviceTensor { memory: Arc::new(Memory::new(bytes, gpu)?), shape, element })
    }

    fn count(&self) -> usize {
        self.shape.iter().product::<i64>() as usize
    }
}

#[pymethods]
impl DeviceTensor {
    /// The sizes of the axes.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, &self.shape)
    }

    /// A copy in host memory.
    fn numpy<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let memory = Arc::clone(&self.memory);
        let count = self.count() * usize::from(self.element.bits) / 8;
        let bytes = detached(py, move || {
            CurrentContext::set_current(&memory.context).map_err(driver("cuCtxSetCurrent", memory.gpu))?;
            let mut bytes: Vec<u8> = Vec::new();
            bytes.try_reserve_exact(count).map_err(|_| Error::OutOfHostMemory { asked: count as u64 })?;
            bytes.resize(count, 0);
            if count > 0 {
                // SAFETY: the memory and `bytes` have as many bytes.
                let code = unsafe { sys::cuMemcpyDtoH_v2(bytes.as_mut_ptr().cast(), memory.address(), count) };
                succeeded("cuMemcpyDtoH", memory.gpu, code)?;
            }
            Ok(bytes)
        })?;
        let name = TYPES.iter().find(|(element, _)| *element == self.element).map_or("uint8", |&(_, name)| name);
        let flat = py.import("numpy")?.call_method1("frombuffer", (PyBytes::new(py, &bytes), name))?;
        flat.call_method1("reshape", (self.shape(py)?,))?.call_method0("copy")
    }

    /// The kind and the number of the device, as DLPack has them: (2, N) for ``gpu:N``.
    fn __dlpack_device__(&self) -> (i32, usize) {
        (CUDA, self.memory.gpu)
    }

    /// The tensor for another library, without a copy. The memory is written; no stream need wait.
    #[pyo3(signature = (*, stream=None, max_version=None, dl_device=None, copy=None))]
    fn __dlpack__<'py>(
        &self,
        py: Python<'py>,
        stream: Option<&Bound<'py, PyAny>>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(i32, usize)>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let _ = stream;
        if copy == Some(true) || dl_device.is_some_and(|device| device != self.__dlpack_device__()) {
            return Err(pyo3::exceptions::PyBufferError::new_err("a DeviceTensor is exported without a copy only"));
        }
        let (owner, address, gpu) = (Arc::clone(&self.memory), self.memory.address(), self.memory.gpu);
        let (pointer, name, destructor): (*mut c_void, &CStr, ffi::PyCapsule_Destructor) =
            if max_version.is_some_and(|(major, _)| major >= 1) {
                let made = export::<DLManagedTensorVersioned, _>(owner, address, &self.shape, self.element, gpu);
                (made.cast(), VERSIONED, drop_versioned)
            } else {
                let made = export::<DLManagedTensor, _>(owner, address, &self.shape, self.element, gpu);
                (made.cast(), OLD, drop_old)
            };
        // SAFETY: the destructor is that of what the pointer leads to, and the name lives for ever.
        let capsule = unsafe { ffi::PyCapsule_New(pointer, name.as_ptr(), Some(destructor)) };
        // SAFETY: the result of the call above, which sets an exception if it is null.
        unsafe { Bound::from_owned_ptr_or_err(py, capsule) }
    }

    fn __repr__(&self) -> String {
        format!("<warpann.DeviceTensor of shape {:?} on gpu:{}>", self.shape, self.memory.gpu)
    }
}

/// Gives back a tensor that no library has taken.
///
/// # Safety
/// As a destructor of a capsule that [`DeviceTensor::__dlpack__`] has made.
unsafe extern "C" fn drop_versioned(capsule: *mut ffi::PyObject) {
    // SAFETY: the capsule is alive until this returns.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule, VERSIONED.as_ptr()) != 0 {
            let tensor = ffi::PyCapsule_GetPointer(capsule, VERSIONED.as_ptr());
            drop(ForeignTensor::new(tensor.cast::<DLManagedTensorVersioned>()));
        }
    }
}

/// As [`drop_versioned`].
///
/// # Safety
/// As [`drop_versioned`].
unsafe extern "C" fn drop_old(capsule: *mut ffi::PyObject) {
    // SAFETY: the capsule is alive until this returns.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule, OLD.as_ptr()) != 0 {
            let tensor = ffi::PyCapsule_GetPointer(capsule, OLD.as_ptr());
            drop(ForeignTensor::new(tensor.cast::<DLManagedTensor>()));
        }
    }
}

/// Copies an array to the memory of a GPU.
///
/// Args:
///     array: a contiguous numpy array of float32, float16, uint8, int8, uint32 or int64 with one or two axes.
///     gpu: number of the GPU.
///
/// Raises:
///     WrongType, Driver.
#[pyfunction]
#[pyo3(signature = (array, gpu=0))]
pub fn to_device(py: Python<'_>, array: &Bound<'_, PyAny>, gpu: usize) -> PyResult<DeviceTensor> {
    let bad = || wrong_type(py, "array", "another array", "a contiguous numpy array of numbers that vectors have");
    let untyped = array.cast::<PyUntypedArray>().map_err(|_| bad())?;
    let dtype = untyped.dtype();
    let known = TYPES.iter().find(|(_, name)| dtype.to_string() == *name);
    let &(element, _) = known.ok_or_else(bad)?;
    let readable = Readable::of(array, dtype.kind(), dtype.itemsize()).ok_or_else(bad)?;
    let shape: Vec<i64> = untyped.shape().iter().map(|&size| size as i64).collect();
    let bytes = readable.bytes();
    detached(py, || {
        let tensor = DeviceTensor::new(shape, element, gpu)?;
        let address = tensor.memory.address();
        if !bytes.is_empty() {
            // SAFETY: the memory has as many bytes, and this call is the only one that knows it.
            let code = unsafe { sys::cuMemcpyHtoD_v2(address, bytes.as_ptr().cast(), bytes.len()) };
            succeeded("cuMemcpyHtoD", gpu, code)?;
        }
        Ok(tensor)
    })
}

/// A planned search from GPU memory to GPU memory: see :meth:`Index.device_workspace`.
#[pyclass(frozen, module = "warpann")]
pub struct Workspace {
    index: Py<Index>,
    workspace: Mutex<DeviceWorkspace>,
    k: usize,
}

impl Workspace {
    pub fn new(
        py: Python<'_>,
        index: &Bound<'_, Index>,
        queries: usize,
        k: usize,
        options: &SearchOptions<'_>,
    ) -> PyResult<Self> {
        let workspace = index.get().reading(py, |held| held.device_workspace(queries, k, options))?;
        Ok(Workspace { index: index.clone().unbind(), workspace: Mutex::new(workspace), k })
    }

    /// New tensors for distances and ids.
    fn results<'py>(&self, py: Python<'py>, rows: i64, gpu: usize) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyAny>)> {
        let shape = vec![rows, i64::try_from(self.k).unwrap_or(i64::MAX)];
        let (distances, ids) = detached(py, || {
            let distances = DeviceTensor::new(shape.clone(), DLDataType::F32, gpu)?;
            Ok((distances, DeviceTensor::new(shape, DLDataType::INT64, gpu)?))
        })?;
        Ok((Bound::new(py, distances)?.into_any(), Bound::new(py, ids)?.into_any()))
    }

    /// Enqueues a search, and waits for its stream. The index and the workspace are locked until the stream has done
    /// the work. The caller's tensors say what the memory has, and their owners keep it until this returns.
    fn run(
        &self,
        py: Python<'_>,
        stream: usize,
        gpu: usize,
        enqueue: impl FnOnce(&dyn Held, &mut DeviceWorkspace) -> warpann::Result<()> + Send,
    ) -> PyResult<()> {
        let index = self.index.get();
        detached(py, || {
            let mut workspace = call::lock(&self.workspace)?;
            let state = call::read(&index.state)?;
            let context = enter(gpu)?;
            let enqueued = enqueue(&*state.held, &mut workspace);
            // Also after an error: a part of the search may run.
            let waited = wait_for(stream, gpu);
            drop(context);
            enqueued?;
            waited
        })
    }
}

#[pymethods]
impl Workspace {
    /// Searches for queries in GPU memory, and waits for the results.
    ///
    /// Args:
    ///     queries: a tensor (queries, dim) on the GPU of the index, by ``__dlpack__``: of PyTorch, CuPy, JAX, or
    ///         :class:`DeviceTensor`; contiguous, of the element type of the index. Queries with NaN or infinity get
    ///         the ids −1 and the distances NaN.
    ///     out: (distances, ids): tensors of float32 and int64, (queries, k), that get the results.
    ///     stream: address of the CUDA stream that searches; None means the default stream. The producers of the
    ///         tensors order their work before it.
    ///
    /// Returns:
    ///     ``out``, or a new pair of :class:`DeviceTensor`.
    ///
    /// Raises:
    ///     StaleWorkspace: the index has changed since the workspace was made.
    ///     BadMemory, WrongDimension, TooMany, WrongLength, Driver.
    #[pyo3(signature = (queries, *, out=None, stream=None))]
    fn search<'py>(
        &self,
        py: Python<'py>,
        queries: &Bound<'py, PyAny>,
        out: Option<(Bound<'py, PyAny>, Bound<'py, PyAny>)>,
        stream: Option<usize>,
    ) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyAny>)> {
        let stream = stream.unwrap_or(0);
        let asked = Tensor::of(queries, "queries", stream)?;
        let ([rows, _], gpu) = shape_and_gpu(asked.read(), "queries", py)?;
        let (distances, ids) = match out {
            Some(out) => out,
            None => self.results(py, rows, gpu)?,
        };
        let (to_distances, to_ids) = (Tensor::of(&distances, "out", stream)?, Tensor::of(&ids, "out", stream)?);
        let (queries, results) = (asked.read(), (to_ids.written(py)?, to_distances.written(py)?));
        self.run(py, stream, gpu, |held, workspace| {
            // SAFETY: as `run` says.
            unsafe { held.search_device(workspace, stream, queries, results) }
        })?;
        Ok((distances, ids))
    }

    /// Searches for the vectors within a radius of queries in GPU memory, and waits for the results.
    ///
    /// Args:
    ///     queries: as for :meth:`search`; those with NaN or infinity get the count 0 and distances NaN.
    ///     radius: the largest distance; of similarities the least.
    ///     out: (distances, ids, counts): tensors of float32, int64 and uint32 or int32, (queries, k) twice and
    ///         (queries,), that get the results.
    ///     stream: as for :meth:`search`.
    ///
    /// Returns:
    ///     ``out``, or three new :class:`DeviceTensor`: the best k vectors within the radius, best first, −1 in places
    ///     that are left, and the numbers of all vectors within the radius, which may exceed k.
    ///
    /// Raises:
    ///     StaleWorkspace: the index has changed, or the workspace is one of walks in a graph.
    ///     BadNumber: the radius is NaN. Others as for :meth:`search`.
    #[pyo3(signature = (queries, radius, *, out=None, stream=None))]
    fn range_search<'py>(
        &self,
        py: Python<'py>,
        queries: &Bound<'py, PyAny>,
        radius: f32,
        out: Option<(Bound<'py, PyAny>, Bound<'py, PyAny>, Bound<'py, PyAny>)>,
        stream: Option<usize>,
    ) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyAny>, Bound<'py, PyAny>)> {
        let stream = stream.unwrap_or(0);
        let asked = Tensor::of(queries, "queries", stream)?;
        let ([rows, _], gpu) = shape_and_gpu(asked.read(), "queries", py)?;
        let (distances, ids, counts) = match out {
            Some(out) => out,
            None => {
                let (distances, ids) = self.results(py, rows, gpu)?;
                let counts = detached(py, || DeviceTensor::new(vec![rows], DLDataType::UINT32, gpu))?;
                (distances, ids, Bound::new(py, counts)?.into_any())
            }
        };
        let (to_distances, to_ids) = (Tensor::of(&distances, "out", stream)?, Tensor::of(&ids, "out", stream)?);
        let to_counts = Tensor::of(&counts, "out", stream)?;
        let results = (to_ids.written(py)?, to_distances.written(py)?, to_counts.written(py)?);
        let queries = asked.read();
        self.run(py, stream, gpu, |held, workspace| {
            // SAFETY: as `run` says.
            unsafe { held.range_search_device(workspace, stream, queries, radius, results) }
        })?;
        Ok((distances, ids, counts))
    }

    /// Bytes of GPU memory of the workspace.
    #[getter]
    fn device_bytes(&self, py: Python<'_>) -> PyResult<u64> {
        detached(py, || Ok(call::lock(&self.workspace)?.device_bytes()))
    }
}

/// The number of rows of a tensor, that of its columns, and its GPU.
fn shape_and_gpu(tensor: Plain<'_>, argument: &str, py: Python<'_>) -> PyResult<([i64; 2], usize)> {
    let tensor = tensor.0;
    let axes = usize::try_from(tensor.ndim).ok().filter(|axes| matches!(axes, 1 | 2) && !tensor.shape.is_null());
    let gpu = usize::try_from(tensor.device.device_id).ok().filter(|_| tensor.device.device_type == CUDA);
    let (Some(axes), Some(gpu)) = (axes, gpu) else {
        return Err(wrong_type(py, argument, "another tensor", "a tensor of one or two axes on a GPU"));
    };
    // SAFETY: a tensor has as many sizes as axes.
    let shape = unsafe { std::slice::from_raw_parts(tensor.shape, axes) };
    Ok(([if axes == 2 { shape[0] } else { 1 }, shape[axes - 1]], gpu))
}

/// Vectors in host memory that were copied from a GPU.
pub struct HostCopy {
    words: Vec<u64>,
    len: usize,
}

impl HostCopy {
    pub fn bytes(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.words)[..self.len]
    }
}

/// Copies the vectors of a contiguous tensor to the host, in the order of its default stream: training reads host
/// memory. Returns their element type and shape as well. `None` takes the type of the tensor, and a `dim` of 0 any.
pub fn to_host(
    value: &Bound<'_, PyAny>,
    element: Option<ElementType>,
    dim: usize,
    argument: &str,
) -> PyResult<(HostCopy, ElementType, [usize; 2])> {
    let py = value.py();
    let tensor = Tensor::of(value, argument, 0)?;
    let rows = tensor.read();
    let ([_, columns], gpu) = shape_and_gpu(rows, argument, py)?;
    let dim = if dim == 0 { usize::try_from(columns).unwrap_or(0) } else { dim };
    let is_own = |element: &ElementType| with_element!(*element, T => DLDataType::of::<T>() == rows.0.dtype);
    let element = element.unwrap_or_else(|| ElementType::ALL.into_iter().find(is_own).unwrap_or(ElementType::F32));
    let (copy, count) = detached(py, || {
        // Moves the whole value, which other threads may have, and not the reference inside.
        let rows = { rows }.0;
        let (address, count) = with_element!(element, T => {
            // SAFETY: the tensor has as many sizes and strides as it says.
            let rows = unsafe { DeviceVectors::<T>::of_tensor(rows, dim)? };
            (rows.address(), rows.len())
        });
        let len = count.checked_mul(dim).and_then(|count| count.checked_mul(element.size()));
        let len = len.ok_or(Error::OutOfHostMemory { asked: u64::MAX })?;
        let mut words: Vec<u64> = Vec::new();
        words.try_reserve_exact(len.div_ceil(8)).map_err(|_| Error::OutOfHostMemory { asked: len as u64 })?;
        words.resize(len.div_ceil(8), 0);
        if len > 0 {
            let context = enter(gpu)?;
            // SAFETY: the tensor says that the memory has as many bytes, its owner keeps it until this call returns,
            // and `words` has room for them.
            let code = unsafe { sys::cuMemcpyDtoH_v2(words.as_mut_ptr().cast(), address, len) };
            drop(context);
            succeeded("cuMemcpyDtoH", gpu, code)?;
        }
        Ok((HostCopy { words, len }, count))
    })?;
    Ok((copy, element, [count, dim]))
}

impl Index {
    /// Adds the vectors of a tensor on a GPU, in the order of its default stream.
    pub fn add_tensor(
        &self,
        py: Python<'_>,
        value: &Bound<'_, PyAny>,
        gpu: usize,
        ids: Option<&[u64]>,
    ) -> PyResult<()> {
        let tensor = Tensor::of(value, "vectors", 0)?;
        let rows = tensor.read();
        detached(py, || {
            let mut state = call::write(&self.state)?;
            let context = enter(gpu)?;
            // SAFETY: the tensor says what the memory has, and its owner keeps it until this call returns.
            unsafe { state.held.add_device(rows, ids)? };
            drop(context);
            Ok(())
        })
    }
}
