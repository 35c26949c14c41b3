//! Queries of one call with filters of their own ([`Filter::Each`]): each query must find what a search for it alone
//! under its filter finds, to the bit, and in an exact index what brute force finds among the accepted vectors.
//!
//! Several queries have one filter, filters have every form and accept from no vector to all, and ids are the caller's.
//! So sets of rows come as numbers and as bits, in launches with others and alone.

use test_cases::by_element;
use warpann::{
    Bitset, Device, Error, Filter, FlatIndex, GraphIndex, Index, IvfIndex, Kind, Metric, NONE, SearchOptions,
};

use super::vectors::{self, Form, VectorsShape};
use super::work;
use crate::data::{Component, Random, Vectors};
use crate::reference;
use crate::runner::{Outcome, text};

/// Sums of a few components stay finite, so that inverted files take the vectors.
const RANGE: (i32, i32) = (-149, 120);

#[derive(Debug)]
struct FiltersCase {
    metric: Metric,
    shape: VectorsShape,
    k: usize,
    form: Form,
    /// The percentage of ids that each filter accepts, and its form: 0 bits, 1 ids, 2 all but some ids, 3 a function.
    filters: Vec<(u64, usize)>,
    /// The filter of each query.
    of: Vec<usize>,
    /// Whether ids are numbers without a pattern.
    sparse: bool,
    /// Percentage of vectors that are removed.
    removed: usize,
    /// Bytes, where a device has a budget that need not be enough.
    budget: Option<u64>,
    options: SearchOptions<'static>,
}

/// The case of a seed: in turn of a flat index, of inverted files, and of a graph.
///
/// # Errors
/// The case and the first difference, in words.
pub fn case(seed: u64, device: Device) -> Outcome {
    let mut random = Random::new(seed);
    let element = vectors::element(&mut random);
    by_element!(element, drawn(seed, &mut random, device))
}

fn drawn<T: Component>(seed: u64, random: &mut Random, device: Device) -> Outcome {
    let most = work(random, device) / 4;
    let mut shape = vectors::shape(random, most, 60);
    shape.n = shape.n.clamp(1, 3_000);
    shape.nq = shape.nq.min(24);
    let filters: Vec<(u64, usize)> =
        (0..1 + random.below(9)).map(|_| (random.pick(&[0, 1, 4, 30, 60, 97, 100]), random.below(4))).collect();
    let mut options = SearchOptions::new().widen(!random.once_in(3));
    if random.once_in(2) {
        options = options.probes(1 + random.below(8)).beam(1 + random.below(60));
    }
    let case = FiltersCase {
        // Exact search and inverted files have all metrics of the element type here.
        metric: random.pick(if seed % 3 < 2 { Metric::of_element(T::TYPE) } else { &Metric::OF_NUMBERS }),
        k: 1 + random.size((shape.n + 2).min(300)),
        form: vectors::form(random, vectors::range(T::TYPE, RANGE)),
        of: (0..shape.nq).map(|_| random.below(filters.len())).collect(),
        filters,
        shape,
        sparse: random.once_in(2),
        removed: random.pick(&[0, 0, 10, 100]),
        budget: random.once_in(6).then(|| 1 << (12 + random.below(14))),
        options,
    };
    let VectorsShape { dim, n, nq } = case.shape;
    let vectors: Vectors<T> = vectors::vectors(&case.form, dim, n, nq, random);
    let told = match seed % 3 {
        0 => {
            let mut builder = FlatIndex::<T>::builder(dim).metric(case.metric).device(device);
            builder = case.budget.into_iter().fold(builder, warpann::FlatIndexBuilder::memory_budget);
            run(&case, builder.build(), &vectors, random, true)
        }
        1 => {
            let builder = IvfIndex::<T>::builder(dim, 1 + random.below(n.min(8))).metric(case.metric).iterations(2);
            // The CPU trains, because k-means has cases of its own.
            let index = builder.device(Device::Cpu).build().and_then(|mut index| {
                index.train(&vectors.base)?;
                index.move_to(device)?;
                Ok(index)
            });
            run(&case, index, &vectors, random, false)
        }
        _ => {
            let builder = GraphIndex::<T>::builder(dim).metric(case.metric).device(device).degree(8);
            run(&case, builder.exact_ratio(random.pick(&[0, 1, 128])).build(), &vectors, random, false)
        }
    };
    told.map_err(|failure| format!("{failure}\nkind {}, {:?} {case:?}", seed % 3, T::TYPE))
}

/// Whether an error says that the budget of the case is too small.
fn is_memory(case: &FiltersCase, error: &Error) -> bool {
    case.budget.is_some() && matches!(error, Error::OutOfDeviceMemory { .. })
}

