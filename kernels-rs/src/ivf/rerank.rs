//! Turns the best approximate scores of a query into its exact result: canonical distances, their order, and a
//! certificate.
//!
//! # Problem
//! A scan ([`crate::ivf::list_scan`], [`crate::ivf::table_scan`]) wrote approximate scores v with |v + shift −
//! distance| ≤ E for every candidate of a query, and k-selection found the k' ≥ k smallest. Which vectors are the k
//! best by canonical distance, and are they among the k'?
//!
//! # Algorithm
//! ```text
//! for each selected place of the query's row (of a score that rows share: for each of them):
//!     place -> probe (binary search among the offsets) -> list and row of the storage; padding and filtered rows are dropped
//!     canonical distance of query and row; entry = (distance, rank of the row's id)
//! sort the entries; the first k are the result if
//!     every candidate of the query is among the k', or
//!     v of the last selected + shift − E > distance of the k-th entry        // all others are farther than the k-th
//! ```
//!
//! The comparison is strict, so no other vector can tie with the k-th. E covers the roundings of score, shift and
//! canonical distance (module [`crate::product::bounds`]). A query without certificate gets a flag, and
//! [`crate::ivf::rescan`] completes it.
//!
//! The rank decides the order of equal distances. Ranks ascend with ids, so the vector with the lower id is better.
//!
//! # Cost
//! k' canonical distances for each query: for 10,000 × 18 × 128 components latency dominates, not arithmetic. With one
//! block for each query an H200 took 171 µs, nearly all of it waits for look-ups and barriers. So one warp processes up
//! to [`WARP_SELECTED`] candidates: it has them in registers and looks them up at once. More candidates are sorted as
//! in [`crate::select::block_sort`].
//!
//! If the k' entries do not fit in shared memory, a launch with `sort` = 0 writes them to memory, k-selection orders
//! them, and [`Certify`] decides.

use cuda_std::launch::LaunchConfig;
use cuda_std::warp::FULL_MASK;
use cuda_std::{Ptr, PtrMut, atomic, device_inline, global, group, kernel, shared, shared_array, thread, unroll, warp};

use crate::NO_ROW;
use crate::ivf::encoding::flat::Stored;
use crate::ivf::encoding::{Decode, StoredRows};
use crate::ivf::pairs::{SHARING, row_of};
use crate::product::canonical::{BATCH, Quad, over_norms, squares, sums_by};
use crate::product::element::{self, Row, RowKey};
use crate::product::metric::Metric;
use crate::select::block_sort::{ORDER_HEADER_BYTES, OrderWorkspace, block_order};
use crate::select::entry::{self, EMPTY};
use crate::select::networks::warp_sort;

/// Number of threads of a block.
pub const THREADS: u32 = 128;
/// Largest number of candidates that one warp re-ranks.
pub const WARP_SELECTED: u32 = 32 * FEW_REGISTERS as u32;
const FEW_REGISTERS: usize = 2;
/// Largest number of centroids near the last probe that a warp compares exactly.
pub const SETTLED: u32 = 128;
/// Number of queries of a block with one warp for each query.
pub const WARP_QUERIES: u32 = THREADS / 32;
/// Number of candidates for each of the blocks that share a query, if they are not sorted; and the largest number of
/// such blocks.
const SLICE: u32 = 1024;
const MOST_SLICES: u32 = 1024;

/// Number of bytes before the entries in shared memory.
const HEADER: u32 = ORDER_HEADER_BYTES.next_multiple_of(16);

/// Dynamic shared memory of a block that sorts `candidates` entries, in bytes.
pub const fn shared_bytes(candidates: u32) -> u32 {
    HEADER + candidates.next_multiple_of(2) * 16
}

/// The threads that re-rank the candidates of a query.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PerQuery {
    /// One block of [`THREADS`] threads.
    Block,
    /// One warp, for at most [`WARP_SELECTED`] candidates, which it sorts.
    Warp,
}

