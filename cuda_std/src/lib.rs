//! The operations of a GPU kernel: thread indices, warp collectives, shared memory, atomics, asynchronous copies and
//! matrix products. One interface, two back ends:
//!
//! | back end | target | what an operation becomes |
//! | --- | --- | --- |
//! | `nvptx` | nvptx64-nvidia-cuda | an LLVM intrinsic or one line of PTX; everything inlines |
//! | [`emulator`] | every other target | one coroutine a thread, with a check of every access and every collective |
//!
//! A kernel is written once, marked [`kernel`](macro@kernel), and compiled for both. Only this crate and the output of
//! its macro contain code that depends on the target.
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
//!         // SAFETY: i < n, and the caller promises n values.
//!         unsafe { global::store(x.add(i as usize), 2.0 * global::load(x.add(i as usize))) }
//!     }
//! }
//!
//! let mut x = Buffer::from_slice(&[1.0f32, 2.0, 3.0]);
//! let launch = Double { x: x.as_mut_ptr(), n: 3 };
//! // SAFETY: `x` has the 3 values that `double` requires, and outlives the launch.
//! unsafe { emulator::launch(&Double::KERNEL, LaunchConfig::linear(1, 64), launch)? };
//! assert_eq!(x.to_vec(), [2.0, 4.0, 6.0]);
//! # Ok::<(), cuda_std::emulator::Violation>(())
//! ```
//!
//! # What a kernel may call
//!
//! A kernel may call `core` (except functions that print), crates without `std` and without allocation, and the items
//! below. All of them run on sm_80 and later, except [`cluster`], which needs sm_90, and
//! [`wgmma`], which needs sm_90a. The page of each function names its
//! instruction.
//!
//! | module | for | items | PTX |
//! | --- | --- | --- | --- |
//! | [`thread`] | Indices of the thread and its block, barriers, fences | [`thread_idx_x`](thread::thread_idx_x), [`thread_idx_y`](thread::thread_idx_y), [`thread_idx_z`](thread::thread_idx_z), [`block_idx_x`](thread::block_idx_x), [`block_idx_y`](thread::block_idx_y), [`block_idx_z`](thread::block_idx_z), [`block_dim_x`](thread::block_dim_x), [`block_dim_y`](thread::block_dim_y), [`block_dim_z`](thread::block_dim_z), [`grid_dim_x`](thread::grid_dim_x), [`grid_dim_y`](thread::grid_dim_y), [`grid_dim_z`](thread::grid_dim_z), [`sync_threads`](thread::sync_threads), [`sync_threads_or`](thread::sync_threads_or), [`fence`](thread::fence), [`fence_block`](thread::fence_block) | `%tid`, `%ctaid`, `%ntid`, `%nctaid`, `bar.sync`, `barrier.red`, `fence` |
//! | [`global`] | Loads and stores of global memory, and vectors that move as one access | [`load`](global::load), [`load_nc`](global::load_nc), [`prefetch`](global::prefetch), [`store`](global::store), [`load_volatile`](global::load_volatile), [`store_volatile`](global::store_volatile), [`U32x2`](global::U32x2), [`U32x4`](global::U32x4), [`F32x2`](global::F32x2), [`F32x4`](global::F32x4) | `ld.global`, `st.global`, `prefetch` |
//! | [`ptr`] | Arguments that point into global memory | [`Ptr`], [`PtrMut`] | |
//! | [`shared`] | Shared memory of a block | [`SharedPtr`](shared::SharedPtr), [`dynamic`](shared::dynamic), [`static_array`](shared::static_array), [`shared_array!`] | `ld.shared`, `st.shared` |
//! | [`atomic`] | Atomic operations on global and shared memory | [`add_u32`](atomic::add_u32), [`add_u64`](atomic::add_u64), [`min_u32`](atomic::min_u32), [`max_u32`](atomic::max_u32), [`min_u64`](atomic::min_u64), [`max_u64`](atomic::max_u64), [`or_u32`](atomic::or_u32), [`exchange_u32`](atomic::exchange_u32), [`add_f32`](atomic::add_f32), [`cas_u32`](atomic::cas_u32), [`shared_add_u32`](atomic::shared_add_u32), [`shared_min_u32`](atomic::shared_min_u32), [`shared_max_u32`](atomic::shared_max_u32), [`shared_min_u64`](atomic::shared_min_u64), [`shared_cas_u32`](atomic::shared_cas_u32), [`shared_load_u32`](atomic::shared_load_u32), [`shared_load_u32x4`](atomic::shared_load_u32x4) | `atom.global`, `atom.shared` |
//! | [`warp`] | Lanes of a warp: shuffles, votes, matches | [`WARP_SIZE`](warp::WARP_SIZE), [`FULL_MASK`](warp::FULL_MASK), [`lane_id`](warp::lane_id), [`warp_id`](warp::warp_id), [`sync_warp`](warp::sync_warp), [`Shuffle`](warp::Shuffle), [`shuffle_xor`](warp::shuffle_xor), [`shuffle_up`](warp::shuffle_up), [`shuffle_down`](warp::shuffle_down), [`shuffle_idx`](warp::shuffle_idx), [`any`](warp::any), [`all`](warp::all), [`ballot`](warp::ballot), [`match_any`](warp::match_any), [`match_all`](warp::match_all) | `%laneid`, `bar.warp.sync`, `shfl.sync`, `vote.sync`, `match.any.sync` |
//! | [`warp`] | Reductions of 32-bit integers over the lanes of a mask | [`Reduce`](warp::Reduce), [`reduce_add`](warp::reduce_add), [`reduce_min`](warp::reduce_min), [`reduce_max`](warp::reduce_max), [`reduce_and`](warp::reduce_and), [`reduce_or`](warp::reduce_or), [`reduce_xor`](warp::reduce_xor) | `redux.sync` |
//! | [`warp`] | Reductions, prefix sums and extremes of any number over the full warp | [`Sum`](warp::Sum), [`MinMax`](warp::MinMax), [`TotalOrder`](warp::TotalOrder), [`Exchange`](warp::Exchange), [`butterfly`](warp::butterfly), [`butterfly_sum`](warp::butterfly_sum), [`butterfly_min`](warp::butterfly_min), [`butterfly_max`](warp::butterfly_max), [`butterfly_min_max`](warp::butterfly_min_max), [`butterfly_argmin`](warp::butterfly_argmin), [`butterfly_argmax`](warp::butterfly_argmax), [`inclusive_sum`](warp::inclusive_sum), [`exclusive_sum`](warp::exclusive_sum), [`pair_swap`](warp::pair_swap), [`even_odd_max_min`](warp::even_odd_max_min) | `shfl.sync` |
//! | [`math`] | Arithmetic with equal results, bit for bit, on every back end; conversions of 16-bit floats; sums of products of bytes | [`mul_add_f32`](math::mul_add_f32), [`mul_add_f64`](math::mul_add_f64), [`min_f32`](math::min_f32), [`max_f32`](math::max_f32), [`min_f64`](math::min_f64), [`max_f64`](math::max_f64), [`sqrt_f32`](math::sqrt_f32), [`sqrt_f64`](math::sqrt_f64), [`f16_to_f32`](math::f16_to_f32), [`add_f16x2`](math::add_f16x2), [`fma_f16x2`](math::fma_f16x2), [`dot4_i8`](math::dot4_i8), [`dot4_u8`](math::dot4_u8), [`f32_to_f16`](math::f32_to_f16), [`f32_to_bf16`](math::f32_to_bf16), [`f32_to_tf32`](math::f32_to_tf32), [`bf16_to_f32`](math::bf16_to_f32) | `fma.rn`, `min`, `max`, `sqrt.rn`, `cvt`, `add.rn.f16x2`, `fma.rn.f16x2`, `dp4a` |
//! | [`async_copy`] | Copies from global to shared memory that run while the thread continues | [`copy_4`](async_copy::copy_4), [`copy_8`](async_copy::copy_8), [`copy_16`](async_copy::copy_16), [`copy_4_zfill`](async_copy::copy_4_zfill), [`copy_8_zfill`](async_copy::copy_8_zfill), [`copy_16_zfill`](async_copy::copy_16_zfill), [`commit`](async_copy::commit), [`wait_group`](async_copy::wait_group), [`wait_all`](async_copy::wait_all) | `cp.async` |
//! | [`mma`] | Matrix products of a warp | [`ldmatrix_x2`](mma::ldmatrix_x2), [`ldmatrix_x4`](mma::ldmatrix_x4), [`ldmatrix_x4_trans`](mma::ldmatrix_x4_trans), [`mma_m16n8k16_f16`](mma::mma_m16n8k16_f16), [`mma_m16n8k16_bf16`](mma::mma_m16n8k16_bf16), [`mma_m16n8k8_tf32`](mma::mma_m16n8k8_tf32), [`mma_m16n8k32_s8`](mma::mma_m16n8k32_s8), [`mma_m16n8k32_u8`](mma::mma_m16n8k32_u8), [`mma_m16n8k256_b1`](mma::mma_m16n8k256_b1) | `ldmatrix`, `mma.sync` |
//! | [`cluster`] | Blocks that access each other's shared memory | [`block_rank`](cluster::block_rank), [`block_count`](cluster::block_count), [`sync`](cluster::sync), [`PeerPtr`](cluster::PeerPtr), [`peer`](cluster::peer), [`add_u32`](cluster::add_u32) | `%cluster_ctarank`, `barrier.cluster`, `mapa`, `ld.shared::cluster`, `st.shared::cluster`, `atom.shared::cluster` |
//! | [`wgmma`] | Matrix products of four warps | [`Fragment`](wgmma::Fragment), [`publish`](wgmma::publish), [`start_f16`](wgmma::start_f16), [`start_s8`](wgmma::start_s8), [`start_u8`](wgmma::start_u8), [`start_b1`](wgmma::start_b1), [`wait`](wgmma::wait) | `wgmma.mma_async`, `fence.proxy.async` |
//! | | A loop whose counter is a constant in each turn | [`unroll`](fn@unroll) | |
//!
//! Functions that only `std` has, such as `sin` or `powi`, do not exist on the GPU. The host compiles a call of such a
//! function; the device build fails, and `cuda_builder` prints what to use instead. `core` has these floating-point
//! functions: `abs`, `signum`, `copysign`, `recip`, `clamp`, `to_bits`, `from_bits`, `total_cmp`, `min` and `max`.
//! `f32::min` and `f32::max` do not order −0 and +0; [`math::min_f32`] and [`math::max_f32`] do.
//!
//! # Who must arrive
//!
//! A *collective* is an operation that several lanes of a warp perform together. Each takes a lane mask and is
//! performed by exactly the lanes it names: all of them must reach it, with the same operation and the same mask, and a
//! lane that is not named must not. On the GPU, breaking this is undefined; the emulator stops with the thread and the
//! source line.
#![cfg_attr(target_arch = "nvptx64", no_std)]
#![cfg_attr(
    target_arch = "nvptx64",
    feature(abi_unadjusted, asm_experimental_arch, link_llvm_intrinsics, stdarch_nvptx)
)]
#![cfg_attr(
    target_arch = "nvptx64",
    expect(internal_features, reason = "warp-wide operations must be LLVM intrinsics: asm is not convergent")
)]

