//! Exact comparison of queries with all vectors of their lists: for queries without a certificate, without the host,
//! and for few queries of short lists.
//!
//! # Problem
//! Scores decide which centroids and vectors are compared exactly, and a certificate proves that no others are needed
//! ([`crate::ivf::rerank`]). Without the certificate the host searches again with more candidates. A search that only
//! enqueues work cannot wait for the flags, so a kernel completes these queries.
//!
//! One or two queries leave the device idle most of the time: operands, pairs, scores, selection and re-ranking are
//! small launches one after the other, and each takes longer than its work. If the lists are short, one launch compares
//! such a query with all their vectors exactly, and the result needs no certificate.
//!
//! # Algorithm
//! Every block looks for the queries without a certificate among all. If there are fewer than blocks, as nearly always,
//! up to 64 blocks share each; otherwise the blocks complete them in turn. For probes a block looks among up to 32
//! queries, one for each lane, and completes these one after the other.
//!
//! ```text
//! probes:     b = score of the probes-th best centroid                           // |score + shift - distance| <= E
//!             centroids with score < b - 3 E are probes
//!             of those within 3 E of b, compared exactly, the best ones are the other probes
//! neighbours: d = distance of the k-th neighbour so far
//!             of the vectors in the probed lists with score + shift - E <= d, compared exactly, the k best are the result
//! ```
//!
//! At least probes centroids have a distance of at most b + shift + E, and fewer than probes have one below b + shift -
//! E. So a margin of 2 E is enough; the third E covers roundings of the comparison.
//!
//! If the scan appended candidates, the scores of all vectors are not in memory. All vectors with a score up to a
//! threshold t are candidates. So if t + shift - E > d, only candidates are compared. Otherwise, or if there was no
//! room for all of them, all vectors of the probed lists are.
//!
//! A range search with k places for each query counts the vectors within its radius in the same lists, for the queries
//! that fill their places ([`crate::flat::count_within`]). The bounds of most vectors decide whether these are within
//! the radius; the others are compared exactly.
//!
//! The lists of a query are cut into pieces of up to 32 rows, and the warps take them in turn. A warp compares four
//! rows at a time and keeps its best 32 entries ([`WarpSelect`]). The block joins the entries of its warps. More than
//! 32 results take further passes, which select among the entries after the last one.
//!
//! Of blocks that share a query each writes its best k ≤ 32 entries to memory, and the last one to do so joins them. If
//! all queries are compared ([`Rescan::shared_by`]), pieces are as short as needed so that all warps have one.
//!
//! # Cost
//! Without such a query one launch in which each block reads a word of each query. Otherwise one read of the query's
//! scores or candidates, and the distances of the vectors near the k-th, for each 32 results. A query without either
//! takes one block 54 ns for each vector of its lists (a billion × 96, 5 bits, H200, 2026-12-01), and the whole search
//! waits for it. Before blocks shared such queries and looked at candidates, 10,000 queries of 32 of 1,024 lists took
//! 3.8 ms with scores of all vectors, and of 64 lists 12.9 with candidates (1,000,000 × 384 sentence embeddings, f16).
//! By that rate one such query explains the difference. What it takes now is not measured.
//!
//! Queries that blocks share: one query of 4,096 lists with a mean of 244 vectors of 128 components, k = 10, from host
//! memory and back, µs (median of three medians, H200, 2026-11-26, revisions ff1c09f and 37844f6, record
//! `2026-11-26-few-queries.csv`), by scores and by this kernel:
//!
//! | probes | f32 | scalar codes | 16 bytes | 64 bytes |
//! |---|---|---|---|---|
//! | 1 | 39.9, 37.9 | 44.6, 40.5 | 52.2, 36.8 | 60.4, 41.8 |
//! | 8 | 40.0, 35.9 | 46.1, 36.8 | 53.0, 35.7 | 60.5, 41.8 |
//! | 32 | 47.1, 43.7 | 48.0, 44.4 | 52.3, 45.0 | 60.2, 50.1 |
//! | 64 | 51.1, 45.9 | 55.2, 44.0 | by scores | by scores |
//! | 128 | 61.4, 53.2 | 62.2, 58.3 | by scores | by scores |
//!
//! By a captured graph, 8 lists of f32 take 26.4 µs instead of 31.8 (predicted: 22, four launches fewer). Codes of 16
//! bytes in 64 lists took 59 µs by this kernel, and 60 by scores; in 128 lists 75 and 66. One block for each
//! multiprocessor lost to two with 32 or more lists (flat, 128 lists: 58 µs), and three gained nothing. Pieces of at
//! least 16 rows lost (codes, 8 lists: 44 µs).

use core::ops::Range;

use cuda_std::launch::LaunchConfig;
use cuda_std::shared::SharedPtr;
use cuda_std::warp::FULL_MASK;
use cuda_std::{Ptr, PtrMut, atomic, device_inline, global, kernel, shared_array, thread, unroll, warp};

use crate::NO_ROW;
use crate::ivf::encoding::flat::Stored;
use crate::ivf::encoding::{Decode, StoredRows};
use crate::ivf::pairs::score_of;
use crate::ivf::rerank::{ProbedLists, Query, THREADS};
use crate::product::canonical::BATCH;
use crate::product::element::{self, RowKey};
use crate::product::metric::Metric;
use crate::select::entry::{self, EMPTY};
use crate::select::networks::warp_sort;
use crate::select::warp_select::{WarpSelect, thread_queue};

