//! The vectors of an exact index in the memory of a GPU.

use cuda_std::Ptr;

use super::gpu::FlatDevice;
use super::{Flat, Version};
use crate::device::runtime::Stream;
use crate::index::private::{OnDevice, Stored};
use crate::search::PlannedSearch;
use crate::search::workspace::{OnGpu, PlannedVersion};
use crate::search_options::SearchRequest;
use crate::select::device::CUstream;
use crate::validate::{MAX_ROWS, check_rows};
use crate::vectors::VectorSlice;
use crate::views::DeviceVectors;
use crate::{Element, Error, Result, SearchOptions};

impl<T: Element> OnDevice for Flat<T> {
    fn on_gpu(&self) -> Result<OnGpu<'_>> {
        Ok(self.gpu()?.1)
    }

    fn planned_version(&self) -> PlannedVersion {
        PlannedVersion { kind: Self::NAME, number: self.version.0 }
    }

    fn plan(&self, queries: usize, k: usize, options: &SearchOptions<'_>) -> Result<PlannedSearch> {
        let (device, _) = self.gpu()?;
        let among = self.among(options)?;
        let request = SearchRequest::new(VectorSlice::of::<T>(&[], self.dim()), options, among.as_deref());
        device.plan_search(queries, k, &request, self.rows.names()?)
    }

    unsafe fn add_on_device(&mut self, stream: CUstream, rows: &DeviceVectors<T>, ids: Option<&[u64]>) -> Result<bool> {
        check_rows(rows.len() as u64, MAX_ROWS)?;
        let counted;
        let ids = match ids {
            Some(ids) => ids,
            None => {
                counted = self.next_ids(rows.len())?;
                &counted
            }
        };
        if ids.is_empty() {
            return Ok(true);
        }
        if ids[0] < self.rows.next() || !ids.is_sorted() || self.check_room(self.rows.rows() + ids.len()).is_err() {
            return Ok(false);
        }
        let (_, on) = self.gpu()?;
        let (from, stream): (Ptr<u8>, Stream) = (on.rows_at(rows), on.stream(stream));
        self.own_rows()?.reserve(ids)?;
        self.version = Version::new();
        let Some(device) = self.own_backend(ids.len())?.as_device_mut() else { return Ok(false) };
        // SAFETY: as the caller promises.
        let added = unsafe { device.add_from_device(&stream, from, ids.len())? };
        if added {
            self.own_rows()?.append(ids);
        }
        Ok(added)
    }
}

impl<T: Element> Flat<T> {
    /// The back end and its GPU.
    ///
    /// # Errors
    /// [`Error::NotInDeviceMemory`] unless the index is on one GPU.
    pub(crate) fn gpu(&self) -> Result<(&FlatDevice, OnGpu<'_>)> {
        let device = self.backend.as_device();
        let on_gpu = device.and_then(|device| Some((device, OnGpu::new(device.runtime(), self.dim())?)));
        on_gpu.ok_or_else(|| Error::NotInDeviceMemory { index: self.device() })
    }
}
