//! Batchers: results, order, refusals, faults of one request, closing.

use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Condvar, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::{Duration, Instant};

use test_random::Random;

use crate::{
    Batcher, BatcherBuilder, BatcherStatistics, Bitset, Device, Error, FlatIndex, GraphIndex, Index, IndexWriter,
    IvfIndex, Kind, Metric, Neighbors, Refusal, Request, Result, SearchOptions, SharedFilter,
};

const DIM: usize = 3;

fn vectors(count: usize, random: &mut Random) -> Vec<f32> {
    (0..count * DIM).map(|_| random.unit() as f32).collect()
}

fn exact(count: usize, device: Device) -> FlatIndex<f32> {
    let mut index = FlatIndex::<f32>::new(DIM, Metric::L2, device).unwrap();
    index.add(&vectors(count, &mut Random::new(1))).unwrap();
    index
}

fn batcher_with<K: Kind + 'static>(index: Index<K>, workers: usize) -> Batcher<K> {
    BatcherBuilder::new().workers(workers).serve(index).unwrap()
}

/// A gate that filter functions pass: a search waits at it until it opens.
#[derive(Default)]
struct Gate {
    /// Whether it is open, and the number of visitors.
    state: Mutex<(bool, usize)>,
    changed: Condvar,
}

impl Gate {
    fn pass(&self) {
        let mut state = self.state.lock().unwrap();
        state.1 += 1;
        self.changed.notify_all();
        drop(self.changed.wait_while(state, |(open, _)| !*open).unwrap());
    }

    fn wait_for_a_visitor(&self) {
        drop(self.changed.wait_while(self.state.lock().unwrap(), |(_, visitors)| *visitors == 0).unwrap());
    }

    fn open(&self) {
        self.state.lock().unwrap().0 = true;
        self.changed.notify_all();
    }

    /// A request whose search waits at the gate.
    fn request(self: &Arc<Self>) -> Request<f32> {
        let gate = Arc::clone(self);
        Request::new([0.0; DIM], 1).filter(SharedFilter::Function(Arc::new(move |_| {
            gate.pass();
            true
        })))
    }
}

/// A batcher of one worker, which waits at the gate.
fn at_gate(builder: BatcherBuilder) -> (Batcher<impl Kind<Element = f32>>, Arc<Gate>, crate::Answer) {
    let batcher = builder.workers(1).serve(exact(20, Device::Cpu)).unwrap();
    let gate = Arc::new(Gate::default());
    let first = batcher.submit(gate.request()).unwrap();
    gate.wait_for_a_visitor();
    (batcher, gate, first)
}

/// Counts its wakes, and lets a thread wait for them.
#[derive(Default)]
struct Wakes(Mutex<usize>, Condvar);

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        *self.0.lock().unwrap() += 1;
        self.1.notify_all();
    }
}

/// Awaits a future as a runtime does.
fn block_on<V>(future: impl Future<Output = V>) -> V {
    let (wakes, mut future) = (Arc::new(Wakes::default()), pin!(future));
    let waker = Waker::from(Arc::clone(&wakes));
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return value;
        }
        let mut count = wakes.1.wait_while(wakes.0.lock().unwrap(), |count| *count == 0).unwrap();
        *count = 0;
    }
}

/// A request of random form, and the result of its search alone.
fn random_request<K: Kind<Element = f32>>(
    index: &Index<K>,
    filters: &[SharedFilter],
    random: &mut Random,
) -> Request<f32> {
    let mut options = SearchOptions::new();
    if random.below(3) == 0 {
        options = options.probes(1 + random.below(4)).beam(16 + random.below(3) * 16);
    }
    if random.below(4) == 0 {
        options = options.radius(random.unit() as f32 * 0.3);
    }
    let request = Request::new(vectors(1, random), 1 + random.below(12)).options(options);
    let request =
        if random.below(3) == 0 { request.deadline(Instant::now() + Duration::from_secs(600)) } else { request };
    match random.below(2 + filters.len()) {
        0 => request.filter(index.filter(|id| id % 3 == 0)),
        at => match filters.get(at - 1) {
            Some(filter) => request.filter(filter.clone()),
            None => request,
        },
    }
}

