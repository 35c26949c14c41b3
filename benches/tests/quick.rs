//! The quick grid on the CPU, as CI runs it: every case measured, verified and recorded, and the records readable.

use std::path::Path;
use std::process::Command;

fn grid(arguments: &[&str]) -> (bool, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_warpann-grid")).args(arguments).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    (output.status.success(), text(&output.stdout) + &text(&output.stderr))
}

fn rows(path: &Path) -> Vec<csv::StringRecord> {
    csv::Reader::from_path(path).unwrap().records().map(Result::unwrap).collect()
}

fn column(path: &Path, name: &str) -> Vec<String> {
    let at = csv::Reader::from_path(path).unwrap().headers().unwrap().iter().position(|column| column == name).unwrap();
    rows(path).iter().map(|row| row[at].to_owned()).collect()
}

#[test]
fn grids_fill_one_record() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cpu/2000-01-01.csv");
    let out = path.to_str().unwrap();
    let common =
        ["--quick", "--device", "cpu", "--date", "2000-01-01", "--revision", "abc", "--repeat", "3", "--out", out];
    // Three shapes of random keys, which the standard library selects from as well, and ten kinds of others; two sizes
    // of sorts of two types of keys.
    for (part, cases) in [("select", 2 * 3 + 10), ("exact", 16 + 7), ("hamming", 16 + 48), ("sort", 16 + 48 + 2 * 2)] {
        let arguments: Vec<&str> = [part].into_iter().chain(common).collect();
        let (success, text) = grid(&arguments);
        assert!(success, "{text}");
        assert_eq!(rows(&path).len(), cases, "{text}");
    }
    assert!(column(&path, "verified").iter().all(|verified| verified == "yes"));
    assert!(column(&path, "date").iter().all(|date| date == "2000-01-01"));
    for name in ["ms_median", "ms_min", "ms_max", "floor_ms", "ratio"] {
        for value in column(&path, name) {
            assert!(value.parse::<f64>().unwrap() > 0.0, "{name} {value}");
        }
    }
    let peers = column(&path, "implementation").iter().filter(|name| *name == "std partial sort").count();
    assert_eq!(peers, 3);
    let cases = column(&path, "case");
    assert!(cases.contains(&"select 20x1000 descending".to_owned()), "{cases:?}");
    assert!(cases.contains(&"exact 2000x20 f32 nq=16".to_owned()), "{cases:?}");
    assert!(cases.contains(&"hamming 2000x160 bits nq=16".to_owned()), "{cases:?}");
    assert!(cases.contains(&"hamming ivf 2000x160 bits lists=176 nq=16 probes=4".to_owned()), "{cases:?}");
    assert!(cases.contains(&"sort 16384 u128+u32".to_owned()), "{cases:?}");

    let (success, text) = grid(&["table", out]);
    assert!(success, "{text}");
    // Two lines above the cases.
    assert_eq!(text.lines().count(), 2 + 61 + 4, "{text}");
}

