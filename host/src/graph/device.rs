//! Plans of walks in the memory of a GPU.

use super::LinkedVectors;
use crate::enqueued::workspace::Planned;
use crate::index::private::Stored;
use crate::{Element, Result, SearchOptions};

impl<T: Element> LinkedVectors<T> {
    /// Plans searches with these options: walks, or the comparison with all accepted vectors where a search from the host would do so.
    pub(super) fn plan_on_gpu(&self, queries: usize, k: usize, options: &SearchOptions<'_>) -> Result<Planned> {
        let among = self.flat.among(options)?;
        match self.device_walk(k, options, among.as_deref())? {
            None => self.flat.plan(queries, k, options),
            Some(walk) => {
                let search = walk.enqueued(&self.made.device_links, queries, self.flat.row_ids().names()?)?;
                Ok(Planned(Box::new(search)))
            }
        }
    }
}
