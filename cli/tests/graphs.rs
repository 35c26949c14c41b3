//! Graph indexes by the program `warpann`, run as a user runs it. The expected neighbours come from a loop over all
//! vectors.

mod common;

use common::{Folder, check_neighbours, piped};
use serde_json::Value;
use test_random::Random;
use warpann::knn_graph::NO_NODE;
use warpann::{Device, GraphIndex, NONE, io};

const ROWS: usize = 600;
const DIM: usize = 6;
const QUERIES: usize = 20;
/// Options of an index whose searches are walks, though it is small.
const WALKS: &str = "--kind graph --degree 12 --exact-ratio 0";

/// Component `j` of vector `i`, of the base for `i` below [`ROWS`] and of the queries behind it: small integers in
/// clusters, with ties. The last component keeps rows apart that would be equal, because equal rows have no edges of
/// their own.
fn component(i: usize, j: usize) -> i64 {
    let turn = if j == DIM - 1 { i / (9 * 23) } else { 0 };
    (i % 9 * 20 + (i * 31 + j * 17 + i * i * (j + 3)) % 23 + turn) as i64
}

fn ranked(query: usize, keep: impl Fn(u64) -> bool) -> Vec<(i64, u64)> {
    common::ranked(component, (ROWS, DIM), query, keep)
}

fn files() -> Folder {
    let files = Folder::new();
    let rows = |range: std::ops::Range<usize>| -> Vec<f32> {
        range.flat_map(|i| (0..DIM).map(move |j| component(i, j) as f32)).collect()
    };
    io::write_vectors(files.path("base.fbin"), &rows(0..ROWS), DIM).unwrap();
    io::write_vectors(files.path("head.fbin"), &rows(0..400), DIM).unwrap();
    io::write_vectors(files.path("tail.fbin"), &rows(400..ROWS), DIM).unwrap();
    io::write_vectors(files.path("query.fvecs"), &rows(ROWS..ROWS + QUERIES), DIM).unwrap();
    io::write_ids(files.path("tail.npy"), &(400..ROWS as u64).collect::<Vec<_>>(), 1).unwrap();
    files
}

fn printed(files: &Folder, line: &str) -> String {
    let (code, stdout, stderr) = files.warpann(line);
    assert_eq!((code, stderr.as_str()), (0, ""), "{line}");
    stdout
}

fn build(files: &Folder, further: &str) -> Value {
    files.json(&format!("build --device cpu --base @base.fbin --out @x.graph {WALKS} {further}"))
}

fn load(files: &Folder, name: &str) -> GraphIndex<f32> {
    GraphIndex::load(files.path(name), Device::Cpu, None).unwrap()
}

/// A search whose beam is wide enough to meet all vectors.
const SEARCH: &str = "search --device cpu --index @x.graph --beam 600 --query @query.fvecs --show 20";

fn check_ids(found: &Value, keep: impl Fn(u64) -> bool + Copy, k: usize) {
    for query in 0..QUERIES {
        let ranked = ranked(query, keep);
        check_neighbours(found, query, &ranked[..k.min(ranked.len())]);
    }
}

