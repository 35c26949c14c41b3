//! Tests of the image and its search on the emulator: results must have the same bits as on the CPU. (The package of
//! tests has the tests of the results themselves.)

use std::iter::successors;
use std::ops::Range;

use test_random::Random;

use super::IvfDevice;
use super::plan::{Reading, SearchPlan, SearchShape};
use crate::device::bytes_sent;
use crate::device::open::open;
use crate::device::queue::OnStream;
use crate::device::scratch::Layout;
use crate::device::tiling::{Budget, Tiling};
use crate::ivf::held::HeldVectors;
use crate::ivf::{Bitset, Encoding, IvfBackend, IvfIndex, Scan, SearchOptions, SearchRequest};
use crate::pq::mixing::Mixing;
use crate::search::Range as Within;
use crate::vectors::VectorSlice;
use crate::{Device, Element, ElementType, Error, FlatIndex, Metric, NONE, Neighbors};

/// Components in −1 .. 1, in clusters (times 100 for integer types).
fn vectors<T: Element>(count: usize, dim: usize, seed: u64) -> Vec<T> {
    let mut random = Random::new(seed);
    let mut next = || random.unit_f32() - 0.5;
    let centres: Vec<f32> = (0..8 * dim).map(|_| next()).collect();
    let scale = if matches!(T::TYPE, crate::ElementType::I8 | crate::ElementType::U8) { 100.0 } else { 1.0 };
    let mut rows = Vec::new();
    for row in 0..count {
        for i in 0..dim {
            rows.push(T::from_f32((centres[row % 8 * dim + i] + 0.3 * next()) * scale));
        }
    }
    rows
}

fn same(what: &str, expected: &Neighbors, found: &Neighbors) {
    let bits = |found: &Neighbors| found.distances.iter().map(|d| d.to_bits()).collect::<Vec<_>>();
    assert_eq!(expected.ids, found.ids, "{what}");
    assert_eq!(bits(expected), bits(found), "{what}");
}

struct Case {
    dim: usize,
    n: usize,
    lists: usize,
    queries: usize,
    k: usize,
    probes: usize,
}

fn check<T: Element>(metric: Metric, encoding: Encoding, case: &Case) {
    check_batches::<T>(metric, encoding, case, &[case.queries]);
}

/// As [`check`], with batches of these numbers of queries.
fn check_batches<T: Element>(metric: Metric, encoding: Encoding, case: &Case, batches: &[usize]) {
    let &Case { dim, n, lists, .. } = case;
    let base = vectors::<T>(n, dim, 5);
    let builder = IvfIndex::<T>::builder(dim, lists).metric(metric).encoding(encoding).device(Device::Cpu);
    let mut cpu = builder.iterations(2).build().unwrap();
    cpu.train(&base).unwrap();
    cpu.add(&base[..n / 2 * dim]).unwrap();
    let ids: Vec<u64> = (n / 2..n).rev().map(|id| 3 * id as u64 + 1_000_000_000_000).collect();
    cpu.add_with_ids(&base[n / 2 * dim..], &ids).unwrap();
    // Through a file, because training on the emulator takes long and has other tests.
    let file = tempfile::NamedTempFile::new().unwrap();
    cpu.save(file.path()).unwrap();
    let emulated = IvfIndex::<T>::load(file.path(), Device::Emulator, None).unwrap();
    let device = device();
    for &queries in batches {
        compare(&cpu, &emulated, &Case { queries, ..*case });
        let (queries, request) = (vectors::<T>(queries, dim, 6), SearchOptions::new().probes(case.probes).widen(false));
        let filter: Bitset = (0..n).map(|rank| rank % 3 != 0).collect();
        // Only codes of a product quantizer have a second scan, and it has no filter.
        let coded = matches!(encoding, Encoding::Pq { .. });
        for options in [request, if coded { request.scan(Scan::QueryMajor) } else { request.filter(&filter) }] {
            check_enqueued(&device, &cpu, &queries, case.k, &options);
        }
    }
}

/// A back end on the emulator.
fn device() -> IvfDevice {
    let (device, runtime) = open(Device::Emulator).unwrap();
    IvfDevice::new(runtime.unwrap(), device, None).unwrap()
}

/// As [`check_numbers`] for all queries, and for a third of them, which use a smaller plan.
fn check_enqueued<T: Element>(
    device: &IvfDevice,
    cpu: &IvfIndex<T>,
    queries: &[T],
    k: usize,
    options: &SearchOptions<'_>,
) -> [usize; 3] {
    check_numbers(device, cpu, queries, k, options, |all| vec![all.div_ceil(3), all])
}

/// Searches from device memory to device memory by a plan for two more queries, with a last query that is not finite if
/// the element type has such numbers, and compares results with those of `cpu`. `numbers` makes the numbers of queries
/// of the searches, which ascend, of the number of all. Returns the numbers of queries of the last search that kernels
/// completed.
fn check_numbers<T: Element>(
    device: &IvfDevice,
    cpu: &IvfIndex<T>,
    queries: &[T],
    k: usize,
    options: &SearchOptions<'_>,
    numbers: impl FnOnce(usize) -> Vec<usize>,
) -> [usize; 3] {
    let (dim, probes) = (cpu.dim(), options.probes.unwrap());
    let what = format!("{:?} {:?} {} d{dim} k{k} {options:?}", cpu.metric(), cpu.encoding(), T::TYPE.name());
    let count = queries.len() / dim;
    let (mut given, mut bad) = (queries.to_vec(), 0);
    if !T::from_f32(f32::NAN).to_f32().is_finite() {
        given.extend((0..dim).map(|i| if i + 1 == dim { T::from_f32(f32::INFINITY) } else { T::default() }));
        bad = 1;
    }
    let asked = count + bad;
    let accepted = options.filter.map(|filter| cpu.kind.lists.accepted(filter).unwrap());
    let request = SearchRequest {
        queries: VectorSlice::of::<T>(&[], dim),
        probes: probes.min(cpu.lists()),
        filter: accepted.as_deref(),
        scan: options.scan,
    };
    let view = cpu.kind.view(cpu.kind.trained().unwrap());
    let search = device.plan_search(&view, asked + 2, k, &request).unwrap();
    assert!(search.bytes() > (asked * k) as u64);
    let runtime = &device.runtime;
    let mut layout = Layout::default();
    let (rows, ids, distances) = (layout.array::<T>(given.len()), layout.array(asked * k), layout.array(asked * k));
    let counts = layout.array::<u32>(asked);
    let (memory, stream) = (runtime.allocate(layout.bytes()).unwrap(), runtime.stream().unwrap());
    let scratch = runtime.scratch(&memory);
    let (rows, ids, distances) = (scratch.at(rows), scratch.at(ids), scratch.at(distances));
    let mut found = Neighbors::none(cpu.metric(), asked, k).unwrap();
    let mut completed = [0; 3];
    // All plans use the same scratch.
    for asked in numbers(asked) {
        // SAFETY: the memory has room for the queries and their results.
        unsafe {
            runtime.copy_to_device(&stream, rows.as_bytes(), bytemuck::cast_slice(&given)).unwrap();
            search.enqueue(&stream, rows.as_bytes().into(), asked, (ids, distances), None).unwrap();
            runtime.copy_to_host(&stream, &mut found.ids[..asked * k], ids.take(asked * k)).unwrap();
            runtime.copy_to_host(&stream, &mut found.distances[..asked * k], distances.take(asked * k)).unwrap();
        }
        completed = search.search().completed(&stream, asked).unwrap();
        let expected = cpu.search_with(&queries[..asked.min(count) * dim], k, options).unwrap();
        let slots = expected.ids.len();
        let mut refused = found.ids[slots..asked * k].iter().zip(&found.distances[slots..]);
        assert!(refused.all(|(&id, distance)| id == NONE && distance.is_nan()), "{what}");
        let mut of_queries = Neighbors::none(cpu.metric(), slots / k, k).unwrap();
        of_queries.ids.copy_from_slice(&found.ids[..slots]);
        of_queries.distances.copy_from_slice(&found.distances[..slots]);
        same(&format!("{what} enqueued, {asked}"), &expected, &of_queries);
    }
    // Range search with k places, which one query fills, and others may.
    let radius = found.distances[k / 2];
    let mut within = vec![7u32; count];
    let range = Some(Within { radius, counts: scratch.at(counts).take(count) });
    // SAFETY: as above.
    unsafe {
        search.enqueue(&stream, rows.as_bytes().into(), count, (ids, distances), range).unwrap();
        runtime.copy_to_host(&stream, &mut found.ids[..count * k], ids.take(count * k)).unwrap();
        runtime.copy_to_host(&stream, &mut found.distances[..count * k], distances.take(count * k)).unwrap();
        runtime.copy_to_host(&stream, &mut within, scratch.at(counts).take(count)).unwrap();
    }
    let all = cpu.range_search(queries, radius, options).unwrap();
    for (query, &within) in within.iter().enumerate() {
        let (expected_ids, expected_distances) = all.row(query);
        assert_eq!(within as usize, expected_ids.len(), "{what} query {query} within {radius}");
        let (there, slots) = (expected_ids.len().min(k), query * k..(query + 1) * k);
        let (found_ids, found_distances) = (&found.ids[slots.clone()], &found.distances[slots]);
        assert_eq!(found_ids[..there], expected_ids[..there], "{what} query {query} within {radius}");
        assert_eq!(found_distances[..there], expected_distances[..there], "{what} query {query} within {radius}");
        let empty = found_ids[there..].iter().zip(&found_distances[there..]);
        assert!(empty.into_iter().all(|(&id, &d)| id == NONE && d == cpu.metric().worst()), "{what} query {query}");
    }
    completed
}

