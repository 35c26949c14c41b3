//! The operations of a device: memory, streams, copies, kernel launches; and what a receiver of launches does.
//!
//! The CUDA driver ([`super::cuda`]) and the checking emulator ([`super::emulated`]) implement them.
//! [`super::runtime::Runtime`] is one of the two. Host code uses that type, so tiling, tile sizes and launches are
//! tested without a GPU.

use std::ops::Range;

use cuda_std::PtrMut;
use cuda_std::launch::{Kernel, KernelArgs, LaunchConfig};

use super::limits::Limits;
use crate::Result;

/// An open device. It checks every call by its own rules. If memory is short, the error is
/// [`Error::OutOfDeviceMemory`](crate::Error::OutOfDeviceMemory).
///
/// No method uses a rayon pool, and `write` and `take` must not use one, because locks are held across these calls
/// (`threads`, "Calls from anywhere").
pub(crate) trait Backend: Send + Sync + 'static {
    /// An allocation in device memory, aligned to 256 bytes (16 on the emulator); freed when dropped.
    type Memory: Send + Sync;
    /// A queue of work. The operations of one stream run in order; different streams run concurrently.
    type Stream: Send;

    /// The device in words, for errors and reports.
    fn describe(&self) -> String;
    /// Limits of the device that determine the shapes of launches.
    fn limits(&self) -> &Limits;
    /// Free device memory in bytes.
    fn free_memory(&self) -> Result<u64>;
    /// Allocates `bytes` (0 is legal) with unspecified contents.
    fn allocate(&self, bytes: usize) -> Result<Self::Memory>;
    /// As [`allocate`](Self::allocate), for the work of `stream`, which has none at the moment. Where the device can,
    /// without waiting for work of other streams. The memory is freed in the order of the stream and must be dropped
    /// before the stream.
    fn allocate_on(&self, stream: &Self::Stream, bytes: usize) -> Result<Self::Memory>;
    /// Makes the resources that `searches` searches at the same time need besides their streams, so that no search
    /// waits until the device has made them. `stream` has no work.
    fn make_ready(&self, stream: &Self::Stream, searches: usize) -> Result<()>;
    /// The first address of an allocation.
    fn address(&self, memory: &Self::Memory) -> *mut u8;
    /// Creates a stream without work.
    fn stream(&self) -> Result<Self::Stream>;
    /// As [`stream`](Self::stream). Where the device can, the work of such streams goes ahead of that of others.
    fn urgent_stream(&self) -> Result<Self::Stream>;
    /// Copies `rows` rows of `row_bytes` each to device memory, in stream order. `write` writes the rows.
    ///
    /// # Safety
    /// `to` has room for the rows.
    unsafe fn copy_rows_to_device(
        &self,
        stream: &Self::Stream,
        to: *mut u8,
        rows: usize,
        row_bytes: usize,
        write: &WriteRows<'_>,
    ) -> Result<()>;
    /// Copies `from` to device memory, in stream order. The caller may reuse `from` on return.
    ///
    /// # Safety
    /// `to` has room for `from`.
    unsafe fn copy_to_device(&self, stream: &Self::Stream, to: *mut u8, from: &[u8]) -> Result<()> {
        // SAFETY: the same contract.
        unsafe { self.copy_rows_to_device(stream, to, from.len(), 1, &|bytes, to| to.copy_from_slice(&from[bytes])) }
    }
    /// Copies device memory to `to` after the stream's earlier work, and waits for the copy.
    ///
    /// # Safety
    /// `from` has the bytes of `to`, all written.
    unsafe fn copy_to_host(&self, stream: &Self::Stream, to: &mut [u8], from: *const u8) -> Result<()>;
    /// Copies the results of `rows` queries to the host, in stream order, and calls `take` once for each consecutive
    /// range of rows, with the range's part of each of `arrays`.
    ///
    /// # Safety
    /// Each of `arrays` has `rows` rows, all written, at an address that is aligned for its elements.
    unsafe fn copy_results_to_host(
        &self,
        stream: &Self::Stream,
        rows: usize,
        arrays: &[ResultArray],
        take: &mut TakeResults<'_>,
    ) -> Result<()>;
    /// Copies `bytes` bytes within device memory, in stream order.
    ///
    /// # Safety
    /// Both ranges exist and do not overlap.
    unsafe fn copy(&self, stream: &Self::Stream, to: *mut u8, from: *const u8, bytes: usize) -> Result<()>;
    /// Copies from the memory of `other`, a device of the same kind or this device, in the order of this device's
    /// stream.
    ///
    /// # Safety
    /// As [`copy`](Self::copy), and nothing writes to `from` until the copy is done.
    unsafe fn copy_from_device(
        &self,
        stream: &Self::Stream,
        to: *mut u8,
        other: &Self,
        from: *const u8,
        bytes: usize,
    ) -> Result<()>;
    /// Fills `bytes` bytes with `byte`, in stream order.
    ///
    /// # Safety
    /// `to` has room for `bytes` bytes.
    unsafe fn fill(&self, stream: &Self::Stream, to: *mut u8, byte: u8, bytes: usize) -> Result<()>;
    /// Launches a kernel, in stream order.
    ///
    /// # Safety
    /// The kernel's own contract holds for the arguments when the kernel runs.
    unsafe fn launch<A: KernelArgs>(
        &self,
        stream: &Self::Stream,
        kernel: &Kernel<A>,
        config: LaunchConfig,
        args: A,
    ) -> Result<()>;
    /// Loads a kernel, so that launches with up to the shared memory and the cluster of `config`, on a stream of the
    /// caller's or of searches, neither load nor allocate.
    #[cfg(any(feature = "cuda", test))]
    fn load<A: KernelArgs>(&self, kernel: &Kernel<A>, config: &LaunchConfig) -> Result<()>;
    /// Makes later work of `stream` wait for earlier work of `other`.
    fn wait_for(&self, stream: &Self::Stream, other: &Self::Stream) -> Result<()>;
    /// Waits until all work of the stream is done.
    fn synchronize(&self, stream: &Self::Stream) -> Result<()>;
}

/// A receiver of launches and fills, which keeps their order.
pub(crate) trait Queue {
    /// Launches a kernel, in the order of the queue.
    ///
    /// # Safety
    /// As [`Backend::launch`].
    unsafe fn launch<A: KernelArgs>(&self, kernel: &Kernel<A>, config: LaunchConfig, args: A) -> Result<()>;
    /// Fills all of `to` with `byte`, in the order of the queue.
    ///
    /// # Safety
    /// As [`Backend::fill`].
    unsafe fn fill<V>(&self, to: PtrMut<V>, byte: u8) -> Result<()>;
}

/// Writes a range of rows into bytes that are then copied to a device. The address of the bytes is aligned for any
/// element. Several threads call the function at the same time; each row is written once.
pub(crate) type WriteRows<'a> = dyn Fn(Range<usize>, &mut [u8]) + Sync + 'a;

/// Takes a range of rows of results, with the range's part of each array.
pub(crate) type TakeResults<'a> = dyn FnMut(Range<usize>, &[&[u8]]) + 'a;

/// An array of results in device memory.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ResultArray {
    /// Device address of the first row.
    pub from: *const u8,
    /// Size of a row in bytes; rows are contiguous.
    pub row_bytes: usize,
}

impl ResultArray {
    /// The array at `from`, with rows of `columns` values.
    pub fn new<V>(from: PtrMut<V>, columns: usize) -> ResultArray {
        ResultArray { from: *from.as_bytes().read_only(), row_bytes: columns * size_of::<V>() }
    }
}
