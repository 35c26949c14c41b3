//! What a device offers to the host code of every index: memory, streams, copies, kernel launches.
//!
//! Two devices implement it, the CUDA driver ([`super::cuda`]) and the checking emulator ([`super::emulated`]); the
//! host code above is generic, so that tiling, tile sizes and launches are tested without a GPU.

use std::ops::Range;
use std::sync::Mutex;

use cuda_std::launch::{Kernel, KernelArgs, LaunchConfig, MOST_BLOCKS};
use warpann_kernels::product::tile::Instruction;

use crate::flat::gpu::exact::Tuning;
use crate::{Error, Result};

/// A device, opened. Everything is checked by the device's own rules; out-of-memory is [`Error::OutOfDeviceMemory`].
///
/// No method uses a rayon pool, nor may what `put` and `take` do: locks are held across these calls (`threads`, "Calls from anywhere").
pub(crate) trait Runtime: Send + Sync + 'static {
    /// An allocation in device memory, aligned to 256 bytes (16 on the emulator); freed when dropped.
    type Memory: Send + Sync;
    /// A queue of work; operations of one stream run in order, streams run side by side.
    type Stream: Send;
    /// The device is the calling thread's current one while this lives.
    type Entered;

    /// Makes the device the calling thread's current one, until the result is dropped. Every other function does so for itself; who calls
    /// many of them holds this meanwhile, which saves each of them the change.
    fn enter(&self) -> Result<Self::Entered>;
    /// The device in words.
    fn describe(&self) -> String;
    /// What launches are shaped by.
    fn limits(&self) -> Limits;
    /// Choices that depend on the device.
    fn tuning(&self) -> Tuning;
    /// How searches of inverted files cut their queries.
    fn overlap(&self) -> Overlap {
        Overlap { part_queries: 3_000, two_lanes_from: 20_000 }
    }
    /// Free device memory in bytes.
    fn free_memory(&self) -> Result<u64>;
    /// Allocates `bytes` (0 is legal) with unspecified contents.
    fn allocate(&self, bytes: usize) -> Result<Self::Memory>;
    /// Where an allocation starts.
    fn address(&self, memory: &Self::Memory) -> *mut u8;
    /// A new stream.
    fn stream(&self) -> Result<Self::Stream>;
    /// Copies `rows` rows of `row_bytes` each to device memory, in stream order, as `put` writes them.
    ///
    /// # Safety
    /// `to` has room for them.
    unsafe fn send(
        &self,
        stream: &Self::Stream,
        to: *mut u8,
        rows: usize,
        row_bytes: usize,
        put: &Put<'_>,
    ) -> Result<()>;
    /// Copies `from` to device memory, in stream order; `from` may be reused on return.
    ///
    /// # Safety
    /// `to` has room for it.
    unsafe fn upload(&self, stream: &Self::Stream, to: *mut u8, from: &[u8]) -> Result<()> {
        // SAFETY: the same contract.
        unsafe { self.send(stream, to, from.len(), 1, &|bytes, to| to.copy_from_slice(&from[bytes])) }
    }
    /// Copies device memory to `to` after the stream's earlier work, and waits for it.
    ///
    /// # Safety
    /// `from` has that many bytes, all written.
    unsafe fn download(&self, stream: &Self::Stream, to: &mut [u8], from: *const u8) -> Result<()>;
    /// Has what a device found for `rows` queries come to the host, after the stream's earlier work: calls `take` for consecutive rows, all
    /// in order, with their part of each of `arrays`.
    ///
    /// # Safety
    /// Each of `arrays` has so many rows, all written, from an address that suits its elements.
    unsafe fn receive(&self, stream: &Self::Stream, rows: usize, arrays: &[Array], take: &mut Take<'_>) -> Result<()>;
    /// Copies within device memory, in stream order.
    ///
    /// # Safety
    /// Both ranges exist and do not overlap.
    unsafe fn copy(&self, stream: &Self::Stream, to: *mut u8, from: *const u8, bytes: usize) -> Result<()>;
    /// Copies from the memory of `other`, a device of the same kind and perhaps the same, in the order of this device's stream.
    ///
    /// # Safety
    /// As [`copy`](Self::copy), and nothing writes to `from` until this stream has passed.
    unsafe fn copy_from(
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
    /// Has what `stream` is given from now on wait for what `other` was given before.
    fn follow(&self, stream: &Self::Stream, other: &Self::Stream) -> Result<()>;
    /// Waits for all work of the stream.
    fn synchronize(&self, stream: &Self::Stream) -> Result<()>;
}

/// Where launches go, in order.
pub(crate) trait Queue {
    /// Launches a kernel after what was launched before.
    ///
    /// # Safety
    /// As [`Runtime::launch`].
    unsafe fn launch<A: KernelArgs>(&self, kernel: &Kernel<A>, config: LaunchConfig, args: A) -> Result<()>;
    /// Fills `bytes` with `byte`, after what was launched before.
    ///
    /// # Safety
    /// As [`Runtime::fill`].
    unsafe fn fill(&self, to: *mut u8, byte: u8, bytes: usize) -> Result<()>;
}

/// A stream of a device.
pub(crate) struct OnStream<'a, R: Runtime> {
    /// The device.
    pub runtime: &'a R,
    /// The stream.
    pub stream: &'a R::Stream,
}

