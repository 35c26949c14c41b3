use crate::one_block;
use cuda_std::{
    PtrMut,
    emulator::{self, Buffer},
    global::{self, F32x2, F32x4, U32x2, U32x4},
    kernel,
    launch::LaunchConfig,
    shared, shared_array, thread, unroll,
};

/// Moves values of every width through global and shared memory, reversed within the block of 64.
#[kernel]
unsafe fn widths(
    bytes: PtrMut<u8>,
    halves: PtrMut<u16>,
    words: PtrMut<u32>,
    pairs: PtrMut<U32x2>,
    quads: PtrMut<F32x4>,
    doubles: PtrMut<f64>,
) {
    let t = thread::thread_idx_x();
    let (s8, s16, s32) = (shared_array!(u8, 64), shared_array!(u16, 64), shared_array!(u32, 64));
    let (s64, s128, sd) = (shared_array!(U32x2, 64), shared::dynamic::<F32x4>(), shared_array!(f64, 64));
    let at = t as usize;
    // SAFETY: 64 threads, 64 elements in each array, a barrier between writes and reads.
    unsafe {
        s8.add(t).store(global::load(bytes.add(at)));
        s16.add(t).store(global::load(halves.add(at)));
        s32.add(t).store(global::load_nc(words.add(at)));
        s64.add(t).store(global::load_nc(pairs.add(at)));
        s128.add(t).store(global::load(quads.add(at)));
        sd.add(t).store(global::load_volatile(doubles.add(at)));
        thread::sync_threads();
        global::store(bytes.add(at), s8.add(63 - t).load());
        global::store(halves.add(at), s16.add(63 - t).load());
        global::store(words.add(at), s32.add(63 - t).load());
        global::store(pairs.add(at), s64.add(63 - t).load());
        global::store(quads.add(at), s128.add(63 - t).load());
        global::store_volatile(doubles.add(at), sd.add(63 - t).load());
    }
}

#[test]
fn every_width_survives_a_reversal() {
    let mut bytes = Buffer::from_slice(&(0..64u8).collect::<Vec<_>>());
    let mut halves = Buffer::from_slice(&(0..64u16).map(|i| i * 1000).collect::<Vec<_>>());
    let mut words = Buffer::from_slice(&(0..64u32).map(|i| i * 0x0101_0101).collect::<Vec<_>>());
    let mut pairs = Buffer::from_slice(&(0..64u32).map(|i| U32x2([i, !i])).collect::<Vec<_>>());
    let mut quads = Buffer::from_slice(&(0..64).map(|i| F32x4([i as f32, 1.0, -2.0, 0.5])).collect::<Vec<_>>());
    let mut doubles = Buffer::from_slice(&(0..64).map(|i| f64::from(i) / 3.0).collect::<Vec<_>>());
    let launch = Widths {
        bytes: bytes.as_mut_ptr(),
        halves: halves.as_mut_ptr(),
        words: words.as_mut_ptr(),
        pairs: pairs.as_mut_ptr(),
        quads: quads.as_mut_ptr(),
        doubles: doubles.as_mut_ptr(),
    };
    // SAFETY: 64 threads and 64 elements in each buffer.
    let stats = unsafe { emulator::launch(&Widths::KERNEL, one_block(64, 64 * 16), launch) }.unwrap();
    assert_eq!(bytes.to_vec(), (0..64).rev().collect::<Vec<u8>>());
    assert_eq!(halves.to_vec(), (0..64).rev().map(|i| i * 1000).collect::<Vec<u16>>());
    assert_eq!(words.to_vec(), (0..64).rev().map(|i| i * 0x0101_0101).collect::<Vec<u32>>());
    assert_eq!(pairs.to_vec(), (0..64).rev().map(|i| U32x2([i, !i])).collect::<Vec<_>>());
    assert_eq!(quads.to_vec(), (0..64).rev().map(|i| F32x4([i as f32, 1.0, -2.0, 0.5])).collect::<Vec<_>>());
    assert_eq!(doubles.to_vec(), (0..64).rev().map(|i| f64::from(i) / 3.0).collect::<Vec<_>>());
    assert_eq!(stats.global_load_bytes, 64 * (1 + 2 + 4 + 8 + 16 + 8));
    assert_eq!(stats.global_store_bytes, stats.global_load_bytes);
    assert_eq!(stats.barriers, 1);
}

