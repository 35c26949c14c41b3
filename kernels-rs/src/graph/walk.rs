//! Walks in a graph: the nodes that a search for a query meets, and the nearest of them.
//!
//! # Problem
//! For each query the `width` nodes that a walk finds nearest, as the library's `graph::walk` defines them: from the
//! nearest of some start nodes on, expand the nearest nodes of the beam that are not expanded, until all are. Results
//! have the same bits as those on a CPU.
//!
//! # Algorithm
//! One block for each query: of 256 threads where queries are few, of one warp where they are many ([`PerQuery`]).
//! Everything but the vectors and the edges is in shared memory:
//!
//! ```text
//! absorb the pivots; for the lists of the nearest ones, until enough start nodes were compared: absorb the list
//! put the beam's nodes into the table of nodes that were met
//! loop:
//!     mark the first EXPANSIONS nodes of the beam that are not expanded; none: done
//!     for each of their edges, a thread: put the other node into the table; keep it if it is new
//!     absorb the kept nodes
//! places = the first accepted nodes of the beam
//!
//! absorb(nodes):
//!     for each node, 8 lanes: its distance; keep (distance, node) if it is less than the beam's last
//!     rank of a kept one among them, and by binary search in the beam; of a place of the beam, among the kept: both move to their sum
//! ```
//!
//! The table has open addresses and linear probing. When it could fill up, it is cleared, and the beam's nodes are put
//! into it again. A node that is not in the table and was met before is farther than all of a full beam, so it does not
//! come in again: no result depends on the size of the table. Within one step the table forgets nothing, so no node is
//! kept twice.
//!
//! A walk by codes ends with two questions that [`Tolerance`] answers: which nodes after the first ones may be among
//! the k best, and whether codes can order the beam at all. If not, the query's word says so, and a second launch of
//! the same kernel walks by vectors for these queries. Queries that codes cannot stand for have the word from
//! [`crate::graph::encode`].
//!
//! A block of one warp has barriers that cost nothing, and a multiprocessor has 25 of them at a time, so steps of
//! different queries overlap. One query alone waits least if its vectors are all read at a time, which takes 256
//! threads.
//!
//! # What limits it
//! The vectors that are read: about 16 · width for 32 edges a node (a third of the neighbours; the others were met
//! before), and 300 to 500 pivots and start nodes. Codes of 128 components take 128 bytes each, so 10,000 queries with
//! a beam of 64 read 1.9 GB: 0.6 ms at the 3.0 TB/s of an H100. What is left is instructions and their latency. By
//! Nsight Compute (300,000 vectors, beam 32; the list of start nodes had no greatest length yet) a query took 37,500
//! instructions of a warp: 55 % for distances, 17 % for the ranks of kept nodes, 15 % for meeting nodes; a scheduler
//! issued in a third of the cycles, with 4 of 16 warps. Shared memory allows 25 queries on a multiprocessor at a beam
//! of 32.
//!
//! Measured on an H100 80GB HBM3 (driver 580.159.04, 2026-11-25, revision ceecead; 10,000 queries, k = 10, 1,000,000
//! clustered f32 vectors of 128 components, walks by codes), from device memory to device memory, and one query by a
//! captured graph:
//!
//! | beam | 16 | 24 | 32 | 48 | 64 | 96 | 128 | 192 |
//! |---|---|---|---|---|---|---|---|---|
//! | recall | .915 | .946 | .963 | .978 | .986 | .994 | .996 | .998 |
//! | 10,000 queries, ms | .78 | .90 | 1.03 | 1.18 | 1.53 | 1.85 | 2.35 | 3.82 |
//! | one query, ms | .050 | .052 | .056 | .062 | .069 | .083 | .110 | .143 |
//!
//! On the same machine FlashLib 0.4.0 took 2.25 ms at .939, 3.93 at .976, 11.9 at .993; cuVS 26.10 2.29 at .869, 4.04
//! at .980, 7.96 at .996.
//!
//! # What it was before
//! Milliseconds for 10,000 queries from host memory and back. What raised the recall at a beam is in the library's
//! `graph::candidates`.
//!
//! | revision | what | beam 32 | 64 | 128 |
//! |---|---|---|---|---|
//! | 9008867, 200,000 vectors | one node expanded at a time, its loads one after the other, all start nodes compared, full tables left to the host | 5.4 | 115 | 17 |
//! | dbdd00b | a block of 128 threads for each query, f32 vectors; latency limited it: 47 % of the issue slots, 30 % of the warps | 3.0 | 3.9 | 5.1 |
//! | 1212491, vectors of i8 | the same kernel with a quarter of the bytes: so bytes did not limit it | 2.7 | 3.1 | 4.3 |
//! | bd33008 | one warp for each query, codes, integer products, four nodes expanded at a time | 1.9 | 2.5 | 4.2 |
//! | ceecead | eight nodes, edges loaded four at a time, no atomic operations in a block of one warp, two warps from a beam of 80 on | 1.6 | 2.3 | 3.0 |
//!
//! Two warps for wide beams, from device memory (beams 64, 96, 128, 192, 256): 1.53, 1.93, 2.44, 3.99, 5.42 ms; one
//! warp: 1.52, 2.34, 3.08, 5.65, 7.75. Eight nodes instead of four: 200,000 vectors, beam 48: 8.1 steps instead of
//! 14.3, 810 distances instead of 669, recall .972 instead of .956. What the prefetches of blocks of several warps save
//! was not measured alone; for wide beams of many queries they may cost more than they save.

