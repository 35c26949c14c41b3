//! Shifted sort on a device: kernels `morton`, `radix_sort` and `shifted_sort`.
//!
//! ```text
//! rebuild: rows ──codes, one launch a copy──► (code, id) of all copies ──sort, all copies at once──► ids, codes ──arrange──► points
//! search:  a batch of queries ──locate──► places ──nearest──► entries          (two lanes, so that the bus and the kernels overlap)
//! ```

use cuda_std::launch::Kernel;
use warpann_kernels::NO_ROW;
use warpann_kernels::shifted::morton::{self, Code, MortonCodes, is_wide};
use warpann_kernels::shifted::shifted_sort::{
    MostComponents, QueueLength, ShiftedArrange, ShiftedLocate, ShiftedNearest, ShiftedRanks,
};

use super::{Ask, Grid, ShiftedBackend};
use crate::device::lanes::Lanes;
use crate::device::queue::OnStream;
use crate::device::runtime::{Memory, Runtime};
use crate::device::scratch::Layout;
use crate::device::tiling::{Batches, bus_rows};
use crate::sort::gpu::{DeviceKey, Pairs, SortPlan, enqueue};
use crate::{Error, Result};

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

/// The index on one device.
pub(crate) struct ShiftedDevice {
    runtime: Runtime,
    budget: Option<u64>,
    lanes: Lanes,
    sorted: Option<Sorted>,
}

/// The sorted copies in device memory.
struct Sorted {
    memory: Memory,
    place: SortedLayout,
    grid: Grid,
    n: u32,
}

/// Where the arrays of the copies start.
#[derive(Clone, Copy)]
struct SortedLayout {
    mins: usize,
    codes: usize,
    ids: usize,
    points: usize,
    bytes: usize,
}

impl SortedLayout {
    fn new<W>(grid: &Grid, n: usize) -> SortedLayout {
        let mut layout = Layout::default();
        let all = n.saturating_mul(grid.copies as usize);
        SortedLayout {
            mins: layout.array::<f64>(grid.mins.len()),
            codes: layout.array::<W>(all),
            ids: layout.array::<u32>(all),
            points: layout.array::<f32>(all.saturating_mul(grid.dim as usize)),
            bytes: layout.bytes(),
        }
    }
}

impl ShiftedDevice {
    /// An empty index within `budget` bytes of device memory, or nine tenths of what is free.
    pub fn new(runtime: Runtime, budget: Option<u64>) -> Self {
        ShiftedDevice { runtime, budget, lanes: Lanes::new(), sorted: None }
    }

