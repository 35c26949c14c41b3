//! Making a k-NN graph: batches of searches, and what is kept of them.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::journal::{Files, Recipe};
use super::{Graph, check_rows};
use crate::parallel::{Loop, ParallelSlice};
use crate::threads::meanwhile;
use crate::validate::MAX_ROWS;
use crate::{Element, Error, FlatIndex, Input, IvfIndex, Metric, Neighbors, Result};

/// Rows of the first batch; the next ones are twice as large while they take less than [`BATCH_TIME`].
const FIRST_BATCH: usize = 4096;
/// What a run may lose when it is interrupted, and how often it tells its progress.
const BATCH_TIME: Duration = Duration::from_secs(1);
/// Memory for the results of one batch.
const BATCH_BYTES: usize = 256 << 20;

/// An index that a k-NN graph can be made with: [`FlatIndex`], which makes it exact, and [`IvfIndex`].
pub trait GraphIndex<T: Element>: Sync {
    /// Vectors in the index.
    fn len(&self) -> usize;

    /// True without vectors.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Components of a vector.
    fn dim(&self) -> usize;

    /// The metric.
    fn metric(&self) -> Metric;

    /// The greatest id of a vector; none in an empty index. Ids are unique.
    fn greatest_id(&self) -> Option<u64>;

    /// The `k` best vectors for each query, as [`FlatIndex::search`]; a query's results do not depend on the others.
    ///
    /// # Errors
    /// Those of the index's search.
    fn nearest(&self, queries: &[T], k: usize) -> Result<Neighbors>;

    /// A word, without blanks, for everything that results depend on besides the base and the metric: two runs with the same word give
    /// the same graph of the same base.
    ///
    /// # Errors
    /// [`Error::NotTrained`].
    fn identity(&self) -> Result<String>;
}

impl<T: Element> GraphIndex<T> for FlatIndex<T> {
    fn len(&self) -> usize {
        FlatIndex::len(self)
    }

    fn dim(&self) -> usize {
        FlatIndex::dim(self)
    }

    fn metric(&self) -> Metric {
        FlatIndex::metric(self)
    }

    fn greatest_id(&self) -> Option<u64> {
        (FlatIndex::len(self) as u64).checked_sub(1)
    }

    fn nearest(&self, queries: &[T], k: usize) -> Result<Neighbors> {
        self.search(queries, k)
    }

    fn identity(&self) -> Result<String> {
        Ok("exact".to_owned())
    }
}

/// Searches probe as many lists as the index says: [`IvfIndex::set_probes`].
impl<T: Element> GraphIndex<T> for IvfIndex<T> {
    fn len(&self) -> usize {
        IvfIndex::len(self)
    }

    fn dim(&self) -> usize {
        IvfIndex::dim(self)
    }

    fn metric(&self) -> Metric {
        IvfIndex::metric(self)
    }

    fn greatest_id(&self) -> Option<u64> {
        self.master().greatest_id()
    }

    fn nearest(&self, queries: &[T], k: usize) -> Result<Neighbors> {
        self.search(queries, k, self.probes())
    }

    fn identity(&self) -> Result<String> {
        Ok(format!("ivf-{:016x}-probes-{}", self.fingerprint()?, self.probes()))
    }
}

/// How far a run has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Rows whose neighbours are kept, those of an interrupted run included.
    pub done: usize,
    /// Rows there are.
    pub rows: usize,
}

/// How a k-NN graph is made. See the [module](super).
#[derive(Debug, Clone)]
pub struct KnnGraph {
    k: usize,
    batch: Option<usize>,
    restart: bool,
}

impl KnnGraph {
    /// A graph of the `k` nearest neighbours of every vector, itself left out.
    pub fn new(k: usize) -> Self {
        Self { k, batch: None, restart: false }
    }

    /// Rows that are searched, and kept, at a time. Unless set, as many as memory allows and about a second's searches take. The graph
    /// does not depend on it.
    pub fn batch(mut self, rows: usize) -> Self {
        self.batch = Some(rows);
        self
    }

    /// Whether [`write`](Self::write) throws away what an interrupted run has left, whatever it was a run of.
    pub fn restart(mut self, restart: bool) -> Self {
        self.restart = restart;
        self
    }