fn alone<K: Kind<Element = f32>>(index: &Index<K>, request: &Request<f32>) -> Neighbors {
    index.search_with(&request.query, request.k, &request.search_options()).unwrap()
}

/// Many threads with requests of all forms, by all ways to wait.
fn check_results<K: Kind<Element = f32> + 'static>(index: Index<K>, threads: usize, requests: usize) {
    let batcher = batcher_with(index.snapshot(), 2);
    let filters = [
        SharedFilter::from(index.filter(|id| id % 5 != 0)),
        SharedFilter::Ids([4, 8, 15, 16, 23, 42].into()),
        SharedFilter::Except([0, 1, 2].into()),
        SharedFilter::Function(Arc::new(|id| id % 2 == 0)),
    ];
    thread::scope(|scope| {
        for number in 0..threads {
            let (batcher, index, filters) = (&batcher, &index, &filters);
            scope.spawn(move || {
                let mut random = Random::new(number as u64);
                for _ in 0..requests.div_ceil(4) {
                    let some: Vec<Request<f32>> = (0..4).map(|_| random_request(index, filters, &mut random)).collect();
                    let expected: Vec<Neighbors> = some.iter().map(|request| alone(index, request)).collect();
                    let direct = some[3].clone();
                    let answers: Vec<_> = some.into_iter().map(|request| batcher.submit(request).unwrap()).collect();
                    assert_eq!(batcher.search(direct).unwrap(), expected[3]);
                    for (at, (answer, expected)) in answers.into_iter().zip(&expected).enumerate() {
                        let found = if at % 2 == 0 { answer.wait() } else { block_on(answer) };
                        assert_eq!(&found.unwrap(), expected);
                    }
                }
            });
        }
    });
    batcher.close();
    let BatcherStatistics { answered, failed, expired, cancelled, full, searches, waiting, .. } = batcher.statistics();
    let accepted = threads as u64 * requests.div_ceil(4) as u64 * 5;
    assert_eq!((answered, failed + expired + cancelled + full, waiting), (accepted, 0, 0));
    assert!((1..=accepted).contains(&searches));
}

#[test]
fn results_are_those_of_single_searches() {
    let rows = vectors(300, &mut Random::new(3));
    for (device, threads, requests) in [(Device::Cpu, 8, 100), (Device::Emulator, 3, 8)] {
        let mut flat = FlatIndex::<f32>::new(DIM, Metric::L2, device).unwrap();
        flat.add(&rows).unwrap();
        check_results(flat, threads, requests);
        let mut ivf = IvfIndex::<f32>::builder(DIM, 6).device(device).build().unwrap();
        ivf.train(&rows).unwrap();
        ivf.add(&rows).unwrap();
        check_results(ivf, threads, requests);
        let mut graph = GraphIndex::<f32>::builder(DIM).device(device).exact_ratio(1).build().unwrap();
        graph.add(&rows).unwrap();
        check_results(graph, threads, requests);
    }
}

#[test]
fn faults_of_a_request_are_refused_at_once() {
    let batcher = Batcher::new(exact(5, Device::Cpu)).unwrap();
    let bad = |request: Request<f32>| {
        let (submitted, searched) =
            (batcher.submit(request.clone()).unwrap_err(), batcher.search(request).unwrap_err());
        assert_eq!(submitted.to_string(), searched.to_string());
        submitted
    };
    assert!(matches!(bad(Request::new([0.0; DIM], 0)), Error::Zero { what: "k" }));
    assert!(matches!(bad(Request::new([0.0; 2 * DIM], 1)), Error::WrongDimension { expected: DIM, actual: 6 }));
    assert!(matches!(bad(Request::new([0.0, f32::NAN, 0.0], 1)), Error::NotFinite { row: 0, column: 1, .. }));
    let nan = SearchOptions::new().radius(f32::NAN);
    assert!(matches!(bad(Request::new([0.0; DIM], 1).options(nan)), Error::BadNumber { what: "radius", .. }));
    let late = Request::new([0.0; DIM], 1).deadline(Instant::now() - Duration::from_nanos(1));
    assert!(matches!(bad(late), Error::Refused(Refusal::Expired)));
    let idle = BatcherBuilder::new().workers(0).serve(exact(5, Device::Cpu));
    assert!(matches!(idle, Err(Error::Zero { what: "workers" })));
    let untrained = IvfIndex::<f32>::builder(DIM, 2).device(Device::Cpu).build().unwrap();
    let batcher = Batcher::new(untrained).unwrap();
    assert!(matches!(batcher.submit(Request::new([0.0; DIM], 1)), Err(Error::NotTrained { .. })));
    assert_eq!(batcher.statistics(), BatcherStatistics { limit: 16, ..BatcherStatistics::default() });
}

