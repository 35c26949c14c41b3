//! `warpann verify --repeat`: repeats the same searches from several threads at once. Their results must be equal to
//! the bit.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use serde::Serialize;
use test_cases::{Difference, same};
use test_random::Random;
use warpann::ivf::Encoding;
use warpann::{AnyIndex, Device, FlatIndex, GraphIndex, IvfIndex, Metric, Neighbors};

use crate::progress::Step;
use crate::report::{Failure, Out, Outcome};

/// A plan of searches that are repeated.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    /// Number of searches in all rounds.
    pub searches: u64,
    /// Threads that search at once.
    pub threads: usize,
    /// Seed of the vectors.
    pub seed: u64,
    /// The device that searches.
    pub device: Device,
}

/// Numbers of queries of the searches, in turn.
const QUERIES: [usize; 4] = [1, 3, 16, 2];
/// Number of searches between two updates of the progress, which must not slow them down.
const SHOWN_EVERY: u64 = 256;
/// Neighbours that each search returns.
const K: usize = 10;

#[derive(Serialize)]
struct Report {
    seed: u64,
    device: String,
    threads: usize,
    kinds: Vec<&'static str>,
    /// Searches that were compared.
    searches: u64,
    seconds: f64,
    passed: bool,
    difference: Option<FirstDifference>,
}

/// The first search that differs.
#[derive(Debug, Serialize)]
struct FirstDifference {
    kind: &'static str,
    search: u64,
    query: usize,
    place: usize,
    expected_id: Option<u64>,
    expected_distance_bits: Option<u32>,
    id: Option<u64>,
    distance_bits: Option<u32>,
}

/// Searches for the vectors that it is given.
type Search<'a> = dyn Fn(&[f32]) -> warpann::Result<Neighbors> + Sync + 'a;

/// An index, and the results of each set of queries on the CPU.
struct Kind<'a> {
    name: &'static str,
    device: String,
    search: Box<Search<'a>>,
    expected: Vec<Neighbors>,
}

/// Small indexes of `base`, so that a search takes tens of microseconds. Each is made by the CPU and moved to the
/// device.
fn kinds<'a>(base: &[f32], dim: usize, lists: usize, sets: &[Vec<f32>], device: Device) -> Outcome<Vec<Kind<'a>>> {
    let inverted = |encoding| -> warpann::Result<AnyIndex> {
        let builder = IvfIndex::<f32>::builder(dim, lists).encoding(encoding).iterations(4);
        let mut index = builder.device(Device::Cpu).build()?;
        index.train(base)?;
        index.set_probes(lists / 2)?;
        Ok(index.into())
    };
    let pq = Encoding::Pq { sub_quantizers: dim / 4, bits: 4, rotate: false };
    let graph = GraphIndex::<f32>::builder(dim).degree(8).exact_ratio(0).device(Device::Cpu).build()?;
    let indexes: [(_, AnyIndex); 4] = [
        ("exact", FlatIndex::new(dim, Metric::L2, Device::Cpu)?.into()),
        ("IVF-Flat", inverted(Encoding::Flat)?),
        ("IVF-PQ", inverted(pq)?),
        ("graph", graph.into()),
    ];
    let kind = |(name, mut index): (_, AnyIndex)| {
        index.add(base)?;
        let expected = sets.iter().map(|set| index.search(set, K)).collect::<Result<_, _>>()?;
        index.move_to(device)?;
        Ok(Kind { name, device: index.device(), search: Box::new(move |set: &[f32]| index.search(set, K)), expected })
    };
    indexes.into_iter().map(kind).collect()
}

/// Searches as planned; fails at the first difference.
pub fn run(plan: Plan, out: &Out) -> Outcome {
    // On the emulator the smallest indexes that use several blocks.
    let (n, dim, lists) = if plan.device == Device::Emulator { (300, 8, 4) } else { (3_000, 32, 16) };
    let mut random = Random::new(plan.seed);
    let base = random.signed_units(n * dim);
    let sets = QUERIES.map(|rows| random.signed_units(rows * dim));
    let kinds = kinds(&base, dim, lists, &sets, plan.device)?;
    let device = kinds[0].device.clone();
    let names: Vec<_> = kinds.iter().map(|kind| kind.name).collect();
    out.field("seed", plan.seed)?;
    out.field("device", &device)?;
    out.field("indexes", format_args!("{} of {n} vectors of {dim} components", names.join(", ")))?;
    out.field("threads", plan.threads)?;

    let start = Instant::now();
    let (searches, difference) = repeat(&kinds, &sets, plan)?;
    let seconds = start.elapsed().as_secs_f64();
    let passed = difference.is_none();
    let report =
        Report { seed: plan.seed, device, threads: plan.threads, kinds: names, searches, seconds, passed, difference };
    match &report.difference {
        None => {
            out.line(format_args!(
                "no difference; searches equal to the CPU's to the bit: {searches} in {seconds:.1} s, {:.0} a second",
                searches as f64 / seconds
            ))?;
            out.object(&report)
        }
        Some(difference) => {
            let message = format!(
                "search {} ({}) differs: {difference:?}; repeat with: warpann verify --repeat {} --seed {}",
                difference.search, difference.kind, plan.searches, plan.seed
            );
            Err(Failure::difference(message, &report))
        }
    }
}

