//! From the best approximate scores of a query to its exact result: canonical distances, their order, and a certificate.
//!
//! # Problem
//! Scanning ([`crate::list_scan`], [`crate::table_scan`]) wrote approximate scores v with |v + shift − distance| ≤ E for every candidate of a
//! query, and k-selection found the k' ≥ k smallest. Which are the k best by canonical distance, and are they among the k'?
//!
//! # Algorithm
//! ```text
//! for each selected place of the query's row:
//!     place -> probe (binary search among the offsets) -> list and row of the storage; padding and filtered rows drop out
//!     canonical distance of query and row; entry = (distance, rank of the row's id)
//! sort the entries; the first k are the result if
//!     every candidate of the query is among the k', or
//!     v of the last selected + shift − E > distance of the k-th entry        // all others are farther than the k-th
//! ```
//!
//! The comparison is strict, so a vector outside cannot tie with the k-th either. E covers the roundings of score, shift and
//! canonical distance (module [`crate::filter`], *The bound*). A query without certificate is flagged, and the host selects more.
//!
//! Entries order by rank where distances tie: ranks of ids ascend with ids, so ties go to the lower id.
//!
//! # Cost
//! k' canonical distances a query: 10,000 × 18 × 128 components are latency, not work. With a block a query an H200 took 171 µs for
//! them, nearly all of it waiting for look-ups and barriers; so up to [`WARP_SELECTED`] candidates go to one warp, which has them in
//! registers and looks them up at once. More are sorted as in [`crate::block_sort`].
//!
//! Where the k' entries do not fit shared memory, `SORT` = false writes them to memory, k-selection orders them, and
//! [`certify`] decides.

use cuda_std::warp::FULL_MASK;
use cuda_std::{atomic, global, kernel, math, shared, shared_array, thread, unroll, warp};

use crate::NO_ROW;
use crate::block_sort::{ORDER_HEADER_BYTES, OrderWorkspace, block_order};
use crate::canonical::{BATCH, row_squares, squares, sums};
use crate::codes::Codes;
use crate::element::{self, Element};
use crate::entry::{self, EMPTY};
use crate::networks::warp_sort;
use crate::prepare::{METRIC_COSINE, METRIC_L2};

/// Threads of a block.
pub const THREADS: u32 = 128;

/// Bytes before the entries.
const HEADER: u32 = ORDER_HEADER_BYTES.next_multiple_of(16);

/// Dynamic shared memory of a block that sorts `selected` entries, in bytes.
pub const fn shared_bytes(selected: u32) -> u32 {
    HEADER + selected.next_multiple_of(2) * 16
}

/// Vectors that a scan went over.
trait Rows: Copy {
    /// What queries are stored as.
    type Query: Element;
    /// Components 4·`quad` .. of a row of the storage, which belongs to `list`.
    ///
    /// # Safety
    /// Row and list exist, and quad is inside the row.
    unsafe fn load4(&self, row: u32, list: u32, quad: u32) -> [f32; 4];
}

/// Vectors as they were added.
struct Stored<E: Element> {
    rows: *const E::Stored,
    stride: u32,
}

impl<E: Element> Clone for Stored<E> {
    #[inline(always)]
    fn clone(&self) -> Self {
        *self
    }
}
impl<E: Element> Copy for Stored<E> {}

impl<E: Element> Rows for Stored<E> {
    type Query = E;
    #[inline(always)]
    unsafe fn load4(&self, row: u32, _: u32, quad: u32) -> [f32; 4] {
        // SAFETY: as the caller promises.
        unsafe { E::load4(self.rows.wrapping_add(row as usize * self.stride as usize), quad) }
    }
}

impl Rows for Codes {
    type Query = element::F32;
    #[inline(always)]
    unsafe fn load4(&self, row: u32, list: u32, quad: u32) -> [f32; 4] {
        // SAFETY: as the caller promises.
        unsafe { Codes::load4(self, row, list, quad) }
    }
}

