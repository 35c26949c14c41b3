//! Searches under a filter: how many lists they read.
//!
//! # Problem
//! A search reads the same number of lists for each query. Under a filter that accepts a share s of the vectors, these
//! lists hold 1/s times fewer vectors that may be returned. With s = 1/1,000 and the default number of probes most
//! queries then find fewer than k vectors. The recall falls as well, because the k best accepted vectors are as far
//! away as the k/s best vectors of all, in more distant lists.
//!
//! # Algorithm
//! 1. Read probes / s lists, at most all, so that a query sees about as many accepted vectors as a search without
//!    filter sees vectors.
//! 2. While a query has fewer than k results, and fewer than the filter accepts, and lists are left: search again for
//!    these queries, in [`STEP`] times as many lists.
//!
//! A pass that would read many vectors for each accepted one compares the accepted vectors instead (`gathered.rs`),
//! which is a search of all lists. Without leave to read more lists than `probes`, none of this happens, unless
//! `probes` are all lists.
//!
//! Each pass is an ordinary search, so the results are those of a search with the last number of probes: they have the
//! same bits on every device. A query that needs no second pass is not searched again.
//!
//! # Cost
//! The lists read grow by 1/s, until the accepted vectors are compared instead. The filter is tested before a distance
//! is computed, so the number of distances stays about the same. A query is searched at most 1 + log₄(lists / probes)
//! times, and the lists of the last pass are more than half of all.
//!
//! # Recall
//! 20,000 × 12 vectors in overlapping clusters, 128 lists, 4 probes, k = 10 (as in the test below, 2026-11-25):
//!
//! | s | 1 | 1/10 | 1/100 | 1/1,000 |
//! |---|---|---|---|---|
//! | recall | .942 | 1.000 | 1.000 | 1.000 |
//! | recall with 4 lists | .942 | .783 | .346 | .080 |
//!
//! With 2 probes the first two columns are .879 and .979. So probes / s lists are more than the recall without filter
//! needs.

use super::SearchRequest;
use super::gathered::piece_rows;
use super::view::View;
use super::{Bitset, Ivf};
use crate::index::private::Stored;
use crate::random;
use crate::vectors::VectorSlice;
use crate::{Element, NONE, Neighbors, Result, SearchStatistics};

/// The factor by which the lists of a further pass grow.
const STEP: usize = 4;

/// The number of lists that hold about as many vectors of the `accepted` ones as `probes` lists hold of all `vectors`;
/// at most `lists`. If no vector is accepted, `probes`.
fn probes_under_filter(probes: usize, lists: usize, accepted: usize, vectors: usize) -> usize {
    if accepted == 0 {
        return probes;
    }
    let wide = (probes as u128 * vectors as u128).div_ceil(accepted as u128);
    usize::try_from(wide).unwrap_or(usize::MAX).clamp(probes, lists.max(probes))
}

