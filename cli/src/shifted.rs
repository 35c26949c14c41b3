//! `warpann shifted`.

use std::borrow::Cow;
use std::path::{Path, PathBuf};
use std::time::Instant;

use serde::Serialize;
use warpann::mesh::{BoxForm, read_mesh};
use warpann::shifted::{Quality, ShiftedIndex};
use warpann::{Device, Error};

use crate::progress::spinning;
use crate::report::{Out, Outcome, parse_bytes, positive};
use crate::streams::{F32_FORMATS, ID_FORMATS, Stdout, check_files};
use crate::vectors::{Access, exactly};

/// Arguments of `shifted`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Vectors of up to 12 components to search in: fvecs, bvecs, fbin, u8bin, i8bin or npy. Other types are converted
    /// to f32.
    #[arg(long, value_name = "FILE", required_unless_present = "mesh")]
    base: Option<PathBuf>,
    /// A mesh to search in, obj or ply: its vertices, or with --boxes its triangles.
    #[arg(long, value_name = "FILE", conflicts_with = "base")]
    mesh: Option<PathBuf>,
    /// With --mesh: search among the bounding boxes of the triangles as 6-d vectors, lowest and highest corner
    /// (min-max) or lowest corner and lengths of the edges (min-extent). Queries in three dimensions become 6-d in the
    /// same way.
    // clap does not require an argument that conflicts with a given one.
    #[arg(long, value_name = "FORM", requires = "mesh", conflicts_with = "base")]
    boxes: Option<BoxForm>,
    /// Vectors to search for, in any of the same formats.
    #[arg(long, value_name = "FILE", required_unless_present = "self_join")]
    query: Option<PathBuf>,
    /// Search for the neighbours of every vector of the base, without the vector itself.
    #[arg(long, conflicts_with = "query")]
    self_join: bool,
    /// Neighbours of each query.
    #[arg(long, default_value_t = 10)]
    k: usize,
    /// Number of shifted copies. Default: the dimension plus 1 or plus 2, whichever is odd.
    #[arg(long, value_name = "S", value_parser = positive)]
    shifts: Option<usize>,
    /// Number of vectors to examine in each copy. Default: 2k, rounded up to a multiple of 32.
    #[arg(long, value_name = "N", value_parser = positive)]
    neighborhood: Option<usize>,
    /// auto, cpu, gpu, gpu:N, or emulator (checks the GPU's kernels on the CPU; very slow).
    #[arg(long, default_value = "auto")]
    device: Device,
    /// Compare this many queries, evenly spaced, with exact search; 0 for none.
    ///
    /// Prints the recall (the fraction of found neighbours that are at most as far as the last true one), and epsilon:
    /// the distance of the last neighbour found is 1 + epsilon times that of the last true one.
    #[arg(long, value_name = "N", default_value_t = 0)]
    exact_sample: usize,
    /// Write the ids: ibin, ivecs or npy.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Write the squared distances: fbin, fvecs or npy.
    #[arg(long, value_name = "FILE")]
    distances: Option<PathBuf>,
    /// Memory that the index may use on its device, in bytes or with K, M, G, T.
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    memory_budget: Option<u64>,
    /// Print the neighbours of the first N queries.
    #[arg(long, value_name = "N", default_value_t = 0)]
    show: usize,
    #[command(flatten)]
    access: Access,
    #[command(flatten)]
    stdout: Stdout,
}

impl Args {
    /// The files that the command writes, `-` for standard output.
    pub fn outputs(&self) -> impl Iterator<Item = &Path> {
        [&self.out, &self.distances].into_iter().flatten().map(PathBuf::as_path)
    }
}

/// The report of the command, as JSON.
#[derive(Serialize)]
struct Report {
    device: String,
    /// `vectors`, `vertices` or the form of the boxes.
    kind: &'static str,
    dim: usize,
    base: usize,
    queries: usize,
    k: usize,
    shifts: usize,
    load_seconds: f64,
    build_seconds: f64,
    search_seconds: f64,
    queries_per_second: f64,
    quality: Option<Measured>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    neighbours: Vec<Vec<(u64, f32)>>,
}

/// A [`Quality`].
#[derive(Serialize)]
struct Measured {
    queries: usize,
    recall: f64,
    epsilon_mean: f64,
    epsilon_p99: f64,
    epsilon_max: f64,
    unbounded: usize,
}

impl From<Quality> for Measured {
    fn from(quality: Quality) -> Self {
        let Quality { queries, recall, epsilon, .. } = quality;
        Self {
            queries,
            recall,
            epsilon_mean: epsilon.mean,
            epsilon_p99: epsilon.p99,
            epsilon_max: epsilon.max,
            unbounded: epsilon.unbounded,
        }
    }
}