#[test]
fn a_graph_is_built_described_and_searched() {
    let files = files();
    let built = build(&files, "--beam 40 --seed 7");
    assert_eq!((&built["kind"], &built["index"]), (&"graph".into(), &"graph, degree 12".into()));
    assert_eq!((&built["vectors"], &built["degree"], &built["beam"]), (&ROWS.into(), &12.into(), &40.into()));
    assert_eq!((&built["codes"], &built["train_seconds"]), (&true.into(), &0.0.into()));
    assert!(built.get("lists").is_none() && built["edges"].as_u64().unwrap() > 4 * ROWS as u64, "{built}");
    assert_eq!(built["file_bytes"], std::fs::metadata(files.path("x.graph")).unwrap().len());
    let info = files.json("info --index @x.graph");
    for field in ["kind", "index", "element", "metric", "dim", "vectors", "degree", "beam", "starts"] {
        assert_eq!(info[field], built[field], "{field}");
    }
    let text = printed(&files, "info --index @x.graph");
    assert!(text.contains("index        graph, degree 12\n") && text.contains("beam         40 by default"), "{text}");
    // The same command makes the same file, without codes another.
    let bytes = files.bytes("x.graph");
    build(&files, "--beam 40 --seed 7");
    assert!(files.bytes("x.graph") == bytes);
    assert_eq!(build(&files, "--no-codes")["codes"], false);
    assert!(files.bytes("x.graph") != bytes);
    build(&files, "");

    let found = files.json(&format!("{SEARCH} --k 5"));
    check_ids(&found, |_| true, 5);
    assert_eq!(
        (&found["beam"], &found["exact_queries"], &found["index"]),
        (&600.into(), &0.into(), &"graph, degree 12".into())
    );
    assert!(found.get("probes").is_none() && found.get("lists").is_none(), "{found}");
    for map in ["auto", "read", "map"] {
        let same = files.json(&format!("{SEARCH} --k 5 --map {map}"));
        assert_eq!(same["neighbours"], found["neighbours"]);
    }
    let truth: Vec<u64> =
        (0..QUERIES).flat_map(|query| ranked(query, |_| true).into_iter().take(5)).map(|(_, id)| id).collect();
    io::write_ids(files.path("gt.ibin"), &truth, 5).unwrap();
    let narrow = files.json("search --device cpu --index @x.graph --beam 16 --query @query.fvecs --k 5 --gt @gt.ibin");
    let recall = narrow["recall"]["by_id"].as_f64().unwrap();
    assert!(recall > 0.8 && narrow["beam"] == 16, "{narrow}");
    let text = printed(&files, "search --device cpu --index @x.graph --query @query.fvecs");
    assert!(text.contains("index        graph, degree 12, beam 64"), "{text}");

    // Few vectors: no graph, and exact searches.
    let small = files.json("build --device cpu --base @head.fbin --kind graph --out @small.graph");
    assert_eq!((&small["edges"], &small["starts"]), (&0.into(), &0.into()));
    let line = "search --device cpu --index @small.graph --query @query.fvecs --k 5 --show 20";
    let found = files.json(line);
    check_ids(&found, |id| id < 400, 5);
    assert_eq!((&found["beam"], &found["exact_queries"]), (&0.into(), &QUERIES.into()));
    assert!(printed(&files, line).contains("graph, degree 32, all vectors compared"));
}

#[test]
fn filters_radii_and_outputs_are_those_of_every_index() {
    let files = files();
    build(&files, "");
    let ids: Vec<u64> = (0..ROWS as u64).filter(|id| id % 7 == 2).collect();
    io::write_ids(files.path("ids.npy"), &ids, 1).unwrap();
    let kept = files.json(&format!("{SEARCH} --k 5 --filter @ids.npy"));
    check_ids(&kept, |id| id % 7 == 2, 5);
    assert_eq!(kept["filtered"], ids.len());
    check_ids(&files.json(&format!("{SEARCH} --k 5 --exclude @ids.npy")), |id| id % 7 != 2, 5);

    let within = files.json(&format!("{SEARCH} --k 5 --within 300"));
    for query in 0..QUERIES {
        let expected = ranked(query, |_| true).into_iter().take(5).filter(|&(distance, _)| distance <= 300).count();
        assert_eq!(within["neighbours"][query]["ids"].as_array().unwrap().len(), expected);
    }
    let line = "search --device cpu --index @x.graph --query @query.fvecs --radius 300 --show 20 --exclude @ids.npy --out @r.csv";
    let range = files.json(line);
    let expected = |query| ranked(query, |id| id % 7 != 2).into_iter().filter(|&(distance, _)| distance <= 300).count();
    assert_eq!(range["results"], (0..QUERIES).map(expected).sum::<usize>());
    assert!(range.get("probes").is_none(), "{range}");
    let csv = std::fs::read_to_string(files.path("r.csv")).unwrap();
    assert_eq!(csv.lines().count(), 1 + range["results"].as_u64().unwrap() as usize);
}