/// Searches by each plan of an index, of which there is one for the planned number of queries and one for each half of
/// it, down to one query.
#[test]
fn every_plan_answers() {
    fn by_each<T: Element>(metric: Metric, encoding: Encoding, case: &Case) {
        let &Case { dim, n, lists, queries, k, probes } = case;
        let base = vectors::<T>(n, dim, 5);
        let builder = IvfIndex::<T>::builder(dim, lists).metric(metric).encoding(encoding).device(Device::Cpu);
        let mut cpu = builder.iterations(2).build().unwrap();
        cpu.train(&base).unwrap();
        cpu.add(&base).unwrap();
        let (queries, filter) = (vectors::<T>(queries, dim, 6), cpu.filter(|id| id % 3 != 0));
        let request = SearchOptions::new().probes(probes).widen(false);
        let by_queries = matches!(encoding, Encoding::Pq { .. }).then(|| request.scan(Scan::QueryMajor));
        for options in [request, request.filter(&filter)].into_iter().chain(by_queries) {
            check_numbers(&device(), &cpu, &queries, k, &options, |all| {
                let halves = successors(Some(all + 2), |&planned| (planned > 1).then(|| planned.div_ceil(2)));
                let mut numbers: Vec<usize> = halves.map(|planned| planned.min(all)).collect();
                numbers.reverse();
                numbers
            });
        }
    }
    let pq = |rotate| Encoding::Pq { sub_quantizers: 4, bits: 4, rotate };
    let few = Case { dim: 20, n: 500, lists: 9, queries: 21, k: 7, probes: 4 };
    by_each::<f32>(Metric::L2, Encoding::Flat, &few);
    by_each::<i8>(Metric::InnerProduct, Encoding::Flat, &few);
    by_each::<f32>(Metric::Cosine, Encoding::F16, &few);
    by_each::<f32>(Metric::InnerProduct, Encoding::Scalar8, &few);
    by_each::<f32>(Metric::Cosine, pq(false), &few);
    by_each::<u8>(Metric::L2, pq(true), &few);
    // The plans for most queries append candidates.
    let many = Case { dim: 8, n: 1_600, lists: 80, queries: 30, k: 1, probes: 80 };
    by_each::<f32>(Metric::L2, Encoding::Flat, &many);
    by_each::<f32>(Metric::L2, Encoding::Scalar8, &many);
    by_each::<f32>(Metric::InnerProduct, pq(false), &many);
}

/// A workspace runs each plan once when it is made, with one query and a radius, whatever number the plan is for. What
/// counts vectors reads what the search by the same plan left.
#[test]
fn every_plan_counts_in_its_own_scratch() {
    fn check<T: Element>(metric: Metric, encoding: Encoding) {
        let (dim, n, lists, probes, k) = (8, 400, 9, 4, 3);
        let base = vectors::<T>(n, dim, 5);
        let builder = IvfIndex::<T>::builder(dim, lists).metric(metric).encoding(encoding).device(Device::Cpu);
        let mut cpu = builder.iterations(2).build().unwrap();
        cpu.train(&base).unwrap();
        cpu.add(&base).unwrap();
        let (device, query) = (device(), vectors::<T>(1, dim, 6));
        let request =
            SearchRequest { queries: VectorSlice::of::<T>(&[], dim), probes, filter: None, scan: Scan::ListMajor };
        let view = cpu.kind.view(cpu.kind.trained().unwrap());
        let search = device.plan_search(&view, 70, k, &request).unwrap();
        assert!(search.search().plans() > 4);
        let radius = metric.worst();
        let options = SearchOptions::new().probes(probes);
        let expected = cpu.range_search(&query, radius, &options).unwrap().ids.len();
        assert!(expected > k);
        let runtime = &device.runtime;
        let mut layout = Layout::default();
        let (rows, ids, distances) = (layout.array::<T>(dim), layout.array(k), layout.array(k));
        let counts = layout.array::<u32>(1);
        let (memory, stream) = (runtime.allocate(layout.bytes()).unwrap(), runtime.stream().unwrap());
        let scratch = runtime.scratch(&memory);
        let (rows, results) = (scratch.at(rows), (scratch.at(ids), scratch.at(distances)));
        for plan in 0..search.search().plans() {
            let mut within = [7u32];
            let range = Some(Within { radius, counts: scratch.at(counts) });
            // SAFETY: the memory has room for the query and its results.
            unsafe {
                runtime.copy_to_device(&stream, rows.as_bytes(), bytemuck::cast_slice(&query)).unwrap();
                let on = OnStream { runtime, stream: &stream };
                search.enqueue_tile(on, plan, rows.as_bytes().into(), 1, results, range).unwrap();
                runtime.copy_to_host(&stream, &mut within, scratch.at(counts)).unwrap();
            }
            assert_eq!(within[0] as usize, expected, "{metric:?} {encoding:?}, plan {plan}");
        }
    }
    check::<f32>(Metric::InnerProduct, Encoding::Scalar8);
    check::<u8>(Metric::Cosine, Encoding::Flat);
    check::<f32>(Metric::L2, Encoding::Pq { sub_quantizers: 4, bits: 4, rotate: true });
}

