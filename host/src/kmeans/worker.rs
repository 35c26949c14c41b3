//! What a device does for k-means, and the arithmetic that all devices share.
//!
//! # Definition
//! Centroids are f32. One iteration:
//!
//! 1. Each point goes to its best centroid by (canonical distance of [`crate::metric`], lower centroid number), the point's
//!    components as f32: smallest squared L2, or for [`Assign::InnerProduct`](crate::metric::Assign::InnerProduct) the largest inner product.
//! 2. q(i, j) = round(w_i · x_ij · 2^s) as i64, where product and scaling are f64, rounding is to nearest, ties to even; and
//!    the weight w_i as round(w_i · 2^t). Sums over the points of a cluster are exact integer sums, so their order does not
//!    matter and every device gets the same bits. Without weights w_i = 1 and t = 0. [`Scale`](super::scale::Scale) chooses s and t so
//!    that no sum of n points leaves i64. Where one s would round too many numbers to nothing it has several levels: each
//!    w_i · x_ij is rounded in the level that takes its magnitude, and each level has a sum of its own.
//! 3. A new centroid is f32((S_j · 2^-s) / (W · 2^-t)), both in f64, where S_j · 2^-s is added up over levels, from the smallest
//!    s's level, the last, to the first; a cluster without weight keeps its centroid. For spherical
//!    k-means the centroid is then divided by its canonical norm (f64, rounded to f32 at the end); a zero stays zero.
//! 4. The objective of the iteration, of the centroids that the points were assigned with: Σ over clusters, in ascending order, of
//!    W‖c‖² − 2⟨c, S⟩, plus Σ w‖x‖² (squared L2; the last from the canonical f64 sums, added up in ascending order of points), or
//!    Σ ⟨c, S⟩ (inner product). All in f64; ‖c‖² and ⟨c, S⟩ in the canonical order of [`crate::metric`] steps 2 to 5. With several
//!    levels, what the additions round off is added up as well and added at the end: far points would swallow the others.

use super::sums::PartialSums;
use crate::Result;

/// What an assignment found out about each cluster.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Totals {
    /// Points of each cluster.
    pub counts: Vec<u32>,
    /// W of each cluster, unscaled.
    pub weights: Vec<f64>,
    /// ⟨c, S⟩ of each cluster, unscaled, by the definition.
    pub products: Vec<f64>,
    /// ‖c‖² of each centroid that the points were assigned with, by the definition.
    pub norms: Vec<f64>,
}

/// The points of one k-means run on one device.
pub(crate) trait Worker: Send {
    /// Makes these the centroids (clusters × dim, row-major).
    fn set_centroids(&mut self, centroids: &[f32]) -> Result<()>;
    /// Reads the centroids back.
    fn centroids(&mut self, to: &mut [f32]) -> Result<()>;
    /// Steps 1 and 2: assigns all points to the centroids, keeps labels and sums on the device, and reports totals.
    fn assign(&mut self, totals: &mut Totals) -> Result<()>;
    /// Step 3, from the sums of the last `assign`.
    fn update(&mut self) -> Result<()>;
    /// The labels of the last `assign`, one a point.
    fn labels(&mut self, to: &mut [u32]) -> Result<()>;
}

/// A worker whose points may be a part of those of the run.
pub(crate) trait PartWorker: Worker {
    /// As [`Worker::set_centroids`], where each has moved since the last assignment: points are probably nearest to the same.
    fn move_centroids(&mut self, centroids: &[f32]) -> Result<()>;
    /// As [`Worker::assign`], but tells the sums of its points instead of the totals.
    fn assign_part(&mut self, sums: &mut PartialSums) -> Result<()>;
}
