//! Tests with whole indexes: saved, loaded, changed after loading, damaged.

use std::path::PathBuf;

use half::{bf16, f16};
use tempfile::TempDir;
use test_random::Random;

use super::format::{self, Section};
use super::fuzz::{mend_index_bytes as mend, read_any_index_bytes};
use crate::error::{Error, FileDefect};
use crate::ivf::{Encoding, IvfIndex, IvfStatistics, SearchOptions};
use crate::{Device, Element, ElementType, IndexInfo, KindInfo, Metric};

const DIM: usize = 8;
const LISTS: usize = 6;

fn vectors<T: Element>(count: usize, seed: u64) -> Vec<T> {
    let mut random = Random::new(seed);
    (0..count * DIM).map(|_| T::from_f32(random.below(200) as f32 - 100.0)).collect()
}

fn folder() -> TempDir {
    tempfile::tempdir().expect("a temporary folder")
}

fn file(folder: &TempDir, name: &str) -> PathBuf {
    folder.path().join(name)
}

const ENCODINGS: [Encoding; 6] = [
    Encoding::Flat,
    Encoding::Pq { sub_quantizers: 4, bits: 6, rotate: false },
    Encoding::Pq { sub_quantizers: 2, bits: 5, rotate: true },
    Encoding::Pq { sub_quantizers: 8, bits: 4, rotate: true },
    Encoding::Scalar8,
    Encoding::F16,
];

/// An index with given ids, of which at least one list is empty.
fn index<T: Element>(metric: Metric, encoding: Encoding) -> IvfIndex<T> {
    let mut index =
        IvfIndex::<T>::builder(DIM, LISTS).metric(metric).encoding(encoding).device(Device::Cpu).build().unwrap();
    index.train(&vectors::<T>(300, 1)).unwrap();
    let ids: Vec<u64> = (0..40).map(|i| (i * i * 31) ^ 5).collect();
    index.add_with_ids(&vectors::<T>(40, 2), &ids).unwrap();
    index.set_probes(3).unwrap();
    index
}

fn same<T: Element>(a: &IvfIndex<T>, b: &IvfIndex<T>) {
    let queries = vectors::<T>(7, 3);
    let bits = |index: &IvfIndex<T>, probes: Option<usize>| {
        let options = SearchOptions::new().probes(probes);
        let found = index.search_with(&queries, 11, &options).unwrap();
        (found.ids, found.distances.iter().map(|x| x.to_bits()).collect::<Vec<_>>())
    };
    for probes in [None, Some(1), Some(4), Some(100)] {
        assert_eq!(bits(a, probes), bits(b, probes));
    }
}

fn round_trip<T: Element>() {
    let folder = folder();
    let (first, second) = (file(&folder, "a.ivf"), file(&folder, "b.ivf"));
    for &metric in Metric::of_element(T::TYPE) {
        for encoding in ENCODINGS {
            let no_halves = encoding == Encoding::F16 && T::TYPE != ElementType::F32;
            if no_halves || encoding.check_metric(metric).is_err() {
                continue;
            }
            let mut built = index::<T>(metric, encoding);
            built.save(&first).unwrap();
            let mut loaded = IvfIndex::<T>::load(&first, Device::Cpu, Some(1 << 20)).unwrap();
            assert_eq!((loaded.metric(), loaded.len(), loaded.lists()), (metric, 40, LISTS));
            assert_eq!((loaded.probes(), loaded.ids(), loaded.statistics()), (3, built.ids(), built.statistics()));
            same(&built, &loaded);

            let info = IndexInfo::read(&first).unwrap();
            let (encoding, lists) = (loaded.encoding(), LISTS);
            let IvfStatistics { clamped_vectors, clamped_components, .. } = loaded.statistics();
            let of_kind = KindInfo::Ivf { encoding, lists, probes: 3, clamped_vectors, clamped_components };
            assert_eq!((info.element, info.dim, info.metric, info.of_kind), (T::TYPE, DIM, metric, of_kind));
            assert_eq!((info.vectors, info.bytes), (40, first.metadata().unwrap().len()));

            // Both indexes are saved as the same bytes, also over the mapped file.
            let bytes = std::fs::read(&first).unwrap();
            loaded.save(&second).unwrap();
            loaded.save(&first).unwrap();
            built.save(&second).unwrap();
            assert!(std::fs::read(&first).unwrap() == bytes && std::fs::read(&second).unwrap() == bytes);
            assert_eq!(read_any_index_bytes(&bytes), 1);

            // A loaded index changes in the same way as the saved one.
            for index in [&mut built, &mut loaded] {
                index.add(&vectors::<T>(9, 4)).unwrap();
                index.remove(&[5, (4 * 31) ^ 5]).unwrap();
            }
            same(&built, &loaded);
            built.save(&first).unwrap();
            loaded.save(&second).unwrap();
            assert!(std::fs::read(&first).unwrap() == std::fs::read(&second).unwrap());
        }
    }
}

