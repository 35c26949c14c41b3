//! Races between threads of one block in global memory, and sound kernels that come close to one.

use crate::Source;
use cuda_std::{
    PtrMut, async_copy, atomic,
    emulator::{Access, Buffer, ViolationKind},
    global, kernel, shared, thread, warp,
};

const HERE: Source = source!("global_races.rs");

/// The parts of a reported race: the reported access, the earlier access, and the thread and line of the earlier
/// access.
fn race(kind: ViolationKind) -> (Access, Access, u32, u32) {
    let ViolationKind::GlobalRace { access, other_access, other_thread, other, .. } = kind else { panic!("{kind}") };
    assert_eq!(other.file, HERE.file);
    (access, other_access, other_thread, other.line)
}

/// Each thread writes its word and then reads the word `distance` further on, or reads its word and then writes that
/// one. `sync` selects the synchronisation between the two.
#[kernel]
unsafe fn neighbours(array: PtrMut<u32>, distance: u32, sync: u32, write_first: u32) {
    let (t, count) = (thread::thread_idx_x(), thread::block_dim_x());
    let own = array.wrapping_add((thread::block_idx_x() * count + t) as usize);
    let other = array.wrapping_add((thread::block_idx_x() * count + (t + distance) % count) as usize);
    // SAFETY: within bounds; without a barrier this is the race.
    unsafe {
        if write_first == 1 {
            global::store(own, t); // FAULT: writer
        } else {
            global::load(own); // FAULT: reader
        }
        match sync {
            0 => {}
            1 => warp::sync_warp(warp::FULL_MASK),
            2 => drop(warp::shuffle_xor(warp::FULL_MASK, t, 1)),
            3 => warp::sync_warp(if t % 32 < 16 { 0x0000_ffff } else { 0xffff_0000 }),
            4 => thread::sync_threads(),
            _ => thread::fence(),
        }
        if write_first == 1 {
            global::load(other); // FAULT: late reader
        } else {
            global::store(other, t); // FAULT: late writer
        }
    }
}

#[test]
fn reads_and_writes() {
    let mut array = Buffer::<u32>::new(192);
    let p = array.as_mut_ptr();
    let run = |threads, distance, sync, write_first| {
        launch!(Neighbours { array: p, distance, sync, write_first }, 3, threads)
    };
    for write_first in [0, 1] {
        run(64, 0, 0, write_first).unwrap();
        run(32, 1, 1, write_first).unwrap();
        run(32, 31, 2, write_first).unwrap();
        run(64, 33, 4, write_first).unwrap();
    }
    // Thread 0 reads word 1 of its block, which thread 1 then writes.
    let kind = HERE.fault(run(64, 1, 0, 1), "neighbours", 0, 1, "writer");
    assert_eq!(race(kind), (Access::Write, Access::Read, 0, HERE.line("late reader")));
    // Thread 0 writes word 1 before thread 1 reads it.
    let kind = HERE.fault(run(64, 1, 0, 0), "neighbours", 0, 1, "reader");
    assert_eq!(race(kind), (Access::Read, Access::Write, 0, HERE.line("late writer")));
    // Thread 1 reads word 0, which thread 0 has written.
    let kind = HERE.fault(run(64, 63, 0, 1), "neighbours", 0, 1, "late reader");
    assert_eq!(race(kind), (Access::Read, Access::Write, 0, HERE.line("writer")));
    // A barrier of a warp does not order accesses of different warps.
    let kind = HERE.fault(run(64, 32, 1, 1), "neighbours", 0, 32, "writer");
    assert_eq!(race(kind), (Access::Write, Access::Read, 0, HERE.line("late reader")));
    // A barrier of half a warp does not order accesses of the two halves.
    let kind = HERE.fault(run(32, 1, 3, 0), "neighbours", 0, 15, "late writer");
    assert_eq!(race(kind), (Access::Write, Access::Read, 16, HERE.line("reader")));
}

/// All threads of each block write one word of it.
#[kernel]
unsafe fn same_word(out: PtrMut<u32>, of_warp: u32) {
    let t = thread::thread_idx_x();
    // SAFETY: within bounds; the race is the fault.
    unsafe {
        if of_warp == 0 || t.is_multiple_of(32) {
            global::store(out.wrapping_add(thread::block_idx_x() as usize), t); // FAULT: same word
        }
    }
}