/// An array per place and size: arrays do not overlap, and a second block starts with fresh ones.
#[kernel]
unsafe fn arrays(out: PtrMut<u32>) {
    let t = thread::thread_idx_x();
    let (a, b) = (shared_array!(u32, 8), shared_array!(u32, 8));
    // SAFETY: 8 threads, 8 elements each; 16 results a block.
    unsafe {
        a.add(t).store(t);
        b.add(t).store(100 + t);
        thread::sync_threads();
        let row = out.add(16 * thread::block_idx_x() as usize);
        global::store(row.add(t as usize), a.add(7 - t).load());
        global::store(row.add(8 + t as usize), b.add(7 - t).load());
    }
}

#[test]
fn static_arrays_are_distinct() {
    let mut out = Buffer::<u32>::new(48);
    let config = LaunchConfig::linear(3, 8);
    // SAFETY: 16 results a block.
    unsafe { emulator::launch(&Arrays::KERNEL, config, Arrays { out: out.as_mut_ptr() }) }.unwrap();
    let block = [[7, 6, 5, 4, 3, 2, 1, 0], [107, 106, 105, 104, 103, 102, 101, 100]].concat();
    assert_eq!(out.to_vec(), block.repeat(3));
}

/// Every thread writes and reads a word of dynamic shared memory.
#[kernel]
unsafe fn dynamic_words(out: PtrMut<u32>) {
    let t = thread::thread_idx_x();
    let words = shared::dynamic::<u32>();
    // SAFETY: a word and a result a thread.
    unsafe {
        words.add(t).store(t);
        thread::sync_threads();
        global::store(out.add(t as usize), words.add(t ^ 1).load());
    }
}

/// A launch may use a little more dynamic memory than the one before it.
#[test]
fn dynamic_memory_grows_by_words() {
    for threads in (2..200).step_by(2) {
        let mut out = Buffer::<u32>::new(threads as usize);
        let launch = DynamicWords { out: out.as_mut_ptr() };
        // SAFETY: a word and a result a thread.
        unsafe { emulator::launch(&DynamicWords::KERNEL, one_block(threads, 4 * threads), launch) }.unwrap();
        assert_eq!(out.to_vec(), (0..threads).map(|t| t ^ 1).collect::<Vec<_>>());
    }
}

/// Calls `sync_threads_or` with a predicate that is true for thread `the_one` only.
#[kernel]
unsafe fn someone(the_one: u32, out: PtrMut<u32>) {
    let t = thread::thread_idx_x();
    let first = thread::sync_threads_or(t == the_one);
    let second = thread::sync_threads_or(false);
    let third = thread::sync_threads_or(t != the_one);
    // SAFETY: one result a thread.
    unsafe { global::store(out.add(t as usize), u32::from(first) + 2 * u32::from(second) + 4 * u32::from(third)) }
}

#[test]
fn barriers_tell_whether_any() {
    for (the_one, expected) in [(0, 5), (77, 5), (95, 5), (96, 4)] {
        let mut out = Buffer::<u32>::new(96);
        let launch = Someone { the_one, out: out.as_mut_ptr() };
        // SAFETY: one result a thread.
        unsafe { emulator::launch(&Someone::KERNEL, one_block(96, 0), launch) }.unwrap();
        assert_eq!(out.to_vec(), [expected; 96], "thread {the_one}");
    }
}

#[test]
fn vector_types_are_one_access() {
    assert_eq!((size_of::<F32x2>(), align_of::<F32x2>()), (8, 8));
    assert_eq!((size_of::<U32x4>(), align_of::<U32x4>()), (16, 16));
}

#[test]
fn unroll_counts() {
    let mut seen = Vec::new();
    unroll::<64>(|i| seen.push(i));
    assert_eq!(seen, (0..64).collect::<Vec<_>>());
    unroll::<0>(|_| panic!("nothing to do"));
}

#[test]
fn buffers() {
    assert_eq!(Buffer::<u32>::new(3).to_vec(), [0; 3]);
    assert_eq!(Buffer::<u32>::new_poisoned(2).to_vec(), [0xA5A5_A5A5; 2]);
    let mut buffer = Buffer::from_slice(&[1u64, 2, 3]);
    assert_eq!((buffer.len(), buffer.is_empty(), buffer.as_ptr().addr() % 256), (3, false, 0));
    buffer.copy_from(&[4, 5, 6]);
    assert_eq!(buffer.to_vec(), [4, 5, 6]);
    assert!(Buffer::<f32>::new(0).is_empty());
}
