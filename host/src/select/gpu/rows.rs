//! k-selection from rows in host memory: a share of them at a time goes up, is selected from ([`super`]), and comes back.
//!
//! Rows that lie close together are uploaded as they are; of rows with gaps between them only the keys. The first share is all rows;
//! it is halved until it fits half of the device's free memory.

use std::ops::Range;

use super::{Plan, Select, select};
use crate::device::lanes::Lanes;
use crate::device::limits::Limits;
use crate::device::runtime::{Runtime, Stream};
use crate::device::scratch::Layout;
use crate::select::{Algorithm, Best, Key, Rows, RowsLayout, Selection};
use crate::{Error, Result};

/// Selects from rows on the host: uploads them a share at a time and brings the results back into `selection`.
pub(crate) fn select_from_host<K: Key>(
    runtime: &Runtime,
    rows: &Rows<'_, K>,
    best: Best,
    algorithm: Algorithm,
    selection: &mut Selection<K>,
) -> Result<()> {
    // More than a row has cannot be found: the slots beyond stay empty.
    let k = selection.k.min(rows.columns());
    let limits = runtime.limits();
    let share_of = |first: usize, count: usize| Share::plan(rows, first..first + count, k, algorithm, &limits);
    let budget = runtime.free_memory()? / 2;
    Lanes::new().with(runtime, |lane| {
        let (mut first, mut most) = (0, rows.len().min(1 << 24));
        while first < rows.len() {
            let mut count = most.min(rows.len() - first);
            let mut share = share_of(first, count)?;
            while share.bytes as u64 > budget {
                if count == 1 {
                    let (device, asked) = (runtime.describe(), share.bytes as u64);
                    return Err(Error::OutOfDeviceMemory { device, asked, available: budget });
                }
                count = count.div_ceil(2);
                most = count;
                share = share_of(first, count)?;
            }
            let start = lane.scratch(runtime, share.bytes)?;
            // SAFETY: the share's plan reserved every part of the scratch.
            unsafe { share.run(runtime, &lane.stream, rows, best, start, selection)? };
            first += count;
        }
        Ok(())
    })
}

/// Some rows of a batch in host memory, and where they go on the device.
struct Share {
    rows: Range<usize>,
    /// Slots of a row on the device.
    k: usize,
    /// The keys to upload, unless rows with gaps between them are packed first.
    span: Range<usize>,
    packed: bool,
    keys: usize,
    starts: usize,
    lengths: usize,
    out_keys: usize,
    out_ids: usize,
    plan: Plan,
    bytes: usize,
}

impl Share {
    fn plan<K: Key>(
        rows: &Rows<'_, K>,
        share: Range<usize>,
        k: usize,
        algorithm: Algorithm,
        limits: &Limits,
    ) -> Result<Share> {
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
            keys: layout.array::<K>(span.len()),
            starts: layout.array::<u64>(count + 1),
            lengths: layout.array::<u32>(count),
            out_keys: layout.array::<K>(slots),
            out_ids: layout.array::<u32>(slots),
            plan: Plan::new::<K>(&mut layout, count as u32, rows.columns() as u32, k as u32, algorithm, limits)?,
            bytes: layout.bytes(),
            rows: share,
            k,
            span,
            packed,
        })
    }

    /// Uploads, selects, and copies the results into their slots.
    ///
    /// # Safety
    /// `start` has the bytes of the plan, for this alone.
    unsafe fn run<K: Key>(
        &self,
        runtime: &Runtime,
        stream: &Stream,
        rows: &Rows<'_, K>,
        best: Best,
        start: *mut u8,
        selection: &mut Selection<K>,
    ) -> Result<()> {
        let part = |offset: usize| start.wrapping_add(offset);
        let (count, k) = (self.rows.len(), self.k);
        let none = std::ptr::null();
        let (mut found_keys, mut found_positions) = (vec![K::default(); count * k], vec![0u32; count * k]);
        // SAFETY: the plan reserved every part.
        unsafe {
            let row_stride = match rows.layout() {
                RowsLayout::Strided { columns, stride, .. } => {
                    if self.packed {
                        let mut keys = Vec::with_capacity(self.span.len());
                        let whole = |row: usize| &rows.keys()[row * stride..row * stride + columns];
                        self.rows.clone().for_each(|row| keys.extend_from_slice(whole(row)));
                        runtime.upload(stream, part(self.keys), bytemuck::cast_slice(&keys))?;
                    } else {
                        let keys = &rows.keys()[self.span.clone()];
                        runtime.upload(stream, part(self.keys), bytemuck::cast_slice(keys))?;
                    }
                    if self.packed { columns } else { stride }
                }
                RowsLayout::Ragged { starts } => {
                    let keys = &rows.keys()[self.span.clone()];
                    runtime.upload(stream, part(self.keys), bytemuck::cast_slice(keys))?;
                    let first = starts[self.rows.start];
                    let starts: Vec<u64> =
                        starts[self.rows.start..=self.rows.end].iter().map(|start| start - first).collect();
                    runtime.upload(stream, part(self.starts), bytemuck::cast_slice(&starts))?;
                    0
                }
            };
            if let Some(lengths) = rows.lengths() {
                runtime.upload(stream, part(self.lengths), bytemuck::cast_slice(&lengths[self.rows.clone()]))?;
            }
            let ragged = matches!(rows.layout(), RowsLayout::Ragged { .. });
            let what = Select::<K> {
                keys: part(self.keys).cast(),
                ids: none,
                row_stride: row_stride as u64,
                starts: if ragged { part(self.starts).cast() } else { std::ptr::null() },
                lengths: if rows.lengths().is_some() { part(self.lengths).cast() } else { std::ptr::null() },
                columns: rows.columns() as u32,
                rows: count as u32,
                k: k as u32,
                best,
                out_keys: part(self.out_keys).cast(),
                out_ids: part(self.out_ids).cast(),
            };
            select(runtime, stream, &what, &self.plan, start)?;
            runtime.download(stream, bytemuck::cast_slice_mut(&mut found_keys), part(self.out_keys))?;
            runtime.download(stream, bytemuck::cast_slice_mut(&mut found_positions), part(self.out_ids))?;
        }
        for (row, number) in self.rows.clone().enumerate() {
            let slots = number * selection.k..number * selection.k + k;
            selection.keys[slots.clone()].copy_from_slice(&found_keys[row * k..(row + 1) * k]);
            selection.positions[slots].copy_from_slice(&found_positions[row * k..(row + 1) * k]);
        }
        Ok(())
    }
}
