//! `cargo xtask comments`: finds doc comments that explain nothing.
//!
//! A doc comment is everything that documents one item: consecutive lines with `///` or `//!`. The check reads the part
//! before the first heading, table or code block. It reports a part of one of these forms:
//!
//! 1. A sentence of at most three words, such as "Its k." or "The id.". It repeats a name; shape, unit, range or
//!    meaning is missing. A sentence with a digit, with code or of the form "Number of ..." passes, because that adds
//!    to the name.
//! 2. A text that begins with a word of [`DANGLING`]. Such a text lacks a noun: "Its" refers to one outside of the
//!    comment, and "What" stands in place of one.
//!
//! It also reports comments with lines of more than 120 characters. `cargo xtask comments --wrap` wraps these
//! ([`wrap`]).
//!
//! Texts without a full stop are not sentences: they are the short help texts of a command line, and rule 1 does not
//! cover them.
//!
//! [`CANARY`] has comments of each form and comments that must pass. The command checks the canary first.

mod wrap;

use std::path::Path;

use crate::shell::{self, Result};

/// Folders of the repository with Rust code.
const FOLDERS: [&str; 15] = [
    "benches",
    "cli",
    "cuda_builder",
    "cuda_driver_emulator",
    "cuda_loader",
    "cuda_std",
    "cuda_std_macros",
    "examples",
    "fuzz",
    "host",
    "kernels-rs",
    "measure",
    "python",
    "tests",
    "xtask",
];

/// Words with which a doc comment must not begin, each with the blank behind it.
const DANGLING: [&str; 8] = ["Its ", "Their ", "Of ", "So many ", "As many ", "What ", "Where ", "Who "];

/// The largest number of words of a sentence that rule 1 reports.
const FEW_WORDS: usize = 3;

/// A file with comments of each form.
const CANARY: &str = concat!(
    "//! Files.\n\n",
    "/// Its length in bytes, from the start of the file to its end.\npub a: usize,\n",
    "/// The id.\npub id: u64,\n",
    "    /// Of an index.\n    ///\n    /// # Errors\n    /// None.\n    pub fn b() {}\n",
    "/// Largest number of rows.\npub c: usize,\n",
    "/// Print JSON\npub json: bool,\n",
    "/// Number of rows.\npub f: usize,\n",
    "/// At most 8.\npub g: usize,\n",
    "/// # Safety\n/// None needed.\npub unsafe fn d() {}\n",
    "/// Where each row starts.\npub h: Vec<usize>,\n",
    "/// Rows.\n/// ```\n/// assert!(true);\n/// ```\npub fn e() {}\n",
    "// Its k.\n",
);

/// The reports that the check must make of the canary, and no others.
const REPORT: [&str; 6] = [
    "canary.rs:1: Files.",
    "canary.rs:3: Its length in bytes, from the start of the file to its end.",
    "canary.rs:5: The id.",
    "canary.rs:7: Of an index.",
    "canary.rs:23: Where each row starts.",
    "canary.rs:25: Rows.",
];

/// Checks the canary and then all Rust files of the repository. With `wrap` it writes files whose comments have longer
/// lines again.
pub fn run(wrap: bool) -> Result<()> {
    check_canary()?;
    let (root, mut files, mut found, mut long) = (shell::root(), 0, Vec::new(), Vec::new());
    for folder in FOLDERS {
        visit(&root, folder, &mut |path, text| {
            files += 1;
            found.extend(empty_comments(path, text));
            let (wrapped, broken) = wrap::wrapped(text);
            if wrap && !broken.is_empty() {
                std::fs::write(root.join(path), wrapped)?;
            }
            long.extend(broken.into_iter().map(|line| format!("{path}:{line}")));
            Ok(())
        })?;
    }
    println!("{files} files; the canary was caught");
    if wrap {
        println!("{} lines were longer than {} characters", long.len(), wrap::WIDTH);
        long.clear();
    }
    let mut failures = Vec::new();
    if !found.is_empty() {
        failures.push(format!("{} doc comments explain nothing:\n  {}", found.len(), found.join("\n  ")));
    }
    if !long.is_empty() {
        let (count, width) = (long.len(), wrap::WIDTH);
        let lines = long.join("\n  ");
        failures.push(format!(
            "{count} lines of comments are longer than {width} characters; --wrap wraps them:\n  {lines}"
        ));
    }
    if failures.is_empty() { Ok(()) } else { Err(failures.join("\n").into()) }
}

/// Calls `read` with the path below `root` and the text of each Rust file in `folder`, without build products.
fn visit(root: &Path, folder: &str, read: &mut impl FnMut(&str, &str) -> Result<()>) -> Result<()> {
    let path = root.join(folder);
    for entry in std::fs::read_dir(&path).map_err(|error| format!("{}: {error}", path.display()))? {
        let entry = entry?;
        let name = entry.file_name();
        let below = format!("{folder}/{}", name.to_string_lossy());
        if entry.file_type()?.is_dir() {
            if name != "target" {
                visit(root, &below, read)?;
            }
        } else if below.ends_with(".rs") {
            read(&below, &std::fs::read_to_string(entry.path())?)?;
        }
    }
    Ok(())
}

/// The comments of a file that explain nothing, each as `path:line: text`.
fn empty_comments(path: &str, text: &str) -> Vec<String> {
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let (mut found, mut at) = (Vec::new(), 0);
    while at < lines.len() {
        let Some(marker) = ["///", "//!"].into_iter().find(|marker| lines[at].starts_with(marker)) else {
            at += 1;
            continue;
        };
        let first = at;
        while lines.get(at).is_some_and(|line| line.starts_with(marker)) {
            at += 1;
        }
        let parts = lines[first..at].iter().map(|line| line[marker.len()..].trim());
        let words: Vec<&str> = parts
            .take_while(|part| !part.starts_with(['#', '|']) && !part.starts_with("```"))
            .flat_map(str::split_whitespace)
            .collect();
        let summary = words.join(" ");
        let adds = summary.contains(|c: char| c == '`' || c.is_ascii_digit()) || summary.starts_with("Number of ");
        let is_short = words.len() <= FEW_WORDS && summary.ends_with('.') && !adds;
        if is_short || DANGLING.iter().any(|start| summary.starts_with(start)) {
            found.push(format!("{path}:{}: {summary}", first + 1));
        }
    }
    found
}

/// Fails unless the check reports exactly the comments of the canary that explain nothing.
fn check_canary() -> Result<()> {
    let found = empty_comments("canary.rs", CANARY);
    if found == REPORT {
        return Ok(());
    }
    Err(format!("the check of comments is broken; in the canary it finds:\n  {}", found.join("\n  ")).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_canary_is_caught() {
        check_canary().unwrap();
    }

    #[test]
    fn the_files_of_every_crate_are_read() {
        let mut paths = Vec::new();
        for folder in FOLDERS {
            visit(&shell::root(), folder, &mut |path, _| {
                paths.push(path.to_owned());
                Ok(())
            })
            .unwrap();
        }
        for folder in FOLDERS {
            assert!(paths.iter().any(|path| path.starts_with(&format!("{folder}/"))), "{folder}");
        }
        assert!(!paths.iter().any(|path| path.contains("/target/")));
    }
}
