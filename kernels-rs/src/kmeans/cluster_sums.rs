//! Exact sums of the points of each cluster: the second half of a k-means iteration.
//!
//! # Problem
//! Given a label for each point, add up S(label) += round(w·x · 2^s) for every component, as integers, so that the
//! order of additions changes no bit. One atomic for each component of every point would be n·d atomics on few
//! addresses. If points are grouped by cluster, a warp adds up a run of them in registers and does one atomic for each
//! component and run.
//!
//! # Algorithm
//! Exact sums can also be updated: points whose labels changed are added to their new clusters and subtracted from
//! their old ones. From the third iteration on there are fewer moves than points, after ten a twentieth.
//!
//! ```text
//! move:   a point whose label changed (all, at first) makes a move to its cluster, and one from the cluster before
//! count:  a block counts the moves of its share of the points in shared memory, then adds its counts to those of all;
//!         moves to and from a cluster have separate counts: group 2c is to c, group 2c + 1 from it
//! scan:   the start of the moves of each group in the order: exclusive sums of the counts
//! group:  a block counts again, reserves places of each group by one atomic, and assigns them to its moves
//! add:    a warp iterates over a run of the order; when the group changes, it adds its registers to the cluster's sums,
//!         or subtracts them
//! If several devices have a part of the points each, `add_words` adds up their sums.
//!
//! If there are more groups than shared memory holds, `count` and `group` use atomics in global memory, one for all lanes of a warp that
//! have the same group. The order inside a group is that of arrival, which changes no result.
//!
//! # Rounding without conversion
//! A lane converts x to f64 (exact), and adds ROUND = 1.5 · 2^52 to w·x · 2^s with one fused multiply-add. The bits of the result are those
//! of ROUND plus round(w·x · 2^s), ties to even, because w·x is exact in f64, the scaling is by a power of two, and the rounded number is
//! below 2^51 (the host's `Scale` guarantees that). So the bits are added up as they are, and the bits of ROUND, times the points of the
//! run, are subtracted at the end. This is one integer addition for each component, where a conversion to i64 takes a slow instruction.
//!
//! # Levels
//! If the host's scale has several levels, the kernels `add_level_*` ([`AddLevel`]) run once for each level. They add only the w·x whose
//! magnitudes belong to the level, into sums of the level. Ordinary data has one level, and kernels without a comparison.
//!
//! # How it maps to the machine
//! A warp reads 128 components of a row at once, 16 bytes of f32 for each lane, with `AHEAD` rows in flight; wider rows have further blocks
//! in y. The host cuts the order into one wave of warps, so runs are as long as possible and all warps end together.
//!
//! # Cost
//! One read of the points that moved, in place (512 bytes for a row of 128 f32: whole sectors), 20 bytes for each point for labels, 16 for
//! each move for the order, and 8 bytes of atomics for each component and run. If all points move, 1,000,000 × 128 f32 take 0.13 ms on an
//! H200. 20 iterations from scratch with 256 clusters move 3.9 times the points (simulated, 60,000 points of the standard set's recipe).

use cuda_std::launch::LaunchConfig;
use cuda_std::math::mul_add_f64;
use cuda_std::warp::FULL_MASK;
use cuda_std::{Ptr, PtrMut, atomic, device_inline, global, group, kernel, shared, shared_array, thread, unroll, warp};

use crate::NO_ROW;
use crate::product::element::{self, Element, ElementKey};

/// Number of threads of a block of the kernels that count, scan and group.
const THREADS: u32 = 1024;
/// Smallest number of points that a block counts or groups.
const POINTS_PER_BLOCK: u32 = 2048;
/// Largest number of clusters for which a block counts in shared memory: 32 KiB for two groups each.
pub const SHARED_CLUSTERS: u32 = 4096;
/// Number of warps in a block of [`AddRows`] and [`AddLevel`].
const WARPS_PER_BLOCK: u32 = 4;
/// Number of warps of [`AddRows`] and [`AddLevel`] that a multiprocessor runs at once.
const ADDING_WARPS: u32 = 24;
/// Number of components that such a warp adds up.
const WARP_COMPONENTS: u32 = 128;
/// Smallest number of moves of such a warp.
const SHORTEST_RUN: u32 = 16;
/// Number of rows that such a warp has in flight.
const AHEAD: usize = 8;
/// The group of a point without a move.
const NO_GROUP: u32 = u32::MAX;
/// 1.5 · 2^52: adding it rounds a number below 2^51 to an integer.
const ROUND: f64 = 6_755_399_441_055_744.0;

