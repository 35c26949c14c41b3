//! The arrays of an older version, which the next change takes over.
//!
//! # Problem
//! A snapshot and its index share rows, codes, edges and the table of nodes. The first change of one of them needs
//! arrays of its own. Copies of all of them are 780 MB for a million vectors of 128 floats, while 1,000 new vectors
//! change 1,000 rows and the edges of about 30,000 nodes. These nodes lie everywhere, so copying pieces that change
//! would copy nearly all pieces.
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
//! If somebody still has the older version, or rows have moved since, all is copied, as for the first change after a
//! snapshot.
//!
//! # Cost
//! Host memory for the rows, codes and edges of two versions, from the first change of a snapshot on. A change copies
//! what changed in the last two versions.

use std::sync::Arc;

use super::codes::Codes;
use super::links::Links;
use super::twins::Nodes;
use crate::Result;
use crate::parallel::ParallelSlice;
use crate::shared::catch_up;

/// One in this number of rows may have changed since an older version before it is given up.
const ROWS_A_CHANGED_ONE: usize = 4;

/// The arrays of an older version.
pub(super) struct Spare<T> {
    /// All rows, if the flat index does not have them in host memory.
    copy: Option<Arc<Vec<T>>>,
    codes: Option<Codes>,
    links: Option<Arc<Links>>,
    nodes: Option<Arc<Nodes>>,
    changes: Changes,
}

/// The difference between a version and the current one, or between two versions.
#[derive(Default)]
pub(super) struct Changes {
    /// Rows that got other vectors, ascending.
    pub rows: Vec<u32>,
    /// Nodes that got other edges or parents, ascending.
    pub edges: Vec<u32>,
    /// Hashes under which the table has other nodes.
    pub hashes: Vec<u64>,
}

impl<T: Copy + Send + Sync> Spare<T> {
    /// The arrays of a version that nothing has changed yet.
    pub(super) fn of(
        copy: &Arc<Vec<T>>,
        codes: Option<&Codes>,
        links: &Arc<Links>,
        nodes: Option<&Arc<Nodes>>,
    ) -> Self {
        let (copy, links) = (Some(Arc::clone(copy)), Some(Arc::clone(links)));
        Spare { copy, codes: codes.cloned(), links, nodes: nodes.cloned(), changes: Changes::default() }
    }

    /// The same with further changes, in any order, some of them several times; `None` if there are so many that
    /// copying them would be as much work as all.
    pub(super) fn after(mut self, changes: Changes, rows: usize) -> Option<Self> {
        let join = |to: &mut Vec<u32>, more: Vec<u32>| {
            to.extend(more);
            to.par_sort_unstable();
            to.dedup();
        };
        join(&mut self.changes.rows, changes.rows);
        join(&mut self.changes.edges, changes.edges);
        self.changes.hashes.extend(changes.hashes);
        (self.changes.rows.len() * ROWS_A_CHANGED_ONE <= rows).then_some(self)
    }

    /// A copy of the rows of `dim` components, made of those of the older version; `None` if these cannot be had.
    ///
    /// # Errors
    /// [`Error::OutOfHostMemory`](crate::Error::OutOfHostMemory).
    pub(super) fn copy(&mut self, current: &[T], dim: usize) -> Result<Option<Vec<T>>> {
        self.copy.take().map_or(Ok(None), |copy| caught_up(copy, current, &self.changes.rows, dim))
    }

    /// As [`copy`](Self::copy), of the codes. The coder must be the same.
    ///
    /// # Errors
    /// As [`copy`](Self::copy).
    pub(super) fn codes(&mut self, current: &Codes) -> Result<Option<Codes>> {
        let Some(codes) = self.codes.take().filter(|codes| Arc::ptr_eq(&codes.coder, &current.coder)) else {
            return Ok(None);
        };
        let rows = caught_up(codes.into_rows(), current.rows(), &self.changes.rows, current.dim())?;
        Ok(rows.map(|rows| current.with_rows(rows)))
    }

    /// As [`copy`](Self::copy), of the graph.
    ///
    /// # Errors
    /// As [`copy`](Self::copy).
    pub(super) fn links(&mut self, current: &Links) -> Result<Option<Links>> {
        let Some(Ok(mut links)) = self.links.take().map(Arc::try_unwrap) else { return Ok(None) };
        Ok(links.catch_up(current, &self.changes.edges)?.then_some(links))
    }

    /// As [`copy`](Self::copy), of the table of nodes.
    pub(super) fn nodes(&mut self, current: &Nodes) -> Option<Nodes> {
        let mut nodes = Arc::try_unwrap(self.nodes.take()?).ok()?;
        nodes.catch_up(current, &self.changes.hashes);
        Some(nodes)
    }

    /// Bytes of host memory, about.
    pub(super) fn bytes(&self) -> u64 {
        let Changes { rows, edges, hashes } = &self.changes;
        self.copy.as_ref().map_or(0, |copy| (copy.capacity() * size_of::<T>()) as u64)
            + self.codes.as_ref().map_or(0, Codes::bytes)
            + self.links.as_ref().map_or(0, |links| links.bytes())
            + self.nodes.as_ref().map_or(0, |nodes| nodes.bytes())
            + (4 * (rows.capacity() + edges.capacity()) + 8 * hashes.capacity()) as u64
    }
}

/// The values of `current`, `width` of each row, made of older ones of which `rows` have changed; `None` if others have
/// the older ones, or these are more.
fn caught_up<V: Copy + Send + Sync>(
    older: Arc<Vec<V>>,
    current: &[V],
    rows: &[u32],
    width: usize,
) -> Result<Option<Vec<V>>> {
    let Some(mut values) = Arc::try_unwrap(older).ok().filter(|values| values.len() <= current.len()) else {
        return Ok(None);
    };
    catch_up(&mut values, current, rows, width)?;
    Ok(Some(values))
}
