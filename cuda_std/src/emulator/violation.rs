//! The faults that stop a launch.

use std::{fmt, panic::Location};

/// A collective operation of lanes or threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
#[non_exhaustive]
#[allow(missing_docs, reason = "each is named after the function it stands for")]
pub enum Operation {
    SyncThreads,
    SyncThreadsOr,
    SyncCluster,
    SyncWarp,
    ShuffleXor,
    ShuffleUp,
    ShuffleDown,
    ShuffleIdx,
    Any,
    All,
    Ballot,
    MatchAny,
    ReduceAdd,
    ReduceMin,
    ReduceMax,
    ReduceAnd,
    ReduceOr,
    ReduceXor,
    LdmatrixX2,
    LdmatrixX4,
    LdmatrixX4Trans,
    MmaF16,
    MmaBf16,
    MmaTf32,
    MmaS8,
    MmaU8,
    MmaB1,
    StartF16,
    StartS8,
    StartU8,
    StartB1,
    WaitForProducts,
    /// Waiting in a loop for what another thread stores.
    Spin,
}

impl Operation {
    /// Whether all threads of the block take part.
    pub(crate) const fn is_barrier(self) -> bool {
        matches!(self, Self::SyncThreads | Self::SyncThreadsOr | Self::SyncCluster)
    }

    /// Whether the PTX instruction is `.aligned`: the lanes must be at the same instruction, not just the same
    /// operation.
    pub(crate) const fn is_aligned(self) -> bool {
        matches!(
            self,
            Self::SyncThreads
                | Self::SyncThreadsOr
                | Self::LdmatrixX2
                | Self::LdmatrixX4
                | Self::LdmatrixX4Trans
                | Self::MmaF16
                | Self::MmaBf16
                | Self::MmaTf32
                | Self::MmaS8
                | Self::MmaU8
                | Self::MmaB1
                | Self::StartF16
                | Self::StartS8
                | Self::StartU8
                | Self::StartB1
                | Self::WaitForProducts
        )
    }

    /// Name of the function in this crate.
    pub const fn name(self) -> &'static str {
        match self {
            Self::SyncThreads => "sync_threads",
            Self::SyncThreadsOr => "sync_threads_or",
            Self::SyncCluster => "cluster::sync",
            Self::SyncWarp => "sync_warp",
            Self::ShuffleXor => "shuffle_xor",
            Self::ShuffleUp => "shuffle_up",
            Self::ShuffleDown => "shuffle_down",
            Self::ShuffleIdx => "shuffle_idx",
            Self::Any => "any",
            Self::All => "all",
            Self::Ballot => "ballot",
            Self::MatchAny => "match_any",
            Self::ReduceAdd => "reduce_add",
            Self::ReduceMin => "reduce_min",
            Self::ReduceMax => "reduce_max",
            Self::ReduceAnd => "reduce_and",
            Self::ReduceOr => "reduce_or",
            Self::ReduceXor => "reduce_xor",
            Self::LdmatrixX2 => "ldmatrix_x2",
            Self::LdmatrixX4 => "ldmatrix_x4",
            Self::LdmatrixX4Trans => "ldmatrix_x4_trans",
            Self::MmaF16 => "mma_m16n8k16_f16",
            Self::MmaBf16 => "mma_m16n8k16_bf16",
            Self::MmaTf32 => "mma_m16n8k8_tf32",
            Self::MmaS8 => "mma_m16n8k32_s8",
            Self::MmaU8 => "mma_m16n8k32_u8",
            Self::MmaB1 => "mma_m16n8k256_b1",
            Self::StartF16 => "wgmma::start_f16",
            Self::StartS8 => "wgmma::start_s8",
            Self::StartU8 => "wgmma::start_u8",
            Self::StartB1 => "wgmma::start_b1",
            Self::WaitForProducts => "wgmma::wait",
            Self::Spin => "a waiting loop",
        }
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A fault in a kernel, and where.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("kernel {kernel}, block {block:?}, thread {thread:?}, at {location}: {kind}")]
pub struct Violation {
    /// Name of the kernel that was launched.
    pub kernel: &'static str,
    /// Block in the grid: x, y, z.
    pub block: [u32; 3],
    /// Thread in the block: x, y, z.
    pub thread: [u32; 3],
    /// The faulty call in the kernel's source.
    pub location: SourceLocation,
    /// The fault, with the figures that its message names.
    pub kind: Box<ViolationKind>,
}

