//! How the programs of warpann measure. Items may change in any version.
//!
//! | module | content |
//! |---|---|
//! | [`arrivals`] | requests that arrive at a rate, and the latencies of their answers |
//! | [`times`] | repeated runs and their statistics |
//! | [`searches`] | searches in an index: their times and their results |
//! | [`work`] | bytes and operations that every implementation needs |
//! | [`cost_model`] | the cost of WarpSelect, as the paper's appendix derives it |

pub mod arrivals;
pub mod cost_model;
pub mod searches;
pub mod times;
pub mod work;

pub use searches::{Searches, nearest_in};
pub use times::{Times, timed};
pub use work::Work;

use warpann::device::info;
use warpann::{Device, Error, Result};

/// The GPU that `device` means; none if that is the CPU or the emulator.
///
/// # Errors
/// As [`info::devices`], unless there is no GPU.
pub fn gpu_of(device: Device) -> Result<Option<usize>> {
    match device {
        Device::Gpu(index) => Ok(Some(index)),
        Device::Auto => match info::devices() {
            Ok(_) => Ok(Some(0)),
            Err(Error::NoDevice { .. }) => Ok(None),
            Err(error) => Err(error),
        },
        _ => Ok(None),
    }
}
