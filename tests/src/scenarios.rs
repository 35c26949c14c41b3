//! Tests of more than one search of one index: several threads, memory budgets, growth, real data.

use std::path::PathBuf;

use half::f16;
use warpann::{Device, Error, FlatIndex, IvfIndex, Metric, NONE, Neighbors, SearchOptions};

use crate::cases::VectorData;
use crate::data::{self, Component, Vectors};
use crate::runner::{Outcome, check, same, text};

/// A scenario and the name of its test.
pub type Scenario = (&'static str, fn(Device) -> Outcome);

/// Every scenario. Each chooses sizes that suit the device.
pub const ALL: &[Scenario] = &[
    ("threads::share_one_index", |device| search_from_threads(device, None)),
    ("threads::with_a_streamed_base", threads_share_a_streamed_base),
    ("budget::any_gives_the_same_bits_or_an_error_l2", |device| budgets(device, Metric::L2)),
    ("budget::any_gives_the_same_bits_or_an_error_cosine", |device| budgets(device, Metric::Cosine)),
    ("budget::of_one_byte", budget_of_one_byte),
    ("growth::search_between_additions", search_between_additions),
    ("growth::past_the_budget", growth_past_the_budget),
    ("repeat::same_bits_every_run", same_bits_every_run),
    ("results::of_many_queries_exact", many_results_exact),
    ("results::of_many_queries_by_lists", many_results_by_lists),
    ("results::of_one_query_are_millions", millions_of_results),
    ("range::products_below_that_of_f32", products_too_small),
    ("range::products_above_that_of_f32", products_too_large),
    ("sift::exact_ids_u8", sift::<u8>),
    ("sift::exact_ids_f32", sift::<f32>),
    ("sift::exact_ids_f16", sift::<f16>),
];

/// One of two sizes: emulated threads are thousands of times slower than real ones.
pub fn by_device(device: Device, emulated: usize, otherwise: usize) -> usize {
    if device == Device::Emulator { emulated } else { otherwise }
}

/// An index over data whose answers were checked against the references.
fn checked_index(
    device: Device,
    metric: Metric,
    dim: usize,
    vectors: &Vectors<f32>,
    ks: &[usize],
    budget: Option<u64>,
) -> Result<(FlatIndex<f32>, Vec<Neighbors>), String> {
    let builder = FlatIndex::<f32>::builder(dim).metric(metric).device(device);
    let builder = match budget {
        Some(bytes) => builder.memory_budget(bytes),
        None => builder,
    };
    let mut index = builder.build().map_err(text)?;
    index.add(&vectors.base).map_err(text)?;
    let mut results = Vec::new();
    for &k in ks {
        let found = index.search(&vectors.queries, k).map_err(text)?;
        check(metric, dim, k, vectors, &found)?;
        results.push(found);
    }
    Ok((index, results))
}

fn threads_share_a_streamed_base(device: Device) -> Outcome {
    let budget = by_device(device, 96 << 10, 4 << 20) as u64;
    search_from_threads(device, Some(budget))
}

fn search_from_threads(device: Device, budget: Option<u64>) -> Outcome {
    let (dim, n, nq) = (19, by_device(device, 500, 30_000), by_device(device, 3, 70));
    let ks = [1, 10, 100];
    let vectors = data::vectors::<f32>(VectorData::Gaussian, dim, n, nq, 70);
    // A second index of the same device, so that the first is searched by several threads from its first search on.
    let (_, expected) = checked_index(device, Metric::L2, dim, &vectors, &ks, None)?;
    let (index, _) = checked_index(device, Metric::L2, dim, &vectors, &[], budget)?;
    if budget.is_some() && device != Device::Cpu && !index.device().contains("streamed") {
        return Err(format!("{} must stream a base past its budget", index.device()));
    }
    let rounds = by_device(device, 1, 5);
    std::thread::scope(|scope| {
        let (index, vectors, expected) = (&index, &vectors, &expected);
        let threads: Vec<_> = (0..4)
            .map(|thread| {
                scope.spawn(move || -> Outcome {
                    for round in 0..rounds {
                        // Each thread its own order of k, and its own share of the queries every other round.
                        let which = (thread + round) % ks.len();
                        let k = ks[which];
                        let first = if round % 2 == 0 { 0 } else { thread % nq };
                        let found = index.search(&vectors.queries[first * dim..], k).map_err(text)?;
                        let part = Neighbors {
                            k,
                            ids: expected[which].ids[first * k..].to_vec(),
                            distances: expected[which].distances[first * k..].to_vec(),
                        };
                        same(&format!("thread {thread}, round {round}"), &part, &found)?;
                    }
                    Ok(())
                })
            })
            .collect();
        threads.into_iter().try_for_each(|thread| thread.join().unwrap_or_else(|_| Err("a thread panicked".to_owned())))
    })
}

/// Halves the budget until nothing fits: resident, tiled, streamed, refused. Every answer has the same bits.
fn budgets(device: Device, metric: Metric) -> Outcome {
    let (dim, n, nq) = (20, by_device(device, 520, 20_000), by_device(device, 7, 150));
    let ks = [10, by_device(device, 150, 1500)];
    let vectors = data::vectors::<f32>(VectorData::Gaussian, dim, n, nq, 71);
    let (_, expected) = checked_index(device, metric, dim, &vectors, &ks, None)?;
    let (mut streamed, mut resident, mut refused) = (0, 0, 0);
    let mut budget: u64 = by_device(device, 8 << 20, 256 << 20) as u64;
    while budget > 0 {
        let builder = FlatIndex::<f32>::builder(dim).metric(metric).device(device).memory_budget(budget);
        let mut index = match builder.build() {
            Ok(index) => index,
            Err(Error::OutOfDeviceMemory { .. }) => break,
            Err(error) => return Err(text(error)),
        };
        match index.add(&vectors.base) {
            Ok(()) => {}
            Err(Error::OutOfDeviceMemory { .. }) => {
                if !index.is_empty() {
                    return Err("a failed addition changed the index".to_owned());
                }
                refused += 1;
                budget /= 4;
                continue;
            }
            Err(error) => return Err(text(error)),
        }
        for (&k, expected) in ks.iter().zip(&expected) {
            match index.search(&vectors.queries, k) {
                Ok(found) => {
                    same(&format!("budget {budget}, {}", index.device()), expected, &found)?;
                    if index.device().contains("streamed") { streamed += 1 } else { resident += 1 }
                }
                Err(Error::OutOfDeviceMemory { asked, available, .. }) => {
                    if asked <= available {
                        return Err(format!("refused {asked} bytes of {available}"));
                    }
                    refused += 1;
                }
                Err(error) => return Err(format!("budget {budget}: {error}")),
            }
        }
        budget /= 2;
    }
    let complete = if device == Device::Cpu { refused == 0 } else { streamed > 0 && resident > 0 && refused > 0 };
    if complete { Ok(()) } else { Err(format!("resident {resident}, streamed {streamed}, refused {refused} searches")) }
}

/// Too small for a single row: an error that names both numbers, never a wrong answer.
fn budget_of_one_byte(device: Device) -> Outcome {
    let mut index = FlatIndex::<f32>::builder(3).device(device).memory_budget(1).build().map_err(text)?;
    let result = index.add(&[1.0, 2.0, 3.0]).and_then(|()| index.search(&[1.0, 2.0, 4.0], 1));
    match result {
        // On the CPU the budget bounds the scratch of a search, and one query is always served.
        Ok(found) if device == Device::Cpu && found.ids == [0] && found.distances == [1.0] => Ok(()),
        Err(Error::OutOfDeviceMemory { asked, available, .. })
            if device != Device::Cpu && available <= 1 && asked > 1 =>
        {
            Ok(())
        }
        other => Err(format!("{other:?}")),
    }
}

fn search_between_additions(device: Device) -> Outcome {
    let (dim, n, nq, k) = (11, by_device(device, 400, 20_000), 3, 20);
    let vectors = data::vectors::<f32>(VectorData::FarClusters, dim, n, nq, 72);
    let mut index = FlatIndex::<f32>::new(dim, Metric::L2, device).map_err(text)?;
    let mut held = 0;
    for upto in [1, n / 5, n / 5 + 1, n / 2, n] {
        index.add(&vectors.base[held * dim..upto * dim]).map_err(text)?;
        held = upto;
        let part = Vectors {
            base: vectors.base[..held * dim].to_vec(),
            exact_base: vectors.exact_base[..held * dim].to_vec(),
            ..vectors.clone()
        };
        let found = index.search(&vectors.queries, k).map_err(text)?;
        check(Metric::L2, dim, k, &part, &found).map_err(|failure| format!("{held} vectors: {failure}"))?;
    }
    Ok(())
}

/// An index that grows from device memory to the host returns the same results as before, and returns its vectors
/// unchanged.
fn growth_past_the_budget(device: Device) -> Outcome {
    let (dim, n, nq, k) = (13, by_device(device, 900, 60_000), by_device(device, 2, 20), 9);
    let budget = by_device(device, 128 << 10, 6 << 20) as u64;
    let vectors = data::vectors::<f32>(VectorData::Gaussian, dim, n, nq, 73);
    let (_, expected) = checked_index(device, Metric::InnerProduct, dim, &vectors, &[k], None)?;
    let mut index = FlatIndex::<f32>::builder(dim)
        .metric(Metric::InnerProduct)
        .device(device)
        .memory_budget(budget)
        .build()
        .map_err(text)?;
    let portion = n.div_ceil(9) * dim;
    let mut kinds = Vec::new();
    for rows in vectors.base.chunks(portion) {
        index.add(rows).map_err(text)?;
        index.search(&vectors.queries, 1).map_err(text)?;
        kinds.push(index.device().contains("streamed"));
    }
    if device != Device::Cpu && (kinds[0] || !kinds[kinds.len() - 1]) {
        return Err(format!("streamed after each portion: {kinds:?}"));
    }
    same("after growing", &expected[0], &index.search(&vectors.queries, k).map_err(text)?)?;
    for id in [0, portion / dim, n - 1] {
        if index.reconstruct(id as u64).map_err(text)? != vectors.base[id * dim..(id + 1) * dim] {
            return Err(format!("vector {id} changed"));
        }
    }
    Ok(())
}

/// More results than a device sends at once, and fewer vectors than are asked for in the end.
fn many_results_exact(device: Device) -> Outcome {
    let (dim, n, nq) = (3, by_device(device, 40, 900), by_device(device, 7, 3_001));
    let vectors = data::vectors::<f32>(VectorData::Gaussian, dim, n, nq, 76);
    for k in [n / 2, n - 1, n, n + 5] {
        let [expected, found] = [Device::Cpu, device].map(|device| {
            let mut index = FlatIndex::<f32>::new(dim, Metric::L2, device)?;
            index.add(&vectors.base)?;
            index.search(&vectors.queries, k)
        });
        let found = found.map_err(text)?;
        if device == Device::Cpu {
            check(Metric::L2, dim, k, &vectors, &found)?;
        }
        same(&format!("k = {k}"), &expected.map_err(text)?, &found)?;
    }
    Ok(())
}

fn many_results_by_lists(device: Device) -> Outcome {
    let (dim, n, nq, lists) = (4, by_device(device, 60, 2_000), by_device(device, 7, 3_001), 6);
    let vectors = data::vectors::<f32>(VectorData::Gaussian, dim, n, nq, 77);
    // Default ids, and ids of the caller.
    let sparse: Vec<u64> = (0..n as u64).map(|at| 3 * at + 1).collect();
    for (k, probes, ids) in
        [(n / 2, lists, None), (n / 4, 2, None), (n / 2, lists, Some(&sparse)), (1, 1, Some(&sparse))]
    {
        let [expected, found] = [Device::Cpu, device].map(|device| {
            let mut index = IvfIndex::<f32>::builder(dim, lists).iterations(2).device(Device::Cpu).build()?;
            index.train(&vectors.base)?;
            match ids {
                Some(ids) => index.add_with_ids(&vectors.base, ids)?,
                None => index.add(&vectors.base)?,
            }
            index.move_to(device)?;
            index.search_with(&vectors.queries, k, &SearchOptions::new().probes(probes))
        });
        let expected = expected.map_err(text)?;
        if expected.ids.iter().all(|&id| id == NONE) {
            return Err("nothing was found".to_owned());
        }
        same(&format!("k = {k}, {probes} probes"), &expected, &found.map_err(text)?)?;
    }
    Ok(())
}

/// More results a query than a device sends at once.
fn millions_of_results(device: Device) -> Outcome {
    let n = by_device(device, 50, 1_200_000);
    // Distances from 0 that are all different: the order is known.
    let base: Vec<f32> = (0..n).map(|id| (id * 7 % n) as f32).collect();
    let mut index = FlatIndex::<f32>::new(1, Metric::L2, device).map_err(text)?;
    index.add(&base).map_err(text)?;
    let found = index.search(&[0.0, -1.0], n).map_err(text)?;
    let by_place = |query: usize| found.row(query).0.iter().map(|&id| base[id as usize]);
    for query in 0..2 {
        if let Some((place, value)) = by_place(query).enumerate().find(|&(place, value)| value != place as f32) {
            return Err(format!("query {query}, place {place}: the vector {value}"));
        }
    }
    Ok(())
}

fn same_bits_every_run(device: Device) -> Outcome {
    let (dim, n, nq, k) = (32, by_device(device, 300, 50_000), by_device(device, 2, 200), 64);
    let vectors = data::vectors::<f32>(VectorData::Ties, dim, n, nq, 74);
    let mut first: Option<Neighbors> = None;
    for run in 0..by_device(device, 2, 6) {
        let mut index = FlatIndex::<f32>::new(dim, Metric::InnerProduct, device).map_err(text)?;
        index.add(&vectors.base).map_err(text)?;
        for again in 0..2 {
            let found = index.search(&vectors.queries, k).map_err(text)?;
            match &first {
                Some(first) => same(&format!("run {run}.{again}"), first, &found)?,
                None => {
                    check(Metric::InnerProduct, dim, k, &vectors, &found)?;
                    first = Some(found);
                }
            }
        }
    }
    Ok(())
}

/// Vectors whose products, taken at the scale of their f16 copies, vanish in f32; their distances do not. The nearest
/// are of length ‖x‖, and others are shorter: who loses the products takes those.
pub fn too_small() -> Vectors<f32> {
    let (dim, n) = (128, 260);
    let component = 1.5 * 2f32.powi(-61);
    let of = |row: usize| component * [0.5, -0.5, 1.0, -1.0][row / 65];
    exactly((0..n).flat_map(|row| vec![of(row); dim]).collect(), vec![component; dim])
}

/// Vectors of which few are so long that the scale of products is infinite in f32; not the distance of the first query
/// from the last four vectors, which are in a separate tile.
pub fn too_large() -> Vectors<f32> {
    let (long, longest, short) = (2f32.powi(61), 2f32.powi(78), 2f32.powi(53));
    let row = |row: usize| match row {
        248 => [longest, 0.0],
        249 => [-longest, 0.0],
        256.. => [-short, if row.is_multiple_of(2) { short } else { -short }],
        _ => [if row.is_multiple_of(2) { long } else { -long }, 0.0],
    };
    exactly((0..260).flat_map(row).collect(), vec![short, 0.0, longest, 0.0])
}

fn exactly(base: Vec<f32>, queries: Vec<f32>) -> Vectors<f32> {
    let exact = |values: &[f32]| values.iter().map(|&x| f64::from(x)).collect();
    Vectors { exact_base: exact(&base), exact_queries: exact(&queries), base, queries }
}

fn products_too_small(device: Device) -> Outcome {
    Metric::OF_NUMBERS
        .into_iter()
        .try_for_each(|metric| checked_index(device, metric, 128, &too_small(), &[3], None).map(|_| ()))
}

fn products_too_large(device: Device) -> Outcome {
    Metric::OF_NUMBERS
        .into_iter()
        .try_for_each(|metric| checked_index(device, metric, 2, &too_large(), &[3], None).map(|_| ()))
}

/// The folder of test data: `data` of this crate, or the value of `WARPANN_TEST_DATA` (for a bundle on a machine
/// without sources).
fn data_folder() -> PathBuf {
    match std::env::var_os("WARPANN_TEST_DATA") {
        Some(folder) => folder.into(),
        None => [env!("CARGO_MANIFEST_DIR"), "data"].iter().collect(),
    }
}

/// Reads a file whose rows are an i32 length and that number of values of `size` bytes, without the library.
fn vecs_file(name: &str, size: usize) -> Result<Vec<Vec<u8>>, String> {
    let path = data_folder().join("sift-sample").join(name);
    let bytes = std::fs::read(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    let mut rows = Vec::new();
    let mut rest = bytes.as_slice();
    while let Some((length, tail)) = rest.split_first_chunk::<4>() {
        let (row, tail) = tail.split_at_checked(i32::from_le_bytes(*length) as usize * size).ok_or("truncated")?;
        rows.push(row.to_vec());
        rest = tail;
    }
    Ok(rows)
}

/// Real SIFT descriptors: ids equal to the shipped ground truth (exact integers, ties by lower id), so recall is 1.0,
/// and distances equal to integer arithmetic.
fn sift<T: Component>(device: Device) -> Outcome {
    let base = vecs_file("sample_base.bvecs", 1)?;
    let queries = vecs_file("sample_query.bvecs", 1)?;
    let truth = vecs_file("sample_gt.ivecs", 4)?;
    if (base.len(), queries.len(), truth.len()) != (10_000, 200, 200) {
        return Err(format!("{} vectors, {} queries, {} rows of truth", base.len(), queries.len(), truth.len()));
    }
    let dim = 128;
    let (n, nq, k) =
        (by_device(device, 700, base.len()), by_device(device, 3, queries.len()), by_device(device, 20, 100));
    let values = |rows: &[Vec<u8>]| -> Vec<T> { rows.iter().flatten().map(|&v| T::nearest(f64::from(v))).collect() };
    let mut index = FlatIndex::<T>::new(dim, Metric::L2, device).map_err(text)?;
    index.add(&values(&base[..n])).map_err(text)?;
    let found = index.search(&values(&queries[..nq]), k).map_err(text)?;
    for (number, query) in queries[..nq].iter().enumerate() {
        let squared = |row: &Vec<u8>| -> u32 {
            query.iter().zip(row).map(|(&a, &b)| u32::from(a.abs_diff(b)) * u32::from(a.abs_diff(b))).sum()
        };
        let mut ranked: Vec<(u32, u64)> = base[..n].iter().map(squared).zip(0..).collect();
        ranked.sort_unstable();
        let (ids, distances) = found.row(number);
        for (place, &(distance, id)) in ranked[..k].iter().enumerate() {
            if (ids[place], distances[place]) != (id, distance as f32) {
                return Err(format!(
                    "query {number}, place {place}: id {} at {}, expected {id} at {distance}",
                    ids[place], distances[place]
                ));
            }
        }
        if n == base.len() {
            let shipped =
                truth[number].chunks_exact(4).map(|id| u64::from(u32::from_le_bytes([id[0], id[1], id[2], id[3]])));
            if !shipped.take(k).eq(ids.iter().copied()) {
                return Err(format!("query {number}: ids differ from the shipped ground truth"));
            }
        }
    }
    Ok(())
}