#[test]
fn an_error_or_a_panic_reaches_its_own_request() {
    let (batcher, gate, first) = at_gate(BatcherBuilder::new());
    let request = || Request::new([0.5; DIM], 2);
    let stale = SharedFilter::from(Bitset::new(3));
    let broken = SharedFilter::Function(Arc::new(|id| if id == 7 { panic!("a panic of the filter") } else { true }));
    // They wait together, so those with one filter are searched together.
    let good: Vec<_> = (0..3).map(|_| batcher.submit(request()).unwrap()).collect();
    let stale: Vec<_> = (0..2).map(|_| batcher.submit(request().filter(stale.clone())).unwrap()).collect();
    let broken: Vec<_> = (0..2).map(|_| batcher.submit(request().filter(broken.clone())).unwrap()).collect();
    gate.open();
    assert_eq!(first.wait().unwrap().ids.len(), 1);
    let expected = exact(20, Device::Cpu).search(&[0.5; DIM], 2).unwrap();
    for answer in good {
        assert_eq!(answer.wait().unwrap(), expected);
    }
    for answer in stale {
        assert!(matches!(answer.wait(), Err(Error::WrongLength { .. })));
    }
    for answer in broken {
        let panic = thread::spawn(move || answer.wait()).join().unwrap_err();
        assert_eq!(panic.downcast_ref::<&str>(), Some(&"a panic of the filter"));
    }
    // A panic on the thread of the caller leaves the batcher as it was.
    let broken = SharedFilter::Function(Arc::new(|_| panic!("again")));
    thread::scope(|scope| {
        let search = scope.spawn(|| batcher.search(Request::new([0.5; DIM], 2).filter(broken)));
        assert_eq!(search.join().unwrap_err().downcast_ref::<&str>(), Some(&"again"));
    });
    assert_eq!(batcher.search(Request::new([0.5; DIM], 2)).unwrap(), expected);
    batcher.close();
    let BatcherStatistics { answered, failed, searches, running, .. } = batcher.statistics();
    assert_eq!((answered, failed, running), (5, 5, 0));
    // One of the first request, one of three, two of the failed pairs each, and two on this thread.
    assert_eq!(searches, 1 + 1 + 2 + 2 + 2);
}

/// A value of the caller's that panics when the last of its owners lets it go.
struct Trap;

impl Drop for Trap {
    fn drop(&mut self) {
        panic!("a panic of a drop");
    }
}

/// Wakes with a panic.
struct Broken;

impl Wake for Broken {
    fn wake(self: Arc<Self>) {
        panic!("a panic of a waker");
    }
}

