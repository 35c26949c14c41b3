//! Tests of inverted files of FAISS: files that it wrote (tests/data/ivf), files that come back, and damage.
//! python/tests/test_faiss.py has the searches by FAISS itself.

use std::path::{Path, PathBuf};

use half::{bf16, f16};
use test_random::Random;

use super::faiss::{FaissInfo, parse};
use super::fuzz::read_any_faiss_bytes;
use crate::error::{Error, FileDefect};
use crate::io::Open;
use crate::ivf::{Encoding, IvfIndex, SearchOptions};
use crate::{Device, Element, Metric, Result};

const OPQ: Encoding = Encoding::Pq { sub_quantizers: 2, bits: 4, rotate: true };
/// The files, and what they have.
const SAMPLES: [(&str, Metric, u64, usize, usize, Encoding); 5] = [
    ("flat_l2", Metric::L2, 40, 3, 2, Encoding::Flat),
    ("flat_ip_ids", Metric::InnerProduct, 7, 8, 1, Encoding::Flat),
    ("opq_l2", Metric::L2, 40, 3, 2, OPQ),
    ("sq8_ip", Metric::InnerProduct, 40, 3, 3, Encoding::Scalar8),
    ("fp16_l2", Metric::L2, 40, 3, 3, Encoding::F16),
];

fn sample(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../tests/data/ivf/{name}.faiss"))
}

/// The vectors of these files.
fn sample_vector(i: usize) -> [f32; 4] {
    [0, 1, 2, 3].map(|j| ((7 * i * i + 13 * j + 5 * i * j) % 97) as f32)
}

fn load(path: &Path, dim: usize, metric: Metric) -> Result<IvfIndex<f32>> {
    IvfIndex::<f32>::builder(dim, 1).metric(metric).device(Device::Cpu).train_at(99).load_faiss(path, Open::Auto)
}

/// The five nearest of vector 3 and of vector 17 in all lists, as FAISS found them.
#[allow(clippy::excessive_precision, reason = "as FAISS printed them")]
const FOUND: [([u64; 10], [f32; 10]); 5] = [
    ([3, 24, 39, 32, 36, 17, 37, 30, 29, 24], [0.0, 384.0, 1380.0, 2406.0, 2558.0, 0.0, 54.0, 3735.0, 4014.0, 4258.0]),
    (
        [2979, 2965, 2958, 2986, 2972, 2965, 2979, 2958, 2972, 2986],
        [15234.0, 12647.0, 9552.0, 8033.0, 7945.0, 21085.0, 19043.0, 16885.0, 13624.0, 12898.0],
    ),
    (
        [3, 24, 39, 32, 36, 17, 37, 30, 29, 5],
        [
            167.8167724609375,
            167.8167724609375,
            1843.693359375,
            2403.693359375,
            2731.89794921875,
            13.198974609375,
            13.198974609375,
            3069.400390625,
            4212.533203125,
            4852.7958984375,
        ],
    ),
    (
        [17, 37, 30, 24, 3, 17, 37, 30, 5, 29],
        [
            19066.392578125,
            18541.2734375,
            16825.3359375,
            15735.4169921875,
            15250.1162109375,
            28589.482421875,
            28073.0,
            23591.423828125,
            21122.939453125,
            20795.544921875,
        ],
    ),
    ([3, 24, 39, 32, 36, 17, 37, 30, 29, 24], [0.0, 384.0, 1380.0, 2406.0, 2558.0, 0.0, 54.0, 3735.0, 4014.0, 4258.0]),
];

