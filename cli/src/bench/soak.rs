//! `warpann bench serve --soak`: requests with random deadlines and cancellations beside changes and loads, for a
//! stated time.
//!
//! Four promises are checked. No request is lost: each that was accepted ends once. Each sampled answer has the bits of
//! a search in a version that existed while the request was under way. It agrees with a model of that version, which
//! knows the vector of each id: the ids are in the version, distances have the bits of their definition
//! ([`test_cases::reference`]), and fewer vectors of an exact index are nearer than the last one than were found.
//! Memory of host and devices does not grow after the first third of the time.

use std::collections::VecDeque;
use std::fs;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use serde::Serialize;
use test_cases::reference::defined;
use test_random::Random;
use warpann::{
    Answer, Any, AnyIndex, Batcher, BatcherBuilder, Element, Error, Filter, IndexKind, IndexReader, IndexWriter,
    Neighbors, Refusal, Request, SharedFilter,
};

use super::serving::{Args, End, PAUSE, changers, joined, load_again, near, options};
use crate::index::Summary;
use crate::progress::Step;
use crate::report::{Failure, Out, Outcome};

/// Vectors that a change replaces, unless --upserts says another number.
const UPSERTS: usize = 32;
/// Requests of a sender that are under way together.
const UNDER_WAY: usize = 16;
/// A request that has no answer after this time is lost.
const LOST: Duration = Duration::from_secs(60);
/// Pause of a sender between two groups of requests, and of the checker between two samples.
const BETWEEN: Duration = Duration::from_millis(5);
/// Versions whose models are kept: more than can pass during a request that is checked.
const MODELS: usize = 8;
/// Number of times that memory is looked at.
const SAMPLES: u32 = 120;
/// Share, and bytes, by which memory may grow from the second third of the time to the last one.
const GROWTH: f64 = 0.02;
const GROWN_BYTES: f64 = 8e6;
/// The bytes in a soak of less than a minute, in which the threads' allocators have not come to rest.
const GROWN_BYTES_AT_FIRST: f64 = 64e6;
/// Faults that are reported at most.
const FAULTS: usize = 8;

/// The content of an id.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Content {
    /// The vector of the first version.
    First,
    /// The vector that this number makes.
    Made(u64),
    Removed,
}

/// The vectors of all versions.
struct Model<'a, T: Element> {
    /// The ids of the first version, ascending. Later versions have no others.
    ids: Vec<u64>,
    first: Arc<AnyIndex<T>>,
    queries: &'a [T],
    dim: usize,
    /// Whether the index keeps whole vectors, so that distances are those of the vectors.
    is_whole: AtomicBool,
    /// The content of the last versions, with their numbers.
    versions: Mutex<VecDeque<(u64, Arc<Vec<Content>>)>>,
}

