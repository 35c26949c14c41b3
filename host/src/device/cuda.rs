//! The CUDA driver as a device. The only file that launches on a GPU.
//!
//! # The current context
//! The driver has a current context for each thread, and the caller may have one. [`Cuda::enter`] makes the device's context current and
//! returns a guard that makes the former one current again. Every function here that needs the context takes a guard for itself: where the
//! context is current already, that is one query, of 12 ns (H200, driver 580, 2026-11-23); a change there and back takes 59 ns. A search
//! holds one guard from its first call to its last (`Lanes::with_some`), so the context changes twice a search. Guards nest like the calls of a thread, also where a thread of a pool takes
//! other work while it waits. So each thread has after a call the context that it had before, be it the caller's or one of a pool.

use std::cell::Cell;
use std::collections::{HashMap, HashSet};
use std::ffi::{CStr, CString, c_int, c_uint, c_void};
use std::marker::PhantomData;
use std::ops::Range;
use std::ptr::null_mut;
use std::sync::{Arc, Mutex, OnceLock};

use cuda_std::PtrMut;
use cuda_std::launch::{Kernel, KernelArgs, LaunchConfig, RawArgs};

use super::backend::{Backend, ResultArray, TakeResults, WriteRows};
use super::driver as sys;
use super::info::{ptx, runs_warpgroups};
use super::limits::{Limits, Products};
use super::queue::{Queue, check_launch};
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
    context: Primary,
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

/// The primary context of a device, released when dropped.
struct Primary {
    raw: sys::CUcontext,
    ordinal: c_int,
}

// SAFETY: any thread may use a context.
unsafe impl Send for Primary {}
// SAFETY: as above.
unsafe impl Sync for Primary {}

impl Drop for Primary {
    fn drop(&mut self) {
        // SAFETY: the context was retained once and is released once.
        unsafe { sys::cuDevicePrimaryCtxRelease_v2(self.ordinal) };
    }
}

/// The device's context is current in this thread while this lives; then the one that was before (or none).
#[must_use = "the caller's context returns when this is dropped"]
pub(crate) struct Entered {
    /// `None` if it was the device's context already.
    before: Option<sys::CUcontext>,
    /// Not for another thread: the current context is the thread's.
    thread: PhantomData<*mut ()>,
}

impl Drop for Entered {
    fn drop(&mut self) {
        if let Some(before) = self.before {
            // SAFETY: the context was current before; null leaves the thread without one. Should the caller have destroyed it meanwhile,
            // the driver refuses it.
            unsafe { sys::cuCtxSetCurrent(before) };
        }
    }
}

/// Device memory, freed when dropped.
pub(crate) struct Memory {
    address: u64,
    bytes: usize,
    device: Arc<Cuda>,
}

impl Memory {
    /// Its size.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if self.address != 0 {
            self.device.release(|| {
                // SAFETY: the address came from cuMemAlloc and is freed once.
                unsafe { sys::cuMemFree_v2(self.address) };
            });
        }
    }
}

/// A stream of the device, destroyed when dropped.
pub(crate) struct Stream {
    raw: sys::CUstream,
    device: Arc<Cuda>,
}

// SAFETY: any thread may use a stream.
unsafe impl Send for Stream {}

impl Drop for Stream {
    fn drop(&mut self) {
        self.device.release(|| {
            // SAFETY: the handle came from cuStreamCreate and is destroyed once; the driver finishes the stream's work first.
            unsafe { sys::cuStreamDestroy_v2(self.raw) };
        });
    }
}

/// An event of the device that is current, destroyed when dropped; the device is current then as well.
pub(crate) struct Event {
    raw: sys::CUevent,
    device: usize,
}

// SAFETY: any thread may use an event.
unsafe impl Send for Event {}

