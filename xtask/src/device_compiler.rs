//! Makes sure that a compiler for device code exists, before any cargo command whose build script needs it.

use std::process::Command;
use std::time::Duration;

use cuda_builder::{CompilerError, DEBIAN_PACKAGES, DeviceCompiler, RUSTUP_COMMAND};

use crate::shell::{self, Result};

/// A way to get a device compiler.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// Add the library source to the pinned toolchain.
    Rustup,
    /// Install Debian's compiler, which comes with its source.
    Debian,
}

/// The ways to try, in order, on a machine with or without rustup and with or without the right to install Debian
/// packages. If a setting names a bad compiler, the user must correct it, so there is nothing to try.
fn ways(missing: &CompilerError, rustup: bool, apt: bool) -> Vec<Way> {
    if !matches!(missing, CompilerError::NotFound { .. }) {
        return Vec::new();
    }
    [(rustup, Way::Rustup), (apt, Way::Debian)].into_iter().filter_map(|(there, way)| there.then_some(way)).collect()
}

/// Finds the device compiler, and installs one if there is none.
pub fn ensure() -> Result<DeviceCompiler> {
    let missing = match DeviceCompiler::find() {
        Ok(found) => return Ok(found),
        Err(missing) => missing,
    };
    for way in ways(&missing, shell::on_path("rustup").is_some(), shell::can_apt()) {
        eprintln!("no compiler for device code yet: {}", reason(way));
        let done = match way {
            // rustup retries a missing network for a long time.
            Way::Rustup => {
                let mut words = RUSTUP_COMMAND.split(' ');
                let mut command = Command::new(words.next().unwrap_or_default());
                shell::run_within(command.args(words).current_dir(shell::root()), Duration::from_secs(180))
            }
            Way::Debian => shell::apt_install(&DEBIAN_PACKAGES),
        };
        match done.and_then(|()| Ok(DeviceCompiler::find()?)) {
            Ok(found) => {
                eprintln!("device code is compiled by {} ({})", found.version, found.rustc.display());
                return Ok(found);
            }
            Err(error) => eprintln!("that did not work: {error}"),
        }
    }
    Err(missing.into())
}

fn reason(way: Way) -> &'static str {
    match way {
        Way::Rustup => "installing the component rust-src (the library source) for the pinned toolchain",
        Way::Debian => "installing Debian's rustc with its library source",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rustup_is_tried_before_debian() {
        let missing = CompilerError::NotFound { tried: Vec::new() };
        assert_eq!(ways(&missing, true, true), [Way::Rustup, Way::Debian]);
        assert_eq!(ways(&missing, false, true), [Way::Debian]);
        assert_eq!(ways(&missing, true, false), [Way::Rustup]);
        assert!(ways(&missing, false, false).is_empty());
    }

    #[test]
    fn nothing_is_installed_for_a_bad_setting() {
        let bad = CompilerError::BadSetting { rustc: "/x".into(), reason: "no".into() };
        assert!(ways(&bad, true, true).is_empty());
    }
}
