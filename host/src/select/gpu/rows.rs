//! k-selection from rows in host memory: copies some rows at a time to the device, selects from them ([`super`]) and
//! copies the results back.
//!
//! Rows without gaps between them are copied in one piece. Rows with gaps are packed first. The first share is all
//! rows; it is halved until it fits in half of the device's free memory.

use std::ops::Range;

use super::{Select, SelectPlan, select};
use crate::Result;
use crate::device::lanes::Lanes;
use crate::device::limits::Limits;
use crate::device::runtime::{Runtime, Stream};
use crate::device::scratch::{Layout, Reserved, Scratch};
use crate::device::tiling::{Budget, Planned, Tiling};
use crate::select::{Algorithm, Best, Key, Rows, RowsLayout, Selection};

/// Selects from rows on the host, a share at a time, and writes the results to `selection`.
pub(crate) fn select_from_host<K: Key>(
    runtime: &Runtime,
    rows: &Rows<'_, K>,
    best: Best,
    algorithm: Algorithm,
    selection: &mut Selection<K>,
) -> Result<()> {
    // A row has at most `columns` results: the slots behind them stay empty.
    let k = selection.k.min(rows.columns());
    let limits = runtime.limits();
    let share_of = |first: usize, count: usize| Share::<K>::plan(rows, first..first + count, k, algorithm, limits);
    let budget = Budget::new(runtime, runtime.free_memory()? / 2);
    Lanes::new().with(runtime, |lane| {
        let (mut first, mut most) = (0, rows.len().min(1 << 24));
        while first < rows.len() {
            // Each share has a tiling of its own, since ragged rows differ in length.
            let tiling = Tiling::new(budget, (rows.len() - first, most), 1, |count| share_of(first, count))?;
            let share = tiling.plan;
            let scratch = lane.scratch(runtime, share.bytes)?;
            // SAFETY: the scratch has the bytes that the share's plan reserved.
            unsafe { share.run(runtime, &lane.stream, rows, best, scratch, selection)? };
            most = tiling.rows;
            first += most;
        }
        Ok(())
    })
}

/// Some rows of a batch in host memory, and their arrays on the device.
struct Share<K> {
    rows: Range<usize>,
    /// Number of results of a row on the device.
    k: usize,
    /// The keys to copy, as a range of the batch, or of the packed rows if rows are packed.
    span: Range<usize>,
    packed: bool,
    keys: Reserved<K>,
    starts: Reserved<u64>,
    lengths: Reserved<u32>,
    out_keys: Reserved<K>,
    out_ids: Reserved<u32>,
    plan: SelectPlan,
    bytes: usize,
}

impl<K> Planned for Share<K> {
    fn bytes(&self) -> usize {
        self.bytes
    }
}

impl<K: Key> Share<K> {
    fn plan(
        rows: &Rows<'_, K>,
        share: Range<usize>,
        k: usize,
        algorithm: Algorithm,
        limits: &Limits,
    ) -> Result<Share<K>> {
        let count = share.len();
        let (packed, span) = match rows.layout() {
            RowsLayout::Strided { columns, stride, .. } if stride > columns => (true, 0..count.saturating_mul(columns)),
            RowsLayout::Strided { columns, stride, .. } => {
                (false, share.start * stride..(share.end - 1) * stride + columns)
            }
            RowsLayout::Ragged { starts } => (false, starts[share.start] as usize..starts[share.end] as usize),
        };
        let mut layout = Layout::default();
        let slots = count.saturating_mul(k);
        Ok(Share {
            keys: layout.array(span.len()),
            starts: layout.array(count + 1),
            lengths: layout.array(count),
            out_keys: layout.array(slots),
            out_ids: layout.array(slots),
            plan: SelectPlan::new::<K>(&mut layout, count as u32, rows.columns() as u32, k as u32, algorithm, limits)?,
            bytes: layout.bytes(),
            rows: share,
            k,
            span,
            packed,
        })
    }

    /// Copies the rows to the device, selects, and copies the results into their slots.
    ///
    /// # Safety
    /// The scratch memory has the bytes of the plan, and no other work uses it.
    unsafe fn run(
        &self,
        runtime: &Runtime,
        stream: &Stream,
        rows: &Rows<'_, K>,
        best: Best,
        scratch: Scratch,
        selection: &mut Selection<K>,
    ) -> Result<()> {
        let (count, k) = (self.rows.len(), self.k);
        let keys = scratch.at(self.keys);
        let (starts, lengths) = (scratch.at(self.starts), scratch.at(self.lengths));
        let (out_keys, out_ids) = (scratch.at(self.out_keys), scratch.at(self.out_ids));
        let (mut found_keys, mut found_positions) = (vec![K::default(); count * k], vec![0u32; count * k]);
        // SAFETY: the plan reserved every array.
        unsafe {
            let (row_stride, starts) = match rows.layout() {
                RowsLayout::Strided { columns, stride, .. } if self.packed => {
                    let mut packed = Vec::with_capacity(self.span.len());
                    let whole = |row: usize| &rows.keys()[row * stride..row * stride + columns];
                    self.rows.clone().for_each(|row| packed.extend_from_slice(whole(row)));
                    runtime.copy_to_device(stream, keys, &packed)?;
                    (columns, None)
                }
                RowsLayout::Strided { stride, .. } => {
                    runtime.copy_to_device(stream, keys, &rows.keys()[self.span.clone()])?;
                    (stride, None)
                }
                RowsLayout::Ragged { starts: host_starts } => {
                    runtime.copy_to_device(stream, keys, &rows.keys()[self.span.clone()])?;
                    let host_starts = &host_starts[self.rows.start..=self.rows.end];
                    let from_first: Vec<u64> = host_starts.iter().map(|start| start - host_starts[0]).collect();
                    runtime.copy_to_device(stream, starts, &from_first)?;
                    (0, Some(starts.read_only()))
                }
            };
            if let Some(host_lengths) = rows.lengths() {
                runtime.copy_to_device(stream, lengths, &host_lengths[self.rows.clone()])?;
            }
            let batch = Select::<K> {
                keys: keys.into(),
                ids: None,
                row_stride: row_stride as u64,
                starts,
                lengths: rows.lengths().map(|_| lengths.into()),
                columns: rows.columns() as u32,
                rows: count as u32,
                k: k as u32,
                best,
                out_keys,
                out_ids,
            };
            select(runtime, stream, &batch, &self.plan, scratch)?;
            runtime.copy_to_host(stream, &mut found_keys, out_keys)?;
            runtime.copy_to_host(stream, &mut found_positions, out_ids)?;
        }
        for (row, number) in self.rows.clone().enumerate() {
            let slots = number * selection.k..number * selection.k + k;
            selection.keys[slots.clone()].copy_from_slice(&found_keys[row * k..(row + 1) * k]);
            selection.positions[slots].copy_from_slice(&found_positions[row * k..(row + 1) * k]);
        }
        Ok(())
    }
}
