//! Scores of product-quantized lists by lookup tables in shared memory, query by query (paper sections 5.2 and 5.3).
//!
//! # Problem
//! Each query has a few lists to scan, and each list has rows of M codes. The score of a row is a number of the (query,
//! list) pair plus the sum of M table entries, one for each code: M lookups at random places and M additions for M
//! bytes read.
//!
//! # Algorithm
//! ```text
//! block = (query, some of its pairs, a segment of their lists)
//! for each pair: constant = |q - c|² or -<q,c>                 // one warp for each pair; kept in shared memory
//! for each chunk of sub-quantizers that fits in shared memory: // nearly always one
//!     table = the query's [+ the list's], or from scratch      // [`crate::pq::pq_tables`]; as f16 if f32 does not fit
//!     for each pair, for each 64 of its rows (warps in turn):  // two rows for each lane
//!         sum = constant [+ the row's term], or the last chunk's sum in `scores`
//!         for m ascending: sum += table[m][code of m]
//!         scores = sum; padding rows +infinity
//! ```
//!
//! # How it maps to the machine
//! 1. With a table of the query only (row terms, inner product) one block scans many lists, so that the cost of the
//!    table is small against the scan. With a table of the pair, a block has one pair.
//! 2. Warps process tiles of 64 rows in turn, across the borders of lists, so short lists leave no warp idle.
//! 3. 8-bit codes are loaded 16, 8 or 4 bytes at once, according to the length of a code. The lookups of a load and of
//!    the two rows of a lane are independent, so up to 32 are in flight. Codes of other widths pass through a bit
//!    buffer.
//! 4. A chunk's partial sums pass through `scores`. The same lane continues the same row, so they need no barrier, and
//!    any M works with any size of shared memory.
//! 5. Sums are in f32, in ascending m, so the score of a row does not depend on the shape of the launch.
//! 6. For cosine the sum is multiplied by the factor of the row, 1/‖r‖ ([`crate::ivf::code_bounds`]): 4 more bytes to
//!    read for a row.
//!
//! # Cost
//! Floor: shared memory does 32 lookups for each clock and multiprocessor if all lanes hit different banks: 7.2·10¹² a
//! second for 132 multiprocessors at 1.7 GHz. 10,000 queries × 32 lists × 244 rows are 7.8·10⁷ rows: with M = 16 that
//! takes 0.17 ms, with M = 32 0.35 ms. But codes are random: the fullest of 32 banks gets 3.5 of 32 lookups on average,
//! so the times are 0.61 and 1.22 ms. Instructions (extract, address, load, add: 4 for each lookup, 4 in each clock)
//! are below that, and so is memory: 1.25 and 2.5 GB of codes, most of it from L2, and 0.31 GB of scores written, 0.07
//! ms. A table of a pair adds 2^bits · M loaded entries for each list. These are about as many as the lookups in a list
//! of 2^bits rows, and 10.5 GB from L2 or memory with M = 32: 2 ms and more. For this reason row terms are preferred.
//!
//! # What lost (by count; not measured)
//! f16 tables where f32 fits: the same number of lookups, a conversion for each, and 2⁻¹¹ of error. They are faster
//! only if an f32 table leaves one block a multiprocessor or none.

use cuda_std::global::{F32x4, U32x2, U32x4};
use cuda_std::launch::LaunchConfig;
use cuda_std::math::{f16_to_f32, f32_to_f16, mul_add_f32};
use cuda_std::shared::SharedPtr;
use cuda_std::warp::butterfly_sum;
use cuda_std::{Ptr, PtrMut, device_inline, global, kernel, shared, thread, unroll, warp};

use crate::NO_ROW;
use crate::pq::pq_codes::{Bytes, Chunk, Codes, Packed, ROWS};
use crate::pq::pq_tables::{CodedLists, FORM_INNER_PRODUCT, FORM_LIST_TERMS, FORM_RESIDUAL};
use crate::product::element::{self, Element};

/// Largest number of pairs of a block.
pub const MAX_PAIRS: u32 = 64;
/// The number of stored rows of a list is padded to a multiple of this.
pub const ROW_BLOCK: u32 = 8;
/// Number of rows that a warp scans at once.
pub const TILE_ROWS: u32 = 64;
/// Bytes of the data of the pairs: first stored row, length, offset of the scores, and constant of each.
const HEADER_BYTES: u32 = MAX_PAIRS * 16;

