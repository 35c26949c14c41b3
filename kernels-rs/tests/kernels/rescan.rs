//! Exact comparison of queries with all vectors of their lists.
//!
//! No result tells these changes:
//! - The distance of the k-th neighbour so far is not used: more vectors are compared.
//! - The pieces go to other warps, as long as each goes to one.
//! - A loop over entries or centroids has one more turn: no lane has work in it.
//! - After the last row of a batch another row of the batch is evaluated again.
//! - The first place of lanes other than lane 0 is another: they get that of lane 0.

use cuda_std::emulator::Buffer;
use test_random::Random;
use warpann_kernels::NO_ROW;
use warpann_kernels::ivf::encoding::StoredRows;
use warpann_kernels::ivf::rerank::ProbedLists;
use warpann_kernels::ivf::rescan::{Rescan, RescanProbes, Rescanned, completing_blocks};
use warpann_kernels::product::element::RowKey;
use warpann_kernels::product::metric::Metric;

use crate::lists::{Found, Lists, METRICS, badness, distance, stored, units};

/// How the queries are compared.
#[derive(Debug, Clone, Copy)]
struct Way {
    filtered: bool,
    scored: bool,
    /// Whether candidates up to a threshold are known.
    listed: bool,
    /// Blocks that share each query, and rows of a piece; 0 for the queries without a certificate.
    shared: (u32, u32),
    multiprocessors: u32,
}

/// The buffers of the lists that both kernels read.
struct Buffers {
    queries: Buffer<u8>,
    rows: Buffer<u8>,
    probed_lists: Buffer<u32>,
    starts: Buffer<u32>,
    lengths: Buffer<u32>,
    ranks: Buffer<u32>,
    filter: Buffer<u32>,
    scores: Buffer<f32>,
    row_starts: Buffer<u64>,
    offsets: Buffer<u32>,
    shifts: Buffer<f32>,
    errors: Buffer<f32>,
}

impl Buffers {
    fn of(lists: &Lists, key: RowKey) -> Buffers {
        Buffers {
            queries: Buffer::from_slice(&stored(key, &lists.queries)),
            rows: Buffer::from_slice(&stored(key, &lists.rows)),
            probed_lists: Buffer::from_slice(&lists.probed_lists),
            starts: Buffer::from_slice(&lists.starts),
            lengths: Buffer::from_slice(&lists.lengths),
            ranks: Buffer::from_slice(&lists.ranks),
            filter: Buffer::from_slice(&lists.filter),
            scores: Buffer::from_slice(&lists.scores),
            row_starts: Buffer::from_slice(&lists.row_starts),
            offsets: Buffer::from_slice(&lists.offsets),
            shifts: Buffer::from_slice(&lists.shifts),
            errors: Buffer::from_slice(&lists.errors),
        }
    }

    fn launch(&self, lists: &Lists, key: RowKey, way: Way) -> Rescan {
        Rescan {
            query_count: lists.query_count() as u32,
            queries: self.queries.as_ptr(),
            stride: units(key, lists.stride),
            stored: StoredRows { rows: self.rows.as_ptr(), ..StoredRows::default() },
            metric: lists.metric,
            lists: ProbedLists {
                probes: lists.probes as u32,
                probed_lists: Some(self.probed_lists.as_ptr()),
                offsets: self.offsets.as_ptr(),
                list_starts: self.starts.as_ptr(),
                lengths: self.lengths.as_ptr(),
                shared_scores: lists.shared.into(),
                ranks: Some(self.ranks.as_ptr()),
                filter: way.filtered.then(|| self.filter.as_ptr()),
            },
            scores: way.scored.then(|| self.scores.as_ptr()),
            row_starts: self.row_starts.as_ptr(),
            shifts: Some(self.shifts.as_ptr()),
            errors: self.errors.as_ptr(),
            shared_by: way.shared.0,
            piece: way.shared.1,
            ..Rescan::default()
        }
    }
}

