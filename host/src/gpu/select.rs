//! Launches k-selection: plans how a batch is selected from, and runs the plan.
//!
//! | method | for | launches |
//! |---|---|---|
//! | warp | f32, short rows or small k | WarpSelect; long rows in segments, k above 1024 in passes |
//! | block | many rows | ThresholdSelect, one block a row |
//! | short | many short rows, small k | ShortSelect, one block a row |
//! | grid | few long rows | thresholds, filter by many blocks a row, then ThresholdSelect on the survivors |
//! | list | k beyond shared memory | thresholds, filter, repair, merge sort of the lists in global memory |
//!
//! Which one is chosen: [`super::dispatch`].

use cuda_std::launch::{Kernel, LaunchConfig};
use half::{bf16, f16};
use warpann_kernels::keys::{self, Key as _};
use warpann_kernels::sample::{self, SamplePlan};
use warpann_kernels::threshold_select as threshold;
use warpann_kernels::{gather, list_sort, short_select, warp_select};

use super::dispatch::{self, Method};
use super::runtime::{Layout, Limits, OnStream, Queue, Runtime, grid};
use crate::select::{Algorithm, Best, Key};
use crate::{Error, Result};

/// Arguments of WarpSelect, in order (see `warp_select::warp_select_k32`).
type WarpArgs =
    (*const f32, *const u32, u64, *const u64, *const u32, u32, u32, u32, u32, u32, u32, u32, *mut f32, *mut u32, u32);

macro_rules! table {
    ($(($k:literal, $t:literal, $ahead:literal, $blocks:literal, $name:ident, $handle:ident))*) => {
        /// WarpSelect kernels by the largest k they serve, ascending.
        pub(crate) const KERNELS: &[(u32, Kernel<WarpArgs>)] =
            &[(1, warp_select::WARP_SELECT_K1), $(($k, warp_select::$handle)),*];
    };
}
warpann_kernels::warp_select_instances!(table);

/// Largest k of one pass of WarpSelect.
pub(crate) const PASS: u32 = KERNELS[KERNELS.len() - 1].0;

/// Arguments of `threshold_select_*`, in order.
type SelectArgs<S> = (
    *const S,
    *const u32,
    u64,
    *const u64,
    *const u32,
    u32,
    u32,
    u32,
    u32,
    *const u64,
    *const u64,
    *const u32,
    *mut S,
    *mut u32,
    u32,
);
/// Arguments of `short_select_*`.
type ShortArgs<S> = (*const S, *const u32, u64, *const u64, *const u32, u32, u32, u32, u32, *mut S, *mut u32, u32);
/// Arguments of `row_thresholds_*`.
type ThresholdsArgs<S> = (
    *const S,
    *const u32,
    u64,
    *const u64,
    *const u32,
    u32,
    u32,
    u32,
    u32,
    u32,
    *mut u64,
    *mut u32,
    *mut u64,
    *mut u32,
);
/// Arguments of `filter_rows_*`.
type FilterArgs<S> =
    (*const S, *const u32, u64, *const u64, *const u32, u32, u32, u32, u32, u32, *const u64, *mut u64, *mut u32);
/// Arguments of `repair_lists_*`.
type RepairArgs<S> =
    (*const S, *const u32, u64, *const u64, *const u32, u32, u32, u32, u32, *const u64, *mut u64, *mut u32);
/// Arguments of `unpack_lists_*`.
type UnpackArgs<S> = (*const u64, *const u32, u32, u32, u32, u32, *mut S, *mut u32, u32);

/// The kernels for keys stored as `S` (see `warpann_kernels::threshold_select`, `short_select` and `list_sort`).
pub struct KeyKernels<S: 'static> {
    select: Kernel<SelectArgs<S>>,
    short: Kernel<ShortArgs<S>>,
    thresholds: Kernel<ThresholdsArgs<S>>,
    filter: Kernel<FilterArgs<S>>,
    repair: Kernel<RepairArgs<S>>,
    unpack: Kernel<UnpackArgs<S>>,
}

/// A key type that the kernels know. Public only so that it can seal [`crate::select::Key`].
pub trait DeviceKey: Copy + 'static {
    /// The bits as stored.
    type Stored: Copy + 'static;
    /// Its kernels.
    const KERNELS: KeyKernels<Self::Stored>;
    /// What turns the order of keys around.
    const FLIP: u32;
    /// Whether WarpSelect, which is written for f32, serves it.
    const WARP_SELECT: bool;
}

