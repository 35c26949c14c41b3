//! `convert`: every pair of formats, by bytes that this file writes itself.

mod common;

use common::{Folder, failure, json, piped, warpann};

fn write(files: &Folder, name: &str, bytes: impl AsRef<[u8]>) {
    std::fs::write(files.path(name), bytes).unwrap();
}

fn arguments(files: &Folder, input: &str, out: &str, further: &str) -> Vec<String> {
    let place = |name: &str| if name == "-" { name.to_owned() } else { files.path(name).display().to_string() };
    let mut args = ["convert", "--in", &place(input), "--out", &place(out)].map(str::to_owned).to_vec();
    args.extend(further.split_whitespace().map(str::to_owned));
    args
}

fn convert(files: &Folder, input: &str, out: &str, further: &str) -> serde_json::Value {
    json(&arguments(files, input, out, further))
}

/// The message of a conversion that must fail and write nothing.
fn refused(files: &Folder, input: &str, out: &str, further: &str) -> String {
    let before = files.contents();
    let message = failure(1, &arguments(files, input, out, further));
    assert!(files.contents() == before, "{input} to {out}: a file was written");
    message
}

/// Bytes of one row each: of 4 components or ids.
const COLUMNS: usize = 4;

/// A file in a format: `head` precedes the rows, `prefix` each row, and `value` encodes a number.
fn encoded(format: &str, numbers: &[i64]) -> Vec<u8> {
    let rows = numbers.len() / COLUMNS;
    let pair = [(rows as u32).to_le_bytes(), (COLUMNS as u32).to_le_bytes()].concat();
    let length = (COLUMNS as u32).to_le_bytes().to_vec();
    let numpy = |descr: &str| {
        let mut text = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({rows}, {COLUMNS}), }}");
        while (10 + text.len() + 1) % 64 != 0 {
            text.push(' ');
        }
        text.push('\n');
        [b"\x93NUMPY\x01\x00", &(text.len() as u16).to_le_bytes()[..], text.as_bytes()].concat()
    };
    let f32s = |x: i64| (x as f32).to_le_bytes().to_vec();
    let i32s = |x: i64| (x as i32).to_le_bytes().to_vec();
    type Value<'a> = &'a dyn Fn(i64) -> Vec<u8>;
    let (head, prefix, value): (Vec<u8>, Vec<u8>, Value) = match format {
        "fvecs" => (vec![], length, &f32s),
        "bvecs" => (vec![], length, &|x| vec![x as u8]),
        "ivecs" => (vec![], length, &i32s),
        "fbin" => (pair, vec![], &f32s),
        "u8bin" | "i8bin" => (pair, vec![], &|x| vec![x as u8]),
        "ibin" => (pair, vec![], &i32s),
        "f4.npy" => (numpy("<f4"), vec![], &f32s),
        "f8.npy" => (numpy("<f8"), vec![], &|x| (x as f64).to_le_bytes().to_vec()),
        "f2.npy" => (numpy("<f2"), vec![], &|x| half::f16::from_f64(x as f64).to_le_bytes().to_vec()),
        "u1.npy" => (numpy("|u1"), vec![], &|x| vec![x as u8]),
        "i1.npy" => (numpy("|i1"), vec![], &|x| vec![x as u8]),
        "i4.npy" => (numpy("<i4"), vec![], &i32s),
        "i8.npy" => (numpy("<i8"), vec![], &|x| x.to_le_bytes().to_vec()),
        _ => panic!("{format}"),
    };
    let rows =
        numbers.chunks(COLUMNS).flat_map(|row| [prefix.clone(), row.iter().flat_map(|&x| value(x)).collect()].concat());
    head.into_iter().chain(rows).collect()
}

const VECTORS: [&str; 10] =
    ["fvecs", "bvecs", "fbin", "u8bin", "i8bin", "f4.npy", "f8.npy", "f2.npy", "u1.npy", "i1.npy"];
const NUMBERS: [i64; 12] = [0, 1, 2, 3, 127, 100, 50, 25, 7, 8, 9, 10];

