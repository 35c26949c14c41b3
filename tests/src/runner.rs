//! Runs one case on one device and compares it with the references.
//!
//! Two comparisons for exact search. By value: distances against float64 sums by the textbook, within the contract's
//! tolerance, and no place worse than the textbook's ranking allows. By bits: ids and distances against the definition of the
//! results, sorted; as every device must meet the same bits, devices are thereby compared with each other.

use std::collections::HashSet;

use half::{bf16, f16};
use warpann::select::{Best, KeyType, Rows, select_k_with};
use warpann::{Device, ElementType, FlatIndex, Metric, Neighbors, Placement};

use crate::cases::{Layout, Lengths, SearchCase, SelectCase};
use crate::data::{self, Component, Random, TestKey, Vectors};
use crate::reference::{self, NO_ID, NO_POSITION};

/// A failure, with its case.
pub type Outcome = Result<(), String>;

/// Runs a case of exact search on a device, or on several.
///
/// # Errors
/// A description of the first difference.
pub fn search(case: &SearchCase, device: impl Into<Placement>) -> Outcome {
    let run = match case.element {
        ElementType::F32 => search_elements::<f32>,
        ElementType::F16 => search_elements::<f16>,
        ElementType::Bf16 => search_elements::<bf16>,
        ElementType::U8 => search_elements::<u8>,
        ElementType::I8 => search_elements::<i8>,
        other => return Err(format!("no tests for vectors of {other}")),
    };
    let device = device.into();
    run(case, &device).map_err(|failure| format!("{failure}\non {device}: {case:?}"))
}

