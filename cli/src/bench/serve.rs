//! `warpann bench serve`: the latencies of single requests that arrive at a rate and become batches.

use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::{Duration, Instant};

use serde::Serialize;
use test_random::Random;
use warpann::io::Vectors;
use warpann::{
    Answer, Any, AnyIndex, Batcher, BatcherBuilder, BatcherStatistics, Element, ElementType, Error, FlatIndex,
    IndexInfo, IndexWriter, Request, SharedFilter,
};
use warpann_measure::arrivals::{Answers, Clock, Machine, Service, closed_loop, open_loop};
use warpann_measure::{Times, timed};

use super::outputs::{check_outputs, named, write_json};
use super::serving::{Args, End, PAUSE, changers, joined, load_again, near, options};
use crate::chart::{Chart, Mark, Series};
use crate::index::{Place, Summary, open};
use crate::progress::Step;
use crate::report::{Failure, Out, Outcome};
use crate::vectors::{exactly, with_element};

/// Extensions of the files of --out.
const EXTENSIONS: [&str; 3] = ["json", "svg", "png"];
/// The shares of the highest rate at which requests arrive.
const SHARES: [f64; 3] = [0.5, 0.8, 0.95];
/// Requests a second of the row that shows a request alone.
const ALONE: f64 = 1_000.0;
/// Largest number of requests that are under way together while the highest rate is measured.
const UNDER_WAY: usize = 8_192;
/// Share of a row's time that single searches for all of them would take.
const UNDER_WAY_SHARE: f64 = 0.25;
/// Single searches, of which the median is reported.
const SINGLE: usize = 1_000;
/// A row of the table.
#[derive(Debug, Serialize)]
struct Row {
    /// Share of the highest rate; none for requests alone.
    share: Option<f64>,
    /// Requests a second that arrived, on average.
    arriving: f64,
    /// Requests a second that were answered.
    answered: f64,
    /// Requests that were refused.
    refused: usize,
    /// Requests of a search, on average.
    batch: f64,
    latency_p50_ms: f64,
    latency_p99_ms: f64,
    latency_p999_ms: f64,
    latency_max_ms: f64,
}

/// The times of the changes.
#[derive(Debug, Serialize)]
struct Changes {
    upserts: usize,
    count: usize,
    p50_ms: f64,
    max_ms: f64,
}

#[derive(Debug, Serialize)]
struct Report {
    device: String,
    /// Description of the index.
    index: String,
    element: &'static str,
    metric: &'static str,
    dim: usize,
    vectors: usize,
    /// Median time of a search of one query without a batcher, in milliseconds.
    single_p50_ms: f64,
    /// The same with as long a pause between two searches as between two requests alone.
    paced_p50_ms: f64,
    /// The same with pauses by a thread that waits for a batcher.
    batcher_p50_ms: f64,
    /// Answers a second while requests never fail to be there.
    highest_rate: f64,
    rows: Vec<Row>,
    changes: Option<Changes>,
    /// Number of times the other index was loaded.
    loads: Option<usize>,
}

/// Measures and prints the report.
pub fn run(args: &Args, out: &Out) -> Outcome {
    let base = args.base.as_ref().map(|path| args.access.vectors(path)).transpose()?;
    let of_file = args.index.as_ref().map(|path| IndexInfo::read(path).map(|info| info.element)).transpose()?;
    // The command line requires one of them.
    let element = of_file.or(base.as_ref().map(Vectors::element)).unwrap_or(ElementType::F32);
    with_element!(element, T => measure::<T>(args, base.as_ref(), out))
}

/// The index that answers.
fn answering<T: Element>(args: &Args, base: Option<&Vectors>) -> Outcome<AnyIndex<T>> {
    let Args { place: Place { device, memory_budget }, access, .. } = args;
    if let Some(path) = &args.index {
        return open(path, device.clone(), *memory_budget, access);
    }
    let (path, base) = args.base.as_ref().zip(base).ok_or_else(|| Failure::Message("no index".into()))?;
    let builder = FlatIndex::<T>::builder(base.dim()).device(device.clone());
    let builder = memory_budget.iter().fold(builder, |builder, &bytes| builder.memory_budget(bytes));
    let mut index = builder.build()?;
    index.add(&exactly::<T>(base, path)?)?;
    Ok(index.into())
}

