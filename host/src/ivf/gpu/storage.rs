//! The places of the lists of an image in its storage, and the copying of rows to these places.
//!
//! Each list has a room: some rows from `starts` on, of which the first `lengths` hold vectors. The others are padding,
//! and the room of vectors to come. A list that outgrows its room moves to the reserve at the end of the storage, and
//! its old room stays unused until the image is made anew. The first image of an index has no room to grow, so an index
//! that does not change takes no more memory than it needs.

use std::ops::Range;

use cuda_std::PtrMut;
use warpann_kernels::ivf::list_scan::TILE_ROWS;
use warpann_kernels::ivf::pairs;

use crate::device::queue::OnStream;
use crate::ivf::lists::CodeRows;
use crate::threads::work_off;
use crate::{Error, Result, host_memory};

/// Number of bytes that the host arranges before it copies them to the device.
pub(super) const STAGING: usize = 64 << 20;

/// The room of lists for vectors to come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Growth {
    /// Padding only, and no reserve.
    None,
    /// An eighth more for each list, and a reserve of an eighth of the storage: for an index that has outgrown an
    /// image.
    Eighth,
}

impl Growth {
    /// The room beyond `rows` rows.
    fn beyond(self, rows: u64) -> u64 {
        match self {
            Growth::None => 0,
            Growth::Eighth => rows.div_ceil(8),
        }
    }

    /// The room of a list: whole sectors.
    fn room(self, length: u32) -> u64 {
        let length = u64::from(length);
        (length + self.beyond(length)).next_multiple_of(u64::from(pairs::PAD))
    }
}

/// Smallest number of rows of a reserve.
const LEAST_RESERVE: u64 = 64;

/// The places of the lists in the storage.
pub(super) struct Storage {
    pub(super) starts: Vec<u32>,
    pub(super) lengths: Vec<u32>,
    pub(super) rows: u32,
    pub(super) growth: Growth,
    /// Number of rows of each list's room.
    rooms: Vec<u32>,
    /// The rows of the reserve that no list has yet.
    reserve: Range<u32>,
}

impl Storage {
    pub(super) fn new(lengths: Vec<u32>, growth: Growth) -> Result<Storage> {
        let mut end = 0u64;
        let mut starts = Vec::with_capacity(lengths.len());
        let mut rooms = Vec::with_capacity(lengths.len());
        // The tile after the last list is counted as well.
        let limit = u64::from(u32::MAX) - 2 * u64::from(TILE_ROWS);
        let checked =
            |end: u64| if end > limit { Err(Error::TooMany { what: "rows", asked: end, limit }) } else { Ok(end) };
        for &length in &lengths {
            let room = growth.room(length);
            starts.push(end as u32);
            rooms.push(room as u32);
            end = checked(end + room)?;
        }
        let reserve = match growth {
            Growth::None => 0,
            Growth::Eighth => growth.beyond(end).max(LEAST_RESERVE),
        };
        let first = end as u32;
        let end = checked(end + reserve.next_multiple_of(u64::from(pairs::PAD)))? as u32;
        let rows = (end + TILE_ROWS).next_multiple_of(TILE_ROWS);
        Ok(Storage { starts, lengths, rows, growth, rooms, reserve: first..end })
    }

    /// The same places, for a copy of the image.
    pub(super) fn copied(&self) -> Result<Storage> {
        let copied = |numbers| host_memory::copied(numbers);
        let (starts, lengths, rooms) = (copied(&self.starts)?, copied(&self.lengths)?, copied(&self.rooms)?);
        Ok(Storage { starts, lengths, rooms, reserve: self.reserve.clone(), ..*self })
    }

    /// Changes the length of a list. Returns whether the list has moved, and then has no row in its new room yet;
    /// `None` if there is no room.
    pub(super) fn resize(&mut self, list: usize, length: u32) -> Option<bool> {
        let moves = length > self.rooms[list];
        if moves {
            let room = u32::try_from(self.growth.room(length)).ok();
            let room = room.filter(|&room| room as usize <= self.reserve.len())?;
            (self.starts[list], self.rooms[list]) = (self.reserve.start, room);
            self.reserve.start += room;
        }
        self.lengths[list] = length;
        Some(moves)
    }

    /// Whether a new storage of these lists would have less than half of the rows.
    pub(super) fn is_mostly_empty(&self) -> bool {
        let rooms: u64 = self.lengths.iter().map(|&length| self.growth.room(length)).sum();
        2 * (rooms + self.growth.beyond(rooms) + LEAST_RESERVE + u64::from(TILE_ROWS)) < u64::from(self.rows)
    }

    /// Number of rows of the longest list.
    pub(super) fn longest(&self) -> u32 {
        self.lengths.iter().copied().max().unwrap_or(0)
    }

    /// Number of rows of the storage that belong to `list` before any list has moved, padding included; the last list
    /// has all remaining rows.
    fn padded(&self, list: usize) -> usize {
        let next = self.starts.get(list + 1).copied().unwrap_or(self.rows);
        (next - self.starts[list]) as usize
    }

    /// Divides the rows of all lists, one list after the other, into batches of `most` rows; the last batch may be
    /// smaller. A batch is a vector of lists with places in them.
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

