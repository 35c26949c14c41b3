//! Launches of kernels whose blocks are on the device before the kernel ahead of them in the stream has ended
//! (programmatic dependent launch; compute capability 9.0 and later).
//!
//! # Why
//! A search of one query is a chain of five to ten kernels of a few µs. Between two of them the device ends one grid,
//! makes its writes visible and starts the next grid.
//!
//! # How
//! Streams of searches and of callers load modules of which every kernel first waits for the work ahead of it
//! ([`dependent_ptx`](cuda_std::launch::dependent_ptx)), so any of their launches may have the attribute. The order of
//! a stream, and what a kernel sees, are as without it. While a stream is captured, the attribute becomes part of the
//! graph.
//!
//! Only launches of at most one block for each multiprocessor have it. Blocks that wait hold registers and shared
//! memory, which the kernel of another stream may need: with the attribute on every launch, 10,000 queries of a graph,
//! which use two streams, took 1.9 ms instead of 1.45.
//!
//! Other streams, such as those of k-means, load the modules as they are embedded. A module that both kinds of streams
//! use is loaded twice.
//!
//! The driver's function for launches with attributes also makes launches with clusters. So a device has clusters if
//! and only if it has such launches; both need compute capability 9.0.
//!
//! # Measured
//! H200, driver 580.159.04, 2026-11-26; µs, the less of two medians; without and with such launches:
//!
//! | 1,000,000 × 128, k = 10 | enqueued | captured graph | in a row |
//! |---|---|---|---|
//! | one query, 8 of 4,096 lists, probes by scores | 53.3, 42.6 | 39.9, 36.4 | 44.3, 33.3 |
//! | one query, exact | 146, 135 | 132, 126 | 137, 124 |
//! | one query, graph, beam 32 | 70, 67 | 61, 60 | 59, 54 |
//! | 100 queries, 8 of 4,096 lists | 76, 68 | 64, 62 | 69, 59 |
//! | 100 queries, 128 of 4,096 lists | 167, 158 | 153, 155 | 160, 152 |
//!
//! Without the second instruction the next grid starts only when the blocks of this one have ended: one query of 8
//! lists takes 1.3 µs more by a captured graph, 2.0 enqueued. With ordinary loads instead of those by the read-only
//! path most kernels take as long as before: 50 cases of k-selection and sorting by events of the device, median ratio
//! 1.000. ptxas 13 moves no load before the wait in either form. Two kernels take longer, by ncu: `assign_few_128` of
//! k-means 310 µs instead of 303 (1,000,000 points, 256 centroids), `compact_candidates` 6.8 instead of 5.0 (16,384
//! lists).

use std::ffi::{c_int, c_uint, c_void};
use std::mem::transmute;
use std::ptr::null_mut;

use cuda_std::launch::{LaunchConfig, MOST_CLUSTER_BLOCKS, PORTABLE_CLUSTER_BLOCKS};

use super::driver as sys;
use super::ptx::portable_only;

/// The first compute capability that has the instructions.
const CAPABILITY: (i32, i32) = (9, 0);
/// The first CUDA version whose driver captures such launches.
const DRIVER: (i32, i32) = (12, 3);

/// The driver's function for launches with attributes.
#[derive(Clone, Copy)]
pub(super) struct DependentLaunches {
    launch: sys::LaunchKernelEx,
    /// The most blocks of a launch with the attribute.
    most_blocks: u64,
}

impl DependentLaunches {
    /// Whether a device of this compute capability has them with a driver of this version, and with them the kernels
    /// that use clusters.
    pub fn possible(capability: (i32, i32), driver: (i32, i32)) -> bool {
        capability >= CAPABILITY && driver >= DRIVER && !portable_only()
    }

