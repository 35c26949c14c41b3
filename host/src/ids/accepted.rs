//! From a filter to one bit for each row: the same for all indexes.

use std::borrow::Cow;

use super::row_ids::RowIds;
use crate::filter::not_one;
use crate::parallel::{Loop, ParallelSlice, turns};
use crate::{Bitset, Filter, Result, host_memory};

/// Number of ids that are looked up at a time.
const LOOKED_UP: usize = 1 << 16;
/// Smallest number of ids of a thread that looks ids up, and of words of a thread that calls a function for 64 ids
/// each.
const LEAST_IDS: usize = 1 << 12;
const LEAST_WORDS: usize = 1 << 6;

impl RowIds {
    /// The rows of the vectors that a filter accepts, which [`Filter::check`] has checked. O(rows / 64) for bits,
    /// O(rows / 64 + ids · log rows) for ids, O(rows) for a function.
    ///
    /// # Errors
    /// [`Error::OutOfHostMemory`](crate::Error::OutOfHostMemory); [`Error::Mismatch`](crate::Error::Mismatch) for a
    /// filter for each query.
    pub(crate) fn accepted<'a>(&self, filter: Filter<'a>) -> Result<Cow<'a, Bitset>> {
        Ok(Cow::Owned(match (filter, self.live()) {
            (Filter::Bits(bits), None) => return Ok(Cow::Borrowed(bits)),
            (Filter::Bits(bits), Some(live)) => bits.spread(live),
            (Filter::Ids(ids), _) => self.with_ids(ids, Bitset::zeros(self.rows())?, true)?,
            (Filter::Except(ids), None) => self.with_ids(ids, Bitset::ones(self.rows())?, false)?,
            (Filter::Except(ids), Some(live)) => self.with_ids(ids, live.copied()?, false)?,
            (Filter::Function(accepts), live) => {
                let word = |at: usize| {
                    let live = live.map_or(u64::MAX, |live| live.words()[at]);
                    let rows = at * 64..self.rows().min(at * 64 + 64);
                    let accepted = rows.filter(|row| live >> (row % 64) & 1 == 1 && accepts(self.id(*row)));
                    accepted.fold(0, |word, row| word | 1 << (row % 64))
                };
                let words = turns(0..self.rows().div_ceil(64)).with_min_len(LEAST_WORDS).map(word);
                Bitset::of_words(host_memory::collected_in_parallel(words)?, self.rows())
            }
            (Filter::Each(_), _) => return Err(not_one()),
        }))
    }

    /// Sets the bits of the rows of these ids to `value`.
    fn with_ids(&self, ids: &[u64], mut bits: Bitset, value: bool) -> Result<Bitset> {
        for ids in ids.chunks(LOOKED_UP) {
            let rows = ids.par_iter().with_min_len(LEAST_IDS).map(|&id| self.find(id));
            let rows = host_memory::collected_in_parallel(rows)?;
            rows.into_iter().flatten().for_each(|row| bits.set(row, value));
        }
        Ok(bits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use test_random::Random;

    /// Rows with random ids, of which some are removed. With `dense`, the ids are the row numbers.
    fn rows(random: &mut Random, count: usize, dense: bool, removed: usize) -> RowIds {
        let mut ids: Vec<u64> = (0..count as u64).map(|id| if dense { id } else { random.bits() >> 1 }).collect();
        ids.sort_unstable();
        ids.dedup();
        let mut rows = RowIds::of(&ids).unwrap();
        for _ in 0..removed.min(count) {
            let live: Vec<usize> = rows.live_rows().collect();
            rows.remove(&[random.pick(&live)]).unwrap();
        }
        rows
    }

    #[test]
    fn every_form_accepts_the_same_rows() {
        let mut random = Random::new(5);
        for case in 0..300 {
            let count = random.pick(&[0, 1, 63, 64, 65, 200, 5000]);
            let removed = random.pick(&[0, 0, 1, 20]);
            let rows = rows(&mut random, count, case % 2 == 0, removed);
            let share = random.pick(&[1, 2, 10, 100]);
            let all = rows.all().unwrap();
            let mut ids: Vec<u64> = all.iter().copied().filter(|_| random.below(share) == 0).collect();
            let mut accepted = vec![false; rows.rows()];
            ids.iter().for_each(|id| accepted[rows.find(*id).unwrap()] = true);
            let accepted: Bitset = accepted.into_iter().collect();
            let bits: Bitset = all.iter().map(|id| ids.contains(id)).collect();
            let mut others: Vec<u64> = all.iter().copied().filter(|id| !ids.contains(id)).collect();
            let named = ids.clone();
            // Ids in any order, twice, unknown, or those of removed vectors.
            for ids in [&mut ids, &mut others] {
                ids.extend_from_slice(&ids.clone()[..ids.len() / 2]);
                ids.extend((0..rows.rows()).map(|row| rows.id(row)).filter(|id| rows.find(*id).is_none()));
                ids.extend([u64::MAX, u64::MAX - 1, 1 << 63]);
                ids.reverse();
            }
            for filter in [
                Filter::Bits(&bits),
                Filter::Ids(&ids),
                Filter::Except(&others),
                Filter::Function(&|id| named.contains(&id)),
            ] {
                filter.check(rows.len(), || rows.stamp()).unwrap();
                assert_eq!(*rows.accepted(filter).unwrap(), accepted, "case {case}: {filter:?}");
            }
        }
    }

    #[test]
    fn filters_compare_by_form_and_contents() {
        let (bits, ids) = (Bitset::new(3), [1, 2]);
        let (even, small) = (|id: u64| id.is_multiple_of(2), |id: u64| id < 7);
        let all = [
            Filter::Bits(&bits),
            Filter::Ids(&ids),
            Filter::Except(&ids),
            Filter::Ids(&ids[..1]),
            Filter::Function(&even),
            Filter::Function(&small),
        ];
        for (at, a) in all.iter().enumerate() {
            for (other, b) in all.iter().enumerate() {
                assert_eq!(a == b, at == other, "{a:?}, {b:?}");
            }
        }
        assert_eq!(Filter::from(&bits), Filter::Bits(&Bitset::new(3)));
    }
}
