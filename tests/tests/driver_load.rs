//! Calls that wait for the device, such as allocations, on the emulated driver. Such a call takes as long as other
//! threads search without a pause, so searches and changes beside them must do without.
//!
//! - Once one thread has searched an index, no other thread makes such a call.
//! - Once an index has changed a few times beside a reader, no further change of a few vectors makes such a call, nor
//!   does the first search after it.
//! - Once an index of a kind was made, searched and dropped, another one is so without a call that stops the searches
//!   of the others. Its memory is that of the dropped one.
//! - What a pool keeps counts as free memory, and all of it returns with the last index.

use std::sync::Barrier;
use std::thread;

use cuda_driver_emulator as driver;
use warpann::ivf::Encoding;
use warpann::{
    Bitset, Device, Filter, FlatIndex, GraphIndex, Index, IndexWriter, IvfIndex, Kind, Metric, SearchOptions,
};

/// Number of threads of a search: as many as an index has lanes.
const THREADS: usize = 32;
const DIM: usize = 8;

/// Calls that wait for the device or for the driver's lock of the context.
const WAITS: [&str; 19] = [
    "cuCtxSynchronize",
    "cuEventCreate",
    "cuEventDestroy_v2",
    "cuFuncSetAttribute",
    "cuMemAlloc_v2",
    "cuMemFreeHost",
    "cuMemFree_v2",
    "cuMemGetInfo_v2",
    "cuMemHostAlloc",
    "cuMemPoolCreate",
    "cuMemPoolGetAttribute",
    "cuMemPoolSetAttribute",
    "cuMemPoolTrimTo",
    "cuModuleGetFunction",
    "cuModuleLoadDataEx",
    "cuModuleUnload",
    "cuStreamCreate",
    "cuStreamCreateWithPriority",
    "cuStreamDestroy_v2",
];

/// Those of [`WAITS`] that take more than some µs. Questions about free memory, functions and events are asked by
/// builds.
const STOPS: [&str; 10] = [
    "cuCtxSynchronize",
    "cuMemAlloc_v2",
    "cuMemFreeHost",
    "cuMemFree_v2",
    "cuMemHostAlloc",
    "cuMemPoolSetAttribute",
    "cuMemPoolTrimTo",
    "cuStreamCreate",
    "cuStreamCreateWithPriority",
    "cuStreamDestroy_v2",
];

/// Bytes that the pool of searches keeps for good.
const SEARCHES_KEEP: u64 = 128 << 20;

/// Numbers without a pattern.
fn vectors(count: usize) -> Vec<f32> {
    (0..(count * DIM) as u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 20) as f32 / 256.0 - 8.0).collect()
}

/// One thread searches, and then many at once. Those may not wait, and find the same.
fn first_searches_do_not_wait(name: &str, index: &Index<impl Kind<Element = f32>>, options: &SearchOptions<'_>) {
    let queries = vectors(3);
    let search = || index.search_with(&queries, 5, options).unwrap_or_else(|error| panic!("{name}: {error}"));
    let expected = search();
    let start = Barrier::new(THREADS);
    let threads = || {
        thread::scope(|scope| {
            let of_thread = || {
                start.wait();
                search()
            };
            let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(of_thread)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
        })
    };
    let (found, calls) = driver::watch(threads);
    assert!(found.iter().all(|found| *found == expected), "{name}: other results");
    let waits: Vec<_> = calls.iter().map(|call| call.name).filter(|name| WAITS.contains(name)).collect();
    assert!(
        calls.len() > THREADS && waits.is_empty(),
        "{name}: {} of {} calls wait: {waits:?}",
        waits.len(),
        calls.len()
    );
}

/// Queries with filters of their own, whose search makes far fewer calls of the driver than one for each.
fn filters_share_launches(name: &str, index: &Index<impl Kind<Element = f32>>) {
    const QUERIES: u64 = 16;
    let queries = vectors(QUERIES as usize);
    // Sets that come as numbers, and sets that come as bits.
    let bits: Vec<Bitset> = (1..=QUERIES).map(|number| index.filter(|id| id % (3 * number) == 0)).collect();
    let filters: Vec<Filter<'_>> = bits.iter().map(Filter::Bits).collect();
    let options = SearchOptions::new().filter(Filter::Each(&filters));
    let together = || index.search_with(&queries, 5, &options).unwrap_or_else(|error| panic!("{name}: {error}"));
    let alone = || {
        let search = |(query, &filter)| index.search_one(query, 5, &SearchOptions::new().filter(filter)).unwrap();
        queries.chunks_exact(DIM).zip(&filters).map(search).collect::<Vec<_>>()
    };
    let expected = (together(), alone());
    let (found, shared) = driver::watch(together);
    let (found_alone, own) = driver::watch(alone);
    assert!((found, found_alone) == expected, "{name}: other results");
    for (at, alone) in expected.1.iter().enumerate() {
        assert_eq!(expected.0.row(at), alone.row(0), "{name}, query {at}");
    }
    println!("{name}: {} calls of the driver for {QUERIES} filters, {} by searches for each", shared.len(), own.len());
    assert!(own.len() > 8 * shared.len(), "{name}: {} calls together, {} alone", shared.len(), own.len());
}