impl<T: Element> Model<'_, T> {
    /// A vector near a query.
    fn made(&self, seed: u64) -> Vec<T> {
        let mut random = Random::new(seed);
        let row = random.below(self.queries.len() / self.dim);
        near(&self.queries[row * self.dim..][..self.dim], &mut random)
    }

    /// The vector of an id in a version; `None` if it was removed.
    fn vector(&self, at: usize, content: Content) -> Outcome<Option<Vec<f64>>> {
        Ok(match content {
            Content::First => Some(self.first.reconstruct(self.ids[at])?.into_iter().map(f64::from).collect()),
            Content::Made(seed) => Some(wide(&self.made(seed))),
            Content::Removed => None,
        })
    }

    fn of(&self, version: u64) -> Option<Arc<Vec<Content>>> {
        let versions = locked(&self.versions);
        versions.iter().find(|(number, _)| *number == version).map(|(_, content)| Arc::clone(content))
    }

    fn push(&self, version: u64, content: Vec<Content>) {
        let mut versions = locked(&self.versions);
        versions.push_back((version, Arc::new(content)));
        let most = versions.len().saturating_sub(MODELS);
        versions.drain(..most);
    }

    /// Compares the result of a query with a version. Returns the first fault in words, or `None`.
    fn fault(
        &self,
        index: &AnyIndex<T>,
        content: &[Content],
        query: &[T],
        accepts: &dyn Fn(u64) -> bool,
        found: &Neighbors,
    ) -> Outcome<Option<String>> {
        let (metric, query, is_whole) = (index.metric(), wide(query), self.is_whole.load(Relaxed));
        let mut last = None;
        for (id, distance) in found.found(0) {
            let Ok(at) = self.ids.binary_search(&id) else { return Ok(Some(format!("id {id} never existed"))) };
            if !accepts(id) {
                return Ok(Some(format!("id {id} was found, which the filter refuses")));
            }
            let Some(vector) = self.vector(at, content[at])? else {
                return Ok(Some(format!("id {id} was found after its removal")));
            };
            let expected = defined(metric, &query, &vector);
            if is_whole && distance != expected {
                return Ok(Some(format!("id {id} was found at {distance}, and is at {expected}")));
            }
            last = Some(distance);
        }
        let (Some(last), IndexKind::Flat) = (last, index.kind()) else { return Ok(None) };
        let mut nearer = 0;
        for (at, &content) in content.iter().enumerate() {
            if accepts(self.ids[at])
                && let Some(vector) = self.vector(at, content)?
            {
                let distance = defined(metric, &query, &vector);
                nearer += usize::from(if metric.larger_is_better() { distance > last } else { distance < last });
            }
        }
        let found = found.found(0).count();
        Ok((nearer >= found).then(|| format!("{nearer} vectors are nearer than the last of {found}")))
    }
}

fn wide<T: Element>(vector: &[T]) -> Vec<f64> {
    vector.iter().map(|x| x.to_f32().into()).collect()
}

fn locked<V>(mutex: &Mutex<V>) -> MutexGuard<'_, V> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Counts of requests by their ends, of samples, and the first faults.
#[derive(Default)]
struct Tally {
    accepted: AtomicU64,
    answered: AtomicU64,
    expired: AtomicU64,
    full: AtomicU64,
    cancelled: AtomicU64,
    checked: AtomicU64,
    unchecked: AtomicU64,
    faults: Mutex<Vec<String>>,
}

impl Tally {
    fn fault(&self, fault: impl Into<String>) {
        let mut faults = locked(&self.faults);
        if faults.len() < FAULTS {
            faults.push(fault.into());
        }
    }

    /// Submits a request. `None` if it was refused.
    fn submit<T: Element>(&self, batcher: &Batcher<Any<T>>, request: Request<T>) -> Outcome<Option<Answer>> {
        match batcher.submit(request) {
            Ok(answer) => {
                self.accepted.fetch_add(1, Relaxed);
                Ok(Some(answer))
            }
            Err(Error::Refused(refusal)) => {
                self.refused(&refusal);
                Ok(None)
            }
            Err(error) => Err(error.into()),
        }
    }

    fn refused(&self, refusal: &Refusal) {
        match refusal {
            Refusal::Expired => _ = self.expired.fetch_add(1, Relaxed),
            Refusal::Full { .. } => _ = self.full.fetch_add(1, Relaxed),
            other => self.fault(format!("a request was refused: {other}")),
        }
    }

    /// Waits for an answer. `None` if it is a refusal, or is lost.
    fn wait(&self, mut answer: Answer) -> Outcome<Option<Neighbors>> {
        let waker = Waker::from(Arc::new(Unpark(thread::current())));
        let start = Instant::now();
        loop {
            match Pin::new(&mut answer).poll(&mut Context::from_waker(&waker)) {
                Poll::Ready(Ok(found)) => {
                    self.answered.fetch_add(1, Relaxed);
                    return Ok(Some(found));
                }
                Poll::Ready(Err(Error::Refused(refusal))) => {
                    self.refused(&refusal);
                    return Ok(None);
                }
                Poll::Ready(Err(error)) => return Err(error.into()),
                Poll::Pending if start.elapsed() > LOST => {
                    self.fault(format!("a request had no answer after {} s", LOST.as_secs()));
                    return Ok(None);
                }
                Poll::Pending => thread::park_timeout(LOST),
            }
        }
    }
}