const WARPS: usize = THREADS as usize / 32;
/// Number of blocks for each multiprocessor from which on a block has several queries.
const BLOCKS: u32 = 8;
/// Number of results of a pass, the entries of a warp's queue.
pub const PASS: u32 = 32;
/// Number of rows that a block of a shared query compares at once.
pub const BLOCK_ROWS: u32 = WARPS as u32 * BATCH as u32;
/// Number of entries that a thread reads at once to join those of all blocks.
const JOINED: usize = 8;
/// Number of queries whose words a lane reads at once, because each is a round trip to memory.
const LOOKED: usize = 8;
/// Number of blocks that count, or complete queries, for each multiprocessor.
const COUNTING_BLOCKS: u64 = 3;
const COMPLETING_BLOCKS: u32 = 3;
/// Largest number of blocks that share a query without a certificate: a warp of each then has some pieces of a few
/// dozen lists.
const MOST_SHARING: u32 = 64;
/// Largest number of counters of queries that blocks share ([`Rescan::finished`]), if they share those without a
/// certificate.
pub const MOST_COUNTERS: u32 = 512;
/// The best entries of a warp in a pass.
type Queue = WarpSelect<1, { thread_queue(PASS) }>;

/// The purpose of comparing a query with all vectors of its lists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rescanned {
    /// The k best vectors, of each query without a certificate.
    Neighbors,
    /// The number of vectors within a radius, of each listed query.
    Count,
}

/// [`Rescanned::Neighbors`] replaces the neighbours of each query without a certificate by the k best of all vectors in
/// its probed lists, best first. [`Rescanned::Count`] adds the number of vectors in the probed lists within a radius to
/// the count of each listed query.
///
/// The default has empty or absent pointers and zeros.
///
/// # Safety
/// All pointers that are present cover the shapes of their fields, rows are those of the lists' storage, and every code
/// has a codeword. `lists.probed_lists` and `lists.ranks` are present.
#[kernel(
    key = (RowKey, Rescanned),
    max_threads = 128,
    min_blocks = 3,
    elsewhere = rescan_kernels,
    (RowKey::F32, Rescanned::Neighbors) => rescan_lists_f32 = rescan::<Stored<element::F32>>,
    (RowKey::F32, Rescanned::Count) => count_lists_f32 = count::<Stored<element::F32>>,
    (RowKey::F16, Rescanned::Neighbors) => rescan_lists_f16 = rescan::<Stored<element::F16>>,
    (RowKey::F16, Rescanned::Count) => count_lists_f16 = count::<Stored<element::F16>>,
    (RowKey::Bf16, Rescanned::Neighbors) => rescan_lists_bf16 = rescan::<Stored<element::Bf16>>,
    (RowKey::Bf16, Rescanned::Count) => count_lists_bf16 = count::<Stored<element::Bf16>>,
    (RowKey::U8, Rescanned::Neighbors) => rescan_lists_u8 = rescan::<Stored<element::U8>>,
    (RowKey::U8, Rescanned::Count) => count_lists_u8 = count::<Stored<element::U8>>,
    (RowKey::I8, Rescanned::Neighbors) => rescan_lists_i8 = rescan::<Stored<element::I8>>,
    (RowKey::I8, Rescanned::Count) => count_lists_i8 = count::<Stored<element::I8>>,
    (RowKey::Bits, Rescanned::Neighbors) => rescan_lists_bits = rescan::<Stored<element::Bits>>,
    (RowKey::Bits, Rescanned::Count) => count_lists_bits = count::<Stored<element::Bits>>,
)]
#[derive(Default)]
pub struct Rescan {
    /// Number of queries.
    pub query_count: u32,
    /// As the fields of [`Rerank`](crate::ivf::rerank::Rerank) with the same names, and so the fields up to `metric`.
    pub queries: Ptr<u8>,
    /// Distance from one query, stored vector or centroid to the next in components.
    pub stride: u32,
    /// Rows of the storage.
    #[group]
    pub stored: StoredRows,
    /// The metric of the distances.
    pub metric: Metric,
    /// The lists whose vectors are compared, with probes and ranks.
    #[group]
    pub lists: ProbedLists,
    /// The scores of all vectors in the probed lists; absent: all vectors are compared.
    pub scores: Option<Ptr<f32>>,
    /// The start of each query's row of scores.
    pub row_starts: Ptr<u64>,
    /// The shift of each query: a score plus the shift approximates the distance; absent: 0.
    pub shifts: Option<Ptr<f32>>,
    /// E of each query: the bound of |score + shift − distance|.
    pub errors: Ptr<f32>,
    /// Neighbours only: not 0 for each query without a certificate. If every query is compared, all become 0.
    pub flags: PtrMut<u32>,
    /// Neighbours only: the number of candidates of each query; more than `room` are no certificate either. Absent:
    /// nothing was appended.
    pub counts: Option<Ptr<u32>>,
    /// Neighbours only: number of candidates of a query for which there was room.
    pub room: u32,
    /// Neighbours only: the scores of the candidates, `room` for each query; absent: they are not looked at.
    pub candidate_scores: Option<Ptr<f32>>,
    /// Neighbours only: the places of the candidates in the query's row, laid out as the scores.
    pub candidate_places: Ptr<u32>,
    /// Neighbours only: the score of each query up to which all vectors are candidates; NaN: not known.
    pub thresholds: Ptr<f32>,
    /// Neighbours only: number of results of a query, at least 1; at most [`PASS`] if queries are shared.
    pub k: u32,
    /// Neighbours only: number of blocks that share each query, which then is compared whether it has a certificate or
    /// not. 0: queries without a certificate are compared, and have results already. Blocks share them if there are
    /// more blocks than such queries, and k ≤ [`PASS`].
    pub shared_by: u32,
    /// Number of rows of a piece if all queries are compared: 1 to 32.
    pub piece: u32,
    /// Neighbours only: room for `k` entries of each block, if blocks share queries.
    pub entries: PtrMut<u64>,
    /// Neighbours only: counters that are 0 before and after the launch, if blocks share queries: one for each query,
    /// or [`MOST_COUNTERS`] for those without a certificate.
    pub finished: PtrMut<u32>,
    /// Neighbours only: the distances of `k` vectors of the probed lists for each query, best first. The worst distance
    /// if there are fewer.
    pub keys: PtrMut<f32>,
    /// Neighbours only: the ranks of these vectors, laid out as `keys`; `NO_ROW` if there are fewer.
    pub out_ranks: PtrMut<u32>,
    /// Counts only: the number of listed queries, and then their numbers.
    pub listed: Ptr<u32>,
    /// Counts only: the radius, a distance of the metric, not NaN.
    pub radius: f32,
    /// Counts only: the count of each query.
    pub within: PtrMut<u32>,
}

