//! What a device offers to host code: memory, streams, copies, kernel launches.
//!
//! The CUDA driver ([`super::cuda`]) and the checking emulator ([`super::emulated`]) implement it. [`super::runtime::Runtime`] is one of
//! the two; host code is written for that type, so tiling, tile sizes and launches are tested without a GPU.

use std::ops::Range;

use cuda_std::PtrMut;
use cuda_std::launch::{Kernel, KernelArgs, LaunchConfig};

use super::limits::Limits;
use crate::Result;

/// A device, opened. Everything is checked by the device's own rules; out-of-memory is [`Error::OutOfDeviceMemory`].
///
/// No method uses a rayon pool, nor may what `write` and `take` do: locks are held across these calls (`threads`, "Calls from anywhere").
pub(crate) trait Backend: Send + Sync + 'static {
    /// An allocation in device memory, aligned to 256 bytes (16 on the emulator); freed when dropped.
    type Memory: Send + Sync;
    /// A queue of work; operations of one stream run in order, streams run side by side.
    type Stream: Send;

    /// The device in words.
    fn describe(&self) -> String;
    /// What launches are shaped by.
    fn limits(&self) -> Limits;
    /// Free device memory in bytes.
    fn free_memory(&self) -> Result<u64>;
    /// Allocates `bytes` (0 is legal) with unspecified contents.
    fn allocate(&self, bytes: usize) -> Result<Self::Memory>;
    /// Where an allocation starts.
    fn address(&self, memory: &Self::Memory) -> *mut u8;
    /// A new stream.
    fn stream(&self) -> Result<Self::Stream>;
    /// Copies `rows` rows of `row_bytes` each to device memory, in stream order, as `write` writes them.
    ///
    /// # Safety
    /// `to` has room for them.
    unsafe fn copy_rows_to_device(
        &self,
        stream: &Self::Stream,
        to: *mut u8,
        rows: usize,
        row_bytes: usize,
        write: &WriteRows<'_>,
    ) -> Result<()>;
    /// Copies `from` to device memory, in stream order; `from` may be reused on return.
    ///
    /// # Safety
    /// `to` has room for it.
    unsafe fn copy_to_device(&self, stream: &Self::Stream, to: *mut u8, from: &[u8]) -> Result<()> {
        // SAFETY: the same contract.
        unsafe { self.copy_rows_to_device(stream, to, from.len(), 1, &|bytes, to| to.copy_from_slice(&from[bytes])) }
    }
    /// Copies device memory to `to` after the stream's earlier work, and waits for it.
    ///
    /// # Safety
    /// `from` has that many bytes, all written.
    unsafe fn copy_to_host(&self, stream: &Self::Stream, to: &mut [u8], from: *const u8) -> Result<()>;
    /// Copies the results of `rows` queries to the host, in stream order, and calls `take` once for each consecutive range of rows, with the
    /// range's part of each of `arrays`.
    ///
    /// # Safety
    /// Each of `arrays` has so many rows, all written, from an address that suits its elements.
    unsafe fn copy_results_to_host(
        &self,
        stream: &Self::Stream,
        rows: usize,
        arrays: &[ResultArray],
        take: &mut TakeResults<'_>,
    ) -> Result<()>;
    /// Copies within device memory, in stream order.
    ///
    /// # Safety
    /// Both ranges exist and do not overlap.
    unsafe fn copy(&self, stream: &Self::Stream, to: *mut u8, from: *const u8, bytes: usize) -> Result<()>;
    /// Copies from the memory of `other`, a device of the same kind and perhaps the same, in the order of this device's stream.
    ///
    /// # Safety
    /// As [`copy`](Self::copy), and nothing writes to `from` until this stream has passed.
    unsafe fn copy_from_device(
        &self,
        stream: &Self::Stream,
        to: *mut u8,
        other: &Self,
        from: *const u8,
        bytes: usize,
    ) -> Result<()>;
    /// Fills `bytes` with `byte`, in stream order.
    ///
    /// # Safety
    /// `to` has room for it.
    unsafe fn fill(&self, stream: &Self::Stream, to: *mut u8, byte: u8, bytes: usize) -> Result<()>;
    /// Launches a kernel, in stream order.
    ///
    /// # Safety
    /// The kernel's own contract holds for the arguments when its turn comes.
    unsafe fn launch<A: KernelArgs>(
        &self,
        stream: &Self::Stream,
        kernel: &Kernel<A>,
        config: LaunchConfig,
        args: A,
    ) -> Result<()>;
    /// Makes a kernel ready: launches with up to so many bytes of dynamic shared memory then neither load nor allocate.
    #[cfg(any(feature = "cuda", test))]
    fn load<A: KernelArgs>(&self, kernel: &Kernel<A>, shared_bytes: u32) -> Result<()>;
    /// Makes later work of `stream` wait for earlier work of `other`.
    fn wait_for(&self, stream: &Self::Stream, other: &Self::Stream) -> Result<()>;
    /// Waits for all work of the stream.
    fn synchronize(&self, stream: &Self::Stream) -> Result<()>;
}

/// Writes a range of rows into bytes on their way to a device. The bytes begin at an address that suits any element. Several threads call it
/// at once, for each row once.
pub(crate) type WriteRows<'a> = dyn Fn(Range<usize>, &mut [u8]) + Sync + 'a;

/// Takes a range of rows of results, with their part of each array.
pub(crate) type TakeResults<'a> = dyn FnMut(Range<usize>, &[&[u8]]) + 'a;

/// An array of results in device memory.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ResultArray {
    /// The first row.
    pub from: *const u8,
    /// Bytes of a row.
    pub row_bytes: usize,
}

impl ResultArray {
    /// Rows of `columns` values each.
    pub fn new<V>(from: PtrMut<V>, columns: usize) -> ResultArray {
        ResultArray { from: *from.as_bytes().read_only(), row_bytes: columns * size_of::<V>() }
    }
}
