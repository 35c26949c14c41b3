//! Eight threads search an index while one changes it ([`IndexWriter`]). Each result must be that of a version that
//! existed, to the bit.
//!
//! The reference is an ordered map of vectors for each version, searched by brute force; of an encoding, the map has
//! the vectors for which codes stand. A version has its number in itself: its greatest id. A thread reads the number,
//! and compares what it found with the map of that number, at once and again when later versions exist. So data that
//! snapshots share (images on a device, norms, tables of ids, workspaces) must be those of the version that is
//! searched. Some versions go on from an old one, so that versions with different vectors have the same ancestor. Some
//! changes are cancelled, or end in a panic of their callback, before the version is published.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use warpann::ivf::Encoding;
use warpann::{
    Bitset, Device, Error, FlatIndex, GraphIndex, Index, IndexReader, IndexWriter, IvfIndex, Kind, Metric, Placement,
    SearchOptions,
};

use super::changes::add_stopped;
use crate::data::Random;
use crate::reference::{NO_ID, badness, defined, worst};
use crate::runner::{Outcome, text};

/// Number of threads that search at the same time.
const THREADS: usize = 8;
/// The greatest id of a version is this number and the number of the version. All other ids are lower.
const NUMBERED: u64 = 1 << 40;
/// Old versions that a thread keeps to look at them again.
const KEPT: usize = 3;

/// The vectors of one version.
type Vectors = BTreeMap<u64, Vec<f32>>;

/// The state that the threads of a case share.
struct Case {
    dim: usize,
    metric: Metric,
    /// The vectors of each version, noted before the version is published.
    versions: RwLock<Vec<Arc<Vectors>>>,
    options: SearchOptions<'static>,
    over: AtomicBool,
    /// Whether a thread searches a version as often as it can. The emulator is too slow for that: there a thread waits
    /// for the next version.
    always: bool,
}

/// The case of a seed: in turn of a flat index, of inverted files, and of a graph whose beam is as wide as the index,
/// so that its walks meet every vector.
///
/// # Errors
/// The case and the first difference, in words.
pub fn case(seed: u64, device: Device) -> Outcome {
    let mut random = Random::new(seed);
    let (dim, metric) = (1 + random.below(6), random.pick(&Metric::OF_NUMBERS));
    let placement: Placement = match random.below(6) {
        shards @ (1 | 2) => Placement::new(vec![device, device], shards).map_err(text)?,
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
            let builder = FlatIndex::<f32>::builder(dim).metric(metric).device(placement);
            run(&case(SearchOptions::new()), builder.build().map_err(text)?, None, count, changes, &mut random)
        }
        1 => {
            let pq = Encoding::Pq { sub_quantizers: dim, bits: 4, rotate: false };
            // Under cosine, distances are those of normalised vectors, which codes do not show.
            let encoding = match random.below(6) {
                _ if metric == Metric::Cosine => Encoding::Flat,
                0 => Encoding::F16,
                1 => Encoding::Scalar8,
                2 | 3 => pq,
                _ => Encoding::Flat,
            };
            let builder = IvfIndex::<f32>::builder(dim, lists).metric(metric).encoding(encoding).iterations(2);
            // An index that trains itself gets its lists in one of the versions.
            let trains_itself = encoding == Encoding::Flat && random.once_in(2);
            let builder = if trains_itself { builder.train_at(count / 2 + random.below(count)) } else { builder };
            let mut index = builder.device(Device::Cpu).build().map_err(text)?;
            if !trains_itself {
                index.train(&sample).map_err(text)?;
            }
            let coder = (encoding != Encoding::Flat).then(|| index.snapshot());
            index.move_to(placement).map_err(text)?;
            run(&case(SearchOptions::new().probes(lists)), index, coder, count, changes, &mut random)
        }
        _ => {
            let count = count.min(200);
            // Codes are rounded, so walks by them need not find the lowest ids of vectors at the same distance.
            let builder = GraphIndex::<f32>::builder(dim).metric(metric).device(placement).codes(false);
            let index = builder.degree(4 + random.below(5)).exact_ratio(0).beam(4 * count).build().map_err(text)?;
            run(&case(SearchOptions::new()), index, None, count, changes, &mut random)
        }
    };
    told.map_err(|failure| format!("{failure}\nkind {}, {dim}, {metric:?}, {count} vectors", seed % 3))
}

/// Vectors of small whole numbers, so that many distances are equal.
fn vectors(random: &mut Random, components: usize) -> Vec<f32> {
    (0..components).map(|_| random.below(9) as f32).collect()
}

