//! Launches of k-selection: a plan for a batch, and its execution.
//!
//! | method | for | launches |
//! |---|---|---|
//! | warp | f32, short rows or small k | WarpSelect; long rows in segments, k above 1024 in passes |
//! | block | many rows | ThresholdSelect, one block for each row |
//! | short | many short rows, small k | ShortSelect, one block for each row |
//! | grid | few long rows | thresholds, filter by many blocks a row, then ThresholdSelect on the survivors |
//! | cluster | long rows, compute capability 9.0 and later | ClusterSelect, 1 to 16 blocks for each row |
//! | list | k beyond shared memory | thresholds, filter, repair, merge sort of the lists in global memory |
//! [`self::dispatch`] chooses the method.

#[cfg(test)]
mod adversarial;
pub(crate) mod dispatch;
pub(super) mod rows;
#[cfg(test)]
mod sampling;
pub(super) mod types;

use cuda_std::{Ptr, PtrMut};
use warpann_kernels::select::cluster_select::{self, ClusterSelect};
#[cfg(any(feature = "cuda", test))]
use warpann_kernels::select::gather::Gather;
use warpann_kernels::select::list_sort::{self, MergeRuns, SortChunks, UnpackLists};
use warpann_kernels::select::rows::{KeyTable, SelectedRows};
use warpann_kernels::select::sample::{self, SamplePlan};
use warpann_kernels::select::short_select::ShortSelect;
use warpann_kernels::select::threshold_select::{
    self as threshold, FilterRows, RepairLists, RowThresholds, ThresholdSelect,
};
use warpann_kernels::select::warp_select::{LONGEST_QUEUE, WarpSelectRows};

use self::dispatch::Method;
use self::types::DeviceKey;
#[cfg(any(feature = "cuda", test))]
use self::types::DevicePayload;
use super::{Algorithm, Best, Key};
use crate::device::limits::Limits;
use crate::device::queue::{OnStream, Queue};
use crate::device::runtime::{Runtime, Stream};
use crate::device::scratch::{Layout, Reserved, Scratch};
use crate::{Error, Result, events};

/// More survivors than any device has shared memory for: the bytes of more might exceed 32 bits.
const MOST_CAPACITY: u32 = 1 << 24;

/// A batch of rows on the device, and the parameters of the selection.
///
/// The kernels may access each array up to the length of its pointer and up to the shape of the batch, whichever is
/// less.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Select<K> {
    /// Keys: row r starts at r · `row_stride`, or at `starts[r]`.
    pub keys: Ptr<K>,
    /// The id of each key, at the index of the key. Without ids, the id is the position in the row.
    pub ids: Option<Ptr<u32>>,
    /// Distance from one row to the next in keys, if there are no `starts`.
    pub row_stride: u64,
    /// The start of each row, and one more entry: the end of the last row.
    pub starts: Option<Ptr<u64>>,
    /// Length of each row. If absent, a row extends to the next entry of `starts`, or has `columns` keys without
    /// `starts`.
    pub lengths: Option<Ptr<u32>>,
    /// Largest length of a row.
    pub columns: u32,
    /// Number of rows.
    pub rows: u32,
    /// Number of keys to select from each row.
    pub k: u32,
    /// Whether the smallest or the largest keys are selected.
    pub best: Best,
    /// Keys of the results: k for each row, best first, contiguous.
    pub out_keys: PtrMut<K>,
    /// Ids of the results, laid out as `out_keys`; `NO_ROW` in empty slots.
    pub out_ids: PtrMut<u32>,
}

