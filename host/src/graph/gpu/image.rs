//! A graph in device memory: codes, edges and parents of the rows, and the lists of the start nodes.
//!
//! The first search uploads a graph. Later insertions change the image of the version before ([`RowImage::grown`]): in
//! place if nobody else has it, else in a copy within the device, so that no change uploads more than what is new.

use std::ops::Range;
use std::sync::Arc;

use cuda_std::PtrMut;
use warpann_kernels::NO_ROW;

use super::super::distance::WalkDistance;
use super::super::links::Links;
use crate::device::queue::OnStream;
use crate::device::runtime::{Memory, Runtime, Stream};
use crate::device::scratch::{Layout, Reserved};
use crate::device::spare::{Spare, VersionMemory};
use crate::flat::ResidentRows;
use crate::threads::Exclusive;
use crate::vectors::VectorSlice;
use crate::{ElementType, Error, Result};

/// A graph in device memory.
pub(in super::super) struct Image {
    pub(super) rows: RowImage,
    pub(super) entry: EntryImage,
    pub(super) spares: Spares,
}

/// Memory that former versions of a graph leave for the next: that of rows, of start nodes, and of insertions.
#[derive(Clone, Default)]
pub(super) struct Spares {
    rows: Arc<Spare<Memory>>,
    entry: Arc<Spare<Memory>>,
    pub(super) work: Arc<Spare<Memory>>,
    /// The memory budget of the index in bytes; 0 before the first insertion.
    budget: u64,
}

impl Spares {
    /// Those of the image of a version before, if there is one, for an index with this memory budget.
    pub(super) fn after(before: Option<&Image>, budget: u64) -> Spares {
        Spares { budget, ..before.map(|before| before.spares.clone()).unwrap_or_default() }
    }

    /// Bytes of device memory that no version has.
    fn bytes(&self) -> u64 {
        [&self.rows, &self.entry, &self.work].map(|spare| spare.bytes()).iter().sum()
    }
}

/// The codes, edges and parents of rows in device memory.
pub(super) struct RowImage {
    pub(super) memory: VersionMemory,
    /// Number of rows, and of those for which there is room.
    pub(super) len: usize,
    capacity: usize,
    /// The rows that walks compare, [`code_stride`] bytes each, unless these are those of the flat index.
    pub(super) codes: Reserved<u8>,
    pub(super) edges: Reserved<u32>,
    /// The parent of each row, which insertions need.
    pub(super) parents: Reserved<u32>,
}

/// The start nodes of a graph in device memory, and what belongs to all of its rows.
pub(super) struct EntryImage {
    pub(super) memory: VersionMemory,
    /// The shifts of the coder of the codes.
    pub(super) shifts: Reserved<f32>,
    pub(super) starts: Reserved<u32>,
    pub(super) pivots: Reserved<u32>,
    pub(super) ends: Reserved<u32>,
    /// For each row the place in `members` where its group of equal rows begins, or `NO_ROW`; empty if no rows are
    /// equal.
    pub(super) groups: Reserved<u32>,
    /// Groups of equal rows: their number and the rows.
    pub(super) members: Reserved<u32>,
}

impl RowImage {
    /// Memory for `capacity` rows, of which there are none yet.
    fn with_room(
        runtime: &Runtime,
        spares: &Spares,
        capacity: usize,
        (row_bytes, degree): (usize, usize),
    ) -> Result<Self> {
        let mut layout = Layout::default();
        let (edges, codes) = (layout.array(capacity * degree), layout.array(capacity * row_bytes));
        let parents = layout.array(capacity);
        let memory = spares.rows.allocate(runtime, layout.bytes(), spares.budget)?;
        Ok(RowImage { memory, len: 0, capacity, codes, edges, parents })
    }

