//! Indexes with which k-NN graphs can be made, and the removal of a row from its own neighbours.

use crate::parallel::{Loop, ParallelSlice};
use crate::{Element, Index, Kind, Metric, Neighbors, Result};

/// An index with which a k-NN graph can be made: [`FlatIndex`](crate::FlatIndex), which makes an exact graph,
/// [`IvfIndex`](crate::IvfIndex) or [`GraphIndex`](crate::GraphIndex).
pub trait KnnIndex<T: Element>: Sync {
    /// Number of vectors in the index.
    fn len(&self) -> usize;

    /// Whether the index has no vectors.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Dimension of the vectors.
    fn dim(&self) -> usize;

    /// The metric of the index.
    fn metric(&self) -> Metric;

    /// The largest id of a vector; none if the index is empty. Ids are unique.
    fn greatest_id(&self) -> Option<u64>;

    /// The `k` best vectors for each query, as [`Index::search`] returns them. The results of a query do not depend on
    /// other queries.
    ///
    /// # Errors
    /// Those of the index's search.
    fn nearest(&self, queries: &[T], k: usize) -> Result<Neighbors>;

    /// A word without blanks that identifies everything on which results depend, except the base and the metric. Two
    /// runs with the same word and the same base give the same graph.
    ///
    /// # Errors
    /// [`Error::NotTrained`](crate::Error::NotTrained).
    fn identity(&self) -> Result<String>;
}

/// Searches have the effort that the index has: [`IvfIndex::set_probes`](crate::IvfIndex::set_probes),
/// [`GraphIndex::set_beam`](crate::GraphIndex::set_beam).
impl<T: Element, K: Kind<Element = T>> KnnIndex<T> for Index<K> {
    fn len(&self) -> usize {
        Index::len(self)
    }

    fn dim(&self) -> usize {
        Index::dim(self)
    }

    fn metric(&self) -> Metric {
        Index::metric(self)
    }

    fn greatest_id(&self) -> Option<u64> {
        Index::greatest_id(self)
    }

    fn nearest(&self, queries: &[T], k: usize) -> Result<Neighbors> {
        self.search(queries, k)
    }

    fn identity(&self) -> Result<String> {
        self.kind.identity()
    }
}

/// Removes each row's id from `found`, whose rows have k + 1 slots: k slots remain. If the id is not among them, the
/// last slot is removed.
pub(super) fn without_own(
    found: &Neighbors,
    own: impl Fn(usize) -> usize + Sync,
    ids: &mut Vec<u32>,
    distances: &mut Vec<f32>,
) {
    let (rows, k) = (found.queries(), found.k - 1);
    ids.resize(rows * k, 0);
    distances.resize(rows * k, 0.0);
    let results = found.ids.par_chunks_exact(k + 1).zip(found.distances.par_chunks_exact(k + 1));
    let slots = ids.par_chunks_exact_mut(k).zip(distances.par_chunks_exact_mut(k));
    slots.zip(results).enumerate().for_each(|(row, ((ids, distances), (found_ids, found_distances)))| {
        let own = own(row) as u64;
        let place = found_ids.iter().position(|&id| id == own).unwrap_or(k);
        for slot in 0..k {
            let from = slot + usize::from(slot >= place);
            // Rows are fewer than 2³², and the low half of NONE is NO_NODE.
            (ids[slot], distances[slot]) = (found_ids[from] as u32, found_distances[from]);
        }
    });
}
