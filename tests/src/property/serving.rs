//! Threads send requests to a [`Batcher`] while another changes its index. Each answer must be that of the same search
//! alone, to the bit, in a version that was current between the request and the answer; each request ends once.
//!
//! Requests differ in k, options, filter and deadline, some answers are dropped, and some requests cannot be searched.
//! So batches hold what one search can answer, and nothing of a request reaches another. The searches alone are those
//! whose results the other properties compare with brute force.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use warpann::{
    Answer, Batcher, BatcherBuilder, Bitset, Device, Error, FlatIndex, GraphIndex, Index, IndexReader, IndexWriter,
    IvfIndex, Kind, Metric, Neighbors, Refusal, Request, SearchOptions, SharedFilter,
};

use crate::data::Random;
use crate::runner::{Outcome, text};

/// The state that the threads of a case share.
struct Case<I: Kind> {
    dim: usize,
    batcher: Batcher<I>,
    reader: IndexReader<Index<I>>,
    /// Each version, noted before it is published.
    versions: RwLock<Vec<Arc<Index<I>>>>,
    filters: Vec<SharedFilter>,
    over: AtomicBool,
    accepted: AtomicU64,
}

/// The case of a seed: in turn of a flat index, of inverted files, and of a graph.
///
/// # Errors
/// The case and the first difference, in words.
pub fn case(seed: u64, device: Device) -> Outcome {
    let mut random = Random::new(seed);
    let (dim, metric) = (1 + random.below(6), random.pick(&Metric::OF_NUMBERS));
    let count = if device == Device::Cpu { 20 + random.below(300) } else { 20 + random.below(40) };
    let rows = vectors(&mut random, count * dim);
    let told = match seed % 3 {
        0 => {
            let builder = FlatIndex::<f32>::builder(dim).metric(metric).device(device);
            run(builder.build().map_err(text)?, &rows, &mut random, device)
        }
        1 => {
            let builder = IvfIndex::<f32>::builder(dim, 1 + random.below(6)).metric(metric).iterations(2);
            let mut index = builder.device(device).build().map_err(text)?;
            index.train(&rows).map_err(text)?;
            run(index, &rows, &mut random, device)
        }
        _ => {
            let builder = GraphIndex::<f32>::builder(dim).metric(metric).device(device).degree(8);
            run(builder.exact_ratio(random.below(2)).build().map_err(text)?, &rows, &mut random, device)
        }
    };
    told.map_err(|failure| format!("{failure}\nkind {}, {dim}, {metric:?}, {count} vectors", seed % 3))
}

/// Vectors of small whole numbers, so that many distances are equal.
fn vectors(random: &mut Random, components: usize) -> Vec<f32> {
    (0..components).map(|_| random.below(9) as f32).collect()
}

fn run<I: Kind<Element = f32> + 'static>(
    mut index: Index<I>,
    rows: &[f32],
    random: &mut Random,
    device: Device,
) -> Outcome {
    index.add(rows).map_err(text)?;
    let dim = index.dim();
    let filters = vec![
        SharedFilter::from(index.filter(|id| id % 3 != 1)),
        SharedFilter::from(Bitset::new(1)),
        SharedFilter::Ids((0..7).map(|_| random.below(2 * index.len()) as u64).collect()),
        SharedFilter::Except([0, 1, 5].into()),
        SharedFilter::Function(Arc::new(|id| id % 4 != 0)),
    ];
    let first = index.snapshot();
    let mut writer = IndexWriter::new(index);
    let (waiting, workers) = (random.pick(&[2, 8, 1 << 16]), 1 + random.below(3));
    let builder = BatcherBuilder::new().waiting(waiting).workers(workers);
    let case = Case {
        dim,
        batcher: builder
            .target(Duration::from_micros(random.below(3_000) as u64))
            .serve(writer.reader())
            .map_err(text)?,
        reader: writer.reader(),
        versions: RwLock::new(vec![Arc::new(first)]),
        filters,
        over: AtomicBool::new(false),
        accepted: AtomicU64::new(0),
    };
    let (threads, requests, changes) = if device == Device::Cpu { (4, 25, 12) } else { (3, 5, 2) };
    std::thread::scope(|scope| {
        let sending: Vec<_> = (0..threads)
            .map(|_| {
                let (case, seed) = (&case, random.bits());
                scope.spawn(move || send(case, requests, &mut Random::new(seed)))
            })
            .collect();
        let changed = (0..changes).try_for_each(|_| change(&case, &mut writer, random));
        case.over.store(true, Ordering::Relaxed);
        let sent = sending
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|panic| Err(super::message(&*panic).to_owned())));
        sent.fold(changed, |all, sent| all.and(sent))
    })?;
    case.batcher.close();
    let counts = case.batcher.statistics();
    let ended = counts.answered + counts.failed + counts.expired + counts.cancelled;
    let accepted = case.accepted.into_inner();
    if (ended, counts.waiting, counts.running) != (accepted, 0, 0) {
        return Err(format!("{accepted} requests were accepted: {counts:?}"));
    }
    Ok(())
}

