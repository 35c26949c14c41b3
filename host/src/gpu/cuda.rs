//! The CUDA driver as a device, through cust. The only file that launches on a GPU or names a driver call.

use std::cell::Cell;
use std::collections::{HashMap, HashSet};
use std::ffi::{CString, c_void};
use std::ops::Range;
use std::sync::{Arc, Mutex, OnceLock};

use cuda_std::launch::{Kernel, KernelArgs, LaunchConfig};
use cust::context::{Context, ContextHandle, CurrentContext};
use cust::device::DeviceAttribute;
use cust::error::CudaError;
use cust::event::{Event, EventFlags};
use cust::stream::{Stream, StreamFlags, StreamWaitEventFlags};
use cust::sys;

use super::exact::Tuning;
use super::runtime::{Array, Limits, Products, Put, Queue, Runtime, Take};
use crate::device_info::{ptx, runs_warpgroups};
use crate::threads::{piece_rows, work_off};
use crate::{Error, NoDeviceReason, Result};

/// Copies from this size on go through pinned buffers.
const PINNED_FROM: usize = 64 << 10;
/// Size of a pinned buffer. Two of them overlap the host's copy with the bus.
const PINNED_BYTES: usize = 32 << 20;
/// Results that come to the host at once, at most: enough for the bus, and few enough that the host deals with some while others are on
/// their way.
const RECEIVED_BYTES: usize = 4 << 20;
/// Bytes between results that are copied with them rather than around them.
const GAPS_BYTES: usize = 4 << 10;
/// Alignment of an array in a buffer of results.
const ARRAY_ALIGN: usize = 64;

/// A CUDA device with its primary context and loaded kernels.
pub(crate) struct Cuda {
    index: usize,
    name: String,
    limits: Limits,
    context: Context,
    modules: Mutex<HashMap<&'static str, LoadedModule>>,
    functions: Mutex<HashMap<&'static str, Function>>,
    /// Pairs of pinned buffers that no copy uses at the moment.
    pinned: Mutex<Vec<Pair>>,
    /// Devices whose memory this one was asked to reach.
    reached: Mutex<HashSet<usize>>,
}

/// A loaded module; dropped with the device.
struct LoadedModule(sys::CUmodule);

// SAFETY: module handles belong to the context, which any thread may use.
unsafe impl Send for LoadedModule {}

#[derive(Clone, Copy)]
struct Function {
    raw: sys::CUfunction,
    /// Dynamic shared memory the function was told to allow.
    shared_bytes: u32,
}

// SAFETY: function handles belong to the context, which any thread may use.
unsafe impl Send for Function {}

/// Device memory, freed when dropped.
pub(crate) struct Memory {
    address: sys::CUdeviceptr,
    device: Arc<Cuda>,
}

impl Drop for Memory {
    fn drop(&mut self) {
        if self.address != 0 && self.device.make_current().is_ok() {
            // SAFETY: the address came from cuMemAlloc and is freed once. A failure at this point means the context is
            // lost, and its memory with it.
            unsafe { sys::cuMemFree_v2(self.address) };
        }
    }
}

/// Page-locked host memory with the event that says when the bus is done with it.
struct Pinned {
    start: *mut u8,
    done: Event,
}

// SAFETY: the memory is owned, and only used under the lock around it.
unsafe impl Send for Pinned {}

/// Two buffers: one is filled while the bus is at the other.
struct Pair {
    buffers: [Pinned; 2],
    /// Which one an upload takes next.
    next: Cell<usize>,
}

impl Pair {
    /// The buffer that was not taken last: the bus is done with it, or nearly so.
    fn other(&self) -> &Pinned {
        &self.buffers[self.next.replace(1 - self.next.get())]
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // SAFETY: the address came from cuMemHostAlloc and is freed once.
        unsafe { sys::cuMemFreeHost(self.start.cast()) };
    }
}

impl Drop for Cuda {
    fn drop(&mut self) {
        if self.make_current().is_ok() {
            for module in self.modules.get_mut().unwrap_or_else(|poisoned| poisoned.into_inner()).drain() {
                // SAFETY: the handle came from cuModuleLoadDataEx, is unloaded once, and no launch can follow.
                unsafe { sys::cuModuleUnload(module.1.0) };
            }
        }
    }
}

