//! ShortSelect: the k best of each row by a bound from all of its keys, which one block holds in registers.
//!
//! # Problem
//! As [`crate::select::threshold_select`], for many rows of a few thousand keys and a small k: the scores of a search's
//! centroids, and of its lists.
//!
//! # Algorithm
//! ```text
//! each thread reads its keys, 32 at a time, and keeps the least        // the row's first 32 a thread stay in registers
//! each warp sorts its 32 least; bound = the greatest of all warps' r-th, r = ⌈k / warps⌉
//! each thread looks at its keys again: those up to the bound survive   // what is not in registers is read once more
//! the place of a survivor is the number of survivors before it
//! ```
//! Each warp has at least r keys up to the bound. They are keys of different threads and so different keys; at least k
//! keys survive. For k = 26, about 50 of 4,096 random keys survive. If too many survive (in rows of few values),
//! [`crate::select::threshold_select`] selects from the row.
//!
//! # Cost
//! Floor: one read of the row. Per key a load, a minimum and a comparison; per row 15 shuffles, three barriers, and
//! survivors² / threads comparisons. ThresholdSelect, which samples a row and sorts the sample and the survivors by
//! whole blocks, has a dozen barriers.
//!
//! Milliseconds for 10,000 rows of f32, H200, 2026-11-22, revision 7240808, and the milliseconds of a kernel that only
//! reads the rows:
//! | keys per row | k = 10 | k = 32 | reading | threads |
//! |---|---|---|---|---|
//! | 1,000 | 0.025 | 0.045 | 0.026 | 32, 64 |
//! | 4,000 | 0.065 | 0.084 | 0.055 | 128, 64 |
//! | 8,000 | 0.119 | 0.137 | 0.091 | 128 |
//! | 16,000 | 0.231 | 0.246 | 0.159 | 256 |
//!
//! A variant with 64 registers took 0.036 for 5,000 rows of 4,096 scores of centroids, k = 24; ThresholdSelect took
//! 0.063. With 256 threads, which hold fewer keys each and wait longer for each other, it took 0.054.

use cuda_std::launch::LaunchConfig;
use cuda_std::warp::FULL_MASK;
use cuda_std::{Ptr, device_inline, global, kernel, thread, unroll, warp};

use crate::select::entry::{self, EMPTY};
use crate::select::keys::{Bf16Key, F16Key, F32Key, I32Key, Key, KeyType, U32Key};
use crate::select::networks::warp_sort;
use crate::select::rows::{KeyTable, Row, SelectedRows};
use crate::select::survivors::{SharedSink, Sink};
use crate::select::threshold_select::{
    LEAST_CAPACITY, ThresholdSelect, Workspace, select_rows, shared_bytes, store_result,
};

/// Number of quads of keys that a thread holds.
const QUADS: usize = 8;
/// Number of survivors that are compared at a time.
const AHEAD: usize = 8;
/// Largest number of threads of a warp whose smallest keys determine a bound. With more of the 32, too many keys would
/// pass.
const MOST_OF_WARP: u32 = 24;

/// The largest k that a block of `threads` threads supports.
pub const fn most(threads: u32) -> u32 {
    threads / 32 * MOST_OF_WARP
}

/// Number of lanes whose quads are adjacent in memory: whole cache lines of f32 keys.
const LINE: u32 = 8;

/// The quads of a row, and at most three keys before them and behind them.
#[derive(Clone, Copy)]
struct Quads<K: Key> {
    body: *const K::Quad,
    /// The position of the first key of the first quad.
    first: u32,
    count: u32,
    /// The thread's quad among those that the block reads at once.
    own: u32,
}

impl<K: Key> Quads<K> {
    fn of(row: Row<K>) -> Quads<K> {
        let misaligned = (row.keys.addr() / size_of::<K::Stored>()) as u32 % 4;
        let first = ((4 - misaligned) % 4).min(row.len);
        // The warps take cache lines in turn. If good keys are close together (in a near list), each warp has a part of
        // them, and its r-th key is a sharp bound.
        let (lane, warp, warps) = (warp::lane_id(), thread::thread_idx_x() / 32, thread::block_dim_x() / 32);
        let own = (lane / LINE * warps + warp) * LINE + lane % LINE;
        Quads { body: row.keys.wrapping_add(first as usize).cast(), first, count: (row.len - first) / 4, own }
    }

