//! warpann: GPU similarity search with kernels in pure Rust.

pub mod element;
pub mod error;
pub mod io;
pub mod metric;

pub use element::{Element, ElementType};
pub use error::{Error, FileDefect, NoDeviceReason, Result};
pub use metric::Metric;
