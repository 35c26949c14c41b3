//! Launches k-selection: chooses the kernel by k, cuts long rows into segments, and makes further passes for large k.

use cuda_std::launch::{Kernel, LaunchConfig};
use warpann_kernels::warp_select;

use super::runtime::{Lanes, Layout, Runtime, grid};
use crate::select::{Best, Selection};
use crate::{Error, Result};

/// Arguments of the selection kernels, in order (see `warp_select::warp_select_k32`).
type SelectArgs = (*const f32, *const u32, u64, *const u32, u32, u32, u32, u32, u32, u32, u32, *mut f32, *mut u32, u32);

macro_rules! table {
    ($(($k:literal, $t:literal, $ahead:literal, $blocks:literal, $name:ident, $handle:ident))*) => {
        /// Selection kernels by the largest k they serve, ascending.
        pub(crate) const KERNELS: &[(u32, Kernel<SelectArgs>)] =
            &[(1, warp_select::WARP_SELECT_K1), $(($k, warp_select::$handle)),*];
    };
}
warpann_kernels::warp_select_instances!(table);

/// Largest k of one pass.
pub(crate) const PASS: u32 = KERNELS[KERNELS.len() - 1].0;

/// A batch of rows on the device and what to select from them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Select {
    /// Keys: row r starts at r · `row_stride`.
    pub keys: *const f32,
    /// Ids beside the keys, or null for positions.
    pub ids: *const u32,
    /// Keys from one row to the next.
    pub row_stride: u64,
    /// Length of each row, or null where all have `columns`.
    pub lengths: *const u32,
    /// Length of a row, at most.
    pub columns: u32,
    /// Number of rows.
    pub rows: u32,
    /// How many to select.
    pub k: u32,
    /// Which keys win.
    pub best: Best,
    /// Results: k keys and ids a row, best first, contiguous.
    pub out_keys: *mut f32,
    /// Ids of the results; `NO_ROW` where there is none.
    pub out_ids: *mut u32,
}

/// How a selection is cut: in each level, rows are cut into pieces that one warp each selects from; the winners of all pieces
/// of a row are a row of the next level. The last level has one piece a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Cut {
    levels: Vec<Level>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Level {
    segments: u32,
    segment_columns: u32,
}

/// Offsets of keys and ids of a level's winners; none for the last level.
pub(crate) type CutScratch = Vec<(usize, usize)>;

impl Cut {
    /// Cuts rows only as far as it takes to give every multiprocessor its warps, and never so short that the winners of the
    /// pieces are not far fewer than the keys.
    pub fn choose(rows: u32, columns: u32, k: u32, multiprocessors: u32) -> Cut {
        let wanted = (u64::from(multiprocessors) * 32).div_ceil(u64::from(rows.max(1)));
        let shortest = u64::from(k).saturating_mul(8).max(1024);
        let mut columns = u64::from(columns);
        let mut levels = Vec::new();
        // More than one pass needs the row in one piece: a pass goes on from the last result of the one before.
        let may_cut = k <= PASS;
        loop {
            let segments = wanted.min(columns / shortest);
            if segments <= 1 || !may_cut {
                break;
            }
            let segment_columns = columns.div_ceil(segments);
            let segments = columns.div_ceil(segment_columns);
            levels.push(Level { segments: segments as u32, segment_columns: segment_columns as u32 });
            // At most an eighth of the columns before: k winners from at least 8·k keys.
            columns = segments * u64::from(k);
        }
        levels.push(Level { segments: 1, segment_columns: columns as u32 });
        Cut { levels }
    }

    /// No cut: one warp a row.
    pub fn none(columns: u32) -> Cut {
        Cut { levels: vec![Level { segments: 1, segment_columns: columns }] }
    }

    /// Reserves the winners of all levels but the last.
    pub fn reserve(&self, layout: &mut Layout, rows: u32, k: u32) -> CutScratch {
        let inner = &self.levels[..self.levels.len() - 1];
        let winners =
            |level: &Level| (rows as usize).saturating_mul(level.segments as usize).saturating_mul(k as usize);
        inner.iter().map(|level| (layout.array::<f32>(winners(level)), layout.array::<u32>(winners(level)))).collect()
    }
}

/// Selects as `what` says, with scratch at `start` as [`Cut::reserve`] laid it out.
///
/// # Safety
/// The pointers of `what` cover their shapes and `start` what was reserved, until the stream has done the work.
pub(crate) unsafe fn select<R: Runtime>(
    runtime: &R,
    stream: &R::Stream,
    what: &Select,
    cut: &Cut,
    start: *mut u8,
    scratch: &CutScratch,
) -> Result<()> {
    if what.rows == 0 {
        return Ok(());
    }
    let mut what = *what;
    for (level, &(keys, ids)) in cut.levels.iter().zip(scratch) {
        let (keys, ids) = (start.wrapping_add(keys).cast::<f32>(), start.wrapping_add(ids).cast::<u32>());
        // SAFETY: the scratch has room for k winners of each segment; the next level reads just those.
        unsafe { pass(runtime, stream, &Select { out_keys: keys, out_ids: ids, ..what }, *level, 0, what.k)? };
        let columns = level.segments * what.k;
        what = Select { keys, ids, row_stride: u64::from(columns), lengths: std::ptr::null(), columns, ..what };
    }
    let last = cut.levels[cut.levels.len() - 1];
    let mut done = 0;
    while done < what.k {
        let now = (what.k - done).min(PASS);
        // SAFETY: as the caller promises; earlier passes of this stream wrote the first `done` results.
        unsafe { pass(runtime, stream, &what, last, done, now)? };
        done += now;
    }
    Ok(())
}

