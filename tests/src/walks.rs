//! Walks of graph indexes: a device returns what the CPU returns, to the bit. What walks find is tested on the CPU, in
//! warpann's unit tests.

use half::{bf16, f16};
use warpann::{Device, Element, Filter, GraphIndex, Metric, SearchOptions};

use crate::data::{Component, Random};
use crate::runner::{Outcome, same, text};
use crate::scenarios::{Scenario, by_device};

/// Every scenario: each element type, short and long rows, rows of fewer components than a team of lanes reads, small
/// and large degrees.
pub const ALL: &[Scenario] = &[
    ("walks::f32_l2", |device| walks::<f32>(device, Metric::L2, 35, 8, false)),
    ("walks::f16_cosine", |device| walks::<f16>(device, Metric::Cosine, 3, 33, false)),
    ("walks::bf16_inner_product", |device| walks::<bf16>(device, Metric::InnerProduct, 64, 12, false)),
    ("walks::u8_cosine", |device| walks::<u8>(device, Metric::Cosine, 40, 8, false)),
    ("walks::u8_inner_product", |device| walks::<u8>(device, Metric::InnerProduct, 48, 20, false)),
    ("walks::i8_l2", |device| walks::<i8>(device, Metric::L2, 130, 16, false)),
    ("walks::codes_of_f32_cosine", |device| walks::<f32>(device, Metric::Cosine, 35, 8, true)),
    ("walks::codes_of_f16_l2", |device| walks::<f16>(device, Metric::L2, 128, 16, true)),
    ("walks::codes_of_bf16_inner_product", |device| walks::<bf16>(device, Metric::InnerProduct, 140, 9, true)),
];

/// Vectors around 40 centres, so that beams of some queries fill a table and those of others do not.
fn vectors<T: Element>(random: &mut Random, centres: &[f32], dim: usize, count: usize) -> Vec<T> {
    let row = |_| {
        let centre = random.below(40) * dim;
        (0..dim).map(|j| T::from_f32(centres[centre + j] + random.below(1000) as f32 * 0.02)).collect::<Vec<T>>()
    };
    (0..count).flat_map(row).collect()
}

/// Walks with filters, with beams of every width, with removed and replaced vectors, each against the same index on the
/// CPU.
fn walks<T: Component>(device: Device, metric: Metric, dim: usize, degree: usize, codes: bool) -> Outcome {
    let mut random = Random::new(dim as u64);
    let centres: Vec<f32> = (0..40 * dim).map(|_| random.below(60) as f32).collect();
    let (n, nq) = (by_device(device, 400, 15_000), by_device(device, 5, 700));
    let base: Vec<T> = vectors(&mut random, &centres, dim, n);
    let queries: Vec<T> = vectors(&mut random, &centres, dim, nq);
    let mut built = GraphIndex::<T>::builder(dim)
        .metric(metric)
        .device(Device::Cpu)
        .exact_ratio(0)
        .degree(degree)
        .codes(codes)
        .build()
        .map_err(text)?;
    built.add(&base).map_err(text)?;
    built.remove(&(20..n as u64 / 8).collect::<Vec<_>>()).map_err(text)?;
    // A file has no removed rows, so both come from it.
    if built.statistics().codes != codes {
        return Err(format!("codes: {}", built.statistics().codes));
    }
    let bytes = built.to_bytes().map_err(text)?;
    let mut on_cpu = GraphIndex::<T>::from_bytes(&bytes, Device::Cpu, None).map_err(text)?;
    let mut on_device = GraphIndex::<T>::from_bytes(&bytes, device, None).map_err(text)?;

    let filter = on_cpu.filter(|id| id % 3 != 0);
    // (k, width of the beam, whether under the filter). For k = 40 more than a warp re-ranks.
    let searches = [
        (3, 20, false),
        (10, 50, true),
        (40, 96, false),
        (10, 16, false),
        (10, 16, true),
        (10, 33, false),
        (10, 128, true),
        (100, 256, false),
        (10, 600, true),
    ];
    for &(k, beam, filtered) in &searches[..by_device(device, 3, searches.len())] {
        let options = SearchOptions::new().beam(beam).filter(filtered.then_some(Filter::Bits(&filter)));
        let expected = on_cpu.search_with(&queries, k, &options).map_err(text)?;
        let found = on_device.search_with(&queries, k, &options).map_err(text)?;
        same(&format!("k = {k}, beam {beam}, filtered: {filtered}"), &expected, &found)?;
        // Few queries take another kernel.
        let found = on_device.search_with(&queries[..2 * dim], k, &options).map_err(text)?;
        let first = 2 * k;
        if (&found.ids[..], &found.distances[..]) != (&expected.ids[..first], &expected.distances[..first]) {
            return Err(format!("two queries, k = {k}, beam {beam}, filtered: {filtered}"));
        }
    }
    let edges = on_cpu.statistics().edges;
    if on_device.statistics().device_bytes <= 4 * edges {
        return Err(format!("the graph of {edges} edges is not on the device"));
    }

    // The device makes the same graph.
    let mut made = GraphIndex::<T>::builder(dim)
        .metric(metric)
        .device(device)
        .exact_ratio(0)
        .degree(degree)
        .codes(codes)
        .build()
        .map_err(text)?;
    made.add(&base).map_err(text)?;
    made.remove(&(20..n as u64 / 8).collect::<Vec<_>>()).map_err(text)?;
    if made.to_bytes().map_err(text)? != bytes {
        return Err("the device makes another graph".to_owned());
    }

    // The device sees every change.
    let gone: Vec<u64> = on_cpu.ids()[..30].to_vec();
    let added: Vec<T> = vectors(&mut random, &centres, dim, 25);
    for index in [&mut on_cpu, &mut on_device] {
        index.remove(&gone).map_err(text)?;
        index.upsert(&added, &(n as u64 - 15..n as u64 + 10).collect::<Vec<_>>()).map_err(text)?;
    }
    let expected = on_cpu.search(&queries, 5).map_err(text)?;
    same("after changes", &expected, &on_device.search(&queries, 5).map_err(text)?)
}
