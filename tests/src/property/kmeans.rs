//! k-means: assignments by the definition, means, objectives, and the CPU's bits.
//!
//! The exact bits of means are those of an integer sum whose scale is the library's affair; here a mean must be right
//! to a few parts in 2^24 of itself, and in 2^40 of the greatest number of its component. Where another component has
//! far greater numbers it must be right to a part in 2^40 of those or in 2^16 of what is usual in its own component,
//! whichever is less.

use std::ops::ControlFlow;

use test_cases::by_element;
use warpann::kmeans::{Clustering, KMeans, Start};
use warpann::{Device, Metric};

use super::vectors::{self, ALL_OF_F32, Form};
use super::work;
use crate::data::{Component, Random, Vectors};
use crate::kmeans::{histogram, normalised, of_centroids, require, same};
use crate::reference;
use crate::runner::{Outcome, text};

/// A training, and an assignment.
#[derive(Debug)]
struct KMeansCase {
    dim: usize,
    points: usize,
    clusters: usize,
    spherical: bool,
    weighted: bool,
    start: Begin,
    iterations: usize,
    points_per_centroid: Option<usize>,
    balanced: Option<f64>,
    seed: u64,
    form: Form,
}

/// The kind of the [`Start`] of a case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Begin {
    Random,
    PlusPlus,
    /// The first points are the starting centroids.
    Points,
    /// Vectors of the same form.
    Others,
}

/// The case of a seed.
///
/// # Errors
/// The case and the first difference, in words.
pub fn case(seed: u64, device: Device) -> Outcome {
    let mut random = Random::new(seed);
    let element = vectors::element(&mut random);
    by_element!(element, cluster(&mut random, device))
}

fn cluster<T: Component>(random: &mut Random, device: Device) -> Outcome {
    let dim = match random.below(3) {
        0 => 1 + random.size(3),
        1 => random.pick(&[8, 16, 32, 64, 128]) + random.below(3) - 1,
        _ => 1 + random.below(40),
    };
    // Several assignments by the library, and as many by the reference.
    let pairs = (work(random, device) / dim.max(16) / 8).max(16);
    let clusters = 1 + random.size(pairs.isqrt().min(60) - 1);
    let points = clusters + random.size(pairs / clusters);
    let case = KMeansCase {
        dim,
        points,
        clusters,
        spherical: random.once_in(3),
        weighted: random.once_in(3),
        start: random.pick(&[Begin::Random, Begin::PlusPlus, Begin::Points, Begin::Points, Begin::Others]),
        iterations: random.below(4),
        points_per_centroid: random.once_in(4).then(|| 1 + random.below(8)),
        balanced: random.once_in(5).then(|| 1.0 + random.below(5) as f64 * 0.25),
        seed: random.bits(),
        form: vectors::form(random, vectors::range(T::TYPE, ALL_OF_F32)),
    };
    check::<T>(&case, random, device).map_err(|failure| format!("{failure}\n{:?} {case:?}", T::TYPE))
}

/// The points of a case, with their weights.
struct Points<'a> {
    dim: usize,
    rows: &'a [f64],
    weights: Vec<f64>,
    metric: Metric,
}

fn check<T: Component>(case: &KMeansCase, random: &mut Random, device: Device) -> Outcome {
    let &KMeansCase { dim, points, clusters, spherical, ref form, .. } = case;
    let vectors: Vectors<T> = vectors::vectors(form, dim, points, clusters, random);
    let others: Vec<f32> = vectors.exact_queries.iter().map(|&x| x as f32).collect();
    let start = match case.start {
        Begin::Random => Start::Random,
        Begin::PlusPlus => Start::PlusPlus,
        Begin::Points => Start::Given(vectors.exact_base[..clusters * dim].iter().map(|&x| x as f32).collect()),
        Begin::Others => Start::Given(others.clone()),
    };
    // Quarters from 0 to 4, and one that is not 0.
    let mut weights: Vec<f32> = (0..points).map(|_| random.below(17) as f32 * 0.25).collect();
    weights[random.below(points)] = 1.0;
    let weights = case.weighted.then_some(weights);
    let settings = KMeans::new(clusters)
        .spherical(spherical)
        .start(start.clone())
        .iterations(case.iterations)
        .points_per_centroid(case.points_per_centroid)
        .balanced(case.balanced)
        .seed(case.seed)
        .labels(true);
    let mut splits = Vec::new();
    let mut train = |settings: &KMeans, device: Device| {
        splits.clear();
        let watch = &mut |iteration: &warpann::kmeans::Iteration| {
            splits.push(iteration.split);
            ControlFlow::Continue(())
        };
        let found = settings.clone().device(device).train_watched(&vectors.base, dim, weights.as_deref(), watch);
        found.map(|found| (found, splits.clone())).map_err(text)
    };
    let (found, split) = train(&settings, device)?;
    if device != Device::Cpu {
        same("as on the CPU", &train(&settings, Device::Cpu)?.0, &found)?;
    }
    let points = Points {
        dim,
        rows: &vectors.exact_base,
        weights: weights.as_ref().map_or(vec![1.0; points], |weights| weights.iter().map(|&w| w.into()).collect()),
        metric: if spherical { Metric::InnerProduct } else { Metric::L2 },
    };
    points.labels_and_sizes(case, &found)?;
    points.objectives_improve(case, &found, &split)?;
    if let (Start::Given(start), None, None) = (&start, case.points_per_centroid, case.balanced) {
        let (found, split) = train(&settings.clone().iterations(1), device)?;
        let start = if spherical { normalised(start, dim) } else { start.clone() };
        if split == [0] {
            points.one_iteration(&start, &found)?;
        }
    }
    // Any centroids at all.
    let clustering = of_centroids(others, dim, spherical, device);
    let labels = clustering.assign(&vectors.base, device).map_err(text)?;
    points.nearest(&clustering.centroids, &labels).map_err(|failure| format!("assign: {failure}"))
}

