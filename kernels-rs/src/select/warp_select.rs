//! WarpSelect: the k smallest (or largest) of each row, one warp for each row, one pass, all state in registers (paper
//! sections 4.2 and 4.3, algorithm 3).
//!
//! # Problem
//! Rows of ℓ keys, each with an implicit position or a given id. For each row the best k, sorted, ties by lower
//! payload, NaN last; the same bits on every run.
//!
//! # Algorithm
//! ```text
//! warp queue W[0..32·R]   sorted, lane-stride: the best so far          (k <= 32·R)
//! thread queue T[0..t]    per lane, unsorted: candidates not yet merged
//! bound = W[k-1]
//! for each group of 32·4 keys of the row, in order:
//!     if no lane sees a key below the bound: next group           // one vote for 128 keys
//!     for each of the 4 keys of this lane:
//!         if (key, payload) < bound: append to T
//!         if any lane's T is full: sort all T as one array of 32·t, merge into W keeping 32·R; T = {}; bound = W[k-1]
//! merge once more; W[0..k] is the answer
//! ```
//!
//! # Differences from the paper, and their reasons
//! 1. Thread queues are stacks, not sorted queues: an insertion costs t moves and no comparisons. A merge sorts them
//!    anyway, and starts when a lane's stack is full, which is when the paper's T₀ would drop below W_{k−1}.
//! 2. Entries are totally ordered 64-bit words ([`crate::select::entry`]), so results do not depend on scheduling or
//!    queue lengths.
//! 3. Four keys of each lane are tested with one vote against the bound (`!(min >= bound)`: with a NaN bound, which
//!    means a queue that is not full yet, all keys pass). Late in a row nearly all groups need only this test.
//! 4. The bound is W[k−1], not W[32·R−1]: for k = 10 in a queue of 32, this takes a third of the insertions.
//! 5. k above 1024 takes further passes: pass p selects among the entries after the last result of pass p − 1.
//! 6. A long row may be cut into segments, each selected by its own warp; a second launch selects among the winners.
//!
//! With positions the fast test may be strict: when a group is tested, W holds entries of earlier groups only, so an
//! equal key of this group has a higher position and loses. With given ids this does not hold, so the bound admits
//! equal keys.
//!
//! # Cost
//! Floor: one read, 4·ℓ bytes for each row. Per 128 keys about 30 instructions without a candidate. Expected insertions
//! k(1 + ln(ℓ/k)); a merge costs O((t + R) log²) compare-exchanges and about 340 (k = 32) to 3,300 (k = 1024)
//! instructions. t by k as the paper measured it: 2 up to 32, 3 up to 128, 4 up to 256, 8 up to 1024.
//!
//! # When it is fastest
//! For k = 1, and for rows of a few hundred keys, where it needs neither sample nor sort. For longer rows
//! [`crate::select::threshold_select`] is faster: at 128,000 columns WarpSelect takes 1.75 / 2.24 / 9.9 ms for k = 10 /
//! 100 / 1000, and ThresholdSelect 1.28 / 1.36 / 2.0 ms.
//!
//! # What lost
//! With the merge inlined at each use (five copies), the instruction cache thrashes; so there is one loop, one push and
//! one merge. With a counter that differs by lane, ptxas guards every shuffle; so the loop counts a uniform base and
//! adds the lane in the address.

use cuda_std::launch::LaunchConfig;
use cuda_std::warp::FULL_MASK;
use cuda_std::{Ptr, device_inline, global, kernel, math, thread, unroll, warp};

use crate::select::entry::{self, EMPTY};
use crate::select::networks::{warp_merge_keep, warp_sort};
use crate::select::rows::{KeyTable, SelectedRows};

/// Number of warps of a block of the selection kernels; each warp has a different row.
pub const WARPS_PER_BLOCK: u32 = 4;
/// Number of keys that a lane tests with one vote.
const GROUP: usize = 4;
/// Number of keys that a warp tests with one vote.
const GROUP_KEYS: u32 = 32 * GROUP as u32;

