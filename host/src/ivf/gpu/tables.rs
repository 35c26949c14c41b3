//! Launches the scan of product-quantized lists by lookup tables: the stored terms of an index, the plan of a batch,
//! and the launches.
//!
//! | squared L2 with | stored | table in shared memory | pairs a block |
//! |---|---|---|---|
//! | [`Terms::Rows`] | 4 bytes a stored row | of the query | many |
//! | [`Terms::Lists`] | 4 · M · 2^bits bytes a list | of the query + of the list | 1 |
//! | [`Terms::None`] | nothing | of the pair, computed for it | 1 |
//!
//! Inner product and cosine store nothing more and use the table of the query; cosine reads the factors that the rows
//! have for the list scan. [`warpann_kernels::pq::pq_tables`] and [`warpann_kernels::ivf::table_scan`] explain the
//! arithmetic, its error bound and the cost of the kernels.

mod index;
#[cfg(test)]
mod tests;

use cuda_std::{Ptr, PtrMut};
use warpann_kernels::ivf::table_scan::{
    self, CodesKey, EntryKey, MAX_PAIRS, ScanTables, TILE_ROWS, TableKey, entries_in,
};
use warpann_kernels::pq::pq_tables::{
    self, CodedLists, FORM_LIST_TERMS, FORM_RESIDUAL, FORM_ROW_TERMS, RowTerms, SubTables, TableBounds,
};

pub(crate) use index::{Image, Norms, Shape, Terms};

use crate::device::limits::Limits;
use crate::device::queue::Queue;
use crate::device::scratch::{Layout, Reserved, Scratch};
use crate::{Error, Result};

/// The number type of table entries.
#[cfg_attr(not(test), expect(dead_code, reason = "tests force what sizes would choose"))]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Precision {
    /// f32 if a whole table fits the shared memory of a block; otherwise f16 if a whole table then fits; otherwise f32,
    /// in chunks. If only one block fits a multiprocessor, the block gets 1,024 threads, as many as registers allow, so
    /// f32 is still the choice.
    Auto,
    /// f32, in chunks if the table does not fit.
    F32,
    /// f16, in chunks if the table does not fit.
    F16,
}

/// A batch of queries, their probed lists, and the places for scores.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TableScan {
    /// \[query_count\]\[stride\], padded with zeros.
    pub queries: Ptr<f32>,
    /// Number of queries.
    pub query_count: u32,
    /// Number of lists to scan for each query.
    pub probes: u32,
    /// \[query_count\]\[probes\]: lists, or `NO_ROW` for no list.
    pub probed_lists: Ptr<u32>,
    /// \[query_count\]\[probes\]: the start of a pair's scores in the query's row.
    pub pair_offsets: Ptr<u32>,
    /// The start of each query's row of scores (one more entry may follow; it is not read).
    pub row_starts: Ptr<u64>,
    /// scores\[row_starts\[q\] + pair_offsets\[q\]\[p\] + i\]: the score of row i of the list; +∞ from the list's
    /// length to the next multiple of 8.
    pub scores: PtrMut<f32>,
    /// errors\[q\] ≥ |score − real value| for every row of every list. It holds as well if the real value is that of a
    /// reconstruction c + p rounded to f32, and if the real value itself is rounded to f32. +∞ if scores may overflow;
    /// then the scores are unspecified.
    pub errors: PtrMut<f32>,
}

/// The plan of a batch's scan, and the places of its scratch.
#[derive(Debug, Clone)]
pub(crate) struct TablePlan {
    shape: Shape,
    form: u32,
    key: TableKey,
    /// Number of sub-quantizers whose tables are in shared memory at the same time.
    chunk: u32,
    threads: u32,
    block_pairs: u32,
    segments: u32,
    /// Number of queries whose tables are in device memory at the same time.
    query_tile: u32,
    query_tables: Reserved<f32>,
    /// The scales of f16 entries; empty if table entries are f32.
    scales: Reserved<f32>,
}

impl TablePlan {
    /// Largest number of bytes of the tables of a batch's queries, unless the tables of one query take more.
    const QUERY_TABLES_BYTES: u64 = 256 << 20;
    /// Number of resident threads of a multiprocessor that registers allow.
    const RESIDENT_THREADS: u32 = 1024;

    /// Plans the scan of `probes` lists for each of `queries` queries, and reserves its scratch. `terms` is the kind
    /// that [`enqueue_terms`] computed.
    ///
    /// # Errors
    /// [`Error::LaunchLimit`] if shared memory has no room for the table of one sub-quantizer (at most 1 KiB).
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
        let (key, chunk) = choose_kernel(shape, precision, limits)?;
        let (entry, _) = key;
        let bytes = table_scan::shared_bytes(chunk << shape.bits, entry.bytes());