/// Dynamic shared memory of a block, in bytes, for a table of `entries` entries of `entry_bytes`.
pub const fn shared_bytes(entries: u32, entry_bytes: u32) -> u32 {
    HEADER_BYTES + entries * entry_bytes
}

/// Number of table entries that fit in `bytes` of shared memory.
pub const fn entries_in(bytes: u32, entry_bytes: u32) -> u32 {
    bytes.saturating_sub(HEADER_BYTES) / entry_bytes
}

/// The format of a table's entries.
trait Entry {
    type Stored: Copy;

    /// Stores entries 4·`quad` .. + 4.
    ///
    /// # Safety
    /// The entries lie in the table, and no other thread accesses them.
    unsafe fn store4(table: SharedPtr<Self::Stored>, quad: u32, values: [f32; 4], scale: f32);

    /// The sum of `sum` and an entry, with one rounding.
    fn add(sum: f32, entry: Self::Stored, unscale: f32) -> f32;
}

struct F32Entry;

impl Entry for F32Entry {
    type Stored = f32;

    #[device_inline]
    unsafe fn store4(table: SharedPtr<f32>, quad: u32, values: [f32; 4], _: f32) {
        // SAFETY: as the caller promises; the table is aligned to 16 bytes.
        unsafe { table.cast::<F32x4>().add(quad).store(F32x4(values)) }
    }

    #[device_inline]
    fn add(sum: f32, entry: f32, _: f32) -> f32 {
        sum + entry
    }
}

struct F16Entry;

impl Entry for F16Entry {
    type Stored = u16;

    #[device_inline]
    unsafe fn store4(table: SharedPtr<u16>, quad: u32, values: [f32; 4], scale: f32) {
        let [a, b, c, d] = values.map(|value| f32_to_f16(value * scale) as u32);
        // SAFETY: as the caller promises; the table is aligned to 8 bytes.
        unsafe { table.cast::<U32x2>().add(quad).store(U32x2([a | b << 16, c | d << 16])) }
    }

    #[device_inline]
    fn add(sum: f32, entry: u16, unscale: f32) -> f32 {
        // The product with a power of two is exact.
        mul_add_f32(f16_to_f32(entry), unscale, sum)
    }
}

/// The first and the end of the tiles of a list that belong to a segment.
#[device_inline]
fn segment_tiles(length: u32, segment: u32, segments: u32) -> (u32, u32) {
    let tiles = length.div_ceil(TILE_ROWS);
    let share = tiles.div_ceil(segments.max(1));
    let first = (segment * share).min(tiles);
    (first, (first + share).min(tiles))
}

/// Squared distance or negative inner product of a query and a centroid, on every lane. All 32 lanes arrive.
///
/// # Safety
/// Both have `quads` readable groups of four components.
#[device_inline]
unsafe fn constant_of(query: *const f32, centroid: *const f32, quads: u32, inner_product: bool) -> f32 {
    let mut sum = 0.0f32;
    let mut base = 0;
    while base < quads {
        let quad = base + warp::lane_id();
        if quad < quads {
            // SAFETY: quad < quads.
            let (x, c) = unsafe { (element::F32::load4(query, quad), element::F32::load4(centroid, quad)) };
            unroll::<4>(|e| {
                let d = x[e] - c[e];
                let (a, b) = if inner_product { (-x[e], c[e]) } else { (d, d) };
                sum = mul_add_f32(a, b, sum);
            });
        }
        base += 32;
    }
    butterfly_sum(sum)
}

/// Four entries of a pair's table from scratch: Σ_i (x_i − c_i − p_i)² for four consecutive codewords.
///
/// # Safety
/// `query` and `centroid` are sub-vectors of `sub_dim` components, `codewords` four of them.
#[device_inline]
unsafe fn residual_entries(query: *const f32, centroid: *const f32, codewords: *const f32, sub_dim: u32) -> [f32; 4] {
    let mut sums = [0.0f32; 4];
    let mut i = 0;
    while i < sub_dim as usize {
        // SAFETY: component i of sub-vectors and codewords.
        unsafe {
            let residual = global::load_nc(query.wrapping_add(i)) - global::load_nc(centroid.wrapping_add(i));
            unroll::<4>(|e| {
                let d = residual - global::load_nc(codewords.wrapping_add(e * sub_dim as usize + i));
                sums[e] = mul_add_f32(d, d, sums[e]);
            });
        }
        i += 1;
    }
    sums
}

