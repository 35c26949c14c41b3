//! Every call of the CUDA driver fails once, and once for good, in small scenarios of everything the library does on
//! GPUs. The driver is made of the emulator (`cuda_driver_emulator`), so no GPU is needed.
//!
//! After each failure: the error is typed and names the call with its code; nothing panicked; the object is as it was;
//! the thread's current context is as it was; the same call made again gives the same bits and leaves the object as it
//! does without a failure; and when the object is gone, so is all that it took from the driver. A scenario of very many
//! calls is sampled: the first call from every place in the program, and some others.

use std::collections::{BTreeMap, HashSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::{Command, ExitCode};
use std::ptr::null_mut;
use std::time::Instant;

use cuda_driver_emulator::{self as driver, Call, Failed, Fault, Lasts, Usage};
use warpann::DeviceWorkspace;
use warpann::MemoryDefect::OtherGpu;
use warpann::cust::memory::{DeviceBuffer, DeviceCopy};
use warpann::ivf::{Encoding, IvfIndex};
use warpann::kmeans::KMeans;
use warpann::knn_graph::KnnGraph;
use warpann::pq::ProductQuantizer;
use warpann::select::{Best, Rows, select_k};
use warpann::views::{DeviceNeighbors, DeviceVectors};
use warpann::{
    Batcher, Device, Error, Filter, FlatIndex, GraphIndex, Index, IndexWriter, Kind, Metric, Neighbors, NoDeviceReason,
    Placement, Request, SearchOptions, ShiftedIndex,
};
use warpann_tests::property::seeds;

/// Devices of the driver; from `FRESH` on each is opened by one test, because an open device stays open.
const DEVICES: usize = 256;
const FRESH: usize = 8;
const TOO_OLD: usize = 4;
/// Out of memory, launch failed, unknown (a lost device), invalid PTX, a driver too old for the PTX, and a code that no
/// driver has yet.
const CODES: [i32; 6] = [2, 719, 999, 218, 222, 4321];
/// Largest number of calls of a scenario that fail for good, and of calls that fail once in addition to the first from
/// every place.
const FOR_GOOD: usize = 6;
const SAMPLED: usize = 8;
/// Single failures of a scenario, at most: where threads take work from each other, one call comes from many places.
const ONCE: usize = 80;
/// The same for a change of an index and for graphs, of which there are many scenarios, each with a search after every
/// failure. Which of the calls fail follows from the revision, so all of them fail in the course of some revisions;
/// `WARPANN_FAULTS=all` makes all fail.
const ONCE_OF_CHANGES: usize = 10;
/// Calls that release something, or that restore a context: their errors cannot be reported.
const SILENT: [&str; 11] = [
    "cuCtxGetCurrent",
    "cuCtxSetCurrent",
    "cuDevicePrimaryCtxRelease_v2",
    "cuEventDestroy_v2",
    "cuMemFreeAsync",
    "cuMemFree_v2",
    "cuMemFreeHost",
    "cuMemPoolTrimTo",
    "cuModuleUnload",
    "cuStreamDestroy_v2",
    "cuStreamQuery",
];

/// Whether the library may continue after the failure: the error cannot be reported, or the library does the work in
/// smaller parts, or tries another way.
fn may_be_silent(failed: Failed) -> bool {
    // A module is loaded again once the pools have given back what they keep.
    let of_memory = failed.name.starts_with("cuMemAlloc") || failed.name == "cuModuleLoadDataEx";
    SILENT.contains(&failed.name) || (of_memory && failed.code == 2)
}

type Bits = Vec<u64>;
type Result<V, E = Error> = std::result::Result<V, E>;

/// The summary for the end of the output.
#[derive(Default)]
struct Counts {
    scenarios: usize,
    calls: usize,
    failures: usize,
    unnoticed: usize,
    /// Failures after which something did not hold.
    broken: usize,
    kinds: BTreeMap<&'static str, usize>,
}

/// An operation of the library.
struct Scenario<O, M, A, S> {
    name: String,
    /// Makes the object of the operation.
    make: M,
    /// The call under test.
    act: A,
    /// The state of the object, as numbers.
    state: S,
    object: std::marker::PhantomData<fn() -> O>,
    /// Whether several devices work at once: the order of calls varies, and a lost device stays lost.
    several: bool,
}

impl<O, M, A, S> Scenario<O, M, A, S>
where
    M: Fn() -> Result<O>,
    A: Fn(&mut O) -> Result<Bits>,
    S: Fn(&O) -> Result<Bits>,
{
    fn run(&self, counts: &mut Counts) {
        let started = Instant::now();
        // Loads the kernels and fills the pool of pinned buffers.
        let (mut expected, mut end, mut calls) = (Bits::new(), Bits::new(), Vec::new());
        for _ in 0..2 {
            let mut object = (self.make)().unwrap_or_else(|error| panic!("{}: {error}", self.name));
            (self.state)(&object).unwrap_or_else(|error| panic!("{}: {error}", self.name));
            let (done, made) = driver::watch(|| (self.act)(&mut object));
            expected = done.unwrap_or_else(|error| panic!("{}: {error}", self.name));
            calls = made;
            end = (self.state)(&object).unwrap_or_else(|error| panic!("{}: {error}", self.name));
        }
        let expected = (expected, end);
        let many = self.name.contains(": change: ") || self.name.starts_with("graph: ");
        let faults = if many && !every_fault() {
            faults(&calls, ONCE_OF_CHANGES, seeds::base().unwrap_or_default() as usize)
        } else {
            faults(&calls, ONCE, 0)
        };
        for (number, &fault) in faults.iter().enumerate() {
            // Callers with a current context, and without any.
            driver::set_current_context(if number % 2 == 0 { 0 } else { driver::context(CALLERS) });
            // The message is printed; the others are tried all the same.
            if catch_unwind(AssertUnwindSafe(|| self.fail(fault, &expected, counts))).is_err() {
                driver::heal();
                counts.broken += 1;
            }
        }
        driver::set_current_context(0);
        counts.scenarios += 1;
        counts.calls += calls.len();
        let seconds = started.elapsed().as_secs_f32();
        println!("{}: {} calls, {} failures, {seconds:.1} s", self.name, calls.len(), faults.len());
    }

    /// One failure, and all that must hold after it.
    fn fail(&self, fault: Fault, (expected, end): &(Bits, Bits), counts: &mut Counts) {
        let at = format!("{}, {fault:?}", self.name);
        let before_all = in_use();
        let context = driver::current_context();
        let mut object = (self.make)().unwrap_or_else(|error| panic!("{at}: {error}"));
        let before = (self.state)(&object).unwrap_or_else(|error| panic!("{at}: {error}"));
        assert_eq!(driver::current_context(), context, "{at}: the context before the failure");
        driver::fail(fault);
        let done = catch_unwind(AssertUnwindSafe(|| (self.act)(&mut object)));
        let failed = driver::heal();
        let Ok(done) = done else { panic!("{at}: {failed:?} made it panic") };
        let Some(failed) = failed else {
            // Several devices, whose calls were fewer this time.
            assert!(self.several && done.is_ok(), "{at}: nothing failed, {done:?}");
            return;
        };
        counts.failures += 1;
        let context_changed = failed.name == "cuCtxSetCurrent" || fault.lasts == Lasts::ForGood;
        if context_changed {
            driver::set_current_context(context);
        }
        assert_eq!(driver::current_context(), context, "{at}, {failed:?}: the caller's context");
        let mut lost = false;
        let acted = match done {
            Ok(bits) => {
                // A removal is done before the other rows move together; if they cannot, they stay. A graph that cannot
                // follow a change is left out, and searches are exact. Both show in the state, which is compared below.
                let of_graph = ["graph: change", "graph: add"].iter().any(|start| self.name.starts_with(start));
                let does_without = self.name.ends_with(": remove most") || of_graph;
                assert!(may_be_silent(failed) || does_without, "{at}: nobody noticed {failed:?}");
                assert_eq!(&bits, expected, "{at}, {failed:?}: other results");
                counts.unnoticed += 1;
                true
            }
            Err(error) => {
                *counts.kinds.entry(kind(&error)).or_default() += 1;
                assert!(names(&error, failed, fault.lasts), "{at}: {failed:?} became {error:?}");
                lost = matches!(error, Error::DeviceFailed { .. });
                false
            }
        };
        if lost {
            assert!(self.several, "{at}");
        } else {
            if !acted {
                let after = (self.state)(&object).unwrap_or_else(|error| panic!("{at}, {failed:?}: {error}"));
                // Replaced vectors on a device get their old values back by another launch, which a device that fails
                // for good refuses.
                let cannot_undo = fault.lasts == Lasts::ForGood && self.name.ends_with(": change: upsert");
                assert!(cannot_undo || after == before, "{at}, {failed:?}: the object changed: {before:?} {after:?}");
                let again = (self.act)(&mut object).unwrap_or_else(|error| panic!("{at}, {failed:?}, again: {error}"));
                assert_eq!(&again, expected, "{at}, {failed:?}: other results afterwards");
            }
            let after = (self.state)(&object).unwrap_or_else(|error| panic!("{at}, {failed:?}, at the end: {error}"));
            assert_eq!(&after, end, "{at}, {failed:?}: another object at the end");
            assert_eq!(driver::current_context(), context, "{at}, {failed:?}: the caller's context");
        }
        drop(object);
        assert_eq!(driver::current_context(), context, "{at}, {failed:?}: the caller's context after the drop");
        for (device, (before, after)) in before_all.iter().zip(in_use()).enumerate() {
            let leak = format!("{at}, {failed:?}: device {device} had {before:?}, has {after:?}");
            assert_eq!((after.bytes, after.allocations), (before.bytes, before.allocations), "{leak}");
            // An index that outlives the failure, the other one of a merge, does without a lane whose work failed.
            assert!(after.streams <= before.streams, "{leak}");
            // A pinned buffer has one event; the others were there before. Two pairs may be in use at once where
            // several threads work.
            let pinned = after.host_allocations;
            assert_eq!(after.events - pinned, before.events - before.host_allocations, "{leak}");
            assert!(pinned <= before.host_allocations + 4 * usize::from(self.several), "{leak}");
            // Modules stay with the device, and those that were not needed before may come.
            assert_eq!(after.retained, before.retained, "{leak}");
        }
        assert_eq!(driver::violations(), Vec::<String>::new(), "{at}");
    }
}

/// The device whose context is the caller's own.
const CALLERS: usize = 3;

fn in_use() -> Vec<Usage> {
    (0..3).map(driver::usage).collect()
}

fn every_fault() -> bool {
    std::env::var("WARPANN_FAULTS").is_ok_and(|value| value == "all")
}

/// Which calls fail: the first from every place, some others, and of these about `most`, counted from one that `offset`
/// chooses; and some for good.
fn faults(calls: &[Call], most: usize, offset: usize) -> Vec<Fault> {
    let mut seen = HashSet::new();
    let stride = calls.len().div_ceil(SAMPLED).max(1);
    let once: Vec<usize> = (0..calls.len()).filter(|&at| seen.insert(calls[at]) || at.is_multiple_of(stride)).collect();
    let step = once.len().div_ceil(most).max(1);
    let once: Vec<usize> = once.iter().copied().skip(offset % step).step_by(step).collect();
    let every = once.len().div_ceil(FOR_GOOD).max(1);
    let for_good = once.iter().copied().step_by(every).map(|at| (at, Lasts::ForGood));
    let all = once.iter().copied().map(|at| (at, Lasts::Once)).chain(for_good);
    all.enumerate()
        .map(|(number, (at, lasts))| Fault { after: at as u64, code: CODES[number % CODES.len()], lasts })
        .collect()
}

/// Whether the error says which call failed with which code. Where all later calls fail as well, it may name one of
/// those.
fn names(error: &Error, failed: Failed, lasts: Lasts) -> bool {
    match error {
        Error::Driver { call, code, .. } => {
            *code == failed.code && (failed.name.starts_with(call) || lasts == Lasts::ForGood)
        }
        Error::OutOfDeviceMemory { .. } => failed.code == 2 && failed.name.starts_with("cuMemAlloc"),
        Error::PtxRefused { code, .. } => failed.name == "cuModuleLoadDataEx" && *code == failed.code,
        Error::DeviceFailed { source, .. } => [719, 999].contains(&failed.code) && names(source, failed, lasts),
        _ => false,
    }
}

fn kind(error: &Error) -> &'static str {
    match error {
        Error::Driver { .. } => "Driver",
        Error::OutOfDeviceMemory { .. } => "OutOfDeviceMemory",
        Error::PtxRefused { .. } => "PtxRefused",
        Error::DeviceFailed { .. } => "DeviceFailed",
        _ => "other",
    }
}