#[test]
fn files_of_faiss_are_read() {
    for ((name, metric, vectors, lists, probes, encoding), (ids, distances)) in SAMPLES.into_iter().zip(FOUND) {
        let info = FaissInfo::read(sample(name)).unwrap();
        assert_eq!(info, FaissInfo { dim: 4, metric, vectors, lists, probes, encoding }, "{name}");
        let mut index = load(&sample(name), 4, metric).unwrap();
        let of_index = (index.metric(), index.len() as u64, index.lists(), index.probes(), index.encoding());
        assert_eq!(of_index, (metric, vectors, lists, probes, encoding), "{name}");
        let queries = [sample_vector(3), sample_vector(17)].concat();
        let found = index.search_with(&queries, 5, &SearchOptions::new().probes(lists)).unwrap();
        assert_eq!(found.ids, ids, "{name}");
        // FAISS sums in f32.
        let is_near = |(ours, theirs): (&f32, &f32)| (ours - theirs).abs() <= 3e-5 * theirs.abs();
        assert!(found.distances.iter().zip(&distances).all(is_near), "{name}: {:?}", found.distances);
        // The index can be changed and saved.
        index.add_with_ids(&sample_vector(3), &[77]).unwrap();
        index.remove(&[ids[0]]).unwrap();
        let again = IvfIndex::<f32>::from_bytes(&index.to_bytes().unwrap(), Device::Cpu, None).unwrap();
        assert!(again.contains(77) && !again.contains(ids[0]));
    }
    // The inner product is what a file for cosine has.
    assert_eq!(load(&sample("sq8_ip"), 4, Metric::Cosine).unwrap().metric(), Metric::Cosine);
}

const DIM: usize = 8;

fn vectors<T: Element>(count: usize, seed: u64) -> Vec<T> {
    let mut random = Random::new(seed);
    (0..count * DIM).map(|_| T::from_f32(random.below(200) as f32 - 100.0)).collect()
}

fn trained<T: Element>(metric: Metric, encoding: Encoding) -> IvfIndex<T> {
    let builder = IvfIndex::<T>::builder(DIM, 6).metric(metric).encoding(encoding).device(Device::Cpu);
    let mut index = builder.build().unwrap();
    index.train(&vectors::<T>(300, 1)).unwrap();
    index.set_probes(3).unwrap();
    index
}

/// A file that is read again has the lists, the ids and the decoded vectors of the index.
fn check_round_trip<T: Element>(metric: Metric, encoding: Encoding) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("an.faiss");
    let mut index = trained::<T>(metric, encoding);
    for count in [0, 2, 200] {
        index.clear();
        index.add_with_ids(&vectors::<T>(count, 2), &(0..count as u64).map(|i| i * i + 5).collect::<Vec<_>>()).unwrap();
        if count > 2 {
            index.remove(&[5, 6, 14]).unwrap();
        }
        index.save_faiss(&path).unwrap();
        let again = load(&path, DIM, metric).unwrap();
        let centroids = |index: &[f32]| bytemuck::cast_slice::<f32, u8>(index).to_vec();
        assert_eq!(centroids(again.centroids()), centroids(index.centroids()));
        assert_eq!((again.ids(), again.probes(), again.encoding()), (index.ids(), 3, encoding));
        for id in index.ids() {
            let square: f64 = index.reconstruct(id).unwrap().iter().map(|&x| f64::from(x) * f64::from(x)).sum();
            let norm = if metric == Metric::Cosine { square.sqrt() } else { 1.0 };
            let near = |(&x, &y): (&f32, &f32)| (f64::from(x) / norm - f64::from(y)).abs() <= 1e-4;
            let (x, y) = (index.reconstruct(id).unwrap(), again.reconstruct(id).unwrap());
            assert!(x.iter().zip(&y).all(near), "{metric} {encoding} {id}: {x:?}, {y:?}");
        }
        for probes in [1, 3, 6] {
            let options = SearchOptions::new().probes(probes);
            let queries = vectors::<T>(20, 3);
            let wide: Vec<f32> = queries.iter().map(|x| x.to_f32()).collect();
            let (ours, theirs) =
                (index.search_with(&queries, 7, &options).unwrap(), again.search_with(&wide, 7, &options).unwrap());
            let equal = ours.ids.iter().zip(&theirs.ids).filter(|(a, b)| a == b).count();
            assert!(100 * equal >= 95 * ours.ids.len(), "{metric} {encoding} {probes}: {equal}");
        }
    }
}

