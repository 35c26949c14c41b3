//! Round trips, and every reader on damaged files.

use std::path::PathBuf;

use half::{bf16, f16};
use proptest::prelude::*;
use test_random::Random;

use super::*;
use crate::NONE;
#[cfg(feature = "mesh")]
use crate::mesh::read_any_mesh_bytes;

/// A folder that lasts as long as the test.
fn folder() -> tempfile::TempDir {
    tempfile::tempdir().expect("a temporary folder")
}

fn unknown_extension<T>(result: Result<T>) -> bool {
    matches!(result, Err(Error::BadFile { defect: FileDefect::UnknownExtension { .. }, .. }))
}

/// The bytes that one of the writers makes.
fn written(extension: &str, write: impl Fn(&Path) -> Result<()>) -> Vec<u8> {
    let folder = folder();
    let path = folder.path().join(format!("file.{extension}"));
    write(&path).expect("small files can be written");
    std::fs::read(path).expect("the file is there")
}

/// A small valid file of every format and element type, with its format.
fn samples() -> Vec<(Format, Vec<u8>)> {
    let floats = [0.5f32, -1.0, f32::MAX, 3.25, 1e-40, f32::NEG_INFINITY];
    let halves = floats.map(f16::from_f32);
    let bytes = [0u8, 1, 127, 128, 254, 255];
    let signed = bytes.map(|b| b as i8);
    let ids = [0u64, 5, NONE, 7, i32::MAX as u64, 2];
    let mut samples = vec![
        (Format::Fvecs, written("fvecs", |p| write_vectors(p, &floats, 3))),
        (Format::Fbin, written("fbin", |p| write_vectors(p, &floats, 2))),
        (Format::Npy, written("npy", |p| write_vectors(p, &floats, 3))),
        (Format::Npy, written("npy", |p| write_vectors(p, &halves, 3))),
        (Format::Bvecs, written("bvecs", |p| write_vectors(p, &bytes, 2))),
        (Format::U8bin, written("u8bin", |p| write_vectors(p, &bytes, 6))),
        (Format::Npy, written("npy", |p| write_vectors(p, &bytes, 1))),
        (Format::I8bin, written("i8bin", |p| write_vectors(p, &signed, 3))),
        (Format::Npy, written("npy", |p| write_vectors(p, &signed, 3))),
        (Format::Ivecs, written("ivecs", |p| write_ids(p, &ids, 3))),
        (Format::Ibin, written("ibin", |p| write_ids(p, &ids, 2))),
        (Format::Npy, written("npy", |p| write_ids(p, &ids, 3))),
    ];
    let mut truth = written("ibin", |p| write_ids(p, &ids, 2));
    truth.extend(floats.iter().flat_map(|x| x.to_le_bytes()));
    samples.push((Format::Bin, truth));
    for descr in ["<i4", "<u4"] {
        let mut file = npy::write_header(descr, 2, 2);
        file.extend([1i32, 2, -1, 3].iter().flat_map(|id| id.to_le_bytes()));
        samples.push((Format::Npy, file));
    }
    let mut wide = npy::write_header("<f8", 3, 2);
    wide.extend([0.5f64, -1e-300, 3e38, f64::NAN, f64::INFINITY, 0.1].iter().flat_map(|x| x.to_le_bytes()));
    samples.push((Format::Npy, wide));
    samples
}

/// The result of a format's reader for some bytes: shape, or the defect.
fn shape(format: Format, bytes: &[u8]) -> Result<(usize, usize), FileDefect> {
    match vectors_from_bytes(format, bytes) {
        Ok(vectors) => Ok((vectors.rows(), vectors.dim())),
        Err(FileDefect::WrongElement { .. }) => {
            ids_from_bytes(format, bytes).map(|truth| (truth.ids.rows, truth.ids.k))
        }
        Err(defect) => Err(defect),
    }
}

fn round_trip<T: Element>(extension: &str, values: &[T], dim: usize) {
    let folder = folder();
    let path = folder.path().join(format!("x.{extension}"));
    write_vectors(&path, values, dim).unwrap();
    let read = read_vectors(&path).unwrap();
    assert_eq!(read.rows(), values.len() / dim);
    assert!(read.dim() == dim || values.is_empty());
    assert_eq!(bytemuck::cast_slice::<T, u8>(read.as_slice().unwrap()), bytemuck::cast_slice::<T, u8>(values));
    let copied = vectors_from_bytes(Format::of(&path).unwrap(), &std::fs::read(&path).unwrap()).unwrap();
    assert_eq!(bytemuck::cast_slice::<T, u8>(copied.as_slice().unwrap()), bytemuck::cast_slice::<T, u8>(values));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn vectors_survive_every_format(rows in 0usize..20, dim in 1usize..40, seed in any::<u64>()) {
        // Any bit pattern, NaN included: readers and writers do not look at values.
        let mut random = Random::new(seed);
        let bytes: Vec<u8> = std::iter::repeat_with(|| random.bits() as u8).take(rows * dim * 4).collect();
        let floats: Vec<f32> = bytes.chunks_exact(4).map(bytemuck::pod_read_unaligned).collect();
        let halves: Vec<f16> = bytes.chunks_exact(2).map(bytemuck::pod_read_unaligned).take(rows * dim).collect();
        let signed: Vec<i8> = bytes.iter().map(|&b| b as i8).take(rows * dim).collect();
        for extension in ["fvecs", "fbin", "npy"] {
            round_trip(extension, &floats, dim);
        }
        round_trip("npy", &halves, dim);
        for extension in ["bvecs", "u8bin", "npy"] {
            round_trip(extension, &bytes[..rows * dim], dim);
        }
        for extension in ["i8bin", "npy"] {
            round_trip(extension, &signed, dim);
        }
    }

    #[test]
    fn ids_survive_every_format(
        rows in 0usize..20,
        k in 1usize..20,
        wide in prop::collection::vec(prop_oneof![Just(NONE), 0..=i64::MAX as u64, 0..1000u64], 400),
    ) {
        let folder = folder();
        let narrow: Vec<u64> = wide.iter().map(|&id| if id == NONE { id } else { id & i32::MAX as u64 }).collect();
        for (extension, ids) in [("npy", &wide), ("ivecs", &narrow), ("ibin", &narrow)] {
            let path = folder.path().join(format!("x.{extension}"));
            write_ids(&path, &ids[..rows * k], k).unwrap();
            let read = read_ids(&path).unwrap();
            prop_assert_eq!(read.rows, rows);
            prop_assert!(read.k == k || rows == 0);
            prop_assert_eq!(&read.ids[..], &ids[..rows * k]);
        }
    }

    #[test]
    fn any_bytes_give_a_value_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        read_any_bytes(&bytes);
        #[cfg(feature = "mesh")]
        read_any_mesh_bytes(&bytes);
    }
}

