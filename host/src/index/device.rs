//! Searches and additions as a step of another GPU program: queries, results and new vectors in device memory, work on
//! the caller's stream.
//!
//! | method | what it does | waits |
//! |---|---|---|
//! | [`Index::device_workspace`] | plans searches of up to a number of queries, with all of their memory | yes |
//! | [`Index::search_device`] | enqueues a search | no; it may be captured into a CUDA graph |
//! | [`Index::range_search_device`] | enqueues a search of all vectors within a radius | no, the same |
//! | [`Index::add_device`] | adds vectors | for the stream |

use super::{Index, Kind, check_new};
use crate::search::workspace::{DeviceWorkspace, check_planned};
use crate::select::device::CUstream;
use crate::views::{DeviceCounts, DeviceNeighbors, DeviceVectors};
#[cfg(doc)]
use crate::{Error, NONE};
use crate::{Result, SearchOptions, Watch};

/// # Device memory
///
/// Results have the bits of [`search_with`](Self::search_with). That search asks the host: are the queries finite, and
/// does a query need more work? A search on a stream asks the device. A query that is not finite gets no neighbours and
/// the distance NaN, and kernels complete the queries that need it. So no call waits. Two things differ: inverted files
/// read the planned number of lists under a filter, as without [`SearchOptions::widen`], and a walk in a graph that
/// finds fewer than `k` accepted vectors is not followed by an exact search.
///
/// ```no_run
/// use warpann::cust::memory::DeviceBuffer;
/// use warpann::cust::prelude::*;
/// use warpann::views::{DeviceNeighbors, DeviceVectors};
/// use warpann::{Device, FlatIndex, Metric, SearchOptions};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// // The device's primary context: what cust's quick_init gives, and what warpann works in.
/// let _context = warpann::cust::quick_init()?;
/// let stream = Stream::new(StreamFlags::DEFAULT, None)?;
/// let mut index = FlatIndex::<f32>::new(2, Metric::L2, Device::Gpu(0))?;
/// let base = DeviceBuffer::from_slice(&[0.0f32, 0.0, 3.0, 4.0, 1.0, 1.0])?;
/// // SAFETY: the buffer holds the vectors.
/// unsafe { index.add_device(stream.as_inner(), &DeviceVectors::of_slice(&base, 2)?)? };
///
/// let (queries, k) = (DeviceBuffer::from_slice(&[0.9f32, 1.2])?, 2);
/// let (mut ids, mut distances) = (DeviceBuffer::from_slice(&[0u64; 2])?, DeviceBuffer::from_slice(&[0f32; 2])?);
/// let mut workspace = index.device_workspace(1, k, &SearchOptions::new())?;
/// let results = DeviceNeighbors::of_slices(&mut ids, &mut distances)?;
/// // SAFETY: buffers, workspace and index live and do not change until the stream is done.
/// unsafe { index.search_device(&mut workspace, stream.as_inner(), &DeviceVectors::of_slice(&queries, 2)?, &results)? };
/// stream.synchronize()?;
/// assert_eq!(ids.as_host_vec()?, [2, 0]);
/// # Ok(())
/// # }
/// ```
impl<K: Kind> Index<K> {
    /// Plans searches of up to `queries` queries for `k` neighbours by [`search_device`](Self::search_device), and
    /// allocates their memory. Filter, probes, scan and beam of the options become a part of the workspace. Prepares
    /// vectors that have changed, the image of inverted files or the graph, loads kernels, and waits for all of it.
    /// O(len), if the index has ids of the caller's, removed vectors or a filter.
    ///
    /// A search of fewer queries of inverted files costs as much as one of the planned number, or of a half, a quarter,
    /// .. of it, whatever is just enough. Where [`search_with`](Self::search_with) of a graph would compare all
    /// accepted vectors, so does the planned search.
    ///
    /// # Errors
    /// [`Error::NotTrained`]; [`Error::NotInDeviceMemory`] for an index on the CPU, the emulator or several devices, or
    /// whose vectors are streamed from host memory; [`Error::Zero`], [`Error::LaunchLimit`] for a `k` beyond 32 bits,
    /// [`Error::WrongLength`], [`Error::StaleFilter`], [`Error::Mismatch`] for a filter for each query,
    /// [`Error::TooMany`] for codes of bits of more components than the device rotates, 12,000 to 29,000;
    /// [`Error::ResultTooLarge`], [`Error::OutOfDeviceMemory`], and the errors of the device's driver.
    pub fn device_workspace(&self, queries: usize, k: usize, options: &SearchOptions<'_>) -> Result<DeviceWorkspace> {
        self.kind.check_queries(&[], "device_workspace")?;
        self.kind.on_gpu()?;
        check_planned(queries, k)?;
        let search = self.kind.plan(queries, k, options)?;
        DeviceWorkspace::new(search, self.kind.planned_version(), queries, k)
    }

