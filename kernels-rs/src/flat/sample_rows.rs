//! A sample of the base's rows, and the threshold that it gives a query: an estimate that saves most candidates.
//!
//! # Problem
//! The filter of exact search ([`crate::flat::filter`]) keeps the rows up to a threshold. The k-th smallest score of a
//! sample is a threshold that loses nothing. But where the sample is one row in g, some k · g rows are below it, of
//! which k are wanted, and each row that is kept costs atomics, memory and selection.
//!
//! # Algorithm
//! The best k rows have about λ = k / g rows in the sample. So the r-th smallest score of the sample, for an r somewhat
//! above λ, is a threshold for most queries, and only r · g rows are below it.
//!
//! ```text
//! sample:   a row at random from each of count parts of the base
//! filter:   upper bounds of the sample -> r-th smallest -> threshold t
//!           append all rows whose lower bound is at most t -> list
//! proof:    the k-th smallest upper bound u of the list is at most t
//! ```
//!
//! Every row whose score is at most u ≤ t has a lower bound of at most t, so the list has it. Without that proof the
//! query counts as one whose list overflowed ([`crate::flat::candidates`]), and all rows are compared with it. So the
//! result is right for any sample.
//!
//! # Rank
//! The estimate is too small if r or more of the best k are in the sample. r is as for samples of keys
//! ([`crate::select::sample`]): too small for a few queries in 10⁶.
//!
//! | k | sampled | λ | r | rows below the threshold | below two thresholds without an estimate |
//! |---|---|---|---|---|---|
//! | 10 | 1 / 122 | 0.08 | 5 | 610 | 230 |
//! | 100 | 1 / 61 | 1.6 | 11 | 670 | 1,600 |
//! | 1,000 | 1 / 20 | 51 | 86 | 1,700 | 9,000 |
//!
//! So few results have thresholds without an estimate.
//!
//! Rows come in any order, and often like ones follow each other. A sample of tiles of 128 rows would then have all or
//! none of a query's neighbours, so single rows are sampled, each at random from its part of the base.
//!
//! # Cost
//! Reads and writes of the sample. It is made for each tile of queries: 50,000 rows of 256 bytes take some 10 µs of an
//! H200's memory by count, and the filter of 5,000 queries takes milliseconds.
//!
//! 10,000 queries × 1,000,000 × 128 on an H200, from host memory and back, milliseconds, k = 100 and 1,000 (2026-11-30,
//! medians of three rounds in turn): bytes 5.6 and 13.1 without estimates, 5.1 and 10.5 with; f32 8.2 and 18.5, 7.8 and
//! 13.8.
//!
//! # What lost
//! With ranks of 13 and 93 (the same day, bytes, one round of 5.2 and 10.1): an estimate for k = 10 took 4.4 instead of
//! 3.8; half of the sample 5.3 and 10.0, twice the sample 5.4 and 11.1, four times 5.9 and 14.9.

use cuda_std::global::U32x4;
use cuda_std::launch::LaunchConfig;
use cuda_std::{Ptr, PtrMut, device_inline, global, kernel, thread};

use crate::flat::gather_rows::{THREADS, config, copy_rows};
use crate::product::tile::TILE_ROWS;

/// Copies a sample of rows to another set, with their values, and gives each of its tiles the bounds of the base.
///
/// # Safety
/// The arrays are as long as the fields say, and those that are written do not overlap the others.
#[kernel(max_threads = 256, sample_rows = sample)]
pub struct SampleRows {
    /// The operands of the base's rows, `words` words each.
    pub base: Ptr<U32x4>,
    /// Number of words of an operand.
    pub words: u32,
    /// The size of a part of the base ([`step`]).
    pub step: u64,
    /// Number of rows of the sample, at most that of the base.
    pub count: u32,
    /// The value of each row of the base, as bits.
    pub base_values: Ptr<u32>,
    /// The greatest norm and the greatest residual of the base: two numbers.
    pub base_bounds: Ptr<f32>,
    /// The operands of the sample, padded to whole tiles.
    pub to: PtrMut<U32x4>,
    /// The values of the sample, padded with +∞ to whole tiles.
    pub values: PtrMut<u32>,
    /// The greatest norm of each tile of the sample, and then the greatest residual of each. Absent: not written.
    pub tile_bounds: Option<PtrMut<f32>>,
}

impl SampleRows {
    /// A power of two of lanes for each row of the padded sample.
    pub fn config(&self) -> LaunchConfig {
        config(self.count.next_multiple_of(TILE_ROWS), self.words)
    }
}

/// The size of a part of the base from which one row is taken, in rows times 2³², for a sample of `count` of `rows`
/// rows.
pub fn step(rows: u32, count: u32) -> u64 {
    (u64::from(rows) << 32) / u64::from(count.max(1))
}

/// The number in the base of row `place` of a sample, below the rows of which [`step`] was taken.
#[device_inline]
pub fn number(place: u32, step: u64) -> u32 {
    let first = (place as u64 * step) >> 32;
    let end = ((place as u64 + 1) * step) >> 32;
    // Bits that have nothing to do with the order of rows.
    let mixed = (place ^ 0x9e37_79b9).wrapping_mul(0x85eb_ca6b);
    let mixed = (mixed ^ (mixed >> 13)).wrapping_mul(0xc2b2_ae35);
    let within = ((mixed ^ (mixed >> 16)) as u64 * (end - first)) >> 32;
    (first + within) as u32
}

/// # Safety
/// As [`SampleRows`].
#[device_inline]
unsafe fn sample(launch: SampleRows) {
    let SampleRows { base, words, step, count, base_values, base_bounds, to, values, tile_bounds } = launch;
    let padded = count.next_multiple_of(TILE_ROWS);
    let of = |place: u32| number(place.min(count - 1), step);
    // SAFETY: sampled rows are below the number of rows, and each row of `to` is written once; a thread writes places
    // that no other writes. There are at least as many threads as padded rows.
    unsafe {
        copy_rows(base, (padded, words), to, |row| (of(row as u32) as usize, row));
        let place = thread::block_idx_x() * THREADS + thread::thread_idx_x();
        if place < padded {
            let value = global::load_nc(base_values.wrapping_add(of(place) as usize));
            let value = if place < count { value } else { f32::INFINITY.to_bits() };
            global::store(values.wrapping_add(place as usize), value);
        }
        let tiles = padded / TILE_ROWS;
        if let Some(tile_bounds) = tile_bounds
            && place < 2 * tiles
        {
            let bound = global::load_nc(base_bounds.wrapping_add((place >= tiles) as usize));
            global::store(tile_bounds.wrapping_add(place as usize), bound);
        }
    }
}
