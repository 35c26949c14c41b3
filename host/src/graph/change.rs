//! Changes of a [`GraphIndex`](super::GraphIndex): the flat index changes its rows first, and then the graph follows.
//!
//! | change of the rows | what happens to the edges |
//! |---|---|
//! | rows are appended, or a row gets another vector | the rows are inserted ([`build::insert`]), and some become start nodes, or they become twins of equal ones (`twins.rs`) |
//! | a vector is removed | nothing: walks go through its row |
//! | rows move, because a quarter of them was removed, the last ones were, or new ids lie between others | edges are renumbered, those to removed rows replaced, and the start nodes chosen anew ([`build::moved`]) |
//! | at least half of the rows are new | the graph is made anew |
//! | under inner product, half of the rows came after the graph was made | the graph is made anew: walks to a new vector find long vectors rather than those that it is near to, so edges are better from a search among all |
//!
//! A change of the rows either fails, and then nothing has changed, or it is done. If the graph then cannot be made,
//! because memory is missing or a device fails, the index has none, and an event says so: its searches are exact until
//! the next change makes a graph.

use std::sync::Arc;

use super::build::{self, Given, build};
use super::candidates::{Candidates, Place};
use super::codes::Codes;
use super::distance::WalkDistance;
use super::edges_back::BATCH;
use super::gpu::{DeviceBuild, DeviceInsert, DeviceLinks};
use super::links::Links;
use super::spare::{Changes, Spare};
use super::twins::{Nodes, Twins};
use super::{GraphIndexBuilder, LinkedVectors, MAX_NODES, Made};
use crate::flat::Flat;
use crate::ids::row_ids::RowIds;
use crate::index::private::{Changed, Stored};
use crate::knn_graph::{Graph, NO_NODE};
use crate::random::gather;
use crate::shared::former::Former;
use crate::shared::own_with_room;
use crate::threads::meanwhile;
use crate::undo::undone_unless_ok;
use crate::validate::check_rows;
use crate::vectors::VectorSlice;
use crate::{Element, Error, Placement, Result, Watch, events, host_memory};

/// Searches of indexes with fewer rows are exact: this number of places of a beam, each of which costs as much as
/// [`exact_ratio`](super::GraphIndexBuilder::exact_ratio) vectors. So they need no edges.
const FEW: usize = 16;

/// A new graph is made without those rows whose vectors others have, if there are more than this number of one vector.
/// Fewer take only a few places among the candidates of others, and are joined afterwards.
const MOST_JOINED: usize = 4;

/// The rows before a change.
struct Before {
    ids: Arc<RowIds>,
    /// Whether what was made of rows was made of these.
    made: bool,
}

/// Graph, codes and table of nodes of the rows before a change.
struct Old<T> {
    links: Option<Arc<Links>>,
    codes: Option<Codes>,
    nodes: Option<Arc<Nodes>>,
    device_links: Arc<DeviceLinks>,
    /// The arrays of an older version.
    spare: Option<Spare<T>>,
    /// The arrays above, if a snapshot has them too.
    next: Option<Spare<T>>,
}

/// Graph, codes and table of nodes of the rows after a change.
struct Followed<T> {
    links: Arc<Links>,
    codes: Option<Codes>,
    nodes: Option<Arc<Nodes>>,
    /// The graph in device memory, once a search or an insertion has brought it there.
    device_links: Arc<DeviceLinks>,
    /// The arrays of an older version, for the next change.
    spare: Option<Spare<T>>,
}

/// The result of [`LinkedVectors::new_graph`].
struct New<T> {
    /// A copy of the rows, or nothing.
    copy: Vec<T>,
    codes: Option<Codes>,
    links: Arc<Links>,
}

impl<T: Element> Changed for LinkedVectors<T> {
    fn add(&mut self, rows: &[T], ids: Option<&[u64]>, watch: &Watch<'_>) -> Result<()> {
        if !watch.is_some() {
            return self.add_or_stop(rows, ids, watch);
        }
        let before = self.snapshot();
        undone_unless_ok(self, |index| *index = before, |index| index.add_or_stop(rows, ids, watch))
    }

    fn replace(&mut self, rows: &[T], ids: &[u64]) -> Result<()> {
        self.check_room(rows)?;
        let (before, ()) = self.change_rows(|flat| flat.replace(rows, ids))?;
        self.follow_watched(&before, ids, rows, &Watch::none())
    }

    fn remove(&mut self, ids: &[u64]) -> Result<()> {
        self.change(|flat| flat.remove(ids), &[])
    }

    fn clear(&mut self) {
        self.flat.clear();
        self.made = Made::nothing(self.flat.version());
    }

