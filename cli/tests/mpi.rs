//! Searches by several ranks on this machine, against one process: the same bytes.

mod common;
#[path = "common/schema.rs"]
mod schema;

use std::path::Path;
use std::process::{Command, Output};

use common::{SAMPLE, failure, json};

/// Runs the program at `count` ranks; returns success, standard output and standard error.
fn ranks(count: usize, args: &[&str]) -> (bool, String, String) {
    let mut command = Command::new("mpirun");
    command.args(["-n", &count.to_string()]).arg(env!("CARGO_BIN_EXE_warpann")).args(args);
    // Open MPI 4 and 5: more ranks than cores, as root in a container; and an end, should ranks wait for each other.
    let settings = [
        ("OMPI_MCA_rmaps_base_oversubscribe", "1"),
        ("PRTE_MCA_rmaps_default_mapping_policy", ":oversubscribe"),
        ("OMPI_ALLOW_RUN_AS_ROOT", "1"),
        ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"),
        ("PRTE_ALLOW_RUN_AS_ROOT", "1"),
        ("PRTE_ALLOW_RUN_AS_ROOT_CONFIRM", "1"),
        ("OMPI_MCA_btl_vader_single_copy_mechanism", "none"),
        ("MPIEXEC_TIMEOUT", "120"),
        ("RAYON_NUM_THREADS", "1"),
    ];
    let Output { status, stdout, stderr } = command.envs(settings).output().expect("mpirun starts");
    let text = |bytes| String::from_utf8(bytes).expect("output is UTF-8");
    let (stdout, stderr) = (text(stdout), text(stderr));
    assert!(!stderr.contains("panicked"), "{args:?}: {stderr}");
    (status.success(), stdout, stderr)
}

/// Runs the program in one process and at `count` ranks, with `--mpi`; both must succeed and write the same ids and
/// distances.
fn the_same(count: usize, folder: &Path, alone: &[&str], shared: &[&str]) {
    let path = |name: &str| folder.join(name).to_str().expect("a UTF-8 path").to_owned();
    let one = [path("one.npy"), path("one.fbin")];
    json(&[alone, &["--out", &one[0], "--distances", &one[1]]].concat());
    let all = [path("all.npy"), path("all.fbin")];
    let arguments = [shared, &["--mpi", "--json", "--out", &all[0], "--distances", &all[1]]].concat();
    let (success, stdout, stderr) = ranks(count, &arguments);
    assert!(success, "{stdout}\n{stderr}");
    let report: serde_json::Value = serde_json::from_str(&stdout).expect("one rank prints one object");
    schema::check(&report);
    assert_eq!(report["base"], 10_000);
    assert!(report["device"].as_str().is_some_and(|device| device.starts_with(&format!("{count} ranks"))), "{report}");
    for (one, all) in one.iter().zip(&all) {
        assert!(std::fs::read(one).unwrap() == std::fs::read(all).unwrap(), "{arguments:?}: other results");
        std::fs::remove_file(all).unwrap();
    }
}

#[test]
fn ranks_answer_as_one_process_and_fail_together() {
    let sample = |name: &str| format!("{SAMPLE}/{name}");
    let (base, query, gt) = (sample("sample_base.bvecs"), sample("sample_query.bvecs"), sample("sample_gt.ivecs"));
    let folder = tempfile::tempdir().unwrap();
    let cpu = ["--device", "cpu"];
    for (count, metric) in [(4, "l2"), (3, "cosine")] {
        let exact = [&["search", "--base", &base, "--query", &query, "--metric", metric], &cpu[..]].concat();
        the_same(count, folder.path(), &exact, &exact);
    }

    let index = folder.path().join("sift.ivf").to_str().unwrap().to_owned();
    let build = ["build", "--base", &base, "--out", &index, "--kind", "ivf-pq", "--lists", "40", "--iterations", "2"];
    let build = [&build[..], &["--sub-quantizers", "16", "--bits", "4"], &cpu[..]].concat();
    json(&build);
    let (success, stdout, stderr) = ranks(3, &[&build[..], &["--mpi"]].concat());
    assert!(success && stdout.contains("vectors      10000"), "{stdout}\n{stderr}");
    let (success, stdout, stderr) = ranks(3, &[&build[..], &["--mpi", "--json"]].concat());
    assert!(success, "{stderr}");
    schema::check(&serde_json::from_str(&stdout).expect("one rank prints one object"));
    let search = [&["search", "--index", &index, "--query", &query, "--gt", &gt, "--probes", "6"], &cpu[..]].concat();
    the_same(3, folder.path(), &search, &search);

    // mpirun connects standard input with one rank only, and ranks have no filters.
    let piped = [&search[..], &["--mpi", "--out", "-", "--out-format", "npy"]].concat();
    let (success, stdout, stderr) = ranks(3, &piped);
    let told: Vec<&str> = stderr.lines().filter(|line| line.starts_with("error: ")).collect();
    assert!(!success && stdout.is_empty(), "{stdout}\n{stderr}");
    assert!(told.len() == 1 && told[0].ends_with("every input and output must be a file, not -"), "{stderr}");
    failure(2, &[&search[..], &["--mpi", "--filter", &gt]].concat());

    // One rank cannot read its part: all end, and the reason is told once, as one process tells it.
    let damaged = format!("{index}.1-of-3");
    std::fs::write(&damaged, "not an index").unwrap();
    let reason = failure(1, &["info", "--index", &damaged]).replace("error: ", "error: rank 1 failed: ");
    let shared = [&search[..], &["--mpi"]].concat();
    let (success, stdout, stderr) = ranks(3, &shared);
    let told: Vec<&str> = stderr.lines().filter(|line| line.starts_with("error: ")).collect();
    assert!(!success && stdout.is_empty(), "{stdout}\n{stderr}");
    assert_eq!(told, [reason.trim_end()], "{stderr}");
    let (success, stdout, _) = ranks(3, &[&shared[..], &["--json"]].concat());
    let error: serde_json::Value = serde_json::from_str(&stdout).expect("one rank prints one object");
    schema::check(&error);
    assert_eq!((success, &error["error"]["kind"]), (false, &"rank_failed".into()), "{error}");
    // Saved by three ranks, opened by two.
    let (success, _, stderr) = ranks(2, &shared);
    assert!(!success && stderr.contains("0-of-2"), "{stderr}");
}
