//! The search for the rustc that compiles device code.
//!
//! Candidates, in this order:
//! 1. the explicit setting `WARPANN_DEVICE_RUSTC` (and `WARPANN_DEVICE_CARGO`; by default the cargo in the folder of
//!    that rustc, else the first on `PATH`): if it is set, no other compiler is tried;
//! 2. the toolchain that runs the present build (in a rustup checkout: the pinned one), if its sysroot has the library
//!    source (component rust-src) or a ready-made library for nvptx64;
//! 3. a system rustc, first on `PATH`, whose sysroot has the library source (Debian: rustc-web, cargo-web,
//!    rust-web-src).

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The command that adds the library source, which the device build needs, to the rustup toolchain in use.
pub const RUSTUP_COMMAND: &str = "rustup component add rust-src";
/// The Debian packages with a compiler and the library source, for systems without rustup.
pub const DEBIAN_PACKAGES: [&str; 3] = ["rustc-web", "cargo-web", "rust-web-src"];
/// The command that installs [`DEBIAN_PACKAGES`]; it needs root.
pub const DEBIAN_COMMAND: &str = "apt-get install -y rustc-web cargo-web rust-web-src";
/// Oldest rustc 1.x whose nvptx back end is known to compile the kernels (the workspace's `rust-version`).
pub const MINIMUM_MINOR: u32 = 95;

/// The rule by which a device compiler was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// `WARPANN_DEVICE_RUSTC`.
    Setting,
    /// The toolchain that runs the present build.
    Toolchain,
    /// A rustc of the operating system.
    System,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Origin::Setting => "WARPANN_DEVICE_RUSTC",
            Origin::Toolchain => "the toolchain in use",
            Origin::System => "the system",
        })
    }
}

/// The origin of `core` for the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Library {
    /// The device build compiles the sysroot's library source (`-Zbuild-std=core`), with the flags of the kernels.
    Source,
    /// The sysroot has a compiled `core` (`rustup target add nvptx64-nvidia-cuda`).
    Precompiled,
}

/// A rustc and a cargo that can compile device code.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceCompiler {
    /// Path of the program rustc.
    pub rustc: PathBuf,
    /// Path of the cargo that runs `rustc`.
    pub cargo: PathBuf,
    /// The rule that found the compiler.
    pub origin: Origin,
    /// The origin of `core` in a build with this compiler.
    pub library: Library,
    /// The output of `rustc --version`.
    pub version: String,
}

/// Why there is no device compiler.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CompilerError {
    /// No candidate can compile device code.
    #[error(
        "no compiler for device code was found.\n{}\nInstall one with rustup:\n    {RUSTUP_COMMAND}\nor on Debian, as root:\n    \
         apt-get update && {DEBIAN_COMMAND}\nor name one: WARPANN_DEVICE_RUSTC=/path/to/rustc WARPANN_DEVICE_CARGO=/path/to/cargo",
        list(.tried)
    )]
    NotFound {
        /// Each candidate with the reason why it cannot be used.
        tried: Vec<String>,
    },
    /// The explicit setting names a compiler that cannot compile device code.
    #[error("WARPANN_DEVICE_RUSTC={rustc}: {reason}")]
    BadSetting {
        /// Value of the setting.
        rustc: PathBuf,
        /// Why this compiler cannot compile device code.
        reason: String,
    },
}

fn list(tried: &[String]) -> String {
    tried.iter().map(|line| format!("  - {line}")).collect::<Vec<_>>().join("\n")
}

/// The environment variables that the search reads. Tests make other ones than the process has.
#[derive(Debug, Clone, Default)]
pub struct Environment {
    vars: HashMap<OsString, OsString>,
}

impl Environment {
    /// The environment of the process.
    pub fn of_process() -> Self {
        Self { vars: std::env::vars_os().collect() }
    }

    /// Sets a variable for the search; the environment of the process does not change.
    pub fn with(mut self, name: &str, value: impl Into<OsString>) -> Self {
        self.vars.insert(name.into(), value.into());
        self
    }

    /// A variable's value; none if it is empty.
    fn get(&self, name: &str) -> Option<&OsStr> {
        self.vars.get(OsStr::new(name)).map(OsString::as_os_str).filter(|value| !value.is_empty())
    }

    /// Every file of that name on `PATH`, in order, then in /usr/bin.
    fn on_path(&self, program: &str) -> Vec<PathBuf> {
        let mut found = Vec::new();
        let path = self.get("PATH").unwrap_or_default();
        for folder in std::env::split_paths(path).chain([PathBuf::from("/usr/bin")]) {
            let file = folder.join(program);
            if file.is_file() && !found.contains(&file) {
                found.push(file);
            }
        }
        found
    }
}

