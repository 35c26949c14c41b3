//! Compiles a crate of GPU kernels to PTX, from a build script or from a tool.
//!
//! The interface is Rust-CUDA's `cuda_builder`; what stands behind it is stock rustc and its `nvptx64-nvidia-cuda` target:
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
//! One `cargo rustc --crate-type cdylib` on the kernel crate, with `core` built from source. Three of its settings decide
//! whether the code is right, not only whether it is fast:
//! - the crate type is `cdylib` alone: with a second one link-time optimisation is silently off and calls into other crates
//!   stay unresolved;
//! - `-Zmir-enable-passes=-JumpThreading`: that pass still duplicates convergent operations on GPU targets (rust-lang/rust
//!   issue 137086), so a warp shuffle after a branch would become two shuffles, one for each side;
//! - `-C llvm-args=-inline-threshold=10000000`: `#[inline(always)]` on closures is unstable on the host, and an array handed to
//!   a closure that is not inlined lives in local memory.
//!
//! Unstable flags are unlocked by `RUSTC_BOOTSTRAP=1`, for the device build only. The build has its own target directory and
//! none of the environment that cargo gives to build scripts.
//!
//! # Which compiler
//! [`DeviceCompiler::find`] says: an explicit setting, the pinned rustup toolchain, then a system rustc with its own library
//! source. When there is none, the error holds the exact command for rustup and for Debian.

mod builder;
mod compiler;
mod hints;
pub mod ptx;

pub use builder::{BuilderError, CudaBuilder, GpuArch, PtxInfo};
pub use compiler::{
    CompilerError, DEBIAN_COMMAND, DEBIAN_PACKAGES, DeviceCompiler, Environment, Library, MINIMUM_MINOR, Origin,
    RUSTUP_COMMAND,
};