impl<K> Select<K> {
    /// The same batch, with each pointer cut to the length that the shape requires. If `starts` gives the rows, only
    /// the device has the length of the keys, so their pointer is not cut.
    fn trimmed(self) -> Self {
        let (rows, k) = (self.rows as usize, self.k as usize);
        let slots = rows.saturating_mul(k);
        let keys = match self.starts {
            Some(_) => usize::MAX,
            None => strided_len(rows, self.columns as usize, self.row_stride),
        };
        Select {
            keys: self.keys.take(keys),
            ids: self.ids.map(|ids| ids.take(keys)),
            starts: self.starts.map(|starts| starts.take(rows + 1)),
            lengths: self.lengths.map(|lengths| lengths.take(rows)),
            out_keys: self.out_keys.take(slots),
            out_ids: self.out_ids.take(slots),
            ..self
        }
    }
}

/// Number of keys from the first of `rows` rows to the end of the last row, if each row has `columns` keys and rows are
/// `stride` apart.
pub(crate) fn strided_len(rows: usize, columns: usize, stride: u64) -> usize {
    match rows.checked_sub(1) {
        None => 0,
        Some(before) => before.saturating_mul(usize::try_from(stride).unwrap_or(usize::MAX)).saturating_add(columns),
    }
}

/// The lengths of the rows of a batch.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Columns {
    /// Largest length of a row.
    pub most: u32,
    /// Approximate length of most rows. The method is chosen for rows of this length.
    pub typical: u32,
}

impl From<u32> for Columns {
    fn from(columns: u32) -> Columns {
        Columns { most: columns, typical: columns }
    }
}

/// The steps of a selection from a batch, and its scratch memory.
#[derive(Debug, Clone)]
pub(crate) struct SelectPlan {
    steps: Steps,
}

#[derive(Debug, Clone)]
enum Steps {
    /// WarpSelect: in each level, rows are cut into pieces, and one warp selects from each piece. The winners of all
    /// pieces of a row form a row of the next level. After the levels, one warp selects from a whole row of at most
    /// `last_columns` keys.
    Warp { levels: Vec<Level>, last_columns: u32 },
    /// One block of `threads` threads for each row.
    Block { threads: u32, capacity: u32 },
    /// One block of `threads` threads for each row, which holds the row in registers.
    Short { threads: u32, capacity: u32 },
    /// A cluster of `blocks` blocks of `threads` threads for each row.
    Cluster { blocks: u32, threads: u32, capacity: u32 },
    /// Thresholds, filter, and one block for the survivors of each row.
    Grid { threads: u32, capacity: u32, split: Split },
    /// Thresholds, filter, repair, and merge sort of the survivors.
    List { capacity: u32, split: Split, other_lists: Reserved<u64> },
}

#[derive(Debug, Clone, Copy)]
struct Level {
    segments: u32,
    segment_columns: u32,
    /// Keys and ids of the winners.
    winners: (Reserved<f32>, Reserved<u32>),
}

/// The division of rows among blocks in the filter, and its scratch memory.
#[derive(Debug, Clone, Copy)]
struct Split {
    segments: u32,
    segment_columns: u32,
    /// Number of blocks that sample one row.
    sampling: u32,
    /// The array in which these blocks join their samples: the groups of all rows, followed by the tickets, two in a
    /// word. It is one array, because one fill sets both.
    joins: Reserved<u64>,
    thresholds: Reserved<u64>,
    counts: Reserved<u32>,
    lists: Reserved<u64>,
}

impl Split {
    fn reserve(layout: &mut Layout, rows: u32, columns: u32, capacity: u32, limits: &Limits) -> Split {
        // Sixteen blocks for each multiprocessor: four or more run at once, and little time is idle at the end.
        let wanted = (u64::from(limits.multiprocessors) * 16).div_ceil(u64::from(rows.max(1)));
        let segments = wanted.clamp(1, u64::from(columns / Self::SHORTEST).max(1));
        // A multiple of 4 keys, so that only the start of the row determines the alignment.
        let segment_columns = u64::from(columns).div_ceil(segments).next_multiple_of(4).max(4);
        let rows = rows as usize;
        let sampling = SamplePlan::grid_keys(columns) / sample::BLOCK_GROUP_KEYS;
        Split {
            sampling,
            joins: layout.array(Self::groups_len(rows).saturating_add(rows.div_ceil(2))),
            segments: u64::from(columns).div_ceil(segment_columns).max(1) as u32,
            segment_columns: segment_columns as u32,
            thresholds: layout.array(rows),
            counts: layout.array(rows),
            lists: layout.array(rows.saturating_mul(capacity as usize)),
        }
    }

