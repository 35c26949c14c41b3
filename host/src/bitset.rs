//! Filters: one bit for each vector of an index, set if a search may return the vector.

use std::ops::Range;

use crate::validate::check_length;
use crate::{Error, Result, host_memory};

/// A fixed number of bits, initially all clear.
///
/// As a filter ([`SearchOptions::filter`](crate::SearchOptions::filter)), bit r stands for the vector with the r-th id
/// of the index in ascending order, from 0. If the ids are 0, 1, 2, .., bit r stands for id r. A search may return the
/// vectors whose bits are set.
///
/// The vector of a rank changes with the ids of the index. So a filter that an index made
/// ([`IvfIndex::filter`](crate::IvfIndex::filter)) records the ids for which it was made: searches accept it while the
/// index, or another one, holds exactly these ids, and refuse it otherwise
/// ([`Error::StaleFilter`](crate::Error::StaleFilter)). A set of bits that a program makes itself has no such record.
/// Searches accept it if the number of bits is right; the program is responsible for the ranks.
///
/// ```
/// use warpann::Bitset;
///
/// let mut odd = Bitset::new(100);
/// (1..100).step_by(2).for_each(|bit| odd.set(bit, true));
/// assert_eq!((odd.len(), odd.count_ones()), (100, 50));
/// assert!(odd.get(7) && !odd.get(8));
/// let same: Bitset = (0..100).map(|bit| bit % 2 == 1).collect();
/// assert_eq!(same, odd);
/// ```
#[derive(Debug, Clone, Default)]
pub struct Bitset {
    /// Bit b is bit b mod 64 of word b / 64; all bits past the last one are clear.
    words: Vec<u64>,
    len: usize,
    /// The [`stamp`] of the ids for which an index made the bits; `None` if a program made them.
    made_for: Option<u64>,
}

/// Equal bits are equal, even if they were made for different ids.
impl PartialEq for Bitset {
    fn eq(&self, other: &Bitset) -> bool {
        (self.len, &self.words) == (other.len, &other.words)
    }
}

impl Eq for Bitset {}

impl Bitset {
    /// Makes `len` bits, all clear.
    pub fn new(len: usize) -> Bitset {
        Bitset { words: vec![0; len.div_ceil(64)], len, made_for: None }
    }

    /// As [`Bitset::new`], with an error if memory is short.
    pub(crate) fn zeros(len: usize) -> Result<Bitset> {
        Ok(Bitset::of_words(host_memory::zeroed(len.div_ceil(64))?, len))
    }

    /// The first `len` bits of `words`, which have no further set bit.
    pub(crate) fn of_words(words: Vec<u64>, len: usize) -> Bitset {
        Bitset { words, len, made_for: None }
    }

    /// Makes `len` bits, all set.
    pub(crate) fn ones(len: usize) -> Result<Bitset> {
        let mut set = Bitset::default();
        set.reserve(len)?;
        set.extend_ones(len);
        Ok(set)
    }

    /// Reserves memory for `more` bits.
    pub(crate) fn reserve(&mut self, more: usize) -> Result<()> {
        let words = (self.len + more).div_ceil(64) - self.words.len();
        host_memory::reserve(&mut self.words, words)
    }

    /// Appends `more` bits, all set.
    pub(crate) fn extend_ones(&mut self, more: usize) {
        if let Some(last) = self.words.last_mut()
            && !self.len.is_multiple_of(64)
        {
            *last |= u64::MAX << (self.len % 64);
        }
        self.len += more;
        self.words.resize(self.len.div_ceil(64), u64::MAX);
        self.clear_the_rest();
    }

