//! List-major scan for few queries of a list: rows of codes become operands in registers.
//!
//! # Problem
//! A billion vectors meet few queries a list: 10,000 queries of 32 of 131,072 lists are 2.4. The scan of tiles
//! ([`crate::ivf::list_scan`]) unpacks codes into shared memory, from where all warps of a block read them for up to 64
//! queries. With few queries that costs more than all else: the unpacked tile is written, waited for and read, and most
//! of it is multiplied with rows of queries that do not exist.
//!
//! # Algorithm
//! ```text
//! item = (list, up to 16 pairs, up to item_rows rows)                 // from pairs.rs
//! block: copy the item's queries to shared memory
//! warp, for each strip of 32 rows that is its own:
//!     the codes of the strip, which are one piece of memory, come to shared memory, two strips ahead
//!     for each group of 32 components: four rows of 8 components a lane become operands in registers
//!         for each four queries: product of 16 rows and 4 queries of two planes (m16n8k32), twice
//!     score = value of the row + term + factor · product · step -> the pair's place in the query's row of scores
//! ```
//!
//! Rows are operand A, and queries operand B: a query needs two of its eight columns, not a tile of 16 rows. Warps wait
//! for nobody but themselves during an item. The order of the components in a product is that of the fields of codes
//! ([`crate::ivf::encoding::bits`]), so a lane's components of a group have their bits in one word of each field, and
//! queries are read in the order in which they lie.
//!
//! A search with many rows for each result writes one score for the four rows of a lane
//! ([`crate::ivf::pairs::SHARING`]): the least. The selection then takes the best scores, and all rows that share them
//! are compared exactly. A row that is left out has a score that is no better than the last selected one, so the proof
//! of the result stays as it is.
//!
//! # Cost
//! Bytes: the codes once for eight queries, and 4 for each score. Instructions of a warp for 32 rows of 96 components,
//! 5 bits and up to four queries, counted in the machine code: some 60 for each group, and 100 for the copies and the
//! scores; some 45 more for four further queries. That is nine for each row, where tiles took 45.
//!
//! For 10⁸ × 96 in codes of 5 bits, 1,000 queries at once, on an H200 (2026-12-01, from host memory and back), ms:
//!
//! | of 13,107 lists | 4 | 16 | 32 | 64 | 128 | 256 |
//! |---|---|---|---|---|---|---|
//! | a score for each row | .96 | 1.89 | 2.64 | 4.00 | 6.17 | 10.6 |
//! | rows share scores | .95 | 1.73 | 2.41 | 3.47 | 5.33 | 8.7 |
//!
//! With tiles 32 lists took 7.3 (the day before). The scan of 64 lists with a score for each row issues 2.7
//! instructions a cycle and reads at half of the memory's rate (Nsight Compute, at the clocks that it sets). A billion
//! vectors with 6 bits, 10,000 queries: 16 of 98,304 lists take 16.4 ms, which is the memory's rate, and 64 37.5 (the
//! same day; the host waited for each kernel).
//!
//! Up to some 24 queries a list strips are faster than tiles of 64. 1,000 queries of 256 lists, 20 a list, took 10.1 ms
//! by strips with a score for each row and 13.6 by tiles; of 512 lists 19 and 15.
//!
//! # How it maps to the machine
//! 1. Blocks have four warps, and five share a multiprocessor: while one waits for its queries, others multiply.
//! 2. Codes of four warps and of all stages are in shared memory, so rows are short; longer ones are scanned by
//!    tiles.
//! 3. Sums of 16 queries would take the registers of a block. So more than eight of an item are multiplied with its
//!    rows one after the other, which come from cache the second time.
//!
//! # What lost
//! The number of bits as a constant of the loop over groups: 172 kB of PTX and not 49, and 124 bytes spilled. Items of
//! 4,096 rows instead of 1,024: as fast.
//!
//! Appending candidates within a threshold from the scores of the four nearest lists, as tiles do, to write and read a
//! sixteenth of the scores of 64 lists. A quarter of the time less was predicted, but strips wait for instructions and
//! not for memory: 1,000 queries of 16, 32, 64, 128 and 256 of 13,107 lists with 10⁸ vectors took 2.06, 2.74, 3.73,
//! 5.15 and 8.18 ms instead of 1.84, 2.53, 3.74, 5.83 and 10.0 (H200, 2026-12-01). With two lists, 64 took 3.4 ms. But
//! where the nearest lists of a query are short, its threshold is so weak that its candidates have no room, and one
//! block compares all vectors of its lists: 10,000 queries of 64 of 98,304 lists with 10⁹ vectors took 89 ms instead
//! of 48.

