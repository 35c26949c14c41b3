//! The operations of a device for a shifted index.

use super::grid::Grid;
use crate::Result;
use crate::neighbors::slots::Slots;

/// The arguments of a search of a back end, already checked.
#[derive(Clone, Copy)]
pub(crate) struct ShiftedRequest<'a> {
    /// The queries, row-major and finite; the rows of the index if `own` is set.
    pub queries: &'a [f32],
    /// Whether query i is row i of the index. A row is not a neighbour of itself.
    pub own: bool,
    /// Number of neighbours of each query, 1 ≤ k ≤ rows.
    pub k: usize,
    /// Number of positions to examine in each copy, 1 ≤ width ≤ rows.
    pub width: usize,
}

/// The operations of a device for a shifted index.
pub(crate) trait ShiftedBackend: Send + Sync {
    /// Replaces the contents by `rows` (at least one) and sorts them. On error the back end is unchanged.
    fn rebuild(&mut self, grid: &Grid, rows: &[f32]) -> Result<()>;
    /// Fills the slots of all queries with the best distinct candidates of each, sorted. The index must not be empty.
    fn search(&self, request: &ShiftedRequest<'_>, slots: Slots<'_>) -> Result<()>;
    /// A description of the device.
    fn describe(&self) -> String;
}