    /// Keeps the first `len` bits.
    pub(crate) fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
        self.words.truncate(self.len.div_ceil(64));
        self.clear_the_rest();
    }

    /// Clears the bits past the last one.
    fn clear_the_rest(&mut self) {
        if let Some(last) = self.words.last_mut()
            && !self.len.is_multiple_of(64)
        {
            *last &= (1 << (self.len % 64)) - 1;
        }
    }

    /// The same bits as a filter for the ids with this stamp.
    pub(crate) fn for_ids(self, stamp: u64) -> Bitset {
        Bitset { made_for: Some(stamp), ..self }
    }

    /// Checks that these bits are a filter for an index of `vectors` vectors whose ids have this stamp, which is
    /// computed if it matters.
    ///
    /// # Errors
    /// [`Error::WrongLength`], [`Error::StaleFilter`].
    pub(crate) fn check(&self, vectors: usize, stamp: impl FnOnce() -> u64) -> Result<()> {
        check_length("filter bits", vectors, self.len)?;
        if self.is_stale(stamp) { Err(Error::StaleFilter { vectors: vectors as u64 }) } else { Ok(()) }
    }

    /// Whether the bits were made for ids with another stamp than this one, which is computed if it matters.
    fn is_stale(&self, stamp: impl FnOnce() -> u64) -> bool {
        self.made_for.is_some_and(|made_for| made_for != stamp())
    }

    /// Number of bits.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the number of bits is 0.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Number of set bits. O(len / 64).
    pub fn count_ones(&self) -> usize {
        self.words.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// Whether bit `bit` is set.
    ///
    /// # Panics
    /// If there is no such bit, as with slice indexing.
    #[inline]
    pub fn get(&self, bit: usize) -> bool {
        assert!(bit < self.len, "bit {bit} of {}", self.len);
        self.words[bit / 64] >> (bit % 64) & 1 == 1
    }

    /// Sets or clears bit `bit`.
    ///
    /// # Panics
    /// If there is no such bit, as with slice indexing.
    #[inline]
    pub fn set(&mut self, bit: usize, value: bool) {
        assert!(bit < self.len, "bit {bit} of {}", self.len);
        let (word, mask) = (&mut self.words[bit / 64], 1 << (bit % 64));
        *word = if value { *word | mask } else { *word & !mask };
    }

    /// Clears the bits that `other` does not have: a search under the result returns what both filters accept. O(len /
    /// 64).
    ///
    /// ```
    /// use warpann::{Device, FlatIndex, Metric, SearchOptions};
    ///
    /// let mut index = FlatIndex::<f32>::new(1, Metric::L2, Device::Cpu)?;
    /// index.add(&[0.0, 1.0, 2.0, 3.0])?;
    /// let mut accepted = index.filter(|id| id != 2);
    /// accepted.and(&index.filter(|id| id % 2 == 0))?;
    /// let found = index.search_with(&[2.1], 1, &SearchOptions::new().filter(&accepted))?;
    /// assert_eq!(found.ids, [0]);
    /// # Ok::<(), warpann::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::WrongLength`] if the numbers of bits differ; [`Error::StaleFilter`] if indexes made both, for different
    /// ids. The bits are then as they were.
    pub fn and(&mut self, other: &Bitset) -> Result<()> {
        self.combine(other, |a, b| a & b)
    }

    /// Sets the bits that `other` has: a search under the result returns what one of the filters accepts. O(len / 64).
    ///
    /// # Errors
    /// As [`and`](Self::and).
    pub fn or(&mut self, other: &Bitset) -> Result<()> {
        self.combine(other, |a, b| a | b)
    }

    /// Clears the bits that `other` has: a search under the result returns what this filter accepts and the other one
    /// does not. O(len / 64).
    ///
    /// # Errors
    /// As [`and`](Self::and).
    pub fn without(&mut self, other: &Bitset) -> Result<()> {
        self.combine(other, |a, b| a & !b)
    }

    /// Replaces each word by what `combined` makes of it and that of `other`; of two clear bits it makes a clear one.
    /// The result is for the ids for which one of the two was made.
    fn combine(&mut self, other: &Bitset, combined: impl Fn(u64, u64) -> u64) -> Result<()> {
        check_length("filter bits", self.len, other.len)?;
        if let Some(made_for) = other.made_for {
            if self.is_stale(|| made_for) {
                return Err(Error::StaleFilter { vectors: self.len as u64 });
            }
            self.made_for = Some(made_for);
        }
        self.words.iter_mut().zip(&other.words).for_each(|(word, &other)| *word = combined(*word, other));
        Ok(())
    }

    /// The set bits, in order. O(len / 64 + set bits).
    pub(crate) fn set_bits(&self) -> impl Iterator<Item = usize> {
        self.words.iter().enumerate().flat_map(|(at, &word)| {
            let mut rest = word;
            std::iter::from_fn(move || {
                let bit = rest.trailing_zeros() as usize;
                rest &= rest.checked_sub(1)?;
                Some(at * 64 + bit)
            })
        })
    }

    /// The ranges of consecutive set bits, in order; each is as long as possible.
    pub(crate) fn runs(&self) -> impl Iterator<Item = Range<usize>> {
        let mut end = 0;
        std::iter::from_fn(move || {
            let start = self.next(end, true);
            end = self.next(start, false);
            (start < end).then_some(start..end)
        })
    }

    /// The first bit from `from` on that is set (`set`) or clear; the number of bits if there is none.
    fn next(&self, from: usize, set: bool) -> usize {
        let flip = if set { 0 } else { u64::MAX };
        let mut mask = u64::MAX << (from % 64);
        for at in from / 64..self.words.len() {
            let found = (self.words[at] ^ flip) & mask;
            if found != 0 {
                return (at * 64 + found.trailing_zeros() as usize).min(self.len);
            }
            mask = u64::MAX;
        }
        self.len
    }

    /// No bits yet, with room for `bits`.
    ///
    /// # Errors
    /// [`Error::OutOfHostMemory`](crate::Error::OutOfHostMemory).
    pub(crate) fn with_room(bits: usize) -> Result<Bitset> {
        Ok(Bitset { words: host_memory::with_room(bits.div_ceil(64))?, ..Bitset::default() })
    }

    /// A copy of the bits, for the same ids.
    pub(crate) fn copied(&self) -> Result<Bitset> {
        Ok(Bitset { words: host_memory::copied(&self.words)?, ..*self })
    }

    /// Appends bits `range` of `other`. O(bits / 64).
    pub(crate) fn extend_from(&mut self, other: &Bitset, range: Range<usize>) {
        for from in range.clone().step_by(64) {
            let (bits, count) = (other.some(from..range.end), (range.end - from).min(64));
            let place = self.len % 64;
            match self.words.last_mut() {
                Some(word) if place > 0 => *word |= bits << place,
                _ => self.words.push(bits),
            }
            if place > 0 && place + count > 64 {
                self.words.push(bits >> (64 - place));
            }
            self.len += count;
        }
    }

    /// Number of set bits in `range`. O(bits / 64).
    pub(crate) fn count_ones_in(&self, range: Range<usize>) -> usize {
        range.clone().step_by(64).map(|from| self.some(from..range.end).count_ones() as usize).sum()
    }

    /// Moves bit r to the place of the r-th set bit of `over`; the places between get clear bits. There must be as many
    /// bits as `over` has set ones. O(bits / 64) for words of `over` that are all set, and O(bits) at most.
    pub(crate) fn spread(&self, over: &Bitset) -> Bitset {
        let mut first = 0;
        let word = |&places: &u64| {
            let count = places.count_ones() as usize;
            let mut bits = if count > 0 { self.some(first..first + count) } else { 0 };
            first += count;
            if places == u64::MAX {
                return bits;
            }
            let (mut left, mut word) = (places, 0);
            while bits != 0 {
                let place = left & left.wrapping_neg();
                word |= if bits & 1 == 1 { place } else { 0 };
                (left, bits) = (left ^ place, bits >> 1);
            }
            word
        };
        Bitset { words: over.words.iter().map(word).collect(), len: over.len, made_for: None }
    }

    /// The first bits of `range`, at most 64, with the first of them lowest; the other bits are clear.
    fn some(&self, range: Range<usize>) -> u64 {
        let (word, place) = (range.start / 64, range.start % 64);
        let later = if place > 0 { self.words.get(word + 1).map_or(0, |later| later << (64 - place)) } else { 0 };
        let bits = self.words[word] >> place | later;
        if range.len() < 64 { bits & ((1 << range.len()) - 1) } else { bits }
    }

    /// The bits as words of 64, with bit 0 lowest in the first word; all bits past the last one are clear.
    pub fn words(&self) -> &[u64] {
        &self.words
    }
}

