//! Exact search as a step of another GPU program: queries, results and new vectors in device memory, work on the caller's stream.
//!
//! | method | what it does | waits |
//! |---|---|---|
//! | [`FlatIndex::device_workspace`] | plans searches of up to a number of queries, with all of their memory | yes |
//! | [`FlatIndex::search_device`] | enqueues a search | no; it may be captured into a CUDA graph |
//! | [`FlatIndex::range_search_device`] | enqueues a search of all vectors within a radius | no, the same |
//! | [`FlatIndex::add_device`] | adds vectors | for the stream |
//!
//! Results have the bits of [`FlatIndex::search`]. That search asks the host twice: are the queries finite, and did the candidates of a query
//! overflow? A search on a stream asks the device. A query that is not finite gets no neighbours and the distance NaN, and a kernel searches
//! among all rows for a query whose candidates overflowed. So each result is exact, and no call waits.
//!
//! ```no_run
//! use warpann::cust::memory::DeviceBuffer;
//! use warpann::cust::prelude::*;
//! use warpann::views::{DeviceNeighbors, DeviceVectors};
//! use warpann::{Device, FlatIndex, Metric, SearchOptions};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // The device's primary context: what cust's quick_init gives, and what warpann works in.
//! let _context = warpann::cust::quick_init()?;
//! let stream = Stream::new(StreamFlags::DEFAULT, None)?;
//! let mut index = FlatIndex::<f32>::new(2, Metric::L2, Device::Gpu(0))?;
//! let base = DeviceBuffer::from_slice(&[0.0f32, 0.0, 3.0, 4.0, 1.0, 1.0])?;
//! // SAFETY: the buffer holds the vectors.
//! unsafe { index.add_device(stream.as_inner(), &DeviceVectors::of_slice(&base, 2)?)? };
//!
//! let (queries, k) = (DeviceBuffer::from_slice(&[0.9f32, 1.2])?, 2);
//! let (mut ids, mut distances) = (DeviceBuffer::from_slice(&[0u64; 2])?, DeviceBuffer::from_slice(&[0f32; 2])?);
//! let mut workspace = index.device_workspace(1, k, &SearchOptions::new())?;
//! let results = DeviceNeighbors::of_slices(&mut ids, &mut distances)?;
//! // SAFETY: buffers, workspace and index live and do not change until the stream is done.
//! unsafe { index.search_device(&mut workspace, stream.as_inner(), &DeviceVectors::of_slice(&queries, 2)?, &results)? };
//! stream.synchronize()?;
//! assert_eq!(ids.as_host_vec()?, [2, 0]);
//! # Ok(())
//! # }
//! ```

use cuda_std::Ptr;

use super::gpu::FlatDevice;
use super::{FlatIndex, Version};
use crate::device::runtime::Stream;
use crate::enqueued::Enqueue;
pub use crate::enqueued::workspace::DeviceWorkspace;
use crate::enqueued::workspace::{OnGpu, PlannedVersion, check_planned};
pub use crate::select::device::CUstream;
use crate::validate::{MAX_ROWS, check_rows};
use crate::views::{DeviceCounts, DeviceNeighbors, DeviceVectors};
use crate::{Element, Error, Result, SearchOptions, host_memory};

impl<T: Element> FlatIndex<T> {
    /// Plans searches of up to `queries` queries for `k` neighbours by [`search_device`](Self::search_device), and allocates their memory.
    /// Of the options, only the filter has an effect: it becomes a part of the workspace. Prepares vectors that have changed, loads kernels,
    /// and waits for all of it. O(len), if the index has ids of the caller's, removed vectors or a filter.
    ///
    /// # Errors
    /// [`Error::NotInDeviceMemory`] for an index on the CPU, the emulator or several devices, or whose vectors are streamed from host memory;
    /// [`Error::Zero`], [`Error::LaunchLimit`] for a `k` beyond 32 bits, [`Error::WrongFilterLength`], [`Error::StaleFilter`],
    /// [`Error::ResultTooLarge`], [`Error::OutOfDeviceMemory`], and the errors of the device's driver.
    pub fn device_workspace(&self, queries: usize, k: usize, options: &SearchOptions<'_>) -> Result<DeviceWorkspace> {
        let device = self.check_device_search(queries, k)?;
        let among = self.among(options)?;
        let search = device.plan_search(queries, k, among.as_deref(), self.rows.names()?)?;
        Ok(self.workspace_of(Box::new(search), queries, k))
    }

