//! Brings an image up to date after changes of the index.
//!
//! The lists say which places have changed since the version of the image ([`View::changes_since`]). The vectors of
//! these places come to the device one after the other in one upload. They are prepared there as all rows of an image
//! are, and then copied to their rows. A place past the end of a list becomes padding. A list that has outgrown its
//! room moves to the reserve of the storage, so all of its vectors are sent. The same is true for a shard's part of a
//! list if the part begins at another place, which is rare ([`View`]). Three things belong to all rows:
//! - The scale follows from the greatest component. If a new vector changes the scale, the image is made anew.
//! - The centre stays that of the first image. Any centre is right.
//! - The bounds are only raised. After a removal they may be larger than needed, which is still a bound.
//!
//! The image is also made anew if the reserve is full ([`Update::Outgrown`]), if many vectors have changed
//! ([`SHARE_SENT`]), if the storage is mostly empty, and if the lists no longer know what has changed.
//!
//! # Cost
//! As counted with an emulated driver: two uploads (one after a removal that moves no vector), at most twelve launches,
//! and one copy to the host, which is the only wait. The uploads are the vectors, and the words that say where they go.
//! If vectors have new ranks, there is a third upload of 4 bytes for each row of the storage. The host sorts the
//! changed places, and the lengths of the lists (7 µs for 1,024 lists, 0.3 ms for 65,536; one core of an EPYC,
//! 2026-11-25).

use std::ops::Range;

use cuda_std::Ptr;
use warpann_kernels::NO_ROW;
use warpann_kernels::product::metric::scale_of;

use super::image::Resident;
use super::storage::{STAGING, Storage, fill_rows};
use super::stored::Measuring;
use super::stored_plan::Measured;
use super::tables::{self, Terms};
use crate::device::lanes::Lane;
use crate::device::queue::OnStream;
use crate::device::scratch::{Layout, Reserved, Scratch};
use crate::device::tiling::Budget;
use crate::flat::gpu::copies::scatter_rows;
use crate::ivf::lists::Address;
use crate::ivf::view::View;
use crate::{Error, Result, events, host_memory};

/// More rows than [`FEW`], and more than this share of all, are not sent: a new image takes no words and no second copy
/// for each row.
const SHARE_SENT: usize = 4;
const FEW: usize = 256;

/// Largest number of changed places for which the image of a former version is brought up to date, if it has not many
/// more than the image of the last version: a copy within the device takes .6 ms for a million vectors of 128
/// components (H200, 2026-11-28), and more for larger indexes.
const FEW_BEHIND: usize = 1 << 13;

/// The result of an update of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Update {
    /// It shows the current version.
    Done,
    /// It must be made anew, with more room for lists to grow.
    Outgrown,
    /// It must be made anew.
    Impossible,
}

/// The rows and lists of an image that change.
struct Changed {
    /// The rows of vectors, and where the vectors are in the parts of the lists that are here; list after list.
    rows: Vec<(u32, Address)>,
    /// The rows that become padding.
    padding: Vec<u32>,
    /// The lists whose start or length may be another one.
    lists: Vec<u32>,
    /// Whether the ranks of all vectors change.
    renumbered: bool,
}

/// The scratch for some changed rows.
struct StagingPlan {
    codes: Reserved<u8>,
    operands: Reserved<u16>,
    values: Reserved<f32>,
    terms: Reserved<f32>,
    /// The words of [`Resident::row_words`], and in the last chunk of [`Changed::words`].
    words: Reserved<u32>,
    bytes: usize,
}

impl StagingPlan {
    /// Scratch for `rows` rows at a time.
    fn new(resident: &Resident, rows: usize, changed: &Changed) -> StagingPlan {
        let image = &resident.image;
        let operands = if resident.parts.stored.operands.is_empty() { 0 } else { image.f16_stride as usize };
        let terms = if resident.has_row_terms() { rows } else { 0 };
        let mut layout = Layout::default();
        let plan = StagingPlan {
            codes: layout.array(rows.saturating_mul(image.stored.row_bytes as usize)),
            operands: layout.array(rows.saturating_mul(operands)),
            values: layout.array(rows),
            terms: layout.array(terms),
            words: layout.array(resident.row_words(rows) + changed.words()),
            bytes: 0,
        };
        StagingPlan { bytes: layout.bytes(), ..plan }
    }
}

