//! The driver's functions, as NVIDIA's cuda.h declares them.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::{Arc, OnceLock, mpsc};
use std::thread;
use std::time::Instant;

use cuda_std::emulator::{BoundLaunch, kernels};
use cuda_std::launch::{LaunchConfig, PORTABLE_CLUSTER_BLOCKS};

use crate::faults;
use crate::image::Image;
use crate::state::{Capture, Event, Function, HostMemory, Module, Pool, State, Work, lock, violation};

pub const INVALID_VALUE: c_int = 1;
/// `CUDA_ERROR_INVALID_CLUSTER_SIZE`.
const INVALID_CLUSTER_SIZE: c_int = 912;
pub const OUT_OF_MEMORY: c_int = 2;
pub const NOT_INITIALIZED: c_int = 3;
const NO_DEVICE: c_int = 100;
pub const INVALID_DEVICE: c_int = 101;
pub const INVALID_CONTEXT: c_int = 201;
pub const NO_BINARY_FOR_GPU: c_int = 209;
pub const INVALID_PTX: c_int = 218;
pub const INVALID_HANDLE: c_int = 400;
const NOT_FOUND: c_int = 500;
pub const ILLEGAL_ADDRESS: c_int = 700;
pub const LAUNCH_FAILED: c_int = 719;
pub const STREAM_CAPTURE_UNSUPPORTED: c_int = 900;
const STREAM_CAPTURE_INVALIDATED: c_int = 901;
const NOT_READY: c_int = 600;
const NOT_SUPPORTED: c_int = 801;

type Done = Result<(), c_int>;

fn code(done: Done) -> c_int {
    done.err().unwrap_or(0)
}

/// Writes a result for the caller.
///
/// # Safety
/// `to` is null or valid for a write.
unsafe fn write<V>(to: *mut V, value: V) -> Done {
    if to.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: not null, hence valid.
    unsafe { to.write(value) };
    Ok(())
}

/// `CUlaunchConfig` of cuda.h.
#[repr(C)]
struct CUlaunchConfig {
    grid: [c_uint; 3],
    block: [c_uint; 3],
    shared_bytes: c_uint,
    stream: usize,
    attributes: *const CUlaunchAttribute,
    attribute_count: c_uint,
}

/// `CUlaunchAttribute` of cuda.h: an enum, bytes up to 8, and a union of 64 bytes.
#[repr(C)]
struct CUlaunchAttribute {
    id: c_int,
    padding: [u8; 4],
    value: [u32; 16],
}

/// `CUmemPoolProps` of cuda.h: 88 bytes.
#[repr(C, align(8))]
struct CUmemPoolProps {
    allocation_type: c_int,
    handle_types: c_int,
    location_type: c_int,
    location_id: c_int,
    rest: [u8; 72],
}

/// The function of a launch, if its handle, stream and sizes are right.
fn launched(function: usize, stream: usize, config: &LaunchConfig, extra: *mut *mut c_void) -> Result<Function, c_int> {
    let state = lock();
    let device = state.stream(stream)?;
    let function = *state.functions.get(&function).ok_or(INVALID_HANDLE)?;
    if function.device != device {
        return Err(INVALID_HANDLE);
    }
    if !extra.is_null() || config.shared_bytes > function.shared_bytes as c_uint {
        return Err(INVALID_VALUE);
    }
    Ok(function)
}

/// Defines the functions, and the table that finds them by name. If a fault is set, a function after `fn` fails before
/// it does anything; a function after `give_back` does its work and then returns the error.
macro_rules! functions {
    (@fails fn $done:expr, $fault:expr) => { match $fault { Some(fault) => fault, None => code($done) } };
    (@fails give_back $done:expr, $fault:expr) => {{ let fault = $fault; let done = code($done); fault.unwrap_or(done) }};
    ($($kind:ident $name:ident($($argument:ident: $type:ty),*) $body:block)*) => {
        $(
            #[allow(non_snake_case, reason = "the driver's name")]
            #[allow(clippy::too_many_arguments, reason = "the driver's signature")]
            unsafe extern "C" fn $name($($argument: $type),*) -> c_int {
                let call = || -> Done { $body };
                functions!(@fails $kind call(), faults::count(stringify!($name)))
            }
        )*

        /// The address of the function with that name; none if there is no such function.
        pub fn look_up(name: &CStr) -> Option<*const c_void> {
            match name.to_str().ok()? {
                $(stringify!($name) => Some($name as *const c_void),)*
                _ => None,
            }
        }
    };
}

