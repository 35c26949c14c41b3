//! `add`, `remove` and `merge`: changes of index files by the program `warpann`, run as a user runs it.

mod common;

use std::process::{Command, Stdio};

use common::{Folder, failure, piped};
use warpann::io;

/// Number of vectors of the base, their dimension, and the number of lists of every index.
const ROWS: usize = 500;
const DIM: usize = 6;
const LISTS: &str = "7";

/// Component `j` of vector `i`: an integer, so that bytes hold it too.
fn component(i: usize, j: usize) -> u8 {
    ((i * 37 + j * 101 + i * i % 13) % 200) as u8
}

/// A folder with vectors in several files.
fn files() -> Folder {
    let files = Folder::new();
    let bytes: Vec<u8> = (0..ROWS).flat_map(|i| (0..DIM).map(move |j| component(i, j))).collect();
    let floats: Vec<f32> = bytes.iter().map(|&x| f32::from(x)).collect();
    io::write_vectors(files.path("base.fbin"), &floats, DIM).unwrap();
    io::write_vectors(files.path("head.fbin"), &floats[..300 * DIM], DIM).unwrap();
    io::write_vectors(files.path("tail.fvecs"), &floats[300 * DIM..], DIM).unwrap();
    io::write_vectors(files.path("tail.u8bin"), &bytes[300 * DIM..], DIM).unwrap();
    files
}

/// Trains with the whole base, so that indexes of its parts have the same training.
fn build(files: &Folder, base: &str, out: &str, further: &str) {
    files.run(&format!(
        "build --device cpu --lists {LISTS} --iterations 3 --train @base.fbin --base @{base} --out @{out} {further}"
    ));
}

const KINDS: [&str; 5] = [
    "--kind ivf-flat",
    "--kind ivf-f16 --metric cosine",
    "--kind ivf-sq8 --metric ip",
    "--kind ivf-bits --bits 5",
    "--kind ivf-pq --sub-quantizers 3 --bits 4",
];

/// However an index grew, its file has the same bytes as if it had been built at once.
#[test]
fn an_index_that_grew_has_the_bytes_of_one_that_was_built() {
    let files = files();
    for kind in KINDS {
        build(&files, "base.fbin", "whole.ivf", kind);
        let whole = files.bytes("whole.ivf");
        build(&files, "head.fbin", "head.ivf", kind);
        let head = files.bytes("head.ivf");
        for further in ["--base @tail.fvecs", "--base @tail.fvecs --batch 7", "--base @tail.u8bin --map map"] {
            let report = files.json(&format!("add --device cpu --index @head.ivf --out @grown.ivf {further}"));
            assert_eq!((&report["added"], &report["vectors"]), (&200.into(), &ROWS.into()));
            assert!(files.bytes("grown.ivf") == whole, "{kind} {further}");
            assert!(files.bytes("head.ivf") == head, "{kind} {further}: --out leaves the old index");
        }
        // In place, in two steps, the second from standard input.
        files.json("add --device cpu --index @head.ivf --base @tail.fvecs --rows 150");
        let rest: Vec<u8> = files.bytes("tail.u8bin")[8 + 150 * DIM..].to_vec();
        let rest = [50u32.to_le_bytes(), (DIM as u32).to_le_bytes()].concat().into_iter().chain(rest);
        let args = files.args("add --device cpu --index @head.ivf --base - --format u8bin");
        let (code, _, stderr) = piped(&args, &rest.collect::<Vec<u8>>());
        assert_eq!(code, 0, "{stderr}");
        assert!(files.bytes("head.ivf") == whole, "{kind}: in place");
    }
}