use core::ops::Range;

use cuda_std::global::U32x4;
use cuda_std::launch::LaunchConfig;
use cuda_std::shared::SharedPtr;
use cuda_std::warp::{self, FULL_MASK, shuffle_idx, shuffle_xor};
use cuda_std::{Ptr, PtrMut, atomic, device_inline, global, kernel, shared, thread, unroll};

use crate::NO_ROW;
use crate::graph::distance::{self, Compared, TEAM, is_first_of_row, row_of};
use crate::graph::tolerance::Tolerance;
use crate::product::element::{self, RowKey};
use crate::product::metric::Metric;

/// The threads that walk for a query.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PerQuery {
    /// A block of 256 threads, for few queries.
    Block,
    /// A block of two warps, for wide beams.
    Pair,
    /// A block of one warp, for many queries: its barriers are cheap, and a multiprocessor has many.
    Warp,
}

impl PerQuery {
    const fn threads(self) -> u32 {
        match self {
            PerQuery::Block => 256,
            PerQuery::Pair => 64,
            PerQuery::Warp => 32,
        }
    }
}

/// Number of nodes that a walk expands at a time, on every device.
pub const EXPANSIONS: u32 = 8;
/// Number of places that a block ranks at a time.
const RANKED: u32 = 64;
/// Largest number of nodes that are absorbed at a time.
const PIECE: u32 = 128;
/// Number of edges in a line of the cache.
const LINE: u32 = 32;
/// The bit of an expanded node.
const EXPANDED: u64 = 1;
/// Words of shared memory for counters.
const COUNTERS: u32 = 32;
/// Counter: nodes to absorb.
const NODES: u32 = 0;
/// Counter: kept (distance, node).
const KEPT: u32 = 1;
/// Counter: the first place into which the last nodes came; `NO_ROW` if none came.
const FIRST: u32 = 2;
/// Counter: the place after the last expanded one.
const AFTER: u32 = 3;
/// Counters: the nodes to expand, then those that are likely next.
const CHOSEN: u32 = 4;
/// Counters: of each warp the lanes whose places are not expanded.
const OPEN: u32 = CHOSEN + 2 * EXPANSIONS;
const _: () = assert!(OPEN + PerQuery::Block.threads() / 32 <= COUNTERS && PerQuery::Block.threads() == 4 * RANKED);

/// Number of nodes for which a block has room.
const fn most_nodes(degree: u32) -> u32 {
    (EXPANSIONS * degree).next_multiple_of(PIECE)
}

/// Smallest number of slots of a table for walks of this width: the beam and the nodes of a step fill at most half of
/// it.
pub const fn least_slots(width: u32, degree: u32) -> u32 {
    (2 * (width + EXPANSIONS * degree)).next_power_of_two()
}

/// Number of slots of a table for walks of this width. A walk that meets 14 nodes for each place of its beam clears it
/// about once.
pub const fn slots(width: u32, degree: u32) -> u32 {
    let least = least_slots(width, degree);
    let seldom = (if 16 * width < MOST_SLOTS { 16 * width } else { MOST_SLOTS }).next_power_of_two();
    if least > seldom { least } else { seldom }
}

/// More slots than this number do not make a table worth clearing less often: their shared memory costs a block.
const MOST_SLOTS: u32 = 1 << 12;