#[test]
fn files_come_back_as_the_lists_that_they_were() {
    check_round_trip::<f32>(Metric::Cosine, Encoding::Flat);
    for metric in [Metric::L2, Metric::InnerProduct] {
        check_round_trip::<f32>(metric, Encoding::Flat);
        check_round_trip::<f32>(metric, Encoding::Scalar8);
        check_round_trip::<f32>(metric, Encoding::Pq { sub_quantizers: 4, bits: 5, rotate: true });
        check_round_trip::<f32>(metric, Encoding::Pq { sub_quantizers: 8, bits: 8, rotate: false });
    }
    check_round_trip::<f32>(Metric::L2, Encoding::F16);
    check_round_trip::<f32>(Metric::InnerProduct, Encoding::F16);
    check_round_trip::<f16>(Metric::Cosine, Encoding::Flat);
    check_round_trip::<bf16>(Metric::InnerProduct, Encoding::Flat);
    check_round_trip::<u8>(Metric::L2, Encoding::Flat);
    check_round_trip::<i8>(Metric::L2, Encoding::Scalar8);
}

/// 16 bits in two lists, of which one has the vectors 5 and 9. FAISS 1.15.1 reads these bytes, and writes the same but
/// for the lengths of the lists, which it writes as pairs (`sprs`) where most lists are empty.
#[test]
fn a_file_of_bits_is_read_and_written_to_the_byte() {
    let head = |word: &[u8], vectors: u64| {
        let numbers: [&[u8]; 5] =
            [&16i32.to_le_bytes(), &2i32.to_le_bytes(), &vectors.to_le_bytes(), &[1], &[1, 0, 0, 0]];
        [word, &numbers.concat()].concat()
    };
    let long = |numbers: &[u64]| numbers.iter().flat_map(|number| number.to_le_bytes()).collect::<Vec<u8>>();
    let file = [
        head(b"IBwF", 2),
        // Two lists, one probe.
        long(&[2, 1]),
        head(b"IBxF", 2),
        long(&[4]),
        vec![0, 0, 0x0f, 0xf0],
        vec![0],
        long(&[0]),
        b"ilar".to_vec(),
        long(&[2, 2]),
        b"full".to_vec(),
        long(&[2, 0, 2]),
        vec![0x0f, 0xf1, 0x1f, 0xf0],
        long(&[5, 9]),
    ]
    .concat();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("bits.faiss");
    std::fs::write(&path, &file).unwrap();
    let info = FaissInfo::read(&path).unwrap();
    assert_eq!((info.dim, info.metric, info.vectors, info.lists, info.probes), (2, Metric::Hamming, 2, 2, 1));
    let builder = |dim| IvfIndex::<u8>::builder(dim, 1).device(Device::Cpu);
    let index = builder(2).load_faiss(&path, Open::Read).unwrap();
    assert_eq!((index.metric(), index.lists(), index.probes(), index.ids()), (Metric::Hamming, 2, 1, vec![5, 9]));
    let ones: Vec<usize> = (0..32).filter(|&at| index.centroids()[at] == 1.0).collect();
    assert_eq!(ones, [16, 17, 18, 19, 28, 29, 30, 31]);
    let found = index.search(&[0x1f, 0xf1], 2).unwrap();
    assert_eq!((found.ids, found.distances), (vec![5, 9], vec![1.0, 1.0]));
    assert_eq!(index.reconstruct(9).unwrap(), [31.0, 240.0]);
    index.save_faiss(&path).unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), file);
    // It has no numbers, and another number of bytes than four.
    let of_numbers = IvfIndex::<f32>::builder(2, 1).device(Device::Cpu).load_faiss(&path, Open::Read).err();
    assert!(matches!(of_numbers, Some(Error::Mismatch { what: "metric of the file", .. })), "{of_numbers:?}");
    let other = builder(4).load_faiss(&path, Open::Read).err();
    assert!(matches!(other, Some(Error::WrongDimension { expected: 4, actual: 2 })), "{other:?}");
    for len in 0..file.len() {
        std::fs::write(&path, &file[..len]).unwrap();
        let found = builder(2).load_faiss(&path, Open::Read).err();
        assert!(matches!(found, Some(Error::BadFile { .. })), "{len} bytes: {found:?}");
    }
    let mut random = Random::new(1);
    for _ in 0..2000 {
        let mut bytes = file.clone();
        let at = random.below(bytes.len());
        bytes[at] = random.below(256) as u8;
        read_any_faiss_bytes(&bytes);
    }
}

