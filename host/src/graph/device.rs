//! Walks whose queries and results stay in the memory of a GPU, on the caller's stream, and vectors that come from there.

use super::GraphIndex;
use crate::flat::device::{CUstream, DeviceWorkspace};
use crate::views::{DeviceNeighbors, DeviceVectors};
use crate::{Element, Result, SearchOptions};

impl<T: Element> GraphIndex<T> {
    /// Plans searches of up to `queries` queries for `k` neighbours by [`search_device`](Self::search_device), and allocates their memory. Of the
    /// options, beam and filter have an effect, and become a part of the workspace. Uploads the graph, loads kernels, and waits for all of it.
    /// O(len), if the index has ids of the caller's, removed vectors or a filter.
    ///
    /// If [`search_with`](Self::search_with) would compare all accepted vectors, so does the planned search.
    ///
    /// # Errors
    /// As [`FlatIndex::device_workspace`](crate::FlatIndex::device_workspace); [`Error::Zero`](crate::Error::Zero).
    pub fn device_workspace(&self, queries: usize, k: usize, options: &SearchOptions<'_>) -> Result<DeviceWorkspace> {
        self.flat.check_device_search(queries, k)?;
        let among = self.flat.among(options)?;
        match self.device_walk(k, options, among.as_deref())? {
            None => self.flat.device_workspace(queries, k, options),
            Some(walk) => {
                let search = walk.enqueued(&self.made.device_links, queries, self.flat.row_ids().names()?)?;
                Ok(self.flat.workspace_of(Box::new(search), queries, k))
            }
        }
    }

    /// Enqueues a search and returns at once, as [`FlatIndex::search_device`](crate::FlatIndex::search_device): finds about the nearest vectors of each
    /// of `queries`, in device memory, and writes them to `results`, k for each query, with the bits of [`search_with`](Self::search_with). There is
    /// one exception: a walk under a filter that finds fewer than `k` vectors is not followed by an exact search, so the row ends with
    /// [`NONE`](crate::NONE).
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
        // SAFETY: the same contract. A workspace of the index is one of its vectors.
        unsafe { self.flat.search_device(workspace, stream, queries, results) }
    }

    /// Adds vectors in device memory as [`add`](Self::add) adds those of the host. They pass through host memory, in the order of `stream`, for
    /// which the call waits. `stream` may be null (the default stream).
    ///
    /// # Errors
    /// [`Error::NotInDeviceMemory`](crate::Error::NotInDeviceMemory) for an index on the CPU, the emulator or several devices;
    /// [`Error::BadAddress`](crate::Error::BadAddress), [`Error::UnknownAddress`](crate::Error::UnknownAddress),
    /// [`Error::OtherDevice`](crate::Error::OtherDevice); and as [`add`](Self::add).
    ///
    /// # Safety
    /// As [`FlatIndex::add_device`](crate::FlatIndex::add_device).
    pub unsafe fn add_device(&mut self, stream: CUstream, rows: &DeviceVectors<T>) -> Result<()> {
        let (_, on) = self.flat.on_gpu()?;
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
        let (_, on) = self.flat.on_gpu()?;
        // SAFETY: as the caller promises.
        let downloaded = unsafe { on.downloaded("vectors", stream, rows)? };
        self.add_with_ids(downloaded.rows(), ids)
    }
}
