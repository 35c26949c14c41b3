//! Shared-memory races, and sound kernels that come close to one.

use crate::Source;
use cuda_std::{
    Ptr, async_copy, atomic,
    emulator::{Access, Buffer, ViolationKind},
    kernel, mma, shared, thread, warp,
};

const HERE: Source = source!("races.rs");

/// The parts of a reported race: the reported access, the earlier access, and the thread and line of the earlier
/// access.
fn race(kind: ViolationKind) -> (Access, Access, u32, u32) {
    let ViolationKind::SharedRace { access, other_access, other_thread, other, .. } = kind else { panic!("{kind}") };
    assert_eq!(other.file, HERE.file);
    (access, other_access, other_thread, other.line)
}

/// Each thread writes its word and then reads the word `distance` further on. `sync` selects the synchronisation
/// between the two.
#[kernel]
unsafe fn neighbours(distance: u32, sync: u32) {
    let (t, count, array) = (thread::thread_idx_x(), thread::block_dim_x(), shared::dynamic::<u32>());
    // SAFETY: within bounds, all words written; without a barrier this is the race.
    unsafe {
        array.add(t).store(t); // FAULT: writer
        match sync {
            0 => {}
            1 => warp::sync_warp(warp::FULL_MASK),
            2 => drop(warp::shuffle_xor(warp::FULL_MASK, t, 1)),
            3 => warp::sync_warp(if t % 32 < 16 { 0x0000_ffff } else { 0xffff_0000 }),
            _ => thread::sync_threads(),
        }
        array.add((t + distance) % count).load(); // FAULT: reader
    }
}

#[test]
fn a_read_before_the_write() {
    // The emulator runs thread 0 first. Thread 0 reads a word that no thread has written yet, so the race is reported
    // as a read of uninitialised memory.
    let kind = HERE.fault(launch!(Neighbours { distance: 31, sync: 0 }, 1, 32), "neighbours", 0, 0, "reader");
    assert!(matches!(kind, ViolationKind::SharedUninitialised { .. }), "{kind}");
    let kind = HERE.fault(launch!(Neighbours { distance: 32, sync: 1 }, 1, 64), "neighbours", 0, 0, "reader");
    assert!(matches!(kind, ViolationKind::SharedUninitialised { .. }), "{kind}");
}

#[test]
fn a_warp_barrier_orders_a_warp_only() {
    launch!(Neighbours { distance: 1, sync: 1 }, 1, 32).unwrap();
    launch!(Neighbours { distance: 31, sync: 2 }, 1, 32).unwrap();
    launch!(Neighbours { distance: 33, sync: 4 }, 1, 64).unwrap();
    // Two halves: lane 15 reads lane 16's word.
    let kind = HERE.fault(launch!(Neighbours { distance: 1, sync: 3 }, 1, 32), "neighbours", 0, 15, "reader");
    assert_eq!(race(kind), (Access::Read, Access::Write, 16, HERE.line("writer")));
}

/// All words are initialised; then each thread writes its word and reads another thread's, without a barrier between.
#[kernel]
unsafe fn rounds(distance: u32, order: u32) {
    let (t, count, array) = (thread::thread_idx_x(), thread::block_dim_x(), shared::dynamic::<u32>());
    // SAFETY: within bounds, all words written; the missing barrier is the race.
    unsafe {
        array.add(t).store(0);
        thread::sync_threads();
        if order == 0 {
            array.add(t).store(1); // FAULT: first write
            array.add((t + distance) % count).load(); // FAULT: late read
        } else {
            array.add((t + distance) % count).load(); // FAULT: first read
            array.add(t).store(1); // FAULT: late write
        }
    }
}