/// The state of a running selection: the best 32·`QUEUE_REGISTERS` entries that were offered so far. It can be fused
/// into other kernels: any kernel can offer keys in registers, without writing them to memory. The result has the
/// guarantees of the selection kernels: the exact best k, ties by lower payload, NaN last, in any order of offers.
///
/// `offer` candidates, `finish`, then read the sorted `entry` registers. Every method must be reached by all 32 lanes
/// of the warp together. `QUEUE_REGISTERS` is a power of two. [`thread_queue`] gives a good `THREAD_QUEUE`.
///
/// ```
/// # use cuda_std::{Ptr, PtrMut, emulator::{self, Buffer}, global, kernel, launch::LaunchConfig, warp};
/// # use warpann_kernels::{select::entry, select::warp_select::WarpSelect};
/// /// The 3 rows of `base` (one number each) nearest to `query`, without storing any distance. One block of one warp.
/// ///
/// /// # Safety
/// /// `base` has `rows` elements, `nearest` has 3.
/// #[kernel(max_threads = 32)]
/// pub unsafe fn nearest_three(query: f32, base: Ptr<f32>, rows: u32, nearest: PtrMut<u32>) {
///     let lane = warp::lane_id();
///     let mut select = WarpSelect::<1, 2>::new(3, None);
///     let mut first = 0;
///     while first < rows {
///         let row = first + lane;
///         // SAFETY: row < rows.
///         let x = if row < rows { unsafe { global::load(base.add(row as usize)) } } else { 0.0 };
///         select.offer((x - query) * (x - query), row, row < rows);
///         first += 32;
///     }
///     select.finish();
///     if lane < 3 {
///         // SAFETY: lane < 3.
///         unsafe { global::store(nearest.add(lane as usize), entry::payload(select.entry(0))) };
///     }
/// }
///
/// let base = Buffer::from_slice(&std::array::from_fn::<f32, 100, _>(|row| (row * 37 % 100) as f32));
/// let mut nearest = Buffer::<u32>::new(3);
/// let launch = NearestThree { query: 50.2, base: base.as_ptr(), rows: 100, nearest: nearest.as_mut_ptr() };
/// // SAFETY: 100 rows, room for 3.
/// unsafe { emulator::launch(&NearestThree::KERNEL, LaunchConfig::linear(1, 32), launch)? };
/// // 50, 51 and 49.
/// assert_eq!(nearest.to_vec(), [50, 23, 77]);
/// # Ok::<(), emulator::Violation>(())
/// ```
pub struct WarpSelect<const QUEUE_REGISTERS: usize, const THREAD_QUEUE: usize> {
    queue: [u64; QUEUE_REGISTERS],
    thread_queue: [u64; THREAD_QUEUE],
    /// Number of entries in this lane's thread queue.
    waiting: u32,
    /// Entries at or above are not among the best k. Uniform.
    bound: u64,
    /// Entries at or below were returned by an earlier pass. Uniform.
    floor: Option<u64>,
    last: u32,
    lane: u32,
}

impl<const QUEUE_REGISTERS: usize, const THREAD_QUEUE: usize> WarpSelect<QUEUE_REGISTERS, THREAD_QUEUE> {
    /// An empty selection of the best `k`, 1 ≤ k ≤ 32·`QUEUE_REGISTERS`, among entries above `floor`.
    #[device_inline]
    pub fn new(k: u32, floor: Option<u64>) -> Self {
        WarpSelect {
            queue: [EMPTY; QUEUE_REGISTERS],
            thread_queue: [EMPTY; THREAD_QUEUE],
            waiting: 0,
            bound: EMPTY,
            floor,
            last: k - 1,
            lane: warp::lane_id(),
        }
    }

