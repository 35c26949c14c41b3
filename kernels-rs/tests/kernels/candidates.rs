//! Compaction of candidate lists ([`CompactCandidates`]), against the definition, with and without estimates.

use cuda_std::emulator::Buffer;
use test_random::Random;
use warpann_kernels::flat::candidates::CompactCandidates;
use warpann_kernels::product::metric::Metric;

const STRIDE: usize = 100;

/// The list, the threshold, and what the selection found of a query.
struct Query {
    values: Vec<f32>,
    count: u32,
    threshold: f32,
    found: f32,
}

/// A query after the compaction.
struct Compacted {
    threshold: f32,
    /// The entries of the list, with their places before.
    list: Vec<(f32, u32)>,
    is_flagged: bool,
}

/// Launches the kernel, and checks that flags and the list of flagged queries agree.
fn run(queries: &[Query], first: bool, estimated: bool) -> Vec<Compacted> {
    let count = queries.len();
    let flat: Vec<f32> = queries.iter().flat_map(|query| query.values.clone()).collect();
    let (mut values, mut rows) = (Buffer::from_slice(&flat), Buffer::from_slice(&Vec::from_iter(0..flat.len() as u32)));
    let of = |part: fn(&Query) -> f32| Buffer::from_slice(&queries.iter().map(part).collect::<Vec<f32>>());
    let (mut thresholds, found) = (of(|query| query.threshold), of(|query| query.found));
    let mut counts = Buffer::from_slice(&queries.iter().map(|query| query.count).collect::<Vec<u32>>());
    let (norms, bounds) = (Buffer::from_slice(&vec![0.0f32; count]), Buffer::from_slice(&[0.0f32; 2]));
    let (mut overflow, mut overflowed) = (Buffer::<u32>::new(count), Buffer::<u32>::new(count + 1));
    let launch = CompactCandidates {
        query_count: count as u32,
        metric: Metric::InnerProduct,
        gamma: 0.0,
        query_norms: norms.as_ptr(),
        query_residuals: None,
        base_bounds: bounds.as_ptr(),
        found: found.as_ptr(),
        found_stride: 1,
        first: first.into(),
        estimated: estimated.into(),
        thresholds: thresholds.as_mut_ptr(),
        values: values.as_mut_ptr(),
        rows: rows.as_mut_ptr(),
        counts: counts.as_mut_ptr(),
        stride: STRIDE as u32,
        overflow: overflow.as_mut_ptr(),
        overflowed: overflowed.as_mut_ptr(),
    };
    // SAFETY: the buffers are as long as the fields say.
    unsafe { crate::launch(&CompactCandidates::KERNEL, launch.config(), launch) };
    let (values, rows, counts, flags) = (values.to_vec(), rows.to_vec(), counts.to_vec(), overflow.to_vec());
    let listed = overflowed.to_vec();
    let mut listed_queries = listed[1..=listed[0] as usize].to_vec();
    listed_queries.sort_unstable();
    let flagged: Vec<u32> = (0..count as u32).filter(|&query| flags[query as usize] != 0).collect();
    assert_eq!(listed_queries, flagged);
    let list = |query: usize| {
        let at = query * STRIDE..query * STRIDE + counts[query] as usize;
        values[at.clone()].iter().copied().zip(rows[at].iter().copied()).collect()
    };
    let thresholds = thresholds.to_vec();
    let compacted =
        |query: usize| Compacted { threshold: thresholds[query], list: list(query), is_flagged: flags[query] != 0 };
    (0..count).map(compacted).collect()
}

#[test]
fn lists_keep_what_the_tighter_threshold_keeps() {
    let mut random = Random::new(25);
    let mut queries: Vec<Query> = (0..40)
        .map(|_| {
            let count = random.below(STRIDE + 8) as u32;
            let values: Vec<f32> = (0..STRIDE).map(|_| random.below(50) as f32).collect();
            let (threshold, found) = (random.below(50) as f32, random.below(50) as f32);
            Query { values, count, threshold, found }
        })
        .collect();
    for (query, threshold, found) in
        [(0, 20.0, f32::NAN), (1, f32::INFINITY, f32::NAN), (2, 20.0, 20.0), (3, 20.0, 20.5)]
    {
        (queries[query].threshold, queries[query].found) = (threshold, found);
        queries[query].count = 60;
    }
    for (first, estimated) in [(true, false), (false, false), (false, true)] {
        let results = run(&queries, first, estimated);
        for (number, (query, Compacted { threshold, list, is_flagged })) in queries.iter().zip(results).enumerate() {
            let old = if first { query.found } else { query.threshold };
            let expected = if query.found < old || old.is_nan() { query.found } else { old };
            assert_eq!(threshold.to_bits(), expected.to_bits(), "query {number}");
            let kept: Vec<(f32, u32)> = (0..STRIDE.min(query.count as usize))
                .map(|place| (query.values[place], (number * STRIDE + place) as u32))
                .filter(|&(value, _)| value <= expected || expected.is_nan())
                .collect();
            assert_eq!(list, kept, "query {number}");
            let unproved = estimated && old != f32::INFINITY && (query.found.is_nan() || query.found > old);
            assert_eq!(is_flagged, query.count > STRIDE as u32 || unproved, "query {number}: {} {old}", query.found);
        }
    }
}