/// Where the candidates of a query lie, and what was selected from them. Null `probes`: one list, the storage itself.
#[derive(Clone, Copy)]
struct Selected {
    places: *const u32,
    selected: u32,
    nprobe: u32,
    probes: *const u32,
    offsets: *const u32,
    list_starts: *const u32,
    lengths: *const u32,
    ranks: *const u32,
    filter: *const u32,
    row_count: u32,
}

impl Selected {
    /// List, row of the storage and rank of selected place `at` of `query`; rank `NO_ROW` where there is no vector.
    ///
    /// # Safety
    /// The arrays cover the query; at < selected.
    #[inline(always)]
    unsafe fn candidate(&self, query: u32, at: u32) -> [u32; 3] {
        // SAFETY: the places are those of the query's row, so the last probe that starts at or before one holds it.
        unsafe {
            let place =
                global::load_nc(self.places.wrapping_add(query as usize * self.selected as usize + at as usize));
            if place == NO_ROW {
                return [0, 0, NO_ROW];
            }
            let (list, row) = if self.probes.is_null() {
                if place >= self.row_count {
                    return [0, 0, NO_ROW];
                }
                (0, place)
            } else {
                let first = query as usize * self.nprobe as usize;
                let (mut low, mut high) = (0, self.nprobe);
                while high - low > 1 {
                    let middle = (low + high) / 2;
                    let before = global::load_nc(self.offsets.wrapping_add(first + middle as usize)) <= place;
                    low = if before { middle } else { low };
                    high = if before { high } else { middle };
                }
                let list = global::load_nc(self.probes.wrapping_add(first + low as usize));
                let local = place - global::load_nc(self.offsets.wrapping_add(first + low as usize));
                if list == NO_ROW || local >= global::load_nc(self.lengths.wrapping_add(list as usize)) {
                    return [0, 0, NO_ROW];
                }
                (list, global::load_nc(self.list_starts.wrapping_add(list as usize)) + local)
            };
            let rank = if self.ranks.is_null() { row } else { global::load_nc(self.ranks.wrapping_add(row as usize)) };
            let passes = self.filter.is_null()
                || global::load_nc(self.filter.wrapping_add((rank / 32) as usize)) >> (rank % 32) & 1 == 1;
            [list, row, if passes { rank } else { NO_ROW }]
        }
    }
}

/// What the certificate is made of.
#[derive(Clone, Copy)]
struct Certificate {
    selected: u32,
    scores: *const f32,
    live_rows: *const u32,
    row_count: u32,
    shifts: *const f32,
    errors: *const f32,
}

impl Certificate {
    /// Whether the result of `query` is proved: `valid` vectors were among the selected, and `worst` is the distance of the
    /// k-th (as smaller is better), +∞ if there are fewer.
    ///
    /// # Safety
    /// The arrays cover the query.
    #[inline(always)]
    unsafe fn holds(&self, query: u32, valid: u32, worst: f32) -> bool {
        // SAFETY: as the caller promises.
        unsafe { self.all(query, valid) || self.bounds(query, self.selected - 1)[0] > worst as f64 }
    }

    /// Whether `valid` vectors are all that the query may find.
    ///
    /// # Safety
    /// The arrays cover the query.
    #[inline(always)]
    unsafe fn all(&self, query: u32, valid: u32) -> bool {
        // SAFETY: as the caller promises.
        let live = unsafe {
            if self.live_rows.is_null() {
                self.row_count
            } else {
                global::load_nc(self.live_rows.wrapping_add(query as usize))
            }
        };
        valid == live
    }

    /// Bounds of the distance of the vector at a place of the selected, from below and above; NaN where nothing is proved.
    ///
    /// # Safety
    /// The arrays cover the query; place < selected.
    #[inline(always)]
    unsafe fn bounds(&self, query: u32, place: u32) -> [f64; 2] {
        let at = query as usize;
        // SAFETY: as the caller promises.
        unsafe {
            let shift = if self.shifts.is_null() { 0.0 } else { global::load_nc(self.shifts.wrapping_add(at)) };
            let score = global::load_nc(self.scores.wrapping_add(at * self.selected as usize + place as usize));
            let error = global::load_nc(self.errors.wrapping_add(at)) as f64;
            let middle = score as f64 + shift as f64;
            [middle - error, middle + error]
        }
    }
}

