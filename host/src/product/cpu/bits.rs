//! The numbers of bits in which a query and rows differ (Hamming distances), counted exactly.
//!
//! With AVX-512's population counts, eight rows are compared with 64 bytes of the query at a time, and eight sums of
//! eight lanes are added up together. Other processors count words of 64 bits.

use super::panels::Survivors;

/// The instructions that count bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BitCount {
    /// AVX-512 with VPOPCNTDQ: 512 bits at a time.
    #[cfg(target_arch = "x86_64")]
    Vectors,
    /// POPCNT: 64 bits at a time.
    #[cfg(target_arch = "x86_64")]
    Words,
    /// Words of 64 bits in plain Rust.
    Portable,
}

impl BitCount {
    /// The fastest instructions of this processor.
    pub(crate) fn detect() -> BitCount {
        #[cfg(target_arch = "x86_64")]
        {
            if is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512vpopcntdq") {
                return BitCount::Vectors;
            }
            if is_x86_feature_detected!("popcnt") {
                return BitCount::Words;
            }
        }
        BitCount::Portable
    }

    /// All instructions of this processor, for tests.
    #[cfg(test)]
    pub(crate) fn all() -> Vec<BitCount> {
        #[cfg(target_arch = "x86_64")]
        match BitCount::detect() {
            BitCount::Vectors => return vec![BitCount::Vectors, BitCount::Words, BitCount::Portable],
            BitCount::Words => return vec![BitCount::Words, BitCount::Portable],
            BitCount::Portable => {}
        }
        vec![BitCount::Portable]
    }

    /// Stores the number of bits in which `query` and each of `rows` differ. `rows` has a row of the length of the
    /// query for each place of `to`. O(rows).
    pub(crate) fn differences(self, query: &[u8], rows: &[u8], to: &mut [u64]) {
        assert_eq!(rows.len(), query.len() * to.len(), "a row a place");
        match self {
            // SAFETY: `detect` found the instructions; the lengths were compared above.
            #[cfg(target_arch = "x86_64")]
            BitCount::Vectors => unsafe { vectors::differences(query, rows, to) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            BitCount::Words => unsafe { words(query, rows, to) },
            BitCount::Portable => by_words(query, rows, to),
        }
    }

    /// The number of bits in which two slices of one length differ.
    pub(crate) fn difference(self, x: &[u8], y: &[u8]) -> u64 {
        let mut count = [0];
        self.differences(x, y, &mut count);
        count[0]
    }
}

/// Gives the rows of a tile whose distance from a query passes its threshold to `to`. The first row has the id `first`.
pub(crate) fn offer(query: usize, distances: &[u64], first: u32, to: &mut impl Survivors) {
    let (mut threshold, error) = to.threshold(query);
    for (id, &distance) in (first..).zip(distances) {
        let distance = distance as f32;
        if distance <= threshold
            && to.accepts(id)
            && let Some(lower) = to.take(query, id, distance, error)
        {
            threshold = lower;
        }
    }
}

/// # Safety
/// The processor has POPCNT.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "popcnt")]
unsafe fn words(query: &[u8], rows: &[u8], to: &mut [u64]) {
    by_words(query, rows, to);
}

#[inline(always)]
fn by_words(query: &[u8], rows: &[u8], to: &mut [u64]) {
    let (of_query, rest_of_query) = query.as_chunks::<8>();
    for (to, row) in to.iter_mut().zip(rows.chunks_exact(query.len().max(1))) {
        let (of_row, rest_of_row) = row.as_chunks::<8>();
        let whole = of_query.iter().zip(of_row).map(|(&x, &y)| {
            let differing = u64::from_le_bytes(x) ^ u64::from_le_bytes(y);
            u64::from(differing.count_ones())
        });
        let rest = rest_of_query.iter().zip(rest_of_row).map(|(x, y)| u64::from((x ^ y).count_ones()));
        *to = whole.sum::<u64>() + rest.sum::<u64>();
    }
}

#[cfg(target_arch = "x86_64")]
mod vectors {
    use std::arch::x86_64::*;

    /// Number of rows whose sums are added up together.
    const ROWS: usize = 8;

