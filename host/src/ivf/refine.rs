//! Exact re-ranking of candidates by the original vectors.

use rayon::prelude::*;

use crate::cpu::Scorer;
use crate::flat::check_vectors;
use crate::{Device, Element, Error, Metric, NONE, Neighbors, Result};

/// The `k` best of each query's candidates by (canonical distance from the original vector, lower id): turns candidates of compressed
/// codes into results as exact as those of a search among the same candidates. `base` holds the vector of id i in row i; `queries` as
/// many as `candidates` has rows; empty slots of `candidates` are skipped, repeated ids count once. Where fewer than `k` are left
/// the row ends in [`NONE`]. O(candidates · dim); runs on the CPU whatever the device.
///
/// ```
/// use warpann::ivf::refine;
/// use warpann::{Device, Metric, Neighbors};
///
/// let base = [0.0, 1.0, 2.0, 3.0f32];
/// let rough = Neighbors { k: 3, ids: vec![0, 3, 1], distances: vec![0.5, 0.5, 0.5] };
/// let exact = refine(Metric::L2, 1, &base, &[0.9], &rough, 2, Device::Cpu)?;
/// assert_eq!(exact.ids, [1, 0]);
/// # Ok::<(), warpann::Error>(())
/// ```
///
/// # Errors
/// [`Error::ZeroDimension`], [`Error::ZeroK`], [`Error::RaggedVectors`], [`Error::NotFinite`] (of queries),
/// [`Error::WrongResultLength`] where the candidates are not so many for each query, [`Error::UnknownId`] for a candidate past the base,
/// [`Error::ResultTooLarge`].
pub fn refine<T: Element>(
    metric: Metric,
    dim: usize,
    base: &[T],
    queries: &[T],
    candidates: &Neighbors,
    k: usize,
    device: Device,
) -> Result<Neighbors> {
    // The candidates of a query are few: gathering them takes longer than their distances, and longer still onto a device.
    let _ = device;
    if dim == 0 {
        return Err(Error::ZeroDimension);
    }
    if k == 0 || candidates.k == 0 {
        return Err(Error::ZeroK);
    }
    if !base.len().is_multiple_of(dim) {
        return Err(Error::RaggedVectors { len: base.len(), dim });
    }
    let (rows, count) = ((base.len() / dim) as u64, check_vectors(queries, dim)?);
    crate::flat::check_results(count, candidates.k, &candidates.ids, &candidates.distances)?;
    let unknown = |id: &&u64| **id >= rows && **id != NONE;
    if let Some(&id) = candidates.ids.par_iter().find_first(unknown) {
        return Err(Error::UnknownId { id, len: rows });
    }
    let mut found = Neighbors::none(metric, count, k)?;
    found
        .ids
        .par_chunks_mut(k)
        .zip(found.distances.par_chunks_mut(k))
        .zip(queries.par_chunks_exact(dim).zip(candidates.ids.par_chunks_exact(candidates.k)))
        .for_each_init(Vec::new, |row, ((ids, distances), (query, candidates))| {
            let scorer = Scorer::new(metric, query);
            let mut wanted: Vec<u64> = candidates.iter().copied().filter(|&id| id != NONE).collect();
            wanted.sort_unstable();
            wanted.dedup();
            let mut ranked: Vec<(f32, u64)> =
                wanted.into_iter().map(|id| (scorer.distance(&base[id as usize * dim..][..dim], row), id)).collect();
            let order = |a: &(f32, u64), b: &(f32, u64)| metric.order(a.0, b.0).then(a.1.cmp(&b.1));
            ranked.sort_unstable_by(order);
            for ((id, distance), (best, score)) in ids.iter_mut().zip(distances).zip(ranked) {
                (*id, *distance) = (score, best);
            }
        });
    Ok(found)
}