/// The versions that one thread makes.
struct Writing<I> {
    writer: IndexWriter<Index<I>>,
    /// The vectors of the last version.
    model: Vectors,
    /// An index with the same training, which shows what a code stands for; `None` if the index keeps vectors as they
    /// are.
    coder: Option<Index<I>>,
    /// Old versions, from which later ones may go on.
    old: Vec<(Arc<Index<I>>, Vectors)>,
    /// Number of vectors of the first version.
    count: usize,
}

/// Changes the index in this thread, while others search it.
fn run<I: Kind<Element = f32>>(
    case: &Case,
    mut index: Index<I>,
    mut coder: Option<Index<I>>,
    count: usize,
    changes: usize,
    random: &mut Random,
) -> Outcome {
    let ids: Vec<u64> = (0..count as u64).map(|id| 3 * id).chain([NUMBERED]).collect();
    let rows = vectors(random, ids.len() * case.dim);
    index.add_with_ids(&rows, &ids).map_err(text)?;
    let model: Vectors = ids.iter().copied().zip(stored(&mut coder, &rows, case.dim).map_err(text)?).collect();
    case.versions.write().unwrap_or_else(PoisonError::into_inner).push(Arc::new(model.clone()));
    let mut writing = Writing { writer: IndexWriter::new(index), model, coder, old: Vec::new(), count };
    std::thread::scope(|scope| {
        let seeds: Vec<u64> = (0..THREADS).map(|_| random.bits()).collect();
        let searching: Vec<_> = seeds
            .into_iter()
            .map(|seed| {
                let reader = writing.writer.reader();
                scope.spawn(move || search_on(case, &reader, Random::new(seed)))
            })
            .collect();
        let changed = (1..=changes as u64).try_for_each(|version| {
            if searching.iter().any(|thread| thread.is_finished()) {
                return Ok(());
            }
            change(case, &mut writing, version, random)
        });
        case.over.store(true, Ordering::Relaxed);
        let found = searching
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|panic| Err(super::message(&*panic).to_owned())));
        found.fold(changed, |all, found| all.and(found))
    })
}

/// The vectors for which the codes of some vectors stand.
fn stored<I: Kind<Element = f32>>(
    coder: &mut Option<Index<I>>,
    rows: &[f32],
    dim: usize,
) -> Result<Vec<Vec<f32>>, Error> {
    let Some(coder) = coder else { return Ok(rows.chunks(dim).map(<[f32]>::to_vec).collect()) };
    coder.clear();
    coder.add(rows)?;
    (0..(rows.len() / dim) as u64).map(|id| coder.reconstruct(id)).collect()
}