/// A distance (f64 sum or quotient) as f32, smaller is better: similarities are ordered by their negatives.
#[inline(always)]
fn badness(metric: u32, distance: f64) -> f32 {
    let distance = distance as f32 + 0.0;
    if metric == METRIC_L2 { distance } else { 0.0 - distance }
}

/// The distance that [`badness`] came from.
#[inline(always)]
fn goodness(metric: u32, bad: f32) -> f32 {
    if metric == METRIC_L2 { bad } else { 0.0 - bad }
}

/// What a slot without a neighbour holds.
#[inline(always)]
fn worst(metric: u32) -> f32 {
    if metric == METRIC_L2 { f32::INFINITY } else { f32::NEG_INFINITY }
}

/// Canonical distances, before rounding, of a query to [`BATCH`] rows. All 32 lanes arrive, with the same arguments but `lane`.
///
/// # Safety
/// Rows and lists exist; x has `quads` readable groups of four components.
#[inline(always)]
#[expect(clippy::too_many_arguments, reason = "the parts of a comparison")]
unsafe fn canonical<R: Rows>(
    x: *const <R::Query as Element>::Stored,
    rows: R,
    lists: &[u32; BATCH],
    numbers: &[u32; BATCH],
    metric: u32,
    query_squares: f64,
    quads: u32,
    lane: u32,
) -> [f64; BATCH] {
    // SAFETY: as the caller promises; quad < quads.
    let load = |b: usize, quad: u32| unsafe { rows.load4(numbers[b], lists[b], quad) };
    // SAFETY: as above.
    let query_quad = |quad: u32| unsafe { R::Query::load4(x, quad) };
    let mut distances = if metric == METRIC_L2 {
        sums::<true>(query_quad, load, quads, lane)
    } else {
        sums::<false>(query_quad, load, quads, lane)
    };
    if metric == METRIC_COSINE {
        let own = row_squares(load, quads, lane);
        unroll::<BATCH>(|b| {
            let squares = query_squares * own[b];
            distances[b] = if squares == 0.0 { 0.0 } else { distances[b] / math::sqrt_f64(squares) };
        });
    }
    distances
}