#[test]
fn inverted_files_and_k_means_fill_one_record() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("2000-01-01.csv");
    let out = path.to_str().unwrap();
    let common = ["--quick", "--date", "2000-01-01", "--repeat", "1", "--out", out];
    let cpu = ["--device", "cpu"];
    let mut before = 0;
    // One vector out and in; a search, and four after changes; five filters; the first seven of inverted files; three
    // changes of a graph, and six searches; of each kind a change as a version, and the first search after it, and
    // beside readers two times of a change and four of searches.
    let (success, text) = grid(&["changes"].into_iter().chain(common).chain(cpu).collect::<Vec<_>>());
    assert!(success, "{text}");
    assert_eq!(rows(&path).len(), 2 * (2 + 5) + 5 + 3 + 2 * 3 + 3 * (2 + 6), "{text}");
    before += 52;
    // Five encodings: three times of the build, 2 k and three small batches at three numbers of probes; four levels of
    // two each; k-means of two sizes; a build of two times, and two k at five numbers of probes; an exact graph, and a
    // build of two times with graphs at two numbers of probes; ground truth, and for three lengths of codes three
    // times of the build, and R@n for three n and ten of ten at three numbers of probes. Searches of three kinds of
    // indexes by two numbers
    // of threads, cold and warm, three percentiles each; three exact searches and two trainings.
    let parts: [(&[&str], usize); 9] = [
        (&["ivf"], 5 * (3 + (2 + 3) * 3)),
        (&["levels"], 2 * 4),
        (&["kmeans"], 2),
        (&["ten-million"], 2 + 2 * 5),
        (&["graph"], 1),
        (&["graph", "--lists", "16"], 2 + 2),
        (&["billion", "--bits", "4"], 1 + 3 * (3 + 3 * 4)),
        (&["load", "--threads", "1,3"], 3 * 2 * 2 * 3),
        (&["moved"], 3 + 2),
    ];
    for (part, cases) in parts {
        let arguments: Vec<&str> = part.iter().copied().chain(common).chain(cpu).collect();
        let (success, text) = grid(&arguments);
        assert!(success, "{text}");
        assert_eq!(rows(&path).len() - before, cases, "{text}");
        before += cases;
    }
    // Three kinds and one size of batches, on one device, two replicas, two shards; two times of k-means on one device
    // and two.
    let arguments: Vec<&str> = ["scale", "--devices", "cpu,cpu"].into_iter().chain(common).collect();
    let (success, text) = grid(&arguments);
    assert!(success, "{text}");
    assert_eq!(rows(&path).len() - before, 3 * 3 + 2 * 2, "{text}");
    assert!(column(&path, "verified").iter().all(|verified| verified == "yes"));
    let cases = column(&path, "case");
    assert!(cases.iter().any(|case| case.ends_with("nq=300 probes=4 replicas=1 shards=2")), "{cases:?}");
    let recalls = column(&path, "recall");
    let recall = |case: &str, k: &str| -> f64 {
        let ks = column(&path, "k");
        let at = (0..cases.len()).find(|&at| cases[at] == case && ks[at] == k).unwrap_or_else(|| panic!("{cases:?}"));
        recalls[at].parse().unwrap()
    };
    let flat = |probes: usize| recall(&format!("ivf-flat 3000x24 f32 lists=16 nq=300 probes={probes}"), "10");
    assert!(flat(1) < flat(4) && flat(4) <= flat(16));
    assert_eq!(flat(16), 1.0, "all lists probed");
    let graph = |probes: usize| recall(&format!("graph ivf-flat 2000x20 f32 lists=16 probes={probes}"), "10");
    assert!(graph(2) < 1.0 && graph(2) > 0.3 && graph(16) == 1.0);
    assert!(recall("ivf-pq8 3000x24 f32 lists=16 nq=300 probes=16", "100") > 0.5);
    assert!(recall("ivf-pq8 5000x24 f32 lists=32 budget=1MB nq=200 probes=256", "10") > 0.3);
    for bytes in [8, 15] {
        let r = |at: &str, probes: usize| recall(&format!("pq{bytes} 20000x24 lists=64 nq=200 probes={probes}"), at);
        assert!(r("1", 64) > 0.2 && r("1", 64) <= r("10", 64) && r("100", 64) > 0.9, "{bytes} bytes");
        assert!(r("100", 1) < r("100", 64), "{bytes} bytes");
    }
    let objectives = column(&path, "objective");
    let objective = |centroids: usize| -> f64 {
        let case = format!("kmeans 3000x24 f32 centroids={centroids} iterations=20");
        objectives[cases.iter().position(|other| *other == case).unwrap()].parse().unwrap()
    };
    assert!(objective(40) < objective(7) && objective(40) > 0.0);

    let peer = |case: &str, k: &str, ms: f64, recall: &str, objective: &str| {
        let device = &column(&path, "device")[0];
        format!("2000-01-01,peer,1,,\"{device}\",,{case},{k},{ms},,,,,,,{recall},,{objective},\n")
    };
    let columns = std::fs::read_to_string(&path).unwrap().lines().next().unwrap().to_owned();
    let anchors = folder.path().join("anchors.csv");
    let slow = peer("ivf-flat 3000x24 f32 lists=16 nq=300 probes=2", "10", 1e9, "0.9", "");
    let better = peer("kmeans 3000x24 f32 centroids=7 iterations=20", "0", 1e9, "", "1");
    std::fs::write(&anchors, format!("# a remark\n{columns}\n{slow}{better}")).unwrap();
    let (success, text) = grid(&["equal-recall", out, "--anchors", anchors.to_str().unwrap()]);
    assert!(success && text.contains("must: 1 of 2 met") && text.contains("worse objective"), "{text}");
}