#[test]
fn graphs_grow_shrink_and_merge() {
    let files = files();
    files.json(&format!("build --device cpu --base @head.fbin --out @x.graph {WALKS}"));
    let head = files.bytes("x.graph");
    let report = files.json("add --device cpu --index @x.graph --base @tail.fbin --out @more.graph");
    assert_eq!((&report["added"], &report["vectors"]), (&200.into(), &ROWS.into()));
    assert!(files.bytes("x.graph") == head);
    let search = |name: &str| files.json(&format!("{} --k 5", SEARCH.replace("x.graph", name)));
    check_ids(&search("more.graph"), |_| true, 5);

    let gone: Vec<u64> = (0..ROWS as u64).step_by(3).collect();
    io::write_ids(files.path("gone.ibin"), &gone, 1).unwrap();
    let report = files.json("remove --index @more.graph --ids @gone.ibin --out @less.graph");
    assert_eq!((&report["removed"], &report["vectors"]), (&gone.len().into(), &(ROWS - gone.len()).into()));
    check_ids(&search("less.graph"), |id| id % 3 != 0, 5);

    files.json(&format!("build --device cpu --base @tail.fbin --ids @tail.npy --out @tail.graph {WALKS}"));
    let report = files.json("merge --index @x.graph @tail.graph --out @both.graph");
    assert_eq!((&report["merged"], &report["vectors"]), (&2.into(), &ROWS.into()));
    check_ids(&search("both.graph"), |_| true, 5);

    assert!(files.refused(1, "merge --index @x.graph @x.graph --out @y.graph").contains("id 0"));
    assert!(files.refused(1, "remove --index @x.graph --ids @tail.npy").contains("id 400"));
    files.json("build --device cpu --base @tail.fbin --lists 4 --out @tail.ivf");
    let message = files.refused(1, "merge --index @x.graph @tail.ivf --out @y.graph");
    assert!(message.contains("tail.ivf: ") && message.contains("kind"), "{message}");
}

/// The narrowest beam with a recall is measured and kept. Inverted files keep their number of probes.
#[test]
fn tuned_indexes_keep_what_was_found() {
    let files = files();
    build(&files, "");
    let tune = "tune --device cpu --query @query.fvecs --k 5 --target-recall";
    let before = files.bytes("x.graph");
    let report = files.json(&format!("{tune} 0.97 --index @x.graph --out @y.graph"));
    assert!(report["reached"].as_f64().unwrap() >= 0.97 && files.bytes("x.graph") == before, "{report}");
    assert_eq!(files.json("info --index @y.graph")["beam"], report["beam"]);
    let text = printed(&files, &format!("{tune} 0.5 --index @x.graph"));
    assert!(text.contains("target       recall@5 of 0.5: a beam of "), "{text}");
    assert!(files.json("info --index @x.graph")["beam"].as_u64() <= report["beam"].as_u64());

    files.json("build --device cpu --base @base.fbin --lists 9 --out @x.ivf");
    let report = files.json(&format!("{tune} 1 --index @x.ivf"));
    assert_eq!((&report["reached"], &report["beam"]), (&1.0.into(), &Value::Null));
    assert_eq!(files.json("info --index @x.ivf")["probes"], report["probes"]);
    for target in ["0", "1.01", "NaN"] {
        files.refused(2, &format!("{tune} {target} --index @x.graph"));
    }
    assert!(files.refused(1, "tune --index @x.graph --query @gone.npy --target-recall 1").contains("No such file"));
    // Without true neighbours every number would have the recall 1.
    io::write_ids(files.path("all.ibin"), &(0..ROWS as u64).collect::<Vec<_>>(), 1).unwrap();
    io::write_vectors::<f32>(files.path("none.fbin"), &[], DIM).unwrap();
    for index in ["x.graph", "x.ivf"] {
        let message = files.refused(1, &format!("tune --index @{index} --query @none.fbin --target-recall 0.9"));
        assert!(message.contains("no queries"), "{message}");
        files.json(&format!("remove --index @{index} --ids @all.ibin"));
        let message = files.refused(1, &format!("{tune} 0.9 --index @{index}"));
        assert!(message.contains("queries has a true neighbour among 0 vectors"), "{message}");
    }
}

