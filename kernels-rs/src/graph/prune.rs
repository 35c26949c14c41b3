//! The choice of edges, as the library's `graph::prune` and `graph::build` define it, with the same bits. The kernels
//! of a new graph; those that collect the candidates of inserted nodes are in [`crate::graph::insert`].
//!
//! ```text
//! Prune     for each node, a warp: its edges among its candidates                       n · degree edges
//! Count     for each edge, a thread: one more edge to its node
//! (host)    sums of the counts: the list of each node, which the edges to it will fill
//! Fill      for each edge, a thread: its number into the list of its node
//! Join      for each node, a warp: the first half of its edges, the best of the edges back, the other half
//! Prune     for each node, a warp: its edges among these
//! ```
//!
//! Threads fill a list in any order. `Join` takes the first `degree` of it by (place of the edge, node), so the result
//! depends on no order.
//!
//! # Cost
//! A warp of `Prune` compares each of its c candidates with the chosen ones, until one is nearer: c steps, each of
//! which waits for two vectors, and up to c · degree / 2 distances, whose vectors mostly come from the cache. The other
//! kernels move 4 to 12 bytes for each edge.

use cuda_std::launch::LaunchConfig;
use cuda_std::shared::SharedPtr;
use cuda_std::warp::{self, FULL_MASK};
use cuda_std::{Ptr, PtrMut, atomic, device_inline, global, kernel, shared, thread, unroll};

use crate::NO_ROW;
use crate::graph::distance::{Compared, SUMS, TEAM, is_first_of_row, row_of};
use crate::product::element::{self, RowKey};
use crate::product::metric::Metric;

/// Number of threads of a block, which is one warp, in `Prune` and `Join`.
const THREADS: u32 = 32;
/// Number of teams of lanes of a warp.
const TEAMS: u32 = THREADS / TEAM;
/// Number of vectors that a team of lanes reads at a time.
const ROWS: usize = 2;
/// Number of threads of a block in `Count` and `Fill`.
const EDGE_THREADS: u32 = 256;

/// Chooses edges of each node among its candidates: the held ones; those to which no chosen one is nearer than the
/// node, from near to far; then the nearest others, or the others in the order of the candidates.
///
/// The default has empty or absent pointers and zeros: consecutive nodes, none held, all of them pruned.
///
/// # Safety
/// The arrays are as long as the fields say. Nodes and candidates are rows.
#[kernel(
    key = RowKey,
    max_threads = 32,
    min_blocks = 24,
    // With 24 blocks there are not enough registers on sm_120.
    RowKey::F32 => prune_f32(max_threads = 32, min_blocks = 20) = prune::<element::F32>,
    RowKey::F16 => prune_f16 = prune::<element::F16>,
    RowKey::Bf16 => prune_bf16 = prune::<element::Bf16>,
    RowKey::U8 => prune_u8 = prune::<element::U8>,
    RowKey::I8 => prune_i8 = prune::<element::I8>,
    RowKey::Bits => prune_bits = prune::<element::Bits>,
)]
#[derive(Default)]
pub struct Prune {
    /// Rows of `stride` components, of the type of the key.
    pub rows: Ptr<u8>,
    /// Distance from one row to the next in components: a multiple of 4, of 16 for bytes; zero padded.
    pub stride: u32,
    /// The metric of the distances.
    pub metric: Metric,
    /// The nodes, one for each block; absent: those from `first` on.
    pub nodes: Option<Ptr<u32>>,
    /// Number of the node that block 0 prunes; those of the next blocks follow.
    pub first: u32,
    /// Number of nodes.
    pub count: u32,
    /// One word for each node; absent: all nodes are pruned.
    pub doubtful: Option<Ptr<u32>>,
    /// Whether rows are codes: 0 for no. Nodes whose word is 0 are pruned by codes, the others in another launch.
    pub by_codes: u32,
    /// For each node the number of its first candidates that are chosen in any case, at most `degree`; absent: none.
    pub held: Option<Ptr<u32>>,
    /// Up to this number of candidates all are edges, in their order.
    pub whole: u32,
    /// For each node `most` places: different rows other than the node, then `NO_ROW`.
    pub candidates: Ptr<u32>,
    /// Number of places of candidates.
    pub most: u32,
    /// For each node `degree` places: the nodes to which its edges lead, then `NO_ROW`.
    pub edges: PtrMut<u32>,
    /// Number of places of edges.
    pub degree: u32,
    /// 1: the other candidates are taken in their order; 0: the nearest are.
    pub in_order: u32,
}

