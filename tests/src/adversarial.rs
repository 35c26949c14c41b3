//! Rows made to defeat k-selection on GPUs, on every device: samples that say the opposite of their row, and keys whose
//! leading bits say nothing. That the emulator then takes the paths which random keys never take is counted in
//! warpann's unit tests.

use warpann::Device;
use warpann::select::{Algorithm, Best, Rows, select_k_with};
use warpann_kernels::select::sample::{BLOCK_GROUP_KEYS, SamplePlan};

use crate::data::{Random, TestKey};
use crate::reference;
use crate::runner::{Outcome, text};
use crate::scenarios::{Scenario, by_device};

/// All scenarios, each run as one test.
pub const ALL: &[Scenario] = &[
    ("adversarial::misleading_samples_of_blocks_f32", mislead_blocks::<f32>),
    ("adversarial::misleading_samples_of_blocks_i32", mislead_blocks::<i32>),
    ("adversarial::misleading_samples_of_long_rows_f32", mislead_long_rows::<f32>),
    ("adversarial::misleading_samples_of_long_rows_i32", mislead_long_rows::<i32>),
    ("adversarial::misleading_samples_for_large_k_f32", mislead_lists::<f32>),
    ("adversarial::misleading_samples_for_large_k_i32", mislead_lists::<i32>),
    ("adversarial::an_outlier_hides_the_order_f32", outlier_f32),
    ("adversarial::an_outlier_hides_the_order_i32", outlier_i32),
    ("adversarial::groups_of_equal_leading_bits", groups_of_equal_leading_bits),
];

/// A batch of `rows` rows of `columns` keys, of which `k` are selected.
#[derive(Debug, Clone, Copy)]
struct SelectShape {
    rows: usize,
    columns: usize,
    k: usize,
    best: Best,
}

/// Selects by ThresholdSelect and compares with the reference, to the bit. No key is −0 or a NaN but the canonical one.
fn check<K: TestKey>(device: Device, shape: SelectShape, keys: &[K]) -> Outcome {
    let SelectShape { columns, k, best, .. } = shape;
    let rows = Rows::contiguous(keys, columns).map_err(text)?;
    let found = select_k_with(device, &rows, k, best, Algorithm::ThresholdSelect).map_err(text)?;
    for (number, row) in keys.chunks(columns).enumerate() {
        let values: Vec<f64> = row.iter().map(|key| key.value()).collect();
        let slots = number * k..(number + 1) * k;
        let there = found.positions[slots.clone()].iter().zip(&found.keys[slots]);
        for (place, (position, (&found, key))) in reference::select(best, &values, k).into_iter().zip(there).enumerate()
        {
            let bits = row[position as usize].bits();
            if (position, bits) != (found, key.bits()) {
                return Err(format!(
                    "{shape:?}, row {number}, place {place}: position {found}, key {:#010x}; expected {position}, {bits:#010x}",
                    key.bits()
                ));
            }
        }
    }
    Ok(())
}

/// Keys that the sample sees, or that it does not.
#[derive(Debug, Clone, Copy)]
enum Values {
    Many,
    One,
    /// NaN; of integers the worst there is.
    Last,
}

/// Keys of a batch in which all keys of the samples beat all others, or none does.
fn misleading<K: TestKey>(shape: SelectShape, sample_wins: bool, sampled: Values, others: Values) -> Vec<K> {
    let SelectShape { rows, columns, k, best } = shape;
    // As the kernels sample: the same for a block that selects alone and for several, but for rows above 278,000.
    let group_keys = SamplePlan::grid_keys(columns as u32).next_multiple_of(BLOCK_GROUP_KEYS);
    let plan = SamplePlan::new(k as u32, columns as u32, group_keys);
    let last = if K::NAN_BITS == 0 { K::EMPTY_BITS[usize::from(best == Best::Largest)] } else { K::NAN_BITS };
    let sign = if best == Best::Smallest { 1.0 } else { -1.0 };
    let mut random = Random::new(77);
    let mut key = |values: Values, offset: f64| match values {
        Values::Many => K::scaled(sign * (offset + random.below(50_000) as f64)),
        Values::One => K::scaled(sign * offset),
        Values::Last => K::from_low_bits(last),
    };
    let offset = if sample_wins { -100_000.0 } else { 100_000.0 };
    let mut keys = Vec::with_capacity(rows * columns);
    for row in 0..rows {
        keys.extend((0..columns).map(|_| key(others, 1.0)));
        for group in 0..plan.groups {
            for turn in 0..plan.group_keys {
                let position = plan.position(group, turn, columns as u32, row as u32);
                keys[row * columns + position as usize] = key(sampled, offset);
            }
        }
    }
    keys
}

