//! The codes of one list, in one place or scattered over two.
//!
//! The codes of a list that nobody shares are in one place, the *base*: scans read them as one slice, and changes write
//! them where they are. Snapshots share the base. A list that changes then leaves base and snapshots as they are: it
//! *scatters*. Its new codes come behind each other in a [`Log`], which the versions after it share too, and a table
//! says where each row is. So a code that changes costs a copy of that code, and the table costs 4 bytes for each row
//! of the list. The same holds for a base in a mapped file.
//!
//! ```text
//! row    0  1  2  3  4          base  a b c d e
//! place  0  5  2  6  3          log   f g            rows  a f c g d
//! ```
//!
//! A log has room for a part of its list ([`LOG_SHARE`]). When it is full, or when fewer than half of the codes in base
//! and log are in use, the list is gathered in a new base, which nobody shares: each code that changes pays for a few
//! that are copied then.

use std::iter;
use std::ops::Range;
use std::sync::Arc;

use super::bytes::Bytes;
use super::log::Log;
use crate::shared::catch_up;
use crate::{Result, host_memory};

/// A log has room for one code for this number of rows, so a code that changes pays for the copies of as many.
const LOG_SHARE: usize = 4;
/// Lists of at most this number of bytes are gathered at once.
const SMALL_BYTES: usize = if cfg!(test) { 1 << 7 } else { 1 << 13 };

/// The codes of a list, all of `width` bytes.
#[derive(Debug)]
pub(super) struct Codes {
    width: usize,
    rows: usize,
    /// In one place: the codes of all rows and no others.
    base: Arc<Bytes>,
    scattered: Option<Scattered>,
}

/// The table of a scattered list, and the codes behind its base.
#[derive(Debug)]
struct Scattered {
    /// The place of each row: one of the base, or behind them one of the log.
    places: Vec<u32>,
    log: Log,
}

/// The codes of some rows of a list, one after the other.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct CodeRows<'a> {
    width: usize,
    rows: usize,
    /// If `places` is empty, the codes of the rows.
    base: &'a [u8],
    /// The codes behind those of the base.
    log: &'a [u8],
    places: &'a [u32],
}

impl<'a> CodeRows<'a> {
    /// Codes of `width` bytes, which are in one place.
    #[cfg(test)]
    pub(crate) fn whole(base: &'a [u8], width: usize) -> CodeRows<'a> {
        CodeRows { width, base, log: &[], places: &[], rows: base.len() / width.max(1) }
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
    pub(crate) fn part(&self, rows: Range<usize>) -> CodeRows<'a> {
        debug_assert!(rows.start <= rows.end && rows.end <= self.rows);
        let part = CodeRows { rows: rows.len(), ..*self };
        if self.places.is_empty() {
            CodeRows { base: &self.base[rows.start * self.width..rows.end * self.width], ..part }
        } else {
            CodeRows { places: &self.places[rows], ..part }
        }
    }

    /// The codes of `count` rows that lie behind each other, from a place on. They do not cross the end of the base.
    #[inline]
    fn at(&self, place: usize, count: usize) -> &'a [u8] {
        let (start, bytes) = (place * self.width, count * self.width);
        match start.checked_sub(self.base.len()) {
            None => &self.base[start..start + bytes],
            Some(start) => &self.log[start..start + bytes],
        }
    }

