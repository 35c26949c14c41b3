//! Radix sort: all passes, against the standard library's stable sort.
//!
//! No result tells the first values of `look_back`'s window: all of them are overwritten.

use cuda_std::emulator::Buffer;
use cuda_std::launch::Kernel;
use test_random::Random;
use warpann_kernels::sort::radix_sort::{CountDigits, DIGITS, ScanDigits, SortKey, SortPass, WORD_DIGITS};

/// Sorts `sets` sets of `len` keys by the digits of the bits that `low` and `high` select in the words of a key, each
/// as shift and number
/// of bits, in portions of `portion` tiles. Compares keys and payloads.
fn check<K: SortKey + Ord + std::fmt::Debug + bytemuck::Pod>(
    count: &Kernel<CountDigits<K>>,
    pass: &Kernel<SortPass<K>>,
    keys: &[K],
    sets: usize,
    fields: [(u32, u32); 2],
    portion: u32,
) {
    let len = keys.len() / sets;
    let mask = |bits: u32| if bits == 64 { u64::MAX } else { (1 << bits) - 1 };
    let digits = K::WORDS * WORD_DIGITS;
    let tiles = (len as u32).div_ceil(K::TILE);
    let portions = tiles.div_ceil(portion);
    let mut counts = Buffer::<u32>::new(sets * (digits * DIGITS) as usize);
    let rows = portions + 1;
    let starts_stride = digits * rows * DIGITS;
    let mut starts = Buffer::<u32>::new_poisoned(sets * starts_stride as usize);
    let mut words = Buffer::<u32>::from_slice(&vec![u32::MAX; sets * (tiles * DIGITS) as usize]);
    let payloads: Vec<u32> = (0..keys.len() as u32).map(|payload| payload ^ 0x55).collect();
    let mut from = (Buffer::from_slice(keys), Buffer::from_slice(&payloads));
    let mut to = (Buffer::<K>::new_poisoned(keys.len()), Buffer::<u32>::new_poisoned(keys.len()));
    let launch = CountDigits {
        keys: from.0.as_ptr(),
        len: len as u32,
        low_shift: fields[0].0,
        low_mask: mask(fields[0].1),
        high_shift: fields[1].0,
        high_mask: mask(fields[1].1),
        counts: counts.as_mut_ptr(),
    };
    // SAFETY: the counts of each digit of each set are zero, and shifts are below 64.
    unsafe { crate::launch(count, launch.config(3, sets as u32), launch) };
    let launch = ScanDigits { counts: counts.as_ptr(), portions, starts: starts.as_mut_ptr() };
    // SAFETY: there are portions + 1 rows of starts for each digit of each set.
    unsafe { crate::launch(&ScanDigits::KERNEL, launch.config(digits, sets as u32), launch) };
    let mut number = 0;
    for (word, (shift, bits)) in fields.into_iter().take(K::WORDS as usize).enumerate() {
        for digit in 0..bits.div_ceil(8) {
            for turn in 0..portions {
                let mut next_tile = Buffer::<u32>::new(sets);
                let first_tile = turn * portion;
                let row = (word as u32 * WORD_DIGITS + digit) * rows + turn;
                let launch = SortPass {
                    keys: from.0.as_ptr(),
                    payloads: from.1.as_ptr(),
                    keys_out: to.0.as_mut_ptr(),
                    payloads_out: to.1.as_mut_ptr(),
                    len: len as u32,
                    high: word as u32,
                    shift: shift + 8 * digit,
                    mask: (mask(bits) >> (8 * digit)) as u32 & 0xff,
                    epoch: number % 2,
                    first_tile,
                    tiles,
                    starts: starts.as_mut_ptr().skip((row * DIGITS) as usize),
                    starts_stride,
                    words: words.as_mut_ptr(),
                    next_tile: next_tile.as_mut_ptr(),
                };
                let config = launch.config(portion.min(tiles - first_tile), sets as u32);
                // SAFETY: the starts are those of the keys, portions run in order, and no tile was taken.
                unsafe { crate::launch(pass, config, launch) };
            }
            std::mem::swap(&mut from, &mut to);
            number += 1;
        }
    }
    let field = |key: K| {
        let part = |word: usize| u128::from(key.word(word == 1) >> fields[word].0 & mask(fields[word].1));
        part(0) | if K::WORDS == 2 { part(1) << 64 } else { 0 }
    };
    let (found_keys, found_payloads) = (from.0.to_vec(), from.1.to_vec());
    for set in 0..sets {
        let at = set * len..(set + 1) * len;
        let mut expected: Vec<(K, u32)> = keys[at.clone()].iter().copied().zip(payloads[at.clone()].to_vec()).collect();
        expected.sort_by_key(|&(key, _)| field(key));
        let found: Vec<(K, u32)> = found_keys[at.clone()].iter().copied().zip(found_payloads[at].to_vec()).collect();
        assert!(found == expected, "{len} keys, set {set} of {sets}, {fields:?}, portions of {portion} tiles");
    }
}

#[test]
fn pairs_are_sorted_and_equal_ones_keep_their_order() {
    let mut random = Random::new(41);
    let of_u64 = (&CountDigits::<u64>::KERNEL, &SortPass::<u64>::KERNEL);
    for (len, sets, low, portion) in
        [(1, 1, (0, 8), 1), (33, 2, (3, 12), 4), (4096, 1, (60, 4), 1), (4097, 2, (5, 9), 9), (13_000, 1, (8, 16), 2)]
    {
        let keys: Vec<u64> = (0..len * sets).map(|_| random.bits()).collect();
        check(of_u64.0, of_u64.1, &keys, sets, [low, (0, 0)], portion);
    }
    // All bits, and keys of all ones: these also fill the last tile.
    let keys: Vec<u64> = (0..500).map(|_| if random.once_in(3) { u64::MAX } else { random.bits() }).collect();
    check(of_u64.0, of_u64.1, &keys, 1, [(0, 64), (0, 0)], 1);
    let of_u128 = (&CountDigits::<u128>::KERNEL, &SortPass::<u128>::KERNEL);
    for (len, low, high, portion) in [(2, (0, 64), (0, 3), 1), (3073, (56, 8), (1, 9), 1), (7000, (0, 0), (50, 14), 2)]
    {
        let key = |random: &mut Random| u128::from(random.bits()) << 64 | u128::from(random.bits());
        let keys: Vec<u128> = (0..len).map(|_| key(&mut random)).collect();
        check(of_u128.0, of_u128.1, &keys, 1, [low, high], portion);
    }
}

/// One value of the digit has all keys of a tile, and others have none.
#[test]
fn few_values_are_sorted() {
    let mut random = Random::new(42);
    for distinct in [1, 2, 256] {
        let keys: Vec<u64> = (0..9000).map(|_| random.below(distinct) as u64).collect();
        check(&CountDigits::<u64>::KERNEL, &SortPass::<u64>::KERNEL, &keys, 1, [(0, 8), (0, 0)], 1);
    }
}