/// Changes beside a reader that has the version before each. The first ones make what the later ones use.
fn later_changes_do_not_wait(name: &str, index: Index<impl Kind<Element = f32>>, options: &SearchOptions<'_>) {
    let mut writer = IndexWriter::new(index);
    let reader = writer.reader();
    let mut change = |number: u64| {
        let before = reader.current();
        let (rows, ids) = (vectors(4 + number as usize), [3 * number, 3 * number + 1, 200 + number, 390]);
        let change = |index: &mut Index<_>| {
            index.upsert(&rows[number as usize * DIM..], &ids)?;
            index.search_with(&rows, 5, options)
        };
        let found = writer.change(change).unwrap_or_else(|error| panic!("{name}, change {number}: {error}"));
        assert_eq!(before.len(), 400, "{name}");
        assert_eq!(found, reader.current().search_with(&rows, 5, options).unwrap(), "{name}");
    };
    (0..6).for_each(&mut change);
    let ((), calls) = driver::watch(|| (6..10).for_each(&mut change));
    let waits: Vec<_> = calls.iter().map(|call| call.name).filter(|name| WAITS.contains(name)).collect();
    assert!(calls.len() > 8 && waits.is_empty(), "{name}: {} of {} calls wait: {waits:?}", waits.len(), calls.len());
    let copies = calls.iter().filter(|call| call.name == "cuMemcpyDtoDAsync_v2").count();
    // Inverted files move lists in their images, and graphs copy edges.
    assert!(copies == 0 || name != "exact", "{name}: versions copy what has not changed");
}

/// An index is made, searched and dropped beside another one.
fn others_come_and_go<K: Kind<Element = f32>>(name: &str, make: impl Fn() -> Index<K>, options: &SearchOptions<'_>) {
    let beside = make();
    let (queries, expected) = (vectors(3), beside.search_with(&vectors(3), 5, options).unwrap());
    let come_and_go = || {
        let other = make();
        let found = other.search_with(&queries, 5, options).unwrap();
        drop(other);
        found
    };
    (0..2).for_each(|_| assert_eq!(come_and_go(), expected, "{name}"));
    let (used, taken) = memory(0);
    assert!(used > 0 && taken > used + SEARCHES_KEEP, "{name}: {used} bytes used, {taken} taken");
    let (found, calls) = driver::watch(come_and_go);
    assert_eq!((found, beside.search_with(&queries, 5, options).unwrap()), (expected.clone(), expected), "{name}");
    let stops: Vec<_> = calls.iter().map(|call| call.name).filter(|name| STOPS.contains(name)).collect();
    assert!(
        calls.len() > 8 && stops.is_empty(),
        "{name}: {} of {} calls stop others: {stops:?}",
        stops.len(),
        calls.len()
    );
    assert_eq!(memory(0), (used, taken), "{name}: the pools took or gave back memory");
}

/// Bytes of allocations of a device, and bytes that these and the pools have taken.
fn memory(device: usize) -> (u64, u64) {
    let usage = driver::usage(device);
    (usage.bytes, usage.bytes + usage.kept_bytes)
}

/// Memory of a dropped index that the pools keep.
#[derive(Clone, Copy, PartialEq)]
enum Kept {
    Nothing,
    Vectors,
    VectorsAndScratch,
}