#[test]
fn shifted_sort_stands_beside_the_tree() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("2000-01-01.csv");
    let common = ["shifted", "--quick", "--device", "cpu", "--date", "2000-01-01", "--repeat", "1", "--out"];
    let (success, text) = grid(&[&common[..], &[path.to_str().unwrap()]].concat());
    assert!(success, "{text}");
    let trees = column(&path, "implementation").iter().filter(|name| *name == "kiddo").count();
    // Of each of three sets: the build, two k with the tree beside them, and the self-join.
    assert_eq!((rows(&path).len(), trees), if cfg!(feature = "peers") { (3 * 6, 3 * 2) } else { (3 * 4, 0) }, "{text}");
    assert!(column(&path, "verified").iter().all(|verified| verified == "yes"), "{text}");
    assert_eq!(text.matches("epsilon").count(), 3 * 2 + trees, "{text}");
    let recalls = column(&path, "recall");
    assert!(
        recalls.iter().filter(|recall| !recall.is_empty()).all(|recall| recall.parse::<f64>().unwrap() > 0.5),
        "{text}"
    );
}

/// Two u32, then the payload.
fn bin(path: &Path, rows: u32, columns: u32, payload: &[u8]) {
    let header = [rows, columns].map(u32::to_le_bytes).concat();
    std::fs::write(path, [header.as_slice(), payload].concat()).unwrap();
}

#[test]
fn files_are_searched_and_ground_truth_decides() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    // Points on a line: the neighbours of i + 0.25 are i, then i + 1, i - 1, ..
    let rows = |rows: u32, shift: u32| -> Vec<u8> {
        (0..rows).flat_map(|i| [(i * 4 + shift) as f32, 0.0]).flat_map(f32::to_le_bytes).collect()
    };
    bin(&path("base.fbin"), 50, 2, &rows(50, 0));
    bin(&path("query.fbin"), 20, 2, &rows(20, 1));
    let truth = |first: i32| -> Vec<u8> { [first, 1, 1, 2].into_iter().flat_map(i32::to_le_bytes).collect() };
    bin(&path("right.ibin"), 2, 2, &truth(0));
    bin(&path("wrong.ibin"), 2, 2, &truth(40));
    bin(&path("beyond.ibin"), 2, 2, &truth(50));
    let run = |gt: &str, out: &str| {
        let (base, query, gt, out) = (path("base.fbin"), path("query.fbin"), path(gt), path(out));
        let text = |path: &Path| path.to_str().unwrap().to_owned();
        let files = ["--base", &text(&base), "--query", &text(&query), "--gt", &text(&gt), "--out", &text(&out)]
            .map(str::to_owned);
        let fixed = ["exact", "--device", "cpu", "--date", "2000-01-01", "--repeat", "1", "--tflops", "1"];
        let arguments: Vec<&str> = fixed.into_iter().chain(files.iter().map(String::as_str)).collect();
        grid(&arguments)
    };
    let (success, text) = run("right.ibin", "right.csv");
    assert!(success, "{text}");
    assert!(column(&path("right.csv"), "recall").iter().all(|recall| recall == "1.0"));
    assert!(column(&path("right.csv"), "matrix_floor_ms").iter().all(|floor| !floor.is_empty()));

    let (success, text) = run("wrong.ibin", "wrong.csv");
    assert!(!success && text.contains("verified"), "{text}");
    assert!(column(&path("wrong.csv"), "verified").contains(&"no".to_owned()));

    std::fs::rename(path("right.ibin"), path("gt.ibin")).unwrap();
    let (data, out) = (folder.path().to_str().unwrap(), path("ivf.csv"));
    let ivf =
        ["ivf", "--device", "cpu", "--date", "2000-01-01", "--repeat", "1", "--data", data, "--encodings", "flat"];
    let sizes = ["--lists", "5", "--probes", "1,5", "--k", "2", "--batches", "1,16", "--train", "40", "--out"];
    let arguments: Vec<&str> = ivf.into_iter().chain(sizes).chain([out.to_str().unwrap()]).collect();
    let (success, text) = grid(&arguments);
    assert!(success, "{text}");
    let all_lists =
        column(&out, "case").into_iter().zip(column(&out, "recall")).filter(|(case, _)| case.ends_with("probes=5"));
    assert_eq!(all_lists.map(|(_, recall)| recall).collect::<Vec<_>>(), ["1.0"; 3], "{text}");

    let (success, text) = run("beyond.ibin", "beyond.csv");
    assert!(!success && text.contains("names vector 50; the base has 50"), "{text}");
}