#[test]
fn races_between_and_within_warps() {
    launch!(Rounds { distance: 0, order: 0 }, 1, 64).unwrap();
    // Thread 0 reads word 1, which thread 1 then writes.
    let kind = HERE.fault(launch!(Rounds { distance: 1, order: 0 }, 1, 64), "rounds", 0, 1, "first write");
    assert_eq!(race(kind), (Access::Write, Access::Read, 0, HERE.line("late read")));
    // Thread 1 reads word 0, which thread 0 has written.
    let kind = HERE.fault(launch!(Rounds { distance: 63, order: 0 }, 1, 64), "rounds", 0, 1, "late read");
    assert_eq!(race(kind), (Access::Read, Access::Write, 0, HERE.line("first write")));
    // Thread 32, of another warp, reads what thread 0 has written since the barrier.
    let kind = HERE.fault(launch!(Rounds { distance: 32, order: 1 }, 1, 64), "rounds", 0, 32, "first read");
    assert_eq!(race(kind), (Access::Read, Access::Write, 0, HERE.line("late write")));
}

/// All threads write one word.
#[kernel]
unsafe fn same_word() {
    // SAFETY: within bounds; the race is the fault.
    unsafe {
        shared::dynamic::<u32>().store(thread::thread_idx_x()); // FAULT: same word
    }
}

#[test]
fn two_writes() {
    let kind = HERE.fault(launch!(SameWord {}, 3, 32), "same_word", 0, 1, "same word");
    assert_eq!(race(kind), (Access::Write, Access::Write, 0, HERE.line("same word")));
}

/// Several threads of several warps read a word; one of them then writes it.
#[kernel]
unsafe fn many_readers(sync: u32) {
    let (t, word) = (thread::thread_idx_x(), shared::dynamic::<u32>());
    // SAFETY: within bounds, written; the missing barrier is the race.
    unsafe {
        if t == 0 {
            word.store(1);
        }
        thread::sync_threads();
        word.load(); // FAULT: many readers
        if sync == 1 {
            thread::sync_threads();
        } else {
            warp::sync_warp(warp::FULL_MASK);
        }
        if t == 70 {
            word.store(2); // FAULT: write under readers
        }
    }
}

#[test]
fn a_write_under_many_readers() {
    launch!(ManyReaders { sync: 1 }, 2, 96).unwrap();
    let kind = HERE.fault(launch!(ManyReaders { sync: 0 }, 2, 96), "many_readers", 0, 70, "write under readers");
    let (access, other, _, line) = race(kind);
    assert_eq!((access, other, line), (Access::Write, Access::Read, HERE.line("many readers")));
}

/// Threads write neighbouring bytes and halves of words, and then read each other's.
#[kernel]
unsafe fn bytes(distance: u32) {
    let (t, array) = (thread::thread_idx_x(), shared::dynamic::<u8>());
    // SAFETY: within bounds, all bytes written.
    unsafe {
        array.add(t).store(t as u8);
        thread::sync_threads();
        array.add(t).store(array.add(t).load() + 1);
        array.add(256).cast::<u16>().add(t).store(1);
        array.add((t + distance) % 64).load(); // FAULT: byte
    }
}

#[test]
fn bytes_of_a_word_are_apart() {
    launch!(Bytes { distance: 0 }, 2, 64).unwrap();
    let kind = HERE.fault(launch!(Bytes { distance: 63 }, 2, 64), "bytes", 0, 1, "byte");
    let ViolationKind::SharedRace { address, other_thread: 0, .. } = kind else { panic!("{kind}") };
    assert_eq!(address % 64, 0);
}

/// Atomics of all threads on one word, then a plain access; `sync` says whether a barrier stands between.
#[kernel]
unsafe fn counters(plain: u32, sync: u32) {
    let (t, word) = (thread::thread_idx_x(), shared::dynamic::<u32>());
    // SAFETY: within bounds, written; the missing barrier is the race.
    unsafe {
        if t == 0 {
            word.store(0);
        }
        thread::sync_threads();
        atomic::shared_add_u32(word, 1); // FAULT: atomic
        if sync == 1 {
            thread::sync_threads();
        }
        if t == 33 && plain == 1 {
            word.load(); // FAULT: plain read
        }
        if t == 33 && plain == 2 {
            word.store(0); // FAULT: plain write
        }
    }
}