    /// `None` if this device or its driver does not have them.
    pub fn find(capability: (i32, i32), driver: (i32, i32), multiprocessors: u32) -> Option<Self> {
        if !Self::possible(capability, driver) {
            return None;
        }
        let function = cuda_loader::symbol(c"cuLaunchKernelEx")?;
        // SAFETY: the driver's function of this name has this signature in cuda.h.
        let launch = unsafe { transmute::<*const c_void, sys::LaunchKernelEx>(function) };
        Some(Self { launch, most_blocks: multiprocessors.into() })
    }

    /// Whether a launch of this size has the attribute.
    pub fn takes(&self, config: &LaunchConfig) -> bool {
        config
            .grid
            .iter()
            .try_fold(1u64, |blocks, &along| blocks.checked_mul(along))
            .is_some_and(|blocks| blocks <= self.most_blocks)
    }

    /// Largest number of blocks of a cluster. All devices of compute capability 9.0 and later take eight. Sixteen need
    /// as many multiprocessors that are neighbours: undivided devices of 128 multiprocessors and more have them (H200
    /// 132).
    pub fn largest_cluster(&self) -> u32 {
        if self.most_blocks >= 128 { MOST_CLUSTER_BLOCKS } else { PORTABLE_CLUSTER_BLOCKS }
    }

    /// Launches a kernel with the clusters of the config, and with the attribute of dependent launches if `dependent`.
    ///
    /// # Safety
    /// As `cuLaunchKernel`; the config passed `check_launch`. If `dependent`, the function is one of a module whose
    /// kernels wait.
    pub unsafe fn launch(
        &self,
        function: sys::CUfunction,
        config: &LaunchConfig,
        dependent: bool,
        stream: sys::CUstream,
        arguments: *mut *mut c_void,
    ) -> sys::Code {
        let allowed: c_int = 1;
        let attributes = [
            sys::LaunchAttribute::new(sys::PROGRAMMATIC_STREAM_SERIALIZATION, allowed),
            sys::LaunchAttribute::cluster(config.cluster as c_int),
        ];
        // Of the two attributes those that the launch has: the first, the last, or both.
        let attributes = &attributes[usize::from(!dependent)..1 + usize::from(config.cluster > 1)];
        let config = sys::LaunchConfig {
            grid: config.grid.map(|blocks| blocks as u32),
            block: config.block,
            shared_bytes: config.shared_bytes,
            stream,
            attributes: attributes.as_ptr(),
            attribute_count: attributes.len() as c_uint,
        };
        // SAFETY: as the caller promises; config and attributes outlive the call.
        unsafe { (self.launch)(&config, function, arguments, null_mut()) }
    }
}

#[cfg(test)]
mod tests {
    use cuda_std::launch::dependent_ptx;

    use super::*;
    use crate::device::ptx;

    #[test]
    fn every_embedded_module_becomes_one_whose_kernels_wait() {
        for module in ptx::MODULES {
            let text = String::from_utf8(module.text().unwrap()).unwrap();
            let waits = dependent_ptx(&text).unwrap_or_else(|| panic!("{}", module.name));
            let kernels = ptx::KERNELS.iter().filter(|(_, of)| *of == module.name).count();
            assert_eq!(waits.matches("\tgriddepcontrol.wait;\n").count(), kernels, "{}", module.name);
            assert!(!waits.contains(".target sm_8") && !waits.contains(".nc."), "{}", module.name);
        }
    }

    #[test]
    fn launches_of_one_block_for_each_multiprocessor_are_taken() {
        let launches = DependentLaunches { launch: never, most_blocks: 132 };
        let takes = |grid| launches.takes(&LaunchConfig { grid, ..LaunchConfig::linear(1, 32) });
        assert!(takes([1, 1, 1]) && takes([132, 1, 1]) && takes([2, 66, 1]));
        assert!(!takes([133, 1, 1]) && !takes([2, 67, 1]) && !takes([u64::MAX, 2, 1]));
    }

    unsafe extern "C" fn never(
        _: *const sys::LaunchConfig,
        _: sys::CUfunction,
        _: *mut *mut c_void,
        _: *mut *mut c_void,
    ) -> sys::Code {
        1
    }
}
