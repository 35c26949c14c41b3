//! The section "Indexes, step by step" of README.md: its commands run, in their order, and print what stands there.

use std::path::Path;
use std::process::Command;

const SAMPLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/data/sift-sample");
const README: &str = include_str!("../../README.md");

/// Lines that say how fast something was, and on what: their first word only is compared.
const OF_THE_MACHINE: [&str; 7] = ["device", "load", "train", "add", "save", "open", "search"];

/// What of a line every machine prints alike.
fn stable(line: &str) -> String {
    let words: Vec<&str> = line.split_whitespace().collect();
    let count = match words.first() {
        Some(first) if OF_THE_MACHINE.contains(first) => 1,
        // Before the time; before the speed.
        Some(&"iteration") => 10,
        Some(first) if first.parse::<u64>().is_ok() => 4,
        _ => words.len(),
    };
    words[..count.min(words.len())].join(" ")
}

#[test]
fn the_commands_print_what_they_are_said_to() {
    let (_, section) = README.split_once("\n### Indexes, step by step\n").expect("the section is there");
    let section = section.split_once("\n## ").map_or(section, |(section, _)| section);
    let folder = tempfile::tempdir().unwrap();
    for file in ["sample_base.bvecs", "sample_query.bvecs", "sample_gt.ivecs"] {
        std::fs::copy(Path::new(SAMPLE).join(file), folder.path().join(file)).unwrap();
    }
    let (mut commands, mut compared) = (0, 0);
    for block in section.split("\n```text\n").skip(1).filter_map(|rest| rest.split("```").next()) {
        for session in block.split("$ warpann ").skip(1) {
            let (command, shown) = session.split_once('\n').expect("a command has a line of its own");
            let output = Command::new(env!("CARGO_BIN_EXE_warpann"))
                .args(command.split_whitespace())
                .current_dir(folder.path())
                .output()
                .unwrap();
            let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
            assert!(output.status.success(), "{command}: {stderr}");
            let printed: Vec<String> = stdout.lines().map(stable).collect();
            for line in shown.lines().map(stable) {
                assert!(printed.contains(&line), "{command} does not print '{line}':\n{stdout}");
                compared += 1;
            }
            commands += 1;
        }
    }
    assert!(
        commands >= 7 && compared >= 40,
        "only {commands} commands and {compared} lines were found: the search is broken"
    );
    for file in ["curve.csv", "curve.json", "curve.svg", "curve.png", "sift.ivf", "small.ivf", "centroids.fbin"] {
        assert!(folder.path().join(file).is_file(), "{file}");
    }
}