/// The first and the end of this block's share of `count` points.
#[device_inline]
fn share(count: u32) -> (u32, u32) {
    let each = count.div_ceil(thread::grid_dim_x().max(1));
    let first = thread::block_idx_x().saturating_mul(each).min(count);
    (first, first + each.min(count - first))
}

/// The moves of a point: the group of its new cluster, and the group of its old one. Both are [`NO_GROUP`] if the label
/// did not change; the second is if the point had no label ([`NO_ROW`]).
///
/// # Safety
/// Both arrays have an entry for the point.
#[device_inline]
unsafe fn moves(labels: *const u32, previous: *const u32, point: u32) -> [u32; 2] {
    // SAFETY: as the caller promises.
    unsafe {
        let label = global::load_nc(labels.wrapping_add(point as usize));
        // `group_moves` writes this word later, in the same thread.
        let before = global::load(previous.wrapping_add(point as usize));
        let moved = label != before;
        [if moved { 2 * label } else { NO_GROUP }, if moved && before != NO_ROW { 2 * before + 1 } else { NO_GROUP }]
    }
}

/// Counts the moves of points `first` .. `last` in the `groups` words of dynamic shared memory. All threads of the
/// block arrive; ends with a barrier.
///
/// # Safety
/// As [`moves`] for those points; their groups are below `groups`.
#[device_inline]
unsafe fn count_shared(labels: *const u32, previous: *const u32, first: u32, last: u32, groups: u32) {
    let thread = thread::thread_idx_x();
    let counts = shared::dynamic::<u32>();
    // SAFETY: groups are below `groups`, as the caller promises; barriers separate clearing, counting and later
    // accesses.
    unsafe {
        let mut group = thread;
        while group < groups {
            counts.add(group).store(0);
            group += THREADS;
        }
        thread::sync_threads();
        let mut at = thread;
        while at < last - first {
            let moves = moves(labels, previous, first + at);
            unroll::<2>(|way| {
                if moves[way] != NO_GROUP {
                    atomic::shared_add_u32(counts.add(moves[way]), 1);
                }
            });
            at += THREADS;
        }
    }
    thread::sync_threads();
}

/// Blocks that share `count` points, at most two for each multiprocessor, each with the words of `groups` groups in
/// shared memory. A block has about as many points as groups or more, so that the work for groups does not exceed that
/// for points.
fn share_config(count: u32, groups: u32, multiprocessors: u32) -> LaunchConfig {
    let blocks = count.div_ceil(POINTS_PER_BLOCK.max(groups)).clamp(1, multiprocessors * 2);
    LaunchConfig::linear(blocks as u64, THREADS).with_shared(4 * groups)
}

/// Adds the number of moves of each group to `counts`.
///
/// # Safety
/// The arrays are as long as the parameters say; labels are below `clusters`.
#[kernel(max_threads = 1024)]
pub unsafe fn count_moves(
    /// A label for each point.
    labels: Ptr<u32>,
    /// The label that each point had before; [`NO_ROW`] if it had none.
    previous: Ptr<u32>,
    /// Number of points.
    count: u32,
    /// Number of clusters: at most [`SHARED_CLUSTERS`].
    clusters: u32,
    /// The number of moves of each group: two words for each cluster.
    counts: PtrMut<u32>,
) {
    let (first, last) = share(count);
    // SAFETY: the share lies inside the labels.
    unsafe {
        count_shared(*labels, *previous, first, last, 2 * clusters);
        let mut group = thread::thread_idx_x();
        while group < 2 * clusters {
            let found = shared::dynamic::<u32>().add(group).load();
            if found > 0 {
                atomic::add_u32(counts.wrapping_add(group as usize), found);
            }
            group += THREADS;
        }
    }
}