#[test]
fn every_format_of_vectors_becomes_every_other() {
    let files = Folder::new();
    for from in VECTORS {
        let input = format!("in.{from}");
        write(&files, &input, encoded(from, &NUMBERS));
        for to in ["fvecs", "bvecs", "fbin", "u8bin", "i8bin"] {
            let report = convert(&files, &input, &format!("out.{to}"), "");
            assert_eq!(
                (&report["kind"], &report["rows"], &report["columns"]),
                (&"vectors".into(), &3.into(), &4.into())
            );
            assert!(files.bytes(&format!("out.{to}")) == encoded(to, &NUMBERS), "{from} to {to}");
        }
        for (element, to) in [("f32", "f4.npy"), ("f16", "f2.npy"), ("u8", "u1.npy"), ("i8", "i1.npy")] {
            let report = convert(&files, &input, "out.npy", &format!("--element {element}"));
            assert_eq!(report["to"], element);
            assert!(files.bytes("out.npy") == encoded(to, &NUMBERS), "{from} to {to}");
        }
        // npy keeps the type, except that f64 becomes f32.
        let kept = match from {
            "bvecs" | "u8bin" | "u1.npy" => "u1.npy",
            "i8bin" | "i1.npy" => "i1.npy",
            "f2.npy" => "f2.npy",
            _ => "f4.npy",
        };
        convert(&files, &input, "out.npy", "");
        assert!(files.bytes("out.npy") == encoded(kept, &NUMBERS), "{from} to npy");
    }
}

#[test]
fn every_format_of_ids_becomes_every_other() {
    let files = Folder::new();
    // −1 is an empty slot.
    let ids = [5, 4, 3, -1, 2_000_000_000, 7, -1, -1];
    let truth = [encoded("ibin", &ids), vec![0; 4 * ids.len()]].concat();
    let inputs = ["ivecs", "ibin", "i4.npy", "i8.npy"].map(|format| (format, encoded(format, &ids)));
    for (from, bytes) in inputs.into_iter().chain([("bin", truth)]) {
        let input = format!("in.{from}");
        write(&files, &input, bytes);
        for (out, to) in [("out.ivecs", "ivecs"), ("out.ibin", "ibin"), ("out.npy", "i8.npy")] {
            let report = convert(&files, &input, out, "");
            assert_eq!((&report["kind"], &report["rows"], &report["columns"]), (&"ids".into(), &2.into(), &4.into()));
            assert!(files.bytes(out) == encoded(to, &ids), "{from} to {to}");
        }
    }
    write(&files, "wide.i8.npy", encoded("i8.npy", &[1, 2, 1 << 31, 1 << 33]));
    assert!(refused(&files, "wide.i8.npy", "x.ivecs", "").contains("id 2147483648 exceeds 2147483647"));
    assert!(refused(&files, "wide.i8.npy", "x.ibin", "").contains("id 8589934592 exceeds 4294967294"));
    assert!(refused(&files, "in.ivecs", "x.fvecs", "").contains("holds ids, which fvecs files cannot hold"));
    assert!(refused(&files, "in.ivecs", "x.ibin", "--element f32").contains("--element and --round are for vectors"));
    write(&files, "in.fvecs", encoded("fvecs", &NUMBERS));
    assert!(refused(&files, "in.fvecs", "x.ivecs", "").contains("holds vectors, which ivecs files cannot hold"));
}