fn scenario<O>(
    counts: &mut Counts,
    name: impl Into<String>,
    make: impl Fn() -> Result<O>,
    act: impl Fn(&mut O) -> Result<Bits>,
    state: impl Fn(&O) -> Result<Bits>,
) {
    let name = name.into();
    let several = name.starts_with("several");
    Scenario { name, make, act, state, object: std::marker::PhantomData, several }.run(counts);
}

fn bits(found: &Neighbors) -> Bits {
    found.ids.iter().copied().chain(found.distances.iter().map(|distance| distance.to_bits().into())).collect()
}

/// Numbers without a pattern.
fn vectors(count: usize) -> Vec<f32> {
    (0..count as u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 20) as f32 / 256.0 - 8.0).collect()
}

const GPU: Device = Device::Gpu(0);
const DIM: usize = 4;

/// The functions that launch kernels: without attributes, and with them.
const LAUNCHES: [&str; 2] = ["cuLaunchKernel", "cuLaunchKernelEx"];

fn nothing<O>(_: &O) -> Result<Bits> {
    Ok(Bits::new())
}

fn flat(counts: &mut Counts) {
    let (base, queries) = (vectors(40 * DIM), vectors(3 * DIM));
    let empty = || FlatIndex::<f32>::new(DIM, Metric::L2, GPU);
    let full = || {
        let mut index = empty()?;
        index.add(&base).map(|()| index)
    };
    let search = |index: &FlatIndex<f32>| Ok(bits(&index.search(&queries, 5)?));
    scenario(
        counts,
        "flat: add",
        empty,
        |index| index.add(&base).map(|()| vec![index.len() as u64]),
        |index| Ok(vec![index.len() as u64]),
    );
    scenario(counts, "flat: search", full, |index| search(index), nothing);
    let filters = [Filter::Ids(&[3, 5, 20]), Filter::Except(&[7]), Filter::Ids(&[])];
    let each = SearchOptions::new().filter(Filter::Each(&filters));
    let filtered = |index: &FlatIndex<f32>| Ok(bits(&index.search_with(&queries, 5, &each)?));
    scenario(counts, "flat: filters of each query", full, |index| filtered(index), nothing);
    scenario(
        counts,
        "flat: reconstruct",
        full,
        |index| Ok(index.reconstruct(7)?.iter().map(|x| x.to_bits().into()).collect()),
        nothing,
    );
    scenario(
        counts,
        "flat: move",
        full,
        |index| {
            index.move_to(Device::Gpu(1))?;
            Ok(vec![index.len() as u64])
        },
        |index| search(index),
    );
    let rows = vectors(300 * 20);
    let queries = vectors(2 * 20);
    // The first and the last of three tiles change, and stay in the scale of all rows or need another one.
    for (name, scale) in [("flat: search after a change", 1.0), ("flat: search after a greater component", 9.0)] {
        let changed = || {
            let mut index = FlatIndex::<f32>::new(20, Metric::L2, GPU)?;
            index.add(&rows)?;
            index.search(&queries, 3)?;
            let new: Vec<f32> = rows[..2 * 20].iter().map(|x| scale * x).collect();
            index.upsert(&new, &[5, 290]).map(|_| index)
        };
        scenario(counts, name, changed, |index| Ok(bits(&index.search(&queries, 3)?)), nothing);
    }
    let of_budget = |budget: u64| {
        let mut index = FlatIndex::<f32>::builder(20).device(GPU).memory_budget(budget).build()?;
        index.add(&rows)?;
        index.search(&queries, 3).map(|_| index)
    };
    let budgets = (10..22).map(|shift| 3u64 << shift);
    let budget =
        budgets.clone().find(|&budget| of_budget(budget).is_ok_and(|index| index.device().contains("streamed")));
    let budget = budget.unwrap_or_else(|| panic!("none of {budgets:?} makes the base stream"));
    scenario(counts, "flat: stream", || of_budget(budget), |index| Ok(bits(&index.search(&queries, 3)?)), nothing);
}

