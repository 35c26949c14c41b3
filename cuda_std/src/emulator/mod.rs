//! The CPU back end: runs kernels thread by thread and checks what they do.
//!
//! Each thread of a block is a coroutine; 32 of them are a warp and run in turn from one collective to the next. Blocks
//! are spread over the thread that launches and threads of the emulator, together as many as rayon's pool has; a block stays on one. Nothing
//! runs in that pool (`workers`). Global memory is a set of [`Buffer`]s; shared memory is one store a block.
//!
//! # What stops a launch
//! Each fault ends the launch with a [`Violation`]: kernel, block, thread, source line, and a [`ViolationKind`].
//!
//! - A collective that not all lanes of its mask reach, or reach with different operations or masks; a barrier that not
//!   all threads of the block reach. A deadlock is one of these, so a launch ends (a loop that waits in vain for another
//!   thread's volatile or atomic store is stopped after ten seconds; a loop that does nothing is not).
//! - An argument that is longer than the rest of its buffer, or that lies in no buffer.
//! - A global access outside the launch's arguments (in the same buffer too), or misaligned. A write by an argument that is a
//!   [`Ptr`](crate::Ptr). Accesses by plain Rust pointers are not seen.
//! - A shared access out of bounds or misaligned, a read of shared memory that nobody wrote, or one whose asynchronous
//!   copy was not waited for.
//! - A shared-memory race: two threads touch the same bytes, one of them writes, at least one access is not atomic, and
//!   neither a barrier nor (within a warp) a collective of both lanes stands between. CUDA itself promises this order for
//!   [`sync_warp`](crate::warp::sync_warp) only, not for a shuffle or vote; the emulator takes any collective.
//! - A race between threads of a block in global memory, by the same rules. Volatile accesses count as atomic ones there.
//! - A read by [`load_nc`](crate::global::load_nc) of global memory that the block has written.
//! - A product of a warpgroup that reads what its writer did not publish, or whose operands are written before it was waited for.
//! - A panic.
//!
//! # What collectives cost
//! [`profile()`] runs a launch as [`launch()`] does and counts how often warps executed each collective, by source line: what
//! the shuffles of a line or the votes of a loop cost, or how often a branch was taken, without a GPU.
//!
//! # Limits
//! A thread has 256 KiB of stack, behind a guard page. A device function called outside a launch panics.
//!
//! # What it does not model
//! Time, the order of warps (always the same here), rounding inside matrix products (see [`crate::mma`]), whether the four warps of a
//! group come to the same product, and sums that are read before it was waited for.
//!
//! # Races that it does not find
//! - Between blocks, whose order it does not model: nothing is known of fences, flags and tickets that order them.
//! - By plain Rust pointers (`*p`), in either memory.
//! - Between lanes of a warp that meet in a collective other than `sync_warp`: it takes any collective for an order, see above.
//! - In global memory between two warps that have both executed a [`fence`](crate::thread::fence) since the last barrier of the block, or two
//!   lanes of a warp that have: fences and a flag may have ordered their accesses, and it does not follow flags.
//! - In global memory between a write and an earlier read by `load_nc`: these reads are not kept. A read by `load_nc` of what another
//!   block writes.
//! - Some of three or more accesses to a word: of several readers, and of several atomic or volatile accesses, it keeps two.
//! - In global memory after a block has touched 16 MiB of memory that it may write: it forgets what it knew, and goes on.

mod arena;
mod arguments;
mod buffer;
mod context;
pub(crate) mod device;
mod global_memory;
mod launch;
mod profile;
mod records;
mod registered;
mod registry;
mod schedule;
mod shared_memory;
mod stack;
mod violation;
mod workers;

pub use buffer::Buffer;
pub use launch::{Stats, launch};
pub use profile::{Profile, SiteCount, profile};
pub use registered::{AnyKernel, Registered, kernels};
pub use violation::{Access, Instead, Nearest, Operation, SourceLocation, Violation, ViolationKind};
