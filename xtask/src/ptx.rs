//! `cargo xtask ptx`: compile, assemble, report.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use cuda_builder::{CudaBuilder, GpuArch, PtxInfo};

use crate::kernel_report::{self, EXCUSED, Usage};
use crate::shell::{self, Result};
use crate::{device_compiler, ptxas};

/// The generations that the report covers.
const ASSEMBLED: [GpuArch; 4] = [GpuArch::Sm80, GpuArch::Sm90, GpuArch::Sm100, GpuArch::Sm120];

type Report = BTreeMap<String, Usage>;

pub fn run(archs: &[GpuArch], full: bool, assemble: bool) -> Result<()> {
    for &arch in archs {
        let modules = compile(arch)?;
        if assemble {
            report(arch, &modules, full)?;
        }
    }
    Ok(())
}

/// Compiles the kernels and writes one file for each kernel into target/ptx/ARCH.
fn compile(arch: GpuArch) -> Result<Vec<PathBuf>> {
    let start = Instant::now();
    let builder = CudaBuilder::new(shell::root().join("kernels-rs"))
        .arch(arch)
        .compiler(device_compiler::ensure()?)
        .target_dir(shell::target_dir().join("cuda-builder"))
        .emit_rerun(false);
    let PtxInfo { ptx, modules, compiler, .. } = builder.build()?;
    let folder = shell::target_dir().join("ptx").join(arch.name());
    // A kernel that is gone must not stay behind for WARPANN_PTX_DIR.
    if folder.exists() {
        std::fs::remove_dir_all(&folder)?;
    }
    std::fs::create_dir_all(&folder)?;
    let mut files = Vec::new();
    for (kernel, text) in modules {
        let file = folder.join(format!("{kernel}.ptx"));
        std::fs::write(&file, text)?;
        files.push(file);
    }
    println!(
        "{}: {} modules, {} bytes of PTX in {:.1} s, by {}",
        folder.display(),
        files.len(),
        ptx.len(),
        start.elapsed().as_secs_f64(),
        compiler.version
    );
    Ok(files)
}

/// The architecture that a module is for, as its text says.
fn own_arch(module: &Path) -> Result<Option<GpuArch>> {
    let text = std::fs::read_to_string(module)?;
    Ok(text.lines().find_map(|line| line.strip_prefix(".target ")).and_then(|name| GpuArch::from_name(name.trim())))
}

/// Assembles the modules, prints the table, and fails on a kernel that breaks the rule.
fn report(built_for: GpuArch, modules: &[PathBuf], full: bool) -> Result<()> {
    let ptxas = ptxas::find()?;
    // The `a` variants run on their own generation only.
    let archs: Vec<GpuArch> = match built_for {
        GpuArch::Sm90a => vec![built_for],
        _ => ASSEMBLED.into_iter().filter(|&arch| arch >= built_for).collect(),
    };
    let names: Vec<&str> = archs.iter().map(|arch| arch.name()).collect();
    kernel_report::check_canaries(&ptxas, &shell::target_dir().join("ptx"), &names)?;

    let start = Instant::now();
    // A module for one architecture is assembled for that one.
    let mut jobs: Vec<(&str, &PathBuf)> = Vec::new();
    for file in modules {
        match own_arch(file)?.filter(|&own| own != built_for) {
            Some(own) => jobs.push((own.name(), file)),
            None => jobs.extend(names.iter().map(|&arch| (arch, file))),
        }
    }
    let next = AtomicUsize::new(0);
    let results: Mutex<Vec<(&str, std::result::Result<Report, String>)>> = Mutex::new(Vec::new());
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..workers.min(jobs.len()) {
            scope.spawn(|| {
                while let Some(&(arch, file)) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let result = kernel_report::assemble(&ptxas, file, arch).map_err(|error| error.to_string());
                    results.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push((arch, result));
                }
            });
        }
    });

    let of_own = jobs.iter().map(|(arch, _)| *arch).filter(|arch| !names.contains(arch)).collect::<BTreeSet<_>>();
    let all = names.iter().copied().chain(of_own);
    let mut reports: Vec<(&str, Report)> = all.map(|arch| (arch, Report::new())).collect();
    for (arch, result) in results.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner) {
        let result = result?;
        reports.iter_mut().filter(|(name, _)| *name == arch).for_each(|(_, report)| report.extend(result.clone()));
    }
    print!("{}", kernel_report::table(&reports, full));
    let violations: Vec<String> =
        reports.iter().flat_map(|(arch, kernels)| kernel_report::violations(arch, kernels, EXCUSED)).collect();
    for (kernel, reason) in EXCUSED {
        println!("excused: {kernel}: {reason}");
    }
    println!("assembled for {} in {:.1} s; the canaries were caught", names.join(", "), start.elapsed().as_secs_f64());
    if violations.is_empty() {
        return Ok(());
    }
    Err(format!("kernels with a stack frame or spills:\n  {}", violations.join("\n  ")).into())
}
