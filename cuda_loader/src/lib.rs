//! Resolves the CUDA driver symbols of cust at run time, so that one binary runs with and without a GPU.
//!
//! cust calls the driver (`cuInit`, `cuMemAlloc_v2`, ..) as ordinary linked functions. A binary that is linked against
//! libcuda does not start on a machine without a driver. This crate defines the symbols itself. Each is a stub that
//! jumps to the driver's function of the same name; the first call opens libcuda.so.1 and looks the name up. Without a
//! driver, every function returns `CUDA_ERROR_NO_DEVICE` (cust: [`CudaError::NoDevice`]), except that the functions
//! which describe an error still do so.
//!
//! A binary gets the symbols if it uses any item of this crate, such as [`driver_present`].
//!
//! # Building without a CUDA toolkit
//! cust's build script adds `-lcuda` to the link and fails unless it finds a toolkit, which is any folder with a
//! subfolder `lib64`. The build script of this crate gives the linker an empty `libcuda.so`, so any such folder will
//! do. One line of `.cargo/config.toml` names one that Linux has:
//!
//! ```toml
//! env.CUDA_LIBRARY_PATH = "/usr"
//! ```
//!
//! A test may replace the driver: see [`use_driver`].
//!
//! A stub costs a load, a test and a jump. Any thread may call it at any time.
//!
//! [`CudaError::NoDevice`]: https://docs.rs/cust/0.3.2/cust/error/enum.CudaError.html

#[cfg(not(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64"))))]
compile_error!(
    "cuda_loader supports Linux on x86-64 and aarch64; on other systems build warpann without the feature `cuda`"
);

mod stubs;
mod symbols;

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::OnceLock;

const CUDA_SUCCESS: c_int = 0;
const CUDA_ERROR_INVALID_VALUE: c_int = 1;
const CUDA_ERROR_NO_DEVICE: c_int = 100;
const CUDA_ERROR_NOT_FOUND: c_int = 500;

unsafe extern "C" {
    fn dlopen(file: *const c_char, flags: c_int) -> *mut c_void;
    fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
}

/// Whether this machine has a CUDA driver (libcuda.so.1). A driver may still have no device; then `cust::init` fails.
///
/// The first call opens the library (milliseconds); later calls cost one load.
pub fn driver_present() -> bool {
    // Keeps the stubs in the binary, whatever the order in which the linker sees the libraries.
    std::hint::black_box(&stubs::STUBS);
    symbol(c"cuInit").is_some()
}

/// A driver: a function that returns the address of the driver function with a given name, or `None` if the driver does
/// not have it. The address must stay valid. At the address is a function of the C calling convention, with the
/// signature of that name in NVIDIA's cuda.h.
pub type Driver = fn(&CStr) -> Option<*const c_void>;

/// Uses the functions of `driver` instead of those of libcuda.so.1, in the whole process. With it, tests can use a
/// driver that needs no GPU.
///
/// # Errors
/// [`DriverInUse`] if the process has already looked for a driver. Functions that it found stay in use.
///
/// # Safety
/// `driver` satisfies the contract of [`Driver`].
pub unsafe fn use_driver(driver: Driver) -> Result<(), DriverInUse> {
    DRIVER.set(Source::Given(driver)).map_err(|_| DriverInUse)
}

/// The error of [`use_driver`]: the process had already looked for a driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DriverInUse;

impl std::fmt::Display for DriverInUse {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a CUDA driver is in use already; another must be chosen before the first call")
    }
}

impl std::error::Error for DriverInUse {}