/// More queries than searches from host memory first do without the kernels that complete queries.
const MANY: usize = 9;

/// Many centroids and vectors within the error bound of each other: great vectors make the bound large, and vectors
/// appear several times. No certificate holds, so kernels complete the queries.
fn without_certificates<T: Element>(metric: Metric, encoding: Encoding, queries: usize) {
    let (dim, n, lists) = (8, 900, 40);
    let mut base = vectors::<T>(n, dim, 5);
    let repeated = base[9 * dim..10 * dim].repeat(60);
    base[600 * dim..660 * dim].copy_from_slice(&repeated);
    let whole = matches!(T::TYPE, crate::ElementType::I8 | crate::ElementType::U8);
    if !whole {
        base[7 * dim..8 * dim].fill(T::from_f32(20_000.0));
    }
    let builder = IvfIndex::<T>::builder(dim, lists).metric(metric).encoding(encoding).device(Device::Cpu);
    let mut cpu = builder.iterations(2).build().unwrap();
    cpu.train(&base).unwrap();
    cpu.add_with_ids(&base, &(0..n as u64).map(|at| 5 * at).collect::<Vec<_>>()).unwrap();
    let mut queries = vectors::<T>(queries, dim, 6);
    queries[..dim].fill(T::default());
    queries[dim..2 * dim].copy_from_slice(&base[9 * dim..10 * dim]);
    let device = device();
    let emulated = IvfIndex::<T>::from_bytes(&cpu.to_bytes().unwrap(), Device::Emulator, None).unwrap();
    let mut completed = [0; 3];
    let filter = cpu.filter(|id| id % 3 != 0);
    for (k, probes) in [(1, 1), (7, 9), (100, 30)] {
        let request = SearchOptions::new().probes(probes).widen(false);
        for options in [request, if probes == 9 { request.filter(&filter) } else { request.scan(Scan::QueryMajor) }] {
            let more = check_enqueued(&device, &cpu, &queries, k, &options);
            completed.iter_mut().zip(more).for_each(|(all, more)| *all += more);
            // From host memory: few queries are searched once more with the kernels that complete queries, many have
            // them at once.
            let again = queries.repeat(MANY.div_ceil(queries.len() / dim));
            for queries in [&queries, &again] {
                let what = format!("{metric} {encoding} from the host, k {k}, {} queries", queries.len() / dim);
                let found = emulated.search_with(queries, k, &options).unwrap();
                same(&what, &cpu.search_with(queries, k, &options).unwrap(), &found);
            }
        }
    }
    // Distances of whole numbers have no error, so that only a query at the same distance from many centroids lacks a
    // certificate for its probes.
    let of_probes = completed[0] > 0 || whole && metric == Metric::L2;
    assert!(of_probes && completed[1] > 0, "{metric} {encoding} {}: {completed:?}", T::TYPE.name());
}

#[test]
fn queries_without_certificates_are_completed_on_the_device() {
    let pq = |rotate| Encoding::Pq { sub_quantizers: 4, bits: 4, rotate };
    for metric in Metric::OF_NUMBERS {
        without_certificates::<f32>(metric, Encoding::Flat, 5);
        without_certificates::<f32>(metric, pq(false), 5);
        without_certificates::<f32>(metric, Encoding::Scalar8, 5);
    }
    without_certificates::<half::f16>(Metric::L2, Encoding::Flat, 5);
    without_certificates::<half::bf16>(Metric::InnerProduct, Encoding::Flat, 5);
    without_certificates::<u8>(Metric::InnerProduct, Encoding::Flat, 5);
    without_certificates::<i8>(Metric::L2, Encoding::Flat, 5);
    without_certificates::<half::f16>(Metric::Cosine, pq(true), 5);
    // So many that a block has several of them.
    without_certificates::<f32>(Metric::InnerProduct, Encoding::F16, 50);
}

/// Lists of appended candidates that have no room for all vectors within the threshold, because the first queries are
/// equally near to all.
#[test]
fn candidates_without_room_are_completed_on_the_device() {
    let (dim, n, lists) = (4, 4_000, 100);
    let base = vectors::<f32>(n, dim, 5);
    let builder = IvfIndex::<f32>::builder(dim, lists).metric(Metric::InnerProduct).device(Device::Cpu);
    let mut cpu = builder.iterations(2).build().unwrap();
    cpu.train(&base).unwrap();
    cpu.add(&base).unwrap();
    let queries = [vec![0.0; 2 * dim], vectors(28, dim, 6)].concat();
    let completed = check_enqueued(&device(), &cpu, &queries, 2, &SearchOptions::new().probes(90).widen(false));
    assert!(completed[2] > 0, "{completed:?}");
}

/// Searches among every `share`-th of the vectors of an exact index on the emulator, and by an index on the CPU that
/// has got these vectors.
fn among_held<T: Element>(metric: Metric, share: usize) {
    let (dim, n, k, count) = (8, 700, 5, 9);
    let base = vectors::<T>(n, dim, 5);
    let mut cpu = IvfIndex::<T>::builder(dim, 12).metric(metric).device(Device::Cpu).iterations(2).build().unwrap();
    cpu.train(&base).unwrap();
    let trained = cpu.to_bytes().unwrap();
    let emulated = IvfIndex::<T>::from_bytes(&trained, Device::Emulator, None).unwrap();
    let some: Vec<T> = base.chunks_exact(share * dim).flat_map(|rows| rows[..dim].to_vec()).collect();
    cpu.add(&some).unwrap();
    let mut flat = FlatIndex::<T>::new(dim, metric, Device::Emulator).unwrap();
    flat.add(&base).unwrap();
    let (resident, options) = (flat.kind.resident_rows().unwrap(), SearchOptions::new().probes(4).widen(false));
    let planned = resident.with_every(share, n - n % share, |on_device| {
        // SAFETY: nothing changes the rows of the exact index.
        unsafe { emulated.kind.planned_among(HeldVectors { on_device, sample: &base[..3 * dim] }, count, k, &options) }
    });
    let (search, queries) = (planned.unwrap().unwrap(), vectors::<T>(count, dim, 6));
    let (runtime, mut layout) = (resident.runtime, Layout::default());
    let (rows, ids, distances) = (layout.array::<T>(queries.len()), layout.array(count * k), layout.array(count * k));
    let (memory, stream) = (runtime.allocate(layout.bytes()).unwrap(), runtime.stream().unwrap());
    let scratch = runtime.scratch(&memory);
    let (rows, ids, distances) = (scratch.at(rows), scratch.at(ids), scratch.at(distances));
    let mut found = Neighbors::none(metric, count, k).unwrap();
    // SAFETY: the memory has room for the queries and their results.
    unsafe {
        runtime.copy_to_device(&stream, rows.as_bytes(), bytemuck::cast_slice(&queries)).unwrap();
        search.enqueue(&stream, rows.as_bytes().into(), count, (ids, distances), None).unwrap();
        runtime.copy_to_host(&stream, &mut found.ids, ids).unwrap();
        runtime.copy_to_host(&stream, &mut found.distances, distances).unwrap();
    }
    same(&format!("{metric} {} {share}", T::TYPE.name()), &cpu.search_with(&queries, k, &options).unwrap(), &found);
    assert!(emulated.is_empty());
}

