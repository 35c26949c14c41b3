//! The results of queries without a certificate, without the host.
//!
//! # Problem
//! Scores decide which centroids and vectors are compared exactly, and a certificate proves that no others are needed
//! ([`crate::ivf::rerank`]). Without the certificate the host searches again with more candidates. A search that only enqueues work cannot
//! wait for the flags, so a kernel completes these queries.
//!
//! # Algorithm
//! A block looks for queries without a certificate among up to 32 of them, one for each lane, and completes these one after the other. With fewer
//! than `BLOCKS` queries for each multiprocessor a block has one query.
//!
//! ```text
//! probes:     b = score of the nprobe-th best centroid                           // |score + shift - distance| <= E
//!             centroids with score < b - 3 E are probes
//!             of those within 3 E of b, compared exactly, the best ones are the other probes
//! neighbours: d = distance of the k-th neighbour so far
//!             of the vectors in the probed lists with score + shift - E <= d, compared exactly, the k best are the result
//! ```
//!
//! At least nprobe centroids have a distance of at most b + shift + E, and fewer than nprobe have one below b + shift - E. So a margin of 2 E is
//! enough; the third E covers roundings of the comparison. If the scores of all vectors are not in memory, because the scan appended
//! candidates, all vectors of the probed lists are compared.
//!
//! A range search with k places for each query counts the vectors within its radius in the same lists, for the queries that fill their places
//! ([`crate::flat::count_within`]). The bounds of most vectors decide whether these are within the radius; the others are compared exactly.
//!
//! A warp compares four rows at a time and keeps its best 32 entries ([`WarpSelect`]). The block joins the entries of its warps. More than 32
//! results take further passes, which select among the entries after the last one.
//!
//! # Cost
//! Without such a query one launch that reads a word for each query: a block for each of 65,536 queries took 97 µs (H200, 2026-11-26).
//! Otherwise one read of the query's scores, and the distances of the
//! vectors near the k-th, for each 32 results.

use cuda_std::launch::LaunchConfig;
use cuda_std::shared::SharedPtr;
use cuda_std::warp::FULL_MASK;
use cuda_std::{Ptr, PtrMut, atomic, global, kernel, shared_array, thread, unroll, warp};

use crate::NO_ROW;
use crate::ivf::encoding::flat::Stored;
use crate::ivf::encoding::{CodedRows, Decode};
use crate::ivf::rerank::{Query, THREADS};
use crate::product::canonical::BATCH;
use crate::product::element::{self, ElementKey};
use crate::product::metric::Metric;
use crate::select::entry::{self, EMPTY};
use crate::select::networks::warp_sort;
use crate::select::warp_select::{WarpSelect, thread_queue};

const WARPS: usize = THREADS as usize / 32;
/// Number of blocks for each multiprocessor from which on a block has several queries.
const BLOCKS: u32 = 8;
/// Number of results of a pass, the entries of a warp's queue.
const PASS: u32 = 32;
/// Number of blocks that count for each multiprocessor.
const COUNTING_BLOCKS: u64 = 3;
/// The best entries of a warp in a pass.
type Queue = WarpSelect<1, { thread_queue(PASS) }>;

/// What a query is compared with all vectors of its lists for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rescanned {
    /// The k best vectors, of each query without a certificate.
    Neighbors,
    /// The number of vectors within a radius, of each listed query.
    Count,
}

