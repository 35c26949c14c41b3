//! Clustering: against the definition, by its properties, and with the bits that the CPU gives.

use std::ops::ControlFlow;

use half::{bf16, f16};
use warpann::kmeans::{Clustering, KMeans, Start};
use warpann::{Device, ElementType, Error, Metric};

use crate::cases::VectorData;
use crate::data::{self, Component, Random};
use crate::reference;
use crate::runner::{Outcome, text};
use crate::scenarios::{Scenario, by_device};

/// Every scenario. Each chooses sizes that suit the device.
pub const ALL: &[Scenario] = &[
    ("kmeans::by_the_definition_f32", by_the_definition::<f32>),
    ("kmeans::by_the_definition_f16", by_the_definition::<f16>),
    ("kmeans::by_the_definition_bf16", by_the_definition::<bf16>),
    ("kmeans::by_the_definition_u8", by_the_definition::<u8>),
    ("kmeans::by_the_definition_i8", by_the_definition::<i8>),
    ("kmeans::same_bits_as_the_cpu_f32", same_bits_as_the_cpu::<f32>),
    ("kmeans::same_bits_as_the_cpu_u8", same_bits_as_the_cpu::<u8>),
    ("kmeans::every_option_the_same_bits_as_the_cpu", every_option),
    ("kmeans::nearest_of_adversarial_rows", nearest_of_adversarial_rows),
    ("kmeans::objective_falls_and_no_cluster_is_empty", objective_falls),
    ("kmeans::spherical_objective_rises_on_the_sphere", spherical),
    ("kmeans::balance_holds_its_bound", balance_holds),
    ("kmeans::weights_repeat_points", weights_repeat),
    ("kmeans::as_many_clusters_as_points", as_many_clusters_as_points),
    ("kmeans::empty_clusters_are_split", empty_clusters_are_split),
    ("kmeans::any_budget_the_same_bits_or_an_error", budgets),
    ("kmeans::bad_arguments_are_refused", bad_arguments),
];

pub(crate) fn require(holds: bool, message: impl FnOnce() -> String) -> Outcome {
    if holds { Ok(()) } else { Err(message()) }
}

pub(crate) fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// All that a training answers, to the bit.
pub(crate) fn same(case: &str, expected: &Clustering, found: &Clustering) -> Outcome {
    let (a, b) = (bits(&expected.centroids), bits(&found.centroids));
    if let Some(at) = (0..a.len().max(b.len())).find(|&at| a.get(at) != b.get(at)) {
        let (dim, pick) = (expected.dim, |c: &Clustering| c.centroids.get(at).copied());
        return Err(format!(
            "{case}: centroid {}, component {}: {:?}, expected {:?}",
            at / dim,
            at % dim,
            pick(found),
            pick(expected)
        ));
    }
    require(expected.labels == found.labels, || format!("{case}: other labels"))?;
    require(expected.sizes == found.sizes, || {
        format!("{case}: sizes {:?}, expected {:?}", found.sizes, expected.sizes)
    })?;
    let wide = |c: &Clustering| c.objectives.iter().map(|o| o.to_bits()).collect::<Vec<_>>();
    require(wide(expected) == wide(found), || {
        format!("{case}: objectives {:?}, expected {:?}", found.objectives, expected.objectives)
    })
}

