//! A device that launches kernels, whichever it is: a GPU through the CUDA driver, or the emulator.

use cuda_std::emulator::Buffer;
use cuda_std::global::U32x4;
use cuda_std::launch::{Kernel, KernelArgs, LaunchConfig};

use super::backend::{Array, Backend, Put, Take};
#[cfg(feature = "cuda")]
use super::cuda::{self, CudaDevice};
use super::emulated::{Emulator, Immediate};
use super::limits::Limits;
use crate::Result;

/// A GPU or the emulator. Cheap to clone; clones are the same device.
///
/// Every method but [`enter`](Self::enter) is that of [`Backend`]. A stream or memory of another kind of device is a defect of the caller and panics.
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

/// A queue of work.
pub(crate) enum Stream {
    #[cfg(feature = "cuda")]
    Cuda(cuda::Stream),
    Emulator(Immediate),
}

impl Stream {
    /// The emulator's one stream.
    #[cfg(test)]
    pub const EMULATOR: Stream = Stream::Emulator(Immediate);

    /// The stream of a GPU that was opened as one.
    #[cfg(feature = "cuda")]
    pub fn of_gpu(&self) -> &cuda::Stream {
        match self {
            Stream::Cuda(stream) => stream,
            Stream::Emulator(_) => unreachable!("opened as a GPU"),
        }
    }
}

/// A device that is the calling thread's current one.
pub(crate) enum Entered {
    #[cfg(feature = "cuda")]
    Cuda(#[expect(dead_code, reason = "held for its drop")] cuda::Entered),
    Emulator,
}

/// Calls a method of the device behind a runtime; with a stream or memory, those of the same kind.
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
    /// The emulator.
    pub const EMULATOR: Runtime = Runtime::Emulator(Emulator);

    /// The GPU that was opened as one.
    #[cfg(feature = "cuda")]
    pub fn gpu(&self) -> &CudaDevice {
        match self {
            Runtime::Cuda(device) => device,
            Runtime::Emulator(_) => unreachable!("opened as a GPU"),
        }
    }

    /// Makes the device the calling thread's current one, until the result is dropped. Every other function does so for itself; who calls
    /// many of them holds this meanwhile, which saves each of them the change.
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
    pub fn limits(&self) -> Limits {
        call!(self, limits())
    }

    /// See [`Backend::free_memory`].
    pub fn free_memory(&self) -> Result<u64> {
        call!(self, free_memory())
    }

    /// See [`Backend::allocate`].
    pub fn allocate(&self, bytes: usize) -> Result<Memory> {
        Ok(match self {
            #[cfg(feature = "cuda")]
            Runtime::Cuda(device) => Memory::Cuda(device.allocate(bytes)?),
            Runtime::Emulator(device) => Memory::Emulator(device.allocate(bytes)?),
        })
    }

    /// See [`Backend::address`].
    pub fn address(&self, memory: &Memory) -> *mut u8 {
        call!(self, Memory memory, address())
    }

    /// See [`Backend::stream`].
    pub fn stream(&self) -> Result<Stream> {
        Ok(match self {
            #[cfg(feature = "cuda")]
            Runtime::Cuda(device) => Stream::Cuda(device.stream()?),
            Runtime::Emulator(device) => Stream::Emulator(device.stream()?),
        })
    }

    /// See [`Backend::send`].
    ///
    /// # Safety
    /// As there.
    pub unsafe fn send(
        &self,
        stream: &Stream,
        to: *mut u8,
        rows: usize,
        row_bytes: usize,
        put: &Put<'_>,
    ) -> Result<()> {
        // SAFETY: the same contract.
        unsafe { call!(self, Stream stream, send(to, rows, row_bytes, put)) }
    }

    /// See [`Backend::upload`].
    ///
    /// # Safety
    /// As there.
    pub unsafe fn upload(&self, stream: &Stream, to: *mut u8, from: &[u8]) -> Result<()> {
        // SAFETY: the same contract.
        unsafe { call!(self, Stream stream, upload(to, from)) }
    }

    /// See [`Backend::download`].
    ///
    /// # Safety
    /// As there.
    pub unsafe fn download(&self, stream: &Stream, to: &mut [u8], from: *const u8) -> Result<()> {
        // SAFETY: the same contract.
        unsafe { call!(self, Stream stream, download(to, from)) }
    }

    /// See [`Backend::receive`].
    ///
    /// # Safety
    /// As there.
    pub unsafe fn receive(&self, stream: &Stream, rows: usize, arrays: &[Array], take: &mut Take<'_>) -> Result<()> {
        // SAFETY: the same contract.
        unsafe { call!(self, Stream stream, receive(rows, arrays, take)) }
    }

    /// See [`Backend::copy`].
    ///
    /// # Safety
    /// As there.
    pub unsafe fn copy(&self, stream: &Stream, to: *mut u8, from: *const u8, bytes: usize) -> Result<()> {
        // SAFETY: the same contract.
        unsafe { call!(self, Stream stream, copy(to, from, bytes)) }
    }

    /// See [`Backend::copy_from`].
    ///
    /// # Safety
    /// As there.
    pub unsafe fn copy_from(
        &self,
        stream: &Stream,
        to: *mut u8,
        other: &Runtime,
        from: *const u8,
        bytes: usize,
    ) -> Result<()> {
        match (self, stream, other) {
            #[cfg(feature = "cuda")]
            (Runtime::Cuda(device), Stream::Cuda(stream), Runtime::Cuda(other)) => {
                // SAFETY: the same contract.
                unsafe { device.copy_from(stream, to, other, from, bytes) }
            }
            (Runtime::Emulator(device), Stream::Emulator(stream), Runtime::Emulator(other)) => {
                // SAFETY: the same contract.
                unsafe { device.copy_from(stream, to, other, from, bytes) }
            }
            #[cfg(feature = "cuda")]
            _ => unreachable!("a stream or memory of another kind of device"),
        }
    }

    /// See [`Backend::fill`].
    ///
    /// # Safety
    /// As there.
    pub unsafe fn fill(&self, stream: &Stream, to: *mut u8, byte: u8, bytes: usize) -> Result<()> {
        // SAFETY: the same contract.
        unsafe { call!(self, Stream stream, fill(to, byte, bytes)) }
    }

    /// See [`Backend::launch`].
    ///
    /// # Safety
    /// As there.
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
    pub fn load<A: KernelArgs>(&self, kernel: &Kernel<A>, shared_bytes: u32) -> Result<()> {
        call!(self, load(kernel, shared_bytes))
    }

    /// See [`Backend::follow`].
    pub fn follow(&self, stream: &Stream, other: &Stream) -> Result<()> {
        match (self, stream, other) {
            #[cfg(feature = "cuda")]
            (Runtime::Cuda(device), Stream::Cuda(stream), Stream::Cuda(other)) => device.follow(stream, other),
            (Runtime::Emulator(device), Stream::Emulator(stream), Stream::Emulator(other)) => {
                device.follow(stream, other)
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