#[test]
fn panics_of_drops_and_wakers_reach_nobody() {
    let (batcher, gate, first) = at_gate(BatcherBuilder::new());
    let request = || Request::new([0.5; DIM], 2);
    let trapped = || {
        let trap = Trap;
        request().filter(SharedFilter::Function(Arc::new(move |id| {
            let _held = &trap;
            id % 2 == 0
        })))
    };
    let mut woken = pin!(batcher.submit(request()).unwrap());
    let waker = Waker::from(Arc::new(Broken));
    assert!(woken.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    let (kept, dropped) = (batcher.submit(trapped()).unwrap(), batcher.submit(trapped()).unwrap());
    drop(dropped);
    let last = batcher.submit(request()).unwrap();
    gate.open();
    first.wait().unwrap();
    assert!(kept.wait().unwrap().ids.iter().all(|id| id % 2 == 0));
    assert_eq!(last.wait().unwrap(), exact(20, Device::Cpu).search(&[0.5; DIM], 2).unwrap());
    batcher.close();
    assert!(woken.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready());
}

#[test]
fn requests_with_several_k_share_a_search_where_the_first_results_are_the_same() {
    let rows = vectors(60, &mut Random::new(4));
    let mut graph = GraphIndex::<f32>::builder(DIM).device(Device::Cpu).exact_ratio(0).build().unwrap();
    graph.add(&rows).unwrap();
    let mut flat = FlatIndex::<f32>::new(DIM, Metric::L2, Device::Cpu).unwrap();
    flat.add(&rows).unwrap();
    // One search of three, or one of each.
    fn searches<K: Kind<Element = f32> + 'static>(index: Index<K>) -> u64 {
        let batcher = batcher_with(index.snapshot(), 1);
        let gate = Arc::new(Gate::default());
        let first = batcher.submit(gate.request()).unwrap();
        gate.wait_for_a_visitor();
        let request = |k: usize| Request::new([0.1 * k as f32; DIM], k);
        let answers: Vec<_> = [5, 8, 6].map(|k| (k, batcher.submit(request(k)).unwrap())).into();
        gate.open();
        first.wait().unwrap();
        for (k, answer) in answers {
            assert_eq!(answer.wait().unwrap(), alone(&index, &request(k)));
        }
        batcher.close();
        batcher.statistics().searches
    }
    assert_eq!((searches(flat), searches(graph)), (2, 4));
}

#[test]
fn a_full_queue_refuses() {
    let (batcher, gate, first) = at_gate(BatcherBuilder::new().waiting(2));
    let request = || Request::new([0.5; DIM], 2);
    let answers: Vec<_> = (0..2).map(|_| batcher.submit(request()).unwrap()).collect();
    let refused = batcher.submit(request()).unwrap_err();
    assert!(matches!(refused, Error::Refused(Refusal::Full { most: 2 })), "{refused}");
    assert!(!refused.is_input() && !refused.is_device() && refused.kind() == "refused");
    assert!(matches!(batcher.search(request()), Err(Error::Refused(Refusal::Full { .. }))));
    gate.open();
    assert!(first.wait().is_ok() && answers.into_iter().all(|answer| answer.wait().is_ok()));
    assert!(batcher.search(request()).is_ok());
    assert_eq!(batcher.statistics().full, 2);
}

#[test]
fn requests_whose_deadline_passes_are_refused() {
    let (batcher, gate, first) = at_gate(BatcherBuilder::new());
    let soon = Instant::now() + Duration::from_millis(20);
    let request = || Request::new([0.5; DIM], 2).deadline(soon);
    let (waited, awaited) = (batcher.submit(request()).unwrap(), batcher.submit(request()).unwrap());
    // A thread that waits learns of it at the deadline, while the worker still waits at the gate.
    assert!(matches!(waited.wait(), Err(Error::Refused(Refusal::Expired))));
    assert!(matches!(batcher.search(request()), Err(Error::Refused(Refusal::Expired))));
    gate.open();
    // A task learns of it when the worker comes to the request.
    assert!(matches!(block_on(awaited), Err(Error::Refused(Refusal::Expired))));
    assert!(first.wait().is_ok());
    batcher.close();
    let BatcherStatistics { answered, expired, .. } = batcher.statistics();
    assert_eq!((answered, expired), (1, 2));
}