/// A shared handle of an open device.
pub(crate) type CudaDevice = Arc<Cuda>;

/// Opens device `index`; later calls return the same device.
pub(crate) fn open(index: usize) -> Result<CudaDevice> {
    static DEVICES: OnceLock<Mutex<HashMap<usize, CudaDevice>>> = OnceLock::new();
    let mut devices = DEVICES.get_or_init(Default::default).lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    if let Some(device) = devices.get(&index) {
        return Ok(device.clone());
    }
    let device = Arc::new(Cuda::open(index)?);
    devices.insert(index, device.clone());
    Ok(device)
}

impl Cuda {
    fn open(index: usize) -> Result<Cuda> {
        if !cuda_loader::driver_present() {
            return Err(Error::NoDevice { reason: NoDeviceReason::NoDriver });
        }
        cust::init(cust::CudaFlags::empty())
            .map_err(|error| Error::NoDevice { reason: NoDeviceReason::NoneReported(error as i32) })?;
        let failed = |call| move |error: CudaError| Error::Driver { call, device: index, code: error as i32 };
        let available = cust::device::Device::num_devices().map_err(failed("cuDeviceGetCount"))? as usize;
        if available == 0 {
            return Err(Error::NoDevice { reason: NoDeviceReason::NoneReported(100) });
        }
        if index >= available {
            return Err(Error::NoSuchDevice { asked: index, available });
        }
        let device = cust::device::Device::get_device(index as u32).map_err(failed("cuDeviceGet"))?;
        let attribute = |what| device.get_attribute(what).map_err(failed("cuDeviceGetAttribute"));
        let major = attribute(DeviceAttribute::ComputeCapabilityMajor)?;
        let minor = attribute(DeviceAttribute::ComputeCapabilityMinor)?;
        if major < 8 {
            return Err(Error::DeviceTooOld { device: index, major, minor });
        }
        let driver = cust::CudaApiVersion::get().map_err(failed("cuDriverGetVersion"))?;
        let mut shared_bytes = 0;
        let optin = sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN;
        // SAFETY: the driver writes the number.
        match unsafe { sys::cuDeviceGetAttribute(&mut shared_bytes, optin, device.as_raw()) } {
            sys::CUresult::CUDA_SUCCESS => {}
            code => return Err(Error::Driver { call: "cuDeviceGetAttribute", device: index, code: code as i32 }),
        }
        let name = device.name().map_err(failed("cuDeviceGetName"))?;
        let context = Context::new(device).map_err(|error| match error {
            CudaError::OutOfMemory => {
                Error::OutOfDeviceMemory { device: format!("gpu:{index} ({name})"), asked: 0, available: 0 }
            }
            error => failed("cuDevicePrimaryCtxRetain")(error),
        })?;
        Ok(Cuda {
            index,
            limits: Limits {
                device: name.clone(),
                multiprocessors: attribute(DeviceAttribute::MultiprocessorCount)? as u32,
                shared_bytes: shared_bytes as u32,
                products: if runs_warpgroups((major, minor), driver) { Products::Groups } else { Products::Warps },
            },
            name,
            context,
            modules: Mutex::default(),
            functions: Mutex::default(),
            pinned: Mutex::default(),
            reached: Mutex::default(),
        })
    }

    fn check(&self, call: &'static str, result: sys::CUresult) -> Result<()> {
        match result as i32 {
            0 => Ok(()),
            code => Err(Error::Driver { call, device: self.index, code }),
        }
    }

    /// Turns cust's error into ours.
    pub fn failed(&self, call: &'static str) -> impl FnOnce(CudaError) -> Error {
        let device = self.index;
        move |error| Error::Driver { call, device, code: error as i32 }
    }

    /// The driver's current context is per thread; every call from a pool thread sets it.
    fn make_current(&self) -> Result<()> {
        CurrentContext::set_current(&self.context).map_err(self.failed("cuCtxSetCurrent"))
    }

