//! Shifted sort on a device: kernels `morton`, `radix_sort` and `shifted_sort`.
//!
//! ```text
//! rebuild: rows ──codes, one launch a copy──► (code, id) of all copies ──sort, all copies at once──► ids, codes ──arrange──► points
//! search:  a batch of queries ──locate──► places ──nearest──► entries          (two lanes, so that the bus and the kernels overlap)
//! ```

use cuda_std::Ptr;
use cuda_std::launch::Kernel;
use warpann_kernels::NO_ROW;
use warpann_kernels::shifted::morton::{self, Code, MortonCodes, is_wide};
use warpann_kernels::shifted::shifted_sort::{
    MostComponents, QueueLength, ShiftedArrange, ShiftedLocate, ShiftedNearest, ShiftedRanks,
};

use super::backend::{ShiftedBackend, ShiftedRequest};
use super::grid::Grid;
use crate::Result;
use crate::device::backend::ResultArray;
use crate::device::lanes::Lanes;
use crate::device::queue::OnStream;
use crate::device::runtime::{Memory, Runtime};
use crate::device::scratch::{Layout, Reserved};
use crate::device::tiling::{Budget, Tiling, bus_rows};
use crate::neighbors::slots::{Slots, fill_entries};
use crate::sort::gpu::{DeviceKey, Pairs, SortPlan, enqueue};

/// A width of codes and its kernels.
trait DeviceCode: Code + DeviceKey {
    const CODES: Kernel<MortonCodes<Self>>;
    const LOCATE: Kernel<ShiftedLocate<Self>>;
}

impl DeviceCode for u64 {
    const CODES: Kernel<MortonCodes<u64>> = MortonCodes::<u64>::KERNEL;
    const LOCATE: Kernel<ShiftedLocate<u64>> = ShiftedLocate::<u64>::KERNEL;
}

impl DeviceCode for u128 {
    const CODES: Kernel<MortonCodes<u128>> = MortonCodes::<u128>::KERNEL;
    const LOCATE: Kernel<ShiftedLocate<u128>> = ShiftedLocate::<u128>::KERNEL;
}

/// A shifted-sort index on one device.
pub(crate) struct ShiftedDevice {
    runtime: Runtime,
    budget: Option<u64>,
    lanes: Lanes,
    sorted: Option<Sorted>,
}

/// The sorted copies, by the width of their codes.
enum Sorted {
    Narrow(SortedCopies<u64>),
    Wide(SortedCopies<u128>),
}

/// The sorted copies in device memory.
struct SortedCopies<W> {
    memory: Memory,
    layout: SortedLayout<W>,
    grid: Grid,
    n: u32,
}

/// The arrays of the sorted copies.
#[derive(Clone, Copy)]
struct SortedLayout<W> {
    mins: Reserved<f64>,
    codes: Reserved<W>,
    ids: Reserved<u32>,
    points: Reserved<f32>,
    bytes: usize,
}

impl<W> SortedLayout<W> {
    fn new(grid: &Grid, n: usize) -> SortedLayout<W> {
        let mut layout = Layout::default();
        let all = n.saturating_mul(grid.copies as usize);
        SortedLayout {
            mins: layout.array(grid.mins.len()),
            codes: layout.array(all),
            ids: layout.array(all),
            points: layout.array(all.saturating_mul(grid.dim as usize)),
            bytes: layout.bytes(),
        }
    }
}

impl ShiftedDevice {
    /// An empty index within `budget` bytes of device memory, or nine tenths of what is free.
    pub fn new(runtime: Runtime, budget: Option<u64>) -> Self {
        ShiftedDevice { runtime, budget, lanes: Lanes::of_index(), sorted: None }
    }

