//! Which resident rows have f16 copies, norms and bounds, and making those of the others.
//!
//! A change makes the tiles of its rows stale. The next search uploads the numbers of these tiles, prepares them, and leaves the other tiles
//! as they are. Three numbers belong to all rows:
//! - The scale of the copies follows from the greatest component. If a new row has a greater one, all rows are prepared again.
//! - The centre stays the one with which all rows were prepared last. Any centre is right, but a distant one makes the
//!   bounds of the filter wide: 3,000 rows around 1,000, after others around 0 that were removed, took 16 times as long
//!   as a new index (emulator, 2026-11-26). So a centre knows the tiles of which it was made. Once less than half of
//!   the tiles are such, it is computed anew from the rows that are there, and all rows are prepared again. This costs
//!   at most two preparations of a tile for each tile that has changed or come.
//! - The greatest norms, of tiles and of all rows, are only raised. After a replacement or removal they may be larger than needed, which is
//!   still a bound.
//!
//! # Cost
//! One upload of 4 bytes a tile, two launches over 128 rows a tile, and one copy to the host that waits. 1,000 rows appended to a million are
//! eight or nine tiles. 1,000 rows spread over a million are at most 1,000 tiles of 7,813. A range of tiles around all changes, as before, was
//! nearly all tiles in the second case. On an H100 adding such rows, with a search, takes 0.32 ms more than the search; it took 1.16 (2026-11-25,
//! revisions ceecead and bd33008).

use std::ops::Range;
use std::sync::Arc;

use warpann_kernels::product::tile::TILE_ROWS;

use super::{FlatDevice, Resident};
use crate::device::lanes::Lane;
use crate::device::queue::OnStream;
use crate::device::scratch::Layout;
use crate::product::centre::{CENTRE_SAMPLE, Centre};
use crate::product::gpu::{VectorSet, greatest_in, prepare_tiles};
use crate::vectors::VectorSlice;
use crate::{Bitset, Result, host_memory};

/// Rows of a tile, which is prepared as a whole because of its greatest norm and its padding.
const TILE: usize = TILE_ROWS as usize;

/// What has been prepared of resident rows.
#[derive(Debug, Clone, Default)]
pub(super) struct Preparation {
    centre: Option<CentreOfTiles>,
    copies: Copies,
}

/// The f16 copies, norms and bounds of resident rows.
#[derive(Debug, Clone, Default)]
enum Copies {
    /// No row has them yet.
    #[default]
    Nothing,
    /// All rows had, and the rows of stale tiles have changed since.
    Made {
        /// Bits of the greatest component when all rows were prepared.
        greatest: u32,
        /// One bit for each tile that the memory has room for.
        stale: Bitset,
    },
}

/// A centre, and the tiles whose rows are those of which it was made.
#[derive(Debug, Clone)]
struct CentreOfTiles {
    components: Arc<[f32]>,
    unchanged: Bitset,
}

impl Preparation {
    /// Notes that rows have changed. The memory has room for them.
    pub(super) fn changed(&mut self, rows: Range<usize>) {
        if rows.is_empty() {
            return;
        }
        let tiles = rows.start / TILE..rows.end.div_ceil(TILE);
        if let Copies::Made { stale, .. } = &mut self.copies {
            tiles.clone().for_each(|tile| stale.set(tile, true));
        }
        if let Some(centre) = &mut self.centre {
            tiles.for_each(|tile| centre.unchanged.set(tile, false));
        }
    }

    /// Notes that there are now `len` rows, fewer than before: the rest of the last tile must become padding.
    pub(super) fn truncated(&mut self, len: usize) {
        self.changed(len / TILE * TILE..len);
    }

    /// Whether some of `count` rows must be prepared. Only rows that are `centred` have a centre.
    pub(super) fn is_stale(&self, count: usize, centred: bool) -> bool {
        !self.tiles(count).is_empty() || count > 0 && centred && self.centre(count).is_none()
    }