    fn merge(&mut self, other: &Self) -> Result<()> {
        check_rows((self.flat.row_ids().rows() + other.len()) as u64, MAX_NODES)?;
        self.change(|flat| flat.merge(&other.flat), &other.ids())
    }

    fn compact(&mut self) -> Result<()> {
        self.change(Flat::compact, &[])
    }

    fn move_to(&mut self, placement: Placement) -> Result<()> {
        let (before, ()) = self.change_rows(|flat| flat.move_to(placement.clone()))?;
        self.builder.placement = placement;
        self.made.copy = Arc::default();
        self.made.device_links = Arc::default();
        self.follow(&before, &[]);
        Ok(())
    }
}

impl<T: Element> LinkedVectors<T> {
    /// Adds vectors. If the call is cancelled, the index holds them without a graph, or none of them.
    fn add_or_stop(&mut self, rows: &[T], ids: Option<&[u64]>, watch: &Watch<'_>) -> Result<()> {
        self.check_room(rows)?;
        if let Some(ids) = ids {
            let (before, ()) = self.change_rows(|flat| flat.add(rows, Some(ids), watch))?;
            return self.follow_watched(&before, ids, rows, watch);
        }
        let ids = self.flat.row_ids();
        let (count, is_whole) = (rows.len() / self.dim(), rows.len().is_multiple_of(self.dim()));
        let is_first = ids.rows() == 0 && is_whole && !self.are_few(count);
        // A watch gets the reports of one step after the other.
        if is_first && self.flat.host_rows().is_none() && !watch.is_some() {
            return self.add_first(rows);
        }
        let first = ids.next();
        let mut added = host_memory::with_room(count)?;
        let (before, ()) = self.change_rows(|flat| flat.add(rows, None, watch))?;
        added.extend(first..first + count as u64);
        self.follow_watched(&before, &added, rows, watch)
    }

    /// Adds the first vectors to an index on devices. The host prepares the search for candidates while the vectors go
    /// to the device, and copies them while the device makes the graph.
    fn add_first(&mut self, rows: &[T]) -> Result<()> {
        let (dim, settings, place, watch) = (self.dim(), self.builder.settings, self.place(rows), Watch::none());
        let flat = &mut self.flat;
        let (candidates, added) =
            meanwhile(|| Candidates::all(rows, dim, settings, &place, &watch), || flat.add(rows, None, &watch));
        added?;
        self.made = Made::nothing(self.flat.version());
        match candidates.and_then(|candidates| self.new_graph(rows, candidates, true, &watch)) {
            Ok(New { copy, codes, links }) => {
                let links = Some(links);
                self.made = Made { copy: Arc::new(copy), codes, links, ..Made::nothing(self.flat.version()) };
            }
            Err(error) => self.tell_missing(&error),
        }
        Ok(())
    }

    /// Changes the rows, and then the graph. `changed` are the ids of new vectors.
    pub(super) fn change(&mut self, change: impl FnOnce(&mut Flat<T>) -> Result<()>, changed: &[u64]) -> Result<()> {
        let (before, ()) = self.change_rows(change)?;
        self.follow(&before, changed);
        Ok(())
    }

    /// Changes the rows. Returns what was there before. If the change fails, the vectors are as they were. What was
    /// made of their rows is still right unless the rows have moved together.
    fn change_rows<V>(&mut self, change: impl FnOnce(&mut Flat<T>) -> Result<V>) -> Result<(Before, V)> {
        let before = Before { ids: Arc::clone(self.flat.row_ids()), made: self.made().is_some() };
        let changed = change(&mut self.flat);
        let after = self.flat.row_ids();
        if changed.is_err() && before.made && after.rows() == before.ids.rows() && !moves(&before.ids, after) {
            self.made.of = self.flat.version();
        }
        Ok((before, changed?))
    }

    pub(super) fn check_room(&self, rows: &[T]) -> Result<()> {
        check_rows((self.flat.row_ids().rows() + rows.len() / self.dim()) as u64, MAX_NODES)
    }

    /// Changes the graph after a change of the rows. `changed` are the ids of new vectors.
    fn follow(&mut self, before: &Before, changed: &[u64]) {
        // Without a watch nothing can cancel it, and there is no other error.
        let _ = self.follow_watched(before, changed, &[], &Watch::none());
    }

