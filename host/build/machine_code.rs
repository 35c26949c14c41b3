//! Assembles the modules by ptxas, NVIDIA's assembler, for the architectures of [`ARCHS`].
//!
//! Devices of compute capability 9.0 and later load modules in two forms (`host/src/device/dependent.rs`), so the
//! machine code has both. The two are nearly the same, and so are modules for different element types. So the code of
//! one architecture is compressed in groups of modules that are next to each other by name: 87.9 MB become 7.4 MB
//! (zstd 1.5, ptxas 13.5, 2026-11-28). Each module alone they are 20.6 MB by zlib, whose window is 32 KiB. The PTX is
//! compressed in groups as well: 20.7 MB become 1.8, and 3.8 by zlib.

use std::collections::BTreeMap;
use std::error::Error;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use cuda_builder::GpuArch;
use cuda_std::launch::dependent_ptx;

use super::kernels::write_if_changed;

/// The first architecture of each generation, with its compute capability: machine code runs on all later ones of the
/// generation.
const ARCHS: [(GpuArch, (i32, i32)); 4] =
    [(GpuArch::Sm80, (8, 0)), (GpuArch::Sm90, (9, 0)), (GpuArch::Sm100, (10, 0)), (GpuArch::Sm120, (12, 0))];
/// Most bytes of a group, unless one module has more: as much as loading a module decompresses. Groups of twice the
/// size would make the wheel smaller by .5 MB.
const GROUP_BYTES: usize = 2 << 20;
/// Level of compression of zstd; 22, the last, saves 5 kB.
const LEVEL: i32 = 19;

/// The machine code of all modules.
pub struct MachineCode {
    /// Text of the rows of a module's field `cubins`, by module.
    rows: BTreeMap<String, String>,
    /// Text of the tables of all modules.
    pub table: String,
}

impl MachineCode {
    /// The field `cubins` of a module.
    pub fn of(&self, module: &str) -> String {
        format!("&[{}]", self.rows.get(module).map_or("", String::as_str))
    }
}

/// A form of a module that ptxas assembles for one architecture.
struct Job<'a> {
    module: &'a str,
    arch: GpuArch,
    capability: (i32, i32),
    waits: bool,
    text: &'a str,
}

/// Assembles the modules and writes `machine_code.bin` into the folder `out`.
pub fn write(modules: &[(String, String)], out: &Path) -> Result<MachineCode, Box<dyn Error>> {
    println!("cargo::rerun-if-env-changed=WARPANN_PTXAS");
    let ptxas = std::env::var_os("WARPANN_PTXAS").filter(|name| !name.is_empty()).map(PathBuf::from).ok_or(
        "the feature `machine-code` of warpann needs WARPANN_PTXAS: the path of ptxas, of CUDA 12.8 or later; the Python package \
         nvidia-cuda-nvcc has one",
    )?;
    let version = version(&ptxas)?;

    let waiting = modules.iter().map(|(name, ptx)| {
        dependent_ptx(ptx)
            .ok_or_else(|| format!("{name}: no place was found where kernels can wait for the work ahead"))
    });
    let waiting: Vec<String> = waiting.collect::<Result<_, _>>()?;
    let mut jobs = Vec::new();
    for (arch, capability) in ARCHS {
        for ((module, plain), waiting) in modules.iter().zip(&waiting) {
            // Modules for the warpgroups of one architecture run on no other.
            let own = plain.lines().any(|line| line.trim_end() == ".target sm_90a");
            // Modules with clusters run from compute capability 9.0 on.
            let later = plain.lines().any(|line| line.trim_end() == ".target sm_90");
            if own && arch != GpuArch::Sm90 || later && capability < (9, 0) {
                continue;
            }
            let arch = if own { GpuArch::Sm90a } else { arch };
            jobs.push(Job { module, arch, capability, waits: false, text: plain });
            if capability >= (9, 0) {
                jobs.push(Job { module, arch, capability, waits: true, text: waiting });
            }
        }
    }
    let folder = out.join("ptxas");
    std::fs::create_dir_all(&folder)?;
    let assembled = assemble_all(&ptxas, &jobs, &folder)?;
    std::fs::remove_dir_all(&folder)?;

    let (mut compressed, mut rows) = (Vec::new(), BTreeMap::<String, String>::new());
    for (_, capability) in ARCHS {
        let own = || jobs.iter().zip(&assembled).filter(|(job, _)| job.capability == capability);
        let parts = grouped(own().map(|(_, code)| &code[..]), "MACHINE_CODE", &mut compressed)?;
        for ((job, _), part) in own().zip(parts) {
            let (row, waits) = (rows.entry(job.module.to_owned()).or_default(), job.waits);
            write!(row, "Cubin {{ capability: {capability:?}, waits: {waits}, code: {part} }}, ")?;
        }
    }
    write_if_changed(&out.join("machine_code.bin"), &compressed)?;
    let archs: Vec<&str> = ARCHS.iter().map(|(arch, _)| arch.name()).collect();
    let table = format!(
        "/// Assembler of the machine code.\n\
         pub static ASSEMBLER: &str = {version:?};\n\
         /// Architectures of the machine code.\n\
         pub static ASSEMBLED: &[&str] = &{archs:?};\n\
         static MACHINE_CODE: &[u8] = include_bytes!(\"machine_code.bin\");\n"
    );
    Ok(MachineCode { rows, table })
}

