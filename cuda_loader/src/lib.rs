//! Gives cust its CUDA driver symbols at run time, so that one binary runs with and without a GPU.
//!
//! cust calls the driver (`cuInit`, `cuMemAlloc_v2`, ..) as ordinary linked functions; a binary linked against libcuda does not
//! even start where no driver is installed. This crate defines those symbols itself. Each is a stub that jumps to the driver's
//! function of that name; the first call opens libcuda.so.1 and looks the name up. Where there is no driver, every function
//! answers `CUDA_ERROR_NO_DEVICE` (cust: [`CudaError::NoDevice`]), and the functions that describe an error still do so.
//!
//! A binary gets the symbols by using anything of this crate, e.g. [`driver_present`]. cust's build script wants a folder with
//! a libcuda: `CUDA_LIBRARY_PATH` (set in `.cargo/config.toml`) leads it to the empty one in `stub/`.
//!
//! A test may bring a driver of its own: [`use_driver`].
//!
//! Cost: a stub is a load, a test and a jump. Calls may come from any thread at any time.
//!
//! [`CudaError::NoDevice`]: https://docs.rs/cust/0.3.2/cust/error/enum.CudaError.html

#[cfg(not(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64"))))]
compile_error!("cuda_loader knows Linux on x86-64 and aarch64; elsewhere build warpann with --no-default-features");

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

/// Whether this machine has a CUDA driver (libcuda.so.1). A driver may still have no device: `cust::init` tells.
///
/// The first call opens the library (milliseconds); later ones are a load.
pub fn driver_present() -> bool {
    // Keeps the stubs in the binary, whatever the order in which the linker sees the libraries.
    std::hint::black_box(&stubs::STUBS);
    symbol(c"cuInit").is_some()
}

/// A driver: the address of its function of that name, or `None` where it has no such function. The address must stay valid, and lead to
/// a function of the C calling convention with the signature that NVIDIA's cuda.h gives the name.
pub type Driver = fn(&CStr) -> Option<*const c_void>;

/// Takes the functions of `driver` in place of those of libcuda.so.1, for the whole process. For tests: a driver that needs no GPU.
///
/// # Errors
/// [`DriverInUse`] if a driver was looked for before: functions already found stay as they are.
///
/// # Safety
/// `driver` keeps the contract of [`Driver`].
pub unsafe fn use_driver(driver: Driver) -> Result<(), DriverInUse> {
    DRIVER.set(Source::Given(driver)).map_err(|_| DriverInUse)
}

/// A driver was looked for before [`use_driver`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DriverInUse;

impl std::fmt::Display for DriverInUse {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a CUDA driver is in use already; another must be chosen before the first call")
    }
}

impl std::error::Error for DriverInUse {}

/// The driver's function of that exact name (`cuFuncSetAttribute`, `cuCtxCreate_v2`, ..), for calls that cust lacks. `None`
/// when there is no driver or it has no such function.
///
/// The pointer stays valid for the life of the process: the library is never closed. It is a function of the C calling
/// convention; its signature is the caller's to know.
pub fn symbol(name: &CStr) -> Option<*const c_void> {
    let library = match *driver() {
        Source::None => return None,
        Source::Given(driver) => return driver(name),
        Source::Library(handle) => std::ptr::with_exposed_provenance_mut(handle),
    };
    // SAFETY: `library` is a handle that dlopen returned and nobody closes; `name` ends with NUL.
    let address = unsafe { dlsym(library, name.as_ptr()) };
    (!address.is_null()).then_some(address.cast_const())
}

/// Where the functions come from.
enum Source {
    /// There is no driver.
    None,
    /// The handle of libcuda.so.1, never closed.
    Library(usize),
    /// What [`use_driver`] was given.
    Given(Driver),
}

/// Chosen once, by [`use_driver`] or the first look-up.
static DRIVER: OnceLock<Source> = OnceLock::new();

/// Where the functions come from; the first call opens the library, unless [`use_driver`] came before.
fn driver() -> &'static Source {
    const RTLD_NOW: c_int = 2;
    DRIVER.get_or_init(|| {
        // SAFETY: the file name ends with NUL. Loading runs the driver's initialisers, which need nothing of us.
        match unsafe { dlopen(c"libcuda.so.1".as_ptr(), RTLD_NOW) }.expose_provenance() {
            0 => Source::None,
            handle => Source::Library(handle),
        }
    })
}

/// What a stub jumps to: the driver's function, or what answers in its place.
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

// Any driver function, without a driver. Called with arguments that it does not declare: the C calling convention leaves them
// to the caller, who cleans up.
extern "C" fn no_device() -> c_int {
    CUDA_ERROR_NO_DEVICE
}

// A function that the installed driver is too old for.
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
