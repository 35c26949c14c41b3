//! Functions for fuzzers: reading an index from any bytes, and checks that hold for every accepted index.

use super::format::{HEADER, SUM, Section, TABLE};
use super::mapped::IndexFile;
use super::{faiss, parts};
use crate::index::IndexKind;
use crate::index::kind::WORD;
use crate::io::FileBytes;
use crate::io::checksum;
use crate::io::checksum::{CHUNK, xxh64};
use crate::ivf::{Ivf, IvfIndex};
use crate::{Device, Element, Index, NONE, SearchOptions};

/// Reads `bytes` as an index file of every element type in turn, searches each accepted index, and returns the number
/// of accepted ones. For fuzzers and tests.
///
/// # Panics
/// If loading or searching panics; if the bytes are accepted for two element types, or an accepted index is not saved
/// as the same bytes.
pub fn read_any_index_bytes(bytes: &[u8]) -> usize {
    let Ok(copy) = FileBytes::copied(bytes) else { return 0 };
    let Ok(file) = IndexFile::from_bytes(copy) else { return 0 };
    let accepted = [
        accepts::<f32>(&file, bytes),
        accepts::<half::f16>(&file, bytes),
        accepts::<half::bf16>(&file, bytes),
        accepts::<u8>(&file, bytes),
        accepts::<i8>(&file, bytes),
    ];
    let accepted = accepted.into_iter().filter(|&accepted| accepted).count();
    assert!(accepted < 2, "an index of two element types");
    accepted
}

/// Reads `bytes` as an inverted file of FAISS, and searches an index that it has. Returns whether it has one. For
/// fuzzers and tests.
///
/// # Panics
/// If reading, building or searching panics, or an index that was accepted does not find as many vectors as it has.
pub fn read_any_faiss_bytes(bytes: &[u8]) -> bool {
    let Ok(parsed) = faiss::parse(bytes) else { return false };
    if parsed.info.metric.compares_bits() { has_faiss::<u8>(parsed) } else { has_faiss::<f32>(parsed) }
}

fn has_faiss<T: Element>(parsed: faiss::Parsed) -> bool {
    let info = parsed.info;
    let builder = IvfIndex::<T>::builder(info.dim, 1).metric(info.metric).device(Device::Cpu);
    let Ok(index) = builder.build_parsed(parsed) else { return false };
    assert_eq!((index.len() as u64, index.lists(), index.probes()), (info.vectors, info.lists, info.probes));
    let (queries, k) = (vec![T::from_f32(1.0); index.dim()], index.len().min(5));
    let found = index.search_with(&queries, k, &SearchOptions::new().probes(index.lists()));
    assert_eq!(found.map(|found| found.found(0).count()).ok(), Some(k));
    true
}

/// Replaces the checksums of damaged bytes by right ones, for all sections whose place in the header is valid. Then
/// damage reaches the checks that follow the checksums.
pub fn mend_index_bytes(bytes: &mut [u8]) {
    if bytes.len() < HEADER {
        return;
    }
    let word = |bytes: &[u8], at: usize| bytemuck::pod_read_unaligned::<u64>(&bytes[at..at + 8]) as usize;
    for at in (0..Section::ALL.len()).map(|index| TABLE + 24 * index) {
        let (start, length) = (word(bytes, at), word(bytes, at + 8));
        if let Some(section) = start.checked_add(length).and_then(|end| bytes.get(start..end)) {
            let hashes: Vec<u64> = section.chunks(CHUNK).map(xxh64).collect();
            bytes[at + 16..at + 24].copy_from_slice(&checksum::of_chunks(&hashes).to_le_bytes());
        }
    }
    let sum = xxh64(&bytes[..SUM]);
    bytes[SUM..HEADER].copy_from_slice(&sum.to_le_bytes());
}

fn accepts<T: Element>(file: &IndexFile, bytes: &[u8]) -> bool {
    let Ok((trained, lists)) = parts::<T>(file) else { return false };
    // The one centroid of an exact index of bits is none of bits.
    if file.shape().kind != Some(IndexKind::Ivf) && file.shape().metric.compares_bits() {
        return false;
    }
    let Ok(index) = Ivf::<T>::restored(file.shape(), trained, lists, Device::Cpu.into(), None) else { return false };
    let index = Index::of(index);
    // Files of another kind or of earlier versions become inverted files.
    let mut same = bytes.to_vec();
    same[WORD..][..4].copy_from_slice(&IndexKind::word(Some(IndexKind::Ivf)));
    mend_index_bytes(&mut same);
    assert!(index.to_bytes().is_ok_and(|again| again == same), "another file");
    // Two queries: all zeros and all ones.
    let mut queries = vec![T::default(); 2 * index.dim()];
    queries[index.dim()..].fill(T::from_f32(1.0));
    let k = 3;
    let every = SearchOptions::new().probes(index.lists());
    match index.search_with(&queries, k, &every) {
        Err(error) => panic!("an index that was accepted cannot be searched: {error}"),
        Ok(found) => {
            let ids = index.ids();
            assert_eq!(ids.len(), index.len());
            for (row, distances) in found.rows() {
                let neighbours = row.iter().filter(|&&id| id != NONE).count();
                assert_eq!(neighbours, k.min(index.len()));
                assert!(row[..neighbours].iter().all(|id| ids.binary_search(id).is_ok()));
                assert!(distances.is_sorted_by(|a, b| index.metric().order(*a, *b).is_le()));
            }
        }
    }
    true
}
