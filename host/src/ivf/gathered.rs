//! Exact search of the vectors that a filter accepts, if they are few.
//!
//! # Problem
//! Under a filter that accepts 1 vector in 1,000, a search needs 1,000 times as many lists for the same recall
//! ([`super::filtered`]). It then reads nearly all vectors, for results among few of them.
//!
//! # Algorithm
//! 1. The directory has the address of each accepted vector. The vectors are decoded, in the order of their ranks, into
//!    rows next to each other: a few at a time, so that the rows take little memory.
//! 2. The back end compares all queries with these rows ([`IvfBackend::search_rows`](super::IvfBackend::search_rows)),
//!    by the code of exact search. The results of the pieces are merged.
//!
//! Rows are in the order of ranks, so ties are broken by the lower id. A row has the bits that the scan of a list
//! compares, so the results have the bits of a search of all lists.
//!
//! # Choice
//! Reading an accepted vector here costs more than reading a vector of a list: its address is anywhere in memory, and a
//! code must be decoded in full, not looked up in tables, as are bits, which become numbers. So a pass over lists is
//! replaced if it would read at least [`VECTOR_COST`] (codes: [`CODE_COST`]) vectors for each accepted one. The choice
//! depends on numbers of vectors and lists alone, so it is the same on every device, for every batch of queries.
//!
//! 200,000 × 64 clustered vectors, 512 lists, 8 probes, k = 10, on two threads of an AMD EPYC with AVX-512, other work
//! beside it, 2026-11-25; milliseconds of the pass over lists, and of the gathered search:
//!
//! | accepted | read for each accepted one | flat, 1 query | flat, 16 | PQ of 16 bytes, 1 | PQ, 16 |
//! |---|---|---|---|---|---|
//! | 1 in 25 | 10 | 1.2, 1.2 | 12, 1.8 | 0.5, 2.5 | 8.8, 3.2 |
//! | 1 in 50 | 39 | 3.5, 1.2 | 24, 1.8 | 0.9, 0.8 | 23, 1.1 |
//! | 1 in 100 | 100 | 3.9, 0.4 | 14, 0.5 | 1.2, 0.4 | 17, 0.6 |
//! | 1 in 1,000 | 1,290 | 6.1, 0.03 | 20, 0.07 | 1.3, 0.04 | 15, 0.07 |
//!
//! The two costs are those of one query. Many queries would gain from fewer, but the results of a query must not depend
//! on the others.
//!
//! # Cost
//! For m accepted vectors and q queries, m · dim for the rows and q · m · dim for the search. No list is read, and no
//! centroid.

use super::SearchRequest;
use super::backend::{IvfBackend, RowSearch};
use super::view::View;
use crate::parallel::{Loop, ParallelSlice};
use crate::shards::merge;
use crate::vectors::VectorSlice;
use crate::{Bitset, Device, Input, NONE, Neighbors, Result, events, host_memory};

/// Number of vectors of lists that are read in the time of one accepted vector.
const VECTOR_COST: u64 = 8;
/// The same for codes.
const CODE_COST: u64 = 32;

/// Bytes of decoded rows at a time.
const PIECE_BYTES: usize = 64 << 20;
/// Smallest number of rows at a time, even with a smaller budget.
const LEAST_ROWS: usize = 256;

/// Number of rows of `dim` components that are decoded at a time.
pub(super) fn piece_rows(dim: usize, budget: Option<u64>) -> usize {
    let most = budget.map_or(usize::MAX, |budget| usize::try_from(budget / 2).unwrap_or(usize::MAX));
    (PIECE_BYTES.min(most) / (dim * size_of::<f32>())).max(LEAST_ROWS)
}

