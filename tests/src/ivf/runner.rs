//! Runs one case on one device and compares the results with the reference, to the bit.

use test_cases::by_element;
use warpann::ivf::{Encoding, IvfIndex, IvfIndexBuilder};
use warpann::{Bitset, Device, Filter, Metric, Neighbors, Placement, Scan, SearchOptions};

use super::cases::{Ids, IvfCase};
use super::reference::{Contents, Kept, Model, Rotation};
use crate::data::{self, Component, Random};
use crate::reference::{badness, worst};
use crate::runner::{Outcome, text};

/// Runs a case on a device, or on a placement over several devices.
///
/// # Errors
/// A description of the first difference.
pub fn run(case: &IvfCase, device: impl Into<Placement>) -> Outcome {
    let device = device.into();
    run_trained_on(case, trainer(&device), device)
}

/// As [`run`], with an index that was trained on another device.
///
/// # Errors
/// A description of the first difference.
pub fn run_trained_on(case: &IvfCase, trainer: impl Into<Placement>, device: impl Into<Placement>) -> Outcome {
    let device = device.into();
    let trainer = trainer.into();
    by_element!(case.element, run_elements(case, trainer, &device))
        .map_err(|failure| format!("{failure}\non {device}: {case:?}"))
}

/// The devices that train an index for `device`. The CPU trains for the emulator: emulated training takes ten times as
/// long as the rest of a case, and finds the same bits, as [`super::scenarios`] shows.
fn trainer(device: &Placement) -> Placement {
    if device.devices().contains(&Device::Emulator) { Device::Cpu.into() } else { device.clone() }
}

/// A trained index on `device`. For the emulator, the CPU trains it.
///
/// # Errors
/// Descriptions of the errors of training, saving and loading.
pub fn trained<T: Component>(
    builder: IvfIndexBuilder<T>,
    device: impl Into<Placement>,
    rows: &[T],
) -> Result<IvfIndex<T>, String> {
    let device = device.into();
    trained_on(trainer(&device), builder, device, rows)
}

/// An index on `device` that `trainer` trains. If the two differ, the index moves through a file.
fn trained_on<T: Component>(
    trainer: Placement,
    builder: IvfIndexBuilder<T>,
    device: Placement,
    rows: &[T],
) -> Result<IvfIndex<T>, String> {
    let moved = trainer != device;
    let mut index = builder.device(trainer).build().map_err(text)?;
    index.train(rows).map_err(text)?;
    if !moved {
        return Ok(index);
    }
    let file = tempfile::NamedTempFile::new().map_err(text)?;
    index.save(file.path()).map_err(text)?;
    IvfIndex::load(file.path(), device, None).map_err(text)
}

/// The results of training, as the reference needs them.
pub fn model<T: Component>(index: &IvfIndex<T>) -> Model {
    let widen = |values: &[f32]| -> Vec<f64> { values.iter().map(|&x| f64::from(x)).collect() };
    let tables = index.code_tables();
    let kept = match index.encoding() {
        Encoding::Flat if index.metric().compares_bits() => Kept::Bits,
        Encoding::Flat => Kept::Vector,
        Encoding::F16 => Kept::Half(tables[0]),
        Encoding::Scalar8 => {
            let (least, steps) = tables[..2 * index.dim()].split_at(index.dim());
            Kept::Ranges { least: least.to_vec(), steps: steps.to_vec(), residuals: tables[2 * index.dim()] == 1.0 }
        }
        Encoding::Bits { bits } => Kept::Levels(bits),
        Encoding::Pq { sub_quantizers, .. } => Kept::Codebooks(tables.to_vec(), sub_quantizers),
        other => panic!("the reference has no encoding {other}"),
    };
    Model {
        dim: if kept == Kept::Bits { 8 * index.dim() } else { index.dim() },
        metric: index.metric(),
        centroids: widen(index.centroids()),
        kept,
        rotation: match index.encoding() {
            Encoding::Bits { .. } => Some(Rotation::Signs(widen(tables))),
            _ => index.rotation().map(|rotation| Rotation::Matrix(widen(rotation.matrix()))),
        },
    }
}

