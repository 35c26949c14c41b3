//! Parquet and safetensors files in the commands: files of three other programs (`data/parquet.py`), which say what a
//! component is, and files that this one writes.
#![cfg(feature = "parquet")]

mod common;

use common::Folder;

const ROWS: usize = 50;
const DIM: usize = 4;

/// Four times a component of the files.
fn whole(row: usize, column: usize) -> i64 {
    ((7 * row + 3 * column) % 31) as i64 - 15
}

/// All components of some rows.
fn components(rows: std::ops::Range<usize>) -> Vec<f32> {
    rows.flat_map(|row| (0..DIM).map(move |column| whole(row, column) as f32 / 4.0)).collect()
}

/// A folder with the files of the other programs.
fn folder() -> Folder {
    let files = Folder::new();
    for entry in std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/parquet")).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), files.path(entry.file_name().to_str().unwrap())).unwrap();
    }
    files
}

/// The numbers of an fbin file, without its header.
fn fbin(files: &Folder, name: &str) -> Vec<f32> {
    files.bytes(name)[8..].as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect()
}

/// The ids of an ibin file, without its header.
fn ibin(files: &Folder, name: &str) -> Vec<u32> {
    files.bytes(name)[8..].as_chunks().0.iter().map(|&bytes| u32::from_le_bytes(bytes)).collect()
}

#[test]
fn files_of_three_programs_have_their_vectors() {
    let files = folder();
    for (name, element) in [
        ("pyarrow", "f32"),
        ("half", "f16"),
        ("split", "f32"),
        ("polars", "f32"),
        ("polars-list", "f32"),
        ("duckdb", "f32"),
    ] {
        let report = files.json(&format!("convert --in @{name}.parquet --out @out.fbin"));
        assert_eq!((&report["rows"], &report["columns"]), (&ROWS.into(), &DIM.into()), "{name}");
        assert_eq!(report["from"], element, "{name}");
        assert_eq!(fbin(&files, "out.fbin"), components(0..ROWS), "{name}");
    }
    files.run("convert --in @bytes.parquet --out @out.u8bin");
    let expected =
        |add: i64| -> Vec<u8> { (0..ROWS * DIM).map(|at| (whole(at / DIM, at % DIM) + add) as u8).collect() };
    assert_eq!(files.bytes("out.u8bin")[8..], expected(15));
    files.run("convert --in @signed.parquet --out @out.i8bin --column embedding");
    assert_eq!(files.bytes("out.i8bin")[8..], expected(0));
    // Row groups have 17 rows.
    files.run("convert --in @pyarrow.parquet --out @out.fbin --skip 10 --rows 20");
    assert_eq!(fbin(&files, "out.fbin"), components(10..30));
    files.run("convert --in @neighbors.parquet --out @out.ibin");
    let ids = ibin(&files, "out.ibin");
    assert_eq!((ids.len(), ids[0], ids[3], ids[4]), (40, 100, u32::MAX, 103));
    assert_eq!(files.json("convert --in @no-rows.parquet --out @out.fbin")["rows"], 0);
}

#[test]
fn folders_and_patterns_are_one_base() {
    let files = folder();
    std::fs::create_dir(files.path("parts")).unwrap();
    for part in ["1", "2", "3"] {
        std::fs::copy(files.path("pyarrow.parquet"), files.path(&format!("parts/part-{part}.parquet"))).unwrap();
    }
    std::fs::write(files.path("parts/_metadata"), "of another program").unwrap();
    let three = [components(0..ROWS), components(0..ROWS), components(0..ROWS)].concat();
    for (base, rows, expected) in [
        ("@parts", "", &three[..]),
        ("@parts/part-?.parquet", "", &three),
        ("@parts/part-[2].parquet", "", &[]),
        ("@parts/*-2.parquet", "", &three[..ROWS * DIM]),
        ("@parts", "--rows 70", &three[..70 * DIM]),
    ] {
        let line = format!("convert --in {base} --out @out.fbin {rows}");
        if expected.is_empty() {
            files.failure(1, &line);
            continue;
        }
        files.run(&line);
        assert_eq!(fbin(&files, "out.fbin"), expected, "{base}");
    }
    // Another element type in a later file.
    std::fs::copy(files.path("half.parquet"), files.path("parts/part-4.parquet")).unwrap();
    let message = files.failure(1, "convert --in @parts --out @out.fbin");
    assert!(message.contains("part-4.parquet: column embedding: holds F16, the first file F32"), "{message}");
}

