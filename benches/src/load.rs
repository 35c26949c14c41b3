//! Latency of searches of one query by many threads at once: the percentiles of all calls.
//!
//! *Cold* threads search an index that has been moved to the device a moment ago and that one thread has searched: its
//! image is made and its kernels are loaded, but no other thread has searched. *Warm* threads repeat this right
//! afterwards. Every result is compared with that of one thread. A row has the latency of a call in milliseconds: the
//! median, the least and the greatest of all calls; the rows `p99` and `p99.9` have only these percentiles.

use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use warpann::{Device, GraphIndex, Index, IvfIndex, Neighbors, SearchOptions};
use warpann_measure::Times;

use crate::Outcome;
use crate::ivf::filled;
use crate::record::{Measured, Record, print};
use crate::set::{exact, made};

/// Number of neighbours of a query.
const K: usize = 10;
/// Lists that a search of an inverted file reads.
const PROBES: usize = 16;
/// Queries that all threads search for, in turn; their results are compared with those of one thread.
const QUERIES: usize = 1_024;

/// A kind of index.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Kind {
    Flat,
    Ivf,
    Graph,
}

/// Arguments of `load`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Number of base vectors.
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u32).range(1_000..))]
    n: u32,
    /// Dimension of the vectors.
    #[arg(long, default_value_t = 128, value_parser = clap::value_parser!(u32).range(1..))]
    dim: u32,
    /// Kinds of indexes to measure, one after the other: flat, ivf, graph.
    #[arg(long, value_delimiter = ',', default_value = "flat,ivf,graph")]
    kinds: Vec<Kind>,
    /// Numbers of threads that search at the same time, each measured with a fresh index.
    #[arg(long, value_delimiter = ',', default_value = "1,2,4,8,16,32,64")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1024))]
    threads: Vec<u32>,
    /// Milliseconds for which the threads search.
    #[arg(long, default_value_t = 1_000)]
    milliseconds: u64,
}

/// Measures the load of each number of threads.
pub fn run(args: &Args, record: &mut Record) -> Outcome {
    let (n, dim) = record.quick_or((2_000, 20), (args.n as usize, args.dim as usize));
    let (base, queries) = made(n, QUERIES, dim);
    let (device, none) = (record.device(), SearchOptions::new());
    let time = Duration::from_millis(record.quick_or(20, args.milliseconds));
    let mut load = Load { args, record, queries: &queries, dim, time, case: String::new() };
    for &kind in &args.kinds {
        let name = format!("{kind:?}").to_lowercase();
        load.case = format!("load {name} {n}x{dim} f32");
        match kind {
            Kind::Flat => load.index(&mut exact(&base, dim, device)?, n * dim * size_of::<f32>(), &none)?,
            Kind::Ivf => {
                let lists = (4 * (n as f64).sqrt() as usize).next_power_of_two().min(n / 64).max(1);
                let mut index = filled(IvfIndex::<f32>::builder(dim, lists).device(device), &base)?;
                load.case = format!("{} lists={lists} probes={PROBES}", load.case);
                let bytes = n * dim * size_of::<f32>() / lists * PROBES.min(lists);
                load.index(&mut index, bytes, &SearchOptions::new().probes(PROBES.min(lists)))?;
            }
            Kind::Graph => {
                let mut index = GraphIndex::<f32>::builder(dim).device(device).build()?;
                index.add(&base)?;
                load.index(&mut index, dim * size_of::<f32>(), &none)?;
            }
        }
    }
    Ok(())
}

struct Load<'a> {
    args: &'a Args,
    record: &'a mut Record,
    queries: &'a [f32],
    dim: usize,
    /// The time for which the threads search.
    time: Duration,
    case: String,
}

impl Load<'_> {
    /// Measures an index. A search reads about `bytes` bytes.
    fn index<I: warpann::Kind<Element = f32> + Sync>(
        &mut self,
        index: &mut Index<I>,
        bytes: usize,
        options: &SearchOptions<'_>,
    ) -> Outcome {
        let query = |at: usize| &self.queries[at % QUERIES * self.dim..][..self.dim];
        let expected =
            (0..QUERIES).map(|at| index.search_with(query(at), K, options)).collect::<Result<Vec<_>, _>>()?;
        for &threads in &self.args.threads {
            index.move_to(Device::Cpu)?;
            index.move_to(self.record.device())?;
            index.search_with(query(0), K, options)?;
            for state in ["cold", "warm"] {
                let (calls, seconds, verified) = self.threads(threads as usize, &*index, options, &expected)?;
                let case = format!("{} threads={threads} {state}", self.case);
                let (p99, p999) = (calls.percentile(0.99), calls.percentile(0.999));
                print(format_args!(
                    "{case}: {:.0} queries a second; ms: p50 {:.3}, p99 {:.3}, p99.9 {:.3}, max {:.3}\n",
                    calls.milliseconds().len() as f64 / seconds,
                    calls.median(),
                    p99,
                    p999,
                    calls.percentile(1.0),
                ))?;
                let one = |time| Times::new(vec![time]);
                for (name, times) in [("", calls), (" p99", one(p99)), (" p99.9", one(p999))] {
                    self.record.add(Measured::new(format!("{case}{name}"), K, times, bytes as f64, verified))?;
                }
            }
        }
        Ok(())
    }

    /// Searches by many threads. Returns the times of all calls, the seconds of the run, and whether
    /// all results were right.
    fn threads(
        &self,
        threads: usize,
        index: &Index<impl warpann::Kind<Element = f32>>,
        options: &SearchOptions<'_>,
        expected: &[Neighbors],
    ) -> Outcome<(Times, f64, bool)> {
        let start = Barrier::new(threads);
        let of_thread = |thread: usize| {
            let (mut calls, mut right) = (Vec::new(), true);
            start.wait();
            let begin = Instant::now();
            for turn in 0.. {
                let at = (37 * thread + turn) % QUERIES;
                let before = begin.elapsed();
                let found = index.search_with(&self.queries[at * self.dim..][..self.dim], K, options)?;
                calls.push(1e3 * (begin.elapsed() - before).as_secs_f64());
                right &= found == expected[at];
                if begin.elapsed() >= self.time {
                    break;
                }
            }
            Ok::<_, warpann::Error>((calls, right))
        };
        let begin = Instant::now();
        let of_threads = thread::scope(|scope| {
            let of_thread = &of_thread;
            let threads: Vec<_> = (0..threads).map(|thread| scope.spawn(move || of_thread(thread))).collect();
            let joined = threads
                .into_iter()
                .map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
            joined.collect::<Result<Vec<_>, _>>()
        })?;
        let seconds = begin.elapsed().as_secs_f64();
        let verified = of_threads.iter().all(|(_, right)| *right);
        let calls = Times::new(of_threads.into_iter().flat_map(|(calls, _)| calls).collect());
        Ok((calls, seconds, verified))
    }
}
