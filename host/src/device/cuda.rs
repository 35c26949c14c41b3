//! The CUDA driver as a device. Only this file launches kernels on a GPU.
//!
//! # The current context
//! The driver has a current context for each thread, and the caller may have set one. [`Cuda::enter`] makes the
//! device's context current and returns a guard that restores the former one. Every function here that needs the
//! context takes its own guard. If the context is current already, this costs one query of 12 ns (H200, driver 580,
//! 2026-11-23); a change and its reversal take 59 ns. A search holds one guard from its first call to its last
//! (`Lanes::with_some`), so the context changes twice for each search. Guards nest like the calls of a thread, also
//! where a pool thread runs other tasks while it waits. So after a call every thread, the caller's or a pool's, has the
//! same context as before.
//!
//! # Calls that wait for other threads
//! `cuMemAlloc`, `cuMemFree`, `cuMemHostAlloc`, `cuStreamCreate` and the like wait until the device, or the driver's
//! lock of the context, is free. While other threads launch kernels without a pause, this can take as long as they do:
//! on an H200 with 16 CPU cores (2026-11-26) the first search of a thread took 1.5 s, the whole run of the others,
//! whose median was 77 µs. So a search makes none of these calls once the index has been searched in the same way
//! before:
//!
//! - streams are made ahead, and waited for in order ([`super::lanes`]), and those of an index that is dropped serve
//!   the next one;
//! - scratch of lanes comes from a memory pool of the device, which keeps [`POOL_KEEPS`] bytes
//!   ([`Backend::allocate_on`]);
//! - pinned buffers for small results are made ahead ([`Backend::make_ready`]).
//!
//! Other indexes are loaded, built, changed and dropped beside the searches. So their memory comes from a pool as well
//! ([`VersionPool`]). It keeps up to [`VERSIONS_KEEP`] bytes for the next index, because a timeline of loads beside
//! readers had stops of 1.2 to 3.2 ms where the pool took memory from the driver and gave it back. When the last memory
//! of the pool is freed, the pool gives everything back. Beside 8 threads with short searches, 512 MB that were
//! allocated and freed every 6 ms raised their p99 from 75 to 470 µs by `cuMemAlloc` and `cuMemFree`, in 16 pieces to
//! 484, and not at all by a pool (72 to 78 µs). Pinned buffers of 64 MB stopped them for 31 ms, of 64 KB for 1.1 (H200,
//! driver 580, 2026-11-28).
//!
//! `cuMemFree` waits for all work that may use the memory. Memory of the pool is freed in the order of a stream that
//! waits for the library's other streams ([`Cuda::free_later`]). `cuCtxSynchronize` would do, but it ends the capture
//! of a graph by another thread.
//!
//! Some calls remain. Pinned buffers for copies above [`SMALL_PINNED_BYTES`], and modules, are made by the first search
//! that needs them.

use std::cell::Cell;
use std::collections::{HashMap, HashSet};
use std::ffi::{CStr, CString, c_int, c_uint, c_void};
use std::marker::PhantomData;
use std::ops::Range;
use std::ptr::null_mut;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::Duration;

use cuda_std::PtrMut;
use cuda_std::launch::{Kernel, KernelArgs, LaunchConfig, PORTABLE_CLUSTER_BLOCKS, RawArgs};

use super::backend::{Backend, Queue, ResultArray, TakeResults, WriteRows};
use super::dependent::DependentLaunches;
use super::driver as sys;
use super::limits::{Limits, Products, check_launch};
use super::ptx::{self, Refusal, runs_warpgroups};
use crate::threads::{piece_rows, work_off};
use crate::{Error, MemoryDefect, NoDeviceReason, Result, events};

/// Copies of at least this many bytes go through pinned buffers.
const PINNED_FROM: usize = 64 << 10;
/// Size of a pinned buffer in bytes, and of the portions in which more is copied to the host. With two buffers the
/// host's copy overlaps the transfer. Two buffers of 32 MB took 18 to 35 ms to make, in which other threads waited for
/// the driver.
const PINNED_BYTES: usize = RECEIVED_BYTES + (64 << 10);
/// Bytes of one transfer to the device, of which two are under way together. The copies of searches wait for these: the
/// p99 of searches beside the upload of an image of 512 MB was .44 ms with 32 MB and .18 with 4 MB, and .07 without an
/// upload; the first search, which uploads, took 37 and 54 ms, and 46 with 1 MB (H200, driver 580, 2026-11-28).
const SENT_BYTES: usize = 1 << 20;
/// Size of the pinned buffers for results that need no more: those of a thousand queries for 7 neighbours, or of one
/// query for thousands.
const SMALL_PINNED_BYTES: usize = 64 << 10;
/// The sizes of pinned buffers, ascending.
const PINNED_SIZES: [usize; 2] = [SMALL_PINNED_BYTES, PINNED_BYTES];
/// Bytes of free memory that the pool of a device keeps, and has from the first lanes on: for 32 searches of one query
/// in a million vectors, which take 4 MB each for scores.
const POOL_KEEPS: usize = 128 << 20;
/// Bytes of unused memory that the pool of indexes keeps while any of its memory is used: those of an inverted file of
/// a million vectors of 128 floats with its halves, which had 750 MB. At most a share of the device:
/// [`VERSIONS_SHARE`].
const VERSIONS_KEEP: u64 = 1 << 30;
/// The pool of indexes keeps at most one in this number of the device's bytes.
const VERSIONS_SHARE: u64 = 16;
/// Time between two looks whether the last memory of an idle device is free.
const POLL: Duration = Duration::from_micros(50);
/// Largest part of results that is copied to the host at a time, in bytes: large enough for the bandwidth of the bus,
/// and small enough that the host processes one part while the next is copied.
const RECEIVED_BYTES: usize = 4 << 20;
/// Largest number of bytes between arrays of results that are copied along, so that one copy suffices.
const GAPS_BYTES: usize = 4 << 10;
/// Alignment of an array in a buffer of results, in bytes.
const ARRAY_ALIGN: usize = 64;

/// A CUDA device with its primary context and loaded kernels.
pub(crate) struct Cuda {
    index: usize,
    name: String,
    /// Compute capability: major, minor.
    capability: (i32, i32),
    limits: Limits,
    /// The launches that may start before the work ahead has ended, if the device has them.
    dependent: Option<DependentLaunches>,
    context: Primary,
    /// The loaded modules, by name and by whether their kernels wait.
    modules: Mutex<HashMap<(&'static str, bool), LoadedModule>>,
    functions: Mutex<HashMap<(&'static str, bool), Function>>,
    /// The pairs of pinned buffers that no copy uses at the moment.
    pinned: Mutex<Vec<Pair>>,
    /// Number of pairs of [`SMALL_PINNED_BYTES`] that were made ahead.
    made_ahead: Mutex<usize>,
    /// Whether the device has memory pools.
    has_pools: bool,
    /// Bytes of unused memory that [`VersionPool`] keeps.
    versions_keep: u64,
    /// The memory pool of lanes, once there are lanes.
    pool: Mutex<Option<Pool>>,
    /// The memory pool of all other memory, once there is some.
    version_pool: Mutex<Option<VersionPool>>,
    streams: Mutex<Streams>,
    /// Indices of the devices for which [`Cuda::reach`] succeeded.
    reached: Mutex<HashSet<usize>>,
}

/// A loaded module, which is unloaded with the device.
struct LoadedModule(sys::CUmodule);

// SAFETY: a module handle belongs to the context, which any thread may use.
unsafe impl Send for LoadedModule {}

#[derive(Clone, Copy)]
struct Function {
    raw: sys::CUfunction,
    /// Dynamic shared memory in bytes that the function was set to allow.
    shared_bytes: u32,
    /// Blocks of a cluster that the function was set to allow.
    cluster: u32,
}

// SAFETY: a function handle belongs to the context, which any thread may use.
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
        // SAFETY: the context was retained once and is released once, here.
        unsafe { sys::cuDevicePrimaryCtxRelease_v2(self.ordinal) };
    }
}