/// Body of the re-ranking kernels. All threads of a block stay together.
///
/// # Safety
/// As [`rerank_f32`].
#[inline(always)]
#[expect(clippy::too_many_arguments, reason = "what the kernels have in common")]
unsafe fn rerank<R: Rows>(
    queries: *const <R::Query as Element>::Stored,
    rows: R,
    stride: u32,
    what: Selected,
    certificate: Certificate,
    metric: u32,
    sort: bool,
    k: u32,
    out_keys: *mut f32,
    out_ranks: *mut u32,
    flags: *mut u32,
) {
    let thread = thread::thread_idx_x();
    let (lane, warp) = (warp::lane_id(), warp::warp_id());
    let warps = thread::block_dim_x() / 32;
    let query = thread::block_idx_x();
    let slice = thread::block_idx_y();
    let quads = stride / 4;
    let found = shared_array!(u32, 1);
    let entries = shared::dynamic::<u8>();
    // SAFETY: for the whole body, the caller promises the shapes; places stay below `selected`.
    unsafe {
        let entries = entries.add(HEADER).cast::<u64>();
        if thread == 0 {
            found.store(0);
        }
        thread::sync_threads();
        let x = queries.wrapping_add(query as usize * stride as usize);
        let query_squares = if metric == METRIC_COSINE { squares::<R::Query>(x, quads, lane) } else { 0.0 };
        let mut valid = 0;
        let mut first = (slice * warps + warp) * BATCH as u32;
        while first < what.selected {
            // Each lane looks up one candidate of the batch; lanes past it repeat the last.
            let at = (first + lane.min(BATCH as u32 - 1)).min(what.selected - 1);
            let [list, row, rank] = what.candidate(query, at);
            let mut lists = [0u32; BATCH];
            let mut numbers = [0u32; BATCH];
            unroll::<BATCH>(|b| {
                lists[b] = warp::shuffle_idx(FULL_MASK, list, b as u32);
                numbers[b] = warp::shuffle_idx(FULL_MASK, row, b as u32);
            });
            // Without a vector, row 0 of list 0 is evaluated and dropped.
            let distances = canonical::<R>(x, rows, &lists, &numbers, metric, query_squares, quads, lane);
            let mut distance = distances[0];
            unroll::<BATCH>(|b| distance = if lane == b as u32 { distances[b] } else { distance });
            let exists = lane < BATCH as u32 && first + lane < what.selected;
            let alive = exists && rank != NO_ROW;
            valid += warp::ballot(FULL_MASK, alive).count_ones();
            if exists {
                let bad = badness(metric, distance);
                if sort {
                    let entry = if alive { entry::pack(entry::key_of(bad), rank) } else { EMPTY };
                    entries.add(first + lane).store(entry);
                } else {
                    let at = query as usize * what.selected as usize + (first + lane) as usize;
                    global::store(out_keys.wrapping_add(at), bad);
                    global::store(out_ranks.wrapping_add(at), if alive { rank } else { NO_ROW });
                }
            }
            first += thread::grid_dim_y() * warps * BATCH as u32;
        }
        if !sort {
            if lane == 0 {
                atomic::add_u32(flags.wrapping_add(query as usize), valid);
            }
            return;
        }
        if lane == 0 {
            atomic::shared_add_u32(found, valid);
        }
        thread::sync_threads();
        let capacity = what.selected.next_multiple_of(2);
        let workspace =
            OrderWorkspace { header: shared::dynamic::<u64>(), words: entries.add(capacity).cast(), capacity };
        let order = block_order(entries, what.selected, k, workspace);
        let mut slot = thread;
        while slot < k {
            let entry = if slot < what.selected { order.get(slot) } else { EMPTY };
            let out = query as usize * k as usize + slot as usize;
            let bad = entry::value_of(entry::key(entry));
            global::store(
                out_keys.wrapping_add(out),
                if entry == EMPTY { worst(metric) } else { goodness(metric, bad) },
            );
            global::store(out_ranks.wrapping_add(out), entry::payload(entry));
            if slot == k - 1 && !flags.is_null() {
                let bad = if entry == EMPTY { f32::INFINITY } else { bad };
                let proved = certificate.holds(query, found.load(), bad);
                global::store(flags.wrapping_add(query as usize), !proved as u32);
            }
            slot += THREADS;
        }
    }
}

/// Candidates that one warp re-ranks, at most.
pub const WARP_SELECTED: u32 = 32 * FEW_REGISTERS as u32;
const FEW_REGISTERS: usize = 2;
/// Centroids near the last probe that a warp compares exactly, at most.
pub const SETTLED: u32 = 128;
/// Queries of a block where a warp has one.
pub const WARP_QUERIES: u32 = THREADS / 32;

