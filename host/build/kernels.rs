//! Compiles the kernels and writes them in the form that the library embeds and its package carries.
//!
//! `WARPANN_PTX_DIR` names a folder of ready-made modules (`KERNEL.ptx`, as `cargo xtask ptx` writes them) to embed
//! instead; then no compiler for device code is needed.

use std::collections::BTreeMap;
use std::error::Error;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use cuda_builder::ptx::entries;
use cuda_builder::{BuilderError, CudaBuilder, GpuArch};
#[cfg(not(feature = "machine-code"))]
use miniz_oxide::deflate::compress_to_vec_zlib;

/// PTX of this architecture also serves every later one.
const ARCH: GpuArch = GpuArch::Sm80;

/// Level of compression: 10.0 MB of PTX become 1.9 MB.
#[cfg(not(feature = "machine-code"))]
const LEVEL: u8 = 7;

/// Whether the compiler refused the kernels, and said why on standard error.
pub fn is_of_the_compiler(error: &(dyn Error + 'static)) -> bool {
    matches!(error.downcast_ref(), Some(BuilderError::BuildFailed { .. }))
}

/// Writes `OUT_DIR/modules.bin`, the modules one after the other, each compressed alone, or in groups with the feature
/// `machine-code`, and `OUT_DIR/modules.rs`. Returns the latter:
///
/// ```text
/// pub static COMPILER: &str = "rustc ..";
/// pub static ARCH: &str = "sm_80";
/// static COMPRESSED: &[u8] = include_bytes!("modules.bin");
/// pub static MODULES: &[Module] = &[Module { name: "module", .. }, ..];
/// pub static KERNELS: &[(&str, &str)] = &[("kernel", "module"), ..];
/// ```
///
/// The feature `machine-code` adds `machine_code.bin`, the version of ptxas, and a field `cubins` of the modules
/// ([`super::machine_code`]).
pub fn write(kernels: &Path) -> Result<PathBuf, Box<dyn Error>> {
    let out = PathBuf::from(std::env::var_os("OUT_DIR").ok_or("cargo gave no OUT_DIR")?);
    println!("cargo::rerun-if-env-changed=WARPANN_PTX_DIR");
    let (modules, compiler) = match std::env::var_os("WARPANN_PTX_DIR").filter(|folder| !folder.is_empty()) {
        Some(folder) => (ready_made(Path::new(&folder))?, "unknown: they were ready-made".to_owned()),
        None => {
            let built = CudaBuilder::new(kernels).arch(ARCH).build()?;
            (built.modules, built.compiler.version)
        }
    };

    #[cfg(feature = "machine-code")]
    let machine_code = super::machine_code::write(&modules, &out)?;
    let (mut compressed, mut rows, mut kernels) = (Vec::new(), String::new(), BTreeMap::new());
    for ((name, ptx), part) in modules.iter().zip(parts(&modules, &mut compressed)?) {
        let target =
            ptx.lines().find_map(|line| line.strip_prefix(".target ")).ok_or("a module has no .target")?.trim();
        let bytes = ptx.len();
        write!(rows, "    Module {{ name: {name:?}, target: {target:?}, bytes: {bytes}, {part}")?;
        #[cfg(feature = "machine-code")]
        write!(rows, ", cubins: {}", machine_code.of(name))?;
        rows.push_str(" },\n");
        kernels.extend(entries(ptx)?.into_iter().map(|(kernel, _)| (kernel.to_owned(), name)));
    }
    let mut table = format!(
        "// Written by the build script of warpann.\n\
         /// Compiler of the kernels.\n\
         pub static COMPILER: &str = {compiler:?};\n\
         /// Architecture of the modules that name no other.\n\
         pub static ARCH: &str = \"{ARCH}\";\n\
         static COMPRESSED: &[u8] = include_bytes!(\"modules.bin\");\n\
         const fn part(of: &'static [u8], start: usize, end: usize) -> &'static [u8] {{\n    \
             of.split_at(end).0.split_at(start).1\n\
         }}\n\
         /// Modules, sorted by name.\n\
         pub static MODULES: &[Module] = &[\n{rows}];\n\
         /// Kernels: name and the module that holds it, sorted by name.\n\
         pub static KERNELS: &[(&str, &str)] = &[\n"
    );
    for (kernel, module) in kernels {
        writeln!(table, "    ({kernel:?}, {module:?}),")?;
    }
    table.push_str("];\n");
    #[cfg(feature = "machine-code")]
    table.push_str(&machine_code.table);
    write_if_changed(&out.join("modules.bin"), &compressed)?;
    let file = out.join("modules.rs");
    write_if_changed(&file, table.as_bytes())?;
    Ok(file)
}

/// Compresses the modules. Returns the text of the field that has the PTX, of each.
#[cfg(feature = "machine-code")]
fn parts(modules: &[(String, String)], compressed: &mut Vec<u8>) -> Result<Vec<String>, Box<dyn Error>> {
    let texts = modules.iter().map(|(_, ptx)| ptx.as_bytes());
    let parts = super::machine_code::grouped(texts, "COMPRESSED", compressed)?;
    Ok(parts.into_iter().map(|part| format!("ptx: {part}")).collect())
}

/// Compresses the modules. Returns the text of the field that has the PTX, of each.
#[cfg(not(feature = "machine-code"))]
fn parts(modules: &[(String, String)], compressed: &mut Vec<u8>) -> Result<Vec<String>, Box<dyn Error>> {
    let compress = |(_, ptx): &(String, String)| {
        let start = compressed.len();
        compressed.extend(compress_to_vec_zlib(ptx.as_bytes(), LEVEL));
        format!("compressed: part(COMPRESSED, {start}, {})", compressed.len())
    };
    Ok(modules.iter().map(compress).collect())
}

/// Every `MODULE.ptx` of a folder: names and texts, sorted by name.
fn ready_made(folder: &Path) -> Result<Vec<(String, String)>, Box<dyn Error>> {
    let failed = |what: &dyn std::fmt::Display| format!("WARPANN_PTX_DIR={}: {what}", folder.display());
    println!("cargo::rerun-if-changed={}", folder.display());
    let mut modules = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(|error| failed(&error))? {
        let file = entry?.path();
        if file.extension().is_some_and(|extension| extension == "ptx") {
            let module = file.file_stem().and_then(|stem| stem.to_str()).ok_or_else(|| failed(&"odd file name"))?;
            println!("cargo::rerun-if-changed={}", file.display());
            modules.push((module.to_owned(), std::fs::read_to_string(&file).map_err(|error| failed(&error))?));
        }
    }
    if modules.is_empty() {
        return Err(failed(&"holds no .ptx file").into());
    }
    modules.sort();
    Ok(modules)
}

/// Leaves a file with these bytes alone: its time stamp decides whether the library is compiled again.
pub fn write_if_changed(file: &Path, bytes: &[u8]) -> Result<(), Box<dyn Error>> {
    if std::fs::read(file).is_ok_and(|present| present == bytes) {
        return Ok(());
    }
    std::fs::write(file, bytes).map_err(|error| format!("{}: {error}", file.display()).into())
}