/// One launch: `k` results after the first `skip`, which are there.
unsafe fn pass<R: Runtime>(
    runtime: &R,
    stream: &R::Stream,
    what: &Select,
    cut: Level,
    skip: u32,
    k: u32,
) -> Result<()> {
    // The kernel for k = 1 knows no earlier pass.
    let least = if skip == 0 { k } else { k.max(2) };
    let kernel = &KERNELS.iter().find(|(limit, _)| least <= *limit).unwrap_or(&KERNELS[KERNELS.len() - 1]).1;
    let warps = u64::from(what.rows) * u64::from(cut.segments);
    let blocks = grid(kernel.name(), warps.div_ceil(u64::from(warp_select::WARPS_PER_BLOCK)))?;
    let config =
        LaunchConfig { grid: [blocks, 1, 1], block: [32 * warp_select::WARPS_PER_BLOCK, 1, 1], shared_bytes: 0 };
    let flip = if what.best == Best::Largest { 0x8000_0000 } else { 0 };
    let args = (
        what.keys,
        what.ids,
        what.row_stride,
        what.lengths,
        what.columns,
        cut.segments,
        cut.segment_columns,
        what.rows,
        flip,
        k,
        skip,
        what.out_keys,
        what.out_ids,
        what.k,
    );
    // SAFETY: as the caller promises.
    unsafe { runtime.launch(stream, kernel, config, args) }
}

/// Selects from rows on the host: uploads them a share at a time and brings the results back into `selection`.
pub(crate) fn select_from_host<R: Runtime>(
    runtime: &R,
    keys: &[f32],
    columns: usize,
    lengths: Option<&[u32]>,
    best: Best,
    selection: &mut Selection,
) -> Result<()> {
    let rows = keys.len() / columns;
    // More than a row has cannot be found: the slots beyond stay empty.
    let k = selection.k.min(columns);
    let plan = |rows: usize| {
        let mut layout = Layout::default();
        let cut = Cut::choose(rows as u32, columns as u32, k as u32, runtime.multiprocessors());
        let parts = (
            layout.array::<f32>(rows.saturating_mul(columns)),
            layout.array::<u32>(rows),
            layout.array::<f32>(rows.saturating_mul(k)),
            layout.array::<u32>(rows.saturating_mul(k)),
        );
        let scratch = cut.reserve(&mut layout, rows as u32, k as u32);
        (cut, parts, scratch, layout.bytes())
    };
    let budget = runtime.free_memory()? / 2;
    let mut share = rows.min(1 << 24);
    while share > 1 && plan(share).3 as u64 > budget {
        share = share.div_ceil(2);
    }
    let asked = plan(share).3 as u64;
    if asked > budget {
        return Err(Error::OutOfDeviceMemory { device: runtime.describe(), asked, available: budget });
    }
    Lanes::new().with(runtime, |lane| {
        let start = lane.scratch(runtime, plan(share).3)?;
        let stream = &lane.stream;
        for (number, keys) in keys.chunks(share * columns).enumerate() {
            let rows = keys.len() / columns;
            let first = number * share;
            let (cut, parts, scratch, _) = plan(rows);
            let part = |offset: usize| start.wrapping_add(offset);
            let (mut found_keys, mut found_positions) = (vec![0f32; rows * k], vec![0u32; rows * k]);
            // SAFETY: the plan of this share reserved every part, and no plan of fewer rows is larger.
            unsafe {
                runtime.upload(stream, part(parts.0), bytemuck::cast_slice(keys))?;
                let lengths = match lengths {
                    None => std::ptr::null(),
                    Some(lengths) => {
                        runtime.upload(stream, part(parts.1), bytemuck::cast_slice(&lengths[first..first + rows]))?;
                        part(parts.1).cast::<u32>().cast_const()
                    }
                };
                let what = Select {
                    keys: part(parts.0).cast(),
                    ids: std::ptr::null(),
                    row_stride: columns as u64,
                    lengths,
                    columns: columns as u32,
                    rows: rows as u32,
                    k: k as u32,
                    best,
                    out_keys: part(parts.2).cast(),
                    out_ids: part(parts.3).cast(),
                };
                select(runtime, stream, &what, &cut, start, &scratch)?;
                runtime.download(stream, bytemuck::cast_slice_mut(&mut found_keys), part(parts.2))?;
                runtime.download(stream, bytemuck::cast_slice_mut(&mut found_positions), part(parts.3))?;
            }
            let slots = |row: usize| (first + row) * selection.k..(first + row) * selection.k + k;
            for row in 0..rows {
                selection.keys[slots(row)].copy_from_slice(&found_keys[row * k..(row + 1) * k]);
                selection.positions[slots(row)].copy_from_slice(&found_positions[row * k..(row + 1) * k]);
            }
        }
        Ok(())
    })
}
