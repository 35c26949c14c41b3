//! Devices that fail, and what a grid does then; results are compared with those of one device.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;
use crate::flat::FlatBackend;
use crate::flat::cpu::FlatCpu;
use crate::flat::grid::FlatGrid;
use crate::ivf::grid::IvfGrid;
use crate::ivf::{IvfBackend, IvfIndex, RowSearch, SearchOptions, SearchRequest, View};
use crate::neighbors::RangeNeighbors;
use crate::vectors::{VectorSlice, VectorSliceMut};
use crate::{Bitset, FlatIndex, Metric, NONE};

/// A device that works for a given number of calls, and then fails as a lost GPU does.
struct Failing<B: ?Sized> {
    works: Arc<AtomicUsize>,
    number: usize,
    inner: Box<B>,
}

impl<B: ?Sized> Failing<B> {
    fn work(&self) -> Result<()> {
        let left = self.works.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
        left.map(|_| ()).map_err(|_| Error::Driver { call: "cuLaunchKernel", device: self.number, code: 719 })
    }
}

impl<B: ?Sized> Failing<B> {
    fn with(&self, inner: Box<B>) -> Self {
        Failing { works: Arc::clone(&self.works), number: self.number, inner }
    }
}

impl FlatBackend for Failing<dyn FlatBackend> {
    fn copied(&self, more: usize) -> Result<Box<dyn FlatBackend>> {
        self.work()?;
        Ok(Box::new(self.with(self.inner.copied(more)?)))
    }

    fn emptied(&self) -> Box<dyn FlatBackend> {
        Box::new(self.with(self.inner.emptied()))
    }

    fn add(&mut self, rows: VectorSlice<'_>) -> Result<()> {
        self.work()?;
        self.inner.add(rows)
    }

    fn replace(&mut self, numbers: &[u64], rows: VectorSlice<'_>) -> Result<()> {
        self.work()?;
        self.inner.replace(numbers, rows)
    }

    fn retain(&mut self, kept: &Bitset) -> Result<()> {
        self.work()?;
        self.inner.retain(kept)
    }

    fn search(&self, request: &SearchRequest<'_>, k: usize, ids: &mut [u64], distances: &mut [f32]) -> Result<()> {
        self.work()?;
        self.inner.search(request, k, ids, distances)
    }

    fn range_search(&self, queries: VectorSlice<'_>, radius: f32, among: Option<&Bitset>) -> Result<RangeNeighbors> {
        self.work()?;
        self.inner.range_search(queries, radius, among)
    }

    fn bytes(&self) -> (u64, u64) {
        self.inner.bytes()
    }

    fn truncate(&mut self, len: usize) {
        self.inner.truncate(len);
    }

    fn len(&self) -> usize {
        self.inner.len()
    }

    fn rows(&self, first: u64, to: VectorSliceMut<'_>) -> Result<()> {
        self.work()?;
        self.inner.rows(first, to)
    }

    fn describe(&self) -> String {
        self.inner.describe()
    }
}

impl IvfBackend for Failing<dyn IvfBackend> {
    fn search(
        &self,
        view: &View<'_>,
        request: &SearchRequest<'_>,
        k: usize,
        ids: &mut [u64],
        distances: &mut [f32],
    ) -> Result<()> {
        self.work()?;
        self.inner.search(view, request, k, ids, distances)
    }

    fn range_search(&self, view: &View<'_>, request: &SearchRequest<'_>, radius: f32) -> Result<RangeNeighbors> {
        self.work()?;
        self.inner.range_search(view, request, radius)
    }

    fn search_rows(&self, search: RowSearch<'_>, k: usize, ids: &mut [u64], distances: &mut [f32]) -> Result<()> {
        self.work()?;
        self.inner.search_rows(search, k, ids, distances)
    }

    fn snapshot(&self) -> Box<dyn IvfBackend> {
        Box::new(self.with(self.inner.snapshot()))
    }

    fn describe(&self) -> String {
        self.inner.describe()
    }
}

const DIM: usize = 5;

fn vectors(count: usize, seed: u64) -> Vec<f32> {
    let mut random = crate::random::Random::new(seed);
    (0..count * DIM).map(|_| random.below(20) as f32).collect()
}

/// Devices that all work, for a test to make fail, and how often each still works.
type Works = Vec<Arc<AtomicUsize>>;

fn works(places: usize) -> Works {
    (0..places).map(|_| Arc::new(AtomicUsize::new(usize::MAX))).collect()
}

fn break_after(works: &Works, place: usize, count: usize) {
    works[place].store(count, Ordering::Relaxed);
}

