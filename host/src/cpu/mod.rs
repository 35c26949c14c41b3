//! Exact search on the CPU.

use rayon::prelude::*;

use crate::flat::FlatBackend;
use crate::{Element, Error, Metric, NONE, Result};

/// The vectors of a flat index, in host memory.
#[derive(Debug)]
pub(crate) struct FlatCpu<T: Element> {
    dim: usize,
    metric: Metric,
    rows: Vec<T>,
}

impl<T: Element> FlatCpu<T> {
    pub(crate) fn new(dim: usize, metric: Metric, _budget: Option<u64>) -> Self {
        Self { dim, metric, rows: Vec::new() }
    }
}

impl<T: Element> FlatBackend<T> for FlatCpu<T> {
    fn add(&mut self, rows: &[T]) -> Result<()> {
        self.rows.try_reserve(rows.len()).map_err(|_| Error::OutOfDeviceMemory {
            device: "cpu".to_owned(),
            asked: size_of_val(rows) as u64,
            available: 0,
        })?;
        self.rows.extend_from_slice(rows);
        Ok(())
    }

    fn search(&self, queries: &[T], k: usize, ids: &mut [u64], distances: &mut [f32]) -> Result<()> {
        let results = ids.par_chunks_mut(k).zip(distances.par_chunks_mut(k));
        queries.par_chunks(self.dim).zip(results).for_each(|(query, (ids, distances))| {
            let rows = self.rows.chunks_exact(self.dim);
            let mut all: Vec<_> =
                rows.map(|row| crate::metric::canonical(self.metric, query, row)).zip(0u64..).collect();
            all.sort_unstable_by(|a, b| self.metric.order(a.0, b.0).then(a.1.cmp(&b.1)));
            ids.fill(NONE);
            distances.fill(self.metric.worst());
            for ((id, distance), (d, i)) in ids.iter_mut().zip(distances).zip(all) {
                (*id, *distance) = (i, d);
            }
        });
        Ok(())
    }

    fn len(&self) -> usize {
        self.rows.len() / self.dim
    }

    fn reconstruct(&self, id: u64) -> Result<Vec<T>> {
        let start = id as usize * self.dim;
        Ok(self.rows[start..start + self.dim].to_vec())
    }

    fn describe(&self) -> String {
        format!("cpu, {} threads", rayon::current_num_threads())
    }
}