/// Whole numbers, whose sums are exact, against the plain algorithm.
fn by_the_definition<T: Component>(device: Device) -> Outcome {
    // (dim, points, clusters)
    let shapes = [(3, 150, 5), (1, 97, 4), (127, 60, 3), (129, 70, 7), (2, 3000, 40), (64, 2500, 65)];
    let whole = T::TYPE == ElementType::F32 && device != Device::Emulator;
    for (dim, points, clusters) in shapes.into_iter().take(if whole { shapes.len() } else { 4 }) {
        let mut random = Random::new(900 + dim as u64);
        let low = if T::nearest(-1.0).exact() < 0.0 { -20.0 } else { 0.0 };
        let rows: Vec<T> = (0..points * dim).map(|_| T::nearest(low + random.below(41) as f64)).collect();
        let exact: Vec<f64> = rows.iter().map(|x| x.exact()).collect();
        let weights: Vec<f32> = (0..points).map(|_| (1 + random.below(16)) as f32 * 0.25).collect();
        let start: Vec<f32> = (0..clusters).flat_map(|c| exact[c * dim..][..dim].iter().map(|&x| x as f32)).collect();
        for (spherical, weighted) in [(false, false), (true, true), (false, true), (true, false)] {
            for iterations in [1, by_device(device, 2, 6)] {
                let case = format!("{points} x {dim}, {clusters} clusters, spherical {spherical}, weighted {weighted}");
                let ones = vec![1.0f32; points];
                let weights = if weighted { &weights } else { &ones };
                let wide: Vec<f64> = weights.iter().map(|&w| f64::from(w)).collect();
                let settings = KMeans::new(clusters)
                    .iterations(iterations)
                    .start(Start::Given(start.clone()))
                    .spherical(spherical)
                    .points_per_centroid(None)
                    .labels(true)
                    .device(device);
                let mut split = 0;
                let found = settings
                    .train_watched(&rows, dim, weighted.then_some(weights.as_slice()), &mut |p| {
                        split += p.split;
                        ControlFlow::Continue(())
                    })
                    .map_err(text)?;
                if split > 0 {
                    // Splitting is beyond the plain algorithm. Of the shapes above only those with many equal points
                    // meet it.
                    require(dim <= 2, || format!("{case}: {split} splits"))?;
                    continue;
                }
                let start = if spherical { normalised(&start, dim) } else { start.clone() };
                let (centroids, objectives, labels) =
                    reference::lloyd(spherical, dim, &exact, &wide, &start, iterations);
                let expected = Clustering {
                    sizes: histogram(&labels, clusters),
                    centroids,
                    labels: Some(labels),
                    objectives: found.objectives.clone(),
                    ..found.clone()
                };
                same(&case, &expected, &found)?;
                let scale: f64 = exact.chunks(dim).zip(&wide).map(|(x, w)| w * reference::squares(x)).sum();
                for (found, expected) in found.objectives.iter().zip(&objectives) {
                    require((found - expected).abs() <= scale * 1e-12, || {
                        format!("{case}: objective {found}, expected {expected}")
                    })?;
                }
                require(found.objectives.len() == iterations, || format!("{case}: {:?}", found.objectives))?;
            }
        }
    }
    Ok(())
}

/// The starts of spherical k-means as the library normalises them: one update from points that are the centroids
/// themselves.
pub(crate) fn normalised(start: &[f32], dim: usize) -> Vec<f32> {
    let clusters = start.len() / dim;
    let wide: Vec<f64> = start.iter().map(|&x| f64::from(x)).collect();
    (0..clusters)
        .flat_map(|c| {
            let one = &wide[c * dim..][..dim];
            reference::lloyd(true, dim, one, &[1.0], &start[c * dim..][..dim], 1).0
        })
        .collect()
}

pub(crate) fn histogram(labels: &[u32], clusters: usize) -> Vec<u32> {
    let mut sizes = vec![0; clusters];
    labels.iter().for_each(|&label| sizes[label as usize] += 1);
    sizes
}

/// The settings on `device`, and on the CPU, where they were checked against the definition.
fn compare<T: Component>(
    case: &str,
    settings: &KMeans,
    device: Device,
    rows: &[T],
    dim: usize,
    weights: Option<&[f32]>,
) -> Result<Clustering, String> {
    let train = |device| {
        settings
            .clone()
            .device(device)
            .train_watched(rows, dim, weights, &mut |_| ControlFlow::Continue(()))
            .map_err(text)
    };
    let found = train(device)?;
    same(case, &train(Device::Cpu)?, &found)?;
    Ok(found)
}

/// Centroids that no training found, with nothing else.
pub(crate) fn of_centroids(centroids: Vec<f32>, dim: usize, spherical: bool, device: Device) -> Clustering {
    Clustering {
        centroids,
        dim,
        objectives: Vec::new(),
        sizes: Vec::new(),
        labels: None,
        spherical,
        device: device.into(),
    }
}

