//! Calls from anywhere: every public call that works in parallel, made from rayon pools, from inside parallel
//! iterators, and from many threads at once. Each must end, with the bits of a plain call.
//!
//! [`CALLS`] lists the calls. A call is prepared once for a device (data, training), made anew for each situation (so
//! that the first search after a change is made by many at once), and then called many times at once. The sizes are
//! small on every device but the CPU, so that the driver made from the emulator can run them as well.
//!
//! The pool that matters most is rayon's global one, because threads outside all pools use it. The process has one
//! global pool of fixed size, and a thread that hangs cannot be ended. So a test runs [`check`] in a separate process,
//! with `RAYON_NUM_THREADS` set, and ends the process if it takes too long (`tests/anywhere.rs`).

use std::path::Path;
use std::sync::RwLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use rayon::prelude::*;
use tempfile::TempDir;
use warpann::generate::Generator;
use warpann::ivf::{Encoding, Refiner};
use warpann::kmeans::{Clustering, KMeans};
use warpann::knn_graph::{Graph, KnnGraph};
use warpann::pq::{PqTraining, ProductQuantizer, Rotation};
use warpann::select::{Best, Rows, select_k};
use warpann::sort::sort_pairs;
use warpann::{
    Device, Error, Filter, FlatIndex, IvfIndex, Metric, Neighbors, Placement, RangeNeighbors, SearchOptions,
    ShiftedIndex, Watch, io,
};

use crate::data::Random;
use crate::runner::{Outcome, text};

/// The results of a call, as numbers that are equal if all bits are equal.
pub type Answer = Vec<u64>;
/// A call that many threads make at once.
pub type Call = Box<dyn Fn() -> Result<Answer, Error> + Send + Sync>;
/// Makes a call with new objects.
pub type Make = Box<dyn Fn() -> Result<Call, Error> + Send + Sync>;
/// Prepares a call for a device.
pub type Prepare = fn(Device) -> Result<Make, Error>;

/// Every call, by name.
pub const CALLS: &[(&str, Prepare)] = &[
    ("flat_search", flat_search),
    ("flat_search_streamed", flat_search_streamed),
    ("flat_life", flat_life),
    ("flat_placed", flat_placed),
    ("ivf_search", ivf_search),
    ("ivf_search_codes", ivf_search_codes),
    ("ivf_placed", ivf_placed),
    ("ivf_life", ivf_life),
    ("ivf_life_codes", ivf_life_codes),
    ("ivf_add_batches", ivf_add_batches),
    ("ivf_add_generated", ivf_add_generated),
    ("ivf_files", ivf_files),
    ("kmeans", kmeans),
    ("kmeans_in_batches", kmeans_in_batches),
    ("knn_graph", knn_graph),
    ("knn_graph_files", knn_graph_files),
    ("select", select),
    ("sort", sort),
    ("shifted", shifted),
    ("quantizer", quantizer),
    ("generator", generator),
];

/// Smallest number of calls that a parallel iterator makes on the CPU.
const AT_ONCE: usize = 40;

/// Makes the call in every situation. The global pool and the test's own have `threads` threads.
///
/// # Errors
/// A description of the first difference from a plain call.
pub fn check(device: Device, prepare: Prepare, threads: usize) -> Outcome {
    if rayon::current_num_threads() != threads {
        return Err(format!("the global pool has {} threads, not {threads}", rayon::current_num_threads()));
    }
    let make = prepare(device).map_err(text)?;
    let expected = make().and_then(|call| call()).map_err(text)?;
    if expected.is_empty() {
        return Err("the call answers nothing".to_owned());
    }
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().map_err(text)?;
    let other = RwLock::new(FlatIndex::<f32>::new(1, Metric::L2, Device::Cpu).map_err(text)?);
    let tasks = size(device, AT_ONCE, 0).max(threads + 1);
    let many = |call: &Call| -> Result<Vec<Answer>, Error> {
        (0..tasks).into_par_iter().with_max_len(1).map(|_| call()).collect()
    };
    let alone = |call: &Call| call().map(|answer| vec![answer]);
    type Situation<'a> = (&'a str, &'a dyn Fn(&Call) -> Result<Vec<Answer>, Error>);
    let situations: [Situation<'_>; 5] = [
        ("a task of the global pool", &|call| rayon::scope(|_| alone(call))),
        ("a parallel iterator of the global pool", &|call| many(call)),
        ("a pool of the caller's", &|call| pool.install(|| alone(call))),
        ("a parallel iterator of the caller's pool, whose tasks hold another index", &|call| {
            pool.install(|| {
                (0..tasks).into_par_iter().with_max_len(1).map(|_| (other.read().map(|_| ()), call()).1).collect()
            })
        }),
        ("threads, and the global pool", &|call| {
            std::thread::scope(|scope| {
                let threads: Vec<_> = (0..2)
                    .map(|_| {
                        scope.spawn(|| {
                            let _held = other.read();
                            call()
                        })
                    })
                    .collect();
                let mut answers = many(call)?;
                for thread in threads {
                    answers.push(thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?);
                }
                Ok(answers)
            })
        }),
    ];
    for (name, situation) in situations {
        let call = make().map_err(text)?;
        let answers = situation(&call).map_err(|error| format!("{name}: {error}"))?;
        if let Some(at) = answers.iter().position(|answer| *answer != expected) {
            return Err(format!("{name}: call {at} of {} differs from a plain call", answers.len()));
        }
    }
    Ok(())
}