/// Searches, compares, writes the files, prints the report.
pub fn run(args: &Args, out: &Out) -> Outcome {
    // Everything that can be checked without work is checked first.
    if args.k == 0 {
        return Err(Error::Zero { what: "k" }.into());
    }
    args.out.as_ref().map(|path| args.stdout.format_of(path, ID_FORMATS)).transpose()?;
    args.distances.as_ref().map(|path| args.stdout.format_of(path, F32_FORMATS)).transpose()?;
    let inputs = [&args.base, &args.mesh, &args.query].into_iter().flatten().map(PathBuf::as_path);
    check_files(args.access.stdin, inputs, args.outputs())?;
    let start = Instant::now();
    let (kind, dim, base) = spinning("reading", || read_base(args))?;
    let queries = args.query.as_deref().map(|path| read_queries(args, path, dim)).transpose()?;
    let load_seconds = start.elapsed().as_secs_f64();

    let start = Instant::now();
    let mut builder = ShiftedIndex::builder(dim).device(args.device);
    if let Some(shifts) = args.shifts {
        builder = builder.shifts(shifts);
    }
    if let Some(positions) = args.neighborhood {
        builder = builder.neighborhood(positions);
    }
    if let Some(budget) = args.memory_budget {
        builder = builder.memory_budget(budget);
    }
    let mut index = builder.build()?;
    spinning(format!("sorting {} vectors", base.len() / dim), || index.add(&base))?;
    drop(base);
    let build_seconds = start.elapsed().as_secs_f64();

    let start = Instant::now();
    let found = spinning("searching", || match &queries {
        Some(queries) => index.search(queries, args.k),
        None => index.self_join(args.k),
    })?;
    let search_seconds = start.elapsed().as_secs_f64();

    if let Some(path) = &args.out {
        args.stdout.write_ids(path, &found.ids, args.k)?;
    }
    if let Some(path) = &args.distances {
        args.stdout.write_vectors(path, &found.distances, args.k)?;
    }
    let quality = match args.exact_sample {
        0 => None,
        sample => {
            let compare = || index.quality(&found, queries.as_deref(), sample, args.device);
            Some(spinning("searching exactly", compare)?.into())
        }
    };
    let shown = found.queries().min(args.show);
    print(
        &Report {
            device: index.device(),
            kind,
            dim,
            base: index.len(),
            queries: found.queries(),
            k: args.k,
            shifts: index.shifts(),
            load_seconds,
            build_seconds,
            search_seconds,
            queries_per_second: found.queries() as f64 / search_seconds.max(f64::MIN_POSITIVE),
            quality,
            neighbours: (0..shown).map(|query| found.found(query).collect()).collect(),
        },
        out,
    )
}

/// Reads the base. Returns its name, dimension and vectors.
fn read_base(args: &Args) -> Outcome<(&'static str, usize, Vec<f32>)> {
    match (&args.mesh, args.boxes, &args.base) {
        (Some(path), Some(form), _) => Ok((form.name(), 6, read_mesh(path)?.boxes(form))),
        (Some(path), None, _) => Ok(("vertices", 3, read_mesh(path)?.points().to_vec())),
        (None, _, Some(path)) => {
            let vectors = args.access.vectors(path)?;
            Ok(("vectors", vectors.dim(), exactly::<f32>(&vectors, path)?.into_owned()))
        }
        // The command line requires one of them.
        (None, _, None) => Ok(("vectors", 0, Vec::new())),
    }
}

/// Reads queries of dimension `dim`. If the base consists of boxes, queries in space are converted to boxes.
fn read_queries(args: &Args, path: &Path, dim: usize) -> Outcome<Vec<f32>> {
    let vectors = args.access.vectors(path)?;
    let values = exactly::<f32>(&vectors, path)?;
    match args.boxes {
        Some(form) if vectors.dim() == 3 => Ok(form.points(&values)),
        _ if vectors.dim() == dim || vectors.rows() == 0 => Ok(Cow::into_owned(values)),
        _ => Err(Error::WrongDimension { expected: dim, actual: vectors.dim() }.into()),
    }
}

fn print(report: &Report, out: &Out) -> Outcome {
    out.field("device", &report.device)?;
    out.field("base", format_args!("{} {}, dimension {}", report.base, report.kind, report.dim))?;
    out.field("queries", format_args!("{}, k = {}, {} shifted copies", report.queries, report.k, report.shifts))?;
    out.field("load", format_args!("{:.3} s", report.load_seconds))?;
    out.field("build", format_args!("{:.3} s", report.build_seconds))?;
    out.field("search", format_args!("{:.3} s, {:.0} queries/s", report.search_seconds, report.queries_per_second))?;
    if let Some(Measured { queries, recall, epsilon_mean, epsilon_p99, epsilon_max, unbounded }) = report.quality {
        out.field("recall", format_args!("{recall:.6}, of {queries} queries searched exactly"))?;
        let unbounded = if unbounded > 0 { format!("; {unbounded} queries without bound") } else { String::new() };
        let mean = format_args!("{epsilon_mean:.6} in the mean, {epsilon_p99:.6} for 99 %, {epsilon_max:.6} at most");
        out.field("epsilon", format_args!("{mean}{unbounded}"))?;
    }
    for (query, neighbours) in report.neighbours.iter().enumerate() {
        out.line(format_args!("query {query}"))?;
        for (place, (id, distance)) in neighbours.iter().enumerate() {
            out.line(format_args!("{:>6} {id:>12} {distance:>16}", place + 1))?;
        }
    }
    out.object(report)
}