/// A waker that unparks the thread which waits for an answer.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Medians of memory, by which growth after the start of the process shows.
#[derive(Default, Debug, Serialize)]
struct Memory {
    /// Median bytes in the second third of the time.
    middle_bytes: f64,
    /// Median bytes in the last third.
    end_bytes: f64,
}

impl Memory {
    /// The memory of a soak with these samples at equal distances; `None` without enough of them.
    fn of(samples: &[u64]) -> Option<Memory> {
        let third = samples.len() / 3;
        let median = |samples: &[u64]| {
            let mut sorted = samples.to_vec();
            sorted.sort_unstable();
            sorted.get(sorted.len() / 2).map(|&bytes| bytes as f64)
        };
        let (middle, end) = (samples.get(third..2 * third)?, samples.get(2 * third..)?);
        Some(Memory { middle_bytes: median(middle)?, end_bytes: median(end)? })
    }

    /// The fault in words if the memory grew by more than [`GROWTH`] and this number of bytes.
    fn fault(&self, name: &str, bytes: f64) -> Option<String> {
        let &Memory { middle_bytes, end_bytes } = self;
        (end_bytes > middle_bytes * (1.0 + GROWTH) + bytes)
            .then(|| format!("memory of the {name} grew from {middle_bytes} to {end_bytes} bytes"))
    }
}

/// Bytes of this process in host memory; `None` where the system does not tell.
fn host_bytes() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kilobytes| kilobytes << 10)
}

/// Bytes of all GPUs that somebody uses.
fn device_bytes() -> Option<u64> {
    let devices = warpann::device::info::devices().ok()?;
    Some(devices.iter().map(|device| device.memory_total - device.memory_free.unwrap_or(0)).sum())
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
    seconds: f64,
    accepted: u64,
    answered: u64,
    expired: u64,
    full: u64,
    cancelled: u64,
    checked: u64,
    unchecked: u64,
    changes: u64,
    loads: Option<usize>,
    host: Option<Memory>,
    gpus: Option<Memory>,
    faults: Vec<String>,
}

/// Runs the soak and prints its verdict.
pub fn run<T: Element>(
    args: &Args,
    length: Duration,
    index: AnyIndex<T>,
    queries: &[T],
    builder: BatcherBuilder,
    out: &Out,
) -> Outcome {
    let summary = Summary::of(&index);
    let (metric, dim, vectors, ids) = (index.metric().name(), index.dim(), index.len(), index.ids());
    if vectors == 0 {
        return Err(Failure::Message("--soak needs an index with vectors".into()));
    }
    let is_on_gpu = index.device().contains("gpu:");
    let mut writer = IndexWriter::new(index);
    let (is_whole, versions) = (AtomicBool::new(false), Mutex::default());
    let model = Model { first: writer.current(), queries, dim, is_whole, versions, ids };
    model.push(writer.version(), vec![Content::First; vectors]);
    let (batcher, reader) = (builder.serve(writer.reader())?, writer.reader());
    let (tally, over) = (Tally::default(), AtomicBool::new(false));
    summary.print(out)?;
    let start = Instant::now();
    let step = Step::measured("soaking", SAMPLES as usize, "samples");
    let (changes, loads, host, gpus) = thread::scope(|scope| -> Outcome<_> {
        let end = End(&over);
        let (batcher, tally, model, over) = (&batcher, &tally, &model, &over);
        let changing = scope.spawn(move || change(args, &mut writer, model, over));
        let checking = scope.spawn(move || check(args, batcher, &reader, model, tally, over));
        let sending: Vec<_> = (0..args.senders)
            .map(|number| scope.spawn(move || send(args, number, batcher, model, tally, over)))
            .collect();
        let loading = args.load.as_ref().map(|path| scope.spawn(move || load_again::<T>(args, path, over)));
        let (mut host, mut gpus) = (Vec::new(), Vec::new());
        for sample in 1..=SAMPLES {
            let next = start + length * sample / SAMPLES;
            thread::sleep(next.saturating_duration_since(Instant::now()));
            host.extend(host_bytes());
            gpus.extend(is_on_gpu.then(device_bytes).flatten());
            step.advance(1);
            if over.load(Relaxed) {
                break;
            }
        }
        drop(end);
        for sender in sending {
            joined(sender.join())?;
        }
        joined(checking.join())?;
        let loads = loading.map(|thread| joined(thread.join())).transpose()?;
        Ok((joined(changing.join())?, loads, Memory::of(&host), Memory::of(&gpus)))
    })?;
    drop(step);
    let seconds = start.elapsed().as_secs_f64();
    batcher.close();
    let counts = batcher.statistics();
    let count = |counter: &AtomicU64| counter.load(Relaxed);
    let accepted = count(&tally.accepted);
    let ended = counts.answered + counts.failed + counts.expired + counts.cancelled;
    if ended != accepted || counts.failed > 0 || counts.waiting > 0 || counts.answered < count(&tally.answered) {
        tally.fault(format!("{accepted} requests were accepted, and ended like this: {counts:?}"));
    }
    let (checked, unchecked) = (count(&tally.checked), count(&tally.unchecked));
    if checked == 0 {
        tally.fault("no answer was checked");
    }
    let allowed = if length < Duration::from_secs(60) { GROWN_BYTES_AT_FIRST } else { GROWN_BYTES };
    for (name, memory) in [("host", &host), ("GPUs", &gpus)] {
        memory.as_ref().and_then(|memory| memory.fault(name, allowed)).into_iter().for_each(|fault| tally.fault(fault));
    }
    let (device, index) = summary.names();
    let report = Report {
        device: device.into(),
        index: index.into(),
        element: T::TYPE.name(),
        metric,
        dim,
        vectors,
        seconds,
        accepted,
        answered: count(&tally.answered),
        expired: count(&tally.expired),
        full: count(&tally.full),
        cancelled: count(&tally.cancelled),
        checked,
        unchecked,
        changes,
        loads,
        host,
        gpus,
        faults: locked(&tally.faults).clone(),
    };
    tell(&report, out)?;
    match report.faults.first() {
        None => out.object(&report),
        Some(fault) => Err(Failure::difference(format!("the soak failed: {fault}"), &report)),
    }
}