/// One of two sizes: only the CPU is fast.
fn size(device: Device, on_cpu: usize, otherwise: usize) -> usize {
    if device == Device::Cpu { on_cpu } else { otherwise }
}

/// Values in ±1.
fn values(count: usize, seed: u64) -> Vec<f32> {
    let mut random = Random::new(seed);
    (0..count).map(|_| random.unit() as f32 * 2.0 - 1.0).collect()
}

fn bits(values: &[f32]) -> impl Iterator<Item = u64> + '_ {
    values.iter().map(|value| u64::from(value.to_bits()))
}

fn neighbours(found: &Neighbors) -> Answer {
    found.ids.iter().copied().chain(bits(&found.distances)).collect()
}

fn ranges(found: &RangeNeighbors) -> Answer {
    let offsets = found.offsets.iter().map(|&offset| offset as u64);
    offsets.chain(found.ids.iter().copied()).chain(bits(&found.distances)).collect()
}

fn clustering(found: &Clustering) -> Answer {
    bits(&found.centroids).chain(found.labels.iter().flatten().map(|&label| u64::from(label))).collect()
}

/// A folder for files, and a new name in it at every call.
struct Folder {
    folder: TempDir,
    files: AtomicUsize,
}

impl Folder {
    fn new() -> Result<Folder, Error> {
        let failed = |source| Error::Io { path: std::env::temp_dir(), source };
        Ok(Folder { folder: TempDir::new().map_err(failed)?, files: AtomicUsize::new(0) })
    }

    fn path(&self, extension: &str) -> std::path::PathBuf {
        self.folder.path().join(format!("{}.{extension}", self.files.fetch_add(1, Ordering::Relaxed)))
    }
}

/// Two replicas of two shards, all on one device.
fn placement(device: Device) -> Result<Placement, Error> {
    Placement::new(vec![device; 4], 2)
}

const DIM: usize = 8;

fn flat_of(place: Placement, budget: Option<u64>, (dim, rows, queries): (usize, usize, usize)) -> Result<Make, Error> {
    let (base, queries) = (values(rows * dim, 1), values(queries * dim, 2));
    Ok(Box::new(move || {
        let builder = FlatIndex::<f32>::builder(dim).device(place.clone());
        let mut index = if let Some(bytes) = budget { builder.memory_budget(bytes) } else { builder }.build()?;
        index.add(&base)?;
        assert_eq!(index.device().contains("streamed"), budget.is_some(), "{}", index.device());
        let queries = queries.clone();
        Ok(Box::new(move || Ok(neighbours(&index.search(&queries, 5)?))))
    }))
}

fn flat_search(device: Device) -> Result<Make, Error> {
    flat_of(device.into(), None, (DIM, size(device, 3_000, 200), size(device, 70, 3)))
}

/// An index in several pieces. The CPU does not stream.
fn flat_search_streamed(device: Device) -> Result<Make, Error> {
    let budget = (device != Device::Cpu).then_some(96 << 10);
    flat_of(device.into(), budget, (19, size(device, 3_000, 500), size(device, 70, 2)))
}

fn flat_placed(device: Device) -> Result<Make, Error> {
    flat_of(placement(device)?, None, (DIM, size(device, 3_000, 200), size(device, 70, 20)))
}

