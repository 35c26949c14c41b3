//! Tests of the emulated driver by its C functions: results, refusals, counts and faults. It is one test, because a
//! process has one driver.

use std::ffi::{CString, c_void};
use std::ptr::null_mut;

use cuda_driver_emulator::{self as driver, Failed, Fault, Lasts, Usage};
use cuda_std::launch::KernelArgs;
use cuda_std::{PtrMut, cluster, global, kernel, thread};
use cust_raw::CUresult::{
    CUDA_ERROR_ILLEGAL_ADDRESS, CUDA_ERROR_INVALID_CONTEXT, CUDA_ERROR_INVALID_HANDLE, CUDA_ERROR_INVALID_PTX,
    CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_LAUNCH_FAILED, CUDA_ERROR_NOT_FOUND, CUDA_ERROR_NOT_INITIALIZED,
    CUDA_ERROR_OUT_OF_MEMORY, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
    CUDA_SUCCESS,
};
use cust_raw::*;

/// Doubles `n` values; with `beyond` it writes one more.
///
/// # Safety
/// `x` has `n` values.
#[kernel]
pub unsafe fn double(
    /// `n` values.
    x: PtrMut<f32>,
    /// Number of values.
    n: u32,
    /// 1 to write one value beyond the last.
    beyond: u32,
) {
    let i = thread::thread_idx_x();
    if i < n + beyond {
        let x = x.wrapping_add(i as usize);
        // SAFETY: i < n; beyond, the emulator stops it.
        unsafe { global::store(x, 2.0 * if i < n { global::load(x.cast_const()) } else { 0.0 }) };
    }
}

/// Stores `bias` + `factor` · `value`, rounded towards zero, or its negative. Parameters of several sizes.
///
/// # Safety
/// `out` has one value.
#[kernel(
    key = bool,
    max_threads = 32,
    false => weigh = weigh::<1>,
    true => weigh_negative = weigh::<-1>,
)]
pub struct Weigh {
    /// The summand of the result.
    pub bias: i8,
    /// Multiplies `value`.
    pub factor: f64,
    /// The place to which the result is written.
    pub out: PtrMut<i64>,
    /// The number that `factor` multiplies.
    pub value: u16,
}

/// # Safety
/// As [`Weigh`].
unsafe fn weigh<const SIGN: i64>(Weigh { bias, factor, out, value }: Weigh) {
    if thread::thread_idx_x() == 0 {
        // SAFETY: one value.
        unsafe { global::store(*out, SIGN * (f64::from(bias) + factor * f64::from(value)) as i64) };
    }
}

/// Writes the number of blocks of its cluster for each block.
///
/// # Safety
/// `sizes` has a value for each block.
#[kernel]
pub unsafe fn cluster_sizes(
    /// A value for each block.
    sizes: PtrMut<u32>,
) {
    if thread::thread_idx_x() == 0 {
        // SAFETY: a value for each block.
        unsafe { global::store(sizes.wrapping_add(thread::block_idx_x() as usize), cluster::block_count()) };
    }
}

const PTX: &std::ffi::CStr = c".version 8.0\n.target sm_80\n.visible .entry double(\n\t.param .u64 x\n)\n\
    .visible .entry weigh(\n)\n.visible .entry weigh_negative(\n)\n.visible .entry stranger(\n)";

/// The usage of device 0 when it is idle: only the context is retained.
fn idle() -> Usage {
    Usage { retained: 1, ..Usage::default() }
}

#[test]
fn the_driver() {
    let device = driver::Device { memory: 4096, ..driver::Device::default() };
    driver::install(vec![device.clone(), driver::Device { capability: (9, 0), ..device }]).unwrap();
    assert!(driver::install(Vec::new()).is_err(), "a process has one driver");
    // SAFETY: arguments are valid for what each function reads and writes, or the function refuses them unread.
    unsafe {
        let (mut count, mut context) = (0, null_mut());
        assert_eq!(cuDeviceGetCount(&mut count), CUDA_ERROR_NOT_INITIALIZED);
        assert_eq!(cuInit(0), CUDA_SUCCESS);
        assert_eq!((cuDeviceGetCount(&mut count), count), (CUDA_SUCCESS, 2));
        let mut address = 0;
        assert_eq!(cuMemAlloc_v2(&mut address, 64), CUDA_ERROR_INVALID_CONTEXT, "no context is current");
        assert_eq!(cuDevicePrimaryCtxRetain(&mut context, 0), CUDA_SUCCESS);
        assert_eq!(driver::current_context(), 0, "retaining makes nothing current");
        assert_eq!(cuCtxSetCurrent(context), CUDA_SUCCESS);
        memory(&mut address);
        launches();
        dependent_launches(context);
        cluster_launches(context);
        handles();
        graphs();
        faults();
    }
    assert_eq!(driver::usage(0), idle());
}