/// [`Rescanned::Neighbors`] replaces the neighbours of each query without a certificate by the k best of all vectors in its probed lists, best
/// first. [`Rescanned::Count`] adds the number of vectors in the probed lists within a radius to the count of each listed query.
///
/// The default has empty or absent pointers and zeros.
///
/// # Safety
/// All pointers that are present cover the shapes of their fields, rows are those of the lists' storage, and every code has a codeword.
#[kernel(
    key = (ElementKey, Rescanned),
    max_threads = 128,
    min_blocks = 3,
    elsewhere = rescan_kernels,
    (ElementKey::F32, Rescanned::Neighbors) => rescan_lists_f32 = rescan::<Stored<element::F32>>,
    (ElementKey::F32, Rescanned::Count) => count_lists_f32 = count::<Stored<element::F32>>,
    (ElementKey::F16, Rescanned::Neighbors) => rescan_lists_f16 = rescan::<Stored<element::F16>>,
    (ElementKey::F16, Rescanned::Count) => count_lists_f16 = count::<Stored<element::F16>>,
    (ElementKey::Bf16, Rescanned::Neighbors) => rescan_lists_bf16 = rescan::<Stored<element::Bf16>>,
    (ElementKey::Bf16, Rescanned::Count) => count_lists_bf16 = count::<Stored<element::Bf16>>,
    (ElementKey::U8, Rescanned::Neighbors) => rescan_lists_u8 = rescan::<Stored<element::U8>>,
    (ElementKey::U8, Rescanned::Count) => count_lists_u8 = count::<Stored<element::U8>>,
    (ElementKey::I8, Rescanned::Neighbors) => rescan_lists_i8 = rescan::<Stored<element::I8>>,
    (ElementKey::I8, Rescanned::Count) => count_lists_i8 = count::<Stored<element::I8>>,
)]
#[derive(Default)]
pub struct Rescan {
    /// Number of queries.
    pub query_count: u32,
    /// As the fields of [`Rerank`](crate::ivf::rerank::Rerank) with the same names, and so the fields up to `filter`.
    pub queries: Ptr<u8>,
    /// Rows of the storage.
    pub rows: Ptr<u8>,
    /// Distance from one query, stored vector or centroid to the next in components.
    pub stride: u32,
    /// Codes only: number of bytes of a row.
    pub code_bytes: u32,
    /// Codes only: number of bits of a sub-quantizer's code.
    pub bits: u32,
    /// Codes only: number of components of a sub-vector.
    pub width: u32,
    /// Codes only: number of components of a vector.
    pub dim: u32,
    /// Codes only: codewords \[dim / width\]\[2^bits\]\[width\], or the tables of another encoding.
    pub codebooks: Ptr<f32>,
    /// Codes only: centroids of the lists.
    pub centroids: Ptr<f32>,
    /// The metric of the distances.
    pub metric: Metric,
    /// Number of probes of a query.
    pub nprobe: u32,
    /// `nprobe` lists for each query, `NO_ROW` for none.
    pub probes: Ptr<u32>,
    /// The first row of each list in the storage.
    pub list_starts: Ptr<u32>,
    /// The number of vectors of each list.
    pub lengths: Ptr<u32>,
    /// The rank of each row's id.
    pub ranks: Ptr<u32>,
    /// A bit for each rank, 1 for vectors that may be found; absent: no filter.
    pub filter: Option<Ptr<u32>>,
    /// The scores of all vectors in the probed lists; absent: all vectors are compared.
    pub scores: Option<Ptr<f32>>,
    /// The start of each query's row of scores.
    pub row_starts: Ptr<u64>,
    /// The start of each probe's scores in the query's row.
    pub offsets: Ptr<u32>,
    /// The shift of each query: a score plus the shift approximates the distance; absent: 0.
    pub shifts: Option<Ptr<f32>>,
    /// E of each query: the bound of |score + shift − distance|.
    pub errors: Ptr<f32>,
    /// Neighbours only: not 0 for each query without a certificate.
    pub flags: Ptr<u32>,
    /// Neighbours only: the number of candidates of each query; more than `room` are no certificate either. Absent: nothing was appended.
    pub counts: Option<Ptr<u32>>,
    /// Neighbours only: number of candidates of a query for which there was room.
    pub room: u32,
    /// Neighbours only: number of results of a query, at least 1.
    pub k: u32,
    /// Neighbours only: the distances of `k` vectors of the probed lists for each query, best first. The worst distance if there are fewer.
    pub keys: PtrMut<f32>,
    /// Neighbours only: the ranks of these vectors, laid out as `keys`; `NO_ROW` if there are fewer.
    pub out_ranks: PtrMut<u32>,
    /// Counts only: the number of listed queries, and then their numbers.
    pub listed: Ptr<u32>,
    /// Counts only: the radius, a distance of the metric, not NaN.
    pub radius: f32,
    /// Counts only: the count of each query.
    pub within: PtrMut<u32>,
}