    /// The kernel's function handle; loads its module on first use.
    fn function(&self, name: &'static str, shared_bytes: u32) -> Result<sys::CUfunction> {
        let mut functions = self.functions.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let function = match functions.get(name) {
            Some(function) => *function,
            None => Function { raw: self.load(name)?, shared_bytes: 48 << 10 },
        };
        if shared_bytes > function.shared_bytes {
            let attribute = sys::CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            // SAFETY: the handle is a function of a module that stays loaded.
            let result = unsafe { sys::cuFuncSetAttribute(function.raw, attribute, shared_bytes as i32) };
            self.check("cuFuncSetAttribute", result)?;
        }
        functions.insert(name, Function { shared_bytes: function.shared_bytes.max(shared_bytes), ..function });
        Ok(function.raw)
    }

    fn load(&self, kernel: &'static str) -> Result<sys::CUfunction> {
        let family = ptx::KERNELS.iter().find(|(name, _)| *name == kernel).map(|(_, family)| *family);
        let Some(&(family, text)) = ptx::MODULES.iter().find(|(name, _)| Some(*name) == family) else {
            return Err(Error::NoSuchKernel { module: "none of this build", kernel });
        };
        let mut modules = self.modules.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let module = match modules.get(family) {
            Some(module) => module.0,
            None => {
                let module = self.load_module(family, text)?;
                modules.insert(family, LoadedModule(module));
                module
            }
        };
        let Ok(name) = CString::new(kernel) else { return Err(Error::NoSuchKernel { module: family, kernel }) };
        let mut function = std::ptr::null_mut();
        // SAFETY: the module is loaded, the name ends with NUL.
        let result = unsafe { sys::cuModuleGetFunction(&mut function, module, name.as_ptr()) };
        match result {
            sys::CUresult::CUDA_SUCCESS => Ok(function),
            sys::CUresult::CUDA_ERROR_NOT_FOUND => Err(Error::NoSuchKernel { module: family, kernel }),
            other => self.check("cuModuleGetFunction", other).map(|()| function),
        }
    }

    /// Has the driver compile a module.
    fn load_module(&self, family: &'static str, text: &str) -> Result<sys::CUmodule> {
        let image = CString::new(text).map_err(|_| Error::PtxRefused {
            module: family,
            code: CudaError::InvalidPtx as i32,
            log: "the text holds a NUL byte".to_owned(),
        })?;
        let mut log = vec![0u8; 8192];
        let mut options = [
            sys::CUjit_option_enum::CU_JIT_ERROR_LOG_BUFFER,
            sys::CUjit_option_enum::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES,
        ];
        let mut values = [log.as_mut_ptr().cast::<c_void>(), std::ptr::without_provenance_mut(log.len())];
        let mut module = std::ptr::null_mut();
        // SAFETY: the image ends with NUL; options and values are arrays of two that outlive the call; the log buffer has
        // the size that is passed with it.
        let result = unsafe {
            sys::cuModuleLoadDataEx(
                &mut module,
                image.as_ptr().cast(),
                options.len() as u32,
                options.as_mut_ptr(),
                values.as_mut_ptr(),
            )
        };
        if result != sys::CUresult::CUDA_SUCCESS {
            let end = log.iter().position(|&byte| byte == 0).unwrap_or(log.len());
            let log = String::from_utf8_lossy(&log[..end]).trim().to_owned();
            return Err(Error::PtxRefused { module: family, code: result as i32, log });
        }
        Ok(module)
    }

