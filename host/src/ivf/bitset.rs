//! Filters: one bit for each vector of an index, set if a search may return the vector.

/// A fixed number of bits, initially all clear.
///
/// As a filter ([`SearchOptions::filter`](super::SearchOptions::filter)), bit r stands for the vector with the r-th id of the index in
/// ascending order, from 0. If the ids are 0, 1, 2, .., bit r stands for id r. A search may return the vectors whose bits are set.
///
/// The vector of a rank changes with the ids of the index. So a filter that an index made ([`IvfIndex::filter`](crate::IvfIndex::filter))
/// records the ids for which it was made: searches accept it while the index, or another one, holds exactly these ids, and refuse it
/// otherwise ([`Error::StaleFilter`](crate::Error::StaleFilter)). A set of bits that a program makes itself has no such record. Searches
/// accept it if the number of bits is right; the program is responsible for the ranks.
///
/// ```
/// use warpann::ivf::Bitset;
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
    /// The [`stamp`](super::lists::stamp) of the ids for which an index made the bits; `None` if a program made them.
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

    /// The same bits as a filter for the ids with this stamp.
    pub(super) fn for_ids(self, stamp: u64) -> Bitset {
        Bitset { made_for: Some(stamp), ..self }
    }

    /// Whether the bits were made for ids with another stamp.
    pub(super) fn is_stale(&self, stamp: u64) -> bool {
        self.made_for.is_some_and(|made_for| made_for != stamp)
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
}