#[test]
fn samples_are_valid() {
    for (format, bytes) in samples() {
        shape(format, &bytes).unwrap_or_else(|defect| panic!("{format:?}: {defect}"));
        assert!(read_any_bytes(&bytes) > 0);
    }
}

/// A file cut anywhere is truncated, except where a vecs file ends between rows or ground truth loses all its
/// distances.
#[test]
fn every_truncation_is_recognised() {
    for (format, bytes) in samples() {
        let (rows, _) = shape(format, &bytes).unwrap();
        let vecs = matches!(format, Format::Fvecs | Format::Bvecs | Format::Ivecs);
        let row_bytes = bytes.len() / rows;
        for len in 0..bytes.len() {
            let result = shape(format, &bytes[..len]);
            let whole = (vecs && len % row_bytes == 0) || (format == Format::Bin && len == 8 + (bytes.len() - 8) / 2);
            match result {
                Ok(_) => assert!(whole, "{format:?} accepts {len} of {} bytes", bytes.len()),
                Err(FileDefect::Truncated { expected, actual }) => {
                    assert!(!whole && actual == len as u64 && expected > actual, "{format:?} cut to {len} bytes");
                }
                Err(other) => panic!("{format:?} cut to {len} bytes: {other}"),
            }
        }
    }
}

#[test]
fn bytes_past_the_end_are_recognised() {
    for (format, mut bytes) in samples() {
        let whole = bytes.len() as u64;
        bytes.push(0);
        match (format, shape(format, &bytes)) {
            // Rows follow each other without a count: a byte too many is a row cut short. After ids a byte is the start
            // of distances.
            (
                Format::Fvecs | Format::Bvecs | Format::Ivecs | Format::Ibin,
                Err(FileDefect::Truncated { actual, .. }),
            ) => {
                assert_eq!(actual, whole + 1);
            }
            (_, Err(FileDefect::Oversized { expected, actual })) => assert_eq!((expected, actual), (whole, whole + 1)),
            (_, other) => panic!("{format:?} with a byte too many: {other:?}"),
        }
    }
}

/// Every byte of every sample, set to each of a few values and with each bit flipped, read as every format.
/// The first rows of a file, wherever it was cut off behind them; a cut within them is recognised.
#[test]
fn first_rows_of_a_longer_file() {
    let folder = folder();
    for (extension, header, row_bytes) in [("fbin", 8, 12), ("fvecs", 0, 16)] {
        let values: Vec<f32> = (0..30).map(|i| i as f32).collect();
        let all = written(extension, |path| write_vectors(path, &values, 3));
        let path = folder.path().join("cut").with_extension(extension);
        for cut in 0..=all.len() {
            std::fs::write(&path, &all[..cut]).unwrap();
            let read = read_vectors_with(&path, Some(4), Open::ALL[cut % 3]);
            if cut >= header + 4 * row_bytes {
                let vectors = read.unwrap();
                assert_eq!((vectors.rows(), vectors.as_slice::<f32>()), (4, Some(&values[..12])), "{extension}, {cut}");
            } else if extension == "fbin" || cut % row_bytes != 0 {
                let cut_off = matches!(read, Err(Error::BadFile { defect: FileDefect::Truncated { .. }, .. }));
                assert!(cut_off, "{extension}, {cut}: {read:?}");
            } else {
                // Whole rows, and a header that does not promise more.
                assert_eq!(read.unwrap().rows(), cut / row_bytes);
            }
        }
        std::fs::write(&path, &all).unwrap();
        for how in Open::ALL {
            let read = |rows| read_vectors_with(&path, rows, how).unwrap();
            assert_eq!(read(Some(0)).rows(), 0);
            assert_eq!(read(Some(4)).as_slice::<f32>(), Some(&values[..12]));
            assert_eq!(read(Some(usize::MAX)), read(None));
        }
        assert_eq!(read_first_vectors(&path, 4).unwrap().rows(), 4);
    }
    // A header as large as headers can be, before one row of bytes.
    let path = folder.path().join("cut.u8bin");
    std::fs::write(&path, [&[0xff; 4][..], &2u32.to_le_bytes(), &[7, 8]].concat()).unwrap();
    assert_eq!(read_first_vectors(&path, 1).unwrap().as_slice::<u8>(), Some(&[7, 8][..]));
    std::fs::write(&path, [0xff; 10]).unwrap();
    assert!(matches!(read_first_vectors(&path, 1), Err(Error::BadFile { .. })));
    let npy = folder.path().join("all.npy");
    write_vectors(&npy, &[1u8, 2, 3, 4], 2).unwrap();
    assert_eq!(read_first_vectors(&npy, 1).unwrap().as_slice::<u8>(), Some(&[1, 2][..]));
}

/// An npy file of f64 values, row after row.
fn float64(rows: usize, columns: usize, values: &[f64]) -> Vec<u8> {
    let mut bytes = npy::write_header("<f8", rows, columns);
    bytes.extend(values.iter().flat_map(|x| x.to_le_bytes()));
    bytes
}

/// Expected values by hand: 2^-24 is half of the distance between f32 numbers from 1 to 2.
#[test]
fn float64_is_rounded_to_the_nearest_f32() {
    let step = 2f64.powi(-23);
    let values = [
        (1.0 + 0.5 * step, 1.0f32),
        (1.0 + 1.5 * step, 1.0 + 2.0 * f32::EPSILON),
        (1.0 + 0.500001 * step, 1.0 + f32::EPSILON),
        (-0.0, -0.0),
        (2f64.powi(-149), f32::from_bits(1)),
        (2f64.powi(-151), 0.0),
        // Half of the last distance above the greatest f32 would be rounded up; everything below is rounded down.
        (f64::from(f32::MAX) + 2f64.powi(102), f32::MAX),
        (f64::INFINITY, f32::INFINITY),
        (f64::NEG_INFINITY, f32::NEG_INFINITY),
        (f64::NAN, f32::NAN),
    ];
    let bytes = float64(5, 2, &values.map(|(wide, _)| wide));
    let vectors = vectors_from_bytes(Format::Npy, &bytes).unwrap();
    assert_eq!((vectors.rows(), vectors.dim(), vectors.element()), (5, 2, ElementType::F32));
    for (read, (wide, expected)) in vectors.as_slice::<f32>().unwrap().iter().zip(values) {
        assert!(read.to_bits() == expected.to_bits() || (read.is_nan() && expected.is_nan()), "{wide}: {read}");
    }
    // Read, mapped, and only the first rows, in front of a value that does not fit.
    let folder = folder();
    let path = folder.path().join("wide.npy");
    std::fs::write(&path, float64(3, 2, &[1.0, 2.0, 3.0, 4.0, 5.0, 1e39])).unwrap();
    for how in Open::ALL {
        let read = read_vectors_with(&path, Some(2), how).unwrap();
        assert_eq!((read.rows(), read.as_slice::<f32>()), (2, Some(&[1.0, 2.0, 3.0, 4.0][..])));
        let Err(Error::BadFile { defect, .. }) = read_vectors_with(&path, None, how) else { panic!("1e39 is read") };
        assert_eq!(defect, FileDefect::ExceedsF32 { row: 2, column: 1, value: "1e39".into() });
    }
    // The least value that rounds beyond the greatest f32.
    let least = f64::from(f32::MAX) + 2f64.powi(103);
    for value in [least, -least, f64::MAX] {
        let defect = vectors_from_bytes(Format::Npy, &float64(2, 2, &[0.0, 0.0, value, 0.0])).unwrap_err();
        assert!(matches!(defect, FileDefect::ExceedsF32 { row: 1, column: 0, .. }), "{defect}");
    }
    assert_eq!(vectors_from_bytes(Format::Npy, &float64(0, 0, &[])).unwrap().rows(), 0);
    for dim in [0, 2] {
        assert_eq!(Vectors::from_f64([1.0; 3].into_iter(), dim), Err(FileDefect::BadDimension(dim as i64)));
    }
}

