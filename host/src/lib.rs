//! warpann: GPU similarity search with kernels in pure Rust.

mod cpu;
pub mod device;
pub mod device_info;
pub mod element;
pub mod error;
pub mod flat;
mod gpu;
pub mod io;
#[cfg(feature = "cuda")]
pub mod measure;
pub mod metric;
pub mod neighbors;
pub mod select;

pub use device::Device;
pub use element::{Element, ElementType};
pub use error::{Error, FileDefect, NoDeviceReason, Result};
pub use flat::{FlatIndex, FlatIndexBuilder};
pub use metric::Metric;
pub use neighbors::{NONE, Neighbors};