fn tell(report: &Report, out: &Out) -> Outcome {
    let Report { seconds, accepted, answered, expired, full, cancelled, checked, unchecked, changes, .. } = report;
    out.field("time", format_args!("{seconds:.1} s"))?;
    let refused = format_args!("{expired} too late, {full} too many");
    out.field("requests", format_args!("{accepted} accepted, {answered} answered, {cancelled} cancelled; {refused}"))?;
    out.field("checked", format_args!("{checked} answers; {unchecked} met several versions"))?;
    out.field("changes", changes)?;
    if let Some(loads) = report.loads {
        out.field("loads", loads)?;
    }
    for (name, memory) in [("host", &report.host), ("GPUs", &report.gpus)] {
        if let Some(Memory { middle_bytes, end_bytes }) = memory {
            let [middle, end] = [middle_bytes, end_bytes].map(|bytes| bytes / f64::from(1 << 20));
            out.field(name, format_args!("{middle:.1} MiB in the second third of the time, {end:.1} in the last"))?;
        }
    }
    for fault in &report.faults {
        out.field("fault", fault)?;
    }
    out.field("verdict", if report.faults.is_empty() { "passed" } else { "FAILED" })
}

/// Replaces and removes vectors, and brings removed ones back, again and again. Returns how often.
fn change<T: Element>(
    args: &Args,
    writer: &mut IndexWriter<AnyIndex<T>>,
    model: &Model<'_, T>,
    over: &AtomicBool,
) -> Outcome<u64> {
    let _end = End(over);
    let (changers, mut random, mut count) = (changers(args)?, Random::new(3), 0);
    let mut content = vec![Content::First; model.ids.len()];
    let upserts = if args.upserts > 0 { args.upserts } else { UPSERTS }.min(content.len());
    let mut removed = 0;
    while !over.load(Relaxed) {
        let mut places: Vec<usize> = (0..upserts).map(|_| random.below(content.len())).collect();
        places.sort_unstable();
        places.dedup();
        let mut rows = Vec::new();
        for &at in &places {
            let seed = random.bits();
            removed -= usize::from(content[at] == Content::Removed);
            content[at] = Content::Made(seed);
            rows.extend(model.made(seed));
        }
        let new: Vec<u64> = places.iter().map(|&at| model.ids[at]).collect();
        let mut gone = Vec::new();
        for _ in 0..random.below(upserts / 2 + 1) {
            let at = random.below(content.len());
            // Half of the vectors stay.
            if content[at] != Content::Removed && 2 * removed < content.len() && !places.contains(&at) {
                content[at] = Content::Removed;
                removed += 1;
                gone.push(model.ids[at]);
            }
        }
        model.push(writer.version() + 1, content.clone());
        changers.install(|| {
            writer.change(|index| {
                index.upsert(&rows, &new)?;
                index.remove(&gone)?;
                // Brings the new version to the device before a request does.
                index.search(&model.queries[..model.dim], 1)
            })
        })?;
        if count == 0 {
            let made: Vec<f32> = rows.iter().map(|x| x.to_f32()).collect();
            let mut kept = vec![0.0; made.len()];
            writer.current().reconstruct_into(&new, &mut kept)?;
            model.is_whole.store(kept == made, Relaxed);
        }
        count += 1;
        thread::sleep(PAUSE);
    }
    Ok(count)
}

