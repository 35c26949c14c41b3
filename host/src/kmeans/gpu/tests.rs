//! Labels, sums, totals and centroids against a naive reference in f64 and i128, on the emulator.

use half::{bf16, f16};
use test_random::Random;
use warpann_kernels::kmeans::cluster_sums;

use super::assigner::Assigner;
use super::parts::KMeansParts;
use super::*;
use crate::Element;
use crate::device::runtime::Runtime;
use crate::kmeans::scale::{Scale, power_of_two};
use crate::vectors::with_components;

/// A random number in [-0.5, 0.5).
fn uniform(random: &mut Random) -> f32 {
    random.unit_f32() - 0.5
}

fn values(random: &mut Random, count: usize) -> Vec<f32> {
    (0..count).map(|_| uniform(random)).collect()
}

/// The canonical sum lane by lane, as its definition says; it shares no code with the library.
fn canonical(terms: impl Iterator<Item = f64>) -> f64 {
    let mut acc = [0.0f64; 128];
    terms.enumerate().for_each(|(i, term)| acc[i % 128] += term);
    let mut lanes: Vec<f64> =
        (0..32).map(|l| (acc[4 * l] + acc[4 * l + 1]) + (acc[4 * l + 2] + acc[4 * l + 3])).collect();
    for m in [16, 8, 4, 2, 1] {
        lanes = (0..32).map(|l: usize| lanes[l] + lanes[l ^ m]).collect();
    }
    lanes[0]
}

fn wide<T: Element>(row: &[T]) -> impl Iterator<Item = f64> {
    row.iter().map(|x| f64::from(x.to_f32()))
}

/// The nearest centroid, by step 1 of the definition.
fn nearest<T: Element>(metric: Assign, row: &[T], centroids: &[f32]) -> u32 {
    let distance = |centroid: &[f32]| {
        let pairs = wide(row).zip(wide(centroid));
        match metric {
            Assign::L2 => canonical(pairs.map(|(x, c)| (x - c) * (x - c))) as f32 + 0.0,
            Assign::InnerProduct => -(canonical(pairs.map(|(x, c)| x * c)) as f32 + 0.0),
        }
    };
    let distances: Vec<f32> = centroids.chunks_exact(row.len()).map(distance).collect();
    let mut best = 0;
    for (cluster, &distance) in distances.iter().enumerate() {
        if distance < distances[best] {
            best = cluster;
        }
    }
    best as u32
}

/// The results of one iteration by the definition.
struct Expected {
    labels: Vec<u32>,
    totals: Totals,
    centroids: Vec<f32>,
}

fn expected(run: &Run<'_>, means: Means, centroids: &[f32]) -> Expected {
    with_components!(run.rows, rows: T => expected_of::<T>(rows, run, means, centroids))
}

