//! Filters, refinement, range search, csv and standard streams of the commands of the program `warpann`, run as a user
//! runs it. The expected neighbours come from a loop over all vectors.

mod common;

use common::{Folder, SAMPLE, check_neighbours};
use serde_json::Value;
use warpann::io;

const ROWS: usize = 400;
const DIM: usize = 5;
const QUERIES: usize = 30;

/// Component `j` of vector `i`, of the base for `i` below [`ROWS`] and of the queries behind it: small integers, with
/// ties.
fn component(i: usize, j: usize) -> i64 {
    ((i * 31 + j * 17 + i * i * (j + 3)) % 23) as i64
}

fn ranked(query: usize, keep: impl Fn(u64) -> bool) -> Vec<(i64, u64)> {
    common::ranked(component, (ROWS, DIM), query, keep)
}

fn files() -> Folder {
    let files = Folder::new();
    let rows = |from: usize, count: usize| -> Vec<f32> {
        (from..from + count).flat_map(|i| (0..DIM).map(move |j| component(i, j) as f32)).collect()
    };
    io::write_vectors(files.path("base.fbin"), &rows(0, ROWS), DIM).unwrap();
    io::write_vectors(files.path("query.fvecs"), &rows(ROWS, QUERIES), DIM).unwrap();
    files
}

fn build(files: &Folder, further: &str) {
    files.json(&format!("build --device cpu --lists 6 --base @base.fbin --out @x.ivf {further}"));
}

/// A search of all lists.
const SEARCH: &str = "search --device cpu --index @x.ivf --probes 6 --query @query.fvecs";

#[test]
fn a_filtered_search_reads_more_lists_unless_told_not_to() {
    let files = files();
    build(&files, "");
    let ids: Vec<u64> = (0..ROWS as u64).filter(|id| id % 100 == 3).collect();
    io::write_ids(files.path("ids.npy"), &ids, 1).unwrap();
    let line = format!("{} --k 4 --show 30 --filter @ids.npy", SEARCH.replace("--probes 6", "--probes 1"));
    let (widened, fixed) = (files.json(&line), files.json(&format!("{line} --no-widen")));
    let results = |found: &Value, query: usize| found["neighbours"][query]["ids"].as_array().map_or(0, Vec::len);
    for query in 0..QUERIES {
        check_neighbours(&widened, query, &ranked(query, |id| id % 100 == 3));
    }
    assert!(
        (0..QUERIES).any(|query| results(&fixed, query) < 4),
        "one list holds all accepted vectors: the test is too easy"
    );
    let (code, _, stderr) = files.warpann(&format!("{SEARCH} --no-widen"));
    assert!(code == 2 && stderr.contains("--filter"), "{stderr}");
}

