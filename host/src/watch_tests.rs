//! Watched calls of every index: what they report, and that a call whose callback cancels or panics changes nothing.

use std::cell::RefCell;
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;
use std::sync::Mutex;

use crate::ivf::Encoding;
use crate::knn_graph::{Graph, KnnGraph};
use crate::pq::{PqTraining, ProductQuantizer};
use crate::random::Random;
use crate::{
    Bitset, Device, Error, FlatIndex, GraphIndex, Index, IndexWriter, IvfIndex, Kind, Metric, Neighbors, Placement,
    Progress, Result, SearchOptions, Stage, Watch,
};

const DIM: usize = 4;

fn vectors(count: usize, seed: u64) -> Vec<f32> {
    let mut random = Random::new(seed);
    (0..count * DIM).map(|_| random.unit() as f32).collect()
}

/// The reports of a call, which must succeed.
fn reports(call: impl FnOnce(&Watch<'_>) -> Result<()>) -> Vec<Progress> {
    let seen = Mutex::new(Vec::new());
    let watch = Watch::new(|progress| {
        seen.lock().unwrap().push(progress);
        ControlFlow::Continue(())
    });
    call(&watch).unwrap();
    drop(watch);
    seen.into_inner().unwrap()
}

/// The stages of reports in their order, each once for consecutive reports.
fn stages(reports: &[Progress]) -> Vec<Stage> {
    let mut stages: Vec<Stage> = reports.iter().map(|progress| progress.stage).collect();
    stages.dedup();
    stages
}

/// Fails unless each stage counts up to its total.
fn check_counts(reports: &[Progress]) {
    for part in reports.chunk_by(|a, b| a.stage == b.stage) {
        assert!(part.is_sorted_by_key(|progress| progress.done), "{part:?}");
        assert!(part.iter().all(|progress| progress.total == part[0].total && progress.done <= progress.total));
        let last = part[part.len() - 1];
        // The stages that report before each step have no step after the last.
        assert!(last.done == last.total || matches!(last.stage, Stage::Rotating | Stage::Linking), "{last:?}");
    }
}

/// A watch that stops a call at its report number `stop`, by a panic with this number or by cancelling it. Counts the
/// reports.
pub(crate) fn stopping(stop: usize, panics: bool, reports: &mut usize) -> Watch<'_> {
    Watch::new(move |_| {
        *reports += 1;
        match *reports > stop {
            true if panics => resume_unwind(Box::new(stop)),
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    })
}

/// Stops a call at its report number `stop`: the callback panics or cancels.
fn stop_at(stop: usize, panics: bool, call: impl FnOnce(&Watch<'_>) -> Result<()>) {
    let mut reports = 0;
    let watch = stopping(stop, panics, &mut reports);
    match catch_unwind(AssertUnwindSafe(|| call(&watch))) {
        Ok(result) => assert!(!panics && matches!(result, Err(Error::Cancelled)), "report {stop}: {result:?}"),
        Err(panic) => assert!(panics && panic.downcast_ref() == Some(&stop), "report {stop}: another panic"),
    }
}

/// Stops a call at each of its reports, or at every `step`-th, in both ways. After each, `is_same` must hold.
fn stop_at_each(
    count: usize,
    step: usize,
    mut call: impl FnMut(&Watch<'_>) -> Result<()>,
    mut is_same: impl FnMut() -> bool,
) {
    for (stop, panics) in (0..count).step_by(step).flat_map(|stop| [(stop, false), (stop, true)]) {
        stop_at(stop, panics, &mut call);
        assert!(is_same(), "report {stop} of {count} left a change, panic: {panics}");
    }
}

/// The visible state of an index: its file, ids, vectors, and results with and without a filter.
#[derive(PartialEq)]
struct Seen {
    bytes: Vec<u8>,
    ids: Vec<u64>,
    vectors: Vec<Vec<f32>>,
    found: Vec<Neighbors>,
}

impl Seen {
    /// The visible state of an index, with these queries and a filter that was made for its ids.
    fn of<I: Kind<Element = f32>>(index: &Index<I>, queries: &[f32], filter: &Bitset) -> Seen {
        let ids = index.ids();
        let options = SearchOptions::new().probes(3);
        let all = index.search_with(queries, 3, &options).unwrap();
        let some = index.search_with(queries, 3, &options.filter(filter)).unwrap();
        let vectors = ids.iter().step_by(1 + ids.len() / 50).map(|&id| index.reconstruct(id).unwrap()).collect();
        Seen { bytes: index.to_bytes().unwrap(), ids, vectors, found: vec![all, some] }
    }
}

/// Watches an addition to an index: it ends as the same addition without a watch, and stopped it changes nothing.
/// Returns the stages.
fn check_addition<I: Kind<Element = f32>>(
    make: impl Fn() -> Index<I>,
    rows: &[f32],
    ids: Option<&[u64]>,
) -> Vec<Stage> {
    let (mut plain, mut watched) = (make(), make());
    match ids {
        Some(ids) => plain.add_with_ids(rows, ids).unwrap(),
        None => plain.add(rows).unwrap(),
    }
    let reports = reports(|watch| watched.add_watched(rows, ids, watch));
    check_counts(&reports);
    assert!(watched.to_bytes().unwrap() == plain.to_bytes().unwrap());

    let index = make();
    let filter = index.filter(|id| id % 3 != 0);
    // The first vectors of the call must not be found, and the last ones come after them.
    let queries = [&rows[..2 * DIM], &rows[rows.len() - DIM..]].concat();
    let before = Seen::of(&index, &queries, &filter);
    let index = RefCell::new(index);
    stop_at_each(
        reports.len(),
        1,
        |watch| index.borrow_mut().add_watched(rows, ids, watch),
        || Seen::of(&*index.borrow(), &queries, &filter) == before,
    );
    // It still takes them, and ends as an index that was never stopped.
    let mut index = index.into_inner();
    index.add_watched(rows, ids, &Watch::none()).unwrap();
    assert!(index.to_bytes().unwrap() == plain.to_bytes().unwrap());
    if plain.len() < 1_000 {
        let filter = plain.filter(|id| id % 3 != 0);
        assert!(Seen::of(&index, &queries, &filter) == Seen::of(&plain, &queries, &filter));
    }
    stages(&reports)
}

fn flat(placement: impl Into<Placement>) -> FlatIndex<f32> {
    let mut index = FlatIndex::<f32>::new(DIM, Metric::L2, placement).unwrap();
    index.add_with_ids(&vectors(50, 1), &(0..50).map(|id| 10 * id).collect::<Vec<_>>()).unwrap();
    index.remove(&[20, 30]).unwrap();
    index
}

#[test]
fn flat_additions_are_watched() {
    let rows = vectors(70_000, 2);
    // At the end; also in rows that removed vectors left; between others, which arranges the index anew.
    for first in [None, Some(20), Some(25)] {
        let ids: Option<Vec<u64>> = first.map(|first| [first].into_iter().chain(1_000..70_999).collect());
        let found = check_addition(|| flat(Device::Cpu), &rows, ids.as_deref());
        assert_eq!(found, [Stage::Adding]);
    }
    let shards: Placement = "cpu+cpu,cpu+cpu".parse().unwrap();
    let ids: Vec<u64> = [20].into_iter().chain(1_000..70_999).collect();
    for ids in [None, Some(&ids[..])] {
        check_addition(|| flat(shards.clone()), &rows, ids);
    }
    // Ids of the caller's in an index that had none.
    let counted = || {
        let mut index = FlatIndex::<f32>::new(DIM, Metric::L2, Device::Cpu).unwrap();
        index.add(&vectors(50, 1)).unwrap();
        index
    };
    check_addition(counted, &rows, Some(&ids[1..].iter().chain(&[99_999]).copied().collect::<Vec<_>>()));
}

#[test]
fn flat_additions_on_the_emulator_are_watched() {
    // Two pieces of rows.
    let rows = &vectors(33_000, 2);
    let ids: Vec<u64> = [30].into_iter().chain(1_000..33_999).collect();
    assert_eq!(check_addition(|| flat(Device::Emulator), rows, Some(&ids)), [Stage::Adding]);
    let shards: Placement = "emulator+emulator".parse().unwrap();
    let (few, ids) = (&rows[..200 * DIM], &ids[..200]);
    for placement in [Device::Emulator.into(), shards] {
        for ids in [None, Some(ids)] {
            check_addition(|| flat(placement.clone()), few, ids);
        }
    }
}

fn inverted(encoding: Encoding) -> IvfIndex<f32> {
    inverted_on(encoding, Device::Cpu.into())
}

fn inverted_on(encoding: Encoding, placement: Placement) -> IvfIndex<f32> {
    let mut index =
        IvfIndex::<f32>::builder(DIM, 5).encoding(encoding).iterations(3).device(placement).build().unwrap();
    index.train(&vectors(400, 1)).unwrap();
    index.add(&vectors(60, 2)).unwrap();
    index
}

const PQ: Encoding = Encoding::Pq { sub_quantizers: 2, bits: 4, rotate: true };

#[test]
fn inverted_files_are_watched() {
    let rows = vectors(70_000, 3);
    let ids: Vec<u64> = (0..70_000).map(|id| 200_000 - id).collect();
    for encoding in [Encoding::Flat, Encoding::Scalar8, PQ] {
        for ids in [None, Some(&ids[..])] {
            assert_eq!(check_addition(|| inverted(encoding), &rows, ids), [Stage::Adding]);
        }
    }
    // A component that does not fit is named by its row in the call, whatever the batch.
    let mut far = vectors(40_000, 3);
    far[39_000 * DIM + 1] = 1e30;
    let mut index = inverted(Encoding::F16);
    let watch = Watch::new(|_| ControlFlow::Continue(()));
    let error = index.add_watched(&far, None, &watch).unwrap_err();
    assert!(matches!(error, Error::DoesNotFit { row: 39_000, .. }), "{error:?}");
    assert_eq!(index.len(), 60);
}

#[test]
fn inverted_files_on_other_devices_are_watched() {
    let rows = vectors(200, 3);
    let ids: Vec<u64> = (0..200).map(|id| 200_000 - id).collect();
    for placement in ["emulator", "emulator+emulator", "cpu+cpu,cpu+cpu"] {
        let placement: Placement = placement.parse().unwrap();
        for encoding in [Encoding::Flat, PQ] {
            check_addition(|| inverted_on(encoding, placement.clone()), &rows, Some(&ids));
        }
    }
}

#[test]
fn training_is_watched() {
    let rows = vectors(400, 1);
    for (encoding, expected) in [
        (Encoding::Flat, &[Stage::Training][..]),
        (Encoding::F16, &[Stage::Training]),
        (Encoding::Scalar8, &[Stage::Training]),
        (PQ, &[Stage::Rotating, Stage::Training, Stage::Quantizing]),
    ] {
        let make =
            || IvfIndex::<f32>::builder(DIM, 5).encoding(encoding).iterations(3).device(Device::Cpu).build().unwrap();
        let (mut plain, mut watched) = (make(), make());
        plain.train(&rows).unwrap();
        let reports = reports(|watch| watched.train_watched(&rows, watch));
        assert_eq!(stages(&reports), expected, "{encoding}");
        check_counts(&reports);
        assert!(watched.to_bytes().unwrap() == plain.to_bytes().unwrap(), "{encoding}");
        // A trained index stays trained as it was.
        let bytes = plain.to_bytes().unwrap();
        let (other, plain) = (vectors(400, 9), RefCell::new(plain));
        stop_at_each(
            reports.len(),
            1,
            |watch| plain.borrow_mut().train_watched(&other, watch),
            || plain.borrow().to_bytes().unwrap() == bytes,
        );
        let fresh = RefCell::new(make());
        let untrained = || !fresh.borrow().is_trained();
        stop_at_each(reports.len(), 1, |watch| fresh.borrow_mut().train_watched(&rows, watch), untrained);
        let mut fresh = fresh.into_inner();
        fresh.train(&rows).unwrap();
        assert!(fresh.to_bytes().unwrap() == watched.to_bytes().unwrap(), "{encoding}");
    }
}

fn graph(count: usize) -> GraphIndex<f32> {
    graph_on(count, Device::Cpu.into())
}

fn graph_on(count: usize, placement: Placement) -> GraphIndex<f32> {
    let builder = GraphIndex::<f32>::builder(DIM).degree(8).exact_ratio(0).device(placement);
    let mut index = builder.build().unwrap();
    index.add(&vectors(count, 1)).unwrap();
    index
}

#[test]
fn graphs_are_watched() {
    // A new graph; three batches that are inserted; ids that lie between others.
    let new = check_addition(|| graph(0), &vectors(200, 2), None);
    assert_eq!(new, [Stage::Adding, Stage::Searching, Stage::Linking]);
    let rows = vectors(2_100, 3);
    assert_eq!(check_addition(|| graph(3_000), &rows, None), [Stage::Adding, Stage::Linking]);
    let ids: Vec<u64> = (0..400).map(|id| 9_000 - id).collect();
    let make = || {
        let mut index = graph(600);
        index.add_with_ids(&vectors(30, 8), &(9_500..9_530).collect::<Vec<_>>()).unwrap();
        index.remove(&[3, 4]).unwrap();
        index
    };
    assert_eq!(check_addition(make, &rows[..400 * DIM], Some(&ids)), [Stage::Adding, Stage::Linking]);
    // Neighbours of many vectors come from an inverted file, whose training is reported as well.
    let many = vectors(3_000, 4);
    let builder = || GraphIndex::<f32>::builder(DIM).degree(4).device(Device::Cpu).build().unwrap();
    let found = reports(|watch| builder().add_watched(&many, None, watch));
    assert_eq!(stages(&found), [Stage::Adding, Stage::Training, Stage::Searching, Stage::Linking]);
    let training = found.iter().position(|progress| progress.stage == Stage::Training).unwrap();
    let index = RefCell::new(builder());
    let empty = || index.borrow().is_empty();
    stop_at_each(training + 1, training, |watch| index.borrow_mut().add_watched(&many, None, watch), empty);
}

#[test]
fn graphs_on_other_devices_are_watched() {
    let rows = vectors(60, 2);
    let between: Vec<u64> = (0..60).map(|id| 30_000 - id).collect();
    for placement in ["emulator", "emulator+emulator", "cpu+cpu"] {
        let placement: Placement = placement.parse().unwrap();
        check_addition(|| graph_on(0, placement.clone()), &rows, None);
        let make = || {
            let mut index = graph_on(150, placement.clone());
            index.add_with_ids(&vectors(10, 8), &(39_000..39_010).collect::<Vec<_>>()).unwrap();
            index.remove(&[3, 4]).unwrap();
            index
        };
        for ids in [None, Some(&between[..])] {
            check_addition(make, &rows, ids);
        }
    }
}

/// A cancelled addition leaves a snapshot and the index as they were.
#[test]
fn snapshots_outlive_cancelled_additions() {
    let mut index = graph(600);
    let snapshot = index.snapshot();
    let bytes = index.to_bytes().unwrap();
    let watch = Watch::new(|progress| match progress.stage {
        Stage::Linking => ControlFlow::Break(()),
        _ => ControlFlow::Continue(()),
    });
    assert!(matches!(index.add_watched(&vectors(90, 7), None, &watch), Err(Error::Cancelled)));
    assert!(index.to_bytes().unwrap() == bytes && snapshot.to_bytes().unwrap() == bytes);
    assert!(index.statistics().edges > 0);
}

/// Writing is watched; a cancelled call leaves the old file and no other.
fn check_saving<I: Kind<Element = f32>>(index: &Index<I>, least: usize) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.index");
    let reports = reports(|watch| index.save_watched(&path, watch));
    assert_eq!(stages(&reports), [Stage::Saving]);
    check_counts(&reports);
    let written = std::fs::read(&path).unwrap();
    assert!(written == index.to_bytes().unwrap() && reports.len() >= least, "{}", reports.len());
    assert_eq!(reports[0].total, written.len() as u64);
    std::fs::write(&path, "old").unwrap();
    let only_old =
        |path: &Path| std::fs::read(path).unwrap() == b"old" && std::fs::read_dir(folder.path()).unwrap().count() == 1;
    stop_at_each(reports.len(), 1, |watch| index.save_watched(&path, watch), || only_old(&path));
    let new = folder.path().join("new.index");
    stop_at_each(1, 1, |watch| index.save_watched(&new, watch), || !new.exists() && only_old(&path));
}

#[test]
fn saving_is_watched() {
    let mut large = flat(Device::Cpu);
    large.add(&vectors(800_000, 2)).unwrap();
    check_saving(&large, 2);
    check_saving(&flat(Device::Cpu), 1);
    check_saving(&inverted(Encoding::Scalar8), 1);
    check_saving(&graph(300), 1);
}

/// A cancelled run of a k-NN graph is one that can be resumed.
#[test]
fn a_cancelled_graph_is_resumed() {
    let base = vectors(300, 1);
    let mut index = FlatIndex::<f32>::new(DIM, Metric::L2, Device::Cpu).unwrap();
    index.add(&base).unwrap();
    let settings = KnnGraph::new(5).batch(64);
    let whole = settings.run(&index, &base).unwrap();
    let found = reports(|watch| settings.run_watched(&index, &base, watch).map(|graph| assert!(graph == whole)));
    assert_eq!(found.iter().map(|progress| progress.done).collect::<Vec<_>>(), [0, 64, 128, 192, 256, 300]);
    stop_at_each(6, 1, |watch| settings.run_watched(&index, &base, watch).map(drop), || true);

    // The files of a stopped run have the batches before. The next run finishes them.
    for (stop, panics) in (0..6).flat_map(|stop| [(stop, false), (stop, true)]) {
        let folder = tempfile::tempdir().unwrap();
        let (out, distances) = (folder.path().join("g.ibin"), folder.path().join("g.fbin"));
        let write = |watch: &Watch<'_>| settings.write(&index, &base, &out, Some(&distances), watch);
        stop_at(stop, panics, |watch| write(watch).map(drop));
        assert!(!out.exists() && !distances.exists());
        assert_eq!(write(&Watch::none()).unwrap(), [0, 64, 128, 192, 256, 300][stop]);
        assert_eq!(Graph::read(&out).unwrap(), whole.0);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2);
    }

    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("g.ibin");
    let mut last = 0;
    let watch = Watch::new(|progress| {
        last = progress.done;
        if progress.done >= 128 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    assert!(matches!(settings.write(&index, &base, &out, None, &watch), Err(Error::Cancelled)));
    drop(watch);
    assert!(last == 128 && !out.exists());
    assert_eq!(settings.write(&index, &base, &out, None, &Watch::none()).unwrap(), 128);
    assert_eq!(Graph::read(&out).unwrap(), whole.0);
}

/// The callback runs on threads of a pool, several of which may wait for it. After its panic the pool, the lanes of the
/// device and the watch work.
#[test]
fn a_panic_in_a_pool_ends_the_call_only() {
    let rows = vectors(80, 4);
    for (device, threads) in [(Device::Cpu, 1), (Device::Cpu, 3), (Device::Emulator, 2)] {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        let settings = PqTraining::new(4).bits(4).iterations(1).device(device);
        let plain = ProductQuantizer::train(&settings, &rows, DIM).unwrap();
        let count = reports(|watch| ProductQuantizer::train_watched(&settings, &rows, DIM, watch).map(drop)).len();
        let train = |watch: &Watch<'_>| {
            pool.install(|| ProductQuantizer::train_watched(&settings, &rows, DIM, watch).map(drop))
        };
        let again = || {
            let trained = pool.install(|| ProductQuantizer::train(&settings, &rows, DIM).unwrap());
            trained.codebooks() == plain.codebooks()
        };
        stop_at_each(count, 1, train, again);
    }
    // A watch whose callback has panicked is called again.
    let mut calls = 0;
    let watch = Watch::new(|_| {
        calls += 1;
        if calls == 1 { resume_unwind(Box::new(1)) } else { ControlFlow::Continue(()) }
    });
    let mut index = flat(Device::Cpu);
    let add = |index: &mut FlatIndex<f32>| index.add_watched(&vectors(9, 5), None, &watch);
    assert!(catch_unwind(AssertUnwindSafe(|| add(&mut index))).is_err() && index.len() == 48);
    add(&mut index).unwrap();
    drop(watch);
    assert_eq!((calls, index.len()), (3, 57));
}

/// A change of a writer that is stopped between its steps publishes nothing, and leaves the version before and its
/// readers as they were.
#[test]
fn a_stopped_change_publishes_nothing() {
    let rows = vectors(70, 6);
    let queries = vectors(3, 7);
    fn check<I: Kind<Element = f32>>(index: Index<I>, rows: &[f32], queries: &[f32]) {
        let filter = index.filter(|id| id % 3 != 0);
        let (before, mut plain) = (Seen::of(&index, queries, &filter), index.snapshot());
        plain.remove(&[5]).unwrap();
        let count = reports(|watch| plain.add_watched(rows, None, watch)).len();
        let writer = RefCell::new(IndexWriter::new(index));
        let (reader, first) = (writer.borrow().reader(), writer.borrow().current());
        let change = |watch: &Watch<'_>| {
            writer.borrow_mut().change(|index| {
                index.remove(&[5])?;
                index.add_watched(rows, None, watch)
            })
        };
        let is_same =
            || std::sync::Arc::ptr_eq(&reader.current(), &first) && Seen::of(&*first, queries, &filter) == before;
        stop_at_each(count, 1, change, is_same);
        change(&Watch::none()).unwrap();
        let filter = plain.filter(|id| id % 3 != 0);
        assert!(Seen::of(&*reader.current(), queries, &filter) == Seen::of(&plain, queries, &filter));
    }
    for device in [Device::Cpu, Device::Emulator] {
        let mut flat = FlatIndex::<f32>::new(DIM, Metric::L2, device).unwrap();
        flat.add(&vectors(50, 1)).unwrap();
        check(flat, &rows, &queries);
        check(inverted_on(Encoding::Flat, device.into()), &rows, &queries);
        check(graph_on(150, device.into()), &rows, &queries);
    }
}

/// One watch for several calls, from several threads.
#[test]
fn a_watch_is_shared() {
    let calls = Mutex::new(0);
    let watch = Watch::new(|_| {
        *calls.lock().unwrap() += 1;
        ControlFlow::Continue(())
    });
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| flat(Device::Cpu).add_watched(&vectors(40_000, 5), None, &watch).unwrap());
        }
    });
    drop(watch);
    assert_eq!(*calls.lock().unwrap(), 9);
    assert_eq!("linking".parse::<Stage>().unwrap(), Stage::Linking);
    assert!(Stage::ALL.iter().all(|stage| stage.name().parse() == Ok(*stage) && !stage.unit().is_empty()));
}