    /// Number of words of the groups of `rows` rows.
    const fn groups_len(rows: usize) -> usize {
        rows.saturating_mul(sample::MOST_GROUPS as usize)
    }

    /// Smallest number of keys of a segment: 16 for every thread of the block.
    const SHORTEST: u32 = 16 * threshold::FILTER_THREADS;
}

impl SelectPlan {
    /// Plans the selection of `k` from `rows` rows of at most `columns` keys, and reserves its scratch.
    ///
    /// # Errors
    /// [`Error::Mismatch`] for WarpSelect with other keys than f32.
    pub fn new<K: Key>(
        layout: &mut Layout,
        rows: u32,
        columns: u32,
        k: u32,
        algorithm: Algorithm,
        limits: &Limits,
    ) -> Result<SelectPlan> {
        check_algorithm::<K>(algorithm)?;
        // Passes beyond the end of a row find nothing, and each of them reads the row again.
        let warp = K::WARP_SELECT && (k <= columns || k <= LONGEST_QUEUE);
        let method = match algorithm {
            Algorithm::WarpSelect => Method::Warp,
            Algorithm::ThresholdSelect => chosen(rows, columns.into(), k, false, limits),
            Algorithm::Auto => chosen(rows, columns.into(), k, warp, limits),
        };
        Ok(SelectPlan::of_method(layout, rows, columns, k, method, limits))
    }

    /// The plan of the table's method for f32 keys in rows of these lengths.
    pub fn by_table(layout: &mut Layout, rows: u32, columns: Columns, k: u32, limits: &Limits) -> SelectPlan {
        let method = chosen(rows, columns, k, true, limits);
        SelectPlan::of_method(layout, rows, columns.most, k, method, limits)
    }

    /// The plan of the method `method`, without the table. If k exceeds shared memory, the plan is one of lists.
    pub fn of_method(
        layout: &mut Layout,
        rows: u32,
        columns: u32,
        k: u32,
        method: Method,
        limits: &Limits,
    ) -> SelectPlan {
        let method = match method {
            Method::Cluster { blocks } => match Clusters::plan(rows, columns, k, blocks, limits) {
                Some(Clusters { threads, capacity }) => {
                    return SelectPlan { steps: Steps::Cluster { blocks, threads, capacity } };
                }
                None if blocks == 1 => Method::Block { threads: 512 },
                None => Method::Grid,
            },
            other => other,
        };
        let sampled = match method {
            Method::Grid => SamplePlan::grid_keys(columns),
            _ => sample::BLOCK_GROUP_KEYS,
        };
        let capacity = survivors(k, columns, sampled);
        let fits = threshold::shared_bytes(capacity.min(MOST_CAPACITY)) <= limits.shared_bytes;
        let steps = match method {
            Method::Warp => {
                let (levels, last_columns) = warp_levels(layout, rows, columns, k, limits);
                Steps::Warp { levels, last_columns }
            }
            Method::Short { threads } if fits && method.serves(k) => Steps::Short { threads, capacity },
            Method::Block { threads } | Method::Short { threads } if fits => Steps::Block { threads, capacity },
            Method::Grid if fits => {
                let split = Split::reserve(layout, rows, columns, capacity, limits);
                // Few threads sort few survivors faster.
                Steps::Grid { threads: if k <= 256 { 256 } else { 512 }, capacity, split }
            }
            Method::Block { .. } | Method::Short { .. } | Method::Grid | Method::Cluster { .. } => {
                let capacity = survivors(k, columns, SamplePlan::grid_keys(columns));
                let split = Split::reserve(layout, rows, columns, capacity, limits);
                let other_lists = layout.array((rows as usize).saturating_mul(capacity as usize));
                Steps::List { capacity, split, other_lists }
            }
        };
        SelectPlan { steps }
    }

