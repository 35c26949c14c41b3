//! `cargo xtask fuzz`: libFuzzer on the file readers, of vectors and of indexes.

use std::process::{Command, Stdio};

use crate::shell::{self, Result};

/// The targets of `fuzz/`.
const TARGETS: [&str; 2] = ["readers", "indexes"];

/// When a run ends that finds nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limit {
    /// After this number of seconds for all targets together.
    Seconds(u64),
    /// After this number of executions of each target.
    Runs(u64),
}

impl Limit {
    /// The limit for the options `--seconds` and `--runs`. `--runs` takes precedence.
    pub fn of(seconds: u64, runs: Option<u64>) -> Limit {
        runs.map_or(Limit::Seconds(seconds), Limit::Runs)
    }

    /// libFuzzer's option for one target. 0 would mean no limit of time, and no execution beyond the corpus.
    fn option(self) -> String {
        match self {
            Limit::Seconds(seconds) => format!("-max_total_time={}", (seconds / TARGETS.len() as u64).max(1)),
            Limit::Runs(runs) => format!("-runs={runs}"),
        }
    }
}

pub fn run(limit: Limit) -> Result<()> {
    let nightly = || {
        let mut command = Command::new("cargo");
        // These variables would select the toolchain that runs this program.
        command.env_remove("RUSTUP_TOOLCHAIN").env_remove("CARGO").arg("+nightly");
        command.current_dir(shell::root().join("fuzz"));
        command
    };
    let answers = |command: &mut Command| {
        let output = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
        output.is_ok_and(|status| status.success())
    };
    if !answers(nightly().arg("--version")) {
        return Err("libFuzzer needs a nightly compiler: rustup toolchain install nightly --profile minimal".into());
    }
    if !answers(nightly().args(["fuzz", "--version"])) {
        eprintln!("installing cargo-fuzz with cargo");
        shell::run(nightly().args(["install", "--locked", "cargo-fuzz"]))?;
    }
    let limit = limit.option();
    for target in TARGETS {
        // The first folder is where new inputs go; git ignores it, so a fresh checkout lacks it.
        let (corpus, seeds) = (format!("corpus/{target}"), format!("seeds/{target}"));
        std::fs::create_dir_all(shell::root().join("fuzz").join(&corpus))?;
        shell::run(nightly().args(["fuzz", "run", target, &corpus, &seeds, "--", &limit, "-malloc_limit_mb=64"]))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_of_time_for_all_targets_or_of_runs_for_each() {
        assert_eq!(Limit::of(300, None).option(), "-max_total_time=150");
        assert_eq!(Limit::of(1, None).option(), "-max_total_time=1");
        assert_eq!(Limit::of(300, Some(10_000_000)).option(), "-runs=10000000");
    }
}
