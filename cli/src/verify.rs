//! `warpann verify`: runs every back end on the same random cases and compares the results.

use std::time::{SystemTime, UNIX_EPOCH};

use half::{bf16, f16};
use rayon::prelude::*;
use serde::Serialize;
use warpann::select::{Best, Key, KeyType, NO_POSITION, Rows, select_k};
use warpann::{Device, Element, ElementType, Error, FlatIndex, GraphIndex, Metric, NONE, Neighbors, metric};

use crate::progress::Step;
use crate::random::Random;
use crate::repeat;
use crate::report::{Failure, Out, Outcome, positive};

/// Arguments of `verify`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Number of cases.
    #[arg(long, default_value_t = 100)]
    cases: u64,
    /// Seed of the first case; each further case has the next seed. Default: a new seed in every run.
    #[arg(long)]
    seed: Option<u64>,
    /// Devices to compare in addition to the CPU: auto (the emulator, and the GPU if there is one), gpu or gpu:N (GPU and emulator),
    /// emulator, or cpu (none). A GPU that is named must exist.
    ///
    /// All results must equal, to the bit, the definition of the results: all distances, sorted. Small cases are also searched in a graph that each
    /// device makes, whose results must be those of the CPU.
    #[arg(long, default_value = "auto")]
    device: Device,
    /// Instead of random cases: this number of searches of four small indexes (exact, IVF-Flat, IVF-PQ, graph) on the device, in turn and from
    /// several threads. Each result must equal, to the bit, that of the CPU.
    #[arg(long, conflicts_with = "cases")]
    repeat: Option<u64>,
    /// Threads that search at once, with --repeat.
    #[arg(long, default_value_t = 4, value_parser = positive, requires = "repeat")]
    threads: usize,
}

/// The distribution of a case's vectors. Each distribution provokes different errors.
#[derive(Debug, Clone, Copy, Serialize)]
#[serde(rename_all = "lowercase")]
enum Data {
    /// Components with a uniform distribution.
    Uniform,
    /// Components from −2 to 2: many equal distances.
    Ties,
    /// Every vector occurs several times.
    Duplicates,
    /// Clusters far from the origin: distances are small next to norms.
    Clusters,
    /// Half of the vectors are zero.
    Zeros,
}

/// The operation of a case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Task {
    /// Cases of exact search.
    Search,
    /// k-selection: `queries` rows of `n` keys; the "metric" is smallest or largest.
    Select,
}

/// One random case of a search.
#[derive(Debug, Clone, Serialize)]
struct Case {
    seed: u64,
    task: Task,
    element: &'static str,
    metric: &'static str,
    dim: usize,
    n: usize,
    queries: usize,
    k: usize,
    data: Data,
}

#[derive(Serialize)]
struct Report<'a> {
    seed: u64,
    passed: bool,
    compared: Vec<&'a str>,
    missing: Vec<String>,
    cases: Vec<Row>,
    difference: Option<Difference>,
}

#[derive(Serialize)]
struct Row {
    #[serde(flatten)]
    case: Case,
    /// Back ends that ran the case and agreed with the definition.
    agreed: Vec<&'static str>,
}

/// The first place at which a back end differs from the definition.
#[derive(Debug, Serialize)]
struct Difference {
    seed: u64,
    backend: &'static str,
    query: usize,
    place: usize,
    expected_id: Option<u64>,
    expected_distance: f32,
    id: Option<u64>,
    distance: f32,
}

impl Difference {
    fn at(i: usize, seed: u64, backend: &'static str, expected: &Neighbors, found: &Neighbors) -> Self {
        let id = |of: &Neighbors| of.ids.get(i).copied().filter(|&id| id != NONE);
        let distance = |of: &Neighbors| of.distances.get(i).copied().unwrap_or(f32::NAN);
        Self {
            seed,
            backend,
            query: i / expected.k,
            place: i % expected.k,
            expected_id: id(expected),
            expected_distance: distance(expected),
            id: id(found),
            distance: distance(found),
        }
    }
}

/// A back end, and the products of components (n · queries · dim) up to which it runs a case.
struct Backend {
    name: &'static str,
    device: Device,
    work: usize,
}

