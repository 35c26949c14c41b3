//! `warpann info`.

use std::path::{Path, PathBuf};

use serde::Serialize;
use warpann::IndexInfo;
use warpann::device::info::{self, CpuInfo, DeviceInfo, ModuleInfo};

use crate::index::{HeaderDetails, name_of};
use crate::report::{Out, Outcome, bytes};
use crate::streams::parse_index;

/// Arguments of `info`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Show only the properties of this index file, from its header.
    #[arg(long, value_name = "INDEX", value_parser = parse_index)]
    index: Option<PathBuf>,
    /// List the kernels of this build, a line for each module.
    #[arg(long, conflicts_with = "index")]
    kernels: bool,
}

#[derive(Serialize)]
struct Info {
    version: &'static str,
    cpu: CpuInfo,
    devices: Vec<DeviceInfo>,
    /// The reason why `devices` is empty.
    no_device: Option<String>,
    /// Features of this build.
    features: Vec<&'static str>,
    kernels: Kernels,
    /// The modules, with `--kernels`.
    #[serde(skip_serializing_if = "Option::is_none")]
    modules: Option<Vec<ModuleInfo>>,
}

/// The kernels of this build in numbers.
#[derive(Serialize)]
struct Kernels {
    count: usize,
    modules: usize,
    /// Size of the PTX texts in bytes.
    bytes: u64,
}

/// Features of this build that change what the program can do.
fn features() -> Vec<&'static str> {
    let all = [("cuda", cfg!(feature = "cuda")), ("mpi", cfg!(feature = "mpi"))];
    all.into_iter().filter(|(_, on)| *on).map(|(name, _)| name).collect()
}

#[derive(Serialize)]
struct Header {
    kind: String,
    index: String,
    element: &'static str,
    metric: &'static str,
    dim: usize,
    vectors: u64,
    #[serde(flatten)]
    details: HeaderDetails,
    bytes: u64,
}

/// Prints the properties of an index file.
fn index(path: &Path, out: &Out) -> Outcome {
    let info = IndexInfo::read(path)?;
    let (kind, (details, index)) = (name_of(&info), HeaderDetails::of(&info));
    let (element, metric) = (info.element.name(), info.metric.name());
    let header =
        Header { kind, index, element, metric, dim: info.dim, vectors: info.vectors, details, bytes: info.bytes };
    let Header { element, metric, dim, vectors, .. } = header;
    out.field("index", &header.index)?;
    out.field("vectors", format_args!("{vectors}, dimension {dim}, {element}, metric {metric}"))?;
    header.details.print(out)?;
    out.field("file", bytes(header.bytes))?;
    out.object(&header)
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
    let modules = info::modules();
    let kernels = Kernels {
        count: modules.iter().map(|module| module.kernels.len()).sum(),
        modules: modules.len(),
        bytes: modules.iter().map(|module| module.bytes as u64).sum(),
    };
    let modules = args.kernels.then_some(modules);
    let info = Info { version, cpu: info::cpu(), devices, no_device, features: features(), kernels, modules };
    out.field("warpann", version)?;
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
    if let Some(reason) = &info.no_device {
        out.field("gpu", reason)?;
    }
    let cpu = &info.cpu;
    out.field("cpu", format_args!("{}, {} threads", cpu.model.as_deref().unwrap_or("unnamed"), cpu.threads))?;
    out.field("simd", if cpu.simd.is_empty() { "none".to_owned() } else { cpu.simd.join(" ") })?;
    out.field("features", if info.features.is_empty() { "none".to_owned() } else { info.features.join(" ") })?;
    let Kernels { count, modules, bytes: size } = info.kernels;
    match count {
        0 => out.field("kernels", "none in this build")?,
        _ => {
            let hint = if args.kernels { "" } else { "; --kernels lists them" };
            out.field("kernels", format_args!("{count} in {modules} modules, {} of PTX{hint}", bytes(size)))?;
        }
    }
    for ModuleInfo { family, target, kernels, bytes: size, .. } in info.modules.iter().flatten() {
        out.field("  module", format_args!("{family} for {target}, {}: {}", bytes(*size as u64), kernels.join(" ")))?;
    }
    out.object(&info)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The object of a machine with GPUs, of which one is too old and its driver does not tell the free memory.
    #[test]
    fn the_object_of_a_machine_with_gpus_follows_the_schema() {
        let device = |index: usize, free: Option<u64>, target: Option<&str>| -> DeviceInfo {
            serde_json::from_value(serde_json::json!({
                "index": index, "name": "a GPU", "compute_capability": [9, 0], "multiprocessors": 132, "memory_total": 80u64 << 30,
                "memory_free": free, "driver": "13.0", "ptx_target": target,
            }))
            .unwrap()
        };
        let info = Info {
            version: "1.0.0",
            cpu: warpann::device::info::cpu(),
            devices: vec![device(0, Some(79 << 30), Some("sm_80, sm_90a")), device(1, None, None)],
            no_device: None,
            features: features(),
            kernels: Kernels { count: 0, modules: 0, bytes: 0 },
            modules: None,
        };
        let text = Out::new(true, Some("info".into())).pretty(&info).unwrap();
        crate::schema::check(&serde_json::from_str(&text).unwrap());
    }
}
