//! The use of the products of a tile by a filter. It stores upper bounds of all pairs, or appends the pairs that a
//! threshold keeps to lists. [`PairBounds`] is the part that depends on the operands.
//!
//! # Pairs that are kept
//! A look at groups of eight pairs of a lane finds those groups in which a pair may be within its limit; most tiles of
//! a warp have none. Then three steps follow, so that no step runs for the pairs of one lane only:
//! 1. lanes with such a group write its eight sums to shared memory;
//! 2. the warp compares four groups at once, a pair a lane, and pairs that are kept go into the queue of the warp;
//! 3. 32 pairs of the queue at once are appended to the lists of the queries: their atomics overlap, and their answers
//!    are awaited when the next 32 come.
//!
//! # Shared memory
//! The header of a block: the numbers of its 128 queries, the data of the tiles in flight, and for each warp the groups
//! of step 1 and the queue of step 2.

use cuda_std::shared::SharedPtr;
use cuda_std::warp::FULL_MASK;
use cuda_std::{atomic, device_inline, global, shared, unroll, warp};

use crate::flat::pass::{FilterPass, Share, TILE_QUERIES};
use crate::product::instruction::{Instruction, Scores, Sum, TileProduct};
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
const GROUPS: usize = 4;
/// Number of groups that a warp examines in one round. More would leave no room for two blocks of the ring of `wgmma`.
const EXAMINED: u32 = 16;
/// Number of pairs of a group.
const GROUP_PAIRS: u32 = 8;
/// Bytes of the sums of a group, and of its place in the tile.
const GROUP_BYTES: u32 = GROUP_PAIRS * 4 + 4;
/// Capacity of the queue of a warp in pairs: fewer than 32 that wait, and one more from each lane.
const QUEUE: u32 = 64;
/// Bytes of the groups and of the queue of a warp.
const WARP_BYTES: u32 = EXAMINED * GROUP_BYTES + QUEUE * 16;
const WARPS_AT: u32 = (TERMS_BYTES + INFOS * INFO_BYTES).next_multiple_of(16);
/// Bytes of the header of a block's shared memory.
pub(crate) const HEADER_BYTES: u32 = (WARPS_AT + THREADS / 32 * WARP_BYTES).next_multiple_of(1024);
const _: () = assert!(WARP_BYTES.is_multiple_of(16));

/// The place of the four numbers of each of the block's queries.
#[device_inline]
pub(crate) fn terms_at() -> SharedPtr<global::F32x4> {
    shared::dynamic::<u8>().cast()
}

/// The place of the data of tile `visit` of the block: 128 values, and the words behind them ([`TileWords`]).
#[device_inline]
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
    #[device_inline]
    pub unsafe fn of<T>(self, info: SharedPtr<u8>) -> SharedPtr<T> {
        // SAFETY: the data of a tile have three words behind the values.
        unsafe { info.add(self as u32).cast() }
    }
}

/// The values of two neighbouring rows of a tile.
///
/// # Safety
/// `column` is even and below 128.
#[device_inline]
unsafe fn values(info: SharedPtr<u8>, column: u32) -> [f32; 2] {
    // SAFETY: as the caller promises.
    unsafe { info.add(column * 4).cast::<global::F32x2>().load().0 }
}

/// The value of a row of a tile.
///
/// # Safety
/// `column` is below 128.
#[device_inline]
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

    /// The score of a pair: of its product, the value of the base's row, and the query's own factor.
    fn score(&self, sum: Self::Sum, value: f32, factor: f32) -> f32;

    /// The upper bound of the score of a pair of query `row` with a row of the tile of `info`, if its lower bound is
    /// within the threshold, or NaN.
    ///
    /// # Safety
    /// As [`error`](Self::error).
    unsafe fn kept(&self, sum: Self::Sum, value: f32, row: u32, info: SharedPtr<u8>) -> Option<f32>;

    /// One bit for each group of eight pairs of a row, of which one may be [kept](Self::kept): bit 2 · group + half;
    /// `None` if no lane of the warp has any. `sums` are the products of the queries `rows` of the block at the lane's
    /// columns, the first of which is `column`. All lanes of the warp arrive.
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
    ) -> Option<u32>;
}