/// The edges of an index, written to a file, make an index with the same bytes. Other edges are searched as they are.
#[test]
fn edges_come_from_files() {
    let files = files();
    build(&files, "");
    let bytes = files.bytes("x.graph");
    let graph = load(&files, "x.graph").graph().unwrap().unwrap();
    let wide: Vec<u64> =
        graph.neighbors().iter().map(|&node| if node == NO_NODE { NONE } else { u64::from(node) }).collect();
    for name in ["edges.ibin", "edges.npy"] {
        io::write_ids(files.path(name), &wide, 12).unwrap();
        let line =
            format!("build --device cpu --base @base.fbin --kind graph --exact-ratio 0 --edges @{name} --out @y.graph");
        assert_eq!(files.json(&line)["degree"], 12);
        assert!(files.bytes("y.graph") == bytes, "{name}");
    }
    let line =
        "build --device cpu --base @base.fbin --kind graph --exact-ratio 0 --edges - --format ibin --out @z.graph";
    let args = files.args(line);
    let (code, _, stderr) = piped(&args, &files.bytes("edges.ibin"));
    assert_eq!((code, files.bytes("z.graph") == bytes), (0, true), "{stderr}");

    // A ring, and ids that are no row numbers.
    let ring: Vec<u64> = (0..ROWS as u64).flat_map(|i| [(i + 1) % 600, (i + 599) % 600, NONE, NONE]).collect();
    io::write_ids(files.path("ring.npy"), &ring, 4).unwrap();
    io::write_ids(files.path("names.npy"), &(0..ROWS as u64).map(|i| 5000 - i).collect::<Vec<_>>(), 1).unwrap();
    let line = "build --device cpu --base @base.fbin --kind graph --exact-ratio 0 --edges @ring.npy --ids @names.npy --out @ring.graph";
    assert_eq!(files.json(line)["edges"], 2 * ROWS);
    let exported = load(&files, "ring.graph").graph().unwrap().unwrap();
    // Rows are in the order of ids, which is that of the base backwards.
    assert_eq!(exported.row(0), [599, 1, NO_NODE, NO_NODE]);

    let few: Vec<u64> = (0..599).flat_map(|i| [(i + 1) % 599, NONE, NONE, NONE]).collect();
    io::write_ids(files.path("few.npy"), &few, 4).unwrap();
    io::write_ids(files.path("thin.npy"), &[0; 1800], 3).unwrap();
    let mut beyond = ring.clone();
    beyond[4 * 17 + 1] = 600;
    io::write_ids(files.path("beyond.npy"), &beyond, 4).unwrap();
    std::fs::write(files.path("cut.ibin"), &files.bytes("edges.ibin")[..5000]).unwrap();
    for (edges, expected) in [
        ("few.npy", "600 vectors of the base; 599 are needed"),
        ("thin.npy", "degree = 3; 4 to 256 are possible"),
        ("beyond.npy", "beyond.npy: "),
        ("cut.ibin", "cut.ibin: "),
        ("none.npy", "No such file"),
        ("base.fbin", "unknown extension"),
    ] {
        let line = format!("build --device cpu --base @base.fbin --kind graph --edges @{edges} --out @new.graph");
        let message = files.refused(1, &line);
        assert!(message.contains(expected), "{edges}: {message}");
    }
    files.refused(2, "build --base @base.fbin --kind graph --edges @ring.npy --degree 8 --out @new.graph");
}