fn measure<T: Element>(args: &Args, base: Option<&Vectors>, out: &Out) -> Outcome {
    if !(args.target.is_finite() && args.target > 0.0 && args.seconds.is_finite() && args.seconds > 0.0) {
        return Err(Failure::Message("--target and --seconds must be above 0".into()));
    }
    let inputs = [args.index.as_ref(), args.base.as_ref(), Some(&args.query), args.load.as_ref()];
    let inputs = inputs.into_iter().flatten().map(PathBuf::as_path);
    check_outputs(args.access.stdin, inputs, args.out.as_deref(), EXTENSIONS, None)?;
    let length = Duration::from_secs_f64(if args.quick { 0.5 } else { args.seconds });
    let queries = args.access.vectors(&args.query)?;
    let queries = exactly::<T>(&queries, &args.query)?;
    let index = answering::<T>(args, base)?;
    if queries.is_empty() || !queries.len().is_multiple_of(index.dim()) {
        return Err(Error::Ragged { what: "components", len: queries.len(), size: index.dim() }.into());
    }
    let target = Duration::from_secs_f64(args.target / 1e3);
    let builder = BatcherBuilder::new().target(target);
    let builder = args.workers.iter().fold(builder, |builder, &workers| builder.workers(workers));
    if let Some(minutes) = args.soak {
        let length = Duration::try_from_secs_f64(minutes * 60.0).ok().filter(|length| !length.is_zero());
        let length = length.ok_or_else(|| Failure::Message("--soak must be above 0".into()))?;
        return super::soak::run(args, length, index, &queries, builder, out);
    }
    let [single, paced] = single(args, &index, &queries)?;
    let under_way = (UNDER_WAY_SHARE * length.as_secs_f64() * 1e3 / single.median()) as usize;
    let depth = under_way.clamp(16, UNDER_WAY).div_ceil(args.senders);
    let summary = Summary::of(&index);
    let described = (index.len(), index.metric().name());
    let mut writer = IndexWriter::new(index);
    let filters = filters(args.filters, &writer.current());
    let batcher = builder.serve(writer.reader())?;
    let load = Load { args, queries: &queries, dim: writer.current().dim(), filters: &filters, batcher: &batcher };

    summary.print(out)?;
    let alone =
        format_args!("{:.3} ms for a search of one query, {:.3} ms with pauses", single.median(), paced.median());
    out.field("single", alone)?;
    let through = through(args, &batcher, &queries, load.dim)?;
    out.field("batcher", format_args!("{:.3} ms for a thread that waits, with pauses", through.median()))?;
    let over = AtomicBool::new(false);
    let step = Step::measured("measuring", SHARES.len() + 2, "rows");
    let measured = thread::scope(|scope| -> Outcome<_> {
        let _end = End(&over);
        let changing = (args.upserts > 0).then(|| scope.spawn(|| change(args, &mut writer, &queries, &over)));
        let loading = args.load.as_ref().map(|path| scope.spawn(|| load_again::<T>(args, path, &over)));
        // The first run loads the kernels of larger batches, which takes seconds without a driver cache.
        load.run(length, |sender, clock| closed_loop(sender, clock, depth, length))?;
        let highest = load.run(length, |sender, clock| closed_loop(sender, clock, depth, length))?;
        let highest_rate = highest.0.rate();
        step.advance(1);
        let mut rows = Vec::new();
        let rates = SHARES.map(|share| (Some(share), share * highest_rate));
        for (share, arriving) in [(None, ALONE.min(highest_rate / 2.0))].into_iter().chain(rates) {
            rows.push(load.row(share, arriving, length)?);
            step.advance(1);
        }
        over.store(true, Ordering::Relaxed);
        let changes = changing.map(|thread| joined(thread.join())).transpose()?;
        let loads = loading.map(|thread| joined(thread.join())).transpose()?;
        Ok((highest_rate, rows, changes, loads))
    });
    drop(step);
    let (highest_rate, rows, changes, loads) = measured?;
    out.field("highest rate", format_args!("{highest_rate:.0} requests/s"))?;
    if let Some(Changes { upserts, count, p50_ms, max_ms }) = &changes {
        out.field("changes", format_args!("{count} of {upserts} vectors: {p50_ms:.3} ms, at most {max_ms:.3} ms"))?;
    }
    if let Some(loads) = loads {
        out.field("loads", loads)?;
    }
    let heads = ["share", "requests/s", "answers/s", "refused", "batch", "p50 ms", "p99 ms", "p99.9 ms", "max ms"];
    let [share, arriving, answered, refused, batch, p50, p99, p999, max] = heads;
    out.line(format_args!(
        "{share:>5} {arriving:>10} {answered:>10} {refused:>7} {batch:>7} {p50:>8} {p99:>8} {p999:>8} {max:>8}"
    ))?;
    for row in &rows {
        let share = row.share.map_or("-".into(), |share| format!("{share:.2}"));
        let Row { arriving, answered, refused, batch, .. } = row;
        let [p50, p99, p999, max] = [row.latency_p50_ms, row.latency_p99_ms, row.latency_p999_ms, row.latency_max_ms];
        out.line(format_args!(
            "{share:>5} {arriving:>10.0} {answered:>10.0} {refused:>7} {batch:>7.1} {p50:>8.3} {p99:>8.3} {p999:>8.3} {max:>8.3}"
        ))?;
    }
    let (single_p50_ms, paced_p50_ms) = (single.median(), paced.median());
    let ((device, index), (vectors, metric), dim) = (summary.names(), described, load.dim);
    let report = Report {
        device: device.into(),
        index: index.into(),
        element: T::TYPE.name(),
        metric,
        dim,
        vectors,
        single_p50_ms,
        paced_p50_ms,
        batcher_p50_ms: through.median(),
        highest_rate,
        rows,
        changes,
        loads,
    };
    if let Some(name) = &args.out {
        let [json, svg, png] = EXTENSIONS.map(|extension| named(name, extension));
        write_json(&json, &report, out)?;
        chart(&report).write(&svg, &png)?;
    }
    out.object(&report)
}