/// The candidates of a query up to a threshold, with their scores. The best vector is not among them, so that a result
/// tells what was compared.
struct Candidates {
    threshold: f32,
    all: Vec<(Found, f32)>,
}

impl Candidates {
    fn of(random: &mut Random, lists: &Lists, query: usize) -> Candidates {
        let score = |found: &Found| lists.scores[lists.row_starts[query] as usize + found.place as usize];
        let mut all: Vec<_> = lists.all(query, None).into_iter().map(|found| (found, score(&found))).collect();
        let any = if all.is_empty() { 0.0 } else { all[random.below(all.len())].1 };
        let threshold = if random.once_in(6) { f32::NAN } else { any };
        all.retain(|(_, score)| *score <= any);
        all.drain(..all.len().min(1));
        Candidates { threshold, all }
    }

    /// The candidates among `accepted` that are not surely farther than `worst`, if others cannot be nearer than that.
    fn compared(&self, lists: &Lists, query: usize, worst: f32, accepted: &[Found]) -> Option<Vec<Found>> {
        let [shift, error] = [lists.shifts[query], lists.errors[query]].map(f64::from);
        let least = |score: f32| f64::from(score) + shift - error;
        let near = self.all.iter().filter(|(found, score)| accepted.contains(found) && least(*score) <= worst.into());
        (least(self.threshold) > worst.into()).then(|| near.map(|(found, _)| *found).collect())
    }
}

/// Compares the queries without a certificate, or all where blocks share them.
fn check(random: &mut Random, lists: &Lists, key: RowKey, k: usize, way: Way) {
    check_some(random, lists, key, k, way, &mut 0);
}

