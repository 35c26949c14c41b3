//! The nodes among which the edges of a new graph are chosen.
//!
//! ```text
//! candidates of a row = its `degree` nearest rows
//!                     + the `degree` nearest of every 16th row
//!                     + the `degree` / 2 nearest of every 128th row
//! ```
//! A search among fewer than IVF_ROWS rows is exact. Among more it goes through an inverted file: to 24 lists for the
//! nearest rows, to 12 and to 4 for the farther ones, which need not be the nearest of all. Inverted files have no
//! bits, so searches among bits are exact: a graph of 1,000,000 × 1,024 bits takes .64 s on an H200 (2026-11-29).
//!
//! The nearest rows alone lie in the row's own cluster, and then walks that begin in another cluster never leave it.
//! The other lists reach 16 and 64 times as far, at the cost of a search in few rows.
//!
//! On a GPU that has the rows, the inverted files are made of them there ([`crate::ivf::held`]), the searches go from
//! device memory to device memory, and the candidates stay there until the edges are chosen (`gpu/build.rs`).
//!
//! Recall of walks, 32 edges each, k = 10, on a CPU (2026-11-25): 200,000 clustered f32 vectors of 128 components, in
//! clusters of 500 and of 2,000, and the descriptors of the SIFT photographs. The graphs of the last three rows got
//! both prunings (`build.rs`), the others only the first.
//!
//! | candidates | clusters of 500, beam 32 | 64 | 128 | clusters of 2,000, 32 | SIFT, 24 | 48 |
//! |---|---|---|---|---|---|---|
//! | 64 nearest | .957 | .975 | .994 | | | |
//! | 128 nearest | .991 | .998 | 1.000 | | | |
//! | 32 nearest, and 16 of every 16th row | .991 | .999 | 1.000 | | | |
//! | 32 nearest, and 32 of every 16th row | .992 | .997 | 1.000 | .990 | .955 | .983 |
//! | the same, through 16 lists instead of 24 | .990 | .997 | | | .952 | .981 |
//! | 32 nearest, and 32 of every 16th row, both prunings | .997 | .998 | | .992 | .954 | .982 |
//! | 48 nearest, and 32 of every 16th row, through 16 lists, both prunings | .996 | .999 | | | .954 | .983 |
//! | 32 nearest, 32 of every 16th row, 16 of every 128th, both prunings | .996 | .998 | | .995 | .953 | .982 |
//!
//! The farther rows had 24 lists, and those of every 128th row were searched exactly, in the table. With fewer, recall
//! of 1,000,000 × 128 clustered vectors in clusters of 500, and milliseconds for searches and the first pruning (H200,
//! 2026-11-26):
//!
//! | every 16th row | every 128th | beam 24 | 32 | 48 | SIFT, 24 | 48 | searches and pruning |
//! |---|---|---|---|---|---|---|---|
//! | 24 lists | exact | .973 | .981 | .987 | .955 | .983 | 229 |
//! | 12 lists | exact | .971 | .981 | .988 | | | 200 |
//! | 4 lists | exact | .967 | .979 | .988 | | | 175 |
//! | 24 lists | 4 lists | .972 | .981 | .987 | | | 209 |
//! | 12 lists | 8 lists | .970 | .980 | .987 | | | 188 |
//! | 12 lists | 4 lists | .969 | .981 | .988 | .955 | .983 | 180 |
//!
//! Variants that lost: only every 32nd or 64th row (.989 and .972 in clusters of 500, a beam of 32); the nearest of
//! every 16th row to the row of these that is nearest, instead of to the row itself (.963); 32 of the 64 nearest to the
//! row of every 256th that is nearest, others for each row (.976): rows of a cluster then share what leads out of it.
//! The inverted file is trained on every 16th row: training on all rows finds hardly more (.9956 instead of .9949 at a
//! beam of 32).

use std::ops::Range;

use crate::flat::ResidentRows;
use crate::ivf::IvfIndex;
use crate::ivf::held::HeldVectors;
use crate::knn_graph::{Graph, NO_NODE};
use crate::search::PlannedSearch;
use crate::threads::meanwhile;
use crate::{
    Device, Element, Error, FlatIndex, Metric, NONE, Placement, Result, SearchOptions, Stage, Watch, host_memory,
};
use rayon::prelude::*;