/// # Safety
/// A context is current.
unsafe fn memory(address: &mut u64) {
    // SAFETY: as the caller promises, and as in the test above.
    unsafe {
        assert_eq!(cuMemAlloc_v2(address, 0), CUDA_ERROR_INVALID_VALUE);
        assert_eq!(cuMemAlloc_v2(address, 4097), CUDA_ERROR_OUT_OF_MEMORY);
        assert_eq!(cuMemAlloc_v2(address, 4000), CUDA_SUCCESS);
        let (mut free, mut total) = (0, 0);
        assert_eq!((cuMemGetInfo_v2(&mut free, &mut total), free, total), (CUDA_SUCCESS, 96, 4096));
        let (from, mut to) = ([7u8; 64], [0u8; 64]);
        assert_eq!(cuMemcpyHtoDAsync_v2(*address, from.as_ptr().cast(), 64, null_mut()), CUDA_SUCCESS);
        assert_eq!(cuMemcpyDtoHAsync_v2(to.as_mut_ptr().cast(), *address, 64, null_mut()), CUDA_SUCCESS);
        assert_eq!(from, to);
        let beyond = cuMemcpyDtoHAsync_v2(to.as_mut_ptr().cast(), *address + 3990, 64, null_mut());
        assert_eq!((beyond, driver::violations().len()), (CUDA_ERROR_ILLEGAL_ADDRESS, 1));
        let about = |address| {
            let mut which = [
                CUpointer_attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                CUpointer_attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
            ];
            let mut values = [7i32; 2];
            let mut places = values.each_mut().map(|value| (value as *mut i32).cast());
            assert_eq!(cuPointerGetAttributes(2, which.as_mut_ptr(), places.as_mut_ptr(), address), CUDA_SUCCESS);
            values
        };
        assert_eq!((about(*address + 3999), about(*address + 4000)), ([2, 0], [0, -2]));
        assert_eq!(driver::usage(0), Usage { bytes: 4000, allocations: 1, ..idle() });
        assert_eq!(cuMemFree_v2(*address), CUDA_SUCCESS);
        assert_eq!(cuMemFree_v2(*address), CUDA_ERROR_INVALID_VALUE, "freed twice");
    }
}

