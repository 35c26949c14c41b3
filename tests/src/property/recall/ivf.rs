//! Recall of inverted files with every encoding. All lists are compared, so only codes can lose a neighbour.
//!
//! Three things are checked. First, the results are those of the vectors for which the codes stand: what `reconstruct`
//! returns. This holds for every base, also one that lies elsewhere than the training. Second, what half precision
//! keeps is as near to what was added as it promises. Third, recall against the vectors that were added: for vectors as
//! they are and for half precision everywhere, for codes of one byte a component and product codes where the index was
//! trained on vectors like these.

use test_cases::by_element;
use warpann::ivf::{Encoding, IvfIndex};
use warpann::{Device, ElementType, Metric, Neighbors, SearchOptions};

use super::{Model, Queries, Shape, Source, elements, hits, kinds_of_queries, note, queries, shapes};
use crate::data::{Component, Random};
use crate::reference::{badness, squares, textbook, tolerance};
use crate::runner::{Outcome, text};

/// How an index comes to its vectors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Growth {
    /// Trained on all, which are added in parts.
    Parts,
    /// Trained on the vectors of before, of which some are removed; a part comes from an index that is merged.
    Merged,
    /// Trained on all; all are removed and added again.
    Emptied,
    /// Trained on vectors that lie elsewhere than most of those that are added.
    Moved,
}

#[derive(Debug)]
struct IvfCase {
    metric: Metric,
    encoding: Encoding,
    dim: usize,
    n: usize,
    k: usize,
    lists: usize,
    shape: Shape,
    growth: Growth,
    queries: Queries,
    /// How far vectors move, in standard deviations.
    drift: f64,
    /// Scale of base and queries.
    scale: f64,
    through_bytes: bool,
}

/// The case of a seed.
///
/// # Errors
/// The case and the first difference, in words.
pub fn case(seed: u64, device: Device) -> Outcome {
    let mut random = Random::new(seed);
    let element = if random.below(4) > 0 { ElementType::F32 } else { random.pick(&ElementType::ALL) };
    by_element!(element, of_element(&mut random, device))
}

fn of_element<T: Component>(random: &mut Random, device: Device) -> Outcome {
    let metric = random.pick(Metric::of_element(T::TYPE));
    let on_cpu = device == Device::Cpu;
    let dim = random.pick(&[4, 8, 16]);
    let pq = |rotate| Encoding::Pq { sub_quantizers: dim / 2, bits: if on_cpu { 8 } else { 4 }, rotate };
    let encoding = match random.below(8) {
        _ if metric.compares_bits() => Encoding::Flat,
        0 => Encoding::Flat,
        1 | 2 if T::TYPE == ElementType::F32 => Encoding::F16,
        1..=3 => Encoding::Scalar8,
        4 => pq(false),
        5 | 6 => Encoding::Bits { bits: 1 + random.below(8) as u32 },
        _ => pq(true),
    };
    let shapes = shapes(random);
    let kinds = kinds_of_queries(random, metric, &[0.001, 0.1, 3.0]);
    let scales: &[f64] = match T::TYPE {
        ElementType::F32 => &[1e-9, 1e-7, 1e-6, 1e-5, 1e-4, 1e-2, 100.0],
        ElementType::Bf16 => &[1e-6, 1e-2, 100.0],
        ElementType::F16 => &[0.1, 0.5],
        _ => &[1.0],
    };
    let shape = random.pick(&shapes);
    // Half precision refuses components above 65,504.
    let scales = if shape == Shape::FarComponent && encoding == Encoding::F16 { &[1.0] } else { scales };
    let case = IvfCase {
        metric,
        encoding,
        dim,
        n: if on_cpu { 500 + random.below(1000) } else { 100 + random.below(60) },
        k: random.pick(&[1, 5, 10]),
        lists: if on_cpu { random.pick(&[1, 4, 16]) } else { random.pick(&[1, 4]) },
        shape,
        growth: random.pick(&[Growth::Parts, Growth::Merged, Growth::Emptied, Growth::Moved]),
        queries: random.pick(&kinds),
        drift: random.pick(&[0.5, 3.0, 10.0]),
        scale: if random.once_in(2) { random.pick(scales) } else { 1.0 },
        through_bytes: random.once_in(2),
    };
    check::<T>(&case, random, device).map_err(|failure| format!("{failure}\n{:?} {case:?}", T::TYPE))
}

