//! Inverted files: a random program of additions, removals and merges, with searches between them, against the contents
//! by definition.

use test_cases::by_element;
use warpann::ivf::{Encoding, IvfIndex, IvfIndexBuilder};
use warpann::{Bitset, Scan, SearchOptions};
use warpann::{Device, ElementType, Error, Filter, Metric};

use super::vectors::{self, Form, VectorsShape};
use super::work;
use crate::data::{Component, Random, Vectors};
use crate::ivf::reference::Contents;
use crate::ivf::runner::{check, model};
use crate::runner::{Outcome, text};

/// A random program of calls of an inverted file.
#[derive(Debug)]
struct IvfCase {
    metric: Metric,
    encoding: Encoding,
    shape: VectorsShape,
    lists: usize,
    iterations: usize,
    seed: u64,
    form: Form,
    steps: Vec<Step>,
}

/// A step of a program. Shares are in percent.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Step {
    /// Adds some of the vectors, with ids that count up.
    Add(usize),
    /// Adds some with ids of the program's own.
    AddWithIds(usize),
    /// Removes a share of what is there.
    Remove(usize),
    /// Merges an index of some of the vectors.
    Merge(usize),
    /// k-nearest and range searches.
    Search { k: usize, probes: usize, scan: Scan, allowed: Option<u64> },
    /// Reconstructs vectors by their ids.
    Reconstruct,
}

/// The case of a seed.
///
/// # Errors
/// The case and the first difference, in words.
pub fn case(seed: u64, device: Device) -> Outcome {
    let mut random = Random::new(seed);
    let element = vectors::element(&mut random);
    by_element!(element, program(&mut random, device))
}

/// Residuals, and sums of a few components, stay finite: what does not is refused, as documented.
const RANGE: (i32, i32) = (-149, 120);

/// Components that f16 holds with some scale. A scale does not suit all, so an index refuses some of the vectors.
const HALF_RANGE: (i32, i32) = (-140, 8);

/// Components whose steps codes of bits hold.
const BITS_RANGE: (i32, i32) = (-149, 95);

fn program<T: Component>(random: &mut Random, device: Device) -> Outcome {
    // A search of a step is several, on the CPU with each scan.
    let most = work(random, device) / 4;
    let mut shape = vectors::shape(random, most, 200);
    shape.nq = shape.nq.min(24);
    shape.n = shape.n.min(4000);
    let mut encoding = Encoding::Flat;
    if random.once_in(3) {
        encoding = match random.below(3) {
            0 if T::TYPE == ElementType::F32 => Encoding::F16,
            1 => Encoding::Bits { bits: 1 + random.below(8) as u32 },
            _ => Encoding::Scalar8,
        };
        // Rotating and decoding by the reference takes as long as many products.
        if let Encoding::Bits { .. } = encoding {
            shape.n = shape.n.min(most / (shape.dim * shape.dim + 64 * shape.dim));
        }
    } else if random.once_in(2) {
        let sub_quantizers = 1 + random.below(8);
        let width = shape.dim.div_ceil(sub_quantizers);
        shape.dim = width * sub_quantizers;
        let bits = 4 + random.size(2) as u32;
        encoding = Encoding::Pq { sub_quantizers, bits, rotate: shape.dim <= 24 && random.once_in(6) };
        // Decoding by the reference takes as long as many products.
        shape.n = shape.n.min(most / (shape.dim << bits));
    }
    let lists = 1 + random.size(11);
    let steps = 3 + random.below(5);
    let mut steps: Vec<Step> = (0..steps).map(|_| step(random, &shape, lists)).collect();
    steps.insert(0, Step::Add(random.below(shape.n + 1)));
    steps.push(search(random, &shape, lists));
    // Few cases have whole vectors of bytes, so half of these are of bits.
    let may_be_bits = encoding == Encoding::Flat && T::TYPE == ElementType::U8;
    let of_bits = may_be_bits && random.once_in(2);
    let case = IvfCase {
        metric: if of_bits { Metric::Hamming } else { random.pick(&Metric::OF_NUMBERS) },
        encoding,
        shape,
        lists,
        iterations: random.below(4),
        seed: random.bits(),
        form: vectors::form(
            random,
            vectors::range(
                T::TYPE,
                match encoding {
                    Encoding::F16 => HALF_RANGE,
                    Encoding::Bits { .. } => BITS_RANGE,
                    _ => RANGE,
                },
            ),
        ),
        steps,
    };
    run::<T>(&case, random, device).map_err(|failure| format!("{failure}\n{:?} {case:?}", T::TYPE))
}