/// A stream has the bytes of the file, and a reader of it gives what the file gives.
#[test]
fn streams_have_the_bytes_of_files() {
    let floats: Vec<f32> = (0..12).map(|i| i as f32 / 4.0).collect();
    let bytes: Vec<u8> = (0..12).collect();
    let ids = [0u64, 5, NONE, 7, 1, 2];
    for format in [Format::Fvecs, Format::Fbin, Format::Npy] {
        let mut stream = Vec::new();
        write_vectors_to(&mut stream, "-", format, &floats, 3).unwrap();
        assert_eq!(stream, written(format.extension(), |path| write_vectors(path, &floats, 3)));
        for rows in [None, Some(0), Some(2), Some(9)] {
            let read = read_vectors_from(&stream[..], "-", format, rows).unwrap();
            let rows = rows.unwrap_or(4).min(4);
            assert_eq!((read.rows(), read.as_slice::<f32>()), (rows, Some(&floats[..3 * rows])), "{format:?}");
        }
    }
    for format in [Format::Ibin, Format::Ivecs, Format::Npy] {
        let mut stream = Vec::new();
        write_ids_to(&mut stream, "-", format, &ids, 2).unwrap();
        assert_eq!(stream, written(format.extension(), |path| write_ids(path, &ids, 2)));
        assert_eq!(read_ground_truth_from(&stream[..], "-", format).unwrap().ids.ids, ids);
    }
    // Bytes behind the first rows are left to others.
    let mut stream = Vec::new();
    write_vectors_to(&mut stream, "-", Format::U8bin, &bytes, 4).unwrap();
    let mut rest = &stream[..];
    assert_eq!(read_vectors_from(&mut rest, "-", Format::U8bin, Some(2)).unwrap().as_slice(), Some(&bytes[..8]));
    assert_eq!(rest, &bytes[8..]);
}

#[test]
fn a_writer_that_fails_leaves_the_old_file() {
    let folder = folder();
    let path = folder.path().join("text.csv");
    write_file_with(&path, |out| out.write_all(b"old")).unwrap();
    let failed = write_file_with(&path, |out| {
        out.write_all(b"new")?;
        Err(std::io::ErrorKind::Other.into())
    });
    assert!(matches!(failed, Err(Error::Io { path: named, .. }) if named == path));
    assert_eq!(std::fs::read(&path).unwrap(), b"old");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
}

