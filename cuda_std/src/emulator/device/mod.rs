//! The device functions, as a running thread of the emulator performs them. All inline into the kernel: a collective
//! then switches stacks within the kernel's own code, which saves the processor two mispredicted returns (27 to 7 ns).

pub mod async_copy;
pub mod atomic;
pub mod cluster;
pub mod global;
pub mod math;
pub mod mma;
pub mod shared;
pub mod thread;
pub mod warp;
pub mod wgmma;