impl Rescan {
    /// A block for some queries; for counts a fixed number of blocks, which share the lists of all listed queries.
    pub fn config(&self, what: Rescanned, multiprocessors: u32) -> LaunchConfig {
        match what {
            Rescanned::Neighbors => blocks_for(self.query_count, multiprocessors),
            Rescanned::Count => LaunchConfig::linear(multiprocessors as u64 * COUNTING_BLOCKS, THREADS),
        }
    }

    /// Whether `query` has no certificate.
    ///
    /// # Safety
    /// The query is below `query_count`.
    #[inline(always)]
    unsafe fn lacks_certificate(&self, query: u32) -> bool {
        let query = query as usize;
        // SAFETY: as the caller promises.
        unsafe {
            let overflows = match self.counts {
                Some(counts) => global::load_nc(counts.wrapping_add(query)) > self.room,
                None => false,
            };
            overflows || global::load_nc(self.flags.wrapping_add(query)) != 0
        }
    }

    #[inline(always)]
    fn lists(&self) -> ProbedLists {
        let Self { nprobe, probes, list_starts, lengths, ranks, filter, scores, row_starts, offsets, .. } = *self;
        let Self { shifts, errors, .. } = *self;
        ProbedLists { nprobe, probes, list_starts, lengths, ranks, filter, scores, row_starts, offsets, shifts, errors }
    }

    #[inline(always)]
    fn coded(&self) -> CodedRows {
        let Self { rows, stride, code_bytes, bits, width, dim, codebooks, centroids, .. } = *self;
        let (codes, codebooks, centroids) = (*rows, *codebooks, *centroids);
        CodedRows { codes, code_bytes, bits, width, dim, stride, codebooks, centroids }
    }
}

/// Blocks for the queries of a launch.
fn blocks_for(query_count: u32, multiprocessors: u32) -> LaunchConfig {
    let queries = (query_count / (multiprocessors * BLOCKS).max(1)).clamp(1, 32);
    LaunchConfig::linear(query_count.div_ceil(queries) as u64, THREADS)
}

/// Calls `complete` for each query of the block that `lacks` a certificate, one after the other. All threads of the block stay together.
#[inline(always)]
fn each_lacking(query_count: u32, lacks: impl Fn(u32) -> bool, mut complete: impl FnMut(u32)) {
    let queries = query_count.div_ceil(thread::grid_dim_x().max(1));
    let (first, lane) = (thread::block_idx_x() * queries, warp::lane_id());
    let query = first + lane;
    // Every warp finds the same queries.
    let mut left = warp::ballot(FULL_MASK, lane < queries && query < query_count && lacks(query));
    while left != 0 {
        complete(first + left.trailing_zeros());
        left &= left - 1;
    }
}

/// All threads of the block stay together.
///
/// # Safety
/// As [`Rescan`].
#[inline(always)]
pub(crate) unsafe fn rescan<R: Decode>(launch: Rescan) {
    let best = shared_array!(u64, THREADS as usize);
    // SAFETY: the caller promises the shapes; all queries are below `query_count`.
    let lacks = |query| unsafe { launch.lacks_certificate(query) };
    // SAFETY: as above.
    each_lacking(launch.query_count, lacks, |query| unsafe { rescan_query::<R>(&launch, query, best) });
}