    /// Sorts `rows` into copies.
    fn sort<W: DeviceCode>(&self, cells: &Grid, rows: &[f32]) -> Result<SortedCopies<W>> {
        let runtime = &self.runtime;
        let (dim, copies) = (cells.dim as usize, cells.copies);
        let n = rows.len() / dim;
        let all = n.saturating_mul(copies as usize);
        let kept_layout = SortedLayout::<W>::new(cells, n);
        let mut layout = Layout::default();
        let device_rows = layout.array::<f32>(rows.len());
        let (spare_codes, spare_ids) = (layout.array::<W>(all), layout.array::<u32>(all));
        let plan = SortPlan::new::<W>(&mut layout, n as u32, copies, 0..cells.dim * cells.bits, runtime.limits());
        let available = self.runtime.budget(self.budget)?;
        let asked = (kept_layout.bytes as u64).saturating_add(layout.bytes() as u64);
        Budget::new(runtime, available).check(asked)?;
        let memory = runtime.allocate(kept_layout.bytes)?;
        let scratch_memory = runtime.allocate(layout.bytes())?;
        let (kept, scratch) = (runtime.scratch(&memory), runtime.scratch(&scratch_memory));
        let (mins, points) = (kept.at(kept_layout.mins), kept.at(kept_layout.points));
        let device_rows = scratch.at(device_rows);
        let pairs = Pairs { keys: kept.at(kept_layout.codes), payloads: kept.at(kept_layout.ids) };
        let spare = Pairs { keys: scratch.at(spare_codes), payloads: scratch.at(spare_ids) };
        // The sorted pairs must end in the memory that the index keeps.
        let (from, to) = if plan.ends_in_spare() { (spare, pairs) } else { (pairs, spare) };
        self.lanes.with(runtime, |lane| {
            let stream = &lane.stream;
            // SAFETY: the layouts reserved every array. The part of a copy starts at n times the copy's number. The
            // stream runs all launches in order, and they finish before the scratch memory is freed.
            unsafe {
                runtime.copy_to_device(stream, mins, &cells.mins)?;
                runtime.copy_to_device(stream, device_rows, rows)?;
                for copy in 0..copies {
                    let first = copy as usize * n;
                    let launch = MortonCodes {
                        points: device_rows.into(),
                        count: n as u32,
                        dim: cells.dim,
                        bits: cells.bits,
                        mins: mins.into(),
                        scale: cells.scale,
                        offset: morton::offset(cells.bits, copies, copy),
                        codes: from.keys.skip(first).take(n),
                        ids: from.payloads.skip(first).take(n),
                    };
                    runtime.launch(stream, &W::CODES, launch.config(), launch)?;
                }
                enqueue(&OnStream { runtime, stream }, &plan, from, to, scratch)?;
                for copy in 0..copies as usize {
                    let launch = ShiftedArrange {
                        rows: device_rows.into(),
                        n: n as u32,
                        dim: cells.dim,
                        ids: pairs.payloads.skip(copy * n).take(n).into(),
                        out: points.skip(copy * dim * n).take(dim * n),
                    };
                    runtime.launch(stream, &ShiftedArrange::KERNEL, launch.config(), launch)?;
                }
            }
            runtime.synchronize(stream)
        })?;
        Ok(SortedCopies { memory, layout: kept_layout, grid: cells.clone(), n: n as u32 })
    }

    /// Computes the position of every point in every copy: n positions for each copy. They are valid as long as the
    /// returned memory.
    fn ranks<W>(&self, sorted: &SortedCopies<W>) -> Result<(Memory, Ptr<u32>)> {
        let runtime = &self.runtime;
        let mut layout = Layout::default();
        let ranks = layout.array::<u32>(sorted.layout.ids.len());
        let memory = runtime.allocate(layout.bytes())?;
        let ranks = runtime.scratch(&memory).at(ranks);
        self.lanes.with(runtime, |lane| {
            let ids = runtime.scratch(&sorted.memory).at(sorted.layout.ids);
            let launch = ShiftedRanks { ids: ids.into(), n: sorted.n, ranks };
            let config = launch.config(sorted.grid.copies);
            // SAFETY: ids and ranks hold n entries for each copy; sorting changed the order of a copy's ids only.
            unsafe { runtime.launch(&lane.stream, &ShiftedRanks::KERNEL, config, launch)? };
            runtime.synchronize(&lane.stream)
        })?;
        Ok((memory, ranks.into()))
    }

