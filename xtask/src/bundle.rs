//! `cargo xtask gpu-bundle`: packs the files that a GPU host without Rust needs.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::shell::{self, Result, cargo};

/// The largest size of the archive in bytes. Bundles are copied over slow links.
const LIMIT: u64 = 60 << 20;
/// Every program has the library and its kernels, so a dictionary that spans programs counts more than the effort: 21
/// MB where gzip needed 68 (2026-11-30).
const COMPRESS: &str = "xz --lzma2=preset=2,dict=128MiB";
const RUN: &str = include_str!("bundle_run.sh");

pub fn run() -> Result<()> {
    let folder = shell::root().join("gpu-bundle");
    if folder.exists() {
        std::fs::remove_dir_all(&folder)?;
    }
    let staging = shell::target_dir().join("gpu-bundle");
    if staging.exists() {
        std::fs::remove_dir_all(&staging)?;
    }
    std::fs::create_dir_all(staging.join("tests"))?;
    std::fs::create_dir_all(staging.join("bin"))?;
    std::fs::create_dir_all(&folder)?;

    // One cargo command: in a second one cargo would unify features differently and build most crates twice.
    let mut build = cargo();
    build.args([
        "build",
        "--release",
        "--message-format=json-render-diagnostics",
        "--lib",
        "--bins",
        "--tests",
        "--benches",
    ]);
    build.args([
        "-p",
        "warpann",
        "-p",
        "warpann-cli",
        "-p",
        "warpann-tests",
        "-p",
        "warpann-benches",
        "-p",
        "warpann-cuda-loader",
    ]);
    eprintln!("$ {}", shell::shown(&build));
    let mut count = 0;
    for artifact in executables(&shell::output(&mut build)?)? {
        if !artifact.is_test {
            place(&artifact.file, &staging.join("bin").join(&artifact.target))?;
        } else if artifact.belongs() {
            place(&artifact.file, &staging.join("tests").join(artifact.name()))?;
            count += 1;
        }
    }
    copy_folder(&shell::root().join("tests/data"), &staging.join("data"))?;

    let archive = folder.join("warpann.tar.xz");
    let mut tar = Command::new("tar");
    tar.args(["--create", "--use-compress-program", COMPRESS, "--file"]).arg(&archive);
    shell::run(tar.arg("--directory").arg(&staging).args(["tests", "bin", "data"]))?;
    let script = folder.join("run.sh");
    std::fs::write(&script, RUN)?;
    make_executable(&script)?;
    std::fs::remove_dir_all(&staging)?;

    let size = std::fs::metadata(&archive)?.len();
    println!("{}: {count} test programs, {:.1} MiB", folder.display(), size as f64 / f64::from(1 << 20));
    println!("on the GPU host: gpu-bundle/run.sh (gpu-bundle/run.sh --help lists its other commands)");
    if size > LIMIT {
        return Err(format!("the archive has {size} bytes, the limit is {LIMIT}").into());
    }
    Ok(())
}

/// An executable that cargo built.
#[derive(Debug, PartialEq, Eq)]
struct Artifact {
    file: PathBuf,
    /// Folder of the executable's package.
    package: String,
    target: String,
    /// cargo's target kind: lib, bin, test, bench, example.
    kind: String,
    /// Whether the bundle runs the executable as a test; benches are programs.
    is_test: bool,
}

impl Artifact {
    /// Whether the executable is useful on a GPU host. The tests of programs start them from cargo's target folder,
    /// which the GPU host does not have. Tests that open no GPU give the same results on every machine.
    fn belongs(&self) -> bool {
        /// Programs of tests/tests that open no GPU: they use the CPU, the emulator, the emulated driver or nothing.
        const WITHOUT_GPU: [&str; 11] = [
            "anywhere",
            "cpu",
            "driver_cases",
            "driver_cudarc",
            "driver_events",
            "driver_faults",
            "driver_load",
            "emulator",
            "events",
            "host",
            "walkthrough",
        ];
        // Nor do the tests of programs and those in host/tests.
        let of_package = match self.package.as_str() {
            "host" => self.kind == "test",
            "cli" | "benches" => true,
            _ => false,
        };
        // Of the examples, two need a GPU.
        let example =
            self.kind == "example" && !["select_on_stream", "search_on_stream"].contains(&self.target.as_str());
        !of_package && !example && !WITHOUT_GPU.contains(&self.target.as_str())
    }

