//! Clusters: barriers that not all blocks reach, peers that do not exist, have not started or have returned, and races
//! between blocks.

use crate::Source;
use cuda_std::{
    PtrMut, atomic, cluster,
    emulator::{self, Access, Buffer, Stats, Violation, ViolationKind},
    global, kernel,
    launch::{Kernel, KernelArgs, LaunchConfig},
    shared, thread,
};

const HERE: Source = source!("clusters.rs");

/// Launches clusters of `cluster` blocks of 64 threads with 256 bytes of dynamic shared memory.
fn launch<A: KernelArgs>(kernel: &Kernel<A>, blocks: u64, cluster: u32, arguments: A) -> Result<Stats, Violation> {
    let config = LaunchConfig::linear(blocks, 64).with_shared(256).with_cluster(cluster);
    // SAFETY: the kernels here are broken only in ways that the emulator stops before harm is done.
    unsafe { emulator::launch(kernel, config, arguments) }
}

/// Each block passes a word of each thread to the next block of its cluster, and adds to a counter of the first block.
///
/// # Safety
/// `out` has 65 words for each block.
#[kernel]
unsafe fn passes_on(out: PtrMut<u32>) {
    let t = thread::thread_idx_x();
    let words = shared::dynamic::<u32>();
    let (rank, count) = (cluster::block_rank(), cluster::block_count());
    // SAFETY: barriers of the cluster stand between the accesses of different blocks.
    unsafe {
        if t < 32 {
            words.add(t).store(100 * thread::block_idx_x() + t);
        }
        if t == 0 {
            words.add(63).store(0);
        }
        cluster::sync();
        let next = (rank + 1) % count;
        let found = if t < 32 { cluster::peer(words, next).add(t).load() } else { 0 };
        if (40..48).contains(&t) {
            cluster::peer(words.add(t), next).store(rank);
        }
        cluster::add_u32(cluster::peer(words.add(63), 0), 1);
        cluster::sync();
        let out = out.wrapping_add(65 * thread::block_idx_x() as usize);
        global::store(out.wrapping_add(t as usize), if (40..48).contains(&t) { words.add(t).load() } else { found });
        if t == 0 {
            global::store(out.wrapping_add(64), words.add(63).load());
        }
    }
}

#[test]
fn blocks_of_a_cluster_exchange_words() {
    for (blocks, size) in [(1, 1), (3, 1), (4, 2), (8, 4), (16, 16)] {
        let mut out = Buffer::<u32>::new(65 * blocks as usize);
        let stats = launch(&PassesOn::KERNEL, blocks, size, PassesOn { out: out.as_mut_ptr() }).unwrap();
        assert_eq!(stats.barriers, 2 * blocks);
        let out = out.to_vec();
        for block in 0..blocks as usize {
            let (rank, size) = (block % size as usize, size as usize);
            let first = block - rank;
            let own = &out[65 * block..65 * (block + 1)];
            for (t, &word) in own[..32].iter().enumerate() {
                assert_eq!(word, (100 * (first + (rank + 1) % size) + t) as u32, "block {block} of {size}");
            }
            assert!(own[40..48].iter().all(|&word| word == ((rank + size - 1) % size) as u32));
            assert_eq!(own[64], if rank == 0 { 64 * size as u32 } else { 0 });
        }
    }
}

/// Block `absent` of each cluster returns early.
#[kernel]
unsafe fn leaves(absent: u32) {
    if cluster::block_rank() != absent {
        cluster::sync(); // FAULT: incomplete
    }
}

#[test]
fn a_block_that_does_not_come_to_the_barrier() {
    for (absent, first) in [(1, 0), (0, 1)] {
        let kind = HERE.fault(launch(&Leaves::KERNEL, 2, 2, Leaves { absent }), "leaves", first, 0, "incomplete");
        assert_eq!(kind, ViolationKind::ClusterIncomplete { missing: absent });
    }
}

/// One thread of the second block returns before the barrier of the cluster.
#[kernel]
unsafe fn thread_leaves() {
    if cluster::block_rank() == 0 || thread::thread_idx_x() != 40 {
        cluster::sync(); // FAULT: thread
    }
}

#[test]
fn a_thread_that_does_not_come_to_the_barrier() {
    let kind = HERE.fault(launch(&ThreadLeaves::KERNEL, 2, 2, ThreadLeaves {}), "thread_leaves", 1, 32, "thread");
    assert!(matches!(kind, ViolationKind::BarrierIncomplete { missing: 40, .. }), "{kind}");
}

/// Reads a word of block `rank`.
#[kernel]
unsafe fn strange_peer(rank: u32) {
    let words = shared::dynamic::<u32>();
    // SAFETY: none: that is the fault.
    unsafe {
        words.add(thread::thread_idx_x()).store(1);
        cluster::sync();
        cluster::peer(words, rank).load(); // FAULT: strange
        cluster::sync();
    }
}

#[test]
fn a_peer_that_does_not_exist() {
    launch(&StrangePeer::KERNEL, 2, 2, StrangePeer { rank: 1 }).unwrap();
    let kind = HERE.fault(launch(&StrangePeer::KERNEL, 2, 2, StrangePeer { rank: 2 }), "strange_peer", 0, 0, "strange");
    assert_eq!(kind, ViolationKind::NoSuchPeer { rank: 2, blocks: 2 });
}