/// Replicas of two shards each.
fn flat_grid(replicas: usize, works: &Works) -> FlatGrid {
    let placement = Placement::new((0..2 * replicas).map(Device::Gpu).collect(), 2).unwrap();
    let backend = |(number, works): (usize, &Arc<AtomicUsize>)| -> Box<dyn FlatBackend> {
        let inner: Box<dyn FlatBackend> = Box::new(FlatCpu::<f32>::new(DIM, Metric::L2, None));
        Box::new(Failing { works: works.clone(), number, inner })
    };
    FlatGrid::new(&placement, works.iter().enumerate().map(backend).collect(), DIM, Metric::L2)
}

fn slice(rows: &[f32]) -> VectorSlice<'_> {
    VectorSlice::of(rows, DIM)
}

/// The first rows of an index.
fn rows_of(grid: &FlatGrid, count: usize) -> Result<Vec<f32>> {
    let mut rows = vec![0.0; count * DIM];
    grid.rows(0, VectorSliceMut::of(&mut rows)).map(|()| rows)
}

/// The fields of the error: the device, its shard, and how many are left.
fn failed(result: Result<()>) -> (Device, usize, usize) {
    match result {
        Err(Error::DeviceFailed { device, shard, left, source }) => {
            assert!(matches!(*source, Error::Driver { code: 719, .. }));
            (device, shard, left)
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_flat_index_goes_on_without_a_device_that_fails_until_a_shard_is_lost() {
    let (base, queries) = (vectors(301, 1), vectors(100, 2));
    let mut one = FlatIndex::<f32>::new(DIM, Metric::L2, Device::Cpu).unwrap();
    one.add(&base).unwrap();
    let expected = one.search(&queries, 7).unwrap();
    let works = works(4);
    let mut grid = flat_grid(2, &works);
    grid.add(slice(&base)).unwrap();
    let search = |grid: &FlatGrid| {
        let (mut ids, mut distances) = (vec![NONE; 700], vec![0.0; 700]);
        let result = grid.search(&SearchRequest::among_all(slice(&queries)), 7, &mut ids, &mut distances);
        if result.is_ok() {
            assert!(ids == expected.ids && distances == expected.distances);
        }
        result
    };
    search(&grid).unwrap();
    break_after(&works, 3, 1);
    search(&grid).unwrap();
    assert_eq!(failed(search(&grid)), (Device::Gpu(3), 1, 1));
    // From here on the other replica of the shard does it all.
    search(&grid).unwrap();
    search(&grid).unwrap();
    assert!(grid.describe().ends_with(" + gpu:3 (failed)"), "{}", grid.describe());
    assert_eq!(rows_of(&grid, 301).unwrap(), base);
    // An addition that fails on a device is taken back from the others, and can be repeated.
    break_after(&works, 0, 0);
    assert_eq!(failed(grid.add(slice(&queries))), (Device::Gpu(0), 0, 1));
    assert_eq!(grid.len(), 301);
    search(&grid).unwrap();
    break_after(&works, 1, 0);
    assert_eq!(failed(search(&grid)), (Device::Gpu(1), 1, 0));
    for result in [search(&grid), grid.add(slice(&queries)), rows_of(&grid, 301).map(|_| ())] {
        assert!(matches!(result, Err(Error::ShardLost { shard: 1, replicas: 2 })), "{result:?}");
    }
}

#[test]
fn an_addition_that_was_taken_back_can_be_made_again() {
    let (base, more) = (vectors(301, 1), vectors(100, 2));
    let works = works(4);
    let mut grid = flat_grid(2, &works);
    grid.add(slice(&base)).unwrap();
    break_after(&works, 2, 0);
    assert_eq!(failed(grid.add(slice(&more))), (Device::Gpu(2), 0, 1));
    grid.add(slice(&more)).unwrap();
    let mut one = FlatIndex::<f32>::new(DIM, Metric::L2, Device::Cpu).unwrap();
    one.add(&base).unwrap();
    one.add(&more).unwrap();
    let expected = one.search(&more[..20 * DIM], 500).unwrap();
    let (mut ids, mut distances) = (vec![NONE; 10_000], vec![0.0; 10_000]);
    grid.search(&SearchRequest::among_all(slice(&more[..20 * DIM])), 500, &mut ids, &mut distances).unwrap();
    assert!(ids == expected.ids && distances == expected.distances);
    assert_eq!(rows_of(&grid, 401).unwrap(), [base, more].concat());
}

#[test]
fn a_replacement_that_fails_somewhere_is_undone_everywhere() {
    let (base, new) = (vectors(301, 1), vectors(250, 2));
    let numbers: Vec<u64> = (10..260).collect();
    let works = works(4);
    let mut grid = flat_grid(2, &works);
    grid.add(slice(&base[..200 * DIM])).unwrap();
    grid.add(slice(&base[200 * DIM..])).unwrap();
    // The rows are in four pieces, two of each shard. Place 3 has no part in reading the old rows, and fails at once.
    break_after(&works, 3, 0);
    assert_eq!(failed(grid.replace(&numbers, slice(&new))), (Device::Gpu(3), 1, 1));
    assert_eq!(rows_of(&grid, 301).unwrap(), base);
    // Place 1 is the last of its shard. It fails after the old rows were read, in the replacement.
    break_after(&works, 1, 2);
    assert_eq!(failed(grid.replace(&numbers, slice(&new))), (Device::Gpu(1), 1, 0));
    assert_eq!(rows_of(&grid, 100).unwrap(), base[..100 * DIM], "these are rows of shard 0");
    assert!(matches!(grid.replace(&numbers, slice(&new)), Err(Error::ShardLost { shard: 1, replicas: 2 })));
}

#[test]
fn a_copy_of_a_grid_is_independent_and_needs_no_device_that_has_failed() {
    let (base, more) = (vectors(301, 1), vectors(50, 2));
    let works = works(4);
    let mut grid = flat_grid(2, &works);
    grid.add(slice(&base)).unwrap();
    let count = |grid: &dyn FlatBackend| {
        let mut rows = vec![0.0; grid.len() * DIM];
        grid.rows(0, VectorSliceMut::of(&mut rows)).map(|()| rows)
    };
    break_after(&works, 3, 0);
    assert_eq!(failed(grid.copied(0).map(|_| ())), (Device::Gpu(3), 1, 1));
    let mut copy = grid.copied(50).unwrap();
    copy.add(slice(&more)).unwrap();
    grid.replace(&[0, 150, 300], slice(&more[..3 * DIM])).unwrap();
    assert_eq!(count(&*copy).unwrap(), [base.clone(), more.clone()].concat());
    assert_eq!(count(&grid).unwrap()[DIM..150 * DIM], base[DIM..150 * DIM]);
    assert!(copy.describe().ends_with(" + gpu:3 (failed)"), "{}", copy.describe());
    let mut emptied = copy.emptied();
    assert_eq!(emptied.len(), 0);
    emptied.add(slice(&more)).unwrap();
    assert_eq!((count(&*emptied).unwrap(), copy.len()), (more, 351));
}

#[test]
fn a_removal_goes_on_without_a_device_that_fails() {
    let base = vectors(300, 1);
    let works = works(4);
    let mut grid = flat_grid(2, &works);
    grid.add(slice(&base)).unwrap();
    (0..4).for_each(|place| break_after(&works, place, 0));
    let kept: Bitset = (0..300).map(|row| row % 3 != 1).collect();
    failed(grid.retain(&kept));
    assert_eq!(grid.len(), 300, "all places failed, and nothing has changed");

    let mut grid = flat_grid(2, &works);
    (0..4).for_each(|place| break_after(&works, place, usize::MAX));
    grid.add(slice(&base)).unwrap();
    break_after(&works, 2, 0);
    grid.retain(&kept).unwrap();
    assert_eq!(grid.grid.places.iter().map(Place::alive).collect::<Vec<_>>(), [true, true, false, true]);
    let expected: Vec<f32> =
        base.chunks(DIM).enumerate().filter(|(row, _)| row % 3 != 1).flat_map(|(_, row)| row).copied().collect();
    assert_eq!(rows_of(&grid, 200).unwrap(), expected);
    break_after(&works, 0, 0);
    grid.retain(&(0..200).map(|row| row > 0).collect()).unwrap_err();
    // Only shard 0 had rows to remove, and no place of it could.
    assert_eq!(grid.len(), 200);
    assert!(matches!(rows_of(&grid, 200), Err(Error::ShardLost { shard: 0, replicas: 2 })));
}

#[test]
fn an_inverted_file_goes_on_without_a_device_that_fails_and_moves_to_others() {
    let (base, queries) = (vectors(900, 3), vectors(64, 4));
    let mut index = IvfIndex::<f32>::builder(DIM, 12).device(Device::Cpu).iterations(2).build().unwrap();
    index.train(&base).unwrap();
    index.add(&base).unwrap();
    let options = SearchOptions::new().probes(4);
    let expected = index.search_with(&queries, 9, &options).unwrap();
    let near = index.range_search(&queries, 60.0, &options).unwrap();
    let works = works(4);
    let placement = Placement::new((0..4).map(Device::Gpu).collect(), 2).unwrap();
    let backend = |(number, works): (usize, &Arc<AtomicUsize>)| -> Box<dyn IvfBackend> {
        Box::new(Failing { works: works.clone(), number, inner: index.kind.open_cpu() })
    };
    let backends = works.iter().enumerate().map(backend).collect();
    index.kind.replace_backend(Box::new(IvfGrid::new(&placement, backends)));
    assert_eq!(index.search_with(&queries, 9, &options).unwrap(), expected);
    assert_eq!(index.range_search(&queries, 60.0, &options).unwrap(), near);
    break_after(&works, 2, 0);
    assert_eq!(failed(index.range_search(&queries, 60.0, &options).map(|_| ())), (Device::Gpu(2), 0, 1));
    assert_eq!(index.range_search(&queries, 60.0, &options).unwrap(), near);
    assert_eq!(index.search_with(&queries, 9, &options).unwrap(), expected);
    break_after(&works, 0, 0);
    assert_eq!(failed(index.search_with(&queries, 9, &options).map(|_| ())), (Device::Gpu(0), 0, 0));
    let lost = index.search_with(&queries, 9, &options);
    assert!(matches!(lost, Err(Error::ShardLost { shard: 0, replicas: 2 })), "{lost:?}");
    // The copy in host memory is whole.
    index.move_to(Placement::new(vec![Device::Cpu; 3], 3).unwrap()).unwrap();
    assert_eq!(index.search_with(&queries, 9, &options).unwrap(), expected);
}

#[test]
fn small_searches_go_to_the_replicas_in_turn_and_large_ones_to_all() {
    let works = works(6);
    let grid = flat_grid(3, &works).grid;
    let places = |queries: usize| -> Vec<(usize, Range<usize>)> {
        grid.parts(1, queries).unwrap().into_iter().map(|part| (part.place, part.queries)).collect()
    };
    assert_eq!([places(1), places(16), places(3)].concat(), [(1, 0..1), (3, 0..16), (5, 0..3)]);
    assert_eq!(places(20), [(1, 0..10), (3, 10..20)]);
    assert_eq!(places(100), [(1, 0..33), (3, 33..66), (5, 66..100)]);
}

#[test]
fn the_first_bad_query_is_named_whichever_device_has_it() {
    let placement = Placement::new(vec![Device::Cpu; 4], 2).unwrap();
    let mut index = FlatIndex::<f32>::new(2, Metric::L2, placement).unwrap();
    index.add(&[0.0, 0.0, 1.0, 1.0]).unwrap();
    let mut queries = vec![0.5; 2 * 5_000];
    assert_eq!(index.search(&queries, 1).unwrap().ids.len(), 5_000);
    for (row, column) in [(4_999, 1), (3_700, 0), (3_699, 1), (1_250, 0), (0, 1)] {
        queries[2 * row + column] = f32::NAN;
        let (mut ids, mut distances) = (vec![7; 5_000], vec![7.0; 5_000]);
        let found = index.search_into(&queries, 1, &crate::SearchOptions::new(), &mut ids, &mut distances);
        assert!(
            matches!(found, Err(Error::NotFinite { row: r, column: c, .. }) if (r, c) == (row, column)),
            "{found:?}"
        );
        assert!(
            ids.iter().all(|&id| id == 7) && distances.iter().all(|&distance| distance == 7.0),
            "results are as they were"
        );
    }
    let ragged = index.search(&queries[1..], 1);
    assert!(matches!(ragged, Err(Error::Ragged { what: "components", len: 9_999, size: 2 })), "{ragged:?}");
}

#[test]
fn only_a_lost_device_is_left_out() {
    let backend = || -> Box<dyn FlatBackend> { Box::new(FlatCpu::<f32>::new(DIM, Metric::L2, None)) };
    let placement = Placement::new(vec![Device::Cpu; 2], 1).unwrap();
    let passing = [1, 2, 209, 304, 600, 701, 805, 4321].map(|code| (code, false));
    let lost = [3, 4, 100, 201, 214, 220, 700, 702, 709, 714, 719, 999].map(|code| (code, true));
    for (code, lost) in passing.into_iter().chain(lost) {
        let grid = Grid::new(&placement, vec![backend(), backend()]);
        let error = Error::Driver { call: "cuLaunchKernel", device: 0, code };
        let judged = grid.judge(0, Err::<(), _>(error));
        match judged {
            Err(Error::DeviceFailed { left: 1, .. }) => assert!(lost, "{code}"),
            Err(Error::Driver { code: same, .. }) => assert!(!lost && same == code, "{code}"),
            other => panic!("{code}: {other:?}"),
        }
        assert_eq!(grid.places[0].alive(), !lost, "{code}");
    }
}