#[test]
fn rows_are_selected() {
    let files = Folder::new();
    write(&files, "in.fbin", encoded("fbin", &NUMBERS));
    write(&files, "in.ivecs", encoded("ivecs", &NUMBERS));
    for (further, rows) in [
        ("--rows 2", 0..2),
        ("--skip 1", 1..3),
        ("--skip 1 --rows 1", 1..2),
        ("--rows 9", 0..3),
        ("--skip 2 --rows 18446744073709551615", 2..3),
    ] {
        let part = &NUMBERS[rows.start * COLUMNS..rows.end * COLUMNS];
        for (input, out, format) in
            [("in.fbin", "out.fvecs", "fvecs"), ("in.fbin", "out.u8bin", "u8bin"), ("in.ivecs", "out.ibin", "ibin")]
        {
            assert_eq!(convert(&files, input, out, further)["rows"], rows.len());
            assert!(files.bytes(out) == encoded(format, part), "{further}: {out}");
        }
    }
    convert(&files, "in.fbin", "none.fbin", "--skip 3");
    assert_eq!(files.bytes("none.fbin"), encoded("fbin", &[]));
    for input in ["in.fbin", "in.ivecs"] {
        assert!(refused(&files, input, "x.npy", "--skip 4").contains("--skip is 4, and there are 3 rows"));
    }
    // The file may end behind the rows.
    write(&files, "cut.fbin", &encoded("fbin", &NUMBERS)[..8 + 16]);
    assert!(refused(&files, "cut.fbin", "x.npy", "").contains("truncated"));
    assert_eq!(convert(&files, "cut.fbin", "out.npy", "--rows 1")["rows"], 1);
}

#[test]
fn rounding_is_asked_for_and_ranges_are_kept() {
    let files = Folder::new();
    let floats = |values: &[f32]| {
        let head = [1u32.to_le_bytes(), (values.len() as u32).to_le_bytes()].concat();
        head.into_iter().chain(values.iter().flat_map(|x| x.to_le_bytes())).collect::<Vec<u8>>()
    };
    write(&files, "half.fbin", floats(&[0.5, 1.5, 2.49, 254.6, -0.2]));
    assert!(
        refused(&files, "half.fbin", "x.u8bin", "").contains("component 0.5 at row 0, column 0 is not a value of u8")
    );
    convert(&files, "half.fbin", "out.u8bin", "--round");
    assert_eq!(files.bytes("out.u8bin")[8..], [0, 2, 2, 255, 0]);
    for (value, to, beyond) in [
        (255.6f32, "u8bin", "u8"),
        (-0.6, "u8bin", "u8"),
        (127.6, "i8bin", "i8"),
        (-128.6, "i8bin", "i8"),
        (f32::NAN, "u8bin", "u8"),
        (f32::INFINITY, "i8bin", "i8"),
    ] {
        write(&files, "far.fbin", floats(&[0.0, 1.0, value]));
        let message = refused(&files, "far.fbin", &format!("x.{to}"), "--round");
        let expected = format!("component {value} at row 0, column 2 is beyond the range of {beyond}");
        assert!(message.contains(&expected), "{message}");
    }
    write(&files, "far.fbin", floats(&[-128.4, 127.4]));
    convert(&files, "far.fbin", "out.i8bin", "--round");
    assert_eq!(files.bytes("out.i8bin")[8..], [0x80, 0x7f]);
    // f16 has 11 significant bits, and 65504 is its greatest number.
    write(&files, "near.fbin", floats(&[2049.0, 2051.0, 65519.0]));
    assert!(refused(&files, "near.fbin", "x.npy", "--element f16").contains("component 2049 at row 0, column 0"));
    convert(&files, "near.fbin", "out.npy", "--element f16 --round");
    let expected = [2048.0f32, 2052.0, 65504.0].map(half::f16::from_f32).map(half::f16::to_le_bytes).concat();
    assert!(files.bytes("out.npy").ends_with(&expected));
    write(&files, "far.fbin", floats(&[65520.0]));
    assert!(refused(&files, "far.fbin", "x.npy", "--element f16 --round").contains("beyond the range of f16"));
    write(&files, "whole.fbin", floats(&[1.0, 2.0]));
    assert!(
        refused(&files, "whole.fbin", "x.fbin", "--element f16").contains("fbin files hold f32, not f16 (--element)")
    );
}