impl Changed {
    /// Number of words that say which rows become padding, and where lists are.
    fn words(&self) -> usize {
        3 * (self.padding.len() + self.lists.len())
    }

    /// These words: rows, ranks and values of padding; then lists, their starts and their lengths.
    fn append_words(&self, storage: &Storage, words: &mut Vec<u32>) {
        words.extend_from_slice(&self.padding);
        words.extend(self.padding.iter().map(|_| NO_ROW));
        words.extend(self.padding.iter().map(|_| f32::INFINITY.to_bits()));
        words.extend_from_slice(&self.lists);
        for of in [&storage.starts, &storage.lengths] {
            words.extend(self.lists.iter().map(|&list| of[list as usize]));
        }
    }
}

impl Resident {
    /// Whether [`update`](Self::update) of this image, of a former version, costs less than a copy of the image of a
    /// later one and the update of that.
    pub fn is_near(&self, view: &View<'_>, later: &Resident) -> bool {
        let (own, of_later) = (view.changed_since(self.version), view.changed_since(later.version));
        own.zip(of_later).is_some_and(|(own, of_later)| own <= FEW_BEHIND && own <= 4 * of_later.max(FEW))
    }

    /// Brings the image to the version of `view`. After another result than [`Update::Done`] the image is of no use.
    /// Must not use the thread pool; the caller has made the directory if the ids need one.
    pub fn update(&mut self, room: Budget<'_>, lane: &mut Lane, view: &View<'_>) -> Result<Update> {
        let changed = match self.changed(view) {
            Ok(changed) => changed,
            Err(update) => return Ok(update),
        };
        let started = events::Started::now();
        let row_bytes = self.image.stored.row_bytes as usize;
        let most = changed.rows.len().min((STAGING / row_bytes).max(1));
        let plan = StagingPlan::new(self, most, &changed);
        if !room.has(plan.bytes as u64) {
            return Ok(Update::Impossible);
        }
        let runtime = room.runtime();
        let scratch = match lane.scratch(runtime, plan.bytes) {
            Err(Error::OutOfDeviceMemory { .. }) => return Ok(Update::Impossible),
            scratch => scratch?,
        };
        let on = OnStream { runtime, stream: &lane.background };
        let chunks = changed.rows.len().div_ceil(most.max(1)).max(1);
        for chunk in 0..chunks {
            let rows = &changed.rows[chunk * most..changed.rows.len().min((chunk + 1) * most)];
            let last = (chunk + 1 == chunks).then_some(&changed);
            // SAFETY: the scratch has room for `most` rows, and for the changes of lists. The rows are different rows
            // of the storage, none becomes padding twice, and no list occurs twice.
            unsafe { self.send(on, (&plan, scratch), view, rows, last)? };
        }
        if changed.renumbered {
            let mut ranks = host_memory::filled(NO_ROW, self.storage.rows as usize)?;
            for (list, &start) in self.storage.starts.iter().enumerate() {
                let length = view.length(list);
                view.ranks_into(list, 0..length, &mut ranks[start as usize..][..length]);
            }
            // SAFETY: the array has a rank for each row of the storage.
            unsafe { runtime.copy_to_device(on.stream, self.parts.ranks, &ranks)? };
        }
        // The only wait. A new scale, for which the host would have to wait earlier, is rare.
        let mut greatest = [0];
        // SAFETY: the image has the word.
        unsafe { runtime.copy_to_host(on.stream, &mut greatest, self.parts.greatest)? };
        let scale = |greatest| scale_of(self.image.operand_metric(), f32::from_bits(greatest));
        let is_fixed = matches!(self.image.stored.measuring, Measuring::Codes { scaled: false, .. });
        if !is_fixed && scale(greatest[0]) != scale(self.greatest) {
            return Ok(Update::Impossible);
        }
        let bytes = (changed.rows.len() * row_bytes) as u64;
        events::uploaded("changes of an inverted file", || runtime.describe(), bytes, &started);
        self.note_lengths();
        self.version = view.version();
        Ok(Update::Done)
    }