/// As [`check`]; adds the number of queries of which only candidates were compared.
fn check_some(random: &mut Random, lists: &Lists, key: RowKey, k: usize, way: Way, compared_some: &mut usize) {
    let queries = lists.query_count();
    let filter = way.filtered.then_some(&lists.filter[..]);
    let all: Vec<_> = (0..queries).map(|query| lists.all(query, filter)).collect();
    // The distance of the k-th neighbour so far: of the worst vectors.
    let mut before = vec![-7.0f32; queries * k];
    for (query, found) in all.iter().enumerate() {
        let known = if found.len() >= k { &found[random.below(found.len() - k + 1)..] } else { &[] };
        before[query * k + k - 1] = lists.results(known, k).0[k - 1];
    }
    let flags: Vec<u32> = (0..queries).map(|_| 3 * random.below(2) as u32).collect();
    let candidates: Vec<_> = (0..queries).map(|query| Candidates::of(random, lists, query)).collect();
    // Some queries had no room for all of their candidates.
    let room = if way.listed { candidates.iter().map(|of| of.all.len()).max().unwrap() as u32 } else { 10 };
    let of_query = |of: &Candidates| if way.listed { of.all.len() as u32 } else { 10 + random.below(2) as u32 };
    let mut counts: Vec<u32> = candidates.iter().map(of_query).collect();
    counts[0] += room + 1 - counts[0].min(room + 1);
    let buffers = Buffers::of(lists, key);
    let counts_at = Buffer::from_slice(&counts);
    let (mut listed_scores, mut listed_places) = (Vec::new(), Vec::new());
    for of in &candidates {
        let all = of.all.iter().map(|(found, score)| (*score, found.place));
        let (mut scores, mut places): (Vec<f32>, Vec<u32>) = all.unzip();
        scores.resize(room as usize, f32::NEG_INFINITY);
        places.resize(room as usize, 0);
        listed_scores.append(&mut scores);
        listed_places.append(&mut places);
    }
    let thresholds: Vec<f32> = candidates.iter().map(|of| of.threshold).collect();
    let (listed_scores, listed_places) = (Buffer::from_slice(&listed_scores), Buffer::from_slice(&listed_places));
    let thresholds_at = Buffer::from_slice(&thresholds);
    let mut keys = Buffer::from_slice(&before);
    let mut ranks = Buffer::from_slice(&vec![77u32; queries * k]);
    let mut flags_at = Buffer::from_slice(&flags);
    let completing = completing_blocks(way.multiprocessors) as usize;
    let mut entries = Buffer::<u64>::new_poisoned(completing.max(queries * way.shared.0 as usize) * k);
    let mut finished = Buffer::<u32>::new(completing.max(queries));
    let launch = Rescan {
        flags: flags_at.as_mut_ptr(),
        counts: Some(counts_at.as_ptr()),
        room,
        candidate_scores: way.listed.then(|| listed_scores.as_ptr()),
        candidate_places: listed_places.as_ptr(),
        thresholds: thresholds_at.as_ptr(),
        k: k as u32,
        entries: entries.as_mut_ptr(),
        finished: finished.as_mut_ptr(),
        keys: keys.as_mut_ptr(),
        out_ranks: ranks.as_mut_ptr(),
        ..buffers.launch(lists, key, way)
    };
    let config = launch.config(Rescanned::Neighbors, way.multiprocessors);
    // SAFETY: the arrays have the shapes of the lists.
    unsafe { crate::launch(Rescan::kernel((key, Rescanned::Neighbors)), config, launch) };
    let (keys, ranks, flags_after) = (keys.to_vec(), ranks.to_vec(), flags_at.to_vec());
    let shared = way.shared.0 > 0;
    for query in 0..queries {
        let at = query * k..(query + 1) * k;
        let what = format!("{:?}, {key:?}, k {k}, {} lists, {way:?}, query {query}", lists.metric, lists.probes);
        let lacks = flags[query] != 0 || counts[query] > room;
        let worst = badness(lists.metric, before[at.end - 1]);
        let some = candidates[query].compared(lists, query, worst, &all[query]);
        let some = some.filter(|_| way.listed && counts[query] <= room);
        *compared_some += usize::from(lacks && some.is_some());
        let found = some.as_ref().unwrap_or(&all[query]);
        let (distances, of) =
            if shared || lacks { lists.results(found, k) } else { (before[at.clone()].to_vec(), vec![77; k]) };
        assert_eq!((&keys[at.clone()], &ranks[at]), (&distances[..], &of[..]), "{what}");
        assert_eq!(flags_after[query], if shared { 0 } else { flags[query] }, "{what}");
    }
    assert!(finished.to_vec().iter().all(|&count| count == 0), "counters are as before the launch");
}

#[test]
fn queries_without_a_certificate_find_the_best_of_their_lists() {
    let mut random = Random::new(61);
    for (turn, metric) in METRICS.into_iter().cycle().take(6).enumerate() {
        let key = [RowKey::F32, RowKey::U8, RowKey::F16, RowKey::I8, RowKey::Bf16][turn % 5];
        for (probes, most, k) in [(1, 70, 1), (5, 40, 32), (36, 12, 33), (8, 50, 70)] {
            let lists = Lists::random(&mut random, metric, [3, 12][turn % 2], 40, most, 4, probes);
            let way = Way {
                filtered: turn % 2 == 0,
                scored: turn % 3 != 0,
                listed: false,
                shared: (0, 0),
                multiprocessors: 4,
            };
            check(&mut random, &lists, key, k, way);
            let lists = lists.sharing(&mut random);
            check(&mut random, &lists, key, k, Way { scored: true, ..way });
        }
    }
}

/// Candidates up to a threshold are enough, unless it is too low or there was no room for all.
#[test]
fn queries_find_the_best_of_their_candidates() {
    let mut random = Random::new(68);
    let mut compared_some = 0;
    for (turn, metric) in METRICS.into_iter().cycle().take(12).enumerate() {
        let key = [RowKey::F32, RowKey::U8, RowKey::F16, RowKey::I8, RowKey::Bf16][turn % 5];
        for (probes, most, k) in [(2, 70, 1), (5, 40, 7), (36, 12, 33), (8, 50, 70)] {
            let lists = Lists::random(&mut random, metric, [3, 12][turn % 2], 40, most, 6, probes);
            let way = Way { filtered: turn % 2 == 0, scored: false, listed: true, shared: (0, 0), multiprocessors: 4 };
            check_some(&mut random, &lists, key, k, way, &mut compared_some);
        }
    }
    assert!(compared_some > 20, "{compared_some}");
}

