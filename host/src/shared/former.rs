//! The memory of a former version, which the next change takes over.
//!
//! # Problem
//! A snapshot and its index share arrays. The first change of one of them needs arrays of its own. Copies of all of
//! them are 51 MB for 100,000 vectors of 128 floats, while one new vector changes one row, and in a graph the edges of
//! about 30 nodes.
//!
//! # Algorithm
//! Two sets of arrays take turns. An index that was changed keeps the arrays of the version before, with a list of what
//! has changed since. The next version before is usually dropped by then: an [`IndexWriter`](crate::IndexWriter) has
//! published the version in between. So the next change takes these arrays, copies what is listed, and changes them:
//!
//! ```text
//! version     1        2         3          4
//! arrays      A        B         A          B
//! copied      all      all       1 to 2     2 to 3        and the change itself
//! ```
//! If somebody still has the former version, or rows have moved since, all is copied, as for the first change after a
//! snapshot.
//!
//! # Cost
//! Host memory for two versions of what a kind keeps in this way, from the first change of a snapshot on. A change
//! copies what changed in the last two versions. The former version is given up when a quarter of the rows has changed.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::parallel::ParallelSlice;

/// The memory of a former version, if there is one, for the first change of an index or of one of its snapshots.
#[derive(Debug)]
pub(crate) struct Former<V>(Arc<Mutex<Option<V>>>);

impl<V> Default for Former<V> {
    fn default() -> Self {
        Former::new(None)
    }
}

impl<V> Former<V> {
    /// Memory that no snapshot knows yet.
    pub(crate) fn new(memory: Option<V>) -> Self {
        Former(Arc::new(Mutex::new(memory)))
    }

    /// The same memory for a snapshot: the first of both that changes takes it.
    pub(crate) fn shared(&self) -> Self {
        Former(Arc::clone(&self.0))
    }

    /// Takes the memory. Afterwards no snapshot shares this.
    pub(crate) fn take(&mut self) -> Option<V> {
        let memory = self.get().take();
        *self = Former::default();
        memory
    }

    pub(crate) fn get(&self) -> MutexGuard<'_, Option<V>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One in this number of rows may have changed since a former version before it is given up.
const ROWS_A_CHANGED_ONE: usize = 4;
/// Number of rows of a list that is not worth sorting.
const FEW: usize = 1 << 10;

/// Rows, or nodes, that have changed since a former version.
#[derive(Debug, Default)]
pub(crate) struct ChangedRows {
    /// The first `ascending` of them ascend, the others are in any order and may occur several times.
    rows: Vec<u32>,
    ascending: usize,
}

impl ChangedRows {
    /// Adds rows in any order. Takes O(rows · log rows) altogether.
    pub(crate) fn add(&mut self, rows: impl IntoIterator<Item = u32>) {
        self.rows.extend(rows);
        if self.rows.len() > 2 * self.ascending.max(FEW) {
            self.ascending();
        }
    }

    /// All of them, ascending, each once.
    pub(crate) fn ascending(&mut self) -> &[u32] {
        if self.ascending < self.rows.len() {
            self.rows.par_sort_unstable();
            self.rows.dedup();
            self.ascending = self.rows.len();
        }
        &self.rows
    }

    /// Whether they are so many of `rows` rows that copying them would be as much work as copying all.
    pub(crate) fn are_many(&self, rows: usize) -> bool {
        self.ascending * ROWS_A_CHANGED_ONE > rows
    }

    /// Bytes of host memory.
    pub(crate) fn bytes(&self) -> u64 {
        (self.rows.capacity() * size_of::<u32>()) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    #[test]
    fn the_first_that_changes_takes_the_memory() {
        let mut index = Former::new(Some(7));
        let mut snapshot = index.shared();
        assert_eq!((snapshot.take(), index.take()), (Some(7), None));
        *index.get() = Some(8);
        assert_eq!((snapshot.take(), index.take()), (None, Some(8)), "they no longer share anything");
    }

    #[test]
    fn changed_rows_are_a_set() {
        let mut random = Random::new(3);
        for range in [10, 3_000, 100_000] {
            let (mut changed, mut expected) = (ChangedRows::default(), std::collections::BTreeSet::new());
            for step in 0..400 {
                let rows: Vec<u32> = (0..random.below(40)).map(|_| random.below(range) as u32).collect();
                changed.add(rows.iter().copied());
                expected.extend(rows);
                assert!(changed.rows.len() <= 2 * expected.len().max(FEW) + 40);
                if step % 57 == 0 {
                    assert!(changed.ascending().iter().eq(&expected));
                    assert!(changed.are_many(4 * expected.len() - 1) && !changed.are_many(4 * expected.len()));
                }
            }
        }
    }
}
