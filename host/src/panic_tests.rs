//! Code of the caller that panics inside of a call: iterators, filters, indexes of the caller's, and writers.
//! `watch_tests` has the callbacks of watches.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::ivf::Encoding;
use crate::knn_graph::tests::Foreign;
use crate::knn_graph::{Graph, KnnGraph};
use crate::random::Random;
use crate::{
    Device, Error, FlatIndex, GraphIndex, Index, IvfIndex, Kind, Metric, Neighbors, Placement, SearchOptions, Watch,
};

const DIM: usize = 4;

fn vectors(count: usize, seed: u64) -> Vec<f32> {
    let mut random = Random::new(seed);
    (0..count * DIM).map(|_| random.unit() as f32).collect()
}

/// Runs a call that must end in the panic of the caller's code, which [`panics`] is.
fn panicking<V>(call: impl FnOnce() -> V) {
    let panic = catch_unwind(AssertUnwindSafe(call)).err().expect("the call ends in a panic");
    assert!(panic.is::<OfCaller>(), "it is the panic of the caller's code");
}

struct OfCaller;

fn panics() -> ! {
    // Without the message of the panic hook.
    resume_unwind(Box::new(OfCaller))
}

fn placements() -> impl Iterator<Item = Placement> {
    ["cpu", "emulator", "cpu+cpu,cpu+cpu", "emulator+emulator"].into_iter().map(|text| text.parse().unwrap())
}

fn inverted(encoding: Encoding, placement: Placement) -> IvfIndex<f32> {
    let mut index =
        IvfIndex::<f32>::builder(DIM, 5).encoding(encoding).iterations(3).device(placement).build().unwrap();
    index.train(&vectors(400, 1)).unwrap();
    index
}

/// An iterator or one of its batches panics: the index has the batches before, and takes the others.
#[test]
fn an_iterator_of_batches_panics() {
    struct Batch<'a>(&'a [f32], bool);
    impl AsRef<[f32]> for Batch<'_> {
        fn as_ref(&self) -> &[f32] {
            if self.1 { panics() } else { self.0 }
        }
    }
    const BATCHES: usize = 4;
    let rows = vectors(BATCHES * 60, 2);
    let batches: Vec<&[f32]> = rows.chunks(60 * DIM).collect();
    let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
    for placement in placements() {
        for encoding in [Encoding::Flat, Encoding::Scalar8] {
            let empty = inverted(encoding, placement.clone());
            for (stop, of_batch, in_pool) in (0..BATCHES).flat_map(|stop| [(stop, false, true), (stop, true, false)]) {
                let mut index = empty.snapshot();
                let some = (0..BATCHES).map(|at| {
                    if at == stop && !of_batch {
                        panics()
                    }
                    Batch(batches[at], at == stop)
                });
                let add = || index.add_batches(some);
                panicking(|| if in_pool { pool.install(add) } else { add() });
                let mut plain = empty.snapshot();
                plain.add_batches(&batches[..stop]).unwrap();
                assert!(index.to_bytes().unwrap() == plain.to_bytes().unwrap(), "{placement}: {stop} of {BATCHES}");
                index.add_batches(&batches[stop..]).unwrap();
                plain.add_batches(&batches[stop..]).unwrap();
                assert!(index.to_bytes().unwrap() == plain.to_bytes().unwrap());
                let found = |index: &IvfIndex<f32>| {
                    index.search_with(&rows[..3 * DIM], 5, &SearchOptions::new().probes(3)).unwrap()
                };
                assert_eq!(found(&index), found(&plain));
            }
        }
    }
}