/// Completes one query. All threads of the block stay together.
///
/// # Safety
/// As [`Rescan`]; the query is below `query_count`, and `best` has a place for each thread.
#[inline(always)]
unsafe fn rescan_query<R: Decode>(launch: &Rescan, query: u32, best: SharedPtr<u64>) {
    let &Rescan { stride, metric, k, keys, out_ranks, .. } = launch;
    let (lane, warp) = (warp::lane_id(), warp::warp_id());
    // SAFETY: for the whole body, as the caller promises.
    unsafe {
        let rows = R::of(&launch.coded());
        let x = Query::<R::Query>::of(launch.queries, stride, metric, query, lane);
        let first = query as usize * k as usize;
        // Every thread reads this before the first barrier, and results are written after it.
        let worst = metric.badness(global::load(keys.wrapping_add(first + k as usize - 1)));
        let lists = launch.lists();
        let mut floor = None;
        let mut done = 0;
        while done < k {
            let mut queue = Queue::new((k - done).min(PASS), floor);
            let mut probe = 0;
            while probe < launch.nprobe && floor != Some(EMPTY) {
                let list = lists.list(query as usize, probe);
                // Each warp has a part of each list.
                let mut from = PASS * warp;
                while from < list.length {
                    let row = lists.rows(&list, from, worst);
                    offer(&x, rows, row, row.rank, &mut queue);
                    from += THREADS;
                }
                probe += 1;
            }
            let entry = joined(queue, best);
            let slot = done + lane;
            if warp == 0 && slot < k {
                let at = first + slot as usize;
                let distance =
                    if entry == EMPTY { metric.worst() } else { metric.distance(entry::value_of(entry::key(entry))) };
                global::store(keys.wrapping_add(at), distance);
                // The payload of an empty slot is NO_ROW.
                global::store(out_ranks.wrapping_add(at), entry::payload(entry));
            }
            floor = Some(warp::shuffle_idx(FULL_MASK, entry, PASS - 1));
            done += PASS;
        }
    }
}

/// # Safety
/// As [`Rescan`].
#[inline(always)]
pub(crate) unsafe fn count<R: Decode>(launch: Rescan) {
    let Rescan { queries, stride, metric, nprobe, listed, radius, within, .. } = launch;
    let lane = warp::lane_id();
    let (rows, lists) = (R::of(&launch.coded()), launch.lists());
    let worst = metric.badness(radius);
    let warps = thread::grid_dim_x() as u64 * WARPS as u64;
    // SAFETY: for the whole body, the caller promises the shapes, and listed queries exist.
    unsafe {
        let items = global::load_nc(*listed) as u64 * nprobe as u64;
        let mut item = thread::block_idx_x() as u64 * WARPS as u64 + warp::warp_id() as u64;
        while item < items {
            let (slot, probe) = (item / nprobe.max(1) as u64, (item % nprobe.max(1) as u64) as u32);
            let query = global::load_nc(listed.wrapping_add(1 + slot as usize));
            let x = Query::<R::Query>::of(queries, stride, metric, query, lane);
            let list = lists.list(query as usize, probe);
            let (mut near, mut from) = (0, 0);
            while from < list.length {
                let row = lists.rows(&list, from, worst);
                let is_near = row.takes && row.most < worst as f64;
                let unsure = LaneRow { takes: row.takes && !is_near, ..row };
                let badness = compared(&x, rows, unsure);
                near += (is_near || unsure.takes && badness <= worst) as u32;
                from += 32;
            }
            let near = warp::reduce_add(FULL_MASK, near);
            if lane == 0 && near > 0 {
                atomic::add_u32(within.wrapping_add(query as usize), near);
            }
            item += warps;
        }
    }
}

