//! A device that launches kernels: a GPU through the CUDA driver, or the emulator.

use bytemuck::{AnyBitPattern, NoUninit};
use cuda_std::emulator::Buffer;
use cuda_std::global::U32x4;
use cuda_std::launch::{Kernel, KernelArgs, LaunchConfig};
use cuda_std::{Ptr, PtrMut};

use super::backend::{Backend, ResultArray, TakeResults, WriteRows};
#[cfg(feature = "cuda")]
use super::cuda::{self, CudaDevice};
use super::emulated::{Emulator, Immediate};
use super::limits::Limits;
use super::scratch::Scratch;
use crate::Result;

/// A GPU or the emulator. A clone is cheap and is the same device.
///
/// The methods are those of [`Backend`], with typed pointers. A stream or memory of another kind of device is a defect
/// of the caller; the method panics.
#[derive(Clone)]
pub(crate) enum Runtime {
    #[cfg(feature = "cuda")]
    Cuda(CudaDevice),
    Emulator(Emulator),
}

/// Device memory, freed when dropped.
pub(crate) enum Memory {
    #[cfg(feature = "cuda")]
    Cuda(cuda::Memory),
    Emulator(Buffer<U32x4>),
}

/// A queue of work on a device.
pub(crate) enum Stream {
    #[cfg(feature = "cuda")]
    Cuda(cuda::Stream),
    Emulator(Immediate),
}

impl Stream {
    /// The same stream for short chains of small kernels, such as searches: on a GPU, a kernel may start before the
    /// kernel ahead has ended (`dependent`). Not for long work on several streams, where blocks that wait take the
    /// place of others.
    pub fn with_dependent_launches(self) -> Stream {
        match self {
            #[cfg(feature = "cuda")]
            Stream::Cuda(stream) => Stream::Cuda(stream.with_dependent_launches()),
            Stream::Emulator(stream) => Stream::Emulator(stream),
        }
    }

    /// The stream of the emulator.
    #[cfg(test)]
    pub const EMULATOR: Stream = Stream::Emulator(Immediate);

    /// The CUDA stream of a stream that was created on a GPU.
    ///
    /// # Panics
    /// If the stream is the emulator's.
    #[cfg(all(feature = "cuda", feature = "internals"))]
    pub fn of_gpu(&self) -> &cuda::Stream {
        match self {
            Stream::Cuda(stream) => stream,
            Stream::Emulator(_) => unreachable!("opened as a GPU"),
        }
    }
}

/// The device is the calling thread's current one until this is dropped.
pub(crate) enum Entered {
    #[cfg(feature = "cuda")]
    Cuda(#[expect(dead_code, reason = "held for its drop")] cuda::Entered),
    Emulator,
}

/// Calls a method of the device of a runtime. The second form also unwraps a stream, which must be of the same kind of
/// device.
macro_rules! call {
    ($runtime:expr, $method:ident($($argument:expr),*)) => {
        match $runtime {
            #[cfg(feature = "cuda")]
            Runtime::Cuda(device) => device.$method($($argument),*),
            Runtime::Emulator(device) => device.$method($($argument),*),
        }
    };
    ($runtime:expr, $kind:ident $given:expr, $method:ident($($argument:expr),*)) => {
        match ($runtime, $given) {
            #[cfg(feature = "cuda")]
            (Runtime::Cuda(device), $kind::Cuda(given)) => device.$method(given, $($argument),*),
            (Runtime::Emulator(device), $kind::Emulator(given)) => device.$method(given, $($argument),*),
            #[cfg(feature = "cuda")]
            _ => unreachable!("{} of another kind of device", stringify!($kind)),
        }
    };
}

impl Runtime {
    /// The runtime of the emulator.
    pub const EMULATOR: Runtime = Runtime::Emulator(Emulator);

    /// The CUDA device of a runtime that was opened as a GPU.
    ///
    /// # Panics
    /// If the runtime is the emulator.
    #[cfg(feature = "cuda")]
    pub fn gpu(&self) -> &CudaDevice {
        match self {
            Runtime::Cuda(device) => device,
            Runtime::Emulator(_) => unreachable!("opened as a GPU"),
        }
    }

    /// The CUDA device, unless the runtime is the emulator.
    #[cfg(feature = "cuda")]
    pub fn as_gpu(&self) -> Option<&CudaDevice> {
        match self {
            Runtime::Cuda(device) => Some(device),
            Runtime::Emulator(_) => None,
        }
    }

    /// Makes the device the calling thread's current one until the result is dropped. Every other function does so for
    /// itself. A caller of many functions should hold the result meanwhile, so that each function saves the change.
    pub fn enter(&self) -> Result<Entered> {
        Ok(match self {
            #[cfg(feature = "cuda")]
            Runtime::Cuda(device) => Entered::Cuda(device.enter()?),
            Runtime::Emulator(_) => Entered::Emulator,
        })
    }