/// Re-ranks the selected candidates of each query by canonical distance, and writes the k best, best first.
///
/// With `sort` the results are final: distances go to `out_keys` and ranks to `out_ranks` (the worst distance and
/// `NO_ROW` if there are fewer than k), and `flags` gets 1 if the result is not proved, else 0.
///
/// Without `sort`, any number of blocks along y share the candidates of a query. Each candidate's distance (as smaller
/// is better) and rank go to places query · candidates + number of `out_keys` and `out_ranks`. The number of vectors
/// among the candidates is added to `flags[query]`. K-selection and [`Certify`] do the rest.
///
/// Each selected place is a candidate. If rows share scores ([`ProbedLists::shared_scores`]), it is [`SHARING`] of
/// them.
///
/// The default has empty or absent pointers and zeros: no probes, no ranks, no filter, no codes.
///
/// # Safety
/// All pointers that are present cover the shapes of their fields, rows are those of the lists' storage, and every code
/// has a codeword. [`PerQuery::Warp`]: at most [`WARP_SELECTED`] candidates.
#[kernel(
    key = (RowKey, PerQuery),
    max_threads = 128,
    min_blocks = 4,
    elsewhere = rerank_kernels,
    (RowKey::F32, PerQuery::Block) => rerank_f32 = by_block::<Stored<element::F32>>,
    (RowKey::F16, PerQuery::Block) => rerank_f16 = by_block::<Stored<element::F16>>,
    (RowKey::Bf16, PerQuery::Block) => rerank_bf16 = by_block::<Stored<element::Bf16>>,
    (RowKey::U8, PerQuery::Block) => rerank_u8 = by_block::<Stored<element::U8>>,
    (RowKey::I8, PerQuery::Block) => rerank_i8 = by_block::<Stored<element::I8>>,
    (RowKey::Bits, PerQuery::Block) => rerank_bits = by_block::<Stored<element::Bits>>,
    (RowKey::F32, PerQuery::Warp) => rerank_few_f32 = by_warp::<Stored<element::F32>>,
    (RowKey::F16, PerQuery::Warp) => rerank_few_f16 = by_warp::<Stored<element::F16>>,
    (RowKey::Bf16, PerQuery::Warp) => rerank_few_bf16 = by_warp::<Stored<element::Bf16>>,
    (RowKey::U8, PerQuery::Warp) => rerank_few_u8 = by_warp::<Stored<element::U8>>,
    (RowKey::I8, PerQuery::Warp) => rerank_few_i8 = by_warp::<Stored<element::I8>>,
    (RowKey::Bits, PerQuery::Warp) => rerank_few_bits = by_warp::<Stored<element::Bits>>,
)]
#[derive(Default)]
pub struct Rerank {
    /// Number of queries.
    pub query_count: u32,
    /// `query_count` rows of `stride` components, of the type of the key.
    pub queries: Ptr<u8>,
    /// Distance in components from one query to the next, and from one stored vector or centroid to the next: a
    /// multiple of 4, zero padded.
    pub stride: u32,
    /// Rows of the storage: `stride` components of the type of the key, or codes.
    #[group]
    pub stored: StoredRows,
    /// `selected` places for each query, best first: places in the query's row of scores; `NO_ROW` for none.
    pub places: Ptr<u32>,
    /// The scores at `places`, and the values for the proof of the results.
    #[group]
    pub certificate: Certificate,
    /// The lists of the candidates.
    #[group]
    pub lists: ProbedLists,
    /// The metric of the distances.
    pub metric: Metric,
    /// Whether the candidates are sorted: 0 for no.
    pub sort: u32,
    /// Number of results of a query.
    pub k: u32,
    /// Distances: `query_count` · `k`, or those of all candidates without `sort`.
    pub out_keys: PtrMut<f32>,
    /// Ranks, laid out as `out_keys`.
    pub out_ranks: PtrMut<u32>,
    /// One flag or number for each query; absent if no proof is needed. Without `sort` it is present.
    pub flags: Option<PtrMut<u32>>,
}

impl Rerank {
    /// One block or warp for each query. Without `sort`, several blocks share the candidates of a query.
    pub fn config(&self, per_query: PerQuery) -> LaunchConfig {
        match per_query {
            PerQuery::Warp => LaunchConfig::warps(self.query_count as u64, WARP_QUERIES),
            PerQuery::Block if self.sort != 0 => {
                LaunchConfig::linear(self.query_count as u64, THREADS).with_shared(shared_bytes(self.candidates()))
            }
            PerQuery::Block => {
                let slices = self.candidates().div_ceil(SLICE).min(MOST_SLICES);
                LaunchConfig::linear(self.query_count as u64, THREADS).along_y(slices as u64)
            }
        }
    }