/// Body of the re-ranking kernels for at most [`WARP_SELECTED`] candidates: a warp a query, entries in registers. Nobody waits for
/// another warp, and a multiprocessor works on four times as many queries. Of the selected, those below `begin` are taken for results, and
/// those from `end` on for none, which the certificate then proves or not: slots `begin` .. k are filled from those between, at most
/// 32 · `REGISTERS`. All 32 lanes arrive.
///
/// # Safety
/// As [`rerank_f32`].
#[inline(always)]
#[expect(clippy::too_many_arguments, reason = "what the kernels have in common")]
unsafe fn rerank_few<R: Rows, const REGISTERS: usize>(
    query: u32,
    queries: *const <R::Query as Element>::Stored,
    rows: R,
    stride: u32,
    what: Selected,
    certificate: Certificate,
    metric: u32,
    (begin, end): (u32, u32),
    k: u32,
    out_keys: *mut f32,
    out_ranks: *mut u32,
    flags: *mut u32,
) {
    let lane = warp::lane_id();
    let quads = stride / 4;
    // SAFETY: for the whole body, the caller promises the shapes; places stay below `selected`.
    unsafe {
        let x = queries.wrapping_add(query as usize * stride as usize);
        let query_squares = if metric == METRIC_COSINE { squares::<R::Query>(x, quads, lane) } else { 0.0 };
        // Lane l looks up candidates l, l + 32, ..: one trip through the offsets for all.
        let mut candidates = [[0u32; 3]; REGISTERS];
        let mut entries = [EMPTY; REGISTERS];
        let mut valid = 0;
        unroll::<REGISTERS>(|r| {
            let at = begin + 32 * r as u32 + lane;
            candidates[r] = if at < end { what.candidate(query, at) } else { [0, 0, NO_ROW] };
            valid += warp::ballot(FULL_MASK, candidates[r][2] != NO_ROW).count_ones();
        });
        let mut first = 0;
        while begin + first < end {
            let of = first / 32;
            let mut own = candidates[0];
            unroll::<REGISTERS>(|r| own = if of == r as u32 { candidates[r] } else { own });
            let mut lists = [0u32; BATCH];
            let mut numbers = [0u32; BATCH];
            unroll::<BATCH>(|b| {
                lists[b] = warp::shuffle_idx(FULL_MASK, own[0], first % 32 + b as u32);
                numbers[b] = warp::shuffle_idx(FULL_MASK, own[1], first % 32 + b as u32);
            });
            // Without a vector, row 0 of list 0 is evaluated and dropped.
            let distances = canonical::<R>(x, rows, &lists, &numbers, metric, query_squares, quads, lane);
            unroll::<BATCH>(|b| {
                let bad = badness(metric, distances[b]);
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
                if !out_keys.is_null() {
                    let distance = if entry == EMPTY { worst(metric) } else { goodness(metric, bad) };
                    global::store(out_keys.wrapping_add(out), distance);
                }
                global::store(out_ranks.wrapping_add(out), entry::payload(entry));
                if slot == k - 1 && !flags.is_null() {
                    let bad = if entry == EMPTY { f32::INFINITY } else { bad };
                    let next = if end < what.selected { end } else { what.selected - 1 };
                    let none_beyond =
                        certificate.all(query, begin + valid) || certificate.bounds(query, next)[0] > bad as f64;
                    // False where anything is NaN.
                    let proved = none_beyond && (begin == 0 || certificate.bounds(query, begin - 1)[1] < bad as f64);
                    global::store(flags.wrapping_add(query as usize), !proved as u32);
                }
            }
        });
    }
}

/// Calls `$then!` with the table of element types that lists are searched by: `(type, stored type, kernels and handles)`.
#[macro_export]
macro_rules! list_search_instances {
    ($then:ident) => {
        $then! {
            (F32, f32, prepare_queries_f32, PREPARE_QUERIES_F32, rerank_f32, RERANK_F32, rerank_few_f32, RERANK_FEW_F32)
            (F16, u16, prepare_queries_f16, PREPARE_QUERIES_F16, rerank_f16, RERANK_F16, rerank_few_f16, RERANK_FEW_F16)
            (Bf16, u16, prepare_queries_bf16, PREPARE_QUERIES_BF16, rerank_bf16, RERANK_BF16, rerank_few_bf16, RERANK_FEW_BF16)
            (U8, u8, prepare_queries_u8, PREPARE_QUERIES_U8, rerank_u8, RERANK_U8, rerank_few_u8, RERANK_FEW_U8)
            (I8, i8, prepare_queries_i8, PREPARE_QUERIES_I8, rerank_i8, RERANK_I8, rerank_few_i8, RERANK_FEW_I8)
        }
    };
}

