//! Filters, ranges, replaced and removed rows on the emulator, against a loop over all rows.

use std::collections::BTreeSet;

use half::{bf16, f16};
use test_random::Random;

use super::mask::MaskPlan;
use super::*;
use crate::device::open::open;
use crate::device::runtime::{Runtime, Stream};
use crate::metric::canonical;
use crate::neighbors::slots::Slots as ResultSlots;
use crate::product::gpu::VectorShape;
use crate::search::Range as Within;
use crate::{Device, Element, FlatIndex, Metric};

/// A base in a back end, with a copy of its rows.
struct Case<T: Element> {
    index: FlatDevice,
    rows: Vec<T>,
    queries: Vec<T>,
    dim: usize,
    metric: Metric,
    random: Random,
}

/// Small integers, so that distances occur several times.
fn components<T: Element>(random: &mut Random, count: usize) -> Vec<T> {
    let lowest = if T::TYPE == crate::ElementType::U8 { 0.0 } else { -3.0 };
    (0..count).map(|_| T::from_f32((random.unit_f32() * 7.0).floor() + lowest)).collect()
}

impl<T: Element> Case<T> {
    fn new(metric: Metric, dim: usize, (rows, queries): (usize, usize), budget: Option<u64>) -> Self {
        let mut random = Random::new(11);
        let (rows, queries) = (components(&mut random, rows * dim), components(&mut random, queries * dim));
        Self::of(metric, dim, rows, queries, budget)
    }

    fn of(metric: Metric, dim: usize, rows: Vec<T>, queries: Vec<T>, budget: Option<u64>) -> Self {
        let runtime = open(Device::Emulator).unwrap().1.unwrap();
        let shape = VectorShape::of_rows(T::TYPE, metric, dim);
        let mut index = FlatDevice::new(runtime, shape, budget).unwrap();
        index.add(VectorSlice::of(&rows, dim)).unwrap();
        Case { index, rows, queries, dim, metric, random: Random::new(5) }
    }

    fn streamed(&self) -> bool {
        matches!(self.index.rows, BaseRows::Host { .. })
    }

    /// About one row of `of`; none if `of` is 0.
    fn some(&mut self, of: usize) -> Bitset {
        (0..self.index.len()).map(|_| of > 0 && self.random.once_in(of)).collect()
    }

    /// All accepted rows of each query with their distances, best first, equal distances by lower row.
    fn sorted(&self, among: Option<&Bitset>) -> Vec<Vec<(u64, f32)>> {
        let of_query = |query: &[T]| {
            let accepted =
                self.rows.chunks(self.dim).enumerate().filter(|(row, _)| among.is_none_or(|bits| bits.get(*row)));
            let distance = |row: &[T]| canonical(self.metric, query, row);
            let mut all: Vec<(u64, f32)> = accepted.map(|(number, row)| (number as u64, distance(row))).collect();
            all.sort_by(|a, b| {
                let order = a.1.partial_cmp(&b.1).unwrap();
                let order = if !self.metric.larger_is_better() { order } else { order.reverse() };
                order.then(a.0.cmp(&b.0))
            });
            all
        };
        self.queries.chunks(self.dim).map(of_query).collect()
    }

    /// The request of a search of the queries among these rows.
    fn request<'a>(&'a self, among: Option<&'a Bitset>) -> SearchRequest<'a> {
        SearchRequest { filter: among, ..SearchRequest::among_all(VectorSlice::of(&self.queries, self.dim)) }
    }

    fn check_search(&self, k: usize, among: Option<&Bitset>) {
        let count = self.queries.len() / self.dim;
        let (mut ids, mut distances) = (vec![7; count * k], vec![7.0; count * k]);
        self.index.search(&self.request(among), k, &mut ids, &mut distances).unwrap();
        self.check_found(k, among, &ids, &distances);
    }

    /// Replaces the rows with these numbers, in the index and in the copy.
    fn replace(&mut self, numbers: &[u64], rows: &[T]) {
        self.index.replace(numbers, VectorSlice::of(rows, self.dim)).unwrap();
        for (&number, row) in numbers.iter().zip(rows.chunks(self.dim)) {
            self.rows[number as usize * self.dim..][..self.dim].copy_from_slice(row);
        }
    }

    /// The value that the filter adds to the product of each resident row, with padding, after preparation; then
    /// `overwrite` changes them.
    fn values(&self, overwrite: impl FnOnce(&mut [f32])) -> Vec<f32> {
        let BaseRows::Device(resident) = &self.index.rows else { panic!("the rows are streamed") };
        let block = self.index.prepared_block(resident).unwrap();
        let (runtime, there) = (&self.index.runtime, block.base.part(block.base.layout.values));
        let mut values = vec![0.0; there.len()];
        // SAFETY: the memory of the resident rows has these values, and nothing else uses it.
        unsafe {
            runtime.copy_to_host(&Stream::EMULATOR, &mut values, there).unwrap();
            let found = values.clone();
            overwrite(&mut values);
            runtime.copy_to_device(&Stream::EMULATOR, there, &values).unwrap();
            found
        }
    }

