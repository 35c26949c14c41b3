//! Matrices of ids, and ground truth.

use crate::serialised::deserialised;

/// Ids of the neighbours of each query, best first; [`NONE`](crate::NONE) where a neighbour is missing.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct IdMatrix {
    /// Number of queries.
    pub rows: usize,
    /// Number of neighbours of each query.
    pub k: usize,
    /// `rows · k` ids, query after query.
    pub ids: Vec<u64>,
}

deserialised!(IdMatrix { rows: usize, k: usize, ids: Vec<u64> } => |rows, k, ids| {
    if rows.checked_mul(k) != Some(ids.len()) {
        return Err(format!("{} ids for {rows} rows of {k}", ids.len()));
    }
    Ok(IdMatrix { rows, k, ids })
});

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
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct GroundTruth {
    /// The ids of the neighbours.
    pub ids: IdMatrix,
    /// `rows · k` distances in the order of the ids; only big-ann files have them. Their convention depends on the file
    /// (squared or not, negated inner products or not), so compare them only with values of known origin.
    #[cfg_attr(feature = "serde", serde(with = "crate::serialised::Numbers"))]
    pub distances: Option<Vec<f32>>,
}

deserialised!(GroundTruth {
    ids: IdMatrix,
    #[serde(with = "crate::serialised::Numbers")]
    distances: Option<Vec<f32>>,
} => |ids, distances| {
    if distances.as_ref().is_some_and(|distances| distances.len() != ids.ids.len()) {
        return Err(format!("the distances are not one for each of {} ids", ids.ids.len()));
    }
    Ok(GroundTruth { ids, distances })
});
