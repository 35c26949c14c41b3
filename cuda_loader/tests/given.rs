//! A program replaces the driver. This is the only test here, because a process has one driver.

use std::ffi::{CStr, c_int, c_void};

use cuda_loader::{DriverInUse, driver_present, symbol, use_driver};

unsafe extern "C" fn version(version: *mut c_int) -> c_int {
    // SAFETY: the caller's argument is valid for a write.
    unsafe { version.write(12_345) };
    0
}

fn driver(name: &CStr) -> Option<*const c_void> {
    (name == c"cuDriverGetVersion" || name == c"cuInit").then_some(version as *const c_void)
}

#[test]
fn the_functions_are_those_of_the_given_driver() {
    // SAFETY: `version` has the signature of the function, and the test calls no other.
    unsafe { use_driver(driver) }.unwrap();
    assert!(driver_present());
    assert_eq!(symbol(c"cuDriverGetVersion"), Some(version as *const c_void));
    assert_eq!(symbol(c"cuMemAlloc_v2"), None);
    let (mut number, mut free) = (0, 0);
    // SAFETY: the arguments are valid for writes.
    unsafe {
        assert_eq!((cust_raw::cuDriverGetVersion(&mut number) as i32, number), (0, 12_345));
        assert_eq!(cust_raw::cuMemGetInfo_v2(&mut free, &mut 0) as i32, 500, "a function that it lacks");
        // SAFETY: as above.
        assert_eq!(use_driver(driver), Err(DriverInUse));
    }
}