    /// Adds rows from device memory.
    fn add_from_device(&mut self, rows: &[T]) -> Result<()> {
        let runtime = self.index.runtime.clone();
        let memory = runtime.allocate(size_of_val(rows)).unwrap();
        let (there, stream) = (runtime.scratch(&memory), runtime.stream().unwrap());
        let mut layout = Layout::default();
        let there = there.at(layout.array::<u8>(size_of_val(rows)));
        // SAFETY: the memory has room for the rows.
        unsafe {
            runtime.copy_to_device(&stream, there, bytemuck::cast_slice(rows)).unwrap();
            assert!(self.index.add_from_device(&stream, there.into(), rows.len() / self.dim)?, "they fit");
        }
        self.rows.extend_from_slice(rows);
        Ok(())
    }

    /// The same search from device memory to device memory, with other ids than rows, and behind the queries one that
    /// is not finite if the element type has such numbers.
    fn check_enqueued(&self, k: usize, among: Option<&Bitset>) {
        let count = self.queries.len() / self.dim;
        let mut queries = self.queries.clone();
        let bad = !T::from_f32(f32::NAN).to_f32().is_finite();
        if bad {
            queries.extend((0..self.dim).map(|i| if i + 1 == self.dim { T::from_f32(f32::NAN) } else { T::default() }));
        }
        let asked = count + usize::from(bad);
        let names: Vec<u64> = (0..self.index.len() as u64).map(|row| 3 * row + 1).collect();
        let search = self.index.plan_search(asked + 1, k, &self.request(among), Some(names)).unwrap();
        assert!(search.bytes() >= (queries.len() * size_of::<T>()) as u64);
        let runtime = &self.index.runtime;
        let mut layout = Layout::default();
        let (rows, ids, distances) =
            (layout.array::<T>(queries.len()), layout.array(asked * k), layout.array(asked * k));
        let (memory, stream) = (runtime.allocate(layout.bytes()).unwrap(), runtime.stream().unwrap());
        let scratch = runtime.scratch(&memory);
        let (rows, ids, distances) = (scratch.at(rows), scratch.at(ids), scratch.at(distances));
        let (mut found_ids, mut found_distances) = (vec![7; asked * k], vec![7.0; asked * k]);
        // SAFETY: the memory has room for the queries and their results.
        unsafe {
            runtime.copy_to_device(&stream, rows.as_bytes(), bytemuck::cast_slice(&queries)).unwrap();
            search.enqueue(&stream, rows.as_bytes().into(), asked, (ids, distances), None).unwrap();
            runtime.copy_to_host(&stream, &mut found_ids, ids).unwrap();
            runtime.copy_to_host(&stream, &mut found_distances, distances).unwrap();
        }
        let refused = (found_ids.split_off(count * k), found_distances.split_off(count * k));
        assert!(refused.0.iter().all(|&id| id == NONE) && refused.1.iter().all(|distance| distance.is_nan()));
        found_ids.iter_mut().filter(|id| **id != NONE).for_each(|id| *id = (*id - 1) / 3);
        self.check_found(k, among, &found_ids, &found_distances);
    }

    /// Range searches from device memory to device memory, with `room` places for each query: radii that are the
    /// distances of some ranks of the first query, numbers next to them, and infinities.
    fn check_enqueued_ranges(&self, room: usize, ranks: &[usize], among: Option<&Bitset>) {
        let count = self.queries.len() / self.dim;
        let search = self.index.plan_search(count, room, &self.request(among), None).unwrap();
        let runtime = &self.index.runtime;
        let mut layout = Layout::default();
        let (rows, counts) = (layout.array::<T>(self.queries.len()), layout.array::<u32>(count));
        let (ids, distances) = (layout.array(count * room), layout.array(count * room));
        let (memory, stream) = (runtime.allocate(layout.bytes()).unwrap(), runtime.stream().unwrap());
        let scratch = runtime.scratch(&memory);
        let (rows, ids, distances) = (scratch.at(rows), scratch.at(ids), scratch.at(distances));
        let counts = scratch.at(counts);
        let all = self.sorted(among);
        let nearest = self.sorted(None).remove(0);
        let at_ranks = ranks.iter().flat_map(|&rank| [nearest[rank].1, nearest[rank].1.next_down()]);
        for radius in at_ranks.chain([f32::INFINITY, f32::NEG_INFINITY]) {
            let (mut found_ids, mut found_distances) = (vec![7; count * room], vec![7.0; count * room]);
            let mut found_counts = vec![7u32; count];
            // SAFETY: the memory has room for the queries and their results.
            unsafe {
                runtime.copy_to_device(&stream, rows.as_bytes(), bytemuck::cast_slice(&self.queries)).unwrap();
                let range = Some(Within { radius, counts });
                search.enqueue(&stream, rows.as_bytes().into(), count, (ids, distances), range).unwrap();
                runtime.copy_to_host(&stream, &mut found_ids, ids).unwrap();
                runtime.copy_to_host(&stream, &mut found_distances, distances).unwrap();
                runtime.copy_to_host(&stream, &mut found_counts, counts).unwrap();
            }
            let near =
                |distance: f32| if !self.metric.larger_is_better() { distance <= radius } else { distance >= radius };
            for (query, expected) in all.iter().enumerate() {
                let mut expected: Vec<_> = expected.iter().copied().filter(|&(_, distance)| near(distance)).collect();
                let what = format!("{} {} query {query} radius {radius} room {room}", T::TYPE, self.metric);
                assert_eq!(found_counts[query] as usize, expected.len(), "{what}");
                expected.resize(room, (NONE, self.metric.worst()));
                let slots = query * room..(query + 1) * room;
                let found = found_ids[slots.clone()].iter().zip(&found_distances[slots]);
                assert!(found.zip(expected).all(|((&id, d), e)| (id, d.to_bits()) == (e.0, e.1.to_bits())), "{what}");
            }
        }
    }

