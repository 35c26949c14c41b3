//! With the feature `cuda`: compiles the kernels to PTX and writes `ptx.rs` into `OUT_DIR`, the table of modules that the
//! library embeds. Without it there is nothing to do.
//!
//! `WARPANN_PTX_DIR` names a folder of ready-made modules (`KERNEL.ptx`, as `cargo xtask ptx` writes them) to embed instead;
//! then no device compiler is needed.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    #[cfg(feature = "cuda")]
    if let Err(error) = cuda::write_modules() {
        // One line a diagnostic: the compiler search's message spans several, and each must show.
        for line in error.to_string().lines() {
            println!("cargo::error={line}");
        }
    }
}

#[cfg(feature = "cuda")]
mod cuda {
    use std::collections::BTreeMap;
    use std::error::Error;
    use std::fmt::Write as _;
    use std::path::{Path, PathBuf};

    use cuda_builder::ptx::entries;
    use cuda_builder::{CudaBuilder, GpuArch};

    /// PTX of this architecture also serves every later one.
    const ARCH: GpuArch = GpuArch::Sm80;

    /// Writes `OUT_DIR/ptx.rs`:
    ///
    /// ```text
    /// pub static ARCH: &str = "sm_80";
    /// pub static MODULES: &[(&str, &str)] = &[("module", include_str!("..")), ..];
    /// pub static KERNELS: &[(&str, &str)] = &[("kernel", "module"), ..];
    /// ```
    pub fn write_modules() -> Result<(), Box<dyn Error>> {
        let out = PathBuf::from(std::env::var_os("OUT_DIR").ok_or("cargo gave no OUT_DIR")?);
        println!("cargo::rerun-if-env-changed=WARPANN_PTX_DIR");
        let modules = match std::env::var_os("WARPANN_PTX_DIR").filter(|folder| !folder.is_empty()) {
            Some(folder) => ready_made(Path::new(&folder))?,
            None => compiled(&out)?,
        };
        let mut table = String::from("// Written by build.rs.\n/// Architecture of the modules.\n");
        writeln!(table, "pub static ARCH: &str = \"{ARCH}\";")?;
        table.push_str("/// Kernel modules: name and PTX text, sorted by name.\n");
        table.push_str("pub static MODULES: &[(&str, &str)] = &[\n");
        let mut kernels = BTreeMap::new();
        for (module, file) in &modules {
            writeln!(table, "    ({module:?}, include_str!({file:?})),")?;
            let text = std::fs::read_to_string(file)?;
            kernels.extend(entries(&text)?.into_iter().map(|(kernel, _)| (kernel.to_owned(), module)));
        }
        table.push_str("];\n/// Kernels: name and the module that holds it, sorted by name.\n");
        table.push_str("pub static KERNELS: &[(&str, &str)] = &[\n");
        for (kernel, module) in kernels {
            writeln!(table, "    ({kernel:?}, {module:?}),")?;
        }
        table.push_str("];\n");
        write_if_changed(&out.join("ptx.rs"), &table)
    }

    /// Builds the kernels; one file for each.
    fn compiled(out: &Path) -> Result<Vec<(String, PathBuf)>, Box<dyn Error>> {
        let info = CudaBuilder::new("../kernels-rs").arch(ARCH).build()?;
        let folder = out.join(ARCH.name());
        std::fs::create_dir_all(&folder)?;
        let mut modules = Vec::new();
        for (kernel, ptx) in info.modules {
            let file = folder.join(format!("{kernel}.ptx"));
            write_if_changed(&file, &ptx)?;
            modules.push((kernel, file));
        }
        Ok(modules)
    }

    /// Takes every `MODULE.ptx` of a folder.
    fn ready_made(folder: &Path) -> Result<Vec<(String, PathBuf)>, Box<dyn Error>> {
        let failed = |what: &dyn std::fmt::Display| format!("WARPANN_PTX_DIR={}: {what}", folder.display());
        println!("cargo::rerun-if-changed={}", folder.display());
        let mut modules = Vec::new();
        for entry in std::fs::read_dir(folder).map_err(|error| failed(&error))? {
            let file = entry?.path().canonicalize()?;
            if file.extension().is_some_and(|extension| extension == "ptx") {
                let module = file.file_stem().and_then(|stem| stem.to_str()).ok_or_else(|| failed(&"odd file name"))?;
                println!("cargo::rerun-if-changed={}", file.display());
                modules.push((module.to_owned(), file));
            }
        }
        if modules.is_empty() {
            return Err(failed(&"holds no .ptx file").into());
        }
        modules.sort();
        Ok(modules)
    }

    /// Leaves a file with that text alone: its time stamp decides whether the library is compiled again.
    fn write_if_changed(file: &Path, text: &str) -> Result<(), Box<dyn Error>> {
        if std::fs::read_to_string(file).is_ok_and(|present| present == text) {
            return Ok(());
        }
        std::fs::write(file, text).map_err(|error| format!("{}: {error}", file.display()).into())
    }
}
