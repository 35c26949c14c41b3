//! Which resident rows have f16 copies, norms and bounds, and making those of the others.
//!
//! A change makes a range of rows stale. The next search prepares whole tiles around the range, and leaves the other rows as they are. Three
//! numbers belong to all rows:
//! - The scale of the copies follows from the greatest component. If a new row has a greater one, all rows are prepared again.
//! - The centre stays the one with which all rows were prepared last. Any centre is right.
//! - The greatest norms, of tiles and of all rows, are only raised. After a replacement or removal they may be larger than needed, which is
//!   still a bound.
//!
//! Cost: 1,000 rows appended to a million cost their upload and the preparation of eight or nine tiles.

use std::ops::Range;

use warpann_kernels::product::tile::TILE_ROWS;

use super::FlatDevice;
use crate::Result;
use crate::device::runtime::Stream;
use crate::product::gpu::{VectorSet, greatest_in, prepare_tiles};

/// Rows of a tile, which is prepared as a whole because of its greatest norm and its padding.
const TILE: usize = TILE_ROWS as usize;

/// What has been prepared of resident rows.
#[derive(Debug, Clone)]
pub(super) struct Preparation {
    /// The rows that must be prepared. It may end beyond the last row.
    stale: Range<usize>,
    /// Bits of the greatest component when all rows were prepared; `None` if they never were.
    greatest: Option<u32>,
}

impl Preparation {
    /// Nothing has been prepared.
    pub(super) fn none() -> Preparation {
        Preparation { stale: 0..usize::MAX, greatest: None }
    }

    /// Notes that rows have changed.
    pub(super) fn changed(&mut self, rows: Range<usize>) {
        if self.stale.is_empty() {
            self.stale = rows;
        } else if !rows.is_empty() {
            self.stale = self.stale.start.min(rows.start)..self.stale.end.max(rows.end);
        }
    }

    /// Notes that there are now `len` rows, fewer than before: the rest of the last tile must become padding.
    pub(super) fn truncated(&mut self, len: usize) {
        self.changed(len / TILE * TILE..len);
        self.stale.start = self.stale.start.min(len);
    }

    /// Whether some of `count` rows must be prepared.
    pub(super) fn is_stale(&self, count: usize) -> bool {
        !self.tiles(count).is_empty()
    }

    /// The tiles that hold stale rows, as rows of a set of `count`; empty if nothing is stale.
    fn tiles(&self, count: usize) -> Range<usize> {
        let end = self.stale.end.min(count);
        if self.stale.start >= end {
            return 0..0;
        }
        self.stale.start / TILE * TILE..end.next_multiple_of(TILE)
    }
}

impl FlatDevice {
    /// Prepares the stale rows of a set, and waits for it.
    pub(super) fn prepare_stale(&self, stream: &Stream, set: VectorSet, done: &mut Preparation) -> Result<()> {
        let tiles = done.tiles(set.count as usize);
        let (runtime, shape, centred) = (&self.runtime, self.shape, self.centred());
        let whole = tiles.start == 0 && tiles.end >= set.count as usize;
        let rest_stays = match done.greatest.filter(|_| !whole) {
            // SAFETY: the set was laid out by `set_layout` with this shape, and its rows are in place. The tiles hold all rows that have
            // changed since all rows were prepared.
            Some(greatest) => unsafe { prepare_tiles(runtime, stream, shape, set, centred, tiles, greatest)? },
            None => false,
        };
        if rest_stays {
            runtime.synchronize(stream)?;
        } else {
            self.prepare(stream, set)?;
            // SAFETY: the set was prepared a moment ago.
            done.greatest = Some(unsafe { greatest_in(runtime, stream, set)? });
        }
        done.stale = 0..0;
        Ok(())
    }
}