/// Makes and publishes a version: vectors come, go, or are replaced.
fn change<I: Kind<Element = f32>>(case: &Case<I>, writer: &mut IndexWriter<Index<I>>, random: &mut Random) -> Outcome {
    let changed = writer.change(|index| {
        let ids = index.ids();
        match random.below(3) {
            0 => index.add(&vectors(random, 3 * case.dim))?,
            1 => index.remove(&ids[random.below(ids.len())..][..1])?,
            _ => drop(index.upsert(&vectors(random, case.dim), &[random.pick(&ids)])?),
        }
        case.versions.write().unwrap_or_else(PoisonError::into_inner).push(Arc::new(index.snapshot()));
        Ok::<(), Error>(())
    });
    changed.map_err(|error| format!("a change: {error}"))
}

/// Sends requests, several at a time, and checks their answers.
fn send<I: Kind<Element = f32>>(case: &Case<I>, requests: usize, random: &mut Random) -> Outcome {
    for _ in 0..requests {
        let mut sent = Vec::new();
        for _ in 0..1 + random.below(4) {
            let (request, since) = (drawn(case, random), case.reader.version());
            if random.once_in(4) {
                let found = case.batcher.search(request.clone());
                let is_refused = matches!(&found, Err(Error::Refused(Refusal::Full { .. } | Refusal::Expired)));
                // These requests have no deadline, so one that is refused was not accepted.
                if !is_refused && !is_input(&request, case.dim) {
                    case.accepted.fetch_add(1, Ordering::Relaxed);
                }
                check(case, &request, since, found)?;
                continue;
            }
            let late = random.once_in(6).then(|| Instant::now() + Duration::from_micros(random.below(400) as u64));
            let sent_request = late.into_iter().fold(request.clone(), Request::deadline);
            match case.batcher.submit(sent_request) {
                Ok(answer) => {
                    case.accepted.fetch_add(1, Ordering::Relaxed);
                    sent.push((request, since, answer));
                }
                refused => check(case, &request, since, refused.and_then(Answer::wait))?,
            }
        }
        for (request, since, answer) in sent {
            if !random.once_in(5) {
                check(case, &request, since, answer.wait())?;
            }
        }
    }
    Ok(())
}

/// Whether the request has a fault that is found before it is accepted.
fn is_input(request: &Request<f32>, dim: usize) -> bool {
    request.query().len() != dim || request.query().iter().any(|x| !x.is_finite())
}

fn drawn<I: Kind<Element = f32>>(case: &Case<I>, random: &mut Random) -> Request<f32> {
    let mut options = SearchOptions::new();
    if random.once_in(3) {
        options = options.probes(1 + random.below(4)).beam(16 << random.below(2));
    }
    if random.once_in(4) {
        options = options.radius(random.below(60) as f32);
    }
    let mut query = vectors(random, case.dim);
    // At most one fault: of two, a request tells that of the query.
    match random.below(20) {
        0 => query[0] = f32::NAN,
        1 => query.push(0.0),
        _ => {}
    }
    let request = Request::new(query, 1 + random.below(20)).options(options);
    if is_input(&request, case.dim) || !random.once_in(3) {
        return request;
    }
    request.filter(case.filters[random.below(case.filters.len())].clone())
}

/// Compares an answer with the same search alone in each version that may have been current.
fn check<I: Kind<Element = f32>>(
    case: &Case<I>,
    request: &Request<f32>,
    since: u64,
    found: Result<Neighbors, Error>,
) -> Outcome {
    let kind = |error: &Error| error.kind();
    if let Err(Error::Refused(Refusal::Full { .. } | Refusal::Expired)) = found {
        return Ok(());
    }
    let versions = {
        let versions = case.versions.read().unwrap_or_else(PoisonError::into_inner);
        versions[since as usize..].to_vec()
    };
    let alone = versions.iter().map(|index| index.search_one(request.query(), request.k(), &request.search_options()));
    let mut last = None;
    for alone in alone {
        if alone.as_ref().map_err(kind) == found.as_ref().map_err(kind) {
            return Ok(());
        }
        last = Some(alone);
    }
    Err(format!("{request:?} since version {since} of {}: {found:?}, alone {last:?}", versions.len()))
}