/// Makes `n` ids of this kind.
pub fn ids(kind: Ids, n: usize, seed: u64) -> Vec<u64> {
    let mut random = Random::new(seed);
    match kind {
        Ids::Counted => (0..n as u64).collect(),
        Ids::Any => {
            // The low bits count, so ids are distinct. Bit 63 is clear, so no id is the reserved one.
            let mut ids: Vec<u64> = (0..n as u64).map(|at| (random.bits() >> 1 & !0xf_ffff) | at).collect();
            for at in (1..n).rev() {
                ids.swap(at, random.below(at + 1));
            }
            ids
        }
    }
}

fn run_elements<T: Component>(case: &IvfCase, trainer: Placement, device: &Placement) -> Outcome {
    let &IvfCase { dim, n, lists, nq, k, probes, metric, encoding, data, seed, .. } = case;
    let vectors = data::vectors::<T>(data, dim, n, nq, seed);
    let need = match encoding {
        Encoding::Pq { bits, .. } => lists.max(1 << bits),
        _ => lists,
    };
    let others = (n < need).then(|| data::vectors::<T>(data, dim, need, 0, seed));
    let rows = &others.as_ref().unwrap_or(&vectors).base;
    let builder = IvfIndex::<T>::builder(dim, lists).metric(metric).encoding(encoding).iterations(3).seed(seed);
    let mut index = trained_on(trainer, builder, device.clone(), rows)?;
    let model = model(&index);
    if model.centroids.len() != lists * model.dim
        || !index.is_trained()
        || model.centroids.iter().any(|c| !c.is_finite())
    {
        return Err(format!("{} components of centroids", model.centroids.len()));
    }
    let mut contents = Contents::new(model);
    let ids = ids(case.ids, n, seed);
    contents.add(&vectors.exact_base, &ids);
    // One to three additions of different sizes.
    let first = [n, n / 3, n / 2][(seed % 3) as usize];
    let second = first + (n - first) / 2;
    for portion in [0..first, first..second, second..n] {
        let rows = &vectors.base[portion.start * dim..portion.end * dim];
        match case.ids {
            Ids::Counted => index.add(rows),
            Ids::Any => index.add_with_ids(rows, &ids[portion]),
        }
        .map_err(text)?;
    }
    if index.len() != n || index.ids() != contents.ids() {
        return Err(format!("the index has {} vectors, or other ids", index.len()));
    }
    let allowed = |id: u64| {
        case.allowed
            .is_none_or(|percent| id.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32 < (u64::from(percent) << 32) / 100)
    };
    let filter: Option<Bitset> = case.allowed.map(|_| index.filter(allowed));
    let options =
        SearchOptions::new().probes(probes).filter(filter.as_ref().map(Filter::Bits)).widen(false).scan(case.scan);
    let ranked: Vec<Vec<(u64, f32)>> =
        vectors.exact_queries.chunks(dim).map(|query| contents.ranked(query, probes, allowed)).collect();
    compare(&index, &ranked, &vectors.queries, k, &options)?;
    if device.devices().iter().all(|&device| device == Device::Cpu) {
        for scan in [Scan::ListMajor, Scan::QueryMajor].into_iter().filter(|&scan| scan != case.scan) {
            compare(&index, &ranked, &vectors.queries, k, &options.scan(scan))?;
        }
    }
    let by_id = contents.by_id();
    for &id in ids.iter().step_by(n / 3 + 1) {
        let back = index.reconstruct(id).map_err(text)?;
        let expected = contents.model.read_back(by_id[&id]);
        if back.iter().map(|x| x.to_bits()).ne(expected.iter().map(|x| x.to_bits())) {
            return Err(format!("vector {id} comes back as {back:?}, expected {expected:?}"));
        }
    }
    let statistics = index.statistics();
    let lengths: Vec<usize> = contents.lists.iter().map(Vec::len).collect();
    let empty = lengths.iter().filter(|&&length| length == 0).count();
    let extremes = (lengths.iter().copied().min(), lengths.iter().copied().max());
    if (Some(statistics.shortest), Some(statistics.longest)) != extremes || statistics.empty_lists != empty {
        return Err(format!("{statistics:?}, but lists of {lengths:?}"));
    }
    Ok(())
}

