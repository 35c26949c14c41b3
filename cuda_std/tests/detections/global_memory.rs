//! Global accesses outside the buffers, after they were freed, and misaligned.

use crate::Source;
use cuda_std::{
    async_copy, atomic,
    emulator::{Buffer, Nearest, ViolationKind},
    global, kernel, shared, thread,
};

const HERE: Source = source!("global_memory.rs");

/// Each thread reads and writes one value, without a look at the length.
#[kernel]
unsafe fn no_bounds(input: *const u32, out: *mut u32) {
    let i = (thread::block_idx_x() * thread::block_dim_x() + thread::thread_idx_x()) as usize;
    // SAFETY: none: that is the fault.
    unsafe {
        let value = global::load(input.add(i)); // FAULT: load
        global::store(out.add(i), value); // FAULT: store
    }
}

#[test]
fn a_load_past_the_end() {
    let input = Buffer::<u32>::new(100);
    let mut out = Buffer::<u32>::new(128);
    let result = launch!(NoBounds { input: input.as_ptr(), out: out.as_mut_ptr() }, 2, 64);
    let kind = HERE.fault(result, "no_bounds", 1, 36, "load");
    let address = input.as_ptr().addr() + 400;
    assert_eq!(
        kind,
        ViolationKind::GlobalOutOfBounds { address, bytes: 4, nearest: Some(Nearest { offset: 400, len: 400 }) }
    );
}

#[test]
fn a_store_past_the_end() {
    let input = Buffer::<u32>::new(128);
    let mut out = Buffer::<u32>::new(127);
    let result = launch!(NoBounds { input: input.as_ptr(), out: out.as_mut_ptr() }, 2, 64);
    let kind = HERE.fault(result, "no_bounds", 1, 63, "store");
    assert!(matches!(kind, ViolationKind::GlobalOutOfBounds { bytes: 4, .. }), "{kind}");
}

#[test]
fn a_null_pointer() {
    let input = Buffer::<u32>::new(128);
    let result = launch!(NoBounds { input: input.as_ptr(), out: std::ptr::null_mut() }, 1, 1);
    let kind = HERE.fault(result, "no_bounds", 0, 0, "store");
    assert_eq!(kind, ViolationKind::GlobalOutOfBounds { address: 0, bytes: 4, nearest: None });
}

#[test]
fn host_memory_is_not_global_memory() {
    let input = [0u32; 4];
    let result = launch!(NoBounds { input: input.as_ptr(), out: std::ptr::null_mut() }, 1, 1);
    let kind = HERE.fault(result, "no_bounds", 0, 0, "load");
    assert!(matches!(kind, ViolationKind::GlobalOutOfBounds { .. }), "{kind}");
}

#[test]
fn a_freed_buffer() {
    let mut out = Buffer::<u32>::new(4);
    let input = Buffer::<u32>::new(4).as_ptr();
    let kind = HERE.fault(launch!(NoBounds { input, out: out.as_mut_ptr() }, 1, 4), "no_bounds", 0, 0, "load");
    assert_eq!(kind, ViolationKind::GlobalFreed { address: input.addr(), bytes: 4 });
}

#[test]
fn a_misaligned_pointer() {
    let input = Buffer::<u32>::new(4);
    let mut out = Buffer::<u32>::new(4);
    let pointer = input.as_ptr().wrapping_byte_add(2);
    let kind = HERE.fault(launch!(NoBounds { input: pointer, out: out.as_mut_ptr() }, 1, 1), "no_bounds", 0, 0, "load");
    assert_eq!(kind, ViolationKind::GlobalMisaligned { address: pointer.addr(), alignment: 4 });
}

/// Vector loads need vector alignment and must fit as a whole.
#[kernel]
unsafe fn vector(input: *const f32) {
    // SAFETY: none: that is the fault.
    unsafe {
        global::load_nc(input.cast::<global::F32x4>()); // FAULT: vector
    }
}

#[test]
fn a_vector_that_straddles_the_end() {
    let input = Buffer::<f32>::new(10);
    let pointer = input.as_ptr().wrapping_add(8);
    let kind = HERE.fault(launch!(Vector { input: pointer }, 1, 1), "vector", 0, 0, "vector");
    let nearest = Some(Nearest { offset: 32, len: 40 });
    assert_eq!(kind, ViolationKind::GlobalOutOfBounds { address: pointer.addr(), bytes: 16, nearest });
    let pointer = input.as_ptr().wrapping_add(1);
    let kind = HERE.fault(launch!(Vector { input: pointer }, 1, 1), "vector", 0, 0, "vector");
    assert_eq!(kind, ViolationKind::GlobalMisaligned { address: pointer.addr(), alignment: 16 });
}

/// Atomics, volatile accesses and asynchronous copies are checked as well; `which` picks one.
#[kernel]
unsafe fn others(p: *mut u32, which: u32) {
    let tile = shared::dynamic::<u8>();
    // SAFETY: none: that is the fault.
    unsafe {
        match which {
            0 => drop(atomic::add_u32(p, 1)),                 // FAULT: atomic
            1 => drop(atomic::add_f32(p.cast(), 1.0)),        // FAULT: float atomic
            2 => drop(global::load_volatile(p)),              // FAULT: volatile load
            3 => global::store_volatile(p, 1),                // FAULT: volatile store
            4 => async_copy::copy_16(tile, p.cast()),         // FAULT: copy
            5 => async_copy::copy_4_zfill(tile, p.cast(), 1), // FAULT: part of a copy
            6 => drop(atomic::cas_u32(p, 0, 1)),              // FAULT: compare and swap
            _ => async_copy::copy_8_zfill(tile, p.cast(), 0),
        }
    }
}

#[test]
fn every_other_access() {
    let mut buffer = Buffer::<u32>::new(16);
    let end = buffer.as_mut_ptr().wrapping_add(16);
    for (which, marker) in
        ["atomic", "float atomic", "volatile load", "volatile store", "copy", "part of a copy", "compare and swap"]
            .into_iter()
            .enumerate()
    {
        let kind = HERE.fault(launch!(Others { p: end, which: which as u32 }, 1, 1), "others", 0, 0, marker);
        assert!(matches!(kind, ViolationKind::GlobalOutOfBounds { .. }), "{marker}: {kind}");
    }
    // Nothing is read, so nothing is out of bounds.
    launch!(Others { p: end, which: 7 }, 1, 1).unwrap();
}

#[test]
fn misaligned_copies_and_atomics() {
    let mut buffer = Buffer::<u32>::new(16);
    let pointer = buffer.as_mut_ptr().wrapping_add(1);
    let kind = HERE.fault(launch!(Others { p: pointer, which: 4 }, 1, 1), "others", 0, 0, "copy");
    assert_eq!(kind, ViolationKind::GlobalMisaligned { address: pointer.addr(), alignment: 16 });
    let pointer = buffer.as_mut_ptr().wrapping_byte_add(3);
    let kind = HERE.fault(launch!(Others { p: pointer, which: 0 }, 1, 1), "others", 0, 0, "atomic");
    assert_eq!(kind, ViolationKind::GlobalMisaligned { address: pointer.addr(), alignment: 4 });
}
