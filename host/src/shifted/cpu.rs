//! Shifted sort on the CPU with rayon: the algorithm of `warpann_kernels::shifted::shifted_sort`. Each thread processes
//! one query at a time.

use warpann_kernels::select::entry::{self, EMPTY};
use warpann_kernels::shifted::morton::MAX_DIM;
use warpann_kernels::shifted::shifted_sort::{distance, window_start};

use super::backend::{ShiftedBackend, ShiftedRequest};
use super::grid::Grid;
use crate::device::open::describe_cpu;
use crate::neighbors::slots::{Slots, fill_entries};
use crate::parallel::{Loop, ParallelSlice};
use crate::{Result, host_memory};

/// Smallest number of queries of one task.
const TASK: usize = 64;

/// The sorted copies, in host memory.
#[derive(Debug, Default)]
pub(super) struct ShiftedCpu {
    sorted: Option<Sorted>,
}

#[derive(Debug)]
struct Sorted {
    grid: Grid,
    copies: Vec<SortedCopy>,
}

/// One shifted copy, in the order of its codes, equal codes by lower id.
#[derive(Debug)]
struct SortedCopy {
    codes: Vec<u128>,
    ids: Vec<u32>,
    /// The points, row-major, because a thread reads all components of a candidate together.
    points: Vec<f32>,
}

impl SortedCopy {
    fn new(grid: &Grid, rows: &[f32], copy: u32) -> Result<SortedCopy> {
        let dim = grid.dim as usize;
        let numbered = rows.par_chunks_exact(dim).enumerate();
        let mut order: Vec<(u128, u32)> =
            host_memory::collected_in_parallel(numbered.map(|(id, row)| (grid.code(row, copy), id as u32)))?;
        order.par_sort_unstable();
        let mut points = host_memory::zeroed(rows.len())?;
        let places = points.par_chunks_exact_mut(dim).zip(order.par_iter()).with_min_len(TASK);
        places.for_each(|(point, &(_, id))| point.copy_from_slice(&rows[id as usize * dim..][..dim]));
        let codes = host_memory::collected_in_parallel(order.par_iter().map(|&(code, _)| code))?;
        let ids = host_memory::collected_in_parallel(order.par_iter().map(|&(_, id)| id))?;
        Ok(SortedCopy { codes, ids, points })
    }
}

impl Sorted {
    /// The position of every point in every copy: copies × points.
    fn ranks(&self) -> Result<Vec<Vec<u32>>> {
        let of_copy = |copy: &SortedCopy| {
            let mut ranks = host_memory::zeroed(copy.ids.len())?;
            for (position, &id) in copy.ids.iter().enumerate() {
                ranks[id as usize] = position as u32;
            }
            Ok(ranks)
        };
        self.copies.par_iter().map(of_copy).collect().into_iter().collect()
    }

    /// Finds the entries of the best `k` candidates of one query, whose position in each copy is `place(copy)`, without
    /// the point `own`.
    fn nearest(
        &self,
        query: &[f32],
        place: impl Fn(usize) -> u32,
        own: Option<u32>,
        (width, k): (usize, usize),
        best: &mut Vec<u64>,
    ) {
        let dim = query.len();
        let mut x = [0.0; MAX_DIM];
        for (x, &component) in x.iter_mut().zip(query) {
            *x = f64::from(component);
        }
        best.clear();
        for (number, copy) in self.copies.iter().enumerate() {
            let start = window_start(place(number), width as u32, copy.ids.len() as u32) as usize;
            let bound = best.get(k - 1).copied().unwrap_or(EMPTY);
            let ids = &copy.ids[start..start + width];
            let points = copy.points[start * dim..(start + width) * dim].chunks_exact(dim);
            let candidates = ids.iter().zip(points).filter(|&(&id, _)| Some(id) != own).map(|(&id, point)| {
                let y = |j: usize| point.get(j).copied().unwrap_or(0.0);
                entry::pack(entry::key_of(distance::<MAX_DIM>(|j| x[j], y)), id)
            });
            best.extend(candidates.filter(|&entry| entry < bound));
            best.sort_unstable();
            best.dedup();
            best.truncate(k);
        }
    }
}

impl ShiftedBackend for ShiftedCpu {
    fn rebuild(&mut self, grid: &Grid, rows: &[f32]) -> Result<()> {
        let copies = (0..grid.copies).map(|copy| SortedCopy::new(grid, rows, copy)).collect::<Result<_>>()?;
        self.sorted = Some(Sorted { grid: grid.clone(), copies });
        Ok(())
    }

    fn search(&self, request: &ShiftedRequest<'_>, slots: Slots<'_>) -> Result<()> {
        let Slots { k, worst, ids, distances } = slots;
        let Some(sorted) = &self.sorted else {
            fill_entries(ids, distances, &[], worst);
            return Ok(());
        };
        let dim = sorted.grid.dim as usize;
        let ranks = if request.own { sorted.ranks()? } else { Vec::new() };
        let slots = ids.par_chunks_exact_mut(k).zip(distances.par_chunks_exact_mut(k));
        let rows = request.queries.par_chunks_exact(dim).zip(slots).enumerate();
        let shape = (request.width, request.k);
        rows.with_min_len(TASK).for_each_init(Vec::new, |best, (number, (query, (ids, distances)))| {
            if request.own {
                sorted.nearest(query, |copy| ranks[copy][number], Some(number as u32), shape, best);
            } else {
                let place = |copy: usize| {
                    let code = sorted.grid.code::<u128>(query, copy as u32);
                    sorted.copies[copy].codes.partition_point(|&other| other < code) as u32
                };
                sorted.nearest(query, place, None, shape, best);
            }
            fill_entries(ids, distances, best, worst);
        });
        Ok(())
    }

    fn describe(&self) -> String {
        describe_cpu(None)
    }
}