macro_rules! define_kernels {
    ($(($element:ident, $stored:ty, $q:ident, $qh:ident, $name:ident, $handle:ident, $few:ident, $fh:ident))*) => {$(
        /// Re-ranks `selected` places a query (`places`, with their `scores`, best first) and writes the k best, best first: distances to
        /// `out_keys`, ranks to `out_ranks` (`NO_ROW` and the worst distance where there are fewer), and to `flags` 1 where that is
        /// not proved to be the result, else 0. Null `flags`: nobody asks.
        ///
        /// `queries` and `rows` are row-major with `stride` components a row (a multiple of 4, zero padded). `probes`, `offsets`,
        /// `live_rows`: as in [`crate::pairs`]; null `probes` and `live_rows`: the places are the first `row_count` rows of the storage.
        /// `ranks` may be null (rank = row), `filter` too. `shifts` (null: 0) and `errors` make the certificate.
        ///
        /// Grid: a block of [`THREADS`] a query, [`shared_bytes`] of dynamic shared memory. With `sort` = 0, any number of blocks along
        /// y share a query's candidates, no shared memory: then (distance as smaller is better, rank) go to places query · selected
        /// + place of `out_keys` and `out_ranks`, and the number of vectors among them is added to `flags[query]`.
        ///
        /// # Safety
        /// All pointers that are not null cover these shapes; rows are those of the lists' storage.
        #[kernel(max_threads = 128, min_blocks = 4)]
        pub unsafe fn $name(
            queries: *const $stored, rows: *const $stored, stride: u32, places: *const u32, scores: *const f32,
            selected: u32, nprobe: u32, probes: *const u32, offsets: *const u32, list_starts: *const u32,
            lengths: *const u32, ranks: *const u32, filter: *const u32, live_rows: *const u32, row_count: u32,
            metric: u32, sort: u32, shifts: *const f32, errors: *const f32, k: u32, out_keys: *mut f32,
            out_ranks: *mut u32, flags: *mut u32,
        ) {
            let what =
                Selected { places, selected, nprobe, probes, offsets, list_starts, lengths, ranks, filter, row_count };
            let certificate = Certificate { selected, scores, live_rows, row_count, shifts, errors };
            // SAFETY: the same contract.
            unsafe {
                rerank::<Stored<element::$element>>(
                    queries, Stored { rows, stride }, stride, what, certificate, metric, sort != 0, k, out_keys, out_ranks,
                    flags,
                )
            }
        }

        /// The same for at most [`WARP_SELECTED`] candidates a query, sorted.
        ///
        /// Grid: ceil(query_count / 4) blocks of [`THREADS`], a warp a query; no dynamic shared memory.
        ///
        /// # Safety
        /// As the kernel before.
        #[kernel(max_threads = 128, min_blocks = 4)]
        pub unsafe fn $few(
            query_count: u32, queries: *const $stored, rows: *const $stored, stride: u32, places: *const u32,
            scores: *const f32, selected: u32, nprobe: u32, probes: *const u32, offsets: *const u32,
            list_starts: *const u32, lengths: *const u32, ranks: *const u32, filter: *const u32, live_rows: *const u32,
            row_count: u32, metric: u32, shifts: *const f32, errors: *const f32, k: u32, out_keys: *mut f32,
            out_ranks: *mut u32, flags: *mut u32,
        ) {
            let what =
                Selected { places, selected, nprobe, probes, offsets, list_starts, lengths, ranks, filter, row_count };
            let certificate = Certificate { selected, scores, live_rows, row_count, shifts, errors };
            let query = thread::block_idx_x() * WARP_QUERIES + warp::warp_id();
            if query >= query_count {
                return;
            }
            // SAFETY: the same contract.
            unsafe {
                rerank_few::<Stored<element::$element>, FEW_REGISTERS>(
                    query, queries, Stored { rows, stride }, stride, what, certificate, metric, (0, selected), k, out_keys, out_ranks,
                    flags,
                )
            }
        }
    )*};
}
crate::list_search_instances!(define_kernels);

