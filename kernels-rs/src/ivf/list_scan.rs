//! List-major scan of an inverted file: approximate scores of all vectors of a list for all queries that probe it, by
//! half-precision matrix products on tensor cores.
//!
//! # Problem
//! After coarse quantisation there are nq · probes pairs of a query and a list, and each needs a score for every vector
//! of the list. A scan query by query (paper section 5.3) reads a list once for every query that probes it, and
//! computes every product separately. With thousands of queries many of them probe the same list, so a list is read
//! once and the products become matrix products.
//!
//! # Algorithm
//! ```text
//! item = (list, up to QUERIES pairs, up to item_rows rows)            // from pairs.rs
//! block: copy the item's queries (f16 copies, gathered) to shared memory
//!        for each 128 rows of the list: copy them in chunks of 64 components, or decode their codes to f16
//!            product on tensor cores, f32 sums
//!            score = value of the row + factor of the query * product -> the pair's place in the query's row of scores
//! ```
//!
//! score(x, y) = ‖y‖² − 2⟨x, y⟩ or −⟨x, y⟩ for the copies x̂, ŷ. The error bound of [`crate::product::bounds`] holds
//! for it, and [`crate::ivf::rerank`] turns the best scores into the exact result. Scores go to memory (4 bytes for
//! each, written and read once), where k-selection reads them. So any k, any number of probes and any imbalance of
//! lists is possible, and k-selection runs at the memory limit: 10,000 queries × 32 probes × 244 vectors are 0.3 GB,
//! 0.15 ms on an H200.
//!
//! Vectors that a filter excludes, and padding between lists, get the score +∞.
//!
//! Vectors of bytes are multiplied as they are, by exact products of bytes ([`crate::ivf::encoding::bytes`]); their
//! cosine has the factor 1/‖y‖ too.
//!
//! Codes of bytes are multiplied as they are, too, with queries as two planes of bytes
//! ([`crate::ivf::code_queries`]). A query is then two rows of the block, eight rows apart, so that one lane has
//! both products of a query and a row. The scores of a query and a list have one more summand, the term of the pair or,
//! if codes are of vectors, of the query. Codes
//! of fewer bits become bytes on their way to shared memory, and each row's products are multiplied by its step
//! ([`crate::ivf::encoding::bits`]). With few queries for each list their rows are multiplied otherwise
//! ([`crate::ivf::strip_scan`]).
//!
//! Codes of normalised vectors do not decode to vectors of length 1. For their cosine the value of a row is the factor
//! 1/‖y‖ instead of a summand ([`ScanLists::row_factors`]), so score(x, y) = −⟨x, y⟩/‖y‖. It costs a multiplication and
//! a comparison for each score, and no memory.
//!
//! # Appending
//! With hundreds of probes nearly all scores are useless, because the nearest lists of a query hold its best vectors.
//! So the first few probes are scored as above, and k-selection gives each query a threshold, its k'-th smallest score.
//! The lists of the other probes are scanned with [`Tile::Append`]: scores up to the threshold are appended to the
//! query's list of candidates, and the others are not written. The k' smallest of all scores are the same as without
//! appending.
//!
//! # Dense use
//! Without items and lists, every query is scored against all rows of one list. The coarse quantiser uses this.
//!
//! # How it maps to the machine
//! 1. An item is one pass of [`crate::product::mainloop`], with the item's queries as the rows of the block. Queries
//!    stay in shared memory if they fit ([`Residence`]); otherwise their chunks pass through the ring with those of the
//!    list.
//! 2. With `mma.sync`, 8 warps: for 64 queries as 2 × 4, each 32 queries × 32 rows; for 16 queries in one row, each 16
//!    × 16.
//! 3. With `wgmma`, queries are operand A, 64 in an instruction. For 64 queries two warpgroups have 64 rows of the list
//!    each (`m64n64k16`); for 128 queries they have 64 queries each and all 128 rows (`m64n128k16`). Tiles of 16
//!    queries have no `wgmma` kernel: a tile of 128 rows × 128 components is 32 KiB to read, 6.8 ns of an H200's
//!    memory, and 1.3 ns of product at 400 TFLOP/s.
//! 4. Codes are decoded into the stage ([`crate::pq::codes::Operands`]), with codebooks in shared memory if they fit.
//!    Then two blocks share a multiprocessor, and one decodes while the other multiplies. Codes are loaded a chunk
//!    ahead, one for each four or two components, unless sub-vectors have an odd number of components.
//! 5. A lane has two neighbouring rows of a query: stores have 8 bytes, and four lanes fill a sector.
//!
//! # Cost
//! Bytes: rows · d · 2 (or codes) once for 64 queries of a list, and 4 for each score. Operations: 2 · d for each
//! score, and padding to 64 queries and 128 rows. With 20 queries and 244 rows in a list a third of the product is
//! used, but the memory traffic hides the rest. It does not when scores are appended, so there `mma.sync` pads rows to
//! 32 only: a warp without rows leaves the tensor cores to the others.
//!
//! These counts give, for 1,000,000 × 128, 4096 lists, 10,000 queries on an H200 (4.8 TB/s, L2 about 5.5 TB/s;
//! `mma.sync` 320 and `wgmma` 530 TFLOP/s, as [`crate::flat::filter`] measured; not measured for this kernel):
//!
//! | probes | products, padding included | with `mma.sync` | with `wgmma` | rows, from L2 | scores |
//! |---|---|---|---|---|---|
//! | 32, all stored | 34 GFLOP | 0.11 ms | 0.06 ms | 0.5 GB, 0.10 ms | 0.31 GB, 0.07 ms |
//! | 128, most of them appended | 90 GFLOP | 0.28 ms | 0.17 ms | 0.8 GB, 0.14 ms | |
//! | 512, most of them appended | 350 GFLOP | 1.1 ms | 0.66 ms | 2.6 GB, 0.47 ms | |
//!
//! So with few probes the instruction hardly matters, and with hundreds the product is the floor.
//!
//! # What lost
//! - `wgmma`, warpgroups that skip a tile without rows or queries for them: ptxas serialises products after such a
//!   branch (C7518).
//! - Three blocks a multiprocessor for 64 queries: 8 bytes spilled.
//! - Sub-vectors of six components (64 bytes of 384), decoded component by component, without codes ahead: 2.69 ms of a
//!   search of 4.5 (10,000 queries, 16 probes, H200, Nsight Compute, 2026-11-30), where neither memory (2 % of its
//!   rate) nor the multiprocessors (35 %) were the limit. With pairs, and codes loaded a chunk ahead, the search takes
//!   3.06 ms and not 4.66 (another machine of the kind, same day); .6 to .9 ms less were predicted.
//! - Decoding from f32 codebooks and centroids in cache, without the table: 1.35 ms instead of the 0.36 ms of the flat
//!   scan (10,000 queries, 32 probes, 32 bytes, H200).