macro_rules! device_keys {
    ($($key:ty, $kernel_key:ident, $warp:literal, $select:ident, $short:ident, $thresholds:ident, $filter:ident, $repair:ident, $unpack:ident;)*) => {$(
        impl DeviceKey for $key {
            type Stored = <keys::$kernel_key as keys::Key>::Stored;
            const KERNELS: KeyKernels<Self::Stored> = KeyKernels {
                select: threshold::$select,
                short: short_select::$short,
                thresholds: threshold::$thresholds,
                filter: threshold::$filter,
                repair: threshold::$repair,
                unpack: list_sort::$unpack,
            };
            const FLIP: u32 = keys::$kernel_key::FLIP;
            const WARP_SELECT: bool = $warp;
        }
    )*};
}
device_keys! {
    f32, F32Key, true, THRESHOLD_SELECT_F32, SHORT_SELECT_F32, ROW_THRESHOLDS_F32, FILTER_ROWS_F32, REPAIR_LISTS_F32, UNPACK_LISTS_F32;
    f16, F16Key, false, THRESHOLD_SELECT_F16, SHORT_SELECT_F16, ROW_THRESHOLDS_F16, FILTER_ROWS_F16, REPAIR_LISTS_F16, UNPACK_LISTS_F16;
    bf16, Bf16Key, false, THRESHOLD_SELECT_BF16, SHORT_SELECT_BF16, ROW_THRESHOLDS_BF16, FILTER_ROWS_BF16, REPAIR_LISTS_BF16,
        UNPACK_LISTS_BF16;
    i32, I32Key, false, THRESHOLD_SELECT_I32, SHORT_SELECT_I32, ROW_THRESHOLDS_I32, FILTER_ROWS_I32, REPAIR_LISTS_I32, UNPACK_LISTS_I32;
    u32, U32Key, false, THRESHOLD_SELECT_U32, SHORT_SELECT_U32, ROW_THRESHOLDS_U32, FILTER_ROWS_U32, REPAIR_LISTS_U32, UNPACK_LISTS_U32;
}

/// Arguments of `gather_*`, in order.
type GatherArgs<P> = (*const P, u64, *const u64, *const u32, *mut P, u32, u64);

/// What the kernels can bring along with keys. Public only so that it can seal [`crate::select::Payload`].
pub trait DevicePayload: Copy + 'static {
    /// Finds the payloads of selected keys.
    const GATHER: Kernel<GatherArgs<Self>>;
}

impl DevicePayload for u32 {
    const GATHER: Kernel<GatherArgs<u32>> = gather::GATHER_U32;
}

impl DevicePayload for u64 {
    const GATHER: Kernel<GatherArgs<u64>> = gather::GATHER_U64;
}

/// A batch of rows on the device and what to select from them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Select<K> {
    /// Keys: row r starts at r · `row_stride`, or at `starts[r]`.
    pub keys: *const K,
    /// Ids beside the keys, or null for positions.
    pub ids: *const u32,
    /// Keys from one row to the next, where `starts` is null.
    pub row_stride: u64,
    /// Null, or where each row starts and the last one ends.
    pub starts: *const u64,
    /// Length of each row, or null where all have `columns`, or what `starts` say.
    pub lengths: *const u32,
    /// Length of a row, at most.
    pub columns: u32,
    /// Number of rows.
    pub rows: u32,
    /// How many to select.
    pub k: u32,
    /// Which keys win.
    pub best: Best,
    /// Results: k keys and ids a row, best first, contiguous.
    pub out_keys: *mut K,
    /// Ids of the results; `NO_ROW` where there is none.
    pub out_ids: *mut u32,
}

/// How long the rows of a batch are.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Columns {
    /// No row is longer.
    pub most: u32,
    /// Most are about so long: what decides about the method.
    pub typical: u32,
}

impl From<u32> for Columns {
    fn from(columns: u32) -> Columns {
        Columns { most: columns, typical: columns }
    }
}

/// How a batch is selected from, and where its scratch lies.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    steps: Steps,
}

