//! The selections by blocks: ThresholdSelect, ShortSelect, ClusterSelect, the selection by many blocks, and that of
//! lists. All give the same results.
//!
//! No result tells these changes:
//! - `block_order` puts an entry before or behind an equal one: entries with different ids are never equal.
//! - `StagedSink::flush` reserves no places in the list if there is nothing to flush: an addition of 0.

use cuda_std::emulator::Buffer;
use cuda_std::{Ptr, PtrMut};
use test_random::Random;
use warpann_kernels::NO_ROW;
use warpann_kernels::select::bucket_order::MOST;
use warpann_kernels::select::cluster_select::ClusterSelect;
use warpann_kernels::select::entry::EMPTY;
use warpann_kernels::select::gather::Gather;
use warpann_kernels::select::keys::KeyType;
use warpann_kernels::select::list_sort::{CHUNK, MergeRuns, SortChunks, THREADS, UnpackLists};
use warpann_kernels::select::rows::{KeyTable, SelectedRows};
use warpann_kernels::select::sample::{BLOCK_GROUP_KEYS, MOST_GROUPS, SamplePlan};
use warpann_kernels::select::short_select::ShortSelect;
use warpann_kernels::select::threshold_select::{FilterRows, RepairLists, RowThresholds, ThresholdSelect};

/// A number that stands for NaN among float keys. Other numbers lie in ±256, which every key type has.
const NAN: i32 = i32::MAX;

/// The bytes of a key of the type that stands for `number`. Of the two zeros and of NaN, `variant` chooses one.
fn stored(key: KeyType, number: i32, variant: bool) -> Vec<u8> {
    let single = match number {
        NAN => f32::from_bits(if variant { 0xffc1_0000 } else { 0x7f81_0000 }),
        0 if variant => -0.0,
        _ => number as f32,
    };
    let bits = single.to_bits();
    match key {
        KeyType::F32 => bits.to_le_bytes().to_vec(),
        KeyType::Bf16 => ((bits >> 16) as u16).to_le_bytes().to_vec(),
        KeyType::F16 => {
            // Exact for whole numbers up to 2,048: the exponent's bias is 15 instead of 127.
            let half = match (number, bits & 0x7fff_ffff) {
                (NAN, _) => 0x7c01,
                (_, 0) => 0,
                (_, magnitude) => ((magnitude >> 13) - (112 << 10)) as u16,
            };
            (half | (bits >> 16) as u16 & 0x8000).to_le_bytes().to_vec()
        }
        KeyType::I32 => number.to_le_bytes().to_vec(),
        KeyType::U32 => (number + 1000).cast_unsigned().to_le_bytes().to_vec(),
    }
}

/// Rows of keys, and what is selected from them.
struct Batch {
    key: KeyType,
    /// The numbers of all rows, one behind the other.
    numbers: Vec<i32>,
    ids: Option<Vec<u32>>,
    /// The start of each row and the number of its keys.
    rows: Vec<(usize, usize)>,
    columns: usize,
    k: usize,
    largest: bool,
}

/// How the launches are given the rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Layout {
    /// Rows of one length, evenly spaced.
    Stride,
    /// A start for each row.
    Starts,
    /// A start and a length for each row.
    Lengths,
}

/// How a batch is selected from.
#[derive(Debug, Clone, Copy)]
enum Method {
    Block { threads: u32, capacity: u32 },
    Short { threads: u32, capacity: u32 },
    Grid { capacity: u32, blocks: u32, segments: u32 },
    List { capacity: u32, segments: u32 },
    Cluster { blocks: u32, threads: u32, capacity: u32 },
}

impl Batch {
    /// `rows` rows of at most `columns` keys out of `distinct` numbers, each row at another alignment.
    fn random(random: &mut Random, key: KeyType, rows: usize, columns: usize, distinct: usize, k: usize) -> Batch {
        let layout = random.pick(&[Layout::Stride, Layout::Starts, Layout::Lengths]);
        Batch::with_layout(random, layout, key, rows, columns, distinct, k)
    }

