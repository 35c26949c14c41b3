//! The best rows for queries whose candidates overflowed their lists, without the host.
//!
//! # Problem
//! A list that overflowed lacks candidates, so its query has no proof of its result. The host reads the flags and
//! searches these queries again, with all canonical distances. A search that only enqueues work cannot wait for the
//! flags.
//!
//! # Algorithm
//! ```text
//! for each overflowed query, for each piece of the base:      // a warp each
//!     for each row of the piece that takes part: offer its canonical distance to a WarpSelect
//!     write the best k of the piece to the query's list, at the piece's place
//! ```
//! The list then holds the best k of each piece, hence the best k of all rows, with canonical distances; the selection
//! that follows is the same as for the other queries. The queue has `QUEUE` entries: for a larger k a piece is read
//! once for every `QUEUE` neighbours.
//!
//! # Cost
//! Without an overflow one launch that reads one word. Otherwise ⌈k / 32⌉ · rows canonical distances for each such
//! query, by as many warps as the list has room for k entries of.

use cuda_std::launch::LaunchConfig;
use cuda_std::warp::FULL_MASK;
use cuda_std::{Ptr, PtrMut, device_inline, global, group, kernel, thread, unroll, warp};

use crate::product::canonical::{BATCH, over_norms, sums_by};
use crate::product::element::{self, Row, RowKey};
use crate::product::metric::Metric;
use crate::select::entry;
use crate::select::warp_select::{WarpSelect, thread_queue};

/// Number of warps in a block of these kernels.
const WARPS_PER_BLOCK: u32 = 4;
/// Number of blocks for each multiprocessor.
const BLOCKS: u64 = 3;
/// Number of entries of the queue of a warp.
const QUEUE: u32 = 32;
const QUEUE_REGISTERS: usize = QUEUE as usize / 32;
/// Smallest number of words of 32 rows of a piece.
const LEAST_WORDS: u32 = 8;

/// Replaces the list of each query in `overflowed` by rows that include the best `k`, with their canonical distances.
///
/// # Safety
/// The arrays are as long as the fields say. `pieces` is [`Self::pieces`], and a list has room for `pieces` · `k`
/// entries.
#[kernel(
    key = RowKey,
    max_threads = 128,
    min_blocks = 3,
    RowKey::F32 => rescan_f32 = rescan::<element::F32>,
    RowKey::F16 => rescan_f16 = rescan::<element::F16>,
    RowKey::Bf16 => rescan_bf16 = rescan::<element::Bf16>,
    RowKey::U8 => rescan_u8 = rescan::<element::U8>,
    RowKey::I8 => rescan_i8 = rescan::<element::I8>,
    RowKey::Bits => rescan_bits = rescan::<element::Bits>,
)]
pub struct Rescan {
    /// The queries and the base.
    #[group]
    pub scanned: ScannedRows,
    /// The number of overflowed queries, and then their numbers.
    pub overflowed: Ptr<u32>,
    /// Number of neighbours of a query, at least 1.
    pub k: u32,
    /// Number of pieces of the base.
    pub pieces: u32,
    /// Distance from one list to the next, in places.
    pub list_stride: u64,
    /// The distances of the lists: that of query q starts at q · `list_stride`.
    pub values: PtrMut<f32>,
    /// The rows of the lists; `NO_ROW` in places without a row.
    pub rows: PtrMut<u32>,
    /// The length of each list.
    pub counts: PtrMut<u32>,
}

impl Rescan {
    /// The number of pieces of a base of `rows` rows, for lists with room for `capacity` entries, of which there are at
    /// least `k`.
    pub fn pieces(rows: u32, k: u32, capacity: u32) -> u32 {
        (capacity / k.max(1)).min(rows.div_ceil(32 * LEAST_WORDS)).max(1)
    }

    /// A fixed number of warps, which share the pieces of all overflowed queries.
    pub fn config(&self, multiprocessors: u32) -> LaunchConfig {
        LaunchConfig::warps(multiprocessors as u64 * BLOCKS * WARPS_PER_BLOCK as u64, WARPS_PER_BLOCK)
    }
}

/// # Safety
/// As [`Rescan`].
#[device_inline]
unsafe fn rescan<E: Row>(launch: Rescan) {
    let warps = thread::grid_dim_x() * WARPS_PER_BLOCK;
    // SAFETY: the caller promises the shapes.
    unsafe {
        let items = global::load_nc(*launch.overflowed) as u64 * launch.pieces as u64;
        let mut item = (thread::block_idx_x() * WARPS_PER_BLOCK + warp::warp_id()) as u64;
        while item < items {
            let (slot, piece) = (item / launch.pieces.max(1) as u64, item % launch.pieces.max(1) as u64);
            let query = global::load_nc(launch.overflowed.wrapping_add(1 + slot as usize));
            scan_piece::<E>(launch, query as usize, piece as u32);
            item += warps as u64;
        }
    }
}