    /// Number of candidates of a query.
    #[device_inline]
    fn candidates(&self) -> u32 {
        if self.lists.shared_scores == 0 { self.certificate.selected } else { SHARING * self.certificate.selected }
    }

    /// List, storage row and rank of candidate `at` of `query`; the rank is `NO_ROW` if there is no vector.
    ///
    /// # Safety
    /// The arrays cover the query; at < candidates.
    #[device_inline]
    unsafe fn candidate(&self, query: u32, at: u32) -> [u32; 3] {
        let Certificate { selected, row_count, .. } = self.certificate;
        let (at, of) = if self.lists.shared_scores == 0 { (at, 0) } else { (at / SHARING, at % SHARING) };
        // SAFETY: the caller promises the place.
        unsafe {
            let place = global::load_nc(self.places.wrapping_add(query as usize * selected as usize + at as usize));
            self.lists.vector_at(query, place, of, row_count)
        }
    }
}

/// The lists in which the candidates of queries are.
#[group]
#[derive(Default)]
pub struct ProbedLists {
    /// Number of probes of a query.
    pub probes: u32,
    /// `probes` lists for each query, `NO_ROW` for none. Absent: there is one list, and a place is a row of the
    /// storage.
    pub probed_lists: Option<Ptr<u32>>,
    /// The start of each probe's scores in the query's row ([`crate::ivf::pairs`]); empty if `probed_lists` is absent.
    pub offsets: Ptr<u32>,
    /// The first row of each list in the storage; empty if `probed_lists` is absent.
    pub list_starts: Ptr<u32>,
    /// The number of vectors of each list; empty if `probed_lists` is absent.
    pub lengths: Ptr<u32>,
    /// 1 if rows share scores ([`crate::ivf::pairs::SHARING`]), else 0; only with `probed_lists`.
    pub shared_scores: u32,
    /// The rank of each row's id; absent if the row is the rank.
    pub ranks: Option<Ptr<u32>>,
    /// A bit for each rank, 1 for vectors that may be found; absent: no filter.
    pub filter: Option<Ptr<u32>>,
}

impl ProbedLists {
    /// List, storage row and rank of the vector whose score is at `place` of the query's row, or of number `of` of
    /// those that share it; the rank is `NO_ROW` if there is no vector. Without lists the storage has `row_count` rows.
    ///
    /// # Safety
    /// The arrays cover the query; the place is in its row, or `NO_ROW`.
    #[device_inline]
    pub(crate) unsafe fn vector_at(&self, query: u32, place: u32, of: u32, row_count: u32) -> [u32; 3] {
        let &ProbedLists { probes, probed_lists, offsets, list_starts, lengths, shared_scores, ranks, filter } = self;
        if place == NO_ROW {
            return [0, 0, NO_ROW];
        }
        // SAFETY: the place is in the query's row, so the last probe that starts at or before it contains it.
        unsafe {
            let (list, row) = if let Some(probed_lists) = probed_lists {
                let first = query as usize * probes as usize;
                let (mut low, mut high) = (0, probes);
                while high - low > 1 {
                    let middle = (low + high) / 2;
                    let before = global::load_nc(offsets.wrapping_add(first + middle as usize)) <= place;
                    low = if before { middle } else { low };
                    high = if before { high } else { middle };
                }
                let list = global::load_nc(probed_lists.wrapping_add(first + low as usize));
                let score = place - global::load_nc(offsets.wrapping_add(first + low as usize));
                let local = row_of(score, of, shared_scores);
                if list == NO_ROW || local >= global::load_nc(lengths.wrapping_add(list as usize)) {
                    return [0, 0, NO_ROW];
                }
                (list, global::load_nc(list_starts.wrapping_add(list as usize)) + local)
            } else {
                if place >= row_count {
                    return [0, 0, NO_ROW];
                }
                (0, place)
            };
            let rank = match ranks {
                Some(ranks) => global::load_nc(ranks.wrapping_add(row as usize)),
                None => row,
            };
            let passes = match filter {
                Some(filter) => global::load_nc(filter.wrapping_add((rank / 32) as usize)) >> (rank % 32) & 1 == 1,
                None => true,
            };
            [list, row, if passes { rank } else { NO_ROW }]
        }
    }
}

