//! Products of warpgroups whose operands are not yet visible, or are overwritten too early.

use crate::Source;
use cuda_std::{
    emulator::{self, Stats, Violation, ViolationKind},
    kernel,
    launch::LaunchConfig,
    shared, thread, wgmma,
};

const HERE: Source = source!("warpgroups.rs");

/// Writes zeros to A and B and multiplies them. `which` selects the step that is missing or too early.
#[kernel]
unsafe fn product(which: u32) {
    let t = thread::thread_idx_x();
    // SAFETY: 64 rows of A and 128 rows of B, 128 bytes each; what is missing is the fault.
    unsafe {
        let words = shared::dynamic::<u32>();
        let mut word = t;
        while word < 24576 / 4 {
            if (which != 1 && which != 7) || word != 4000 {
                words.add(word).store(0); // FAULT: written
            }
            word += thread::block_dim_x();
        }
        if which != 2 {
            wgmma::publish();
        }
        if which == 3 && t == 5 {
            words.add(5).store(0); // FAULT: written again
        }
        thread::sync_threads();
        let chunk = shared::dynamic::<u8>();
        if which >= 7 {
            let mut d = [[0.0; 4]; 8];
            wgmma::start_f16(&mut d, chunk, chunk.add(8192), false); // FAULT: narrow start
            if which == 8 {
                thread::sync_threads();
                words.add(8192 / 4 + t).store(1);
            }
            wgmma::wait(&mut d); // FAULT: narrow wait
            return;
        }
        let mut d = [[0.0; 4]; 16];
        wgmma::start_f16(&mut d, chunk.add(if which == 4 { 128 } else { 0 }), chunk.add(8192), false); // FAULT: start
        if which == 5 {
            thread::sync_threads();
            words.add(t).store(1);
        }
        wgmma::wait(&mut d); // FAULT: wait
        if which == 6 {
            thread::sync_threads();
            words.add(t).store(1);
        }
    }
}

fn run(threads: u32, which: u32) -> Result<Stats, Violation> {
    let config = LaunchConfig::linear(1, threads).with_shared(24576);
    // SAFETY: the kernel requires 24 KiB of shared memory.
    unsafe { emulator::launch(&Product::KERNEL, config, Product { which }) }
}

#[test]
fn a_product_of_what_is_there() {
    run(128, 0).unwrap();
    // After the wait a thread may write again.
    run(128, 6).unwrap();
}

#[test]
fn an_operand_that_nobody_wrote() {
    // Word 4000 is in row 61 of B, which lane 29 of each warp checks.
    let kind = HERE.fault(run(128, 1), "product", 0, 29, "start");
    assert!(matches!(kind, ViolationKind::SharedUninitialised { address } if address % 0x1_0000 == 16_000), "{kind}");
}

#[test]
fn an_operand_that_is_not_published() {
    let kind = HERE.fault(run(128, 2), "product", 0, 0, "start");
    let ViolationKind::NotPublished { written, .. } = kind else { panic!("{kind}") };
    assert_eq!(written.line, HERE.line("written"));
}

/// With N = 64 the last of the 64 rows are checked as well, at the start and at the wait.
#[test]
fn operands_of_a_narrow_product() {
    run(128, 9).unwrap();
    let kind = HERE.fault(run(128, 7), "product", 0, 29, "narrow start");
    assert!(matches!(kind, ViolationKind::SharedUninitialised { address } if address % 0x1_0000 == 16_000), "{kind}");
    let violation = run(128, 8).expect_err("the kernel is broken");
    assert_eq!(violation.location.line, HERE.line("narrow wait"), "{violation}");
    assert!(matches!(*violation.kind, ViolationKind::NotPublished { thread: 0, .. }), "{violation}");
}

/// A word that its thread writes and publishes in the same epoch passes: the emulator does not record which of the two
/// came first.
#[test]
fn an_operand_that_is_written_again_at_once() {
    run(128, 3).unwrap();
    assert!(HERE.line("written again") > HERE.line("written"));
}

#[test]
fn a_chunk_at_an_odd_place() {
    let kind = HERE.fault(run(128, 4), "product", 0, 0, "start");
    assert!(matches!(kind, ViolationKind::SharedMisaligned { alignment: 1024, .. }), "{kind}");
}

#[test]
fn an_operand_that_is_overwritten_before_the_wait() {
    let violation = run(128, 5).expect_err("the kernel is broken");
    assert_eq!(violation.location.line, HERE.line("wait"), "{violation}");
    assert!(matches!(*violation.kind, ViolationKind::NotPublished { thread: 0, .. }), "{violation}");
}

#[test]
fn a_block_without_whole_groups() {
    let kind = HERE.fault(run(96, 0), "product", 0, 0, "start");
    assert_eq!(kind, ViolationKind::NoWarpgroup { threads: 96 });
}