/// The address of these values in the memory of a device. They stay there for all scenarios.
fn resident<V: DeviceCopy>(device: usize, values: &[V]) -> u64 {
    driver::set_current_context(driver::context(device));
    let buffer = DeviceBuffer::from_slice(values).unwrap_or_else(|error| panic!("{error}"));
    driver::set_current_context(0);
    let address = buffer.as_device_ptr().as_raw();
    // It cannot be freed: there is no current context.
    std::mem::forget(buffer);
    address
}

/// Room for the three best of two queries on the first device.
fn room_for_results() -> DeviceNeighbors {
    DeviceNeighbors::new(resident(0, &[0u64; 6]), resident(0, &[0f32; 6]))
}

/// Additions from device memory and searches on a stream. `full` makes an index of any vectors on the first device,
/// which has been searched.
fn on_the_device<I: Kind<Element = f32>>(
    counts: &mut Counts,
    kind: &str,
    options: &SearchOptions<'_>,
    full: impl Fn() -> Result<Index<I>>,
) {
    let new = vectors(50 * DIM);
    let (there, results) = (resident(0, &new), room_for_results());
    let rows = |count| DeviceVectors::<f32>::new(there, count);
    let ids: Vec<u64> = (100..110).collect();
    let state = |index: &Index<I>| content(index, &new[..2 * DIM], options);
    let add = |index: &mut Index<I>| {
        // SAFETY: the buffer holds the vectors.
        unsafe { index.add_device_with_ids(null_mut(), &rows(10), &ids)? };
        Ok(index.ids())
    };
    scenario(counts, format!("{kind}: add from the device"), &full, add, state);
    let plan = |index: &mut Index<I>| Ok(vec![index.device_workspace(2, 3, options)?.device_bytes()]);
    scenario(counts, format!("{kind}: workspace"), &full, plan, state);
    let planned = || {
        let index = full()?;
        let workspace = index.device_workspace(2, 3, options)?;
        Ok((index, workspace))
    };
    let enqueue = |(index, workspace): &mut (Index<I>, DeviceWorkspace)| {
        // SAFETY: the buffers have room, and the emulated driver works at once.
        unsafe { index.search_device(workspace, null_mut(), &rows(2), &results)? };
        Ok(Bits::new())
    };
    scenario(counts, format!("{kind}: search on a stream"), planned, enqueue, |(index, _)| state(index));
}

