//! The interface of a device for k-means, and the arithmetic that all devices share.
//!
//! # Definition
//! Centroids are f32. One iteration:
//!
//! 1. Each point goes to its best centroid by (canonical distance of [`crate::metric`], lower centroid number), with
//!    the point's components as f32: the smallest squared L2, or for
//!    [`Assign::InnerProduct`](crate::metric::Assign::InnerProduct) the largest inner product.
//! 2. q(i, j) = round(w_i · x_ij · 2^s) as i64, and the weight w_i becomes round(w_i · 2^t). Product and scaling are
//!    f64; rounding is to nearest, ties to even. Sums over the points of a cluster are exact integer sums, so their
//!    order does not matter and every device gets the same bits. Without weights w_i = 1 and t = 0.
//!    [`Scale`](super::scale::Scale) chooses s and t so that no sum of n points leaves i64. If one s would round too
//!    many numbers to 0, there are several levels. Each w_i · x_ij is then rounded in the level of its magnitude, and
//!    each level has a separate sum.
//! 3. A new centroid is f32((S_j · 2^-s) / (W · 2^-t)), both in f64, where S_j · 2^-s is added up over levels, from the
//!    last level, with the smallest unit, to the first. A cluster without weight keeps its centroid. For spherical
//!    k-means the centroid is then divided by its canonical norm (f64, rounded to f32 at the end); a zero centroid
//!    stays zero.
//! 4. The objective of the iteration, for the centroids that the points were assigned to, is the sum over clusters, in
//!    ascending order, of W‖c‖² − 2⟨c, S⟩, plus Σ w‖x‖² (squared L2; of the canonical f64 squares, by blocks of 4,096
//!    points), or Σ ⟨c, S⟩ (inner product). All arithmetic is f64; ‖c‖² and ⟨c, S⟩ are in the canonical order of
//!    [`crate::metric`] steps 2 to 5. The rounding errors of the additions are summed separately and added at the end.

use super::sums::PartialSums;
pub(crate) use super::sums::Totals;
use crate::Result;

/// The points of one k-means run on one device.
pub(crate) trait Worker: Send {
    /// Sets the centroids (clusters × dim, row-major).
    fn set_centroids(&mut self, centroids: &[f32]) -> Result<()>;
    /// Copies the centroids to the host.
    fn centroids(&mut self, to: &mut [f32]) -> Result<()>;
    /// Steps 1 and 2: assigns all points to the centroids, keeps labels and sums on the device, and reports totals.
    fn assign(&mut self, totals: &mut Totals) -> Result<()>;
    /// Step 3, from the sums of the last `assign`.
    fn update(&mut self) -> Result<()>;
    /// Copies the labels of the last `assign` to the host, one for each point.
    fn labels(&mut self, to: &mut [u32]) -> Result<()>;
}

/// A worker that may have only a part of the run's points.
pub(crate) trait PartWorker: Worker {
    /// As [`Worker::set_centroids`], if each centroid has moved little since the last assignment, so that most labels
    /// are probably still right.
    fn move_centroids(&mut self, centroids: &[f32]) -> Result<()>;
    /// As [`Worker::assign`], but reports the sums of its points instead of the totals.
    fn assign_part(&mut self, sums: &mut PartialSums) -> Result<()>;
}
