//! Accesses by plain Rust pointers. The emulator detects such a write close behind a buffer. With the feature
//! `sanitizer`, AddressSanitizer stops the reads too: see `tests/sanitizer.rs`.
#![cfg(not(feature = "sanitizer"))]

use cuda_std::{
    Ptr, PtrMut,
    emulator::{Buffer, ViolationKind},
    global, kernel, thread,
};

/// Each thread writes one byte by a plain pointer, `skipped` bytes on.
#[kernel]
unsafe fn plain_writes(out: PtrMut<u8>, skipped: u32) {
    // SAFETY: none: a thread may write behind the buffer, which is the fault.
    unsafe { *out.add((skipped + thread::thread_idx_x()) as usize) = 7 }
}

#[test]
fn a_plain_write_behind_a_buffer() {
    for len in [1, 32, 255, 256, 257, 300, 512] {
        for past in [0, 1, 100, 255] {
            let mut out = Buffer::<u8>::new(len);
            let skipped = (len + past) as u32;
            let result = launch!(PlainWrites { out: out.as_mut_ptr(), skipped }, 1, 1);
            let violation = result.expect_err("the emulator finds the write");
            let address = out.as_ptr().addr() + len + past;
            assert_eq!(*violation.kind, ViolationKind::PaddingOverwritten { address, past, len });
            assert_eq!(violation.kernel, "plain_writes");
            let text = violation.to_string();
            assert!(text.contains(&format!("{past} bytes behind the end of a buffer of {len} bytes")), "{text}");
        }
    }
}

#[test]
fn plain_writes_inside_a_buffer_pass() {
    for len in [1, 32, 255, 256, 257, 300, 512] {
        let mut out = Buffer::<u8>::new(len);
        launch!(PlainWrites { out: out.as_mut_ptr(), skipped: 0 }, 1, len as u32).unwrap();
        assert_eq!(out.to_vec(), vec![7; len]);
    }
}

/// Reads one byte by a plain pointer, `skipped` bytes on.
#[kernel]
unsafe fn plain_read(x: Ptr<u8>, out: PtrMut<u8>, skipped: u32) {
    // SAFETY: none: the read may be behind the buffer, which is the fault.
    unsafe { global::store(*out, *x.add(skipped as usize)) }
}

/// The emulator does not detect a read behind a buffer, but the read gives the poison value.
#[test]
fn a_plain_read_behind_a_buffer_gives_poison() {
    for len in [1, 255, 256, 257, 512] {
        for past in [0, 1, 255] {
            let (x, mut out) = (Buffer::<u8>::new(len), Buffer::<u8>::new(1));
            let skipped = (len + past) as u32;
            launch!(PlainRead { x: x.as_ptr(), out: out.as_mut_ptr(), skipped }, 1, 1).unwrap();
            assert_eq!(out.to_vec(), [0xA5], "{past} bytes behind {len}");
        }
    }
}
