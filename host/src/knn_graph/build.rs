//! Making a k-NN graph: batches of searches, and the storage of their results.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::index::{KnnIndex, without_own};
use super::journal::{Files, Recipe};
use super::{Graph, check_rows};
use crate::threads::meanwhile;
use crate::validate::{MAX_ROWS, check_whole};
use crate::{Element, Error, Input, Neighbors, Result, Stage, Watch};

/// Number of rows of the first batch. Each next batch is twice as large as long as batches take less than
/// [`BATCH_TIME`].
const FIRST_BATCH: usize = 4096;
/// The largest time of a batch: the work that an interrupted run may lose, and the interval of progress reports.
const BATCH_TIME: Duration = Duration::from_secs(1);
/// Memory for the results of one batch.
const BATCH_BYTES: usize = 256 << 20;

/// The settings for making a k-NN graph. See the [module](super).
#[derive(Debug, Clone)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct KnnGraph {
    k: usize,
    batch: Option<usize>,
    restart: bool,
}

impl KnnGraph {
    /// Settings for a graph of the `k` nearest neighbours of every vector, without the vector itself.
    pub fn new(k: usize) -> Self {
        Self { k, batch: None, restart: false }
    }

    /// Sets the number of rows of a batch, which are searched and written together. By default, the number is limited
    /// by memory and by about one second of searches. The graph does not depend on it.
    pub fn batch(mut self, rows: usize) -> Self {
        self.batch = Some(rows);
        self
    }

    /// Sets whether [`write`](Self::write) discards the files of an interrupted run, even if that run had other input.
    pub fn restart(mut self, restart: bool) -> Self {
        self.restart = restart;
        self
    }

    /// Makes the graph of `base` (row-major) with `index`, which must hold exactly these vectors with their row numbers
    /// as ids. Also returns the distance of the neighbour in each slot, as the index computes it
    /// ([`Metric::worst`](crate::Metric::worst) in an empty slot). If the base has at most k rows, slots stay empty.
    ///
    /// # Errors
    /// [`Error::Zero`], [`Error::Ragged`]; [`Error::WrongLength`] if `index` returns another number of
    /// neighbours than it was asked for; [`Error::WrongLength`] if the index holds another number of vectors;
    /// [`Error::OutOfRange`] for an id that is not a row number; [`Error::ResultTooLarge`]; and the errors of the
    /// index's search.
    pub fn run<T: Element>(&self, index: &impl KnnIndex<T>, base: &[T]) -> Result<(Graph, Vec<f32>)> {
        self.run_watched(index, base, &Watch::none())
    }

    /// As [`run`](Self::run), with a [`Watch`], which is called before the first batch and after each.
    ///
    /// # Errors
    /// As [`run`](Self::run); [`Error::Cancelled`].
    pub fn run_watched<T: Element>(
        &self,
        index: &impl KnnIndex<T>,
        base: &[T],
        watch: &Watch<'_>,
    ) -> Result<(Graph, Vec<f32>)> {
        let rows = self.check(index, base)?;
        let (mut neighbours, mut distances): (Vec<u32>, Vec<f32>) = (Vec::new(), Vec::new());
        let slots = rows
            .checked_mul(self.k)
            .filter(|&slots| neighbours.try_reserve_exact(slots).is_ok() && distances.try_reserve_exact(slots).is_ok());
        slots.ok_or(Error::ResultTooLarge { queries: rows, k: self.k })?;
        watch.report(Stage::Searching, 0, rows)?;
        self.batches(index, base, 0, |batch, ids, found| {
            neighbours.extend_from_slice(ids);
            distances.extend_from_slice(found);
            watch.report(Stage::Searching, batch.end, rows)
        })?;
        Ok((Graph::of_rows(neighbours, self.k), distances))
    }

