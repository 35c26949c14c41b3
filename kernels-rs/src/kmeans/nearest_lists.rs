//! The candidates of the points of a block of [`crate::kmeans::assign`] during its pass over the centroids: for each
//! point the smallest upper bound of a score so far, and a short list of the centroids that may be its nearest.
//!
//! All of it is in shared memory. Warps append by atomics between two barriers. After a barrier, one thread for each
//! row drops the entries that a smaller upper bound excludes.

use cuda_std::shared::SharedPtr;
use cuda_std::{atomic, device_inline, global};

use crate::product::bounds::QueryTerms;
use crate::product::tile::TILE_ROWS;
use crate::select::entry::{key_of, value_of};

/// Number of candidates that a point's list holds.
pub const LIST: u32 = 8;
/// Shared memory of a block's lists, in bytes.
pub const LISTS_BYTES: u32 = TILE_ROWS * (16 + 4 + 8 * LIST);

/// States and lists of a block's points, in shared memory; entry e of the list of row r is at e · 128 + r.
#[derive(Clone, Copy)]
pub struct Lists {
    /// [`QueryTerms`] and the order-preserving key of the smallest upper bound, so that one load gets all four words.
    pub states: SharedPtr<global::U32x4>,
    /// Number of candidates that were found; if it is more than [`LIST`], some were lost.
    pub sizes: SharedPtr<u32>,
    /// v − E of each candidate.
    lower: SharedPtr<f32>,
    /// The centroid number of each candidate.
    pub clusters: SharedPtr<u32>,
}

impl Lists {
    /// The lists at `start`, which is aligned to 16 bytes.
    ///
    /// # Safety
    /// `start` points to [`LISTS_BYTES`] of shared memory.
    #[device_inline]
    pub unsafe fn at(start: SharedPtr<u8>) -> Lists {
        // SAFETY: the lengths of the four parts add up to `LISTS_BYTES`.
        unsafe {
            let states = start.cast::<global::U32x4>();
            let sizes = states.add(TILE_ROWS).cast::<u32>();
            let lower = sizes.add(TILE_ROWS).cast::<f32>();
            let clusters = lower.add(LIST * TILE_ROWS).cast::<u32>();
            Lists { states, sizes, lower, clusters }
        }
    }

    /// The smallest upper bound of a row, as a key.
    ///
    /// # Safety
    /// `row` < 128.
    #[device_inline]
    pub unsafe fn best(self, row: u32) -> SharedPtr<u32> {
        // SAFETY: as the caller promises.
        unsafe { self.states.add(row).cast::<u32>().add(3) }
    }

    /// The terms of a row, and its smallest upper bound.
    ///
    /// # Safety
    /// `row` < 128; the states were set up before a barrier.
    #[device_inline]
    pub unsafe fn state(self, row: u32) -> (QueryTerms, f32) {
        // SAFETY: as the caller promises.
        let [a, b, c, best] = unsafe { atomic::shared_load_u32x4(self.states.add(row)) }.0;
        let [per_norm, per_residual, own] = [f32::from_bits(a), f32::from_bits(b), f32::from_bits(c)];
        (QueryTerms { per_norm, per_residual, own }, value_of(best))
    }

    /// Appends a centroid whose score is within `error` of `score`, if its number is below `clusters` and it may be the
    /// nearest of `row`.
    ///
    /// # Safety
    /// `row` < 128; the lists were set up before a barrier.
    #[device_inline]
    pub unsafe fn offer(self, row: u32, score: f32, error: f32, cluster: u32, clusters: u32) {
        // SAFETY: as the caller promises; each place below LIST is reserved once between two barriers.
        unsafe {
            let best = self.best(row);
            #[expect(clippy::neg_cmp_op_on_partial_ord, reason = "NaN on either side must keep the centroid")]
            if !(score - error > value_of(atomic::shared_load_u32(best))) && cluster < clusters {
                atomic::shared_min_u32(best, key_of(score + error));
                let place = atomic::shared_add_u32(self.sizes.add(row), 1);
                if place < LIST {
                    self.lower.add(place * TILE_ROWS + row).store(score - error);
                    self.clusters.add(place * TILE_ROWS + row).store(cluster);
                }
            }
        }
    }

    /// Drops entries that cannot be the nearest of `row` any more. Returns the number of those left, which is more than
    /// [`LIST`] if some were lost.
    ///
    /// # Safety
    /// `row` < 128; a barrier follows the last [`Self::offer`]; one thread for each row.
    #[device_inline]
    pub unsafe fn compact(self, row: u32) -> u32 {
        // SAFETY: as the caller promises; entries are read below the size, and written at or before the place where
        // they were read.
        unsafe {
            let size = self.sizes.add(row).load();
            if size > LIST {
                return size;
            }
            let best = value_of(self.best(row).load());
            let mut kept = 0;
            let mut entry = 0;
            while entry < size {
                let lower = self.lower.add(entry * TILE_ROWS + row).load();
                let cluster = self.clusters.add(entry * TILE_ROWS + row).load();
                #[expect(clippy::neg_cmp_op_on_partial_ord, reason = "NaN on either side must keep the centroid")]
                if !(lower > best) {
                    self.lower.add(kept * TILE_ROWS + row).store(lower);
                    self.clusters.add(kept * TILE_ROWS + row).store(cluster);
                    kept += 1;
                }
                entry += 1;
            }
            self.sizes.add(row).store(kept);
            kept
        }
    }
}
