//! A random rotation of vectors by signs, Hadamard transforms and turns, in O(dim · log dim).
//!
//! # Problem
//! Queries are rotated before they meet codes of a few bits. `host/src/pq/mixing.rs` defines the steps, whose f64
//! operations have one order, so that all devices get the same bits. As products with a matrix they took .65 ms for
//! 10,000 queries of 384 components on an H200, a fifth of the search (`rotate.rs`).
//!
//! # How it maps to the machine
//! A block has one vector, as f64 in shared memory. A thread has every 128th butterfly of a step, and all
//! threads meet after each step. No butterflies of one step share a component, so a step has no races.
//!
//! # Cost
//! 4 · (log₂ dim + 2) steps, each of which reads and writes 16 bytes of shared memory for two components: 384
//! components take 40 steps of 1.5 butterflies a thread. 10,000 vectors of 384 components take 100 µs of an H200
//! (Nsight Compute, 2026-11-30; 15 were predicted, from waiting alone): shared memory is busy for 82 % of the time.

use core::f64::consts::FRAC_1_SQRT_2;

use cuda_std::launch::LaunchConfig;
use cuda_std::shared::SharedPtr;
use cuda_std::{Ptr, PtrMut, device_inline, global, kernel, shared, thread};

/// Number of rounds of the rotation.
pub const ROUNDS: usize = 4;
/// Number of threads of a block.
const THREADS: u32 = 128;

/// Writes the rotated vectors, and zeros behind them.
///
/// # Safety
/// The arrays are as long as the fields say.
#[kernel(max_threads = 128, mix_vectors = mix)]
pub struct Mix {
    /// `count` vectors of `stride` components.
    pub vectors: Ptr<f32>,
    /// Number of vectors.
    pub count: u32,
    /// Distance from one vector, or the signs of one round, to the next in components.
    pub stride: u32,
    /// Number of components, at least one.
    pub dim: u32,
    /// The signs of [`ROUNDS`] rounds, each 1 or −1.
    pub signs: Ptr<f32>,
    /// `count` rows of `to_stride` components.
    pub to: PtrMut<f32>,
    /// Distance from one row of `to` to the next in components, at least `dim`.
    pub to_stride: u32,
}

impl Mix {
    /// The greatest number of components of a vector in this many bytes of shared memory.
    pub const fn longest(shared_bytes: u32) -> u32 {
        shared_bytes / size_of::<f64>() as u32
    }

    /// A block for each vector, which is at most the [`longest`](Self::longest).
    pub fn config(&self) -> LaunchConfig {
        LaunchConfig::linear(u64::from(self.count), THREADS).with_shared(self.dim * size_of::<f64>() as u32)
    }
}

/// Makes the butterfly of two components.
///
/// # Safety
/// No other thread accesses them before the block meets.
#[device_inline]
unsafe fn butterfly(x: SharedPtr<f64>, y: SharedPtr<f64>) {
    // SAFETY: as the caller promises.
    unsafe {
        let (a, b) = (x.load(), y.load());
        x.store((a + b) * FRAC_1_SQRT_2);
        y.store((a - b) * FRAC_1_SQRT_2);
    }
}

/// All threads of the block arrive at each barrier: the number of steps depends on `dim` only.
///
/// # Safety
/// As [`Mix`].
#[device_inline]
unsafe fn mix(launch: Mix) {
    let Mix { vectors, count, stride, dim, signs, to, to_stride } = launch;
    let (row, first) = (thread::block_idx_x(), thread::thread_idx_x());
    if row >= count {
        return;
    }
    let values = shared::dynamic::<f64>();
    let power = 1 << (31 - dim.leading_zeros());
    // SAFETY: the caller promises the shapes. Shared memory has `dim` numbers. A component is in one butterfly of a
    // step, and in no other thread's sign or copy between two barriers.
    unsafe {
        let x = vectors.wrapping_add(row as usize * stride as usize);
        let mut round = 0;
        while round < ROUNDS as u32 {
            let signs = signs.wrapping_add(round as usize * stride as usize);
            let mut i = first;
            while i < dim {
                let value =
                    if round == 0 { global::load_nc(x.wrapping_add(i as usize)) as f64 } else { values.add(i).load() };
                values.add(i).store(value * global::load_nc(signs.wrapping_add(i as usize)) as f64);
                i += THREADS;
            }
            thread::sync_threads();
            let part = values.add(if round % 2 == 0 { 0 } else { dim - power });
            let mut half = 1;
            while half < power {
                let mut pair = first;
                while pair < power / 2 {
                    // The places of both have this bit clear and set; the other bits are those of the number.
                    let at = (pair & !(half - 1)) << 1 | pair & (half - 1);
                    butterfly(part.add(at), part.add(at + half));
                    pair += THREADS;
                }
                thread::sync_threads();
                half *= 2;
            }
            let mut i = first;
            while i < dim / 2 {
                butterfly(values.add(i), values.add(i + dim / 2));
                i += THREADS;
            }
            thread::sync_threads();
            round += 1;
        }
        let to = to.wrapping_add(row as usize * to_stride as usize);
        let mut i = first;
        while i < to_stride {
            let value = if i < dim { values.add(i).load() as f32 } else { 0.0 };
            global::store(to.wrapping_add(i as usize), value);
            i += THREADS;
        }
    }
}
