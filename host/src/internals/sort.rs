//! Times of sorts of pairs in GPU memory.

use super::Bench;
use crate::device::queue::OnStream;
use crate::device::scratch::Reserved;
use crate::sort::Key;
use crate::sort::gpu as sort;
use crate::sort::gpu::{Pairs, SortPlan};
use crate::{Error, Result};

/// The times and the result of repeated sorts of the same pairs.
#[derive(Debug, Clone, PartialEq)]
pub struct SortRun<K> {
    /// Device time of each sort in milliseconds.
    pub milliseconds: Vec<f64>,
    /// The keys in sorted order.
    pub keys: Vec<K>,
    /// The payloads in the order of the sorted keys: the position of each key before the sort.
    pub payloads: Vec<u32>,
}

/// Keys on a GPU with their positions as payloads, for repeated sorts with time measurement. Before each run the
/// unsorted pairs are restored, and other data fills the L2 cache.
///
/// ```no_run
/// # fn main() -> Result<(), warpann::Error> {
/// use warpann::internals::SortBench;
///
/// let keys: Vec<u64> = (0..1u64 << 23).map(|i| i.wrapping_mul(0x9E37_79B9_7F4A_7C15)).collect();
/// let run = SortBench::new(0, &keys)?.sort(9)?;
/// println!("{:.2} Gkeys/s", keys.len() as f64 / run.milliseconds[0] / 1e6);
/// # Ok(())
/// # }
/// ```
pub struct SortBench<K> {
    bench: Bench,
    /// Keys and payloads three times: the unsorted pairs, the pairs that are sorted, and the second array of the sort.
    pairs: [(Reserved<K>, Reserved<u32>); 3],
    plan: SortPlan,
    len: usize,
}

impl<K: Key> SortBench<K> {
    /// Uploads `keys` to GPU `index`.
    ///
    /// # Errors
    /// [`Error::TooMany`] for 2³² keys or more; the errors of opening the device; [`Error::OutOfDeviceMemory`].
    pub fn new(index: usize, keys: &[K]) -> Result<SortBench<K>> {
        let len = u32::try_from(keys.len()).map_err(|_| Error::TooMany {
            what: "pairs",
            asked: keys.len() as u64,
            limit: u64::from(u32::MAX),
        })?;
        let (bench, (pairs, plan)) = Bench::new(index, |layout, limits| {
            let pairs = [(); 3].map(|()| (layout.array(keys.len()), layout.array(keys.len())));
            (pairs, SortPlan::new::<K>(layout, len, 1, 0..<K as Key>::BITS, limits))
        })?;
        let bench = SortBench { bench, pairs, plan, len: keys.len() };
        let (given, positions) = (bench.pairs(0), (0..len).collect::<Vec<u32>>());
        // SAFETY: the layout reserved both arrays.
        unsafe {
            bench.bench.device.copy_to_device(&bench.bench.stream, given.keys, keys)?;
            bench.bench.device.copy_to_device(&bench.bench.stream, given.payloads, &positions)?;
        }
        bench.restore()?;
        Ok(bench)
    }

    fn pairs(&self, which: usize) -> Pairs<K> {
        let ((keys, payloads), scratch) = (self.pairs[which], self.bench.scratch());
        Pairs { keys: scratch.at(keys), payloads: scratch.at(payloads) }
    }

    /// Copies the unsorted pairs to the arrays of the sort.
    fn restore(&self) -> Result<()> {
        let (given, work, Bench { device, stream, .. }) = (self.pairs(0), self.pairs(1), &self.bench);
        // SAFETY: the layout reserved all four arrays, and none overlaps another.
        unsafe {
            device.copy(stream, work.keys, given.keys)?;
            device.copy(stream, work.payloads, given.payloads)
        }
    }

    /// Times `repeat` sorts by the whole key.
    ///
    /// # Errors
    /// The errors of running on the device.
    pub fn sort(&self, repeat: usize) -> Result<SortRun<K>> {
        let Bench { device, stream, .. } = &self.bench;
        let queue = OnStream { runtime: device, stream };
        let mut sorted = self.pairs(1);
        let work = || {
            // SAFETY: the layout reserved every array; the stream runs the sorts one after the other.
            sorted = unsafe { sort::enqueue(&queue, &self.plan, self.pairs(1), self.pairs(2), self.bench.scratch())? };
            Ok(())
        };
        let milliseconds = self.bench.times(repeat, || self.restore(), work)?;
        let (mut keys, mut payloads) = (vec![K::zeroed(); self.len], vec![0; self.len]);
        // SAFETY: the sort wrote all keys and payloads.
        unsafe {
            device.copy_to_host(stream, &mut keys, sorted.keys)?;
            device.copy_to_host(stream, &mut payloads, sorted.payloads)?;
        }
        Ok(SortRun { milliseconds, keys, payloads })
    }
}