    /// Uploads codes, edges and parents of all rows. The stream may still work on it on return.
    pub(super) fn uploaded(
        OnStream { runtime, stream }: OnStream<'_>,
        spares: &Spares,
        links: &Links,
        codes: Option<VectorSlice<'_>>,
    ) -> Result<Self> {
        let (rows, row_bytes) = (links.len(), codes.map_or(0, |codes| code_stride(codes.dim())));
        let image = Self::with_room(runtime, spares, rows, (row_bytes, links.degree()))?;
        let at = runtime.scratch(&image.memory);
        // SAFETY: there is room for the codes, edges and parents of all rows, and no other work uses it.
        unsafe {
            if let Some(codes) = codes {
                upload_codes(runtime, stream, at.at(image.codes), codes)?;
            }
            runtime.copy_to_device(stream, at.at(image.edges), links.edges())?;
            runtime.copy_to_device(stream, at.at(image.parents), links.parents())?;
        }
        Ok(RowImage { len: rows, ..image })
    }

    /// The image of `before` with `rows` rows, at least as many as before; the new ones have no edges or parents, and
    /// unspecified codes. Nothing is copied if nobody else has the image and there is room. The stream may still work
    /// on it on return; `before` is then left to the caller, who keeps it until the stream has done the work.
    pub(super) fn grown(
        on: OnStream<'_>,
        spares: &Spares,
        before: Arc<Image>,
        rows: usize,
        degree: usize,
    ) -> Result<(Self, Option<Arc<Image>>)> {
        let OnStream { runtime, stream } = on;
        let (mut image, kept) = match Arc::try_unwrap(before) {
            Ok(own) if own.rows.capacity >= rows => (own.rows, None),
            Ok(mut own) => {
                own.rows.memory.outgrow();
                Self::copied(on, spares, Arc::new(own), rows, degree)?
            }
            Err(shared) => Self::copied(on, spares, shared, rows, degree)?,
        };
        let (first, count, at) = (image.len, rows - image.len, runtime.scratch(&image.memory));
        // SAFETY: there is room for the edges and parents of all rows, and no search has the image.
        unsafe {
            runtime.fill(stream, at.at(image.edges.part(first * degree, count * degree)), u8::MAX)?;
            runtime.fill(stream, at.at(image.parents.part(first, count)), u8::MAX)?;
        }
        image.len = rows;
        Ok((image, kept))
    }

    fn copied(
        OnStream { runtime, stream }: OnStream<'_>,
        spares: &Spares,
        before: Arc<Image>,
        rows: usize,
        degree: usize,
    ) -> Result<(Self, Option<Arc<Image>>)> {
        let old = &before.rows;
        let row_bytes = old.codes.len() / old.capacity.max(1);
        // Extra room if rows come in portions, unless memory is short.
        let roomy = if old.capacity >= rows { old.capacity } else { rows.max(old.capacity + old.capacity / 2) };
        let widths = (row_bytes, degree);
        let image = match Self::with_room(runtime, spares, roomy, widths) {
            Err(Error::OutOfDeviceMemory { .. }) => Self::with_room(runtime, spares, rows, widths)?,
            image => image?,
        };
        let (to, from) = (runtime.scratch(&image.memory), runtime.scratch(&old.memory));
        // SAFETY: both have room for the old rows, and lie in different memory.
        unsafe {
            runtime.copy(stream, to.at(image.codes), from.at(old.codes.part(0, old.len * row_bytes)))?;
            runtime.copy(stream, to.at(image.edges), from.at(old.edges.part(0, old.len * degree)))?;
            runtime.copy(stream, to.at(image.parents), from.at(old.parents.part(0, old.len)))?;
        }
        let len = old.len;
        Ok((RowImage { len, ..image }, Some(before)))
    }
}

