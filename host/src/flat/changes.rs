//! Changes of a [`FlatIndex`]. A failed call leaves the index as it was.

use std::borrow::Cow;
use std::mem::replace;
use std::sync::Arc;

use super::backend::FlatBackend;
use super::former::FormerRows;
use super::{Flat, MOVED_BYTES, Version};
use crate::ids::row_ids::{Room, RowIds};
use crate::index::private::{Changed, Stored};
use crate::random::gather;
use crate::shared::former::Former;
use crate::shared::own;
use crate::undo::undone_unless_ok;
use crate::validate::{MAX_ROWS, check_rows, check_vectors};
use crate::vectors::{VectorSlice, VectorSliceMut};
use crate::{Element, Error, Input, Placement, Result, Stage, Watch, host_memory};

/// Removed vectors leave their rows behind until there is one such row for this many others.
const ROWS_A_REMOVED_ONE: usize = 4;

/// Number of vectors that are appended between two calls of a watch.
const WATCHED_ROWS: usize = 1 << 15;

/// The most rows of a shard, [`MAX_ROWS`]; tests on this thread may set a smaller number.
fn most_rows() -> u64 {
    #[cfg(test)]
    return tests::MOST_ROWS.get();
    #[cfg(not(test))]
    MAX_ROWS
}

/// A row of an index that is arranged anew.
#[derive(Clone, Copy)]
enum Source {
    /// A row of the index.
    Row(usize),
    /// A vector of the call, by its place there.
    New(usize),
}

impl<T: Element> Changed for Flat<T> {
    fn add(&mut self, rows: &[T], ids: Option<&[u64]>, watch: &Watch<'_>) -> Result<()> {
        let count = check_vectors(rows, self.dim(), Input::Base)?;
        if let Some(ids) = ids {
            return self.insert(rows, ids, watch);
        }
        let ids = self.next_ids(count)?;
        self.append(rows, &ids, watch)
    }

    fn replace(&mut self, rows: &[T], ids: &[u64]) -> Result<()> {
        check_vectors(rows, self.dim(), Input::Base)?;
        let (known, new): (Vec<usize>, Vec<usize>) = (0..ids.len()).partition(|&at| self.contains(ids[at]));
        let new_ids: Vec<u64> = new.iter().map(|&at| ids[at]).collect();
        // The insertion comes first: it can be undone without memory.
        self.insert(&gather(rows, self.dim(), &new)?, &new_ids, &Watch::none())?;
        let mut places: Vec<(usize, usize)> =
            known.iter().filter_map(|&at| Some((self.rows.find(ids[at])?, at))).collect();
        places.sort_unstable();
        if let Err(error) = self.overwrite(rows, &places) {
            self.remove(&new_ids)?;
            return Err(error);
        }
        Ok(())
    }

    fn remove(&mut self, ids: &[u64]) -> Result<()> {
        if ids.is_empty() {
            return Ok(());
        }
        let found = |&id| self.rows.find(id).ok_or(Error::UnknownId { id, len: self.len() as u64 });
        let rows: Vec<usize> = ids.iter().map(found).collect::<Result<_>>()?;
        let before = self.rows.rows();
        self.version = Version::new();
        if rows.iter().any(|row| row + 1 == before) {
            // The last rows go, so the back end changes as well.
            self.own_backend(0)?;
        }
        self.own_rows()?.remove(&rows)?;
        if self.rows.rows() < before {
            self.truncate(self.rows.rows());
        }
        let removed = self.rows.removed();
        if removed * ROWS_A_REMOVED_ONE > self.rows.rows() {
            // The removal is done. If there is no memory to move the others, the rows stay, and searches skip them.
            let _ = self.compact();
        }
        Ok(())
    }

    fn clear(&mut self) {
        self.version = Version::new();
        self.former = Former::default();
        match Arc::get_mut(&mut self.backend) {
            Some(backend) => backend.truncate(0),
            None => self.backend = self.backend.emptied().into(),
        }
        self.rows = Arc::default();
    }

