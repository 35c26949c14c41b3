//! `warpann knn-graph`.

use std::path::{Path, PathBuf};
use std::time::Instant;

use serde::Serialize;
use warpann::io::Vectors;
use warpann::knn_graph::{Graph, KnnGraph, KnnIndex};
use warpann::{Any, Device, Element, Error, FlatIndex, IndexInfo, IndexKind, Metric, Watch};

use crate::index::{GRAPH, INVERTED_FILES, Stored, name_of, open};
use crate::progress::{spinning, staged};
use crate::report::{Failure, Out, Outcome, parse_bytes, positive};
use crate::streams::{check_files, is_stream, parse_index};
use crate::vectors::{Access, exactly, with_element};

/// Arguments of `knn-graph`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Vectors of the graph: fvecs, bvecs, fbin, u8bin, i8bin or npy. Each is a node, numbered from 0.
    #[arg(long, value_name = "FILE")]
    base: PathBuf,
    /// Neighbours of each vector, without the vector itself.
    #[arg(long, default_value_t = 10)]
    k: usize,
    /// An index of the base: each id is the number of the vector in the base, as `warpann build` without --ids makes
    /// it. Another index is an error. The search is faster and misses some neighbours; without an index the graph is
    /// exact.
    #[arg(long, value_name = "INDEX", conflicts_with = "metric", value_parser = parse_index)]
    index: Option<PathBuf>,
    /// With --index and an inverted file: lists to search for each vector; unless given, the number that the index
    /// holds.
    #[arg(long, requires = "index", value_parser = positive)]
    probes: Option<usize>,
    /// With --index and a graph: number of vectors that a walk keeps; unless given, the number that the index holds, or
    /// 2 k if that is more.
    #[arg(long, requires = "index", value_parser = positive)]
    beam: Option<usize>,
    /// l2 (squared Euclidean distance), ip (inner product), cosine, or for u8 hamming (bits, eight in a byte).
    #[arg(long, default_value = "l2")]
    metric: Metric,
    /// auto, cpu, gpu, gpu:N, or emulator (checks the GPU's kernels on the CPU; very slow).
    #[arg(long, default_value = "auto")]
    device: Device,
    /// Memory that the index may use on its device, in bytes or with K, M, G, T.
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    memory_budget: Option<u64>,
    /// Write the graph: ibin or npy, a row of k u32 ids for each vector, nearest first, all ones in empty slots.
    ///
    /// During the run its results are in FILE.part and FILE.journal. If the run stops, the same command resumes it and
    /// writes the same file.
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// Write the distances of the neighbours as well: fbin or npy.
    #[arg(long, value_name = "FILE")]
    distances: Option<PathBuf>,
    /// With --index: number of vectors that are searched exactly, to estimate the fraction of true neighbours found; 0
    /// for no estimate.
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    sample: usize,
    /// Number of vectors that are searched and written at a time. Default: the number for about one second.
    #[arg(long, value_name = "N", value_parser = positive)]
    batch: Option<usize>,
    /// Discard the files of an interrupted run.
    #[arg(long)]
    restart: bool,
    #[command(flatten)]
    access: Access,
}

#[derive(Serialize)]
struct Report {
    device: String,
    /// Description of the index, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    index: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    probes: Option<usize>,
    metric: &'static str,
    element: &'static str,
    dim: usize,
    base: usize,
    k: usize,
    /// Number of vectors whose neighbours were taken over from an interrupted run.
    resumed: usize,
    load_seconds: f64,
    build_seconds: f64,
    graph_seconds: f64,
    rows_per_second: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    accuracy: Option<Accuracy>,
}

/// The estimated fraction of true neighbours that the graph contains.
#[derive(Serialize, Clone, Copy)]
struct Accuracy {
    estimate: f64,
    sample: usize,
    seconds: f64,
}

/// Makes the graph, prints the report.
pub fn run(args: &Args, out: &Out) -> Outcome {
    // Everything that can be checked without work is checked first.
    if args.k == 0 {
        return Err(Error::Zero { what: "k" }.into());
    }
    if [Some(&args.out), args.distances.as_ref()].into_iter().flatten().any(|path| is_stream(path)) {
        return Err(Failure::Message("a graph grows in files, so it cannot be written to standard output".into()));
    }
    KnnGraph::check_paths(&args.out, args.distances.as_deref())?;
    let outputs = KnnGraph::outputs(&args.out, args.distances.as_deref())?;
    let inputs = [Some(&*args.base), args.index.as_deref()].into_iter().flatten();
    check_files(args.access.stdin, inputs, outputs.iter().map(PathBuf::as_path))?;
    let start = Instant::now();
    let base = spinning("reading the base", || args.access.vectors(&args.base))?;
    let report = match &args.index {
        Some(path) => {
            let file = IndexInfo::read(path)?;
            if base.rows() > 0 && base.dim() != file.dim {
                return Err(Error::WrongDimension { expected: file.dim, actual: base.dim() }.into());
            }
            let other = |option, known| Err(Failure::OtherKind { option, known, kind: name_of(&file) });
            if file.kind() != IndexKind::Graph && args.beam.is_some() {
                return other("--beam", GRAPH);
            }
            if file.kind() != IndexKind::Ivf && args.probes.is_some() {
                return other("--probes", INVERTED_FILES);
            }
            with_element!(file.element, T => by_index::<T>(args, path, &base, start)?)
        }
        None => with_element!(base.element(), T => exact::<T>(args, &base, start)?),
    };
    print(&report, args, out)
}

