//! What README.md says: its walk-through is followed in a copy of the repository, and the paths it names exist.
//!
//! The copy lies below cargo's folder for tests (target/tmp) and stays there, with a target directory of its own, so that only
//! the first run compiles everything. On a machine without the sources or without cargo the tests show as ignored.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use libtest_mimic::{Arguments, Failed, Trial};

type Result<T> = std::result::Result<T, String>;

const README: &str = include_str!("../../README.md");
const KERNEL: &str = "kernels-rs/src/row_norms.rs";
const TEST: &str = "kernels-rs/tests/row_norms.rs";
const HOST: &str = "host/src/gpu/row_norms.rs";
/// Where the README breaks the kernel.
const BREAK: &str = "**3. Break it.**";
/// What the walk-through adds to files that exist, as the README says it.
const ADDITIONS: [(&str, &str); 2] =
    [("pub mod row_norms;", "kernels-rs/src/lib.rs"), ("mod row_norms;", "host/src/gpu/mod.rs")];
/// What a copy needs in order to build: the workspace's own files and every member.
const COPIED: [&str; 15] = [
    "Cargo.toml",
    "Cargo.lock",
    "rust-toolchain.toml",
    ".cargo",
    "benches",
    "cuda_builder",
    "cuda_driver_emulator",
    "cuda_loader",
    "cuda_std",
    "cuda_std_macros",
    "host",
    "cli",
    "kernels-rs",
    "tests",
    "xtask",
];

fn main() -> ExitCode {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let answers = Command::new(cargo).arg("--version").stdin(Stdio::null()).stdout(Stdio::null()).status();
    let ignored = !(root().join("README.md").is_file() && answers.is_ok_and(|status| status.success()));
    let kind = if ignored { "needs the sources and cargo" } else { "" };
    let trial = |name: &str, test: fn() -> Result<()>| {
        Trial::test(name, move || test().map_err(Failed::from)).with_ignored_flag(ignored).with_kind(kind)
    };
    let trials =
        vec![trial("readme::walkthrough", walkthrough), trial("readme::paths_that_it_names_exist", paths_exist)];
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}

/// The repository.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Follows the section "How to add a kernel", in its order.
fn walkthrough() -> Result<()> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("walkthrough");
    let copy = folder.join("repository");
    for name in COPIED {
        mirror(&root(), &copy, Path::new(name))?;
    }
    for (line, file) in ADDITIONS {
        let sentence = format!("Add `{line}` to `{file}`");
        if !words(README).contains(&sentence) {
            return Err(format!("README.md does not say: {sentence}"));
        }
        let mut text = read(&root().join(file))?;
        text.extend(format!("{line}\n").bytes());
        write_changed(&copy.join(file), &text)?;
    }
    let kernel = block(&format!("`{KERNEL}`"), "rs")?;
    let broken = edit(kernel, block(BREAK, "diff")?)?;
    let commands = [
        "cargo test -p warpann-kernels --test row_norms",
        if cfg!(feature = "cuda") {
            "cargo test -p warpann --lib row_norms"
        } else {
            "cargo test -p warpann --lib row_norms --no-default-features"
        },
    ];
    let shown = commands.map(|command| command.trim_end_matches(" --no-default-features"));
    if let Some(command) = shown.iter().find(|command| !README.contains(&format!("```sh\n{command}\n```"))) {
        return Err(format!("README.md does not say: {command}"));
    }

    write_changed(&copy.join(TEST), block(&format!("`{TEST}`"), "rs")?.as_bytes())?;
    write_changed(&copy.join(HOST), block(&format!("`{HOST}`"), "rs")?.as_bytes())?;
    write_changed(&copy.join(KERNEL), broken.as_bytes())?;
    let (passed, output) = run(&copy, &folder, commands[0])?;
    let message = words(block(BREAK, "text")?);
    if passed || !words(&output).contains(&message) {
        return Err(format!("the broken kernel's test does not fail with: {message}\n{output}"));
    }

    write_changed(&copy.join(KERNEL), kernel.as_bytes())?;
    for command in commands {
        let (passed, output) = run(&copy, &folder, command)?;
        if !passed || !output.contains("test result: ok. 1 passed") {
            return Err(format!("{command} does not pass:\n{output}"));
        }
    }
    Ok(())
}

