//! `warpann bench`: times of parts of the library, and the work that every implementation must do.

pub mod chart;
mod exact;
mod graph;
mod ivf;
mod kmeans;
mod record;
mod select;
mod start_up;
mod sweep;
#[cfg(feature = "cuda")]
mod tune;

use std::path::{Path, PathBuf};

use serde::Serialize;
use test_random::Random;
use warpann::io;
use warpann_measure::timed;

use crate::progress::Step;
use crate::report::{Failure, Out, Outcome};
use crate::streams::{Stdin, check_files};

/// Arguments of `bench`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    part: Part,
}

#[derive(Debug, clap::Subcommand)]
enum Part {
    /// k-selection: the k smallest of every row of a matrix.
    Select(select::Args),
    /// Exact search among random vectors, or those of a file.
    Exact(exact::Args),
    /// Search by an inverted-file index: recall, latency and queries/s for numbers of probes.
    Ivf(Box<ivf::Args>),
    /// Search by a graph index: recall, latency and queries/s for widths of the beam.
    Graph(Box<graph::Args>),
    /// k-means: seconds and objective.
    Kmeans(kmeans::Args),
    /// Time of the first search of a process, which includes opening the device and loading kernels.
    StartUp(start_up::Args),
}

/// Runs the measurement and prints the report.
pub fn run(args: &Args, out: &Out) -> Outcome {
    match &args.part {
        Part::Select(args) => select::run(args, out),
        Part::Exact(args) => exact::run(args, out),
        Part::Ivf(args) => ivf::run(args, out),
        Part::Graph(args) => graph::run(args, out),
        Part::Kmeans(args) => kmeans::run(args, out),
        Part::StartUp(args) => start_up::run(args, out),
    }
}

/// Times of repeated runs.
#[derive(Serialize)]
struct Times {
    /// Time of each run in seconds, ascending.
    seconds: Vec<f64>,
    median_seconds: f64,
}

impl Times {
    /// Runs `work` once without measuring and then `repeat` times.
    fn measure(repeat: usize, mut work: impl FnMut() -> warpann::Result<()>) -> Outcome<Self> {
        let step = Step::measured("measuring", repeat + 1, "runs");
        let mut run = 0;
        let times = warpann_measure::Times::collect(1, repeat, || {
            step.at(run);
            run += 1;
            timed(&mut work).map(|((), milliseconds)| milliseconds)
        })?;
        let seconds = times.milliseconds().iter().map(|time| time / 1e3).collect();
        Ok(Self { seconds, median_seconds: times.median() / 1e3 })
    }

    fn print(&self, name: &str, out: &Out) -> Outcome {
        let Self { seconds, median_seconds } = self;
        let (low, high, runs) = (seconds[0], seconds[seconds.len() - 1], seconds.len());
        out.field(name, format_args!("{median_seconds:.6} s, median of {runs} ({low:.6} to {high:.6})"))
    }
}

/// `name` with `extension` appended, even if `name` contains dots.
fn named(name: &Path, extension: &str) -> PathBuf {
    let mut file = name.as_os_str().to_owned();
    file.push(".");
    file.push(extension);
    file.into()
}

/// As [`check_files`], for the outputs NAME.EXTENSION of the option `--out NAME` and `updated`, an input that the command replaces. A folder
/// that is missing or cannot be written is reported under NAME, because the files have names that the user did not give.
fn check_outputs<'a, const N: usize>(
    stdin: Stdin,
    inputs: impl IntoIterator<Item = &'a Path>,
    name: Option<&Path>,
    extensions: [&str; N],
    updated: Option<&Path>,
) -> Outcome {
    // NAME itself is not written, so it may be a folder.
    if let Some(name) = name.filter(|name| !name.is_dir()) {
        io::check_files([] as [&Path; 0], [name])?;
    }
    let outputs: Vec<PathBuf> =
        name.iter().flat_map(|name| extensions.map(|extension| named(name, extension))).collect();
    check_files(stdin, inputs, updated.into_iter().chain(outputs.iter().map(PathBuf::as_path)))
}

/// Writes the object of the command, as [`Out::object`] prints it, as indented JSON.
fn write_json(path: &Path, object: &impl Serialize, out: &Out) -> Outcome {
    let text = out.pretty(object).map_err(|error| Failure::Message(format!("{}: {error}", path.display())))?;
    Ok(io::write_file(path, text.as_bytes())?)
}

/// Random values between 0 and 1, the same for the same seed.
pub fn random(rows: usize, dim: usize, seed: u64) -> Outcome<Vec<f32>> {
    let too_large = || Failure::Message(format!("{rows} vectors of dimension {dim} do not fit in memory"));
    let len = rows.checked_mul(dim).ok_or_else(too_large)?;
    let mut values: Vec<f32> = Vec::new();
    values.try_reserve_exact(len).map_err(|_| too_large())?;
    let mut random = Random::new(seed);
    values.extend(std::iter::repeat_with(|| random.unit_f32()).take(len));
    Ok(values)
}
