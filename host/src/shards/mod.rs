//! Replicas and shards: one index over several devices of a host (Johnson, Douze and Jégou, section 5.4).
//!
//! # Problem and algorithm
//! A [`Placement`] is a grid of devices: the S shards of a replica hold a part of the vectors each, and the R replicas
//! of a shard hold the same part. The grid is a back end that contains the back ends of its devices:
//!
//! ```text
//! search:  for each shard, at once:
//!              divide the queries among its replicas; each, on a separate thread: search        // the back end of a device
//!          merge the shards' results: k-selection by (canonical distance, lower id)           // merge.rs
//! ```
//!
//! A vector's canonical distance does not depend on its device, and the k best of all vectors are among the k best of
//! each shard. So results have the same bits as on one device. Replicas and the first shard write to the caller's
//! memory; the other shards write to separate memory, which is then merged.
//!
//! This folder has the parts that all grids share: devices that fail, parts of a batch, and the merge of results
//! (`merge.rs`). The grids themselves stand with their indexes: `flat/grid.rs` (the rows of each shard and their ids)
//! and `ivf/grid.rs` (every shard has a part of every list).
//!
//! # Cost
//! For q queries over n vectors, each device computes q / R · n / S distances. These costs are not divided: the coarse
//! quantizer of inverted files (every shard finds the probes of all its queries), O(q · k · S) for the merge, and the
//! time to wake the threads (`threads.rs`). Each device has a separate link and separate pinned buffers, so copies run
//! at the same time as well.
//!
//! # Devices that fail
//! If the driver reports during a search that the device or its context is lost ([`lost`]), the search fails with
//! [`Error::DeviceFailed`], which names the device. The grid does not use this device again; the other replicas of its
//! shard do its work. If no replica of a shard is left, searches fail with [`Error::ShardLost`] until the index moves
//! to other devices. Any other error, such as a lack of memory, may be temporary: the search fails with it and the
//! device stays in use. The grid never repeats a search; the caller decides whether to search again.

pub(crate) mod merge;
#[cfg(test)]
mod tests;

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

pub(crate) use self::merge::{merge, merge_apart, merge_ranges};
use crate::threads::{at_once, worth_threads};
use crate::validate::{check_vectors, check_whole};
use crate::{Device, Element, Error, Input, Metric, Neighbors, Placement, Result, events};

/// Smallest number of queries for which a thread is woken: waking a thread takes as long as a device takes for about
/// this number of queries.
const QUERIES_PER_REPLICA: usize = 16;

/// The back end of one device, at a place of the grid.
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
    /// Number of searches so far, so that small searches go to the replicas in turn.
    turn: AtomicUsize,
}

/// The part of a search that one device does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Part {
    /// Number of the device in the grid of replicas and shards.
    pub place: usize,
    /// The queries of this part.
    pub queries: Range<usize>,
}

impl<B: ?Sized + Send + Sync> Grid<B> {
    /// A grid of the same devices, those that have failed among them, with other back ends; one for each place.
    pub(crate) fn with(&self, backends: Vec<Box<B>>) -> Self {
        let place = |(before, backend): (&Place<B>, _)| {
            let failed = AtomicBool::new(!before.alive());
            Place { device: before.device, failed, backend }
        };
        let places = self.places.iter().zip(backends).map(place).collect();
        Grid { places, shards: self.shards, turn: AtomicUsize::new(0) }
    }

    /// A grid for `placement`; `backends` has one back end for each place.
    pub(crate) fn new(placement: &Placement, backends: Vec<Box<B>>) -> Self {
        let place = |(&device, backend)| Place { device, failed: AtomicBool::new(false), backend };
        let places = placement.devices().iter().zip(backends).map(place).collect();
        Grid { places, shards: placement.shards(), turn: AtomicUsize::new(0) }
    }

    /// Divides `queries` (at least one) queries over the vectors of `shard` among the working replicas, evenly and in
    /// order. It uses only as many replicas as the number of queries justifies.
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

    /// Returns the result of a device. If the result means that the device is lost, marks the device as failed and
    /// returns [`Error::DeviceFailed`].
    pub fn judge<V>(&self, place: usize, result: Result<V>) -> Result<V> {
        result.map_err(|error| match error {
            Error::Driver { code, .. } if lost(code) => self.leave_out(place, error),
            other => other,
        })
    }

