//! Sorting pairs: what a stable sort of the standard library gives, by any bits of any keys.

use warpann::Device;
use warpann::sort::Key;

use super::work;
use crate::data::Random;
use crate::runner::Outcome;
use crate::sort::{KINDS, TestKey, check, keys};

/// The case of a seed.
///
/// # Errors
/// The case and the first difference, in words.
pub fn case(seed: u64, device: Device) -> Outcome {
    let mut random = Random::new(seed);
    if random.once_in(2) { sorted::<u64>(&mut random, device) } else { sorted::<u128>(&mut random, device) }
}

fn sorted<K: TestKey>(random: &mut Random, device: Device) -> Outcome {
    let bits = <K as Key>::BITS;
    let most = (work(random, device) / 16).max(1);
    let tile = K::TILE as usize;
    let len = match random.below(3) {
        0 => (tile * random.below(4) + random.below(3)).saturating_sub(1).min(most),
        _ => random.size(most),
    };
    let (start, end) = match random.below(3) {
        // Whole keys take eight passes or sixteen.
        0 => (0, bits),
        1 => {
            let start = random.below(bits as usize + 1) as u32;
            (start, (start + random.below(20) as u32).min(bits))
        }
        _ => {
            let (a, b) = (random.below(bits as usize + 1) as u32, random.below(bits as usize + 1) as u32);
            (a.min(b), a.max(b))
        }
    };
    let kind = random.pick(&KINDS);
    let keys = keys::<K>(kind, len, random.bits());
    check(device, &format!("{kind:?}, keys of {bits} bits"), &keys, start..end)
}
