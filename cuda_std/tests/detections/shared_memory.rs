//! Shared accesses out of bounds, misaligned, of uninitialised memory, and of the destination of an unfinished copy.

use crate::Source;
use cuda_std::{
    Ptr, async_copy, atomic,
    emulator::{Buffer, ViolationKind},
    kernel, mma, shared, shared_array, thread, warp,
};

const HERE: Source = source!("shared_memory.rs");

/// Each thread writes one word of an array of 40.
#[kernel]
unsafe fn static_bounds() {
    let array = shared_array!(u32, 40);
    // SAFETY: none: that is the fault.
    unsafe {
        array.add(thread::thread_idx_x()).store(1); // FAULT: static
    }
}

#[test]
fn past_a_static_array() {
    launch!(StaticBounds {}, 2, 40).unwrap();
    let kind = HERE.fault(launch!(StaticBounds {}, 2, 64), "static_bounds", 0, 40, "static");
    assert!(matches!(kind, ViolationKind::SharedOutOfBounds { bytes: 4, .. }), "{kind}");
}

/// Each thread writes 8 bytes of the dynamic memory, which has 1024.
#[kernel]
unsafe fn dynamic_bounds() {
    // SAFETY: none: that is the fault.
    unsafe {
        shared::dynamic::<f64>().add(thread::thread_idx_x()).store(1.0); // FAULT: dynamic
    }
}

#[test]
fn past_the_dynamic_memory() {
    launch!(DynamicBounds {}, 1, 128).unwrap();
    let kind = HERE.fault(launch!(DynamicBounds {}, 1, 160), "dynamic_bounds", 0, 128, "dynamic");
    let ViolationKind::SharedOutOfBounds { address, bytes: 8, base, dynamic: 1024 } = kind else { panic!("{kind}") };
    assert_eq!(address, base + 1024);
}

/// Reads before the start of the dynamic memory, and at address 0.
#[kernel]
unsafe fn wild(which: u32) {
    let start = shared::dynamic::<u32>();
    // SAFETY: none: that is the fault.
    unsafe {
        if which == 0 {
            start.add(u32::MAX).load(); // FAULT: before
        } else {
            shared::SharedPtr::<u32>::from_address(0).load(); // FAULT: zero
        }
    }
}

#[test]
fn wild_addresses() {
    for (which, marker) in [(0, "before"), (1, "zero")] {
        let kind = HERE.fault(launch!(Wild { which }, 1, 1), "wild", 0, 0, marker);
        assert!(matches!(kind, ViolationKind::SharedOutOfBounds { .. }), "{kind}");
    }
}

/// Writes 8 bytes at an odd word.
#[kernel]
unsafe fn misaligned() {
    let words = shared::dynamic::<u32>();
    // SAFETY: none: that is the fault.
    unsafe {
        words.add(1).cast::<u64>().store(1); // FAULT: misaligned
    }
}

#[test]
fn a_misaligned_access() {
    let kind = HERE.fault(launch!(Misaligned {}, 1, 1), "misaligned", 0, 0, "misaligned");
    assert!(matches!(kind, ViolationKind::SharedMisaligned { alignment: 8, .. }), "{kind}");
}

/// Word 5 is never written.
#[kernel]
unsafe fn gap() {
    let array = shared_array!(u32, 32);
    let t = thread::thread_idx_x();
    // SAFETY: within bounds; one word is not initialised, which is the fault.
    unsafe {
        if t != 5 {
            array.add(t).store(t);
        }
        thread::sync_threads();
        array.add(31 - t).load(); // FAULT: gap
    }
}

#[test]
fn a_read_of_nothing() {
    let kind = HERE.fault(launch!(Gap {}, 1, 32), "gap", 0, 26, "gap");
    assert!(matches!(kind, ViolationKind::SharedUninitialised { .. }), "{kind}");
}

/// The first block writes shared memory; the next block reads it without writing.
#[kernel]
unsafe fn leftovers() {
    let array = shared::dynamic::<u32>();
    // SAFETY: within bounds; a later block reads what is not its own, which is the fault.
    unsafe {
        if thread::block_idx_x() == 0 {
            array.add(thread::thread_idx_x()).store(1);
        } else {
            array.add(thread::thread_idx_x()).load(); // FAULT: leftover
        }
    }
}

#[test]
fn a_read_of_what_another_block_wrote() {
    let kind = HERE.fault(launch!(Leftovers {}, 2, 32), "leftovers", 1, 0, "leftover");
    assert!(matches!(kind, ViolationKind::SharedUninitialised { .. }), "{kind}");
}

