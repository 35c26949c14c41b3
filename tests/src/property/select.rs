//! k-selection: keys, positions and order to the bit, of rows of any layout and keys of any bits.

use test_cases::selection::SelectCase;
use warpann::Device;

use super::work;
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
    runner::select(&SelectCase::draw(&mut random, keys), device)
}
