//! The CPU back end: runs kernels thread by thread and checks every access and every collective.
//!
//! Each thread of a block is a coroutine. 32 of them are a warp and run in turn from one collective to the next. The
//! launching thread and helper threads of the emulator run the blocks, together as many threads as rayon's pool has; a
//! block stays on one thread. Nothing runs in rayon's pool (`workers`). Global memory is a set of [`Buffer`]s; each
//! block has its own shared memory.
//!
//! # What stops a launch
//! Each fault ends the launch with a [`Violation`]: kernel, block, thread, source line, and a [`ViolationKind`].
//!
//! - A collective that not all lanes of its mask reach, or that they reach with different operations or masks; a
//!   barrier that not all threads of the block reach. Every deadlock is one of these.
//! - A loop without end. A loop that waits in vain for another thread's volatile or atomic store is stopped after ten
//!   seconds. A loop of collectives, or of accesses to memory that the launch may write, is stopped when its block has
//!   run for two minutes ([`stop_after`]); after ten seconds a line on standard error says where it is. A loop that
//!   does neither is not stopped.
//! - An argument that is longer than the rest of its buffer, or that lies in no buffer.
//! - A global access outside the launch's arguments (in the same buffer too), or misaligned. A write through an
//!   argument that is a [`Ptr`](crate::Ptr).
//! - A shared access out of bounds or misaligned; a read of shared memory that no thread wrote, or that an asynchronous
//!   copy writes for which no thread has waited.
//! - A shared-memory race: two threads access the same bytes, one of them writes, at least one access is not atomic,
//!   and there is neither a barrier nor (within a warp) a collective of both lanes between the accesses. CUDA itself
//!   promises this order for [`sync_warp`](crate::warp::sync_warp) only, not for a shuffle or vote; the emulator
//!   accepts any collective.
//! - A race between threads of a block in global memory, by the same rules. Volatile accesses count as atomic there.
//! - A read by [`load_nc`](crate::global::load_nc) of global memory that the block has written.
//! - A product of a warpgroup that reads bytes that their writer did not publish, or whose operands are written before
//!   the wait for it.
//! - A write through a plain Rust pointer (`*p = x`) to the 257 to 512 bytes of padding behind a buffer that a `PtrMut`
//!   argument points into. It is found after the launch, so the message names the buffer, not the thread.
//! - A launch that no GPU takes: too many blocks, threads or bytes of shared memory.
//! - A panic.
//!
//! # What it does not find
//! The emulator does not find the following faults. The first is the most likely one in a kernel: use
//! [`global::load`](crate::global::load) and [`global::store`](crate::global::store), not `*p`.
//!
//! - **Accesses through plain Rust pointers and references** (`*p`, `p.read()`, slices), in either memory, except for
//!   the write above: out of bounds, after a buffer was freed, unaligned, in a race. Bytes behind a buffer are 0xA5, so
//!   such a read rarely gives a plausible value. AddressSanitizer finds these accesses in global memory, with their
//!   source line; see below.
//! - Races between blocks. Their order is not modelled: fences, flags and tickets that order blocks are not followed.
//! - Races between lanes of a warp that meet in a collective other than `sync_warp`: any collective counts as an order,
//!   see above.
//! - Races in global memory between two warps that have both executed a [`fence`](crate::thread::fence) since the last
//!   barrier of the block, or between two such lanes of a warp: fences and a flag may have ordered their accesses, and
//!   flags are not followed.
//! - Races in global memory between a write and an earlier read by `load_nc`, because these reads are not recorded. A
//!   read by `load_nc` of memory that another block writes.
//! - Some races of three or more accesses to a word: of several readers, and of several atomic or volatile accesses,
//!   two are recorded.
//! - Races in global memory with accesses from before the block had touched 16 MiB of buffers that it may write: the
//!   records are dropped then.
//! - Reads of global memory that no thread wrote. ([`Buffer::new_poisoned`] makes them visible in the results.)
//! - Products that not all four warps of a group start, and sums of a product that are read before the wait for it.
//! - Values: the rounding inside matrix products differs from a GPU's (see [`crate::mma`]).
//! - Time, and faults that depend on the order of warps, which is always the same here. Registers, spills and stack
//!   frames: the assembler reports those.
//! - Calls that need `std`: they compile here and not for the GPU, where the error of the device build names a
//!   replacement.
//!
//! # Plain pointers under AddressSanitizer
//! With a nightly toolchain and this crate's feature `sanitizer`, a plain access behind a buffer or to a freed buffer
//! ends the process with a report that starts with the kernel's source line:
//!
//! ```text
//! RUSTFLAGS=-Zsanitizer=address cargo +nightly test --target x86_64-unknown-linux-gnu \
//!     -p warpann-kernels --features cuda_std/sanitizer
//! ```
//!
//! A guard page behind each buffer was tried instead and lost (November 2026). Buffers start at multiples of 256 bytes,
//! as the driver's do, so up to 255 bytes lie between the end of a buffer and the page: an access to the next element
//! is found only if the buffer's length is a multiple of 256 bytes. A fault ends the process in a signal handler,
//! without a [`Violation`]. And a buffer of 400 bytes with a guard page took 45 µs to allocate, fill and free, against
//! 24 ns.
//!
//! # What collectives cost
//! [`profile()`] runs a launch as [`launch()`] does and counts how often warps execute each collective, by source line.
//! The counts show the cost of the shuffles of a line or of the votes of a loop, and how often a branch is taken,
//! without a GPU.
//!
//! # Limits
//! Without the feature `emulator`, which is on by default, `#[kernel]` compiles no kernel for the emulator, and each
//! launch is a [`Violation`]. A thread has 256 KiB of stack, behind a guard page. A device function called outside a
//! launch panics.

mod arena;
mod arguments;
mod block;
mod buffer;
mod clock;
mod context;
mod counts;
pub(crate) mod device;
mod global_memory;
mod launch;
mod padding;
mod profile;
mod records;
#[cfg(feature = "kernels-by-name")]
mod registered;
mod registry;
mod schedule;
mod shared_memory;
mod stack;
mod violation;
mod workers;

/// Whether this build has the feature `emulator`: `#[kernel]` then compiles kernels for the emulator.
pub const COMPILED: bool = cfg!(feature = "emulator");

pub use buffer::Buffer;
pub use context::stop_after;
pub use counts::{SiteCount, Stats};
pub use launch::launch;
pub use profile::{Profile, profile};
#[cfg(feature = "kernels-by-name")]
pub use registered::{AnyKernel, BoundLaunch, Registered, kernels};
pub use violation::{Access, Instead, Nearest, Operation, SourceLocation, Violation, ViolationKind};
