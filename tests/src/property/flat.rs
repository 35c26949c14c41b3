//! Exact search: the k best by (canonical distance, lower id), to the bit, whatever the vectors.

use test_cases::exact::ExactCase;
use test_cases::{by_element, vectors};
use warpann::{Device, Error};

use super::work;
use crate::data::{Component, Random};
use crate::runner::{self, Outcome};

/// The case of a seed.
///
/// # Errors
/// The case and the first difference, in words.
pub fn case(seed: u64, device: Device) -> Outcome {
    let mut random = Random::new(seed);
    let element = vectors::element(&mut random);
    let most = work(&mut random, device);
    let case = ExactCase::draw(&mut random, element, most);
    by_element!(element, check(&case, &mut random, device)).map_err(|failure| format!("{failure}\n{case:?}"))
}

fn check<T: Component>(case: &ExactCase, random: &mut Random, device: Device) -> Outcome {
    let vectors = case.vectors::<T>(random);
    match case.search(&vectors, device) {
        Ok(found) => runner::check(case.metric, case.shape.dim, case.k, &vectors, &found),
        Err(Error::OutOfDeviceMemory { .. }) if case.budget.is_some() && device != Device::Cpu => Ok(()),
        Err(error) => Err(error.to_string()),
    }
}
