//! A new crate, outside of the repository, that depends on the packages.
//!
//! Its program is the example of the library's page. Its profile and its configuration for the feature `cuda` are the
//! lines of that page. So all of them are tested as they stand there. The build has neither the repository's settings
//! nor its toolchain, no compiler for device code, and none of the variables of warpann and CUDA. The documentation is
//! built with the settings of a documentation host.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::package::{self, PACKAGES};
use crate::shell::{self, Result};

/// The page with the example and the line.
const PAGE: &str = "host/README.md";

/// A second program of the crate: without the feature `emulator` there is no emulator.
const WITHOUT_EMULATOR: &str = "
use warpann::{Device, Error, FlatIndex, Metric, NoDeviceReason};

fn main() {
    let refused = FlatIndex::<f32>::new(2, Metric::L2, Device::Emulator).err();
    assert!(matches!(refused, Some(Error::NoDevice { reason: NoDeviceReason::EmulatorOff })), \"{refused:?}\");
}
";

/// The settings of a build, and its limits.
struct Build {
    features: &'static [&'static str],
    /// None is the toolchain that a user gets by default.
    toolchain: Option<&'static str>,
    /// Crates in `cargo tree`, with those for building.
    most_crates: usize,
    /// Bytes of the program, stripped.
    most_bytes: u64,
}

/// The oldest rustc that the packages support, which is the repository's own.
const OLDEST: &str = concat!(env!("CARGO_PKG_RUST_VERSION"), ".0");

const BUILDS: [Build; 2] = [
    // 1,074,000 and 5,577,416 bytes (2026-11-30). A day before, when every program had the kernels for the emulator,
    // they were 2.36 and 6.30 MB. With codes of bits the second has 5,855,320, and with all since then 6,016,904; bits
    // in inverted files and the encoder of bits add 13 kernels.
    Build { features: &[], toolchain: None, most_crates: 40, most_bytes: 1_150_000 },
    Build { features: &["cuda"], toolchain: Some(OLDEST), most_crates: 55, most_bytes: 6_200_000 },
];

/// A folder below the system's folder for temporary files, which is removed with this value.
pub struct Folder(PathBuf);