/// A guard: the device's context is current in this thread until the guard is dropped. The drop restores the former
/// context, or none.
#[must_use = "the caller's context returns when this is dropped"]
pub(crate) struct Entered {
    /// The former context; `None` if the device's context was current already.
    before: Option<sys::CUcontext>,
    /// Makes the guard not `Send`, because each thread has its own current context.
    thread: PhantomData<*mut ()>,
}

impl Drop for Entered {
    fn drop(&mut self) {
        if let Some(before) = self.before {
            // SAFETY: this context was current before; null leaves the thread without one. If the caller has destroyed
            // the context meanwhile, the driver refuses it.
            unsafe { sys::cuCtxSetCurrent(before) };
        }
    }
}

/// A memory pool of the device. It is destroyed with the device.
#[derive(Clone, Copy)]
struct Pool(sys::CUmemoryPool);

// SAFETY: any thread may use a pool.
unsafe impl Send for Pool {}

impl Pool {
    /// A number of bytes of the pool, by its attribute. The caller has entered device `device`.
    fn bytes(self, device: usize, attribute: c_int) -> Result<u64> {
        let mut bytes = 0u64;
        let value = std::ptr::from_mut(&mut bytes).cast();
        // SAFETY: the pool lives as long as the device; the driver writes 64 bits.
        let code = unsafe { sys::cuMemPoolGetAttribute(self.0, attribute, value) };
        check(device, "cuMemPoolGetAttribute", code).map(|()| bytes)
    }
}

/// Memory that no stream owns, and the streams in whose order it is allocated and freed. Pool and event are destroyed
/// with the device.
#[derive(Clone, Copy)]
struct VersionPool {
    pool: Pool,
    allocations: OfStream,
    releases: OfStream,
    /// The event by which `releases` waits for other streams.
    done: OfEvent,
    /// Bytes that were allocated and not freed. Memory whose release waits for a stream counts as free: an allocation
    /// waits for the release if it needs the memory.
    used: u64,
    /// Bytes of unused memory that the pool keeps.
    keeps: u64,
    /// The pool's threshold ([`sys::POOL_RELEASE_THRESHOLD`]).
    threshold: u64,
}

impl VersionPool {
    /// The threshold at which a pool of `used` used bytes keeps `keeps` bytes, or up to a quarter more, so that small
    /// allocations do not change the threshold.
    fn threshold(used: u64, keeps: u64) -> u64 {
        used.max(1).next_multiple_of((keeps / 4).max(1)) + keeps
    }

    /// Notes how many bytes are used now. Returns the driver's code if the pool has to keep more or less.
    fn set_used(&mut self, used: u64) -> sys::Code {
        self.used = used;
        let mut threshold = VersionPool::threshold(used, self.keeps);
        if threshold == self.threshold {
            return 0;
        }
        self.threshold = threshold;
        let value = std::ptr::from_mut(&mut threshold).cast();
        // SAFETY: the pool lives as long as the device; the driver reads 64 bits.
        unsafe { sys::cuMemPoolSetAttribute(self.pool.0, sys::POOL_RELEASE_THRESHOLD, value) }
    }

    /// Bytes that the pool has and nobody uses. The caller has entered device `device`.
    fn unused(&self, device: usize) -> Result<u64> {
        let reserved = self.pool.bytes(device, sys::POOL_RESERVED_BYTES)?;
        Ok(reserved.saturating_sub(self.used))
    }
}

/// An event of the library's whose handle outlives what has this.
#[derive(Clone, Copy)]
struct OfEvent(sys::CUevent);

// SAFETY: any thread may use an event.
unsafe impl Send for OfEvent {}

/// The streams of the library, which are destroyed with the device.
#[derive(Default)]
struct Streams {
    all: Vec<OfStream>,
    /// Those that nobody has: the usual ones, and the urgent ones. They may have work.
    idle: [Vec<OfStream>; 2],
}

/// A stream of the library's whose handle outlives what has this.
#[derive(Clone, Copy)]
struct OfStream(sys::CUstream);

// SAFETY: any thread may use a stream.
unsafe impl Send for OfStream {}
// SAFETY: as above.
unsafe impl Sync for OfStream {}

/// Device memory, which is freed when dropped.
pub(crate) struct Memory {
    address: u64,
    bytes: usize,
    device: Arc<Cuda>,
    origin: Origin,
}

/// The origin of memory.
enum Origin {
    /// `cuMemAlloc`, because the device has no pools.
    Driver,
    /// The pool of all memory but that of lanes.
    VersionPool,
    /// The pool of lanes. It is freed in the order of the stream.
    Pool(OfStream),
}

impl Memory {
    /// An allocation of no bytes, for which the driver is not called.
    pub fn none(device: &CudaDevice) -> Memory {
        Memory { address: 0, bytes: 0, device: device.clone(), origin: Origin::Driver }
    }

    /// Size of the memory in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if self.address != 0 {
            self.device.release(|| match self.origin {
                // SAFETY: the address came from cuMemAllocFromPoolAsync and is freed once, and the stream exists.
                Origin::Pool(stream) => unsafe { sys::cuMemFreeAsync(self.address, stream.0) },
                Origin::VersionPool => self.device.free_later(self.address, self.bytes as u64),
                // SAFETY: the address came from cuMemAlloc and is freed once.
                Origin::Driver => unsafe { sys::cuMemFree_v2(self.address) },
            });
        }
    }
}

/// A stream of the device. One of the library's serves another user when this is dropped.
pub(crate) struct Stream {
    raw: sys::CUstream,
    device: Arc<Cuda>,
    owned: bool,
    urgent: bool,
    /// Whether small launches may start before the work ahead has ended (`dependent`).
    dependent: bool,
}

// SAFETY: any thread may use a stream.
unsafe impl Send for Stream {}

impl Stream {
    /// A stream of the caller's, in the device's primary context; null is the default stream. It is not destroyed.
    pub fn of_caller(device: &CudaDevice, raw: sys::CUstream) -> Stream {
        Stream { raw, device: device.clone(), owned: false, urgent: false, dependent: true }
    }

    /// The same stream for short chains of small kernels, such as searches: see `dependent`.
    pub fn with_dependent_launches(mut self) -> Stream {
        self.dependent = true;
        self
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if self.owned {
            self.device.streams().idle[usize::from(self.urgent)].push(OfStream(self.raw));
        }
    }
}

/// An event of a device, which is destroyed when dropped. The device must be current then.
pub(crate) struct Event {
    raw: sys::CUevent,
    device: usize,
}

// SAFETY: any thread may use an event.
unsafe impl Send for Event {}

impl Event {
    /// Creates an event of `device`, which the caller has entered.
    fn new(device: &Cuda, flags: c_uint) -> Result<Event> {
        let mut raw = null_mut();
        // SAFETY: the driver writes the handle.
        device.check("cuEventCreate", unsafe { sys::cuEventCreate(&mut raw, flags) })?;
        Ok(Event { raw, device: device.index })
    }

    /// Records the event after all work that `stream` has now.
    pub fn record(&self, stream: &Stream) -> Result<()> {
        // SAFETY: both handles live.
        check(self.device, "cuEventRecord", unsafe { sys::cuEventRecord(self.raw, stream.raw) })
    }

