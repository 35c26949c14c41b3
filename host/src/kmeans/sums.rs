//! Steps 2 and 3 of [`super::worker`] on the CPU: exact integer sums of the points of each cluster, and their means.
//!
//! ```text
//! order the points by cluster (counting sort)
//! for each 1024 points of that order, in parallel, and each level of the scale:
//!     for each run of points of one cluster:  add round(x · w · 2^s) into i64 accumulators, where the level takes x · w
//!                                             add those atomically to the cluster's sums
//! ```
//!
//! Integer sums do not depend on their order, so neither threads nor atomics change a bit. Compared with separate sums
//! for every thread, this takes clusters · d · 8 bytes per level only once, for any number of threads.
//!
//! w · x · 2^s is exact in f64 (48 bits of product; [`Scale`] keeps 2^s where nothing leaves f64's normal range), so
//! there is one rounding. [`Scale`] also keeps the value within 2^50. So adding 1.5 · 2^52 rounds to nearest, ties to
//! even, and leaves the integer in the low bits. This costs one addition, while the conversion of f64 to i64 takes many
//! instructions.

use std::sync::atomic::{AtomicI64, Ordering};

use super::scale::{Level, Scale, power_of_two};
use crate::parallel::{Loop, ParallelSlice};
use crate::product::cpu::exact;
use crate::product::cpu::exact::Term;
use crate::product::cpu::{canonical_square, convert};
use crate::simd;
use crate::simd::Isa;
use crate::{Element, ElementType};

/// Smallest number of points that one task adds up.
const RUN: usize = 1024;
/// Number of points between an addition and the prefetch for a later one, since points of a cluster lie anywhere in
/// memory.
const PREFETCH: usize = 4;
/// 1.5 · 2^52, which rounds a value within 2^51 to an integer.
const ROUND: f64 = 6_755_399_441_055_744.0;

/// Sums of one worker over its points of each cluster: step 2 for a part of the points.
///
/// The sums are one array of words, in the order of device memory, so that one copy moves all of them: component sums
/// as i64, level by level and row by row of `stride`; weights as i64, level by level; counts as u32.
#[derive(Debug, Default)]
pub(crate) struct PartialSums {
    /// Component sums, weights and counts.
    pub(crate) words: Vec<u64>,
    /// Number of rows of sums in a level, one for each cluster.
    pub(crate) clusters: usize,
    /// Number of components from one row of sums to the next.
    pub(crate) stride: usize,
    /// The first word of the weights; `None` if there are no weights, which then equal the counts.
    pub(crate) weights: Option<usize>,
    /// The first word of the counts.
    pub(crate) counts: usize,
}

impl PartialSums {
    fn row(&self, level: usize, cluster: usize) -> &[i64] {
        &bytemuck::cast_slice(&self.words)[(level * self.clusters + cluster) * self.stride..][..self.stride]
    }

    fn count(&self, cluster: usize) -> u32 {
        bytemuck::cast_slice(&self.words[self.counts..])[cluster]
    }

    fn weight(&self, level: usize, cluster: usize) -> i64 {
        match self.weights {
            Some(start) => self.words[start + level * self.clusters + cluster] as i64,
            // Points without weights have weight 1, in the first level.
            None => {
                if level == 0 {
                    i64::from(self.count(cluster))
                } else {
                    0
                }
            }
        }
    }
}

/// The results of an assignment for each cluster.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Totals {
    /// Number of points of each cluster.
    pub counts: Vec<u32>,
    /// W of each cluster, unscaled.
    pub weights: Vec<f64>,
    /// ⟨c, S⟩ of each cluster, unscaled, by the definition.
    pub products: Vec<f64>,
    /// ‖c‖² of each centroid that the points were assigned to, by the definition.
    pub norms: Vec<f64>,
}

/// Sums over all points of each cluster.
#[derive(Debug)]
pub(super) struct Sums {
    isa: Isa,
    dim: usize,
    scale: Scale,
    /// S of each level: clusters × dim, row-major.
    sums: Vec<AtomicI64>,
    /// W of each level and cluster, scaled by 2^t.
    weights: Vec<i64>,
    counts: Vec<u32>,
    /// Points in the order of their clusters.
    order: Vec<u32>,
}

impl Sums {
    /// Sums over no points so far.
    pub(super) fn new(clusters: usize, dim: usize, scale: Scale) -> Self {
        Self {
            isa: Isa::detect(),
            dim,
            scale,
            sums: std::iter::repeat_with(AtomicI64::default).take(scale.count() * clusters * dim).collect(),
            weights: vec![0; scale.count() * clusters],
            counts: vec![0; clusters],
            order: Vec::new(),
        }
    }

