//! Re-ranking of candidates, its certificate, and the probes near the last one.
//!
//! No result tells these changes:
//! - `candidate` names another list for a place without a vector: what is computed for it is dropped.
//! - The first values of the batch's lists are others: all of them are overwritten.
//! - The barrier before `block_order` is left out: that function has a barrier of its own before it reads entries. Its
//!   contract asks for one.

use cuda_std::emulator::Buffer;
use test_random::Random;
use warpann_kernels::NO_ROW;
use warpann_kernels::ivf::encoding::StoredRows;
use warpann_kernels::ivf::rerank::{
    Certificate, Certify, PerQuery, ProbedLists, Rerank, SETTLED, SettleProbes, WARP_SELECTED,
};
use warpann_kernels::product::element::RowKey;
use warpann_kernels::product::metric::Metric;

use crate::lists::{Found, Lists, METRICS, badness, distance, stored, units};

/// The candidates of all queries: the places with the least scores, `selected` for each query.
struct Candidates {
    places: Vec<u32>,
    scores: Vec<f32>,
}

impl Candidates {
    fn of(random: &mut Random, lists: &Lists, selected: usize) -> Candidates {
        let (mut places, mut scores) = (Vec::new(), Vec::new());
        for query in 0..lists.query_count() {
            let start = lists.row_starts[query] as usize;
            let score = |found: &Found| lists.scores[start + found.place as usize];
            let mut all = lists.all(query, None);
            all.sort_by(|a, b| score(a).total_cmp(&score(b)).then(a.place.cmp(&b.place)));
            let mut found: Vec<(u32, f32)> = all.iter().map(|found| (found.place, score(found))).collect();
            found.dedup_by_key(|found| found.0);
            found.resize(found.len().max(selected), (NO_ROW, f32::INFINITY));
            found.truncate(selected);
            // A place in the padding behind a list is no vector.
            if !lists.shared && random.once_in(2) {
                let probe = query * lists.probes;
                let behind = lists.lengths.get(lists.probed_lists[probe] as usize).map_or(0, |length| length % 4);
                if behind > 0 {
                    found[random.below(selected)].0 = lists.lengths[lists.probed_lists[probe] as usize];
                }
            }
            places.extend(found.iter().map(|found| found.0));
            scores.extend(found.iter().map(|found| found.1));
        }
        Candidates { places, scores }
    }
}

/// The results of a query, the number of its vectors among the candidates, and the flag that something else may be
/// better.
type Expected = ((Vec<f32>, Vec<u32>), u32, u32);

/// The expected results of re-ranking, by the vectors of each query that a filter accepts.
fn expected(lists: &Lists, candidates: &Candidates, all: &[Vec<Found>], selected: usize, k: usize) -> Vec<Expected> {
    let of_query = |(query, all): (usize, &Vec<Found>)| {
        let own = query * selected..(query + 1) * selected;
        let found: Vec<Found> =
            all.iter().filter(|f| candidates.places[own.clone()].contains(&f.place)).copied().collect();
        let worst = found.get(k - 1).map_or(f32::INFINITY, |found| found.badness);
        let last = f64::from(candidates.scores[own.end - 1]) + f64::from(lists.shifts[query]);
        let proved = found.len() == all.len() || last - f64::from(lists.errors[query]) > f64::from(worst);
        (lists.results(&found, k), found.len() as u32, u32::from(!proved))
    };
    all.iter().enumerate().map(of_query).collect()
}

/// Compares results, k of each query, and flags.
fn same(expected: &[Expected], k: usize, (keys, ranks, flags): (&[f32], &[u32], &[u32]), what: &str) {
    for (query, ((distances, expected), _, flag)) in expected.iter().enumerate() {
        let at = query * k..(query + 1) * k;
        let own = (&keys[at.clone()], &ranks[at], flags[query]);
        assert_eq!(own, (&distances[..], &expected[..], *flag), "query {query}, {what}");
    }
}