functions! {
    fn cuInit(flags: c_uint) {
        let mut state = lock();
        match (flags, state.devices.is_empty()) {
            (0, false) => state.initialised = true,
            (0, true) => return Err(NO_DEVICE),
            _ => return Err(INVALID_VALUE),
        }
        Ok(())
    }

    fn cuDriverGetVersion(version: *mut c_int) {
        let driver = lock().devices.first().map_or(0, |owner| owner.device.driver);
        // SAFETY: the caller promises the function's contract.
        unsafe { write(version, driver) }
    }

    fn cuDeviceGetCount(count: *mut c_int) {
        let state = lock();
        if !state.initialised {
            return Err(NOT_INITIALIZED);
        }
        // SAFETY: the caller promises the function's contract.
        unsafe { write(count, state.devices.len() as c_int) }
    }

    fn cuDeviceGet(device: *mut c_int, ordinal: c_int) {
        lock().device(ordinal)?;
        // SAFETY: the caller promises the function's contract.
        unsafe { write(device, ordinal) }
    }

    fn cuDeviceGetName(name: *mut c_char, len: c_int, device: c_int) {
        let state = lock();
        let index = state.device(device)?;
        if name.is_null() || len < 1 {
            return Err(INVALID_VALUE);
        }
        let text = state.devices[index].device.name.as_bytes();
        let count = text.len().min(len as usize - 1);
        // SAFETY: the caller gives room for `len` bytes.
        unsafe {
            name.cast::<u8>().copy_from_nonoverlapping(text.as_ptr(), count);
            name.add(count).write(0);
        }
        Ok(())
    }

    fn cuDeviceGetAttribute(value: *mut c_int, attribute: c_int, device: c_int) {
        let state = lock();
        let device = &state.devices[state.device(device)?].device;
        let number = match attribute {
            16 => device.multiprocessors,
            75 => device.capability.0,
            76 => device.capability.1,
            97 => device.shared_bytes,
            // CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED
            115 => c_int::from(device.memory_pools),
            _ => return Err(INVALID_VALUE),
        };
        // SAFETY: the caller promises the function's contract.
        unsafe { write(value, number) }
    }

    fn cuDeviceTotalMem_v2(bytes: *mut usize, device: c_int) {
        let state = lock();
        let memory = state.devices[state.device(device)?].device.memory;
        // SAFETY: the caller promises the function's contract.
        unsafe { write(bytes, memory as usize) }
    }

    fn cuDeviceCanAccessPeer(possible: *mut c_int, device: c_int, peer: c_int) {
        let state = lock();
        let (device, peer) = (state.device(device)?, state.device(peer)?);
        // SAFETY: the caller promises the function's contract.
        unsafe { write(possible, c_int::from(device != peer)) }
    }

    fn cuDevicePrimaryCtxRetain(context: *mut usize, device: c_int) {
        let mut state = lock();
        let index = state.device(device)?;
        state.devices[index].retained += 1;
        // SAFETY: the caller promises the function's contract.
        unsafe { write(context, State::context_of(index)) }
    }

    give_back cuDevicePrimaryCtxRelease_v2(device: c_int) {
        let mut state = lock();
        let index = state.device(device)?;
        state.devices[index].retained = state.devices[index].retained.checked_sub(1).ok_or(INVALID_CONTEXT)?;
        Ok(())
    }

    fn cuCtxGetCurrent(context: *mut usize) {
        if !lock().initialised {
            return Err(NOT_INITIALIZED);
        }
        // SAFETY: the caller promises the function's contract.
        unsafe { write(context, crate::state::current()) }
    }

    fn cuCtxSetCurrent(context: usize) {
        lock().set_current(context)
    }

    fn cuCtxSynchronize() {
        let mut state = lock();
        state.may_wait()?;
        let device = state.current()?;
        state.waited(device);
        Ok(())
    }

    fn cuCtxEnablePeerAccess(peer: usize, flags: c_uint) {
        let state = lock();
        let (current, peer) = (state.current()?, state.device_of(peer)?);
        if flags != 0 || current == peer { Err(INVALID_VALUE) } else { Ok(()) }
    }

    fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) {
        let state = lock();
        let index = state.current()?;
        let memory = state.devices[index].device.memory;
        let left = state.free_bytes(index);
        // SAFETY: the caller promises the function's contract.
        unsafe {
            write(free, left as usize)?;
            write(total, memory as usize)
        }
    }

    fn cuMemAlloc_v2(address: *mut u64, bytes: usize) {
        let mut state = lock();
        state.may_wait()?;
        let device = state.current()?;
        let start = state.allocate(device, None, bytes)?;
        // SAFETY: the caller promises the function's contract.
        unsafe { write(address, start) }
    }

    give_back cuMemFree_v2(address: u64) {
        let mut state = lock();
        may_give_back(&state)?;
        let allocation = state.free(address)?;
        drop(state);
        drop(allocation);
        Ok(())
    }

    fn cuMemAllocAsync(address: *mut u64, bytes: usize, stream: usize) {
        let mut state = lock();
        let device = state.stream(stream)?;
        if !state.devices[device].device.memory_pools {
            return Err(NOT_SUPPORTED);
        }
        let start = state.allocate(device, None, bytes)?;
        // SAFETY: the caller promises the function's contract.
        unsafe { write(address, start) }
    }

    fn cuMemAllocFromPoolAsync(address: *mut u64, bytes: usize, pool: usize, stream: usize) {
        let mut state = lock();
        let device = state.stream(stream)?;
        if state.pools.get(&pool).is_none_or(|pool| pool.device != device) {
            return Err(INVALID_VALUE);
        }
        let start = state.allocate(device, Some(pool), bytes)?;
        // SAFETY: the caller promises the function's contract.
        unsafe { write(address, start) }
    }

    give_back cuMemFreeAsync(address: u64, stream: usize) {
        let mut state = lock();
        if !faults::fired() {
            state.stream(stream)?;
        }
        let allocation = state.free(address)?;
        drop(state);
        drop(allocation);
        Ok(())
    }

    fn cuMemPoolCreate(pool: *mut usize, properties: *const CUmemPoolProps) {
        // SAFETY: the caller passes null or properties.
        let given = unsafe { properties.as_ref() }.ok_or(INVALID_VALUE)?;
        let mut state = lock();
        let device = state.device(given.location_id)?;
        if !state.devices[device].device.memory_pools {
            return Err(NOT_SUPPORTED);
        }
        // CU_MEM_ALLOCATION_TYPE_PINNED, no handles to share, CU_MEM_LOCATION_TYPE_DEVICE.
        if (given.allocation_type, given.handle_types, given.location_type) != (1, 0, 1) || given.rest != [0; 72] {
            return Err(INVALID_VALUE);
        }
        let handle = state.handle();
        state.pools.insert(handle, Pool { device, used: 0, reserved: 0, threshold: 0 });
        // SAFETY: the caller promises the function's contract.
        unsafe { write(pool, handle) }
    }

    fn cuMemPoolSetAttribute(pool: usize, attribute: c_int, value: *mut c_void) {
        let mut state = lock();
        let pool = state.pools.get_mut(&pool).ok_or(INVALID_VALUE)?;
        // CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
        if attribute != 4 || value.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: the caller promises a number of 64 bits for this attribute.
        pool.threshold = unsafe { value.cast::<u64>().read() };
        Ok(())
    }

    fn cuMemPoolGetAttribute(pool: usize, attribute: c_int, value: *mut c_void) {
        let state = lock();
        let pool = state.pools.get(&pool).ok_or(INVALID_VALUE)?;
        let number = match attribute {
            // CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, .._RESERVED_MEM_CURRENT and .._USED_MEM_CURRENT
            4 => pool.threshold,
            5 => pool.reserved,
            7 => pool.used,
            _ => return Err(INVALID_VALUE),
        };
        // SAFETY: the caller promises room for a number of 64 bits.
        unsafe { write(value.cast(), number) }
    }

    fn cuMemPoolSetAccess(pool: usize, access: *const [c_int; 3], count: usize) {
        let state = lock();
        // SAFETY: the caller passes null or a description.
        let &[location, device, flags] = unsafe { access.as_ref() }.ok_or(INVALID_VALUE)?;
        state.device(device)?;
        // CU_MEM_LOCATION_TYPE_DEVICE, CU_MEM_ACCESS_FLAGS_PROT_READWRITE.
        if (count, location, flags) != (1, 1, 3) {
            return Err(INVALID_VALUE);
        }
        state.pools.get(&pool).map(|_| ()).ok_or(INVALID_VALUE)
    }

    fn cuMemPoolTrimTo(pool: usize, kept: usize) {
        lock().pools.get_mut(&pool).map(|pool| pool.trim(kept as u64)).ok_or(INVALID_VALUE)
    }

    give_back cuMemPoolDestroy(pool: usize) {
        lock().pools.remove(&pool).map(|_| ()).ok_or(INVALID_VALUE)
    }

    fn cuMemHostAlloc(start: *mut *mut c_void, bytes: usize, flags: c_uint) {
        let _ = flags;
        let mut state = lock();
        state.may_wait()?;
        let device = state.current()?;
        let mut memory = vec![0u64; bytes.div_ceil(8)].into_boxed_slice();
        let address = memory.as_mut_ptr();
        state.host.insert(address.addr(), HostMemory { device, memory });
        // SAFETY: the caller promises the function's contract.
        unsafe { write(start, address.cast()) }
    }

    give_back cuMemFreeHost(start: *mut c_void) {
        let mut state = lock();
        may_give_back(&state)?;
        state.host.remove(&start.addr()).map(|_| ()).ok_or(INVALID_VALUE)
    }

    fn cuMemcpyHtoDAsync_v2(to: u64, from: *const c_void, bytes: usize, stream: usize) {
        let device = waiting(stream)?;
        let to = on_device("the target of cuMemcpyHtoDAsync", Some(device), to, bytes)?;
        // SAFETY: the caller passes `bytes` bytes; the allocation has `bytes` bytes from `to` on.
        unsafe { to.copy_from(from.cast(), bytes) };
        Ok(())
    }

    fn cuMemcpyDtoHAsync_v2(to: *mut c_void, from: u64, bytes: usize, stream: usize) {
        let device = waiting(stream)?;
        let from = on_device("the source of cuMemcpyDtoHAsync", Some(device), from, bytes)?;
        // SAFETY: the caller passes room for `bytes` bytes; the allocation has `bytes` bytes from `from` on.
        unsafe { to.cast::<u8>().copy_from(from, bytes) };
        Ok(())
    }

    fn cuMemcpyHtoD_v2(to: u64, from: *const c_void, bytes: usize) {
        waiting(0)?;
        let to = on_device("the target of cuMemcpyHtoD", None, to, bytes)?;
        // SAFETY: as above.
        unsafe { to.copy_from(from.cast(), bytes) };
        Ok(())
    }

    fn cuMemcpyDtoH_v2(to: *mut c_void, from: u64, bytes: usize) {
        waiting(0)?;
        let from = on_device("the source of cuMemcpyDtoH", None, from, bytes)?;
        // SAFETY: as above.
        unsafe { to.cast::<u8>().copy_from(from, bytes) };
        Ok(())
    }

    fn cuMemcpyDtoDAsync_v2(to: u64, from: u64, bytes: usize, stream: usize) {
        let device = lock().stream(stream)?;
        submit(stream, move || {
            let to = on_device("the target of cuMemcpyDtoDAsync", Some(device), to, bytes)?;
            let from = on_device("the source of cuMemcpyDtoDAsync", Some(device), from, bytes)?;
            if to.addr().abs_diff(from.addr()) < bytes {
                violation(format!("cuMemcpyDtoDAsync of {bytes} bytes between ranges that overlap"));
                return Err(ILLEGAL_ADDRESS);
            }
            // SAFETY: both allocations have the bytes.
            unsafe { to.copy_from(from, bytes) };
            Ok(())
        })
    }

    fn cuMemcpyPeerAsync(to: u64, to_context: usize, from: u64, from_context: usize, bytes: usize, stream: usize) {
        let (here, there) = {
            let state = lock();
            state.stream(stream)?;
            (state.device_of(to_context)?, state.device_of(from_context)?)
        };
        let to = on_device("the target of cuMemcpyPeerAsync", Some(here), to, bytes)?;
        let from = on_device("the source of cuMemcpyPeerAsync", Some(there), from, bytes)?;
        // SAFETY: both allocations have the bytes.
        unsafe { to.copy_from(from, bytes) };
        Ok(())
    }

    fn cuMemsetD8Async(to: u64, byte: u8, bytes: usize, stream: usize) {
        let device = lock().stream(stream)?;
        submit(stream, move || {
            let to = on_device("the target of cuMemsetD8Async", Some(device), to, bytes)?;
            // SAFETY: the allocation has the bytes.
            unsafe { to.write_bytes(byte, bytes) };
            Ok(())
        })
    }

    fn cuPointerGetAttributes(count: c_uint, attributes: *mut c_int, data: *mut *mut c_void, address: u64) {
        let state = lock();
        state.current()?;
        let owner = state.owner(address, 1);
        for at in 0..count as usize {
            // SAFETY: the caller passes `count` attributes, and as many addresses for 32 bits each.
            unsafe {
                let value = match (attributes.add(at).read(), owner) {
                    // CU_POINTER_ATTRIBUTE_MEMORY_TYPE: CU_MEMORYTYPE_DEVICE, or 0 for an unknown address.
                    (2, owner) => c_int::from(owner.is_some()) * 2,
                    // CU_POINTER_ATTRIBUTE_IS_MANAGED
                    (8, _) => 0,
                    // CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
                    (9, owner) => owner.map_or(-2, |owner| owner as c_int),
                    _ => return Err(INVALID_VALUE),
                };
                write(data.add(at).read().cast::<c_int>(), value)?;
            }
        }
        Ok(())
    }

    fn cuModuleLoadDataEx(module: *mut usize, image: *const c_char, options: c_uint, names: *mut c_int, values: *mut *mut c_void) {
        let _ = (options, names, values);
        let mut state = lock();
        state.may_wait()?;
        let device = state.current()?;
        if image.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: the caller promises an image.
        let Image { entries, waits, static_shared } = unsafe { Image::read(image, state.devices[device].device.capability)? };
        let handle = state.handle();
        state.modules.insert(handle, Module { device, entries, waits, static_shared });
        // SAFETY: the caller promises the function's contract.
        unsafe { write(module, handle) }
    }

    give_back cuModuleUnload(module: usize) {
        let mut state = lock();
        may_give_back(&state)?;
        state.modules.remove(&module).ok_or(INVALID_HANDLE)?;
        state.functions.retain(|_, function| function.module != module);
        Ok(())
    }

    fn cuModuleGetFunction(function: *mut usize, module: usize, name: *const c_char) {
        let mut state = lock();
        let current = state.current()?;
        let loaded = state.modules.get(&module).filter(|loaded| loaded.device == current).ok_or(INVALID_HANDLE)?;
        // SAFETY: names end with NUL.
        let name = unsafe { CStr::from_ptr(name) }.to_str().map_err(|_| NOT_FOUND)?;
        if !loaded.entries.iter().any(|entry| entry == name) {
            return Err(NOT_FOUND);
        }
        let kernel = *kernels().iter().find(|kernel| kernel.name() == name).ok_or(NOT_FOUND)?;
        let (static_shared, waits) = (loaded.static_shared, loaded.waits);
        let handle = state.handle();
        let shared_bytes = UNASKED_SHARED - static_shared;
        let (device, large_clusters) = (current, false);
        state
            .functions
            .insert(handle, Function { device, module, kernel, waits, shared_bytes, static_shared, large_clusters });
        // SAFETY: the caller promises the function's contract.
        unsafe { write(function, handle) }
    }

    fn cuFuncSetAttribute(function: usize, attribute: c_int, value: c_int) {
        let mut state = lock();
        let Function { device, static_shared, .. } = *state.functions.get(&function).ok_or(INVALID_HANDLE)?;
        // CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
        if attribute == 14 && state.devices[device].device.capability >= (9, 0) {
            state.functions.get_mut(&function).ok_or(INVALID_HANDLE)?.large_clusters = value != 0;
            return Ok(());
        }
        let limit = state.devices[device].device.shared_bytes - static_shared;
        // CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        if attribute != 8 || value < 0 || value > limit {
            return Err(INVALID_VALUE);
        }
        state.functions.get_mut(&function).ok_or(INVALID_HANDLE)?.shared_bytes = value;
        Ok(())
    }

    fn cuLaunchKernel(
        function: usize,
        grid_x: c_uint,
        grid_y: c_uint,
        grid_z: c_uint,
        block_x: c_uint,
        block_y: c_uint,
        block_z: c_uint,
        shared_bytes: c_uint,
        stream: usize,
        arguments: *mut *mut c_void,
        extra: *mut *mut c_void
    ) {
        let grid = [grid_x, grid_y, grid_z].map(u64::from);
        let config = LaunchConfig { grid, block: [block_x, block_y, block_z], shared_bytes, cluster: 1 };
        let function = launched(function, stream, &config, extra)?;
        // SAFETY: the caller promises the kernel's contract, and passes the addresses of its arguments.
        let launch = Arc::new(unsafe { function.kernel.bind(config, arguments) });
        submit(stream, move || run(launch.clone()))
    }

    fn cuLaunchKernelEx(config: *const CUlaunchConfig, function: usize, arguments: *mut *mut c_void, extra: *mut *mut c_void) {
        // SAFETY: the caller passes null, or a config with the number of attributes that the config states.
        let given = unsafe { config.as_ref() }.ok_or(INVALID_VALUE)?;
        let (grid, block, shared_bytes) = (given.grid.map(u64::from), given.block, given.shared_bytes);
        let mut config = LaunchConfig { grid, block, shared_bytes, cluster: 1 };
        let function = launched(function, given.stream, &config, extra)?;
        for at in 0..given.attribute_count as usize {
            // SAFETY: as above.
            let attribute = unsafe { &*given.attributes.add(at) };
            // CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION: the blocks of a cluster in x, y and z.
            if attribute.id == 4 {
                let [x, y, z, ..] = attribute.value;
                config.cluster = x;
                let portable = x <= PORTABLE_CLUSTER_BLOCKS || function.large_clusters;
                let has_clusters = lock().devices[function.device].device.capability >= (9, 0);
                if !has_clusters || (y, z) != (1, 1) || !portable || !config.clusters_fit() {
                    return Err(INVALID_CLUSTER_SIZE);
                }
                continue;
            }
            // CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION: the kernel may start before the work ahead of it
            // has ended.
            if attribute.id != 6 {
                return Err(INVALID_VALUE);
            }
            if attribute.value[0] != 0 && !function.waits {
                violation(format!("a dependent launch of {}, which does not wait", function.kernel.name()));
                return Err(LAUNCH_FAILED);
            }
        }
        // SAFETY: the caller promises the kernel's contract, and passes the addresses of its arguments.
        let launch = Arc::new(unsafe { function.kernel.bind(config, arguments) });
        submit(given.stream, move || run(launch.clone()))
    }

    fn cuStreamCreate(stream: *mut usize, flags: c_uint) {
        let _ = flags;
        let mut state = lock();
        let device = state.current()?;
        let handle = state.handle();
        state.streams.insert(handle, device);
        // SAFETY: the caller promises the function's contract.
        unsafe { write(stream, handle) }
    }

    fn cuStreamCreateWithPriority(stream: *mut usize, flags: c_uint, priority: c_int) {
        let _ = (flags, priority);
        let mut state = lock();
        let device = state.current()?;
        let handle = state.handle();
        state.streams.insert(handle, device);
        // SAFETY: the caller promises the function's contract.
        unsafe { write(stream, handle) }
    }

    give_back cuStreamDestroy_v2(stream: usize) {
        let mut state = lock();
        may_give_back(&state)?;
        state.busy.remove(&stream);
        state.streams.remove(&stream).map(|_| ()).ok_or(INVALID_HANDLE)
    }

    fn cuStreamSynchronize(stream: usize) {
        waiting(stream).map(|_| ())
    }

    // Work ends before its call returns, but the first query after it says that it is under way.
    fn cuStreamQuery(stream: usize) {
        let mut state = lock();
        state.stream(stream)?;
        if state.busy.remove(&stream) { Err(NOT_READY) } else { Ok(()) }
    }

    fn cuStreamBeginCapture_v2(stream: usize, mode: c_int) {
        let _ = mode;
        let mut state = lock();
        state.stream(stream)?;
        // The default stream cannot be captured.
        if stream == 0 || state.captures.contains_key(&stream) {
            return Err(INVALID_VALUE);
        }
        state.captures.insert(stream, Capture { thread: thread::current().id(), work: Vec::new(), valid: true });
        Ok(())
    }

    fn cuStreamEndCapture(stream: usize, graph: *mut usize) {
        let mut state = lock();
        let Capture { work, valid, .. } = state.captures.remove(&stream).ok_or(INVALID_VALUE)?;
        if !valid {
            return Err(STREAM_CAPTURE_INVALIDATED);
        }
        let handle = state.handle();
        state.graphs.insert(handle, work);
        // SAFETY: the caller promises the function's contract.
        unsafe { write(graph, handle) }
    }

    fn cuGraphInstantiate_v2(program: *mut usize, graph: usize, error_node: *mut usize, log: *mut c_char, log_bytes: usize) {
        let _ = (error_node, log, log_bytes);
        // SAFETY: the caller promises the function's contract.
        unsafe { write(program, instantiated(graph)?) }
    }

    fn cuGraphInstantiateWithFlags(program: *mut usize, graph: usize, flags: u64) {
        let _ = flags;
        // SAFETY: the caller promises the function's contract.
        unsafe { write(program, instantiated(graph)?) }
    }

    fn cuGraphLaunch(program: usize, stream: usize) {
        let work = {
            let state = lock();
            state.stream(stream)?;
            state.graphs.get(&program).ok_or(INVALID_HANDLE)?.clone()
        };
        work.iter().try_for_each(|work| work())
    }

    give_back cuGraphExecDestroy(program: usize) {
        lock().graphs.remove(&program).map(|_| ()).ok_or(INVALID_HANDLE)
    }

    give_back cuGraphDestroy(graph: usize) {
        lock().graphs.remove(&graph).map(|_| ()).ok_or(INVALID_HANDLE)
    }

    fn cuStreamWaitEvent(stream: usize, event: usize, flags: c_uint) {
        let _ = flags;
        let state = lock();
        state.stream(stream)?;
        // Waiting for an event that was never recorded returns at once. The event may belong to another device.
        state.events.get(&event).map(|_| ()).ok_or(INVALID_HANDLE)
    }

    fn cuEventCreate(event: *mut usize, flags: c_uint) {
        let mut state = lock();
        let device = state.current()?;
        let handle = state.handle();
        // CU_EVENT_DISABLE_TIMING
        state.events.insert(handle, Event { device, timed: flags & 2 == 0, recorded: None });
        // SAFETY: the caller promises the function's contract.
        unsafe { write(event, handle) }
    }

    give_back cuEventDestroy_v2(event: usize) {
        let mut state = lock();
        may_give_back(&state)?;
        state.events.remove(&event).map(|_| ()).ok_or(INVALID_HANDLE)
    }

    fn cuEventRecord(event: usize, stream: usize) {
        let mut state = lock();
        let device = state.stream(stream)?;
        let event = state.events.get_mut(&event).filter(|event| event.device == device).ok_or(INVALID_HANDLE)?;
        event.recorded = Some(Instant::now());
        Ok(())
    }

    fn cuEventSynchronize(event: usize) {
        let mut state = lock();
        let device = state.events.get(&event).ok_or(INVALID_HANDLE)?.device;
        state.waited(device);
        Ok(())
    }

    fn cuEventElapsedTime(milliseconds: *mut f32, start: usize, end: usize) {
        let state = lock();
        let when = |event: usize| {
            let event = state.events.get(&event).filter(|event| event.timed).ok_or(INVALID_HANDLE)?;
            event.recorded.ok_or(INVALID_HANDLE)
        };
        let elapsed = when(end)?.saturating_duration_since(when(start)?);
        // SAFETY: the caller promises the function's contract.
        unsafe { write(milliseconds, elapsed.as_secs_f32() * 1e3) }
    }
}

