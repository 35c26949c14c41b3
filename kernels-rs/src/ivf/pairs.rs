//! Groups the (query, probe) pairs of a batch by list, so that each list is read once for all queries that probe it.
//!
//! # Problem
//! Query q probes the lists `probed_lists[q][0 .. probes]`. List-major scanning ([`crate::ivf::list_scan`]) needs, for
//! each list, the queries that probe it, in tiles. Each pair also needs a place for the scores of the list's vectors.
//! The scores of query q are in one row, list after list in the order of its probes, with each list's part padded to a
//! multiple of [`PAD`] scores. Either each vector of a list has a score, or [`SHARING`] of them share one.
//!
//! # Algorithm
//! A counting sort whose keys are list numbers:
//!
//! ```text
//! count:    one warp for each query: slot of a pair = counts[list]++ ; offset of its scores in the row = sum of padded lengths before
//! place:    one block sums up counts -> first pair of each list, first item of each list; a second one row lengths -> row starts
//! scatter:  grouped[first pair of the list + slot] = the data of the pair; the first pair of a tile writes its items
//! ```
//!
//! An *item* is the work of one block: up to `tile` pairs of a list with up to `item_rows` of its rows. Long lists are
//! cut into several items, so that several blocks share them.
//!
//! The slots come from atomics, so the order of pairs in a tile changes from run to run. Every pair writes to its own
//! place, so no result depends on that order.
//!
//! # Cost
//! One atomic and 16 bytes for each pair, 16 bytes for each item; three launches. 10,000 queries with 32 probes are
//! 320,000 pairs: a few megabytes.

use cuda_std::global::U32x4;
use cuda_std::launch::LaunchConfig;
use cuda_std::shared::SharedPtr;
use cuda_std::warp::{FULL_MASK, exclusive_sum, inclusive_sum, shuffle_idx};
use cuda_std::{Ptr, PtrMut, atomic, device_inline, global, kernel, shared_array, thread, warp};

use crate::NO_ROW;

/// The scores of a list are padded to a multiple of this number, and lists start at multiples of it: a sector of
/// memory.
pub const PAD: u32 = 8;
/// Number of warps in a block of the kernels with one warp for each query.
pub const WARPS_PER_BLOCK: u32 = 4;
/// Number of threads of a block of [`PlacePairs`] and [`FewPairs`].
pub const PLACE_THREADS: u32 = 1024;
/// Number of threads of a block of [`ScatterPairs`].
pub const SCATTER_THREADS: u32 = 256;

/// `length` rounded up to whole sectors.
#[device_inline]
pub const fn padded(length: u32) -> u32 {
    length.next_multiple_of(PAD)
}

/// Number of rows of a list that share a score, where rows do: those of 32 rows that are 8 apart, and that a lane of
/// the scan by strips has ([`crate::ivf::strip_scan`]). Their score is the least of theirs.
pub const SHARING: u32 = 4;
/// Number of rows whose scores are a sector.
const SECTOR_ROWS: u32 = PAD * SHARING;

/// Number of scores of a list of `length` rows; `shared` is 0 if each row has its own.
#[device_inline]
pub const fn score_count(length: u32, shared: u32) -> u32 {
    if shared == 0 { padded(length) } else { length.div_ceil(SECTOR_ROWS) * PAD }
}

/// The score of row `row` of a list.
#[device_inline]
pub const fn score_of(row: u32, shared: u32) -> u32 {
    if shared == 0 { row } else { row / SECTOR_ROWS * PAD + row % PAD }
}

/// The row of a list whose score has the number `score`, or number `of` of the rows that share it. The list may end
/// before it.
#[device_inline]
pub const fn row_of(score: u32, of: u32, shared: u32) -> u32 {
    if shared == 0 { score } else { score / PAD * SECTOR_ROWS + score % PAD + PAD * of }
}