/// Errors of streams have the given name, and a format that does not fit is refused before the first byte.
#[test]
fn streams_name_what_is_wrong() {
    struct Broken;
    impl Read for Broken {
        fn read(&mut self, _: &mut [u8]) -> std::io::Result<usize> {
            Err(std::io::ErrorKind::ConnectionReset.into())
        }
    }
    impl std::io::Write for Broken {
        fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
            Err(std::io::ErrorKind::BrokenPipe.into())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let mut untouched = Vec::new();
    let wrong = |result: Result<()>, expected: &str| {
        let message = result.unwrap_err().to_string();
        assert!(message.starts_with("the stream: ") && message.contains(expected), "{message}");
    };
    let name = "the stream";
    wrong(read_vectors_from(Broken, name, Format::Fbin, None).map(drop), "reset");
    wrong(read_ground_truth_from(Broken, name, Format::Ibin).map(drop), "reset");
    wrong(write_vectors_to(Broken, name, Format::Fbin, &[1.0f32], 1), "pipe");
    wrong(write_ids_to(Broken, name, Format::Ibin, &[1], 1), "pipe");
    wrong(read_vectors_from(&[0u8; 9][..], name, Format::Fbin, None).map(drop), "oversized");
    wrong(read_vectors_from(&[0u8; 8][..], name, Format::Ibin, None).map(drop), "element type ibin");
    wrong(read_ground_truth_from(&[0u8; 8][..], name, Format::Fbin).map(drop), "element type fbin");
    for format in [Format::Ibin, Format::Ivecs, Format::Bin] {
        wrong(write_vectors_to(&mut untouched, name, format, &[1.0f32], 1), "needed: ids");
    }
    for format in [Format::Fbin, Format::Fvecs, Format::Bin] {
        wrong(write_ids_to(&mut untouched, name, format, &[1], 1), "element type ids; needed: ibin, ivecs, npy");
    }
    wrong(write_ids_to(&mut untouched, name, Format::Ivecs, &[1 << 31], 1), "exceeds");
    assert!(untouched.is_empty());
}

#[test]
fn every_byte_flipped_gives_a_value_or_an_error() {
    for (_, mut bytes) in samples() {
        for at in 0..bytes.len() {
            let original = bytes[at];
            for value in (0..8).map(|bit| original ^ (1 << bit)).chain([0, 1, 127, 128, 255, b'9', b')', b'\'']) {
                bytes[at] = value;
                read_any_bytes(&bytes);
                #[cfg(feature = "mesh")]
                read_any_mesh_bytes(&bytes);
            }
            bytes[at] = original;
        }
    }
}

#[test]
fn huge_headers_reserve_nothing() {
    for words in [[u32::MAX, u32::MAX], [u32::MAX, 1], [1, u32::MAX], [1 << 31, 1 << 31]] {
        let bytes = words.map(u32::to_le_bytes).concat();
        for format in [Format::Fbin, Format::U8bin, Format::I8bin, Format::Ibin, Format::Bin] {
            let defect = shape(format, &bytes).unwrap_err();
            assert!(
                matches!(defect, FileDefect::Truncated { .. } | FileDefect::TooLarge { .. }),
                "{format:?}: {defect}"
            );
        }
    }
    let row = i32::MAX.to_le_bytes();
    assert_eq!(shape(Format::Fvecs, &row), Err(FileDefect::Truncated { expected: 4 + 4 * i32::MAX as u64, actual: 4 }));
    let file = npy::write_header("<f4", usize::MAX, usize::MAX);
    assert_eq!(shape(Format::Npy, &file), Err(FileDefect::TooLarge { rows: u64::MAX, dim: u64::MAX }));
}

#[test]
fn vecs_rows_are_checked() {
    assert_eq!(shape(Format::Bvecs, &0i32.to_le_bytes()), Err(FileDefect::BadDimension(0)));
    assert_eq!(shape(Format::Bvecs, &(-3i32).to_le_bytes()), Err(FileDefect::BadDimension(-3)));
    let mut bytes = [1, 0, 0, 0, 9, 2, 0, 0, 0, 9, 9].to_vec();
    assert_eq!(shape(Format::Bvecs, &bytes), Err(FileDefect::UnevenRows { row: 1, expected: 1, actual: 2 }));
    bytes.truncate(5);
    assert_eq!(shape(Format::Bvecs, &bytes), Ok((1, 1)));
    assert_eq!(shape(Format::Bvecs, &[]), Ok((0, 0)));
    let ids = [1i32, -2].map(i32::to_le_bytes).concat();
    assert_eq!(shape(Format::Ivecs, &ids), Err(FileDefect::BadId { row: 0, column: 0, id: -2 }));
}

#[test]
fn rows_without_columns_are_refused() {
    let bytes = [3u32, 0].map(u32::to_le_bytes).concat();
    for format in [Format::Fbin, Format::Ibin] {
        assert_eq!(shape(format, &bytes), Err(FileDefect::BadDimension(0)));
    }
    assert_eq!(shape(Format::Npy, &npy::write_header("<f4", 3, 0)), Err(FileDefect::BadDimension(0)));
    for format in [Format::Fbin, Format::Ibin] {
        assert_eq!(shape(format, &[0u32, 5].map(u32::to_le_bytes).concat()), Ok((0, 5)));
    }
    assert_eq!(shape(Format::Npy, &npy::write_header("<f4", 0, 5)), Ok((0, 5)));
}

/// An npy file with the given version and dictionary, followed by `payload` bytes of zero.
fn npy_file(version: u8, dictionary: &str, payload: usize) -> Vec<u8> {
    let mut file = b"\x93NUMPY".to_vec();
    file.extend([version, 0]);
    match version {
        1 => file.extend((dictionary.len() as u16).to_le_bytes()),
        _ => file.extend((dictionary.len() as u32).to_le_bytes()),
    }
    file.extend(dictionary.as_bytes());
    file.resize(file.len() + payload, 0);
    file
}

#[test]
fn npy_headers() {
    let good = [
        ("{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }          \n", 24, (2, 3)),
        ("{\"shape\":(2L,3L),\"fortran_order\":False,\"descr\":\"<f4\"}", 24, (2, 3)),
        ("{'descr': '|u1', 'fortran_order': False, 'shape': (5,), }\n", 5, (1, 5)),
        ("{'descr': '<f2', 'fortran_order': False, 'shape': (4, 1)}", 8, (4, 1)),
        ("{'descr': '<i8', 'fortran_order': False, 'shape': (2, 2)}", 32, (2, 2)),
    ];
    for (dictionary, payload, expected) in good {
        for version in [1, 2, 3] {
            assert_eq!(shape(Format::Npy, &npy_file(version, dictionary, payload)), Ok(expected), "{dictionary}");
        }
    }
    let bad = [
        "",
        "{}",
        "{'descr': '<f4', 'fortran_order': True, 'shape': (2, 3)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': ()}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1, 2, 3)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1 2)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (-1, 2)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999, 2)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3)",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3)} more",
        "{'descr': '<f4', 'fortran_order': False, 'fortran_order': False, 'shape': (2, 3)}",
        "{'descr': '<f4', 'fortran_order': False}",
        "{'descr': '<f4', 'fortran_order': 0, 'shape': (2, 3)}",
        "{'descr': [('x', '<f4')], 'fortran_order': False, 'shape': (2, 3)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), 'other': 1}",
        "{'descr: '<f4'",
    ];
    for dictionary in bad {
        let defect = shape(Format::Npy, &npy_file(1, dictionary, 24)).unwrap_err();
        assert!(matches!(defect, FileDefect::BadHeader(_)), "{dictionary}: {defect}");
    }
    for descr in [">f4", ">f8", "<f16", "<c8", "|S3", "|O", "<u2"] {
        let dictionary = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': (2, 3)}}");
        let file = npy_file(1, &dictionary, 24);
        for defect in
            [vectors_from_bytes(Format::Npy, &file).unwrap_err(), ids_from_bytes(Format::Npy, &file).unwrap_err()]
        {
            assert!(matches!(defect, FileDefect::WrongElement { ref actual, .. } if actual == descr), "{defect}");
        }
    }
    let version_4 = npy_file(4, "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3)}", 24);
    assert!(matches!(shape(Format::Npy, &version_4), Err(FileDefect::BadHeader(_))));
    let mut not_text = npy_file(1, "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3)}", 24);
    not_text[20] = 0xff;
    assert!(matches!(shape(Format::Npy, &not_text), Err(FileDefect::BadHeader(_))));
    let mut foreign = version_4;
    foreign[0] = b'P';
    assert!(matches!(shape(Format::Npy, &foreign), Err(FileDefect::BadHeader(_))));
}

/// Bytes written by another program: `numpy.save` of `[[1.0, 2.0], [-0.5, 4.0]]` as float32, byte for byte.
#[test]
fn npy_layout_is_numpys() {
    let mut expected = b"\x93NUMPY\x01\x00\x76\x00".to_vec();
    expected.extend(b"{'descr': '<f4', 'fortran_order': False, 'shape': (2, 2), }");
    expected.resize(127, b' ');
    expected.push(b'\n');
    for word in [0x3f80_0000u32, 0x4000_0000, 0xbf00_0000, 0x4080_0000] {
        expected.extend(word.to_le_bytes());
    }
    assert_eq!(written("npy", |p| write_vectors(p, &[1.0f32, 2.0, -0.5, 4.0], 2)), expected);
}

