//! Running the program as a user runs it.

use std::fmt::Debug;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use tempfile::TempDir;

/// Real descriptors, queries and true neighbours.
#[allow(dead_code, reason = "not every program test reads them")]
pub const SAMPLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/data/sift-sample");

/// Runs the program; returns exit code, standard output and standard error.
pub fn warpann(args: &[impl AsRef<str> + Debug]) -> (i32, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_warpann"));
    let output = command.args(args.iter().map(AsRef::as_ref)).output();
    let Output { status, stdout, stderr } = output.expect("the program starts");
    let text = |bytes| String::from_utf8(bytes).expect("output is UTF-8");
    let (stdout, stderr) = (text(stdout), text(stderr));
    assert!(!stderr.contains("panicked"), "{args:?}: {stderr}");
    (status.code().expect("ended by itself"), stdout, stderr)
}

/// The words of a command line; those with `@` in front are files of a folder.
#[allow(dead_code, reason = "not every program test has a folder")]
pub fn words(folder: &Path, line: &str) -> Vec<String> {
    let word = |word: &str| match word.strip_prefix('@') {
        Some(name) => format!("{}/{name}", folder.display()),
        None => word.to_owned(),
    };
    line.split_whitespace().map(word).collect()
}

/// Runs the program, which must succeed, with `--json`, and returns the object.
#[allow(dead_code, reason = "not every program test reads objects")]
pub fn json(args: &[impl AsRef<str>]) -> Value {
    let args: Vec<&str> = args.iter().map(AsRef::as_ref).chain(["--json"]).collect();
    let (code, stdout, stderr) = warpann(&args);
    assert_eq!(code, 0, "{args:?}: {stderr}");
    assert_eq!(stdout.lines().count(), 1, "{stdout}");
    let value: Value = serde_json::from_str(&stdout).expect("standard output is JSON");
    assert!(value.is_object());
    value
}

/// Runs the program, which must fail with the given code, and returns its message.
#[allow(dead_code, reason = "not every program test expects failures")]
pub fn failure(code: i32, args: &[impl AsRef<str> + Debug]) -> String {
    let (actual, stdout, stderr) = warpann(args);
    assert_eq!(actual, code, "{args:?}: {stdout} {stderr}");
    assert!(stderr.starts_with("error: "), "{args:?}: {stderr}");
    assert!(stdout.is_empty(), "{args:?}: {stdout}");
    stderr
}

/// Runs the program with `input` as standard input; returns exit code, standard output and standard error.
#[allow(dead_code, reason = "not every program test has standard input")]
pub fn piped(args: &[impl AsRef<str> + Debug], input: &[u8]) -> (i32, Vec<u8>, String) {
    let mut child = Command::new(env!("CARGO_BIN_EXE_warpann"))
        .args(args.iter().map(AsRef::as_ref))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let (mut stdin, input) = (child.stdin.take().expect("a pipe"), input.to_owned());
    // A program that refuses its arguments ends without reading, which breaks the pipe.
    let writer = std::thread::spawn(move || stdin.write_all(&input).is_ok());
    let Output { status, stdout, stderr } = child.wait_with_output().expect("the program ends");
    writer.join().expect("the writer ends");
    let stderr = String::from_utf8(stderr).expect("messages are UTF-8");
    assert!(!stderr.contains("panicked"), "{args:?}: {stderr}");
    (status.code().expect("ended by itself"), stdout, stderr)
}

/// Squared distances and ids of the `rows` vectors of `component(i, j)` for which `keep` is true, best first for vector
/// `rows + query`.
#[allow(dead_code, reason = "not every program test ranks vectors")]
pub fn ranked(
    component: fn(usize, usize) -> i64,
    (rows, dim): (usize, usize),
    query: usize,
    keep: impl Fn(u64) -> bool,
) -> Vec<(i64, u64)> {
    let distance = |i| (0..dim).map(|j| (component(i, j) - component(rows + query, j)).pow(2)).sum();
    let mut all: Vec<(i64, u64)> = (0..rows).map(|i| (distance(i), i as u64)).filter(|&(_, id)| keep(id)).collect();
    all.sort_unstable();
    all
}

/// Checks the neighbours of a query in a report.
#[allow(dead_code, reason = "not every program test ranks vectors")]
pub fn check_neighbours(found: &Value, query: usize, expected: &[(i64, u64)]) {
    let (distances, ids): (Vec<f64>, Vec<u64>) = expected.iter().map(|&(distance, id)| (distance as f64, id)).unzip();
    assert_eq!(found["neighbours"][query]["ids"], serde_json::json!(ids), "query {query}");
    assert_eq!(found["neighbours"][query]["distances"], serde_json::json!(distances), "query {query}");
}

