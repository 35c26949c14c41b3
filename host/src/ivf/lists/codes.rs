//! The codes of one list, in one place or in pieces.
//!
//! The codes of a list that nobody shares are in one place, the *base*: scans read them as one slice, and changes write
//! them where they are. Snapshots share the base. A list that changes then leaves the base to them: it copies the
//! *pieces* that it touches, of about [`PIECE_BYTES`] each, and reads the others from the base. So one vector that
//! changes costs a copy of two pieces, not of its list. The same holds for a base in a mapped file.
//!
//! A list takes no more than half of its memory twice: with half of its pieces replaced, it copies the others too and
//! lets the base go. It does so once. A list that is small or grows by half becomes one base again, and so does one
//! whose snapshots are gone before the half is reached.

use std::iter;
use std::ops::Range;
use std::sync::Arc;

use super::bytes::Bytes;
use crate::shared::shared;
use crate::{Result, host_memory};

/// Bytes of a piece at most, if that is one code or more. 1,000 vectors of 512 bytes that change lists cost 4 MB for
/// each 2 KB of this, and tiles of a scan that cross pieces are copied. The lists of unit tests are short.
const PIECE_BYTES: usize = if cfg!(test) { 1 << 6 } else { 1 << 12 };

/// A piece: room for the codes of as many rows as each piece has. Copying one needs no error, because it is small for
/// every index.
type Piece = Arc<[u64]>;

/// The codes of a list, all of `width` bytes.
#[derive(Debug)]
pub(super) struct Codes {
    width: usize,
    rows: usize,
    /// In one place: the codes of all rows and no others.
    base: Arc<Bytes>,
    /// In pieces: those that replace the pieces of the base, with a place for each piece of the list. A list in pieces
    /// that becomes empty is still in pieces, because others may have its base.
    pieces: Option<Vec<Option<Piece>>>,
}

/// The codes of some rows of a list, one after the other.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct CodeRows<'a> {
    width: usize,
    base: &'a [u8],
    pieces: &'a [Option<Piece>],
    first: usize,
    rows: usize,
}

/// Number of rows of a piece, as a power of 2.
#[inline]
fn piece_shift(width: usize) -> u32 {
    (PIECE_BYTES / width.max(1)).max(1).ilog2()
}

/// The number of the piece of a row, and the bytes of the row in the piece.
#[inline]
fn located(width: usize, row: usize) -> (usize, Range<usize>) {
    let shift = piece_shift(width);
    let start = (row & ((1 << shift) - 1)) * width;
    (row >> shift, start..start + width)
}

/// The bytes of a piece.
fn bytes_of(piece: &Piece) -> &[u8] {
    bytemuck::cast_slice(piece)
}

impl<'a> CodeRows<'a> {
    /// Codes of `width` bytes, which are in one place.
    #[cfg(test)]
    pub(crate) fn whole(base: &'a [u8], width: usize) -> CodeRows<'a> {
        CodeRows { width, base, pieces: &[], first: 0, rows: base.len() / width.max(1) }
    }

    /// Number of rows.
    pub(crate) fn len(&self) -> usize {
        self.rows
    }

    /// Whether there is no row.
    pub(crate) fn is_empty(&self) -> bool {
        self.rows == 0
    }

    /// Bytes of a code.
    pub(crate) fn width(&self) -> usize {
        self.width
    }

    /// Some of these rows.
    pub(crate) fn part(&self, places: Range<usize>) -> CodeRows<'a> {
        debug_assert!(places.start <= places.end && places.end <= self.rows);
        CodeRows { first: self.first + places.start, rows: places.len(), ..*self }
    }