    /// Raw orders of the thread's quads from `base` on, every `threads`-th quad; all ones behind the last.
    ///
    /// # Safety
    /// The row is readable.
    #[device_inline]
    unsafe fn read(&self, base: u32, flip: u32) -> [[u32; 4]; QUADS] {
        let mut tile = [[u32::MAX; 4]; QUADS];
        unroll::<QUADS>(|q| {
            let quad = self.number(base, q);
            if quad < self.count {
                // SAFETY: the quad's four keys lie in the row, at an address that is a multiple of four keys.
                let bits = K::quad_bits(unsafe { global::load_nc(self.body.wrapping_add(quad as usize)) });
                tile[q] = bits.map(|bits| K::raw_order(bits ^ flip));
            }
        });
        tile
    }

    #[device_inline]
    fn number(&self, base: u32, q: usize) -> u32 {
        base + q as u32 * thread::block_dim_x() + self.own
    }

    /// The thread's key outside the quads: whether there is one, and its position.
    #[device_inline]
    fn fringe(&self, len: u32) -> (bool, u32) {
        let thread = thread::thread_idx_x();
        let behind = self.first + 4 * self.count + thread - thread.min(3);
        if thread < 3 { (thread < self.first, thread) } else { (behind < len, behind) }
    }
}

/// Selects the best `k` of each row, sorted. The results are those of [`ThresholdSelect`].
///
/// # Safety
/// The pointers that are present cover the shapes that the fields give. 1 ≤ k ≤ `out.stride`;
/// k ≤ [`most`] of the threads of a block; [`LEAST_CAPACITY`] ≤ capacity.
#[kernel(
    key = KeyType,
    max_threads = 512,
    min_blocks = 1,
    KeyType::F32 => short_select_f32 = select_short_rows::<F32Key>,
    KeyType::F16 => short_select_f16 = select_short_rows::<F16Key>,
    KeyType::Bf16 => short_select_bf16 = select_short_rows::<Bf16Key>,
    KeyType::I32 => short_select_i32 = select_short_rows::<I32Key>,
    KeyType::U32 => short_select_u32 = select_short_rows::<U32Key>,
)]
pub struct ShortSelect {
    /// The rows of keys.
    #[group]
    pub table: KeyTable,
    /// Number of results of a row.
    pub k: u32,
    /// Largest number of survivors of a row that a block can hold.
    pub capacity: u32,
    /// The results: `k` of each row.
    #[group]
    pub out: SelectedRows,
}

impl ShortSelect {
    /// One block for each row, of `threads` threads: 32 to 512, a multiple of 32.
    pub fn config(&self, rows: u32, threads: u32) -> LaunchConfig {
        LaunchConfig::linear(rows as u64, threads).with_shared(shared_bytes(self.capacity))
    }
}

