//! Exact search: the k best by (canonical distance, lower id), to the bit, whatever the vectors.

use warpann::{Device, ElementType, Error, FlatIndex, Metric};

use super::vectors::{self, ALL_OF_F32, Form, VectorsShape};
use super::work;
use crate::data::{Component, Random};
use crate::runner::{self, Outcome};

/// A random case of exact search.
#[derive(Debug)]
struct FlatCase {
    metric: Metric,
    shape: VectorsShape,
    k: usize,
    form: Form,
    /// Vectors of the first of two additions.
    first: usize,
    /// Bytes, where the index has a budget that need not be enough.
    budget: Option<u64>,
}

/// The case of a seed.
///
/// # Errors
/// The case and the first difference, in words.
pub fn case(seed: u64, device: Device) -> Outcome {
    let mut random = Random::new(seed);
    // f32 has the most to go wrong.
    let element = if random.once_in(2) { ElementType::F32 } else { random.pick(&ElementType::ALL) };
    by_element!(element, search(&mut random, device))
}

fn search<T: Component>(random: &mut Random, device: Device) -> Outcome {
    let most = work(random, device);
    let shape = vectors::shape(random, most, 600);
    let n = shape.n;
    // Mostly below n, sometimes past it; sometimes next to a queue length of the selection kernels.
    let k = match random.below(4) {
        0 => 1,
        1 => (random.pick(&[32, 64, 128, 256, 1024]) + random.below(3) - 1).min(n + 3),
        2 => 1 + random.below(20),
        _ => 1 + random.size((n + 2).min(1500)),
    };
    let range = vectors::range::<T>(ALL_OF_F32);
    let mut form = vectors::form(random, range);
    if range.is_some_and(|(_, greatest)| greatest == ALL_OF_F32.1) && random.once_in(6) {
        form.magnitude = vectors::edge_of_f32(random, shape.dim);
    }
    let case = FlatCase {
        metric: random.pick(&Metric::ALL),
        shape,
        k,
        form,
        first: random.below(n + 1),
        budget: random.once_in(8).then(|| 1 << (10 + random.below(16))),
    };
    check::<T>(&case, random, device).map_err(|failure| format!("{failure}\n{:?} {case:?}", T::TYPE))
}

fn check<T: Component>(case: &FlatCase, random: &mut Random, device: Device) -> Outcome {
    let &FlatCase { metric, shape: VectorsShape { dim, n, nq }, k, ref form, first, budget, .. } = case;
    let vectors = vectors::vectors::<T>(form, dim, n, nq, random);
    let mut builder = FlatIndex::<T>::builder(dim).metric(metric).device(device);
    if let Some(bytes) = budget {
        builder = builder.memory_budget(bytes);
    }
    let found = builder.build().and_then(|mut index| {
        index.add(&vectors.base[..first * dim])?;
        index.add(&vectors.base[first * dim..])?;
        index.search(&vectors.queries, k)
    });
    match found {
        Ok(found) => runner::check(metric, dim, k, &vectors, &found),
        Err(Error::OutOfDeviceMemory { .. }) if budget.is_some() && device != Device::Cpu => Ok(()),
        Err(error) => Err(error.to_string()),
    }
}
