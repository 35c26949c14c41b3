//! The only functions that open devices. They also define the fallback from a GPU to the CPU.

use super::runtime::Runtime;
use crate::simd::Isa;
use crate::{Device, Error, Result, events};

/// Opens GPU `index`. Later calls return the same device.
///
/// # Errors
/// [`Error::NoDevice`] if there is no such GPU, it is not usable, or the build has no feature `cuda`;
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

/// The emulator, if this program has kernels for it.
///
/// # Errors
/// [`Error::NoDevice`] if the build has no feature `emulator`.
fn open_emulator() -> Result<Runtime> {
    // Any crate of the program may have turned the feature on.
    match cuda_std::emulator::COMPILED {
        true => Ok(Runtime::EMULATOR),
        false => Err(Error::NoDevice { reason: crate::NoDeviceReason::EmulatorOff }),
    }
}

/// Describes the CPU as the device of an index: `cpu, 8 threads, avx512`. `isa` are the instructions of the index. A
/// build that cannot use any GPU says so.
pub(crate) fn describe_cpu(isa: Option<Isa>) -> String {
    let isa = isa.map_or_else(String::new, |isa| format!(", {}", isa.name()));
    let off = if cfg!(feature = "cuda") { "" } else { " (the feature cuda is off)" };
    format!("cpu, {} threads{isa}{off}", rayon::current_num_threads())
}

/// Resolves `device` and opens its runtime, which is `None` for the CPU. [`Device::Auto`] becomes the first GPU, or the
/// CPU if there is no usable GPU.
///
/// # Errors
/// As [`open_gpu`] and [`open_emulator`].
pub(crate) fn open(device: Device) -> Result<(Device, Option<Runtime>)> {
    match device {
        Device::Cpu => Ok((device, None)),
        Device::Emulator => Ok((device, Some(open_emulator()?))),
        Device::Gpu(index) => Ok((device, Some(open_gpu(index)?))),
        Device::Auto => match open_gpu(0) {
            Ok(runtime) => {
                events::device_chosen(Device::Gpu(0), None);
                Ok((Device::Gpu(0), Some(runtime)))
            }
            Err(reason @ Error::NoDevice { .. }) => {
                events::device_chosen(Device::Cpu, Some(&reason));
                Ok((Device::Cpu, None))
            }
            Err(error) => Err(error),
        },
    }
}

/// Opens devices that can copy from each other's memory: all GPUs, or all emulators. `None` for any other combination.
///
/// # Errors
/// As [`open_gpu`] and [`open_emulator`].
pub(crate) fn open_together(devices: &[Device]) -> Result<Option<Vec<Runtime>>> {
    if devices.iter().all(|&device| device == Device::Emulator) {
        return Ok(Some(vec![open_emulator()?; devices.len()]));
    }
    let gpus = devices.iter().map(|&device| if let Device::Gpu(index) = device { Some(index) } else { None });
    match gpus.collect::<Option<Vec<usize>>>() {
        Some(gpus) => gpus.into_iter().map(open_gpu).collect::<Result<_>>().map(Some),
        None => Ok(None),
    }
}