#[test]
fn searches_among_vectors_that_a_device_has_find_what_an_index_of_them_finds() {
    for share in [1, 3] {
        among_held::<f32>(Metric::L2, share);
        among_held::<u8>(Metric::InnerProduct, share);
        among_held::<half::f16>(Metric::Cosine, share);
    }
}

/// An index without vectors, and a plan that no longer has its image.
#[test]
fn enqueued_searches_of_an_empty_and_a_changed_index() {
    let base = vectors::<f32>(100, 6, 5);
    let mut cpu = IvfIndex::<f32>::builder(6, 4).metric(Metric::Cosine).device(Device::Cpu).build().unwrap();
    cpu.train(&base).unwrap();
    let (device, options) = (device(), SearchOptions::new().probes(2));
    check_enqueued(&device, &cpu, &base[..18], 3, &options);
    cpu.add(&base).unwrap();
    check_enqueued(&device, &cpu, &base[..18], 3, &options);
}

fn compare<T: Element>(cpu: &IvfIndex<T>, emulated: &IvfIndex<T>, case: &Case) {
    let &Case { dim, n, lists, queries, k, probes } = case;
    let (metric, encoding) = (cpu.metric(), cpu.encoding());
    let wanted = vectors::<T>(queries, dim, 6);
    let what = format!("{metric:?} {encoding:?} {} d{dim} n{n} l{lists} q{queries} k{k} p{probes}", T::TYPE.name());
    let expected = cpu.search_with(&wanted, k, &SearchOptions::new().probes(probes)).unwrap();
    same(&what, &expected, &emulated.search_with(&wanted, k, &SearchOptions::new().probes(probes)).unwrap());
    // Without codes there is one scan: `lists_without_codes_have_one_scan`.
    if matches!(encoding, Encoding::Pq { .. }) {
        let options = SearchOptions::new().probes(probes).scan(Scan::QueryMajor);
        same(&format!("{what} by queries"), &expected, &emulated.search_with(&wanted, k, &options).unwrap());
    }
    let filter: Bitset = (0..n).map(|rank| rank % 3 != 0).collect();
    let options = SearchOptions::new().probes(probes).filter(&filter).widen(false);
    let filtered = cpu.search_with(&wanted, k, &options).unwrap();
    same(&format!("{what} filtered"), &filtered, &emulated.search_with(&wanted, k, &options).unwrap());
    let radius = expected.distances[k / 2];
    if radius.is_finite() {
        let options = SearchOptions::new().probes(probes);
        let near = cpu.range_search(&wanted, radius, &options).unwrap();
        assert_eq!(near, emulated.range_search(&wanted, radius, &options).unwrap(), "{what} range");
    }
}

#[test]
fn flat_lists_of_every_metric_and_element() {
    let case = Case { dim: 20, n: 700, lists: 9, queries: 21, k: 7, probes: 4 };
    for metric in Metric::OF_NUMBERS {
        check::<f32>(metric, Encoding::Flat, &case);
        check::<half::f16>(metric, Encoding::Flat, &case);
        check::<half::bf16>(metric, Encoding::Flat, &case);
        check::<i8>(metric, Encoding::Flat, &case);
        check::<u8>(metric, Encoding::Flat, &case);
    }
}

/// One or two queries of short lists are compared with all vectors of these by several blocks, which join their
/// results. The counters of the blocks serve the next search, too.
#[test]
fn few_queries_are_compared_with_all_vectors_of_their_lists() {
    fn by_blocks<T: Element>(metric: Metric, encoding: Encoding, k: usize) {
        let (dim, probes) = (20, 5);
        let case = Case { dim, n: 700, lists: 9, queries: 1, k, probes };
        check_batches::<T>(metric, encoding, &case, &[1, 2, 1]);
        let base = vectors::<T>(700, dim, 5);
        let builder = IvfIndex::<T>::builder(dim, 9).metric(metric).encoding(encoding).device(Device::Cpu);
        let mut cpu = builder.iterations(1).build().unwrap();
        cpu.train(&base).unwrap();
        cpu.add(&base).unwrap();
        let (device, view) = (device(), cpu.kind.view(cpu.kind.trained().unwrap()));
        let resident = device.resident(&view).unwrap();
        let planned = |queries, k, scan| {
            let request = SearchRequest { queries: VectorSlice::of::<T>(&[], dim), probes, filter: None, scan };
            let shape = IvfDevice::search_shape(&resident, queries, k, &request);
            let plan = SearchPlan::new(&resident, T::TYPE, shape, device.runtime.limits()).unwrap();
            plan.compares_lists.map(|lists| lists.shared_by)
        };
        // The emulator has two multiprocessors, and each has two blocks.
        assert_eq!([1, 2, 3].map(|queries| planned(queries, k, Scan::Auto)), [Some(4), Some(2), None]);
        assert_eq!((planned(1, 33, Scan::Auto), planned(1, k, Scan::QueryMajor)), (None, None));
    }
    for (at, metric) in Metric::OF_NUMBERS.into_iter().enumerate() {
        let k = [1, 10, 32][at % 3];
        by_blocks::<f32>(metric, Encoding::Flat, k);
        by_blocks::<f32>(metric, Encoding::F16, k);
        by_blocks::<f32>(metric, Encoding::Scalar8, k);
        by_blocks::<f32>(metric, Encoding::Pq { sub_quantizers: 4, bits: 5, rotate: at == 1 }, k);
        by_blocks::<half::f16>(metric, Encoding::Flat, k);
        by_blocks::<i8>(metric, Encoding::Flat, k);
    }
    by_blocks::<half::bf16>(Metric::L2, Encoding::Flat, 32);
    by_blocks::<u8>(Metric::L2, Encoding::Pq { sub_quantizers: 10, bits: 8, rotate: false }, 7);
}

