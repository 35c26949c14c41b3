//! The program `warpann`, run as a user runs it.

mod common;

use std::process::{Command, Stdio};

use common::{Folder, SAMPLE, failure, json, warpann};
use serde_json::Value;
use warpann::io;

/// Nearest points of the queries at 2.25 and 9: ids, and squared distances.
const IDS: [u64; 6] = [2, 3, 1, 9, 8, 7];
const DISTANCES: [f32; 6] = [0.0625, 0.5625, 1.5625, 0.0, 1.0, 4.0];

/// Ten points on a line and two queries near 2 and 9, in a separate folder.
fn files() -> Folder {
    let files = Folder::new();
    let line: Vec<f32> = (0..10).map(|i| i as f32).collect();
    io::write_vectors(files.path("base.fvecs"), &line, 1).unwrap();
    io::write_vectors(files.path("base.fbin"), &line, 1).unwrap();
    io::write_vectors(files.path("base.u8bin"), &(0..10).collect::<Vec<u8>>(), 1).unwrap();
    io::write_vectors(files.path("query.npy"), &[2.25f32, 9.0], 1).unwrap();
    files
}

/// `search` on the CPU with k = 3 and further arguments.
fn search(files: &Folder, base: &str, further: &[&str]) -> Vec<String> {
    let mut args: Vec<String> = ["search", "--device", "cpu", "--k", "3", "--base"].map(str::to_owned).into();
    args.extend([files.text(base), "--query".to_owned(), files.text("query.npy")]);
    args.extend(further.iter().map(|&arg| arg.to_owned()));
    args
}

#[test]
fn search_writes_every_output_format() {
    let files = files();
    for (ids, distances) in [("i.ibin", "d.fbin"), ("i.ivecs", "d.fvecs"), ("i.npy", "d.npy")] {
        for base in ["base.fvecs", "base.fbin", "base.u8bin"] {
            let (ids, distances) = (files.text(ids), files.text(distances));
            let args = search(&files, base, &["--out", &ids, "--distances", &distances]);
            let (code, stdout, stderr) = warpann(&args);
            assert_eq!(code, 0, "{stderr}");
            assert!(stdout.contains("queries/s"), "{stdout}");
            // Only bytes and floats differ in type.
            assert_eq!(stderr.contains("note:"), base == "base.u8bin", "{stderr}");
            let read = io::read_ids(&ids).unwrap();
            assert_eq!((read.rows, read.k, &read.ids[..]), (2, 3, &IDS[..]));
            assert_eq!(io::read_vectors(&distances).unwrap().as_slice::<f32>(), Some(&DISTANCES[..]));
        }
    }
}

#[test]
fn search_reports_recall_for_every_ground_truth_format() {
    let files = files();
    // The truth of the second query lies in another order; the third place of the first is wrong, and no tie.
    let truth = [2, 3, 8, 7, 8, 9];
    let mut names = vec!["gt.ibin", "gt.ivecs", "gt.npy"];
    for name in &names {
        io::write_ids(files.path(name), &truth, 3).unwrap();
    }
    let mut bytes = std::fs::read(files.path("gt.ibin")).unwrap();
    bytes.extend([0.0f32; 6].iter().flat_map(|x| x.to_le_bytes()));
    std::fs::write(files.path("gt.bin"), bytes).unwrap();
    names.push("gt.bin");
    for name in names {
        let gt = files.text(name);
        let args = search(&files, "base.fbin", &["--gt", &gt]);
        let recall = &json(&args)["recall"];
        assert_eq!(recall["at"], 3);
        assert!((recall["by_id"].as_f64().unwrap() - 5.0 / 6.0).abs() < 1e-12, "{recall}");
        // The first query's third true neighbour is far away: everything found is nearer.
        assert_eq!(recall["by_distance"], 1.0);
    }
}

