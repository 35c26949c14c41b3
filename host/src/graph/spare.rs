//! The arrays of an older version of a graph, which the next change takes over ([`crate::shared::former`]): rows,
//! codes, edges and the table of nodes. One new vector changes the edges of nodes that lie everywhere, so copying
//! pieces that change would copy nearly all pieces.

use std::sync::Arc;

use super::codes::Codes;
use super::links::Links;
use super::twins::Nodes;
use crate::Result;
use crate::shared::catch_up;
use crate::shared::former::ChangedRows;

/// The arrays of an older version.
pub(super) struct Spare<T> {
    /// All rows, if the flat index does not have them in host memory.
    copy: Option<Arc<Vec<T>>>,
    codes: Option<Codes>,
    links: Option<Arc<Links>>,
    nodes: Option<Arc<Nodes>>,
    /// Rows that got other vectors since.
    rows: ChangedRows,
    /// Nodes that got other edges or parents since.
    edges: ChangedRows,
    /// Hashes under which the table has other nodes.
    hashes: Vec<u64>,
}

/// The difference between two versions.
pub(super) struct Changes {
    /// Rows that got other vectors.
    pub rows: Vec<u32>,
    /// Nodes that got other edges or parents.
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
        let (rows, edges, hashes) = (ChangedRows::default(), ChangedRows::default(), Vec::new());
        Spare { copy, codes: codes.cloned(), links, nodes: nodes.cloned(), rows, edges, hashes }
    }

    /// The same with further changes, in any order, some of them several times; `None` if there are so many that
    /// copying them would be as much work as all.
    pub(super) fn after(mut self, changes: Changes, rows: usize) -> Option<Self> {
        self.rows.add(changes.rows);
        self.edges.add(changes.edges);
        self.hashes.extend(changes.hashes);
        (!self.rows.are_many(rows)).then_some(self)
    }

    /// A copy of the rows of `dim` components, made of those of the older version; `None` if these cannot be had.
    ///
    /// # Errors
    /// [`Error::OutOfHostMemory`](crate::Error::OutOfHostMemory).
    pub(super) fn copy(&mut self, current: &[T], dim: usize) -> Result<Option<Vec<T>>> {
        self.copy.take().map_or(Ok(None), |copy| caught_up(copy, current, self.rows.ascending(), dim))
    }

    /// As [`copy`](Self::copy), of the codes. The coder must be the same.
    ///
    /// # Errors
    /// As [`copy`](Self::copy).
    pub(super) fn codes(&mut self, current: &Codes) -> Result<Option<Codes>> {
        let Some(codes) = self.codes.take().filter(|codes| Arc::ptr_eq(&codes.coder, &current.coder)) else {
            return Ok(None);
        };
        let rows = caught_up(codes.into_rows(), current.rows(), self.rows.ascending(), current.dim())?;
        Ok(rows.map(|rows| current.with_rows(rows)))
    }

    /// As [`copy`](Self::copy), of the graph.
    ///
    /// # Errors
    /// As [`copy`](Self::copy).
    pub(super) fn links(&mut self, current: &Links) -> Result<Option<Links>> {
        let Some(Ok(mut links)) = self.links.take().map(Arc::try_unwrap) else { return Ok(None) };
        Ok(links.catch_up(current, self.edges.ascending())?.then_some(links))
    }

    /// As [`copy`](Self::copy), of the table of nodes.
    pub(super) fn nodes(&mut self, current: &Nodes) -> Option<Nodes> {
        let mut nodes = Arc::try_unwrap(self.nodes.take()?).ok()?;
        nodes.catch_up(current, &self.hashes);
        Some(nodes)
    }

    /// Bytes of host memory, about.
    pub(super) fn bytes(&self) -> u64 {
        self.copy.as_ref().map_or(0, |copy| (copy.capacity() * size_of::<T>()) as u64)
            + self.codes.as_ref().map_or(0, Codes::bytes)
            + self.links.as_ref().map_or(0, |links| links.bytes())
            + self.nodes.as_ref().map_or(0, |nodes| nodes.bytes())
            + self.rows.bytes()
            + self.edges.bytes()
            + (self.hashes.capacity() * size_of::<u64>()) as u64
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
