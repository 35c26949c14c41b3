//! The memory of a running block. An OS thread takes an arena for a launch and returns it for the next launch of any OS
//! thread.

use super::{
    arguments::Arguments,
    block::{Block, Cluster},
    clock::{LANES, WarpClock},
    context::{Copies, GroupProducts, Lane, WIDE, Warp},
    global_memory::GlobalMemory,
    shared_memory::SharedMemory,
    stack::{ColouredStack, Stacks},
    violation::Operation,
};
use crate::launch::LaunchConfig;
use corosensei::Coroutine;
use std::{
    panic::Location,
    sync::{Mutex, PoisonError},
};

/// The coroutine of an emulated thread.
pub type Thread = Coroutine<(), (), (), ColouredStack>;

/// The memory for a block of any size, with its warps, lanes, coroutines and stacks.
pub struct Arena {
    pub block: Block,
    pub warps: Vec<Warp>,
    pub lanes: Vec<Lane>,
    pub threads: Vec<Option<Thread>>,
    pub stacks: Stacks,
    /// Whether all threads wait at the barrier of the cluster.
    pub at_cluster_barrier: bool,
}

/// The memory of an arena that is not in use.
struct Kept {
    shared: SharedMemory,
    global: GlobalMemory,
    warps: Vec<Warp>,
}

/// Memory that no launch uses. There is at most one entry for each OS thread that ran blocks at the same time.
static IDLE: Mutex<Vec<Kept>> = Mutex::new(Vec::new());

impl Arena {
    /// An arena for a launch, with the memory of an earlier launch if there is any. Return it with
    /// [`Arena::give_back`].
    pub fn take(kernel: &'static str, config: LaunchConfig, arguments: &Arguments, profiled: bool) -> Self {
        let idle = IDLE.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let Kept { shared, global, warps } = idle.unwrap_or_else(|| Kept {
            shared: SharedMemory::new(),
            global: GlobalMemory::new(),
            warps: Vec::new(),
        });
        Self {
            block: Block::new(kernel, config, arguments, (shared, global), profiled),
            warps,
            lanes: Vec::new(),
            threads: Vec::new(),
            stacks: Stacks::take(config.block.iter().product::<u32>() as usize),
            at_cluster_barrier: false,
        }
    }

    /// Keeps the arena's memory for the next launch.
    pub fn give_back(self) {
        let kept = Kept { shared: self.block.shared, global: self.block.global, warps: self.warps };
        IDLE.lock().unwrap_or_else(PoisonError::into_inner).push(kept);
    }

    /// Sets lanes and warps to their state at the start of block `number`.
    #[track_caller]
    pub fn start_block(&mut self, number: u64) {
        let [grid_x, grid_y, _] = self.block.config.grid;
        let [block_x, block_y, block_z] = self.block.config.block;
        self.block.index = [number % grid_x, number / grid_x % grid_y, number / (grid_x * grid_y)].map(|i| i as u32);
        self.block.number = number;
        self.block.or_gathered = false;
        self.block.first_look = None;
        let rank = (number % u64::from(self.block.config.cluster)) as u32;
        self.block.cluster = Cluster { rank, ..Cluster::default() };
        self.at_cluster_barrier = false;
        self.block.shared.start_block(self.block.config.shared_bytes, rank);
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
            products: Box::default(),
            chunks: GroupProducts::default(),
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
                words: 1,
                copies: Copies::default(),
                products: Vec::new(),
                accesses: 0,
            }
        }));
    }
}