/// Walks for each query, and writes the first accepted nodes of its beam.
///
/// The default has empty or absent pointers and zeros: no filter, no codes.
///
/// # Safety
/// The arrays are as long as the fields say. Edges and start nodes are rows. `slots` is a power of two.
#[kernel(
    key = (RowKey, PerQuery),
    max_threads = 256,
    // The first number is that of vectors which a team of lanes reads at a time, the second that of threads.
    (RowKey::F32, PerQuery::Block) => walk_f32(min_blocks = 2) = walk::<element::F32, 2, 256>,
    (RowKey::F16, PerQuery::Block) => walk_f16(min_blocks = 2) = walk::<element::F16, 2, 256>,
    (RowKey::Bf16, PerQuery::Block) => walk_bf16(min_blocks = 2) = walk::<element::Bf16, 2, 256>,
    (RowKey::U8, PerQuery::Block) => walk_u8(min_blocks = 2) = walk::<element::U8, 4, 256>,
    (RowKey::I8, PerQuery::Block) => walk_i8(min_blocks = 2) = walk::<element::I8, 4, 256>,
    (RowKey::Bits, PerQuery::Block) => walk_bits(min_blocks = 2) = walk::<element::Bits, 4, 256>,
    (RowKey::F32, PerQuery::Pair) => walk_wide_f32(max_threads = 64, min_blocks = 10) = walk::<element::F32, 2, 64>,
    (RowKey::F16, PerQuery::Pair) => walk_wide_f16(max_threads = 64, min_blocks = 12) = walk::<element::F16, 2, 64>,
    (RowKey::Bf16, PerQuery::Pair) => walk_wide_bf16(max_threads = 64, min_blocks = 12) = walk::<element::Bf16, 2, 64>,
    (RowKey::U8, PerQuery::Pair) => walk_wide_u8(max_threads = 64, min_blocks = 12) = walk::<element::U8, 4, 64>,
    (RowKey::I8, PerQuery::Pair) => walk_wide_i8(max_threads = 64, min_blocks = 12) = walk::<element::I8, 4, 64>,
    (RowKey::Bits, PerQuery::Pair) => walk_wide_bits(max_threads = 64, min_blocks = 12) = walk::<element::Bits, 4, 64>,
    (RowKey::F32, PerQuery::Warp) => walk_many_f32(max_threads = 32, min_blocks = 20) = walk::<element::F32, 2, 32>,
    (RowKey::F16, PerQuery::Warp) => walk_many_f16(max_threads = 32, min_blocks = 24) = walk::<element::F16, 2, 32>,
    (RowKey::Bf16, PerQuery::Warp) => walk_many_bf16(max_threads = 32, min_blocks = 24) = walk::<element::Bf16, 2, 32>,
    (RowKey::U8, PerQuery::Warp) => walk_many_u8(max_threads = 32, min_blocks = 21) = walk::<element::U8, 4, 32>,
    (RowKey::I8, PerQuery::Warp) => walk_many_i8(max_threads = 32, min_blocks = 21) = walk::<element::I8, 4, 32>,
    (RowKey::Bits, PerQuery::Warp) => walk_many_bits(max_threads = 32, min_blocks = 21) = walk::<element::Bits, 4, 32>,
)]
#[derive(Default)]
pub struct Walk {
    /// Number of queries.
    pub query_count: u32,
    /// `query_count` rows of `stride` components, of the type of the key.
    pub queries: Ptr<u8>,
    /// Rows of `stride` components, of the type of the key.
    pub rows: Ptr<u8>,
    /// Distance from one row to the next in components: a multiple of 4, of 16 for bytes; zero padded.
    pub stride: u32,
    /// The metric of the distances.
    pub metric: Metric,
    /// `degree` places for each row: the nodes to which edges lead, then `NO_ROW`.
    pub edges: Ptr<u32>,
    /// Number of places of a row.
    pub degree: u32,
    /// The start nodes, list after list.
    pub starts: Ptr<u32>,
    /// Number of start nodes.
    pub start_count: u32,
    /// The start nodes that have lists, ascending.
    pub pivots: Ptr<u32>,
    /// Number of pivots; 0 if all start nodes are one list.
    pub pivot_count: u32,
    /// For each pivot the end of its list in `starts`.
    pub ends: Ptr<u32>,
    /// Number of start nodes with which a query is compared, at least; all if there are fewer.
    pub wanted: u32,
    /// Number of nodes of the beam.
    pub width: u32,
    /// Number of slots of the table.
    pub slots: u32,
    /// A bit for each row, 1 for rows that may be results; absent: all may.
    pub filter: Option<Ptr<u32>>,
    /// Number of places of a query in the result.
    pub selected: u32,
    /// `selected` rows for each query, nearest first by the distance of walks; `NO_ROW` in the places after the last.
    pub places: PtrMut<u32>,
    /// One word for each query; absent: all queries walk.
    pub doubtful: Option<PtrMut<u32>>,
    /// Whether queries and rows are codes: 0 for no. Queries whose word is 0 walk by codes, and their word becomes 1 if
    /// codes cannot order their beam ([`Tolerance`]). The others have no places then, and walk by vectors in another
    /// launch.
    pub by_codes: u32,
    /// Codes only: number of results that are wanted.
    pub k: u32,
    /// Codes only: number of accepted nodes of a beam that become results in any case, at least k. Those after them
    /// become results if they may be among the k nearest.
    pub least: u32,
    /// Codes only: greatest sum of the squares of a row's codes.
    pub greatest_square: u32,
    /// Codes only: number of the nearest nodes of a beam that codes must tell apart; 0: none. If the last of them may
    /// be as near as the first ([`Tolerance::within`]), the query's word becomes 1.
    pub told: u32,
    /// 1: the beam has the nearest start nodes, no edge is followed, and no word changes; 0: walks follow edges.
    pub starts_only: u32,
}

impl Walk {
    /// One block for each query.
    pub fn config(&self, content: RowKey, per_query: PerQuery) -> LaunchConfig {
        let bytes = Self::shared_bytes(content, self.stride, self.width, self.degree, self.pivot_count, self.slots);
        LaunchConfig::linear(self.query_count.into(), per_query.threads()).with_shared(bytes)
    }