/// Compares searches for k neighbours and range searches with the contents.
///
/// # Errors
/// A description of the first difference.
pub fn check<T: Component>(
    index: &IvfIndex<T>,
    contents: &Contents,
    queries: &[T],
    exact: &[f64],
    k: usize,
    options: &SearchOptions<'_>,
    allowed: impl Fn(u64) -> bool + Copy,
) -> Outcome {
    let probes = options.probes.unwrap_or(index.probes());
    let ranked: Vec<_> = exact.chunks(index.dim()).map(|query| contents.ranked(query, probes, allowed)).collect();
    compare(index, &ranked, queries, k, options)
}

/// As [`check`]; `ranked` has all vectors that each query may find, best first.
fn compare<T: Component>(
    index: &IvfIndex<T>,
    ranked: &[Vec<(u64, f32)>],
    queries: &[T],
    k: usize,
    options: &SearchOptions<'_>,
) -> Outcome {
    let metric = index.metric();
    let found = index.search_with(queries, k, options).map_err(text)?;
    check_nearest(metric, ranked, k, &found).map_err(|failure| format!("{:?}: {failure}", options.scan))?;
    // Two radii: a distance that occurs, and one that includes all vectors.
    let middle = ranked.iter().find(|row| !row.is_empty()).map(|row| row[row.len() / 3].1);
    compare_ranges(index, ranked, queries, middle.unwrap_or(0.0), options)?;
    compare_ranges(index, ranked, queries, worst(metric), options)
}

/// Compares range searches with `ranked`, which has all vectors that each query may find, best first.
fn compare_ranges<T: Component>(
    index: &IvfIndex<T>,
    ranked: &[Vec<(u64, f32)>],
    queries: &[T],
    radius: f32,
    options: &SearchOptions<'_>,
) -> Outcome {
    let metric = index.metric();
    let within =
        |&(_, distance): &(u64, f32)| badness(metric, f64::from(distance)) <= badness(metric, f64::from(radius));
    let found = index.range_search(queries, radius, options).map_err(text)?;
    if found.queries() != ranked.len() {
        return Err(format!("{} rows of range search", found.queries()));
    }
    for (number, row) in ranked.iter().enumerate() {
        let expected = &row[..row.partition_point(within)];
        let (ids, distances) = found.row(number);
        let found = || ids.iter().copied().zip(distances.iter().copied());
        let bits = |(id, distance): (u64, f32)| (id, distance.to_bits());
        if found().map(bits).ne(expected.iter().copied().map(bits)) {
            let found: Vec<(u64, f32)> = found().collect();
            let scan = options.scan;
            return Err(format!("{scan:?}, radius {radius}, query {number}: {found:?}; expected {expected:?}"));
        }
    }
    Ok(())
}

fn check_nearest(metric: Metric, ranked: &[Vec<(u64, f32)>], k: usize, found: &Neighbors) -> Outcome {
    if found.k != k || found.ids.len() != ranked.len() * k || found.distances.len() != ranked.len() * k {
        return Err(format!("{} ids and {} distances for k = {}", found.ids.len(), found.distances.len(), found.k));
    }
    let none = (crate::reference::NO_ID, worst(metric));
    for (number, row) in ranked.iter().enumerate() {
        let (ids, distances) = found.row(number);
        let expected = row.iter().copied().chain(std::iter::repeat(none));
        for (place, ((id, distance), expected)) in ids.iter().zip(distances).zip(expected).enumerate() {
            if (*id, distance.to_bits()) != (expected.0, expected.1.to_bits()) {
                return Err(format!(
                    "query {number}, place {place} of {k}: id {id} at {distance:?}; by definition id {} at {:?} ({} \
                     candidates)",
                    expected.0,
                    expected.1,
                    row.len()
                ));
            }
        }
    }
    Ok(())
}