/// The k best of `selected` distances and ranks of each query.
fn best_of(keys: &[f32], ranks: &[u32], selected: usize, k: usize) -> (Vec<f32>, Vec<u32>) {
    let of_query = |(keys, ranks): (&[f32], &[u32])| {
        let pairs = keys.iter().copied().zip(ranks.iter().copied());
        let mut pairs: Vec<(f32, u32)> = pairs.filter(|pair| pair.1 != NO_ROW).collect();
        pairs.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        pairs.resize(pairs.len().max(k), (f32::INFINITY, NO_ROW));
        pairs.truncate(k);
        pairs
    };
    keys.chunks(selected).zip(ranks.chunks(selected)).flat_map(of_query).unzip()
}

/// Re-ranks the candidates of all queries in each way, and compares results and flags.
fn check(random: &mut Random, lists: &Lists, key: RowKey, selected: usize, k: usize, filtered: bool) {
    let candidates = Candidates::of(random, lists, selected);
    let queries = lists.query_count();
    let filter = filtered.then_some(&lists.filter[..]);
    let all: Vec<Vec<Found>> = (0..queries).map(|query| lists.all(query, filter)).collect();
    let live: Vec<u32> = all.iter().map(|found| found.len() as u32).collect();
    let expected = expected(lists, &candidates, &all, selected, k);
    let (query_rows, rows) =
        (Buffer::from_slice(&stored(key, &lists.queries)), Buffer::from_slice(&stored(key, &lists.rows)));
    let (places, scores) = (Buffer::from_slice(&candidates.places), Buffer::from_slice(&candidates.scores));
    let (probed_lists, offsets) = (Buffer::from_slice(&lists.probed_lists), Buffer::from_slice(&lists.offsets));
    let (starts, lengths) = (Buffer::from_slice(&lists.starts), Buffer::from_slice(&lists.lengths));
    let (ranks, filter) = (Buffer::from_slice(&lists.ranks), filter.map(Buffer::from_slice));
    let (live, shifts) = (Buffer::from_slice(&live), Buffer::from_slice(&lists.shifts));
    let errors = Buffer::from_slice(&lists.errors);
    let certificate = Certificate {
        selected: selected as u32,
        scores: scores.as_ptr(),
        live_rows: Some(live.as_ptr()),
        row_count: 0,
        shifts: Some(shifts.as_ptr()),
        errors: errors.as_ptr(),
    };
    let what = format!("{:?}, {key:?}, {selected} of {} lists, k {k}, filter {filtered}", lists.metric, lists.probes);
    let run = |way: PerQuery, sort: u32, each: usize| {
        let mut keys = Buffer::<f32>::new_poisoned(queries * each);
        let mut found = Buffer::<u32>::new_poisoned(queries * each);
        let mut flags = if sort == 1 { Buffer::<u32>::new_poisoned(queries) } else { Buffer::<u32>::new(queries) };
        let launch = Rerank {
            query_count: queries as u32,
            queries: query_rows.as_ptr(),
            stride: units(key, lists.stride),
            stored: StoredRows { rows: rows.as_ptr(), ..StoredRows::default() },
            places: places.as_ptr(),
            certificate,
            lists: ProbedLists {
                probes: lists.probes as u32,
                probed_lists: Some(probed_lists.as_ptr()),
                offsets: offsets.as_ptr(),
                list_starts: starts.as_ptr(),
                lengths: lengths.as_ptr(),
                shared_scores: lists.shared.into(),
                ranks: Some(ranks.as_ptr()),
                filter: filter.as_ref().map(Buffer::as_ptr),
            },
            metric: lists.metric,
            sort,
            k: k as u32,
            out_keys: keys.as_mut_ptr(),
            out_ranks: found.as_mut_ptr(),
            flags: Some(flags.as_mut_ptr()),
        };
        // SAFETY: the arrays have the shapes of the lists.
        unsafe { crate::launch(Rerank::kernel((key, way)), launch.config(way), launch) };
        (keys.to_vec(), found.to_vec(), flags)
    };
    let ways = [PerQuery::Block, PerQuery::Warp];
    // Each place is a candidate, or four.
    let candidates = if lists.shared { 4 * selected } else { selected };
    for way in ways.into_iter().filter(|&way| way == PerQuery::Block || candidates <= WARP_SELECTED as usize) {
        let (keys, found, flags) = run(way, 1, k);
        same(&expected, k, (&keys, &found, &flags.to_vec()), &format!("{way:?}, {what}"));
    }
    let (keys, found, mut flags) = run(PerQuery::Block, 0, candidates);
    let counts: Vec<u32> = expected.iter().map(|expected| expected.1).collect();
    assert_eq!(flags.to_vec(), counts, "vectors among the candidates, {what}");
    let (best_keys, best_ranks) = best_of(&keys, &found, candidates, k);
    let (mut keys, ranks) = (Buffer::from_slice(&best_keys), Buffer::from_slice(&best_ranks));
    let launch = Certify {
        query_count: queries as u32,
        k: k as u32,
        metric: lists.metric,
        certificate,
        keys: keys.as_mut_ptr(),
        ranks: ranks.as_ptr(),
        flags: flags.as_mut_ptr(),
    };
    // SAFETY: as above.
    unsafe { crate::launch(&Certify::KERNEL, launch.config(), launch) };
    same(&expected, k, (&keys.to_vec(), &best_ranks, &flags.to_vec()), &format!("certified, {what}"));
}