    fn merge(&mut self, other: &Flat<T>) -> Result<()> {
        let checks = [(self.dim() == other.dim(), "dimension"), (self.metric() == other.metric(), "metric")];
        if let Some((_, what)) = checks.into_iter().find(|(same, _)| !same) {
            return Err(Error::Incompatible { what });
        }
        let ids = other.rows.all()?;
        if let Some(id) = self.find_any(&ids) {
            return Err(Error::DuplicateId { id });
        }
        self.append_or_arrange(&other.all_rows()?, &ids, &Watch::none())
    }

    fn compact(&mut self) -> Result<()> {
        if self.rows.live().is_none() {
            return Ok(());
        }
        let compacted = self.rows.compacted()?;
        let rows = Arc::clone(&self.rows);
        self.version = Version::new();
        if let Some(live) = rows.live() {
            self.own_backend(0)?.retain(live)?;
            self.former = Former::default();
        }
        self.rows = Arc::new(compacted);
        Ok(())
    }

    fn move_to(&mut self, placement: Placement) -> Result<()> {
        let rows = self.rows.compacted()?;
        let sources: Vec<Source> = self.rows.live_rows().map(Source::Row).collect();
        let mut moved = self.builder.clone().device(placement).open()?;
        moved.take(self, &sources, &[], &Watch::none())?;
        moved.rows = Arc::new(rows);
        *self = moved;
        Ok(())
    }
}

impl<T: Element> Flat<T> {
    /// The ids of `count` vectors, which count up from 0, or from one past the greatest id.
    ///
    /// # Errors
    /// [`Error::ReservedId`] if there are not enough.
    pub(super) fn next_ids(&self, count: usize) -> Result<Vec<u64>> {
        let first = self.rows.next();
        let Some(end) = first.checked_add(count as u64) else { return Err(Error::ReservedId) };
        let mut ids = host_memory::with_room(count)?;
        ids.extend(first..end);
        Ok(ids)
    }

    /// The back end, which nobody else has: if a snapshot has it as well, that of a former version, or a copy with room
    /// for `more` rows. On error nothing changes.
    pub(super) fn own_backend(&mut self, more: usize) -> Result<&mut dyn FlatBackend> {
        if Arc::strong_count(&self.backend) > 1 {
            let former = self.former.take();
            let older = former.map_or(Ok(None), |former| former.caught_up::<T>(&*self.backend))?;
            let own = older.map_or_else(|| self.backend.copied(more).map(Arc::from), Ok)?;
            let before = replace(&mut self.backend, own);
            self.former = Former::new(FormerRows::of(before));
        }
        Ok(Arc::get_mut(&mut self.backend)
            .unwrap_or_else(|| unreachable!("there are no weak references, and no other Arc")))
    }

    /// The ids of the rows, which nobody else has, as [`own_backend`](Self::own_backend).
    pub(super) fn own_rows(&mut self) -> Result<&mut RowIds> {
        own(&mut self.rows, RowIds::shared)
    }

    /// Keeps the first `rows` rows of a back end that nobody else has.
    fn truncate(&mut self, rows: usize) {
        if let Some(backend) = Arc::get_mut(&mut self.backend) {
            backend.truncate(rows);
            self.note_changes(|former| former.truncate(rows));
        }
    }

    /// Adds checked vectors whose ids are new, in any order.
    fn insert(&mut self, rows: &[T], ids: &[u64], watch: &Watch<'_>) -> Result<()> {
        let (rows, ids) = if ids.is_sorted() {
            (Cow::Borrowed(rows), Cow::Borrowed(ids))
        } else {
            let mut order: Vec<usize> = (0..ids.len()).collect();
            order.sort_unstable_by_key(|&at| ids[at]);
            let sorted: Vec<u64> = order.iter().map(|&at| ids[at]).collect();
            (Cow::Owned(gather(rows, self.dim(), &order)?), Cow::Owned(sorted))
        };
        self.append_or_arrange(&rows, &ids, watch)
    }