/// An index that fits a device fits it also while pools keep memory. The device has 64 MB, so the pool of indexes keeps
/// 4 to 5 MB, and that of lanes what searches used. With copies and norms a vector takes nearly six times its bytes.
fn kept_memory_is_free() {
    const KB: usize = 1 << 10;
    let index = |bytes: usize| {
        let mut index = FlatIndex::<f32>::new(DIM, Metric::L2, Device::Gpu(1)).unwrap();
        index.add(&vectors(bytes / (DIM * size_of::<f32>()))).unwrap();
        index
    };
    let fits_beside = |kept: Kept, bytes: usize| {
        let (used, taken) = memory(1);
        assert!(used == 0 && (taken == 0 || kept == Kept::VectorsAndScratch), "{used} of {taken} bytes are used");
        let beside = index(512 * KB);
        let before = memory(1).0;
        if kept != Kept::Nothing {
            let dropped = index(512 * KB);
            if kept == Kept::VectorsAndScratch {
                dropped.search(&vectors(100), 1000).unwrap();
            }
        }
        let (used, taken) = memory(1);
        assert_eq!(used, before);
        let of_pools = taken - used;
        match kept {
            Kept::Nothing => assert_eq!(of_pools, 0),
            Kept::Vectors => assert_eq!(of_pools, before, "the pool keeps what was dropped"),
            Kept::VectorsAndScratch => assert!(of_pools > before + (4 << 20), "{of_pools} bytes are kept"),
        }
        let fits = index(bytes).statistics().host_bytes < bytes as u64;
        // Waits for the device, after which the pool of indexes keeps no more than it may.
        beside.vector(0).unwrap();
        let (used, taken) = memory(1);
        assert!(kept == Kept::VectorsAndScratch || taken <= used + (5 << 20), "{used} of {taken} bytes are used");
        drop(beside);
        fits
    };
    // Bisection: what fits is smaller than what does not.
    let largest = |kept| {
        let (mut fits, mut too_large) = (16, 64);
        assert!(fits_beside(kept, fits * 128 * KB) && !fits_beside(kept, too_large * 128 * KB));
        while too_large - fits > 1 {
            let middle = fits.midpoint(too_large);
            *(if fits_beside(kept, middle * 128 * KB) { &mut fits } else { &mut too_large }) = middle;
        }
        fits
    };
    let without = largest(Kept::Nothing);
    for kept in [Kept::Vectors, Kept::VectorsAndScratch] {
        assert_eq!(largest(kept), without, "the largest size that fits, in units of 128 KB");
    }
}

/// One test, because the driver and its record of calls are those of the process.
#[test]
fn searches_and_changes_beside_others_do_not_wait_for_the_device() {
    driver::install(vec![driver::Device::default(), driver::Device { memory: 64 << 20, ..Default::default() }])
        .unwrap();
    let (base, none, device) = (vectors(400), SearchOptions::new(), Device::Gpu(0));
    let exact = || {
        let mut index = FlatIndex::<f32>::new(DIM, Metric::L2, device).unwrap();
        index.add(&base).unwrap();
        index
    };
    others_come_and_go("exact", exact, &none);
    let new_graph = || {
        let mut index = GraphIndex::<f32>::builder(DIM).exact_ratio(0).device(device).build().unwrap();
        index.add(&base).unwrap();
        index
    };
    others_come_and_go("graph", new_graph, &none);
    let flat = exact();
    first_searches_do_not_wait("exact", &flat, &none);
    filters_share_launches("exact", &flat);
    let graph = new_graph();
    first_searches_do_not_wait("graph", &graph, &none);
    // The exact ratio of a graph makes searches under its filters exact.
    let mut few = GraphIndex::<f32>::builder(DIM).device(device).build().unwrap();
    few.add(&base).unwrap();
    filters_share_launches("graph", &few);
    drop(few);
    for encoding in [
        Encoding::Flat,
        Encoding::Scalar8,
        Encoding::Bits { bits: 4 },
        Encoding::Pq { sub_quantizers: 2, bits: 4, rotate: false },
    ] {
        // Trained on the CPU, which is faster, and gives the same bits.
        let mut ivf = IvfIndex::<f32>::builder(DIM, 8).encoding(encoding).device(Device::Cpu).build().unwrap();
        ivf.train(&base).unwrap();
        ivf.add(&base).unwrap();
        let (name, options) = (format!("ivf-{encoding}"), SearchOptions::new().probes(3));
        let on_device = || {
            let mut index = ivf.snapshot();
            index.move_to(device).unwrap();
            index
        };
        others_come_and_go(&name, on_device, &options);
        ivf.move_to(device).unwrap();
        first_searches_do_not_wait(&name, &ivf, &options);
        later_changes_do_not_wait(&name, ivf, &options);
    }
    later_changes_do_not_wait("exact", flat, &none);
    later_changes_do_not_wait("graph", graph, &none);
    assert_eq!(driver::violations(), Vec::<String>::new());
    let left = driver::usage(0);
    // The streams serve the next index.
    assert_eq!((left.bytes, left.allocations, left.kept_bytes), (0, 0, SEARCHES_KEEP), "{left:?}");
    kept_memory_is_free();
    assert_eq!(driver::violations(), Vec::<String>::new());
}