    /// As [`follow`](Self::follow). `given` are the vectors of the changed ids, or none. The only error is
    /// [`Error::Cancelled`]; the index then has no graph.
    fn follow_watched(&mut self, before: &Before, changed: &[u64], given: &[T], watch: &Watch<'_>) -> Result<()> {
        if !before.made {
            self.made = Made::nothing(self.flat.version());
        }
        // Until the end there is no graph: not after an error either, or a panic of the watch.
        let made = &mut self.made;
        let (links, codes, nodes) = (made.links.take(), made.codes.take(), made.nodes.take());
        let mut spare = made.spare.take();
        // If a snapshot has these arrays, they are the older ones for the next change.
        let is_shared = links.as_ref().is_some_and(|links| Arc::strong_count(links) > 1);
        let next = links.as_ref().filter(|_| is_shared);
        let next = next.map(|links| Spare::of(&made.copy, codes.as_ref(), links, nodes.as_ref()));
        let device_links = std::mem::take(&mut made.device_links);
        let ids = &before.ids;
        let followed = self.copy_rows(ids, changed, given, &mut spare).and_then(|()| {
            let old = Old { links, codes, nodes, device_links, spare, next };
            self.followed(old, ids, changed, watch)
        });
        match followed {
            Ok(Some(Followed { links, codes, nodes, device_links, spare })) => {
                self.made.links = Some(links);
                (self.made.codes, self.made.nodes, self.made.device_links) = (codes, nodes, device_links);
                self.made.spare = Former::new(spare);
                Ok(())
            }
            Ok(None) => Ok(()),
            Err(Error::Cancelled) => Err(Error::Cancelled),
            Err(error) => {
                self.tell_missing(&error);
                Ok(())
            }
        }
    }

    /// Reports that there is no graph. Searches of an index without a graph are exact.
    fn tell_missing(&self, reason: &Error) {
        events::graph_missing(|| self.device(), self.len(), reason);
    }

    /// Copies the rows to host memory, unless the flat index has them there. On error there is no copy, and the next
    /// change copies all rows. `given` are the vectors of the changed ids, or none.
    fn copy_rows(&mut self, before: &RowIds, changed: &[u64], given: &[T], spare: &mut Option<Spare<T>>) -> Result<()> {
        // From here on, everything is made of the current rows.
        self.made.of = self.flat.version();
        if self.flat.host_rows().is_some() {
            self.made.copy = Arc::default();
            return Ok(());
        }
        let mut copy = std::mem::take(&mut self.made.copy);
        let (after, dim) = (self.flat.row_ids(), self.flat.dim());
        let count = after.rows() * dim;
        let kept = if moves(before, after) || copy.len() != before.rows() * dim { 0 } else { copy.len() };
        let are_given = !given.is_empty() && count - kept == given.len() && changed.is_sorted();
        if kept == 0 {
            // A snapshot may have the old one, and memory that was never touched is cheaper to fill.
            copy = Arc::new(if are_given { Vec::new() } else { host_memory::zeroed(count)? });
        }
        if kept < count || !changed.is_empty() {
            if let (Some(spare), true) = (spare, Arc::strong_count(&copy) > 1)
                && let Some(older) = spare.copy(&copy, dim)?
            {
                copy = Arc::new(older);
            }
            let room = count - copy.len();
            let rows = own_with_room(&mut copy, room)?;
            if are_given {
                host_memory::extend(rows, given)?;
                self.made.copy = copy;
                return Ok(());
            }
            rows.resize(count, T::default());
            let (old, more) = rows.split_at_mut(kept);
            if !given.is_empty() && kept > 0 {
                for (vector, &id) in given.chunks_exact(dim).zip(changed) {
                    if let Some(row) = after.find(id) {
                        rows[row * dim..][..dim].copy_from_slice(vector);
                    }
                }
            } else {
                if !more.is_empty() {
                    self.flat.copy_rows(kept / dim, more)?;
                }
                for row in changed.iter().filter_map(|&id| after.find(id)).filter(|&row| row < kept / dim) {
                    self.flat.copy_rows(row, &mut old[row * dim..][..dim])?;
                }
            }
        }
        self.made.copy = copy;
        Ok(())
    }

    /// The codes of the rows after a change, made of those before it. They are fitted again if they have become old.
    fn followed_codes(
        &self,
        codes: Option<Codes>,
        before: &RowIds,
        changed: &[u64],
        spare: &mut Option<Spare<T>>,
    ) -> Result<Option<Codes>> {
        let Some(mut codes) = codes else { return Ok(None) };
        if let (Some(spare), true) = (spare, codes.are_shared())
            && let Some(older) = spare.codes(&codes)?
        {
            codes = older;
        }
        let after = self.flat.row_ids();
        let kept = if moves(before, after) || codes.len() != before.rows() { 0 } else { before.rows() };
        let rows = changed.iter().filter_map(|&id| after.find(id));
        codes.update(VectorSlice::of(self.rows(), self.dim()), kept, rows, changed.len())?;
        if codes.are_old() { self.fitted_codes(self.rows()) } else { Ok(Some(codes)) }
    }

