//! The use of the products of a tile by a filter. It stores upper bounds of all pairs, or appends the pairs that a
//! threshold keeps to lists. [`PairBounds`] is the part that depends on the operands.
//!
//! # Shared memory
//! The header of a block: the numbers of its 128 queries, the data of the tiles in flight, and the queues of pairs.
//! Pairs that are kept wait in the queue of their warp until there are enough of them for their atomics to overlap.

use cuda_std::shared::SharedPtr;
use cuda_std::warp::FULL_MASK;
use cuda_std::{atomic, global, shared, unroll, warp};

use crate::flat::pass::{FilterPass, Share, TILE_QUERIES};
use crate::product::instruction::{Instruction, Scores, Sum, TileProduct, entry_of};
use crate::product::mainloop::{Epilogue, Operands, Pass};
use crate::product::tile::{CHUNK_TILE_BYTES, THREADS, TILE_ROWS};

/// Bytes of the data of a tile that the epilogue needs: 128 values, greatest norm, greatest residual, number of the
/// tile.
const INFO_BYTES: u32 = TILE_ROWS * 4 + 16;
/// Number of tiles whose chunks can be in flight at once.
const INFOS: u32 = 4;
/// Bytes of the data of the queries that the epilogue needs: four numbers for each.
const TERMS_BYTES: u32 = TILE_QUERIES * 16;
/// Largest number of groups of eight pairs that a lane has in one row.
pub(crate) const GROUPS: usize = 4;
/// Capacity of the queue of a warp in shared memory, in pairs. At the end of a tile, a queue that is more than half
/// full is appended to the lists.
const QUEUE: u32 = 64;
const QUEUES_AT: u32 = (TERMS_BYTES + INFOS * INFO_BYTES).next_multiple_of(16);
/// Bytes of the header of a block's shared memory.
pub(crate) const HEADER_BYTES: u32 = (QUEUES_AT + THREADS / 32 * QUEUE * 16).next_multiple_of(1024);

/// The place of the four numbers of each of the block's queries.
#[inline(always)]
pub(crate) fn terms_at() -> SharedPtr<global::F32x4> {
    shared::dynamic::<u8>().cast()
}

/// The place of the data of tile `visit` of the block: 128 values, and the words behind them ([`TileWords`]).
#[inline(always)]
pub(crate) fn info_at(visit: u32) -> SharedPtr<u8> {
    // SAFETY: the place is below `INFOS`.
    unsafe { shared::dynamic::<u8>().add(TERMS_BYTES).add((visit % INFOS) * INFO_BYTES) }
}

/// The words behind the values of a tile.
#[derive(Clone, Copy)]
#[repr(u32)]
pub(crate) enum TileWord {
    /// The greatest norm of the tile's rows.
    Norm = TILE_ROWS * 4,
    /// The greatest residual of the tile's rows.
    Residual = TILE_ROWS * 4 + 4,
    /// The number of the tile.
    Number = TILE_ROWS * 4 + 8,
}

impl TileWord {
    /// The place of the word in the data of a tile.
    ///
    /// # Safety
    /// `info` is the data of a tile.
    #[inline(always)]
    pub unsafe fn of<T>(self, info: SharedPtr<u8>) -> SharedPtr<T> {
        // SAFETY: the data of a tile have three words behind the values.
        unsafe { info.add(self as u32).cast() }
    }
}

/// The values of two neighbouring rows of a tile.
///
/// # Safety
/// `column` is even and below 128.
#[inline(always)]
pub(crate) unsafe fn values(info: SharedPtr<u8>, column: u32) -> [f32; 2] {
    // SAFETY: as the caller promises.
    unsafe { info.add(column * 4).cast::<global::F32x2>().load().0 }
}

/// The value of a row of a tile.
///
/// # Safety
/// `column` is below 128.
#[inline(always)]
unsafe fn value_at(info: SharedPtr<u8>, column: u32) -> f32 {
    // SAFETY: as the caller promises.
    unsafe { info.add(column * 4).cast::<f32>().load() }
}

/// The bounds of the pairs of a block, for operands of one kind.
pub(crate) trait PairBounds: Copy {
    /// The type of a product.
    type Sum: Sum;

    /// A limit of scores, in the form in which pairs are compared with it.
    type Limit: Copy;

    /// The tiles and the output.
    fn pass(&self) -> FilterPass;

