//! What `#[kernel]` makes: names, bounds, families from a table, arguments of every type.

use crate::one_block;
use cuda_std::{
    emulator::{self, Buffer},
    global, kernel,
    launch::{Kernel, KernelArgs},
    thread,
};

/// A kernel a line: name, rows a thread, bounds.
macro_rules! family {
    ($($name:ident[$t:ty] $rows:literal, $threads:literal, $blocks:literal;)*) => {$(
        #[kernel(max_threads = $threads, min_blocks = $blocks)]
        pub unsafe fn $name(out: *mut $t, first: $t) {
            for row in 0..$rows {
                let i = row * thread::block_dim_x() + thread::thread_idx_x();
                // SAFETY: the test gives `rows` values a thread.
                unsafe { global::store(out.add(i as usize), first + i as $t) }
            }
        }
    )*};
}

family! {
    fill_two[u32] 2, 128, 4;
    fill_three[f64] 3, 64, 1;
}

#[test]
fn a_family_from_a_table() {
    let (mut words, mut doubles) = (Buffer::<u32>::new(20), Buffer::<f64>::new(30));
    // SAFETY: two and three values a thread.
    unsafe {
        emulator::launch(&FILL_TWO, one_block(10, 0), (words.as_mut_ptr(), 5)).unwrap();
        emulator::launch(&FILL_THREE, one_block(10, 0), (doubles.as_mut_ptr(), 0.5)).unwrap();
    }
    assert_eq!(words.to_vec(), (5..25).collect::<Vec<_>>());
    assert_eq!(doubles.to_vec(), (0..30).map(|i| f64::from(i) + 0.5).collect::<Vec<_>>());
    assert_eq!((FILL_TWO.name(), FILL_THREE.name()), ("fill_two", "fill_three"));
    assert_eq!(FILL_TWO.max_threads(), Some(128));
}

/// One parameter of each type.
#[kernel]
unsafe fn every_type(
    out: *mut f64,
    bytes: *const u8,
    a: u8,
    b: u16,
    c: u32,
    d: u64,
    e: i8,
    f: i16,
    g: i32,
    h: i64,
    i: usize,
    j: f32,
    k: f64,
) {
    let values =
        [a as f64, b as f64, c as f64, d as f64, e as f64, f as f64, g as f64, h as f64, i as f64, j as f64, k];
    for (at, value) in values.into_iter().enumerate() {
        // SAFETY: 12 results, one byte.
        unsafe { global::store(out.add(at), value) }
    }
    // SAFETY: as above.
    unsafe { global::store(out.add(11), global::load(bytes).into()) }
}

#[test]
fn arguments_of_every_type() {
    assert_eq!(EVERY_TYPE.max_threads(), None);
    let (mut out, bytes) = (Buffer::<f64>::new(12), Buffer::from_slice(&[77u8]));
    let arguments = (out.as_mut_ptr(), bytes.as_ptr(), 1, 2, 3, 4, -5, -6, -7, -8, 9, 10.5, -11.25);
    // SAFETY: 12 results, one byte.
    unsafe { emulator::launch(&EVERY_TYPE, one_block(1, 0), arguments) }.unwrap();
    assert_eq!(out.to_vec(), [1.0, 2.0, 3.0, 4.0, -5.0, -6.0, -7.0, -8.0, 9.0, 10.5, -11.25, 77.0]);
}

#[test]
fn arguments_as_the_driver_takes_them() {
    let mut arguments = (7u32, 2.5f64, std::ptr::null::<u8>(), 9u8);
    let addresses = [
        std::ptr::from_mut(&mut arguments.0).cast(),
        std::ptr::from_mut(&mut arguments.1).cast(),
        std::ptr::from_mut(&mut arguments.2).cast(),
        std::ptr::from_mut(&mut arguments.3).cast(),
    ];
    let mut raw = arguments.as_raw();
    assert_eq!(raw.as_slice(), addresses);
    assert_eq!(raw.as_mut_ptr().addr(), raw.as_slice().as_ptr().addr());
    assert!(().as_raw().as_slice().is_empty());
}

/// A handle is a constant, and may be kept in a table.
#[test]
fn handles_are_values() {
    static TABLE: [Kernel<(*mut u32, u32)>; 1] = [FILL_TWO];
    assert_eq!(TABLE[0].name(), "fill_two");
}
