//! Runs one case on one device and compares it with the references.
//!
//! Two comparisons for exact search. By value: distances against float64 sums by the textbook, within the contract's
//! tolerance, and no place worse than the textbook's ranking allows. By bits: ids and distances against the definition
//! of the results, sorted; as every device must meet the same bits, devices are thereby compared with each other.

use std::collections::HashSet;
use std::fmt::Display;

use test_cases::by_element;
use warpann::{Device, FlatIndex, Metric, Neighbors, Placement};

use crate::cases::{SearchCase, SelectCase};
use crate::data::{self, Component, Vectors};
use crate::reference::{self, NO_ID};

/// A failure, with its case.
pub type Outcome = Result<(), String>;

/// An error in words.
pub fn text(error: impl Display) -> String {
    error.to_string()
}

/// Runs a case of exact search on a device, or on several.
///
/// # Errors
/// A description of the first difference.
pub fn search(case: &SearchCase, device: impl Into<Placement>) -> Outcome {
    let device = device.into();
    by_element!(case.element, search_elements(case, &device))
        .map_err(|failure| format!("{failure}\non {device}: {case:?}"))
}

fn search_elements<T: Component>(case: &SearchCase, device: &Placement) -> Outcome {
    let &SearchCase { dim, n, nq, k, metric, data, seed, .. } = case;
    let vectors = data::vectors::<T>(data, dim, n, nq, seed);
    let mut index = FlatIndex::<T>::new(dim, metric, device.clone()).map_err(text)?;
    // One to three additions, of uneven size.
    let first = [n, n / 3, n / 2][(seed % 3) as usize];
    let second = first + (n - first) / 2;
    for portion in [0..first, first..second, second..n] {
        index.add(&vectors.base[portion.start * dim..portion.end * dim]).map_err(text)?;
    }
    if index.len() != n {
        return Err(format!("the index has {} vectors", index.len()));
    }
    let found = index.search(&vectors.queries, k).map_err(text)?;
    check(metric, dim, k, &vectors, &found)?;
    for id in [0, n / 2, n.wrapping_sub(1)].into_iter().filter(|&id| id < n) {
        let row = index.vector(id as u64).map_err(text)?;
        if row != vectors.base[id * dim..(id + 1) * dim] {
            return Err(format!("vector {id} comes back as {row:?}"));
        }
    }
    Ok(())
}

/// Compares what a search found with both references.
///
/// # Errors
/// A description of the first difference.
pub fn check<T: Component>(metric: Metric, dim: usize, k: usize, vectors: &Vectors<T>, found: &Neighbors) -> Outcome {
    let (n, nq) = (vectors.base.len() / dim, vectors.queries.len() / dim);
    if found.k != k || found.ids.len() != nq * k || found.distances.len() != nq * k {
        return Err(format!("{} ids and {} distances for k = {}", found.ids.len(), found.distances.len(), found.k));
    }
    let squares: Vec<f64> = vectors.exact_base.chunks(dim).map(reference::squares).collect();
    // By the textbook, which the definition of the bits must be near, the first queries and every eighth; bits for
    // every query.
    let some = vectors.exact_queries.chunks(dim).enumerate().filter(|(number, _)| *number < 8 || number % 8 == 0);
    for (number, query) in some {
        let (ids, distances) = (&found.ids[number * k..][..k], &found.distances[number * k..][..k]);
        check_by_value::<T>(metric, dim, (&vectors.exact_base, &squares), query, ids, distances)
            .map_err(|failure| format!("query {number} of {nq}, {n} vectors: {failure}"))?;
    }
    let reference = reference::Base::new(metric, dim, &vectors.exact_base);
    same(&format!("{nq} queries, {n} vectors"), &reference.neighbors(&vectors.exact_queries, k), found)
}

/// Checks that both have the same bits. `case` is the beginning of the message if not.
///
/// # Errors
/// The first difference.
pub fn same(case: &str, expected: &Neighbors, found: &Neighbors) -> Outcome {
    test_cases::same(expected, found).map_err(|difference| format!("{case}: {difference}"))
}

/// Distances past f32's range are infinite in a result, and tie.
fn in_range(value: f64) -> f64 {
    value.clamp(-f64::from(f32::MAX), f64::from(f32::MAX))
}

fn check_by_value<T: Component>(
    metric: Metric,
    dim: usize,
    (base, squares): (&[f64], &[f64]),
    query: &[f64],
    ids: &[u64],
    distances: &[f32],
) -> Outcome {
    let n = base.len() / dim;
    let there = n.min(ids.len());
    let mut seen = HashSet::new();
    for (place, (&id, &distance)) in ids.iter().zip(distances).enumerate() {
        if place >= there {
            if id != NO_ID || distance != reference::worst(metric) {
                return Err(format!("place {place} must be empty and holds id {id}, distance {distance}"));
            }
        } else if id >= n as u64 || !seen.insert(id) {
            return Err(format!("place {place} holds id {id}, which does not exist or came before"));
        }
    }
    // (badness, tolerance) of every vector, by the textbook.
    let query_squares = reference::squares(query);
    let truth: Vec<(f64, f64)> = base
        .chunks(dim)
        .zip(squares)
        .map(|(row, squares)| {
            let value = in_range(reference::textbook(metric, query, row));
            (reference::badness(metric, value), reference::tolerance(metric, query_squares + squares))
        })
        .collect();
    let ranked = reference::first(truth.iter().zip(0..).collect(), there, |a: &(&(f64, f64), usize), b| {
        a.0.0.total_cmp(&b.0.0).then(a.1.cmp(&b.1))
    });
    // The greatest badness that the best p + 1 vectors can seem to have: no place p may hold a vector that is surely
    // worse.
    let mut limit = f64::NEG_INFINITY;
    for place in 0..there {
        let (value, tolerance) = ranked[place].0;
        limit = limit.max(value + tolerance);
        let (value, tolerance) = truth[ids[place] as usize];
        let given = reference::badness(metric, in_range(f64::from(distances[place])));
        // Whole numbers below 2^24 are exact under L2 and inner product.
        let exact = T::WHOLE && metric != Metric::Cosine && value.abs() < f64::from(1 << 24);
        let allowed = if exact { 0.0 } else { tolerance };
        let error = (given - value).abs();
        if error.is_nan() || error > allowed {
            return Err(format!("place {place}: distance {:?}, float64 {value:?} (badness)", distances[place]));
        }
        if value - tolerance > limit {
            return Err(format!("place {place}: id {} is worse by float64 ({value:?}) than {limit:?}", ids[place]));
        }
        if place > 0 {
            let before = reference::badness(metric, f64::from(distances[place - 1]));
            let here = reference::badness(metric, f64::from(distances[place]));
            if before > here || (before == here && ids[place - 1] >= ids[place]) {
                return Err(format!(
                    "places {} and {place} are out of order: ({}, {}), ({}, {})",
                    place - 1,
                    ids[place - 1],
                    distances[place - 1],
                    ids[place],
                    distances[place]
                ));
            }
        }
    }
    Ok(())
}

/// Runs a case of k-selection.
///
/// # Errors
/// The case and the first difference, in words.
pub fn select(case: &SelectCase, device: Device) -> Outcome {
    case.run(device).map_err(|failure| format!("{failure}\non {device}: {case:?}"))
}
