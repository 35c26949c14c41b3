//! Refined searches with a proof: the k best of the probed lists by the original vectors, to the bit, whatever the
//! codes lose. Lists are those of the definition; distances are those of the vectors that were added.

use std::collections::BTreeMap;

use test_cases::by_element;
use warpann::ivf::{Encoding, IvfIndex, Refiner};
use warpann::{Device, Filter, Metric, Proof, SearchOptions};

use super::vectors::{self, Form, VectorsShape};
use super::work;
use crate::data::{Component, Random, Vectors};
use crate::ivf::reference::Model;
use crate::ivf::runner::model;
use crate::reference::{NO_ID, badness, defined, worst};
use crate::runner::{Outcome, text};

/// Components whose steps codes of bits hold.
const RANGE: (i32, i32) = (-149, 95);

#[derive(Debug)]
struct ProofCase {
    metric: Metric,
    encoding: Encoding,
    shape: VectorsShape,
    lists: usize,
    seed: u64,
    form: Form,
    /// Percent of the vectors that are replaced, and of those that are removed, after the index has them.
    replaced: usize,
    removed: usize,
    through_bytes: bool,
    searches: Vec<Search>,
}

#[derive(Debug)]
struct Search {
    k: usize,
    refine: f64,
    probes: usize,
    /// Percent of the ids that each query accepts.
    allowed: Option<Vec<usize>>,
    /// Which of the neighbours of the first query is at the radius.
    radius: Option<usize>,
}

/// The case of a seed.
///
/// # Errors
/// The case and the first difference, in words.
pub fn case(seed: u64, device: Device) -> Outcome {
    let mut random = Random::new(seed);
    let element = vectors::element(&mut random);
    by_element!(element, draw(&mut random, device))
}

fn draw<T: Component>(random: &mut Random, device: Device) -> Outcome {
    let most = work(random, device) / 4;
    let mut shape = vectors::shape(random, most, 100);
    shape.nq = shape.nq.clamp(1, 16);
    // Rotations and codes by the definition take as long as many products.
    shape.n = shape.n.min(most / (shape.dim * shape.dim + 16 * shape.dim)).max(1);
    let lists = 1 + random.size(9);
    let of_query = |random: &mut Random| random.pick(&[0, 5, 50, 100]);
    let search = |random: &mut Random| Search {
        k: 1 + random.size(shape.n + 2),
        refine: 1.0 + random.size(50) as f64 / 10.0,
        probes: if random.once_in(3) { lists } else { 1 + random.below(lists) },
        allowed: match random.below(4) {
            0 => Some(vec![of_query(random)]),
            1 => Some((0..shape.nq).map(|_| of_query(random)).collect()),
            _ => None,
        },
        radius: random.once_in(4).then(|| random.below(shape.n)),
    };
    let case = ProofCase {
        metric: random.pick(&Metric::OF_NUMBERS),
        encoding: if random.once_in(8) { Encoding::Flat } else { Encoding::Bits { bits: 1 + random.below(8) as u32 } },
        lists,
        seed: random.bits(),
        form: vectors::form(random, vectors::range(T::TYPE, RANGE)),
        replaced: random.pick(&[0, 0, 10, 100]),
        removed: random.pick(&[0, 0, 10, 90]),
        through_bytes: random.once_in(4),
        searches: (0..2).map(|_| search(random)).collect(),
        shape,
    };
    run::<T>(&case, random, device).map_err(|failure| format!("{failure}\n{:?} {case:?}", T::TYPE))
}

fn run<T: Component>(case: &ProofCase, random: &mut Random, device: Device) -> Outcome {
    let &ProofCase { metric, encoding, shape: VectorsShape { dim, n, nq }, lists, ref form, .. } = case;
    let training: Vectors<T> = vectors::vectors(form, dim, lists + random.below(20), 0, random);
    // The second half is for replacements.
    let vectors: Vectors<T> = vectors::vectors(form, dim, 2 * n, nq, random);
    let builder = IvfIndex::<T>::builder(dim, lists).metric(metric).encoding(encoding).iterations(2).seed(case.seed);
    let mut index = builder.device(Device::Cpu).build().map_err(text)?;
    index.train(&training.base).map_err(text)?;
    index.move_to(device).map_err(text)?;

    let id_of = |row: usize| 3 * row as u64 + 1;
    let mut rows: BTreeMap<u64, usize> = (0..n).map(|row| (id_of(row), row)).collect();
    let ids: Vec<u64> = rows.keys().copied().collect();
    index.add_with_ids(&vectors.base[..n * dim], &ids).map_err(text)?;
    // So that what is known of lists is known before the changes too.
    search(case, &case.searches[0], &index, &vectors, &rows)?;
    let replaced: Vec<usize> = (0..n).filter(|_| random.below(100) < case.replaced).collect();
    for row in replaced {
        index.upsert(&vectors.base[(n + row) * dim..][..dim], &[id_of(row)]).map_err(text)?;
        rows.insert(id_of(row), n + row);
    }
    let removed: Vec<u64> = ids.iter().copied().filter(|_| random.below(100) < case.removed).collect();
    index.remove(&removed).map_err(text)?;
    rows.retain(|id, _| !removed.contains(id));
    if case.through_bytes {
        index = IvfIndex::from_bytes(&index.to_bytes().map_err(text)?, device, None).map_err(text)?;
    }
    case.searches.iter().try_for_each(|search_case| search(case, search_case, &index, &vectors, &rows))
}