    /// The factor of the scores of query `row` of the block.
    ///
    /// # Safety
    /// `row` < 128, and the numbers of the queries were written before a barrier.
    unsafe fn factor(&self, row: u32) -> f32;

    /// The error bound of the scores of query `row` with the tile of `info`.
    ///
    /// # Safety
    /// As [`factor`](Self::factor); the tile was waited for.
    unsafe fn error(&self, row: u32, info: SharedPtr<u8>) -> f32;

    /// The limit of the scores of query `row` with the tile of `info`: the threshold plus the error.
    ///
    /// # Safety
    /// As [`error`](Self::error).
    unsafe fn limit(&self, row: u32, info: SharedPtr<u8>) -> Self::Limit;

    /// Whether the score of a pair that [may be kept](Self::may_keep) is within the limit of query `row` with the tile
    /// of `info`, or NaN.
    ///
    /// # Safety
    /// As [`error`](Self::error).
    unsafe fn keeps(&self, score: f32, row: u32, info: SharedPtr<u8>) -> bool;

    /// The score of a pair: of its product, the value of the base's row, and the query's own factor.
    fn score(&self, sum: Self::Sum, value: f32, factor: f32) -> f32;

    /// One bit for each of eight pairs of a row, 2 · j + e for `sum(j, e)` and `value(j)[e]`, that may have a score up
    /// to the limit, or NaN. `factor` is as for [`score`](Self::score).
    fn may_keep(
        &self,
        sum: impl Fn(usize, usize) -> Self::Sum,
        value: impl Fn(usize) -> [f32; 2],
        factor: f32,
        limit: Self::Limit,
    ) -> u32;

    /// One bit for each group of eight pairs of a row, of which one [may be kept](Self::may_keep): bit 2 · group +
    /// half. `sums` are the products of the queries `rows` of the block at the lane's columns, the first of which is
    /// `column`.
    ///
    /// # Safety
    /// `info` is the data of a tile that was waited for, and the rows are as for [`factor`](Self::factor).
    unsafe fn hits<const COLUMNS: usize>(
        &self,
        sums: &[[Self::Sum; 4]; COLUMNS],
        info: SharedPtr<u8>,
        column: u32,
        limits: [Self::Limit; 2],
        rows: [u32; 2],
    ) -> u32;
}

/// Stores the upper bounds of all pairs.
struct DenseBounds<B> {
    bounds: B,
    first_query: u32,
    share: Share,
}

impl<B: PairBounds, P: TileProduct<ROWS, COLUMNS, Sum = B::Sum>, const ROWS: usize, const COLUMNS: usize>
    Epilogue<P, ROWS, COLUMNS> for DenseBounds<B>
{
    #[inline(always)]
    unsafe fn tile(&mut self, part: &P, visit: u32, sums: &Scores<ROWS, COLUMNS, B::Sum>) {
        let FilterPass { query_count, out_values, out_stride, .. } = self.bounds.pass();
        // SAFETY: the tile was waited for; stores are checked against query_count, and a row has room for all visited
        // tiles.
        unsafe {
            let info = info_at(visit);
            let column = part.column();
            unroll::<ROWS>(|i| {
                unroll::<2>(|half| {
                    let row = part.row(i, half);
                    let query = self.first_query + row;
                    if query < query_count {
                        let (factor, error) = (self.bounds.factor(row), self.bounds.error(row, info));
                        let out = query as usize * out_stride as usize
                            + (self.share.visited(visit) * TILE_ROWS + column) as usize;
                        unroll::<COLUMNS>(|j| {
                            let value = values(info, column + 8 * j as u32);
                            let score = |e: usize| self.bounds.score(sums[i][j][2 * half + e], value[e], factor);
                            let pair = [score(0) + error, score(1) + error];
                            let to = out_values.wrapping_add(out + 8 * j).cast::<global::F32x2>();
                            global::store(to, global::F32x2(pair));
                        });
                    }
                });
            });
        }
    }
}

/// Appends the pairs whose lower bound is at most the query's threshold to the query's list.
struct AppendWithin<B> {
    bounds: B,
    first_query: u32,
    /// Number of tiles of the block.
    tiles: u32,
    lane: u32,
    /// Pairs that the warp keeps. They wait here until there are enough of them for their atomics to overlap.
    queue: SharedPtr<global::U32x4>,
    queued: u32,
}