/// The neighbours of the program's own k-NN graph make the index that a build without them makes.
#[test]
fn edges_are_chosen_among_neighbours_in_files() {
    let files = files();
    build(&files, "");
    let expected = files.bytes("x.graph");
    files.json("knn-graph --device cpu --base @base.fbin --k 12 --out @near.ibin");
    let build = format!("build --device cpu --base @base.fbin {WALKS}");
    let report = files.json(&format!("{build} --neighbours @near.ibin --out @near.graph"));
    assert_eq!((&report["degree"], files.bytes("near.graph") == expected), (&12.into(), true));

    // Fewer neighbours than edges, and ids that are no row numbers.
    files.json("knn-graph --device cpu --base @base.fbin --k 5 --out @few.npy");
    io::write_ids(files.path("names.npy"), &(0..ROWS as u64).map(|i| 5000 - i).collect::<Vec<_>>(), 1).unwrap();
    let report = files.json(&format!("{build} --neighbours @few.npy --ids @names.npy --out @few.graph"));
    assert!(report["edges"].as_u64().unwrap() > 5 * ROWS as u64, "{report}");
    let found = files.json("search --device cpu --index @few.graph --query @query.fvecs --k 1 --beam 600 --show 20");
    for query in 0..QUERIES {
        let all = ranked(query, |_| true);
        // The greatest row of the nearest has the lowest id.
        let nearest = all.iter().filter(|(distance, _)| *distance == all[0].0).map(|(_, row)| row).max().unwrap();
        assert_eq!(found["neighbours"][query]["ids"], serde_json::json!([5000 - nearest]), "query {query}");
    }

    for (line, code, expected) in [
        (format!("{build} --rows 500 --neighbours @near.ibin"), 1, "500 vectors of the base; 600 are needed"),
        (format!("{build} --neighbours @none.npy"), 1, "No such file"),
        (format!("{build} --neighbours @near.ibin --edges @near.ibin"), 2, "cannot be used with"),
    ] {
        let message = files.refused(code, &format!("{line} --out @new.graph"));
        assert!(message.contains(expected), "{line}: {message}");
    }
}

#[test]
fn options_of_other_kinds_are_refused_by_name() {
    let files = files();
    build(&files, "");
    files.json("build --device cpu --base @base.fbin --lists 9 --out @x.ivf");
    let build = "build --device cpu --base @base.fbin --out @new --kind";
    let search = "search --device cpu --query @query.fvecs --index";
    for (line, option, kind) in [
        (format!("{build} graph --lists 5"), "--lists", "graph"),
        (format!("{build} graph --train @base.fbin"), "--train", "graph"),
        (format!("{build} graph --iterations 5"), "--iterations", "graph"),
        (format!("{build} graph --bits 5"), "--bits", "graph"),
        (format!("{build} graph --batch 5"), "--batch", "graph"),
        (format!("{build} ivf-flat --degree 8"), "--degree", "ivf-flat"),
        (format!("{build} ivf-sq8 --edges @none.npy"), "--edges", "ivf-sq8"),
        (format!("{build} ivf-flat --neighbours @none.npy"), "--neighbours", "ivf-flat"),
        (format!("{build} ivf-flat --no-codes"), "--no-codes", "ivf-flat"),
        (format!("{search} @x.graph --probes 3"), "--probes", "graph"),
        (format!("{search} @x.graph --refine @base.fbin"), "--refine", "graph"),
        (format!("{search} @x.graph --filter @tail.npy --no-widen"), "--no-widen", "graph"),
        (format!("{search} @x.ivf --beam 30"), "--beam", "ivf-flat"),
        ("add --device cpu --index @x.graph --base @tail.fbin --batch 7".into(), "--batch", "graph"),
        ("bench ivf --device cpu --index @x.graph --base @base.fbin --query @query.fvecs".into(), "bench ivf", "graph"),
        (
            "bench graph --device cpu --index @x.ivf --base @base.fbin --query @query.fvecs".into(),
            "bench graph",
            "ivf-flat",
        ),
        (
            "knn-graph --device cpu --base @base.fbin --index @x.graph --probes 3 --out @g.ibin".into(),
            "--probes",
            "graph",
        ),
        ("knn-graph --device cpu --base @base.fbin --index @x.ivf --beam 3 --out @g.ibin".into(), "--beam", "ivf-flat"),
    ] {
        let message = files.refused(1, &line);
        assert!(message.starts_with(&format!("error: {option} is for ")), "{message}");
        assert!(message.contains(&format!("not for an index of kind {kind}")), "{message}");
    }
    files.refused(2, "search --base @base.fbin --query @query.fvecs --beam 3");
    files.refused(2, "search --index @x.graph --query @query.fvecs --beam 0");
    assert!(files.refused(2, "build --base @base.fbin --out @new --kind hnsw").contains("ivf-pq, ivf-bits, graph"));
}