fn same_bits_as_the_cpu<T: Component>(device: Device) -> Outcome {
    let shapes = [
        (8, 300, 9),
        (1, 65, 3),
        (33, 200, 17),
        (128, 2100, 32),
        (129, 20_000, 300),
        (4, 60_000, 256),
        (960, 3000, 20),
    ];
    for (dim, points, clusters) in shapes.into_iter().take(by_device(device, 3, shapes.len())) {
        // Every pair of the latter is judged by its canonical distance, which takes long on the CPU.
        let kinds = [VectorData::Gaussian, VectorData::Ties, VectorData::Duplicates, VectorData::FarClusters];
        for data in kinds.into_iter().take(if points * clusters * dim < 10_000_000 { 4 } else { 2 }) {
            let rows = data::vectors::<T>(data, dim, points, 0, 950).base;
            for spherical in [false, true] {
                let settings = KMeans::new(clusters)
                    .iterations(by_device(device, 2, 4))
                    .spherical(spherical)
                    .points_per_centroid(None)
                    .labels(true)
                    .seed(5);
                let case = format!("{data:?}, {points} x {dim}, {clusters} clusters, spherical {spherical}");
                compare(&case, &settings, device, &rows, dim, None)?;
            }
        }
    }
    Ok(())
}

fn every_option(device: Device) -> Outcome {
    let (dim, points, clusters) = (19, by_device(device, 300, 20_000), by_device(device, 6, 60));
    let rows = data::vectors::<f32>(VectorData::Gaussian, dim, points, 0, 951).base;
    let mut random = Random::new(951);
    let weights: Vec<f32> =
        (0..points).map(|_| if random.below(5) == 0 { 0.0 } else { random.unit() as f32 }).collect();
    let plain = KMeans::new(clusters).iterations(3).seed(9).labels(true);
    let settings = [
        ("plain", plain.clone()),
        ("no iterations", plain.clone().iterations(0)),
        ("plus-plus", plain.clone().start(Start::PlusPlus)),
        ("plus-plus, spherical", plain.clone().start(Start::PlusPlus).spherical(true)),
        ("sampled", plain.clone().points_per_centroid(Some(10))),
        ("balanced", plain.clone().balanced(Some(1.2)).points_per_centroid(None)),
        (
            "balanced, sampled, spherical",
            plain.clone().balanced(Some(1.0)).points_per_centroid(Some(20)).spherical(true),
        ),
    ];
    for (name, settings) in settings {
        let first = compare(name, &settings, device, &rows, dim, None)?;
        compare(name, &settings, device, &rows, dim, Some(&weights))?;
        // Again: the same; another seed: not.
        let again = |settings: &KMeans| settings.clone().device(device).train(&rows, dim).map_err(text);
        same(name, &first, &again(&settings)?)?;
        let other = again(&settings.clone().seed(10))?;
        require(bits(&other.centroids) != bits(&first.centroids), || format!("{name}: the seed does not matter"))?;
        // Labels are those that the centroids give to any rows.
        if !name.contains("balanced") {
            let labels = first.assign(&rows, device).map_err(text)?;
            require(Some(labels) == first.labels, || format!("{name}: assign disagrees with labels"))?;
        }
    }
    Ok(())
}

/// Assignments alone, to centroids of every kind of the table, against the definition.
fn nearest_of_adversarial_rows(device: Device) -> Outcome {
    let shapes = [(5, 60, 9), (17, 90, 40), (128, 500, 70), (64, 1500, 300)];
    for (dim, points, clusters) in shapes.into_iter().take(by_device(device, 2, shapes.len())) {
        let kinds = [
            VectorData::Gaussian,
            VectorData::Ties,
            VectorData::AllEqual,
            VectorData::FarClusters,
            VectorData::Huge,
            VectorData::Tiny,
            VectorData::Zeros,
            VectorData::Outlier,
            VectorData::Line,
        ];
        for data in kinds {
            let vectors = data::vectors::<f32>(data, dim, clusters, points, 952);
            for spherical in [false, true] {
                let metric = if spherical { Metric::InnerProduct } else { Metric::L2 };
                let clustering = of_centroids(vectors.base.clone(), dim, spherical, device);
                let found = clustering.assign(&vectors.queries, device).map_err(text)?;
                require(found.len() == points, || format!("{} labels", found.len()))?;
                for (point, (query, &label)) in vectors.exact_queries.chunks(dim).zip(&found).enumerate() {
                    let expected = reference::nearest(metric, dim, &vectors.exact_base, query, 1)[0].0;
                    require(expected == u64::from(label), || {
                        format!(
                            "{data:?}, {metric:?}, {clusters} x {dim}: point {point} in {label}, expected {expected}"
                        )
                    })?;
                }
            }
        }
    }
    Ok(())
}