#[test]
fn filters_include_or_exclude_ids() {
    let files = files();
    build(&files, "");
    // Unordered, one twice, an empty slot, and one that the index lacks.
    let mut ids: Vec<u64> = (0..ROWS as u64).filter(|id| id % 7 == 2).rev().collect();
    ids.extend([2, warpann::NONE, 1000]);
    for name in ["ids.npy", "ids.ivecs", "ids.ibin"] {
        io::write_ids(files.path(name), &ids, 1).unwrap();
        let line = format!("{SEARCH} --k 5 --show 30");
        let kept = files.json(&format!("{line} --filter @{name}"));
        let left = files.json(&format!("{line} --exclude @{name}"));
        let count = (0..ROWS).filter(|i| i % 7 == 2).count();
        assert_eq!((&kept["filtered"], &left["filtered"]), (&count.into(), &(ROWS - count).into()));
        for query in 0..QUERIES {
            check_neighbours(&kept, query, &ranked(query, |id| id % 7 == 2)[..5]);
            check_neighbours(&left, query, &ranked(query, |id| id % 7 != 2)[..5]);
        }
        assert_eq!((&kept["exact_queries"], &kept["lists"]), (&QUERIES.into(), &(6 * QUERIES).into()));
        let (code, stdout, stderr) = files.warpann(&format!("{line} --filter @{name}"));
        assert_eq!(code, 0, "{stderr}");
        assert!(stdout.contains(&format!("filter       {count} of {ROWS} vectors")), "{stdout}");
        let note = format!("note: 1 of the {} ids in", count + 1);
        assert!(stderr.contains(&note) && stderr.contains("are not in the index"), "{stderr}");
    }
    // Ids and ranges, which overlap, as text.
    std::fs::write(files.path("ids.txt"), "100-150\n7\n\n 120 - 160 \n161-170\n7\n5000-18446744073709551615\n")
        .unwrap();
    let keep = |id: u64| id == 7 || (100..=170).contains(&id);
    let kept = files.json(&format!("{SEARCH} --k 5 --show 30 --filter @ids.txt"));
    let left = files.json(&format!("{SEARCH} --k 5 --show 30 --exclude @ids.txt"));
    // As an editor of another system writes the same text.
    let text = std::fs::read_to_string(files.path("ids.txt")).unwrap().replace('\n', "\r\n");
    std::fs::write(files.path("IDS.TXT"), format!("\u{feff}{text}")).unwrap();
    let marked = files.json(&format!("{SEARCH} --k 5 --show 30 --filter @IDS.TXT"));
    assert_eq!(marked["neighbours"], kept["neighbours"]);
    assert_eq!((&kept["filtered"], &left["filtered"]), (&72.into(), &(ROWS - 72).into()));
    for query in 0..QUERIES {
        check_neighbours(&kept, query, &ranked(query, keep)[..5]);
        check_neighbours(&left, query, &ranked(query, |id| !keep(id))[..5]);
    }
    for text in ["7\nx\n", "7\n9-8\n", "7\n1-2-3\n", "7\n-3\n", "7\n18446744073709551616\n"] {
        std::fs::write(files.path("bad.txt"), text).unwrap();
        let message = files.failure(1, &format!("{SEARCH} --filter @bad.txt"));
        assert!(message.contains("bad.txt: line 2 is neither an id nor a range"), "{message}");
    }
    // No id at all: every slot is empty.
    io::write_ids(files.path("none.npy"), &[], 1).unwrap();
    let found = files.json(&format!("{SEARCH} --filter @none.npy --show 1"));
    assert_eq!((&found["filtered"], &found["neighbours"][0]["ids"]), (&0.into(), &serde_json::json!([])));
}

#[test]
fn range_searches_find_all_within_the_radius() {
    let files = files();
    build(&files, "");
    io::write_ids(files.path("odd.npy"), &(0..ROWS as u64).filter(|id| id % 2 == 1).collect::<Vec<_>>(), 1).unwrap();
    for (radius, further, keep) in
        [(60, "", 1), (60, "--filter @odd.npy", 2), (0, "", 1), (-1, "", 1), (100_000, "", 1)]
    {
        let line = format!("{SEARCH} --radius {radius} {further} --show 30 --out @r.csv");
        let found = files.json(&line);
        let mut table = "query,rank,id,distance\n".to_owned();
        let mut count = 0;
        for query in 0..QUERIES {
            let all = ranked(query, |id| keep == 1 || id % 2 == 1);
            let near: Vec<(i64, u64)> = all.into_iter().filter(|&(distance, _)| distance <= radius).collect();
            check_neighbours(&found, query, &near);
            count += near.len();
            for (place, (distance, id)) in near.iter().enumerate() {
                table += &format!("{query},{},{id},{distance}.0\n", place + 1);
            }
        }
        assert_eq!((&found["results"], &found["radius"]), (&count.into(), &(radius as f64).into()));
        assert!(found["k"].is_null(), "{found}");
        assert_eq!(std::fs::read_to_string(files.path("r.csv")).unwrap(), table);
    }
    // Similarities: at least the radius.
    build(&files, "--metric ip");
    let found = files.json(&format!("{SEARCH} --radius 900 --show 30"));
    for query in 0..QUERIES {
        let product = |i| (0..DIM).map(|j| component(i, j) * component(ROWS + query, j)).sum::<i64>();
        let mut near: Vec<(i64, u64)> =
            (0..ROWS).map(|i| (product(i), i as u64)).filter(|&(product, _)| product >= 900).collect();
        near.sort_unstable_by_key(|&(product, id)| (-product, id));
        check_neighbours(&found, query, &near);
    }
}

