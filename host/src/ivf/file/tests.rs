//! Tests of the container with valid and damaged bytes. `round_trip.rs` saves, damages and loads whole indexes.

use super::format::{self, HEADER, Section, Shape};
use super::fuzz::mend_index_bytes as mend;
use super::{Content, IndexFile, shape_of};
use crate::error::FileDefect;
use crate::index::IndexKind;
use crate::io::FileBytes;
use crate::ivf::encoding::Clamped;
use crate::ivf::{Encoding, IvfIndex};
use crate::{Device, ElementType, Metric, NONE};

/// Owned contents of a file, with invented values.
struct Sample {
    shape: Shape,
    centroids: Vec<f32>,
    codebooks: Vec<f32>,
    rotation: Vec<f32>,
    ids: Vec<u64>,
    codes: Vec<u8>,
    /// Number of vectors of each list.
    lengths: Vec<usize>,
}

impl Sample {
    fn new(element: ElementType, encoding: Encoding, dim: usize, lengths: &[usize]) -> Self {
        let vectors: usize = lengths.iter().sum();
        let shape = Shape {
            kind: Some(IndexKind::Ivf),
            element,
            metric: Metric::L2,
            encoding,
            dim: dim as u64,
            lists: lengths.len() as u64,
            vectors: vectors as u64,
            probes: 3,
            form: 0,
            clamped: Clamped::default(),
            waits_for: 0,
            spread: 0.0,
        };
        let floats = |count: usize| (0..count).map(|i| i as f32 * 0.25 - 3.0).collect::<Vec<_>>();
        let (codebooks, rotation, unused) = match encoding {
            Encoding::Flat | Encoding::F16 => (0, 0, 0),
            Encoding::Bits { .. } => (4 * dim, 0, 0),
            Encoding::Scalar8 => (2 * dim, 0, 0),
            Encoding::Pq { sub_quantizers, bits, rotate: rotated } => {
                let used = (sub_quantizers as u32 * bits) % 8;
                (dim << bits, if rotated { dim * dim } else { 0 }, if used == 0 { 0 } else { u8::MAX << used })
            }
        };
        let code_bytes = shape.code_bytes() as usize;
        // Small bytes: none of them is infinite or NaN as f16, bf16 or f32.
        // The steps of codes of bits are zero.
        let steps = if let Encoding::Bits { .. } = encoding { size_of::<f32>() } else { 0 };
        let codes = (0..vectors * code_bytes)
            .map(|i| match i % code_bytes {
                at if at < steps => 0,
                at if at == code_bytes - 1 => (i * 7 % 60) as u8 & !unused,
                _ => (i * 7 % 60) as u8,
            })
            .collect();
        Self {
            shape,
            centroids: floats(dim * lengths.len()),
            codebooks: floats(codebooks),
            rotation: floats(rotation),
            ids: (0..vectors as u64).map(|i| (i * 7919) % 10007).collect(),
            codes,
            lengths: lengths.to_vec(),
        }
    }

    fn bytes(&self) -> Vec<u8> {
        let code_bytes = self.shape.code_bytes() as usize;
        let mut start = 0;
        let lists = self.lengths.iter().map(|&length| {
            let vectors = start..start + length;
            start += length;
            (&self.ids[vectors.clone()], vec![&self.codes[vectors.start * code_bytes..vectors.end * code_bytes]])
        });
        let Self { shape, centroids, codebooks, rotation, .. } = self;
        Content { shape: *shape, centroids, codebooks, rotation, lists: lists.collect() }.to_bytes().unwrap()
    }
}

fn samples() -> Vec<Sample> {
    let pq = |sub_quantizers, bits, rotated| Encoding::Pq { sub_quantizers, bits, rotate: rotated };
    let bytes = || Sample::new(ElementType::U8, Encoding::Scalar8, 5, &[1, 2]);
    let mut of_vectors = bytes();
    of_vectors.shape.form = 1;
    vec![
        Sample::new(ElementType::F32, Encoding::Flat, 5, &[3, 0, 9, 1]),
        Sample::new(ElementType::F16, Encoding::Flat, 3, &[2]),
        Sample::new(ElementType::Bf16, Encoding::Flat, 3, &[0, 2]),
        Sample::new(ElementType::U8, Encoding::Flat, 7, &[1, 1, 1]),
        Sample::new(ElementType::I8, Encoding::Flat, 1, &[0, 0]),
        Sample::new(ElementType::F32, pq(3, 5, false), 6, &[4, 3, 0]),
        Sample::new(ElementType::U8, pq(2, 4, true), 4, &[0, 2]),
        Sample::new(ElementType::F32, pq(4, 8, true), 4, &[5]),
        Sample::new(ElementType::F32, Encoding::F16, 3, &[2, 0, 1]),
        bytes(),
        of_vectors,
        Sample::new(ElementType::F32, Encoding::Bits { bits: 3 }, 32, &[2, 0, 1]),
    ]
}

