//! Matrices of ids, and ground truth.

/// Ids of the neighbours of each query, best first; [`NONE`](crate::NONE) where there is none.
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
    /// If `row` is not below `rows`.
    pub fn row(&self, row: usize) -> &[u64] {
        &self.ids[row * self.k..(row + 1) * self.k]
    }
}

/// True neighbours, and their distances where the file has them.
#[derive(Debug, Clone, PartialEq)]
pub struct GroundTruth {
    /// The ids of the neighbours.
    pub ids: IdMatrix,
    /// `rows · k` distances in the order of the ids; only big-ann files have them. They are in the file's own convention
    /// (squared or not, negated inner products or not): compare them only with values of known origin.
    pub distances: Option<Vec<f32>>,
}
