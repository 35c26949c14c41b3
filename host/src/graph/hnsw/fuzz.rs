//! A function for fuzzers: any bytes as an HNSW file.

use super::parsed;
use crate::{Device, GraphIndex, Metric};

/// Reads `bytes` as an HNSW file, and searches an index that it has. Returns whether it has one. For fuzzers and tests.
///
/// # Panics
/// If reading, building or searching panics, or an index that was accepted does not find its vectors.
pub fn read_any_hnsw_bytes(bytes: &[u8]) -> bool {
    let Ok(parsed) = parsed(bytes) else { return false };
    let info = parsed.info;
    assert_eq!(Some(parsed.vectors.len()), (info.vectors as usize).checked_mul(info.dim));
    assert_eq!(Some(parsed.edges.len()), (info.vectors as usize).checked_mul(parsed.degree));
    let (metric, removed) = (info.metric.unwrap_or(Metric::L2), parsed.removed.len());
    let builder = GraphIndex::<f32>::builder(info.dim).metric(metric).device(Device::Cpu).exact_ratio(0);
    let Ok(index) = builder.build_parsed(parsed) else { return false };
    assert_eq!((index.len() + removed) as u64, info.vectors);
    if let Some(&id) = index.ids().first() {
        let vector = index.vector(id).unwrap_or_default();
        let found = index.search(&vector, index.len().min(5)).map(|found| found.found(0).count());
        assert_eq!(found.ok(), Some(index.len().min(5)));
    }
    true
}
