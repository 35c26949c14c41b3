//! Indices of a thread in its block and grid, and synchronisation of the threads of a block.

use crate::imp;
use core::panic::Location;

macro_rules! index {
    ($($(#[$doc:meta])* $name:ident;)*) => {$(
        $(#[$doc])*
        #[inline(always)]
        pub fn $name() -> u32 {
            imp::thread::$name()
        }
    )*};
}

index! {
    /// Index of this thread in its block, x (`%tid.x`).
    thread_idx_x;
    /// Index of this thread in its block, y (`%tid.y`).
    thread_idx_y;
    /// Index of this thread in its block, z (`%tid.z`).
    thread_idx_z;
    /// Index of this block in the grid, x (`%ctaid.x`).
    block_idx_x;
    /// Index of this block in the grid, y (`%ctaid.y`).
    block_idx_y;
    /// Index of this block in the grid, z (`%ctaid.z`).
    block_idx_z;
    /// Threads of a block in x (`%ntid.x`).
    block_dim_x;
    /// Threads of a block in y (`%ntid.y`).
    block_dim_y;
    /// Threads of a block in z (`%ntid.z`).
    block_dim_z;
    /// Blocks of the grid in x (`%nctaid.x`).
    grid_dim_x;
    /// Blocks of the grid in y (`%nctaid.y`).
    grid_dim_y;
    /// Blocks of the grid in z (`%nctaid.z`).
    grid_dim_z;
}

/// Waits until every thread of the block has arrived. What each thread wrote before is then visible to all (`bar.sync
/// 0`).
///
/// Every thread of the block must arrive, and the 32 threads of a warp at the same call. It is a fault if a thread has
/// returned or waits elsewhere.
#[track_caller]
#[inline(always)]
pub fn sync_threads() {
    imp::thread::sync_threads(Location::caller());
}

/// Does what [`sync_threads`] does, and returns to every thread whether any thread passed `true` (`barrier.red.or`).
#[track_caller]
#[inline(always)]
pub fn sync_threads_or(predicate: bool) -> bool {
    imp::thread::sync_threads_or(predicate, Location::caller())
}

/// Orders this thread's memory accesses before the call and after it for all threads of the device
/// (`fence.acq_rel.gpu`).
#[inline(always)]
pub fn fence() {
    imp::thread::fence();
}

/// Orders this thread's memory accesses before the call and after it for the threads of its block
/// (`fence.acq_rel.cta`).
#[inline(always)]
pub fn fence_block() {
    imp::thread::fence_block();
}
