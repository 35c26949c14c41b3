//! The device under measurement: its name, and the rate at which it reads memory.

use std::time::Instant;

use rayon::prelude::*;
use warpann::device::info;
use warpann::{Device, Error, NoDeviceReason};
use warpann_measure::gpu_of;

use crate::Outcome;

/// The device under measurement.
#[derive(Debug)]
pub struct Machine {
    /// GPU index; `None` is the CPU.
    pub gpu: Option<usize>,
    /// Product name of the device, with the number of threads for the CPU.
    pub name: String,
    /// Version of the GPU's driver; empty for the CPU.
    pub driver: String,
    /// Bytes that the device reads per second in this run: all multiprocessors, or all threads of the CPU, read a
    /// gigabyte and do nothing else.
    pub bytes_per_second: f64,
}

impl Machine {
    /// Opens the device and measures its memory. With `quick`, it reads less.
    pub fn open(device: Device, quick: bool) -> Outcome<Self> {
        let gpu = gpu_of(device)?;
        let bytes = if quick { 16 << 20 } else { 1 << 30 };
        match gpu {
            Some(index) => Self::open_gpu(index, bytes),
            None => {
                let cpu = info::cpu();
                let model = cpu.model.unwrap_or_else(|| "CPU".into());
                Ok(Self {
                    gpu: None,
                    name: format!("{model}, {} threads", cpu.threads),
                    driver: String::new(),
                    bytes_per_second: read_rate(bytes),
                })
            }
        }
    }

    /// The device for the library.
    pub fn device(&self) -> Device {
        self.gpu.map_or(Device::Cpu, Device::Gpu)
    }

    /// Free bytes of GPU memory; `None` on the CPU, or if the driver does not report them.
    pub fn free_memory(&self) -> Option<u64> {
        info::devices().ok()?.get(self.gpu?)?.memory_free
    }

    /// Bytes in use on the GPU, or by this process, where the system tells.
    pub fn memory_in_use(&self) -> Option<u64> {
        match self.gpu {
            Some(gpu) => Some(info::devices().ok()?.get(gpu)?.memory_total - self.free_memory()?),
            None => resident_memory(),
        }
    }

    /// Milliseconds to read `bytes` once.
    pub fn floor_ms(&self, bytes: f64) -> f64 {
        1e3 * bytes / self.bytes_per_second
    }

    #[cfg(feature = "cuda")]
    fn open_gpu(index: usize, bytes: usize) -> Outcome<Self> {
        let devices = info::devices()?;
        let available = devices.len();
        let Some(info) = devices.into_iter().nth(index) else {
            return Err(Error::NoDevice { reason: NoDeviceReason::NoSuchDevice { asked: index, available } }.into());
        };
        let columns = 1 << 20;
        let keys = warpann::internals::SelectionBench::new(index, vec![0.0; columns], bytes / 4 / columns, columns)?;
        let seconds = warpann_measure::Times::new(keys.read(9)?).median() / 1e3;
        Ok(Self {
            gpu: Some(index),
            name: info.name,
            driver: kernel_driver().unwrap_or_else(|| format!("CUDA {}", info.driver)),
            bytes_per_second: bytes as f64 / seconds,
        })
    }

    #[cfg(not(feature = "cuda"))]
    fn open_gpu(_: usize, _: usize) -> Outcome<Self> {
        Err(Error::NoDevice { reason: NoDeviceReason::FeatureOff }.into())
    }
}

/// Bytes of memory of this process, if the system reports them.
pub fn resident_memory() -> Option<u64> {
    memory("VmRSS:")
}

/// The most bytes of memory that this process had, if the system reports them.
pub fn peak_memory() -> Option<u64> {
    memory("VmHWM:")
}

/// A size in the status of this process.
fn memory(name: &str) -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kib| kib << 10)
}

/// Version of NVIDIA's kernel module, where the system tells it: the first word of digits and dots.
#[cfg(feature = "cuda")]
fn kernel_driver() -> Option<String> {
    let text = std::fs::read_to_string("/proc/driver/nvidia/version").ok()?;
    let version = |word: &&str| word.contains('.') && word.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    text.split_whitespace().find(version).map(str::to_owned)
}

/// Bytes read per second by all threads adding up `bytes`: the best of five runs, because other programs also use the
/// CPU's memory.
fn read_rate(bytes: usize) -> f64 {
    let words = vec![1u64; bytes / size_of::<u64>()];
    let mut best = f64::INFINITY;
    for _ in 0..5 {
        let start = Instant::now();
        let sums = words.par_chunks(1 << 17).map(|piece| piece.iter().fold(0u64, |sum, &word| sum.wrapping_add(word)));
        std::hint::black_box(sums.reduce(|| 0, u64::wrapping_add));
        best = best.min(start.elapsed().as_secs_f64());
    }
    (words.len() * size_of::<u64>()) as f64 / best
}
