//! Launches the scan of product-quantized lists by lookup tables: what is kept of an index, how a batch is scanned, and the run.
//!
//! | squared L2 with | kept | table in shared memory | pairs a block |
//! |---|---|---|---|
//! | [`Terms::Rows`] | 4 bytes a stored row | the query's | many |
//! | [`Terms::Lists`] | 4 · M · 2^bits bytes a list | the query's + the list's | 1 |
//! | [`Terms::None`] | nothing | of the pair, from scratch | 1 |
//!
//! Inner product keeps nothing and has the query's table. The arithmetic, its error bound and the kernels' cost:
//! [`warpann_kernels::pq_tables`] and [`warpann_kernels::table_scan`].

mod index;
#[cfg(test)]
mod tests;

use cuda_std::launch::{Kernel, LaunchConfig};
use warpann_kernels::pq_tables::{
    self, FORM_LIST_TERMS, FORM_RESIDUAL, FORM_ROW_TERMS, ROW_TERMS, SUB_TABLES, TABLE_BOUNDS,
};
use warpann_kernels::table_scan::{self, MAX_PAIRS, TILE_ROWS, entries_in};

pub(crate) use index::{Image, Norms, Shape, Terms};

use super::runtime::{Layout, Limits, Queue, grid};
use crate::{Error, Result};

/// Arguments of the scan, in order (see `table_scan::table_scan_bytes16_f32`).
type ScanArgs = (
    *const f32,
    u32,
    *const f32,
    *const f32,
    u32,
    u32,
    u32,
    *const u8,
    u32,
    *const u32,
    *const u32,
    *const u32,
    *const u32,
    u32,
    *const u64,
    u32,
    *const f32,
    *const f32,
    *const f32,
    u32,
    u32,
    u32,
    *mut f32,
);

/// A scan kernel and what it is for.
struct ScanKernel {
    entry_bytes: u32,
    /// 8-bit codes that it loads at once; 0: any code, one by one.
    at_once: u32,
    kernel: Kernel<ScanArgs>,
}

/// Bytes of an f32 entry.
const F32_BYTES: u32 = 4;
/// Bytes of an f16 entry.
const F16_BYTES: u32 = 2;

macro_rules! table {
    ($(($entry:ident, $entry_bytes:literal, $codes:ty, $at_once:literal, $name:ident, $handle:ident))*) => {
        /// Those of f32 tables, then those of f16 tables; each from the widest loads.
        const KERNELS: &[ScanKernel] =
            &[$(ScanKernel { entry_bytes: $entry_bytes, at_once: $at_once, kernel: table_scan::$handle }),*];
    };
}
warpann_kernels::table_scan_instances!(table);

/// What table entries are stored as.
#[cfg_attr(not(test), expect(dead_code, reason = "tests force what sizes would choose"))]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Precision {
    /// f32 where a whole table fits the shared memory of a block; else f16 where that does; else f32, in chunks. A block that
    /// has a multiprocessor to itself is given 1,024 threads, as many as registers allow: that is no reason for f16 yet.
    Auto,
    /// f32, in chunks where the table does not fit.
    F32,
    /// f16, in chunks where the table does not fit.
    F16,
}

/// A batch of queries, what they probe, and where scores go: all in device memory.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TableScan {
    /// \[query_count\]\[stride\], padded with zeros.
    pub queries: *const f32,
    /// Queries.
    pub query_count: u32,
    /// Lists of a query.
    pub probe_count: u32,
    /// \[query_count\]\[probe_count\]: lists, or `NO_ROW` for none.
    pub probes: *const u32,
    /// Like `probes`: where a pair's scores start in the query's row.
    pub pair_offsets: *const u32,
    /// Where the query's row of scores starts; an entry a query (and one more, which is not read).
    pub row_starts: *const u64,
    /// scores\[row_starts\[q\] + pair_offsets\[q\]\[p\] + i\]: that of row i of the list, +∞ from its length to the next multiple
    /// of 8.
    pub scores: *mut f32,
    /// errors\[q\] ≥ |score − real value| for every row of every list, also if the real value is that of a reconstruction c + p
    /// rounded to f32, and is itself rounded to f32. +∞ where scores may overflow; then they may be anything.
    pub errors: *mut f32,
}