/// # Safety
/// A context is current.
unsafe fn launches() {
    let (mut module, mut function) = (null_mut(), null_mut());
    let load = |module: &mut _, text: &std::ffi::CStr| {
        // SAFETY: the text ends with NUL.
        unsafe { cuModuleLoadDataEx(module, text.as_ptr().cast(), 0, null_mut(), null_mut()) }
    };
    // SAFETY: as the caller promises, and as in the test above.
    unsafe {
        assert_eq!(load(&mut module, c"no PTX"), CUDA_ERROR_INVALID_PTX);
        assert_eq!(load(&mut module, PTX), CUDA_SUCCESS);
        assert_eq!(cuModuleGetFunction(&mut function, module, c"triple".as_ptr()), CUDA_ERROR_NOT_FOUND);
        assert_eq!(cuModuleGetFunction(&mut function, module, c"stranger".as_ptr()), CUDA_ERROR_NOT_FOUND, "no kernel");
        assert_eq!(cuModuleGetFunction(&mut function, module, c"double".as_ptr()), CUDA_SUCCESS);
        let (mut address, values) = (0, [1.0f32, 2.0, 3.0]);
        assert_eq!(cuMemAlloc_v2(&mut address, 12), CUDA_SUCCESS);
        assert_eq!(cuMemcpyHtoD_v2(address, values.as_ptr().cast(), 12), CUDA_SUCCESS);
        // Addresses written out here, without the code of `KernelArgs`.
        let launch = |mut beyond: u32, shared| {
            let (mut x, mut n) = (address, 3u32);
            let mut arguments: [*mut c_void; 3] = [(&raw mut x).cast(), (&raw mut n).cast(), (&raw mut beyond).cast()];
            let (arguments, stream) = (arguments.as_mut_ptr(), null_mut());
            cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, shared, stream, arguments, null_mut())
        };
        assert_eq!(launch(0, 0), CUDA_SUCCESS);
        let mut doubled = [0f32; 3];
        assert_eq!(cuMemcpyDtoH_v2(doubled.as_mut_ptr().cast(), address, 12), CUDA_SUCCESS);
        assert_eq!(doubled, [2.0, 4.0, 6.0]);
        assert_eq!(launch(0, 49 << 10), CUDA_ERROR_INVALID_VALUE, "more shared memory than allowed");
        assert_eq!(launch(1, 0), CUDA_ERROR_ILLEGAL_ADDRESS, "a write beyond the allocation");
        assert_eq!(driver::violations().len(), 2);
        for (negative, expected) in [(false, 36i64), (true, -36)] {
            let (mut weigh, name) = (null_mut(), CString::new(Weigh::kernel(negative).name()).unwrap());
            assert_eq!(cuModuleGetFunction(&mut weigh, module, name.as_ptr()), CUDA_SUCCESS);
            let out = PtrMut::new(std::ptr::with_exposed_provenance_mut(address as usize), 1);
            let mut launch = Weigh { bias: -4, factor: 2.5, out, value: 16 };
            let mut raw = launch.as_raw();
            let launched = cuLaunchKernel(weigh, 1, 1, 1, 32, 1, 1, 0, null_mut(), raw.as_mut_ptr(), null_mut());
            let mut result = 0i64;
            let copied = cuMemcpyDtoH_v2((&raw mut result).cast(), address, 8);
            assert_eq!((launched, copied, result), (CUDA_SUCCESS, CUDA_SUCCESS, expected));
        }
        assert_eq!(cuMemFree_v2(address), CUDA_SUCCESS);
        assert_eq!(cuModuleUnload(module), CUDA_SUCCESS);
        assert_eq!(launch(0, 0), CUDA_ERROR_INVALID_HANDLE, "a kernel of an unloaded module");
    }
}

/// `CUlaunchConfig` of cuda.h with one attribute, as bytes: no struct of the emulated driver.
fn launch_config(attributes: &[u8; 72], count: u32) -> [u64; 7] {
    let pair = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
    let address = attributes.as_ptr().expose_provenance() as u64;
    // A grid of one block, a block of 32 threads, no shared memory, padding, the default stream, the attributes and
    // their number.
    [pair(1, 1), pair(1, 32), pair(1, 1), 0, 0, address, count.into()]
}