/// [`on_the_device`], for each kind of index.
fn all_on_the_device(counts: &mut Counts) {
    let (none, probes) = (SearchOptions::new(), SearchOptions::new().probes(3));
    let base = vectors(30 * DIM);
    let flat = || {
        let mut index = FlatIndex::<f32>::new(DIM, Metric::L2, GPU)?;
        index.add(&base)?;
        content(&index, &base[..2 * DIM], &none).map(|_| index)
    };
    on_the_device(counts, "flat", &none, flat);
    let ivf = || {
        let mut index = trained_elsewhere(Encoding::Flat, &base)?;
        index.add(&base)?;
        content(&index, &base[..2 * DIM], &probes).map(|_| index)
    };
    on_the_device(counts, "ivf", &probes, ivf);
    let there = resident(0, &base);
    scenario(
        counts,
        "ivf: train from the device",
        || IvfIndex::<f32>::builder(DIM, 3).iterations(1).device(GPU).build(),
        |index| {
            // SAFETY: the buffer holds the vectors.
            unsafe { index.train_device(null_mut(), &DeviceVectors::new(there, 30))? };
            Ok(index.centroids().iter().map(|x| x.to_bits().into()).collect())
        },
        |index| Ok(vec![u64::from(index.is_trained())]),
    );
    let graph = || {
        let mut index = GraphIndex::<f32>::builder(DIM).degree(4).exact_ratio(0).beam(16).device(GPU).build()?;
        index.add(&base)?;
        content(&index, &base[..2 * DIM], &none).map(|_| index)
    };
    on_the_device(counts, "graph", &none, graph);
    let search = |index: &GraphIndex| content(index, &base[..2 * DIM], &none);
    scenario(counts, "graph: search", graph, |index| search(index), search);
}

/// Additions without ids, what a search on a stream calls, and queries on another device.
fn flat_on_the_device(counts: &mut Counts) {
    let (base, new) = (vectors(40 * DIM), vectors(50 * DIM));
    let full = || {
        let mut index = FlatIndex::<f32>::new(DIM, Metric::L2, GPU)?;
        index.add(&base).map(|()| index)
    };
    let rows = DeviceVectors::<f32>::new(resident(0, &new), 50);
    scenario(
        counts,
        "flat: add from the device without ids",
        full,
        |index| {
            // SAFETY: the buffer holds the vectors.
            unsafe { index.add_device(null_mut(), &rows)? };
            Ok(vec![index.len() as u64])
        },
        |index| Ok(bits(&index.search(&base[..3 * DIM], 5)?)),
    );
    let index = full().unwrap_or_else(|error| panic!("{error}"));
    let workspace = index.device_workspace(2, 3, &SearchOptions::new());
    let mut workspace = workspace.unwrap_or_else(|error| panic!("{error}"));
    let results = room_for_results();
    let mut search = |device| {
        let queries = DeviceVectors::<f32>::new(resident(device, &new), 2);
        // SAFETY: the buffers have room, and the emulated driver works at once. A call that is refused uses no memory.
        driver::watch(|| unsafe { index.search_device(&mut workspace, null_mut(), &queries, &results) })
    };
    // The search makes no call that a captured stream refuses.
    let (done, calls) = search(0);
    let allowed = [
        "cuCtxGetCurrent",
        "cuCtxSetCurrent",
        "cuLaunchKernel",
        "cuMemsetD8Async",
        "cuMemcpyDtoDAsync_v2",
        "cuPointerGetAttributes",
    ];
    let other = calls.iter().find(|call| !allowed.contains(&call.name));
    assert!(done.is_ok() && other.is_none(), "a search on a stream calls {other:?}: {done:?}");
    let (refused, _) = search(1);
    assert!(matches!(refused, Err(Error::BadMemory { defect: OtherGpu { expected: 0, found: 1 }, .. })), "{refused:?}");
}

/// Trained on the CPU, which is faster and gives the same bits, and then moved to the device.
fn trained_elsewhere(encoding: Encoding, base: &[f32]) -> Result<IvfIndex> {
    let mut index = IvfIndex::<f32>::builder(DIM, 3).encoding(encoding).iterations(1).device(Device::Cpu).build()?;
    index.train(base)?;
    index.move_to(GPU).map(|()| index)
}

