//! What a block needs while it runs. One arena an OS thread, reused from block to block and launch to launch.

use super::{
    arguments::Arguments,
    context::{LANES, Lane, Product, WIDE, Warp, WarpClock},
    device::async_copy::Copies,
    global_memory::GlobalMemory,
    launch::Stats,
    profile::Counter,
    registry::Range,
    shared_memory::SharedMemory,
    stack::ColouredStack,
    violation::{Operation, Violation},
};
use crate::launch::LaunchConfig;
use corosensei::Coroutine;
use std::{cell::Cell, panic::Location};

/// A thread's coroutine.
pub type Thread = Coroutine<(), (), (), ColouredStack>;

/// Entries of the cache of pieces of memory.
const RANGES: usize = 8;

/// The block that runs.
pub struct Block {
    pub kernel: &'static str,
    pub index: [u32; 3],
    /// Number in the grid, x fastest.
    pub number: u64,
    pub config: LaunchConfig,
    pub shared: SharedMemory,
    /// The memory that the launch may access; set while it runs.
    pub arguments: *const Arguments,
    /// What the block did to it.
    pub global: GlobalMemory,
    /// Pieces of that memory that were used last, by a hash of the address.
    ranges: [Range; RANGES],
    /// What threads passed to the barrier that is being gathered, and to the last one.
    pub or_gathered: bool,
    pub or_result: bool,
    pub stats: Stats,
    /// Counts collectives by source line, in a launch by `profile`.
    pub counter: Option<Counter>,
    pub violation: Option<Violation>,
}

impl Block {
    /// The slot of the range cache for an address: by 4 KiB pages, so that arrays in use rarely share one.
    #[inline(always)]
    pub fn range(&mut self, address: usize) -> &mut Range {
        &mut self.ranges[(address >> 12 ^ address >> 15) % RANGES]
    }
}

/// Room for a block of any size.
pub struct Arena {
    pub block: Block,
    pub warps: Vec<Warp>,
    pub lanes: Vec<Lane>,
    pub threads: Vec<Option<Thread>>,
}

thread_local! {
    static IDLE: Cell<Option<Box<Arena>>> = const { Cell::new(None) };
}

impl Arena {
    /// This OS thread's arena, made ready for a launch. Give it back with [`Arena::give_back`].
    pub fn take(kernel: &'static str, config: LaunchConfig, arguments: &Arguments, profiled: bool) -> Box<Self> {
        let mut arena = IDLE.take().unwrap_or_else(|| {
            Box::new(Self {
                block: Block {
                    kernel,
                    index: [0; 3],
                    number: 0,
                    config,
                    shared: SharedMemory::new(),
                    arguments,
                    global: GlobalMemory::new(),
                    ranges: [Range::default(); RANGES],
                    or_gathered: false,
                    or_result: false,
                    stats: Stats::default(),
                    counter: None,
                    violation: None,
                },
                warps: Vec::new(),
                lanes: Vec::new(),
                threads: Vec::new(),
            })
        });
        arena.block.kernel = kernel;
        arena.block.config = config;
        arena.block.arguments = arguments;
        arena.block.ranges = [Range::default(); RANGES];
        arena.block.stats = Stats::default();
        arena.block.counter = profiled.then(Counter::default);
        arena.block.violation = None;
        arena
    }

    /// Keeps the arena for the next launch on this OS thread.
    pub fn give_back(mut self: Box<Self>) {
        self.block.arguments = std::ptr::null();
        IDLE.set(Some(self));
    }

    /// Makes lanes and warps as they are at the start of a block.
    #[track_caller]
    pub fn start_block(&mut self, number: u64) {
        let [grid_x, grid_y, _] = self.block.config.grid;
        let [block_x, block_y, block_z] = self.block.config.block;
        self.block.index = [number % grid_x, number / grid_x % grid_y, number / (grid_x * grid_y)].map(|i| i as u32);
        self.block.number = number;
        self.block.or_gathered = false;
        self.block.shared.start_block(self.block.config.shared_bytes);
        self.block.global.start_block();
        let threads = (block_x * block_y * block_z) as usize;
        let site = Location::caller();
        self.warps.truncate(threads.div_ceil(LANES));
        self.warps.resize_with(threads.div_ceil(LANES), || Warp {
            exchange: [[0; LANES]; 2],
            wide: Box::new([[[0; WIDE]; LANES]; 2]),
            parity: 0,
            pass: 0,
            arrived: 0,
            operation: Operation::Spin,
            mask: 0,
            site,
            mixed: false,
            shared_result: (0, 0, 0),
            product: Box::new(Product { pass: 0, a: [[0.0; 16]; 16], b: [[0.0; 16]; 8] }),
            chunks: None,
            existing: 0,
            exited: 0,
            runnable: 0,
            parked: false,
            spinning_since: None,
            number: 0,
            clock: WarpClock::new(),
        });
        for (number, warp) in self.warps.iter_mut().enumerate() {
            let count = (threads - number * LANES).min(LANES);
            warp.existing = u32::MAX >> (LANES - count);
            warp.runnable = warp.existing;
            warp.exited = 0;
            warp.parked = false;
            warp.spinning_since = None;
            warp.number = number as u32;
            warp.clock = WarpClock::new();
        }
        let block: *mut Block = &mut self.block;
        self.lanes.clear();
        self.lanes.extend((0..threads).map(|thread| {
            let number = thread as u32;
            Lane {
                yielder: std::ptr::null(),
                warp: &mut self.warps[thread / LANES],
                block,
                lane: number % LANES as u32,
                thread: number,
                index: [number % block_x, number / block_x % block_y, number / (block_x * block_y)],
                operation: Operation::Spin,
                mask: 0,
                site,
                copies: Copies::default(),
                products: Vec::new(),
            }
        }));
    }
}
