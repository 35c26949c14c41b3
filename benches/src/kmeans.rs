//! The grid of k-means: all vectors, a fixed number of iterations.
//!
//! On a GPU `kmeans` times the iterations alone, the vectors on the device, and `kmeans-call` the library's call, vectors in host
//! memory, choice of the first centroids and all; on the CPU `kmeans` is the call.
//!
//! The objective in the record is that of the centroids returned: squared distances of all vectors to their nearest centroid, by
//! exact search among the centroids, summed in float64. A row is right if that is what the device reports; for a call, which reports
//! the objective of its last assignment, if it is no higher: the last update of the centroids cannot raise it, but for their rounding to
//! f32.

use rayon::prelude::*;
use warpann::kmeans::KMeans;
use warpann::{Device, Element, FlatIndex, Metric};
use warpann_measure::{Times, timed};

use crate::ivf::{Source, Vectors, Work, count, with_vectors};
use crate::machine::Machine;
use crate::record::{Measured, Record};
use crate::{Common, Outcome};

/// Arguments of `kmeans`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    common: Common,
    #[command(flatten)]
    source: Source,
    /// Numbers of centroids to measure.
    #[arg(long, value_delimiter = ',', default_value = "256,4096", value_parser = count)]
    centroids: Vec<usize>,
    /// Number of iterations.
    #[arg(long, default_value_t = 20, value_parser = count)]
    iterations: usize,
    /// Rate of matrix products in f16 with f32 sums, in TFLOP/s: gives the floor that arithmetic sets.
    #[arg(long, value_parser = crate::exact::positive)]
    tflops: Option<f64>,
}

/// By how much rounding the centroids to f32, or sums, may change the objective, as a share of it.
const ROUNDING: f64 = 1e-6;

/// Measures the grid; true if every result was right.
pub fn run(args: &Args) -> Outcome<bool> {
    let machine = Machine::open(args.common.device, args.common.quick)?;
    with_vectors(&args.source, &args.common, machine.device(), &Grid { args, machine: &machine })
}

struct Grid<'a> {
    args: &'a Args,
    machine: &'a Machine,
}

impl Work for Grid<'_> {
    fn run<T: Element>(&self, vectors: &Vectors<'_, T>) -> Outcome<bool> {
        let Self { args, machine } = *self;
        let mut record = Record::open(&args.common, machine)?;
        let quick = [7, 40];
        for &centroids in if args.common.quick { &quick[..] } else { &args.centroids } {
            if let Some(index) = machine.gpu {
                record.add(self.on_device(index, vectors, centroids)?)?;
            }
            record.add(self.call(vectors, centroids)?)?;
        }
        Ok(record.all_verified())
    }
}

impl Grid<'_> {
    /// Wall time of the library's call.
    fn call<T: Element>(&self, vectors: &Vectors<'_, T>, centroids: usize) -> Outcome<Measured> {
        let Self { args, machine } = *self;
        let settings = KMeans::new(centroids).iterations(args.iterations).seed(1).points_per_centroid(None);
        let settings = settings.device(machine.device());
        let train = || timed(|| settings.train(vectors.base, vectors.dim)).map(|(found, time)| (time, found));
        let (times, found) = self.runs(train)?;
        let objective = objective(vectors, &found.centroids, machine.device())?;
        let reported = found.objectives.last().copied().unwrap_or(f64::NAN);
        let verified = objective <= reported * (1.0 + ROUNDING);
        let name = if machine.gpu.is_some() { "kmeans-call" } else { "kmeans" };
        Ok(self.measured(name, vectors, centroids, times, objective, verified))
    }

    /// The iterations alone, the vectors on the device.
    #[cfg(feature = "cuda")]
    fn on_device<T: Element>(&self, index: usize, vectors: &Vectors<'_, T>, centroids: usize) -> Outcome<Measured> {
        let Self { args, machine } = *self;
        let rows: Vec<f32> = vectors.base.par_iter().map(|x| x.to_f32()).collect();
        let mut bench = warpann::internals::KMeansBench::new(index, &rows, vectors.dim, centroids)?;
        let (times, found) = self.runs(|| bench.run(args.iterations).map(|run| (run.milliseconds, run)))?;
        let objective = objective(vectors, &found.centroids, machine.device())?;
        let verified = (objective - found.objective).abs() <= ROUNDING * objective;
        Ok(self.measured("kmeans", vectors, centroids, times, objective, verified))
    }

    /// Without the back end there is no GPU to come here with.
    #[cfg(not(feature = "cuda"))]
    fn on_device<T: Element>(&self, _: usize, vectors: &Vectors<'_, T>, centroids: usize) -> Outcome<Measured> {
        self.call(vectors, centroids)
    }

    /// One run, then some more, which return their milliseconds: these and what the last one found.
    fn runs<R>(&self, mut train: impl FnMut() -> warpann::Result<(f64, R)>) -> Outcome<(Times, R)> {
        let mut found = train()?.1;
        let times = Times::collect(0, self.args.common.repeat.unwrap_or(3), || {
            let (milliseconds, last) = train()?;
            found = last;
            Outcome::Ok(milliseconds)
        })?;
        Ok((times, found))
    }

    fn measured<T: Element>(
        &self,
        name: &str,
        vectors: &Vectors<'_, T>,
        centroids: usize,
        times: Times,
        objective: f64,
        verified: bool,
    ) -> Measured {
        let Self { args, machine } = *self;
        let &Vectors { base, dim, .. } = vectors;
        let (rows, kind, iterations) = (vectors.rows(), T::TYPE.name(), args.iterations);
        let operations = 2.0 * base.len() as f64 * centroids as f64 * iterations as f64;
        Measured {
            case: format!("{name} {rows}x{dim} {kind} centroids={centroids} iterations={iterations}"),
            times,
            memory_floor_ms: machine.floor_ms(size_of_val(base) as f64 * iterations as f64),
            matrix_floor_ms: args.tflops.map(|rate| 1e3 * operations / (rate * 1e12)),
            verified,
            objective: Some(objective),
            ..Measured::default()
        }
    }
}

/// What centroids cost: squared distances of all vectors to the nearest, in f32 each, summed in float64.
fn objective<T: Element>(vectors: &Vectors<'_, T>, centroids: &[f32], device: Device) -> Outcome<f64> {
    let mut index = FlatIndex::<f32>::new(vectors.dim, Metric::L2, device)?;
    index.add(centroids)?;
    let mut sum = 0.0;
    for part in vectors.base.chunks(vectors.dim << 17) {
        let queries: Vec<f32> = part.par_iter().map(|x| x.to_f32()).collect();
        sum += index.search(&queries, 1)?.distances.iter().map(|&distance| f64::from(distance)).sum::<f64>();
    }
    Ok(sum)
}
