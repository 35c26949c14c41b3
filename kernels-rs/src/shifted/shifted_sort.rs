//! Approximate k nearest neighbours in low dimension: neighbourhoods in sorted, shifted copies of the points, merged in
//! a warp to the k best without duplicates (Park, *Implementation of parallel k-approximate nearest neighbor search
//! using six dimensional shifted sort with CUDA*, 2019; Li, Simons et al., *kANN on the GPU with shifted sorting*,
//! 2012; Chan 1997).
//!
//! # Algorithm
//! ```text
//! once:  for each of S copies: codes (crate::shifted::morton), sorted with their points' numbers; the points laid out in that order
//! query: for each copy:
//!            place  = how many codes of the copy are below the query's                    // locate_*, one thread each
//!            window = `width` positions around the place                                   // nearest_*, one warp a query
//!            for each 32 of them: one candidate a lane, its canonical distance,
//!                drop what is not below the k-th best, or is among the best already,
//!                sort the rest by a butterfly network, merge it into the best
//! ```
//! A point that occurs in several copies has the same entry (distance, id) each time, to the bit. The best entries are
//! sorted, so a binary search among the lanes shows whether an entry is already among them: 5 shuffles for all 32
//! candidates at once. An entry that was dropped or pushed out can never be below the k-th best again, so no other
//! record of past candidates is needed.
//!
//! In a self-join the place of every point is known from the sort ([`shifted_ranks`]), and the point itself is skipped
//! by its id.
//!
//! # Layout
//! Copies hold the points' components in structure-of-arrays form, `points[(copy · dim + j) · n + position]`: the 32
//! lanes of a warp read 128 adjacent bytes of each component. A window of the report's form, k before and k after,
//! would leave half a warp idle for k = 8; so the default width is a multiple of 32.
//!
//! # Cost, and why queries are not sorted
//! For m queries among n points in S copies:
//!
//! | step | floor | 2²³ 6-d queries, 40,000 points, S = 7, on an H200 |
//! |---|---|---|
//! | (a) search in the sorted codes | S·log₂ n reads of 32 bytes from L2, the first half of them from L1 | 15 GB of L2: 3 ms |
//! | (b) sorting base and queries together | S · 16 passes · 2 · 20 bytes of DRAM | 38 GB: 8 ms, 12 GB of memory |
//! | codes | morton's | 1.3 ms |
//! | candidates | S·width·(4·d + 4) bytes from L2 or L1 | 53 GB of L2: 9 to 12 ms |
//!
//! Searching (a) is cheaper for smaller bases, needs almost no memory, and the results of queries are independent of
//! each other, so it is used for every base. Sorting (b) would be as fast only if the codes of a copy, 16·n bytes, are
//! far larger than L2 and there are as many queries as points. That is the self-join, in which the sort of the base
//! gives the places. The floor of the candidates in f64 arithmetic is 2·d + 5 operations and d conversions each:
//! 1.9·10⁹ candidates take 3 ms of conversions (16 per clock and multiprocessor) and 2 ms of arithmetic: less than the
//! reads.
//!
//! # What lost
//! One thread for each query, with a queue of k entries: 32 lanes read 32 different windows, so 32 sectors instead of
//! one cache line. Two queries for each warp for small k: half the candidates with the same number of instructions.

use cuda_std::launch::LaunchConfig;
use cuda_std::warp::FULL_MASK;
use cuda_std::{Ptr, PtrMut, device_inline, global, kernel, thread, unroll, warp};

use crate::select::entry::{self, EMPTY};
use crate::select::networks::{warp_merge_keep, warp_sort};
use crate::shifted::morton::{self, Code, MAX_DIM};

/// Number of threads of a block, in all kernels of this module.
const THREADS: u32 = 256;
/// Number of warps of a block; each warp has a different query in [`ShiftedNearest`].
const WARPS_PER_BLOCK: u32 = THREADS / 32;