impl Rescan {
    /// `shared_by` blocks for each query, or [`completing_blocks`] for those without a certificate; for counts a fixed
    /// number of blocks, which share the lists of all listed queries.
    pub fn config(&self, what: Rescanned, multiprocessors: u32) -> LaunchConfig {
        match what {
            Rescanned::Neighbors if self.shared_by > 0 => {
                LaunchConfig::linear(self.query_count as u64 * self.shared_by as u64, THREADS)
            }
            Rescanned::Neighbors => LaunchConfig::linear(completing_blocks(multiprocessors) as u64, THREADS),
            Rescanned::Count => LaunchConfig::linear(multiprocessors as u64 * COUNTING_BLOCKS, THREADS),
        }
    }
}

/// Number of blocks that complete the queries without a certificate.
pub const fn completing_blocks(multiprocessors: u32) -> u32 {
    let blocks = multiprocessors.saturating_mul(COMPLETING_BLOCKS);
    if blocks < 2 * MOST_COUNTERS { blocks } else { 2 * MOST_COUNTERS }
}

/// Blocks for the queries of a launch of [`RescanProbes`].
fn blocks_for(query_count: u32, multiprocessors: u32) -> LaunchConfig {
    let queries = (query_count / (multiprocessors * BLOCKS).max(1)).clamp(1, 32);
    LaunchConfig::linear(query_count.div_ceil(queries) as u64, THREADS)
}

/// The queries of the block that `lacks` a certificate: the first query of the block, and a bit for each query from
/// this one on. All threads of the block stay together.
#[device_inline]
fn lacking(query_count: u32, lacks: impl Fn(u32) -> bool) -> (u32, u32) {
    let queries = query_count.div_ceil(thread::grid_dim_x().max(1));
    let (first, lane) = (thread::block_idx_x() * queries, warp::lane_id());
    let query = first + lane;
    // Every warp finds the same queries.
    (first, warp::ballot(FULL_MASK, lane < queries && query < query_count && lacks(query)))
}

/// Calls `complete` for each query that [`lacking`] names, one after the other. All threads of the block stay together.
#[device_inline]
fn each_query((first, mut left): (u32, u32), mut complete: impl FnMut(u32)) {
    while left != 0 {
        complete(first + left.trailing_zeros());
        left &= left - 1;
    }
}

/// The queries without a certificate, which all blocks number in the same way.
struct Lacking<'a> {
    launch: &'a Rescan,
    /// Room for the number of these queries that each warp found, and for one more word.
    found: SharedPtr<u32>,
}