impl Prune {
    /// One warp for each node.
    pub fn config(&self) -> LaunchConfig {
        let bytes = Self::shared_bytes(self.stride, self.most, self.degree);
        LaunchConfig::linear(self.count.into(), THREADS).with_shared(bytes)
    }

    /// Shared memory of a block in bytes.
    pub const fn shared_bytes(stride: u32, most: u32, degree: u32) -> u32 {
        4 * (stride.next_multiple_of(SUMS) + most.next_multiple_of(2) + degree.next_multiple_of(2)) + 8 * 2 * most
    }
}

/// # Safety
/// As [`Prune`].
#[device_inline]
unsafe fn prune<E: Compared>(launch: Prune) {
    let Prune { rows, stride, metric, candidates, most, edges, degree, in_order, .. } = launch;
    let lane = warp::lane_id();
    let number = thread::block_idx_x();
    if let Some(doubtful) = launch.doubtful {
        // SAFETY: the caller promises a word for each node. The whole warp takes the same way.
        let is_doubtful = unsafe { global::load_nc(doubtful.wrapping_add(number as usize)) } != 0;
        if is_doubtful == (launch.by_codes != 0) {
            return;
        }
    }
    // SAFETY: the caller promises a node and a number for each block.
    let of_block = |array: Ptr<u32>| unsafe { global::load_nc(array.wrapping_add(number as usize)) };
    let node = match launch.nodes {
        Some(nodes) => of_block(nodes),
        None => launch.first + number,
    };
    let held = launch.held.map_or(0, of_block);
    let rows = (*rows).cast::<E::Stored>();
    let row = |node: u32| rows.wrapping_add(node as usize * stride as usize);
    // A team without a node reads row 0.
    let there = |node: u32| row(if node == NO_ROW { 0 } else { node });
    let candidates = candidates.wrapping_add(number as usize * most as usize);
    let query = shared::dynamic::<u32>();
    // SAFETY: for the whole body, the launch gives room for all arrays, the caller promises the shapes, and a barrier
    // stands between writes and reads of different lanes.
    unsafe {
        let keys: SharedPtr<u64> = query.add(stride.next_multiple_of(SUMS)).cast();
        let sorted = keys.add(most);
        let chosen: SharedPtr<u32> = sorted.add(most).cast();
        let occluded = chosen.add(degree.next_multiple_of(2));
        let mut at = lane;
        while at < held {
            chosen.add(at).store(global::load_nc(candidates.wrapping_add(at as usize)));
            at += THREADS;
        }
        load::<E>(row(node), stride, metric, query);
        let own = E::own(query, stride, lane % TEAM);
        let mut count = 0;
        let mut at = held;
        while at < most {
            let nodes = of_teams(|place| {
                let place = at + place;
                if place < most { global::load_nc(candidates.wrapping_add(place as usize)) } else { NO_ROW }
            });
            // Places after the last candidate cost distances as well.
            if warp::ballot(FULL_MASK, nodes[0] != NO_ROW) == 0 {
                break;
            }
            let found = E::key::<ROWS>(metric, (query, own), nodes.map(there), stride, lane % TEAM);
            let place = at + row_of::<ROWS>(lane % TEAM) * TEAMS + lane / TEAM;
            let node = if row_of::<ROWS>(lane % TEAM) == 0 { nodes[0] } else { nodes[1] };
            let is_there = is_first_of_row::<ROWS>(lane % TEAM) && node != NO_ROW;
            if is_there {
                keys.add(place - held).store((found as u64) << 32 | node as u64);
            }
            count += warp::ballot(FULL_MASK, is_there).count_ones();
            at += ROWS as u32 * TEAMS;
        }
        thread::sync_threads();
        let mut at = lane;
        while at < count {
            let key = keys.add(at).load();
            let (mut rank, mut other) = (0, 0);
            while other < count {
                rank += (keys.add(other).load() < key) as u32;
                other += 1;
            }
            sorted.add(rank).store(key);
            at += THREADS;
        }
        thread::sync_threads();
        let (mut chosen_count, mut occluded_count) = (held, 0);
        if held + count <= launch.whole {
            // All are chosen, in their order.
            let mut at = held + lane;
            while at < held + count {
                chosen.add(at).store(global::load_nc(candidates.wrapping_add(at as usize)));
                at += THREADS;
            }
            chosen_count = held + count;
            thread::sync_threads();
        }
        let mut at = 0;
        while at < count && chosen_count < degree && held + count > launch.whole {
            let place = sorted.add(at).load();
            let node = place as u32;
            let mut own = 0;
            if chosen_count > 0 {
                load::<E>(row(node), stride, metric, query);
                own = E::own(query, stride, lane % TEAM);
            }
            let mut nearer = false;
            let mut some = 0;
            while some < chosen_count && !nearer {
                let nodes = of_teams(|place| {
                    let place = some + place;
                    if place < chosen_count { chosen.add(place).load() } else { NO_ROW }
                });
                let found = E::key::<ROWS>(metric, (query, own), nodes.map(there), stride, lane % TEAM);
                let node = if row_of::<ROWS>(lane % TEAM) == 0 { nodes[0] } else { nodes[1] };
                nearer = node != NO_ROW && (found as u64) < place >> 32;
                nearer = warp::ballot(FULL_MASK, nearer) != 0;
                some += ROWS as u32 * TEAMS;
            }
            // All lanes have read the query and the chosen nodes.
            thread::sync_threads();
            let to = if nearer { occluded.add(occluded_count) } else { chosen.add(chosen_count) };
            if lane == 0 {
                to.store(node);
            }
            occluded_count += nearer as u32;
            chosen_count += !nearer as u32;
            thread::sync_threads();
            at += 1;
        }
        // In the order of the candidates, those that were not chosen replace the occluded ones.
        let (mut filled, mut base) = (chosen_count, 0);
        while in_order != 0 && filled < degree && base < most {
            let at = base + lane;
            let node = if at < most { global::load_nc(candidates.wrapping_add(at as usize)) } else { NO_ROW };
            let mut is_other = node != NO_ROW;
            let mut some = 0;
            while some < chosen_count {
                is_other &= chosen.add(some).load() != node;
                some += 1;
            }
            let votes = warp::ballot(FULL_MASK, is_other);
            let place = filled + (votes & ((1 << lane) - 1)).count_ones();
            if is_other && place < degree {
                occluded.add(place - chosen_count).store(node);
            }
            filled += votes.count_ones();
            base += THREADS;
        }
        thread::sync_threads();
        let edges = edges.wrapping_add(number as usize * degree as usize);
        let mut at = lane;
        while at < degree {
            let node = if at < chosen_count {
                chosen.add(at).load()
            } else if at - chosen_count < occluded_count {
                occluded.add(at - chosen_count).load()
            } else {
                NO_ROW
            };
            global::store(edges.wrapping_add(at as usize), node);
            at += THREADS;
        }
    }
}