/// The probed lists of queries, with the scores of their vectors. The fields are those of [`Rescan`].
#[derive(Clone, Copy)]
struct ProbedLists {
    nprobe: u32,
    probes: Ptr<u32>,
    list_starts: Ptr<u32>,
    lengths: Ptr<u32>,
    ranks: Ptr<u32>,
    filter: Option<Ptr<u32>>,
    scores: Option<Ptr<f32>>,
    row_starts: Ptr<u64>,
    offsets: Ptr<u32>,
    shifts: Option<Ptr<f32>>,
    errors: Ptr<f32>,
}

/// A list that a query probes.
#[derive(Clone, Copy)]
struct ProbedList {
    number: u32,
    /// The first row of the list in the storage.
    start: u32,
    /// The number of vectors.
    length: u32,
    /// The scores of the vectors, if they are in memory.
    scores: Option<*const f32>,
    shift: f32,
    error: f64,
}

/// A vector of a list for each lane of a warp.
#[derive(Clone, Copy)]
struct LaneRow {
    /// The list, the same in all lanes.
    list: u32,
    /// The row of lane 0 in the storage.
    first: u32,
    /// The rank of the lane's vector, if the lane has one.
    rank: u32,
    /// Whether the lane has a vector.
    takes: bool,
    /// Upper bound of its distance, as smaller is better; infinite or NaN if nothing is known.
    most: f64,
}

impl ProbedLists {
    /// A list that a query probes; an empty one if there is none.
    ///
    /// # Safety
    /// The fields have the query and the probe.
    #[inline(always)]
    unsafe fn list(&self, query: usize, probe: u32) -> ProbedList {
        let pair = query * self.nprobe as usize + probe as usize;
        // SAFETY: the pair exists, and a probe is a list or NO_ROW.
        unsafe {
            let number = global::load_nc(self.probes.wrapping_add(pair));
            let (mut start, mut length) = (0, 0);
            if number != NO_ROW {
                start = global::load_nc(self.list_starts.wrapping_add(number as usize));
                length = global::load_nc(self.lengths.wrapping_add(number as usize));
            }
            let shift = match self.shifts {
                Some(shifts) => global::load_nc(shifts.wrapping_add(query)),
                None => 0.0,
            };
            let error = global::load_nc(self.errors.wrapping_add(query)) as f64;
            let scores = self.scores.map(|scores| {
                let row = global::load_nc(self.row_starts.wrapping_add(query));
                scores.wrapping_add(row as usize + global::load_nc(self.offsets.wrapping_add(pair)) as usize)
            });
            ProbedList { number, start, length, scores, shift, error }
        }
    }

    /// The vectors `first` + lane of a list, without those that are surely farther than `worst`, a distance as smaller is better.
    ///
    /// # Safety
    /// The list is one of these.
    #[inline(always)]
    unsafe fn rows(&self, list: &ProbedList, first: u32, worst: f32) -> LaneRow {
        let at = first + warp::lane_id();
        let mut row = LaneRow {
            list: list.number,
            first: list.start + first,
            rank: NO_ROW,
            takes: at < list.length,
            most: f64::INFINITY,
        };
        // SAFETY: vectors that are taken are below the list's length.
        unsafe {
            if row.takes
                && let Some(scores) = list.scores
            {
                let middle = global::load_nc(scores.wrapping_add(at as usize)) as f64 + list.shift as f64;
                row.most = middle + list.error;
                // False if an operand is NaN.
                let is_farther = middle - list.error > worst as f64;
                row.takes = !is_farther;
            }
            if row.takes {
                row.rank = global::load_nc(self.ranks.wrapping_add((list.start + at) as usize));
                if let Some(filter) = self.filter {
                    let word = global::load_nc(filter.wrapping_add((row.rank / 32) as usize));
                    row.takes = word >> (row.rank % 32) & 1 == 1;
                }
            }
        }
        row
    }
}