#[test]
fn a_dropped_answer_cancels_its_request() {
    let (batcher, gate, first) = at_gate(BatcherBuilder::new());
    let searched = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&searched);
    let counts = SharedFilter::Function(Arc::new(move |_| {
        counter.fetch_add(1, Ordering::Relaxed);
        true
    }));
    drop(batcher.submit(Request::new([0.5; DIM], 2).filter(counts)).unwrap());
    // Of a search that has begun, only the result is dropped.
    drop(first);
    gate.open();
    batcher.close();
    let BatcherStatistics { answered, cancelled, .. } = batcher.statistics();
    assert_eq!((answered, cancelled, searched.load(Ordering::Relaxed)), (0, 2, 0));
}

#[test]
fn a_closed_batcher_answers_what_it_accepted_and_refuses_the_rest() {
    let (batcher, gate, first) = at_gate(BatcherBuilder::new());
    let answers: Vec<_> = (0..40).map(|at| batcher.submit(Request::new([0.1 * at as f32; DIM], 2)).unwrap()).collect();
    thread::scope(|scope| {
        let closing = scope.spawn(|| batcher.close());
        while !matches!(batcher.submit(Request::new([0.5; DIM], 2)), Err(Error::Refused(Refusal::Closed))) {
            thread::yield_now();
        }
        assert!(!closing.is_finished(), "there are requests");
        gate.open();
    });
    assert!(matches!(batcher.search(Request::new([0.5; DIM], 2)), Err(Error::Refused(Refusal::Closed))));
    assert!(first.wait().is_ok() && answers.into_iter().all(|answer| answer.wait().is_ok()));
    batcher.close();
}

#[test]
fn a_task_may_move_to_another_waker() {
    let (batcher, gate, first) = at_gate(BatcherBuilder::new());
    let mut answer = pin!(batcher.submit(Request::new([0.5; DIM], 2)).unwrap());
    let wakes = [(); 2].map(|()| Arc::new(Wakes::default()));
    for wakes in &wakes {
        let waker = Waker::from(Arc::clone(wakes));
        assert!(answer.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    }
    gate.open();
    first.wait().unwrap();
    batcher.close();
    assert_eq!(wakes.map(|wakes| *wakes.0.lock().unwrap()), [0, 1]);
    assert!(answer.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready());
    assert!(answer.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
}

#[test]
fn each_answer_is_right_for_one_version() {
    // In version v all vectors lie at v, and the ids say so.
    let at = |version: u64| ([version as f32; DIM], [version]);
    let mut index = FlatIndex::<f32>::new(DIM, Metric::L2, Device::Cpu).unwrap();
    index.add_with_ids(&at(0).0, &at(0).1).unwrap();
    let mut writer = IndexWriter::new(index);
    let batcher = BatcherBuilder::new().serve(writer.reader()).unwrap();
    let end = Barrier::new(5);
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut last = 0;
                for turn in 0..500 {
                    let request = Request::new([0.0; DIM], 1);
                    let found = match turn % 2 {
                        0 => batcher.search(request),
                        _ => batcher.submit(request).and_then(|answer| answer.wait()),
                    };
                    let found = found.unwrap();
                    let version = found.ids[0];
                    assert_eq!(found.distances[0], 3.0 * (version * version) as f32);
                    assert!(version >= last, "no version after a later one");
                    last = version;
                }
                end.wait();
            });
        }
        for version in 1..200 {
            let replaced: Result<()> = writer.change(|index| {
                index.remove(&[version - 1])?;
                index.add_with_ids(&at(version).0, &at(version).1)
            });
            replaced.unwrap();
        }
        end.wait();
    });
    assert_eq!((writer.version(), batcher.search(Request::new([0.0; DIM], 1)).unwrap().ids[0]), (199, 199));
}