fn read(bytes: &[u8]) -> Result<IndexFile, FileDefect> {
    IndexFile::from_bytes(FileBytes::copied(bytes).expect("memory"))
}

/// Writes the contents of a file that was read.
fn written_again(file: &IndexFile) -> Vec<u8> {
    let code_bytes = file.shape().code_bytes() as usize;
    let (ids, codes) = (file.values::<u64>(Section::Ids), file.values::<u8>(Section::Codes));
    let starts = file.values::<u64>(Section::Starts);
    let lists = starts.windows(2).map(|pair| {
        let (start, end) = (pair[0] as usize, pair[1] as usize);
        (&ids[start..end], vec![&codes[start * code_bytes..end * code_bytes]])
    });
    let content = Content {
        shape: *file.shape(),
        centroids: file.values(Section::Centroids),
        codebooks: file.values(Section::Codebooks),
        rotation: file.values(Section::Rotation),
        lists: lists.collect(),
    };
    content.to_bytes().unwrap()
}

#[test]
fn what_is_written_is_read_and_written_again() {
    for sample in samples() {
        let bytes = sample.bytes();
        let file = read(&bytes).unwrap();
        assert_eq!(*file.shape(), sample.shape);
        assert_eq!(file.values::<f32>(Section::Centroids), sample.centroids);
        assert_eq!(file.values::<f32>(Section::Codebooks), sample.codebooks);
        assert_eq!(file.values::<f32>(Section::Rotation), sample.rotation);
        assert_eq!(file.values::<u64>(Section::Ids), sample.ids);
        assert_eq!(file.values::<u8>(Section::Codes), sample.codes);
        for section in Section::ALL {
            assert_eq!(file.place(section).start % 64, 0);
        }
        assert_eq!(written_again(&file), bytes);
    }
}

#[test]
fn no_byte_changes_unseen() {
    for sample in samples() {
        let bytes = sample.bytes();
        for at in 0..bytes.len() {
            for mask in [1, 0x80, 0xff] {
                let mut damaged = bytes.clone();
                damaged[at] ^= mask;
                assert!(read(&damaged).is_err(), "byte {at}, mask {mask:#x}");
            }
        }
    }
}

#[test]
fn no_length_but_the_right_one() {
    for sample in samples() {
        let bytes = sample.bytes();
        for length in 0..bytes.len() {
            let defect = read(&bytes[..length]).unwrap_err();
            match length {
                0..8 => assert_eq!(defect, FileDefect::BadHeader("not an index file")),
                8..HEADER => assert!(matches!(defect, FileDefect::Truncated { expected: 256, .. }), "{defect}"),
                _ => {
                    let (expected, actual) = (bytes.len() as u64, length as u64);
                    assert_eq!(defect, FileDefect::Truncated { expected, actual });
                }
            }
        }
        for more in [1, 64, 4096] {
            let longer = [&bytes[..], &vec![0; more]].concat();
            assert!(matches!(read(&longer).unwrap_err(), FileDefect::Oversized { .. }));
        }
    }
}