/// Writes the best `k` rows of a piece to the list of a query. All 32 lanes arrive with the same arguments.
///
/// # Safety
/// As [`Rescan`]; the query and the piece exist.
#[device_inline]
unsafe fn scan_piece<E: Row>(launch: Rescan, query: usize, piece: u32) {
    let Rescan { scanned, k, pieces, list_stride, values, rows, counts, .. } = launch;
    let lane = warp::lane_id();
    let words = scanned.row_count.div_ceil(32);
    let of_piece = words.div_ceil(pieces.max(1));
    let list = query * list_stride as usize;
    let mut floor = None;
    let mut done = 0;
    while done < k {
        let wanted = (k - done).min(QUEUE);
        let mut select = WarpSelect::<QUEUE_REGISTERS, { thread_queue(QUEUE) }>::new(wanted, floor);
        let first = (piece * of_piece).min(words);
        // SAFETY: words below `words` have rows of the base.
        unsafe {
            scanned.each::<E>(query, first, words.min(first + of_piece), |badness, row, takes| {
                select.offer(badness, row, takes);
            });
        }
        select.finish();
        unroll::<QUEUE_REGISTERS>(|r| {
            let place = 32 * r as u32 + lane;
            if place < wanted {
                let found = select.entry(r);
                let distance = scanned.metric.distance(entry::value_of(entry::key(found)));
                let at = list + (piece * k + done + place) as usize;
                // SAFETY: the piece has k places of the list, of which done + place is one.
                unsafe {
                    global::store(values.wrapping_add(at), distance);
                    // The payload of an empty slot is NO_ROW.
                    global::store(rows.wrapping_add(at), entry::payload(found));
                }
            }
        });
        floor = Some(warp::shuffle_idx(FULL_MASK, select.entry(QUEUE_REGISTERS - 1), 31));
        done += wanted;
    }
    if lane == 0 && piece == 0 {
        // SAFETY: the query exists.
        unsafe { global::store(counts.wrapping_add(query), pieces * k) };
    }
}

/// The rows of a base that a warp compares with one query at a time.
#[group]
pub struct ScannedRows {
    /// Rows of `stride` components, of the type of the key.
    pub queries: Ptr<u8>,
    /// `row_count` rows of `stride` components, of the type of the key.
    pub base: Ptr<u8>,
    /// Distance from one row to the next in components: a multiple of 4, zero padded.
    pub stride: u32,
    /// Number of rows of the base.
    pub row_count: u32,
    /// The metric of the distances.
    pub metric: Metric,
    /// Σx² of each query, if distances are divided by norms; otherwise absent.
    pub query_squares: Option<Ptr<f64>>,
    /// Σx² of each row of the base; empty if `query_squares` is absent.
    pub base_squares: Ptr<f64>,
    /// Bit r mod 32 of word r / 32 is set if row r takes part; absent: all do.
    pub bits: Option<Ptr<u32>>,
}

impl ScannedRows {
    /// Calls `take` for the rows of words `from` .. `to` that take part: in each lane with a canonical distance as
    /// smaller is better, its row, and whether they are the lane's. All 32 lanes arrive with the same arguments.
    ///
    /// # Safety
    /// As [`Rescan`]; the query exists, and each word has at least one row of the base.
    #[device_inline]
    pub(crate) unsafe fn each<E: Row>(self, query: usize, from: u32, to: u32, mut take: impl FnMut(f32, u32, bool)) {
        let ScannedRows { queries, stride, row_count, metric, query_squares, base_squares, bits, .. } = self;
        let base = self.base.cast::<E::Stored>();
        let x = queries.cast::<E::Stored>().wrapping_add(query * stride as usize);
        let lane = warp::lane_id();
        // The lane that offers the next row: each lane in turn, so that no queue of a lane fills early.
        let mut turn = 0;
        let mut word = from;
        while word < to {
            let exist = if row_count - 32 * word < 32 { (1 << (row_count % 32)) - 1 } else { u32::MAX };
            // SAFETY: there is a bit for each row.
            let mut left =
                exist & bits.map_or(u32::MAX, |bits| unsafe { global::load_nc(bits.wrapping_add(word as usize)) });
            while left != 0 {
                // After the last row of the word this row is evaluated again and not offered.
                let (mut row, mut count) = ([0u32; BATCH], 0);
                let mut pointers = [*base; BATCH];
                unroll::<BATCH>(|b| {
                    let repeats = left == 0;
                    row[b] = if repeats { row[b.max(1) - 1] } else { 32 * word + left.trailing_zeros() };
                    count += !repeats as u32;
                    left &= left.wrapping_sub(1);
                    pointers[b] = base.wrapping_add(row[b] as usize * stride as usize);
                });
                // SAFETY: the rows exist and have stride / 4 groups of components, as the query has.
                let sums = unsafe {
                    sums_by(metric, |quad| E::quad(x, quad), |b, quad| E::quad(pointers[b], quad), stride / 4, lane)
                };
                let (mut sum, mut own) = (0.0, 0);
                let mine = lane.wrapping_sub(turn) % 32;
                unroll::<BATCH>(|b| {
                    if mine == b as u32 {
                        (sum, own) = (sums[b], row[b]);
                    }
                });
                let takes = mine < count;
                if let Some(query_squares) = query_squares
                    && takes
                {
                    // SAFETY: the query and the row have squares.
                    sum = unsafe {
                        over_norms(
                            sum,
                            global::load_nc(query_squares.wrapping_add(query))
                                * global::load_nc(base_squares.wrapping_add(own as usize)),
                        )
                    };
                }
                take(metric.badness(sum as f32 + 0.0), own, takes);
                turn += BATCH as u32;
            }
            word += 1;
        }
    }
}
