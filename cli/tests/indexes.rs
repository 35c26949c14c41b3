//! Index files and their measurements by the program `warpann`, run as a user runs it.

mod common;

use std::path::Path;

use common::{Folder, SAMPLE, failure, json, warpann};
use serde_json::Value;
use warpann::{Device, FlatIndex, Metric, io};

/// 600 vectors of dimension 8 in clusters, 20 queries near them, and other files, in a separate folder.
fn files() -> Folder {
    let files = Folder::new();
    let component = |i: usize, j: usize| ((i % 12) * 10 + j) as f32 + ((i * 7 + j * 13) % 32) as f32 / 16.0;
    let rows = |from: usize, count: usize| -> Vec<f32> {
        (from..from + count).flat_map(|i| (0..8).map(move |j| component(i, j))).collect()
    };
    io::write_vectors(files.path("base.fbin"), &rows(0, 600), 8).unwrap();
    io::write_vectors(files.path("query.fvecs"), &rows(700, 20), 8).unwrap();
    io::write_vectors(files.path("flat.npy"), &[0.5f32; 6], 2).unwrap();
    io::write_vectors(files.path("bytes.u8bin"), &[7u8; 24], 8).unwrap();
    files
}

/// Builds an index of the base on the CPU.
fn build(files: &Folder, out: &str, further: &[&str]) -> Value {
    let (base, out) = (files.text("base.fbin"), files.text(out));
    json(&[&["build", "--device", "cpu", "--base", &base, "--out", &out, "--iterations", "4"], further].concat())
}

const PQ: [&str; 6] = ["--kind", "ivf-pq", "--sub-quantizers", "4", "--bits", "5"];

#[test]
fn an_index_of_real_descriptors_finds_what_exact_search_finds() {
    let files = files();
    let sample = |name: &str| format!("{SAMPLE}/{name}");
    let (base, query, gt) = (sample("sample_base.bvecs"), sample("sample_query.bvecs"), sample("sample_gt.ivecs"));
    let index = files.text("sift.ivf");
    let built =
        json(&["build", "--device", "cpu", "--base", &base, "--lists", "40", "--iterations", "2", "--out", &index]);
    assert_eq!((&built["kind"], &built["element"]), (&"ivf-flat".into(), &"u8".into()));
    assert_eq!((&built["vectors"], &built["lists"], &built["code_bytes"]), (&10_000.into(), &40.into(), &128.into()));
    assert_eq!(built["file_bytes"], std::fs::metadata(&index).unwrap().len());

    let info = json(&["info", "--index", &index]);
    assert_eq!((&info["vectors"], &info["dim"], &info["metric"]), (&10_000.into(), &128.into(), &"l2".into()));
    assert_eq!(info["probes"], built["probes"]);

    let (ids, exact) = (files.text("ids.npy"), files.text("exact.npy"));
    let search = ["search", "--device", "cpu", "--index", &index, "--query", &query, "--gt", &gt, "--k", "10"];
    let all = json(&[&search[..], &["--probes", "40", "--out", &ids]].concat());
    assert_eq!(all["recall"]["by_id"], 1.0, "{all}");
    assert!(all["recall"]["by_distance"].is_null());
    json(&["search", "--device", "cpu", "--base", &base, "--query", &query, "--k", "10", "--out", &exact]);
    assert_eq!(io::read_ids(&ids).unwrap(), io::read_ids(&exact).unwrap());

    let few = json(&[&search[..], &["--probes", "2"]].concat());
    let recall = few["recall"]["by_id"].as_f64().unwrap();
    assert!((0.3..1.0).contains(&recall), "{few}");
    let (code, stdout, _) = warpann(&search);
    assert_eq!(code, 0);
    let shown = format!("ivf-flat, 40 lists, {} probes", built["probes"]);
    assert!(stdout.contains(&shown) && stdout.contains("recall@10"), "{stdout}");
}

