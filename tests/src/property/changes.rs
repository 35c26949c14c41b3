//! Random sequences of changes and searches of an index and its snapshots, each against an ordered map of vectors. Of
//! inverted files with codes, the map has the vectors for which the codes stand.
//!
//! Every operation is one that a user may call, also with ids that are wrong. After a refused or cancelled one, and
//! after one whose callback panicked, the index must be as before. A case is [`OPERATIONS`] operations, so 1,000 cases
//! of each of the three kinds of index are 100,000 operations of each:
//!
//! ```text
//! WARPANN_PROPERTY_CASES=3000 cargo test -p warpann-tests --test property changes::cpu
//! WARPANN_PROPERTY_CASES=150 cargo test -p warpann-tests --test property changes::emulator
//! ```
//!
//! The kind `corners` has the same operations, and as many that lead to corners, which a random sequence seldom meets:
//! an index of no vector or of one, all vectors replaced, merges of changed snapshots, moves between placements, and
//! callbacks that panic. It has graphs with codes as well, of which it demands [`FLOOR`] instead of equality.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use warpann::ivf::Encoding;

use warpann::Scan;
use warpann::{
    Bitset, Device, ElementType, Error, Filter, FlatIndex, GraphIndex, Index, IvfIndex, Kind, Metric, Placement,
    SearchOptions, Watch,
};

use crate::data::{Component, Random};
use crate::reference::{NO_ID, badness, defined, worst};
use crate::runner::{Outcome, text};

/// Operations of a case.
pub const OPERATIONS: usize = 100;
/// Ids are mostly below this number, so that they come back.
const IDS: usize = 60;

/// Largest number of snapshots beside the index.
const OTHERS: usize = 3;
/// Share of the neighbours that all searches of a case find together, of a graph with codes whose beam is wider than
/// the index.
pub const FLOOR: f64 = 0.95;
/// Operations that lead to corners.
const CORNERS: usize = 11;

