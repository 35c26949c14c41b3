//! `warpann knn-graph`, `path` and `components`, run as a user runs them.

mod common;

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use common::{Folder, SAMPLE, failure, json, warpann};
use warpann::io;

/// Makes a file of `rows` vectors of `dim` components from the components of real descriptors, and returns its path.
/// Exact graphs of these vectors are cheaper than those of the whole descriptors.
fn part(files: &Folder, rows: usize, dim: usize) -> String {
    let vectors = io::read_vectors(format!("{SAMPLE}/sample_base.bvecs")).unwrap();
    io::write_vectors(files.path("part.bvecs"), &vectors.as_slice::<u8>().unwrap()[..rows * dim], dim).unwrap();
    files.text("part.bvecs")
}

/// The graph of eight points on a line, in two groups of four.
#[test]
fn a_graph_is_made_walked_and_counted() {
    let files = Folder::new();
    let line = [0.0f32, 1.0, 3.0, 4.0, 100.0, 101.0, 102.5, 104.0];
    io::write_vectors(files.path("base.fbin"), &line, 1).unwrap();
    let base = files.text("base.fbin");
    for (graph, distances) in [("g.ibin", "d.npy"), ("g.npy", "d.fbin")] {
        let (graph, distances) = (files.text(graph), files.text(distances));
        let make = ["knn-graph", "--device", "cpu", "--base", &base, "--k", "2", "--out", &graph];
        let report = json(&[&make[..], &["--distances", &distances]].concat());
        assert_eq!((&report["base"], &report["resumed"], &report["k"]), (&8.into(), &0.into(), &2.into()));
        assert_eq!(io::read_ids(&graph).unwrap().ids, [1, 2, 0, 2, 3, 1, 2, 1, 5, 6, 4, 6, 5, 7, 6, 5]);
        let read = io::read_vectors(&distances).unwrap();
        assert_eq!(read.as_slice::<f32>().map(|all| &all[..4]), Some(&[1.0, 9.0, 1.0, 4.0][..]));
        let (code, stdout, stderr) = warpann(&make);
        assert_eq!((code, stdout.contains("vectors/s")), (0, true), "{stdout}{stderr}");

        let path = ["path", "--graph", &graph, "--base", &base, "--from", "3", "--to"];
        let (code, stdout, _) = warpann(&[&path[..], &["0"]].concat());
        assert_eq!((code, &stdout[..]), (0, "3\n2\n1\n0\nlargest edge 4\n"));
        assert_eq!(warpann(&[&path[..], &["3"]].concat()).1, "3\nno edge\n");
        let report = json(&[&path[..], &["1", "--metric", "ip"]].concat());
        assert_eq!((&report["nodes"], &report["largest"]), (&serde_json::json!([3, 1]), &4.0.into()));
        let error = failure(1, &[&path[..], &["7"]].concat());
        assert!(error.contains("no path leads from 3 to 7: their components have 4 and 4 nodes"), "{error}");
        assert!(failure(1, &[&path[..], &["8"]].concat()).contains("id 8 does not exist; there are 8 vectors"));

        let report = json(&["components", "--graph", &graph]);
        assert_eq!((&report["components"], &report["edges"]), (&2.into(), &16.into()));
        assert_eq!(report["sizes"], serde_json::json!([{"nodes": 4, "components": 2}]));
        let (_, stdout, _) = warpann(&["components", "--graph", &graph]);
        assert!(stdout.contains("8 nodes, 16 edges") && stdout.contains("2 of 4 nodes"), "{stdout}");
    }
}

#[test]
fn an_index_gives_a_graph_of_known_accuracy() {
    let files = Folder::new();
    let (base, index) = (part(&files, 3000, 128), files.text("sift.ivf"));
    let built = ["build", "--device", "cpu", "--base", &base, "--lists", "64", "--out", &index];
    json(&built);
    let graph = files.text("g.ibin");
    let make = ["knn-graph", "--device", "cpu", "--base", &base, "--index", &index, "--out", &graph];
    let estimate = |probes: &str, sample: &str| {
        let report = json(&[&make[..], &["--probes", probes, "--sample", sample]].concat());
        assert_eq!(report["probes"], probes.parse::<u64>().unwrap());
        (report["accuracy"]["estimate"].as_f64().unwrap(), report["accuracy"]["sample"].as_u64().unwrap())
    };
    let ((few, some), (all, everything)) = (estimate("2", "500"), estimate("64", "20000"));
    assert_eq!((some, everything, all), (500, 3000, 1.0));
    assert!((0.3..0.98).contains(&few), "{few}");
    let (_, stdout, _) = warpann(&[&make[..], &["--sample", "100"]].concat());
    assert!(stdout.contains("by 100 exact searches") && stdout.contains("4 probes"), "{stdout}");
    assert!(json(&[&make[..], &["--sample", "0"]].concat())["accuracy"].is_null());
}