    /// Adds checked vectors whose ids are new and ascending.
    fn append_or_arrange(&mut self, rows: &[T], ids: &[u64], watch: &Watch<'_>) -> Result<()> {
        let next = self.rows.next();
        // The rows may move together for the vectors after the last one. Then no row is left over that an id could come
        // back to.
        self.make_room(ids.len() - ids.partition_point(|&id| id < next), ids.len())?;
        match self.rows.room(ids) {
            Room::AtTheEnd => self.append(rows, ids, watch),
            Room::InRows => {
                let (old, new) = ids.split_at(ids.partition_point(|&id| id < next));
                let appended = &rows[old.len() * self.dim()..];
                if new.is_empty() {
                    return self.put_back(rows, old);
                }
                // The state that an error must restore.
                let before = Arc::clone(&self.rows);
                let undo = |index: &mut Self| {
                    index.truncate(before.rows());
                    index.rows = before;
                };
                undone_unless_ok(self, undo, |index| {
                    index.append(appended, new, watch)?;
                    index.put_back(rows, old)
                })
            }
            Room::Between => {
                let sources = self.merged(ids);
                let mut arranged = self.builder.clone().open()?;
                arranged.check_room(sources.len())?;
                arranged.take(self, &sources, rows, watch)?;
                let id = |source: &Source| match *source {
                    Source::Row(row) => self.rows.id(row),
                    Source::New(at) => ids[at],
                };
                arranged.rows = Arc::new(RowIds::of(&sources.iter().map(id).collect::<Vec<u64>>())?);
                *self = arranged;
                Ok(())
            }
        }
    }

    /// Puts vectors with these ascending ids into the rows that removed vectors of these ids left. The vectors are the
    /// first of `rows`.
    fn put_back(&mut self, rows: &[T], ids: &[u64]) -> Result<()> {
        let old_rows = self.rows.old_rows(ids);
        let places: Vec<(usize, usize)> = old_rows.iter().copied().zip(0..).collect();
        self.own_rows()?;
        self.overwrite(rows, &places)?;
        self.own_rows()?.revive(&old_rows);
        Ok(())
    }

    /// The rows of the index and new vectors with these ascending ids, in the order of all ids.
    fn merged(&self, ids: &[u64]) -> Vec<Source> {
        let mut sources = Vec::with_capacity(self.len() + ids.len());
        let mut new = 0;
        for row in self.rows.live_rows() {
            while new < ids.len() && ids[new] < self.rows.id(row) {
                sources.push(Source::New(new));
                new += 1;
            }
            sources.push(Source::Row(row));
        }
        sources.extend((new..ids.len()).map(Source::New));
        sources
    }

    /// Appends rows of `from` and new vectors to this index's back end, in pieces.
    fn take(&mut self, from: &Flat<T>, sources: &[Source], new: &[T], watch: &Watch<'_>) -> Result<()> {
        let piece = (MOVED_BYTES / (self.dim() * size_of::<T>())).max(1);
        let mut taken = 0;
        for piece in sources.chunks(piece) {
            let (rows, dim) = (from.fetch(piece, new)?, self.dim());
            self.own_backend(0)?.add(VectorSlice::of(&rows, dim))?;
            taken += piece.len();
            watch.report(Stage::Adding, taken, sources.len())?;
        }
        Ok(())
    }

    /// All vectors, in the order of their ids.
    ///
    /// # Errors
    /// [`Error::OutOfHostMemory`], and errors of the device's driver.
    pub(crate) fn all_rows(&self) -> Result<Vec<T>> {
        let sources: Vec<Source> = self.rows.live_rows().map(Source::Row).collect();
        self.fetch(&sources, &[])
    }