/// Four rows of a list share a score if queries have many rows for each of their results. Results are the same, of
/// queries with and without a certificate, of a filter, and of more results than a warp or a block re-ranks.
#[test]
fn rows_share_scores() {
    let (dim, probes) = (20, 5);
    for (metric, bits, n, k) in [
        (Metric::L2, 5, 1_500, 1),
        (Metric::InnerProduct, 3, 900, 10),
        (Metric::Cosine, 8, 1_500, 11),
        (Metric::L2, 1, 1_500, 40),
        (Metric::InnerProduct, 2, 9_000, 1_100),
    ] {
        let case = Case { dim, n, lists: 9, queries: 1, k, probes };
        check_batches::<f32>(metric, Encoding::Bits { bits }, &case, &[3, 17]);
    }
    let mut cpu =
        IvfIndex::<f32>::builder(dim, 9).encoding(Encoding::Bits { bits: 4 }).device(Device::Cpu).build().unwrap();
    let base = vectors::<f32>(1_500, dim, 5);
    cpu.train(&base).unwrap();
    cpu.add(&base).unwrap();
    let (device, view) = (device(), cpu.kind.view(cpu.kind.trained().unwrap()));
    let resident = device.resident(&view).unwrap();
    let planned = |queries, k, whole: bool| {
        let queries_of = VectorSlice::of::<f32>(&[], dim);
        let request = SearchRequest { queries: queries_of, probes, filter: None, scan: Scan::ListMajor };
        let shape = IvfDevice::search_shape(&resident, queries, k, &request);
        let shape = SearchShape { shares_scores: shape.shares_scores && !whole, ..shape };
        SearchPlan::new(&resident, ElementType::F32, shape, device.runtime.limits()).unwrap()
    };
    let shares = |queries, k| planned(queries, k, false).search_shape.shares_scores;
    // Not if most rows are results, nor by tiles of 64 queries.
    assert_eq!([shares(17, 10), shares(17, 300), shares(100, 10)], [true, false, false]);
    // Four rows share a score, up to seven more for each list.
    let (shared, whole) = (planned(17, 10, false).scores.len(), planned(17, 10, true).scores.len());
    assert!(4 * shared >= whole && 4 * shared <= whole + 17 * probes * 32, "{shared} and {whole}");
}

#[test]
fn lists_without_codes_have_one_scan() {
    let (dim, base) = (12, vectors::<f32>(300, 12, 5));
    for encoding in [Encoding::Flat, Encoding::F16, Encoding::Scalar8] {
        let builder = IvfIndex::<f32>::builder(dim, 5).encoding(encoding).iterations(2).device(Device::Emulator);
        let mut index = builder.build().unwrap();
        index.train(&base).unwrap();
        index.add(&base).unwrap();
        let options = SearchOptions::new().probes(3);
        let expected = index.search_with(&base[..9 * dim], 4, &options.scan(Scan::ListMajor)).unwrap();
        let found = index.search_with(&base[..9 * dim], 4, &options.scan(Scan::QueryMajor)).unwrap();
        same(&format!("{encoding} by queries"), &expected, &found);
    }
}

#[test]
fn odd_sizes() {
    for case in [
        Case { dim: 1, n: 300, lists: 5, queries: 3, k: 10, probes: 2 },
        Case { dim: 65, n: 400, lists: 1, queries: 70, k: 3, probes: 1 },
        Case { dim: 129, n: 300, lists: 40, queries: 5, k: 30, probes: 40 },
        Case { dim: 520, n: 200, lists: 3, queries: 66, k: 2, probes: 2 },
        Case { dim: 7, n: 260, lists: 130, queries: 1, k: 300, probes: 129 },
        Case { dim: 3, n: 2000, lists: 2, queries: 2, k: 1500, probes: 1 },
        Case { dim: 4, n: 5000, lists: 2, queries: 2, k: 4200, probes: 2 },
        // Few pairs, in lists of several items.
        Case { dim: 5, n: 1800, lists: 12, queries: 3, k: 9, probes: 3 },
        // Most probes append candidates.
        Case { dim: 8, n: 2000, lists: 100, queries: 30, k: 1, probes: 80 },
        Case { dim: 200, n: 900, lists: 80, queries: 30, k: 2, probes: 80 },
    ] {
        check::<f32>(Metric::L2, Encoding::Flat, &case);
    }
}

#[test]
fn codes() {
    for (dim, sub_quantizers, bits) in [
        (16, 4, 8),
        (16, 8, 8),
        (136, 68, 8),
        (24, 3, 4),
        (21, 7, 5),
        (12, 12, 6),
        (65, 13, 7),
        (10, 1, 8),
        (66, 11, 8),
        (150, 15, 5),
    ] {
        for metric in Metric::OF_NUMBERS {
            let encoding = Encoding::Pq { sub_quantizers, bits, rotate: false };
            check::<f32>(metric, encoding, &Case { dim, n: 600, lists: 7, queries: 20, k: 5, probes: 3 });
        }
    }
    for (sub_quantizers, bits) in [(2, 4), (4, 8)] {
        let encoding = Encoding::Pq { sub_quantizers, bits, rotate: false };
        check::<f32>(Metric::L2, encoding, &Case { dim: 8, n: 2000, lists: 100, queries: 30, k: 1, probes: 90 });
    }
    let encoding = Encoding::Pq { sub_quantizers: 5, bits: 8, rotate: false };
    check::<f32>(Metric::L2, encoding, &Case { dim: 30, n: 2000, lists: 100, queries: 30, k: 1, probes: 90 });
    let encoding = Encoding::Pq { sub_quantizers: 4, bits: 8, rotate: true };
    check::<u8>(Metric::L2, encoding, &Case { dim: 16, n: 600, lists: 7, queries: 70, k: 5, probes: 7 });
}

#[test]
fn halves_and_bytes() {
    for encoding in [Encoding::F16, Encoding::Scalar8] {
        for dim in [1, 12, 65, 330] {
            for metric in Metric::OF_NUMBERS {
                check::<f32>(metric, encoding, &Case { dim, n: 400, lists: 7, queries: 20, k: 5, probes: 3 });
            }
        }
        // Tiles of 64 queries, and appended candidates.
        for (dim, probes) in [(12, 7), (330, 7), (8, 90)] {
            let lists = if probes == 90 { 100 } else { 7 };
            check::<f32>(Metric::L2, encoding, &Case { dim, n: 1200, lists, queries: 70, k: 1, probes });
        }
    }
    check::<u8>(Metric::L2, Encoding::Scalar8, &Case { dim: 16, n: 600, lists: 7, queries: 70, k: 5, probes: 7 });
    check::<half::bf16>(
        Metric::Cosine,
        Encoding::Scalar8,
        &Case { dim: 9, n: 300, lists: 4, queries: 5, k: 5, probes: 2 },
    );
}

/// Scans of lists by `mma.sync` and by `wgmma`, between which the emulator chooses by the parity of the number of
/// items: of operands and of codes, resident and streamed, with stored and with appended scores.
#[test]
fn every_product_scans_soundly() {
    let codes = |dim: usize| Encoding::Pq { sub_quantizers: dim / 2, bits: 8, rotate: false };
    // The components of queries, if scores are stored and if they are appended. Queries of operands are streamed from
    // 321 components on, and from 193 on if they append to lists of copies, whose tiles have 128 queries instead of 64.
    for (stored, appended, encoding) in [
        (64, 64, codes(64)),
        (64, 64, Encoding::Flat),
        (64, 64, Encoding::Scalar8),
        (136, 136, codes(136)),
        (330, 200, Encoding::Flat),
        (330, 330, Encoding::Scalar8),
    ] {
        // One item for each pair: with lists of fewer than 128 rows, the numbers of items are odd and even.
        let short = Case { dim: stored, n: 300, lists: 5, queries: 61, k: 3, probes: 5 };
        check_batches::<f32>(Metric::L2, encoding, &short, &[61, 62]);
        let many = Case { dim: appended, n: 2_400, lists: 75, queries: 13, k: 1, probes: 75 };
        check_batches::<f32>(Metric::L2, encoding, &many, &[13, 14]);
    }
}