#[test]
fn neighbours_beyond_a_distance_are_left_out() {
    let files = files();
    build(&files, "");
    let near = |query: usize, most: i64| -> Vec<(i64, u64)> {
        ranked(query, |_| true)[..4].iter().copied().filter(|&(distance, _)| distance <= most).collect()
    };
    for (within, further) in [(40, ""), (0, ""), (-1, ""), (40, "--refine @base.fbin")] {
        let found = files.json(&format!("{SEARCH} --k 4 --show 30 --within {within} {further}"));
        assert_eq!((&found["within"], &found["k"]), (&f64::from(within).into(), &4.into()));
        for query in 0..QUERIES {
            check_neighbours(&found, query, &near(query, within.into()));
        }
    }
}

/// With all vectors as candidates, refined results are exact, whatever the codes.
#[test]
fn refinement_orders_by_the_original_vectors() {
    let files = files();
    let names: Vec<u64> = (0..ROWS as u64).map(|row| 7_000_000_000 + 3 * row).collect();
    io::write_ids(files.path("names.npy"), &names, 1).unwrap();
    let codes = "--kind ivf-pq --sub-quantizers 1 --bits 4";
    build(&files, codes);
    let rough = files.json(&format!("{SEARCH} --k 4 --show 30"));
    let exact = files.json(&format!("{SEARCH} --k 4 --show 30 --refine @base.fbin --refine-factor 100"));
    assert_eq!(exact["candidates"], 400);
    assert!(rough["candidates"].is_null() && rough["neighbours"] != exact["neighbours"]);
    for query in 0..QUERIES {
        check_neighbours(&exact, query, &ranked(query, |_| true)[..4]);
    }
    for (factor, candidates) in [("", 16), ("--refine-factor 1.2", 5), ("--refine-factor 1", 4)] {
        let report = files.json(&format!("{SEARCH} --k 4 --refine @base.fbin {factor}"));
        assert_eq!(report["candidates"], candidates);
    }
    io::write_ids(files.path("few.npy"), &[5, 6, 7], 1).unwrap();
    let few = files.json(&format!("{SEARCH} --k 4 --show 30 --refine @base.fbin --filter @few.npy"));
    for query in 0..QUERIES {
        check_neighbours(&few, query, &ranked(query, |id| (5..8).contains(&id)));
    }
    // Ids of the caller's choice.
    build(&files, &format!("{codes} --ids @names.npy"));
    let line = format!("{SEARCH} --k 4 --show 30 --refine @base.fbin --refine-factor 100");
    let named = files.json(&format!("{line} --refine-ids @names.npy"));
    for query in 0..QUERIES {
        let expected: Vec<(i64, u64)> =
            ranked(query, |_| true)[..4].iter().map(|&(distance, id)| (distance, names[id as usize])).collect();
        check_neighbours(&named, query, &expected);
    }
    io::write_ids(files.path("short.npy"), &names[1..], 1).unwrap();
    io::write_ids(files.path("wrong.npy"), &(0..ROWS as u64).collect::<Vec<_>>(), 1).unwrap();
    io::write_vectors(files.path("flat.npy"), &[1.0f32, 2.0], 2).unwrap();
    let message = files.failure(1, &line);
    assert!(message.contains("has 400 vectors, and the index has a vector with id 7000001197"), "{message}");
    for (further, expected) in [
        ("--refine-ids @short.npy", "399 ids; 400 are needed"),
        ("--refine-ids @wrong.npy", "which the index holds"),
        ("--refine-ids @absent.npy", "No such file"),
    ] {
        let message = files.failure(1, &format!("{line} {further}"));
        assert!(message.contains(expected), "{message}");
    }
    let message = files.failure(1, &format!("{SEARCH} --refine @flat.npy"));
    assert!(message.contains("wrong dimension: the index has 5, the vectors have 2"), "{message}");
    let message = files.failure(1, &format!("{SEARCH} --refine @base.fbin --refine-factor 18446744073709551615"));
    assert!(message.contains("do not fit in memory"), "{message}");
}