    /// Sorts `rows` into copies.
    fn sorted<W: DeviceCode>(&self, cells: &Grid, rows: &[f32]) -> Result<Sorted> {
        let runtime = &self.runtime;
        let (dim, copies) = (cells.dim as usize, cells.copies);
        let n = rows.len() / dim;
        let all = n.saturating_mul(copies as usize);
        let place = SortedLayout::new::<W>(cells, n);
        let mut layout = Layout::default();
        let rows_at = layout.array::<f32>(rows.len());
        let (spare_codes, spare_ids) = (layout.array::<W>(all), layout.array::<u32>(all));
        let plan = SortPlan::new::<W>(&mut layout, n as u32, copies, 0..cells.dim * cells.bits, &runtime.limits());
        let available = self.budget()?;
        let asked = (place.bytes as u64).saturating_add(layout.bytes() as u64);
        if asked > available {
            return Err(Error::OutOfDeviceMemory { device: runtime.describe(), asked, available });
        }
        let memory = runtime.allocate(place.bytes)?;
        let scratch = runtime.allocate(layout.bytes())?;
        let (kept, start) = (runtime.address(&memory), runtime.address(&scratch));
        let pairs =
            Pairs { keys: kept.wrapping_add(place.codes).cast::<W>(), payloads: kept.wrapping_add(place.ids).cast() };
        let spare = Pairs {
            keys: start.wrapping_add(spare_codes).cast::<W>(),
            payloads: start.wrapping_add(spare_ids).cast::<u32>(),
        };
        // The sorted pairs are to stay.
        let (from, to) = if plan.ends_in_spare() { (spare, pairs) } else { (pairs, spare) };
        self.lanes.with(runtime, |lane| {
            let (stream, rows_at) = (&lane.stream, start.wrapping_add(rows_at));
            // SAFETY: the layouts reserved every array; a copy's part starts at its number times n; the stream runs this in order,
            // and all of it is over before the scratch goes.
            unsafe {
                let mins = kept.wrapping_add(place.mins);
                runtime.upload(stream, mins, bytemuck::cast_slice(&cells.mins))?;
                runtime.upload(stream, rows_at, bytemuck::cast_slice(rows))?;
                for copy in 0..copies {
                    let first = copy as usize * n;
                    let launch = MortonCodes {
                        points: rows_at.cast(),
                        count: n as u32,
                        dim: cells.dim,
                        bits: cells.bits,
                        mins: mins.cast(),
                        scale: cells.scale,
                        offset: morton::offset(cells.bits, copies, copy),
                        codes: from.keys.wrapping_add(first),
                        ids: from.payloads.wrapping_add(first),
                    };
                    runtime.launch(stream, &W::CODES, launch.config(), launch)?;
                }
                enqueue(&OnStream { runtime, stream }, &plan, from, to, start)?;
                for copy in 0..copies as usize {
                    let launch = ShiftedArrange {
                        rows: rows_at.cast(),
                        n: n as u32,
                        dim: cells.dim,
                        ids: pairs.payloads.wrapping_add(copy * n),
                        out: kept.wrapping_add(place.points).cast::<f32>().wrapping_add(copy * dim * n),
                    };
                    runtime.launch(stream, &ShiftedArrange::KERNEL, launch.config(), launch)?;
                }
            }
            runtime.synchronize(stream)
        })?;
        Ok(Sorted { memory, place, grid: cells.clone(), n: n as u32 })
    }

    fn budget(&self) -> Result<u64> {
        match self.budget {
            Some(bytes) => Ok(bytes),
            None => Ok(self.runtime.free_memory()? / 10 * 9),
        }
    }

    /// Where every point stands in every copy, in memory of its own.
    fn ranks(&self, sorted: &Sorted) -> Result<Memory> {
        let runtime = &self.runtime;
        let memory = runtime.allocate(size_of::<u32>() * sorted.n as usize * sorted.grid.copies as usize)?;
        self.lanes.with(runtime, |lane| {
            let ids = runtime.address(&sorted.memory).wrapping_add(sorted.place.ids);
            let launch = ShiftedRanks { ids: ids.cast(), n: sorted.n, ranks: runtime.address(&memory).cast() };
            let config = launch.config(sorted.grid.copies);
            // SAFETY: ids and ranks hold n entries for each copy; sorting changed the order of a copy's ids only.
            unsafe { runtime.launch(&lane.stream, &ShiftedRanks::KERNEL, config, launch)? };
            runtime.synchronize(&lane.stream)
        })?;
        Ok(memory)
    }

