//! Inverted files on a GPU: plans of searches in its memory, and training vectors from there.

use super::gpu::IvfDevice;
use super::{Ivf, IvfIndex};
use crate::index::private::{OnDevice, Stored};
use crate::search::PlannedSearch;
use crate::search::workspace::{OnGpu, PlannedVersion};
use crate::select::device::CUstream;
use crate::views::DeviceVectors;
use crate::{Element, Error, Result, SearchOptions};

impl<T: Element> IvfIndex<T> {
    /// Trains the index as [`train`](Self::train) does, with vectors in device memory. They pass through host memory,
    /// in the order of `stream`, for which the call waits. `stream` may be null (the default stream).
    ///
    /// # Errors
    /// As [`add_device`](Self::add_device) for the place of the vectors, and as [`train`](Self::train).
    ///
    /// # Safety
    /// As [`FlatIndex::add_device`](crate::FlatIndex::add_device).
    pub unsafe fn train_device(&mut self, stream: CUstream, rows: &DeviceVectors<T>) -> Result<()> {
        let on = self.kind.on_gpu()?;
        // SAFETY: as the caller promises.
        let downloaded = unsafe { on.downloaded("training vectors", stream, rows)? };
        self.train(downloaded.rows())
    }
}

impl<T: Element> OnDevice for Ivf<T> {
    fn on_gpu(&self) -> Result<OnGpu<'_>> {
        Ok(self.gpu()?.1)
    }

    fn planned_version(&self) -> PlannedVersion {
        PlannedVersion { kind: Self::NAME, number: self.lists.version() }
    }

    fn plan(&self, queries: usize, k: usize, options: &SearchOptions<'_>) -> Result<PlannedSearch> {
        let trained = self.trained_for("device_workspace")?;
        let (device, _) = self.gpu()?;
        let filter = self.accepted(options)?;
        device.plan_search(&self.view(trained), queries, k, &self.request(&[], options, filter.as_deref())?)
    }
}

impl<T: Element> Ivf<T> {
    /// The back end and its GPU.
    ///
    /// # Errors
    /// [`Error::NotInDeviceMemory`] unless the index is on one GPU.
    pub(super) fn gpu(&self) -> Result<(&IvfDevice, OnGpu<'_>)> {
        let device = self.backend.as_device();
        let on_gpu = device.and_then(|device| Some((device, OnGpu::new(device.runtime(), self.dim())?)));
        on_gpu.ok_or_else(|| Error::NotInDeviceMemory { index: self.device() })
    }
}