/// f64 becomes the nearest f32, in every command that reads vectors.
#[test]
fn float64_is_read_as_f32() {
    let files = Folder::new();
    let mut bytes = encoded("f8.npy", &[1, 2, 3, 4, 5, 6, 7, 8]);
    let at = bytes.len() - 24;
    bytes[at..at + 8].copy_from_slice(&0.1f64.to_le_bytes());
    write(&files, "wide.npy", &bytes);
    convert(&files, "wide.npy", "out.fbin", "");
    assert_eq!(files.bytes("out.fbin")[8 + 20..8 + 24], 0.1f32.to_le_bytes());
    let wide = files.path("wide.npy").display().to_string();
    let found = json(&["search", "--device", "cpu", "--base", &wide, "--query", &wide, "--k", "1", "--show", "2"]);
    assert_eq!((&found["element"], &found["neighbours"][1]["ids"][0]), (&"f32".into(), &1.into()));
    bytes[at..at + 8].copy_from_slice(&(-4e38f64).to_le_bytes());
    write(&files, "wide.npy", &bytes);
    let expected = "row 1, column 1: -4e38 is beyond the range of f32";
    assert!(refused(&files, "wide.npy", "x.fbin", "").contains(expected));
    assert!(failure(1, &["search", "--device", "cpu", "--base", &wide, "--query", &wide]).contains(expected));
    assert_eq!(convert(&files, "wide.npy", "out.fbin", "--rows 1")["rows"], 1);
}

#[test]
fn standard_input_and_output_hold_what_files_hold() {
    let files = Folder::new();
    let pipe = |further: &str, input: &[u8]| {
        let args = arguments(&files, "-", "-", further);
        let (code, stdout, stderr) = piped(&args, input);
        assert_eq!(code, 0, "{further}: {stderr}");
        // The report is not among the data.
        assert!(stderr.contains("from - to -"), "{stderr}");
        stdout
    };
    for from in VECTORS {
        for to in ["fvecs", "bvecs", "fbin", "u8bin", "i8bin"] {
            let name = from.rsplit('.').next().unwrap();
            let stdout = pipe(&format!("--format {name} --out-format {to}"), &encoded(from, &NUMBERS));
            assert!(stdout == encoded(to, &NUMBERS), "{from} to {to}");
        }
    }
    // npy to npy: the element type decides between vectors and ids.
    for (from, to) in [("f8.npy", "f4.npy"), ("u1.npy", "u1.npy"), ("i4.npy", "i8.npy"), ("i8.npy", "i8.npy")] {
        assert!(pipe("--format npy --out-format npy", &encoded(from, &NUMBERS)) == encoded(to, &NUMBERS), "{from}");
    }
    // A stream that goes on behind the rows.
    let long = [encoded("fbin", &NUMBERS), vec![9; 1000]].concat();
    let two = pipe("--format fbin --out-format bvecs --rows 2", &long);
    assert!(two == encoded("bvecs", &NUMBERS[..8]));
    let args = arguments(&files, "-", "-", "--format fbin --out-format fbin --json");
    let (code, stdout, stderr) = piped(&args, &encoded("fbin", &NUMBERS));
    assert_eq!((code, stdout), (0, encoded("fbin", &NUMBERS)));
    assert_eq!(serde_json::from_str::<serde_json::Value>(&stderr).unwrap()["rows"], 3);
    write(&files, "in.fbin", encoded("fbin", &NUMBERS));
    for (input, out, further, expected) in [
        ("-", "x.npy", "", "standard input has no extension that names its format; name it by --format"),
        ("in.fbin", "-", "", "standard output has no extension that names its format; name it by --out-format"),
        ("in.fbin", "-", "--out-format csv", "--out-format is csv; the formats of this output are fvecs, bvecs"),
        ("in.fbin", "-", "--out-format bin", "--out-format is bin"),
        ("-", "x.npy", "--format fbin", "-: truncated: 8 bytes needed, 0 found"),
        ("-", "x.npy", "--format ibin", "-: truncated: 8 bytes needed, 0 found"),
        ("in.fbin", "x.npy", "--dataset train", "--dataset is for HDF5 files"),
    ] {
        let args = arguments(&files, input, out, further);
        let (code, stdout, stderr) = piped(&args, &[]);
        assert_eq!((code, stdout.len()), (1, 0), "{stderr}");
        assert!(stderr.contains(expected), "{stderr}: expected {expected}");
    }
    assert!(!files.path("x.npy").exists());
    for further in ["--format text", "--out-format hdf5", "--element bf16", "--element f64", "--rows 0", "--skip -1"] {
        failure(2, &arguments(&files, "in.fbin", "x.npy", further));
    }
}