fn step(random: &mut Random, shape: &VectorsShape, lists: usize) -> Step {
    let count = random.below(shape.n / 2 + 2);
    match random.below(8) {
        0 => Step::Add(count),
        1 | 2 => Step::AddWithIds(count),
        3 => Step::Remove(random.pick(&[1, 20, 50, 90, 100])),
        4 => Step::Merge(count),
        5 => Step::Reconstruct,
        _ => search(random, shape, lists),
    }
}

fn search(random: &mut Random, shape: &VectorsShape, lists: usize) -> Step {
    Step::Search {
        k: 1 + random.size((shape.n + 2).min(600)),
        probes: if random.once_in(3) { lists } else { 1 + random.below(lists + 1) },
        scan: random.pick(&[Scan::Auto, Scan::ListMajor, Scan::ListMajor, Scan::QueryMajor]),
        allowed: random.once_in(3).then(|| random.pick(&[0, 5, 50, 95])),
    }
}

/// A trained, empty index. The CPU always trains, because k-means has separate cases.
fn trained<T: Component>(builder: &IvfIndexBuilder<T>, rows: &[T], device: Device) -> Result<IvfIndex<T>, String> {
    let mut index = builder.clone().device(Device::Cpu).build().map_err(text)?;
    index.train(rows).map_err(text)?;
    if device != Device::Cpu {
        index.move_to(device).map_err(text)?;
    }
    Ok(index)
}

/// The state of a program: the vectors, the index and its contents.
struct Program<'a, T: Component> {
    dim: usize,
    vectors: &'a Vectors<T>,
    index: IvfIndex<T>,
    contents: Contents,
}

fn run<T: Component>(case: &IvfCase, random: &mut Random, device: Device) -> Outcome {
    let &IvfCase { metric, encoding, shape: VectorsShape { dim, n, nq }, lists, ref form, .. } = case;
    let need = match encoding {
        Encoding::Pq { bits, .. } => lists.max(1 << bits),
        _ => lists,
    };
    let training: Vectors<T> = vectors::vectors(form, dim, need + random.below(20), 0, random);
    let vectors: Vectors<T> = vectors::vectors(form, dim, n.max(1), nq, random);
    let builder = IvfIndex::<T>::builder(dim, lists)
        .metric(metric)
        .encoding(encoding)
        .iterations(case.iterations)
        .seed(case.seed);
    let index = trained(&builder, &training.base, device)?;
    let contents = Contents::new(model(&index));
    let mut program = Program { dim, vectors: &vectors, index, contents };
    for (number, step) in case.steps.iter().enumerate() {
        let done = match *step {
            Step::Add(count) => program.refuse().and_then(|()| program.add(count, random)),
            Step::AddWithIds(count) => program.add_with_ids(count, random),
            Step::Remove(percent) => program.remove(percent, random),
            Step::Merge(count) => {
                trained(&builder, &training.base, device).and_then(|other| program.merge(other, count, random))
            }
            Step::Search { k, probes, scan, allowed } => program.search(k, probes, scan, allowed),
            Step::Reconstruct => program.reconstruct(random),
        };
        done.and_then(|()| program.same_ids()).map_err(|failure| format!("step {number}, {step:?}: {failure}"))?;
    }
    Ok(())
}