    /// The code of a row.
    #[inline]
    pub(crate) fn get(&self, place: usize) -> &'a [u8] {
        let row = self.first + place;
        // Lists in one place need no division.
        if !self.pieces.is_empty() {
            let (number, bytes) = located(self.width, row);
            if let Some(piece) = &self.pieces[number] {
                return &bytes_of(piece)[bytes];
            }
        }
        &self.base[row * self.width..][..self.width]
    }

    /// The codes of all rows: as few slices as there are places in memory.
    pub(crate) fn runs(self) -> impl Iterator<Item = &'a [u8]> {
        let CodeRows { width, base, pieces, first, rows } = self;
        let (mut at, end, shift) = (first, first + rows, piece_shift(width));
        iter::from_fn(move || {
            if at >= end {
                return None;
            }
            let (from, number) = (at, at >> shift);
            let Some(Some(piece)) = pieces.get(number) else {
                // Up to the next piece that replaces one of the base.
                let next = pieces.iter().enumerate().skip(number).find(|(_, piece)| piece.is_some());
                at = next.map_or(end, |(next, _)| (next << shift).min(end));
                return Some(&base[from * width..at * width]);
            };
            at = ((number + 1) << shift).min(end);
            let within = from - (number << shift);
            Some(&bytes_of(piece)[within * width..][..(at - from) * width])
        })
    }

    /// The codes of all rows as one slice, which is in `gathered` if they are not in one place.
    pub(crate) fn slice<'s>(self, gathered: &'s mut Vec<u64>) -> &'s [u8]
    where
        'a: 's,
    {
        let mut runs = self.runs();
        let (bytes, first) = (self.rows * self.width, runs.next().unwrap_or(&[]));
        if first.len() == bytes {
            return first;
        }
        gathered.resize(gathered.len().max(bytes.div_ceil(8)), 0);
        let mut rest = &mut bytemuck::cast_slice_mut::<_, u8>(gathered)[..bytes];
        for run in iter::once(first).chain(runs) {
            let (to, others) = rest.split_at_mut(run.len());
            to.copy_from_slice(run);
            rest = others;
        }
        &bytemuck::cast_slice(gathered)[..bytes]
    }
}

impl Codes {
    /// Codes of no row yet, of `width` bytes each.
    pub(super) fn new(width: usize) -> Codes {
        Codes::of(Bytes::default(), width)
    }

    /// The codes in `base`, whose length is a multiple of `width`.
    pub(super) fn of(base: Bytes, width: usize) -> Codes {
        Codes { width, rows: base.get().len() / width, base: Arc::new(base), pieces: None }
    }

