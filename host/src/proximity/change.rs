//! Changes of a [`GraphIndex`]: the flat index changes its rows first, and then the graph follows.
//!
//! | change of the rows | what happens to the edges |
//! |---|---|
//! | rows are appended, or a row gets another vector | the rows are inserted ([`build::insert`]) |
//! | a vector is removed | nothing: walks go through its row |
//! | rows move, because a quarter of them was removed, the last ones were, or new ids lie between others | edges are renumbered, those to removed rows replaced, and the start nodes chosen anew ([`build::moved`]) |
//! | at least half of the rows are new | the graph is made anew |
//! | there are so many rows that twice as many start nodes would be chosen | they are chosen anew |
//!
//! A change of the rows either fails, and then nothing has changed, or it is done. If there is then no memory for the graph, the index has none:
//! its searches are exact until the next change makes a graph.

use std::sync::Arc;

use super::build::{self, Given, build};
use super::candidates::{Candidates, Place};
use super::codes::Codes;
use super::distance::WalkDistance;
use super::gpu::DeviceBuild;
use super::links::{Links, NO_NODE, start_count};
use super::{GraphIndex, GraphIndexBuilder, MAX_NODES};
use crate::ids::row_ids::RowIds;
use crate::parallel::{Loop, ParallelSlice};
use crate::shared::own_with_room;
use crate::threads::meanwhile;
use crate::validate::check_rows;
use crate::vectors::VectorSlice;
use crate::{Element, Error, Placement, Result, Watch, host_memory};

/// Searches of indexes with fewer rows are exact: this number of places of a beam, each of which costs as much as
/// [`exact_ratio`](super::GraphIndexBuilder::exact_ratio) vectors. So they need no edges.
const FEW: usize = 16;
/// Components that a thread copies at a time.
const COPIED: usize = 1 << 16;

/// What [`GraphIndex::new_graph`] makes of vectors.
struct New<T> {
    /// A copy of the rows, or nothing.
    copy: Vec<T>,
    codes: Option<Codes>,
    links: Arc<Links>,
}

impl<T: Element> GraphIndex<T> {
    /// Adds the vectors of `rows`, row-major, `dim` components each. Their ids count up from 0, or from one past the greatest id in the index. A
    /// walk and O(degree² · dim) for each; the graph is made anew if the new vectors are more than the old ones.
    ///
    /// # Errors
    /// As [`FlatIndex::add`](crate::FlatIndex::add); [`Error::TooManyRows`] above [`MAX_NODES`].
    pub fn add(&mut self, rows: &[T]) -> Result<()> {
        self.add_watched(rows, None, &Watch::none())
    }

    /// As [`add`](Self::add), or as [`add_with_ids`](Self::add_with_ids) if there are ids, with a [`Watch`]. If the index has vectors, the call
    /// copies them and their edges, because it may have to bring them back: as after a [`snapshot`](Self::snapshot).
    ///
    /// # Errors
    /// As the call without a watch; [`Error::Cancelled`]. The index is then as it was.
    pub fn add_watched(&mut self, rows: &[T], ids: Option<&[u64]>, watch: &Watch<'_>) -> Result<()> {
        let before = watch.is_some().then(|| self.snapshot());
        let added = self.add_or_stop(rows, ids, watch);
        if let (Err(_), Some(before)) = (&added, before) {
            *self = before;
        }
        added
    }

    /// Adds vectors. If the call is cancelled, the index holds them without a graph, or none of them.
    fn add_or_stop(&mut self, rows: &[T], ids: Option<&[u64]>, watch: &Watch<'_>) -> Result<()> {
        self.check_room(rows)?;
        let before = Arc::clone(self.flat.row_ids());
        if let Some(ids) = ids {
            self.flat.add_watched(rows, Some(ids), watch)?;
            return self.follow_watched(&before, ids, &[], watch);
        }
        let first = before.next();
        let (count, is_whole) = (rows.len() / self.dim(), rows.len().is_multiple_of(self.dim()));
        let is_first = before.rows() == 0 && is_whole && !self.are_few(count);
        // A watch gets the reports of one step after the other.
        if is_first && self.flat.host_rows().is_none() && !watch.is_some() {
            return self.add_first(rows);
        }
        let mut added = host_memory::with_room(count)?;
        self.flat.add_watched(rows, None, watch)?;
        added.extend(first..first + count as u64);
        self.follow_watched(&before, &added, rows, watch)
    }