#[test]
fn every_kind_and_metric_is_built_and_searched() {
    let files = files();
    let query = files.text("query.fvecs");
    for (kind, further, bytes) in
        [("ivf-flat", &[][..], 32), ("ivf-pq", &PQ, 3), ("ivf-pq", &[PQ.as_slice(), &["--opq"]].concat(), 3)]
    {
        for metric in ["l2", "ip", "cosine"] {
            let built = build(&files, "x.ivf", &[&["--lists", "6", "--metric", metric], further].concat());
            assert_eq!(
                (&built["kind"], &built["metric"], &built["code_bytes"]),
                (&kind.into(), &metric.into(), &bytes.into())
            );
            let index = files.text("x.ivf");
            let found = json(&[
                "search", "--device", "cpu", "--index", &index, "--query", &query, "--probes", "6", "--show", "20",
            ]);
            let neighbours = found["neighbours"].as_array().unwrap();
            assert_eq!((neighbours.len(), &found["probes"]), (20, &6.into()));
            assert!(neighbours.iter().all(|row| row["ids"].as_array().unwrap().len() == 10));
        }
    }
    // The same command makes the same file.
    let bytes = std::fs::read(files.path("x.ivf")).unwrap();
    build(&files, "y.ivf", &[&["--lists", "6", "--metric", "cosine", "--opq"], PQ.as_slice()].concat());
    assert!(std::fs::read(files.path("y.ivf")).unwrap() == bytes);
    // Whatever the batches.
    let batches = ["--batch", "7"];
    build(&files, "y.ivf", &[&["--lists", "6", "--metric", "cosine", "--opq"], PQ.as_slice(), &batches].concat());
    assert!(std::fs::read(files.path("y.ivf")).unwrap() == bytes);
    assert_eq!(build(&files, "y.ivf", &["--lists", "3", "--rows", "100"])["vectors"], 100);
    // Without --lists, four times the square root; without --sub-quantizers, parts of four components.
    let built = build(&files, "x.ivf", &["--kind", "ivf-pq", "--bits", "4"]);
    assert_eq!((&built["lists"], &built["code_bytes"]), (&96.into(), &1.into()));
}

#[test]
fn inverted_files_become_those_of_faiss_and_come_back() {
    let files = files();
    for (kind, further) in [("ivf-flat", &[][..]), ("ivf-sq8", &["--kind", "ivf-sq8"]), ("ivf-pq", &PQ)] {
        build(&files, "x.ivf", &[&["--lists", "6"], further].concat());
        let report = files.json("convert --in @x.ivf --index faiss --out @x.faiss");
        assert_eq!((&report["kind"], &report["from"], &report["to"]), (&"index".into(), &"f32".into(), &"f32".into()));
        let report = files.json("convert --in @x.faiss --index warpann --out @y.ivf");
        assert_eq!(
            (&report["kind"], &report["rows"]),
            (&"index".into(), &files.json("info --index @x.ivf")["vectors"])
        );
        let found = |index: &str| {
            let line = format!("search --device cpu --index @{index} --query @query.fvecs --probes 6 --show 20");
            files.json(&line)["neighbours"].clone()
        };
        // Scalar codes have other roundings in files of FAISS.
        assert!(kind == "ivf-sq8" || found("y.ivf") == found("x.ivf"), "{kind}");
        let message = files.refused(1, "convert --in @x.ivf --index hnswlib --out @new");
        assert!(message.contains("convert --index hnswlib is for graphs, not for an index of kind ivf-"), "{message}");
        let message = files.refused(1, "convert --in @x.faiss --index warpann --metric cosine --out @new");
        assert!(message.contains("metric of the file"), "{message}");
        let message = files.refused(1, "convert --in @x.ivf --index faiss --metric l2 --out @new");
        assert!(message.contains("this one has its metric"), "{message}");
    }
    build(&files, "x.ivf", &[&["--metric", "cosine"], PQ.as_slice()].concat());
    let message = files.refused(1, "convert --in @x.ivf --index faiss --out @new");
    assert!(message.contains("metric of codes for FAISS: cosine; l2 or ip is needed"), "{message}");
    let bytes = files.bytes("x.faiss");
    std::fs::write(files.path("cut.faiss"), &bytes[..bytes.len() - 1]).unwrap();
    assert!(files.refused(1, "convert --in @cut.faiss --index warpann --out @new").contains("truncated"));
    let message = files.refused(1, "convert --in @query.fvecs --index warpann --out @new");
    assert!(message.contains("query.fvecs: header: "), "{message}");
}