/// A function that releases something needs a context, unless a fault may have destroyed the context.
fn may_give_back(state: &State) -> Done {
    if faults::fired() { Ok(()) } else { state.current().map(|_| ()) }
}

/// The memory at a device address. Checks that all `bytes` bytes lie in one allocation, which belongs to `device` if it
/// is given.
fn on_device(what: &str, device: Option<usize>, address: u64, bytes: usize) -> Result<*mut u8, c_int> {
    let owner = lock().owner(address, bytes);
    if owner.is_none() || device.is_some_and(|device| owner != Some(device)) {
        violation(format!("{what}, {bytes} bytes at {address:#x}, is not in an allocation of the device {device:?}"));
        return Err(ILLEGAL_ADDRESS);
    }
    Ok(std::ptr::with_exposed_provenance_mut(address as usize))
}

/// Bytes of shared memory that a launch may have without `cuFuncSetAttribute`, static arrays included.
const UNASKED_SHARED: i32 = 48 << 10;

/// A program that does the work of a graph.
fn instantiated(graph: usize) -> Result<usize, c_int> {
    let mut state = lock();
    let work = state.graphs.get(&graph).ok_or(INVALID_HANDLE)?.clone();
    let handle = state.handle();
    state.graphs.insert(handle, work);
    Ok(handle)
}