impl Lacking<'_> {
    /// Calls `each` with 32 of the warp's part of all queries after another: the first one, and a bit for each that
    /// lacks a certificate.
    ///
    /// # Safety
    /// As [`Rescan`].
    #[device_inline]
    unsafe fn of_warp(&self, mut each: impl FnMut(u32, u32)) {
        let &Rescan { query_count, flags, counts, room, .. } = self.launch;
        let part = query_count.div_ceil(THREADS) * 32;
        let mut first = (warp::warp_id() * part).min(query_count);
        let end = (first + part).min(query_count);
        while first < end {
            let query = |turn: usize| first + 32 * turn as u32 + warp::lane_id();
            // Lanes behind the end read the last query again, so that no load waits for a branch.
            let at = |turn: usize| query(turn).min(end - 1) as usize;
            let (mut flagged, mut counted) = ([0; LOOKED], [0; LOOKED]);
            // SAFETY: the query exists.
            unsafe {
                unroll::<LOOKED>(|turn| flagged[turn] = global::load(flags.wrapping_add(at(turn))));
                if let Some(counts) = counts {
                    unroll::<LOOKED>(|turn| counted[turn] = global::load_nc(counts.wrapping_add(at(turn))));
                }
            }
            unroll::<LOOKED>(|turn| {
                let lacks = query(turn) < end && (flagged[turn] != 0) | (counted[turn] > room);
                each(first + 32 * turn as u32, warp::ballot(FULL_MASK, lacks));
            });
            first += 32 * LOOKED as u32;
        }
    }

    /// The number of these queries. All threads of the block arrive.
    ///
    /// # Safety
    /// As [`Rescan`].
    #[device_inline]
    unsafe fn count(&self) -> u32 {
        let (mut own, mut all) = (0, 0);
        // SAFETY: as the caller promises; a barrier separates writes and reads.
        unsafe {
            self.of_warp(|_, lacking| own += lacking.count_ones());
            if warp::lane_id() == 0 {
                self.found.add(warp::warp_id()).store(own);
            }
            thread::sync_threads();
            unroll::<WARPS>(|warp| all += self.found.add(warp as u32).load());
        }
        all
    }

    /// Number `slot` of them. All threads of the block arrive.
    ///
    /// # Safety
    /// As [`Rescan`]; the slot is below [`Self::count`], which precedes this.
    #[device_inline]
    unsafe fn get(&self, slot: u32) -> u32 {
        let mut before = 0;
        // SAFETY: as the caller promises; barriers separate writes and reads.
        unsafe {
            let to = self.found.add(WARPS as u32);
            unroll::<WARPS>(|warp| {
                before += if (warp as u32) < warp::warp_id() { self.found.add(warp as u32).load() } else { 0 };
            });
            let own = self.found.add(warp::warp_id()).load();
            if before <= slot && slot < before + own {
                self.of_warp(|first, lacking| {
                    let end = before + lacking.count_ones();
                    if before <= slot && slot < end {
                        let mut left = lacking;
                        while before < slot {
                            left &= left - 1;
                            before += 1;
                        }
                        if warp::lane_id() == 0 {
                            to.store(first + left.trailing_zeros());
                        }
                    }
                    before = end;
                });
            }
            thread::sync_threads();
            let query = to.load();
            // The next slot is written after this.
            thread::sync_threads();
            query
        }
    }
}

/// The blocks that share a query.
#[derive(Clone, Copy)]
struct Sharing {
    /// The number of the query among those that are shared.
    slot: u32,
    /// The number of this block among the query's, and the number of all of them.
    block: u32,
    blocks: u32,
}

/// All threads of the block stay together.
///
/// # Safety
/// As [`Rescan`].
#[device_inline]
pub(crate) unsafe fn rescan<R: Decode>(launch: Rescan) {
    let best = shared_array!(u64, THREADS as usize);
    let lacking = Lacking { launch: &launch, found: shared_array!(u32, WARPS + 1) };
    let (block, grid) = (thread::block_idx_x(), thread::grid_dim_x());
    // SAFETY: the caller promises the shapes; all threads of a block have the same numbers.
    unsafe {
        let all = launch.shared_by > 0;
        let slots = if all { launch.query_count } else { lacking.count() };
        let blocks = match grid.checked_div(slots) {
            None => return,
            _ if all => launch.shared_by,
            Some(each) if launch.k <= PASS => each.clamp(1, MOST_SHARING),
            Some(_) => 1,
        };
        let mut slot = block / blocks;
        // With several blocks for a query there is one turn. One call for all: the body is inlined, and with two this
        // was the largest kernel of all.
        while slot < slots {
            let query = if all { slot } else { lacking.get(slot) };
            rescan_query::<R>(&launch, query, Sharing { slot, block: block % blocks, blocks }, best);
            slot += grid / blocks;
        }
    }
}