#[test]
fn flat_formats_are_mapped_and_misaligned_ones_copied() {
    let folder = folder();
    let path = folder.path().join("x.npy");
    write_vectors(&path, &[1.0f32, 2.0], 1).unwrap();
    let mapped = |vectors: &Vectors| match vectors.data() {
        VectorData::F32(elements) => elements.is_mapped(),
        other => panic!("{other:?}"),
    };
    let read = read_vectors_with(&path, None, Open::Map).unwrap();
    assert!(mapped(&read));
    // Small files are read.
    for how in [Open::Auto, Open::Read] {
        let copy = read_vectors_with(&path, None, how).unwrap();
        assert!(!mapped(&copy) && copy == read);
    }
    // The mapping outlives the name.
    std::fs::remove_file(&path).unwrap();
    assert_eq!(read.as_slice::<f32>(), Some(&[1.0, 2.0][..]));
    assert_eq!(read.as_slice::<u8>(), None);
    assert_eq!(read.row_f32(1), Some(vec![2.0]));
    assert_eq!(read.row_f32(2), None);
    let mut odd = npy_file(1, "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 1)}", 0);
    odd.extend([1.0f32, 2.0].iter().flat_map(|x| x.to_le_bytes()));
    std::fs::write(&path, odd).unwrap();
    for how in Open::ALL {
        let copied = read_vectors_with(&path, None, how).unwrap();
        assert!(!mapped(&copied));
        assert_eq!(copied, read);
    }
}

#[test]
fn conversion_to_f32_is_exact() {
    let vectors = Vectors::new(vec![0u8, 1, 254, 255], 2).unwrap();
    assert_eq!(vectors.to_f32().unwrap().as_slice(), Some(&[0.0f32, 1.0, 254.0, 255.0][..]));
    let vectors = Vectors::new(vec![-128i8, 127], 1).unwrap();
    assert_eq!(vectors.to_f32().unwrap().as_slice(), Some(&[-128.0f32, 127.0][..]));
    let vectors = Vectors::new(vec![bf16::MAX, bf16::MIN_POSITIVE], 1).unwrap();
    assert_eq!(vectors.to_f32().unwrap().as_slice(), Some(&[bf16::MAX.to_f32(), bf16::MIN_POSITIVE.to_f32()][..]));
    assert!(matches!(Vectors::new(vec![0u8; 3], 2), Err(Error::Ragged { what: "components", len: 3, size: 2 })));
    assert!(matches!(Vectors::new(vec![0u8; 3], 0), Err(Error::Zero { what: "dimension" })));
}

#[test]
fn ground_truth_is_recognised_by_its_size() {
    let (_, truth) = samples().into_iter().find(|(format, _)| *format == Format::Bin).unwrap();
    for format in [Format::Bin, Format::Ibin] {
        let read = ids_from_bytes(format, &truth).unwrap();
        assert_eq!(read.distances.as_deref().map(<[f32]>::len), Some(6));
        assert_eq!(read.ids.row(1), [NONE, 7]);
        assert_eq!(read.distances.unwrap()[3], 3.25);
        let ids_only = ids_from_bytes(format, &truth[..32]).unwrap();
        assert_eq!((ids_only.ids, ids_only.distances), (read.ids, None));
        assert_eq!(ids_from_bytes(format, &truth[..33]), Err(FileDefect::Truncated { expected: 56, actual: 33 }));
    }
}

#[test]
fn range_truth_is_read_and_checked() {
    let words = |words: &[u32]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<_>>();
    let distances = [0.5f32, 1.5, -2.0].map(f32::to_bits);
    let file = [words(&[4, 3, 1, 0, 2, 0]), words(&[7, u32::MAX, 9]), words(&distances)].concat();
    let read = ranges_from_bytes(&file).unwrap();
    assert_eq!((read.queries(), read.row(0)), (4, (&[7][..], &[0.5][..])));
    assert_eq!((read.row(1), read.row(2)), ((&[][..], &[][..]), (&[NONE, 9][..], &[1.5, -2.0][..])));
    let folder = folder();
    let path = folder.path().join("truth.bin");
    std::fs::write(&path, &file).unwrap();
    assert_eq!(read_range_truth(&path).unwrap(), read);
    assert!(unknown_extension(read_range_truth("truth.npy")));
    for cut in 0..file.len() {
        assert!(matches!(ranges_from_bytes(&file[..cut]), Err(FileDefect::Truncated { .. })), "{cut}");
    }
    assert!(matches!(ranges_from_bytes(&[&file[..], &[0]].concat()), Err(FileDefect::Oversized { .. })));
    for (at, count) in [(8, 2), (12, u32::MAX), (16, 1)] {
        let mut bad = file.clone();
        bad[at..at + 4].copy_from_slice(&count.to_le_bytes());
        assert!(matches!(ranges_from_bytes(&bad), Err(FileDefect::BadHeader(_))), "{at}");
    }
    for byte in 0..file.len() {
        let mut bad = file.clone();
        bad[byte] ^= 0x81;
        crate::io::read_any_bytes(&bad);
    }
    assert_eq!(ranges_from_bytes(&words(&[0, 0])).unwrap().queries(), 0);
}

#[test]
fn failed_writes_leave_nothing_behind() {
    let folder = folder();
    let names = || {
        let mut names: Vec<_> =
            std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names
    };
    let path = |name: &str| folder.path().join(name);
    let defect = |result: Result<()>| match result.unwrap_err() {
        Error::BadFile { defect, .. } => defect,
        other => panic!("{other}"),
    };
    let wide = [1u64 << 31];
    let expected = FileDefect::IdTooLarge { id: 1 << 31, limit: i32::MAX as u64 };
    assert_eq!(defect(write_ids(path("x.ivecs"), &wide, 1)), expected);
    // All ones are `NONE`.
    let expected = FileDefect::IdTooLarge { id: u32::MAX.into(), limit: u64::from(u32::MAX) - 1 };
    assert_eq!(defect(write_ids(path("x.ibin"), &[u32::MAX.into()], 1)), expected);
    assert!(matches!(defect(write_ids(path("x.npy"), &[1 << 63], 1)), FileDefect::IdTooLarge { .. }));
    assert!(matches!(write_ids(path("x.npy"), &wide, 0), Err(Error::Zero { what: "k" })));
    assert!(matches!(write_ids(path("x.npy"), &wide, 2), Err(Error::Ragged { what: "values", len: 1, size: 2 })));
    assert!(unknown_extension(write_ids(path("x.fbin"), &wide, 1)));
    assert!(unknown_extension(write_distances(path("x.ibin"), &[1.0], 1)));
    assert!(unknown_extension(write_distances(path("x"), &[1.0], 1)));
    assert!(matches!(defect(write_vectors(path("x.u8bin"), &[1.0f32], 1)), FileDefect::WrongElement { .. }));
    assert!(matches!(defect(write_vectors(path("x.i8bin"), &[1u8], 1)), FileDefect::WrongElement { .. }));
    assert!(matches!(defect(write_vectors(path("x.fvecs"), &[1u8], 1)), FileDefect::WrongElement { .. }));
    assert!(matches!(defect(write_vectors(path("x.npy"), &[bf16::ONE], 1)), FileDefect::WrongElement { .. }));
    assert!(matches!(write_vectors(path("x.npy"), &[1.0f32], 0), Err(Error::Zero { what: "dimension" })));
    assert!(matches!(write_distances(path("no/such/x.npy"), &[1.0], 1), Err(Error::Io { .. })));
    // The target is a folder: the rename fails, and the temporary file goes away.
    std::fs::create_dir(path("dir.npy")).unwrap();
    assert!(matches!(write_distances(path("dir.npy"), &[1.0], 1), Err(Error::Io { .. })));
    assert_eq!(names(), ["dir.npy"]);
    write_distances(path("x.npy"), &[1.0], 1).unwrap();
    assert_eq!(names(), ["dir.npy", "x.npy"]);
}

