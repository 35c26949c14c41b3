//! Results of walks among rows of which some are equal.
//!
//! # Problem
//! Rows with equal vectors are one node of a graph. A walk finds nodes, best first. Which rows are the k best, by
//! distance and then by number?
//!
//! # Algorithm
//! One warp for each query. All rows of a node have its distance, so nodes at one distance are merged: each result is
//! the least row of theirs that was not taken yet. A lane keeps a cursor for every 32nd of these nodes.
//!
//! # Cost
//! k steps for a query, each of which reads a cursor and a row of each node at that distance; rows that a filter leaves
//! out are read once. The kernel runs only where a graph has equal rows.

use cuda_std::launch::LaunchConfig;
use cuda_std::warp::FULL_MASK;
use cuda_std::{Ptr, PtrMut, device_inline, global, kernel, thread, warp};

use crate::NO_ROW;

/// Number of threads of a block, which is one warp.
const THREADS: u32 = 32;

/// Writes the k best rows of the nodes that were found.
///
/// # Safety
/// The arrays are as long as the fields say. Nodes are rows.
#[kernel(max_threads = 32, expand_twins = expand)]
pub struct ExpandTwins {
    /// Number of queries.
    pub query_count: u32,
    /// Number of nodes that were found for a query.
    pub found: u32,
    /// `found` distances for each query, best first.
    pub distances: Ptr<f32>,
    /// The node at each distance; `NO_ROW` after the last.
    pub nodes: Ptr<u32>,
    /// For each row the place of its group in `members`; `NO_ROW` if no row is equal.
    pub groups: Ptr<u32>,
    /// Groups of rows: their number, then the rows, ascending.
    pub members: Ptr<u32>,
    /// A bit for each row, 1 for rows that may be results; absent: all may.
    pub filter: Option<Ptr<u32>>,
    /// Memory for `found` numbers a query.
    pub cursors: PtrMut<u32>,
    /// The worst distance of the metric.
    pub worst: f32,
    /// Number of results of a query.
    pub k: u32,
    /// `k` distances for each query, best first, then the worst.
    pub out_distances: PtrMut<f32>,
    /// The row at each distance, equal distances by lower row, then `NO_ROW`.
    pub out_rows: PtrMut<u32>,
}

impl ExpandTwins {
    /// One warp for each query.
    pub fn config(&self) -> LaunchConfig {
        LaunchConfig::linear(self.query_count.into(), THREADS)
    }
}

/// # Safety
/// As [`ExpandTwins`].
#[device_inline]
unsafe fn expand(launch: ExpandTwins) {
    let ExpandTwins { found, distances, nodes, groups, members, filter, cursors, worst, k, .. } = launch;
    let ExpandTwins { out_distances, out_rows, .. } = launch;
    let query = thread::block_idx_x() as usize;
    let lane = warp::lane_id();
    let (first, out) = (query * found as usize, query * k as usize);
    // SAFETY: for the whole body, places are below the lengths of the arrays; a lane uses the cursors of its own nodes
    // only.
    unsafe {
        let node_at = |at: u32| global::load_nc(nodes.wrapping_add(first + at as usize));
        let bits_at = |at: u32| global::load_nc(distances.wrapping_add(first + at as usize)).to_bits();
        // Row number `cursor` of a node; `NO_ROW` after the last.
        let row_of = |node: u32, cursor: u32| {
            let group = global::load_nc(groups.wrapping_add(node as usize));
            if group == NO_ROW {
                return if cursor == 0 { node } else { NO_ROW };
            }
            if cursor < global::load_nc(members.wrapping_add(group as usize)) {
                global::load_nc(members.wrapping_add(group as usize + 1 + cursor as usize))
            } else {
                NO_ROW
            }
        };
        let is_accepted = |row: u32| match filter {
            Some(filter) => global::load_nc(filter.wrapping_add((row / 32) as usize)) >> (row % 32) & 1 == 1,
            None => true,
        };
        let (mut begin, mut written) = (0, 0);
        // All lanes take the same way, except between reductions.
        while begin < found && written < k && node_at(begin) != NO_ROW {
            let mut end = begin + 1;
            while end < found && node_at(end) != NO_ROW && bits_at(end) == bits_at(begin) {
                end += 1;
            }
            let mut is_first = true;
            let mut last = 0;
            while written < k {
                let mut best = NO_ROW;
                let mut at = begin + lane;
                while at < end {
                    let place = cursors.wrapping_add(first + at as usize);
                    let mut cursor = if is_first { 0 } else { global::load(place) };
                    let mut row = row_of(node_at(at), cursor);
                    while row != NO_ROW && ((!is_first && row <= last) || !is_accepted(row)) {
                        cursor += 1;
                        row = row_of(node_at(at), cursor);
                    }
                    global::store(place, cursor);
                    best = best.min(row);
                    at += THREADS;
                }
                let next = warp::reduce_min(FULL_MASK, best);
                if next == NO_ROW {
                    break;
                }
                if lane == 0 {
                    global::store(out_distances.wrapping_add(out + written as usize), f32::from_bits(bits_at(begin)));
                    global::store(out_rows.wrapping_add(out + written as usize), next);
                }
                written += 1;
                (is_first, last) = (false, next);
            }
            begin = end;
        }
        let mut slot = written + lane;
        while slot < k {
            global::store(out_distances.wrapping_add(out + slot as usize), worst);
            global::store(out_rows.wrapping_add(out + slot as usize), NO_ROW);
            slot += THREADS;
        }
    }
}
