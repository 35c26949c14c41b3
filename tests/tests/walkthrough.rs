//! Follows docs/KERNELS.md in a copy of the repository, and checks that the paths in README.md, CONTRIBUTING.md and
//! docs/ exist.
//!
//! The copy lies below cargo's folder for tests (target/tmp) and stays there. It shares the target directory of the
//! outer build, which has compiled most dependencies: so a first run compiles little more than the project's own
//! crates, and a later one only what has changed. On a machine without the sources or without cargo the tests show as
//! ignored.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use libtest_mimic::{Arguments, Failed, Trial};

type Result<T> = std::result::Result<T, String>;

/// The folder of the host's launch; docs/KERNELS.md names it.
macro_rules! host_folder {
    () => {
        "host/src/product"
    };
}

/// The page that the test follows.
const KERNELS: &str = include_str!("../../docs/KERNELS.md");
const README: &str = include_str!("../../README.md");
/// The page of the library's package, which is also the front page of its documentation.
const PACKAGE: &str = include_str!("../../host/README.md");
const GUIDE: &str = include_str!("../../docs/GUIDE.md");
/// The manifest that declares the features of the library.
const MANIFEST: &str = include_str!("../../host/Cargo.toml");
/// The pages whose paths must exist. Links are relative to the page, paths in backticks to the repository.
const PAGES: [(&str, &str); 14] = [
    ("README.md", README),
    ("CONTRIBUTING.md", include_str!("../../CONTRIBUTING.md")),
    ("docs/ARCHITECTURE.md", include_str!("../../docs/ARCHITECTURE.md")),
    ("docs/CHOOSING.md", include_str!("../../docs/CHOOSING.md")),
    ("docs/COST.md", include_str!("../../docs/COST.md")),
    ("docs/FIGURES.md", include_str!("../../docs/FIGURES.md")),
    ("docs/GUIDE.md", GUIDE),
    ("docs/INDEXES.md", include_str!("../../docs/INDEXES.md")),
    ("docs/KERNELS.md", KERNELS),
    ("docs/LIMITS.md", include_str!("../../docs/LIMITS.md")),
    ("docs/PROGRAM.md", include_str!("../../docs/PROGRAM.md")),
    ("docs/PYTHON.md", include_str!("../../docs/PYTHON.md")),
    ("docs/REQUESTS.md", include_str!("../../docs/REQUESTS.md")),
    ("docs/SEARCHES.md", include_str!("../../docs/SEARCHES.md")),
];
const KERNEL: &str = "kernels-rs/src/row_norms.rs";
const TEST: &str = "kernels-rs/tests/row_norms.rs";
const HOST: &str = concat!(host_folder!(), "/row_norms.rs");
const DRIVER: &str = "kernels-rs/tests/row_norms_driver.rs";
/// The files that the page writes.
const WRITTEN: [&str; 4] = [KERNEL, TEST, HOST, DRIVER];
/// The heading of the page's part that breaks the kernel.
const BREAK: &str = "## 3. Break it";
/// The lines that the page adds to existing files.
const ADDITIONS: [(&str, &str); 2] =
    [("pub mod row_norms;", "kernels-rs/src/lib.rs"), ("mod row_norms;", concat!(host_folder!(), "/mod.rs"))];
/// The files and folders that a copy needs in order to build: the workspace's own files and every member.
const COPIED: [&str; 17] = [
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
    "measure",
    "python",
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
    let trials = vec![
        trial("kernels::walkthrough", walkthrough),
        trial("readme::shows_the_same_kernel", same_kernel),
        trial("readme::shows_the_example_of_the_package", same_example),
        trial("pages::tables_have_every_feature", every_feature),
        trial("pages::paths_that_they_name_exist", paths_exist),
    ];
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}

