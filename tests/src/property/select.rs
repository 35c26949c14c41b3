//! k-selection: keys, positions and order to the bit, of rows of any layout and keys of any bits.

use warpann::Device;
use warpann::select::{Algorithm, Best, KeyType};

use super::work;
use crate::cases::{KeyData, Layout, Lengths, SelectCase, Size};
use crate::data::Random;
use crate::runner::{self, Outcome};

/// The case of a seed.
///
/// # Errors
/// The case and the first difference, in words.
pub fn case(seed: u64, device: Device) -> Outcome {
    let mut random = Random::new(seed);
    // A key costs more than a product.
    let keys = (work(&mut random, device) / 8).max(1);
    let rows = random.size(60);
    let columns = random.size((keys / rows.max(1)).min(100_000));
    let key = random.pick(&KeyType::ALL);
    let percent = random.pick(&[0.1, 10.0, 50.0, 90.0, 99.9]);
    let data = random.pick(&[
        KeyData::Random,
        KeyData::Ascending,
        KeyData::Descending,
        KeyData::AllEqual,
        KeyData::TwoValues,
        KeyData::EqualLeadingBits,
        KeyData::Infinite { percent },
        KeyData::Worst { percent },
        KeyData::SomeNan,
        KeyData::SomeNan,
        KeyData::AllNan,
        KeyData::Zeros,
        KeyData::Subnormal,
        KeyData::Bits,
        KeyData::Bits,
        KeyData::Outlier,
    ]);
    let layout = match random.below(5) {
        0 => Layout::Apart(random.below(40)),
        // The stride: at least 1, so that rows differ.
        1 => Layout::Overlapping(1 + random.below(columns.max(1))),
        2 => Layout::Ragged,
        _ => Layout::Contiguous,
    };
    let algorithms: &[Algorithm] = match key {
        KeyType::F32 => &[Algorithm::Auto, Algorithm::WarpSelect, Algorithm::ThresholdSelect],
        _ => &[Algorithm::Auto, Algorithm::ThresholdSelect],
    };
    let k = match random.below(3) {
        0 => random.pick(&[32, 64, 128, 256, 512, 1024, 2048]) + random.below(3) - 1,
        1 => 1 + random.below(40),
        _ => 1 + random.size(columns.min(5000) + 3),
    };
    let case = SelectCase {
        rows,
        columns,
        k,
        best: random.pick(&[Best::Smallest, Best::Largest]),
        key,
        data,
        layout,
        lengths: random.pick(&[Lengths::Full, Lengths::Full, Lengths::Any, Lengths::Short]),
        algorithm: random.pick(algorithms),
        seed: random.bits(),
        size: Size::Small,
    };
    runner::select(&case, device)
}
