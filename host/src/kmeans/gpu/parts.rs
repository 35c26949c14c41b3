//! k-means over several devices of one kind: each has a part of the points, and their sums meet on the devices.
//!
//! ```text
//! assign:  each device at once:  labels and sums of its points                        // as on one device; then all wait for all
//!          each device at once:  its sums, and those of each other ──add──► all sums; totals of these
//!          the first:            totals ──► host
//! update:  each device:          all sums ──► centroids
//! ```
//!
//! Sums are integers, so every device has the same bits of all sums, and forms the same centroids from them: nothing is sent back. The
//! devices' own sums stay apart, since they are kept up to date from one iteration to the next.
//!
//! # Cost
//! With c clusters of d components each of R devices reads 8 c d bytes of every other one: 4 MB for 4096 × 128, 20 µs by NVLink, and
//! adds them at the speed of its memory. An iteration of four H200 takes 0.8 ms longer than a quarter of one device's, the start of threads
//! included, twice: 8 · 10⁶ points 3.64 times as fast as one (33 ms an iteration), 10⁶ points 2.4 times. Through the host, as
//! devices of different kinds do it ([`crate::kmeans::parts`]), it took 3.6 ms longer.

use super::cluster_sums::{Clusters, Means, add_sums, totals_of, update_centroids};
use super::{KMeansDevice, Run, result_bytes};
use cuda_std::Ptr;

use crate::Result;
use crate::device::runtime::{Memory, Runtime};
use crate::kmeans::worker::{Totals, Worker};
use crate::shards::divided;
use crate::threads::at_once;

/// The points of one device, and the sums of all.
struct Part<'a> {
    device: KMeansDevice<'a>,
    /// All sums, and what is made of them.
    results: Memory,
    /// Sums of another device, on their way into these.
    others: Memory,
}

/// The points of one run on several devices.
pub(crate) struct KMeansParts<'a> {
    /// In the order of their points.
    parts: Vec<Part<'a>>,
    /// Their devices.
    runtimes: Vec<Runtime>,
    means: Means,
}

impl<'a> KMeansParts<'a> {
    /// Divides the points of `run` among devices, one at least.
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

    /// Devices that have points.
    #[cfg(test)]
    pub fn devices(&self) -> usize {
        self.parts.len()
    }

    /// The centroids that one of the devices has.
    #[cfg(test)]
    pub fn centroids_of(&mut self, device: usize, to: &mut [f32]) -> Result<()> {
        self.parts[device].device.centroids(to)
    }
}

impl Part<'_> {
    /// All sums on this device, number `at`, and totals of these; to the host where it asks for them. `sums`: where each device has its own.
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
        // Room for the sums of one device.
        let others = Clusters::with_sums(own, runtime.scratch(others)).added();
        // SAFETY: every device has added up its points and waits; all have one layout.
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
            // SAFETY: the last `assign` left sums and weights there.
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
