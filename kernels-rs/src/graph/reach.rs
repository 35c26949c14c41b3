//! A parent for each node that can be reached from the start nodes, as the library's `graph::links` defines it: the
//! same parents.
//!
//! ```text
//! each level:   Claim     for each node of the level, a warp: it is the parent of each open node to which it has an edge, unless a lower one is
//!               Settle    for each open node with a parent, a thread: it belongs to the next level
//! ```
//! The host repeats this until a level is empty. Any order of the claims gives the lowest parent.
//!
//! # Cost
//! Each edge is read once, and for each edge a number of a level, at random. Each launch reads the levels of all nodes:
//! 4 bytes a node.

use cuda_std::launch::LaunchConfig;
use cuda_std::warp::{self, FULL_MASK};
use cuda_std::{Ptr, PtrMut, atomic, device_inline, global, kernel, thread};

use crate::NO_ROW;

/// Number of threads of a block.
const THREADS: u32 = 256;

/// The level of a node that is not reached.
pub const OPEN: u32 = u32::MAX;

/// Makes the nodes of a level the parents of the open nodes to which they have edges: of several the lowest.
///
/// # Safety
/// The arrays are as long as the fields say. Edges lead to nodes.
#[kernel(max_threads = 256, claim_nodes = claim)]
pub struct Claim {
    /// For each node `degree` places: the nodes to which its edges lead, then `NO_ROW`.
    pub edges: Ptr<u32>,
    /// Number of nodes.
    pub count: u32,
    /// Number of places of a node.
    pub degree: u32,
    /// The level of each node; [`OPEN`] if it is not reached.
    pub levels: Ptr<u32>,
    /// The level whose nodes claim others.
    pub level: u32,
    /// The parent of each node, or `NO_ROW`.
    pub parents: PtrMut<u32>,
}

impl Claim {
    /// One thread for each node, and its warp for each node of the level.
    pub fn config(&self) -> LaunchConfig {
        LaunchConfig::linear(u64::from(self.count.div_ceil(THREADS)), THREADS)
    }
}

/// # Safety
/// As [`Claim`].
#[device_inline]
unsafe fn claim(launch: Claim) {
    let Claim { edges, count, degree, levels, level, parents } = launch;
    let lane = warp::lane_id();
    let own = thread::block_idx_x() * THREADS + thread::thread_idx_x();
    // SAFETY: for the whole body, the nodes exist, and the caller promises the shapes.
    unsafe {
        let claims = own < count && global::load_nc(levels.wrapping_add(own as usize)) == level;
        // All lanes arrive.
        let mut left = warp::ballot(FULL_MASK, claims);
        while left != 0 {
            let node = own - lane + left.trailing_zeros();
            let mut place = lane;
            while place < degree {
                let other = global::load_nc(edges.wrapping_add(node as usize * degree as usize + place as usize));
                if other != NO_ROW && global::load_nc(levels.wrapping_add(other as usize)) == OPEN {
                    atomic::min_u32(parents.wrapping_add(other as usize), node);
                }
                place += 32;
            }
            left &= left - 1;
        }
    }
}

/// Gives the open nodes that have parents a level.
///
/// # Safety
/// The arrays are as long as the fields say.
#[kernel(max_threads = 256, settle_nodes = settle)]
pub struct Settle {
    /// The parent of each node, or `NO_ROW`.
    pub parents: Ptr<u32>,
    /// Number of nodes.
    pub count: u32,
    /// The level of each node; [`OPEN`] if it is not reached.
    pub levels: PtrMut<u32>,
    /// The level of the nodes that have got a parent.
    pub level: u32,
    /// The number of these nodes is added to this one.
    pub reached: PtrMut<u32>,
}

impl Settle {
    /// One thread for each node.
    pub fn config(&self) -> LaunchConfig {
        LaunchConfig::linear(u64::from(self.count.div_ceil(THREADS)), THREADS)
    }
}

/// # Safety
/// As [`Settle`].
#[device_inline]
unsafe fn settle(launch: Settle) {
    let Settle { parents, count, levels, level, reached } = launch;
    let node = thread::block_idx_x() * THREADS + thread::thread_idx_x();
    // SAFETY: for the whole body, the node exists, and the caller promises the shapes.
    unsafe {
        let mut is_new = false;
        if node < count {
            let place = levels.wrapping_add(node as usize);
            is_new = global::load(place) == OPEN && global::load_nc(parents.wrapping_add(node as usize)) != NO_ROW;
            if is_new {
                global::store(place, level);
            }
        }
        // All lanes arrive.
        let votes = warp::ballot(FULL_MASK, is_new);
        if warp::lane_id() == 0 && votes != 0 {
            atomic::add_u32(*reached, votes.count_ones());
        }
    }
}