impl<B: PairBounds> AppendWithin<B> {
    #[inline(always)]
    fn new(bounds: B, first_query: u32, tiles: u32) -> AppendWithin<B> {
        let (lane, queue) = (warp::lane_id(), SharedPtr::from_address(0));
        AppendWithin { bounds, first_query, tiles, lane, queue, queued: 0 }
    }

    /// Appends one pair to a list; the words are its upper bound, its base row, or a number that is none, and its query
    /// in the block.
    ///
    /// # Safety
    /// The arrays of the pass are as long as its fields say.
    #[inline(always)]
    unsafe fn append(&self, [upper, row, query, _]: [u32; 4]) {
        let FilterPass { row_count, query_count, counts, out_values, out_rows, out_stride, .. } = self.bounds.pass();
        let query = self.first_query + query;
        // Padded rows have the value +∞ and padded queries the threshold −∞, but an infinite threshold or a NaN lets
        // such pairs pass.
        if row >= row_count || query >= query_count {
            return;
        }
        // SAFETY: the query exists, and the place is checked.
        unsafe {
            let place = atomic::add_u32(counts.wrapping_add(query as usize), 1);
            if place < out_stride {
                let at = query as usize * out_stride as usize + place as usize;
                global::store(out_values.wrapping_add(at), f32::from_bits(upper));
                global::store(out_rows.wrapping_add(at), row);
            }
        }
    }

    /// Appends the pairs of the queue to the lists if there are more than `from`.
    ///
    /// # Safety
    /// As [`Self::append`]; all lanes of the warp arrive.
    #[inline(always)]
    unsafe fn append_queue(&mut self, from: u32) {
        if self.queued > from {
            warp::sync_warp(FULL_MASK);
            let mut entry = self.lane;
            while entry < self.queued.min(QUEUE) {
                // SAFETY: entries below QUEUE, which were stored.
                unsafe { self.append(self.queue.add(entry).load().0) };
                entry += 32;
            }
            warp::sync_warp(FULL_MASK);
            self.queued = 0;
        }
    }

    /// Puts the pair `words(i)` in the queue for each bit i of `keeps`; a full queue appends it at once. All lanes of
    /// the warp arrive.
    ///
    /// # Safety
    /// As [`Self::append`].
    #[inline(always)]
    unsafe fn keep(&mut self, mut keeps: u32, words: impl Fn(u32) -> [u32; 4]) {
        loop {
            let waiting = warp::ballot(FULL_MASK, keeps != 0);
            if waiting == 0 {
                break;
            }
            if keeps != 0 {
                let at = keeps.trailing_zeros();
                keeps &= keeps - 1;
                let words = words(at);
                let place = self.queued + (waiting & ((1 << self.lane) - 1)).count_ones();
                // SAFETY: the place is checked.
                unsafe {
                    if place < QUEUE {
                        self.queue.add(place).store(global::U32x4(words));
                    } else {
                        self.append(words);
                    }
                }
            }
            self.queued += waiting.count_ones();
        }
    }
}