    /// The codes of all rows.
    #[inline]
    pub(super) fn rows(&self) -> CodeRows<'_> {
        let pieces = self.pieces.as_deref().unwrap_or(&[]);
        CodeRows { width: self.width, base: self.base.get(), pieces, first: 0, rows: self.rows }
    }

    /// The same codes, in the same memory as far as neither changes.
    pub(super) fn shared(&self) -> Result<Codes> {
        let pieces = self.pieces.as_deref().map(shared).transpose()?;
        Ok(Codes { base: Arc::clone(&self.base), pieces, ..*self })
    }

    /// Makes ready for changes, and makes room for `more` rows: what comes before the next [`Codes::shared`] does not
    /// fail.
    pub(super) fn reserve(&mut self, more: usize) -> Result<()> {
        self.settle()?;
        let (width, rows, piece_rows) = (self.width, self.rows, 1 << piece_shift(self.width));
        let grows_by_half = more > 0 && 2 * more >= rows;
        match &mut self.pieces {
            Some(pieces) if !grows_by_half => {
                host_memory::reserve(pieces, more.div_ceil(piece_rows) + 1)?;
                let (all, replaced) = (pieces.len(), pieces.iter().flatten().count());
                if 2 * replaced > all && !self.base.get().is_empty() {
                    (0..all).for_each(|number| {
                        self.piece(number);
                    });
                    self.base = Arc::default();
                }
                return Ok(());
            }
            Some(_) => {}
            None => {
                if let Some(base) = Arc::get_mut(&mut self.base).filter(|base| base.is_owned()) {
                    return base.reserve(more * width);
                }
                if !grows_by_half && rows + more > 2 * piece_rows {
                    let mut pieces = host_memory::with_room((rows + more).div_ceil(piece_rows) + 1)?;
                    pieces.resize_with(rows.div_ceil(piece_rows), || None);
                    self.pieces = Some(pieces);
                    return Ok(());
                }
            }
        }
        self.gather(more)
    }

    /// Puts all codes in one place, with room for `more` rows.
    fn gather(&mut self, more: usize) -> Result<()> {
        let mut base = Bytes::default();
        base.reserve((self.rows + more) * self.width)?;
        self.rows().runs().for_each(|run| base.append(run.len(), 1, |_| run));
        (self.base, self.pieces) = (Arc::new(base), None);
        Ok(())
    }

    /// As [`Codes::gather`], if the codes are in pieces.
    pub(super) fn compact(&mut self) -> Result<()> {
        if self.is_in_pieces() { self.gather(0) } else { Ok(()) }
    }

    /// Whether the codes are in pieces.
    pub(super) fn is_in_pieces(&self) -> bool {
        self.pieces.is_some()
    }

    /// Copies the pieces to the base if nobody else has it any more.
    fn settle(&mut self) -> Result<()> {
        let Some(pieces) = &self.pieces else { return Ok(()) };
        // Without rows of the base there is nothing to save by it.
        if pieces.iter().all(Option::is_some) {
            return Ok(());
        }
        let Some(base) = Arc::get_mut(&mut self.base).filter(|base| base.is_owned()) else { return Ok(()) };
        let (bytes, piece_bytes) = (self.rows * self.width, self.width << piece_shift(self.width));
        base.reserve(bytes.saturating_sub(base.get().len()))?;
        base.resize(bytes);
        for (number, piece) in pieces.iter().enumerate() {
            let Some(piece) = piece else { continue };
            let start = number * piece_bytes;
            base.replace(start, &bytes_of(piece)[..piece_bytes.min(bytes - start)]);
        }
        self.pieces = None;
        Ok(())
    }

    /// A piece that nobody else has. The list is in pieces.
    fn piece(&mut self, number: usize) -> &mut [u8] {
        let (piece_bytes, base) = (self.width << piece_shift(self.width), self.base.get());
        let Some(pieces) = &mut self.pieces else { unreachable!("the list is in pieces") };
        let piece = pieces[number].get_or_insert_with(|| {
            let mut words = vec![0; piece_bytes.div_ceil(8)];
            let of_base = |byte: usize| base.len().min(byte);
            let from = &base[of_base(number * piece_bytes)..of_base((number + 1) * piece_bytes)];
            bytemuck::cast_slice_mut(&mut words)[..from.len()].copy_from_slice(from);
            words.into()
        });
        bytemuck::cast_slice_mut(Arc::make_mut(piece))
    }

    /// The base, in which codes are written where they are; `None` if the list is in pieces.
    fn own_base(&mut self) -> Option<&mut Bytes> {
        if self.is_in_pieces() {
            return None;
        }
        Some(Arc::get_mut(&mut self.base).unwrap_or_else(|| unreachable!("the base is our own since it was reserved")))
    }

    /// Appends `count` rows: `row(i)` is row i. Call [`Codes::reserve`] for all of them first.
    pub(super) fn append<'a>(&mut self, count: usize, row: impl Fn(usize) -> &'a [u8]) {
        let width = self.width;
        if let Some(base) = self.own_base() {
            base.append(width, count, row);
            self.rows += count;
            return;
        }
        for at in 0..count {
            let (number, bytes) = located(width, self.rows);
            self.pieces.iter_mut().filter(|pieces| pieces.len() == number).for_each(|pieces| pieces.push(None));
            self.piece(number)[bytes].copy_from_slice(row(at));
            self.rows += 1;
        }
    }

    /// Appends rows that are one after the other. Call [`Codes::reserve`] first.
    pub(super) fn extend(&mut self, rows: &[u8]) {
        let width = self.width;
        self.append(rows.len() / width, |at| &rows[at * width..][..width]);
    }

    /// Replaces the row at `place`. Call [`Codes::reserve`] first.
    pub(super) fn replace(&mut self, place: usize, row: &[u8]) {
        let width = self.width;
        match self.own_base() {
            Some(base) => base.replace(place * width, row),
            None => {
                let (number, bytes) = located(width, place);
                self.piece(number)[bytes].copy_from_slice(row);
            }
        }
    }

    /// Removes the row at `place`; the last row takes its place. Call [`Codes::reserve`] first.
    pub(super) fn swap_remove(&mut self, place: usize) {
        let width = self.width;
        let last = self.rows - 1;
        if let Some(base) = self.own_base() {
            base.swap_remove(width, place);
        } else {
            if place < last {
                let row = self.rows().get(last).to_vec();
                self.replace(place, &row);
            }
            let pieces = last.div_ceil(1 << piece_shift(width));
            self.pieces.iter_mut().for_each(|all| all.truncate(pieces));
        }
        self.rows = last;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::FileBytes;
    use test_random::Random;

    /// Random changes of several copies, each against a vector of rows. The first copy starts in a file.
    #[test]
    fn codes_are_a_vector_of_rows_and_copies_are_independent() {
        let mut random = Random::new(6);
        let (mut in_pieces, mut settled, mut whole_again) = (0, 0, 0);
        for width in [1, 3, 8, 20, 64, 100] {
            let first: Vec<Vec<u8>> = (0..150).map(|row| vec![row as u8; width]).collect();
            let file = Arc::new(FileBytes::copied(&first.concat()).unwrap());
            let base = Bytes::of_file(&file, 0..150 * width, 1).unwrap();
            let mut all = vec![(first, Codes::of(base, width))];
            for step in 0..600 {
                let at = random.below(all.len());
                let others: Vec<Vec<Vec<u8>>> = all.iter().map(|(rows, _)| rows.clone()).collect();
                let row = |random: &mut Random| (0..width).map(|_| random.below(256) as u8).collect::<Vec<u8>>();
                if random.below(4) == 0 {
                    let copy = (all[at].0.clone(), all[at].1.shared().unwrap());
                    // Copies that go leave a base to its last owner.
                    if all.len() < 4 {
                        all.push(copy)
                    } else {
                        drop(all.swap_remove(random.below(4)))
                    }
                    continue;
                }
                let (rows, codes) = &mut all[at];
                let (was_in_pieces, more) = (codes.is_in_pieces(), random.pick(&[0, 1, 2, 3, 5, 60]));
                let before = codes.rows().runs().count();
                codes.reserve(more).unwrap();
                settled += usize::from(was_in_pieces && !codes.is_in_pieces() && more < 5);
                assert!(was_in_pieces || codes.rows().runs().count() <= before.max(1), "nothing has changed yet");
                match random.below(4) {
                    0 | 1 => {
                        let new: Vec<Vec<u8>> = (0..more).map(|_| row(&mut random)).collect();
                        codes.append(more, |at| &new[at]);
                        rows.extend(new);
                    }
                    2 if !rows.is_empty() => {
                        for _ in 0..random.below(rows.len().min(20)) {
                            let place = random.below(rows.len());
                            codes.swap_remove(place);
                            rows.swap_remove(place);
                        }
                        let new: Vec<Vec<u8>> = (0..more).map(|_| row(&mut random)).collect();
                        codes.extend(&new.concat());
                        rows.extend(new);
                    }
                    3 if !rows.is_empty() && step % 5 > 0 => {
                        let (place, new) = (random.below(rows.len()), row(&mut random));
                        codes.replace(place, &new);
                        rows[place] = new;
                    }
                    _ => {
                        whole_again += usize::from(codes.is_in_pieces());
                        codes.compact().unwrap();
                        assert!(codes.rows().runs().count() <= 1);
                    }
                }
                in_pieces += usize::from(codes.is_in_pieces());
                for (other, (rows, codes)) in all.iter().enumerate() {
                    assert!(other == at || rows == &others[other]);
                    let read = codes.rows();
                    assert_eq!((read.len(), read.is_empty(), read.width()), (rows.len(), rows.is_empty(), width));
                    assert!((0..rows.len()).all(|place| read.get(place) == rows[place]), "width {width}, step {step}");
                    let (a, b) = (random.below(rows.len() + 1), random.below(rows.len() + 1));
                    let part = a.min(b)..a.max(b);
                    let (read, expected, mut gathered) = (read.part(part.clone()), rows[part].concat(), Vec::new());
                    assert_eq!(read.runs().collect::<Vec<_>>().concat(), expected, "width {width}, step {step}");
                    assert!(read.runs().all(|run| !run.is_empty()));
                    assert_eq!(read.slice(&mut gathered), expected);
                }
            }
        }
        assert!(in_pieces > 500 && settled > 20 && whole_again > 20, "{in_pieces}, {settled}, {whole_again}");
    }

    /// One row that changes costs a copy of its piece, and the others stay shared.
    #[test]
    fn a_change_copies_the_pieces_that_it_touches() {
        let rows: Vec<u8> = (0..200).flat_map(|row| [row as u8; 8]).collect();
        let mut codes = Codes::new(8);
        codes.reserve(200).unwrap();
        codes.extend(&rows);
        let snapshot = codes.shared().unwrap();
        codes.reserve(1).unwrap();
        codes.replace(17, &[9; 8]);
        // Eight rows a piece: 16 to 23.
        let same = |place| std::ptr::eq(codes.rows().get(place), snapshot.rows().get(place));
        assert!((0..200).all(|place| same(place) != (16..24).contains(&place)));
        assert_eq!((codes.rows().get(17), snapshot.rows().get(17)), (&[9; 8][..], &[17; 8][..]));
        // The snapshot is gone: the piece comes home.
        drop(snapshot);
        codes.reserve(1).unwrap();
        assert!(!codes.is_in_pieces());
        assert_eq!((codes.rows().get(17), codes.rows().get(16)), (&[9; 8][..], &[16; 8][..]));
        assert_eq!(codes.rows().runs().count(), 1);
        // With more than half replaced, no row is shared.
        let snapshot = codes.shared().unwrap();
        codes.reserve(1).unwrap();
        (0..13).for_each(|piece| codes.replace(8 * piece, &[1; 8]));
        let changed = codes.shared().unwrap();
        codes.reserve(1).unwrap();
        assert_eq!(Arc::strong_count(&snapshot.base), 2, "of the snapshot and of the copy");
        assert!((0..200).all(|place| codes.rows().get(place) == changed.rows().get(place)));
    }

    /// A list whose rows all go while a snapshot has them starts again, at once and after the snapshot has gone.
    #[test]
    fn a_list_in_pieces_that_becomes_empty_starts_again() {
        for at_once in [true, false] {
            let mut codes = Codes::new(8);
            codes.reserve(40).unwrap();
            codes.extend(&[1; 8 * 40]);
            let snapshot = codes.shared().unwrap();
            codes.reserve(1).unwrap();
            assert!(codes.is_in_pieces());
            (0..40).for_each(|_| codes.swap_remove(0));
            assert_eq!((codes.rows().len(), codes.rows().runs().count()), (0, 0));
            if !at_once {
                assert_eq!(snapshot.rows().get(39), [1; 8]);
                drop(snapshot);
                codes.reserve(1).unwrap();
            }
            codes.extend(&[2; 8]);
            assert_eq!(codes.rows().runs().collect::<Vec<_>>(), [[2; 8]], "{at_once}");
        }
    }

    /// A list of which every piece has been replaced does not keep the base.
    #[test]
    fn a_base_that_no_row_needs_goes() {
        let mut codes = Codes::new(8);
        codes.reserve(40).unwrap();
        codes.extend(&[1; 8 * 40]);
        let snapshot = codes.shared().unwrap();
        codes.reserve(0).unwrap();
        (0..40).for_each(|place| codes.replace(place, &[2; 8]));
        codes.reserve(0).unwrap();
        assert_eq!(Arc::strong_count(&snapshot.base), 1);
        assert_eq!(codes.rows().get(39), [2; 8]);
    }
}