#[test]
fn merged_indexes_have_the_bytes_of_one_that_was_built() {
    let files = files();
    io::write_ids(files.path("tail.ibin"), &(300..500).collect::<Vec<u64>>(), 1).unwrap();
    io::write_ids(files.path("middle.npy"), &(300..450).collect::<Vec<u64>>(), 1).unwrap();
    io::write_ids(files.path("end.ivecs"), &(450..500).collect::<Vec<u64>>(), 1).unwrap();
    let tail = io::read_vectors(files.path("tail.fvecs")).unwrap();
    io::write_vectors(files.path("end.fbin"), &tail.as_slice::<f32>().unwrap()[150 * DIM..], DIM).unwrap();
    for kind in KINDS {
        build(&files, "base.fbin", "whole.ivf", kind);
        build(&files, "head.fbin", "head.ivf", kind);
        build(&files, "tail.fvecs", "tail.ivf", &format!("{kind} --ids @tail.ibin"));
        let report = files.json("merge --index @head.ivf @tail.ivf --out @merged.ivf");
        assert_eq!((&report["merged"], &report["vectors"]), (&2.into(), &ROWS.into()));
        assert!(files.bytes("merged.ivf") == files.bytes("whole.ivf"), "{kind}");
        build(&files, "tail.fvecs", "middle.ivf", &format!("{kind} --ids @middle.npy --rows 150"));
        build(&files, "end.fbin", "end.ivf", &format!("{kind} --ids @end.ivecs"));
        let printed = files.run("merge --index @head.ivf --index @middle.ivf @end.ivf --out @merged.ivf --map map");
        assert!(printed.contains("3 indexes"), "{printed}");
        assert!(files.bytes("merged.ivf") == files.bytes("whole.ivf"), "{kind}: three");
    }
}

/// Searches of all lists find what a loop over the remaining vectors finds.
#[test]
fn removed_vectors_are_not_found() {
    let files = files();
    build(&files, "base.fbin", "x.ivf", "");
    let removed: Vec<u64> = (0..ROWS as u64).filter(|id| id % 3 == 1).rev().collect();
    io::write_ids(files.path("out.npy"), &removed, 1).unwrap();
    // Empty slots, as searches write them, name no vector.
    let slots = [&removed[..], &[warpann::NONE; 2]].concat();
    io::write_ids(files.path("slots.ibin"), &slots, 1).unwrap();
    files.json("remove --index @x.ivf --ids @slots.ibin --out @slots.ivf");
    let report = files.json("remove --index @x.ivf --ids @out.npy --out @less.ivf");
    assert_eq!((&report["removed"], &report["vectors"]), (&removed.len().into(), &(ROWS - removed.len()).into()));
    assert!(files.bytes("slots.ivf") == files.bytes("less.ivf"));
    assert_eq!(report["file_bytes"], files.bytes("less.ivf").len());
    let found = files
        .json(&format!("search --device cpu --index @less.ivf --query @tail.fvecs --probes {LISTS} --k 4 --show 200"));
    let rows = found["neighbours"].as_array().unwrap();
    assert_eq!(rows.len(), 200);
    for (query, row) in rows.iter().enumerate() {
        let distance = |i: usize| -> i64 {
            let between = |j| i64::from(component(300 + query, j)) - i64::from(component(i, j));
            (0..DIM).map(|j| between(j).pow(2)).sum()
        };
        let mut left: Vec<(i64, usize)> = (0..ROWS).filter(|i| i % 3 != 1).map(|i| (distance(i), i)).collect();
        left.sort_unstable();
        let expected: Vec<usize> = left[..4].iter().map(|&(_, i)| i).collect();
        assert_eq!(row["ids"], serde_json::json!(expected), "query {query}");
    }
    // Removed vectors can be added again under their ids; without the ids the numbers go on behind the greatest.
    let again: Vec<f32> =
        removed.iter().flat_map(|&i| (0..DIM).map(move |j| f32::from(component(i as usize, j)))).collect();
    io::write_vectors(files.path("again.npy"), &again, DIM).unwrap();
    files.json("add --device cpu --index @less.ivf --base @again.npy --ids @out.npy --out @all.ivf");
    let search = |index: &str| {
        let line = format!("search --device cpu --index @{index} --query @tail.fvecs --probes {LISTS} --show 200");
        files.json(&line)["neighbours"].take()
    };
    assert_eq!(search("all.ivf"), search("x.ivf"));
    // In place.
    files.json("remove --index @x.ivf --ids @out.npy");
    assert_eq!(search("x.ivf"), search("less.ivf"));
}

