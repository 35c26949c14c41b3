//! Walks in a graph: the nodes that a search for a query meets, and the nearest of them.
//!
//! # Problem
//! For each query the `width` nodes that a walk finds nearest, as the library's `proximity::walk` defines them: from the nearest of the start
//! nodes on, expand the nearest node of the beam that is not expanded, until all are. Results have the same bits as those on a CPU.
//!
//! # Algorithm
//! One block of [`THREADS`] threads for each query. Everything but the vectors and the edges is in shared memory:
//!
//! ```text
//! for each THREADS start nodes: absorb them
//! put the beam's nodes into the table of nodes that were met
//! while a node of the beam is not expanded:                              // all threads look for the first; one minimum
//!     for each edge of the node, a thread: put the other node into the table; keep it if it is new
//!     absorb the kept nodes
//! places = the first accepted nodes of the beam
//!
//! absorb(nodes):
//!     for each node, 8 lanes: its distance; keep (distance, node) if it is less than the beam's last
//!     rank of a kept one among them, and by binary search in the beam; of a place of the beam, among the kept: both move to their sum
//! ```
//!
//! The table has open addresses and linear probing. A walk that would fill more than three quarters of it stops, and says so; the host does that
//! query on the CPU, so a result never depends on the size of the table.
//!
//! # What limits it
//! The vectors that are read: about 14 · width for 32 edges a node (24 without a table: two of three neighbours were met before). For f32 of 128
//! components that is 7 KB for each place of the beam, 0.46 MB for a query with a beam of 64, so 10,000 queries read 4.6 GB: 1.1 ms at the 4.2 TB/s
//! of an H200. The edges add a fortieth. A step is a chain of about seven barriers and two memory latencies, so a GPU needs many blocks on each
//! multiprocessor to hide them: 128 threads and 8 to 16 KB for a block.
//!
//! Measured on an H100 (2026-11-25, revision 9008867, 200,000 × 128 clustered f32 vectors, k = 10, 10,000 queries from host memory and back, with
//! the work of the host): beam 16, recall .894, 33 ms; 32, .961, 5.4; 64, .992, 115; 128, .998, 17; 256, .999, 39. With beams 16 and 64 most tables
//! were too small, and the host did these queries; tables have more room since, which is not measured. One query: .25, .37, .50, .79 and 1.4 ms.
//! Nothing was profiled, so what limits the kernel is not known. That walks have the CPU's bits is tested on the emulator, not on a GPU.

use cuda_std::launch::LaunchConfig;
use cuda_std::shared::SharedPtr;
use cuda_std::warp::{self, FULL_MASK};
use cuda_std::{Ptr, PtrMut, atomic, global, kernel, shared, thread};

use crate::NO_ROW;
use crate::product::element::{self, Element, ElementKey};
use crate::product::metric::Metric;
use crate::proximity::distance::{SUMS, TEAM, key};

/// Number of threads of a block.
pub const THREADS: u32 = 128;
/// The bit of an expanded node.
const EXPANDED: u64 = 1;
/// Words of shared memory for counters.
const COUNTERS: u32 = 8;
/// Counter: nodes to absorb.
const NODES: u32 = 0;
/// Counter: kept (distance, node).
const KEPT: u32 = 1;
/// Counter: the first place that is not expanded.
const FIRST: u32 = 2;

/// Largest number of nodes that are absorbed at a time.
const fn most_nodes(degree: u32) -> u32 {
    if degree > THREADS { degree } else { THREADS }
}

/// Number of slots of a table for walks of this width.
pub const fn slots(width: u32, degree: u32) -> u32 {
    // Three quarters of the slots for 24 new nodes of each expanded one, or as many as it has. 200,000 × 128 clustered vectors, 32 edges: a walk of
    // width 64 met more than 2,016 nodes for nearly every query. With room for no more, the host did these queries again (H100, 2026-11-25).
    let new = if degree < 24 { degree } else { 24 };
    (4 * (new * (width + 32) + degree) / 3).next_power_of_two()
}