/// The canonical squared distance between points of up to [`MAX_DIM`] components: the distance of the host crate's
/// `metric` for this few. `x` and `y` return component j, which is zero from the dimension on; `COMPONENTS` is 4, 8 or
/// 12 and at least the dimension.
///
/// Of the accumulators of the definition only the first [`MAX_DIM`] are not zero, in only three lanes. So only the
/// steps of the butterfly that join these lanes remain: lane 0 with lane 2, then with lane 1.
#[device_inline]
pub fn distance<const COMPONENTS: usize>(x: impl Fn(usize) -> f64, y: impl Fn(usize) -> f32) -> f32 {
    let term = |j: usize| {
        let difference = x(j) - y(j) as f64;
        difference * difference
    };
    let mut lanes = [0.0f64; MAX_DIM / 4];
    unroll::<{ MAX_DIM / 4 }>(|lane| {
        if 4 * lane < COMPONENTS {
            lanes[lane] = (term(4 * lane) + term(4 * lane + 1)) + (term(4 * lane + 2) + term(4 * lane + 3));
        }
    });
    ((lanes[0] + lanes[2]) + lanes[1]) as f32
}

/// The first of `width` positions around `place` in a copy of `n` points, width ≤ n: half before and half after, moved
/// inside at the ends of the copy.
#[device_inline]
pub fn window_start(place: u32, width: u32, n: u32) -> u32 {
    place.saturating_sub(width / 2).min(n - width)
}

/// Writes the place of every query in every copy: the number of codes of the copy that are below the query's code.
///
/// # Safety
/// The arrays are as long as the fields say; the codes are of width `W`.
#[kernel(
    max_threads = 256,
    shifted_locate_u64 for ShiftedLocate<u64> = locate::<u64>,
    shifted_locate_u128 for ShiftedLocate<u128> = locate::<u128>,
)]
pub struct ShiftedLocate<W> {
    /// Rows of `dim` components.
    pub queries: Ptr<f32>,
    /// Number of queries.
    pub count: u32,
    /// Dimension of the queries: 1 to [`MAX_DIM`].
    pub dim: u32,
    /// Number of bits of a coordinate, as in [`crate::shifted::morton::MortonCodes`].
    pub bits: u32,
    /// The lowest corner of the base's bounding box: `dim` coordinates.
    pub mins: Ptr<f64>,
    /// Number of cells in a unit of the coordinates.
    pub scale: f64,
    /// Number of shifted copies.
    pub copies: u32,
    /// The sorted codes of one copy after the other: `copies` · `n`.
    pub codes: Ptr<W>,
    /// Number of points of a copy.
    pub n: u32,
    /// The place of query q in copy c, at c · `count` + q: `copies` · `count` numbers.
    pub places: PtrMut<u32>,
}

impl<W> ShiftedLocate<W> {
    /// One thread for each query, and a row of blocks in y for each copy.
    pub fn config(&self) -> LaunchConfig {
        LaunchConfig::linear(self.count.div_ceil(THREADS) as u64, THREADS).along_y(self.copies as u64)
    }
}

/// # Safety
/// As [`ShiftedLocate`].
#[device_inline]
unsafe fn locate<W: Code>(launch: ShiftedLocate<W>) {
    let ShiftedLocate { queries, count, dim, bits, mins, scale, copies, codes, n, places } = launch;
    let query = thread::block_idx_x() * THREADS + thread::thread_idx_x();
    let copy = thread::block_idx_y();
    if query >= count {
        return;
    }
    let row = queries.wrapping_add(query as usize * dim as usize);
    let codes = codes.wrapping_add(copy as usize * n as usize);
    // SAFETY: query < count, copy < copies by the grid; components are asked for below dim, codes below n.
    unsafe {
        let code = morton::code::<W>(
            |j| global::load_nc(row.wrapping_add(j)),
            |j| global::load_nc(mins.wrapping_add(j)),
            scale,
            dim,
            bits,
            morton::offset(bits, copies, copy),
        );
        let (mut low, mut high) = (0, n);
        while low < high {
            let middle = low + (high - low) / 2;
            let below = global::load_nc(codes.wrapping_add(middle as usize)) < code;
            low = if below { middle + 1 } else { low };
            high = if below { high } else { middle };
        }
        global::store(places.wrapping_add(copy as usize * count as usize + query as usize), low);
    }
}

