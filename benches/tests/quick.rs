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
fn both_grids_fill_one_record() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cpu/2000-01-01.csv");
    let out = path.to_str().unwrap();
    let common =
        ["--quick", "--device", "cpu", "--date", "2000-01-01", "--revision", "abc", "--repeat", "3", "--out", out];
    // Three shapes of random keys, which the standard library selects from as well, and ten kinds of others.
    for (part, cases) in [("select", 2 * 3 + 10), ("exact", 16 + 7)] {
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

    let (success, text) = grid(&["table", out]);
    assert!(success, "{text}");
    // Two lines above the cases.
    assert_eq!(text.lines().count(), 2 + 20, "{text}");
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
    ] {
        let (success, text) = grid(bad);
        assert!(!success && !text.contains("panicked"), "{bad:?}: {text}");
    }
}