/// Appends groups of the `items` to `compressed`, the bytes of the constant `name`. Returns the text of the part of
/// each item.
pub fn grouped<'a>(
    items: impl Iterator<Item = &'a [u8]>,
    name: &str,
    compressed: &mut Vec<u8>,
) -> Result<Vec<String>, Box<dyn Error>> {
    let mut compressor = zstd::bulk::Compressor::new(LEVEL)?;
    let (mut items, mut parts) = (items.peekable(), Vec::new());
    while items.peek().is_some() {
        let (mut group, mut places) = (Vec::new(), Vec::new());
        while let Some(item) = items.next_if(|item| group.is_empty() || group.len() + item.len() <= GROUP_BYTES) {
            places.push((group.len(), item.len()));
            group.extend_from_slice(item);
        }
        let (at, group_bytes) = (compressed.len(), group.len());
        compressed.extend(compressor.compress(&group)?);
        let group = format!("group: part({name}, {at}, {}), group_bytes: {group_bytes}", compressed.len());
        parts.extend(places.iter().map(|(start, bytes)| format!("Part {{ {group}, start: {start}, bytes: {bytes} }}")));
    }
    Ok(parts)
}

/// The version of ptxas, such as `ptxas 13.5, V13.5.37`.
fn version(ptxas: &Path) -> Result<String, Box<dyn Error>> {
    let failed = |what: &dyn std::fmt::Display| format!("WARPANN_PTXAS={}: {what}", ptxas.display());
    let output = Command::new(ptxas).arg("--version").stdin(Stdio::null()).output().map_err(|error| failed(&error))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let release = text.lines().find_map(|line| line.split_once("release ")).map(|(_, release)| release.trim());
    Ok(release.map(|release| format!("ptxas {release}")).ok_or_else(|| failed(&"it printed no version of ptxas"))?)
}

/// The machine code of all jobs, in their order.
fn assemble_all(ptxas: &Path, jobs: &[Job<'_>], folder: &Path) -> Result<Vec<Vec<u8>>, Box<dyn Error>> {
    // Cargo's number of parallel jobs.
    let workers = std::env::var("NUM_JOBS").ok().and_then(|jobs| jobs.parse().ok()).unwrap_or(1);
    let (next, results) = (AtomicUsize::new(0), Mutex::new(BTreeMap::new()));
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                loop {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    let Some(job) = jobs.get(at) else { break };
                    let result = assemble(ptxas, job, &folder.join(at.to_string()));
                    results.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).insert(at, result);
                }
            });
        }
    });
    let results = results.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner());
    Ok(results.into_values().collect::<Result<_, _>>()?)
}

/// The machine code of a job; `file` is the place of its files, without an extension.
fn assemble(ptxas: &Path, job: &Job<'_>, file: &Path) -> Result<Vec<u8>, String> {
    let failed = |what: &dyn std::fmt::Display| format!("{} for {}: {what}", job.module, job.arch);
    let (ptx, cubin) = (file.with_extension("ptx"), file.with_extension("cubin"));
    std::fs::write(&ptx, job.text).map_err(|error| failed(&error))?;
    let mut command = Command::new(ptxas);
    command.arg(format!("--gpu-name={}", job.arch)).arg(&ptx).arg("--output-file").arg(&cubin).stdin(Stdio::null());
    let output = command.output().map_err(|error| failed(&error))?;
    if !output.status.success() {
        return Err(failed(&String::from_utf8_lossy(&output.stderr).trim()));
    }
    std::fs::read(&cubin).map_err(|error| failed(&error))
}
