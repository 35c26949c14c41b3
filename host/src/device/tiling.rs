//! Tiles: ranges of the rows of a search or a build, small enough for the budget of device memory.
//!
//! ```text
//! Tiling::new         tiles for a given number of lanes
//! Tiling::overlapped  one tile if all rows fit, else tiles for two lanes
//! Tiling::largest     the same, with the largest tiles that fit
//!
//! Tiling::run         a thread for each lane: a tile's copies overlap another's kernels
//! Tiling::pipelined   one thread for all lanes: tiles are queued on one lane while another's results are copied
//! Budget::halving     ranges whose memory is known only after part of the work
//! ```
//!
//! Except in `largest`, tiles are halved until they fit. Halves are equal, so that no lane ends with a small rest.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use super::lanes::{Lane, Lanes};
use super::runtime::Runtime;
use super::scratch::Layout;
use crate::threads::{apart, at_once};
use crate::{Error, Result};

/// Size of the rows of a tile that is copied to the device, in bytes.
const COPIED_BYTES: usize = 64 << 20;

/// Number of rows of `row_bytes` bytes that are copied to the device at a time, at least 1.
pub(crate) fn bus_rows(row_bytes: usize) -> usize {
    (COPIED_BYTES / row_bytes).max(1)
}

/// The part of a budget of device memory that an index may keep, in bytes. The rest is for searches.
pub(crate) fn resident_share(budget: u64) -> u64 {
    budget / 4 * 3
}

/// The device memory that tiles may use.
#[derive(Clone, Copy)]
pub(crate) struct Budget<'a> {
    runtime: &'a Runtime,
    bytes: u64,
    /// Bytes of the arrays that all tiles share.
    shared: u64,
}

/// The part of a [`Budget`] that one tile needs.
pub(crate) trait Planned {
    /// Size of the tile's device memory in bytes.
    fn bytes(&self) -> usize;
}

impl Planned for usize {
    fn bytes(&self) -> usize {
        *self
    }
}

/// Reserved arrays, with the layout that reserved them.
impl<A> Planned for (A, Layout) {
    fn bytes(&self) -> usize {
        self.1.bytes()
    }
}

/// The outcome of the work on a range of rows in [`Budget::halving`].
pub(crate) enum Attempt<V> {
    /// The work is done; its result.
    Done(V),
    /// The work needs this many bytes, which exceeds the budget.
    Exceeds(u64),
}

impl<'a> Budget<'a> {
    /// A budget of `bytes` bytes of the device's memory.
    pub fn new(runtime: &'a Runtime, bytes: u64) -> Self {
        Budget { runtime, bytes, shared: 0 }
    }

    /// Bytes of the budget.
    pub fn bytes(self) -> u64 {
        self.bytes
    }

    /// The device whose memory this is.
    pub fn runtime(self) -> &'a Runtime {
        self.runtime
    }

    /// The same budget, of which `bytes` more bytes are for arrays that all tiles share.
    pub fn with_shared(self, bytes: usize) -> Self {
        Budget { shared: self.shared.saturating_add(bytes as u64), ..self }
    }

    /// Bytes of the shared arrays and of `lanes` tiles together.
    fn asked(self, lanes: usize, plan: &impl Planned) -> u64 {
        self.shared.saturating_add((plan.bytes() as u64).saturating_mul(lanes as u64))
    }

    /// Whether `asked` bytes, the shared ones included, fit the budget.
    pub fn has(self, asked: u64) -> bool {
        asked <= self.bytes
    }

    /// Checks that `asked` bytes, the shared ones included, fit the budget.
    ///
    /// # Errors
    /// [`Error::OutOfDeviceMemory`] if they do not.
    pub fn check(self, asked: u64) -> Result<()> {
        if self.has(asked) { Ok(()) } else { Err(self.exceeded(asked)) }
    }

    fn exceeded(self, asked: u64) -> Error {
        Error::OutOfDeviceMemory { device: self.runtime.describe(), asked, available: self.bytes }
    }

    /// Calls `work` for consecutive ranges of rows, of at most `most` rows each, and returns the results in the order
    /// of the rows. A range that exceeds the budget is cut into halves, and `work` is called for each half.
    ///
    /// # Errors
    /// [`Error::OutOfDeviceMemory`] if a single row exceeds the budget; the errors of `work`.
    pub fn halving<V>(
        self,
        rows: Range<usize>,
        most: usize,
        mut work: impl FnMut(Range<usize>) -> Result<Attempt<V>>,
    ) -> Result<Vec<V>> {
        let (mut left, mut done) = (vec![rows], Vec::new());
        while let Some(rows) = left.pop() {
            let attempt = if rows.len() > most.max(1) { None } else { Some(work(rows.clone())?) };
            match attempt {
                Some(Attempt::Done(result)) => done.push(result),
                Some(Attempt::Exceeds(asked)) if rows.len() <= 1 => return Err(self.exceeded(asked)),
                Some(Attempt::Exceeds(_)) | None => {
                    let middle = rows.start + rows.len() / 2;
                    left.extend([middle..rows.end, rows.start..middle]);
                }
            }
        }
        Ok(done)
    }
}