/// Requests to batchers, one by a worker and one on the thread that waits. A failure reaches the request whose search
/// it ends, and the next request finds all as it was.
fn batchers(counts: &mut Counts) {
    fn requests<K: Kind<Element = f32> + 'static>(
        counts: &mut Counts,
        name: &str,
        make: impl Fn() -> Result<Index<K>>,
    ) {
        let queries = vectors(2 * DIM);
        let request = |at: usize| Request::new(&queries[at * DIM..][..DIM], 4).options(SearchOptions::new().probes(2));
        let act = |batcher: &mut Batcher<K>| {
            let submitted = batcher.submit(request(0))?.wait()?;
            let searched = batcher.search(request(1))?;
            Ok([bits(&submitted), bits(&searched)].concat())
        };
        scenario(counts, format!("batcher: {name}"), || Batcher::new(make()?), act, nothing);
    }
    let base = vectors(30 * DIM);
    requests(counts, "flat", || {
        let mut index = FlatIndex::<f32>::new(DIM, Metric::L2, GPU)?;
        index.add(&base).map(|()| index)
    });
    let of_lists = || {
        let mut index = trained_elsewhere(Encoding::Flat, &base)?;
        index.add(&base).map(|()| index)
    };
    requests(counts, "ivf", of_lists);
    lost_device(&of_lists().unwrap_or_else(|error| panic!("{error}")));
}

/// A device fails for good while requests wait. Each gets a typed error, and when the index has moved to the CPU, the
/// same batcher answers again.
fn lost_device(index: &IvfIndex) {
    let queries = vectors(3 * DIM);
    let request = |at: usize| Request::new(&queries[at * DIM..][..DIM], 4);
    let expected: Vec<Neighbors> = queries.chunks_exact(DIM).map(|query| index.search(query, 4).unwrap()).collect();
    let mut writer = IndexWriter::new(index.snapshot());
    let batcher = Batcher::new(writer.reader()).unwrap_or_else(|error| panic!("{error}"));
    driver::fail(Fault { after: 0, code: 999, lasts: Lasts::ForGood });
    let answers: Vec<_> = (0..3).map(|at| batcher.submit(request(at)).unwrap()).collect();
    for answer in answers {
        let error = answer.wait().unwrap_err();
        assert!(error.is_device(), "{error}");
    }
    writer.change(|index| index.move_to(Device::Cpu)).unwrap_or_else(|error| panic!("{error}"));
    for (at, expected) in expected.iter().enumerate() {
        assert_eq!(&batcher.search(request(at)).unwrap(), expected);
    }
    driver::heal();
}

fn inverted_files(counts: &mut Counts) {
    let (base, queries) = (vectors(30 * DIM), vectors(3 * DIM));
    let pq = Encoding::Pq { sub_quantizers: 2, bits: 4, rotate: false };
    let one_part = Encoding::Pq { sub_quantizers: 1, bits: 4, rotate: false };
    let untrained =
        |encoding| move || IvfIndex::<f32>::builder(DIM, 3).encoding(encoding).iterations(1).device(GPU).build();
    let base = &base;
    let trained = |encoding| move || trained_elsewhere(encoding, base);
    let full = |encoding| {
        move || {
            let mut index = trained_elsewhere(encoding, base)?;
            index.add(base).map(|()| index)
        }
    };
    let len = |index: &IvfIndex| Ok(vec![index.len() as u64, u64::from(index.is_trained())]);
    let search = |index: &IvfIndex| Ok(bits(&index.search_with(&queries, 4, &SearchOptions::new().probes(2))?));
    let train = |index: &mut IvfIndex| {
        index.train(base)?;
        Ok(index.centroids().iter().map(|x| x.to_bits().into()).collect())
    };
    scenario(counts, "ivf: train", untrained(Encoding::Flat), train, len);
    let add = |index: &mut IvfIndex| index.add(base).map(|()| vec![index.len() as u64]);
    scenario(counts, "ivf: add", trained(Encoding::Flat), add, len);
    // With what the first addition has prepared.
    let more = |index: &mut IvfIndex| {
        index.add(&base[..3 * DIM])?;
        Ok(vec![index.len() as u64])
    };
    scenario(counts, "ivf: add more", full(Encoding::Flat), more, len);
    scenario(counts, "ivf: search", full(Encoding::Flat), |index| search(index), nothing);
    let changed = || {
        let mut index = full(Encoding::Flat)()?;
        search(&index)?;
        more(&mut index).map(|_| index)
    };
    scenario(counts, "ivf: search after a change", changed, |index| search(index), nothing);
    scenario(
        counts,
        "ivf: range",
        full(Encoding::Flat),
        |index| {
            let options = SearchOptions::new().probes(3);
            let found = index.range_search(&queries, 40.0, &options)?;
            Ok(found.ids.into_iter().chain(found.distances.iter().map(|d| d.to_bits().into())).collect())
        },
        nothing,
    );
    scenario(
        counts,
        "ivf: move",
        full(Encoding::Flat),
        |index| index.move_to(Device::Gpu(1)).map(|()| vec![index.len() as u64]),
        |index| search(index),
    );
    scenario(counts, "several threads: ivf-pq train", untrained(one_part), train, len);
    scenario(counts, "ivf-pq: add", trained(pq), add, len);
    scenario(counts, "ivf-pq: search", full(pq), |index| search(index), nothing);
}

/// Ids, and the results of a search.
fn content<I: Kind<Element = f32>>(index: &Index<I>, queries: &[f32], options: &SearchOptions<'_>) -> Result<Bits> {
    let mut content = index.ids();
    content.extend(bits(&index.search_with(queries, 5, options)?));
    Ok(content)
}