    /// The code of a row.
    #[inline]
    pub(crate) fn get(&self, row: usize) -> &'a [u8] {
        self.at(self.places.get(row).map_or(row, |&place| place as usize), 1)
    }

    /// The codes of all rows: as few slices as there are places in memory.
    pub(crate) fn runs(self) -> impl Iterator<Item = &'a [u8]> {
        let (mut next, first_of_log) = (0, self.base.len() / self.width.max(1));
        iter::from_fn(move || {
            if next >= self.rows {
                return None;
            }
            let Some(&place) = self.places.get(next) else {
                next = self.rows;
                return Some(self.at(0, self.rows));
            };
            let follows = |(&place, before): (&u32, &u32)| place == before + 1 && place as usize != first_of_log;
            let (places, before) = (self.places[next + 1..].iter(), self.places[next..].iter());
            let count = 1 + places.zip(before).take_while(|&pair| follows(pair)).count();
            next += count;
            Some(self.at(place as usize, count))
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
        Codes { width, rows: base.get().len() / width, base: Arc::new(base), scattered: None }
    }

    /// The codes of all rows.
    #[inline]
    pub(super) fn rows(&self) -> CodeRows<'_> {
        let (log, places) = self.scattered.as_ref().map_or((&[][..], &[][..]), |at| (at.log.get(), &at.places[..]));
        CodeRows { width: self.width, rows: self.rows, base: self.base.get(), log, places }
    }

    /// The same codes, in the same memory as far as neither changes.
    pub(super) fn shared(&self) -> Result<Codes> {
        let shared = |at: &Scattered| Ok(Scattered { places: host_memory::copied(&at.places)?, log: at.log.shared() });
        let scattered = self.scattered.as_ref().map(shared).transpose()?;
        Ok(Codes { base: Arc::clone(&self.base), scattered, ..*self })
    }

    /// Makes the codes of a former version equal to `current`, which has other ones at the places `rows`, and at no
    /// others.
    pub(super) fn catch_up(&mut self, current: &Codes, rows: &[u32]) -> Result<()> {
        if let (Some(own), Some(at)) = (&mut self.scattered, &current.scattered)
            && Arc::ptr_eq(&self.base, &current.base)
            && own.log.is_before(&at.log)
        {
            catch_up(&mut own.places, &at.places, rows, 1)?;
            own.log = at.log.shared();
            self.rows = current.rows;
        } else {
            *self = current.shared()?;
        }
        Ok(())
    }

    /// Makes ready for changes, and makes room for `more` codes that are appended or replaced: what comes before the
    /// next [`Codes::shared`] does not fail.
    pub(super) fn reserve(&mut self, more: usize) -> Result<()> {
        let (width, rows) = (self.width, self.rows);
        if let Some(Scattered { places, log }) = &mut self.scattered {
            let wasted = 2 * rows * width < self.base.get().len() + log.get().len();
            if !wasted && log.claim(more * width) {
                return host_memory::reserve(places, more);
            }
            return self.gather(more);
        }
        if let Some(base) = Arc::get_mut(&mut self.base).filter(|base| base.is_owned()) {
            return base.reserve(more * width);
        }
        let room = more.max(rows / LOG_SHARE);
        let is_small = (rows + more) * width <= SMALL_BYTES || more * LOG_SHARE > rows;
        if is_small || u32::try_from(rows + room).is_err() {
            return self.gather(more);
        }
        let mut places = host_memory::with_room(rows + more)?;
        places.extend(0..rows as u32);
        let mut log = Log::with_room(room * width)?;
        log.claim(more * width);
        self.scattered = Some(Scattered { places, log });
        Ok(())
    }

    /// Puts all codes in one place, with room for `more` rows.
    fn gather(&mut self, more: usize) -> Result<()> {
        let mut base = Bytes::default();
        base.reserve((self.rows + more) * self.width)?;
        self.rows().runs().for_each(|run| base.append(run.len(), 1, |_| run));
        (self.base, self.scattered) = (Arc::new(base), None);
        Ok(())
    }

    /// As [`Codes::gather`], if the codes are not in one place.
    pub(super) fn compact(&mut self) -> Result<()> {
        if self.is_scattered() { self.gather(0) } else { Ok(()) }
    }

    /// Whether the codes are not in one place.
    pub(super) fn is_scattered(&self) -> bool {
        self.scattered.is_some()
    }

    /// The base, in which codes are written where they are, unless the list is scattered.
    fn own_base(base: &mut Arc<Bytes>) -> &mut Bytes {
        Arc::get_mut(base).unwrap_or_else(|| unreachable!("the base is our own since it was reserved"))
    }

    /// Appends `count` rows: `row(i)` is row i. Call [`Codes::reserve`] for all of them first.
    pub(super) fn append<'a>(&mut self, count: usize, row: impl Fn(usize) -> &'a [u8]) {
        match &mut self.scattered {
            None => Codes::own_base(&mut self.base).append(self.width, count, row),
            Some(at) => {
                let first = at.place_of_next(&self.base, self.width);
                at.places.extend(first..first + count as u32);
                (0..count).for_each(|number| at.log.append(row(number)));
            }
        }
        self.rows += count;
    }

    /// Appends rows that are one after the other. Call [`Codes::reserve`] first.
    pub(super) fn extend(&mut self, rows: &[u8]) {
        let width = self.width;
        self.append(rows.len() / width, |at| &rows[at * width..][..width]);
    }

    /// Replaces the code of a row. Call [`Codes::reserve`] first.
    pub(super) fn replace(&mut self, row: usize, code: &[u8]) {
        match &mut self.scattered {
            None => Codes::own_base(&mut self.base).replace(row * self.width, code),
            Some(at) => {
                at.places[row] = at.place_of_next(&self.base, self.width);
                at.log.append(code);
            }
        }
    }

    /// Removes a row; the last row takes its place. Call [`Codes::reserve`] first.
    pub(super) fn swap_remove(&mut self, row: usize) {
        match &mut self.scattered {
            None => Codes::own_base(&mut self.base).swap_remove(self.width, row),
            Some(at) => {
                at.places.swap_remove(row);
            }
        }
        self.rows -= 1;
    }
}