/// Any file that is accepted with mended checksums is a file that could have been saved: writing its contents gives the
/// same bytes.
#[test]
fn damage_behind_right_checksums_is_refused_or_another_index() {
    let (mut refused, mut accepted) = (0, 0);
    for sample in samples() {
        let bytes = sample.bytes();
        let mut look = |mut damaged: Vec<u8>| {
            mend(&mut damaged);
            match read(&damaged) {
                Ok(file) => {
                    accepted += 1;
                    assert_eq!(written_again(&file), damaged);
                }
                Err(_) => refused += 1,
            }
        };
        for at in 0..bytes.len() {
            for change in [|byte: u8| byte ^ 1, |byte: u8| byte ^ 0x80, |_| 0, |_| 0xff] {
                let mut damaged = bytes.clone();
                damaged[at] = change(damaged[at]);
                look(damaged);
            }
        }
        // Changes of whole words of the header, and of whole regions.
        for at in (8..HEADER).step_by(4) {
            for word in [0u32, 1, 2, 9, 255, 1 << 16, 1 << 31, u32::MAX] {
                let mut damaged = bytes.clone();
                damaged[at..at + 4].copy_from_slice(&word.to_le_bytes());
                look(damaged);
            }
        }
        for start in (0..bytes.len()).step_by(32) {
            for fill in [0, 0x7f, 0xff] {
                let mut damaged = bytes.clone();
                damaged[start..(start + 64).min(bytes.len())].fill(fill);
                look(damaged);
            }
            look(bytes[..start].to_vec());
        }
    }
    assert!(
        refused > 1000 && accepted > 1000,
        "{refused} refused, {accepted} accepted: the damage is too great or too small"
    );
}

