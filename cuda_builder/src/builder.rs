//! [`CudaBuilder`], which runs the device build.

use std::ffi::OsString;
use std::fmt;
use std::fs::File;
use std::io::{BufRead as _, BufReader, IsTerminal as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::compiler::{CompilerError, DeviceCompiler, Library};
use crate::hints;
use crate::ptx::{self, PtxError};

const TARGET: &str = "nvptx64-nvidia-cuda";

/// The device that PTX is compiled for.
///
/// PTX for one device also runs on later devices, except that of the `a` variants, which runs on their generation only.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum GpuArch {
    /// Compute capability 8.0 (A100) and later.
    Sm80,
    /// Compute capability 8.6 and later.
    Sm86,
    /// Compute capability 8.9 and later.
    Sm89,
    /// Compute capability 9.0 (H100, H200) and later.
    Sm90,
    /// Compute capability 9.0 only, with wgmma and TMA.
    Sm90a,
    /// Compute capability 10.0 (B200) and later.
    Sm100,
    /// Compute capability 12.0 and later.
    Sm120,
}

impl GpuArch {
    /// Every architecture, oldest first.
    pub const ALL: [Self; 7] = [Self::Sm80, Self::Sm86, Self::Sm89, Self::Sm90, Self::Sm90a, Self::Sm100, Self::Sm120];

    /// The name, such as `sm_80`: rustc's target CPU and ptxas's architecture.
    pub fn name(self) -> &'static str {
        match self {
            Self::Sm80 => "sm_80",
            Self::Sm86 => "sm_86",
            Self::Sm89 => "sm_89",
            Self::Sm90 => "sm_90",
            Self::Sm90a => "sm_90a",
            Self::Sm100 => "sm_100",
            Self::Sm120 => "sm_120",
        }
    }

    /// The architecture with that name, if there is one.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|arch| arch.name() == name)
    }

    /// The PTX version to compile to. The code generator's default for sm_80 is 7.0, which is too low for `cp.async`
    /// with an L2 prefetch (7.4); 7.8 needs a driver of CUDA 11.8. The back end refuses a version below the minimum of
    /// the architecture.
    pub(crate) fn ptx_version(self) -> (u32, u32) {
        match self {
            Self::Sm80 | Self::Sm86 | Self::Sm89 | Self::Sm90 => (7, 8),
            Self::Sm90a => (8, 0),
            Self::Sm100 => (8, 6),
            Self::Sm120 => (8, 7),
        }
    }
}