/// The same for bytes, which fill a chunk with twice as many components.
#[test]
fn every_product_of_bytes_scans_soundly() {
    for (stored, appended) in [(64, 64), (650, 400)] {
        let short = Case { dim: stored, n: 300, lists: 5, queries: 61, k: 3, probes: 5 };
        check_batches::<u8>(Metric::L2, Encoding::Flat, &short, &[61, 62]);
        let many = Case { dim: appended, n: 1_200, lists: 75, queries: 13, k: 1, probes: 75 };
        check_batches::<i8>(Metric::Cosine, Encoding::Flat, &many, &[13, 14]);
    }
}

/// An index on the CPU, which changes, and devices whose images follow: one for each shard.
struct Follower<T: Element> {
    index: IvfIndex<T>,
    devices: Vec<IvfDevice>,
    base: Vec<T>,
    queries: Vec<T>,
}

/// The data that the devices together receive after a change.
#[derive(Clone, Copy)]
enum Sent {
    Nothing,
    /// This number of rows at most.
    Rows(usize),
    /// The same, and the ranks of all rows.
    Ranks(usize),
    /// The whole image, because rows and lists do not fit into the one before.
    All,
}

impl<T: Element> Follower<T> {
    const LISTS: usize = 12;

    fn new(metric: Metric, encoding: Encoding, (n, dim): (usize, usize), shards: usize) -> Follower<T> {
        let (base, queries) = (vectors(n, dim, 5), vectors(3, dim, 6));
        let builder = IvfIndex::<T>::builder(dim, Self::LISTS).metric(metric).encoding(encoding).device(Device::Cpu);
        let mut index = builder.iterations(2).build().unwrap();
        index.train(&base).unwrap();
        let ids: Vec<u64> = (0..n as u64).map(|at| 3 * at).collect();
        index.add_with_ids(&base, &ids).unwrap();
        Follower { index, devices: (0..shards).map(|_| device()).collect(), base, queries }
    }

    fn snapshot(&self) -> Follower<T> {
        let (base, queries) = (self.base.clone(), self.queries.clone());
        let devices = self.devices.iter().map(IvfDevice::shared).collect();
        Follower { index: self.index.snapshot(), devices, base, queries }
    }

    /// The vectors with which these ids, multiples of three, began.
    fn rows(&self, ids: &[u64]) -> Vec<T> {
        let dim = self.index.dim();
        ids.iter().flat_map(|&id| &self.base[id as usize / 3 * dim..][..dim]).copied().collect()
    }

    /// Adds vectors `ids` that are equal to the vector `like`.
    fn add_like(&mut self, like: u64, ids: Range<u64>) {
        let rows = self.rows(&vec![like; ids.clone().count()]);
        self.index.add_with_ids(&rows, &ids.collect::<Vec<_>>()).unwrap();
    }

    /// Brings the images up to date, and compares the bytes that the devices got, and searches.
    fn follows(&self, expected: Sent, what: &str) {
        let Follower { index, devices, queries, .. } = self;
        let whole = index.kind.view(index.kind.trained().unwrap());
        let shards: Vec<_> = (0..devices.len()).map(|shard| whole.part(shard, devices.len())).collect();
        let bring = || shards.iter().zip(devices).for_each(|(view, device)| drop(device.resident(view).unwrap()));
        let sent = bytes_sent(bring) as usize;
        let images = shards.iter().zip(devices).map(|(view, device)| device.resident(view).unwrap().image);
        let (rows, row_bytes) =
            images.fold((0, 0), |(rows, _), image| (rows + image.rows as usize, image.stored.row_bytes as usize));
        // Row number, rank and list of a row; number, start and length of a list, and twelve bytes for padding. The
        // terms of the scan by tables take 8 bytes for each list.
        let some = |rows: usize| rows * row_bytes + devices.len() * (36 * rows + 8 * Self::LISTS);
        match expected {
            Sent::Nothing => assert_eq!(sent, 0, "{what}"),
            Sent::Rows(changed) => assert!(sent <= some(changed), "{what}: {sent} bytes"),
            Sent::Ranks(changed) => assert!(sent <= some(changed) + 4 * rows, "{what}: {sent} bytes"),
            Sent::All => assert!(sent >= rows * (row_bytes + 4), "{what}: {sent} bytes"),
        }
        let k = 12;
        let filter = index.filter(|id| id % 2 == 0);
        let accepted = index.kind.lists.accepted((&filter).into()).unwrap();
        for (scan, filtered) in [(Scan::ListMajor, false), (Scan::QueryMajor, false), (Scan::Auto, true)] {
            let mut found = Neighbors::none(index.metric(), 3, k).unwrap();
            let request = SearchRequest {
                queries: VectorSlice::of(queries, index.dim()),
                probes: 4,
                filter: filtered.then_some(&*accepted),
                scan,
            };
            let mut all = vec![Vec::new(); 3];
            for (view, device) in shards.iter().zip(devices) {
                device.search(view, &request, k, &mut found.ids, &mut found.distances).unwrap();
                for (all, (ids, distances)) in all.iter_mut().zip(found.rows()) {
                    all.extend(ids.iter().copied().zip(distances.iter().copied()));
                }
            }
            all.iter_mut().for_each(|all| all.sort_by(|a, b| index.metric().order(a.1, b.1).then(a.0.cmp(&b.0))));
            let best = all.iter().flat_map(|all| &all[..k]);
            (found.ids, found.distances) = best.copied().unzip();
            let options = SearchOptions::new().probes(4).widen(false);
            let options = if filtered { options.filter(&filter) } else { options };
            same(what, &index.search_with(queries, k, &options).unwrap(), &found);
        }
    }
}