use cuda_std::global::{F32x2, U32x4};
#[cfg(not(target_arch = "nvptx64"))]
use cuda_std::launch::{Kernel, LaunchConfig};
use cuda_std::math::mul_add_f32;
use cuda_std::shared::SharedPtr;
use cuda_std::{Ptr, PtrMut, atomic, device_inline, global, kernel, shared, thread, unroll};

use crate::ivf::encoding::{OperandParts, StoredRows};
use crate::ivf::pairs::padded;
use crate::product::instruction::{Instruction, Scores, Sum, TileProduct};
use crate::product::mainloop::{Epilogue, Operands, Pass};
pub use crate::product::tile::{CHUNK, THREADS, TILE_ROWS};
use crate::product::tile::{CHUNK_ALIGNMENT, CHUNK_TILE_BYTES, LEAST_SHARED_BYTES};
pub(crate) use crate::product::tile::{CHUNK_BYTES, ROWS_A_THREAD, copy_part, part_offset as chunk_offset};

/// Number of queries of [`Tile::Append`] if the operands are f16 copies, as in the filter of exact search.
pub(crate) const APPEND_QUERIES: u32 = 128;
/// Largest size of the codebooks' halves, in bytes, for which they fit in shared memory with the rest.
const TABLE_BYTES: u32 = 64 << 10;
/// Largest number of chunks of the queries for which they fit in shared memory with the codebooks' halves.
const TABLE_CHUNKS: u32 = 2;

pub(crate) const STAGES: u32 = 3;
/// Number of stages for rows with steps.
pub(crate) const UNPACKED_STAGES: u32 = 2;
/// Largest number of pairs of neighbouring rows of a query that a lane handles together.
const GROUP: usize = 4;
/// Shared memory of a multiprocessor in bytes, on the devices with most. On other devices some blocks of a launch start
/// when others end.
#[cfg(not(target_arch = "nvptx64"))]
const MULTIPROCESSOR_BYTES: u32 = 228 << 10;
/// Bytes of shared memory that the driver reserves in each block.
#[cfg(not(target_arch = "nvptx64"))]
const DRIVER_BYTES: u32 = 1024;

/// Largest number of chunks of `rows` rows of the block that stay in shared memory. Every device has room for them.
const fn resident_chunks(rows: u32) -> u32 {
    if rows > 64 { 3 } else { 5 }
}

/// Number of rows of the block for `queries` queries, which are one row or two `planes` each.
const fn block_rows(queries: u32, planes: bool) -> u32 {
    if planes { 2 * queries } else { queries }
}

/// Bytes of a [`Header`]: 16 for each query (place of its scores, factor, number), the values of two tiles of rows, and
/// with two `planes` 4 for the term of each query, and with `steps` those of two tiles.
pub(crate) const fn header_bytes(queries: u32, planes: bool, steps: bool) -> u32 {
    let values = 2 * TILE_ROWS * 4;
    if planes {
        (queries * 20 + if steps { 2 * values } else { values }).next_multiple_of(CHUNK_ALIGNMENT)
    } else {
        (queries * 16 + values).next_multiple_of(128)
    }
}

/// Number of stages of the ring of [`resident_shared_bytes`] and [`streamed_shared_bytes`]. Rows with steps are
/// unpacked into a stage while the product of the other one runs, so there is nothing to wait for in a third.
const fn stages(steps: bool) -> u32 {
    if steps { UNPACKED_STAGES } else { STAGES }
}

/// Dynamic shared memory of a block for tiles of `queries` queries, in bytes, with operands of `chunks` chunks that are
/// resident.
const fn resident_shared_bytes(queries: u32, planes: bool, steps: bool, chunks: u32) -> u32 {
    let rows_bytes = block_rows(queries, planes) * CHUNK_BYTES;
    header_bytes(queries, planes, steps) + chunks * rows_bytes + stages(steps) * CHUNK_TILE_BYTES
}

/// As [`resident_shared_bytes`], if the queries are not resident.
const fn streamed_shared_bytes(queries: u32, planes: bool, steps: bool) -> u32 {
    let rows_bytes = block_rows(queries, planes) * CHUNK_BYTES;
    header_bytes(queries, planes, steps) + stages(steps) * (rows_bytes + CHUNK_TILE_BYTES)
}