    fn with_layout(
        random: &mut Random,
        layout: Layout,
        key: KeyType,
        rows: usize,
        columns: usize,
        distinct: usize,
        k: usize,
    ) -> Batch {
        let stride = columns + random.below(4);
        let mut at = 0;
        let shapes: Vec<(usize, usize)> = (0..rows)
            .map(|row| match layout {
                Layout::Stride => (row * stride, columns),
                _ => {
                    let len = if row == 0 { columns } else { random.below(columns + 1) };
                    let gap = if layout == Layout::Lengths { random.below(4) } else { 0 };
                    at += len + gap;
                    (at - len - gap, len)
                }
            })
            .collect();
        let len = shapes.iter().map(|(start, len)| start + len).max().unwrap();
        let nan = matches!(key, KeyType::F32 | KeyType::F16 | KeyType::Bf16) && random.once_in(2);
        let number = |random: &mut Random| {
            if nan && random.once_in(10) { NAN } else { random.below(distinct) as i32 - distinct as i32 / 2 }
        };
        let numbers: Vec<i32> = (0..len).map(|_| number(random)).collect();
        let ids = random.once_in(2).then(|| {
            let mut ids: Vec<u32> = (0..len as u32).map(|id| 3 * id).collect();
            random.shuffle(&mut ids);
            ids.iter().map(|&id| if random.once_in(20) { NO_ROW } else { id }).collect()
        });
        Batch { key, numbers, ids, rows: shapes, columns, k, largest: random.once_in(2) }
    }

    /// The best k of row `row`: numbers and ids; nothing from the end of the row on.
    fn expected(&self, row: usize) -> Vec<Option<(i32, u32)>> {
        let (start, len) = self.rows[row];
        let entry = |at: usize| (self.numbers[start + at], self.ids.as_ref().map_or(at as u32, |ids| ids[start + at]));
        let mut entries: Vec<(i32, u32)> = (0..len).map(entry).filter(|entry| entry.1 != NO_ROW).collect();
        let place = |number: i32| if number != NAN && self.largest { -number } else { number };
        entries.sort_by_key(|&(number, id)| (place(number), id));
        entries.into_iter().map(Some).chain(std::iter::repeat(None)).take(self.k).collect()
    }

    /// The bytes that stand for `found` among the results.
    fn result(&self, found: Option<(i32, u32)>) -> Vec<u8> {
        let infinity = if self.largest { f32::NEG_INFINITY } else { f32::INFINITY }.to_bits();
        let half = |bits: u16| bits.to_le_bytes().to_vec();
        let nan = found.is_some();
        match (found, self.key) {
            (Some((number, _)), key) if number != NAN => stored(key, number, false),
            (_, KeyType::F32) => if nan { 0x7fc0_0000 } else { infinity }.to_le_bytes().to_vec(),
            (_, KeyType::Bf16) => half(if nan { 0x7fc0 } else { (infinity >> 16) as u16 }),
            (_, KeyType::F16) => half(if nan { 0x7e00 } else { 0x7c00 | (infinity >> 16) as u16 & 0x8000 }),
            (_, KeyType::I32) => if self.largest { i32::MIN } else { i32::MAX }.to_le_bytes().to_vec(),
            (_, KeyType::U32) => if self.largest { 0 } else { u32::MAX }.to_le_bytes().to_vec(),
        }
    }

