//! k-selection on the CPU: a bound guessed from a sample, one pass over the keys, and a sort of the few that pass.
//!
//! # Problem
//!
//! In each row of n keys find the first k in the order of results, sorted. Partial sorting by the standard library
//! (`select_nth_unstable` of pairs of rank and position, then a sort of k) writes all n pairs to memory and moves them:
//! 2 to 3 ns for each key. Most keys are far from the k best, and one comparison can show that.
//!
//! # Algorithm
//!
//! ```text
//! entry(key, position) = rank(key) << 32 | position       u64 in the order of results; no two of a row are equal
//! select(row):
//!     sample √(16 n) keys: runs of 16 neighbours, one at a random place in each of √(n / 16) strata
//!     bound = the sample's entry at place mean + 3 √mean + 16, where mean = k · sample / n; at place k if that comes first
//!     for each 64 keys of the row:
//!         mask = which entries do not come after the bound                vector comparisons of ranks, 8 keys each
//!         append the entries of the mask's ones                           most masks are 0
//!     if fewer than k were found: append all instead
//!     keep the k first (select_nth_unstable), sort them                   or, from k = 512 on, radix sort
//! ```
//!
//! # Why nothing is lost
//!
//! If at least k entries do not come after the bound, the first k do not either. They were all appended, and the last
//! step drops the other appended entries. If there are fewer, which the algorithm counts, all entries are appended. So
//! only the time depends on the sample, not the result. (At place k of the sample the guess cannot fail, because k
//! entries of the row are not after it.)
//!
//! Ties cost nothing extra, since the bound is an entry and not a key: past its position, equal keys fail, and as many
//! pass as among random keys. A sample of strata is as good for sorted rows, except that whole runs are better or worse
//! than the bound; the 16 in the bound's place accounts for that. NaN has a rank like other keys.
//!
//! # Cost
//!
//! About k + 3 √(k · n / sample) + 16 n / sample entries pass; the last term is as large as the sample. The keys are
//! read once, at 0.25 ns for each key from the cache and otherwise at the rate of memory. Each key of the sample and
//! each entry that passes takes about 3 ns. If the guess fails, the cost is that of a partial sort after one useless
//! pass. No guess is made if three quarters of a row would pass, or if the row has fewer than 256 keys.
//!
//! Rows are shared out among threads; a row that is a large part of all keys is cut into pieces, filtered by one bound.
//!
//! # What makes it fast, and what lost
//!
//! 1. *Entries four at a time.* A loop over the ones of a mask mispredicts its end in nearly every block. Four entries
//!    are always written, and the surplus is overwritten: half the time at k = 100 of 128,000.
//! 2. *Prefetch* of the sample's runs and of the keys 512 ahead: 1.3 to 1.6 times as fast from memory.
//! 3. *A guess rather than a proof.* The k-th of a sample of √(k n) keys bounds the row's k-th without a check, but √(k
//!    n) entries pass: 1.8 times the time at k = 1000 of 128,000.
//! 4. *Radix sort* by 11 bits or by 8 bits is slower than a comparison sort below k = 512.

use super::{Best, Key, Rows, Selection};
use crate::parallel::{Loop, ParallelSlice};
use crate::simd::{Isa, prefetch_line};

/// Number of keys that one comparison loop tests, and that the pass can skip at once.
const BLOCK: usize = 64;
/// Number of adjacent keys that a sample takes together: reading one key of a cache line costs as much as reading all.
const RUN: usize = 16;
/// Length of the shortest row that is sampled.
const SAMPLED: usize = 256;
/// The smallest k for which entries are sorted by radix.
const RADIX: usize = 512;
/// Number of runs of a sample that are prefetched.
const RUNS_AHEAD: usize = 16;
/// Distance in keys between the keys in use and those that the pass prefetches.
const KEYS_AHEAD: usize = 512;
/// A selection from fewer keys runs on the caller's thread, because waking another thread takes as long.
const SERIAL: usize = 1 << 14;
/// Number of keys of a piece of a long row. Without pieces, one thread would still work when the others are done.
const PIECE: usize = 1 << 17;

