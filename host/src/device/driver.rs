//! Declarations of the CUDA driver's functions that this library calls.
//!
//! The functions return the driver's code as an integer. Those of cust_raw return a Rust enum, where a code without a
//! variant is undefined behaviour, and drivers newer than cust_raw have such codes. So the library calls the driver
//! through this file only, and an error carries the number that the driver returned. `cuda_loader` defines the symbols.

use std::ffi::{c_char, c_int, c_uint, c_void};

/// The result of every function (`CUresult`): 0, or the number of an error.
pub type Code = c_int;
/// Handle of a context.
pub type CUcontext = *mut c_void;
/// Handle of a stream; null is the default stream.
pub type CUstream = *mut c_void;
/// Handle of an event.
pub type CUevent = *mut c_void;
/// Handle of a loaded module.
pub type CUmodule = *mut c_void;
/// Handle of a kernel of a loaded module.
pub type CUfunction = *mut c_void;

/// Handle of a memory pool.
pub type CUmemoryPool = *mut c_void;

/// `CUDA_ERROR_INVALID_VALUE`.
pub const INVALID_VALUE: Code = 1;
/// `CUDA_ERROR_OUT_OF_MEMORY`.
pub const OUT_OF_MEMORY: Code = 2;
/// `CUDA_ERROR_NO_DEVICE`.
pub const NO_DEVICE: Code = 100;
/// `CUDA_ERROR_INVALID_PTX`.
pub const INVALID_PTX: Code = 218;
/// `CUDA_ERROR_NOT_FOUND`.
pub const NOT_FOUND: Code = 500;
/// `CUDA_ERROR_NOT_READY`: a stream has work.
pub const NOT_READY: Code = 600;
/// `CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED`.
pub const PEER_ACCESS_ALREADY_ENABLED: Code = 704;

/// `CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT`.
pub const MULTIPROCESSOR_COUNT: c_int = 16;
/// `CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR`.
pub const COMPUTE_CAPABILITY_MAJOR: c_int = 75;
/// `CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR`.
pub const COMPUTE_CAPABILITY_MINOR: c_int = 76;
/// `CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN`.
pub const MAX_SHARED_MEMORY_PER_BLOCK_OPTIN: c_int = 97;
/// `CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED`.
pub const MEMORY_POOLS_SUPPORTED: c_int = 115;
/// `CU_MEMPOOL_ATTR_RELEASE_THRESHOLD`, a `u64`: a pool that has more bytes, used and unused together, gives unused
/// ones back at the next wait for the device.
pub const POOL_RELEASE_THRESHOLD: c_int = 4;
/// `CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT`, a `u64`: the bytes that a pool has, used and unused.
pub const POOL_RESERVED_BYTES: c_int = 5;
/// `CU_MEMPOOL_ATTR_USED_MEM_CURRENT`, a `u64`: the bytes of the pool's allocations.
pub const POOL_USED_BYTES: c_int = 7;
/// `CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES`.
pub const MAX_DYNAMIC_SHARED_SIZE_BYTES: c_int = 8;
/// `CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED`: clusters of more than eight blocks.
pub const LARGE_CLUSTERS_ALLOWED: c_int = 14;
/// `CU_POINTER_ATTRIBUTE_MEMORY_TYPE`.
pub const POINTER_MEMORY_TYPE: c_int = 2;
/// `CU_POINTER_ATTRIBUTE_IS_MANAGED`.
pub const POINTER_IS_MANAGED: c_int = 8;
/// `CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL`.
pub const POINTER_DEVICE_ORDINAL: c_int = 9;
/// `CU_MEMORYTYPE_HOST`: page-locked memory of the host.
pub const MEMORY_HOST: u32 = 1;
/// `CU_MEMORYTYPE_DEVICE`: memory of a device, or managed memory.
pub const MEMORY_DEVICE: u32 = 2;
/// `CU_JIT_ERROR_LOG_BUFFER`.
pub const JIT_ERROR_LOG_BUFFER: c_int = 5;
/// `CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES`.
pub const JIT_ERROR_LOG_BUFFER_SIZE_BYTES: c_int = 6;
/// `CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION`: the kernel may start before the kernel ahead of it has
/// ended.
pub const PROGRAMMATIC_STREAM_SERIALIZATION: c_int = 6;
/// `CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION`: the blocks of a cluster in x, y and z.
pub const CLUSTER_DIMENSION: c_int = 4;
/// `CU_EVENT_DEFAULT`: the event records its time.
#[cfg(feature = "internals")]
pub const EVENT_DEFAULT: c_uint = 0;
/// The priority of a stream that was given none.
pub const USUAL_PRIORITY: c_int = 0;
/// A priority that no device exceeds: the driver takes the nearest that the device has.
pub const HIGHEST_PRIORITY: c_int = -5;
/// `CU_EVENT_DISABLE_TIMING`.
pub const EVENT_DISABLE_TIMING: c_uint = 2;