    /// Copies all rows to host memory, unless the flat index has them there.
    pub(super) fn copy_all_rows(&mut self) -> Result<()> {
        self.copy_rows(&RowIds::default(), &[], &[], &mut None)
    }

    /// Whether there are so few rows that they need no edges.
    pub(super) fn is_small(&self) -> bool {
        self.are_few(self.flat.row_ids().rows())
    }

    /// Whether so few rows need no edges.
    fn are_few(&self, rows: usize) -> bool {
        rows <= self.builder.exact_ratio.saturating_mul(FEW) || rows == 0
    }

    /// The graph of the rows after a change, made of the one before it; `None` if so few rows need none.
    fn followed(
        &mut self,
        old: Old<T>,
        before: &RowIds,
        changed: &[u64],
        watch: &Watch<'_>,
    ) -> Result<Option<Followed<T>>> {
        if self.is_small() {
            return Ok(None);
        }
        let Old { links, codes, nodes, device_links, mut spare, next } = old;
        let (after, dim) = (self.flat.row_ids(), self.dim());
        let rows = after.rows();
        // Each changed id is that of another row.
        let are_few = |links: &Arc<Links>| {
            let inserted = if self.metric().favors_length() { links.inserted() } else { 0 };
            2 * changed.len() < rows && 2 * (inserted + changed.len()) <= rows
        };
        let links = links.filter(|links| links.len() == before.rows() && are_few(links));
        let Some(links) = links else { return self.rebuilt(watch).map(Some) };
        let moves = moves(before, after);
        if !moves && changed.is_empty() && links.len() == rows {
            return Ok(Some(Followed { links, codes, nodes, device_links, spare }));
        }
        let mut new: Vec<u32> = changed.iter().filter_map(|&id| Some(after.find(id)? as u32)).collect();
        new.sort_unstable();
        let coder = codes.as_ref().map(|codes| Arc::clone(&codes.coder));
        let codes = self.followed_codes(codes, before, changed, &mut spare)?;
        let is_same_coder = match (coder, &codes) {
            (None, None) => true,
            (Some(coder), Some(codes)) => Arc::ptr_eq(&coder, &codes.coder),
            _ => false,
        };
        let vectors = self.rows();
        let distances = self.distances_among(codes.as_ref(), vectors);
        let mut links = if moves {
            let mut moved: Vec<u32> = (0..links.len()).map(|row| moved_to(before, after, row)).collect();
            let device = self.device_build(distances.fast)?;
            build::moved(&links, &distances.fast, &mut moved, rows, device)?
        } else {
            let mut links = match Arc::try_unwrap(links) {
                Ok(own) => own,
                Err(shared) => {
                    let older = spare.as_mut().map_or(Ok(None), |spare| spare.links(&shared))?;
                    older.map_or_else(|| shared.copied(), Ok)?
                }
            };
            links.grow(rows)?;
            links
        };
        // The table has numbers of rows.
        let mut nodes = match nodes.filter(|_| !moves) {
            Some(nodes) if Arc::strong_count(&nodes) == 1 => nodes,
            Some(nodes) => spare.as_mut().and_then(|spare| spare.nodes(&nodes)).map_or(nodes, Arc::new),
            None if new.is_empty() => Arc::default(),
            None => {
                let is_node = |row| !links.twins().contains(row) && new.binary_search(&row).is_err();
                Arc::new(Nodes::of(vectors, dim, is_node)?)
            }
        };
        let Some((inserted, replaced)) = links.join_equal(Arc::make_mut(&mut nodes), (vectors, dim), &new) else {
            return self.rebuilt(watch).map(Some);
        };
        if moves || replaced {
            // The new rows have no edges yet, and get their parents when they are inserted.
            links.connect_without(&distances.fast, &inserted);
        }
        // Otherwise edges or codes of rows without new vectors may have changed.
        let image = (is_same_coder && !moves && !replaced).then(|| device_links.taken()).flatten();
        let are_listed = is_same_coder && links.list_starts_after(&new, &distances.fast);
        let accepted = match after.live() {
            Some(live) => Some(links.twins().accepted_nodes(live)?.0),
            None => None,
        };
        let mut device = match self.flat.resident_rows() {
            Some(resident) if !new.is_empty() => {
                let batch = inserted.len().min(BATCH);
                DeviceInsert::new(resident, distances, &links, (image, &new), (batch, accepted.as_ref()))?
            }
            _ => None,
        };
        if !are_listed {
            build::list_starts(&mut links, &distances.fast, &[], &mut device)?;
        }
        let edges = build::insert(&mut links, &distances, &inserted, accepted.as_ref(), &mut device, watch)?;
        let hashes = Arc::make_mut(&mut nodes).take_inserted();
        let nodes = (!new.is_empty()).then_some(nodes);
        // All rows may differ from older ones if they have moved, or if edges to some rows lead to others now.
        let spare = if moves || replaced { None } else { next.or(spare) };
        let spare = spare.and_then(|spare| spare.after(Changes { rows: new, edges, hashes }, rows));
        // Without an image, the next search uploads the graph.
        let device_links = match device.map(|device| device.finish(&links)) {
            Some(Err(Error::OutOfDeviceMemory { .. })) | None => Arc::default(),
            Some(image) => Arc::new(DeviceLinks::of(image?)),
        };
        Ok(Some(Followed { links: Arc::new(links), codes, nodes, device_links, spare }))
    }