/// A latency of a row in milliseconds.
type Latency = fn(&Row) -> f64;

/// Latencies over answers a second, a line for each share of the requests.
fn chart(report: &Report) -> Chart {
    let lines: [(&str, Latency); 4] = [
        ("half of the requests (p50)", |row| row.latency_p50_ms),
        ("99 of 100 (p99)", |row| row.latency_p99_ms),
        ("999 of 1,000 (p99.9)", |row| row.latency_p999_ms),
        ("the slowest", |row| row.latency_max_ms),
    ];
    let series = |(subject, (name, latency)): (usize, (&str, Latency))| {
        let mark = |row: &Row| Mark {
            place: (row.answered, latency(row)),
            text: format!("{name}\n{:.0} answers/s\n{:.3} ms", row.answered, latency(row)),
        };
        let mut marks: Vec<Mark> = report.rows.iter().map(mark).collect();
        marks.sort_by(|a, b| a.place.0.total_cmp(&b.place.0));
        Series { name: name.into(), subject, variant: 0, marks }
    };
    let beside = match (&report.changes, report.loads) {
        (None, None) => "",
        (Some(_), None) => ", beside changes",
        (None, Some(_)) => ", beside loads",
        (Some(_), Some(_)) => ", beside changes and loads",
    };
    Chart {
        title: format!("{}; {}{beside}", report.index, report.device),
        x_label: "answers per second".into(),
        y_label: "milliseconds from arrival to answer".into(),
        series: lines.into_iter().enumerate().map(series).collect(),
        best: Vec::new(),
    }
}