impl CountMoves {
    /// Blocks that share the points.
    pub fn config(&self, multiprocessors: u32) -> LaunchConfig {
        share_config(self.count, 2 * self.clusters, multiprocessors)
    }
}

/// Adds one for each lane to the word of its group, with one atomic for equal groups. Returns the value of the word
/// before this lane's addition, if lanes of the same group add in ascending order. Lanes without a group pass
/// [`NO_GROUP`], add nothing, and their result is unspecified. All 32 lanes arrive.
///
/// # Safety
/// `words` has one word for each group.
#[device_inline]
unsafe fn add_by_group(words: *mut u32, group: u32, lane: u32) -> u32 {
    let peers = warp::match_any(FULL_MASK, group);
    // The lowest lane of the mask, which contains this lane.
    let leader = 31 - (peers & peers.wrapping_neg()).leading_zeros();
    let mut before = 0;
    if lane == leader && group != NO_GROUP {
        // SAFETY: as the caller promises.
        before = unsafe { atomic::add_u32(words.wrapping_add(group as usize), peers.count_ones()) };
    }
    warp::shuffle_idx(FULL_MASK, before, leader) + (peers & ((1 << lane) - 1)).count_ones()
}

/// Does the same as [`count_moves`], for any number of clusters and without shared memory.
///
/// # Safety
/// As [`count_moves`].
#[kernel(max_threads = 1024)]
pub unsafe fn count_moves_global(
    /// A label for each point.
    labels: Ptr<u32>,
    /// The label that each point had before; [`NO_ROW`] if it had none.
    previous: Ptr<u32>,
    /// Number of points.
    count: u32,
    /// The number of moves of each group: two words for each cluster.
    counts: PtrMut<u32>,
) {
    let (thread, lane) = (thread::thread_idx_x(), warp::lane_id());
    let (first, last) = share(count);
    let mut at = 0;
    while at < last - first {
        let here = at + thread < last - first;
        // SAFETY: first + at + thread < last.
        unsafe {
            let moves = if here { moves(*labels, *previous, first + at + thread) } else { [NO_GROUP; 2] };
            unroll::<2>(|way| {
                add_by_group(*counts, moves[way], lane);
            });
        }
        at += THREADS;
    }
}

impl CountMovesGlobal {
    /// Blocks that share the points.
    pub fn config(&self, multiprocessors: u32) -> LaunchConfig {
        share_config(self.count, 0, multiprocessors)
    }
}

/// Computes exclusive sums of the counts, updates the totals of the clusters, and clears the counts.
///
/// # Safety
/// The arrays are as long as the parameters say.
#[kernel(max_threads = 1024)]
pub unsafe fn scan_groups(
    /// Number of clusters.
    clusters: u32,
    /// The number of moves of each group: two words for each cluster, which become 0.
    counts: PtrMut<u32>,
    /// Word g becomes the number of moves of the groups below g. There is one word more than groups, which becomes the
    /// number of all moves.
    next: PtrMut<u32>,
    /// The number of points of each cluster, which the launch updates.
    totals: PtrMut<u32>,
) {
    let (thread, lane, warp) = (thread::thread_idx_x(), warp::lane_id(), warp::warp_id());
    let warp_sums = shared_array!(u32, 32);
    let groups = 2 * clusters;
    let mut before = 0;
    let mut first = 0;
    while first < groups {
        let group = (first + thread) as usize;
        let exists = first + thread < groups;
        // SAFETY: the group exists; a warp's sum is written by one lane, and read between two barriers.
        unsafe {
            let count = if exists { global::load(counts.wrapping_add(group)) } else { 0 };
            let up_to = warp::inclusive_sum(count);
            if lane == 31 {
                warp_sums.add(warp).store(up_to);
            }
            thread::sync_threads();
            let of_warps = warp::inclusive_sum(warp_sums.add(lane).load());
            // All reads end before the next turn writes.
            thread::sync_threads();
            let below = warp::shuffle_idx(FULL_MASK, of_warps, warp.max(1) - 1);
            let below = if warp == 0 { 0 } else { below };
            let left = warp::shuffle_xor(FULL_MASK, count, 1);
            if exists {
                global::store(next.wrapping_add(group), before + below + up_to - count);
                if group.is_multiple_of(2) {
                    let total = totals.wrapping_add(group / 2);
                    global::store(total, global::load(total).wrapping_add(count).wrapping_sub(left));
                }
                global::store(counts.wrapping_add(group), 0);
            }
            before += warp::shuffle_idx(FULL_MASK, of_warps, 31);
        }
        first += THREADS;
    }
    if thread == 0 {
        // SAFETY: `next` has a word after those of the groups.
        unsafe { global::store(next.wrapping_add(groups as usize), before) };
    }
}