fn objective_falls(device: Device) -> Outcome {
    let (dim, points, clusters) = (12, by_device(device, 400, 20_000), by_device(device, 8, 100));
    for data in [VectorData::Gaussian, VectorData::FarClusters, VectorData::Outlier] {
        let rows = data::vectors::<f32>(data, dim, points, 0, 953).base;
        let energy: f64 = rows.iter().map(|&x| f64::from(x) * f64::from(x)).sum();
        let mut split = Vec::new();
        let settings = KMeans::new(clusters)
            .iterations(by_device(device, 4, 15))
            .points_per_centroid(None)
            .labels(true)
            .device(device);
        let found = settings
            .train_watched(&rows, dim, None, &mut |p| {
                split.push(p.split);
                ControlFlow::Continue(())
            })
            .map_err(text)?;
        for (at, pair) in found.objectives.windows(2).enumerate() {
            // A split moves centroids by a thousandth; f32 centroids are means within 2^-24 of their size.
            require(split[at] > 0 || pair[1] <= pair[0] + energy * 1e-12, || {
                format!("{data:?}: {:?}", found.objectives)
            })?;
        }
        require(found.sizes.iter().all(|&size| size > 0), || format!("{data:?}: sizes {:?}", found.sizes))?;
        let labels = found.labels.as_deref().unwrap_or_default();
        require(histogram(labels, clusters) == found.sizes, || "sizes are not those of the labels".to_owned())?;
    }
    Ok(())
}

fn spherical(device: Device) -> Outcome {
    let (dim, points, clusters) = (16, by_device(device, 300, 10_000), by_device(device, 5, 40));
    let rows = data::vectors::<f32>(VectorData::Gaussian, dim, points, 0, 954).base;
    let settings = KMeans::new(clusters).iterations(5).spherical(true).points_per_centroid(None).device(device);
    let found = settings.train(&rows, dim).map_err(text)?;
    for centroid in found.centroids.chunks(dim) {
        let norm = centroid.iter().map(|&c| f64::from(c) * f64::from(c)).sum::<f64>().sqrt();
        require((norm - 1.0).abs() < 1e-6, || format!("a centroid of norm {norm}"))?;
    }
    require(found.objectives.windows(2).all(|pair| pair[1] >= pair[0] * (1.0 - 1e-6)), || {
        format!("objectives {:?}", found.objectives)
    })
}

fn balance_holds(device: Device) -> Outcome {
    let (dim, points, clusters) = (6, by_device(device, 240, 9_000), by_device(device, 7, 50));
    let mut random = Random::new(955);
    // Half of the points in one spot, a thousandth of its neighbours' distances across.
    let rows: Vec<f32> = (0..points)
        .flat_map(|point| {
            let width = if point % 2 == 0 { 0.001 } else { 1.0 };
            (0..dim).map(|_| (random.normal() * width) as f32).collect::<Vec<_>>()
        })
        .collect();
    let plain = KMeans::new(clusters).iterations(4).labels(true).points_per_centroid(None).device(device);
    let unbound = plain.train(&rows, dim).map_err(text)?;
    let largest = |found: &Clustering| found.sizes.iter().copied().max().unwrap_or(0) as usize;
    for (bound, sampled) in [(1.0, None), (1.1, None), (2.0, None), (1.05, Some(20))] {
        let settings = plain.clone().balanced(Some(bound)).points_per_centroid(sampled);
        let mut worst: f64 = 0.0;
        let found = settings
            .train_watched(&rows, dim, None, &mut |p| {
                worst = worst.max(f64::from(p.largest) / p.mean);
                ControlFlow::Continue(())
            })
            .map_err(text)?;
        let most = (bound * points as f64 / clusters as f64).ceil() as usize;
        require(largest(&unbound) > most, || format!("bound {bound} bounds nothing: {:?}", unbound.sizes))?;
        let labels = found.labels.as_deref().unwrap_or_default();
        require(labels.len() == points && histogram(labels, clusters) == found.sizes, || "sizes".to_owned())?;
        require(largest(&found) <= most, || format!("{:?} where {most} are allowed", found.sizes))?;
        let slack = clusters as f64 / sampled.map_or(points, |sampled| sampled * clusters) as f64;
        require(worst <= bound + slack, || format!("{worst} times the mean in training, bound {bound}"))?;
    }
    Ok(())
}

