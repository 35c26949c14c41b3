//! `warpann-grid`: a grid of measurements in one process. It checks every result and prints the lower bound of each
//! time.
//! | module | content |
//! |---|---|
//! | [`select`] | k-selection: rows × columns × k, random keys and adversarial ones |
//! | [`exact`] | exact search: large batches by k, small batches by size |
//! | [`hamming`] | search among bits, by Hamming distance, exact, in inverted files and in a graph |
//! | `changes` | changes of a flat index, and searches under filters |
//! | `device_data` | exact search, inverted files and walks from device memory to device memory, also one query at a time and by a graph |
//! | [`ivf`] | inverted-file search: builds, the sweep over probes, few queries |
//! | [`kinds`] | every kind of index on one data set, HNSW and KD-tree of other crates among them |
//! | [`levels`] | inverted-file search on the CPU, with and without SIMD and threads |
//! | [`kmeans`] | k-means: time and objective |
//! | `moved` | data that once cost many times as much as other data: an index whose first vectors lay elsewhere, and equal rows |
//! | `load` | searches of one query by many threads at once |
//! | [`scale`] | several devices: replicas, shards, k-means |
//! | [`sort`] | radix sort of 64- and 128-bit keys with payloads |
//! | [`graph`] | k-NN graphs: exact and through inverted files |
//! | [`shifted`] | shifted sort compared with a KD-tree: triangles and vertices of a mesh |
//! | [`ten_million`] | more vectors than the memory budget holds |
//! | [`billion`] | a stream of vectors that is never completely in memory |
//! | [`equal_recall`] | approximate search compared with other libraries at equal recall |
//! | [`plan`] | memory, time and cost of many more vectors, from a record |
//! | [`record`] | the rows of a record: CSV and the printed table |
//! | [`keys`] | the kinds of keys for selection, and an independent answer to compare with |
//! | [`set`] | base and queries, from files or made |
//! | [`vectors`] | clustered vectors for search, and the distances of a few queries in float64 |
//! `record/README.md` explains the columns and how records are made.

mod billion;
mod changes;
#[cfg(feature = "cuda")]
mod device_data;
mod equal_recall;
mod exact;
mod graph;
mod hamming;
mod ivf;
mod keys;
mod kinds;
mod kmeans;
mod levels;
mod load;
mod machine;
mod moved;
#[cfg(feature = "peers")]
mod peers;
mod plan;
mod record;
mod scale;
mod select;
mod set;
mod shifted;
mod sort;
mod ten_million;
mod vectors;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use warpann::Device;

use record::Record;
use set::Sourced;

/// Measures warpann on one grid of cases and appends the figures to a record.
#[derive(Debug, Parser)]
#[command(name = "warpann-grid", version)]
struct Args {
    #[command(subcommand)]
    grid: Grid,
}

#[derive(Debug, clap::Subcommand)]
enum Grid {
    /// k-selection: keys on the device, times by device events (on the CPU: keys in memory, wall time).
    Select(Of<select::Args>),
    /// Exact search: wall time of a call, queries and results in host memory.
    Exact(Of<exact::Args>),
    /// Search among bits, by Hamming distance, exact, in inverted files and by walks in a graph: wall time of a call,
    /// queries and results in host memory.
    Hamming(Of<hamming::Args>),
    /// Inverted-file search: wall time of a call, queries and results in host memory.
    Ivf(Of<Sourced<ivf::Args>>),
    /// Changes of a flat index with searches after them, and searches under filters.
    Changes(Of<changes::Args>),
    /// Exact search from device memory to device memory, one query at a time and in batches, with and without a graph.
    #[cfg(feature = "cuda")]
    DeviceData(Of<Sourced<device_data::Args>>),
    /// Every kind of index on one data set: exact, inverted files, and on the CPU HNSW and KD-tree; one table.
    Kinds(Of<Sourced<kinds::Args>>),
    /// Inverted-file search on the CPU, plain, with SIMD, in parallel and with both.
    Levels(Of<Sourced<levels::Args>>),
    /// Searches of one query by many threads at once: percentiles of the latency, with cold and warm threads.
    Load(Of<load::Args>),
    /// Exact search of an index whose first vectors lay elsewhere, and training with equal rows, each beside the same
    /// work without that.
    Moved(Of<moved::Args>),
    /// k-means on all vectors.
    Kmeans(Of<Sourced<kmeans::Args>>),
    /// Sorting pairs: on the device, times by device events (on the CPU: in memory, wall time).
    Sort(Of<sort::Args>),
    /// k-NN graphs: wall time from vectors in host memory to the graph there.
    Graph(Of<graph::Args>),
    /// Approximate search in low dimension by shifted sort, and a KD-tree on the same data.
    Shifted(Of<shifted::Args>),
    /// An inverted file of many vectors, made in batches, within a memory budget.
    TenMillion(Of<ten_million::Args>),
    /// Replicas and shards over several devices, and k-means.
    Scale(Of<Sourced<scale::Args>>),
    /// IVF-PQ of a stream of generated vectors that is never completely in memory.
    Billion(Of<billion::Args>),
    /// Compare approximate search with peers and goals at equal recall.
    EqualRecall(equal_recall::Args),
    /// Compute memory, time and cost of 10⁹, 10¹⁰ and 10¹¹ vectors from a record.
    Plan(plan::Args),
    /// Print records side by side: the latest figure of each implementation for each case.
    Table {
        /// Record files to read.
        #[arg(required = true)]
        records: Vec<PathBuf>,
    },
}

/// The arguments of one grid, after those that all grids have.
#[derive(Debug, clap::Args)]
struct Of<A: clap::Args> {
    #[command(flatten)]
    common: Common,
    #[command(flatten)]
    grid: A,
}

