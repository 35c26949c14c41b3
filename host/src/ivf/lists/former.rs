//! Lists for the next version: the memory of a former one ([`crate::shared::former`]), brought up to date.
//!
//! A change of 1,000 vectors that move between lists touches 2,000 lists and most blocks of addresses. Copies of all of
//! these, and freeing them with the version, took half of its time. The memory of the version before the last, if
//! nobody has that any more, lacks the 3,000 places that the journal has since.

use std::sync::{Arc, OnceLock};

use super::Lists;
use super::directory::Directory;
use super::list::List;
use super::rows_by_list::RowsByList;
use crate::Result;
use crate::shared::former::Former;
use crate::shared::{own, shared};

/// One in this number of vectors may have changed since a former version before it is given up.
const A_CHANGED_ONE: usize = 8;

impl Lists {
    /// The lists, which nobody else has. If others have them, they are those of a former version brought up to date, or
    /// a copy that shares the memory of each list until it changes: O(lists + len / 64) at most. On error nothing
    /// changes.
    pub(crate) fn own(lists: &mut Arc<Lists>) -> Result<&mut Lists> {
        let before = (Arc::strong_count(lists) > 1).then(|| Arc::clone(lists));
        if before.is_none() && lists.is_former_far() {
            *lists.former.get() = None;
        }
        own(lists, |lists| {
            let mut next = lists.next()?;
            next.former = Former::new(before);
            Ok(next)
        })
    }

    /// Whether bringing the former version up to date is as much work as a copy.
    fn is_former_far(&self) -> bool {
        let former = self.former.get();
        let changed = |former: &Arc<Lists>| self.changed_since(former.version());
        former.as_ref().is_some_and(|former| changed(former).is_none_or(|changed| changed * A_CHANGED_ONE > self.len))
    }

    fn next(&self) -> Result<Lists> {
        let former = self.former.get().take();
        if let Some(mut lists) = former.and_then(|former| Arc::try_unwrap(former).ok())
            && lists.catch_up(self)?
        {
            return Ok(lists);
        }
        Ok(Lists {
            lists: shared(&self.lists)?,
            directory: self.shared_directory()?,
            journal: self.journal.copied(),
            former: Former::default(),
            ..*self
        })
    }

    /// The same directory, if it was made, in the same memory as far as neither changes.
    fn shared_directory(&self) -> Result<OnceLock<Directory>> {
        let directory = OnceLock::new();
        if let Some(made) = self.directory.get() {
            let _ = directory.set(made.shared()?);
        }
        Ok(directory)
    }

    /// Makes these lists, of a former version, equal to `current`. Returns whether they are. O(changed places), and
    /// O(length) of each list that changed and is not our own yet.
    ///
    /// # Errors
    /// [`Error::OutOfHostMemory`](crate::Error::OutOfHostMemory).
    fn catch_up(&mut self, current: &Lists) -> Result<bool> {
        let Some(changes) = current.changes_since(self.version()) else { return Ok(false) };
        let places = &changes.places;
        let same_shape = self.count() == current.count() && self.code_bytes == current.code_bytes;
        if changes.renumbered || !same_shape || places.len() * A_CHANGED_ONE > current.len {
            return Ok(false);
        }
        let rows = RowsByList::of_places(places);
        // A list, and its places.
        let of = |rows: &[u32]| {
            let places = &places[rows[0] as usize..][..rows.len()];
            (places[0].list as usize, places.iter().map(|at| at.place).collect::<Vec<u32>>())
        };
        rows.each(&mut self.lists, &|to, rows| {
            let (list, rows) = of(rows);
            List::catch_up(to, &current.lists[list], &rows)
        })?;
        match (self.directory.get_mut(), current.directory.get()) {
            (Some(directory), Some(of_current)) => {
                rows.each(directory.lists(), &|to, rows| {
                    let (list, rows) = of(rows);
                    Directory::catch_up_ranks(to, of_current.ranks(list), &rows)
                })?;
                directory.catch_up(of_current, places)?;
            }
            _ => self.directory = current.shared_directory()?,
        }
        (self.len, self.greatest, self.stamp) = (current.len, current.greatest, current.stamp);
        (self.journal, self.renumbered) = (current.journal.copied(), current.renumbered);
        self.former = Former::default();
        Ok(true)
    }
}