    /// Runs `work` with a pair of pinned buffers of its own, made where none is idle. A pair whose work failed is not used again.
    fn with_pinned<V>(&self, work: impl FnOnce(&Pair) -> Result<V>) -> Result<V> {
        let idle = self.pinned.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).pop();
        let pair = match idle {
            Some(pair) => pair,
            None => Pair { buffers: [self.new_pinned()?, self.new_pinned()?], next: Cell::new(0) },
        };
        let result = work(&pair)?;
        self.pinned.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).push(pair);
        Ok(result)
    }

    /// Opens the way to the memory of another device, at the first call. Without one (another root complex, a virtual machine) the driver
    /// takes copies through host memory: slower, and right.
    fn reach(&self, other: &Cuda) -> Result<()> {
        if !self.reached.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).insert(other.index) {
            return Ok(());
        }
        let mut possible = 0;
        // SAFETY: the driver writes the number.
        let result = unsafe { sys::cuDeviceCanAccessPeer(&mut possible, self.index as i32, other.index as i32) };
        self.check("cuDeviceCanAccessPeer", result)?;
        if possible == 0 {
            return Ok(());
        }
        // SAFETY: the context lives as long as `other`; ours is current.
        match unsafe { sys::cuCtxEnablePeerAccess(other.context.get_inner(), 0) } {
            sys::CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED => Ok(()),
            result => self.check("cuCtxEnablePeerAccess", result),
        }
    }

    /// [`Runtime::receive`] of rows of millions of results: one by one.
    ///
    /// # Safety
    /// As there.
    unsafe fn receive_long_rows(
        self: &Arc<Self>,
        stream: &Stream,
        rows: usize,
        arrays: &[Array],
        take: &mut Take<'_>,
    ) -> Result<()> {
        // Words, so that they suit whatever the arrays hold.
        let mut words: Vec<Vec<u64>> = arrays.iter().map(|array| vec![0; array.row_bytes.div_ceil(8)]).collect();
        for row in 0..rows {
            for (words, array) in words.iter_mut().zip(arrays) {
                let bytes = &mut bytemuck::cast_slice_mut(words)[..array.row_bytes];
                // SAFETY: the array has this row, as the caller promises.
                unsafe { self.download(stream, bytes, array.from.wrapping_add(row * array.row_bytes))? };
            }
            let bytes = words.iter().map(|words| bytemuck::cast_slice::<u64, u8>(words));
            let bytes: Vec<&[u8]> = bytes.zip(arrays).map(|(bytes, array)| &bytes[..array.row_bytes]).collect();
            take(row..row + 1, &bytes);
        }
        Ok(())
    }

    fn new_pinned(&self) -> Result<Pinned> {
        let mut start = std::ptr::null_mut();
        // SAFETY: the driver writes the address; flags 0.
        self.check("cuMemHostAlloc", unsafe { sys::cuMemHostAlloc(&mut start, PINNED_BYTES, 0) })?;
        let done = Event::new(EventFlags::DISABLE_TIMING).map_err(self.failed("cuEventCreate"))?;
        Ok(Pinned { start: start.cast(), done })
    }
}

/// How results come to the host: so many rows at a time.
struct Parts {
    rows: usize,
    /// Rows of a part, at most.
    each: usize,
    /// Where each array's rows of a part start in a pinned buffer.
    offsets: Vec<usize>,
    /// Start and length of device memory that holds all rows of all arrays and little else: then there is one part, and it is one copy.
    together: Option<(usize, usize)>,
}

impl Parts {
    fn of(rows: usize, arrays: &[Array]) -> Parts {
        let row_bytes: usize = arrays.iter().map(|array| array.row_bytes).sum();
        let start = arrays.iter().map(|array| array.from.addr()).min().unwrap_or(0);
        let end = arrays.iter().map(|array| array.from.addr() + rows * array.row_bytes).max().unwrap_or(0);
        let span = end - start;
        if span <= RECEIVED_BYTES && span <= rows * row_bytes + GAPS_BYTES {
            let offsets = arrays.iter().map(|array| array.from.addr() - start).collect();
            return Parts { rows, each: rows, offsets, together: Some((start, span)) };
        }
        let each = (RECEIVED_BYTES / row_bytes.max(1)).clamp(1, rows.max(1));
        let mut used = 0;
        let offset = |array: &Array| {
            let offset = used;
            used += (each * array.row_bytes).next_multiple_of(ARRAY_ALIGN);
            offset
        };
        Parts { rows, each, offsets: arrays.iter().map(offset).collect(), together: None }
    }

    fn count(&self) -> usize {
        self.rows.div_ceil(self.each.max(1))
    }

    fn rows_of(&self, part: usize) -> Range<usize> {
        part * self.each..self.rows.min((part + 1) * self.each)
    }