impl<R: Runtime> Queue for OnStream<'_, R> {
    unsafe fn launch<A: KernelArgs>(&self, kernel: &Kernel<A>, config: LaunchConfig, args: A) -> Result<()> {
        // SAFETY: as the caller promises.
        unsafe { self.runtime.launch(self.stream, kernel, config, args) }
    }

    unsafe fn fill(&self, to: *mut u8, byte: u8, bytes: usize) -> Result<()> {
        // SAFETY: as the caller promises.
        unsafe { self.runtime.fill(self.stream, to, byte, bytes) }
    }
}

/// Launches nothing: checks what would be launched, and makes it ready.
#[cfg(any(feature = "cuda", test))]
pub(crate) struct Preload<'a, R>(pub &'a R);

#[cfg(any(feature = "cuda", test))]
impl<R: Runtime> Queue for Preload<'_, R> {
    unsafe fn launch<A: KernelArgs>(&self, kernel: &Kernel<A>, config: LaunchConfig, _: A) -> Result<()> {
        check_launch(kernel, config)?;
        self.0.load(kernel, config.shared_bytes)
    }

    unsafe fn fill(&self, _: *mut u8, _: u8, _: usize) -> Result<()> {
        Ok(())
    }
}

/// What launches are shaped by.
#[derive(Debug, Clone)]
pub(crate) struct Limits {
    /// The device's product name: measured choices are kept by it.
    pub device: String,
    /// Multiprocessors: how many blocks it takes to fill the device.
    pub multiprocessors: u32,
    /// Bytes of dynamic shared memory that a block may have.
    pub shared_bytes: u32,
    /// Which kernels of tile products it runs.
    pub products: Products,
}

/// Kernels of tile products (`warpann_kernels::product::tile`): by warps on any device, by warpgroups on compute capability 9.0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "a GPU has one of them"))]
pub(crate) enum Products {
    /// By warps.
    Warps,
    /// By warpgroups.
    Groups,
    /// Both: by warpgroups where the number of tiles is even, so that the emulator's tests see either.
    Both,
}

impl Products {
    /// The instruction of a launch over so many tiles.
    pub fn instruction(self, tiles: u32) -> Instruction {
        match self {
            Products::Warps => Instruction::MmaSync,
            Products::Groups => Instruction::Wgmma,
            Products::Both if tiles.is_multiple_of(2) => Instruction::Wgmma,
            Products::Both => Instruction::MmaSync,
        }
    }
}

/// How queries are cut so that copies hide behind kernels (`ivf`).
#[derive(Debug, Clone, Copy)]
pub(crate) struct Overlap {
    /// Queries whose probes are found at once, while the next are copied, at least.
    pub part_queries: usize,
    /// Queries from which two lanes pay: half of them read every list, and the two halves read it twice.
    pub two_lanes_from: usize,
}

/// The size of a plan in bytes, and where its arrays start: a bump allocator that has not allocated yet.
#[derive(Default)]
pub(crate) struct Layout {
    bytes: usize,
}

impl Layout {
    /// Alignment of every array.
    const ALIGN: usize = 256;

    /// Reserves `len` values of `T`; the result is the array's offset. Saturates, so that an absurd plan fails to allocate.
    pub fn array<T>(&mut self, len: usize) -> usize {
        let offset = self.bytes;
        self.bytes = offset.saturating_add(len.saturating_mul(size_of::<T>())).saturating_add(Self::ALIGN - 1);
        self.bytes -= self.bytes % Self::ALIGN;
        offset
    }

    /// Bytes of all arrays.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

/// Writes rows that go to a device: which of them, and their bytes, which begin at an address that suits any element. Called for
/// consecutive rows at a time, by several threads at once, for each row once.
pub(crate) type Put<'a> = dyn Fn(Range<usize>, &mut [u8]) + Sync + 'a;

/// Takes results: of which rows, and their part of each array.
pub(crate) type Take<'a> = dyn FnMut(Range<usize>, &[&[u8]]) + 'a;

/// An array of results in device memory.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Array {
    /// Its first row.
    pub from: *const u8,
    /// Bytes of a row.
    pub row_bytes: usize,
}

impl Array {
    /// Rows of `columns` values each.
    pub fn new<V>(from: *const V, columns: usize) -> Array {
        Array { from: from.cast(), row_bytes: columns * size_of::<V>() }
    }
}