/// Adds, searches, moves away and back.
fn flat_life(device: Device) -> Result<Make, Error> {
    let (base, queries) = (values(size(device, 3_000, 150) * DIM, 3), values(size(device, 70, 2) * DIM, 4));
    Ok(Box::new(move || {
        let (base, queries) = (base.clone(), queries.clone());
        Ok(Box::new(move || {
            let mut index = FlatIndex::<f32>::new(DIM, Metric::Cosine, device)?;
            let mut answer = Answer::new();
            for rows in base.chunks(base.len() / DIM / 2 * DIM) {
                index.add(rows)?;
                answer.extend(neighbours(&index.search(&queries, 4)?));
            }
            index.move_to(Device::Cpu)?;
            index.move_to(placement(device)?)?;
            answer.extend(neighbours(&index.search(&queries, 7)?));
            answer.extend(bits(&index.reconstruct(1)?));
            Ok(answer)
        }))
    }))
}

const CODES: Encoding = Encoding::Pq { sub_quantizers: 2, bits: 4, rotate: false };
const ROTATED: Encoding = Encoding::Pq { sub_quantizers: 2, bits: 4, rotate: true };
const LISTS: usize = 6;

/// A trained index without vectors.
fn trained(encoding: Encoding, place: impl Into<Placement>, base: &[f32]) -> Result<IvfIndex, Error> {
    let builder = IvfIndex::<f32>::builder(DIM, LISTS).encoding(encoding).iterations(1);
    let mut index = builder.device(place).build()?;
    index.train(base)?;
    Ok(index)
}

fn ivf_base(device: Device) -> Vec<f32> {
    values(size(device, 2_500, 64) * DIM, 5)
}

/// All kinds of search.
fn ivf_answer(index: &IvfIndex, queries: &[f32]) -> Result<Answer, Error> {
    let filter = index.filter(|id| id % 3 != 0);
    let options = |filter: Option<_>| SearchOptions::new().probes(3).filter(filter).widen(false);
    let mut answer = neighbours(&index.search_with(queries, 5, &options(None))?);
    answer.extend(neighbours(&index.search_with(queries, 5, &options(Some(Filter::Bits(&filter))))?));
    answer.extend(ranges(&index.range_search(queries, 0.8, &options(None))?));
    Ok(answer)
}

/// Searches of one index whose ids are not its rows, kept in a file so that each situation has a new one.
fn ivf_of(encoding: Encoding, place: Placement, device: Device, queries: usize) -> Result<Make, Error> {
    let base = ivf_base(device);
    let ids: Vec<u64> = (0..base.len() as u64 / DIM as u64).map(|at| 5 * at + 3).collect();
    let mut index = trained(encoding, Device::Cpu, &base)?;
    index.add_with_ids(&base, &ids)?;
    let folder = Folder::new()?;
    let path = folder.path("ivf");
    index.save(&path)?;
    let queries = values(queries * DIM, 6);
    Ok(Box::new(move || {
        let _kept = &folder;
        let index = IvfIndex::<f32>::load(&path, place.clone(), None)?;
        let queries = queries.clone();
        Ok(Box::new(move || ivf_answer(&index, &queries)))
    }))
}

fn ivf_search(device: Device) -> Result<Make, Error> {
    ivf_of(Encoding::Flat, device.into(), device, size(device, 60, 2))
}

fn ivf_search_codes(device: Device) -> Result<Make, Error> {
    ivf_of(ROTATED, device.into(), device, size(device, 60, 2))
}

fn ivf_placed(device: Device) -> Result<Make, Error> {
    ivf_of(Encoding::Flat, placement(device)?, device, size(device, 60, 18))
}

/// Trains, adds, removes, searches, moves, finds probes, refines.
fn ivf_life_of(device: Device, encoding: Encoding) -> Result<Make, Error> {
    let (base, queries) = (ivf_base(device), values(size(device, 60, 2) * DIM, 7));
    Ok(Box::new(move || {
        let (base, queries) = (base.clone(), queries.clone());
        Ok(Box::new(move || {
            // Codes are learned on the CPU: the emulator takes seconds for it, and `quantizer` shows it.
            let learned = if encoding == Encoding::Flat { device } else { Device::Cpu };
            let mut index = trained(encoding, learned, &base)?;
            index.move_to(device)?;
            index.add(&base)?;
            index.remove(&[3, 17])?;
            let mut answer = ivf_answer(&index, &queries)?;
            index.move_to(Device::Cpu)?;
            let found = index.search_with(&queries, 5, &SearchOptions::new().probes(2))?;
            answer.extend(neighbours(&found));
            let (probes, reached) = index.probes_for_recall(&queries, 5, &found.ids, 0.9)?;
            answer.extend([probes as u64, reached.to_bits()]);
            answer.extend(neighbours(&Refiner::new(Metric::L2, DIM, &base)?.refine(&queries, &found, 3)?));
            answer.extend(bits(&index.reconstruct(5)?));
            Ok(answer)
        }))
    }))
}