/// Writes the points of one copy in the order of the copy.
///
/// # Safety
/// The arrays are as long as the parameters say; ids are below `n`.
#[kernel(max_threads = 256)]
pub unsafe fn shifted_arrange(
    /// `n` rows of `dim` components.
    rows: Ptr<f32>,
    /// Number of points.
    n: u32,
    /// Dimension of the points.
    dim: u32,
    /// The number of the point at each position.
    ids: Ptr<u32>,
    /// Component j of the point at position p, at j · `n` + p: `dim` · `n` numbers.
    out: PtrMut<f32>,
) {
    let position = thread::block_idx_x() * THREADS + thread::thread_idx_x();
    if position < n {
        // SAFETY: position < n, j < dim, and ids are below n.
        unsafe {
            let row = global::load_nc(ids.wrapping_add(position as usize)) as usize * dim as usize;
            let mut j = 0;
            while j < dim {
                let x = global::load_nc(rows.wrapping_add(row + j as usize));
                global::store(out.wrapping_add(j as usize * n as usize + position as usize), x);
                j += 1;
            }
        }
    }
}

impl ShiftedArrange {
    /// One thread for each point.
    pub fn config(&self) -> LaunchConfig {
        LaunchConfig::linear(self.n.div_ceil(THREADS) as u64, THREADS)
    }
}

/// Writes the position of each point in each copy.
///
/// # Safety
/// The arrays are as long as the parameters say; the ids of a copy are 0 .. n in some order.
#[kernel(max_threads = 256)]
pub unsafe fn shifted_ranks(
    /// The number of the point at each position, `n` for each copy.
    ids: Ptr<u32>,
    /// Number of points of a copy.
    n: u32,
    /// The position of each point, `n` for each copy.
    ranks: PtrMut<u32>,
) {
    let position = thread::block_idx_x() * THREADS + thread::thread_idx_x();
    if position < n {
        let first = thread::block_idx_y() as usize * n as usize;
        // SAFETY: position < n, ids are below n and each occurs once.
        unsafe {
            let id = global::load_nc(ids.wrapping_add(first + position as usize));
            global::store(ranks.wrapping_add(first + id as usize), position);
        }
    }
}

impl ShiftedRanks {
    /// One thread for each point, and a row of blocks in y for each copy.
    pub fn config(&self, copies: u32) -> LaunchConfig {
        LaunchConfig::linear(self.n.div_ceil(THREADS) as u64, THREADS).along_y(copies as u64)
    }
}

/// The best 32·`REGISTERS` distinct entries so far, entry 32·r + lane in register r; sorted, [`EMPTY`] at the end.
struct Best<const REGISTERS: usize> {
    queue: [u64; REGISTERS],
    /// Entries at or above are not among the best k. Uniform.
    bound: u64,
    /// Entries below were returned by an earlier pass. Uniform.
    floor: u64,
    last: u32,
    lane: u32,
}

impl<const REGISTERS: usize> Best<REGISTERS> {
    /// An empty queue for the best `k` entries from `floor` on; `k` is 1 to 32·`REGISTERS`.
    #[device_inline]
    fn new(k: u32, floor: u64) -> Self {
        Best { queue: [EMPTY; REGISTERS], bound: EMPTY, floor, last: k - 1, lane: warp::lane_id() }
    }

    /// Inserts the entry of each lane in which `take` holds, if it is among the best k and not yet in the queue. The
    /// entries of one call are distinct. All 32 lanes arrive.
    #[device_inline]
    fn offer(&mut self, entry: u64, take: bool) {
        let better = take & (entry >= self.floor) & (entry < self.bound);
        if warp::any(FULL_MASK, better) {
            let fresh = better & !self.holds(entry);
            if warp::any(FULL_MASK, fresh) {
                let mut batch = [if fresh { entry } else { EMPTY }];
                warp_sort(&mut batch, self.lane);
                warp_merge_keep(&mut self.queue, &batch, self.lane);
                let mut holder = self.queue[0];
                // Register last / 32 is uniform: selects, not an indexed (local-memory) access.
                unroll::<REGISTERS>(|r| {
                    let entries = self.queue[r];
                    holder = if r as u32 == self.last / 32 { entries } else { holder };
                });
                self.bound = warp::shuffle_idx(FULL_MASK, holder, self.last % 32);
            }
        }
    }