/// Offers the row of each lane that takes one, with a payload. All 32 lanes arrive.
///
/// # Safety
/// The rows exist.
#[inline(always)]
unsafe fn offer<R: Decode>(x: &Query<R::Query>, rows: R, row: LaneRow, payload: u32, queue: &mut Queue) {
    if warp::any(FULL_MASK, row.takes) {
        // SAFETY: as the caller promises.
        let badness = unsafe { compared(x, rows, row) };
        queue.offer(badness, payload, row.takes);
    }
}

/// The canonical distance of the query from the row of each lane that takes one, as smaller is better. All 32 lanes arrive.
///
/// # Safety
/// The rows exist.
#[inline(always)]
unsafe fn compared<R: Decode>(x: &Query<R::Query>, rows: R, row: LaneRow) -> f32 {
    let lane = warp::lane_id();
    let mut left = warp::ballot(FULL_MASK, row.takes);
    let mut own = 0.0;
    while left != 0 {
        // After the last row this row is evaluated again.
        let mut place = [0u32; BATCH];
        let mut number = [0u32; BATCH];
        unroll::<BATCH>(|b| {
            place[b] = if left == 0 { place[b.max(1) - 1] } else { left.trailing_zeros() };
            number[b] = row.first + place[b];
            left &= left.wrapping_sub(1);
        });
        // SAFETY: as the caller promises.
        let distances = unsafe { x.distances(rows, &[row.list; BATCH], &number, lane) };
        unroll::<BATCH>(|b| own = if lane == place[b] { distances[b] } else { own });
    }
    x.metric.badness(own as f32 + 0.0)
}

/// The best [`PASS`] of the entries of all warps: lane l gets number l. All threads of the block arrive; `best` has a place for each.
///
/// # Safety
/// No other thread uses `best`.
#[inline(always)]
unsafe fn joined(mut queue: Queue, best: SharedPtr<u64>) -> u64 {
    queue.finish();
    let mut entries = [EMPTY; WARPS];
    // SAFETY: there is a place for each thread, and barriers stand between writes and reads of different threads.
    unsafe {
        best.add(thread::thread_idx_x()).store(queue.entry(0));
        thread::sync_threads();
        unroll::<WARPS>(|w| entries[w] = best.add(32 * w as u32 + warp::lane_id()).load());
        thread::sync_threads();
    }
    warp_sort(&mut entries, warp::lane_id());
    entries[0]
}

/// Replaces the probes of each query without a certificate by the `nprobe` nearest centroids, in no particular order.
///
/// # Safety
/// All pointers that are present cover the shapes of their fields; nprobe ≤ selected and nprobe ≤ row_count.
#[kernel(max_threads = 128, min_blocks = 3, rescan_probes = complete)]
pub struct RescanProbes {
    /// Number of queries.
    pub query_count: u32,
    /// `query_count` rows of `stride` components.
    pub queries: Ptr<f32>,
    /// `row_count` rows of `stride` components.
    pub centroids: Ptr<f32>,
    /// Distance from one row to the next in components: a multiple of 4, zero padded.
    pub stride: u32,
    /// Number of centroids.
    pub row_count: u32,
    /// The metric of the distances.
    pub metric: Metric,
    /// `row_count` scores for each query.
    pub scores: Ptr<f32>,
    /// Distance from the scores of one query to those of the next.
    pub row_stride: u64,
    /// The `selected` smallest scores of each query, ascending.
    pub best_scores: Ptr<f32>,
    /// Number of selected scores of a query.
    pub selected: u32,
    /// E of each query: the bound of |score + shift − distance|.
    pub errors: Ptr<f32>,
    /// Number of probes of a query.
    pub nprobe: u32,
    /// Not 0 for each query without a certificate.
    pub flags: Ptr<u32>,
    /// `nprobe` centroids for each query.
    pub probes: PtrMut<u32>,
}

impl RescanProbes {
    /// A block for some queries.
    pub fn config(&self, multiprocessors: u32) -> LaunchConfig {
        blocks_for(self.query_count, multiprocessors)
    }
}