/// A file that was read may be cut, changed or removed.
#[test]
fn what_was_read_does_not_depend_on_the_file() {
    let folder = folder();
    let values: Vec<f32> = (0..30).map(|i| i as f32).collect();
    for extension in ["fbin", "npy", "fvecs"] {
        let path = folder.path().join("x").with_extension(extension);
        for how in [Open::Auto, Open::Read] {
            write_vectors(&path, &values, 3).unwrap();
            let vectors = read_vectors_with(&path, None, how).unwrap();
            std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(0).unwrap();
            assert_eq!(vectors.as_slice(), Some(&values[..]));
        }
    }
    assert_eq!("map".parse(), Ok(Open::Map));
    assert!("mmap".parse::<Open>().is_err());
    assert!(!Open::Auto.maps(Open::READ_BYTES) && Open::Auto.maps(Open::READ_BYTES + 1));
}

/// A large file's first rows are all that is read of it: the rest is a hole of a terabyte.
#[cfg(target_os = "linux")]
#[test]
fn the_first_rows_of_a_huge_file_are_read_alone() {
    let folder = folder();
    let path = folder.path().join("huge.u8bin");
    let header = [1u32 << 30, 1 << 10].map(u32::to_le_bytes).concat();
    std::fs::write(&path, &header).unwrap();
    std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len((1 << 40) + 8).unwrap();
    for how in Open::ALL {
        let vectors = read_vectors_with(&path, Some(2), how).unwrap();
        assert_eq!(vectors.as_slice::<u8>(), Some(&[0; 2048][..]));
    }
}

/// An ibin holds u32 ids; readers that take them for i32 see the upper half as negative numbers.
#[test]
fn an_ibin_holds_every_id_of_32_bits() {
    let ids = [0, i32::MAX as u64, 1 << 31, (1 << 31) + 1, u64::from(u32::MAX) - 1, NONE];
    let file = written("ibin", |path| write_ids(path, &ids, 3));
    let words = [2u32, 3, 0, 0x7fff_ffff, 0x8000_0000, 0x8000_0001, 0xffff_fffe, 0xffff_ffff];
    assert_eq!(file, words.map(u32::to_le_bytes).concat());
    for format in [Format::Ibin, Format::Bin] {
        assert_eq!(ids_from_bytes(format, &file).unwrap().ids, IdMatrix { rows: 2, k: 3, ids: ids.to_vec() });
    }
}

/// Names of big-ann: the first vectors of a file with a suffix, and ground truth with the extension of vectors or with
/// none.
#[test]
fn files_are_read_by_the_names_of_big_ann() {
    let folder = folder();
    let path = |name: &str| folder.path().join(name);
    for (name, format) in [
        ("base.1B.u8bin.crop_nb_10000000", Some(Format::U8bin)),
        ("x.FBIN.crop_nb_1", Some(Format::Fbin)),
        ("x.fbin.crop_nb_", None),
        ("x.fbin.crop_nb_1a", None),
        ("x.crop_nb_10", None),
        ("x.fbin.10", None),
        ("bigann-10M", None),
    ] {
        assert_eq!(Format::of(Path::new(name)), format, "{name}");
    }
    write_vectors(path("x.u8bin"), &[1u8, 2, 3, 4], 2).unwrap();
    std::fs::rename(path("x.u8bin"), path("base.1B.u8bin.crop_nb_2")).unwrap();
    assert_eq!(read_vectors(path("base.1B.u8bin.crop_nb_2")).unwrap().as_slice(), Some(&[1u8, 2, 3, 4][..]));

    let ids = [2u32, 2, 7, 8, 9, u32::MAX].map(u32::to_le_bytes).concat();
    let both = [ids.clone(), [0.5f32, 1.0, 2.0, f32::INFINITY].map(f32::to_le_bytes).concat()].concat();
    let names = ["gt100.fbin", "bigann-10M", "gt.bin", "gt.fbin.crop_nb_2", "gt.crop_nb_2"];
    for name in names {
        std::fs::write(path(name), &both).unwrap();
        let truth = read_ground_truth(path(name)).unwrap();
        assert_eq!(truth.ids, IdMatrix { rows: 2, k: 2, ids: vec![7, 8, 9, NONE] }, "{name}");
        assert_eq!(truth.distances, Some(vec![0.5, 1.0, 2.0, f32::INFINITY]), "{name}");
        assert_eq!(read_ids(path(name)).unwrap(), truth.ids, "{name}");
    }
    // Ids alone: in an fbin the same bytes are vectors.
    for (name, read) in [("bigann-10M", true), ("gt100.fbin", false)] {
        std::fs::write(path(name), &ids).unwrap();
        assert_eq!(read_ids(path(name)).is_ok(), read, "{name}");
    }
    for name in ["gt100.fbin", "bigann-10M"] {
        for bytes in [&both[..both.len() - 1], &ids[..ids.len() - 1], b"12\n13\n", b""] {
            std::fs::write(path(name), bytes).unwrap();
            let error = read_ids(path(name)).unwrap_err();
            assert!(unknown_extension(Err::<(), _>(error)), "{name}");
        }
    }
    assert!(unknown_extension(read_vectors(path("bigann-10M"))));
    assert!(unknown_extension(read_ids(path("gt.u8bin"))));
    assert!(matches!(read_ids(path("gone")), Err(Error::Io { .. })));
    let ranges = [1u32, 1, 1, 5].map(u32::to_le_bytes).concat().into_iter().chain(0.5f32.to_le_bytes());
    std::fs::write(path("ssnpp-1M"), ranges.collect::<Vec<u8>>()).unwrap();
    assert_eq!(read_range_truth(path("ssnpp-1M")).unwrap().ids, [5]);
}