    fn check(&self, random: &mut Random, method: Method) {
        let rows = self.rows.len() as u32;
        let size = stored(self.key, 0, false).len();
        let bytes: Vec<u8> = self.numbers.iter().flat_map(|&n| stored(self.key, n, random.once_in(2))).collect();
        let keys = Buffer::from_slice(&bytes);
        let ids = self.ids.as_ref().map(|ids| Buffer::from_slice(ids));
        let even = self.rows.iter().all(|row| row.1 == self.columns);
        let starts: Vec<u64> = self.rows.iter().map(|row| row.0 as u64).chain([self.numbers.len() as u64]).collect();
        // Starts alone give the lengths only if rows follow each other without a gap.
        let gaps = self.rows.iter().zip(&starts[1..]).any(|(row, &next)| (row.0 + row.1) as u64 != next);
        let with_starts = !even || (!gaps && random.once_in(2));
        let lengths: Vec<u32> = self.rows.iter().map(|row| row.1 as u32).collect();
        let (starts, lengths) = (Buffer::from_slice(&starts), Buffer::from_slice(&lengths));
        let starts_given = with_starts.then(|| starts.as_ptr());
        let lengths_given = (gaps || random.once_in(2)).then(|| lengths.as_ptr());
        let stride = if rows > 1 { self.rows[1].0 } else { self.columns } as u64;
        let (columns, k) = (self.columns as u32, self.k as u32);
        let out_stride = k + 3;
        let flip = match (self.largest, self.key) {
            (false, _) => 0,
            (true, KeyType::I32 | KeyType::U32) => u32::MAX,
            (true, _) => 0x8000_0000,
        };
        let slots = (rows * out_stride) as usize;
        let mut out_keys = Buffer::<u8>::new_poisoned(slots * size);
        let mut out_ids = Buffer::<u32>::new_poisoned(slots);
        let mut bests = Buffer::<u64>::from_slice(&vec![u64::MAX; (rows * MOST_GROUPS) as usize]);
        let mut tickets = Buffer::<u32>::from_slice(&vec![u32::MAX; rows as usize]);
        let mut thresholds = Buffer::<u64>::new_poisoned(rows as usize);
        let mut counts = Buffer::<u32>::new_poisoned(rows as usize);
        let capacity = match method {
            Method::Block { capacity, .. } | Method::Short { capacity, .. } => capacity,
            Method::Grid { capacity, .. } | Method::List { capacity, .. } => capacity,
            Method::Cluster { capacity, .. } => capacity,
        };
        let mut lists = Buffer::<u64>::new_poisoned((rows * capacity) as usize);
        let mut other_lists = Buffer::<u64>::new_poisoned((rows * capacity) as usize);
        let (blocks, segments) = match method {
            Method::Grid { blocks, segments, .. } => (blocks, segments),
            Method::List { segments, .. } => (1, segments),
            _ => (0, 0),
        };
        let table = KeyTable {
            keys: keys.as_ptr(),
            ids: ids.as_ref().map(Buffer::as_ptr),
            stride,
            starts: starts_given,
            lengths: lengths_given,
            columns,
            flip,
        };
        let out = SelectedRows { keys: out_keys.as_mut_ptr(), ids: out_ids.as_mut_ptr(), stride: out_stride };
        // SAFETY: the arrays have the shapes of the batch.
        unsafe {
            if segments > 0 {
                let (bests, tickets) = (bests.as_mut_ptr(), tickets.as_mut_ptr());
                let (thresholds_at, counts_at) = (thresholds.as_mut_ptr(), counts.as_mut_ptr());
                let launch = RowThresholds {
                    table,
                    k,
                    capacity,
                    blocks,
                    bests,
                    tickets,
                    thresholds: thresholds_at,
                    counts: counts_at,
                };
                crate::launch(RowThresholds::kernel(self.key), launch.config(rows), launch);
                let segment_columns = columns.div_ceil(segments).next_multiple_of(4);
                let (thresholds, lists) = (thresholds.as_ptr(), lists.as_mut_ptr());
                let launch =
                    FilterRows { table, segments, segment_columns, capacity, thresholds, lists, counts: counts_at };
                crate::launch(FilterRows::kernel(self.key), launch.config(rows), launch);
            }
            match method {
                Method::Block { threads, .. } | Method::Grid { blocks: threads, .. } => {
                    let grid = segments > 0;
                    let launch = ThresholdSelect {
                        table,
                        k,
                        capacity,
                        thresholds: thresholds.as_ptr(),
                        lists: grid.then(|| lists.as_ptr()),
                        counts: counts.as_ptr(),
                        out,
                    };
                    let threads = if grid { 64 } else { threads };
                    crate::launch(ThresholdSelect::kernel(self.key), launch.config(rows, threads), launch);
                }
                Method::Short { threads, .. } => {
                    let launch = ShortSelect { table, k, capacity, out };
                    crate::launch(ShortSelect::kernel(self.key), launch.config(rows, threads), launch);
                }
                Method::Cluster { blocks, threads, .. } => {
                    let launch = ClusterSelect { table, k, capacity, out };
                    let config = launch.config(self.key, rows, blocks, threads);
                    crate::launch(ClusterSelect::kernel(self.key), config, launch);
                }
                Method::List { .. } => {
                    let (thresholds, counts) = (thresholds.as_ptr(), counts.as_mut_ptr());
                    self.sort_lists((table, out), capacity, thresholds, counts, [&mut lists, &mut other_lists]);
                }
            }
        }
        self.compare((&out_keys.to_vec(), &out_ids.to_vec()), out_stride as usize, method);
    }

