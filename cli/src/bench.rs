//! `warpann bench`: times of parts of the library, and the work that every implementation must do.

pub mod chart;
mod exact;
mod graph;
mod ivf;
mod kmeans;
mod outputs;
mod page;
mod picture;
mod point;
mod record;
mod select;
mod serve;
mod serving;
mod soak;
mod start_up;
mod sweep;
mod times;
#[cfg(feature = "cuda")]
mod tune;

use crate::report::{Out, Outcome};

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
    /// Single requests that arrive at a rate: their latencies, with changes and loads beside them.
    Serve(serving::Args),
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
        Part::Serve(args) => serve::run(args, out),
        Part::StartUp(args) => start_up::run(args, out),
    }
}