impl<T: Element> Ivf<T> {
    /// Searches under `filter` in as many lists as it needs, or among the accepted vectors. `queries` are the queries
    /// of `request`. Notes the passes in `statistics`. `ids` and `distances` have k slots for each. They stay as they
    /// are if a query is not finite.
    pub(super) fn search_filtered(
        &self,
        view: &View<'_>,
        (request, queries): (&SearchRequest<'_>, &[T]),
        filter: &Bitset,
        k: usize,
        (ids, distances): (&mut [u64], &mut [f32]),
        statistics: &mut SearchStatistics,
    ) -> Result<()> {
        let accepted = filter.count_ones();
        let gather = |request: &SearchRequest<'_>, ids: &mut [u64], distances: &mut [f32]| {
            let rows = piece_rows(view.dim, self.settings.budget);
            view.search_gathered(&*self.backend, request, (filter, rows), k, ids, distances)
        };
        let wanted = k.min(accepted);
        let mut probes = probes_under_filter(request.probes, self.lists(), accepted, self.len());
        if view.should_gather(accepted, probes) {
            statistics.compared_all(request.queries.len());
            return gather(request, ids, distances);
        }
        let mut found = Neighbors::none(self.metric(), request.queries.len(), k)?;
        let first = SearchRequest { probes, ..*request };
        statistics.read_lists(request.queries.len(), probes, self.lists());
        self.backend.search(view, &first, k, &mut found.ids, &mut found.distances)?;

        let is_short = |row: &[u64]| wanted > 0 && row[wanted - 1] == NONE;
        let rows = found.ids.chunks_exact(k).enumerate();
        let mut short: Vec<usize> = rows.filter(|(_, row)| is_short(row)).map(|(query, _)| query).collect();
        while !short.is_empty() && probes < self.lists() {
            probes = probes.saturating_mul(STEP).min(self.lists());
            let again = random::gather(queries, self.dim(), &short)?;
            let mut more = Neighbors::none(self.metric(), short.len(), k)?;
            let wider = SearchRequest { queries: VectorSlice::of(&again, self.dim()), probes, ..*request };
            if view.should_gather(accepted, probes) {
                statistics.compared_all(short.len());
                gather(&wider, &mut more.ids, &mut more.distances)?;
            } else {
                statistics.read_lists(short.len(), probes, self.lists());
                self.backend.search(view, &wider, k, &mut more.ids, &mut more.distances)?;
            }
            let mut rows = more.ids.chunks_exact(k).zip(more.distances.chunks_exact(k));
            short.retain(|&query| {
                let Some((ids, distances)) = rows.next() else { return false };
                found.ids[query * k..][..k].copy_from_slice(ids);
                found.distances[query * k..][..k].copy_from_slice(distances);
                is_short(ids)
            });
        }
        ids.copy_from_slice(&found.ids);
        distances.copy_from_slice(&found.distances);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::IvfIndex;
    use crate::ivf::SearchOptions;
    use crate::{Device, Error, FlatIndex, Metric, Placement};
    use test_random::Random;

    #[test]
    fn probes_grow_as_the_share_of_accepted_vectors_falls() {
        assert_eq!(probes_under_filter(4, 64, 1000, 1000), 4);
        assert_eq!(probes_under_filter(4, 64, 500, 1000), 8);
        assert_eq!(probes_under_filter(4, 64, 333, 1000), 13);
        assert_eq!(probes_under_filter(4, 64, 10, 1000), 64);
        assert_eq!(probes_under_filter(4, 64, 0, 1000), 4);
        assert_eq!(probes_under_filter(usize::MAX, usize::MAX, 1, usize::MAX), usize::MAX);
    }

    /// Vectors around random centres, and queries near the same centres. A vector's centre does not depend on its id
    /// modulo a share.
    fn clustered(count: usize, dim: usize, centres: usize, random: &mut Random) -> Vec<f32> {
        let mut of_centres = Random::new(99);
        let centres: Vec<f32> = (0..centres * dim).map(|_| of_centres.unit() as f32 * 10.0).collect();
        let count_of_centres = centres.len() / dim;
        (0..count)
            .flat_map(|_| {
                let centre = random.below(count_of_centres) * dim;
                (0..dim).map(|j| centres[centre + j] + random.unit() as f32 * 6.0).collect::<Vec<_>>()
            })
            .collect()
    }

    fn recall(found: &Neighbors, truth: &Neighbors) -> f64 {
        let rows = found.ids.chunks_exact(found.k).zip(truth.ids.chunks_exact(truth.k));
        let hits: usize = rows.map(|(found, truth)| truth.iter().filter(|id| found.contains(id)).count()).sum();
        hits as f64 / truth.ids.len() as f64
    }

    #[test]
    fn recall_under_filters_is_that_without() {
        const DIM: usize = 12;
        const K: usize = 10;
        let mut random = Random::new(7);
        let base = clustered(20_000, DIM, 200, &mut random);
        let queries = clustered(100, DIM, 200, &mut random);
        let mut index = IvfIndex::<f32>::builder(DIM, 128).device(Device::Cpu).build().unwrap();
        index.train(&base).unwrap();
        index.add(&base).unwrap();
        let truth_of = |share: usize| {
            let mut exact = FlatIndex::<f32>::new(DIM, Metric::L2, Device::Cpu).unwrap();
            let kept: Vec<f32> = base.chunks_exact(DIM).step_by(share).flatten().copied().collect();
            exact.add(&kept).unwrap();
            let mut truth = exact.search(&queries, K).unwrap();
            truth.ids.iter_mut().for_each(|id| *id *= share as u64);
            truth
        };
        let plain = recall(&index.search_with(&queries, K, &SearchOptions::new().probes(4)).unwrap(), &truth_of(1));
        assert!(plain > 0.9 && plain < 1.0, "without a filter: {plain}");
        for share in [1, 10, 100, 1000] {
            let filter = index.filter(|id| id % share as u64 == 0);
            let truth = truth_of(share);
            let options = SearchOptions::new().probes(4).filter(&filter);
            let found = index.search_with(&queries, K, &options).unwrap();
            assert!(found.ids.iter().all(|&id| id != NONE && id % share as u64 == 0), "1 in {share}");
            let widened = recall(&found, &truth);
            assert!(widened >= plain - 0.01, "1 in {share}: {widened}, without a filter {plain}");
            if share >= 10 {
                let fixed = index.search_with(&queries, K, &options.widen(false)).unwrap();
                assert!(recall(&fixed, &truth) < plain - 0.01, "1 in {share}: the test is too easy");
            }
        }
    }

    /// Few accepted vectors, all in lists that the first pass does not read for most queries.
    #[test]
    fn every_accepted_vector_is_found_if_k_is_larger() {
        let base: Vec<f32> = (0..2000).map(|i| i as f32).collect();
        let queries: Vec<f32> = (0..20).map(|i| i as f32 * 100.0).collect();
        for device in ["cpu", "emulator", "cpu+emulator", "cpu,cpu"] {
            let mut index =
                IvfIndex::<f32>::builder(1, 50).device(device.parse::<Placement>().unwrap()).build().unwrap();
            index.train(&base).unwrap();
            index.add(&base).unwrap();
            let filter = index.filter(|id| id >= 1993 || (100..1100).contains(&id));
            let options = SearchOptions::new().probes(1).filter(&filter);
            let found = index.search_with(&queries, 1005, &options).unwrap();
            for (query, row) in found.ids.chunks_exact(1005).enumerate() {
                let mut expected: Vec<u64> = (100..1100).chain(1993..2000).collect();
                let to = |id: u64| (id as f32 - queries[query]).powi(2);
                expected.sort_by(|&a, &b| to(a).total_cmp(&to(b)).then(a.cmp(&b)));
                assert_eq!(row, &expected[..1005], "{device}, query {query}");
            }
            let none = index.filter(|_| false);
            let found = index.search_with(&queries, 3, &options.filter(&none)).unwrap();
            assert!(found.ids.iter().all(|&id| id == NONE) && found.distances.iter().all(|&d| d == f32::INFINITY));
        }
    }

    #[test]
    fn a_bad_query_leaves_the_results_alone() {
        let base: Vec<f32> = (0..100).map(|i| i as f32).collect();
        let mut index = IvfIndex::<f32>::builder(1, 4).device(Device::Cpu).build().unwrap();
        index.train(&base).unwrap();
        index.add(&base).unwrap();
        let filter = index.filter(|id| id == 50);
        let options = SearchOptions::new().probes(1).filter(&filter);
        let (mut ids, mut distances) = ([7; 4], [7.0; 4]);
        let error = index.search_into(&[1.0, f32::NAN], 2, &options, &mut ids, &mut distances).unwrap_err();
        assert!(matches!(error, Error::NotFinite { row: 1, .. }), "{error}");
        assert_eq!((ids, distances), ([7; 4], [7.0; 4]));
    }
}
