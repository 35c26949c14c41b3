//! Devices: what host code launches on, whatever it computes. Nothing here knows an algorithm.
//!
//! | file | what |
//! |---|---|
//! | `runtime` | memory, streams, copies, launches: what a device offers; scratch lanes |
//! | `cuda` | the CUDA driver as a device (feature `cuda`) |
//! | `driver` | the driver's functions, declared (feature `cuda`) |
//! | `emulated` | the checking emulator of `cuda_std` |
//! | `tiling` | rows to the device and results back, in batches that fit a budget |
//! | [`info`] | what this machine and this build have |

#[cfg(feature = "cuda")]
pub(crate) mod cuda;
#[cfg(feature = "cuda")]
mod driver;
pub(crate) mod emulated;
pub mod info;
pub(crate) mod runtime;
pub(crate) mod tiling;