fn weights_repeat(device: Device) -> Outcome {
    let (dim, points, clusters) = (9, by_device(device, 120, 4000), by_device(device, 4, 25));
    let mut random = Random::new(956);
    let rows: Vec<f32> = (0..points * dim).map(|_| random.below(100) as f32).collect();
    let counts: Vec<usize> = (0..points).map(|_| random.below(4)).collect();
    let repeated: Vec<f32> = rows.chunks(dim).zip(&counts).flat_map(|(row, &count)| row.repeat(count)).collect();
    let weights: Vec<f32> = counts.iter().map(|&count| count as f32).collect();
    let start = rows[..clusters * dim].to_vec();
    for spherical in [false, true] {
        let settings = KMeans::new(clusters)
            .iterations(4)
            .start(Start::Given(start.clone()))
            .spherical(spherical)
            .points_per_centroid(None)
            .device(device);
        let weighted = settings.train_weighted(&rows, dim, &weights).map_err(text)?;
        let plain = settings.train(&repeated, dim).map_err(text)?;
        require(bits(&weighted.centroids) == bits(&plain.centroids), || "weights are not repetitions".to_owned())?;
        for (a, b) in weighted.objectives.iter().zip(&plain.objectives) {
            require((a - b).abs() <= 1e-9 * a.abs(), || format!("objectives {a} and {b}"))?;
        }
    }
    Ok(())
}

fn as_many_clusters_as_points(device: Device) -> Outcome {
    let (dim, points) = (3, by_device(device, 20, 700));
    let rows = data::vectors::<f32>(VectorData::Gaussian, dim, points, 0, 957).base;
    let settings = KMeans::new(points).iterations(2).labels(true).device(device);
    for start in [Start::Random, Start::PlusPlus] {
        let found = settings.clone().start(start).train(&rows, dim).map_err(text)?;
        require(found.sizes.iter().all(|&size| size == 1), || format!("sizes {:?}", found.sizes))?;
        let mut sorted =
            [found.centroids.chunks(dim).map(bits).collect::<Vec<_>>(), rows.chunks(dim).map(bits).collect()];
        sorted.iter_mut().for_each(|rows| rows.sort());
        require(sorted[0] == sorted[1], || "the centroids are not the points".to_owned())?;
    }
    // One point, many times: everything goes to the lowest centroid.
    let rows = vec![2.5f32; points * dim];
    for start in [Start::Random, Start::PlusPlus] {
        let found = settings.clone().start(start).train(&rows, dim).map_err(text)?;
        require(found.centroids.iter().all(|c| c.is_finite()), || "centroids out of range".to_owned())?;
        require(found.labels.as_ref().is_some_and(|labels| labels.iter().all(|label| *label == labels[0])), || {
            format!("labels {:?}", found.labels)
        })?;
    }
    Ok(())
}

fn empty_clusters_are_split(device: Device) -> Outcome {
    let (dim, points, clusters) = (4, by_device(device, 200, 5000), by_device(device, 6, 50));
    let rows = data::vectors::<f32>(VectorData::Gaussian, dim, points, 0, 958).base;
    // All centroids except one are so far away that no point is nearest to them.
    let mut start = vec![1e6f32; clusters * dim];
    start[..dim].fill(0.0);
    let settings = KMeans::new(clusters)
        .iterations(by_device(device, 6, 12))
        .start(Start::Given(start))
        .labels(true)
        .points_per_centroid(None);
    let mut split = Vec::new();
    settings
        .clone()
        .device(device)
        .train_watched(&rows, dim, None, &mut |p| {
            split.push(p.split);
            ControlFlow::Continue(())
        })
        .map_err(text)?;
    require(split[0] == clusters - 1, || format!("splits {split:?}"))?;
    let found = compare("splits", &settings, device, &rows, dim, None)?;
    require(found.sizes.iter().all(|&size| size > 0), || format!("sizes {:?}", found.sizes))
}