fn expected_of<T: Element>(rows: &[T], run: &Run<'_>, means: Means, centroids: &[f32]) -> Expected {
    let dim = run.rows.dim();
    let labels: Vec<u32> = rows.chunks_exact(dim).map(|row| nearest(run.metric, row, centroids)).collect();
    let clusters = run.clusters;
    let levels: Vec<_> = means.scale.levels().collect();
    let mut sums = vec![vec![0i128; clusters * dim]; levels.len()];
    let (mut weights, mut counts) = (vec![vec![0i128; clusters]; levels.len()], vec![0u32; clusters]);
    // The level of a number by its magnitude.
    let level = |number: f64, of: &dyn Fn(usize) -> (f64, f64)| {
        (0..levels.len()).find(|&at| number.abs() >= of(at).0 && number.abs() < of(at).1).unwrap()
    };
    // The product is exact, and the rounding to even is done by hand.
    let rounded = |value: f64, exponent: i32| -> i128 {
        let scaled = value * 2f64.powi(exponent);
        let floor = scaled.floor();
        let up = match (scaled - floor).partial_cmp(&0.5).unwrap() {
            std::cmp::Ordering::Less => false,
            std::cmp::Ordering::Equal => floor % 2.0 != 0.0,
            std::cmp::Ordering::Greater => true,
        };
        floor as i128 + i128::from(up)
    };
    for (point, (row, &label)) in rows.chunks_exact(dim).zip(&labels).enumerate() {
        let label = label as usize;
        let weight = run.weights.map_or(1.0, |weights| f64::from(weights[point]));
        counts[label] += 1;
        let at = level(weight, &|at| (levels[at].1.from, levels[at].1.below));
        weights[at][label] += rounded(weight, levels[at].1.exponent);
        for (j, x) in wide(row).enumerate() {
            let at = level(weight * x, &|at| (levels[at].0.from, levels[at].0.below));
            sums[at][label * dim + j] += rounded(weight * x, levels[at].0.exponent);
        }
    }
    let sum = |at: usize| {
        let of_levels = sums.iter().zip(&levels).rev();
        of_levels.fold(0.0, |total, (sums, (level, _))| total + sums[at] as f64 * 2f64.powi(-level.exponent))
    };
    let weight = |cluster: usize| {
        let of_levels = weights.iter().zip(&levels).rev();
        of_levels.fold(0.0, |total, (sums, (_, level))| total + sums[cluster] as f64 * 2f64.powi(-level.exponent))
    };
    let products = (0..clusters).map(|cluster| {
        let at = cluster * dim..(cluster + 1) * dim;
        canonical(wide(&centroids[at.clone()]).zip(at).map(|(c, at)| c * sum(at)))
    });
    let totals = Totals {
        counts,
        weights: (0..clusters).map(weight).collect(),
        products: products.collect(),
        norms: centroids.chunks_exact(dim).map(|c| canonical(wide(c).map(|c| c * c))).collect(),
    };
    let mut new = centroids.to_vec();
    for (cluster, centroid) in new.chunks_exact_mut(dim).enumerate().filter(|(cluster, _)| weight(*cluster) != 0.0) {
        for (j, c) in centroid.iter_mut().enumerate() {
            *c = (sum(cluster * dim + j) / weight(cluster)) as f32;
        }
        let norm = canonical(wide(centroid).map(|c| c * c)).sqrt();
        if means.spherical && norm > 0.0 {
            centroid.iter_mut().for_each(|c| *c = (f64::from(*c) / norm) as f32);
        }
    }
    Expected { labels, totals, centroids: new }
}

fn scale_of(run: &Run<'_>) -> Scale {
    with_components!(run.rows, rows: T => scale_of_rows::<T>(rows, run))
}

fn scale_of_rows<T: Element>(rows: &[T], run: &Run<'_>) -> Scale {
    let weight = |point: usize| run.weights.map_or(1.0, |weights| f64::from(weights[point]));
    let rows = rows.chunks_exact(run.rows.dim()).enumerate();
    let greatest = rows.flat_map(|(point, row)| wide(row).map(move |x| (x * weight(point)).abs())).fold(0.0, f64::max);
    let greatest_weight = run.weights.map(|weights| weights.iter().fold(0.0, |most, &w| f64::max(most, f64::from(w))));
    Scale::new(run.rows.len(), greatest, greatest_weight)
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// Runs iterations on the emulator and compares each with the definition.
fn check(name: &str, run: Run<'_>, spherical: bool, centroids: &[f32], iterations: usize) {
    check_means(name, run, Means { scale: scale_of(&run), spherical }, centroids, iterations);
}

fn check_means(name: &str, run: Run<'_>, means: Means, centroids: &[f32], iterations: usize) {
    let mut worker = KMeansDevice::new(Runtime::EMULATOR, run, means).unwrap();
    let mut centroids = centroids.to_vec();
    worker.set_centroids(&centroids).unwrap();
    let count = run.rows.len();
    for iteration in 0..iterations {
        let expected = expected(&run, means, &centroids);
        let (mut totals, mut labels) = (Totals::default(), vec![u32::MAX; count]);
        worker.assign(&mut totals).unwrap();
        worker.labels(&mut labels).unwrap();
        assert_eq!(labels, expected.labels, "{name}, iteration {iteration}: labels");
        assert_eq!(totals, expected.totals, "{name}, iteration {iteration}: totals");
        worker.update().unwrap();
        worker.centroids(&mut centroids).unwrap();
        assert_eq!(bits(&centroids), bits(&expected.centroids), "{name}, iteration {iteration}: centroids");
    }
}

fn run_of<T: Element>(metric: Assign, clusters: usize, rows: &[T], dim: usize) -> Run<'_> {
    Run { metric, clusters, rows: VectorSlice::of(rows, dim), weights: None, budget: None }
}

