//! `cargo xtask room NAME`: the unit tests of a room of the library, soon after an edit.
//!
//! The library is one crate. Tests and demo compile it in one unit, which takes 135 s of CPU after an edit. This
//! command compiles it in many units, of which an edit changes a few: 5 s of CPU until the first test runs (two cores
//! of a Xeon, 2026-11-28; 4 s on two of an EPYC). Kernels and emulator are compiled as always.
//!
//! Less optimisation lost: an edit takes as long, and the tests of `flat`, `graph` and `ivf` take 43, 73 and 136 s of
//! CPU with `opt-level=1` instead of 23, 44 and 119 (EPYC, 2026-11-28).
//!
//! The two ways of compiling lie side by side in the target folder.

use crate::package;
use crate::shell::{self, Result, cargo};

/// The crate of the rooms.
const PACKAGE: &str = "warpann";

/// How the library is compiled.
const PROFILE: [&str; 2] = ["opt-level=2", "codegen-units=256"];

/// The features that need what a machine may not have: MPI, and the program ptxas.
const SEPARATE: [&str; 2] = ["mpi", "machine-code"];

/// Runs the tests in `room`, a folder or file of host/src, or instead those whose paths contain a word of `filter`.
pub fn run(room: &str, filter: &[String]) -> Result<()> {
    let source = shell::root().join("host/src").join(room);
    if !source.is_dir() && !source.with_extension("rs").is_file() {
        return Err(format!("host/src has no folder {room} and no file {room}.rs").into());
    }
    let mut command = cargo();
    for setting in PROFILE {
        command.arg("--config").arg(format!("profile.dev.package.{PACKAGE}.{setting}"));
    }
    // Cargo would leave incremental data out where CI says so.
    command.env("CARGO_INCREMENTAL", "1");
    command.args(["test", "--package", PACKAGE, "--lib", "--features", &features()?.join(","), "--"]);
    if filter.is_empty() {
        command.arg(format!("{room}::"));
    }
    shell::run(command.args(filter))
}

/// All features of the library that any machine can build.
fn features() -> Result<Vec<String>> {
    let package = package::metadata(PACKAGE)?;
    let features = package["features"].as_object().ok_or("the library has no features")?;
    Ok(features.keys().filter(|name| !SEPARATE.contains(&name.as_str())).cloned().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_room_that_does_not_exist_is_refused() {
        let message = run("no_such_room", &[]).unwrap_err().to_string();
        assert_eq!(message, "host/src has no folder no_such_room and no file no_such_room.rs");
    }

    #[test]
    fn every_feature_is_tested_but_those_that_need_more() {
        let features = features().unwrap();
        assert!(features.iter().any(|name| name == "build-kernels"), "{features:?}");
        assert!(!features.iter().any(|name| SEPARATE.contains(&name.as_str())), "{features:?}");
    }
}