#[derive(Debug, Clone)]
enum Steps {
    /// WarpSelect: in each level, rows are cut into pieces that one warp each selects from; the winners of all pieces of a row
    /// are a row of the next level. The last level has one piece a row.
    Warp { levels: Vec<Level> },
    /// One block of `threads` a row.
    Block { threads: u32, capacity: u32 },
    /// One block of `threads` a row, which keeps it in registers.
    Short { threads: u32, capacity: u32 },
    /// Thresholds, filter, and one block a row for the survivors.
    Grid { threads: u32, capacity: u32, split: Split },
    /// Thresholds, filter, repair, and merge sort of the survivors.
    List { capacity: u32, split: Split, other_lists: usize },
}

#[derive(Debug, Clone, Copy)]
struct Level {
    segments: u32,
    segment_columns: u32,
    /// Offsets of the winners' keys and ids; not used by the last level.
    winners: (usize, usize),
}

/// How many blocks filter one row, and their scratch.
#[derive(Debug, Clone, Copy)]
struct Split {
    segments: u32,
    segment_columns: u32,
    /// Blocks that take the sample of a row, and where its groups and tickets meet (one array behind the other).
    sampling: u32,
    bests: usize,
    tickets: usize,
    thresholds: usize,
    counts: usize,
    lists: usize,
}

impl Split {
    fn reserve(layout: &mut Layout, rows: u32, columns: u32, capacity: u32, limits: &Limits) -> Split {
        // Sixteen blocks a multiprocessor: four or more run at once, and the last to finish leave little idle.
        let wanted = (u64::from(limits.multiprocessors) * 16).div_ceil(u64::from(rows.max(1)));
        let segments = wanted.clamp(1, u64::from(columns / Self::SHORTEST).max(1));
        // Whole quads, so that only the row itself decides about alignment.
        let segment_columns = u64::from(columns).div_ceil(segments).next_multiple_of(4).max(4);
        let rows = rows as usize;
        let sampling = SamplePlan::grid_keys(columns) / sample::BLOCK_GROUP_KEYS;
        Split {
            sampling,
            bests: layout.array::<u64>(rows.saturating_mul(sample::MOST_GROUPS as usize)),
            tickets: layout.array::<u32>(rows),
            segments: u64::from(columns).div_ceil(segment_columns).max(1) as u32,
            segment_columns: segment_columns as u32,
            thresholds: layout.array::<u64>(rows),
            counts: layout.array::<u32>(rows),
            lists: layout.array::<u64>(rows.saturating_mul(capacity as usize)),
        }
    }

    /// Keys of a segment, at least: a few for every thread of the block.
    const SHORTEST: u32 = 16 * threshold::FILTER_THREADS;
}

impl Plan {
    /// Plans the selection of `k` from `rows` rows of at most `columns` keys, and reserves its scratch.
    ///
    /// # Errors
    /// [`Error::NoSuchSelection`] if WarpSelect is asked for other keys than f32.
    pub fn new<K: Key>(
        layout: &mut Layout,
        rows: u32,
        columns: u32,
        k: u32,
        algorithm: Algorithm,
        limits: &Limits,
    ) -> Result<Plan> {
        check_algorithm::<K>(algorithm)?;
        // Passes beyond the end of a row find nothing, and each reads it again.
        let warp = K::WARP_SELECT && (k <= columns || k <= PASS);
        let method = match algorithm {
            Algorithm::WarpSelect => Method::Warp,
            Algorithm::ThresholdSelect => dispatch::choose(&limits.device, rows, columns, k, false),
            Algorithm::Auto => dispatch::choose(&limits.device, rows, columns, k, warp),
        };
        Ok(Plan::of_method(layout, rows, columns, k, method, limits))
    }

    /// The plan that the table gives for f32 keys, in rows of about `typical` of them.
    pub fn by_table(layout: &mut Layout, rows: u32, columns: Columns, k: u32, limits: &Limits) -> Plan {
        let method = dispatch::choose(&limits.device, rows, columns.typical, k, true);
        Plan::of_method(layout, rows, columns.most, k, method, limits)
    }

