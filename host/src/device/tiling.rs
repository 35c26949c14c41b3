//! Rows that go up in batches and results that come back: two lanes overlap the bus with the kernels.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::lanes::{Lane, Lanes};
use super::runtime::Runtime;
use crate::threads::{apart, at_once};
use crate::{Error, Result};

/// Bytes of rows in a batch: two pinned buffers of the bus.
const BATCH_BYTES: usize = 64 << 20;

/// How rows are cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Batches {
    /// Rows of a batch; the last may have fewer.
    pub rows: usize,
    lanes: u64,
}

/// Rows of `row_bytes` bytes that the bus takes at a time.
pub(crate) fn bus_rows(row_bytes: usize) -> usize {
    (BATCH_BYTES / row_bytes).max(1)
}

impl Batches {
    /// Cuts `count` ≥ 1 rows into batches of at most `most` ≥ 1 rows that `budget` bytes of device memory allow, where all
    /// batches share `shared_bytes` and a batch of so many rows takes `bytes`.
    pub fn new(
        runtime: &Runtime,
        budget: Option<u64>,
        shared_bytes: usize,
        (count, most): (usize, usize),
        bytes: impl Fn(usize) -> usize,
    ) -> Result<Batches> {
        let budget = runtime.budget(budget)?;
        let mut rows = count.min(most);
        let asked = |rows: usize| {
            let lanes = if rows < count { 2 } else { 1 };
            (lanes, (shared_bytes as u64).saturating_add((bytes(rows) as u64).saturating_mul(lanes)))
        };
        while rows > 1 && asked(rows).1 > budget {
            rows = rows.div_ceil(2);
        }
        let (lanes, asked) = asked(rows);
        if asked > budget {
            return Err(Error::OutOfDeviceMemory { device: runtime.describe(), asked, available: budget });
        }
        Ok(Batches { rows, lanes })
    }

    /// The rows of `row_len` values that the batch from row `first` on has.
    pub fn of<T>(self, rows: &[T], row_len: usize, first: usize) -> &[T] {
        let rows = &rows[first * row_len..];
        &rows[..rows.len().min(self.rows * row_len)]
    }

    /// Calls `work(lane, first row, out)` for every batch and what is its of `outs`, where the results of each batch go. On return
    /// every batch is done, or one has failed. `work` uses no pool: all is done [`apart`].
    pub fn run<O: Send>(
        self,
        runtime: &Runtime,
        pool: &Lanes,
        outs: impl Iterator<Item = O>,
        work: impl Fn(&mut Lane, usize, O) -> Result<()> + Sync,
    ) -> Result<()> {
        let outs: Vec<_> = outs.map(Some).map(Mutex::new).collect();
        let next = AtomicUsize::new(0);
        let lane = || {
            pool.with(runtime, |lane| {
                let each = std::iter::repeat_with(|| next.fetch_add(1, Ordering::Relaxed));
                for (batch, slot) in each.map_while(|batch| Some((batch, outs.get(batch)?))) {
                    let out = slot.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).take();
                    out.map_or(Ok(()), |out| work(lane, batch * self.rows, out))?;
                }
                Ok(())
            })
        };
        if self.lanes == 1 {
            return lane();
        }
        apart(|| at_once(vec![(); 2], |()| lane())).into_iter().collect()
    }
}
