//! Lanes that do not arrive at a collective, and threads that do not arrive at a barrier.

use crate::Source;
use cuda_std::{
    Ptr, PtrMut,
    emulator::{Buffer, Instead, Operation, ViolationKind},
    global, kernel, mma, shared, thread, warp,
};

const HERE: Source = source!("collectives.rs");

/// In block 2, lanes from 20 on return before a shuffle of all.
#[kernel]
unsafe fn lanes_return_early() {
    let lane = warp::lane_id();
    if thread::block_idx_x() == 2 && lane >= 20 {
        return;
    }
    warp::shuffle_xor(warp::FULL_MASK, lane, 1); // FAULT: returned
}

#[test]
fn returned_lanes() {
    let kind = HERE.fault(launch!(LanesReturnEarly {}, 4, 32), "lanes_return_early", 2, 0, "returned");
    assert_eq!(
        kind,
        ViolationKind::CollectiveIncomplete {
            operation: Operation::ShuffleXor,
            mask: u32::MAX,
            arrived: 0x000f_ffff,
            missing: 20,
            instead: Instead::HasReturned,
        }
    );
}

/// Odd lanes shuffle where even lanes vote.
#[kernel]
unsafe fn different_operations() {
    if warp::lane_id() % 2 == 1 {
        warp::shuffle_xor(warp::FULL_MASK, 1u32, 1); // FAULT: other operation
    } else {
        warp::ballot(warp::FULL_MASK, true); // FAULT: operation
    }
}

#[test]
fn lanes_in_another_operation() {
    let kind = HERE.fault(launch!(DifferentOperations {}, 1, 64), "different_operations", 0, 0, "operation");
    let ViolationKind::CollectiveIncomplete {
        operation: Operation::Ballot,
        arrived: 0x5555_5555,
        missing: 1,
        instead,
        ..
    } = kind
    else {
        panic!("{kind}");
    };
    let Instead::WaitsElsewhere { operation: Operation::ShuffleXor, mask: u32::MAX, location } = instead else {
        panic!("{instead}");
    };
    assert_eq!((location.file.as_str(), location.line), (HERE.file, HERE.line("other operation")));
}

/// Each half of the warp passes a mask that names some lanes of the other half.
#[kernel]
unsafe fn different_masks() {
    let mask = if warp::lane_id() < 16 { 0x0001_ffff } else { 0xffff_0000 };
    warp::sync_warp(mask); // FAULT: mask
}

#[test]
fn lanes_with_another_mask() {
    let kind = HERE.fault(launch!(DifferentMasks {}, 1, 32), "different_masks", 0, 0, "mask");
    assert!(matches!(kind, ViolationKind::CollectiveIncomplete { arrived: 0x0000_ffff, missing: 16, .. }), "{kind}");
}

/// Lane 31 joins a collective that does not name it.
#[kernel]
unsafe fn uninvited() {
    warp::any(0x7fff_ffff, true); // FAULT: uninvited
}

#[test]
fn a_lane_that_the_mask_does_not_name() {
    let kind = HERE.fault(launch!(Uninvited {}, 1, 64), "uninvited", 0, 31, "uninvited");
    assert_eq!(kind, ViolationKind::LaneNotInMask { operation: Operation::Any, mask: 0x7fff_ffff, lane: 31 });
}

/// The second warp of a block of 40 has no lanes from 8 on.
#[kernel]
unsafe fn full_mask_in_a_part_of_a_warp() {
    warp::reduce_add(warp::FULL_MASK, 1); // FAULT: not there
}

#[test]
fn lanes_that_the_block_does_not_have() {
    let result = launch!(FullMaskInAPartOfAWarp {}, 1, 40);
    let kind = HERE.fault(result, "full_mask_in_a_part_of_a_warp", 0, 32, "not there");
    assert!(
        matches!(kind, ViolationKind::CollectiveIncomplete { missing: 8, instead: Instead::DoesNotExist, .. }),
        "{kind}"
    );
}

/// A shuffle among half of the warp that reads from the other half.
#[kernel]
unsafe fn reads_outside_the_mask() {
    if warp::lane_id() < 16 {
        warp::shuffle_down(0x0000_ffff, 1.0f32, 4); // FAULT: outside
    }
}

#[test]
fn a_shuffle_from_outside_the_mask() {
    let kind = HERE.fault(launch!(ReadsOutsideTheMask {}, 1, 32), "reads_outside_the_mask", 0, 12, "outside");
    assert_eq!(
        kind,
        ViolationKind::ShuffleFromOutside { operation: Operation::ShuffleDown, mask: 0x0000_ffff, source_lane: 16 }
    );
}

/// The same matrix product, but two instructions.
#[kernel]
unsafe fn split_product() {
    let (mut c, a, b) = ([0.0; 4], [0; 4], [0; 2]);
    // SAFETY: none: not all lanes arrive at the same call.
    unsafe {
        if warp::lane_id() < 4 {
            mma::mma_m16n8k16_bf16(&mut c, &a, b); // FAULT: product
        } else {
            mma::mma_m16n8k16_bf16(&mut c, &a, b);
        }
    }
}

#[test]
fn aligned_operations_at_two_places() {
    let kind = HERE.fault(launch!(SplitProduct {}, 1, 32), "split_product", 0, 0, "product");
    assert!(
        matches!(kind, ViolationKind::CollectiveIncomplete { operation: Operation::MmaBf16, missing: 4, .. }),
        "{kind}"
    );
}

/// Shuffles may come from two places, as on the GPU.
#[kernel]
#[expect(clippy::if_same_then_else, reason = "two places are the point")]
unsafe fn split_shuffle(out: PtrMut<u32>) {
    let lane = warp::lane_id();
    let value = if lane < 4 {
        warp::shuffle_xor(warp::FULL_MASK, lane, 31)
    } else {
        warp::shuffle_xor(warp::FULL_MASK, lane, 31)
    };
    // SAFETY: 32 results.
    unsafe { global::store(out.add(lane as usize), value) }
}

