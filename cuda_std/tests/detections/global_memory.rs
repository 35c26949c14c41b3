//! Arguments that do not fit their buffers, and global accesses outside the arguments, in freed buffers, misaligned or
//! not permitted.

use crate::Source;
use cuda_std::{
    Ptr, PtrMut, async_copy, atomic,
    emulator::{Access, Buffer, Nearest, ViolationKind},
    global, kernel,
    ptr::TO_END,
    shared, thread,
};

const HERE: Source = source!("global_memory.rs");

/// Each thread reads and writes one value without checking the length.
#[kernel]
unsafe fn no_bounds(input: Ptr<u32>, out: PtrMut<u32>) {
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
    let nearest = Some(Nearest { parameter: "input", offset: 400, len: 400 });
    assert_eq!(kind, ViolationKind::GlobalOutOfBounds { access: Access::Read, address, bytes: 4, nearest });
    let text = format!(
        "read of 4 bytes at {address:#x}, outside the launch's arguments: 0 bytes beyond the end of `input` (400 bytes)"
    );
    assert_eq!(kind.to_string(), text);
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
    let out = PtrMut::new(std::ptr::null_mut(), 128);
    let result = launch!(NoBounds { input: input.as_ptr(), out }, 1, 1); // FAULT: null argument
    let kind = HERE.fault(result, "no_bounds", 0, 0, "null argument");
    let address = std::ptr::dangling::<u32>().addr();
    assert_eq!(kind, ViolationKind::ArgumentNotGlobal { parameter: "out", address, bytes: 512 });
    // A null pointer of length 0 is a valid argument; the kernel may not access anything through it.
    let result = launch!(NoBounds { input: input.as_ptr(), out: PtrMut::new(std::ptr::null_mut(), 0) }, 1, 1);
    let kind = HERE.fault(result, "no_bounds", 0, 0, "store");
    let nearest = Some(Nearest { parameter: "out", offset: 0, len: 0 });
    assert_eq!(kind, ViolationKind::GlobalOutOfBounds { access: Access::Write, address, bytes: 4, nearest });
}

#[test]
fn host_memory_is_not_global_memory() {
    let input = [0u32; 4];
    let launch = NoBounds { input: Ptr::new(input.as_ptr(), 4), out: PtrMut::empty() };
    let kind = HERE.fault(launch!(NoBounds, launch, 1, 1), "no_bounds", 0, 0, "host memory"); // FAULT: host memory
    let address = input.as_ptr().addr();
    assert_eq!(kind, ViolationKind::ArgumentNotGlobal { parameter: "input", address, bytes: 16 });
    // Host memory is not an argument if its length is unknown either.
    let launch = NoBounds { input: Ptr::new(input.as_ptr(), TO_END), ..launch };
    let kind = HERE.fault(launch!(NoBounds, launch, 1, 1), "no_bounds", 0, 0, "load");
    let nearest = Some(Nearest { parameter: "input", offset: 0, len: 0 });
    assert_eq!(kind, ViolationKind::GlobalOutOfBounds { access: Access::Read, address, bytes: 4, nearest });
}

#[test]
fn a_freed_buffer() {
    let mut out = Buffer::<u32>::new(4);
    let input = Buffer::<u32>::new(4).as_ptr();
    let launch = NoBounds { input, out: out.as_mut_ptr() };
    let kind = HERE.fault(launch!(NoBounds, launch, 1, 4), "no_bounds", 0, 0, "freed argument"); // FAULT: freed argument
    assert_eq!(kind, ViolationKind::ArgumentFreed { parameter: "input", address: input.addr(), bytes: 16 });
    // An address in a freed buffer, outside of all arguments.
    for len in [0, TO_END] {
        let launch = NoBounds { input: Ptr::new(*input, len), ..launch };
        let kind = HERE.fault(launch!(NoBounds, launch, 1, 4), "no_bounds", 0, 0, "load");
        assert_eq!(kind, ViolationKind::GlobalFreed { address: input.addr(), bytes: 4 });
    }
}

#[test]
fn a_misaligned_pointer() {
    let input = Buffer::<u32>::new(4);
    let mut out = Buffer::<u32>::new(4);
    let pointer = Ptr::new(input.as_ptr().wrapping_byte_add(2), 3);
    let kind = HERE.fault(launch!(NoBounds { input: pointer, out: out.as_mut_ptr() }, 1, 1), "no_bounds", 0, 0, "load");
    assert_eq!(kind, ViolationKind::GlobalMisaligned { address: pointer.addr(), alignment: 4 });
}

