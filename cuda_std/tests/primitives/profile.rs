//! `emulator::profile`: executions by warp, operation and line.

use crate::one_block;
use cuda_std::{
    PtrMut,
    emulator::{self, Buffer, Operation, Profile, SiteCount},
    global, kernel,
    launch::LaunchConfig,
    thread, warp,
};

/// Collectives of several kinds; the words in comments name their lines.
#[kernel]
unsafe fn varied(out: PtrMut<u32>, rounds: u32) {
    let lane = warp::lane_id();
    let mut sum = 0;
    for round in 0..rounds {
        sum += warp::shuffle_xor(warp::FULL_MASK, lane, round); // WORD
        sum += warp::shuffle_xor(warp::FULL_MASK, u64::from(lane), 1) as u32; // TWO WORDS
    }
    // Even and odd lanes vote apart, on the same line; lanes of a quarter on another.
    let mine = 0x5555_5555 << (lane % 2);
    sum += u32::from(warp::any(mine, sum > 3)); // APART
    if lane < 8 {
        sum += warp::ballot(0xff, sum > 3); // QUARTER
    }
    thread::sync_threads(); // BARRIER
    if thread::block_idx_x() % 2 == 1 {
        sum += u32::from(warp::all(warp::FULL_MASK, true)) + u32::from(warp::any(warp::FULL_MASK, true)); // ODD BLOCKS
    }
    // SAFETY: a word for each thread of the block; blocks store equal values or none reads them.
    unsafe { global::store(out.add(thread::thread_idx_x() as usize), sum) }
}

/// Executions on the line that ends with `// mark`, by operation.
fn on_line(profile: &Profile, mark: &str, operation: Operation) -> u64 {
    let mark = format!("// {mark}");
    let lines: Vec<_> = include_str!("profile.rs").lines().collect();
    let line = lines.iter().position(|line| line.ends_with(&mark)).expect("a line with the mark") as u32 + 1;
    profile.executions(|site| {
        site.operation == operation && site.location.line == line && site.location.file.ends_with("profile.rs")
    })
}

#[test]
fn executions_by_line() {
    let mut out = Buffer::<u32>::new(96);
    let config = LaunchConfig::linear(5, 96);
    let launch = Varied { out: out.as_mut_ptr(), rounds: 7 };
    // SAFETY: a word for each of 96 threads.
    let profile = unsafe { emulator::profile(&Varied::KERNEL, config, launch) }.unwrap();
    let warps = 5 * 3;
    let expected = [
        ("WORD", Operation::ShuffleXor, 7 * warps),
        ("TWO WORDS", Operation::ShuffleXor, 2 * 7 * warps),
        ("APART", Operation::Any, 2 * warps),
        ("QUARTER", Operation::Ballot, warps),
        ("BARRIER", Operation::SyncThreads, warps),
        ("ODD BLOCKS", Operation::All, 2 * 3),
        ("ODD BLOCKS", Operation::Any, 2 * 3),
    ];
    for (mark, operation, executions) in expected {
        assert_eq!(on_line(&profile, mark, operation), executions, "{mark}\n{profile}");
    }
    // The profile has no other sites, and their order is that of the source.
    assert_eq!(profile.sites.len(), expected.len());
    assert!(profile.sites.iter().zip(&expected).all(|(site, expected)| site.operation == expected.1));
    let total: u64 = expected.iter().map(|expected| expected.2).sum();
    assert_eq!(profile.executions(|_| true), total);
    // The table has a line a site, the most executed first.
    let table = profile.to_string();
    assert_eq!(table.lines().count(), expected.len());
    assert!(table.lines().next().unwrap().contains("shuffle_xor") && table.contains("210"), "{table}");
}

/// The stats are those of a plain launch, and one launch's counts do not leak into the next.
#[test]
fn a_profile_is_of_one_launch() {
    let mut out = Buffer::<u32>::new(32);
    let mut run = |rounds| {
        let launch = Varied { out: out.as_mut_ptr(), rounds };
        // SAFETY: a word for each thread.
        unsafe { emulator::profile(&Varied::KERNEL, one_block(32, 0), launch) }.unwrap()
    };
    let (first, second) = (run(2), run(2));
    assert_eq!(first, second);
    assert_eq!(on_line(&run(1), "WORD", Operation::ShuffleXor), 1);
    let launch = Varied { out: out.as_mut_ptr(), rounds: 2 };
    // SAFETY: as above.
    let stats = unsafe { emulator::launch(&Varied::KERNEL, one_block(32, 0), launch) }.unwrap();
    assert_eq!(first.stats, stats);
    let ghosts: Vec<&SiteCount> = first.sites.iter().filter(|site| site.executions == 0).collect();
    assert!(ghosts.is_empty(), "{ghosts:?}");
}