/// Smallest number of rows whose nearest rows come from an inverted file. Few in unit tests, so that these make small
/// ones.
const IVF_ROWS: usize = if cfg!(test) { 250 } else { 5_000 };
/// Lists that a search for nearest rows probes.
const NEAR_PROBES: usize = 24;
/// Iterations of the training of the inverted file.
const ITERATIONS: usize = 4;
/// Smallest number of training vectors for each list, on average.
const TRAINING_ROWS: usize = 8;
/// The inverted file of a level is trained on every n-th row of the level; this is n.
const TRAINED_SHARE: usize = 16;
/// Levels of farther rows: (n for every n-th row, m for degree / m candidates, number of probed lists).
const FAR: [(usize, usize, usize); 2] = [(16, 1, 12), (128, 2, 4)];
/// Number of rows of a sample that says whether components are whole numbers and near which centre they lie.
const SAMPLED: usize = 64;
/// Number of rows that are searched at a time.
pub(super) const BATCH: usize = 1 << 16;

/// The settings of a graph.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Settings {
    pub(super) metric: Metric,
    pub(super) degree: usize,
    pub(super) seed: u64,
}

/// Every `share`-th row.
fn every<T: Element>(share: usize, rows: &[T], dim: usize) -> Result<Vec<T>> {
    let mut some: Vec<T> = host_memory::zeroed((rows.len() / dim).div_ceil(share) * dim)?;
    some.par_chunks_exact_mut(dim)
        .zip(rows.par_chunks(share * dim))
        .for_each(|(to, from)| to.copy_from_slice(&from[..dim]));
    Ok(some)
}

/// How the candidates of one level are searched.
enum Search<T: Element> {
    /// An exact index that has the rows of the level.
    Flat(FlatIndex<T>),
    /// An inverted file that was trained for the rows of the level, and has none of them.
    Ivf(IvfIndex<T>),
}

/// One of the searches for candidates: among the rows of the level, whose ids are their numbers.
struct Level<T: Element> {
    of: Sizes,
    search: Search<T>,
}

/// The sizes of a level.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sizes {
    /// The level has every `share`-th row.
    pub(super) share: usize,
    /// Largest number of candidates of a row.
    pub(super) most: usize,
    /// Number of lists that a search probes.
    probes: usize,
}

/// A planned search for candidates from device memory to device memory.
pub(super) struct PlannedLevel {
    pub(super) search: PlannedSearch,
    pub(super) of: Sizes,
}

/// Results of one search for a batch of rows: `k` slots for each row.
struct Found {
    rows: Range<usize>,
    of: Sizes,
    ids: Vec<u64>,
    distances: Vec<f32>,
}

impl Found {
    fn with_room(slots: usize) -> Result<Self> {
        let (ids, distances) = (host_memory::zeroed(slots)?, host_memory::zeroed(slots)?);
        Ok(Found { rows: 0..0, of: Sizes { share: 1, most: 0, probes: 0 }, ids, distances })
    }
}

/// The searches for the candidates of rows.
pub(super) struct Candidates<T: Element> {
    levels: Vec<Level<T>>,
    /// The searches of a batch of rows from device memory to device memory, if they are [planned](Self::plan).
    planned: Option<Vec<PlannedLevel>>,
}

/// The devices that search candidates, and the memory budget of the searches.
#[derive(Debug, Clone)]
pub(super) struct Place {
    pub(super) placement: Placement,
    /// Bytes that the searches of all levels may use together on each device; `None` for a share of its free memory.
    pub(super) budget: Option<u64>,
}

impl<T: Element> Candidates<T> {
    /// Searches for all candidates, on the CPU if devices have no memory for them.
    ///
    /// # Errors
    /// [`Error::Cancelled`](crate::Error::Cancelled); [`Error::OutOfHostMemory`](crate::Error::OutOfHostMemory); the
    /// errors of indexes.
    pub(super) fn all(rows: &[T], dim: usize, settings: Settings, place: &Place, watch: &Watch<'_>) -> Result<Self> {
        match Self::all_on(rows, dim, settings, place, watch) {
            Err(Error::OutOfDeviceMemory { .. }) => {
                let cpu = Place { placement: Device::Cpu.into(), budget: None };
                Self::all_on(rows, dim, settings, &cpu, watch)
            }
            made => made,
        }
    }

    fn all_on(rows: &[T], dim: usize, settings: Settings, place: &Place, watch: &Watch<'_>) -> Result<Self> {
        let near = Sizes { share: 1, most: settings.degree, probes: NEAR_PROBES };
        let (far, near) = meanwhile(
            || Self::far(rows, dim, settings, place, &Watch::none()),
            || Level::new(near, rows, dim, settings, place, watch),
        );
        let mut levels = vec![near?];
        levels.extend(far?.levels);
        Ok(Candidates { levels, planned: None })
    }

