//! `warpann search`.

use std::collections::HashSet;
use std::io::IsTerminal;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;
use warpann::io::{self, GroundTruth, Vectors};
use warpann::{Device, Element, ElementType, Error, FlatIndex, Metric, NONE, metric};

use crate::report::{Failure, Out, Outcome, complain, parse_bytes};

/// Arguments of `search`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Vectors to search in: fvecs, bvecs, fbin, u8bin, i8bin or npy.
    #[arg(long, value_name = "FILE")]
    base: PathBuf,
    /// Vectors to search for, in any of the same formats. If the element types differ, both become f32, which is exact.
    #[arg(long, value_name = "FILE")]
    query: PathBuf,
    /// Neighbours of each query.
    #[arg(long, default_value_t = 10)]
    k: usize,
    /// l2 (squared Euclidean distance), ip (inner product) or cosine.
    #[arg(long, default_value = "l2", value_parser = parse_metric)]
    metric: Metric,
    /// auto, cpu, gpu, gpu:N, or emulator (checks the GPU's kernels on the CPU; very slow).
    #[arg(long, default_value = "auto")]
    device: Device,
    /// True neighbours: ivecs, ibin, npy, or big-ann ground truth (bin, ibin).
    ///
    /// Two figures are printed. recall@k: the share of the first k true neighbours that were found, averaged over queries.
    /// Recall by distance: the share of found neighbours that are no worse than the k-th true one, by distances recomputed
    /// from the vectors, so that equal distances in another order do not count as misses.
    #[arg(long, value_name = "FILE")]
    gt: Option<PathBuf>,
    /// Write the ids: ibin, ivecs or npy.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Write the distances: fbin, fvecs or npy.
    #[arg(long, value_name = "FILE")]
    distances: Option<PathBuf>,
    /// Memory that the index may use on its device, in bytes or with K, M, G, T.
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    memory_budget: Option<u64>,
    /// Print the neighbours of the first N queries.
    #[arg(long, value_name = "N", default_value_t = 0)]
    show: usize,
}

/// The metric of a name on the command line.
pub fn parse_metric(text: &str) -> Result<Metric, String> {
    let named = Metric::ALL.into_iter().find(|metric| metric.name() == text);
    named.ok_or_else(|| "expected l2, ip or cosine".into())
}

/// What is printed.
#[derive(Serialize)]
struct Report {
    device: String,
    metric: &'static str,
    element: &'static str,
    dim: usize,
    base: usize,
    queries: usize,
    k: usize,
    load_seconds: f64,
    build_seconds: f64,
    search_seconds: f64,
    queries_per_second: f64,
    recall: Option<Recall>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    neighbours: Vec<Shown>,
}

/// How much of the truth was found, from 0 to 1.
#[derive(Serialize, Clone, Copy)]
struct Recall {
    at: usize,
    by_id: f64,
    by_distance: f64,
}

/// The neighbours of one query; slots without a neighbour are left out.
#[derive(Serialize)]
struct Shown {
    query: usize,
    ids: Vec<u64>,
    distances: Vec<f32>,
}

/// Searches, writes the files, prints the report.
pub fn run(args: &Args, out: &Out) -> Outcome {
    // Everything that can be refused without work is refused first.
    if args.k == 0 {
        return Err(Error::ZeroK.into());
    }
    args.out.as_ref().map_or(Ok(()), io::check_ids_path)?;
    args.distances.as_ref().map_or(Ok(()), io::check_distances_path)?;
    let start = Instant::now();
    let mut base = io::read_vectors(&args.base)?;
    let mut queries = io::read_vectors(&args.query)?;
    if base.rows() > 0 && queries.rows() > 0 && base.dim() != queries.dim() {
        return Err(Error::WrongDimension { expected: base.dim(), actual: queries.dim() }.into());
    }
    let truth = args.gt.as_ref().map(io::read_ground_truth).transpose()?;
    if let Some(truth) = &truth {
        check_truth(truth, args, base.rows(), queries.rows())?;
    }
    if base.element() != queries.element() {
        let (from, to) = (base.element().name(), queries.element().name());
        complain(format_args!("note: base is {from}, queries are {to}: both are searched as f32, which is exact"));
        let wide = |vectors: &Vectors, path: &PathBuf| {
            vectors.to_f32().map_err(|defect| Error::BadFile { path: path.clone(), defect })
        };
        base = wide(&base, &args.base)?;
        queries = wide(&queries, &args.query)?;
    }
    let load_seconds = start.elapsed().as_secs_f64();
    let job = Job { args, base: &base, queries: &queries, truth: truth.as_ref(), load_seconds };
    let report = match base.element() {
        ElementType::F32 => job.run::<f32>(),
        ElementType::F16 => job.run::<half::f16>(),
        ElementType::Bf16 => job.run::<half::bf16>(),
        ElementType::U8 => job.run::<u8>(),
        ElementType::I8 => job.run::<i8>(),
    }?;
    print(&report, out)
}

