//! One list: the codes of its vectors, and their ids.

use std::sync::Arc;

use super::bytes::Bytes;
use super::codes::Codes;
use crate::Result;
use crate::shared::own;

/// Codes and ids of one list.
#[derive(Debug)]
pub(super) struct List {
    pub(super) codes: Codes,
    pub(super) ids: Bytes,
}

impl List {
    /// A list without vectors, whose codes have `code_bytes` bytes.
    pub(super) fn new(code_bytes: usize) -> List {
        List { codes: Codes::new(code_bytes), ids: Bytes::default() }
    }

    pub(super) fn ids(&self) -> &[u64] {
        bytemuck::cast_slice(self.ids.get())
    }

    /// Makes the memory of a list our own as far as it changes, with room for `more` vectors.
    pub(super) fn reserve(list: &mut Arc<List>, more: usize) -> Result<()> {
        let ids = more * size_of::<u64>();
        let list = own(list, |list| Ok(List { codes: list.codes.shared()?, ids: list.ids.copied(ids)? }))?;
        list.codes.reserve(more)?;
        list.ids.reserve(ids)
    }

    /// Makes a list of a former version equal to `current`, which has other vectors at the places `rows`, and at no
    /// others.
    pub(super) fn catch_up(list: &mut Arc<List>, current: &List, rows: &[u32]) -> Result<()> {
        match Arc::get_mut(list) {
            Some(own) => {
                own.codes.catch_up(&current.codes, rows)?;
                own.ids.catch_up(&current.ids, rows)
            }
            None => {
                *list = Arc::new(List { codes: current.codes.shared()?, ids: current.ids.copied(0)? });
                Ok(())
            }
        }
    }

    /// The list, for a change that does not fail. Call [`List::reserve`] first.
    pub(super) fn own(list: &mut Arc<List>) -> &mut List {
        Arc::get_mut(list).unwrap_or_else(|| unreachable!("the list is our own since its memory was reserved"))
    }
}