        // Blocks share a multiprocessor's memory: the fewer blocks fit, the more threads each block gets.
        let resident = (limits.shared_bytes / bytes).max(1);
        let threads = (Self::RESIDENT_THREADS / resident).next_power_of_two().clamp(128, 1024);

        // Two waves of blocks: more blocks would build more tables, and fewer would leave multiprocessors idle at the
        // end. With enough queries a block takes all pairs of one query.
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
        let tiles = u64::from(queries).div_ceil(by_tables.min(by_grid).max(1)).max(1);
        let query_tile = u64::from(queries).div_ceil(tiles) as u32;
        let tables = if form == FORM_RESIDUAL { 0 } else { query_tile as usize * shape.entries() as usize };
        let scales = if entry == EntryKey::F16 { queries as usize } else { 0 };
        Ok(TablePlan {
            shape: *shape,
            form,
            key,
            chunk,
            threads,
            block_pairs,
            segments,
            query_tile,
            query_tables: layout.array(tables),
            scales: layout.array(scales),
        })
    }

    /// Whether table entries are f16. Errors are then about a thousand times as large as with f32.
    pub fn is_half(&self) -> bool {
        self.key.0 == EntryKey::F16
    }
}

/// The queries that one launch scans.
#[derive(Clone, Copy)]
struct QueryTile {
    first: usize,
    count: usize,
}

impl QueryTile {
    /// The tile's part of an array with `each` values for each query.
    fn of<T>(self, array: Ptr<T>, each: u32) -> Ptr<T> {
        array.skip(self.first * each as usize).take(self.count * each as usize)
    }
}

/// The kernel for codes and tables of this shape, and the number of sub-quantizers whose tables are in shared memory at
/// the same time.
fn choose_kernel(shape: &Shape, precision: Precision, limits: &Limits) -> Result<(TableKey, u32)> {
    let fit = |entry: EntryKey| entries_in(limits.shared_bytes, entry.bytes()) >> shape.bits;
    let whole = |entry: EntryKey| fit(entry) >= shape.sub_quantizers;
    let entry = match precision {
        Precision::F16 => EntryKey::F16,
        Precision::Auto if !whole(EntryKey::F32) && whole(EntryKey::F16) => EntryKey::F16,
        Precision::Auto | Precision::F32 => EntryKey::F32,
    };
    let fit = fit(entry).min(shape.sub_quantizers);
    for codes in CodesKey::ALL {
        let chunk = match codes.bytes_at_once() {
            Some(at_once) => {
                let suits = shape.bits == 8 && shape.sub_quantizers.is_multiple_of(at_once) && fit >= at_once;
                suits.then(|| fit - fit % at_once)
            }
            None if fit == 0 && shape.sub_quantizers > 0 => None,
            // Chunks of 32 codes start at a whole word.
            None if fit < shape.sub_quantizers && fit >= 32 => Some(fit - fit % 32),
            None => Some(fit),
        };
        if let Some(chunk) = chunk {
            return Ok(((entry, codes), chunk));
        }
    }
    Err(Error::LaunchLimit {
        kernel: ScanTables::kernel((EntryKey::F32, CodesKey::Bytes16)).name(),
        what: "shared memory",
        asked: table_scan::shared_bytes(1 << shape.bits, entry.bytes()).into(),
        limit: limits.shared_bytes.into(),
    })
}

fn coded_lists(shape: &Shape, image: &Image) -> CodedLists {
    CodedLists {
        codes: image.codes,
        code_bytes: shape.code_bytes(),
        list_starts: image.list_starts,
        list_lengths: image.list_lengths,
        centroids: image.centroids,
        stride: shape.stride(),
        codebooks: image.codebooks,
        sub_dim: shape.sub_dim(),
        sub_quantizers: shape.sub_quantizers,
        bits: shape.bits,
    }
}

/// Computes `terms` of the index. Terms of rows are computed again after codes have changed, terms of lists only after
/// training.
///
/// # Safety
/// The pointers of `image` cover `shape`, and `to` has [`Shape::terms_len`] f32. All are aligned to 16 bytes. They stay
/// valid until the queue has finished.
pub(crate) unsafe fn enqueue_terms<Q: Queue>(
    queue: &Q,
    shape: &Shape,
    image: &Image,
    terms: Terms,
    to: PtrMut<f32>,
) -> Result<()> {
    if shape.terms_len(terms) == 0 {
        return Ok(());
    }
    if terms == Terms::Lists {
        let launch = SubTables {
            vectors: image.centroids,
            stride: shape.stride(),
            count: shape.lists,
            codebooks: image.codebooks,
            sub_dim: shape.sub_dim(),
            sub_quantizers: shape.sub_quantizers,
            bits: shape.bits,
            scale: 2.0,
            squares: 1.0,
            tables: to,
        };
        // SAFETY: as the caller promises.
        return unsafe { queue.launch(&SubTables::KERNEL, launch.config(), launch) };
    }
    let launch = RowTerms {
        coded: coded_lists(shape, image),
        // Several blocks share a list with more than 16 rows for each warp of a block.
        slices: shape.longest_list.div_ceil(16 * pq_tables::WARPS_PER_BLOCK).clamp(1, 64),
        terms: to,
    };
    // SAFETY: as the caller promises.
    unsafe { queue.launch(&RowTerms::KERNEL, launch.config(shape.lists), launch) }
}