    /// The vectors of these rows of the index, and of `new`.
    fn fetch(&self, sources: &[Source], new: &[T]) -> Result<Vec<T>> {
        let dim = self.dim();
        let mut fetched = host_memory::zeroed(host_memory::count::<T>(&[sources.len(), dim])?)?;
        let mut at = 0;
        while at < sources.len() {
            match sources[at] {
                Source::New(from) => {
                    fetched[at * dim..(at + 1) * dim].copy_from_slice(&new[from * dim..(from + 1) * dim]);
                    at += 1;
                }
                Source::Row(first) => {
                    // Rows that follow each other are one call.
                    let follows =
                        |&(step, source): &(usize, &Source)| matches!(*source, Source::Row(row) if row == first + step);
                    let count = sources[at..].iter().enumerate().take_while(follows).count();
                    let to = &mut fetched[at * dim..(at + count) * dim];
                    self.backend.rows(first as u64, VectorSliceMut::of(to))?;
                    at += count;
                }
            }
        }
        Ok(fetched)
    }

    /// Appends checked vectors whose ids are new, ascending and above all others.
    fn append(&mut self, rows: &[T], ids: &[u64], watch: &Watch<'_>) -> Result<()> {
        if ids.is_empty() {
            return Ok(());
        }
        self.make_room(ids.len(), ids.len())?;
        self.own_rows()?.reserve(ids)?;
        self.version = Version::new();
        let (dim, before) = (self.dim(), self.rows.rows());
        let backend = self.own_backend(ids.len())?;
        let mut pieces = if watch.is_some() { rows.chunks(WATCHED_ROWS * dim) } else { rows.chunks(rows.len()) };
        let mut added = 0;
        undone_unless_ok(
            backend,
            |backend| backend.truncate(before),
            |backend| {
                watch.report(Stage::Adding, added, ids.len())?;
                pieces.try_for_each(|piece| {
                    backend.add(VectorSlice::of(piece, dim))?;
                    added += piece.len() / dim;
                    watch.report(Stage::Adding, added, ids.len())
                })
            },
        )?;
        self.own_rows()?.append(ids);
        Ok(())
    }

    /// Makes room for `vectors` vectors, of which `after` go after the last row. If that makes too many rows, those
    /// that hold vectors move together, and no row is left for the other ones.
    fn make_room(&mut self, after: usize, vectors: usize) -> Result<()> {
        if self.check_room(self.rows.rows() + after).is_ok() {
            return Ok(());
        }
        self.check_room(self.len() + vectors)?;
        self.compact()
    }

    pub(super) fn check_room(&self, rows: usize) -> Result<()> {
        check_rows(rows as u64, most_rows().saturating_mul(self.builder.settings.placement.shards() as u64))
    }

    /// Overwrites rows of the index: for each pair, which ascend, row `.0` with vector `.1` of `rows`.
    fn overwrite(&mut self, rows: &[T], places: &[(usize, usize)]) -> Result<()> {
        let numbers: Vec<u64> = places.iter().map(|&(row, _)| row as u64).collect();
        let new = gather(rows, self.dim(), &places.iter().map(|&(_, at)| at).collect::<Vec<_>>())?;
        if numbers.is_empty() {
            return Ok(());
        }
        self.version = Version::new();
        self.own_backend(0)?;
        let rows = self.rows.rows();
        self.note_changes(|former| former.replace(places.iter().map(|&(row, _)| row as u32), rows));
        let new = VectorSlice::of(&new, self.dim());
        self.own_backend(0)?.replace(&numbers, new)
    }