/// Every change of an index on a device, whose search has prepared all that searches use. `made` makes an empty index
/// there. The state is what a search finds, so a fault that a change hides shows there.
fn changes<I: Kind<Element = f32>>(
    counts: &mut Counts,
    kind: &str,
    options: &SearchOptions<'_>,
    made: impl Fn() -> Result<Index<I>>,
) {
    const N: u64 = 30;
    let (base, new, queries) = (vectors(N as usize * DIM), vectors(64 * DIM), vectors(2 * DIM));
    let new = &new[40 * DIM..];
    let ids: Vec<u64> = (0..N).map(|id| 3 * id).collect();
    let full = || {
        let mut index = made()?;
        index.add_with_ids(&base, &ids)?;
        content(&index, &queries, options).map(|_| index)
    };
    let with_gaps = || {
        let mut index = full()?;
        index.remove(&[9, 3, 45])?;
        content(&index, &queries, options).map(|_| index)
    };
    let emptied = || {
        let mut index = full()?;
        index.remove(&ids).map(|()| index)
    };
    let other = |device: Device| {
        let mut other = full()?;
        other.clear();
        other.add_with_ids(&new[..6 * DIM], &[1, 2, 100, 101, 102, 103])?;
        other.move_to(device).map(|()| other)
    };
    let [here, there] = [other(Device::Cpu), other(GPU)].map(|other| other.unwrap_or_else(|error| panic!("{error}")));
    type Make<'a, I> = &'a dyn Fn() -> Result<Index<I>>;
    type Change<'a, I> = &'a dyn Fn(&mut Index<I>) -> Result<()>;
    let all: [(&str, Make<'_, I>, Change<'_, I>); 9] = [
        ("add", &full, &|index| index.add_with_ids(&new[..4 * DIM], &[7, 8, 1000, 1])),
        ("upsert", &full, &|index| index.upsert(&new[..4 * DIM], &[9, 3, 1000, 45]).map(|_| ())),
        ("remove", &full, &|index| index.remove(&[9, 3])),
        // So many that the rows move.
        ("remove most", &full, &|index| index.remove(&ids[4..28])),
        ("compact", &with_gaps, &|index| index.compact()),
        ("merge from the CPU", &full, &|index| index.merge(&here)),
        ("merge from the device", &full, &|index| index.merge(&there)),
        ("move", &with_gaps, &|index| index.move_to(Device::Gpu(1))),
        ("add after all are removed", &emptied, &|index| index.add_with_ids(&new[..20 * DIM], &ids[..20])),
    ];
    for (name, make, change) in all {
        let act = |index: &mut Index<I>| change(index).map(|()| index.ids());
        let state = |index: &Index<I>| content(index, &queries, options);
        scenario(counts, format!("{kind}: change: {name}"), make, act, state);
    }
}

fn changes_of_all(counts: &mut Counts) {
    let (none, probes) = (SearchOptions::new(), SearchOptions::new().probes(3));
    let base = vectors(30 * DIM);
    changes(counts, "flat", &none, || FlatIndex::<f32>::new(DIM, Metric::L2, GPU));
    changes(counts, "ivf", &probes, || trained_elsewhere(Encoding::Flat, &base));
    let pq = Encoding::Pq { sub_quantizers: 2, bits: 4, rotate: false };
    changes(counts, "ivf-pq", &probes, || trained_elsewhere(pq, &base));
    let graph = || GraphIndex::<f32>::builder(DIM).degree(4).exact_ratio(0).beam(16).device(GPU).build();
    changes(counts, "graph", &none, graph);
}

fn functions(counts: &mut Counts) {
    let keys = vectors(3 * 70);
    scenario(
        counts,
        "select",
        || Ok(()),
        |()| {
            let found = select_k(GPU, &Rows::contiguous(&keys, 70)?, 5, Best::Smallest)?;
            Ok(found.positions.iter().map(|&position| position.into()).collect())
        },
        nothing,
    );
    let pairs: Vec<u64> = vectors(300).iter().map(|x| x.to_bits().into()).collect();
    scenario(
        counts,
        "sort",
        || Ok(()),
        |()| {
            // The contents of the arrays after a failed sort are not specified, so each sort has separate arrays.
            let (mut keys, mut payloads) = (pairs.clone(), (0..300).collect::<Vec<u32>>());
            warpann::sort::sort_pairs(GPU, &mut keys, &mut payloads)?;
            Ok(payloads.into_iter().map(u64::from).chain(keys).collect())
        },
        nothing,
    );
    let points = vectors(120 * 3);
    let queries = vectors(3 * 3);
    let shifted = || {
        let mut index = ShiftedIndex::builder(3).device(GPU).build()?;
        index.add(&points).map(|()| index)
    };
    scenario(
        counts,
        "shifted: add",
        || ShiftedIndex::builder(3).device(GPU).build(),
        |index| {
            index.add(&points)?;
            Ok(vec![index.len() as u64])
        },
        |index| Ok(vec![index.len() as u64]),
    );
    scenario(counts, "shifted: search", shifted, |index| Ok(bits(&index.search(&queries, 4)?)), nothing);
    scenario(
        counts,
        "k-means",
        || Ok(()),
        |()| {
            let made = KMeans::new(3).iterations(2).labels(true).device(GPU).train(&points, 3)?;
            Ok(made.centroids.iter().map(|x| x.to_bits().into()).collect())
        },
        nothing,
    );
    let books: Vec<f32> = vectors(2 * 16 * 2);
    scenario(
        counts,
        "pq: encode",
        || ProductQuantizer::from_codebooks(4, 2, 4, books.clone()),
        |quantizer| Ok(quantizer.encode(&points[..40], GPU)?.into_iter().map(u64::from).collect()),
        nothing,
    );
    let nodes = vectors(30 * DIM);
    let graph = || {
        let mut index = FlatIndex::<f32>::new(DIM, Metric::L2, GPU)?;
        index.add(&nodes).map(|()| index)
    };
    scenario(
        counts,
        "several threads: k-NN graph",
        graph,
        |index| {
            let (graph, _) = KnnGraph::new(3).batch(16).run(&*index, &nodes)?;
            Ok(graph.neighbors().iter().map(|&node| node.into()).collect())
        },
        nothing,
    );
}