impl fmt::Display for GpuArch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Why a device build gave no PTX.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BuilderError {
    /// There is no compiler for device code; the message holds the commands that install one.
    #[error(transparent)]
    Compiler(#[from] CompilerError),
    /// The kernel crate's manifest has no package name.
    #[error("{0}: no package name found")]
    NoPackage(PathBuf),
    /// There is no target directory: neither a build script's `OUT_DIR` nor [`CudaBuilder::target_dir`] is set.
    #[error("no OUT_DIR in the environment: outside a build script, set CudaBuilder::target_dir")]
    NoTargetDir,
    /// cargo ran and failed; its messages were printed to standard error.
    #[error("the device build of {package} for {arch} failed ({status}):\n    {command}{}", hints::shown(.hints))]
    BuildFailed {
        /// Package that contains the kernels.
        package: String,
        /// Architecture of the build.
        arch: GpuArch,
        /// Exit status of cargo.
        status: std::process::ExitStatus,
        /// The command that was run.
        command: String,
        /// One line for each name of `std` that the compiler did not find, with its replacement in a kernel.
        hints: Vec<String>,
    },
    /// [`CudaBuilder::kernels`] names a kernel that the crate does not have.
    #[error("{package} has no kernel {name}")]
    NoSuchKernel {
        /// Package that contains the kernels.
        package: String,
        /// Name that the crate does not have.
        name: String,
        /// All kernels of the crate, sorted.
        kernels: Vec<String>,
    },
    /// The PTX could not be processed.
    #[error(transparent)]
    Ptx(#[from] PtxError),
    /// An error of the operating system.
    #[error("{path}: {source}")]
    Io {
        /// File, folder or program.
        path: PathBuf,
        /// Error of the operating system.
        source: std::io::Error,
    },
}

/// The result of a device build.
#[derive(Debug, Clone)]
pub struct PtxInfo {
    /// The PTX text of all kernels, with launch bounds. Its target is `arch`, even if a kernel requires another
    /// architecture; in `modules` each kernel has the target that it requires.
    pub ptx: String,
    /// One module for each kernel: (kernel, PTX), sorted by kernel. See [`ptx::split`].
    pub modules: Vec<(String, String)>,
    /// All kernels of the crate, sorted. After [`CudaBuilder::kernels`], `modules` has only those that were selected.
    pub kernels: Vec<String>,
    /// Architecture of the build.
    pub arch: GpuArch,
    /// Compiler that made the PTX.
    pub compiler: DeviceCompiler,
    /// Source files of the kernel crate and of its path dependencies, with their manifests.
    pub sources: Vec<PathBuf>,
}

/// Compiles a crate of kernels to PTX. See the crate's page.
#[derive(Debug, Clone)]
pub struct CudaBuilder {
    path_to_crate: PathBuf,
    arch: GpuArch,
    copy_to: Option<PathBuf>,
    target_dir: Option<PathBuf>,
    compiler: Option<DeviceCompiler>,
    kernels: Option<Vec<String>>,
    emit_rerun: bool,
}

impl CudaBuilder {
    /// Builds the crate in the folder `path_to_crate` (relative to the working directory, which in a build script is
    /// the folder of the script's own package) for [`GpuArch::Sm80`].
    pub fn new(path_to_crate: impl AsRef<Path>) -> Self {
        Self {
            path_to_crate: path_to_crate.as_ref().to_owned(),
            arch: GpuArch::Sm80,
            copy_to: None,
            target_dir: None,
            compiler: None,
            kernels: None,
            emit_rerun: std::env::var_os("OUT_DIR").is_some(),
        }
    }

    /// The architecture to compile for.
    #[must_use]
    pub fn arch(mut self, arch: GpuArch) -> Self {
        self.arch = arch;
        self
    }

    /// Writes the PTX text to this file as well.
    #[must_use]
    pub fn copy_to(mut self, path: impl AsRef<Path>) -> Self {
        self.copy_to = Some(path.as_ref().to_owned());
        self
    }

    /// The target directory of the device build. Default in a build script: `cuda-builder/` in the target directory
    /// that contains `OUT_DIR`, so that builds of different profiles and features share one device build.
    #[must_use]
    pub fn target_dir(mut self, path: impl AsRef<Path>) -> Self {
        self.target_dir = Some(path.as_ref().to_owned());
        self
    }

    /// The compiler to use instead of the result of [`DeviceCompiler::find`].
    #[must_use]
    pub fn compiler(mut self, compiler: DeviceCompiler) -> Self {
        self.compiler = Some(compiler);
        self
    }

    /// Compiles only the kernels with these names (default: all). A device build spends most of its time on optimising
    /// the code that kernels reach, so a build of one kernel takes a tenth of the time of a build of 170.
    ///
    /// The code generator orders the instructions of some kernels differently when it compiles them alone: 3 of 19 in a
    /// comparison, with the same number of registers after assembly or a few more or less. Ship the build of all
    /// kernels.
    ///
    /// Builds of different selections share the target directory and overwrite each other: a change of the selection
    /// compiles the kernel crate again, but not `core`.
    #[must_use]
    pub fn kernels(mut self, names: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.kernels = Some(names.into_iter().map(Into::into).collect());
        self
    }

    /// Whether to print cargo's `rerun-if-changed` lines. Default: in a build script only.
    #[must_use]
    pub fn emit_rerun(mut self, emit: bool) -> Self {
        self.emit_rerun = emit;
        self
    }

    /// Compiles the kernels to PTX.
    ///
    /// If nothing has changed, a build costs one run of cargo (a fraction of a second). The first build compiles `core`
    /// (about 20 s). Of a build of 173 kernels (17 s, one core, November 2026), LLVM took 14 s and the front end 2 s; a
    /// build of one of these kernels took 1.5 s ([`CudaBuilder::kernels`]).
    ///
    /// # Errors
    /// [`BuilderError`]. If there is no compiler, its message has the commands that install one.
    pub fn build(self) -> Result<PtxInfo, BuilderError> {
        let crate_dir = canonical(&self.path_to_crate)?;
        let manifest = crate_dir.join("Cargo.toml");
        if self.emit_rerun {
            for name in ["WARPANN_DEVICE_RUSTC", "WARPANN_DEVICE_CARGO"] {
                println!("cargo::rerun-if-env-changed={name}");
            }
        }
        let text = std::fs::read_to_string(&manifest).map_err(io_at(&manifest))?;
        let package = package_name(&text).ok_or_else(|| BuilderError::NoPackage(manifest.clone()))?;
        let compiler = self.compiler.clone().map_or_else(DeviceCompiler::find, Ok)?;

        let target_dir = match &self.target_dir {
            Some(path) => path.clone(),
            None => default_target_dir(&PathBuf::from(std::env::var_os("OUT_DIR").ok_or(BuilderError::NoTargetDir)?)),
        }
        .join(self.arch.name());
        std::fs::create_dir_all(&target_dir).map_err(io_at(&target_dir))?;
        let target_dir = canonical(&target_dir)?;
        // Builds of two profiles may run at the same time, and cargo's lock ends before the text is read.
        let lock = target_dir.join("cuda-builder.lock");
        let guard = File::create(&lock).and_then(|file| file.lock().map(|()| file)).map_err(io_at(&lock))?;

        // Two checkouts may share a target folder. Each needs a separate output file, or the build of one would take
        // the output of the other for fresh.
        let checkout = {
            let mut hasher = std::hash::DefaultHasher::new();
            std::hash::Hash::hash(&crate_dir, &mut hasher);
            std::hash::Hasher::finish(&hasher)
        };
        let assembly = target_dir.join(format!("{}-{checkout:016x}.s", package.replace('-', "_")));
        let mut command = self.command(&crate_dir, &package, &compiler, &target_dir, &assembly);
        // The linker of the cdylib writes nothing, and cargo compiles again if its output is missing, so this file
        // stands in for it.
        let linked = target_dir.join(TARGET).join("release/deps").join(format!("{}.ptx", package.replace('-', "_")));
        let mut compile = || {
            run(&mut command, &package, self.arch)?;
            // Written in every build, because cargo compares its time stamp with those of the dependencies.
            std::fs::write(&linked, "The text is in the file that --emit=asm names.\n").map_err(io_at(&linked))
        };
        compile()?;
        if !assembly.is_file() {
            // cargo takes the build for fresh, but its output was removed. A new time stamp makes cargo compile the
            // last crate again.
            let root = crate_dir.join("src/lib.rs");
            let now = std::time::SystemTime::now();
            File::options().append(true).open(&root).and_then(|file| file.set_modified(now)).map_err(io_at(&root))?;
            compile()?;
        }
        let raw = std::fs::read_to_string(&assembly).map_err(io_at(&assembly))?;
        let sources = sources(&target_dir, &package, &crate_dir)?;
        drop(guard);

        let mut kernels: Vec<String> = ptx::notes(&raw)?.into_iter().map(|note| note.name).collect();
        kernels.sort();
        let raw = match &self.kernels {
            None => raw,
            Some(names) => {
                if let Some(name) = names.iter().find(|name| kernels.binary_search(name).is_err()) {
                    return Err(BuilderError::NoSuchKernel { package, name: name.clone(), kernels });
                }
                ptx::without_notes(&raw, |name| !names.iter().any(|wanted| wanted == name))
            }
        };
        let ptx = ptx::apply_launch_bounds(&raw)?;
        let modules = ptx::split(&ptx)?;
        if let Some(path) = &self.copy_to {
            std::fs::write(path, &ptx).map_err(io_at(path))?;
        }
        if self.emit_rerun {
            // Paths are relative to the package, so that each of several checkouts with one target folder watches its
            // files.
            let package = std::env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from);
            for source in &sources {
                let shown = package.as_deref().and_then(|package| relative(source, package));
                println!("cargo::rerun-if-changed={}", shown.as_deref().unwrap_or(source).display());
            }
        }
        Ok(PtxInfo { ptx, modules, kernels, arch: self.arch, compiler, sources })
    }

    fn command(
        &self,
        crate_dir: &Path,
        package: &str,
        compiler: &DeviceCompiler,
        target_dir: &Path,
        assembly: &Path,
    ) -> Command {
        let (major, minor) = self.arch.ptx_version();
        let flags = [
            &format!("-Ctarget-cpu={}", self.arch),
            &format!("-Ctarget-feature=+ptx{major}{minor}"),
            // The PTX text is the only output, so the linker is a program that does nothing.
            "-Clinker=true",
            "-Zmir-enable-passes=-JumpThreading",
            "-Cllvm-args=-inline-threshold=10000000",
            "-Cllvm-args=-unroll-runtime=false",
            // `#[kernel]` reads this option to leave out entry points.
            "--check-cfg=cfg(cuda_builder_kernels)",
            "--check-cfg=cfg(cuda_builder_kernel,values(any()))",
        ]
        .join("\x1f");
        let mut command = Command::new(&compiler.cargo);
        clear_cargo_environment(&mut command);
        command
            .current_dir(crate_dir)
            .env("RUSTC", &compiler.rustc)
            .env("RUSTC_BOOTSTRAP", "1")
            // Empty means no wrapper, even if the user's cargo configuration names one.
            .env("RUSTC_WRAPPER", "")
            .env("RUSTC_WORKSPACE_WRAPPER", "")
            .env("CARGO_ENCODED_RUSTFLAGS", flags)
            .args(["rustc", "--quiet", "--release", "--package", package, "--lib", "--crate-type", "cdylib"])
            // The messages go through a pipe, into which cargo would not print colours by default.
            .args(["--color", if std::io::stderr().is_terminal() { "always" } else { "never" }])
            .args(["--target", TARGET, "--target-dir"])
            .arg(target_dir);
        for setting in ["panic='abort'", "opt-level=3", "lto='fat'", "codegen-units=1", "debug=false", "strip=false"] {
            command.arg("--config").arg(format!("profile.release.{setting}"));
        }
        if compiler.library == Library::Source {
            command.arg("-Zbuild-std=core");
        }
        let mut emit = OsString::from("--emit=asm=");
        emit.push(assembly);
        command.arg("--").arg(emit);
        if let Some(names) = &self.kernels {
            // Code that only other kernels use is unused in this build.
            command.args(["--allow=unused", "--cfg=cuda_builder_kernels"]);
            // Only identifiers can be names of kernels; another text could become several arguments of rustc.
            let is_name = |name: &&String| name.chars().all(|c| c.is_alphanumeric() || c == '_');
            command.args(names.iter().filter(is_name).map(|name| format!("--cfg=cuda_builder_kernel=\"{name}\"")));
        }
        command
    }
}

/// Runs cargo, passes its messages on to standard error, and looks for hints in them if it fails.
fn run(command: &mut Command, package: &str, arch: GpuArch) -> Result<(), BuilderError> {
    let program = PathBuf::from(command.get_program());
    // cargo reads a build script's standard output, so the messages of the device build go to standard error.
    let mut child = command.stdout(std::io::stderr()).stderr(Stdio::piped()).spawn().map_err(io_at(&program))?;
    let mut messages = String::new();
    let mut expected = ExpectedWarning::default();
    for line in child.stderr.take().into_iter().flat_map(|pipe| BufReader::new(pipe).split(b'\n')) {
        let line = line.map_err(io_at(&program))?;
        let text = hints::without_colours(&String::from_utf8_lossy(&line));
        if !expected.holds(&text) {
            // A failed write to standard error must not stop the build.
            let _ = std::io::stderr().write_all(&[line.as_slice(), b"\n"].concat());
            messages.push_str(&text);
            messages.push('\n');
        }
    }
    let status = child.wait().map_err(io_at(&program))?;
    if status.success() {
        return Ok(());
    }
    let command = format!("{command:?}").replace('\x1f', " ");
    Err(BuilderError::BuildFailed { package: package.to_owned(), arch, status, command, hints: hints::of(&messages) })
}

/// Filters out a warning that rustc prints in every compilation: it takes the PTX version for an unstable feature.
#[derive(Default)]
struct ExpectedWarning {
    inside: bool,
}

impl ExpectedWarning {
    /// Returns whether the next line of the messages belongs to the warning, which ends with an empty line.
    fn holds(&mut self, line: &str) -> bool {
        let first = line.starts_with("warning: unstable feature specified for `-Ctarget-feature`: `ptx");
        let held = self.inside || first;
        self.inside = held && !line.trim().is_empty();
        held
    }
}

/// Removes the environment variables that cargo sets for build scripts, and those that a caller set for the outer
/// build. Settings of cargo itself (home folder, registries, network) stay.
fn clear_cargo_environment(command: &mut Command) {
    const KEPT: [&str; 6] =
        ["CARGO_HOME", "CARGO_HTTP_", "CARGO_NET_", "CARGO_REGISTRIES_", "CARGO_REGISTRY_", "CARGO_SOURCE_"];
    // LD_LIBRARY_PATH contains the libraries of the outer toolchain.
    const GONE: [&str; 12] = [
        "RUSTFLAGS",
        "RUSTDOCFLAGS",
        "RUSTDOC",
        "RUSTUP_TOOLCHAIN",
        "TARGET",
        "HOST",
        "OPT_LEVEL",
        "DEBUG",
        "PROFILE",
        "OUT_DIR",
        "MAKEFLAGS",
        "LD_LIBRARY_PATH",
    ];
    for (name, _) in std::env::vars_os() {
        let Some(text) = name.to_str() else { continue };
        let cargo = text.starts_with("CARGO") && !KEPT.iter().any(|kept| text.starts_with(kept));
        let rustc = text == "RUSTC" || text.starts_with("RUSTC_");
        if cargo || rustc || GONE.contains(&text) || text == "MFLAGS" || text == "NUM_JOBS" {
            command.env_remove(&name);
        }
    }
}

/// `cuda-builder/` in the target directory that contains `out_dir`: the nearest parent folder with cargo's tag file.
/// Without a tag file, `cuda-builder/` in `out_dir` itself.
fn default_target_dir(out_dir: &Path) -> PathBuf {
    let tagged = out_dir.ancestors().skip(1).find(|folder| folder.join("CACHEDIR.TAG").is_file());
    tagged.unwrap_or(out_dir).join("cuda-builder")
}

/// The name in a manifest's `[package]` table.
fn package_name(manifest: &str) -> Option<String> {
    let mut lines = manifest.lines().map(str::trim).skip_while(|line| *line != "[package]").skip(1);
    let line = lines.by_ref().take_while(|line| !line.starts_with('[')).find_map(|line| {
        let value = line.strip_prefix("name")?.trim_start().strip_prefix('=')?;
        Some(value.trim().trim_matches(['"', '\'']).to_owned())
    });
    line.filter(|name| !name.is_empty())
}

/// The sources that cargo's dep-info file names, and the manifest of every crate among them.
fn sources(target_dir: &Path, package: &str, crate_dir: &Path) -> Result<Vec<PathBuf>, BuilderError> {
    let dep_info = target_dir.join(TARGET).join("release").join(format!("{}.d", package.replace('-', "_")));
    let text = match std::fs::read_to_string(&dep_info) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
        Err(error) => return Err(io_at(&dep_info)(error)),
    };
    let mut sources = vec![crate_dir.join("Cargo.toml"), crate_dir.join("src")];
    for file in dep_info_files(&text) {
        let manifest = file.ancestors().skip(1).map(|folder| folder.join("Cargo.toml")).find(|path| path.is_file());
        sources.extend(manifest);
        sources.push(file);
    }
    sources.sort();
    sources.dedup();
    Ok(sources)
}