    /// # Safety
    /// The processor has AVX-512F and VPOPCNTDQ; `rows` has a row of the length of the query for each place of `to`.
    #[target_feature(enable = "avx512f,avx512vpopcntdq")]
    pub(super) unsafe fn differences(query: &[u8], rows: &[u8], to: &mut [u64]) {
        let (dim, whole) = (query.len(), query.len() / 64 * 64);
        for (at, to) in to.chunks_mut(ROWS).enumerate() {
            // After the last row that row is counted again, and not stored.
            let row = |r: usize| rows.as_ptr().wrapping_add((at * ROWS + r.min(to.len() - 1)) * dim);
            let rows: [*const u8; ROWS] = std::array::from_fn(row);
            let mut sums = [_mm512_setzero_si512(); ROWS];
            for first in (0..whole).step_by(64) {
                // SAFETY: the query and the rows have 64 bytes from `first` on.
                unsafe {
                    let x = _mm512_loadu_si512(query.as_ptr().add(first).cast());
                    for (sum, row) in sums.iter_mut().zip(rows) {
                        let y = _mm512_loadu_si512(row.add(first).cast());
                        *sum = _mm512_add_epi64(*sum, _mm512_popcnt_epi64(_mm512_xor_si512(x, y)));
                    }
                }
            }
            if whole < dim {
                let rest = |from: *const u8| {
                    let mut bytes = [0u8; 64];
                    // SAFETY: the query and the rows have `dim` bytes.
                    unsafe {
                        std::ptr::copy_nonoverlapping(from.add(whole), bytes.as_mut_ptr(), dim - whole);
                        _mm512_loadu_si512(bytes.as_ptr().cast())
                    }
                };
                let x = rest(query.as_ptr());
                for (sum, row) in sums.iter_mut().zip(rows) {
                    *sum = _mm512_add_epi64(*sum, _mm512_popcnt_epi64(_mm512_xor_si512(x, rest(row))));
                }
            }
            let mut found = [0u64; ROWS];
            // SAFETY: there is room for eight numbers.
            unsafe { _mm512_storeu_si512(found.as_mut_ptr().cast(), totals(sums)) };
            to.copy_from_slice(&found[..to.len()]);
        }
    }

    /// The sum of the lanes of each register.
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn totals([a, b, c, d, e, f, g, h]: [__m512i; ROWS]) -> __m512i {
        let pairs = |a, b| _mm512_add_epi64(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b));
        let halves = |a, b| {
            let (first, second) =
                (_mm512_shuffle_i64x2::<0b10_00_10_00>(a, b), _mm512_shuffle_i64x2::<0b11_01_11_01>(a, b));
            _mm512_add_epi64(first, second)
        };
        halves(halves(pairs(a, b), pairs(c, d)), halves(pairs(e, f), pairs(g, h)))
    }
}

#[cfg(test)]
mod tests {
    use test_random::Random;

    use super::*;

    #[test]
    fn every_instruction_counts_as_a_loop_over_bits() {
        let mut random = Random::new(1);
        for dim in (1..=140).chain([191, 192, 193, 255, 256, 300, 1024]) {
            for count in [1, 2, 7, 8, 9, 20] {
                let bytes = |random: &mut Random, len: usize| -> Vec<u8> {
                    let byte = |_| {
                        let any = random.below(256) as u8;
                        random.pick(&[0, 255, 1, any, any])
                    };
                    (0..len).map(byte).collect()
                };
                let (query, rows) = (bytes(&mut random, dim), bytes(&mut random, dim * count));
                let bit = |row: &[u8], at: usize| row[at / 8] >> (at % 8) & 1;
                let apart = |row: &[u8]| (0..8 * dim).filter(|&at| bit(row, at) != bit(&query, at)).count() as u64;
                let expected: Vec<u64> = rows.chunks(dim).map(apart).collect();
                for by in BitCount::all() {
                    let mut found = vec![7; count];
                    by.differences(&query, &rows, &mut found);
                    assert_eq!(found, expected, "{by:?}, {dim} bytes, {count} rows");
                }
            }
        }
    }
}