/// A failed write leaves nothing where a link leads, either.
#[cfg(unix)]
#[test]
fn writers_follow_links() {
    let folder = folder();
    let path = |name: &str| folder.path().join(name);
    let count = |path: &Path| std::fs::read_dir(path).unwrap().count();
    std::fs::create_dir(path("there")).unwrap();
    // A link to a link to a file that is not there yet.
    std::os::unix::fs::symlink("two.npy", path("one.npy")).unwrap();
    std::os::unix::fs::symlink("there/x.npy", path("two.npy")).unwrap();
    for value in [1.0f32, 2.0] {
        write_vectors(path("one.npy"), &[value], 1).unwrap();
        assert_eq!(read_vectors(path("there/x.npy")).unwrap().as_slice(), Some(&[value][..]));
        assert!(path("one.npy").is_symlink() && path("two.npy").is_symlink());
        assert_eq!((count(folder.path()), count(&path("there"))), (3, 1));
    }
    std::os::unix::fs::symlink("b.npy", path("a.npy")).unwrap();
    std::os::unix::fs::symlink("a.npy", path("b.npy")).unwrap();
    assert!(matches!(write_vectors(path("a.npy"), &[1.0f32], 1), Err(Error::Io { .. })));
    std::os::unix::fs::symlink("no/x.npy", path("nowhere.npy")).unwrap();
    assert!(matches!(write_vectors(path("nowhere.npy"), &[1.0f32], 1), Err(Error::Io { .. })));
    assert_eq!((count(folder.path()), count(&path("there"))), (6, 1));
}

/// Files that a killed writer left are removed by the next; files of a writer at work are not touched, nor anything
/// that is no file.
#[test]
fn temporary_files_that_were_left_are_removed() {
    let folder = folder();
    let path = |name: &str| folder.path().join(name);
    let names = || {
        let mut names: Vec<_> =
            std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names
    };
    // The name of the temporary file, from a writer that looks for it.
    let mut temporary = None;
    replace(&path("x.npy"), |_| {
        temporary = names().pop();
        Ok(())
    })
    .unwrap();
    let temporary = path(temporary.unwrap().to_str().unwrap());
    assert!(temporary.to_str().unwrap().ends_with("-0.part"), "{temporary:?}");
    std::fs::write(&temporary, "left").unwrap();
    write_vectors(path("x.npy"), &[1.0f32], 1).unwrap();
    assert_eq!(names(), ["x.npy"]);
    std::fs::write(&temporary, "left").unwrap();
    check_files([] as [&str; 0], [path("x.npy")]).unwrap();
    assert_eq!(names(), ["x.npy"]);

    // A writer within another: both files are written, the later name counts.
    replace(&path("x.npy"), |_| {
        write_vectors(path("x.npy"), &[2.0f32], 1).unwrap();
        assert_eq!(read_vectors(path("x.npy")).unwrap().as_slice(), Some(&[2.0f32][..]));
        assert_eq!(names().len(), 2);
        Ok(())
    })
    .unwrap();
    assert_eq!((names().len(), std::fs::metadata(path("x.npy")).unwrap().len()), (1, 0));
    // A folder under the name.
    std::fs::create_dir(&temporary).unwrap();
    write_vectors(path("x.npy"), &[3.0f32], 1).unwrap();
    assert_eq!((names().len(), read_vectors(path("x.npy")).unwrap().rows()), (2, 1));
    std::fs::remove_dir(&temporary).unwrap();
    // A link under the name leads nowhere near its target.
    #[cfg(unix)]
    {
        write_vectors(path("kept.npy"), &[4.0f32], 1).unwrap();
        std::os::unix::fs::symlink("kept.npy", &temporary).unwrap();
        write_vectors(path("x.npy"), &[5.0f32], 1).unwrap();
        assert_eq!(read_vectors(path("kept.npy")).unwrap().as_slice(), Some(&[4.0f32][..]));
    }
}

/// A file that only some may read stays so, also while its successor is written.
#[cfg(unix)]
#[test]
fn a_replaced_file_keeps_its_access() {
    use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};

    let folder = folder();
    let path = folder.path().join("x.npy");
    let access = |path: &Path| {
        let found = std::fs::metadata(path).unwrap();
        (found.mode(), found.uid(), found.gid())
    };
    write_vectors(&path, &[1.0f32], 1).unwrap();
    let new = access(&path);
    for mode in [0o600, 0o640, 0o444, 0o777] {
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        // Only root can do this; for others the owner is their own.
        let _ = chown(&path, Some(7), Some(9));
        let before = access(&path);
        assert_eq!(before.0 & 0o777, mode);
        replace(&path, |_| {
            let entries = std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path());
            let temporary = entries.into_iter().find(|entry| *entry != path).unwrap();
            assert_eq!(access(&temporary), before);
            Ok(())
        })
        .unwrap();
        assert_eq!(access(&path), before);
    }
    std::fs::remove_file(&path).unwrap();
    write_vectors(&path, &[1.0f32], 1).unwrap();
    assert_eq!(access(&path), new, "a new file has the access of new files");
}

/// Only one of several has the lock, whatever the path is called; nothing is left when all are done, and what was left
/// does not matter.
#[test]
fn a_file_is_locked_by_one_at_a_time() {
    use std::sync::atomic::{AtomicUsize, Ordering};

    let folder = folder();
    let path = folder.path().join("x.ivf");
    let names = || std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path()).collect::<Vec<_>>();
    let lock = lock_file(&path, || panic!("nobody has it")).unwrap();
    let [left] = &names()[..] else { panic!("{:?}", names()) };
    let other = lock_file(folder.path().join("y.ivf"), || panic!("another file")).unwrap();
    drop((lock, other));
    assert_eq!(names(), [] as [PathBuf; 0]);
    // A file that a killed process left.
    std::fs::write(left, "").unwrap();
    let (count, waited) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let first = lock_file(&path, || panic!("nobody has it")).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..20 {
                    let wait = || _ = waited.fetch_add(1, Ordering::Relaxed);
                    let lock = lock_file(&path, wait).unwrap();
                    let before = count.load(Ordering::Relaxed);
                    std::thread::yield_now();
                    count.store(before + 1, Ordering::Relaxed);
                    drop(lock);
                }
            });
        }
        while waited.load(Ordering::Relaxed) < 8 {
            std::thread::yield_now();
        }
        assert_eq!(count.load(Ordering::Relaxed), 0);
        drop(first);
    });
    assert_eq!(count.into_inner(), 160);
    assert_eq!(names(), [] as [PathBuf; 0]);
    assert!(matches!(lock_file(folder.path(), || {}), Err(Error::Io { .. })));
    assert!(matches!(lock_file(path.join("x"), || {}), Err(Error::Io { .. })));
    #[cfg(unix)]
    {
        std::os::unix::fs::symlink("x.ivf", folder.path().join("link.ivf")).unwrap();
        let lock = lock_file(&path, || {}).unwrap();
        let (sender, waits) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            let link = folder.path().join("link.ivf");
            scope.spawn(move || lock_file(link, || sender.send(()).unwrap()).map(drop).unwrap());
            assert!(waits.recv().is_ok(), "the link leads to the locked file");
            drop(lock);
        });
    }
}