/// The values that the certificate of a result depends on.
#[group]
#[derive(Default)]
pub struct Certificate {
    /// Number of selected places of a query.
    pub selected: u32,
    /// The scores at these places, best first: `selected` for each query.
    pub scores: Ptr<f32>,
    /// The number of vectors that each query may find in its probes; absent: `row_count`.
    pub live_rows: Option<Ptr<u32>>,
    /// Number of rows of the storage, if it is one list.
    pub row_count: u32,
    /// The shift of each query: a score plus the shift approximates the distance; absent: 0.
    pub shifts: Option<Ptr<f32>>,
    /// E of each query: the bound of |score + shift − distance|.
    pub errors: Ptr<f32>,
}

impl Certificate {
    /// Whether the result of `query` is proved. `valid` is the number of vectors among the selected, and `worst` the
    /// distance of the k-th (as smaller is better), +∞ if there are fewer.
    ///
    /// # Safety
    /// The arrays cover the query.
    #[device_inline]
    unsafe fn holds(&self, query: u32, valid: u32, worst: f32) -> bool {
        // SAFETY: as the caller promises.
        unsafe { self.all(query, valid) || self.bounds(query, self.selected - 1)[0] > worst as f64 }
    }

    /// Whether `valid` is the number of all vectors that the query may find.
    ///
    /// # Safety
    /// The arrays cover the query.
    #[device_inline]
    unsafe fn all(&self, query: u32, valid: u32) -> bool {
        // SAFETY: as the caller promises.
        let live = unsafe {
            match self.live_rows {
                Some(live_rows) => global::load_nc(live_rows.wrapping_add(query as usize)),
                None => self.row_count,
            }
        };
        valid == live
    }

    /// Lower and upper bound of the distance of the vector at a selected place; NaN if nothing is proved.
    ///
    /// # Safety
    /// The arrays cover the query; place < selected.
    #[device_inline]
    unsafe fn bounds(&self, query: u32, place: u32) -> [f64; 2] {
        let at = query as usize;
        // SAFETY: as the caller promises.
        unsafe {
            let shift = match self.shifts {
                Some(shifts) => global::load_nc(shifts.wrapping_add(at)),
                None => 0.0,
            };
            let score = global::load_nc(self.scores.wrapping_add(at * self.selected as usize + place as usize));
            let error = global::load_nc(self.errors.wrapping_add(at)) as f64;
            let middle = score as f64 + shift as f64;
            [middle - error, middle + error]
        }
    }
}

/// A query in the form in which a warp compares it with rows.
pub(crate) struct Query<E: Row> {
    components: *const E::Stored,
    quads: u32,
    /// The metric of the distances.
    pub(crate) metric: Metric,
    /// The sum Σx² of the query, for cosine only.
    squares: f64,
}

impl<E: Row> Query<E> {
    /// Number `query` of queries of `stride` components. All 32 lanes arrive, with the same arguments except `lane`.
    ///
    /// # Safety
    /// The query exists.
    #[device_inline]
    pub(crate) unsafe fn of(queries: Ptr<u8>, stride: u32, metric: Metric, query: u32, lane: u32) -> Self {
        let components = queries.cast::<E::Stored>().wrapping_add(query as usize * stride as usize);
        let quads = stride / 4;
        // SAFETY: a query has `quads` groups of four components.
        let squares = if metric.divides_by_norms() { unsafe { squares::<E>(components, quads, lane) } } else { 0.0 };
        Self { components, quads, metric, squares }
    }

