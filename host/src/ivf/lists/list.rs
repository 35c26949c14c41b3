//! One list: the codes of its vectors, and their ids.

use std::sync::Arc;

use super::bytes::Bytes;
use crate::Result;
use crate::shared::own;

/// Codes and ids of one list.
#[derive(Debug, Default)]
pub(super) struct List {
    pub(super) codes: Bytes,
    pub(super) ids: Bytes,
}

impl List {
    pub(super) fn ids(&self) -> &[u64] {
        bytemuck::cast_slice(self.ids.get())
    }

    /// Makes the memory of a list our own, with room for `more` vectors.
    pub(super) fn reserve(list: &mut Arc<List>, code_bytes: usize, more: usize) -> Result<()> {
        let (codes, ids) = (more * code_bytes, more * size_of::<u64>());
        let list = own(list, |list| Ok(List { codes: list.codes.copied(codes)?, ids: list.ids.copied(ids)? }))?;
        list.codes.reserve(codes)?;
        list.ids.reserve(ids)
    }

    /// The list, for a change that does not fail. Call [`List::reserve`] first.
    pub(super) fn own(list: &mut Arc<List>) -> &mut List {
        Arc::get_mut(list).unwrap_or_else(|| unreachable!("the list is our own since its memory was reserved"))
    }
}