/// Thresholds too tight, where the sample wins, and thresholds that let nearly everything through.
fn mislead<K: TestKey>(device: Device, (rows, columns, k): (usize, usize, usize)) -> Outcome {
    for best in [Best::Smallest, Best::Largest] {
        let shape = SelectShape { rows, columns, k, best };
        for (sample_wins, sampled, others) in [
            (true, Values::Many, Values::Many),
            (true, Values::Many, Values::One),
            (true, Values::Many, Values::Last),
            (true, Values::One, Values::Many),
            (false, Values::Many, Values::Many),
            (false, Values::Many, Values::One),
            (false, Values::Last, Values::Many),
            (false, Values::Last, Values::One),
        ] {
            check(device, shape, &misleading::<K>(shape, sample_wins, sampled, others))
                .map_err(|failure| format!("sample {sampled:?}, others {others:?}: {failure}"))?;
        }
    }
    Ok(())
}

/// Rows that one block each selects from.
fn mislead_blocks<K: TestKey>(device: Device) -> Outcome {
    mislead::<K>(device, (by_device(device, 2, 80), by_device(device, 5000, 16_000), 100))?;
    mislead::<K>(device, (by_device(device, 1, 80), by_device(device, 9000, 16_001), by_device(device, 700, 2000)))
}

/// Few long rows, which many blocks filter; where they are longest, several take the sample of each.
fn mislead_long_rows<K: TestKey>(device: Device) -> Outcome {
    mislead::<K>(device, (1, by_device(device, 40_001, 300_001), 100))?;
    if device == Device::Emulator { Ok(()) } else { mislead::<K>(device, (3, 100_000, 2000)) }
}

/// k beyond shared memory.
fn mislead_lists<K: TestKey>(device: Device) -> Outcome {
    mislead::<K>(device, (2, by_device(device, 9000, 100_000), by_device(device, 3100, 20_000)))
}

/// Rows of `columns` keys that `key` makes of 0 .. `columns` − 1, in any order, where the first stands for the outlier.
fn outlier<K: TestKey>(device: Device, best: Best, key: impl Fn(usize) -> K) -> Outcome {
    for (columns, k) in [(2900, 2900), (2900, 700), (2900, 10), (600, 590)] {
        let shape = SelectShape { rows: by_device(device, 1, 30), columns, k, best };
        let mut random = Random::new(78);
        let mut keys = Vec::new();
        for _ in 0..shape.rows {
            let mut row: Vec<K> = (0..columns).map(&key).collect();
            (1..columns).rev().for_each(|last| row.swap(last, random.below(last + 1)));
            keys.extend(row);
        }
        check(device, shape, &keys)?;
    }
    Ok(())
}

fn outlier_f32(device: Device) -> Outcome {
    // All but the outlier are denormal.
    outlier::<f32>(device, Best::Smallest, |i| if i == 0 { -3e38 } else { f32::from_bits(i as u32) })?;
    outlier::<f32>(device, Best::Largest, |i| if i == 0 { 3e38 } else { -f32::from_bits(i as u32) })
}

fn outlier_i32(device: Device) -> Outcome {
    outlier::<i32>(device, Best::Smallest, |i| if i == 0 { i32::MIN } else { i as i32 })?;
    outlier::<i32>(device, Best::Largest, |i| if i == 0 { i32::MAX } else { -(i as i32) })
}

/// Groups of keys that differ in their low bits only, shorter and longer than what one thread sorts; k is inside a
/// group and at its ends.
fn groups_of_equal_leading_bits(device: Device) -> Outcome {
    for size in [2, 16, 17, 100] {
        for k in [5 * size - 1, 5 * size, 5 * size + size / 2] {
            let mut random = Random::new(79);
            // Over 29 bits, of which sorting sees the upper 22.
            let groups = 1000 / size as i32;
            let distance = (1 << 29) / (groups as u32).next_power_of_two() as i32;
            let mut row: Vec<i32> =
                (0..groups).flat_map(|group| (0..size as i32).map(move |one| group * distance + one)).collect();
            (1..row.len()).rev().for_each(|last| row.swap(last, random.below(last + 1)));
            for best in [Best::Smallest, Best::Largest] {
                check(device, SelectShape { rows: 1, columns: row.len(), k, best }, &row)?;
            }
        }
    }
    Ok(())
}