    /// The copies of a part: where to in the buffer, from which address of the device, how many bytes.
    fn copies(&self, part: usize, arrays: &[Array]) -> Vec<(usize, usize, usize)> {
        if let Some((start, bytes)) = self.together {
            return vec![(0, start, bytes)];
        }
        let rows = self.rows_of(part);
        let copy = |(array, &offset): (&Array, &usize)| {
            (offset, array.from.addr() + rows.start * array.row_bytes, rows.len() * array.row_bytes)
        };
        arrays.iter().zip(&self.offsets).map(copy).collect()
    }
}

/// Has rows written by several threads where that pays.
fn put_rows(rows: Range<usize>, row_bytes: usize, to: &mut [u8], put: &Put<'_>) {
    let (each, bytes) = (piece_rows(row_bytes), to.len());
    let pieces = to.chunks_mut(each * row_bytes).zip(rows.clone().step_by(each));
    work_off(pieces, bytes, |(to, first)| put(first..rows.end.min(first + each), to));
}

/// Copies by several threads where that pays.
fn copy_memory(to: &mut [u8], from: &[u8]) {
    put_rows(0..from.len(), 1, to, &|bytes, to| to.copy_from_slice(&from[bytes]));
}

impl Runtime for CudaDevice {
    type Memory = Memory;
    type Stream = Stream;

    fn describe(&self) -> String {
        format!("gpu:{} ({})", self.index, self.name)
    }

    fn limits(&self) -> Limits {
        self.limits.clone()
    }

    fn tuning(&self) -> Tuning {
        // Where what the filter saves in bytes, its launches cost again: on an H200, of 128 components, 500,000 rows for one query
        // (0.128 ms by the filter, 0.132 without), 125,000 for two (0.089, 0.086), 60,000 for four (0.076, 0.070).
        Tuning { direct_work: 48_000_000, sample_rows: 8192 }
    }

    fn free_memory(&self) -> Result<u64> {
        self.make_current()?;
        let (free, _) = cust::memory::mem_get_info().map_err(self.failed("cuMemGetInfo"))?;
        Ok(free as u64)
    }

    fn allocate(&self, bytes: usize) -> Result<Memory> {
        let mut address = 0;
        if bytes > 0 {
            self.make_current()?;
            // SAFETY: the driver writes the address.
            match unsafe { sys::cuMemAlloc_v2(&mut address, bytes) } {
                sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY => {
                    let available = self.free_memory()?;
                    return Err(Error::OutOfDeviceMemory { device: self.describe(), asked: bytes as u64, available });
                }
                other => self.check("cuMemAlloc", other)?,
            }
        }
        Ok(Memory { address, device: self.clone() })
    }

    fn address(&self, memory: &Memory) -> *mut u8 {
        std::ptr::without_provenance_mut(memory.address as usize)
    }

    fn stream(&self) -> Result<Stream> {
        self.make_current()?;
        Stream::new(StreamFlags::NON_BLOCKING, None).map_err(self.failed("cuStreamCreate"))
    }

    unsafe fn send(&self, stream: &Stream, to: *mut u8, rows: usize, row_bytes: usize, put: &Put<'_>) -> Result<()> {
        self.make_current()?;
        let copy = |row: usize, from: *const u8, bytes: usize| {
            let to = to.wrapping_add(row * row_bytes);
            // SAFETY: `to` has room, as the caller promises. From pageable memory the driver takes its own copy before it
            // returns; pinned memory is kept until its event.
            self.check("cuMemcpyHtoDAsync", unsafe {
                sys::cuMemcpyHtoDAsync_v2(to.addr() as u64, from.cast(), bytes, stream.as_inner())
            })
        };
        let each = (PINNED_BYTES / row_bytes.max(1)).max(1);
        let parts = (0..rows).step_by(each).map(|first| first..rows.min(first + each));
        if rows * row_bytes < PINNED_FROM || row_bytes > PINNED_BYTES {
            return parts.into_iter().try_for_each(|part| {
                let bytes = part.len() * row_bytes;
                // Words, so that they suit whatever the rows hold.
                let mut words = vec![0u64; bytes.div_ceil(size_of::<u64>())];
                put(part.clone(), &mut bytemuck::cast_slice_mut(&mut words)[..bytes]);
                copy(part.start, words.as_ptr().cast(), bytes)
            });
        }
        self.with_pinned(|pair| {
            for part in parts {
                let buffer = pair.other();
                // An event that was never recorded is done.
                buffer.done.synchronize().map_err(self.failed("cuEventSynchronize"))?;
                let bytes = part.len() * row_bytes;
                // SAFETY: the buffer has PINNED_BYTES, is ours, and the bus is done with it.
                let staging = unsafe { std::slice::from_raw_parts_mut(buffer.start, bytes) };
                put_rows(part.clone(), row_bytes, staging, put);
                copy(part.start, buffer.start, bytes)?;
                buffer.done.record(stream).map_err(self.failed("cuEventRecord"))?;
            }
            Ok(())
        })
    }

