//! The candidates of the edges of nodes after rows have moved, as the library's `graph::build` collects them.
//!
//! ```text
//! for each edge of a node: the other node, if it is there; else the nodes to which edges lead from it
//! ```
//! A warp for each node, which reads its edges, those of the neighbours that are gone, and the new number of each of
//! these nodes. A candidate is compared with all before it, in shared memory: O(candidates²) comparisons of words.

use cuda_std::launch::LaunchConfig;
use cuda_std::shared::SharedPtr;
use cuda_std::warp::{self, FULL_MASK};
use cuda_std::{Ptr, PtrMut, device_inline, global, kernel, shared, thread};

use crate::NO_ROW;
use crate::graph::candidates::is_among;

/// Number of threads of a block, which is one warp.
const THREADS: u32 = 32;

/// Collects the candidates of the edges of nodes that were there before, under the new numbers.
///
/// # Safety
/// The arrays are as long as the fields say. Edges lead to old rows, those of a row to different ones. Different rows
/// moved to different nodes.
#[kernel(max_threads = 32, repair_candidates = repair)]
pub struct RepairCandidates {
    /// Number of the node of block 0; those of the next blocks follow.
    pub first: u32,
    /// Number of nodes.
    pub count: u32,
    /// For each node its row before, or `NO_ROW` for one without candidates.
    pub before: Ptr<u32>,
    /// For each old row the node to which it moved, or `NO_ROW` if it is gone.
    pub moved: Ptr<u32>,
    /// For each old row `degree` places: the rows to which its edges led, then `NO_ROW`.
    pub edges: Ptr<u32>,
    /// Number of places of a row.
    pub degree: u32,
    /// For each of these nodes [`width`](Self::width) places: the candidates, then `NO_ROW`.
    pub candidates: PtrMut<u32>,
    /// For each of these nodes the number of its candidates if none of its neighbours is gone, else 0.
    pub kept: PtrMut<u32>,
}

impl RepairCandidates {
    /// One warp for each node.
    pub fn config(&self) -> LaunchConfig {
        LaunchConfig::linear(self.count.into(), THREADS).with_shared(Self::shared_bytes(self.degree))
    }

    /// Number of places of a node: for its neighbours, and for all neighbours of each.
    pub const fn width(degree: u32) -> u32 {
        degree * (1 + degree)
    }

    /// Shared memory of a block in bytes.
    pub const fn shared_bytes(degree: u32) -> u32 {
        4 * Self::width(degree)
    }
}

/// # Safety
/// As [`RepairCandidates`].
#[device_inline]
unsafe fn repair(launch: RepairCandidates) {
    let RepairCandidates { first, before, moved, edges, degree, candidates, kept, .. } = launch;
    let (lane, number) = (warp::lane_id(), thread::block_idx_x());
    let (node, width) = (first + number, RepairCandidates::width(degree));
    let all = shared::dynamic::<u32>();
    // SAFETY: for the whole body, the launch gives room for all candidates, the caller promises the shapes, and
    // `append` ends with a barrier.
    unsafe {
        let row = global::load_nc(before.wrapping_add(node as usize));
        let edge =
            |row: u32, place: u32| global::load_nc(edges.wrapping_add(row as usize * degree as usize + place as usize));
        let moved_to =
            |row: u32| if row == NO_ROW { NO_ROW } else { global::load_nc(moved.wrapping_add(row as usize)) };
        let (mut count, mut place, mut is_lost) = (0, 0, false);
        // All lanes take the same way.
        while place < degree && row != NO_ROW {
            let other = edge(row, place);
            if other == NO_ROW {
                break;
            }
            let there = moved_to(other);
            if there != NO_ROW {
                count = append(all, count, node, if lane == 0 { there } else { NO_ROW });
            } else {
                is_lost = true;
                let mut base = 0;
                while base < degree {
                    let far = if base + lane < degree { edge(other, base + lane) } else { NO_ROW };
                    count = append(all, count, node, moved_to(far));
                    base += THREADS;
                }
            }
            place += 1;
        }
        let candidates = candidates.wrapping_add(number as usize * width as usize);
        let mut at = lane;
        while at < width {
            let other = if at < count { all.add(at).load() } else { NO_ROW };
            global::store(candidates.wrapping_add(at as usize), other);
            at += THREADS;
        }
        if lane == 0 {
            global::store(kept.wrapping_add(number as usize), if is_lost { 0 } else { count });
        }
    }
}

/// Appends the nodes of the lanes, which differ, in the order of the lanes, to those before: each that is not there
/// yet, and not the node itself or `NO_ROW`. Returns how many there are then. All lanes arrive; ends with a barrier.
///
/// # Safety
/// There is room for all, and `count` nodes are there.
#[device_inline]
unsafe fn append(all: SharedPtr<u32>, count: u32, node: u32, other: u32) -> u32 {
    // SAFETY: places before `count` were stored before a barrier; those after it are each one lane's.
    unsafe {
        let is_new = other != NO_ROW && other != node && !is_among(all, count, other);
        let votes = warp::ballot(FULL_MASK, is_new);
        if is_new {
            all.add(count + (votes & ((1 << warp::lane_id()) - 1)).count_ones()).store(other);
        }
        thread::sync_threads();
        count + votes.count_ones()
    }
}