#[test]
fn a_change_that_fails_leaves_the_index() {
    let files = files();
    build(&files, "base.fbin", "x.ivf", "");
    build(&files, "tail.u8bin", "other.ivf", "--kind ivf-pq --sub-quantizers 2");
    files.run("build --device cpu --lists 2 --base @tail.u8bin --out @u8.ivf");
    files.run(&format!("build --device cpu --lists {LISTS} --iterations 3 --base @tail.fvecs --out @trained.ivf"));
    io::write_vectors(files.path("flat.npy"), &[1.0f32, 2.0], 2).unwrap();
    let mut nan = vec![1.0f32; 9 * DIM];
    nan[8 * DIM + 2] = f32::NAN;
    io::write_vectors(files.path("nan.npy"), &nan, DIM).unwrap();
    io::write_vectors(files.path("half.npy"), &[0.5f32; DIM], DIM).unwrap();
    io::write_ids(files.path("few.npy"), &[1000, 1001], 1).unwrap();
    io::write_ids(files.path("taken.npy"), &(499..699).collect::<Vec<u64>>(), 1).unwrap();
    io::write_ids(files.path("twice.npy"), &[3, 4, 3], 1).unwrap();
    io::write_ids(files.path("unknown.npy"), &[3, 500], 1).unwrap();
    let index = files.bytes("x.ivf");
    std::fs::write(files.path("cut.ivf"), &index[..index.len() - 1]).unwrap();
    let mut damaged = index.clone();
    let middle = index.len() / 2;
    damaged[middle] ^= 4;
    std::fs::write(files.path("damaged.ivf"), &damaged).unwrap();
    std::fs::write(files.path("cut.fbin"), &files.bytes("base.fbin")[..100]).unwrap();
    std::fs::write(files.path("cut.npy"), &files.bytes("twice.npy")[..140]).unwrap();
    let add = "add --device cpu --index @x.ivf --base";
    for (line, expected) in [
        (format!("{add} @flat.npy"), "wrong dimension: the index has 6, the vectors have 2"),
        (format!("{add} @nan.npy"), "component NaN at row 8, column 2 of the base is not finite"),
        (format!("{add} @nan.npy --batch 3"), "component NaN at row 8, column 2 of the base is not finite"),
        (format!("{add} @tail.fvecs --ids @few.npy"), "2 ids; 200 are needed"),
        (format!("{add} @tail.fvecs --ids @taken.npy"), "499"),
        (format!("{add} @tail.fvecs --ids @taken.npy --batch 150"), "499"),
        (format!("{add} @cut.fbin"), "truncated"),
        (format!("{add} @absent.fbin"), "absent.fbin: No such file"),
        (format!("{add} @tail.fvecs --out @no/y.ivf"), "no/y.ivf: No such file"),
        (format!("{add} @tail.fvecs --out @tail.fvecs"), "the same file"),
        (format!("{add} @x.ivf"), "the same file"),
        (format!("{add} @u8.ivf"), "unknown extension"),
        (format!("{add} -"), "standard input has no extension that names its format; name it by --format"),
        (format!("{add} - --ids - --format npy"), "standard input can be only one of the inputs"),
        ("add --device cpu --index @cut.ivf --base @tail.fvecs".into(), "truncated"),
        ("add --device cpu --index @damaged.ivf --base @tail.fvecs".into(), "checksum"),
        ("add --device cpu --index @base.fbin --base @tail.fvecs".into(), "not an index file"),
        ("add --device cpu --index @u8.ivf --base @half.npy".into(), "component 0.5 at row 0, column 0"),
        ("remove --index @x.ivf --ids @unknown.npy".into(), "id 500 does not exist"),
        ("remove --index @x.ivf --ids @twice.npy".into(), "id 3 is not unique"),
        ("remove --index @x.ivf --ids @cut.npy".into(), "truncated"),
        ("remove --index @x.ivf --ids @tail.fvecs".into(), "unknown extension"),
        ("remove --index @x.ivf --ids @few.npy --out @few.npy".into(), "the same file"),
        ("remove --index @absent.ivf --ids @few.npy".into(), "absent.ivf: No such file"),
        ("merge --index @x.ivf --out @y.ivf".into(), "at least two"),
        ("merge --index @x.ivf @x.ivf --out @y.ivf".into(), "not unique"),
        ("merge --index @x.ivf @other.ivf --out @y.ivf".into(), "other.ivf: the indexes differ in"),
        ("merge --index @x.ivf @u8.ivf --out @y.ivf".into(), "u8.ivf: the indexes differ in element type"),
        ("merge --index @x.ivf @trained.ivf --out @y.ivf".into(), "trained.ivf: the indexes differ in centroids"),
        ("merge --index @x.ivf @damaged.ivf --out @y.ivf".into(), "damaged.ivf: checksum"),
        ("merge --index @x.ivf @absent.ivf --out @y.ivf".into(), "absent.ivf: No such file"),
        ("merge --index @x.ivf @trained.ivf --out @x.ivf".into(), "the same file"),
    ] {
        let message = files.refused(1, &line);
        assert!(message.contains(expected), "{line}: {message}: expected {expected}");
    }
    for line in [
        "add --base a.fbin",
        "add --index - --base a.fbin",
        "add --index x --base a.fbin --out -",
        "add --index x --base a.fbin --rows 0",
        "remove --index x",
        "merge --index a b",
        "merge --out y",
        "merge --index a - --out y",
    ] {
        failure(2, &line.split_whitespace().collect::<Vec<_>>());
    }
}