impl ScanGroups {
    /// One block for all groups.
    pub fn config(&self) -> LaunchConfig {
        LaunchConfig::linear(1, THREADS)
    }
}

#[device_inline]
fn entry(group: u32, point: u32) -> u64 {
    (group as u64) << 32 | point as u64
}

/// Stores the new label of a point that moved as its previous one.
///
/// # Safety
/// `previous` has the point if it moved.
#[device_inline]
unsafe fn keep(previous: *mut u32, point: u32, moves: [u32; 2]) {
    if moves[0] != NO_GROUP {
        // SAFETY: as the caller promises.
        unsafe { global::store(previous.wrapping_add(point as usize), moves[0] / 2) };
    }
}

/// Writes the moves in the order of their groups, and copies the labels to the previous ones.
///
/// # Safety
/// As [`count_moves`], with room in `order` for all moves, at most two for each point; `next` is from [`scan_groups`].
#[kernel(max_threads = 1024)]
pub unsafe fn group_moves(
    /// A label for each point.
    labels: Ptr<u32>,
    /// The label that each point had before; becomes equal to `labels`.
    previous: PtrMut<u32>,
    /// Number of points.
    count: u32,
    /// Number of clusters: at most [`SHARED_CLUSTERS`].
    clusters: u32,
    /// The start of the moves of each group in the order; becomes their end.
    next: PtrMut<u32>,
    /// The moves, (group << 32 | point), with room for 2 · `count`.
    order: PtrMut<u64>,
) {
    let thread = thread::thread_idx_x();
    let (first, last) = share(count);
    let places = shared::dynamic::<u32>();
    // SAFETY: the share lies inside the labels; each place is used once, because blocks reserve disjoint ranges.
    unsafe {
        count_shared(*labels, *previous, first, last, 2 * clusters);
        let mut group = thread;
        while group < 2 * clusters {
            let found = places.add(group).load();
            if found > 0 {
                places.add(group).store(atomic::add_u32(next.wrapping_add(group as usize), found));
            }
            group += THREADS;
        }
        thread::sync_threads();
        let mut at = thread;
        while at < last - first {
            let moves = moves(*labels, *previous, first + at);
            unroll::<2>(|way| {
                if moves[way] != NO_GROUP {
                    let place = atomic::shared_add_u32(places.add(moves[way]), 1);
                    global::store(order.wrapping_add(place as usize), entry(moves[way], first + at));
                }
            });
            keep(*previous, first + at, moves);
            at += THREADS;
        }
    }
}

impl GroupMoves {
    /// Blocks that share the points.
    pub fn config(&self, multiprocessors: u32) -> LaunchConfig {
        share_config(self.count, 2 * self.clusters, multiprocessors)
    }
}

/// Adds words to words, modulo 2^64.
///
/// # Safety
/// Both arrays have `count` words, and do not overlap.
#[kernel(max_threads = 1024)]
pub unsafe fn add_words(
    /// The words that are added: `count` words.
    from: Ptr<u64>,
    /// Number of words of each array.
    count: u64,
    /// The words to which they are added: `count` words.
    to: PtrMut<u64>,
) {
    let step = u64::from(thread::grid_dim_x()) * u64::from(thread::block_dim_x());
    let mut at =
        u64::from(thread::block_idx_x()) * u64::from(thread::block_dim_x()) + u64::from(thread::thread_idx_x());
    while at < count {
        // SAFETY: at < count.
        unsafe {
            let to = to.wrapping_add(at as usize);
            global::store(to, global::load(to).wrapping_add(global::load_nc(from.wrapping_add(at as usize))));
        }
        at += step;
    }
}