#[test]
fn two_writes() {
    let mut out = Buffer::<u32>::new(3);
    launch!(SameWord { out: out.as_mut_ptr(), of_warp: 1 }, 3, 32).unwrap();
    for (of_warp, thread) in [(0, 1), (1, 32)] {
        let result = launch!(SameWord { out: out.as_mut_ptr(), of_warp }, 3, 64);
        let kind = HERE.fault(result, "same_word", 0, thread, "same word");
        assert_eq!(race(kind), (Access::Write, Access::Write, 0, HERE.line("same word")));
    }
}

/// Several threads of several warps read a word; one of them then writes it.
#[kernel]
unsafe fn many_readers(word: PtrMut<u32>, sync: u32, writer: u32) {
    let t = thread::thread_idx_x();
    // SAFETY: within bounds; the missing barrier is the race.
    unsafe {
        global::load(*word); // FAULT: many readers
        if sync == 1 {
            thread::sync_threads();
        } else {
            warp::sync_warp(warp::FULL_MASK);
        }
        if t == writer {
            global::store(*word, 2); // FAULT: write under readers
        }
    }
}

#[test]
fn a_write_under_many_readers() {
    let mut word = Buffer::<u32>::new(1);
    launch!(ManyReaders { word: word.as_mut_ptr(), sync: 1, writer: 70 }, 1, 96).unwrap();
    launch!(ManyReaders { word: word.as_mut_ptr(), sync: 0, writer: 7 }, 1, 32).unwrap();
    // Warps run one after the other: a write by the last warp comes after all reads.
    let result = launch!(ManyReaders { word: word.as_mut_ptr(), sync: 0, writer: 95 }, 1, 96);
    let (access, other, thread, line) = race(HERE.fault(result, "many_readers", 0, 95, "write under readers"));
    assert_eq!((access, other, line), (Access::Write, Access::Read, HERE.line("many readers")));
    assert_ne!(thread, 95, "the other thread is another");
    // After a write by the first warp, the reads of later warps are reported.
    let result = launch!(ManyReaders { word: word.as_mut_ptr(), sync: 0, writer: 3 }, 1, 96);
    let kind = HERE.fault(result, "many_readers", 0, 32, "many readers");
    assert_eq!(race(kind), (Access::Read, Access::Write, 3, HERE.line("write under readers")));
}

/// Threads write neighbouring bytes and halves of words, and then read each other's bytes.
#[kernel]
unsafe fn bytes(array: PtrMut<u8>, distance: u32) {
    let t = thread::thread_idx_x();
    let at = |i: u32| array.wrapping_add(i as usize);
    // SAFETY: within bounds; reads of others' bytes are the race.
    unsafe {
        global::store(at(t), t as u8);
        global::store(at(256 + 2 * t).cast::<u16>(), 1);
        // Each thread writes six bytes: one whole word, and half of a word that it shares with a neighbour.
        global::store(at(512 + 6 * t).cast::<[u16; 3]>(), [1; 3]);
        global::load(at((t + distance) % 64)); // FAULT: byte
    }
}

#[test]
fn bytes_of_a_word_are_apart() {
    let mut array = Buffer::<u8>::new(1024);
    launch!(Bytes { array: array.as_mut_ptr(), distance: 0 }, 1, 64).unwrap();
    let kind = HERE.fault(launch!(Bytes { array: array.as_mut_ptr(), distance: 63 }, 1, 64), "bytes", 0, 1, "byte");
    let ViolationKind::GlobalRace { address, other_thread: 0, .. } = kind else { panic!("{kind}") };
    assert_eq!(address, array.as_ptr().addr());
}

