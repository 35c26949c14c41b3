//! `warpann bench start-up`.

use std::time::Instant;

use serde::Serialize;
use warpann::{Device, FlatIndex, Metric};

use super::times::random;
use crate::progress::Step;
use crate::report::{Out, Outcome, positive};

/// Arguments of `bench start-up`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// auto, cpu, gpu, gpu:N or emulator.
    #[arg(long, default_value = "auto")]
    pub device: Device,
    /// Number of base vectors, of dimension 128.
    #[arg(long, default_value_t = 100_000, value_parser = positive)]
    pub n: usize,
}

/// Compares the times of the first and the second search of a process. The first includes opening the device, and the
/// driver's compilation of the kernels for this search. The driver caches compiled kernels; CUDA_CACHE_DISABLE=1 shows
/// the time without the cache.
pub fn run(args: &Args, out: &Out) -> Outcome {
    #[derive(Serialize)]
    struct StartUp {
        device: String,
        open_seconds: f64,
        first_search_seconds: f64,
        second_search_seconds: f64,
        start_up_seconds: f64,
    }
    let (base, queries) = (random(args.n, 128, 1)?, random(1_000, 128, 2)?);
    let start = Instant::now();
    let mut index = FlatIndex::<f32>::new(128, Metric::L2, args.device)?;
    let open_seconds = start.elapsed().as_secs_f64();
    index.add(&base)?;
    let step = Step::measured("searching", 2, "searches");
    let search = || -> Outcome<f64> {
        let start = Instant::now();
        index.search(&queries, 10)?;
        let seconds = start.elapsed().as_secs_f64();
        step.advance(1);
        Ok(seconds)
    };
    let (first_search_seconds, second_search_seconds) = (search()?, search()?);
    drop(step);
    let start_up_seconds = open_seconds + first_search_seconds - second_search_seconds;
    let report =
        StartUp { device: index.device(), open_seconds, first_search_seconds, second_search_seconds, start_up_seconds };
    out.field("device", &report.device)?;
    out.field("open", format_args!("{open_seconds:.3} s"))?;
    out.field(
        "search",
        format_args!("{first_search_seconds:.3} s the first time, {second_search_seconds:.6} s the second"),
    )?;
    out.field("start-up", format_args!("{start_up_seconds:.3} s"))?;
    out.object(&report)
}
