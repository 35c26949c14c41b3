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
//! Which one is chosen: [`self::dispatch`].

#[cfg(test)]
mod adversarial;
pub(crate) mod dispatch;
pub(crate) mod rows;
#[cfg(test)]
mod sampling;

use std::ptr::null;

use cuda_std::launch::Kernel;
use half::{bf16, f16};
use warpann_kernels::select::gather::Gather;
use warpann_kernels::select::keys::{self, Key as _, KeyType};
use warpann_kernels::select::list_sort::{self, MergeRuns, SortChunks, UnpackLists};
use warpann_kernels::select::sample::{self, SamplePlan};
use warpann_kernels::select::short_select::ShortSelect;
use warpann_kernels::select::threshold_select::{
    self as threshold, FilterRows, RepairLists, RowThresholds, ThresholdSelect,
};
use warpann_kernels::select::warp_select::{LONGEST_QUEUE, WarpSelectRows};

use self::dispatch::Method;
use super::{Algorithm, Best, Key};
use crate::device::limits::Limits;
use crate::device::queue::{OnStream, Queue};
use crate::device::runtime::{Runtime, Stream};
use crate::device::scratch::Layout;
use crate::{Error, Result};

/// A key type that the kernels have. Public only so that it can seal [`crate::select::Key`].
pub trait DeviceKey: Copy + 'static {
    /// Chooses its kernels.
    const KERNELS: KeyType;
    /// What turns the order of keys around.
    const FLIP: u32;
    /// Whether WarpSelect, which is written for f32, selects from it.
    const WARP_SELECT: bool = matches!(Self::KERNELS, KeyType::F32);
}

macro_rules! device_keys {
    ($($key:ty, $name:ident, $of_kernels:ident;)*) => {$(
        impl DeviceKey for $key {
            const KERNELS: KeyType = KeyType::$name;
            const FLIP: u32 = keys::$of_kernels::FLIP;
        }
    )*};
}
device_keys! {
    f32, F32, F32Key;
    f16, F16, F16Key;
    bf16, Bf16, Bf16Key;
    i32, I32, I32Key;
    u32, U32, U32Key;
}

/// What the kernels can bring along with keys. Public only so that it can seal [`crate::select::Payload`].
pub trait DevicePayload: Copy + 'static {
    /// Looks up the payloads of selected keys.
    const GATHER: Kernel<Gather<Self>>;
}

impl DevicePayload for u32 {
    const GATHER: Kernel<Gather<u32>> = Gather::<u32>::KERNEL;
}