/// Centroids of FAISS are bits, so probes of a file that is read again differ, but the vectors stay in their lists.
#[test]
fn bits_come_back_with_the_bits_of_most_vectors_as_centroids() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("bits.faiss");
    let mut random = Random::new(3);
    let base: Vec<u8> = (0..300 * DIM).map(|_| random.below(256) as u8).collect();
    let mut index = IvfIndex::<u8>::builder(DIM, 6).metric(Metric::Hamming).device(Device::Cpu).build().unwrap();
    index.train(&base).unwrap();
    index.add(&base).unwrap();
    index.save_faiss(&path).unwrap();
    let again = IvfIndex::<u8>::builder(DIM, 1).device(Device::Cpu).load_faiss(&path, Open::Read).unwrap();
    assert_eq!((again.ids(), again.lists(), again.encoding()), (index.ids(), 6, Encoding::Flat));
    for (share, bit) in index.centroids().iter().zip(again.centroids()) {
        assert_eq!(*bit, if *share >= 0.5 { 1.0 } else { 0.0 });
    }
    let all = SearchOptions::new().probes(6);
    assert_eq!(again.search_with(&base, 5, &all).unwrap(), index.search_with(&base, 5, &all).unwrap());
}

#[test]
fn what_faiss_cannot_have_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("an.faiss");
    let new = || IvfIndex::<f32>::builder(DIM, 6).device(Device::Cpu);
    let refused = new().build().unwrap().save_faiss(&path).err();
    assert!(matches!(refused, Some(Error::NotTrained { call: "save_faiss" })), "{refused:?}");
    let mut waits = new().train_at(100).build().unwrap();
    waits.add(&vectors::<f32>(3, 1)).unwrap();
    assert!(matches!(waits.save_faiss(&path).err(), Some(Error::NotTrained { .. })));
    let mut index = trained::<f32>(Metric::L2, Encoding::Flat);
    index.add_with_ids(&vectors::<f32>(1, 1), &[1 << 63]).unwrap();
    let refused = index.save_faiss(&path).err();
    assert!(matches!(refused, Some(Error::OutOfRange { what: "id", value, .. }) if value == 1 << 63), "{refused:?}");
    let mut halves = new().encoding(Encoding::F16).build().unwrap();
    halves.train(&vectors::<f32>(300, 1).iter().map(|x| x * 1e-3).collect::<Vec<_>>()).unwrap();
    let refused = halves.save_faiss(&path).err();
    assert!(matches!(refused, Some(Error::OutOfRange { value: 4, .. })), "{refused:?}");
    for encoding in [Encoding::Scalar8, Encoding::F16, Encoding::Pq { sub_quantizers: 2, bits: 4, rotate: false }] {
        let refused = trained::<f32>(Metric::Cosine, encoding).save_faiss(&path).err();
        assert!(matches!(refused, Some(Error::Mismatch { actual: "cosine", .. })), "{refused:?}");
    }
    let refused = trained::<f32>(Metric::L2, Encoding::Bits { bits: 4 }).save_faiss(&path).err();
    assert!(matches!(refused, Some(Error::Mismatch { what: "encoding for FAISS", actual: "bits", .. })), "{refused:?}");
    let one_list = IvfIndex::<f32>::builder(1, 1).encoding(Encoding::Scalar8).device(Device::Cpu);
    let mut wide = one_list.build().unwrap();
    wide.train(&[f32::MAX, -f32::MAX]).unwrap();
    let refused = wide.save_faiss(&path).err();
    assert!(matches!(refused, Some(Error::Overflow { row: 0, column: 0, .. })), "{refused:?}");
    assert!(!path.exists());

    assert!(matches!(load(&path, 4, Metric::L2).err(), Some(Error::Io { .. })));
    let wrong = load(&sample("flat_l2"), 4, Metric::Cosine).err();
    assert!(matches!(wrong, Some(Error::Mismatch { expected: "cosine", actual: "l2", .. })), "{wrong:?}");
    let wrong = load(&sample("flat_l2"), 5, Metric::L2).err();
    assert!(matches!(wrong, Some(Error::WrongDimension { expected: 5, actual: 4 })), "{wrong:?}");
}