    /// Adds the first vectors to an index on devices. The host prepares the search for candidates while the vectors go to the device, and copies them
    /// while the device makes the graph.
    fn add_first(&mut self, rows: &[T]) -> Result<()> {
        let (dim, settings, place, watch) = (self.dim(), self.builder.settings, self.place(rows), Watch::none());
        let flat = &mut self.flat;
        let (candidates, added) =
            meanwhile(|| Candidates::all(rows, dim, settings, &place, &watch), || flat.add_watched(rows, None, &watch));
        added?;
        let made = candidates.and_then(|candidates| self.new_graph(rows, candidates, true, &watch));
        self.clear_graph();
        // Searches of an index without a graph are exact.
        if let Ok(New { copy, codes, links }) = made {
            (self.copy, self.codes, self.links) = (Arc::new(copy), codes, Some(links));
        }
        Ok(())
    }

    /// Adds the vectors of `rows`, row-major, with one id for each, as [`FlatIndex::add_with_ids`](crate::FlatIndex::add_with_ids).
    ///
    /// # Errors
    /// As [`FlatIndex::add_with_ids`](crate::FlatIndex::add_with_ids); [`Error::TooManyRows`] above [`MAX_NODES`].
    pub fn add_with_ids(&mut self, rows: &[T], ids: &[u64]) -> Result<()> {
        self.add_watched(rows, Some(ids), &Watch::none())
    }

    /// Adds the vectors of `rows`, and replaces those whose ids the index has. Returns the number of replaced vectors. A replaced vector costs as
    /// much as a new one.
    ///
    /// # Errors
    /// As [`FlatIndex::upsert`](crate::FlatIndex::upsert); [`Error::TooManyRows`] above [`MAX_NODES`].
    pub fn upsert(&mut self, rows: &[T], ids: &[u64]) -> Result<usize> {
        self.check_room(rows)?;
        let before = Arc::clone(self.flat.row_ids());
        let replaced = self.flat.upsert(rows, ids)?;
        self.follow(&before, ids, &[]);
        Ok(replaced)
    }

    /// Removes the vectors with these ids, in any order. O(ids · log len), and O(len · degree) if rows move: if the last ones are
    /// removed, or a quarter of all.
    ///
    /// # Errors
    /// As [`FlatIndex::remove`](crate::FlatIndex::remove).
    pub fn remove(&mut self, ids: &[u64]) -> Result<()> {
        let before = Arc::clone(self.flat.row_ids());
        self.flat.remove(ids)?;
        self.follow(&before, &[], &[]);
        Ok(())
    }

    /// Removes the vectors with these ids as [`remove`](Self::remove), and skips ids that the index does not have. Returns the number of
    /// removed vectors.
    ///
    /// # Errors
    /// As [`FlatIndex::remove_if_present`](crate::FlatIndex::remove_if_present).
    pub fn remove_if_present(&mut self, ids: &[u64]) -> Result<usize> {
        let before = Arc::clone(self.flat.row_ids());
        let removed = self.flat.remove_if_present(ids)?;
        self.follow(&before, &[], &[]);
        Ok(removed)
    }

    /// Removes all vectors. The settings stay.
    pub fn clear(&mut self) {
        self.flat.clear();
        self.clear_graph();
    }

    /// Drops all but the flat index. The next change makes it again.
    fn clear_graph(&mut self) {
        self.copy = Arc::default();
        self.codes = None;
        self.links = None;
        self.device_links = Arc::default();
    }

    /// Adds the vectors of `other`, with their ids, to this index: as [`add_with_ids`](Self::add_with_ids).
    ///
    /// # Errors
    /// As [`FlatIndex::merge`](crate::FlatIndex::merge); [`Error::TooManyRows`] above [`MAX_NODES`].
    pub fn merge(&mut self, other: &GraphIndex<T>) -> Result<()> {
        check_rows((self.flat.row_ids().rows() + other.len()) as u64, MAX_NODES)?;
        let before = Arc::clone(self.flat.row_ids());
        self.flat.merge(&other.flat)?;
        self.follow(&before, &other.ids(), &[]);
        Ok(())
    }

    /// Moves the vectors together that are left after removals, and replaces edges to removed ones. [`remove`](Self::remove) does so by itself
    /// when a quarter of the rows is left over. O(len · (dim + degree)).
    ///
    /// # Errors
    /// As [`FlatIndex::compact`](crate::FlatIndex::compact).
    pub fn compact(&mut self) -> Result<()> {
        let before = Arc::clone(self.flat.row_ids());
        self.flat.compact()?;
        self.follow(&before, &[], &[]);
        Ok(())
    }

