//! The commands of README.md and of the pages in docs/ run, in their order, and print what the pages show.
//!
//! A command is a line of a `text` block that begins with `$ `, and the lines up to the next command are its output. A
//! block `obj NAME` is a file that the commands read, and a block `csv NAME` is the beginning of a file that they have
//! written.

use std::path::Path;
use std::process::{Command, Output};

const SAMPLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/data/sift-sample");
/// The line of the pages that names the folder in which the commands run.
const FOLDER: &str = "cd tests/data/sift-sample";

const README: &str = include_str!("../../README.md");
const PROGRAM: &str = include_str!("../../docs/PROGRAM.md");
const JSON: &str = include_str!("../../docs/JSON.md");
/// The pages that show no command of the program in a block.
const OTHERS: [(&str, &str); 12] = [
    ("CONTRIBUTING.md", include_str!("../../CONTRIBUTING.md")),
    ("docs/ARCHITECTURE.md", include_str!("../../docs/ARCHITECTURE.md")),
    ("docs/CHOOSING.md", include_str!("../../docs/CHOOSING.md")),
    ("docs/COST.md", include_str!("../../docs/COST.md")),
    ("docs/FIGURES.md", include_str!("../../docs/FIGURES.md")),
    ("docs/GUIDE.md", include_str!("../../docs/GUIDE.md")),
    ("docs/INDEXES.md", include_str!("../../docs/INDEXES.md")),
    ("docs/KERNELS.md", include_str!("../../docs/KERNELS.md")),
    ("docs/LIMITS.md", include_str!("../../docs/LIMITS.md")),
    ("docs/PYTHON.md", include_str!("../../docs/PYTHON.md")),
    ("docs/REQUESTS.md", include_str!("../../docs/REQUESTS.md")),
    ("docs/SEARCHES.md", include_str!("../../docs/SEARCHES.md")),
];

/// Lines that depend on the machine: only their first word is compared.
const OF_THE_MACHINE: [&str; 22] = [
    "device", "load", "build", "train", "add", "tune", "save", "open", "search", "cpu", "simd", "gpu", "features",
    "convert", "single", "batcher", "time", "requests", "checked", "changes", "loads", "host",
];

/// The part of a line that is the same on every machine.
fn stable(line: &str) -> String {
    let mut words: Vec<&str> = line.split_whitespace().collect();
    let count = match words.first() {
        Some(first) if OF_THE_MACHINE.contains(first) => 1,
        Some(&("remove" | "merge")) => 1,
        // Before the time; before the speed.
        Some(&("iteration" | "accuracy")) => 10,
        Some(first) if first.parse::<u64>().is_ok() && words.len() == 8 => 4,
        // A share of the highest rate.
        Some(first) if (*first == "-" || first.parse::<f64>().is_ok()) && words.len() == 9 => 1,
        _ => words.len(),
    };
    words.truncate(count);
    // A rate, such as 12.5 GB/s.
    if words.last().is_some_and(|word| word.ends_with("/s")) {
        words.truncate(words.len().saturating_sub(2));
    }
    words.join(" ")
}

/// The blocks of a page: the words behind the opening fence, and the lines.
fn blocks(page: &str) -> Vec<(&str, Vec<&str>)> {
    let mut blocks = Vec::new();
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        if let Some(language) = line.strip_prefix("```") {
            blocks.push((language, lines.by_ref().take_while(|line| *line != "```").collect()));
        }
    }
    blocks
}

/// Whether a line of a block is a command of the program, with or without the prompt. `info` prints a line
/// `warpann VERSION`.
fn is_command(line: &str) -> bool {
    let line = line.trim_start_matches("$ ");
    let argument = ["warpann ", "mpirun "].iter().find_map(|program| line.strip_prefix(program));
    argument.is_some_and(|rest| rest.trim_start().starts_with(|first: char| first.is_ascii_lowercase() || first == '-'))
}

/// The arguments of the program. Of several ranks: those of one process that does the same.
fn arguments(command: &str) -> Vec<&str> {
    let words = command.split_whitespace();
    match command.strip_prefix("warpann ") {
        Some(_) => words.skip(1).collect(),
        None => words.skip_while(|word| *word != "warpann").skip(1).filter(|word| *word != "--mpi").collect(),
    }
}

/// Runs a command in `folder`; commands with a pipe between them by a shell.
fn run(command: &str, folder: &Path) -> Output {
    let program = env!("CARGO_BIN_EXE_warpann");
    let mut process = if command.contains(" | ") {
        let mut shell = Command::new("sh");
        shell.env("PROGRAM", program).args(["-c", &format!("warpann() {{ \"$PROGRAM\" \"$@\"; }}; {command}")]);
        shell
    } else {
        let mut process = Command::new(program);
        process.args(arguments(command));
        process
    };
    process.current_dir(folder).output().unwrap()
}