#[test]
fn ids_and_training_vectors_come_from_files() {
    let files = files();
    let ids: Vec<u64> = (0..600).map(|id| 5_000_000_000 + 3 * id).collect();
    io::write_ids(files.path("ids.npy"), &ids, 1).unwrap();
    let (given, train) = (files.text("ids.npy"), files.text("query.fvecs"));
    build(&files, "x.ivf", &["--ids", &given, "--train", &train, "--lists", "5", "--batch", "250"]);
    let (index, base) = (files.text("x.ivf"), files.text("base.fbin"));
    let found = json(&["search", "--device", "cpu", "--index", &index, "--query", &base, "--k", "1", "--show", "600"]);
    for (row, &id) in found["neighbours"].as_array().unwrap().iter().zip(&ids) {
        // Some vectors occur several times; the lowest id is named.
        assert!(row["ids"][0].as_u64().unwrap() <= id && row["distances"][0] == 0.0, "{row}");
    }
    // Queries of another type become the index's where they can.
    let bytes = files.text("bytes.u8bin");
    let (code, _, stderr) = warpann(&["search", "--device", "cpu", "--index", &index, "--query", &bytes]);
    assert_eq!((code, stderr.contains("converted to f32, which is exact")), (0, true), "{stderr}");
}

#[test]
fn bench_ivf_measures_writes_and_aims() {
    let files = files();
    let (base, query, out) = (files.text("base.fbin"), files.text("query.fvecs"), files.text("curve.v1"));
    let args = ["bench", "ivf", "--device", "cpu", "--query", &query, "--base", &base, "--repeat", "2"];
    let sweep = ["--k", "1,10", "--probes", "1,3,12", "--batch", "1,7,all", "--out", &out, "--lists", "12"];
    let report = json(&[&args[..], &sweep].concat());
    let rows = report["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 2 * 3 * 3);
    for row in rows {
        let number = |name: &str| row[name].as_f64().unwrap();
        assert!((0.0..=1.0).contains(&number("recall")) && number("queries_per_second") > 0.0, "{row}");
        assert!(number("latency_p50_ms") <= number("latency_p95_ms"), "{row}");
        assert!(number("latency_p95_ms") <= number("latency_p99_ms"), "{row}");
        // Every list: nothing is missed.
        assert!(row["probes"] != 12 || (row["recall"] == 1.0 && row["nearest_in_1"] == 1.0), "{row}");
        assert_eq!(row["recall_10"].is_null(), row["k"] == 1);
        assert!(row["recall_100"].is_null());
        let calls = match row["batch"].as_u64().unwrap() {
            1 => 40,
            // Two whole batches and a rest, twice; rests are no batches.
            7 => 4,
            _ => 2,
        };
        assert_eq!(row["calls"], calls, "{row}");
    }
    let text = |extension: &str| std::fs::read(files.path(&format!("curve.v1.{extension}"))).unwrap();
    let csv = String::from_utf8(text("csv")).unwrap();
    // Each value stands in the column with the name of its field.
    let mut lines = csv.lines().map(|line| line.split(',').collect::<Vec<_>>());
    let columns = lines.next().unwrap();
    assert_eq!(columns.len(), rows[0].as_object().unwrap().len(), "{csv}");
    let lines: Vec<_> = lines.collect();
    assert_eq!(lines.len(), rows.len());
    for (line, row) in lines.iter().zip(rows) {
        for (column, value) in columns.iter().zip(line) {
            let same = match row[column].as_f64() {
                // The reader of JSON rounds the last bit of some numbers otherwise.
                Some(number) => (value.parse::<f64>().unwrap() / number - 1.0).abs() < 1e-12,
                None => row.get(column).is_some() && value.is_empty(),
            };
            assert!(same, "{column}: {value}, {row}");
        }
    }
    let written: Value = serde_json::from_slice(&text("json")).unwrap();
    assert_eq!(written["rows"].as_array().unwrap().len(), rows.len());
    assert!(String::from_utf8(text("svg")).unwrap().contains("k = 10, batch 20"));
    assert!(text("png").starts_with(b"\x89PNG\r\n\x1a\n"));

    // A target is found by measurement, and kept in the index.
    build(&files, "x.ivf", &["--lists", "12"]);
    let index = files.text("x.ivf");
    let aim = |target: &str| {
        let further = ["--index", &index, "--target-recall", target, "--k", "10", "--probes", "12"];
        json(&[&args[..], &further].concat())
    };
    for target in ["1", "0.2"] {
        let found = &aim(target)["target"];
        let probes = found["probes"].as_u64().unwrap();
        assert!(found["reached"].as_f64().unwrap() >= target.parse::<f64>().unwrap() && found["stored"] == true);
        assert_eq!(json(&["info", "--index", &index])["probes"], probes);
        let truth = json(&["search", "--device", "cpu", "--index", &index, "--query", &query, "--k", "10"]);
        assert_eq!(truth["probes"], probes);
        if probes > 1 {
            let fewer = (probes - 1).to_string();
            let further = ["--index", &index, "--k", "10", "--probes", &fewer];
            let recall = json(&[&args[..], &further].concat())["rows"][0]["recall"].as_f64().unwrap();
            assert!(recall < target.parse().unwrap(), "{recall} with {fewer} probes");
        }
    }
    let (code, stdout, _) =
        warpann(&[&args[..], &["--index", &index, "--probes", "2", "--target-recall", "0.5"]].concat());
    assert_eq!((code, stdout.contains("queries/s") && stdout.contains("stored in the index")), (0, true), "{stdout}");
}

#[test]
fn a_recall_out_of_reach_is_an_error_with_what_can_be_reached() {
    let files = files();
    build(&files, "x.ivf", &[&["--lists", "3"], PQ.as_slice()].concat());
    io::write_ids(files.path("gt.ivecs"), &[1_000; 20], 1).unwrap();
    let (index, query, truth) = (files.text("x.ivf"), files.text("query.fvecs"), files.text("gt.ivecs"));
    let before = std::fs::read(&index).unwrap();
    let args = ["bench", "ivf", "--device", "cpu", "--index", &index, "--query", &query, "--gt", &truth, "--k", "1"];
    let message = failure(1, &[&args[..], &["--target-recall", "0.9"]].concat());
    assert!(message.contains("recall 0.9 cannot be reached; a search of all lists has 0"), "{message}");
    assert!(std::fs::read(&index).unwrap() == before);
    for target in ["0", "1.01", "-1", "NaN", "much"] {
        failure(2, &[&args[..], &["--target-recall", target]].concat());
    }
}

#[test]
fn bench_kmeans_measures_and_writes() {
    let files = files();
    let (base, out) = (files.text("base.fbin"), files.text("kmeans"));
    let args = ["bench", "kmeans", "--device", "cpu", "--base", &base, "--centroids", "12", "--iterations", "5"];
    let report = json(&[&args[..], &["--repeat", "2", "--out", &out]].concat());
    let iterations = report["iterations"].as_array().unwrap();
    assert_eq!((iterations.len(), report["seconds"].as_array().unwrap().len()), (5, 2));
    assert_eq!(report["objective"], iterations[4]["objective"]);
    let csv = std::fs::read_to_string(files.path("kmeans.csv")).unwrap();
    assert!(csv.starts_with("iteration,objective,split,imbalance,seconds\n"), "{csv}");
    assert_eq!(csv.lines().count(), 6);
    assert!(files.path("kmeans.json").exists());
    let (code, stdout, _) = warpann(&args);
    assert_eq!((code, stdout.contains("objective")), (0, true), "{stdout}");
}

#[test]
fn what_is_wrong_is_refused_by_name() {
    let files = files();
    build(&files, "x.ivf", &["--lists", "4"]);
    let (base, query, flat) = (files.text("base.fbin"), files.text("query.fvecs"), files.text("flat.npy"));
    let (index, out, bytes) = (files.text("x.ivf"), files.text("y.ivf"), files.text("bytes.u8bin"));
    let refused = |further: &[&str]| {
        failure(1, &[&["build", "--device", "cpu", "--base", &base, "--out", &out], further].concat())
    };
    let search =
        |index: &str, query: &str| failure(1, &["search", "--device", "cpu", "--index", index, "--query", query]);
    io::write_ids(files.path("few.ivecs"), &[1, 2], 1).unwrap();
    io::write_ids(files.path("twice.ivecs"), &[9; 600], 1).unwrap();
    io::write_vectors(files.path("half.fbin"), &[0.5f32; 8], 8).unwrap();
    build(&files, "few.ivf", &["--lists", "4"]);
    let u8s = files.text("u8.ivf");
    json(&["build", "--device", "cpu", "--base", &bytes, "--lists", "1", "--out", &u8s]);
    let damaged = files.text("damaged.ivf");
    let mut damage = std::fs::read(&index).unwrap();
    let last = damage.len() - 1;
    damage[last] ^= 1;
    std::fs::write(&damaged, &damage).unwrap();
    std::fs::write(files.path("cut.ivf"), &damage[..last]).unwrap();
    let nowhere = files.text("no/y.ivf");
    let text = |name: &str| files.text(name);
    for (message, expected) in [
        (refused(&["--kind", "ivf-pq", "--sub-quantizers", "3"]), "dimension 8 is not divisible by 3 sub-quantizers"),
        (refused(&["--kind", "ivf-pq", "--bits", "9"]), "bits per sub-quantizer = 9; 4 to 8 are possible"),
        (refused(&["--bits", "8"]), "--bits is for --kind ivf-pq and --kind ivf-bits"),
        (refused(&["--lists", "601"]), "600 training vectors; at least 601 are needed"),
        (refused(&["--train", &flat]), "wrong dimension: the index has 8, the vectors have 2"),
        (refused(&["--ids", &text("few.ivecs")]), "2 ids; 600 are needed"),
        (refused(&["--ids", &text("twice.ivecs")]), "id 9 is not unique"),
        (failure(1, &["build", "--base", &base, "--out", &nowhere]), "no/y.ivf: No such file"),
        (failure(1, &["build", "--base", &index, "--out", &out]), "unknown extension"),
        (search(&text("none.ivf"), &query), "No such file"),
        (search(&base, &query), "not an index file"),
        (search(&damaged, &query), "checksum of section 'codes' does not match: the file is damaged"),
        (search(&text("cut.ivf"), &query), "truncated"),
        (search(&index, &flat), "wrong dimension: the index has 8, the vectors have 2"),
        (search(&u8s, &text("half.fbin")), "component 0.5 at row 0, column 0 is not a value of u8"),
        (failure(1, &["info", "--index", &query]), "not an index file"),
    ] {
        assert!(message.contains(expected), "{message}: expected {expected}");
    }
    assert!(!Path::new(&out).exists());
    let both = ["search", "--index", &index, "--query", &query];
    failure(2, &[&both[..], &["--base", &base]].concat());
    failure(2, &[&both[..], &["--metric", "ip"]].concat());
    failure(2, &[&both[..], &["--probes", "0"]].concat());
    failure(2, &["search", "--base", &base, "--query", &query, "--probes", "3"]);
    failure(2, &["search", "--query", &query]);
    failure(2, &["build", "--base", &base]);
    failure(2, &["build", "--base", &base, "--out", &out, "--kind", "ivf"]);
    failure(2, &["build", "--base", &base, "--out", &out, "--lists", "0"]);
    failure(2, &["bench", "ivf", "--query", &query]);
    failure(2, &["bench", "ivf", "--index", &index, "--query", &query]);
    failure(2, &["bench", "ivf", "--index", &index, "--base", &base, "--query", &query, "--lists", "9"]);
    failure(2, &["bench", "ivf", "--base", &base, "--query", &query, "--batch", "0"]);
}

/// Whatever the batches, the row counts from the start of the file, and the message says which file's vectors it means.
#[test]
fn a_component_that_is_not_finite_is_named_by_file_row() {
    let files = files();
    let train = files.text("base.fbin");
    let mut rows = io::read_vectors(&train).unwrap().as_slice::<f32>().unwrap().to_vec();
    rows[450 * 8 + 3] = f32::NAN;
    io::write_vectors(files.path("nan.fbin"), &rows, 8).unwrap();
    let ids: Vec<u64> = (0..600).map(|id| 5 * id).collect();
    io::write_ids(files.path("ids.ivecs"), &ids, 1).unwrap();
    let (base, out, ids) = (files.text("nan.fbin"), files.text("out.ivf"), files.text("ids.ivecs"));
    let build = ["build", "--device", "cpu", "--train", &train, "--base", &base, "--out", &out, "--lists", "4"];
    for further in [&["--batch", "200"][..], &["--batch", "7"], &[], &["--batch", "200", "--ids", &ids]] {
        let message = failure(1, &[&build[..], further].concat());
        let expected = "component NaN at row 450, column 3 of the base is not finite";
        assert!(message.contains(expected), "{further:?}: {message}");
    }
    let search = failure(1, &["search", "--device", "cpu", "--base", &train, "--query", &base]);
    assert!(search.contains("component NaN at row 450, column 3 of the queries is not finite"), "{search}");
}

/// The library saves exact indexes, and the program uses their files in every command that takes an index.
#[test]
fn files_of_exact_indexes_are_used_as_those_of_others() {
    let (files, folder) = (files(), Folder::new());
    let rows = io::read_vectors(files.path("base.fbin")).unwrap().as_slice::<f32>().unwrap().to_vec();
    for name in ["base.fbin", "query.fvecs"] {
        std::fs::copy(files.path(name), folder.path(name)).unwrap();
    }
    let saved = |name: &str, rows: &[f32], first: u64| {
        let mut index = FlatIndex::<f32>::new(8, Metric::L2, Device::Cpu).unwrap();
        let ids: Vec<u64> = (first..).take(rows.len() / 8).collect();
        index.add_with_ids(rows, &ids).unwrap();
        index.save(folder.path(name)).unwrap();
    };
    saved("x.flat", &rows, 0);
    let info = folder.json("info --index @x.flat");
    assert_eq!((&info["kind"], &info["index"], &info["vectors"]), (&"flat".into(), &"flat".into(), &600.into()));
    assert!(info.get("lists").is_none() && folder.run("info --index @x.flat").contains("600, dimension 8, f32"));

    let search = |line: &str| {
        folder.json(&format!("search --device cpu --query @query.fvecs --k 5 --out @ids.npy {line}"));
        io::read_ids(folder.path("ids.npy")).unwrap().ids
    };
    let exact = search("--base @base.fbin");
    assert_eq!(search("--index @x.flat"), exact);
    io::write_ids(folder.path("some.npy"), &[exact[0]], 1).unwrap();
    assert!(!search("--index @x.flat --exclude @some.npy").contains(&exact[0]));
    let within = folder.json("search --device cpu --query @query.fvecs --index @x.flat --radius 1000000");
    assert_eq!(within["results"], 600 * 20);

    assert_eq!(folder.json("remove --index @x.flat --ids @some.npy --out @less.flat")["vectors"], 599);
    io::write_vectors(folder.path("one.fbin"), &rows[exact[0] as usize * 8..][..8], 8).unwrap();
    let added = folder.json("add --device cpu --index @less.flat --base @one.fbin --ids @some.npy");
    assert_eq!((&added["vectors"], &added["kind"]), (&600.into(), &"flat".into()));
    assert_eq!(folder.bytes("less.flat"), folder.bytes("x.flat"));
    saved("half.flat", &rows[..300 * 8], 0);
    saved("rest.flat", &rows[300 * 8..], 300);
    folder.json("merge --index @half.flat --index @rest.flat --out @all.flat");
    assert_eq!(folder.bytes("all.flat"), folder.bytes("x.flat"));
    folder.json("knn-graph --device cpu --base @base.fbin --k 4 --index @x.flat --out @by-index.ibin");
    folder.json("knn-graph --device cpu --base @base.fbin --k 4 --out @exact.ibin");
    assert_eq!(folder.bytes("by-index.ibin"), folder.bytes("exact.ibin"));

    let search = "search --device cpu --query @query.fvecs --index @x.flat";
    for (line, option) in [
        (format!("{search} --probes 3"), "--probes"),
        (format!("{search} --beam 30"), "--beam"),
        (format!("{search} --refine @base.fbin"), "--refine"),
        ("tune --device cpu --index @x.flat --query @query.fvecs --target-recall 0.9".into(), "tune"),
        ("add --device cpu --index @x.flat --base @one.fbin --batch 7".into(), "--batch"),
        ("bench ivf --device cpu --index @x.flat --base @base.fbin --query @query.fvecs".into(), "bench ivf"),
        ("bench graph --device cpu --index @x.flat --base @base.fbin --query @query.fvecs".into(), "bench graph"),
        ("knn-graph --device cpu --base @base.fbin --index @x.flat --probes 3 --out @g.ibin".into(), "--probes"),
    ] {
        let message = folder.refused(1, &line);
        assert!(message.starts_with(&format!("error: {option} is for ")), "{message}");
        assert!(message.contains("not for an index of kind flat"), "{message}");
    }
}

/// Bits: found by a loop over bits, in files of FAISS, and refused where vectors have none.
#[test]
fn bits_are_searched_built_and_converted() {
    let files = files();
    let rows: Vec<u8> = (0..90 * 5).map(|i: usize| (i * i * 31 % 253) as u8).collect();
    io::write_vectors(files.path("bits.u8bin"), &rows, 5).unwrap();
    io::write_vectors(files.path("some.npy"), &rows[35..50], 5).unwrap();
    let expected = |query: &[u8]| -> Vec<u64> {
        let apart = |row: &[u8]| (0..40).filter(|&bit| (row[bit / 8] ^ query[bit / 8]) >> (bit % 8) & 1 == 1).count();
        let mut all: Vec<(usize, u64)> = rows.chunks(5).map(apart).zip(0..).collect();
        all.sort_unstable();
        all[..4].iter().map(|&(_, id)| id).collect()
    };
    let expected: Vec<u64> = rows[35..50].chunks(5).flat_map(expected).collect();
    let mut index = FlatIndex::<u8>::new(5, Metric::Hamming, Device::Cpu).unwrap();
    index.add(&rows).unwrap();
    index.save(files.path("x.flat")).unwrap();
    let report = files.json("convert --in @x.flat --index faiss --out @x.faiss");
    assert_eq!((&report["rows"], &report["to"]), (&90.into(), &"u8".into()), "{report}");
    files.json("convert --in @x.faiss --index warpann --out @y.flat");
    for of in ["--base @bits.u8bin --metric hamming", "--index @x.flat", "--index @y.flat"] {
        files.json(&format!("search --device cpu {of} --query @some.npy --k 4 --out @found.npy"));
        assert_eq!(io::read_ids(files.path("found.npy")).unwrap().ids, expected, "{of}");
    }
    let message =
        files.refused(1, "search --device cpu --base @base.fbin --query @query.fvecs --metric hamming --out @n.npy");
    assert!(message.contains("element type for metric hamming: f32; u8 is needed"), "{message}");
    let build = "build --device cpu --base @bits.u8bin --lists 4 --metric hamming --out @bits.ivf";
    let message = files.refused(1, &format!("{build} --kind ivf-sq8"));
    assert!(message.contains("encoding for metric hamming: sq8; flat is needed"), "{message}");
    files.json(&format!("{build} --kind ivf-flat"));
    let report = files.json("convert --in @bits.ivf --index faiss --out @ivf.faiss");
    assert_eq!((&report["rows"], &report["to"]), (&90.into(), &"u8".into()), "{report}");
    files.json("convert --in @ivf.faiss --index warpann --out @again.ivf");
    for index in ["bits.ivf", "again.ivf"] {
        let search =
            format!("search --device cpu --index @{index} --query @some.npy --k 4 --probes 4 --out @found.npy");
        files.json(&search);
        assert_eq!(io::read_ids(files.path("found.npy")).unwrap().ids, expected, "{index}");
    }
    let message = files.refused(1, "convert --in @ivf.faiss --index warpann --metric ip --out @new");
    assert!(message.contains("a file of bits, whose metric is hamming, not ip"), "{message}");
    let report = files.json("build --device cpu --base @bits.u8bin --kind graph --metric hamming --out @bits.graph");
    assert_eq!(report["metric"], "hamming", "{report}");
    files.json("search --device cpu --index @bits.graph --query @some.npy --k 4 --out @found.npy");
    assert_eq!(io::read_ids(files.path("found.npy")).unwrap().ids, expected);
    let message = files.refused(1, "convert --in @bits.graph --index hnswlib --out @new");
    assert!(message.contains("hamming; l2, ip or cosine is needed"), "{message}");
    assert!(files.refused(1, "convert --in @x.flat --index hnswlib --out @new").contains("is for graphs, not for"));
    let message = files.refused(1, "convert --in @x.faiss --index warpann --metric l2 --out @new");
    assert!(message.contains("a file of bits, whose metric is hamming, not l2"), "{message}");
}
