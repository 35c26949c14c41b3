//! The devices of an index: the CPU, a GPU, or the checking emulator of the GPU.

use std::fmt;
use std::str::FromStr;

use crate::UnknownName;
use crate::serialised::serialised_as_text;

/// The device on which an index keeps its vectors and searches. Results have the same bits on all devices.
///
/// As text (command line, configuration): `auto`, `cpu`, `gpu` (the same as `gpu:0`), `gpu:N`, `emulator`.
///
/// ```
/// use warpann::Device;
///
/// assert_eq!("gpu:1".parse(), Ok(Device::Gpu(1)));
/// assert_eq!(Device::Gpu(1).to_string(), "gpu:1");
/// assert_eq!("gpu".parse(), Ok(Device::Gpu(0)));
/// assert!("tpu".parse::<Device>().is_err());
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Device {
    /// The first usable GPU, or the CPU if there is none: no driver, no device, or only devices that are too old. A
    /// driver that is installed but fails is an error ([`Error::Driver`](crate::Error::Driver)).
    ///
    /// If the feature `cuda` is off, this is the CPU. The description of the device
    /// ([`FlatIndex::device`](crate::FlatIndex::device)) and one event of a process ([`device`](crate::device)) then
    /// say that the feature is off.
    #[default]
    Auto,
    /// The CPU: all threads of the rayon pool, with the widest SIMD instructions of the processor.
    Cpu,
    /// The CUDA device with this number, in the driver's numbering.
    ///
    /// If the feature `cuda` is off, opening it is an error that names the feature
    /// ([`NoDeviceReason::FeatureOff`](crate::NoDeviceReason::FeatureOff)).
    Gpu(usize),
    /// The checking emulator: the CPU runs the GPU's kernels and checks every thread, shuffle and barrier. It is
    /// thousands of times slower than [`Device::Cpu`], and is for tests of kernels only.
    ///
    /// If the feature `emulator` is off, opening it is an error that names the feature
    /// ([`NoDeviceReason::EmulatorOff`](crate::NoDeviceReason::EmulatorOff)).
    Emulator,
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Cpu => f.write_str("cpu"),
            Self::Gpu(index) => write!(f, "gpu:{index}"),
            Self::Emulator => f.write_str("emulator"),
        }
    }
}

impl FromStr for Device {
    type Err = UnknownName;

    fn from_str(text: &str) -> Result<Self, UnknownName> {
        match text {
            "auto" => Ok(Self::Auto),
            "cpu" => Ok(Self::Cpu),
            "gpu" => Ok(Self::Gpu(0)),
            "emulator" => Ok(Self::Emulator),
            _ => text
                .strip_prefix("gpu:")
                .and_then(|index| index.parse().ok())
                .map(Self::Gpu)
                .ok_or_else(|| UnknownName::new(text, "a device", &["auto", "cpu", "gpu", "gpu:N", "emulator"])),
        }
    }
}

serialised_as_text!(Device);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_round_trips() {
        for device in [Device::Auto, Device::Cpu, Device::Gpu(0), Device::Gpu(17), Device::Emulator] {
            assert_eq!(device.to_string().parse(), Ok(device));
        }
    }

    #[test]
    fn other_texts_are_refused_by_name() {
        for text in ["", "GPU", "gpu:", "gpu:-1", "gpu: 1", "gpu:99999999999999999999", "cuda", "cpu:0"] {
            let error = text.parse::<Device>().unwrap_err();
            assert!(error.to_string().contains(&format!("'{text}'")), "{error}");
        }
    }
}
