//! Which resident rows have f16 copies, norms and bounds, and a centre.

use std::ops::Range;
use std::sync::Arc;

use warpann_kernels::product::tile::TILE_ROWS;

use crate::Bitset;

/// Rows of a tile, which is prepared as a whole because of its greatest norm and its padding.
pub(super) const TILE: usize = TILE_ROWS as usize;

/// The prepared data of resident rows.
#[derive(Debug, Clone, Default)]
pub(super) struct Preparation {
    pub(super) centre: Option<CentreOfTiles>,
    pub(super) copies: Copies,
}

/// The f16 copies, norms and bounds of resident rows.
#[derive(Debug, Clone, Default)]
pub(super) enum Copies {
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
pub(super) struct CentreOfTiles {
    pub(super) components: Arc<[f32]>,
    pub(super) unchanged: Bitset,
}

impl Preparation {
    /// Whether all rows had copies, norms and bounds once.
    pub(super) fn is_made(&self) -> bool {
        matches!(self.copies, Copies::Made { .. })
    }

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
    pub(super) fn tiles(&self, count: usize) -> Vec<u32> {
        let all = count.div_ceil(TILE);
        match &self.copies {
            Copies::Nothing => (0..all as u32).collect(),
            Copies::Made { stale, .. } => {
                stale.runs().flatten().take_while(|&tile| tile < all).map(|tile| tile as u32).collect()
            }
        }
    }

    /// The centre, if at least half of the tiles of `count` rows are those of which it was made.
    pub(super) fn centre(&self, count: usize) -> Option<Arc<[f32]>> {
        let all = count.div_ceil(TILE);
        let centre = self.centre.as_ref()?;
        let unchanged = centre.unchanged.runs().map(|run| run.end.min(all).saturating_sub(run.start)).sum::<usize>();
        (2 * unchanged >= all).then(|| Arc::clone(&centre.components))
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