/// Halves the budget until nothing fits.
fn budgets(device: Device) -> Outcome {
    let (dim, points, clusters) = (20, by_device(device, 300, 30_000), by_device(device, 5, 50));
    let rows = data::vectors::<f32>(VectorData::Gaussian, dim, points, 0, 959).base;
    let settings = KMeans::new(clusters).iterations(2).labels(true).points_per_centroid(None).device(device);
    let expected = settings.train(&rows, dim).map_err(text)?;
    let (mut budget, mut done) = (by_device(device, 1 << 20, 64 << 20) as u64, 0);
    while budget > 0 {
        match settings.clone().memory_budget(budget).train(&rows, dim) {
            Ok(found) => {
                same(&format!("budget of {budget} bytes"), &expected, &found)?;
                done += 1;
            }
            Err(Error::OutOfDeviceMemory { .. }) => {}
            Err(error) => return Err(format!("budget of {budget} bytes: {error}")),
        }
        budget /= by_device(device, 8, 4) as u64;
    }
    require(done > 0, || "no budget was enough".to_owned())
}

fn bad_arguments(device: Device) -> Outcome {
    let rows = [0.0f32, 1.0, 2.0, 3.0, 4.0, 5.0];
    let two = KMeans::new(2).device(device);
    let refused = |case: &str, result: Result<Clustering, Error>, matches: fn(&Error) -> bool| match result {
        Err(error) if matches(&error) => Ok(()),
        other => Err(format!("{case}: {other:?}")),
    };
    refused("dimension 0", two.train(&rows, 0), |e| matches!(e, Error::Zero { what: "dimension" }))?;
    refused("no clusters", KMeans::new(0).device(device).train(&rows, 2), |e| {
        matches!(e, Error::Zero { what: "clusters" })
    })?;
    refused("ragged", two.train(&rows[..5], 2), |e| {
        matches!(e, Error::Ragged { what: "components", len: 5, size: 2 })
    })?;
    refused("too few", KMeans::new(4).device(device).train(&rows, 2), |e| {
        matches!(e, Error::TooFewTrainingVectors { have: 3, need: 4 })
    })?;
    refused("none", two.train::<f32>(&[], 2), |e| matches!(e, Error::TooFewTrainingVectors { have: 0, need: 2 }))?;
    refused("NaN", two.train(&[0.0, 1.0, 2.0, f32::NAN], 2), |e| {
        matches!(e, Error::NotFinite { row: 1, column: 1, .. })
    })?;
    refused("weights", two.train_weighted(&rows, 2, &[1.0; 2]), |e| {
        matches!(e, Error::WrongLength { what: "weights", expected: 3, actual: 2 })
    })?;
    for bad in [-1.0, f32::NAN, f32::INFINITY] {
        refused("weight", two.train_weighted(&rows, 2, &[1.0, bad, 1.0]), |e| {
            matches!(e, Error::BadWeight { row: 1, .. })
        })?;
    }
    refused("no weight", two.train_weighted(&rows, 2, &[0.0; 3]), |e| matches!(e, Error::BadWeight { row: 0, .. }))?;
    for bound in [0.99, -1.0, f64::NAN, f64::INFINITY] {
        refused("balance", two.clone().balanced(Some(bound)).train(&rows, 2), |e| {
            matches!(e, Error::BadNumber { what: "bound of cluster sizes over their mean", .. })
        })?;
    }
    refused("start", two.clone().start(Start::Given(vec![0.0; 3])).train(&rows, 2), |e| {
        matches!(e, Error::WrongLength { what: "components of starting centroids", expected: 4, actual: 3 })
    })?;
    refused("start", two.clone().start(Start::Given(vec![f32::NAN; 4])).train(&rows, 2), |e| {
        matches!(e, Error::NotFinite { row: 0, column: 0, .. })
    })?;
    let trained = two.train(&rows, 2).map_err(text)?;
    require(
        matches!(trained.assign(&rows[..3], device), Err(Error::Ragged { what: "components", len: 3, size: 2 })),
        || "ragged rows assigned".to_owned(),
    )?;
    require(trained.assign::<f32>(&[], device).map_err(text)?.is_empty(), || "labels of nothing".to_owned())
}
