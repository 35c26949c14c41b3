use crate::one_block;
use cuda_std::{
    Ptr, PtrMut, async_copy,
    emulator::{self, Buffer},
    global, kernel, shared, thread,
};

/// Each thread copies 4, 8 and 16 bytes, whole and in part, and reads a neighbour's after wait and barrier.
#[kernel]
unsafe fn sizes(input: Ptr<u8>, out: PtrMut<u8>, kept: u32) {
    let t = thread::thread_idx_x();
    let (memory, src) = (shared::dynamic::<u8>(), input.wrapping_add(16 * t as usize));
    let count = thread::block_dim_x();
    let parts = [0, 4, 8, 16, 32, 40, 48, 64].map(|start| start * count);
    // SAFETY: 16 bytes a thread in the input, 64 in the output and in shared memory; the parts are multiples of 16.
    unsafe {
        async_copy::copy_4(memory.add(parts[0] + 4 * t), src);
        async_copy::copy_4_zfill(memory.add(parts[1] + 4 * t), src, kept.min(4));
        async_copy::copy_8(memory.add(parts[2] + 8 * t), src);
        async_copy::copy_16(memory.add(parts[3] + 16 * t), src);
        async_copy::commit();
        async_copy::copy_8_zfill(memory.add(parts[4] + 8 * t), src, kept.min(8));
        async_copy::copy_16_zfill(memory.add(parts[6] + 16 * t), src, kept);
        async_copy::wait_all();
        thread::sync_threads();
        let other = count - 1 - t;
        let row = out.add(56 * t as usize);
        for (part, bytes, at) in [(0, 4, 0), (1, 4, 4), (2, 8, 8), (3, 16, 16), (4, 8, 32), (6, 16, 40)] {
            for i in 0..bytes {
                global::store(row.add((at + i) as usize), memory.add(parts[part] + bytes * other + i).load());
            }
        }
    }
}

#[test]
fn sizes_and_zero_fill() {
    const THREADS: usize = 48;
    let bytes: Vec<u8> = (0..16 * THREADS).map(|i| (i % 255) as u8 + 1).collect();
    let input = Buffer::from_slice(&bytes);
    for kept in [0u32, 1, 3, 4, 7, 8, 15, 16] {
        let mut out = Buffer::<u8>::new_poisoned(56 * THREADS);
        let config = one_block(THREADS as u32, 64 * THREADS as u32);
        let launch = Sizes { input: input.as_ptr(), out: out.as_mut_ptr(), kept };
        // SAFETY: 16 bytes a thread in the input, 56 in the output, 64 in shared memory.
        unsafe { emulator::launch(&Sizes::KERNEL, config, launch) }.unwrap();
        for (t, row) in out.to_vec().chunks(56).enumerate() {
            let src = &bytes[16 * (THREADS - 1 - t)..][..16];
            let padded = |size: usize| {
                let kept = size.min(kept as usize);
                [&src[..kept], &vec![0; size - kept]].concat()
            };
            let expected = [&src[..4], &padded(4), &src[..8], src, &padded(8), &padded(16)].concat();
            assert_eq!(row, expected, "thread {t}, {kept} bytes kept");
        }
    }
}

/// A ring of three stages: the usual pipeline, `wait_group::<1>` with two groups in flight.
#[kernel]
unsafe fn pipeline(input: Ptr<u32>, out: PtrMut<u32>, steps: u32) {
    const STAGES: u32 = 3;
    let t = thread::thread_idx_x();
    let count = thread::block_dim_x();
    let ring = shared::dynamic::<u32>();
    let mut sum = 0;
    // SAFETY: `steps` rows of one word a thread, three rows of shared memory, one result a thread. A stage is refilled
    // after the barrier that follows its last read.
    unsafe {
        let fill = |step: u32| {
            if step < steps {
                let src = input.add((step * count + t) as usize);
                async_copy::copy_4(ring.add(step % STAGES * count + t).cast(), src.cast());
            }
            async_copy::commit();
        };
        fill(0);
        fill(1);
        for step in 0..steps {
            async_copy::wait_group::<1>();
            thread::sync_threads();
            fill(step + 2);
            sum += ring.add(step % STAGES * count + (t + 1) % count).load();
        }
        global::store(out.add(t as usize), sum);
    }
}

#[test]
fn a_pipeline_of_groups() {
    for steps in [1u32, 2, 3, 10] {
        let input = Buffer::from_slice(&(0..steps * 64).map(|i| i * i).collect::<Vec<_>>());
        let mut out = Buffer::<u32>::new(64);
        let launch = Pipeline { input: input.as_ptr(), out: out.as_mut_ptr(), steps };
        // SAFETY: `steps` rows of 64 words, three rows of shared memory, 64 results.
        unsafe { emulator::launch(&Pipeline::KERNEL, one_block(64, 3 * 64 * 4), launch) }.unwrap();
        let input = input.to_vec();
        for (t, sum) in out.to_vec().into_iter().enumerate() {
            let expected = (0..steps as usize).map(|step| input[64 * step + (t + 1) % 64]).sum::<u32>();
            assert_eq!(sum, expected, "thread {t}, {steps} steps");
        }
    }
}