    /// Repairs the lists of candidates, sorts them, and unpacks the best k of each.
    ///
    /// # Safety
    /// The arrays have the shapes of the batch, and the filter filled the first lists.
    unsafe fn sort_lists(
        &self,
        (table, out): (KeyTable, SelectedRows),
        capacity: u32,
        thresholds: Ptr<u64>,
        counts: PtrMut<u32>,
        [lists, other]: [&mut Buffer<u64>; 2],
    ) {
        let (rows, k) = (self.rows.len() as u32, self.k as u32);
        let launch = RepairLists { table, k, capacity, thresholds, lists: lists.as_mut_ptr(), counts };
        // SAFETY: as the caller promises, here and below.
        unsafe { crate::launch(RepairLists::kernel(self.key), launch.config(rows), launch) };
        let (counts, chunks) = (counts.into(), capacity.div_ceil(CHUNK));
        let launch = SortChunks { lists: lists.as_mut_ptr(), counts, capacity, chunks };
        // SAFETY: as above.
        unsafe { crate::launch(&SortChunks::KERNEL, launch.config(rows), launch) };
        let mut width = CHUNK;
        while width < capacity {
            let (from, to) = (lists.as_ptr(), other.as_mut_ptr());
            let launch = MergeRuns { from, to, counts, capacity, chunks, width, keep: k };
            // SAFETY: as above.
            unsafe { crate::launch(&MergeRuns::KERNEL, launch.config(rows), launch) };
            std::mem::swap(lists, other);
            width *= 2;
        }
        let (pieces, flip) = (k.div_ceil(THREADS), table.flip);
        let launch = UnpackLists { lists: lists.as_ptr(), counts, capacity, pieces, flip, k, out };
        // SAFETY: as above.
        unsafe { crate::launch(UnpackLists::kernel(self.key), launch.config(rows), launch) };
    }

    /// Compares the results of all rows.
    fn compare(&self, (keys, ids): (&[u8], &[u32]), stride: usize, method: Method) {
        let size = stored(self.key, 0, false).len();
        for row in 0..self.rows.len() {
            let expected = self.expected(row);
            let at = row * stride..row * stride + self.k;
            let wanted: Vec<u32> = expected.iter().map(|entry| entry.map_or(NO_ROW, |entry| entry.1)).collect();
            let what = format!(
                "{:?}, k {} of {} in row {row} of {:?}, {method:?}",
                self.key, self.k, self.columns, self.rows[row]
            );
            assert_eq!(ids[at.clone()], wanted, "{what}");
            let wanted: Vec<u8> = expected.iter().flat_map(|&entry| self.result(entry)).collect();
            assert_eq!(keys[at.start * size..at.end * size], wanted, "{what}");
            // Between the results of two rows nothing is written.
            let behind = at.end..at.end + 3;
            assert!(ids[behind].iter().all(|&id| id == 0xa5a5_a5a5), "{what}: written behind the results");
        }
    }
}

const KEYS: [KeyType; 5] = [KeyType::F32, KeyType::F16, KeyType::Bf16, KeyType::I32, KeyType::U32];