    /// Number of queries whose lists of candidates overflow in a search of the rows whose bits are set, or of all rows.
    fn overflowed(&self, k: usize, among: Option<&Bitset>) -> usize {
        let BaseRows::Device(resident) = &self.index.rows else { panic!("the rows are streamed") };
        let mut block = self.index.prepared_block(resident).unwrap();
        let slots = self.queries.len() / self.dim * k;
        let (mut ids, mut distances) = (vec![7; slots], vec![7.0; slots]);
        let slots = ResultSlots { k, worst: self.metric.worst(), ids: &mut ids, distances: &mut distances };
        let (runtime, queries) = (&self.index.runtime, VectorSlice::of(&self.queries, self.dim));
        let mut layout = Layout::default();
        let plan = among.map(|among| (MaskPlan::reserve(&mut layout, &block, among), among));
        let memory = runtime.allocate(layout.bytes()).unwrap();
        let found = self.index.lanes.with(runtime, |lane| {
            if let Some((plan, among)) = plan {
                let on = OnStream { runtime, stream: &lane.stream };
                // SAFETY: the memory has room for the mask, and the block is prepared.
                block.mask = Some(unsafe { block.make_mask(on, plan, runtime.scratch(&memory), among)? });
            }
            block.search_tile(runtime, lane, queries, slots)
        });
        found.unwrap()
    }

    /// Compares results with a loop over all rows.
    fn check_found(&self, k: usize, among: Option<&Bitset>, ids: &[u64], distances: &[f32]) {
        for (query, mut expected) in self.sorted(among).into_iter().enumerate() {
            expected.resize(k.max(expected.len()), (NONE, self.metric.worst()));
            for (slot, (id, distance)) in expected[..k].iter().enumerate() {
                let at = query * k + slot;
                let what = format!("{} {} query {query} slot {slot} of {k}", T::TYPE, self.metric);
                assert_eq!((ids[at], distances[at].to_bits()), (*id, distance.to_bits()), "{what}");
            }
        }
    }

    fn check_range(&self, radius: f32, among: Option<&Bitset>) {
        let found = self.index.range_search(VectorSlice::of(&self.queries, self.dim), radius, among).unwrap();
        assert_eq!(found.queries(), self.queries.len() / self.dim);
        for (query, mut expected) in self.sorted(among).into_iter().enumerate() {
            let near =
                |distance: f32| if !self.metric.larger_is_better() { distance <= radius } else { distance >= radius };
            expected.retain(|&(_, distance)| near(distance));
            let (ids, distances) = found.row(query);
            let what = format!("{} {} query {query} radius {radius}", T::TYPE, self.metric);
            assert_eq!(ids, expected.iter().map(|row| row.0).collect::<Vec<_>>(), "{what}");
            let bits = |distances: Vec<f32>| distances.iter().map(|distance| distance.to_bits()).collect::<Vec<_>>();
            assert_eq!(bits(distances.to_vec()), bits(expected.iter().map(|row| row.1).collect()), "{what}");
        }
    }

    /// Radii that are the distances of some ranks of the first query, numbers next to them, and infinities.
    fn check_ranges(&self, ranks: &[usize], among: Option<&Bitset>) {
        let sorted = self.sorted(None).remove(0);
        for &rank in ranks {
            let radius = sorted[rank].1;
            self.check_range(radius, among);
            self.check_range(
                if !self.metric.larger_is_better() { radius.next_down() } else { radius.next_up() },
                among,
            );
        }
        for radius in [f32::INFINITY, f32::NEG_INFINITY] {
            self.check_range(radius, among);
        }
    }
}