    /// Canonical distances, before rounding, to [`BATCH`] rows. All 32 lanes arrive, with the same arguments except
    /// `lane`.
    ///
    /// # Safety
    /// Rows and lists exist.
    #[device_inline]
    pub(crate) unsafe fn distances<R: Decode<Query = E>>(
        &self,
        rows: R,
        lists: &[u32; BATCH],
        numbers: &[u32; BATCH],
        lane: u32,
    ) -> [f64; BATCH] {
        // SAFETY: as the caller promises; quad < quads.
        let load = |b: usize, quad: u32| unsafe { rows.quad(numbers[b], lists[b], quad) };
        // SAFETY: as above.
        let own = |quad: u32| unsafe { E::quad(self.components, quad) };
        let mut distances = sums_by(self.metric, own, load, self.quads, lane);
        if self.metric.divides_by_norms() {
            let of_rows: [_; BATCH] = E::Quad::squares(load, self.quads, lane);
            unroll::<BATCH>(|b| {
                distances[b] = over_norms(distances[b], self.squares * of_rows[b]);
            });
        }
        distances
    }
}

/// Re-ranks the candidates of one query by a block. All threads of the block stay together.
///
/// # Safety
/// As [`Rerank`].
#[device_inline]
pub(crate) unsafe fn by_block<R: Decode>(launch: Rerank) {
    let Rerank { certificate, metric, k, out_keys, out_ranks, flags, .. } = launch;
    let (rows, sort) = (R::of(&launch.stored, launch.stride), launch.sort != 0);
    let candidates = launch.candidates();
    let thread = thread::thread_idx_x();
    let (lane, warp) = (warp::lane_id(), warp::warp_id());
    let warps = thread::block_dim_x() / 32;
    let query = thread::block_idx_x();
    let slice = thread::block_idx_y();
    let found = shared_array!(u32, 1);
    let entries = shared::dynamic::<u8>();
    // SAFETY: for the whole body, the caller promises the shapes; numbers stay below `candidates`.
    unsafe {
        let entries = entries.add(HEADER).cast::<u64>();
        if thread == 0 {
            found.store(0);
        }
        thread::sync_threads();
        let x = Query::<R::Query>::of(launch.queries, launch.stride, metric, query, lane);
        let mut valid = 0;
        let mut first = (slice * warps + warp) * BATCH as u32;
        while first < candidates {
            // Each lane looks up one candidate of the batch; lanes after the batch repeat the last.
            let at = (first + lane.min(BATCH as u32 - 1)).min(candidates - 1);
            let [list, row, rank] = launch.candidate(query, at);
            let mut lists = [0u32; BATCH];
            let mut numbers = [0u32; BATCH];
            unroll::<BATCH>(|b| {
                lists[b] = warp::shuffle_idx(FULL_MASK, list, b as u32);
                numbers[b] = warp::shuffle_idx(FULL_MASK, row, b as u32);
            });
            // For a place without a vector, row 0 of list 0 is evaluated and dropped, unless the whole batch is
            // without.
            let mut distances = [0.0; BATCH];
            if warp::any(FULL_MASK, rank != NO_ROW) {
                distances = x.distances(rows, &lists, &numbers, lane);
            }
            let mut distance = distances[0];
            unroll::<BATCH>(|b| distance = if lane == b as u32 { distances[b] } else { distance });
            let exists = lane < BATCH as u32 && first + lane < candidates;
            let alive = exists && rank != NO_ROW;
            valid += warp::ballot(FULL_MASK, alive).count_ones();
            if exists {
                let bad = metric.badness(distance as f32 + 0.0);
                if sort {
                    let entry = if alive { entry::pack(entry::key_of(bad), rank) } else { EMPTY };
                    entries.add(first + lane).store(entry);
                } else {
                    let at = query as usize * candidates as usize + (first + lane) as usize;
                    global::store(out_keys.wrapping_add(at), bad);
                    global::store(out_ranks.wrapping_add(at), if alive { rank } else { NO_ROW });
                }
            }
            first += thread::grid_dim_y() * warps * BATCH as u32;
        }
        if !sort {
            if let Some(flags) = flags
                && lane == 0
            {
                atomic::add_u32(flags.wrapping_add(query as usize), valid);
            }
            return;
        }
        if lane == 0 {
            atomic::shared_add_u32(found, valid);
        }
        thread::sync_threads();
        let capacity = candidates.next_multiple_of(2);
        let workspace =
            OrderWorkspace { header: shared::dynamic::<u64>(), words: entries.add(capacity).cast(), capacity };
        let order = block_order(entries, candidates, k, workspace);
        let mut slot = thread;
        while slot < k {
            let entry = if slot < candidates { order.get(slot) } else { EMPTY };
            let out = query as usize * k as usize + slot as usize;
            let bad = entry::value_of(entry::key(entry));
            global::store(
                out_keys.wrapping_add(out),
                if entry == EMPTY { metric.worst() } else { metric.distance(bad) },
            );
            global::store(out_ranks.wrapping_add(out), entry::payload(entry));
            if let Some(flags) = flags
                && slot == k - 1
            {
                let bad = if entry == EMPTY { f32::INFINITY } else { bad };
                let proved = certificate.holds(query, found.load(), bad);
                global::store(flags.wrapping_add(query as usize), !proved as u32);
            }
            slot += THREADS;
        }
    }
}