    /// The name of the plan's method.
    fn name(&self) -> &'static str {
        match self.steps {
            Steps::Warp { .. } => "warp",
            Steps::Block { .. } => "block",
            Steps::Short { .. } => "short",
            Steps::Cluster { .. } => "cluster",
            Steps::Grid { .. } => "grid",
            Steps::List { .. } => "list",
        }
    }
}

/// The launch of ClusterSelect for a batch.
struct Clusters {
    threads: u32,
    capacity: u32,
}

impl Clusters {
    /// `blocks` blocks for each row; `None` if the device does not run such clusters, or the survivors do not fit into
    /// the shared memory of a block.
    fn plan(rows: u32, columns: u32, k: u32, blocks: u32, limits: &Limits) -> Option<Clusters> {
        if blocks > limits.largest_cluster {
            return None;
        }
        let capacity = survivors(k, columns, sample::BLOCK_GROUP_KEYS);
        // Blocks that have a multiprocessor each have as many threads as possible, but for small parts: a row of
        // 262,144 keys takes 16 blocks 15.2 µs with 512 threads and 15.6 with 1,024, and 4 blocks 24.0 and 19.7 (H200,
        // k = 2,048). On the emulator few threads make small parts long.
        let alone = blocks < 8 && u64::from(rows) * u64::from(blocks) <= u64::from(limits.multiprocessors);
        let most = if limits.emulated { 64 } else { 1024 };
        let choices = [if alone { most } else { most / 2 }, most / 2];
        let fits = |threads: u32| {
            // The type of the keys is not known here; those of four bytes take the most.
            let bytes = cluster_select::shared_bytes(capacity.min(MOST_CAPACITY), columns, 4, blocks, threads);
            bytes <= u64::from(limits.shared_bytes)
        };
        let threads = choices.into_iter().find(|&threads| fits(threads))?;
        Some(Clusters { threads, capacity })
    }
}

/// A device, and whether it runs clusters, as the table of methods wants them.
fn by_clusters(limits: &Limits) -> (&str, bool) {
    (&limits.device, limits.largest_cluster > 0)
}

/// [`Error::Mismatch`] if there are no kernels of the algorithm for these keys.
pub(crate) fn check_algorithm<K: Key>(algorithm: Algorithm) -> Result<()> {
    match algorithm {
        Algorithm::WarpSelect if !K::WARP_SELECT => {
            Err(Error::Mismatch { what: "key type for warp-select", expected: "f32", actual: K::TYPE.name() })
        }
        _ => Ok(()),
    }
}

/// The name of the last kernel of a selection from these keys, for messages.
#[cfg(any(feature = "cuda", test))]
pub(crate) fn kernel_name<K: DeviceKey>() -> &'static str {
    ThresholdSelect::kernel(K::KERNELS).name()
}

/// The table's method for rows of these lengths; WarpSelect only where `warp` holds. Blocks of rows that are longer
/// than the measured ones may get more threads.
fn chosen(rows: u32, columns: Columns, k: u32, warp: bool, limits: &Limits) -> Method {
    match dispatch::choose(by_clusters(limits), [rows, columns.typical, k], warp) {
        Method::Block { threads } => {
            let capacity = survivors(k, columns.most, sample::BLOCK_GROUP_KEYS);
            Method::Block { threads: enough_threads(threads, capacity, limits) }
        }
        other => other,
    }
}

/// The number of threads of a block that has room for `capacity` survivors: more than `threads` if at most three of
/// them share a multiprocessor. The fastest method of each measured shape has as many.
///
/// A selection from 10,000 rows of 325,000 to 650,000 scores, which may be four times as long, had the blocks of 128
/// threads that are fastest for 128,000, and room for so many survivors that a multiprocessor ran one: 1.4 TB/s on an
/// H200 (inferred from searches of 10⁹ vectors, 2026-12-01).
fn enough_threads(threads: u32, capacity: u32, limits: &Limits) -> u32 {
    let least = match limits.shared_bytes / threshold::shared_bytes(capacity.min(MOST_CAPACITY)) {
        0 | 1 => 512,
        2 => 384,
        3 => 256,
        _ => 0,
    };
    threads.max(least)
}