#[test]
fn search_finds_everything_in_the_sift_sample() {
    let file = |name: &str| format!("{SAMPLE}/{name}");
    let (base, query, gt) = (file("sample_base.bvecs"), file("sample_query.bvecs"), file("sample_gt.ivecs"));
    let args = ["search", "--device", "cpu", "--base", &base, "--query", &query, "--gt", &gt];
    for k in ["1", "10", "100"] {
        let report = json(&[&args[..], &["--k", k]].concat());
        assert_eq!(report["recall"]["by_id"], 1.0, "{report}");
        assert_eq!(report["recall"]["by_distance"], 1.0, "{report}");
        assert_eq!((&report["base"], &report["queries"], &report["dim"]), (&10_000.into(), &200.into(), &128.into()));
        assert_eq!(report["element"], "u8");
    }
    let (code, stdout, _) = warpann(&[&args[..], &["--k", "10"]].concat());
    assert_eq!(code, 0);
    assert!(stdout.contains("recall@10    1.000000 by id, 1.000000 by distance"), "{stdout}");
}

#[test]
fn search_shows_neighbours_and_leaves_out_empty_places() {
    let files = files();
    let report = json(&search(&files, "base.fbin", &["--show", "1"]));
    let shown = report["neighbours"].as_array().unwrap();
    assert_eq!(shown.len(), 1);
    assert_eq!(shown[0]["ids"], serde_json::json!([2, 3, 1]));
    assert_eq!(shown[0]["distances"], serde_json::json!([0.0625, 0.5625, 1.5625]));
    let out = files.text("i.npy");
    let distances = files.text("d.npy");
    let base = files.text("base.fbin");
    let query = files.text("query.npy");
    let report = json(&[
        "search",
        "--k",
        "12",
        "--device",
        "cpu",
        "--base",
        &base,
        "--query",
        &query,
        "--out",
        &out,
        "--distances",
        &distances,
        "--show",
        "9",
    ]);
    let shown = report["neighbours"].as_array().unwrap();
    assert_eq!(shown.len(), 2);
    assert_eq!(shown[1]["ids"].as_array().unwrap().len(), 10);
    assert_eq!(io::read_ids(&out).unwrap().ids[10..12], [warpann::NONE; 2]);
    assert_eq!(io::read_vectors(&distances).unwrap().as_slice::<f32>().unwrap()[11], f32::INFINITY);
    let (_, stdout, _) = warpann(&search(&files, "base.fbin", &["--show", "1"]));
    assert!(stdout.contains("query 0\n     1            2           0.0625\n"), "{stdout}");
}

#[test]
fn search_knows_the_metrics() {
    let files = files();
    let report = json(&search(&files, "base.fbin", &["--metric", "ip", "--show", "1"]));
    assert_eq!(report["neighbours"][0]["ids"], serde_json::json!([9, 8, 7]));
    let report = json(&search(&files, "base.fbin", &["--metric", "cosine", "--show", "1"]));
    assert_eq!(report["neighbours"][0]["ids"], serde_json::json!([1, 2, 3]));
    assert_eq!(report["neighbours"][0]["distances"], serde_json::json!([1.0, 1.0, 1.0]));
}

#[test]
fn search_takes_empty_files_and_a_memory_budget() {
    let files = files();
    std::fs::write(files.path("none.fvecs"), []).unwrap();
    let (base, none) = (files.text("base.fbin"), files.text("none.fvecs"));
    let out = files.text("none.ibin");
    let report = json(&["search", "--device", "cpu", "--base", &base, "--query", &none, "--out", &out]);
    assert_eq!(report["queries"], 0);
    assert_eq!(io::read_ids(&out).unwrap().rows, 0);
    let report = json(&["search", "--device", "cpu", "--base", &none, "--query", &base, "--show", "1"]);
    assert_eq!(report["neighbours"][0]["ids"], serde_json::json!([]));
    assert!(failure(1, &["search", "--device", "cpu", "--base", &none, "--query", &none]).contains("dimension = 0"));
    let report = json(&search(&files, "base.fbin", &["--memory-budget", "1M", "--show", "1"]));
    assert_eq!(report["neighbours"][0]["ids"], serde_json::json!([2, 3, 1]));
}