/// Does work of a stream now, or when the graph runs into which the stream is captured.
fn submit(stream: usize, work: impl Fn() -> Done + Send + Sync + 'static) -> Done {
    {
        let mut state = lock();
        if let Some(capture) = state.captures.get_mut(&stream) {
            let work: Work = Arc::new(work);
            capture.work.push(work);
            return Ok(());
        }
        state.busy.insert(stream);
    }
    work()
}

/// The device of a stream, for a call that waits or that copies to or from the host. A thread that captures may not
/// make it.
fn waiting(stream: usize) -> Result<usize, c_int> {
    let mut state = lock();
    state.may_wait()?;
    state.busy.remove(&stream);
    let device = state.stream(stream)?;
    state.waited(device);
    Ok(device)
}

/// Runs a kernel on separate threads while the caller's thread sleeps. The caller's thread may belong to a rayon pool
/// and hold locks; if it ran the kernel itself, it could start other work of the pool at the same time.
fn run(launch: Arc<BoundLaunch>) -> Done {
    static POOL: OnceLock<Option<rayon::ThreadPool>> = OnceLock::new();
    let pool = POOL.get_or_init(|| rayon::ThreadPoolBuilder::new().thread_name(|i| format!("cuda-{i}")).build().ok());
    let Some(pool) = pool else { return Err(LAUNCH_FAILED) };
    let (result, results) = mpsc::channel();
    pool.spawn(move || {
        // The receiver waits below.
        let _ = result.send(launch().map(|_| ()));
    });
    match results.recv() {
        Ok(Ok(())) => Ok(()),
        Ok(Err(violation)) => Err(crate::stopped(&violation)),
        Err(_) => Err(LAUNCH_FAILED),
    }
}
