//! k-means over several devices of one kind: each device has a part of the points, and the devices add up their sums on
//! the devices.
//!
//! ```text
//! assign:  all devices at once:  labels and sums of the device's points               // as on one device; then all wait for all
//!          all devices at once:  own sums and those of each other device ──add──► all sums; totals of these
//!          the first device:     totals ──► host
//! update:  each device:          all sums ──► centroids
//! ```
//!
//! Sums are integers, so every device has the same bits of all sums and computes the same centroids from them. Nothing
//! has to be sent back. A device's own sums stay separate from all sums, because they are updated from one iteration to
//! the next.
//!
//! # Cost
//! With c clusters of d components, each device reads 8 c d bytes from every other device and adds them at the speed of
//! its memory: 4 MB for 4096 × 128, 20 µs by NVLink. An iteration of four H200 takes 0.8 ms longer than a quarter of
//! one device's time, which includes starting threads twice. Four H200 are 3.64 times as fast as one for 8 · 10⁶ points
//! (33 ms an iteration on one), and 2.4 times for 10⁶ points. What lost: adding the sums on the host, as devices of
//! different kinds do ([`crate::kmeans::parts`]), took 3.6 ms longer.

use super::cluster_sums::{Clusters, Means, add_sums, totals_of, update_centroids};
use super::{KMeansDevice, Run, result_bytes};
use cuda_std::Ptr;

use crate::Result;
use crate::device::runtime::{Memory, Runtime};
use crate::kmeans::worker::{Totals, Worker};
use crate::shards::divided;
use crate::threads::at_once;

/// The points of one device, and the sums of all devices.
struct Part<'a> {
    device: KMeansDevice<'a>,
    /// The sums of all devices, and the totals from them.
    results: Memory,
    /// The sums of another device, copied here before they are added.
    others: Memory,
}

/// The points of one run on several devices.
pub(crate) struct KMeansParts<'a> {
    /// The devices with points, in the order of their points.
    parts: Vec<Part<'a>>,
    /// The devices given to `open`.
    runtimes: Vec<Runtime>,
    means: Means,
}

impl<'a> KMeansParts<'a> {
    /// Divides the points of `run` among `runtimes`, at least one.
    pub fn open(runtimes: &[Runtime], run: Run<'a>, means: Means) -> Result<Self> {
        let count = run.rows.len();
        let own = result_bytes(&run, means).iter().sum::<usize>() as u64;
        let run = Run { budget: run.budget.map(|bytes| bytes.saturating_sub(own)), ..run };
        let parts = divided(runtimes, count, |points, runtime| {
            let device = KMeansDevice::new(runtime.clone(), run.part(points), means)?;
            let [results, others] = result_bytes(&run, means).map(|bytes| runtime.allocate(bytes));
            Ok(Part { results: results?, others: others?, device })
        })?;
        Ok(KMeansParts { parts, runtimes: runtimes.to_vec(), means })
    }

    /// Number of devices that have points.
    #[cfg(test)]
    pub fn devices(&self) -> usize {
        self.parts.len()
    }

    /// Copies the centroids of device `device` to the host.
    #[cfg(test)]
    pub fn centroids_of(&mut self, device: usize, to: &mut [f32]) -> Result<()> {
        self.parts[device].device.centroids(to)
    }
}

impl Part<'_> {
    /// Adds up all sums on this device, number `at`, and computes totals, which it copies to `totals`. `sums` are each
    /// device's own sums.
    fn gather(
        &self,
        at: usize,
        sums: &[(&Runtime, Ptr<u64>)],
        means: Means,
        totals: Option<&mut Totals>,
    ) -> Result<()> {
        let Part { device, results, others } = self;
        let (runtime, stream) = (device.runtime(), device.stream());
        let own = device.cluster_parts();
        let all = own.with_sums(runtime.scratch(results));
        // Memory for the sums of one other device.
        let others = Clusters::with_sums(own, runtime.scratch(others)).added();
        // SAFETY: every device has added up its points, and its stream is idle; all devices have the same layout.
        unsafe {
            runtime.copy(stream, all.added(), own.added())?;
            for (_, &(other, from)) in sums.iter().enumerate().filter(|(other, _)| *other != at) {
                runtime.copy_from_device(stream, others, other, from)?;
                add_sums(runtime, stream, others.into(), all)?;
            }
            totals_of(runtime, stream, all, means, device.weighted(), totals)?;
        }
        runtime.synchronize(stream)
    }
}

impl Worker for KMeansParts<'_> {
    fn set_centroids(&mut self, centroids: &[f32]) -> Result<()> {
        let parts = self.parts.iter_mut().collect();
        at_once(parts, |part: &mut Part<'_>| part.device.set_centroids(centroids)).into_iter().collect()
    }

    fn centroids(&mut self, to: &mut [f32]) -> Result<()> {
        self.parts[0].device.centroids(to)
    }

    fn assign(&mut self, totals: &mut Totals) -> Result<()> {
        let label = |part: &mut Part<'_>| {
            part.device.label_points()?;
            part.device.runtime().synchronize(part.device.stream())
        };
        at_once(self.parts.iter_mut().collect(), label).into_iter().collect::<Result<()>>()?;
        let own = |part: &Part<'_>| Ptr::from(part.device.cluster_parts().added());
        let sums: Vec<Ptr<u64>> = self.parts.iter().map(own).collect();
        let sums: Vec<(&Runtime, Ptr<u64>)> = self.runtimes.iter().zip(sums).collect();
        let (means, mut totals) = (self.means, Some(totals));
        let jobs = self.parts.iter_mut().enumerate().map(|(at, part)| (at, part, totals.take())).collect();
        at_once(jobs, |(at, part, totals): (usize, &mut Part<'_>, _)| part.gather(at, &sums, means, totals))
            .into_iter()
            .collect()
    }

    fn update(&mut self) -> Result<()> {
        for Part { device, results, .. } in &mut self.parts {
            device.centroids_move();
            let all = device.cluster_parts().with_sums(device.runtime().scratch(results));
            // SAFETY: the last `assign` left all sums and weights in `results`.
            unsafe { update_centroids(device.runtime(), device.stream(), all, self.means)? };
        }
        Ok(())
    }

    fn labels(&mut self, mut to: &mut [u32]) -> Result<()> {
        let own = |part| {
            let part: &mut Part<'_> = part;
            let labels = to.split_off_mut(..part.device.count()).unwrap_or_default();
            (part, labels)
        };
        let jobs = self.parts.iter_mut().map(own).collect();
        at_once(jobs, |(part, labels): (&mut Part<'_>, &mut [u32])| part.device.labels(labels)).into_iter().collect()
    }
}