    /// Finds the rows that change, and gives lists that have outgrown their rooms new ones.
    fn changed(&mut self, view: &View<'_>) -> Result<Changed, Update> {
        let changes = view.changes_since(self.version).ok_or(Update::Impossible)?;
        let mut changed =
            Changed { rows: Vec::new(), padding: Vec::new(), lists: Vec::new(), renumbered: changes.renumbered };
        for places in changes.places.chunk_by(|a, b| a.list == b.list) {
            let list = places[0].list;
            let part = view.places(list as usize);
            let (first, length) = (part.start as u32, part.len() as u32);
            let (first_before, before) = (self.firsts[list as usize], self.storage.lengths[list as usize]);
            let moved = self.storage.resize(list as usize, length).ok_or(Update::Outgrown)?;
            self.firsts[list as usize] = first;
            let start = self.storage.starts[list as usize];
            let row = |place: u32| (start + place, Address { list, place });
            if moved || first != first_before {
                changed.rows.extend((0..length).map(row));
            } else {
                // The end of a shard's part may also move over places that have not changed.
                let kept = first..first + before.min(length);
                let in_kept = places.iter().map(|at| at.place).filter(|place| kept.contains(place));
                changed.rows.extend(in_kept.map(|place| place - first).chain(before..length).map(row));
            }
            if !moved {
                changed.padding.extend(start + length..start + before.max(length));
            }
            changed.lists.push(list);
        }
        let most = FEW.max(view.len() / SHARE_SENT);
        if changed.rows.len() > most || self.storage.is_mostly_empty() { Err(Update::Impossible) } else { Ok(changed) }
    }

    /// Whether each row has a term for the scan by lookup tables.
    fn has_row_terms(&self) -> bool {
        let kind = self.image.stored.tables.map(|tables| tables.kind);
        kind == Some(Terms::Rows) && !self.parts.stored.terms.is_empty()
    }

    /// Number of words that [`Self::send`] needs for `rows` rows: row numbers, ranks, lists; then for the terms the
    /// first of these rows, and their number, for each list.
    fn row_words(&self, rows: usize) -> usize {
        3 * rows + if self.has_row_terms() && rows > 0 { 2 * self.image.lists as usize } else { 0 }
    }

    /// Copies the vectors of some rows to the device, prepares them, and copies them to their rows. With the last rows
    /// it makes rows padding, and writes starts and lengths of lists.
    ///
    /// # Safety
    /// The scratch has the plan's size, for at least these rows and changes. The rows are different rows of the
    /// storage, and the lists are different lists.
    unsafe fn send(
        &self,
        on: OnStream<'_>,
        (plan, scratch): (&StagingPlan, Scratch),
        view: &View<'_>,
        rows: &[(u32, Address)],
        last: Option<&Changed>,
    ) -> Result<()> {
        let count = rows.len();
        let of_rows = self.row_words(count);
        let mut words: Vec<u32> = host_memory::with_room(of_rows + last.map_or(0, Changed::words))?;
        words.resize(of_rows, 0);
        for (at, &(row, Address { list, place })) in rows.iter().enumerate() {
            words[at] = row;
            view.ranks_into(list as usize, place as usize..place as usize + 1, &mut words[count + at..][..1]);
            words[2 * count + at] = list;
        }
        let longest_list = self.count_staged(rows, &mut words[3 * count..]);
        if let Some(changed) = last {
            changed.append_words(&self.storage, &mut words);
        }
        let there = scratch.at(plan.words).take(words.len());
        // SAFETY: as the caller promises; the stream runs copies and launches in order.
        unsafe {
            on.runtime.copy_to_device(on.stream, there, &words)?;
            if count > 0 {
                self.send_rows(on, (plan, scratch), view, rows, (there.take(of_rows).into(), longest_list))?;
            }
            match last {
                Some(changed) => self.place_lists(on, changed, there.skip(of_rows).into()),
                None => Ok(()),
            }
        }
    }

    /// Writes the first of these rows of each list, and then their number of each list, if the words have room for
    /// them. Returns the greatest number.
    fn count_staged(&self, rows: &[(u32, Address)], words: &mut [u32]) -> u32 {
        if words.is_empty() {
            return 0;
        }
        let (starts, lengths) = words.split_at_mut(self.image.lists as usize);
        for (at, (_, Address { list, .. })) in (0..).zip(rows) {
            let list = *list as usize;
            starts[list] = if lengths[list] == 0 { at } else { starts[list] };
            lengths[list] += 1;
        }
        lengths.iter().copied().max().unwrap_or(0)
    }

