//! `warpann bench kmeans`: seconds and objective, iteration by iteration.

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::time::Instant;

use serde::Serialize;
use warpann::{Element, io};

use super::outputs::{check_outputs, named, write_json};
use super::times::Times;
use crate::kmeans::Recipe;
use crate::progress::spinning;
use crate::report::{Failure, Out, Outcome, positive};
use crate::streams::Stdout;
use crate::vectors::{Access, with_element};

/// Arguments of `bench kmeans`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Vectors to cluster: fvecs, bvecs, fbin, u8bin, i8bin or npy.
    #[arg(long, value_name = "FILE")]
    base: PathBuf,
    #[command(flatten)]
    recipe: Recipe,
    /// Number of timed runs, after one run that is not timed; the result is the median.
    #[arg(long, default_value_t = 5, value_parser = positive)]
    repeat: usize,
    /// Write the iterations as NAME.csv and the report as NAME.json.
    #[arg(long, value_name = "NAME")]
    out: Option<PathBuf>,
    #[command(flatten)]
    access: Access,
}

#[derive(Serialize)]
struct Report {
    device: String,
    element: &'static str,
    dim: usize,
    base: usize,
    centroids: usize,
    #[serde(flatten)]
    times: Times,
    /// The objective of the last iteration.
    objective: Option<f64>,
    iterations: Vec<Iteration>,
}

#[derive(Serialize)]
struct Iteration {
    iteration: usize,
    objective: f64,
    /// Number of empty clusters that received half of a large one.
    split: usize,
    /// Size of the largest cluster divided by the mean size.
    imbalance: f64,
    /// Seconds from the start of training to the end of this iteration, in the last run.
    seconds: f64,
}

impl Iteration {
    /// The names of the fields.
    const COLUMNS: [&str; 5] = ["iteration", "objective", "split", "imbalance", "seconds"];
}

/// Measures, writes the files, prints.
pub fn run(args: &Args, out: &Out) -> Outcome {
    check_outputs(args.access.stdin, [&*args.base], args.out.as_deref(), ["csv", "json"], None)?;
    let base = spinning("reading the base", || args.access.vectors(&args.base))?;
    with_element!(base.element(), T => measure::<T>(args, &base, out))
}

fn measure<T: Element>(args: &Args, base: &io::Vectors, out: &Out) -> Outcome {
    let Some(vectors) = base.as_slice::<T>() else {
        return Err(Failure::Message("the base is of another element type".into()));
    };
    let settings = args.recipe.settings();
    let (mut iterations, mut device, mut centroids) = (Vec::new(), String::new(), 0);
    let times = Times::measure(args.repeat, || {
        iterations.clear();
        let start = Instant::now();
        let found = settings.train_watched(vectors, base.dim(), None, &mut |progress| {
            iterations.push(Iteration {
                iteration: progress.iteration + 1,
                objective: progress.objective,
                split: progress.split,
                imbalance: f64::from(progress.largest) / progress.mean,
                seconds: start.elapsed().as_secs_f64(),
            });
            ControlFlow::Continue(())
        })?;
        (device, centroids) = (found.device.to_string(), found.clusters());
        Ok(())
    })?;
    let objective = iterations.last().map(|last| last.objective);
    let (element, dim, base) = (T::TYPE.name(), base.dim(), base.rows());
    let report = Report { device, element, dim, base, centroids, times, objective, iterations };
    out.field("device", &report.device)?;
    out.field("base", format_args!("{base} vectors, dimension {dim}, {element}"))?;
    out.field("centroids", report.centroids)?;
    report.times.print("train", out)?;
    out.line(format_args!(
        "{:>9} {:>16} {:>10} {:>6} {:>10}",
        "iteration", "objective", "imbalance", "split", "seconds"
    ))?;
    for Iteration { iteration, objective, split, imbalance, seconds } in &report.iterations {
        out.line(format_args!("{iteration:>9} {objective:>16.8e} {imbalance:>10.2} {split:>6} {seconds:>10.4}"))?;
    }
    if let Some(name) = &args.out {
        Stdout::default().write_table(&named(name, "csv"), &Iteration::COLUMNS, &report.iterations)?;
        write_json(&named(name, "json"), &report, out)?;
    }
    out.object(&report)
}