/// Completes one query, or does the share of a block of those that share it. All threads of the block stay together.
///
/// # Safety
/// As [`Rescan`]; the query is below `query_count`, and `best` has a place for each thread.
#[device_inline]
unsafe fn rescan_query<R: Decode>(launch: &Rescan, query: u32, sharing: Sharing, best: SharedPtr<u64>) {
    let &Rescan { stride, metric, k, keys, out_ranks, lists: ProbedLists { probes, .. }, shared_by, .. } = launch;
    let (lane, warp) = (warp::lane_id(), warp::warp_id());
    let piece = if shared_by > 0 { launch.piece } else { PASS };
    let (own, warps) = (sharing.block * WARPS as u32 + warp, sharing.blocks * WARPS as u32);
    // SAFETY: for the whole body, as the caller promises.
    unsafe {
        let rows = R::of(&launch.stored, stride);
        let x = Query::<R::Query>::of(launch.queries, stride, metric, query, lane);
        let first = query as usize * k as usize;
        // Every thread reads this before the first barrier, and results are written after it, by the last of the
        // blocks.
        let worst = if shared_by > 0 {
            f32::INFINITY
        } else {
            metric.badness(global::load(keys.wrapping_add(first + k as usize - 1)))
        };
        let scores = launch.scores_of(query as usize);
        let candidates = launch.candidates_within(query, worst);
        let mut floor = None;
        let mut done = 0;
        while done < k {
            let mut queue = Queue::new((k - done).min(PASS), floor);
            let (mut probe, mut before) = (0, 0);
            while probe < probes && floor != Some(EMPTY) {
                // Each lane has a list, and the lists have their pieces one after the other. If the candidates are
                // enough, they are the list of the first lane, and no other is looked at.
                let has_list = candidates.is_none() && probe + lane < probes;
                let list = if has_list { launch.list(query as usize, probe + lane) } else { ProbedList::NONE };
                let length = candidates.map_or(list.length, |count| if probe + lane == 0 { count } else { 0 });
                let pieces = length.div_ceil(piece);
                let end = warp::inclusive_sum(pieces);
                let begin = end - pieces;
                let all = warp::shuffle_idx(FULL_MASK, end, 31);
                let mut number = (own + warps - before % warps) % warps;
                while number < all {
                    // The last list that begins at this piece or before it.
                    let of = 31 - warp::ballot(FULL_MASK, begin <= number).leading_zeros();
                    let list = list.of_lane(of);
                    let from = (number - warp::shuffle_idx(FULL_MASK, begin, of)) * piece;
                    let row = match candidates {
                        Some(count) => launch.candidates(query, from..count, worst),
                        None => launch.rows(&list, scores, from..from + piece, worst),
                    };
                    offer(&x, rows, row, row.rank, &mut queue);
                    number += warps;
                }
                before += all;
                probe += 32;
            }
            let mut entry = joined(queue, best);
            if sharing.blocks > 1 {
                let Some(of_all) = joined_of_blocks(launch, sharing, entry, best) else { return };
                entry = of_all;
            }
            let slot = done + lane;
            if warp == 0 && slot < k {
                let at = first + slot as usize;
                let distance =
                    if entry == EMPTY { metric.worst() } else { metric.distance(entry::value_of(entry::key(entry))) };
                global::store(keys.wrapping_add(at), distance);
                // The payload of an empty slot is NO_ROW.
                global::store(out_ranks.wrapping_add(at), entry::payload(entry));
            }
            floor = Some(warp::shuffle_idx(FULL_MASK, entry, PASS - 1));
            done += PASS;
        }
        if shared_by > 0 && thread::thread_idx_x() == 0 {
            global::store(launch.flags.wrapping_add(query as usize), 0);
        }
    }
}

/// The best entries of all blocks that share a query: lane l gets number l. `entry` is number l of this block. None in
/// all blocks but the last one to come here. All threads of the block arrive.
///
/// # Safety
/// As [`Rescan`]; `best` has a place for each thread, and no other thread uses it.
#[device_inline]
unsafe fn joined_of_blocks(launch: &Rescan, sharing: Sharing, entry: u64, best: SharedPtr<u64>) -> Option<u64> {
    let &Rescan { k, entries, finished, .. } = launch;
    let Sharing { slot, block, blocks } = sharing;
    let (lane, warp, thread) = (warp::lane_id(), warp::warp_id(), thread::thread_idx_x());
    let all = blocks * k;
    // SAFETY: as the caller promises; k ≤ 32, and barriers stand between what different threads write and read.
    unsafe {
        let entries = entries.wrapping_add(slot as usize * all as usize);
        let finished = finished.wrapping_add(slot as usize);
        if warp == 0 && lane < k {
            global::store(entries.wrapping_add((block * k + lane) as usize), entry);
            thread::fence();
        }
        thread::sync_threads();
        if thread == 0 {
            let is_last = atomic::add_u32(finished, 1) == blocks - 1;
            if is_last {
                global::store(finished, 0);
            }
            best.store(is_last as u64);
        }
        thread::sync_threads();
        let is_last = best.load() != 0;
        // Later writes to `best` are behind this barrier.
        thread::sync_threads();
        if !is_last {
            return None;
        }
        thread::fence();
        let mut queue = Queue::new(k, None);
        let mut first = 0;
        while first < all {
            let mut read = [EMPTY; JOINED];
            unroll::<JOINED>(|turn| {
                let at = first + turn as u32 * THREADS + thread;
                if at < all {
                    // Not from a cache of this multiprocessor, which may have entries of an earlier search.
                    read[turn] = global::load_volatile(entries.wrapping_add(at as usize));
                }
            });
            unroll::<JOINED>(|turn| {
                let entry = read[turn];
                queue.offer(entry::value_of(entry::key(entry)), entry::payload(entry), entry != EMPTY);
            });
            first += JOINED as u32 * THREADS;
        }
        Some(joined(queue, best))
    }
}

/// # Safety
/// As [`Rescan`].
#[device_inline]
pub(crate) unsafe fn count<R: Decode>(launch: Rescan) {
    let Rescan { queries, stride, metric, lists: ProbedLists { probes, .. }, listed, radius, within, .. } = launch;
    let (rows, lane) = (R::of(&launch.stored, stride), warp::lane_id());
    let worst = metric.badness(radius);
    let warps = thread::grid_dim_x() as u64 * WARPS as u64;
    // SAFETY: for the whole body, the caller promises the shapes, and listed queries exist.
    unsafe {
        let items = global::load_nc(*listed) as u64 * probes as u64;
        let mut item = thread::block_idx_x() as u64 * WARPS as u64 + warp::warp_id() as u64;
        while item < items {
            let (slot, probe) = (item / probes.max(1) as u64, (item % probes.max(1) as u64) as u32);
            let query = global::load_nc(listed.wrapping_add(1 + slot as usize));
            let x = Query::<R::Query>::of(queries, stride, metric, query, lane);
            let (list, scores) = (launch.list(query as usize, probe), launch.scores_of(query as usize));
            let (mut near, mut from) = (0, 0);
            while from < list.length {
                let row = launch.rows(&list, scores, from..from + 32, worst);
                let is_near = row.takes && row.most < worst as f64;
                let unsure = LaneRow { takes: row.takes && !is_near, ..row };
                let badness = compared(&x, rows, unsure);
                near += (is_near || unsure.takes && badness <= worst) as u32;
                from += 32;
            }
            let near = warp::reduce_add(FULL_MASK, near);
            if lane == 0 && near > 0 {
                atomic::add_u32(within.wrapping_add(query as usize), near);
            }
            item += warps;
        }
    }
}

