//! `warpann info`.

use std::path::{Path, PathBuf};

use serde::Serialize;
use warpann::device::info::{self, CpuInfo, DeviceInfo, ModuleInfo};
use warpann::ivf::IndexInfo;

use crate::index::{describe, kind_of};
use crate::report::{Out, Outcome, bytes};

/// Arguments of `info`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Show only the properties of this index file, from its header.
    #[arg(long, value_name = "INDEX")]
    index: Option<PathBuf>,
}

#[derive(Serialize)]
struct Info {
    version: &'static str,
    cpu: CpuInfo,
    devices: Vec<DeviceInfo>,
    /// The reason why `devices` is empty.
    no_device: Option<String>,
    modules: Vec<ModuleInfo>,
}

#[derive(Serialize)]
struct IndexFile {
    kind: String,
    index: String,
    element: &'static str,
    metric: &'static str,
    dim: usize,
    vectors: u64,
    lists: usize,
    probes: usize,
    bytes: u64,
}

/// Prints the properties of an index file.
fn index(path: &Path, out: &Out) -> Outcome {
    let info = IndexInfo::read(path)?;
    let file = IndexFile {
        kind: kind_of(info.encoding),
        index: describe(info.encoding, info.lists),
        element: info.element.name(),
        metric: info.metric.name(),
        dim: info.dim,
        vectors: info.vectors,
        lists: info.lists,
        probes: info.probes,
        bytes: info.bytes,
    };
    let IndexFile { element, metric, dim, vectors, .. } = file;
    out.field("index", &file.index)?;
    out.field("vectors", format_args!("{vectors}, dimension {dim}, {element}, metric {metric}"))?;
    out.field("probes", format_args!("{} by default", file.probes))?;
    out.field("file", bytes(file.bytes))?;
    out.object(&file)
}

/// Prints the properties of the machine. A machine without a GPU is not an error.
pub fn run(args: &Args, out: &Out) -> Outcome {
    if let Some(path) = &args.index {
        return index(path, out);
    }
    let (devices, no_device) = match info::devices() {
        Ok(devices) => (devices, None),
        Err(error) => (Vec::new(), Some(error.to_string())),
    };
    let version = env!("CARGO_PKG_VERSION");
    let info = Info { version, cpu: info::cpu(), devices, no_device, modules: info::modules() };
    out.field("warpann", version)?;
    let cpu = &info.cpu;
    out.field("cpu", format_args!("{}, {} threads", cpu.model.as_deref().unwrap_or("unnamed"), cpu.threads))?;
    out.field("simd", if cpu.simd.is_empty() { "none".to_owned() } else { cpu.simd.join(" ") })?;
    if let Some(reason) = &info.no_device {
        out.field("gpu", reason)?;
    }
    for device in &info.devices {
        let (major, minor) = device.compute_capability;
        out.field(
            &format!("gpu:{}", device.index),
            format_args!("{}, compute capability {major}.{minor}", device.name),
        )?;
        out.field("  driver", format_args!("CUDA {}", device.driver))?;
        let free = device.memory_free.map_or("unknown".to_owned(), bytes);
        out.field("  memory", format_args!("{}, {free} free", bytes(device.memory_total)))?;
        out.field("  units", format_args!("{} multiprocessors", device.multiprocessors))?;
        out.field("  kernels", device.ptx_target.as_deref().unwrap_or("none: the device is too old for this build"))?;
    }
    if info.modules.is_empty() {
        out.field("kernels", "none in this build")?;
    }
    for module in &info.modules {
        let ModuleInfo { family, target, kernels, bytes: size, .. } = module;
        out.field("kernels", format_args!("{family} for {target}, {}: {}", bytes(*size as u64), kernels.join(" ")))?;
    }
    out.object(&info)
}
