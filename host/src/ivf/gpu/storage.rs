//! The places of the lists of an image in its storage, and the copying of rows to these places.

use std::ops::Range;

use cuda_std::PtrMut;
use warpann_kernels::ivf::list_scan::TILE_ROWS;
use warpann_kernels::ivf::pairs;

use crate::device::queue::OnStream;
use crate::threads::work_off;
use crate::{Error, Result, host_memory};

/// Number of bytes that the host arranges before it copies them to the device.
const STAGING: usize = 64 << 20;

/// The places of the lists in the storage.
pub(super) struct Storage {
    pub(super) starts: Vec<u32>,
    pub(super) lengths: Vec<u32>,
    pub(super) rows: u32,
}

impl Storage {
    pub(super) fn new(lengths: Vec<u32>) -> Result<Storage> {
        let mut end = 0u64;
        let mut starts = Vec::with_capacity(lengths.len());
        for &length in &lengths {
            starts.push(end as u32);
            end += u64::from(length).next_multiple_of(u64::from(pairs::PAD));
            // The tile after the last list is counted as well.
            let limit = u64::from(u32::MAX) - 2 * u64::from(TILE_ROWS);
            if end > limit {
                return Err(Error::TooManyRows { asked: end, limit });
            }
        }
        let rows = (end as u32 + TILE_ROWS).next_multiple_of(TILE_ROWS);
        Ok(Storage { starts, lengths, rows })
    }

    /// Number of rows of the longest list.
    pub(super) fn longest(&self) -> u32 {
        self.lengths.iter().copied().max().unwrap_or(0)
    }

    /// Number of rows of the storage that belong to `list`, padding included; the last list has all remaining rows.
    fn padded(&self, list: usize) -> usize {
        let next = self.starts.get(list + 1).copied().unwrap_or(self.rows);
        (next - self.starts[list]) as usize
    }

    /// Divides the rows of all lists, one list after the other, into batches of `most` rows; the last batch may be smaller. A batch is a
    /// vector of lists with places in them.
    fn batches(&self, most: usize) -> impl Iterator<Item = Vec<(usize, Range<usize>)>> {
        let (mut list, mut place) = (0, 0);
        std::iter::from_fn(move || {
            let (mut batch, mut rows) = (Vec::new(), 0);
            while list < self.lengths.len() && rows < most {
                let count = (self.padded(list) - place).min(most - rows);
                batch.push((list, place..place + count));
                (rows, place) = (rows + count, place + count);
                if place == self.padded(list) {
                    (list, place) = (list + 1, 0);
                }
            }
            (!batch.is_empty()).then_some(batch)
        })
    }

    /// The places among these places of a list that hold a vector; padding follows them.
    pub(super) fn filled(&self, list: usize, places: &Range<usize>) -> Range<usize> {
        let length = self.lengths[list] as usize;
        places.start.min(length)..places.end.min(length)
    }

    /// Copies `row_bytes` bytes for each row to the device, about [`STAGING`] bytes at a time for lists of any length.
    /// `write(list, places, rows)` fills the rows at these places of a list; it must not use a thread pool.
    ///
    /// # Safety
    /// `to` is device memory with room for all rows.
    pub(super) unsafe fn copy_to_device(
        &self,
        on: OnStream<'_>,
        to: PtrMut<u8>,
        row_bytes: usize,
        write: impl Fn(usize, Range<usize>, &mut [u8]) + Sync,
    ) -> Result<()> {
        let most = (STAGING / row_bytes).clamp(1, self.rows as usize);
        let mut staging: Vec<u8> = host_memory::zeroed(host_memory::count::<u8>(&[most, row_bytes])?)?;
        for (number, batch) in self.batches(most).enumerate() {
            let mut parts = Vec::with_capacity(batch.len());
            let mut rest = &mut staging[..];
            for (list, places) in batch {
                let (part, others) = rest.split_at_mut(places.len() * row_bytes);
                parts.push((list, places, part));
                rest = others;
            }
            let filled = most * row_bytes - rest.len();
            work_off(parts.into_iter(), filled, |(list, places, part): (usize, Range<usize>, &mut [u8])| {
                write(list, places, part);
            });
            let to = to.skip(number * most * row_bytes);
            // SAFETY: lists follow each other in the storage without gaps, so these rows start after those of the batches before.
            unsafe { on.runtime.copy_to_device(on.stream, to, &staging[..filled])? };
        }
        Ok(())
    }
}

