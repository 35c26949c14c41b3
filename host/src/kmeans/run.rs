//! The iterations of one run, on top of a [`Worker`].

use std::ops::ControlFlow;

use super::balance::balance;
use super::points::Points;
use super::scale::{Scale, spread};
use super::split::{Distinct, Nudge, split_empty};
use super::sums::Sums;
use super::worker::{Totals, Worker};
use crate::metric::Assign;
use crate::parallel::{Loop, ParallelSlice};
use crate::{Element, Error, Result};

/// The outcome of one iteration, for the caller of [`KMeans::train_watched`](super::KMeans::train_watched).
#[derive(Debug, Clone, Copy, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct Iteration {
    /// Number of the iteration, from 0.
    pub iteration: usize,
    /// The objective of this iteration, as in [`Clustering::objectives`](super::Clustering::objectives).
    #[cfg_attr(feature = "serde", serde(with = "crate::serialised::Numbers"))]
    pub objective: f64,
    /// Number of empty clusters that took half of a large cluster.
    pub split: usize,
    /// Number of points of the largest cluster.
    pub largest: u32,
    /// Average number of points of a cluster.
    #[cfg_attr(feature = "serde", serde(with = "crate::serialised::Numbers"))]
    pub mean: f64,
}

/// The state of a run between two iterations.
pub(super) struct Run<'a, T: Element> {
    metric: Assign,
    points: Points<'a, T>,
    worker: &'a mut dyn Worker,
    /// The centroids on the host; current if `here`.
    centroids: Vec<f32>,
    here: bool,
    /// Whether the worker has the present centroids.
    sent: bool,
    totals: Totals,
    /// Σ w‖x‖² for L2, otherwise 0.
    energy: Total,
    /// The size of the nudges, set by the first split.
    nudge: Option<Nudge>,
    balance: Option<Balance>,
}

/// State of a balanced run, whose update is on the CPU.
struct Balance {
    most: usize,
    labels: Vec<u32>,
    sums: Sums,
}

impl<'a, T: Element> Run<'a, T> {
    /// A run from these centroids, at least one. `most` limits the points of a cluster.
    pub(super) fn new(
        metric: Assign,
        most: Option<usize>,
        points: Points<'a, T>,
        scale: Scale,
        worker: &'a mut dyn Worker,
        centroids: Vec<f32>,
    ) -> Self {
        let clusters = centroids.len() / points.dim;
        let balance = most.map(|most| Balance {
            most,
            labels: vec![0; points.len()],
            sums: Sums::new(clusters, points.dim, scale),
        });
        Self {
            metric,
            points,
            worker,
            centroids,
            here: true,
            sent: false,
            totals: Totals::default(),
            energy: match metric {
                Assign::L2 => energy(&points),
                Assign::InnerProduct => Total::default(),
            },
            nudge: None,
            balance,
        }
    }

    /// Does one iteration and returns its objective.
    pub(super) fn iterate(
        &mut self,
        iteration: usize,
        watch: &mut dyn FnMut(&Iteration) -> ControlFlow<()>,
    ) -> Result<f64> {
        self.assign()?;
        let objective = self.objective();
        let spherical = self.metric.is_spherical();
        match &self.balance {
            None => {
                self.worker.update()?;
                self.here = false;
            }
            Some(balance) => {
                balance.sums.means(spherical, &mut self.centroids);
                self.sent = false;
            }
        }
        let mut split = 0;
        // Centroids come to the host only if a cluster is empty: for 4096 × 128 the copy takes a twentieth of an
        // iteration's time.
        if self.totals.weights.contains(&0.0) {
            self.fetch()?;
            split = self.split(spherical)?;
            self.sent &= split == 0;
        }
        let largest = self.totals.counts.iter().copied().max().unwrap_or(0);
        let mean = self.points.len() as f64 / self.totals.counts.len() as f64;
        match watch(&Iteration { iteration, objective, split, largest, mean }) {
            ControlFlow::Continue(()) => Ok(objective),
            ControlFlow::Break(()) => Err(Error::Cancelled),
        }
    }