fn ivf_life(device: Device) -> Result<Make, Error> {
    ivf_life_of(device, Encoding::Flat)
}

fn ivf_life_codes(device: Device) -> Result<Make, Error> {
    ivf_life_of(device, CODES)
}

/// A trained index after `add`, stored in a file.
fn ivf_added(
    device: Device,
    encoding: Encoding,
    add: impl Fn(&mut IvfIndex) -> Result<(), Error> + Clone + Send + Sync + 'static,
) -> Result<Make, Error> {
    let folder = Folder::new()?;
    let path = folder.path("ivf");
    trained(encoding, Device::Cpu, &ivf_base(device))?.save(&path)?;
    Ok(Box::new(move || {
        let _kept = &folder;
        let (path, add) = (path.clone(), add.clone());
        Ok(Box::new(move || {
            let mut index = IvfIndex::<f32>::load(&path, device, None)?;
            add(&mut index)?;
            // The CPU makes the lists; a search on the device is a different call.
            index.move_to(Device::Cpu)?;
            let queries = values(2 * DIM, 8);
            Ok(neighbours(&index.search_with(&queries, 9, &SearchOptions::new().probes(LISTS))?))
        }))
    }))
}

fn ivf_add_batches(device: Device) -> Result<Make, Error> {
    let rows = size(device, 500, 30) * DIM;
    ivf_added(device, Encoding::Flat, move |index| index.add_batches((0..4).map(|batch| values(rows, 20 + batch))))
}

fn ivf_add_generated(device: Device) -> Result<Make, Error> {
    let generator = Generator::new(DIM, 3, 9)?;
    let rows = size(device, 1_000, 60) as u64;
    ivf_added(device, CODES, move |index| index.add_generated(&generator, 5..5 + rows))
}

/// Saves and loads, each call a file.
fn ivf_files(device: Device) -> Result<Make, Error> {
    let base = ivf_base(device);
    Ok(Box::new(move || {
        let mut index = trained(CODES, Device::Cpu, &base)?;
        index.add(&base)?;
        let folder = Folder::new()?;
        Ok(Box::new(move || {
            let path = folder.path("ivf");
            index.save(&path)?;
            let loaded = IvfIndex::<f32>::load(&path, device, None)?;
            Ok(neighbours(&loaded.search_with(&values(2 * DIM, 10), 4, &SearchOptions::new().probes(2))?))
        }))
    }))
}

fn kmeans_of(device: Device, points: usize, budget: Option<u64>) -> Result<Make, Error> {
    let rows = values(points * DIM, 11);
    let weights: Vec<f32> = (0..points).map(|at| 1.0 + (at % 3) as f32).collect();
    Ok(Box::new(move || {
        let (rows, weights) = (rows.clone(), weights.clone());
        Ok(Box::new(move || {
            let settings = KMeans::new(5).iterations(size(device, 2, 1)).labels(true).device(device);
            let settings = if let Some(bytes) = budget { settings.memory_budget(bytes) } else { settings };
            let found = settings.train_weighted(&rows, DIM, &weights)?;
            let nearest = found.assign(&rows, device)?;
            Ok(clustering(&found).into_iter().chain(nearest.into_iter().map(u64::from)).collect())
        }))
    }))
}

fn kmeans(device: Device) -> Result<Make, Error> {
    kmeans_of(device, size(device, 4_000, 150), None)
}

/// Points that stay on the host: a device has room for two batches of a part of them.
fn kmeans_in_batches(device: Device) -> Result<Make, Error> {
    kmeans_of(device, size(device, 4_000, 260), Some(66 << 10))
}

fn graph_index(device: Device) -> Result<(FlatIndex<f32>, Vec<f32>), Error> {
    let base = values(size(device, 900, 60) * DIM, 12);
    let mut index = FlatIndex::<f32>::new(DIM, Metric::L2, device)?;
    index.add(&base)?;
    Ok((index, base))
}

fn knn_graph(device: Device) -> Result<Make, Error> {
    Ok(Box::new(move || {
        let (index, base) = graph_index(device)?;
        Ok(Box::new(move || {
            let (graph, distances) = KnnGraph::new(6).batch(size(device, 200, 20)).run(&index, &base)?;
            let mut answer: Answer =
                graph.neighbors().iter().map(|&node| u64::from(node)).chain(bits(&distances)).collect();
            answer.extend(graph.components().sizes);
            if let Ok(path) = graph.path(&base, DIM, Metric::L2, 0, 50) {
                answer.extend(path.nodes);
            }
            answer.push(graph.accuracy(&index, &base, 9)?.to_bits());
            Ok(answer)
        }))
    }))
}