/// The hits of [`PairBounds::hits`]. `nearest` joins what is known of pairs, which starts as `start`, with a pair;
/// `join` joins what is known of groups; `within` says whether those of row `half` may have a hit.
///
/// # Safety
/// As [`PairBounds::hits`].
#[device_inline]
pub(crate) unsafe fn hits_of<S: Sum, T: Copy, const COLUMNS: usize>(
    sums: &[[S; 4]; COLUMNS],
    (info, column): (SharedPtr<u8>, u32),
    start: T,
    nearest: impl Fn(T, S, f32) -> T,
    join: impl Fn(T, T) -> T,
    within: impl Fn(T, usize) -> bool,
) -> Option<u32> {
    let mut groups = [[start; 2]; GROUPS];
    let mut all = [start; 2];
    unroll::<GROUPS>(|group| {
        if 4 * group < COLUMNS {
            let best = &mut groups[group];
            unroll::<4>(|j| {
                let at = 4 * group + j;
                // SAFETY: the columns are those of the lane.
                let value = unsafe { values(info, column + 8 * at as u32) };
                unroll::<2>(|half| {
                    unroll::<2>(|e| best[half] = nearest(best[half], sums[at % COLUMNS][2 * half + e], value[e]))
                });
            });
            unroll::<2>(|half| all[half] = if group == 0 { best[half] } else { join(all[half], best[half]) });
        }
    });
    // Most tiles of a warp have no hit: whether there is one is known before it is known where.
    if !warp::any(FULL_MASK, within(all[0], 0) | within(all[1], 1)) {
        return None;
    }
    let mut hits = 0u32;
    unroll::<GROUPS>(|group| {
        if 4 * group < COLUMNS {
            unroll::<2>(|half| hits |= (within(groups[group][half], half) as u32) << (2 * group + half));
        }
    });
    Some(hits)
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
    #[device_inline]
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

/// A pair that a lane appends: its upper bound as bits, its row of the base, its query, and its place in the query's
/// list, which an atomic operation returns some time after it was asked.
#[derive(Clone, Copy)]
struct Taken {
    upper: u32,
    row: u32,
    query: u32,
    place: u32,
}

/// The place of no pair.
const NO_PLACE: u32 = u32::MAX;

/// Appends the pairs whose lower bound is at most the query's threshold to the query's list. If `LATER`, a pair is
/// stored when the next pairs are appended: that takes four registers, which kernels with `mma.sync` do not have.
struct AppendWithin<B, const LATER: bool> {
    bounds: B,
    first_query: u32,
    /// Number of tiles of the block.
    tiles: u32,
    lane: u32,
    /// Pairs that the warp keeps. They wait here until there are enough of them for their atomics to overlap. The
    /// groups that are examined stand behind them: their sums, then their places.
    queue: SharedPtr<global::U32x4>,
    queued: u32,
    taken: Taken,
}

impl<B: PairBounds, const LATER: bool> AppendWithin<B, LATER> {
    #[device_inline]
    fn new(bounds: B, first_query: u32, tiles: u32) -> Self {
        let (lane, queue) = (warp::lane_id(), SharedPtr::from_address(0));
        let taken = Taken { upper: 0, row: 0, query: 0, place: NO_PLACE };
        AppendWithin { bounds, first_query, tiles, lane, queue, queued: 0, taken }
    }

    /// The sums of the groups that are examined, eight for each.
    #[device_inline]
    fn sums(&self) -> SharedPtr<u32> {
        // SAFETY: the groups stand behind the queue.
        unsafe { self.queue.add(QUEUE).cast() }
    }

    /// The places of the groups that are examined: 256 · query of the block + first column of the group.
    #[device_inline]
    fn places(&self) -> SharedPtr<u32> {
        // SAFETY: the places stand behind the sums.
        unsafe { self.sums().add(EXAMINED * GROUP_PAIRS) }
    }

    /// Number of lanes before this one among `lanes`.
    #[device_inline]
    fn rank(&self, lanes: u32) -> u32 {
        (lanes & ((1 << self.lane) - 1)).count_ones()
    }

    /// Takes the first 32 pairs of the queue, if there are more than `from`, and asks for their places in the lists. If
    /// `LATER`, the pairs that were taken before are stored: only then is an answer needed.
    ///
    /// # Safety
    /// The arrays of the pass are as long as its fields say; all lanes of the warp arrive.
    #[device_inline]
    unsafe fn append_queue(&mut self, from: u32) {
        if self.queued <= from {
            return;
        }
        let FilterPass { row_count, query_count, counts, .. } = self.bounds.pass();
        // SAFETY: entries below `queued` were stored before the barrier, and the pairs of other warps have other
        // queues.
        unsafe {
            if LATER {
                self.store_taken();
            }
            warp::sync_warp(FULL_MASK);
            if self.lane < self.queued {
                let [upper, row, query, _] = self.queue.add(self.lane).load().0;
                let query = self.first_query + query;
                // Padded rows have the value +∞ and padded queries the threshold −∞, but an infinite threshold or a NaN
                // lets such pairs pass.
                if row < row_count && query < query_count {
                    let place = atomic::add_u32(counts.wrapping_add(query as usize), 1);
                    self.taken = Taken { upper, row, query, place };
                }
            }
            if !LATER {
                self.store_taken();
            }
            let left = self.queued.saturating_sub(32);
            if self.lane < left {
                self.queue.add(self.lane).store(self.queue.add(32 + self.lane).load());
            }
            warp::sync_warp(FULL_MASK);
            self.queued = left;
        }
    }

    /// Stores the pair of the lane that was [taken](Self::append_queue) last.
    ///
    /// # Safety
    /// As [`Self::append_queue`].
    #[device_inline]
    unsafe fn store_taken(&mut self) {
        let FilterPass { out_values, out_rows, out_stride, .. } = self.bounds.pass();
        let Taken { upper, row, query, place } = self.taken;
        if place < out_stride {
            let at = query as usize * out_stride as usize + place as usize;
            // SAFETY: the query exists, and the place is checked.
            unsafe {
                global::store(out_values.wrapping_add(at), f32::from_bits(upper));
                global::store(out_rows.wrapping_add(at), row);
            }
        }
        self.taken.place = NO_PLACE;
    }

    /// Puts the pairs of the first `groups` examined groups that are kept into the queue. All lanes of the warp arrive.
    ///
    /// # Safety
    /// As [`Self::append`]; the groups were stored, and `info` is the data of their tile.
    #[device_inline]
    unsafe fn examine(&mut self, groups: u32, info: SharedPtr<u8>) {
        let pair = self.lane % GROUP_PAIRS;
        let mut group = self.lane / GROUP_PAIRS;
        warp::sync_warp(FULL_MASK);
        // SAFETY: groups below `groups` were stored before the barrier of the warp; the queue has room for one pair of
        // each lane, because at most 31 wait.
        unsafe {
            let tile: u32 = TileWord::Number.of::<u32>(info).load();
            let mut first = 0;
            while first < groups {
                self.append_queue(31);
                let mut words = None;
                if group < groups {
                    let place = self.places().add(group).load();
                    let (query, column) = (place >> 8, (place & 255) + 8 * (pair / 2) + pair % 2);
                    let sum = B::Sum::of_bits(self.sums().add(group * GROUP_PAIRS + pair).load());
                    let kept = self.bounds.kept(sum, value_at(info, column), query, info);
                    words = kept.map(|upper| [upper.to_bits(), tile * TILE_ROWS + column, query, 0]);
                }
                let keeping = warp::ballot(FULL_MASK, words.is_some());
                if let Some(words) = words {
                    self.queue.add(self.queued + self.rank(keeping)).store(global::U32x4(words));
                }
                self.queued += keeping.count_ones();
                (first, group) = (first + 32 / GROUP_PAIRS, group + 32 / GROUP_PAIRS);
            }
        }
        warp::sync_warp(FULL_MASK);
    }
}

impl<
    B: PairBounds,
    P: TileProduct<ROWS, COLUMNS, Sum = B::Sum>,
    const ROWS: usize,
    const COLUMNS: usize,
    const LATER: bool,
> Epilogue<P, ROWS, COLUMNS> for AppendWithin<B, LATER>
{
    /// Sets the address of the queue. It is set here because an address that is kept during the first steps occupies
    /// registers.
    #[device_inline]
    unsafe fn begin(&mut self, _: SharedPtr<u8>) {
        let header = shared::dynamic::<u8>();
        // SAFETY: the header has the memory of all warps.
        self.queue = unsafe { header.add(WARPS_AT + warp::warp_id() * WARP_BYTES).cast() };
    }

    #[device_inline]
    unsafe fn tile(&mut self, part: &P, visit: u32, sums: &Scores<ROWS, COLUMNS, B::Sum>) {
        let bounds = self.bounds;
        // SAFETY: the tile was waited for, and all threads of the block arrive.
        unsafe {
            let info = info_at(visit);
            let column = part.column();
            unroll::<ROWS>(|i| {
                let rows = [part.row(i, 0), part.row(i, 1)];
                let limits = [bounds.limit(rows[0], info), bounds.limit(rows[1], info)];
                let Some(mut hits) = bounds.hits(&sums[i], info, column, limits, rows) else { return };
                loop {
                    // The hits of all lanes, so that the warp branches as one.
                    let any = warp::reduce_or(FULL_MASK, hits);
                    if any == 0 {
                        break;
                    }
                    let mut groups = 0;
                    unroll::<{ 2 * GROUPS }>(|bit| {
                        let (group, half) = (bit / 2, bit % 2);
                        if 4 * group < COLUMNS && any & (1 << bit) != 0 && groups < EXAMINED {
                            let hit = hits & (1 << bit) != 0;
                            let hitting = warp::ballot(FULL_MASK, hit);
                            let at = groups + self.rank(hitting);
                            groups += hitting.count_ones();
                            if hit && at < EXAMINED {
                                hits &= !(1 << bit);
                                let to = self.sums().add(at * GROUP_PAIRS).cast::<global::U32x2>();
                                // Two at a time, because they are neighbours in the registers of the product.
                                unroll::<4>(|j| {
                                    let sum = |e: usize| sums[i][(4 * group + j) % COLUMNS][2 * half + e].bits();
                                    to.add(j as u32).store(global::U32x2([sum(0), sum(1)]));
                                });
                                self.places().add(at).store(rows[half] << 8 | (column + 32 * group as u32));
                            }
                        }
                    });
                    self.examine(groups.min(EXAMINED), info);
                }
            });
            if visit + 1 == self.tiles {
                while self.queued > 0 {
                    self.append_queue(0);
                }
                if LATER {
                    self.store_taken();
                }
            }
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
    #[device_inline]
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
#[device_inline]
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
            let append = &mut AppendWithin::<B, true>::new(bounds, first_query, tiles);
            pass.run::<P, ROWS, COLUMNS, RESIDENT, 2>(operands, append);
        } else {
            let append = &mut AppendWithin::<B, false>::new(bounds, first_query, tiles);
            pass.run::<P, ROWS, COLUMNS, RESIDENT, 1>(operands, append);
        }
    }
}