/// Every kind of change, for one encoding.
fn follow<T: Element>(metric: Metric, encoding: Encoding) {
    // Ten components, which a device pads, and five bytes of a code of ten halves.
    let mut pair = Follower::<T>::new(metric, encoding, (200, 10), 1);
    let what = |step: &str| format!("{metric:?} {encoding} {}: {step}", T::TYPE.name());
    pair.follows(Sent::All, &what("new"));
    let few: Vec<u64> = (0..10).map(|at| at * 57).collect();
    pair.index.remove(&few).unwrap();
    pair.follows(Sent::Rows(20), &what("removed"));
    let snapshot = pair.snapshot();
    pair.index.add_with_ids(&pair.rows(&few[3..]), &few[3..]).unwrap();
    pair.index.remove(&[3, 6]).unwrap();
    pair.follows(Sent::Rows(11), &what("some of them back"));
    // The image was copied on the device.
    snapshot.follows(Sent::Nothing, &what("a snapshot"));
    let mut fork = snapshot.snapshot();
    drop(snapshot);
    fork.index.remove(&[3, 6, 9]).unwrap();
    fork.follows(Sent::Rows(6), &what("a snapshot of a snapshot"));
    // One list outgrows its room. The next image has room to grow.
    pair.add_like(90, 10_000..10_020);
    pair.follows(Sent::All, &what("a list outgrows an image without room"));
    pair.add_like(90, 10_020..10_022);
    pair.follows(Sent::Rows(2), &what("a list grows"));
    let shortest = (0..Follower::<T>::LISTS).filter(|&list| pair.index.kind.lists.length(list) > 0);
    let shortest = shortest.min_by_key(|&list| pair.index.kind.lists.length(list)).unwrap();
    let (like, length) = (pair.index.kind.lists.ids(shortest)[0], pair.index.kind.lists.length(shortest));
    pair.add_like(like, 10_022..10_042);
    pair.follows(Sent::Rows(length + 20), &what("a list moves to the reserve"));
    pair.index.remove(&[10_023, 10_024, 10_040]).unwrap();
    // Other vectors under known ids, in other lists.
    pair.index.upsert(&pair.rows(&[30, 33, 36]), &[300, 303, 0]).unwrap();
    pair.follows(Sent::Rows(15), &what("replaced"));
    // An id between others: new ranks.
    pair.add_like(90, 91..92);
    pair.follows(Sent::Ranks(1), &what("between"));
    let many: Vec<u64> = (0..60).map(|at| 3 * at + 300).collect();
    pair.index.remove_if_present(&many).unwrap();
    pair.follows(Sent::Ranks(120), &what("a third removed"));
    pair.add_like(like, 10_100..10_190);
    pair.follows(Sent::All, &what("a list outgrows the reserve"));
    // A greater component than that of any vector. The scale follows from the vectors only if they are stored as they
    // are.
    let mut great = pair.rows(&[93]);
    great.iter_mut().for_each(|component| *component = T::from_f32(120.0));
    pair.index.add_with_ids(&great, &[20_000]).unwrap();
    let scaled = encoding == Encoding::Flat && metric != Metric::Cosine;
    pair.follows(if scaled { Sent::All } else { Sent::Rows(1) }, &what("a greater component"));
    let all = pair.index.ids();
    pair.index.remove(&all[5..]).unwrap();
    pair.follows(Sent::All, &what("nearly all removed"));
}

#[test]
fn images_follow_changes() {
    let pq = Encoding::Pq { sub_quantizers: 10, bits: 4, rotate: false };
    follow::<f32>(Metric::L2, Encoding::Flat);
    follow::<u8>(Metric::Cosine, Encoding::Flat);
    follow::<f32>(Metric::InnerProduct, Encoding::F16);
    follow::<f32>(Metric::L2, Encoding::Scalar8);
    follow::<f32>(Metric::L2, pq);
    follow::<f32>(Metric::InnerProduct, pq);
}

/// Changes of lists that are long enough to keep their cuts, for one encoding.
fn follow_shards<T: Element>(metric: Metric, encoding: Encoding, shards: usize) {
    let mut pair = Follower::<T>::new(metric, encoding, (1_600, 10), shards);
    let what = |step: &str| format!("{metric:?} {encoding} {} on {shards} shards: {step}", T::TYPE.name());
    // The length of a list is rounded to a multiple of this number before it is divided.
    let step = |length: usize| 1 << (length.ilog2() - 4);
    // A list of which `removed` vectors can go and to which `added` can come before it is divided anew: one of its ids,
    // and its length.
    let list = |index: &IvfIndex<T>, removed: usize, added: usize| {
        let lengths = (0..Follower::<T>::LISTS).map(|list| (list, index.kind.lists.length(list)));
        let fits = |length: usize| length % step(length) >= removed && length % step(length) + added < step(length);
        let (list, length) = lengths.into_iter().find(|&(_, length)| length > 64 && fits(length)).unwrap();
        (index.kind.lists.ids(list)[0], length)
    };
    pair.follows(Sent::All, &what("new"));
    let some: Vec<u64> = (0..10).map(|at| at * 357).collect();
    pair.index.upsert(&pair.rows(&some), &some).unwrap();
    pair.follows(Sent::Rows(10), &what("replaced by equal vectors"));
    let snapshot = pair.snapshot();
    let (id, _) = list(&pair.index, 1, 0);
    pair.index.remove(&[id]).unwrap();
    pair.follows(Sent::Rows(2), &what("removed"));
    snapshot.follows(Sent::Nothing, &what("a snapshot"));
    // The next images have room to grow.
    let (like, _) = list(&pair.index, 0, 0);
    pair.add_like(like, 10_000..10_100);
    pair.follows(Sent::All, &what("a list outgrows images without room"));
    let (like, _) = list(&pair.index, 0, 3);
    pair.add_like(like, 10_100..10_103);
    pair.follows(Sent::Rows(3), &what("a list grows"));
    pair.index.remove(&[10_101]).unwrap();
    pair.follows(Sent::Rows(2), &what("a list shrinks"));
    let (like, length) = list(&pair.index, 0, 0);
    pair.add_like(like, 10_103..10_103 + step(length) as u64);
    pair.follows(Sent::Rows(length + step(length)), &what("a list is divided anew"));
    let (like, _) = list(&pair.index, 0, 1);
    pair.add_like(like, 91..92);
    pair.follows(Sent::Ranks(1), &what("an id between others"));
    // In any lists: some of them are divided anew.
    pair.index.upsert(&pair.rows(&[30, 33, 36, 39]), &[300, 303, 306, 20_000]).unwrap();
    let longest = (0..Follower::<T>::LISTS).map(|list| pair.index.kind.lists.length(list)).max().unwrap();
    pair.follows(Sent::Rows(7 * longest), &what("replaced by other vectors"));
    let all = pair.index.ids();
    pair.index.remove(&all[..all.len() / 2]).unwrap();
    pair.follows(Sent::All, &what("half removed"));
}

#[test]
fn images_of_shards_follow_changes() {
    follow_shards::<f32>(Metric::L2, Encoding::Flat, 2);
    follow_shards::<u8>(Metric::Cosine, Encoding::Flat, 3);
    follow_shards::<f32>(Metric::InnerProduct, Encoding::Scalar8, 2);
    follow_shards::<f32>(Metric::L2, Encoding::Pq { sub_quantizers: 10, bits: 4, rotate: false }, 3);
}

