//! Lack of host memory: each large allocation of each call is refused once, and the call returns a typed error.
//!
//! The allocator of this program counts allocations from [`LARGE`] bytes on and refuses the one that a test names.
//! Inputs are such that what grows with them (rows, queries · k, lists · dimension) is larger than that, and what does
//! not is smaller. A library that allocates by `vec!` or `collect` would end this program.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};

use warpann::ivf::{Encoding, IvfIndex, IvfIndexBuilder, Refiner};
use warpann::kmeans::KMeans;
use warpann::pq::{PqTraining, ProductQuantizer};
use warpann::{
    Device, Error, FlatIndex, GraphIndex, Index, IndexWriter, Kind, Metric, Neighbors, Result, ShiftedIndex,
};

/// Bytes from which an allocation is counted.
const LARGE: usize = 150_000;

static ARMED: AtomicBool = AtomicBool::new(false);
static SEEN: AtomicUsize = AtomicUsize::new(0);
static REFUSED: AtomicUsize = AtomicUsize::new(usize::MAX);

/// The system's allocator, which refuses one large allocation.
struct Refusing;

fn refuses(size: usize) -> bool {
    size >= LARGE
        && ARMED.load(Ordering::Relaxed)
        && SEEN.fetch_add(1, Ordering::Relaxed) == REFUSED.load(Ordering::Relaxed)
}