/// Sends requests, of which some have deadlines and some are cancelled.
fn send<T: Element>(
    args: &Args,
    number: usize,
    batcher: &Batcher<Any<T>>,
    model: &Model<'_, T>,
    tally: &Tally,
    over: &AtomicBool,
) -> Outcome {
    let _end = End(over);
    let mut random = Random::new(number as u64 + 100);
    while !over.load(Relaxed) {
        let mut under_way = Vec::new();
        for _ in 0..1 + random.below(UNDER_WAY) {
            let mut request = Request::new(query(model, &mut random), args.k[random.below(args.k.len())]);
            request = request.options(options(args));
            if let Some(number) = filter(args, &mut random) {
                request = request.filter(shared(number));
            }
            let microseconds = [None, Some(500), Some(5_000), Some(1_000_000)][random.below(4)];
            if let Some(most) = microseconds {
                request = request.deadline(Instant::now() + Duration::from_micros(random.below(most) as u64));
            }
            under_way.extend(tally.submit(batcher, request)?);
        }
        for answer in under_way {
            if random.below(8) == 0 {
                tally.cancelled.fetch_add(1, Relaxed);
                drop(answer);
            } else {
                tally.wait(answer)?;
            }
        }
        thread::sleep(BETWEEN);
    }
    Ok(())
}

/// The number of a filter, for every second request.
fn filter(args: &Args, random: &mut Random) -> Option<u64> {
    (args.filters > 0 && random.below(2) == 0).then(|| random.below(args.filters) as u64)
}

/// Whether a filter accepts an id: each accepts another half. Bits would be those of one version.
fn accepts(number: u64, id: u64) -> bool {
    (id ^ number << 32).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 63 == 0
}

fn shared(number: u64) -> SharedFilter {
    SharedFilter::Function(Arc::new(move |id| accepts(number, id)))
}

fn query<'a, T: Element>(model: &Model<'a, T>, random: &mut Random) -> &'a [T] {
    let row = random.below(model.queries.len() / model.dim);
    &model.queries[row * model.dim..][..model.dim]
}