/// Codes of one bit, whose best candidates are not the best vectors.
#[test]
fn proved_results_are_exact() {
    let files = files();
    build(&files, "--kind ivf-bits --bits 1");
    let rough = files.json(&format!("{SEARCH} --k 4 --show 30 --refine @base.fbin --refine-factor 1"));
    let line = format!("{SEARCH} --k 4 --show 30 --refine @base.fbin --refine-factor 1 --prove");
    let proved = files.json(&line);
    assert!(rough["proof"].is_null() && rough["neighbours"] != proved["neighbours"]);
    assert_eq!(proved["proof"], "certain");
    let probable = files.json(&format!("{line} probable"));
    assert_eq!(probable["proof"], "probable");
    assert_eq!(probable["neighbours"], proved["neighbours"], "few components have the certain bound");
    for query in 0..QUERIES {
        check_neighbours(&proved, query, &ranked(query, |_| true)[..4]);
    }
    build(&files, "--kind ivf-pq --sub-quantizers 1 --bits 4");
    let message = files.failure(1, &line);
    assert!(message.contains("encoding of a search with a proof: pq; flat or bits is needed"), "{message}");
}

#[test]
fn csv_has_a_line_for_each_neighbour() {
    let files = files();
    let line = "search --device cpu --base @base.fbin --query @query.fvecs --k 3 --out @r.csv";
    files.json(line);
    let mut table = "query,rank,id,distance\n".to_owned();
    for query in 0..QUERIES {
        for (place, (distance, id)) in ranked(query, |_| true)[..3].iter().enumerate() {
            table += &format!("{query},{},{id},{distance}.0\n", place + 1);
        }
    }
    assert_eq!(std::fs::read_to_string(files.path("r.csv")).unwrap(), table);
    // Empty slots have no line.
    io::write_vectors(files.path("two.fbin"), &[0.5f32; 2 * DIM], DIM).unwrap();
    files.json("search --device cpu --base @two.fbin --query @two.fbin --k 9 --out @r.csv");
    let expected = "query,rank,id,distance\n0,1,0,0.0\n0,2,1,0.0\n1,1,0,0.0\n1,2,1,0.0\n";
    assert_eq!(std::fs::read_to_string(files.path("r.csv")).unwrap(), expected);
    // Every f32 is written so that reading it gives the same f32.
    io::write_vectors(files.path("one.fbin"), &[0.1f32, 3e-30, 2.5e19], 1).unwrap();
    io::write_vectors(files.path("zero.fbin"), &[0.0f32], 1).unwrap();
    files.json("search --device cpu --base @one.fbin --query @zero.fbin --metric ip --k 3 --out @r.csv");
    files.json(
        "search --device cpu --base @one.fbin --query @one.fbin --metric ip --k 3 --out @r.csv --distances @d.npy",
    );
    let text = std::fs::read_to_string(files.path("r.csv")).unwrap();
    let read: Vec<f32> = text.lines().skip(1).map(|line| line.rsplit(',').next().unwrap().parse().unwrap()).collect();
    assert_eq!(io::read_vectors(files.path("d.npy")).unwrap().as_slice::<f32>(), Some(&read[..]));
}