/// How a batch is scanned, and where its scratch lies.
#[derive(Debug, Clone)]
pub(crate) struct TablePlan {
    shape: Shape,
    form: u32,
    kernel: &'static ScanKernel,
    chunk: u32,
    threads: u32,
    block_pairs: u32,
    segments: u32,
    /// Queries whose tables are in memory at once.
    query_tile: u32,
    query_tables: usize,
    scales: usize,
}

impl std::fmt::Debug for ScanKernel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.kernel.name())
    }
}

impl TablePlan {
    /// Bytes that the tables of a batch's queries may take, unless those of one query take more.
    const QUERY_TABLES_BYTES: u64 = 256 << 20;
    /// Threads of a multiprocessor: what registers allow.
    const RESIDENT_THREADS: u32 = 1024;

    /// Plans the scan of `probes` lists for each of `queries` queries, and reserves its scratch. `terms` are those that were
    /// computed by [`enqueue_terms`].
    ///
    /// # Errors
    /// [`Error::LaunchLimit`] if shared memory has not even room for the table of one sub-quantizer (at most 1 KiB), or the grid
    /// of a single query exceeds the hardware's.
    pub fn new(
        layout: &mut Layout,
        shape: &Shape,
        terms: Terms,
        precision: Precision,
        queries: u32,
        probes: u32,
        limits: &Limits,
    ) -> Result<TablePlan> {
        let form = shape.form(terms);
        let (kernel, chunk) = choose_kernel(shape, precision, limits)?;
        let bytes = table_scan::shared_bytes(chunk << shape.bits, kernel.entry_bytes);

        // Blocks share a multiprocessor's memory: the fewer fit, the more threads each gets.
        let resident = (limits.shared_bytes / bytes).max(1);
        let threads = (Self::RESIDENT_THREADS / resident).next_power_of_two().clamp(128, 1024);

        // Two waves of blocks: more would build more tables, fewer leave multiprocessors idle at the end. With enough queries a
        // block takes all pairs of one.
        let wanted =
            u64::from(limits.multiprocessors) * u64::from((Self::RESIDENT_THREADS / threads).min(resident)) * 2;
        let pairs = u64::from(queries) * u64::from(probes);
        let block_pairs = if form == FORM_LIST_TERMS || form == FORM_RESIDUAL {
            1
        } else {
            (pairs / wanted.max(1)).clamp(1, u64::from(probes.clamp(1, MAX_PAIRS))) as u32
        };
        let groups = u64::from(probes.div_ceil(block_pairs));
        let blocks = (u64::from(queries) * groups).max(1);
        let most_segments = shape.longest_list.div_ceil(TILE_ROWS * threads / 32).max(1);
        let segments = wanted.div_ceil(blocks).clamp(1, u64::from(most_segments)) as u32;

        let of_query = u64::from(shape.entries()) * 4;
        let by_tables =
            if form == FORM_RESIDUAL { u64::MAX } else { (Self::QUERY_TABLES_BYTES / of_query.max(1)).max(1) };
        let by_grid = i32::MAX as u64 / (groups * u64::from(segments)).max(1);
        if by_grid == 0 {
            grid(kernel.kernel.name(), groups * u64::from(segments))?;
        }
        let tiles = u64::from(queries).div_ceil(by_tables.min(by_grid).max(1)).max(1);
        let query_tile = u64::from(queries).div_ceil(tiles) as u32;
        let tables = if form == FORM_RESIDUAL { 0 } else { query_tile as usize * shape.entries() as usize };
        let scales = if kernel.entry_bytes == F16_BYTES { queries as usize } else { 0 };
        Ok(TablePlan {
            shape: *shape,
            form,
            kernel,
            chunk,
            threads,
            block_pairs,
            segments,
            query_tile,
            query_tables: layout.array::<f32>(tables),
            scales: layout.array::<f32>(scales),
        })
    }

    /// Whether table entries are f16: errors are about a thousand times those of f32.
    pub fn is_half(&self) -> bool {
        self.kernel.entry_bytes == F16_BYTES
    }
}