#[test]
fn search_refuses_what_is_wrong_by_name() {
    let files = files();
    io::write_vectors(files.path("flat.fvecs"), &[1.0f32, 2.0], 2).unwrap();
    io::write_vectors(files.path("nan.fbin"), &[1.0f32, f32::NAN], 1).unwrap();
    io::write_ids(files.path("short.ivecs"), &[1, 2], 1).unwrap();
    io::write_ids(files.path("many.ivecs"), &[1; 9], 3).unwrap();
    io::write_ids(files.path("past.ivecs"), &[1, 2, 10, 1, 2, 3], 3).unwrap();
    std::fs::write(files.path("cut.fbin"), &std::fs::read(files.path("base.fbin")).unwrap()[..20]).unwrap();
    std::fs::write(files.path("long.fbin"), [std::fs::read(files.path("base.fbin")).unwrap(), vec![0]].concat())
        .unwrap();
    std::fs::write(files.path("base.txt"), "1 2 3").unwrap();
    let text = |name: &str| files.text(name);
    let fails = |base: &str, further: &[&str]| failure(1, &search(&files, base, further));
    for (message, expected) in [
        (fails("flat.fvecs", &[]), "wrong dimension: the index has 2, the vectors have 1"),
        (fails("nan.fbin", &[]), "component NaN at row 1, column 0 of the base is not finite"),
        (fails("base.txt", &[]), "unknown extension"),
        (fails("cut.fbin", &[]), "truncated: 48 bytes needed, 20 found"),
        (fails("long.fbin", &[]), "oversized: 48 bytes expected, 49 found"),
        (fails("absent.fbin", &[]), "No such file"),
        (fails("base.fbin", &["--out", &text("x.fbin")]), "unknown extension; the known ones are ibin, ivecs, npy"),
        (
            fails("base.fbin", &["--distances", &text("x.ibin")]),
            "unknown extension; the known ones are fbin, fvecs, npy",
        ),
        (fails("base.fbin", &["--out", &text("no/x.npy")]), "No such file"),
        (fails("base.fbin", &["--gt", &text("absent.ivecs")]), "No such file"),
        (fails("base.fbin", &["--gt", &text("short.ivecs")]), "1 neighbours per query; k is 3"),
        (fails("base.fbin", &["--gt", &text("many.ivecs")]), "ground truth of 3 queries; the query file has 2"),
        (fails("base.fbin", &["--gt", &text("past.ivecs")]), "contains vector 10; the base file has 10 vectors"),
    ] {
        assert!(message.contains(expected), "{message}: expected {expected}");
    }
    let (base, query) = (text("base.fbin"), text("query.npy"));
    let both = ["search", "--base", &base, "--query", &query];
    assert!(failure(1, &[&both[..], &["--k", "0"]].concat()).contains("k = 0"));
    assert!(failure(1, &[&both[..], &["--k", "18446744073709551615"]].concat()).contains("do not fit in memory"));
    assert!(failure(1, &[&both[..], &["--device", "gpu:9999"]].concat()).contains("device"));
    assert!(!files.path("x.fbin").exists());
}

#[test]
fn kmeans_writes_centroids_and_reports_iterations() {
    let files = files();
    let (base, out) = (files.text("base.u8bin"), files.text("centroids.npy"));
    let args = ["kmeans", "--base", &base, "--centroids", "2", "--iterations", "5", "--seed", "3", "--device", "cpu"];
    let args = [&args[..], &["--out", &out]].concat();
    let report = json(&args);
    assert_eq!((&report["device"], &report["element"]), (&Value::from("cpu"), &Value::from("u8")));
    let iterations = report["iterations"].as_array().unwrap();
    assert_eq!(iterations.len(), 5);
    // 0 to 4 and 5 to 9: 10 each.
    assert_eq!(iterations[4]["objective"], 20.0);
    let mut centroids = io::read_vectors(&out).unwrap().as_slice::<f32>().unwrap().to_vec();
    centroids.sort_by(f32::total_cmp);
    assert_eq!(centroids, [2.0, 7.0]);
    let further = ["--start", "plus-plus", "--spherical", "--balanced", "1.5", "--points-per-centroid", "all"];
    let (code, stdout, stderr) = warpann(&[&args[..], &further].concat());
    assert_eq!(code, 0, "{stderr}");
    assert_eq!(stdout.lines().filter(|line| line.starts_with("iteration ")).count(), 5, "{stdout}");

    let with = |at: usize, value: &str| {
        let mut args = args.clone();
        args[at] = value;
        failure(1, &args)
    };
    assert!(with(4, "11").contains("10 training vectors; at least 11 are needed"));
    assert!(with(4, "0").contains("clusters = 0"));
    assert!(with(12, "centroids.bvecs").contains("fbin, fvecs, npy"));
    assert!(failure(1, &[&args[..], &["--balanced", "0.5"]].concat()).contains("mean = 0.5; a number of at least 1"));
    assert!(failure(2, &[&args[..], &["--points-per-centroid", "0"]].concat()).contains("or all"));
}