    /// Checks the place of the index and the size of results. Returns the device.
    pub(crate) fn check_device_search(&self, queries: usize, k: usize) -> Result<&FlatDevice> {
        let (device, _) = self.on_gpu()?;
        check_planned(queries, k)?;
        Ok(device)
    }

    /// The workspace of a search that was planned for the vectors of now.
    pub(crate) fn workspace_of(&self, search: Box<dyn Enqueue>, queries: usize, k: usize) -> DeviceWorkspace {
        DeviceWorkspace::new(search, PlannedVersion::Flat(self.version.0), queries, k)
    }

    /// Enqueues a search and returns at once: finds the nearest vectors of each of `queries`, in device memory, and writes them to `results`, k
    /// for each query, best first, with the bits of [`search_with`](Self::search_with). `stream` may be null (the default stream).
    ///
    /// The call neither allocates nor waits. It may be captured into a CUDA graph, which then searches again at each launch, as long as index
    /// and workspace live unchanged. A query with NaN or infinity gets the ids [`NONE`](crate::NONE) and the distances NaN.
    ///
    /// # Errors
    /// [`Error::StaleWorkspace`] if the index has changed since the workspace was made; [`Error::BeyondPlan`] for too many queries;
    /// [`Error::BadAddress`], [`Error::OtherDevice`], [`Error::WrongLength`]; [`Error::Driver`] if the device refuses a launch, after which
    /// the results are unspecified.
    ///
    /// # Safety
    /// Until the stream has done the work, and for a graph until its last launch is done:
    /// - `stream` belongs to the primary context of the index's GPU, and the addresses belong to it or are accessible from it;
    /// - `queries` has its number of vectors of the index's dimension, and no other work writes them;
    /// - `results` has room for queries · k ids and distances, no other work uses them, and they overlap neither each other nor the queries;
    /// - no other work uses the workspace, and it is not dropped;
    /// - the index does not change and is not dropped. Searches of it may run at the same time.
    pub unsafe fn search_device(
        &self,
        workspace: &mut DeviceWorkspace,
        stream: CUstream,
        queries: &DeviceVectors<T>,
        results: &DeviceNeighbors,
    ) -> Result<()> {
        let (_, on) = self.on_gpu()?;
        // SAFETY: as the caller promises.
        unsafe { workspace.search(PlannedVersion::Flat(self.version.0), on, stream, queries, results, None) }
    }

    /// Enqueues a range search and returns at once: finds the vectors whose distance from each of `queries` is at most `radius` (similarity: at
    /// least). `results` gets the best of them, as many as the workspace has neighbours of a query, with the bits of
    /// [`range_search`](Self::range_search); the slots that are left get [`NONE`](crate::NONE) and [`Metric::worst`](crate::Metric::worst). `counts`
    /// gets the number of all vectors within the radius for each query, which may be larger.
    ///
    /// The workspace is one of [`device_workspace`](Self::device_workspace), whose `k` is the number of places of a query; its filter holds. The
    /// call may be captured as [`search_device`](Self::search_device), with this radius. A query with NaN or infinity gets the count 0 and
    /// distances NaN. The cost is that of a search for `k` neighbours, and O(len · dim) for each query that fills its places.
    ///
    /// # Errors
    /// As [`search_device`](Self::search_device); [`Error::BadRadius`] for NaN.
    ///
    /// # Safety
    /// As [`search_device`](Self::search_device); `counts` has room for a number of each query, with the same promises as for `results`.
    pub unsafe fn range_search_device(
        &self,
        workspace: &mut DeviceWorkspace,
        stream: CUstream,
        queries: &DeviceVectors<T>,
        radius: f32,
        results: &DeviceNeighbors,
        counts: &DeviceCounts,
    ) -> Result<()> {
        let (_, on) = self.on_gpu()?;
        let (version, within) = (PlannedVersion::Flat(self.version.0), Some((radius, counts)));
        // SAFETY: as the caller promises.
        unsafe { workspace.search(version, on, stream, queries, results, within) }
    }