/// The largest graph of a case, in products of components of its vectors with each other (n · n · dim), and the part of that which the
/// emulator does.
const WALK_WORK: (usize, usize) = (1 << 22, 1 << 15);

/// The largest case that runs on the emulator, in products of components: emulated threads are thousands of times slower than real ones.
const EMULATOR_WORK: usize = 1 << 18;

/// Runs the cases; fails at the first difference.
pub fn run(args: &Args, out: &Out) -> Outcome {
    let now = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64 >> 10);
    let seed = args.seed.unwrap_or_else(now);
    if let Some(searches) = args.repeat {
        return repeat::run(repeat::Plan { searches, threads: args.threads, seed, device: args.device }, out);
    }
    let (backends, missing) = backends(args.device)?;
    out.field("seed", seed)?;
    let names: Vec<&str> = backends.iter().map(|backend| backend.name).collect();
    out.line(format_args!(
        "{:>20} {:>6} {:>4} {:>8} {:>5} {:>5} {:>7} {:>5} {:>10}  {}",
        "seed",
        "task",
        "type",
        "metric",
        "dim",
        "n",
        "queries",
        "k",
        "data",
        names.join(" ")
    ))?;
    let mut report = Report { seed, passed: true, compared: names, missing, cases: Vec::new(), difference: None };
    let step = Step::of("verifying", usize::try_from(args.cases).unwrap_or(usize::MAX), "cases");
    for i in 0..args.cases {
        let (case, result) = run_case(seed.wrapping_add(i), &backends)?;
        let agreed = match result {
            Ok(agreed) => agreed,
            Err(difference) => {
                report.passed = false;
                report.difference = Some(difference);
                Vec::new()
            }
        };
        let marks: Vec<String> = backends
            .iter()
            .map(|backend| {
                let mark = match &report.difference {
                    Some(difference) if difference.backend == backend.name => "DIFF",
                    Some(_) => "",
                    None if agreed.contains(&backend.name) => "ok",
                    None => "-",
                };
                format!("{mark:<width$}", width = backend.name.len())
            })
            .collect();
        let line = format!(
            "{:>20} {:>6} {:>4} {:>8} {:>5} {:>5} {:>7} {:>5} {:>10}  {}",
            case.seed,
            format!("{:?}", case.task).to_lowercase(),
            case.element,
            case.metric,
            case.dim,
            case.n,
            case.queries,
            case.k,
            format!("{:?}", case.data).to_lowercase(),
            marks.join(" ")
        );
        step.aside(|| out.line(line))?;
        step.advance(1);
        report.cases.push(Row { case, agreed });
        if !report.passed {
            break;
        }
    }
    drop(step);
    if let Some(Difference { seed, backend, query, place, expected_id, expected_distance, id, distance }) =
        &report.difference
    {
        let name = |id: &Option<u64>| id.map_or("none".to_owned(), |id| id.to_string());
        let (expected_id, id) = (name(expected_id), name(id));
        let message = format!(
            "{backend} differs at query {query}, place {place}: id {id}, distance {distance:?} (bits {:#010x}); expected id \
             {expected_id}, distance {expected_distance:?} ({:#010x}); repeat with: warpann verify --cases 1 --seed {seed}",
            distance.to_bits(),
            expected_distance.to_bits(),
        );
        return Err(Failure::difference(message, &report));
    }
    for missing in &report.missing {
        out.line(format_args!("not compared: {missing}"))?;
    }
    let ran = |name: &str| report.cases.iter().filter(|row| row.agreed.contains(&name)).count();
    let counts: Vec<String> =
        backends.iter().map(|backend| format!("{} {}", backend.name, ran(backend.name))).collect();
    let without = match report.missing.len() {
        0 => String::new(),
        _ => format!(
            "; WITHOUT {}",
            report.missing.iter().filter_map(|m| m.split(':').next()).collect::<Vec<_>>().join(" and ")
        ),
    };
    out.line(format_args!("no difference; cases that agree with the definition: {}{without}", counts.join(", ")))?;
    out.object(&report)
}