/// Vector loads need vector alignment and must fit as a whole.
#[kernel]
unsafe fn vector(input: Ptr<f32>) {
    // SAFETY: none: that is the fault.
    unsafe {
        global::load_nc(*input.cast::<global::F32x4>()); // FAULT: vector
    }
}

#[test]
fn a_vector_that_straddles_the_end() {
    let input = Buffer::<f32>::new(10);
    let pointer = input.as_ptr().skip(8);
    let kind = HERE.fault(launch!(Vector { input: pointer }, 1, 1), "vector", 0, 0, "vector");
    let (access, nearest) = (Access::Read, Some(Nearest { parameter: "input", offset: 0, len: 8 }));
    assert_eq!(kind, ViolationKind::GlobalOutOfBounds { access, address: pointer.addr(), bytes: 16, nearest });
    assert!(kind.to_string().ends_with(": 0 bytes from the start of `input` (8 bytes)"), "{kind}");
    let pointer = input.as_ptr().skip(1);
    let kind = HERE.fault(launch!(Vector { input: pointer }, 1, 1), "vector", 0, 0, "vector");
    assert_eq!(kind, ViolationKind::GlobalMisaligned { address: pointer.addr(), alignment: 16 });
}

/// Atomics, volatile accesses and asynchronous copies are checked as well; `which` picks one.
#[kernel]
unsafe fn others(p: PtrMut<u32>, which: u32) {
    let tile = shared::dynamic::<u8>();
    // SAFETY: none: that is the fault.
    unsafe {
        match which {
            0 => drop(atomic::add_u32(*p, 1)),                 // FAULT: atomic
            1 => drop(atomic::add_f32(*p.cast(), 1.0)),        // FAULT: float atomic
            2 => drop(global::load_volatile(*p)),              // FAULT: volatile load
            3 => global::store_volatile(*p, 1),                // FAULT: volatile store
            4 => async_copy::copy_16(tile, *p.cast()),         // FAULT: copy
            5 => async_copy::copy_4_zfill(tile, *p.cast(), 1), // FAULT: part of a copy
            6 => drop(atomic::cas_u32(*p, 0, 1)),              // FAULT: compare and swap
            _ => async_copy::copy_8_zfill(tile, *p.cast(), 0),
        }
    }
}

#[test]
fn every_other_access() {
    let mut buffer = Buffer::<u32>::new(16);
    let end = buffer.as_mut_ptr().skip(16);
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
    let pointer = buffer.as_mut_ptr().skip(1);
    let kind = HERE.fault(launch!(Others { p: pointer, which: 4 }, 1, 1), "others", 0, 0, "copy");
    assert_eq!(kind, ViolationKind::GlobalMisaligned { address: pointer.addr(), alignment: 16 });
    let pointer = PtrMut::new(buffer.as_mut_ptr().wrapping_byte_add(3), 15);
    let kind = HERE.fault(launch!(Others { p: pointer, which: 0 }, 1, 1), "others", 0, 0, "atomic");
    assert_eq!(kind, ViolationKind::GlobalMisaligned { address: pointer.addr(), alignment: 4 });
}

/// Copies a row of `columns` values for each thread, and the value that stands `offset` values after the row's first.
#[kernel]
unsafe fn copy_rows(
    /// A row for each thread.
    rows: Ptr<u32>,
    /// A row for each thread.
    out: PtrMut<u32>,
    /// Added to each value, if present: one value for each thread.
    shifts: Option<Ptr<u32>>,
    columns: u32,
    offset: i32,
) {
    let t = thread::thread_idx_x();
    // SAFETY: none of `offset`: that is the fault.
    unsafe {
        let shift = match shifts {
            Some(shifts) => global::load(shifts.wrapping_add(t as usize)), // FAULT: shift
            None => 0,
        };
        for column in 0..columns {
            let at = (t * columns + column) as usize;
            global::store(out.wrapping_add(at), global::load(rows.wrapping_add(at)) + shift); // FAULT: rows
        }
        global::load(rows.wrapping_add((t * columns) as usize).wrapping_offset(offset as isize)); // FAULT: beside
    }
}