impl AddWords {
    /// One thread for each word, in at most two blocks for each multiprocessor, whose threads iterate over the words.
    pub fn config(&self, multiprocessors: u32) -> LaunchConfig {
        LaunchConfig::linear(self.count.div_ceil(THREADS as u64).clamp(1, 2 * multiprocessors as u64), THREADS)
    }
}

/// Does the same as [`group_moves`], for any number of clusters and without shared memory.
///
/// # Safety
/// As [`group_moves`].
#[kernel(max_threads = 1024)]
pub unsafe fn group_moves_global(
    /// A label for each point.
    labels: Ptr<u32>,
    /// The label that each point had before; becomes equal to `labels`.
    previous: PtrMut<u32>,
    /// Number of points.
    count: u32,
    /// The start of the moves of each group in the order; becomes their end.
    next: PtrMut<u32>,
    /// The moves, (group << 32 | point), with room for 2 · `count`.
    order: PtrMut<u64>,
) {
    let (thread, lane) = (thread::thread_idx_x(), warp::lane_id());
    let (first, last) = share(count);
    let mut at = 0;
    while at < last - first {
        let here = at + thread < last - first;
        let point = first + at + thread;
        // SAFETY: the point exists; each place is used once.
        unsafe {
            let moves = if here { moves(*labels, *previous, point) } else { [NO_GROUP; 2] };
            unroll::<2>(|way| {
                let place = add_by_group(*next, moves[way], lane);
                if moves[way] != NO_GROUP {
                    global::store(order.wrapping_add(place as usize), entry(moves[way], point));
                }
            });
            keep(*previous, point, moves);
        }
        at += THREADS;
    }
}

impl GroupMovesGlobal {
    /// Blocks that share the points.
    pub fn config(&self, multiprocessors: u32) -> LaunchConfig {
        share_config(self.count, 0, multiprocessors)
    }
}

/// Selects all numbers: the sums have one level.
#[derive(Clone, Copy)]
struct All;

/// Selects numbers with magnitudes from `from` up to `below`, exclusive; and weights likewise.
#[derive(Clone, Copy)]
struct OfLevel {
    from: f64,
    below: f64,
    weight_from: f64,
    weight_below: f64,
}

/// The selection of the numbers that are added.
trait Taken: Copy {
    /// Whether `product`, w·x, is added.
    fn product(self, product: f64) -> bool;
    /// Whether `weight` is added.
    fn weight(self, weight: f64) -> bool;
}

impl Taken for All {
    #[device_inline]
    fn product(self, _: f64) -> bool {
        true
    }

    #[device_inline]
    fn weight(self, _: f64) -> bool {
        true
    }
}

impl Taken for OfLevel {
    #[device_inline]
    fn product(self, product: f64) -> bool {
        let magnitude = if product < 0.0 { -product } else { product };
        magnitude >= self.from && magnitude < self.below
    }

    #[device_inline]
    fn weight(self, weight: f64) -> bool {
        weight >= self.weight_from && weight < self.weight_below
    }
}

/// The bits of ROUND plus round(`value` · `scale`), or of ROUND if the value is not taken.
#[device_inline]
fn rounded(value: f64, scale: f64, taken: bool) -> u64 {
    if taken { mul_add_f64(value, scale, ROUND).to_bits() } else { ROUND.to_bits() }
}

/// The points that came to a cluster or left it, and the sums of the clusters.
#[group]
pub struct MovedRows {
    /// Rows of `stride` components, of the type of the key.
    pub rows: Ptr<u8>,
    /// Distance in components from one row to the next, and from one row of `sums` to the next: a multiple of 4, zero
    /// padded.
    pub stride: u32,
    /// The moves from [`GroupMoves`], (group << 32 | point): at least `move_count`.
    pub order: Ptr<u64>,
    /// Number of moves: one word.
    pub move_count: Ptr<u32>,
    /// A weight for each point; absent: all are 1, and nothing is added to `weight_sums`.
    pub weights: Option<Ptr<f32>>,
    /// A power of two: w·x is rounded to integers after it is multiplied by this.
    pub component_scale: f64,
    /// A power of two: w is rounded to integers after it is multiplied by this.
    pub weight_scale: f64,
    /// A row for each cluster, of i64 in two's complement.
    pub sums: PtrMut<u64>,
    /// One word for each cluster, of i64 in two's complement.
    pub weight_sums: PtrMut<u64>,
}