/// Three of four bytes are written.
#[kernel]
unsafe fn part_of_a_word() {
    let bytes = shared::dynamic::<u8>();
    // SAFETY: within bounds; the fourth byte is not initialised, which is the fault.
    unsafe {
        for i in 0..3 {
            bytes.add(i).store(1);
        }
        bytes.add(2).load();
        bytes.cast::<u32>().load(); // FAULT: part
    }
}

#[test]
fn a_read_of_a_word_written_in_part() {
    let kind = HERE.fault(launch!(PartOfAWord {}, 1, 1), "part_of_a_word", 0, 0, "part");
    let ViolationKind::SharedUninitialised { address } = kind else { panic!("{kind}") };
    assert_eq!(address % 4, 3);
}

/// An atomic operation on uninitialised memory, and a load of a matrix row of which half was written.
#[kernel]
unsafe fn readers(which: u32) {
    let array = shared::dynamic::<u32>();
    // SAFETY: within bounds; the memory is not initialised, which is the fault.
    unsafe {
        array.add(4 * warp::lane_id()).cast::<u64>().store(0);
        warp::sync_warp(warp::FULL_MASK);
        if which == 0 {
            atomic::shared_add_u32(array.add(2), 1); // FAULT: atomic
        } else {
            mma::ldmatrix_x4(array.add(4 * warp::lane_id()).cast()); // FAULT: matrix
        }
    }
}

#[test]
fn every_reader_needs_a_writer() {
    for (which, marker) in [(0, "atomic"), (1, "matrix")] {
        let kind = HERE.fault(launch!(Readers { which }, 1, 32), "readers", 0, 0, marker);
        assert!(matches!(kind, ViolationKind::SharedUninitialised { .. }), "{kind}");
    }
}

/// Each thread copies one word and accesses it too early; `which` selects the access.
#[kernel]
unsafe fn missing_wait(input: Ptr<u32>, which: u32) {
    let (t, array) = (thread::thread_idx_x(), shared::dynamic::<u32>());
    // SAFETY: one word a thread; the copy is not waited for, which is the fault.
    unsafe {
        async_copy::copy_4(array.add(t).cast(), input.add(t as usize).cast()); // FAULT: start
        if which > 0 {
            async_copy::commit();
        }
        if which > 1 {
            async_copy::wait_group::<1>();
        }
        thread::sync_threads();
        match which {
            3 => array.add(t).store(1), // FAULT: overwritten
            4 => {
                async_copy::wait_group::<0>();
                array.add(t).load();
                array.add((t + 1) % 32).load(); // FAULT: no barrier
            }
            5 => {
                async_copy::wait_group::<0>();
                thread::sync_threads();
                array.add((t + 1) % 32).load();
            }
            _ => drop(array.add(31 - t).load()), // FAULT: no wait
        }
    }
}

#[test]
fn a_copy_that_was_not_waited_for() {
    let input = Buffer::<u32>::new(32);
    for which in 0..3 {
        let result = launch!(MissingWait { input: input.as_ptr(), which }, 1, 32);
        let kind = HERE.fault(result, "missing_wait", 0, 0, "no wait");
        let ViolationKind::AsyncCopyUnfinished { thread: 31, started, .. } = kind else { panic!("{kind}") };
        assert_eq!((started.file.as_str(), started.line), (HERE.file, HERE.line("start")));
    }
    let result = launch!(MissingWait { input: input.as_ptr(), which: 3 }, 1, 32);
    let kind = HERE.fault(result, "missing_wait", 0, 0, "overwritten");
    assert!(matches!(kind, ViolationKind::AsyncCopyUnfinished { thread: 0, .. }), "{kind}");
    // Each thread has waited for its copy, but no barrier has made the word visible to others.
    let result = launch!(MissingWait { input: input.as_ptr(), which: 4 }, 1, 32);
    let kind = HERE.fault(result, "missing_wait", 0, 0, "no barrier");
    assert!(matches!(kind, ViolationKind::AsyncCopyUnfinished { thread: 1, .. }), "{kind}");
    launch!(MissingWait { input: input.as_ptr(), which: 5 }, 1, 32).unwrap();
}

/// Copies 9 bytes to a destination of 8.
#[kernel]
unsafe fn oversized_copy(input: Ptr<u8>) {
    // SAFETY: none: that is the fault.
    unsafe {
        async_copy::copy_8_zfill(shared::dynamic(), *input, 9); // FAULT: oversized
    }
}

#[test]
fn a_copy_larger_than_its_destination() {
    let input = Buffer::<u8>::new(32);
    let kind = HERE.fault(launch!(OversizedCopy { input: input.as_ptr() }, 1, 1), "oversized_copy", 0, 0, "oversized");
    assert_eq!(kind, ViolationKind::AsyncCopySize { asked: 9, limit: 8 });
}