/// Accesses in an argument's buffer that lie before the argument or behind it, where no argument is.
#[test]
fn an_access_beside_an_argument() {
    let buffer = Buffer::from_slice(&(0..64u32).collect::<Vec<_>>());
    let mut out = Buffer::<u32>::new(16);
    let rows = buffer.as_ptr().skip(16).take(16);
    let mut run = |offset, shifts| launch!(CopyRows { rows, out: out.as_mut_ptr(), shifts, columns: 4, offset }, 1, 4);
    run(3, None).unwrap();
    // Thread 3 reads one element past the last row.
    let kind = HERE.fault(run(4, None), "copy_rows", 0, 3, "beside");
    let (access, address) = (Access::Read, rows.addr() + 64);
    let nearest = Some(Nearest { parameter: "rows", offset: 64, len: 64 });
    assert_eq!(kind, ViolationKind::GlobalOutOfBounds { access, address, bytes: 4, nearest });
    // Thread 0 reads the element before the first.
    let kind = HERE.fault(run(-2, None), "copy_rows", 0, 0, "beside");
    let address = rows.addr() - 8;
    let nearest = Some(Nearest { parameter: "rows", offset: -8, len: 64 });
    assert_eq!(kind, ViolationKind::GlobalOutOfBounds { access, address, bytes: 4, nearest });
    assert!(kind.to_string().ends_with(": 8 bytes before the start of `rows` (64 bytes)"), "{kind}");
    // Another argument that begins there makes the access valid; one that begins later is not the nearest.
    run(4, Some(buffer.as_ptr().skip(32).take(4))).unwrap();
    let kind = HERE.fault(run(5, Some(buffer.as_ptr().skip(40).take(4))), "copy_rows", 0, 3, "beside");
    assert!(kind.to_string().ends_with(": 4 bytes beyond the end of `rows` (64 bytes)"), "{kind}");
    let kind = HERE.fault(run(23, Some(buffer.as_ptr().skip(40).take(4))), "copy_rows", 0, 0, "beside");
    assert!(kind.to_string().ends_with(": 4 bytes before the start of `shifts` (16 bytes)"), "{kind}");
}

#[test]
fn an_absent_argument() {
    let buffer = Buffer::from_slice(&[1u32, 2, 3, 4]);
    let mut out = Buffer::<u32>::new(4);
    let rows = buffer.as_ptr();
    launch!(CopyRows { rows, out: out.as_mut_ptr(), shifts: None, columns: 1, offset: 0 }, 1, 4).unwrap();
    assert_eq!(out.to_vec(), [1, 2, 3, 4]);
    launch!(CopyRows { rows, out: out.as_mut_ptr(), shifts: Some(rows), columns: 1, offset: 0 }, 1, 4).unwrap();
    assert_eq!(out.to_vec(), [2, 4, 6, 8]);
    // An array that is present but too short is not treated as absent.
    let short = Buffer::<u32>::new(2);
    let launch = CopyRows { rows, out: out.as_mut_ptr(), shifts: Some(short.as_ptr()), columns: 1, offset: 0 };
    let kind = HERE.fault(launch!(CopyRows, launch, 1, 4), "copy_rows", 0, 2, "shift");
    assert!(kind.to_string().ends_with(": 0 bytes beyond the end of `shifts` (8 bytes)"), "{kind}");
}

#[test]
fn an_argument_longer_than_its_buffer() {
    let buffer = Buffer::<u32>::new(64);
    let mut out = Buffer::<u32>::new(16);
    let rows = Ptr::new(buffer.as_ptr().wrapping_add(49), 16);
    let launch = CopyRows { rows, out: out.as_mut_ptr(), shifts: None, columns: 1, offset: 0 };
    let kind = HERE.fault(launch!(CopyRows, launch, 1, 1), "copy_rows", 0, 0, "too long"); // FAULT: too long
    assert_eq!(kind, ViolationKind::ArgumentTooLong { parameter: "rows", bytes: 64, available: 60 });
    assert_eq!(kind.to_string(), "launch refused: `rows` has 64 bytes, its buffer has 60 from there on");
    launch!(CopyRows { rows: Ptr::new(*rows, 15), ..launch }, 1, 1).unwrap();
    // The launch also refuses a length whose bytes overflow, and a length above 0 at the end of the buffer. Length 0
    // there is valid.
    for rows in [Ptr::new(*rows, usize::MAX / 2), Ptr::new(buffer.as_ptr().wrapping_add(64), 1)] {
        let kind = HERE.fault(launch!(CopyRows { rows, ..launch }, 1, 1), "copy_rows", 0, 0, "longer"); // FAULT: longer
        assert!(matches!(kind, ViolationKind::ArgumentTooLong { parameter: "rows", .. }), "{kind}");
    }
    let rows = Ptr::new(buffer.as_ptr().wrapping_add(64), 0);
    let kind = HERE.fault(launch!(CopyRows { rows, ..launch }, 1, 1), "copy_rows", 0, 0, "rows");
    assert!(kind.to_string().ends_with(": 0 bytes beyond the end of `rows` (0 bytes)"), "{kind}");
}