impl MovedRows {
    /// One wave of warps, which share the moves; for each 128 components one row of blocks in y.
    pub fn config(&self, multiprocessors: u32) -> LaunchConfig {
        let parts = self.stride.div_ceil(WARP_COMPONENTS);
        let warps = (multiprocessors * ADDING_WARPS).div_ceil(parts);
        LaunchConfig::warps(warps as u64, WARPS_PER_BLOCK).along_y(parts as u64)
    }
}

/// Adds round(w·x · `component_scale`) of every point that came to a cluster to the cluster's sums, and subtracts that
/// of every point that left. Weights likewise.
///
/// # Safety
/// The arrays that are present are as long as the fields say; points and clusters of the order exist.
#[kernel(
    key = ElementKey,
    max_threads = 128,
    min_blocks = 6,
    ElementKey::F32 => add_rows_f32 = add_all::<element::F32>,
    ElementKey::F16 => add_rows_f16 = add_all::<element::F16>,
    ElementKey::Bf16 => add_rows_bf16 = add_all::<element::Bf16>,
    ElementKey::U8 => add_rows_u8 = add_all::<element::U8>,
    ElementKey::I8 => add_rows_i8 = add_all::<element::I8>,
)]
pub struct AddRows {
    /// The moves, the rows of their points, and the sums.
    #[group]
    pub moves: MovedRows,
}

/// Does the same as [`AddRows`] for one level of several: adds only the numbers whose magnitudes belong to the level.
/// (Six blocks a multiprocessor would spill.)
///
/// # Safety
/// As [`AddRows`].
#[kernel(
    key = ElementKey,
    max_threads = 128,
    min_blocks = 5,
    ElementKey::F32 => add_level_f32 = add_level::<element::F32>,
    ElementKey::F16 => add_level_f16 = add_level::<element::F16>,
    ElementKey::Bf16 => add_level_bf16 = add_level::<element::Bf16>,
    ElementKey::U8 => add_level_u8 = add_level::<element::U8>,
    ElementKey::I8 => add_level_i8 = add_level::<element::I8>,
)]
pub struct AddLevel {
    /// The moves, the rows of their points, and the sums of the level.
    #[group]
    pub moves: MovedRows,
    /// Smallest magnitude of w·x that belongs to the level.
    pub from: f64,
    /// Exclusive upper bound of the magnitudes of w·x that belong to the level.
    pub below: f64,
    /// Smallest weight that belongs to the level.
    pub weight_from: f64,
    /// Exclusive upper bound of the weights that belong to the level.
    pub weight_below: f64,
}

/// # Safety
/// As [`AddRows`].
#[device_inline]
unsafe fn add_all<E: Element>(launch: AddRows) {
    // SAFETY: the contract is the same.
    unsafe { add_rows::<E>(All, launch.moves) }
}

/// # Safety
/// As [`AddLevel`].
#[device_inline]
unsafe fn add_level<E: Element>(launch: AddLevel) {
    let AddLevel { moves, from, below, weight_from, weight_below } = launch;
    // SAFETY: the contract is the same.
    unsafe { add_rows::<E>(OfLevel { from, below, weight_from, weight_below }, moves) }
}

