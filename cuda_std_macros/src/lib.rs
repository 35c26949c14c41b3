//! `#[kernel]`: marks a function that the GPU and the emulator can launch. Documented at `cuda_std::kernel`.

mod attribute;
mod expand;
mod signature;

use proc_macro::TokenStream;

/// Marks an `unsafe fn` as a kernel.
///
/// ```
/// # use cuda_std::{global, kernel, thread};
/// /// Adds one to `n` values.
/// ///
/// /// # Safety
/// /// `x` points to `n` values in global memory.
/// #[kernel(max_threads = 256, min_blocks = 2)]
/// pub unsafe fn increment(x: *mut f32, n: u32) {
///     let i = thread::block_idx_x() * thread::block_dim_x() + thread::thread_idx_x();
///     if i < n {
///         // SAFETY: i < n.
///         unsafe { global::store(x.add(i as usize), global::load(x.add(i as usize)) + 1.0) }
///     }
/// }
/// assert_eq!(INCREMENT.name(), "increment");
/// assert_eq!(INCREMENT.max_threads(), Some(256));
/// ```
///
/// # What it makes
/// - For the GPU: an entry point of the function's name, plus, as a comment in the PTX, the launch bounds
///   (`// warpann.kernel increment maxntid=256 minnctapersm=2`), which `cuda_builder` turns into directives.
/// - Elsewhere: the function as it stands, and a constant of its name in capitals, a `launch::Kernel` typed by the
///   parameters. One launch call with checked argument types serves the GPU and the emulator.
///
/// A crate with kernels starts with the one line that its device build needs, as entry points and the comment are behind
/// unstable features of the compiler (the host build ignores it):
///
/// ```text
/// #![cfg_attr(target_arch = "nvptx64", no_std, feature(abi_ptx, asm_experimental_arch))]
/// ```
///
/// # What it accepts
/// - Parameters are raw pointers, integers (`u8` .. `u64`, `i8` .. `i64`, `usize`), `f32` and `f64`, by name; at most 26.
///   No result, no generics.
/// - `max_threads = N`: no launch has more threads a block (the compiler may then use more registers).
///   `min_blocks = M`, with `max_threads` only: registers are limited so that M blocks fit a multiprocessor.
/// - `arch = "sm_90a"`: the kernel uses what only that architecture has (`wgmma`). Its module is for that one, and another device
///   refuses it; whoever launches it asks the device first.
/// - A kernel may come out of `macro_rules!` that passes the name and the bounds.
///
/// A wrong argument type does not compile:
///
/// ```compile_fail,E0308
/// # use cuda_std::{emulator, kernel, launch::LaunchConfig};
/// /// # Safety
/// /// None needed.
/// #[kernel]
/// pub unsafe fn idle(_x: *const f32, _n: u32) {}
///
/// let config = LaunchConfig { grid: [1, 1, 1], block: [32, 1, 1], shared_bytes: 0 };
/// // SAFETY: `idle` touches nothing.
/// unsafe { emulator::launch(&IDLE, config, (std::ptr::null::<f64>(), 1)) };
/// ```
///
/// Nor does a parameter that is neither a pointer nor a scalar:
///
/// ```compile_fail
/// # use cuda_std::kernel;
/// /// # Safety
/// /// None needed.
/// #[kernel]
/// pub unsafe fn takes_slice(_x: &[f32]) {}
/// ```
///
/// Nor a result:
///
/// ```compile_fail
/// # use cuda_std::kernel;
/// /// # Safety
/// /// None needed.
/// #[kernel]
/// pub unsafe fn returns(n: u32) -> u32 { n }
/// ```
///
/// Nor an architecture that has no such name:
///
/// ```compile_fail
/// # use cuda_std::kernel;
/// /// # Safety
/// /// None needed.
/// #[kernel(arch = "hopper")]
/// pub unsafe fn for_hopper(_n: u32) {}
/// ```
///
/// Nor a safe function: what a launch must satisfy is for its documentation to say.
///
/// ```compile_fail
/// # use cuda_std::kernel;
/// #[kernel]
/// pub fn safe(_n: u32) {}
/// ```
#[proc_macro_attribute]
pub fn kernel(attribute: TokenStream, item: TokenStream) -> TokenStream {
    let bounds = syn::parse_macro_input!(attribute as attribute::Bounds);
    let function = syn::parse_macro_input!(item as syn::ItemFn);
    expand::kernel(&bounds, &function).unwrap_or_else(syn::Error::into_compile_error).into()
}