    /// Enqueues a search and returns at once: finds the nearest vectors of each of `queries`, in device memory, and
    /// writes them to `results`, k for each query, best first. `stream` may be null (the default stream).
    ///
    /// The call neither allocates nor waits. It may be captured into a CUDA graph, which then searches again at each
    /// launch, as long as index and workspace live unchanged. A query with NaN or infinity gets the ids [`NONE`] and
    /// the distances NaN.
    ///
    /// # Errors
    /// [`Error::StaleWorkspace`] if the index has changed since the workspace was made; [`Error::TooMany`] for too many
    /// queries; [`Error::BadMemory`], [`Error::WrongLength`]; [`Error::Driver`] if the device refuses a launch, after
    /// which the results are unspecified.
    ///
    /// # Safety
    /// Until the stream has done the work, and for a graph until its last launch is done:
    /// - `stream` belongs to the primary context of the index's GPU, and the addresses belong to it or are accessible
    ///   from it;
    /// - `queries` has its number of vectors of the index's dimension, and no other work writes them;
    /// - `results` has room for queries · k ids and distances, no other work uses them, and they overlap neither each
    ///   other nor the queries;
    /// - no other work uses the workspace, and it is not dropped;
    /// - the index does not change and is not dropped. Searches of it may run at the same time.
    pub unsafe fn search_device(
        &self,
        workspace: &mut DeviceWorkspace,
        stream: CUstream,
        queries: &DeviceVectors<K::Element>,
        results: &DeviceNeighbors,
    ) -> Result<()> {
        // SAFETY: as the caller promises.
        unsafe { workspace.search(self.kind.planned_version(), self.kind.on_gpu()?, stream, queries, results, None) }
    }

    /// Enqueues a range search and returns at once: finds the vectors whose distance from each of `queries` is at most
    /// `radius` (similarity: at least). `results` gets the best of them, as many as the workspace has neighbours of a
    /// query, with the bits of [`range_search`](Self::range_search); the slots that are left get [`NONE`] and
    /// [`Metric::worst`](crate::Metric::worst). `counts` gets the number of all vectors within the radius for each
    /// query, which may be larger.
    ///
    /// The workspace is one of [`device_workspace`](Self::device_workspace), whose `k` is the number of places of a
    /// query; its filter holds. The call may be captured as [`search_device`](Self::search_device), with this radius. A
    /// query with NaN or infinity gets the count 0 and distances NaN. The cost is that of a search for `k` neighbours,
    /// and a comparison with all vectors, or with those in the probed lists, for each query that fills its places.
    ///
    /// # Errors
    /// As [`search_device`](Self::search_device); [`Error::BadNumber`] for NaN; [`Error::StaleWorkspace`] for a
    /// workspace of walks in a graph, which find near vectors, not all within a radius: with a beam of as many vectors
    /// as the index has, a search compares all of them.
    ///
    /// # Safety
    /// As [`search_device`](Self::search_device); `counts` has room for a number of each query, with the same promises
    /// as for `results`.
    pub unsafe fn range_search_device(
        &self,
        workspace: &mut DeviceWorkspace,
        stream: CUstream,
        queries: &DeviceVectors<K::Element>,
        radius: f32,
        results: &DeviceNeighbors,
        counts: &DeviceCounts,
    ) -> Result<()> {
        let (version, within) = (self.kind.planned_version(), Some((radius, counts)));
        // SAFETY: as the caller promises.
        unsafe { workspace.search(version, self.kind.on_gpu()?, stream, queries, results, within) }
    }

    /// Adds vectors in device memory as [`add`](Self::add) adds those of the host, in the order of `stream`, for which
    /// the call waits. `stream` may be null (the default stream). Those of an exact index are copied on the device; if
    /// they do not fit its budget, and for other kinds, they pass through host memory.
    ///
    /// # Errors
    /// [`Error::NotInDeviceMemory`] for an index on the CPU, the emulator or several devices; [`Error::BadMemory`];
    /// and as [`add`](Self::add).
    ///
    /// # Safety
    /// `stream` belongs to the primary context of the index's GPU, and the address belongs to it or is accessible from
    /// it. When the stream arrives at this call, `rows` has its number of vectors of the index's dimension, and no
    /// other work writes them until the call returns.
    pub unsafe fn add_device(&mut self, stream: CUstream, rows: &DeviceVectors<K::Element>) -> Result<()> {
        // SAFETY: as the caller promises.
        unsafe { self.add_from_device(stream, rows, None) }
    }

    /// As [`add_device`](Self::add_device), with one id for each vector, in host memory. Only ids that ascend and lie
    /// above those in the index keep the vectors of an exact index on the device; others send them through host memory.
    ///
    /// # Errors
    /// As [`add_device`](Self::add_device) and [`add_with_ids`](Self::add_with_ids).
    ///
    /// # Safety
    /// As [`add_device`](Self::add_device).
    pub unsafe fn add_device_with_ids(
        &mut self,
        stream: CUstream,
        rows: &DeviceVectors<K::Element>,
        ids: &[u64],
    ) -> Result<()> {
        // SAFETY: as the caller promises.
        unsafe { self.add_from_device(stream, rows, Some(ids)) }
    }

    /// # Safety
    /// As [`add_device`](Self::add_device).
    unsafe fn add_from_device(
        &mut self,
        stream: CUstream,
        rows: &DeviceVectors<K::Element>,
        ids: Option<&[u64]>,
    ) -> Result<()> {
        self.kind.on_gpu()?.check("vectors", rows)?;
        if let Some(ids) = ids {
            check_new(&self.kind, rows.len(), ids)?;
        }
        // SAFETY: as the caller promises.
        unsafe {
            if self.kind.add_on_device(stream, rows, ids)? {
                return Ok(());
            }
            let downloaded = self.kind.on_gpu()?.downloaded("vectors", stream, rows)?;
            self.kind.add(downloaded.rows(), ids, &Watch::none())
        }
    }
}