    /// A new graph of all rows, after those that removed vectors left are gone.
    fn rebuilt(&mut self, watch: &Watch<'_>) -> Result<Followed<T>> {
        let before = Arc::clone(self.flat.row_ids());
        self.flat.compact()?;
        self.copy_rows(&before, &[], &[], &mut None)?;
        let (rows, settings) = (self.rows(), self.builder.settings);
        let candidates = Candidates::all(rows, self.dim(), settings, &self.place(rows), watch)?;
        let New { codes, links, .. } = self.new_graph(rows, candidates, false, watch)?;
        Ok(Followed { links, codes, nodes: None, device_links: Arc::default(), spare: None })
    }

    /// The devices that search the candidates of the edges among `rows`, and the budget that the rows leave them.
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
        let distance = self.distances_among(codes.as_ref(), rows).fast;
        let device = self.device_build(distance)?;
        // Equal rows are rare, and looked for while the edges are chosen.
        let ((copy, twins), links) = meanwhile(
            || (if copies { copied(rows) } else { Ok(Vec::new()) }, Twins::of(rows, self.dim())),
            || {
                build(
                    &distance,
                    &Given::Searched(&candidates, rows),
                    self.builder.settings.degree,
                    device,
                    Twins::default(),
                    watch,
                )
            },
        );
        let (twins, mut links) = (twins?, links?);
        if twins.largest() > MOST_JOINED {
            links = self.graph_of_different(rows, &distance, twins, watch)?;
        } else if !twins.is_empty() {
            links.join(twins, &distance);
        }
        Ok(New { copy: copy?, links: Arc::new(links), codes })
    }

    /// The graph of rows of which many are equal: their candidates are searched among the different ones.
    fn graph_of_different(
        &self,
        rows: &[T],
        distance: &WalkDistance<'_>,
        twins: Twins,
        watch: &Watch<'_>,
    ) -> Result<Links> {
        let (dim, count) = (self.dim(), rows.len() / self.dim());
        let nodes: Vec<usize> = (0..count).filter(|&row| !twins.contains(row as u32)).collect();
        let different = gather(rows, dim, &nodes)?;
        let candidates = Candidates::all(&different, dim, self.builder.settings, &self.place(&different), watch)?;
        let found = candidates.graph(&different, dim, watch)?;
        let width = found.k();
        let mut table: Vec<u32> = host_memory::filled(NO_NODE, host_memory::count::<u32>(&[count, width])?)?;
        for (number, &row) in nodes.iter().enumerate() {
            let places = table[row * width..(row + 1) * width].iter_mut().zip(found.row(number));
            let others = places.filter(|&(_, &other)| other != NO_NODE);
            others.for_each(|(place, &other)| *place = nodes[other as usize] as u32);
        }
        let graph = Graph::of_rows(table, width);
        let device = self.device_build(*distance)?;
        build(distance, &Given::<T>::Graph(&graph), self.builder.settings.degree, device, twins, watch)
    }

    /// The device that has all rows, to choose edges by `distance`; `None` if there is none, or no memory.
    pub(super) fn device_build<'a>(&'a self, distance: WalkDistance<'a>) -> Result<Option<DeviceBuild<'a>>> {
        let Some(resident) = self.flat.resident_rows() else { return Ok(None) };
        DeviceBuild::new(resident, distance, self.builder.settings.degree)
    }
}

/// A copy of vectors, made by all threads.
fn copied<T: Element>(rows: &[T]) -> Result<Vec<T>> {
    let mut copy = Vec::new();
    host_memory::extend(&mut copy, rows)?;
    Ok(copy)
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