/// [`rerank_f32`] for codes, with the parameters of [`Codes`]: `shape` is code bytes · 2^4 + bits. Queries have `dim` components, padded
/// to a multiple of 4.
///
/// # Safety
/// As [`rerank_f32`]; codes name codewords that exist.
#[kernel(max_threads = 128, min_blocks = 3)]
pub unsafe fn rerank_codes(
    queries: *const f32,
    codes: *const u8,
    shape: u32,
    width: u32,
    dim: u32,
    codebooks: *const f32,
    centroids: *const f32,
    places: *const u32,
    scores: *const f32,
    selected: u32,
    nprobe: u32,
    probes: *const u32,
    offsets: *const u32,
    list_starts: *const u32,
    lengths: *const u32,
    ranks: *const u32,
    filter: *const u32,
    live_rows: *const u32,
    metric: u32,
    sort: u32,
    shifts: *const f32,
    errors: *const f32,
    k: u32,
    out_keys: *mut f32,
    out_ranks: *mut u32,
    flags: *mut u32,
) {
    let stride = dim.next_multiple_of(4);
    let rows = Codes { codes, code_bytes: shape >> 4, bits: shape & 15, width, dim, codebooks, centroids, stride };
    let what =
        Selected { places, selected, nprobe, probes, offsets, list_starts, lengths, ranks, filter, row_count: 0 };
    let certificate = Certificate { selected, scores, live_rows, row_count: 0, shifts, errors };
    // SAFETY: the same contract.
    unsafe { rerank(queries, rows, stride, what, certificate, metric, sort != 0, k, out_keys, out_ranks, flags) }
}

/// [`rerank_few_f32`] for codes, with the parameters of [`rerank_codes`].
///
/// # Safety
/// As [`rerank_codes`].
#[kernel(max_threads = 128, min_blocks = 3)]
pub unsafe fn rerank_few_codes(
    query_count: u32,
    queries: *const f32,
    codes: *const u8,
    shape: u32,
    width: u32,
    dim: u32,
    codebooks: *const f32,
    centroids: *const f32,
    places: *const u32,
    scores: *const f32,
    selected: u32,
    nprobe: u32,
    probes: *const u32,
    offsets: *const u32,
    list_starts: *const u32,
    lengths: *const u32,
    ranks: *const u32,
    filter: *const u32,
    live_rows: *const u32,
    metric: u32,
    shifts: *const f32,
    errors: *const f32,
    k: u32,
    out_keys: *mut f32,
    out_ranks: *mut u32,
    flags: *mut u32,
) {
    let stride = dim.next_multiple_of(4);
    let rows = Codes { codes, code_bytes: shape >> 4, bits: shape & 15, width, dim, codebooks, centroids, stride };
    let what =
        Selected { places, selected, nprobe, probes, offsets, list_starts, lengths, ranks, filter, row_count: 0 };
    let certificate = Certificate { selected, scores, live_rows, row_count: 0, shifts, errors };
    let query = thread::block_idx_x() * WARP_QUERIES + warp::warp_id();
    if query >= query_count {
        return;
    }
    // SAFETY: the same contract.
    unsafe {
        rerank_few::<_, FEW_REGISTERS>(
            query,
            queries,
            rows,
            stride,
            what,
            certificate,
            metric,
            (0, selected),
            k,
            out_keys,
            out_ranks,
            flags,
        )
    }
}

