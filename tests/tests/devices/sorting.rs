//! The GPU's sort on the emulator, on anything: sorted, stable, complete.

use proptest::prelude::*;
use warpann::Device;
use warpann::sort::{Key, sort_pairs_by_bits};
use warpann_kernels::sort::radix_sort::SortKey;
use warpann_tests::sort::{KINDS, TestKey, field, keys};

/// Sorts pairs of any keys with any payloads by any bits.
fn check<K: TestKey>(
    (kind, len, seed): (usize, usize, u64),
    payload_values: u32,
    bits: (u32, u32),
) -> Result<(), TestCaseError> {
    let bits = bits.0.min(bits.1)..bits.0.max(bits.1);
    let keys = keys::<K>(KINDS[kind], len, seed);
    let payloads: Vec<u32> = (0..len as u32).map(|at| at.wrapping_mul(0x9E37_79B9) % payload_values).collect();
    let (mut sorted, mut along) = (keys.clone(), payloads.clone());
    sort_pairs_by_bits(Device::Emulator, &mut sorted, &mut along, bits.clone()).unwrap();
    let before: Vec<(K, u32)> = keys.into_iter().zip(payloads).collect();
    let after: Vec<(K, u32)> = sorted.into_iter().zip(along).collect();
    prop_assert!(after.is_sorted_by_key(|&(key, _)| field(key, &bits)), "not sorted by {bits:?}");
    let multiset = |pairs: &[(K, u32)]| {
        let mut pairs = pairs.to_vec();
        pairs.sort_unstable();
        pairs
    };
    prop_assert!(multiset(&before) == multiset(&after), "pairs lost, or made");
    let mut stable = before;
    stable.sort_by_key(|&(key, _)| field(key, &bits));
    prop_assert!(stable == after, "not stable");
    Ok(())
}

fn shape(tile: u32) -> impl Strategy<Value = (usize, usize, u64)> {
    (0..KINDS.len(), 0..2 * tile as usize + 10, any::<u64>())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn sorts_u64(shape in shape(u64::TILE), payloads in 1u32.., bits in (0..=64u32, 0..=64u32)) {
        check::<u64>(shape, payloads, bits)?;
    }

    #[test]
    fn sorts_u128(shape in shape(u128::TILE), payloads in 1u32.., bits in (0..=<u128 as Key>::BITS, 0..=<u128 as Key>::BITS)) {
        check::<u128>(shape, payloads, bits)?;
    }
}
