//! Collectives of a part of the warp, in branches and blocks that are not whole warps.

use crate::one_block;
use cuda_std::{
    PtrMut,
    emulator::{self, Buffer},
    global, kernel,
    launch::LaunchConfig,
    thread, warp,
};

/// The two halves of the warp run different loops with different numbers of turns, and then synchronise.
#[kernel]
unsafe fn halves(out: PtrMut<u32>) {
    let lane = warp::lane_id();
    let mut value = lane;
    if lane < 16 {
        for distance in [1, 2, 4, 8] {
            value += warp::shuffle_xor(0x0000_ffff, value, distance);
        }
    } else {
        value = warp::reduce_max(0xffff_0000, value);
        value = warp::shuffle_idx(0xffff_0000, value + lane, 17);
    }
    let total = warp::reduce_add(warp::FULL_MASK, value);
    // SAFETY: 64 results, lane < 32.
    unsafe {
        global::store(out.add(lane as usize), value);
        global::store(out.add(32 + lane as usize), total);
    }
}

#[test]
fn halves_diverge_and_meet() {
    let mut out = Buffer::<u32>::new(64);
    // SAFETY: 64 results.
    unsafe { emulator::launch(&Halves::KERNEL, one_block(32, 0), Halves { out: out.as_mut_ptr() }) }.unwrap();
    let low = (0..16).sum::<u32>();
    let expected = [[low; 16], [31 + 17; 16], [16 * (low + 48); 16], [16 * (low + 48); 16]].concat();
    assert_eq!(out.to_vec(), expected);
}

/// Lane l does l rounds of collectives with the lanes that still go on.
#[kernel]
unsafe fn staircase(out: PtrMut<u32>) {
    let lane = warp::lane_id();
    let mut rounds = 0;
    while rounds < lane {
        let still = u32::MAX << (rounds + 1);
        rounds += warp::ballot(still, true).count_ones() / still.count_ones();
    }
    warp::sync_warp(warp::FULL_MASK);
    // SAFETY: 32 results.
    unsafe { global::store(out.add(lane as usize), rounds) }
}

#[test]
fn lanes_leave_a_loop_one_by_one() {
    let mut out = Buffer::<u32>::new(32);
    // SAFETY: 32 results.
    unsafe { emulator::launch(&Staircase::KERNEL, one_block(32, 0), Staircase { out: out.as_mut_ptr() }) }.unwrap();
    assert_eq!(out.to_vec(), (0..32).collect::<Vec<_>>());
}

/// Sums the thread numbers of each warp, also of a last warp that is not whole.
#[kernel]
unsafe fn ragged(out: PtrMut<u32>, threads: u32) {
    let t = thread::thread_idx_x();
    let last = threads / 32;
    let mask = if warp::warp_id() == last { (1 << (threads % 32)) - 1 } else { warp::FULL_MASK };
    let sum = warp::reduce_add(mask, t);
    thread::sync_threads();
    // SAFETY: one result a thread.
    unsafe { global::store(out.add(t as usize), sum) }
}

#[test]
fn blocks_that_are_not_whole_warps() {
    for threads in [1u32, 31, 33, 40, 63, 1000] {
        let mut out = Buffer::<u32>::new(threads as usize);
        let launch = Ragged { out: out.as_mut_ptr(), threads };
        // SAFETY: one result a thread.
        unsafe { emulator::launch(&Ragged::KERNEL, one_block(threads, 0), launch) }.unwrap();
        for (t, sum) in out.to_vec().into_iter().enumerate() {
            let first = t as u32 / 32 * 32;
            assert_eq!(sum, (first..threads.min(first + 32)).sum::<u32>(), "thread {t} of {threads}");
        }
    }
}