impl Folder {
    pub fn create() -> Result<Self> {
        let path = std::env::temp_dir().join(format!("warpann-packages-{}", std::process::id()));
        std::fs::create_dir(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        Ok(Self(path))
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // Files that remain are in the system's folder for temporary files.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Builds and runs the crate with the packages that lie in `packages`, each in a folder of its name, documents the
/// library, and checks the packages that no such crate has.
pub fn test(packages: &Path) -> Result<()> {
    let page = std::fs::read_to_string(shell::root().join(PAGE))?;
    let example = blocks(&page, "rust").into_iter().next().ok_or_else(|| format!("{PAGE} has no Rust program"))?;
    let block = |start: &str| blocks(&page, "toml").into_iter().find(|block| block.starts_with(start));
    let configuration = block("env.CUDA_LIBRARY_PATH").ok_or_else(|| format!("{PAGE} has no line for CUDA"))?;
    let profile = block("[profile.dev").ok_or_else(|| format!("{PAGE} has no lines for development builds"))?;
    let fresh = |name: &str, features: &[&str]| -> Result<PathBuf> {
        let folder = packages.join(name);
        std::fs::create_dir_all(folder.join("src"))?;
        std::fs::write(folder.join("Cargo.toml"), manifest(packages, features)? + &profile)?;
        std::fs::create_dir_all(folder.join("src/bin"))?;
        std::fs::write(folder.join("src/main.rs"), &example)?;
        std::fs::write(folder.join("src/bin/without_emulator.rs"), WITHOUT_EMULATOR)?;
        // The versions of dependencies that the repository's tests use.
        std::fs::copy(shell::root().join("Cargo.lock"), folder.join("Cargo.lock"))?;
        Ok(folder)
    };
    for build in &BUILDS {
        let folder = fresh(&format!("fresh-{}", build.features.join("-")), build.features)?;
        if build.features.contains(&"cuda") {
            std::fs::create_dir_all(folder.join(".cargo"))?;
            std::fs::write(folder.join(".cargo/config.toml"), &configuration)?;
        }
        run_build(build, &folder)?;
    }
    for (name, others) in [("warpann-cuda-builder", &PACKAGES[..]), ("warpann-cli", &["warpann-cli"])] {
        check(&packages.join(name), &configuration, &patches(packages, others)?)?;
    }
    let features = documented_features()?;
    document(&fresh("documented", &features.iter().map(String::as_str).collect::<Vec<_>>())?)
}

/// Type-checks the package in `folder`, and with it the packages that it depends on. What a package lacks shows here as
/// in a build, and nobody runs the product.
fn check(folder: &Path, configuration: &str, patches: &str) -> Result<()> {
    std::fs::create_dir_all(folder.join(".cargo"))?;
    std::fs::write(folder.join(".cargo/config.toml"), format!("{configuration}\n{patches}"))?;
    std::fs::copy(shell::root().join("Cargo.lock"), folder.join("Cargo.lock"))?;
    shell::run(command_of_a_stranger("cargo", folder).arg("check"))
}

/// Builds the documentation as docs.rs does: with a nightly compiler's options, its variable, and no driver. cust needs
/// no line there.
fn document(folder: &Path) -> Result<()> {
    let mut command = command_of_a_stranger("cargo", folder);
    // The release profile has its build scripts and procedural macros already.
    command.args(["doc", "--release", "--no-deps", "--package", "warpann"]);
    command.env("DOCS_RS", "1").env("RUSTC_BOOTSTRAP", "1").env("RUSTDOCFLAGS", "--cfg docsrs -D warnings");
    shell::run(&mut command)
}

/// The features that the library's manifest names for docs.rs.
fn documented_features() -> Result<Vec<String>> {
    let library = package::metadata("warpann")?;
    let features = library["metadata"]["docs"]["rs"]["features"].as_array().ok_or("no features for docs.rs")?;
    Ok(features.iter().filter_map(Value::as_str).map(str::to_owned).collect())
}

fn run_build(build: &Build, folder: &Path) -> Result<()> {
    let of_toolchain = |program| {
        let mut command = command_of_a_stranger(program, folder);
        command.args(build.toolchain.map(|version| format!("+{version}")));
        command
    };
    let cargo = || of_toolchain("cargo");
    let version = shell::output(of_toolchain("rustc").arg("--version"))?;
    let tree = shell::output(cargo().args(["tree", "--edges", "normal,build", "--prefix", "none"]))?;
    // The crate itself is one of the lines.
    let crates = crates(&tree).len() - 1;

    let before = shell::children_cpu_seconds();
    shell::run(cargo().args(["build", "--release"]))?;
    let seconds = shell::children_cpu_seconds() - before;
    let program = target_of(folder).join("release/fresh");
    let bytes = std::fs::metadata(&program)?.len();
    let printed = shell::output(&mut command_of_a_stranger(&program.display().to_string(), folder))?;
    println!(
        "features {:?}, {}: {crates} crates, {seconds:.0} s of CPU, {bytes} bytes; it prints\n{}",
        build.features,
        version.trim(),
        printed.trim()
    );

    shell::run(&mut command_of_a_stranger(&program.with_file_name("without_emulator").display().to_string(), folder))?;
    if !printed.starts_with("[(500, 0.0)") {
        return Err("the program does not find vector 500 by itself".into());
    }
    if crates > build.most_crates {
        return Err(format!("{crates} crates, at most {} were promised", build.most_crates).into());
    }
    if bytes > build.most_bytes {
        return Err(format!("a program of {bytes} bytes, at most {} were promised", build.most_bytes).into());
    }
    Ok(())
}

/// A command in `folder`, without variables of this build, of warpann and of CUDA, and without a CUDA toolkit on the
/// path.
fn command_of_a_stranger(program: &str, folder: &Path) -> Command {
    const PREFIXES: [&str; 6] = ["WARPANN_", "CUDA_", "RUSTC", "RUSTDOC", "RUSTFLAGS", "RUSTUP_TOOLCHAIN"];
    // The others name folders and the network.
    const KEPT: [&str; 4] = ["CARGO_HOME", "CARGO_HTTP_", "CARGO_NET_", "CARGO_REGISTR"];
    let mut command = Command::new(program);
    command.current_dir(folder).stdin(Stdio::null());
    for (name, _) in std::env::vars_os() {
        let Some(text) = name.to_str() else { continue };
        let of_cargo = text.starts_with("CARGO") && !KEPT.iter().any(|kept| text.starts_with(kept));
        if of_cargo || PREFIXES.iter().any(|prefix| text.starts_with(prefix)) {
            command.env_remove(&name);
        }
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).filter(|folder| !folder.join("nvcc").exists());
    if let Ok(path) = std::env::join_paths(folders) {
        command.env("PATH", path);
    }
    command.env("CARGO_TARGET_DIR", target_of(folder));
    command
}

/// The folder for build products, in which the crates share what they have in common.
fn target_of(folder: &Path) -> PathBuf {
    folder.with_file_name("target")
}

/// The manifest of the crate. What a registry would give comes from `packages`.
fn manifest(packages: &Path, features: &[&str]) -> Result<String> {
    let version = env!("CARGO_PKG_VERSION");
    let mut text = format!(
        "[package]\nname = \"fresh\"\nversion = \"0.0.0\"\nedition = \"2024\"\n\n\
         [dependencies]\nwarpann = {{ version = \"{version}\", features = {features:?} }}\n\n\
         [profile.release]\nstrip = true\n\n"
    );
    // The packages beside and above the library are not dependencies of the crate.
    text += &patches(packages, &["warpann-cli", "warpann-measure", "warpann-test-cases", "warpann-test-random"])?;
    Ok(text)
}

/// The lines that take the packages, without `others`, from the folder `packages` instead of a registry.
fn patches(packages: &Path, others: &[&str]) -> Result<String> {
    let mut text = "[patch.crates-io]\n".to_owned();
    for name in PACKAGES.iter().filter(|name| !others.contains(name)) {
        writeln!(text, "{name} = {{ path = {:?} }}", packages.join(name))?;
    }
    Ok(text)
}

/// The code blocks of a page in a language.
fn blocks(page: &str, language: &str) -> Vec<String> {
    let mut lines = page.lines();
    let mut blocks = Vec::new();
    while lines.any(|line| line.trim_end() == format!("```{language}")) {
        let block = lines.by_ref().take_while(|line| !line.starts_with("```"));
        blocks.push(block.flat_map(|line| [line, "\n"]).collect());
    }
    blocks
}

/// The crates in the output of `cargo tree --prefix none`, which shows some of them several times.
fn crates(tree: &str) -> BTreeSet<&str> {
    tree.lines().map(|line| line.trim_end_matches(" (*)").trim_end()).filter(|line| !line.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crates_are_counted_once() {
        let tree = "fresh v0.0.0 (/x)\nhalf v2.7.1\ncfg-if v1.0.5\nhalf v2.7.1 (*)\n\n[build]\n";
        assert_eq!(crates(tree).len(), 4);
    }

    #[test]
    fn the_blocks_of_a_language() {
        let page = "text\n```toml\nx = 1\n```\n```rust\nfn main() {}\n```\n```rust\nother\n```\n";
        assert_eq!(blocks(page, "rust"), ["fn main() {}\n", "other\n"]);
        assert_eq!(blocks(page, "toml"), ["x = 1\n"]);
        assert!(blocks(page, "c").is_empty());
    }

    #[test]
    fn time_of_children_grows() {
        let before = shell::children_cpu_seconds();
        let busy = "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done";
        assert!(Command::new("sh").args(["-c", busy]).status().unwrap().success());
        assert!(shell::children_cpu_seconds() > before);
    }
}