/// The format of a table's entries: half of the key of [`ScanTables`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EntryKey {
    /// Entries are f32.
    F32,
    /// Entries are f16, times the σ of the query.
    F16,
}

impl EntryKey {
    /// Number of bytes of an entry.
    pub const fn bytes(self) -> u32 {
        match self {
            Self::F32 => 4,
            Self::F16 => 2,
        }
    }
}

/// The width of codes and of their loads: the other half of the key of [`ScanTables`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CodesKey {
    /// 8-bit codes, 16 at once.
    Bytes16,
    /// 8-bit codes, 8 at once.
    Bytes8,
    /// 8-bit codes, 4 at once.
    Bytes4,
    /// Codes of 4 to 8 bits, one by one.
    Packed,
}

impl CodesKey {
    /// All keys, the widest loads first.
    pub const ALL: [Self; 4] = [Self::Bytes16, Self::Bytes8, Self::Bytes4, Self::Packed];

    /// Number of 8-bit codes of one load; `None`: codes of any width.
    pub const fn bytes_at_once(self) -> Option<u32> {
        match self {
            Self::Bytes16 => Some(16),
            Self::Bytes8 => Some(8),
            Self::Bytes4 => Some(4),
            Self::Packed => None,
        }
    }
}

/// The key of a scan kernel.
pub type TableKey = (EntryKey, CodesKey);

/// Writes the scores of all pairs of a query and a list that it probes.
///
/// # Safety
/// All pointers that are present cover the shapes of their fields. Pointers to f32 arrays that are not indexed by row
/// or pair are aligned to 16 bytes, `codes` to the bytes of a load ([`CodesKey`]). There is a list, and probed lists
/// exist; the scores of no two pairs overlap. `chunk_size`, `sub_quantizers` and `code_bytes` are multiples of the
/// number of codes of a load.
#[kernel(
    key = TableKey,
    max_threads = 1024,
    (EntryKey::F32, CodesKey::Bytes16) => table_scan_bytes16_f32 = scan::<F32Entry, Bytes<U32x4>>,
    (EntryKey::F32, CodesKey::Bytes8) => table_scan_bytes8_f32 = scan::<F32Entry, Bytes<U32x2>>,
    (EntryKey::F32, CodesKey::Bytes4) => table_scan_bytes4_f32 = scan::<F32Entry, Bytes<u32>>,
    (EntryKey::F32, CodesKey::Packed) => table_scan_packed_f32 = scan::<F32Entry, Packed>,
    (EntryKey::F16, CodesKey::Bytes16) => table_scan_bytes16_f16 = scan::<F16Entry, Bytes<U32x4>>,
    (EntryKey::F16, CodesKey::Bytes8) => table_scan_bytes8_f16 = scan::<F16Entry, Bytes<U32x2>>,
    (EntryKey::F16, CodesKey::Bytes4) => table_scan_bytes4_f16 = scan::<F16Entry, Bytes<u32>>,
    (EntryKey::F16, CodesKey::Packed) => table_scan_packed_f16 = scan::<F16Entry, Packed>,
)]
pub struct ScanTables {
    /// Queries, `coded.stride` components each.
    pub queries: Ptr<f32>,
    /// The lists and their codes.
    #[group]
    pub coded: CodedLists,
    /// `probes` lists for each query, `NO_ROW` for none.
    pub probed_lists: Ptr<u32>,
    /// The start of each pair's scores in the query's row, laid out as `probed_lists`.
    pub pair_offsets: Ptr<u32>,
    /// Number of probes of a query.
    pub probes: u32,
    /// The start of each query's row of scores.
    pub row_starts: Ptr<u64>,
    /// The form of the terms: a `FORM_*` of [`crate::pq::pq_tables`].
    pub form: u32,
    /// The table of each query, \[`sub_quantizers`\]\[2^`bits`\]; not read for `FORM_RESIDUAL`.
    pub query_tables: Ptr<f32>,
    /// A term for each stored row (`FORM_ROW_TERMS`) or a table for each list (`FORM_LIST_TERMS`); absent for the other
    /// forms.
    pub terms: Option<Ptr<f32>>,
    /// A factor for the sum of each stored row; absent: 1.
    pub factors: Option<Ptr<f32>>,
    /// The σ of each query; absent for [`EntryKey::F32`].
    pub scales: Option<Ptr<f32>>,
    /// Number of sub-quantizers whose tables are in shared memory at once.
    pub chunk_size: u32,
    /// Largest number of pairs of a block, at most [`MAX_PAIRS`]; 1 for `FORM_LIST_TERMS` and `FORM_RESIDUAL`.
    pub block_pairs: u32,
    /// Number of blocks that share the rows of a list.
    pub segments: u32,
    /// The score of row i of a list is i places after the start of the pair's scores; +∞ up to the next multiple of
    /// [`ROW_BLOCK`] rows.
    pub scores: PtrMut<f32>,
}