impl DeviceCompiler {
    /// Finds a device compiler by the module's three rules, in the process's environment.
    ///
    /// # Errors
    /// [`CompilerError::NotFound`], with the commands that install a compiler; [`CompilerError::BadSetting`] if the
    /// compiler of the explicit setting cannot compile device code.
    pub fn find() -> Result<Self, CompilerError> {
        Self::find_in(&Environment::of_process())
    }

    /// [`DeviceCompiler::find`] with the variables `WARPANN_DEVICE_RUSTC`, `WARPANN_DEVICE_CARGO`, `RUSTC`, `CARGO` and
    /// `PATH` of `env`.
    ///
    /// # Errors
    /// As [`DeviceCompiler::find`].
    pub fn find_in(env: &Environment) -> Result<Self, CompilerError> {
        if let Some(rustc) = env.get("WARPANN_DEVICE_RUSTC") {
            let rustc = PathBuf::from(rustc);
            let cargo = env.get("WARPANN_DEVICE_CARGO").map(PathBuf::from);
            return examine(env, &rustc, cargo, Origin::Setting)
                .map_err(|reason| CompilerError::BadSetting { rustc, reason });
        }

        let mut tried = Vec::new();
        let in_use = env.get("RUSTC").map_or_else(|| env.on_path("rustc").into_iter().next(), |path| Some(path.into()));
        match in_use {
            Some(rustc) => match examine(env, &rustc, None, Origin::Toolchain) {
                Ok(found) => return Ok(found),
                Err(reason) => tried.push(format!("the toolchain in use, {}: {reason}", rustc.display())),
            },
            None => tried.push("the toolchain in use: no rustc on PATH".into()),
        }
        for rustc in env.on_path("rustc") {
            if is_rustup_proxy(&rustc) {
                continue;
            }
            match examine(env, &rustc, None, Origin::System) {
                Ok(found) => return Ok(found),
                Err(reason) => tried.push(format!("{}: {reason}", rustc.display())),
            }
        }
        Err(CompilerError::NotFound { tried })
    }
}

/// Whether `rustc` is a rustup proxy, which is rustup itself under another name. It runs the toolchain in use, which
/// the search has already tried.
fn is_rustup_proxy(rustc: &Path) -> bool {
    let same_file = |a: &Path, b: &Path| match (std::fs::metadata(a), std::fs::metadata(b)) {
        #[cfg(unix)]
        (Ok(a), Ok(b)) => {
            use std::os::unix::fs::MetadataExt;
            a.dev() == b.dev() && a.ino() == b.ino()
        }
        _ => false,
    };
    rustc.parent().is_some_and(|folder| same_file(rustc, &folder.join("rustup")))
}

/// Checks whether the compiler at `rustc` can compile device code; the error is the reason why not.
fn examine(env: &Environment, rustc: &Path, cargo: Option<PathBuf>, origin: Origin) -> Result<DeviceCompiler, String> {
    let version = ask(rustc, &["--version"])?;
    let minor = minor_version(&version).ok_or_else(|| format!("'{version}' is not a rustc version"))?;
    if minor < MINIMUM_MINOR {
        return Err(format!("{version} is older than 1.{MINIMUM_MINOR}"));
    }
    let sysroot = PathBuf::from(ask(rustc, &["--print", "sysroot"])?);
    let rustlib = sysroot.join("lib/rustlib");
    // cargo's -Zbuild-std reads this place only, and needs the lock file to resolve the dependencies of core.
    let source = rustlib.join("src/rust/library");
    let has_source = source.join("core/Cargo.toml").is_file() && source.join("Cargo.lock").is_file();
    let library = if has_source {
        Library::Source
    } else if rustlib.join("nvptx64-nvidia-cuda/lib").is_dir() {
        Library::Precompiled
    } else {
        return Err(format!("{version} has neither its library source ({}) nor the nvptx64 target", source.display()));
    };
    // A proxy would select a toolchain again, by RUSTUP_TOOLCHAIN and the working directory; the binary in the sysroot
    // does not.
    let own = sysroot.join("bin/rustc");
    let rustc = if own.is_file() { own } else { rustc.to_path_buf() };
    let cargo = match cargo {
        Some(cargo) => cargo,
        None => {
            find_cargo(env, &rustc, origin).ok_or_else(|| format!("{version} has no cargo in its folder or on PATH"))?
        }
    };
    ask(&cargo, &["--version"])?;
    Ok(DeviceCompiler { rustc, cargo, origin, library, version })
}