/// The nodes of each team, of which `node` gives one for each place.
#[device_inline]
fn of_teams(node: impl Fn(u32) -> u32) -> [u32; ROWS] {
    let team = warp::lane_id() / TEAM;
    let mut nodes = [NO_ROW; ROWS];
    unroll::<ROWS>(|r| nodes[r] = node(r as u32 * TEAMS + team));
    nodes
}

/// Makes a row the query. All lanes arrive; ends with a barrier.
///
/// # Safety
/// As [`Compared::store`]; no lane reads the query any more.
#[device_inline]
unsafe fn load<E: Compared>(row: *const E::Stored, stride: u32, metric: Metric, query: SharedPtr<u32>) {
    // SAFETY: as the caller promises.
    unsafe {
        E::store(row, stride, query, THREADS);
        thread::sync_threads();
        if metric.divides_by_norms() {
            E::normalise(query, stride, THREADS);
            thread::sync_threads();
        }
    }
}

/// Counts the edges that lead to each node.
///
/// # Safety
/// The arrays are as long as the fields say. Edges are rows.
#[kernel(max_threads = 256, count_edges = count)]
pub struct Count {
    /// The nodes to which edges lead, or `NO_ROW`.
    pub edges: Ptr<u32>,
    /// Number of places of edges.
    pub places: u32,
    /// For each node a number, 0 at first.
    pub counts: PtrMut<u32>,
}