/// Accesses word `at` of the next block, between barriers of the cluster where `before` and `after` say so.
#[kernel]
unsafe fn neighbour(at: u32, before: u32, after: u32) {
    let words = shared::dynamic::<u32>();
    // SAFETY: the arguments say which promise is broken.
    unsafe {
        let next = (cluster::block_rank() + 1) % cluster::block_count();
        if thread::thread_idx_x() < 50 {
            words.add(thread::thread_idx_x()).store(1);
        }
        if before == 1 {
            cluster::sync();
        }
        if thread::thread_idx_x() == 33 {
            cluster::peer(words, next).add(at).load(); // FAULT: neighbour
        }
        if after == 1 {
            cluster::sync();
        }
    }
}

#[test]
fn accesses_before_the_first_barrier_and_after_the_last() {
    let run = |at, before, after| launch(&Neighbour::KERNEL, 2, 2, Neighbour { at, before, after });
    run(7, 1, 1).unwrap();
    let kind = HERE.fault(run(7, 0, 1), "neighbour", 0, 33, "neighbour");
    assert_eq!(kind, ViolationKind::PeerNotStarted { access: Access::Read, rank: 1 });
    // Block 0 reads from block 1 while that waits, and returns; then block 1 reads from block 0.
    let kind = HERE.fault(run(7, 1, 0), "neighbour", 1, 33, "neighbour");
    assert_eq!(kind, ViolationKind::PeerExited { access: Access::Read, rank: 0 });
    let kind = HERE.fault(run(50, 1, 1), "neighbour", 0, 33, "neighbour");
    assert!(matches!(kind, ViolationKind::SharedUninitialised { .. }), "{kind}");
    let kind = HERE.fault(run(64, 1, 1), "neighbour", 0, 33, "neighbour");
    assert!(matches!(kind, ViolationKind::SharedOutOfBounds { bytes: 4, .. }), "{kind}");
}

/// Block 0 reads from block 1, which returns later, but without another barrier.
#[kernel]
unsafe fn reads_from_one_that_ends() {
    let words = shared::dynamic::<u32>();
    // SAFETY: none: that is the fault.
    unsafe {
        words.add(thread::thread_idx_x()).store(1);
        cluster::sync();
        if cluster::block_rank() == 0 {
            cluster::peer(words, 1).load(); // FAULT: ends
        }
    }
}

#[test]
fn a_peer_that_returns_later_in_this_order_only() {
    let result = launch(&ReadsFromOneThatEnds::KERNEL, 2, 2, ReadsFromOneThatEnds {});
    // The words of a peer are recorded with their last reader.
    let kind = HERE.fault(result, "reads_from_one_that_ends", 0, 63, "ends");
    assert_eq!(kind, ViolationKind::PeerExited { access: Access::Read, rank: 1 });
}

/// Word 3 of block 1 is accessed by block 0 and, where `owner` says so, by block 1, without a barrier between.
#[kernel]
unsafe fn race(remote: u32, owner: u32, between: u32) {
    let (t, words) = (thread::thread_idx_x(), shared::dynamic::<u32>());
    // SAFETY: the arguments say which promise is broken.
    unsafe {
        words.add(t).store(1);
        cluster::sync();
        if cluster::block_rank() == 0 && t == 0 {
            let word = cluster::peer(words, 1).add(3);
            match remote {
                0 => _ = word.load(),
                1 => word.store(2),
                _ => _ = cluster::add_u32(word, 1),
            }
        }
        if between == 1 {
            cluster::sync();
        }
        if cluster::block_rank() == 1 && t == 40 {
            match owner {
                0 => _ = words.add(3).load(),                     // FAULT: owner loads
                1 => words.add(3).store(5),                       // FAULT: owner stores
                _ => _ = atomic::shared_add_u32(words.add(3), 1), // FAULT: owner adds
            }
        }
        cluster::sync();
    }
}

#[test]
fn races_between_blocks() {
    let run = |remote, owner, between| launch(&Race::KERNEL, 2, 2, Race { remote, owner, between });
    // Two reads, two atomic operations, and everything with a barrier between.
    run(0, 0, 0).unwrap();
    run(2, 2, 0).unwrap();
    for (remote, owner) in (0..3).flat_map(|remote| (0..3).map(move |owner| (remote, owner))) {
        run(remote, owner, 1).unwrap();
        if matches!((remote, owner), (0, 0) | (2, 2)) {
            continue;
        }
        let marker = ["owner loads", "owner stores", "owner adds"][owner as usize];
        let kind = HERE.fault(run(remote, owner, 0), "race", 1, 40, marker);
        let ViolationKind::PeerRace { owner: 1, other_block: 0, other_thread: 0, .. } = kind else { panic!("{kind}") };
    }
}

/// Blocks 0 and 1 write to block 2, or read what block 2 writes before its peers run.
#[kernel]
unsafe fn three(owner_first: u32) {
    let (t, rank, words) = (thread::thread_idx_x(), cluster::block_rank(), shared::dynamic::<u32>());
    // SAFETY: none: that is the fault.
    unsafe {
        words.add(t).store(1);
        cluster::sync();
        let owner = if owner_first == 1 { 0 } else { 2 };
        if rank == owner && owner_first == 1 && t == 9 {
            words.add(5).store(3);
        }
        if rank != owner && t == 34 {
            cluster::peer(words, owner).add(5).store(rank); // FAULT: three
        }
        cluster::sync();
    }
}

#[test]
fn two_peers_write_and_a_peer_writes_after_the_owner() {
    let run = |owner_first| launch(&Three::KERNEL, 4, 4, Three { owner_first });
    let kind = HERE.fault(run(0), "three", 1, 34, "three");
    assert!(matches!(kind, ViolationKind::PeerRace { owner: 2, other_block: 0, other_thread: 34, .. }), "{kind}");
    let kind = HERE.fault(run(1), "three", 1, 34, "three");
    assert!(matches!(kind, ViolationKind::PeerRace { owner: 0, other_block: 0, other_thread: 9, .. }), "{kind}");
}