#[test]
fn atomics_race_with_plain_accesses_only() {
    launch!(Counters { plain: 0, sync: 0 }, 1, 64).unwrap();
    for (plain, access, marker) in [(1, Access::Read, "plain read"), (2, Access::Write, "plain write")] {
        launch!(Counters { plain, sync: 1 }, 1, 64).unwrap();
        let kind = HERE.fault(launch!(Counters { plain, sync: 0 }, 1, 64), "counters", 0, 33, marker);
        let (this, other, _, line) = race(kind);
        assert_eq!((this, other, line), (access, Access::Atomic, HERE.line("atomic")));
    }
}

/// Order is transitive: lane 0 writes and synchronises with lane 1; lane 1 synchronises with lane 2; lane 2 reads.
#[kernel]
unsafe fn relay(broken: u32) {
    let (lane, word) = (warp::lane_id(), shared::dynamic::<u32>());
    // SAFETY: within bounds, written before it is read; without the second meeting this is the race.
    unsafe {
        if lane == 0 {
            word.store(7); // FAULT: relay writer
        }
        if lane < 2 {
            warp::sync_warp(0b011);
        }
        if lane == 1 || lane == 2 {
            if broken == 0 {
                warp::sync_warp(0b110);
            } else {
                warp::sync_warp(1 << lane);
            }
        }
        if lane == 2 {
            word.load(); // FAULT: relay reader
        }
    }
}

#[test]
fn order_is_transitive() {
    launch!(Relay { broken: 0 }, 1, 32).unwrap();
    let kind = HERE.fault(launch!(Relay { broken: 1 }, 1, 32), "relay", 0, 2, "relay reader");
    assert_eq!(race(kind), (Access::Read, Access::Write, 0, HERE.line("relay writer")));
}

/// Loads matrices that another lane wrote, with or without a barrier of the warp.
#[kernel]
unsafe fn matrix_rows(sync: u32) {
    let (lane, tile) = (warp::lane_id(), shared::dynamic::<u32>());
    // SAFETY: within bounds, all rows written; the missing barrier is the race.
    unsafe {
        for i in 0..4 {
            tile.add(4 * lane + i).store(0);
        }
        thread::sync_threads();
        tile.add(4 * (31 - lane)).store(1); // FAULT: row writer
        if sync == 1 {
            warp::sync_warp(warp::FULL_MASK);
        }
        mma::ldmatrix_x4(tile.add(4 * lane).cast()); // FAULT: row reader
        // The load synchronises all lanes.
        tile.add(4 * lane).store(2);
    }
}

#[test]
fn matrix_loads_take_part() {
    launch!(MatrixRows { sync: 1 }, 1, 32).unwrap();
    let result = launch!(MatrixRows { sync: 0 }, 1, 32);
    // Lane 16 writes row 15, which lane 15 has read.
    let kind = HERE.fault(result, "matrix_rows", 0, 16, "row writer");
    assert_eq!(race(kind), (Access::Write, Access::Read, 15, HERE.line("row reader")));
}

/// Refills a stage that slower threads may still read: the classic fault of a pipeline.
#[kernel]
unsafe fn refill(input: Ptr<u32>, sync: u32) {
    let (t, stage) = (thread::thread_idx_x(), shared::dynamic::<u32>());
    // SAFETY: within bounds; the missing barrier is the race.
    unsafe {
        async_copy::copy_4(stage.add(t).cast(), input.add(t as usize).cast());
        async_copy::wait_all();
        thread::sync_threads();
        stage.add((t + 32) % 64).load(); // FAULT: slow reader
        if sync == 1 {
            thread::sync_threads();
        }
        async_copy::copy_4(stage.add(t).cast(), input.add(t as usize).cast()); // FAULT: refill
        async_copy::wait_all();
    }
}

#[test]
fn a_stage_refilled_too_early() {
    let input = Buffer::<u32>::new(64);
    launch!(Refill { input: input.as_ptr(), sync: 1 }, 2, 64).unwrap();
    // The emulator runs the first warp to its end before the second: thread 32 is the slow one.
    let kind = HERE.fault(launch!(Refill { input: input.as_ptr(), sync: 0 }, 2, 64), "refill", 0, 32, "slow reader");
    assert_eq!(race(kind), (Access::Read, Access::Write, 0, HERE.line("refill")));
}
