//! The program around its searches: short and long `info`, completions, manual pages, progress, charts of several
//! indexes.

mod common;

use std::path::Path;
#[cfg(unix)]
use std::process::Command;
#[cfg(target_os = "linux")]
use std::process::Stdio;

use common::{SAMPLE, command_lines, failure, json, options_of, warpann};
use serde_json::Value;

#[test]
fn info_is_short_and_lists_the_kernels_if_asked() {
    let short = warpann(&["info"]).1;
    assert!(short.lines().all(|line| line.len() < 200) && short.lines().count() < 30, "{short}");
    for name in ["warpann ", "gpu", "cpu ", "simd ", "features ", "kernels "] {
        assert!(short.lines().any(|line| line.starts_with(name)), "{name}: {short}");
    }
    let report = json(&["info"]);
    assert!(report.get("modules").is_none(), "{report}");
    let long = json(&["info", "--kernels"]);
    let modules = long["modules"].as_array().unwrap();
    let kernels: usize = modules.iter().map(|module| module["kernels"].as_array().unwrap().len()).sum();
    assert_eq!((&report["kernels"]["count"], &report["kernels"]["modules"]), (&kernels.into(), &modules.len().into()));
    assert_eq!(kernels > 100, cfg!(feature = "cuda"), "{kernels}");
    let (_, text, _) = warpann(&["info", "--kernels"]);
    assert_eq!(text.lines().filter(|line| line.starts_with("  module ")).count(), modules.len());
    if kernels > 0 {
        assert!(short.contains(&format!("{kernels} in {} modules", modules.len())), "{short}");
    }
    failure(2, &["info", "--kernels", "--index", "x.ivf"]);
}

#[test]
fn completions_hold_every_command_and_option() {
    let commands = command_lines();
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        let (code, script, stderr) = warpann(&["completions", shell]);
        assert_eq!((code, stderr.as_str()), (0, ""));
        // A fish script names an option without its dashes.
        let written = |option: &str| match shell {
            "fish" => format!("-l {} ", option.trim_start_matches("--")),
            _ => option.to_owned(),
        };
        let script = script.replace('\n', " \n");
        for words in &commands {
            assert!(words.iter().all(|word| script.contains(word.as_str())), "{shell}: {words:?}");
            for option in options_of(words) {
                assert!(script.contains(&written(&option)), "{shell}: {words:?} {option}");
            }
        }
    }
}

/// bash reads its script and completes.
#[cfg(unix)]
#[test]
fn bash_completes_commands_and_options() {
    let script = warpann(&["completions", "bash"]).1;
    let complete = |line: &str| {
        let words: Vec<&str> = line.split(' ').collect();
        let program = format!(
            "{script}\nCOMP_WORDS=({}); COMP_CWORD={}; _warpann warpann '{}' '{}'; printf '%s\\n' \"${{COMPREPLY[@]}}\"",
            words.iter().map(|word| format!("'{word}'")).collect::<Vec<_>>().join(" "),
            words.len() - 1,
            words[words.len() - 1],
            words[words.len() - 2],
        );
        let output = Command::new("bash").args(["--norc", "-c", &program]).output().expect("bash starts");
        String::from_utf8(output.stdout).unwrap()
    };
    let found = complete("warpann bench i");
    assert!(found.lines().any(|line| line == "ivf"), "{found}");
    let found = complete("warpann search --memory");
    assert_eq!(found.trim(), "--memory-budget");
    let found = complete("warpann completions f");
    assert_eq!(found.trim(), "fish");
}

#[test]
fn manual_pages_hold_every_command_and_option() {
    let folder = tempfile::tempdir().unwrap();
    // The folder of the pages does not exist yet.
    let pages = folder.path().join("share/man1");
    let (code, stdout, stderr) = warpann(&["man", pages.to_str().unwrap()]);
    assert_eq!(code, 0, "{stderr}");
    let page = |words: &[String]| {
        let name = [&["warpann".to_owned()], words].concat().join("-") + ".1";
        assert!(stdout.contains(&name), "{stdout}");
        // roff writes a hyphen as \-.
        std::fs::read_to_string(pages.join(&name)).unwrap_or_else(|error| panic!("{name}: {error}")).replace("\\-", "-")
    };
    let (commands, main) = (command_lines(), page(&[]));
    for words in &commands {
        assert!(main.contains(&format!("warpann-{}(1)", words[0])), "{words:?}: {main}");
        let text = page(words);
        assert!(text.contains("NAME") && text.contains("SYNOPSIS"), "{text}");
        for option in options_of(words).iter().filter(|option| *option != "--help") {
            assert!(text.contains(option.as_str()), "{words:?} {option}: {text}");
        }
    }
    // The page of bench, and of the program.
    assert_eq!(std::fs::read_dir(&pages).unwrap().count(), commands.len() + 2);
    assert_eq!(warpann(&["man"]).1.replace("\\-", "-").trim_end(), main.trim_end());
}