/// The back ends to compare, and the missing ones, each with the reason.
fn backends(device: Device) -> Outcome<(Vec<Backend>, Vec<String>)> {
    let cpu = Backend { name: "cpu", device: Device::Cpu, work: usize::MAX };
    let emulator = Backend { name: "emulator", device: Device::Emulator, work: EMULATOR_WORK };
    let gpu = |device| Backend { name: "gpu", device, work: usize::MAX };
    let wanted = match device {
        Device::Cpu => vec![],
        Device::Emulator => vec![emulator],
        Device::Gpu(_) => vec![emulator, gpu(device)],
        Device::Auto => vec![emulator, gpu(Device::Gpu(0))],
        other => return Err(Failure::Message(format!("this program does not compare {other}"))),
    };
    let mut there = vec![cpu];
    let mut missing = Vec::new();
    for backend in wanted {
        match FlatIndex::<f32>::new(1, Metric::L2, backend.device) {
            Ok(_) => there.push(backend),
            Err(error @ Error::NoDevice { .. }) if backend.device != device => {
                missing.push(format!("{}: {error}", backend.name));
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok((there, missing))
}

type CaseResult = Result<Vec<&'static str>, Difference>;

/// The parameters of a case in addition to its sizes.
#[derive(Clone, Copy)]
enum Plan {
    Search {
        metric: Metric,
        element: ElementType,
    },
    /// One key in `special` is NaN, infinite or a zero; none if it is 0.
    Select {
        best: Best,
        key: KeyType,
        special: usize,
    },
}

/// The case of a seed, and the random generator for its vectors.
fn draw(seed: u64) -> (Case, Plan, Random) {
    let mut random = Random::new(seed);
    if random.below(4) == 0 {
        let best = random.pick(&[Best::Smallest, Best::Largest]);
        let data = random.pick(&[Data::Uniform, Data::Ties, Data::Zeros]);
        let budget = random.pick(&[EMULATOR_WORK, EMULATOR_WORK, 1 << 22]);
        let queries = random.size(300);
        let n = random.size((budget / queries.max(1)).clamp(1, 200_000)).max(1);
        let k = (1 + random.size(2500)).min(n + 3);
        let metric = if best == Best::Smallest { "smallest" } else { "largest" };
        let key = random.pick(&KeyType::ALL);
        let case = Case { seed, task: Task::Select, element: key.name(), metric, dim: 1, n, queries, k, data };
        let special = random.pick(&[0, 0, 10, 2]);
        return (case, Plan::Select { best, key, special }, random);
    }
    let metric = random.pick(&Metric::ALL);
    let element = random.pick(&ElementType::ALL);
    let dim = match random.below(3) {
        // Near the sizes at which kernels change their path.
        0 => random.pick(&[4usize, 8, 16, 32, 64, 128, 256]) + random.below(3) - 1,
        1 => random.size(1100).max(1),
        _ => 1 + random.below(40),
    };
    let budget = random.pick(&[EMULATOR_WORK, EMULATOR_WORK, 1 << 22, 1 << 26]);
    let queries = random.size((budget / dim).clamp(1, 300));
    let n = random.size((budget / (dim * queries.max(1))).clamp(1, 60_000));
    // Mostly below n, sometimes above; sometimes next to a queue length of the selection kernels.
    let k = match random.below(3) {
        0 => (random.pick(&[32usize, 64, 128, 256, 512, 1024]) + random.below(3) - 1).min(n + 3),
        _ => 1 + random.size((n + 3).min(1500)),
    };
    let data = random.pick(&[Data::Uniform, Data::Uniform, Data::Ties, Data::Duplicates, Data::Clusters, Data::Zeros]);
    let (task, element_name, metric_name) = (Task::Search, element.name(), metric.name());
    let case = Case { seed, task, element: element_name, metric: metric_name, dim, n, queries, k, data };
    (case, Plan::Search { metric, element }, random)
}

fn run_case(seed: u64, backends: &[Backend]) -> Outcome<(Case, CaseResult)> {
    let (case, plan, mut random) = draw(seed);
    let result = match plan {
        Plan::Select { best, key, special } => {
            let (case, random) = (&case, &mut random);
            // Whole keys from small ones, below 2^24: f32 holds them all.
            let whole = |value: f32| f64::from(value) * f64::from(1 << 20);
            match key {
                KeyType::F32 => compare_selections(case, best, special, random, backends, |value| value, |key| key),
                KeyType::F16 => compare_selections(case, best, special, random, backends, f16::from_f32, f16::to_f32),
                KeyType::Bf16 => {
                    compare_selections(case, best, special, random, backends, bf16::from_f32, bf16::to_f32)
                }
                KeyType::I32 => compare_selections(
                    case,
                    best,
                    special,
                    random,
                    backends,
                    |value| whole(value) as i32,
                    |key| key as f32,
                ),
                KeyType::U32 => {
                    let make = |value: f32| whole(value + 4.0) as u32;
                    compare_selections(case, best, special, random, backends, make, |key| key as f32)
                }
                other => Err(Failure::Message(format!("this program does not compare keys of {other}"))),
            }
        }
        Plan::Search { metric, element } => match element {
            ElementType::F32 => compare::<f32>(&case, metric, &mut random, backends),
            ElementType::F16 => compare::<f16>(&case, metric, &mut random, backends),
            ElementType::Bf16 => compare::<bf16>(&case, metric, &mut random, backends),
            ElementType::U8 => compare::<u8>(&case, metric, &mut random, backends),
            ElementType::I8 => compare::<i8>(&case, metric, &mut random, backends),
            other => Err(Failure::Message(format!("this program does not compare vectors of {other}"))),
        },
    }?;
    Ok((case, result))
}

/// Compares k-selection of raw keys, which `make` makes from small f32 and `value` converts back.
fn compare_selections<K: Key>(
    case: &Case,
    best: Best,
    special: usize,
    random: &mut Random,
    backends: &[Backend],
    make: impl Fn(f32) -> K,
    value: impl Fn(K) -> f32,
) -> Outcome<CaseResult> {
    let Case { seed, n: columns, queries: rows, k, data, .. } = *case;
    let mut key = || match data {
        _ if special > 0 && random.below(special) == 0 => {
            random.pick(&[f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -0.0, 0.0])
        }
        Data::Ties => random.below(9) as f32 - 4.0,
        Data::Zeros => [0.0, -0.0, random.signed_unit()][random.below(3)],
        _ => random.signed_unit(),
    };
    let keys: Vec<K> = (0..rows * columns).map(|_| make(key())).collect();
    let values: Vec<f32> = keys.iter().map(|&key| value(key)).collect();
    let expected = selected(&values, columns, k, best, value(K::worst(best)));
    let mut agreed = Vec::new();
    for backend in backends {
        if keys.len() > backend.work {
            continue;
        }
        let found = select_k(backend.device, &Rows::contiguous(&keys, columns)?, k, best)?;
        let ids = found.positions.iter().map(|&p| if p == NO_POSITION { NONE } else { p.into() }).collect();
        let found = Neighbors { k, ids, distances: found.keys.into_iter().map(&value).collect() };
        if let Some(i) = first_difference(&expected, &found) {
            return Ok(Err(Difference::at(i, seed, backend.name, &expected, &found)));
        }
        agreed.push(backend.name);
    }
    Ok(Ok(agreed))
}

/// The definition of k-selection: a sort of each row, NaN last, −0 equal to +0, equal keys by position, `worst` in slots
/// past the row's end.
fn selected(keys: &[f32], columns: usize, k: usize, best: Best, worst: f32) -> Neighbors {
    let rows = keys.chunks_exact(columns).flat_map(|row| {
        // Adding +0 makes −0 into +0; every NaN becomes the same one.
        let clean = row.iter().map(|&key| if key.is_nan() { f32::NAN } else { key + 0.0 });
        let mut all: Vec<(u64, f32)> = (0..).zip(clean).collect();
        all.sort_by(|(_, a), (_, b)| {
            let order = if best == Best::Smallest { a.partial_cmp(b) } else { b.partial_cmp(a) };
            order.unwrap_or_else(|| a.is_nan().cmp(&b.is_nan()))
        });
        all.resize(k, (NONE, worst));
        all
    });
    let (ids, distances) = rows.unzip();
    Neighbors { k, ids, distances }
}

/// `rows` vectors of the case's kind.
fn vectors<T: Element>(case: &Case, rows: usize, random: &mut Random) -> Vec<T> {
    let dim = case.dim;
    // Bytes need a larger range; u8 moves everything to its positive half.
    let (scale, shift) = match T::TYPE {
        ElementType::U8 => (100.0, 128.0),
        ElementType::I8 => (100.0, 0.0),
        _ => (1.0, 0.0),
    };
    let mut values: Vec<T> = Vec::with_capacity(rows * dim);
    for row in 0..rows {
        let kept = match case.data {
            // A copy of an earlier vector.
            Data::Duplicates if row > 0 && random.below(4) > 0 => Some(random.below(row)),
            _ => None,
        };
        if let Some(kept) = kept {
            values.extend_from_within(kept * dim..(kept + 1) * dim);
            continue;
        }
        let zero = matches!(case.data, Data::Zeros) && random.below(2) == 0;
        let centre = 8.0 * random.below(3) as f32;
        for _ in 0..dim {
            let value = match case.data {
                _ if zero => -shift,
                Data::Ties => random.below(5) as f32 - 2.0,
                Data::Clusters => scale * 0.05 * (centre + random.signed_unit()),
                _ => scale * random.signed_unit(),
            };
            values.push(T::from_f32(value + shift));
        }
    }
    values
}

/// The definition itself: every canonical distance, sorted by distance and id.
fn definition<T: Element>(base: &[T], queries: &[T], dim: usize, k: usize, metric: Metric) -> Neighbors {
    let rows: Vec<Vec<(u64, f32)>> = queries
        .par_chunks_exact(dim)
        .map(|query| {
            let distances = base.chunks_exact(dim).map(|row| metric::canonical(metric, query, row));
            let mut all: Vec<(u64, f32)> = (0..).zip(distances).collect();
            all.sort_by(|a, b| metric.order(a.1, b.1).then(a.0.cmp(&b.0)));
            all.resize(k, (NONE, metric.worst()));
            all
        })
        .collect();
    let (ids, distances) = rows.into_iter().flatten().unzip();
    Neighbors { k, ids, distances }
}

/// The first slot in which ids or the bits of distances differ, or that only one of them has.
pub fn first_difference(expected: &Neighbors, found: &Neighbors) -> Option<usize> {
    let slot = |of: &Neighbors, i: usize| (of.ids.get(i).copied(), of.distances.get(i).map(|d| d.to_bits()));
    let lengths =
        [&expected.ids, &found.ids].map(Vec::len).into_iter().chain([expected.distances.len(), found.distances.len()]);
    (0..lengths.max().unwrap_or(0)).find(|&i| slot(expected, i) != slot(found, i))
}

fn compare<T: Element>(case: &Case, metric: Metric, random: &mut Random, backends: &[Backend]) -> Outcome<CaseResult> {
    let Case { seed, dim, n, queries, k, .. } = *case;
    let base = vectors::<T>(case, n, random);
    let mut probes = vectors::<T>(case, queries, random);
    // Some queries are base vectors: distance 0, and equal distances to their duplicates.
    if n > 0 {
        for probe in probes.chunks_exact_mut(dim).step_by(3) {
            let row = random.below(n);
            probe.copy_from_slice(&base[row * dim..(row + 1) * dim]);
        }
    }
    let expected = definition(&base, &probes, dim, k, metric);
    let by_cpu =
        if n * n * dim <= WALK_WORK.0 { Some(walks::<T>(case, metric, &base, &probes, Device::Cpu)?) } else { None };
    if let Some(found) = &by_cpu
        && let Some(i) = first_impossible(&base, &probes, metric, k.min(n), found)
    {
        return Ok(Err(Difference::at(i, seed, "cpu", &expected, found)));
    }
    let mut agreed = Vec::new();
    for backend in backends {
        if n * queries * dim > backend.work {
            continue;
        }
        let mut index = FlatIndex::<T>::new(dim, metric, backend.device)?;
        // In two parts, so that appending is verified too.
        let half = n / 2 * dim;
        index.add(&base[..half])?;
        index.add(&base[half..])?;
        let found = index.search(&probes, k)?;
        if let Some(i) = first_difference(&expected, &found) {
            return Ok(Err(Difference::at(i, seed, backend.name, &expected, &found)));
        }
        let walked = backend.device != Device::Cpu && (backend.work == usize::MAX || n * n * dim <= WALK_WORK.1);
        if let Some(expected) = by_cpu.as_ref().filter(|_| walked) {
            let found = walks::<T>(case, metric, &base, &probes, backend.device)?;
            if let Some(i) = first_difference(expected, &found) {
                return Ok(Err(Difference::at(i, seed, backend.name, expected, &found)));
            }
        }
        agreed.push(backend.name);
    }
    Ok(Ok(agreed))
}

/// The results of walks in a graph that a device makes. Its settings depend on the seed alone, so that a case needs no other random numbers.
fn walks<T: Element>(case: &Case, metric: Metric, base: &[T], probes: &[T], device: Device) -> Outcome<Neighbors> {
    let Case { seed, dim, n, k, .. } = *case;
    let degree = 4 + (seed % 13) as usize;
    let builder = GraphIndex::<T>::builder(dim).metric(metric).degree(degree).beam(16).exact_ratio(0).device(device);
    let mut index = builder.build()?;
    // The first part makes a graph, into which the rest is inserted.
    let part = n * 2 / 3 * dim;
    index.add(&base[..part])?;
    index.add(&base[part..])?;
    Ok(index.search(probes, k)?)
}

/// The first slot that no walk may return: another distance than the canonical one of its id, a slot out of order, an id for the second time, or a
/// slot that is empty before `count` are filled.
fn first_impossible<T: Element>(
    base: &[T],
    probes: &[T],
    metric: Metric,
    count: usize,
    found: &Neighbors,
) -> Option<usize> {
    let (k, queries) = (found.k, found.queries().max(1));
    let dim = probes.len() / queries;
    (0..found.ids.len()).find(|&slot| {
        let (query, place) = (slot / k, slot % k);
        let (id, distance) = (found.ids[slot], found.distances[slot]);
        if place >= count {
            return id != NONE;
        }
        let Some(row) = base.get(id.min(base.len() as u64) as usize * dim..).and_then(|rows| rows.get(..dim)) else {
            return true;
        };
        let right = metric::canonical(metric, &probes[query * dim..(query + 1) * dim], row);
        let follows =
            |other: usize| metric.order(found.distances[other], distance).then(found.ids[other].cmp(&id)).is_lt();
        right.to_bits() != distance.to_bits() || (place > 0 && !follows(slot - 1))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_difference_is_seen() {
        let expected = Neighbors { k: 2, ids: vec![3, 1, 4, NONE], distances: vec![0.0, 1.0, 0.5, f32::INFINITY] };
        let changed = |change: fn(&mut Neighbors)| {
            let mut found = expected.clone();
            change(&mut found);
            first_difference(&expected, &found)
        };
        assert_eq!(changed(|_| {}), None);
        assert_eq!(changed(|found| found.ids[2] = 5), Some(2));
        assert_eq!(changed(|found| found.ids[3] = 0), Some(3));
        assert_eq!(changed(|found| found.distances[0] = -0.0), Some(0));
        assert_eq!(changed(|found| found.distances[1] = 1.0f32.next_up()), Some(1));
        assert_eq!(changed(|found| found.ids.truncate(3)), Some(3));
        assert_eq!(changed(|found| found.distances.push(0.0)), Some(4));
    }

    #[test]
    fn impossible_results_of_walks_are_seen() {
        let (base, probes) = ([1.0f32, 3.0, 1.0, 2.0], [2.0f32, 9.0]);
        let right = Neighbors {
            k: 3,
            ids: vec![3, 0, 2, 1, 3, NONE],
            distances: vec![0.0, 1.0, 1.0, 36.0, 49.0, f32::INFINITY],
        };
        let seen = |count: usize, change: fn(&mut Neighbors)| {
            let mut found = right.clone();
            change(&mut found);
            first_impossible(&base, &probes, Metric::L2, count, &found)
        };
        assert_eq!(seen(3, |_| {}), Some(5));
        let complete = |found: &mut Neighbors| (found.ids[5], found.distances[5]) = (0, 64.0);
        assert_eq!(seen(3, complete), None);
        assert_eq!(seen(2, |_| {}), Some(2));
        assert_eq!(seen(3, |found| found.ids.swap(1, 2)), Some(2));
        assert_eq!(seen(3, |found| found.ids[2] = 0), Some(2));
        assert_eq!(seen(3, |found| found.ids[1] = 4), Some(1));
        assert_eq!(seen(3, |found| found.ids[0] = NONE), Some(0));
        assert_eq!(seen(3, |found| found.distances[3] = 36.0f32.next_up()), Some(3));
    }

    /// The JSON of a difference, which no test of the program can produce.
    #[test]
    fn a_difference_is_the_report_with_an_error() {
        let (case, ..) = draw(3);
        let expected = Neighbors { k: 2, ids: vec![3, NONE], distances: vec![0.5, f32::INFINITY] };
        let found = Neighbors { k: 2, ids: vec![3, 1], distances: vec![0.5, 1.0] };
        let report = Report {
            seed: 3,
            passed: false,
            compared: vec!["cpu"],
            missing: vec!["gpu: none".into()],
            cases: vec![Row { case, agreed: Vec::new() }],
            difference: Some(Difference::at(1, 3, "cpu", &expected, &found)),
        };
        let failure = Failure::difference("cpu differs".into(), &report);
        let text = Out::new(true, Some("verify".into())).pretty(&failure.fields()).unwrap();
        let object: serde_json::Value = serde_json::from_str(&text).unwrap();
        crate::schema::check(&object);
        assert_eq!((&object["passed"], &object["error"]["kind"]), (&false.into(), &"difference".into()));
        assert_eq!((&object["difference"]["expected_id"], &object["difference"]["id"]), (&().into(), &1.into()));
    }

    #[test]
    fn the_definition_orders_ties_by_id() {
        let base = [1.0f32, 3.0, 1.0, 2.0];
        let found = definition(&base, &[2.0, 9.0], 1, 5, Metric::L2);
        assert_eq!(found.ids, [3, 0, 1, 2, NONE, 1, 3, 0, 2, NONE]);
        assert_eq!(found.distances[..5], [0.0, 1.0, 1.0, 1.0, f32::INFINITY]);
    }

    #[test]
    fn the_definition_of_selection() {
        let keys = [0.0, f32::NAN, -0.0, 2.0, f32::INFINITY, 2.0];
        let found = selected(&keys, 6, 7, Best::Smallest, f32::INFINITY);
        assert_eq!(found.ids, [0, 2, 3, 5, 4, 1, NONE]);
        assert!(found.distances[1].is_sign_positive() && found.distances[5].is_nan());
        assert_eq!(found.distances[6], f32::INFINITY);
        assert_eq!(selected(&keys, 6, 6, Best::Largest, f32::NEG_INFINITY).ids, [4, 3, 5, 0, 2, 1]);
    }

    #[test]
    fn cases_cover_their_range() {
        let mut seen = std::collections::HashSet::new();
        let mut keys = std::collections::HashSet::new();
        let (mut past_n, mut no_queries, mut emulated) = (0, 0, 0);
        for seed in 0..600 {
            let (case, ..) = draw(seed);
            assert!(case.dim >= 1 && case.k >= 1);
            let types = if case.task == Task::Search { &mut seen } else { &mut keys };
            types.insert((case.element, case.metric));
            past_n += usize::from(case.k > case.n && case.n > 0);
            no_queries += usize::from(case.queries == 0);
            emulated += usize::from(case.n * case.queries * case.dim <= EMULATOR_WORK);
        }
        assert_eq!(seen.len(), ElementType::ALL.len() * Metric::ALL.len());
        assert_eq!(keys.len(), KeyType::ALL.len() * 2);
        assert!(past_n > 10 && no_queries > 10, "{past_n} {no_queries}");
        assert!((200..550).contains(&emulated), "{emulated}");
    }
}