/// Whether a query accepts an id.
fn accepts(percent: usize, id: u64) -> bool {
    (id.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 57) < percent as u64 * 128 / 100
}

/// The neighbours of a query by definition, all of them, best first.
fn ranked<T: Component>(
    model: &Model,
    lists: &BTreeMap<u64, usize>,
    query: &[f64],
    probes: usize,
    (vectors, rows): (&Vectors<T>, &BTreeMap<u64, usize>),
    allowed: usize,
) -> Vec<(u64, f32)> {
    let probed = model.probes(&model.transform(query), probes);
    let found = rows.iter().filter(|&(id, _)| accepts(allowed, *id) && probed.contains(&lists[id]));
    let distance = |row: usize| defined(model.metric, query, &vectors.exact_base[row * model.dim..][..model.dim]);
    let mut found: Vec<(u64, f32)> = found.map(|(&id, &row)| (id, distance(row))).collect();
    let key = |&(id, distance): &(u64, f32)| (badness(model.metric, f64::from(distance)), id);
    found.sort_by(|a, b| key(a).0.total_cmp(&key(b).0).then(a.0.cmp(&b.0)));
    found
}

fn search<T: Component>(
    case: &ProofCase,
    &Search { k, refine, probes, ref allowed, radius }: &Search,
    index: &IvfIndex<T>,
    vectors: &Vectors<T>,
    rows: &BTreeMap<u64, usize>,
) -> Outcome {
    let (dim, metric, nq) = (case.shape.dim, case.metric, case.shape.nq);
    let model = model(index);
    let exact = |row: usize| &vectors.exact_base[row * dim..][..dim];
    let lists: BTreeMap<u64, usize> =
        rows.iter().map(|(&id, &row)| (id, model.list(&model.transform(exact(row))))).collect();
    let of_query = |query: usize| allowed.as_ref().map_or(100, |allowed| allowed[query % allowed.len()]);
    let expected: Vec<Vec<(u64, f32)>> = (0..nq)
        .map(|query| {
            let exact = &vectors.exact_queries[query * dim..][..dim];
            ranked(&model, &lists, exact, probes, (vectors, rows), of_query(query))
        })
        .collect();
    let radius = radius.and_then(|at| expected[0].get(at)).map(|&(_, distance)| distance);

    let ids: Vec<u64> = rows.keys().copied().collect();
    let base: Vec<T> = rows.values().flat_map(|&row| &vectors.base[row * dim..][..dim]).copied().collect();
    let refiner = Refiner::new(metric, dim, &base).and_then(|refiner| refiner.with_ids(&ids)).map_err(text)?;
    let functions: Vec<Box<dyn Fn(u64) -> bool + Sync>> =
        (0..nq).map(of_query).map(|percent| Box::new(move |id| accepts(percent, id)) as _).collect();
    let filters: Vec<Filter<'_>> = functions.iter().map(|function| Filter::Function(function.as_ref())).collect();
    let filter = allowed.as_ref().map(|allowed| if allowed.len() == 1 { filters[0] } else { Filter::Each(&filters) });
    let options = SearchOptions::new()
        .probes(probes)
        .refine(refine)
        .prove(Proof::Certain)
        .widen(false)
        .filter(filter)
        .radius(radius);
    let (found, statistics) = index.search_refined(&vectors.queries, k, &options, &refiner).map_err(text)?;
    if statistics.queries != nq as u64 && !rows.is_empty() {
        return Err(format!("{} of {nq} queries were counted", statistics.queries));
    }
    let none = (NO_ID, worst(metric));
    let is_near = |distance: f32| {
        radius.is_none_or(|radius| badness(metric, f64::from(distance)) <= badness(metric, f64::from(radius)))
    };
    for (query, expected) in expected.iter().enumerate() {
        let expected = expected.iter().copied().filter(|&(_, distance)| is_near(distance));
        let expected: Vec<(u64, f32)> = expected.chain(std::iter::repeat(none)).take(k).collect();
        let (ids, distances) = found.row(query);
        let found: Vec<(u64, f32)> = ids.iter().copied().zip(distances.iter().copied()).collect();
        let differs = |(a, b): &(&(u64, f32), &(u64, f32))| (a.0, a.1.to_bits()) != (b.0, b.1.to_bits());
        if let Some(pair) = found.iter().zip(&expected).find(differs) {
            return Err(format!("query {query}, k {k}, {options:?}: found and expected {pair:?}, {statistics:?}"));
        }
    }
    Ok(())
}