/// The files to the right of the first colon of a dep-info file, in which `\ ` is a space inside a name.
fn dep_info_files(text: &str) -> Vec<PathBuf> {
    let Some((_, files)) = text.lines().next().and_then(|line| line.split_once(": ")) else { return Vec::new() };
    let marked = files.replace("\\ ", "\0");
    marked.split_whitespace().map(|file| PathBuf::from(file.replace('\0', " "))).collect()
}

fn canonical(path: &Path) -> Result<PathBuf, BuilderError> {
    path.canonicalize().map_err(io_at(path))
}

fn io_at(path: &Path) -> impl FnOnce(std::io::Error) -> BuilderError {
    let path = path.to_owned();
    move |source| BuilderError::Io { path, source }
}

/// `path` as seen from the folder `from`; none unless both are absolute.
fn relative(path: &Path, from: &Path) -> Option<PathBuf> {
    if !path.is_absolute() || !from.is_absolute() {
        return None;
    }
    let shared = path.components().zip(from.components()).take_while(|(a, b)| a == b).count();
    let up = from.components().skip(shared).map(|_| std::path::Component::ParentDir);
    Some(up.chain(path.components().skip(shared)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;
    use std::ffi::OsStr;

    #[test]
    fn names_of_architectures_go_both_ways() {
        for arch in GpuArch::ALL {
            assert_eq!(GpuArch::from_name(arch.name()), Some(arch));
        }
        assert_eq!(GpuArch::from_name("sm_75"), None);
    }

    #[test]
    fn sources_are_named_from_the_package() {
        let seen = |path, from| relative(Path::new(path), Path::new(from));
        assert_eq!(seen("/a/kernels/src/lib.rs", "/a/host"), Some("../kernels/src/lib.rs".into()));
        assert_eq!(seen("/a/host/build.rs", "/a/host"), Some("build.rs".into()));
        assert_eq!(seen("kernels", "/a/host"), None);
    }

    #[test]
    fn package_names() {
        let manifest =
            "# name = \"no\"\n[package]\nversion = \"1\"\nname = \"warpann-kernels\"\n[lib]\nname = \"other\"\n";
        assert_eq!(package_name(manifest).as_deref(), Some("warpann-kernels"));
        assert_eq!(package_name("[workspace]\n[package]\n[lib]\nname = \"other\"\n"), None);
    }

    #[test]
    fn dep_info() {
        let files = dep_info_files("/t/k.ptx: /a/src/lib.rs /b\\ c/src/lib.rs\n\nother: line\n");
        assert_eq!(files, [PathBuf::from("/a/src/lib.rs"), PathBuf::from("/b c/src/lib.rs")]);
        assert!(dep_info_files("").is_empty());
    }

    #[test]
    fn the_target_directory_is_shared_by_profiles() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        let out = root.join("debug/build/warpann-0123/out");
        std::fs::create_dir_all(&out).unwrap();
        assert_eq!(default_target_dir(&out), out.join("cuda-builder"));
        std::fs::write(root.join("CACHEDIR.TAG"), "").unwrap();
        assert_eq!(default_target_dir(&out), root.join("cuda-builder"));
    }

    #[test]
    fn the_device_build_has_its_own_environment() {
        let compiler = DeviceCompiler {
            rustc: "/r/rustc".into(),
            cargo: "/r/cargo".into(),
            origin: crate::Origin::System,
            library: Library::Source,
            version: String::new(),
        };
        let builder = CudaBuilder::new("k").arch(GpuArch::Sm90a);
        let command = builder.command(Path::new("/k"), "k", &compiler, Path::new("/t"), Path::new("/t/k.s"));
        let env: HashMap<&OsStr, Option<&OsStr>> = command.get_envs().collect();
        assert_eq!(env[OsStr::new("RUSTC")], Some("/r/rustc".as_ref()));
        let flags = env[OsStr::new("CARGO_ENCODED_RUSTFLAGS")].unwrap().to_str().unwrap();
        assert!(flags.contains("-Ctarget-cpu=sm_90a\x1f-Ctarget-feature=+ptx80"));
        // cargo sets these for every test.
        assert_eq!(env[OsStr::new("CARGO_MANIFEST_DIR")], None);
        assert!(!env.contains_key(OsStr::new("CARGO_HOME")) && !env.contains_key(std::ffi::OsStr::new("PATH")));
        let args: Vec<_> = command.get_args().map(|arg| arg.to_str().unwrap()).collect();
        for expected in ["-Zbuild-std=core", "cdylib", "profile.release.lto='fat'", "--emit=asm=/t/k.s"] {
            assert!(args.contains(&expected), "{args:?}");
        }
        let precompiled = DeviceCompiler { library: Library::Precompiled, ..compiler };
        let command = builder.command(Path::new("/k"), "k", &precompiled, Path::new("/t"), Path::new("/t/k.s"));
        assert!(!command.get_args().any(|arg| arg == "-Zbuild-std=core"));
    }

    /// A crate of two kernels that needs no `core`, so that a device build of it takes a second.
    const KERNELS: &str = r#"
#![feature(no_core, lang_items, abi_ptx, asm_experimental_arch, decl_macro, rustc_attrs)]
#![no_core]
#![allow(internal_features)]
#[lang = "pointee_sized"]
pub trait PointeeSized {}
#[lang = "meta_sized"]
pub trait MetaSized: PointeeSized {}
#[lang = "sized"]
pub trait Sized: MetaSized {}
#[rustc_builtin_macro]
macro global_asm() {}

#[cfg(any(not(cuda_builder_kernels), cuda_builder_kernel = "first"))]
#[unsafe(no_mangle)]
unsafe extern "ptx-kernel" fn first() {}
global_asm!("// warpann.kernel first maxntid=32");

#[cfg(any(not(cuda_builder_kernels), cuda_builder_kernel = "second"))]
#[unsafe(no_mangle)]
unsafe extern "ptx-kernel" fn second() {}
global_asm!("// warpann.kernel second maxntid=64");
"#;

    /// Writes the crate to a folder. Returns the folder and a builder.
    fn small_crate(source: &str) -> (tempfile::TempDir, CudaBuilder) {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("src")).unwrap();
        let manifest = "[package]\nname = \"small\"\nedition = \"2024\"\n[workspace]\n";
        std::fs::write(folder.path().join("Cargo.toml"), manifest).unwrap();
        std::fs::write(folder.path().join("src/lib.rs"), source).unwrap();
        let compiler = DeviceCompiler { library: Library::Precompiled, ..DeviceCompiler::find().unwrap() };
        let target = folder.path().join("target");
        let builder = CudaBuilder::new(folder.path()).compiler(compiler).target_dir(target).emit_rerun(false);
        (folder, builder)
    }

    /// The time at which the compiler last wrote PTX.
    fn compiled_at(folder: &Path) -> std::time::SystemTime {
        let files = std::fs::read_dir(folder.join("target/sm_80")).unwrap().map(|entry| entry.unwrap().path());
        let text = files.filter(|file| file.extension().is_some_and(|extension| extension == "s"));
        text.map(|file| file.metadata().unwrap().modified().unwrap()).max().unwrap()
    }

    #[test]
    fn an_up_to_date_build_compiles_nothing() {
        let (folder, builder) = small_crate(KERNELS);
        let first = builder.clone().build().unwrap();
        let names: Vec<&str> = first.modules.iter().map(|module| module.0.as_str()).collect();
        assert_eq!(names, ["first", "second"]);
        let compiled = compiled_at(folder.path());
        assert_eq!(builder.clone().build().unwrap().ptx, first.ptx);
        assert_eq!(compiled_at(folder.path()), compiled);
        // The check can fail: a changed source is compiled.
        std::fs::write(folder.path().join("src/lib.rs"), KERNELS.replace("maxntid=64", "maxntid=96")).unwrap();
        assert!(builder.build().unwrap().ptx.contains(".maxntid 96"));
        assert!(compiled_at(folder.path()) > compiled);
    }

    #[test]
    fn some_kernels_are_compiled_alone() {
        let (_folder, builder) = small_crate(KERNELS);
        let all = builder.clone().build().unwrap();
        assert_eq!(all.kernels, ["first", "second"]);
        let one = builder.clone().kernels(["second"]).build().unwrap();
        assert_eq!((one.kernels, &one.modules[..]), (all.kernels, &all.modules[1..]));
        for unknown in ["third", "secon", "a b\", cfg(x)"] {
            let error = builder.clone().kernels(["first", unknown]).build().unwrap_err();
            let BuilderError::NoSuchKernel { name, kernels, .. } = error else { panic!("{error}") };
            assert_eq!((name.as_str(), &kernels[..]), (unknown, &["first".to_owned(), "second".to_owned()][..]));
        }
    }

    #[test]
    fn a_failed_build_says_what_to_use_instead_of_std() {
        let (_folder, builder) = small_crate(&format!("{KERNELS}fn f() {{ println!(); }}"));
        let error = builder.build().unwrap_err();
        assert!(error.to_string().contains("`println!`: a kernel cannot print"), "{error}");
    }

    #[test]
    fn the_warning_of_the_ptx_version_is_left_out() {
        let mut expected = ExpectedWarning::default();
        let lines = [
            ("warning: unused variable: `x`", false),
            ("warning: unstable feature specified for `-Ctarget-feature`: `ptx78`", true),
            ("  = note: this feature is not stably supported; its behavior can change in the future", true),
            ("", true),
            ("", false),
        ];
        for (line, held) in lines {
            assert_eq!(expected.holds(line), held, "{line}");
        }
    }
}
