//! What a GPU kernel may call: thread indices, warp collectives, shared memory, atomics, asynchronous copies and
//! matrix products. One interface, two back ends:
//!
//! | back end | target | what an operation becomes |
//! | --- | --- | --- |
//! | `nvptx` | nvptx64-nvidia-cuda | an LLVM intrinsic or one line of PTX; everything inlines |
//! | [`emulator`] | every other target | one coroutine a thread, with a check of every access and every collective |
//!
//! A kernel is written once, marked [`kernel`](macro@kernel), and compiled for both. Nothing but this crate (and the
//! output of its macro) asks for the target.
//!
//! ```
//! use cuda_std::{PtrMut, emulator::{self, Buffer}, global, kernel, launch::LaunchConfig, thread};
//!
//! /// Doubles `n` values of `x`.
//! ///
//! /// # Safety
//! /// `x` points to `n` values in global memory.
//! #[kernel]
//! pub unsafe fn double(x: PtrMut<f32>, n: u32) {
//!     let i = thread::block_idx_x() * thread::block_dim_x() + thread::thread_idx_x();
//!     if i < n {
//!         // SAFETY: i < n, and the caller vouches for n values.
//!         unsafe { global::store(x.add(i as usize), 2.0 * global::load(x.add(i as usize))) }
//!     }
//! }
//!
//! let mut x = Buffer::from_slice(&[1.0f32, 2.0, 3.0]);
//! let launch = Double { x: x.as_mut_ptr(), n: 3 };
//! // SAFETY: the arguments are what `double` asks for, and `x` outlives the launch.
//! unsafe { emulator::launch(&Double::KERNEL, LaunchConfig::linear(1, 64), launch)? };
//! assert_eq!(x.to_vec(), [2.0, 4.0, 6.0]);
//! # Ok::<(), cuda_std::emulator::Violation>(())
//! ```
//!
//! # Who must arrive
//!
//! A *collective* is an operation that several lanes of a warp perform together. Each takes a lane mask and is performed
//! by exactly the lanes it names: all of them must reach it, with the same operation and the same mask, and a lane that
//! is not named must not. On the GPU, breaking this is undefined; the emulator stops with the thread and the source line.
#![cfg_attr(target_arch = "nvptx64", no_std)]
#![cfg_attr(
    target_arch = "nvptx64",
    feature(abi_unadjusted, asm_experimental_arch, link_llvm_intrinsics, stdarch_nvptx)
)]
#![cfg_attr(
    target_arch = "nvptx64",
    expect(internal_features, reason = "warp-wide operations must be LLVM intrinsics: asm is not convergent")
)]

// The name under which the output of #[kernel] refers to this crate must work inside it as well (doctests, tests).
extern crate self as cuda_std;

pub use cuda_std_macros::kernel;

pub mod async_copy;
pub mod atomic;
pub mod global;
pub mod launch;
pub mod math;
pub mod mma;
pub mod ptr;
pub mod shared;
pub mod thread;
mod unroll;
pub mod warp;
pub mod wgmma;

#[cfg(not(target_arch = "nvptx64"))]
pub mod emulator;
#[cfg(target_arch = "nvptx64")]
mod nvptx;

#[cfg(not(target_arch = "nvptx64"))]
use emulator::device as imp;
#[cfg(target_arch = "nvptx64")]
use nvptx as imp;

pub use ptr::{Ptr, PtrMut};
pub use unroll::unroll;

/// Where in the kernel's source an operation stands; the emulator reports it, the device drops it.
type Site = &'static core::panic::Location<'static>;

/// For the output of [`kernel`](macro@kernel) only.
#[doc(hidden)]
pub mod private {
    #[cfg(not(target_arch = "nvptx64"))]
    pub use crate::emulator::Registered;
    #[cfg(target_arch = "nvptx64")]
    pub use core::arch::global_asm;
}
