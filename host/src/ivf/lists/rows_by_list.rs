//! Rows by the lists to which they belong.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::address::Address;
use crate::parallel::{Loop, ParallelSlice, owned};
use crate::{Result, host_memory};

/// Up to this number of vectors are appended by the calling thread.
pub(super) const FEW: usize = 1 << 10;
/// Up to this number of lists are copied by the calling thread.
const FEW_COPIED: usize = 1 << 5;

/// The work for what a list has, and the rows of the list.
type ListWork<'a, V> = &'a (dyn Fn(&mut Arc<V>, &[u32]) -> Result<()> + Sync);

/// Rows by the list to which each belongs.
pub(super) struct RowsByList {
    /// The rows of each list, ascending, list after list.
    rows: Vec<u32>,
    /// The lists that have rows, ascending, and the end of each list's rows.
    ends: Vec<(u32, u32)>,
}

/// The different ones of these lists, which ascend, and where each ends.
fn ends_of(lists: impl Iterator<Item = u32>) -> Vec<(u32, u32)> {
    let mut ends: Vec<(u32, u32)> = Vec::new();
    for (list, end) in lists.zip(1..) {
        match ends.last_mut().filter(|last| last.0 == list) {
            Some(last) => last.1 = end,
            None => ends.push((list, end)),
        }
    }
    ends
}

impl RowsByList {
    /// Row i belongs to list `labels[i]` of `lists`.
    pub(super) fn new(labels: &[u32], lists: usize) -> Result<RowsByList> {
        if labels.len() > FEW {
            return RowsByList::counted(labels, lists);
        }
        let mut rows: Vec<u32> = (0..labels.len() as u32).collect();
        rows.sort_by_key(|&row| labels[row as usize]);
        let ends = ends_of(rows.iter().map(|&row| labels[row as usize]));
        Ok(RowsByList { rows, ends })
    }

    /// Places, which ascend, by their lists: row i is place i.
    pub(super) fn of_places(places: &[Address]) -> RowsByList {
        RowsByList { rows: (0..places.len() as u32).collect(), ends: ends_of(places.iter().map(|at| at.list)) }
    }

    /// The same as [`RowsByList::new`] by counting, in parallel.
    fn counted(labels: &[u32], lists: usize) -> Result<RowsByList> {
        // Each part has separate counters, one for each list, so a part has at least as many rows as lists.
        let parts = (labels.len() / lists.max(1)).clamp(1, rayon::current_num_threads());
        let part_rows = labels.len().div_ceil(parts).max(1);
        let mut places: Vec<Vec<u32>> = labels
            .par_chunks(part_rows)
            .map(|labels| {
                let mut counts = host_memory::zeroed(lists)?;
                labels.iter().for_each(|&label| counts[label as usize] += 1);
                Ok(counts)
            })
            .collect()
            .into_iter()
            .collect::<Result<_>>()?;
        let mut ends = Vec::new();
        let mut end = 0;
        for list in 0..lists {
            let start = end;
            for places in &mut places {
                (places[list], end) = (end, end + places[list]);
            }
            if end > start {
                ends.push((list as u32, end));
            }
        }
        let order = host_memory::collected_in_parallel(labels.par_iter().map(|_| AtomicU32::new(0)))?;
        owned(places).zip(labels.par_chunks(part_rows)).enumerate().for_each(|(part, (mut places, labels))| {
            for (row, &label) in (part * part_rows..).zip(labels) {
                let place = &mut places[label as usize];
                order[*place as usize].store(row as u32, Ordering::Relaxed);
                *place += 1;
            }
        });
        let rows = host_memory::collected_in_parallel(order.par_iter().map(|row| row.load(Ordering::Relaxed)))?;
        Ok(RowsByList { rows, ends })
    }

    /// The lists that have rows, each with its rows.
    pub(super) fn lists(&self) -> impl Iterator<Item = (usize, &[u32])> {
        let mut start = 0;
        self.ends.iter().map(move |&(list, end)| {
            let rows = &self.rows[start as usize..end as usize];
            start = end;
            (list as usize, rows)
        })
    }

    /// Does `work` for each list that has rows, in parallel if that pays: if the rows are many, or if the lists are and
    /// have to be copied, because snapshots have them.
    pub(super) fn each<V: Send + Sync>(&self, lists: &mut [Arc<V>], work: ListWork<'_, V>) -> Result<()> {
        let copied = self.ends.len() > FEW_COPIED && Arc::strong_count(&lists[self.ends[0].0 as usize]) > 1;
        if self.rows.len() <= FEW && !copied {
            return self.lists().try_for_each(|(list, rows)| work(&mut lists[list], rows));
        }
        let mut parts = Vec::with_capacity(self.ends.len());
        let (mut rest, mut first) = (lists, 0);
        for (list, rows) in self.lists() {
            let Some((part, others)) = rest[list - first..].split_first_mut() else { break };
            parts.push((part, rows));
            (rest, first) = (others, list + 1);
        }
        let work = owned(parts).with_min_len(FEW_COPIED / 4).map(|(list, rows)| work(list, rows));
        work.collect().into_iter().collect()
    }
}
