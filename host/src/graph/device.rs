//! Plans of walks in the memory of a GPU.

use super::LinkedVectors;
use crate::index::private::OnDevice;
use crate::search::PlannedSearch;
use crate::search::workspace::{OnGpu, PlannedVersion};
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
        match self.device_walk(k, options, among.as_deref())? {
            None => self.flat.plan(queries, k, options),
            Some(walk) => {
                let names = self.flat.row_ids().names()?;
                walk.planned(&self.made.device_links, queries, names.as_deref())
            }
        }
    }
}
