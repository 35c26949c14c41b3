//! `cargo xtask fuzz`: libFuzzer on the file readers, of vectors and of indexes.

use std::process::{Command, Stdio};

use crate::shell::{self, Result};

pub fn run(seconds: u64) -> Result<()> {
    let nightly = || {
        let mut command = Command::new("cargo");
        // Left in place, this would choose the toolchain that runs us.
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
    let limit = format!("-max_total_time={}", (seconds / 2).max(1));
    for target in ["readers", "indexes"] {
        // The first folder is where new inputs go; git ignores it, so a fresh checkout lacks it.
        let (corpus, seeds) = (format!("corpus/{target}"), format!("seeds/{target}"));
        std::fs::create_dir_all(shell::root().join("fuzz").join(&corpus))?;
        shell::run(nightly().args(["fuzz", "run", target, &corpus, &seeds, "--", &limit, "-malloc_limit_mb=64"]))?;
    }
    Ok(())
}