use cuda_std::global::{U32x2, U32x4};
use cuda_std::math::{min_f32, mul_add_f32};
use cuda_std::shared::SharedPtr;
use cuda_std::warp::{FULL_MASK, lane_id, shuffle_idx, sync_warp, warp_id};
use cuda_std::{async_copy, device_inline, global, mma, thread, unroll};

#[cfg(not(target_arch = "nvptx64"))]
use crate::ivf::list_scan::StripScan;
use crate::ivf::list_scan::{Header, Item, ScanLists, header_bytes};
use crate::ivf::pairs::{PAD, SHARING, padded, score_of};
use crate::product::mainloop::wait_for_stage;
use crate::product::tile::LEAST_SHARED_BYTES;

/// Number of queries that are multiplied with a strip. Of more, an item's rows are read again, from cache.
const QUERIES: u32 = 8;
/// Number of warps of a block.
const WARPS: u32 = 4;
/// Number of threads of a block.
const THREADS: u32 = 32 * WARPS;
/// Number of rows of a strip, a part of a tile of rows.
const STRIP: u32 = 32;
/// Number of components of a group.
const GROUP: u32 = 32;
/// Number of rows of a strip of which a lane unpacks a part; they are 8 apart.
pub(crate) const LANE_ROWS: usize = SHARING as usize;
const _: () = assert!(STRIP == PAD * SHARING);
/// Number of queries of a product, with two planes each.
const TOGETHER: u32 = 4;
/// Largest number of products of the queries.
const MOST_COLUMNS: usize = (QUERIES / TOGETHER) as usize;
/// Largest number of strips of a warp in shared memory.
const MOST_STAGES: u32 = 3;

/// The source of a list's rows: codes that become signed bytes.
pub(crate) trait Strips: Copy {
    /// The rows of a launch.
    fn of(launch: &ScanLists) -> Self;

    /// The step of a row, which starts at `row`.
    ///
    /// # Safety
    /// The row was copied.
    unsafe fn step(&self, row: SharedPtr<u8>) -> f32;

    /// Calls `each` with every group of 32 components of rows `row`, `row` + `apart`, ..: components 8·`part` .. of the
    /// group, in their order. All lanes of a warp arrive.
    ///
    /// # Safety
    /// The rows were copied, and have the groups; `part` is below 4.
    unsafe fn groups(
        &self,
        row: SharedPtr<u8>,
        apart: u32,
        part: u32,
        groups: u32,
        each: impl FnMut(u32, [[u32; 2]; LANE_ROWS]),
    );
}

/// Bytes from one plane of a query to the next in shared memory, of planes of `plane_bytes`, a multiple of 32: an odd
/// multiple, so that the lanes that read together have no bank conflicts.
#[device_inline]
const fn pitch(plane_bytes: u32) -> u32 {
    if (plane_bytes / 32).is_multiple_of(2) { plane_bytes + 32 } else { plane_bytes }
}

/// Bytes of shared memory before the strips.
#[device_inline]
const fn before_strips(plane_bytes: u32) -> u32 {
    header_bytes(QUERIES, true, false) + 2 * QUERIES * pitch(plane_bytes)
}

/// Number of strips of each warp that fit in shared memory on every device, for codes of `code_bytes` bytes and planes
/// of `plane_bytes` bytes; 0 if there is no room for two, of which one is copied while the other is used.
#[device_inline]
const fn stages(code_bytes: u32, plane_bytes: u32) -> u32 {
    let stage = (WARPS * STRIP) as u64 * code_bytes as u64;
    let before = (header_bytes(QUERIES, true, false) as u64) + (2 * QUERIES) as u64 * (plane_bytes as u64 + 32);
    let most = (LEAST_SHARED_BYTES as u64).saturating_sub(before) / stage;
    if most < 2 {
        0
    } else if most < MOST_STAGES as u64 {
        most as u32
    } else {
        MOST_STAGES
    }
}

/// The scan by strips, for [`RowScan`](crate::ivf::list_scan::RowScan).
#[cfg(not(target_arch = "nvptx64"))]
pub(crate) const SCAN: StripScan = StripScan { threads: THREADS, shared_bytes };

/// Bytes of shared memory of a block, if there is room ([`stages`]).
#[cfg(not(target_arch = "nvptx64"))]
fn shared_bytes(code_bytes: u32, plane_bytes: u32) -> Option<u32> {
    let stages = stages(code_bytes, plane_bytes);
    (stages > 0).then(|| before_strips(plane_bytes) + stages * WARPS * STRIP * code_bytes)
}

/// A warp's strips of an item.
struct WarpStrips<'a> {
    work: &'a ScanLists,
    /// The lane's row of the item's first strip, in the storage.
    row: u32,
    /// Number of strips of the item.
    count: u32,
    /// Room of the warp for as many strips as there are stages.
    at: SharedPtr<u8>,
}