impl<T: Component> Program<'_, T> {
    /// Some of the vectors, one after the other, without those that the index refuses.
    fn some(&self, count: usize, random: &mut Random) -> (Vec<T>, Vec<f64>) {
        let dim = self.dim;
        let count = count.min(self.vectors.base.len() / dim);
        let first = random.below(self.vectors.base.len() / dim - count + 1);
        let exact = |row: usize| &self.vectors.exact_base[row * dim..][..dim];
        let held: Vec<usize> = (first..first + count).filter(|&row| self.contents.model.holds(exact(row))).collect();
        let rows = held.iter().flat_map(|row| &self.vectors.base[row * dim..][..dim]).copied().collect();
        (rows, held.iter().flat_map(|&row| exact(row)).copied().collect())
    }

    /// A vector that the index refuses changes nothing.
    fn refuse(&mut self) -> Outcome {
        let mut all = self.vectors.base.chunks(self.dim).zip(self.vectors.exact_base.chunks(self.dim));
        let Some((row, _)) = all.find(|(_, exact)| !self.contents.model.holds(exact)) else { return Ok(()) };
        match self.index.add(row) {
            Err(Error::DoesNotFit { .. }) => Ok(()),
            other => Err(format!("{row:?} is not refused: {other:?}")),
        }
    }

    /// Ids that are not in the index, nor near the greatest there is.
    fn new_ids(&self, count: usize, random: &mut Random) -> Vec<u64> {
        let taken = self.contents.ids();
        let mut ids: Vec<u64> = Vec::new();
        while ids.len() < count {
            let id = if random.once_in(2) { random.below(10_000) as u64 } else { random.bits() >> 2 };
            if taken.binary_search(&id).is_err() && !ids.contains(&id) {
                ids.push(id);
            }
        }
        ids
    }

    fn add(&mut self, count: usize, random: &mut Random) -> Outcome {
        let (rows, exact) = self.some(count, random);
        let first = self.contents.ids().last().map_or(0, |id| id + 1);
        let ids: Vec<u64> = (first..first + (rows.len() / self.dim) as u64).collect();
        self.index.add(&rows).map_err(text)?;
        self.contents.add(&exact, &ids);
        Ok(())
    }

    fn add_with_ids(&mut self, count: usize, random: &mut Random) -> Outcome {
        let (rows, exact) = self.some(count, random);
        let ids = self.new_ids(rows.len() / self.dim, random);
        self.index.add_with_ids(&rows, &ids).map_err(text)?;
        self.contents.add(&exact, &ids);
        Ok(())
    }

    fn remove(&mut self, percent: usize, random: &mut Random) -> Outcome {
        let mut ids: Vec<u64> = self.contents.ids().into_iter().filter(|_| random.below(100) < percent).collect();
        // In any order.
        ids.sort_by_key(|&id| id.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        self.index.remove(&ids).map_err(text)?;
        self.contents.remove(&ids);
        Ok(())
    }

    fn merge(&mut self, mut other: IvfIndex<T>, count: usize, random: &mut Random) -> Outcome {
        let (rows, exact) = self.some(count, random);
        let ids = self.new_ids(rows.len() / self.dim, random);
        other.add_with_ids(&rows, &ids).map_err(text)?;
        self.index.merge(&other).map_err(text)?;
        self.contents.add(&exact, &ids);
        Ok(())
    }

    fn search(&self, k: usize, probes: usize, scan: Scan, allowed: Option<u64>) -> Outcome {
        let chosen =
            |id: u64| allowed.is_none_or(|percent| id.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 57 < percent * 128 / 100);
        let filter: Option<Bitset> = allowed.map(|_| self.index.filter(chosen));
        let options =
            SearchOptions::new().probes(probes).filter(filter.as_ref().map(Filter::Bits)).widen(false).scan(scan);
        check(&self.index, &self.contents, &self.vectors.queries, &self.vectors.exact_queries, k, &options, chosen)
    }

    fn reconstruct(&self, random: &mut Random) -> Outcome {
        let by_id = self.contents.by_id();
        let ids = self.contents.ids();
        for _ in 0..if ids.is_empty() { 0 } else { 3 } {
            let id = random.pick(&ids);
            let found = self.index.reconstruct(id).map_err(text)?;
            let expected = self.contents.model.read_back(by_id[&id]);
            if found.iter().map(|x| x.to_bits()).ne(expected.iter().map(|x| x.to_bits())) {
                return Err(format!("vector {id} comes back as {found:?}; by definition {expected:?}"));
            }
        }
        Ok(())
    }

    fn same_ids(&self) -> Outcome {
        let expected = self.contents.ids();
        if self.index.ids() == expected && self.index.len() == expected.len() {
            return Ok(());
        }
        Err(format!("the index has {} vectors, or other ids than {expected:?}", self.index.len()))
    }
}