/// Filters that accept all rows, a part of them, and none.
fn every_share<T: Element>(dim: usize) {
    for &metric in Metric::of_element(T::TYPE) {
        let mut case = Case::<T>::new(metric, dim, (260, 3), None);
        case.check_search(4, None);
        // All distances, of most rows, for more neighbours than rows.
        let most = case.some(2);
        case.check_enqueued(300, Some(&most));
        for of in [1, 2, 10, 100, 0] {
            let among = case.some(of);
            case.check_search(4, Some(&among));
            // Most of the rows, in place. For one metric also all rows, copies of some, and none.
            if of == 2 || of != 100 && metric == Metric::L2 {
                case.check_enqueued(4, Some(&among));
            }
        }
    }
}

/// Dimensions for which rows consist of words of each size, and of more words than a warp has lanes.
#[test]
fn a_search_among_some_rows_equals_one_of_these_rows() {
    every_share::<f32>(9);
    every_share::<f16>(20);
    every_share::<bf16>(8);
    every_share::<u8>(9);
    every_share::<i8>(132);
}

/// Rows that a search leaves out although no bound excludes them: the norms have no bound, or equal distances fill the
/// lists.
#[test]
fn left_out_rows_are_never_found() {
    let mut random = Random::new(21);
    let mut rows =
        |count: usize, scale: f32| -> Vec<f32> { (0..count * 6).map(|_| random.signed_unit() * scale).collect() };
    let far = 2f32.powi(62);
    for metric in Metric::OF_NUMBERS {
        let (base, queries) = (rows(700, far), rows(3, 1.0));
        let mut case = Case::<f32>::of(metric, 6, base, queries, None);
        let among = case.some(2);
        assert!(case.index.mostly(&among, 3, 5).is_some());
        case.check_search(5, Some(&among));
        case.check_enqueued(5, Some(&among));
    }
    let equal = rows(1, 1.0).repeat(5_000);
    let mut case = Case::<f32>::of(Metric::L2, 6, equal, rows(2, 1.0), None);
    let among = case.some(2);
    assert!(case.index.mostly(&among, 2, 3).is_some());
    assert_eq!(case.overflowed(3, Some(&among)), 2);
    case.check_search(3, Some(&among));
    case.check_enqueued(3, Some(&among));
}

/// Rows of which nearly all are the first query. Lists overflow, and a search on the device repairs them itself.
fn repairs<T: Element>(metric: Metric) {
    let mut random = Random::new(22);
    let queries = components::<T>(&mut random, 2 * 6);
    let mut rows = components::<T>(&mut random, 40 * 6);
    rows.extend(queries[..6].repeat(1_260));
    let case = Case::of(metric, 6, rows, queries, None);
    assert!(case.overflowed(5, None) > 0, "{} {metric}", T::TYPE);
    case.check_search(5, None);
    case.check_enqueued(5, None);
}

#[test]
fn lists_that_overflow_are_repaired_on_the_device() {
    repairs::<f16>(Metric::Cosine);
    repairs::<bf16>(Metric::L2);
    repairs::<u8>(Metric::Cosine);
    repairs::<u8>(Metric::Hamming);
    repairs::<i8>(Metric::L2);
    // Infinite bounds: all distances differ. More neighbours than the queue of a warp has entries for.
    let mut random = Random::new(23);
    let mut numbers = |count: usize, scale: f32| (0..count * 6).map(|_| random.signed_unit() * scale).collect();
    let case = Case::<f32>::of(Metric::InnerProduct, 6, numbers(1_300, 2f32.powi(62)), numbers(2, 1.0), None);
    assert_eq!(case.overflowed(40, None), 2);
    case.check_search(40, None);
    case.check_enqueued(40, None);
}

