//! `warpann bench ivf`: recall against speed of an inverted-file index, for numbers of probes, neighbours and queries at once.

use std::borrow::Cow;
use std::path::{Path, PathBuf};
use std::time::Instant;

use serde::Serialize;
use warpann::io::Vectors;
use warpann::ivf::{IvfIndex, SearchOptions, recall};
use warpann::{Element, Error, FlatIndex, Metric, NONE};

use super::chart::{Axis, Measured, Picture, Point};
use super::{check_outputs, named, write_json};
use crate::index::{IndexFile, IvfKind, Place, Recipe, Summary, open, parse_ivf_kind};
use crate::progress::{Step, spinning};
use crate::recall::read_truth;
use crate::report::{Failure, Out, Outcome, positive};
use crate::streams::{Stdout, parse_index};
use crate::tune::share;
use crate::vectors::{Access, exactly, with_element};

/// The ranks for which recall is reported, in addition to k.
const RANKS: [usize; 3] = [1, 10, 100];
/// Largest number of batches that one measurement times.
const MOST_BATCHES: usize = 2_000;
/// Extensions of the files that `--out` may name: table, report and curve.
const EXTENSIONS: [&str; 4] = ["csv", "json", "svg", "png"];

/// Arguments of `bench ivf`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The index to measure, which `warpann build` made.
    #[arg(long, value_name = "INDEX", value_parser = parse_index, conflicts_with_all = [
        "kind", "lists", "sub_quantizers", "bits", "opq", "metric", "train", "seed", "iterations", "points_per_centroid",
    ])]
    index: Option<PathBuf>,
    /// Vectors of the index, unless --index is given. Without --gt, an exact search among them finds the true neighbours. With --index,
    /// the ids of the index must be the rows of this file.
    #[arg(long, value_name = "FILE", required_unless_present = "index")]
    base: Option<PathBuf>,
    /// File with the vectors to search for
    #[arg(long, value_name = "FILE")]
    query: PathBuf,
    /// True neighbours: ivecs, ibin, npy or big-ann ground truth. Unless given, an exact search among --base finds them.
    #[arg(long, value_name = "FILE", required_unless_present = "base")]
    gt: Option<PathBuf>,
    /// Kind of inverted file, which says what it keeps of each vector: its components (ivf-flat), its components as half-precision numbers
    /// (ivf-f16), a byte for each component (ivf-sq8), or the code of a product quantizer (ivf-pq).
    #[arg(long, value_parser = parse_ivf_kind, default_value = "ivf-flat")]
    kind: IvfKind,
    #[command(flatten)]
    recipe: Recipe,
    #[command(flatten)]
    place: Place,
    /// Neighbours of each query; several numbers are separated by commas.
    #[arg(long, value_delimiter = ',', default_value = "10", value_parser = positive)]
    k: Vec<usize>,
    /// Lists to search; several numbers are separated by commas. Default: powers of two up to the number of lists, at most 256.
    #[arg(long, value_delimiter = ',', value_parser = positive)]
    probes: Vec<usize>,
    /// Queries in one call: a number, or all; several are separated by commas.
    #[arg(long, value_delimiter = ',', default_value = "all", value_parser = batch)]
    batch: Vec<usize>,
    /// Number of timed runs over all queries, after one run that is not timed; the result is the median.
    #[arg(long, default_value_t = 5, value_parser = positive)]
    repeat: usize,
    /// Find the smallest number of probes with which searches for the first --k reach this recall (above 0, at most 1). With --index, the
    /// file stores this number as the default of later searches.
    #[arg(long, value_name = "RECALL", value_parser = share)]
    target_recall: Option<f64>,
    /// Write the table as NAME.csv and NAME.json, and its curve as NAME.svg and NAME.png.
    #[arg(long, value_name = "NAME")]
    out: Option<PathBuf>,
    /// The quantity of the curve's vertical axis.
    #[arg(long, value_enum, default_value_t)]
    axis: Axis,
    #[command(flatten)]
    access: Access,
}

impl Args {
    /// Checks the outputs: refuses those that are inputs or cannot be written.
    fn check(&self) -> Outcome {
        // With --target-recall, the command also writes the index.
        let (index, updated) =
            if self.target_recall.is_some() { (None, &self.index) } else { (self.index.as_ref(), &None) };
        let inputs = [index, self.base.as_ref(), Some(&self.query), self.gt.as_ref(), self.recipe.train.as_ref()];
        let inputs = inputs.into_iter().flatten().map(PathBuf::as_path);
        check_outputs(self.access.stdin, inputs, self.out.as_deref(), EXTENSIONS, updated.as_deref())
    }
}

fn batch(text: &str) -> Result<usize, String> {
    if text == "all" { Ok(usize::MAX) } else { positive(text) }
}