#[test]
fn a_version_of_other_dimensions_gives_an_error() {
    let mut writer = IndexWriter::new((exact(20, Device::Cpu), 5));
    let batcher = BatcherBuilder::new().workers(1).serve_part(writer.reader(), |pair| &pair.0);
    let batcher = batcher.unwrap();
    let gate = Arc::new(Gate::default());
    let first = batcher.submit(gate.request()).unwrap();
    gate.wait_for_a_visitor();
    let answers: Vec<_> = (0..2).map(|_| batcher.submit(Request::new([0.5; DIM], 2)).unwrap()).collect();
    let changed: Result<()> = writer.change(|pair| {
        pair.0 = FlatIndex::<f32>::new(DIM + 1, Metric::L2, Device::Cpu)?;
        Ok(())
    });
    changed.unwrap();
    gate.open();
    first.wait().unwrap();
    for answer in answers {
        assert!(matches!(answer.wait(), Err(Error::WrongDimension { expected: 4, actual: 3 })));
    }
    assert!(batcher.search(Request::new([0.5; 4], 2)).is_ok());
}

impl crate::Snapshot for (FlatIndex<f32>, i32) {
    fn snapshot(&self) -> Self {
        (self.0.snapshot(), self.1)
    }
}

/// How requests ended, as their senders saw it.
#[derive(Debug, Default)]
struct Ends {
    accepted: AtomicUsize,
    full: AtomicUsize,
    answered: AtomicUsize,
    expired: AtomicUsize,
    dropped: AtomicUsize,
}

impl Ends {
    /// Counts the end of a request that was accepted and waited for, and compares its results.
    fn ended(&self, result: Result<Neighbors>, expected: &Neighbors) {
        match result {
            Ok(found) => {
                assert_eq!(&found, expected);
                self.answered.fetch_add(1, Ordering::Relaxed);
            }
            Err(Error::Refused(Refusal::Expired)) => drop(self.expired.fetch_add(1, Ordering::Relaxed)),
            Err(other) => panic!("{other}"),
        }
    }
}

/// Sends `count` of the requests, whose results are known: with a deadline or none, waited for, awaited or dropped.
fn send<K: Kind<Element = f32>>(
    batcher: &Batcher<K>,
    known: &[(Request<f32>, Neighbors)],
    ends: &Ends,
    count: usize,
    random: &mut Random,
) {
    let mut open = Vec::new();
    for _ in 0..count {
        let (request, expected) = &known[random.below(known.len())];
        let refused_full = |result: Result<()>| {
            let full = matches!(result, Err(Error::Refused(Refusal::Full { .. })));
            ends.full.fetch_add(usize::from(full), Ordering::Relaxed);
            assert!(full || matches!(result, Err(Error::Refused(Refusal::Expired))), "{result:?}");
        };
        if random.below(8) == 0 {
            // Without a deadline, so a refusal says that the request was not accepted.
            match batcher.search(request.clone()) {
                Err(error) => refused_full(Err(error)),
                found => {
                    ends.accepted.fetch_add(1, Ordering::Relaxed);
                    ends.ended(found, expected);
                }
            }
            continue;
        }
        let after = [None, Some(random.below(300) as u64), Some(600_000_000)][random.below(3)];
        let deadline = after.map(|micros| Instant::now() + Duration::from_micros(micros));
        match batcher.submit(deadline.into_iter().fold(request.clone(), Request::deadline)) {
            Ok(answer) => {
                ends.accepted.fetch_add(1, Ordering::Relaxed);
                open.push((answer, expected));
            }
            Err(error) => refused_full(Err(error)),
        }
        // Up to a few requests of a thread wait at the same time.
        while open.len() > random.below(24) {
            let (answer, expected) = open.swap_remove(random.below(open.len()));
            match random.below(3) {
                0 => {
                    drop(answer);
                    ends.dropped.fetch_add(1, Ordering::Relaxed);
                }
                1 => ends.ended(answer.wait(), expected),
                _ => ends.ended(block_on(answer), expected),
            }
        }
    }
    open.into_iter().for_each(|(answer, expected)| ends.ended(answer.wait(), expected));
}