/// Fills `to` with the rows of `from` from row `first` on, `width` bytes each at a distance of `stride` bytes, and repeats the last row to
/// the end. If there is no row, fills with zeros.
pub(super) fn fill_rows(from: &[u8], first: usize, width: usize, stride: usize, to: &mut [u8]) {
    let Some(last) = from.len().checked_sub(width) else {
        to.fill(0);
        return;
    };
    for (at, place) in to.chunks_exact_mut(stride).enumerate() {
        let start = ((first + at) * width).min(last);
        place[..width].copy_from_slice(&from[start..start + width]);
        place[width..].fill(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_cover_all_places_in_order_and_none_is_larger_than_asked() {
        for lengths in [vec![5], vec![0, 1000, 0, 3, 64, 65], vec![0, 0, 1], vec![300; 4]] {
            let storage = Storage::new(lengths.clone()).unwrap();
            let all: Vec<(usize, usize)> =
                (0..lengths.len()).flat_map(|list| (0..storage.padded(list)).map(move |place| (list, place))).collect();
            assert_eq!(all.len(), storage.rows as usize);
            for most in [1, 7, 64, 100, storage.rows as usize] {
                let batches: Vec<_> = storage.batches(most).collect();
                let rows =
                    |batch: &Vec<(usize, Range<usize>)>| batch.iter().map(|(_, places)| places.len()).sum::<usize>();
                assert!(batches[..batches.len() - 1].iter().all(|batch| rows(batch) == most), "{lengths:?}, {most}");
                assert!(batches.last().is_some_and(|batch| (1..=most).contains(&rows(batch))), "{lengths:?}, {most}");
                let parts = batches.iter().flatten();
                let covered = parts.clone().flat_map(|(list, places)| places.clone().map(move |place| (*list, place)));
                assert!(covered.eq(all.iter().copied()), "{lengths:?}, {most}");
                let mut filled = vec![0; lengths.len()];
                parts.for_each(|(list, places)| filled[*list] += storage.filled(*list, places).len() as u32);
                assert_eq!(filled, lengths, "{most}");
            }
        }
    }

    #[test]
    fn a_storage_has_as_many_rows_as_32_bits_count() {
        // Padding included, with room for the tile after the last list.
        let limit = u32::MAX - 2 * TILE_ROWS;
        let most = limit - limit % pairs::PAD;
        let storage = Storage::new(vec![1, most - pairs::PAD, 0]).unwrap();
        assert_eq!(storage.starts, [0, pairs::PAD, most]);
        assert!(storage.rows >= most && storage.padded(1) == (most - pairs::PAD) as usize);
        for beyond in [vec![most + 1], vec![1, most - pairs::PAD + 1], vec![u32::MAX; 3]] {
            let refused = Storage::new(beyond);
            assert!(
                matches!(refused, Err(Error::TooManyRows { asked, limit: l }) if asked > l && l == u64::from(limit))
            );
        }
    }

    #[test]
    fn rows_are_filled_from_any_place_on_and_the_last_is_repeated() {
        let from = [1, 2, 3, 4, 5, 6];
        let filled = |first: usize, rows: usize| {
            let mut to = vec![9; 3 * rows];
            fill_rows(&from, first, 2, 3, &mut to);
            to
        };
        assert_eq!(filled(0, 4), [1, 2, 0, 3, 4, 0, 5, 6, 0, 5, 6, 0]);
        assert_eq!(filled(1, 3), filled(0, 4)[3..]);
        assert_eq!(filled(3, 1), [5, 6, 0]);
        let mut nothing = [9; 3];
        fill_rows(&[], 0, 2, 3, &mut nothing);
        assert_eq!(nothing, [0; 3]);
    }
}
