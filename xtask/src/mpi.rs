//! Searches by several MPI ranks on this machine, and what building them needs.

use std::path::Path;

use crate::shell::{self, Result, Skip, cargo};

/// MPI with its compiler wrapper, its starter, and what the bindings are made with.
const DEBIAN_PACKAGES: [&str; 3] = ["libopenmpi-dev", "openmpi-bin", "libclang-dev"];

/// What is not there of what the feature `mpi` is built and run with.
fn missing() -> Vec<&'static str> {
    let programs = ["mpicc", "mpirun"].into_iter().filter(|program| shell::on_path(program).is_none());
    programs.chain((!libclang()).then_some("libclang")).collect()
}

/// Whether libclang is where bindgen looks for it.
fn libclang() -> bool {
    let named = std::env::var_os("LIBCLANG_PATH").is_some() || shell::on_path("llvm-config").is_some();
    named || holds_libclang(Path::new("/usr/lib"), 2) || holds_libclang(Path::new("/usr/lib64"), 0)
}

/// Whether a folder, or one `depth` below it, has the library.
fn holds_libclang(folder: &Path, depth: usize) -> bool {
    let Ok(entries) = std::fs::read_dir(folder) else { return false };
    entries.flatten().any(|entry| {
        let name = entry.file_name().to_string_lossy().into_owned();
        let below = name.starts_with("llvm") || name == "lib" || name.ends_with("-linux-gnu");
        name.starts_with("libclang") && name.contains(".so")
            || depth > 0 && below && holds_libclang(&entry.path(), depth - 1)
    })
}

/// Sees to it that MPI is there, and installs it if need be.
///
/// # Errors
/// A [`Skip`] where it is not there and cannot be installed; a failure with WARPANN_REQUIRE_MPI=1.
pub fn ensure() -> Result<()> {
    if !missing().is_empty() && shell::can_apt() {
        eprintln!("missing for searches by several ranks: {}", missing().join(", "));
        if let Err(error) = shell::apt_install(&DEBIAN_PACKAGES) {
            eprintln!("that did not work: {error}");
        }
    }
    verdict(&missing(), std::env::var("WARPANN_REQUIRE_MPI").is_ok_and(|value| value == "1"))
}

fn verdict(missing: &[&str], required: bool) -> Result<()> {
    if missing.is_empty() {
        return Ok(());
    }
    let reason = format!("missing: {}; on Debian: apt-get install {}", missing.join(", "), DEBIAN_PACKAGES.join(" "));
    if required { Err(reason.into()) } else { Err(Skip(reason).into()) }
}

/// Tests searches by several ranks.
pub fn run() -> Result<()> {
    ensure()?;
    // Not optimised: the program is built once more for this, and what the ranks do takes a second or two either way.
    let mut command = cargo();
    command.env("CARGO_PROFILE_DEV_OPT_LEVEL", "0");
    shell::run(command.args([
        "test",
        "-p",
        "warpann-cli",
        "--no-default-features",
        "--features",
        "mpi",
        "--test",
        "mpi",
    ]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_mpi_the_step_is_skipped_unless_it_is_required() {
        assert!(verdict(&[], true).is_ok() && verdict(&[], false).is_ok());
        let skipped = verdict(&["mpicc"], false).unwrap_err();
        assert!(skipped.is::<Skip>() && skipped.to_string().contains("mpicc"), "{skipped}");
        assert!(!verdict(&["mpicc"], true).unwrap_err().is::<Skip>());
    }

    #[test]
    fn libclang_is_found_in_the_folders_of_packages() {
        let folder = tempfile::tempdir().unwrap();
        assert!(!holds_libclang(folder.path(), 2));
        let lib = folder.path().join("llvm-14/lib");
        std::fs::create_dir_all(&lib).unwrap();
        std::fs::write(lib.join("libclang.a"), "").unwrap();
        assert!(!holds_libclang(folder.path(), 2));
        std::fs::write(lib.join("libclang-14.so.1"), "").unwrap();
        assert!(holds_libclang(folder.path(), 2) && !holds_libclang(folder.path(), 1));
    }
}