/// Capacity for the survivors of a row of `columns` keys, with `group_keys` keys in a group of the sample. Of random
/// rows, all but one in 10⁶ have at most this number of survivors. At most the length of the row.
pub(crate) fn survivors(k: u32, columns: u32, group_keys: u32) -> u32 {
    let whole = columns.max(threshold::LEAST_CAPACITY).next_multiple_of(32);
    if k >= columns {
        return whole;
    }
    let plan = SamplePlan::new(k, columns, group_keys);
    let (expected, deviation) = expected_survivors(plan, columns);
    // Five standard deviations, and a term for the skew of the distribution of a small rank.
    let room = expected * (1.0 + 5.0 * deviation + 8.0 * deviation * deviation);
    let room = room.ceil().min(f64::from(u32::MAX / 2)) as u32;
    room.max(k).max(threshold::LEAST_CAPACITY).next_multiple_of(32).min(whole)
}

/// The approximate number of `len` random entries that pass the threshold of `plan`, and its relative standard
/// deviation. The threshold is the quantile at which enough groups reach the rank.
pub(crate) fn expected_survivors(plan: SamplePlan, len: u32) -> (f64, f64) {
    // The rank-th of n uniform values has the distribution Beta(rank, n + 1 − rank); the delta method gives the
    // quantile from it.
    let (rank, groups, keys) = (f64::from(plan.rank), f64::from(plan.groups), f64::from(plan.group_keys));
    let reached = rank / (groups + 1.0);
    let deviation = (reached * (1.0 - reached) / (groups + 2.0)).sqrt();
    let quantile = 1.0 - (1.0 - reached).powf(1.0 / keys);
    (f64::from(len) * quantile, deviation * (1.0 - quantile) / (1.0 - reached).max(1e-9) / keys / quantile)
}

/// The levels of WarpSelect, and the length of the rows that are left after them.
///
/// A level has just enough pieces to give every multiprocessor enough warps. Pieces are long, so that they have far
/// fewer winners than keys.
fn warp_levels(layout: &mut Layout, rows: u32, columns: u32, k: u32, limits: &Limits) -> (Vec<Level>, u32) {
    let wanted = (u64::from(limits.multiprocessors) * 32).div_ceil(u64::from(rows.max(1)));
    let shortest = u64::from(k).saturating_mul(8).max(1024);
    let mut columns = u64::from(columns);
    let mut levels = Vec::new();
    // Several passes need the row in one piece, because a pass continues from the last result of the pass before.
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
            winners: (layout.array(winners), layout.array(winners)),
        });
        // At most an eighth of the columns before: k winners from at least 8·k keys.
        columns = segments * u64::from(k);
    }
    (levels, columns as u32)
}

/// Selects from the batch. `scratch` is the memory that the plan reserved.
///
/// # Safety
/// The arrays of the batch have its shape. The arrays and the scratch memory stay valid, and no other work uses them,
/// until the stream has done the work. The plan was made for at least this number of rows and columns, for the same k
/// and for this type of keys.
pub(crate) unsafe fn select<K: DeviceKey>(
    runtime: &Runtime,
    stream: &Stream,
    batch: &Select<K>,
    plan: &SelectPlan,
    scratch: Scratch,
) -> Result<()> {
    // SAFETY: the same contract.
    unsafe { enqueue(&OnStream { runtime, stream }, batch, plan, scratch) }
}

