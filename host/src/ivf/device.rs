//! Searches of inverted files whose queries and results stay in the memory of a GPU, on the caller's stream, and vectors that come from there.

use super::IvfIndex;
use super::gpu::IvfDevice;
use crate::enqueued::workspace::{DeviceWorkspace, OnGpu, PlannedVersion, check_planned};
use crate::select::device::CUstream;
use crate::views::{DeviceCounts, DeviceNeighbors, DeviceVectors};
use crate::{Element, Error, Result, SearchOptions};

impl<T: Element> IvfIndex<T> {
    /// Plans searches of up to `queries` queries for `k` neighbours by [`search_device`](Self::search_device), and allocates their memory. Of the
    /// options, probes, scan and filter have an effect, and become a part of the workspace. Makes the image of the index or brings it up to date,
    /// loads kernels, runs a search of about twice as many queries, and waits for all of it. O(len), if ids are not 0, 1, 2, .. or if there
    /// is a filter.
    ///
    /// A search of fewer queries costs as much as one of the planned number, or of a half, a quarter, .. of it, whatever is just enough.
    ///
    /// # Errors
    /// [`Error::NotTrained`]; [`Error::NotInDeviceMemory`] for an index on the CPU, the emulator or several devices; [`Error::Zero`],
    /// [`Error::Zero`], [`Error::LaunchLimit`] for a `k` beyond 32 bits, [`Error::WrongFilterLength`], [`Error::StaleFilter`],
    /// [`Error::ResultTooLarge`], [`Error::OutOfDeviceMemory`], and the errors of the device's driver.
    pub fn device_workspace(&self, queries: usize, k: usize, options: &SearchOptions<'_>) -> Result<DeviceWorkspace> {
        let trained = self.trained_for("device_workspace")?;
        let (device, _) = self.on_gpu()?;
        check_planned(queries, k)?;
        let checked = self.check_options(&[], options)?;
        let search = device.plan_search(&self.view(trained), queries, k, &checked.request())?;
        search.try_plans(device)?;
        Ok(DeviceWorkspace::new(Box::new(search), self.planned_version(), queries, k))
    }

    /// Enqueues a search and returns at once, as [`FlatIndex::search_device`](crate::FlatIndex::search_device): finds the `k` best vectors in the
    /// lists nearest to each of `queries`, in device memory, and writes them to `results`, best first, with the bits of
    /// [`search_with`](Self::search_with) with the same options and without [`widen`](SearchOptions::widen): under a filter a search on the device
    /// reads the planned number of lists, also if they have fewer than `k` accepted vectors.
    ///
    /// # Errors
    /// As [`FlatIndex::search_device`](crate::FlatIndex::search_device).
    ///
    /// # Safety
    /// As [`FlatIndex::search_device`](crate::FlatIndex::search_device).
    pub unsafe fn search_device(
        &self,
        workspace: &mut DeviceWorkspace,
        stream: CUstream,
        queries: &DeviceVectors<T>,
        results: &DeviceNeighbors,
    ) -> Result<()> {
        let (_, on) = self.on_gpu()?;
        // SAFETY: as the caller promises.
        unsafe { workspace.search(self.planned_version(), on, stream, queries, results, None) }
    }

    /// Enqueues a range search and returns at once, as
    /// [`FlatIndex::range_search_device`](crate::FlatIndex::range_search_device), among the vectors in the lists nearest to each query: with the bits
    /// of [`range_search`](Self::range_search) with the options of the workspace.
    ///
    /// # Errors
    /// As [`FlatIndex::range_search_device`](crate::FlatIndex::range_search_device).
    ///
    /// # Safety
    /// As [`FlatIndex::range_search_device`](crate::FlatIndex::range_search_device).
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
        let within = Some((radius, counts));
        // SAFETY: as the caller promises.
        unsafe { workspace.search(self.planned_version(), on, stream, queries, results, within) }
    }

    /// Trains the index as [`train`](Self::train) does, with vectors in device memory. They pass through host memory, in the order of `stream`, for
    /// which the call waits. `stream` may be null (the default stream).
    ///
    /// # Errors
    /// As [`add_device`](Self::add_device) for the place of the vectors, and as [`train`](Self::train).
    ///
    /// # Safety
    /// As [`FlatIndex::add_device`](crate::FlatIndex::add_device).
    pub unsafe fn train_device(&mut self, stream: CUstream, rows: &DeviceVectors<T>) -> Result<()> {
        let (_, on) = self.on_gpu()?;
        // SAFETY: as the caller promises.
        let downloaded = unsafe { on.downloaded("training vectors", stream, rows)? };
        self.train(downloaded.rows())
    }

    /// Adds vectors in device memory as [`add`](Self::add) adds those of the host. They pass through host memory, where the master copy of the
    /// index lies, in the order of `stream`, for which the call waits. `stream` may be null (the default stream).
    ///
    /// # Errors
    /// [`Error::NotInDeviceMemory`] for an index on the CPU, the emulator or several devices; [`Error::BadAddress`],
    /// [`Error::UnknownAddress`], [`Error::OtherDevice`]; and as [`add`](Self::add).
    ///
    /// # Safety
    /// As [`FlatIndex::add_device`](crate::FlatIndex::add_device).
    pub unsafe fn add_device(&mut self, stream: CUstream, rows: &DeviceVectors<T>) -> Result<()> {
        let (_, on) = self.on_gpu()?;
        // SAFETY: as the caller promises.
        let downloaded = unsafe { on.downloaded("vectors", stream, rows)? };
        self.add(downloaded.rows())
    }

    /// As [`add_device`](Self::add_device), with one id for each vector, in host memory.
    ///
    /// # Errors
    /// As [`add_device`](Self::add_device) and [`add_with_ids`](Self::add_with_ids).
    ///
    /// # Safety
    /// As [`add_device`](Self::add_device).
    pub unsafe fn add_device_with_ids(&mut self, stream: CUstream, rows: &DeviceVectors<T>, ids: &[u64]) -> Result<()> {
        let (_, on) = self.on_gpu()?;
        // SAFETY: as the caller promises.
        let downloaded = unsafe { on.downloaded("vectors", stream, rows)? };
        self.add_with_ids(downloaded.rows(), ids)
    }

    fn planned_version(&self) -> PlannedVersion {
        PlannedVersion::Ivf(self.lists.version())
    }

    /// The back end and its GPU.
    ///
    /// # Errors
    /// [`Error::NotInDeviceMemory`] unless the index is on one GPU.
    fn on_gpu(&self) -> Result<(&IvfDevice, OnGpu<'_>)> {
        let device = self.backend.as_device();
        let on_gpu = device.and_then(|device| Some((device, OnGpu::new(device.runtime(), self.dim())?)));
        on_gpu.ok_or_else(|| Error::NotInDeviceMemory { index: self.device() })
    }
}