    /// Marks a device as failed for the reason `error`, and returns [`Error::DeviceFailed`]. If the device is already
    /// marked, returns `error`.
    pub fn leave_out(&self, place: usize, error: Error) -> Error {
        if self.places[place].failed.swap(true, Ordering::Relaxed) {
            return error;
        }
        let shard = place % self.shards;
        let of_shard = self.places.iter().skip(shard).step_by(self.shards);
        let left = of_shard.filter(|place| place.alive()).count();
        events::device_failed(self.places[place].device, shard, left, &error);
        Error::DeviceFailed { device: self.places[place].device, shard, left, source: Box::new(error) }
    }

    /// A description of the grid; `describe` describes each device.
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

/// Searches the parts of several shards at the same time, and writes the `k` best of all shards for each query to `ids`
/// and `distances`. `parts` has the number of each shard with the parts of its queries, which are in order. `search`
/// searches one part, and writes to the part's slots.
pub(crate) fn search_parts(
    metric: Metric,
    k: usize,
    parts: Vec<(usize, Vec<Part>)>,
    ids: &mut [u64],
    distances: &mut [f32],
    search: impl Fn(usize, Part, &mut [u64], &mut [f32]) -> Result<()> + Sync,
) -> Result<()> {
    let more = parts.iter().skip(1).map(|_| Neighbors::none(metric, ids.len() / k.max(1), k));
    let mut more = more.collect::<Result<Vec<_>>>()?;
    let first = [(&mut *ids, &mut *distances)].into_iter();
    let others = more.iter_mut().map(|found| (found.ids.as_mut_slice(), found.distances.as_mut_slice()));
    let mut jobs = Vec::new();
    for ((shard, parts), (mut ids, mut distances)) in parts.into_iter().zip(first.chain(others)) {
        for part in parts {
            let slots = part.queries.len() * k;
            let own_ids = ids.split_off_mut(..slots).unwrap_or_default();
            jobs.push((shard, part, own_ids, distances.split_off_mut(..slots).unwrap_or_default()));
        }
    }
    let done = at_once(jobs, |(shard, part, ids, distances)| search(shard, part, ids, distances));
    done.into_iter().collect::<Result<()>>()?;
    let more: Vec<_> = more.iter().map(|found| (&found.ids, &found.distances)).collect();
    merge(metric, k, ids, distances, &more);
    Ok(())
}

/// Whether an error code of the driver means that the device or its context cannot be used again in this process.
/// CUDA's documentation states this for the codes of faults on the device. The other codes below mean that the driver
/// or the context has ended. Code 999 (unknown) counts as well, because the driver returns it for a device that has
/// left the bus.
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
    // No overflow in u128: `count` is a number of objects in memory, `parts` a number of devices.
    let cut = |part: usize| (count as u128 * part as u128 / parts as u128) as usize;
    cut(part)..cut(part + 1)
}

/// Smallest number of rows for which a further device is used.
const ROWS_PER_DEVICE: usize = 1024;

/// The number of devices, of `devices`, among which `count` rows are divided. The first devices are used.
pub(crate) fn parts_of(devices: usize, count: usize) -> usize {
    devices.min(count.div_ceil(ROWS_PER_DEVICE)).max(1)
}

/// Divides `count` rows evenly among all devices of a placement, replicas and shards alike, and calls `work` for all
/// parts at the same time.
pub(crate) fn by_rows<V: Send>(
    placement: &Placement,
    count: usize,
    work: impl Fn(Range<usize>, Device) -> Result<V> + Sync,
) -> Result<Vec<V>> {
    divided(placement.devices(), count, |rows, &device| work(rows, device))
}

/// As [`by_rows`], for a list with one value for each device; it must not be empty.
pub(crate) fn divided<P: Sync, V: Send>(
    places: &[P],
    count: usize,
    work: impl Fn(Range<usize>, &P) -> Result<V> + Sync,
) -> Result<Vec<V>> {
    let parts = parts_of(places.len(), count);
    let jobs = places.iter().take(parts).enumerate().collect();
    at_once(jobs, |(part, place)| work(share(count, part, parts), place)).into_iter().collect()
}

/// Checks that `queries` is a whole number of finite vectors, and returns that number. At least as many threads check
/// as will search on `devices` devices, so these threads are then awake (`threads.rs`). One thread alone took 0.5 ms
/// for 10,000 × 128, and a search takes 1 to 9 ms.
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

/// Joins vectors. A single vector is returned without a copy.
pub(crate) fn joined<V: Copy>(mut parts: Vec<Vec<V>>) -> Vec<V> {
    if parts.len() == 1 { parts.remove(0) } else { parts.concat() }
}
