//! The arguments of `warpann bench serve`, and the work beside requests that a measurement and a soak share.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use rayon::{ThreadPool, ThreadPoolBuilder};
use test_random::Random;
use warpann::{AnyIndex, Element, SearchOptions};

use crate::index::Place;
use crate::report::{Failure, Outcome, positive};
use crate::streams::parse_index;
use crate::vectors::Access;

/// Threads that load an index beside requests. With all processors loading took half as long, and the system let
/// requests wait for whole slices of time: p99 at 1,000 requests a second 5 ms (16 processors, 2026-11-28).
const LOADERS: usize = 2;
/// Processors for one thread of a change. With a thread for each, requests at half of the highest rate had a p99 of 6.3
/// ms beside changes, with one for two of 1.0, and changes took 7.8 and 7.2 ms (inverted file, 16 processors beside an
/// H200, 2026-11-28).
const PROCESSORS_OF_A_CHANGER: usize = 2;
/// Pause between two changes.
pub(super) const PAUSE: Duration = Duration::from_millis(20);

/// Arguments of `bench serve`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The index that answers.
    #[arg(long, value_name = "INDEX", value_parser = parse_index)]
    pub(super) index: Option<PathBuf>,
    /// Vectors of an exact index (l2) that answers instead of --index.
    #[arg(long, value_name = "FILE", required_unless_present = "index", conflicts_with = "index")]
    pub(super) base: Option<PathBuf>,
    /// File with the vectors to search for; each request takes one at random.
    #[arg(long, value_name = "FILE")]
    pub(super) query: PathBuf,
    #[command(flatten)]
    pub(super) place: Place,
    /// Neighbours of a request; of several numbers, separated by commas, each request takes one at random.
    #[arg(long, value_delimiter = ',', default_value = "10", value_parser = positive)]
    pub(super) k: Vec<usize>,
    /// Lists to read in inverted files; default: the number that the index stores.
    #[arg(long, value_parser = positive)]
    pub(super) probes: Option<usize>,
    /// Width of the beam in a graph; default: the width that the index stores.
    #[arg(long, value_parser = positive)]
    pub(super) beam: Option<usize>,
    /// Number of filters, each of which accepts half of the vectors. Every second request has one of them.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(super) filters: usize,
    /// Vectors that are replaced together, again and again, while requests are answered.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(super) upserts: usize,
    /// Threads that a change uses; default: half as many as there are processors.
    #[arg(long, value_name = "N", value_parser = positive)]
    pub(super) change_threads: Option<usize>,
    /// An index that is loaded on the same device, again and again, while requests are answered.
    #[arg(long, value_name = "INDEX", value_parser = parse_index)]
    pub(super) load: Option<PathBuf>,
    /// The time from a request to its answer that batches keep, in milliseconds.
    #[arg(long, value_name = "MS", default_value_t = 2.0)]
    pub(super) target: f64,
    /// Number of searches at once; default: 4 for an exact index, else one for two processors, at least 4 and at
    /// most 8.
    #[arg(long, value_parser = positive)]
    pub(super) workers: Option<usize>,
    /// Number of threads that send requests.
    #[arg(long, default_value_t = 2, value_parser = positive)]
    pub(super) senders: usize,
    /// Seconds of each row.
    #[arg(long, default_value_t = 5.0, conflicts_with = "quick")]
    pub(super) seconds: f64,
    /// Minutes of a soak instead of a measurement: requests with random deadlines, of which some are cancelled, beside
    /// upserts and removals, and loads with --load. It fails if a request is lost, a sampled answer is wrong, or memory
    /// grows.
    #[arg(long, value_name = "MINUTES", conflicts_with_all = ["quick", "seconds", "out"])]
    pub(super) soak: Option<f64>,
    /// Measure each row for half a second.
    #[arg(long)]
    pub(super) quick: bool,
    /// Write the report as NAME.json, and latencies over answers a second as NAME.svg and NAME.png.
    #[arg(long, value_name = "NAME")]
    pub(super) out: Option<PathBuf>,
    #[command(flatten)]
    pub(super) access: Access,
}

/// Ends the threads beside the measurement, also if it fails.
pub(super) struct End<'a>(pub(super) &'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

pub(super) fn joined<V>(result: thread::Result<Outcome<V>>) -> Outcome<V> {
    result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

pub(super) fn options(args: &Args) -> SearchOptions<'static> {
    SearchOptions::new().probes(args.probes).beam(args.beam)
}

/// A vector near another one: equal vectors share a place in a graph, and programs seldom add them.
pub(super) fn near<T: Element>(row: &[T], random: &mut Random) -> Vec<T> {
    let factor = |random: &mut Random| 1.0 + (random.below(1 << 16) as f32 / 65_536.0 - 0.5) / 16.0;
    row.iter().map(|x| T::from_f32(x.to_f32() * factor(random))).collect()
}

/// The threads of changes.
pub(super) fn changers(args: &Args) -> Outcome<ThreadPool> {
    pool(args.change_threads.unwrap_or_else(|| rayon::current_num_threads().div_ceil(PROCESSORS_OF_A_CHANGER)))
}

/// Threads for work beside requests.
fn pool(threads: usize) -> Outcome<ThreadPool> {
    let pool = ThreadPoolBuilder::new().num_threads(threads).build();
    pool.map_err(|error| Failure::Message(format!("no threads: {error}")))
}

/// Loads an index and searches in it, again and again, by [`LOADERS`] threads. Returns how often.
pub(super) fn load_again<T: Element>(args: &Args, path: &Path, over: &AtomicBool) -> Outcome<usize> {
    let loaders = pool(LOADERS)?;
    let mut count = 0;
    while !over.load(Ordering::Relaxed) {
        loaders.install(|| -> warpann::Result<()> {
            let place = &args.place;
            let index: AnyIndex<T> =
                AnyIndex::load_with(path, place.device.clone(), place.memory_budget, args.access.how)?;
            index.search(&vec![T::default(); index.dim()], 1).map(drop)
        })?;
        count += 1;
    }
    Ok(count)
}
