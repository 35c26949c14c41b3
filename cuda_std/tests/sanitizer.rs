//! Accesses by plain Rust pointers outside a buffer, which AddressSanitizer stops. It ends the process, so each case
//! runs in a separate process.
//!
//! `RUSTFLAGS=-Zsanitizer=address cargo +nightly test -p warpann-cuda-std --features sanitizer --target x86_64-unknown-linux-gnu --test sanitizer`

use cuda_std::{
    Ptr, PtrMut,
    emulator::{self, Buffer},
    kernel,
    launch::LaunchConfig,
};
use std::process::Command;

/// The environment variable that names the case which a child process runs.
const CASE: &str = "CUDA_STD_SANITIZER_CASE";

/// Reads and writes a byte by plain pointers, at a place of each buffer.
#[kernel]
unsafe fn plain(from: Ptr<u8>, read: i32, to: PtrMut<u8>, write: i32) {
    // SAFETY: none: a place may be outside its buffer, which is the fault.
    unsafe {
        let (from, to) = (from.wrapping_offset(read as isize), to.wrapping_offset(write as isize));
        let value = *from; // FAULT: read
        *to = value; // FAULT: write
    }
}

/// Reads at `read_past` and writes at `write_past` bytes behind the ends of the buffers; negative numbers are inside.
fn run(read_past: i32, write_past: i32) {
    let (from, mut to) = (Buffer::<u8>::new(300), Buffer::<u8>::new(301));
    let launch = Plain { from: from.as_ptr(), read: 300 + read_past, to: to.as_mut_ptr(), write: 301 + write_past };
    // SAFETY: none: see the kernel.
    let result = unsafe { emulator::launch(&Plain::KERNEL, LaunchConfig::linear(1, 1), launch) };
    assert!(result.is_ok(), "{result:?}");
}

/// Runs the case in a separate process. Returns whether it succeeded, and its standard error.
fn outcome(case: &str) -> (bool, String) {
    let this = std::env::current_exe().unwrap();
    let output =
        Command::new(this).args(["--ignored", "--exact", "one_case", "--nocapture"]).env(CASE, case).output().unwrap();
    (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
#[ignore = "the other tests run it, each case in a process"]
fn one_case() {
    let case = std::env::var(CASE).expect("the environment names a case");
    match case.as_str() {
        "inside" => run(-1, -1),
        "read" => run(0, -1),
        "read further" => run(211, -1),
        "write" => run(-1, 0),
        other => panic!("no case is named {other}"),
    }
}

#[test]
fn accesses_inside_pass() {
    let (success, text) = outcome("inside");
    assert!(success, "{text}");
}

#[test]
fn accesses_outside_are_stopped_at_their_line() {
    for (case, mark) in [("read", "read"), ("read further", "read"), ("write", "write")] {
        let (success, text) = outcome(case);
        let marked = |line: &str| line.ends_with(&format!("// FAULT: {mark}"));
        let line = 1 + include_str!("sanitizer.rs").lines().position(marked).unwrap();
        assert!(!success && text.contains("ERROR: AddressSanitizer: use-after-poison"), "{case}: {text}");
        assert!(text.contains(&format!("sanitizer.rs:{line}:")), "{case}, line {line}: {text}");
    }
}
