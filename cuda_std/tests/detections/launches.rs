//! Panics, refused launches, and the state after a violation.

use crate::Source;
use cuda_std::{
    PtrMut,
    emulator::{self, Buffer, ViolationKind},
    global, kernel,
    launch::LaunchConfig,
    shared_array, thread,
};

const HERE: Source = source!("launches.rs");

/// Indexes an array by the thread's number.
#[kernel]
unsafe fn panics(out: PtrMut<u32>) {
    let table = [10, 20, 30];
    let t = thread::thread_idx_x() as usize;
    let value = table[t]; // FAULT: index
    // SAFETY: three results.
    unsafe { global::store(out.add(t), value) }
}

#[test]
fn a_panic() {
    let mut out = Buffer::<u32>::new(3);
    launch!(Panics { out: out.as_mut_ptr() }, 1, 3).unwrap();
    let kind = HERE.fault(launch!(Panics { out: out.as_mut_ptr() }, 1, 4), "panics", 0, 3, "index");
    let ViolationKind::Panic { message } = kind else { panic!("{kind}") };
    assert_eq!(message, "index out of bounds: the len is 3 but the index is 3");
}

/// Blocks from 5 on fail.
#[kernel]
unsafe fn many_fail() {
    thread::sync_threads();
    assert!(thread::block_idx_x() < 5, "block {}", thread::block_idx_x()); // FAULT: assertion
}

#[test]
fn the_first_failing_block_is_reported() {
    for _ in 0..20 {
        let kind = HERE.fault(launch!(ManyFail {}, 1000, 32), "many_fail", 5, 0, "assertion");
        assert_eq!(kind, ViolationKind::Panic { message: "block 5".to_owned() });
    }
}

/// The values that a thread owns are dropped when the launch stops.
#[kernel]
unsafe fn owns(drops: PtrMut<u32>) {
    struct Owned(*mut u32);
    impl Drop for Owned {
        fn drop(&mut self) {
            // SAFETY: threads run one at a time.
            unsafe { *self.0 += 1 }
        }
    }
    let _owned = Owned(*drops);
    thread::sync_threads();
    assert_ne!(thread::thread_idx_x(), 10, "stop");
}

#[test]
fn stopped_threads_are_unwound() {
    let mut drops = Buffer::<u32>::new(1);
    launch!(Owns { drops: drops.as_mut_ptr() }, 1, 40).unwrap_err();
    assert_eq!(drops.to_vec(), [40]);
}

#[kernel(max_threads = 64)]
unsafe fn bounded() {}

/// A launch of `bounded`, and the line of the call.
fn configured(grid: [u64; 3], block: [u32; 3], shared_bytes: u32) -> ViolationKind {
    configured_in_clusters(LaunchConfig { grid, block, shared_bytes, cluster: 1 })
}

fn configured_in_clusters(config: LaunchConfig) -> ViolationKind {
    // SAFETY: the kernel does nothing.
    let result = unsafe { emulator::launch(&Bounded::KERNEL, config, Bounded {}) }; // FAULT: refused
    HERE.fault(result, "bounded", 0, 0, "refused")
}

#[test]
fn launches_that_no_gpu_takes() {
    let refused = |what, asked, limit| ViolationKind::LaunchLimit { what, asked, limit };
    assert_eq!(configured([0, 1, 1], [1, 1, 1], 0), refused("grid x", 0, 1));
    assert_eq!(configured([1, 65_536, 1], [1, 1, 1], 0), refused("grid y", 65_536, 65_535));
    assert_eq!(configured([1, 1, 1], [1, 0, 1], 0), refused("block y", 0, 1));
    assert_eq!(configured([1, 1, 1], [1, 1, 65], 0), refused("block z", 65, 64));
    assert_eq!(configured([1, 1, 1], [64, 32, 1], 0), refused("threads of a block", 2048, 1024));
    assert_eq!(configured([1, 1, 1], [65, 1, 1], 0), refused("threads of a block (max_threads)", 65, 64));
    assert_eq!(
        configured([1, 1, 1], [64, 1, 1], 227 * 1024 + 1),
        refused("dynamic shared memory", 227 * 1024 + 1, 227 * 1024)
    );
    for (blocks, cluster) in [(2, 0), (6, 3), (6, 4), (32, 32)] {
        let kind = configured_in_clusters(LaunchConfig::linear(blocks, 32).with_cluster(cluster));
        assert_eq!(kind, refused("blocks of a cluster, a power of two that divides grid x,", cluster.into(), 16));
    }
}

/// 48 KiB and 16 bytes of static arrays.
#[kernel]
unsafe fn large_arrays() {
    let _first = shared_array!(u64, 6144);
    let _second = shared_array!(u8, 16); // FAULT: too large
}

#[test]
fn too_much_static_shared_memory() {
    let kind = HERE.fault(launch!(LargeArrays {}, 1, 32), "large_arrays", 0, 0, "too large");
    assert_eq!(kind, ViolationKind::StaticSharedTooLarge { asked: 48 * 1024 + 16, limit: 48 * 1024 });
}

#[test]
fn a_violation_reads_as_one_line() {
    let mut out = Buffer::<u32>::new(3);
    let violation = launch!(Panics { out: out.as_mut_ptr() }, 1, 4).unwrap_err();
    let line = HERE.line("index");
    let place = format!("kernel panics, block [0, 0, 0], thread [3, 0, 0], at {}:{line}:", HERE.file);
    assert!(violation.to_string().starts_with(&place), "{violation}");
}

/// Kernels run in the emulator only.
#[test]
#[should_panic(expected = "run inside emulator::launch only")]
fn device_functions_outside_a_launch() {
    thread::thread_idx_x();
}

/// Launches from several OS threads and from rayon threads do not disturb each other, and buffers may be made at the
/// same time.
#[test]
fn launches_at_the_same_time() {
    let one = |id: usize| {
        let mut out = Buffer::<u32>::new(3);
        if id.is_multiple_of(3) {
            launch!(Panics { out: out.as_mut_ptr() }, 20, 4).unwrap_err();
        } else {
            launch!(Panics { out: out.as_mut_ptr() }, 20, 3).unwrap();
            assert_eq!(out.to_vec(), [10, 20, 30]);
        }
    };
    std::thread::scope(|scope| {
        for thread in 0..4 {
            scope.spawn(move || (0..50).for_each(|i| one(thread + i)));
        }
    });
    rayon::scope(|scope| (0..50).for_each(|id| scope.spawn(move |_| one(id))));
}
