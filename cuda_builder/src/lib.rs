//! Compiles a crate of GPU kernels to PTX, from a build script or from a tool.
//!
//! The interface is that of Rust-CUDA's `cuda_builder`. The compiler is stock rustc with its target
//! `nvptx64-nvidia-cuda`:
//!
//! ```no_run
//! use cuda_builder::{CudaBuilder, GpuArch};
//!
//! let out = std::path::PathBuf::from(std::env::var_os("OUT_DIR").unwrap()).join("kernels.ptx");
//! let info = CudaBuilder::new("../kernels-rs").arch(GpuArch::Sm80).copy_to(out).build()?;
//! println!("{} bytes of PTX", info.ptx.len());
//! # Ok::<(), cuda_builder::BuilderError>(())
//! ```
//!
//! # How the device build runs
//! The build is one `cargo rustc --crate-type cdylib` of the kernel crate, with `core` built from source. Three of its
//! settings are needed for correct code or for speed:
//! - the only crate type is `cdylib`: with a second one, link-time optimisation is silently off and calls to other
//!   crates stay unresolved;
//! - `-Zmir-enable-passes=-JumpThreading`: this pass duplicates convergent operations on GPU targets (rust-lang/rust
//!   issue 137086), so a warp shuffle after a branch would become two shuffles, one for each side;
//! - `-C llvm-args=-inline-threshold=10000000`: `#[inline(always)]` on closures is unstable on the host, and an array
//!   that is passed to a closure lies in local memory unless the closure is inlined.
//!
//! Unstable flags are unlocked by `RUSTC_BOOTSTRAP=1`, for the device build only. The build has a separate target
//! directory, and does not get the environment variables that cargo sets for build scripts.
//!
//! # Which compiler
//! [`DeviceCompiler::find`] selects it: an explicit setting, then the pinned rustup toolchain, then a system rustc with
//! library source. If there is none, the error has the commands that install one by rustup or on Debian.

mod builder;
mod compiler;
mod hints;
pub mod ptx;

pub use builder::{BuilderError, CudaBuilder, GpuArch, PtxInfo};
pub use compiler::{
    CompilerError, DEBIAN_COMMAND, DEBIAN_PACKAGES, DeviceCompiler, Environment, Library, MINIMUM_MINOR, Origin,
    RUSTUP_COMMAND,
};

/// The example of the package's page, as a doctest.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub struct Readme;