#[test]
fn threshold_select_finds_the_best_of_every_row() {
    let mut random = Random::new(31);
    for (turn, key) in KEYS.into_iter().cycle().take(15).enumerate() {
        for (columns, k) in [(1, 1), (31, 40), (500, 33), (700, 100), (2500, 1 + 60 * turn % 512)] {
            let distinct = [1, 2, 7, 500][random.below(4)];
            let threads = [32, 96, 256][turn % 3];
            let batch = Batch::random(&mut random, key, 2, columns, distinct, k);
            batch.check(&mut random, Method::Block { threads, capacity: 512 });
        }
    }
}

#[test]
fn short_select_finds_the_best_of_every_row() {
    let mut random = Random::new(32);
    for (turn, key) in KEYS.into_iter().cycle().take(15).enumerate() {
        for (columns, k) in [(1, 1), (33, 24), (127, 7), (900, 17), (2100, 24)] {
            let distinct = [1, 2, 30, 500][random.below(4)];
            let threads = [32, 64, 128][turn % 3];
            let batch = Batch::random(&mut random, key, 2, columns, distinct, k);
            batch.check(&mut random, Method::Short { threads, capacity: 512 });
        }
    }
}

#[test]
fn clusters_find_the_best_of_every_row() {
    let mut random = Random::new(36);
    for (turn, key) in KEYS.into_iter().cycle().take(20).enumerate() {
        for (columns, k) in [(1, 1), (31, 40), (500, 33), (1100, 100), (2500, 1 + 60 * turn % 512)] {
            let distinct = [1, 2, 7, 500][random.below(4)];
            let (blocks, threads) = ([1, 2, 4, 8, 16][turn % 5], [32, 64, 128][turn % 3]);
            let batch = Batch::random(&mut random, key, 2, columns, distinct, k);
            batch.check(&mut random, Method::Cluster { blocks, threads, capacity: 512 });
        }
    }
}

/// Parts of more turns than the ring has places for, and of exactly as many.
#[test]
fn clusters_stream_long_parts() {
    let mut random = Random::new(37);
    for (key, columns, blocks, threads) in [
        (KeyType::F32, 9000, 2, 32),
        (KeyType::F16, 9001, 1, 32),
        (KeyType::U32, 2048, 2, 32),
        (KeyType::Bf16, 4096, 1, 32),
        // Two threads for each group of the sample, of 1 and of 16 keys.
        (KeyType::I32, 1000, 2, 256),
        (KeyType::F32, 9000, 4, 256),
    ] {
        let k = if columns == 1000 { 300 } else { 20 };
        let batch = Batch::random(&mut random, key, 1, columns, 500, k);
        batch.check(&mut random, Method::Cluster { blocks, threads, capacity: 512 });
    }
}

/// Rows whose survivors all lie in one part, or in one bucket; rows whose sample is misleading.
#[test]
fn clusters_sort_adversarial_rows() {
    let mut random = Random::new(38);
    let columns = 3000;
    let batch = |random: &mut Random, key, k, numbers: Vec<i32>| Batch {
        numbers,
        ids: None,
        rows: vec![(0, columns)],
        largest: false,
        ..Batch::random(random, key, 1, columns, 2, k)
    };
    for (blocks, key) in [(1, KeyType::F32), (4, KeyType::F32), (2, KeyType::I32)] {
        let check = |random: &mut Random, k, number: &dyn Fn(usize) -> i32| {
            let batch = batch(random, key, k, (0..columns).map(number).collect());
            batch.check(random, Method::Cluster { blocks, threads: 64, capacity: 512 });
        };
        // Ascending and descending: one block has all survivors.
        check(&mut random, 100, &|at| at as i32);
        check(&mut random, 100, &|at| -(at as i32));
        // One key far below many others, whose buckets are crowded: of floats by the exponent.
        check(&mut random, 200, &|at| if at == 7 { -256 } else { 250 + (at % 3) as i32 });
        const { assert!(200 > 3 * MOST) };
        // Fewer of the sampled positions than of the others are good: the threshold passes too many.
        let plan = SamplePlan::new(400, columns as u32, BLOCK_GROUP_KEYS);
        let sampled: std::collections::HashSet<u32> = (0..plan.groups)
            .flat_map(|group| (0..plan.group_keys).map(move |turn| (group, turn)))
            .map(|(group, turn)| plan.position(group, turn, columns as u32, 0))
            .collect();
        check(&mut random, 400, &|at| if sampled.contains(&(at as u32)) { 200 } else { (at % 100) as i32 });
        check(&mut random, 400, &|at| if sampled.contains(&(at as u32)) { (at % 100) as i32 } else { 200 });
    }
}

