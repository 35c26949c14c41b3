//! The quality of approximate neighbours.

use super::ShiftedIndex;
use crate::validate::{check_length, check_results, check_vectors};
use crate::{Device, Error, FlatIndex, Input, Metric, NONE, Neighbors, Result};

/// The quality of the results of an approximate search.
#[derive(Debug, Clone, Copy, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct Quality {
    /// Number of compared queries: those that have a true neighbour.
    pub queries: usize,
    /// Mean fraction of the true neighbours that were found: found neighbours count if they are at most as far as the
    /// last true neighbour, so vectors at equal distances count. 1 if no query has true neighbours.
    #[cfg_attr(feature = "serde", serde(with = "crate::serialised::Numbers"))]
    pub recall: f64,
    /// The relative excess of the distance of the k-th found neighbour over that of the true one.
    pub epsilon: Epsilon,
}

/// ε of the bound dist(found) = (1 + ε) · dist(true) for the last neighbour of each query, in distances (not squared).
#[derive(Debug, Clone, Copy, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct Epsilon {
    /// Mean over the queries, without the unbounded ones.
    #[cfg_attr(feature = "serde", serde(with = "crate::serialised::Numbers"))]
    pub mean: f64,
    /// The 99th percentile over the queries, without the unbounded ones.
    #[cfg_attr(feature = "serde", serde(with = "crate::serialised::Numbers"))]
    pub p99: f64,
    /// The maximum over the queries, without the unbounded ones.
    #[cfg_attr(feature = "serde", serde(with = "crate::serialised::Numbers"))]
    pub max: f64,
    /// Number of queries without an ε: the true distance is zero and the found one is not, or fewer neighbours were
    /// found than exist.
    pub unbounded: usize,
}

/// Compares the neighbours `found` with the `exact` ones of the same queries, both by squared L2 distance and of the
/// same k. O(queries · k).
///
/// # Errors
/// [`Error::WrongLength`] if the numbers of queries or of neighbours differ, or one of them does not have one distance
/// for each id, or a row is incomplete; [`Error::Zero`].
pub fn quality(found: &Neighbors, exact: &Neighbors) -> Result<Quality> {
    for neighbors in [found, exact] {
        check_neighbors(neighbors)?;
    }
    check_length("queries", exact.queries(), found.queries())?;
    check_length("neighbours of a query", exact.k, found.k)?;
    let (mut queries, mut recall, mut unbounded) = (0, 0.0, 0);
    let mut epsilons = Vec::new();
    for (query, (_, distances)) in found.rows().enumerate() {
        let depth = exact.found(query).count();
        if depth == 0 {
            continue;
        }
        let (_, truth) = exact.row(query);
        // Empty slots hold +∞, which only a true neighbour at +∞ would equal.
        let there = found.found(query).count().min(depth);
        let hits = distances[..there].iter().filter(|&&distance| distance <= truth[depth - 1]).count();
        queries += 1;
        recall += hits as f64 / depth as f64;
        let (last, true_last) = (f64::from(distances[depth - 1]), f64::from(truth[depth - 1]));
        if last == true_last {
            epsilons.push(0.0);
        } else if there < depth || true_last == 0.0 {
            unbounded += 1;
        } else {
            epsilons.push((last / true_last).sqrt() - 1.0);
        }
    }
    epsilons.sort_unstable_by(f64::total_cmp);
    let count = epsilons.len();
    let p99 = epsilons.get((count * 99).div_ceil(100).saturating_sub(1)).copied().unwrap_or(0.0);
    let epsilon = Epsilon {
        mean: epsilons.iter().sum::<f64>() / count.max(1) as f64,
        p99,
        max: epsilons.last().copied().unwrap_or(0.0),
        unbounded,
    };
    Ok(Quality { queries, recall: if queries == 0 { 1.0 } else { recall / queries as f64 }, epsilon })
}

/// Checks that neighbours are whole rows of ids and distances. The fields are public, so a caller may set them.
fn check_neighbors(neighbors: &Neighbors) -> Result<()> {
    if neighbors.k == 0 {
        return Err(Error::Zero { what: "k" });
    }
    check_results(neighbors.queries(), neighbors.k, &neighbors.ids, &neighbors.distances)
}