/// Every damage of a file is an error of every command, which changes nothing.
#[test]
fn damaged_graphs_are_refused() {
    let files = files();
    build(&files, "");
    let bytes = files.bytes("x.graph");
    let commands = [
        "search --device cpu --index @bad.graph --query @query.fvecs",
        "add --device cpu --index @bad.graph --base @tail.fbin",
        "remove --index @bad.graph --ids @tail.npy",
        "merge --index @x.graph @bad.graph --out @new.graph",
        "tune --device cpu --index @bad.graph --query @query.fvecs --target-recall 0.5",
        "knn-graph --device cpu --base @base.fbin --index @bad.graph --out @g.ibin",
        "bench graph --device cpu --base @base.fbin --query @query.fvecs --index @bad.graph --out @b",
    ];
    let damage = |at: usize| {
        let mut damaged = bytes.clone();
        damaged[at] ^= 4;
        damaged
    };
    for (damaged, expected) in [
        (damage(bytes.len() - 5), "checksum of section 'graph' does not match"),
        (damage(20), "checksum of section 'header' does not match"),
        (damage(2000), "does not match: the file is damaged"),
        (bytes[..bytes.len() - 4].to_vec(), "truncated"),
        (bytes[..60].to_vec(), "truncated"),
    ] {
        std::fs::write(files.path("bad.graph"), &damaged).unwrap();
        for line in commands {
            let message = files.refused(1, line);
            assert!(message.contains("bad.graph: ") && message.contains(expected), "{line}: {message}");
        }
    }
    std::fs::write(files.path("bad.graph"), &bytes[..60]).unwrap();
    assert!(files.refused(1, "info --index @bad.graph").contains("truncated"));
    // Vectors of another type, where they are not values of the index's type.
    let halves: Vec<f32> = vec![0.5; DIM];
    io::write_vectors(files.path("half.fbin"), &halves, DIM).unwrap();
    io::write_vectors(files.path("bytes.u8bin"), &vec![7u8; 40 * DIM], DIM).unwrap();
    files.json("build --device cpu --base @bytes.u8bin --kind graph --out @u8.graph");
    let message = files.refused(1, "add --device cpu --index @u8.graph --base @half.fbin");
    assert!(message.contains("component 0.5 at row 0, column 0 is not a value of u8"), "{message}");
    io::write_vectors(files.path("wide.fbin"), &[0.5f32; 8], 8).unwrap();
    assert!(
        files.refused(1, "search --index @x.graph --query @wide.fbin").contains("wrong dimension: the index has 6")
    );
}

/// A graph index makes the k-NN graph of its vectors.
#[test]
fn a_graph_finds_the_neighbours_of_its_vectors() {
    let files = files();
    build(&files, "");
    let report = files.json("knn-graph --device cpu --base @base.fbin --k 5 --index @x.graph --beam 600 --out @g.ibin");
    assert_eq!((&report["index"], &report["accuracy"]["estimate"]), (&"graph, degree 12".into(), &1.0.into()));
    files.json("knn-graph --device cpu --base @base.fbin --k 5 --out @exact.ibin");
    assert!(files.bytes("g.ibin") == files.bytes("exact.ibin"));
    // Another beam is another run.
    files.json("build --device cpu --base @tail.fbin --kind graph --exact-ratio 0 --ids @tail.npy --out @tail.graph");
    let message = files.refused(1, "knn-graph --device cpu --base @tail.fbin --k 5 --index @tail.graph --out @t.ibin");
    assert!(message.contains("id in a graph of row numbers = 599; 0 to 199 are possible"), "{message}");
}