#[test]
fn every_shape_equals_the_definition() {
    let mut random = Random::new(1);
    for (dim, clusters, points) in
        [(1, 1, 1), (3, 2, 130), (64, 127, 129), (65, 129, 300), (129, 3, 257), (200, 17, 140), (8, 300, 700)]
            .into_iter()
            // More clusters than the kernels for few centroids take: one tile of points is for warps, two are for
            // warpgroups.
            .chain([(70, 400, 100), (70, 400, 250)])
    {
        let rows = values(&mut random, points * dim);
        let centroids = values(&mut random, clusters * dim);
        for metric in [Assign::L2, Assign::InnerProduct] {
            let run = run_of(metric, clusters, &rows, dim);
            check(
                &format!("{metric:?} {points}x{dim}, {clusters} clusters"),
                run,
                metric == Assign::InnerProduct,
                &centroids,
                2,
            );
        }
    }
}

#[test]
fn every_element_type() {
    fn check_type<T: Element>(factor: f32) {
        let mut random = Random::new(2);
        let rows: Vec<T> = values(&mut random, 150 * 20).into_iter().map(|x| T::from_f32(x * factor)).collect();
        let centroids: Vec<f32> = rows[..5 * 20].iter().map(|x| x.to_f32()).collect();
        for metric in [Assign::L2, Assign::InnerProduct] {
            check(T::TYPE.name(), run_of(metric, 5, &rows, 20), false, &centroids, 2);
        }
    }
    check_type::<f32>(1.0);
    check_type::<f16>(1.0);
    check_type::<bf16>(1.0);
    check_type::<u8>(300.0);
    check_type::<i8>(200.0);
}

#[test]
fn weights_count() {
    let mut random = Random::new(3);
    let (rows, centroids) = (values(&mut random, 200 * 12), values(&mut random, 7 * 12));
    let weights: Vec<f32> = (0..200).map(|i| if i % 9 == 0 { 0.0 } else { uniform(&mut random) + 0.5 }).collect();
    check("weights", Run { weights: Some(&weights), ..run_of(Assign::L2, 7, &rows, 12) }, false, &centroids, 2);
    // A cluster whose points have weight 0 keeps its centroid.
    let rows = [0.0f32, 0.1, 10.0, 10.1];
    let run = Run { weights: Some(&[1.0, 2.0, 0.0, 0.0]), ..run_of(Assign::L2, 2, &rows, 1) };
    check("no weight", run, false, &[0.0, 9.0], 2);
}

/// Exact ties, more duplicates of a centroid than a list holds, and points that are all equal.
#[test]
fn ties_go_to_the_lower_cluster() {
    let mut random = Random::new(4);
    let rows: Vec<u8> = (0..300 * 4).map(|_| random.below(3) as u8).collect();
    let centroids: Vec<f32> = (0..140 * 4).map(|_| random.below(3) as f32).collect();
    check("small integers", run_of(Assign::L2, 140, &rows, 4), false, &centroids, 2);
    check("small integers", run_of(Assign::InnerProduct, 140, &rows, 4), false, &centroids, 1);

    let rows = values(&mut random, 140 * 6);
    let centroids: Vec<f32> = (0..50).flat_map(|_| rows[..3 * 6].to_vec()).collect();
    check("duplicates", run_of(Assign::L2, 150, &rows, 6), false, &centroids, 1);
    check("all equal", run_of(Assign::L2, 4, &[0.25f32; 600], 3), false, &[0.25; 12], 2);
    check("all zero", run_of(Assign::InnerProduct, 4, &[0.0f32; 60], 3), true, &[0.0; 12], 1);
}

/// Numbers at the limits of f32, far clusters, and sets of very different scale.
#[test]
fn any_magnitude() {
    let mut random = Random::new(5);
    let unit = values(&mut random, 140 * 8);
    let scaled = |factor: f32| -> Vec<f32> { unit.iter().map(|x| x * factor).collect() };
    for factor in [3.4e38, 1e25, 1e20, 1e19, 3e18, 1e-15, 1e-19, 1e-30, 1e-44] {
        for metric in [Assign::L2, Assign::InnerProduct] {
            let rows = scaled(factor);
            check(&format!("{metric:?} times {factor:e}"), run_of(metric, 9, &rows, 8), false, &rows[8..80], 1);
        }
    }
    // Clusters far from the origin and from each other; one row a million times farther out than the rest.
    let mut rows = unit.clone();
    for (point, row) in rows.chunks_exact_mut(8).enumerate() {
        row.iter_mut().for_each(|x| *x += 1000.0 * (point % 4) as f32);
    }
    rows[8..16].fill(1e9);
    check("far clusters", run_of(Assign::L2, 9, &rows, 8), false, &rows[..72], 2);
    // Points and centroids whose scales multiply to infinity or to zero.
    let mut rows = unit.clone();
    rows[3] = 3e38;
    let mut centroids = values(&mut random, 9 * 8);
    centroids[70] = 1e12;
    for metric in [Assign::L2, Assign::InnerProduct] {
        check("one huge component", run_of(metric, 9, &rows, 8), false, &centroids, 1);
        check("tiny and huge", run_of(metric, 9, &scaled(1e-38), 8), false, &scaled(1e30)[..72], 1);
    }
}