/// All threads of the block stay together.
///
/// # Safety
/// As [`RescanProbes`].
#[inline(always)]
unsafe fn complete(launch: RescanProbes) {
    let (best, taken) = (shared_array!(u64, THREADS as usize), shared_array!(u32, 1));
    // SAFETY: the caller promises the shapes; all queries are below `query_count`.
    let lacks = |query: u32| unsafe { global::load_nc(launch.flags.wrapping_add(query as usize)) != 0 };
    // SAFETY: as above.
    each_lacking(launch.query_count, lacks, |query| unsafe { complete_query(&launch, query, best, taken) });
}

/// Completes one query. All threads of the block stay together.
///
/// # Safety
/// As [`RescanProbes`]; the query is below `query_count`, `best` has a place for each thread, and `taken` one.
#[inline(always)]
unsafe fn complete_query(launch: &RescanProbes, query: u32, best: SharedPtr<u64>, taken: SharedPtr<u32>) {
    let &RescanProbes { queries, centroids, stride, row_count, metric, selected, nprobe, probes, .. } = launch;
    let (lane, warp) = (warp::lane_id(), warp::warp_id());
    // SAFETY: for the whole body, as the caller promises. Fewer than nprobe centroids have a score below the margin. Barriers stand between what
    // different threads write and read, also from one query to the next.
    unsafe {
        let last = query as usize * selected as usize + nprobe as usize - 1;
        let middle = global::load_nc(launch.best_scores.wrapping_add(last)) as f64;
        let margin = 3.0 * global::load_nc(launch.errors.wrapping_add(query as usize)) as f64;
        let scores = launch.scores.wrapping_add(query as usize * launch.row_stride as usize);
        let score = |at: u32| global::load_nc(scores.wrapping_add(at as usize)) as f64;
        let out = probes.wrapping_add(query as usize * nprobe as usize);
        thread::sync_threads();
        if thread::thread_idx_x() == 0 {
            taken.store(0);
        }
        thread::sync_threads();
        let mut first = PASS * warp;
        while first < row_count {
            let at = first + lane;
            let is_probe = at < row_count && score(at) < middle - margin;
            let all = warp::ballot(FULL_MASK, is_probe);
            let mut slot = 0;
            if lane == 0 {
                slot = atomic::shared_add_u32(taken, all.count_ones());
            }
            slot = warp::shuffle_idx(FULL_MASK, slot, 0) + (all & ((1 << lane) - 1)).count_ones();
            if is_probe {
                global::store(out.wrapping_add(slot as usize), at);
            }
            first += THREADS;
        }
        thread::sync_threads();
        let mut done = taken.load();
        let x = Query::<element::F32>::of(queries.cast(), stride, metric, query, lane);
        let rows = Stored::<element::F32>::of(&CodedRows {
            codes: (*centroids).cast(),
            code_bytes: 0,
            bits: 0,
            width: 0,
            dim: 0,
            stride,
            codebooks: *centroids,
            centroids: *centroids,
        });
        let mut floor = None;
        while done < nprobe {
            let mut queue = Queue::new((nprobe - done).min(PASS), floor);
            let mut first = PASS * warp;
            while first < row_count {
                let at = first + lane;
                let takes = at < row_count && {
                    // Both are false if an operand is NaN.
                    let is_probe = score(at) < middle - margin;
                    let is_farther = score(at) > middle + margin;
                    !is_probe && !is_farther
                };
                offer(&x, rows, LaneRow { list: 0, first, rank: at, takes, most: f64::INFINITY }, at, &mut queue);
                first += THREADS;
            }
            let entry = joined(queue, best);
            if warp == 0 && done + lane < nprobe {
                global::store(out.wrapping_add((done + lane) as usize), entry::payload(entry));
            }
            floor = Some(warp::shuffle_idx(FULL_MASK, entry, PASS - 1));
            done += PASS;
        }
    }
}