/// For every check there is a file that only this check refuses.
#[test]
fn what_contradicts_itself_is_refused_by_name() {
    let pq = Encoding::Pq { sub_quantizers: 3, bits: 5, rotate: true };
    let flat = || Sample::new(ElementType::F32, Encoding::Flat, 2, &[2, 3]);
    let coded = || Sample::new(ElementType::F32, pq, 6, &[2, 3]);
    let halves = |element| Sample::new(element, Encoding::Flat, 2, &[2, 3]);
    let inconsistent = FileDefect::Inconsistent;
    let changed = |mut sample: Sample, change: fn(&mut Sample)| {
        change(&mut sample);
        match read(&sample.bytes()) {
            Ok(file) => super::parts::<f32>(&file).unwrap_err(),
            Err(defect) => defect,
        }
    };
    assert_eq!(changed(flat(), |s| s.centroids[3] = f32::NAN), inconsistent("a centroid is not finite"));
    assert_eq!(changed(coded(), |s| s.codebooks[7] = f32::INFINITY), inconsistent("a codeword is not finite"));
    assert_eq!(changed(coded(), |s| s.rotation[35] = -f32::INFINITY), inconsistent("the rotation is not finite"));
    assert_eq!(changed(flat(), |s| s.codes[36..].fill(0xff)), inconsistent("a vector is not finite"));
    for element in [ElementType::F16, ElementType::Bf16] {
        assert_eq!(changed(halves(element), |s| s.codes[..2].fill(0xff)), inconsistent("a vector is not finite"));
    }
    assert_eq!(changed(coded(), |s| s.codes[5] = 0x80), inconsistent("unused bits of a code are set"));
    let sample = |encoding| move || Sample::new(ElementType::F32, encoding, 2, &[2, 3]);
    let (f16, scalar8) = (sample(Encoding::F16), sample(Encoding::Scalar8));
    assert_eq!(changed(f16(), |s| s.codes[18..].fill(0xff)), inconsistent("a vector is not finite"));
    assert_eq!(changed(scalar8(), |s| s.codebooks[3] = f32::NAN), inconsistent("a codeword is not finite"));
    assert_eq!(changed(scalar8(), |s| s.codebooks[3] = -0.5), inconsistent("a step is negative"));
    assert_eq!(changed(flat(), |s| s.ids[4] = s.ids[0]), inconsistent("an id occurs twice"));
    let spread = |s: &mut Sample| s.ids.copy_from_slice(&[u64::MAX - 1, 5, 1 << 40, 1 << 40, 3]);
    assert_eq!(changed(flat(), spread), inconsistent("an id occurs twice"));
    assert_eq!(changed(flat(), |s| s.ids[4] = NONE), inconsistent("an id is the one that means 'no neighbour'"));
    assert_eq!(changed(flat(), |s| s.shape.probes = 0), inconsistent("0 probes"));

    // Values that no saved index has are written over the bytes.
    let patched = |sample: Sample, at: usize, bytes: &[u8]| {
        let mut file = sample.bytes();
        file[at..at + bytes.len()].copy_from_slice(bytes);
        mend(&mut file);
        read(&file).unwrap_err()
    };
    assert_eq!(patched(flat(), 8, &[2]), FileDefect::Version { found: 2, known: 1 });
    assert_eq!(patched(flat(), 12, &[5]), FileDefect::BadHeader("unknown element type"));
    assert_eq!(patched(flat(), 16, &[4]), FileDefect::BadHeader("unknown metric"));
    // Hamming is the metric of whole vectors of bytes, in an inverted file with eight times as many numbers a centroid.
    // Files of versions before did not have it.
    let no_bits = inconsistent("a metric that vectors of this type in this kind of index do not have");
    assert_eq!(patched(flat(), 16, &[3]), no_bits);
    let bytes = |encoding| Sample::new(ElementType::U8, encoding, 4, &[2, 3]);
    assert_eq!(patched(bytes(Encoding::Scalar8), 16, &[3]), no_bits);
    let without_kind = |mut sample: Sample| {
        sample.shape.kind = None;
        sample
    };
    assert_eq!(patched(without_kind(bytes(Encoding::Flat)), 16, &[3]), no_bits);
    let other_place = inconsistent("a section's place contradicts the shape");
    assert_eq!(patched(bytes(Encoding::Flat), 16, &[3]), other_place);
    assert_eq!(patched(flat(), 20, &[4]), FileDefect::BadHeader("unknown encoding"));
    assert_eq!(patched(flat(), 24, &[1]), FileDefect::BadHeader("unknown encoding"));
    assert_eq!(patched(coded(), 32, &[2]), FileDefect::BadHeader("unknown encoding"));
    assert_eq!(patched(flat(), 36, &[1]), FileDefect::BadHeader("reserved bytes are not zero"));
    assert_eq!(patched(flat(), 247, &[1]), FileDefect::BadHeader("reserved bytes are not zero"));
    assert_eq!(patched(f16(), 36, &[101]), FileDefect::BadHeader("reserved bytes are not zero"));
    assert_eq!(patched(scalar8(), 36, &[2]), FileDefect::BadHeader("reserved bytes are not zero"));
    assert_eq!(patched(f16(), 216, &[1]), FileDefect::BadHeader("reserved bytes are not zero"));
    assert_eq!(patched(flat(), 231, &[1]), FileDefect::BadHeader("reserved bytes are not zero"));
    assert_eq!(patched(coded(), 236, &[1]), inconsistent("the number of vectors for training"));
    assert_eq!(patched(coded(), 243, &[0x80]), inconsistent("the distance of training vectors"));
    assert_eq!(patched(coded(), 244, &[1]), FileDefect::BadHeader("reserved bytes are not zero"));
    assert_eq!(patched(coded(), 232, &[3]), FileDefect::BadHeader("unknown kind of index"));
    assert_eq!(patched(coded(), 233, &[1]), FileDefect::BadHeader("unknown kind of index"));
    assert_eq!(patched(f16(), 12, &[3]), inconsistent("f16 codes of vectors that are not f32"));
    assert_eq!(patched(f16(), 24, &[1]), FileDefect::BadHeader("unknown encoding"));
    assert_eq!(patched(scalar8(), 32, &[1]), FileDefect::BadHeader("unknown encoding"));
    assert_eq!(patched(coded(), 24, &[4]), inconsistent("sub-quantizers that do not divide the dimension"));
    assert_eq!(patched(coded(), 24, &[0]), inconsistent("sub-quantizers that do not divide the dimension"));
    assert_eq!(patched(coded(), 28, &[3]), inconsistent("bits of a sub-quantizer"));
    assert_eq!(patched(coded(), 28, &[9]), inconsistent("bits of a sub-quantizer"));
    assert_eq!(patched(flat(), 40, &[0]), FileDefect::BadDimension(0));
    assert_eq!(patched(flat(), 48, &[0]), inconsistent("no lists"));
    assert!(matches!(patched(flat(), 56, &[0xff; 8]), FileDefect::TooLarge { .. }));
    assert!(matches!(patched(flat(), 40, &[0xff; 8]), FileDefect::TooLarge { .. }));
    assert_eq!(patched(flat(), 40, &[3]), inconsistent("a section's place contradicts the shape"));
    assert_eq!(patched(flat(), 72, &[64]), inconsistent("a section's place contradicts the shape"));
    let starts = read(&flat().bytes()).unwrap().place(Section::Starts).start;
    for (list, start) in [(0, 1), (1, 6), (2, 4)] {
        let defect = patched(flat(), starts + 8 * list, &[start]);
        assert_eq!(defect, inconsistent("the lists do not partition the vectors"));
    }
    assert_eq!(patched(flat(), starts - 1, &[1]), inconsistent("bytes between sections are not zero"));
}