#[test]
fn many_blocks_find_the_best_of_every_row() {
    let mut random = Random::new(33);
    for (turn, key) in KEYS.into_iter().cycle().take(10).enumerate() {
        for (columns, k) in [(40, 9), (1100, 30), (3000, 200)] {
            let distinct = [2, 40, 500][random.below(3)];
            let batch = Batch::random(&mut random, key, 2, columns, distinct, k);
            let (blocks, segments) = (1 + turn as u32 % 3, 1 + turn as u32 % 4);
            batch.check(&mut random, Method::Grid { capacity: 512, blocks, segments });
        }
    }
    // Several blocks share a sample only where a group has more keys than one block takes.
    let batch = Batch::random(&mut random, KeyType::I32, 1, 90_000, 500, 5);
    const { assert!(90_000 / (4 * 256) > BLOCK_GROUP_KEYS) };
    batch.check(&mut random, Method::Grid { capacity: 4096, blocks: 3, segments: 2 });
}

#[test]
fn lists_find_the_best_of_every_row() {
    let mut random = Random::new(34);
    for (key, columns, k, capacity) in [
        (KeyType::F32, 300, 300, 512),
        (KeyType::I32, 700, 40, 512),
        (KeyType::F16, 5000, 2500, 5024),
        (KeyType::U32, 9000, 4300, 9056),
        (KeyType::I32, 4200, 2000, 2048),
        (KeyType::Bf16, 2500, 2600, 2560),
    ] {
        let distinct = [1, 40, 500][random.below(3)];
        let batch = Batch::random(&mut random, key, 2, columns, distinct, k);
        batch.check(&mut random, Method::List { capacity, segments: 3 });
    }
}

#[test]
fn payloads_of_selected_positions_are_gathered() {
    let mut random = Random::new(35);
    for (rows, k, columns) in [(1, 1, 1), (3, 5, 7), (40, 13, 20)] {
        let stride = columns + 2;
        let starts: Vec<u64> = (0..rows as u64).map(|row| row * stride as u64 / 2).collect();
        let payloads: Vec<u64> = (0..rows * stride).map(|_| random.bits()).collect();
        let position = |random: &mut Random| if random.once_in(5) { NO_ROW } else { random.below(columns) as u32 };
        let positions: Vec<u32> = (0..rows * k).map(|_| position(&mut random)).collect();
        for with_starts in [false, true] {
            let (of, at) = (Buffer::from_slice(&payloads), Buffer::from_slice(&positions));
            let starts_buffer = Buffer::from_slice(&starts);
            let mut out = Buffer::<u64>::new_poisoned(rows * k);
            let launch = Gather::<u64> {
                payloads: of.as_ptr(),
                stride: stride as u64,
                starts: with_starts.then(|| starts_buffer.as_ptr()),
                positions: at.as_ptr(),
                out: out.as_mut_ptr(),
                k: k as u32,
                slots: (rows * k) as u64,
            };
            // SAFETY: positions are below `columns`, and rows · k results fit.
            unsafe { crate::launch(&Gather::<u64>::KERNEL, launch.config(), launch) };
            let start = |row: usize| if with_starts { starts[row] as usize } else { row * stride };
            let payload = |(slot, &at): (usize, &u32)| {
                if at == NO_ROW { EMPTY } else { payloads[start(slot / k) + at as usize] }
            };
            let expected: Vec<u64> = positions.iter().enumerate().map(payload).collect();
            assert_eq!(out.to_vec(), expected, "{rows} rows of {k}, starts: {with_starts}");
        }
    }
}