/// Launches that may start before the work ahead has ended, on device 1; then `first` is current again.
///
/// # Safety
/// `first` is the context of device 0.
unsafe fn dependent_launches(first: CUcontext) {
    type LaunchKernelEx = unsafe extern "C" fn(*const u64, CUfunction, *mut *mut c_void, *mut *mut c_void) -> CUresult;
    let address = cuda_loader::symbol(c"cuLaunchKernelEx").unwrap();
    // SAFETY: this is the function's signature; a config of cuda.h is read as bytes.
    let launch_ex = unsafe { std::mem::transmute::<*const c_void, LaunchKernelEx>(address) };
    let waits = CString::new(PTX.to_str().unwrap().replace(")\n.vis", ")\n{\ngriddepcontrol.wait;\n}\n.vis")).unwrap();
    let waits = CString::new([waits.to_bytes(), b"{\ngriddepcontrol.wait;\n}\n"].concat()).unwrap();
    // SAFETY: as in the test above.
    unsafe {
        let (mut module, mut context) = (null_mut(), null_mut());
        let load = |module: &mut _, text: &std::ffi::CStr| {
            cuModuleLoadDataEx(module, text.as_ptr().cast(), 0, null_mut(), null_mut())
        };
        assert_eq!(load(&mut module, &waits), CUDA_ERROR_INVALID_PTX, "compute capability 8.0 has no such instruction");
        assert_eq!(cuDevicePrimaryCtxRetain(&mut context, 1), CUDA_SUCCESS);
        assert_eq!(cuCtxSetCurrent(context), CUDA_SUCCESS);
        let mut x = 0;
        assert_eq!(cuMemAlloc_v2(&mut x, 12), CUDA_SUCCESS);
        for (text, allowed, number, expected) in [
            (waits.as_c_str(), 1, 6, CUDA_SUCCESS),
            (PTX, 0, 6, CUDA_SUCCESS),
            (waits.as_c_str(), 1, 99, CUDA_ERROR_INVALID_VALUE),
            (PTX, 1, 6, CUDA_ERROR_LAUNCH_FAILED),
        ] {
            let mut function = null_mut();
            assert_eq!(load(&mut module, text), CUDA_SUCCESS);
            assert_eq!(cuModuleGetFunction(&mut function, module, c"double".as_ptr()), CUDA_SUCCESS);
            let values = [1.0f32, 2.0, 3.0];
            assert_eq!(cuMemcpyHtoD_v2(x, values.as_ptr().cast(), 12), CUDA_SUCCESS);
            let mut attributes = [0u8; 72];
            (attributes[0], attributes[8]) = (number, allowed);
            let (mut n, mut beyond) = (3u32, 0u32);
            let mut arguments: [*mut c_void; 3] = [(&raw mut x).cast(), (&raw mut n).cast(), (&raw mut beyond).cast()];
            let config = launch_config(&attributes, 1);
            let launched = launch_ex(config.as_ptr(), function, arguments.as_mut_ptr(), null_mut());
            let mut doubled = [0f32; 3];
            assert_eq!(cuMemcpyDtoH_v2(doubled.as_mut_ptr().cast(), x, 12), CUDA_SUCCESS);
            let factor = if expected == CUDA_SUCCESS { 2.0 } else { 1.0 };
            assert_eq!((launched, doubled), (expected, values.map(|value| factor * value)), "{number} {allowed}");
            assert_eq!(cuModuleUnload(module), CUDA_SUCCESS);
        }
        assert!(driver::violations().last().unwrap().contains("a dependent launch of double, which does not wait"));
        assert_eq!(cuMemFree_v2(x), CUDA_SUCCESS);
        assert_eq!(cuDevicePrimaryCtxRelease_v2(1), CUDA_SUCCESS);
        assert_eq!(cuCtxSetCurrent(first), CUDA_SUCCESS);
    }
}

/// Launches with clusters on device 1; then `first` is current again.
///
/// # Safety
/// `first` is the context of device 0.
unsafe fn cluster_launches(first: CUcontext) {
    type LaunchKernelEx = unsafe extern "C" fn(*const u64, CUfunction, *mut *mut c_void, *mut *mut c_void) -> i32;
    type SetAttribute = unsafe extern "C" fn(CUfunction, i32, i32) -> i32;
    let (launch_ex, set) = (cuda_loader::symbol(c"cuLaunchKernelEx"), cuda_loader::symbol(c"cuFuncSetAttribute"));
    // SAFETY: these are the functions' signatures; a config of cuda.h is read as bytes, and a code as a number.
    let (launch_ex, set) = unsafe {
        (
            std::mem::transmute::<*const c_void, LaunchKernelEx>(launch_ex.unwrap()),
            std::mem::transmute::<*const c_void, SetAttribute>(set.unwrap()),
        )
    };
    let text = c".version 7.8\n.target sm_90\n.visible .entry cluster_sizes(\n)\n{\nbarrier.cluster.arrive;\n}\n";
    const INVALID_CLUSTER_SIZE: i32 = 912;
    // SAFETY: as in the test above.
    unsafe {
        let (mut module, mut context, mut function) = (null_mut(), null_mut(), null_mut());
        let load = |module: &mut _| cuModuleLoadDataEx(module, text.as_ptr().cast(), 0, null_mut(), null_mut());
        assert_eq!(load(&mut module), CUDA_ERROR_INVALID_PTX, "compute capability 8.0 has no clusters");
        assert_eq!(cuDevicePrimaryCtxRetain(&mut context, 1), CUDA_SUCCESS);
        assert_eq!(cuCtxSetCurrent(context), CUDA_SUCCESS);
        assert_eq!(load(&mut module), CUDA_SUCCESS);
        assert_eq!(cuModuleGetFunction(&mut function, module, c"cluster_sizes".as_ptr()), CUDA_SUCCESS);
        let mut sizes = 0;
        assert_eq!(cuMemAlloc_v2(&mut sizes, 64), CUDA_SUCCESS);
        let mut arguments: [*mut c_void; 1] = [(&raw mut sizes).cast()];
        let mut launch = |blocks: u64, cluster: [u8; 3]| {
            let mut attributes = [0u8; 72];
            (attributes[0], attributes[8], attributes[12], attributes[16]) = (4, cluster[0], cluster[1], cluster[2]);
            let config = launch_config(&attributes, 1);
            let config =
                [config[0] & !0xffff_ffff | blocks, config[1], config[2], config[3], config[4], config[5], config[6]];
            launch_ex(config.as_ptr(), function, arguments.as_mut_ptr(), null_mut())
        };
        for (blocks, cluster, expected) in [
            (8, [4, 1, 1], 0),
            (16, [8, 1, 1], 0),
            (6, [4, 1, 1], INVALID_CLUSTER_SIZE),
            (6, [3, 1, 1], INVALID_CLUSTER_SIZE),
            (8, [2, 2, 1], INVALID_CLUSTER_SIZE),
            (16, [16, 1, 1], INVALID_CLUSTER_SIZE),
        ] {
            assert_eq!(launch(blocks, cluster), expected, "{blocks} in {cluster:?}");
            if expected == 0 {
                let mut found = [0u32; 16];
                assert_eq!(cuMemcpyDtoH_v2(found.as_mut_ptr().cast(), sizes, 64), CUDA_SUCCESS);
                assert!(found[..blocks as usize].iter().all(|&size| size == cluster[0].into()), "{found:?}");
            }
        }
        // CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
        assert_eq!(set(function, 14, 1), 0);
        assert_eq!(launch(16, [16, 1, 1]), 0);
        assert_eq!(cuModuleUnload(module), CUDA_SUCCESS);
        assert_eq!(cuMemFree_v2(sizes), CUDA_SUCCESS);
        assert_eq!(cuDevicePrimaryCtxRelease_v2(1), CUDA_SUCCESS);
        assert_eq!(cuCtxSetCurrent(first), CUDA_SUCCESS);
    }
}

