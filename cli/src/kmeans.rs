//! `warpann kmeans`.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::Instant;

use serde::Serialize;
use warpann::kmeans::{self, KMeans, Start};
use warpann::{Element, Placement, io};

use crate::progress::{Step, spinning};
use crate::report::{Failure, Out, Outcome, parse_bytes};
use crate::streams::{F32_FORMATS, Stdout, check_files};
use crate::vectors::{Access, with_element};

/// Arguments of `kmeans`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Vectors to cluster: fvecs, bvecs, fbin, u8bin, i8bin or npy.
    #[arg(long, value_name = "FILE")]
    base: PathBuf,
    #[command(flatten)]
    recipe: Recipe,
    /// Write the centroids: fbin, fvecs or npy.
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    #[command(flatten)]
    access: Access,
    #[command(flatten)]
    stdout: Stdout,
}

impl Args {
    /// The files that the command writes, `-` for standard output.
    pub fn outputs(&self) -> impl Iterator<Item = &Path> {
        std::iter::once(&*self.out)
    }
}

/// The options of a clustering, shared with `bench kmeans`.
#[derive(Debug, Clone, clap::Args)]
pub struct Recipe {
    /// Number of centroids
    #[arg(long, value_name = "N")]
    centroids: usize,
    /// Number of iterations
    #[arg(long, default_value_t = 20)]
    iterations: usize,
    /// Seed of all random choices; the same seed gives the same bits on every device.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// The first centroids: random (distinct vectors) or plus-plus (k-means++, on the CPU).
    #[arg(long, default_value = "random")]
    start: StartName,
    /// Compare by inner product, with centroids of norm 1.
    #[arg(long)]
    spherical: bool,
    /// Limit the size of a cluster to B times the mean, rounded up.
    #[arg(long, value_name = "B")]
    balanced: Option<f64>,
    /// Largest number of training vectors per centroid, which are sampled by the seed; or all.
    #[arg(long, value_name = "N|all", default_value = "256", value_parser = parse_points)]
    points_per_centroid: Points,
    /// auto, cpu, gpu, gpu:N, or emulator (checks the GPU's kernels on the CPU; very slow). Several, such as
    /// gpu:0,gpu:1, divide the vectors.
    #[arg(long, default_value = "auto")]
    device: Placement,
    /// Memory that training may use on a GPU (of several, on each), in bytes or with K, M, G, T.
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    memory_budget: Option<u64>,
}

impl Recipe {
    /// The options as settings of the library.
    pub fn settings(&self) -> KMeans {
        let settings = KMeans::new(self.centroids)
            .iterations(self.iterations)
            .seed(self.seed)
            .start(match self.start {
                StartName::Random => Start::Random,
                StartName::PlusPlus => Start::PlusPlus,
            })
            .spherical(self.spherical)
            .balanced(self.balanced)
            .points_per_centroid(self.points_per_centroid.0)
            .device(self.device.clone());
        match self.memory_budget {
            Some(bytes) => settings.memory_budget(bytes),
            None => settings,
        }
    }
}

/// The values of [`Start`] that a command line can select.
#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum StartName {
    Random,
    PlusPlus,
}

/// Number of vectors per centroid; none for all.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Points(Option<usize>);

fn parse_points(text: &str) -> Result<Points, String> {
    match (text, text.parse()) {
        ("all", _) => Ok(Points(None)),
        (_, Ok(points)) if points > 0 => Ok(Points(Some(points))),
        _ => Err("expected a number from 1 up, or all".into()),
    }
}

/// The report of the command, as JSON.
#[derive(Serialize)]
struct Report {
    device: String,
    element: &'static str,
    dim: usize,
    base: usize,
    centroids: usize,
    iterations: Vec<Iteration>,
    load_seconds: f64,
    train_seconds: f64,
}

/// The objective and the sizes after one iteration.
#[derive(Serialize, Clone, Copy)]
struct Iteration {
    objective: f64,
    split: usize,
    largest: u32,
    mean: f64,
    /// Seconds since the start of training.
    seconds: f64,
}

/// Clusters, writes the centroids, prints the report.
pub fn run(args: &Args, out: &Out) -> Outcome {
    // Checked before the work.
    args.stdout.format_of(&args.out, F32_FORMATS)?;
    check_files(args.access.stdin, [&*args.base], args.outputs())?;
    let start = Instant::now();
    let base = spinning("reading the base", || args.access.vectors(&args.base))?;
    let load_seconds = start.elapsed().as_secs_f64();
    with_element!(base.element(), T => train::<T>(args, &base, load_seconds, out))
}

fn train<T: Element>(args: &Args, base: &io::Vectors, load_seconds: f64, out: &Out) -> Outcome {
    let Some(vectors) = base.as_slice::<T>() else {
        return Err(Failure::Message("the base is of another element type".into()));
    };
    let settings = args.recipe.settings();
    let start = Instant::now();
    let mut iterations = Vec::new();
    // After the first failure to print, nothing more is printed, and the failure is reported at the end.
    let mut printed = Ok(());
    let step = Step::of("clustering", args.recipe.iterations, "iterations");
    let found = settings.train_watched(vectors, base.dim(), None, &mut |iteration| {
        let kmeans::Iteration { iteration, objective, split, largest, mean, .. } = *iteration;
        let seconds = start.elapsed().as_secs_f64();
        if printed.is_ok() {
            let line = format!(
                "iteration {:>4}  objective {objective:>16.8e}  largest {:>7.2} x mean  split {split:>4}  {seconds:>8.3} s",
                iteration + 1,
                f64::from(largest) / mean,
            );
            printed = step.aside(|| out.line(line));
        }
        iterations.push(Iteration { objective, split, largest, mean, seconds });
        step.at(iteration + 1);
        ControlFlow::Continue(())
    })?;
    drop(step);
    let train_seconds = start.elapsed().as_secs_f64();
    printed?;
    spinning("writing the centroids", || args.stdout.write_vectors(&args.out, &found.centroids, found.dim))?;
    let report = Report {
        device: found.device.to_string(),
        element: T::TYPE.name(),
        dim: base.dim(),
        base: base.rows(),
        centroids: found.clusters(),
        iterations,
        load_seconds,
        train_seconds,
    };
    out.field("device", &report.device)?;
    out.field("base", format_args!("{} vectors, dimension {}, {}", base.rows(), base.dim(), T::TYPE.name()))?;
    out.field("load", format_args!("{load_seconds:.3} s"))?;
    out.field("train", format_args!("{train_seconds:.3} s"))?;
    out.field("centroids", format_args!("{} in {}", report.centroids, args.out.display()))?;
    out.object(&report)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_are_a_number_or_all() {
        assert_eq!(parse_points("all"), Ok(Points(None)));
        assert_eq!(parse_points("39"), Ok(Points(Some(39))));
        for text in ["0", "-1", "", "ALL", "1.5"] {
            assert!(parse_points(text).is_err(), "{text}");
        }
    }
}
