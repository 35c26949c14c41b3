//! The GPU back end and its emulator: one host code, generic over what a device offers.
//!
//! | file | what |
//! |---|---|
//! | `runtime` | memory, streams, copies, launches: what a device offers; scratch lanes |
//! | `cuda` | the CUDA driver, through cust (feature `cuda`) |
//! | `emulated` | the checking emulator of `cuda_std` |
//! | `select` | k-selection: plans and launches |
//! | `dispatch` | k-selection: which method for which shape |
//! | `exact` | exact search of one block of rows on the device |
//! | `flat` | the flat index: where rows live, tiling over queries and blocks, two lanes at once |
//! | `hostile` | tests: rows made to defeat k-selection |
//! | `sampling` | tests: how often a sample misleads |

#[cfg(feature = "cuda")]
pub(crate) mod cuda;
pub(crate) mod dispatch;
pub(crate) mod emulated;
mod exact;
mod flat;
#[cfg(test)]
mod hostile;
pub(crate) mod runtime;
#[cfg(test)]
mod sampling;
pub(crate) mod select;

use crate::flat::FlatBackend;
use crate::select::{Algorithm, Best, Key, Rows, Selection};
use crate::{Device, Element, Metric, Result};

/// Opens `device` (a GPU, the emulator, or for `Auto` the first GPU) and makes an empty flat index on it.
pub(crate) fn open_flat<T: Element>(
    device: Device,
    dim: usize,
    metric: Metric,
    budget: Option<u64>,
) -> Result<Box<dyn FlatBackend<T>>> {
    match device {
        Device::Emulator => Ok(Box::new(flat::FlatDevice::<T, _>::new(emulated::Emulator, dim, metric, budget)?)),
        Device::Gpu(index) => open_cuda(index, dim, metric, budget),
        Device::Auto | Device::Cpu => open_cuda(0, dim, metric, budget),
    }
}

#[cfg(feature = "cuda")]
fn open_cuda<T: Element>(
    index: usize,
    dim: usize,
    metric: Metric,
    budget: Option<u64>,
) -> Result<Box<dyn FlatBackend<T>>> {
    Ok(Box::new(flat::FlatDevice::<T, _>::new(cuda::open(index)?, dim, metric, budget)?))
}

#[cfg(not(feature = "cuda"))]
fn open_cuda<T: Element>(_: usize, _: usize, _: Metric, _: Option<u64>) -> Result<Box<dyn FlatBackend<T>>> {
    Err(crate::Error::NoDevice { reason: crate::NoDeviceReason::FeatureOff })
}

/// [`crate::select::select_k_with`] on a GPU or the emulator.
pub(crate) fn select_k<K: Key>(
    device: Device,
    rows: &Rows<'_, K>,
    best: Best,
    algorithm: Algorithm,
    selection: &mut Selection<K>,
) -> Result<()> {
    match device {
        Device::Emulator => select::select_from_host(&emulated::Emulator, rows, best, algorithm, selection),
        #[cfg(feature = "cuda")]
        Device::Gpu(index) => select::select_from_host(&cuda::open(index)?, rows, best, algorithm, selection),
        #[cfg(feature = "cuda")]
        Device::Auto | Device::Cpu => select::select_from_host(&cuda::open(0)?, rows, best, algorithm, selection),
        #[cfg(not(feature = "cuda"))]
        _ => Err(crate::Error::NoDevice { reason: crate::NoDeviceReason::FeatureOff }),
    }
}