/// Selects the best of each row into `selection`, whose slots are empty.
pub(super) fn select<K: Key>(rows: &Rows<'_, K>, best: Best, selection: &mut Selection<K>) {
    let Selection { k, keys, positions } = selection;
    let (k, count) = (*k, rows.len());
    let total = (0..count).fold(0usize, |sum, row| sum.saturating_add(rows.row(row).len()));
    if total <= SERIAL {
        let mut scratch = Scratch::default();
        for (row, slots) in keys.chunks_mut(k).zip(positions.chunks_mut(k)).enumerate() {
            select_row(rows.row(row), best, false, &mut scratch, slots);
        }
        return;
    }
    let cut = rows.columns() > total / (4 * rayon::current_num_threads());
    keys.par_chunks_mut(k)
        .zip(positions.par_chunks_mut(k))
        .enumerate()
        .with_min_len(SERIAL / (total / count).max(1))
        .for_each_init(Scratch::default, |scratch, (row, slots)| {
            select_row(rows.row(row), best, cut, scratch, slots);
        });
}

/// Rank and position as one number, which is in the order of results.
#[inline(always)]
fn entry<K: Key>(key: K, position: usize, best: Best) -> u64 {
    u64::from(key.rank(best)) << 32 | position as u64
}

/// Memory that a thread uses again for each row.
#[derive(Default)]
struct Scratch {
    /// Entries that may be among the best, in the order of positions until they are sorted.
    entries: Vec<u64>,
    /// A second array for sorting and copying entries.
    other: Vec<u64>,
}

/// Selects from one row. If `cut`, a long row is divided among threads.
fn select_row<K: Key>(
    row: &[K],
    best: Best,
    cut: bool,
    scratch: &mut Scratch,
    (keys, positions): (&mut [K], &mut [u32]),
) {
    let k = keys.len().min(row.len());
    if k == 0 {
        return;
    }
    scratch.entries.clear();
    if let Some(bound) = guess_bound(row, k, best, &mut scratch.other) {
        if cut && row.len() >= 2 * PIECE {
            let pieces = row.par_chunks(PIECE).enumerate().map(|(number, piece)| {
                let mut entries = Vec::new();
                pass(piece, number * PIECE, best, bound, &mut entries);
                entries
            });
            let pieces: Vec<Vec<u64>> = pieces.collect();
            pieces.iter().for_each(|piece| scratch.entries.extend_from_slice(piece));
        } else {
            pass(row, 0, best, bound, &mut scratch.entries);
        }
    }
    if scratch.entries.len() < k {
        scratch.entries.clear();
        scratch.entries.extend((0..).zip(row).map(|(position, &key)| entry(key, position, best)));
    }
    sort_best(k, scratch);
    for (&entry, (key, position)) in scratch.entries.iter().zip(keys.iter_mut().zip(positions)) {
        *position = entry as u32;
        *key = row[entry as u32 as usize].canonical();
    }
}

/// Keeps only the first k entries and sorts them. Before, entries are in the order of positions.
fn sort_best(k: usize, scratch: &mut Scratch) {
    let Scratch { entries, other } = scratch;
    if k < RADIX {
        if entries.len() > k {
            entries.select_nth_unstable(k - 1);
            entries.truncate(k);
        }
        entries.sort_unstable();
        return;
    }
    if entries.len() > 4 * k {
        other.clear();
        other.extend_from_slice(entries);
        let bound = *other.select_nth_unstable(k - 1).1;
        entries.retain(|&entry| entry <= bound);
    }
    sort_by_rank(entries, other);
    entries.truncate(k);
}

/// Sorts entries that are in the order of positions: a stable radix sort by rank, 11 bits at a time from the lowest,
/// without the bits that are equal in all ranks.
fn sort_by_rank(entries: &mut Vec<u64>, other: &mut Vec<u64>) {
    const DIGIT: u32 = 11;
    const VALUES: usize = 1 << DIGIT;
    let digit = |entry: u64, place: u32| (entry >> (32 + DIGIT * place)) as usize % VALUES;
    let mut counts = [[0u32; VALUES]; 3];
    for &entry in entries.iter() {
        for (place, counts) in (0..).zip(&mut counts) {
            counts[digit(entry, place)] += 1;
        }
    }
    other.clear();
    other.resize(entries.len(), 0);
    for (place, counts) in (0..).zip(&mut counts) {
        if counts[digit(entries[0], place)] as usize == entries.len() {
            continue;
        }
        let mut next = 0;
        for count in counts.iter_mut() {
            next += std::mem::replace(count, next);
        }
        for &entry in entries.iter() {
            let to = &mut counts[digit(entry, place)];
            other[*to as usize] = entry;
            *to += 1;
        }
        std::mem::swap(entries, other);
    }
}