/// Scans the lists of a batch, and writes scores and errors.
///
/// # Safety
/// The pointers of `what` and `image` cover their shapes, `terms` holds the values that [`enqueue_terms`] wrote for the
/// plan's kind (it is not read if there are none), and `scratch` has the arrays that the plan reserved, until the queue
/// has finished. Queries, centroids, codebooks, codes and terms are aligned to 16 bytes. The plan was made for this
/// number of queries and probes. Probed lists exist, lists start at multiples of 8 rows, components are finite, and the
/// scores of different pairs do not overlap.
pub(crate) unsafe fn enqueue<Q: Queue>(
    queue: &Q,
    what: &TableScan,
    image: &Image,
    terms: Ptr<f32>,
    plan: &TablePlan,
    scratch: Scratch,
) -> Result<()> {
    if what.query_count == 0 {
        return Ok(());
    }
    let shape = &plan.shape;
    let scales = plan.is_half().then(|| scratch.at(plan.scales));
    let n = pq_tables::roundings(shape.dim, shape.sub_quantizers) as f64 / f64::from(1u32 << 24);
    // If n·u reaches 1, there is no finite bound.
    let gamma = if n < 1.0 { n / (1.0 - n) * (1.0 + 1e-9) } else { f64::INFINITY };
    let Norms { centroid, codeword, sub_codeword } = shape.norms;
    let stride = shape.stride();
    let launch = TableBounds {
        queries: what.queries,
        stride,
        count: what.query_count,
        form: plan.form,
        sub_quantizers: shape.sub_quantizers,
        centroid_norm: centroid,
        codeword_norm: codeword,
        sub_codeword_norm: sub_codeword,
        gamma,
        greatest_factor: image.factors.map(|(_, greatest)| greatest),
        errors: what.errors,
        scales,
    };
    // SAFETY: as the caller promises.
    unsafe { queue.launch(&TableBounds::KERNEL, launch.config(), launch)? };
    if what.probes == 0 || shape.lists == 0 {
        return Ok(());
    }
    let (entry, _) = plan.key;
    let mut first = 0;
    while first < what.query_count {
        let count = plan.query_tile.min(what.query_count - first);
        let tile = QueryTile { first: first as usize, count: count as usize };
        let queries = tile.of(what.queries, stride);
        let tables = scratch.at(plan.query_tables).take(count as usize * shape.entries() as usize);
        if plan.form != FORM_RESIDUAL {
            let launch = SubTables {
                vectors: queries,
                stride,
                count,
                codebooks: image.codebooks,
                sub_dim: shape.sub_dim(),
                sub_quantizers: shape.sub_quantizers,
                bits: shape.bits,
                scale: if shape.inner_product { -1.0 } else { -2.0 },
                squares: 0.0,
                tables,
            };
            // SAFETY: as the caller promises; the plan has room for the tables of a tile, and a tile is scanned before
            // the next.
            unsafe { queue.launch(&SubTables::KERNEL, launch.config(), launch)? };
        }
        let terms = matches!(plan.form, FORM_ROW_TERMS | FORM_LIST_TERMS).then_some(terms);
        let launch = ScanTables {
            queries,
            coded: coded_lists(shape, image),
            probed_lists: tile.of(what.probed_lists, what.probes),
            pair_offsets: tile.of(what.pair_offsets, what.probes),
            probes: what.probes,
            row_starts: tile.of(what.row_starts, 1),
            form: plan.form,
            query_tables: tables.into(),
            terms,
            factors: image.factors.map(|(factors, _)| factors),
            scales: scales.map(|scales| tile.of(scales.into(), 1)),
            chunk_size: plan.chunk,
            block_pairs: plan.block_pairs,
            segments: plan.segments,
            scores: what.scores,
        };
        // SAFETY: as the caller promises; the bounds kernel wrote the scales.
        unsafe { queue.launch(ScanTables::kernel(plan.key), launch.config(entry, count, plan.threads), launch)? };
        first += count;
    }
    Ok(())
}