    /// Moves the vectors to other devices, as [`FlatIndex::move_to`](crate::FlatIndex::move_to).
    ///
    /// # Errors
    /// As [`FlatIndex::move_to`](crate::FlatIndex::move_to).
    pub fn move_to(&mut self, device: impl Into<Placement>) -> Result<()> {
        let (before, placement) = (Arc::clone(self.flat.row_ids()), device.into());
        self.flat.move_to(placement.clone())?;
        self.builder.placement = placement;
        self.copy = Arc::default();
        self.device_links = Arc::default();
        self.follow(&before, &[], &[]);
        Ok(())
    }

    fn check_room(&self, rows: &[T]) -> Result<()> {
        check_rows((self.flat.row_ids().rows() + rows.len() / self.dim()) as u64, MAX_NODES)
    }

    /// Changes the graph after a change of the rows, whose ids were `before`. `changed` are the ids of new vectors. `appended` are the vectors of the
    /// rows after those of before, or none.
    fn follow(&mut self, before: &RowIds, changed: &[u64], appended: &[T]) {
        // Without a watch nothing can cancel it, and there is no other error.
        let _ = self.follow_watched(before, changed, appended, &Watch::none());
    }

    /// As [`follow`](Self::follow). The only error is [`Error::Cancelled`]; the index then has no graph.
    fn follow_watched(&mut self, before: &RowIds, changed: &[u64], appended: &[T], watch: &Watch<'_>) -> Result<()> {
        let links = self.links.take();
        let copied = self.copy_rows(before, changed, appended);
        if copied.is_err() {
            // A part of the copy may be old. The next change copies all rows.
            self.copy = Arc::default();
        }
        let (followed, same) = copied
            .and_then(|()| self.encode_rows(before, changed))
            .and_then(|()| self.followed(links, before, changed, watch))
            .or_else(|error| if matches!(error, Error::Cancelled) { Err(error) } else { Ok((None, false)) })?;
        self.links = followed;
        if self.links.is_none() {
            self.codes = None;
        }
        if !same {
            self.device_links = Arc::default();
        }
        Ok(())
    }

    /// Copies the rows to host memory, unless the flat index has them there.
    fn copy_rows(&mut self, before: &RowIds, changed: &[u64], appended: &[T]) -> Result<()> {
        if self.flat.host_rows().is_some() {
            return Ok(());
        }
        let (after, dim) = (self.flat.row_ids(), self.flat.dim());
        let count = after.rows() * dim;
        let kept = if moves(before, after) { 0 } else { self.copy.len().min(count) };
        if kept == count && changed.is_empty() {
            return Ok(());
        }
        if kept == 0 {
            // Memory that was never touched is cheaper to fill, and a snapshot may have the old one.
            self.copy = Arc::new(host_memory::zeroed(count)?);
        }
        let room = count.saturating_sub(self.copy.len());
        let copy = own_with_room(&mut self.copy, room)?;
        copy.resize(count, T::default());
        let more = &mut copy[kept..];
        if more.len() == appended.len() {
            fill(more, appended);
        } else {
            self.flat.copy_rows(kept / dim, more)?;
        }
        let replaceable = (kept / dim).min(before.rows());
        if replaceable > 0 {
            for row in changed.iter().filter_map(|&id| after.find(id)).filter(|&row| row < replaceable) {
                self.flat.copy_rows(row, &mut copy[row * dim..][..dim])?;
            }
        }
        Ok(())
    }

    /// Makes the codes those of the rows, if there are codes.
    fn encode_rows(&mut self, before: &RowIds, changed: &[u64]) -> Result<()> {
        let Some(mut codes) = self.codes.take() else { return Ok(()) };
        let after = self.flat.row_ids();
        let kept = if moves(before, after) { 0 } else { before.rows() };
        let changed = changed.iter().filter_map(|&id| after.find(id));
        codes.update(VectorSlice::of(self.rows(), self.dim()), kept, changed)?;
        self.codes = Some(codes);
        Ok(())
    }

    /// Copies all rows to host memory, unless the flat index has them there.
    pub(super) fn copy_all_rows(&mut self) -> Result<()> {
        self.copy_rows(&RowIds::default(), &[], &[])
    }

    /// Whether there are so few rows that they need no edges.
    pub(super) fn is_small(&self) -> bool {
        self.are_few(self.flat.row_ids().rows())
    }

    /// Whether so few rows need no edges.
    fn are_few(&self, rows: usize) -> bool {
        rows <= self.exact_ratio().saturating_mul(FEW) || rows == 0
    }

