//! Where an index lives and searches: the CPU, a GPU, or the checking emulator of the GPU.

use std::fmt;
use std::str::FromStr;

/// Where an index keeps its vectors and answers searches. Results are the same bits on all of them.
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
pub enum Device {
    /// The first usable GPU, or the CPU where there is none: no driver, no device, or a device that is too old. A driver that is there and
    /// does not work is an error ([`Error::Driver`](crate::Error::Driver)), not the CPU.
    #[default]
    Auto,
    /// The CPU: every thread of rayon's pool, with the widest SIMD the processor has.
    Cpu,
    /// The CUDA device of this index, in the driver's numbering.
    Gpu(usize),
    /// The GPU's kernels on the checking emulator: every thread, shuffle and barrier is carried out and checked on the
    /// CPU. Thousands of times slower than [`Device::Cpu`]; meant for tests of kernels, not for searching.
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
    type Err = ParseDeviceError;

    fn from_str(text: &str) -> Result<Self, ParseDeviceError> {
        match text {
            "auto" => Ok(Self::Auto),
            "cpu" => Ok(Self::Cpu),
            "gpu" => Ok(Self::Gpu(0)),
            "emulator" => Ok(Self::Emulator),
            _ => text
                .strip_prefix("gpu:")
                .and_then(|index| index.parse().ok())
                .map(Self::Gpu)
                .ok_or_else(|| ParseDeviceError { text: text.to_owned() }),
        }
    }
}

/// A text that names no device.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{text}' names no device; known: auto, cpu, gpu, gpu:N, emulator")]
pub struct ParseDeviceError {
    text: String,
}

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