#[test]
fn what_cannot_be_converted_is_refused_by_name() {
    let files = Folder::new();
    write(&files, "in.fbin", encoded("fbin", &NUMBERS));
    write(&files, "in.txt", "1 2 3");
    write(&files, "in.text", "1 2 3");
    write(&files, "cut.npy", &encoded("f4.npy", &NUMBERS)[..100]);
    write(&files, "other.npy", b"NUMPY");
    write(
        &files,
        "c8.npy",
        String::from_utf8_lossy(&encoded("f4.npy", &[])).replace("<f4", "<c8").replace('\u{fffd}', ""),
    );
    for (input, out, expected) in [
        ("in.fbin", "in.fbin", "the same file"),
        ("in.fbin", "no/x.npy", "no/x.npy: No such file"),
        ("in.fbin", "x.txt", "unknown extension; the known ones are fvecs, bvecs, fbin"),
        ("in.fbin", "x.csv", "unknown extension"),
        ("in.fbin", "x.bin", "unknown extension"),
        ("in.text", "x.npy", "unknown extension"),
        ("in.txt", "x.npy", "line 1 is neither an id nor a range"),
        ("absent.fbin", "x.npy", "No such file"),
        ("absent.h5", "x.npy", "No such file"),
        ("cut.npy", "x.npy", "truncated"),
        ("other.npy", "x.npy", "not a NumPy file"),
        ("in.fbin", "x.i8bin/y.npy", "No such file"),
    ] {
        let message = refused(&files, input, out, "");
        assert!(message.contains(expected), "{input} to {out}: {message}");
    }
}

/// Big-ann's ground truth has names of vectors or no extension, and its parts of files have a suffix.
#[test]
fn files_with_the_names_of_big_ann_are_converted() {
    let files = Folder::new();
    let words = |words: &[u32]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
    let ids = words(&[2, 2, 7, 8, 9, u32::MAX]);
    let truth = [ids.clone(), words(&[0, 1, 2, 3])].concat();
    for name in ["gt100.fbin", "bigann-10M", "gt.fbin.crop_nb_2"] {
        write(&files, name, &truth);
        convert(&files, name, "out.ibin", "");
        assert!(files.bytes("out.ibin") == ids, "{name}");
        convert(&files, name, "out.npy", "");
        assert!(files.bytes("out.npy").ends_with(&(-1i64).to_le_bytes()), "{name}");
    }
    write(&files, "base.1B.u8bin.crop_nb_2", [words(&[2, 3]), (1..7).collect()].concat());
    convert(&files, "base.1B.u8bin.crop_nb_2", "out.u8bin", "");
    assert_eq!(files.bytes("out.u8bin")[8..], [1, 2, 3, 4, 5, 6]);
    write(&files, "ids.TXT", "\u{feff}5\n7-8\n");
    convert(&files, "ids.TXT", "out.ibin", "");
    assert!(files.bytes("out.ibin") == words(&[3, 1, 5, 7, 8]));
    // Without distances the fbin is one of vectors.
    write(&files, "gt100.fbin", &ids);
    write(&files, "bigann-10M", &truth[..truth.len() - 1]);
    // An array of neither vectors nor ids may have been meant as either.
    let array = |descr: &str| {
        let text = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': (0, 4), }}\n");
        [b"\x93NUMPY\x01\0".to_vec(), (text.len() as u16).to_le_bytes().to_vec(), text.into_bytes()].concat()
    };
    write(&files, "big.npy", array(">f4"));
    for (input, out, expected) in [
        ("gt100.fbin", "x.ibin", "fbin or none only for big-ann ground truth"),
        ("bigann-10M", "x.ibin", "fbin or none only for big-ann ground truth"),
        ("bigann-10M", "x.npy", "fbin or none only for big-ann ground truth"),
        ("big.npy", "x.npy", "element type >f4; needed: <f4, <f2, <f8, |u1 or |i1 for vectors; <i4"),
        ("big.npy", "x.fbin", "element type >f4; needed: <f4, <f2, <f8, |u1 or |i1\n"),
        ("big.npy", "x.ibin", "element type >f4; needed: <i4, <u4, <i8 or <u8\n"),
    ] {
        let message = refused(&files, input, out, "");
        assert!(message.contains(expected), "{input} to {out}: {message}");
    }
}