    /// Splits a large cluster for each cluster without weight. Returns the number of clusters filled.
    fn split(&mut self, spherical: bool) -> Result<usize> {
        let points = self.points;
        let fetched;
        let labels = match &self.balance {
            Some(balance) => &balance.labels,
            None => {
                let mut labels = vec![0; points.len()];
                self.worker.labels(&mut labels)?;
                fetched = labels;
                &fetched
            }
        };
        let nudge = *self.nudge.get_or_insert_with(|| Nudge {
            greatest: points.greatest.component,
            // Centroids of norm 1 do not scale with the points.
            most: if spherical { f32::INFINITY } else { spread(&points) },
        });
        let mut distinct = Distinct::new(points, labels);
        Ok(split_empty(&mut self.centroids, points.dim, &self.totals, nudge, spherical, |cluster, more_than| {
            distinct.more_than(cluster, more_than)
        }))
    }

    /// Copies the centroids to the host unless they are there.
    fn fetch(&mut self) -> Result<()> {
        if !self.here {
            self.worker.centroids(&mut self.centroids)?;
            self.here = true;
        }
        Ok(())
    }

    /// Assigns the points to the present centroids, balances the labels if the run is balanced, and leaves the totals.
    fn assign(&mut self) -> Result<()> {
        if !self.sent {
            self.worker.set_centroids(&self.centroids)?;
            self.sent = true;
        }
        self.worker.assign(&mut self.totals)?;
        if let Some(Balance { most, labels, sums }) = &mut self.balance {
            self.worker.labels(labels)?;
            balance(self.metric, self.points, &self.centroids, *most, labels);
            sums.add_up(self.points.rows, self.points.weights, labels);
            sums.totals(&self.centroids, &mut self.totals);
        }
        Ok(())
    }

    /// The objective: step 4 of the definition.
    fn objective(&self) -> f64 {
        let Totals { weights, products, norms, .. } = &self.totals;
        let mut total = Total::default();
        match self.metric {
            Assign::InnerProduct => {
                products.iter().for_each(|&product| total.add(product));
                total.value()
            }
            Assign::L2 => {
                let clusters = weights.iter().zip(products).zip(norms);
                clusters.for_each(|((weight, product), norm)| total.add(weight * norm - 2.0 * product));
                total.join(self.energy);
                // Rounding may give a value below zero if every point is its own centroid.
                total.value().max(0.0)
            }
        }
    }

    /// Assigns the points to the final centroids and returns the labels.
    pub(super) fn labels(&mut self) -> Result<Vec<u32>> {
        self.assign()?;
        let mut labels = vec![0; self.points.len()];
        match &self.balance {
            Some(balance) => labels.copy_from_slice(&balance.labels),
            None => self.worker.labels(&mut labels)?,
        }
        Ok(labels)
    }

    /// Number of points of each cluster in the last assignment.
    pub(super) fn sizes(&self) -> &[u32] {
        &self.totals.counts
    }

    pub(super) fn centroids(&mut self) -> Result<&[f32]> {
        self.fetch()?;
        Ok(&self.centroids)
    }

    pub(super) fn into_centroids(mut self) -> Result<Vec<f32>> {
        self.fetch()?;
        Ok(self.centroids)
    }
}

/// Points whose w‖x‖² are added up by one thread.
const BLOCK: usize = 4096;

/// Σ w‖x‖², by blocks of points. O(points).
fn energy<T: Element>(points: &Points<'_, T>) -> Total {
    let of_block = |(block, squares): (usize, &[f64])| {
        let mut sum = Total::default();
        squares.iter().enumerate().for_each(|(at, square)| sum.add(points.weight(block * BLOCK + at) * square));
        sum
    };
    let blocks = points.squares.par_chunks(BLOCK).enumerate().map(of_block).collect();
    let mut energy = Total::default();
    blocks.into_iter().for_each(|block| energy.join(block));
    energy
}

/// A sum of f64 that keeps the rounding errors of its additions. Half a million equal terms lose 2^-39 of a plain sum,
/// and far points hide the other points.
#[derive(Debug, Clone, Copy, Default)]
struct Total {
    sum: f64,
    /// The sum of the rounding errors.
    rest: f64,
}

impl Total {
    fn add(&mut self, term: f64) {
        let sum = self.sum + term;
        // The rounding error of an addition is an f64, and this is its exact value (Knuth).
        let other = sum - self.sum;
        let lost = (self.sum - (sum - other)) + (term - other);
        // Past the range of f64 the rounding error is unknown.
        self.rest += if lost.is_finite() { lost } else { 0.0 };
        self.sum = sum;
    }

    /// Adds all terms of `other`.
    fn join(&mut self, other: Self) {
        self.add(other.sum);
        self.rest += other.rest;
    }

    fn value(self) -> f64 {
        self.sum + self.rest
    }
}