    /// Makes the graph as [`run`](Self::run) does and writes it to files: ids to `out` (`ibin` or `npy`, u32) and, if
    /// it is given, distances to `distances` (`fbin` or `npy`). Both files get their names when they are complete.
    /// `watch` is called before the first batch and after each, and counts the rows of an interrupted run as done.
    /// Returns the number of rows that were taken over from an interrupted run.
    ///
    /// # Interrupted runs
    /// Finished rows stand in a file named `out` with `.part` appended (the same for `distances`). A journal, `out`
    /// with `.journal` appended, lists the finished batches. If `out` is a link, these files stand in the folder to
    /// which the link leads. A run that finds a journal resumes where it ends, and the final files have the same bytes
    /// as those of a run without interruption. The run verifies all checksums of the journal: it takes over batches up
    /// to the first whose line or bytes are damaged or missing, and computes the rest again. The size of batches and
    /// the device may change between runs. Base, metric, k, index, probes and formats must be the same; the journal has
    /// checksums of base and index to verify this. Otherwise the call fails and changes nothing, unless
    /// [`restart`](Self::restart) is set. While a run works, its files are locked. If a run stopped while the files
    /// were renamed, the next run finishes without a search.
    ///
    /// # Errors
    /// As [`run`](Self::run), and as [`check_paths`](Self::check_paths); [`Error::Cancelled`], after which the same
    /// call resumes the run; [`Error::BadFile`] if the journal belongs to another run; [`Error::BadFile`] if the file
    /// is not a journal; [`Error::Io`], of the kind `WouldBlock` if another run has locked the files, of the kind
    /// `NotFound` if they were removed or replaced during the run.
    pub fn write<T: Element>(
        &self,
        index: &impl KnnIndex<T>,
        base: &[T],
        out: impl AsRef<Path>,
        distances: Option<&Path>,
        watch: &Watch<'_>,
    ) -> Result<usize> {
        Self::check_paths(&out, distances)?;
        let rows = self.check(index, base)?;
        let recipe = Recipe::new(index, base, rows, self.k)?;
        let mut files = Files::open(&recipe, out.as_ref(), distances, self.restart)?;
        let resumed = files.rows();
        watch.report(Stage::Searching, resumed, rows)?;
        self.batches(index, base, resumed, |batch, ids, found| {
            files.keep(batch.end, ids, found)?;
            watch.report(Stage::Searching, batch.end, rows)
        })?;
        files.finish()?;
        Ok(resumed)
    }

    /// Checks that [`write`](Self::write) supports the extensions of its files, that they are different files, and that
    /// they can be written. A program can call this before long work. [`io::check_files`](crate::io::check_files)
    /// compares [`outputs`](Self::outputs) with inputs.
    ///
    /// # Errors
    /// [`Error::BadFile`] for an unknown extension or twice the same file; [`Error::Io`], of the kind `InvalidInput` if
    /// one of them is a pipe or a device.
    pub fn check_paths(out: impl AsRef<Path>, distances: Option<&Path>) -> Result<()> {
        super::journal::check_paths(out.as_ref(), distances)
    }

    /// Every file that [`write`](Self::write) makes: the outputs, their parts and the journal.
    ///
    /// # Errors
    /// [`Error::Io`], of the kind `InvalidInput` if one of them is a pipe or a device.
    pub fn outputs(out: impl AsRef<Path>, distances: Option<&Path>) -> Result<Vec<PathBuf>> {
        super::journal::outputs(out.as_ref(), distances)
    }

    /// Checks that base and index agree. Returns the number of rows of the base.
    fn check<T: Element>(&self, index: &impl KnnIndex<T>, base: &[T]) -> Result<usize> {
        if self.k == 0 {
            return Err(Error::Zero { what: "k" });
        }
        let dim = index.dim();
        if dim == 0 {
            return Err(Error::Zero { what: "dimension" });
        }
        let rows = check_whole(base, dim)?;
        check_rows(index.len(), rows)?;
        if rows as u64 > MAX_ROWS {
            return Err(Error::TooMany { what: "rows", asked: rows as u64, limit: MAX_ROWS });
        }
        if let Some(value) = index.greatest_id().filter(|&id| id >= rows as u64) {
            let most = rows.saturating_sub(1) as u64;
            return Err(Error::OutOfRange { what: "id in a graph of row numbers", value, least: 0, most });
        }
        Ok(rows)
    }

