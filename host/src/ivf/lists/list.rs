//! One list: the codes of its vectors, and their ids.

use std::sync::{Arc, OnceLock};

use super::bytes::Bytes;
use super::codes::Codes;
use crate::Result;
use crate::ivf::rest::Rest;
use crate::shared::own;

/// Codes and ids of one list.
#[derive(Debug)]
pub(super) struct List {
    pub(super) codes: Codes,
    pub(super) ids: Bytes,
    /// The greatest rest of the codes, made by the first call that needs it.
    rest: OnceLock<Option<Rest>>,
}

impl List {
    /// A list without vectors, whose codes have `code_bytes` bytes.
    pub(super) fn new(code_bytes: usize) -> List {
        List::of(Codes::new(code_bytes), Bytes::default())
    }

    pub(super) fn of(codes: Codes, ids: Bytes) -> List {
        List { codes, ids, rest: OnceLock::new() }
    }

    /// The greatest rest of all codes, by a function for some of them, which must always be the same.
    pub(super) fn rest(&self, of_codes: &dyn Fn(&[u8]) -> Option<Rest>) -> Option<Rest> {
        let rests = || self.codes.rows().runs().map(of_codes);
        *self.rest.get_or_init(|| rests().try_fold(Rest::default(), |greatest, rest| Some(greatest.and(rest?))))
    }

    pub(super) fn ids(&self) -> &[u64] {
        bytemuck::cast_slice(self.ids.get())
    }

    /// Makes the memory of a list our own as far as it changes, with room for `more` vectors.
    pub(super) fn reserve(list: &mut Arc<List>, more: usize) -> Result<()> {
        let ids = more * size_of::<u64>();
        let list = own(list, |list| Ok(List::of(list.codes.shared()?, list.ids.copied(ids)?)))?;
        list.codes.reserve(more)?;
        list.ids.reserve(ids)
    }

    /// Makes a list of a former version equal to `current`, which has other vectors at the places `rows`, and at no
    /// others.
    pub(super) fn catch_up(list: &mut Arc<List>, current: &List, rows: &[u32]) -> Result<()> {
        match Arc::get_mut(list) {
            Some(own) => {
                own.rest = OnceLock::new();
                own.codes.catch_up(&current.codes, rows)?;
                own.ids.catch_up(&current.ids, rows)
            }
            None => {
                *list = Arc::new(List::of(current.codes.shared()?, current.ids.copied(0)?));
                Ok(())
            }
        }
    }

    /// The list, for a change that does not fail. Call [`List::reserve`] first.
    pub(super) fn own(list: &mut Arc<List>) -> &mut List {
        let own = Arc::get_mut(list);
        let own = own.unwrap_or_else(|| unreachable!("the list is our own since its memory was reserved"));
        own.rest = OnceLock::new();
        own
    }
}