/// Adds vectors under a watch that cancels at its call number `stop`, or whose callback panics there. Also says whether
/// it came to that call.
pub(super) fn add_stopped<I: Kind>(
    index: &mut Index<I>,
    rows: &[I::Element],
    ids: &[u64],
    stop: usize,
    panics: bool,
) -> (Result<(), Error>, bool) {
    struct Stopped;
    let mut calls = 0;
    let watch = Watch::new(|_| {
        calls += 1;
        match calls > stop {
            true if panics => resume_unwind(Box::new(Stopped)),
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    });
    let added = catch_unwind(AssertUnwindSafe(|| index.add_watched(rows, Some(ids), &watch)));
    drop(watch);
    let added =
        added.unwrap_or_else(|panic| if panic.is::<Stopped>() { Err(Error::Cancelled) } else { resume_unwind(panic) });
    (added, calls > stop)
}

/// The contents that the index must have: the components of each id.
type Vectors = BTreeMap<u64, Vec<f64>>;

/// An index beside what it must hold.
struct Pair<I> {
    index: Index<I>,
    model: Vectors,
    placement: Placement,
    options: SearchOptions<'static>,
    /// An index with the same training, which has one vector at a time: the reference for what a code stands for.
    /// `None` if the index keeps vectors as they are.
    coder: Option<Index<I>>,
    /// A filter, the ids for which it was made, and the remainder of the ids that it accepts.
    filter: Option<(Bitset, Vec<u64>, u64)>,
    /// Snapshots of the index, and of snapshots, beside what they must hold.
    others: Vec<(Index<I>, Vectors)>,
    /// Neighbours that were found, and that there were, if results need not be equal; `None` if they must be.
    hits: Option<(usize, usize)>,
}

impl<I> Pair<I> {
    /// A pair whose index and model have no vectors yet.
    fn new(index: Index<I>, placement: Placement, options: SearchOptions<'static>) -> Self {
        Pair {
            index,
            model: Vectors::new(),
            placement,
            options,
            coder: None,
            filter: None,
            others: Vec::new(),
            hits: None,
        }
    }
}

/// The case of a seed: in turn of a flat index, of inverted files, and of a graph whose beam is as wide as the index,
/// so that its walks meet every vector.
///
/// # Errors
/// The case and the first difference, in words.
pub fn case(seed: u64, device: Device) -> Outcome {
    draw(seed, device, false)
}

/// As [`case`], with operations that lead to corners.
///
/// # Errors
/// The case and the first difference, in words.
pub fn corners(seed: u64, device: Device) -> Outcome {
    draw(seed, device, true)
}

fn draw(seed: u64, device: Device, corners: bool) -> Outcome {
    let mut random = Random::new(seed);
    if random.once_in(4) {
        of_element::<u8>(seed, &mut random, device, corners)
    } else {
        of_element::<f32>(seed, &mut random, device, corners)
    }
}

fn of_element<T: Component>(seed: u64, random: &mut Random, device: Device, corners: bool) -> Outcome {
    let kind = seed % 3;
    let (dim, metric) = (1 + random.below(5), random.pick(Metric::of_element(T::TYPE)));
    let placement: Placement = match random.below(if corners { 4 } else { 8 }) {
        kind @ (0 | 1) => Placement::new(vec![device, device], kind + 1).map_err(text)?,
        _ => device.into(),
    };
    if kind == 2 {
        // Codes are rounded, so walks by them need not find the lowest ids of vectors at the same distance.
        let codes = corners && random.once_in(2);
        let builder = GraphIndex::<T>::builder(dim).metric(metric).device(placement.clone()).codes(codes);
        let index = builder.degree(4 + random.below(5)).exact_ratio(0).beam(10 * IDS).build().map_err(text)?;
        let mut pair = Pair::new(index, placement, SearchOptions::new());
        pair.hits = codes.then_some((0, 0));
        return run(pair, random, device, corners, |index| index.compact())
            .map_err(|failure| format!("{failure}\ngraph, {dim}, {metric:?}, codes {codes}"));
    }
    if kind == 0 {
        let index = FlatIndex::<T>::builder(dim).metric(metric).device(placement.clone()).build().map_err(text)?;
        let pair = Pair::new(index, placement, SearchOptions::new());
        return run(pair, random, device, corners, |index| index.compact())
            .map_err(|failure| format!("{failure}\nflat, {dim}, {metric:?}"));
    }
    let lists = 1 + random.below(5);
    let pq = Encoding::Pq { sub_quantizers: if random.once_in(2) { 1 } else { dim }, bits: 4, rotate: false };
    let encoding = match random.below(6) {
        0 if T::TYPE == ElementType::F32 => Encoding::F16,
        1 => Encoding::Scalar8,
        2 | 3 => pq,
        _ => Encoding::Flat,
    };
    // Under cosine, queries for codes are rounded when they are normalised, which this model does not.
    let metric = if encoding == Encoding::Flat { metric } else { random.pick(&[Metric::L2, Metric::InnerProduct]) };
    let builder = IvfIndex::<T>::builder(dim, lists).metric(metric).encoding(encoding).iterations(2);
    // An index that trains itself gets its lists in one of the changes.
    let trains_itself = encoding == Encoding::Flat && random.once_in(2);
    let builder = if trains_itself { builder.train_at(15 + random.below(60)) } else { builder };
    let mut index = builder.device(Device::Cpu).build().map_err(text)?;
    let sample: Vec<T> = (0..20 * dim).map(|_| component(random)).collect();
    if !trains_itself {
        index.train(&sample).map_err(text)?;
    }
    let coder = match encoding {
        Encoding::Flat => None,
        _ => Some(Index::from_bytes(&index.to_bytes().map_err(text)?, Device::Cpu, None).map_err(text)?),
    };
    index.move_to(placement.clone()).map_err(text)?;
    let mut pair = Pair::new(index, placement, SearchOptions::new().probes(lists));
    pair.coder = coder;
    run(pair, random, device, corners, |_| Ok(()))
        .map_err(|failure| format!("{failure}\nivf, {dim}, {lists} lists, {encoding}, {metric:?}"))
}

/// Few values, so that distances are often equal. Rarely a large one, which changes the scale of all vectors on a
/// device.
fn component<T: Component>(random: &mut Random) -> T {
    T::from_f32(if random.once_in(300) { 100.0 } else { random.below(7) as f32 })
}

fn vector<T: Component>(random: &mut Random, dim: usize) -> Vec<T> {
    (0..dim).map(|_| component(random)).collect()
}

fn wide<T: Component>(vector: &[T]) -> Vec<f64> {
    vector.iter().map(|x| f64::from(x.to_f32())).collect()
}

fn id(random: &mut Random) -> u64 {
    if random.once_in(30) { random.bits() >> 1 } else { random.below(IDS) as u64 }
}

fn run<T: Component, I: Kind<Element = T>>(
    mut pair: Pair<I>,
    random: &mut Random,
    device: Device,
    corners: bool,
    compact: fn(&mut Index<I>) -> Result<(), Error>,
) -> Outcome {
    for number in 0..OPERATIONS {
        // The first 16 are drawn as before there were others, so that seeds mean the same cases.
        let operation = if corners && random.once_in(2) { 16 + random.below(CORNERS) } else { random.below(16) };
        let done = match operation {
            0 => pair.add(random),
            1 | 2 => pair.add_with_ids(random),
            3 | 4 => pair.upsert(random),
            5 | 6 => pair.remove(random),
            7 => pair.remove_if_present(random),
            8 | 9 => pair.search(random),
            10 => pair.range_search(random),
            11 => pair.through_bytes(random),
            12 => pair.merge(random),
            13 => pair.snapshot(random),
            14 => pair.go_on_with_another(random),
            16.. => pair.corner(operation - 16, random, device),
            _ if random.once_in(12) => {
                pair.index.clear();
                pair.model.clear();
                Ok(())
            }
            _ => compact(&mut pair.index).map_err(text),
        };
        done.and_then(|()| pair.same(random))
            .map_err(|failure| format!("operation {number} ({operation}): {failure}"))?;
    }
    match pair.hits {
        Some((found, of)) if (found as f64) < FLOOR * of as f64 => {
            Err(format!("{found} of {of} neighbours were found"))
        }
        _ => Ok(()),
    }
}

/// Fails unless a call succeeded or failed as expected.
fn as_expected<V: PartialEq + std::fmt::Debug>(found: Result<V, Error>, expected: Result<V, &str>) -> Outcome {
    let found = found.map_err(|error| error.kind());
    if found == expected { Ok(()) } else { Err(format!("{found:?}, expected {expected:?}")) }
}

impl<I> Pair<I> {
    fn pick_known(&self, random: &mut Random) -> Option<u64> {
        let known: Vec<u64> = self.model.keys().copied().collect();
        (!known.is_empty()).then(|| random.pick(&known))
    }

    fn add<T: Component>(&mut self, random: &mut Random) -> Outcome
    where
        I: Kind<Element = T>,
    {
        let dim = self.index.dim();
        let count = random.below(5);
        let rows: Vec<T> = vector(random, count * dim);
        let first = self.model.last_key_value().map_or(0, |(&id, _)| id + 1);
        as_expected(self.index.add(&rows), Ok(()))?;
        self.note(&(first..first + count as u64).collect::<Vec<_>>(), &rows)
    }

    /// Notes that the index must hold these vectors.
    fn note<T: Component>(&mut self, ids: &[u64], rows: &[T]) -> Outcome
    where
        I: Kind<Element = T>,
    {
        for (&id, row) in ids.iter().zip(rows.chunks(self.index.dim())) {
            let vector = match &mut self.coder {
                None => wide(row),
                Some(coder) => {
                    coder.clear();
                    coder.add(row).map_err(text)?;
                    wide(&coder.reconstruct(0).map_err(text)?)
                }
            };
            self.model.insert(id, vector);
        }
        Ok(())
    }

    /// Some ids, of which one may occur twice or be reserved, with vectors.
    fn given<T: Component>(&self, random: &mut Random, dim: usize) -> (Vec<u64>, Vec<T>) {
        let count = 1 + random.below(6);
        let mut ids: Vec<u64> = (0..count).map(|_| id(random)).collect();
        if random.once_in(3) {
            ids.sort_unstable();
            ids.dedup();
        }
        if random.once_in(40) {
            ids[0] = NO_ID;
        }
        let rows = vector(random, ids.len() * dim);
        (ids, rows)
    }

    fn add_with_ids<T: Component>(&mut self, random: &mut Random) -> Outcome
    where
        I: Kind<Element = T>,
    {
        let dim = self.index.dim();
        let (ids, rows) = self.given::<T>(random, dim);
        let mut refused = refusal(&ids).or(ids.iter().any(|id| self.model.contains_key(id)).then_some("duplicate_id"));
        let found = if random.once_in(3) {
            // Stops at one of the first calls, unless the addition makes fewer.
            let (found, stopped) = add_stopped(&mut self.index, &rows, &ids, random.below(5), ids[0] % 2 == 1);
            refused = refused.or(stopped.then_some("cancelled"));
            found
        } else {
            self.index.add_with_ids(&rows, &ids)
        };
        as_expected(found, refused.map_or(Ok(()), Err))?;
        if refused.is_none() { self.note(&ids, &rows) } else { Ok(()) }
    }

    fn upsert<T: Component>(&mut self, random: &mut Random) -> Outcome
    where
        I: Kind<Element = T>,
    {
        let dim = self.index.dim();
        let (ids, rows) = self.given::<T>(random, dim);
        let refused = refusal(&ids);
        let known = ids.iter().filter(|id| self.model.contains_key(id)).count();
        as_expected(self.index.upsert(&rows, &ids), refused.map_or(Ok(known), Err))?;
        if refused.is_none() { self.note(&ids, &rows) } else { Ok(()) }
    }

    fn remove<T: Component>(&mut self, random: &mut Random) -> Outcome
    where
        I: Kind<Element = T>,
    {
        let count = 1 + random.below(4);
        let mut ids: Vec<u64> = (0..count).filter_map(|_| self.pick_known(random)).collect();
        if !random.once_in(8) {
            ids.sort_unstable();
            ids.dedup();
        }
        if random.once_in(8) {
            ids.push(id(random));
        }
        // Which of two errors comes first is not promised.
        let unknown = ids.iter().any(|id| !self.model.contains_key(id));
        let twice = twice(&ids);
        match self.index.remove(&ids).map_err(|error| error.kind()) {
            Ok(()) if !unknown && !twice => ids.iter().for_each(|id| drop(self.model.remove(id))),
            Err("unknown_id") if unknown => {}
            Err("duplicate_id") if twice => {}
            other => return Err(format!("{other:?} from removing {ids:?}")),
        }
        Ok(())
    }

    fn remove_if_present<T: Component>(&mut self, random: &mut Random) -> Outcome
    where
        I: Kind<Element = T>,
    {
        let ids: Vec<u64> = (0..random.below(5)).map(|_| id(random)).collect();
        let known = ids.iter().filter(|id| self.model.contains_key(id)).count();
        let expected = if twice(&ids) { Err("duplicate_id") } else { Ok(known) };
        as_expected(self.index.remove_if_present(&ids), expected)?;
        if expected.is_ok() {
            ids.iter().for_each(|id| drop(self.model.remove(id)));
        }
        Ok(())
    }

    /// All vectors that a filter accepts, best first.
    fn ranked(&self, metric: Metric, query: &[f64], accepts: impl Fn(u64) -> bool) -> Vec<(u64, u32)> {
        let accepted = self.model.iter().filter(|&(&id, _)| accepts(id));
        let mut all: Vec<(u64, f32)> = accepted.map(|(&id, y)| (id, defined(metric, query, y))).collect();
        all.sort_by(|a, b| badness(metric, a.1.into()).total_cmp(&badness(metric, b.1.into())).then(a.0.cmp(&b.0)));
        all.into_iter().map(|(id, distance)| (id, distance.to_bits())).collect()
    }

    fn search<T: Component>(&mut self, random: &mut Random) -> Outcome
    where
        I: Kind<Element = T>,
    {
        let (dim, metric) = (self.index.dim(), self.index.metric());
        let count = 1 + random.below(3);
        let queries: Vec<T> = vector(random, count * dim);
        let k = 1 + random.below(12);
        if random.once_in(2) || self.filter.is_none() {
            let remainder = random.below(7) as u64;
            let ids: Vec<u64> = self.model.keys().copied().collect();
            self.filter = Some((self.index.filter(|id| id % 7 <= remainder), ids, remainder));
        }
        let Some((filter, made_for, remainder)) = &self.filter else { return Ok(()) };
        // Bits, ids, all except ids, or a function; the last three are never stale.
        let form = random.below(8);
        let (some, others): (Vec<u64>, Vec<u64>) =
            (0..IDS as u64 + 9).chain(self.model.keys().copied()).partition(|id| id % 7 <= *remainder);
        let accepts = |id: u64| id % 7 <= *remainder;
        let filter = match form {
            0 | 1 => Some(Filter::Bits(filter)),
            2 => Some(Filter::Ids(&some)),
            3 => Some(Filter::Except(&others)),
            4 => Some(Filter::Function(&accepts)),
            _ => None,
        };
        let options = self.options.scan(random.pick(&[Scan::Auto, Scan::ListMajor, Scan::QueryMajor]));
        let radius = random.once_in(4).then(|| random.below(120) as f32 - 10.0);
        let options = options.filter(filter).radius(radius);
        let found = match self.index.search_with(&queries, k, &options) {
            Err(Error::StaleFilter { .. } | Error::WrongLength { what: "filter bits", .. })
                if form < 2 && !made_for.iter().eq(self.model.keys()) =>
            {
                return Ok(());
            }
            found => found.map_err(text)?,
        };
        let mut hits = (0, 0);
        for (query, (ids, distances)) in queries.chunks(dim).zip(found.rows()) {
            let mut expected = self.ranked(metric, &wide(query), |id| filter.is_none() || accepts(id));
            if let Some(radius) = options.radius {
                expected.retain(|&(_, distance)| {
                    badness(metric, f32::from_bits(distance).into()) <= badness(metric, radius.into())
                });
            }
            let found: Vec<(u64, u32)> = ids.iter().copied().zip(distances.iter().map(|d| d.to_bits())).collect();
            if self.hits.is_some() && radius.is_none() {
                let (of, found) = (expected.len().min(k), some_of(metric, &expected, &found)?);
                hits = (hits.0 + found, hits.1 + of);
                continue;
            }
            expected.resize(k, (NO_ID, worst(metric).to_bits()));
            if self.hits.is_none() && found != expected {
                return Err(format!("k = {k}, filter {filter:?}: {found:?}, expected {expected:?}"));
            }
        }
        if let Some(all) = &mut self.hits {
            *all = (all.0 + hits.0, all.1 + hits.1);
        }
        Ok(())
    }

    fn range_search<T: Component>(&mut self, random: &mut Random) -> Outcome
    where
        I: Kind<Element = T>,
    {
        let (dim, metric) = (self.index.dim(), self.index.metric());
        let query: Vec<T> = vector(random, dim);
        let all = self.ranked(metric, &wide(&query), |_| true);
        let radius = if all.is_empty() { 3.0 } else { f32::from_bits(random.pick(&all).1) };
        let within = |&(_, distance): &(u64, u32)| {
            badness(metric, f32::from_bits(distance).into()) <= badness(metric, radius.into())
        };
        let expected = &all[..all.partition_point(within)];
        let found = self.index.range_search(&query, radius, &self.options).map_err(text)?;
        let (ids, distances) = found.row(0);
        let found: Vec<(u64, u32)> = ids.iter().copied().zip(distances.iter().map(|d| d.to_bits())).collect();
        if found == expected { Ok(()) } else { Err(format!("radius {radius}: {found:?}, expected {expected:?}")) }
    }

    fn through_bytes<T: Component>(&mut self, random: &mut Random) -> Outcome
    where
        I: Kind<Element = T>,
    {
        if random.once_in(3) {
            return self.index.move_to(self.placement.clone()).map_err(text);
        }
        let bytes = self.index.to_bytes().map_err(text)?;
        if random.once_in(8) {
            let file = tempfile::NamedTempFile::new().map_err(text)?;
            self.index.save(file.path()).map_err(text)?;
            self.index = Index::<I>::load(file.path(), self.placement.clone(), None).map_err(text)?;
        } else {
            self.index = Index::<I>::from_bytes(&bytes, self.placement.clone(), None).map_err(text)?;
        }
        if self.index.to_bytes().map_err(text)? == bytes { Ok(()) } else { Err("other bytes".to_owned()) }
    }

    fn merge<T: Component>(&mut self, random: &mut Random) -> Outcome
    where
        I: Kind<Element = T>,
    {
        let dim = self.index.dim();
        let bytes = self.index.to_bytes().map_err(text)?;
        let mut other = Index::<I>::from_bytes(&bytes, Device::Cpu, None).map_err(text)?;
        other.clear();
        let (ids, rows) = self.given::<T>(random, dim);
        if refusal(&ids).is_some() {
            return Ok(());
        }
        other.add_with_ids(&rows, &ids).map_err(text)?;
        let known = ids.iter().any(|id| self.model.contains_key(id));
        as_expected(self.index.merge(&other), if known { Err("duplicate_id") } else { Ok(()) })?;
        if known { Ok(()) } else { self.note(&ids, &rows) }
    }

    /// Makes a snapshot. It stays as it is, or it changes from now on and the index stays as it is.
    fn snapshot<T: Component>(&mut self, random: &mut Random) -> Outcome
    where
        I: Kind<Element = T>,
    {
        let snapshot = self.index.snapshot();
        let stays = if random.once_in(2) { std::mem::replace(&mut self.index, snapshot) } else { snapshot };
        if self.others.len() == OTHERS {
            self.others.swap_remove(random.below(OTHERS));
        }
        self.others.push((stays, self.model.clone()));
        Ok(())
    }

    /// Goes on with another snapshot, which must be as it was.
    fn go_on_with_another<T: Component>(&mut self, random: &mut Random) -> Outcome
    where
        I: Kind<Element = T>,
    {
        if !self.others.is_empty() {
            let at = random.below(self.others.len());
            let (index, model) = &mut self.others[at];
            std::mem::swap(index, &mut self.index);
            std::mem::swap(model, &mut self.model);
        }
        self.search(random)
    }

    /// An operation that leads to a corner, and a search.
    fn corner<T: Component>(&mut self, operation: usize, random: &mut Random, device: Device) -> Outcome
    where
        I: Kind<Element = T>,
    {
        let dim = self.index.dim();
        let ids: Vec<u64> = self.model.keys().copied().collect();
        match operation {
            0 => {
                self.index.remove(&ids).map_err(text)?;
                self.model.clear();
            }
            1 if !ids.is_empty() => {
                let stays = random.pick(&ids);
                let gone: Vec<u64> = ids.into_iter().filter(|&id| id != stays).collect();
                self.index.remove(&gone).map_err(text)?;
                self.model.retain(|&id, _| id == stays);
            }
            2 => {
                let rows: Vec<T> = vector(random, ids.len() * dim);
                as_expected(self.index.upsert(&rows, &ids), Ok(ids.len()))?;
                self.note(&ids, &rows)?;
            }
            // The vectors come back from a snapshot.
            3 => {
                let snapshot = self.index.snapshot();
                if random.once_in(2) {
                    self.index.clear();
                } else {
                    self.index.remove(&ids).map_err(text)?;
                }
                self.index.merge(&snapshot).map_err(text)?;
            }
            // A snapshot gets other vectors and is merged.
            4 | 5 => {
                let mut other = self.index.snapshot();
                other.remove(&ids).map_err(text)?;
                let first = ids.last().map_or(0, |last| last + 1);
                let new: Vec<u64> = (first..first + random.below(6) as u64).collect();
                let rows: Vec<T> = vector(random, new.len() * dim);
                other.add_with_ids(&rows, &new).map_err(text)?;
                self.index.merge(&other).map_err(text)?;
                self.note(&new, &rows)?;
            }
            6 => {
                let several = |shards| Placement::new(vec![device, device], shards).map_err(text);
                self.placement = match random.below(5) {
                    0 => Device::Cpu.into(),
                    1 => several(1)?,
                    2 => several(2)?,
                    3 => Placement::new(vec![Device::Cpu, device], 1 + random.below(2)).map_err(text)?,
                    _ => device.into(),
                };
                self.index.move_to(self.placement.clone()).map_err(text)?;
            }
            7 | 8 => self.panic_in_addition(random)?,
            9 => self.panic_in_save(random)?,
            _ => self.panic_in_filter(random)?,
        }
        self.search(random)
    }

    /// An addition whose watch panics at one of its first calls, if it makes this call. Then the index must be as
    /// before.
    fn panic_in_addition<T: Component>(&mut self, random: &mut Random) -> Outcome
    where
        I: Kind<Element = T>,
    {
        let first = self.model.last_key_value().map_or(0, |(&id, _)| id + 1);
        let ids: Vec<u64> = (0..1 + random.below(5) as u64).map(|at| first + at).collect();
        let rows: Vec<T> = vector(random, ids.len() * self.index.dim());
        let stop = random.below(5);
        let index = &mut self.index;
        match panics_at(stop, |watch| index.add_watched(&rows, Some(&ids), watch)) {
            None => Ok(()),
            Some(done) => as_expected(done, Ok(())).and_then(|()| self.note(&ids, &rows)),
        }
    }

    fn panic_in_save<T: Component>(&mut self, random: &mut Random) -> Outcome
    where
        I: Kind<Element = T>,
    {
        let folder = tempfile::tempdir().map_err(text)?;
        let file = folder.path().join("index");
        let stop = random.below(4);
        match panics_at(stop, |watch| self.index.save_watched(&file, watch)) {
            None if file.exists() => Err("a save that panicked left a file".to_owned()),
            None => Ok(()),
            Some(done) => as_expected(done, Ok(())),
        }
    }

    fn panic_in_filter<T: Component>(&mut self, random: &mut Random) -> Outcome
    where
        I: Kind<Element = T>,
    {
        let query: Vec<T> = vector(random, self.index.dim());
        let at = self.pick_known(random);
        let accepts = |id: u64| if Some(id) == at { resume_unwind(Box::new("caller")) } else { true };
        let options = self.options.filter(Some(Filter::Function(&accepts)));
        let found = catch_unwind(AssertUnwindSafe(|| self.index.search_with(&query, 3, &options)));
        match (found, at) {
            (Ok(Err(error)), _) => Err(error.to_string()),
            (Ok(Ok(_)), Some(id)) => Err(format!("the filter was not called for {id}")),
            (Err(_), _) | (Ok(Ok(_)), None) => Ok(()),
        }
    }

    /// Compares ids, and one vector.
    fn same<T: Component>(&self, random: &mut Random) -> Outcome
    where
        I: Kind<Element = T>,
    {
        let ids = self.index.ids();
        if !ids.iter().eq(self.model.keys()) || self.index.len() != ids.len() || self.index.is_empty() != ids.is_empty()
        {
            return Err(format!("the index has {} vectors, with ids {ids:?}", self.index.len()));
        }
        let id = if random.once_in(2) { id(random) } else { self.pick_known(random).unwrap_or(0) };
        let found = self.index.reconstruct(id).map_err(|error| error.kind());
        let expected = self.model.get(&id).map(|vector| vector.iter().map(|&x| x as f32).collect()).ok_or("unknown_id");
        if found != expected || self.index.contains(id) != expected.is_ok() {
            return Err(format!("vector {id} is {found:?}, expected {expected:?}"));
        }
        Ok(())
    }
}

/// Runs `call` with a watch that panics at its call number `stop`. `None` if it panicked.
fn panics_at<V>(stop: usize, call: impl FnOnce(&Watch<'_>) -> V) -> Option<V> {
    let mut calls = 0;
    let watch = Watch::new(|_| {
        calls += 1;
        if calls > stop {
            // As a panic, without its message.
            resume_unwind(Box::new("caller"));
        }
        ControlFlow::Continue(())
    });
    catch_unwind(AssertUnwindSafe(|| call(&watch))).ok()
}

/// How many of the `found` slots are as good as the best of `all`, which are in order.
///
/// # Errors
/// A slot that holds no vector of `all`, or one of them twice or with another distance; more or fewer vectors than
/// there are.
fn some_of(metric: Metric, all: &[(u64, u32)], found: &[(u64, u32)]) -> Result<usize, String> {
    let there = all.len().min(found.len());
    let ids: Vec<u64> = found[..there].iter().map(|slot| slot.0).collect();
    if found[..there].iter().any(|slot| !all.contains(slot)) || twice(&ids) {
        return Err(format!("{found:?}, among {all:?}"));
    }
    if found[there..].iter().any(|slot| slot.0 != NO_ID) {
        return Err(format!("{found:?} of {there} vectors"));
    }
    let bad = |slot: &(u64, u32)| badness(metric, f32::from_bits(slot.1).into());
    let last = all[..there].last().map_or(0.0, bad);
    Ok(found[..there].iter().filter(|slot| bad(slot) <= last).count())
}

fn twice(ids: &[u64]) -> bool {
    (1..ids.len()).any(|at| ids[..at].contains(&ids[at]))
}

/// Why no index takes these ids.
fn refusal(ids: &[u64]) -> Option<&'static str> {
    if twice(ids) {
        return Some("duplicate_id");
    }
    ids.contains(&NO_ID).then_some("reserved_id")
}
