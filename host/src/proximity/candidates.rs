//! The nodes among which the edges of a new graph are chosen.
//!
//! ```text
//! candidates of a row = its `degree` nearest rows                            exact, or through an inverted file from IVF_ROWS rows on
//!                     + the `degree` nearest of every SHARE-th row
//! ```
//! The nearest rows alone lie in the row's own cluster, and then walks that begin in another cluster never leave it. The second list reaches
//! SHARE times as far, at the cost of a search in few rows.
//!
//! Recall of walks on 200,000 clustered f32 vectors of 128 components (clusters of 500), 32 edges each unless said, k = 10, on a CPU (2026-11-25, before
//! the lists of start nodes had a greatest length, but the last but one row after). The distances after the start nodes are up to 15 % more in the last
//! rows than in the first:
//!
//! | candidates | beam 32 | 64 | 128 |
//! |---|---|---|---|
//! | 64 nearest | .957 | .975 | .994 |
//! | 64 nearest, 40 edges | .959 | .977 | .992 |
//! | 96 nearest | .987 | .994 | .999 |
//! | 128 nearest | .991 | .998 | 1.000 |
//! | 32 nearest, and 16 of every 16th row | .991 | .999 | 1.000 |
//! | 32 nearest, and 32 of every 16th row | .992 | .997 | 1.000 |
//!
//! Of a million vectors, on an H100, every 32nd row instead of every 16th lost .011 of the recall at a beam of 32, every 64th .025, and every 8th changed
//! nothing.

use std::ops::Range;

use super::build::Settings;
use super::links::NO_NODE;
use crate::graph::Graph;
use crate::ivf::IvfIndex;
use crate::threads::meanwhile;
use crate::{Element, FlatIndex, NONE, Placement, Result, SearchOptions, Stage, Watch, host_memory};
use rayon::prelude::*;

/// Smallest number of rows whose nearest rows come from an inverted file.
const IVF_ROWS: usize = 20_000;
/// Lists that a search for nearest rows probes.
const PROBES: usize = 24;
/// Iterations of the training of the inverted file.
const ITERATIONS: usize = 4;
/// The second index has one of so many rows.
const SHARE: usize = 16;
/// Number of rows that are searched at a time.
const BATCH: usize = 1 << 16;

/// An index of rows, whose ids are their numbers.
enum Rows<T: Element> {
    Flat(FlatIndex<T>),
    Ivf(IvfIndex<T>),
}

impl<T: Element> Rows<T> {
    /// An index that compares all rows.
    fn exact(rows: &[T], dim: usize, settings: Settings, placement: &Placement) -> Result<Self> {
        let mut index = FlatIndex::<T>::new(dim, settings.metric, placement.clone())?;
        index.add(rows)?;
        Ok(Rows::Flat(index))
    }

    /// An index of every [`SHARE`]-th row, with numbers among these.
    fn far(rows: &[T], dim: usize, settings: Settings, placement: &Placement) -> Result<Self> {
        let mut some: Vec<T> = host_memory::with_room((rows.len() / dim).div_ceil(SHARE) * dim)?;
        rows.chunks_exact(dim).step_by(SHARE).for_each(|row| some.extend_from_slice(row));
        Rows::exact(&some, dim, settings, placement)
    }

    /// An index that compares the rows of the nearest lists only.
    fn inverted(rows: &[T], dim: usize, settings: Settings, placement: &Placement, watch: &Watch<'_>) -> Result<Self> {
        let Settings { metric, seed, .. } = settings;
        let lists = 4 * ((rows.len() / dim) as f64).sqrt() as usize;
        let builder = IvfIndex::<T>::builder(dim, lists).metric(metric).seed(seed).iterations(ITERATIONS);
        let mut index = builder.device(placement.clone()).build()?;
        index.train_watched(rows, watch)?;
        index.add(rows)?;
        Ok(Rows::Ivf(index))
    }

    fn search(&self, queries: &[T], k: usize, ids: &mut [u64], distances: &mut [f32]) -> Result<()> {
        match self {
            Rows::Flat(index) => index.search_into(queries, k, ids, distances),
            Rows::Ivf(index) => index.search_into(queries, k, &SearchOptions::new().probes(PROBES), ids, distances),
        }
    }
}

/// What was found for a batch of rows: `k` slots for each.
struct Found {
    rows: Range<usize>,
    near: Vec<u64>,
    far: Vec<u64>,
    distances: Vec<f32>,
}

impl Found {
    fn with_room(slots: usize) -> Result<Self> {
        let (near, far, distances) =
            (host_memory::zeroed(slots)?, host_memory::zeroed(slots)?, host_memory::zeroed(slots)?);
        Ok(Found { rows: 0..0, near, far, distances })
    }
}

