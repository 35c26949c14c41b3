//! Starts other programs and finds folders of the repository.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

pub type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// The reason why a step was skipped on this machine. A skip is neither success nor failure.
#[derive(Debug)]
pub struct Skip(pub String);

impl std::fmt::Display for Skip {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Skip {}

/// The reason why this machine cannot run a step: a [`Skip`], or an ordinary error if the step is `required`.
pub fn unavailable(reason: String, required: bool) -> Box<dyn std::error::Error> {
    if required { reason.into() } else { Skip(reason).into() }
}

/// Whether an environment variable, such as WARPANN_REQUIRE_MPI, says that a step must run.
pub fn requires(variable: &str) -> bool {
    std::env::var(variable).is_ok_and(|value| value == "1")
}

/// Root folder of the repository.
pub fn root() -> PathBuf {
    // Read at run time if cargo runs this program, so that a binary that was moved with the repository still finds it.
    let own = std::env::var_os("CARGO_MANIFEST_DIR").map_or_else(|| env!("CARGO_MANIFEST_DIR").into(), PathBuf::from);
    own.parent().map_or_else(|| own.clone(), Path::to_owned)
}

/// The target directory that cargo uses for the repository.
pub fn target_dir() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), |folder| root().join(folder))
}

/// The cargo that runs this program, started in the repository's root, without the variables that cargo sets for its
/// children.
pub fn cargo() -> Command {
    cargo_at(&std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

/// [`cargo`] for the cargo at the path `program`.
pub fn cargo_at(program: &OsStr) -> Command {
    let mut command = Command::new(program);
    command.current_dir(root()).stdin(Stdio::null());
    for (name, _) in std::env::vars_os() {
        if name.to_str().is_some_and(|name| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_")) {
            command.env_remove(&name);
        }
    }
    command
}

/// The text of a command, as in `$ cargo test --workspace`.
pub fn shown(command: &Command) -> String {
    let program = Path::new(command.get_program()).file_name().unwrap_or_default().to_string_lossy().into_owned();
    let arguments = command.get_args().map(|argument| argument.to_string_lossy().into_owned());
    std::iter::once(program).chain(arguments).collect::<Vec<_>>().join(" ")
}

/// Shows a command, runs it, and fails unless it succeeds.
pub fn run(command: &mut Command) -> Result<()> {
    let shown = shown(command);
    eprintln!("$ {shown}");
    let status = command.stdin(Stdio::null()).status().map_err(|error| format!("{shown}: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("{shown}: {status}").into()) }
}

/// Like [`run`], but ends the command after `limit`: for programs that may wait for a missing network.
pub fn run_within(command: &mut Command, limit: Duration) -> Result<()> {
    let shown = shown(command);
    eprintln!("$ {shown}");
    let mut child = command.stdin(Stdio::null()).spawn().map_err(|error| format!("{shown}: {error}"))?;
    let start = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            return if status.success() { Ok(()) } else { Err(format!("{shown}: {status}").into()) };
        }
        if start.elapsed() > limit {
            child.kill()?;
            child.wait()?;
            return Err(format!("{shown}: not done after {} s", limit.as_secs()).into());
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Runs a command and returns its standard output. The command inherits standard error.
pub fn output(command: &mut Command) -> Result<String> {
    let shown = shown(command);
    let output = command.stdin(Stdio::null()).stderr(Stdio::inherit()).output();
    let output = output.map_err(|error| format!("{shown}: {error}"))?;
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stdout);
        return Err(format!("{shown}: {}\n{}", output.status, text.trim_end()).into());
    }
    Ok(String::from_utf8(output.stdout)?)
}

/// Whether a program of that name is on `PATH`.
pub fn on_path(program: &str) -> Option<PathBuf> {
    std::env::split_paths(&std::env::var_os("PATH")?).map(|folder| folder.join(program)).find(|file| file.is_file())
}

/// Whether packages can be installed: apt-get exists, and the user is root.
pub fn can_apt() -> bool {
    on_path("apt-get").is_some() && output(Command::new("id").arg("-u")).is_ok_and(|id| id.trim() == "0")
}

/// Prints the names of Debian packages and installs them.
pub fn apt_install(packages: &[&str]) -> Result<()> {
    eprintln!("installing Debian packages: {}", packages.join(" "));
    let apt = || {
        let mut command = Command::new("apt-get");
        command.env("DEBIAN_FRONTEND", "noninteractive");
        command
    };
    run(apt().args(["update", "-q"]))?;
    run(apt().args(["install", "-y", "-q", "--no-install-recommends"]).args(packages))
}

/// Processor time of all ended child processes so far; 0 where the system does not tell.
pub fn children_cpu_seconds() -> f64 {
    /// Linux counts this time in hundredths on every architecture.
    const TICKS_PER_SECOND: f64 = 100.0;
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The name of the program, in parentheses, may contain spaces. Time of children is fields 16 and 17 (proc(5)).
    let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
    fields.skip(13).take(2).filter_map(|field| field.parse::<f64>().ok()).sum::<f64>() / TICKS_PER_SECOND
}
