//! A CUDA driver for tests, built on the checking emulator of `cuda_std`: a program that calls the driver runs without
//! a GPU.
//!
//! # How a program uses it
//! Call [`install`] before the first call of the driver. It makes `cuda_loader` use the functions of this crate instead
//! of those of libcuda.so.1. From then on cust and every other caller of the driver's C functions use this driver, in
//! the whole process.
//!
//! # What it does
//! | module | content |
//! |---|---|
//! | `calls` | the driver's functions, with the signatures of cuda.h |
//! | `image` | what is read of the images of modules |
//! | `state` | devices, contexts, memory, modules, streams, events and graphs that exist, their owners, and the amounts in use |
//! | `faults` | faults that a test sets, and the record of calls |
//!
//! - A module is PTX text or machine code in ELF, of which the names of the entries, the shared memory and the waits
//!   for the work ahead are read. Machine code for another generation is refused (209). The kernel of an entry is the
//!   one with its name among the kernels linked into the program (`cuda_std::emulator::kernels`). The emulator runs it
//!   with the arguments at the raw addresses, with all its checks. A violation is printed, kept for [`violations`], and
//!   returned as code 700 or 719.
//! - Device memory consists of buffers of the emulator, so a kernel that leaves an allocation is stopped. Copies and
//!   fills must lie in an allocation as well, on the right device.
//! - Each device has a primary context with a count of retentions. A thread has one current context or none. A call
//!   that needs a context fails without one (201); a call with a handle of another context fails as well (400).
//! - Handles are numbers that are never used again, so a stale handle is detected (400).
//! - Streams do their work at once, so synchronisation returns at once. An event stores the time at which it was
//!   recorded.
//! - A stream can be captured into a graph, whose launches do the captured work again. A call that allocates or waits
//!   in the thread that captures fails (900), and then the end of the capture does (901).
//! - Each device has the memory of its settings; an allocation that does not fit fails (2). A memory pool keeps
//!   what is freed up to its threshold, and gives the rest back when a thread waits for a stream, an event or the
//!   context. What it keeps serves any allocation: the memory of a pool has no gaps here.
//!
//! # Faults
//! Every function counts its calls. [`fail`] makes one of the next calls fail with a code, once or from then on
//! ([`Lasts`]). A function that releases something (a free, a destruction, a release, an unloading) does its work even
//! if it fails, as in NVIDIA's driver, which reports earlier asynchronous errors there. After a failed call, such a
//! function also works without a current context, because the context may have been lost. Resources that [`Usage`]
//! still counts afterwards are leaks of the caller.
//!
//! # Limits
//! The driver does not model work that continues after a call has returned, the order of streams, contexts other than
//! primary ones, and graphs that are not captured. It does not require peer access to be enabled (copies between
//! devices work either way, as on hardware).

mod calls;
mod faults;
mod image;
mod state;

use cuda_loader::DriverInUse;
use cuda_std::emulator::Violation;

pub use faults::{Call, Failed, Fault, Lasts};
pub use state::{Device, Usage};

/// Makes this the CUDA driver of the process, with `devices`. Call it once, before the first call of the driver.
///
/// # Errors
/// [`DriverInUse`] if the process has already looked for a driver, or has already installed this one.
pub fn install(devices: Vec<Device>) -> Result<(), DriverInUse> {
    state::create(devices)?;
    // SAFETY: `look_up` returns functions with the signatures of cuda.h, which live as long as the program.
    unsafe { cuda_loader::use_driver(calls::look_up) }
}

/// Replaces the properties of device `index`. A program that has opened the device may have read the old ones.
pub fn set_device(index: usize, device: Device) {
    state::lock().devices[index].device = device;
}

/// The resources of device `index` that are in use.
pub fn usage(index: usize) -> Usage {
    state::lock().usage(index)
}

/// The context that is current in the calling thread, as a number; 0 for none.
pub fn current_context() -> usize {
    state::current()
}

/// The primary context of device `index`, as a number.
pub fn context(index: usize) -> usize {
    state::State::context_of(index)
}

/// Makes a retained context, or none (0), current in the calling thread. It does not count as a call, and [`fail`] does
/// not affect it.
///
/// # Panics
/// Panics if the context is not retained.
pub fn set_current_context(context: usize) {
    assert!(state::lock().set_current(context).is_ok(), "the context {context:#x} is not retained");
}

/// Makes a later call fail, and replaces the fault of an earlier [`fail`].
pub fn fail(fault: Fault) {
    faults::set(Some(fault));
}

/// Makes no further call fail. Returns the first call that failed since [`fail`], if there was one.
pub fn heal() -> Option<Failed> {
    faults::set(None)
}

/// Records every call that `work` makes, in all threads, and returns them in order.
pub fn watch<V>(work: impl FnOnce() -> V) -> (V, Vec<Call>) {
    faults::watch(work)
}

/// The violations since the program started: those of kernels and those of copies and fills.
pub fn violations() -> Vec<String> {
    state::lock().violations.clone()
}

/// Prints and keeps a violation. Returns the driver's code for it.
fn stopped(violation: &Violation) -> i32 {
    use cuda_std::emulator::ViolationKind::GlobalOutOfBounds;
    let code =
        if matches!(*violation.kind, GlobalOutOfBounds { .. }) { calls::ILLEGAL_ADDRESS } else { calls::LAUNCH_FAILED };
    state::violation(violation.to_string());
    code
}
