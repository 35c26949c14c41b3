//! The CPU and the CUDA devices of this machine, and the kernel modules of this build, for `warpann info` and reports
//! of measurements.

use crate::error::Result;
#[cfg(not(feature = "cuda"))]
use crate::error::{Error, NoDeviceReason};

/// A CUDA device, as its driver describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct DeviceInfo {
    /// Index for `Device::Gpu`, from 0.
    pub index: usize,
    /// Name of the product, as the driver reports it.
    pub name: String,
    /// Compute capability, major and minor.
    pub compute_capability: (i32, i32),
    /// Number of streaming multiprocessors.
    pub multiprocessors: u32,
    /// Size of the device memory in bytes.
    pub memory_total: u64,
    /// Free device memory in bytes at the time of the call; `None` if the driver refuses the query.
    pub memory_free: Option<u64>,
    /// CUDA version that the driver supports, such as `13.0`.
    pub driver: String,
    /// PTX targets of the kernels that this build loads on the device, such as `sm_80, sm_90, sm_90a`; `None` if the
    /// device is older than all targets.
    pub ptx_target: Option<String>,
}

/// A module of kernels in this build.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct ModuleInfo {
    /// Name of the kernel family, which is the module's name.
    pub family: String,
    /// PTX target of the module, such as `sm_80`.
    pub target: String,
    /// Names of the kernels in the module.
    pub kernels: Vec<String>,
    /// Size of the PTX text in bytes.
    pub bytes: usize,
}

/// The version of a build of the library, and the kernels in it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct BuildInfo {
    /// Version of the library.
    pub version: String,
    /// Compiler of the kernels, as it names itself; `None` without the `cuda` feature.
    pub compiler: Option<String>,
    /// PTX targets of the kernels, such as `sm_80`, `sm_90` and `sm_90a`; the driver compiles them for its device.
    pub ptx: Vec<String>,
    /// Assembler of the machine code, such as `ptxas 13.5, V13.5.37`; `None` without the `machine-code` feature.
    pub assembler: Option<String>,
    /// Architectures whose machine code the build has, such as `sm_80`, for that and the later ones of the generation.
    pub machine_code: Vec<String>,
}

/// The CPU that this program runs on.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct CpuInfo {
    /// Model name from `/proc/cpuinfo`; `None` on systems without it.
    pub model: Option<String>,
    /// Number of threads of the current rayon pool, which searches use.
    pub threads: usize,
    /// SIMD instruction sets of the CPU, among those that matter for vector search.
    pub simd: Vec<&'static str>,
}

/// The CPU of this machine. Never fails; properties that the system does not report are left out.
pub fn cpu() -> CpuInfo {
    let model = std::fs::read_to_string("/proc/cpuinfo").ok().and_then(|text| {
        let line = text.lines().find(|line| line.starts_with("model name"))?;
        Some(line.split_once(':')?.1.trim().to_owned())
    });
    CpuInfo { model, threads: rayon::current_num_threads(), simd: simd() }
}

#[cfg(target_arch = "x86_64")]
fn simd() -> Vec<&'static str> {
    macro_rules! detected {
        ($($name:tt)*) => {[$(($name, std::arch::is_x86_feature_detected!($name))),*]};
    }
    detected!("sse4.2" "avx" "f16c" "fma" "avx2" "avxvnni" "avx512f" "avx512bw" "avx512vnni" "avx512bf16" "avx512fp16")
        .into_iter()
        .filter_map(|(name, there)| there.then_some(name))
        .collect()
}

#[cfg(target_arch = "aarch64")]
fn simd() -> Vec<&'static str> {
    macro_rules! detected {
        ($($name:tt)*) => {[$(($name, std::arch::is_aarch64_feature_detected!($name))),*]};
    }
    detected!("neon" "fp16" "dotprod" "bf16" "i8mm" "sve" "sve2")
        .into_iter()
        .filter_map(|(name, there)| there.then_some(name))
        .collect()
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn simd() -> Vec<&'static str> {
    Vec::new()
}