#[test]
fn a_checksum_names_its_section() {
    let sample = Sample::new(ElementType::F32, Encoding::Pq { sub_quantizers: 2, bits: 8, rotate: true }, 4, &[2, 3]);
    let bytes = sample.bytes();
    let file = read(&bytes).unwrap();
    for section in Section::ALL {
        let mut damaged = bytes.clone();
        damaged[file.place(section).start] ^= 4;
        assert_eq!(read(&damaged).unwrap_err(), FileDefect::Checksum { section: section.name() });
    }
    let mut damaged = bytes;
    damaged[40] ^= 4;
    assert_eq!(read(&damaged).unwrap_err(), FileDefect::Checksum { section: "header" });
}

/// Sections of several chunks, of which the last is short, and codes that cross the boundaries of chunks.
#[test]
fn large_sections_are_checked_to_the_end() {
    let coding = Encoding::Pq { sub_quantizers: 3, bits: 5, rotate: false };
    let mut sample = Sample::new(ElementType::F32, coding, 3, &[1_400_000, 3]);
    sample.ids = (0..1_400_003).rev().collect();
    let bytes = sample.bytes();
    let file = read(&bytes).unwrap();
    assert_eq!(written_again(&file), bytes);
    let codes = file.place(Section::Codes);
    for at in [codes.start + (1 << 20) + 1, codes.end - 1, file.place(Section::Ids).end - 1] {
        let mut damaged = bytes.clone();
        damaged[at] ^= 0x80;
        assert!(matches!(read(&damaged).unwrap_err(), FileDefect::Checksum { .. }));
        mend(&mut damaged);
        let defect = read(&damaged);
        match at < codes.start {
            true => assert!(defect.is_ok()),
            false => assert_eq!(defect.unwrap_err(), FileDefect::Inconsistent("unused bits of a code are set")),
        }
    }
    let (_, places, sums) = format::decode(&bytes, bytes.len() as u64).unwrap();
    assert_eq!(super::write::checksums(&bytes, &places), sums);
}

#[test]
fn scales_and_numbers_of_clamped_vectors_come_back() {
    let rows: Vec<f32> = (0..400).map(|at| 1e-6 * (at as f32 * 0.7).sin()).collect();
    for encoding in [Encoding::F16, Encoding::Scalar8, Encoding::Pq { sub_quantizers: 2, bits: 4, rotate: false }] {
        let mut index = IvfIndex::<f32>::builder(4, 3).encoding(encoding).device(Device::Cpu).build().unwrap();
        index.train(&rows).unwrap();
        index.add(&rows).unwrap();
        let before = index.statistics();
        let far: Vec<f32> = rows[..40].iter().map(|x| x + 8e-6).collect();
        index.add(&far).unwrap();
        let statistics = index.statistics();
        let counted = (statistics.clamped_vectors, statistics.clamped_components);
        let clamps = encoding != Encoding::F16;
        assert_eq!((before.clamped_vectors, counted), (0, if clamps { (10, 40) } else { (0, 0) }), "{encoding}");
        let bytes = index.to_bytes().unwrap();
        let shape = shape_of(&bytes[..HEADER], bytes.len() as u64).unwrap();
        assert_eq!((shape.clamped.vectors, shape.clamped.components), counted);
        let loaded = IvfIndex::<f32>::from_bytes(&bytes, Device::Cpu, None).unwrap();
        assert_eq!((loaded.statistics(), loaded.code_tables()), (statistics, index.code_tables()));
        assert_eq!(loaded.reconstruct(3).unwrap(), index.reconstruct(3).unwrap());
        assert_eq!(loaded.to_bytes().unwrap(), bytes);
        // Neither belongs to the training.
        index.clear();
        assert_eq!(index.statistics().clamped_vectors, 0);
        assert_eq!(index.kind.training_bytes().unwrap(), loaded.kind.training_bytes().unwrap());
    }
}