/// A partition of rows into tiles that fit a budget.
#[derive(Debug)]
pub(crate) struct Tiling<P> {
    /// Number of rows of a tile; the last tile may have fewer.
    pub rows: usize,
    /// Plan of a tile of `rows` rows: the memory it needs.
    pub plan: P,
    count: usize,
    /// Number of tiles that are in work at the same time.
    lanes: usize,
}

impl<P: Planned> Tiling<P> {
    /// Cuts `count` rows into tiles of at most `most` rows, small enough that all `lanes` lanes get rows. `plan`
    /// returns the plan of a tile for a number of rows. One tile for each lane and the shared arrays fit the budget
    /// together.
    ///
    /// # Errors
    /// [`Error::OutOfDeviceMemory`] if tiles of one row do not fit; the errors of `plan`.
    pub fn new(
        budget: Budget<'_>,
        (count, most): (usize, usize),
        lanes: usize,
        plan: impl FnMut(usize) -> Result<P>,
    ) -> Result<Self> {
        Self::halved(budget, (count, most.min(count.div_ceil(lanes))), |_| lanes, plan)
    }

    /// Makes one tile of all `count` rows if they are at most `most` and fit the budget; else cuts them into tiles for
    /// two lanes.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn overlapped(
        budget: Budget<'_>,
        (count, most): (usize, usize),
        plan: impl FnMut(usize) -> Result<P>,
    ) -> Result<Self> {
        Self::halved(budget, (count, most.min(count)), |rows| if rows < count { 2 } else { 1 }, plan)
    }

    fn halved(
        budget: Budget<'_>,
        (count, most): (usize, usize),
        lanes: impl Fn(usize) -> usize,
        mut plan: impl FnMut(usize) -> Result<P>,
    ) -> Result<Self> {
        let mut rows = most.max(1);
        loop {
            let tiling = Tiling { rows, plan: plan(rows)?, count, lanes: lanes(rows) };
            let asked = budget.asked(tiling.lanes, &tiling.plan);
            if budget.has(asked) {
                return Ok(tiling);
            }
            if rows == 1 {
                return Err(budget.exceeded(asked));
            }
            rows = rows.div_ceil(2);
        }
    }

    /// As [`overlapped`](Self::overlapped), but tiles for two lanes are as large as the budget allows. This suits data
    /// that is copied to the device many times, where fewer tiles matter more than equal ones. The size of `plan` must
    /// not decrease with the rows.
    ///
    /// # Errors
    /// [`Error::OutOfDeviceMemory`] if tiles of one row do not fit.
    pub fn largest(budget: Budget<'_>, (count, most): (usize, usize), plan: impl Fn(usize) -> P) -> Result<Self> {
        let tiling = |rows: usize, lanes| Tiling { rows, plan: plan(rows), count, lanes };
        let asked = |tiling: &Self| budget.asked(tiling.lanes, &tiling.plan);
        let whole = tiling(count, 1);
        if count <= most && budget.has(asked(&whole)) {
            return Ok(whole);
        }
        let (mut fits, mut exceeds) = (0, count.min(most) + 1);
        while exceeds - fits > 1 {
            let middle = fits + (exceeds - fits) / 2;
            *(if budget.has(asked(&tiling(middle, 2))) { &mut fits } else { &mut exceeds }) = middle;
        }
        let found = tiling(fits.max(1), 2);
        budget.check(asked(&found))?;
        Ok(found)
    }
}

impl<P> Tiling<P> {
    /// Number of tiles of the partition.
    pub fn len(&self) -> usize {
        self.count.div_ceil(self.rows.max(1))
    }

    /// The range of rows of tile `number`.
    pub fn tile(&self, number: usize) -> Range<usize> {
        number * self.rows..((number + 1) * self.rows).min(self.count)
    }

    /// The ranges of rows of all tiles, in order.
    pub fn tiles(&self) -> impl Iterator<Item = Range<usize>> {
        (0..self.len()).map(|number| self.tile(number))
    }