/// Re-ranks the candidates of one query by a warp, with the entries in registers. No warp waits for another, and a
/// multiprocessor processes four times as many queries. All 32 lanes arrive.
///
/// # Safety
/// As [`Rerank`].
#[device_inline]
pub(crate) unsafe fn by_warp<R: Decode>(launch: Rerank) {
    let query = thread::block_idx_x() * WARP_QUERIES + warp::warp_id();
    if query >= launch.query_count {
        return;
    }
    // SAFETY: the contract is the same; the query exists, and so do its selected candidates.
    unsafe { rerank_some::<R, FEW_REGISTERS>(launch, query, (0, launch.candidates()), Some(launch.out_keys)) }
}

/// Re-ranks candidates `begin` .. `end` of `query` by a warp, at most 32 · `REGISTERS`. The result contains the
/// candidates before `begin` as they are and none from `end` on; `flags` tells whether this is proved. The ranks of
/// slots `begin` .. k are written, and the distances of these slots if `distances_out` is present. All 32 lanes arrive.
///
/// # Safety
/// As [`Rerank`]; the launch has the query, and begin ≤ end ≤ candidates. If rows share scores, these are all of them.
#[device_inline]
unsafe fn rerank_some<R: Decode, const REGISTERS: usize>(
    launch: Rerank,
    query: u32,
    (begin, end): (u32, u32),
    distances_out: Option<PtrMut<f32>>,
) {
    let Rerank { certificate, metric, k, out_ranks, flags, .. } = launch;
    let (rows, selected) = (R::of(&launch.stored, launch.stride), certificate.selected);
    let lane = warp::lane_id();
    // SAFETY: for the whole body, the caller promises the shapes; places stay below `selected`.
    unsafe {
        let x = Query::<R::Query>::of(launch.queries, launch.stride, metric, query, lane);
        // Lane l looks up candidates l, l + 32, ..: all searches among the offsets run together.
        let mut candidates = [[0u32; 3]; REGISTERS];
        let mut entries = [EMPTY; REGISTERS];
        // The number of vectors among them, and of places up to the last of these: walks in graphs leave most places
        // empty.
        let (mut valid, mut used) = (0, 0);
        unroll::<REGISTERS>(|r| {
            let at = begin + 32 * r as u32 + lane;
            candidates[r] = if at < end { launch.candidate(query, at) } else { [0, 0, NO_ROW] };
            let votes = warp::ballot(FULL_MASK, candidates[r][2] != NO_ROW);
            valid += votes.count_ones();
            used = if votes == 0 { used } else { 32 * (r as u32 + 1) - votes.leading_zeros() };
        });
        let mut first = 0;
        while first < used {
            let of = first / 32;
            let mut own = candidates[0];
            unroll::<REGISTERS>(|r| own = if of == r as u32 { candidates[r] } else { own });
            let mut lists = [0u32; BATCH];
            let mut numbers = [0u32; BATCH];
            unroll::<BATCH>(|b| {
                lists[b] = warp::shuffle_idx(FULL_MASK, own[0], first % 32 + b as u32);
                numbers[b] = warp::shuffle_idx(FULL_MASK, own[1], first % 32 + b as u32);
            });
            // For a place without a vector, row 0 of list 0 is evaluated and dropped.
            let distances = x.distances(rows, &lists, &numbers, lane);
            unroll::<BATCH>(|b| {
                let bad = metric.badness(distances[b] as f32 + 0.0);
                let mine = lane == first % 32 + b as u32 && own[2] != NO_ROW;
                let entry = entry::pack(entry::key_of(bad), own[2]);
                unroll::<REGISTERS>(|r| entries[r] = if mine && of == r as u32 { entry } else { entries[r] });
            });
            first += BATCH as u32;
        }
        warp_sort(&mut entries, lane);
        unroll::<REGISTERS>(|r| {
            let slot = begin + 32 * r as u32 + lane;
            if slot < k {
                let entry = entries[r];
                let bad = entry::value_of(entry::key(entry));
                let out = query as usize * k as usize + slot as usize;
                if let Some(out_keys) = distances_out {
                    let distance = if entry == EMPTY { metric.worst() } else { metric.distance(bad) };
                    global::store(out_keys.wrapping_add(out), distance);
                }
                global::store(out_ranks.wrapping_add(out), entry::payload(entry));
                if let Some(flags) = flags
                    && slot == k - 1
                {
                    let bad = if entry == EMPTY { f32::INFINITY } else { bad };
                    let next = if end < launch.candidates() { end } else { selected - 1 };
                    let none_beyond =
                        certificate.all(query, begin + valid) || certificate.bounds(query, next)[0] > bad as f64;
                    // False if an operand is NaN.
                    let proved = none_beyond && (begin == 0 || certificate.bounds(query, begin - 1)[1] < bad as f64);
                    global::store(flags.wrapping_add(query as usize), !proved as u32);
                }
            }
        });
    }
}