/// Changes of a few rows between searches, which prepare only the tiles of these rows: the others keep their copies,
/// centre and scale.
#[test]
fn changes_of_some_tiles_are_prepared_alone() {
    for metric in Metric::OF_NUMBERS {
        let mut case = Case::<f32>::new(metric, 9, (700, 3), None);
        case.check_search(4, None);
        let mut random = Random::new(8);
        let numbers = |first: usize, count: usize| (first as u64..(first + count) as u64).collect::<Vec<u64>>();
        let mut replaced = |case: &mut Case<f32>, first: usize, count: usize, scale: f32| {
            let rows: Vec<f32> = components::<f32>(&mut random, count * 9).into_iter().map(|x| x * scale).collect();
            case.replace(&numbers(first, count), &rows);
            case.check_search(4, None);
            case.check_range(if metric == Metric::L2 { 40.0 } else { 3.0 }, None);
        };
        replaced(&mut case, 300, 1, 1.0);
        replaced(&mut case, 120, 20, 0.5);
        // The first, the third and the last of six tiles, in one change and in several.
        let spread: Vec<f32> = components(&mut Random::new(10), 4 * 9);
        case.replace(&[5, 256, 380, 699], &spread);
        case.check_search(4, None);
        for number in [3, 690] {
            case.replace(&[number], &spread[..9]);
        }
        case.check_search(4, None);
        case.check_enqueued(4, None);
        let more: Vec<f32> = components(&mut Random::new(9), 150 * 9);
        for rows in more.chunks(50 * 9) {
            let mut bad = rows.to_vec();
            bad[9 * 7 + 5] = f32::NEG_INFINITY;
            assert!(matches!(case.add_from_device(&bad), Err(Error::NotFinite { row: 7, column: 5, .. })));
            case.add_from_device(rows).unwrap();
            case.check_search(4, None);
        }
        for len in [771, 768, 640, 5] {
            case.index.truncate(len);
            case.rows.truncate(len * 9);
            case.check_search(4, None);
            let rows = &more[..9 * 3];
            case.index.add(VectorSlice::of(rows, 9)).unwrap();
            case.rows.extend_from_slice(rows);
            case.check_search(4, None);
        }
        // A greater component changes the scale of all copies.
        replaced(&mut case, 2, 2, 1000.0);
        replaced(&mut case, 3, 1, 1.0);
    }
}

/// Values of rows become marks. After a change, the tiles of the changed rows have the values of a new index, and the
/// others have the marks.
#[test]
fn only_the_tiles_of_changed_rows_are_prepared() {
    let (rows, dim) = (components::<f32>(&mut Random::new(12), 1_000 * 6), 6);
    let mut case = Case::<f32>::of(Metric::L2, dim, rows.clone(), rows[..dim].to_vec(), None);
    let mark = |values: &mut [f32]| values.fill(-7.0);
    case.values(mark);
    let new =
        [[3.0, 0.0, 0.0, 0.0, 0.0, 0.0], [0.0, 3.0, 0.0, 0.0, 0.0, 0.0], [-3.0, 0.0, 0.0, 0.0, 0.0, 0.0]].concat();
    case.replace(&[130, 520, 999], &new);
    let values = case.values(|_| {});
    // The centre of whole numbers is the rounded mean, and stays that of the first rows.
    let centre: Vec<f32> =
        (0..dim).map(|at| (rows.iter().skip(at).step_by(dim).sum::<f32>() / 1_000.0).round()).collect();
    for (row, value) in values.iter().enumerate() {
        let expected = match case.rows.chunks(dim).nth(row) {
            _ if ![1, 4, 7].contains(&(row / 128)) => -7.0,
            Some(row) => row.iter().zip(&centre).map(|(x, c)| (x - c) * (x - c)).sum(),
            None => f32::INFINITY,
        };
        assert_eq!(*value, expected, "row {row}");
    }
}

/// A budget of `bytes` in which the base is resident or streamed.
fn in_pieces<T: Element>(metric: Metric, budget: u64, streamed: bool) {
    let mut case = Case::<T>::new(metric, 10, (1_500, 2), Some(budget));
    assert_eq!(case.streamed(), streamed);
    let (on_host, _) = case.index.bytes();
    assert_eq!(on_host > 0, streamed);
    for of in [1, 2, 10, 0] {
        let among = case.some(of);
        case.check_search(3, Some(&among));
        if of > 1 {
            case.check_ranges(&[20], Some(&among));
        }
    }
    let (on_host, on_device) = case.index.bytes();
    assert_eq!((on_host > 0, on_device > 0, on_device <= budget), (streamed, true, true));
}

#[test]
fn small_budgets_gather_and_stream_in_pieces() {
    in_pieces::<f32>(Metric::L2, 400 << 10, false);
    in_pieces::<f16>(Metric::InnerProduct, 350 << 10, false);
    in_pieces::<f32>(Metric::Cosine, 200 << 10, true);
    in_pieces::<u8>(Metric::L2, 200 << 10, false);
    in_pieces::<u8>(Metric::L2, 44 << 10, true);
    in_pieces::<u8>(Metric::Hamming, 44 << 10, true);
    in_pieces::<i8>(Metric::Cosine, 56 << 10, true);
}

/// Lists that suffice, that overflow and become longer, and that are given up; with ties at the radius.
#[test]
fn ranges_are_complete() {
    for metric in Metric::OF_NUMBERS {
        Case::<f32>::new(metric, 6, (300, 4), None).check_ranges(&[0, 9, 60, 150, 299], None);
    }
    Case::<u8>::new(Metric::Hamming, 6, (300, 4), None).check_ranges(&[0, 9, 60, 150, 299], None);
    let mut case = Case::<i8>::new(Metric::L2, 6, (300, 4), None);
    let among = case.some(3);
    case.check_ranges(&[0, 40, 200], Some(&among));
    let none = case.some(0);
    case.check_range(3.0, Some(&none));
}