/// A list that a query probes.
#[derive(Clone, Copy)]
struct ProbedList {
    number: u32,
    /// The first row of the list in the storage.
    start: u32,
    /// The number of vectors.
    length: u32,
    /// The start of the list's scores in the query's row of scores, if they are in memory.
    offset: u32,
}

impl ProbedList {
    /// No list: an empty one.
    const NONE: ProbedList = ProbedList { number: NO_ROW, start: 0, length: 0, offset: 0 };

    /// The list of lane number `lane`. All 32 lanes arrive with the same number.
    #[device_inline]
    fn of_lane(self, lane: u32) -> ProbedList {
        ProbedList {
            number: warp::shuffle_idx(FULL_MASK, self.number, lane),
            start: warp::shuffle_idx(FULL_MASK, self.start, lane),
            length: warp::shuffle_idx(FULL_MASK, self.length, lane),
            offset: warp::shuffle_idx(FULL_MASK, self.offset, lane),
        }
    }
}

/// The scores of a query in memory, and their distance from the truth.
#[derive(Clone, Copy)]
struct RowScores {
    row: *const f32,
    shift: f64,
    error: f64,
}

/// A vector for each lane of a warp.
#[derive(Clone, Copy)]
struct LaneRow {
    /// Whether the vectors lie apart, the same in all lanes: otherwise they are neighbours in a list.
    apart: bool,
    /// The list: of this lane's vector if they lie apart, else of all.
    list: u32,
    /// The row in the storage: of this lane's vector if they lie apart, else of that of lane 0.
    first: u32,
    /// The rank of the lane's vector, if the lane has one.
    rank: u32,
    /// Whether the lane has a vector.
    takes: bool,
    /// Upper bound of its distance, as smaller is better; infinite or NaN if nothing is known.
    most: f64,
}

impl Rescan {
    /// The scores of the vectors in the lists of a query, if they are in memory.
    ///
    /// # Safety
    /// The fields have the query.
    #[device_inline]
    unsafe fn scores_of(&self, query: usize) -> Option<RowScores> {
        // SAFETY: as the caller promises.
        self.scores.map(|scores| unsafe {
            let row = scores.wrapping_add(global::load_nc(self.row_starts.wrapping_add(query)) as usize);
            let [shift, error] = self.shift_and_error(query);
            RowScores { row, shift, error }
        })
    }

    /// Number of candidates of a query, if all vectors that are at most as far as `worst`, a distance as smaller is
    /// better, are among them.
    ///
    /// # Safety
    /// The fields have the query.
    #[device_inline]
    unsafe fn candidates_within(&self, query: u32, worst: f32) -> Option<u32> {
        let (scores, counts) = (self.candidate_scores, self.counts?);
        scores?;
        let query = query as usize;
        // SAFETY: as the caller promises.
        unsafe {
            let count = global::load_nc(counts.wrapping_add(query));
            let [shift, error] = self.shift_and_error(query);
            let threshold = global::load_nc(self.thresholds.wrapping_add(query)) as f64;
            // False if an operand is NaN.
            let all = count <= self.room && threshold + shift - error > worst as f64;
            if all { Some(count) } else { None }
        }
    }

    /// The candidates of a query with numbers from `of`, at most 32, without those that are surely farther than
    /// `worst`, a distance as smaller is better.
    ///
    /// # Safety
    /// The fields have the query and its candidates.
    #[device_inline]
    unsafe fn candidates(&self, query: u32, of: Range<u32>, worst: f32) -> LaneRow {
        let at = of.start + warp::lane_id();
        let mut row = LaneRow { apart: true, list: 0, first: 0, rank: NO_ROW, takes: at < of.end, most: f64::INFINITY };
        if row.takes {
            let at = query as usize * self.room as usize + at as usize;
            // SAFETY: as the caller promises; candidates have scores and places in the query's row.
            unsafe {
                let [shift, error] = self.shift_and_error(query as usize);
                let score = global::load_nc(self.candidate_scores.unwrap_unchecked().wrapping_add(at)) as f64;
                // False if an operand is NaN.
                let is_farther = score + shift - error > worst as f64;
                if !is_farther {
                    let place = global::load_nc(self.candidate_places.wrapping_add(at));
                    [row.list, row.first, row.rank] = self.lists.vector_at(query, place, 0, 0);
                }
            }
            row.takes = row.rank != NO_ROW;
        }
        row
    }

    /// The shift of a query, and the bound of the error of its scores.
    ///
    /// # Safety
    /// The fields have the query.
    #[device_inline]
    unsafe fn shift_and_error(&self, query: usize) -> [f64; 2] {
        // SAFETY: as the caller promises.
        unsafe {
            let shift = match self.shifts {
                Some(shifts) => global::load_nc(shifts.wrapping_add(query)),
                None => 0.0,
            };
            [shift as f64, global::load_nc(self.errors.wrapping_add(query)) as f64]
        }
    }