impl WarpStrips<'_> {
    /// Starts to copy a strip, if the item has it, into a stage. All lanes arrive.
    ///
    /// # Safety
    /// As [`ScanLists`]; no lane reads the stage any more.
    #[device_inline]
    unsafe fn copy(&self, strip: u32, stage: u32) {
        if strip < self.count {
            let (row, code_bytes) = (self.row - lane_id() + STRIP * strip, self.work.stored.code_bytes);
            let from = self.work.stored.rows.wrapping_add(row as usize * code_bytes as usize);
            let bytes = STRIP * code_bytes;
            let mut at = 16 * lane_id();
            while at < bytes {
                // SAFETY: the storage has a whole tile of rows from the start of every list's last tile, and a tile has
                // whole strips; lists start at multiples of 8 rows of a multiple of 4 bytes.
                unsafe { async_copy::copy_16(self.at.add(stage * bytes + at), from.wrapping_add(at as usize)) };
                at += 16 * 32;
            }
        }
        async_copy::commit();
    }

    /// The value of the lane's row of a strip, if the item has it.
    ///
    /// # Safety
    /// As [`ScanLists`].
    #[device_inline]
    unsafe fn value(&self, strip: u32) -> f32 {
        // SAFETY: the row exists, as in `copy`.
        unsafe { if strip < self.count { self.work.value(self.row + STRIP * strip) } else { 0.0 } }
    }
}

/// Copies the planes of an item's queries to shared memory: of as many as the products have. All threads of the block
/// arrive; a barrier follows.
///
/// # Safety
/// As [`ScanLists`]; `to` has room for them.
#[device_inline]
unsafe fn copy_queries<const COLUMNS: usize>(work: &ScanLists, item: Item, to: SharedPtr<u8>, thread: u32) {
    let plane_bytes = 2 * work.stride;
    let parts = 2 * plane_bytes / 16;
    let mut at = thread;
    while at < TOGETHER * COLUMNS as u32 * parts {
        let (query, part) = (at / parts, at % parts);
        // Queries that do not exist repeat the first.
        let place = item.first_place + if query < item.pairs { query } else { 0 };
        // SAFETY: the pair exists, and its query has two planes, one after the other, of 16-byte parts.
        unsafe {
            let [number, ..] = global::load_nc(work.grouped.wrapping_add(place as usize)).0;
            let from = work.queries.wrapping_add(2 * number as usize * work.stride as usize).cast::<U32x4>();
            let words = global::load_nc(from.wrapping_add(part as usize));
            let plane = 2 * query + 16 * part / plane_bytes;
            to.add(plane * pitch(plane_bytes) + 16 * part % plane_bytes).cast::<U32x4>().store(words);
        }
        at += THREADS;
    }
}

/// The numbers of a block that are the same for all items.
#[derive(Clone, Copy)]
struct Block<'a, R> {
    work: &'a ScanLists,
    rows: R,
    header: Header,
    /// The queries of an item.
    queries: SharedPtr<u8>,
    /// Room of the warp for `stages` strips.
    at: SharedPtr<u8>,
    stages: u32,
}