impl ShiftedIndex {
    /// Compares `found`, the results of this index for `queries` ([`ShiftedIndex::search`]) or, without queries, for
    /// the vectors of the index ([`ShiftedIndex::self_join`]), with an exact search on `device` for `sample` of the
    /// queries, evenly spaced; for all if there are fewer. O(sample · len · dim).
    ///
    /// # Errors
    /// [`Error::WrongLength`] if the numbers of queries and results differ, `found` does not have one
    /// distance for each id, or a row is incomplete; otherwise as [`FlatIndex::search`].
    pub fn quality(
        &self,
        found: &Neighbors,
        queries: Option<&[f32]>,
        sample: usize,
        device: Device,
    ) -> Result<Quality> {
        check_neighbors(found)?;
        let (dim, k) = (self.dim(), found.k);
        let rows = queries.unwrap_or(self.rows());
        let count = check_vectors(rows, dim, Input::Queries)?;
        check_length("queries", count, found.queries())?;
        let sample = sample.min(count);
        let picked = || (0..sample).map(|turn| (turn as u128 * count as u128 / sample as u128) as usize);
        let probes: Vec<f32> = picked().flat_map(|query| &rows[query * dim..(query + 1) * dim]).copied().collect();
        let mut flat = FlatIndex::<f32>::new(dim, Metric::L2, device)?;
        flat.add(self.rows())?;
        let mut of_found = Neighbors::none(Metric::L2, sample, k)?;
        let mut exact = match queries {
            Some(_) => flat.search(&probes, k)?,
            // One neighbour more, because a vector finds itself.
            None => flat.search(&probes, k.saturating_add(1))?,
        };
        for (turn, query) in picked().enumerate() {
            let slots = turn * k..(turn + 1) * k;
            of_found.ids[slots.clone()].copy_from_slice(found.row(query).0);
            of_found.distances[slots].copy_from_slice(found.row(query).1);
        }
        if queries.is_none() {
            exact = without_own(&exact, picked(), k)?;
        }
        quality(&of_found, &exact)
    }
}

/// The first `k` of k + 1 neighbours that are not the query itself.
fn without_own(exact: &Neighbors, own: impl Iterator<Item = usize>, k: usize) -> Result<Neighbors> {
    let mut others = Neighbors::none(Metric::L2, exact.queries(), k)?;
    for ((turn, own), (ids, distances)) in own.enumerate().zip(exact.rows()) {
        let kept = ids.iter().zip(distances).filter(|&(&id, _)| id != own as u64 && id != NONE);
        for (slot, (&id, &distance)) in (turn * k..(turn + 1) * k).zip(kept) {
            others.ids[slot] = id;
            others.distances[slot] = distance;
        }
    }
    Ok(others)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn neighbors(rows: &[[f32; 2]]) -> Neighbors {
        let distances: Vec<f32> = rows.concat();
        let ids = distances.iter().enumerate().map(|(id, d)| if d.is_finite() { id as u64 } else { NONE }).collect();
        Neighbors { k: 2, ids, distances }
    }

    #[test]
    fn recall_and_epsilon_by_hand() {
        let exact =
            neighbors(&[[1.0, 4.0], [1.0, 4.0], [0.0, 0.0], [1.0, 4.0], [1.0, f32::INFINITY], [f32::INFINITY; 2]]);
        let found = neighbors(&[
            [1.0, 4.0],
            [4.0, 9.0],
            [0.0, 1.0],
            [1.0, f32::INFINITY],
            [1.0, f32::INFINITY],
            [f32::INFINITY; 2],
        ]);
        let quality = quality(&found, &exact).unwrap();
        assert_eq!(quality.queries, 5);
        assert!((quality.recall - (1.0 + 0.5 + 0.5 + 0.5 + 1.0) / 5.0).abs() < 1e-12, "{quality:?}");
        assert_eq!(quality.epsilon, Epsilon { mean: 0.5 / 3.0, p99: 0.5, max: 0.5, unbounded: 2 });
    }

    #[test]
    fn samples_are_compared_with_exact_search() {
        let rows: Vec<f32> = (0..300).flat_map(|i| [(i * 7 % 100) as f32, (i * 13 % 50) as f32]).collect();
        let all = ShiftedIndex::builder(2).device(Device::Cpu).neighborhood(300).build();
        let few = ShiftedIndex::builder(2).device(Device::Cpu).neighborhood(6).shifts(1).build();
        for (index, exact) in [(all, true), (few, false)] {
            let mut index = index.unwrap();
            index.add(&rows).unwrap();
            for queries in [None, Some(&rows[..100])] {
                let found = match queries {
                    Some(queries) => index.search(queries, 5).unwrap(),
                    None => index.self_join(5).unwrap(),
                };
                let measured = index.quality(&found, queries, 40, Device::Cpu).unwrap();
                assert_eq!(measured.queries, 40);
                assert_eq!(measured.recall == 1.0, exact, "{measured:?}");
                assert_eq!(measured.epsilon.max == 0.0 && measured.epsilon.unbounded == 0, exact, "{measured:?}");
            }
            let none = index.search(&[], 5).unwrap();
            assert!(matches!(
                index.quality(&none, None, 9, Device::Cpu),
                Err(Error::WrongLength { what: "queries", expected: 300, actual: 0 })
            ));
        }
    }

    #[test]
    fn only_like_is_compared() {
        let two = neighbors(&[[1.0, 2.0]]);
        let one = Neighbors { k: 1, ids: vec![0], distances: vec![1.0] };
        assert!(matches!(
            quality(&two, &one),
            Err(Error::WrongLength { what: "neighbours of a query", expected: 1, actual: 2 })
        ));
        let none = Neighbors { k: 2, ids: vec![], distances: vec![] };
        assert_eq!(quality(&none, &none).unwrap().recall, 1.0);
    }
}