fn by_index<T: Element>(args: &Args, path: &Path, base: &Vectors, start: Instant) -> Outcome<Report> {
    let rows = exactly::<T>(base, &args.base)?;
    let load_seconds = start.elapsed().as_secs_f64();
    let start = Instant::now();
    let mut index = open::<Any<T>>(path, args.device, args.memory_budget, &args.access)?;
    let probes = match index.inside_mut() {
        Any::Ivf(index) => {
            args.probes.map_or(Ok(()), |probes| index.set_probes(probes))?;
            Some(index.probes())
        }
        Any::Graph(index) => {
            args.beam.map_or(Ok(()), |beam| index.set_beam(beam))?;
            None
        }
        _ => None,
    };
    let build_seconds = start.elapsed().as_secs_f64();
    // Other numbers of vectors, and other ids than 0, 1, 2, .., are errors of the graph.
    let count = base.rows();
    if KnnIndex::len(&index) == count && KnnIndex::greatest_id(&index).is_some_and(|id| id < count as u64) {
        let other = || Any::first_other(&index, &rows, path, args.access.how);
        if let Some(row) = spinning("comparing the base with the index", other)? {
            return Err(Failure::OtherBase { base: args.base.clone(), index: path.to_owned(), row });
        }
    }
    let mut report = make(args, &index, &rows, index.device(), load_seconds, build_seconds)?;
    (report.index, report.probes) = (Some(Any::description(&index)), probes);
    let (dim, metric) = (KnnIndex::dim(&index), KnnIndex::metric(&index));
    // Frees the device's memory for the exact index.
    drop(index);
    if args.sample > 0 {
        let start = Instant::now();
        let estimate = spinning(format!("searching {} vectors exactly", args.sample), || -> Outcome<f64> {
            let exact = flat::<T>(args, dim, metric, &rows)?;
            Ok(Graph::read(&args.out)?.accuracy(&exact, &rows, args.sample)?)
        })?;
        let sample = args.sample.min(report.base);
        report.accuracy = Some(Accuracy { estimate, sample, seconds: start.elapsed().as_secs_f64() });
    }
    Ok(report)
}

fn exact<T: Element>(args: &Args, base: &Vectors, start: Instant) -> Outcome<Report> {
    let rows = exactly::<T>(base, &args.base)?;
    let load_seconds = start.elapsed().as_secs_f64();
    let start = Instant::now();
    let index = spinning("adding the base", || flat::<T>(args, base.dim(), args.metric, &rows))?;
    let build_seconds = start.elapsed().as_secs_f64();
    make(args, &index, &rows, index.device(), load_seconds, build_seconds)
}

/// An exact index of the base.
fn flat<T: Element>(args: &Args, dim: usize, metric: Metric, rows: &[T]) -> Outcome<FlatIndex<T>> {
    let mut builder = FlatIndex::<T>::builder(dim).metric(metric).device(args.device);
    if let Some(budget) = args.memory_budget {
        builder = builder.memory_budget(budget);
    }
    let mut index = builder.build()?;
    index.add(rows)?;
    Ok(index)
}

/// Makes the graph and writes it to files.
fn make<T: Element>(
    args: &Args,
    index: &impl KnnIndex<T>,
    base: &[T],
    device: String,
    load_seconds: f64,
    build_seconds: f64,
) -> Outcome<Report> {
    let mut graph = KnnGraph::new(args.k).restart(args.restart);
    if let Some(batch) = args.batch {
        graph = graph.batch(batch);
    }
    let rows = index.len();
    let start = Instant::now();
    let write = |watch: &Watch<'_>| graph.write(index, base, &args.out, args.distances.as_deref(), watch);
    let resumed = staged("searching for the neighbours", write)?;
    let graph_seconds = start.elapsed().as_secs_f64();
    Ok(Report {
        device,
        index: None,
        probes: None,
        metric: index.metric().name(),
        element: T::TYPE.name(),
        dim: index.dim(),
        base: rows,
        k: args.k,
        resumed,
        load_seconds,
        build_seconds,
        graph_seconds,
        rows_per_second: (rows - resumed) as f64 / graph_seconds.max(f64::MIN_POSITIVE),
        accuracy: None,
    })
}

fn print(report: &Report, args: &Args, out: &Out) -> Outcome {
    let Report { dim, element, metric, base, k, resumed, .. } = report;
    out.field("device", &report.device)?;
    out.field("base", format_args!("{base} vectors, dimension {dim}, {element}"))?;
    if let Some(index) = &report.index {
        let probes = report.probes.map_or(String::new(), |probes| format!(", {probes} probes"));
        out.field("index", format_args!("{index}{probes}"))?;
    }
    out.field("load", format_args!("{:.3} s", report.load_seconds))?;
    let build = if report.index.is_some() { "open" } else { "build" };
    out.field(build, format_args!("{:.3} s", report.build_seconds))?;
    if *resumed > 0 {
        out.field("resumed", format_args!("{resumed} vectors from an interrupted run"))?;
    }
    out.field("search", format_args!("{:.3} s, {:.0} vectors/s", report.graph_seconds, report.rows_per_second))?;
    if let Some(Accuracy { estimate, sample, seconds }) = report.accuracy {
        let text = format_args!("{estimate:.6} of the true neighbours, by {sample} exact searches in {seconds:.3} s");
        out.field("accuracy", text)?;
    }
    out.field("graph", format_args!("k = {k}, metric {metric}, in {}", args.out.display()))?;
    out.object(report)
}