/// The function of a filter panics at any of its calls: later searches find the same as before.
fn check_filter<I: Kind<Element = f32>>(index: &Index<I>) {
    let queries = vectors(3, 9);
    let options = SearchOptions::new().probes(3);
    let found = || index.search_with(&queries, 4, &options).unwrap();
    let (before, even) = (found(), |id: u64| id.is_multiple_of(2));
    let filtered = index.search_with(&queries, 4, &options.filter_by(&even)).unwrap();
    for stop in [0, 1, index.len() / 2, index.len() - 1] {
        let calls = AtomicUsize::new(0);
        let accepts = |id: u64| if calls.fetch_add(1, Ordering::Relaxed) == stop { panics() } else { even(id) };
        let options = options.filter_by(&accepts);
        panicking(|| index.search_with(&queries, 4, &options));
        calls.store(0, Ordering::Relaxed);
        panicking(|| index.search_with_statistics(&queries, 4, &options));
        calls.store(0, Ordering::Relaxed);
        panicking(|| index.range_search(&queries, 0.5, &options));
        let mut calls = 0;
        panicking(|| {
            index.filter(|_| {
                calls += 1;
                calls <= stop || panics()
            })
        });
        assert_eq!(found(), before);
        let again = options.filter_by(&even);
        assert_eq!(index.search_with(&queries, 4, &again).unwrap(), filtered);
        let bits = index.filter(even);
        assert_eq!(index.search_with(&queries, 4, &again.filter(&bits)).unwrap(), filtered);
    }
}

#[test]
fn a_filter_panics() {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(2).build().unwrap();
    let rows = vectors(150, 3);
    for placement in placements() {
        let mut flat = FlatIndex::<f32>::new(DIM, Metric::L2, placement.clone()).unwrap();
        flat.add(&rows).unwrap();
        let mut ivf = inverted(Encoding::Flat, placement.clone());
        ivf.add(&rows).unwrap();
        let mut graph = GraphIndex::<f32>::builder(DIM).degree(8).exact_ratio(0).device(placement).build().unwrap();
        graph.add(&rows).unwrap();
        let all = || {
            check_filter(&flat);
            check_filter(&ivf);
            check_filter(&graph);
        };
        all();
        pool.install(all);
    }
}

#[test]
fn an_index_of_the_callers_panics() {
    let base = vectors(300, 1);
    let mut index = FlatIndex::<f32>::new(DIM, Metric::L2, Device::Cpu).unwrap();
    index.add(&base).unwrap();
    let settings = KnnGraph::new(5).batch(64);
    let whole = settings.run(&index, &base).unwrap();
    type Wrong = fn(&mut Neighbors);
    // Its search number `stop` panics, or has another number of results.
    let stopping = |stop, wrong: Option<Wrong>| {
        Foreign::new(&index, move |search, mut found| {
            if search == stop {
                wrong.unwrap_or(|_| panics())(&mut found);
            }
            Ok(found)
        })
    };
    let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
    for stop in 0..5 {
        panicking(|| settings.run(&stopping(stop, None), &base));
        panicking(|| pool.install(|| settings.run(&stopping(stop, None), &base)));
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("g.ibin");
        panicking(|| settings.write(&stopping(stop, None), &base, &out, None, &Watch::none()));
        assert!(!out.exists());
        // The files have the batches before, also the one that was written while the search ran, and nobody holds their
        // lock.
        assert_eq!(settings.write(&index, &base, &out, None, &Watch::none()).unwrap(), 64 * stop);
        assert_eq!(Graph::read(&out).unwrap(), whole.0);

        let rows = if stop < 4 { 64 } else { 300 - 4 * 64 };
        let wrong: [(Wrong, usize); 4] = [
            (|found| found.k = 0, 0),
            (|found| found.k += 1, 7 * rows),
            (|found| found.ids.truncate(7), 7),
            (|found| found.distances.clear(), 0),
        ];
        for (wrong, given) in wrong {
            let error = settings.run(&stopping(stop, Some(wrong)), &base).unwrap_err();
            let is_named = matches!(error, Error::WrongLength { what: "results", expected, actual } if (expected, actual) == (6 * rows, given));
            assert!(is_named, "{error}");
        }
    }
}

/// The writer of a file panics: the old file stays, and there is no other.
#[test]
fn a_writer_panics() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.bin");
    for old in [None, Some("old")] {
        if let Some(old) = old {
            std::fs::write(&path, old).unwrap();
        }
        panicking(|| {
            crate::io::write_file_with(&path, |out| {
                out.write_all(b"new")?;
                panics()
            })
        });
        assert_eq!(std::fs::read_to_string(&path).ok().as_deref(), old);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), usize::from(old.is_some()));
    }
    crate::io::write_file_with(&path, |out| out.write_all(b"new")).unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), b"new");
}