impl<A: clap::Args> Of<A> {
    /// Measures. Returns true if every result was right.
    fn run(&self, measure: impl FnOnce(&A, &mut Record) -> Outcome) -> Outcome<bool> {
        self.run_on(self.common.device, measure)
    }

    /// As [`Self::run`], on another device than `--device`.
    fn run_on(&self, device: Device, measure: impl FnOnce(&A, &mut Record) -> Outcome) -> Outcome<bool> {
        let mut record = Record::open(&self.common, device)?;
        measure(&self.grid, &mut record)?;
        Ok(record.all_verified())
    }
}

/// Arguments that all grids have.
#[derive(Debug, Clone, clap::Args)]
struct Common {
    /// Date to put in the record.
    #[arg(long, value_name = "YYYY-MM-DD", value_parser = date)]
    date: String,
    /// Revision of the source to put in the record.
    #[arg(long, default_value = "")]
    revision: String,
    /// auto, cpu, gpu or gpu:N.
    #[arg(long, default_value = "auto", value_parser = measured_device)]
    device: Device,
    /// Record to append to; it is made, with its folders, if it does not exist. Without it only the table is printed.
    #[arg(long, value_name = "CSV")]
    out: Option<PathBuf>,
    /// Timed runs of each case, instead of the grid's default.
    #[arg(long)]
    repeat: Option<usize>,
    /// Run a few small cases, which show that everything works; their times are of no interest.
    #[arg(long)]
    quick: bool,
}

/// The reason why a grid could not be measured.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error("{0}")]
    Library(#[from] warpann::Error),
    #[cfg(feature = "cuda")]
    #[error("driver: {0:?}")]
    Cuda(#[from] warpann::cust::error::CudaError),
    #[cfg(feature = "cuda")]
    #[error("{call}: code {code}")]
    Call { call: &'static str, code: i32 },
    #[error("{}: {error}", path.display())]
    Record { path: PathBuf, error: csv::Error },
    #[error("{}: {error}", path.display())]
    File { path: PathBuf, error: std::io::Error },
    #[error("{}: not a record of this grid: its columns are {found}", path.display())]
    ForeignRecord { path: PathBuf, found: String },
    #[error("threads: {0}")]
    Threads(rayon::ThreadPoolBuildError),
    #[error("standard output: {0}")]
    Output(std::io::Error),
    #[error("{}: {queries} queries of dimension {query_dim}, base of dimension {base_dim}", path.display())]
    Queries { path: PathBuf, queries: usize, query_dim: usize, base_dim: usize },
    #[error("base and queries are of different element types: {base} and {query}")]
    Elements { base: &'static str, query: &'static str },
    #[error("vectors of {element} are not measured: f32, u8 or i8")]
    Unmeasured { element: &'static str },
    #[error("{}: no figures of warpann for '{case}': {missing}", path.display())]
    NoFigures { path: PathBuf, case: String, missing: &'static str },
    #[error("{}: the page has no line '{marker}'", path.display())]
    NoMarker { path: PathBuf, marker: &'static str },
    #[error("no sub-quantizers of 4 to 8 bits give codes of {bytes} bytes for dimension {dim}")]
    CodeBytes { bytes: usize, dim: usize },
    #[error("{}: ground truth names vector {id}; the base has {rows}", path.display())]
    Truth { path: PathBuf, id: u64, rows: usize },
}

type Outcome<T = ()> = Result<T, Failure>;

fn date(text: &str) -> Result<String, String> {
    let shape = text.len() == 10
        && text.bytes().enumerate().all(|(at, b)| if at == 4 || at == 7 { b == b'-' } else { b.is_ascii_digit() });
    if shape { Ok(text.to_owned()) } else { Err("expected YYYY-MM-DD".into()) }
}

fn measured_device(text: &str) -> Result<Device, String> {
    match text.parse() {
        Ok(Device::Emulator) => Err("the emulator checks kernels; its times mean nothing".into()),
        Ok(device) => Ok(device),
        Err(error) => Err(format!("{error}")),
    }
}

/// Success if everything was measured and every result was right.
fn main() -> ExitCode {
    let done = match &Args::parse().grid {
        Grid::Select(args) => args.run(select::run),
        Grid::Exact(args) => args.run(exact::run),
        Grid::Hamming(args) => args.run(hamming::run),
        Grid::Ivf(args) => args.run(Sourced::run),
        Grid::Changes(args) => args.run(changes::run),
        #[cfg(feature = "cuda")]
        Grid::DeviceData(args) => args.run(Sourced::run),
        Grid::Kinds(args) => args.run(Sourced::run),
        Grid::Levels(args) => args.run_on(Device::Cpu, Sourced::run),
        Grid::Load(args) => args.run(load::run),
        Grid::Moved(args) => args.run(moved::run),
        Grid::Kmeans(args) => args.run(Sourced::run),
        Grid::Sort(args) => args.run(sort::run),
        Grid::Graph(args) => args.run(graph::run),
        Grid::Shifted(args) => args.run(shifted::run),
        Grid::TenMillion(args) => args.run(ten_million::run),
        Grid::Scale(args) => args.run_on(args.grid.grid.devices[0], Sourced::run),
        Grid::Billion(args) => args.run(billion::run),
        Grid::EqualRecall(args) => equal_recall::run(args).map(|()| true),
        Grid::Plan(args) => plan::run(args).map(|()| true),
        Grid::Table { records } => record::table(records).map(|()| true),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => {
            eprintln!("warpann-grid: some results are wrong: see the column verified");
            ExitCode::FAILURE
        }
        Err(failure) => {
            eprintln!("warpann-grid: {failure}");
            ExitCode::FAILURE
        }
    }
}