/// The kernel for codes and tables of this shape, and how many sub-quantizers have their tables in shared memory at once.
fn choose_kernel(shape: &Shape, precision: Precision, limits: &Limits) -> Result<(&'static ScanKernel, u32)> {
    let fit = |entry_bytes: u32| entries_in(limits.shared_bytes, entry_bytes) >> shape.bits;
    let whole = |entry_bytes: u32| fit(entry_bytes) >= shape.sub_quantizers;
    let entry_bytes = match precision {
        Precision::F16 => F16_BYTES,
        Precision::Auto if !whole(F32_BYTES) && whole(F16_BYTES) => F16_BYTES,
        Precision::Auto | Precision::F32 => F32_BYTES,
    };
    let fit = fit(entry_bytes).min(shape.sub_quantizers);
    for candidate in KERNELS.iter().filter(|candidate| candidate.entry_bytes == entry_bytes) {
        let at_once = candidate.at_once;
        if at_once == 0 {
            if fit == 0 && shape.sub_quantizers > 0 {
                break;
            }
            // Chunks of 32 begin at a whole word.
            let chunk = if fit < shape.sub_quantizers && fit >= 32 { fit - fit % 32 } else { fit };
            return Ok((candidate, chunk));
        }
        if shape.bits == 8 && shape.sub_quantizers.is_multiple_of(at_once) && fit >= at_once {
            return Ok((candidate, fit - fit % at_once));
        }
    }
    Err(Error::LaunchLimit {
        kernel: KERNELS[0].kernel.name(),
        what: "shared memory",
        asked: table_scan::shared_bytes(1 << shape.bits, entry_bytes).into(),
        limit: limits.shared_bytes.into(),
    })
}

/// Computes `terms` of the index to `to`; needed again for rows after codes have changed, for lists after training only.
///
/// # Safety
/// The pointers of `image` cover `shape` and `to` has [`Shape::terms_len`] f32, all aligned to 16 bytes, until the queue has done
/// the work.
pub(crate) unsafe fn enqueue_terms<Q: Queue>(
    queue: &Q,
    shape: &Shape,
    image: &Image,
    terms: Terms,
    to: *mut f32,
) -> Result<()> {
    if shape.terms_len(terms) == 0 {
        return Ok(());
    }
    if terms == Terms::Lists {
        // SAFETY: as the caller promises.
        return unsafe { sub_tables(queue, shape, image, image.centroids, shape.lists, 2.0, 1.0, to) };
    }
    let kernel = &ROW_TERMS;
    // Lists longer than 16 rows a warp are shared by several blocks.
    let slices = shape.longest_list.div_ceil(16 * pq_tables::WARPS_PER_BLOCK).clamp(1, 64);
    let blocks = grid(kernel.name(), u64::from(shape.lists) * u64::from(slices))?;
    let config = LaunchConfig { grid: [blocks, 1, 1], block: [pq_tables::THREADS, 1, 1], shared_bytes: 0 };
    let args = (
        image.codes,
        shape.code_bytes(),
        image.list_starts,
        image.list_lengths,
        slices,
        image.centroids,
        shape.stride(),
        image.codebooks,
        shape.sub_dim(),
        shape.sub_quantizers,
        shape.bits,
        to,
    );
    // SAFETY: as the caller promises.
    unsafe { queue.launch(kernel, config, args) }
}

/// Tables of `count` vectors: see [`pq_tables::sub_tables`].
#[expect(clippy::too_many_arguments, reason = "what the kernel takes")]
unsafe fn sub_tables<Q: Queue>(
    queue: &Q,
    shape: &Shape,
    image: &Image,
    vectors: *const f32,
    count: u32,
    scale: f32,
    squares: f32,
    to: *mut f32,
) -> Result<()> {
    let kernel = &SUB_TABLES;
    let of_vectors = u64::from(count.div_ceil(pq_tables::VECTORS));
    let blocks = grid(kernel.name(), of_vectors * u64::from(shape.entries().div_ceil(pq_tables::THREADS)))?;
    let config = LaunchConfig { grid: [blocks, 1, 1], block: [pq_tables::THREADS, 1, 1], shared_bytes: 0 };
    let args = (
        vectors,
        shape.stride(),
        count,
        image.codebooks,
        shape.sub_dim(),
        shape.sub_quantizers,
        shape.bits,
        scale,
        squares,
        to,
    );
    // SAFETY: as the caller promises.
    unsafe { queue.launch(kernel, config, args) }
}