fn check_truth(truth: &GroundTruth, args: &Args, base: usize, queries: usize) -> Outcome {
    let ids = &truth.ids;
    let path = args.gt.as_deref().unwrap_or("".as_ref()).display();
    if ids.rows != queries {
        let message = format!("{path}: ground truth of {} queries; the query file has {queries}", ids.rows);
        return Err(Failure::Message(message));
    }
    if ids.k < args.k && queries > 0 {
        let message = format!("{path}: ground truth has {} neighbours a query; k is {}", ids.k, args.k);
        return Err(Failure::Message(message));
    }
    if let Some(id) = ids.ids.iter().find(|&&id| id != NONE && id >= base as u64) {
        return Err(Failure::Message(format!("{path}: ground truth names vector {id}; the base file has {base}")));
    }
    Ok(())
}

/// A search whose files are loaded and agree with each other.
struct Job<'a> {
    args: &'a Args,
    base: &'a Vectors,
    queries: &'a Vectors,
    truth: Option<&'a GroundTruth>,
    load_seconds: f64,
}

impl Job<'_> {
    fn run<T: Element>(&self) -> Outcome<Report> {
        let Self { args, base, queries, .. } = *self;
        let (Some(vectors), Some(probes)) = (base.as_slice::<T>(), queries.as_slice::<T>()) else {
            return Err(Failure::Message("base and queries are of different element types".into()));
        };
        let k = args.k;
        // A vecs file without rows states no dimension; the other file does, or there is nothing to search for.
        let dim = base.dim().max(queries.dim());
        let too_large = || Error::ResultTooLarge { queries: queries.rows(), k };
        let slots = queries.rows().checked_mul(k).ok_or_else(too_large)?;
        let (mut ids, mut distances) = (Vec::new(), Vec::new());
        ids.try_reserve_exact(slots).map_err(|_| too_large())?;
        distances.try_reserve_exact(slots).map_err(|_| too_large())?;
        ids.resize(slots, NONE);
        distances.resize(slots, args.metric.worst());

        let start = Instant::now();
        let mut builder = FlatIndex::<T>::builder(dim).metric(args.metric).device(args.device);
        if let Some(budget) = args.memory_budget {
            builder = builder.memory_budget(budget);
        }
        let mut index = builder.build()?;
        let spinner = watched().then(|| {
            let spinner = ProgressBar::new_spinner().with_message(format!("adding {} vectors", base.rows()));
            spinner.enable_steady_tick(Duration::from_millis(100));
            spinner
        });
        index.add(vectors)?;
        if let Some(spinner) = spinner {
            spinner.finish_and_clear();
        }
        let build_seconds = start.elapsed().as_secs_f64();

        let start = Instant::now();
        search_all(&index, probes, k, &mut ids, &mut distances)?;
        let search_seconds = start.elapsed().as_secs_f64();

        if let Some(path) = &args.out {
            io::write_ids(path, &ids, k)?;
        }
        if let Some(path) = &args.distances {
            io::write_distances(path, &distances, k)?;
        }
        let rows = || ids.chunks_exact(k).zip(distances.chunks_exact(k)).enumerate();
        let recall = self.truth.map(|truth| {
            let found = rows().map(|(query, (ids, distances))| {
                let probe = &probes[query * dim..(query + 1) * dim];
                let exact = |id: u64| {
                    let id = id as usize;
                    metric::canonical(args.metric, probe, &vectors[id * dim..(id + 1) * dim])
                };
                recall_of(ids, distances, &truth.ids.row(query)[..k], args.metric, exact)
            });
            mean(found, k)
        });
        let neighbours = rows().take(args.show).map(|(query, (ids, distances))| {
            let found = ids.iter().take_while(|&&id| id != NONE).count();
            Shown { query, ids: ids[..found].to_vec(), distances: distances[..found].to_vec() }
        });
        Ok(Report {
            device: index.device(),
            metric: args.metric.name(),
            element: T::TYPE.name(),
            dim,
            base: base.rows(),
            queries: queries.rows(),
            k,
            load_seconds: self.load_seconds,
            build_seconds,
            search_seconds,
            queries_per_second: queries.rows() as f64 / search_seconds.max(f64::MIN_POSITIVE),
            recall,
            neighbours: neighbours.collect(),
        })
    }
}

/// Whether a person can see progress: standard error is a terminal.
fn watched() -> bool {
    std::io::stderr().is_terminal()
}

