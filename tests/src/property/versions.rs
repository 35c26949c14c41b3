//! Eight threads search an index while one changes it ([`IndexWriter`]). Each result must be that of a version that existed, to the bit.
//!
//! The reference is an ordered map of vectors for each version, searched by brute force. A version has its number in itself: the first component
//! of vector 0. A thread reads the number, and compares what it found with the map of that number, at once and again when
//! later versions exist.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use warpann::ivf::Encoding;
use warpann::{
    Device, Error, FlatIndex, GraphIndex, Index, IndexReader, IndexWriter, IvfIndex, Metric, Placement, SearchOptions,
};

use crate::data::Random;
use crate::reference::{NO_ID, badness, defined, worst};
use crate::runner::Outcome;

/// Number of threads that search at the same time.
const THREADS: usize = 8;
/// The id of the vector that has the number of the version.
const NUMBERED: u64 = 0;
/// Old versions that a thread keeps to look at them again.
const KEPT: usize = 3;

/// The vectors of one version.
type Vectors = BTreeMap<u64, Vec<f32>>;

/// What the threads of a case share.
struct Case {
    dim: usize,
    metric: Metric,
    /// The vectors of each version, noted before the version is published.
    versions: RwLock<Vec<Arc<Vectors>>>,
    options: SearchOptions<'static>,
    over: AtomicBool,
    /// Whether a thread searches a version as often as it can. The emulator is too slow for that: there a thread waits for the next version.
    always: bool,
}

/// The case of a seed: in turn of a flat index, of inverted files, and of a graph whose beam is as wide as the index, so that its walks meet
/// every vector.
///
/// # Errors
/// The case and the first difference, in words.
pub fn case(seed: u64, device: Device) -> Outcome {
    let mut random = Random::new(seed);
    let text = |error: Error| error.to_string();
    let (dim, metric) = (1 + random.below(6), random.pick(&Metric::ALL));
    let placement: Placement = match random.below(6) {
        shards @ (1 | 2) => Placement::new(vec![device, device], shards).map_err(|error| error.to_string())?,
        _ => device.into(),
    };
    let on_cpu = device == Device::Cpu;
    let (count, changes) = if on_cpu { ([100, 1000][random.below(2)], 40) } else { (60, 8) };
    let sample = vectors(&mut random, 40 * dim);
    let case = |options| Case {
        dim,
        metric,
        versions: RwLock::default(),
        options,
        over: AtomicBool::new(false),
        always: on_cpu,
    };
    let lists = 1 + random.below(8);
    let told = match seed % 3 {
        0 => {
            let index = FlatIndex::<f32>::builder(dim).metric(metric).device(placement).build().map_err(text)?;
            run(&case(SearchOptions::new()), index, count, changes, &mut random)
        }
        1 => {
            // Under cosine, codes hold normalised vectors, which are no whole numbers.
            let encoding =
                if metric == Metric::Cosine { Encoding::Flat } else { random.pick(&[Encoding::Flat, Encoding::F16]) };
            let builder = IvfIndex::<f32>::builder(dim, lists).metric(metric).encoding(encoding).iterations(2);
            let mut index = builder.device(Device::Cpu).build().map_err(text)?;
            index.train(&sample).map_err(text)?;
            index.move_to(placement).map_err(text)?;
            run(&case(SearchOptions::new().probes(lists)), index, count, changes, &mut random)
        }
        _ => {
            let count = count.min(200);
            // Codes are rounded, so walks by them need not find the lowest ids of vectors at the same distance.
            let builder = GraphIndex::<f32>::builder(dim).metric(metric).device(placement).codes(false);
            let index = builder.degree(4 + random.below(5)).exact_ratio(0).beam(4 * count).build().map_err(text)?;
            run(&case(SearchOptions::new()), index, count, changes, &mut random)
        }
    };
    told.map_err(|failure| format!("{failure}\nkind {}, {dim}, {metric:?}, {count} vectors", seed % 3))
}

/// Small whole numbers, which every encoding of the cases holds exactly.
fn vectors(random: &mut Random, components: usize) -> Vec<f32> {
    (0..components).map(|_| random.below(9) as f32).collect()
}

/// Changes the index in this thread, while others search it.
fn run<I: Index<f32>>(case: &Case, mut index: I, count: usize, changes: usize, random: &mut Random) -> Outcome {
    let text = |error: Error| error.to_string();
    let ids: Vec<u64> = (0..count as u64).map(|id| 3 * id).collect();
    let mut rows = vectors(random, ids.len() * case.dim);
    rows[0] = 0.0;
    index.add_with_ids(&rows, &ids).map_err(text)?;
    let mut model: Vectors = ids.iter().copied().zip(rows.chunks(case.dim).map(<[f32]>::to_vec)).collect();
    case.versions.write().unwrap_or_else(PoisonError::into_inner).push(Arc::new(model.clone()));
    let mut writer = IndexWriter::new(index);
    std::thread::scope(|scope| {
        let seeds: Vec<u64> = (0..THREADS).map(|_| random.bits()).collect();
        let searching: Vec<_> = seeds
            .into_iter()
            .map(|seed| {
                let reader = writer.reader();
                scope.spawn(move || search_on(case, &reader, Random::new(seed)))
            })
            .collect();
        let changed = (1..=changes as u64).try_for_each(|version| {
            if searching.iter().any(|thread| thread.is_finished()) {
                return Ok(());
            }
            change(case, &mut writer, &mut model, version, random)
        });
        case.over.store(true, Ordering::Relaxed);
        let found = searching
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|panic| Err(super::message(&*panic).to_owned())));
        found.fold(changed, |all, found| all.and(found))
    })
}