/// A place in source code.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceLocation {
    /// File, as the compiler was given it.
    pub file: String,
    /// Line, from 1.
    pub line: u32,
    /// Column, from 1.
    pub column: u32,
}

impl From<&Location<'_>> for SourceLocation {
    fn from(location: &Location<'_>) -> Self {
        Self { file: location.file().to_owned(), line: location.line(), column: location.column() }
    }
}

impl fmt::Display for SourceLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.file, self.line, self.column)
    }
}

/// The state of a lane or thread that does not come to a collective or barrier.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Instead {
    /// The block is too small to have it.
    #[error("does not exist")]
    DoesNotExist,
    /// The kernel has returned for it.
    #[error("has returned")]
    HasReturned,
    /// The lane waits in another collective or barrier.
    #[error("waits in {operation} with mask {mask:#010x} at {location}")]
    WaitsElsewhere {
        /// Collective or barrier in which the lane waits.
        operation: Operation,
        /// Mask of that collective, a bit a lane.
        mask: u32,
        /// Call in the kernel's source at which the lane waits.
        location: SourceLocation,
    },
}

/// Kinds of fault. Lanes are numbered 0..32 in their warp, threads linearly in their block (x fastest).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ViolationKind {
    /// A launch that no GPU takes, or that the kernel's bounds forbid.
    #[error("launch refused: {what} is {asked}, the limit is {limit}")]
    LaunchLimit {
        /// Quantity that is too large or too small, with its unit.
        what: &'static str,
        /// Value that the launch asked for.
        asked: u64,
        /// Largest allowed (1 where zero was asked: smallest).
        limit: u64,
    },
    /// The program has no kernels for the emulator.
    #[error("launch refused: the feature 'emulator' of cuda_std is off in this build")]
    NotCompiled,
    /// A lane called a collective with a mask that does not name it.
    #[error("{operation} with mask {mask:#010x}, which does not name lane {lane}")]
    LaneNotInMask {
        /// Collective that the lane called.
        operation: Operation,
        /// Mask of the collective, a bit a lane.
        mask: u32,
        /// The lane that called.
        lane: u32,
    },
    /// A lane reads by shuffle what a lane outside the mask holds.
    #[error("{operation} with mask {mask:#010x} reads from lane {source_lane}, which the mask does not name")]
    ShuffleFromOutside {
        /// Collective that the lane called.
        operation: Operation,
        /// Mask of the collective, a bit a lane.
        mask: u32,
        /// The lane read from.
        source_lane: u32,
    },
    /// A lane that a collective's mask names does not come.
    #[error("{operation} with mask {mask:#010x} was reached by lanes {arrived:#010x} only; lane {missing} {instead}")]
    CollectiveIncomplete {
        /// Collective that the lane called.
        operation: Operation,
        /// Mask of the collective, a bit a lane.
        mask: u32,
        /// Lanes that came, as a bit set.
        arrived: u32,
        /// The first lane that did not.
        missing: u32,
        /// The state of that lane.
        instead: Instead,
    },
    /// A thread of the block does not come to a barrier.
    #[error("{operation} was not reached by all threads of the block: thread {missing} {instead}")]
    BarrierIncomplete {
        /// Barrier at which the other threads of the block wait.
        operation: Operation,
        /// The first thread that did not come.
        missing: u32,
        /// The state of that thread.
        instead: Instead,
    },
    /// A loop waits for a store that does not come.
    #[error("waited ten seconds for another thread's store")]
    Livelock,
    /// A block that does not end in the time of [`stop_after`](super::stop_after).
    #[error(
        "the block has not ended after {milliseconds} ms; a loop without end? (`emulator::stop_after` allows more)"
    )]
    Endless {
        /// Longest time that a block may take, in milliseconds.
        milliseconds: u64,
    },
    /// An argument that is longer than the rest of its buffer.
    #[error("launch refused: `{parameter}` has {bytes} bytes, its buffer has {available} from there on")]
    ArgumentTooLong {
        /// Name of the kernel's parameter to which the argument belongs.
        parameter: &'static str,
        /// Bytes of the argument.
        bytes: usize,
        /// Bytes from the argument's address to the end of the buffer.
        available: usize,
    },
    /// An argument whose address lies in no buffer.
    #[error("launch refused: the {bytes} bytes of `{parameter}` at {address:#x} are not in global memory")]
    ArgumentNotGlobal {
        /// Name of the kernel's parameter to which the argument belongs.
        parameter: &'static str,
        /// Global address of the first byte of the argument.
        address: usize,
        /// Bytes of the argument.
        bytes: usize,
    },
    /// An argument in a buffer that was dropped.
    #[error("launch refused: the {bytes} bytes of `{parameter}` at {address:#x} are in a buffer that was freed")]
    ArgumentFreed {
        /// Name of the kernel's parameter to which the argument belongs.
        parameter: &'static str,
        /// Global address of the first byte of the argument.
        address: usize,
        /// Bytes of the argument.
        bytes: usize,
    },
    /// A global access outside the memory of the launch's arguments.
    #[error(
        "{access} of {bytes} bytes at {address:#x}, outside the launch's arguments{}",
        nearest.map_or(String::new(), |nearest| format!(": {nearest}"))
    )]
    GlobalOutOfBounds {
        /// The kind of the access.
        access: Access,
        /// Global address of the first byte of the access.
        address: usize,
        /// Size of the access.
        bytes: usize,
        /// The argument that is nearest, unless all are more than 1 GiB away.
        nearest: Option<Nearest>,
    },
    /// A write to memory that the launch's arguments allow to read only.
    #[error(
        "{access} at {address:#x}, which the kernel may only read{}",
        holder.map_or(String::new(), |holder| format!(": {holder}"))
    )]
    ReadOnlyArgument {
        /// The kind of the access.
        access: Access,
        /// First byte that may not be written.
        address: usize,
        /// The argument, a `Ptr`, that has the byte.
        holder: Option<Nearest>,
    },
    /// After the launch, memory behind a buffer was not as before: a plain Rust pointer (`*p = x`) wrote there, which
    /// is seen only afterwards. Block and thread are zeros, and the place is that of the launch.
    #[error(
        "byte {address:#x}, {past} bytes behind the end of a buffer of {len} bytes, was overwritten by a plain pointer \
         (`*p = ..`) of some thread; global::store would have stopped there"
    )]
    PaddingOverwritten {
        /// The first such byte.
        address: usize,
        /// Bytes from the buffer's end.
        past: usize,
        /// Bytes of the buffer.
        len: usize,
    },
    /// A global access to a buffer that was dropped.
    #[error("{bytes} bytes at {address:#x} are in a buffer that was freed")]
    GlobalFreed {
        /// Global address of the first byte of the access.
        address: usize,
        /// Size of the access.
        bytes: usize,
    },
    /// A global access at an address that its type cannot have.
    #[error("global address {address:#x} is not a multiple of {alignment}")]
    GlobalMisaligned {
        /// Global address of the first byte of the access.
        address: usize,
        /// Required alignment of the address in bytes.
        alignment: usize,
    },
    /// A shared access outside the block's arrays and dynamic memory.
    #[error(
        "{bytes} bytes at shared address {address:#x} are outside shared memory (dynamic: {dynamic} bytes from {base:#x})"
    )]
    SharedOutOfBounds {
        /// Shared address of the first byte of the access.
        address: u32,
        /// Size of the access.
        bytes: u32,
        /// Start of the dynamic part.
        base: u32,
        /// Bytes of the dynamic part.
        dynamic: u32,
    },
    /// A shared access at an address that is not a multiple of its size.
    #[error("shared address {address:#x} is not a multiple of {alignment}")]
    SharedMisaligned {
        /// Shared address of the first byte of the access.
        address: u32,
        /// Required alignment of the address in bytes.
        alignment: u32,
    },
    /// A read of shared memory that no thread of the block has written.
    #[error("shared byte {address:#x} is read before any thread wrote it")]
    SharedUninitialised {
        /// Shared address of the byte.
        address: u32,
    },
    /// An access to the destination of an asynchronous copy that was not waited for.
    #[error(
        "shared byte {address:#x} is the destination of an unfinished asynchronous copy, started by thread {thread} at {started}"
    )]
    AsyncCopyUnfinished {
        /// Shared address of the byte.
        address: u32,
        /// The thread that started the copy.
        thread: u32,
        /// Call in the kernel's source that started the copy.
        started: SourceLocation,
    },
    /// A product of a warpgroup that reads what its writer did not publish.
    #[error(
        "shared byte {address:#x}, written by thread {thread} at {written}, is not published to products of warpgroups"
    )]
    NotPublished {
        /// Shared address of the byte.
        address: u32,
        /// The thread that wrote the byte.
        thread: u32,
        /// Call in the kernel's source that wrote the byte.
        written: SourceLocation,
    },
    /// A product of a warpgroup in a block that does not have all its threads.
    #[error("a product of a warpgroup in a block of {threads} threads, which is no multiple of 128")]
    NoWarpgroup {
        /// Threads of the block.
        threads: u32,
    },
    /// An asynchronous copy with more bytes of source than of destination.
    #[error("an asynchronous copy of {limit} bytes reads {asked}")]
    AsyncCopySize {
        /// Bytes that the copy reads.
        asked: u32,
        /// Bytes that the copy writes.
        limit: u32,
    },
    /// Two unordered accesses of which one writes.
    #[error(
        "race on shared byte {address:#x}: this {access} and the {other_access} by thread {other_thread} at {other} are not ordered"
    )]
    SharedRace {
        /// Shared address of the byte.
        address: u32,
        /// The kind of the access at the violation's place.
        access: Access,
        /// The kind of the earlier access.
        other_access: Access,
        /// A thread that made the earlier access, in its block.
        other_thread: u32,
        /// Call in the kernel's source that made the earlier access.
        other: SourceLocation,
    },
    /// A block of a cluster has returned, and others wait at the barrier of the cluster.
    #[error("cluster::sync was not reached by all blocks of the cluster: block {missing} of it has returned")]
    ClusterIncomplete {
        /// Rank of the first such block in the cluster.
        missing: u32,
    },
    /// A pointer into the shared memory of a block that the cluster does not have.
    #[error("block {rank} of a cluster of {blocks}")]
    NoSuchPeer {
        /// Rank that the kernel gave.
        rank: u32,
        /// Blocks of the cluster.
        blocks: u32,
    },
    /// An access to the shared memory of a peer before the first barrier of the cluster: the peer may not have started.
    #[error("{access} of shared memory of block {rank} of the cluster before the first cluster::sync")]
    PeerNotStarted {
        /// The kind of the access.
        access: Access,
        /// Rank of the peer in the cluster.
        rank: u32,
    },
    /// An access to the shared memory of a peer that no barrier of the cluster keeps from returning before.
    #[error("{access} of shared memory of block {rank} of the cluster, which returns without a later cluster::sync")]
    PeerExited {
        /// The kind of the access.
        access: Access,
        /// Rank of the peer in the cluster.
        rank: u32,
    },
    /// Two accesses of different blocks of a cluster to shared memory of one of them, of which one writes, without a
    /// barrier of the cluster between them.
    #[error(
        "race on shared byte {address:#x} of block {owner} of the cluster: this {access} and the {other_access} by \
         thread {other_thread} of block {other_block} at {other} are not ordered by cluster::sync"
    )]
    PeerRace {
        /// Shared address of the byte in its block.
        address: u32,
        /// Rank of the block whose memory it is.
        owner: u32,
        /// The kind of the access at the violation's place.
        access: Access,
        /// The kind of the earlier access.
        other_access: Access,
        /// Rank of the block that made the earlier access.
        other_block: u32,
        /// A thread that made the earlier access, in its block.
        other_thread: u32,
        /// Call in the kernel's source that made the earlier access.
        other: SourceLocation,
    },
    /// Two unordered accesses of a block to global memory, of which one writes.
    #[error(
        "race on global byte {address:#x}: this {access} and the {other_access} by thread {other_thread} at {other} are not ordered"
    )]
    GlobalRace {
        /// Global address of the byte.
        address: usize,
        /// The kind of the access at the violation's place.
        access: Access,
        /// The kind of the earlier access.
        other_access: Access,
        /// A thread of the block that made the earlier access.
        other_thread: u32,
        /// Call in the kernel's source that made the earlier access.
        other: SourceLocation,
    },
    /// A read through the read-only cache of global memory that the launch writes.
    #[error(
        "global byte {address:#x}, which thread {thread} of the block wrote at {written}, is read through the read-only cache"
    )]
    ReadOnlyWritten {
        /// Global address of the byte.
        address: usize,
        /// A thread of the block that wrote the byte.
        thread: u32,
        /// Call in the kernel's source that wrote the byte.
        written: SourceLocation,
    },
    /// More static shared arrays than a GPU has room for.
    #[error("static shared arrays of {asked} bytes exceed the {limit} that a kernel can have")]
    StaticSharedTooLarge {
        /// Bytes with this array.
        asked: u64,
        /// Bytes of static shared memory that a kernel can have.
        limit: u64,
    },
    /// Code of the kernel panicked.
    #[error("panicked: {message}")]
    Panic {
        /// Message of the panic.
        message: String,
    },
}

