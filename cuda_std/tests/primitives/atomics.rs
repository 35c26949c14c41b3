use cuda_std::{
    PtrMut, atomic,
    emulator::{self, Buffer},
    global::{self, U32x4},
    kernel,
    launch::LaunchConfig,
    shared_array, thread,
};

const BLOCKS: u32 = 20;
const THREADS: u32 = 96;
const ALL: u32 = BLOCKS * THREADS;

/// Every thread adds, compares and sets bits with its number; counters hold the results.
#[kernel]
unsafe fn on_global(
    words: PtrMut<u32>,
    longs: PtrMut<u64>,
    float: PtrMut<f32>,
    tickets: PtrMut<u32>,
    chosen: PtrMut<u32>,
) {
    let i = thread::block_idx_x() * thread::block_dim_x() + thread::thread_idx_x();
    // SAFETY: six words, three longs, one float, a ticket a thread.
    unsafe {
        let ticket = atomic::add_u32(*words, 1);
        global::store(tickets.add(ticket as usize), i);
        atomic::min_u32(words.add(1), 1000 + i);
        atomic::max_u32(words.add(2), 1000 + i);
        atomic::or_u32(words.add(3), 1 << (i % 32));
        if atomic::exchange_u32(words.add(4), 1) == 0 {
            atomic::add_u32(*chosen, 1);
        }
        if atomic::cas_u32(words.add(5), 7, i) == 7 {
            atomic::add_u32(chosen.add(1), 1);
        }
        atomic::add_u64(*longs, u64::from(i) << 32);
        atomic::min_u64(longs.add(1), u64::from(i + 5) << 33);
        atomic::max_u64(longs.add(2), u64::from(i + 5) << 33);
        // Each term is a multiple of 0.5, so the sum is exact in any order.
        atomic::add_f32(*float, 0.5 * i as f32);
    }
}

#[test]
fn global_atomics() {
    let mut words = Buffer::from_slice(&[0u32, u32::MAX, 0, 0, 0, 7]);
    let mut longs = Buffer::from_slice(&[0u64, u64::MAX, 0]);
    let mut float = Buffer::<f32>::new(1);
    let mut tickets = Buffer::<u32>::new_poisoned(ALL as usize);
    let mut chosen = Buffer::<u32>::new(2);
    let launch = OnGlobal {
        words: words.as_mut_ptr(),
        longs: longs.as_mut_ptr(),
        float: float.as_mut_ptr(),
        tickets: tickets.as_mut_ptr(),
        chosen: chosen.as_mut_ptr(),
    };
    let config = LaunchConfig::linear(BLOCKS.into(), THREADS);
    // SAFETY: six words, three longs, one float, a ticket a thread.
    let stats = unsafe { emulator::launch(&OnGlobal::KERNEL, config, launch) }.unwrap();
    let words = words.to_vec();
    assert_eq!(words[..5], [ALL, 1000, 1000 + ALL - 1, u32::MAX, 1]);
    assert!(words[5] < ALL);
    assert_eq!(chosen.to_vec(), [1, 1]);
    let sum = u64::from(ALL - 1) * u64::from(ALL) / 2;
    assert_eq!(longs.to_vec(), [sum << 32, 5 << 33, u64::from(ALL + 4) << 33]);
    assert_eq!(float.to_vec(), [0.5 * sum as f32]);
    let mut tickets = tickets.to_vec();
    tickets.sort_unstable();
    assert_eq!(tickets, (0..ALL).collect::<Vec<_>>());
    // Ten operations for each thread, and one more for each of two threads.
    assert_eq!(stats.global_atomics, u64::from(10 * ALL + 2));
}

/// Atomic operations on shared memory; each block writes one row of results.
#[kernel]
unsafe fn on_shared(out: PtrMut<u64>) {
    let t = thread::thread_idx_x();
    let (words, long) = (shared_array!(u32, 4), shared_array!(u64, 1));
    // SAFETY: four words, one long; written before a barrier, read after one. Five results a block.
    unsafe {
        if t == 0 {
            words.store(0);
            words.add(1).store(u32::MAX);
            words.add(2).store(0);
            words.add(3).store(5);
            long.store(u64::MAX);
        }
        thread::sync_threads();
        atomic::shared_add_u32(words, t);
        atomic::shared_min_u32(words.add(1), 50 + t);
        atomic::shared_max_u32(words.add(2), 50 + t);
        atomic::shared_min_u64(long, u64::from(200 - t) << 32);
        if atomic::shared_cas_u32(words.add(3), 5, 9) == 5 {
            atomic::shared_add_u32(words, 1 << 20);
        }
        thread::sync_threads();
        if t == 0 {
            let row = out.add(5 * thread::block_idx_x() as usize);
            for i in 0..4 {
                global::store(row.add(i as usize), words.add(i).load().into());
            }
            global::store(row.add(4), long.load());
        }
    }
}

#[test]
fn shared_atomics() {
    let mut out = Buffer::<u64>::new(5 * BLOCKS as usize);
    let config = LaunchConfig::linear(BLOCKS.into(), THREADS);
    // SAFETY: five results a block.
    let stats = unsafe { emulator::launch(&OnShared::KERNEL, config, OnShared { out: out.as_mut_ptr() }) }.unwrap();
    let sum = u64::from(THREADS * (THREADS - 1) / 2);
    // One thread of each block changed the fourth word.
    let row = [sum + (1 << 20), 50, u64::from(50 + THREADS - 1), 9, u64::from(200 - THREADS + 1) << 32];
    assert_eq!(out.to_vec(), row.repeat(BLOCKS as usize));
    assert_eq!(stats.shared_atomics, u64::from(5 * ALL + BLOCKS));
    assert_eq!(stats.barriers, u64::from(2 * BLOCKS));
}

/// Every thread lowers all four words and loads them, without a barrier between its loads and the atomics of other
/// threads.
#[kernel]
unsafe fn while_others_write(out: PtrMut<u32>) {
    let t = thread::thread_idx_x();
    let words = shared_array!(U32x4, 2);
    // SAFETY: two vectors, written before a barrier; a result a thread.
    unsafe {
        if t == 0 {
            words.store(U32x4([0; 4]));
            words.add(1).store(U32x4([u32::MAX; 4]));
        }
        thread::sync_threads();
        let lowered = words.add(1);
        for i in 0..4 {
            atomic::shared_min_u32(lowered.cast::<u32>().add(i), 1000 * i + t);
        }
        let seen = atomic::shared_load_u32x4(lowered).0;
        let third = atomic::shared_load_u32(lowered.cast::<u32>().add(2));
        let good = (0..4).all(|i| seen[i as usize] >= 1000 * i && seen[i as usize] <= 1000 * i + t);
        global::store(out.add(t as usize), u32::from(good && third <= seen[2] && third >= 2000));
    }
}

#[test]
fn shared_loads_may_race_with_atomics() {
    let mut out = Buffer::<u32>::new(THREADS as usize);
    let config = LaunchConfig::linear(1, THREADS);
    // SAFETY: a result a thread.
    unsafe { emulator::launch(&WhileOthersWrite::KERNEL, config, WhileOthersWrite { out: out.as_mut_ptr() }) }.unwrap();
    assert_eq!(out.to_vec(), [1; THREADS as usize]);
}