/// # Safety
/// A context is current.
unsafe fn handles() {
    let (mut stream, mut start, mut end, mut untimed) = (null_mut(), null_mut(), null_mut(), null_mut());
    // SAFETY: as the caller promises, and as in the test above.
    unsafe {
        assert_eq!(cuStreamCreate(&mut stream, 0), CUDA_SUCCESS);
        for (event, flags) in [(&mut start, 0), (&mut end, 0), (&mut untimed, 2)] {
            assert_eq!(cuEventCreate(event, flags), CUDA_SUCCESS);
        }
        let mut time = -1.0;
        assert_eq!(cuEventRecord(start, stream), CUDA_SUCCESS);
        assert_eq!(cuEventSynchronize(end), CUDA_SUCCESS, "an event that was never recorded is done");
        assert_eq!(cuEventElapsedTime(&mut time, start, end), CUDA_ERROR_INVALID_HANDLE, "never recorded");
        assert_eq!(cuEventRecord(end, stream), CUDA_SUCCESS);
        assert_eq!(cuEventElapsedTime(&mut time, start, end), CUDA_SUCCESS);
        assert!(time >= 0.0);
        assert_eq!(cuEventRecord(untimed, stream), CUDA_SUCCESS);
        assert_eq!(cuEventElapsedTime(&mut time, start, untimed), CUDA_ERROR_INVALID_HANDLE, "keeps no time");
        assert_eq!(driver::usage(0), Usage { streams: 1, events: 3, ..idle() });
        let own = driver::current_context();
        let mut other = null_mut();
        assert_eq!(cuDevicePrimaryCtxRetain(&mut other, 1), CUDA_SUCCESS);
        assert_eq!(cuCtxSetCurrent(other), CUDA_SUCCESS);
        assert_eq!(cuStreamSynchronize(stream), CUDA_ERROR_INVALID_HANDLE, "a stream of another context");
        driver::set_current_context(own);
        assert_eq!(cuDevicePrimaryCtxRelease_v2(1), CUDA_SUCCESS);
        assert_eq!(cuStreamDestroy_v2(stream), CUDA_SUCCESS);
        assert_eq!(cuStreamSynchronize(stream), CUDA_ERROR_INVALID_HANDLE, "destroyed");
        for event in [start, end, untimed] {
            assert_eq!(cuEventDestroy_v2(event), CUDA_SUCCESS);
        }
    }
}