fn wide(values: &[f32]) -> Vec<f64> {
    values.iter().map(|&x| f64::from(x)).collect()
}

impl Points<'_> {
    fn len(&self) -> usize {
        self.weights.len()
    }

    /// That each point is in the cluster of its nearest centroid, the lowest of several.
    fn nearest(&self, centroids: &[f32], labels: &[u32]) -> Outcome {
        require(labels.len() == self.len(), || format!("{} labels", labels.len()))?;
        let centroids = wide(centroids);
        for (point, (row, &label)) in self.rows.chunks(self.dim).zip(labels).enumerate() {
            let (expected, distance) = reference::nearest(self.metric, self.dim, &centroids, row, 1)[0];
            require(expected == u64::from(label), || {
                format!("point {point} in {label}; by definition {expected} at {distance:?}")
            })?;
        }
        Ok(())
    }

    fn labels_and_sizes(&self, case: &KMeansCase, found: &Clustering) -> Outcome {
        let labels = found.labels.as_deref().unwrap_or_default();
        require(labels.len() == self.len() && labels.iter().all(|&label| (label as usize) < case.clusters), || {
            format!("labels {labels:?}")
        })?;
        require(histogram(labels, case.clusters) == found.sizes, || format!("sizes {:?}", found.sizes))?;
        require(found.centroids.len() == case.clusters * self.dim, || "centroids".to_owned())?;
        require(found.centroids.iter().all(|x| x.is_finite()), || format!("centroids {:?}", found.centroids))?;
        require(found.objectives.len() == case.iterations, || format!("objectives {:?}", found.objectives))?;
        let Some(bound) = case.balanced else { return self.nearest(&found.centroids, labels) };
        let most = (bound * self.len() as f64 / case.clusters as f64).ceil() as u32;
        require(found.sizes.iter().all(|&size| size <= most), || format!("sizes {:?}, at most {most}", found.sizes))
    }

    /// Σ w‖x‖², or Σ w‖x‖ where points are compared with centroids of norm 1.
    fn energy(&self) -> f64 {
        let spherical = self.metric == Metric::InnerProduct;
        let of = |row| if spherical { reference::squares(row).sqrt() } else { reference::squares(row) };
        self.rows.chunks(self.dim).zip(&self.weights).map(|(row, weight)| weight * of(row)).sum()
    }

    /// That objectives get no worse where nothing was split or balanced, but for what rounding of centroids and of
    /// distances to f32 costs.
    ///
    /// A point goes to the centroid with the least distance as f32, so it may leave a centroid at d for one at d' ≥ d.
    /// Rounding changes each of both by at most 2^-24 of itself, or by half of the least f32, 2^-150, below the normal
    /// numbers. Distances that round to the same number therefore differ by at most 2^-23 · d' or 2^-149. The sums over
    /// all points are 2^-23 of the objective, and 2^-149 of the weight. So distances below 2^-150 are all equal, and
    /// points among them go to the lowest cluster.
    fn objectives_improve(&self, case: &KMeansCase, found: &Clustering, split: &[usize]) -> Outcome {
        require(found.objectives.iter().all(|objective| objective.is_finite()), || {
            format!("objectives {:?}", found.objectives)
        })?;
        // Distances beyond f32 are infinite and tie, and the lowest cluster gets all points that have no other.
        let squares = self.rows.chunks(self.dim).map(reference::squares).fold(0.0, f64::max);
        if case.balanced.is_some() || 4.0 * squares > f64::from(f32::MAX) {
            return Ok(());
        }
        // Numbers below the normal ones lose up to half of the least.
        let (count, least) = ((self.len() * self.dim) as f64 * 16.0, 2f64.powi(-149));
        let mass: f64 = self.weights.iter().sum();
        let of_centroids = match self.metric {
            Metric::InnerProduct => self.energy() * 1e-6 + count * least,
            _ => self.energy() * 1e-12 + count * least * least,
        };
        for (at, pair) in found.objectives.windows(2).enumerate() {
            let (worse, of_distances) = match self.metric {
                // Inner products are at most norms, whose part in the slack is above.
                Metric::InnerProduct => (pair[0] - pair[1], 0.0),
                _ => (pair[1] - pair[0], pair[1] * 2f64.powi(-23) + mass * least),
            };
            let slack = of_centroids + of_distances;
            require(split[at] > 0 || worse <= slack, || {
                format!("objectives {:?}, splits {split:?}, slack {slack:e}", found.objectives)
            })?;
        }
        Ok(())
    }

    /// The objective of the first iteration, and the means after it.
    fn one_iteration(&self, start: &[f32], found: &Clustering) -> Outcome {
        let (dim, spherical) = (self.dim, self.metric == Metric::InnerProduct);
        let start = wide(start);
        let clusters = start.len() / dim;
        let rows = || self.rows.chunks(dim).zip(&self.weights);
        let greatest: Vec<f64> = (0..dim).map(|j| rows().map(|(row, _)| row[j].abs()).fold(0.0, f64::max)).collect();
        let greatest_of_all = greatest.iter().copied().fold(0.0, f64::max);
        // The magnitude above a sixteenth of those in a component that are not 0.
        let usual: Vec<f64> = (0..dim)
            .map(|j| {
                let mut sizes: Vec<f64> =
                    rows().map(|(row, weight)| (row[j] * weight).abs()).filter(|&x| x > 0.0).collect();
                sizes.sort_by(f64::total_cmp);
                sizes.get(sizes.len() / 16).copied().unwrap_or(0.0)
            })
            .collect();
        let mut counts = vec![0.0; clusters];
        let (mut sums, mut masses) = (vec![0.0; clusters * dim], vec![0.0; clusters]);
        // The objective, and what its additions lost: half a million equal terms lose more than the slack.
        let (mut objective, mut lost) = (0.0f64, 0.0);
        for (row, &weight) in rows() {
            let cluster = reference::nearest(self.metric, dim, &start, row, 1)[0].0 as usize;
            let term = weight * reference::textbook(self.metric, row, &start[cluster * dim..][..dim]);
            let sum = objective + term;
            lost += if objective.abs() >= term.abs() { (objective - sum) + term } else { (term - sum) + objective };
            objective = sum;
            masses[cluster] += weight;
            counts[cluster] += 1.0;
            sums[cluster * dim..][..dim].iter_mut().zip(row).for_each(|(sum, x)| *sum += weight * x);
        }
        objective += lost;
        // The formula of the objective cancels; its terms are at most these.
        let terms = |cluster: usize| -> f64 {
            let centroid = &start[cluster * dim..][..dim];
            let products = centroid.iter().zip(&greatest).map(|(c, x)| (c * x).abs());
            masses[cluster] * (reference::squares(centroid) + 2.0 * products.sum::<f64>())
        };
        let slack = ((0..clusters).map(terms).sum::<f64>() + self.energy()) * 1e-12;
        require((found.objectives[0] - objective).abs() <= slack, || {
            format!("objective {:?}; by definition {objective:?}, slack {slack:e}", found.objectives[0])
        })?;
        for (cluster, &mass) in masses.iter().enumerate() {
            let centroid = wide(&found.centroids[cluster * dim..][..dim]);
            if mass == 0.0 {
                let kept = &start[cluster * dim..][..dim];
                // Those of norm 1 are divided by their norms again.
                let slack = if spherical { 2f64.powi(-22) } else { 0.0 };
                let moved = centroid.iter().zip(kept).any(|(c, kept)| (c - kept).abs() > slack);
                require(!moved, || format!("cluster {cluster} has no point, and moved to {centroid:?}"))?;
                continue;
            }
            let mean: Vec<f64> = sums[cluster * dim..][..dim].iter().map(|sum| sum / mass).collect();
            let allowed: Vec<f64> = (0..dim)
                .map(|j| {
                    let of_usual = usual[j] * 2f64.powi(-16) * counts[cluster] / mass;
                    let beside_others = of_usual.min(greatest_of_all * 2f64.powi(-40));
                    beside_others.max(greatest[j] * 2f64.powi(-40)) + 2f64.powi(-149)
                })
                .collect();
            let norm = reference::squares(&mean).sqrt();
            // The length of the errors of all components, which bounds the error of the direction.
            let error = reference::squares(&allowed).sqrt();
            for (j, (&c, &mean)) in centroid.iter().zip(&mean).enumerate() {
                let (expected, slack) = match spherical {
                    false => (mean, allowed[j] + mean.abs() * 2f64.powi(-23)),
                    true if error > norm * 2f64.powi(-10) => continue,
                    true => (mean / norm, 4.0 * error / norm + 2f64.powi(-22)),
                };
                require((c - expected).abs() <= slack, || {
                    format!("cluster {cluster}, component {j}: {c:?}; the mean is {expected:?}, slack {slack:e}")
                })?;
            }
        }
        Ok(())
    }
}