/// The recall that a case reaches; `None` if nothing is stated: codes cannot tell near-duplicates apart, and codes of
/// one byte a component and product codes are only for vectors like those of the training.
///
/// The least recall of a sample of cases was .87 (one byte) and .63 (product codes of 8 bits on the CPU, 2026-11-26),
/// so these floors find defects and not bad luck.
fn floor(case: &IvfCase) -> Option<f64> {
    if case.encoding == Encoding::Flat {
        return Some(1.0);
    }
    if case.shape == Shape::NearDuplicates {
        return None;
    }
    match case.encoding {
        Encoding::F16 => Some(0.9),
        // Few components have few levels in all.
        Encoding::Bits { bits } if bits < 6 => None,
        _ if case.growth == Growth::Moved => None,
        // The longest vectors, and those nearest to a query that is farther away than they are from each other, differ
        // by less than a code.
        _ if case.metric == Metric::InnerProduct || matches!(case.queries, Queries::Shifted | Queries::Scaled(_)) => {
            None
        }
        // The code of a vector of zeros has some direction (docs/LIMITS.md).
        _ if case.metric == Metric::Cosine && matches!(case.shape, Shape::Zeros(_)) => None,
        // The 255 steps of that component reach as far, so it says nothing about the other rows: a quarter or an eighth
        // of what there is.
        Encoding::Scalar8 if case.shape == Shape::FarComponent && case.dim < 16 => Some(0.3),
        Encoding::Scalar8 => Some(0.75),
        Encoding::Bits { .. } => Some(0.7),
        Encoding::Pq { bits: 8, .. } => Some(0.5),
        _ => None,
    }
}

fn trained<T: Component>(case: &IvfCase, sample: &[T], device: Device) -> Result<IvfIndex<T>, String> {
    let builder = IvfIndex::<T>::builder(case.dim, case.lists).metric(case.metric).encoding(case.encoding);
    let mut index = builder.iterations(5).device(Device::Cpu).build().map_err(text)?;
    index.train(sample).map_err(text)?;
    // The CPU trains, because k-means has its own cases.
    if device != Device::Cpu {
        index.move_to(device).map_err(text)?;
    }
    Ok(index)
}

/// Makes the index of a case: the index, its vectors, and where the last ones lie.
fn made<T: Component>(
    case: &IvfCase,
    source: &mut Source,
    random: &mut Random,
    device: Device,
) -> Result<(IvfIndex<T>, Model, f64), String> {
    let &IvfCase { dim, n, growth, .. } = case;
    let mut model = Model::new();
    let all: Vec<T> = elements(&source.rows(n, n, 0.0, random));
    let mut index = trained(case, &all, device)?;
    let half = n / 2;
    let mut shift = 0.0;
    note(&mut model, dim, 0..n as u64, &all);
    match growth {
        Growth::Parts => {
            index.add(&all[..half * dim]).map_err(text)?;
            index.add(&all[half * dim..]).map_err(text)?;
        }
        Growth::Emptied => {
            index.add(&all).map_err(text)?;
            index.remove(&index.ids()).map_err(text)?;
            index.add(&all).map_err(text)?;
        }
        Growth::Merged => {
            let mut other = index.snapshot();
            index.add(&all[..half * dim]).map_err(text)?;
            let ids: Vec<u64> = (half as u64..n as u64).collect();
            other.add_with_ids(&all[half * dim..], &ids).map_err(text)?;
            index.merge(&other).map_err(text)?;
            let some: Vec<u64> = (0..n as u64).filter(|id| id % 5 == 0).collect();
            index.remove(&some).map_err(text)?;
            some.iter().for_each(|id| drop(model.remove(id)));
        }
        Growth::Moved => {
            index.add(&all).map_err(text)?;
            shift = case.drift;
            let rows: Vec<T> = elements(&source.rows(half, n, shift, random));
            index.add(&rows).map_err(text)?;
            note(&mut model, dim, n as u64..(n + half) as u64, &rows);
        }
    }
    if case.through_bytes {
        index = IvfIndex::from_bytes(&index.to_bytes().map_err(text)?, device, None).map_err(text)?;
    }
    Ok((index, model, shift))
}

