//! Matrices of ids, and ground truth.

/// Ids of the neighbours of each query, best first; [`NONE`](crate::NONE) where a neighbour is missing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdMatrix {
    /// Number of queries.
    pub rows: usize,
    /// Number of neighbours of each query.
    pub k: usize,
    /// `rows · k` ids, query after query.
    pub ids: Vec<u64>,
}

impl IdMatrix {
    /// The neighbours of one query.
    ///
    /// # Panics
    /// Panics if `row` is not below `rows`.
    pub fn row(&self, row: usize) -> &[u64] {
        &self.ids[row * self.k..(row + 1) * self.k]
    }
}

/// True neighbours, and their distances if the file has them.
#[derive(Debug, Clone, PartialEq)]
pub struct GroundTruth {
    /// The ids of the neighbours.
    pub ids: IdMatrix,
    /// `rows · k` distances in the order of the ids; only big-ann files have them. Their convention depends on the file
    /// (squared or not, negated inner products or not), so compare them only with values of known origin.
    pub distances: Option<Vec<f32>>,
}