/// As [`resident_shared_bytes`], for codes whose halves, `table` bytes, are resident too.
const fn table_shared_bytes(queries: u32, chunks: u32, table: u32) -> u32 {
    let header = header_bytes(queries, false, false);
    header + chunks * queries * CHUNK_BYTES + CHUNK_TILE_BYTES + table.next_multiple_of(16)
}

// `wgmma` reads chunks that start at multiples of this.
const _: () = assert!(header_bytes(64, false, false).is_multiple_of(CHUNK_ALIGNMENT));
const _: () = assert!(header_bytes(APPEND_QUERIES, false, false).is_multiple_of(CHUNK_ALIGNMENT));
const _: () = {
    let mut queries = 16;
    while queries <= APPEND_QUERIES {
        assert!(resident_shared_bytes(queries, false, false, resident_chunks(queries)) <= LEAST_SHARED_BYTES);
        assert!(streamed_shared_bytes(queries, false, false) <= LEAST_SHARED_BYTES);
        let planes = queries / 2;
        assert!(resident_shared_bytes(planes, true, false, resident_chunks(queries)) <= LEAST_SHARED_BYTES);
        assert!(streamed_shared_bytes(planes, true, false) <= LEAST_SHARED_BYTES);
        assert!(resident_shared_bytes(planes, true, true, resident_chunks(queries)) <= LEAST_SHARED_BYTES);
        assert!(streamed_shared_bytes(planes, true, true) <= LEAST_SHARED_BYTES);
        queries *= 2;
    }
    assert!(table_shared_bytes(64, TABLE_CHUNKS, TABLE_BYTES) <= LEAST_SHARED_BYTES);
};

/// Largest number of queries of an item, and the destination of scores: a part of [`ScanKey`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tile {
    /// 64 queries, all of whose scores are stored.
    Of64,
    /// 16 queries, all of whose scores are stored.
    Of16,
    /// 128 queries for f16 copies, 64 if operands are decoded or queries are two planes. Scores up to the query's
    /// threshold are appended to its list.
    Append,
}

/// The data that stays in shared memory during an item: a part of [`ScanKey`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Residence {
    /// The item's queries, and for codes the codebooks' halves.
    Resident,
    /// None: chunks of the queries pass through the ring with those of the rows. For any number of components.
    Streamed,
}

/// The key of a scan kernel among the kernels of an encoding.
pub type ScanKey = (Instruction, Tile, Residence);

/// The scan of the rows of an encoding. Encodings whose rows are loaded in the same way share one.
#[cfg(not(target_arch = "nvptx64"))]
#[derive(Debug, Clone, Copy)]
pub struct RowScan {
    /// The kernel of each key. Tiles of 16 queries have kernels of `mma.sync` only.
    pub kernel: fn(ScanKey) -> &'static Kernel<ScanLists>,
    /// Largest number of queries of an item with [`Tile::Append`].
    pub append_queries: u32,
    /// Whether the codebooks' halves stay in shared memory with the queries ([`OperandParts::halves`]).
    pub table: bool,
    /// Whether queries are two planes of bytes, and pairs have terms ([`ScanLists::terms`]).
    pub planes: bool,
    /// Whether rows have steps; only with `planes`.
    pub steps: bool,
    /// The scan of tiles of 16 queries by strips, if the encoding has one: where strips have room,
    /// [`Residence::Resident`] means them.
    pub strips: Option<StripScan>,
}

/// A scan with rows as operands in registers ([`crate::ivf::strip_scan`]).
#[cfg(not(target_arch = "nvptx64"))]
#[derive(Debug, Clone, Copy)]
pub struct StripScan {
    /// Number of threads of a block.
    pub threads: u32,
    /// As [`Self::room`].
    pub(crate) shared_bytes: fn(u32, u32) -> Option<u32>,
}

#[cfg(not(target_arch = "nvptx64"))]
impl StripScan {
    /// Bytes of shared memory of a block, for codes of `code_bytes` bytes and planes of queries of `plane_bytes` bytes;
    /// `None` if no device has room.
    pub fn room(&self, code_bytes: u32, plane_bytes: u32) -> Option<u32> {
        (self.shared_bytes)(code_bytes, plane_bytes)
    }
}

#[cfg(not(target_arch = "nvptx64"))]
impl RowScan {
    /// Largest number of queries of an item.
    pub const fn queries(&self, tile: Tile) -> u32 {
        match tile {
            Tile::Append => self.append_queries,
            Tile::Of64 => 64,
            Tile::Of16 => 16,
        }
    }