/// Texts are lists of ids in every command: ranges count as all their ids, in the order of the file.
#[test]
fn ids_come_from_texts() {
    let files = files();
    build(&files, "head.fbin", "x.ivf", "");
    std::fs::write(files.path("out.txt"), "\u{feff}10-19\r\n7\r\n\r\n").unwrap();
    io::write_ids(files.path("out.npy"), &(10..20).chain([7]).collect::<Vec<u64>>(), 1).unwrap();
    files.json("remove --index @x.ivf --ids @out.npy --out @less.ivf");
    assert_eq!(files.json("remove --index @x.ivf --ids @out.txt --out @text.ivf")["removed"], 11);
    assert!(files.bytes("less.ivf") == files.bytes("text.ivf"));
    io::write_ids(files.path("new.ivecs"), &(900..1000).rev().chain(500..600).collect::<Vec<u64>>(), 1).unwrap();
    let rows: Vec<String> = (900..1000).rev().map(|id| id.to_string()).collect();
    std::fs::write(files.path("NEW.TXT"), format!("{}\n500-599", rows.join("\n"))).unwrap();
    for ids in ["new.ivecs", "NEW.TXT"] {
        files.json(&format!("add --device cpu --index @less.ivf --base @tail.fvecs --ids @{ids} --out @{ids}.ivf"));
    }
    assert!(files.bytes("new.ivecs.ivf") == files.bytes("NEW.TXT.ivf"));
    for (text, expected) in [
        ("3\n4-x", "line 2 is neither an id nor a range"),
        ("3\n3", "id 3 is not unique"),
        ("299-300", "id 300 does not exist"),
        ("0-18446744073709551615", "18446744073709551615 rows"),
    ] {
        std::fs::write(files.path("bad.txt"), text).unwrap();
        let message = files.refused(1, "remove --index @x.ivf --ids @bad.txt");
        assert!(message.contains(expected), "{text}: {message}");
    }
}

