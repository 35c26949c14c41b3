//! Direct tests of each family of kernels on the emulator, over their edges: lengths around a warp and a block, ties,
//! absent rows.
//!
//! The library chooses kernels by the shape of a search, so a test through the library may never launch the kernel in
//! question, or always
//! with the same arguments. The tests here launch it. They are the tests that `cargo xtask mutate` runs, so each takes
//! milliseconds. The
//! references are sorts and sums on the host, and share no code with the kernels.

mod byte_filter;
mod candidates;
mod code_scores;
mod distance;
mod encode;
mod filter;
mod graph;
mod list_rows;
mod lists;
mod pairs;
mod pq;
mod rerank;
mod rescan;
mod sample_rows;
mod select;
mod sort;
mod twins;
mod warp_select;

use cuda_std::emulator;
use cuda_std::launch::{Kernel, KernelArgs, LaunchConfig};

/// Launches `kernel` on the emulator. Panics with the violation if there is one.
///
/// # Safety
/// The kernel's own contract.
#[track_caller]
unsafe fn launch<A: KernelArgs>(kernel: &Kernel<A>, config: LaunchConfig, arguments: A) {
    // SAFETY: as the caller promises.
    if let Err(violation) = unsafe { emulator::launch(kernel, config, arguments) } {
        panic!("{violation}");
    }
}