/// Fewer and more rows within the radius than a query has places: by all distances and by the filter, in place, among
/// copies, and among none.
#[test]
fn enqueued_ranges_are_counted_completely() {
    for metric in Metric::OF_NUMBERS {
        let mut case = Case::<f32>::new(metric, 6, (300, 4), None);
        case.check_enqueued_ranges(20, &[0, 9, 150], None);
        let (most, few, none) = (case.some(2), case.some(10), case.some(0));
        case.check_enqueued_ranges(33, &[5, 200], Some(&most));
        case.check_enqueued_ranges(5, &[5, 200], Some(&few));
        case.check_enqueued_ranges(5, &[5], Some(&none));
        Case::<u8>::new(metric, 7, (1_300, 2), None).check_enqueued_ranges(40, &[3, 900], None);
    }
    Case::<f16>::new(Metric::Cosine, 5, (200, 3), None).check_enqueued_ranges(300, &[20], None);
    Case::<u8>::new(Metric::Hamming, 7, (1_300, 2), None).check_enqueued_ranges(40, &[3, 900], None);
}

/// Radii and norms of very different magnitudes, rows far from the origin, and distances that overflow.
#[test]
fn ranges_are_complete_for_any_magnitude() {
    let mut random = Random::new(3);
    let mut numbers = |count: usize, scale: f32, offset: f32| -> Vec<f32> {
        (0..count * 4).map(|_| (random.unit_f32() - 0.5) * scale + offset).collect()
    };
    let cases = [
        [numbers(130, 1e-20, 0.0), numbers(2, 1e-20, 0.0)],
        [numbers(130, 1.0, 1e4), numbers(2, 1.0, 1e4)],
        [[numbers(65, 1e-3, 0.0), numbers(65, 1e15, 0.0)].concat(), numbers(2, 1.0, 0.0)],
        [
            [numbers(65, 1.0, 0.0), numbers(65, 3e38, 0.0)].concat(),
            [numbers(1, 1.0, 0.0), numbers(1, 3e38, 0.0)].concat(),
        ],
        [vec![0.0; 130 * 4], [vec![0.0; 4], numbers(1, 1.0, 0.0)].concat()],
    ];
    for [rows, queries] in cases {
        for metric in Metric::OF_NUMBERS {
            let case = Case::of(metric, 4, rows.clone(), queries.clone(), None);
            case.check_ranges(&[0, 20], None);
            for radius in [0.0, -1.0, 1e30, f32::MIN] {
                case.check_range(radius, None);
            }
        }
    }
}

fn changes<T: Element>(metric: Metric, budget: Option<u64>, streamed: bool, streamed_at_the_end: bool) {
    let mut case = Case::<T>::new(metric, 7, (if budget.is_some() { 1_300 } else { 200 }, 2), budget);
    assert_eq!(case.streamed(), streamed);
    case.check_search(2, None);
    let new = components::<T>(&mut case.random, 60 * case.dim);
    let len = case.index.len() as u64;
    let scattered = [2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59, len - 2];
    for numbers in [vec![], vec![0], (100..160).collect(), (len - 3..len).collect(), scattered.to_vec()] {
        let new = &new[..numbers.len() * case.dim];
        case.index.replace(&numbers, VectorSlice::of(new, case.dim)).unwrap();
        for (&number, new) in numbers.iter().zip(new.chunks(case.dim)) {
            case.rows[number as usize * case.dim..][..case.dim].copy_from_slice(new);
        }
        case.check_search(2, None);
    }
    let all = case.some(1);
    case.index.retain(&all).unwrap();
    case.check_search(2, None);
    for of in [20, 2, 0] {
        // The first removes about one row of 20.
        let mut kept = case.some(of);
        if of == 20 {
            kept = (0..kept.len()).map(|row| !kept.get(row)).collect();
        }
        let dim = case.dim;
        let rows = case.rows.chunks(dim).enumerate().filter(|(row, _)| kept.get(*row));
        case.rows = rows.flat_map(|(_, row)| row.to_vec()).collect();
        case.index.retain(&kept).unwrap();
        assert_eq!(case.index.len(), kept.count_ones());
        let mut fetched = vec![T::default(); case.rows.len()];
        case.index.rows(0, VectorSliceMut::of(&mut fetched)).unwrap();
        assert!(fetched == case.rows);
        if of > 0 {
            case.check_search(2, None);
            case.check_ranges(&[5], None);
        }
    }
    // The empty index takes rows again.
    case.index.add(VectorSlice::of(&new, case.dim)).unwrap();
    case.rows = new;
    case.check_search(2, None);
    assert_eq!(case.streamed(), streamed_at_the_end);
}

#[test]
fn replaced_and_removed_rows_are_not_found() {
    changes::<f32>(Metric::L2, None, false, false);
    changes::<u8>(Metric::Cosine, None, false, false);
    changes::<f32>(Metric::InnerProduct, Some(160 << 10), true, true);
    // Old and new rows do not fit together, so they move through the host.
    changes::<f16>(Metric::L2, Some(310 << 10), false, false);
}