/// Standard output has the bytes that a file would have, and not the report.
#[test]
fn commands_read_standard_input_and_write_standard_output() {
    let files = files();
    let bytes = |name: &str| std::fs::read(files.path(name)).unwrap();
    let (base, query) = (bytes("base.fbin"), bytes("query.fvecs"));
    let exact = "search --device cpu --k 3";
    for (out, format) in [("i.ibin", "ibin"), ("i.ivecs", "ivecs"), ("i.npy", "npy"), ("i.csv", "csv")] {
        files.json(&format!("{exact} --base @base.fbin --query @query.fvecs --out @{out}"));
        let line = format!("{exact} --base @base.fbin --query - --format fvecs --out - --out-format {format}");
        let (code, stdout, stderr) = files.piped(&line, &query);
        assert_eq!(code, 0, "{stderr}");
        assert!(stdout == bytes(out), "{format}");
        assert!(stderr.starts_with("device") && stderr.contains("queries/s"), "{stderr}");
        let line = format!("{exact} --base - --format fbin --query @query.fvecs --out - --out-format {format} --json");
        let (code, stdout, stderr) = files.piped(&line, &base);
        assert_eq!((code, stdout == bytes(out)), (0, true), "{stderr}");
        assert_eq!(serde_json::from_str::<Value>(&stderr).unwrap()["k"], 3);
    }
    files.json(&format!("{exact} --base @base.fbin --query @query.fvecs --distances @d.npy"));
    let line = format!("{exact} --base @base.fbin --query @query.fvecs --distances - --out-format npy --out @j.npy");
    let (code, stdout, _) = files.piped(&line, &[]);
    assert_eq!((code, stdout == bytes("d.npy"), bytes("j.npy") == bytes("i.npy")), (0, true, true));
    // Ground truth.
    let line = format!("{exact} --base @base.fbin --query @query.fvecs --gt - --format ivecs --json");
    let (code, stdout, stderr) = files.piped(&line, &bytes("i.ivecs"));
    assert_eq!(code, 0, "{stderr}");
    assert_eq!(serde_json::from_slice::<Value>(&stdout).unwrap()["recall"]["by_id"], 1.0);
    // build, of which only the first rows are read.
    files.json("build --device cpu --lists 3 --base @base.fbin --rows 200 --out @a.ivf");
    let line = "build --device cpu --lists 3 --base - --format fbin --rows 200 --out @b.ivf";
    assert_eq!(files.piped(line, &base[..8 + 200 * DIM * 4 + 3]).0, 0);
    assert!(bytes("a.ivf") == bytes("b.ivf"));
    io::write_ids(files.path("ids.npy"), &(5..405).collect::<Vec<u64>>(), 1).unwrap();
    files.json("build --device cpu --lists 3 --base @base.fbin --ids @ids.npy --out @a.ivf");
    let line = "build --device cpu --lists 3 --base @base.fbin --ids - --format npy --out @b.ivf";
    assert_eq!(files.piped(line, &bytes("ids.npy")).0, 0);
    assert!(bytes("a.ivf") == bytes("b.ivf"));
    // kmeans.
    files.json("kmeans --device cpu --centroids 4 --base @base.fbin --out @c.fvecs");
    let line = "kmeans --device cpu --centroids 4 --base - --format fbin --out - --out-format fvecs";
    let (code, stdout, stderr) = files.piped(line, &base);
    assert_eq!((code, stdout == bytes("c.fvecs")), (0, true), "{stderr}");
    assert!(stderr.contains("iteration"), "{stderr}");
    // shifted.
    files.json("shifted --device cpu --k 2 --base @base.fbin --query @query.fvecs --out @s.ibin");
    let line = "shifted --device cpu --k 2 --base @base.fbin --query - --format fvecs --out - --out-format ibin";
    let (code, stdout, stderr) = files.piped(line, &query);
    assert_eq!((code, stdout == bytes("s.ibin")), (0, true), "{stderr}");
    // Graphs.
    let line = "knn-graph --device cpu --k 3 --base - --format fbin --out @g.ibin";
    assert_eq!(files.piped(line, &base).0, 0);
    let expected = files.json("components --graph @g.ibin");
    let (code, stdout, _) = files.piped("components --graph - --format ibin --json", &bytes("g.ibin"));
    assert_eq!((code, serde_json::from_slice::<Value>(&stdout).unwrap()), (0, expected));
    let line = "path --graph - --format ibin --base @base.fbin --from 3 --to 3";
    assert_eq!(files.piped(line, &bytes("g.ibin")).1, b"3\nno edge\n");
}