/// One line of the table.
#[derive(Debug, Serialize)]
struct Row {
    k: usize,
    probes: usize,
    /// Queries in one call.
    batch: usize,
    /// Fraction of the k true neighbours that are among the k found: k-recall@k.
    recall: f64,
    /// The recall of the first 1, 10 and 100 neighbours, if k is that large.
    recall_1: Option<f64>,
    recall_10: Option<f64>,
    recall_100: Option<f64>,
    /// Fraction of queries whose nearest neighbour is among the first 1, 10 and 100 found: 1-recall@k.
    nearest_in_1: Option<f64>,
    nearest_in_10: Option<f64>,
    nearest_in_100: Option<f64>,
    queries_per_second: f64,
    /// Median time of a call, in milliseconds.
    latency_p50_ms: f64,
    latency_p95_ms: f64,
    latency_p99_ms: f64,
    /// Number of timed calls.
    calls: usize,
}

impl Row {
    /// The names of the fields.
    const COLUMNS: [&str; 15] = [
        "k",
        "probes",
        "batch",
        "recall",
        "recall_1",
        "recall_10",
        "recall_100",
        "nearest_in_1",
        "nearest_in_10",
        "nearest_in_100",
        "queries_per_second",
        "latency_p50_ms",
        "latency_p95_ms",
        "latency_p99_ms",
        "calls",
    ];
}

/// The result of `--target-recall`.
#[derive(Debug, Serialize)]
struct Target {
    recall: f64,
    k: usize,
    probes: usize,
    reached: f64,
    /// Whether the number was stored in the index file.
    stored: bool,
}

#[derive(Serialize)]
struct Report {
    #[serde(flatten)]
    summary: Summary,
    #[serde(skip_serializing_if = "Option::is_none")]
    train_seconds: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    add_seconds: Option<f64>,
    queries: usize,
    target: Option<Target>,
    rows: Vec<Row>,
}

/// Measures, writes the files, prints the table.
pub fn run(args: &Args, out: &Out) -> Outcome {
    args.check()?;
    let read = |path| spinning("reading", || args.access.vectors(path));
    let base = args.base.as_ref().map(read).transpose()?;
    let queries = read(&args.query)?;
    let (element, dim) = match (&args.index, &base) {
        (Some(index), _) => IndexFile::read_ivf(index, "bench ivf").map(|info| (info.element, info.dim))?,
        (None, Some(base)) => (base.element(), base.dim()),
        // The command line requires one of them.
        (None, None) => return Ok(()),
    };
    for vectors in base.iter().chain([&queries]) {
        if vectors.dim() != dim {
            return Err(Error::WrongDimension { expected: dim, actual: vectors.dim() }.into());
        }
    }
    if queries.rows() == 0 {
        return Err(Failure::Message(format!("{}: no queries", args.query.display())));
    }
    with_element!(element, T => measure::<T>(args, base.as_ref(), &queries, out))
}

fn measure<T: Element>(args: &Args, base: Option<&Vectors>, queries: &Vectors, out: &Out) -> Outcome {
    let dim = queries.dim();
    let rows = match (base, &args.base) {
        (Some(base), Some(path)) => Some(exactly::<T>(base, path)?),
        _ => None,
    };
    let probes = exactly::<T>(queries, &args.query)?;
    let (mut index, train_seconds, add_seconds) = match (&args.index, &rows) {
        (Some(path), _) => {
            let index = open::<T, IvfIndex<T>>(path, args.place.device.clone(), args.place.memory_budget, args.access)?;
            (index, None, None)
        }
        (None, Some(rows)) => {
            let train = args
                .recipe
                .train
                .as_ref()
                .map(|path| Ok::<_, Failure>((args.access.vectors(path)?, path)))
                .transpose()?;
            let train = match &train {
                Some((train, _)) if train.dim() != dim => {
                    return Err(Error::WrongDimension { expected: dim, actual: train.dim() }.into());
                }
                Some((train, path)) => Some(exactly::<T>(train, path)?),
                None => None,
            };
            let built = args.recipe.build::<T>(args.kind, &args.place, (dim, rows), None, train.as_deref(), None)?;
            (built.index, Some(built.train_seconds), Some(built.add_seconds))
        }
        (None, None) => return Ok(()),
    };
    let truth = Truth::of(args, &probes, index.metric(), dim, rows.as_deref())?;
    let target = args.target_recall.map(|target| aim(args, &mut index, &probes, &truth, target)).transpose()?;

    let mut summary = Summary::of(&index);
    summary.print(out)?;
    if let (Some(train), Some(add)) = (train_seconds, add_seconds) {
        out.field("built", format_args!("train {train:.3} s, add {add:.3} s"))?;
    }
    if let Some(Target { recall, k, probes, reached, stored }) = &target {
        let kept = if *stored { ", stored in the index" } else { "" };
        out.field("target", format_args!("recall@{k} of {recall}: {probes} probes reach {reached:.6}{kept}"))?;
    }
    let heads = ["k", "probes", "batch", "recall@k", "queries/s", "p50 ms", "p95 ms", "p99 ms"];
    let [k, lists, batch, found, speed, p50, p95, p99] = heads;
    out.line(format_args!("{k:>5} {lists:>7} {batch:>7} {found:>9} {speed:>11} {p50:>9} {p95:>9} {p99:>9}"))?;
    let mut table = Vec::new();
    let sweep = sweep(args, index.lists(), target.as_ref());
    let step = Step::measured("measuring", args.k.len() * sweep.len() * args.batch.len(), "rows");
    for &k in &args.k {
        for &probes_count in &sweep {
            let mut job = Job {
                index: &index,
                queries: &probes,
                k,
                probes: probes_count,
                ids: Vec::new(),
                distances: Vec::new(),
            };
            for row in job.rows(args, &truth, &step)? {
                let line = format!(
                    "{:>5} {:>7} {:>7} {:>9.6} {:>11.0} {:>9.3} {:>9.3} {:>9.3}",
                    row.k,
                    row.probes,
                    row.batch,
                    row.recall,
                    row.queries_per_second,
                    row.latency_p50_ms,
                    row.latency_p95_ms,
                    row.latency_p99_ms
                );
                step.aside(|| out.line(line))?;
                table.push(row);
            }
        }
    }
    drop(step);
    // The description of the device may be longer after a search.
    summary = Summary::of(&index);
    let report = Report { summary, train_seconds, add_seconds, queries: queries.rows(), target, rows: table };
    if let Some(name) = &args.out {
        write(name, &report, args.axis, out)?;
    }
    out.object(&report)
}

