//! The only functions that open devices. They also define the fallback from a GPU to the CPU.

use super::runtime::Runtime;
use crate::{Device, Error, Result};

/// Opens GPU `index`. Later calls return the same device.
///
/// # Errors
/// [`Error::NoDevice`] if there is no usable GPU or the build has no feature `cuda`, [`Error::NoSuchDevice`], [`Error::DeviceTooOld`],
/// [`Error::Driver`].
pub(crate) fn open_gpu(index: usize) -> Result<Runtime> {
    #[cfg(feature = "cuda")]
    return super::cuda::open(index).map(Runtime::Cuda);
    #[cfg(not(feature = "cuda"))]
    {
        let _ = index;
        Err(Error::NoDevice { reason: crate::NoDeviceReason::FeatureOff })
    }
}

/// Resolves `device` and opens its runtime, which is `None` for the CPU. [`Device::Auto`] becomes the first GPU, or the CPU if there is no
/// usable GPU.
///
/// # Errors
/// As [`open_gpu`].
pub(crate) fn open(device: Device) -> Result<(Device, Option<Runtime>)> {
    match device {
        Device::Cpu => Ok((device, None)),
        Device::Emulator => Ok((device, Some(Runtime::EMULATOR))),
        Device::Gpu(index) => Ok((device, Some(open_gpu(index)?))),
        Device::Auto => match open_gpu(0) {
            Ok(runtime) => Ok((Device::Gpu(0), Some(runtime))),
            Err(Error::NoDevice { .. } | Error::DeviceTooOld { .. }) => Ok((Device::Cpu, None)),
            Err(error) => Err(error),
        },
    }
}

/// Opens devices that can copy from each other's memory: all GPUs, or all emulators. `None` for any other combination.
///
/// # Errors
/// As [`open_gpu`].
pub(crate) fn open_together(devices: &[Device]) -> Result<Option<Vec<Runtime>>> {
    if devices.iter().all(|&device| device == Device::Emulator) {
        return Ok(Some(vec![Runtime::EMULATOR; devices.len()]));
    }
    let gpus = devices.iter().map(|&device| if let Device::Gpu(index) = device { Some(index) } else { None });
    match gpus.collect::<Option<Vec<usize>>>() {
        Some(gpus) => gpus.into_iter().map(open_gpu).collect::<Result<_>>().map(Some),
        None => Ok(None),
    }
}