#[test]
fn several_devices_find_what_one_does() {
    let files = files();
    let run = |device: &str| {
        let mut args = search(&files, "base.fvecs", &["--show", "2"]);
        args[2] = device.to_owned();
        let mut report = json(&args);
        report["neighbours"].take()
    };
    assert_eq!(run("cpu,cpu"), run("cpu"));
    assert_eq!(run("cpu+cpu,cpu+cpu"), run("cpu"));
    let (base, out) = (files.text("base.u8bin"), files.text("c.fbin"));
    let kmeans = ["kmeans", "--base", &base, "--centroids", "2", "--out", &out, "--device"];
    // Ten points are not divided.
    assert_eq!(json(&[&kmeans[..], &["cpu,cpu"]].concat())["device"], "cpu");
    assert!(failure(2, &[&kmeans[..], &["cpu+cpu,cpu"]].concat()).contains("replica 1 has 1 shards, the first has 2"));
    assert!(failure(2, &[&kmeans[..], &["cpu,tpu"]].concat()).contains("'tpu' is not a device"));
}

#[test]
fn wrong_command_lines_exit_with_2() {
    failure(2, &["search"]);
    failure(2, &["search", "--base", "a", "--query", "b", "--metric", "l3"]);
    failure(2, &["search", "--base", "a", "--query", "b", "--device", "tpu"]);
    failure(2, &["search", "--base", "a", "--query", "b", "--k", "-1"]);
    failure(2, &["search", "--base", "a", "--query", "b", "--memory-budget", "lots"]);
    failure(2, &["verify", "--cases", "some"]);
    assert_eq!(warpann(&["bench"]).0, 2);
    failure(2, &["bench", "exact", "--n", "0"]);
    failure(2, &["polish"]);
    assert_eq!(warpann(&[""; 0]).0, 2);
    for args in [&["--help"][..], &["search", "--help"], &["--version"]] {
        let (code, stdout, _) = warpann(args);
        assert_eq!((code, stdout.contains("warpann")), (0, true));
    }
}

#[test]
fn info_tells_what_is_there() {
    let info = json(&["info"]);
    assert!(info["cpu"]["threads"].as_u64().unwrap() > 0);
    // Without a device there is a reason, and with one there is none.
    assert_eq!(info["devices"].as_array().unwrap().is_empty(), info["no_device"].is_string());
    assert_eq!(info["kernels"]["count"] == 0, !cfg!(feature = "cuda"));
    let (code, stdout, _) = warpann(&["info"]);
    assert_eq!(code, 0);
    assert!(stdout.contains("cpu") && stdout.contains("gpu"), "{stdout}");
}

#[test]
fn verify_compares_and_says_what_it_left_out() {
    let report = json(&["verify", "--cases", "12", "--seed", "5"]);
    assert_eq!(report["passed"], true, "{report}");
    let cases = report["cases"].as_array().unwrap();
    assert_eq!(cases.len(), 12);
    assert!(cases.iter().all(|case| case["agreed"][0] == "cpu"), "{report}");
    assert_eq!(cases[0]["seed"], 5);
    // A backend that is not compared is listed as missing, by name.
    let compared = report["compared"].as_array().unwrap();
    let missing: Vec<&str> = report["missing"].as_array().unwrap().iter().map(|m| m.as_str().unwrap()).collect();
    for name in ["emulator", "gpu"] {
        let absent = missing.iter().any(|missing| missing.starts_with(name));
        assert_eq!(compared.contains(&name.into()), !absent, "{report}");
    }
    // The same seed gives the same case, alone or in a row.
    let again = json(&["verify", "--cases", "1", "--seed", "9"]);
    assert_eq!(again["cases"][0], cases[4]);
    let (code, stdout, _) = warpann(&["verify", "--cases", "2", "--seed", "5"]);
    assert_eq!(code, 0);
    let last = stdout.lines().last().unwrap();
    for name in missing.iter().filter_map(|missing| missing.split(':').next()) {
        assert!(last.contains("WITHOUT") && last.contains(name), "{last}");
    }
}