/// Numbers of points that the product left to canonical distances: with several candidates, and with all centroids.
fn queues(run: Run<'_>, centroids: &[f32]) -> [u32; 2] {
    let mut worker =
        KMeansDevice::new(Runtime::EMULATOR, run, Means { scale: scale_of(&run), spherical: false }).unwrap();
    worker.set_centroids(centroids).unwrap();
    worker.assign(&mut Totals::default()).unwrap();
    let mut sizes = [0; 2];
    // SAFETY: the assignment left two words there.
    unsafe {
        let from = worker.points.batch(0).queue_sizes();
        Runtime::EMULATOR.copy_to_host(&worker.stream, &mut sizes, from).unwrap();
    }
    sizes
}

/// The product decides nearly all points, and each queue is used where it must be.
#[test]
fn few_points_need_canonical_distances() {
    let mut random = Random::new(9);
    let (mut rows, mut centroids) = (values(&mut random, 384 * 64), values(&mut random, 300 * 64));
    for metric in [Assign::L2, Assign::InnerProduct] {
        let [pending, unbounded] = queues(run_of(metric, 300, &rows, 64), &centroids);
        assert!(pending < 384 / 10 && unbounded == 0, "{metric:?}: {pending} pending, {unbounded} unbounded");
    }
    // Many tiles, so that lists are compacted.
    let many = values(&mut random, 2200 * 64);
    assert_eq!(queues(run_of(Assign::L2, 2200, &rows[..128 * 64], 64), &many)[1], 0);
    // One far centroid does not weaken the bounds of the others in its tile.
    centroids[5 * 64..6 * 64].fill(300.0);
    let [pending, unbounded] = queues(run_of(Assign::L2, 300, &rows, 64), &centroids);
    assert!(pending < 384 / 4 && unbounded == 0, "far: {pending} pending, {unbounded} unbounded");
    // Two of each centroid, which differ by little: nearly all points are pending (the kernels for few centroids keep
    // two candidates, so a third near one makes a point unbounded). Ten of each: all points are unbounded. Products
    // beyond the range of f32: the point is unbounded.
    let copies = |count: usize, step: f32| -> Vec<f32> {
        (0..count).flat_map(|copy| centroids[..4 * 64].iter().map(move |x| x * (1.0 + copy as f32 * step))).collect()
    };
    let [pending, unbounded] = queues(run_of(Assign::L2, 8, &rows, 64), &copies(2, 3e-7));
    assert!(pending + unbounded == 384 && unbounded < 10, "twins: {pending} pending, {unbounded} unbounded");
    assert_eq!(queues(run_of(Assign::L2, 40, &rows, 64), &copies(10, 3e-7)), [0, 384]);
    // Equal centroids are as good as one, with few and with many centroids. Before, all points were compared with all
    // of these.
    for (metric, count) in
        [(Assign::L2, 10), (Assign::L2, 500), (Assign::InnerProduct, 10), (Assign::InnerProduct, 500)]
    {
        let [pending, unbounded] = queues(run_of(metric, 4 * count, &rows, 64), &copies(count, 0.0));
        assert!(pending < 384 / 10 && unbounded == 0, "{count} equal: {pending} pending, {unbounded} unbounded");
    }
    rows[0] = 3e19;
    assert_eq!(queues(run_of(Assign::L2, 4, &rows[..64], 64), &centroids[..4 * 64]), [0, 1]);
}

