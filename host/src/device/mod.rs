//! Devices: what host code launches on, whatever it computes. Nothing here knows an algorithm.
//!
//! | file | what |
//! |---|---|
//! | `open` | the one place that opens devices |
//! | `runtime` | a GPU or the emulator: memory, streams, copies, launches |
//! | `backend` | what either implements |
//! | `cuda` | the CUDA driver as a device (feature `cuda`) |
//! | `driver` | the driver's functions, declared (feature `cuda`) |
//! | `emulated` | the checking emulator of `cuda_std` |
//! | `queue` | where launches go |
//! | `limits` | what launches are shaped by |
//! | `scratch` | device memory that a plan lays out |
//! | `lanes` | streams with scratch, kept for the next search |
//! | `tiling` | rows to the device and results back, in batches that fit a budget |
//! | [`info`] | what this machine and this build have |

pub(crate) mod backend;
#[cfg(feature = "cuda")]
pub(crate) mod cuda;
#[cfg(feature = "cuda")]
mod driver;
mod emulated;
pub mod info;
pub(crate) mod lanes;
pub(crate) mod limits;
pub(crate) mod open;
pub(crate) mod queue;
pub(crate) mod runtime;
pub(crate) mod scratch;
pub(crate) mod tiling;
