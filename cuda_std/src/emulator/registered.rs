//! The kernels of a program by name: what a driver needs that finds a kernel by its name in a module, and its arguments
//! by their addresses.
//!
//! With the feature `kernels-by-name`, [`kernel`](macro@crate::kernel) puts a reference to each kernel into a section
//! of the program, which the linker gathers. So no kernel can be forgotten, and none is listed by hand. Such a program
//! contains every kernel for the emulator: rustc tells the linker to keep sections of this kind. Without the feature a
//! program contains the kernels that it launches: a program that makes an exact search has 1.9 MB instead of 4.2 MB
//! (x86-64, stripped, 2026-11-24).

use std::ffi::c_void;

use super::counts::Stats;
use super::launch::launch;
use super::violation::Violation;
use crate::launch::{Kernel, KernelArgs, LaunchConfig};

/// A [`launch`] with its arguments, which runs at each call.
pub type BoundLaunch = Box<dyn Fn() -> Result<Stats, Violation> + Send + Sync>;

/// A kernel, whatever its parameters.
pub trait AnyKernel: Sync {
    /// The entry point's name.
    fn name(&self) -> &'static str;

    /// A launch with the arguments that lie at `arguments`, one address a parameter. They are read now.
    ///
    /// # Safety
    /// `arguments` has the address of a value of the right type for each parameter. At each call of the result, the
    /// contract of [`launch`].
    unsafe fn bind(&'static self, config: LaunchConfig, arguments: *const *mut c_void) -> BoundLaunch;
}

impl<A: KernelArgs + 'static> AnyKernel for Kernel<A> {
    fn name(&self) -> &'static str {
        Kernel::name(self)
    }

    unsafe fn bind(&'static self, config: LaunchConfig, arguments: *const *mut c_void) -> BoundLaunch {
        // SAFETY: the caller promises the arguments.
        let arguments = unsafe { A::from_raw(arguments) };
        // SAFETY: the caller has the contract of `launch`.
        Box::new(move || unsafe { launch(self, config, arguments) })
    }
}

/// The type of the references that `#[kernel]` puts into the section.
#[doc(hidden)]
pub type Registered = &'static dyn AnyKernel;

/// Puts a reference to a kernel into the section.
#[cfg(target_os = "linux")]
#[doc(hidden)]
#[macro_export]
macro_rules! register {
    ($kernel:expr) => {
        const _: () = {
            #[used]
            // SAFETY: the section holds values of this type only (`cuda_std::emulator::kernels`).
            #[unsafe(link_section = "cuda_std_kernels")]
            static KERNEL: $crate::private::Registered = $kernel;
        };
    };
}

/// Systems other than Linux have no such section.
#[cfg(not(target_os = "linux"))]
#[doc(hidden)]
#[macro_export]
macro_rules! register {
    ($kernel:expr) => {};
}

/// Makes the section exist in a program without kernels.
#[cfg(target_os = "linux")]
#[used]
// SAFETY: the section holds values of type `Registered` only; this is none of them.
#[unsafe(link_section = "cuda_std_kernels")]
static NONE: [Registered; 0] = [];

/// All kernels of the crates that this program is linked from, in no particular order. Empty on systems other than
/// Linux.
pub fn kernels() -> &'static [Registered] {
    #[cfg(target_os = "linux")]
    {
        // SAFETY: the linker defines both names for a section whose name is an identifier of C.
        unsafe extern "C" {
            #[link_name = "__start_cuda_std_kernels"]
            static START: u8;
            #[link_name = "__stop_cuda_std_kernels"]
            static STOP: u8;
        }
        let (start, stop) = ((&raw const START).expose_provenance(), (&raw const STOP).expose_provenance());
        let first = std::ptr::with_exposed_provenance::<Registered>(start);
        // SAFETY: between the two lie the values that `#[kernel]` put there, without gaps, as all have the same size
        // and alignment.
        unsafe { std::slice::from_raw_parts(first, (stop - start) / size_of::<Registered>()) }
    }
    #[cfg(not(target_os = "linux"))]
    &[]
}