    /// Searches for all candidates but the nearest rows.
    ///
    /// # Errors
    /// As [`all`](Self::all).
    pub(super) fn far(rows: &[T], dim: usize, settings: Settings, place: &Place, watch: &Watch<'_>) -> Result<Self> {
        let level = |(share, part, probes)| {
            let of = Sizes { share, most: settings.degree / part, probes };
            Level::new(of, rows, dim, settings, place, watch)
        };
        Ok(Candidates { levels: FAR.into_iter().map(level).collect::<Result<_>>()?, planned: None })
    }

    /// Largest number of candidates of a row.
    pub(super) fn most(&self) -> usize {
        self.levels.iter().map(|level| level.of.most).sum()
    }

    /// Plans the searches of up to [`BATCH`] rows from device memory to device memory, on the device that has all rows
    /// as `resident`, if it can do them and has the memory.
    ///
    /// # Errors
    /// Errors of the device's driver; [`Error::OutOfHostMemory`].
    pub(super) fn plan(&mut self, rows: &[T], dim: usize, resident: &ResidentRows<'_>) -> Result<()> {
        // Queries of a planned search follow one another without bytes between them.
        if resident.shape.row_bytes() != dim * size_of::<T>() {
            return Ok(());
        }
        let planned = self.levels.iter().map(|level| level.planned(rows, dim, resident)).collect();
        self.planned = match planned {
            Err(Error::OutOfDeviceMemory { .. }) => None,
            planned => planned?,
        };
        Ok(())
    }

    /// The searches that [`plan`](Self::plan) planned.
    pub(super) fn planned(&self) -> Option<&[PlannedLevel]> {
        self.planned.as_deref()
    }

    /// The candidates of each row, [`most`](Self::most) slots, those without one last.
    ///
    /// # Errors
    /// [`Error::Cancelled`](crate::Error::Cancelled); [`Error::OutOfHostMemory`](crate::Error::OutOfHostMemory); the
    /// errors of searches.
    pub(super) fn graph(&self, rows: &[T], dim: usize, watch: &Watch<'_>) -> Result<Graph> {
        let (count, width) = (rows.len() / dim, self.most());
        let mut all: Vec<u32> = host_memory::filled(NO_NODE, host_memory::count::<u32>(&[count, width])?)?;
        self.append(rows, dim, &mut all, watch)?;
        Ok(Graph::of_rows(all, width))
    }

    /// Appends candidates to `lists`: of each row different other rows, and then at least [`most`](Self::most) slots
    /// with [`NO_NODE`].
    ///
    /// # Errors
    /// As [`graph`](Self::graph).
    pub(super) fn append(&self, rows: &[T], dim: usize, lists: &mut [u32], watch: &Watch<'_>) -> Result<()> {
        let count = rows.len() / dim;
        let (batch, width) = (BATCH.min(count), lists.len() / count.max(1));
        let filled: Vec<Level<T>> = self.levels.iter().map(|level| level.filled(rows, dim)).collect::<Result<_>>()?;
        let slots = batch * (1 + filled.iter().map(|level| level.of.most).max().unwrap_or(0));
        let (mut found, mut next) = (Found::with_room(slots)?, Found::with_room(slots)?);
        for first in (0..count).step_by(batch.max(1)) {
            watch.report(Stage::Searching, first, count)?;
            for level in &filled {
                // The next search runs while the results of this one are kept.
                let of = first..count.min(first + batch);
                let (_, searched) = meanwhile(|| found.keep(lists, width), || level.search(rows, dim, of, &mut next));
                searched?;
                std::mem::swap(&mut found, &mut next);
            }
        }
        found.keep(lists, width);
        watch.report(Stage::Searching, count, count)
    }
}

impl<T: Element> Level<T> {
    /// A level of some of `rows`: an inverted file from [`IVF_ROWS`] rows on.
    fn new(of: Sizes, rows: &[T], dim: usize, settings: Settings, place: &Place, watch: &Watch<'_>) -> Result<Self> {
        let Settings { metric, seed, .. } = settings;
        let count = (rows.len() / dim).div_ceil(of.share);
        // The nearest rows are among all rows, the others among few of them.
        let budget = place.budget.map(|budget| budget / if of.share == 1 { 2 } else { 2 * FAR.len() as u64 });
        if count < IVF_ROWS || metric.compares_bits() {
            let mut builder = FlatIndex::<T>::builder(dim).metric(metric).device(place.placement.clone());
            if let Some(bytes) = budget {
                builder = builder.memory_budget(bytes);
            }
            let mut index = builder.build()?;
            index.add(&every(of.share, rows, dim)?)?;
            return Ok(Level { of, search: Search::Flat(index) });
        }
        let training = every(of.share * TRAINED_SHARE, rows, dim)?;
        let lists = (4 * count.isqrt()).min(training.len() / dim / TRAINING_ROWS).max(1);
        let mut builder = IvfIndex::<T>::builder(dim, lists).metric(metric).seed(seed).iterations(ITERATIONS);
        if let Some(bytes) = budget {
            builder = builder.memory_budget(bytes);
        }
        let mut index = builder.device(place.placement.clone()).build()?;
        index.train_watched(&training, watch)?;
        Ok(Level { of, search: Search::Ivf(index) })
    }