/// Squared L2 of bits is the number of those that differ.
#[test]
fn queries_of_bits_find_the_best_of_their_lists() {
    let mut random = Random::new(67);
    for (turn, (dim, probes, most, k)) in [(32, 1, 70, 1), (96, 5, 40, 32), (4_128, 8, 20, 33)].into_iter().enumerate()
    {
        let lists = Lists::of_numbers(2, &mut random, Metric::L2, dim, (40, most), (4, probes));
        let way = Way { filtered: turn == 1, scored: turn != 2, listed: false, shared: (0, 0), multiprocessors: 4 };
        check(&mut random, &lists, RowKey::Bits, k, way);
    }
}

/// More queries than blocks: a block looks for those without a certificate among several.
#[test]
fn few_blocks_serve_many_queries() {
    let mut random = Random::new(62);
    for (queries, multiprocessors) in [(40, 1), (9, 2)] {
        let lists = Lists::random(&mut random, Metric::L2, 4, 6, 10, queries, 2);
        let way = Way { filtered: false, scored: true, listed: false, shared: (0, 0), multiprocessors };
        check(&mut random, &lists, RowKey::F32, 3, way);
    }
}

#[test]
fn blocks_that_share_a_query_join_their_entries() {
    let mut random = Random::new(63);
    for (turn, (blocks, piece)) in [(1, 32), (2, 5), (3, 1), (40, 32)].into_iter().enumerate() {
        for (probes, most, k) in [(2, 60, 1), (9, 30, 32), (40, 7, 10)] {
            let lists = Lists::random(&mut random, METRICS[turn % 3], 5, 40, most, 2, probes);
            let way = Way {
                filtered: turn % 2 == 1,
                scored: false,
                listed: false,
                shared: (blocks, piece),
                multiprocessors: 4,
            };
            check(&mut random, &lists, RowKey::F32, k, way);
        }
    }
}

#[test]
fn vectors_within_a_radius_are_counted() {
    let mut random = Random::new(64);
    for (turn, metric) in METRICS.into_iter().cycle().take(6).enumerate() {
        let lists = Lists::random(&mut random, metric, 6, 12, 70, 7, 5);
        check_counts(&lists, RowKey::F32, turn);
        check_counts(&lists.sharing(&mut random), RowKey::F32, turn);
    }
    let bits = Lists::of_numbers(2, &mut random, Metric::L2, 64, (12, 70), (7, 5));
    check_counts(&bits, RowKey::Bits, 0);
}

/// Counts for three of seven queries.
fn check_counts(lists: &Lists, key: RowKey, turn: usize) {
    let metric = lists.metric;
    let way = Way {
        filtered: turn.is_multiple_of(2),
        scored: turn % 3 != 1,
        listed: false,
        shared: (0, 0),
        multiprocessors: 1,
    };
    let filter = way.filtered.then_some(&lists.filter[..]);
    let buffers = Buffers::of(lists, key);
    // A distance that occurs, so that vectors lie on the border.
    let some = lists.all(0, None);
    let radius = some.get(some.len() / 2).map_or(1.0, |found| badness(metric, found.badness));
    let listed = [3, 6, 0, 2];
    let listed_at = Buffer::from_slice(&listed);
    let mut within = Buffer::from_slice(&[100u32; 7]);
    let of_rows = buffers.launch(lists, key, way);
    let launch = Rescan { listed: listed_at.as_ptr(), radius, within: within.as_mut_ptr(), ..of_rows };
    let config = launch.config(Rescanned::Count, way.multiprocessors);
    // SAFETY: as above.
    unsafe { crate::launch(Rescan::kernel((key, Rescanned::Count)), config, launch) };
    for (query, count) in within.to_vec().into_iter().enumerate() {
        let near = lists.all(query, filter).iter().filter(|found| found.badness <= badness(metric, radius)).count();
        let near = if listed[1..].contains(&(query as u32)) { near as u32 } else { 0 };
        assert_eq!(count, 100 + near, "{metric:?}, {key:?}, {way:?}, query {query}");
    }
}