fn search_elements<T: Component>(case: &SearchCase, device: &Placement) -> Outcome {
    let &SearchCase { dim, n, nq, k, metric, data, seed, .. } = case;
    let vectors = data::vectors::<T>(data, dim, n, nq, seed);
    let mut index = FlatIndex::<T>::new(dim, metric, device.clone()).map_err(|error| error.to_string())?;
    // One to three additions, of uneven size.
    let first = [n, n / 3, n / 2][(seed % 3) as usize];
    let second = first + (n - first) / 2;
    for portion in [0..first, first..second, second..n] {
        index.add(&vectors.base[portion.start * dim..portion.end * dim]).map_err(|error| error.to_string())?;
    }
    if index.len() != n {
        return Err(format!("the index has {} vectors", index.len()));
    }
    let found = index.search(&vectors.queries, k).map_err(|error| error.to_string())?;
    check(metric, dim, k, &vectors, &found)?;
    for id in [0, n / 2, n.wrapping_sub(1)].into_iter().filter(|&id| id < n) {
        let row = index.vector(id as u64).map_err(|error| error.to_string())?;
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
    let reference = reference::Base::new(metric, dim, &vectors.exact_base);
    // Bits for every query; by the textbook, which the definition of the bits must be near, the first and every eighth.
    for (number, query) in vectors.exact_queries.chunks(dim).enumerate() {
        let (ids, distances) = (&found.ids[number * k..][..k], &found.distances[number * k..][..k]);
        let by_value = if number < 8 || number % 8 == 0 {
            check_by_value::<T>(metric, dim, (&vectors.exact_base, &squares), query, ids, distances)
        } else {
            Ok(())
        };
        by_value
            .and_then(|()| check_bits(&reference.nearest(query, k), ids, distances))
            .map_err(|failure| format!("query {number} of {nq}, {n} vectors: {failure}"))?;
    }
    Ok(())
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
    // What the best p + 1 vectors can have been taken for, at worst: no place p may hold a vector that is surely worse.
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

/// Ids, and distances to the bit.
fn check_bits(expected: &[(u64, f32)], ids: &[u64], distances: &[f32]) -> Outcome {
    for (place, (&(id, distance), (&found, &found_distance))) in
        expected.iter().zip(ids.iter().zip(distances)).enumerate()
    {
        if (id, distance.to_bits()) != (found, found_distance.to_bits()) {
            return Err(format!(
                "place {place}: id {found}, distance {found_distance:?} ({:#010x}); by definition id {id}, {distance:?} \
                 ({:#010x})",
                found_distance.to_bits(),
                distance.to_bits()
            ));
        }
    }
    Ok(())
}

/// Runs a case of k-selection: keys to the bit, positions, order and empty slots as the reference says.
///
/// # Errors
/// A description of the first difference.
pub fn select(case: &SelectCase, device: Device) -> Outcome {
    let run = match case.key {
        KeyType::F32 => select_keys::<f32>,
        KeyType::F16 => select_keys::<f16>,
        KeyType::Bf16 => select_keys::<bf16>,
        KeyType::I32 => select_keys::<i32>,
        KeyType::U32 => select_keys::<u32>,
        other => return Err(format!("no tests for keys of {other}")),
    };
    run(case, device).map_err(|failure| format!("{failure}\non {device}: {case:?}"))
}

fn select_keys<K: TestKey>(case: &SelectCase, device: Device) -> Outcome {
    let &SelectCase { rows, columns, k, best, data, layout, lengths, algorithm, seed, .. } = case;
    let mut random = Random::new(!seed);
    // A row of full length, one of none, then any.
    let mut any_length = |row: usize, room: usize| match row {
        0 => room,
        1 => 0,
        _ => random.below(room + 1),
    };
    // Where each row starts and ends, and the end of all keys.
    let mut spans: Vec<(usize, usize)> = Vec::new();
    for row in 0..rows {
        spans.push(match layout {
            Layout::Contiguous => (row * columns, (row + 1) * columns),
            Layout::Apart(gap) => (row * (columns + gap), row * (columns + gap) + columns),
            Layout::Overlapping(stride) => (row * stride, row * stride + columns),
            Layout::Ragged => {
                let start = spans.last().map_or(5, |&(_, end)| end);
                (start, start + any_length(row, columns))
            }
        });
    }
    let end = spans.last().map_or(0, |&(_, end)| end) + if layout == Layout::Ragged { 3 } else { 0 };
    let mut keys: Vec<K> = data::keys(data, best, end, columns, seed);
    if let Layout::Apart(gap) = layout {
        // Keys that must not be read are better than all others.
        let winner = K::scaled(if best == Best::Smallest { f64::NEG_INFINITY } else { f64::INFINITY });
        keys.chunks_mut((columns + gap).max(1))
            .flat_map(|row| row.iter_mut().skip(columns))
            .for_each(|key| *key = winner);
    }
    let starts: Vec<u64> =
        spans.iter().map(|&(start, _)| start as u64).chain(spans.last().map(|&(_, end)| end as u64)).collect();
    let batch = match layout {
        // Rows of no columns can be counted only if they are strided.
        Layout::Contiguous if columns > 0 => Rows::contiguous(&keys, columns),
        Layout::Contiguous => Rows::strided(&keys, rows, columns, columns),
        Layout::Apart(gap) => Rows::strided(&keys, rows, columns, columns + gap),
        Layout::Overlapping(stride) => Rows::strided(&keys, rows, columns, stride),
        Layout::Ragged => Rows::ragged(&keys, &starts),
    };
    let mut batch = batch.map_err(|error| error.to_string())?;
    let room = |row: usize| spans[row].1 - spans[row].0;
    let lengths: Option<Vec<u32>> = match lengths {
        Lengths::Full => None,
        Lengths::Any => Some((0..rows).map(|row| any_length(row, room(row)) as u32).collect()),
        Lengths::Short => Some((0..rows).map(|row| ((row + 3) % 6).min(room(row)) as u32).collect()),
    };
    if let Some(lengths) = &lengths {
        batch = batch.with_lengths(lengths).map_err(|error| error.to_string())?;
    }
    let found = select_k_with(device, &batch, k, best, algorithm).map_err(|error| error.to_string())?;
    if found.k != k || found.keys.len() != rows * k || found.positions.len() != rows * k {
        return Err(format!("{} keys and {} positions for k = {k}", found.keys.len(), found.positions.len()));
    }
    let ids: Vec<u64> = (0..keys.len() as u64).map(|at| at << 32).collect();
    let payloads = found.payloads(&batch, &ids).map_err(|error| error.to_string())?;
    for (row, &(start, _)) in spans.iter().enumerate() {
        let length = lengths.as_ref().map_or(room(row), |lengths| lengths[row] as usize);
        let values: Vec<f64> = keys[start..start + length].iter().map(|key| key.value()).collect();
        for (place, position) in reference::select(best, &values, k).into_iter().enumerate() {
            let at = row * k + place;
            let (key, payload) = match position {
                NO_POSITION => (K::EMPTY_BITS[usize::from(best == Best::Largest)], u64::MAX),
                _ => {
                    let value = values[position as usize];
                    let bits = if value.is_nan() { K::NAN_BITS } else { K::rounded(value + 0.0).bits() };
                    (bits, (start as u64 + u64::from(position)) << 32)
                }
            };
            let there = (found.positions[at], found.keys[at].bits(), payloads[at]);
            if (position, key, payload) != there {
                return Err(format!(
                    "row {row} (length {length}), place {place}: position {}, key {:?} ({:#010x}), payload {:#x}; expected \
                     position {position}, key {key:#010x}, payload {payload:#x}",
                    there.0, found.keys[at], there.1, there.2
                ));
            }
        }
    }
    Ok(())
}