    /// The graph of `base`, row-major, by `index`, which holds just these vectors under their row numbers; and the distance of each
    /// slot's neighbour, as the index gives it ([`Metric::worst`] where there is none). A base of at most k rows leaves slots empty.
    ///
    /// # Errors
    /// [`Error::ZeroK`], [`Error::RaggedVectors`]; [`Error::WrongBase`] if the index holds another number of vectors;
    /// [`Error::IdsAreNotRows`]; [`Error::ResultTooLarge`]; and those of the index's search.
    pub fn run<T: Element>(&self, index: &impl GraphIndex<T>, base: &[T]) -> Result<(Graph, Vec<f32>)> {
        let rows = self.check(index, base)?;
        let (mut neighbours, mut distances): (Vec<u32>, Vec<f32>) = (Vec::new(), Vec::new());
        let slots = rows
            .checked_mul(self.k)
            .filter(|&slots| neighbours.try_reserve_exact(slots).is_ok() && distances.try_reserve_exact(slots).is_ok());
        slots.ok_or(Error::ResultTooLarge { queries: rows, k: self.k })?;
        self.batches(index, base, 0, |_, ids, found| {
            neighbours.extend_from_slice(ids);
            distances.extend_from_slice(found);
            Ok(())
        })?;
        Ok((Graph::of_rows(neighbours, self.k), distances))
    }

    /// As [`run`](Self::run), into files: ids to `out` (`ibin` or `npy`, u32), distances, if they are wanted, to `distances` (`fbin` or
    /// `npy`). Both take their names when they are complete. `watch` is told what is done before the first batch and after each.
    /// Returns the rows that were taken over from an interrupted run.
    ///
    /// # Interrupted runs
    /// What is done stands in `out` with `.part` added to its name (the same for `distances`), and is accounted for in a journal, `out`
    /// with `.journal` added; where `out` is a link, in the folder that it leads to. A run that finds a journal goes on where it ends, and the files in the end are the same to the byte as
    /// those of a run that was never interrupted. Of the journal it believes what its checksums confirm: it takes over batches up to the
    /// first whose line or whose bytes are damaged or missing, and computes the rest again. Batches may be of other sizes than before, and
    /// the device may be another. But base, metric, k, index, probes and formats must be the same, which the journal tells by
    /// checksums of base and index: otherwise the run is refused, and nothing is touched, until [`restart`](Self::restart) says that what
    /// is there may go. While a run works, its files are locked against others. A run that was stopped while the files took their names
    /// is finished without a search.
    ///
    /// # Errors
    /// As [`run`](Self::run), and as [`check_paths`](Self::check_paths); [`Error::OtherRun`] if the journal is of another run;
    /// [`Error::BadFile`] if it is no journal; [`Error::Io`], of the kind `WouldBlock` if another run has locked the files, of the kind
    /// `NotFound` if somebody has removed or replaced them.
    pub fn write<T: Element>(
        &self,
        index: &impl GraphIndex<T>,
        base: &[T],
        out: impl AsRef<Path>,
        distances: Option<&Path>,
        watch: &mut (dyn FnMut(Progress) + Send),
    ) -> Result<usize> {
        Self::check_paths(&out, distances)?;
        let rows = self.check(index, base)?;
        let recipe = Recipe::new(index, base, rows, self.k)?;
        let mut files = Files::open(&recipe, out.as_ref(), distances, self.restart)?;
        let resumed = files.rows();
        watch(Progress { done: resumed, rows });
        self.batches(index, base, resumed, |batch, ids, found| {
            files.keep(batch.end, ids, found)?;
            watch(Progress { done: batch.end, rows });
            Ok(())
        })?;
        files.finish()?;
        Ok(resumed)
    }

    /// Whether [`write`](Self::write) knows the extensions of its files, they are different files, and they can be written; so a program
    /// can refuse them before long work. [`io::check_files`](crate::io::check_files) compares [`outputs`](Self::outputs) with inputs.
    ///
    /// # Errors
    /// [`Error::UnknownExtension`]; [`Error::SameFile`]; [`Error::Io`], of the kind `InvalidInput` if one is a pipe or a device.
    pub fn check_paths(out: impl AsRef<Path>, distances: Option<&Path>) -> Result<()> {
        super::journal::check_paths(out.as_ref(), distances)
    }

