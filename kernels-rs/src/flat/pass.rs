//! A pass of a filter: the tiles of the base that a launch visits, their division among blocks, and the output.

use cuda_std::launch::LaunchConfig;
use cuda_std::{Ptr, PtrMut, device_inline, group, thread};

use crate::product::metric::Metric;
use crate::product::tile::THREADS;

/// Number of queries in a tile.
pub const TILE_QUERIES: u32 = 128;

/// Number of the base tile that a launch visits as its tile `visited`.
///
/// `skip` = 0: tiles 0, stride, 2·stride, ..; else all tiles that are not multiples of `skip`.
#[device_inline]
pub fn tile_number(visited: u32, stride: u32, skip: u32) -> u32 {
    // `max(1)` shows the compiler that the divisor is not 0. A skip of 1 would visit no tile.
    if skip == 0 { visited * stride } else { visited + visited / (skip - 1).max(1) + 1 }
}

/// The output of a filter kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FilterOutput {
    /// Upper bounds u of the scores of every query with every visited row.
    Dense,
    /// (u, row) for each pair whose lower bound is at most the query's threshold.
    Append,
}

/// The tiles that a launch of a filter visits, and its output.
#[group]
pub struct FilterPass {
    /// Number of queries without padding.
    pub query_count: u32,
    /// Number of base rows without padding.
    pub row_count: u32,
    /// The metric of the scores.
    pub metric: Metric,
    /// Number of tiles that the launch visits: the tiles [`tile_number`] of 0 .. `tiles`.
    pub tiles: u32,
    /// The `stride` of [`tile_number`].
    pub tile_stride: u32,
    /// The `skip` of [`tile_number`].
    pub tile_skip: u32,
    /// The threshold of each query. Empty for dense kernels, which do not read it.
    pub thresholds: Ptr<f32>,
    /// The upper bounds u, `query_count` rows of `out_stride` numbers. Dense: row r of visited tile t is in column 128
    /// · t + r of the query's row. Append: entry p of a query's list is at place p of the query's row.
    pub out_values: PtrMut<f32>,
    /// Append: the base row of each entry of `out_values`. Dense: empty.
    pub out_rows: PtrMut<u32>,
    /// Append: the length of each query's list. The launch adds the number of entries that it finds, including those
    /// that exceed the capacity. Dense: empty.
    pub counts: PtrMut<u32>,
    /// Distance from one row of `out_values` and `out_rows` to the next. Dense: even, at least 128 · `tiles`. Append:
    /// the capacity of a list.
    pub out_stride: u32,
}

impl FilterPass {
    /// A block has 128 queries and a share of the visited tiles. The number of shares makes whole waves of blocks, two
    /// for each multiprocessor.
    pub(crate) fn config(&self, multiprocessors: u32, shared_bytes: u32) -> LaunchConfig {
        let query_tiles = self.query_count.div_ceil(TILE_QUERIES);
        let shares = shares(query_tiles, self.tiles, multiprocessors);
        LaunchConfig::linear(query_tiles as u64, THREADS).along_y(shares as u64).with_shared(shared_bytes)
    }
}

/// Number of shares of the tiles for which the blocks, two for each multiprocessor, make whole waves.
fn shares(query_tiles: u32, tiles: u32, multiprocessors: u32) -> u32 {
    // To fill and drain the pipeline costs a block about as much as two tiles.
    const OVERHEAD: u64 = 2;
    let slots = multiprocessors as u64 * 2;
    let cost = |shares: u32| {
        let waves = (query_tiles as u64 * shares as u64).div_ceil(slots);
        waves * (tiles.div_ceil(shares) as u64 + OVERHEAD)
    };
    (1..=tiles.min(1024)).min_by_key(|&shares| cost(shares)).unwrap_or(1)
}

/// The share of a block among the visited tiles: `first`, `first + step`, and so on, so that blocks in flight read
/// neighbouring tiles.
#[derive(Clone, Copy)]
pub(crate) struct Share {
    first: u32,
    step: u32,
}

impl Share {
    /// The share of this block among `tiles` tiles, or `None` if there is none for it.
    #[device_inline]
    pub fn of_block(tiles: u32) -> Option<Share> {
        let share = Share { first: thread::block_idx_y(), step: thread::grid_dim_y().max(1) };
        if share.first < tiles { Some(share) } else { None }
    }

    /// Number of tiles of the share.
    #[device_inline]
    pub fn tiles(self, of: u32) -> u32 {
        (of - self.first).div_ceil(self.step)
    }

    /// The numbers of the tiles of the share in a pass.
    #[device_inline]
    pub fn walk(self, pass: &FilterPass) -> TileWalk {
        let FilterPass { tile_stride, tile_skip, .. } = *pass;
        let next = tile_number(self.first, tile_stride, tile_skip);
        if tile_skip == 0 {
            return TileWalk { next, step: self.step * tile_stride, rest: 0, step_rest: 0, group: u32::MAX };
        }
        let group = (tile_skip - 1).max(1);
        let (rest, step_rest) = (self.first % group, self.step % group);
        TileWalk { next, step: self.step + self.step / group, rest, step_rest, group }
    }

    /// Number of tile `visit` of the share among all visited tiles.
    #[device_inline]
    pub fn visited(self, visit: u32) -> u32 {
        self.first + visit * self.step
    }
}

/// The numbers of the tiles of a share, one after the other, without a division for each. A division was a twentieth of
/// the instructions of a tile.
#[derive(Clone, Copy)]
pub(crate) struct TileWalk {
    /// The number that comes next.
    next: u32,
    /// The distance to the number after it; one more where `rest` reaches `group`.
    step: u32,
    /// The visited tiles since the last multiple of the skip, and the distance to those of the next tile.
    rest: u32,
    step_rest: u32,
    /// The visited tiles between two multiples of the skip.
    group: u32,
}

impl TileWalk {
    /// The number of the next tile.
    #[device_inline]
    pub fn next(&mut self) -> u32 {
        let tile = self.next;
        self.next += self.step;
        self.rest += self.step_rest;
        if self.rest >= self.group {
            self.rest -= self.group;
            self.next += 1;
        }
        tile
    }
}