    /// The current bound: an entry at or above it cannot be among the best k. Uniform over the warp.
    #[device_inline]
    pub fn bound(&self) -> u64 {
        self.bound
    }

    /// Offers a key and its payload of each lane where `take` holds. A payload is offered at most once, and is never
    /// `NO_ROW`.
    #[device_inline]
    pub fn offer(&mut self, key: f32, payload: u32, take: bool) {
        self.push(entry::pack(entry::key_of(key), payload), take);
        if self.must_merge() {
            self.merge();
        }
    }

    /// Merges the entries that are still in thread queues. After it, [`Self::entry`] reads the result.
    #[device_inline]
    pub fn finish(&mut self) {
        self.merge();
    }

    /// This lane's entry of `register`: number 32·`register` + lane of the result, in order; [`EMPTY`] if fewer were
    /// offered. `register` < `QUEUE_REGISTERS` must be known when the kernel is compiled (an index of `unroll`).
    #[device_inline]
    pub fn entry(&self, register: usize) -> u64 {
        self.queue[register]
    }

    /// Appends the `candidate` of each lane in which `take` holds, if it is better than the bound. The caller merges if
    /// [`Self::must_merge`] then holds.
    #[device_inline]
    fn push(&mut self, candidate: u64, take: bool) {
        let above_floor = match self.floor {
            Some(floor) => candidate > floor,
            None => true,
        };
        // Selects, not a branch: they are cheaper than divergence, and conditional stores may put arrays in local
        // memory.
        let take = take & above_floor & (candidate < self.bound);
        unroll::<THREAD_QUEUE>(|i| {
            let slot = THREAD_QUEUE - 1 - i;
            let pushed = if slot > 0 { self.thread_queue[slot - 1] } else { candidate };
            let own = self.thread_queue[slot];
            self.thread_queue[slot] = if take { pushed } else { own };
        });
        self.waiting += take as u32;
    }

    /// Whether some lane has no room for another push. Uniform.
    #[device_inline]
    fn must_merge(&self) -> bool {
        warp::any(FULL_MASK, self.waiting == THREAD_QUEUE as u32)
    }

    /// Moves all thread queues into the warp queue and renews the bound.
    #[device_inline]
    fn merge(&mut self) {
        warp_sort(&mut self.thread_queue, self.lane);
        warp_merge_keep(&mut self.queue, &self.thread_queue, self.lane);
        self.thread_queue = [EMPTY; THREAD_QUEUE];
        self.waiting = 0;
        // Register last / 32 is uniform: selects, not an indexed (local-memory) access.
        let mut holder = self.queue[0];
        unroll::<QUEUE_REGISTERS>(|r| {
            let entries = self.queue[r];
            holder = if r as u32 == self.last / 32 { entries } else { holder };
        });
        self.bound = warp::shuffle_idx(FULL_MASK, holder, self.last % 32);
    }
}

/// A piece of a row of keys in global memory.
#[derive(Clone, Copy)]
struct Row {
    keys: *const f32,
    /// Without ids the payload is the position, counted from `first`.
    ids: Option<Ptr<u32>>,
    first: u32,
    len: u32,
    /// 0 selects the smallest keys, the sign bit the largest.
    flip: u32,
}

impl Row {
    /// Piece number `piece` of the launch, counted over all rows.
    ///
    /// # Safety
    /// The launch satisfies [`WarpSelectRows`], and has the piece.
    #[device_inline]
    unsafe fn of_piece(launch: WarpSelectRows, piece: u32) -> Row {
        let WarpSelectRows { table, segments, segment_columns, .. } = launch;
        let (row, segment) = (piece / segments.max(1), piece % segments.max(1));
        // SAFETY: the row of a piece of the launch is one of its rows.
        let (start, length) = unsafe { table.extent(row) };
        let first = segment * segment_columns;
        let start = start as usize + first as usize;
        let len = if first < length { (length - first).min(segment_columns) } else { 0 };
        // SAFETY: a piece starts at most a row's longest length and a piece behind the start of its row. No address
        // there is 0.
        let ids = table.ids.map(|ids| unsafe { ids.advance(start) });
        Row { keys: table.keys.cast::<f32>().wrapping_add(start), ids, first, len, flip: table.flip }
    }