    /// See [`Backend::describe`].
    pub fn describe(&self) -> String {
        call!(self, describe())
    }

    /// See [`Backend::limits`].
    pub fn limits(&self) -> &Limits {
        call!(self, limits())
    }

    /// See [`Backend::free_memory`].
    pub fn free_memory(&self) -> Result<u64> {
        call!(self, free_memory())
    }

    /// Device memory that may be used, in bytes: the caller's `budget`, or nine tenths of the free memory.
    pub fn budget(&self, budget: Option<u64>) -> Result<u64> {
        match budget {
            Some(bytes) => Ok(bytes),
            None => Ok(self.free_memory()? / 10 * 9),
        }
    }

    /// See [`Backend::allocate`].
    pub fn allocate(&self, bytes: usize) -> Result<Memory> {
        Ok(match self {
            #[cfg(feature = "cuda")]
            Runtime::Cuda(device) => Memory::Cuda(device.allocate(bytes)?),
            Runtime::Emulator(device) => Memory::Emulator(device.allocate(bytes)?),
        })
    }

    /// See [`Backend::allocate_on`].
    pub fn allocate_on(&self, stream: &Stream, bytes: usize) -> Result<Memory> {
        match (self, stream) {
            #[cfg(feature = "cuda")]
            (Runtime::Cuda(device), Stream::Cuda(stream)) => device.allocate_on(stream, bytes).map(Memory::Cuda),
            (Runtime::Emulator(device), Stream::Emulator(stream)) => {
                device.allocate_on(stream, bytes).map(Memory::Emulator)
            }
            #[cfg(feature = "cuda")]
            _ => unreachable!("a stream of another kind of device"),
        }
    }

    /// See [`Backend::make_ready`].
    pub fn make_ready(&self, stream: &Stream, searches: usize) -> Result<()> {
        call!(self, Stream stream, make_ready(searches))
    }

    /// An allocation of no bytes, which takes no call of the driver.
    pub fn no_memory(&self) -> Memory {
        match self {
            #[cfg(feature = "cuda")]
            Runtime::Cuda(device) => Memory::Cuda(cuda::Memory::none(device)),
            Runtime::Emulator(_) => Memory::Emulator(Buffer::new_poisoned(0)),
        }
    }

    /// All memory of an allocation as scratch.
    pub fn scratch(&self, memory: &Memory) -> Scratch {
        let (address, bytes) = match (self, memory) {
            #[cfg(feature = "cuda")]
            (Runtime::Cuda(device), Memory::Cuda(memory)) => (device.address(memory), memory.bytes()),
            (Runtime::Emulator(device), Memory::Emulator(memory)) => {
                (device.address(memory), memory.len() * size_of::<U32x4>())
            }
            #[cfg(feature = "cuda")]
            _ => unreachable!("memory of another kind of device"),
        };
        Scratch::new(PtrMut::new(address, bytes))
    }

    /// See [`Backend::stream`].
    pub fn stream(&self) -> Result<Stream> {
        Ok(match self {
            #[cfg(feature = "cuda")]
            Runtime::Cuda(device) => Stream::Cuda(device.stream()?),
            Runtime::Emulator(device) => Stream::Emulator(device.stream()?),
        })
    }

    /// See [`Backend::urgent_stream`].
    pub fn urgent_stream(&self) -> Result<Stream> {
        Ok(match self {
            #[cfg(feature = "cuda")]
            Runtime::Cuda(device) => Stream::Cuda(device.urgent_stream()?),
            Runtime::Emulator(device) => Stream::Emulator(device.urgent_stream()?),
        })
    }

    /// Copies `rows` rows of `row_bytes` each to device memory, in stream order. `write` writes the rows.
    ///
    /// # Safety
    /// As [`Backend::copy_rows_to_device`].
    pub unsafe fn copy_rows_to_device(
        &self,
        stream: &Stream,
        to: PtrMut<u8>,
        rows: usize,
        row_bytes: usize,
        write: &WriteRows<'_>,
    ) -> Result<()> {
        debug_assert!(rows * row_bytes <= to.len(), "{rows} rows of {row_bytes} bytes, room for {}", to.len());
        // SAFETY: the same contract.
        unsafe { call!(self, Stream stream, copy_rows_to_device(*to, rows, row_bytes, write)) }
    }

    /// Copies `from` to device memory, in stream order. The caller may reuse `from` on return.
    ///
    /// # Safety
    /// As [`Backend::copy_to_device`].
    pub unsafe fn copy_to_device<V: NoUninit>(&self, stream: &Stream, to: PtrMut<V>, from: &[V]) -> Result<()> {
        debug_assert!(from.len() <= to.len(), "{} values, room for {}", from.len(), to.len());
        // SAFETY: the same contract.
        unsafe { call!(self, Stream stream, copy_to_device(*to.as_bytes(), bytemuck::cast_slice(from))) }
    }