#[test]
fn candidates_are_ranked_by_their_distances() {
    let mut random = Random::new(51);
    for (turn, metric) in METRICS.into_iter().cycle().take(9).enumerate() {
        let key = [RowKey::F32, RowKey::U8, RowKey::F16, RowKey::I8, RowKey::Bf16][turn % 5];
        let (dim, probes) = ([3, 8, 130][turn % 3], [1, 2, 7][turn / 3]);
        let lists = Lists::random(&mut random, metric, dim, 9, 30, 5, probes);
        for (selected, k) in [(1, 1), (33, 5), (64, 10), (70, 20)] {
            check(&mut random, &lists, key, selected, k, turn % 2 == 1);
        }
    }
}

/// Four rows of a list share a score.
#[test]
fn rows_that_share_scores_are_ranked() {
    let mut random = Random::new(55);
    for (turn, metric) in METRICS.into_iter().cycle().take(9).enumerate() {
        let key = [RowKey::F32, RowKey::U8, RowKey::F16, RowKey::I8, RowKey::Bf16][turn % 5];
        let lists = Lists::random(&mut random, metric, [3, 8, 130][turn % 3], 9, 90, 5, [1, 2, 7][turn / 3]);
        let lists = lists.sharing(&mut random);
        for (selected, k) in [(1, 1), (3, 10), (16, 10), (33, 5), (70, 20)] {
            check(&mut random, &lists, key, selected, k, turn % 2 == 1);
        }
    }
}

/// Squared L2 of bits is the number of those that differ.
#[test]
fn candidates_of_bits_are_ranked() {
    let mut random = Random::new(54);
    for (turn, (dim, probes)) in [(32, 1), (96, 2), (4_128, 7)].into_iter().enumerate() {
        let lists = Lists::of_numbers(2, &mut random, Metric::L2, dim, (9, 30), (5, probes));
        for (selected, k) in [(1, 1), (33, 5), (70, 20)] {
            check(&mut random, &lists, RowKey::Bits, selected, k, turn % 2 == 1);
        }
    }
}

/// Several blocks share the candidates of a query.
#[test]
fn slices_of_candidates_are_ranked() {
    let mut random = Random::new(52);
    let lists = Lists::random(&mut random, Metric::L2, 4, 20, 150, 2, 20);
    check(&mut random, &lists, RowKey::F32, 1100, 30, true);
}

