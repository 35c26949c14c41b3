//! Sorts on the emulator that only the device interface has: several sets at once, several portions.

use test_random::Random;

use super::*;
use crate::device::runtime::Runtime;

/// Random number `at`, of 128 bits.
fn noise(at: usize) -> u128 {
    let half = |n: u64| u128::from(Random::nth(0, n));
    half(2 * at as u64) << 64 | half(2 * at as u64 + 1)
}

/// Sorts `sets` sets of `len` keys by `bits`, in portions of `portion` tiles, and compares with the standard library's
/// stable sort.
fn check<K: DeviceKey + Ord + std::fmt::Debug>(
    len: usize,
    sets: usize,
    bits: Range<u32>,
    portion: u32,
    key: fn(u128) -> K,
    field: fn(K, &Range<u32>) -> u128,
) {
    let runtime = Runtime::EMULATOR;
    let keys: Vec<K> = (0..len * sets).map(|at| key(noise(at))).collect();
    let payloads: Vec<u32> = (0..(len * sets) as u32).collect();
    let mut layout = Layout::default();
    let at = [(); 2].map(|()| (layout.array::<K>(keys.len()), layout.array::<u32>(keys.len())));
    let plan =
        SortPlan::in_portions::<K>(&mut layout, len as u32, sets as u32, bits.clone(), runtime.limits(), portion);
    let memory = runtime.allocate(layout.bytes()).unwrap();
    let stream = runtime.stream().unwrap();
    let scratch = runtime.scratch(&memory);
    let [pairs, spare] = at.map(|(keys, payloads)| Pairs { keys: scratch.at(keys), payloads: scratch.at(payloads) });
    let (mut sorted, mut order) = (keys.clone(), payloads.clone());
    // SAFETY: the layout reserved every array.
    unsafe {
        runtime.copy_to_device(&stream, pairs.keys, &keys).unwrap();
        runtime.copy_to_device(&stream, pairs.payloads, &payloads).unwrap();
        let found = enqueue(&OnStream { runtime: &runtime, stream: &stream }, &plan, pairs, spare, scratch).unwrap();
        assert_eq!(found.keys.addr() == spare.keys.addr(), plan.ends_in_spare());
        runtime.copy_to_host(&stream, &mut sorted, found.keys).unwrap();
        runtime.copy_to_host(&stream, &mut order, found.payloads).unwrap();
    }
    for set in 0..sets {
        let range = set * len..(set + 1) * len;
        let mut expected: Vec<(K, u32)> =
            keys[range.clone()].iter().copied().zip(payloads[range.clone()].iter().copied()).collect();
        expected.sort_by_key(|&(key, _)| field(key, &bits));
        let found: Vec<(K, u32)> = sorted[range.clone()].iter().copied().zip(order[range].iter().copied()).collect();
        let first = (0..len).find(|&place| expected[place] != found[place]);
        assert_eq!(
            first,
            None,
            "set {set} of {sets}, {len} keys, bits {bits:?}: {:?}",
            first.map(|at| (expected[at], found[at]))
        );
    }
}

fn field_of_u64(key: u64, bits: &Range<u32>) -> u128 {
    (u128::from(key) % (1 << bits.end)) >> bits.start
}

#[test]
fn several_sets_of_several_portions() {
    let tile = <u64 as SortKey>::TILE as usize;
    // Two tiles a portion, the last one cut off; one pass, and two.
    check::<u64>(4 * tile + 1000, 2, 3..10, 2, |noise| noise as u64, field_of_u64);
    check::<u64>(2 * tile, 3, 0..16, 1, |noise| noise as u64, field_of_u64);
    let tile = <u128 as SortKey>::TILE as usize;
    // Digits on both sides of the border between the words.
    let field = |key: u128, bits: &Range<u32>| key >> bits.start & ((1 << (bits.end - bits.start)) - 1);
    check::<u128>(2 * tile + 7, 2, 60..74, 2, |noise| noise, field);
}

#[test]
fn passes_cover_the_bits_and_no_more() {
    let passes = |words: u32, bits: Range<u32>| {
        let (mut layout, limits) = (Layout::default(), Runtime::EMULATOR.limits());
        let plan = match words {
            1 => SortPlan::new::<u64>(&mut layout, 100, 1, bits, limits),
            _ => SortPlan::new::<u128>(&mut layout, 100, 1, bits, limits),
        };
        plan.passes.iter().map(|pass| (pass.digit, pass.high, pass.shift, pass.mask)).collect::<Vec<_>>()
    };
    assert_eq!(passes(1, 0..63).len(), 8);
    assert_eq!(passes(1, 0..63)[7], (7, false, 56, 127));
    assert_eq!(passes(1, 5..14), [(0, false, 5, 255), (1, false, 13, 1)]);
    assert_eq!(passes(1, 64..64), []);
    assert_eq!(passes(2, 0..126).len(), 16);
    assert_eq!(passes(2, 60..74), [(0, false, 60, 15), (8, true, 0, 255), (9, true, 8, 3)]);
    assert_eq!(passes(2, 100..101), [(8, true, 36, 1)]);
}