/// Stores the six indices of each thread.
#[kernel]
unsafe fn indices(out: PtrMut<u32>) {
    let dims = [thread::block_dim_x(), thread::block_dim_y(), thread::block_dim_z()];
    let in_block = thread::thread_idx_x() + dims[0] * (thread::thread_idx_y() + dims[1] * thread::thread_idx_z());
    let block = thread::block_idx_x()
        + thread::grid_dim_x() * (thread::block_idx_y() + thread::grid_dim_y() * thread::block_idx_z());
    let row = (block * dims[0] * dims[1] * dims[2] + in_block) as usize;
    let values = [
        thread::thread_idx_x(),
        thread::thread_idx_y(),
        thread::thread_idx_z(),
        thread::block_idx_x(),
        thread::block_idx_y(),
        thread::block_idx_z() + 100 * thread::grid_dim_z(),
    ];
    for (i, value) in values.into_iter().enumerate() {
        // SAFETY: six results a thread.
        unsafe { global::store(out.add(6 * row + i), value) }
    }
}

#[test]
fn three_dimensions() {
    let config = LaunchConfig { grid: [3, 2, 2], block: [5, 3, 4], shared_bytes: 0, cluster: 1 };
    let mut out = Buffer::<u32>::new_poisoned(6 * 12 * 60);
    // SAFETY: six results a thread.
    unsafe { emulator::launch(&Indices::KERNEL, config, Indices { out: out.as_mut_ptr() }) }.unwrap();
    let mut expected = Vec::new();
    for (bz, by, bx) in itertools(2, 2, 3) {
        for (tz, ty, tx) in itertools(4, 3, 5) {
            expected.extend([tx, ty, tz, bx, by, bz + 200]);
        }
    }
    assert_eq!(out.to_vec(), expected);
}

/// All triples below the bounds, the last fastest.
fn itertools(a: u32, b: u32, c: u32) -> impl Iterator<Item = (u32, u32, u32)> {
    (0..a).flat_map(move |i| (0..b).flat_map(move |j| (0..c).map(move |k| (i, j, k))))
}

/// Lane 0 of the block waits for what its last thread stores; another warp or the same one.
#[kernel]
unsafe fn wait_for_store(flag: PtrMut<u32>) {
    // SAFETY: one value.
    unsafe {
        if thread::thread_idx_x() == 0 {
            while global::load_volatile(*flag) == 0 {}
            thread::fence();
            global::store_volatile(*flag, 2);
        } else if thread::thread_idx_x() == thread::block_dim_x() - 1 {
            global::store_volatile(*flag, 1);
        }
    }
    thread::sync_threads();
}

#[test]
fn waiting_loops_make_progress() {
    for threads in [2, 32, 33, 256] {
        let mut flag = Buffer::<u32>::new(1);
        let launch = WaitForStore { flag: flag.as_mut_ptr() };
        // SAFETY: one value.
        unsafe { emulator::launch(&WaitForStore::KERNEL, one_block(threads, 0), launch) }.unwrap();
        assert_eq!(flag.to_vec(), [2], "{threads} threads");
    }
}

/// Each block waits for the one before it.
#[kernel]
unsafe fn chain(done: PtrMut<u32>) {
    let block = thread::block_idx_x();
    // SAFETY: one value.
    unsafe {
        if thread::thread_idx_x() == 0 {
            while atomic_is_not(*done, block) {}
        }
        thread::sync_threads();
        if thread::thread_idx_x() == 0 {
            global::store_volatile(*done, block + 1);
        }
    }
}

/// # Safety
/// `p` is one value in global memory.
unsafe fn atomic_is_not(p: *mut u32, expected: u32) -> bool {
    // SAFETY: same contract.
    unsafe { cuda_std::atomic::cas_u32(p, expected, expected) != expected }
}

#[test]
fn blocks_can_wait_for_earlier_blocks() {
    let mut done = Buffer::<u32>::new(1);
    let config = LaunchConfig::linear(100, 64);
    // SAFETY: one value.
    unsafe { emulator::launch(&Chain::KERNEL, config, Chain { done: done.as_mut_ptr() }) }.unwrap();
    assert_eq!(done.to_vec(), [100]);
}