    /// Shared memory of a block in bytes.
    pub const fn shared_bytes(
        content: RowKey,
        stride: u32,
        width: u32,
        degree: u32,
        pivot_count: u32,
        slots: u32,
    ) -> u32 {
        let lists = 2 * if width < pivot_count { width } else { pivot_count };
        let longs = 2 * width.next_multiple_of(2) + 2 * PIECE;
        4 * (COUNTERS + distance::words(content, stride) + most_nodes(degree) + slots + lists) + 8 * longs
    }
}

/// The shared memory of a block.
#[derive(Clone, Copy)]
struct Block {
    counters: SharedPtr<u32>,
    query: SharedPtr<u32>,
    /// The part of the query's keys that does not depend on rows.
    own: u32,
    nodes: SharedPtr<u32>,
    kept: SharedPtr<u64>,
    sorted: SharedPtr<u64>,
    /// The table of nodes that were met. After it come begin and end of the lists to absorb.
    table: SharedPtr<u32>,
}

/// A beam in shared memory, and the place for the next one.
#[derive(Clone, Copy)]
struct Beam {
    places: SharedPtr<u64>,
    next: SharedPtr<u64>,
    len: u32,
    /// All places before this one are expanded.
    from: u32,
}

/// The node of a place.
#[device_inline]
fn node_of(place: u64) -> u32 {
    place as u32 >> 1
}

/// How many of `len` ascending places in shared memory are less than `place`.
///
/// # Safety
/// The places are initialised, and no thread writes them.
#[device_inline]
unsafe fn less_than(places: SharedPtr<u64>, len: u32, place: u64) -> u32 {
    let (mut low, mut high) = (0, len);
    while low < high {
        let middle = (low + high) / 2;
        // SAFETY: middle < len.
        let less = unsafe { places.add(middle).load() } < place;
        low = if less { middle + 1 } else { low };
        high = if less { high } else { middle };
    }
    low
}

/// Puts a node into the table. Returns whether it is new.
///
/// # Safety
/// The table is initialised, has an empty slot, and between barriers other threads only call this function.
#[device_inline]
unsafe fn insert(table: SharedPtr<u32>, slots: u32, node: u32) -> bool {
    let mut slot = node.wrapping_mul(0x9E37_79B1) >> 7 & (slots - 1);
    loop {
        // SAFETY: slot < slots.
        let old = unsafe { atomic::shared_cas_u32(table.add(slot), NO_ROW, node) };
        if old == NO_ROW {
            return true;
        }
        if old == node {
            return false;
        }
        slot = (slot + 1) & (slots - 1);
    }
}

/// Computes the distances of the block's nodes from `first` to `end`, and puts the nodes into the beam. All threads of
/// the block arrive, after a barrier; ends with a barrier.
///
/// # Safety
/// As [`Walk`]; these are at most [`PIECE`] nodes, the counter of kept nodes is 0, and no node is in the beam already
/// or twice among these.
#[device_inline]
unsafe fn absorb<E: Compared, const ROWS: usize, const THREADS: u32>(
    launch: &Walk,
    block: Block,
    beam: &mut Beam,
    Range { start: mut first, end }: Range<u32>,
) {
    let width = launch.width;
    let thread = thread::thread_idx_x();
    // SAFETY: places are below the lengths of the arrays; barriers stand between writes and reads of other threads.
    unsafe {
        let last = if beam.len == width { beam.places.add(width - 1).load() } else { u64::MAX };
        let mut kept = 0;
        while first < end {
            kept = keep::<E, ROWS, THREADS>(launch, block, (first, end), last, kept);
            first += ROWS as u32 * (THREADS / TEAM);
        }
        thread::sync_threads();
        if THREADS > 32 {
            kept = block.counters.add(KEPT).load();
        }
        // Several threads count for each place if there are enough threads.
        let parts = if THREADS > RANKED { THREADS / RANKED } else { 1 };
        let mut base = 0;
        while base < kept {
            let at = base + thread / parts;
            let place = if at < kept { block.kept.add(at).load() } else { 0 };
            let (mut rank, mut other) = (0, thread % parts);
            while other < kept {
                rank += (block.kept.add(other).load() < place) as u32;
                other += parts;
            }
            if parts == 4 {
                rank += shuffle_xor(FULL_MASK, rank, 1);
                rank += shuffle_xor(FULL_MASK, rank, 2);
            }
            if at < kept && thread & (parts - 1) == 0 {
                block.sorted.add(rank).store(place);
            }
            base += THREADS / parts;
        }
        thread::sync_threads();
        let mut at = thread;
        while at < kept {
            let place = block.sorted.add(at).load();
            let to = at + less_than(beam.places, beam.len, place);
            if to < width {
                beam.next.add(to).store(place);
            }
            if at == 0 {
                block.counters.add(FIRST).store(to);
            }
            at += THREADS;
        }
        let mut at = thread;
        while at < beam.len {
            let place = beam.places.add(at).load();
            let to = at + less_than(block.sorted, kept, place);
            if to < width {
                beam.next.add(to).store(place);
            }
            at += THREADS;
        }
        if thread == 0 {
            block.counters.add(KEPT).store(0);
            block.counters.add(NODES).store(0);
        }
        thread::sync_threads();
        let first = if kept > 0 { block.counters.add(FIRST).load() } else { NO_ROW };
        let (len, from) = ((beam.len + kept).min(width), beam.from.min(first));
        *beam = Beam { places: beam.next, next: beam.places, len, from };
    }
}

