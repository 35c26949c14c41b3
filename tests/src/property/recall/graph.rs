//! Recall of graph indexes: bases of every shape, made in every way, with codes and without.

use std::collections::HashSet;

use test_cases::{by_element, vectors};
use warpann::{Device, ElementType, GraphIndex, Metric, SearchOptions};

use super::{Model, Queries, Shape, Source, elements, hits, kinds_of_queries, note, queries, shapes};
use crate::data::{Component, Random};
use crate::runner::{Outcome, text};

/// The recall that a case reaches at the default beam, but for chance. There are two exceptions, because walks find
/// less also without codes:
///
/// - Under inner product the floor is a bit (`slack`) below the recall of a graph that is made anew of the same
///   vectors, each once, without codes. A walk to a new vector finds long vectors and not those that it is near to, so
///   what is found varies with the order of additions, and most among far classes. Queries often have the same nearest
///   vector, so there is more chance in a case than its number of queries says.
/// - For near-duplicates the floor holds for queries like the vectors and under squared L2. If a group has as many
///   vectors as a vector has edges, few edges lead to other groups: graphs without codes found .2 to .53 under the
///   other metrics after a stream of additions, and one of 1,500 cases .73 under squared L2. So the floor after a
///   stream, a window or replacements is .6.
pub const FLOOR: f64 = 0.9;

/// The floor of a case.
fn floor(case: &GraphCase) -> f64 {
    let moves = matches!(case.growth, Growth::Stream | Growth::Window | Growth::Replaced);
    if case.shape == Shape::NearDuplicates && moves { 0.6 } else { FLOOR }
}

/// How much less than a graph that is made anew a graph may find under inner product.
fn slack(case: &GraphCase) -> f64 {
    let at_once = matches!(case.growth, Growth::AtOnce | Growth::Emptied);
    let classes = matches!(case.shape, Shape::Sorted(_) | Shape::Periodic(_) | Shape::Rare);
    if at_once && !classes { 0.1 } else { 0.4 }
}

/// Whether a recall is stated.
fn stated(case: &GraphCase) -> bool {
    let like = matches!(case.queries, Queries::Like | Queries::Own);
    match case.metric {
        Metric::InnerProduct => case.shape != Shape::NearDuplicates,
        _ => case.shape != Shape::NearDuplicates || (like && case.metric == Metric::L2),
    }
}

/// How an index comes to its vectors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Growth {
    /// All vectors are added by one call.
    AtOnce,
    /// A few vectors first, and then ever larger additions.
    Grown,
    /// Additions whose mean moves.
    Stream,
    /// Additions whose mean moves, and as many removals of the oldest vectors.
    Window,
    /// An index of other vectors is merged.
    Merged,
    /// All vectors are replaced by others.
    Replaced,
    /// All vectors are removed, and others added.
    Emptied,
}

#[derive(Debug)]
struct GraphCase {
    metric: Metric,
    dim: usize,
    n: usize,
    k: usize,
    degree: usize,
    beam: usize,
    codes: bool,
    shape: Shape,
    growth: Growth,
    queries: Queries,
    /// How far vectors move, in standard deviations.
    drift: f64,
    /// Scale of base and queries.
    scale: f64,
    /// Whether the index goes through bytes between the changes, and whether it is compacted.
    through_bytes: bool,
    compacted: bool,
}

/// The case of a seed.
///
/// # Errors
/// The case and the first difference, in words.
pub fn case(seed: u64, device: Device) -> Outcome {
    let mut random = Random::new(seed);
    let element = vectors::element(&mut random);
    by_element!(element, of_element(&mut random, device))
}