impl Count {
    /// One thread for each edge.
    pub fn config(&self) -> LaunchConfig {
        LaunchConfig::linear(u64::from(self.places.div_ceil(EDGE_THREADS)), EDGE_THREADS)
    }
}

/// # Safety
/// As [`Count`].
#[device_inline]
unsafe fn count(launch: Count) {
    let edge = thread::block_idx_x() * EDGE_THREADS + thread::thread_idx_x();
    if edge < launch.places {
        // SAFETY: the edge exists, and leads to a row.
        unsafe {
            let node = global::load_nc(launch.edges.wrapping_add(edge as usize));
            if node != NO_ROW {
                atomic::add_u32(launch.counts.wrapping_add(node as usize), 1);
            }
        }
    }
}

/// Puts the number of each edge into the list of the node to which it leads.
///
/// # Safety
/// The arrays are as long as the fields say. Edges are rows, and each list has room for its edges.
#[kernel(max_threads = 256, fill_edges = fill)]
pub struct Fill {
    /// The nodes to which edges lead, or `NO_ROW`.
    pub edges: Ptr<u32>,
    /// Number of places of edges.
    pub places: u32,
    /// For each node where its list begins; afterwards where it ends.
    pub ends: PtrMut<u32>,
    /// The lists, one after the other.
    pub lists: PtrMut<u32>,
}

impl Fill {
    /// One thread for each edge.
    pub fn config(&self) -> LaunchConfig {
        LaunchConfig::linear(u64::from(self.places.div_ceil(EDGE_THREADS)), EDGE_THREADS)
    }
}

/// # Safety
/// As [`Fill`].
#[device_inline]
unsafe fn fill(launch: Fill) {
    let edge = thread::block_idx_x() * EDGE_THREADS + thread::thread_idx_x();
    if edge < launch.places {
        // SAFETY: the edge exists, leads to a row, and has a place in its list.
        unsafe {
            let node = global::load_nc(launch.edges.wrapping_add(edge as usize));
            if node != NO_ROW {
                let place = atomic::add_u32(launch.ends.wrapping_add(node as usize), 1);
                global::store(launch.lists.wrapping_add(place as usize), edge);
            }
        }
    }
}

/// Joins the edges of each node with those back along the edges that lead to it.
///
/// # Safety
/// The arrays are as long as the fields say.
#[kernel(max_threads = 32, join_edges = join)]
pub struct Join {
    /// For each node of the graph `degree` places: different nodes, then `NO_ROW`.
    pub edges: Ptr<u32>,
    /// Number of the node that block 0 joins; those of the next blocks follow.
    pub first: u32,
    /// Number of nodes.
    pub count: u32,
    /// Number of places of a node.
    pub degree: u32,
    /// For each node where its list ends.
    pub ends: Ptr<u32>,
    /// The lists: numbers of edges.
    pub lists: Ptr<u32>,
    /// For each node 2 · `degree` places: different nodes, then `NO_ROW`.
    pub joined: PtrMut<u32>,
}

impl Join {
    /// One warp for each node.
    pub fn config(&self) -> LaunchConfig {
        LaunchConfig::linear(self.count.into(), THREADS).with_shared(Self::shared_bytes(self.degree))
    }

    /// Shared memory of a block in bytes.
    pub const fn shared_bytes(degree: u32) -> u32 {
        8 * 2 * degree + 4 * 2 * degree
    }
}