#[test]
fn options_that_do_not_fit_are_refused_by_name() {
    let files = files();
    build(&files, "");
    io::write_ids(files.path("ids.npy"), &[1, 2], 1).unwrap();
    std::fs::write(files.path("cut.npy"), &std::fs::read(files.path("ids.npy")).unwrap()[..130]).unwrap();
    let exact = "search --device cpu --base @base.fbin --query @query.fvecs";
    for (option, line) in [
        ("--filter", "--filter @ids.npy"),
        ("--exclude", "--exclude @ids.npy"),
        ("--refine", "--refine @base.fbin"),
        ("--within", "--within 3"),
        ("--radius", "--radius 3"),
    ] {
        let message = files.failure(1, &format!("{exact} {line}"));
        assert!(message.contains(&format!("{option} needs --index: indexes support it")), "{message}");
    }
    for (line, expected) in [
        (format!("{SEARCH} --filter @cut.npy"), "cut.npy: truncated"),
        (format!("{SEARCH} --filter @absent.npy"), "absent.npy: No such file"),
        (format!("{SEARCH} --filter @base.fbin"), "unknown extension"),
        (format!("{SEARCH} --filter @ids.npy --out @ids.npy"), "the same file"),
        (format!("{SEARCH} --refine @absent.fbin"), "absent.fbin: No such file"),
        (format!("{SEARCH} --radius 3 --out @x.ibin"), "the results of a range search are written as csv"),
        (format!("{SEARCH} --out @no/x.csv"), "no/x.csv: No such file"),
        (format!("{exact} --out -"), "standard output has no extension that names its format"),
        (format!("{exact} --out - --out-format fbin"), "the formats of this output are ibin, ivecs, npy, csv"),
        (format!("{exact} --distances - --out-format csv"), "the formats of this output are fbin, fvecs, npy"),
        (format!("{exact} --out - --distances - --out-format npy"), "standard output can be only one of the outputs"),
        ("search --base - --query - --format fbin".into(), "standard input can be only one of the inputs"),
        ("search --base - --query @query.fvecs".into(), "standard input has no extension"),
        ("kmeans --centroids 2 --base @base.fbin --out -".into(), "standard output has no extension"),
        ("kmeans --centroids 2 --base @base.fbin --out - --out-format ibin".into(), "this output are fbin, fvecs, npy"),
        ("knn-graph --base @base.fbin --out -".into(), "a graph grows in files"),
        ("components --graph -".into(), "standard input has no extension"),
        ("bench exact --base - --query - --format fbin".into(), "standard input can be only one of the inputs"),
    ] {
        let message = files.failure(1, &line);
        assert!(message.contains(expected), "{line}: {message}: expected {expected}");
    }
    // Standard input is checked as a file is.
    for (input, expected) in [
        (&b""[..], "-: truncated: 8 bytes needed, 0 found"),
        (&[1, 0, 0, 0, 5, 0, 0, 0, 1], "-: truncated: 28 bytes needed, 9 found"),
        (&[0; 9], "-: oversized: 8 bytes expected, 9 found"),
    ] {
        let (code, stdout, stderr) =
            files.piped("search --device cpu --base @base.fbin --query - --format fbin", input);
        assert_eq!((code, stdout.len()), (1, 0), "{stderr}");
        assert!(stderr.contains(expected), "{stderr}");
    }
    for line in [
        format!("{SEARCH} --filter @ids.npy --exclude @ids.npy"),
        format!("{SEARCH} --radius 3 --k 5"),
        format!("{SEARCH} --radius 3 --gt @ids.npy"),
        format!("{SEARCH} --radius 3 --refine @base.fbin"),
        format!("{SEARCH} --radius 3 --distances @d.npy"),
        format!("{SEARCH} --radius 3 --within 4"),
        format!("{SEARCH} --within NaN"),
        format!("{SEARCH} --radius NaN"),
        format!("{SEARCH} --radius far"),
        format!("{SEARCH} --refine-factor 3"),
        format!("{SEARCH} --prove"),
        format!("{SEARCH} --refine-ids @ids.npy"),
        format!("{SEARCH} --refine @base.fbin --refine-factor 0"),
        format!("{SEARCH} --format hdf5"),
        format!("{SEARCH} --out-format text"),
        "search --index - --query @query.fvecs".into(),
        "build --base @base.fbin --out -".into(),
        "info --index -".into(),
        "knn-graph --base @base.fbin --index - --out @g.ibin".into(),
        "bench ivf --base @base.fbin --query @query.fvecs --index -".into(),
        "bench graph --base @base.fbin --query @query.fvecs --index -".into(),
        "bench graph --base @base.fbin --query @query.fvecs --lists 5".into(),
        "bench graph --index @x.graph --base @base.fbin --query @query.fvecs --degree 8".into(),
        "bench graph --index @x.graph --query @query.fvecs".into(),
        // The name that ground truth had in this command before.
        "bench ivf --index @x.ivf --query @query.fvecs --truth @ids.npy".into(),
    ] {
        files.failure(2, &line);
    }
}

/// The reader of the output may close it.
#[test]
fn a_closed_standard_output_is_no_failure() {
    let file = |name: &str| format!("{SAMPLE}/{name}");
    let mut child = std::process::Command::new(env!("CARGO_BIN_EXE_warpann"))
        .args(["convert", "--in", &file("sample_base.bvecs"), "--out", "-", "--out-format", "fbin"])
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), String::from_utf8_lossy(&output.stderr)), (Some(0), "".into()));
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_standard_output_is_a_failure() {
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_warpann"))
        .args(["convert", "--in", &format!("{SAMPLE}/sample_base.bvecs"), "--out", "-", "--out-format", "fbin"])
        .stdout(full)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(message.starts_with("error: standard output: "), "{message}");
}
