//! Views of buffers of cudarc on the emulated driver: the searches, the order of the calls, and errors.
//!
//! cudarc finds the driver by `dlopen` and `dlsym`. This program has functions of these names, which the linker prefers
//! to those of the C library, and they find the emulated driver. Nothing else in the program needs them: the standard
//! library does without the functions that it looks up.

use std::ffi::{CStr, c_char, c_int, c_void};

use cuda_driver_emulator::{self as driver, Fault, Lasts};
use warpann::MemoryDefect::OtherGpu;
use warpann::cudarc::driver::CudaContext;
use warpann::views::cudarc::OnStream;
use warpann::{Device, Error, FlatIndex, Metric, SearchOptions};
use warpann_tests::cudarc_data;

/// Opens the driver, and nothing else.
///
/// # Safety
/// `file` is null or ends with NUL.
#[unsafe(no_mangle)]
unsafe extern "C" fn dlopen(file: *const c_char, _flags: c_int) -> *mut c_void {
    static DRIVER: u8 = 0;
    // SAFETY: as the caller promises.
    let is_driver = !file.is_null() && unsafe { CStr::from_ptr(file) }.to_bytes().starts_with(b"libcuda.");
    if is_driver { (&raw const DRIVER).cast_mut().cast() } else { std::ptr::null_mut() }
}

/// Finds a function of the emulated driver.
///
/// # Safety
/// `name` ends with NUL.
#[unsafe(no_mangle)]
unsafe extern "C" fn dlsym(_library: *mut c_void, name: *const c_char) -> *mut c_void {
    // SAFETY: as the caller promises.
    let name = unsafe { CStr::from_ptr(name) };
    let address = if name.to_bytes().starts_with(b"cu") { cuda_loader::symbol(name) } else { None };
    address.map_or(std::ptr::null_mut(), <*const c_void>::cast_mut)
}

/// One test, because the driver, its record of calls and its faults are those of the process.
#[test]
fn searches_in_buffers_of_cudarc() {
    driver::install(vec![driver::Device::default(); 2]).unwrap();
    for &(name, scenario) in cudarc_data::SMALL_ONES {
        assert_eq!(scenario(Device::Gpu(0)), Ok(()), "{name}");
    }
    let context = CudaContext::new(0).unwrap();
    let (writer, searcher) = (context.new_stream().unwrap(), context.new_stream().unwrap());
    let queries = writer.clone_htod(&[0.9f32, 1.2]).unwrap();
    let (mut ids, mut distances) = (writer.alloc_zeros::<u64>(2).unwrap(), writer.alloc_zeros::<f32>(2).unwrap());
    let mut index = FlatIndex::<f32>::new(2, Metric::L2, Device::Gpu(0)).unwrap();
    index.add(&[0.0, 0.0, 3.0, 4.0, 1.0, 1.0]).unwrap();
    let mut workspace = index.device_workspace(1, 2, &SearchOptions::new()).unwrap();
    let on = OnStream::new(&searcher).unwrap();

    let ((), calls) = driver::watch(|| {
        let (queries, results) = (on.vectors(&queries, 2).unwrap(), on.neighbors(&mut ids, &mut distances).unwrap());
        // SAFETY: index, workspace and buffers live and do not change before the results are read below.
        unsafe { index.search_device(&mut workspace, on.raw(), &queries, &results).unwrap() };
    });
    let order = ["cuStreamWaitEvent", "cuLaunchKernel", "cuEventRecord"];
    let mut calls: Vec<_> = calls.into_iter().map(|call| call.name).filter(|name| order.contains(name)).collect();
    // For the last write of the queries, and for the last reads and writes of ids and distances.
    assert_eq!(calls.iter().filter(|name| **name == order[0]).count(), 5, "{calls:?}");
    assert_eq!(calls.iter().filter(|name| **name == order[2]).count(), 3, "{calls:?}");
    calls.dedup();
    assert_eq!(calls, order, "the stream waits, searches, and then records that the buffers are free");
    assert_eq!(writer.clone_dtoh(&ids).unwrap(), [2, 0]);

    driver::fail(Fault { after: 0, code: 700, lasts: Lasts::Once });
    let refused = on.vectors(&queries, 2);
    assert!(matches!(refused, Err(Error::Driver { call: "cuStreamWaitEvent", device: 0, code: 700 })), "{refused:?}");
    assert!(driver::heal().is_some());
    assert!(on.vectors(&queries, 2).is_ok(), "cudarc does not keep an error that was reported");

    let elsewhere = CudaContext::new(1).unwrap().new_stream().unwrap();
    let on_elsewhere = OnStream::new(&elsewhere).unwrap();
    let refused = on_elsewhere.vectors(&queries, 2);
    assert!(matches!(refused, Err(Error::BadMemory { defect: OtherGpu { expected: 1, found: 0 }, .. })), "{refused:?}");
    let there = elsewhere.clone_htod(&[0.9f32, 1.2]).unwrap();
    let (there, results) = (on_elsewhere.vectors(&there, 2).unwrap(), on.neighbors(&mut ids, &mut distances).unwrap());
    // SAFETY: the call is refused.
    let refused = unsafe { index.search_device(&mut workspace, on.raw(), &there, &results) };
    assert!(matches!(refused, Err(Error::BadMemory { defect: OtherGpu { expected: 0, found: 1 }, .. })), "{refused:?}");
    assert!(driver::violations().is_empty(), "{:?}", driver::violations());
}