    /// Step 2 for these labels, which are below the number of clusters. O(points · dim).
    pub(super) fn add_up<T: Element>(&mut self, rows: &[T], weights: Option<&[f32]>, labels: &[u32]) {
        self.counts.fill(0);
        labels.iter().for_each(|&label| self.counts[label as usize] += 1);
        self.add_weights(weights, labels);
        self.sort(labels);
        self.sums.par_iter_mut().with_min_len(RUN).for_each(|sum| *sum.get_mut() = 0);
        let one_level = self.scale.count() == 1;
        for (level, sums) in
            self.scale.levels().map(|(level, _)| level).zip(self.sums.chunks(self.counts.len() * self.dim))
        {
            let component = power_of_two(level.exponent);
            self.order.par_chunks(RUN).for_each_init(
                || (vec![0i64; self.dim], vec![0.0f32; self.dim]),
                |(acc, narrow), points| {
                    for run in points.chunk_by(|&a, &b| labels[a as usize] == labels[b as usize]) {
                        acc.fill(0);
                        for (at, &point) in run.iter().enumerate() {
                            if let Some(&later) = run.get(at + PREFETCH) {
                                simd::prefetch(row(rows, self.dim, later));
                            }
                            let row = row(rows, self.dim, point);
                            let row: &[f32] = if T::TYPE == ElementType::F32 {
                                bytemuck::cast_slice(row)
                            } else {
                                convert(row, narrow);
                                narrow
                            };
                            let weight = weights.map_or(1.0, |weights| f64::from(weights[point as usize]));
                            if one_level {
                                add(self.isa, acc, row, weight * component);
                            } else {
                                add_level(acc, row, weight, level);
                            }
                        }
                        let cluster = labels[run[0] as usize] as usize;
                        for (sum, &part) in sums[cluster * self.dim..].iter().zip(acc.iter()) {
                            sum.fetch_add(part, Ordering::Relaxed);
                        }
                    }
                },
            );
        }
    }

    /// Adds up W of each level; needs the counts.
    fn add_weights(&mut self, weights: Option<&[f32]>, labels: &[u32]) {
        self.weights.fill(0);
        let Some(weights) = weights else {
            self.weights.iter_mut().zip(&self.counts).for_each(|(sum, &count)| *sum = i64::from(count));
            return;
        };
        for ((_, level), sums) in self.scale.levels().zip(self.weights.chunks_mut(self.counts.len())) {
            let factor = power_of_two(level.exponent);
            for (&label, &weight) in labels.iter().zip(weights).filter(|&(_, &weight)| level.takes(weight.into())) {
                sums[label as usize] += round(f64::from(weight) * factor);
            }
        }
    }

    /// Replaces the sums by the total of `parts`, which have all points together. O(parts · levels · clusters · dim).
    pub(super) fn take(&mut self, parts: Vec<&PartialSums>) {
        let clusters = self.counts.len();
        let rows = self.sums.par_chunks_mut(self.dim).zip(self.weights.par_iter_mut()).enumerate();
        rows.with_min_len(64).for_each(|(row, (sums, weight))| {
            let (level, cluster) = (row / clusters, row % clusters);
            sums.iter_mut().for_each(|sum| *sum.get_mut() = 0);
            for part in &parts {
                sums.iter_mut().zip(part.row(level, cluster)).for_each(|(sum, part)| *sum.get_mut() += part);
            }
            *weight = parts.iter().map(|part| part.weight(level, cluster)).sum();
        });
        for (cluster, count) in self.counts.iter_mut().enumerate() {
            *count = parts.iter().map(|part| part.count(cluster)).sum();
        }
    }

    /// Copies the sums of the last [`Self::add_up`] to `to`.
    pub(super) fn give(&self, to: &mut PartialSums) {
        let clusters = self.counts.len();
        *to = PartialSums {
            words: std::mem::take(&mut to.words),
            clusters,
            stride: self.dim,
            weights: Some(self.sums.len()),
            counts: self.sums.len() + self.weights.len(),
        };
        to.words.clear();
        to.words.extend(self.sums.iter().map(|sum| sum.load(Ordering::Relaxed) as u64));
        to.words.extend(self.weights.iter().map(|&weight| weight as u64));
        to.words.resize(to.counts + clusters.div_ceil(2), 0);
        bytemuck::cast_slice_mut(&mut to.words[to.counts..])[..clusters].copy_from_slice(&self.counts);
    }

    /// Sorts the points by (cluster, point); needs the counts.
    fn sort(&mut self, labels: &[u32]) {
        let mut next: Vec<u32> = self
            .counts
            .iter()
            .scan(0, |start, &count| {
                let this = *start;
                *start += count;
                Some(this)
            })
            .collect();
        self.order.resize(labels.len(), 0);
        for (point, &label) in labels.iter().enumerate() {
            let place = &mut next[label as usize];
            self.order[*place as usize] = point as u32;
            *place += 1;
        }
    }

    /// The totals of the last [`Self::add_up`], for the centroids of its labels. O(clusters · dim).
    pub(super) fn totals(&self, centroids: &[f32], totals: &mut Totals) {
        let [units, weight_units] = self.scale.units();
        totals.counts.clone_from(&self.counts);
        totals.weights = (0..self.counts.len()).map(|cluster| self.weight(cluster, &weight_units)).collect();
        let both = |(cluster, centroid): (usize, &[f32])| {
            let sums: Vec<f64> = (0..self.dim).map(|j| self.sum(cluster, j, &units)).collect();
            let product = exact::sum(self.isa, Term::Product, &sums, centroid);
            (product, canonical_square(self.isa, centroid))
        };
        let clusters = centroids.par_chunks(self.dim).enumerate();
        (totals.products, totals.norms) = clusters.with_min_len(64).map(both).collect().into_iter().unzip();
    }

