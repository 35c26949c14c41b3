//! Every primitive on the emulator against a plain sequential model, for all lanes.

mod arguments;
mod async_copy;
mod atomics;
mod butterflies;
mod elements;
mod groups;
mod kernels;
mod masks;
mod math;
mod matrices;
mod memory;
mod profile;
mod shuffles;
mod votes;
mod warpgroups;

use cuda_std::launch::LaunchConfig;

/// One block of `threads` threads with `shared_bytes` bytes of dynamic shared memory.
pub fn one_block(threads: u32, shared_bytes: u32) -> LaunchConfig {
    LaunchConfig::linear(1, threads).with_shared(shared_bytes)
}

/// One value for each lane of a warp.
pub type Lanes<T> = [T; 32];

/// The values `f(lane)` of all lanes.
pub fn lanes<T>(f: impl Fn(usize) -> T) -> Lanes<T> {
    std::array::from_fn(f)
}