/// Starts all commands and waits for them; each must succeed.
fn at_once(files: &Folder, lines: &[String]) {
    let start = |line: &String| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_warpann"));
        command.args(files.args(line)).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("the program starts")
    };
    let running: Vec<_> = lines.iter().map(start).collect();
    for (line, child) in lines.iter().zip(running) {
        let ended = child.wait_with_output().expect("the program ends");
        assert!(ended.status.success(), "{line}: {}", String::from_utf8_lossy(&ended.stderr));
    }
}

/// No change is lost, of whatever kind the changes and the index are, and nothing else is left in the folder.
#[test]
fn runs_that_change_one_index_wait_for_each_other() {
    let files = files();
    build(&files, "head.fbin", "x.ivf", "");
    files.run("build --device cpu --kind graph --base @head.fbin --out @x.graph");
    let parts: Vec<f32> = (0..60 * DIM).map(|i| 1000.0 + i as f32).collect();
    io::write_vectors(files.path("parts.fbin"), &parts, DIM).unwrap();
    for part in 0..6u64 {
        let rows = &parts[part as usize * 10 * DIM..][..10 * DIM];
        io::write_vectors(files.path(&format!("part{part}.fbin")), rows, DIM).unwrap();
        let ids: Vec<u64> = (part * 20..part * 20 + 10).collect();
        io::write_ids(files.path(&format!("ids{part}.ibin")), &ids, 1).unwrap();
    }
    let before = files.names();
    for index in ["x.ivf", "x.graph"] {
        let add = |part| format!("add --device cpu --index @{index} --base @part{part}.fbin");
        at_once(&files, &(0..6).map(add).collect::<Vec<_>>());
        assert_eq!(files.json(&format!("info --index @{index}"))["vectors"], 360, "{index}");
        // Each added vector is there, under an id of its own.
        let found = files.json(&format!("search --device cpu --index @{index} --query @parts.fbin --k 1 --show 60"));
        let rows = found["neighbours"].as_array().unwrap();
        assert!(rows.iter().all(|row| row["distances"][0] == 0.0), "{index}: {rows:?}");
        let mut ids: Vec<u64> = rows.iter().map(|row| row["ids"][0].as_u64().unwrap()).collect();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), 60, "{index}");
        let changes = (0..6).map(|part| format!("remove --index @{index} --ids @ids{part}.ibin"));
        let tune = format!("tune --device cpu --index @{index} --query @tail.fvecs --k 5 --target-recall 0.9");
        at_once(&files, &changes.chain([tune, add(0)]).collect::<Vec<_>>());
        assert_eq!(files.json(&format!("info --index @{index}"))["vectors"], 310, "{index}");
    }
    assert_eq!(files.names(), before);
}

/// An index that only its owner may read stays so.
#[cfg(unix)]
#[test]
fn a_changed_index_keeps_its_permissions() {
    use std::os::unix::fs::PermissionsExt;

    let files = files();
    build(&files, "head.fbin", "x.ivf", "");
    io::write_ids(files.path("ids.ibin"), &[3, 5], 1).unwrap();
    let mode = |name: &str| std::fs::metadata(files.path(name)).unwrap().permissions().mode() & 0o777;
    for (bits, line) in [
        (0o600, "add --device cpu --index @x.ivf --base @tail.fvecs"),
        (0o640, "remove --index @x.ivf --ids @ids.ibin"),
        (0o444, "tune --device cpu --index @x.ivf --query @tail.fvecs --target-recall 0.5"),
    ] {
        std::fs::set_permissions(files.path("x.ivf"), std::fs::Permissions::from_mode(bits)).unwrap();
        files.run(line);
        assert_eq!(mode("x.ivf"), bits, "{line}");
    }
}