impl View<'_> {
    /// Whether comparing the accepted vectors takes less time than a search of `probes` lists of average length.
    pub(super) fn should_gather(&self, accepted: usize, probes: usize) -> bool {
        let cost = if self.codec.in_place() && !self.metric.compares_bits() { VECTOR_COST } else { CODE_COST };
        let read = self.len() as u128 * probes as u128 / self.list_count() as u128;
        accepted as u128 * u128::from(cost) <= read
    }

    /// Fills `ids` and `distances` (k for each of the request's queries) with the best of the accepted vectors, which
    /// are bits by rank. Decodes `rows` vectors at a time. If a query is not finite, returns
    /// [`Error::NotFinite`](crate::Error::NotFinite) and leaves the results unchanged.
    pub(super) fn search_gathered(
        &self,
        backend: &dyn IvfBackend,
        request: &SearchRequest<'_>,
        (accepted, rows): (&Bitset, usize),
        k: usize,
        ids: &mut [u64],
        distances: &mut [f32],
    ) -> Result<()> {
        request.queries.check_finite(Input::Queries)?;
        let (metric, directory) = (self.metric.of_components(), self.directory());
        let queries = self.queries(request.queries, Device::Cpu)?;
        let queries = VectorSlice::of(&queries, self.dim);
        ids.fill(NONE);
        distances.fill(metric.worst());
        let count = accepted.count_ones();
        events::path("inverted file", || backend.describe(), "accepted vectors one by one", queries.len());
        let mut ranks = accepted.runs().flatten().map(|rank| rank as u32);
        let (mut piece, mut decoded) = (host_memory::with_room(rows.min(count))?, Vec::new());
        let mut more: Option<Neighbors> = None;
        for first in (0..count).step_by(rows) {
            piece.clear();
            piece.extend(ranks.by_ref().take(rows));
            self.decode(&piece, &mut decoded)?;
            let request = SearchRequest { queries, filter: None, ..*request };
            let search = RowSearch { metric, rows: VectorSlice::of(&decoded, self.dim), request };
            let named = |id: &mut u64| *id = if *id == NONE { NONE } else { directory.id(piece[*id as usize]) };
            if first == 0 {
                backend.search_rows(search, k, ids, distances)?;
                ids.par_iter_mut().with_min_len(1 << 14).for_each(named);
                continue;
            }
            let more = match &mut more {
                Some(more) => more,
                none => none.insert(Neighbors::none(metric, queries.len(), k)?),
            };
            backend.search_rows(search, k, &mut more.ids, &mut more.distances)?;
            more.ids.par_iter_mut().with_min_len(1 << 14).for_each(named);
            merge(metric, k, ids, distances, &[(&more.ids, &more.distances)]);
        }
        Ok(())
    }

    /// Decodes the vectors of these ranks, row-major.
    fn decode(&self, ranks: &[u32], to: &mut Vec<f32>) -> Result<()> {
        to.clear();
        host_memory::reserve(to, ranks.len() * self.dim)?;
        to.resize(ranks.len() * self.dim, 0.0);
        to.par_chunks_exact_mut(self.dim).zip(ranks.par_iter()).with_min_len(256).for_each(|(to, &rank)| {
            let (list, code) = self.lists.code(rank);
            self.codec.decode_into(code, &self.centroids[list * self.dim..][..self.dim], to);
        });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ivf::{Encoding, IvfIndex, Scan};
    use crate::{Device, Element, Metric, Placement};
    use test_random::Random;

    const DIM: usize = 12;

    /// Compares the gathered search, in one piece and in several, with the search of all lists under the same filter.
    fn check<T: Element>(metric: Metric, encoding: Encoding, place: &str) {
        let mut random = Random::new(9);
        let mut numbers = |count: usize| random.whole(count * DIM, 16).into_iter().map(T::from_f32).collect::<Vec<T>>();
        let (base, queries) = (numbers(2000), numbers(30));
        let builder = IvfIndex::<T>::builder(DIM, 20).metric(metric).encoding(encoding).iterations(2);
        let mut index = builder.device(Device::Cpu).build().unwrap();
        index.train(&base).unwrap();
        let ids: Vec<u64> = (0..2000).map(|row| 5 * row + row % 3).collect();
        index.add_with_ids(&base, &ids).unwrap();
        index.remove(&ids[500..700]).unwrap();
        index.move_to(place.parse::<Placement>().unwrap()).unwrap();
        let view = index.kind.view(index.kind.trained.as_ref().unwrap());
        for share in [40, 500, 100_000] {
            let filter = index.filter(|id| id % share == 0);
            let accepted = index.kind.lists.accepted((&filter).into()).unwrap();
            // With few queries a device takes the CPU.
            for count in [30, 2] {
                let (k, queries) = (9, VectorSlice::of(&queries[..count * DIM], DIM));
                let request = SearchRequest { queries, probes: 20, filter: Some(&*accepted), scan: Scan::Auto };
                let results = || Neighbors::none(metric, count, k).unwrap();
                let mut expected = results();
                index.kind.backend.search(&view, &request, k, &mut expected.ids, &mut expected.distances).unwrap();
                for rows in [7, 2000] {
                    let mut found = results();
                    let (ids, distances) = (&mut found.ids, &mut found.distances);
                    view.search_gathered(&*index.kind.backend, &request, (&*accepted, rows), k, ids, distances)
                        .unwrap();
                    assert_eq!(found, expected, "{metric:?}, {encoding}, {place}, 1 in {share}, {count}, {rows} rows");
                }
            }
        }
    }

    #[test]
    fn gathered_results_are_those_of_all_lists_to_the_bit() {
        let pq = |rotate| Encoding::Pq { sub_quantizers: 4, bits: 5, rotate };
        for metric in Metric::OF_NUMBERS {
            for encoding in [Encoding::Flat, Encoding::F16, Encoding::Scalar8, pq(false), pq(true)] {
                check::<f32>(metric, encoding, "cpu");
            }
            check::<half::f16>(metric, Encoding::Flat, "cpu+cpu");
            check::<u8>(metric, Encoding::Flat, "cpu,cpu");
            check::<i8>(metric, pq(false), "cpu");
        }
    }

    #[test]
    fn gathered_results_are_those_of_all_lists_on_the_emulator() {
        let pq = Encoding::Pq { sub_quantizers: 4, bits: 5, rotate: false };
        check::<f32>(Metric::L2, Encoding::Flat, "emulator");
        check::<u8>(Metric::Cosine, Encoding::Flat, "emulator");
        check::<f32>(Metric::InnerProduct, pq, "emulator");
        check::<f32>(Metric::L2, Encoding::Scalar8, "emulator,cpu");
    }

    #[test]
    fn accepted_vectors_are_gathered_where_a_pass_would_read_more() {
        let mut index = IvfIndex::<f32>::builder(1, 10).device(Device::Cpu).iterations(1).build().unwrap();
        let base: Vec<f32> = (0..1000).map(|x| x as f32).collect();
        index.train(&base).unwrap();
        index.add(&base).unwrap();
        let view = index.kind.view(index.kind.trained.as_ref().unwrap());
        for (accepted, probes, gather) in
            [(0, 1, true), (12, 1, true), (13, 1, false), (125, 10, true), (126, 10, false), (1000, 10, false)]
        {
            assert_eq!(view.should_gather(accepted, probes), gather, "{accepted} of 1000, {probes} of 10 lists");
        }
    }

    #[test]
    fn pieces_fit_the_budget() {
        assert_eq!(piece_rows(128, None), (64 << 20) / 512);
        assert_eq!(piece_rows(128, Some(8 << 20)), (4 << 20) / 512);
        assert_eq!(piece_rows(128, Some(0)), LEAST_ROWS);
        assert_eq!(piece_rows(1 << 30, None), LEAST_ROWS);
    }
}
