//! `warpann verify --repeat`: repeats the same searches from several threads at once. Their results must be equal to the bit.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use serde::Serialize;
use warpann::ivf::Encoding;
use warpann::{Device, FlatIndex, GraphIndex, IvfIndex, Metric, Neighbors, SearchOptions};

use crate::progress::Step;
use crate::random::Random;
use crate::report::{Failure, Out, Outcome};
use crate::verify::first_difference;

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
    difference: Option<Difference>,
}

/// The first search that differs.
#[derive(Debug, Serialize)]
struct Difference {
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
    search: Box<Search<'a>>,
    expected: Vec<Neighbors>,
}

/// Searches as planned; fails at the first difference.
pub fn run(plan: Plan, out: &Out) -> Outcome {
    // Small indexes, so that a search takes tens of microseconds; on the emulator the smallest that use several blocks.
    let (n, dim, lists) = if plan.device == Device::Emulator { (300, 8, 4) } else { (3_000, 32, 16) };
    let mut random = Random::new(plan.seed);
    let mut vectors = |rows: usize| (0..rows * dim).map(|_| random.signed_unit()).collect::<Vec<f32>>();
    let base = vectors(n);
    let sets = QUERIES.map(&mut vectors);

    let flat = |device| -> warpann::Result<_> {
        let mut index = FlatIndex::<f32>::new(dim, Metric::L2, device)?;
        index.add(&base)?;
        Ok(index)
    };
    let inverted = |encoding| -> warpann::Result<_> {
        let mut index =
            IvfIndex::<f32>::builder(dim, lists).encoding(encoding).iterations(4).device(Device::Cpu).build()?;
        index.train(&base)?;
        index.add(&base)?;
        let expected: Vec<_> = sets
            .iter()
            .map(|set| index.search_with(set, K, &SearchOptions::new().probes(lists / 2)))
            .collect::<Result<_, _>>()?;
        index.move_to(plan.device)?;
        Ok((index, expected))
    };
    let walks = || -> warpann::Result<_> {
        let mut index = GraphIndex::<f32>::builder(dim).degree(8).exact_ratio(0).device(Device::Cpu).build()?;
        index.add(&base)?;
        let expected: Vec<_> = sets.iter().map(|set| index.search(set, K)).collect::<Result<_, _>>()?;
        index.move_to(plan.device)?;
        Ok((index, expected))
    };
    let (exact, on_cpu) = (flat(plan.device)?, flat(Device::Cpu)?);
    let (ivf_flat, of_flat) = inverted(Encoding::Flat)?;
    let (ivf_pq, of_pq) = inverted(Encoding::Pq { sub_quantizers: dim / 4, bits: 4, rotate: false })?;
    let (graph, of_graph) = walks()?;
    let of_exact = sets.iter().map(|set| on_cpu.search(set, K)).collect::<Result<_, _>>()?;
    let kinds = [
        Kind { name: "exact", search: Box::new(|set| exact.search(set, K)), expected: of_exact },
        Kind {
            name: "IVF-Flat",
            search: Box::new(|set| ivf_flat.search_with(set, K, &SearchOptions::new().probes(lists / 2))),
            expected: of_flat,
        },
        Kind {
            name: "IVF-PQ",
            search: Box::new(|set| ivf_pq.search_with(set, K, &SearchOptions::new().probes(lists / 2))),
            expected: of_pq,
        },
        Kind { name: "graph", search: Box::new(|set| graph.search(set, K)), expected: of_graph },
    ];
    let names: Vec<_> = kinds.iter().map(|kind| kind.name).collect();
    out.field("seed", plan.seed)?;
    out.field("device", exact.device())?;
    out.field("indexes", format_args!("{} of {n} vectors of {dim} components", names.join(", ")))?;
    out.field("threads", plan.threads)?;

    let start = Instant::now();
    let (searches, difference) = repeat(&kinds, &sets, plan)?;
    let seconds = start.elapsed().as_secs_f64();
    let passed = difference.is_none();
    let report = Report {
        seed: plan.seed,
        device: exact.device(),
        threads: plan.threads,
        kinds: names,
        searches,
        seconds,
        passed,
        difference,
    };
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
fn repeat(kinds: &[Kind<'_>], sets: &[Vec<f32>], plan: Plan) -> Outcome<(u64, Option<Difference>)> {
    let (next, compared) = (AtomicU64::new(0), AtomicU64::new(0));
    let stopped: Mutex<Option<Outcome<Difference>>> = Mutex::new(None);
    let first_of = |stop: Outcome<Difference>| {
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
                Ok(found) => match first_difference(&kind.expected[set], &found) {
                    Some(at) => return first_of(Ok(Difference::new(kind, set, number, at, &found))),
                    None => compared.fetch_add(1, Ordering::Relaxed),
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

impl Difference {
    fn new(kind: &Kind<'_>, set: usize, search: u64, at: usize, found: &Neighbors) -> Self {
        let expected = &kind.expected[set];
        let bits = |of: &Neighbors| of.distances.get(at).map(|distance| distance.to_bits());
        Self {
            kind: kind.name,
            search,
            query: at / expected.k,
            place: at % expected.k,
            expected_id: expected.ids.get(at).copied(),
            expected_distance_bits: bits(expected),
            id: found.ids.get(at).copied(),
            distance_bits: bits(found),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two kinds, of which the second gives another bit at its call `wrong`, counted from 0.
    fn repeated(searches: u64, wrong: u64) -> (u64, Option<Difference>) {
        let right = Neighbors { k: 2, ids: vec![3, 5], distances: vec![0.5, 1.0] };
        let calls = AtomicU64::new(0);
        let kind = |name, search| Kind { name, search, expected: vec![right.clone(); 2] };
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