    /// The kernel for a launch, and its grid: the number of blocks that `multiprocessors` run at once, or `items` if
    /// that is less. Each block processes one item after the other. Queries are resident if every device has shared
    /// memory for them.
    pub fn kernel_and_config(
        &self,
        launch: &ScanLists,
        (instruction, tile): (Instruction, Tile),
        items: u64,
        multiprocessors: u32,
    ) -> (&'static Kernel<ScanLists>, LaunchConfig) {
        let (queries, chunks) = (self.queries(tile), launch.stride.div_ceil(CHUNK));
        let table = if self.table { launch.table_bytes() } else { 0 };
        let (planes, steps) = (self.planes, self.steps);
        let strips = self.strips.filter(|_| tile == Tile::Of16);
        let of_strips = strips.and_then(|strips| strips.room(launch.stored.code_bytes, 2 * launch.stride));
        let (residence, shared_bytes) = if let Some(shared_bytes) = of_strips {
            (Residence::Resident, shared_bytes)
        } else if self.table && chunks <= TABLE_CHUNKS && table <= TABLE_BYTES {
            (Residence::Resident, table_shared_bytes(queries, chunks, table))
        } else if !self.table && strips.is_none() && chunks <= resident_chunks(block_rows(queries, planes)) {
            (Residence::Resident, resident_shared_bytes(queries, planes, steps, chunks))
        } else {
            (Residence::Streamed, streamed_shared_bytes(queries, planes, steps))
        };
        let kernel = (self.kernel)((instruction, tile, residence));
        let by_memory = MULTIPROCESSOR_BYTES / (shared_bytes + DRIVER_BYTES);
        let each = by_memory.clamp(1, kernel.min_blocks().unwrap_or(1));
        let most = multiprocessors as u64 * each as u64;
        let threads = strips.filter(|_| of_strips.is_some()).map_or(THREADS, |strips| strips.threads);
        (kernel, LaunchConfig::linear(items.clamp(1, most), threads).with_shared(shared_bytes))
    }
}

/// Multiplies the queries of each item with the rows of its list, and writes the score of each pair of a query and a
/// row.
///
/// Without [`Tile::Append`], the score of row i of the list, for i below the list's padded length, is written i places
/// after the start of the pair's scores, or the least score of rows that share one in its place
/// ([`crate::ivf::pairs::score_of`]). With it, scores up to the query's threshold are appended to the query's list of
/// candidates.
///
/// The default has empty or absent pointers and zeros. Dense use (module documentation) needs these values in all
/// fields that it does not set: no items, no lists, no filter, no appending, no codes. Scans of codes need items.
///
/// # Safety
/// All pointers that are present cover the shapes of their fields. `base` or `codes`, and `values`, are readable for
/// 128 rows from any multiple of 128 in a list; every code has a codeword.
#[kernel(max_threads = 256, min_blocks = 2, elsewhere = scan_kernels)]
#[derive(Default)]
pub struct ScanLists {
    /// f16 copies of the queries ([`crate::ivf::queries`]), or the queries as bytes, `stride` words each. Queries as
    /// two planes ([`crate::ivf::code_queries`]): `stride` words for each plane.
    pub queries: Ptr<u16>,
    /// The factor of each query. Dense use only; otherwise `grouped` has the factors.
    pub factors: Ptr<f32>,
    /// Number of queries. Dense use only.
    pub query_count: u32,
    /// Distance from one row to the next in words of 16 bits, for queries and `base`: a multiple of [`CHUNK`]; for
    /// bytes of 8, zero padded.
    pub stride: u32,
    /// (list, first pair in `grouped`, number of pairs, first row) of each item ([`crate::ivf::pairs`]); empty if
    /// `item_count` is absent.
    pub items: Ptr<U32x4>,
    /// The number of items: one word. Absent: dense use.
    pub item_count: Option<Ptr<u32>>,
    /// Largest number of rows of an item: a multiple of [`TILE_ROWS`].
    pub item_rows: u32,
    /// The record of each pair ([`crate::ivf::pairs::ScatterPairs::grouped`]), with thresholds for [`Tile::Append`];
    /// empty if `item_count` is absent.
    pub grouped: Ptr<U32x4>,
    /// Queries as two planes only: the term of each pair, laid out as `grouped`; or of each query.
    pub terms: Ptr<f32>,
    /// 1 if `terms` has one for each query: 0 for each pair.
    pub terms_of_queries: u32,
    /// Distance from one query's row of scores to the next. Dense use only.
    pub row_stride: u32,
    /// The first row of each list in the storage, a multiple of 8; empty if `item_count` is absent.
    pub list_starts: Ptr<u32>,
    /// The number of vectors of each list; empty if `item_count` is absent.
    pub lengths: Ptr<u32>,
    /// Number of rows of the storage, all of which every query is compared with. Dense use only.
    pub row_count: u32,
    /// The term that is added to the product of each row, or its factor: +∞ for padding.
    pub values: Ptr<f32>,
    /// Codes and bytes only: 1 if `values` are factors of the products. 0: they are added.
    pub row_factors: u32,
    /// The rank of each row's id; empty if `filter` is absent.
    pub ranks: Ptr<u32>,
    /// A bit for each rank: rows whose bit is 0 get the score +∞. Absent: no filter.
    pub filter: Option<Ptr<u32>>,
    /// Strips only: 1 if rows share scores ([`crate::ivf::pairs::SHARING`]), else 0.
    pub shared_scores: u32,
    /// The scores: the rows of all queries, `query_count` rows of `row_stride` in dense use; `capacity` for each query
    /// with [`Tile::Append`].
    pub scores: PtrMut<f32>,
    /// [`Tile::Append`] only: the place of each of `scores` in the query's row.
    pub places: PtrMut<u32>,
    /// [`Tile::Append`] only: the number of candidates of each query, including those that do not fit in the list.
    pub counts: PtrMut<u32>,
    /// [`Tile::Append`] only: capacity of a query's list.
    pub capacity: u32,
    /// f16 copies, vectors of bytes or codes of bytes: the operands of the storage's rows, `stride` words each.
    pub base: Ptr<u16>,
    /// Decoded codes only: the rows of the storage. The scan reads `parts` instead of codebooks and centroids.
    #[group]
    pub stored: StoredRows,
    /// Decoded codes only: the parts of the operands.
    #[group]
    pub parts: OperandParts,
}