    /// A list that a query probes; an empty one if there is none.
    ///
    /// # Safety
    /// The fields have the query and the probe.
    #[device_inline]
    unsafe fn list(&self, query: usize, probe: u32) -> ProbedList {
        let ProbedLists { probes, probed_lists, offsets, list_starts, lengths, .. } = self.lists;
        let pair = query * probes as usize + probe as usize;
        // SAFETY: the launch has probes, the pair exists, and a probe is a list or NO_ROW.
        unsafe {
            let number = global::load_nc(probed_lists.unwrap_unchecked().wrapping_add(pair));
            if number == NO_ROW {
                return ProbedList::NONE;
            }
            let start = global::load_nc(list_starts.wrapping_add(number as usize));
            let length = global::load_nc(lengths.wrapping_add(number as usize));
            let offset = if self.scores.is_some() { global::load_nc(offsets.wrapping_add(pair)) } else { 0 };
            ProbedList { number, start, length, offset }
        }
    }

    /// The vectors of a list with numbers from `of`, at most 32, without those that are surely farther than `worst`, a
    /// distance as smaller is better.
    ///
    /// # Safety
    /// The list is one of these, and the scores are those of the query.
    #[device_inline]
    unsafe fn rows(&self, list: &ProbedList, scores: Option<RowScores>, of: Range<u32>, worst: f32) -> LaneRow {
        let at = of.start + warp::lane_id();
        let mut row = LaneRow {
            apart: false,
            list: list.number,
            first: list.start + of.start,
            rank: NO_ROW,
            takes: at < of.end && at < list.length,
            most: f64::INFINITY,
        };
        // SAFETY: the launch has ranks, and vectors that are taken are below the list's length.
        unsafe {
            let ranks = self.lists.ranks.unwrap_unchecked();
            if row.takes
                && let Some(RowScores { row: scores, shift, error }) = scores
            {
                let shared = self.lists.shared_scores;
                let score = scores.wrapping_add(list.offset as usize + score_of(at, shared) as usize);
                let middle = global::load_nc(score) as f64 + shift;
                // A shared score is at most that of the row.
                row.most = if shared == 0 { middle + error } else { f64::INFINITY };
                // False if an operand is NaN.
                let is_farther = middle - error > worst as f64;
                row.takes = !is_farther;
            }
            if row.takes {
                row.rank = global::load_nc(ranks.wrapping_add((list.start + at) as usize));
                if let Some(filter) = self.lists.filter {
                    let word = global::load_nc(filter.wrapping_add((row.rank / 32) as usize));
                    row.takes = word >> (row.rank % 32) & 1 == 1;
                }
            }
        }
        row
    }
}

/// Offers the row of each lane that takes one, with a payload. All 32 lanes arrive.
///
/// # Safety
/// The rows exist.
#[device_inline]
unsafe fn offer<R: Decode>(x: &Query<R::Query>, rows: R, row: LaneRow, payload: u32, queue: &mut Queue) {
    if warp::any(FULL_MASK, row.takes) {
        // SAFETY: as the caller promises.
        let badness = unsafe { compared(x, rows, row) };
        queue.offer(badness, payload, row.takes);
    }
}

/// The canonical distance of the query from the row of each lane that takes one, as smaller is better. All 32 lanes
/// arrive.
///
/// # Safety
/// The rows exist.
#[device_inline]
unsafe fn compared<R: Decode>(x: &Query<R::Query>, rows: R, row: LaneRow) -> f32 {
    let lane = warp::lane_id();
    let mut left = warp::ballot(FULL_MASK, row.takes);
    let mut own = 0.0;
    while left != 0 {
        // After the last row this row is evaluated again.
        let mut place = [0u32; BATCH];
        let (mut list, mut number) = ([0u32; BATCH], [0u32; BATCH]);
        unroll::<BATCH>(|b| {
            place[b] = if left == 0 { place[b.max(1) - 1] } else { left.trailing_zeros() };
            [list[b], number[b]] = if row.apart {
                [row.list, row.first].map(|of| warp::shuffle_idx(FULL_MASK, of, place[b]))
            } else {
                [row.list, row.first + place[b]]
            };
            left &= left.wrapping_sub(1);
        });
        // SAFETY: as the caller promises.
        let distances = unsafe { x.distances(rows, &list, &number, lane) };
        unroll::<BATCH>(|b| own = if lane == place[b] { distances[b] } else { own });
    }
    x.metric.badness(own as f32 + 0.0)
}

/// The best [`PASS`] of the entries of all warps: lane l gets number l. All threads of the block arrive; `best` has a
/// place for each.
///
/// # Safety
/// No other thread uses `best`.
#[device_inline]
unsafe fn joined(mut queue: Queue, best: SharedPtr<u64>) -> u64 {
    queue.finish();
    let mut entries = [EMPTY; WARPS];
    // SAFETY: there is a place for each thread, and barriers stand between writes and reads of different threads.
    unsafe {
        best.add(thread::thread_idx_x()).store(queue.entry(0));
        thread::sync_threads();
        unroll::<WARPS>(|w| entries[w] = best.add(32 * w as u32 + warp::lane_id()).load());
        thread::sync_threads();
    }
    warp_sort(&mut entries, warp::lane_id());
    entries[0]
}

