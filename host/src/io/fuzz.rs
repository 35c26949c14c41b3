//! The entry points of fuzzers: every reader on any bytes, and the properties of all accepted files.

use super::{Format, VectorData, ids_from_bytes, ranges_from_bytes, vectors_from_bytes};
use crate::NONE;

/// Reads `bytes` as every format in turn and returns how many readings gave vectors or ids. For fuzzers and tests.
///
/// # Panics
/// If a reader panics, or accepts bytes with a shape that contradicts what it returns.
pub fn read_any_bytes(bytes: &[u8]) -> usize {
    let mut accepted = 0;
    if let Ok(ranges) = ranges_from_bytes(bytes) {
        accepted += 1;
        assert!(ranges.offsets.is_sorted() && ranges.offsets[0] == 0);
        assert_eq!(ranges.offsets.last(), Some(&ranges.ids.len()));
        assert_eq!(ranges.ids.len(), ranges.distances.len());
        assert_eq!(8 + 4 * ranges.queries() + 8 * ranges.ids.len(), bytes.len());
    }
    for format in Format::ALL {
        if let Ok(vectors) = vectors_from_bytes(format, bytes) {
            accepted += 1;
            let len = match vectors.data() {
                VectorData::F32(elements) => elements.len(),
                VectorData::F16(elements) => elements.len(),
                VectorData::Bf16(elements) => elements.len(),
                VectorData::U8(elements) => elements.len(),
                VectorData::I8(elements) => elements.len(),
            };
            assert_eq!(Some(len), vectors.rows().checked_mul(vectors.dim()), "{format:?}");
            assert!(len * vectors.element().size() <= bytes.len(), "{format:?}");
            assert!(vectors.rows() == 0 || vectors.dim() > 0, "{format:?}");
        }
        if let Ok(truth) = ids_from_bytes(format, bytes) {
            accepted += 1;
            let len = truth.ids.ids.len();
            assert_eq!(Some(len), truth.ids.rows.checked_mul(truth.ids.k), "{format:?}");
            assert!(len * 4 <= bytes.len(), "{format:?}");
            assert!(truth.distances.is_none_or(|distances| distances.len() == len), "{format:?}");
            let negative = |&id: &u64| id > i64::MAX as u64 && id != NONE;
            assert!(format == Format::Npy || !truth.ids.ids.iter().any(negative), "{format:?}");
        }
    }
    accepted
}