/// Walks for each query, and writes the first accepted nodes of its beam.
///
/// # Safety
/// The arrays are as long as the fields say. Edges and start nodes are rows. `slots` is a power of two.
#[kernel(
    key = ElementKey,
    max_threads = 128,
    // Room for 40 registers: without it ptxas gives walk_i8 32 on sm_80, and spills.
    min_blocks = 12,
    ElementKey::F32 => walk_f32 = walk::<element::F32>,
    ElementKey::F16 => walk_f16 = walk::<element::F16>,
    ElementKey::Bf16 => walk_bf16 = walk::<element::Bf16>,
    ElementKey::U8 => walk_u8 = walk::<element::U8>,
    ElementKey::I8 => walk_i8 = walk::<element::I8>,
)]
pub struct Walk {
    /// Number of queries.
    pub query_count: u32,
    /// `query_count` rows of `stride` components, rounded up to [`SUMS`] and zero padded; for cosine divided by their norms.
    pub queries: Ptr<f32>,
    /// Rows of `stride` components, of the type of the key.
    pub rows: Ptr<u8>,
    /// Distance from one row to the next in components: a multiple of 4, zero padded.
    pub stride: u32,
    /// The metric of the distances.
    pub metric: Metric,
    /// `degree` places for each row: the nodes to which edges lead, then `NO_ROW`.
    pub edges: Ptr<u32>,
    /// Number of places of a row.
    pub degree: u32,
    /// The nodes that every query is compared with first.
    pub starts: Ptr<u32>,
    /// Number of start nodes.
    pub start_count: u32,
    /// Number of nodes of the beam.
    pub width: u32,
    /// Number of slots of the table.
    pub slots: u32,
    /// A bit for each row, 1 for rows that may be results; absent: all may.
    pub filter: Option<Ptr<u32>>,
    /// Number of results of a query.
    pub selected: u32,
    /// `selected` rows for each query, nearest first by the distance of walks; `NO_ROW` in the places after the last.
    pub places: PtrMut<u32>,
    /// 1 for each query whose table was too small, so that its places have no meaning; else 0.
    pub overflows: PtrMut<u32>,
}

impl Walk {
    /// One block for each query.
    pub fn config(&self) -> LaunchConfig {
        let bytes = Self::shared_bytes(self.stride, self.width, self.degree, self.slots);
        LaunchConfig::linear(self.query_count.into(), THREADS).with_shared(bytes)
    }

    /// Shared memory of a block in bytes.
    pub const fn shared_bytes(stride: u32, width: u32, degree: u32, slots: u32) -> u32 {
        let most = most_nodes(degree);
        let longs = 2 * width.next_multiple_of(2) + 2 * most.next_multiple_of(2);
        4 * (COUNTERS + stride.next_multiple_of(SUMS) + most.next_multiple_of(4) + slots) + 8 * longs
    }
}

/// The shared memory of a block.
#[derive(Clone, Copy)]
struct Block {
    counters: SharedPtr<u32>,
    query: SharedPtr<f32>,
    nodes: SharedPtr<u32>,
    kept: SharedPtr<u64>,
    sorted: SharedPtr<u64>,
    table: SharedPtr<u32>,
}

/// A beam in shared memory, and the place for the next one.
#[derive(Clone, Copy)]
struct Beam {
    places: SharedPtr<u64>,
    next: SharedPtr<u64>,
    len: u32,
}

/// The node of a place.
#[inline(always)]
fn node_of(place: u64) -> u32 {
    place as u32 >> 1
}

/// How many of `len` ascending places in shared memory are less than `place`.
///
/// # Safety
/// The places are initialised, and no thread writes them.
#[inline(always)]
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
/// The table is initialised, has an empty slot, and other threads only call this function.
#[inline(always)]
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