    /// See [`ShiftedBackend::search`].
    fn search_sorted<W: DeviceCode>(&self, sorted: &Sorted, ask: &Ask<'_>, entries: &mut [u64]) -> Result<()> {
        let (runtime, place, cells, n) = (&self.runtime, sorted.place, &sorted.grid, sorted.n);
        let (dim, copies) = (cells.dim as usize, cells.copies as usize);
        let count = ask.queries.len() / dim;
        let ranks = if ask.own { Some(self.ranks(sorted)?) } else { None };
        let batch = |rows: usize| {
            let mut layout = Layout::default();
            let queries = layout.array::<f32>(rows.saturating_mul(dim));
            let places = layout.array::<u32>(if ask.own { 0 } else { rows.saturating_mul(copies) });
            let out = layout.array::<u64>(rows.saturating_mul(ask.k));
            (queries, places, out, layout.bytes())
        };
        // What is free does not count the copies any more, a budget of the caller's does.
        let held = if self.budget.is_some() { place.bytes } else { 0 };
        let batches = Batches::new(runtime, self.budget, held, (count, bus_rows(4 * dim)), |rows| batch(rows).3)?;
        let (queries_at, places_at, out_at, bytes) = batch(batches.rows);
        let queue = QueueLength::of(ask.k as u32);
        let kernel = ShiftedNearest::kernel((MostComponents::of(cells.dim), queue));
        let outs = entries.chunks_mut((batches.rows * ask.k).max(1));
        batches.run(runtime, &self.lanes, outs, |lane, first, entries| {
            let queries = batches.of(ask.queries, dim, first);
            let rows = queries.len() / dim;
            let scratch = lane.scratch(runtime, bytes)?;
            let stream = &lane.stream;
            let kept = runtime.address(&sorted.memory);
            let queries_at = scratch.wrapping_add(queries_at);
            let out = scratch.wrapping_add(out_at).cast::<u64>();
            // SAFETY: the layouts reserved the arrays for the batch's rows; ranks hold a row of n for each copy, of which these queries
            // have the places from `first` on; 1 ≤ width ≤ n and k ≥ 1 as checked by the index; the download waits for the kernels.
            unsafe {
                runtime.upload(stream, queries_at, bytemuck::cast_slice(queries))?;
                let (places, stride) = match &ranks {
                    Some(ranks) => (runtime.address(ranks).cast::<u32>().wrapping_add(first), n as usize),
                    None => {
                        let places = scratch.wrapping_add(places_at).cast::<u32>();
                        let launch = ShiftedLocate {
                            queries: queries_at.cast(),
                            count: rows as u32,
                            dim: cells.dim,
                            bits: cells.bits,
                            mins: kept.wrapping_add(place.mins).cast(),
                            scale: cells.scale,
                            copies: cells.copies,
                            codes: kept.wrapping_add(place.codes).cast(),
                            n,
                            places,
                        };
                        runtime.launch(stream, &W::LOCATE, launch.config(), launch)?;
                        (places, rows)
                    }
                };
                for skip in (0..ask.k as u32).step_by(queue.entries() as usize) {
                    let launch = ShiftedNearest {
                        queries: queries_at.cast(),
                        count: rows as u32,
                        dim: cells.dim,
                        places,
                        place_stride: stride as u64,
                        points: kept.wrapping_add(place.points).cast(),
                        ids: kept.wrapping_add(place.ids).cast(),
                        n,
                        copies: cells.copies,
                        width: ask.width as u32,
                        first_own: if ask.own { first as u32 } else { NO_ROW },
                        k: queue.entries().min(ask.k as u32 - skip),
                        skip,
                        out,
                        out_stride: ask.k as u32,
                    };
                    runtime.launch(stream, kernel, launch.config(), launch)?;
                }
                runtime.download(stream, bytemuck::cast_slice_mut(entries), out.cast())
            }
        })
    }
}

impl ShiftedBackend for ShiftedDevice {
    fn rebuild(&mut self, cells: &Grid, rows: &[f32]) -> Result<()> {
        let sorted =
            if is_wide(cells.dim) { self.sorted::<u128>(cells, rows) } else { self.sorted::<u64>(cells, rows) };
        self.sorted = Some(sorted?);
        Ok(())
    }

    fn search(&self, ask: &Ask<'_>, entries: &mut [u64]) -> Result<()> {
        let Some(sorted) = &self.sorted else {
            entries.fill(warpann_kernels::select::entry::EMPTY);
            return Ok(());
        };
        if is_wide(sorted.grid.dim) {
            self.search_sorted::<u128>(sorted, ask, entries)
        } else {
            self.search_sorted::<u64>(sorted, ask, entries)
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