/// The `nprobe` nearest centroids of each query, in no particular order, from the `selected` with the smallest `scores` (places are
/// centroids, best first): those whose scores are far below the nprobe-th are taken without a look, and those near it, at most
/// [`SETTLED`], are compared by canonical distance. Flags 1 where the result is not proved. Parameters as those of [`rerank_few_f32`].
///
/// How far: the bound E on a score's error is several times the errors that occur, so the true nprobe-th distance w lies near the nprobe-th
/// score b. The proof wants scores below w − E for those taken and above w + E for those left out: it holds with 1.5 E on either
/// side of b if |w − b| < E / 2. With 2 E, which needs no proof afterwards, a quarter of the queries that probe 1,280 of 4,096 lists have
/// more than 64 candidates near the last.
///
/// Grid: ceil(query_count / 4) blocks of [`THREADS`], a warp a query.
///
/// # Safety
/// As [`rerank_few_f32`]; nprobe ≤ selected.
#[kernel(max_threads = 128, min_blocks = 4)]
pub unsafe fn settle_probes(
    query_count: u32,
    queries: *const f32,
    centroids: *const f32,
    stride: u32,
    places: *const u32,
    scores: *const f32,
    selected: u32,
    nprobe: u32,
    row_count: u32,
    metric: u32,
    shifts: *const f32,
    errors: *const f32,
    probes: *mut u32,
    flags: *mut u32,
) {
    let query = thread::block_idx_x() * WARP_QUERIES + warp::warp_id();
    if query >= query_count {
        return;
    }
    let lane = warp::lane_id();
    let from = query as usize * selected as usize;
    // SAFETY: query < query_count; places below `selected`.
    unsafe {
        let error = global::load_nc(errors.wrapping_add(query as usize)) as f64;
        let last = global::load_nc(scores.wrapping_add(from + nprobe as usize - 1)) as f64;
        let near = 1.5 * error;
        // Scores ascend: look for the start of those near the nprobe-th backwards, and for their end forwards. False where anything is
        // NaN: then all are near.
        let score = |at: u32| global::load_nc(scores.wrapping_add(from + at as usize)) as f64;
        let mut begin = nprobe;
        let mut found = 0;
        while begin > 0 && found == 0 && nprobe - begin < SETTLED {
            let below = begin.wrapping_sub(32 - lane);
            let far = below >= nprobe || score(below) < last - near;
            found = warp::ballot(FULL_MASK, far);
            begin = begin.saturating_sub(found.leading_zeros());
        }
        let mut end = nprobe;
        found = 0;
        while end < selected && found == 0 {
            let far = end + lane >= selected || score(end + lane) > last + near;
            found = warp::ballot(FULL_MASK, far);
            end += if found == 0 { 32 } else { found.trailing_zeros() };
        }
        let end = end.min(selected);
        let settled = end - begin <= SETTLED;
        let sure = if settled { begin } else { nprobe };
        let mut slot = lane;
        while slot < sure {
            let centroid = global::load_nc(places.wrapping_add(from + slot as usize));
            global::store(probes.wrapping_add(query as usize * nprobe as usize + slot as usize), centroid);
            slot += 32;
        }
        if !settled {
            if lane == 0 {
                global::store(flags.wrapping_add(query as usize), 1);
            }
            return;
        }
        let none = core::ptr::null();
        let what = Selected {
            places,
            selected,
            nprobe: 1,
            probes: none,
            offsets: none,
            list_starts: none,
            lengths: none,
            ranks: none,
            filter: none,
            row_count,
        };
        let certificate = Certificate { selected, scores, live_rows: none, row_count, shifts, errors };
        let rows = Stored::<element::F32> { rows: centroids, stride };
        let keys = core::ptr::null_mut();
        rerank_few::<_, { SETTLED as usize / 32 }>(
            query,
            queries,
            rows,
            stride,
            what,
            certificate,
            metric,
            (begin, end),
            nprobe,
            keys,
            probes,
            flags,
        );
    }
}

/// Ends what a re-ranking with `sort` = 0 began, after k-selection: `keys` and `ranks` hold the k best of each query as (distance as
/// smaller is better, rank); distances become those of the metric, and `flags`, which hold the number of vectors among the
/// selected, become 1 where the result is not proved, else 0. The other parameters are those of [`rerank_f32`].
///
/// Grid: ceil(query_count / 128) blocks of [`THREADS`], a thread a query.
///
/// # Safety
/// As [`rerank_f32`].
#[kernel(max_threads = 128)]
pub unsafe fn certify(
    query_count: u32,
    k: u32,
    metric: u32,
    selected: u32,
    scores: *const f32,
    live_rows: *const u32,
    row_count: u32,
    shifts: *const f32,
    errors: *const f32,
    keys: *mut f32,
    ranks: *const u32,
    flags: *mut u32,
) {
    let query = thread::block_idx_x() * THREADS + thread::thread_idx_x();
    if query >= query_count {
        return;
    }
    let certificate = Certificate { selected, scores, live_rows, row_count, shifts, errors };
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
            global::store(keys.wrapping_add(first + slot), if exists { goodness(metric, bad) } else { worst(metric) });
            slot += 1;
        }
    }
}