/// A scan list by list decodes the lists for each batch. So codes are scanned by tables where the scores of all queries
/// need several batches, though they are not for one batch.
#[test]
fn batches_change_how_lists_are_read() {
    let (dim, lists, probes, queries, k) = (8, 4, 3, 200_usize, 3);
    let base = vectors::<f32>(1_600, dim, 5);
    let pq = Encoding::Pq { sub_quantizers: 4, bits: 4, rotate: false };
    let mut cpu = IvfIndex::<f32>::builder(dim, lists).encoding(pq).device(Device::Cpu).build().unwrap();
    cpu.train(&base).unwrap();
    cpu.add(&base).unwrap();
    let (device, view) = (device(), cpu.kind.view(cpu.kind.trained().unwrap()));
    let resident = device.resident(&view).unwrap();
    let read = |scan, batches: usize| {
        let request = SearchRequest { queries: VectorSlice::of::<f32>(&[], dim), probes, filter: None, scan };
        let plan = |queries, reading| {
            let shape = IvfDevice::shape_by(&resident, queries, k, &request, reading);
            SearchPlan::new(&resident, ElementType::F32, shape, device.runtime.limits())
        };
        let bytes = plan(queries.div_ceil(batches), Reading::Lists).unwrap().bytes as u64;
        let tiling = |reading| {
            let budget = Budget::new(&device.runtime, bytes);
            Tiling::new(budget, (queries, queries), 1, |queries| plan(queries, reading))
        };
        let lists = tiling(Reading::Lists).unwrap();
        let (reading, tiles) = IvfDevice::reading(&resident, queries, &request, 1, tiling).unwrap();
        assert_eq!(tiles.plan.search_shape.by_tables, reading == Reading::Tables);
        (lists.len(), reading)
    };
    assert_eq!(read(Scan::Auto, 1), (1, Reading::Lists));
    assert_eq!(read(Scan::Auto, 4), (4, Reading::Tables));
    assert_eq!(read(Scan::ListMajor, 4), (4, Reading::Lists));
    assert_eq!(read(Scan::QueryMajor, 1), (1, Reading::Tables));
    // A search by the choice finds what the CPU finds.
    let budget = 4 * resident.bytes;
    let small = IvfIndex::<f32>::from_bytes(&cpu.to_bytes().unwrap(), Device::Emulator, Some(budget)).unwrap();
    let queries = vectors::<f32>(queries, dim, 6);
    let options = SearchOptions::new().probes(probes).widen(false);
    same(
        "batches",
        &cpu.search_with(&queries, k, &options).unwrap(),
        &small.search_with(&queries, k, &options).unwrap(),
    );
}

/// Batches have room for the scores of the lists that are probed, where those of the longest ones need several batches,
/// and are cut if these need more.
#[test]
fn batches_have_room_for_the_lists_that_are_probed() {
    let (dim, lists, probes, k) = (4, 12, 2, 7);
    let mut random = Random::new(21);
    let mut near = |point: usize| -> Vec<f32> {
        let centre = [10.0 * point as f32, (point * point) as f32, 0.0, 0.0];
        centre.iter().map(|x| x + random.unit() as f32).collect()
    };
    // Of twelve points one has most vectors, so that its list is as long as all others together.
    let base: Vec<f32> = (0..1_200).flat_map(|i| near(if i % 3 == 0 { i % lists } else { 0 })).collect();
    let queries: Vec<f32> = (0..60).flat_map(|i| near(if i < 40 { 3 + i % 8 } else { 0 })).collect();
    let mut cpu =
        IvfIndex::<f32>::builder(dim, lists).encoding(Encoding::Bits { bits: 5 }).device(Device::Cpu).build().unwrap();
    cpu.train(&base).unwrap();
    cpu.add(&base).unwrap();
    let options = SearchOptions::new().probes(probes).widen(false);
    let (device, view) = (device(), cpu.kind.view(cpu.kind.trained().unwrap()));
    let resident = device.resident(&view).unwrap();
    let (mut measured, mut refused) = ([0; 2], 0);
    for more in (10..200).step_by(10) {
        let budget = resident.bytes + (more << 10);
        let small = IvfIndex::<f32>::from_bytes(&cpu.to_bytes().unwrap(), Device::Emulator, Some(budget)).unwrap();
        for (of, queries) in [&queries[..40 * dim], &queries[..]].into_iter().enumerate() {
            let count = queries.len() / dim;
            let request =
                SearchRequest { queries: VectorSlice::of(queries, dim), probes, filter: None, scan: Scan::ListMajor };
            let chosen = IvfDevice::reading(&resident, count, &request, 1, |reading| {
                let plan = |queries| {
                    let shape = IvfDevice::shape_by(&resident, queries, k, &request, reading);
                    SearchPlan::new(&resident, ElementType::F32, shape, device.runtime.limits())
                };
                Tiling::new(Budget::new(&device.runtime, more << 10), (count, count), 1, plan)
            });
            measured[of] += usize::from(matches!(chosen, Ok((Reading::Measured, _))));
            let found = small.search_with(queries, k, &options.scan(Scan::ListMajor));
            match found {
                Err(Error::OutOfDeviceMemory { .. }) => refused += 1,
                found => assert_eq!(found.unwrap(), cpu.search_with(queries, k, &options).unwrap(), "{more}"),
            }
        }
    }
    assert!(measured.iter().all(|&times| times > 2) && refused < 10, "{measured:?}, {refused} refused");
}

/// A device rotates queries, unless f32 might not hold what comes out: then the host does, and names it.
#[test]
fn large_queries_are_rotated_or_refused_as_on_the_cpu() {
    let dim = 64;
    let rows: Vec<f32> = (0..60 * dim).map(|i| ((i * i) as f32 * 0.37).sin()).collect();
    let on = |device: Device| {
        let builder = IvfIndex::<f32>::builder(dim, 3).encoding(Encoding::Bits { bits: 4 }).iterations(2);
        let mut index = builder.device(device).build().unwrap();
        index.train(&rows).unwrap();
        index.add(&rows).unwrap();
        index
    };
    let (cpu, device) = (on(Device::Cpu), on(Device::Emulator));
    let mut unit = vec![0.0; dim];
    unit[0] = 1.0;
    let first = Mixing::from_signs(dim, cpu.code_tables()).unwrap().undo(&unit);
    // The first component of the rotated vector is `size`; those of the vector are smaller.
    let query = |size: f64| first.iter().map(|&x| (f64::from(x) * size) as f32).collect::<Vec<f32>>();
    for size in [1.0, 1e36, 1e38] {
        let queries = [query(size), rows[..dim].to_vec()].concat();
        assert_eq!(device.search(&queries, 5).unwrap(), cpu.search(&queries, 5).unwrap(), "{size}");
    }
    let queries = [rows[..dim].to_vec(), query(5e38)].concat();
    assert!(queries.iter().all(|x| x.is_finite()));
    for index in [&cpu, &device] {
        let error = index.search(&queries, 5).unwrap_err();
        assert!(matches!(error, Error::Overflow { derived: "rotated vector", row: 1, column: 0 }), "{error}");
    }
}

/// Vectors that do not fit into shared memory as f64 are rotated by the host, and are refused in device memory.
#[test]
fn longer_vectors_than_shared_memory_are_rotated_by_the_host() {
    let device = device();
    let dim = device.runtime.limits().shared_bytes as usize / size_of::<f64>() + 1;
    let rows: Vec<f32> = (0..12 * dim).map(|i| ((i % 7919) as f32 * 0.37).sin()).collect();
    let builder = IvfIndex::<f32>::builder(dim, 1).encoding(Encoding::Bits { bits: 1 }).iterations(0);
    let mut cpu = builder.device(Device::Cpu).build().unwrap();
    cpu.train(&rows[..dim]).unwrap();
    cpu.add(&rows).unwrap();
    let request =
        SearchRequest { queries: VectorSlice::of::<f32>(&[], dim), probes: 1, filter: None, scan: Scan::ListMajor };
    let error = device.plan_search(&cpu.kind.view(cpu.kind.trained().unwrap()), 2, 3, &request).err().unwrap();
    assert!(matches!(error, Error::TooMany { asked, limit, .. } if asked == limit + 1), "{error}");
    let expected = cpu.search(&rows[..2 * dim], 3).unwrap();
    cpu.move_to(Device::Emulator).unwrap();
    same("rotated by the host", &expected, &cpu.search(&rows[..2 * dim], 3).unwrap());
}