impl EntryImage {
    /// Uploads the lists of the start nodes, and these groups of equal rows, to memory that nothing uses if it is
    /// given and large enough. The stream may still work on it on return.
    pub(super) fn uploaded(
        OnStream { runtime, stream }: OnStream<'_>,
        spares: &Spares,
        given: Option<VersionMemory>,
        (links, shifts): (&Links, &[f32]),
        (groups, members): (&[u32], &[u32]),
    ) -> Result<Self> {
        let entrance = links.entrance();
        let arrays = [entrance.listed(), entrance.pivots(), entrance.ends(), groups, members];
        let mut layout = Layout::default();
        let places = arrays.map(|array| layout.array::<u32>(array.len()));
        let shift_place = layout.array::<f32>(shifts.len());
        // The size of one version then serves the next.
        let bytes = layout.bytes().next_power_of_two();
        let memory = match given.filter(|memory| memory.bytes() >= bytes as u64) {
            Some(memory) => memory,
            None => spares.entry.allocate(runtime, bytes, spares.budget)?,
        };
        let scratch = runtime.scratch(&memory);
        // SAFETY: the layout has room for the shifts and every array.
        unsafe {
            runtime.copy_to_device(stream, scratch.at(shift_place), shifts)?;
            for (array, place) in arrays.into_iter().zip(places) {
                runtime.copy_to_device(stream, scratch.at(place), array)?;
            }
        }
        let [starts, pivots, ends, groups, members] = places;
        Ok(EntryImage { memory, shifts: shift_place, starts, pivots, ends, groups, members })
    }
}

impl Image {
    fn bytes(&self) -> u64 {
        let EntryImage { shifts, starts, pivots, ends, groups, members, .. } = &self.entry;
        let words = [starts, pivots, ends, groups, members].map(|array| array.len()).iter().sum::<usize>();
        let rows = 4 * (self.rows.edges.len() + self.rows.parents.len()) + self.rows.codes.len();
        (rows + 4 * (words + shifts.len())) as u64 + self.spares.bytes()
    }
}

/// The graph in the memory of a device, once a search has uploaded it, or an insertion has made it.
#[derive(Default)]
pub(in super::super) struct DeviceLinks {
    image: Exclusive<Option<Arc<Image>>>,
}

impl DeviceLinks {
    /// A graph that is in device memory.
    pub(in super::super) fn of(image: Image) -> Self {
        DeviceLinks { image: Exclusive::new(Some(Arc::new(image))) }
    }

    /// Bytes of device memory.
    pub(in super::super) fn bytes(&self) -> u64 {
        self.image.with(|image| image.as_ref().map_or(0, |image| image.bytes()))
    }

    /// The graph in device memory, if there is one.
    pub(super) fn made(&self) -> Option<Arc<Image>> {
        self.image.with(|image| image.as_ref().map(Arc::clone))
    }

    /// As [`made`](Self::made), for a caller who gives up these links. Nobody else has the image then, unless others
    /// have the links, or a planned search has it.
    pub(in super::super) fn taken(self: Arc<Self>) -> Option<Arc<Image>> {
        match Arc::try_unwrap(self) {
            Ok(own) => own.image.with(Option::take),
            Err(shared) => shared.made(),
        }
    }