#[test]
fn verify_repeats_searches() {
    for (device, searches) in [("cpu", 300), ("emulator", 15)] {
        let searches = searches.to_string();
        let args = ["verify", "--repeat", &searches, "--threads", "3", "--seed", "4", "--device", device];
        let report = json(&args);
        assert_eq!(report["passed"], true, "{report}");
        assert_eq!((report["searches"].to_string(), report["threads"].as_u64()), (searches.clone(), Some(3)));
        assert_eq!(report["kinds"].as_array().unwrap().len(), 4);
    }
    let (code, stdout, _) = warpann(&["verify", "--repeat", "10", "--device", "cpu"]);
    assert!(code == 0 && stdout.lines().last().unwrap().contains("10 in"), "{stdout}");
    failure(2, &["verify", "--repeat", "10", "--cases", "3"]);
    failure(2, &["verify", "--threads", "2"]);
    failure(2, &["verify", "--repeat", "10", "--threads", "0"]);
}

#[test]
fn bench_exact_measures() {
    let args = ["bench", "exact", "--device", "cpu", "--n", "500", "--dim", "7", "--queries", "3", "--repeat", "4"];
    let report = json(&args);
    assert_eq!(report["seconds"].as_array().unwrap().len(), 4);
    assert_eq!(report["operations"], 21_000.0);
    assert!(report["queries_per_second"].as_f64().unwrap() > 0.0);
    let (code, stdout, _) = warpann(&args);
    assert_eq!(code, 0);
    assert!(stdout.contains("GFLOP"), "{stdout}");
}

#[test]
fn bench_select_measures() {
    let report =
        json(&["bench", "select", "--device", "cpu", "--rows", "3", "--cols", "50", "--k", "5", "--repeat", "2"]);
    assert_eq!(report["seconds"].as_array().unwrap().len(), 2);
    assert_eq!(report["bytes"], 720.0);
    // Nothing is bounded before the first merge, so both steps insert; the second fills queues of two, and one more
    // merge ends the row.
    let model = &report["warp_select"];
    let number = |name: &str| model[name].as_f64().unwrap().round();
    assert_eq!(model["kernel"], "warp_select_k32", "{model}");
    assert_eq!([number("steps"), number("insertions"), number("merges")], [2.0, 2.0, 2.0], "{model}");
    let args = ["bench", "select", "--device", "cpu", "--rows", "1", "--cols", "50", "--repeat", "1", "--k"];
    let (code, stdout, _) = warpann(&[&args[..], &["5"]].concat());
    assert_eq!((code, stdout.contains("insertions and")), (0, true), "{stdout}");
    for k in ["1", "1025"] {
        assert!(json(&[&args[..], &[k]].concat())["warp_select"].is_null());
    }
    // The CPU takes no notice; the emulator runs the kernels.
    for device in ["cpu", "emulator"] {
        let args = ["bench", "select", "--device", device, "--rows", "2", "--cols", "50", "--k", "5", "--repeat", "1"];
        assert_eq!(json(&args)["algorithm"], "auto");
        for algorithm in ["auto", "warp-select", "threshold-select"] {
            let args = [&args[..], &["--algorithm", algorithm]].concat();
            assert_eq!(json(&args)["algorithm"], algorithm);
            let (code, stdout, _) = warpann(&args);
            assert_eq!((code, stdout.contains(algorithm)), (0, true), "{stdout}");
        }
    }
    failure(2, &["bench", "select", "--algorithm", "sort"]);
    failure(2, &["bench", "select", "--tune", "--algorithm", "auto"]);
}

#[test]
fn a_broken_pipe_is_no_failure() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_warpann"))
        .args(["verify", "--cases", "300", "--seed", "1", "--device", "cpu"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    assert_eq!(output.status.code(), Some(0));
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_a_failure() {
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let output =
        Command::new(env!("CARGO_BIN_EXE_warpann")).arg("info").stdout(full).stderr(Stdio::piped()).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).starts_with("error: standard output: "));
}