    /// Step 3: replaces the centroids of clusters with weight by their means. O(clusters · dim).
    pub(super) fn means(&self, spherical: bool, centroids: &mut [f32]) {
        let [units, weight_units] = self.scale.units();
        centroids.par_chunks_mut(self.dim).enumerate().with_min_len(64).for_each(|(cluster, centroid)| {
            let weight = self.weight(cluster, &weight_units);
            if weight == 0.0 {
                return;
            }
            for (j, component) in centroid.iter_mut().enumerate() {
                *component = (self.sum(cluster, j, &units) / weight) as f32;
            }
            if spherical {
                normalise(self.isa, centroid);
            }
        });
    }

    /// S of a component of a cluster, added up from the smallest level to the largest.
    fn sum(&self, cluster: usize, component: usize, units: &[f64]) -> f64 {
        let sum = |level: usize| {
            self.sums[(level * self.counts.len() + cluster) * self.dim + component].load(Ordering::Relaxed)
        };
        units.iter().enumerate().rev().fold(0.0, |total, (level, unit)| total + sum(level) as f64 * unit)
    }

    /// W of a cluster, added up from the smallest level to the largest.
    fn weight(&self, cluster: usize, units: &[f64]) -> f64 {
        let weight = |level: usize| self.weights[level * self.counts.len() + cluster];
        units.iter().enumerate().rev().fold(0.0, |total, (level, unit)| total + weight(level) as f64 * unit)
    }
}

/// Divides a vector by its canonical norm; a zero vector stays zero.
pub(super) fn normalise(isa: Isa, vector: &mut [f32]) {
    let wide: Vec<f64> = vector.iter().map(|&x| f64::from(x)).collect();
    let norm = exact::sum(isa, Term::Product, &wide, vector).sqrt();
    if norm > 0.0 {
        vector.iter_mut().zip(wide).for_each(|(to, x)| *to = (x / norm) as f32);
    }
}

fn row<T>(rows: &[T], dim: usize, point: u32) -> &[T] {
    &rows[point as usize * dim..][..dim]
}

/// acc += round(x · weight · 2^s) for each x whose x · weight belongs to the level.
fn add_level(acc: &mut [i64], row: &[f32], weight: f64, level: Level) {
    let factor = power_of_two(level.exponent);
    for (acc, &x) in acc.iter_mut().zip(row) {
        let product = f64::from(x) * weight;
        if level.takes(product) {
            *acc += round(product * factor);
        }
    }
}

/// acc += round(x · factor).
fn add(isa: Isa, acc: &mut [i64], row: &[f32], factor: f64) {
    match isa {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: `isa` comes from `Isa::detect`, so the processor has the instructions.
        Isa::Avx512 => unsafe { add_avx512(acc, row, factor) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: `isa` comes from `Isa::detect`, so the processor has the instructions.
        Isa::Avx2 => unsafe { add_avx2(acc, row, factor) },
        Isa::Portable => add_portable(acc, row, factor),
    }
}

/// # Safety
/// The processor must have AVX-512F.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
unsafe fn add_avx512(acc: &mut [i64], row: &[f32], factor: f64) {
    add_portable(acc, row, factor);
}

/// # Safety
/// The processor must have AVX2.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn add_avx2(acc: &mut [i64], row: &[f32], factor: f64) {
    add_portable(acc, row, factor);
}

/// The loop that the compiler vectorises for each instruction set.
#[inline(always)]
fn add_portable(acc: &mut [i64], row: &[f32], factor: f64) {
    for (acc, &x) in acc.iter_mut().zip(row) {
        *acc += round(f64::from(x) * factor);
    }
}

/// The integer nearest to a value within 2^51, ties to even.
#[inline(always)]
fn round(value: f64) -> i64 {
    (value + ROUND).to_bits() as i64 - ROUND.to_bits() as i64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn additions_round_to_nearest_ties_to_even() {
        let values: Vec<f32> = (0..1000)
            .flat_map(|i| {
                let x = (i as f32 - 500.0) * 0.25;
                [x, x * 1.0e8, x * 1.37e-3, x + 0.5]
            })
            .collect();
        for factor in [1.0, 0.5, 2f64.powi(10), 2f64.powi(-7), 0.7 * 1024.0] {
            let expected: Vec<i64> =
                values.iter().map(|&x| 3 + (f64::from(x) * factor).round_ties_even() as i64).collect();
            for isa in Isa::all() {
                let mut acc = vec![3; values.len()];
                add(isa, &mut acc, &values, factor);
                assert_eq!(acc, expected, "{isa:?}, {factor}");
            }
        }
        assert_eq!([0.5, 1.5, 2.5, -0.5, -1.5, -2.4].map(round), [0, 2, 2, 0, -2, -2]);
        let most = 2f64.powi(50);
        assert_eq!([most, -most].map(round), [1 << 50, -1 << 50]);
    }
}