#[test]
fn an_index_is_loaded_as_it_was_saved() {
    round_trip::<f32>();
    round_trip::<f16>();
    round_trip::<bf16>();
    round_trip::<u8>();
    round_trip::<i8>();
}

#[test]
fn an_index_without_vectors_is_kept_too() {
    let folder = folder();
    let path = file(&folder, "empty.ivf");
    for encoding in ENCODINGS {
        let builder = || IvfIndex::<f32>::builder(DIM, 2).encoding(encoding).device(Device::Cpu).build().unwrap();
        let mut index = builder();
        assert!(matches!(index.save(&path), Err(Error::NotTrained { call: "save" })));
        assert!(!path.exists());
        index.train(&vectors(300, 1)).unwrap();
        index.save(&path).unwrap();
        let mut loaded = IvfIndex::<f32>::load(&path, Device::Cpu, None).unwrap();
        assert!(loaded.is_trained() && loaded.is_empty());
        for index in [&mut index, &mut loaded] {
            index.add(&vectors(20, 2)).unwrap();
        }
        same(&index, &loaded);
        std::fs::remove_file(&path).unwrap();
    }
}

#[test]
fn what_is_no_index_of_this_type_is_refused_by_name() {
    let folder = folder();
    let path = file(&folder, "x.ivf");
    let defect = |path: &PathBuf| match IvfIndex::<f32>::load(path, Device::Cpu, None).unwrap_err() {
        Error::BadFile { path: named, defect } => {
            assert_eq!(&named, path);
            defect
        }
        other => panic!("{other}"),
    };
    assert!(matches!(IvfIndex::<f32>::load(&path, Device::Cpu, None), Err(Error::Io { .. })));
    assert!(matches!(IndexInfo::read(folder.path()), Err(Error::Io { .. })));
    for bytes in [&b""[..], b"wpn", b"# a text, and nothing else\n"] {
        std::fs::write(&path, bytes).unwrap();
        assert_eq!(defect(&path), FileDefect::BadHeader("not an index file"));
        assert!(matches!(IndexInfo::read(&path), Err(Error::BadFile { .. })));
    }
    index::<u8>(Metric::L2, Encoding::Flat).save(&path).unwrap();
    assert_eq!(defect(&path), FileDefect::WrongElement { actual: "u8".into(), expected: "f32" });
    // Nothing remains if the file cannot be written.
    let nowhere = file(&folder, "no/x.ivf");
    assert!(matches!(index::<u8>(Metric::L2, Encoding::Flat).save(&nowhere), Err(Error::Io { .. })));
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
}

/// A small file is read, not mapped: changes of the file do not change the index.
#[test]
fn a_small_file_may_be_cut_while_its_index_lives() {
    let folder = folder();
    let path = file(&folder, "x.ivf");
    for encoding in ENCODINGS {
        let built = index::<f32>(Metric::L2, encoding);
        built.save(&path).unwrap();
        let loaded = IvfIndex::<f32>::load(&path, Device::Cpu, None).unwrap();
        std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(0).unwrap();
        same(&built, &loaded);
    }
}