// SAFETY: every request goes to the system's allocator unchanged, or is refused by a null pointer, as the trait allows.
unsafe impl GlobalAlloc for Refusing {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller promises what the system's allocator asks for.
        if refuses(layout.size()) { std::ptr::null_mut() } else { unsafe { System.alloc(layout) } }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller promises what the system's allocator asks for.
        if refuses(layout.size()) { std::ptr::null_mut() } else { unsafe { System.alloc_zeroed(layout) } }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller promises what the system's allocator asks for.
        if refuses(size) { std::ptr::null_mut() } else { unsafe { System.realloc(memory, layout, size) } }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the memory came from the system's allocator.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Refusing = Refusing;

/// One test at a time: all allocations of the program are counted.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// The result of `call` while large allocation number `refused` fails, and the number of its large allocations.
fn run<V>(refused: usize, call: impl FnOnce() -> Result<V>) -> (Result<V>, usize) {
    REFUSED.store(refused, Ordering::Relaxed);
    SEEN.store(0, Ordering::Relaxed);
    ARMED.store(true, Ordering::Relaxed);
    let result = call();
    ARMED.store(false, Ordering::Relaxed);
    (result, SEEN.load(Ordering::Relaxed))
}

/// Makes each large allocation of `call`, which is given what `state` returns, fail once; then lets all succeed. The
/// results must be the same; `least` is how many large allocations there must be.
fn each_failure<S, V: PartialEq>(
    what: &str,
    least: usize,
    mut state: impl FnMut() -> S,
    mut call: impl FnMut(&mut S) -> Result<V>,
) {
    let (expected, count) = run(usize::MAX, || call(&mut state()));
    let expected = expected.unwrap_or_else(|error| panic!("{what}: {error}"));
    assert!(count >= least, "{what}: {count} large allocations");
    for refused in 0..count {
        let mut state = state();
        let (result, seen) = run(refused, || call(&mut state));
        match result {
            Err(Error::OutOfHostMemory { asked }) => assert!(asked >= LARGE as u64, "{what}, {refused}: {asked}"),
            Err(Error::ResultTooLarge { .. }) => {}
            Err(error) => panic!("{what}, allocation {refused} of {count}: {error}"),
            // Parallel work may have allocated less this time.
            Ok(_) => assert!(seen <= refused, "{what}: allocation {refused} of {count} failed unnoticed"),
        }
        // The failed call has left everything as it was.
        let again = call(&mut state).unwrap_or_else(|error| panic!("{what}, after {refused}: {error}"));
        assert!(again == expected, "{what}: another result after allocation {refused} of {count} has failed");
    }
}

const ROWS: usize = 40_000;
const DIM: usize = 4;

/// Rows that differ, in no order.
fn rows(count: usize) -> Vec<f32> {
    (0..count * DIM).map(|at| (at as f32 * 0.7).sin() + (at % 17) as f32).collect()
}

fn found(neighbors: Neighbors) -> (Vec<u64>, Vec<u32>) {
    (neighbors.ids, neighbors.distances.into_iter().map(f32::to_bits).collect())
}

#[test]
fn exact_search() {
    let _alone = alone();
    let base = rows(ROWS);
    for metric in Metric::OF_NUMBERS {
        let empty = || FlatIndex::<f32>::new(DIM, metric, Device::Cpu).unwrap();
        let least = if metric == Metric::Cosine { 4 } else { 2 };
        each_failure("add", least, empty, |index| index.add(&base).map(|()| index.len()));
    }
    let mut index = FlatIndex::<f32>::new(DIM, Metric::L2, Device::Cpu).unwrap();
    index.add(&base[..200 * DIM]).unwrap();
    each_failure("search", 2, || (), |()| index.search(&base, 2).map(found));
}

/// Changes an index version after version. The first change copies its arrays, later ones take over those of a former
/// version, unless a reader still has them. Both sets of arrays are enlarged once.
fn check_versions<I: Kind<Element = f32>>(what: &str, index: Index<I>, base: &[f32]) {
    let mut writer = IndexWriter::new(index);
    let change = |writer: &mut IndexWriter<Index<I>>, version: usize| {
        let rows = &base[version * DIM..][..2 * DIM];
        let ids = [7 * version as u64, (base.len() / DIM + version) as u64];
        let (changed, large) = run(usize::MAX, || writer.change(|index| index.upsert(rows, &ids)));
        assert_eq!(changed.unwrap(), 1);
        large
    };
    let copies: Vec<usize> = (0..8).map(|version| change(&mut writer, version)).collect();
    assert!(copies[0] > 0 && copies[3..] == [0; 5], "{what}: large allocations of changes {copies:?}");
    let held = writer.current();
    let copies: Vec<usize> = (8..13).map(|version| change(&mut writer, version)).collect();
    // The copy is enlarged when its turn comes.
    let (is_copied, others) = (copies[1] > 0, [copies[0], copies[2], copies[4]]);
    assert!(is_copied && others == [0; 3], "{what}, one is held: {copies:?}");
    drop(held);
}

#[test]
fn versions_take_over_the_memory_of_former_ones() {
    let _alone = alone();
    let base = rows(ROWS);
    for metric in Metric::OF_NUMBERS {
        let mut index = FlatIndex::<f32>::new(DIM, metric, Device::Cpu).unwrap();
        index.add(&base).unwrap();
        check_versions(&format!("flat, {metric:?}"), index, &base);
    }
    let base = &base[..12_000 * DIM];
    for codes in [true, false] {
        let builder = GraphIndex::<f32>::builder(DIM).device(Device::Cpu).exact_ratio(0).degree(8).codes(codes);
        let mut index = builder.build().unwrap();
        index.add(base).unwrap();
        check_versions(&format!("graph, codes {codes}"), index, base);
    }
}

fn builder(encoding: Encoding, metric: Metric) -> IvfIndexBuilder<f32> {
    IvfIndex::<f32>::builder(DIM, 16).encoding(encoding).metric(metric).iterations(1).device(Device::Cpu)
}

const PQ: Encoding = Encoding::Pq { sub_quantizers: 4, bits: 4, rotate: false };

#[test]
fn adding_to_inverted_files() {
    let _alone = alone();
    let base = rows(ROWS);
    let ids: Vec<u64> = (0..ROWS as u64).map(|id| 3 * id + 7).collect();
    for (encoding, metric) in [(Encoding::Flat, Metric::L2), (PQ, Metric::L2), (PQ, Metric::Cosine)] {
        let mut trained = builder(encoding, metric).build().unwrap();
        trained.train(&base[..400 * DIM]).unwrap();
        let file = tempfile::NamedTempFile::new().unwrap();
        trained.save(file.path()).unwrap();
        let empty = || IvfIndex::<f32>::load(file.path(), Device::Cpu, None).unwrap();
        let what = format!("{encoding:?}, {metric:?}");
        each_failure(&format!("{what}: add"), 4, empty, |index| index.add(&base).map(|()| index.len()));
        each_failure(&format!("{what}: ids"), 4, empty, |index| index.add_with_ids(&base, &ids).map(|()| index.len()));
    }
}

#[test]
fn refining() {
    let _alone = alone();
    let base = rows(ROWS);
    // Ids that ascend are not copied.
    let ids: Vec<u64> = (0..ROWS as u64).rev().map(|id| 3 * id + 7).collect();
    let rough = Neighbors { k: 2, ids: ids[..30_000].to_vec(), distances: vec![0.0; 30_000] };
    each_failure(
        "refine",
        3,
        || (),
        |()| {
            let refiner = Refiner::new(Metric::L2, DIM, &base)?.with_ids(&ids)?;
            refiner.refine(&base[..15_000 * DIM], &rough, 2).map(found)
        },
    );
}

#[test]
fn product_quantizers() {
    let _alone = alone();
    let base = rows(ROWS);
    let settings = PqTraining::new(4).bits(4).iterations(1).device(Device::Cpu);
    let quantizer = ProductQuantizer::train(&settings, &base[..400 * DIM], DIM).unwrap();
    let many = rows(2 * ROWS);
    each_failure("encode", 1, || (), |()| quantizer.encode(&many, Device::Cpu));
    let codes = quantizer.encode(&base, Device::Cpu).unwrap();
    each_failure("decode", 1, || (), |()| quantizer.decode(&codes));
}

#[test]
fn assigning() {
    let _alone = alone();
    let base = rows(ROWS);
    let clustering = KMeans::new(4).iterations(1).device(Device::Cpu).train(&base[..400 * DIM], DIM).unwrap();
    each_failure("assign", 2, || (), |()| clustering.assign(&base, Device::Cpu));
}

#[test]
fn shifted_sort() {
    let _alone = alone();
    let base = rows(ROWS);
    let empty = || ShiftedIndex::builder(DIM).shifts(2).device(Device::Cpu).build().unwrap();
    each_failure("add", 8, empty, |index| index.add(&base).map(|()| index.len()));
    let mut index = empty();
    index.add(&base).unwrap();
    each_failure("self join", 4, || (), |()| index.self_join(1).map(found));
}