/// Without lists a place is a row, and without ranks the row is the rank.
#[test]
fn rows_of_one_list_are_ranked() {
    let mut random = Random::new(53);
    let (rows, queries, selected, k) = (40, 3, 12, 4);
    let (base, of) = (random.whole(rows * 4, 6), random.whole(queries * 4, 6));
    for metric in METRICS {
        let places: Vec<u32> = (0..queries * selected).map(|_| random.below(rows + 2) as u32).collect();
        let scores = vec![0.0f32; queries * selected];
        let errors = [f32::NAN, 0.0, -1e9];
        let buffers = (Buffer::from_slice(&stored(RowKey::F32, &of)), Buffer::from_slice(&stored(RowKey::F32, &base)));
        let (places_at, scores, errors) =
            (Buffer::from_slice(&places), Buffer::from_slice(&scores), Buffer::from_slice(&errors));
        let mut keys = Buffer::<f32>::new_poisoned(queries * k);
        let mut ranks = Buffer::<u32>::new_poisoned(queries * k);
        let mut flags = Buffer::<u32>::new_poisoned(queries);
        let launch = Rerank {
            query_count: queries as u32,
            queries: buffers.0.as_ptr(),
            stride: 4,
            stored: StoredRows { rows: buffers.1.as_ptr(), ..StoredRows::default() },
            places: places_at.as_ptr(),
            certificate: Certificate {
                selected: selected as u32,
                scores: scores.as_ptr(),
                row_count: rows as u32,
                errors: errors.as_ptr(),
                ..Certificate::default()
            },
            metric,
            sort: 1,
            k: k as u32,
            out_keys: keys.as_mut_ptr(),
            out_ranks: ranks.as_mut_ptr(),
            flags: Some(flags.as_mut_ptr()),
            ..Rerank::default()
        };
        // SAFETY: the arrays have these shapes; places from the number of rows on are no vectors.
        unsafe { crate::launch(Rerank::kernel((RowKey::F32, PerQuery::Warp)), launch.config(PerQuery::Warp), launch) };
        // NaN proves nothing; a score of 0 is above no badness of 0 or more; and one plus a thousand million is above
        // all.
        let flags = flags.to_vec();
        assert_eq!((flags[0], flags[2]), (1, 0), "{metric:?}");
        for query in 0..queries {
            let own = places[query * selected..(query + 1) * selected].iter().filter(|&&place| place < rows as u32);
            let of_row = |&row: &u32| {
                let y = &base[4 * row as usize..][..4];
                (badness(metric, distance(metric, &of[4 * query..][..4], y)), row)
            };
            let mut found: Vec<(f32, u32)> = own.map(of_row).collect();
            found.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
            let at = query * k..(query + 1) * k;
            let expected: Vec<u32> = found[..k].iter().map(|found| found.1).collect();
            assert_eq!(ranks.to_vec()[at.clone()], expected, "{metric:?}, query {query}");
            let expected: Vec<f32> = found[..k].iter().map(|found| badness(metric, found.0)).collect();
            assert_eq!(keys.to_vec()[at], expected, "{metric:?}, query {query}");
        }
    }
}