impl ScanLists {
    /// Number of items of dense use with tiles of `tile` queries.
    #[device_inline]
    pub fn dense_items(&self, tile: u32) -> u32 {
        self.query_count.div_ceil(tile) * self.row_count.div_ceil(self.item_rows.max(1))
    }

    /// Size of the codebooks' halves in bytes.
    #[device_inline]
    pub(crate) fn table_bytes(&self) -> u32 {
        (self.stored.dim << self.stored.bits) * 2
    }

    /// Number of items of the launch.
    ///
    /// # Safety
    /// The word with the number of items is written, if it is present.
    #[device_inline]
    unsafe fn count(&self, dense: bool, tile: u32) -> u32 {
        match self.item_count {
            // SAFETY: one word.
            Some(item_count) if !dense => unsafe { global::load_nc(*item_count) },
            _ if dense => self.dense_items(tile),
            // A scan of codes has no dense use.
            _ => 0,
        }
    }

    /// List, first place among the grouped pairs, number of pairs, and first row of an item.
    ///
    /// # Safety
    /// The item is below [`Self::count`].
    #[device_inline]
    pub(crate) unsafe fn item(&self, dense: bool, item: u32, tile: u32) -> [u32; 4] {
        if dense {
            let cuts = self.row_count.div_ceil(self.item_rows.max(1)).max(1);
            let first = item / cuts * tile;
            [0, first, (self.query_count - first).min(tile), item % cuts * self.item_rows]
        } else {
            // SAFETY: item < count.
            unsafe { global::load_nc(self.items.wrapping_add(item as usize)).0 }
        }
    }

    /// The value of a row of the storage: +∞ if the row has the score +∞.
    #[device_inline]
    pub(crate) unsafe fn value(&self, row: u32) -> f32 {
        // SAFETY: the row exists; a rank has a bit in the filter, and padding is not looked up.
        unsafe {
            let value = global::load_nc(self.values.wrapping_add(row as usize));
            let Some(filter) = self.filter else { return value };
            let rank = global::load_nc(self.ranks.wrapping_add(row as usize));
            let word =
                if rank == crate::NO_ROW { 0 } else { global::load_nc(filter.wrapping_add((rank / 32) as usize)) };
            if word >> (rank % 32) & 1 == 1 { value } else { f32::INFINITY }
        }
    }
}

/// The source of the operands of a list's rows.
pub(crate) trait Rows: Copy {
    /// Whether a launch may be without items (dense use).
    const DENSE: bool;
    /// Whether the values of rows may be factors ([`ScanLists::row_factors`]).
    const FACTORS: bool;
    /// Whether rows need not fill their last chunk, which then ends with zeros.
    const PARTIAL: bool;
    /// Whether a query is two planes of bytes: rows 16 · i + j and 16 · i + j + 8 of the block, for j < 8, are the high
    /// and the low plane of query 8 · i + j.
    const PLANES: bool = false;
    /// Whether the products of each row are multiplied by its [`step`](Self::step). Only with planes.
    const STEPS: bool = false;

    /// The rows of a launch.
    fn of(launch: &ScanLists) -> Self;

    /// The step of a row of the storage.
    ///
    /// # Safety
    /// The row exists.
    #[device_inline]
    unsafe fn step(&self, row: u32) -> f32 {
        let _ = row;
        1.0
    }

    /// Number of stages of the ring; with one, a stage is filled just before its use.
    const STAGES: u32;

    /// Work before the first item. All threads of the block arrive; a barrier follows.
    ///
    /// # Safety
    /// `to` has the room that the launch gave for it.
    unsafe fn begin(&mut self, to: SharedPtr<u8>, thread: u32);

    /// The data that a thread loads for the next stage during the products of the current one.
    type Ahead: Copy;

    /// Loads this data for components 64·`chunk` .. of rows `first` .. `first` + 128 of the storage.
    ///
    /// # Safety
    /// The rows exist.
    unsafe fn ahead(&self, first: u32, chunk: u32, thread: u32) -> Self::Ahead;

    /// Writes components 64·`chunk` .. of rows `first` .. `first` + 128 of the storage, which belong to `list`, to a
    /// stage. All threads of the block arrive. The stage is complete after a commit, the wait for it, and a barrier.
    ///
    /// # Safety
    /// The rows exist, and the stage has room for 16 KiB; `ahead` was fetched for them.
    unsafe fn fill(&self, to: SharedPtr<u8>, list: u32, first: u32, chunk: u32, thread: u32, ahead: Self::Ahead);
}

/// An item: queries, and rows of a list that all of them probe.
#[derive(Clone, Copy)]
pub(crate) struct Item {
    pub list: u32,
    /// The first row of the list in the storage.
    pub start: u32,
    /// Place of the first query among the grouped pairs, or among all queries in dense use.
    pub first_place: u32,
    /// Number of queries.
    pub pairs: u32,
    /// The end of the item's rows in the list.
    pub end: u32,
}

/// The data of an item's queries and rows in shared memory.
#[derive(Clone, Copy)]
pub(crate) struct Header {
    /// The place of each query's scores; with [`Tile::Append`] the list's first place in the query's row (low word) and
    /// the query's threshold (high word).
    pub targets: SharedPtr<u64>,
    pub factors: SharedPtr<f32>,
    /// The number of each query.
    numbers: SharedPtr<u32>,
    /// The values of two tiles of rows.
    values: SharedPtr<f32>,
    /// The term of each query, and the steps of two tiles of rows, if queries are two planes.
    pub terms: SharedPtr<f32>,
    steps: SharedPtr<f32>,
    /// The end of the header.
    pub end: SharedPtr<u8>,
}