/// Numbers the pairs of a range of probes within their lists, and lays out each query's row of scores.
///
/// # Safety
/// All pointers cover the shapes of their fields; list numbers are less than the number of lists.
#[kernel(max_threads = 128, count_pairs = count)]
pub struct CountPairs {
    /// `probes` lists for each query, `NO_ROW` for none.
    pub probed_lists: Ptr<u32>,
    /// Number of queries.
    pub query_count: u32,
    /// Number of probes of a query.
    pub probes: u32,
    /// The first probe whose pair is counted.
    pub first_probe: u32,
    /// The end of the probes whose pairs are counted.
    pub end_probe: u32,
    /// The number of vectors of each list.
    pub lengths: Ptr<u32>,
    /// The number of vectors of each list that a search may return.
    pub live: Ptr<u32>,
    /// 1 if [`SHARING`] rows share a score, else 0.
    pub shared_scores: u32,
    /// The number of counted pairs of each list; must be 0 before the launch.
    pub counts: PtrMut<u32>,
    /// The number of each pair within its list; unspecified if the pair is not counted, or its list is empty or
    /// `NO_ROW`.
    pub slots: PtrMut<u32>,
    /// The start of each pair's scores in the query's row.
    pub offsets: PtrMut<u32>,
    /// The length of each query's row, up to probe `end_probe`.
    pub row_lengths: PtrMut<u32>,
    /// The sum of `live` over all probes of each query.
    pub live_rows: PtrMut<u32>,
}

impl CountPairs {
    /// One warp for each query.
    pub fn config(&self) -> LaunchConfig {
        LaunchConfig::warps(self.query_count as u64, WARPS_PER_BLOCK)
    }
}

/// # Safety
/// As [`CountPairs`].
#[device_inline]
unsafe fn count(launch: CountPairs) {
    let CountPairs { probed_lists, query_count, probes, first_probe, end_probe, lengths, live, counts, .. } = launch;
    let CountPairs { slots, offsets, row_lengths, live_rows, shared_scores, .. } = launch;
    let query = thread::block_idx_x() * WARPS_PER_BLOCK + warp::warp_id();
    if query >= query_count {
        return;
    }
    let lane = warp::lane_id();
    let first = query as usize * probes as usize;
    let (mut before, mut alive, mut row_length) = (0u32, 0u32, 0u32);
    // SAFETY: probe < probes.
    let list_at = |probe: u32| unsafe {
        if probe < probes { global::load_nc(probed_lists.wrapping_add(first + probe as usize)) } else { NO_ROW }
    };
    // A slot is stored one turn after its atomic, and a list is read one turn before its use. With a thousand probes a
    // query waits mainly for these round trips to memory.
    let (mut slot, mut slot_of) = (0, NO_ROW);
    let mut list = list_at(lane);
    let mut start = 0;
    while start < probes {
        let probe = start + lane;
        let (mut length, mut living) = (0, 0);
        // SAFETY: a list that is not NO_ROW exists, and then probe < probes; slots belong to probes.
        unsafe {
            if list != NO_ROW {
                length = global::load_nc(lengths.wrapping_add(list as usize));
                living = global::load_nc(live.wrapping_add(list as usize));
            }
            let next = list_at(probe + 32);
            if slot_of != NO_ROW {
                global::store(slots.wrapping_add(first + slot_of as usize), slot);
                slot_of = NO_ROW;
            }
            if length > 0 && probe >= first_probe && probe < end_probe {
                slot = atomic::add_u32(counts.wrapping_add(list as usize), 1);
                slot_of = probe;
            }
            let scores = score_count(length, shared_scores);
            let offset = exclusive_sum(scores);
            if probe < probes {
                global::store(offsets.wrapping_add(first + probe as usize), before + offset);
            }
            before += shuffle_idx(FULL_MASK, offset + scores, 31);
            // The row ends with the last counted probe; the offsets continue.
            let counted = if probe < end_probe { scores } else { 0 };
            row_length += warp::reduce_add(FULL_MASK, counted);
            list = next;
        }
        alive += warp::reduce_add(FULL_MASK, living);
        start += 32;
    }
    if slot_of != NO_ROW {
        // SAFETY: as above.
        unsafe { global::store(slots.wrapping_add(first + slot_of as usize), slot) };
    }
    if lane == 0 {
        // SAFETY: query < query_count.
        unsafe {
            global::store(row_lengths.wrapping_add(query as usize), row_length);
            global::store(live_rows.wrapping_add(query as usize), alive);
        }
    }
}