/// The root folder of the repository.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Follows docs/KERNELS.md, in its order.
fn walkthrough() -> Result<()> {
    let copy = Path::new(env!("CARGO_TARGET_TMPDIR")).join("walkthrough/repository");
    for name in COPIED {
        mirror(&root(), &copy, Path::new(name))?;
    }
    for (line, file) in ADDITIONS {
        let sentence = format!("Add `{line}` to `{file}`");
        if !words(KERNELS).contains(&sentence) {
            return Err(format!("docs/KERNELS.md does not say: {sentence}"));
        }
        let mut text = read(&root().join(file))?;
        text.extend(format!("{line}\n").bytes());
        write_changed(&copy.join(file), &text)?;
    }
    let kernel = block(&format!("`{KERNEL}`"), "rs")?;
    let broken = edit(kernel, block(BREAK, "diff")?)?;
    let shown = [
        "cargo test -p warpann-kernels --test row_norms",
        "cargo test -p warpann --lib row_norms",
        "cargo check -p warpann",
        "cargo test -p warpann-kernels --test row_norms_driver",
    ];
    if let Some(command) = shown.iter().find(|command| !KERNELS.contains(&format!("```sh\n{command}\n```"))) {
        return Err(format!("docs/KERNELS.md does not say: {command}"));
    }
    // The features of this test: the copy finds every dependency that the outer build fetched.
    let features = if cfg!(feature = "cuda") { "" } else { " --no-default-features" };
    let of_library = shown[1..3].iter().map(|command| format!("{command}{features}"));
    // There is a driver emulator on Linux only.
    let of_driver = shown[3..].iter().filter(|_| cfg!(target_os = "linux")).map(|&command| command.to_owned());
    let commands: Vec<String> = [shown[0].to_owned()].into_iter().chain(of_library).chain(of_driver).collect();

    for file in [TEST, HOST, DRIVER] {
        write_changed(&copy.join(file), block(&format!("`{file}`"), "rs")?.as_bytes())?;
    }
    write_changed(&copy.join(KERNEL), broken.as_bytes())?;
    let (passed, output) = run(&copy, &commands[0])?;
    let message = words(block(BREAK, "text")?);
    if passed || !words(&output).contains(&message) {
        return Err(format!("the broken kernel's test does not fail with: {message}\n{output}"));
    }

    write_changed(&copy.join(KERNEL), kernel.as_bytes())?;
    for command in &commands {
        let (passed, output) = run(&copy, command)?;
        let is_test = command.starts_with("cargo test ");
        if !passed || is_test && !output.contains("test result: ok. 1 passed") {
            return Err(format!("{command} does not pass:\n{output}"));
        }
        if let Some(file) = WRITTEN.into_iter().find(|file| output.contains(&format!("--> {file}"))) {
            return Err(format!("{command} prints a warning about {file}:\n{output}"));
        }
    }
    Ok(())
}

/// Runs a cargo command of the page in the copy. Returns whether it succeeded, and its output.
fn run(copy: &Path, command: &str) -> Result<(bool, String)> {
    let mut words = command.split(' ').skip(1);
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    // The variables that cargo set for this test describe another package.
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
        .env("CARGO_TARGET_DIR", Path::new(env!("CARGO_TARGET_TMPDIR")).join(".."))
        // The project's own crates are compiled faster; what runs is small.
        .envs([("CARGO_PROFILE_DEV_OPT_LEVEL", "0"), ("CARGO_PROFILE_DEV_DEBUG", "0"), ("CARGO_TERM_COLOR", "never")])
        .output()
        .map_err(|error| format!("{command}: {error}"))?;
    let text = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    Ok((output.status.success(), text))
}

/// The page's first block of `language` after the first occurrence of `landmark`.
fn block(landmark: &str, language: &str) -> Result<&'static str> {
    let missing = || format!("docs/KERNELS.md has no block of {language} after {landmark}");
    let (_, rest) = KERNELS.split_once(landmark).ok_or_else(missing)?;
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
        _ => Err(format!("the change in docs/KERNELS.md does not fit the kernel:\n{old}")),
    }
}

