//! Watched calls of every index: what they report, and that a cancelled one changes nothing.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Mutex;

use crate::graph::{Graph, KnnGraph};
use crate::ivf::Encoding;
use crate::random::Random;
use crate::{Device, Error, FlatIndex, GraphIndex, Index, IvfIndex, Metric, Placement, Progress, Result, Stage, Watch};

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

/// Cancels a call at each of its reports, or at every `step`-th. After each, `is_same` must hold.
fn cancel_at_each(
    count: usize,
    step: usize,
    mut call: impl FnMut(&Watch<'_>) -> Result<()>,
    mut is_same: impl FnMut() -> bool,
) {
    for stop in (0..count).step_by(step) {
        let mut calls = 0;
        let watch = Watch::new(|_| {
            calls += 1;
            if calls > stop { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        let result = call(&watch);
        assert!(matches!(result, Err(Error::Cancelled)), "report {stop} of {count}: {result:?}");
        drop(watch);
        assert!(is_same(), "report {stop} of {count} left a change");
    }
}

/// Watches an addition to an index: it ends as the same addition without a watch, and cancelled it changes nothing. Returns the stages.
fn check_addition<I: Index<f32>>(make: impl Fn() -> I, rows: &[f32], ids: Option<&[u64]>) -> Vec<Stage> {
    let (mut plain, mut watched) = (make(), make());
    match ids {
        Some(ids) => plain.add_with_ids(rows, ids).unwrap(),
        None => plain.add(rows).unwrap(),
    }
    let reports = reports(|watch| watched.add_watched(rows, ids, watch));
    check_counts(&reports);
    assert!(watched.to_bytes().unwrap() == plain.to_bytes().unwrap());

    let index = Mutex::new(make());
    let (bytes, ids_before) = {
        let index = index.lock().unwrap();
        (index.to_bytes().unwrap(), index.ids())
    };
    let filter = index.lock().unwrap().filter(|id| id % 3 != 0);
    cancel_at_each(
        reports.len(),
        1,
        |watch| index.lock().unwrap().add_watched(rows, ids, watch),
        || {
            let index = index.lock().unwrap();
            let options = crate::SearchOptions::new().filter(&filter);
            let found = index.search_with(&rows[..DIM], 3, &options);
            index.to_bytes().unwrap() == bytes && index.ids() == ids_before && found.is_ok()
        },
    );
    // It still takes them.
    let mut index = index.into_inner().unwrap();
    index.add_watched(rows, ids, &Watch::none()).unwrap();
    assert!(index.to_bytes().unwrap() == plain.to_bytes().unwrap());
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
    check_addition(|| flat(shards.clone()), &rows, None);
    check_addition(|| flat(Device::Emulator), &rows[..400 * DIM], None);
}

fn inverted(encoding: Encoding) -> IvfIndex<f32> {
    let mut index =
        IvfIndex::<f32>::builder(DIM, 5).encoding(encoding).iterations(3).device(Device::Cpu).build().unwrap();
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
        let (other, plain) = (vectors(400, 9), Mutex::new(plain));
        cancel_at_each(
            reports.len(),
            1,
            |watch| plain.lock().unwrap().train_watched(&other, watch),
            || plain.lock().unwrap().to_bytes().unwrap() == bytes,
        );
        let fresh = Mutex::new(make());
        let untrained = || !fresh.lock().unwrap().is_trained();
        cancel_at_each(reports.len(), 1, |watch| fresh.lock().unwrap().train_watched(&rows, watch), untrained);
    }
}

fn graph(count: usize) -> GraphIndex<f32> {
    let builder = GraphIndex::<f32>::builder(DIM).degree(8).exact_ratio(0).device(Device::Cpu);
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
    let index = Mutex::new(builder());
    let empty = || index.lock().unwrap().is_empty();
    cancel_at_each(training + 1, training, |watch| index.lock().unwrap().add_watched(&many, None, watch), empty);
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
fn check_saving<I: Index<f32>>(index: &I, least: usize) {
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
    cancel_at_each(reports.len(), 1, |watch| index.save_watched(&path, watch), || only_old(&path));
    let new = folder.path().join("new.index");
    cancel_at_each(1, 1, |watch| index.save_watched(&new, watch), || !new.exists() && only_old(&path));
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
    cancel_at_each(6, 1, |watch| settings.run_watched(&index, &base, watch).map(drop), || true);

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