    /// A name that is unique among packages and kinds: `tests-gpu-test`.
    fn name(&self) -> String {
        format!("{}-{}-{}", self.package, self.target, self.kind)
    }
}

/// The executables in cargo's JSON messages, which have one message per line.
fn executables(messages: &str) -> Result<Vec<Artifact>> {
    let mut found = Vec::new();
    for line in messages.lines().filter(|line| line.starts_with('{')) {
        let message: Value = serde_json::from_str(line)?;
        let Some(file) = message["executable"].as_str() else { continue };
        let manifest = Path::new(message["manifest_path"].as_str().unwrap_or_default());
        let package = manifest.parent().and_then(Path::file_name).unwrap_or_default();
        found.push(Artifact {
            file: file.into(),
            package: package.to_string_lossy().into_owned(),
            target: message["target"]["name"].as_str().unwrap_or_default().to_owned(),
            kind: message["target"]["kind"][0].as_str().unwrap_or_default().to_owned(),
            // Tests and benches with another harness than libtest are recognised by the kind only.
            is_test: match message["target"]["kind"][0].as_str() {
                Some("bench") => false,
                Some("test") => true,
                _ => message["profile"]["test"] == true,
            },
        });
    }
    Ok(found)
}

/// Copies a binary and strips its symbols, if the program `strip` exists.
fn place(from: &Path, to: &Path) -> Result<()> {
    let mut strip = Command::new("strip");
    if shell::on_path("strip").is_none() || shell::output(strip.arg("-s").arg("-o").arg(to).arg(from)).is_err() {
        std::fs::copy(from, to).map_err(|error| format!("{}: {error}", from.display()))?;
    }
    make_executable(to)
}

fn make_executable(file: &Path) -> Result<()> {
    use std::os::unix::fs::PermissionsExt;
    Ok(std::fs::set_permissions(file, std::fs::Permissions::from_mode(0o755))?)
}

fn copy_folder(from: &Path, to: &Path) -> Result<()> {
    std::fs::create_dir_all(to)?;
    for entry in std::fs::read_dir(from).map_err(|error| format!("{}: {error}", from.display()))? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy_folder(&entry.path(), &target)?;
        } else {
            std::fs::copy(entry.path(), target)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn executables_are_read_from_cargo_messages() {
        let messages = concat!(
            r#"{"reason":"compiler-artifact","manifest_path":"/w/host/Cargo.toml","target":{"kind":["lib"],"name":"warpann"},"#,
            r#""profile":{"test":false},"executable":null}"#,
            "\n",
            r#"{"reason":"compiler-artifact","manifest_path":"/w/tests/Cargo.toml","target":{"kind":["test"],"name":"exact"},"#,
            r#""profile":{"test":true},"executable":"/t/release/deps/exact-12"}"#,
            "\nplain text\n",
            r#"{"reason":"build-finished","success":true}"#,
        );
        let found = executables(messages).unwrap();
        assert_eq!(found.len(), 1);
        assert_eq!(
            (found[0].name().as_str(), found[0].kind.as_str(), found[0].is_test),
            ("tests-exact-test", "test", true)
        );
        assert_eq!(found[0].file, Path::new("/t/release/deps/exact-12"));
    }

    #[test]
    fn programs_that_open_no_gpu_stay_here() {
        let artifact = |package: &str, target: &str, kind: &str| Artifact {
            file: PathBuf::new(),
            package: package.into(),
            target: target.into(),
            kind: kind.into(),
            is_test: true,
        };
        let taken = [
            ("tests", "gpu", "test"),
            ("tests", "devices", "test"),
            ("host", "warpann", "lib"),
            ("host", "select_on_stream", "example"),
            ("host", "search_on_stream", "example"),
        ];
        assert!(taken.into_iter().all(|(package, target, kind)| artifact(package, target, kind).belongs()));
        let left = [
            ("tests", "host", "test"),
            ("tests", "cpu", "test"),
            ("cli", "warpann", "bin"),
            ("host", "graph_and_path", "example"),
        ];
        assert!(left.into_iter().all(|(package, target, kind)| !artifact(package, target, kind).belongs()));
    }

    #[test]
    fn the_script_is_sound_shell() {
        let folder = tempfile::tempdir().unwrap();
        let script = folder.path().join("run.sh");
        std::fs::write(&script, RUN).unwrap();
        let status = Command::new("bash").arg("-n").arg(&script).status().unwrap();
        assert!(status.success());
    }
}
