//! The iterations of one run.

use super::balance::balance;
use super::cpu::Points;
use super::split::split_empty;
use super::sums::Sums;
use super::worker::{Assign, Scale, Totals, Worker};
use super::{KMeans, Progress};
use crate::{Element, Result};

/// A run between two iterations.
pub(super) struct Run<'a, T: Element> {
    metric: Assign,
    points: Points<'a, T>,
    scale: Scale,
    worker: &'a mut dyn Worker,
    /// The centroids, where they are `here`.
    centroids: Vec<f32>,
    here: bool,
    /// Whether the worker has them.
    sent: bool,
    totals: Totals,
    /// Σ w‖x‖² for L2.
    energy: f64,
    /// Largest |x|.
    greatest: f32,
    balance: Option<Balance>,
}

/// What the update on the CPU needs.
struct Balance {
    most: usize,
    labels: Vec<u32>,
    sums: Sums,
}

impl<'a, T: Element> Run<'a, T> {
    pub(super) fn new(
        settings: &KMeans,
        points: Points<'a, T>,
        scale: Scale,
        worker: &'a mut dyn Worker,
        centroids: Vec<f32>,
        greatest: f32,
    ) -> Self {
        let energy = match points.weights {
            None => points.squares.iter().sum(),
            Some(weights) => points.squares.iter().zip(weights).map(|(square, &w)| f64::from(w) * square).sum(),
        };
        let balance = settings.most(points.len()).map(|most| Balance {
            most,
            labels: vec![0; points.len()],
            sums: Sums::new(settings.clusters, points.dim, scale),
        });
        Self {
            metric: settings.assign_by(),
            points,
            scale,
            worker,
            centroids,
            here: true,
            sent: false,
            totals: Totals::default(),
            energy,
            greatest,
            balance,
        }
    }

    /// One iteration; returns its objective.
    pub(super) fn iterate(&mut self, iteration: usize, watch: &mut dyn FnMut(&Progress)) -> Result<f64> {
        self.assign()?;
        let objective = self.objective();
        let spherical = self.metric == Assign::InnerProduct;
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
        // Centroids come to the host only where they are looked at: for 4096 × 128 that takes a twentieth of an iteration's time.
        if self.totals.weights.contains(&0) {
            self.fetch()?;
            split = split_empty(&mut self.centroids, self.points.dim, &self.totals, self.greatest, spherical);
            self.sent &= split == 0;
        }
        let largest = self.totals.counts.iter().copied().max().unwrap_or(0);
        let mean = self.points.len() as f64 / self.totals.counts.len() as f64;
        watch(&Progress { iteration, objective, split, largest, mean });
        Ok(objective)
    }

    /// Sees to it that the centroids are here.
    fn fetch(&mut self) -> Result<()> {
        if !self.here {
            self.worker.centroids(&mut self.centroids)?;
            self.here = true;
        }
        Ok(())
    }

    /// Assigns the points to the centroids as they are, balanced where asked, and leaves the totals.
    fn assign(&mut self) -> Result<()> {
        if !self.sent {
            self.worker.set_centroids(&self.centroids)?;
            self.sent = true;
        }
        self.worker.assign(&mut self.totals)?;
        if let Some(Balance { most, labels, sums }) = &mut self.balance {
            self.worker.labels(labels)?;
            balance(self.metric.metric(), self.points, &self.centroids, *most, labels);
            sums.add_up(self.points.rows, self.points.weights, labels);
            sums.totals(&self.centroids, &mut self.totals);
        }
        Ok(())
    }

    /// Step 4 of the definition.
    fn objective(&self) -> f64 {
        let Totals { weights, products, norms, .. } = &self.totals;
        let unit = 2f64.powi(-self.scale.weight);
        match self.metric {
            Assign::InnerProduct => products.iter().sum(),
            Assign::L2 => {
                let clusters = weights.iter().zip(products).zip(norms);
                let terms = clusters.map(|((&w, product), norm)| w as f64 * unit * norm - 2.0 * product);
                // Rounding may end below zero where every point is its own centroid.
                (terms.sum::<f64>() + self.energy).max(0.0)
            }
        }
    }

    /// The labels of the final centroids.
    pub(super) fn labels(&mut self) -> Result<Vec<u32>> {
        self.assign()?;
        let mut labels = vec![0; self.points.len()];
        match &self.balance {
            Some(balance) => labels.copy_from_slice(&balance.labels),
            None => self.worker.labels(&mut labels)?,
        }
        Ok(labels)
    }

    /// Points of each cluster in the last assignment.
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
