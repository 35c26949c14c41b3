//! The receiver of launches: a stream, or a check that the launches are legal.

use cuda_std::PtrMut;
use cuda_std::launch::{Kernel, KernelArgs, LaunchConfig};

pub(crate) use super::backend::Queue;
#[cfg(any(feature = "cuda", test))]
use super::limits::check_launch;
use super::runtime::{Runtime, Stream};
use crate::Result;

/// A queue that launches on a stream of a device.
#[derive(Clone, Copy)]
pub(crate) struct OnStream<'a> {
    /// Device of the launches.
    pub runtime: &'a Runtime,
    /// Stream of `runtime` that receives the launches.
    pub stream: &'a Stream,
}

impl Queue for OnStream<'_> {
    unsafe fn launch<A: KernelArgs>(&self, kernel: &Kernel<A>, config: LaunchConfig, args: A) -> Result<()> {
        // SAFETY: the caller promises the contract of `Runtime::launch`.
        unsafe { self.runtime.launch(self.stream, kernel, config, args) }
    }

    unsafe fn fill<V>(&self, to: PtrMut<V>, byte: u8) -> Result<()> {
        // SAFETY: the caller promises the contract of `Runtime::fill`.
        unsafe { self.runtime.fill(self.stream, to, byte) }
    }
}

/// A queue that launches nothing. It checks each launch and loads its kernel.
#[cfg(any(feature = "cuda", test))]
pub(crate) struct Preload<'a>(pub &'a Runtime);

#[cfg(any(feature = "cuda", test))]
impl Queue for Preload<'_> {
    unsafe fn launch<A: KernelArgs>(&self, kernel: &Kernel<A>, config: LaunchConfig, _: A) -> Result<()> {
        check_launch(kernel.name(), kernel.max_threads(), config)?;
        self.0.load(kernel, &config)
    }

    unsafe fn fill<V>(&self, _: PtrMut<V>, _: u8) -> Result<()> {
        Ok(())
    }
}