    unsafe fn download(&self, stream: &Stream, to: &mut [u8], from: *const u8) -> Result<()> {
        self.make_current()?;
        let copy = |to: *mut u8, from: *const u8, bytes: usize| {
            // SAFETY: `from` has that many bytes, as the caller promises; nothing uses `to` before the wait that follows.
            self.check("cuMemcpyDtoHAsync", unsafe {
                sys::cuMemcpyDtoHAsync_v2(to.cast(), from.addr() as u64, bytes, stream.as_inner())
            })
        };
        if to.len() < PINNED_FROM {
            if !to.is_empty() {
                copy(to.as_mut_ptr(), from, to.len())?;
            }
            return self.synchronize(stream);
        }
        self.with_pinned(|Pair { buffers, .. }| {
            let start = |piece: usize, bytes: usize| {
                let buffer = &buffers[piece % 2];
                copy(buffer.start, from.wrapping_add(piece * PINNED_BYTES), bytes)?;
                buffer.done.record(stream).map_err(self.failed("cuEventRecord"))
            };
            // The bus fills one buffer while the host empties the other.
            let pieces = to.len().div_ceil(PINNED_BYTES);
            let size = |piece: usize| (to.len() - piece * PINNED_BYTES).min(PINNED_BYTES);
            let sizes: Vec<usize> = (0..pieces).map(size).collect();
            for buffer in buffers {
                buffer.done.synchronize().map_err(self.failed("cuEventSynchronize"))?;
            }
            start(0, sizes[0])?;
            for (piece, to) in to.chunks_mut(PINNED_BYTES).enumerate() {
                if let Some(&bytes) = sizes.get(piece + 1) {
                    start(piece + 1, bytes)?;
                }
                let buffer = &buffers[piece % 2];
                buffer.done.synchronize().map_err(self.failed("cuEventSynchronize"))?;
                // SAFETY: the buffer has PINNED_BYTES, is ours, and the bus is done with it.
                let staging = unsafe { std::slice::from_raw_parts(buffer.start, to.len()) };
                copy_memory(to, staging);
            }
            Ok(())
        })
    }

    unsafe fn receive(&self, stream: &Stream, rows: usize, arrays: &[Array], take: &mut Take<'_>) -> Result<()> {
        if arrays.iter().map(|array| array.row_bytes).sum::<usize>() > RECEIVED_BYTES {
            // SAFETY: the same contract.
            return unsafe { self.receive_long_rows(stream, rows, arrays, take) };
        }
        self.make_current()?;
        let parts = Parts::of(rows, arrays);
        self.with_pinned(|Pair { buffers, .. }| {
            let ask = |part: usize| {
                let buffer = &buffers[part % 2];
                // Work of another stream may still use it.
                buffer.done.synchronize().map_err(self.failed("cuEventSynchronize"))?;
                for (offset, from, bytes) in parts.copies(part, arrays) {
                    let to = buffer.start.wrapping_add(offset);
                    // SAFETY: `from` has that many bytes, as the caller promises, and the buffer room for them: RECEIVED_BYTES and what
                    // aligning adds is less than PINNED_BYTES. Nobody reads them before the event.
                    self.check("cuMemcpyDtoHAsync", unsafe {
                        sys::cuMemcpyDtoHAsync_v2(to.cast(), from as u64, bytes, stream.as_inner())
                    })?;
                }
                buffer.done.record(stream).map_err(self.failed("cuEventRecord"))
            };
            if parts.count() > 0 {
                ask(0)?;
            }
            for part in 0..parts.count() {
                // The bus fills one buffer while the host empties the other.
                if part + 1 < parts.count() {
                    ask(part + 1)?;
                }
                let (buffer, rows) = (&buffers[part % 2], parts.rows_of(part));
                buffer.done.synchronize().map_err(self.failed("cuEventSynchronize"))?;
                // SAFETY: the buffer is ours, the bus is done with it, and it has these bytes of each array.
                let bytes = |(array, offset): (&Array, &usize)| unsafe {
                    std::slice::from_raw_parts(buffer.start.wrapping_add(*offset), rows.len() * array.row_bytes)
                };
                let bytes: Vec<&[u8]> = arrays.iter().zip(&parts.offsets).map(bytes).collect();
                take(rows, &bytes);
            }
            Ok(())
        })
    }