/// The numbers of probes to measure, ascending.
fn sweep(args: &Args, lists: usize, target: Option<&Target>) -> Vec<usize> {
    let mut probes = args.probes.clone();
    if probes.is_empty() {
        probes.extend(
            std::iter::successors(Some(1usize), |probes| probes.checked_mul(2)).take_while(|&p| p <= lists.min(256)),
        );
        probes.extend(target.map(|target| target.probes));
    }
    probes.sort_unstable();
    probes.dedup();
    probes
}

/// Finds the number of probes for a recall, and stores it in the index and in the index file.
fn aim<T: Element>(args: &Args, index: &mut IvfIndex<T>, queries: &[T], truth: &Truth, target: f64) -> Outcome<Target> {
    let k = args.k[0];
    let wanted: Vec<u64> = truth.ids.chunks_exact(truth.k).flat_map(|row| &row[..k]).copied().collect();
    let (probes, reached) =
        spinning("looking for the number of probes", || index.probes_for_recall(queries, k, &wanted, target))?;
    index.set_probes(probes)?;
    if let Some(path) = &args.index {
        index.save(path)?;
    }
    Ok(Target { recall: target, k, probes, reached, stored: args.index.is_some() })
}

/// True neighbours, `k` for each query.
struct Truth {
    ids: Vec<u64>,
    k: usize,
}

impl Truth {
    /// Reads the true neighbours from a file, or finds them by an exact search.
    fn of<T: Element>(args: &Args, queries: &[T], metric: Metric, dim: usize, base: Option<&[T]>) -> Outcome<Self> {
        let k = args.k.iter().copied().max().unwrap_or(1);
        if let Some(path) = &args.gt {
            let truth = read_truth(args.access, path, queries.len() / dim, k, None)?;
            return Ok(Self { k: truth.ids.k, ids: truth.ids.ids });
        }
        let mut flat = FlatIndex::<T>::new(dim, metric, args.place.device.clone())?;
        let ids = spinning("searching for the true neighbours", || {
            flat.add(base.unwrap_or_default())?;
            flat.search(queries, k)
        });
        Ok(Self { k, ids: ids?.ids })
    }
}

/// Searches with one k and one number of probes.
struct Job<'a, T: Element> {
    index: &'a IvfIndex<T>,
    queries: &'a Cow<'a, [T]>,
    k: usize,
    probes: usize,
    ids: Vec<u64>,
    distances: Vec<f32>,
}