#[test]
fn searches_and_indexes_take_ids_of_a_column() {
    let files = folder();
    let search = "search --base @pyarrow.parquet --ids id --query @duckdb.parquet --k 3 --device cpu";
    let report = files.json(&format!("{search} --out @found.ibin --show 1"));
    assert_eq!(report["neighbours"][0]["ids"][0], 100);
    assert_eq!(ibin(&files, "found.ibin").iter().step_by(3).copied().collect::<Vec<_>>().len(), ROWS);
    // The ids of the ground truth are those of the column.
    files.run("convert --in @polars.parquet --rows 10 --out @ten.fbin");
    let recall = files
        .json("search --base @pyarrow.parquet --ids id --query @ten.fbin --gt @neighbors.parquet --k 3 --device cpu");
    assert_eq!((&recall["recall"]["by_id"], &recall["recall"]["by_distance"]), (&1.0.into(), &serde_json::Value::Null));
    // Without ids a vector has its number.
    let report = files.json("search --base @polars.parquet --query @ten.fbin --k 1 --device cpu --show 10");
    assert_eq!(report["neighbours"][9]["ids"][0], 9);

    files.run("build --base @polars-list.parquet --ids id --lists 4 --device cpu --out @of.ivf");
    let report = files.json("search --index @of.ivf --query @ten.fbin --probes 4 --k 1 --show 10 --device cpu");
    assert_eq!(report["neighbours"][9]["ids"][0], 127);
    files.run("convert --in @pyarrow.parquet --skip 40 --out @more.parquet");
    files.failure(1, "add --index @of.ivf --base @more.parquet --ids id --device cpu");
    files.run("add --index @of.ivf --base @more.parquet --device cpu");
    assert_eq!(files.json("info --index @of.ivf")["vectors"], 60);
    files.run("convert --in @neighbors.parquet --rows 1 --out @first.parquet");
    files.run("remove --index @of.ivf --ids @first.parquet");
    assert_eq!(files.json("info --index @of.ivf")["vectors"], 57);
    for line in [
        "search --base @pyarrow.parquet --ids text --query @ten.fbin",
        "search --base @pyarrow.parquet --ids embedding --query @ten.fbin",
        "search --base @ten.fbin --ids id --query @ten.fbin",
        "build --base @pyarrow.parquet --ids none --lists 4 --out @no.ivf",
    ] {
        files.failure(1, line);
    }
    files.failure(2, "search --index @of.ivf --ids id --query @ten.fbin");
}

#[test]
fn defects_have_their_row() {
    let files = folder();
    for (line, expected) in [
        ("null", "column embedding: row 20 is null"),
        ("null-component", "column embedding: row 20 has null as component 2"),
        ("empty-list", "column embedding: row 20 is an empty list"),
        ("uneven", "row 20 has dimension 5, the first row has 4"),
        ("large", "1e300"),
        ("two", "name one of the columns by --column: embedding, other"),
        (
            "pyarrow.parquet --column nothing --out @x.fbin",
            "there is no column nothing; the columns are id, embedding, text",
        ),
        ("pyarrow.parquet --column text --out @x.fbin", "column text does not hold lists"),
        ("neighbors.parquet --out @x.fbin", "no column holds lists of float"),
    ] {
        let line = match line.contains(' ') {
            true => format!("convert --in @{line}"),
            false => format!("convert --in @{line}.parquet --out @x.fbin"),
        };
        let message = files.failure(1, &line);
        assert!(message.contains(expected), "{line}: {message}");
        assert!(!files.path("x.fbin").exists(), "{line}");
    }
    files.run("convert --in @two.parquet --column other --out @x.fbin");
    // Rows before the defect.
    files.run("convert --in @null.parquet --rows 20 --out @x.fbin");
    assert_eq!(fbin(&files, "x.fbin"), components(0..20));
}

#[test]
fn what_is_written_is_read_again() {
    let files = folder();
    for (name, element, back) in
        [("pyarrow", "f32", "fbin"), ("half", "f16", "npy"), ("bytes", "u8", "u8bin"), ("signed", "i8", "i8bin")]
    {
        files.run(&format!("convert --in @{name}.parquet --out @first.{back}"));
        let report = files.json(&format!("convert --in @{name}.parquet --out @out.parquet"));
        assert_eq!((&report["from"], &report["to"]), (&element.into(), &element.into()));
        files.run(&format!("convert --in @out.parquet --out @second.{back}"));
        assert_eq!(files.bytes(&format!("first.{back}")), files.bytes(&format!("second.{back}")), "{name}");
    }
    files.run("convert --in @neighbors.parquet --out @ids.parquet");
    files.run("convert --in @ids.parquet --out @second.ibin");
    files.run("convert --in @neighbors.parquet --out @first.ibin");
    assert_eq!(files.bytes("first.ibin"), files.bytes("second.ibin"));
    // Results: the same rows as in csv.
    let search = "search --base @pyarrow.parquet --ids id --query @polars.parquet --k 3 --device cpu";
    files.run(&format!("{search} --out @found.parquet"));
    files.run(&format!("{search} --out @found.ibin"));
    files.run("convert --in @found.parquet --column id --out @ids.ibin");
    assert_eq!(ibin(&files, "ids.ibin"), ibin(&files, "found.ibin"));
    files.run("build --base @pyarrow.parquet --ids id --lists 4 --device cpu --out @of.ivf");
    let range = "search --index @of.ivf --query @polars.parquet --probes 4 --radius 40 --device cpu";
    files.run(&format!("{range} --out @within.parquet"));
    files.run(&format!("{range} --out @within.csv"));
    files.run("convert --in @within.parquet --column id --out @ids.ibin");
    let table = String::from_utf8(files.bytes("within.csv")).unwrap();
    let expected: Vec<u32> =
        table.lines().skip(1).map(|line| line.split(',').nth(2).unwrap().parse().unwrap()).collect();
    assert!(expected.len() > ROWS && ibin(&files, "ids.ibin") == expected);
}