/// The probes of queries without a certificate, from centroids whose scores miss the distances by up to E.
fn probed_lists(random: &mut Random, metric: Metric, centroids: usize, probes: usize, error: f32) {
    let (queries, selected, row_stride) = (3, probes + 2, centroids + 3);
    let (base, of) = (random.whole(centroids * 4, 9), random.whole(queries * 4, 9));
    let mut scores = vec![f32::NAN; queries * row_stride];
    let (mut best_scores, mut expected) = (Vec::new(), Vec::new());
    for query in 0..queries {
        let of_row =
            |row: usize| (badness(metric, distance(metric, &of[4 * query..][..4], &base[4 * row..][..4])), row as u32);
        let mut exact: Vec<(f32, u32)> = (0..centroids).map(of_row).collect();
        let own = &mut scores[query * row_stride..][..centroids];
        own.iter_mut().zip(&exact).for_each(|(score, exact)| *score = exact.0 + 0.99 * error * random.signed_unit());
        let mut sorted = own.to_vec();
        sorted.sort_by(f32::total_cmp);
        sorted.resize(selected.max(centroids), f32::INFINITY);
        best_scores.extend(&sorted[..selected]);
        exact.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        let mut best: Vec<u32> = exact[..probes].iter().map(|exact| exact.1).collect();
        best.sort();
        expected.push(best);
    }
    let flags: Vec<u32> = (0..queries as u32).map(|query| query % 3).collect();
    let (of, base, scores) = (Buffer::from_slice(&of), Buffer::from_slice(&base), Buffer::from_slice(&scores));
    let (best_scores, errors) = (Buffer::from_slice(&best_scores), Buffer::from_slice(&vec![error; queries]));
    let (flags_at, mut found) = (Buffer::from_slice(&flags), Buffer::from_slice(&vec![NO_ROW - 5; queries * probes]));
    let launch = RescanProbes {
        query_count: queries as u32,
        queries: of.as_ptr(),
        centroids: base.as_ptr(),
        stride: 4,
        row_count: centroids as u32,
        metric,
        scores: scores.as_ptr(),
        row_stride: row_stride as u64,
        best_scores: best_scores.as_ptr(),
        selected: selected as u32,
        errors: errors.as_ptr(),
        probes: probes as u32,
        flags: flags_at.as_ptr(),
        probed_lists: found.as_mut_ptr(),
    };
    // SAFETY: the arrays have these shapes.
    unsafe { crate::launch(&RescanProbes::KERNEL, launch.config(1), launch) };
    let found = found.to_vec();
    for (query, best) in expected.iter().enumerate() {
        let mut own = found[query * probes..(query + 1) * probes].to_vec();
        own.sort();
        let what = format!("{metric:?}, {probes} of {centroids}, E {error}, query {query}");
        assert_eq!(own, if flags[query] == 0 { vec![NO_ROW - 5; probes] } else { best.clone() }, "{what}");
    }
}

#[test]
fn probes_without_a_certificate_are_the_nearest() {
    let mut random = Random::new(65);
    for metric in Metric::UNNORMALISED {
        for error in [0.0, 2.0, 1000.0] {
            for (centroids, probes) in [(1, 1), (150, 7), (200, 32), (90, 90), (300, 70)] {
                probed_lists(&mut random, metric, centroids, probes, error);
            }
        }
    }
}