    /// The plan of one method, whatever the table says; a k beyond shared memory is selected by lists all the same.
    pub fn of_method(layout: &mut Layout, rows: u32, columns: u32, k: u32, method: Method, limits: &Limits) -> Plan {
        let sampled = match method {
            Method::Grid => SamplePlan::grid_keys(columns),
            _ => sample::BLOCK_GROUP_KEYS,
        };
        let capacity = survivors(k, columns, sampled);
        let fits = threshold::shared_bytes(capacity.min(1 << 24)) <= limits.shared_bytes;
        let steps = match method {
            Method::Warp => Steps::Warp { levels: warp_levels(layout, rows, columns, k, limits) },
            Method::Short { threads } if fits && method.serves(k) => Steps::Short { threads, capacity },
            Method::Block { threads } | Method::Short { threads } if fits => Steps::Block { threads, capacity },
            Method::Grid if fits => {
                let split = Split::reserve(layout, rows, columns, capacity, limits);
                // Few survivors are sorted sooner by few threads.
                Steps::Grid { threads: if k <= 256 { 256 } else { 512 }, capacity, split }
            }
            Method::Block { .. } | Method::Short { .. } | Method::Grid => {
                let capacity = survivors(k, columns, SamplePlan::grid_keys(columns));
                let split = Split::reserve(layout, rows, columns, capacity, limits);
                let other_lists = layout.array::<u64>((rows as usize).saturating_mul(capacity as usize));
                Steps::List { capacity, split, other_lists }
            }
        };
        Plan { steps }
    }
}

/// [`Error::NoSuchSelection`] if there are no kernels of the algorithm for these keys.
pub(crate) fn check_algorithm<K: Key>(algorithm: Algorithm) -> Result<()> {
    match algorithm {
        Algorithm::WarpSelect if !K::WARP_SELECT => Err(Error::NoSuchSelection { algorithm, key: K::TYPE }),
        _ => Ok(()),
    }
}

/// The kernel that ends a selection from such keys, for messages.
#[cfg(any(feature = "cuda", test))]
pub(crate) fn kernel_name<K: DeviceKey>() -> &'static str {
    K::KERNELS.select.name()
}

/// Room for the survivors of a row of `columns` keys, `group_keys` in a group of the sample: what the threshold
/// lets through of random keys in all but one row in 10⁶, or the whole row where that is no more.
pub(crate) fn survivors(k: u32, columns: u32, group_keys: u32) -> u32 {
    let whole = columns.max(threshold::LEAST_CAPACITY).next_multiple_of(32);
    if k >= columns {
        return whole;
    }
    let plan = SamplePlan::new(k, columns, group_keys);
    let (expected, deviation) = expected_survivors(plan, columns);
    // Five standard deviations, and what the skew of a small rank's distribution asks for.
    let room = expected * (1.0 + 5.0 * deviation + 8.0 * deviation * deviation);
    let room = room.ceil().min(f64::from(u32::MAX / 2)) as u32;
    room.max(k).max(threshold::LEAST_CAPACITY).next_multiple_of(32).min(whole)
}

/// About how many of `len` random entries pass the threshold of `plan`, the row's quantile whose groups reach the rank, and
/// the standard deviation of that number relative to it.
pub(crate) fn expected_survivors(plan: SamplePlan, len: u32) -> (f64, f64) {
    // The rank-th of n uniform values is Beta(rank, n + 1 − rank) distributed; the delta method takes it to the quantile.
    let (rank, groups, keys) = (f64::from(plan.rank), f64::from(plan.groups), f64::from(plan.group_keys));
    let reached = rank / (groups + 1.0);
    let deviation = (reached * (1.0 - reached) / (groups + 2.0)).sqrt();
    let quantile = 1.0 - (1.0 - reached).powf(1.0 / keys);
    (f64::from(len) * quantile, deviation * (1.0 - quantile) / (1.0 - reached).max(1e-9) / keys / quantile)
}

/// Cuts rows only as far as it takes to give every multiprocessor its warps, and never so short that the winners of the
/// pieces are not far fewer than the keys.
fn warp_levels(layout: &mut Layout, rows: u32, columns: u32, k: u32, limits: &Limits) -> Vec<Level> {
    let wanted = (u64::from(limits.multiprocessors) * 32).div_ceil(u64::from(rows.max(1)));
    let shortest = u64::from(k).saturating_mul(8).max(1024);
    let mut columns = u64::from(columns);
    let mut levels = Vec::new();
    // More than one pass needs the row in one piece: a pass goes on from the last result of the one before.
    let may_cut = k <= PASS;
    loop {
        let segments = wanted.min(columns / shortest);
        if segments <= 1 || !may_cut {
            break;
        }
        let segment_columns = columns.div_ceil(segments);
        let segments = columns.div_ceil(segment_columns);
        let winners = (rows as usize).saturating_mul(segments as usize).saturating_mul(k as usize);
        levels.push(Level {
            segments: segments as u32,
            segment_columns: segment_columns as u32,
            winners: (layout.array::<f32>(winners), layout.array::<u32>(winners)),
        });
        // At most an eighth of the columns before: k winners from at least 8·k keys.
        columns = segments * u64::from(k);
    }
    levels.push(Level { segments: 1, segment_columns: columns as u32, winners: (0, 0) });
    levels
}

