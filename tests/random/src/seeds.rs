//! Seeds that move: each revision draws other cases, and a run at one revision draws the same ones again.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{SystemTime, UNIX_EPOCH};

/// The base where no revision can be read: in a folder without git, or on a machine without git.
const FIXED: u64 = 0;

/// The environment variable with the seed of the first case.
const BASE: &str = "WARPANN_PROPERTY_BASE";

/// Hexadecimal digits of a hash that become a base: 48 bits, so that the number is short enough to type.
const DIGITS: usize = 12;

/// The seed of the first case of a run: the value of the variable `WARPANN_PROPERTY_BASE`, or else [`of_the_revision`].
///
/// # Errors
/// A value that is no number, in words.
pub fn base() -> Result<u64, String> {
    Ok(number(BASE)?.unwrap_or_else(of_the_revision))
}

/// The number in an environment variable. `None` if the variable is not set.
///
/// # Errors
/// A value that is no number, in words.
pub fn number(name: &str) -> Result<Option<u64>, String> {
    match std::env::var(name) {
        Ok(text) => text.parse().map(Some).map_err(|error| format!("{name}={text}: {error}")),
        Err(_) => Ok(None),
    }
}

/// The seed of the first case of a run at the present revision of the repository (git's HEAD). Without git it is always
/// the same.
pub fn of_the_revision() -> u64 {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut git = Command::new("git");
    git.arg("-C").arg(root).args(["rev-parse", "HEAD"]).stdin(Stdio::null()).stderr(Stdio::null());
    let hash = git.output().ok().filter(|output| output.status.success());
    hash.and_then(|output| of_hash(&String::from_utf8_lossy(&output.stdout))).unwrap_or(FIXED)
}

fn of_hash(hash: &str) -> Option<u64> {
    u64::from_str_radix(hash.get(..DIGITS)?, 16).ok()
}

/// A seed that no run has had: from the time and the number of the process.
pub fn fresh() -> u64 {
    let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    // The generator mixes the bits of both.
    let seed = time.as_nanos() as u64 ^ (u64::from(std::process::id()) << 40);
    crate::Random::new(seed).bits() >> 16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_revision_has_one_base_and_no_revision_has_none() {
        assert_eq!(of_hash("1fab39d0e74204f454a7d020284e3a4d4bd0a1c8\n"), Some(0x1fab_39d0_e742));
        assert_eq!((of_hash(""), of_hash("fatal: not a git repository")), (None, None));
        assert_eq!(of_the_revision(), of_the_revision());
        assert!(of_the_revision() < 1 << (4 * DIGITS));
    }

    #[test]
    fn fresh_seeds_differ() {
        let first = fresh();
        std::thread::sleep(std::time::Duration::from_millis(1));
        assert_ne!(first, fresh());
    }
}
