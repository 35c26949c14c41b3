//! Links cust through the loader and calls it, with or without a driver.

use std::ffi::c_int;

/// Every name of the table exists in cust_raw, with exactly that spelling; taking the addresses also links all of them.
#[test]
fn every_symbol_is_one_of_cust_raw() {
    macro_rules! addresses {
        ($($name:ident)*) => { [$(cust_raw::$name as *const () as usize),*] };
    }
    let addresses = cuda_loader::__with_driver_symbols!(addresses);
    assert!(addresses.iter().all(|&address| address != 0));
}

#[test]
fn initialisation_reports_what_the_machine_has() {
    match cust::init(cust::CudaFlags::empty()) {
        Ok(()) => assert!(cuda_loader::driver_present()),
        Err(error) if !cuda_loader::driver_present() => {
            assert_eq!(error, cust::error::CudaError::NoDevice);
            assert!(error.to_string().contains("libcuda.so.1"), "{error}");
            assert_eq!(cust::device::Device::num_devices(), Err(cust::error::CudaError::NoDevice));
        }
        // A driver without a device, or one that does not fit the kernel module.
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

#[test]
fn a_name_that_no_driver_has_is_none() {
    assert_eq!(cuda_loader::symbol(c"cuNoSuchFunction"), None);
    assert_eq!(cuda_loader::symbol(c"cuInit").is_some(), cuda_loader::driver_present());
}

/// The first calls come from several threads at once; every call must return a result.
#[test]
fn first_calls_may_come_from_many_threads() {
    let expected = if cuda_loader::driver_present() { 0 } else { 100 };
    let start = std::sync::Barrier::new(16);
    std::thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| {
                start.wait();
                let mut version: c_int = -1;
                // SAFETY: the argument is valid for a write; the function needs no initialisation.
                let answer = unsafe { cust_raw::cuDriverGetVersion(&mut version) };
                assert_eq!(answer as c_int, expected);
                assert_eq!(version > 0, expected == 0);
            });
        }
    });
}

/// Floats are passed in vector registers, which the long way through a stub must preserve. Without a driver the
/// function only returns an error, so this checks that the call does not crash.
#[test]
fn a_float_argument_survives_the_first_call() {
    if !cuda_loader::driver_present() {
        // SAFETY: without a driver the function reads no argument.
        let answer = unsafe { cust_raw::cuParamSetf(std::ptr::null_mut(), 0, 1.5) };
        assert_eq!(answer as c_int, 100);
    }
}
