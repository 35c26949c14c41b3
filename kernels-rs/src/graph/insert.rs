//! The candidates of the edges of nodes that are inserted, and of nodes to which they get edges: as the library's
//! `graph::build` collects them.
//!
//! ```text
//! BeginCandidates    candidates = the held edges of the node; then its other edges, if these are candidates
//! AppendOthers       candidates = those before; then the accepted nodes of a list that are not among these; the node itself is left out
//! ```
//! Both have a warp for each node, read the edges or the list, and read and write the candidates, 4 bytes each. The
//! lists of inserted nodes come from walks, those of other nodes have the edges back. `Prune` chooses among the
//! candidates ([`crate::graph::prune`]).

use cuda_std::launch::LaunchConfig;
use cuda_std::warp::{self, FULL_MASK};
use cuda_std::{Ptr, PtrMut, device_inline, global, kernel, shared, thread};

use crate::NO_ROW;
use crate::graph::candidates::{is_among, load_candidates};

/// Number of threads of a block, which is one warp.
const THREADS: u32 = 32;

/// Makes edges of each node the first candidates for its new edges.
///
/// # Safety
/// The arrays are as long as the fields say. Nodes are rows.
#[kernel(max_threads = 32, begin_edge_candidates = begin)]
pub struct BeginCandidates {
    /// The nodes whose edges are chosen, one for each block.
    pub nodes: Ptr<u32>,
    /// Number of nodes.
    pub count: u32,
    /// For each row `degree` places: the nodes to which its edges lead, then `NO_ROW`.
    pub edges: Ptr<u32>,
    /// Number of places of a row.
    pub degree: u32,
    /// For each row its parent, or `NO_ROW`. An edge is held if it leads from a parent to its child.
    pub parents: Ptr<u32>,
    /// 1: edges that are not held are candidates too, after the others; 0: they are not.
    pub others: u32,
    /// For each node `width` places, at least `degree`: the candidates, then `NO_ROW`.
    pub candidates: PtrMut<u32>,
    /// Number of places of a node.
    pub width: u32,
    /// For each node the number of its held edges.
    pub held_counts: PtrMut<u32>,
}

impl BeginCandidates {
    /// One warp for each node.
    pub fn config(&self) -> LaunchConfig {
        LaunchConfig::linear(self.count.into(), THREADS)
    }
}

/// # Safety
/// As [`BeginCandidates`].
#[device_inline]
unsafe fn begin(launch: BeginCandidates) {
    let BeginCandidates { nodes, edges, degree, parents, others, candidates, width, held_counts, .. } = launch;
    let (lane, number) = (warp::lane_id(), thread::block_idx_x() as usize);
    let candidates = candidates.wrapping_add(number * width as usize);
    // SAFETY: for the whole body, places are below the lengths of the arrays, as the caller promises.
    unsafe {
        let node = global::load_nc(nodes.wrapping_add(number));
        let edges = edges.wrapping_add(node as usize * degree as usize);
        let mut count = 0;
        // First the held ones, then the others. All lanes take the same way.
        let mut wants_held = true;
        loop {
            let mut base = 0;
            while base < degree {
                let at = base + lane;
                let mut other = if at < degree { global::load_nc(edges.wrapping_add(at as usize)) } else { NO_ROW };
                if other != NO_ROW && (global::load_nc(parents.wrapping_add(other as usize)) == node) != wants_held {
                    other = NO_ROW;
                }
                let votes = warp::ballot(FULL_MASK, other != NO_ROW);
                if other != NO_ROW {
                    let place = count + (votes & ((1 << lane) - 1)).count_ones();
                    global::store(candidates.wrapping_add(place as usize), other);
                }
                count += votes.count_ones();
                base += THREADS;
            }
            if wants_held && lane == 0 {
                global::store(held_counts.wrapping_add(number), count);
            }
            if !wants_held || others == 0 {
                break;
            }
            wants_held = false;
        }
        let mut place = count + lane;
        while place < width {
            global::store(candidates.wrapping_add(place as usize), NO_ROW);
            place += THREADS;
        }
    }
}

/// Appends the nodes of a list to the candidates of each node.
///
/// # Safety
/// The arrays are as long as the fields say. The places of candidates that are taken come first. The nodes of a list
/// differ.
#[kernel(max_threads = 32, append_edge_candidates = append)]
pub struct AppendOthers {
    /// The nodes whose edges are chosen, one for each block.
    pub nodes: Ptr<u32>,
    /// Number of nodes.
    pub count: u32,
    /// The lists, one for each node. `NO_ROW` is no node.
    pub lists: Ptr<u32>,
    /// For each node where its list begins, and after the last where that list ends; absent: each has `most` places.
    pub begins: Option<Ptr<u32>>,
    /// Number of places of a list.
    pub most: u32,
    /// A bit for each row, 1 for nodes that may be candidates; absent: all may.
    pub accepted: Option<Ptr<u32>>,
    /// For each node `width` places: the candidates, then `NO_ROW`. Those for which there is no place are left out.
    pub candidates: PtrMut<u32>,
    /// Number of places of a node.
    pub width: u32,
}

impl AppendOthers {
    /// One warp for each node.
    pub fn config(&self) -> LaunchConfig {
        LaunchConfig::linear(self.count.into(), THREADS).with_shared(4 * self.width)
    }
}

/// # Safety
/// As [`AppendOthers`].
#[device_inline]
unsafe fn append(launch: AppendOthers) {
    let AppendOthers { nodes, lists, begins, most, accepted, candidates, width, .. } = launch;
    let (lane, number) = (warp::lane_id(), thread::block_idx_x() as usize);
    let before = shared::dynamic::<u32>();
    let candidates = candidates.wrapping_add(number * width as usize);
    // SAFETY: for the whole body, the launch gives room for all candidates, the caller promises the shapes, and a
    // barrier stands between writes and reads of different lanes.
    unsafe {
        let node = global::load_nc(nodes.wrapping_add(number));
        let (first, end) = match begins {
            Some(begins) => {
                let begin = |at: usize| global::load_nc(begins.wrapping_add(at)) as usize;
                (begin(number), begin(number + 1))
            }
            None => (number * most as usize, (number + 1) * most as usize),
        };
        let taken = load_candidates(candidates, width, before);
        let (mut count, mut base) = (taken, first);
        while base < end && count < width {
            let at = base + lane as usize;
            let other = if at < end { global::load_nc(lists.wrapping_add(at)) } else { NO_ROW };
            let mut is_new = other != NO_ROW && other != node;
            if let (Some(accepted), true) = (accepted, is_new) {
                is_new = global::load_nc(accepted.wrapping_add((other / 32) as usize)) >> (other % 32) & 1 == 1;
            }
            is_new &= !is_among(before, taken, other);
            let votes = warp::ballot(FULL_MASK, is_new);
            let place = count + (votes & ((1 << lane) - 1)).count_ones();
            if is_new && place < width {
                global::store(candidates.wrapping_add(place as usize), other);
            }
            count += votes.count_ones();
            base += THREADS as usize;
        }
    }
}