/// As [`select`], on any queue.
///
/// # Safety
/// As [`select`].
pub(crate) unsafe fn enqueue<K: DeviceKey, Q: Queue>(
    queue: &Q,
    batch: &Select<K>,
    plan: &SelectPlan,
    scratch: Scratch,
) -> Result<()> {
    if batch.rows == 0 {
        return Ok(());
    }
    events::selection(plan.name(), batch.rows, batch.k);
    let launcher = Launcher { queue, batch: batch.trimmed(), scratch };
    // SAFETY: as the caller promises.
    unsafe {
        match plan.steps {
            Steps::Warp { ref levels, last_columns } => launcher.warp(levels, last_columns),
            Steps::Block { threads, capacity } => launcher.block(threads, capacity, None),
            Steps::Short { threads, capacity } => launcher.short(threads, capacity),
            Steps::Cluster { blocks, threads, capacity } => launcher.cluster(blocks, threads, capacity),
            Steps::Grid { threads, capacity, split } => {
                launcher.filter(capacity, split)?;
                launcher.block(threads, capacity, Some(split))
            }
            Steps::List { capacity, split, other_lists } => {
                launcher.filter(capacity, split)?;
                launcher.repair(capacity, split)?;
                launcher.sort(capacity, split, other_lists)
            }
        }
    }
}

/// Looks up the payload of each selected key: slot i of `found` gets the payload at position `positions[i]` of its row,
/// or all ones if the slot is empty. Payloads have the layout of the batch's keys. The keys and results of the batch
/// are not used.
///
/// # Safety
/// The arrays have the shape of the batch until the queue has done the work. The positions are those of a selection
/// from these rows.
#[cfg(any(feature = "cuda", test))]
pub(crate) unsafe fn enqueue_gather<K, P: DevicePayload, Q: Queue>(
    queue: &Q,
    batch: &Select<K>,
    positions: Ptr<u32>,
    payloads: Ptr<P>,
    found: PtrMut<P>,
) -> Result<()> {
    let slots = u64::from(batch.rows) * u64::from(batch.k);
    if slots == 0 {
        return Ok(());
    }
    let launch = Gather {
        payloads,
        stride: batch.row_stride,
        starts: batch.starts,
        positions: positions.take(slots as usize),
        out: found.take(slots as usize),
        k: batch.k,
        slots,
    };
    // SAFETY: as the caller promises.
    unsafe { queue.launch(&P::GATHER, launch.config(), launch) }
}

/// The launches of one selection.
struct Launcher<'a, K, Q> {
    queue: &'a Q,
    batch: Select<K>,
    scratch: Scratch,
}

