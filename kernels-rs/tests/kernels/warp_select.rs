//! WarpSelect: every result of rows with few distinct keys, so that the k-th and the next differ by their ids only.
//!
//! No result tells if `WarpSelect::merge` leaves 1 instead of 0 entries waiting: the queues then have one empty place
//! more, and are merged earlier.

use cuda_std::emulator::Buffer;
use test_random::Random;
use warpann_kernels::NO_ROW;
use warpann_kernels::select::rows::{KeyTable, SelectedRows};
use warpann_kernels::select::warp_select::WarpSelectRows;

/// The best k of one row, from the position `from` of the sorted row on: values in their order, equal ones by id.
fn expected(keys: &[f32], ids: &[u32], largest: bool, from: usize, k: usize) -> (Vec<u32>, Vec<u32>) {
    let mut order: Vec<(f32, u32)> = keys.iter().copied().zip(ids.iter().copied()).collect();
    order.retain(|entry| entry.1 != NO_ROW);
    // Adding 0 makes -0 and +0 equal; NaN comes last in both directions.
    let place = |key: f32| if key.is_nan() { f32::NAN.abs() } else { (if largest { -key } else { key }) + 0.0 };
    order.sort_by(|a, b| place(a.0).total_cmp(&place(b.0)).then(a.1.cmp(&b.1)));
    let worst = if largest { f32::NEG_INFINITY } else { f32::INFINITY };
    let none = std::iter::repeat((worst, NO_ROW));
    let found = order.into_iter().skip(from).chain(none).take(k);
    found.map(|(key, id)| (if key.is_nan() { f32::NAN } else { key + 0.0 }.to_bits(), id)).unzip()
}

/// A batch of rows of one length, and how a launch cuts them.
struct Batch {
    keys: Vec<f32>,
    ids: Option<Vec<u32>>,
    columns: usize,
    largest: bool,
}

impl Batch {
    /// The keys and the ids or positions of the columns `from..to` of row `row`.
    fn part(&self, row: usize, from: usize, to: usize) -> (&[f32], Vec<u32>) {
        let at = row * self.columns + from..row * self.columns + to;
        let ids = self.ids.as_ref().map_or_else(|| (from as u32..to as u32).collect(), |ids| ids[at.clone()].to_vec());
        (&self.keys[at], ids)
    }

    /// Selects `k` after the first `skip` of each of `segments` pieces of a row, and compares every result.
    fn check(&self, k: usize, skip: usize, segments: usize) {
        let rows = self.keys.len() / self.columns;
        let piece = self.columns.div_ceil(segments);
        let stride = skip + k;
        let keys = Buffer::from_slice(&self.keys);
        let ids = self.ids.as_ref().map(|ids| Buffer::from_slice(ids));
        let mut out_keys = Buffer::<f32>::new_poisoned(rows * segments * stride);
        let mut out_ids = Buffer::<u32>::new_poisoned(rows * segments * stride);
        let mut launch = WarpSelectRows {
            table: KeyTable {
                keys: keys.as_ptr().as_bytes(),
                ids: ids.as_ref().map(Buffer::as_ptr),
                stride: self.columns as u64,
                starts: None,
                lengths: None,
                columns: self.columns as u32,
                flip: if self.largest { 0x8000_0000 } else { 0 },
            },
            segments: segments as u32,
            segment_columns: piece as u32,
            rows: rows as u32,
            k: skip as u32,
            skip: 0,
            out: SelectedRows {
                keys: out_keys.as_mut_ptr().as_bytes(),
                ids: out_ids.as_mut_ptr(),
                stride: stride as u32,
            },
        };
        for (k, skip) in [(skip, 0), (k, skip)] {
            (launch.k, launch.skip) = (k as u32, skip as u32);
            if k > 0 {
                // SAFETY: the arrays have rows · columns keys and rows · segments · stride results.
                unsafe { crate::launch(WarpSelectRows::kernel(launch.queue()), launch.config(), launch) };
            }
        }
        let (out_keys, out_ids) = (out_keys.to_vec(), out_ids.to_vec());
        for result in 0..rows * segments {
            let (row, segment) = (result / segments, result % segments);
            let (from, to) = (piece * segment, (piece * (segment + 1)).min(self.columns));
            let (keys, ids) = self.part(row, from.min(to), to);
            let (values, found) = expected(keys, &ids, self.largest, 0, stride);
            let at = result * stride..(result + 1) * stride;
            let own: Vec<u32> = out_keys[at.clone()].iter().map(|key| key.to_bits()).collect();
            let what = format!("k {k} after {skip}, {} columns, piece {segment} of {segments}", self.columns);
            assert_eq!((own, &out_ids[at]), (values, &found[..]), "{what}");
        }
    }
}

/// A batch with `distinct` different keys. With ids these are in random order, so an equal key with a lower id may
/// come late.
fn batch(random: &mut Random, rows: usize, columns: usize, distinct: usize, with_ids: bool) -> Batch {
    let keys = random.whole(rows * columns, distinct);
    let ids = with_ids.then(|| {
        let mut all = Vec::new();
        for _ in 0..rows {
            let mut ids: Vec<u32> = (0..columns as u32).collect();
            random.shuffle(&mut ids);
            all.extend(ids);
        }
        all
    });
    Batch { keys, ids, columns, largest: random.once_in(2) }
}

/// A bound of W[k − 2], or a bound that refuses keys equal to it, loses results here.
#[test]
fn no_result_is_lost_among_equal_keys() {
    let mut random = Random::new(19);
    let ks = [1, 2, 3, 7, 31, 32, 33, 63, 64, 65, 100, 127, 128, 129];
    for (number, k) in ks.into_iter().enumerate() {
        for columns in [1, k, 31 + number, 129, 500 + 30 * number, 1300] {
            let distinct = [1, 3, 40][random.below(3)];
            for with_ids in [false, true] {
                batch(&mut random, 2, columns, distinct, with_ids).check(k, 0, 1);
            }
        }
    }
}

/// Values at the ends of the order: both zeros, infinities, and NaN of both signs.
const SPECIAL: [f32; 8] = [0.0, -0.0, 1.0, -1.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, -f32::NAN];

#[test]
fn special_values_and_absent_ids_have_their_places() {
    let mut random = Random::new(20);
    for k in [1, 2, 33, 128] {
        for columns in [1, 5, 32, 127, 300] {
            let mut batch = batch(&mut random, 3, columns, 1, k != 33);
            batch.keys.fill_with(|| random.pick(&SPECIAL));
            let ids = batch.ids.iter_mut().flatten();
            ids.for_each(|id| {
                if random.once_in(3) {
                    *id = NO_ROW
                }
            });
            batch.check(k, 0, 1);
        }
    }
}

/// The second launch continues after the results of the first; a row that ends before has no more.
#[test]
fn later_passes_and_pieces_join_without_a_gap() {
    let mut random = Random::new(21);
    for (k, skip) in [(1, 1), (32, 5), (40, 32), (7, 130)] {
        for columns in [3, 40, 200, 400] {
            batch(&mut random, 2, columns, 4, columns != 40).check(k, skip, 1);
        }
    }
    for segments in [2, 3, 5] {
        for columns in [1, 4, 129, 1000] {
            batch(&mut random, 3, columns, 4, segments == 3).check(9, 0, segments);
        }
    }
}

/// The longest queues, whose merges differ by the number of registers.
#[test]
fn every_queue_keeps_its_best() {
    let mut random = Random::new(22);
    for k in [256, 257, 512, 513, 1024] {
        batch(&mut random, 1, k + k / 2, 50, true).check(k, 0, 1);
    }
}
