//! Tests that need private parts: threads and devices. The repository's `tests` has the others, for every device.

use std::ops::ControlFlow;

use super::*;

fn rows(count: usize) -> Vec<f32> {
    let mut random = Random::new(40);
    (0..count).map(|_| (random.unit() * 8.0 - 4.0) as f32).collect()
}

#[test]
fn the_number_of_threads_changes_no_bit() {
    let (dim, count) = (13, 5000);
    let rows = rows(count * dim);
    let weights: Vec<f32> = rows[..count].iter().map(|x| x.abs()).collect();
    let plain = KMeans::new(40).iterations(4).labels(true).device(Device::Cpu);
    let settings = [
        plain.clone(),
        plain.clone().start(Start::PlusPlus).points_per_centroid(Some(50)),
        plain.clone().balanced(Some(1.1)).spherical(true),
    ];
    for settings in settings {
        let with = |threads: usize| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            pool.install(|| {
                settings.train_watched(&rows, dim, Some(&weights), &mut |_| ControlFlow::Continue(())).unwrap()
            })
        };
        let one = with(1);
        for threads in [2, 3, 8] {
            assert_eq!(with(threads), one, "{threads} threads, {settings:?}");
        }
    }
}

#[test]
fn the_objective_of_half_a_million_equal_points_is_right() {
    let (count, point, centroid) = (500_001, [0.1f32, 0.7], [0.1001f32, 0.7003]);
    let rows = point.repeat(count);
    let settings = KMeans::new(1).iterations(1).points_per_centroid(None).start(Start::Given(centroid.to_vec()));
    let found = settings.device(Device::Cpu).train(&rows, 2).unwrap();
    let (mut expected, mut terms) = (0.0, 0.0);
    for (x, c) in point.map(f64::from).into_iter().zip(centroid.map(f64::from)) {
        expected += count as f64 * (x - c) * (x - c);
        terms += count as f64 * (x * x + 2.0 * x * c + c * c);
    }
    // The integer sums of 500,001 numbers have 44 bits for each.
    let off = (found.objectives[0] - expected).abs() / terms;
    assert!(off <= 2f64.powi(-43), "{:?}, expected {expected:?}: off by {off:e} of the terms", found.objectives[0]);
}

