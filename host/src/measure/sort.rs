//! Times of sorts of pairs in GPU memory.

use super::gpu::{FLUSH_BYTES, by_events};
use super::times::Times;
use crate::device::open::open_gpu;
use crate::device::queue::OnStream;
use crate::device::runtime::{Memory, Runtime, Stream};
use crate::device::scratch::{Layout, Reserved, Scratch};
use crate::sort::Key;
use crate::sort::gpu as sort;
use crate::sort::gpu::{Pairs, SortPlan};
use crate::{Error, Result};

/// The times and the result of repeated sorts of the same pairs.
#[derive(Debug, Clone, PartialEq)]
pub struct SortRun<K> {
    /// Device time of each sort.
    pub times: Times,
    /// The keys in sorted order.
    pub keys: Vec<K>,
    /// The payloads in the order of the sorted keys: the position of each key before the sort.
    pub payloads: Vec<u32>,
}

/// Keys on a GPU with their positions as payloads, for repeated sorts with time measurement. Before each run the unsorted pairs are
/// restored, and other data fills the L2 cache.
///
/// ```no_run
/// # fn main() -> Result<(), warpann::Error> {
/// use warpann::measure::SortBench;
///
/// let keys: Vec<u64> = (0..1u64 << 23).map(|i| i.wrapping_mul(0x9E37_79B9_7F4A_7C15)).collect();
/// let run = SortBench::new(0, &keys)?.sort(9)?;
/// println!("{:.2} Gkeys/s", keys.len() as f64 / run.times.median() / 1e6);
/// # Ok(())
/// # }
/// ```
pub struct SortBench<K> {
    device: Runtime,
    stream: Stream,
    memory: Memory,
    /// Keys and payloads three times: the unsorted pairs, the pairs that are sorted, and the second array of the sort.
    pairs: [(Reserved<K>, Reserved<u32>); 3],
    /// Two areas to copy between.
    flush: [Reserved<u8>; 2],
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
        let device = open_gpu(index)?;
        let mut layout = Layout::default();
        let pairs = [(); 3].map(|()| (layout.array(keys.len()), layout.array(keys.len())));
        let flush = [(); 2].map(|()| layout.array(FLUSH_BYTES));
        let plan = SortPlan::new::<K>(&mut layout, len, 1, 0..<K as Key>::BITS, device.limits());
        let memory = device.allocate(layout.bytes())?;
        let stream = device.stream()?;
        let bench = SortBench { device, stream, memory, pairs, flush, plan, len: keys.len() };
        let (given, positions) = (bench.pairs(0), (0..len).collect::<Vec<u32>>());
        // SAFETY: the layout reserved both arrays.
        unsafe {
            bench.device.copy_to_device(&bench.stream, given.keys, keys)?;
            bench.device.copy_to_device(&bench.stream, given.payloads, &positions)?;
        }
        bench.restore()?;
        Ok(bench)
    }

    fn scratch(&self) -> Scratch {
        self.device.scratch(&self.memory)
    }

    fn pairs(&self, which: usize) -> Pairs<K> {
        let (keys, payloads) = self.pairs[which];
        Pairs { keys: self.scratch().at(keys), payloads: self.scratch().at(payloads) }
    }

    /// Copies the unsorted pairs to the arrays of the sort, and fills the L2 cache with other data.
    fn restore(&self) -> Result<()> {
        let (given, work) = (self.pairs(0), self.pairs(1));
        let [from, to] = self.flush.map(|area| self.scratch().at(area));
        // SAFETY: the layout reserved all six arrays, and none overlaps another.
        unsafe {
            self.device.copy(&self.stream, work.keys, given.keys)?;
            self.device.copy(&self.stream, work.payloads, given.payloads)?;
            self.device.copy(&self.stream, to, from)
        }
    }

    /// Times `repeat` sorts by the whole key.
    ///
    /// # Errors
    /// The errors of running on the device.
    pub fn sort(&self, repeat: usize) -> Result<SortRun<K>> {
        let queue = OnStream { runtime: &self.device, stream: &self.stream };
        let mut sorted = self.pairs(1);
        let work = || {
            // SAFETY: the layout reserved every array; the stream runs the sorts one after the other.
            sorted = unsafe { sort::enqueue(&queue, &self.plan, self.pairs(1), self.pairs(2), self.scratch())? };
            Ok(())
        };
        let times = by_events(&self.device, &self.stream, repeat, || self.restore(), work)?;
        let (mut keys, mut payloads) = (vec![K::zeroed(); self.len], vec![0; self.len]);
        // SAFETY: the sort wrote all keys and payloads.
        unsafe {
            self.device.copy_to_host(&self.stream, &mut keys, sorted.keys)?;
            self.device.copy_to_host(&self.stream, &mut payloads, sorted.payloads)?;
        }
        Ok(SortRun { times, keys, payloads })
    }
}