impl<B: PairBounds, P: TileProduct<ROWS, COLUMNS, Sum = B::Sum>, const ROWS: usize, const COLUMNS: usize>
    Epilogue<P, ROWS, COLUMNS> for AppendWithin<B>
{
    /// Sets the address of the queue. It is set here because an address that is kept during the first steps occupies
    /// registers.
    #[inline(always)]
    unsafe fn begin(&mut self, _: SharedPtr<u8>) {
        let header = shared::dynamic::<u8>();
        // SAFETY: the header has the queues of all warps.
        self.queue = unsafe { header.add(QUEUES_AT).cast::<global::U32x4>().add(warp::warp_id() * QUEUE) };
    }

    #[inline(always)]
    unsafe fn tile(&mut self, part: &P, visit: u32, sums: &Scores<ROWS, COLUMNS, B::Sum>) {
        let bounds = self.bounds;
        // SAFETY: the tile was waited for, and all threads of the block arrive.
        unsafe {
            let info = info_at(visit);
            let column = part.column();
            unroll::<ROWS>(|i| {
                let rows = [part.row(i, 0), part.row(i, 1)];
                let limits = [bounds.limit(rows[0], info), bounds.limit(rows[1], info)];
                let hits = bounds.hits(&sums[i], info, column, limits, rows);
                // The hits of all lanes, so that the warp branches as one.
                let hits = warp::reduce_or(FULL_MASK, hits);
                if hits != 0 {
                    unroll::<{ 2 * GROUPS }>(|group_half| {
                        let (group, half) = (group_half / 2, group_half % 2);
                        if 4 * group < COLUMNS && hits & (1 << group_half) != 0 {
                            let factor = bounds.factor(rows[half]);
                            let pair = |j: usize, e: usize| sums[i][(4 * group + j) % COLUMNS][2 * half + e];
                            let of_rows = |j: usize| values(info, column + 32 * group as u32 + 8 * j as u32);
                            let keeps = bounds.may_keep(pair, of_rows, factor, limits[half]);
                            self.keep(keeps, |at| {
                                let column = column + 32 * group as u32 + 8 * (at / 2) + at % 2;
                                let score = bounds.score(entry_of::<4, _>(pair, at), value_at(info, column), factor);
                                let tile: u32 = TileWord::Number.of::<u32>(info).load();
                                let kept = bounds.keeps(score, rows[half], info);
                                let row = if kept { tile * TILE_ROWS + column } else { u32::MAX };
                                let upper = score + bounds.error(rows[half], info);
                                [upper.to_bits(), row, rows[half], 0]
                            });
                        }
                    });
                }
            });
            self.append_queue(if visit + 1 < self.tiles { QUEUE / 2 } else { 0 });
        }
    }
}

/// The part of a block in a pass.
#[derive(Clone, Copy)]
pub(crate) struct Visited {
    /// Number of chunks of a row.
    pub chunks: u32,
    /// The first query of the block.
    pub first_query: u32,
    /// The tiles of the block.
    pub share: Share,
}

impl Visited {
    /// The pass over the tiles, with this number of stages.
    #[inline(always)]
    fn pass(self, filter: FilterPass, stages: u32) -> Pass {
        let Visited { chunks, share, .. } = self;
        // SAFETY: the header is in the shared memory of the block.
        let at = unsafe { shared::dynamic::<u8>().add(HEADER_BYTES) };
        Pass { at, rows_bytes: CHUNK_TILE_BYTES, chunks, tiles: share.tiles(filter.tiles), stages }
    }
}

/// Visits the tiles of a block. `DENSE` stores all bounds; otherwise pairs are appended. All threads of the block
/// arrive.
///
/// # Safety
/// The arrays of the pass are as long as its fields say, the numbers of the queries are written, and the operands have
/// the tiles of the block. The block has shared memory for the header and for the ring of the instruction.
#[inline(always)]
pub(crate) unsafe fn visit<
    P: TileProduct<ROWS, COLUMNS, Sum = B::Sum>,
    B: PairBounds,
    const ROWS: usize,
    const COLUMNS: usize,
    const RESIDENT: bool,
    const DENSE: bool,
>(
    operands: &mut impl Operands,
    bounds: B,
    visited: Visited,
) {
    let pass = visited.pass(bounds.pass(), P::INSTRUCTION.ring().stages(RESIDENT));
    let Visited { first_query, share, .. } = visited;
    let tiles = pass.tiles;
    // SAFETY: as the caller promises.
    unsafe {
        if DENSE {
            let dense = &mut DenseBounds { bounds, first_query, share };
            pass.run::<P, ROWS, COLUMNS, RESIDENT, 1>(operands, dense);
        } else if const { RESIDENT && matches!(P::INSTRUCTION, Instruction::Wgmma) } {
            let append = &mut AppendWithin::new(bounds, first_query, tiles);
            pass.run::<P, ROWS, COLUMNS, RESIDENT, 2>(operands, append);
        } else {
            let append = &mut AppendWithin::new(bounds, first_query, tiles);
            pass.run::<P, ROWS, COLUMNS, RESIDENT, 1>(operands, append);
        }
    }
}

/// One bit for each of eight pairs for which `keep` is true.
#[inline(always)]
pub(crate) fn bits_of<S: Copy>(
    sum: impl Fn(usize, usize) -> S,
    value: impl Fn(usize) -> [f32; 2],
    keep: impl Fn(S, f32) -> bool,
) -> u32 {
    let mut bits = 0u32;
    unroll::<4>(|j| {
        let value = value(j);
        unroll::<2>(|e| bits |= (keep(sum(j, e), value[e]) as u32) << (2 * j + e));
    });
    bits
}