/// Keeps those of the nodes from `first` on, `ROWS` for each team, that come into the beam: are less than `last`.
/// `kept` nodes are kept already, if the block has one warp; other blocks count in their counter. Returns how many are
/// then. All threads of the block arrive.
///
/// # Safety
/// As [`absorb`].
#[device_inline]
unsafe fn keep<E: Compared, const ROWS: usize, const THREADS: u32>(
    launch: &Walk,
    block: Block,
    (first, end): (u32, u32),
    last: u64,
    kept: u32,
) -> u32 {
    let Walk { rows, stride, metric, edges, degree, .. } = *launch;
    let thread = thread::thread_idx_x();
    let (team, lane) = (thread / TEAM, thread % TEAM);
    // A warp without a node has nothing to do.
    if first + thread / 32 * (32 / TEAM) >= end {
        return kept;
    }
    let mut vectors = [*rows; ROWS].map(|rows| rows.cast::<E::Stored>());
    // SAFETY: there is room for nodes up to the next multiple of [`PIECE`], and those after the last are older ones,
    // which are rows.
    unsafe {
        unroll::<ROWS>(|r| {
            let node = block.nodes.add(first + r as u32 * (THREADS / TEAM) + team).load();
            vectors[r] = vectors[r].wrapping_add(node as usize * stride as usize);
        });
        let key = E::key::<ROWS>(metric, (block.query, block.own), vectors, stride, lane);
        let at = first + row_of::<ROWS>(lane) * (THREADS / TEAM) + team;
        let node = block.nodes.add(at).load();
        let place = (key as u64) << 32 | (node as u64) << 1;
        let comes_in = is_first_of_row::<ROWS>(lane) && at < end && place < last;
        let votes = warp::ballot(FULL_MASK, comes_in);
        let first_place = append::<THREADS>(block.counters.add(KEPT), votes, kept);
        if comes_in {
            block.kept.add(first_place + lanes_before(votes)).store(place);
            // A node that comes in may be expanded next.
            if THREADS > 32 {
                let mut edge = 0;
                while edge < degree {
                    global::prefetch(edges.wrapping_add(node as usize * degree as usize + edge as usize));
                    edge += LINE;
                }
            }
        }
        kept + votes.count_ones()
    }
}

/// The number of these lanes before this one.
#[device_inline]
fn lanes_before(lanes: u32) -> u32 {
    (lanes & ((1 << warp::lane_id()) - 1)).count_ones()
}

/// The first of the places that these lanes get in a list: after `len` places if the block has one warp, otherwise
/// those after the counter, which goes up. All 32 lanes arrive.
///
/// # Safety
/// Between barriers other threads use the counter by this function only.
#[device_inline]
unsafe fn append<const THREADS: u32>(counter: SharedPtr<u32>, lanes: u32, len: u32) -> u32 {
    if THREADS == 32 {
        return len;
    }
    let mut first = 0;
    if warp::lane_id() == 0 && lanes != 0 {
        // SAFETY: as the caller promises.
        first = unsafe { atomic::shared_add_u32(counter, lanes.count_ones()) };
    }
    shuffle_idx(FULL_MASK, first, 0)
}

/// The pivots and start nodes with which a walk compares its query before it follows edges.
#[derive(Clone, Copy)]
struct Entry {
    /// The rest of the list that is being absorbed, `first..end`: of the pivots, or of a list of start nodes.
    first: u32,
    end: u32,
    /// Number of lists of start nodes that were begun.
    begun: u32,
    /// Number of lists to absorb; `NO_ROW` while the pivots are absorbed.
    lists: u32,
}

/// Stores the next nodes with which the query is compared. Returns their number; 0 if the beam has the nearest start
/// nodes. All threads of the block arrive, after a barrier.
///
/// # Safety
/// As [`Walk`].
#[device_inline]
unsafe fn next_listed<const THREADS: u32>(launch: &Walk, block: Block, beam: &mut Beam, entry: &mut Entry) -> u32 {
    let Walk { starts, pivots, wanted, slots, .. } = *launch;
    let thread = thread::thread_idx_x();
    // SAFETY: lists lie in `starts`; barriers stand between writes and reads of other threads.
    unsafe {
        let lists = block.table.add(slots);
        if entry.first >= entry.end && entry.lists == NO_ROW {
            store_lists::<THREADS>(launch, lists, beam);
            thread::sync_threads();
            let (mut compared, mut at) = (0, 0);
            while at < beam.len && compared < wanted {
                compared += lists.add(2 * at + 1).load() - lists.add(2 * at).load();
                at += 1;
            }
            entry.lists = at;
            beam.len = 0;
        }
        let (list, most) = (if entry.lists == NO_ROW { pivots } else { starts }, most_nodes(launch.degree));
        let mut count = 0;
        while count < most {
            // Lists can be empty.
            while entry.first >= entry.end && entry.begun < entry.lists && entry.lists != NO_ROW {
                entry.first = lists.add(2 * entry.begun).load();
                entry.end = lists.add(2 * entry.begun + 1).load();
                entry.begun += 1;
            }
            let some = entry.end.saturating_sub(entry.first).min(most - count);
            if some == 0 {
                break;
            }
            let mut at = thread;
            while at < some {
                let node = global::load_nc(list.wrapping_add((entry.first + at) as usize));
                block.nodes.add(count + at).store(node);
                at += THREADS;
            }
            entry.first += some;
            count += some;
        }
        count
    }
}