/// Finds the `probes` nearest centroids of each query, in no particular order, among the `selected` with the smallest
/// scores. Centroids with scores far below the probes-th are accepted without an exact comparison. Those near it, at
/// most [`SETTLED`], are compared by canonical distance.
///
/// The bound E of a score's error is several times the errors that occur, so the true probes-th distance w is near the
/// probes-th score b. The proof needs scores below w − E for those that are accepted and above w + E for those that are
/// left out. A margin of 1.5 E on either side of b is enough if |w − b| < E / 2. A margin of 2 E would need no proof
/// afterwards, but then a quarter of the queries that probe 1,280 of 4,096 lists have more than 64 candidates near the
/// last.
///
/// # Safety
/// All pointers that are present cover the shapes of their fields; probes ≤ `certificate.selected`.
#[kernel(max_threads = 128, min_blocks = 4, settle_probes = settle)]
pub struct SettleProbes {
    /// Number of queries.
    pub query_count: u32,
    /// `query_count` rows of `stride` components.
    pub queries: Ptr<f32>,
    /// Rows of `stride` components.
    pub centroids: Ptr<f32>,
    /// Distance from one row to the next in components: a multiple of 4, zero padded.
    pub stride: u32,
    /// `selected` centroids for each query, best first; `NO_ROW` for none.
    pub places: Ptr<u32>,
    /// The scores at `places`, and the values for the proof of the results. The rows are the centroids, and all of them
    /// may be found.
    #[group]
    pub certificate: Certificate,
    /// Number of probes of a query.
    pub probes: u32,
    /// The metric of the distances.
    pub metric: Metric,
    /// The result: `probes` centroids for each query.
    pub probed_lists: PtrMut<u32>,
    /// 1 for each query whose result is not proved, else 0.
    pub flags: PtrMut<u32>,
}

impl SettleProbes {
    /// One warp for each query.
    pub fn config(&self) -> LaunchConfig {
        LaunchConfig::warps(self.query_count as u64, WARP_QUERIES)
    }
}