/// A stream with scratch memory; searches borrow one each.
pub(crate) struct Lane<R: Runtime> {
    /// The stream.
    pub stream: R::Stream,
    /// Another, for copies to the device that its kernels need not wait for.
    pub copies: R::Stream,
    memory: R::Memory,
    bytes: usize,
}

impl<R: Runtime> Lane<R> {
    /// Scratch of at least `bytes`, with unspecified contents. Work of the stream on earlier scratch must be over.
    pub fn scratch(&mut self, runtime: &R, bytes: usize) -> Result<*mut u8> {
        if bytes > self.bytes {
            // The old scratch goes first: both may not fit.
            self.memory = runtime.allocate(0)?;
            self.bytes = 0;
            self.memory = runtime.allocate(bytes)?;
            self.bytes = bytes;
        }
        Ok(runtime.address(&self.memory))
    }
}

/// Lanes that no search uses at the moment.
pub(crate) struct Lanes<R: Runtime> {
    idle: Mutex<Vec<Lane<R>>>,
}

impl<R: Runtime> Lanes<R> {
    /// No lanes yet; they are made when needed.
    pub fn new() -> Self {
        Lanes { idle: Mutex::new(Vec::new()) }
    }

    /// Runs `work` with a lane of its own. A lane whose work failed is not used again.
    pub fn with<V>(&self, runtime: &R, work: impl FnOnce(&mut Lane<R>) -> Result<V>) -> Result<V> {
        self.with_some(runtime, 1, |lanes| work(&mut lanes[0]))
    }

    /// The same with so many lanes.
    pub fn with_some<V>(&self, runtime: &R, count: usize, work: impl FnOnce(&mut [Lane<R>]) -> Result<V>) -> Result<V> {
        let _current = runtime.enter()?;
        let idle = || self.idle.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let idle_or_new = |_| match idle().pop() {
            Some(lane) => Ok(lane),
            None => Ok(Lane {
                stream: runtime.stream()?,
                copies: runtime.stream()?,
                memory: runtime.allocate(0)?,
                bytes: 0,
            }),
        };
        let mut lanes = (0..count).map(idle_or_new).collect::<Result<Vec<_>>>()?;
        let result = work(&mut lanes)?;
        idle().append(&mut lanes);
        Ok(result)
    }
}

/// [`Error::LaunchLimit`] if no device takes so many blocks or threads.
pub(crate) fn check_launch<A: KernelArgs>(kernel: &Kernel<A>, config: LaunchConfig) -> Result<()> {
    let refused = |what, asked, limit| Err(Error::LaunchLimit { kernel: kernel.name(), what, asked, limit });
    for ((what, asked), limit) in ["grid x", "grid y", "grid z"].into_iter().zip(config.grid).zip(MOST_BLOCKS) {
        if asked > limit {
            return refused(what, asked, limit);
        }
    }
    let threads = config.block.iter().map(|&threads| u64::from(threads)).product();
    let limit = kernel.max_threads().map_or(1024, u64::from);
    if threads > limit { refused("threads a block", threads, limit) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cuda_std::kernel(max_threads = 256)]
    unsafe fn bounded() {}

    #[test]
    fn a_grid_has_as_many_blocks_as_31_bits_count_and_16_along_the_others() {
        let checked =
            |grid, threads| check_launch(&Bounded::KERNEL, LaunchConfig { grid, ..LaunchConfig::linear(1, threads) });
        for (grid, threads) in [([1, 1, 1], 256), ([0x7fff_ffff, 1, 1], 1), ([1, 65_535, 65_535], 32)] {
            checked(grid, threads).unwrap();
        }
        for (grid, threads, expected) in [
            ([0x8000_0000, 1, 1], 1, ("grid x", 0x8000_0000, 0x7fff_ffff)),
            ([u64::MAX, 1, 1], 1, ("grid x", u64::MAX, 0x7fff_ffff)),
            ([1, 65_536, 1], 1, ("grid y", 65_536, 65_535)),
            ([1, 1, 65_536], 1, ("grid z", 65_536, 65_535)),
            ([1, 1, 1], 257, ("threads a block", 257, 256)),
        ] {
            match checked(grid, threads) {
                Err(Error::LaunchLimit { kernel: "bounded", what, asked, limit }) => {
                    assert_eq!((what, asked, limit), expected);
                }
                other => panic!("{other:?}"),
            }
        }
    }

    /// A plan that no memory holds asks for more than any device has, whatever follows.
    #[test]
    fn layouts_saturate() {
        let mut layout = Layout::default();
        assert_eq!(layout.array::<u64>(33), 0);
        assert_eq!(layout.array::<u8>(1), 512);
        assert_eq!(layout.bytes(), 768);
        layout.array::<u64>(usize::MAX / 8);
        layout.array::<u64>(usize::MAX);
        assert!(layout.bytes() > isize::MAX as usize);
        layout.array::<u8>(1000);
        assert!(layout.bytes() > isize::MAX as usize);
    }
}