/// The body of the kernels `short_select_*`. All threads of the block arrive.
///
/// # Safety
/// As [`ShortSelect`].
#[device_inline]
unsafe fn select_short_rows<K: Key>(launch: ShortSelect) {
    let ShortSelect { table, k, capacity, out } = launch;
    let flip = table.flip;
    let number = thread::block_idx_x();
    let (thread, threads, lane) = (thread::thread_idx_x(), thread::block_dim_x(), warp::lane_id());
    let warps = (threads / 32).max(1);
    let Workspace { header, entries, order } = Workspace::new(capacity);
    // SAFETY: the caller promises the shapes; only this block uses the row's workspace and results.
    let count = unsafe {
        let row = Row::<K>::of(table, number);
        let wanted = k.min(row.len);
        let quads = Quads::of(row);
        let span = (QUADS as u32 * threads).max(1);
        let (fringe, fringe_position) = quads.fringe(row.len);
        let fringe_raw = if fringe { row.raw(fringe_position) } else { u32::MAX };
        let mut least = [fringe_raw];
        // The first of several turns comes last: it is complete, and its keys stay in registers.
        let mut base = quads.count.saturating_sub(1) / span * span;
        let mut tile = quads.read(base, flip);
        loop {
            unroll::<QUADS>(|q| {
                let [a, b, c, d] = tile[q];
                least[0] = least[0].min(a.min(b).min(c.min(d)));
            });
            if base == 0 {
                break;
            }
            base -= span;
            tile = quads.read(base, flip);
        }
        warp_sort(&mut least, lane);
        let bound = warp::shuffle_idx(FULL_MASK, least[0], wanted.div_ceil(warps).max(1) - 1);
        if thread == 0 {
            header.store(0);
        }
        if lane == 0 {
            order.words.add(thread / 32).store(bound);
        }
        thread::sync_threads();
        let mut bound = 0;
        let mut other = 0;
        while other < warps {
            bound = bound.max(order.words.add(other).load());
            other += 1;
        }
        // With a threshold among NaN, or in a block with threads without keys, all keys pass.
        let ordered = K::order(bound);
        let mark = if ordered > K::WORST { u32::MAX } else { ordered };
        let sink = SharedSink { count: header, entries, capacity };
        let mut fringe = fringe && fringe_raw <= mark;
        loop {
            let mut hits = 0u32;
            unroll::<QUADS>(|q| {
                let hit = |e: usize| (tile[q][e] <= mark) as u32;
                let four = hit(0) | hit(1) << 1 | hit(2) << 2 | hit(3) << 3;
                hits |= if quads.number(base, q) < quads.count { four << (4 * q) } else { 0 };
            });
            while warp::any(FULL_MASK, fringe || hits != 0) {
                let place = hits.trailing_zeros();
                let position = if fringe {
                    fringe_position
                } else {
                    quads.first + 4 * quads.number(base, place as usize / 4) + place % 4
                };
                let found = if fringe || hits != 0 { row.entry(row.raw(position), position) } else { EMPTY };
                hits = if fringe { hits } else { hits & hits.wrapping_sub(1) };
                fringe = false;
                // The keys that pass by their raw order may include NaN, which comes last.
                let keeps = found != EMPTY && entry::key(found) <= mark;
                let keepers = warp::ballot(FULL_MASK, keeps);
                if keepers != 0 {
                    let first = if lane == 0 { sink.reserve(keepers.count_ones()) } else { 0 };
                    let first = warp::shuffle_idx(FULL_MASK, first, 0);
                    if keeps {
                        sink.put(first, (keepers & ((1 << lane) - 1)).count_ones(), found);
                    }
                }
            }
            base += span;
            if base >= quads.count {
                break;
            }
            tile = quads.read(base, flip);
        }
        thread::sync_threads();
        let count = header.load();
        // With ids, keys with the id NO_ROW do not count: then all keys were seen.
        if count <= LEAST_CAPACITY && (count >= wanted || mark == u32::MAX) { count } else { u32::MAX }
    };
    if count == u32::MAX {
        // The workspace is free.
        thread::sync_threads();
        let (thresholds, counts) = (Ptr::empty(), Ptr::empty());
        let launch = ThresholdSelect { table, k, capacity, thresholds, lists: None, counts, out };
        // SAFETY: the same contract; no thread reads the workspace any more.
        return unsafe { select_rows::<K>(launch) };
    }
    let first = number as usize * out.stride as usize;
    // SAFETY: entries below the count were written before the barrier; a place is below k and belongs to one survivor.
    unsafe {
        let mut own = thread;
        while own < count {
            let found = entries.add(own).load();
            let (mut place, mut other) = (0, 0);
            while other < count {
                unroll::<AHEAD>(|ahead| {
                    let other = other + ahead as u32;
                    let entry = entries.add(other.min(count - 1)).load();
                    // Equal entries, which have equal ids, are ordered by their index.
                    place += (other < count && entry < found + (other < own) as u64) as u32;
                });
                other += AHEAD as u32;
            }
            if place < k {
                store_result::<K>(found, flip, out, first + place as usize);
            }
            own += threads;
        }
        let mut place = count + thread;
        while place < k {
            store_result::<K>(EMPTY, flip, out, first + place as usize);
            place += threads;
        }
    }
}