/// # Safety
/// As [`SettleProbes`].
#[device_inline]
unsafe fn settle(launch: SettleProbes) {
    let SettleProbes { query_count, queries, centroids, stride, places, certificate, probes, .. } = launch;
    let SettleProbes { metric, probed_lists, flags, .. } = launch;
    let Certificate { selected, scores, errors, .. } = certificate;
    let query = thread::block_idx_x() * WARP_QUERIES + warp::warp_id();
    if query >= query_count {
        return;
    }
    let lane = warp::lane_id();
    let from = query as usize * selected as usize;
    // SAFETY: query < query_count; places below `selected`.
    unsafe {
        let error = global::load_nc(errors.wrapping_add(query as usize)) as f64;
        let last = global::load_nc(scores.wrapping_add(from + probes as usize - 1)) as f64;
        let near = 1.5 * error;
        // Scores ascend. The start of those near the probes-th is searched backwards, and their end forwards. `far` is
        // false if an operand is NaN: then all are near.
        let score = |at: u32| global::load_nc(scores.wrapping_add(from + at as usize)) as f64;
        let mut begin = probes;
        let mut found = 0;
        while begin > 0 && found == 0 && probes - begin < SETTLED {
            let below = begin.wrapping_sub(32 - lane);
            let far = below >= probes || score(below) < last - near;
            found = warp::ballot(FULL_MASK, far);
            begin = begin.saturating_sub(found.leading_zeros());
        }
        let mut end = probes;
        found = 0;
        while end < selected && found == 0 {
            let far = end + lane >= selected || score(end + lane) > last + near;
            found = warp::ballot(FULL_MASK, far);
            end += if found == 0 { 32 } else { found.trailing_zeros() };
        }
        let end = end.min(selected);
        let settled = end - begin <= SETTLED;
        let sure = if settled { begin } else { probes };
        let mut slot = lane;
        while slot < sure {
            let centroid = global::load_nc(places.wrapping_add(from + slot as usize));
            global::store(probed_lists.wrapping_add(query as usize * probes as usize + slot as usize), centroid);
            slot += 32;
        }
        if !settled {
            if lane == 0 {
                global::store(flags.wrapping_add(query as usize), 1);
            }
            return;
        }
        // One list without filter; distances are not stored.
        let near = Rerank {
            query_count,
            queries: queries.cast(),
            stride,
            stored: StoredRows { rows: centroids.cast(), ..StoredRows::default() },
            places,
            certificate: Certificate { live_rows: None, ..certificate },
            metric,
            k: probes,
            out_ranks: probed_lists,
            flags: Some(flags),
            ..Rerank::default()
        };
        rerank_some::<Stored<element::F32>, { SETTLED as usize / 32 }>(near, query, (begin, end), None);
    }
}

/// Completes the work of a [`Rerank`] without `sort`, after k-selection: distances become those of the metric, and
/// flags tell whether the result is proved.
///
/// # Safety
/// All pointers that are present cover the shapes of their fields.
#[kernel(max_threads = 128, certify = finish)]
pub struct Certify {
    /// Number of queries.
    pub query_count: u32,
    /// Number of results of a query.
    pub k: u32,
    /// The metric of the distances.
    pub metric: Metric,
    /// The scores of the candidates, and the values for the proof of the results.
    #[group]
    pub certificate: Certificate,
    /// The k best distances of each query, best first. Before the launch smaller is better; after it they are distances
    /// of the metric.
    pub keys: PtrMut<f32>,
    /// The ranks, laid out as `keys`; `NO_ROW` for none.
    pub ranks: Ptr<u32>,
    /// Before the launch, the number of vectors among each query's candidates; after it, 1 if the result is not proved,
    /// else 0.
    pub flags: PtrMut<u32>,
}

impl Certify {
    /// One thread for each query.
    pub fn config(&self) -> LaunchConfig {
        LaunchConfig::linear(self.query_count.div_ceil(THREADS) as u64, THREADS)
    }
}

/// # Safety
/// As [`Certify`].
#[device_inline]
unsafe fn finish(launch: Certify) {
    let Certify { query_count, k, metric, certificate, keys, ranks, flags } = launch;
    let query = thread::block_idx_x() * THREADS + thread::thread_idx_x();
    if query >= query_count {
        return;
    }
    let first = query as usize * k as usize;
    // SAFETY: query < query_count.
    unsafe {
        let last = first + k as usize - 1;
        let exists = global::load_nc(ranks.wrapping_add(last)) != NO_ROW;
        let bad = if exists { global::load(keys.wrapping_add(last)) } else { f32::INFINITY };
        let valid = global::load(flags.wrapping_add(query as usize));
        global::store(flags.wrapping_add(query as usize), !certificate.holds(query, valid, bad) as u32);
        let mut slot = 0;
        while slot < k as usize {
            let exists = global::load_nc(ranks.wrapping_add(first + slot)) != NO_ROW;
            let bad = global::load(keys.wrapping_add(first + slot));
            global::store(keys.wrapping_add(first + slot), if exists { metric.distance(bad) } else { metric.worst() });
            slot += 1;
        }
    }
}