/// Values so large that the sum of a centroid and a codeword overflows, in one list only.
#[test]
fn a_code_never_stands_for_infinity() {
    let folder = folder();
    let path = file(&folder, "huge.ivf");
    let encoding = Encoding::Pq { sub_quantizers: 1, bits: 4, rotate: false };
    let mut index = IvfIndex::<f32>::builder(1, 2).encoding(encoding).device(Device::Cpu).build().unwrap();
    let rows: Vec<f32> = (0..64).map(|i| if i % 2 == 0 { i as f32 } else { 3e38 + i as f32 * 1e35 }).collect();
    index.train(&rows).unwrap();
    index.add(&rows).unwrap();
    index.save(&path).unwrap();
    // The decoded vectors are finite, although close to the limit of f32.
    assert_eq!(IvfIndex::<f32>::load(&path, Device::Cpu, None).unwrap().len(), 64);
    let mut bytes = std::fs::read(&path).unwrap();
    let (_, places, _) = format::decode(&bytes, bytes.len() as u64).unwrap();
    let codebooks = &places[Section::Codebooks as usize];
    for codeword in bytes[codebooks.start as usize..codebooks.end as usize].chunks_exact_mut(4) {
        codeword.copy_from_slice(&1e38f32.to_le_bytes());
    }
    mend(&mut bytes);
    std::fs::write(&path, &bytes).unwrap();
    let error = IvfIndex::<f32>::load(&path, Device::Cpu, None).unwrap_err();
    let defect = FileDefect::Inconsistent("a code stands for a vector that is not finite");
    assert!(matches!(&error, Error::BadFile { defect: found, .. } if *found == defect), "{error}");
}

/// Random damage, with wrong and with mended checksums. An accepted index is searched, and is saved as the same bytes.
#[test]
fn no_damage_ends_in_a_panic_or_in_nonsense() {
    fn damage<T: Element>(metric: Metric, encoding: Encoding, seed: u64) -> usize {
        let folder = folder();
        let path = file(&folder, "x.ivf");
        index::<T>(metric, encoding).save(&path).unwrap();
        let bytes = std::fs::read(&path).unwrap();
        let mut random = Random::new(seed);
        let mut accepted = 0;
        for round in 0..400 {
            let mut damaged = bytes.clone();
            for _ in 0..1 + random.below(3) {
                // Half of the damage is in the header and the small sections after it.
                let end = if random.below(2) == 0 { damaged.len().min(600) } else { damaged.len() };
                let at = random.below(end.max(1));
                let run = at..damaged.len().min(at + 1 + random.below(80));
                match random.below(8) {
                    0 => damaged.truncate(at),
                    1 => damaged.extend((0..random.below(200)).map(|i| i as u8)),
                    2 => damaged[run].fill(0),
                    3 => damaged[run].fill(0xff),
                    4 => damaged[run].reverse(),
                    5 => damaged[run].iter_mut().for_each(|byte| *byte = random.bits() as u8),
                    _ if !damaged.is_empty() => damaged[at] ^= 1 << random.below(8),
                    _ => {}
                }
            }
            if round % 4 == 0 {
                assert_eq!(read_any_index_bytes(&damaged), usize::from(damaged == bytes), "round {round}");
            }
            mend(&mut damaged);
            accepted += read_any_index_bytes(&damaged);
        }
        accepted
    }
    let accepted = [
        damage::<f32>(Metric::L2, ENCODINGS[0], 11),
        damage::<f16>(Metric::InnerProduct, ENCODINGS[0], 12),
        damage::<u8>(Metric::Cosine, ENCODINGS[0], 13),
        damage::<f32>(Metric::Cosine, ENCODINGS[1], 14),
        damage::<bf16>(Metric::L2, ENCODINGS[2], 15),
        damage::<i8>(Metric::InnerProduct, ENCODINGS[3], 16),
        damage::<u8>(Metric::L2, ENCODINGS[4], 17),
        damage::<f32>(Metric::L2, ENCODINGS[5], 18),
    ];
    assert!(
        accepted.iter().all(|accepted| (20..380).contains(accepted)),
        "{accepted:?}: too much damage, or too little"
    );
}
