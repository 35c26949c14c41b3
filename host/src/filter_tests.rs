//! Searches of every index under every form of filter, on every kind of placement, against a comparison with every
//! vector.

use test_random::Random;

use crate::{
    Bitset, Device, Error, Filter, FlatIndex, GraphIndex, Index, IvfIndex, Kind, Metric, NONE, Neighbors, Placement,
    RangeNeighbors, SearchOptions, SearchStatistics,
};

const DIM: usize = 3;
const K: usize = 7;
/// Squared distances are whole numbers below this one, so f32 has all of them.
const RADIUS: f32 = 9.0;

/// Squared distance and id of vectors, best first, for each query.
type Ranked = Vec<Vec<(f32, u64)>>;

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
    fn ranked(&self, accepts: &dyn Fn(u64) -> bool) -> Ranked {
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
fn check<I: Kind<Element = f32>>(mut index: Index<I>, dense: bool, options: &SearchOptions<'_>, place: &str) {
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
                let (found, statistics) = index.search_with_statistics(&vectors.queries, K, &options).unwrap();
                same(&found, &ranked, &what);
                assert_eq!(found, index.search_with(&vectors.queries, K, &options).unwrap(), "{what}");
                assert_eq!((statistics.queries, statistics.accepted), (4, ranked[0].len() as u64), "{what}");
                let near: Ranked = ranked.iter().map(|row| within(row).to_vec()).collect();
                same(&index.search_with(&vectors.queries, K, &options.radius(RADIUS)).unwrap(), &near, &what);
                let within = index.range_search(&vectors.queries, RADIUS, &options).unwrap();
                same_within(&within, &ranked, &what);
            }
        }
        check_each(&index, &vectors, options, random, &format!("{place}, round {round}"));
        let gone: Vec<u64> = vectors.ids.iter().copied().filter(|_| random.below(2) == 0).collect();
        index.remove(&gone).unwrap();
        let rows = vectors.ids.iter().zip(vectors.components.chunks_exact(DIM));
        vectors.components = rows.filter(|(id, _)| !gone.contains(id)).flat_map(|(_, row)| row).copied().collect();
        vectors.ids.retain(|id| !gone.contains(id));
    }
}