impl Header {
    /// # Safety
    /// The block has [`header_bytes`] of dynamic shared memory.
    #[device_inline]
    pub unsafe fn new(queries: u32, planes: bool, steps: bool) -> Header {
        let at = shared::dynamic::<u8>();
        // SAFETY: the lengths of the parts add up to `header_bytes`.
        unsafe {
            let factors = at.add(queries * 8).cast::<f32>();
            let (numbers, values) = (factors.add(queries).cast(), at.add(queries * 16).cast::<f32>());
            let (terms, end) = (values.add(2 * TILE_ROWS), at.add(header_bytes(queries, planes, steps)));
            Header { targets: at.cast(), factors, numbers, values, terms, steps: terms.add(queries), end }
        }
    }

    /// Stores the data of the item's queries. Places from the number of pairs on repeat the first query; their scores
    /// are not stored.
    ///
    /// # Safety
    /// As [`ScanLists`]; the threads below `queries` arrive, and no thread reads the data of the previous item any
    /// more.
    #[device_inline]
    pub unsafe fn begin(&self, work: &ScanLists, dense: bool, planes: bool, item: Item, queries: u32, thread: u32) {
        if thread < queries {
            let place = item.first_place + if thread < item.pairs { thread } else { 0 };
            // SAFETY: as the caller promises; the place belongs to the item.
            unsafe {
                let [query, low, high, factor] = if dense {
                    let target = place as u64 * work.row_stride as u64;
                    let factor = global::load_nc(work.factors.wrapping_add(place as usize));
                    [place, target as u32, (target >> 32) as u32, factor.to_bits()]
                } else {
                    global::load_nc(work.grouped.wrapping_add(place as usize)).0
                };
                self.targets.add(thread).store(low as u64 | (high as u64) << 32);
                self.factors.add(thread).store(f32::from_bits(factor));
                self.numbers.add(thread).store(query);
                if planes {
                    let of = if work.terms_of_queries != 0 { query } else { place };
                    self.terms.add(thread).store(global::load_nc(work.terms.wrapping_add(of as usize)));
                }
            }
        }
    }
}

/// Loads the queries of an item, by their numbers, and tiles of its rows.
struct ItemTiles<'a, R: Rows, const QUERIES: u32> {
    work: &'a ScanLists,
    rows: R,
    numbers: SharedPtr<u32>,
    item: Item,
    chunks: u32,
    thread: u32,
    /// The first row of the current tile, in the list.
    row: u32,
    /// The data that was loaded for the next call.
    ahead: R::Ahead,
}

impl<R: Rows, const QUERIES: u32> Operands for ItemTiles<'_, R, QUERIES> {
    #[device_inline]
    unsafe fn load_rows(&mut self, to: SharedPtr<u8>, chunk: u32) {
        let (row, part) = (self.thread / 8, self.thread % 8);
        let mut row = row;
        while row < block_rows(QUERIES, R::PLANES) {
            // SAFETY: the numbers of the item's queries were written before a barrier; chunks exist.
            unsafe {
                let at = if R::PLANES {
                    let query = self.numbers.add(query_of(row)).load() as usize;
                    2 * query + (row as usize / 8) % 2
                } else {
                    self.numbers.add(row).load() as usize
                };
                let word = chunk * CHUNK + part * 8;
                let from = self.work.queries.wrapping_add(at * self.work.stride as usize + word as usize).cast();
                let to = to.add(chunk_offset(row, part));
                copy_part(to, from, R::PARTIAL, word < self.work.stride);
            }
            row += THREADS / 8;
        }
    }

    #[device_inline]
    unsafe fn load_tile(&mut self, to: SharedPtr<u8>, _: u32, chunk: u32) {
        let Item { list, start, end, .. } = self.item;
        // SAFETY: the storage has a whole tile of rows from the start of every list's last tile.
        unsafe {
            self.rows.fill(to, list, start + self.row, chunk, self.thread, self.ahead);
            let mut next = chunk + 1;
            if next == self.chunks {
                next = 0;
                self.row += TILE_ROWS;
            }
            // After the last tile, its rows are loaded again, because they exist.
            let row = if self.row < end { self.row } else { self.row - TILE_ROWS };
            self.ahead = self.rows.ahead(start + row, next, self.thread);
        }
    }
}

/// The query of which row `row` of the block is a plane ([`Rows::PLANES`]).
#[device_inline]
const fn query_of(row: u32) -> u32 {
    row / 16 * 8 + row % 8
}

/// Turns products into scores, and stores all of them or appends those up to the thresholds.
struct ItemScores<'a, R, const RESIDENT: bool, const APPEND: bool> {
    work: &'a ScanLists,
    header: Header,
    item: Item,
    thread: u32,
    /// The first row of the current tile, in the list.
    row: u32,
    /// The value and the step of the thread's row of the next tile. They are loaded a tile ahead, so no thread waits
    /// for memory.
    next: [f32; 2],
    /// Whether values are factors; a constant in the kernels of f16 copies.
    multiplies: bool,
    /// The source of the operands, which has the steps of rows.
    source: R,
}