/// Sends random requests by many threads. Each ends once: with the results of its search alone, or refused.
fn check_ends(requests: usize) {
    const THREADS: usize = 8;
    let index = exact(200, Device::Cpu);
    let filters = [
        SharedFilter::from(index.filter(|id| id % 5 != 0)),
        SharedFilter::Ids([4, 8, 15, 16, 23, 42].into()),
        SharedFilter::Except([0, 1, 2].into()),
        SharedFilter::Function(Arc::new(|id| id % 2 == 0)),
    ];
    let mut random = Random::new(8);
    let known: Vec<(Request<f32>, Neighbors)> = (0..400)
        .map(|_| {
            let request = Request { deadline: None, ..random_request(&index, &filters, &mut random) };
            let expected = alone(&index, &request);
            (request, expected)
        })
        .collect();
    let builder = BatcherBuilder::new().waiting(64).workers(3);
    let (batcher, ends) = (builder.serve(index).unwrap(), Ends::default());
    thread::scope(|scope| {
        for number in 0..THREADS {
            let (batcher, known, ends) = (&batcher, &known, &ends);
            scope.spawn(move || send(batcher, known, ends, requests / THREADS, &mut Random::new(number as u64)));
        }
    });
    batcher.close();
    let counts = batcher.statistics();
    let [accepted, full, answered, expired, dropped] =
        [&ends.accepted, &ends.full, &ends.answered, &ends.expired, &ends.dropped]
            .map(|count| count.load(Ordering::Relaxed) as u64);
    assert_eq!((counts.failed, counts.waiting, counts.running, counts.full), (0, 0, 0, full), "{ends:?}, {counts:?}");
    assert_eq!(accepted, answered + expired + dropped, "{ends:?}, {counts:?}");
    assert_eq!(accepted, counts.answered + counts.expired + counts.cancelled, "{ends:?}, {counts:?}");
    // A result that nobody fetched counts as answered, or as cancelled if nobody waited when it came.
    assert!((answered..=answered + dropped).contains(&counts.answered), "{ends:?}, {counts:?}");
    // Every end occurs, and requests shared searches.
    let least = requests as u64 / 500;
    assert!(answered > least && expired > least && dropped > least && counts.cancelled > 0, "{ends:?}, {counts:?}");
    assert!(counts.searches < counts.answered, "{counts:?}");
}

#[test]
fn every_request_ends_once() {
    check_ends(40_000);
}

#[test]
#[ignore = "takes 8 s in an optimised build"]
fn each_of_a_million_requests_ends_once() {
    check_ends(1_000_000);
}

/// Requests with filters of their own are one search where the index shares filters.
#[test]
fn requests_with_filters_of_their_own_share_a_search() {
    fn searches<K: Kind<Element = f32> + 'static>(index: Index<K>) -> u64 {
        let batcher = batcher_with(index.snapshot(), 1);
        let gate = Arc::new(Gate::default());
        let first = batcher.submit(gate.request()).unwrap();
        gate.wait_for_a_visitor();
        let mut random = Random::new(6);
        let requests: Vec<Request<f32>> = (1..7)
            .map(|step| {
                let filter = index.filter(|id| id % step == 0);
                Request::new(vectors(1, &mut random), 3).filter(filter)
            })
            .collect();
        let answers: Vec<_> = requests.iter().map(|request| batcher.submit(request.clone()).unwrap()).collect();
        gate.open();
        first.wait().unwrap();
        for (request, answer) in requests.iter().zip(answers) {
            assert_eq!(answer.wait().unwrap(), alone(&index, request));
        }
        batcher.close();
        batcher.statistics().searches
    }
    let rows = vectors(60, &mut Random::new(4));
    for (device, shared) in [(Device::Cpu, 7), (Device::Emulator, 2)] {
        let mut flat = FlatIndex::<f32>::new(DIM, Metric::L2, device).unwrap();
        flat.add(&rows).unwrap();
        assert_eq!(searches(flat), shared);
        let mut graph = GraphIndex::<f32>::builder(DIM).device(device).exact_ratio(1).build().unwrap();
        graph.add(&rows).unwrap();
        assert_eq!(searches(graph), shared);
        let mut ivf = IvfIndex::<f32>::builder(DIM, 6).device(device).build().unwrap();
        ivf.train(&rows).unwrap();
        ivf.add(&rows).unwrap();
        assert_eq!(searches(ivf), 7);
    }
}