/// The output of a command whose standard output and standard error are a terminal.
#[cfg(target_os = "linux")]
fn on_a_terminal(line: &str) -> String {
    let line = format!("{} {line}", env!("CARGO_BIN_EXE_warpann"));
    let output = Command::new("script")
        .args(["--quiet", "--return", "--command", &line, "/dev/null"])
        .env("TERM", "xterm")
        .stdin(Stdio::null())
        .output()
        .expect("script, a part of util-linux, starts");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{line}: {text}");
    text
}

#[cfg(target_os = "linux")]
#[test]
fn long_commands_show_step_and_time_on_a_terminal_only() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let (base, query) = (format!("{SAMPLE}/sample_base.bvecs"), format!("{SAMPLE}/sample_query.bvecs"));
    let points = path("points.fbin");
    warpann::io::write_vectors(&points, &(0..60).map(|i| i as f32).collect::<Vec<_>>(), 3).unwrap();
    let (index, graph, out, walks) = (path("x.ivf"), path("g.ibin"), path("c.npy"), path("x.graph"));
    let (more, less, all, part, ids) =
        (path("more.ivf"), path("less.ivf"), path("all.ivf"), path("part.ivf"), path("ids.npy"));
    warpann::io::write_ids(&ids, &(0..200).collect::<Vec<u64>>(), 1).unwrap();
    json(&[
        "build",
        "--device",
        "cpu",
        "--train",
        &base,
        "--base",
        &query,
        "--ids",
        &ids,
        "--lists",
        "8",
        "--iterations",
        "1",
        "--out",
        &part,
    ]);
    let commands = [
        (
            format!("build --base {base} --lists 8 --iterations 1 --out {index}"),
            &["training 8 lists", "adding", "saving"][..],
        ),
        (format!("search --base {base} --query {query}"), &["reading", "searching"]),
        (format!("search --index {index} --query {query}"), &["opening the index", "searching"]),
        (
            format!("search --index {index} --query {query} --k 2 --filter {ids} --refine {base}"),
            &["reading the filter", "reading the original vectors", "searching"],
        ),
        (format!("search --index {index} --query {query} --radius 100"), &["searching"]),
        (format!("add --index {index} --base {query} --out {more}"), &["reading", "opening", "adding", "saving"]),
        (format!("remove --index {more} --ids {ids} --out {less}"), &["reading", "opening", "removing", "saving"]),
        (format!("merge --index {less} {part} --out {all}"), &["opening", "merging", "of 1 indexes", "saving"]),
        (
            format!("build --base {query} --kind graph --exact-ratio 0 --out {walks}"),
            &["adding 200 vectors", ", searching", ", linking", "saving"],
        ),
        (format!("tune --index {walks} --query {query} --target-recall 0.5"), &["opening", "searching", "saving"]),
        (format!("convert --in {base} --out {less}.npy"), &["reading", "converting"]),
        (format!("convert --in {ids} --out {less}.ibin"), &["reading", "writing"]),
        (
            format!("kmeans --base {base} --centroids 4 --iterations 3 --out {out}"),
            &["clustering", "of 3 iterations", "writing"],
        ),
        (format!("knn-graph --base {query} --k 2 --out {graph}"), &["searching for the neighbours", "of 200 vectors"]),
        (format!("components --graph {graph}"), &["looking for components"]),
        (format!("path --graph {graph} --base {query} --from 0 --to 0"), &["looking for the path"]),
        (format!("shifted --base {points} --self-join --k 2"), &["sorting 20 vectors", "searching"]),
        ("verify --cases 3 --seed 4".to_owned(), &["verifying", "of 3 cases"]),
        ("verify --repeat 9 --seed 1".to_owned(), &["searching repeatedly", "of 9 searches"]),
        (format!("bench serve --base {base} --query {query} --quick"), &["measuring", "of 5 rows"]),
        (format!("bench serve --base {base} --query {query} --soak 0.03"), &["soaking", "of 120 samples"]),
        ("bench start-up --n 50".to_owned(), &["searching", "of 2 searches"]),
        ("bench select --rows 2 --cols 50 --repeat 2".to_owned(), &["making keys", "measuring"]),
        ("bench exact --n 50 --dim 4 --queries 5 --repeat 2".to_owned(), &["adding the base", "measuring"]),
        (
            format!("bench ivf --base {base} --query {query} --lists 8 --iterations 1 --probes 1,2 --repeat 1"),
            &["training 8 lists", "searching for the true neighbours", "measuring", "of 2 rows"],
        ),
        (
            format!("bench graph --base {base} --query {query} --degree 8 --beams 16,32 --repeat 1"),
            &["adding 10000 vectors", "searching for the true neighbours", "measuring", "of 2 rows"],
        ),
        (format!("bench kmeans --base {base} --centroids 4 --iterations 1 --repeat 1"), &["measuring", "of 2 runs"]),
    ];
    for (line, steps) in commands {
        // These commands have no device.
        let without = ["components", "path", "remove", "merge", "convert"];
        let device = if without.iter().any(|name| line.starts_with(name)) { "" } else { " --device cpu" };
        let line = line + device;
        let shown = on_a_terminal(&line);
        for step in steps {
            assert!(shown.contains(step), "{line}: no '{step}' in {shown}");
        }
        assert!(shown.contains(" elapsed"), "{line}: {shown}");
        for silent in ["--json", "--quiet"] {
            let shown = on_a_terminal(&format!("{line} {silent}"));
            assert!(!shown.contains(" elapsed") && !shown.contains('\x1b'), "{line}: {shown}");
        }
        let words: Vec<&str> = line.split_whitespace().collect();
        assert_eq!(warpann(&words).2, "", "{line}");
    }
}