/// A record of the benchmarks: two implementations in one case, a case on the device, rows without recall and of other
/// searches.
const RECORD: &str = "\
date,implementation,version,revision,device,driver,case,k,ms_median,ms_min,ms_max,recall,verified
2026-01-01,ours,1,abc,card,5,graph 600x6 f32 degree=12 nq=20 beam=16,5,0.5,0.4,0.6,0.875,yes
2026-01-01,ours,1,abc,card,5,graph 600x6 f32 degree=12 nq=20 beam=32,5,0.8,0.7,0.9,0.9375,yes
2026-01-01,ours,1,abc,card,5,device data graph beam=16 600x6 f32 nq=20 device to device,5,0.25,0.2,0.3,0.875,yes
2026-01-01,ours,1,abc,card,5,device data graph beam=16 600x6 f32 nq=20 host to host,5,0.1,0.1,0.1,0.875,yes
2026-01-01,ours,1,abc,card,5,graph 600x6 f32 degree=12 nq=1 beam=16,5,0.01,0.01,0.01,,yes
2026-01-01,ours,1,abc,card,5,kmeans 600x6 f32,,12.5,12,13,,
2026-01-01,theirs,2,,card,5,graph 600x6 f32 degree=12 nq=20 beam=16,5,2,1,3,0.75,
2026-01-01,theirs,2,,card,5,graph 600x6 f32 degree=12 nq=20 beam=16,1,1,1,1,0.75,
2026-01-01,theirs,2,,card,5,hnsw 600x6 f32 links=8 nq=20 ef=48,5,4,3,5,0.8125,
";