impl<R: Rows, const RESIDENT: bool, const APPEND: bool> ItemScores<'_, R, RESIDENT, APPEND> {
    /// The value and the step of the thread's row of the tile that starts at `row`.
    ///
    /// # Safety
    /// As [`ScanLists`].
    #[device_inline]
    unsafe fn of_row(&self, row: u32) -> [f32; 2] {
        if self.thread < TILE_ROWS && row < self.item.end {
            let row = self.item.start + row + self.thread;
            // SAFETY: the storage has a whole tile of rows from the start of every list's last tile.
            unsafe { [self.work.value(row), if R::STEPS { self.source.step(row) } else { 1.0 }] }
        } else {
            [0.0; 2]
        }
    }

    /// The place of the current tile in the values and steps of two tiles.
    #[device_inline]
    fn of_tile(&self) -> u32 {
        self.row / TILE_ROWS % 2 * TILE_ROWS
    }

    /// Stores the scores of a query with `count` pairs of neighbouring rows, from row `first` of the list on, inside
    /// its padded length.
    ///
    /// # Safety
    /// As [`ScanLists`]; `place` is the place of one of the item's queries.
    #[device_inline]
    unsafe fn store(&self, place: u32, first: u32, count: usize, score: impl Fn(usize, usize) -> f32) {
        // SAFETY: as the caller promises; scores are written inside the pair's padded part.
        unsafe {
            let target = self.header.targets.add(place).load();
            let out = self.work.scores.wrapping_add((target + first as u64) as usize);
            unroll::<GROUP>(|j| {
                if j < count && first + (8 * j as u32) < padded(self.item.end) {
                    let pair = [score(j, 0), score(j, 1)];
                    global::store(out.wrapping_add(8 * j).cast::<F32x2>(), F32x2(pair));
                }
            });
        }
    }

    /// Appends the scores of a query with `count` pairs of neighbouring rows that are at most its threshold, or NaN.
    ///
    /// # Safety
    /// As [`Self::store`].
    #[device_inline]
    unsafe fn append(&self, place: u32, first: u32, count: usize, score: impl Fn(usize, usize) -> f32) {
        let ScanLists { counts, capacity, scores: out, places, .. } = *self.work;
        // SAFETY: as the caller promises; places are compared with the capacity.
        unsafe {
            let target = self.header.targets.add(place).load();
            let threshold = f32::from_bits((target >> 32) as u32);
            let mut scores = [[0.0f32; 2]; GROUP];
            let mut hit = false;
            #[expect(clippy::neg_cmp_op_on_partial_ord, reason = "NaN on either side must keep the row")]
            unroll::<GROUP>(|j| {
                if j < count {
                    unroll::<2>(|e| {
                        scores[j][e] = score(j, e);
                        hit |= !(scores[j][e] > threshold);
                    });
                }
            });
            if hit {
                let query = self.header.numbers.add(place).load() as usize;
                #[expect(clippy::neg_cmp_op_on_partial_ord, reason = "as above")]
                let keeps =
                    |j: usize, e: usize| !(scores[j][e] > threshold) & (first + ((8 * j + e) as u32) < self.item.end);
                // One atomic for all rows of the lane, because each is a round trip to L2.
                let mut kept = 0;
                unroll::<{ 2 * GROUP }>(|je| {
                    if je < 2 * count {
                        kept += keeps(je / 2, je % 2) as u32;
                    }
                });
                let mut to = if kept > 0 { atomic::add_u32(counts.wrapping_add(query), kept) } else { 0 };
                unroll::<{ 2 * GROUP }>(|je| {
                    let (j, e) = (je / 2, je % 2);
                    if je < 2 * count && keeps(j, e) {
                        if to < capacity {
                            let at = query * capacity as usize + to as usize;
                            global::store(out.wrapping_add(at), scores[j][e]);
                            let row = target as u32 + first + (8 * j + e) as u32;
                            global::store(places.wrapping_add(at), row);
                        }
                        to += 1;
                    }
                });
            }
        }
    }
}

impl<
    R: Rows,
    P: TileProduct<ROWS, COLUMNS>,
    const ROWS: usize,
    const COLUMNS: usize,
    const RESIDENT: bool,
    const APPEND: bool,