fn several_devices(counts: &mut Counts) {
    let (base, queries) = (vectors(40 * DIM), vectors(40 * DIM));
    let placed = |text: &str| -> Placement { text.parse().unwrap_or_else(|_| panic!("{text} is a placement")) };
    for (name, text) in [("several devices: shards", "gpu:0+gpu:1"), ("several devices: replicas", "gpu:0,gpu:1")] {
        let full = || {
            let mut index = FlatIndex::<f32>::new(DIM, Metric::L2, placed(text))?;
            index.add(&base).map(|()| index)
        };
        scenario(counts, name, full, |index| Ok(bits(&index.search(&queries, 3)?)), nothing);
    }
    let full = || {
        let mut index = IvfIndex::<f32>::builder(DIM, 2).iterations(1).device(placed("gpu:0+gpu:1")).build()?;
        index.train(&base)?;
        index.add(&base).map(|()| index)
    };
    scenario(
        counts,
        "several devices: inverted file",
        full,
        |index| Ok(bits(&index.search_with(&queries, 3, &SearchOptions::new().probes(1))?)),
        nothing,
    );
    // So many points that two devices share them, whose sums meet through copies between devices.
    let points = vectors(1_100);
    scenario(
        counts,
        "several devices: k-means",
        || Ok(()),
        |()| {
            let settings = KMeans::new(2).iterations(1).points_per_centroid(None).device(placed("gpu:0,gpu:1"));
            Ok(settings.train(&points, 1)?.centroids.iter().map(|x| x.to_bits().into()).collect())
        },
        nothing,
    );
}

/// Opening a device and loading its kernels, with a different device for each failure, because an open device stays
/// open.
fn opening(counts: &mut Counts) {
    let base = vectors(20 * DIM);
    let act = |device: usize| {
        let mut index = FlatIndex::<f32>::new(DIM, Metric::L2, Device::Gpu(device))?;
        index.add(&base)?;
        index.search(&base[..DIM], 2).map(|found| bits(&found))
    };
    let mut fresh = FRESH..DEVICES;
    let mut next = || fresh.next().unwrap_or_else(|| panic!("{DEVICES} devices are not enough"));
    let first = next();
    let (expected, calls) = driver::watch(|| act(first));
    let expected = expected.unwrap_or_else(|error| panic!("{error}"));
    // The streams of a dropped index serve the next one, and an event orders what is freed.
    let kept = |usage: &driver::Usage| (usage.streams, usage.events - usage.host_allocations);
    let undisturbed = kept(&driver::usage(first));
    let faults = faults(&calls, ONCE, 0);
    for &fault in &faults {
        let device = next();
        driver::fail(fault);
        let done = catch_unwind(AssertUnwindSafe(|| act(device)));
        let Some(failed) = driver::heal() else { panic!("{fault:?}: nothing failed") };
        let at = format!("opening device {device}, {fault:?}, {failed:?}");
        counts.failures += 1;
        match done.unwrap_or_else(|_| panic!("{at}: it panicked")) {
            Ok(found) => {
                assert!(may_be_silent(failed), "{at}: nobody noticed");
                assert_eq!(found, expected, "{at}");
                counts.unnoticed += 1;
            }
            Err(error) => {
                *counts.kinds.entry(kind(&error)).or_default() += 1;
                assert!(names(&error, failed, fault.lasts), "{at} became {error:?}");
            }
        }
        driver::set_current_context(0);
        assert_eq!(act(device).unwrap_or_else(|error| panic!("{at}, again: {error}")), expected, "{at}");
        let left = driver::usage(device);
        assert_eq!((left.bytes, left.allocations, left.retained), (0, 0, 1), "{at}: {left:?}");
        assert_eq!(kept(&left), undisturbed, "{at}: {left:?}");
    }
    counts.scenarios += 1;
    counts.calls += calls.len();
    println!("opening: {} calls, {} failures", calls.len(), faults.len());
}

/// The failures to open a device that `Auto` treats as a machine without a GPU, and the errors of the others. Before
/// anything opens device 0.
fn start_of_the_driver() {
    let auto = || FlatIndex::<f32>::new(2, Metric::L2, Device::Auto);
    for code in [802, 803, 804, 999, 3, 4321] {
        driver::fail(Fault { after: 0, code, lasts: Lasts::Once });
        let made = auto();
        assert_eq!(driver::heal(), Some(Failed { name: "cuInit", code }));
        assert!(matches!(made, Err(Error::Driver { call: "cuInit", code: c, .. }) if c == code), "{code}: {made:?}");
        driver::fail(Fault { after: 0, code, lasts: Lasts::Once });
        let listed = warpann::device::info::devices();
        assert!(
            matches!(listed, Err(Error::Driver { call: "cuInit", code: c, .. }) if c == code),
            "{code}: {listed:?}"
        );
        driver::heal();
    }
    driver::fail(Fault { after: 0, code: 100, lasts: Lasts::ForGood });
    assert!(auto().is_ok_and(|index| index.device().contains("cpu")), "no device is the CPU");
    let gpu = FlatIndex::<f32>::new(2, Metric::L2, GPU);
    assert!(matches!(gpu, Err(Error::NoDevice { reason: NoDeviceReason::NoneReported(100) })), "{gpu:?}");
    driver::heal();
    let (_, calls) = driver::watch(|| FlatIndex::<f32>::new(2, Metric::L2, Device::Gpu(5)).map(|_| ()));
    let retain = calls.iter().position(|call| call.name == "cuDevicePrimaryCtxRetain");
    let after = retain.unwrap_or_else(|| panic!("{calls:?}")) as u64;
    driver::fail(Fault { after, code: 2, lasts: Lasts::Once });
    let full = FlatIndex::<f32>::new(2, Metric::L2, Device::Gpu(6));
    assert!(matches!(full, Err(Error::Driver { call: "cuDevicePrimaryCtxRetain", device: 6, code: 2 })), "{full:?}");
    driver::heal();
    let old = FlatIndex::<f32>::new(2, Metric::L2, Device::Gpu(TOO_OLD));
    assert!(
        matches!(old, Err(Error::NoDevice { reason: NoDeviceReason::TooOld { device: TOO_OLD, major: 7, minor: 5 } })),
        "{old:?}"
    );
    let auto = auto().unwrap_or_else(|error| panic!("{error}"));
    assert!(auto.device().contains("gpu:0"), "{}", auto.device());
}