/// Checks searches whose queries have filters of their own: some the same, some of several forms.
fn check_each<I: Kind<Element = f32>>(
    index: &Index<I>,
    vectors: &Vectors,
    options: &SearchOptions<'_>,
    random: &mut Random,
    place: &str,
) {
    let steps = [1, 2, 5, 70, 1_000_000];
    let bits = steps.map(|step| index.filter(|id| id % step == 0));
    let of_step = |step: u64| vectors.ids.iter().copied().filter(move |id| id % step == 0);
    let (named, ranked) =
        (steps.map(|step| of_step(step).collect::<Vec<_>>()), steps.map(|step| vectors.ranked(&|id| id % step == 0)));
    let odd = |id: u64| id % 2 == 1;
    let odd_ranked = vectors.ranked(&odd);
    let (empty, none): (&[u64], &[u64]) = (&[], &[]);
    let (all_ranked, none_ranked) = (vectors.ranked(&|_| true), vectors.ranked(&|_| false));
    for turn in 0..12 {
        let drawn: Vec<(Filter<'_>, &Ranked)> = (0..4)
            .map(|_| match (random.below(3), random.below(steps.len())) {
                (0, at) => (Filter::Bits(&bits[at]), &ranked[at]),
                (1, at) => (Filter::Ids(&named[at]), &ranked[at]),
                (_, 0) => (Filter::Except(empty), &all_ranked),
                (_, 1) => (Filter::Ids(none), &none_ranked),
                _ => (Filter::Function(&odd), &odd_ranked),
            })
            .collect();
        let filters: Vec<Filter<'_>> = drawn.iter().map(|(filter, _)| *filter).collect();
        let expected: Ranked = drawn.iter().enumerate().map(|(query, (_, ranked))| ranked[query].clone()).collect();
        let what = format!("{place}, turn {turn}: {filters:?}");
        let options = options.filter(Filter::Each(&filters));
        let (found, statistics) = index.search_with_statistics(&vectors.queries, K, &options).unwrap();
        same(&found, &expected, &what);
        let accepted: usize = expected.iter().map(Vec::len).sum();
        assert_eq!((statistics.queries, statistics.accepted), (4, accepted as u64), "{what}");
        let near: Ranked = expected.iter().map(|row| within(row).to_vec()).collect();
        same(&index.search_with(&vectors.queries, K, &options.radius(RADIUS)).unwrap(), &near, &what);
        same_within(&index.range_search(&vectors.queries, RADIUS, &options).unwrap(), &expected, &what);
    }
    let stale = Bitset::new(1);
    let one = [Filter::Except(empty)];
    let all = [one[0]; 4];
    let with_stale = [one[0], one[0], Filter::Bits(&stale), one[0]];
    let nested = [one[0], one[0], one[0], Filter::Each(&one)];
    let options_of = |filters| options.filter(Filter::Each(filters));
    let no_queries = index.search_with(&[], K, &options_of(&[])).unwrap();
    assert_eq!(no_queries.queries(), 0, "{place}");
    let refused = |filters| {
        let (mut ids, mut distances) = ([5; 4 * K], [5.0; 4 * K]);
        let error = index.search_into(&vectors.queries, K, &options_of(filters), &mut ids, &mut distances).unwrap_err();
        assert_eq!((ids, distances), ([5; 4 * K], [5.0; 4 * K]), "{place}: {error}");
        assert_eq!(index.range_search(&vectors.queries, 1.0, &options_of(filters)).unwrap_err().kind(), error.kind());
        error
    };
    let error = refused(&one);
    assert!(matches!(error, Error::WrongLength { what: "filters", expected: 4, actual: 1 }), "{place}: {error}");
    let error = refused(&with_stale);
    assert!(matches!(error, Error::WrongLength { what: "filter bits", actual: 1, .. }), "{place}: {error}");
    let error = refused(&nested);
    assert!(matches!(error, Error::Mismatch { what: "filter", .. }), "{place}: {error}");
    let mut bad = vectors.queries.clone();
    bad[2 * DIM + 1] = f32::NAN;
    let error = index.search_with(&bad, K, &options_of(&all)).unwrap_err();
    assert!(matches!(error, Error::NotFinite { row: 2, column: 1, .. }), "{place}: {error}");
}

fn same(found: &Neighbors, ranked: &[Vec<(f32, u64)>], what: &str) {
    for (row, ranked) in found.rows().zip(ranked) {
        let mut expected: Vec<(f32, u64)> = ranked.iter().take(K).copied().collect();
        expected.resize(K, (f32::INFINITY, NONE));
        let found: Vec<(f32, u64)> = row.1.iter().copied().zip(row.0.iter().copied()).collect();
        assert_eq!(found, expected, "{what}");
    }
}

/// The ranked vectors within the radius.
fn within(ranked: &[(f32, u64)]) -> &[(f32, u64)] {
    &ranked[..ranked.iter().take_while(|(distance, _)| *distance <= RADIUS).count()]
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

/// Walks whose beam is as wide as the index meet every vector. Codes are rounded, so walks by them need not find the
/// lowest ids of vectors at the same distance.
#[test]
fn graphs_accept_every_form() {
    for (place, exact_ratio) in [("cpu", 0), ("cpu", 128), ("emulator", 128), ("cpu+cpu", 0)] {
        for dense in [true, false] {
            let builder = GraphIndex::<f32>::builder(DIM).degree(8).exact_ratio(exact_ratio).beam(400).codes(false);
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

/// 1,000 numbers in 10 lists of about 100.
fn line(place: &str) -> IvfIndex<f32> {
    let base: Vec<f32> = (0..1000).map(|number| number as f32).collect();
    let mut index = IvfIndex::<f32>::builder(1, 10).device(placement(place)).build().unwrap();
    index.train(&base).unwrap();
    index.add(&base).unwrap();
    index
}

#[test]
fn statistics_of_inverted_files_count_lists_and_passes() {
    for place in ["cpu", "emulator", "cpu+cpu"] {
        let index = line(place);
        // Queries, accepted vectors, exact queries, lists, most lists, passes.
        let counts = |queries: &[f32], k: usize, options: &SearchOptions<'_>| {
            let statistics = index.search_with_statistics(queries, k, options).unwrap().1;
            let SearchStatistics { queries, accepted, exact_queries, lists, most_lists, passes, beam, refined } =
                statistics;
            assert_eq!((beam, refined, statistics.mean_lists()), (0, 0, lists as f64 / queries.max(1) as f64));
            [queries, accepted, exact_queries, lists, most_lists, passes]
        };
        let options = SearchOptions::new().probes(1);
        assert_eq!(counts(&[], 3, &options), [0, 1000, 0, 0, 0, 0]);
        assert_eq!(counts(&[5.0, 600.0], 3, &options), [2, 1000, 0, 2, 1, 1]);
        assert_eq!(counts(&[5.0, 600.0], 3, &options.probes(99)), [2, 1000, 2, 20, 10, 1]);
        // A half of the vectors is accepted: twice as many lists, in one pass.
        let even = |id: u64| id.is_multiple_of(2);
        assert_eq!(counts(&[5.0, 600.0], 3, &options.filter_by(&even)), [2, 500, 0, 4, 2, 1]);
        assert_eq!(counts(&[5.0, 600.0], 3, &options.filter_by(&even).widen(false)), [2, 500, 0, 2, 1, 1]);
        // 2 lists of each query hold too few accepted vectors, 8 of the first query enough, and all of the second.
        let half = |id: u64| id < 500;
        let again = options.filter_by(&half);
        assert_eq!(counts(&[5.0, 990.0], 400, &again), [2, 500, 1, 2 * 2 + 2 * 8 + 10, 10, 3]);
        // Few accepted vectors are compared one by one, from the first pass on or from a later one.
        assert_eq!(counts(&[5.0, 600.0], 3, &options.filter_ids(&[1, 7, 990])), [2, 3, 2, 0, 0, 1]);
        let near = |id: u64| id < 100;
        assert_eq!(counts(&[5.0, 990.0], 90, &options.probes(2).filter_by(&near)), [2, 100, 2, 0, 0, 1]);
        let nearer = |id: u64| id < 120;
        assert_eq!(counts(&[5.0, 990.0], 90, &options.filter_by(&nearer)), [2, 120, 1, 18, 9, 2]);
    }
    let mut empty = line("cpu");
    empty.clear();
    let (_, statistics) = empty.search_with_statistics(&[1.0], 3, &SearchOptions::new()).unwrap();
    assert_eq!(statistics, SearchStatistics { queries: 1, ..SearchStatistics::default() });
}

#[test]
fn statistics_of_flat_indexes_and_graphs_say_what_was_exact() {
    let base = Random::new(1).whole(2000 * DIM, 100);
    let queries = &base[..4 * DIM];
    let mut flat = FlatIndex::<f32>::new(DIM, Metric::L2, Device::Cpu).unwrap();
    let mut graph = GraphIndex::<f32>::builder(DIM).device(Device::Cpu).exact_ratio(1).build().unwrap();
    let counts = |index: &dyn Fn(&SearchOptions<'_>) -> SearchStatistics, options: &SearchOptions<'_>| {
        let SearchStatistics { queries, accepted, exact_queries, passes, beam, lists, .. } = index(options);
        assert_eq!((queries, lists), (4, 0));
        [accepted, exact_queries, passes, beam]
    };
    let options = SearchOptions::new();
    let (_, statistics) = graph.search_with_statistics(queries, K, &options).unwrap();
    assert_eq!(statistics, SearchStatistics { queries: 4, ..SearchStatistics::default() });
    flat.add(&base).unwrap();
    graph.add(&base).unwrap();
    let flat = |options: &SearchOptions<'_>| flat.search_with_statistics(queries, K, options).unwrap().1;
    let graph = |options: &SearchOptions<'_>| graph.search_with_statistics(queries, K, options).unwrap().1;
    let tenth = |id: u64| id.is_multiple_of(10);
    assert_eq!(counts(&flat, &options), [2000, 4, 1, 0]);
    assert_eq!(counts(&flat, &options.filter_by(&tenth)), [200, 4, 1, 0]);
    assert_eq!(counts(&graph, &options), [2000, 0, 1, 64]);
    // Ten times as wide a beam would keep 640 vectors: more than the 200 that can be results.
    assert_eq!(counts(&graph, &options.filter_by(&tenth)), [200, 4, 1, 0]);
    let most = |id: u64| !id.is_multiple_of(2);
    assert_eq!(counts(&graph, &options.filter_by(&most)), [1000, 0, 1, 128]);
}

/// The inner product of 1 with each number is the number: a radius is a lower bound.
#[test]
fn a_radius_bounds_similarities_from_below() {
    let base: Vec<f32> = (0..50).map(|number| number as f32).collect();
    let mut ivf = IvfIndex::<f32>::builder(1, 2).metric(Metric::InnerProduct).device(Device::Cpu).build().unwrap();
    ivf.train(&base).unwrap();
    let flat = FlatIndex::<f32>::new(1, Metric::InnerProduct, Device::Cpu).unwrap();
    let graph = GraphIndex::<f32>::builder(1).metric(Metric::InnerProduct).device(Device::Cpu).build().unwrap();
    fn check(mut index: Index<impl Kind<Element = f32>>, base: &[f32]) {
        index.add(base).unwrap();
        let options = SearchOptions::new().probes(2);
        let found = |radius: f32| index.search_with(&[1.0, 2.0], 3, &options.radius(radius)).unwrap();
        assert_eq!(found(48.0).ids, [49, 48, NONE, 49, 48, 47]);
        assert_eq!(found(48.5).distances, [49.0, f32::NEG_INFINITY, f32::NEG_INFINITY, 98.0, 96.0, 94.0]);
        assert_eq!(found(f32::INFINITY).ids, [NONE; 6]);
        assert_eq!(found(f32::NEG_INFINITY), index.search_with(&[1.0, 2.0], 3, &options).unwrap());
        let refused = index.search_with(&[1.0], 3, &options.radius(f32::NAN)).unwrap_err();
        assert_eq!(refused.kind(), "bad_number");
    }
    check(flat, &base);
    check(ivf, &base);
    check(graph, &base);
}