    /// Number of rows of the last tile.
    pub fn last_rows(&self) -> usize {
        self.tile(self.len().saturating_sub(1)).len()
    }

    /// Number of tiles that are in work at the same time.
    pub fn lanes(&self) -> usize {
        self.lanes
    }

    /// Calls `work(lane, rows of the tile, out)` for every tile, where `out` is the tile's item of `outs` and receives
    /// its results. On return every tile is done, or one has failed. `work` must not use a pool, because with several
    /// lanes it runs [`apart`].
    pub fn run<O: Send>(
        &self,
        runtime: &Runtime,
        pool: &Lanes,
        outs: impl Iterator<Item = O>,
        work: impl Fn(&mut Lane, Range<usize>, O) -> Result<()> + Sync,
    ) -> Result<()> {
        let tiles: Vec<_> = self.tiles().zip(outs).map(Some).map(Mutex::new).collect();
        let next = AtomicUsize::new(0);
        let work_off = |lane: &mut Lane| {
            while let Some(slot) = tiles.get(next.fetch_add(1, Ordering::Relaxed)) {
                let tile = slot.lock().unwrap_or_else(PoisonError::into_inner).take();
                tile.map_or(Ok(()), |(rows, out)| work(lane, rows, out))?;
            }
            Ok(())
        };
        pool.with_some(runtime, self.lanes.min(tiles.len()).max(1), |lanes| match lanes {
            [lane] => work_off(lane),
            lanes => {
                let on_thread = |lane| {
                    let _current = runtime.enter()?;
                    work_off(lane)
                };
                apart(|| at_once(lanes.iter_mut().collect(), on_thread)).into_iter().collect()
            }
        })
    }