fn run<T: Component, K: Kind<Element = T>>(
    case: &FiltersCase,
    index: warpann::Result<Index<K>>,
    vectors: &Vectors<T>,
    random: &mut Random,
    exact: bool,
) -> Outcome {
    let &FiltersCase { metric, shape: VectorsShape { dim, n, nq }, k, .. } = case;
    let ids: Vec<u64> = (0..n as u64)
        .scan(0, |last, row| {
            *last += if case.sparse { 1 + random.below(1_000) as u64 } else { u64::from(row > 0) };
            Some(*last)
        })
        .collect();
    let gone: Vec<u64> = ids.iter().copied().filter(|_| random.below(100) < case.removed).collect();
    let filled = index.and_then(|mut index| {
        index.add_with_ids(&vectors.base, &ids)?;
        index.remove(&gone)?;
        Ok(index)
    });
    let index = match filled {
        Err(error) if is_memory(case, &error) => return Ok(()),
        index => index.map_err(text)?,
    };
    let accepts = |filter: usize, id: u64| {
        let hash = (id + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(7 * filter as u32);
        (hash >> 40) % 100 < case.filters[filter].0
    };
    let all = 0..case.filters.len();
    let bits: Vec<Bitset> = all.clone().map(|filter| index.filter(|id| accepts(filter, id))).collect();
    let functions: Vec<_> = all.clone().map(|filter| move |id| accepts(filter, id)).collect();
    let named: Vec<Vec<u64>> = all
        .clone()
        .map(|filter| {
            // In any order, some twice, some unknown.
            let wanted = case.filters[filter].1 == 1;
            let mut named: Vec<u64> = ids.iter().copied().filter(|&id| accepts(filter, id) == wanted).collect();
            named.extend_from_within(..named.len() / 3);
            named.extend([u64::MAX, u64::MAX / 2]);
            named.reverse();
            named
        })
        .collect();
    let filters: Vec<Filter<'_>> = all
        .map(|filter| match case.filters[filter].1 {
            0 => Filter::Bits(&bits[filter]),
            1 => Filter::Ids(&named[filter]),
            2 => Filter::Except(&named[filter]),
            _ => Filter::Function(&functions[filter]),
        })
        .collect();
    let each: Vec<Filter<'_>> = case.of.iter().map(|&filter| filters[filter]).collect();
    let options: SearchOptions<'_> = case.options;
    let query = |query: usize| &vectors.queries[query * dim..][..dim];
    let alone: Result<Vec<_>, Error> =
        (0..nq).map(|at| index.search_one(query(at), k, &options.filter(each[at]))).collect();
    let found = index.search_with(&vectors.queries, k, &options.filter(Filter::Each(&each)));
    let (alone, found) = match (alone, found) {
        (Err(error), _) if is_memory(case, &error) => return Ok(()),
        (alone, found) => (alone.map_err(text)?, found.map_err(text)?),
    };
    for (at, alone) in alone.iter().enumerate() {
        let (ids_found, distances) = found.row(at);
        let same = alone.distances.iter().zip(distances).all(|(a, b)| a.to_bits() == b.to_bits());
        if alone.ids != ids_found || !same {
            return Err(format!("query {at}: {ids_found:?}, {distances:?}; alone {alone:?}"));
        }
        if !exact {
            continue;
        }
        let ranked = reference::nearest(metric, dim, &vectors.exact_base, &vectors.exact_queries[at * dim..][..dim], n);
        let accepted = ranked
            .into_iter()
            .map(|(row, distance)| (ids[row as usize], distance))
            .filter(|(id, _)| accepts(case.of[at], *id) && gone.binary_search(id).is_err());
        let expected = accepted.chain(std::iter::repeat((NONE, reference::worst(metric)))).take(k);
        for (slot, expected) in expected.enumerate() {
            if (ids_found[slot], distances[slot].to_bits()) != (expected.0, expected.1.to_bits()) {
                return Err(format!("query {at}, slot {slot}: {:?}; by definition {expected:?}", ids_found[slot]));
            }
        }
    }
    let Some(radius) = found.distances.get(random.below(found.distances.len().max(1))) else { return Ok(()) };
    let within = index.range_search(&vectors.queries, *radius, &options.filter(Filter::Each(&each)));
    let alone: Result<Vec<_>, Error> =
        (0..nq).map(|at| index.range_search(query(at), *radius, &options.filter(each[at]))).collect();
    let (alone, within) = match (alone, within) {
        (Err(error), _) if is_memory(case, &error) => return Ok(()),
        (alone, within) => (alone.map_err(text)?, within.map_err(text)?),
    };
    let same = alone.iter().enumerate().all(|(at, alone)| alone.row(0) == within.row(at));
    if same { Ok(()) } else { Err(format!("within {radius}: {within:?}; alone {alone:?}")) }
}