    #[device_inline]
    unsafe fn load(&self, position: u32) -> f32 {
        if position < self.len {
            // SAFETY: position < len, and the caller of the kernel promises len readable keys.
            unsafe { f32::from_bits(global::load_nc(self.keys.wrapping_add(position as usize)).to_bits() ^ self.flip) }
        } else {
            f32::INFINITY
        }
    }
}

/// Scans `row` and leaves the selection finished.
///
/// # Safety
/// `row` describes readable memory; all 32 lanes arrive with the same arguments.
#[device_inline]
unsafe fn scan<const QUEUE_REGISTERS: usize, const THREAD_QUEUE: usize, const AHEAD: usize>(
    select: &mut WarpSelect<QUEUE_REGISTERS, THREAD_QUEUE>,
    row: Row,
) {
    let lane = select.lane;
    let mut groups = [[f32::INFINITY; GROUP]; AHEAD];
    unroll::<AHEAD>(|a| {
        unroll::<GROUP>(|e| {
            // SAFETY: as the caller promises; `load` checks the position.
            groups[a][e] = unsafe { row.load(a as u32 * GROUP_KEYS + 32 * e as u32 + lane) };
        });
    });
    // With given ids an equal key may still win by its id, so the next value above the bound is used, which admits
    // equal keys.
    let admit_equal = row.ids.is_some() as u32;
    let mut bound_value = f32::NAN;
    let mut base = 0u32;
    loop {
        // One turn more than groups, which merges the remaining entries. This is the only place of the merge.
        let finish = base >= row.len;
        let mut group = groups[0];
        unroll::<AHEAD>(|a| {
            if a + 1 < AHEAD {
                groups[a] = groups[a + 1];
            }
        });
        unroll::<GROUP>(|e| {
            // SAFETY: as above.
            groups[AHEAD - 1][e] = unsafe { row.load(base + AHEAD as u32 * GROUP_KEYS + 32 * e as u32 + lane) };
        });
        let least = math::min_f32(math::min_f32(group[0], group[1]), math::min_f32(group[2], group[3]));
        // Not `least < bound_value`: with a NaN bound (queue not full) all keys must pass.
        #[expect(clippy::neg_cmp_op_on_partial_ord, reason = "NaN on either side must count as a candidate")]
        let candidate = !(least >= bound_value);
        if finish | warp::any(FULL_MASK, candidate) {
            let mut position = base + lane;
            let mut left = if finish { 1 } else { GROUP };
            while left > 0 {
                let key = entry::key_of(group[0]);
                group = [group[1], group[2], group[3], f32::INFINITY];
                let take = position < row.len && key <= entry::key(select.bound);
                let payload = match row.ids {
                    // SAFETY: position < len, and there are len ids.
                    Some(ids) if take => unsafe { global::load_nc(ids.wrapping_add(position as usize)) },
                    _ => row.first + position,
                };
                // The id of an empty slot of an earlier level of a selection. Positions never have this value.
                let take = take & (payload != crate::NO_ROW);
                // Late in a row, most steps of 32 keys have no candidate either.
                if finish | warp::any(FULL_MASK, take) {
                    select.push(entry::pack(key, payload), take);
                    if finish | select.must_merge() {
                        select.merge();
                        let bound = entry::key(select.bound);
                        bound_value = entry::value_of(bound + (admit_equal & (bound != u32::MAX) as u32));
                    }
                }
                position += 32;
                left -= 1;
            }
        }
        if finish {
            return;
        }
        base += GROUP_KEYS;
    }
}