/// # Safety
/// A context is current.
unsafe fn graphs() {
    let (mut stream, mut graph, mut program, mut address) = (null_mut(), null_mut(), null_mut(), 0);
    let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
    // SAFETY: as the caller promises, and as in the test above.
    unsafe {
        assert_eq!(cuStreamCreate(&mut stream, 1), CUDA_SUCCESS);
        assert_eq!(cuMemAlloc_v2(&mut address, 32), CUDA_SUCCESS);
        assert_eq!(cuStreamBeginCapture_v2(stream, mode), CUDA_SUCCESS);
        assert_eq!(cuStreamSynchronize(stream), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "it waits");
        assert_eq!(cuCtxSynchronize(), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "it waits for all streams");
        assert_eq!(cuStreamEndCapture(stream, &mut graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
        assert_eq!(cuCtxSynchronize(), CUDA_SUCCESS);
        assert_eq!(cuStreamBeginCapture_v2(stream, mode), CUDA_SUCCESS);
        assert_eq!(cuMemsetD8Async(address, 7, 16, stream), CUDA_SUCCESS);
        assert_eq!(cuMemcpyDtoDAsync_v2(address + 16, address, 16, stream), CUDA_SUCCESS);
        assert_eq!(cuStreamEndCapture(stream, &mut graph), CUDA_SUCCESS);
        assert_eq!(cuGraphInstantiate_v2(&mut program, graph, null_mut(), null_mut(), 0), CUDA_SUCCESS);
        let read = || {
            let mut values = [0u8; 32];
            assert_eq!(cuMemcpyDtoH_v2(values.as_mut_ptr().cast(), address, 32), CUDA_SUCCESS);
            values
        };
        let mut flagged = null_mut();
        assert_eq!(cuGraphInstantiateWithFlags(&mut flagged, graph, 0), CUDA_SUCCESS);
        for (number, program) in [(1, program), (2, program), (3, flagged)] {
            assert_eq!(cuMemcpyHtoD_v2(address, [number; 32].as_ptr().cast(), 32), CUDA_SUCCESS);
            assert_eq!(read(), [number; 32], "a capture does nothing");
            assert_eq!(cuGraphLaunch(program, stream), CUDA_SUCCESS);
            assert_eq!(read(), [7; 32]);
        }
        assert_eq!(cuGraphExecDestroy(flagged), CUDA_SUCCESS);
        assert_eq!(cuGraphExecDestroy(program), CUDA_SUCCESS);
        assert_eq!(cuGraphLaunch(program, stream), CUDA_ERROR_INVALID_HANDLE, "destroyed");
        assert_eq!(cuGraphDestroy(graph), CUDA_SUCCESS);
        assert_eq!(cuMemFree_v2(address), CUDA_SUCCESS);
        assert_eq!(cuStreamDestroy_v2(stream), CUDA_SUCCESS);
    }
}

/// # Safety
/// A context is current.
unsafe fn faults() {
    let mut address = 0;
    // SAFETY: as the caller promises, and as in the test above.
    unsafe {
        driver::fail(Fault { after: 1, code: 2, lasts: Lasts::Once });
        assert_eq!(cuMemAlloc_v2(&mut address, 64), CUDA_SUCCESS);
        assert_eq!(cuMemFree_v2(address), CUDA_ERROR_OUT_OF_MEMORY, "fails, and frees all the same");
        assert_eq!(driver::usage(0), idle());
        assert_eq!(cuMemAlloc_v2(&mut address, 64), CUDA_SUCCESS, "once");
        assert_eq!(driver::heal(), Some(Failed { name: "cuMemFree_v2", code: 2 }));
        driver::fail(Fault { after: 0, code: 719, lasts: Lasts::ForGood });
        let (_, calls) = driver::watch(|| {
            assert_eq!(cuGraphCreate(null_mut(), 0) as i32, 500, "a function that the driver lacks");
            // `black_box` prevents unrolling: two copies of the call would be two places.
            for _ in 0..std::hint::black_box(2) {
                assert_eq!(cuMemcpyHtoD_v2(address, [0u8; 4].as_ptr().cast(), 4) as i32, 719);
            }
        });
        assert_eq!(calls.iter().map(|call| call.name).collect::<Vec<_>>(), ["cuMemcpyHtoD_v2"; 2]);
        assert_eq!(calls[0].site, calls[1].site, "the same place");
        assert_eq!(driver::heal(), Some(Failed { name: "cuMemcpyHtoD_v2", code: 719 }));
        assert_eq!(cuMemFree_v2(address), CUDA_SUCCESS);
    }
}