    /// The graph in device memory.
    pub(super) fn image(
        &self,
        runtime: &Runtime,
        stream: &Stream,
        links: &Links,
        (codes, shifts): (Option<VectorSlice<'_>>, &[f32]),
    ) -> Result<Arc<Image>> {
        self.image.with(|image| {
            if let Some(image) = image {
                return Ok(Arc::clone(image));
            }
            let (on, spares) = (OnStream { runtime, stream }, Spares::default());
            let rows = RowImage::uploaded(on, &spares, links, codes)?;
            let (groups, members) = groups_of(links);
            let entry = EntryImage::uploaded(on, &spares, None, (links, shifts), (&groups, &members))?;
            runtime.synchronize(stream)?;
            Ok(Arc::clone(image.insert(Arc::new(Image { rows, entry, spares }))))
        })
    }
}

/// The groups of equal rows: of each row the place of its group, and the groups. Both are empty if no rows are equal.
pub(super) fn groups_of(links: &Links) -> (Vec<u32>, Vec<u32>) {
    let twins = links.twins();
    if twins.is_empty() {
        return (Vec::new(), Vec::new());
    }
    let (mut groups, mut members) = (vec![NO_ROW; links.len()], Vec::new());
    for (_, rows) in twins.groups() {
        rows.iter().for_each(|&row| groups[row as usize] = members.len() as u32);
        members.push(rows.len() as u32);
        members.extend_from_slice(rows);
    }
    (groups, members)
}

/// Distance in bytes from one row of bytes to the next for walks.
pub(super) fn code_stride(dim: usize) -> usize {
    dim.next_multiple_of(16)
}

/// The rows that walks compare, if these are not those of the flat index: codes, and rows of bytes that are not aligned
/// to 16.
pub(super) fn compared_codes<'a>(resident: &ResidentRows<'_>, distance: &WalkDistance<'a>) -> Option<VectorSlice<'a>> {
    let (rows, shape) = (distance.rows(), resident.shape);
    let aligned = rows.element() == shape.element && shape.stride() == code_stride(rows.dim());
    let bytes = matches!(rows.element(), ElementType::U8 | ElementType::I8);
    (bytes && !aligned).then_some(rows)
}

/// Copies rows of bytes to device memory, zero padded.
///
/// # Safety
/// `to` has room for the rows, [`code_stride`] bytes each, and no other work uses it.
pub(super) unsafe fn upload_codes(
    runtime: &Runtime,
    stream: &Stream,
    to: PtrMut<u8>,
    codes: VectorSlice<'_>,
) -> Result<()> {
    // SAFETY: as the caller promises.
    unsafe { upload_listed_codes(runtime, stream, to, codes, codes.len(), |row| row) }
}

/// As [`upload_codes`], of `count` rows: of place i the row `listed(i)`.
///
/// # Safety
/// As [`upload_codes`].
pub(super) unsafe fn upload_listed_codes(
    runtime: &Runtime,
    stream: &Stream,
    to: PtrMut<u8>,
    codes: VectorSlice<'_>,
    count: usize,
    listed: impl Fn(usize) -> usize + Sync,
) -> Result<()> {
    let (dim, stride) = (codes.dim(), code_stride(codes.dim()));
    let write = |some: Range<usize>, to: &mut [u8]| {
        for (to, at) in to.chunks_exact_mut(stride).zip(some) {
            let row = listed(at);
            to[..dim].copy_from_slice(codes.part(row..row + 1).bytes());
            to[dim..].fill(0);
        }
    };
    // SAFETY: the caller promises the room.
    unsafe { runtime.copy_rows_to_device(stream, to, count, stride, &write) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A copy of an image in host memory. Room without rows is left out.
    pub(in super::super::super) struct Downloaded {
        pub edges: Vec<u32>,
        pub parents: Vec<u32>,
        /// Start nodes, pivots and the ends of their lists.
        pub entry: [Vec<u32>; 3],
        pub codes: Vec<u8>,
    }

    impl DeviceLinks {
        /// Copies the image to the host. `None` without an image.
        pub(in super::super::super) fn downloaded(&self, resident: &ResidentRows<'_>) -> Result<Option<Downloaded>> {
            let (runtime, Some(image)) = (resident.runtime, self.made()) else { return Ok(None) };
            resident.lanes.with(runtime, |lane| {
                let words = |memory: &Memory, array: Reserved<u32>| {
                    let mut words = vec![0; array.len()];
                    // SAFETY: the array is in the memory.
                    unsafe { runtime.copy_to_host(&lane.stream, &mut words, runtime.scratch(memory).at(array))? };
                    Result::Ok(words)
                };
                let Image { rows, entry, .. } = &*image;
                let share = |len: usize| len / rows.capacity.max(1) * rows.len;
                let edges = words(&rows.memory, rows.edges.part(0, share(rows.edges.len())))?;
                let parents = words(&rows.memory, rows.parents.part(0, rows.len))?;
                let arrays = [entry.starts, entry.pivots, entry.ends];
                let [starts, pivots, ends] = arrays.map(|array| words(&entry.memory, array));
                let mut codes = vec![0; share(rows.codes.len())];
                let from = runtime.scratch(&rows.memory).at(rows.codes);
                // SAFETY: the codes are in the memory.
                unsafe { runtime.copy_to_host(&lane.stream, &mut codes, from)? };
                Ok(Some(Downloaded { edges, parents, entry: [starts?, pivots?, ends?], codes }))
            })
        }
    }
}
