//! Replicas and shards: one index over several devices of a host (Johnson, Douze and Jégou, section 5.4).
//!
//! # Problem and algorithm
//! A [`Placement`] is a grid of devices: the S shards of a replica hold a part of the vectors each, and the R replicas of a shard hold the
//! same part. The grid is a back end like any other, over the back ends of its devices:
//!
//! ```text
//! search:  for each shard, at once:
//!              divide the queries among its replicas; each, on a thread of its own: search    // the device's own back end
//!          merge the shards' results: k-selection by (canonical distance, lower id)           // merge.rs
//! ```
//!
//! A vector's canonical distance does not depend on where it is, and the k best of all are among the k best of each shard: so results are
//! the same bits as on one device. Replicas write into the caller's memory; so does the first shard, and the others into memory that is
//! merged into it.
//!
//! This folder has what all grids share: places that fail, parts of a batch, and the merge of results (`merge.rs`). The grids themselves
//! belong to their indexes: `flat/grid.rs` (which rows a shard has, and which id each row has) and `ivf/grid.rs` (every shard has a part of
//! every list).
//!
//! # Cost
//! Of q queries over n vectors each device does q / R · n / S of the distances. What is not divided: the coarse quantizer of inverted files
//! (every shard finds the probes of all its queries), O(q · k · S) for the merge, and what it takes to wake the threads (`threads.rs`). Each device
//! has its own link and its own pinned buffers, so copies run at once as well.
//!
//! # Devices that fail
//! Where the driver says in the middle of a search that the device or its context is lost ([`lost`]), the search fails with
//! [`Error::DeviceFailed`], which names the device, and the grid leaves this place out from then on: what it would have done falls to the
//! other replicas of its shard. Once a shard has none left, searches fail with [`Error::ShardLost`] until the index moves to other devices.
//! Any other error, such as a lack of memory, may pass: the search fails with it and the place stays. Nothing is tried twice in secret: the
//! caller decides whether to ask again.

pub(crate) mod merge;
#[cfg(test)]
mod tests;

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

pub(crate) use self::merge::{merge, merge_apart};
use crate::threads::{at_once, worth_threads};
use crate::validate::{check_vectors, check_whole};
use crate::{Device, Element, Error, Input, Placement, Result};

/// Queries that are worth a thread: waking one takes as long as a device takes for about so many.
const QUERIES_PER_REPLICA: usize = 16;

/// A device's back end, at its place of the grid.
pub(crate) struct Place<B: ?Sized> {
    pub device: Device,
    failed: AtomicBool,
    pub backend: Box<B>,
}

impl<B: ?Sized> Place<B> {
    pub fn alive(&self) -> bool {
        !self.failed.load(Ordering::Relaxed)
    }
}

/// The back ends of a [`Placement`].
pub(crate) struct Grid<B: ?Sized> {
    /// The devices, replica after replica.
    pub places: Vec<Place<B>>,
    pub shards: usize,
    /// Counts searches, so that small ones go to the replicas in turn.
    turn: AtomicUsize,
}

/// What one device does of a search.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Part {
    /// Number of the device in the grid of replicas and shards.
    pub place: usize,
    /// The queries that it answers.
    pub queries: Range<usize>,
}

impl<B: ?Sized + Send + Sync> Grid<B> {
    /// The back ends of `placement`, place after place.
    pub(crate) fn new(placement: &Placement, backends: Vec<Box<B>>) -> Self {
        let place = |(&device, backend)| Place { device, failed: AtomicBool::new(false), backend };
        let places = placement.devices().iter().zip(backends).map(place).collect();
        Grid { places, shards: placement.shards(), turn: AtomicUsize::new(0) }
    }

    /// Which device answers which of `queries` (at least one) queries over the vectors of `shard`: the replicas that are left divide them
    /// evenly and in order, but only among as many as it pays for.
    pub fn parts(&self, shard: usize, queries: usize) -> Result<Vec<Part>> {
        let of_shard = (shard..self.places.len()).step_by(self.shards);
        let left: Vec<usize> = of_shard.filter(|&place| self.places[place].alive()).collect();
        if left.is_empty() {
            return Err(Error::ShardLost { shard, replicas: self.places.len() / self.shards });
        }
        let parts = left.len().min(queries.div_ceil(QUERIES_PER_REPLICA)).max(1);
        let first = if parts < left.len() { self.turn.fetch_add(parts, Ordering::Relaxed) } else { 0 };
        let part = |part: usize| Part {
            place: left[(first.wrapping_add(part)) % left.len()],
            queries: share(queries, part, parts),
        };
        Ok((0..parts).map(part).collect())
    }

    /// Passes on what a device said, or takes it out of service and says so.
    pub fn judge<V>(&self, place: usize, result: Result<V>) -> Result<V> {
        result.map_err(|error| match error {
            Error::Driver { code, .. } if lost(code) => {
                self.places[place].failed.store(true, Ordering::Relaxed);
                let shard = place % self.shards;
                let of_shard = self.places.iter().skip(shard).step_by(self.shards);
                let left = of_shard.filter(|place| place.alive()).count();
                Error::DeviceFailed { device: self.places[place].device, shard, left, source: Box::new(error) }
            }
            other => other,
        })
    }