/// Stores where the list of each pivot in the beam begins and ends. All threads of the block arrive, after a barrier.
/// A thread that reads other threads' lists needs a barrier before.
///
/// # Safety
/// As [`Walk`]; the beam has pivots only.
#[device_inline]
unsafe fn store_lists<const THREADS: u32>(launch: &Walk, lists: SharedPtr<u32>, beam: &Beam) {
    let Walk { pivots, pivot_count, ends, .. } = *launch;
    let mut at = thread::thread_idx_x();
    // SAFETY: places below the lengths of the arrays.
    unsafe {
        while at < beam.len {
            let pivot = node_of(beam.places.add(at).load());
            let (mut low, mut high) = (0, pivot_count);
            while low < high {
                let middle = (low + high) / 2;
                let less = global::load_nc(pivots.wrapping_add(middle as usize)) < pivot;
                low = if less { middle + 1 } else { low };
                high = if less { high } else { middle };
            }
            let first = if low == 0 { 0 } else { global::load_nc(ends.wrapping_add(low as usize - 1)) };
            lists.add(2 * at).store(first);
            lists.add(2 * at + 1).store(global::load_nc(ends.wrapping_add(low as usize)));
            at += THREADS;
        }
    }
}

/// Loads the query. All threads of the block arrive. A thread that reads other threads' words needs a barrier before.
///
/// # Safety
/// As [`Walk`].
#[device_inline]
unsafe fn load_query<E: Compared, const THREADS: u32>(launch: &Walk, block: Block) {
    let Walk { queries, stride, metric, .. } = *launch;
    let query = (*queries).cast::<E::Stored>().wrapping_add(thread::block_idx_x() as usize * stride as usize);
    // SAFETY: the shared memory has room for all words; barriers stand between writes and reads of other threads.
    unsafe {
        E::store(query, stride, block.query, THREADS);
        if metric.divides_by_norms() {
            thread::sync_threads();
            E::normalise(block.query, stride, THREADS);
        }
    }
}

/// Chooses the first [`EXPANSIONS`] nodes of the beam that are not expanded, marks them, and stores them in the block's
/// counters, and after them those that are likely next. Returns how many there are to expand, and how many with those.
/// All threads of the block arrive, after a barrier; ends with a barrier.
///
/// # Safety
/// As [`Walk`].
#[device_inline]
unsafe fn choose<const THREADS: u32>(block: Block, beam: &mut Beam) -> (u32, u32) {
    let thread = thread::thread_idx_x();
    let (mut chosen, mut named) = (0, 0);
    // SAFETY: each thread reads and marks its own places; barriers stand between writes and reads of other threads.
    unsafe {
        while chosen < EXPANSIONS && beam.from < beam.len {
            let at = beam.from + thread;
            let place = if at < beam.len { beam.places.add(at).load() } else { EXPANDED };
            let open = place & EXPANDED == 0;
            let votes = warp::ballot(FULL_MASK, open);
            if warp::lane_id() == 0 {
                block.counters.add(OPEN + warp::warp_id()).store(votes);
            }
            thread::sync_threads();
            let (mut rank, mut all) = (chosen + lanes_before(votes), chosen);
            let mut w = 0;
            while w < THREADS / 32 {
                let count = block.counters.add(OPEN + w).load().count_ones();
                rank += if w < warp::warp_id() { count } else { 0 };
                all += count;
                w += 1;
            }
            if open && rank < 2 * EXPANSIONS {
                block.counters.add(CHOSEN + rank).store(node_of(place));
            }
            if open && rank < EXPANSIONS {
                beam.places.add(at).store(place | EXPANDED);
                if rank == EXPANSIONS - 1 {
                    block.counters.add(AFTER).store(at + 1);
                }
            }
            thread::sync_threads();
            beam.from = if all >= EXPANSIONS { block.counters.add(AFTER).load() } else { beam.from + THREADS };
            (chosen, named) = (all.min(EXPANSIONS), all.min(2 * EXPANSIONS));
        }
    }
    (chosen, named)
}

/// Empties the table, and puts the nodes of the beam into it. All threads of the block arrive, after a barrier; ends
/// with a barrier.
///
/// # Safety
/// As [`Walk`].
#[device_inline]
unsafe fn fill_table<const THREADS: u32>(block: Block, slots: u32, beam: &Beam) {
    let thread = thread::thread_idx_x();
    // SAFETY: slots and places exist; barriers stand between writes and reads of other threads.
    unsafe {
        let mut quad = thread;
        while quad < slots / 4 {
            block.table.add(4 * quad).cast().store(U32x4([NO_ROW; 4]));
            quad += THREADS;
        }
        thread::sync_threads();
        let mut at = thread;
        while at < beam.len {
            insert(block.table, slots, node_of(beam.places.add(at).load()));
            at += THREADS;
        }
        thread::sync_threads();
    }
}