    /// Whether this lane's `entry` is in the queue. The last entries of the registers determine the register, and a
    /// binary search the lane. All 32 lanes arrive, each with a different entry.
    #[device_inline]
    fn holds(&self, entry: u64) -> bool {
        let mut register = 0;
        unroll::<REGISTERS>(|r| {
            register +=
                if r + 1 < REGISTERS { (warp::shuffle_idx(FULL_MASK, self.queue[r], 31) < entry) as u32 } else { 0 };
        });
        let at = |lane: u32| {
            let mut found = 0;
            unroll::<REGISTERS>(|r| {
                let of_register = warp::shuffle_idx(FULL_MASK, self.queue[r], lane);
                found = if r as u32 == register { of_register } else { found };
            });
            found
        };
        // The number of the register's first 31 entries that are below.
        let mut below = 0;
        let mut stride = 16;
        while stride > 0 {
            below = if at(below + stride - 1) < entry { below + stride } else { below };
            stride /= 2;
        }
        at(below) == entry
    }
}

/// The largest dimension of a kernel; there are kernels for each value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MostComponents {
    /// Up to 4 dimensions.
    Four,
    /// Up to 8 dimensions.
    Eight,
    /// Up to 12 dimensions, which is [`MAX_DIM`].
    Twelve,
}

impl MostComponents {
    /// The smallest value for points of `dim` components, at most [`MAX_DIM`].
    pub const fn of(dim: u32) -> MostComponents {
        match dim {
            0..=4 => MostComponents::Four,
            5..=8 => MostComponents::Eight,
            _ => MostComponents::Twelve,
        }
    }
}

/// Length of the queue of a warp; there are kernels for each value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QueueLength {
    /// A queue of 32 entries.
    Of32,
    /// A queue of 128 entries.
    Of128,
}

impl QueueLength {
    /// The shortest queue that finds `k` neighbours in the fewest passes.
    pub const fn of(k: u32) -> QueueLength {
        if k <= QueueLength::Of32.entries() { QueueLength::Of32 } else { QueueLength::Of128 }
    }

    /// Largest number of neighbours that one pass finds.
    pub const fn entries(self) -> u32 {
        match self {
            QueueLength::Of32 => 32,
            QueueLength::Of128 => 128,
        }
    }
}

/// Finds the k nearest of each query's candidates: sorted entries ([`crate::select::entry`]: key of the canonical
/// distance, id) without duplicates, followed by [`EMPTY`] if there are fewer.
///
/// The candidates of a query are the `width` positions around its place ([`window_start`]) in each copy.
///
/// # Safety
/// The arrays are as long as the fields say; places are at most `n`; `dim` and `k` are within the key's limits.
#[kernel(
    key = (MostComponents, QueueLength),
    max_threads = 256,
    (MostComponents::Four, QueueLength::Of32) => shifted_nearest_d4_k32 = nearest::<4, 1>,
    (MostComponents::Four, QueueLength::Of128) => shifted_nearest_d4_k128 = nearest::<4, 4>,
    (MostComponents::Eight, QueueLength::Of32) => shifted_nearest_d8_k32 = nearest::<8, 1>,
    (MostComponents::Eight, QueueLength::Of128) => shifted_nearest_d8_k128 = nearest::<8, 4>,
    (MostComponents::Twelve, QueueLength::Of32) => shifted_nearest_d12_k32 = nearest::<12, 1>,
    (MostComponents::Twelve, QueueLength::Of128) => shifted_nearest_d12_k128 = nearest::<12, 4>,
)]
pub struct ShiftedNearest {
    /// Rows of `dim` components.
    pub queries: Ptr<f32>,
    /// Number of queries.
    pub count: u32,
    /// Dimension of the queries, at least 1.
    pub dim: u32,
    /// The place of query q in copy c, at c · `place_stride` + q, below (`copies` − 1) · `place_stride` + `count`.
    pub places: Ptr<u32>,
    /// Distance from the places of one copy to those of the next.
    pub place_stride: u64,
    /// Component j of the point at position p of copy c, at (c · `dim` + j) · `n` + p: `copies` · `dim` · `n` numbers.
    pub points: Ptr<f32>,
    /// The number of the point at position p of copy c, at c · `n` + p: `copies` · `n` numbers.
    pub ids: Ptr<u32>,
    /// Number of points of a copy.
    pub n: u32,
    /// Number of shifted copies.
    pub copies: u32,
    /// Number of positions of a window: 1 to `n`.
    pub width: u32,
    /// Query q is point `first_own` + q, which is skipped; [`NO_ROW`](crate::NO_ROW) if queries are not points.
    pub first_own: u32,
    /// Number of neighbours that this pass finds, at least 1.
    pub k: u32,
    /// Number of neighbours that earlier passes found: the first places of a row of `out`.
    pub skip: u32,
    /// A row for each query. The entries of this pass are written behind the first `skip`. `count` rows of `out_stride`
    /// entries.
    pub out: PtrMut<u64>,
    /// Number of places of a row of `out`, at least `skip` + `k`.
    pub out_stride: u32,
}