/// The times of single searches, one after the other, and with pauses.
fn single<T: Element>(args: &Args, index: &AnyIndex<T>, queries: &[T]) -> Outcome<[Times; 2]> {
    let mut rows = queries.chunks_exact(index.dim()).cycle();
    let count = if args.quick { SINGLE / 10 } else { SINGLE };
    let mut search = || {
        let query = rows.next().unwrap_or_default();
        timed(|| index.search_one(query, args.k[0], &options(args))).map(|(_, milliseconds)| milliseconds)
    };
    let at_once = Times::collect(10, count, &mut search)?;
    let paced = Times::collect(10, count, || {
        let clock = Machine(Instant::now());
        clock.wait_until(Duration::from_secs_f64(1.0 / ALONE));
        search()
    })?;
    Ok([at_once, paced])
}

/// The times of single searches through a batcher, by a thread that waits, with pauses.
fn through<T: Element>(args: &Args, batcher: &Batcher<Any<T>>, queries: &[T], dim: usize) -> Outcome<Times> {
    let mut rows = queries.chunks_exact(dim).cycle();
    Ok(Times::collect(10, if args.quick { SINGLE / 10 } else { SINGLE }, || {
        let clock = Machine(Instant::now());
        clock.wait_until(Duration::from_secs_f64(1.0 / ALONE));
        let query = rows.next().unwrap_or_default();
        let request = || batcher.search(Request::new(query, args.k[0]).options(options(args)));
        timed(request).map(|(_, milliseconds)| milliseconds)
    })?)
}

/// Filters of half of the vectors, each of others.
fn filters<T: Element>(count: usize, index: &AnyIndex<T>) -> Vec<SharedFilter> {
    (0..count)
        .map(|number| {
            let mut random = Random::new(number as u64);
            SharedFilter::from(index.filter(|_| random.below(2) == 0))
        })
        .collect()
}

/// Replaces vectors by others near queries, again and again.
fn change<T: Element>(
    args: &Args,
    writer: &mut IndexWriter<AnyIndex<T>>,
    queries: &[T],
    over: &AtomicBool,
) -> Outcome<Changes> {
    let (ids, dim, mut random) = (writer.current().ids(), writer.current().dim(), Random::new(3));
    let upserts = args.upserts.min(ids.len());
    let changers = changers(args)?;
    let mut milliseconds = Vec::new();
    while !over.load(Ordering::Relaxed) {
        let first = random.below(ids.len() - upserts + 1);
        let query = |random: &mut Random| &queries[random.below(queries.len() / dim) * dim..][..dim];
        let rows: Vec<T> = (0..upserts).flat_map(|_| near(query(&mut random), &mut random)).collect();
        let start = Instant::now();
        // A search of the new version brings it to the device before a request does.
        changers.install(|| {
            writer.change(|index| {
                index.upsert(&rows, &ids[first..][..upserts])?;
                index.search(&queries[..dim], 1)
            })
        })?;
        milliseconds.push(start.elapsed().as_secs_f64() * 1e3);
        thread::sleep(PAUSE);
    }
    let (count, times) = (milliseconds.len(), Times::new(milliseconds));
    Ok(Changes { upserts, count, p50_ms: times.median(), max_ms: times.percentile(1.0) })
}

/// The requests of a run.
struct Load<'a, T: Element> {
    args: &'a Args,
    queries: &'a [T],
    dim: usize,
    filters: &'a [SharedFilter],
    batcher: &'a Batcher<Any<T>>,
}