/// Makes and publishes a version by some changes.
fn change<I: Kind<Element = f32>>(case: &Case, writing: &mut Writing<I>, version: u64, random: &mut Random) -> Outcome {
    let Writing { writer, model, coder, old, count } = writing;
    let (dim, count) = (case.dim, *count);
    if old.len() < KEPT || random.once_in(4) {
        old.truncate(KEPT - 1);
        old.insert(0, (writer.current(), model.clone()));
    }
    let mut next = model.clone();
    let result = writer.change(|index| {
        if random.once_in(5) {
            let (other, others) = &old[random.below(old.len())];
            *index = other.snapshot();
            next = others.clone();
        }
        // The number of the version before is the last row. Without it, the other ids lie above all rows as well.
        let number = *next.last_key_value().map_or(&NUMBERED, |(id, _)| id);
        index.remove(&[number])?;
        next.remove(&number);
        for _ in 0..1 + random.below(3) {
            let ids: Vec<u64> = next.keys().copied().collect();
            match random.below(6) {
                kind @ (0 | 1) => {
                    let first = random.below(4 * count) as u64;
                    let new: Vec<u64> = (first..first + 4).filter(|id| !next.contains_key(id)).collect();
                    let rows = vectors(random, new.len() * dim);
                    if kind == 1 {
                        stopped(index, &rows, &new, random)?;
                    } else {
                        index.add_with_ids(&rows, &new)?;
                        next.extend(new.into_iter().zip(stored(coder, &rows, dim)?));
                    }
                }
                2 => {
                    let known = [random.pick(&ids), 1 + random.below(4 * count) as u64];
                    let known = &known[..1 + usize::from(known[0] != known[1])];
                    let rows = vectors(random, known.len() * dim);
                    index.upsert(&rows, known)?;
                    next.extend(known.iter().copied().zip(stored(coder, &rows, dim)?));
                }
                3 if random.once_in(12) => {
                    index.clear();
                    let rows = vectors(random, ids.len() * dim);
                    index.add_with_ids(&rows, &ids)?;
                    next = ids.into_iter().zip(stored(coder, &rows, dim)?).collect();
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
        let row = vectors(random, dim);
        index.add_with_ids(&row, &[NUMBERED + version])?;
        next.extend([NUMBERED + version].into_iter().zip(stored(coder, &row, dim)?));
        // The version is noted before any thread can see it.
        case.versions.write().unwrap_or_else(PoisonError::into_inner).push(Arc::new(next.clone()));
        Ok::<(), Error>(())
    });
    *model = next;
    result.map_err(|error| format!("version {version}: {error}"))
}

/// Adds vectors with a callback that cancels, or that panics.
fn stopped<I: Kind<Element = f32>>(
    index: &mut Index<I>,
    rows: &[f32],
    ids: &[u64],
    random: &mut Random,
) -> Result<(), Error> {
    match add_stopped(index, rows, ids, random.below(3), random.once_in(2)).0 {
        // Its callback was not called as often.
        Ok(()) => index.remove(ids),
        Err(Error::Cancelled) => Ok(()),
        other => other,
    }
}

/// Searches versions until the case is over.
fn search_on<I: Kind<Element = f32>>(case: &Case, reader: &IndexReader<Index<I>>, mut random: Random) -> Outcome {
    let mut kept: Vec<Arc<Index<I>>> = Vec::new();
    // A filter, and the ids for which it was made.
    let mut filter: (Bitset, Vec<u64>) = (Bitset::new(0), Vec::new());
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
            check(case, &**index, &mut filter, &mut random)?;
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

/// Compares one search of a version with brute force: of all vectors or under a filter, for k of them or for those
/// within a radius.
fn check<I: Kind<Element = f32>>(
    case: &Case,
    index: &Index<I>,
    filter: &mut (Bitset, Vec<u64>),
    random: &mut Random,
) -> Outcome {
    let ids = index.ids();
    let version = ids.last().copied().unwrap_or(NUMBERED) - NUMBERED;
    let (model, last) = {
        let versions = case.versions.read().unwrap_or_else(PoisonError::into_inner);
        (versions.get(version as usize).cloned(), versions.len() - 1)
    };
    let model = model.ok_or_else(|| format!("no version {version}, of {last}"))?;
    if !ids.iter().eq(model.keys()) {
        return Err(format!("version {version} has the ids {ids:?}"));
    }
    let id = random.pick(&ids);
    let vector = index.reconstruct(id).map_err(text)?;
    if vector != model[&id] {
        return Err(format!(
            "version {version}, with {last} the last: vector {id} is {vector:?}, not {:?}",
            model[&id]
        ));
    }
    let accepts = |id: u64| id % 3 != 1;
    if random.once_in(3) {
        *filter = (index.filter(accepts), ids.clone());
    }
    let form = random.below(4);
    let is_accepted = |id: u64| form > 1 || accepts(id);
    let options = match form {
        0 => case.options.filter(&filter.0),
        1 => case.options.filter_by(&accepts),
        _ => case.options,
    };
    let (query, k) = (vectors(random, case.dim), 1 + random.below(10));
    let wide = |vector: &[f32]| vector.iter().map(|&x| f64::from(x)).collect::<Vec<f64>>();
    let wide_query = wide(&query);
    let accepted = model.iter().filter(|&(&id, _)| is_accepted(id));
    let mut all: Vec<(u64, f32)> =
        accepted.map(|(&id, vector)| (id, defined(case.metric, &wide_query, &wide(vector)))).collect();
    let badness = |distance: f32| badness(case.metric, distance.into());
    all.sort_by(|a, b| badness(a.1).total_cmp(&badness(b.1)).then(a.0.cmp(&b.0)));
    let found = if random.once_in(4) && !all.is_empty() {
        let radius = random.pick(&all).1;
        all.retain(|&(_, distance)| badness(distance) <= badness(radius));
        index.range_search(&query, radius, &options).map(|found| (found.ids, found.distances))
    } else {
        all.resize(k, (NO_ID, worst(case.metric)));
        index.search_with(&query, k, &options).map(|found| (found.ids, found.distances))
    };
    let (found, distances) = match found {
        // A filter of another version is refused, unless that has the same ids.
        Err(Error::StaleFilter { .. } | Error::WrongLength { what: "filter bits", .. })
            if form == 0 && filter.1 != ids =>
        {
            return Ok(());
        }
        found => found.map_err(text)?,
    };
    let found: Vec<(u64, u32)> = found.into_iter().zip(distances.into_iter().map(f32::to_bits)).collect();
    if found.iter().copied().eq(all.iter().map(|&(id, distance)| (id, distance.to_bits()))) {
        return Ok(());
    }
    Err(format!("version {version}, with {last} the last, form {form}: {found:?}, expected {all:?}"))
}