    unsafe fn copy(&self, stream: &Stream, to: *mut u8, from: *const u8, bytes: usize) -> Result<()> {
        self.make_current()?;
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY: both ranges exist and do not overlap, as the caller promises.
        self.check("cuMemcpyDtoDAsync", unsafe {
            sys::cuMemcpyDtoDAsync_v2(to.addr() as u64, from.addr() as u64, bytes, stream.as_inner())
        })
    }

    unsafe fn copy_from(
        &self,
        stream: &Stream,
        to: *mut u8,
        other: &CudaDevice,
        from: *const u8,
        bytes: usize,
    ) -> Result<()> {
        if other.index == self.index {
            // SAFETY: as the caller promises.
            return unsafe { self.copy(stream, to, from, bytes) };
        }
        self.make_current()?;
        if bytes == 0 {
            return Ok(());
        }
        self.reach(other)?;
        let (here, there) = (self.context.get_inner(), other.context.get_inner());
        // SAFETY: both ranges exist in the memory of their contexts, as the caller promises, and stay as they are until then.
        self.check("cuMemcpyPeerAsync", unsafe {
            sys::cuMemcpyPeerAsync(to.addr() as u64, here, from.addr() as u64, there, bytes, stream.as_inner())
        })
    }

    unsafe fn fill(&self, stream: &Stream, to: *mut u8, byte: u8, bytes: usize) -> Result<()> {
        // SAFETY: the same contract.
        unsafe { CallersStream { device: self, stream: stream.as_inner() }.fill(to, byte, bytes) }
    }

    unsafe fn launch<A: KernelArgs>(
        &self,
        stream: &Stream,
        kernel: &Kernel<A>,
        config: LaunchConfig,
        args: A,
    ) -> Result<()> {
        // SAFETY: the same contract.
        unsafe { CallersStream { device: self, stream: stream.as_inner() }.launch(kernel, config, args) }
    }

    fn load<A: KernelArgs>(&self, kernel: &Kernel<A>, shared_bytes: u32) -> Result<()> {
        self.make_current()?;
        self.function(kernel.name(), shared_bytes).map(|_| ())
    }

    fn follow(&self, stream: &Stream, other: &Stream) -> Result<()> {
        self.make_current()?;
        let given = Event::new(EventFlags::DISABLE_TIMING).map_err(self.failed("cuEventCreate"))?;
        given.record(other).map_err(self.failed("cuEventRecord"))?;
        // The driver keeps the event until nobody waits for it.
        stream.wait_event(given, StreamWaitEventFlags::DEFAULT).map_err(self.failed("cuStreamWaitEvent"))
    }

    fn synchronize(&self, stream: &Stream) -> Result<()> {
        self.make_current()?;
        stream.synchronize().map_err(self.failed("cuStreamSynchronize"))
    }
}

/// A stream that belongs to someone else, of the device's primary context.
pub(crate) struct CallersStream<'a> {
    /// The device.
    pub device: &'a CudaDevice,
    /// The stream; null is the default one.
    pub stream: sys::CUstream,
}

