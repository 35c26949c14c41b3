//! Recall against speed of an index: what `bench ivf` and `bench graph` share. Searches do more or less work
//! ([`Effort`]), for several numbers of neighbours and of queries in a call.

use std::path::{Path, PathBuf};

use serde::Serialize;
use warpann::io::Vectors;
use warpann::{Element, ElementType, Error, FlatIndex, Index, Metric, SearchOptions, recall};
use warpann_measure::{Searches, Times, nearest_in};

use super::outputs::{check_outputs, named, write_json};
use super::picture::Picture;
use super::point::{Axis, Effort, Measured, Point};
use crate::index::{Details, Place, Stored, Summary, open};
use crate::progress::{Step, spinning};
use crate::recall::read_truth;
use crate::report::{Failure, Out, Outcome, positive};
use crate::streams::Stdout;
use crate::tune::share;
use crate::vectors::{Access, exactly};

/// The ranks for which recall is reported, in addition to k.
const RANKS: [usize; 3] = [1, 10, 100];
/// Largest number of batches that one measurement times.
const MOST_BATCHES: usize = 2_000;
/// Extensions of the files that `--out` may name: table, report and curve.
const EXTENSIONS: [&str; 4] = ["csv", "json", "svg", "png"];

/// A kind of index whose searches have an effort.
pub trait Swept: Stored<Details: Into<Details>> {
    /// This number as an effort of this kind of index.
    fn effort(count: usize) -> Effort;
    /// The efforts to measure unless the command line has some.
    fn usual(index: &Index<Self>) -> Vec<usize>;
    /// The options of searches with an effort.
    fn at(effort: usize) -> SearchOptions<'static>;
    /// Makes the smallest effort with this recall that of the index, and returns it and its recall. `truth` has `k`
    /// true neighbours of each query.
    fn aim(
        index: &mut Index<Self>,
        queries: &[Self::Element],
        k: usize,
        truth: &[u64],
        recall: f64,
    ) -> warpann::Result<(usize, f64)>;
}

/// The arguments of a measurement of any kind of index, which come with `--index` and `--base`.
// clap would give it the name of the group of the command's own arguments.
#[derive(Debug, clap::Args)]
#[group(skip)]
pub struct Args {
    /// File with the vectors to search for
    #[arg(long, value_name = "FILE")]
    query: PathBuf,
    /// True neighbours: ivecs, ibin, npy or big-ann ground truth. Unless given, an exact search among --base finds
    /// them.
    #[arg(long, value_name = "FILE", required_unless_present = "base")]
    gt: Option<PathBuf>,
    #[command(flatten)]
    pub place: Place,
    /// Neighbours of each query; several numbers are separated by commas.
    #[arg(long, value_delimiter = ',', default_value = "10", value_parser = positive)]
    k: Vec<usize>,
    /// Queries in one call: a number, or all; several are separated by commas.
    #[arg(long, value_delimiter = ',', default_value = "all", value_parser = batch)]
    batch: Vec<usize>,
    /// Number of timed runs over all queries, after one run that is not timed; the result is the median.
    #[arg(long, default_value_t = 5, value_parser = positive)]
    repeat: usize,
    /// Find the smallest number of probes or the narrowest beam with which searches for the first --k reach this recall
    /// (above 0, at most 1). With --index, the file stores this number as the default of later searches.
    #[arg(long, value_name = "RECALL", value_parser = share)]
    target_recall: Option<f64>,
    /// Write the table as NAME.csv and NAME.json, and its curve as NAME.svg and NAME.png.
    #[arg(long, value_name = "NAME")]
    out: Option<PathBuf>,
    /// The quantity of the curve's vertical axis.
    #[arg(long, value_enum, default_value_t)]
    axis: Axis,
    #[command(flatten)]
    pub access: Access,
}

fn batch(text: &str) -> Result<usize, String> {
    if text == "all" { Ok(usize::MAX) } else { positive(text) }
}