/// After a temporary error a replica stays in use; a lost device is not used again, and the other replica does the
/// search.
fn places() {
    let base = vectors(40 * DIM);
    let made = || {
        let mut index = FlatIndex::<f32>::new(DIM, Metric::L2, "gpu:0,gpu:1".parse::<Placement>().unwrap_or_default())?;
        index.add(&base)?;
        // Loads the kernels on both.
        let found = index.search(&base, 3)?;
        index.search(&base[..DIM], 3)?;
        index.search(&base[..DIM], 3)?;
        Ok::<_, Error>((index, found))
    };
    for (code, stays) in [(2, true), (701, true), (4321, true), (719, false), (700, false), (999, false)] {
        let (index, expected) = made().unwrap_or_else(|error| panic!("{error}"));
        let (_, calls) = driver::watch(|| index.search(&base[..DIM], 3));
        let launch = calls.iter().position(|call| LAUNCHES.contains(&call.name)).unwrap_or_else(|| panic!("{calls:?}"));
        driver::fail(Fault { after: launch as u64, code, lasts: Lasts::Once });
        let failed = index.search(&base[..DIM], 3);
        driver::heal();
        if stays {
            assert!(
                matches!(failed, Err(Error::Driver { call, code: c, .. }) if c == code && LAUNCHES.contains(&call)),
                "{failed:?}"
            );
        } else {
            assert!(matches!(failed, Err(Error::DeviceFailed { left: 1, .. })), "{failed:?}");
        }
        assert_eq!(index.device().contains("failed"), !stays, "{code}: {}", index.device());
        assert_eq!(index.search(&base, 3).unwrap_or_else(|error| panic!("{error}")), expected);
    }
}

/// A device of compute capability 9.0 gets small launches of a search with the attribute of dependent launches, and
/// large ones without; other devices get all without. The emulated driver stops such a launch of a kernel that does not
/// wait. The kernels of k-means do not wait.
fn dependent_launches() {
    let base = vectors(5_000);
    for (gpu, dependent) in [(0, false), (1, true)] {
        let waiting = || driver::usage(gpu).waiting_modules;
        let settings = KMeans::new(3).iterations(2).device(Device::Gpu(gpu));
        let (trained, calls) = driver::watch(|| settings.train(&base, DIM));
        trained.unwrap_or_else(|error| panic!("{error}"));
        let loaded = driver::usage(gpu).modules;
        assert!(loaded > 0 && waiting() == 0, "gpu:{gpu}: {} of {loaded} modules wait", waiting());
        assert!(calls.iter().all(|call| call.name != LAUNCHES[1]), "gpu:{gpu}: a launch of k-means has the attribute");

        let mut index =
            FlatIndex::<f32>::new(DIM, Metric::L2, Device::Gpu(gpu)).unwrap_or_else(|error| panic!("{error}"));
        index.add(&base).unwrap_or_else(|error| panic!("{error}"));
        let (found, calls) = driver::watch(|| index.search(&base[..DIM], 3));
        assert_eq!(found.unwrap_or_else(|error| panic!("{error}")).ids[0], 0);
        let launches = |name| calls.iter().filter(|call| call.name == name).count();
        let [plain, with_attribute] = LAUNCHES.map(launches);
        assert!(plain > 0 && (with_attribute > 0) == dependent, "gpu:{gpu}: {plain} and {with_attribute} launches");
        assert_eq!(waiting() > 0, dependent, "gpu:{gpu}");
    }
    assert!(driver::violations().is_empty(), "{:?}", driver::violations());
}

/// Names the part of the test that a process runs: 0 or 1.
const PART: &str = "WARPANN_FAULTS_PART";

/// Runs both parts at the same time, in processes of their own, because a driver is the process's. A part takes a
/// minute of one core.
fn both_parts() -> Result<bool, std::io::Error> {
    let this = std::env::current_exe()?;
    let start = |part| Command::new(&this).env(PART, part).spawn();
    let mut parts = ["0", "1"].map(start).into_iter().collect::<Result<Vec<_>, _>>()?;
    let mut passed = true;
    for part in &mut parts {
        passed &= part.wait()?.success();
    }
    Ok(passed)
}

fn main() -> ExitCode {
    // Cargo passes the filter of other test programs as well.
    if std::env::args().any(|argument| argument == "--list") {
        return ExitCode::SUCCESS;
    }
    let Ok(part) = std::env::var(PART) else {
        return match both_parts() {
            Ok(true) => ExitCode::SUCCESS,
            Ok(false) => ExitCode::FAILURE,
            Err(error) => {
                eprintln!("{error}");
                ExitCode::FAILURE
            }
        };
    };
    let mut devices = vec![driver::Device::default(); DEVICES];
    devices[1].capability = (9, 0);
    devices[1].memory_pools = false;
    devices[TOO_OLD].capability = (7, 5);
    if let Err(error) = driver::install(devices) {
        eprintln!("{error}");
        return ExitCode::FAILURE;
    }
    let started = Instant::now();
    start_of_the_driver();
    // Opens the device whose context is the caller's own.
    let _callers = FlatIndex::<f32>::new(2, Metric::L2, Device::Gpu(CALLERS)).unwrap_or_else(|error| panic!("{error}"));
    let mut counts = Counts::default();
    match part.as_str() {
        "0" => {
            dependent_launches();
            flat(&mut counts);
            flat_on_the_device(&mut counts);
            inverted_files(&mut counts);
            batchers(&mut counts);
            changes_of_all(&mut counts);
        }
        "1" => {
            all_on_the_device(&mut counts);
            functions(&mut counts);
            several_devices(&mut counts);
            places();
            opening(&mut counts);
        }
        other => {
            eprintln!("{PART}={other}");
            return ExitCode::FAILURE;
        }
    }
    let Counts { scenarios, calls, failures, unnoticed, broken, kinds } = counts;
    println!(
        "part {part}: {scenarios} scenarios of {calls} driver calls: {failures} failures, of which {unnoticed} changed nothing"
    );
    println!("part {part}: errors by kind: {kinds:?}; {:.1} s", started.elapsed().as_secs_f32());
    if broken > 0 {
        println!("part {part}: after {broken} of them something did not hold: see above");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}