/// The queue lengths of the kernels with queues, in entries, ascending. Each is the largest k of its kernel.
pub const QUEUES: [u32; 6] = [32, 64, 128, 256, 512, LONGEST_QUEUE];
/// The largest k of one launch.
pub const LONGEST_QUEUE: u32 = 1024;

/// Number of entries of the thread queue of each lane, for a warp queue of `queue` entries.
pub const fn thread_queue(queue: u32) -> usize {
    match queue {
        ..=32 => 2,
        33..=128 => 3,
        129..=256 => 4,
        _ => 8,
    }
}

/// Selects the best `k` of each piece of each row, sorted. [`Self::queue`] is the key of the kernel.
///
/// A row is cut into `segments` pieces. Warp r · `segments` + s selects from piece s of row r. Its results start at
/// place (r · `segments` + s) · `out.stride`.
///
/// Each line of the table has the registers of the warp queue, the entries of the thread queue, and the groups that a
/// warp loads ahead. With three groups of 512 bytes for each warp, 12 warps on a multiprocessor have enough bytes in
/// flight to saturate HBM. Long queues are bound by their merges and need the registers. `min_blocks` bounds the
/// registers: it is the greatest number without a spill.
///
/// # Safety
/// The pointers that are present cover the shapes that the fields give. 1 ≤ k ≤ the kernel's queue; skip + k ≤
/// `out.stride`.
#[kernel(
    key = u32,
    max_threads = 128,
    0..=1 => warp_select_k1 = select_one,
    2..=32 => warp_select_k32(min_blocks = 8) = select_some::<1, { thread_queue(32) }, 3>,
    33..=64 => warp_select_k64(min_blocks = 8) = select_some::<2, { thread_queue(64) }, 3>,
    65..=128 => warp_select_k128(min_blocks = 6) = select_some::<4, { thread_queue(128) }, 3>,
    129..=256 => warp_select_k256(min_blocks = 5) = select_some::<8, { thread_queue(256) }, 2>,
    257..=512 => warp_select_k512(min_blocks = 4) = select_some::<16, { thread_queue(512) }, 1>,
    _ => warp_select_k1024(min_blocks = 2) = select_some::<32, { thread_queue(1024) }, 1>,
)]
pub struct WarpSelectRows {
    /// The rows of keys, which are `f32`.
    #[group]
    pub table: KeyTable,
    /// Number of pieces of a row.
    pub segments: u32,
    /// Number of keys of a piece; the last piece of a row may be shorter or empty.
    pub segment_columns: u32,
    /// Number of rows.
    pub rows: u32,
    /// Number of results of a piece.
    pub k: u32,
    /// Number of results of each row that earlier launches wrote; the next `k` follow them. If it is not 0, a row has
    /// one piece.
    pub skip: u32,
    /// The results: `skip` + `k` of each piece, which are the rows.
    #[group]
    pub out: SelectedRows,
}

impl WarpSelectRows {
    /// The key of the kernel: `k`. After an earlier launch it is at least 2, because the kernel for k = 1 cannot
    /// continue.
    pub fn queue(&self) -> u32 {
        if self.skip == 0 { self.k } else { self.k.max(2) }
    }

    /// One warp for each piece.
    pub fn config(&self) -> LaunchConfig {
        LaunchConfig::warps(self.rows as u64 * self.segments as u64, WARPS_PER_BLOCK)
    }
}