/// Runs one of the README's cargo commands in the copy: whether it succeeded, and what it printed.
fn run(copy: &Path, folder: &Path, command: &str) -> Result<(bool, String)> {
    let mut words = command.split(' ').skip(1);
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    // What cargo told this test about itself is not for the cargo that it starts.
    for (name, _) in std::env::vars_os() {
        if name.to_str().is_some_and(|name| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_")) {
            cargo.env_remove(&name);
        }
    }
    let output = cargo
        .current_dir(copy)
        .stdin(Stdio::null())
        .arg(words.next().unwrap_or_default())
        // The outer build has fetched every dependency.
        .args(["--offline", "--locked"])
        .args(words)
        .env("CARGO_TARGET_DIR", folder.join("target"))
        // Compiled faster; what runs is small.
        .envs([("CARGO_PROFILE_DEV_OPT_LEVEL", "0"), ("CARGO_PROFILE_DEV_DEBUG", "0"), ("CARGO_TERM_COLOR", "never")])
        .output()
        .map_err(|error| format!("{command}: {error}"))?;
    let text = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    Ok((output.status.success(), text))
}

/// The README's first block of `language` after the first occurrence of `landmark`.
fn block(landmark: &str, language: &str) -> Result<&'static str> {
    let missing = || format!("README.md has no block of {language} after {landmark}");
    let (_, rest) = README.split_once(landmark).ok_or_else(missing)?;
    let (_, rest) = rest.split_once(&format!("\n```{language}\n")).ok_or_else(missing)?;
    rest.split_once("```").map(|(text, _)| text).ok_or_else(missing)
}

/// Without line breaks and runs of spaces, which may differ.
fn words(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// `text` after a change shown in diff style.
fn edit(text: &str, diff: &str) -> Result<String> {
    let part = |left_out: char| {
        let lines = diff.lines().filter(|line| !line.starts_with(left_out));
        lines.map(|line| format!("{}\n", line.get(1..).unwrap_or_default())).collect::<String>()
    };
    let (old, new) = (part('+'), part('-'));
    match text.matches(&old).count() {
        1 => Ok(text.replace(&old, &new)),
        _ => Err(format!("the change in README.md does not fit the kernel:\n{old}")),
    }
}

/// Makes the file or folder `name` of `to` what it is in `from`, except for what the walk-through writes. Files whose content
/// is the same keep their time, for cargo's sake.
fn mirror(from: &Path, to: &Path, name: &Path) -> Result<()> {
    let (source, copy) = (from.join(name), to.join(name));
    if !source.is_dir() {
        let changed_later = ADDITIONS.iter().any(|(_, file)| name == Path::new(file));
        return if changed_later { Ok(()) } else { write_changed(&copy, &read(&source)?) };
    }
    for entry in entries(&source)? {
        // Vectors are no source.
        if entry != "data" {
            mirror(from, to, &name.join(entry))?;
        }
    }
    // What the repository no longer has.
    let written = [KERNEL, TEST, HOST].map(Path::new);
    for gone in entries(&copy)?.into_iter().filter(|entry| !source.join(entry).exists()) {
        if !written.iter().any(|file| file.starts_with(name.join(&gone))) {
            let path = copy.join(gone);
            let removed = if path.is_dir() { std::fs::remove_dir_all(&path) } else { std::fs::remove_file(&path) };
            removed.map_err(|error| format!("{}: {error}", path.display()))?;
        }
    }
    Ok(())
}

/// Names in a folder; none where there is no folder.
fn entries(folder: &Path) -> Result<Vec<OsString>> {
    if !folder.is_dir() {
        return Ok(Vec::new());
    }
    let failed = |error: std::io::Error| format!("{}: {error}", folder.display());
    std::fs::read_dir(folder)
        .map_err(failed)?
        .map(|entry| entry.map(|entry| entry.file_name()).map_err(failed))
        .collect()
}

fn read(file: &Path) -> Result<Vec<u8>> {
    std::fs::read(file).map_err(|error| format!("{}: {error}", file.display()))
}

fn write_changed(file: &Path, bytes: &[u8]) -> Result<()> {
    if std::fs::read(file).is_ok_and(|present| present == bytes) {
        return Ok(());
    }
    let folder = file.parent().unwrap_or(Path::new("."));
    let failed = |error: std::io::Error| format!("{}: {error}", file.display());
    std::fs::create_dir_all(folder).map_err(failed)?;
    std::fs::write(file, bytes).map_err(failed)
}

/// Everything in backticks or behind a link that begins like a path of the repository is there, but for the walk-through's own
/// files.
fn paths_exist() -> Result<()> {
    let quoted = README.split('`').skip(1).step_by(2);
    let links = README.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    let mut checked = 0;
    for path in quoted.chain(links).filter(|text| !text.contains(char::is_whitespace)) {
        let first = path.split('/').next().unwrap_or_default();
        let ours = COPIED.contains(&first) || ["fuzz", ".ci"].contains(&first) || path.starts_with("LICENSE");
        if !ours || [KERNEL, TEST, HOST].contains(&path) {
            continue;
        }
        checked += 1;
        if !root().join(path).exists() {
            return Err(format!("README.md names {path}, which does not exist"));
        }
    }
    if checked < 10 { Err(format!("only {checked} paths were found; the search is broken")) } else { Ok(()) }
}