impl<T: Element> Load<'_, T> {
    /// Runs senders at the same time, and joins their answers. Returns the mean number of requests of a search.
    fn run(
        &self,
        length: Duration,
        work: impl Fn(&mut Sender<'_, T>, &Machine) -> Outcome<Answers> + Sync,
    ) -> Outcome<(Answers, f64)> {
        let before = self.batcher.statistics();
        let start = Instant::now() + length / 100;
        let answers = thread::scope(|scope| {
            let senders: Vec<_> = (0..self.args.senders)
                .map(|number| {
                    let work = &work;
                    scope.spawn(move || {
                        let random = Random::new(number as u64);
                        thread::sleep(start.saturating_duration_since(Instant::now()));
                        work(&mut Sender { load: self, start, random }, &Machine(start))
                    })
                })
                .collect();
            senders.into_iter().map(|sender| joined(sender.join())).collect::<Outcome<Vec<_>>>()
        })?;
        let BatcherStatistics { answered, searches, .. } = self.batcher.statistics();
        let batch = (answered - before.answered) as f64 / (searches - before.searches).max(1) as f64;
        Ok((Answers::join(answers), batch))
    }

    fn row(&self, share: Option<f64>, arriving: f64, length: Duration) -> Outcome<Row> {
        let rate = arriving / self.args.senders as f64;
        let (answers, batch) = self.run(length, |sender, clock| {
            let mut random = Random::new(sender.random.bits());
            open_loop(sender, clock, rate, length, || random.unit())
        })?;
        let (refused, answered) = (answers.refused, answers.rate());
        let times = answers.times();
        let [p50, p99, p999, max] = [0.5, 0.99, 0.999, 1.0].map(|share| times.percentile(share));
        Ok(Row {
            share,
            arriving,
            answered,
            refused,
            batch,
            latency_p50_ms: p50,
            latency_p99_ms: p99,
            latency_p999_ms: p999,
            latency_max_ms: max,
        })
    }
}

/// Sends requests of a run.
struct Sender<'a, T: Element> {
    load: &'a Load<'a, T>,
    start: Instant,
    random: Random,
}

/// A request that was sent, and the time of its answer.
struct Sent {
    answer: Answer,
    stamp: Arc<Stamp>,
}

/// Notes the time at which it is woken, in nanoseconds since the start; 0 before.
struct Stamp {
    start: Instant,
    nanoseconds: AtomicU64,
}

impl Wake for Stamp {
    fn wake(self: Arc<Self>) {
        let nanoseconds = self.start.elapsed().as_nanos() as u64;
        self.nanoseconds.store(nanoseconds.max(1), Ordering::Release);
    }
}

impl<T: Element> Service for Sender<'_, T> {
    type Sent = Sent;
    type Error = Failure;

    fn send(&mut self) -> Outcome<Option<Sent>> {
        let Load { args, queries, dim, filters, batcher } = self.load;
        let query = &queries[self.random.below(queries.len() / dim) * dim..][..*dim];
        let k = args.k[self.random.below(args.k.len())];
        let mut request = Request::new(query, k).options(options(args));
        if !filters.is_empty() && self.random.below(2) == 0 {
            request = request.filter(filters[self.random.below(filters.len())].clone());
        }
        match batcher.submit(request) {
            Ok(answer) => {
                let stamp = Arc::new(Stamp { start: self.start, nanoseconds: AtomicU64::new(0) });
                let mut sent = Sent { answer, stamp: Arc::clone(&stamp) };
                let waker = Waker::from(stamp);
                match Pin::new(&mut sent.answer).poll(&mut Context::from_waker(&waker)) {
                    // It is taken as answered now.
                    Poll::Ready(found) => {
                        found?;
                        waker.wake();
                    }
                    Poll::Pending => {}
                }
                Ok(Some(sent))
            }
            Err(Error::Refused(_)) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    fn answered(&mut self, sent: &mut Sent) -> Outcome<Option<Option<Duration>>> {
        let nanoseconds = sent.stamp.nanoseconds.load(Ordering::Acquire);
        if nanoseconds == 0 {
            return Ok(None);
        }
        match Pin::new(&mut sent.answer).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(Err(Error::Refused(_))) => return Ok(Some(None)),
            Poll::Ready(Err(error)) => return Err(error.into()),
            // One that was answered when it was sent gives no second result.
            Poll::Ready(Ok(_)) | Poll::Pending => {}
        }
        Ok(Some(Some(Duration::from_nanos(nanoseconds))))
    }
}
