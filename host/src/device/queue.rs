//! The receiver of launches: a stream, or a check that the launches are legal.

use cuda_std::PtrMut;
use cuda_std::launch::{Kernel, KernelArgs, LaunchConfig, MOST_BLOCKS};

use super::runtime::{Runtime, Stream};
use crate::{Error, Result};

/// A receiver of launches and fills, which keeps their order.
pub(crate) trait Queue {
    /// Launches a kernel, in the order of the queue.
    ///
    /// # Safety
    /// As [`Runtime::launch`].
    unsafe fn launch<A: KernelArgs>(&self, kernel: &Kernel<A>, config: LaunchConfig, args: A) -> Result<()>;
    /// Fills all of `to` with `byte`, in the order of the queue.
    ///
    /// # Safety
    /// As [`Runtime::fill`].
    unsafe fn fill<V>(&self, to: PtrMut<V>, byte: u8) -> Result<()>;
}

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
        self.0.load(kernel, config.shared_bytes)
    }

    unsafe fn fill<V>(&self, _: PtrMut<V>, _: u8) -> Result<()> {
        Ok(())
    }
}

/// Fails with [`Error::LaunchLimit`] if the grid or the block exceeds the limits of CUDA, or the block those of the kernel.
pub(crate) fn check_launch(kernel: &'static str, max_threads: Option<u32>, config: LaunchConfig) -> Result<()> {
    let refused = |what, asked, limit| Err(Error::LaunchLimit { kernel, what, asked, limit });
    for ((what, asked), limit) in ["grid x", "grid y", "grid z"].into_iter().zip(config.grid).zip(MOST_BLOCKS) {
        if asked > limit {
            return refused(what, asked, limit);
        }
    }
    let threads = config.block.iter().map(|&threads| u64::from(threads)).product();
    let limit = max_threads.map_or(1024, u64::from);
    if threads > limit { refused("threads a block", threads, limit) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cuda_std::kernel(max_threads = 256)]
    unsafe fn bounded() {}

    #[test]
    fn a_grid_has_as_many_blocks_as_31_bits_count_and_16_along_the_others() {
        let checked = |grid, threads| {
            check_launch(
                Bounded::KERNEL.name(),
                Bounded::KERNEL.max_threads(),
                LaunchConfig { grid, ..LaunchConfig::linear(1, threads) },
            )
        };
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
}