impl Event {
    /// An event of `device`, which the caller has entered.
    fn new(device: &Cuda, flags: c_uint) -> Result<Event> {
        let mut raw = null_mut();
        // SAFETY: the driver writes the handle.
        device.check("cuEventCreate", unsafe { sys::cuEventCreate(&mut raw, flags) })?;
        Ok(Event { raw, device: device.index })
    }

    /// Marks the place after all work that `stream` has now.
    pub fn record(&self, stream: &Stream) -> Result<()> {
        // SAFETY: both handles live.
        check(self.device, "cuEventRecord", unsafe { sys::cuEventRecord(self.raw, stream.raw) })
    }

    /// Waits for the place that was marked last. An event that was never recorded is done.
    pub fn synchronize(&self) -> Result<()> {
        // SAFETY: the handle lives.
        check(self.device, "cuEventSynchronize", unsafe { sys::cuEventSynchronize(self.raw) })
    }

    /// Milliseconds from `start` to this event, both made by [`Cuda::timer`], recorded and done.
    pub fn milliseconds_since(&self, start: &Event) -> Result<f32> {
        let mut milliseconds = 0.0;
        // SAFETY: both handles live; the driver writes the number.
        let code = unsafe { sys::cuEventElapsedTime(&mut milliseconds, start.raw, self.raw) };
        check(self.device, "cuEventElapsedTime", code).map(|()| milliseconds)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: the handle came from cuEventCreate and is destroyed once.
        unsafe { sys::cuEventDestroy_v2(self.raw) };
    }
}

/// Page-locked host memory, freed when dropped; its device is current then.
struct HostMemory(*mut u8);

impl Drop for HostMemory {
    fn drop(&mut self) {
        // SAFETY: the address came from cuMemHostAlloc and is freed once.
        unsafe { sys::cuMemFreeHost(self.0.cast()) };
    }
}

/// Page-locked host memory with the event that says when the bus is done with it.
struct Pinned {
    memory: HostMemory,
    done: Event,
}

// SAFETY: the memory is owned, and only used under the lock around it.
unsafe impl Send for Pinned {}

impl Pinned {
    fn start(&self) -> *mut u8 {
        self.memory.0
    }
}

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