fn check<T: Component>(case: &IvfCase, random: &mut Random, device: Device) -> Outcome {
    let &IvfCase { metric, dim, k, .. } = case;
    let mut source = Source::new::<T>(case.shape, dim, case.scale, random);
    let (index, model, shift) = made::<T>(case, &mut source, random, device)?;
    let count = if device == Device::Cpu { 30 } else { 6 };
    let queries: Vec<T> = queries(case.queries, count, &model, &source, shift, random);
    let options = SearchOptions::new().probes(case.lists);
    let found = index.search_with(&queries, k, &options).map_err(text)?;
    if case.encoding != Encoding::Flat {
        by_codes(metric, dim, &index, &queries, &found)?;
    }
    if case.encoding == Encoding::F16 {
        halves(metric, &index, &model)?;
    }
    let hits = hits(metric, &model, &queries, dim, &found, case.encoding == Encoding::Flat)?;
    match floor(case) {
        Some(floor) if hits.is_below(floor) => Err(format!("recall {:.3}, stated {floor}", hits.recall())),
        _ => Ok(()),
    }
}

/// Compares what half precision keeps with the vectors that were added: no component differs by more than 2⁻¹¹ of the
/// greatest of its vector, as [`Encoding::F16`] promises.
fn halves<T: Component>(metric: Metric, index: &IvfIndex<T>, model: &Model) -> Outcome {
    for (&id, row) in model {
        let norm = if metric == Metric::Cosine { squares(row).sqrt() } else { 1.0 };
        let greatest = row.iter().fold(0f64, |greatest, x| greatest.max(x.abs()));
        // The last part is what f32 leaves of a norm.
        let bound = greatest * (2f64.powi(-11) + 2f64.powi(-20));
        for (&kept, &added) in index.reconstruct(id).map_err(text)?.iter().zip(row) {
            if (f64::from(kept) * norm - added).abs() > bound {
                return Err(format!("id {id}: {added:e} is kept as {:e}", f64::from(kept) * norm));
            }
        }
    }
    Ok(())
}

/// Compares results with the vectors that the index returns for its ids: distances, and that no vector is better than
/// the last result.
fn by_codes<T: Component>(
    metric: Metric,
    dim: usize,
    index: &IvfIndex<T>,
    queries: &[T],
    found: &Neighbors,
) -> Outcome {
    let mut all = Vec::new();
    for id in index.ids() {
        let row = index.reconstruct(id).map_err(text)?;
        all.push((id, row.iter().map(|&x| f64::from(x)).collect::<Vec<f64>>()));
    }
    for (number, (query, (ids, distances))) in queries.chunks(dim).zip(found.rows()).enumerate() {
        let query: Vec<f64> = query.iter().map(|x| x.exact()).collect();
        // (badness, tolerance) of each vector.
        let values: Vec<(f64, f64)> = all
            .iter()
            .map(|(_, row)| {
                let squares = squares(&query) + squares(row);
                (badness(metric, textbook(metric, &query, row)), 16.0 * tolerance(metric, squares))
            })
            .collect();
        // The worst result, at the best that it can be.
        let mut worst = f64::NEG_INFINITY;
        for (&id, &distance) in ids.iter().zip(distances).take(all.len()) {
            let at = all.binary_search_by_key(&id, |&(id, _)| id).map_err(|_| format!("query {number}: id {id}"))?;
            let (value, tolerance) = values[at];
            let given = badness(metric, distance.into());
            if (given - value).abs() > tolerance {
                return Err(format!("query {number}: id {id} at {given:e} (badness), by its code at {value:e}"));
            }
            worst = worst.max(value - tolerance);
        }
        let better = values.iter().filter(|(value, tolerance)| value + tolerance < worst).count();
        if better >= ids.len() {
            return Err(format!(
                "query {number}: {better} vectors are nearer by their codes than the last of {}",
                ids.len()
            ));
        }
    }
    Ok(())
}