#[test]
fn other_operations_at_two_places_are_fine() {
    let mut out = Buffer::<u32>::new(32);
    launch!(SplitShuffle { out: out.as_mut_ptr() }, 1, 32).unwrap();
    assert_eq!(out.to_vec(), (0..32).rev().collect::<Vec<_>>());
}

/// Threads below 40 wait at a barrier; the others have returned: a part of the second warp and the whole third warp.
#[kernel]
unsafe fn barrier_after_return() {
    if thread::thread_idx_x() < 40 {
        thread::sync_threads(); // FAULT: barrier
    }
}

#[test]
fn a_barrier_that_part_of_a_warp_does_not_reach() {
    let kind = HERE.fault(launch!(BarrierAfterReturn {}, 1, 96), "barrier_after_return", 0, 32, "barrier");
    assert_eq!(
        kind,
        ViolationKind::BarrierIncomplete {
            operation: Operation::SyncThreads,
            missing: 40,
            instead: Instead::HasReturned,
        }
    );
}

/// The second warp does not arrive at the barrier.
#[kernel]
unsafe fn barrier_of_one_warp() {
    if warp::warp_id() == 0 {
        thread::sync_threads(); // FAULT: one warp
    }
}

#[test]
fn a_barrier_that_a_warp_does_not_reach() {
    let kind = HERE.fault(launch!(BarrierOfOneWarp {}, 3, 64), "barrier_of_one_warp", 0, 0, "one warp");
    assert!(
        matches!(kind, ViolationKind::BarrierIncomplete { missing: 32, instead: Instead::HasReturned, .. }),
        "{kind}"
    );
}

/// Two barriers in the two arms of a branch within a warp.
#[kernel]
unsafe fn two_barriers() {
    if warp::lane_id() < 7 {
        thread::sync_threads(); // FAULT: first barrier
    } else {
        thread::sync_threads(); // FAULT: second barrier
    }
}

#[test]
fn a_barrier_in_divergent_code() {
    let kind = HERE.fault(launch!(TwoBarriers {}, 1, 32), "two_barriers", 0, 0, "first barrier");
    let ViolationKind::BarrierIncomplete { missing: 7, instead: Instead::WaitsElsewhere { location, .. }, .. } = kind
    else {
        panic!("{kind}");
    };
    assert_eq!(location.line, HERE.line("second barrier"));
}

/// One warp at `sync_threads`, the other at `sync_threads_or`.
#[kernel]
unsafe fn different_barriers() {
    if warp::warp_id() == 0 {
        thread::sync_threads(); // FAULT: kind of barrier
    } else {
        thread::sync_threads_or(true);
    }
}

#[test]
fn barriers_of_two_kinds() {
    let kind = HERE.fault(launch!(DifferentBarriers {}, 1, 64), "different_barriers", 0, 0, "kind of barrier");
    assert!(
        matches!(
            kind,
            ViolationKind::BarrierIncomplete {
                missing: 32,
                instead: Instead::WaitsElsewhere { operation: Operation::SyncThreadsOr, .. },
                ..
            }
        ),
        "{kind}"
    );
}

/// Lane 9 waits at the barrier for the others, which wait for it in a vote.
#[kernel]
unsafe fn deadlock() {
    if warp::lane_id() == 9 {
        thread::sync_threads(); // FAULT: barrier of the deadlock
    }
    warp::all(warp::FULL_MASK, true); // FAULT: deadlock
    thread::sync_threads();
}

#[test]
fn a_deadlock() {
    let kind = HERE.fault(launch!(Deadlock {}, 1, 32), "deadlock", 0, 0, "deadlock");
    let ViolationKind::CollectiveIncomplete {
        operation: Operation::All,
        missing: 9,
        instead: Instead::WaitsElsewhere { operation: Operation::SyncThreads, location, .. },
        ..
    } = kind
    else {
        panic!("{kind}");
    };
    assert_eq!(location.line, HERE.line("barrier of the deadlock"));
}

/// Waits for a store that no thread makes.
#[kernel]
unsafe fn waits_in_vain(flag: Ptr<u32>) {
    // SAFETY: one value.
    unsafe {
        while global::load_volatile(*flag) == 0 {} // FAULT: in vain
    }
}

#[test]
fn a_livelock() {
    let flag = Buffer::<u32>::new(1);
    let kind = HERE.fault(launch!(WaitsInVain { flag: flag.as_ptr() }, 1, 1), "waits_in_vain", 0, 0, "in vain");
    assert_eq!(kind, ViolationKind::Livelock);
}

/// A load of matrices that a lane skips.
#[kernel]
unsafe fn incomplete_load() {
    let tile = shared::dynamic::<u8>();
    // SAFETY: 512 bytes of shared memory; not all lanes arrive, which is the fault.
    unsafe {
        for i in 0..4 {
            tile.cast::<u32>().add(4 * warp::lane_id() + i).store(i);
        }
        warp::sync_warp(warp::FULL_MASK);
        if warp::lane_id() != 31 {
            mma::ldmatrix_x4(tile.add(16 * warp::lane_id())); // FAULT: load
        }
    }
}

#[test]
fn a_matrix_load_without_a_lane() {
    let kind = HERE.fault(launch!(IncompleteLoad {}, 1, 32), "incomplete_load", 0, 0, "load");
    assert!(
        matches!(kind, ViolationKind::CollectiveIncomplete { missing: 31, instead: Instead::HasReturned, .. }),
        "{kind}"
    );
}