impl<T: Element> Job<'_, T> {
    /// Searches for queries `from..to`. Returns the time in seconds.
    fn search(&mut self, from: usize, to: usize) -> Outcome<f64> {
        let (dim, k) = (self.index.dim(), self.k);
        let options = SearchOptions::new().probes(self.probes);
        let slots = from * k..to * k;
        let (ids, distances) = (&mut self.ids[slots.clone()], &mut self.distances[slots]);
        let start = Instant::now();
        self.index.search_into(&self.queries[from * dim..to * dim], k, &options, ids, distances)?;
        Ok(start.elapsed().as_secs_f64())
    }

    /// One row for each size of batch.
    fn rows(&mut self, args: &Args, truth: &Truth, step: &Step) -> Outcome<Vec<Row>> {
        let (k, queries) = (self.k, self.queries.len() / self.index.dim());
        let slots = queries.checked_mul(k).ok_or(Error::ResultTooLarge { queries, k })?;
        (self.ids, self.distances) = (vec![NONE; slots], vec![0.0; slots]);
        self.search(0, queries)?;
        let (mut all, mut nearest) = ([None; RANKS.len()], [None; RANKS.len()]);
        for (place, &at) in RANKS.iter().enumerate().filter(|&(_, &at)| at <= k) {
            all[place] = Some(recall(&self.ids, k, &truth.ids, truth.k, at));
            nearest[place] = Some(self.nearest_in(truth, at));
        }
        let ([recall_1, recall_10, recall_100], [nearest_in_1, nearest_in_10, nearest_in_100]) = (all, nearest);
        let recall = recall(&self.ids, k, &truth.ids, truth.k, k);
        let mut rows = Vec::new();
        for &batch in &args.batch {
            let batch = batch.min(queries);
            let times = self.time(queries, batch, args.repeat)?;
            let at = |share: f64| 1e3 * times.calls[((share * times.calls.len() as f64).ceil() as usize).max(1) - 1];
            rows.push(Row {
                k,
                probes: self.probes,
                batch,
                recall,
                recall_1,
                recall_10,
                recall_100,
                nearest_in_1,
                nearest_in_10,
                nearest_in_100,
                queries_per_second: times.queries_per_second,
                latency_p50_ms: at(0.5),
                latency_p95_ms: at(0.95),
                latency_p99_ms: at(0.99),
                calls: times.calls.len(),
            });
            step.advance(1);
        }
        Ok(rows)
    }

    /// Fraction of queries whose first true neighbour is among the first `at` found.
    fn nearest_in(&self, truth: &Truth, at: usize) -> f64 {
        let rows = self.ids.chunks_exact(self.k).zip(truth.ids.chunks_exact(truth.k));
        let known = rows.filter(|(_, truth)| truth[0] != NONE);
        let (hits, all) = known.fold((0usize, 0usize), |(hits, all), (found, truth)| {
            (hits + usize::from(found[..at].contains(&truth[0])), all + 1)
        });
        if all == 0 { 1.0 } else { hits as f64 / all as f64 }
    }

    /// Times calls of `batch` queries. If a call has all queries, there are `repeat` calls, and their median gives the speed. Otherwise
    /// calls go through the queries `repeat` times, but at most [`MOST_BATCHES`] calls, and their total gives the speed.
    fn time(&mut self, queries: usize, batch: usize, repeat: usize) -> Outcome<Calls> {
        let whole = batch == queries;
        let a_pass = queries.div_ceil(batch);
        let count = if whole { repeat } else { a_pass.saturating_mul(repeat).min(MOST_BATCHES) };
        // Not timed, because it allocates buffers of this size and selects kernels.
        self.search(0, batch)?;
        let (mut calls, mut done, mut seconds) = (Vec::new(), 0, 0.0);
        for call in 0..count {
            let from = call % a_pass * batch;
            let to = queries.min(from + batch);
            let time = self.search(from, to)?;
            (done, seconds) = (done + to - from, seconds + time);
            // The shorter batch at the end of the queries does not count for the latency.
            if to - from == batch {
                calls.push(time);
            }
        }
        calls.sort_by(f64::total_cmp);
        let median = calls[(calls.len() - 1) / 2];
        let queries_per_second = if whole {
            queries as f64 / median.max(f64::MIN_POSITIVE)
        } else {
            done as f64 / f64::max(seconds, f64::MIN_POSITIVE)
        };
        Ok(Calls { calls, queries_per_second })
    }
}

/// The times of the calls of a measurement.
struct Calls {
    /// Time of each call in seconds, ascending; at least one.
    calls: Vec<f64>,
    queries_per_second: f64,
}

/// Writes the table and the curve: NAME.csv, NAME.json, NAME.svg, NAME.png.
fn write(name: &Path, report: &Report, axis: Axis, out: &Out) -> Outcome {
    Stdout::default().write_table(&named(name, "csv"), &Row::COLUMNS, &report.rows)?;
    write_json(&named(name, "json"), report, out)?;
    let point = |row: &Row| Point {
        k: row.k,
        probes: row.probes,
        batch: row.batch,
        recall: row.recall,
        queries_per_second: row.queries_per_second,
        latency_p50_ms: row.latency_p50_ms,
    };
    let (device, index) = report.summary.names();
    let points = report.rows.iter().map(point).collect();
    Picture::of(&[Measured { index: index.to_owned(), device: device.to_owned(), points }], axis).write(name)
}