/// An order of centroids that fills the lists: each tile is nearer than the one before.
#[test]
fn descending_distances_overflow_no_result() {
    let mut random = Random::new(6);
    let rows: Vec<f32> = values(&mut random, 130 * 2);
    let centroids: Vec<f32> = (0..2000).flat_map(|c| [20.0 - c as f32 * 0.01, uniform(&mut random)]).collect();
    check("descending", run_of(Assign::L2, 2000, &rows, 2), false, &centroids, 1);
}

/// Earlier labels are a start for the next assignment, whether near to or far from the new labels.
#[test]
fn labels_of_other_centroids_change_no_result() {
    let mut random = Random::new(10);
    // Three tiles of points are for warps, two for warpgroups. Up to 128 components stay resident; more are streamed.
    for (metric, dim, clusters, points) in [
        (Assign::L2, 40, 150, 300),
        (Assign::L2, 128, 300, 300),
        (Assign::L2, 128, 300, 200),
        (Assign::InnerProduct, 100, 140, 300),
        (Assign::InnerProduct, 64, 400, 250),
        (Assign::L2, 200, 140, 300),
        (Assign::L2, 200, 140, 130),
    ] {
        let rows = values(&mut random, points * dim);
        let run = run_of(metric, clusters, &rows, dim);
        let means = Means { scale: scale_of(&run), spherical: false };
        let mut worker = KMeansDevice::new(Runtime::EMULATOR, run, means).unwrap();
        let mut labels = vec![0; points];
        for turn in 0..3 {
            let mut centroids = values(&mut random, clusters * dim);
            // The last turn's nearest centroids are now far away, or beyond the range of the bound.
            centroids[..10 * dim].iter_mut().for_each(|c| *c *= [1.0, 1e4, 1e30][turn]);
            worker.set_centroids(&centroids).unwrap();
            worker.assign(&mut Totals::default()).unwrap();
            worker.labels(&mut labels).unwrap();
            let expected = expected(&run, means, &centroids).labels;
            assert_eq!(labels, expected, "{metric:?}, {points} points of {dim} components, turn {turn}");
        }
    }
}

/// More clusters than are counted in shared memory, and one giant cluster.
#[test]
fn many_clusters_and_a_giant_one() {
    let mut random = Random::new(7);
    let clusters = cluster_sums::SHARED_CLUSTERS as usize + 1;
    let (rows, mut centroids) = (values(&mut random, 2100 * 2), values(&mut random, clusters * 2));
    check("many clusters", run_of(Assign::L2, clusters, &rows[..300], 2), false, &centroids, 1);
    centroids[2..].iter_mut().for_each(|c| *c += 50.0);
    check("giant cluster", run_of(Assign::L2, clusters, &rows[..300], 2), false, &centroids, 1);
    check("giant cluster", run_of(Assign::L2, 40, &rows, 2), false, &centroids[..80], 2);
}

/// Points that exceed the budget pass in batches, with the same bits. A budget that fits no batch is an error.
#[test]
fn points_beyond_the_budget_are_streamed() {
    let mut random = Random::new(8);
    let (rows, centroids) = (values(&mut random, 1000 * 10), values(&mut random, 6 * 10));
    let weights: Vec<f32> = values(&mut random, 1000).iter().map(|w| w + 0.5).collect();
    let whole = run_of(Assign::L2, 6, &rows, 10);
    let shape = VectorShape::new(ElementType::F32, Metric::L2, 10);
    let fixed = ClusterLayout::new(shape, 6, 1).bytes();
    let run = Run { weights: Some(&weights), budget: Some((fixed + 150_000) as u64), ..whole };
    let device = KMeansDevice::new(Runtime::EMULATOR, run, Means { scale: scale_of(&run), spherical: false }).unwrap();
    assert!(device.points.batches() > 2, "{} batches", device.points.batches());
    assert_eq!(device.points.slots.len(), 2);
    let slots = 2 * device.points.tiling.plan.bytes();
    assert!(fixed + slots <= fixed + 150_000, "the budget holds");
    check("streamed", run, false, &centroids, 2);
    let run = Run { budget: Some(10_000), ..whole };
    let Err(Error::OutOfDeviceMemory { asked, available: 10_000, .. }) =
        KMeansDevice::new(Runtime::EMULATOR, run, Means { scale: scale_of(&run), spherical: false }).map(|_| ())
    else {
        panic!("10,000 bytes hold no batch")
    };
    assert!(asked > 10_000);
}

