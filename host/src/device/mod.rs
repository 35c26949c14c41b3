//! Devices: memory, streams, copies and launches for all algorithms. No file here depends on an algorithm.
//!
//! | file | content |
//! |---|---|
//! | `open` | the only functions that open devices |
//! | `runtime` | a GPU or the emulator: memory, streams, copies, launches |
//! | `backend` | the trait that both implement |
//! | `cuda` | the CUDA driver as a device (feature `cuda`) |
//! | `driver` | declarations of the driver's functions (feature `cuda`) |
//! | `emulated` | the checking emulator of `cuda_std` as a device |
//! | `queue` | the receiver of launches: a stream, or a check of the launches |
//! | `limits` | limits that determine the shapes of launches |
//! | `scratch` | layouts of scratch memory |
//! | `lanes` | streams with scratch memory, kept for the next search |
//! | `tiling` | tiles of rows that fit a budget of device memory |
//! | [`info`] | CPU, devices and kernel modules, for reports |

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
