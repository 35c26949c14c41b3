//! Threads that the library starts: none for the CPU in the caller's rayon pool, and none where [`allow_threads`]
//! forbids them.

#![cfg(target_os = "linux")]

use warpann::SearchOptions;
use warpann::ivf::IvfIndex;

use warpann::{Device, FlatIndex, Metric, Neighbors, Placement, allow_threads};

const DIM: usize = 64;

/// Number of threads of this process with the name of the library's threads.
fn own_threads() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").expect("Linux lists threads");
    let name = |task: std::io::Result<std::fs::DirEntry>| std::fs::read_to_string(task.ok()?.path().join("comm")).ok();
    tasks.filter_map(name).filter(|name| name.trim() == "warpann").count()
}

/// `count` vectors of components from 0 to 1.
fn vectors(count: usize) -> Vec<f32> {
    (0..count * DIM).map(|at| (at as u32).wrapping_mul(2_654_435_761) as f32 / u32::MAX as f32).collect()
}

/// Exact search on `placement`. The queries have more bytes than one thread checks.
fn exact(placement: &Placement, base: usize, queries: usize) -> Neighbors {
    let mut index = FlatIndex::<f32>::new(DIM, Metric::L2, placement.clone()).unwrap();
    index.add(&vectors(base)).unwrap();
    index.search(&vectors(queries), 5).unwrap()
}

/// A new inverted file, and a search of it.
fn inverted(placement: &Placement) -> Neighbors {
    let mut index = IvfIndex::<f32>::builder(DIM, 8).device(placement.clone()).iterations(3).build().unwrap();
    index.train(&vectors(2_000)).unwrap();
    index.add(&vectors(2_000)).unwrap();
    index.search_with(&vectors(1_500), 5, &SearchOptions::new().probes(4)).unwrap()
}

/// One test, because the switch and the threads are those of the process.
#[test]
fn threads_of_the_library_are_optional() {
    let cpu = Placement::from(Device::Cpu);
    let pool = rayon::ThreadPoolBuilder::new().num_threads(2).build().unwrap();
    let in_pool = pool.install(|| (exact(&cpu, 3_000, 1_500), inverted(&cpu)));
    assert_eq!(own_threads(), 0, "the CPU in a pool started threads");

    let several: Placement = "cpu+cpu,cpu+cpu".parse().unwrap();
    let emulator = Placement::from(Device::Emulator);
    allow_threads(false);
    let without = [exact(&cpu, 3_000, 1_500), exact(&several, 3_000, 1_500), exact(&emulator, 200, 70)];
    assert_eq!(inverted(&several), in_pool.1);
    let waiting = pool.install(|| exact(&several, 3_000, 1_500));
    assert_eq!(own_threads(), 0, "threads were started though they are not allowed");
    assert_eq!((&without[0], &without[1], &waiting), (&in_pool.0, &in_pool.0, &in_pool.0));

    allow_threads(true);
    let with = [exact(&cpu, 3_000, 1_500), exact(&several, 3_000, 1_500), exact(&emulator, 200, 70)];
    assert!(own_threads() > 0, "no thread was started, so this test shows nothing");
    assert_eq!(with, without);
}
