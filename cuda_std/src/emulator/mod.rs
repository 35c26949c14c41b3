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
//!   [`Ptr`](crate::Ptr).
//! - A shared access out of bounds or misaligned, a read of shared memory that nobody wrote, or one whose asynchronous
//!   copy was not waited for.
//! - A shared-memory race: two threads touch the same bytes, one of them writes, at least one access is not atomic, and
//!   neither a barrier nor (within a warp) a collective of both lanes stands between. CUDA itself promises this order for
//!   [`sync_warp`](crate::warp::sync_warp) only, not for a shuffle or vote; the emulator takes any collective.
//! - A race between threads of a block in global memory, by the same rules. Volatile accesses count as atomic ones there.
//! - A read by [`load_nc`](crate::global::load_nc) of global memory that the block has written.
//! - A product of a warpgroup that reads what its writer did not publish, or whose operands are written before it was waited for.
//! - A write by a plain Rust pointer (`*p = x`) to the 256 bytes behind a buffer that a `PtrMut` argument points into. It is found
//!   after the launch, so the message names the buffer, not the thread.
//! - A launch that no GPU takes: too many blocks, threads or bytes of shared memory.
//! - A panic.
//!
//! # What it does not find
//! These faults pass. The first is the one to look for in a kernel: use [`global::load`](crate::global::load) and
//! [`global::store`](crate::global::store), not `*p`.
//!
//! - **Accesses by plain Rust pointers and references** (`*p`, `p.read()`, slices), in either memory, but for the write above:
//!   out of bounds, after a buffer was freed, unaligned, in a race. Bytes behind a buffer are 0xA5, so what such a read gives is
//!   rarely plausible. AddressSanitizer finds these accesses in global memory, with their source line; see below.
//! - Races between blocks, whose order is not modelled: nothing is known of fences, flags and tickets that order them.
//! - Races between lanes of a warp that meet in a collective other than `sync_warp`: any collective counts as an order, see above.
//! - Races in global memory between two warps that have both executed a [`fence`](crate::thread::fence) since the last barrier of the
//!   block, or two lanes of a warp that have: fences and a flag may have ordered their accesses, and flags are not followed.
//! - Races in global memory between a write and an earlier read by `load_nc`: these reads are not kept. A read by `load_nc` of what
//!   another block writes.
//! - Some races of three or more accesses to a word: of several readers, and of several atomic or volatile accesses, two are kept.
//! - Races in global memory after a block has touched 16 MiB of buffers that it may write: the records start anew there.
//! - Reads of global memory that nobody wrote. ([`Buffer::new_poisoned`] makes them show in the results.)
//! - Whether the four warps of a group come to the same product, and sums of a product that are read before it was waited for.
//! - Values: the rounding inside matrix products differs from a GPU's (see [`crate::mma`]).
//! - Time, and the order of warps: it is always the same here. Registers, spills and stack frames: the assembler reports those.
//! - Calls that need `std`: they compile here and not for the GPU, where the device build names what to use instead.
//!
//! # Plain pointers under AddressSanitizer
//! With a nightly toolchain and this crate's feature `sanitizer`, a plain access behind a buffer or to a freed one ends the process with
//! a report that starts with the kernel's source line:
//!
//! ```text
//! RUSTFLAGS=-Zsanitizer=address cargo +nightly test --target x86_64-unknown-linux-gnu \
//!     -p warpann-kernels --features cuda_std/sanitizer
//! ```
//!
//! A guard page behind each buffer was tried instead and lost (November 2026). Buffers start at multiples of 256 bytes, as the driver's do,
//! so up to 255 bytes lie between the end of a buffer and the page: one element too far stays silent unless the buffer's length is a
//! multiple of 256 bytes. A fault ends the process in a signal handler, without a [`Violation`]. And a buffer of 400 bytes with a guard page
//! took 45 µs to make, fill and free, against 24 ns.
//!
//! # What collectives cost
//! [`profile()`] runs a launch as [`launch()`] does and counts how often warps executed each collective, by source line: what
//! the shuffles of a line or the votes of a loop cost, or how often a branch was taken, without a GPU.
//!
//! # Limits
//! A thread has 256 KiB of stack, behind a guard page. A device function called outside a launch panics.

mod arena;
mod arguments;
mod buffer;
mod context;
pub(crate) mod device;
mod global_memory;
mod launch;
mod padding;
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
