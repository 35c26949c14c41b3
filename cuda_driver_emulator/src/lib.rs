//! A CUDA driver for tests, made of the checking emulator of `cuda_std`: a program that calls the driver runs without a GPU.
//!
//! # How a program gets it
//! [`install`], before the first call of the driver, hands `cuda_loader` the functions of this crate in place of those of libcuda.so.1.
//! From then on cust and every other caller of the driver's C functions reach this one, in the whole process.
//!
//! # What it does
//! | module | what |
//! |---|---|
//! | `calls` | the driver's functions, with the signatures of cuda.h |
//! | `state` | devices, contexts, memory, modules, streams, events: what exists, who owns it, how much is in use |
//! | `faults` | which call fails, and what was called |
//!
//! - A module is PTX text, of which the names of the entries are read. A kernel is the one of that name which the program is linked with
//!   (`cuda_std::emulator::kernels`); the emulator runs it with the arguments at the raw addresses, and checks it as ever. What it stops is
//!   printed, kept for [`violations`], and becomes code 700 or 719.
//! - Device memory is the emulator's buffers, so a kernel that leaves an allocation is stopped. Copies and fills are checked against the
//!   allocations as well, and against the device that owns them.
//! - Each device has its primary context, which is retained and released by count; a thread has one current context, or none. What needs a
//!   context is refused without one (201), and what belongs to another context is refused as well (400).
//! - Handles are numbers that are never used again, so that a stale one is found (400).
//! - Streams do their work at once, so synchronisation returns at once. An event knows whether it was recorded, and when.
//! - Each device has as much memory as its settings say; what does not fit is refused (2).
//!
//! # Faults
//! Every function counts its calls. [`fail`] lets one of the next calls fail with a code, once or from then on ([`Lasts`]). A function that
//! gives something back (a free, a destruction, a release, an unloading) does so all the same, as the driver does, which reports earlier
//! asynchronous errors there. Once a call has failed it does so without a current context as well, which may have been lost. What [`Usage`] still shows afterwards is a leak of the caller.
//!
//! # What it does not model
//! Work that goes on after a call returned, the order of streams, contexts other than primary ones, graphs, and peer access that is needed
//! but was not enabled (copies between devices work either way, as they do on hardware).

mod calls;
mod faults;
mod state;

use cuda_loader::DriverInUse;
use cuda_std::emulator::Violation;

pub use faults::{Call, Failed, Fault, Lasts};
pub use state::{Device, Usage};

/// Makes this the CUDA driver of the process, with `devices`. Call it once, before anything that calls the driver.
///
/// # Errors
/// [`DriverInUse`] if a driver was looked for before, or this one was installed before.
pub fn install(devices: Vec<Device>) -> Result<(), DriverInUse> {
    state::create(devices)?;
    // SAFETY: `look_up` returns functions with the signatures of cuda.h, which live as long as the program.
    unsafe { cuda_loader::use_driver(calls::look_up) }
}

/// Replaces what device `index` is like. Programs that have opened it may have asked before.
pub fn set_device(index: usize, device: Device) {
    state::lock().devices[index].device = device;
}

/// What is in use of device `index`.
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

/// Makes a context that is retained, or none (0), current in the calling thread. Counts as no call, and cannot fail by [`fail`].
///
/// # Panics
/// If nobody retains the context.
pub fn set_current_context(context: usize) {
    assert!(state::lock().set_current(context).is_ok(), "nobody retains the context {context:#x}");
}

/// Lets a call fail that is made from now on, and forgets what [`fail`] said before.
pub fn fail(fault: Fault) {
    faults::set(Some(fault));
}

/// Lets no call fail from now on. Returns what failed since [`fail`]: the first such call, if there was one.
pub fn heal() -> Option<Failed> {
    faults::set(None)
}

/// Records every call that `work` makes, in all threads, and returns them in order.
pub fn watch<V>(work: impl FnOnce() -> V) -> (V, Vec<Call>) {
    faults::watch(work)
}

/// What the emulator, or the check of a copy, stopped since the program started.
pub fn violations() -> Vec<String> {
    state::lock().violations.clone()
}

/// Keeps and prints what was stopped; the driver's code for it.
fn stopped(violation: &Violation) -> i32 {
    use cuda_std::emulator::ViolationKind::GlobalOutOfBounds;
    let code =
        if matches!(*violation.kind, GlobalOutOfBounds { .. }) { calls::ILLEGAL_ADDRESS } else { calls::LAUNCH_FAILED };
    state::violation(violation.to_string());
    code
}