    /// Every file that [`write`](Self::write) makes on the way: those that are given, their parts and the journal.
    ///
    /// # Errors
    /// [`Error::Io`], of the kind `InvalidInput` if one of them is a pipe or a device.
    pub fn outputs(out: impl AsRef<Path>, distances: Option<&Path>) -> Result<Vec<PathBuf>> {
        super::journal::outputs(out.as_ref(), distances)
    }

    /// The rows of the base, if everything agrees.
    fn check<T: Element>(&self, index: &impl GraphIndex<T>, base: &[T]) -> Result<usize> {
        if self.k == 0 {
            return Err(Error::ZeroK);
        }
        let (len, dim) = (base.len(), index.dim());
        if !len.is_multiple_of(dim) {
            return Err(Error::RaggedVectors { len, dim });
        }
        let rows = len / dim;
        check_rows(index.len(), rows)?;
        if rows as u64 > MAX_ROWS {
            return Err(Error::TooManyRows { asked: rows as u64, limit: MAX_ROWS });
        }
        if let Some(id) = index.greatest_id().filter(|&id| id >= rows as u64) {
            return Err(Error::IdsAreNotRows { id, rows: rows as u64 });
        }
        Ok(rows)
    }

    /// Calls `keep` with the rows, ids and distances of each batch from row `first` on, in order. The next batch is searched meanwhile: memory
    /// holds one that is searched and one that is kept.
    fn batches<T: Element>(
        &self,
        index: &impl GraphIndex<T>,
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

/// Searches for batch after batch.
struct Searches<'a, T: Element, I> {
    index: &'a I,
    base: &'a [T],
    /// The first row that was not searched for.
    first: usize,
    /// Neighbours of each row, the row itself included.
    wanted: usize,
    /// Rows of the next batch, and whether that may change; rows of a batch at most.
    batch: usize,
    fixed: bool,
    most: usize,
}

impl<'a, T: Element, I: GraphIndex<T>> Searches<'a, T, I> {
    fn new(graph: &KnnGraph, index: &'a I, base: &'a [T], first: usize) -> Result<Self> {
        // The row itself is its own neighbour, usually the first.
        let too_large = Error::ResultTooLarge { queries: base.len() / index.dim(), k: graph.k };
        let wanted = graph.k.checked_add(1).ok_or(too_large)?;
        let most = (BATCH_BYTES / (size_of::<u64>() + size_of::<f32>()) / wanted).max(1);
        let batch = graph.batch.unwrap_or(FIRST_BATCH.min(most)).max(1);
        Ok(Searches { index, base, first, wanted, batch, fixed: graph.batch.is_some(), most })
    }

    /// What is found for the next rows; none after the last.
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
        if !self.fixed && start.elapsed() < BATCH_TIME {
            self.batch = self.most.min(2 * self.batch);
        }
        self.first = range.end;
        Ok(Some((range, found)))
    }
}

/// Rows, and what was found for them.
type Batch = (Range<usize>, Neighbors);

/// Of each row of `found`, which has k + 1 slots, the k that are left without the row's own id, or without the last if that is not among
/// them.
pub(super) fn without_own(
    found: &Neighbors,
    own: impl Fn(usize) -> usize + Sync,
    ids: &mut Vec<u32>,
    distances: &mut Vec<f32>,
) {
    let (rows, k) = (found.queries(), found.k - 1);
    ids.resize(rows * k, 0);
    distances.resize(rows * k, 0.0);
    let results = found.ids.par_chunks_exact(k + 1).zip(found.distances.par_chunks_exact(k + 1));
    let slots = ids.par_chunks_exact_mut(k).zip(distances.par_chunks_exact_mut(k));
    slots.zip(results).enumerate().for_each(|(row, ((ids, distances), (found_ids, found_distances)))| {
        let own = own(row) as u64;
        let place = found_ids.iter().position(|&id| id == own).unwrap_or(k);
        for slot in 0..k {
            let from = slot + usize::from(slot >= place);
            // Rows are fewer than 2³², and the low half of NONE is NO_NODE.
            (ids[slot], distances[slot]) = (found_ids[from] as u32, found_distances[from]);
        }
    });
}
