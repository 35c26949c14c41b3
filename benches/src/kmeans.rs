//! The grid of k-means: all vectors, a fixed number of iterations.
//!
//! On a GPU `kmeans` times the iterations alone, the vectors on the device, and `kmeans-call` the library's call,
//! vectors in host memory, choice of the first centroids and all; on the CPU `kmeans` is the call.
//!
//! The objective in the record is that of the centroids returned: squared distances of all vectors to their nearest
//! centroid, by exact search among the centroids, summed in float64. A row is right if that is what the device reports;
//! for a call, which reports the objective of its last assignment, if it is no higher: the last update of the centroids
//! cannot raise it, but for their rounding to f32.

use rayon::prelude::*;
use warpann::kmeans::KMeans;
use warpann::{Device, Element};
use warpann_measure::{Times, Work, timed};

use crate::Outcome;
use crate::record::{Measured, Record};
use crate::set::{Measurement, Vectors, count, exact, positive};

/// Arguments of `kmeans`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Numbers of centroids to measure.
    #[arg(long, value_delimiter = ',', default_value = "256,4096", value_parser = count)]
    centroids: Vec<usize>,
    /// Number of iterations.
    #[arg(long, default_value_t = 20, value_parser = count)]
    iterations: usize,
    /// Rate of matrix products in f16 with f32 sums, in TFLOP/s: gives the floor that arithmetic sets.
    #[arg(long, value_parser = positive)]
    tflops: Option<f64>,
}

/// By how much rounding the centroids to f32, or sums, may change the objective, as a share of it.
const ROUNDING: f64 = 1e-6;

impl Measurement for Args {
    fn run<T: Element>(&self, vectors: &Vectors<'_, T>, record: &mut Record) -> Outcome {
        record.tflops = self.tflops;
        let repeat = record.repeat(3);
        for &centroids in record.quick_or(&[7, 40][..], &self.centroids) {
            #[cfg(feature = "cuda")]
            if let Some(index) = record.machine.gpu {
                // The iterations alone, the vectors on the device.
                let rows: Vec<f32> = vectors.base.par_iter().map(|x| x.to_f32()).collect();
                let mut bench = warpann::internals::KMeansBench::new(index, &rows, vectors.dim, centroids)?;
                let (times, found) = runs(repeat, || bench.run(self.iterations).map(|run| (run.milliseconds, run)))?;
                let objective = objective(vectors, &found.centroids, record.device())?;
                let verified = (objective - found.objective).abs() <= ROUNDING * objective;
                record.add(self.measured("kmeans", vectors, centroids, times, objective, verified))?;
            }
            // The library's call.
            let settings = KMeans::new(centroids).iterations(self.iterations).seed(1).points_per_centroid(None);
            let settings = settings.device(record.device());
            let train = || timed(|| settings.train(vectors.base, vectors.dim)).map(|(found, time)| (time, found));
            let (times, found) = runs(repeat, train)?;
            let objective = objective(vectors, &found.centroids, record.device())?;
            let reported = found.objectives.last().copied().unwrap_or(f64::NAN);
            let verified = objective <= reported * (1.0 + ROUNDING);
            let name = if record.machine.gpu.is_some() { "kmeans-call" } else { "kmeans" };
            record.add(self.measured(name, vectors, centroids, times, objective, verified))?;
        }
        Ok(())
    }
}

impl Args {
    fn measured<T: Element>(
        &self,
        name: &str,
        vectors: &Vectors<'_, T>,
        centroids: usize,
        times: Times,
        objective: f64,
        verified: bool,
    ) -> Measured {
        let (shape, iterations) = (vectors.shape(), self.iterations);
        let case = format!("{name} {shape} centroids={centroids} iterations={iterations}");
        let bytes = size_of_val(vectors.base) as f64 * iterations as f64;
        let operations = 2.0 * vectors.base.len() as f64 * centroids as f64 * iterations as f64;
        let measured = Measured::new(case, 0, times, Work { bytes, operations }, verified);
        Measured { objective: Some(objective), ..measured }
    }
}

/// One run, then `repeat` more, which return their milliseconds: these and what the last one found.
fn runs<R>(repeat: usize, mut train: impl FnMut() -> warpann::Result<(f64, R)>) -> Outcome<(Times, R)> {
    let mut found = train()?.1;
    let times = Times::collect(0, repeat, || {
        let (milliseconds, last) = train()?;
        found = last;
        Outcome::Ok(milliseconds)
    })?;
    Ok((times, found))
}

/// The cost of centroids: squared distances of all vectors to the nearest, in f32 each, summed in float64.
fn objective<T: Element>(vectors: &Vectors<'_, T>, centroids: &[f32], device: Device) -> Outcome<f64> {
    let index = exact(centroids, vectors.dim, device)?;
    let mut sum = 0.0;
    for part in vectors.base.chunks(vectors.dim << 17) {
        let queries: Vec<f32> = part.par_iter().map(|x| x.to_f32()).collect();
        sum += index.search(&queries, 1)?.distances.iter().map(|&distance| f64::from(distance)).sum::<f64>();
    }
    Ok(sum)
}