#[test]
fn the_speed_of_a_graph_is_measured_and_drawn_with_that_of_others() {
    let files = files();
    // No clusters, and so few edges that narrow walks miss some neighbours.
    let mut random = Random::new(5);
    io::write_vectors(files.path("base.fbin"), &random.units(ROWS * DIM), DIM).unwrap();
    io::write_vectors(files.path("query.fvecs"), &random.units(QUERIES * DIM), DIM).unwrap();
    files.json("build --device cpu --base @base.fbin --out @x.graph --kind graph --degree 4 --exact-ratio 0");
    let beams = [16, 32, 64, 600];
    let table = "bench graph --device cpu --base @base.fbin --query @query.fvecs --k 5 --batch 7,all --repeat 1 --beams 600,32,16,64";
    let text = printed(&files, &format!("{table} --index @x.graph"));
    let head = text.lines().position(|line| line.trim_start().starts_with("k "));
    let lines: Vec<Vec<&str>> =
        text.lines().skip(head.unwrap()).map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines[0].join(" "), "k beam batch recall@k queries/s p50 ms p95 ms p99 ms");
    assert!(lines.len() == 9 && lines[1..].iter().all(|line| line.len() == 8), "{text}");

    // Beside an index from a file stands one that the command makes, with the same options.
    let new = format!("{table} --degree 4 --exact-ratio 0 --out @new");
    for (report, made) in [(files.json(&format!("{table} --index @x.graph")), false), (files.json(&new), true)] {
        let rows = report["rows"].as_array().unwrap();
        assert_eq!((report.get("add_seconds").is_some(), report.get("train_seconds").is_some()), (made, false));
        assert_eq!((&report["degree"], &report["queries"], &report["target"]), (&4.into(), &20.into(), &Value::Null));
        for (row, line) in rows.iter().zip(&lines[1..]) {
            assert_eq!(line[..3], ["k", "beam", "batch"].map(|name| row[name].to_string()), "{row}");
            assert!((row["recall"].as_f64().unwrap() - line[3].parse::<f64>().unwrap()).abs() < 1e-6, "{row}");
            assert!(row.get("probes").is_none() && row["queries_per_second"].as_f64().unwrap() > 0.0, "{row}");
        }
        let of = |name: &str| rows.iter().map(|row| row[name].as_f64().unwrap()).collect::<Vec<_>>();
        assert_eq!(of("beam"), beams.iter().flat_map(|&beam| [f64::from(beam); 2]).collect::<Vec<_>>());
        let recall = of("recall");
        // A wider walk meets nearly all that a narrower one meets; one as wide as the index meets all.
        assert!(recall.windows(2).all(|pair| pair[1] >= pair[0] - 0.02) && recall[0] > 0.8, "{recall:?}");
        assert!(recall[0] < 1.0 && recall[7] == 1.0, "{recall:?}");
    }
    let csv = String::from_utf8(files.bytes("new.csv")).unwrap();
    assert!(csv.starts_with("k,beam,batch,recall,recall_1,") && csv.lines().nth(1).unwrap().starts_with("5,16,7,0."));
    assert_eq!((csv.lines().count(), csv.lines().all(|line| line.split(',').count() == 15)), (9, true), "{csv}");
    assert!(String::from_utf8(files.bytes("new.svg")).unwrap().contains("graph, degree 4"));
    assert!(files.bytes("new.png").starts_with(b"\x89PNG\r\n\x1a\n"));

    // The narrowest beam for a recall goes to the file.
    let aimed = files.json(&format!("{table} --index @x.graph --target-recall 0.999"));
    let beam = &aimed["target"]["beam"];
    assert!(beam.as_u64().unwrap() > 16 && aimed["target"]["reached"].as_f64().unwrap() >= 0.999, "{aimed}");
    assert_eq!(aimed["target"]["stored"], true);
    assert_eq!(&files.json("info --index @x.graph")["beam"], beam);

    // The chart of the report and of a record.
    std::fs::write(files.path("record.csv"), RECORD).unwrap();
    let chart = "chart @new.json @record.csv --k 5 --batch 20 --out @both";
    let report = files.json(chart);
    let points = |at: usize| {
        let of = |point: &Value, name: &str| point[name].as_f64().unwrap();
        let points = report["curves"][at]["points"].as_array().unwrap();
        let point = |point| ["beam", "recall", "queries_per_second", "latency_p50_ms"].map(|name| of(point, name));
        points.iter().map(point).collect::<Vec<_>>()
    };
    let names: Vec<&str> =
        report["curves"].as_array().unwrap().iter().map(|curve| curve["name"].as_str().unwrap()).collect();
    assert_eq!(
        names,
        [
            "graph, degree 4, cpu".to_owned() + &names[0]["graph, degree 4, cpu".len()..],
            "ours, graph 600x6 f32 degree=12, card".into(),
            "ours, device data graph 600x6 f32 device to device, card".into(),
            "theirs, graph 600x6 f32 degree=12, card".into(),
            "theirs, hnsw 600x6 f32 links=8, card".into(),
        ]
    );
    assert_eq!(points(0).len(), 4);
    assert_eq!(points(1), [[16.0, 0.875, 40_000.0, 0.5], [32.0, 0.9375, 25_000.0, 0.8]]);
    assert_eq!(points(2), [[16.0, 0.875, 80_000.0, 0.25]]);
    assert_eq!(points(3), [[16.0, 0.75, 10_000.0, 2.0]]);
    assert_eq!(points(4), [[48.0, 0.8125, 5_000.0, 4.0]]);
    let text = printed(&files, chart);
    assert!(text.lines().nth(2).unwrap().trim_start().starts_with("k    beam   batch"), "{text}");
    let all = files.json("chart @record.csv --out @all");
    assert_eq!(all["curves"].as_array().unwrap().len(), 5);

    let header = RECORD.lines().next().unwrap();
    let others =
        RECORD.lines().filter(|line| !line.contains("beam=") && !line.contains("ef=")).collect::<Vec<_>>().join("\n");
    for (name, text, expected) in [
        ("others.csv", others.as_str(), "no row with a recall and a case such as 'graph "),
        ("empty.csv", header, "no row with a recall"),
        ("new.csv", csv.as_str(), "not a record of the benchmarks"),
    ] {
        std::fs::write(files.path(name), text).unwrap();
        let message = files.refused(1, &format!("chart @new.json @{name} --out @none"));
        assert!(message.contains(name) && message.contains(expected), "{message}");
    }
}