/// Guesses a bound: an entry such that probably at least k entries of the row do not come after it, and not many more.
/// None if a sample would not save time.
fn guess_bound<K: Key>(row: &[K], k: usize, best: Best, sample: &mut Vec<u64>) -> Option<u64> {
    let len = row.len();
    if len < SAMPLED {
        return None;
    }
    let runs = (len / RUN).isqrt();
    let count = runs * RUN;
    // The sample has about `mean` of the k best entries; in a sorted row, up to one run more or fewer.
    let mean = k as f64 * count as f64 / len as f64;
    let nth = ((mean + 3.0 * mean.sqrt()) as usize + RUN).min(k);
    if nth > count / 4 * 3 {
        return None;
    }
    // Each run has a pseudo-random place in its stratum: the high half of the product with 2^64 divided by the golden
    // ratio.
    let start = |stratum: usize| {
        let start = len * stratum / runs;
        let room = len * (stratum + 1) / runs - start - RUN + 1;
        let hash = (stratum as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        start + ((hash * room as u64) >> 32) as usize
    };
    sample.clear();
    for stratum in 0..runs {
        prefetch_line(row.as_ptr().wrapping_add(start(stratum + RUNS_AHEAD)));
        let start = start(stratum);
        sample.extend((start..).zip(&row[start..start + RUN]).map(|(at, &key)| entry(key, at, best)));
    }
    Some(*sample.select_nth_unstable(nth - 1).1)
}

/// Appends the entries of `keys` (the first at position `first` of the row) that do not come after `bound`, by
/// position.
fn pass<K: Key>(keys: &[K], first: usize, best: Best, bound: u64, entries: &mut Vec<u64>) {
    match Isa::detect() {
        // SAFETY: a processor with one of these sets has AVX2.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 | Isa::Avx2 => unsafe { pass_avx2(keys, first, best, bound, entries) },
        Isa::Portable => pass_blocks(keys, first, best, bound, entries),
    }
}

/// [`pass_blocks`], compiled for AVX2.
///
/// # Safety
/// The processor has AVX2.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn pass_avx2<K: Key>(keys: &[K], first: usize, best: Best, bound: u64, entries: &mut Vec<u64>) {
    pass_blocks(keys, first, best, bound, entries);
}

#[inline(always)]
fn pass_blocks<K: Key>(keys: &[K], first: usize, best: Best, bound: u64, entries: &mut Vec<u64>) {
    let mut len = entries.len();
    let (blocks, rest) = keys.as_chunks::<BLOCK>();
    for (block, position) in blocks.iter().zip((first..).step_by(BLOCK)) {
        for line in (0..BLOCK).step_by(64 / size_of::<K>()) {
            prefetch_line(block.as_ptr().wrapping_add(KEYS_AHEAD + line));
        }
        let mut passes = mask(block, position, bound, best);
        if passes == 0 {
            continue;
        }
        if entries.len() < len + 2 * BLOCK {
            entries.resize(2 * len + 2 * BLOCK, 0);
        }
        let mut to = len;
        len += passes.count_ones() as usize;
        // Always writes four entries, even if there are fewer: their number is hard to predict, but it is nearly always
        // at most four.
        while passes != 0 {
            for slot in &mut entries[to..to + 4] {
                let at = passes.trailing_zeros() as usize % BLOCK;
                *slot = entry(block[at], position + at, best);
                passes &= passes.wrapping_sub(1);
            }
            to += 4;
        }
    }
    entries.truncate(len);
    let rest = (first + keys.len() - rest.len()..).zip(rest).map(|(at, &key)| entry(key, at, best));
    entries.extend(rest.filter(|&entry| entry <= bound));
}

/// A bit set: bit i is 1 if key i, at position `first` + i, does not come after `bound`.
#[inline(always)]
fn mask<K: Key>(block: &[K; BLOCK], first: usize, bound: u64, best: Best) -> u64 {
    let (rank, position) = ((bound >> 32) as u32, bound as u32 as usize);
    if first > position {
        // Of keys equal to the bound, only those at earlier positions come before it.
        return rank.checked_sub(1).map_or(0, |limit| mask_by_rank(block, limit, best));
    }
    let passes = mask_by_rank(block, rank, best);
    if passes == 0 || first + BLOCK - 1 <= position {
        return passes;
    }
    let equal_pass = (2 << (position - first)) - 1;
    passes & (equal_pass | rank.checked_sub(1).map_or(0, |limit| mask_by_rank(block, limit, best)))
}