/// The body of the kernels with queues.
///
/// # Safety
/// As [`WarpSelectRows`].
#[device_inline]
unsafe fn select_some<const QUEUE_REGISTERS: usize, const THREAD_QUEUE: usize, const AHEAD: usize>(
    launch: WarpSelectRows,
) {
    let WarpSelectRows { table: KeyTable { flip, .. }, segments, rows, k, skip, out, .. } = launch;
    let warp = thread::block_idx_x() * WARPS_PER_BLOCK + warp::warp_id();
    if warp >= rows * segments {
        return;
    }
    // SAFETY: the caller promises the shapes, and the piece belongs to one of the rows.
    unsafe {
        let row = Row::of_piece(launch, warp);
        let (first, out_keys) = (warp as usize * out.stride as usize, out.keys.cast::<f32>());
        let floor = if skip == 0 {
            None
        } else {
            let last = first + skip as usize - 1;
            let value = global::load(out_keys.wrapping_add(last));
            let id = global::load(out.ids.wrapping_add(last));
            // An earlier pass without enough entries wrote NO_ROW: no entry comes after EMPTY.
            let key = entry::key_of(f32::from_bits(value.to_bits() ^ flip));
            Some(if id == crate::NO_ROW { EMPTY } else { entry::pack(key, id) })
        };
        let mut select = WarpSelect::<QUEUE_REGISTERS, THREAD_QUEUE>::new(k, floor);
        scan::<QUEUE_REGISTERS, THREAD_QUEUE, AHEAD>(&mut select, row);
        let lane = select.lane;
        unroll::<QUEUE_REGISTERS>(|r| {
            let place = 32 * r as u32 + lane;
            if place < k {
                let at = first + (skip + place) as usize;
                store_result(out_keys.wrapping_add(at), out.ids.wrapping_add(at), select.entry(r), flip);
            }
        });
    }
}

/// Writes an entry as value and id; [`EMPTY`] becomes the worst value and [`crate::NO_ROW`].
///
/// # Safety
/// Both pointers are writable.
#[device_inline]
unsafe fn store_result(out_key: *mut f32, out_id: *mut u32, found: u64, flip: u32) {
    let value = if found == EMPTY { f32::INFINITY } else { entry::value_of(entry::key(found)) };
    // On bits, not by arithmetic: the NaN that an addition returns differs between devices.
    let flipped = value.to_bits() ^ flip;
    let value = if value.is_nan() {
        f32::NAN
    } else if flipped == 0x8000_0000 {
        0.0
    } else {
        f32::from_bits(flipped)
    };
    // SAFETY: the caller promises both pointers.
    unsafe {
        global::store(out_key, value);
        global::store(out_id, entry::payload(found));
    }
}

/// The body of the kernel for k = 1, which has no queue. Each lane keeps its best entry. A butterfly minimum joins
/// them. The loop takes one comparison for each key and no vote.
///
/// # Safety
/// As [`WarpSelectRows`], with k = 1 and skip = 0.
#[device_inline]
unsafe fn select_one(launch: WarpSelectRows) {
    let WarpSelectRows { table: KeyTable { flip, .. }, segments, rows, out, .. } = launch;
    let warp = thread::block_idx_x() * WARPS_PER_BLOCK + warp::warp_id();
    if warp >= rows * segments {
        return;
    }
    let lane = warp::lane_id();
    // SAFETY: the caller promises the shapes; positions are checked against the piece's length.
    unsafe {
        let row = Row::of_piece(launch, warp);
        let mut best = EMPTY;
        let mut base = 0u32;
        while base < row.len {
            let mut group = [0.0; GROUP];
            unroll::<GROUP>(|e| group[e] = row.load(base + 32 * e as u32 + lane));
            unroll::<GROUP>(|e| {
                let position = base + 32 * e as u32 + lane;
                let key = entry::key_of(group[e]);
                if position < row.len && key <= entry::key(best) {
                    let payload = match row.ids {
                        Some(ids) => global::load_nc(ids.wrapping_add(position as usize)),
                        None => row.first + position,
                    };
                    let found = if payload == crate::NO_ROW { EMPTY } else { entry::pack(key, payload) };
                    best = best.min(found);
                }
            });
            base += GROUP_KEYS;
        }
        let best = warp::butterfly(best, u64::min);
        let at = warp as usize * out.stride as usize;
        if lane == 0 {
            store_result(out.keys.cast::<f32>().wrapping_add(at), out.ids.wrapping_add(at), best, flip);
        }
    }
}
