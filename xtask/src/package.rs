//! `cargo xtask package`: makes the packages of a registry and tests them as a stranger would use them.
//!
//! 1. Copies the compiled kernels into `host/ptx`, the part of the package `warpann` that git does not have.
//! 2. `cargo publish --dry-run` for all packages, which cargo orders by their dependencies, packs, and does not upload.
//!    Its builds of each package are left out, because step 4 compiles or type-checks all packages.
//! 3. Unpacks the packages outside of the repository and compares the kernels in them with the compiled ones, byte by
//!    byte.
//! 4. Builds and runs a new crate that depends on them, and checks those that it does not depend on
//!    ([`crate::outside`]).

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::outside;
use crate::shell::{self, Result, cargo};

/// The packages that are published. Each depends only on packages before it.
pub const PACKAGES: [&str; 10] = [
    "warpann-test-random",
    "warpann-cuda-std-macros",
    "warpann-cuda-std",
    "warpann-cuda-builder",
    "warpann-cuda-loader",
    "warpann-kernels",
    "warpann",
    "warpann-measure",
    "warpann-test-cases",
    "warpann-cli",
];

/// The files with the kernels, in the build script's folder and in the package.
const KERNELS: [&str; 2] = ["modules.rs", "modules.bin"];

pub fn run() -> Result<()> {
    let compiled = compiled_kernels()?;
    let shipped = shell::root().join("host/ptx");
    std::fs::create_dir_all(&shipped)?;
    for file in KERNELS {
        let (compiled, shipped) = (std::fs::read(compiled.join(file))?, shipped.join(file));
        // Cargo watches the files, and would compile the library again for a new time stamp.
        if std::fs::read(&shipped).ok().as_ref() != Some(&compiled) {
            std::fs::write(shipped, compiled)?;
        }
    }

    let folder = outside::Folder::create()?;
    let archives = publish(&folder.path().join("publish"))?;
    for name in PACKAGES {
        unpack(name, &archives, &folder.path().join(name))?;
    }
    let packed = folder.path().join("warpann/ptx");
    for file in KERNELS {
        same_bytes(&compiled.join(file), &packed.join(file))?;
    }
    println!("the kernels in the package are those that this checkout compiles");
    outside::test(folder.path())
}

/// The metadata that cargo prints of a package of the workspace.
pub fn metadata(name: &str) -> Result<Value> {
    let metadata = shell::output(cargo().args(["metadata", "--no-deps", "--format-version", "1"]))?;
    let metadata: Value = serde_json::from_str(&metadata)?;
    let packages = metadata["packages"].as_array().ok_or("cargo metadata has no packages")?;
    let package = packages.iter().find(|package| package["name"] == name);
    Ok(package.ok_or_else(|| format!("there is no package {name}"))?.clone())
}

/// The folder into which the library's build script wrote the kernels. The build is the demo's, so nothing is compiled
/// twice.
fn compiled_kernels() -> Result<PathBuf> {
    let mut build = crate::demo::build();
    build.arg("--message-format=json-render-diagnostics");
    eprintln!("$ {}", shell::shown(&build));
    let messages = shell::output(&mut build)?;
    for line in messages.lines() {
        let message: Value = serde_json::from_str(line)?;
        let out = message["out_dir"].as_str().map(Path::new);
        if message["reason"] == "build-script-executed"
            && let Some(out) = out.filter(|out| out.join(KERNELS[0]).exists())
        {
            return Ok(out.to_owned());
        }
    }
    Err("no build script wrote kernels".into())
}

/// Makes all packages and publishes them without uploading. Returns the folder with the archives.
///
/// `target` must be a new folder. `cargo publish` puts the packages into a registry below it. Cargo trusts that a
/// version in a registry never changes, so with the same folder it would take the packages of an earlier run.
fn publish(target: &Path) -> Result<PathBuf> {
    let unpacked = unpacked_registries();
    // `cargo publish` keeps the archives in a place of its own, so `cargo package` packs the same once more.
    for words in [&["package"][..], &["publish", "--dry-run"]] {
        let mut command = cargo();
        command.args(words).args(["--no-verify", "--allow-dirty", "--target-dir"]).arg(target);
        for name in PACKAGES {
            command.args(["-p", name]);
        }
        shell::run(&mut command)?;
    }
    for registry in unpacked_registries().difference(&unpacked) {
        std::fs::remove_dir_all(registry)?;
    }
    Ok(target.join("package"))
}

/// The folders in which cargo keeps the unpacked packages of registries without a host, such as that of
/// `cargo publish`.
fn unpacked_registries() -> BTreeSet<PathBuf> {
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| std::env::home_dir().map(|home| home.join(".cargo")));
    let entries = home.and_then(|home| std::fs::read_dir(home.join("registry/src")).ok());
    let paths = entries.into_iter().flatten().flatten().map(|entry| entry.path());
    paths.filter(|path| path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"-"))).collect()
}

/// Unpacks a package from the folder `archives` as the folder `to`.
fn unpack(name: &str, archives: &Path, to: &Path) -> Result<()> {
    let version = env!("CARGO_PKG_VERSION");
    let archive = archives.join(format!("{name}-{version}.crate"));
    std::fs::create_dir_all(to)?;
    // `--touch`: cargo gives files in packages one fixed time, and so would not notice that another version of one was
    // unpacked.
    let mut tar = Command::new("tar");
    tar.args(["--extract", "--touch", "--strip-components=1", "--file"]).arg(archive).arg("--directory").arg(to);
    shell::output(&mut tar).map(|_| ())
}

/// Fails unless two files have the same bytes.
fn same_bytes(compiled: &Path, packed: &Path) -> Result<()> {
    let read = |file: &Path| std::fs::read(file).map_err(|error| format!("{}: {error}", file.display()));
    let (compiled, shipped) = (read(compiled)?, read(packed)?);
    if compiled == shipped {
        return Ok(());
    }
    let first = compiled.iter().zip(&shipped).position(|(a, b)| a != b).unwrap_or(compiled.len().min(shipped.len()));
    Err(format!(
        "{} has {} bytes and differs from the compiled kernels ({} bytes) at byte {first}",
        packed.display(),
        shipped.len(),
        compiled.len()
    )
    .into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_package_with_other_kernels_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, bytes: &[u8]| {
            let path = folder.path().join(name);
            std::fs::write(&path, bytes).unwrap();
            path
        };
        let compiled = file("compiled", b"kernels");
        same_bytes(&compiled, &file("same", b"kernels")).unwrap();
        let message = |bytes| same_bytes(&compiled, &file("packed", bytes)).unwrap_err().to_string();
        assert!(message(b"kernelz").contains("at byte 6"));
        assert!(message(b"kern").contains("has 4 bytes"));
        assert!(same_bytes(&compiled, &folder.path().join("missing")).unwrap_err().to_string().contains("missing"));
    }
}
