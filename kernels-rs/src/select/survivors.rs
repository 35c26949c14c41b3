//! The filter of [`crate::select::threshold_select`]: the entries of a row at or below a threshold, and their
//! destinations.

use cuda_std::shared::SharedPtr;
use cuda_std::warp::FULL_MASK;
use cuda_std::{atomic, device_inline, global, thread, warp};

use crate::select::entry::{self, EMPTY};
use crate::select::keys::Key;
use crate::select::rows::Row;

/// Number of quads that a thread loads before it uses them.
const AHEAD: usize = 4;

impl<K: Key> Row<K> {
    /// Appends every entry of the positions `from .. to` at or below `threshold` to `sink`. All threads of the block
    /// arrive.
    ///
    /// # Safety
    /// As [`Self::scan`] and the sink's.
    #[device_inline]
    pub unsafe fn filter(&self, from: u32, to: u32, threshold: u64, sink: impl Sink) {
        let lane = warp::lane_id();
        let bound = entry::key(threshold);
        // Keys with raw orders above the mark are skipped. NaN has raw orders at both ends of the range, so with a
        // threshold among NaN no raw order is skipped.
        let mark = if bound > K::WORST { u32::MAX } else { bound };
        // Behind the position of the threshold only better keys count. With ids, positions do not matter.
        let strict_mark = if bound > K::WORST { K::WORST } else { bound.saturating_sub(1) };
        let last_tie = if self.ids.is_none() { entry::payload(threshold) } else { u32::MAX };
        // SAFETY: as the caller promises.
        unsafe {
            self.scan::<AHEAD>(from, to, |raw, position, exist| {
                let mark = if position > last_tie { strict_mark } else { mark };
                let least = raw[0].min(raw[1]).min(raw[2].min(raw[3]));
                let any = exist > 0 && least <= mark;
                // A bit set with one bit for each of the lane's keys that may pass.
                let hit = |e: usize| ((e as u32) < exist && raw[e] <= mark) as u32;
                let mut hits = if any { hit(0) | hit(1) << 1 | hit(2) << 2 | hit(3) << 3 } else { 0 };
                while warp::any(FULL_MASK, hits != 0) {
                    let lowest = hits & hits.wrapping_neg();
                    let raw = if lowest > 2 {
                        if lowest == 4 { raw[2] } else { raw[3] }
                    } else {
                        if lowest == 1 { raw[0] } else { raw[1] }
                    };
                    // The bits 1, 2, 4, 8 are the indices 0, 1, 2, 3.
                    let position = position + (lowest >> 1) - (lowest >> 3);
                    let found = if hits != 0 { self.entry(raw, position) } else { EMPTY };
                    hits ^= lowest;
                    // EMPTY is above every threshold.
                    let keepers = warp::ballot(FULL_MASK, found <= threshold);
                    if keepers != 0 {
                        let first = if lane == 0 { sink.reserve(keepers.count_ones()) } else { 0 };
                        let first = warp::shuffle_idx(FULL_MASK, first, 0);
                        if found <= threshold {
                            sink.put(first, (keepers & ((1 << lane) - 1)).count_ones(), found);
                        }
                    }
                }
            });
        }
    }
}

/// A destination of survivors.
pub trait Sink: Copy {
    /// Reserves `count` places for [`Self::put`].
    ///
    /// # Safety
    /// The sink's counters exist.
    unsafe fn reserve(self, count: u32) -> u64;
    /// Writes to place `offset` of the reserved places, if the place is within the capacity.
    ///
    /// # Safety
    /// The place was reserved by this warp, and is written once.
    unsafe fn put(self, reserved: u64, offset: u32, entry: u64);
}

/// Survivors in shared memory.
#[derive(Clone, Copy)]
pub struct SharedSink {
    /// How many were found.
    pub count: SharedPtr<u32>,
    /// The entries, in shared memory.
    pub entries: SharedPtr<u64>,
    /// How many places there are.
    pub capacity: u32,
}

impl Sink for SharedSink {
    #[device_inline]
    unsafe fn reserve(self, count: u32) -> u64 {
        // SAFETY: the counter was set before a barrier.
        unsafe { atomic::shared_add_u32(self.count, count) as u64 }
    }
    #[device_inline]
    unsafe fn put(self, reserved: u64, offset: u32, entry: u64) {
        let place = reserved as u32 + offset;
        if place < self.capacity {
            // SAFETY: place < capacity.
            unsafe { self.entries.add(place).store(entry) }
        }
    }
}

/// Survivors in a list in global memory, which other blocks fill too.
#[derive(Clone, Copy)]
pub struct ListSink {
    /// How many were found.
    pub count: *mut u32,
    /// The entries, in global memory.
    pub entries: *mut u64,
    /// How many places there are.
    pub capacity: u32,
}

impl Sink for ListSink {
    #[device_inline]
    unsafe fn reserve(self, count: u32) -> u64 {
        // SAFETY: the caller of the kernel promises the counter.
        unsafe { atomic::add_u32(self.count, count) as u64 }
    }
    #[device_inline]
    unsafe fn put(self, reserved: u64, offset: u32, entry: u64) {
        let place = reserved as u32 + offset;
        if place < self.capacity {
            // SAFETY: place < capacity.
            unsafe { global::store(self.entries.wrapping_add(place as usize), entry) }
        }
    }
}

/// Survivors in shared memory first, on their way to a list: a block reserves places in the list once, not for every
/// key that it finds, since nothing else happens until the answer is there. What does not fit goes to the list at once.
#[derive(Clone, Copy)]
pub struct StagedSink {
    /// The buffer in shared memory that collects survivors.
    pub stage: SharedSink,
    /// The list to which the buffer is flushed.
    pub list: ListSink,
}

impl Sink for StagedSink {
    /// Returns the place on the stage, and in the upper half the place in the list for the first entry that does not
    /// fit on the stage.
    #[device_inline]
    unsafe fn reserve(self, count: u32) -> u64 {
        // SAFETY: as of the two sinks.
        unsafe {
            let place = self.stage.reserve(count);
            let beyond = (place as u32 + count).saturating_sub((place as u32).max(self.stage.capacity));
            if beyond > 0 { self.list.reserve(beyond) << 32 | place } else { place }
        }
    }
    #[device_inline]
    unsafe fn put(self, reserved: u64, offset: u32, entry: u64) {
        let place = reserved as u32 + offset;
        // SAFETY: as of the two sinks.
        unsafe {
            if place < self.stage.capacity {
                self.stage.put(reserved, offset, entry);
            } else {
                let first_beyond = (reserved as u32).max(self.stage.capacity);
                self.list.put(reserved >> 32, place - first_beyond, entry);
            }
        }
    }
}

impl StagedSink {
    /// Copies the entries on the stage to the list. All threads of the block arrive, after a barrier that follows the
    /// last [`Sink::put`].
    ///
    /// # Safety
    /// As of the two sinks; `first` is a word of shared memory.
    #[device_inline]
    pub unsafe fn flush(self, first: SharedPtr<u32>) {
        let thread = thread::thread_idx_x();
        // SAFETY: entries below the stage's count were written before the barrier.
        unsafe {
            let count = self.stage.count.load().min(self.stage.capacity);
            if thread == 0 && count > 0 {
                first.store(self.list.reserve(count) as u32);
            }
            thread::sync_threads();
            let mut place = thread;
            while place < count {
                self.list.put(first.load() as u64, place, self.stage.entries.add(place).load());
                place += thread::block_dim_x();
            }
        }
    }
}