/// The exclusive sum of one value of each thread over a block of [`PLACE_THREADS`], and the sum of all values. All
/// threads arrive.
#[device_inline]
fn block_sum(value: u64, sums: SharedPtr<u64>) -> (u64, u64) {
    let own = inclusive_sum(value);
    // SAFETY: 32 sums fit; a barrier separates writes and reads.
    unsafe {
        if warp::lane_id() == 31 {
            sums.add(warp::warp_id()).store(own);
        }
        thread::sync_threads();
        let of_warp = sums.add(warp::lane_id()).load();
        let up_to = inclusive_sum(of_warp);
        let total = shuffle_idx(FULL_MASK, up_to, 31);
        let before = shuffle_idx(FULL_MASK, up_to - of_warp, warp::warp_id());
        (before + own - value, total)
    }
}

/// Sums up the counts of [`CountPairs`]: one block does it for the lists, a second one for the rows of scores.
///
/// # Safety
/// All pointers cover the shapes of their fields.
#[kernel(max_threads = 1024, place_pairs = place)]
pub struct PlacePairs {
    /// Number of lists.
    pub list_count: u32,
    /// The number of vectors of each list.
    pub lengths: Ptr<u32>,
    /// The number of pairs of each list.
    pub counts: Ptr<u32>,
    /// Largest number of pairs of an item.
    pub tile: u32,
    /// Largest number of rows of an item.
    pub item_rows: u32,
    /// For each list, the number of pairs of all lists before it.
    pub first_pairs: PtrMut<u32>,
    /// For each list, the number of items of all lists before it.
    pub first_items: PtrMut<u32>,
    /// The number of items of all lists: one word.
    pub item_count: PtrMut<u32>,
    /// Number of queries.
    pub query_count: u32,
    /// The length of each query's row of scores.
    pub row_lengths: Ptr<u32>,
    /// The start of each query's row, and the end of the last row: `query_count` + 1 entries.
    pub row_starts: PtrMut<u64>,
}

impl PlacePairs {
    /// One block for the lists, and one for the rows.
    pub fn config(&self) -> LaunchConfig {
        LaunchConfig::linear(2, PLACE_THREADS)
    }
}

/// # Safety
/// As [`PlacePairs`].
#[device_inline]
unsafe fn place(launch: PlacePairs) {
    let PlacePairs { list_count, lengths, counts, tile, item_rows, first_pairs, first_items, .. } = launch;
    let PlacePairs { item_count, query_count, row_lengths, row_starts, .. } = launch;
    let sums = shared_array!(u64, 32);
    let thread = thread::thread_idx_x();
    let lists = thread::block_idx_x() == 0;
    let count = if lists { list_count } else { query_count };
    // Each thread has a range of neighbours: one sum over the block for any count.
    let share = count.div_ceil(PLACE_THREADS);
    let first = (thread * share).min(count);
    let end = (first + share).min(count);
    // A list's number of pairs (low word) and items (high word); or the length of a row.
    let value = |at: u32| {
        // SAFETY: at < count.
        unsafe {
            if lists {
                let pairs = global::load(counts.wrapping_add(at as usize));
                let length = global::load_nc(lengths.wrapping_add(at as usize));
                let items = pairs.div_ceil(tile.max(1)) * length.div_ceil(item_rows.max(1));
                (items as u64) << 32 | pairs as u64
            } else {
                global::load(row_lengths.wrapping_add(at as usize)) as u64
            }
        }
    };
    let mut own = 0u64;
    let mut at = first;
    while at < end {
        own += value(at);
        at += 1;
    }
    let (mut before, total) = block_sum(own, sums);
    let mut at = first;
    while at < end {
        // SAFETY: at < count, and one thread writes each entry.
        unsafe {
            if lists {
                global::store(first_pairs.wrapping_add(at as usize), before as u32);
                global::store(first_items.wrapping_add(at as usize), (before >> 32) as u32);
            } else {
                global::store(row_starts.wrapping_add(at as usize), before);
            }
        }
        before += value(at);
        at += 1;
    }
    if thread == 0 {
        // SAFETY: there is one item count, and there are query_count + 1 row starts.
        unsafe {
            if lists {
                global::store(*item_count, (total >> 32) as u32);
            } else {
                global::store(row_starts.wrapping_add(count as usize), total);
            }
        }
    }
}

