//! Plans of walks in the memory of a GPU.

use super::LinkedVectors;
use crate::index::private::{OnDevice, Stored};
use crate::search::PlannedSearch;
use crate::search::workspace::{OnGpu, PlannedVersion};
use crate::search_options::SearchRequest;
use crate::vectors::VectorSlice;
use crate::{Element, Result, SearchOptions};

impl<T: Element> OnDevice for LinkedVectors<T> {
    fn on_gpu(&self) -> Result<OnGpu<'_>> {
        self.flat.on_gpu()
    }

    fn planned_version(&self) -> PlannedVersion {
        self.flat.planned_version()
    }

    fn plan(&self, queries: usize, k: usize, options: &SearchOptions<'_>) -> Result<PlannedSearch> {
        let among = self.flat.among(options)?;
        let request = SearchRequest::new(VectorSlice::of::<T>(&[], self.dim()), options, among.as_deref());
        match self.device_walk(&request, k, options.beam)? {
            None => self.flat.plan(queries, k, options),
            Some(walk) => {
                let names = self.flat.row_ids().names()?;
                walk.planned(&self.made.device_links, queries, names.as_deref())
            }
        }
    }
}