/// The cargo in the folder of `rustc`; else, for the toolchain in use, the cargo that runs the present build; else the
/// first on `PATH`.
fn find_cargo(env: &Environment, rustc: &Path, origin: Origin) -> Option<PathBuf> {
    let beside = rustc.with_file_name("cargo");
    if beside.is_file() {
        return Some(beside);
    }
    let running = env.get("CARGO").map(PathBuf::from).filter(|_| origin == Origin::Toolchain);
    running.or_else(|| env.on_path("cargo").into_iter().find(|cargo| !is_rustup_proxy(cargo)))
}

/// The first line that a program prints on its standard output.
fn ask(program: &Path, args: &[&str]) -> Result<String, String> {
    let failed = |what: &dyn fmt::Display| format!("{} {}: {what}", program.display(), args.join(" "));
    let output = Command::new(program).args(args).output().map_err(|error| failed(&error))?;
    if !output.status.success() {
        return Err(failed(&format_args!("{}: {}", output.status, String::from_utf8_lossy(&output.stderr).trim())));
    }
    let text = String::from_utf8_lossy(&output.stdout);
    text.lines().next().map(|line| line.trim().to_owned()).ok_or_else(|| failed(&"no output"))
}

/// The minor version of a text such as "rustc 1.95.0 (59807616e 2026-04-14)": 95.
fn minor_version(version: &str) -> Option<u32> {
    version.strip_prefix("rustc 1.")?.split('.').next()?.parse().ok()
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;
    use std::sync::{Mutex, MutexGuard, PoisonError};

    /// A lock for tests that write and run scripts. Without it, a child that another thread forks at the same time
    /// would inherit the script's open file, and the script would fail with "text file busy".
    fn alone() -> MutexGuard<'static, ()> {
        static ALONE: Mutex<()> = Mutex::new(());
        ALONE.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A sysroot with a shell script for a rustc and one for a cargo.
    struct Fake {
        folder: tempfile::TempDir,
    }

    impl Fake {
        fn new(version: &str) -> Self {
            let folder = tempfile::tempdir().unwrap();
            let root = folder.path();
            std::fs::create_dir_all(root.join("bin")).unwrap();
            let rustc = format!("case \"$1\" in --version) echo '{version}';; *) echo '{}';; esac", root.display());
            script(&root.join("bin/rustc"), &rustc);
            script(&root.join("bin/cargo"), "echo 'cargo 1.95.0'");
            Self { folder }
        }

        fn with_source(self) -> Self {
            let library = self.folder.path().join("lib/rustlib/src/rust/library");
            std::fs::create_dir_all(library.join("core")).unwrap();
            std::fs::write(library.join("core/Cargo.toml"), "").unwrap();
            std::fs::write(library.join("Cargo.lock"), "").unwrap();
            self
        }

        fn with_target(self) -> Self {
            std::fs::create_dir_all(self.folder.path().join("lib/rustlib/nvptx64-nvidia-cuda/lib")).unwrap();
            self
        }

        fn bin(&self) -> PathBuf {
            self.folder.path().join("bin")
        }

        fn rustc(&self) -> PathBuf {
            self.bin().join("rustc")
        }
    }

    fn script(path: &Path, body: &str) {
        std::fs::write(path, format!("#!/bin/sh\n{body}\n")).unwrap();
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }

    /// An environment whose `PATH` holds these compilers, in order. `/usr/bin` always counts as its last entry, so the
    /// tests that expect "none" look at the reasons given for the fakes only.
    fn env(compilers: &[&Fake]) -> Environment {
        Environment::default().with("PATH", std::env::join_paths(compilers.iter().map(|fake| fake.bin())).unwrap())
    }

    const NEW: &str = "rustc 1.95.0 (59807616e 2026-04-14)";

    #[test]
    fn the_setting_comes_first() {
        let _alone = alone();
        let (set, used) = (Fake::new(NEW).with_source(), Fake::new(NEW).with_source());
        let env = env(&[&used]).with("RUSTC", used.rustc()).with("WARPANN_DEVICE_RUSTC", set.rustc());
        let found = DeviceCompiler::find_in(&env).unwrap();
        assert_eq!((found.rustc, found.cargo), (set.rustc(), set.bin().join("cargo")));
        assert_eq!((found.origin, found.library), (Origin::Setting, Library::Source));
    }

    #[test]
    fn a_cargo_may_be_set_too() {
        let _alone = alone();
        let (set, other) = (Fake::new(NEW).with_source(), Fake::new(NEW));
        let cargo = other.bin().join("cargo");
        let env = env(&[]).with("WARPANN_DEVICE_RUSTC", set.rustc()).with("WARPANN_DEVICE_CARGO", &cargo);
        assert_eq!(DeviceCompiler::find_in(&env).unwrap().cargo, cargo);
    }

    #[test]
    fn a_bad_setting_is_refused_and_not_passed_over() {
        let _alone = alone();
        let (set, used) = (Fake::new(NEW), Fake::new(NEW).with_source());
        let env = env(&[&used]).with("WARPANN_DEVICE_RUSTC", set.rustc());
        let error = DeviceCompiler::find_in(&env).unwrap_err();
        assert!(matches!(&error, CompilerError::BadSetting { rustc, .. } if *rustc == set.rustc()), "{error}");

        let env = env.with("WARPANN_DEVICE_RUSTC", "/nonexistent/rustc");
        assert!(matches!(DeviceCompiler::find_in(&env), Err(CompilerError::BadSetting { .. })));
    }

    #[test]
    fn the_toolchain_in_use_comes_before_the_system() {
        let _alone = alone();
        let (used, system) = (Fake::new(NEW).with_source(), Fake::new(NEW).with_source());
        let found = DeviceCompiler::find_in(&env(&[&system]).with("RUSTC", used.rustc())).unwrap();
        assert_eq!((found.rustc, found.origin), (used.rustc(), Origin::Toolchain));
    }

    #[test]
    fn the_toolchain_in_use_may_have_the_target_instead_of_the_source() {
        let _alone = alone();
        let used = Fake::new(NEW).with_target();
        let found = DeviceCompiler::find_in(&env(&[]).with("RUSTC", used.rustc())).unwrap();
        assert_eq!((found.origin, found.library), (Origin::Toolchain, Library::Precompiled));
        let both = Fake::new(NEW).with_target().with_source();
        let found = DeviceCompiler::find_in(&env(&[]).with("RUSTC", both.rustc())).unwrap();
        assert_eq!(found.library, Library::Source);
    }

    #[test]
    fn a_system_compiler_serves_when_the_toolchain_cannot() {
        let _alone = alone();
        let (used, old, system) = (
            Fake::new(NEW),
            Fake::new("rustc 1.63.0 (4b91a6ea7 2022-08-08)").with_source(),
            Fake::new("rustc 1.96.0 (ac68faa20 2026-05-25)").with_source(),
        );
        let found = DeviceCompiler::find_in(&env(&[&used, &old, &system]).with("RUSTC", used.rustc())).unwrap();
        assert_eq!((found.rustc, found.origin), (system.rustc(), Origin::System));
    }

    #[test]
    fn a_rustup_proxy_is_no_system_compiler() {
        let _alone = alone();
        let proxy = Fake::new(NEW).with_source();
        assert!(!is_rustup_proxy(&proxy.rustc()));
        std::fs::hard_link(proxy.rustc(), proxy.bin().join("rustup")).unwrap();
        assert!(is_rustup_proxy(&proxy.rustc()));
    }

    #[test]
    fn the_reasons_name_what_is_missing() {
        let _alone = alone();
        let old = Fake::new("rustc 1.63.0 (4b91a6ea7 2022-08-08)").with_source();
        let reason = examine(&env(&[]), &old.rustc(), None, Origin::System).unwrap_err();
        assert!(reason.contains("older than 1.95"), "{reason}");
        let bare = Fake::new(NEW);
        let reason = examine(&env(&[]), &bare.rustc(), None, Origin::System).unwrap_err();
        assert!(reason.contains("library source"), "{reason}");
    }

    #[test]
    fn the_error_holds_both_commands() {
        let error = CompilerError::NotFound { tried: vec!["a: b".into()] }.to_string();
        for part in ["  - a: b", RUSTUP_COMMAND, DEBIAN_COMMAND, "WARPANN_DEVICE_RUSTC"] {
            assert!(error.contains(part), "{error}");
        }
        assert!(DEBIAN_COMMAND.ends_with(&DEBIAN_PACKAGES.join(" ")));
    }

    #[test]
    fn versions() {
        assert_eq!(minor_version(NEW), Some(95));
        assert_eq!(minor_version("rustc 1.97.0-nightly (abc 2026-01-01)"), Some(97));
        assert_eq!(minor_version("gcc 12"), None);
    }
}