/// The report of a measurement, as `bench ivf --out` writes it.
fn measured(path: &Path, kind: &str, further: &[&str]) {
    let (base, query) = (format!("{SAMPLE}/sample_base.bvecs"), format!("{SAMPLE}/sample_query.bvecs"));
    let truth = format!("{SAMPLE}/sample_gt.ivecs");
    let args = ["bench", "ivf", "--device", "cpu", "--base", &base, "--query", &query, "--gt", &truth, "--kind", kind];
    let sweep =
        ["--lists", "16", "--iterations", "2", "--probes", "1,4,16", "--repeat", "1", "--out", path.to_str().unwrap()];
    json(&[&args[..], &sweep, further].concat());
}

#[test]
fn a_chart_holds_several_indexes_and_their_best_points() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    measured(&folder.path().join("flat"), "ivf-flat", &["--batch", "50,all"]);
    measured(&folder.path().join("sq8"), "ivf-sq8", &["--batch", "50,all", "--axis", "latency"]);
    let read = |name: &str| std::fs::read_to_string(folder.path().join(name)).unwrap();
    assert!(read("flat.svg").contains("queries per second") && read("flat.svg").contains("batch 50"));
    assert!(read("sq8.svg").contains("milliseconds per call, median"));

    let (flat, sq8, out) = (path("flat.json"), path("sq8.json"), path("both"));
    for (axis, label, better) in [
        ("speed", "queries per second", (|a, b| a >= b) as fn(f64, f64) -> bool),
        ("latency", "milliseconds per call, median", |a, b| a <= b),
    ] {
        let report = json(&["chart", &flat, &sq8, "--out", &out, "--axis", axis]);
        let svg = read("both.svg");
        for text in ["ivf-flat, 16 lists, batch 50", "ivf-sq8, 16 lists, batch 200", "Pareto line", "recall@10", label]
        {
            assert!(svg.contains(text), "{text}: {svg}");
        }
        assert!(std::fs::read(folder.path().join("both.png")).unwrap().starts_with(b"\x89PNG\r\n\x1a\n"));
        let curves = report["curves"].as_array().unwrap();
        assert_eq!(curves.len(), 4);
        let points: Vec<&Value> = curves.iter().flat_map(|curve| curve["points"].as_array().unwrap()).collect();
        assert_eq!(points.len(), 12);
        let of = |point: &Value| {
            let field = if axis == "speed" { "queries_per_second" } else { "latency_p50_ms" };
            (point["recall"].as_f64().unwrap(), point[field].as_f64().unwrap())
        };
        for point in &points {
            let (recall, y) = of(point);
            let beaten = points.iter().filter(|other| other["batch"] == point["batch"]).any(|other| {
                let (other_recall, other_y) = of(other);
                other_recall >= recall && better(other_y, y) && (other_recall, other_y) != (recall, y)
            });
            assert_eq!(point["best"], !beaten, "{point}");
        }
    }
    // The best points are those of the table.
    let (_, text, _) = warpann(&["chart", &flat, &sq8, "--out", &out, "--batch", "200"]);
    let report = json(&["chart", &flat, &sq8, "--out", &out, "--batch", "200"]);
    let curves = report["curves"].as_array().unwrap();
    let points = curves.iter().flat_map(|curve| curve["points"].as_array().unwrap());
    assert_eq!(text.lines().skip(3).count(), points.filter(|point| point["best"] == true).count(), "{text}");
    assert!(curves.iter().all(|curve| !curve["name"].as_str().unwrap().contains("batch")), "{report}");
    assert!(read("both.svg").contains("queries per second, batch 200"));

    // Reports of the same kind of index are told apart by their files.
    let report = json(&["chart", &flat, &flat, "--out", &out, "--batch", "200"]);
    assert_eq!(report["curves"][0]["name"], format!("{flat}: ivf-flat, 16 lists"));
}

