//! `cargo xtask python`: builds the Python wheel, installs it into a new environment by the commands of the README, and
//! runs its tests.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::shell::{self, Result};

/// The oldest Python that the wheel is for.
const OLDEST: (u32, u32) = (3, 11);
/// Programs that may be a Python.
const NAMES: [&str; 5] = ["python3", "python3.14", "python3.13", "python3.12", "python3.11"];
/// The commands of the README, which this step runs with the environment elsewhere and a build that takes less time.
const COMMANDS: [&str; 2] =
    ["python3 -m venv venv && venv/bin/pip install ./python", "venv/bin/python python/example.py"];

/// The tests that need the emulated driver.
const TENSORS: &str = "python/tests/test_tensors.py";

/// The version of a Python that can make environments; `None` if the program is none.
fn version(python: &str) -> Option<(u32, u32)> {
    let ask = "import ensurepip, sys, venv; print(*sys.version_info[:2])";
    let asked = Command::new(python).args(["-c", ask]).stdin(Stdio::null()).output().ok()?;
    let text = String::from_utf8(asked.stdout).ok()?;
    let mut numbers = text.split_whitespace().map_while(|word| word.parse().ok());
    Some((numbers.next()?, numbers.next()?))
}

/// A Python that is new enough.
///
/// # Errors
/// A [`Skip`](shell::Skip) if there is none; with WARPANN_REQUIRE_PYTHON=1 an ordinary error instead.
fn python() -> Result<&'static str> {
    let found = NAMES.into_iter().find(|name| version(name).is_some_and(|version| version >= OLDEST));
    verdict(found, shell::requires("WARPANN_REQUIRE_PYTHON"))
}

fn verdict(found: Option<&'static str>, required: bool) -> Result<&'static str> {
    let reason = || format!("no Python of version {}.{} or later with venv and ensurepip", OLDEST.0, OLDEST.1);
    found.ok_or_else(|| shell::unavailable(reason(), required))
}

/// The libraries of warpann in the target folder: a file for each choice of features, its own and those of its
/// dependencies.
fn libraries() -> BTreeSet<OsString> {
    let of_warpann =
        |name: &OsString| name.to_str().is_some_and(|name| name.starts_with("libwarpann-") && name.ends_with(".rlib"));
    let entries = std::fs::read_dir(shell::target_dir().join("debug/deps")).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name()).filter(of_warpann).collect()
}

/// With `after_tests` the target folder has the library that `cargo test --workspace` compiled, and it is an error if
/// the wheel needs another one: nobody would notice the minutes.
pub fn run(after_tests: bool) -> Result<()> {
    let python = python()?;
    let root = shell::root();
    let readme = std::fs::read_to_string(root.join("README.md"))?;
    if let Some(missing) = COMMANDS.iter().find(|command| !readme.contains(*command)) {
        return Err(format!("README.md does not have the command: {missing}").into());
    }
    let folder = shell::target_dir().join("python");
    let environment = folder.join("venv");
    shell::run(Command::new(python).args(["-m", "venv", "--clear"]).arg(&environment))?;
    let program = |name: &str| {
        let mut command = Command::new(environment.join("bin").join(name));
        command.current_dir(&root).env("PIP_DISABLE_PIP_VERSION_CHECK", "1");
        command
    };
    // With the library of the tests, and with a driver for the tests of tensors.
    let before = libraries();
    let mut install = program("pip");
    install.args(["install", "--quiet", "./python"]).env("CARGO_TARGET_DIR", shell::target_dir());
    shell::run(install.env("MATURIN_PEP517_ARGS", "--profile dev --locked --features as-tests"))?;
    let reused = before.is_superset(&libraries());
    shell::run(program("python").arg("python/example.py"))?;
    shell::run(program("pip").args(["install", "--quiet", "-r", "python/requirements-test.txt"]))?;
    tests(&program, &folder)?;
    if reused || !after_tests {
        return Ok(());
    }
    Err("the build of the wheel compiled the library again, with other features than `cargo test --workspace`: complete \
         the feature `as-tests` of python/Cargo.toml (CONTRIBUTING.md shows how)"
        .into())
}

/// Runs the tests and the check of the stubs in the environment.
fn tests(program: &dyn Fn(&str) -> Command, folder: &Path) -> Result<()> {
    let seed = test_random::seeds::base()?;
    eprintln!("first seed: WARPANN_PROPERTY_BASE={seed}");
    let pytest = |arguments: &[&str]| {
        let mut pytest = program("python");
        // The development mode checks memory that Python allocates, and prints where a crash was.
        pytest.args(["-X", "dev", "-m", "pytest", "-q", "-c", "python/pyproject.toml", "--durations=5"]);
        pytest.arg(format!("--hypothesis-seed={seed}")).args(["-p", "no:cacheprovider"]).args(arguments);
        // The threads of FAISS otherwise wait for one another in loops and take the processors from those waited for:
        // beside two busy processes on two cores the tests with FAISS take 17 s instead of 54 to 143 (2026-11-29).
        pytest.env("OMP_WAIT_POLICY", "passive");
        shell::run(pytest.env("WARPANN_PROPERTY_BASE", seed.to_string()))
    };
    // The emulated driver is that of a whole process, in which `auto` is then a GPU.
    pytest(&[TENSORS])?;
    pytest(&["python/tests", "--ignore", TENSORS])?;
    let mypy = |module: &str| {
        let mut command = program("python");
        command.args(["-m", module]).env("MYPY_CACHE_DIR", folder.join("mypy"));
        command
    };
    shell::run(mypy("mypy").args(["--config-file", "python/pyproject.toml", "python/package/warpann"]))?;
    // The only module with a stub. Others import packages that this environment lacks.
    shell::run(mypy("mypy.stubtest").arg("warpann._warpann"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shell::Skip;

    #[test]
    fn a_missing_python_is_a_skip_unless_it_is_required() {
        assert_eq!(verdict(Some("python3"), true).unwrap(), "python3");
        assert!(verdict(None, false).unwrap_err().is::<Skip>());
        assert!(!verdict(None, true).unwrap_err().is::<Skip>());
        assert_eq!(version("no-such-program-as-this"), None);
    }
}