    /// The graph of the rows after a change, made of the one before it, and whether it is the one before it.
    fn followed(
        &mut self,
        links: Option<Arc<Links>>,
        before: &RowIds,
        changed: &[u64],
        watch: &Watch<'_>,
    ) -> Result<(Option<Arc<Links>>, bool)> {
        if self.is_small() {
            return Ok((None, false));
        }
        let after = self.flat.row_ids();
        let rows = after.rows();
        // Each changed id is that of another row.
        let Some(links) = links.filter(|_| 2 * changed.len() < rows) else { return Ok((self.rebuilt(watch)?, false)) };
        let mut new: Vec<u32> = changed.iter().filter_map(|&id| Some(after.find(id)? as u32)).collect();
        new.sort_unstable();
        let distance = self.walk_distance();
        let moves = moves(before, after);
        if !moves && new.is_empty() && links.len() == rows {
            return Ok((Some(links), true));
        }
        let mut links = if moves {
            let moved: Vec<u32> = (0..links.len()).map(|row| moved_to(before, after, row)).collect();
            let mut links = build::moved(&links, &distance, &moved, rows)?;
            // The new rows have no edges yet, and get their parents when they are inserted.
            links.connect_without(&distance, &new);
            links
        } else {
            let mut links = Arc::try_unwrap(links).or_else(|shared| shared.copied())?;
            links.grow(rows)?;
            links
        };
        build::insert(&mut links, &distance, &new, after.live(), watch)?;
        if 2 * links.starts().len() < start_count(rows) {
            links.connect_without(&distance, &[]);
        } else if new.iter().any(|row| links.starts().binary_search(row).is_ok()) {
            links.list_starts(&distance);
        }
        Ok((Some(Arc::new(links)), false))
    }

    /// A new graph of all rows, after those that removed vectors left are gone.
    fn rebuilt(&mut self, watch: &Watch<'_>) -> Result<Option<Arc<Links>>> {
        let before = Arc::clone(self.flat.row_ids());
        self.flat.compact()?;
        self.copy_rows(&before, &[], &[])?;
        let (rows, settings) = (self.rows(), self.builder.settings);
        let candidates = Candidates::all(rows, self.dim(), settings, &self.place(rows), watch)?;
        let New { codes, links, .. } = self.new_graph(rows, candidates, false, watch)?;
        self.codes = codes;
        Ok(Some(links))
    }

    /// Where the candidates of the edges among `rows` are searched: where the rows are, with what these leave of the budget.
    pub(super) fn place(&self, rows: &[T]) -> Place {
        let GraphIndexBuilder { placement, budget, .. } = &self.builder;
        Place {
            placement: placement.clone(),
            budget: budget.map(|budget| budget.saturating_sub(size_of_val(rows) as u64)),
        }
    }

    /// The codes and the graph of `rows`, which are those of the flat index, and their copy if asked for.
    fn new_graph(&self, rows: &[T], mut candidates: Candidates<T>, copies: bool, watch: &Watch<'_>) -> Result<New<T>> {
        let (codes, planned) = meanwhile(
            || self.fitted_codes(rows),
            || self.flat.resident_rows().map_or(Ok(()), |resident| candidates.plan(rows, self.dim(), &resident)),
        );
        planned?;
        let codes = codes?;
        let distance = self.distance_among(codes.as_ref(), rows);
        let device = self.device_build(distance)?;
        let (copy, links) = meanwhile(
            || if copies { copied(rows) } else { Ok(Vec::new()) },
            || build(&distance, &Given::Searched(&candidates, rows), self.degree(), device, watch),
        );
        Ok(New { copy: copy?, links: Arc::new(links?), codes })
    }

    /// The device that has all rows, to choose edges by `distance`; `None` if there is none, or no memory.
    pub(super) fn device_build<'a>(&'a self, distance: WalkDistance<'a>) -> Result<Option<DeviceBuild<'a>>> {
        let Some(resident) = self.flat.resident_rows() else { return Ok(None) };
        DeviceBuild::new(resident, distance, self.degree())
    }
}

/// A copy of vectors, made by all threads.
fn copied<T: Element>(rows: &[T]) -> Result<Vec<T>> {
    // Memory that was never touched is cheaper to fill.
    let mut copy = host_memory::zeroed(rows.len())?;
    fill(&mut copy, rows);
    Ok(copy)
}

fn fill<T: Element>(to: &mut [T], from: &[T]) {
    to.par_chunks_mut(COPIED).zip(from.par_chunks(COPIED)).for_each(|(to, from)| to.copy_from_slice(from));
}

/// Whether a row before a change has another id, or none, after it.
fn moves(before: &RowIds, after: &RowIds) -> bool {
    !after.start_with(before)
}

/// The row to which a row moved; [`NO_NODE`] if its vector is gone.
fn moved_to(before: &RowIds, after: &RowIds, row: usize) -> u32 {
    // A removed vector whose id came back is a new vector.
    let held = before.live().is_none_or(|live| live.get(row));
    after.find(before.id(row)).filter(|_| held).map_or(NO_NODE, |row| row as u32)
}