/// # Safety
/// As [`AddRows`].
#[device_inline]
unsafe fn add_rows<E: Element>(taken: impl Taken, launch: MovedRows) {
    let MovedRows { stride, order, move_count, weights, component_scale, weight_scale, sums, weight_sums, .. } = launch;
    let rows = launch.rows.cast::<E::Stored>();
    let lane = warp::lane_id();
    let warp = thread::block_idx_x() * WARPS_PER_BLOCK + warp::warp_id();
    // SAFETY: the caller promises the word.
    let count = unsafe { global::load_nc(*move_count) };
    let run = count.div_ceil((thread::grid_dim_x() * WARPS_PER_BLOCK).max(1)).max(SHORTEST_RUN);
    // In 64 bits, because the last warps may start after the end.
    let first = warp as u64 * run as u64;
    if first >= count as u64 {
        return;
    }
    let first = first as u32;
    let last = first + run.min(count - first);
    let quads = stride / 4;
    let quad = thread::block_idx_y() * (WARP_COMPONENTS / 4) + lane;
    let adds = quad < quads;
    // Lanes after the row's end read its last components and add nothing.
    let quad = if adds { quad } else { quads - 1 };
    let adds_weights = weights.is_some() && lane == 0 && thread::block_idx_y() == 0;

    // SAFETY: places are below `count`, and points and clusters of the order exist; quad < quads.
    unsafe {
        let mut group = (global::load_nc(order.wrapping_add(first as usize)) >> 32) as u32;
        let to = LaneSums { sums: *sums, weight_sums: *weight_sums, stride, quad, adds, adds_weights };
        let (mut acc, mut weight_acc, mut points) = ([0u64; 4], 0u64, 0u64);
        let mut at = first;
        while at < last {
            // A lane reads one place; after the end it repeats the last.
            let here = (last - at).min(32);
            let mine = global::load_nc(order.wrapping_add((at + lane.min(here - 1)) as usize));
            let (my_group, my_point) = ((mine >> 32) as u32, mine as u32);
            let my_weight = match weights {
                Some(weights) => global::load_nc(weights.wrapping_add(my_point as usize)),
                None => 1.0,
            };
            let mut from = 0;
            while from < here {
                let mut x = [[0.0f32; 4]; AHEAD];
                unroll::<AHEAD>(|i| {
                    let point = warp::shuffle_idx(FULL_MASK, my_point, from + i as u32);
                    x[i] = E::load4(rows.wrapping_add(point as usize * stride as usize), quad);
                });
                unroll::<AHEAD>(|i| {
                    let of = warp::shuffle_idx(FULL_MASK, my_group, from + i as u32);
                    let weight = warp::shuffle_idx(FULL_MASK, my_weight, from + i as u32) as f64;
                    if from + (i as u32) < here {
                        if of != group {
                            to.flush(group, acc, weight_acc, points);
                            (acc, weight_acc, points) = ([0; 4], 0, 0);
                            group = of;
                        }
                        unroll::<4>(|e| {
                            let product = weight * x[i][e] as f64;
                            acc[e] = acc[e].wrapping_add(rounded(product, component_scale, taken.product(product)));
                        });
                        weight_acc = weight_acc.wrapping_add(rounded(weight, weight_scale, taken.weight(weight)));
                        points += 1;
                    }
                });
                from += AHEAD as u32;
            }
            at += 32;
        }
        to.flush(group, acc, weight_acc, points);
    }
}

/// The destination of the sums in a lane's registers.
#[derive(Clone, Copy)]
struct LaneSums {
    sums: *mut u64,
    weight_sums: *mut u64,
    stride: u32,
    /// The lane's four components of every row.
    quad: u32,
    /// Whether the lane adds components.
    adds: bool,
    /// Whether the lane adds weights.
    adds_weights: bool,
}

impl LaneSums {
    /// Adds the lane's sums of `points` points to their cluster's sums if the group is even, and subtracts them if it
    /// is odd.
    ///
    /// # Safety
    /// The sums have the group's cluster, and the lane's components.
    #[device_inline]
    unsafe fn flush(self, group: u32, acc: [u64; 4], weight_acc: u64, points: u64) {
        let rounding = points.wrapping_mul(ROUND.to_bits());
        let cluster = group / 2;
        let change = |acc: u64| {
            let sum = acc.wrapping_sub(rounding);
            if group.is_multiple_of(2) { sum } else { sum.wrapping_neg() }
        };
        if self.adds {
            let to = self.sums.wrapping_add(cluster as usize * self.stride as usize + 4 * self.quad as usize);
            // SAFETY: as the caller promises.
            unroll::<4>(|e| unsafe {
                atomic::add_u64(to.wrapping_add(e), change(acc[e]));
            });
        }
        if self.adds_weights {
            // SAFETY: as the caller promises.
            unsafe { atomic::add_u64(self.weight_sums.wrapping_add(cluster as usize), change(weight_acc)) };
        }
    }
}