#[test]
fn outputs_are_compared_with_all_other_files() {
    let folder = folder();
    let path = |name: &str| folder.path().join(name);
    write_vectors(path("in.npy"), &[1.0f32], 1).unwrap();
    let check = |inputs: &[&str], outputs: &[&str]| {
        check_files(inputs.iter().map(|name| path(name)), outputs.iter().map(|name| path(name)))
    };
    let name_of = |path: PathBuf| path.file_name().unwrap().to_owned();
    let same = |result: Result<()>| match result.unwrap_err() {
        Error::BadFile { path, defect: FileDefect::SameFile { other } } => [path, other].map(name_of),
        other => panic!("{other}"),
    };
    check(&["in.npy", "in.npy", "absent.npy"], &["a.npy", "b.npy"]).unwrap();
    assert_eq!(same(check(&["in.npy"], &["a.npy", "in.npy"])), ["in.npy", "in.npy"]);
    assert_eq!(same(check(&[], &["a.npy", "b.npy", "./a.npy"])), ["a.npy", "a.npy"]);
    assert_eq!(same(check(&["absent.npy"], &["absent.npy"])), ["absent.npy", "absent.npy"]);
    assert!(matches!(check(&[], &["a.npy", "no/b.npy"]), Err(Error::Io { path, .. }) if path.ends_with("no/b.npy")));
    assert!(matches!(check(&[], &["a.npy/"]), Err(Error::Io { .. })));
    assert!(matches!(check_files([""; 0], [""]), Err(Error::Io { .. })));
    assert!(matches!(check_files([""; 0], [".."]), Err(Error::Io { .. })));
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[test]
fn files_that_cannot_be_read() {
    let folder = folder();
    let path = |name: &str| folder.path().join(name);
    assert!(matches!(read_vectors(path("absent.fbin")), Err(Error::Io { .. })));
    assert!(unknown_extension(read_vectors(path("absent.ibin"))));
    assert!(unknown_extension(read_vectors(path("absent"))));
    assert!(unknown_extension(read_vectors(PathBuf::new())));
    assert!(unknown_extension(read_ids(path("absent.fvecs"))));
    std::fs::create_dir(path("dir.fbin")).unwrap();
    assert!(matches!(read_vectors(path("dir.fbin")), Err(Error::Io { .. })));
    std::fs::write(path("empty.FBIN"), []).unwrap();
    let Err(Error::BadFile { defect, path: named }) = read_vectors(path("empty.FBIN")) else { panic!() };
    assert_eq!(defect, FileDefect::Truncated { expected: 8, actual: 0 });
    assert_eq!(named, path("empty.FBIN"));
    std::fs::write(path("empty.fvecs"), []).unwrap();
    assert_eq!(read_vectors(path("empty.fvecs")).unwrap().rows(), 0);
}

/// Changes bytes the way damage and forged headers do.
fn mutate(bytes: &mut Vec<u8>, random: &mut Random, samples: &[(Format, Vec<u8>)]) {
    const WORDS: [u32; 10] = [0, 1, 2, 3, 127, 0xffff, 0x7fff_ffff, 0x8000_0000, 0xffff_fffe, 0xffff_ffff];
    const TOKENS: [&str; 14] = [
        "'",
        "(",
        ")",
        "{",
        "}",
        ",",
        "True",
        "99999999999999999999",
        "'shape'",
        "<f4",
        "<i8",
        "4294967296",
        "L",
        "\u{e9}",
    ];
    let at = random.below(bytes.len());
    match random.below(10) {
        0 => bytes.truncate(at),
        1 => bytes.extend((0..random.below(40)).map(|i| i as u8)),
        2 if !bytes.is_empty() => bytes[at] ^= 1 << random.below(8),
        3 if !bytes.is_empty() => bytes[at] = random.bits() as u8,
        // A header word, or any other aligned word, becomes an extreme or a small change of itself.
        4 | 5 if bytes.len() >= 8 => {
            let at = [0, 4, at / 4 * 4][random.below(3)].min(bytes.len() - 4);
            let word = u32_at(bytes, at);
            let new = [WORDS[random.below(WORDS.len())], word.wrapping_add(1), word.wrapping_sub(1), word << 1];
            bytes[at..at + 4].copy_from_slice(&new[random.below(4)].to_le_bytes());
        }
        6 => {
            let token = TOKENS[random.below(TOKENS.len())];
            let end = (at + random.below(12)).min(bytes.len());
            bytes.splice(at..end, token.bytes());
        }
        7 => {
            let end = (at + random.below(16)).min(bytes.len());
            let part = bytes[at..end].to_vec();
            let to = random.below(bytes.len());
            bytes.splice(to..to, part);
        }
        8 => {
            let end = (at + random.below(16)).min(bytes.len());
            bytes.drain(at..end);
        }
        // The start of one file and the end of another.
        9 => {
            let other = &samples[random.below(samples.len())].1;
            bytes.truncate(at);
            bytes.extend(&other[random.below(other.len())..]);
        }
        _ => {}
    }
    bytes.truncate(4096);
}

/// Runs every reader on mutated samples for the given time and returns how many inputs it read, and how many were
/// accepted by at least one reader.
fn fuzz(seconds: f64, seed: u64) -> (u64, u64) {
    let samples = samples();
    let mut random = Random::new(seed);
    let (mut executions, mut accepted) = (0u64, 0u64);
    // Accepted mutants become seeds of further ones, so that mutations add up.
    let mut pool: Vec<Vec<u8>> = samples.iter().map(|(_, bytes)| bytes.clone()).collect();
    let start = std::time::Instant::now();
    while start.elapsed().as_secs_f64() < seconds {
        for _ in 0..256 {
            let mut bytes = pool[random.below(pool.len())].clone();
            for _ in 0..=random.below(4) {
                mutate(&mut bytes, &mut random, &samples);
            }
            executions += 1;
            #[cfg(feature = "mesh")]
            read_any_mesh_bytes(&bytes);
            if read_any_bytes(&bytes) > 0 {
                accepted += 1;
                if pool.len() < 4096 {
                    pool.push(bytes);
                } else {
                    let at = samples.len() + random.below(pool.len() - samples.len());
                    pool[at] = bytes;
                }
            }
        }
    }
    (executions, accepted)
}

#[test]
fn mutated_files_for_five_seconds() {
    let (executions, accepted) = fuzz(5.0, 1);
    assert!(accepted > 0 && accepted < executions, "{accepted} of {executions} inputs accepted");
}

#[test]
#[ignore = "five minutes: run by hand or by cargo xtask fuzz"]
fn mutated_files_for_minutes() {
    let variable = |name: &str| std::env::var(name).ok().and_then(|value| value.parse::<u64>().ok());
    let seconds = variable("WARPANN_FUZZ_SECONDS").unwrap_or(300);
    let seed = variable("WARPANN_FUZZ_SEED").unwrap_or(2);
    let (executions, accepted) = fuzz(seconds as f64, seed);
    println!("{executions} inputs in {seconds} s, {accepted} accepted by a reader, seed {seed}");
    assert!(executions > 0);
}