#[test]
fn a_chart_refuses_what_is_no_report() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    measured(&folder.path().join("flat"), "ivf-flat", &[]);
    let (flat, out) = (path("flat.json"), path("chart"));
    let text = std::fs::read_to_string(&flat).unwrap();
    std::fs::write(path("new.json"), text.replace("\"schema\": 1", "\"schema\": 2")).unwrap();
    std::fs::write(path("kmeans.json"), text.replace("bench ivf", "bench kmeans")).unwrap();
    std::fs::write(path("list.json"), "[1]").unwrap();
    for (file, expected) in [
        ("none.json", "No such file"),
        ("list.json", "not a report of bench ivf"),
        ("kmeans.json", "a report of bench kmeans, not of bench ivf"),
        ("new.json", "schema 2 of reports; this program reads 1"),
    ] {
        let message = failure(1, &["chart", &flat, &path(file), "--out", &out]);
        assert!(message.contains(expected) && message.contains(file), "{message}");
    }
    let chart = ["chart", &flat, "--out"];
    assert!(failure(1, &[&chart[..], &[&path("no/chart")]].concat()).contains("no/chart: No such file"));
    assert!(failure(1, &[&chart[..], &[&out, "--k", "3"]].concat()).contains("no row with this k and batch"));
    failure(2, &["chart", "--out", &out]);
    assert!(!Path::new(&format!("{out}.svg")).exists());
    // A report before the first schema has neither field.
    let mut old: Value = serde_json::from_str(&text).unwrap();
    old.as_object_mut().unwrap().retain(|name, _| !["schema", "command"].contains(&name.as_str()));
    std::fs::write(path("old.json"), old.to_string()).unwrap();
    assert_eq!(json(&["chart", &path("old.json"), "--out", &out])["curves"].as_array().unwrap().len(), 1);
}

/// The default shape is that of a page, and its keys fit into 512 MB.
#[test]
fn the_default_of_bench_select_fits_into_memory() {
    let (_, help, _) = warpann(&["bench", "select", "--help"]);
    let default = |option: &str| -> u64 {
        let text = help.split(&format!("{option} <")).nth(1).unwrap();
        let text = text.split("[default: ").nth(1).unwrap();
        text.split(']').next().unwrap().parse().unwrap()
    };
    assert_eq!(4 * default("--rows") * default("--cols"), 512_000_000);
    assert!(help.contains("512 MB") && help.contains("10000 rows, which take 5.1 GB"), "{help}");
}