/// Points divided among several devices give the results of one device.
#[test]
fn parts_on_several_devices_equal_the_definition() {
    let mut random = Random::new(11);
    // In the last case the memory is too small for the points, which pass through it in batches.
    for (metric, dim, clusters, weighted, points_memory) in [
        (Assign::L2, 7, 5, false, None),
        (Assign::L2, 40, 33, true, None),
        (Assign::InnerProduct, 16, 9, false, None),
        (Assign::L2, 40, 33, true, Some(150_000)),
    ] {
        let (rows, mut centroids) = (values(&mut random, 2500 * dim), values(&mut random, clusters * dim));
        let weights: Vec<f32> = values(&mut random, 2500).iter().map(|w| w + 0.5).collect();
        let shape = VectorShape::new(ElementType::F32, Metric::L2, dim);
        let run = Run { weights: weighted.then_some(&weights[..]), ..run_of(metric, clusters, &rows, dim) };
        let means = Means { scale: scale_of(&run), spherical: metric == Assign::InnerProduct };
        let fixed = ClusterLayout::new(shape, clusters, 1).bytes() + result_bytes(&run, means).iter().sum::<usize>();
        let run = Run { budget: points_memory.map(|bytes| (fixed + bytes) as u64), ..run };
        let mut worker = KMeansParts::open(
            &[Runtime::EMULATOR, Runtime::EMULATOR, Runtime::EMULATOR, Runtime::EMULATOR],
            run,
            means,
        )
        .unwrap();
        assert_eq!(worker.devices(), 3, "2,500 points are worth three devices");
        worker.set_centroids(&centroids).unwrap();
        for iteration in 0..3 {
            let expected = expected(&run, means, &centroids);
            let (mut totals, mut labels) = (Totals::default(), vec![u32::MAX; 2500]);
            worker.assign(&mut totals).unwrap();
            worker.labels(&mut labels).unwrap();
            assert_eq!(labels, expected.labels, "{metric:?}, iteration {iteration}: labels");
            assert_eq!(totals, expected.totals, "{metric:?}, iteration {iteration}: totals");
            worker.update().unwrap();
            for device in 0..3 {
                worker.centroids_of(device, &mut centroids).unwrap();
                assert_eq!(bits(&centroids), bits(&expected.centroids), "{metric:?}, iteration {iteration}: centroids");
            }
        }
    }
}

#[test]
fn nothing_to_do_and_nothing_to_do_it_with() {
    let run = run_of::<f32>(Assign::L2, 2, &[], 3);
    check("no points", run, false, &[1.0; 6], 1);
    let means = Means { scale: scale_of(&run), spherical: false };
    let none = KMeansDevice::new(Runtime::EMULATOR, Run { clusters: 0, ..run }, means);
    assert!(matches!(none.map(drop), Err(Error::Zero { what: "clusters" })));
    let assigner = assigner(&[1.0; 6], run, None).unwrap();
    assert!(assigner.labels(run.rows).unwrap().is_empty());
    assert!(matches!(super::check_clusters(0), Err(Error::Zero { what: "clusters" })));
}

/// The centroids of a run, prepared.
fn assigner(centroids: &[f32], run: Run<'_>, budget: Option<u64>) -> Result<Assigner> {
    let mut centre = Centre::default();
    centre.add(run.rows);
    Assigner::new(Runtime::EMULATOR, run.metric, (centroids, run.rows.dim()), &centre, budget)
}

/// Vectors of several element types are assigned to centroids that stay: all at once, in tiles, few after many, and
/// others than those that the centre is near to.
#[test]
fn centroids_stay_for_vectors_of_several_calls() {
    let mut random = Random::new(9);
    let centroids = values(&mut random, 40 * 10);
    let near = values(&mut random, 300 * 10);
    for metric in [Assign::L2, Assign::InnerProduct] {
        let run = run_of(metric, 40, &near, 10);
        let whole = assigner(&centroids, run, None).unwrap();
        let tiled = assigner(&centroids, run, Some(whole.bytes() as u64 + 80_000)).unwrap();
        let far: Vec<f32> = near.iter().map(|x| 50.0 - 30.0 * x).collect();
        let halves: Vec<f16> = near.iter().map(|&x| f16::from_f32(x)).collect();
        let bytes: Vec<u8> = near.iter().map(|&x| (40.0 * x.abs()) as u8).collect();
        let runs = [run, run_of(metric, 40, &far, 10), run_of(metric, 40, &halves, 10), run_of(metric, 40, &bytes, 10)];
        let before = whole.bytes();
        for run in runs.into_iter().flat_map(|run| [run, run.part(7..8)]) {
            let expected: Vec<u32> = with_components!(run.rows, rows: T => {
                rows.chunks_exact(10).map(|row| nearest::<T>(metric, row, &centroids)).collect()
            });
            for assigner in [&whole, &tiled] {
                assert_eq!(assigner.labels(run.rows).unwrap(), expected, "{metric:?}, {}", run.rows.element());
            }
        }
        // Each of two lanes keeps the scratch of its largest tile.
        assert!(whole.bytes() > before && (before + 1..=before + 2 * 80_000).contains(&tiled.bytes()));
        let small = assigner(&centroids, run, Some(1_000));
        assert!(matches!(small.map(drop), Err(Error::OutOfDeviceMemory { available: 1_000, .. })));
    }
}

