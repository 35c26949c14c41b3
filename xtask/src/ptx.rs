//! `cargo xtask ptx`: compile, assemble, report.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use cuda_builder::{BuilderError, CudaBuilder, GpuArch, PtxInfo};
use cuda_std::launch::dependent_ptx;

use crate::kernel_report::{self, EXCUSED, Usage};
use crate::progress::Progress;
use crate::shell::{self, Result};
use crate::{device_compiler, ptxas};

/// The generations that the report covers.
const ASSEMBLED: [GpuArch; 4] = [GpuArch::Sm80, GpuArch::Sm90, GpuArch::Sm100, GpuArch::Sm120];

/// Number of names to suggest for an unknown name.
const SUGGESTIONS: usize = 5;

type Report = BTreeMap<String, Usage>;

/// Compiles, assembles and reports the kernels that `asked` names, or all if `asked` is empty.
pub fn run(archs: &[GpuArch], asked: &[String], full: bool, assemble: bool) -> Result<()> {
    for &arch in archs {
        let modules = compile(arch, asked)?;
        if assemble {
            report(arch, &modules, full)?;
        }
    }
    Ok(())
}

/// Compiles the kernels and writes one file for each kernel: into target/ptx/ARCH for all kernels, else into a folder
/// below it, so that target/ptx/ARCH is always complete.
fn compile(arch: GpuArch, asked: &[String]) -> Result<Vec<PathBuf>> {
    let start = Instant::now();
    let builder = CudaBuilder::new(shell::root().join("kernels-rs"))
        .arch(arch)
        .compiler(device_compiler::ensure()?)
        .target_dir(shell::target_dir().join("cuda-builder"))
        .emit_rerun(false);
    let folder = shell::target_dir().join("ptx").join(arch.name());
    let (folder, built) = if asked.is_empty() {
        eprintln!("compiling all kernels for {arch} (76 s on one core, 100 s when `core` is compiled too)");
        (folder, builder.build()?)
    } else {
        eprintln!("compiling {} for {arch}", asked.join(", "));
        (folder.join("selected"), build_some(&builder, asked)?)
    };
    let PtxInfo { ptx, modules, compiler, .. } = built;
    // WARPANN_PTX_DIR must not find a file of a kernel that no longer exists.
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

/// Compiles the kernels that `asked` names. A first build takes the names literally. If one of them is not a kernel's
/// name, a second build compiles the kernels whose names contain it.
fn build_some(builder: &CudaBuilder, asked: &[String]) -> Result<PtxInfo> {
    match builder.clone().kernels(asked).build() {
        Err(BuilderError::NoSuchKernel { kernels, .. }) => {
            Ok(builder.clone().kernels(select(&kernels, asked)?).build()?)
        }
        built => Ok(built?),
    }
}

/// The kernels that each name selects: the kernel of that name, or else those whose names contain it.
fn select(kernels: &[String], asked: &[String]) -> Result<BTreeSet<String>> {
    let mut selected = BTreeSet::new();
    for name in asked {
        let is_exact = kernels.contains(name);
        let is_meant = |kernel: &&String| if is_exact { *kernel == name } else { kernel.contains(name.as_str()) };
        let meant: Vec<&String> = kernels.iter().filter(is_meant).collect();
        if name.is_empty() || meant.is_empty() {
            return Err(format!(
                "no kernel is named {name}, and no kernel's name contains it; similar names: {}",
                near(kernels, name).join(", ")
            )
            .into());
        }
        selected.extend(meant.into_iter().cloned());
    }
    Ok(selected)
}

/// The names that differ least from `name`.
fn near<'a>(kernels: &'a [String], name: &str) -> Vec<&'a str> {
    let mut sorted: Vec<&str> = kernels.iter().map(String::as_str).collect();
    sorted.sort_by_key(|kernel| distance(kernel, name));
    sorted.truncate(SUGGESTIONS);
    sorted
}

/// Number of characters to insert, remove or replace to turn `a` into `b`.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    // Distances from the characters of `a` so far to each prefix of `b`.
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, from) in a.chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, &to) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(from != to);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

/// The architecture that a module's text requires; none if it runs on all.
fn own_arch(module: &Path) -> Result<Option<GpuArch>> {
    let text = std::fs::read_to_string(module)?;
    Ok(text.lines().find_map(|line| line.strip_prefix(".target ")).and_then(|name| GpuArch::from_name(name.trim())))
}