> Epilogue<P, ROWS, COLUMNS> for ItemScores<'_, R, RESIDENT, APPEND>
{
    #[device_inline]
    unsafe fn begin(&mut self, _: SharedPtr<u8>) {
        // SAFETY: the item's first tile.
        self.next = unsafe { self.of_row(self.row) };
    }

    #[device_inline]
    unsafe fn before_tile(&mut self, _: u32) {
        // SAFETY: the values and steps of two tiles have room; those of the tile before last are not read any more.
        unsafe {
            if self.thread < TILE_ROWS {
                let at = self.of_tile() + self.thread;
                self.header.values.add(at).store(self.next[0]);
                if R::STEPS {
                    self.header.steps.add(at).store(self.next[1]);
                }
            }
            self.next = self.of_row(self.row + TILE_ROWS);
        }
    }

    /// A warp without rows leaves the tensor cores to other warps. The other kernels do not skip: the branch costs
    /// `mma.sync` registers, and ptxas serialises `wgmma` products after it (C7518).
    #[device_inline]
    fn wanted(&self, part: &P) -> bool {
        match P::INSTRUCTION {
            Instruction::MmaSync if APPEND && RESIDENT => self.row + part.first_column() < self.item.end,
            _ => true,
        }
    }

    #[device_inline]
    unsafe fn tile(&mut self, part: &P, _: u32, sums: &Scores<ROWS, COLUMNS, P::Sum>) {
        let column = part.column();
        // SAFETY: the item's queries and the values of the tile were written before a barrier; places are below the
        // item's pairs.
        unsafe {
            let values_at = self.header.values.add(self.of_tile());
            let steps_at = self.header.steps.add(self.of_tile());
            unroll::<{ 16 / GROUP }>(|group| {
                if group * GROUP < COLUMNS {
                    let count = if COLUMNS < GROUP { COLUMNS } else { GROUP };
                    let column = column + (8 * GROUP * group) as u32;
                    let (mut values, mut steps) = ([[0.0f32; 2]; GROUP], [[1.0f32; 2]; GROUP]);
                    unroll::<GROUP>(|j| {
                        if j < count {
                            values[j] = values_at.add(column + 8 * j as u32).cast::<F32x2>().load().0;
                            if R::STEPS {
                                steps[j] = steps_at.add(column + 8 * j as u32).cast::<F32x2>().load().0;
                            }
                        }
                    });
                    let first = self.row + column;
                    unroll::<ROWS>(|i| {
                        unroll::<2>(|half| {
                            // The half of the low plane comes with that of the high plane.
                            if R::PLANES && half == 1 {
                                return;
                            }
                            let row = part.row(i, half);
                            let place = if R::PLANES { query_of(row) } else { row };
                            if place < self.item.pairs {
                                let factor = self.header.factors.add(place).load();
                                let term = if R::PLANES { self.header.terms.add(place).load() } else { 0.0 };
                                let score = |j: usize, e: usize| {
                                    let of_column = &sums[i][(group * GROUP + j) % COLUMNS];
                                    let value = values[j][e];
                                    if R::PLANES {
                                        let product =
                                            mul_add_f32(256.0, of_column[e].to_f32(), of_column[2 + e].to_f32());
                                        let product = if R::STEPS { product * steps[j][e] } else { product };
                                        let product = mul_add_f32(product, factor, term);
                                        let multiplies = self.multiplies && value != f32::INFINITY;
                                        return if multiplies { product * value } else { product + value };
                                    }
                                    let product = of_column[2 * half + e].to_f32();
                                    // The sum of an excluded row is +∞ as well, and two sides need fewer registers than
                                    // three.
                                    if self.multiplies && value != f32::INFINITY {
                                        product * factor * value
                                    } else {
                                        mul_add_f32(product, factor, value)
                                    }
                                };
                                if APPEND {
                                    self.append(place, first, count, score);
                                } else {
                                    self.store(place, first, count, score);
                                }
                            }
                        });
                    });
                }
            });
        }
        self.row += TILE_ROWS;
    }
}

/// The body of the scan kernels. All threads of a block stay together from item to item.
///
/// # Safety
/// As [`ScanLists`].
#[device_inline]
pub(crate) unsafe fn scan<
    R: Rows,
    P: TileProduct<ROWS, COLUMNS>,
    const ROWS: usize,
    const COLUMNS: usize,
    const QUERIES: u32,
    const RESIDENT: bool,
    const APPEND: bool,
>(
    work: ScanLists,
) {
    let mut rows = R::of(&work);
    let dense = R::DENSE && work.item_count.is_none();
    let thread = thread::thread_idx_x();
    let chunks = if R::PARTIAL { work.stride.div_ceil(CHUNK) } else { work.stride / CHUNK };

    // SAFETY: for the whole body, the caller promises the shapes; shared addresses stay below `shared_bytes`; the
    // storage has a whole tile of rows from the start of every list's last tile.
    unsafe {
        let header = Header::new(QUERIES, R::PLANES, R::STEPS);
        let rows_bytes = block_rows(QUERIES, R::PLANES) * CHUNK_BYTES;
        let pass = Pass { at: header.end, rows_bytes, chunks, tiles: 0, stages: R::STAGES };
        let (ring, stage_bytes) = pass.ring(RESIDENT);
        // The barriers of the first item precede the first use.
        rows.begin(ring.add(R::STAGES * stage_bytes), thread);

        let count = work.count(dense, QUERIES);
        let mut number = thread::block_idx_x();
        // Items are read one ahead, so no thread waits for memory.
        let mut next = if number < count { work.item(dense, number, QUERIES) } else { [0; 4] };
        while number < count {
            let [list, first_place, pairs, first_row] = next;
            number += thread::grid_dim_x();
            next = if number < count { work.item(dense, number, QUERIES) } else { [0; 4] };
            let (start, length) = if dense {
                (0, work.row_count)
            } else {
                (
                    global::load_nc(work.list_starts.wrapping_add(list as usize)),
                    global::load_nc(work.lengths.wrapping_add(list as usize)),
                )
            };
            let end = first_row + (length - first_row).min(work.item_rows);
            let item = Item { list, start, first_place, pairs, end };
            let ahead = rows.ahead(start + first_row, 0, thread);
            // Other threads may still read the header of the previous item.
            thread::sync_threads();
            header.begin(&work, dense, R::PLANES, item, QUERIES, thread);
            thread::sync_threads();

            let numbers = header.numbers;
            let mut operands =
                ItemTiles::<R, QUERIES> { work: &work, rows, numbers, item, chunks, thread, row: first_row, ahead };
            let multiplies = R::FACTORS && work.row_factors != 0;
            let (work, row, next, source) = (&work, first_row, [0.0; 2], rows);
            let mut scores =
                ItemScores::<R, RESIDENT, APPEND> { work, header, item, thread, row, next, multiplies, source };
            let pass = Pass { tiles: (end - first_row).div_ceil(TILE_ROWS), ..pass };
            pass.run::<P, ROWS, COLUMNS, RESIDENT, 1>(&mut operands, &mut scores);
        }
    }
}