    /// Waits until the work before the last [`record`](Self::record) is done. Returns at once if the event was never
    /// recorded.
    pub fn synchronize(&self) -> Result<()> {
        // SAFETY: the handle lives.
        check(self.device, "cuEventSynchronize", unsafe { sys::cuEventSynchronize(self.raw) })
    }

    /// Milliseconds from `start` to this event. Both must come from [`Cuda::timer`], be recorded and be done.
    #[cfg(feature = "internals")]
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

/// Page-locked host memory, which is freed when dropped. The device must be current then.
struct HostMemory(*mut u8);

impl Drop for HostMemory {
    fn drop(&mut self) {
        // SAFETY: the address came from cuMemHostAlloc and is freed once.
        unsafe { sys::cuMemFreeHost(self.0.cast()) };
    }
}

/// Page-locked host memory, with the event that is recorded after its last transfer.
struct Pinned {
    memory: HostMemory,
    done: Event,
    /// Whether a transfer may still use the memory: a wait for an event that has long passed takes 1.5 to 1.8 µs (H200,
    /// driver 580, 2026-11-26).
    in_transfer: Cell<bool>,
}

// SAFETY: the buffer owns its memory, and the copy that took the buffer out of the pool is its only user.
unsafe impl Send for Pinned {}

impl Pinned {
    fn start(&self) -> *mut u8 {
        self.memory.0
    }

    /// Notes that a transfer, the last work of `stream` so far, uses the memory.
    fn record(&self, stream: &Stream) -> Result<()> {
        self.in_transfer.set(true);
        self.done.record(stream)
    }

