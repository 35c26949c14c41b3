//! Cases of k-selection: rows of any layout, and keys of any bits.

use half::{bf16, f16};
use test_random::Random;
use warpann::Device;
use warpann::select::{Algorithm, Best, KeyType, Rows, select_k_with};

use crate::keys::{self, KeyData, TestKey};
use crate::reference::{self, NO_POSITION};
use crate::{Difference, Failure};

/// The back ends that run a case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Size {
    /// All back ends run the case, the emulator included.
    Small,
    /// The case runs on CPU and GPU, not on the emulator.
    Large,
}

/// The layout of the rows of a [`SelectCase`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    /// Rows are consecutive in memory.
    Contiguous,
    /// This number of keys lies between rows; they are better than all others.
    Apart(usize),
    /// Each row starts this number of keys after the row before, and shares keys with it.
    Overlapping(usize),
    /// Ragged: any length from 0 to `columns`, both included, with keys before the first and after the last.
    Ragged,
}

/// The lengths of the rows of a [`SelectCase`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lengths {
    /// Every row has all columns.
    Full,
    /// Any number from none to all, both included.
    Any,
    /// Rows have at most 5 keys.
    Short,
}

/// A case of k-selection.
#[derive(Debug, Clone, PartialEq)]
pub struct SelectCase {
    /// Number of rows of keys.
    pub rows: usize,
    /// Keys of a row, at most.
    pub columns: usize,
    /// Number of keys to select in each row.
    pub k: usize,
    /// Whether the smallest or the largest keys are selected.
    pub best: Best,
    /// The type of the keys.
    pub key: KeyType,
    /// How the keys are made.
    pub data: KeyData,
    /// Layout of the rows in memory.
    pub layout: Layout,
    /// Lengths of the rows.
    pub lengths: Lengths,
    /// Algorithm of a GPU.
    pub algorithm: Algorithm,
    /// Seed of the keys.
    pub seed: u64,
    /// The back ends that run the case.
    pub size: Size,
}

impl SelectCase {
    /// The plainest case; the table names what differs from it.
    pub const PLAIN: SelectCase = SelectCase {
        rows: 0,
        columns: 0,
        k: 1,
        best: Best::Smallest,
        key: KeyType::F32,
        data: KeyData::Random,
        layout: Layout::Contiguous,
        lengths: Lengths::Full,
        algorithm: Algorithm::Auto,
        seed: 0,
        size: Size::Small,
    };

    /// Name of the test.
    pub fn name(&self) -> String {
        let SelectCase { rows, columns, k, best, key, data, layout, lengths, algorithm, .. } = self;
        let data = match data {
            KeyData::Infinite { percent } => format!("Infinite{percent}"),
            KeyData::Worst { percent } => format!("Worst{percent}"),
            data => format!("{data:?}"),
        };
        format!("select::{algorithm}::{key}::{best:?}::{data}::{layout:?}::{lengths:?}::r{rows}_c{columns}_k{k}")
    }

    /// A random case of `keys` keys at most.
    pub fn draw(random: &mut Random, keys: usize) -> SelectCase {
        let rows = random.size(60);
        let columns = random.size((keys / rows.max(1)).min(100_000));
        let key = random.pick(&KeyType::ALL);
        let percent = random.pick(&[0.1, 10.0, 50.0, 90.0, 99.9]);
        let data = random.pick(&[
            KeyData::Random,
            KeyData::Ascending,
            KeyData::Descending,
            KeyData::AllEqual,
            KeyData::TwoValues,
            KeyData::EqualLeadingBits,
            KeyData::Infinite { percent },
            KeyData::Worst { percent },
            KeyData::SomeNan,
            KeyData::SomeNan,
            KeyData::AllNan,
            KeyData::Zeros,
            KeyData::Subnormal,
            KeyData::Bits,
            KeyData::Bits,
            KeyData::Outlier,
        ]);
        let layout = match random.below(5) {
            0 => Layout::Apart(random.below(40)),
            // The stride: at least 1, so that rows differ.
            1 => Layout::Overlapping(1 + random.below(columns.max(1))),
            2 => Layout::Ragged,
            _ => Layout::Contiguous,
        };
        let algorithms: &[Algorithm] = match key {
            KeyType::F32 => &[Algorithm::Auto, Algorithm::WarpSelect, Algorithm::ThresholdSelect],
            _ => &[Algorithm::Auto, Algorithm::ThresholdSelect],
        };
        let k = match random.below(3) {
            0 => random.pick(&[32, 64, 128, 256, 512, 1024, 2048]) + random.below(3) - 1,
            1 => 1 + random.below(40),
            _ => 1 + random.size(columns.min(5000) + 3),
        };
        SelectCase {
            rows,
            columns,
            k,
            best: random.pick(&[Best::Smallest, Best::Largest]),
            key,
            data,
            layout,
            lengths: random.pick(&[Lengths::Full, Lengths::Full, Lengths::Any, Lengths::Short]),
            algorithm: random.pick(algorithms),
            seed: random.bits(),
            size: Size::Small,
        }
    }

    /// Selects on a device: keys to the bit, positions, order and empty slots must be as the reference says.
    ///
    /// # Errors
    /// The first difference.
    pub fn run(&self, device: Device) -> Result<(), Failure> {
        match self.key {
            KeyType::F32 => run::<f32>(self, device),
            KeyType::F16 => run::<f16>(self, device),
            KeyType::Bf16 => run::<bf16>(self, device),
            KeyType::I32 => run::<i32>(self, device),
            KeyType::U32 => run::<u32>(self, device),
            other => Err(Failure::Other(format!("no case has keys of {other}"))),
        }
    }
}