    /// Copies `row_bytes` bytes for each row of a new storage to the device, about [`STAGING`] bytes at a time for
    /// lists of any length. `write(list, places, rows)` fills the rows at these places of a list; it must not use a
    /// thread pool.
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
            // SAFETY: lists follow each other in the storage without gaps, so these rows start after those of the
            // batches before.
            unsafe { on.runtime.copy_to_device(on.stream, to, &staging[..filled])? };
        }
        Ok(())
    }
}

/// Fills `to` with the rows of `from` from row `first` on, at a distance of `stride` bytes, and repeats the last row to
/// the end. Bits of `flips` are flipped in every byte of a row. If there is no row, fills with zeros.
pub(super) fn fill_rows(from: CodeRows<'_>, first: usize, stride: usize, flips: u8, to: &mut [u8]) {
    let Some(last) = from.len().checked_sub(1) else {
        to.fill(0);
        return;
    };
    for (at, place) in to.chunks_exact_mut(stride).enumerate() {
        let (code, rest) = place.split_at_mut(from.width());
        code.copy_from_slice(from.get((first + at).min(last)));
        if flips != 0 {
            code.iter_mut().for_each(|byte| *byte ^= flips);
        }
        rest.fill(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_cover_all_places_in_order_and_none_is_larger_than_asked() {
        let lengths = [vec![5], vec![0, 1000, 0, 3, 64, 65], vec![0, 0, 1], vec![300; 4]];
        for (lengths, growth) in lengths.iter().flat_map(|l| [Growth::None, Growth::Eighth].map(|growth| (l, growth))) {
            let storage = Storage::new(lengths.clone(), growth).unwrap();
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
                assert_eq!(&filled, lengths, "{most}");
            }
        }
    }

    #[test]
    fn a_storage_has_as_many_rows_as_32_bits_count() {
        // Padding included, with room for the tile after the last list.
        let limit = u32::MAX - 2 * TILE_ROWS;
        let most = limit - limit % pairs::PAD;
        let storage = Storage::new(vec![1, most - pairs::PAD, 0], Growth::None).unwrap();
        assert_eq!(storage.starts, [0, pairs::PAD, most]);
        assert!(storage.rows >= most && storage.padded(1) == (most - pairs::PAD) as usize);
        for beyond in [vec![most + 1], vec![1, most - pairs::PAD + 1], vec![u32::MAX; 3]] {
            let refused = Storage::new(beyond, Growth::None);
            assert!(
                matches!(refused, Err(Error::TooMany { what: "rows", asked, limit: l }) if asked > l && l == u64::from(limit))
            );
        }
    }

    /// Random lengths, one after the other. Rooms never overlap, and no row of a list is in the tile after the last
    /// one.
    #[test]
    fn lists_grow_in_their_rooms_and_then_move() {
        let mut random = test_random::Random::new(4);
        for (growth, moves) in [(Growth::None, false), (Growth::Eighth, true)] {
            let mut storage = Storage::new(vec![10, 0, 300, 7], growth).unwrap();
            let (mut moved, mut refused) = (0, 0);
            for _ in 0..400 {
                let list = random.below(4);
                let length = storage.lengths[list] + random.below(4) as u32 - u32::from(storage.lengths[list] > 0);
                let before = (storage.starts.clone(), storage.lengths.clone());
                match storage.resize(list, length) {
                    None => {
                        refused += 1;
                        assert_eq!((&storage.starts, &storage.lengths), (&before.0, &before.1));
                    }
                    Some(moves) => {
                        moved += usize::from(moves);
                        assert_eq!(moves, storage.starts[list] != before.0[list]);
                        assert_eq!(storage.lengths[list], length);
                    }
                }
                let mut rooms: Vec<(u32, u32)> = (0..4).map(|at| (storage.starts[at], storage.rooms[at])).collect();
                rooms.sort_unstable();
                assert!(rooms.windows(2).all(|pair| pair[0].0 + pair[0].1 <= pair[1].0));
                assert!(
                    rooms.iter().all(|room| room.0 % pairs::PAD == 0 && room.0 + room.1 + TILE_ROWS <= storage.rows)
                );
                assert!((0..4).all(|at| storage.lengths[at] <= storage.rooms[at]));
            }
            assert!((moved > 1) == moves && refused > 0, "{moved} moves, {refused} refusals");
            assert!(!storage.is_mostly_empty());
            (0..4).for_each(|list| assert_eq!(storage.resize(list, 0), Some(false)));
            assert!(storage.is_mostly_empty());
        }
    }

    #[test]
    fn rows_are_filled_from_any_place_on_and_the_last_is_repeated() {
        let from = [1, 2, 3, 4, 5, 6];
        let filled = |first: usize, rows: usize| {
            let mut to = vec![9; 3 * rows];
            fill_rows(CodeRows::whole(&from, 2), first, 3, 0, &mut to);
            to
        };
        assert_eq!(filled(0, 4), [1, 2, 0, 3, 4, 0, 5, 6, 0, 5, 6, 0]);
        assert_eq!(filled(1, 3), filled(0, 4)[3..]);
        assert_eq!(filled(3, 1), [5, 6, 0]);
        let mut nothing = [9; 3];
        fill_rows(CodeRows::whole(&[], 2), 0, 3, 0, &mut nothing);
        assert_eq!(nothing, [0; 3]);
    }
}