    /// Waits until no transfer uses the memory.
    fn wait(&self) -> Result<()> {
        if self.in_transfer.get() {
            self.done.synchronize()?;
            self.in_transfer.set(false);
        }
        Ok(())
    }
}

/// Two buffers: the host uses one while the other is transferred.
struct Pair {
    buffers: [Pinned; 2],
    /// Index of the buffer that an upload takes next.
    next: Cell<usize>,
    /// Room of each buffer in bytes.
    bytes: usize,
}

impl Pair {
    /// The buffer that was not taken last, so its transfer is done or nearly done.
    fn other(&self) -> &Pinned {
        &self.buffers[self.next.replace(1 - self.next.get())]
    }
}

impl Drop for Cuda {
    fn drop(&mut self) {
        let modules = std::mem::take(self.modules.get_mut().unwrap_or_else(|poisoned| poisoned.into_inner()));
        let pinned = std::mem::take(self.pinned.get_mut().unwrap_or_else(|poisoned| poisoned.into_inner()));
        let pool = self.pool.get_mut().unwrap_or_else(|poisoned| poisoned.into_inner()).take();
        let versions = self.version_pool.get_mut().unwrap_or_else(|poisoned| poisoned.into_inner()).take();
        let streams = std::mem::take(self.streams.get_mut().unwrap_or_else(|poisoned| poisoned.into_inner()));
        self.release(move || {
            for OfStream(stream) in streams.all {
                // SAFETY: the handle came from cuStreamCreateWithPriority and is destroyed once; the driver finishes
                // the stream's work first.
                unsafe { sys::cuStreamDestroy_v2(stream) };
            }
            for module in modules.into_values() {
                // SAFETY: the handle came from cuModuleLoadDataEx and is unloaded once; no launch follows, because the
                // device is dropped.
                unsafe { sys::cuModuleUnload(module.0) };
            }
            drop(pinned);
            if let Some(VersionPool { done: OfEvent(done), .. }) = versions {
                // SAFETY: the handle came from cuEventCreate and is destroyed once.
                unsafe { sys::cuEventDestroy_v2(done) };
            }
            for Pool(pool) in versions.map(|versions| versions.pool).into_iter().chain(pool) {
                // SAFETY: the handle came from cuMemPoolCreate and is destroyed once. Memory of the pool keeps the
                // device alive.
                unsafe { sys::cuMemPoolDestroy(pool) };
            }
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

/// Returns the error of a driver call that failed, for device `device`.
fn check(device: usize, call: &'static str, code: sys::Code) -> Result<()> {
    match code {
        0 => Ok(()),
        code => Err(Error::Driver { call, device, code }),
    }
}

/// Initialises the driver and returns the number of devices, which is not 0. Errors name device `device`.
///
/// # Errors
/// [`Error::NoDevice`] if there is no driver or the driver reports no device. Any other failure is [`Error::Driver`],
/// because a driver that does not work (802, 803, 804 ..) must not look like a machine without a GPU.
pub(crate) fn start_driver(device: usize) -> Result<usize> {
    if !cuda_loader::driver_present() {
        return Err(Error::NoDevice { reason: NoDeviceReason::NoDriver });
    }
    let none_reported = || Error::NoDevice { reason: NoDeviceReason::NoneReported(sys::NO_DEVICE) };
    let mut count = 0;
    // SAFETY: the function takes no pointers; its flags must be 0.
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

/// The CUDA version that the driver supports: (major, minor).
pub(crate) fn driver_version(device: usize) -> Result<(i32, i32)> {
    let mut version = 0;
    // SAFETY: the driver writes the number.
    check(device, "cuDriverGetVersion", unsafe { sys::cuDriverGetVersion(&mut version) })?;
    Ok((version / 1000, version % 1000 / 10))
}

/// A device of the driver, before it has a context.
pub(crate) struct Ordinal {
    index: usize,
    raw: c_int,
}

impl Ordinal {
    /// Device `index`, below the number that [`start_driver`] returned.
    pub fn get(index: usize) -> Result<Ordinal> {
        let mut raw = 0;
        // SAFETY: the driver writes the handle and checks the index.
        check(index, "cuDeviceGet", unsafe { sys::cuDeviceGet(&mut raw, index as c_int) })?;
        Ok(Ordinal { index, raw })
    }

    /// The value of device attribute `which`.
    pub fn attribute(&self, which: c_int) -> Result<i32> {
        let mut value = 0;
        // SAFETY: the driver writes the number.
        let code = unsafe { sys::cuDeviceGetAttribute(&mut value, which, self.raw) };
        check(self.index, "cuDeviceGetAttribute", code).map(|()| value)
    }

    /// Whether the device has memory pools, which drivers before CUDA 11.2 do not know.
    fn has_pools(&self) -> Result<bool> {
        match self.attribute(sys::MEMORY_POOLS_SUPPORTED) {
            Err(Error::Driver { code: sys::INVALID_VALUE, .. }) => Ok(false),
            supported => supported.map(|supported| supported != 0),
        }
    }

    /// Compute capability: (major, minor).
    pub fn capability(&self) -> Result<(i32, i32)> {
        Ok((self.attribute(sys::COMPUTE_CAPABILITY_MAJOR)?, self.attribute(sys::COMPUTE_CAPABILITY_MINOR)?))
    }

    /// Product name, as the driver reports it.
    pub fn name(&self) -> Result<String> {
        let mut name = [0u8; 256];
        // SAFETY: the driver writes at most `name.len()` bytes, NUL included.
        let code = unsafe { sys::cuDeviceGetName(name.as_mut_ptr().cast(), name.len() as c_int, self.raw) };
        check(self.index, "cuDeviceGetName", code)?;
        let text = CStr::from_bytes_until_nul(&name).map_or(&name[..], CStr::to_bytes);
        Ok(String::from_utf8_lossy(text).into_owned())
    }

    /// Size of the device's memory in bytes.
    pub fn total_memory(&self) -> Result<u64> {
        let mut bytes = 0;
        // SAFETY: the driver writes the number.
        check(self.index, "cuDeviceTotalMem", unsafe { sys::cuDeviceTotalMem_v2(&mut bytes, self.raw) })?;
        Ok(bytes as u64)
    }

    /// Free memory in bytes. Opens the device's context for a moment.
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

/// Makes `context`, which belongs to device `device`, current in this thread.
fn enter(device: usize, context: &Primary) -> Result<Entered> {
    let mut before = null_mut();
    // SAFETY: the driver writes the handle.
    check(device, "cuCtxGetCurrent", unsafe { sys::cuCtxGetCurrent(&mut before) })?;
    if before == context.raw {
        return Ok(Entered { before: None, thread: PhantomData });
    }
    // SAFETY: the context is retained, so it exists.
    check(device, "cuCtxSetCurrent", unsafe { sys::cuCtxSetCurrent(context.raw) })?;
    Ok(Entered { before: Some(before), thread: PhantomData })
}

/// Free memory in bytes of the device whose context is current.
fn free_memory(device: usize) -> Result<u64> {
    let (mut free, mut total) = (0, 0);
    // SAFETY: the driver writes the numbers.
    check(device, "cuMemGetInfo", unsafe { sys::cuMemGetInfo_v2(&mut free, &mut total) })?;
    Ok(free as u64)
}

/// Loads an image of a module, machine code or PTX with a NUL at its end, into the context that is current.
fn load_image(image: &[u8]) -> std::result::Result<sys::CUmodule, Refusal> {
    let mut log = vec![0u8; 8192];
    let mut options = [sys::JIT_ERROR_LOG_BUFFER, sys::JIT_ERROR_LOG_BUFFER_SIZE_BYTES];
    let mut values = [log.as_mut_ptr().cast::<c_void>(), std::ptr::without_provenance_mut(log.len())];
    let mut module = null_mut();
    // SAFETY: PTX ends with NUL, and machine code says how long it is. Options and values are arrays of two that
    // outlive the call. The log buffer has the size that is passed with it.
    let code = unsafe {
        sys::cuModuleLoadDataEx(
            &mut module,
            image.as_ptr().cast(),
            options.len() as u32,
            options.as_mut_ptr(),
            values.as_mut_ptr(),
        )
    };
    if code == 0 {
        return Ok(module);
    }
    let end = log.iter().position(|&byte| byte == 0).unwrap_or(log.len());
    Err(Refusal { code, log: String::from_utf8_lossy(&log[..end]).trim().to_owned() })
}

impl Cuda {
    fn open(index: usize) -> Result<Cuda> {
        let available = start_driver(index)?;
        if index >= available {
            return Err(Error::NoDevice { reason: NoDeviceReason::NoSuchDevice { asked: index, available } });
        }
        let device = Ordinal::get(index)?;
        let (major, minor) = device.capability()?;
        if major < 8 {
            return Err(Error::NoDevice { reason: NoDeviceReason::TooOld { device: index, major, minor } });
        }
        let driver = driver_version(index)?;
        let name = device.name()?;
        let limits = Limits {
            device: name.clone().into(),
            multiprocessors: device.attribute(sys::MULTIPROCESSOR_COUNT)? as u32,
            shared_bytes: device.attribute(sys::MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)? as u32,
            emulated: false,
            products: if runs_warpgroups((major, minor), driver) { Products::Groups } else { Products::Warps },
            largest_cluster: 0,
        };
        let dependent = DependentLaunches::find((major, minor), driver, limits.multiprocessors);
        let largest_cluster = dependent.map_or(0, |launches| launches.largest_cluster());
        let limits = Limits { largest_cluster, ..limits };
        Ok(Cuda {
            index,
            capability: (major, minor),
            dependent,
            limits,
            name,
            context: device.context()?,
            modules: Mutex::default(),
            functions: Mutex::default(),
            pinned: Mutex::default(),
            made_ahead: Mutex::default(),
            has_pools: device.has_pools()?,
            versions_keep: VERSIONS_KEEP.min(device.total_memory()? / VERSIONS_SHARE),
            pool: Mutex::default(),
            version_pool: Mutex::default(),
            streams: Mutex::default(),
            reached: Mutex::default(),
        })
    }

    fn check(&self, call: &'static str, code: sys::Code) -> Result<()> {
        check(self.index, call, code)
    }

    /// Makes the device's context current in this thread until the result is dropped.
    pub fn enter(&self) -> Result<Entered> {
        enter(self.index, &self.context)
    }

    /// Number of the device.
    pub fn index(&self) -> usize {
        self.index
    }

    /// Checks that the driver knows an address of the caller's `what` as memory which this device reads and writes: its
    /// own, managed memory, or page-locked memory of the host. Any number may be asked for. The call is allowed while a
    /// stream is captured.
    ///
    /// # Errors
    /// [`Error::BadMemory`] for an unknown address, or memory of another device.
    pub fn check_memory(&self, what: &'static str, address: u64) -> Result<()> {
        let _current = self.enter()?;
        let mut attributes = [sys::POINTER_MEMORY_TYPE, sys::POINTER_IS_MANAGED, sys::POINTER_DEVICE_ORDINAL];
        let mut values = [0u32; 3];
        let mut places = values.each_mut().map(|value| std::ptr::from_mut(value).cast::<c_void>());
        // SAFETY: the driver writes at most 32 bits for each of the attributes, and nothing where it does not know the
        // address.
        self.check("cuPointerGetAttributes", unsafe {
            sys::cuPointerGetAttributes(3, attributes.as_mut_ptr(), places.as_mut_ptr(), address)
        })?;
        let defect = match values {
            [sys::MEMORY_HOST, _, _] => return Ok(()),
            [sys::MEMORY_DEVICE, managed, device] => {
                let found = device as usize;
                if managed & 1 == 1 || found == self.index {
                    return Ok(());
                }
                MemoryDefect::OtherGpu { expected: self.index, found }
            }
            _ => MemoryDefect::Unknown { address },
        };
        Err(Error::BadMemory { what, defect })
    }

    /// Creates an event that records its time. The caller must have entered the device now and when the event is
    /// dropped.
    #[cfg(feature = "internals")]
    pub fn timer(&self) -> Result<Event> {
        Event::new(self, sys::EVENT_DEFAULT)
    }

    /// Calls `give_back`, which returns a resource to the driver, with the context current. It is also called if the
    /// driver refuses to change the context: either the context is current all the same, or it is lost with all its
    /// resources.
    fn release<V>(&self, give_back: impl FnOnce() -> V) {
        let _current = self.enter();
        give_back();
    }

    /// The function handle of a kernel, set to allow the shared memory and the clusters of `config`. The first use
    /// loads the module. If `waits`, the kernel first waits for the work ahead (`dependent`).
    fn function(&self, name: &'static str, waits: bool, config: &LaunchConfig) -> Result<sys::CUfunction> {
        let &LaunchConfig { shared_bytes, cluster, .. } = config;
        let functions = || self.functions.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let known = functions().get(&(name, waits)).copied();
        // Every launch comes here, and nearly every one finds what it needs.
        if let Some(function) = known.filter(|known| shared_bytes <= known.shared_bytes && cluster <= known.cluster) {
            return Ok(function.raw);
        }
        // Launches of other threads do not wait for the driver's compiler.
        let raw = known.map_or_else(|| self.load(name, waits), |function| Ok(function.raw))?;
        let mut functions = functions();
        let function = functions.entry((name, waits)).or_insert(Function {
            raw,
            shared_bytes: 0,
            cluster: PORTABLE_CLUSTER_BLOCKS,
        });
        // A launch may use 48 KiB without this attribute, but the static arrays of the kernel count too. So every size
        // is set.
        if shared_bytes > function.shared_bytes {
            let attribute = sys::MAX_DYNAMIC_SHARED_SIZE_BYTES;
            // SAFETY: the handle belongs to a module that stays loaded.
            let result = unsafe { sys::cuFuncSetAttribute(function.raw, attribute, shared_bytes as i32) };
            self.check("cuFuncSetAttribute", result)?;
            function.shared_bytes = shared_bytes;
        }
        if cluster > function.cluster {
            // SAFETY: as above.
            let result = unsafe { sys::cuFuncSetAttribute(function.raw, sys::LARGE_CLUSTERS_ALLOWED, 1) };
            self.check("cuFuncSetAttribute", result)?;
            function.cluster = cluster;
        }
        Ok(function.raw)
    }

    fn load(&self, kernel: &'static str, waits: bool) -> Result<sys::CUfunction> {
        let missing = |module| Error::PtxRefused { module, code: sys::NOT_FOUND, log: format!("no kernel '{kernel}'") };
        let family = ptx::KERNELS.iter().find(|(name, _)| *name == kernel).map(|(_, family)| *family);
        let Some(embedded) = ptx::MODULES.iter().find(|module| Some(module.name) == family) else {
            return Err(missing("none of this build"));
        };
        let family = embedded.name;
        let mut modules = self.modules.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let module = match modules.get(&(family, waits)) {
            Some(module) => module.0,
            None => {
                let started = events::Started::now();
                let load = |image: &[u8]| match load_image(image) {
                    Err(Refusal { code: sys::OUT_OF_MEMORY, .. }) if self.trim_pools() => load_image(image),
                    loaded => loaded,
                };
                let (module, form) = embedded.load(self.capability, waits, load)?;
                events::module_loaded(self.index, family, form.name(), embedded.bytes, &started);
                modules.insert((family, waits), LoadedModule(module));
                module
            }
        };
        let Ok(name) = CString::new(kernel) else { return Err(missing(family)) };
        let mut function = null_mut();
        // SAFETY: the module is loaded and the name ends with NUL.
        let result = unsafe { sys::cuModuleGetFunction(&mut function, module, name.as_ptr()) };
        match result {
            sys::NOT_FOUND => Err(missing(family)),
            other => self.check("cuModuleGetFunction", other).map(|()| function),
        }
    }

    /// Calls `work` with a pair of pinned buffers that no other copy uses, each for `bytes` bytes or for the largest
    /// piece of them; allocates a pair if none is idle. A pair whose work failed is not used again.
    fn with_pinned<V>(&self, bytes: usize, work: impl FnOnce(&Pair) -> Result<V>) -> Result<V> {
        let size = PINNED_SIZES.into_iter().find(|&size| bytes <= size).unwrap_or(PINNED_BYTES);
        let idle = {
            let mut idle = self.pinned.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            let fits = (0..idle.len()).rev().filter(|&at| idle[at].bytes >= size);
            fits.min_by_key(|&at| idle[at].bytes).map(|at| idle.swap_remove(at))
        };
        let pair = match idle {
            Some(pair) => pair,
            None => self.new_pair(size)?,
        };
        let result = work(&pair)?;
        self.pinned.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).push(pair);
        Ok(result)
    }

    fn new_pair(&self, bytes: usize) -> Result<Pair> {
        Ok(Pair { buffers: [self.new_pinned(bytes)?, self.new_pinned(bytes)?], next: Cell::new(0), bytes })
    }

    fn streams(&self) -> MutexGuard<'_, Streams> {
        self.streams.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn versions(&self) -> MutexGuard<'_, Option<VersionPool>> {
        self.version_pool.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// A stream that nobody has, or a new one.
    fn any_stream(&self, urgent: bool) -> Result<OfStream> {
        let idle = self.streams().idle[usize::from(urgent)].pop();
        if let Some(stream) = idle {
            return Ok(stream);
        }
        let _current = self.enter()?;
        let priority = if urgent { sys::HIGHEST_PRIORITY } else { sys::USUAL_PRIORITY };
        let mut raw = null_mut();
        // SAFETY: the driver writes the handle; flags 0 are allowed.
        let result = unsafe { sys::cuStreamCreateWithPriority(&mut raw, 0, priority) };
        self.check("cuStreamCreateWithPriority", result)?;
        self.streams().all.push(OfStream(raw));
        Ok(OfStream(raw))
    }

    /// A new memory pool, which keeps this number of bytes. The caller has entered the device.
    fn new_pool(&self, mut keeps: u64) -> Result<Pool> {
        let (mut raw, properties) = (null_mut(), sys::MemoryPoolProperties::of_device(self.context.ordinal));
        // SAFETY: the driver reads the properties and writes the handle.
        self.check("cuMemPoolCreate", unsafe { sys::cuMemPoolCreate(&mut raw, &properties) })?;
        // SAFETY: the pool exists; the driver reads 64 bits.
        let result = unsafe {
            sys::cuMemPoolSetAttribute(raw, sys::POOL_RELEASE_THRESHOLD, std::ptr::from_mut(&mut keeps).cast())
        };
        if let Err(error) = self.check("cuMemPoolSetAttribute", result) {
            // SAFETY: the handle came from cuMemPoolCreate, and nothing else has it.
            unsafe { sys::cuMemPoolDestroy(raw) };
            return Err(error);
        }
        Ok(Pool(raw))
    }

    /// The memory pool of lanes; `None` if the device has none. The caller has entered the device.
    fn pool(&self) -> Result<Option<Pool>> {
        if !self.has_pools {
            return Ok(None);
        }
        let mut pool = self.pool.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if pool.is_none() {
            *pool = Some(self.new_pool(POOL_KEEPS as u64)?);
        }
        Ok(*pool)
    }

    /// The memory pool of other memory; `None` if the device has none. The caller has entered the device.
    fn version_pool(&self) -> Result<Option<VersionPool>> {
        if !self.has_pools {
            return Ok(None);
        }
        let mut versions = self.versions();
        if versions.is_none() {
            let mut streams = Vec::new();
            let mut made = || -> Result<VersionPool> {
                streams.push(self.any_stream(false)?);
                streams.push(self.any_stream(false)?);
                let done = Event::new(self, sys::EVENT_DISABLE_TIMING)?;
                let (keeps, raw) = (self.versions_keep, OfEvent(done.raw));
                let threshold = VersionPool::threshold(0, keeps);
                let (pool, allocations, releases) = (self.new_pool(threshold)?, streams[0], streams[1]);
                std::mem::forget(done);
                Ok(VersionPool { pool, allocations, releases, done: raw, used: 0, keeps, threshold })
            };
            match made() {
                Ok(made) => *versions = Some(made),
                Err(error) => {
                    self.streams().idle[0].append(&mut streams);
                    return Err(error);
                }
            }
        }
        Ok(*versions)
    }

    /// Frees memory of [`VersionPool`] once the work is done that the library's streams have now. The pool keeps it for
    /// the next allocation, but returns all to the driver if no other memory of it is used. The caller has entered the
    /// device.
    fn free_later(&self, address: u64, bytes: u64) -> sys::Code {
        // The lock keeps the event for this call.
        let mut versions = self.versions();
        let Some(pool) = versions.as_mut() else { unreachable!("the memory came from the pool") };
        let &mut VersionPool { releases, done, .. } = pool;
        for &OfStream(stream) in &self.streams().all {
            // SAFETY: streams and event live as long as the device.
            unsafe {
                if sys::cuStreamQuery(stream) == sys::NOT_READY
                    && (sys::cuEventRecord(done.0, stream) != 0 || sys::cuStreamWaitEvent(releases.0, done.0, 0) != 0)
                {
                    sys::cuStreamSynchronize(stream);
                }
            }
        }
        // SAFETY: the address came from cuMemAllocFromPoolAsync and is freed once, by the caller.
        let code = unsafe { sys::cuMemFreeAsync(address, releases.0) };
        // If the driver refuses a new threshold, the pool keeps more.
        pool.set_used(pool.used - bytes);
        let &mut VersionPool { pool: Pool(raw), used, .. } = pool;
        // Others do not wait for the lock.
        drop(versions);
        if used == 0 {
            // SAFETY: stream and pool live as long as the device.
            unsafe {
                // The driver gives back what it knows to be free. Nearly always the work is done by now.
                while sys::cuStreamQuery(releases.0) == sys::NOT_READY {
                    std::thread::sleep(POLL);
                }
                sys::cuMemPoolTrimTo(raw, 0);
            }
        }
        code
    }

    /// Waits for what was [freed](Self::free_later). The caller has entered the device.
    fn wait_for_releases(&self) -> Result<()> {
        let versions = *self.versions();
        let Some(VersionPool { releases: OfStream(releases), .. }) = versions else { return Ok(()) };
        // SAFETY: the stream lives as long as the device.
        self.check("cuStreamSynchronize", unsafe { sys::cuStreamSynchronize(releases) })
    }

    /// Returns all memory that pools keep to the driver, also what was [freed](Self::free_later). Returns whether there
    /// are pools. The caller has entered the device.
    fn trim_pools(&self) -> bool {
        // If it fails, the memory is missing, and the allocation says so.
        let _ = self.wait_for_releases();
        for &OfStream(stream) in self.streams().idle.iter().flatten() {
            // What a dropped lane freed returns to the driver after a wait for its stream, which has no other work.
            // SAFETY: the stream lives as long as the device.
            unsafe { sys::cuStreamSynchronize(stream) };
        }
        let pool = *self.pool.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let pools = self.versions().map(|versions| versions.pool).into_iter().chain(pool);
        // SAFETY: the pools exist as long as the device.
        pools.map(|Pool(pool)| unsafe { sys::cuMemPoolTrimTo(pool, 0) } == 0).fold(false, |any, trimmed| any | trimmed)
    }

    /// Sets up access to the memory of another device, at the first call. If access is not possible (another root
    /// complex, a virtual machine), the driver copies through host memory, which is slower.
    fn reach(&self, other: &Cuda) -> Result<()> {
        let mut reached = self.reached.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if reached.contains(&other.index) {
            return Ok(());
        }
        if self.can_use(other)? {
            // SAFETY: the context lives as long as `other`, and this device's context is current.
            match unsafe { sys::cuCtxEnablePeerAccess(other.context.raw, 0) } {
                sys::PEER_ACCESS_ALREADY_ENABLED => {}
                result => self.check("cuCtxEnablePeerAccess", result)?,
            }
            other.open_pools_to(self)?;
        }
        // Either device may do a copy.
        if other.can_use(self)? {
            self.open_pools_to(other)?;
        }
        reached.insert(other.index);
        Ok(())
    }

    /// Whether this device can use the memory of another one.
    fn can_use(&self, other: &Cuda) -> Result<bool> {
        let mut possible = 0;
        // SAFETY: the driver writes the number.
        let result = unsafe { sys::cuDeviceCanAccessPeer(&mut possible, self.context.ordinal, other.context.ordinal) };
        self.check("cuDeviceCanAccessPeer", result).map(|()| possible != 0)
    }

    /// Lets another device use the memory of the pools, which follow no context.
    fn open_pools_to(&self, other: &Cuda) -> Result<()> {
        let _current = self.enter()?;
        let access = sys::MemoryAccess::of_device(other.context.ordinal);
        for Pool(pool) in self.version_pool()?.map(|versions| versions.pool).into_iter().chain(self.pool()?) {
            // SAFETY: the pool lives as long as this device; the driver reads the description.
            self.check("cuMemPoolSetAccess", unsafe { sys::cuMemPoolSetAccess(pool, &access, 1) })?;
        }
        Ok(())
    }

    /// [`Backend::copy_results_to_host`] for rows of more than [`RECEIVED_BYTES`] bytes in all arrays, one row at a
    /// time.
    ///
    /// # Safety
    /// As [`Backend::copy_results_to_host`].
    unsafe fn copy_long_rows_to_host(
        self: &Arc<Self>,
        stream: &Stream,
        rows: usize,
        arrays: &[ResultArray],
        take: &mut TakeResults<'_>,
    ) -> Result<()> {
        // Words of 64 bits, so that the buffer is aligned for any element.
        let mut words: Vec<Vec<u64>> = arrays.iter().map(|array| vec![0; array.row_bytes.div_ceil(8)]).collect();
        for row in 0..rows {
            for (words, array) in words.iter_mut().zip(arrays) {
                let bytes = &mut bytemuck::cast_slice_mut(words)[..array.row_bytes];
                // SAFETY: the caller promises that the array has this row.
                unsafe { self.copy_to_host(stream, bytes, array.from.wrapping_add(row * array.row_bytes))? };
            }
            let bytes = words.iter().map(|words| bytemuck::cast_slice::<u64, u8>(words));
            let bytes: Vec<&[u8]> = bytes.zip(arrays).map(|(bytes, array)| &bytes[..array.row_bytes]).collect();
            take(row..row + 1, &bytes);
        }
        Ok(())
    }

    fn new_pinned(&self, bytes: usize) -> Result<Pinned> {
        let mut start = null_mut();
        // SAFETY: the driver writes the address; flags 0.
        self.check("cuMemHostAlloc", unsafe { sys::cuMemHostAlloc(&mut start, bytes, 0) })?;
        let memory = HostMemory(start.cast());
        Ok(Pinned { memory, done: Event::new(self, sys::EVENT_DISABLE_TIMING)?, in_transfer: Cell::new(false) })
    }
}

/// The partition of results into parts, ranges of rows that are copied to the host one after the other.
struct Parts {
    rows: usize,
    /// Number of rows of a part; the last part may have fewer.
    each: usize,
    /// Offset in bytes of each array's rows of a part in a pinned buffer.
    offsets: Vec<usize>,
    /// Start and length in bytes of device memory that contains all arrays with small gaps. If present, one copy of it
    /// is the only part.
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

    /// Bytes of a buffer for any part: less than [`PINNED_BYTES`], because these are [`RECEIVED_BYTES`] and the
    /// padding for alignment.
    fn buffer_bytes(&self, arrays: &[ResultArray]) -> usize {
        let end = |(array, offset): (&ResultArray, &usize)| offset + self.each * array.row_bytes;
        let parts = arrays.iter().zip(&self.offsets).map(end).max().unwrap_or(0);
        self.together.map_or(parts, |(_, bytes)| bytes)
    }

    fn count(&self) -> usize {
        self.rows.div_ceil(self.each.max(1))
    }

    fn rows_of(&self, part: usize) -> Range<usize> {
        part * self.each..self.rows.min((part + 1) * self.each)
    }

    /// The copies of a part, each as (offset in the buffer, device address, bytes).
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

/// Writes rows, by several threads if there are enough bytes.
fn write_rows(rows: Range<usize>, row_bytes: usize, to: &mut [u8], write: &WriteRows<'_>) {
    let (each, bytes) = (piece_rows(row_bytes), to.len());
    let pieces = to.chunks_mut(each * row_bytes).zip(rows.clone().step_by(each));
    work_off(pieces, bytes, |(to, first)| write(first..rows.end.min(first + each), to));
}

/// Copies memory, by several threads if there are enough bytes.
fn copy_memory(to: &mut [u8], from: &[u8]) {
    write_rows(0..from.len(), 1, to, &|bytes, to| to.copy_from_slice(&from[bytes]));
}

impl Backend for CudaDevice {
    type Memory = Memory;
    type Stream = Stream;

    fn describe(&self) -> String {
        format!("gpu:{} ({})", self.index, self.name)
    }

    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn free_memory(&self) -> Result<u64> {
        let _current = Cuda::enter(self)?;
        // An allocation gets what the pools keep, too.
        let versions = *self.versions();
        let of_versions = versions.map_or(Ok(0), |versions| versions.unused(self.index))?;
        let lanes = *self.pool.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let of_lanes = lanes.map_or(Ok(0), |pool| {
            let reserved = pool.bytes(self.index, sys::POOL_RESERVED_BYTES)?;
            Ok(reserved.saturating_sub(pool.bytes(self.index, sys::POOL_USED_BYTES)?))
        })?;
        Ok(free_memory(self.index)? + of_versions + of_lanes)
    }

    fn allocate(&self, bytes: usize) -> Result<Memory> {
        if bytes == 0 {
            return Ok(Memory::none(self));
        }
        let _current = Cuda::enter(self)?;
        let versions = self.version_pool()?;
        let mut address = 0;
        let mut allocate = || match versions {
            // SAFETY: the driver writes the address; pool and stream live as long as the device.
            Some(VersionPool { pool, allocations, .. }) => unsafe {
                sys::cuMemAllocFromPoolAsync(&mut address, bytes, pool.0, allocations.0)
            },
            // SAFETY: the driver writes the address.
            None => unsafe { sys::cuMemAlloc_v2(&mut address, bytes) },
        };
        let code = match allocate() {
            sys::OUT_OF_MEMORY if self.trim_pools() => allocate(),
            code => code,
        };
        let (device, call) = (self.index, if versions.is_some() { "cuMemAllocFromPoolAsync" } else { "cuMemAlloc" });
        match code {
            sys::OUT_OF_MEMORY => {
                // If the driver does not report the free memory, the error is still that of the allocation.
                let available = free_memory(device).map_err(|_| Error::Driver { call, device, code })?;
                return Err(Error::OutOfDeviceMemory { device: self.describe(), asked: bytes as u64, available });
            }
            other => self.check(call, other)?,
        }
        let origin = if versions.is_some() { Origin::VersionPool } else { Origin::Driver };
        let noted = match self.versions().as_mut().filter(|_| versions.is_some()) {
            Some(pool) => pool.set_used(pool.used + bytes as u64),
            None => 0,
        };
        let memory = Memory { address, bytes, device: self.clone(), origin };
        self.check("cuMemPoolSetAttribute", noted)?;
        if let Some(VersionPool { allocations: OfStream(allocations), .. }) = versions {
            // So that all streams may use the memory.
            // SAFETY: the stream lives as long as the device.
            self.check("cuStreamSynchronize", unsafe { sys::cuStreamSynchronize(allocations) })?;
        }
        Ok(memory)
    }

    fn allocate_on(&self, stream: &Stream, bytes: usize) -> Result<Memory> {
        let _current = Cuda::enter(self)?;
        let Some(Pool(pool)) = self.pool()?.filter(|_| bytes > 0) else { return self.allocate(bytes) };
        let mut address = 0;
        // SAFETY: the driver writes the address; pool and stream exist.
        match unsafe { sys::cuMemAllocFromPoolAsync(&mut address, bytes, pool, stream.raw) } {
            // Memory that the stream freed returns to the pool when the stream has done so. `allocate` takes it from
            // the pool. If there is still no room, its error has the numbers.
            sys::OUT_OF_MEMORY => {
                self.synchronize(stream)?;
                return self.allocate(bytes);
            }
            code => self.check("cuMemAllocFromPoolAsync", code)?,
        }
        let memory = Memory { address, bytes, device: self.clone(), origin: Origin::Pool(OfStream(stream.raw)) };
        // So that other streams may use the memory as well. The stream has no other work.
        self.synchronize(stream)?;
        Ok(memory)
    }

    fn make_ready(&self, stream: &Stream, searches: usize) -> Result<()> {
        let mut made = self.made_ahead.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if *made >= searches {
            return Ok(());
        }
        let _current = Cuda::enter(self)?;
        if *made == 0 && self.has_pools {
            // The pool keeps the memory. A device that has none left does without.
            match self.allocate_on(stream, POOL_KEEPS) {
                Ok(_) | Err(Error::OutOfDeviceMemory { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        while *made < searches {
            let pair = self.new_pair(SMALL_PINNED_BYTES)?;
            self.pinned.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).push(pair);
            *made += 1;
        }
        Ok(())
    }

    fn address(&self, memory: &Memory) -> *mut u8 {
        std::ptr::without_provenance_mut(memory.address as usize)
    }

    fn stream(&self) -> Result<Stream> {
        let OfStream(raw) = self.any_stream(false)?;
        Ok(Stream { raw, device: self.clone(), owned: true, urgent: false, dependent: false })
    }

    fn urgent_stream(&self) -> Result<Stream> {
        let OfStream(raw) = self.any_stream(true)?;
        Ok(Stream { raw, device: self.clone(), owned: true, urgent: true, dependent: false })
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
            // SAFETY: the caller promises that `to` has room. From pageable memory the driver copies the bytes before
            // it returns; pinned memory stays unchanged until its event.
            self.check("cuMemcpyHtoDAsync", unsafe {
                sys::cuMemcpyHtoDAsync_v2(to.addr() as u64, from.cast(), bytes, stream.raw)
            })
        };
        let each = (SENT_BYTES / row_bytes.max(1)).max(1);
        let parts = (0..rows).step_by(each).map(|first| first..rows.min(first + each));
        if rows * row_bytes < PINNED_FROM || row_bytes > PINNED_BYTES {
            return parts.into_iter().try_for_each(|part| {
                let bytes = part.len() * row_bytes;
                // Words of 64 bits, so that the buffer is aligned for any element.
                let mut words = vec![0u64; bytes.div_ceil(size_of::<u64>())];
                write(part.clone(), &mut bytemuck::cast_slice_mut(&mut words)[..bytes]);
                copy(part.start, words.as_ptr().cast(), bytes)
            });
        }
        self.with_pinned(rows * row_bytes, |pair| {
            for part in parts {
                let buffer = pair.other();
                // The last transfer may still use the buffer.
                buffer.wait()?;
                let bytes = part.len() * row_bytes;
                // SAFETY: the buffer has PINNED_BYTES or room for all rows, no other copy uses it, and its transfer is
                // done.
                let staging = unsafe { std::slice::from_raw_parts_mut(buffer.start(), bytes) };
                write_rows(part.clone(), row_bytes, staging, write);
                copy(part.start, buffer.start(), bytes)?;
                buffer.record(stream)?;
            }
            Ok(())
        })
    }

    unsafe fn copy_to_host(&self, stream: &Stream, to: &mut [u8], from: *const u8) -> Result<()> {
        let _current = Cuda::enter(self)?;
        let copy = |to: *mut u8, from: *const u8, bytes: usize| {
            // SAFETY: the caller promises that `from` has the bytes; nothing uses `to` before the wait that follows.
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
        self.with_pinned(to.len(), |Pair { buffers, .. }| {
            let start = |piece: usize, bytes: usize| {
                let buffer = &buffers[piece % 2];
                copy(buffer.start(), from.wrapping_add(piece * PINNED_BYTES), bytes)?;
                buffer.record(stream)
            };
            // The bus fills one buffer while the host empties the other.
            let pieces = to.len().div_ceil(PINNED_BYTES);
            let size = |piece: usize| (to.len() - piece * PINNED_BYTES).min(PINNED_BYTES);
            let sizes: Vec<usize> = (0..pieces).map(size).collect();
            for buffer in buffers {
                buffer.wait()?;
            }
            start(0, sizes[0])?;
            for (piece, to) in to.chunks_mut(PINNED_BYTES).enumerate() {
                if let Some(&bytes) = sizes.get(piece + 1) {
                    start(piece + 1, bytes)?;
                }
                let buffer = &buffers[piece % 2];
                buffer.wait()?;
                // SAFETY: the buffer has PINNED_BYTES or room for all of `to`, no other copy uses it, and its transfer
                // is done.
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
            // SAFETY: the contract is the same.
            return unsafe { self.copy_long_rows_to_host(stream, rows, arrays, take) };
        }
        let _current = Cuda::enter(self)?;
        let parts = Parts::of(rows, arrays);
        self.with_pinned(parts.buffer_bytes(arrays), |Pair { buffers, .. }| {
            let ask = |part: usize| {
                let buffer = &buffers[part % 2];
                // A transfer of another stream may still use the buffer.
                buffer.wait()?;
                for (offset, from, bytes) in parts.copies(part, arrays) {
                    let to = buffer.start().wrapping_add(offset);
                    // SAFETY: the caller promises that `from` has the bytes. The buffer has room for a part. No code
                    // reads the bytes before the event.
                    self.check("cuMemcpyDtoHAsync", unsafe {
                        sys::cuMemcpyDtoHAsync_v2(to.cast(), from as u64, bytes, stream.raw)
                    })?;
                }
                buffer.record(stream)
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
                buffer.wait()?;
                // SAFETY: no other copy uses the buffer, the transfer is done, and the buffer has these bytes of each
                // array.
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
        // SAFETY: the caller promises that both ranges exist and do not overlap.
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
            // SAFETY: the caller promises the contract of `copy`.
            return unsafe { self.copy(stream, to, from, bytes) };
        }
        let _current = Cuda::enter(self)?;
        if bytes == 0 {
            return Ok(());
        }
        self.reach(other)?;
        let (here, there) = (self.context.raw, other.context.raw);
        // SAFETY: the caller promises that both ranges exist in the memory of their contexts, and that nothing writes
        // to `from` until the copy is done.
        self.check("cuMemcpyPeerAsync", unsafe {
            sys::cuMemcpyPeerAsync(to.addr() as u64, here, from.addr() as u64, there, bytes, stream.raw)
        })
    }

    unsafe fn fill(&self, stream: &Stream, to: *mut u8, byte: u8, bytes: usize) -> Result<()> {
        // SAFETY: the same contract.
        unsafe { CallersStream::of(self, stream).fill(PtrMut::new(to, bytes), byte) }
    }

    unsafe fn launch<A: KernelArgs>(
        &self,
        stream: &Stream,
        kernel: &Kernel<A>,
        config: LaunchConfig,
        args: A,
    ) -> Result<()> {
        // SAFETY: the same contract.
        unsafe { CallersStream::of(self, stream).launch(kernel, config, args) }
    }

    fn load<A: KernelArgs>(&self, kernel: &Kernel<A>, config: &LaunchConfig) -> Result<()> {
        let _current = Cuda::enter(self)?;
        self.function(kernel.name(), self.dependent.is_some(), config).map(|_| ())
    }

    fn wait_for(&self, stream: &Stream, other: &Stream) -> Result<()> {
        let _current = Cuda::enter(self)?;
        let given = Event::new(self, sys::EVENT_DISABLE_TIMING)?;
        given.record(other)?;
        // SAFETY: both handles live. The driver keeps the event until no stream waits for it.
        self.check("cuStreamWaitEvent", unsafe { sys::cuStreamWaitEvent(stream.raw, given.raw, 0) })
    }

    fn synchronize(&self, stream: &Stream) -> Result<()> {
        let _current = Cuda::enter(self)?;
        // SAFETY: the handle lives.
        self.check("cuStreamSynchronize", unsafe { sys::cuStreamSynchronize(stream.raw) })
    }
}

/// A stream of the device's primary context that this struct does not own, such as one of the caller.
pub(crate) struct CallersStream<'a> {
    /// Device of the stream.
    device: &'a CudaDevice,
    /// Handle of the stream; null is the default stream.
    stream: sys::CUstream,
    /// As the field of [`Stream`].
    dependent: bool,
}

impl<'a> CallersStream<'a> {
    /// A stream of the caller's; null is the default stream.
    pub fn new(device: &'a CudaDevice, stream: sys::CUstream) -> Self {
        CallersStream { device, stream, dependent: true }
    }

    fn of(device: &'a CudaDevice, stream: &Stream) -> Self {
        CallersStream { device, stream: stream.raw, dependent: stream.dependent }
    }

    /// Launches a kernel after [`check_launch`]. The function is compiled once for all kernels.
    ///
    /// # Safety
    /// `raw` has the addresses of the kernel's arguments, which outlive the call. The kernel's own contract holds.
    unsafe fn launch_raw(&self, name: &'static str, config: LaunchConfig, raw: &mut RawArgs) -> Result<()> {
        let device = self.device;
        let _current = device.enter()?;
        // The size of a launch does not choose the module, so that a graph can be captured after a search of any size.
        let waits = self.dependent && device.dependent.is_some();
        let function = device.function(name, waits, &config)?;
        if let Some(launches) = device.dependent {
            let dependent = waits && launches.takes(&config);
            if dependent || config.cluster > 1 {
                // SAFETY: as below; the kernel waits for the work ahead if the launch is dependent.
                let code = unsafe { launches.launch(function, &config, dependent, self.stream, raw.as_mut_ptr()) };
                return device.check("cuLaunchKernelEx", code);
            }
        } else if config.cluster > 1 {
            let (what, asked) = ("blocks of a cluster", config.cluster.into());
            return Err(Error::LaunchLimit { kernel: name, what, asked, limit: 1 });
        }
        // `check_launch` compared them with limits below 2³², so they fit.
        let ([gx, gy, gz], [bx, by, bz]) = (config.grid.map(|blocks| blocks as u32), config.block);
        // SAFETY: the caller promises an address for each of the kernel's parameters. They outlive the call, which
        // copies the arguments. The kernel's own contract is the caller's promise, too.
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
        // SAFETY: `KernelArgs` gives an address for each of the kernel's parameters, and `args` outlives the call. The
        // caller promises the kernel's own contract.
        unsafe { self.launch_raw(kernel.name(), config, &mut args.as_raw()) }
    }

    unsafe fn fill<V>(&self, to: PtrMut<V>, byte: u8) -> Result<()> {
        let _current = self.device.enter()?;
        let (to, bytes) = (to.as_bytes(), to.as_bytes().len());
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY: the caller promises that `to` exists and has room for its length.
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
                    let room = parts.buffer_bytes(&arrays);
                    assert!(room <= PINNED_BYTES && copies.iter().all(|&(to, _, bytes)| to + bytes <= room));
                    for (array, &offset) in arrays.iter().zip(&parts.offsets) {
                        // The bytes of the array's rows arrive at the offset that the host reads.
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