/// Writes the module as devices of compute capability 9.0 and later load it, in a folder beside it, and returns the
/// file.
fn dependent(module: &Path) -> Result<PathBuf> {
    let (Some(folder), Some(name)) = (module.parent(), module.file_name()) else {
        return Err(format!("{} is not a file", module.display()).into());
    };
    let folder = folder.join("dependent");
    std::fs::create_dir_all(&folder)?;
    let text = dependent_ptx(&std::fs::read_to_string(module)?);
    let text = text.ok_or_else(|| format!("{} is not of the form that loading expects", module.display()))?;
    let file = folder.join(name);
    std::fs::write(&file, text)?;
    Ok(file)
}

/// Assembles the modules, prints the table, and fails on a kernel that breaks the rule.
fn report(built_for: GpuArch, modules: &[PathBuf], full: bool) -> Result<()> {
    let ptxas = ptxas::find()?;
    // The `a` variants run on their generation only.
    let archs: Vec<GpuArch> = match built_for {
        GpuArch::Sm90a => vec![built_for],
        _ => ASSEMBLED.into_iter().filter(|&arch| arch >= built_for).collect(),
    };
    let names: Vec<&str> = archs.iter().map(|arch| arch.name()).collect();
    kernel_report::check_canaries(&ptxas, &shell::target_dir().join("ptx"), &names)?;

    let start = Instant::now();
    // A module for a single architecture is assembled for that architecture only; a module for later architectures
    // than the others, for those and later ones.
    let mut jobs: Vec<(&str, PathBuf)> = Vec::new();
    for file in modules {
        let own = own_arch(file)?.filter(|&own| own != built_for);
        let later = dependent(file)?;
        let of_module = match own {
            None => archs.clone(),
            Some(GpuArch::Sm90a) => vec![GpuArch::Sm90a],
            Some(own) => archs.iter().copied().filter(|&arch| arch >= own).collect(),
        };
        for arch in of_module {
            let file = if arch < GpuArch::Sm90 { file } else { &later };
            jobs.push((arch.name(), file.clone()));
        }
    }
    let next = AtomicUsize::new(0);
    let results: Mutex<Vec<(&str, std::result::Result<Report, String>)>> = Mutex::new(Vec::new());
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    let progress = Progress::new("assembled", jobs.len());
    std::thread::scope(|scope| {
        for _ in 0..workers.min(jobs.len()) {
            scope.spawn(|| {
                while let Some((arch, file)) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let result = kernel_report::assemble(&ptxas, file, arch).map_err(|error| error.to_string());
                    results.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push((*arch, result));
                    progress.step();
                }
            });
        }
    });

    progress.end();

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
    let is_reported = |kernel: &str| reports.iter().any(|(_, kernels)| kernels.contains_key(kernel));
    for (kernel, reason) in EXCUSED.iter().filter(|(kernel, _)| kernel.ends_with('*') || is_reported(kernel)) {
        println!("excused: {kernel}: {reason}");
    }
    println!("assembled for {} in {:.1} s; the canaries were caught", names.join(", "), start.elapsed().as_secs_f64());
    if violations.is_empty() {
        return Ok(());
    }
    Err(format!("kernels with a stack frame or spills:\n  {}", violations.join("\n  ")).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_name_means_its_kernel_or_those_that_contain_it() {
        let kernels = names(&["rerank_f32", "rerank_few_f32", "sort_pass", "sort_pass_wide"]);
        let selected = |asked: &[&str]| select(&kernels, &names(asked)).map(|set| set.into_iter().collect::<Vec<_>>());
        assert_eq!(selected(&["sort_pass"]).unwrap(), ["sort_pass"]);
        assert_eq!(selected(&["f32", "rerank_few_f32"]).unwrap(), ["rerank_f32", "rerank_few_f32"]);
        assert_eq!(selected(&["wide", "sort_pass"]).unwrap(), ["sort_pass", "sort_pass_wide"]);
        for unknown in ["rerank_f16", "", "sort pass"] {
            let message = selected(&["sort_pass", unknown]).unwrap_err().to_string();
            assert!(message.contains(&format!("named {unknown},")), "{message}");
        }
        let message = selected(&["rerank_f16"]).unwrap_err().to_string();
        assert!(message.contains("similar names: rerank_f32, rerank_few_f32"), "{message}");
    }

    #[test]
    fn distances_count_edits() {
        for (a, b, expected) in [("", "", 0), ("abc", "", 3), ("", "ab", 2), ("kitten", "sitting", 3), ("ab", "ba", 2)]
        {
            assert_eq!((distance(a, b), distance(b, a)), (expected, expected), "{a} {b}");
        }
    }
}
