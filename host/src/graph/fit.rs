//! The codes of an index: the sample of its vectors on which they depend, and the neighbours of these.

use std::collections::HashMap;

use super::LinkedVectors;
use super::codes::{Codes, sample};
use crate::index::private::{Searching, Stored};
use crate::random::gather;
use crate::vectors::VectorSlice;
use crate::{Element, ElementType, NONE, Neighbors, Result};

impl<T: Element> LinkedVectors<T> {
    /// Codes of `rows`, those of the flat index, if walks may go by codes and these are fine enough: see
    /// [`Codes::fit`].
    pub(super) fn fitted_codes(&self, rows: &[T]) -> Result<Option<Codes>> {
        if !self.builder.codes || matches!(T::TYPE, ElementType::U8 | ElementType::I8) {
            return Ok(None);
        }
        let ids = self.flat.row_ids();
        let sample = match ids.live() {
            None => sample(ids.rows()),
            Some(_) => {
                let rows: Vec<usize> = ids.live_rows().collect();
                sample(rows.len()).into_iter().map(|at| rows[at]).collect()
            }
        };
        let neighbours = self.far_neighbours(rows, &sample)?;
        Codes::fit(self.metric(), VectorSlice::of(rows, self.dim()), &sample, |row| *neighbours.get(&row)?)
    }

    /// The `degree`-th nearest neighbour of each row on which the codes depend, or the last if there are fewer. An
    /// exact search finds it.
    fn far_neighbours(&self, rows: &[T], sample: &[usize]) -> Result<HashMap<usize, Option<u32>>> {
        let (ids, dim, degree) = (self.flat.row_ids(), self.dim(), self.builder.settings.degree);
        let queries = gather(rows, dim, sample)?;
        let mut found = Neighbors::none(self.metric(), queries.len() / dim, degree + 1)?;
        self.flat.search_all(&queries, degree + 1, (&mut found.ids, &mut found.distances))?;
        let last = |(&row, (found, _)): (&usize, (&[u64], &[f32]))| {
            let others = found.iter().filter(|&&id| id != NONE && id != ids.id(row)).take(degree);
            (row, others.last().and_then(|&id| ids.find(id)).map(|row| row as u32))
        };
        Ok(sample.iter().zip(found.rows()).map(last).collect())
    }
}