/// Samples answers, and compares them with the versions that existed meanwhile.
fn check<T: Element>(
    args: &Args,
    batcher: &Batcher<Any<T>>,
    reader: &IndexReader<AnyIndex<T>>,
    model: &Model<'_, T>,
    tally: &Tally,
    over: &AtomicBool,
) -> Outcome {
    let _end = End(over);
    let (mut random, plain) = (Random::new(7), options(args));
    while !over.load(Relaxed) {
        let (query, k) = (query(model, &mut random), args.k[random.below(args.k.len())]);
        let number = filter(args, &mut random);
        let accepted = |id: u64| number.is_none_or(|number| accepts(number, id));
        let options = if number.is_some() { plain.filter(Filter::Function(&accepted)) } else { plain };
        let (first, before) = reader.current_with_version();
        let request = Request::new(query, k).options(plain);
        let request = number.map(shared).into_iter().fold(request, Request::filter);
        let answer = tally.submit(batcher, request)?;
        let Some(found) = answer.map_or(Ok(None), |answer| tally.wait(answer))? else { continue };
        let (last, after) = reader.current_with_version();
        let versions = [(first, &before), (last, &after)];
        let mut same = None;
        for (version, index) in &versions[..if first == last { 1 } else { 2 }] {
            if same.is_none() && index.search_one(query, k, &options)? == found {
                same = Some((*version, *index));
            }
        }
        match same {
            None if last <= first + 1 => {
                tally.fault(format!("an answer is not that of version {first} or {last}"));
            }
            None => _ = tally.unchecked.fetch_add(1, Relaxed),
            Some((version, index)) => match model.of(version) {
                None => _ = tally.unchecked.fetch_add(1, Relaxed),
                Some(content) => {
                    tally.checked.fetch_add(1, Relaxed);
                    if let Some(fault) = model.fault(index, &content, query, &accepted, &found)? {
                        tally.fault(format!("version {version}: {fault}"));
                    }
                }
            },
        }
        thread::sleep(BETWEEN);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use warpann::{Device, FlatIndex, Metric};

    use super::*;

    #[test]
    fn memory_that_grows_is_a_fault() {
        let samples = |grows: u64| (0..120).map(|at| 100_000_000 + grows * at).collect::<Vec<u64>>();
        let fault = |samples: &[u64]| Memory::of(samples).unwrap().fault("host", GROWN_BYTES);
        assert_eq!((fault(&samples(0)), fault(&samples(100_000))), (None, None));
        assert!(fault(&samples(300_000)).is_some_and(|fault| fault.contains("grew from 118000000")));
        // Growth in the first third is that of a process that starts.
        let mut started = samples(0);
        started[..40].iter_mut().for_each(|bytes| *bytes /= 4);
        assert_eq!(fault(&started), None);
        assert!(Memory::of(&[1, 2]).is_none());
    }

    #[test]
    fn the_model_finds_wrong_answers() {
        for metric in Metric::OF_NUMBERS {
            let rows: Vec<f32> = (0..40).map(|at| ((at * 7) % 23) as f32 + 1.0).collect();
            let mut index = FlatIndex::<f32>::new(2, metric, Device::Cpu).unwrap();
            index.add(&rows).unwrap();
            let index: AnyIndex<f32> = index.into();
            let mut content = vec![Content::First; 20];
            let model = Model {
                ids: index.ids(),
                first: Arc::new(index.snapshot()),
                queries: &rows,
                dim: 2,
                is_whole: AtomicBool::new(true),
                versions: Mutex::default(),
            };
            let fault = |found: &Neighbors, content: &[Content]| {
                model.fault(&index, content, &[3.0, 9.0], &|_| true, found).unwrap()
            };
            let found = index.search(&[3.0, 9.0], 3).unwrap();
            assert_eq!(fault(&found, &content), None, "{metric:?}");
            let mut wrong = found.clone();
            wrong.distances[1] += 0.1;
            assert!(fault(&wrong, &content).is_some_and(|fault| fault.contains("was found at")), "{metric:?}");
            let mut other = found.clone();
            other.ids[0] = 77;
            assert!(fault(&other, &content).is_some_and(|fault| fault.contains("never existed")), "{metric:?}");
            // The second to fourth best.
            let four = index.search(&[3.0, 9.0], 6).unwrap();
            let mut late = found.clone();
            late.ids.copy_from_slice(&four.ids[3..]);
            late.distances.copy_from_slice(&four.distances[3..]);
            assert!(fault(&late, &content).is_some_and(|fault| fault.contains("are nearer")), "{metric:?}");
            let refused = model.fault(&index, &content, &[3.0, 9.0], &|id| id != found.ids[1], &found).unwrap();
            assert!(refused.is_some_and(|fault| fault.contains("refuses")), "{metric:?}");
            content[found.ids[2] as usize] = Content::Removed;
            assert!(fault(&found, &content).is_some_and(|fault| fault.contains("after its removal")), "{metric:?}");
        }
    }
}