    /// The part of [`Self::send`] for at least one row. `words` are those of the rows, on the device, and
    /// `longest_list` is the greatest number of these rows in a list.
    ///
    /// # Safety
    /// As [`Self::send`].
    unsafe fn send_rows(
        &self,
        on: OnStream<'_>,
        (plan, scratch): (&StagingPlan, Scratch),
        view: &View<'_>,
        rows: &[(u32, Address)],
        (words, longest_list): (Ptr<u32>, u32),
    ) -> Result<()> {
        let (image, parts, count) = (&self.image, &self.parts, rows.len());
        let row_bytes = image.stored.row_bytes as usize;
        let codes = scratch.at(plan.codes).take(count * row_bytes);
        let part = |part: Range<usize>| words.skip(part.start).take(part.len());
        let (numbers, ranks) = (part(0..count), part(count..2 * count));
        let staged = Measured {
            image,
            codes: codes.into(),
            row_count: count as u32,
            row_lists: part(2 * count..3 * count),
            greatest: parts.greatest,
            operands: scratch.at(plan.operands),
            values: scratch.at(plan.values).take(count),
            bounds: parts.bounds,
            code_bounds: parts.code_bounds,
        };
        // Straight into the memory from which the bus copies.
        let write = |some: Range<usize>, to: &mut [u8]| {
            for (&(_, Address { list, place }), to) in rows[some].iter().zip(to.chunks_exact_mut(row_bytes)) {
                fill_rows(view.codes(list as usize), place as usize, row_bytes, image.stored.flips, to);
            }
        };
        // SAFETY: as the caller promises; the stream runs copies and launches in order.
        unsafe {
            on.runtime.copy_rows_to_device(on.stream, codes, count, row_bytes, &write)?;
            staged.raise_greatest(on)?;
            staged.measure(on)?;
            scatter_rows(on, staged.codes, numbers, parts.stored.codes, row_bytes)?;
            scatter_rows(on, staged.values.as_bytes().into(), numbers, parts.values.as_bytes(), 4)?;
            scatter_rows(on, ranks.as_bytes(), numbers, parts.ranks.as_bytes(), 4)?;
            if !parts.stored.operands.is_empty() {
                let operands = staged.operands.as_bytes().into();
                scatter_rows(on, operands, numbers, parts.stored.operands.as_bytes(), 2 * image.f16_stride as usize)?;
            }
            if let (true, Some(tables)) = (self.has_row_terms(), image.stored.tables) {
                let (rest, lists) = (part(3 * count..words.len()), image.lists as usize);
                let lists_of_staged = tables::Image {
                    codes: staged.codes,
                    list_starts: rest.take(lists),
                    list_lengths: rest.skip(lists),
                    ..image.table_image()
                };
                let shape = tables::Shape { longest_list, ..tables.shape };
                let terms = scratch.at(plan.terms).take(count);
                tables::enqueue_terms(&on, &shape, &lists_of_staged, Terms::Rows, terms)?;
                scatter_rows(on, terms.as_bytes().into(), numbers, parts.stored.terms.as_bytes(), 4)?;
            }
        }
        Ok(())
    }

    /// Makes rows padding, and writes starts and lengths of lists, from the words of [`Changed::append_words`] on the
    /// device.
    ///
    /// # Safety
    /// As [`Self::send`].
    unsafe fn place_lists(
        &self,
        on: OnStream<'_>,
        Changed { padding, lists, .. }: &Changed,
        words: Ptr<u32>,
    ) -> Result<()> {
        let parts = &self.parts;
        let part = |part: usize, count: usize, from: usize| words.skip(from + part * count).take(count);
        let of_padding = |at| part(at, padding.len(), 0);
        let of_lists = |at| part(at, lists.len(), 3 * padding.len());
        // SAFETY: as the caller promises; the stream runs copies and launches in order.
        unsafe {
            scatter_rows(on, of_padding(1).as_bytes(), of_padding(0), parts.ranks.as_bytes(), 4)?;
            scatter_rows(on, of_padding(2).as_bytes(), of_padding(0), parts.values.as_bytes(), 4)?;
            scatter_rows(on, of_lists(1).as_bytes(), of_lists(0), parts.starts.as_bytes(), 4)?;
            scatter_rows(on, of_lists(2).as_bytes(), of_lists(0), parts.lengths.as_bytes(), 4)
        }
    }
}