/// Selects as `what` says, with the plan's scratch from `start` on.
///
/// # Safety
/// The pointers of `what` cover their shapes and `start` what the plan reserved, until the stream has done the work; the
/// plan was made for as many rows and columns, the same k and this type of keys.
pub(crate) unsafe fn select<K: DeviceKey, R: Runtime>(
    runtime: &R,
    stream: &R::Stream,
    what: &Select<K>,
    plan: &Plan,
    start: *mut u8,
) -> Result<()> {
    // SAFETY: the same contract.
    unsafe { enqueue(&OnStream { runtime, stream }, what, plan, start) }
}

/// As [`select`], on any queue.
///
/// # Safety
/// As [`select`].
pub(crate) unsafe fn enqueue<K: DeviceKey, Q: Queue>(
    queue: &Q,
    what: &Select<K>,
    plan: &Plan,
    start: *mut u8,
) -> Result<()> {
    if what.rows == 0 {
        return Ok(());
    }
    let batch = Batch { queue, what, start };
    // SAFETY: as the caller promises.
    unsafe {
        match &plan.steps {
            Steps::Warp { levels } => batch.warp(levels),
            &Steps::Block { threads, capacity } => batch.block(threads, capacity, None),
            &Steps::Short { threads, capacity } => batch.short(threads, capacity),
            &Steps::Grid { threads, capacity, split } => {
                batch.filter(capacity, split)?;
                batch.block(threads, capacity, Some(split))
            }
            &Steps::List { capacity, split, other_lists } => {
                batch.filter(capacity, split)?;
                batch.repair(capacity, split)?;
                batch.sort(capacity, split, other_lists)
            }
        }
    }
}

/// The payload of each found key to `found`, all ones where there is none: of the rows, positions and k of `what`. Payloads lie
/// as the keys do.
///
/// # Safety
/// The pointers of `what` but for its keys, and `payloads` and `found`, cover their shapes until the queue has done the work;
/// the positions are those of a selection from these rows.
#[cfg(any(feature = "cuda", test))]
pub(crate) unsafe fn enqueue_gather<K, P: DevicePayload, Q: Queue>(
    queue: &Q,
    what: &Select<K>,
    payloads: *const P,
    found: *mut P,
) -> Result<()> {
    let slots = u64::from(what.rows) * u64::from(what.k);
    if slots == 0 {
        return Ok(());
    }
    let kernel = &P::GATHER;
    let blocks = grid(kernel.name(), slots.div_ceil(gather::THREADS.into()))?;
    let config = LaunchConfig { grid: [blocks, 1, 1], block: [gather::THREADS, 1, 1], shared_bytes: 0 };
    let args = (payloads, what.row_stride, what.starts, what.out_ids.cast_const(), found, what.k, slots);
    // SAFETY: as the caller promises.
    unsafe { queue.launch(kernel, config, args) }
}

/// One selection on its way: what its launches have in common.
struct Batch<'a, K, Q> {
    queue: &'a Q,
    what: &'a Select<K>,
    start: *mut u8,
}

