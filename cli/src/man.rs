//! `warpann man`.

use std::path::PathBuf;

use clap_mangen::Man;
use serde::Serialize;
use warpann::{Error, io};

use crate::report::{Failure, Out, Outcome};

/// Arguments of `man`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Write the pages of the program and of every command to this folder, which is made if it does not exist. Default:
    /// print the page of the program.
    dir: Option<PathBuf>,
}

/// A manual page in the format of man.
#[derive(Serialize)]
struct Page {
    /// Name of the file, such as `warpann-search.1`.
    name: String,
    /// The page as roff, which the program man reads.
    text: String,
}

#[derive(Serialize)]
struct Report {
    /// Names of the pages that were written.
    #[serde(skip_serializing_if = "Option::is_none")]
    files: Option<Vec<String>>,
    /// The page that was printed.
    #[serde(skip_serializing_if = "Option::is_none")]
    page: Option<Page>,
}

/// Prints the page of the program `command`, or writes the pages of all commands.
pub fn run(args: &Args, command: clap::Command, out: &Out) -> Outcome {
    let mut command = command.disable_help_subcommand(true);
    command.build();
    let Some(dir) = &args.dir else {
        let page = page(command)?;
        out.line(page.text.trim_end())?;
        return out.object(&Report { files: None, page: Some(page) });
    };
    std::fs::create_dir_all(dir).map_err(|source| Error::Io { path: dir.clone(), source })?;
    let mut pages = Vec::new();
    collect(command, &mut pages)?;
    let mut files = Vec::new();
    for Page { name, text } in pages {
        let path = dir.join(&name);
        io::write_file(&path, text.as_bytes())?;
        out.line(path.display())?;
        files.push(name);
    }
    out.object(&Report { files: Some(files), page: None })
}

/// Adds the pages of a command and of its subcommands.
fn collect(command: clap::Command, pages: &mut Vec<Page>) -> Outcome {
    let further: Vec<_> = command.get_subcommands().filter(|command| !command.is_hide_set()).cloned().collect();
    pages.push(page(command)?);
    further.into_iter().try_for_each(|command| collect(command, pages))
}

fn page(command: clap::Command) -> Outcome<Page> {
    let man = Man::new(command);
    let mut text = Vec::new();
    man.render(&mut text).map_err(|error| Failure::Message(error.to_string()))?;
    Ok(Page { name: man.get_filename(), text: String::from_utf8_lossy(&text).into_owned() })
}