/// The candidates of each row, 2 · degree slots, those without one last.
///
/// # Errors
/// [`Error::Cancelled`](crate::Error::Cancelled); [`Error::OutOfHostMemory`](crate::Error::OutOfHostMemory); the errors of searches.
pub(super) fn candidates<T: Element>(
    rows: &[T],
    dim: usize,
    settings: Settings,
    placement: &Placement,
    watch: &Watch<'_>,
) -> Result<Graph> {
    let (count, degree) = (rows.len() / dim, settings.degree);
    let near = if count < IVF_ROWS {
        Rows::exact(rows, dim, settings, placement)?
    } else {
        Rows::inverted(rows, dim, settings, placement, watch)?
    };
    let far = Rows::far(rows, dim, settings, placement)?;

    // A row finds itself too.
    let (k, batch) = (degree + 1, BATCH.min(count));
    let search = |rows_of: Range<usize>, found: &mut Found| -> Result<()> {
        let queries = &rows[rows_of.start * dim..rows_of.end * dim];
        let slots = rows_of.len() * k;
        near.search(queries, k, &mut found.near[..slots], &mut found.distances[..slots])?;
        far.search(queries, k, &mut found.far[..slots], &mut found.distances[..slots])?;
        found.rows = rows_of;
        Ok(())
    };
    // All threads touch this memory first, while a device searches: one thread takes 0.13 s for a million rows.
    let mut all: Vec<u32> = host_memory::zeroed(host_memory::count::<u32>(&[count, 2 * degree])?)?;
    let (mut found, mut next) = (Found::with_room(batch * k)?, Found::with_room(batch * k)?);
    for first in (0..count + batch).step_by(batch) {
        // The next batch is searched while this one is kept.
        let slots = &mut all[found.rows.start * 2 * degree..found.rows.end * 2 * degree];
        let (_, searched) = meanwhile(
            || keep(&found, degree, slots),
            || if first < count { search(first..count.min(first + batch), &mut next) } else { Ok(()) },
        );
        searched?;
        std::mem::swap(&mut found, &mut next);
        watch.report(Stage::Searching, first.min(count), count)?;
    }
    Ok(Graph::of_rows(all, 2 * degree))
}

/// Fills the slots of a batch.
fn keep(found: &Found, degree: usize, slots: &mut [u32]) {
    let (k, of) = (degree + 1, found.rows.clone());
    let lists = found.near.par_chunks_exact(k).zip(found.far.par_chunks_exact(k));
    slots.par_chunks_exact_mut(2 * degree).zip(lists).zip(of).for_each(|((slots, (near, far)), row)| {
        let own = row as u64;
        let near = near.iter().copied().filter(|&id| id != own && id != NONE).take(degree);
        slots.fill(NO_NODE);
        // Numbers of rows are u32.
        let mut count = 0;
        near.for_each(|id| {
            slots[count] = id as u32;
            count += 1;
        });
        keep_far(far, row, degree, slots, count);
    });
}

/// Puts at most `degree` of the rows that were found among every [`SHARE`]-th into the slots of a row from `count` on: those that no slot before has.
fn keep_far(far: &[u64], row: usize, degree: usize, slots: &mut [u32], count: usize) {
    let (taken, free) = slots.split_at_mut(count);
    let rows = far.iter().filter(|&&id| id != NONE).map(|&id| id * SHARE as u64).filter(|&id| id != row as u64);
    // Numbers of rows are u32.
    let new = rows.map(|id| id as u32).filter(|id| !taken.contains(id)).take(degree);
    free.iter_mut().zip(new).for_each(|(slot, id)| *slot = id);
}

/// Adds the second part of the candidates, the nearest of every [`SHARE`]-th row, to `lists` of nearest rows: of each row, different other rows, and
/// then at least `degree` slots with [`NO_NODE`].
///
/// # Errors
/// As [`candidates`].
pub(super) fn add_far<T: Element>(
    rows: &[T],
    dim: usize,
    settings: Settings,
    placement: &Placement,
    lists: &mut [u32],
    watch: &Watch<'_>,
) -> Result<()> {
    let (count, k) = (rows.len() / dim, settings.degree + 1);
    let far = Rows::far(rows, dim, settings, placement)?;
    let mut ids: Vec<u64> = host_memory::zeroed(BATCH.min(count) * k)?;
    let mut distances: Vec<f32> = host_memory::zeroed(ids.len())?;
    let width = lists.len() / count;
    let batches = rows.chunks(BATCH * dim).zip(lists.chunks_mut(BATCH * width));
    for (first, (queries, lists)) in (0..).step_by(BATCH).zip(batches) {
        watch.report(Stage::Searching, first, count)?;
        let slots = queries.len() / dim * k;
        far.search(queries, k, &mut ids[..slots], &mut distances[..slots])?;
        lists.par_chunks_exact_mut(width).zip(ids.par_chunks_exact(k)).enumerate().for_each(|(at, (list, far))| {
            let taken = list.iter().position(|&other| other == NO_NODE).unwrap_or(list.len());
            keep_far(far, first + at, settings.degree, list, taken);
        });
    }
    watch.report(Stage::Searching, count, count)
}