    /// The grid in words: each device as `describe` has it.
    pub fn describe_with(&self, describe: impl Fn(&B) -> String) -> String {
        let mut text = String::new();
        for (at, place) in self.places.iter().enumerate() {
            match at {
                0 => {}
                _ if at % self.shards == 0 => text.push_str("; "),
                _ => text.push_str(" + "),
            }
            if place.alive() {
                text.push_str(&describe(&place.backend));
            } else {
                text.push_str(&format!("{} (failed)", place.device));
            }
        }
        text
    }
}

/// Whether a driver's code says that the device or its context cannot be used again in this process. CUDA's documentation says so of the
/// codes of faults on the device; the others below mean that the driver or the context has ended. Code 999 (unknown) counts as well: the
/// driver gives it for a device that left the bus.
fn lost(code: i32) -> bool {
    const NOT_INITIALIZED_DEINITIALIZED: [i32; 2] = [3, 4];
    const NO_DEVICE_INVALID_DEVICE_INVALID_CONTEXT: [i32; 3] = [100, 101, 201];
    const ECC_AND_NVLINK_UNCORRECTABLE: [i32; 2] = [214, 220];
    const ADDRESS_TIMEOUT_CONTEXT_DESTROYED_ASSERT: [i32; 4] = [700, 702, 709, 710];
    // Hardware stack, illegal instruction, misaligned address, address space, program counter, launch failed.
    const FAULTS_OF_A_KERNEL: std::ops::RangeInclusive<i32> = 714..=719;
    const MPS_CLIENT_TERMINATED_UNKNOWN: [i32; 2] = [810, 999];
    let listed: [&[i32]; 5] = [
        &NOT_INITIALIZED_DEINITIALIZED,
        &NO_DEVICE_INVALID_DEVICE_INVALID_CONTEXT,
        &ECC_AND_NVLINK_UNCORRECTABLE,
        &ADDRESS_TIMEOUT_CONTEXT_DESTROYED_ASSERT,
        &MPS_CLIENT_TERMINATED_UNKNOWN,
    ];
    FAULTS_OF_A_KERNEL.contains(&code) || listed.iter().any(|codes| codes.contains(&code))
}

/// Part `part` of `parts` of the numbers below `count`; parts differ by one at most.
pub(crate) fn share(count: usize, part: usize, parts: usize) -> Range<usize> {
    // No overflow: counts are of things in memory, parts of devices.
    let cut = |part: usize| (count as u128 * part as u128 / parts as u128) as usize;
    cut(part)..cut(part + 1)
}

/// Rows that are worth a device of their own.
const ROWS_PER_DEVICE: usize = 1024;

/// Among how many of so many devices `count` rows are divided: the first.
pub(crate) fn parts_of(devices: usize, count: usize) -> usize {
    devices.min(count.div_ceil(ROWS_PER_DEVICE)).max(1)
}

/// Divides `count` rows evenly among the devices of a placement, whatever it makes of them, and does `work` for each part at once.
pub(crate) fn by_rows<V: Send>(
    placement: &Placement,
    count: usize,
    work: impl Fn(Range<usize>, Device) -> Result<V> + Sync,
) -> Result<Vec<V>> {
    divided(placement.devices(), count, |rows, &device| work(rows, device))
}

/// The same for what stands for the devices, one at least.
pub(crate) fn divided<P: Sync, V: Send>(
    places: &[P],
    count: usize,
    work: impl Fn(Range<usize>, &P) -> Result<V> + Sync,
) -> Result<Vec<V>> {
    let parts = parts_of(places.len(), count);
    let jobs = places.iter().take(parts).enumerate().collect();
    at_once(jobs, |(part, place)| work(share(count, part, parts), place)).into_iter().collect()
}

/// Number of vectors in `queries`, once they are known to be whole and finite. Checked by at least as many threads as will search them on
/// so many devices, which are awake then (`threads.rs`): one alone took 0.5 ms for 10,000 × 128, where a search takes 1 to 9.
pub(crate) fn check_queries<T: Element>(devices: usize, queries: &[T], dim: usize) -> Result<usize> {
    let count = check_whole(queries, dim)?;
    let searching = devices.min(count.div_ceil(QUERIES_PER_REPLICA)).max(1);
    let parts = searching.max(worth_threads(size_of_val(queries)));
    let checked = at_once((0..parts).collect(), |part| {
        let rows = share(count, part, parts);
        check_vectors(&queries[rows.start * dim..rows.end * dim], dim, Input::Queries)
            .map_err(|error| error.after_rows(rows.start))
    });
    checked.into_iter().sum()
}

/// One vector after the other; a single one as it is.
pub(crate) fn joined<V: Copy>(mut parts: Vec<Vec<V>>) -> Vec<V> {
    if parts.len() == 1 { parts.remove(0) } else { parts.concat() }
}