/// An argument of unknown length extends to the end of its buffer.
#[test]
fn an_argument_to_the_end_of_its_buffer() {
    let buffer = Buffer::<u32>::new(64);
    let mut out = Buffer::<u32>::new(16);
    let rows = Ptr::new(*buffer.as_ptr(), TO_END).skip(60);
    let launch = CopyRows { rows, out: out.as_mut_ptr(), shifts: None, columns: 1, offset: 3 };
    launch!(CopyRows, launch, 1, 1).unwrap();
    let kind = HERE.fault(launch!(CopyRows { offset: 4, ..launch }, 1, 1), "copy_rows", 0, 0, "beside");
    assert!(kind.to_string().ends_with(": 0 bytes beyond the end of `rows` (16 bytes)"), "{kind}");
}

/// Writes one value by a pointer to read by, in one of the ways that a kernel writes.
#[kernel]
unsafe fn write_input(input: Ptr<u32>, out: PtrMut<u32>, which: u32) {
    let p = input.wrapping_add(1).cast_mut();
    // SAFETY: none: that is the fault.
    unsafe {
        global::store(*out, 0);
        match which {
            0 => global::store(p, 1),             // FAULT: plain write to an input
            1 => global::store_volatile(p, 1),    // FAULT: volatile write to an input
            2 => drop(atomic::add_u32(p, 1)),     // FAULT: atomic on an input
            _ => global::store(p.cast(), [1; 2]), // FAULT: write to a part of an input
        }
    }
}

#[test]
fn a_write_to_a_read_only_argument() {
    let (buffer, mut out) = (Buffer::<u32>::new(4), Buffer::<u32>::new(1));
    let input = buffer.as_ptr();
    let markers =
        ["plain write to an input", "volatile write to an input", "atomic on an input", "write to a part of an input"];
    for (which, marker) in (0..).zip(markers) {
        let launch = WriteInput { input, out: out.as_mut_ptr(), which };
        let kind = HERE.fault(launch!(WriteInput, launch, 1, 1), "write_input", 0, 0, marker);
        let ViolationKind::ReadOnlyArgument { address, holder, .. } = kind else { panic!("{kind}") };
        assert_eq!(address, input.addr() + 4);
        assert_eq!(holder, Some(Nearest { parameter: "input", offset: 4, len: 16 }));
        assert!(
            kind.to_string().ends_with("which the kernel may only read: 4 bytes from the start of `input` (16 bytes)")
        );
    }
    assert_eq!(buffer.to_vec(), [0; 4], "stopped before it is written");
}

/// A kernel may write where a readable and a writable argument overlap, and one access may lie in several arguments.
#[test]
fn arguments_that_overlap_and_touch() {
    let mut buffer = Buffer::<u32>::new(4);
    let all = buffer.as_mut_ptr();
    let input = all.read_only();
    for which in 0..4 {
        launch!(WriteInput { input, out: all, which }, 1, 1).unwrap();
        launch!(WriteInput { input, out: all.skip(1), which }, 1, 1).unwrap();
    }
    // The write of two words: the second is only read.
    let launch = WriteInput { input, out: all.take(2), which: 3 };
    let kind = HERE.fault(launch!(WriteInput, launch, 1, 1), "write_input", 0, 0, "write to a part of an input");
    let ViolationKind::ReadOnlyArgument { address, .. } = kind else { panic!("{kind}") };
    assert_eq!(address, all.addr() + 8);
    // The load of four words from two arguments that touch, of which one may be written.
    let floats = buffer.as_mut_ptr().cast::<f32>();
    launch!(LoadFour { first: floats.take(1).into(), rest: floats.skip(1) }, 1, 1).unwrap();
    let launch = LoadFour { first: floats.take(1).into(), rest: floats.skip(1).take(2) };
    let kind = HERE.fault(launch!(LoadFour, launch, 1, 1), "load_four", 0, 0, "four words");
    assert!(matches!(kind, ViolationKind::GlobalOutOfBounds { bytes: 16, .. }), "{kind}");
}

/// Loads four words at once, of which two arguments cover some each.
#[kernel]
unsafe fn load_four(first: Option<Ptr<f32>>, rest: PtrMut<f32>) {
    if let Some(first) = first {
        // SAFETY: none if `rest` is short: that is the fault.
        unsafe {
            global::load(*first.cast::<global::F32x4>()); // FAULT: four words
            global::store(*rest, 1.0);
        }
    }
}