/// The files of a measurement.
pub struct Files<'a> {
    args: &'a Args,
    index: Option<&'a PathBuf>,
    base: Option<(&'a PathBuf, Vectors)>,
    queries: Vectors,
}

impl<'a> Files<'a> {
    /// Refuses outputs that are inputs or cannot be written, and reads the vectors. `further` are other inputs of the
    /// command.
    pub fn read(
        args: &'a Args,
        index: Option<&'a PathBuf>,
        base: Option<&'a PathBuf>,
        further: &[&'a PathBuf],
    ) -> Outcome<Self> {
        // With --target-recall, the command also writes the index.
        let (read, updated) = if args.target_recall.is_some() { (None, index) } else { (index, None) };
        let inputs =
            [read, base, Some(&args.query), args.gt.as_ref()].into_iter().flatten().chain(further.iter().copied());
        let inputs = inputs.map(PathBuf::as_path);
        check_outputs(args.access.stdin, inputs, args.out.as_deref(), EXTENSIONS, updated.map(PathBuf::as_path))?;
        let read = |path| spinning("reading", || args.access.vectors(path));
        let base = base.map(|path| Ok::<_, Failure>((path, read(path)?))).transpose()?;
        Ok(Self { args, index, base, queries: read(&args.query)? })
    }

    /// The element type of the index in a file, of which type and dimension are given, or of the base. All vectors must
    /// have the dimension.
    pub fn element(&self, stored: Option<(ElementType, usize)>) -> Outcome<ElementType> {
        // The command line requires an index or a base.
        let of_base = || self.base.as_ref().map(|(_, base)| (base.element(), base.dim()));
        let (element, dim) = stored.or_else(of_base).unwrap_or((self.queries.element(), self.queries.dim()));
        for vectors in self.base.iter().map(|(_, base)| base).chain([&self.queries]) {
            if vectors.dim() != dim {
                return Err(Error::WrongDimension { expected: dim, actual: vectors.dim() }.into());
            }
        }
        if self.queries.rows() == 0 {
            return Err(Failure::Message(format!("{}: no queries", self.args.query.display())));
        }
        Ok(element)
    }

    /// Measures the index of the file, or the one that `make` returns for a dimension and the base, with the seconds of
    /// making it. Prints and writes the table of `efforts`, or of the usual ones if there are none.
    pub fn measure<T: Element, K: Swept<Element = T>>(
        &self,
        efforts: &[usize],
        make: impl FnOnce(usize, &[T]) -> Outcome<(Index<K>, Seconds)>,
        out: &Out,
    ) -> Outcome {
        let args = self.args;
        let base = self.base.as_ref().map(|(path, base)| exactly::<T>(base, path)).transpose()?;
        let queries = exactly::<T>(&self.queries, &args.query)?;
        let (mut index, seconds) = match self.index {
            Some(path) => {
                (open(path, args.place.device.clone(), args.place.memory_budget, &args.access)?, Seconds::default())
            }
            None => make(self.queries.dim(), base.as_deref().unwrap_or_default())?,
        };
        let truth = Truth::of(args, &queries, index.metric(), index.dim(), base.as_deref())?;
        let target = args.target_recall.map(|recall| self.aim(&mut index, &queries, &truth, recall)).transpose()?;

        Summary::of(&index).print(out)?;
        let times = [("train", seconds.train_seconds), ("add", seconds.add_seconds)];
        let times: Vec<String> =
            times.iter().filter_map(|(name, time)| time.map(|time| format!("{name} {time:.3} s"))).collect();
        if !times.is_empty() {
            out.field("built", times.join(", "))?;
        }
        if let Some(Target { recall, k, effort, reached, stored }) = &target {
            let kept = if *stored { ", stored in the index" } else { "" };
            let setting = match effort {
                Effort::Probes(probes) => format!("{probes} probes reach"),
                Effort::Beam(beam) => format!("a beam of {beam} reaches"),
            };
            out.field("target", format_args!("recall@{k} of {recall}: {setting} {reached:.6}{kept}"))?;
        }
        let name = K::effort(0).name();
        let heads = ["k", name, "batch", "recall@k", "queries/s", "p50 ms", "p95 ms", "p99 ms"];
        let [k, effort, batch, found, speed, p50, p95, p99] = heads;
        out.line(format_args!("{k:>5} {effort:>7} {batch:>7} {found:>9} {speed:>11} {p50:>9} {p95:>9} {p99:>9}"))?;
        let mut table = Vec::new();
        let efforts = all_efforts(efforts, &index, target.as_ref());
        let step = Step::measured("measuring", args.k.len() * efforts.len() * args.batch.len(), "rows");
        for &k in &args.k {
            for &effort in &efforts {
                let searches = Searches::new(&index, &queries, k, K::at(effort))?;
                let mut job = Job { effort: K::effort(effort), queries: self.queries.rows(), searches };
                for row in job.rows(args, &truth, &step)? {
                    let line = format!(
                        "{:>5} {:>7} {:>7} {:>9.6} {:>11.0} {:>9.3} {:>9.3} {:>9.3}",
                        row.k,
                        row.effort.count(),
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
        let summary = Summary::of(&index);
        let report = Report { summary, seconds, queries: self.queries.rows(), target, rows: table };
        if let Some(file) = &args.out {
            write(file, name, &report, args.axis, out)?;
        }
        out.object(&report)
    }

    /// Finds the effort for a recall, and stores it in the index and in the index file.
    fn aim<K: Swept>(
        &self,
        index: &mut Index<K>,
        queries: &[K::Element],
        truth: &Truth,
        recall: f64,
    ) -> Outcome<Target> {
        let k = self.args.k[0];
        let wanted: Vec<u64> = truth.ids.chunks_exact(truth.k).flat_map(|row| &row[..k]).copied().collect();
        let (effort, reached) = spinning("searching for the setting", || K::aim(index, queries, k, &wanted, recall))?;
        if let Some(path) = self.index {
            index.save(path)?;
        }
        Ok(Target { recall, k, effort: K::effort(effort), reached, stored: self.index.is_some() })
    }
}

/// The efforts to measure, ascending.
fn all_efforts<K: Swept>(given: &[usize], index: &Index<K>, target: Option<&Target>) -> Vec<usize> {
    let mut efforts = given.to_vec();
    if efforts.is_empty() {
        efforts.extend(K::usual(index));
        efforts.extend(target.map(|target| target.effort.count()));
    }
    efforts.sort_unstable();
    efforts.dedup();
    efforts
}

/// One line of the table.
#[derive(Debug, Serialize)]
struct Row {
    k: usize,
    #[serde(flatten)]
    effort: Effort,
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
    /// The names of the fields, for efforts of this name.
    fn columns(effort: &str) -> [&str; 15] {
        [
            "k",
            effort,
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
        ]
    }

    /// The fields in the order of the columns. A csv table does not hold the flattened effort of the object.
    fn record(&self) -> impl Serialize {
        (
            (self.k, self.effort.count(), self.batch, self.recall),
            (self.recall_1, self.recall_10, self.recall_100),
            (self.nearest_in_1, self.nearest_in_10, self.nearest_in_100),
            (self.queries_per_second, self.latency_p50_ms, self.latency_p95_ms, self.latency_p99_ms),
            self.calls,
        )
    }
}

/// The result of `--target-recall`.
#[derive(Debug, Serialize)]
struct Target {
    recall: f64,
    k: usize,
    #[serde(flatten)]
    effort: Effort,
    reached: f64,
    /// Whether the number was stored in the index file.
    stored: bool,
}

/// The seconds of making an index; none of one from a file.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct Seconds {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub train_seconds: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub add_seconds: Option<f64>,
}

#[derive(Serialize)]
struct Report {
    #[serde(flatten)]
    summary: Summary,
    #[serde(flatten)]
    seconds: Seconds,
    queries: usize,
    target: Option<Target>,
    rows: Vec<Row>,
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
            let truth = read_truth(&args.access, path, queries.len() / dim, k, None)?;
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

/// Searches with one k and one effort.
struct Job<'a, K: Swept> {
    effort: Effort,
    /// Number of queries.
    queries: usize,
    searches: Searches<'a, K>,
}

impl<K: Swept> Job<'_, K> {
    /// One row for each size of batch.
    fn rows(&mut self, args: &Args, truth: &Truth, step: &Step) -> Outcome<Vec<Row>> {
        let queries = self.queries;
        self.searches.search(0..queries)?;
        let (k, ids) = (self.searches.found.k, &self.searches.found.ids);
        let (mut all, mut nearest) = ([None; RANKS.len()], [None; RANKS.len()]);
        for (place, &at) in RANKS.iter().enumerate().filter(|&(_, &at)| at <= k) {
            all[place] = Some(recall(ids, k, &truth.ids, truth.k, at));
            nearest[place] = Some(nearest_in(ids, k, &truth.ids, truth.k, at));
        }
        let ([recall_1, recall_10, recall_100], [nearest_in_1, nearest_in_10, nearest_in_100]) = (all, nearest);
        let recall = recall(ids, k, &truth.ids, truth.k, k);
        let mut rows = Vec::new();
        for &batch in &args.batch {
            let batch = batch.min(queries);
            let (times, queries_per_second) = self.time(batch, args.repeat)?;
            rows.push(Row {
                k,
                effort: self.effort,
                batch,
                recall,
                recall_1,
                recall_10,
                recall_100,
                nearest_in_1,
                nearest_in_10,
                nearest_in_100,
                queries_per_second,
                latency_p50_ms: times.median(),
                latency_p95_ms: times.percentile(0.95),
                latency_p99_ms: times.percentile(0.99),
                calls: times.milliseconds().len(),
            });
            step.advance(1);
        }
        Ok(rows)
    }

    /// Times calls of `batch` queries. If a call has all queries, there are `repeat` calls, and their median gives the
    /// speed. Otherwise calls go through the queries `repeat` times, but at most [`MOST_BATCHES`] calls, and their
    /// total gives the speed. Returns the times of the calls and the queries per second.
    fn time(&mut self, batch: usize, repeat: usize) -> Outcome<(Times, f64)> {
        let queries = self.queries;
        let whole = batch == queries;
        let a_pass = queries.div_ceil(batch);
        let count = if whole { repeat } else { a_pass.saturating_mul(repeat).min(MOST_BATCHES) };
        // Not timed, because it allocates buffers of this size and selects kernels.
        self.searches.search(0..batch)?;
        let (mut calls, mut done, mut total) = (Vec::new(), 0, 0.0);
        for call in 0..count {
            let from = call % a_pass * batch;
            let to = queries.min(from + batch);
            let time = self.searches.search(from..to)?;
            (done, total) = (done + to - from, total + time);
            // The shorter batch at the end of the queries does not count for the latency.
            if to - from == batch {
                calls.push(time);
            }
        }
        let times = Times::new(calls);
        let (done, milliseconds) = if whole { (queries, times.median()) } else { (done, total) };
        Ok((times, 1e3 * done as f64 / milliseconds.max(f64::MIN_POSITIVE)))
    }
}

/// Writes the table and the curve: NAME.csv, NAME.json, NAME.svg, NAME.png.
fn write(name: &Path, effort: &str, report: &Report, axis: Axis, out: &Out) -> Outcome {
    Stdout::default().write_table(&named(name, "csv"), &Row::columns(effort), report.rows.iter().map(Row::record))?;
    write_json(&named(name, "json"), report, out)?;
    let point = |row: &Row| Point {
        k: row.k,
        effort: row.effort,
        batch: row.batch,
        recall: row.recall,
        queries_per_second: row.queries_per_second,
        latency_p50_ms: row.latency_p50_ms,
    };
    let (device, index) = report.summary.names();
    let points = report.rows.iter().map(point).collect();
    Picture::of(&[Measured { index: index.to_owned(), device: device.to_owned(), points }], axis).write(name)
}