/// The centre of the prepared rows.
fn centre_of(index: &FlatDevice) -> Vec<f32> {
    let BaseRows::Device(resident) = &index.rows else { panic!("the rows are streamed") };
    let set = index.prepared_block(resident).unwrap().base;
    let mut centre = vec![0.0; index.shape.dim];
    // SAFETY: the set has a centre of at least `dim` components.
    unsafe { index.runtime.copy_to_host(&Stream::EMULATOR, &mut centre, set.centre()).unwrap() };
    centre
}

/// The bounds of the filter grow with the distance from the centre, so a centre of rows that are gone makes every
/// search slow.
#[test]
fn the_centre_is_that_of_the_rows_that_are_there() {
    const DIM: usize = 8;
    let rows = |count: usize, around: f32| -> Vec<f32> {
        let mut random = Random::new(count as u64);
        (0..count * DIM).map(|_| around + random.unit_f32()).collect()
    };
    let shape = VectorShape::new(crate::ElementType::F32, Metric::L2, DIM);
    let first = || {
        let mut index = FlatDevice::new(Runtime::EMULATOR, shape, None).unwrap();
        index.add(VectorSlice::of(&rows(600, 0.0), DIM)).unwrap();
        assert!(centre_of(&index).iter().all(|x| (0.3..0.7).contains(x)));
        index
    };
    let others = rows(1_000, 1_000.0);
    let others = VectorSlice::of(&others, DIM);
    let near = |index: &FlatDevice, what: &str| {
        let centre = centre_of(index);
        assert!(centre.iter().all(|x| (600.0..1_001.0).contains(x)), "{what}: {centre:?}");
    };
    let mut cleared = first();
    cleared.truncate(0);
    cleared.add(others).unwrap();
    near(&cleared, "cleared");
    let mut removed = first();
    removed.add(others).unwrap();
    removed.retain(&(0..1_600).map(|row| row >= 600).collect()).unwrap();
    near(&removed, "the first are removed");
    let mut replaced = first();
    replaced.replace(&(0..600).collect::<Vec<_>>(), others.part(0..600)).unwrap();
    near(&replaced, "replaced");
    let mut outnumbered = first();
    outnumbered.add(others).unwrap();
    near(&outnumbered, "outnumbered");
    // Fewer changes keep the centre, and so the copies of the other rows.
    let mut changed = first();
    let centre = centre_of(&changed);
    changed.replace(&[3, 5], others.part(0..2)).unwrap();
    changed.truncate(590);
    assert_eq!(centre_of(&changed), centre);
}

/// Queries with sets of their own: several sets in one search, sets that have one of their own, and sets for whose
/// lists there is no memory.
#[test]
fn queries_with_sets_of_their_own_find_their_rows() {
    // Returns whether rows are streamed, and the number of searches; `None` if there is too little memory for a search
    // of one set as well.
    fn check<T: Element>(metric: Metric, rows: usize, budget: Option<u64>, k: usize) -> Option<(bool, u64)> {
        let mut case = Case::<T>::new(metric, 5, (rows, 9), budget);
        // No row, few, a half, all; of few rows the numbers are shorter than the bits.
        let sets = [0, 60, 2, 1, 60].map(|of| case.some(of));
        let places = [0..1, 1..3, 3..4, 4..8, 8..9];
        let row_sets: Vec<sets::RowSet<'_>> = sets
            .iter()
            .zip(places)
            .map(|(rows, queries)| sets::RowSet { rows, count: rows.count_ones(), queries })
            .collect();
        let (mut ids, mut distances) = (vec![7; 9 * k], vec![7.0; 9 * k]);
        let queries = VectorSlice::of(&case.queries, case.dim);
        let searches = match case.index.search_sets(queries, &row_sets, k, (&mut ids, &mut distances)) {
            Err(error @ Error::OutOfDeviceMemory { .. }) => {
                let mut alone = row_sets.iter().map(|set| {
                    let (some, count) = (queries.part(set.queries.clone()), set.queries.len() * k);
                    let request = SearchRequest { filter: Some(set.rows), ..SearchRequest::among_all(some) };
                    case.index.search(&request, k, &mut ids[..count], &mut distances[..count])
                });
                assert!(alone.any(|result| result.is_err()), "{metric:?}, {budget:?}: {error}");
                return None;
            }
            searches => searches.unwrap(),
        };
        for set in &row_sets {
            let sorted = case.sorted(Some(set.rows));
            for query in set.queries.clone() {
                let mut expected = sorted[query].clone();
                expected.resize(expected.len().max(k), (NONE, metric.worst()));
                let found = ids[query * k..][..k].iter().copied().zip(distances[query * k..][..k].iter().copied());
                assert!(found.eq(expected[..k].iter().copied()), "{metric:?}, {rows} rows, {budget:?}, query {query}");
            }
        }
        Some((case.streamed(), searches))
    }
    for metric in Metric::OF_NUMBERS {
        // 300 rows for four queries are too many products for a launch with others.
        assert_eq!(check::<f32>(metric, 300, None, 6), Some((false, 2)));
        assert_eq!(check::<f16>(metric, 90, None, 100), Some((false, 1)));
        assert_eq!(check::<u8>(metric, 90, None, 1), Some((false, 1)));
    }
    assert_eq!(check::<u8>(Metric::Hamming, 90, None, 1), Some((false, 1)));
    // With too little memory the rows are streamed, and each set has a search of its own.
    let budgets = [100_000, 200_000, 300_000, 400_000, 600_000, 800_000, 1_600_000];
    let outcomes: Vec<_> =
        budgets.into_iter().filter_map(|budget| check::<f32>(Metric::L2, 3_000, Some(budget), 6)).collect();
    assert!(outcomes.contains(&(true, 5)) && outcomes.contains(&(false, 3)), "{outcomes:?}");
    assert!(outcomes.iter().all(|&(streamed, searches)| !streamed || searches == 5), "{outcomes:?}");
}