    fn options(&self) -> SearchOptions<'static> {
        SearchOptions::new().probes(self.of.probes)
    }

    /// Number of neighbours to search for: a row may find itself too.
    fn k(&self) -> usize {
        self.of.most + 1
    }

    /// As [`Candidates::plan`], of one level; `None` if the device cannot do the search.
    fn planned(&self, rows: &[T], dim: usize, resident: &ResidentRows<'_>) -> Result<Option<PlannedLevel>> {
        let count = rows.len() / dim;
        let batch = BATCH.min(count);
        let search = match &self.search {
            Search::Flat(index) => index.kind.planned(batch, self.k())?,
            Search::Ivf(index) => resident.with_every(self.of.share, count, |on_device| {
                let held = HeldVectors { on_device, sample: &rows[..dim * SAMPLED.min(count)] };
                // SAFETY: the rows of the device belong to the index whose graph is being made, and the call has it.
                unsafe { index.kind.planned_among(held, batch, self.k(), &self.options()) }
            })?,
        };
        Ok(search.map(|search| PlannedLevel { search, of: self.of }))
    }

    /// The level, with its rows in the inverted file, on the CPU if devices have no memory for its searches.
    fn filled(&self, rows: &[T], dim: usize) -> Result<Self> {
        match self.filled_on(None, rows, dim) {
            Err(Error::OutOfDeviceMemory { .. }) => self.filled_on(Some(Device::Cpu), rows, dim),
            filled => filled,
        }
    }

    /// As [`filled`](Self::filled), on this device if there is one. The first search shows whether a device has the
    /// memory.
    fn filled_on(&self, device: Option<Device>, rows: &[T], dim: usize) -> Result<Self> {
        let search = match &self.search {
            Search::Flat(index) => {
                let mut index = index.snapshot();
                device.map_or(Ok(()), |device| index.move_to(device))?;
                index.search(&rows[..dim], self.k())?;
                Search::Flat(index)
            }
            Search::Ivf(index) => {
                let mut index = index.snapshot();
                device.map_or(Ok(()), |device| index.move_to(device))?;
                if self.of.share == 1 {
                    index.add(rows)?;
                } else {
                    index.add(&every(self.of.share, rows, dim)?)?;
                }
                index.search_with(&rows[..dim], self.k(), &self.options())?;
                Search::Ivf(index)
            }
        };
        Ok(Level { of: self.of, search })
    }

    /// Searches for the candidates of some rows. The level is [`filled`](Self::filled).
    fn search(&self, rows: &[T], dim: usize, of: Range<usize>, found: &mut Found) -> Result<()> {
        let (k, queries) = (self.k(), &rows[of.start * dim..of.end * dim]);
        let (ids, distances) = (&mut found.ids[..of.len() * k], &mut found.distances[..of.len() * k]);
        match &self.search {
            Search::Flat(index) => index.search_into(queries, k, &SearchOptions::new(), ids, distances)?,
            Search::Ivf(index) => index.search_into(queries, k, &self.options(), ids, distances)?,
        }
        (found.rows, found.of) = (of, self.of);
        Ok(())
    }
}

impl Found {
    /// Appends the found rows to the lists of a batch, `width` slots each.
    fn keep(&self, lists: &mut [u32], width: usize) {
        let Found { rows, of: Sizes { share, most, .. }, ids, .. } = self;
        let lists = &mut lists[rows.start * width..rows.end * width];
        let of_rows = ids.par_chunks_exact(most + 1).zip(rows.clone());
        lists.par_chunks_exact_mut(width.max(1)).zip(of_rows).for_each(|(slots, (ids, row))| {
            let taken = slots.iter().position(|&other| other == NO_NODE).unwrap_or(slots.len());
            let (taken, free) = slots.split_at_mut(taken);
            // Numbers of rows are u32.
            let others = ids.iter().filter(|&&id| id != NONE).map(|&id| (id * *share as u64) as u32);
            let new = others.filter(|&other| other as usize != row && !taken.contains(&other)).take(*most);
            free.iter_mut().zip(new).for_each(|(slot, other)| *slot = other);
        });
    }
}