    /// The stale tiles of a set of `count` rows, ascending.
    fn tiles(&self, count: usize) -> Vec<u32> {
        let all = count.div_ceil(TILE);
        match &self.copies {
            Copies::Nothing => (0..all as u32).collect(),
            Copies::Made { stale, .. } => {
                stale.runs().flatten().take_while(|&tile| tile < all).map(|tile| tile as u32).collect()
            }
        }
    }

    /// The centre, if at least half of the tiles of `count` rows are those of which it was made.
    fn centre(&self, count: usize) -> Option<Arc<[f32]>> {
        let all = count.div_ceil(TILE);
        let centre = self.centre.as_ref()?;
        let unchanged = centre.unchanged.runs().map(|run| run.end.min(all).saturating_sub(run.start)).sum::<usize>();
        (2 * unchanged >= all).then(|| Arc::clone(&centre.components))
    }
}

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

    /// Prepares tiles that hold all rows that have changed since all rows were prepared. Returns whether the rest stays as it is.
    fn prepare_listed(&self, lane: &mut Lane, set: VectorSet, tiles: &[u32], greatest: u32) -> Result<bool> {
        let mut layout = Layout::default();
        let list = layout.array(tiles.len());
        let list = lane.scratch(&self.runtime, layout.bytes())?.at(list);
        let (runtime, stream) = (&self.runtime, &lane.stream);
        // SAFETY: the scratch has room for the list. The set was laid out by `set_layout` with this shape, and its rows are in place.
        unsafe {
            runtime.copy_to_device(stream, list, tiles)?;
            prepare_tiles(runtime, stream, self.shape, set, self.centred(), list.into(), greatest)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stale_tiles_are_those_of_changed_rows() {
        let mut preparation = Preparation::default();
        preparation.changed(0..9_000);
        assert_eq!(preparation.tiles(300), [0, 1, 2]);
        assert!(preparation.is_stale(1, false) && !preparation.is_stale(0, true));
        preparation.copies = Copies::Made { greatest: 0, stale: Bitset::new(70) };
        assert!(!preparation.is_stale(70 * TILE, false));
        for rows in [5..5, 127..128, 128..129, 300..300, 640..1_025, 8_900..8_960] {
            preparation.changed(rows);
        }
        assert_eq!(preparation.tiles(70 * TILE), [0, 1, 5, 6, 7, 8, 69]);
        assert_eq!(preparation.tiles(69 * TILE), [0, 1, 5, 6, 7, 8]);
        assert_eq!(preparation.tiles(7 * TILE + 1), [0, 1, 5, 6, 7]);
        preparation.copies = Copies::Made { greatest: 0, stale: Bitset::new(70) };
        // No tile has new padding, and then one.
        preparation.truncated(3 * TILE);
        assert!(!preparation.is_stale(3 * TILE, false));
        preparation.truncated(2 * TILE + 5);
        assert_eq!(preparation.tiles(2 * TILE + 5), [2]);
    }

    #[test]
    fn a_centre_lasts_while_half_of_its_tiles_are_there() {
        let unchanged = (0..70).map(|tile| tile < 10).collect();
        let centre = Some(CentreOfTiles { components: vec![1.0].into(), unchanged });
        let preparation = Preparation { centre, copies: Copies::Made { greatest: 0, stale: Bitset::new(70) } };
        let lasts = |preparation: &Preparation, rows: usize| {
            assert_eq!(preparation.is_stale(rows, true), preparation.centre(rows).is_none() && rows > 0);
            preparation.centre(rows).is_some()
        };
        // Rows come.
        assert!(
            lasts(&preparation, 10 * TILE) && lasts(&preparation, 20 * TILE) && !lasts(&preparation, 20 * TILE + 1)
        );
        // Rows are replaced.
        let mut replaced = preparation.clone();
        replaced.changed(0..5 * TILE);
        assert!(replaced.centre(10 * TILE).is_some());
        replaced.changed(7 * TILE..7 * TILE + 1);
        assert!(replaced.centre(10 * TILE).is_none());
        // Rows go, and others come in their place.
        let mut cleared = preparation;
        cleared.truncated(0);
        cleared.changed(0..3 * TILE);
        assert!(cleared.centre(3 * TILE).is_none());
    }
}