/// A safetensors file of tensors: name, type, shape, bytes.
fn safetensors(tensors: &[(&str, &str, [usize; 2], Vec<u8>)]) -> Vec<u8> {
    let (mut header, mut values) = (vec![r#""__metadata__":{"format":"pt"}"#.to_owned()], Vec::new());
    for (name, dtype, shape, bytes) in tensors {
        let first = values.len();
        values.extend(bytes);
        let end = values.len();
        header.push(format!(r#""{name}":{{"dtype":"{dtype}","shape":{shape:?},"data_offsets":[{first},{end}]}}"#));
    }
    let header = format!("{{{}}}", header.join(","));
    [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &values].concat()
}

#[test]
fn tensors_of_safetensors_are_read() {
    let files = Folder::new();
    let (rows, values) = (3, components(0..3));
    let bytes = |size: usize, value: fn(f32) -> Vec<u8>| -> Vec<u8> {
        let bytes: Vec<u8> = values.iter().flat_map(|&x| value(x)).collect();
        assert_eq!(bytes.len(), size * values.len());
        bytes
    };
    let single = bytes(4, |x| x.to_le_bytes().to_vec());
    let tensors = [
        ("single", "F32", [rows, DIM], single.clone()),
        ("double", "F64", [rows, DIM], bytes(8, |x| f64::from(x).to_le_bytes().to_vec())),
        ("half", "F16", [rows, DIM], bytes(2, |x| half::f16::from_f32(x).to_le_bytes().to_vec())),
        ("brain", "BF16", [rows, DIM], bytes(2, |x| half::bf16::from_f32(x).to_le_bytes().to_vec())),
        ("ids", "I64", [rows, 1], [5i64, -1, 7].iter().flat_map(|id| id.to_le_bytes()).collect()),
        ("other", "BOOL", [1, 2], vec![0, 1]),
    ];
    std::fs::write(files.path("all.safetensors"), safetensors(&tensors)).unwrap();
    for name in ["single", "double", "half", "brain"] {
        files.run(&format!("convert --in @all.safetensors --column {name} --out @out.fbin"));
        assert_eq!(fbin(&files, "out.fbin"), values, "{name}");
    }
    files.run("convert --in @all.safetensors --column single --out @out.fbin --rows 2");
    assert_eq!(fbin(&files, "out.fbin"), values[..2 * DIM]);
    files.run("convert --in @all.safetensors --column ids --out @out.ibin");
    assert_eq!(ibin(&files, "out.ibin"), [5, u32::MAX, 7]);
    let only = safetensors(&tensors[..1]);
    std::fs::write(files.path("one.safetensors"), &only).unwrap();
    files.run("search --base @one.safetensors --query @one.safetensors --k 1 --device cpu");
    for (line, expected) in [
        (
            "@all.safetensors",
            "name one of the tensors with two axes by --column: brain, double, half, ids, other, single",
        ),
        ("@all.safetensors --column none", "there is no tensor none"),
        ("@all.safetensors --column other", "element type BOOL"),
    ] {
        let message = files.failure(1, &format!("convert --in {line} --out @x.fbin"));
        assert!(message.contains(expected), "{message}");
    }
    // Every beginning of a file, and headers that promise more than there is.
    for length in 0..only.len() {
        std::fs::write(files.path("cut.safetensors"), &only[..length]).unwrap();
        files.failure(1, "convert --in @cut.safetensors --out @x.fbin");
    }
    let wrong = |from: &str, to: &str| {
        let text: Vec<u8> = only.clone();
        let at = text.windows(from.len()).position(|part| part == from.as_bytes()).unwrap();
        [&text[..at], to.as_bytes(), &text[at + from.len()..]].concat()
    };
    for (from, to) in
        [("[3, 4]", "[4, 3]"), ("[3, 4]", "[9, 4]"), ("[0,48]", "[8,56]"), ("[0,48]", "[9,48]"), ("[3, 4]", "[3, 0]")]
    {
        std::fs::write(files.path("wrong.safetensors"), wrong(from, to)).unwrap();
        let (code, _, stderr) = files.warpann("convert --in @wrong.safetensors --out @x.fbin");
        // Another shape of as many values is a file as well.
        assert_eq!(code, i32::from(to != "[4, 3]"), "{to}: {stderr}");
    }
}