fn of_element<T: Component>(random: &mut Random, device: Device) -> Outcome {
    let metric = random.pick(Metric::of_element(T::TYPE));
    let on_cpu = device == Device::Cpu;
    let shapes = shapes(random);
    let growths = [
        Growth::AtOnce,
        Growth::AtOnce,
        Growth::Grown,
        Growth::Stream,
        Growth::Window,
        Growth::Merged,
        Growth::Replaced,
        Growth::Emptied,
    ];
    // Under L2 the neighbours of a query that is much farther away than the vectors lie from each other are nearly
    // equally far.
    let kinds = kinds_of_queries(random, metric, &[0.001, 0.1, 3.0, 10.0]);
    let case = GraphCase {
        metric,
        dim: random.pick(&[4, 8, 16, 24]),
        n: if on_cpu { 1000 + random.below(2001) } else { 120 + random.below(100) },
        k: random.pick(&[1, 5, 10]),
        degree: if on_cpu { 32 } else { 12 },
        // A walk of an index of few vectors would meet all of them.
        beam: if on_cpu { 64 } else { 24 },
        codes: !random.once_in(6),
        shape: random.pick(&shapes),
        growth: random.pick(&growths),
        queries: random.pick(&kinds),
        drift: random.pick(&[0.5, 3.0, 10.0]),
        scale: if T::WHOLE || !random.once_in(4) { 1.0 } else { scale::<T>(metric, random) },
        through_bytes: random.once_in(2),
        compacted: random.once_in(3),
    };
    check::<T>(&case, random, device).map_err(|failure| format!("{failure}\n{:?} {case:?}", T::TYPE))
}

/// A scale at which the element type holds all numbers of a case, and f32 the distances.
fn scale<T: Component>(metric: Metric, random: &mut Random) -> f64 {
    match (T::TYPE, metric) {
        (ElementType::F16, _) => random.pick(&[0.1, 0.5]),
        // Norms leave f32 where directions do not.
        (_, Metric::Cosine) => random.pick(&[1e-25, 1e-10, 1e10, 1e19]),
        _ => random.pick(&[1e-10, 1e-3, 1e3, 1e10]),
    }
}

fn empty<T: Component>(case: &GraphCase, device: Device) -> Result<GraphIndex<T>, String> {
    let builder = GraphIndex::<T>::builder(case.dim).metric(case.metric).device(device).degree(case.degree);
    // All searches are walks.
    builder.beam(case.beam).codes(case.codes).exact_ratio(0).build().map_err(text)
}

/// Makes the index of a case: the index, its vectors, and where the last ones lie.
fn made<T: Component>(
    case: &GraphCase,
    source: &mut Source,
    random: &mut Random,
    device: Device,
) -> Result<(GraphIndex<T>, Model, f64), String> {
    let &GraphCase { dim, n, growth, drift, .. } = case;
    let mut index = empty::<T>(case, device)?;
    let mut model = Model::new();
    // Adds `count` vectors of a base of `of`, with ids that count up, `shift` from the first.
    let mut next = 0;
    let mut add =
        |index: &mut GraphIndex<T>, model: &mut Model, count: usize, of: usize, shift, random: &mut Random| {
            let rows: Vec<T> = elements(&source.rows(count, of, shift, random));
            let ids: Vec<u64> = (next..next + count as u64).collect();
            next += count as u64;
            note(model, dim, ids.iter().copied(), &rows);
            index.add_with_ids(&rows, &ids).map_err(text)
        };
    let mut shift = 0.0;
    let between = |index: &mut GraphIndex<T>| -> Outcome {
        if case.compacted {
            index.compact().map_err(text)?;
        }
        if case.through_bytes {
            *index = GraphIndex::from_bytes(&index.to_bytes().map_err(text)?, device, None).map_err(text)?;
        }
        Ok(())
    };
    match growth {
        Growth::AtOnce => add(&mut index, &mut model, n, n, 0.0, random)?,
        Growth::Grown => {
            let mut count = random.pick(&[1, 2, 10, 100]);
            while model.len() < n {
                count = count.min(n - model.len());
                add(&mut index, &mut model, count, n, 0.0, random)?;
                count = (model.len() / 2).max(1);
            }
        }
        Growth::Stream => {
            add(&mut index, &mut model, n / 2, n, 0.0, random)?;
            for step in 0..4 {
                shift = drift * f64::from(step + 1) / 4.0;
                add(&mut index, &mut model, n / 8, n, shift, random)?;
            }
        }
        Growth::Window => {
            add(&mut index, &mut model, n / 2, 2 * n, 0.0, random)?;
            for step in 0..6 {
                shift = drift * f64::from(step + 1) / 6.0;
                add(&mut index, &mut model, n / 8, 2 * n, shift, random)?;
                let old: Vec<u64> = model.keys().copied().take(n / 8).collect();
                index.remove(&old).map_err(text)?;
                old.iter().for_each(|id| drop(model.remove(id)));
                if step == 3 {
                    between(&mut index)?;
                }
            }
        }
        Growth::Merged => {
            add(&mut index, &mut model, n / 2, n, 0.0, random)?;
            let mut other = empty::<T>(case, device)?;
            shift = drift;
            add(&mut other, &mut model, n / 2, n, shift, random)?;
            index.merge(&other).map_err(text)?;
        }
        Growth::Replaced => {
            add(&mut index, &mut model, n, 2 * n, 0.0, random)?;
            shift = drift;
            let ids: Vec<u64> = model.keys().copied().collect();
            let rows: Vec<T> = elements(&source.rows(n, 2 * n, shift, random));
            // In parts: an upsert of all vectors could as well make a new graph.
            for (ids, rows) in ids.chunks(n.div_ceil(3)).zip(rows.chunks(n.div_ceil(3) * dim)) {
                index.upsert(rows, ids).map_err(text)?;
                note(&mut model, dim, ids.iter().copied(), rows);
            }
        }
        Growth::Emptied => {
            add(&mut index, &mut model, n, 2 * n, 0.0, random)?;
            index.remove(&index.ids()).map_err(text)?;
            model.clear();
            shift = drift;
            add(&mut index, &mut model, n, 2 * n, shift, random)?;
        }
    }
    between(&mut index)?;
    Ok((index, model, shift))
}