impl<K: DeviceKey, Q: Queue> Batch<'_, K, Q> {
    fn at<T>(&self, offset: usize) -> *mut T {
        self.start.wrapping_add(offset).cast()
    }

    fn flip(&self) -> u32 {
        if self.what.best == Best::Largest { K::FLIP } else { 0 }
    }

    fn config(&self, kernel: &'static str, blocks: u64, threads: u32, shared_bytes: u32) -> Result<LaunchConfig> {
        Ok(LaunchConfig { grid: [grid(kernel, blocks)?, 1, 1], block: [threads, 1, 1], shared_bytes })
    }

    unsafe fn warp(&self, levels: &[Level]) -> Result<()> {
        let what = self.what;
        let mut what = Select::<f32> {
            keys: what.keys.cast(),
            ids: what.ids,
            row_stride: what.row_stride,
            starts: what.starts,
            lengths: what.lengths,
            columns: what.columns,
            rows: what.rows,
            k: what.k,
            best: what.best,
            out_keys: what.out_keys.cast(),
            out_ids: what.out_ids,
        };
        let (last, inner) = levels.split_last().unwrap_or((&ONE_PIECE, &[]));
        // SAFETY: the scratch has room for k winners of each segment, and the next level reads just those; later passes of this
        // stream find the first results where earlier ones wrote them.
        unsafe {
            for level in inner {
                let (out_keys, out_ids) = (self.at(level.winners.0), self.at(level.winners.1));
                self.warp_pass(&Select { out_keys, out_ids, ..what }, *level, 0, what.k)?;
                let columns = level.segments * what.k;
                what = Select {
                    keys: out_keys,
                    ids: out_ids,
                    row_stride: u64::from(columns),
                    starts: std::ptr::null(),
                    lengths: std::ptr::null(),
                    columns,
                    ..what
                };
            }
            let mut done = 0;
            while done < what.k {
                let now = (what.k - done).min(PASS);
                self.warp_pass(&what, *last, done, now)?;
                done += now;
            }
        }
        Ok(())
    }

    /// One launch of WarpSelect: `k` results after the first `skip`, which are there.
    unsafe fn warp_pass(&self, what: &Select<f32>, level: Level, skip: u32, k: u32) -> Result<()> {
        // The kernel for k = 1 knows no earlier pass.
        let least = if skip == 0 { k } else { k.max(2) };
        let kernel = &KERNELS.iter().find(|(limit, _)| least <= *limit).unwrap_or(&KERNELS[KERNELS.len() - 1]).1;
        let warps = u64::from(what.rows) * u64::from(level.segments);
        let blocks = warps.div_ceil(u64::from(warp_select::WARPS_PER_BLOCK));
        let config = self.config(kernel.name(), blocks, 32 * warp_select::WARPS_PER_BLOCK, 0)?;
        let args = (
            what.keys,
            what.ids,
            what.row_stride,
            what.starts,
            what.lengths,
            what.columns,
            level.segments,
            level.segment_columns,
            what.rows,
            self.flip(),
            k,
            skip,
            what.out_keys,
            what.out_ids,
            what.k,
        );
        // SAFETY: as the caller promises.
        unsafe { self.queue.launch(kernel, config, args) }
    }

    /// One block a row, on the row or on its survivors.
    unsafe fn block(&self, threads: u32, capacity: u32, survivors: Option<Split>) -> Result<()> {
        let (what, kernel) = (self.what, &K::KERNELS.select);
        let bytes = threshold::shared_bytes(capacity);
        let config = self.config(kernel.name(), u64::from(what.rows), threads, bytes)?;
        let (thresholds, lists, counts) = match survivors {
            None => (std::ptr::null(), std::ptr::null(), std::ptr::null()),
            Some(split) => (
                self.at::<u64>(split.thresholds).cast_const(),
                self.at::<u64>(split.lists).cast_const(),
                self.at::<u32>(split.counts).cast_const(),
            ),
        };
        let args = (
            what.keys.cast(),
            what.ids,
            what.row_stride,
            what.starts,
            what.lengths,
            what.columns,
            self.flip(),
            what.k,
            capacity,
            thresholds,
            lists,
            counts,
            what.out_keys.cast(),
            what.out_ids,
            what.k,
        );
        // SAFETY: as the caller promises.
        unsafe { self.queue.launch(kernel, config, args) }
    }

    /// One block a row, which keeps it in registers.
    unsafe fn short(&self, threads: u32, capacity: u32) -> Result<()> {
        let (what, kernel) = (self.what, &K::KERNELS.short);
        let bytes = threshold::shared_bytes(capacity);
        let config = self.config(kernel.name(), u64::from(what.rows), threads, bytes)?;
        let args = (
            what.keys.cast(),
            what.ids,
            what.row_stride,
            what.starts,
            what.lengths,
            what.columns,
            self.flip(),
            what.k,
            capacity,
            what.out_keys.cast(),
            what.out_ids,
            what.k,
        );
        // SAFETY: as the caller promises; k is what so many threads serve.
        unsafe { self.queue.launch(kernel, config, args) }
    }

    /// Thresholds of all rows, and their survivors into lists.
    unsafe fn filter(&self, capacity: u32, split: Split) -> Result<()> {
        let what = self.what;
        let (thresholds, counts) = (self.at::<u64>(split.thresholds), self.at::<u32>(split.counts));
        let (bests, tickets) = (self.at::<u64>(split.bests), self.at::<u32>(split.tickets));
        if split.sampling > 1 {
            let bytes = split.tickets + size_of::<u32>() * what.rows as usize - split.bests;
            // SAFETY: the two arrays lie one behind the other.
            unsafe { self.queue.fill(bests.cast(), 0xff, bytes)? };
        }
        let kernel = &K::KERNELS.thresholds;
        let bytes = threshold::shared_bytes(sample::MOST_GROUPS);
        let blocks = u64::from(what.rows) * u64::from(split.sampling);
        let config = self.config(kernel.name(), blocks, threshold::FILTER_THREADS, bytes)?;
        let args = (
            what.keys.cast(),
            what.ids,
            what.row_stride,
            what.starts,
            what.lengths,
            what.columns,
            self.flip(),
            what.k,
            capacity,
            split.sampling,
            bests,
            tickets,
            thresholds,
            counts,
        );
        // SAFETY: as the caller promises.
        unsafe { self.queue.launch(kernel, config, args)? };
        let kernel = &K::KERNELS.filter;
        let blocks = u64::from(what.rows) * u64::from(split.segments);
        let config = self.config(kernel.name(), blocks, threshold::FILTER_THREADS, 0)?;
        let args = (
            what.keys.cast(),
            what.ids,
            what.row_stride,
            what.starts,
            what.lengths,
            what.columns,
            self.flip(),
            split.segments,
            split.segment_columns,
            capacity,
            thresholds.cast_const(),
            self.at(split.lists),
            counts,
        );
        // SAFETY: as the caller promises; the kernel before wrote thresholds and counts.
        unsafe { self.queue.launch(kernel, config, args) }
    }

    unsafe fn repair(&self, capacity: u32, split: Split) -> Result<()> {
        let (what, kernel) = (self.what, &K::KERNELS.repair);
        let bytes = threshold::shared_bytes(threshold::LEAST_CAPACITY);
        let config = self.config(kernel.name(), u64::from(what.rows), threshold::FILTER_THREADS, bytes)?;
        let args = (
            what.keys.cast(),
            what.ids,
            what.row_stride,
            what.starts,
            what.lengths,
            what.columns,
            self.flip(),
            what.k,
            capacity,
            self.at::<u64>(split.thresholds).cast_const(),
            self.at(split.lists),
            self.at(split.counts),
        );
        // SAFETY: as the caller promises; the filter has run.
        unsafe { self.queue.launch(kernel, config, args) }
    }

    /// Sorts the lists, back and forth between the two arrays, and writes the results.
    unsafe fn sort(&self, capacity: u32, split: Split, other_lists: usize) -> Result<()> {
        let what = self.what;
        let counts = self.at::<u32>(split.counts).cast_const();
        let (mut lists, mut others) = (self.at::<u64>(split.lists), self.at::<u64>(other_lists));
        let chunks = capacity.div_ceil(list_sort::CHUNK);
        let blocks = u64::from(what.rows) * u64::from(chunks);
        let kernel = &list_sort::SORT_CHUNKS;
        let config = self.config(kernel.name(), blocks, list_sort::THREADS, list_sort::SHARED_BYTES)?;
        // SAFETY: as the caller promises; each launch reads what the one before wrote.
        unsafe {
            self.queue.launch(kernel, config, (lists, counts, capacity, chunks))?;
            let kernel = &list_sort::MERGE_RUNS;
            let mut width = list_sort::CHUNK;
            while width < capacity {
                let args = (lists.cast_const(), others, counts, capacity, chunks, width, what.k);
                self.queue.launch(kernel, LaunchConfig { ..config }, args)?;
                std::mem::swap(&mut lists, &mut others);
                width = width.saturating_mul(2);
            }
            let kernel = &K::KERNELS.unpack;
            let pieces = what.k.div_ceil(list_sort::THREADS);
            let blocks = u64::from(what.rows) * u64::from(pieces);
            let config = self.config(kernel.name(), blocks, list_sort::THREADS, 0)?;
            let args = (
                lists.cast_const(),
                counts,
                capacity,
                pieces,
                self.flip(),
                what.k,
                what.out_keys.cast(),
                what.out_ids,
                what.k,
            );
            self.queue.launch(kernel, config, args)
        }
    }
}

/// A row in one piece; what an empty list of levels means.
const ONE_PIECE: Level = Level { segments: 1, segment_columns: u32::MAX, winners: (0, 0) };