impl<K: DeviceKey, Q: Queue> Launcher<'_, K, Q> {
    /// The first `rows` rows of an array with `columns` values for each row. The plan may be for more rows.
    fn rows_of<T>(&self, array: Reserved<T>, columns: u32) -> PtrMut<T> {
        self.scratch.at(array).take(self.batch.rows as usize * columns as usize)
    }

    fn flip(&self) -> u32 {
        if self.batch.best == Best::Largest { K::FLIP } else { 0 }
    }

    fn table(&self) -> KeyTable {
        let Select { keys, ids, row_stride: stride, starts, lengths, columns, .. } = self.batch;
        KeyTable { keys: keys.as_bytes(), ids, stride, starts, lengths, columns, flip: self.flip() }
    }

    fn results(&self) -> SelectedRows {
        SelectedRows { keys: self.batch.out_keys.as_bytes(), ids: self.batch.out_ids, stride: self.batch.k }
    }

    unsafe fn warp(&self, levels: &[Level], last_columns: u32) -> Result<()> {
        let batch = &self.batch;
        let mut launch = WarpSelectRows {
            // Plans use WarpSelect only for f32 keys.
            table: self.table(),
            segments: 1,
            segment_columns: last_columns,
            rows: batch.rows,
            k: batch.k,
            skip: 0,
            out: self.results(),
        };
        // SAFETY: the scratch has room for k winners of each segment, and the next level reads exactly those. Later
        // passes of this stream read the first results where earlier passes wrote them.
        unsafe {
            for &Level { segments, segment_columns, winners: (keys, ids) } in levels {
                let columns = segments * batch.k;
                let (keys, ids) = (self.rows_of(keys, columns).as_bytes(), self.rows_of(ids, columns));
                let out = SelectedRows { keys, ids, stride: batch.k };
                self.warp_pass(WarpSelectRows { segments, segment_columns, out, ..launch })?;
                let (keys, ids) = (keys.into(), ids.into());
                let (stride, flip) = (columns.into(), launch.table.flip);
                launch.table = KeyTable { keys, ids, stride, starts: None, lengths: None, columns, flip };
            }
            while launch.skip < batch.k {
                launch.k = (batch.k - launch.skip).min(LONGEST_QUEUE);
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

    /// One block for each row, on the row or on its survivors.
    unsafe fn block(&self, threads: u32, capacity: u32, survivors: Option<Split>) -> Result<()> {
        let batch = &self.batch;
        let launch = ThresholdSelect {
            table: self.table(),
            k: batch.k,
            capacity,
            thresholds: survivors.map_or(Ptr::empty(), |split| self.rows_of(split.thresholds, 1).into()),
            lists: survivors.map(|split| self.rows_of(split.lists, capacity).into()),
            counts: survivors.map_or(Ptr::empty(), |split| self.rows_of(split.counts, 1).into()),
            out: self.results(),
        };
        // SAFETY: as the caller promises.
        unsafe { self.queue.launch(ThresholdSelect::kernel(K::KERNELS), launch.config(batch.rows, threads), launch) }
    }

    /// One block a row, which keeps it in registers.
    unsafe fn short(&self, threads: u32, capacity: u32) -> Result<()> {
        let batch = &self.batch;
        let launch = ShortSelect { table: self.table(), k: batch.k, capacity, out: self.results() };
        // SAFETY: as the caller promises; the plan takes this method only for a k that blocks of `threads` threads
        // find.
        unsafe { self.queue.launch(ShortSelect::kernel(K::KERNELS), launch.config(batch.rows, threads), launch) }
    }

    /// A cluster of blocks for each row.
    unsafe fn cluster(&self, blocks: u32, threads: u32, capacity: u32) -> Result<()> {
        let batch = &self.batch;
        let launch = ClusterSelect { table: self.table(), k: batch.k, capacity, out: self.results() };
        let config = launch.config(K::KERNELS, batch.rows, blocks, threads);
        // SAFETY: as the caller promises; min(k, columns) ≤ capacity.
        unsafe { self.queue.launch(ClusterSelect::kernel(K::KERNELS), config, launch) }
    }

    /// Computes the thresholds of all rows, and writes the survivors to lists.
    unsafe fn filter(&self, capacity: u32, split: Split) -> Result<()> {
        let batch = &self.batch;
        // A single block has its sample in shared memory.
        let (mut bests, mut tickets) = (PtrMut::empty(), PtrMut::empty());
        if split.sampling > 1 {
            let (rows, joins) = (batch.rows as usize, self.scratch.at(split.joins));
            let groups = Split::groups_len(rows);
            // The words behind the groups hold two tickets each.
            (bests, tickets) = (joins.take(groups), joins.skip(groups).cast::<u32>().take(rows));
            // SAFETY: the plan reserved groups and tickets for at least this number of rows.
            unsafe { self.queue.fill(joins.take(groups + rows.div_ceil(2)), 0xff)? };
        }
        let (thresholds, counts) = (self.rows_of(split.thresholds, 1), self.rows_of(split.counts, 1));
        let launch = RowThresholds {
            table: self.table(),
            k: batch.k,
            capacity,
            blocks: split.sampling,
            bests,
            tickets,
            thresholds,
            counts,
        };
        // SAFETY: as the caller promises.
        unsafe { self.queue.launch(RowThresholds::kernel(K::KERNELS), launch.config(batch.rows), launch)? };
        let launch = FilterRows {
            table: self.table(),
            segments: split.segments,
            segment_columns: split.segment_columns,
            capacity,
            thresholds: thresholds.into(),
            lists: self.rows_of(split.lists, capacity),
            counts,
        };
        // SAFETY: as the caller promises; the previous kernel wrote thresholds and counts.
        unsafe { self.queue.launch(FilterRows::kernel(K::KERNELS), launch.config(batch.rows), launch) }
    }

    unsafe fn repair(&self, capacity: u32, split: Split) -> Result<()> {
        let batch = &self.batch;
        let launch = RepairLists {
            table: self.table(),
            k: batch.k,
            capacity,
            thresholds: self.rows_of(split.thresholds, 1).into(),
            lists: self.rows_of(split.lists, capacity),
            counts: self.rows_of(split.counts, 1),
        };
        // SAFETY: as the caller promises; the filter has run.
        unsafe { self.queue.launch(RepairLists::kernel(K::KERNELS), launch.config(batch.rows), launch) }
    }

    /// Sorts the lists, back and forth between the two arrays, and writes the results.
    unsafe fn sort(&self, capacity: u32, split: Split, other_lists: Reserved<u64>) -> Result<()> {
        let batch = &self.batch;
        let counts = self.rows_of(split.counts, 1).read_only();
        let (mut lists, mut others) = (self.rows_of(split.lists, capacity), self.rows_of(other_lists, capacity));
        let chunks = capacity.div_ceil(list_sort::CHUNK);
        // SAFETY: as the caller promises; each launch reads the results of the previous one.
        unsafe {
            let launch = SortChunks { lists, counts, capacity, chunks };
            self.queue.launch(&SortChunks::KERNEL, launch.config(batch.rows), launch)?;
            let mut width = list_sort::CHUNK;
            while width < capacity {
                let (from, to) = (lists.read_only(), others);
                let launch = MergeRuns { from, to, counts, capacity, chunks, width, keep: batch.k };
                self.queue.launch(&MergeRuns::KERNEL, launch.config(batch.rows), launch)?;
                std::mem::swap(&mut lists, &mut others);
                width = width.saturating_mul(2);
            }
            let launch = UnpackLists {
                lists: lists.into(),
                counts,
                capacity,
                pieces: batch.k.div_ceil(list_sort::THREADS),
                flip: self.flip(),
                k: batch.k,
                out: self.results(),
            };
            self.queue.launch(UnpackLists::kernel(K::KERNELS), launch.config(batch.rows), launch)
        }
    }
}

#[cfg(test)]
mod tests {
    use cuda_std::ptr::TO_END;

    use super::*;

    /// The arguments of launches end where the batch ends, even if the caller's pointers are longer.
    #[test]
    fn pointers_end_where_the_batch_ends() {
        let address = std::ptr::without_provenance_mut::<u32>(4096);
        let (ids, keys) = (Ptr::new(address, TO_END), PtrMut::new(address.cast::<f32>(), TO_END));
        let evenly = Select {
            keys: keys.into(),
            ids: Some(ids),
            row_stride: 10,
            starts: None,
            lengths: Some(ids),
            columns: 7,
            rows: 3,
            k: 2,
            best: Best::Smallest,
            out_keys: keys,
            out_ids: PtrMut::new(address, 5),
        };
        let lengths = |batch: Select<f32>| {
            let Select { keys, ids, starts, lengths, out_keys, out_ids, .. } = batch.trimmed();
            let ids = ids.map(Ptr::len);
            (keys.len(), ids, starts.map(Ptr::len), lengths.map(Ptr::len), out_keys.len(), out_ids.len())
        };
        assert_eq!(lengths(evenly), (27, Some(27), None, Some(3), 6, 5));
        let ragged = Select { starts: Some(Ptr::new(address.cast(), TO_END)), lengths: None, ..evenly };
        assert_eq!(lengths(ragged), (TO_END, Some(TO_END), Some(4), None, 6, 5));
        assert_eq!(lengths(Select { rows: 0, ..evenly }), (0, Some(0), None, Some(0), 0, 0));
    }
}