/// Makes the file or folder `name` of `to` what it is in `from`, except for what the walk-through writes. Files whose
/// content is the same keep their time, for cargo's sake.
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
    // Entries that the repository no longer has.
    let written = WRITTEN.map(Path::new);
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

/// The section of README.md about kernels shows the kernel, the command and the message of docs/KERNELS.md.
fn same_kernel() -> Result<()> {
    let missing = || "README.md has no section about kernels".to_owned();
    let (_, section) = README.split_once("\n## A kernel\n").ok_or_else(missing)?;
    let (section, _) = section.split_once("\n## ").ok_or_else(missing)?;
    // Every second part is a block, from its language to its last line.
    let blocks: Vec<&str> = section.split("```").skip(1).step_by(2).collect();
    if let Some(other) = blocks.iter().find(|block| !KERNELS.contains(&format!("```{block}```"))) {
        return Err(format!("README.md shows what docs/KERNELS.md does not:\n{other}"));
    }
    match blocks.as_slice() {
        [kernel, _, _] if kernel.strip_prefix("rs\n") == Some(block(&format!("`{KERNEL}`"), "rs")?) => Ok(()),
        _ => Err("README.md does not show the kernel, the command and the message".to_owned()),
    }
}

/// README.md and the page of the package show the same program.
fn same_example() -> Result<()> {
    let example = |page: &'static str| page.split("```rust\n").nth(1).and_then(|rest| rest.split("```").next());
    match (example(README), example(PACKAGE)) {
        (Some(ours), Some(theirs)) if ours == theirs => Ok(()),
        (ours, theirs) => Err(format!("README.md shows {ours:?}, host/README.md shows {theirs:?}")),
    }
}

/// The tables of the features have a row for each feature of the library, and the same rows.
fn every_feature() -> Result<()> {
    let declared = MANIFEST.split("[features]\n").nth(1).and_then(|rest| rest.split("\n[").next());
    let declared = declared.ok_or("host/Cargo.toml has no features")?.lines();
    let declared: BTreeSet<&str> = declared.filter_map(|line| Some(line.split_once(" = ")?.0)).collect();
    let rows = |page: &'static str| -> BTreeSet<&str> {
        let table = page.split("\n| feature |").nth(1).and_then(|rest| rest.split("\n\n").next()).unwrap_or_default();
        table.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next()).collect()
    };
    let (of_package, of_guide) = (rows(PACKAGE), rows(GUIDE));
    if declared.len() >= 5 && of_package == declared && of_guide == declared {
        return Ok(());
    }
    Err(format!("features {declared:?}; host/README.md has {of_package:?}, docs/GUIDE.md {of_guide:?}"))
}

/// The targets of all relative links exist, and so does everything in backticks that begins like a path of the
/// repository, but for the files that docs/KERNELS.md writes.
fn paths_exist() -> Result<()> {
    for (page, text) in PAGES {
        let folder = Path::new(page).parent().unwrap_or(Path::new(""));
        let quoted = text.split('`').skip(1).step_by(2).filter(|text| !text.contains(char::is_whitespace));
        let ours = quoted.filter(|path| {
            let first = path.split('/').next().unwrap_or_default();
            COPIED.contains(&first) || ["docs", "fuzz", ".ci"].contains(&first) || path.starts_with("LICENSE")
        });
        let links = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
        let relative = links.filter(|link| !link.contains("://"));
        let relative = relative.filter_map(|link| link.split('#').next()).filter(|link| !link.is_empty());
        let paths: Vec<PathBuf> = ours.map(PathBuf::from).chain(relative.map(|link| folder.join(link))).collect();
        let least = if page == "README.md" { 10 } else { 1 };
        if paths.len() < least {
            return Err(format!("only {} paths were found in {page}; the search is broken", paths.len()));
        }
        for path in paths.iter().filter(|path| !WRITTEN.iter().any(|other| path.ends_with(other))) {
            if !root().join(path).exists() {
                return Err(format!("{page} names {}, which does not exist", path.display()));
            }
        }
    }
    Ok(())
}