/// # Safety
/// As [`Join`].
#[device_inline]
unsafe fn join(launch: Join) {
    let Join { edges, first, degree, ends, lists, joined, .. } = launch;
    let (lane, number) = (warp::lane_id(), thread::block_idx_x());
    let node = first + number;
    let mut best = shared::dynamic::<u64>();
    // SAFETY: for the whole body, the launch gives room for all arrays, the caller promises the shapes, and a barrier
    // stands between writes and reads of different lanes.
    unsafe {
        let mut next = best.add(degree);
        let all: SharedPtr<u32> = best.add(2 * degree).cast();
        let mut first = if node == 0 { 0 } else { global::load_nc(ends.wrapping_add(node as usize - 1)) };
        let end = global::load_nc(ends.wrapping_add(node as usize));
        // The best edges to this node so far, as (place, node), ascending.
        let mut len = 0;
        while first < end {
            let mut key = u64::MAX;
            if first + lane < end {
                let edge = global::load_nc(lists.wrapping_add((first + lane) as usize));
                key = ((edge % degree) as u64) << 32 | (edge / degree) as u64;
            }
            let worst = if len == degree { best.add(degree - 1).load() } else { u64::MAX };
            if warp::ballot(FULL_MASK, key < worst) != 0 {
                let (mut rank, mut other) = (0, 0);
                while other < 32 {
                    rank += (of_lane(key, other) < key) as u32;
                    other += 1;
                }
                let mut at = 0;
                while at < len {
                    rank += (best.add(at).load() < key) as u32;
                    at += 1;
                }
                if key != u64::MAX && rank < degree {
                    next.add(rank).store(key);
                }
                let mut base = 0;
                while base < len {
                    let at = base + lane;
                    let key_there = if at < len { best.add(at).load() } else { u64::MAX };
                    let (mut rank, mut other) = (at, 0);
                    while other < 32 {
                        rank += (of_lane(key, other) < key_there) as u32;
                        other += 1;
                    }
                    if at < len && rank < degree {
                        next.add(rank).store(key_there);
                    }
                    base += 32;
                }
                len = (len + (end - first).min(32)).min(degree);
                (best, next) = (next, best);
                thread::sync_threads();
            }
            first += 32;
        }
        let own = edges.wrapping_add(node as usize * degree as usize);
        let near = degree / 2;
        // In the order of preference: near edges, edges back, far edges.
        let mut at = lane;
        while at < degree {
            let to = if at < near { at } else { at + len };
            all.add(to).store(global::load_nc(own.wrapping_add(at as usize)));
            at += THREADS;
        }
        let mut at = lane;
        while at < len {
            all.add(near + at).store(best.add(at).load() as u32);
            at += THREADS;
        }
        thread::sync_threads();
        let places = 2 * degree;
        let joined = joined.wrapping_add(number as usize * places as usize);
        let (mut count, mut base) = (0, 0);
        while base < degree + len {
            let at = base + lane;
            let other = if at < degree + len { all.add(at).load() } else { NO_ROW };
            let mut is_new = other != NO_ROW;
            let mut before = 0;
            while before < base + 31 {
                if before < at && before < degree + len {
                    is_new &= all.add(before).load() != other;
                }
                before += 1;
            }
            let votes = warp::ballot(FULL_MASK, is_new);
            let place = count + (votes & ((1 << lane) - 1)).count_ones();
            if is_new {
                global::store(joined.wrapping_add(place as usize), other);
            }
            count += votes.count_ones();
            base += 32;
        }
        let mut place = count + lane;
        while place < places {
            global::store(joined.wrapping_add(place as usize), NO_ROW);
            place += THREADS;
        }
    }
}

/// The key of another lane. All lanes arrive.
#[device_inline]
fn of_lane(key: u64, lane: u32) -> u64 {
    let (low, high) =
        (warp::shuffle_idx(FULL_MASK, key as u32, lane), warp::shuffle_idx(FULL_MASK, (key >> 32) as u32, lane));
    (high as u64) << 32 | low as u64
}