/// Writes the pairs of a range of probes, grouped by list, and the items of every list.
///
/// # Safety
/// All pointers that are present cover the shapes of their fields. [`CountPairs`] and [`PlacePairs`] wrote the fields
/// that have the same names there.
#[kernel(max_threads = 256, scatter_pairs = scatter)]
pub struct ScatterPairs {
    /// `probes` lists for each query, `NO_ROW` for none.
    pub probed_lists: Ptr<u32>,
    /// Number of queries · `probes`.
    pub pair_count: u32,
    /// Number of probes of a query.
    pub probes: u32,
    /// The first probe whose pair is written.
    pub first_probe: u32,
    /// The end of the probes whose pairs are written.
    pub end_probe: u32,
    /// The number of vectors of each list.
    pub lengths: Ptr<u32>,
    /// The number of pairs of each list.
    pub counts: Ptr<u32>,
    /// The number of each pair within its list.
    pub slots: Ptr<u32>,
    /// The start of each pair's scores in the query's row.
    pub offsets: Ptr<u32>,
    /// The start of each query's row of scores.
    pub row_starts: Ptr<u64>,
    /// The threshold of each query, for appending ([`crate::ivf::list_scan`]); absent if all scores are kept.
    pub thresholds: Option<Ptr<f32>>,
    /// The factor of each query ([`crate::ivf::queries`]).
    pub factors: Ptr<f32>,
    /// Largest number of pairs of an item.
    pub tile: u32,
    /// Largest number of rows of an item.
    pub item_rows: u32,
    /// For each list, the number of pairs of all lists before it.
    pub first_pairs: Ptr<u32>,
    /// For each list, the number of items of all lists before it.
    pub first_items: Ptr<u32>,
    /// The pairs, list by list: (query, start of the pair's scores among all scores as low and high word, bits of the
    /// query's factor), or with `thresholds` (query, start of the pair's scores in the query's row, bits of the query's
    /// threshold, bits of its factor).
    pub grouped: PtrMut<U32x4>,
    /// (list, first pair in `grouped`, number of pairs, first row) of each item.
    pub items: PtrMut<U32x4>,
}

impl ScatterPairs {
    /// One thread for each pair.
    pub fn config(&self) -> LaunchConfig {
        LaunchConfig::linear(self.pair_count.div_ceil(SCATTER_THREADS) as u64, SCATTER_THREADS)
    }
}

/// # Safety
/// As [`ScatterPairs`].
#[device_inline]
unsafe fn scatter(launch: ScatterPairs) {
    let ScatterPairs { probed_lists, pair_count, probes, first_probe, end_probe, lengths, counts, slots, .. } = launch;
    let ScatterPairs { offsets, row_starts, thresholds, factors, item_rows, first_pairs, first_items, .. } = launch;
    let ScatterPairs { tile, grouped, items, .. } = launch;
    let pair = thread::block_idx_x() * SCATTER_THREADS + thread::thread_idx_x();
    if pair >= pair_count {
        return;
    }
    let tile = tile.max(1);
    // SAFETY: pair < pair_count; places are below the number of pairs of all lists, items below the count of
    // [`PlacePairs`].
    unsafe {
        let list = global::load_nc(probed_lists.wrapping_add(pair as usize));
        let query = pair / probes.max(1);
        let probe = pair - query * probes;
        if list == NO_ROW || probe < first_probe || probe >= end_probe {
            return;
        }
        let length = global::load_nc(lengths.wrapping_add(list as usize));
        if length == 0 {
            return;
        }
        let slot = global::load_nc(slots.wrapping_add(pair as usize));
        let first = global::load_nc(first_pairs.wrapping_add(list as usize));
        let offset = global::load_nc(offsets.wrapping_add(pair as usize));
        let factor = global::load_nc(factors.wrapping_add(query as usize)).to_bits();
        let record = match thresholds {
            None => {
                let target = global::load_nc(row_starts.wrapping_add(query as usize)) + offset as u64;
                U32x4([query, target as u32, (target >> 32) as u32, factor])
            }
            Some(thresholds) => {
                U32x4([query, offset, global::load_nc(thresholds.wrapping_add(query as usize)).to_bits(), factor])
            }
        };
        global::store(grouped.wrapping_add((first + slot) as usize), record);
        if slot.is_multiple_of(tile) {
            let pairs = (global::load_nc(counts.wrapping_add(list as usize)) - slot).min(tile);
            let cuts = length.div_ceil(item_rows.max(1));
            let mut item = global::load_nc(first_items.wrapping_add(list as usize)) + slot / tile * cuts;
            let mut row = 0;
            while row < length {
                global::store(items.wrapping_add(item as usize), U32x4([list, first + slot, pairs, row]));
                item += 1;
                row += item_rows;
            }
        }
    }
}