/// A bit set: bit i is 1 if the rank of key i is at most `limit`.
#[inline(always)]
fn mask_by_rank<K: Key>(block: &[K; BLOCK], limit: u32, best: Best) -> u64 {
    let mut flags = [0u8; BLOCK];
    for (flag, key) in flags.iter_mut().zip(block) {
        *flag = u8::from(key.rank(best) <= limit);
    }
    let (words, _) = flags.as_chunks::<8>();
    if words.iter().fold(0, |any, &word| any | u64::from_le_bytes(word)) == 0 {
        return 0;
    }
    // The product moves the lowest bit of byte i of a word to bit 56 + i.
    words
        .iter()
        .zip((0..).step_by(8))
        .fold(0, |mask, (&word, at)| mask | (u64::from_le_bytes(word).wrapping_mul(0x0102_0408_1020_4080) >> 56) << at)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Device;
    use crate::select::{NO_POSITION, select_k};

    /// Positions of the `k` best by sorting all.
    fn sorted(row: &[u32], k: usize, best: Best) -> Vec<u32> {
        let mut order: Vec<u32> = (0..row.len() as u32).collect();
        order.sort_by_key(|&at| if best == Best::Smallest { row[at as usize] } else { !row[at as usize] });
        order.resize(k, NO_POSITION);
        order
    }

    #[test]
    fn both_passes_find_what_does_not_come_after_the_bound() {
        let keys: Vec<u32> = (0..500u32).map(|at| at.wrapping_mul(2_654_435_761) >> 29).collect();
        for best in [Best::Smallest, Best::Largest] {
            for first in [0, 77] {
                let all: Vec<u64> = (first..).zip(&keys).map(|(at, &key)| entry(key, at, best)).collect();
                let ends = [0, u64::MAX, u64::from(u32::MAX)];
                for bound in all.iter().flat_map(|&entry| [entry.saturating_sub(1), entry, entry + 1]).chain(ends) {
                    let expected: Vec<u64> = all.iter().copied().filter(|&entry| entry <= bound).collect();
                    for pass in [pass::<u32>, pass_blocks::<u32>] {
                        // Existing entries stay.
                        let mut found = vec![7];
                        pass(&keys, first, best, bound, &mut found);
                        assert_eq!((found[0], &found[1..]), (7, expected.as_slice()), "{best:?} {first} {bound:#x}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_guess_that_fails_loses_nothing() {
        const LEN: usize = 1000;
        const K: usize = 200;
        let mut scratch = Vec::new();
        // A key is in the sample if the bound of k = 1 finds it.
        let sampled: Vec<usize> = (0..LEN)
            .filter(|&at| {
                let mut row = vec![1u32; LEN];
                row[at] = 0;
                guess_bound(&row, 1, Best::Smallest, &mut scratch) == Some(at as u64)
            })
            .collect();
        assert!((K / 3..K).contains(&sampled.len()), "{}", sampled.len());
        // The sample is better than all other keys, so its bound passes too few.
        let row: Vec<u32> =
            (0..LEN).map(|at| if sampled.contains(&at) { 0 } else { (at * 7919 % LEN) as u32 + 1 }).collect();
        let bound = guess_bound(&row, K, Best::Smallest, &mut scratch).unwrap();
        let mut entries = Vec::new();
        pass(&row, 0, Best::Smallest, bound, &mut entries);
        assert!(entries.len() < K, "{}", entries.len());
        let found = select_k(Device::Cpu, &Rows::contiguous(&row, LEN).unwrap(), K, Best::Smallest).unwrap();
        assert_eq!(found.positions, sorted(&row, K, Best::Smallest));
    }

    /// One row that is long enough to be cut, and short rows that are not.
    #[test]
    fn pieces_of_a_row_are_put_together() {
        let keys: Vec<u32> = (0..3 * PIECE as u32 + 77).map(|at| at.wrapping_mul(2_654_435_761) >> 8).collect();
        let starts = [0, 10, 10 + 3 * PIECE as u64, keys.len() as u64];
        let rows = Rows::ragged(&keys, &starts).unwrap();
        for best in [Best::Smallest, Best::Largest] {
            for k in [1, 100, 5000] {
                let found = select_k(Device::Cpu, &rows, k, best).unwrap();
                for row in 0..3 {
                    assert_eq!(found.positions[row * k..][..k], sorted(rows.row(row), k, best), "{best:?} {k} {row}");
                }
            }
        }
    }
}