/// Runs the commands of a page in `folder`, in their order. Returns the number of commands and of compared lines.
fn follow(page: &str, folder: &Path) -> (usize, usize) {
    for file in ["sample_base.bvecs", "sample_query.bvecs", "sample_gt.ivecs"] {
        std::fs::copy(Path::new(SAMPLE).join(file), folder.join(file)).unwrap();
    }
    let (mut commands, mut compared) = (0, 0);
    let mut entered = false;
    for (language, lines) in blocks(page) {
        if let Some(name) = language.strip_prefix("obj ") {
            std::fs::write(folder.join(name), lines.join("\n")).unwrap();
            continue;
        }
        if let Some(name) = language.strip_prefix("csv ") {
            let written = std::fs::read_to_string(folder.join(name)).unwrap();
            assert!(written.lines().take(lines.len()).eq(lines.iter().copied()), "{name} begins:\n{written:.200}");
            compared += lines.len();
            continue;
        }
        if language != "text" {
            assert!(
                !lines.iter().any(|line| is_command(line)),
                "a command stands in a block that is not run: {lines:?}"
            );
            continue;
        }
        // The output of the last command.
        let mut printed: Option<(&str, Vec<String>)> = None;
        for line in lines {
            let Some(command) = line.strip_prefix("$ ") else {
                assert!(!is_command(line), "a command has no prompt: {line}");
                let shown = stable(line);
                if let Some((command, printed)) = printed.as_ref().filter(|_| !shown.is_empty()) {
                    assert!(printed.contains(&shown), "{command} does not print '{shown}':\n{printed:#?}");
                    compared += 1;
                }
                continue;
            };
            if command == FOLDER {
                entered = true;
                continue;
            }
            assert!(entered, "the page does not say where this runs: {command}");
            assert!(is_command(command), "unknown command: {command}");
            let output = run(command, folder);
            let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
            assert!(output.status.success(), "{command}: {stderr}");
            printed = Some((command, stdout.lines().map(stable).collect()));
            commands += 1;
        }
    }
    (commands, compared)
}

#[test]
fn commands_of_the_readme_print_what_it_shows() {
    let folder = tempfile::tempdir().unwrap();
    let found = follow(README, folder.path());
    assert!(found.0 >= 1 && found.1 >= 9, "only {found:?} commands and lines were found: the search is broken");
    assert!(folder.path().join("ids.npy").is_file());
}

#[test]
fn commands_of_the_page_about_the_program_print_what_it_shows() {
    let folder = tempfile::tempdir().unwrap();
    let found = follow(PROGRAM, folder.path());
    assert!(found.0 >= 35 && found.1 >= 200, "only {found:?} commands and lines were found: the search is broken");
    let written = [
        "ids.npy",
        "centroids.fbin",
        "sift.ivf",
        "curve.csv",
        "curve.json",
        "curve.svg",
        "curve.png",
        "compare.svg",
        "compare.png",
        "latency.png",
        "walks.csv",
        "kinds.svg",
        "man1/warpann-bench-ivf.1",
        "small.ivf",
        "near.csv",
        "less.ivf",
        "all.ivf",
        "half.npy",
        "graph.ibin",
        "boxes.ibin",
        "ranks.npy",
        "index.ivf",
    ];
    for file in written {
        assert!(folder.path().join(file).is_file(), "{file}");
    }
}

#[test]
fn commands_of_the_page_about_json_print_what_it_shows() {
    let folder = tempfile::tempdir().unwrap();
    let found = follow(JSON, folder.path());
    assert!(found.0 >= 2 && found.1 >= 1, "only {found:?} commands and lines were found: the search is broken");
}

#[test]
fn other_pages_show_no_command_that_is_not_run() {
    for (page, text) in OTHERS {
        let mut lines = blocks(text).into_iter().flat_map(|(_, lines)| lines);
        assert_eq!(lines.find(|line| is_command(line)), None, "{page}");
    }
}

#[test]
fn a_line_is_compared_without_what_depends_on_the_machine() {
    for (line, expected) in [
        ("search       0.009 s, 21580 queries/s", "search"),
        ("             11577 queries/s", ""),
        (
            "memory       0.0518 GB to read or write at least once, 0.60 GB/s",
            "memory 0.0518 GB to read or write at least once,",
        ),
        (
            "memory       32 bytes per vector and 8 for its id, 422.6 KiB",
            "memory 32 bytes per vector and 8 for its id, 422.6 KiB",
        ),
        ("   10       1       1  0.480000       54289     0.018     0.026     0.036", "10 1 1 0.480000"),
        ("     1         8436            43987", "1 8436 43987"),
        ("           1 of 10000 nodes", "1 of 10000 nodes"),
        (
            "iteration    1  objective     1.47e9  largest    2.28 x mean  split    0     0.007 s",
            "iteration 1 objective 1.47e9 largest 2.28 x mean split 0",
        ),
    ] {
        assert_eq!(stable(line), expected);
    }
}