/// # Safety
/// As [`Walk`].
#[device_inline]
unsafe fn walk<E: Compared, const ROWS: usize, const THREADS: u32>(launch: Walk) {
    let Walk { stride, degree, width, slots, .. } = launch;
    if let Some(doubtful) = launch.doubtful {
        // SAFETY: the caller promises a word for each query. The whole block takes the same way.
        let is_doubtful = unsafe { global::load(doubtful.wrapping_add(thread::block_idx_x() as usize)) } != 0;
        if is_doubtful == (launch.by_codes != 0) {
            // The other launch may be missing, and what follows reads the places.
            if is_doubtful {
                // SAFETY: the query has `selected` places.
                unsafe { leave_empty(&launch, thread::thread_idx_x(), THREADS) };
            }
            return;
        }
    }
    let thread = thread::thread_idx_x();
    let (padded, most) = (distance::words(E::KEY, stride), most_nodes(degree));
    let words = shared::dynamic::<u32>();
    let width_room = width.next_multiple_of(2);
    // 64-bit places first, so that all are aligned.
    let longs = words.cast::<u64>();
    // SAFETY: for the whole body, the launch gives room for all arrays, and the caller promises the shapes; barriers
    // stand between writes and reads of other threads.
    unsafe {
        let kept = longs.add(2 * width_room);
        let words = longs.add(2 * width_room + 2 * PIECE).cast::<u32>();
        let mut block = Block {
            counters: words,
            query: words.add(COUNTERS),
            own: 0,
            nodes: words.add(COUNTERS + padded),
            kept,
            sorted: kept.add(PIECE),
            table: words.add(COUNTERS + padded + most),
        };
        let mut beam = Beam { places: longs, next: longs.add(width_room), len: 0, from: 0 };
        if thread < COUNTERS {
            block.counters.add(thread).store(0);
        }
        // Vectors of a node that is not there are read too, and not used.
        let mut at = thread;
        while at < most {
            block.nodes.add(at).store(0);
            at += THREADS;
        }
        load_query::<E, THREADS>(&launch, block);
        thread::sync_threads();
        block.own = E::own(block.query, stride, thread % TEAM);
        let (end, lists) = if launch.pivot_count > 0 { (launch.pivot_count, NO_ROW) } else { (launch.start_count, 0) };
        let mut entry = Entry { first: 0, end, begun: 0, lists };
        // Nodes in the table, once the walk follows edges.
        let mut met = NO_ROW;
        loop {
            let mut count =
                if met == NO_ROW { next_listed::<THREADS>(&launch, block, &mut beam, &mut entry) } else { 0 };
            // The same for all threads, as all conditions of this loop.
            if count == 0 {
                if met == NO_ROW {
                    beam.from = 0;
                }
                let (chosen, named) = choose::<THREADS>(block, &mut beam);
                if chosen == 0 || launch.starts_only != 0 {
                    store_places::<E>(&launch, block, beam);
                    return;
                }
                if met == NO_ROW || met + chosen * degree > slots / 4 * 3 {
                    fill_table::<THREADS>(block, slots, &beam);
                    met = beam.len;
                }
                count = if THREADS == 32 {
                    meet::<E, THREADS, 4>(&launch, block, chosen, named)
                } else {
                    meet::<E, THREADS, 1>(&launch, block, chosen, named)
                };
                thread::sync_threads();
                if THREADS > 32 {
                    count = block.counters.add(NODES).load();
                }
                met += count;
            } else {
                thread::sync_threads();
            }
            let mut first = 0;
            while first < count {
                let piece = first..count.min(first + PIECE);
                absorb::<E, ROWS, THREADS>(&launch, block, &mut beam, piece);
                first += PIECE;
            }
        }
    }
}

