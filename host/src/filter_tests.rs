//! Searches of every index under every form of filter, on every kind of placement, against a comparison with every vector.

use test_random::Random;

use crate::{
    Device, Filter, FlatIndex, GraphIndex, Index, IvfIndex, Metric, NONE, Neighbors, Placement, RangeNeighbors,
    SearchOptions,
};

const DIM: usize = 3;
const K: usize = 7;
/// Squared distances are whole numbers below this one, so f32 has all of them.
const RADIUS: f32 = 9.0;

/// Vectors of small whole numbers, with ids.
struct Vectors {
    ids: Vec<u64>,
    components: Vec<f32>,
    queries: Vec<f32>,
}

impl Vectors {
    /// `count` vectors with ids of the caller's, or with their numbers as ids.
    fn new(count: usize, dense: bool, random: &mut Random) -> Vectors {
        let ids = (0..count as u64).map(|id| if dense { id } else { 3 * id + (id % 2) * (1 << 40) }).collect();
        let components = random.whole(count * DIM, 8);
        Vectors { ids, components, queries: random.whole(4 * DIM, 8) }
    }

    /// Squared distance and id of each vector that `accepts` accepts, best first, for each query.
    fn ranked(&self, accepts: &dyn Fn(u64) -> bool) -> Vec<Vec<(f32, u64)>> {
        let of_query = |query: &[f32]| {
            let rows = self.ids.iter().zip(self.components.chunks_exact(DIM));
            let accepted = rows.filter(|(id, _)| accepts(**id));
            let mut all: Vec<(u32, u64)> = accepted
                .map(|(&id, row)| (row.iter().zip(query).map(|(x, y)| (x - y).powi(2) as u32).sum(), id))
                .collect();
            all.sort_unstable();
            all.into_iter().map(|(distance, id)| (distance as f32, id)).collect()
        };
        self.queries.chunks_exact(DIM).map(of_query).collect()
    }
}

/// Checks searches of an index without removed vectors, and again after half of the vectors are gone.
fn check<I: Index<f32>>(mut index: I, dense: bool, options: &SearchOptions<'_>, place: &str) {
    let random = &mut Random::new(11);
    let mut vectors = Vectors::new(300, dense, random);
    index.add_with_ids(&vectors.components, &vectors.ids).unwrap();
    for round in 0..2 {
        for share in [1, 3, 40, 1000] {
            let accepts = |id: u64| id.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20 & 0xffff < 0x10000 / share;
            let (mut some, mut others): (Vec<u64>, Vec<u64>) = vectors.ids.iter().copied().partition(|&id| accepts(id));
            for ids in [&mut some, &mut others] {
                ids.extend_from_slice(&ids.clone()[..ids.len() / 2]);
                ids.push(NONE);
                ids.reverse();
            }
            let bits = index.filter(accepts);
            let ranked = vectors.ranked(&accepts);
            let forms = [Filter::Bits(&bits), Filter::Ids(&some), Filter::Except(&others), Filter::Function(&accepts)];
            for (filter, name) in forms.into_iter().zip(["bits", "ids", "except", "function"]) {
                let what = format!("{place}, round {round}, 1 in {share}, {name}");
                let options = options.filter(filter);
                same(&index.search_with(&vectors.queries, K, &options).unwrap(), &ranked, &what);
                let within = index.range_search(&vectors.queries, RADIUS, &options).unwrap();
                same_within(&within, &ranked, &what);
            }
        }
        let gone: Vec<u64> = vectors.ids.iter().copied().filter(|_| random.below(2) == 0).collect();
        index.remove(&gone).unwrap();
        let rows = vectors.ids.iter().zip(vectors.components.chunks_exact(DIM));
        vectors.components = rows.filter(|(id, _)| !gone.contains(id)).flat_map(|(_, row)| row).copied().collect();
        vectors.ids.retain(|id| !gone.contains(id));
    }
}

fn same(found: &Neighbors, ranked: &[Vec<(f32, u64)>], what: &str) {
    for (row, ranked) in found.rows().zip(ranked) {
        let mut expected: Vec<(f32, u64)> = ranked.iter().take(K).copied().collect();
        expected.resize(K, (f32::INFINITY, NONE));
        let found: Vec<(f32, u64)> = row.1.iter().copied().zip(row.0.iter().copied()).collect();
        assert_eq!(found, expected, "{what}");
    }
}

fn same_within(found: &RangeNeighbors, ranked: &[Vec<(f32, u64)>], what: &str) {
    for (query, ranked) in ranked.iter().enumerate() {
        let expected: Vec<(f32, u64)> =
            ranked.iter().take_while(|(distance, _)| *distance <= RADIUS).copied().collect();
        let (ids, distances) = found.row(query);
        let found: Vec<(f32, u64)> = distances.iter().copied().zip(ids.iter().copied()).collect();
        assert_eq!(found, expected, "{what}");
    }
}

const PLACEMENTS: [&str; 5] = ["cpu", "emulator", "cpu+cpu", "cpu,cpu", "cpu+emulator"];

fn placement(text: &str) -> Placement {
    text.parse().unwrap()
}

#[test]
fn flat_indexes_accept_every_form() {
    for place in PLACEMENTS {
        for dense in [true, false] {
            let index = FlatIndex::<f32>::new(DIM, Metric::L2, placement(place)).unwrap();
            check(index, dense, &SearchOptions::new(), &format!("flat on {place}"));
        }
    }
}

#[test]
fn inverted_files_accept_every_form() {
    let sample = Random::new(3).whole(200 * DIM, 8);
    for place in PLACEMENTS {
        for dense in [true, false] {
            let mut index = IvfIndex::<f32>::builder(DIM, 5).iterations(2).device(placement(place)).build().unwrap();
            index.train(&sample).unwrap();
            check(index, dense, &SearchOptions::new().probes(5), &format!("inverted file on {place}"));
        }
    }
}

/// Walks whose beam is as wide as the index meet every vector.
#[test]
fn graphs_accept_every_form() {
    for (place, exact_ratio) in [("cpu", 0), ("cpu", 128), ("emulator", 128), ("cpu+cpu", 0)] {
        for dense in [true, false] {
            let builder = GraphIndex::<f32>::builder(DIM).degree(8).exact_ratio(exact_ratio).beam(400);
            let index = builder.device(placement(place)).build().unwrap();
            check(index, dense, &SearchOptions::new(), &format!("graph on {place}, exact ratio {exact_ratio}"));
        }
    }
}

#[test]
fn only_bits_become_stale() {
    let mut index = FlatIndex::<f32>::new(1, Metric::L2, Device::Cpu).unwrap();
    index.add(&[0.0, 1.0, 2.0]).unwrap();
    let bits = index.filter(|id| id != 1);
    index.remove(&[2]).unwrap();
    index.add_with_ids(&[5.0], &[9]).unwrap();
    let found = |filter| index.search_with(&[0.9], 2, &SearchOptions::new().filter(filter)).map(|found| found.ids);
    assert_eq!(found(Filter::Bits(&bits)).unwrap_err().kind(), "stale_filter");
    assert_eq!(found(Filter::Ids(&[0, 2, 9])).unwrap(), [0, 9]);
    assert_eq!(found(Filter::Except(&[1, 2])).unwrap(), [0, 9]);
    assert_eq!(found(Filter::Function(&|id| id != 1)).unwrap(), [0, 9]);
}