impl Drop for Cuda {
    fn drop(&mut self) {
        let modules = std::mem::take(self.modules.get_mut().unwrap_or_else(|poisoned| poisoned.into_inner()));
        let pinned = std::mem::take(self.pinned.get_mut().unwrap_or_else(|poisoned| poisoned.into_inner()));
        self.release(move || {
            for module in modules.into_values() {
                // SAFETY: the handle came from cuModuleLoadDataEx, is unloaded once, and no launch can follow.
                unsafe { sys::cuModuleUnload(module.0) };
            }
            drop(pinned);
        });
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

/// The error of a driver call that failed, about device `device`.
fn check(device: usize, call: &'static str, code: sys::Code) -> Result<()> {
    match code {
        0 => Ok(()),
        code => Err(Error::Driver { call, device, code }),
    }
}

/// Starts the driver and returns the number of devices, which is not 0. `device` is the one that errors name.
///
/// # Errors
/// [`Error::NoDevice`] where there is no driver, or the driver says that there is no device. Any other failure is [`Error::Driver`]: a
/// driver that does not work (802, 803, 804 ..) must not look like a machine without a GPU.
pub(crate) fn start_driver(device: usize) -> Result<usize> {
    if !cuda_loader::driver_present() {
        return Err(Error::NoDevice { reason: NoDeviceReason::NoDriver });
    }
    let none_reported = || Error::NoDevice { reason: NoDeviceReason::NoneReported(sys::NO_DEVICE) };
    let mut count = 0;
    // SAFETY: flags 0.
    match unsafe { sys::cuInit(0) } {
        sys::NO_DEVICE => return Err(none_reported()),
        code => check(device, "cuInit", code)?,
    }
    // SAFETY: the driver writes the number.
    check(device, "cuDeviceGetCount", unsafe { sys::cuDeviceGetCount(&mut count) })?;
    match usize::try_from(count) {
        Ok(count) if count > 0 => Ok(count),
        _ => Err(none_reported()),
    }
}

/// The CUDA version that the driver supports, major and minor.
pub(crate) fn driver_version(device: usize) -> Result<(i32, i32)> {
    let mut version = 0;
    // SAFETY: the driver writes the number.
    check(device, "cuDriverGetVersion", unsafe { sys::cuDriverGetVersion(&mut version) })?;
    Ok((version / 1000, version % 1000 / 10))
}

/// A device by its number, before it has a context.
pub(crate) struct Ordinal {
    index: usize,
    raw: c_int,
}

impl Ordinal {
    /// Device `index`, one of those that [`start_driver`] counted.
    pub fn get(index: usize) -> Result<Ordinal> {
        let mut raw = 0;
        // SAFETY: the driver writes the handle, and checks the number.
        check(index, "cuDeviceGet", unsafe { sys::cuDeviceGet(&mut raw, index as c_int) })?;
        Ok(Ordinal { index, raw })
    }

    /// A number about the device.
    pub fn attribute(&self, which: c_int) -> Result<i32> {
        let mut value = 0;
        // SAFETY: the driver writes the number.
        let code = unsafe { sys::cuDeviceGetAttribute(&mut value, which, self.raw) };
        check(self.index, "cuDeviceGetAttribute", code).map(|()| value)
    }

    /// Compute capability, major and minor.
    pub fn capability(&self) -> Result<(i32, i32)> {
        Ok((self.attribute(sys::COMPUTE_CAPABILITY_MAJOR)?, self.attribute(sys::COMPUTE_CAPABILITY_MINOR)?))
    }

    /// The product's name.
    pub fn name(&self) -> Result<String> {
        let mut name = [0u8; 256];
        // SAFETY: the driver writes at most so many bytes, NUL included.
        let code = unsafe { sys::cuDeviceGetName(name.as_mut_ptr().cast(), name.len() as c_int, self.raw) };
        check(self.index, "cuDeviceGetName", code)?;
        let text = CStr::from_bytes_until_nul(&name).map_or(&name[..], CStr::to_bytes);
        Ok(String::from_utf8_lossy(text).into_owned())
    }

    /// Bytes of the device's memory.
    pub fn total_memory(&self) -> Result<u64> {
        let mut bytes = 0;
        // SAFETY: the driver writes the number.
        check(self.index, "cuDeviceTotalMem", unsafe { sys::cuDeviceTotalMem_v2(&mut bytes, self.raw) })?;
        Ok(bytes as u64)
    }

    /// Bytes that are free now. Opens the device's context for a moment.
    pub fn free_memory(&self) -> Result<u64> {
        let context = self.context()?;
        let _current = enter(self.index, &context)?;
        free_memory(self.index)
    }

    fn context(&self) -> Result<Primary> {
        let mut raw = null_mut();
        // SAFETY: the driver writes the handle.
        let code = unsafe { sys::cuDevicePrimaryCtxRetain(&mut raw, self.raw) };
        check(self.index, "cuDevicePrimaryCtxRetain", code).map(|()| Primary { raw, ordinal: self.raw })
    }
}

/// Makes `context`, of device `device`, current.
fn enter(device: usize, context: &Primary) -> Result<Entered> {
    let mut before = null_mut();
    // SAFETY: the driver writes the handle.
    check(device, "cuCtxGetCurrent", unsafe { sys::cuCtxGetCurrent(&mut before) })?;
    if before == context.raw {
        return Ok(Entered { before: None, thread: PhantomData });
    }
    // SAFETY: the context is retained.
    check(device, "cuCtxSetCurrent", unsafe { sys::cuCtxSetCurrent(context.raw) })?;
    Ok(Entered { before: Some(before), thread: PhantomData })
}

/// Free bytes of the device whose context is current.
fn free_memory(device: usize) -> Result<u64> {
    let (mut free, mut total) = (0, 0);
    // SAFETY: the driver writes the numbers.
    check(device, "cuMemGetInfo", unsafe { sys::cuMemGetInfo_v2(&mut free, &mut total) })?;
    Ok(free as u64)
}

impl Cuda {
    fn open(index: usize) -> Result<Cuda> {
        let available = start_driver(index)?;
        if index >= available {
            return Err(Error::NoSuchDevice { asked: index, available });
        }
        let device = Ordinal::get(index)?;
        let (major, minor) = device.capability()?;
        if major < 8 {
            return Err(Error::DeviceTooOld { device: index, major, minor });
        }
        let driver = driver_version(index)?;
        let name = device.name()?;
        let limits = Limits {
            device: name.clone(),
            multiprocessors: device.attribute(sys::MULTIPROCESSOR_COUNT)? as u32,
            shared_bytes: device.attribute(sys::MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)? as u32,
            emulated: false,
            products: if runs_warpgroups((major, minor), driver) { Products::Groups } else { Products::Warps },
        };
        Ok(Cuda {
            index,
            limits,
            name,
            context: device.context()?,
            modules: Mutex::default(),
            functions: Mutex::default(),
            pinned: Mutex::default(),
            reached: Mutex::default(),
        })
    }

    fn check(&self, call: &'static str, code: sys::Code) -> Result<()> {
        check(self.index, call, code)
    }

    /// Makes the device's context current in this thread, for as long as the result lives.
    pub fn enter(&self) -> Result<Entered> {
        enter(self.index, &self.context)
    }

    /// An event that keeps its time. The device is entered now, and when the event is dropped.
    pub fn timer(&self) -> Result<Event> {
        Event::new(self, sys::EVENT_DEFAULT)
    }

    /// Gives something back to the driver with the context current. Where the driver does not even change the context, the thread may
    /// have it all the same, or the context is lost and all that was in it.
    fn release(&self, give_back: impl FnOnce()) {
        let _current = self.enter();
        give_back();
    }

    /// The kernel's function handle; loads its module on first use.
    fn function(&self, name: &'static str, shared_bytes: u32) -> Result<sys::CUfunction> {
        let mut functions = self.functions.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let function = match functions.get(name) {
            Some(function) => *function,
            // A launch may have 48 KiB unasked, but the kernel's own arrays count too: it is asked for whatever the size.
            None => Function { raw: self.load(name)?, shared_bytes: 0 },
        };
        if shared_bytes > function.shared_bytes {
            let attribute = sys::MAX_DYNAMIC_SHARED_SIZE_BYTES;
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
        let mut function = null_mut();
        // SAFETY: the module is loaded, the name ends with NUL.
        let result = unsafe { sys::cuModuleGetFunction(&mut function, module, name.as_ptr()) };
        match result {
            sys::NOT_FOUND => Err(Error::NoSuchKernel { module: family, kernel }),
            other => self.check("cuModuleGetFunction", other).map(|()| function),
        }
    }

    /// Has the driver compile a module.
    fn load_module(&self, family: &'static str, text: &str) -> Result<sys::CUmodule> {
        let image = CString::new(text).map_err(|_| Error::PtxRefused {
            module: family,
            code: sys::INVALID_PTX,
            log: "the text holds a NUL byte".to_owned(),
        })?;
        let mut log = vec![0u8; 8192];
        let mut options = [sys::JIT_ERROR_LOG_BUFFER, sys::JIT_ERROR_LOG_BUFFER_SIZE_BYTES];
        let mut values = [log.as_mut_ptr().cast::<c_void>(), std::ptr::without_provenance_mut(log.len())];
        let mut module = null_mut();
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
        if result != 0 {
            let end = log.iter().position(|&byte| byte == 0).unwrap_or(log.len());
            let log = String::from_utf8_lossy(&log[..end]).trim().to_owned();
            return Err(Error::PtxRefused { module: family, code: result, log });
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
        let mut reached = self.reached.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if reached.contains(&other.index) {
            return Ok(());
        }
        let mut possible = 0;
        // SAFETY: the driver writes the number.
        let result = unsafe { sys::cuDeviceCanAccessPeer(&mut possible, self.context.ordinal, other.context.ordinal) };
        self.check("cuDeviceCanAccessPeer", result)?;
        if possible != 0 {
            // SAFETY: the context lives as long as `other`; ours is current.
            match unsafe { sys::cuCtxEnablePeerAccess(other.context.raw, 0) } {
                sys::PEER_ACCESS_ALREADY_ENABLED => {}
                result => self.check("cuCtxEnablePeerAccess", result)?,
            }
        }
        reached.insert(other.index);
        Ok(())
    }

    /// [`Backend::copy_results_to_host`] of rows of millions of results: one by one.
    ///
    /// # Safety
    /// As there.
    unsafe fn copy_long_rows_to_host(
        self: &Arc<Self>,
        stream: &Stream,
        rows: usize,
        arrays: &[ResultArray],
        take: &mut TakeResults<'_>,
    ) -> Result<()> {
        // Words, so that they suit whatever the arrays hold.
        let mut words: Vec<Vec<u64>> = arrays.iter().map(|array| vec![0; array.row_bytes.div_ceil(8)]).collect();
        for row in 0..rows {
            for (words, array) in words.iter_mut().zip(arrays) {
                let bytes = &mut bytemuck::cast_slice_mut(words)[..array.row_bytes];
                // SAFETY: the array has this row, as the caller promises.
                unsafe { self.copy_to_host(stream, bytes, array.from.wrapping_add(row * array.row_bytes))? };
            }
            let bytes = words.iter().map(|words| bytemuck::cast_slice::<u64, u8>(words));
            let bytes: Vec<&[u8]> = bytes.zip(arrays).map(|(bytes, array)| &bytes[..array.row_bytes]).collect();
            take(row..row + 1, &bytes);
        }
        Ok(())
    }

    fn new_pinned(&self) -> Result<Pinned> {
        let mut start = null_mut();
        // SAFETY: the driver writes the address; flags 0.
        self.check("cuMemHostAlloc", unsafe { sys::cuMemHostAlloc(&mut start, PINNED_BYTES, 0) })?;
        let memory = HostMemory(start.cast());
        Ok(Pinned { memory, done: Event::new(self, sys::EVENT_DISABLE_TIMING)? })
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
    fn of(rows: usize, arrays: &[ResultArray]) -> Parts {
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
        let offset = |array: &ResultArray| {
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
    fn copies(&self, part: usize, arrays: &[ResultArray]) -> Vec<(usize, usize, usize)> {
        if let Some((start, bytes)) = self.together {
            return vec![(0, start, bytes)];
        }
        let rows = self.rows_of(part);
        let copy = |(array, &offset): (&ResultArray, &usize)| {
            (offset, array.from.addr() + rows.start * array.row_bytes, rows.len() * array.row_bytes)
        };
        arrays.iter().zip(&self.offsets).map(copy).collect()
    }
}

/// Has rows written by several threads where that pays.
fn write_rows(rows: Range<usize>, row_bytes: usize, to: &mut [u8], write: &WriteRows<'_>) {
    let (each, bytes) = (piece_rows(row_bytes), to.len());
    let pieces = to.chunks_mut(each * row_bytes).zip(rows.clone().step_by(each));
    work_off(pieces, bytes, |(to, first)| write(first..rows.end.min(first + each), to));
}

/// Copies by several threads where that pays.
fn copy_memory(to: &mut [u8], from: &[u8]) {
    write_rows(0..from.len(), 1, to, &|bytes, to| to.copy_from_slice(&from[bytes]));
}

impl Backend for CudaDevice {
    type Memory = Memory;
    type Stream = Stream;

    fn describe(&self) -> String {
        format!("gpu:{} ({})", self.index, self.name)
    }

    fn limits(&self) -> Limits {
        self.limits.clone()
    }

    fn free_memory(&self) -> Result<u64> {
        let _current = Cuda::enter(self)?;
        free_memory(self.index)
    }

    fn allocate(&self, bytes: usize) -> Result<Memory> {
        let mut address = 0;
        if bytes > 0 {
            let _current = Cuda::enter(self)?;
            // SAFETY: the driver writes the address.
            match unsafe { sys::cuMemAlloc_v2(&mut address, bytes) } {
                sys::OUT_OF_MEMORY => {
                    // A driver that does not tell what is free: the error is about the allocation all the same.
                    let (device, code) = (self.index, sys::OUT_OF_MEMORY);
                    let available =
                        free_memory(device).map_err(|_| Error::Driver { call: "cuMemAlloc", device, code })?;
                    return Err(Error::OutOfDeviceMemory { device: self.describe(), asked: bytes as u64, available });
                }
                other => self.check("cuMemAlloc", other)?,
            }
        }
        Ok(Memory { address, bytes, device: self.clone() })
    }

    fn address(&self, memory: &Memory) -> *mut u8 {
        std::ptr::without_provenance_mut(memory.address as usize)
    }

    fn stream(&self) -> Result<Stream> {
        let _current = Cuda::enter(self)?;
        let mut raw = null_mut();
        // SAFETY: the driver writes the handle; flags 0.
        self.check("cuStreamCreate", unsafe { sys::cuStreamCreate(&mut raw, 0) })?;
        Ok(Stream { raw, device: self.clone() })
    }

    unsafe fn copy_rows_to_device(
        &self,
        stream: &Stream,
        to: *mut u8,
        rows: usize,
        row_bytes: usize,
        write: &WriteRows<'_>,
    ) -> Result<()> {
        let _current = Cuda::enter(self)?;
        let copy = |row: usize, from: *const u8, bytes: usize| {
            let to = to.wrapping_add(row * row_bytes);
            // SAFETY: `to` has room, as the caller promises. From pageable memory the driver takes its own copy before it
            // returns; pinned memory is kept until its event.
            self.check("cuMemcpyHtoDAsync", unsafe {
                sys::cuMemcpyHtoDAsync_v2(to.addr() as u64, from.cast(), bytes, stream.raw)
            })
        };
        let each = (PINNED_BYTES / row_bytes.max(1)).max(1);
        let parts = (0..rows).step_by(each).map(|first| first..rows.min(first + each));
        if rows * row_bytes < PINNED_FROM || row_bytes > PINNED_BYTES {
            return parts.into_iter().try_for_each(|part| {
                let bytes = part.len() * row_bytes;
                // Words, so that they suit whatever the rows hold.
                let mut words = vec![0u64; bytes.div_ceil(size_of::<u64>())];
                write(part.clone(), &mut bytemuck::cast_slice_mut(&mut words)[..bytes]);
                copy(part.start, words.as_ptr().cast(), bytes)
            });
        }
        self.with_pinned(|pair| {
            for part in parts {
                let buffer = pair.other();
                // An event that was never recorded is done.
                buffer.done.synchronize()?;
                let bytes = part.len() * row_bytes;
                // SAFETY: the buffer has PINNED_BYTES, is ours, and the bus is done with it.
                let staging = unsafe { std::slice::from_raw_parts_mut(buffer.start(), bytes) };
                write_rows(part.clone(), row_bytes, staging, write);
                copy(part.start, buffer.start(), bytes)?;
                buffer.done.record(stream)?;
            }
            Ok(())
        })
    }

    unsafe fn copy_to_host(&self, stream: &Stream, to: &mut [u8], from: *const u8) -> Result<()> {
        let _current = Cuda::enter(self)?;
        let copy = |to: *mut u8, from: *const u8, bytes: usize| {
            // SAFETY: `from` has that many bytes, as the caller promises; nothing uses `to` before the wait that follows.
            self.check("cuMemcpyDtoHAsync", unsafe {
                sys::cuMemcpyDtoHAsync_v2(to.cast(), from.addr() as u64, bytes, stream.raw)
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
                copy(buffer.start(), from.wrapping_add(piece * PINNED_BYTES), bytes)?;
                buffer.done.record(stream)
            };
            // The bus fills one buffer while the host empties the other.
            let pieces = to.len().div_ceil(PINNED_BYTES);
            let size = |piece: usize| (to.len() - piece * PINNED_BYTES).min(PINNED_BYTES);
            let sizes: Vec<usize> = (0..pieces).map(size).collect();
            for buffer in buffers {
                buffer.done.synchronize()?;
            }
            start(0, sizes[0])?;
            for (piece, to) in to.chunks_mut(PINNED_BYTES).enumerate() {
                if let Some(&bytes) = sizes.get(piece + 1) {
                    start(piece + 1, bytes)?;
                }
                let buffer = &buffers[piece % 2];
                buffer.done.synchronize()?;
                // SAFETY: the buffer has PINNED_BYTES, is ours, and the bus is done with it.
                let staging = unsafe { std::slice::from_raw_parts(buffer.start(), to.len()) };
                copy_memory(to, staging);
            }
            Ok(())
        })
    }

    unsafe fn copy_results_to_host(
        &self,
        stream: &Stream,
        rows: usize,
        arrays: &[ResultArray],
        take: &mut TakeResults<'_>,
    ) -> Result<()> {
        if arrays.iter().map(|array| array.row_bytes).sum::<usize>() > RECEIVED_BYTES {
            // SAFETY: the same contract.
            return unsafe { self.copy_long_rows_to_host(stream, rows, arrays, take) };
        }
        let _current = Cuda::enter(self)?;
        let parts = Parts::of(rows, arrays);
        self.with_pinned(|Pair { buffers, .. }| {
            let ask = |part: usize| {
                let buffer = &buffers[part % 2];
                // Work of another stream may still use it.
                buffer.done.synchronize()?;
                for (offset, from, bytes) in parts.copies(part, arrays) {
                    let to = buffer.start().wrapping_add(offset);
                    // SAFETY: `from` has that many bytes, as the caller promises, and the buffer room for them: RECEIVED_BYTES and what
                    // aligning adds is less than PINNED_BYTES. Nobody reads them before the event.
                    self.check("cuMemcpyDtoHAsync", unsafe {
                        sys::cuMemcpyDtoHAsync_v2(to.cast(), from as u64, bytes, stream.raw)
                    })?;
                }
                buffer.done.record(stream)
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
                buffer.done.synchronize()?;
                // SAFETY: the buffer is ours, the bus is done with it, and it has these bytes of each array.
                let bytes = |(array, offset): (&ResultArray, &usize)| unsafe {
                    std::slice::from_raw_parts(buffer.start().wrapping_add(*offset), rows.len() * array.row_bytes)
                };
                let bytes: Vec<&[u8]> = arrays.iter().zip(&parts.offsets).map(bytes).collect();
                take(rows, &bytes);
            }
            Ok(())
        })
    }

    unsafe fn copy(&self, stream: &Stream, to: *mut u8, from: *const u8, bytes: usize) -> Result<()> {
        let _current = Cuda::enter(self)?;
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY: both ranges exist and do not overlap, as the caller promises.
        self.check("cuMemcpyDtoDAsync", unsafe {
            sys::cuMemcpyDtoDAsync_v2(to.addr() as u64, from.addr() as u64, bytes, stream.raw)
        })
    }

    unsafe fn copy_from_device(
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
        let _current = Cuda::enter(self)?;
        if bytes == 0 {
            return Ok(());
        }
        self.reach(other)?;
        let (here, there) = (self.context.raw, other.context.raw);
        // SAFETY: both ranges exist in the memory of their contexts, as the caller promises, and stay as they are until then.
        self.check("cuMemcpyPeerAsync", unsafe {
            sys::cuMemcpyPeerAsync(to.addr() as u64, here, from.addr() as u64, there, bytes, stream.raw)
        })
    }

    unsafe fn fill(&self, stream: &Stream, to: *mut u8, byte: u8, bytes: usize) -> Result<()> {
        // SAFETY: the same contract.
        unsafe { CallersStream { device: self, stream: stream.raw }.fill(PtrMut::new(to, bytes), byte) }
    }

    unsafe fn launch<A: KernelArgs>(
        &self,
        stream: &Stream,
        kernel: &Kernel<A>,
        config: LaunchConfig,
        args: A,
    ) -> Result<()> {
        // SAFETY: the same contract.
        unsafe { CallersStream { device: self, stream: stream.raw }.launch(kernel, config, args) }
    }

    fn load<A: KernelArgs>(&self, kernel: &Kernel<A>, shared_bytes: u32) -> Result<()> {
        let _current = Cuda::enter(self)?;
        self.function(kernel.name(), shared_bytes).map(|_| ())
    }

    fn wait_for(&self, stream: &Stream, other: &Stream) -> Result<()> {
        let _current = Cuda::enter(self)?;
        let given = Event::new(self, sys::EVENT_DISABLE_TIMING)?;
        given.record(other)?;
        // SAFETY: both handles live. The driver keeps the event until nobody waits for it.
        self.check("cuStreamWaitEvent", unsafe { sys::cuStreamWaitEvent(stream.raw, given.raw, 0) })
    }

    fn synchronize(&self, stream: &Stream) -> Result<()> {
        let _current = Cuda::enter(self)?;
        // SAFETY: the handle lives.
        self.check("cuStreamSynchronize", unsafe { sys::cuStreamSynchronize(stream.raw) })
    }
}

/// A stream that belongs to someone else, of the device's primary context.
pub(crate) struct CallersStream<'a> {
    /// The device.
    pub device: &'a CudaDevice,
    /// The stream; null is the default one.
    pub stream: sys::CUstream,
}

impl CallersStream<'_> {
    /// Launches a kernel that was checked; compiled once for all kernels.
    ///
    /// # Safety
    /// `raw` has the addresses of the kernel's arguments, which outlive the call; and the kernel's own contract.
    unsafe fn launch_raw(&self, name: &'static str, config: LaunchConfig, mut raw: RawArgs) -> Result<()> {
        let device = self.device;
        let _current = device.enter()?;
        let function = device.function(name, config.shared_bytes)?;
        // Checked: they fit.
        let ([gx, gy, gz], [bx, by, bz]) = (config.grid.map(|blocks| blocks as u32), config.block);
        // SAFETY: `KernelArgs` gives an address for each of the kernel's parameters; they outlive the call, which
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
                null_mut(),
            )
        })
    }
}

impl Queue for CallersStream<'_> {
    unsafe fn launch<A: KernelArgs>(&self, kernel: &Kernel<A>, config: LaunchConfig, mut args: A) -> Result<()> {
        check_launch(kernel.name(), kernel.max_threads(), config)?;
        // SAFETY: `KernelArgs` gives an address for each of the kernel's parameters, and `args` outlives the call.
        unsafe { self.launch_raw(kernel.name(), config, args.as_raw()) }
    }

    unsafe fn fill<V>(&self, to: PtrMut<V>, byte: u8) -> Result<()> {
        let _current = self.device.enter()?;
        let (to, bytes) = (to.as_bytes(), to.as_bytes().len());
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY: `to` has room, as the caller promises.
        self.device
            .check("cuMemsetD8Async", unsafe { sys::cuMemsetD8Async(to.addr() as u64, byte, bytes, self.stream) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_copy_every_row_of_every_array_once() {
        let base = 1 << 40;
        let array = |address: usize, row_bytes| ResultArray { from: std::ptr::without_provenance(address), row_bytes };
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