/// Scans as `what` says, with the plan's scratch from `start` on: writes scores and errors.
///
/// # Safety
/// The pointers of `what` and `image` cover their shapes, `terms` holds what [`enqueue_terms`] wrote for the plan's choice (it is
/// not read where there is none), and `start` has what the plan reserved, until the queue has done the work; queries, centroids,
/// codebooks, codes and terms are aligned to 16 bytes. The plan was made for as many queries and probes. Probed lists exist,
/// lists start at multiples of 8 rows, components are finite, and no two pairs' scores overlap.
pub(crate) unsafe fn enqueue<Q: Queue>(
    queue: &Q,
    what: &TableScan,
    image: &Image,
    terms: *const f32,
    plan: &TablePlan,
    start: *mut u8,
) -> Result<()> {
    if what.query_count == 0 {
        return Ok(());
    }
    let shape = &plan.shape;
    let at = |offset: usize| start.wrapping_add(offset).cast::<f32>();
    let scales = if plan.is_half() { at(plan.scales) } else { std::ptr::null_mut() };
    let n = pq_tables::roundings(shape.dim, shape.sub_quantizers) as f64 / f64::from(1u32 << 24);
    // Where n·u reaches 1 nothing is certain.
    let gamma = if n < 1.0 { n / (1.0 - n) * (1.0 + 1e-9) } else { f64::INFINITY };
    let kernel = &TABLE_BOUNDS;
    let blocks = grid(kernel.name(), what.query_count.div_ceil(pq_tables::WARPS_PER_BLOCK).into())?;
    let config = LaunchConfig { grid: [blocks, 1, 1], block: [pq_tables::THREADS, 1, 1], shared_bytes: 0 };
    let Norms { centroid, codeword, sub_codeword } = shape.norms;
    let (stride, count) = (shape.stride(), what.query_count);
    let args = (
        what.queries,
        stride,
        count,
        plan.form,
        shape.sub_quantizers,
        centroid,
        codeword,
        sub_codeword,
        gamma,
        what.errors,
        scales,
    );
    // SAFETY: as the caller promises.
    unsafe { queue.launch(kernel, config, args)? };
    if what.probe_count == 0 || shape.lists == 0 {
        return Ok(());
    }
    let groups = what.probe_count.div_ceil(plan.block_pairs);
    let kernel = &plan.kernel.kernel;
    let mut first = 0;
    while first < what.query_count {
        let count = plan.query_tile.min(what.query_count - first);
        let of_first = |values: u32| first as usize * values as usize;
        let queries = what.queries.wrapping_add(of_first(stride));
        let tables = at(plan.query_tables);
        if plan.form != FORM_RESIDUAL {
            let scale = if shape.inner_product { -1.0 } else { -2.0 };
            // SAFETY: as the caller promises; the plan has room for the tables of a tile, which is scanned before the next.
            unsafe { sub_tables(queue, shape, image, queries, count, scale, 0.0, tables)? };
        }
        let blocks = grid(kernel.name(), u64::from(count) * u64::from(groups) * u64::from(plan.segments))?;
        let shared_bytes = table_scan::shared_bytes(plan.chunk << shape.bits, plan.kernel.entry_bytes);
        let config = LaunchConfig { grid: [blocks, 1, 1], block: [plan.threads, 1, 1], shared_bytes };
        let terms = if matches!(plan.form, FORM_ROW_TERMS | FORM_LIST_TERMS) { terms } else { std::ptr::null() };
        let scales = if scales.is_null() { scales } else { scales.wrapping_add(first as usize) };
        let args = (
            queries,
            stride,
            image.centroids,
            image.codebooks,
            shape.sub_dim(),
            shape.sub_quantizers,
            shape.bits,
            image.codes,
            shape.code_bytes(),
            image.list_starts,
            image.list_lengths,
            what.probes.wrapping_add(of_first(what.probe_count)),
            what.pair_offsets.wrapping_add(of_first(what.probe_count)),
            what.probe_count,
            what.row_starts.wrapping_add(first as usize),
            plan.form,
            tables.cast_const(),
            terms,
            scales.cast_const(),
            plan.chunk,
            plan.block_pairs,
            plan.segments,
            what.scores,
        );
        // SAFETY: as the caller promises; the bounds kernel wrote the scales.
        unsafe { queue.launch(kernel, config, args)? };
        first += count;
    }
    Ok(())
}