/// The ids of an index can be 0, 1, 2, .. in another order than the vectors of the base. Then they are not the numbers
/// of the nodes.
#[test]
fn an_index_of_other_ids_than_the_rows_is_refused() {
    let files = Folder::new();
    let vectors = io::read_vectors(part(&files, 600, 8)).unwrap().to_f32().unwrap();
    io::write_vectors(files.path("base.fbin"), vectors.as_slice::<f32>().unwrap(), 8).unwrap();
    let base = files.text("base.fbin");
    let mut order: Vec<u64> = (0..600).collect();
    order.swap(400, 599);
    io::write_ids(files.path("swapped.ibin"), &order, 1).unwrap();
    io::write_ids(files.path("rows.ibin"), &(0..600).collect::<Vec<_>>(), 1).unwrap();
    let graph = files.text("g.ibin");
    for kind in [
        "graph",
        "ivf-flat",
        "ivf-f16 --metric cosine",
        "ivf-sq8 --metric ip",
        "ivf-pq --sub-quantizers 4 --bits 8",
        "ivf-pq --sub-quantizers 4 --bits 8 --opq",
    ] {
        let index = files.text("x.index");
        let build = |ids: &str| {
            let ids = files.text(ids);
            let args = ["build", "--device", "cpu", "--base", &base, "--out", &index, "--ids", &ids, "--kind"];
            json(&args.into_iter().chain(kind.split(' ')).collect::<Vec<_>>());
        };
        let make = ["knn-graph", "--device", "cpu", "--base", &base, "--index", &index, "--k", "3", "--out", &graph];
        build("swapped.ibin");
        let message = failure(1, &make);
        assert!(message.contains("vector 400 is not the vector with id 400"), "{kind}: {message}");
        assert!(!files.path("g.ibin").exists(), "{kind}");
        build("rows.ibin");
        json(&make);
        std::fs::remove_file(files.path("g.ibin")).unwrap();
    }
    // Another base of the same shape.
    let other: Vec<f32> = (0..600 * 8).map(|i| (i * i % 251) as f32).collect();
    io::write_vectors(files.path("other.fbin"), &other, 8).unwrap();
    let (other, index) = (files.text("other.fbin"), files.text("x.index"));
    let message = failure(1, &["knn-graph", "--device", "cpu", "--base", &other, "--index", &index, "--out", &graph]);
    assert!(message.contains("vector 0 is not the vector with id 0"), "{message}");
}

/// The run is killed as soon as a batch is done, and goes on.
#[test]
fn a_killed_run_goes_on() {
    let files = Folder::new();
    let base = part(&files, 10_000, 16);
    let (whole, stopped) = (files.text("whole.ibin"), files.text("stopped.ibin"));
    let make = |out: &str, batch: &str, k: &str| -> Vec<String> {
        let args = ["knn-graph", "--device", "cpu", "--base", &base, "--batch", batch, "--k", k, "--out", out];
        args.map(str::to_owned).into()
    };
    json(&make(&whole, "10000", "5"));
    let mut child = Command::new(env!("CARGO_BIN_EXE_warpann"))
        .args(make(&stopped, "1", "5"))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let journal = files.path("stopped.ibin.journal");
    let started = Instant::now();
    let lines = || std::fs::read_to_string(&journal).map_or(0, |text| text.lines().count());
    while lines() < 3 && started.elapsed() < Duration::from_secs(60) {
        std::thread::sleep(Duration::from_millis(1));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(journal.is_file() && !files.path("stopped.ibin").exists(), "killed too late");

    let error = failure(1, &make(&stopped, "2000", "6"));
    assert!(error.contains("its k is '5', that of this run is '6'"), "{error}");
    let report = json(&make(&stopped, "2000", "5"));
    let resumed = report["resumed"].as_u64().unwrap();
    assert!((2..10_000).contains(&resumed), "{report}");
    let bytes = |path: &str| std::fs::read(path).unwrap();
    assert!(bytes(&stopped) == bytes(&whole));
    assert_eq!(files.names().len(), 3);
}

#[test]
fn what_is_wrong_is_refused_by_name() {
    let files = Folder::new();
    io::write_vectors(files.path("base.fbin"), &[0.0f32, 1.0, 2.0], 1).unwrap();
    io::write_ids(files.path("past.ibin"), &[1, 0, 3], 1).unwrap();
    io::write_ids(files.path("two.ibin"), &[1, 0], 1).unwrap();
    std::fs::write(files.path("mine.ibin.journal"), "shopping list\n").unwrap();
    let (base, past, two) = (files.text("base.fbin"), files.text("past.ibin"), files.text("two.ibin"));
    let make = |out: &str, further: &[&str]| {
        let out = files.text(out);
        failure(1, &[&["knn-graph", "--device", "cpu", "--base", &base, "--out", &out][..], further].concat())
    };
    assert!(make("g.ivecs", &[]).contains("unknown extension; the known ones are ibin, npy"));
    assert!(make("g.ibin", &["--distances", "d.ibin"]).contains("unknown extension; the known ones are fbin, npy"));
    assert!(make("g.ibin", &["--k", "0"]).contains("k = 0"));
    assert!(make("no/g.ibin", &[]).contains("No such file"));
    assert!(make("mine.ibin", &[]).contains("not the journal of a graph"));
    assert_eq!(std::fs::read_to_string(files.path("mine.ibin.journal")).unwrap(), "shopping list\n");
    assert!(make("g.ibin", &["--index", &two]).contains("not an index file"));
    failure(2, &["knn-graph", "--base", &base, "--out", "g.ibin", "--probes", "3"]);
    failure(2, &["knn-graph", "--base", &base]);
    let walk = |graph: &str| failure(1, &["path", "--graph", graph, "--base", &base, "--from", "0", "--to", "1"]);
    assert!(walk(&past).contains("row 2, column 0: id 3 is not a row; there are 3 rows"));
    assert!(walk(&two).contains("3 vectors of the base; 2 are needed"));
    assert!(failure(1, &["components", "--graph", &past]).contains("is not a row"));
}