/// Computes the distances of the first `count` of the block's nodes, and puts the nodes into the beam. All threads of the block arrive, after a
/// barrier; ends with a barrier.
///
/// # Safety
/// As [`Walk`]; the counter of kept nodes is 0.
#[inline(always)]
unsafe fn absorb<E: Element>(launch: &Walk, block: Block, beam: &mut Beam, count: u32) {
    let Walk { rows, stride, metric, width, .. } = *launch;
    let thread = thread::thread_idx_x();
    let (team, lane) = (thread / TEAM, thread % TEAM);
    // SAFETY: places are below the lengths of the arrays; barriers stand between writes and reads of other threads.
    unsafe {
        let full = beam.len == width;
        let last = if full { beam.places.add(width - 1).load() } else { u64::MAX };
        let mut first = 0;
        while first < count {
            let at = first + team;
            let node = if at < count { block.nodes.add(at).load() } else { NO_ROW };
            let row = (*rows).cast::<E::Stored>().wrapping_add(node as usize * stride as usize);
            let row = if at < count { Some(row) } else { None };
            let distance = key::<E>(metric, block.query, row, stride, lane);
            let place = (distance as u64) << 32 | (node as u64) << 1;
            if lane == 0 && at < count && place < last {
                let to = atomic::shared_add_u32(block.counters.add(KEPT), 1);
                block.kept.add(to).store(place);
            }
            first += THREADS / TEAM;
        }
        thread::sync_threads();
        let kept = block.counters.add(KEPT).load();
        let mut at = thread;
        while at < kept {
            let place = block.kept.add(at).load();
            let mut rank = 0;
            let mut other = 0;
            while other < kept {
                rank += (block.kept.add(other).load() < place) as u32;
                other += 1;
            }
            block.sorted.add(rank).store(place);
            at += THREADS;
        }
        thread::sync_threads();
        let mut at = thread;
        while at < kept {
            let place = block.sorted.add(at).load();
            let to = at + less_than(beam.places, beam.len, place);
            if to < width {
                beam.next.add(to).store(place);
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
            block.counters.add(FIRST).store(NO_ROW);
        }
        thread::sync_threads();
        *beam = Beam { places: beam.next, next: beam.places, len: (beam.len + kept).min(width) };
    }
}

/// # Safety
/// As [`Walk`].
#[inline(always)]
unsafe fn walk<E: Element>(launch: Walk) {
    let Walk { queries, stride, edges, degree, starts, start_count, width, slots, .. } = launch;
    let (thread, query) = (thread::thread_idx_x(), thread::block_idx_x());
    let padded = stride.next_multiple_of(SUMS);
    let most = most_nodes(degree);
    let words = shared::dynamic::<u32>();
    let (width_room, most_room) = (width.next_multiple_of(2), most.next_multiple_of(2));
    // 64-bit places first, so that all are aligned.
    let longs = words.cast::<u64>();
    // SAFETY: the launch gives room for all arrays.
    let (mut beam, block) = unsafe {
        let kept = longs.add(2 * width_room);
        let words = longs.add(2 * width_room + 2 * most_room).cast::<u32>();
        let block = Block {
            counters: words,
            query: words.add(COUNTERS).cast(),
            nodes: words.add(COUNTERS + padded),
            kept,
            sorted: kept.add(most_room),
            table: words.add(COUNTERS + padded + most.next_multiple_of(4)),
        };
        (Beam { places: longs, next: longs.add(width_room), len: 0 }, block)
    };
    // SAFETY: for the whole body, the caller promises the shapes; barriers stand between writes and reads of other threads.
    unsafe {
        let mut at = thread;
        while at < padded {
            block
                .query
                .add(at)
                .store(global::load_nc(queries.wrapping_add(query as usize * padded as usize + at as usize)));
            at += THREADS;
        }
        let mut at = thread;
        while at < slots {
            block.table.add(at).store(NO_ROW);
            at += THREADS;
        }
        if thread < COUNTERS {
            block.counters.add(thread).store(if thread == FIRST { NO_ROW } else { 0 });
        }
        let mut first = 0;
        while first < start_count {
            let count = (start_count - first).min(THREADS);
            if thread < count {
                block.nodes.add(thread).store(global::load_nc(starts.wrapping_add((first + thread) as usize)));
            }
            thread::sync_threads();
            absorb::<E>(&launch, block, &mut beam, count);
            first += THREADS;
        }
        let mut at = thread;
        while at < beam.len {
            insert(block.table, slots, node_of(beam.places.add(at).load()));
            at += THREADS;
        }
        let mut met = beam.len;
        loop {
            let mut at = thread;
            while at < beam.len {
                if beam.places.add(at).load() & EXPANDED == 0 {
                    atomic::shared_min_u32(block.counters.add(FIRST), at);
                    break;
                }
                at += THREADS;
            }
            thread::sync_threads();
            let at = block.counters.add(FIRST).load();
            // The same for all threads.
            if at == NO_ROW || 4 * (met + degree) > 3 * slots {
                store_places(&launch, beam, query, at != NO_ROW);
                return;
            }
            let place = beam.places.add(at).load();
            let mut edge = thread;
            while edge < degree {
                let other =
                    global::load_nc(edges.wrapping_add(node_of(place) as usize * degree as usize + edge as usize));
                if other != NO_ROW && insert(block.table, slots, other) {
                    block.nodes.add(atomic::shared_add_u32(block.counters.add(NODES), 1)).store(other);
                }
                edge += THREADS;
            }
            thread::sync_threads();
            if thread == 0 {
                beam.places.add(at).store(place | EXPANDED);
            }
            let count = block.counters.add(NODES).load();
            met += count;
            thread::sync_threads();
            absorb::<E>(&launch, block, &mut beam, count);
        }
    }
}

/// Writes the first accepted nodes of the beam, or that the table was too small. All threads of the block arrive.
///
/// # Safety
/// As [`Walk`].
#[inline(always)]
unsafe fn store_places(launch: &Walk, beam: Beam, query: u32, overflow: bool) {
    let Walk { selected, filter, places, overflows, .. } = *launch;
    if warp::warp_id() != 0 {
        return;
    }
    let lane = warp::lane_id();
    let to = places.wrapping_add(query as usize * selected as usize);
    let mut count = 0;
    let mut first = 0;
    // SAFETY: places below the beam's length and below `selected`; no thread writes the beam any more.
    unsafe {
        while first < beam.len && count < selected {
            let at = first + lane;
            let node = if at < beam.len { node_of(beam.places.add(at).load()) } else { 0 };
            let accepted = at < beam.len
                && match filter {
                    Some(filter) => global::load_nc(filter.wrapping_add((node / 32) as usize)) >> (node % 32) & 1 == 1,
                    None => true,
                };
            let votes = warp::ballot(FULL_MASK, accepted);
            let place = count + (votes & ((1 << lane) - 1)).count_ones();
            if accepted && place < selected {
                global::store(to.wrapping_add(place as usize), node);
            }
            count += votes.count_ones();
            first += 32;
        }
        let mut place = count + lane;
        while place < selected {
            global::store(to.wrapping_add(place as usize), NO_ROW);
            place += 32;
        }
        if lane == 0 {
            global::store(overflows.wrapping_add(query as usize), overflow as u32);
        }
    }
}
