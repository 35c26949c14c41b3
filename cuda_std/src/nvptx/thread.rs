//! Reads of special registers, barriers and fences.

use crate::Site;
use core::arch::{asm, nvptx};

unsafe extern "C" {
    #[link_name = "llvm.nvvm.barrier.cta.red.or.aligned.all"]
    fn barrier_or(barrier: u32, predicate: bool) -> bool;
}

macro_rules! registers {
    ($($name:ident = $intrinsic:ident;)*) => {$(
        #[inline(always)]
        pub fn $name() -> u32 {
            // SAFETY: reads a special register.
            unsafe { nvptx::$intrinsic() as u32 }
        }
    )*};
}

registers! {
    thread_idx_x = _thread_idx_x;
    thread_idx_y = _thread_idx_y;
    thread_idx_z = _thread_idx_z;
    block_idx_x = _block_idx_x;
    block_idx_y = _block_idx_y;
    block_idx_z = _block_idx_z;
    block_dim_x = _block_dim_x;
    block_dim_y = _block_dim_y;
    block_dim_z = _block_dim_z;
    grid_dim_x = _grid_dim_x;
    grid_dim_y = _grid_dim_y;
    grid_dim_z = _grid_dim_z;
}

#[inline(always)]
pub fn sync_threads(_: Site) {
    // SAFETY: the caller ensures that all threads of the block arrive; the emulator checks it.
    unsafe { nvptx::_syncthreads() }
}

#[inline(always)]
pub fn sync_threads_or(predicate: bool, _: Site) -> bool {
    // SAFETY: as for sync_threads.
    unsafe { barrier_or(0, predicate) }
}

#[inline(always)]
pub fn fence() {
    // SAFETY: orders memory accesses and performs none.
    unsafe { asm!("fence.acq_rel.gpu;", options(nostack)) }
}

#[inline(always)]
pub fn fence_block() {
    // SAFETY: orders memory accesses and performs none.
    unsafe { asm!("fence.acq_rel.cta;", options(nostack)) }
}