#[test]
fn scales_leave_no_range() {
    for points in [0, 1, 2047, 2048, 1 << 20, u32::MAX as usize] {
        for greatest in [0.0, 1e-300, f64::from(f32::MIN_POSITIVE).powi(2), 1.0, 1.5, f64::from(f32::MAX).powi(2)] {
            let [(component, weight)] = Scale::new(points, greatest, Some(greatest)).levels().collect::<Vec<_>>()[..]
            else {
                panic!("one level")
            };
            assert_eq!(component, weight);
            let largest = greatest * power_of_two(component.exponent);
            assert!(power_of_two(-component.exponent).is_normal() && largest <= power_of_two(50));
            assert!(largest * (points as f64) < power_of_two(62), "{points} points up to {greatest:e}");
        }
    }
    assert_eq!(Scale::new(1000, 1.0, None).levels().map(|(_, weight)| weight.exponent).collect::<Vec<_>>(), [0]);
}

/// Every number is in the sum of its level, for all element types, with and without weights of several levels.
#[test]
fn sums_of_levels_equal_the_definition() {
    fn check_type<T: Element>(tops: &[i32]) {
        let mut random = Random::new(12);
        let far: Vec<f32> = tops[1..].iter().map(|&top| 2f32.powi(top - 1)).chain([2f32.powi(tops[0] - 1)]).collect();
        // A third of the components and weights are at the magnitudes of other levels or at the edges between levels.
        let mut value = |bits: u64| match bits % 6 {
            0 => far[(bits >> 8) as usize % far.len()] * (0.5 + uniform(&mut random).abs()),
            1 => -far[(bits >> 8) as usize % far.len()],
            _ => uniform(&mut random),
        };
        let mut bits = Random::new(13);
        let rows: Vec<T> = (0..200 * 12).map(|_| T::from_f32(value(bits.bits()))).collect();
        let weights: Vec<f32> = (0..200).map(|_| value(bits.bits()).abs()).collect();
        let centroids: Vec<f32> = rows[..7 * 12].iter().map(|x| x.to_f32()).collect();
        let run = run_of(Assign::L2, 7, &rows, 12);
        // Without weights t = 0: numbers have 50 bits for 200 points, and 50 − 50 = 0.
        let means = |weights: &[i32]| Means { scale: Scale::of_tops(200, tops, weights), spherical: false };
        check_means(&format!("{} {tops:?}", T::TYPE.name()), run, means(&[50]), &centroids, 3);
        // w·x is as large as the product of the largest weight and component.
        let run = Run { weights: Some(&weights), ..run };
        let products: Vec<i32> = [2 * tops[0]].iter().chain(tops).copied().collect();
        let means = |weights: &[i32]| Means { scale: Scale::of_tops(200, &products, weights), spherical: false };
        check_means(&format!("{} {tops:?}, weights", T::TYPE.name()), run, means(tops), &centroids, 3);
        check_means(&format!("{} {tops:?}, plain weights", T::TYPE.name()), run, means(&tops[..1]), &centroids, 3);
        check_means("streamed", Run { budget: Some(70_000), ..run }, means(tops), &centroids, 2);
    }
    check_type::<f32>(&[60, 1]);
    check_type::<f32>(&[60, 30, 1]);
    check_type::<bf16>(&[60, 1]);
    check_type::<f16>(&[14, 1]);
    check_type::<u8>(&[7, 1]);
    check_type::<i8>(&[6, 1]);
}