/// `cuLaunchKernelEx`, which drivers before CUDA 11.8 lack.
pub type LaunchKernelEx = unsafe extern "C" fn(
    config: *const LaunchConfig,
    function: CUfunction,
    arguments: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> Code;

/// `CUlaunchConfig`.
#[repr(C)]
pub struct LaunchConfig {
    pub grid: [c_uint; 3],
    pub block: [c_uint; 3],
    pub shared_bytes: c_uint,
    pub stream: CUstream,
    pub attributes: *const LaunchAttribute,
    pub attribute_count: c_uint,
}

/// `CUlaunchAttribute`: a number, and a union of 64 bytes that starts at byte 8.
#[repr(C, align(8))]
pub struct LaunchAttribute {
    id: c_int,
    padding: c_int,
    value: [c_int; 16],
}

impl LaunchAttribute {
    /// An attribute whose value is an int.
    pub fn new(id: c_int, value: c_int) -> LaunchAttribute {
        let mut values = [0; 16];
        values[0] = value;
        LaunchAttribute { id, padding: 0, value: values }
    }

    /// Clusters of `blocks` blocks in x.
    pub fn cluster(blocks: c_int) -> LaunchAttribute {
        let mut attribute = LaunchAttribute::new(CLUSTER_DIMENSION, blocks);
        (attribute.value[1], attribute.value[2]) = (1, 1);
        attribute
    }
}

/// `CUmemPoolProps` of a pool of device memory that no other process shares: 88 bytes.
#[repr(C, align(8))]
pub struct MemoryPoolProperties {
    allocation_type: c_int,
    handle_types: c_int,
    location_type: c_int,
    location_id: c_int,
    rest: [u8; 72],
}

impl MemoryPoolProperties {
    /// A pool of the memory of a device.
    pub fn of_device(ordinal: c_int) -> MemoryPoolProperties {
        // CU_MEM_ALLOCATION_TYPE_PINNED, CU_MEM_HANDLE_TYPE_NONE and CU_MEM_LOCATION_TYPE_DEVICE.
        let (allocation_type, handle_types, location_type) = (1, 0, 1);
        MemoryPoolProperties { allocation_type, handle_types, location_type, location_id: ordinal, rest: [0; 72] }
    }
}

/// `CUmemAccessDesc`: the device that may use the memory of a pool.
#[repr(C)]
pub struct MemoryAccess {
    location_type: c_int,
    location_id: c_int,
    flags: c_int,
}

impl MemoryAccess {
    /// A device may read and write.
    pub fn of_device(ordinal: c_int) -> MemoryAccess {
        // CU_MEM_LOCATION_TYPE_DEVICE and CU_MEM_ACCESS_FLAGS_PROT_READWRITE.
        MemoryAccess { location_type: 1, location_id: ordinal, flags: 3 }
    }
}

// SAFETY: names and parameters are those of NVIDIA's cuda.h, where CUresult, CUdevice and the enums are ints.
unsafe extern "C" {
    pub fn cuInit(flags: c_uint) -> Code;
    pub fn cuDriverGetVersion(version: *mut c_int) -> Code;
    pub fn cuDeviceGetCount(count: *mut c_int) -> Code;
    pub fn cuDeviceGet(device: *mut c_int, ordinal: c_int) -> Code;
    pub fn cuDeviceGetName(name: *mut c_char, len: c_int, device: c_int) -> Code;
    pub fn cuDeviceGetAttribute(value: *mut c_int, attribute: c_int, device: c_int) -> Code;
    pub fn cuDeviceTotalMem_v2(bytes: *mut usize, device: c_int) -> Code;
    pub fn cuDeviceCanAccessPeer(possible: *mut c_int, device: c_int, peer: c_int) -> Code;
    pub fn cuDevicePrimaryCtxRetain(context: *mut CUcontext, device: c_int) -> Code;
    pub fn cuDevicePrimaryCtxRelease_v2(device: c_int) -> Code;
    pub fn cuCtxGetCurrent(context: *mut CUcontext) -> Code;
    pub fn cuCtxSetCurrent(context: CUcontext) -> Code;
    pub fn cuCtxEnablePeerAccess(peer: CUcontext, flags: c_uint) -> Code;
    pub fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) -> Code;
    pub fn cuMemAlloc_v2(address: *mut u64, bytes: usize) -> Code;
    pub fn cuMemFree_v2(address: u64) -> Code;
    pub fn cuMemAllocFromPoolAsync(address: *mut u64, bytes: usize, pool: CUmemoryPool, stream: CUstream) -> Code;
    pub fn cuMemFreeAsync(address: u64, stream: CUstream) -> Code;
    pub fn cuMemPoolCreate(pool: *mut CUmemoryPool, properties: *const MemoryPoolProperties) -> Code;
    pub fn cuMemPoolSetAttribute(pool: CUmemoryPool, attribute: c_int, value: *mut c_void) -> Code;
    pub fn cuMemPoolGetAttribute(pool: CUmemoryPool, attribute: c_int, value: *mut c_void) -> Code;
    pub fn cuMemPoolSetAccess(pool: CUmemoryPool, access: *const MemoryAccess, count: usize) -> Code;
    pub fn cuMemPoolTrimTo(pool: CUmemoryPool, kept: usize) -> Code;
    pub fn cuMemPoolDestroy(pool: CUmemoryPool) -> Code;
    pub fn cuMemHostAlloc(start: *mut *mut c_void, bytes: usize, flags: c_uint) -> Code;
    pub fn cuMemFreeHost(start: *mut c_void) -> Code;
    pub fn cuMemcpyHtoDAsync_v2(to: u64, from: *const c_void, bytes: usize, stream: CUstream) -> Code;
    pub fn cuMemcpyDtoHAsync_v2(to: *mut c_void, from: u64, bytes: usize, stream: CUstream) -> Code;
    pub fn cuMemcpyDtoDAsync_v2(to: u64, from: u64, bytes: usize, stream: CUstream) -> Code;
    pub fn cuMemcpyPeerAsync(
        to: u64,
        to_context: CUcontext,
        from: u64,
        from_context: CUcontext,
        bytes: usize,
        stream: CUstream,
    ) -> Code;
    pub fn cuMemsetD8Async(to: u64, byte: u8, bytes: usize, stream: CUstream) -> Code;
    pub fn cuPointerGetAttributes(count: c_uint, attributes: *mut c_int, data: *mut *mut c_void, address: u64) -> Code;
    pub fn cuModuleLoadDataEx(
        module: *mut CUmodule,
        image: *const c_void,
        options: c_uint,
        names: *mut c_int,
        values: *mut *mut c_void,
    ) -> Code;
    pub fn cuModuleUnload(module: CUmodule) -> Code;
    pub fn cuModuleGetFunction(function: *mut CUfunction, module: CUmodule, name: *const c_char) -> Code;
    pub fn cuFuncSetAttribute(function: CUfunction, attribute: c_int, value: c_int) -> Code;
    pub fn cuLaunchKernel(
        function: CUfunction,
        grid_x: c_uint,
        grid_y: c_uint,
        grid_z: c_uint,
        block_x: c_uint,
        block_y: c_uint,
        block_z: c_uint,
        shared_bytes: c_uint,
        stream: CUstream,
        arguments: *mut *mut c_void,
        extra: *mut *mut c_void,
    ) -> Code;
    pub fn cuStreamCreateWithPriority(stream: *mut CUstream, flags: c_uint, priority: c_int) -> Code;
    pub fn cuStreamDestroy_v2(stream: CUstream) -> Code;
    pub fn cuStreamQuery(stream: CUstream) -> Code;
    pub fn cuStreamSynchronize(stream: CUstream) -> Code;
    pub fn cuStreamWaitEvent(stream: CUstream, event: CUevent, flags: c_uint) -> Code;
    pub fn cuEventCreate(event: *mut CUevent, flags: c_uint) -> Code;
    pub fn cuEventDestroy_v2(event: CUevent) -> Code;
    pub fn cuEventRecord(event: CUevent, stream: CUstream) -> Code;
    pub fn cuEventSynchronize(event: CUevent) -> Code;
    #[cfg(feature = "internals")]
    pub fn cuEventElapsedTime(milliseconds: *mut f32, start: CUevent, end: CUevent) -> Code;
}