impl DevicePayload for u64 {
    const GATHER: Kernel<Gather<u64>> = Gather::<u64>::KERNEL;
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
        let warp = K::WARP_SELECT && (k <= columns || k <= LONGEST_QUEUE);
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
    ThresholdSelect::kernel(K::KERNELS).name()
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
    let may_cut = k <= LONGEST_QUEUE;
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
pub(crate) unsafe fn select<K: DeviceKey>(
    runtime: &Runtime,
    stream: &Stream,
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
    let launch = Gather {
        payloads,
        stride: what.row_stride,
        starts: what.starts,
        positions: what.out_ids,
        out: found,
        k: what.k,
        slots,
    };
    // SAFETY: as the caller promises.
    unsafe { queue.launch(&P::GATHER, launch.config(), launch) }
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

    unsafe fn warp(&self, levels: &[Level]) -> Result<()> {
        let what = self.what;
        let (last, inner) = levels.split_last().unwrap_or((&ONE_PIECE, &[]));
        let mut launch = WarpSelectRows {
            keys: what.keys.cast(),
            ids: what.ids,
            stride: what.row_stride,
            starts: what.starts,
            lengths: what.lengths,
            columns: what.columns,
            segments: last.segments,
            segment_columns: last.segment_columns,
            rows: what.rows,
            flip: self.flip(),
            k: what.k,
            skip: 0,
            out_keys: what.out_keys.cast(),
            out_ids: what.out_ids,
            out_stride: what.k,
        };
        // SAFETY: the scratch has room for k winners of each segment, and the next level reads just those; later passes of this
        // stream find the first results where earlier ones wrote them.
        unsafe {
            for &Level { segments, segment_columns, winners: (keys, ids) } in inner {
                let (out_keys, out_ids) = (self.at(keys), self.at(ids));
                self.warp_pass(WarpSelectRows { segments, segment_columns, out_keys, out_ids, ..launch })?;
                let columns = segments * what.k;
                launch = WarpSelectRows {
                    keys: out_keys,
                    ids: out_ids,
                    stride: columns.into(),
                    starts: null(),
                    lengths: null(),
                    columns,
                    ..launch
                };
            }
            while launch.skip < what.k {
                launch.k = (what.k - launch.skip).min(LONGEST_QUEUE);
                self.warp_pass(launch)?;
                launch.skip += launch.k;
            }
        }
        Ok(())
    }

    /// One launch of WarpSelect.
    unsafe fn warp_pass(&self, launch: WarpSelectRows) -> Result<()> {
        // SAFETY: as the caller promises.
        unsafe { self.queue.launch(WarpSelectRows::kernel(launch.queue()), launch.config(), launch) }
    }

    /// One block a row, on the row or on its survivors.
    unsafe fn block(&self, threads: u32, capacity: u32, survivors: Option<Split>) -> Result<()> {
        let what = self.what;
        let launch = ThresholdSelect {
            keys: what.keys.cast(),
            ids: what.ids,
            stride: what.row_stride,
            starts: what.starts,
            lengths: what.lengths,
            columns: what.columns,
            flip: self.flip(),
            k: what.k,
            capacity,
            thresholds: survivors.map_or(null(), |split| self.at(split.thresholds)),
            lists: survivors.map_or(null(), |split| self.at(split.lists)),
            counts: survivors.map_or(null(), |split| self.at(split.counts)),
            out_keys: what.out_keys.cast(),
            out_ids: what.out_ids,
            out_stride: what.k,
        };
        // SAFETY: as the caller promises.
        unsafe { self.queue.launch(ThresholdSelect::kernel(K::KERNELS), launch.config(what.rows, threads), launch) }
    }

    /// One block a row, which keeps it in registers.
    unsafe fn short(&self, threads: u32, capacity: u32) -> Result<()> {
        let what = self.what;
        let launch = ShortSelect {
            keys: what.keys.cast(),
            ids: what.ids,
            stride: what.row_stride,
            starts: what.starts,
            lengths: what.lengths,
            columns: what.columns,
            flip: self.flip(),
            k: what.k,
            capacity,
            out_keys: what.out_keys.cast(),
            out_ids: what.out_ids,
            out_stride: what.k,
        };
        // SAFETY: as the caller promises; the plan takes this method only for a k that blocks of `threads` threads find.
        unsafe { self.queue.launch(ShortSelect::kernel(K::KERNELS), launch.config(what.rows, threads), launch) }
    }

    /// Thresholds of all rows, and their survivors into lists.
    unsafe fn filter(&self, capacity: u32, split: Split) -> Result<()> {
        let what = self.what;
        if split.sampling > 1 {
            let bytes = split.tickets + size_of::<u32>() * what.rows as usize - split.bests;
            // SAFETY: the two arrays lie one behind the other.
            unsafe { self.queue.fill(self.at(split.bests), 0xff, bytes)? };
        }
        let launch = RowThresholds {
            keys: what.keys.cast(),
            ids: what.ids,
            stride: what.row_stride,
            starts: what.starts,
            lengths: what.lengths,
            columns: what.columns,
            flip: self.flip(),
            k: what.k,
            capacity,
            blocks: split.sampling,
            bests: self.at(split.bests),
            tickets: self.at(split.tickets),
            thresholds: self.at(split.thresholds),
            counts: self.at(split.counts),
        };
        // SAFETY: as the caller promises.
        unsafe { self.queue.launch(RowThresholds::kernel(K::KERNELS), launch.config(what.rows), launch)? };
        let launch = FilterRows {
            keys: what.keys.cast(),
            ids: what.ids,
            stride: what.row_stride,
            starts: what.starts,
            lengths: what.lengths,
            columns: what.columns,
            flip: self.flip(),
            segments: split.segments,
            segment_columns: split.segment_columns,
            capacity,
            thresholds: self.at(split.thresholds),
            lists: self.at(split.lists),
            counts: self.at(split.counts),
        };
        // SAFETY: as the caller promises; the kernel before wrote thresholds and counts.
        unsafe { self.queue.launch(FilterRows::kernel(K::KERNELS), launch.config(what.rows), launch) }
    }

    unsafe fn repair(&self, capacity: u32, split: Split) -> Result<()> {
        let what = self.what;
        let launch = RepairLists {
            keys: what.keys.cast(),
            ids: what.ids,
            stride: what.row_stride,
            starts: what.starts,
            lengths: what.lengths,
            columns: what.columns,
            flip: self.flip(),
            k: what.k,
            capacity,
            thresholds: self.at(split.thresholds),
            lists: self.at(split.lists),
            counts: self.at(split.counts),
        };
        // SAFETY: as the caller promises; the filter has run.
        unsafe { self.queue.launch(RepairLists::kernel(K::KERNELS), launch.config(what.rows), launch) }
    }

    /// Sorts the lists, back and forth between the two arrays, and writes the results.
    unsafe fn sort(&self, capacity: u32, split: Split, other_lists: usize) -> Result<()> {
        let what = self.what;
        let counts = self.at::<u32>(split.counts);
        let (mut lists, mut others) = (self.at::<u64>(split.lists), self.at::<u64>(other_lists));
        let chunks = capacity.div_ceil(list_sort::CHUNK);
        // SAFETY: as the caller promises; each launch reads what the one before wrote.
        unsafe {
            let launch = SortChunks { lists, counts, capacity, chunks };
            self.queue.launch(&SortChunks::KERNEL, launch.config(what.rows), launch)?;
            let mut width = list_sort::CHUNK;
            while width < capacity {
                let launch = MergeRuns { from: lists, to: others, counts, capacity, chunks, width, keep: what.k };
                self.queue.launch(&MergeRuns::KERNEL, launch.config(what.rows), launch)?;
                std::mem::swap(&mut lists, &mut others);
                width = width.saturating_mul(2);
            }
            let launch = UnpackLists {
                lists,
                counts,
                capacity,
                pieces: what.k.div_ceil(list_sort::THREADS),
                flip: self.flip(),
                k: what.k,
                out_keys: what.out_keys.cast(),
                out_ids: what.out_ids,
                out_stride: what.k,
            };
            self.queue.launch(UnpackLists::kernel(K::KERNELS), launch.config(what.rows), launch)
        }
    }
}

/// A row in one piece; what an empty list of levels means.
const ONE_PIECE: Level = Level { segments: 1, segment_columns: u32::MAX, winners: (0, 0) };
