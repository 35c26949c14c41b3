//! Sorting pairs: every kind of key, lengths around a tile of the GPU's, parts of the bits, against the standard
//! library's stable sort.

use std::ops::Range;

use warpann::sort::{Key, sort_pairs, sort_pairs_by_bits};
use warpann::{Device, Error};
use warpann_kernels::sort::radix_sort::SortKey;

use crate::data::Random;
use crate::runner::{Outcome, text};
use crate::scenarios::{Scenario, by_device};

/// Every scenario. Each chooses sizes that suit the device.
pub const ALL: &[Scenario] = &[
    ("sort::lengths_around_a_tile_u64", lengths::<u64>),
    ("sort::lengths_around_a_tile_u128", lengths::<u128>),
    ("sort::kinds_of_keys_u64", kinds::<u64>),
    ("sort::kinds_of_keys_u128", kinds::<u128>),
    ("sort::parts_of_the_bits_u64", parts_of_the_bits::<u64>),
    ("sort::parts_of_the_bits_u128", parts_of_the_bits::<u128>),
    ("sort::many_tiles_u64", many_tiles::<u64>),
    ("sort::many_tiles_u128", many_tiles::<u128>),
    ("sort::bad_arguments_are_refused", bad_arguments),
];

/// A key type of the tests.
pub trait TestKey: Key + SortKey {
    /// The lowest bits of `bits`.
    fn of(bits: u128) -> Self;
    /// The key as a number.
    fn number(self) -> u128;
}

impl TestKey for u64 {
    fn of(bits: u128) -> Self {
        bits as u64
    }
    fn number(self) -> u128 {
        u128::from(self)
    }
}

impl TestKey for u128 {
    fn of(bits: u128) -> Self {
        bits
    }
    fn number(self) -> u128 {
        self
    }
}

/// The distribution of keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Every bit of the keys is random.
    Random,
    /// All keys are equal.
    AllEqual,
    /// All bits of the keys are ones, as in the keys with which the device fills a tile.
    AllOnes,
    /// Keys ascend, and each occurs twice.
    Sorted,
    /// Keys descend, without repetition.
    Reversed,
    /// Random in the highest seven bits, the others zero.
    HighBits,
    /// Random in the lowest three bits, the others one.
    LowBits,
    /// Nearly all equal, a few anything.
    Rare,
}

/// All kinds of keys.
pub const KINDS: [Kind; 8] = [
    Kind::Random,
    Kind::AllEqual,
    Kind::AllOnes,
    Kind::Sorted,
    Kind::Reversed,
    Kind::HighBits,
    Kind::LowBits,
    Kind::Rare,
];

/// `len` keys of a kind.
pub fn keys<K: TestKey>(kind: Kind, len: usize, seed: u64) -> Vec<K> {
    let mut random = Random::new(seed);
    let mut any = || u128::from(random.bits()) << 64 | u128::from(random.bits());
    let spread = (1u128 << (<K as Key>::BITS - 1)) / (len as u128 + 1);
    let key = |at: usize| match kind {
        Kind::Random => any(),
        Kind::AllEqual => 0x0123_4567_89AB_CDEF << 60 | 0x0FED_CBA9_8765_4321,
        Kind::AllOnes => u128::MAX,
        Kind::Sorted => (at / 2) as u128 * spread,
        Kind::Reversed => (len - at) as u128 * spread,
        Kind::HighBits => any() << (<K as Key>::BITS - 7),
        Kind::LowBits => any() | !7,
        Kind::Rare => match any() {
            bits if bits % 100 == 0 => bits,
            _ => 1 << 50,
        },
    };
    (0..len).map(key).map(K::of).collect()
}

/// The bits `bits` of a key.
pub fn field<K: TestKey>(key: K, bits: &Range<u32>) -> u128 {
    let len = bits.end - bits.start;
    let shifted = key.number().checked_shr(bits.start).unwrap_or(0);
    if len == 128 { shifted } else { shifted % (1 << len) }
}