impl ShiftedNearest {
    /// One warp for each query.
    pub fn config(&self) -> LaunchConfig {
        LaunchConfig::warps(self.count as u64, WARPS_PER_BLOCK)
    }
}

/// # Safety
/// As [`ShiftedNearest`].
#[device_inline]
unsafe fn nearest<const COMPONENTS: usize, const REGISTERS: usize>(launch: ShiftedNearest) {
    let ShiftedNearest { queries, count, dim, places, place_stride, points, ids, n, .. } = launch;
    let ShiftedNearest { copies, width, first_own, k, skip, out, out_stride, .. } = launch;
    let query = thread::block_idx_x() * WARPS_PER_BLOCK + warp::warp_id();
    if query >= count {
        return;
    }
    let lane = warp::lane_id();
    let own = if first_own == crate::NO_ROW { crate::NO_ROW } else { first_own + query };
    // SAFETY: query < count; components are asked for below dim, positions below n, copies below `copies`.
    unsafe {
        let row = queries.wrapping_add(query as usize * dim as usize);
        let mut x = [0.0f64; COMPONENTS];
        unroll::<COMPONENTS>(|j| {
            x[j] = if (j as u32) < dim { global::load_nc(row.wrapping_add(j)) as f64 } else { 0.0 };
        });
        let out = out.wrapping_add(query as usize * out_stride as usize);
        // An earlier pass without enough candidates wrote EMPTY: no entry comes after EMPTY.
        let floor = if skip == 0 { 0 } else { global::load(out.wrapping_add(skip as usize - 1)).saturating_add(1) };
        let mut best = Best::<REGISTERS>::new(k, floor);
        let mut copy = 0;
        while copy < copies {
            let place = global::load_nc(places.wrapping_add(copy as usize * place_stride as usize + query as usize));
            let start = window_start(place, width, n);
            let ids = ids.wrapping_add(copy as usize * n as usize);
            let points = points.wrapping_add(copy as usize * dim as usize * n as usize);
            let mut done = 0;
            while done < width {
                // Past the end of the window, the last position is read again and ignored.
                let position = start + (done + lane).min(width - 1);
                let id = global::load_nc(ids.wrapping_add(position as usize));
                let point = points.wrapping_add(position as usize);
                let component = |j: usize| {
                    if (j as u32) < dim { global::load_nc(point.wrapping_add(j * n as usize)) } else { 0.0 }
                };
                let distance = distance::<COMPONENTS>(|j| x[j], component);
                best.offer(entry::pack(entry::key_of(distance), id), (done + lane < width) & (id != own));
                done += 32;
            }
            copy += 1;
        }
        unroll::<REGISTERS>(|r| {
            let place = 32 * r as u32 + lane;
            if place < k {
                global::store(out.wrapping_add((skip + place) as usize), best.queue[r]);
            }
        });
    }
}