/// A kind of memory access.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
#[allow(missing_docs, reason = "each is named after what the access does")]
pub enum Access {
    Read,
    Write,
    Atomic,
    AsyncCopy,
    VolatileRead,
    VolatileWrite,
}

impl Access {
    /// Whether it changes memory.
    pub(crate) const fn writes(self) -> bool {
        !matches!(self, Self::Read | Self::VolatileRead)
    }

    /// Whether it does not race with others of which this is true: volatile accesses are relaxed atomic ones to the
    /// hardware.
    pub(crate) const fn is_strong(self) -> bool {
        matches!(self, Self::Atomic | Self::VolatileRead | Self::VolatileWrite)
    }
}

impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Atomic => "atomic operation",
            Self::AsyncCopy => "asynchronous copy",
            Self::VolatileRead => "volatile read",
            Self::VolatileWrite => "volatile write",
        })
    }
}

/// The place of an access relative to an argument.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Nearest {
    /// Name of the kernel's parameter to which the argument belongs.
    pub parameter: &'static str,
    /// Bytes from the argument's start to the first byte of the access.
    pub offset: isize,
    /// Bytes that the argument has.
    pub len: usize,
}

impl fmt::Display for Nearest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { parameter, offset, len } = *self;
        match usize::try_from(offset).map(|offset| offset.checked_sub(len)) {
            Err(_) => write!(f, "{} bytes before the start", offset.unsigned_abs())?,
            Ok(Some(distance)) => write!(f, "{distance} bytes beyond the end")?,
            Ok(None) => write!(f, "{offset} bytes from the start")?,
        }
        write!(f, " of `{parameter}` ({len} bytes)")
    }
}