/// Sorts `keys` on `device` and compares with a stable sort; payloads distinguish equal keys.
///
/// # Errors
/// The first difference, in words.
pub fn check<K: TestKey>(device: Device, case: &str, keys: &[K], bits: Range<u32>) -> Outcome {
    let mut random = Random::new(keys.len() as u64);
    let payloads: Vec<u32> = keys.iter().map(|_| random.bits() as u32).collect();
    let mut expected: Vec<(K, u32)> = keys.iter().copied().zip(payloads.iter().copied()).collect();
    expected.sort_by_key(|&(key, _)| field(key, &bits));
    let (mut found, mut along) = (keys.to_vec(), payloads);
    let sorted = if bits == (0..<K as Key>::BITS) {
        sort_pairs(device, &mut found, &mut along)
    } else {
        sort_pairs_by_bits(device, &mut found, &mut along, bits.clone())
    };
    sorted.map_err(text)?;
    let found: Vec<(K, u32)> = found.into_iter().zip(along).collect();
    match (0..keys.len()).find(|&place| expected[place] != found[place]) {
        None => Ok(()),
        Some(place) => Err(format!(
            "{case}: {} keys by bits {bits:?}: place {place} holds {:x?}, expected {:x?}",
            keys.len(),
            found[place],
            expected[place]
        )),
    }
}

fn lengths<K: TestKey>(device: Device) -> Outcome {
    let tile = K::TILE as usize;
    let few = [0, 1, 2, 31, 33, tile - 1, tile, tile + 1, 2 * tile + 37];
    let more = [1000, 2 * tile - 1, 2 * tile, 100 * tile, 100 * tile + 1];
    for len in few.into_iter().chain(more.into_iter().take(by_device(device, 0, more.len()))) {
        // Two passes show where pairs go as well as eight do.
        let bits = if device == Device::Emulator { 9..23 } else { 0..<K as Key>::BITS };
        check(device, "random", &keys::<K>(Kind::Random, len, len as u64), bits)?;
    }
    Ok(())
}

fn kinds<K: TestKey>(device: Device) -> Outcome {
    let tile = K::TILE as usize;
    for kind in KINDS {
        let len = by_device(device, tile / 3, 37 * tile + 1001);
        check(device, &format!("{kind:?}"), &keys::<K>(kind, len, 5), 0..<K as Key>::BITS)?;
    }
    Ok(())
}

fn parts_of_the_bits<K: TestKey>(device: Device) -> Outcome {
    let all = <K as Key>::BITS;
    let parts = [
        0..0,
        0..1,
        0..8,
        7..9,
        3..20,
        all - 1..all,
        all - 9..all - 1,
        all / 2 - 5..all / 2 + 5,
        0..all - 1,
        0..all - 2,
    ];
    for bits in parts {
        let len = by_device(device, 700, 20_000);
        check(device, "random", &keys::<K>(Kind::Random, len, 11), bits)?;
    }
    Ok(())
}

/// More tiles than run at once, or at least several that wait for each other.
fn many_tiles<K: TestKey>(device: Device) -> Outcome {
    let tile = K::TILE as usize;
    let len = by_device(device, 7 * tile + 5, 1500 * tile + 5);
    let bits = if device == Device::Emulator { 0..12 } else { 0..<K as Key>::BITS - 1 };
    for kind in [Kind::Random, Kind::Rare] {
        check(device, &format!("{kind:?}"), &keys::<K>(kind, len, 3), bits.clone())?;
    }
    Ok(())
}

fn bad_arguments(device: Device) -> Outcome {
    let mut keys = [3u64, 1, 2];
    let mut payloads = [0, 1];
    match sort_pairs(device, &mut keys, &mut payloads) {
        Err(Error::WrongLength { what: "payloads", expected: 3, actual: 2 }) => {}
        other => return Err(format!("three keys, two payloads: {other:?}")),
    }
    match sort_pairs_by_bits(device, &mut keys, &mut [0; 3], 60..65) {
        Err(Error::OutOfRange { what: "end of the bits", value: 65, least: 60, most: 64 }) => {}
        other => return Err(format!("bits 60..65 of a u64: {other:?}")),
    }
    if keys == [3, 1, 2] { Ok(()) } else { Err(format!("refused, and yet changed: {keys:?}")) }
}