/// Settles the probes of one query per error. `spread` is the distance between neighbouring centroids.
fn settle(random: &mut Random, metric: Metric, centroids: usize, selected: usize, probes: usize, error: f32) {
    let queries = 5;
    let (base, of) = (random.whole(centroids * 4, 30), random.whole(queries * 4, 30));
    let (mut places, mut scores, mut expected) = (Vec::new(), Vec::new(), Vec::new());
    for query in 0..queries {
        let of_row = |row: usize| {
            let exact = badness(metric, distance(metric, &of[4 * query..][..4], &base[4 * row..][..4]));
            (exact, row as u32)
        };
        let mut exact: Vec<(f32, u32)> = (0..centroids).map(of_row).collect();
        let mut scored: Vec<(f32, u32)> =
            exact.iter().map(|&(exact, row)| (exact + 0.3 * error * random.signed_unit(), row)).collect();
        exact.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        scored.sort_by(|a, b| a.0.total_cmp(&b.0));
        scored.resize(selected.max(centroids), (f32::INFINITY, NO_ROW));
        scored.truncate(selected);
        let last = scored[probes - 1].0;
        let near = 1.5 * f64::from(error);
        let below = |score: f32| f64::from(score) < f64::from(last) - near;
        let above = |score: f32| f64::from(score) > f64::from(last) + near;
        let begin = scored[..probes].iter().filter(|scored| below(scored.0)).count();
        let end = selected - scored[probes..].iter().filter(|scored| above(scored.0)).count();
        let mut best: Vec<u32> = exact[..probes].iter().map(|exact| exact.1).collect();
        best.sort();
        // Comparing exactly gives the right result if what lies beyond is surely farther, and what lies before surely
        // nearer.
        let settled = end - begin <= SETTLED as usize;
        let worst = f64::from(exact[probes - 1].0);
        let next = f64::from(scored[if end < selected { end } else { selected - 1 }].0);
        let begins = begin == 0 || f64::from(scored[begin - 1].0) + f64::from(error) < worst;
        let all = scored[..end].iter().filter(|scored| scored.1 != NO_ROW).count() == centroids;
        let proved = settled && begins && (all || next - f64::from(error) > worst);
        places.extend(scored.iter().map(|scored| scored.1));
        scores.extend(scored.iter().map(|scored| scored.0));
        expected.push((best, proved));
    }
    let (of, base) = (Buffer::from_slice(&of), Buffer::from_slice(&base));
    let (places, scores, errors) =
        (Buffer::from_slice(&places), Buffer::from_slice(&scores), Buffer::from_slice(&vec![error; queries]));
    let mut probed_lists = Buffer::<u32>::new_poisoned(queries * probes);
    let mut flags = Buffer::<u32>::new_poisoned(queries);
    let launch = SettleProbes {
        query_count: queries as u32,
        queries: of.as_ptr(),
        centroids: base.as_ptr(),
        stride: 4,
        places: places.as_ptr(),
        certificate: Certificate {
            selected: selected as u32,
            scores: scores.as_ptr(),
            row_count: centroids as u32,
            errors: errors.as_ptr(),
            ..Certificate::default()
        },
        probes: probes as u32,
        metric,
        probed_lists: probed_lists.as_mut_ptr(),
        flags: flags.as_mut_ptr(),
    };
    // SAFETY: the arrays have these shapes.
    unsafe { crate::launch(&SettleProbes::KERNEL, launch.config(), launch) };
    let (probed_lists, flags) = (probed_lists.to_vec(), flags.to_vec());
    for (query, (best, proved)) in expected.iter().enumerate() {
        let what = format!("{metric:?}, {probes} of {selected} of {centroids}, E {error}, query {query}");
        let mut own = probed_lists[query * probes..(query + 1) * probes].to_vec();
        own.sort();
        assert_eq!(flags[query], u32::from(!proved), "{what}");
        if *proved {
            assert_eq!(&own, best, "{what}");
        }
    }
}

#[test]
fn probes_near_the_last_are_compared() {
    let mut random = Random::new(54);
    for metric in Metric::UNNORMALISED {
        for error in [0.0, 1.0, 40.0, 1e6] {
            for (centroids, selected, probes) in [
                (1, 1, 1),
                (60, 50, 7),
                (60, 60, 33),
                (300, 250, 100),
                (200, 220, 64),
                (128, 128, 100),
                (129, 129, 100),
            ] {
                settle(&mut random, metric, centroids, selected, probes, error);
            }
        }
    }
}