/// Replaces the probes of each query without a certificate by the `probes` nearest centroids, in no particular order.
///
/// # Safety
/// All pointers that are present cover the shapes of their fields; probes ≤ selected and probes ≤ row_count.
#[kernel(max_threads = 128, min_blocks = 3, rescan_probes = complete)]
pub struct RescanProbes {
    /// Number of queries.
    pub query_count: u32,
    /// `query_count` rows of `stride` components.
    pub queries: Ptr<f32>,
    /// `row_count` rows of `stride` components.
    pub centroids: Ptr<f32>,
    /// Distance from one row to the next in components: a multiple of 4, zero padded.
    pub stride: u32,
    /// Number of centroids.
    pub row_count: u32,
    /// The metric of the distances.
    pub metric: Metric,
    /// `row_count` scores for each query.
    pub scores: Ptr<f32>,
    /// Distance from the scores of one query to those of the next.
    pub row_stride: u64,
    /// The `selected` smallest scores of each query, ascending.
    pub best_scores: Ptr<f32>,
    /// Number of selected scores of a query.
    pub selected: u32,
    /// E of each query: the bound of |score + shift − distance|.
    pub errors: Ptr<f32>,
    /// Number of probes of a query.
    pub probes: u32,
    /// Not 0 for each query without a certificate.
    pub flags: Ptr<u32>,
    /// `probes` centroids for each query.
    pub probed_lists: PtrMut<u32>,
}

impl RescanProbes {
    /// A block for some queries.
    pub fn config(&self, multiprocessors: u32) -> LaunchConfig {
        blocks_for(self.query_count, multiprocessors)
    }
}

/// All threads of the block stay together.
///
/// # Safety
/// As [`RescanProbes`].
#[device_inline]
unsafe fn complete(launch: RescanProbes) {
    let (best, taken) = (shared_array!(u64, THREADS as usize), shared_array!(u32, 1));
    // SAFETY: the caller promises the shapes; all queries are below `query_count`.
    let lacks = |query: u32| unsafe { global::load_nc(launch.flags.wrapping_add(query as usize)) != 0 };
    // SAFETY: as above.
    each_query(lacking(launch.query_count, lacks), |query| unsafe { complete_query(&launch, query, best, taken) });
}

/// Completes one query. All threads of the block stay together.
///
/// # Safety
/// As [`RescanProbes`]; the query is below `query_count`, `best` has a place for each thread, and `taken` one.
#[device_inline]
unsafe fn complete_query(launch: &RescanProbes, query: u32, best: SharedPtr<u64>, taken: SharedPtr<u32>) {
    let &RescanProbes { queries, centroids, stride, row_count, metric, selected, probes, probed_lists, .. } = launch;
    let (lane, warp) = (warp::lane_id(), warp::warp_id());
    // SAFETY: for the whole body, as the caller promises. Fewer than probes centroids have a score below the margin.
    // Barriers stand between what different threads write and read, also from one query to the next.
    unsafe {
        let last = query as usize * selected as usize + probes as usize - 1;
        let middle = global::load_nc(launch.best_scores.wrapping_add(last)) as f64;
        let margin = 3.0 * global::load_nc(launch.errors.wrapping_add(query as usize)) as f64;
        let scores = launch.scores.wrapping_add(query as usize * launch.row_stride as usize);
        let score = |at: u32| global::load_nc(scores.wrapping_add(at as usize)) as f64;
        let out = probed_lists.wrapping_add(query as usize * probes as usize);
        thread::sync_threads();
        if thread::thread_idx_x() == 0 {
            taken.store(0);
        }
        thread::sync_threads();
        let mut first = PASS * warp;
        while first < row_count {
            let at = first + lane;
            let is_probe = at < row_count && score(at) < middle - margin;
            let all = warp::ballot(FULL_MASK, is_probe);
            let mut slot = 0;
            if lane == 0 {
                slot = atomic::shared_add_u32(taken, all.count_ones());
            }
            slot = warp::shuffle_idx(FULL_MASK, slot, 0) + (all & ((1 << lane) - 1)).count_ones();
            if is_probe {
                global::store(out.wrapping_add(slot as usize), at);
            }
            first += THREADS;
        }
        thread::sync_threads();
        let mut done = taken.load();
        let x = Query::<element::F32>::of(queries.cast(), stride, metric, query, lane);
        let stored = StoredRows { rows: centroids.cast(), ..StoredRows::default() };
        let rows = Stored::<element::F32>::of(&stored, stride);
        let mut floor = None;
        while done < probes {
            let mut queue = Queue::new((probes - done).min(PASS), floor);
            let mut first = PASS * warp;
            while first < row_count {
                let at = first + lane;
                let takes = at < row_count && {
                    // Both are false if an operand is NaN.
                    let is_probe = score(at) < middle - margin;
                    let is_farther = score(at) > middle + margin;
                    !is_probe && !is_farther
                };
                offer(
                    &x,
                    rows,
                    LaneRow { apart: false, list: 0, first, rank: at, takes, most: f64::INFINITY },
                    at,
                    &mut queue,
                );
                first += THREADS;
            }
            let entry = joined(queue, best);
            if warp == 0 && done + lane < probes {
                global::store(out.wrapping_add((done + lane) as usize), entry::payload(entry));
            }
            floor = Some(warp::shuffle_idx(FULL_MASK, entry, PASS - 1));
            done += PASS;
        }
    }
}