    /// Adds vectors in device memory as [`add`](Self::add) adds those of the host: copies them on the device, in the order of `stream`, and
    /// waits for the stream. `stream` may be null (the default stream). If the vectors do not fit the device's budget, they pass through host
    /// memory. O(rows · dim).
    ///
    /// # Errors
    /// [`Error::NotInDeviceMemory`] for an index on the CPU, the emulator or several devices; [`Error::BadAddress`], [`Error::OtherDevice`];
    /// and as [`add`](Self::add).
    ///
    /// # Safety
    /// `stream` belongs to the primary context of the index's GPU, and the address belongs to it or is accessible from it. When the stream
    /// arrives at this call, `rows` has its number of vectors of the index's dimension, and no other work writes them until the call returns.
    pub unsafe fn add_device(&mut self, stream: CUstream, rows: &DeviceVectors<T>) -> Result<()> {
        check_rows(rows.len() as u64, MAX_ROWS)?;
        let first = self.rows.next();
        let Some(end) = first.checked_add(rows.len() as u64) else { return Err(Error::ReservedId) };
        let mut ids = host_memory::with_room(rows.len())?;
        ids.extend(first..end);
        // SAFETY: as the caller promises.
        unsafe { self.add_device_with_ids(stream, rows, &ids) }
    }

    /// As [`add_device`](Self::add_device), with one id for each vector, in host memory. Only ids that ascend and lie above those in the index
    /// keep the vectors on the device; others send them through host memory.
    ///
    /// # Errors
    /// As [`add_device`](Self::add_device) and [`add_with_ids`](Self::add_with_ids).
    ///
    /// # Safety
    /// As [`add_device`](Self::add_device).
    pub unsafe fn add_device_with_ids(&mut self, stream: CUstream, rows: &DeviceVectors<T>, ids: &[u64]) -> Result<()> {
        let (_, on) = self.on_gpu()?;
        on.check("vectors", rows)?;
        check_rows(rows.len() as u64, MAX_ROWS)?;
        self.check_id_list(rows.len(), ids)?;
        self.check_unknown(ids)?;
        if ids.is_empty() {
            return Ok(());
        }
        let (from, own_stream) = (on.rows_at(rows), on.stream(stream));
        // SAFETY: as the caller promises.
        unsafe {
            if self.append_from_device(&own_stream, from, ids)? {
                return Ok(());
            }
            let downloaded = self.on_gpu()?.1.downloaded("vectors", stream, rows)?;
            self.add_with_ids(downloaded.rows(), ids)
        }
    }

    /// Appends vectors of the device, if their new ids ascend above all others and they fit the device.
    ///
    /// # Safety
    /// As [`FlatDevice::add_from_device`].
    unsafe fn append_from_device(&mut self, stream: &Stream, from: Ptr<u8>, ids: &[u64]) -> Result<bool> {
        if ids[0] < self.rows.next() || !ids.is_sorted() || self.check_room(self.rows.rows() + ids.len()).is_err() {
            return Ok(false);
        }
        self.own_rows()?.reserve(ids)?;
        self.version = Version::new();
        let Some(device) = self.own_backend(ids.len())?.as_device_mut() else { return Ok(false) };
        // SAFETY: as the caller promises.
        let added = unsafe { device.add_from_device(stream, from, ids.len())? };
        if added {
            self.own_rows()?.append(ids);
        }
        Ok(added)
    }

    /// The back end and its GPU.
    ///
    /// # Errors
    /// [`Error::NotInDeviceMemory`] unless the index is on one GPU.
    pub(crate) fn on_gpu(&self) -> Result<(&FlatDevice, OnGpu<'_>)> {
        let device = self.backend.as_device();
        let on_gpu = device.and_then(|device| Some((device, OnGpu::new(device.runtime(), self.dim())?)));
        on_gpu.ok_or_else(|| Error::NotInDeviceMemory { index: self.device() })
    }
}
