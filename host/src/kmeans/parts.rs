//! k-means over devices of different kinds, or over parts of the CPU. Each device has a part of the points, and every
//! device has all centroids. (GPUs alone use `gpu/parts.rs`.)
//!
//! ```text
//! assign:  all devices at once:  centroids ──► device;  labels and sums of its points;  sums ──► host
//!          add the sums of the devices; totals                                          sums.rs
//! update:  means of the sums                                                            sums.rs
//! ```
//!
//! Sums are integers, so the sum over the parts has the bits of one device. All later arithmetic is that of the CPU,
//! which is the same on every device (`worker.rs`).
//!
//! # Cost
//! With c clusters of d components, an iteration moves 8 c d bytes from each device and 4 c d bytes to each device, and
//! the host reads the sums of the R devices once. For 4096 × 128 that took 2.7 ms with two H200 and 3.6 ms with four;
//! the assignment of 10⁶ points by one H200 takes 4.2 ms. Most of this time is not the links: host threads wake up for
//! each step, and 4 MB pass through host memory several times.
//!
//! A variant that lost: sending the total back, so that each device computes the means. The total has twice the bytes
//! of the centroids, and the host has to read the centroids back from a device.

use std::ops::Range;

use super::sums::{PartialSums, Sums};
use super::worker::{PartWorker, Totals, Worker};
use crate::Result;
use crate::threads::at_once;

/// How the centroids changed since the devices last received them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum News {
    /// The devices have the present centroids.
    None,
    /// Each centroid has moved a little.
    Moved,
    /// The centroids are new: old labels are no start for them.
    Others,
}

/// A part of the points, and the device that has it.
pub(super) struct Part<'a> {
    /// Numbers of the points of this part.
    pub(super) points: Range<usize>,
    /// The worker of the device.
    pub(super) worker: Box<dyn PartWorker + 'a>,
    /// Sums over the points of this part.
    pub(super) sums: PartialSums,
}

/// The points of one run, divided among devices.
pub(super) struct Parts<'a> {
    parts: Vec<Part<'a>>,
    spherical: bool,
    centroids: Vec<f32>,
    news: News,
    sums: Sums,
}

impl<'a> Parts<'a> {
    /// Takes parts in the order of their points. `sums` are for the points of all parts, and `components` counts those
    /// of all centroids.
    pub(super) fn new(parts: Vec<Part<'a>>, sums: Sums, components: usize, spherical: bool) -> Self {
        Parts { parts, spherical, centroids: vec![0.0; components], news: News::Others, sums }
    }
}

impl Worker for Parts<'_> {
    fn set_centroids(&mut self, centroids: &[f32]) -> Result<()> {
        self.centroids.copy_from_slice(centroids);
        self.news = News::Others;
        Ok(())
    }

    fn centroids(&mut self, to: &mut [f32]) -> Result<()> {
        to.copy_from_slice(&self.centroids);
        Ok(())
    }

    fn assign(&mut self, totals: &mut Totals) -> Result<()> {
        let (centroids, news) = (&self.centroids, self.news);
        let done = at_once(self.parts.iter_mut().collect(), |part: &mut Part<'_>| {
            match news {
                News::None => {}
                News::Moved => part.worker.move_centroids(centroids)?,
                News::Others => part.worker.set_centroids(centroids)?,
            }
            part.worker.assign_part(&mut part.sums)
        });
        done.into_iter().collect::<Result<()>>()?;
        self.news = News::None;
        self.sums.take(self.parts.iter().map(|part| &part.sums).collect());
        self.sums.totals(&self.centroids, totals);
        Ok(())
    }

    fn update(&mut self) -> Result<()> {
        self.sums.means(self.spherical, &mut self.centroids);
        self.news = News::Moved;
        Ok(())
    }

    fn labels(&mut self, mut to: &mut [u32]) -> Result<()> {
        let own = |part| {
            let part: &mut Part<'_> = part;
            let labels = to.split_off_mut(..part.points.len()).unwrap_or_default();
            (part, labels)
        };
        let jobs = self.parts.iter_mut().map(own).collect();
        at_once(jobs, |(part, labels): (&mut Part<'_>, &mut [u32])| part.worker.labels(labels)).into_iter().collect()
    }
}