impl Queue for CallersStream<'_> {
    unsafe fn launch<A: KernelArgs>(&self, kernel: &Kernel<A>, config: LaunchConfig, mut args: A) -> Result<()> {
        let device = self.device;
        let threads = config.block.iter().map(|&b| u64::from(b)).product();
        if let Some(limit) = kernel.max_threads().map(u64::from).filter(|&limit| threads > limit) {
            return Err(Error::LaunchLimit { kernel: kernel.name(), what: "threads a block", asked: threads, limit });
        }
        device.make_current()?;
        let function = device.function(kernel.name(), config.shared_bytes)?;
        let mut raw = args.as_raw();
        let ([gx, gy, gz], [bx, by, bz]) = (config.grid, config.block);
        // SAFETY: the typed handle made the argument pointers match the kernel's parameters; they outlive the call, which
        // copies the arguments. The kernel's own contract is the caller's promise.
        device.check("cuLaunchKernel", unsafe {
            sys::cuLaunchKernel(
                function,
                gx,
                gy,
                gz,
                bx,
                by,
                bz,
                config.shared_bytes,
                self.stream,
                raw.as_mut_ptr(),
                std::ptr::null_mut(),
            )
        })
    }

    unsafe fn fill(&self, to: *mut u8, byte: u8, bytes: usize) -> Result<()> {
        self.device.make_current()?;
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY: `to` has room, as the caller promises.
        self.device
            .check("cuMemsetD8Async", unsafe { sys::cuMemsetD8Async(to.addr() as u64, byte, bytes, self.stream) })
    }
}

/// Remembers the calling thread's current context, and makes it current again when dropped.
pub(crate) struct CallersContext(sys::CUcontext);

impl CallersContext {
    /// The context that is current now; none where there is no driver or nobody has started it.
    pub fn remember() -> CallersContext {
        let mut context = std::ptr::null_mut();
        // SAFETY: the driver writes the handle, or leaves it null and says that it has none.
        unsafe { sys::cuCtxGetCurrent(&mut context) };
        CallersContext(context)
    }
}

impl Drop for CallersContext {
    fn drop(&mut self) {
        // SAFETY: the handle was current when it was taken; null leaves the thread without a context, as it was. Should
        // the caller have destroyed it meanwhile, the driver refuses it.
        unsafe { sys::cuCtxSetCurrent(self.0) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_copy_every_row_of_every_array_once() {
        let base = 1 << 40;
        let array = |address: usize, row_bytes| Array { from: std::ptr::without_provenance(address), row_bytes };
        for rows in [0, 1, 7, 5_000, 200_000] {
            for (row_bytes, gap) in
                [([4, 40, 40], 0), ([4, 40, 40], 252), ([4, 4_000, 4_000], 0), ([4, 40, 40], 1 << 30)]
            {
                let mut next = base;
                let arrays = row_bytes.map(|bytes| {
                    let array = array(next, bytes);
                    next += rows * bytes + gap;
                    array
                });
                let parts = Parts::of(rows, &arrays);
                let mut seen = 0;
                for part in 0..parts.count() {
                    let of_part = parts.rows_of(part);
                    assert_eq!((of_part.start, of_part.is_empty()), (seen, false));
                    seen = of_part.end;
                    let copies = parts.copies(part, &arrays);
                    assert!(copies.iter().all(|&(to, _, bytes)| to + bytes <= PINNED_BYTES));
                    for (array, &offset) in arrays.iter().zip(&parts.offsets) {
                        // Where the host looks for the array, the bytes of its rows arrive.
                        let (from, bytes) =
                            (array.from.addr() + of_part.start * array.row_bytes, of_part.len() * array.row_bytes);
                        let arrives = |&(to, start, len): &(usize, usize, usize)| {
                            to <= offset && offset + bytes <= to + len && start + (offset - to) == from
                        };
                        assert_eq!(
                            copies.iter().filter(|copy| arrives(copy)).count(),
                            1,
                            "{rows} rows of {row_bytes:?}, gap {gap}"
                        );
                    }
                }
                assert_eq!(seen, rows);
                let total: usize = row_bytes.iter().sum();
                assert_eq!(parts.together.is_some(), gap <= 252 && rows * total + 2 * gap <= RECEIVED_BYTES);
            }
        }
    }
}