    /// Notes changes of rows since the former version. Gives the version up if `note` says so.
    fn note_changes(&mut self, note: impl FnOnce(&mut FormerRows) -> bool) {
        let mut former = self.former.get();
        if former.as_mut().is_some_and(|former| !note(former)) {
            *former = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;
    use crate::watch_tests::stopping;
    use crate::{Device, FlatIndex, Metric};

    thread_local! {
        /// The most rows of a shard of the indexes that this thread changes.
        pub(super) static MOST_ROWS: Cell<u64> = const { Cell::new(MAX_ROWS) };
    }

    fn vectors(ids: &[u64]) -> Vec<f32> {
        ids.iter().map(|&id| id as f32).collect()
    }

    /// An index of 10 rows, which is the limit. The vector of each id is its number.
    fn full(device: impl Into<Placement>, removed: &[u64]) -> FlatIndex<f32> {
        let mut index = FlatIndex::<f32>::new(1, Metric::L2, device).unwrap();
        let ids: Vec<u64> = (0..10).map(|row| 10 * row).collect();
        index.add_with_ids(&vectors(&ids), &ids).unwrap();
        index.remove(removed).unwrap();
        assert_eq!(index.statistics().removed, removed.len() as u64);
        index
    }

    /// Fails unless the index has these ids, and each with its vector.
    fn check(index: &FlatIndex<f32>, ids: &[u64]) {
        assert_eq!(index.ids(), ids);
        for &id in ids {
            assert_eq!(index.reconstruct(id).unwrap(), [id as f32]);
            let found = index.search(&[id as f32], 1).unwrap();
            assert_eq!((found.ids, found.distances), (vec![id], vec![0.0]));
        }
        assert_eq!(index.search(&[0.0], ids.len()).unwrap().ids, ids);
        let bytes = index.to_bytes().unwrap();
        // The limit is that of a shard of the index, and the CPU is one.
        let limit = MOST_ROWS.replace(MAX_ROWS);
        assert_eq!(FlatIndex::<f32>::from_bytes(&bytes, Device::Cpu, None).unwrap().ids(), ids);
        MOST_ROWS.set(limit);
    }

    /// If the last rows of all are in use, an addition moves the rows together. An id that comes back then has no old
    /// row.
    #[test]
    fn an_addition_moves_rows_together_where_there_is_no_room() {
        for placement in ["cpu", "emulator", "cpu+cpu"] {
            let placement: Placement = placement.parse().unwrap();
            MOST_ROWS.set(10 / placement.shards() as u64);
            let before = [0, 10, 40, 50, 60, 70, 80, 90];
            for (new, after) in [
                (vec![20, 95], vec![0, 10, 20, 40, 50, 60, 70, 80, 90, 95]),
                (vec![95, 96], vec![0, 10, 40, 50, 60, 70, 80, 90, 95, 96]),
                (vec![20, 30], vec![0, 10, 20, 30, 40, 50, 60, 70, 80, 90]),
                (vec![25, 95], vec![0, 10, 25, 40, 50, 60, 70, 80, 90, 95]),
            ] {
                // Cancelled or unwound at each call of the watch, the index is as before.
                for (stop, panics) in [(0, false), (0, true), (1, false), (1, true)] {
                    let mut index = full(placement.clone(), &[20, 30]);
                    let mut calls = 0;
                    let watch = stopping(stop, panics, &mut calls);
                    let added =
                        catch_unwind(AssertUnwindSafe(|| index.add_watched(&vectors(&new), Some(&new), &watch)));
                    drop(watch);
                    if calls > stop {
                        assert!(added.map_or(panics, |added| matches!(added, Err(Error::Cancelled))));
                        check(&index, &before);
                        index.add_with_ids(&vectors(&new), &new).unwrap();
                    }
                    check(&index, &after);
                    let mut other = full(placement.clone(), &[20, 30]);
                    assert_eq!(other.upsert(&vectors(&[40, new[0], new[1]]), &[40, new[0], new[1]]).unwrap(), 1);
                    check(&other, &after);
                }
            }
            // Too many vectors also for rows that moved together. Nothing moves for them.
            let mut index = full(placement.clone(), &[20, 30]);
            let many = [20, 95, 96, 97];
            let error = index.add_with_ids(&vectors(&many), &many);
            assert!(matches!(error, Err(Error::TooMany { what: "rows", asked: 12, limit: 10 })), "{error:?}");
            assert_eq!(index.statistics().removed, 2);
            check(&index, &before);
            MOST_ROWS.set(MAX_ROWS);
        }
    }
}