/// Searches from all threads, and counts those that were compared.
fn repeat(kinds: &[Kind<'_>], sets: &[Vec<f32>], plan: Plan) -> Outcome<(u64, Option<FirstDifference>)> {
    let (next, compared) = (AtomicU64::new(0), AtomicU64::new(0));
    let stopped: Mutex<Option<Outcome<FirstDifference>>> = Mutex::new(None);
    let first_of = |stop: Outcome<FirstDifference>| {
        stopped.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(stop);
        // The other threads stop at their next search.
        next.store(plan.searches, Ordering::Relaxed);
    };
    let step = Step::of("searching repeatedly", usize::try_from(plan.searches).unwrap_or(usize::MAX), "searches");
    let work = || {
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= plan.searches {
                return;
            }
            if number % SHOWN_EVERY == 0 {
                step.at(number as usize);
            }
            let kind = &kinds[(number % kinds.len() as u64) as usize];
            let set = (number / kinds.len() as u64 % sets.len() as u64) as usize;
            match (kind.search)(&sets[set]) {
                Err(error) => return first_of(Err(error.into())),
                Ok(found) => match same(&kind.expected[set], &found) {
                    Err(difference) => return first_of(Ok(FirstDifference::new(kind.name, number, difference))),
                    Ok(()) => compared.fetch_add(1, Ordering::Relaxed),
                },
            };
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..plan.threads {
            scope.spawn(work);
        }
    });
    let difference = stopped.into_inner().unwrap_or_else(PoisonError::into_inner).transpose()?;
    Ok((compared.into_inner(), difference))
}

impl FirstDifference {
    fn new(kind: &'static str, search: u64, difference: Difference) -> Self {
        let Difference { query, place, expected, found } = difference;
        let bits = |distance: Option<f32>| distance.map(f32::to_bits);
        Self {
            kind,
            search,
            query,
            place,
            expected_id: expected.0,
            expected_distance_bits: bits(expected.1),
            id: found.0,
            distance_bits: bits(found.1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two kinds, of which the second gives another bit at its call `wrong`, counted from 0.
    fn repeated(searches: u64, wrong: u64) -> (u64, Option<FirstDifference>) {
        let right = Neighbors { k: 2, ids: vec![3, 5], distances: vec![0.5, 1.0] };
        let calls = AtomicU64::new(0);
        let kind = |name, search| Kind { name, device: "cpu".into(), search, expected: vec![right.clone(); 2] };
        let kinds = [
            kind("steady", Box::new(|_: &[f32]| Ok(right.clone())) as Box<_>),
            kind(
                "unsteady",
                Box::new(|_: &[f32]| {
                    let mut found = right.clone();
                    if calls.fetch_add(1, Ordering::Relaxed) == wrong {
                        found.distances[1] = found.distances[1].next_up();
                    }
                    Ok(found)
                }),
            ),
        ];
        let plan = Plan { searches, threads: 3, seed: 0, device: Device::Cpu };
        repeat(&kinds, &[vec![0.0], vec![1.0]], plan).unwrap()
    }

    #[test]
    fn one_wrong_bit_among_many_searches_is_found() {
        let (compared, difference) = repeated(1_000, 400);
        let difference = difference.expect("one search differs");
        assert_eq!((difference.kind, difference.query, difference.place), ("unsteady", 0, 1));
        assert!(compared < 1_000, "{compared}");
        let report = Report {
            seed: 0,
            device: "cpu".into(),
            threads: 3,
            kinds: vec!["steady", "unsteady"],
            searches: compared,
            seconds: 0.5,
            passed: false,
            difference: Some(difference),
        };
        let failure = Failure::difference("differs".into(), &report);
        let text = Out::new(true, Some("verify".into())).pretty(&failure.fields()).unwrap();
        crate::schema::check(&serde_json::from_str(&text).unwrap());
        let (compared, difference) = repeated(1_000, 500);
        assert!(difference.is_none(), "{difference:?}");
        assert_eq!(compared, 1_000);
    }
}
