//! The indices of a kernel's own thread, barriers and fences.

use crate::{
    Site,
    emulator::{
        context::{current, meet},
        violation::Operation,
    },
};

macro_rules! indices {
    ($($name:ident = |$lane:ident| $value:expr;)*) => {$(
        #[inline(always)]
        pub fn $name() -> u32 {
            let $lane = current();
            // SAFETY: the running thread's lane and block are alive.
            unsafe { $value }
        }
    )*};
}

indices! {
    thread_idx_x = |lane| (*lane).index[0];
    thread_idx_y = |lane| (*lane).index[1];
    thread_idx_z = |lane| (*lane).index[2];
    block_idx_x = |lane| (*(*lane).block).index[0];
    block_idx_y = |lane| (*(*lane).block).index[1];
    block_idx_z = |lane| (*(*lane).block).index[2];
    block_dim_x = |lane| (*(*lane).block).config.block[0];
    block_dim_y = |lane| (*(*lane).block).config.block[1];
    block_dim_z = |lane| (*(*lane).block).config.block[2];
    grid_dim_x = |lane| (*(*lane).block).config.grid[0] as u32;
    grid_dim_y = |lane| (*(*lane).block).config.grid[1] as u32;
    grid_dim_z = |lane| (*(*lane).block).config.grid[2] as u32;
}

#[inline(always)]
pub fn sync_threads(site: Site) {
    // SAFETY: the running thread, holding no reference.
    unsafe { meet(current(), Operation::SyncThreads, u32::MAX, site) }
}

#[inline(always)]
pub fn sync_threads_or(predicate: bool, site: Site) -> bool {
    let lane = current();
    // SAFETY: the running thread, holding no reference; its block is alive.
    unsafe {
        (*(*lane).block).or_gathered |= predicate;
        meet(lane, Operation::SyncThreadsOr, u32::MAX, site);
        (*(*lane).block).or_result
    }
}

/// Threads of a block run one at a time on one OS thread; blocks are ordered by the processor.
#[inline(always)]
pub fn fence() {
    note_fence();
    std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
}

#[inline(always)]
pub fn fence_block() {
    note_fence();
    std::sync::atomic::compiler_fence(std::sync::atomic::Ordering::SeqCst);
}

/// Records a fence of this thread. Later accesses of the thread may be ordered after accesses of others before their
/// fences.
fn note_fence() {
    let lane = current();
    // SAFETY: the running thread's warp and block are alive; nothing else runs on this OS thread.
    unsafe { (*(*lane).block).global.fence((*(*lane).warp).number, (*lane).lane) }
}
