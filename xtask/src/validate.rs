//! `cargo xtask validate`: the checks of CI, in order of cost.
//!
//! The steps share two sets of build products: check (clippy, documentation, the build without `cuda`) and dev (tests,
//! the build without a toolkit). None is built with other flags.

use std::process::{Command, Stdio};
use std::time::Instant;

use cuda_builder::GpuArch;

use crate::shell::{self, Result, Skip, cargo};

type Step = (&'static str, fn() -> Result<()>);

const STEPS: [Step; 16] = [
    ("formatting", format),
    ("floors", crate::floors::run),
    ("comments", comments),
    ("dependencies", crate::deny::run),
    ("clippy", clippy),
    ("documentation", documentation),
    ("tests", tests),
    ("kernels", kernels),
    ("without the feature cuda", without_cuda),
    ("several ranks", crate::mpi::run),
    ("without a CUDA toolkit", without_toolkit),
    ("other systems", other_systems),
    ("packages", crate::package::run),
    ("example with candle", with_candle),
    ("example server", example_server),
    ("python wheel", python_wheel),
];

pub fn run() -> Result<()> {
    let start = Instant::now();
    let (mut times, mut failures) = (Vec::new(), Vec::new());
    // Every step runs, even after a failure, so that one run shows all failures.
    for (name, step) in STEPS {
        eprintln!("== {name}");
        let (begin, cpu) = (Instant::now(), shell::children_cpu_seconds());
        let result = step();
        let (seconds, cpu) = (begin.elapsed().as_secs_f64(), shell::children_cpu_seconds() - cpu);
        let mark = match result {
            Ok(()) => "",
            Err(error) if error.is::<Skip>() => {
                eprintln!("SKIPPED: {name}: {error}");
                ": SKIPPED"
            }
            Err(error) => {
                eprintln!("FAILED: {name}: {error}");
                failures.push(name);
                ": FAILED"
            }
        };
        times.push(format!("{seconds:7.1} s, {cpu:7.1} s of CPU  {name}{mark}"));
    }
    let (seconds, cpu) = (start.elapsed().as_secs_f64(), shell::children_cpu_seconds());
    println!("{}\n{seconds:7.1} s, {cpu:7.1} s of CPU  in all", times.join("\n"));
    if failures.is_empty() { Ok(()) } else { Err(format!("failed: {}", failures.join(", ")).into()) }
}

fn format() -> Result<()> {
    shell::run(cargo().args(["fmt", "--all", "--check"]))
}

fn comments() -> Result<()> {
    crate::comments::run(false)
}

/// With the feature for the tests of the Python package: it adds code of that package only.
fn clippy() -> Result<()> {
    let words = ["clippy", "--workspace", "--all-targets", "--features", "warpann-python/emulated-driver"];
    shell::run(cargo().args(words).args(["--", "-D", "warnings"]))
}

fn documentation() -> Result<()> {
    shell::run(cargo().args(["doc", "--workspace", "--no-deps"]).env("RUSTDOCFLAGS", "-D warnings"))
}

fn tests() -> Result<()> {
    crate::test(&[])
}

fn kernels() -> Result<()> {
    crate::ptx::run(&[GpuArch::Sm80], &[], false, true)
}

/// The library without any feature, as most programs depend on it, and library and program without `cuda`. The second
/// build includes the code for MPI if MPI is installed, because that feature only adds code.
fn without_cuda() -> Result<()> {
    shell::run(cargo().args(["clippy", "-p", "warpann", "--", "-D", "warnings"]))?;
    let mut command = cargo();
    command.args(["clippy", "-p", "warpann", "-p", "warpann-cli", "--no-default-features", "--all-targets"]);
    if crate::mpi::ensure().is_ok() {
        command.args(["--features", "mpi"]);
    }
    shell::run(command.args(["--", "-D", "warnings"]))
}

/// Type-checks the library for systems that this machine is not, with the standard library's source in place of a
/// compiled one, which only rustup has. The compiler for device code has that source; the pinned toolchain may not.
fn other_systems() -> Result<()> {
    let compiler = crate::device_compiler::ensure()?;
    for target in ["x86_64-pc-windows-msvc", "aarch64-apple-darwin"] {
        let mut command = shell::cargo_at(compiler.cargo.as_os_str());
        command.args(["check", "-Zbuild-std=std", "-p", "warpann", "--features", "mesh,shifted", "--target", target]);
        shell::run(command.env("RUSTC", &compiler.rustc).env("RUSTC_BOOTSTRAP", "1"))?;
    }
    Ok(())
}

/// Builds and runs the example with candle, which is a workspace of its own: less than three minutes on two cores
/// (2026-11-25). Without a CUDA toolkit candle has no GPU, so the example runs on the CPU.
fn with_candle() -> Result<()> {
    let manifest = shell::root().join("examples/candle/Cargo.toml");
    shell::run(cargo().args(["fmt", "--check", "--manifest-path"]).arg(&manifest))?;
    let target = shell::target_dir().join("candle");
    shell::run(cargo().args(["run", "--locked", "--manifest-path"]).arg(&manifest).arg("--target-dir").arg(target))
}

/// Lints and tests the example server, which is a workspace of its own, on the CPU.
fn example_server() -> Result<()> {
    let manifest = shell::root().join("examples/server/Cargo.toml");
    shell::run(cargo().args(["fmt", "--check", "--manifest-path"]).arg(&manifest))?;
    let in_example = |command: &str| {
        let mut cargo = cargo();
        cargo.args([command, "--locked", "--manifest-path"]).arg(&manifest);
        cargo.arg("--target-dir").arg(shell::target_dir().join("server"));
        cargo
    };
    shell::run(in_example("clippy").args(["--all-targets", "--", "-D", "warnings"]))?;
    shell::run(&mut in_example("test"))
}

fn python_wheel() -> Result<()> {
    crate::python::run(true)
}

/// Builds the program without environment variables that name a CUDA toolkit, starts it, and checks that it is not
/// linked against the driver.
fn without_toolkit() -> Result<()> {
    const TOOLKIT: [&str; 6] =
        ["CUDA_PATH", "CUDA_HOME", "CUDA_ROOT", "CUDA_TOOLKIT_ROOT_DIR", "CUDA_LIBRARY_PATH", "LIBRARY_PATH"];
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).filter(|folder| !folder.join("nvcc").exists());
    let path = std::env::join_paths(folders)?;
    let without = |mut command: Command| {
        TOOLKIT.iter().for_each(|name| {
            command.env_remove(name);
        });
        command.env("PATH", &path);
        command
    };
    shell::run(&mut without(crate::demo::build()))?;
    let program = shell::target_dir().join("debug/warpann");
    shell::run(without(Command::new(&program)).arg("info"))?;
    let libraries = shell::output(Command::new("ldd").arg(&program).stdin(Stdio::null()))?;
    match libraries.lines().find(|line| line.contains("libcuda")) {
        Some(line) => Err(format!("the program is linked against the driver: {}", line.trim()).into()),
        None => Ok(()),
    }
}