/// Atomics of all threads on one word, and volatile accesses, then a plain access; `sync` says whether a barrier stands
/// between.
#[kernel]
unsafe fn counters(word: PtrMut<u32>, which: u32, plain: u32, sync: u32) {
    let t = thread::thread_idx_x();
    // SAFETY: within bounds; the missing barrier is the race.
    unsafe {
        match which {
            0 => drop(atomic::add_u32(*word, 1)),  // FAULT: atomic
            1 => global::store_volatile(*word, 1), // FAULT: volatile store
            _ => {
                if global::load_volatile(*word) < t {
                    atomic::max_u32(*word, t);
                }
                global::load_volatile(*word); // FAULT: volatile load
            }
        }
        if sync == 1 {
            thread::sync_threads();
        }
        if t == 33 {
            match plain {
                0 => {}
                1 => drop(global::load(*word)), // FAULT: plain read
                _ => global::store(*word, 5),   // FAULT: plain write
            }
        }
    }
}

#[test]
fn atomics_and_volatile_accesses_race_with_plain_ones_only() {
    let mut word = Buffer::<u32>::new(1);
    let mut run = |which, plain, sync| launch!(Counters { word: word.as_mut_ptr(), which, plain, sync }, 2, 64);
    for which in [0, 1, 2] {
        run(which, 0, 0).unwrap();
        run(which, 1, 1).unwrap();
        run(which, 2, 1).unwrap();
    }
    let kind = HERE.fault(run(0, 1, 0), "counters", 0, 33, "plain read");
    let (access, other, thread, line) = race(kind);
    assert_eq!((access, other, line), (Access::Read, Access::Atomic, HERE.line("atomic")));
    assert_ne!(thread, 33);
    let kind = HERE.fault(run(0, 2, 0), "counters", 0, 33, "plain write");
    assert_eq!(race(kind).1, Access::Atomic);
    let kind = HERE.fault(run(1, 1, 0), "counters", 0, 33, "plain read");
    assert_eq!((race(kind.clone()).1, race(kind).3), (Access::VolatileWrite, HERE.line("volatile store")));
    let kind = HERE.fault(run(2, 2, 0), "counters", 0, 33, "plain write");
    assert!(matches!(race(kind).1, Access::Atomic | Access::VolatileRead));
}

/// Thread 0 writes data and then sets a flag, for which the last thread waits; with or without fences.
#[kernel]
unsafe fn publish(data: PtrMut<u32>, flag: PtrMut<u32>, fences: u32, volatile: u32) {
    let (t, last) = (thread::thread_idx_x(), thread::block_dim_x() - 1);
    // SAFETY: within bounds; without fences nothing orders the data.
    unsafe {
        if t == 0 {
            global::store(*data, 7); // FAULT: publisher
            if fences & 1 == 1 {
                thread::fence();
            }
            match volatile {
                1 => global::store_volatile(*flag, 1),
                _ => _ = atomic::exchange_u32(*flag, 1),
            }
        } else if t == last {
            while global::load_volatile(*flag) == 0 {}
            if fences & 2 == 2 {
                thread::fence_block();
            }
            global::load(*data); // FAULT: subscriber
        }
    }
}

#[test]
fn fences_and_a_flag_order() {
    for (threads, volatile) in [(32, 0), (64, 0), (32, 1), (64, 1)] {
        let run = |fences| {
            let (mut data, mut flag) = (Buffer::<u32>::new(1), Buffer::<u32>::new(1));
            launch!(Publish { data: data.as_mut_ptr(), flag: flag.as_mut_ptr(), fences, volatile }, 1, threads)
        };
        run(3).unwrap();
        for fences in 0..3 {
            let kind = HERE.fault(run(fences), "publish", 0, threads - 1, "subscriber");
            assert_eq!(race(kind), (Access::Read, Access::Write, 0, HERE.line("publisher")));
        }
    }
}

/// A fence of one thread orders nothing if the other thread executes no fence.
#[test]
fn a_fence_alone_orders_nothing() {
    let mut array = Buffer::<u32>::new(64);
    for (distance, thread) in [(1, 1), (32, 32)] {
        let result = launch!(Neighbours { array: array.as_mut_ptr(), distance, sync: 5, write_first: 1 }, 1, 64);
        let kind = HERE.fault(result, "neighbours", 0, thread, "writer");
        assert_eq!(race(kind), (Access::Write, Access::Read, 0, HERE.line("late reader")));
    }
}