/// For every check there is a file that only this check refuses.
#[test]
fn what_does_not_map_is_refused_by_name() {
    let patched = |name: &str, at: usize, to: &[u8]| {
        let mut bytes = std::fs::read(sample(name)).unwrap();
        bytes[at..at + to.len()].copy_from_slice(to);
        parse(&bytes).err().unwrap()
    };
    let (header, inconsistent) = (FileDefect::BadHeader, FileDefect::Inconsistent);
    // The header of an IVF has 37 bytes, its lists and probes 16, the centroids of 3 lists 45 + 48, the direct map 9.
    let after = 37 + 16 + 45 + 48 + 9;
    let no_class = header("no IndexIVFFlat, IndexIVFPQ or IndexIVFScalarQuantizer of FAISS");
    assert_eq!(patched("flat_l2", 0, b"IwFp"), no_class);
    assert_eq!(patched("flat_l2", 33, &[2]), header("a metric of FAISS that is neither L2 nor inner product"));
    assert_eq!(patched("flat_l2", 37, &[0]), inconsistent("0 lists or 0 probes"));
    assert_eq!(patched("flat_l2", 45, &[0]), inconsistent("0 lists or 0 probes"));
    assert_eq!(patched("flat_l2", 53, b"IxHi"), header("vectors or centroids of FAISS that are no IndexFlat"));
    assert_eq!(patched("flat_l2", 53, b"IxFI"), header("vectors or centroids of FAISS that are no IndexFlat"));
    let differ = inconsistent("headers of an index and of the one inside differ");
    assert_eq!(patched("flat_l2", 53 + 33, &[0]), differ);
    assert_eq!(patched("flat_l2", 98, &[0, 0, 0xc0, 0x7f]), inconsistent("a centroid is not finite"));
    assert_eq!(patched("flat_l2", after - 9, &[1]), header("a direct map of FAISS"));
    assert_eq!(patched("flat_l2", after, b"ilod"), header("lists of FAISS that are not arrays in the file"));
    assert_eq!(patched("flat_l2", after + 4, &[4]), inconsistent("lists that differ from those of the header"));
    assert_eq!(patched("flat_l2", after + 20, b"spar"), header("lengths of FAISS's lists in an unknown form"));
    let first = after + 24 + 8 + 3 * 8;
    assert_eq!(patched("flat_l2", first, &[0, 0, 0x80, 0x7f]), inconsistent("a vector is not finite"));
    let last = std::fs::metadata(sample("flat_l2")).unwrap().len() as usize - 8;
    assert_eq!(patched("flat_l2", last + 7, &[0x80]), inconsistent("a negative id"));
    let second_last = std::fs::read(sample("flat_l2")).unwrap()[last - 8..last].to_vec();
    assert_eq!(patched("flat_l2", last, &second_last), inconsistent("an id occurs twice"));
    let other = inconsistent("the lists have another number of vectors than the header");
    assert_eq!(patched("flat_l2", 8, &[41]), other);
    // Of 8 lists.
    let sparse = 37 + 16 + 45 + 8 * 16 + 9 + 24;
    assert_eq!(patched("flat_ip_ids", sparse, &[7]), inconsistent("a number of a list without a length"));
    assert_eq!(patched("flat_ip_ids", sparse + 8, &[9]), inconsistent("a list that does not exist"));

    let no_rotation = header("transforms of FAISS that are not one rotation");
    for (at, to) in [(37, 2), (41, b'P'), (45, 1), (46 + 8 + 64 + 8, 5)] {
        assert_eq!(patched("opq_l2", at, &[to]), no_rotation, "{at}");
    }
    assert_eq!(patched("opq_l2", 54, &[0, 0, 0xc0, 0x7f]), inconsistent("the rotation is not finite"));
    assert_eq!(patched("opq_l2", 54, &[0, 0, 0xc0, 0x3f]), inconsistent("the rotation is not orthogonal"));
    let inner = 37 + 4 + 4 + 1 + 8 + 64 + 8 + 8 + 1;
    assert_eq!(patched("opq_l2", inner, b"IwFl"), header("a transform of FAISS that is not for an IndexIVFPQ"));
    let pq = inner + after;
    let of_vectors = header("codes of FAISS by product quantization that are not of residuals");
    assert_eq!(patched("opq_l2", pq, &[0]), of_vectors);
    let bytes = inconsistent("the bytes of a code differ from those of the quantizer");
    assert_eq!(patched("opq_l2", pq + 1, &[2]), bytes);
    let of_others = inconsistent("a quantizer for vectors of another dimension");
    assert_eq!(patched("opq_l2", pq + 9, &[8]), of_others);
    let does_not_divide = inconsistent("sub-quantizers that do not divide the dimension");
    assert_eq!(patched("opq_l2", pq + 17, &[3]), does_not_divide);
    assert_eq!(patched("opq_l2", pq + 25, &[12]), inconsistent("bits of a sub-quantizer"));
    assert_eq!(patched("opq_l2", pq + 41, &[0, 0, 0xc0, 0x7f]), inconsistent("a codeword is not finite"));

    let kind = header("a scalar quantizer of FAISS that is neither QT_8bit nor QT_fp16");
    assert_eq!(patched("sq8_ip", after, &[1]), kind);
    let by_residual = after + 12 + 16 + 8 + 32 + 8;
    let of_neither = header("QT_8bit of FAISS that is neither of residuals nor of vectors");
    assert_eq!(patched("sq8_ip", by_residual, &[2]), of_neither);
    let by_residual = after + 12 + 16 + 8 + 8;
    assert_eq!(patched("fp16_l2", by_residual, &[1]), header("QT_fp16 of FAISS that is of residuals"));
    assert_eq!(patched("sq8_ip", after + 12, &[5]), of_others);
    assert_eq!(patched("sq8_ip", after + 20, &[5]), bytes);
    let ranges = after + 12 + 16 + 8 + 16;
    assert_eq!(patched("sq8_ip", ranges, &[0, 0, 0x80, 0xbf]), inconsistent("a step is negative"));
    assert_eq!(patched("sq8_ip", ranges, &[0, 0, 0x80, 0x7f]), inconsistent("a codeword is not finite"));
}