/// Versions on the emulator that change and go in any order, also several that follow the same one, against versions on
/// the CPU. Some take the rows that a former version has left.
#[test]
fn versions_take_rows_that_others_leave() {
    const DIM: usize = 5;
    let (mut caught_up, mut copied) = (0, 0);
    for metric in Metric::OF_NUMBERS {
        let mut random = Random::new(metric as u64 + 5);
        let rows = components::<f32>(&mut random, 700 * DIM);
        let made = |device: Device| {
            let mut index = FlatIndex::<f32>::new(DIM, metric, device).unwrap();
            index.add(&rows).unwrap();
            index
        };
        let mut all = vec![(made(Device::Emulator), made(Device::Cpu))];
        for step in 0..160u64 {
            let at = random.below(all.len());
            if all.len() < 2 || all.len() < 5 && random.below(4) == 0 {
                let both = (all[at].0.snapshot(), all[at].1.snapshot());
                all.push(both);
            } else if random.below(5) == 0 {
                drop(all.swap_remove(at));
                continue;
            }
            // Mostly one version follows the other, and the former one goes.
            let next = (all[at].0.snapshot(), all[at].1.snapshot());
            let former = (random.below(4) > 0).then(|| std::mem::replace(&mut all[at], next));
            let (index, expected) = &mut all[at];
            let device = index.kind.one_device().unwrap();
            let BaseRows::Device(resident) = &device.rows else { panic!("the rows are streamed") };
            let bytes = set_layout(device.shape, resident.capacity).1.bytes() as u64;
            let left = device.spare.take(bytes);
            let is_near = left.map(|left| {
                let is_near = device.is_near(&left, resident);
                device.spare.keep(left, bytes, device.budget);
                is_near
            });
            let is_kept = device.spare.bytes() > 0;
            let ids = expected.ids();
            let new = components::<f32>(&mut random, 300 * DIM);
            // Few rows or many, the last of all, and rows that move together.
            let (count, kind) = (if random.below(8) > 0 { 3 } else { 300 }, random.below(8));
            let some: Vec<u64> =
                BTreeSet::from_iter((0..count).map(|_| random.below(ids.len() + 40) as u64)).into_iter().collect();
            for index in [&mut *index, expected] {
                match kind {
                    0 => index.add(&new[..count * DIM]).unwrap(),
                    1 => index.remove(&ids[ids.len() - count.min(ids.len() / 2)..]).unwrap(),
                    2 => {
                        index.remove(&ids[..3]).unwrap();
                        index.compact().unwrap();
                    }
                    _ => _ = index.upsert(&new[..some.len() * DIM], &some).unwrap(),
                }
            }
            let takes_rows = is_kept && index.kind.one_device().unwrap().spare.bytes() == 0;
            caught_up += usize::from(takes_rows && is_near == Some(true));
            copied += usize::from(takes_rows && is_near == Some(false));
            // Not every version is searched, so that some are not prepared.
            drop(former);
            if random.below(5) > 0 {
                let (k, queries) = (1 + random.below(9), &new[..20 * DIM]);
                let found = expected.search(queries, k).unwrap();
                assert_eq!(index.search(queries, k).unwrap(), found, "{metric:?}, {step}");
            }
            for (index, expected) in &all {
                let ids = expected.ids();
                assert_eq!(index.ids(), ids, "{metric:?}, {step}");
                let id = ids[random.below(ids.len())];
                assert_eq!(index.vector(id).unwrap(), expected.vector(id).unwrap(), "{metric:?}, {step}, {id}");
            }
        }
    }
    assert!(caught_up > 20 && copied > 5, "{caught_up} brought up to date, {copied} copied");
}