impl ScanTables {
    /// For each of `queries` queries, `segments` blocks of `threads` threads for each `block_pairs` of its pairs.
    pub fn config(&self, entry: EntryKey, queries: u32, threads: u32) -> LaunchConfig {
        let groups = self.probes.div_ceil(self.block_pairs);
        let blocks = queries as u64 * groups as u64 * self.segments as u64;
        LaunchConfig::linear(blocks, threads)
            .with_shared(shared_bytes(self.chunk_size << self.coded.bits, entry.bytes()))
    }
}

/// # Safety
/// As [`ScanTables`].
#[device_inline]
unsafe fn scan<E: Entry, C: Codes>(launch: ScanTables) {
    let ScanTables { queries, coded, probed_lists, pair_offsets, probes, row_starts, form, query_tables, .. } = launch;
    let ScanTables { terms, factors, scales, chunk_size, block_pairs, segments, scores, .. } = launch;
    let CodedLists { codes, code_bytes, list_starts, list_lengths, centroids, stride, .. } = coded;
    let CodedLists { codebooks, sub_dim, sub_quantizers, bits, .. } = coded;
    let (thread, threads) = (thread::thread_idx_x(), thread::block_dim_x());
    let (lane, warp, warps) = (warp::lane_id(), thread / 32, threads / 32);
    let groups = probes.div_ceil(block_pairs.max(1)).max(1);
    let (segment, rest) = (thread::block_idx_x() % segments.max(1), thread::block_idx_x() / segments.max(1));
    let (group, query) = (rest % groups, (rest / groups) as usize);
    let first_pair = group * block_pairs;
    let pairs = block_pairs.min(probes - first_pair);
    let probed_lists = probed_lists.wrapping_add(query * probes as usize + first_pair as usize);
    let pair_offsets = pair_offsets.wrapping_add(query * probes as usize + first_pair as usize);
    let x = queries.wrapping_add(query * stride as usize);

    // SAFETY: for the whole body, the caller promises the shapes: pairs stay below probes, probed lists exist, rows
    // stay below a list's length (scores below its padded length), entries are inside the tables. Barriers separate
    // writes and reads of shared memory, whose layout is that of `shared_bytes`.
    unsafe {
        let infos = shared::dynamic::<U32x4>();
        let table = shared::dynamic::<u8>().add(HEADER_BYTES).cast::<E::Stored>();
        let mut any = false;
        let mut pair = warp;
        while pair < pairs {
            let list = global::load_nc(probed_lists.wrapping_add(pair as usize));
            let exists = list != NO_ROW;
            // All lanes of the warp take this path together: a list that does not exist is evaluated as list 0, with
            // length 0.
            let list = if exists { list as usize } else { 0 };
            let start = global::load_nc(list_starts.wrapping_add(list));
            let length = if exists { global::load_nc(list_lengths.wrapping_add(list)) } else { 0 };
            let offset = global::load_nc(pair_offsets.wrapping_add(pair as usize));
            let constant = if form == FORM_RESIDUAL {
                0.0
            } else {
                let centroid = centroids.wrapping_add(list * stride as usize);
                constant_of(x, centroid, stride / 4, form == FORM_INNER_PRODUCT)
            };
            if lane == 0 {
                infos.add(pair).store(U32x4([start, length, offset, constant.to_bits()]));
            }
            let (from, to) = segment_tiles(length, segment, segments);
            any |= from < to;
            pair += warps;
        }
        if !thread::sync_threads_or(any) {
            return;
        }

        let scale = match scales {
            Some(scales) => global::load_nc(scales.wrapping_add(query)),
            None => 1.0,
        };
        let unscale = 1.0 / scale;
        // If a table belongs to a pair, the block has only this pair, and its list exists.
        let only_list =
            if form == FORM_LIST_TERMS || form == FORM_RESIDUAL { global::load_nc(probed_lists) as usize } else { 0 };
        let table_entries = (sub_quantizers as usize) << bits;
        let scores = scores.wrapping_add(global::load_nc(row_starts.wrapping_add(query)) as usize);
        let mut first = 0;
        while first < sub_quantizers {
            let count = chunk_size.min(sub_quantizers - first);
            let first_entry = (first << bits) as usize;
            let quads = (count << bits) / 4;
            let mut quad = thread;
            while quad < quads {
                let entry = first_entry + 4 * quad as usize;
                let values = if form == FORM_RESIDUAL {
                    // A sub-quantizer has at least 16 entries, so the four of a quad belong to the same.
                    let at = (entry >> bits) * sub_dim as usize;
                    let centroid = centroids.wrapping_add(only_list * stride as usize + at);
                    residual_entries(
                        x.wrapping_add(at),
                        centroid,
                        codebooks.wrapping_add(entry * sub_dim as usize),
                        sub_dim,
                    )
                } else {
                    let at = query * table_entries + entry;
                    let mut values = global::load_nc(query_tables.wrapping_add(at).cast::<F32x4>()).0;
                    if let Some(terms) = terms
                        && form == FORM_LIST_TERMS
                    {
                        let at = only_list * table_entries + entry;
                        let of_list = global::load_nc(terms.wrapping_add(at).cast::<F32x4>()).0;
                        unroll::<4>(|e| values[e] += of_list[e]);
                    }
                    values
                };
                E::store4(table, quad, values, scale);
                quad += threads;
            }
            thread::sync_threads();

            let chunk = Chunk { first, count, bits, code_bytes };
            let row_terms = terms.filter(|_| form != FORM_LIST_TERMS);
            let row_factors = factors.filter(|_| first + count == sub_quantizers);
            // The warps share the tiles of all pairs in turn: `tile` counts from the first tile of the current pair.
            let mut tile = warp;
            let mut pair = 0;
            while pair < pairs {
                let [start, length, offset, constant] = infos.add(pair).load().0;
                let (from, to) = segment_tiles(length, segment, segments);
                let scores = scores.wrapping_add(offset as usize);
                let padded = length.next_multiple_of(ROW_BLOCK);
                while from + tile < to {
                    let first_row = (from + tile) * TILE_ROWS + lane;
                    let mut rows = [*codes; ROWS];
                    let mut sums = [f32::from_bits(constant); ROWS];
                    unroll::<ROWS>(|r| {
                        let row = first_row + 32 * r as u32;
                        // After the end the last row is evaluated again and not stored.
                        let stored = (start + row.min(length - 1)) as usize;
                        rows[r] = codes.wrapping_add(stored * code_bytes as usize);
                        if first > 0 {
                            sums[r] = if row < length { global::load(scores.wrapping_add(row as usize)) } else { 0.0 };
                        } else if let Some(terms) = row_terms {
                            sums[r] += global::load_nc(terms.wrapping_add(stored));
                        }
                    });
                    C::visit(rows, chunk, |first_entry, codes| {
                        // The same for all lanes, so the address of a lookup is this, a constant and the code.
                        let table = table.add(first_entry);
                        unroll::<ROWS>(|r| sums[r] = E::add(sums[r], table.add(codes[r]).load(), unscale));
                    });
                    unroll::<ROWS>(|r| {
                        let row = first_row + 32 * r as u32;
                        if row < padded {
                            let mut score = sums[r];
                            if let Some(factors) = row_factors {
                                score *= global::load_nc(factors.wrapping_add((start + row.min(length - 1)) as usize));
                            }
                            let score = if row < length { score } else { f32::INFINITY };
                            global::store(scores.wrapping_add(row as usize), score);
                        }
                    });
                    tile += warps;
                }
                tile -= to - from;
                pair += 1;
            }
            first += count;
            if first < sub_quantizers {
                thread::sync_threads();
            }
        }
    }
}