/// The driver's function of that exact name (`cuFuncSetAttribute`, `cuCtxCreate_v2`, ..), for calls that cust lacks.
/// `None` if there is no driver or it has no such function.
///
/// The pointer stays valid for the life of the process: the library is never closed. At the address is a function of
/// the C calling convention; the caller must use it with the right signature.
pub fn symbol(name: &CStr) -> Option<*const c_void> {
    let library = match *driver() {
        Source::None => return None,
        Source::Given(driver) => return driver(name),
        Source::Library(handle) => std::ptr::with_exposed_provenance_mut(handle),
    };
    // SAFETY: `library` is a handle that dlopen returned and that is never closed; `name` ends with NUL.
    let address = unsafe { dlsym(library, name.as_ptr()) };
    (!address.is_null()).then_some(address.cast_const())
}

/// The origin of the driver's functions.
enum Source {
    /// There is no driver.
    None,
    /// The handle of libcuda.so.1, never closed.
    Library(usize),
    /// The driver that [`use_driver`] received.
    Given(Driver),
}

/// Set once, by [`use_driver`] or the first look-up.
static DRIVER: OnceLock<Source> = OnceLock::new();

/// The origin of the functions. The first call opens the library, unless [`use_driver`] was called before.
fn driver() -> &'static Source {
    const RTLD_NOW: c_int = 2;
    DRIVER.get_or_init(|| {
        // SAFETY: the file name ends with NUL. Loading runs the driver's initialisers, which have no preconditions.
        match unsafe { dlopen(c"libcuda.so.1".as_ptr(), RTLD_NOW) }.expose_provenance() {
            0 => Source::None,
            handle => Source::Library(handle),
        }
    })
}

/// The address to which a stub jumps: the driver's function, or a replacement that returns an error.
fn target(name: &CStr) -> *const c_void {
    if let Some(address) = symbol(name) {
        return address;
    }
    match name.to_bytes() {
        // cust's error type calls these for its text, and panics when they fail.
        b"cuGetErrorName" => error_name as *const c_void,
        b"cuGetErrorString" => error_string as *const c_void,
        _ if matches!(driver(), Source::None) => no_device as *const c_void,
        _ => not_found as *const c_void,
    }
}

// Replaces any driver function if there is no driver. Callers pass arguments that it does not declare; in the C calling
// convention the caller removes them.
extern "C" fn no_device() -> c_int {
    CUDA_ERROR_NO_DEVICE
}

// Replaces a function that the installed driver does not have because it is too old.
extern "C" fn not_found() -> c_int {
    CUDA_ERROR_NOT_FOUND
}

/// `cuGetErrorName` without a driver.
unsafe extern "C" fn error_name(error: c_int, text: *mut *const c_char) -> c_int {
    let name = match error {
        CUDA_SUCCESS => c"CUDA_SUCCESS",
        CUDA_ERROR_NO_DEVICE => c"CUDA_ERROR_NO_DEVICE",
        CUDA_ERROR_NOT_FOUND => c"CUDA_ERROR_NOT_FOUND",
        _ => c"CUDA_ERROR_UNKNOWN",
    };
    // SAFETY: the caller keeps the contract of cuGetErrorName, which is the same.
    unsafe { answer(name, text) }
}

/// `cuGetErrorString` without a driver.
unsafe extern "C" fn error_string(error: c_int, text: *mut *const c_char) -> c_int {
    let description = match error {
        CUDA_SUCCESS => c"no error",
        CUDA_ERROR_NO_DEVICE => c"no CUDA device: libcuda.so.1 was not found",
        CUDA_ERROR_NOT_FOUND => c"the CUDA driver has no such function",
        _ => c"unknown error; there is no CUDA driver that could describe it",
    };
    // SAFETY: the caller keeps the contract of cuGetErrorString, which is the same.
    unsafe { answer(description, text) }
}

/// # Safety
/// `text` is null or valid for a write.
unsafe fn answer(what: &'static CStr, text: *mut *const c_char) -> c_int {
    if text.is_null() {
        return CUDA_ERROR_INVALID_VALUE;
    }
    // SAFETY: not null, hence valid for a write.
    unsafe { text.write(what.as_ptr()) };
    CUDA_SUCCESS
}

/// The example of the package's page, as a doctest.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub struct Readme;