// The output of #[kernel] refers to this crate as `cuda_std`. That name must also resolve inside this crate.
extern crate self as cuda_std;

pub use cuda_std_macros::{device_inline, group, kernel};

pub mod async_copy;
pub mod atomic;
pub mod cluster;
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

/// The place of an operation in the kernel's source. The emulator reports it; the device build ignores it.
type Site = &'static core::panic::Location<'static>;

/// The form of `register` without the feature `kernels-by-name`: it does nothing.
#[cfg(not(any(feature = "kernels-by-name", target_arch = "nvptx64")))]
#[doc(hidden)]
#[macro_export]
macro_rules! no_register {
    ($kernel:expr) => {};
}

/// Items that the output of [`kernel`](macro@kernel) and [`group`](macro@group) uses. They are not part of the
/// interface.
#[doc(hidden)]
pub mod private {
    #[cfg(not(any(feature = "kernels-by-name", target_arch = "nvptx64")))]
    pub use crate::no_register as register;
    #[cfg(all(feature = "kernels-by-name", not(target_arch = "nvptx64")))]
    pub use crate::{emulator::Registered, register};
    #[cfg(target_arch = "nvptx64")]
    pub use core::arch::global_asm;
    pub use cuda_std_macros::{kernel_of_groups, kernels};

    /// A struct of arguments or a group that has a field number `N`.
    pub trait Field<const N: usize> {
        /// The type of the field, for modules that do not import it.
        type Type;
    }
}

/// The example of the package's page, as a doctest.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub struct Readme;