impl<R: Strips> Block<'_, R> {
    /// Scans the strips of an item, up to [`QUERIES`] queries of it, which take `COLUMNS` products, from row `first` of
    /// the list on. All threads of the block arrive.
    ///
    /// # Safety
    /// As [`ScanLists`]; no thread uses strips or queries any more.
    #[device_inline]
    unsafe fn scan<const COLUMNS: usize>(&self, item: Item, first: u32) {
        let Block { work, header, stages, .. } = *self;
        let (lane, thread) = (lane_id(), thread::thread_idx_x());
        let (of_row, of_column) = (lane / 4, lane % 4);
        let (code_bytes, plane_bytes) = (work.stored.code_bytes, 2 * work.stride);
        let pitch = pitch(plane_bytes);
        let multiplies = work.row_factors != 0;
        let shared = work.shared_scores != 0;
        let count = (item.end - first).div_ceil(STRIP);
        let strips = WarpStrips { work, row: item.start + first + lane, count, at: self.at };
        // SAFETY: the caller promises the shapes; shared addresses stay below `shared_bytes`.
        unsafe {
            let mut strip = warp_id();
            let mut ahead = 0;
            while ahead + 1 < stages {
                strips.copy(strip + ahead * WARPS, ahead);
                ahead += 1;
            }
            let mut value = strips.value(strip);
            header.begin(work, false, true, item, QUERIES, thread);
            copy_queries::<COLUMNS>(work, item, self.queries, thread);
            thread::sync_threads();

            // The lane's part of the columns of operand B.
            let query_part = self.queries.add(of_row * pitch + 8 * of_column);
            let mut stage = 0;
            while strip < count {
                wait_for_stage(stages);
                // The strip is complete, and no lane reads the one before any more.
                sync_warp(FULL_MASK);
                strips.copy(strip + (stages - 1) * WARPS, if stage == 0 { stages - 1 } else { stage - 1 });
                let next_value = strips.value(strip + WARPS);
                let codes = strips.at.add(STRIP * stage * code_bytes + of_row * code_bytes);
                stage = if stage + 1 == stages { 0 } else { stage + 1 };

                let mut sums = [[[0i32; 4]; COLUMNS]; LANE_ROWS / 2];
                self.rows.groups(codes, 8 * code_bytes, of_column, plane_bytes / GROUP, |group, operands| {
                    unroll::<COLUMNS>(|column| {
                        let at = query_part.add(8 * column as u32 * pitch + GROUP * group);
                        let b = at.cast::<U32x2>().load().0;
                        unroll::<{ LANE_ROWS / 2 }>(|half| {
                            let [x, y] = [operands[2 * half], operands[2 * half + 1]];
                            mma::mma_m16n8k32_s8(&mut sums[half][column], &[x[0], y[0], x[1], y[1]], b);
                        });
                    });
                });

                // The step of each of the lane's rows, and the numbers with which its products are multiplied and
                // added. The sum of an excluded row is +∞ under every metric.
                let mut of_rows = [[0f32; 3]; LANE_ROWS];
                unroll::<LANE_ROWS>(|i| {
                    let value = shuffle_idx(FULL_MASK, value, of_row + 8 * i as u32);
                    let step = self.rows.step(codes.add(8 * i as u32 * code_bytes));
                    let multiplies = multiplies && value != f32::INFINITY;
                    of_rows[i] = if multiplies { [step, value, 0.0] } else { [step, 1.0, value] };
                });
                let row = first + STRIP * strip + of_row;
                unroll::<COLUMNS>(|column| {
                    let place = TOGETHER * column as u32 + of_column;
                    if place < item.pairs {
                        let factor = header.factors.add(place).load();
                        let term = header.terms.add(place).load();
                        let target = header.targets.add(place).load();
                        let out =
                            work.scores.wrapping_add((target + score_of(row, work.shared_scores) as u64) as usize);
                        // Rows behind the end belong to other lists.
                        let end = if shared { item.end } else { padded(item.end) };
                        let mut least = f32::INFINITY;
                        unroll::<LANE_ROWS>(|i| {
                            let [step, times, plus] = of_rows[i];
                            let [high, low] = [0, 1].map(|plane| sums[i / 2][column][2 * (i % 2) + plane] as f32);
                            let product = mul_add_f32(mul_add_f32(256.0, high, low) * step, factor, term);
                            let score = mul_add_f32(product, times, plus);
                            if row + (8 * i as u32) < end {
                                if shared {
                                    least = min_f32(least, score);
                                } else {
                                    global::store(out.wrapping_add(8 * i), score);
                                }
                            }
                        });
                        if shared {
                            global::store(out, least);
                        }
                    }
                });
                (strip, value) = (strip + WARPS, next_value);
            }
            async_copy::wait_all();
        }
    }
}

/// The body of the kernels. All threads of a block stay together from item to item, and all lanes of a warp from strip
/// to strip.
///
/// # Safety
/// As [`ScanLists`], with [`stages`] for the codes, and without appending or dense use.
#[device_inline]
pub(crate) unsafe fn scan_strips<R: Strips>(work: ScanLists) {
    let (code_bytes, plane_bytes) = (work.stored.code_bytes, 2 * work.stride);
    let stages = stages(code_bytes, plane_bytes);
    // SAFETY: for the whole body, the caller promises the shapes; shared addresses stay below `shared_bytes`.
    unsafe {
        let header = Header::new(QUERIES, true, false);
        let queries = header.end;
        let at = queries.add(2 * QUERIES * pitch(plane_bytes) + STRIP * warp_id() * stages * code_bytes);
        let block = Block { work: &work, rows: R::of(&work), header, queries, at, stages };
        let count = match work.item_count {
            Some(count) => global::load_nc(*count),
            None => 0,
        };
        let mut number = thread::block_idx_x();
        while number < count {
            let [list, first_place, pairs, first] = work.item(false, number, 0);
            number += thread::grid_dim_x();
            let start = global::load_nc(work.list_starts.wrapping_add(list as usize));
            let length = global::load_nc(work.lengths.wrapping_add(list as usize));
            let end = first + (length - first).min(work.item_rows);
            let mut place = 0;
            while place < pairs {
                let (first_place, pairs) = (first_place + place, (pairs - place).min(QUERIES));
                let item = Item { list, start, first_place, pairs, end };
                // Other threads may still read the strips and the queries of before.
                thread::sync_threads();
                if pairs <= TOGETHER {
                    block.scan::<1>(item, first)
                } else {
                    block.scan::<MOST_COLUMNS>(item, first)
                }
                place += QUERIES;
            }
        }
    }
}