/// The CUDA devices of this machine. The query of free memory opens a context on each device for a moment.
///
/// # Errors
/// [`NoDevice`](crate::Error::NoDevice) with the reason if there is none; [`Driver`](crate::Error::Driver) for other
/// failures that the driver reports.
pub fn devices() -> Result<Vec<DeviceInfo>> {
    #[cfg(not(feature = "cuda"))]
    let devices = Err(Error::NoDevice { reason: NoDeviceReason::FeatureOff });
    #[cfg(feature = "cuda")]
    let devices = cuda::devices();
    devices
}

/// The kernel modules of this build; empty without the `cuda` feature.
pub fn modules() -> Vec<ModuleInfo> {
    #[cfg(not(feature = "cuda"))]
    let modules = Vec::new();
    #[cfg(feature = "cuda")]
    let modules = cuda::modules();
    modules
}

/// The version and the kernels of this build.
pub fn build() -> BuildInfo {
    #[cfg(not(feature = "cuda"))]
    let (compiler, ptx) = (None, Vec::new());
    #[cfg(feature = "cuda")]
    let (compiler, ptx) = cuda::compiled();
    #[cfg(not(feature = "machine-code"))]
    let (assembler, machine_code) = (None, Vec::new());
    #[cfg(feature = "machine-code")]
    let (assembler, machine_code) = cuda::assembled();
    BuildInfo { version: env!("CARGO_PKG_VERSION").to_owned(), compiler, ptx, assembler, machine_code }
}

#[cfg(feature = "cuda")]
mod cuda {
    use std::collections::BTreeSet;

    use super::{DeviceInfo, ModuleInfo};
    use crate::device::cuda::{Ordinal, driver_version, start_driver};
    use crate::device::dependent::DependentLaunches;
    use crate::device::driver::MULTIPROCESSOR_COUNT;
    use crate::device::ptx;
    use crate::error::Result;

    pub fn devices() -> Result<Vec<DeviceInfo>> {
        let count = start_driver(0)?;
        let version = driver_version(0)?;
        let describe = |index: usize| {
            let device = Ordinal::get(index)?;
            let capability = device.capability()?;
            Ok(DeviceInfo {
                index,
                name: device.name()?,
                compute_capability: capability,
                multiprocessors: u32::try_from(device.attribute(MULTIPROCESSOR_COUNT)?).unwrap_or(0),
                memory_total: device.total_memory()?,
                // A device without free memory refuses a context, but the rest of its description is still useful.
                memory_free: device.free_memory().ok(),
                driver: format!("{}.{}", version.0, version.1),
                ptx_target: (capability >= (8, 0)).then(|| {
                    let clusters = DependentLaunches::possible(capability, version).then_some("sm_90");
                    let warpgroups = ptx::runs_warpgroups(capability, version).then_some("sm_90a");
                    let targets: Vec<&str> = [ptx::ARCH].into_iter().chain(clusters).chain(warpgroups).collect();
                    targets.join(", ")
                }),
            })
        };
        (0..count).map(describe).collect()
    }

    pub fn modules() -> Vec<ModuleInfo> {
        let module = |module: &ptx::Module| ModuleInfo {
            family: module.name.to_owned(),
            target: module.target.to_owned(),
            kernels: ptx::KERNELS
                .iter()
                .filter(|(_, of)| *of == module.name)
                .map(|&(name, _)| name.to_owned())
                .collect(),
            bytes: module.bytes,
        };
        ptx::MODULES.iter().map(module).collect()
    }

    /// The compiler, and the PTX targets in order.
    pub fn compiled() -> (Option<String>, Vec<String>) {
        let targets: BTreeSet<&str> = ptx::MODULES.iter().map(|module| module.target).collect();
        (Some(ptx::COMPILER.to_owned()), targets.into_iter().map(str::to_owned).collect())
    }

    /// The assembler, and the architectures.
    #[cfg(feature = "machine-code")]
    pub fn assembled() -> (Option<String>, Vec<String>) {
        (Some(ptx::ASSEMBLER.to_owned()), ptx::ASSEMBLED.iter().map(|&arch| arch.to_owned()).collect())
    }
}