#[test]
fn bad_arguments_are_refused() {
    for bad in [
        &["select", "--date", "yesterday"][..],
        &["select"],
        &["exact", "--date", "2000-01-01", "--device", "emulator"],
        &["exact", "--date", "2000-01-01", "--tflops", "0"],
        &["exact", "--date", "2000-01-01", "--base", "a.fbin"],
        &["table", "no-such-record.csv"],
        &["equal-recall", "no-such-record.csv"],
        &["ivf", "--date", "2000-01-01", "--encodings", "pq"],
        &["ivf", "--date", "2000-01-01", "--probes", "0"],
        &["ivf", "--date", "2000-01-01", "--device", "cpu", "--quick", "--data", "no-such-folder"],
        &["kmeans", "--date", "2000-01-01", "--n", "5", "--data", "a-folder"],
        &["scale", "--date", "2000-01-01"],
        &["scale", "--date", "2000-01-01", "--devices", "cpu,emulator"],
        &["scale", "--date", "2000-01-01", "--devices", "cpu", "--kinds", "graph"],
        &["ten-million", "--date", "2000-01-01", "--lists", "0"],
        &["graph", "--date", "2000-01-01", "--k", "0"],
        &["plan", "no-such-record.csv", "--case", "ivf-pq8 10x8 f32 lists=2"],
        &["plan", "../benches/record/nvidia-h200/2026-11-21.csv", "--case", "ivf-pq9 10x8 f32 lists=2"],
        &["kinds", "--date", "2000-01-01", "--ef", "0"],
        &["shifted", "--date", "2000-01-01", "--tree-threads", "0"],
        &["shifted", "--date", "2000-01-01", "--triangles", "0"],
    ] {
        let (success, text) = grid(bad);
        assert!(!success && !text.contains("panicked"), "{bad:?}: {text}");
    }
}

#[test]
fn every_kind_of_index_is_measured() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("2000-01-01.csv");
    let common =
        ["--quick", "--date", "2000-01-01", "--repeat", "1", "--device", "cpu", "--out", path.to_str().unwrap()];
    let settings =
        ["--encodings", "flat,pq8", "--probes", "1,16", "--ef", "100", "--beams", "100", "--tree-queries", "50"];
    let (success, text) = grid(&[&["kinds"], &common[..], &settings].concat());
    assert!(success, "{text}");
    // A build, three k and single queries; inverted files with two numbers of probes; a graph with one beam.
    let peers = if cfg!(feature = "peers") { 2 * 5 } else { 0 };
    assert_eq!(rows(&path).len(), 5 + 2 * (1 + 2 * 4) + 5 + peers, "{text}");
    let (cases, ks, recalls) = (column(&path, "case"), column(&path, "k"), column(&path, "recall"));
    let recall = |case: &str| -> f64 {
        let at = (0..cases.len()).find(|&at| cases[at].starts_with(case) && ks[at] == "10").expect(case);
        recalls[at].parse().unwrap()
    };
    assert_eq!(recall("exact 3000x24 f32 nq=300"), 1.0);
    assert_eq!(recall("ivf-flat 3000x24 f32 lists=16 nq=300 probes=16"), 1.0);
    // So few vectors are compared exactly.
    assert_eq!(recall("graph 3000x24 f32 degree=32 nq=300 beam=100"), 1.0);
    if cfg!(feature = "peers") {
        assert_eq!(recall("kd-tree 3000x24 f32 nq=50"), 1.0);
        assert!(recall("hnsw 3000x24 f32 links=16 ef-construction=200 nq=300 ef=100") > 0.9);
        assert_eq!(column(&path, "implementation").iter().filter(|name| *name == "kiddo").count(), 5);
    }
    let kept = column(&path, "bytes");
    let builds = (0..cases.len()).filter(|&at| cases[at].starts_with("build "));
    assert!(builds.clone().count() >= 3 && builds.clone().all(|at| !kept[at].is_empty()), "{text}");
    assert!(text.contains("recall@1"), "{text}");
}

#[test]
fn the_page_of_costs_is_what_the_record_says() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let page = std::fs::read_to_string(root.join("docs/COST.md")).unwrap();
    let command = page.lines().find_map(|line| line.strip_prefix("warpann-grid ")).unwrap();
    let (command, name) = command.split_once(" --update ").unwrap();
    assert_eq!(name, "docs/COST.md");
    // The case is the one word in quotes.
    let quoted = command.split('"').enumerate();
    let arguments =
        quoted.flat_map(|(at, part)| if at % 2 == 1 { vec![part] } else { part.split_whitespace().collect() });
    let copy = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(copy.path(), &page).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_warpann-grid"))
        .args(arguments)
        .args(["--update", copy.path().to_str().unwrap()])
        .current_dir(root)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(std::fs::read_to_string(copy.path()).unwrap() == page, "run the command of docs/COST.md");
    assert!(page.contains("| 1e9 | 1e10 | 1e11 |"));
}
