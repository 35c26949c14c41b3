//! Tests of searches by several MPI ranks on this machine, and the packages that they need.

use std::path::Path;

use crate::shell::{self, Result, cargo};

/// MPI with its compiler wrapper, the program that starts ranks, and the library that generates the bindings.
const DEBIAN_PACKAGES: [&str; 3] = ["libopenmpi-dev", "openmpi-bin", "libclang-dev"];

/// The missing programs and libraries of those that the feature `mpi` needs.
fn missing() -> Vec<&'static str> {
    let programs = ["mpicc", "mpirun"].into_iter().filter(|program| shell::on_path(program).is_none());
    programs.chain((!libclang()).then_some("libclang")).collect()
}

/// Whether libclang is in a place where bindgen searches.
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

/// Installs MPI if it is missing.
///
/// # Errors
/// A [`Skip`](shell::Skip) if MPI is missing and cannot be installed; with WARPANN_REQUIRE_MPI=1 an ordinary error
/// instead.
pub fn ensure() -> Result<()> {
    if !missing().is_empty() && shell::can_apt() {
        eprintln!("missing for searches by several ranks: {}", missing().join(", "));
        if let Err(error) = shell::apt_install(&DEBIAN_PACKAGES) {
            eprintln!("that did not work: {error}");
        }
    }
    verdict(&missing(), shell::requires("WARPANN_REQUIRE_MPI"))
}

fn verdict(missing: &[&str], required: bool) -> Result<()> {
    if missing.is_empty() {
        return Ok(());
    }
    let reason = format!("missing: {}; on Debian: apt-get install {}", missing.join(", "), DEBIAN_PACKAGES.join(" "));
    Err(shell::unavailable(reason, required))
}

/// Tests searches by several ranks.
pub fn run() -> Result<()> {
    ensure()?;
    // Without optimisation: the program is built once more for this test, and the ranks run for a second or two in any
    // case.
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
    use crate::shell::Skip;

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
