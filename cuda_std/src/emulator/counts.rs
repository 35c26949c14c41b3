//! The counts of a launch: accesses and collectives in all, and collectives by source line.

use super::violation::{Operation, SourceLocation};
use crate::Site;
use std::collections::HashMap;

/// Counts of a launch.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Collectives, barriers and turns of waiting loops, counted once for each lane that took part.
    pub lane_collectives: u64,
    /// Barriers, counted once for each block.
    pub barriers: u64,
    /// Bytes loaded from global memory, asynchronous copies included.
    pub global_load_bytes: u64,
    /// Bytes stored to global memory.
    pub global_store_bytes: u64,
    /// Atomic operations on global memory.
    pub global_atomics: u64,
    /// Atomic operations on shared memory.
    pub shared_atomics: u64,
}

impl Stats {
    pub(super) fn add(&mut self, other: &Self) {
        self.lane_collectives += other.lane_collectives;
        self.barriers += other.barriers;
        self.global_load_bytes += other.global_load_bytes;
        self.global_store_bytes += other.global_store_bytes;
        self.global_atomics += other.global_atomics;
        self.shared_atomics += other.shared_atomics;
    }
}

/// How often warps executed one collective or barrier of the source.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct SiteCount {
    /// The collective or barrier that was executed.
    pub operation: Operation,
    /// The call in the kernel's source (or in the code that the kernel calls).
    pub location: SourceLocation,
    /// Executions, all warps together: one for each set of lanes that met, as the hardware issues one instruction for
    /// them. A shuffle of 64 bits is two, for it is two instructions; a barrier is one for each warp that waits.
    pub executions: u64,
}

/// Counts of one OS thread, by operation and address of the place.
#[derive(Default)]
pub struct Counter {
    counts: HashMap<(Operation, usize), (Site, u64)>,
}

impl Counter {
    /// Notes `times` executions by a warp, or by the lanes of it that met.
    #[inline(always)]
    pub fn count(&mut self, operation: Operation, site: Site, times: u64) {
        let key = (operation, std::ptr::from_ref(site).addr());
        self.counts.entry(key).or_insert((site, 0)).1 += times;
    }

    /// Adds what another thread counted.
    pub fn add(&mut self, other: Self) {
        for (key, (site, count)) in other.counts {
            self.counts.entry(key).or_insert((site, 0)).1 += count;
        }
    }

    /// The counts in the source's order; the same place can have several addresses.
    pub fn into_sites(self) -> Vec<SiteCount> {
        let mut counts: Vec<_> =
            self.counts.into_iter().map(|((operation, _), (site, count))| (*site, operation, count)).collect();
        counts.sort_unstable_by_key(|&(site, operation, _)| (site, operation as u8));
        counts.dedup_by(|next, kept| {
            let same = (next.0, next.1) == (kept.0, kept.1);
            if same {
                kept.2 += next.2;
            }
            same
        });
        let counts = counts.into_iter();
        counts
            .map(|(site, operation, executions)| SiteCount { operation, location: (&site).into(), executions })
            .collect()
    }
}
