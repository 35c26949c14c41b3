//! Which resident rows have f16 copies, norms and bounds, and making those of the others.
//!
//! A change makes the tiles of its rows stale. The next search uploads the numbers of these tiles, prepares them, and leaves the other tiles
//! as they are. Three numbers belong to all rows:
//! - The scale of the copies follows from the greatest component. If a new row has a greater one, all rows are prepared again.
//! - The centre stays the one with which all rows were prepared last. Any centre is right.
//! - The greatest norms, of tiles and of all rows, are only raised. After a replacement or removal they may be larger than needed, which is
//!   still a bound.
//!
//! # Cost
//! One upload of 4 bytes a tile, two launches over 128 rows a tile, and one copy to the host that waits. 1,000 rows appended to a million are
//! eight or nine tiles. 1,000 rows spread over a million are at most 1,000 tiles of 7,813. A range of tiles around all changes, as before, was
//! nearly all tiles in the second case. On an H100 adding such rows, with a search, takes 0.32 ms more than the search; it took 1.16 (2026-11-25,
//! revisions ceecead and bd33008).

use std::ops::Range;

use warpann_kernels::product::tile::TILE_ROWS;

use super::FlatDevice;
use crate::device::lanes::Lane;
use crate::device::scratch::Layout;
use crate::product::gpu::{VectorSet, greatest_in, prepare_tiles};
use crate::{Bitset, Result};

/// Rows of a tile, which is prepared as a whole because of its greatest norm and its padding.
const TILE: usize = TILE_ROWS as usize;

/// What has been prepared of resident rows.
#[derive(Debug, Clone)]
pub(super) enum Preparation {
    /// No row has copies, norms and bounds yet.
    Nothing,
    /// All rows were, and the rows of stale tiles have changed since.
    Done {
        /// Bits of the greatest component when all rows were prepared.
        greatest: u32,
        /// One bit for each tile that the memory has room for.
        stale: Bitset,
    },
}

impl Preparation {
    /// Notes that rows have changed. The memory has room for them.
    pub(super) fn changed(&mut self, rows: Range<usize>) {
        if let Preparation::Done { stale, .. } = self
            && !rows.is_empty()
        {
            (rows.start / TILE..rows.end.div_ceil(TILE)).for_each(|tile| stale.set(tile, true));
        }
    }

    /// Notes that there are now `len` rows, fewer than before: the rest of the last tile must become padding.
    pub(super) fn truncated(&mut self, len: usize) {
        self.changed(len / TILE * TILE..len);
    }

    /// Whether some of `count` rows must be prepared.
    pub(super) fn is_stale(&self, count: usize) -> bool {
        !self.tiles(count).is_empty()
    }

    /// The stale tiles of a set of `count` rows, ascending.
    fn tiles(&self, count: usize) -> Vec<u32> {
        let all = count.div_ceil(TILE);
        match self {
            Preparation::Nothing => (0..all as u32).collect(),
            Preparation::Done { stale, .. } => {
                stale.runs().flatten().take_while(|&tile| tile < all).map(|tile| tile as u32).collect()
            }
        }
    }
}

impl FlatDevice {
    /// Prepares the stale rows of a set, and waits for it.
    pub(super) fn prepare_stale(&self, lane: &mut Lane, set: VectorSet, done: &mut Preparation) -> Result<()> {
        let (tiles, all) = (done.tiles(set.count as usize), (set.count as usize).div_ceil(TILE));
        let stale = Bitset::zeros(set.layout.values.len() / TILE)?;
        let greatest = match *done {
            Preparation::Done { greatest, .. }
                if tiles.len() < all && self.prepare_listed(lane, set, &tiles, greatest)? =>
            {
                greatest
            }
            _ => {
                // A failure may leave any tile half done.
                *done = Preparation::Nothing;
                self.prepare(&lane.stream, set)?;
                // SAFETY: the set was prepared a moment ago.
                unsafe { greatest_in(&self.runtime, &lane.stream, set)? }
            }
        };
        *done = Preparation::Done { greatest, stale };
        Ok(())
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
        let mut preparation = Preparation::Nothing;
        preparation.changed(0..9_000);
        assert_eq!(preparation.tiles(300), [0, 1, 2]);
        assert!(preparation.is_stale(1) && !preparation.is_stale(0));
        preparation = Preparation::Done { greatest: 0, stale: Bitset::new(70) };
        assert!(!preparation.is_stale(70 * TILE));
        for rows in [5..5, 127..128, 128..129, 300..300, 640..1_025, 8_900..8_960] {
            preparation.changed(rows);
        }
        assert_eq!(preparation.tiles(70 * TILE), [0, 1, 5, 6, 7, 8, 69]);
        assert_eq!(preparation.tiles(69 * TILE), [0, 1, 5, 6, 7, 8]);
        assert_eq!(preparation.tiles(7 * TILE + 1), [0, 1, 5, 6, 7]);
        preparation = Preparation::Done { greatest: 0, stale: Bitset::new(70) };
        // No tile has new padding, and then one.
        preparation.truncated(3 * TILE);
        assert!(!preparation.is_stale(3 * TILE));
        preparation.truncated(2 * TILE + 5);
        assert_eq!(preparation.tiles(2 * TILE + 5), [2]);
    }
}
