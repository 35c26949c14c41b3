//! The workspace of searches in device memory, and the checks of the caller's vectors, results and streams.

use std::fmt;

use cuda_std::{Ptr, PtrMut};

use super::download::download;
use super::{PlannedSearch, Range};
use crate::device::cuda::{CudaDevice, Stream as CudaStream};
use crate::device::runtime::{Runtime, Stream};
use crate::select::device::CUstream;
use crate::validate::check_radius;
use crate::views::{DeviceCounts, DeviceNeighbors, DeviceVectors};
use crate::{Element, Error, Result};

/// A planned search of an index, with all device memory that it needs beside queries and results. It belongs to one
/// version of the index.
///
/// One search at a time may use it: another may follow on the same stream, or after a wait.
pub struct DeviceWorkspace {
    search: PlannedSearch,
    version: PlannedVersion,
    queries: usize,
    k: usize,
}

/// The version of an index for which a search is planned. Indexes of a kind and their versions have different numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlannedVersion {
    /// The name of the kind that counts the versions.
    pub kind: &'static str,
    pub number: u64,
}

impl fmt::Debug for DeviceWorkspace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (queries, k, bytes) = (self.queries, self.k, self.device_bytes());
        f.debug_struct("DeviceWorkspace").field("queries", &queries).field("k", &k).field("bytes", &bytes).finish()
    }
}

impl DeviceWorkspace {
    /// Largest number of queries of a search.
    pub fn queries(&self) -> usize {
        self.queries
    }

    /// Number of neighbours of a query.
    pub fn k(&self) -> usize {
        self.k
    }

    /// Bytes of device memory of the workspace.
    pub fn device_bytes(&self) -> u64 {
        self.search.bytes()
    }

    /// The workspace of a search that was planned for a version of an index. Runs one query, so that all kernels are
    /// loaded, and waits.
    ///
    /// # Errors
    /// Errors of the device's driver.
    pub(crate) fn new(
        search: PlannedSearch,
        version: PlannedVersion,
        queries: usize,
        k: usize,
    ) -> Result<DeviceWorkspace> {
        if queries > 0 {
            search.run_once()?;
        }
        Ok(DeviceWorkspace { search, version, queries, k })
    }

    /// Checks the arguments and enqueues the search of an index that now has `version`: of the nearest vectors, or of
    /// those of them within a radius, and then of the number of all vectors within it.
    ///
    /// # Errors
    /// Those of [`FlatIndex::search_device`](crate::FlatIndex::search_device).
    ///
    /// # Safety
    /// As [`FlatIndex::search_device`](crate::FlatIndex::search_device).
    pub(crate) unsafe fn search<T: Element>(
        &self,
        version: PlannedVersion,
        on: OnGpu<'_>,
        stream: CUstream,
        queries: &DeviceVectors<T>,
        results: &DeviceNeighbors,
        within: Option<(f32, &DeviceCounts)>,
    ) -> Result<()> {
        // An index that moves to another device keeps its version.
        let planned_on = self.search.runtime.as_gpu().map(|gpu| gpu.index());
        if self.version != version || planned_on != Some(on.gpu.index()) {
            return Err(Error::StaleWorkspace);
        }
        let (count, k) = (queries.len(), self.k);
        if count > self.queries {
            let (asked, limit) = (count as u64, self.queries as u64);
            return Err(Error::TooMany { what: "queries for this workspace", asked, limit });
        }
        on.check("queries", queries)?;
        results.check(count * k, on.gpu.index())?;
        let (ids, distances) = results.addresses();
        if count > 0 {
            on.gpu.check_memory("ids", ids)?;
            on.gpu.check_memory("distances", distances)?;
        }
        let mut range = None;
        if let Some((radius, counts)) = within {
            check_radius(radius)?;
            counts.check(count, on.gpu.index())?;
            if count > 0 {
                on.gpu.check_memory("counts", counts.address())?;
            }
            range = Some(Range { radius, counts: PtrMut::new(place(counts.address()), count) });
        }
        let results = (PtrMut::new(place(ids), count * k), PtrMut::new(place(distances), count * k));
        // SAFETY: as the caller promises.
        unsafe { self.search.enqueue(&on.stream(stream), on.rows_at(queries), count, results, range) }
    }
}

/// Checks the size of the results of a planned search.
///
/// # Errors
/// [`Error::Zero`]; [`Error::ResultTooLarge`] if memory has no room for the results.
pub(crate) fn check_planned(queries: usize, k: usize) -> Result<()> {
    if k == 0 {
        return Err(Error::Zero { what: "k" });
    }
    if queries.checked_mul(k).is_none_or(|slots| slots > isize::MAX as usize / size_of::<u64>()) {
        return Err(Error::ResultTooLarge { queries, k });
    }
    Ok(())
}

/// The GPU of an index of vectors of `dim` components, to which the caller's vectors, results and streams must belong.
#[derive(Clone, Copy)]
pub struct OnGpu<'a> {
    runtime: &'a Runtime,
    gpu: &'a CudaDevice,
    dim: usize,
}

impl<'a> OnGpu<'a> {
    /// The device of a runtime; `None` if that is the emulator.
    pub(crate) fn new(runtime: &'a Runtime, dim: usize) -> Option<OnGpu<'a>> {
        Some(OnGpu { runtime, gpu: runtime.as_gpu()?, dim })
    }

    /// Checks vectors of the caller's, without reading them.
    pub(crate) fn check<T: Element>(self, what: &'static str, vectors: &DeviceVectors<T>) -> Result<()> {
        vectors.check(what, self.gpu.index())?;
        if vectors.is_empty() { Ok(()) } else { self.gpu.check_memory(what, vectors.address()) }
    }

    /// A stream of the caller's on the device.
    pub(crate) fn stream(self, stream: CUstream) -> Stream {
        Stream::Cuda(CudaStream::of_caller(self.gpu, stream.cast()))
    }

    /// The first component of vectors in device memory, as bytes of as many vectors.
    pub(crate) fn rows_at<T: Element>(self, rows: &DeviceVectors<T>) -> Ptr<u8> {
        Ptr::new(place(rows.address()), rows.len().saturating_mul(self.dim * size_of::<T>()))
    }

    /// Checks vectors of the caller's and copies them to the host, in the order of `stream`, for which it waits. Calls
    /// `take` with them.
    ///
    /// # Errors
    /// [`Error::BadMemory`], [`Error::OutOfHostMemory`], errors of the device's driver.
    ///
    /// # Safety
    /// As [`FlatIndex::add_device`](crate::FlatIndex::add_device).
    pub(crate) unsafe fn downloaded<T: Element>(
        self,
        what: &'static str,
        stream: CUstream,
        vectors: &DeviceVectors<T>,
    ) -> Result<Downloaded> {
        self.check(what, vectors)?;
        let from = self.rows_at(vectors);
        // SAFETY: as the caller promises.
        let words = unsafe { download(self.runtime, &self.stream(stream), from, 0..from.len())? };
        Ok(Downloaded { words, components: vectors.len() * self.dim })
    }
}

/// Vectors of the device in host memory, in words, because bytes would not be aligned for every element.
pub(crate) struct Downloaded {
    words: Vec<u32>,
    components: usize,
}

impl Downloaded {
    /// The components of the vectors.
    pub fn rows<T: Element>(&self) -> &[T] {
        &bytemuck::cast_slice(&self.words)[..self.components]
    }
}

/// A device address as a pointer, which the host never reads.
fn place<V>(address: u64) -> *mut V {
    std::ptr::without_provenance_mut(address as usize)
}