fn knn_graph_files(device: Device) -> Result<Make, Error> {
    Ok(Box::new(move || {
        let (index, base) = graph_index(device)?;
        let folder = Folder::new()?;
        Ok(Box::new(move || {
            let (out, distances) = (folder.path("ibin"), folder.path("fbin"));
            let graph = KnnGraph::new(6).batch(size(device, 200, 20));
            graph.write(&index, &base, &out, Some(Path::new(&distances)), &Watch::none())?;
            let found = io::read_vectors(&distances)?;
            let nodes = Graph::read(&out)?;
            let nodes = nodes.neighbors().iter().map(|&node| u64::from(node));
            Ok(nodes.chain(bits(found.as_slice::<f32>().unwrap_or_default())).collect())
        }))
    }))
}

fn select(device: Device) -> Result<Make, Error> {
    let (columns, rows) = (size(device, 40_000, 700), size(device, 3, 2));
    let keys = values(columns * rows, 13);
    Ok(Box::new(move || {
        let keys = keys.clone();
        Ok(Box::new(move || {
            let rows = Rows::contiguous(&keys, columns)?;
            let found = select_k(device, &rows, 20, Best::Smallest)?;
            Ok(found.positions.iter().map(|&position| u64::from(position)).chain(bits(&found.keys)).collect())
        }))
    }))
}

fn sort(device: Device) -> Result<Make, Error> {
    let mut random = Random::new(14);
    let keys: Vec<u64> = (0..size(device, 50_000, 3_000)).map(|_| random.below(500) as u64).collect();
    Ok(Box::new(move || {
        let keys = keys.clone();
        Ok(Box::new(move || {
            let (mut keys, mut payloads) = (keys.clone(), (0..keys.len() as u32).collect::<Vec<_>>());
            sort_pairs(device, &mut keys, &mut payloads)?;
            keys.extend(payloads.into_iter().map(u64::from));
            Ok(keys)
        }))
    }))
}

fn shifted(device: Device) -> Result<Make, Error> {
    let (dim, rows) = (3, size(device, 2_000, 150));
    let (base, queries) = (values(rows * dim, 15), values(size(device, 60, 4) * dim, 16));
    Ok(Box::new(move || {
        let mut index = ShiftedIndex::builder(dim).device(device).shifts(2).build()?;
        index.add(&base)?;
        let (base, queries) = (base.clone(), queries.clone());
        Ok(Box::new(move || {
            let mut own = ShiftedIndex::builder(dim).device(device).shifts(2).build()?;
            own.add(&base[..dim * 40])?;
            let mut answer = neighbours(&own.self_join(3)?);
            answer.extend(neighbours(&index.search(&queries, 4)?));
            Ok(answer)
        }))
    }))
}

fn quantizer(device: Device) -> Result<Make, Error> {
    let rows = values(size(device, 1_500, 40) * DIM, 17);
    Ok(Box::new(move || {
        let rows = rows.clone();
        Ok(Box::new(move || {
            let settings = PqTraining::new(2).bits(4).iterations(1).rotation_rounds(1).device(device);
            let quantizer = ProductQuantizer::train(&settings, &rows, DIM)?;
            let codes = quantizer.encode(&rows, device)?;
            let rotation = Rotation::train(&settings, &rows, DIM)?;
            let mut distances = vec![0.0; codes.len() / quantizer.code_bytes()];
            quantizer.distance_tables(&rows[..DIM])?.distances(&codes, &mut distances)?;
            let turned = rotation.apply(&rows[..5 * DIM], device)?;
            let floats = bits(quantizer.codebooks()).chain(bits(&distances)).chain(bits(&turned));
            let mut answer: Answer = floats.chain(codes.iter().map(|&code| u64::from(code))).collect();
            answer.extend(bits(&quantizer.decode(&codes)?));
            Ok(answer)
        }))
    }))
}

fn generator(device: Device) -> Result<Make, Error> {
    let rows = size(device, 1_500, 60) as u64;
    Ok(Box::new(move || {
        Ok(Box::new(move || {
            let generator = Generator::new(DIM, 3, 9)?;
            let queries = generator.rows(rows, 5);
            Ok(neighbours(&generator.nearest(0..rows, &queries, 4, device)?))
        }))
    }))
}