/// The file in the format of ann-benchmarks that cli/tests/data/ann-benchmarks.py wrote with h5py.
const HDF5: &[u8] = include_bytes!("data/ann-benchmarks.hdf5");

#[test]
fn datasets_of_hdf5_files_are_converted() {
    let files = Folder::new();
    write(&files, "in.hdf5", HDF5);
    let quarters = |count: usize, more: f32| -> Vec<u8> {
        (0..count).flat_map(|i| (i as f32 / 4.0 + more).to_le_bytes()).collect()
    };
    let after = |head: [u32; 2], bytes: Vec<u8>| [head.map(u32::to_le_bytes).concat(), bytes].concat();
    for (dataset, bytes) in [
        ("train", after([10, 4], quarters(40, 0.0))),
        ("test", after([3, 4], quarters(12, 0.125))),
        ("packed", after([10, 4], quarters(40, 0.0))),
        ("double", after([10, 4], quarters(40, 0.0))),
        ("big_endian", after([10, 4], quarters(40, 0.0))),
        ("line", after([1, 3], [1.0f32, 2.0, 3.0].map(f32::to_le_bytes).concat())),
        ("distances", after([3, 2], [0.25f32, 3.75, 0.25, 3.75, 0.25, 3.75].map(f32::to_le_bytes).concat())),
    ] {
        convert(&files, "in.hdf5", "out.fbin", &format!("--dataset {dataset}"));
        assert!(files.bytes("out.fbin") == bytes, "{dataset}");
    }
    convert(&files, "in.hdf5", "out.u8bin", "--dataset bytes");
    assert_eq!(files.bytes("out.u8bin")[8..], (0..40).collect::<Vec<u8>>());
    convert(&files, "in.hdf5", "out.i8bin", "--dataset signed");
    assert_eq!(files.bytes("out.i8bin")[8..], (0..40u8).map(|x| x.wrapping_sub(20)).collect::<Vec<u8>>());
    convert(&files, "in.hdf5", "out.ibin", "--dataset neighbors");
    let ids = [0, 1, 1, u32::MAX, 2, 3].map(u32::to_le_bytes).concat();
    assert_eq!(files.bytes("out.ibin"), after([3, 2], ids));
    convert(&files, "in.hdf5", "out.npy", "--dataset wide");
    assert!(files.bytes("out.npy").ends_with(&[5_000_000_000i64.to_le_bytes(), (-1i64).to_le_bytes()].concat()));
    let report = convert(&files, "in.hdf5", "out.fbin", "--dataset /train --skip 9 --rows 5");
    assert_eq!((&report["rows"], &report["from"]), (&1.into(), &"f32".into()));
    write(&files, "cut.h5", &HDF5[..HDF5.len() / 2]);
    write(&files, "text.h5", "text");
    for (input, out, further, expected) in [
        ("in.hdf5", "x.fbin", "", "name one of the datasets by --dataset: big_endian, bytes, cube"),
        ("in.hdf5", "x.fbin", "--dataset none", "dataset not found: none"),
        ("in.hdf5", "x.fbin", "--dataset huge", "row 1, column 1: 1e39 is beyond the range of f32"),
        ("in.hdf5", "x.ibin", "--dataset negative", "row 1, column 1: id -4 is negative"),
        ("in.hdf5", "x.fbin", "--dataset half", "element type floating point of 16 bits"),
        ("in.hdf5", "x.u8bin", "--dataset flags", "element type enumeration (or bool)"),
        ("in.hdf5", "x.ibin", "--dataset ragged", "element type rows of different lengths"),
        ("in.hdf5", "x.fbin", "--dataset cube", "dataset cube has 3 dimensions, not 1 or 2"),
        ("in.hdf5", "x.ibin", "--dataset train", "holds vectors, which ibin files cannot hold"),
        ("in.hdf5", "x.fbin", "--dataset neighbors", "holds ids, which fbin files cannot hold"),
        ("in.hdf5", "x.u8bin", "--dataset test", "component 0.125 at row 0, column 0 is not a value of u8"),
        ("cut.h5", "x.fbin", "--dataset train", "cut.h5: "),
        ("text.h5", "x.fbin", "--dataset train", "text.h5: "),
    ] {
        let message = refused(&files, input, out, further);
        assert!(message.contains(expected), "{input} {further}: {message}: expected {expected}");
    }
}

