//! Making the f16 copies, norms and bounds of the resident rows that have changed ([`Preparation`] says which).
//!
//! A change makes the tiles of its rows stale. The next search uploads the numbers of these tiles, prepares them, and
//! leaves the other tiles as they are. Three numbers belong to all rows:
//! - The scale of the copies follows from the greatest component. If a new row has a greater one, all rows are prepared
//!   again.
//! - The centre stays the one with which all rows were prepared last. Any centre is right, but a distant one makes the
//!   bounds of the filter wide: 3,000 rows around 1,000, after others around 0 that were removed, took 16 times as long
//!   as a new index (emulator, 2026-11-26). So a centre knows the tiles of which it was made. Once less than half of
//!   the tiles are such, it is computed anew from the rows that are there, and all rows are prepared again. This costs
//!   at most two preparations of a tile for each tile that has changed or come.
//! - The greatest norms, of tiles and of all rows, are only raised. After a replacement or removal they may be larger
//!   than needed, which is still a bound.
//!
//! # Cost
//! One upload of 4 bytes a tile, two launches over 128 rows a tile, and one copy to the host that waits. 1,000 rows
//! appended to a million are eight or nine tiles. 1,000 rows spread over a million are at most 1,000 tiles of 7,813. A
//! range of tiles around all changes, as before, was nearly all tiles in the second case. On an H100 adding such rows,
//! with a search, takes 0.32 ms more than the search; it took 1.16 (2026-11-25, revisions ceecead and bd33008).

use std::sync::Arc;

use super::prepared::{CentreOfTiles, Copies, Preparation, TILE};
use super::rows::{FlatDevice, Resident};
use crate::device::lanes::Lane;
use crate::device::queue::OnStream;
use crate::device::runtime::Stream;
use crate::device::scratch::Layout;
use crate::product::centre::{CENTRE_SAMPLE, Centre};
use crate::product::gpu::{VectorSet, greatest_in, prepare_set, prepare_tiles};
use crate::vectors::VectorSlice;
use crate::{Bitset, Result, host_memory};

impl FlatDevice {
    /// Prepares the stale rows of a set, and waits for it.
    pub(super) fn prepare_stale(&self, lane: &mut Lane, set: VectorSet, done: &mut Preparation) -> Result<()> {
        let count = set.count as usize;
        let centre = self.centre_on(lane, set, done)?;
        let (tiles, all) = (done.tiles(count), count.div_ceil(TILE));
        let stale = Bitset::zeros(set.layout.values.len() / TILE)?;
        let greatest = match done.copies {
            Copies::Made { greatest, .. }
                if tiles.len() < all && self.prepare_listed(lane, set, &tiles, greatest)? =>
            {
                greatest
            }
            _ => {
                // A failure may leave any tile half done.
                done.copies = Copies::Nothing;
                self.prepare(&lane.stream, set, &centre)?;
                // SAFETY: the set was prepared a moment ago.
                unsafe { greatest_in(&self.runtime, &lane.stream, set)? }
            }
        };
        done.copies = Copies::Made { greatest, stale };
        Ok(())
    }

    /// The centre of resident rows; empty if they have none.
    pub(super) fn centre_of(&self, resident: &Resident) -> Result<Arc<[f32]>> {
        let set = self.set(resident);
        resident.prepared.with(|prepared| match prepared.centre(set.count as usize) {
            Some(centre) => Ok(centre),
            None => self.lanes.with(&self.runtime, |lane| self.centre_on(lane, set, prepared)),
        })
    }

    /// As [`centre_of`](Self::centre_of), by a lane. A new centre makes the copies of all rows stale.
    fn centre_on(&self, lane: &mut Lane, set: VectorSet, done: &mut Preparation) -> Result<Arc<[f32]>> {
        if !self.centred() {
            return Ok(Arc::default());
        }
        let count = set.count as usize;
        if let Some(centre) = done.centre(count) {
            return Ok(centre);
        }
        let components: Arc<[f32]> = self.sampled_centre(lane, set)?.into();
        let mut unchanged = Bitset::zeros(set.layout.values.len() / TILE)?;
        (0..count.div_ceil(TILE)).for_each(|tile| unchanged.set(tile, true));
        let centre = CentreOfTiles { components: Arc::clone(&components), unchanged };
        *done = Preparation { centre: Some(centre), copies: Copies::Nothing };
        Ok(components)
    }

    /// The centre of at most [`CENTRE_SAMPLE`] rows of a set, at equal distances, which are copied to the host.
    fn sampled_centre(&self, lane: &mut Lane, set: VectorSet) -> Result<Vec<f32>> {
        let (shape, count) = (self.shape, set.count as usize);
        let numbers: Vec<u32> = (0..set.count).step_by(count.div_ceil(CENTRE_SAMPLE).max(1)).collect();
        let mut padded = host_memory::zeroed::<u8>(numbers.len() * shape.row_bytes())?;
        let mut layout = Layout::default();
        let (list, rows) = (layout.array(numbers.len()), layout.array::<u8>(padded.len()));
        let scratch = lane.scratch(&self.runtime, layout.bytes())?;
        let on = OnStream { runtime: &self.runtime, stream: &lane.stream };
        // SAFETY: the scratch has room for the numbers and the rows, and the rows are resident.
        unsafe {
            self.gather(on, set, &numbers, scratch.at(list), scratch.at(rows))?;
            self.runtime.copy_to_host(&lane.stream, &mut padded, scratch.at(rows))?;
        }
        let row_bytes = shape.dim * shape.element.size();
        let mut centre = Centre::default();
        for row in padded.chunks_exact(shape.row_bytes()) {
            centre.add(VectorSlice::of_bytes(shape.element, shape.dim, &row[..row_bytes]));
        }
        Ok(centre.components(shape.stride()))
    }

    /// Prepares tiles that hold all rows that have changed since all rows were prepared. Returns whether the rest stays
    /// as it is.
    fn prepare_listed(&self, lane: &mut Lane, set: VectorSet, tiles: &[u32], greatest: u32) -> Result<bool> {
        let mut layout = Layout::default();
        let list = layout.array(tiles.len());
        let list = lane.scratch(&self.runtime, layout.bytes())?.at(list);
        let (runtime, stream) = (&self.runtime, &lane.stream);
        // SAFETY: the scratch has room for the list. The set was laid out by `set_layout` with this shape, and its rows
        // are in place.
        unsafe {
            runtime.copy_to_device(stream, list, tiles)?;
            prepare_tiles(runtime, stream, self.shape, set, self.centred(), list.into(), greatest)
        }
    }

    /// Makes copies, norms and bounds of a set of uploaded rows with a centre of `stride` components, and waits for
    /// them. A metric without a centre leaves it out.
    pub(super) fn prepare(&self, stream: &Stream, set: VectorSet, centre: &[f32]) -> Result<()> {
        // SAFETY: the set was laid out by `set_layout`, so its centre has `stride` components.
        unsafe {
            if self.centred() {
                self.runtime.copy_to_device(stream, set.centre(), centre)?;
            }
            prepare_set(&self.runtime, stream, self.shape, set, self.centred())?;
        }
        self.runtime.synchronize(stream)
    }
}