/// A write, then a load through the read-only cache by the same thread or another one, with or without a barrier
/// between them.
#[kernel]
unsafe fn read_only(array: PtrMut<u32>, distance: u32, plain: u32) {
    let (t, count) = (thread::thread_idx_x(), thread::block_dim_x());
    // SAFETY: within bounds; what is written must not be read so: the fault.
    unsafe {
        global::store(array.wrapping_add(t as usize), t); // FAULT: written
        thread::sync_threads();
        let from = array.wrapping_add(((t + distance) % (2 * count)) as usize);
        if plain == 1 {
            global::load(from);
        } else {
            global::load_nc(from); // FAULT: read-only load
        }
    }
}

#[test]
fn reads_through_the_read_only_cache() {
    let mut array = Buffer::<u32>::new(128);
    launch!(ReadOnly { array: array.as_mut_ptr(), distance: 1, plain: 1 }, 1, 64).unwrap();
    // Words that no thread writes may be read through the read-only cache, even in the same buffer.
    launch!(ReadOnly { array: array.as_mut_ptr(), distance: 64, plain: 0 }, 1, 64).unwrap();
    for (distance, writer) in [(0, 0), (1, 1), (40, 40)] {
        let result = launch!(ReadOnly { array: array.as_mut_ptr(), distance, plain: 0 }, 1, 64);
        let kind = HERE.fault(result, "read_only", 0, 0, "read-only load");
        let ViolationKind::ReadOnlyWritten { thread, written, .. } = kind else { panic!("{kind}") };
        assert_eq!((thread, written.line), (writer, HERE.line("written")));
    }
}

/// Copies from words that other threads write while the copy runs, unless a barrier separates the two.
#[kernel]
unsafe fn copied(array: PtrMut<u32>, sync: u32) {
    let (t, stage) = (thread::thread_idx_x(), shared::dynamic::<u32>());
    // SAFETY: within bounds; the missing barrier is the race.
    unsafe {
        async_copy::copy_4(stage.add(t).cast(), array.wrapping_add(t as usize).cast()); // FAULT: copy
        async_copy::commit();
        if sync == 1 {
            async_copy::wait_all();
        }
        thread::sync_threads();
        if sync == 2 {
            async_copy::wait_all();
            thread::sync_threads();
        }
        global::store(array.wrapping_add((t as usize + 1) % 64), 1); // FAULT: write to a source
        async_copy::wait_all();
    }
}

#[test]
fn sources_of_asynchronous_copies() {
    let mut array = Buffer::<u32>::new(64);
    launch!(Copied { array: array.as_mut_ptr(), sync: 1 }, 1, 64).unwrap();
    launch!(Copied { array: array.as_mut_ptr(), sync: 2 }, 1, 64).unwrap();
    // Thread 0 writes word 1 while thread 1's copy of that word runs: thread 1 starts it before the barrier and waits
    // for it later.
    let kind = HERE.fault(launch!(Copied { array: array.as_mut_ptr(), sync: 0 }, 1, 64), "copied", 0, 1, "copy");
    assert_eq!(race(kind), (Access::Read, Access::Write, 0, HERE.line("write to a source")));
}

/// Each thread writes `rounds` words that are far apart, and reads another thread's last one.
#[kernel]
unsafe fn many_lines(array: PtrMut<u32>, rounds: u32, distance: u32) {
    let (t, count) = (thread::thread_idx_x(), thread::block_dim_x());
    let at = |round: u32, t: u32| array.wrapping_add(((round * count + t) * 16) as usize);
    // SAFETY: within bounds; a distance is the race.
    unsafe {
        for round in 0..rounds {
            global::store(at(round, t), t); // FAULT: spread write
        }
        global::load(at(rounds - 1, (t + distance) % count)); // FAULT: spread read
    }
}

#[test]
fn as_many_lines_as_are_written() {
    let mut array = Buffer::<u32>::new(3000 * 64 * 16);
    for rounds in [1, 10, 3000] {
        launch!(ManyLines { array: array.as_mut_ptr(), rounds, distance: 0 }, 1, 64).unwrap();
        let result = launch!(ManyLines { array: array.as_mut_ptr(), rounds, distance: 63 }, 1, 64);
        let kind = HERE.fault(result, "many_lines", 0, 1, "spread read");
        assert_eq!(race(kind), (Access::Read, Access::Write, 0, HERE.line("spread write")));
    }
}