/// Exclusive upper bound of the number of pairs of [`FewPairs`].
pub const FEW: u32 = PLACE_THREADS;

/// Does the work of all kernels above in one launch, for fewer than [`FEW`] pairs. It groups nothing: each pair is a
/// tile. With few queries the number of launches matters, and two queries seldom probe the same list.
///
/// # Safety
/// All pointers cover the shapes of their fields; query_count · probes < [`FEW`].
#[kernel(max_threads = 1024, few_pairs = few)]
pub struct FewPairs {
    /// `probes` lists for each query, `NO_ROW` for none.
    pub probed_lists: Ptr<u32>,
    /// Number of queries.
    pub query_count: u32,
    /// Number of probes of a query.
    pub probes: u32,
    /// The number of vectors of each list.
    pub lengths: Ptr<u32>,
    /// The number of vectors of each list that a search may return.
    pub live: Ptr<u32>,
    /// The factor of each query ([`crate::ivf::queries`]).
    pub factors: Ptr<f32>,
    /// Largest number of rows of an item.
    pub item_rows: u32,
    /// 1 if [`SHARING`] rows share a score, else 0.
    pub shared_scores: u32,
    /// The start of each pair's scores in the query's row.
    pub offsets: PtrMut<u32>,
    /// The start of each query's row, and the end of the last row: `query_count` + 1 entries.
    pub row_starts: PtrMut<u64>,
    /// The sum of `live` over all probes of each query.
    pub live_rows: PtrMut<u32>,
    /// The number of items of all lists: one word.
    pub item_count: PtrMut<u32>,
    /// The pairs in order, as [`ScatterPairs::grouped`] without thresholds: one for each entry of `probed_lists`.
    pub grouped: PtrMut<U32x4>,
    /// As [`ScatterPairs::items`], with room for the items of all pairs.
    pub items: PtrMut<U32x4>,
}

impl FewPairs {
    /// One block, with one thread for each pair.
    pub fn config(&self) -> LaunchConfig {
        LaunchConfig::linear(1, PLACE_THREADS)
    }
}

/// # Safety
/// As [`FewPairs`].
#[device_inline]
unsafe fn few(launch: FewPairs) {
    let FewPairs { probed_lists, query_count, probes, lengths, live, factors, item_rows, .. } = launch;
    let FewPairs { shared_scores, offsets, row_starts, live_rows, item_count, grouped, items, .. } = launch;
    let sums = shared_array!(u64, 32);
    let scores_before = shared_array!(u64, 1025);
    let live_before = shared_array!(u32, 1025);
    let pair = thread::thread_idx_x();
    let probes = probes.max(1);
    let pair_count = query_count * probes;
    let item_rows = item_rows.max(1);
    // SAFETY: pairs are below pair_count and row starts at most query_count; shared arrays have an entry for each pair
    // and one more.
    unsafe {
        let list = if pair < pair_count { global::load_nc(probed_lists.wrapping_add(pair as usize)) } else { NO_ROW };
        let (mut length, mut living) = (0, 0);
        if list != NO_ROW {
            length = global::load_nc(lengths.wrapping_add(list as usize));
            living = global::load_nc(live.wrapping_add(list as usize));
        }
        let cuts = length.div_ceil(item_rows);
        let (scores, all_scores) = block_sum(score_count(length, shared_scores) as u64, sums);
        // `block_sum` ends with reads of the sums, which the next call overwrites.
        thread::sync_threads();
        let (counted, all_counted) = block_sum((cuts as u64) << 32 | living as u64, sums);
        scores_before.add(pair).store(scores);
        live_before.add(pair).store(counted as u32);
        if pair == 0 {
            scores_before.add(FEW).store(all_scores);
            live_before.add(FEW).store(all_counted as u32);
            global::store(*item_count, (all_counted >> 32) as u32);
        }
        thread::sync_threads();
        if pair <= query_count {
            let first = if pair * probes < FEW { pair * probes } else { FEW };
            let start = scores_before.add(first).load();
            global::store(row_starts.wrapping_add(pair as usize), start);
            if pair < query_count {
                let next = if (pair + 1) * probes < FEW { (pair + 1) * probes } else { FEW };
                let alive = live_before.add(next).load() - live_before.add(first).load();
                global::store(live_rows.wrapping_add(pair as usize), alive);
            }
        }
        if pair < pair_count {
            let query = pair / probes;
            let start = scores_before.add(query * probes).load();
            global::store(offsets.wrapping_add(pair as usize), (scores - start) as u32);
            let factor = global::load_nc(factors.wrapping_add(query as usize)).to_bits();
            let record = U32x4([query, scores as u32, (scores >> 32) as u32, factor]);
            global::store(grouped.wrapping_add(pair as usize), record);
            let mut item = (counted >> 32) as u32;
            let mut row = 0;
            while row < length {
                global::store(items.wrapping_add(item as usize), U32x4([list, pair, 1, row]));
                item += 1;
                row += item_rows;
            }
        }
    }
}

