//! `warpann completions`.

use clap_complete::Shell;
use serde::Serialize;

use crate::report::{Out, Outcome};

/// Arguments of `completions`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Shell for which the script is.
    shell: Shell,
}

#[derive(Serialize)]
struct Report {
    shell: String,
    script: String,
}

/// Prints the script that a shell reads for the program `command`.
pub fn run(args: &Args, mut command: clap::Command, out: &Out) -> Outcome {
    let name = command.get_name().to_owned();
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command, name, &mut script);
    let script = String::from_utf8_lossy(&script).into_owned();
    out.line(script.trim_end())?;
    out.object(&Report { shell: args.shell.to_string(), script })
}