    /// Does the work of all tiles on `lanes` in rotation. A lane's results are taken before its next tile is queued;
    /// the tiles of the other lanes run meanwhile. One thread queues all tiles, so that the first tile gets the whole
    /// bandwidth to the device.
    ///
    /// `submit` queues the work of a tile on a lane; `finish` waits for it and takes its results.
    pub fn pipelined(
        &self,
        lanes: &mut [Lane],
        mut submit: impl FnMut(&mut Lane, Range<usize>) -> Result<()>,
        mut finish: impl FnMut(&mut Lane, Range<usize>) -> Result<()>,
    ) -> Result<()> {
        let tiles = self.len();
        for step in 0..tiles + lanes.len() {
            let lane_number = step % lanes.len();
            let before = step.checked_sub(lanes.len()).map(|number| self.tile(number));
            let lane = &mut lanes[lane_number];
            if let Some(tile) = before {
                finish(lane, tile)?;
            }
            if step < tiles {
                submit(lane, self.tile(step))?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RUNTIME: Runtime = Runtime::EMULATOR;

    /// Checks a tiling in which a row takes 10 bytes, and returns the rows of a tile and the lanes.
    fn shape_of(tiling: Result<Tiling<usize>>) -> (usize, usize) {
        let tiling = tiling.unwrap();
        let mut next = 0;
        for tile in tiling.tiles() {
            assert_eq!(tile.start, next);
            assert!(tile.len() == tiling.rows || tile.end == tiling.count, "{tile:?}");
            next = tile.end;
        }
        assert_eq!((next, tiling.plan), (tiling.count, 10 * tiling.rows));
        (tiling.rows, tiling.lanes)
    }

    fn ten(rows: usize) -> Result<usize> {
        Ok(10 * rows)
    }

    #[test]
    fn tiles_that_fit_keep_their_size_and_others_are_halved() {
        let budget = |bytes| Budget::new(&RUNTIME, bytes);
        assert_eq!(shape_of(Tiling::new(budget(1_000), (100, 100), 1, ten)), (100, 1));
        assert_eq!(shape_of(Tiling::new(budget(999), (100, 100), 1, ten)), (50, 1));
        assert_eq!(shape_of(Tiling::new(budget(999), (101, 30), 1, ten)), (30, 1));
        assert_eq!(shape_of(Tiling::new(budget(2_000), (101, 101), 2, ten)), (51, 2));
        assert_eq!(shape_of(Tiling::new(budget(1_000), (101, 101), 2, ten)), (26, 2));
        assert_eq!(shape_of(Tiling::overlapped(budget(1_000), (100, 100), ten)), (100, 1));
        assert_eq!(shape_of(Tiling::overlapped(budget(1_000), (100, 99), ten)), (50, 2));
        assert_eq!(shape_of(Tiling::overlapped(budget(1_000).with_shared(1), (100, 100), ten)), (25, 2));
        assert_eq!(shape_of(Tiling::largest(budget(1_000), (100, 100), |rows| 10 * rows)), (100, 1));
        assert_eq!(shape_of(Tiling::largest(budget(999), (100, 100), |rows| 10 * rows)), (49, 2));
        assert_eq!(shape_of(Tiling::largest(budget(1_000), (100, 7), |rows| 10 * rows)), (7, 2));
    }

    #[test]
    fn a_row_that_does_not_fit_is_refused_with_both_numbers() {
        let budget = Budget::new(&RUNTIME, 29).with_shared(10);
        let refused = |tiling: Result<Tiling<usize>>, number: u64| match tiling {
            Err(Error::OutOfDeviceMemory { asked, available: 29, .. }) => assert_eq!(asked, number),
            other => panic!("{other:?}"),
        };
        refused(Tiling::new(budget, (5, 5), 2, ten), 30);
        refused(Tiling::overlapped(budget, (5, 5), ten), 30);
        refused(Tiling::largest(budget, (5, 5), |rows| 10 * rows), 30);
        refused(Tiling::new(budget, (1, 1), 1, |rows| Ok(usize::MAX - rows)), u64::MAX);
    }

    #[test]
    fn ranges_that_exceed_the_budget_are_cut_in_their_order() {
        let budget = Budget::new(&RUNTIME, 40);
        let heavy = |rows: &Range<usize>| rows.clone().map(|row| if row == 6 { 30 } else { 10 }).sum::<u64>();
        let work = |rows: Range<usize>| {
            let asked = heavy(&rows);
            Ok(if budget.has(asked) { Attempt::Done(rows) } else { Attempt::Exceeds(asked) })
        };
        assert_eq!(budget.halving(0..10, 8, work).unwrap(), [0..2, 2..5, 5..7, 7..10]);
        assert_eq!(budget.halving(0..4, 3, work).unwrap(), [0..2, 2..4]);
        let small = Budget::new(&RUNTIME, 20);
        let refused = small.halving(0..10, 10, |rows| {
            let asked = heavy(&rows);
            Ok(if small.has(asked) { Attempt::Done(()) } else { Attempt::Exceeds(asked) })
        });
        assert!(matches!(refused, Err(Error::OutOfDeviceMemory { asked: 30, available: 20, .. })), "{refused:?}");
    }

    #[test]
    fn every_tile_runs_once_with_its_own_results() {
        let pool = Lanes::new();
        for lanes in [1, 2, 3] {
            let tiling = Tiling::new(Budget::new(&RUNTIME, 90), (23, 23), lanes, ten).unwrap();
            let mut out = vec![0; 23];
            let work = |_: &mut Lane, rows: Range<usize>, out: &mut [usize]| {
                assert_eq!(out.len(), rows.len());
                out.iter_mut().zip(rows).for_each(|(out, row)| *out += row + 1);
                Ok(())
            };
            tiling.run(&RUNTIME, &pool, out.chunks_mut(tiling.rows), work).unwrap();
            assert_eq!(out, (1..24).collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_lane_finishes_a_tile_before_it_takes_the_next() {
        let tiling = Tiling::new(Budget::new(&RUNTIME, 40), (9, 9), 2, ten).unwrap();
        // The order of the calls: whether a tile was submitted, its rows, and the address of its lane.
        let log = Mutex::new(Vec::<(bool, Range<usize>, usize)>::new());
        let note = |submitted| {
            let log = &log;
            move |lane: &mut Lane, tile: Range<usize>| {
                log.lock().unwrap().push((submitted, tile, std::ptr::from_ref(lane).addr()));
                Ok(())
            }
        };
        Lanes::new().with_some(&RUNTIME, 2, |lanes| tiling.pipelined(lanes, note(true), note(false))).unwrap();
        let log = log.into_inner().unwrap();
        let order: Vec<(bool, usize)> = log.iter().map(|(submitted, tile, _)| (*submitted, tile.start)).collect();
        let expected = [(true, 0), (true, 2), (false, 0), (true, 4), (false, 2), (true, 6), (false, 4), (true, 8)];
        assert_eq!(order[..8], expected);
        assert_eq!(order[8..], [(false, 6), (false, 8)]);
        for (_, tile, lane) in &log {
            assert_eq!(*lane == log[0].2, (tile.start / 2).is_multiple_of(2), "{tile:?}");
        }
    }
}
