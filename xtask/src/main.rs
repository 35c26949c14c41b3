//! The repository's commands: `cargo xtask --help`.
//!
//! All commands except `floors`, `comments`, `deny`, `fuzz` and `mutate` first make sure that a compiler for device
//! code exists; they install one if it is missing, and print each installation. No command reads standard input.

mod bundle;
mod comments;
mod deep;
mod demo;
mod deny;
mod device_compiler;
mod floors;
mod fuzz;
mod kernel_report;
mod mpi;
mod mutate;
mod outside;
mod package;
mod progress;
mod ptx;
mod ptxas;
mod python;
mod room;
mod shell;
mod validate;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use cuda_builder::GpuArch;

use shell::{Result, cargo};

/// warpann's commands. All except floors, comments, deny, fuzz and mutate first make sure that a compiler for device
/// code exists, and install one if it is missing.
#[derive(Parser)]
#[command(bin_name = "cargo xtask", version, max_term_width = 120)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Search real SIFT descriptors and compare with the ground truth
    ///
    /// Builds the program, searches tests/data/sift-sample with it, and prints the neighbours of a few queries, the
    /// recall, the time and the device used (the CPU where there is no GPU). Exits with 1 unless the recall is 1.0.
    Demo {
        /// Neighbours per query
        #[arg(long, default_value_t = 10)]
        k: usize,
        /// auto, cpu, gpu or gpu:N
        #[arg(long, default_value = "auto")]
        device: String,
    },
    /// Run every test that this machine can run
    /// Runs `cargo test --workspace` with the arguments that follow. Tests of tier 2 need a GPU: without one they show
    /// as ignored, and with WARPANN_REQUIRE_GPU=1 in the environment a missing GPU makes them fail.
    Test {
        /// Passed to cargo test: a filter, --release, -- --nocapture ..
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Run the unit tests of one room of the library, seconds after an edit
    ///
    /// Compiles the library in many units, beside what the other commands compile, so that an edit costs 5 s of CPU and
    /// not 135. The first run costs about 100.
    Room {
        /// A folder of host/src, such as product, or a file without its ending
        name: String,
        /// Run the tests whose paths contain one of these words instead of the room's
        filter: Vec<String>,
    },
    /// Run all checks of CI and print the time of each step
    ///
    /// Formatting, the floors, the doc comments, clippy and documentation with warnings as errors, the tests, the
    /// kernels' register and spill report with its canary, a build without the feature `cuda`, searches by several MPI
    /// ranks, a build without any CUDA toolkit, type checks for Windows and macOS, the packages, the example with
    /// candle, the example server, and the Python wheel. Needs neither GPU nor toolkit. If MPI is missing and cannot be
    /// installed, its step is reported as skipped; with WARPANN_REQUIRE_MPI=1 in the environment, as in CI, it fails. A
    /// missing Python and WARPANN_REQUIRE_PYTHON=1 do the same.
    Validate,
    /// Check that the imports of the library and of the device code point downwards, and that decisions name every
    /// metric
    ///
    /// xtask/src/floors.rs lists the rooms of host/src and kernels-rs/src, the lowest first. Fails if a file uses a
    /// room above it, if files use each other in a circle, if a module inside a room is pub(crate) and no other room
    /// uses it, if a file is in no room, or if code decides by one metric without naming the others. A canary that
    /// breaks each rule is checked as well and must be caught.
    Floors,
    /// Check that no doc comment is empty of meaning, and that lines of comments have at most 120 characters
    ///
    /// xtask/src/comments.rs says which doc comments explain nothing, such as "The id." or "Of an index.". A canary
    /// with such comments is checked as well and must be caught.
    Comments {
        /// Wrap the comments with longer lines
        #[arg(long)]
        wrap: bool,
    },
    /// Compile the kernels to PTX, assemble it, and report registers, stack frames and spills
    ///
    /// Writes target/ptx/ARCH/KERNEL.ptx (WARPANN_PTX_DIR=target/ptx/ARCH makes the program load them; those that
    /// --kernel selects go into a folder below, target/ptx/ARCH/selected) and assembles every module with ptxas for
    /// sm_80, sm_90, sm_100 and sm_120. From sm_90 on kernels wait at their start, as they do where such devices load
    /// them (ARCH/dependent). Fails if a kernel has a stack frame or spills and is not excused. Canaries that break the
    /// rule are assembled as well and must be caught. ptxas is WARPANN_PTXAS, or the one on PATH, or comes from PyPI
    /// (nvidia-cuda-nvcc) into target/ptxas.
    Ptx {
        /// Architectures to compile for
        #[arg(long, value_delimiter = ',', default_value = "sm_80", value_parser = arch)]
        arch: Vec<GpuArch>,
        /// Only the kernel of this name, or if there is none, those whose names contain it; may be given several times
        ///
        /// One kernel takes two seconds once `core` is compiled; all take 76 seconds, and assembling them takes
        /// minutes. Compiled alone, a kernel may need a few registers more or less than in the build of all kernels,
        /// which is the one that ships.
        #[arg(long, value_name = "NAME")]
        kernel: Vec<String>,
        /// Print every kernel on every architecture, not only the table of the worst figures
        #[arg(long)]
        full: bool,
        /// Compile only, do not assemble
        #[arg(long)]
        no_assemble: bool,
    },
    /// Pack tests, benches and the program for a GPU host that has no Rust
    ///
    /// Writes gpu-bundle/ (ignored by git): run.sh and an archive of the stripped release binaries with their data. On
    /// the GPU host, `gpu-bundle/run.sh` prints the device, runs every test with WARPANN_REQUIRE_GPU=1, and
    /// `warpann verify`.
    GpuBundle,
    /// Make the packages of a registry, without publishing them, and test them
    ///
    /// Compiles the kernels into host/ptx, runs `cargo publish --dry-run` for every package, compares the kernels in
    /// the package with the compiled ones, and builds and runs a new crate that depends on the packages, outside of the
    /// repository: without the feature `cuda`, and with it by the documented line of configuration. Checks the number
    /// of crates and the size of the program. Needs the network.
    Package,
    /// Check licences, duplicates, sources and advisories of the dependencies by cargo-deny
    ///
    /// deny.toml has the rules. Installs cargo-deny with cargo if it is missing. Where the database of advisories
    /// cannot be fetched, the command says so and checks the rest.
    Deny,
    /// Run every property with fresh seeds, in a release build, for some minutes
    ///
    /// The properties are the random cases of tests/src/property. They run on the CPU, the emulator, the driver
    /// emulator and, where there is one, the GPU; all have the same time. The first seed follows from the time and is
    /// printed. Failures are printed when they are found. At the end the command prints the number of cases of each
    /// property and the commands that repeat the failures; it fails if there is one.
    Deep {
        /// Minutes to run, without the build; a part of a minute is possible
        #[arg(long, default_value_t = 10.0)]
        minutes: f64,
        /// Only properties whose names contain this text: changes, graph::cpu, ::driver ..
        #[arg(long, value_name = "TEXT")]
        filter: Option<String>,
        /// The first seed, instead of a fresh one
        #[arg(long, value_name = "NUMBER")]
        base: Option<u64>,
    },
    /// Build the Python wheel, install it into a new environment, and run its tests
    ///
    /// Needs Python 3.11 or later with venv, and the network for packages of python/requirements-test.txt. The
    /// environment is in target/python/venv. Runs the commands of the README, pytest with seeds that follow from the
    /// revision (or WARPANN_PROPERTY_BASE), mypy, and mypy's stubtest. The build takes the library that `cargo xtask
    /// test` compiled. docs/PYTHON.md has the build for users.
    Python,
    /// Run `warpann bench` (release build) with the arguments that follow
    Bench {
        /// Passed to warpann bench: select, exact, --json ..
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Fuzz the file readers with libFuzzer
    ///
    /// Needs a nightly toolchain (for libFuzzer only) and cargo-fuzz; installs the latter with cargo if it is missing.
    Fuzz {
        /// Seconds to run, for all targets together
        #[arg(long, default_value_t = 300)]
        seconds: u64,
        /// Executions of each target, instead of a time limit
        #[arg(long, conflicts_with = "seconds", value_parser = clap::value_parser!(u64).range(1..))]
        runs: Option<u64>,
    },
    /// Change the code at random places and print the changes that no test notices
    ///
    /// Works on a copy of the repository in the target directory. One build has all mutants behind switches, and the
    /// tests run once for each. CONTRIBUTING.md has an example.
    Mutate(mutate::Options),
}

fn arch(name: &str) -> std::result::Result<GpuArch, String> {
    let known = GpuArch::ALL.map(GpuArch::name).join(", ");
    GpuArch::from_name(name).ok_or_else(|| format!("known architectures: {known}"))
}

fn run(command: Command) -> Result<()> {
    use Command::{Comments, Deny, Floors, Fuzz, Mutate};
    if !matches!(command, Fuzz { .. } | Floors | Comments { .. } | Deny | Mutate(_)) {
        device_compiler::ensure()?;
    }
    match command {
        Command::Demo { k, device } => demo::run(k, &device),
        Command::Test { arguments } => test(&arguments),
        Command::Room { name, filter } => room::run(&name, &filter),
        Command::Validate => validate::run(),
        Command::Floors => floors::run(),
        Command::Comments { wrap } => comments::run(wrap),
        Command::Ptx { arch, kernel, full, no_assemble } => ptx::run(&arch, &kernel, full, !no_assemble),
        Command::GpuBundle => bundle::run(),
        Command::Package => package::run(),
        Command::Deny => deny::run(),
        Command::Deep { minutes, filter, base } => deep::run(minutes, filter.as_deref(), base),
        Command::Python => python::run(false),
        Command::Bench { arguments } => {
            shell::run(cargo().args(["run", "--release", "-p", "warpann-cli", "--", "bench"]).args(arguments))
        }
        Command::Fuzz { seconds, runs } => fuzz::run(fuzz::Limit::of(seconds, runs)),
        Command::Mutate(options) => mutate::run(&options),
    }
}

/// The test command of the README. It runs all test programs, also after one that fails.
pub fn test(arguments: &[String]) -> Result<()> {
    shell::run(cargo().args(["test", "--workspace", "--no-fail-fast"]).args(arguments))
}

fn main() -> ExitCode {
    match run(Cli::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn arguments_pass_through() {
        let cli = Cli::try_parse_from(["xtask", "test", "--release", "name", "--", "--nocapture"]).unwrap();
        let Command::Test { arguments } = cli.command else { panic!("test was parsed as another command") };
        assert_eq!(arguments, ["--release", "name", "--", "--nocapture"]);
    }

    #[test]
    fn fuzzing_is_limited_by_time_or_by_executions() {
        let parsed = |arguments: &[&str]| match Cli::try_parse_from([&["xtask", "fuzz"], arguments].concat())?.command {
            Command::Fuzz { seconds, runs } => Ok((seconds, runs)),
            _ => panic!("fuzz was parsed as another command"),
        };
        assert_eq!(parsed(&[]).map_err(|error: clap::Error| error.kind()), Ok((300, None)));
        assert_eq!(parsed(&["--runs", "7"]).ok(), Some((300, Some(7))));
        assert!(parsed(&["--runs", "0"]).is_err() && parsed(&["--runs", "7", "--seconds", "9"]).is_err());
    }

    #[test]
    fn unknown_architectures_are_refused_with_the_known_ones() {
        assert!(arch("sm_75").unwrap_err().contains("sm_80"));
    }
}
