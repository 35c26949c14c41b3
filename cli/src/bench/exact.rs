//! `warpann bench exact`: exact search.

use std::path::{Path, PathBuf};

use serde::Serialize;
use warpann::{FlatIndex, Metric, Placement};
use warpann_measure::{Work, timed};

use super::times::{Times, random};
use crate::progress::spinning;
use crate::report::{Failure, Out, Outcome, positive};
use crate::streams::check_files;
use crate::vectors::Access;

/// Arguments of `bench exact`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Base vectors from a file, as f32; random ones unless given.
    #[arg(long, requires = "query", conflicts_with_all = ["n", "dim"])]
    pub base: Option<PathBuf>,
    /// Queries from a file, of which the first --queries are used.
    #[arg(long, requires = "base")]
    pub query: Option<PathBuf>,
    /// Neighbours of each query.
    #[arg(long, default_value_t = 10, value_parser = positive)]
    pub k: usize,
    /// Number of base vectors.
    #[arg(long, default_value_t = 100_000, value_parser = positive)]
    pub n: usize,
    /// Dimension of the vectors.
    #[arg(long, default_value_t = 128, value_parser = positive)]
    pub dim: usize,
    /// Queries in one call.
    #[arg(long, default_value_t = 1_000, value_parser = positive)]
    pub queries: usize,
    /// l2, ip or cosine.
    #[arg(long, default_value = "l2")]
    pub metric: Metric,
    /// auto, cpu, gpu, gpu:N or emulator; several devices: gpu:0,gpu:1 are replicas, gpu:0+gpu:1 are shards.
    #[arg(long, default_value = "auto")]
    pub device: Placement,
    /// Number of timed runs, after one run that is not timed; the result is the median.
    #[arg(long, default_value_t = 5, value_parser = positive)]
    pub repeat: usize,
    #[command(flatten)]
    pub access: Access,
}

#[derive(Serialize)]
struct Exact {
    device: String,
    metric: &'static str,
    n: usize,
    dim: usize,
    queries: usize,
    k: usize,
    build_seconds: f64,
    #[serde(flatten)]
    times: Times,
    queries_per_second: f64,
    /// Multiplications and additions of all inner products: 2 · n · queries · dim.
    operations: f64,
    operations_per_second: f64,
    /// Bytes that must be read or written at least once: vectors, queries, results.
    bytes: f64,
    bytes_per_second: f64,
}

pub fn run(args: &Args, out: &Out) -> Outcome {
    let &Args { k, metric, repeat, .. } = args;
    check_files(args.access.stdin, [&args.base, &args.query].into_iter().flatten().map(PathBuf::as_path), [])?;
    let (base, probes, dim) = match (&args.base, &args.query) {
        (Some(base), Some(query)) => {
            let read = || Ok::<_, Failure>((from_file(args, base)?, from_file(args, query)?));
            let ((base, dim), (mut probes, query_dim)) = spinning("reading", read)?;
            if query_dim != dim {
                return Err(warpann::Error::WrongDimension { expected: dim, actual: query_dim }.into());
            }
            probes.truncate(args.queries.saturating_mul(dim));
            (base, probes, dim)
        }
        _ => {
            let made =
                || Ok::<_, Failure>((random(args.n, args.dim, 1)?, random(args.queries, args.dim, 2)?, args.dim));
            spinning("making vectors", made)?
        }
    };
    let (n, queries) = (base.len() / dim, probes.len() / dim);
    let mut index = FlatIndex::<f32>::new(dim, metric, args.device.clone())?;
    let ((), milliseconds) = timed(|| spinning("adding the base", || index.add(&base)))?;
    let build_seconds = milliseconds / 1e3;
    let times = Times::measure(repeat, || index.search(&probes, k).map(drop))?;
    let Work { bytes, operations } = Work::exact::<f32>(n, queries, dim, k);
    let exact = Exact {
        device: index.device(),
        metric: metric.name(),
        n,
        dim,
        queries,
        k,
        build_seconds,
        queries_per_second: queries as f64 / times.median_seconds,
        operations,
        operations_per_second: operations / times.median_seconds,
        bytes,
        bytes_per_second: bytes / times.median_seconds,
        times,
    };
    out.field("device", &exact.device)?;
    out.field("base", format_args!("{n} vectors, dimension {dim}, f32, metric {}", exact.metric))?;
    out.field("queries", format_args!("{queries}, k = {k}"))?;
    out.field("build", format_args!("{build_seconds:.4} s"))?;
    exact.times.print("search", out)?;
    out.field("", format_args!("{:.0} queries/s", exact.queries_per_second))?;
    let (count, rate) = (exact.operations / 1e9, exact.operations_per_second / 1e9);
    out.field("arithmetic", format_args!("{count:.4} GFLOP in the inner products, {rate:.2} GFLOP/s"))?;
    let (count, rate) = (exact.bytes / 1e9, exact.bytes_per_second / 1e9);
    out.field("memory", format_args!("{count:.4} GB to read or write at least once, {rate:.2} GB/s"))?;
    out.object(&exact)
}

/// The vectors of a file as f32, and their dimension.
fn from_file(args: &Args, path: &Path) -> Outcome<(Vec<f32>, usize)> {
    let vectors = args.access.vectors(path)?;
    let values = vectors.to_f32().map_err(|defect| warpann::Error::BadFile { path: path.to_owned(), defect })?;
    Ok((values.as_slice::<f32>().unwrap_or_default().to_vec(), vectors.dim()))
}
