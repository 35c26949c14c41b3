//! Work of several streams or threads at once, as small as possible on a GPU: for tools that slow kernels down a
//! thousandfold (compute-sanitizer's racecheck; `run.sh sanitize` of the bundle runs these). Results are compared with
//! the CPU's, to the bit.

use warpann::ivf::Encoding;
use warpann::kmeans::KMeans;
use warpann::{Device, FlatIndex, IvfIndex, Neighbors, Placement, SearchOptions};

use crate::cases::VectorData;
use crate::data;
use crate::runner::{Outcome, same, text};
use crate::scenarios::{Scenario, by_device};

/// All scenarios, each run as one test.
pub const ALL: &[Scenario] = &[
    ("sanitize::threads_share_an_exact_index", threads_share_an_exact_index),
    ("sanitize::base_streamed_in_blocks", base_streamed_in_blocks),
    ("sanitize::two_lanes_of_lists", |device| lists(device, Encoding::Flat, false)),
    ("sanitize::two_lanes_of_codes", |device| {
        lists(device, Encoding::Pq { sub_quantizers: 2, bits: 4, rotate: false }, false)
    }),
    ("sanitize::threads_share_lists", |device| lists(device, Encoding::Flat, true)),
    ("sanitize::clusters_of_two_parts", clusters_of_two_parts),
];

/// Searches from three threads, twice each.
fn from_threads(expected: &Neighbors, search: impl Fn() -> warpann::Result<Neighbors> + Sync) -> Outcome {
    std::thread::scope(|scope| {
        let work = || (0..2).try_for_each(|_| same("a thread's search", expected, &search().map_err(text)?));
        let threads: Vec<_> = (0..3).map(|_| scope.spawn(work)).collect();
        threads.into_iter().try_for_each(|thread| thread.join().unwrap_or_else(|_| Err("a thread panicked".to_owned())))
    })
}

fn exact(device: Device, budget: Option<u64>, dim: usize, base: &[f32]) -> warpann::Result<FlatIndex<f32>> {
    let builder = FlatIndex::<f32>::builder(dim).device(device);
    let builder = match budget {
        Some(bytes) => builder.memory_budget(bytes),
        None => builder,
    };
    let mut index = builder.build()?;
    index.add(base)?;
    Ok(index)
}

fn threads_share_an_exact_index(device: Device) -> Outcome {
    let (dim, n, nq, k) = (16, by_device(device, 300, 4_000), by_device(device, 3, 40), 10);
    let vectors = data::vectors::<f32>(VectorData::Gaussian, dim, n, nq, 501);
    let search = |index: &FlatIndex<f32>| index.search(&vectors.queries, k);
    let expected = search(&exact(Device::Cpu, None, dim, &vectors.base).map_err(text)?).map_err(text)?;
    let index = exact(device, None, dim, &vectors.base).map_err(text)?;
    from_threads(&expected, || search(&index))
}

/// Under the largest budget that does not hold the base.
fn base_streamed_in_blocks(device: Device) -> Outcome {
    let (dim, n, nq, k) = (16, by_device(device, 500, 8_000), by_device(device, 3, 20), 10);
    let vectors = data::vectors::<f32>(VectorData::Gaussian, dim, n, nq, 502);
    let search = |index: &FlatIndex<f32>| index.search(&vectors.queries, k);
    let expected = search(&exact(Device::Cpu, None, dim, &vectors.base).map_err(text)?).map_err(text)?;
    let mut budget = 8 << 20;
    loop {
        let index = exact(device, Some(budget), dim, &vectors.base).map_err(text)?;
        if index.device().contains("streamed") || device == Device::Cpu {
            return from_threads(&expected, || search(&index));
        }
        budget = budget / 4 * 3;
    }
}

/// The number of queries is so large that a search cuts them into parts and uses two lanes.
fn lists(device: Device, encoding: Encoding, threads: bool) -> Outcome {
    let (dim, lists, n, nq) = (4, 4, by_device(device, 80, 200), by_device(device, 20, 20_100));
    let vectors = data::vectors::<f32>(VectorData::Gaussian, dim, n, nq, 503);
    let build = IvfIndex::<f32>::builder(dim, lists).encoding(encoding).iterations(2).device(Device::Cpu).build();
    let mut index = build.map_err(text)?;
    index.train(&vectors.base).and_then(|()| index.add(&vectors.base)).map_err(text)?;
    let queries = if threads { &vectors.queries[..by_device(device, 3, 50) * dim] } else { &vectors.queries };
    let expected = index.search_with(queries, 3, &SearchOptions::new().probes(2)).map_err(text)?;
    index.move_to(device).map_err(text)?;
    if threads {
        return from_threads(&expected, || index.search_with(queries, 3, &SearchOptions::new().probes(2)));
    }
    same("two lanes", &expected, &index.search_with(queries, 3, &SearchOptions::new().probes(2)).map_err(text)?)
}

/// The device twice: two parts, whose sums meet.
fn clusters_of_two_parts(device: Device) -> Outcome {
    let (dim, n, clusters) = (8, by_device(device, 200, 4_000), 8);
    let vectors = data::vectors::<f32>(VectorData::Gaussian, dim, n, 1, 504);
    let train = |placement: Placement| {
        let settings = KMeans::new(clusters).iterations(3).points_per_centroid(None).labels(true);
        settings.device(placement).train(&vectors.base, dim).map_err(text)
    };
    let twice = format!("{device}+{device}").parse::<Placement>().map_err(text)?;
    let (expected, found) = (train(Device::Cpu.into())?, train(twice)?);
    let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
    if bits(&expected.centroids) != bits(&found.centroids) || expected.labels != found.labels {
        return Err("two parts give other bits than the CPU".to_owned());
    }
    Ok(())
}