/// Starts each query's list of candidates with the query's selected candidates.
///
/// # Safety
/// All pointers cover the shapes of their fields; selected ≤ capacity.
#[kernel(max_threads = 128, begin_candidates = begin)]
pub struct BeginCandidates {
    /// Number of queries.
    pub query_count: u32,
    /// Number of selected candidates of a query.
    pub selected: u32,
    /// Number of candidates that a query needs to have a threshold, from 1 to `selected`.
    pub least: u32,
    /// The score of each selected candidate, best first.
    pub scores: Ptr<f32>,
    /// The place of each selected candidate, laid out as `scores`; `NO_ROW` for none.
    pub places: Ptr<u32>,
    /// Distance from one query's list to the next.
    pub capacity: u32,
    /// The scores of the lists: `query_count` · `capacity` numbers.
    pub list_scores: PtrMut<f32>,
    /// The places of the lists, laid out as `list_scores`.
    pub list_places: PtrMut<u32>,
    /// The number of candidates of each list: `selected`.
    pub counts: PtrMut<u32>,
    /// The last selected score of each query below +∞; NaN (no threshold) if fewer than `least` are.
    pub thresholds: PtrMut<f32>,
}

impl BeginCandidates {
    /// One warp for each query.
    pub fn config(&self) -> LaunchConfig {
        LaunchConfig::warps(self.query_count as u64, WARPS_PER_BLOCK)
    }
}

/// # Safety
/// As [`BeginCandidates`].
#[device_inline]
unsafe fn begin(launch: BeginCandidates) {
    let BeginCandidates { query_count, selected, least, scores, places, capacity, list_scores, .. } = launch;
    let BeginCandidates { list_places, counts, thresholds, .. } = launch;
    let query = thread::block_idx_x() * WARPS_PER_BLOCK + warp::warp_id();
    if query >= query_count {
        return;
    }
    let (from, to) = (query as usize * selected as usize, query as usize * capacity as usize);
    let lane = warp::lane_id();
    let (mut first, mut found) = (0, 0);
    // SAFETY: query < query_count, at < selected.
    unsafe {
        while first < selected {
            let at = first + lane;
            let mut is_found = false;
            if at < selected {
                let score = global::load_nc(scores.wrapping_add(from + at as usize));
                let place = global::load_nc(places.wrapping_add(from + at as usize));
                global::store(list_scores.wrapping_add(to + at as usize), score);
                global::store(list_places.wrapping_add(to + at as usize), place);
                is_found = place != NO_ROW && score < f32::INFINITY;
            }
            // Scores ascend, so those that are found come first.
            found += warp::ballot(FULL_MASK, is_found).count_ones();
            first += 32;
        }
        if lane == 0 {
            let has_threshold = found >= least && found > 0;
            let threshold =
                if has_threshold { global::load_nc(scores.wrapping_add(from + found as usize - 1)) } else { f32::NAN };
            global::store(thresholds.wrapping_add(query as usize), threshold);
            global::store(counts.wrapping_add(query as usize), selected);
        }
    }
}
