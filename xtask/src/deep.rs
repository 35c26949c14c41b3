//! `cargo xtask deep`: every property with fresh seeds, in a release build, for some minutes.
//!
//! The test program `property` of tests/ does the work (its module `property::deep`). A driver is the process's, so the
//! program runs twice: for the CPU, the emulator and the GPU, and for the driver emulator. Each run gets the part of
//! the time that its part of the properties is.

use std::process::{Command, Stdio};
use std::time::Instant;

use crate::shell::{self, Result, cargo};

/// The environment of the second run.
const DRIVER: (&str, &str) = ("WARPANN_PROPERTY_DRIVER", "emulated");

/// Runs the properties whose names contain `filter` for `minutes`. `base` is the first seed, for the same cases again.
pub fn run(minutes: f64, filter: Option<&str>, base: Option<u64>) -> Result<()> {
    if !(minutes > 0.0 && minutes.is_finite()) {
        return Err(format!("{minutes} minutes").into());
    }
    // So that building does not take from the time, and compilers' errors come first.
    shell::run(program().arg("--no-run"))?;
    let counts = [names(false, filter)?, names(true, filter)?];
    let all = counts[0] + counts[1];
    if all == 0 {
        return Err(format!("no property is called {}", filter.unwrap_or_default()).into());
    }
    let start = Instant::now();
    let (mut reports, mut failed) = (Vec::new(), false);
    for (emulated, count) in [false, true].into_iter().zip(counts).filter(|&(_, count)| count > 0) {
        let seconds = (60.0 * minutes * count as f64 / all as f64).ceil() as u64;
        let mut command = property(emulated, filter);
        command.env("WARPANN_PROPERTY_SECONDS", seconds.to_string());
        if let Some(base) = base {
            command.env("WARPANN_PROPERTY_BASE", base.to_string());
        }
        let output = command.stdin(Stdio::null()).stderr(Stdio::inherit()).output()?;
        reports.push(String::from_utf8_lossy(&output.stdout).into_owned());
        failed |= !output.status.success();
    }
    println!("{}\n{:.1} minutes", reports.join("\n").trim_end(), start.elapsed().as_secs_f64() / 60.0);
    if failed { Err("a property failed".into()) } else { Ok(()) }
}

/// cargo, which runs the test program.
fn program() -> Command {
    let mut command = cargo();
    command.args(["test", "--quiet", "--release", "-p", "warpann-tests", "--test", "property"]);
    command
}

fn property(emulated: bool, filter: Option<&str>) -> Command {
    let mut command = program();
    if emulated {
        command.env(DRIVER.0, DRIVER.1);
    }
    command.arg("--").args(filter);
    command
}

/// The number of properties that this machine can run.
fn names(emulated: bool, filter: Option<&str>) -> Result<usize> {
    let list = shell::output(property(emulated, filter).arg("--list"))?;
    Ok(runnable(&list))
}

/// Lines of a list of tests, without the ones that need a device.
fn runnable(list: &str) -> usize {
    list.lines().filter(|line| line.ends_with(": test") && !line.starts_with("[needs")).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn properties_that_need_a_device_do_not_count() {
        let list = "flat::cpu: test\nflat::emulator: test\n[needs a CUDA device] flat::gpu: test\n\n";
        assert_eq!(runnable(list), 2);
    }
}