/// Makes and publishes a version by some changes.
fn change<I: Index<f32>>(
    case: &Case,
    writer: &mut IndexWriter<I>,
    model: &mut Vectors,
    version: u64,
    random: &mut Random,
) -> Outcome {
    let mut next = model.clone();
    let count = model.len();
    let result = writer.change(|index| {
        for _ in 0..1 + random.below(3) {
            let ids: Vec<u64> = next.keys().copied().filter(|&id| id != NUMBERED).collect();
            match random.below(4) {
                0 => {
                    let first = random.below(3 * count) as u64;
                    let new: Vec<u64> = (first..first + 4).filter(|id| !next.contains_key(id)).collect();
                    let rows = vectors(random, new.len() * case.dim);
                    index.add_with_ids(&rows, &new)?;
                    next.extend(new.into_iter().zip(rows.chunks(case.dim).map(<[f32]>::to_vec)));
                }
                1 => {
                    let known = [random.pick(&ids), 1 + random.below(4 * count) as u64];
                    let known = &known[..1 + usize::from(known[0] != known[1])];
                    let rows = vectors(random, known.len() * case.dim);
                    index.upsert(&rows, known)?;
                    next.extend(known.iter().copied().zip(rows.chunks(case.dim).map(<[f32]>::to_vec)));
                }
                _ if ids.len() > count / 2 => {
                    // A removal of neighbours in the order of ids, and rarely of so many that the others move.
                    let most = if random.once_in(10) { ids.len() / 4 } else { 4 };
                    let first = random.below(ids.len());
                    let gone = &ids[first..ids.len().min(first + 1 + random.below(most))];
                    index.remove(gone)?;
                    gone.iter().for_each(|id| drop(next.remove(id)));
                }
                _ => {}
            }
        }
        let mut row = vectors(random, case.dim);
        row[0] = version as f32;
        index.upsert(&row, &[NUMBERED])?;
        next.insert(NUMBERED, row);
        // The version is noted before any thread can see it.
        case.versions.write().unwrap_or_else(PoisonError::into_inner).push(Arc::new(next.clone()));
        Ok(())
    });
    *model = next;
    result.map_err(|error| format!("version {version}: {error}"))
}

/// Searches versions until the case is over.
fn search_on<I: Index<f32>>(case: &Case, reader: &IndexReader<I>, mut random: Random) -> Outcome {
    let mut kept: Vec<Arc<I>> = Vec::new();
    loop {
        let over = case.over.load(Ordering::Relaxed);
        let index = reader.current();
        let again = kept.last().is_some_and(|last| Arc::ptr_eq(last, &index));
        if again && !over && !case.always {
            std::thread::sleep(Duration::from_millis(1));
            continue;
        }
        // Some threads search an old version while others are the first to search the new one.
        let old = (!kept.is_empty()).then(|| Arc::clone(&kept[random.below(kept.len())]));
        for index in old.iter().chain([&index]) {
            check(case, &**index, &mut random)?;
        }
        if kept.len() == KEPT {
            kept.remove(0);
        }
        kept.push(index);
        if over {
            return Ok(());
        }
    }
}

/// Compares one search of a version with brute force.
fn check<I: Index<f32>>(case: &Case, index: &I, random: &mut Random) -> Outcome {
    let text = |error: Error| error.to_string();
    let (ids, version) = (index.ids(), index.reconstruct_f32(NUMBERED).map_err(text)?[0]);
    let (model, last) = {
        let versions = case.versions.read().unwrap_or_else(PoisonError::into_inner);
        (versions.get(version as usize).cloned(), versions.len() - 1)
    };
    let model = model.ok_or_else(|| format!("no version {version}, of {last}"))?;
    if !ids.iter().eq(model.keys()) {
        return Err(format!("version {version} has the ids {ids:?}"));
    }
    let (query, k) = (vectors(random, case.dim), 1 + random.below(10));
    let found = index.search_with(&query, k, &case.options).map_err(text)?;
    let wide = |vector: &[f32]| vector.iter().map(|&x| f64::from(x)).collect::<Vec<f64>>();
    let query = wide(&query);
    let mut all: Vec<(u64, f32)> =
        model.iter().map(|(&id, vector)| (id, defined(case.metric, &query, &wide(vector)))).collect();
    all.sort_by(|a, b| {
        badness(case.metric, a.1.into()).total_cmp(&badness(case.metric, b.1.into())).then(a.0.cmp(&b.0))
    });
    all.resize(k, (NO_ID, worst(case.metric)));
    let found = found.ids.iter().zip(&found.distances);
    let same =
        |((&id, &distance), best): ((&u64, &f32), &(u64, f32))| id == best.0 && distance.to_bits() == best.1.to_bits();
    if found.clone().zip(&all).all(same) {
        return Ok(());
    }
    Err(format!("version {version}, with {last} the last: {:?}, expected {all:?}", found.collect::<Vec<_>>()))
}