/// A temporary folder, and command lines whose words with `@` in front are files of it.
#[allow(dead_code, reason = "not every program test has a folder")]
pub struct Folder(TempDir);

#[allow(dead_code, reason = "not every program test runs commands in every way")]
impl Folder {
    pub fn new() -> Self {
        Self(tempfile::tempdir().expect("a temporary folder"))
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub fn bytes(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.path(name)).unwrap()
    }

    pub fn args(&self, line: &str) -> Vec<String> {
        words(self.0.path(), line)
    }

    /// The path of a file as an argument.
    pub fn text(&self, name: &str) -> String {
        self.path(name).to_str().expect("a UTF-8 path").to_owned()
    }

    /// Exit code, standard output and standard error of a command.
    pub fn warpann(&self, line: &str) -> (i32, String, String) {
        warpann(&self.args(line))
    }

    /// The object that a command prints, which must succeed.
    pub fn json(&self, line: &str) -> Value {
        json(&self.args(line))
    }

    /// The standard output of a command, which must succeed.
    pub fn run(&self, line: &str) -> String {
        let (code, stdout, stderr) = self.warpann(line);
        assert_eq!(code, 0, "{line}: {stderr}");
        stdout
    }

    /// The message of a command that must fail with this code.
    pub fn failure(&self, code: i32, line: &str) -> String {
        failure(code, &self.args(line))
    }

    /// The message of a command that must fail with this code and leave everything in the folder as it was, and nothing
    /// else.
    pub fn refused(&self, code: i32, line: &str) -> String {
        let before = self.contents();
        let message = self.failure(code, line);
        assert!(self.contents() == before, "{line}: files changed");
        message
    }

    /// Exit code, standard output and standard error of a command with standard input.
    pub fn piped(&self, line: &str, input: &[u8]) -> (i32, Vec<u8>, String) {
        piped(&self.args(line), input)
    }

    /// Paths of what is in the folder, in order.
    pub fn names(&self) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(self.0.path()).unwrap();
        let mut all: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
        all.sort();
        all
    }

    /// The entries of the folder, in the order of the names, with the bytes of regular files.
    pub fn contents(&self) -> Vec<(PathBuf, Option<Vec<u8>>)> {
        let with_bytes = |path: PathBuf| (path.clone(), path.is_file().then(|| std::fs::read(&path).unwrap()));
        self.names().into_iter().map(with_bytes).collect()
    }
}

/// The words of every command that the help lists, such as `bench ivf`; commands with subcommands stand for these.
#[allow(dead_code, reason = "not every program test reads the help")]
pub fn command_lines() -> Vec<Vec<String>> {
    fn collect(path: &[String], all: &mut Vec<Vec<String>>) {
        let (code, help, _) = warpann(&[path, &["--help".to_owned()]].concat());
        assert_eq!(code, 0, "{path:?}");
        let listed = help.split("\nCommands:\n").nth(1).and_then(|rest| rest.split("\n\nOptions:").next());
        let Some(listed) = listed else {
            all.push(path.to_vec());
            return;
        };
        // A name stands two columns from the left; the rest of its text is further right.
        let names = listed.lines().filter_map(|line| line.strip_prefix("  ")).filter(|line| !line.starts_with(' '));
        for name in names.filter_map(|line| line.split_whitespace().next()).filter(|&name| name != "help") {
            collect(&[path, &[name.to_owned()]].concat(), all);
        }
    }
    let mut all = Vec::new();
    collect(&[], &mut all);
    assert!(all.len() > 14, "only {all:?} were found: the search is broken");
    all
}

/// The long options of a command, as its help lists them.
#[allow(dead_code, reason = "not every program test reads the help")]
pub fn options_of(words: &[String]) -> Vec<String> {
    let (_, help, _) = warpann(&[words, &["--help".to_owned()]].concat());
    let options = help.split("\nOptions:\n").nth(1).expect("every command has options");
    // `  -q, --quiet` or `      --json`; texts stand further right.
    let option = |line: &str| {
        let words = line.split_whitespace().find(|word| word.starts_with("--"))?;
        let indent = line.len() - line.trim_start().len();
        (indent == 2 || indent == 6).then(|| words.trim_end_matches(['.', ',', ']']).to_owned())
    };
    let all: Vec<String> = options.lines().filter_map(option).collect();
    assert!(all.iter().any(|option| option == "--json") && all.len() >= 3, "{words:?}: {all:?}");
    all
}
