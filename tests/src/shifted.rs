//! Shifted sort: exact if it examines all points, otherwise the CPU's bits, within any budget.

use warpann::shifted::{ShiftedIndex, ShiftedIndexBuilder};
use warpann::{Device, Error, Metric, NONE, Neighbors};

use crate::data::Random;
use crate::reference;
use crate::runner::{Outcome, same, text};
use crate::scenarios::{Scenario, by_device};

/// Every scenario. Each chooses sizes that suit the device.
pub const ALL: &[Scenario] = &[
    ("shifted::all_positions_are_exact_search", all_positions),
    ("shifted::parts_are_the_cpus_to_the_bit", parts),
    ("shifted::self_joins_are_the_cpus_to_the_bit", self_joins),
    ("shifted::any_budget_gives_the_same_bits_or_an_error", budgets),
];

/// Dimension, shifts and k of the cases: every width of code and every kernel, k below, at and above a warp.
const SHAPES: [(usize, Option<usize>, usize); 9] = [
    (1, None, 1),
    (2, Some(1), 2),
    (3, None, 8),
    (4, Some(3), 40),
    (5, None, 16),
    (6, None, 4),
    (8, Some(2), 31),
    (11, Some(2), 33),
    (12, None, 10),
];

/// Points in a cube, on a grid with many equal distances, or all at one place but one.
#[derive(Debug, Clone, Copy)]
enum Points {
    Cube,
    Lattice,
    Outlier,
}

const POINTS: [Points; 3] = [Points::Cube, Points::Lattice, Points::Outlier];

impl Points {
    fn make(self, dim: usize, count: usize, random: &mut Random) -> Vec<f32> {
        let component = |at: usize| match self {
            Points::Cube => random.unit() as f32 * 20.0 - 10.0,
            Points::Lattice => random.below(4) as f32,
            Points::Outlier if at < dim => 1e6,
            Points::Outlier => 0.25,
        };
        (0..count * dim).map(component).collect()
    }
}

fn built(builder: ShiftedIndexBuilder, device: Device, base: &[f32]) -> Result<ShiftedIndex, Error> {
    let mut index = builder.device(device).build()?;
    // Twice: the second addition sorts everything anew.
    let half = base.len() / 2 / index.dim() * index.dim();
    index.add(&base[..half])?;
    index.add(&base[half..])?;
    Ok(index)
}

fn builder(dim: usize, shifts: Option<usize>) -> ShiftedIndexBuilder {
    let builder = ShiftedIndex::builder(dim);
    if let Some(shifts) = shifts { builder.shifts(shifts) } else { builder }
}

/// Calls `test` for every shape, on every kind of points; on the emulator on one.
fn each(
    device: Device,
    mut test: impl FnMut((usize, Option<usize>, usize), Points, &mut Random) -> Result<Outcome, Error>,
) -> Outcome {
    let mut random = Random::new(31);
    for (at, shape) in SHAPES.into_iter().enumerate() {
        for points in POINTS.into_iter().cycle().skip(at).take(by_device(device, 1, POINTS.len())) {
            let outcome = test(shape, points, &mut random).unwrap_or_else(|error| Err(error.to_string()));
            outcome.map_err(|failure| format!("(dimension, shifts, k) {shape:?}, {points:?}: {failure}"))?;
        }
    }
    Ok(())
}

/// Checks that results are best first, have each id once and not `own` (the query's number), and have the distances of
/// the definition.
fn sound(dim: usize, base: &[f32], queries: &[f32], own: bool, found: &Neighbors) -> Outcome {
    let (base, queries) = (wide(base), wide(queries));
    if let Some(slot) = reference::Base::new(Metric::L2, dim, &base).first_unsound(&queries, 1, found) {
        let query = slot / found.k;
        return Err(format!("query {query} has {:?}", found.found(query).collect::<Vec<_>>()));
    }
    let finds_itself = |&query: &usize| own && found.found(query).any(|(id, _)| id == query as u64);
    (0..found.queries()).find(finds_itself).map_or(Ok(()), |query| Err(format!("query {query} finds itself")))
}

fn wide(values: &[f32]) -> Vec<f64> {
    values.iter().map(|&value| f64::from(value)).collect()
}

fn all_positions(device: Device) -> Outcome {
    each(device, |(dim, shifts, k), points, random| {
        let (n, nq) = (by_device(device, 70, 2_000), by_device(device, 2, 60));
        let base = points.make(dim, n, random);
        let queries = points.make(dim, nq, random);
        let found = built(builder(dim, shifts).neighborhood(n), device, &base)?.search(&queries, k)?;
        let expected = reference::Base::new(Metric::L2, dim, &wide(&base)).neighbors(&wide(&queries), k);
        Ok(same("neighbours", &expected, &found))
    })
}

fn parts(device: Device) -> Outcome {
    each(device, |(dim, shifts, k), points, random| {
        let (n, nq) = (by_device(device, 150, 20_000), by_device(device, 3, 1_000));
        let (base, queries) = (points.make(dim, n, random), points.make(dim, nq, random));
        let [expected, found] = [Device::Cpu, device]
            .map(|device| built(builder(dim, shifts), device, &base).and_then(|index| index.search(&queries, k)));
        let found = found?;
        Ok(sound(dim, &base, &queries, false, &found).and(same("neighbours", &expected?, &found)))
    })
}

fn self_joins(device: Device) -> Outcome {
    each(device, |(dim, shifts, k), points, random| {
        let base = points.make(dim, by_device(device, 50, 4_000), random);
        let [expected, found] = [Device::Cpu, device]
            .map(|device| built(builder(dim, shifts), device, &base).and_then(|index| index.self_join(k)));
        let found = found?;
        Ok(sound(dim, &base, &base, true, &found).and(same("neighbours", &expected?, &found)))
    })
}

fn budgets(device: Device) -> Outcome {
    let (dim, k) = (6, 8);
    let mut random = Random::new(32);
    let base = Points::Cube.make(dim, by_device(device, 300, 50_000), &mut random);
    let queries = Points::Cube.make(dim, by_device(device, 40, 50_000), &mut random);
    let expected =
        built(builder(dim, None), Device::Cpu, &base).and_then(|index| index.search(&queries, k)).map_err(text)?;
    let (mut answered, mut refused) = (0, 0);
    for budget in [1, 20 << 10, 40 << 10, 80 << 10, 160 << 10, 1 << 20, 8 << 20, 40 << 20, 80 << 20, 1 << 30] {
        let index = builder(dim, None).memory_budget(budget);
        match built(index, device, &base).and_then(|index| index.search(&queries, k)) {
            Ok(found) => {
                answered += 1;
                same(&format!("{budget} bytes"), &expected, &found)?;
            }
            Err(Error::OutOfDeviceMemory { .. }) => refused += 1,
            Err(other) => return Err(format!("{budget} bytes: {other}")),
        }
    }
    if expected.ids.iter().all(|&id| id == NONE) || answered == 0 || (refused == 0 && device != Device::Cpu) {
        return Err(format!("{answered} budgets were enough, {refused} were not"));
    }
    Ok(())
}