    /// See [`ShiftedBackend::search`].
    fn search_sorted<W: DeviceCode>(
        &self,
        sorted: &SortedCopies<W>,
        request: &ShiftedRequest<'_>,
        slots: Slots<'_>,
    ) -> Result<()> {
        let Slots { k: slot_count, worst, ids, distances } = slots;
        let (runtime, kept_layout, cells, n) = (&self.runtime, &sorted.layout, &sorted.grid, sorted.n);
        let (dim, copies) = (cells.dim as usize, cells.copies as usize);
        let count = request.queries.len() / dim;
        let ranks = if request.own { Some(self.ranks(sorted)?) } else { None };
        let place = |rows: usize| {
            let mut layout = Layout::default();
            let queries = layout.array::<f32>(rows.saturating_mul(dim));
            let places = layout.array::<u32>(if request.own { 0 } else { rows.saturating_mul(copies) });
            let out = layout.array::<u64>(rows.saturating_mul(request.k));
            Ok(((queries, places, out), layout))
        };
        // A budget includes the copies; free memory does not.
        let held = if self.budget.is_some() { kept_layout.bytes } else { 0 };
        let budget = Budget::new(runtime, runtime.budget(self.budget)?).with_shared(held);
        // So many that neither their queries nor their results take the bus for long: the kernels of one tile run
        // beside the copies of another.
        let most = bus_rows((4 * dim).max(8 * request.k));
        let tiling = Tiling::overlapped(budget, (count, most), place)?;
        let ((device_queries, located, out), tile_layout) = &tiling.plan;
        let queue = QueueLength::of(request.k as u32);
        let kernel = ShiftedNearest::kernel((MostComponents::of(cells.dim), queue));
        let kept = runtime.scratch(&sorted.memory);
        let (mins, codes) = (kept.at(kept_layout.mins), kept.at(kept_layout.codes));
        let (points, point_ids) = (kept.at(kept_layout.points), kept.at(kept_layout.ids));
        let tile_slots = (tiling.rows * slot_count).max(1);
        let outs = ids.chunks_mut(tile_slots).zip(distances.chunks_mut(tile_slots));
        tiling.run(runtime, &self.lanes, outs, |lane, tile, (ids, distances)| {
            let (first, rows) = (tile.start, tile.len());
            let queries = &request.queries[first * dim..tile.end * dim];
            let scratch = lane.scratch(runtime, tile_layout.bytes())?;
            let stream = &lane.stream;
            let device_queries = scratch.at(*device_queries).take(rows * dim);
            let out = scratch.at(*out).take(rows * request.k);
            // SAFETY: the layouts reserved the arrays for the tile's rows. Ranks hold n places for each copy; those of
            // these queries start at `first`. The index checked 1 ≤ width ≤ n and k ≥ 1. The copy to the host waits for
            // the kernels.
            unsafe {
                runtime.copy_to_device(stream, device_queries, queries)?;
                let (places, stride) = match &ranks {
                    Some((_, ranks)) => (ranks.skip(first).take((copies - 1) * n as usize + rows), n as usize),
                    None => {
                        let places = scratch.at(*located).take(copies * rows);
                        let launch = ShiftedLocate {
                            queries: device_queries.into(),
                            count: rows as u32,
                            dim: cells.dim,
                            bits: cells.bits,
                            mins: mins.into(),
                            scale: cells.scale,
                            copies: cells.copies,
                            codes: codes.into(),
                            n,
                            places,
                        };
                        runtime.launch(stream, &W::LOCATE, launch.config(), launch)?;
                        (places.into(), rows)
                    }
                };
                for skip in (0..request.k as u32).step_by(queue.entries() as usize) {
                    let launch = ShiftedNearest {
                        queries: device_queries.into(),
                        count: rows as u32,
                        dim: cells.dim,
                        places,
                        place_stride: stride as u64,
                        points: points.into(),
                        ids: point_ids.into(),
                        n,
                        copies: cells.copies,
                        width: request.width as u32,
                        first_own: if request.own { first as u32 } else { NO_ROW },
                        k: queue.entries().min(request.k as u32 - skip),
                        skip,
                        out,
                        out_stride: request.k as u32,
                    };
                    runtime.launch(stream, kernel, launch.config(), launch)?;
                }
                let mut slots = Slots { k: slot_count, worst, ids, distances };
                let results = [ResultArray::new(out, request.k)];
                runtime.copy_results_to_host(stream, rows, &results, &mut |queries, parts| {
                    slots.fill_entries(queries.start, request.k, bytemuck::cast_slice(parts[0]));
                })
            }
        })
    }
}

impl ShiftedBackend for ShiftedDevice {
    fn rebuild(&mut self, cells: &Grid, rows: &[f32]) -> Result<()> {
        self.sorted = Some(if is_wide(cells.dim) {
            Sorted::Wide(self.sort(cells, rows)?)
        } else {
            Sorted::Narrow(self.sort(cells, rows)?)
        });
        Ok(())
    }

    fn search(&self, request: &ShiftedRequest<'_>, slots: Slots<'_>) -> Result<()> {
        match &self.sorted {
            Some(Sorted::Narrow(sorted)) => self.search_sorted(sorted, request, slots),
            Some(Sorted::Wide(sorted)) => self.search_sorted(sorted, request, slots),
            None => {
                fill_entries(slots.ids, slots.distances, &[], slots.worst);
                Ok(())
            }
        }
    }

    fn describe(&self) -> String {
        self.runtime.describe()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_dimension_has_the_narrowest_kernel() {
        let name = |dim, k| {
            let queue = QueueLength::of(k);
            (ShiftedNearest::kernel((MostComponents::of(dim), queue)).name(), queue.entries())
        };
        assert_eq!(name(1, 1), ("shifted_nearest_d4_k32", 32));
        assert_eq!(name(4, 33), ("shifted_nearest_d4_k128", 128));
        assert_eq!(name(4, 1000), ("shifted_nearest_d4_k128", 128));
        assert_eq!(name(5, 32), ("shifted_nearest_d8_k32", 32));
        assert_eq!(name(6, 129), ("shifted_nearest_d8_k128", 128));
        assert_eq!(name(12, 16), ("shifted_nearest_d12_k32", 32));
        assert_eq!(name(9, 1 << 20), ("shifted_nearest_d12_k128", 128));
    }
}