fn check<T: Component>(case: &GraphCase, random: &mut Random, device: Device) -> Outcome {
    let &GraphCase { metric, dim, k, .. } = case;
    let mut source = Source::new::<T>(case.shape, dim, case.scale, random);
    let (index, model, shift) = made::<T>(case, &mut source, random, device)?;
    if !index.ids().iter().eq(model.keys()) {
        return Err(format!("{} ids, expected {}", index.len(), model.len()));
    }
    let count = if device == Device::Cpu { 30 } else { 6 };
    let queries: Vec<T> = queries(case.queries, count, &model, &source, shift, random);
    let search = |beam: usize| {
        let found = index.search_with(&queries, k, &SearchOptions::new().beam(beam)).map_err(text)?;
        hits(metric, &model, &queries, dim, &found, true)
    };
    let (narrow, wide) = (search(case.beam)?, search(4 * case.beam)?);
    if stated(case) && narrow.is_below(floor(case)) {
        let anew = if metric == Metric::InnerProduct { anew(case, &model, &queries, device)? } else { 1.0 };
        if narrow.is_below(anew - slack(case)) {
            let (narrow, wide) = (narrow.recall(), wide.recall());
            return Err(format!("recall {narrow:.3}, with a beam four times as wide {wide:.3}; made anew {anew:.3}"));
        }
    }
    if wide.found < narrow.found {
        return Err(format!("{} of {} found, with a wider beam {}", narrow.found, narrow.of, wide.found));
    }
    Ok(())
}

/// The recall of a graph that is made of the distinct vectors of `model`, without codes.
fn anew<T: Component>(case: &GraphCase, model: &Model, queries: &[T], device: Device) -> Result<f64, String> {
    let mut seen = HashSet::new();
    let mut distinct = |row: &[f64]| seen.insert(row.iter().map(|x| x.to_bits()).collect::<Vec<u64>>());
    let model: Model = model.iter().filter(|(_, row)| distinct(row)).map(|(&id, row)| (id, row.clone())).collect();
    let ids: Vec<u64> = model.keys().copied().collect();
    let rows: Vec<T> = model.values().flatten().map(|&x| T::nearest(x)).collect();
    let builder = GraphIndex::<T>::builder(case.dim).metric(case.metric).device(device).degree(case.degree);
    let mut index = builder.beam(case.beam).codes(false).exact_ratio(0).build().map_err(text)?;
    index.add_with_ids(&rows, &ids).map_err(text)?;
    let found = index.search(queries, case.k).map_err(text)?;
    Ok(hits(case.metric, &model, queries, case.dim, &found, true)?.recall())
}