impl Scattered {
    /// The place of the next code of the log.
    fn place_of_next(&self, base: &Bytes, width: usize) -> u32 {
        ((base.get().len() + self.log.get().len()) / width) as u32
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
        let (mut scattered, mut gathered_again, mut compacted) = (0, 0, 0);
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
                let (was_scattered, more) = (codes.is_scattered(), random.pick(&[1, 1, 2, 3, 5, 60]));
                let before = codes.rows().runs().count();
                codes.reserve(more).unwrap();
                gathered_again += usize::from(was_scattered && !codes.is_scattered() && more < 5);
                assert!(codes.rows().runs().count() <= before.max(1), "nothing has changed yet");
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
                        compacted += usize::from(codes.is_scattered());
                        codes.compact().unwrap();
                        assert!(codes.rows().runs().count() <= 1);
                    }
                }
                scattered += usize::from(codes.is_scattered());
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
        let counts = [scattered, gathered_again, compacted];
        assert!(scattered > 500 && gathered_again > 20 && compacted > 20, "{counts:?}");
    }

    /// Codes of 8 bytes, each with its row in all bytes, and a snapshot of them.
    fn with_snapshot(rows: u8) -> (Codes, Codes) {
        let mut codes = Codes::new(8);
        codes.reserve(rows.into()).unwrap();
        codes.extend(&(0..rows).flat_map(|row| [row; 8]).collect::<Vec<u8>>());
        let snapshot = codes.shared().unwrap();
        (codes, snapshot)
    }

    /// A code that changes costs a copy of that code, and the others stay shared, until the log is full.
    #[test]
    fn a_change_copies_the_codes_that_change() {
        let (mut codes, snapshot) = with_snapshot(200);
        codes.reserve(2).unwrap();
        codes.replace(17, &[255; 8]);
        codes.swap_remove(3);
        codes.append(1, |_| &[254; 8]);
        let same = |row| std::ptr::eq(codes.rows().get(row), snapshot.rows().get(row));
        assert!((0..200).all(|row| same(row) != [3, 17, 199].contains(&row)));
        assert!(std::ptr::eq(codes.rows().get(3), snapshot.rows().get(199)));
        assert_eq!([17, 199].map(|row| codes.rows().get(row)), [&[255; 8], &[254; 8]]);
        assert_eq!([3, 17, 199].map(|row| snapshot.rows().get(row)), [&[3; 8], &[17; 8], &[199; 8]]);
        // The versions after it append behind it, in the same memory, also without the first snapshot.
        let second = codes.shared().unwrap();
        drop(snapshot);
        codes.reserve(1).unwrap();
        codes.replace(0, &[253; 8]);
        let same = |row| std::ptr::eq(codes.rows().get(row), second.rows().get(row));
        assert!(codes.is_scattered() && (0..200).all(|row| same(row) != (row == 0)));
        // Room for 50 codes.
        for change in 20..80 {
            let version = codes.shared().unwrap();
            codes.reserve(1).unwrap();
            assert_eq!(codes.is_scattered(), change != 67, "{change}");
            codes.replace(change, &[change as u8 + 1; 8]);
            assert_eq!(
                (codes.rows().get(change), version.rows().get(change)[0]),
                (&[change as u8 + 1; 8][..], change as u8)
            );
        }
        assert_eq!(second.rows().get(0), [0; 8]);
    }

    /// Two versions that follow the same one: both have their own codes.
    #[test]
    fn of_two_versions_one_appends_to_the_log() {
        let (mut first, _snapshot) = with_snapshot(100);
        first.reserve(1).unwrap();
        first.replace(0, &[200; 8]);
        let mut second = first.shared().unwrap();
        for (codes, number) in [(&mut first, 201), (&mut second, 202)] {
            codes.reserve(1).unwrap();
            codes.extend(&[number; 8]);
        }
        assert_eq!((first.is_scattered(), second.is_scattered()), (true, false));
        let all = |codes: &Codes| codes.rows().runs().collect::<Vec<_>>().concat();
        let expected = |last| {
            let codes = |row| [if row == 0 { 200 } else { row }; 8];
            (0..100).flat_map(codes).chain([last; 8]).collect::<Vec<u8>>()
        };
        assert_eq!(all(&first), expected(201));
        assert_eq!(all(&second), expected(202));
    }

    /// A list whose rows all go while a snapshot has them starts again, at once and after the snapshot has gone.
    #[test]
    fn a_scattered_list_that_becomes_empty_starts_again() {
        for at_once in [true, false] {
            let (mut codes, snapshot) = with_snapshot(40);
            codes.reserve(1).unwrap();
            assert!(codes.is_scattered());
            (0..40).for_each(|_| codes.swap_remove(0));
            assert_eq!((codes.rows().len(), codes.rows().runs().count()), (0, 0));
            if !at_once {
                assert_eq!(snapshot.rows().get(39), [39; 8]);
                drop(snapshot);
                codes.reserve(1).unwrap();
                assert!(!codes.is_scattered());
            }
            codes.extend(&[2; 8]);
            assert_eq!(codes.rows().runs().collect::<Vec<_>>(), [[2; 8]], "{at_once}");
        }
    }

    /// A list of which every code has been replaced, or that has lost half of its rows, does not keep the base.
    #[test]
    fn a_base_of_which_little_is_in_use_goes() {
        let (mut codes, snapshot) = with_snapshot(40);
        for row in 0..40 {
            codes.reserve(1).unwrap();
            codes.replace(row, &[2; 8]);
        }
        assert_eq!(Arc::strong_count(&snapshot.base), 1);
        assert_eq!(codes.rows().get(39), [2; 8]);
        let (mut codes, snapshot) = with_snapshot(40);
        codes.reserve(0).unwrap();
        (0..19).for_each(|_| codes.swap_remove(0));
        codes.reserve(0).unwrap();
        assert_eq!((codes.is_scattered(), Arc::strong_count(&snapshot.base)), (true, 2));
        (0..2).for_each(|_| codes.swap_remove(0));
        codes.reserve(0).unwrap();
        assert_eq!((codes.is_scattered(), Arc::strong_count(&snapshot.base)), (false, 1));
    }
}