impl FromIterator<bool> for Bitset {
    fn from_iter<I: IntoIterator<Item = bool>>(bits: I) -> Bitset {
        let mut set = Bitset::default();
        for bit in bits {
            if set.len.is_multiple_of(64) {
                set.words.push(0);
            }
            if let Some(word) = set.words.last_mut() {
                *word |= u64::from(bit) << (set.len % 64);
            }
            set.len += 1;
        }
        set
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_are_where_the_words_say() {
        for len in [0, 1, 63, 64, 65, 130] {
            let mut set = Bitset::new(len);
            assert_eq!((set.len(), set.is_empty(), set.words().len()), (len, len == 0, len.div_ceil(64)));
            for bit in (0..len).step_by(3) {
                set.set(bit, true);
            }
            if len > 3 {
                set.set(3, false);
            }
            let expected: Vec<bool> = (0..len).map(|bit| bit % 3 == 0 && bit != 3).collect();
            assert!((0..len).all(|bit| set.get(bit) == expected[bit]));
            assert_eq!(set.count_ones(), expected.iter().filter(|&&bit| bit).count());
            assert_eq!(expected.into_iter().collect::<Bitset>(), set);
        }
        assert_eq!(Bitset::from_iter([true; 65]).words(), [u64::MAX, 1]);
    }

    #[test]
    fn sets_of_bits_combine() {
        let mut random = crate::random::Random::new(2);
        for len in [0, 1, 63, 64, 65, 700] {
            let mut drawn = || (0..len).map(|_| random.below(2) == 0).collect::<Vec<bool>>();
            let (a, b) = (drawn(), drawn());
            let set = |bits: &[bool]| bits.iter().copied().collect::<Bitset>();
            type Combine = fn(&mut Bitset, &Bitset) -> Result<()>;
            type OfBits = fn(bool, bool) -> bool;
            let ways: [(Combine, OfBits); 3] =
                [(Bitset::and, |a, b| a && b), (Bitset::or, |a, b| a || b), (Bitset::without, |a, b| a && !b)];
            for (combine, of_bits) in ways {
                let expected: Vec<bool> = a.iter().zip(&b).map(|(&a, &b)| of_bits(a, b)).collect();
                let mut found = set(&a);
                combine(&mut found, &set(&b)).unwrap();
                assert_eq!(found, set(&expected));
                // Bits of a program have no ids; the others keep theirs.
                for (first, second, made_for) in
                    [(None, Some(7), Some(7)), (Some(7), None, Some(7)), (Some(7), Some(7), Some(7))]
                {
                    let made = |bits: &[bool], stamp: Option<u64>| Bitset { made_for: stamp, ..set(bits) };
                    let mut found = made(&a, first);
                    combine(&mut found, &made(&b, second)).unwrap();
                    assert_eq!((found.made_for, found), (made_for, set(&expected)));
                }
                let mut stale = set(&a).for_ids(7);
                let error = combine(&mut stale, &set(&b).for_ids(8));
                assert!(matches!(error, Err(Error::StaleFilter { vectors }) if vectors == len as u64));
                let error = combine(&mut stale, &Bitset::new(len + 1));
                assert!(
                    matches!(error, Err(Error::WrongLength { what: "filter bits", expected, actual }) if (expected, actual) == (len, len + 1))
                );
                assert_eq!((stale.made_for, stale), (Some(7), set(&a)));
            }
        }
    }

    #[test]
    fn ranges_of_bits_are_found_counted_and_copied() {
        let mut random = crate::random::Random::new(1);
        for (len, share) in [(0, 1), (1, 1), (64, 1), (63, 2), (129, 2), (700, 2), (700, 1), (700, 40), (700, 700)] {
            let bits: Vec<bool> = (0..len).map(|_| random.below(share) == 0).collect();
            let set: Bitset = bits.iter().copied().collect();
            let mut copied = vec![false; len];
            let mut before = None;
            for run in set.runs() {
                assert!(!run.is_empty() && before.is_none_or(|before| before < run.start));
                before = Some(run.end);
                copied[run].fill(true);
            }
            assert_eq!(copied, bits);
            assert!(set.set_bits().eq((0..len).filter(|&bit| bits[bit])));
            let (mut some, mut expected) = (Bitset::with_room(3 * len).unwrap(), Vec::new());
            for _ in 0..20 {
                let start = random.below(len + 1);
                let range = start..start + random.below(len - start + 1);
                assert_eq!(set.count_ones_in(range.clone()), bits[range.clone()].iter().filter(|&&bit| bit).count());
                some.extend_from(&set, range.clone());
                expected.extend_from_slice(&bits[range]);
            }
            assert_eq!(some, expected.into_iter().collect());
            let mut taken = (0..).map(|bit| bit % 3 != 1);
            let spread: Bitset = bits.iter().map(|&place| place && taken.next().unwrap_or(false)).collect();
            assert_eq!((0..set.count_ones()).map(|bit| bit % 3 != 1).collect::<Bitset>().spread(&set), spread);
        }
    }
    #[test]
    fn bits_are_appended_and_cut_off() {
        for (len, more) in [(0, 0), (0, 64), (3, 61), (3, 62), (64, 1), (130, 500)] {
            let mut set: Bitset = (0..len).map(|bit| bit % 2 == 0).collect();
            set.reserve(more).unwrap();
            set.extend_ones(more);
            assert_eq!(set, (0..len + more).map(|bit| bit >= len || bit % 2 == 0).collect());
            set.truncate(len + 1);
            assert_eq!(set, (0..(len + more).min(len + 1)).map(|bit| bit >= len || bit % 2 == 0).collect());
            assert_eq!(Bitset::ones(len).unwrap(), (0..len).map(|_| true).collect());
        }
    }
}