/// The file of cli/tests/data/hdf5-chunks.py.
const CHUNKS: &[u8] = include_bytes!("data/hdf5-chunks.hdf5");

/// HDF5 numbers the chunks of most indexes over the maximum extent of a dataset, and the extent can be smaller.
#[test]
fn datasets_of_hdf5_files_have_the_values_of_their_chunks() {
    let files = Folder::new();
    write(&files, "in.h5", CHUNKS);
    type Value = fn(usize, usize) -> usize;
    let (all, seven, zero): (Value, Value, Value) = (|i, j| 16 * i + j, |_, _| 7, |_, _| 0);
    let mut expected: Vec<(&str, [usize; 2], Value)> = [
        "fixed fixed-wide fixed-high fixed-gzip fixed-pages implicit implicit-wide implicit-high single single-gzip",
        "extensible-high extensible-wide extensible-early tree tree-gzip old",
        "shrunk-fixed shrunk-tree shrunk-extensible shrunk-implicit shrunk-single",
        "shuffled-edge unfiltered-edge unfiltered-edge-gzip",
    ]
    .iter()
    .flat_map(|names| names.split(' '))
    .map(|name| (name, [5, 6], all))
    .collect();
    expected.extend([
        ("grown", [5, 6], (|i, j| if i < 3 && j < 5 { 16 * i + j } else { 7 }) as Value),
        ("partial", [5, 6], |i, j| if i == 0 { j } else { 7 }),
        ("nothing", [5, 6], seven),
        ("attribute", [5, 6], zero),
        ("attribute-whole", [5, 6], zero),
        ("line", [1, 10], |_, j| j),
        ("shuffled", [4, 8], all),
    ]);
    for (name, [rows, columns], value) in expected {
        convert(&files, "in.h5", "out.npy", &format!("--dataset {name}"));
        let vectors = warpann::io::read_vectors(files.path("out.npy")).unwrap();
        assert_eq!((vectors.rows(), vectors.dim()), (rows, columns), "{name}");
        let expected: Vec<f32> = (0..rows).flat_map(|i| (0..columns).map(move |j| value(i, j) as f32)).collect();
        assert_eq!(vectors.as_slice::<f32>().unwrap(), expected, "{name}");
    }
    // Datasets that have no values of the usual types in this file.
    for (name, expected) in [
        ("other-bias", "numbers of 32 bits in another layout than usual"),
        ("narrow", "numbers of 32 bits in another layout than usual"),
        ("external", "external"),
    ] {
        let message = refused(&files, "in.h5", "x.npy", &format!("--dataset {name}"));
        assert!(message.contains(expected), "{name}: {message}: expected {expected}");
    }
}

#[test]
fn commands_explain_themselves() {
    for command in ["convert", "add", "remove", "merge"] {
        let (code, stdout, _) = warpann(&[command, "--help"]);
        assert_eq!((code, stdout.contains("--out"), stdout.contains("--json")), (0, true, true), "{stdout}");
    }
}
