//! k-means over devices of different kinds, or parts of the CPU: each has a part of the points, and all have all centroids. (GPUs alone:
//! `gpu/parts.rs`.)
//!
//! ```text
//! assign:  each device at once:  centroids ──► device;  labels and sums of its points;  sums ──► host
//!          add the sums up; totals                                                       sums.rs
//! update:  means of the sums                                                             sums.rs
//! ```
//!
//! Sums are integers, so adding those of the parts up gives the bits of one device, and from there on the arithmetic is that of the CPU,
//! which is that of every device (worker.rs).
//!
//! # Cost
//! With c clusters of d components an iteration moves 8 c d bytes from and 4 c d bytes to each device, and the host reads the sums of R
//! devices once. For 4096 × 128 that took e = 2.7 ms with two H200 and 3.6 ms with four, beside 4.2 ms for the assignment of 10⁶ points by
//! one: threads of the host that wake up for each step, and 4 MB that pass through its memory several times, cost more than the links.
//!
//! What lost: sending the total back for each device to average moves twice as many bytes as centroids do, and reading the centroids
//! from a device again once more.

use std::ops::Range;

use super::sums::{PartialSums, Sums};
use super::worker::{PartWorker, Totals, Worker};
use crate::Result;
use crate::threads::at_once;

/// What the devices do not know of the centroids.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum News {
    /// They have them.
    None,
    /// Each has moved.
    Moved,
    /// They are others.
    Others,
}

/// The points of one device.
pub(super) struct Part<'a> {
    /// Which of all points.
    pub(super) points: Range<usize>,
    /// Their worker.
    pub(super) worker: Box<dyn PartWorker + 'a>,
    /// What they add up to.
    pub(super) sums: PartialSums,
}

/// The points of one run, in parts.
pub(super) struct Parts<'a> {
    parts: Vec<Part<'a>>,
    spherical: bool,
    centroids: Vec<f32>,
    news: News,
    sums: Sums,
}

impl<'a> Parts<'a> {
    /// Over parts in the order of their points; `sums` of all of them, and `components` of all centroids.
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
