//! `cargo xtask deny`: the rules of deny.toml for dependencies.

use std::process::{Command, Stdio};

use crate::shell::{self, Result};

/// The version that deny.toml is written for.
const VERSION: &str = "0.20.2";

pub fn run() -> Result<()> {
    let answers = |command: &mut Command| {
        let output = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
        output.is_ok_and(|status| status.success())
    };
    if !answers(shell::cargo().args(["deny", "--version"])) {
        eprintln!("installing cargo-deny with cargo");
        // A build without optimisation takes a third of the time, and a check takes seconds.
        shell::run(shell::cargo().args(["install", "--locked", "--debug", "--version", VERSION, "cargo-deny"]))?;
    }
    shell::run(shell::cargo().args(["deny", "--all-features", "check", "licenses", "bans", "sources"]))?;

    let mut advisories = shell::cargo();
    advisories.args(["deny", "--all-features", "check", "advisories"]);
    eprintln!("$ {}", shell::shown(&advisories));
    let output = advisories.output()?;
    let text = String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout);
    eprint!("{text}");
    match verdict(output.status.success(), &text) {
        Verdict::Passed => Ok(()),
        Verdict::NoCopy => {
            println!("NOT CHECKED: advisories: no copy of the database of advisories can be had here");
            Ok(())
        }
        Verdict::Failed => Err("a dependency has an advisory".into()),
    }
}

/// The result of a check of advisories.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    Passed,
    /// cargo-deny could not fetch the database.
    NoCopy,
    Failed,
}

fn verdict(success: bool, text: &str) -> Verdict {
    match success {
        true => Verdict::Passed,
        false if text.contains("failed to fetch advisory database") => Verdict::NoCopy,
        false => Verdict::Failed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_missing_database_is_not_a_failure() {
        assert_eq!(verdict(true, "advisories ok"), Verdict::Passed);
        assert_eq!(verdict(false, "[ERROR] failed to fetch advisory database https://x"), Verdict::NoCopy);
        assert_eq!(verdict(false, "error[vulnerability]: a crate"), Verdict::Failed);
    }
}