/// Files that are cut, have more bytes, or changed ones are refused or give an index that can be searched.
#[test]
fn damaged_files_give_an_error_or_an_index() {
    let mut random = Random::new(6);
    let mut accepted = 0;
    for (name, ..) in SAMPLES {
        let whole = std::fs::read(sample(name)).unwrap();
        assert!(read_any_faiss_bytes(&whole), "{name}");
        for cut in 0..whole.len() {
            assert!(!read_any_faiss_bytes(&whole[..cut]), "{name} {cut}");
        }
        let mut longer = whole.clone();
        longer.push(0);
        assert!(matches!(parse(&longer).err(), Some(FileDefect::Oversized { .. })));
        for at in 0..whole.len() {
            for to in [0, 0x7f, 0xff, whole[at] ^ 1, random.bits() as u8] {
                let mut damaged = whole.clone();
                damaged[at] = to;
                accepted += usize::from(read_any_faiss_bytes(&damaged));
            }
        }
        for _ in 0..1_000 {
            let mut damaged = whole.clone();
            for _ in 0..2 + random.below(3) {
                let within = if random.below(2) == 0 { 250 } else { whole.len() };
                let at = random.below(within);
                damaged[at] = random.bits() as u8;
            }
            accepted += usize::from(read_any_faiss_bytes(&damaged));
        }
    }
    assert!((5_000..22_000).contains(&accepted), "{accepted}");
}