/// Searches in one call, or, if somebody watches, in batches that grow until each takes a quarter of a second.
fn search_all<T: Element>(
    index: &FlatIndex<T>,
    probes: &[T],
    k: usize,
    ids: &mut [u64],
    distances: &mut [f32],
) -> warpann::Result<()> {
    let dim = index.dim();
    let queries = probes.len() / dim;
    if !watched() {
        return index.search_into(probes, k, ids, distances);
    }
    let bar = ProgressBar::with_draw_target(Some(queries as u64), ProgressDrawTarget::stderr());
    if let Ok(style) = ProgressStyle::with_template("{bar:40} {pos} of {len} queries, {eta} left") {
        bar.set_style(style);
    }
    bar.tick();
    let (mut done, mut batch) = (0, 64);
    while done < queries {
        let end = queries.min(done + batch);
        let start = Instant::now();
        let slots = done * k..end * k;
        index.search_into(&probes[done * dim..end * dim], k, &mut ids[slots.clone()], &mut distances[slots])?;
        if start.elapsed().as_secs_f64() < 0.25 {
            batch = batch.saturating_mul(2);
        }
        done = end;
        bar.set_position(done as u64);
    }
    bar.finish_and_clear();
    Ok(())
}

/// One query's true neighbours (k, or as many as the base has), and how many of them were found, by id and by distance.
fn recall_of(
    ids: &[u64],
    distances: &[f32],
    truth: &[u64],
    metric: Metric,
    exact: impl Fn(u64) -> f32,
) -> (usize, usize, usize) {
    let truth: Vec<u64> = truth.iter().copied().filter(|&id| id != NONE).collect();
    let Some(&last) = truth.last() else { return (0, 0, 0) };
    let worst = exact(last);
    let known: HashSet<u64> = truth.iter().copied().collect();
    let found = || ids.iter().zip(distances).filter(|&(&id, _)| id != NONE);
    let by_id = found().filter(|&(id, _)| known.contains(id)).count();
    let by_distance = found().filter(|&(id, &d)| known.contains(id) || metric.order(d, worst).is_le()).count();
    (known.len(), by_id, by_distance.min(known.len()))
}

/// The mean over the queries that have true neighbours; 1 if none has, for then nothing was missed.
fn mean(found: impl Iterator<Item = (usize, usize, usize)>, at: usize) -> Recall {
    let (mut queries, mut by_id, mut by_distance) = (0usize, 0.0, 0.0);
    for (total, ids, distances) in found.filter(|&(total, ..)| total > 0) {
        queries += 1;
        by_id += ids as f64 / total as f64;
        by_distance += distances as f64 / total as f64;
    }
    match queries {
        0 => Recall { at, by_id: 1.0, by_distance: 1.0 },
        queries => Recall { at, by_id: by_id / queries as f64, by_distance: by_distance / queries as f64 },
    }
}

fn print(report: &Report, out: &Out) -> Outcome {
    let Report { dim, element, .. } = report;
    out.field("device", &report.device)?;
    out.field("base", format_args!("{} vectors, dimension {dim}, {element}", report.base))?;
    out.field("queries", format_args!("{}, k = {}, metric {}", report.queries, report.k, report.metric))?;
    out.field("load", format_args!("{:.3} s", report.load_seconds))?;
    out.field("build", format_args!("{:.3} s", report.build_seconds))?;
    out.field("search", format_args!("{:.3} s, {:.0} queries/s", report.search_seconds, report.queries_per_second))?;
    if let Some(Recall { at, by_id, by_distance }) = report.recall {
        out.field(&format!("recall@{at}"), format_args!("{by_id:.6} by id, {by_distance:.6} by distance"))?;
    }
    for Shown { query, ids, distances } in &report.neighbours {
        out.line(format_args!("query {query}"))?;
        for (place, (id, distance)) in ids.iter().zip(distances).enumerate() {
            out.line(format_args!("{:>6} {id:>12} {distance:>16}", place + 1))?;
        }
    }
    out.object(report)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recall_counts_ids_and_ties() {
        // True neighbours 1, 2, 3 at distances 1, 2, 2; vector 4 lies at distance 2 too, vector 5 at 3.
        let exact = |id: u64| [9.0, 1.0, 2.0, 2.0, 2.0, 3.0][id as usize];
        let of = |ids: &[u64]| {
            let distances: Vec<f32> =
                ids.iter().map(|&id| if id == NONE { f32::INFINITY } else { exact(id) }).collect();
            recall_of(ids, &distances, &[1, 2, 3], Metric::L2, exact)
        };
        assert_eq!(of(&[1, 2, 3]), (3, 3, 3));
        assert_eq!(of(&[1, 2, 4]), (3, 2, 3));
        assert_eq!(of(&[1, 2, 5]), (3, 2, 2));
        assert_eq!(of(&[1, NONE, NONE]), (3, 1, 1));
        assert_eq!(recall_of(&[NONE], &[f32::INFINITY], &[NONE], Metric::L2, exact), (0, 0, 0));
        let recall = mean([(3, 3, 3), (3, 0, 3), (0, 0, 0)].into_iter(), 3);
        assert_eq!((recall.by_id, recall.by_distance), (0.5, 1.0));
        assert_eq!(mean(std::iter::empty(), 3).by_id, 1.0);
    }
}