/// The keys of a case.
struct Keys<K> {
    all: Vec<K>,
    /// The start and the end of each row.
    spans: Vec<(usize, usize)>,
    /// [`Keys::spans`] as a ragged batch wants them.
    starts: Vec<u64>,
    lengths: Option<Vec<u32>>,
}

impl<K: TestKey> Keys<K> {
    fn of(case: &SelectCase) -> Self {
        let &SelectCase { rows, columns, best, data, layout, lengths, seed, .. } = case;
        let mut random = Random::new(!seed);
        // A row of full length, one of none, then any.
        let mut any_length = |row: usize, room: usize| match row {
            0 => room,
            1 => 0,
            _ => random.below(room + 1),
        };
        // The start and the end of each row, and the end of all keys.
        let mut spans: Vec<(usize, usize)> = Vec::new();
        for row in 0..rows {
            spans.push(match layout {
                Layout::Contiguous => (row * columns, (row + 1) * columns),
                Layout::Apart(gap) => (row * (columns + gap), row * (columns + gap) + columns),
                Layout::Overlapping(stride) => (row * stride, row * stride + columns),
                Layout::Ragged => {
                    let start = spans.last().map_or(5, |&(_, end)| end);
                    (start, start + any_length(row, columns))
                }
            });
        }
        let end = spans.last().map_or(0, |&(_, end)| end) + if layout == Layout::Ragged { 3 } else { 0 };
        let mut all: Vec<K> = keys::keys(data, best, end, columns, seed);
        if let Layout::Apart(gap) = layout {
            // Keys that must not be read are better than all others.
            let winner = K::scaled(if best == Best::Smallest { f64::NEG_INFINITY } else { f64::INFINITY });
            all.chunks_mut((columns + gap).max(1))
                .flat_map(|row| row.iter_mut().skip(columns))
                .for_each(|key| *key = winner);
        }
        let starts: Vec<u64> =
            spans.iter().map(|&(start, _)| start as u64).chain(spans.last().map(|&(_, end)| end as u64)).collect();
        let room = |row: usize| spans[row].1 - spans[row].0;
        let lengths: Option<Vec<u32>> = match lengths {
            Lengths::Full => None,
            Lengths::Any => Some((0..rows).map(|row| any_length(row, room(row)) as u32).collect()),
            Lengths::Short => Some((0..rows).map(|row| ((row + 3) % 6).min(room(row)) as u32).collect()),
        };
        Self { all, spans, starts, lengths }
    }

    /// The rows as the library wants them.
    fn rows(&self, case: &SelectCase) -> warpann::Result<Rows<'_, K>> {
        let &SelectCase { rows, columns, .. } = case;
        let batch = match case.layout {
            // Rows of no columns can be counted only if they are strided.
            Layout::Contiguous if columns > 0 => Rows::contiguous(&self.all, columns),
            Layout::Contiguous => Rows::strided(&self.all, rows, columns, columns),
            Layout::Apart(gap) => Rows::strided(&self.all, rows, columns, columns + gap),
            Layout::Overlapping(stride) => Rows::strided(&self.all, rows, columns, stride),
            Layout::Ragged => Rows::ragged(&self.all, &self.starts),
        };
        match &self.lengths {
            Some(lengths) => batch?.with_lengths(lengths),
            None => batch,
        }
    }

    /// The values of a row, without those past its length.
    fn values(&self, row: usize) -> Vec<f64> {
        let (start, end) = self.spans[row];
        let length = self.lengths.as_ref().map_or(end - start, |lengths| lengths[row] as usize);
        self.all[start..start + length].iter().map(|key| key.value()).collect()
    }
}

fn run<K: TestKey>(case: &SelectCase, device: Device) -> Result<(), Failure> {
    let &SelectCase { rows, k, best, algorithm, .. } = case;
    let keys = Keys::<K>::of(case);
    let batch = keys.rows(case)?;
    let found = select_k_with(device, &batch, k, best, algorithm)?;
    if found.k != k || found.keys.len() != rows * k || found.positions.len() != rows * k {
        let text = format!("{} keys and {} positions for k = {k}", found.keys.len(), found.positions.len());
        return Err(Failure::Other(text));
    }
    let ids: Vec<u64> = (0..keys.all.len() as u64).map(|at| at << 32).collect();
    let payloads = found.payloads(&batch, &ids)?;
    for row in 0..rows {
        let values = keys.values(row);
        for (place, position) in reference::select(best, &values, k).into_iter().enumerate() {
            let at = row * k + place;
            let key = K::selected(best, values.get(position as usize));
            let payload = match position {
                NO_POSITION => u64::MAX,
                _ => (keys.spans[row].0 as u64 + u64::from(position)) << 32,
            };
            if (position, key.bits()) != (found.positions[at], found.keys[at].bits()) {
                let slot = |position: u32, key: K| {
                    (Some(u64::from(position)).filter(|_| position != NO_POSITION), Some(key.value() as f32))
                };
                let (expected, found) = (slot(position, key), slot(found.positions[at], found.keys[at]));
                return Err(Failure::Different(Difference { query: row, place, expected, found }));
            }
            if payload != payloads[at] {
                return Err(Failure::Other(format!(
                    "row {row}, place {place}: payload {:#x}; expected {payload:#x}, position {position}",
                    payloads[at]
                )));
            }
        }
    }
    Ok(())
}