#[test]
fn watchers_end_the_training() {
    let mut seen = 0;
    let watch = &mut |iteration: &Iteration| {
        seen = iteration.iteration;
        if seen == 2 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    let ended = KMeans::new(6).device(Device::Cpu).train_watched(&rows(600), 2, None, watch);
    assert!(matches!(ended, Err(Error::Cancelled)));
    assert_eq!(seen, 2);
}

#[test]
fn watchers_see_every_iteration() {
    let rows = rows(600);
    let mut seen = Vec::new();
    let settings = KMeans::new(6).iterations(3).points_per_centroid(Some(20)).device(Device::Cpu);
    let found = settings
        .train_watched(&rows, 2, None, &mut |progress| {
            seen.push(*progress);
            ControlFlow::Continue(())
        })
        .unwrap();
    assert_eq!(seen.iter().map(|p| p.iteration).collect::<Vec<_>>(), [0, 1, 2]);
    assert_eq!(seen.iter().map(|p| p.objective).collect::<Vec<_>>(), found.objectives);
    // Training uses 120 of 300 points.
    assert!(seen.iter().all(|p| p.mean == 20.0 && f64::from(p.largest) >= p.mean), "{seen:?}");
    assert_eq!(seen[2].largest, *found.sizes.iter().max().unwrap());
    assert_eq!(found.sizes.iter().sum::<u32>(), 120);
    assert_eq!((found.labels, found.device), (None, Device::Cpu.into()));
}

/// Points of eight components around each of `groups` centres, which lie in ±64. The points of a group lie within 1 of
/// each other.
fn groups(points: usize, groups: usize) -> Vec<f32> {
    let mut random = Random::new(41);
    let centres: Vec<f32> = (0..groups * 8).map(|_| (random.unit() * 128.0 - 64.0) as f32).collect();
    let row = |point: usize| centres[point % groups * 8..][..8].iter();
    (0..points).flat_map(row).map(|centre| centre + random.unit() as f32).collect()
}

/// Σ‖x − nearest centroid‖² over all rows except `without`, in f64, from every pair.
fn plain_objective(rows: &[f32], centroids: &[f32], without: &[usize]) -> f64 {
    let distance =
        |x: &[f32], c: &[f32]| x.iter().zip(c).map(|(&x, &c)| (f64::from(x) - f64::from(c)).powi(2)).sum::<f64>();
    let nearest = |x: &[f32]| centroids.chunks(8).map(|c| distance(x, c)).fold(f64::INFINITY, f64::min);
    let kept = rows.chunks(8).enumerate().filter(|(row, _)| !without.contains(row));
    kept.map(|(_, x)| nearest(x)).sum()
}

/// The result of training on `devices`.
fn trained(settings: &KMeans, rows: &[f32], weights: Option<&[f32]>, devices: &[Device]) -> Clustering {
    let placement = Placement::new(devices.to_vec(), 1).unwrap();
    let found =
        settings.clone().device(placement).train_watched(rows, 8, weights, &mut |_| ControlFlow::Continue(())).unwrap();
    Clustering { device: Device::Cpu.into(), ..found }
}

/// Trains on the CPU and on the emulator, and checks that the results are equal.
fn on_each_device(settings: &KMeans, rows: &[f32], weights: Option<&[f32]>) -> Clustering {
    let [found, emulated] = [Device::Cpu, Device::Emulator].map(|device| trained(settings, rows, weights, &[device]));
    assert_eq!(found, emulated, "emulator");
    found
}

#[test]
fn parts_of_far_vectors_add_up_to_the_bits_of_the_whole() {
    let mut rows = groups(2300, 4);
    (rows[100], rows[9001], rows[18003]) = (1e16, -1e16, f32::MAX);
    let mut weights: Vec<f32> = (0..2300).map(|i| 1.0 + (i % 3) as f32).collect();
    weights[5] = 1e20;
    let settings = KMeans::new(5).iterations(2).labels(true);
    for weights in [None, Some(&weights[..])] {
        let whole = on_each_device(&settings, &rows, weights);
        for devices in [[Device::Cpu, Device::Emulator], [Device::Emulator; 2]] {
            assert_eq!(trained(&settings, &rows, weights, &devices), whole, "{devices:?}");
        }
    }
}

#[test]
fn far_vectors_leave_the_clusters_of_the_others_alone() {
    let rows = groups(600, 12);
    // One point of each group and four more, since far vectors may take their clusters.
    let settings = KMeans::new(16).iterations(6).start(Start::Given(rows[..16 * 8].to_vec())).labels(true);
    let ordinary = trained(&settings, &rows, None, &[Device::Cpu]);
    let best = plain_objective(&rows, &ordinary.centroids, &[]);
    // Single markers for "missing", and three of them in one data set.
    for far in [vec![1e16f32], vec![-1e16], vec![f32::MAX], vec![1e30, -1e12, 1e20]] {
        let mut marked = rows.clone();
        let places: Vec<usize> = (0..far.len()).map(|i| 277 + 100 * i).collect();
        places.iter().zip(&far).for_each(|(place, &far)| marked[place * 8 + 3] = far);
        let found = on_each_device(&settings, &marked, None);
        assert!(found.sizes.iter().all(|&size| size > 0), "{far:?}: {:?}", found.sizes);
        let rest = plain_objective(&marked, &found.centroids, &places);
        assert!(rest < 1.2 * best, "{far:?}: {rest}, without them {best}; {:?}", found.sizes);
    }
}

#[test]
fn a_large_constant_component_changes_no_cluster() {
    let rows = groups(600, 12);
    let constant = |x: f32| {
        let mut rows = rows.clone();
        rows.iter_mut().step_by(8).for_each(|to| *to = x);
        rows
    };
    let train = |rows: &[f32]| {
        let start = Start::Given(rows[..16 * 8].to_vec());
        let found = on_each_device(&KMeans::new(16).iterations(6).start(start).labels(true), rows, None);
        (plain_objective(rows, &found.centroids, &[]), found)
    };
    let (best, _) = train(&constant(0.0));
    for x in [1e6f32, 1e16, -1e18] {
        let (here, found) = train(&constant(x));
        assert!(found.centroids.chunks(8).all(|c| c[0] == x), "{x}: {:?}", found.centroids);
        assert!(here < 1.2 * best, "{x}: {here}, without it {best}; {:?}", found.sizes);
    }
}

#[test]
fn components_of_every_magnitude_get_their_means() {
    // The first component has every magnitude of f32, from row to row. Each other component has one magnitude.
    let exponents = [-149, -135, -120, -104, -90, -30, 60];
    let power = |exponent: i32| 2f64.powi(exponent);
    let row = |point: i32| {
        let first = power(127 - point % 277);
        std::iter::once(first).chain(exponents.map(|exponent| power(exponent) * f64::from(4 + point % 5)))
    };
    let rows: Vec<f32> = (0..600).flat_map(row).map(|x| x as f32).collect();
    // Weights of every magnitude as well.
    let all: Vec<f32> = (0..600).map(|point| power(127 - point * 5 % 277) as f32).collect();
    let quarters: Vec<f32> = (0..600).map(|point| (1 + point % 16) as f32 * 0.25).collect();
    for weights in [None, Some(&quarters[..]), Some(&all[..])] {
        let settings = KMeans::new(1).iterations(1).points_per_centroid(None);
        let found = on_each_device(&settings, &rows, weights);
        let weight = |point: usize| weights.map_or(1.0, |weights| f64::from(weights[point]));
        let total: f64 = (0..600).map(weight).sum();
        for (j, &mean) in found.centroids.iter().enumerate() {
            let expected = (0..600).map(|point| weight(point) * f64::from(rows[point * 8 + j])).sum::<f64>() / total;
            // The unit is 2^-16 of what is usual, so the products and the weights lose 2^-15 together. The least f32
            // bounds the rest.
            let slack = expected * power(-14) + power(-149);
            assert!((f64::from(mean) - expected).abs() <= slack, "component {j}: {mean:e}, the mean is {expected:e}");
        }
    }
}

#[test]
fn one_heavy_point_leaves_the_weights_of_the_others() {
    let rows = groups(600, 6);
    let mut weights = vec![1.0f32; 600];
    weights[300] = 1e16;
    let found = on_each_device(&KMeans::new(6).iterations(6).start(Start::PlusPlus), &rows, Some(&weights));
    // A point of each group is near a centroid, except in the heavy point's group, whose mean is the heavy point.
    let rest = plain_objective(&rows, &found.centroids, &(0..600).filter(|i| i % 6 == 0).collect::<Vec<_>>());
    assert!(rest < 600.0 * 8.0, "{rest}, {:?}", found.sizes);
}

#[test]
fn equal_points_are_not_split() {
    // Half of the points are equal; the others lie in twelve groups.
    let mut rows = groups(600, 12);
    rows[..300 * 8].fill(3.0);
    let starts = [&rows[..2 * 8], &rows[300 * 8..312 * 8]].concat();
    let settings = KMeans::new(14).iterations(6).start(Start::Given(starts)).labels(true);
    let found = on_each_device(&settings, &rows, None);
    // The empty cluster went to a group.
    let equal = found.centroids.chunks(8).filter(|c| c.iter().all(|x| (x - 3.0).abs() < 0.5)).count();
    assert_eq!(equal, 1, "{:?}", found.sizes);
    // No cluster can be split: every empty cluster keeps its centroid.
    let found = on_each_device(&KMeans::new(5).iterations(3).labels(true), &[7.0; 8 * 20], None);
    assert_eq!(found.sizes, [20, 0, 0, 0, 0]);
    assert_eq!(found.centroids, [7.0; 5 * 8]);
}

#[test]
fn clusterings_that_are_none_are_refused_alike() {
    let whole = KMeans::new(2).iterations(1).device(Device::Cpu).train(&[1.0f32, 2.0, 3.0, 4.0], 2).unwrap();
    let assign = |clustering: &Clustering, rows: &[f32]| {
        let [cpu, emulator] = [Device::Cpu, Device::Emulator].map(|device| clustering.assign(rows, device));
        assert_eq!(format!("{cpu:?}"), format!("{emulator:?}"));
        cpu
    };
    let without = Clustering { dim: 0, ..whole.clone() };
    assert_eq!(without.clusters(), 0);
    assert!(matches!(assign(&without, &[1.0, 2.0]), Err(Error::Zero { what: "dimension" })));
    assert!(matches!(assign(&without, &[]), Err(Error::Zero { what: "dimension" })));
    let empty = Clustering { centroids: Vec::new(), ..whole.clone() };
    assert!(matches!(assign(&empty, &[1.0, 2.0]), Err(Error::Zero { what: "clusters" })));
    let ragged = Clustering { centroids: vec![1.0; 3], ..whole.clone() };
    assert!(matches!(assign(&ragged, &[1.0, 2.0]), Err(Error::Ragged { what: "components", len: 3, size: 2 })));
    let unknown = Clustering { centroids: vec![1.0, 2.0, 3.0, f32::NAN], ..whole };
    assert!(matches!(assign(&unknown, &[1.0, 2.0]), Err(Error::NotFinite { row: 1, column: 1, .. })));
}