/// Puts the nodes to which edges lead from the first `chosen` nodes into the table, and stores those that were not
/// there. A block of several warps prefetches the vectors to which edges lead from the first `named` nodes. Returns how
/// many were stored, if the block has one warp; other blocks count in their counter. All threads of the block arrive,
/// after a barrier.
///
/// # Safety
/// As [`Walk`]; the table has room for them.
#[device_inline]
unsafe fn meet<E: Compared, const THREADS: u32, const AHEAD: usize>(
    launch: &Walk,
    block: Block,
    chosen: u32,
    named: u32,
) -> u32 {
    let Walk { edges, degree, slots, rows, stride, .. } = *launch;
    let thread = thread::thread_idx_x();
    // A product and a shift divide numbers of edges exactly, because 8 · degree² < 2²⁰.
    let inverse = (1u32 << 20).div_ceil(degree);
    // SAFETY: for the whole body, named nodes are rows, and the nodes that are met have room.
    let other = |edge: u32| unsafe {
        let number = (edge * inverse) >> 20;
        let node = block.counters.add(CHOSEN + number).load();
        global::load_nc(edges.wrapping_add(node as usize * degree as usize + (edge - number * degree) as usize))
    };
    let (mut first, mut count) = (0, 0);
    while first < chosen * degree {
        // All loads come before the first use, so that they wait together.
        let mut others = [NO_ROW; AHEAD];
        unroll::<AHEAD>(|e| {
            let edge = first + e as u32 * THREADS + thread;
            if edge < chosen * degree {
                others[e] = other(edge);
            }
        });
        // SAFETY: as above; between barriers the table is only inserted into.
        unroll::<AHEAD>(|e| unsafe {
            let is_new = others[e] != NO_ROW && insert(block.table, slots, others[e]);
            let votes = warp::ballot(FULL_MASK, is_new);
            let first_place = append::<THREADS>(block.counters.add(NODES), votes, count);
            if is_new {
                block.nodes.add(first_place + lanes_before(votes)).store(others[e]);
            }
            count += votes.count_ones();
        });
        first += AHEAD as u32 * THREADS;
    }
    let mut edge = chosen * degree + thread;
    while THREADS > 32 && edge < named * degree {
        let other = other(edge);
        if other != NO_ROW {
            // SAFETY: other nodes are rows.
            unsafe {
                global::prefetch((*rows).cast::<E::Stored>().wrapping_add(other as usize * stride as usize));
            }
        }
        edge += THREADS;
    }
    count
}

/// Leaves the places of a query from `first` on empty, one of `step` threads each.
///
/// # Safety
/// As [`Walk`].
#[device_inline]
unsafe fn leave_empty(launch: &Walk, first: u32, step: u32) {
    let to = launch.places.wrapping_add(thread::block_idx_x() as usize * launch.selected as usize);
    let mut place = first;
    while place < launch.selected {
        // SAFETY: the query has this place.
        unsafe { global::store(to.wrapping_add(place as usize), NO_ROW) };
        place += step;
    }
}

/// Writes the first accepted nodes of the beam. Of a beam by codes, also those that may be among the k nearest; if
/// there are too many of them, or codes cannot order the beam, the query's word becomes 1. All threads of the block
/// arrive, after a barrier.
///
/// # Safety
/// As [`Walk`].
#[device_inline]
unsafe fn store_places<E: Compared>(launch: &Walk, block: Block, beam: Beam) {
    let Walk { metric, width, selected, filter, places, doubtful, k, least, greatest_square, told, .. } = *launch;
    if warp::warp_id() != 0 {
        return;
    }
    let by_codes = matches!(E::KEY, RowKey::I8) && launch.by_codes != 0;
    let lane = warp::lane_id();
    let to = places.wrapping_add(thread::block_idx_x() as usize * selected as usize);
    let mut count = 0;
    let mut first = 0;
    // SAFETY: places below the beam's length and below `selected`; no thread writes the beam any more; there is a word
    // for each query.
    unsafe {
        let tolerance = Tolerance::new(metric, block.own, greatest_square);
        let key_at = |at: u32| (beam.places.add(at).load() >> 32) as u32;
        let mut ties = by_codes && beam.len == width && tolerance.ties(key_at(0), key_at(beam.len - 1));
        ties |= by_codes && told > 0 && beam.len >= told && tolerance.within(key_at(0), key_at(told - 1));
        // The key of the k-th accepted node, once it is known.
        let (mut kth, mut ended) = (u32::MAX, false);
        while first < beam.len && !ended {
            let at = first + lane;
            let place = if at < beam.len { beam.places.add(at).load() } else { 0 };
            let (node, key) = (node_of(place), (place >> 32) as u32);
            let mut accepted = at < beam.len
                && match filter {
                    Some(filter) => global::load_nc(filter.wrapping_add((node / 32) as usize)) >> (node % 32) & 1 == 1,
                    None => true,
                };
            let votes = warp::ballot(FULL_MASK, accepted);
            let place = count + lanes_before(votes);
            if by_codes {
                let is_kth = warp::ballot(FULL_MASK, accepted && place == k - 1);
                if is_kth != 0 {
                    kth = shuffle_idx(FULL_MASK, key, is_kth.trailing_zeros());
                }
                // Keys ascend, so those that are left out come after the others.
                accepted &= place < least || tolerance.within(kth, key);
                ended = warp::any(FULL_MASK, at < beam.len && place >= least && !accepted);
                ties |= warp::any(FULL_MASK, accepted && place >= selected);
            }
            if accepted && place < selected {
                global::store(to.wrapping_add(place as usize), node);
            }
            count += warp::ballot(FULL_MASK, accepted).count_ones();
            ended |= !by_codes && count >= selected;
            first += 32;
        }
        leave_empty(launch, count + lane, 32);
        if let Some(doubtful) = doubtful
            && ties
            && launch.starts_only == 0
            && lane == 0
        {
            global::store(doubtful.wrapping_add(thread::block_idx_x() as usize), 1);
        }
    }
}
