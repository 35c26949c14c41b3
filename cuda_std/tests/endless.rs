//! Loops without end are stopped, and the message has their line. The time after which is the process's, so these tests
//! have a program of their own.

use std::time::Duration;

use cuda_std::emulator::{self, Buffer, Violation, ViolationKind};
use cuda_std::launch::{Kernel, KernelArgs, LaunchConfig};
use cuda_std::{PtrMut, global, kernel, shared, thread, warp};

/// Shuffles for ever, because no lane becomes 32.
#[kernel]
unsafe fn shuffles_for_ever() {
    let mut x = warp::lane_id();
    while x < 32 {
        x = warp::shuffle_xor(warp::FULL_MASK, x, 1); // LOOP: shuffles
    }
}

/// Passes barriers for ever, in two warps.
#[kernel]
unsafe fn barriers_for_ever() {
    let mut x = warp::lane_id();
    while x < 32 {
        thread::sync_threads(); // LOOP: barriers
        x ^= 1;
    }
}

/// Reads one word of global memory for ever.
#[kernel]
unsafe fn loads_for_ever(word: PtrMut<u32>) {
    // SAFETY: one value.
    unsafe {
        while global::load(*word) == 0 {} // LOOP: loads
    }
}

/// Reads one word of shared memory for ever.
#[kernel]
unsafe fn reads_for_ever() {
    let tile = shared::dynamic::<u32>();
    // SAFETY: one value of shared memory.
    unsafe {
        tile.store(3);
        while tile.load() == 3 {} // LOOP: reads
    }
}

/// The violation of a launch of one block.
fn stopped<A: KernelArgs>(kernel: &Kernel<A>, threads: u32, arguments: A) -> Violation {
    emulator::stop_after(Duration::from_millis(500));
    let config = LaunchConfig::linear(1, threads).with_shared(1024);
    // SAFETY: the kernels access the memory of their arguments only, which the tests keep.
    unsafe { emulator::launch(kernel, config, arguments) }.unwrap_err()
}

#[track_caller]
fn check(violation: &Violation, kernel: &str, name: &str) {
    let marker = format!("// LOOP: {name}");
    let line = include_str!("endless.rs").lines().position(|line| line.ends_with(&marker)).unwrap() + 1;
    assert_eq!((violation.kernel, violation.location.line as usize), (kernel, line), "{violation}");
    assert_eq!(*violation.kind, ViolationKind::Endless { milliseconds: 500 });
}

#[test]
fn shuffles() {
    check(&stopped(&ShufflesForEver::KERNEL, 32, ShufflesForEver {}), "shuffles_for_ever", "shuffles");
}

#[test]
fn barriers() {
    check(&stopped(&BarriersForEver::KERNEL, 64, BarriersForEver {}), "barriers_for_ever", "barriers");
}

#[test]
fn loads() {
    let mut word = Buffer::<u32>::new(1);
    let violation = stopped(&LoadsForEver::KERNEL, 1, LoadsForEver { word: word.as_mut_ptr() });
    check(&violation, "loads_for_ever", "loads");
}

#[test]
fn reads() {
    check(&stopped(&ReadsForEver::KERNEL, 1, ReadsForEver {}), "reads_for_ever", "reads");
}