    /// Calls `keep` with the rows, ids and distances of each batch from row `first` on, in order. The next batch is
    /// searched at the same time, so memory holds two batches.
    fn batches<T: Element>(
        &self,
        index: &impl KnnIndex<T>,
        base: &[T],
        first: usize,
        mut keep: impl FnMut(Range<usize>, &[u32], &[f32]) -> Result<()> + Send,
    ) -> Result<()> {
        let mut search = Searches::new(self, index, base, first)?;
        let (mut ids, mut distances) = (Vec::new(), Vec::new());
        let mut found = search.next()?;
        while let Some((rows, neighbours)) = found {
            let keep = || {
                without_own(&neighbours, |at| rows.start + at, &mut ids, &mut distances);
                keep(rows.clone(), &ids, &distances)
            };
            let (kept, next) = meanwhile(keep, || search.next());
            found = kept.and(next)?;
        }
        Ok(())
    }
}

/// An iterator over batches, which searches for one batch after the other.
struct Searches<'a, T: Element, I> {
    index: &'a I,
    base: &'a [T],
    /// The first row of the next batch.
    first: usize,
    /// Number of neighbours to search for each row, the row itself included.
    wanted: usize,
    /// Number of rows of the next batch, whether the number may change, and the largest number of rows of a batch.
    batch: usize,
    fixed: bool,
    most: usize,
}

impl<'a, T: Element, I: KnnIndex<T>> Searches<'a, T, I> {
    fn new(graph: &KnnGraph, index: &'a I, base: &'a [T], first: usize) -> Result<Self> {
        // Each row is one of its neighbours, usually the first.
        let too_large = Error::ResultTooLarge { queries: base.len() / index.dim(), k: graph.k };
        let wanted = graph.k.checked_add(1).ok_or(too_large)?;
        let most = (BATCH_BYTES / (size_of::<u64>() + size_of::<f32>()) / wanted).max(1);
        let batch = graph.batch.unwrap_or(FIRST_BATCH.min(most)).max(1);
        Ok(Searches { index, base, first, wanted, batch, fixed: graph.batch.is_some(), most })
    }

    /// The results for the next rows; none after the last row.
    fn next(&mut self) -> Result<Option<Batch>> {
        let dim = self.index.dim();
        let rows = self.base.len() / dim;
        if self.first >= rows {
            return Ok(None);
        }
        let range = self.first..rows.min(self.first.saturating_add(self.batch));
        let start = Instant::now();
        let found = self.index.nearest(&self.base[range.start * dim..range.end * dim], self.wanted);
        let found = found.map_err(|error| match error.after_rows(range.start) {
            // The rows of the base are the queries.
            Error::NotFinite { row, column, value, .. } => Error::NotFinite { input: Input::Base, row, column, value },
            other => other,
        })?;
        // The index may be code of the caller.
        let slots = range.len().saturating_mul(self.wanted);
        let given = [found.ids.len(), found.distances.len()].into_iter().find(|&len| len != slots);
        if let Some(actual) = given.or((found.k != self.wanted).then_some(range.len().saturating_mul(found.k))) {
            return Err(Error::WrongLength { what: "results", expected: slots, actual });
        }
        if !self.fixed && start.elapsed() < BATCH_TIME {
            self.batch = self.most.min(2 * self.batch);
        }
        self.first = range.end;
        Ok(Some((range, found)))
    }
}

/// The rows of a batch, and their neighbours.
type Batch = (Range<usize>, Neighbors);
