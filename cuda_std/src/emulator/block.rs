//! The block that runs: its memory, its arguments, and what it counts.

use super::{
    arguments::Arguments,
    counts::{Counter, Stats},
    global_memory::GlobalMemory,
    registry::Range,
    shared_memory::SharedMemory,
    violation::{Operation, Violation},
};
use crate::{Site, launch::LaunchConfig};
use std::time::Instant;

/// Number of entries of the cache of pieces of memory.
const RANGES: usize = 8;

/// The cluster of a block.
#[derive(Default)]
pub struct Cluster {
    /// The blocks of the cluster by rank, this one included; valid while the cluster runs, on one OS thread.
    pub blocks: Vec<*mut Block>,
    pub rank: u32,
    /// Number of barriers of the cluster that have opened.
    pub barriers: u32,
    /// Whether all threads of the block have returned.
    pub returned: bool,
}

/// The block that an OS thread runs.
pub struct Block {
    pub kernel: &'static str,
    pub index: [u32; 3],
    /// Number in the grid, x fastest.
    pub number: u64,
    pub config: LaunchConfig,
    pub shared: SharedMemory,
    pub cluster: Cluster,
    /// The memory that the launch may access; valid while the launch runs.
    pub arguments: *const Arguments,
    /// Records of the block's accesses to global memory.
    pub global: GlobalMemory,
    /// Cache of the pieces of global memory that were used last, by a hash of the address.
    ranges: [Range; RANGES],
    /// The predicates that threads passed to the barrier at which threads now arrive, and to the last one, each
    /// combined by or.
    pub or_gathered: bool,
    pub or_result: bool,
    pub stats: Stats,
    /// Counts of collectives by source line, in a launch by `profile`.
    pub counter: Option<Counter>,
    pub violation: Option<Violation>,
    /// When somebody first looked at how long the block runs, and whether it was told that this is long. A look at the
    /// clock costs more than a small block does.
    pub first_look: Option<Instant>,
    pub told: bool,
}

impl Block {
    /// A block of a launch, in the memory of a block of another launch. [`Counter`] counts if the launch is `profiled`.
    pub fn new(
        kernel: &'static str,
        config: LaunchConfig,
        arguments: *const Arguments,
        (shared, global): (SharedMemory, GlobalMemory),
        profiled: bool,
    ) -> Self {
        Self {
            kernel,
            index: [0; 3],
            number: 0,
            config,
            shared,
            cluster: Cluster::default(),
            arguments,
            global,
            ranges: [Range::default(); RANGES],
            or_gathered: false,
            or_result: false,
            stats: Stats::default(),
            counter: profiled.then(Counter::default),
            violation: None,
            first_look: None,
            told: false,
        }
    }

    /// The slot of the range cache for an address. The slot depends on the 4 KiB page, so arrays in use rarely share a
    /// slot.
    #[inline(always)]
    pub fn range(&mut self, address: usize) -> &mut Range {
        &mut self.ranges[(address >> 12 ^ address >> 15) % RANGES]
    }

    /// Notes one execution by a warp, or by the lanes of it that met.
    #[inline(always)]
    pub fn count(&mut self, operation: Operation, site: Site, times: u64) {
        if let Some(counter) = &mut self.counter {
            counter.count(operation, site, times);
        }
    }
}