    /// Copies device memory to `to` after the stream's earlier work, and waits for the copy.
    ///
    /// # Safety
    /// As [`Backend::copy_to_host`].
    pub unsafe fn copy_to_host<V: NoUninit + AnyBitPattern>(
        &self,
        stream: &Stream,
        to: &mut [V],
        from: impl Into<Ptr<V>>,
    ) -> Result<()> {
        let from = from.into();
        debug_assert!(to.len() <= from.len(), "{} values of {}", to.len(), from.len());
        // SAFETY: the same contract.
        unsafe { call!(self, Stream stream, copy_to_host(bytemuck::cast_slice_mut(to), *from.as_bytes())) }
    }

    /// See [`Backend::copy_results_to_host`].
    ///
    /// # Safety
    /// As [`Backend::copy_results_to_host`].
    pub unsafe fn copy_results_to_host(
        &self,
        stream: &Stream,
        rows: usize,
        arrays: &[ResultArray],
        take: &mut TakeResults<'_>,
    ) -> Result<()> {
        // SAFETY: the same contract.
        unsafe { call!(self, Stream stream, copy_results_to_host(rows, arrays, take)) }
    }

    /// Copies all of `from` to the start of `to` within device memory, in stream order.
    ///
    /// # Safety
    /// As [`Backend::copy`].
    pub unsafe fn copy<V>(&self, stream: &Stream, to: PtrMut<V>, from: impl Into<Ptr<V>>) -> Result<()> {
        let from = from.into();
        debug_assert!(from.len() <= to.len(), "{} values, room for {}", from.len(), to.len());
        let (to, from) = (to.as_bytes(), from.as_bytes());
        // SAFETY: the same contract.
        unsafe { call!(self, Stream stream, copy(*to, *from, from.len())) }
    }

    /// Copies all of `from`, in the memory of `other`, to the start of `to`, in the order of this device's stream.
    ///
    /// # Safety
    /// As [`Backend::copy_from_device`].
    pub unsafe fn copy_from_device<V>(
        &self,
        stream: &Stream,
        to: PtrMut<V>,
        other: &Runtime,
        from: impl Into<Ptr<V>>,
    ) -> Result<()> {
        let from = from.into();
        debug_assert!(from.len() <= to.len(), "{} values, room for {}", from.len(), to.len());
        let (to, from) = (to.as_bytes(), from.as_bytes());
        match (self, stream, other) {
            #[cfg(feature = "cuda")]
            (Runtime::Cuda(device), Stream::Cuda(stream), Runtime::Cuda(other)) => {
                // SAFETY: the same contract.
                unsafe { device.copy_from_device(stream, *to, other, *from, from.len()) }
            }
            (Runtime::Emulator(device), Stream::Emulator(stream), Runtime::Emulator(other)) => {
                // SAFETY: the same contract.
                unsafe { device.copy_from_device(stream, *to, other, *from, from.len()) }
            }
            #[cfg(feature = "cuda")]
            _ => unreachable!("a stream or memory of another kind of device"),
        }
    }

    /// Fills all of `to` with `byte`, in stream order.
    ///
    /// # Safety
    /// As [`Backend::fill`].
    pub unsafe fn fill<V>(&self, stream: &Stream, to: PtrMut<V>, byte: u8) -> Result<()> {
        let to = to.as_bytes();
        // SAFETY: the same contract.
        unsafe { call!(self, Stream stream, fill(*to, byte, to.len())) }
    }

    /// See [`Backend::launch`].
    ///
    /// # Safety
    /// As [`Backend::launch`].
    pub unsafe fn launch<A: KernelArgs>(
        &self,
        stream: &Stream,
        kernel: &Kernel<A>,
        config: LaunchConfig,
        args: A,
    ) -> Result<()> {
        // SAFETY: the same contract.
        unsafe { call!(self, Stream stream, launch(kernel, config, args)) }
    }

    /// See [`Backend::load`].
    #[cfg(any(feature = "cuda", test))]
    pub fn load<A: KernelArgs>(&self, kernel: &Kernel<A>, config: &LaunchConfig) -> Result<()> {
        call!(self, load(kernel, config))
    }

    /// See [`Backend::wait_for`].
    pub fn wait_for(&self, stream: &Stream, other: &Stream) -> Result<()> {
        match (self, stream, other) {
            #[cfg(feature = "cuda")]
            (Runtime::Cuda(device), Stream::Cuda(stream), Stream::Cuda(other)) => device.wait_for(stream, other),
            (Runtime::Emulator(device), Stream::Emulator(stream), Stream::Emulator(other)) => {
                device.wait_for(stream, other)
            }
            #[cfg(feature = "cuda")]
            _ => unreachable!("a stream of another kind of device"),
        }
    }

    /// See [`Backend::synchronize`].
    pub fn synchronize(&self, stream: &Stream) -> Result<()> {
        call!(self, Stream stream, synchronize())
    }
}
