//! Training and changes of an [`IvfIndex`], and the vectors for which its codes stand. A failed call leaves the index
//! as it was, except where it says otherwise.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use super::coder::{Coded, Coder, Coders};
use super::encoding::{Clamped, Training};
use super::{Ivf, IvfIndex, Lists, Settings, Trained, open_ivf};
use crate::generate::Generator;
use crate::index::private::{Changed, Stored};
use crate::kmeans::KMeans;
use crate::parallel::{Loop, turns};
use crate::random::{Random, gather};
use crate::threads::meanwhile;
use crate::validate::{MAX_ROWS, check_rows, check_whole};
use crate::vectors::VectorSlice;
use crate::{Element, Error, Input, Placement, Result, Stage, Watch, host_memory};

/// Number of vectors that are coded between two calls of a watch.
const WATCHED_ROWS: usize = 1 << 15;

impl<T: Element> IvfIndex<T> {
    /// Finds centroids, and the tables of the encoding such as the codebooks of [`Encoding::Pq`](super::Encoding::Pq),
    /// from a sample of vectors like those that will be added. `rows` is row-major and has at least as many vectors as
    /// lists, and at least as many as codewords. If `rows` has more vectors than training uses
    /// ([`points_per_centroid`](super::IvfIndexBuilder::points_per_centroid)), only a sample is read, so most of a
    /// mapped file stays unread. An empty index can be trained again.
    ///
    /// # Errors
    /// [`Error::NotEmpty`], [`Error::TooFewTrainingVectors`], [`Error::Ragged`], [`Error::NotFinite`] for vectors of
    /// the sample, [`Error::Overflow`] if the values from which an encoding learns exceed f32 (components of 10³⁷ or
    /// more), [`Error::DoesNotFit`] if the encoding cannot hold a component, [`Error::OutOfDeviceMemory`],
    /// [`Error::OutOfHostMemory`], and errors of the device's driver.
    pub fn train(&mut self, rows: &[T]) -> Result<()> {
        self.train_watched(rows, &Watch::none())
    }

    /// As [`train`](Self::train), with a [`Watch`].
    ///
    /// # Errors
    /// As [`train`](Self::train); [`Error::Cancelled`]. The index is then as it was.
    pub fn train_watched(&mut self, rows: &[T], watch: &Watch<'_>) -> Result<()> {
        self.kind.train(rows, watch)
    }

    /// Appends the vectors of several batches, each row-major, with ids that count up as those of [`add`](Self::add).
    /// The index is the same as if one call had added all vectors, but only a few batches are in memory at any time.
    /// While the device codes one batch, the batch before is appended to the lists. O(rows · lists · dim).
    ///
    /// ```
    /// use warpann::ivf::IvfIndex;
    ///
    /// let rows = |first: usize| (first..first + 50).map(|i| (i as f32).sin()).collect::<Vec<_>>();
    /// let mut index = IvfIndex::<f32>::builder(1, 4).device(warpann::Device::Cpu).build()?;
    /// index.train(&rows(0))?;
    /// index.add_batches((0..10).map(|batch| rows(50 * batch)))?;
    /// assert_eq!(index.len(), 500);
    /// # Ok::<(), warpann::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`add`](Self::add), with rows counted over all batches. After an error, or a panic of the iterator, the index
    /// holds the batches before the one that failed.
    pub fn add_batches<B: AsRef<[T]>>(&mut self, batches: impl IntoIterator<Item = B>) -> Result<()> {
        let mut batches = batches.into_iter();
        let dim = self.dim();
        let mut first = 0;
        // Vectors are coded in batches once the index has trained itself.
        while self.kind.waits_for.is_some() {
            let Some(batch) = batches.next() else { return Ok(()) };
            let rows = batch.as_ref();
            let added = check_whole(rows, dim).and_then(|_| Changed::add(&mut self.kind, rows, None, &Watch::none()));
            added.map_err(|error| error.after_rows(first))?;
            first += rows.len() / dim;
        }
        self.kind.stream(None, |coder| {
            let Some(batch) = batches.next() else { return Ok(None) };
            let rows = batch.as_ref();
            let coded = check_whole(rows, dim).and_then(|_| coder.code(rows));
            let coded = coded.map_err(|error| error.after_rows(first))?.into_owned();
            first += coded.labels.len();
            Ok(Some(coded))
        })
    }
}

impl<T: Element> Changed for Ivf<T> {
    fn add(&mut self, rows: &[T], ids: Option<&[u64]>, watch: &Watch<'_>) -> Result<()> {
        if let Some(ids) = ids {
            return self.append(rows, ids, watch);
        }
        let count = check_whole(rows, self.dim())? as u64;
        let first = self.lists.greatest_id().map_or(0, |id| id + 1);
        if first.checked_add(count).is_none() {
            return Err(Error::ReservedId);
        }
        let ids = host_memory::collected_in_parallel(turns(0..count as usize).map(|at| first + at as u64))?;
        self.append(rows, &ids, watch)
    }

    fn replace(&mut self, rows: &[T], ids: &[u64]) -> Result<()> {
        self.trained_for("upsert")?;
        let known = ids.iter().filter(|&&id| self.contains(id)).count();
        self.check_room(ids.len() - known)?;
        let (watch, more) = (Watch::none(), ids.len() - known);
        let Coded { labels, codes, clamped } = self.coded(rows, "upsert", &watch)?;
        self.change_lists(more, &watch, |lists| lists.put(&labels, &codes, ids))?;
        self.clamped = self.clamped + clamped;
        self.note_changes(ids.len());
        Ok(())
    }

    fn remove(&mut self, ids: &[u64]) -> Result<()> {
        Lists::own(&mut self.lists)?.remove(ids)?;
        self.note_changes(ids.len());
        Ok(())
    }

    fn clear(&mut self) {
        self.lists = Arc::new(Lists::new(self.lists.count(), self.lists.code_bytes()));
        self.clamped = Clamped::default();
    }

    fn merge(&mut self, other: &Ivf<T>) -> Result<()> {
        let (ours, theirs) = (self.trained_for("merge")?, other.trained_for("merge")?);
        // Whole vectors have no lists yet, so any training will do for them.
        let is_whole = other.waits_for.is_some();
        let same_bits =
            |a: &[f32], b: &[f32]| a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits());
        let tables = ours.codec.sections().into_iter().zip(theirs.codec.sections());
        let same_tables = tables.into_iter().all(|(ours, theirs)| same_bits(ours, theirs));
        let checks = [
            (self.dim() == other.dim(), "dimension"),
            (is_whole || self.waits_for.is_none(), "training"),
            (self.settings.lists == other.settings.lists, "number of lists"),
            (self.metric() == other.metric(), "metric"),
            (self.settings.encoding == other.settings.encoding, "encoding"),
            (is_whole || same_bits(&ours.centroids, &theirs.centroids), "centroids"),
            (is_whole || same_tables, "codebooks"),
            (is_whole || ours.codec.form() == theirs.codec.form(), "form of the codes"),
        ];
        if let Some((_, what)) = checks.into_iter().find(|(same, _)| !same) {
            return Err(Error::Incompatible { what });
        }
        if other.is_empty() {
            return Ok(());
        }
        self.check_room(other.len())?;
        let ids = other.ids();
        if let Some(id) = self.lists.find_any(&ids) {
            return Err(Error::DuplicateId { id });
        }
        if is_whole {
            return self.append(&other.whole_rows(&ids)?, &ids, &Watch::none());
        }
        Lists::own(&mut self.lists)?.append_lists(&other.lists)?;
        self.clamped = self.clamped + other.clamped;
        self.note_changes(other.len());
        Ok(())
    }

    fn compact(&mut self) -> Result<()> {
        Lists::compact(&mut self.lists)
    }

    fn move_to(&mut self, placement: Placement) -> Result<()> {
        let mut settings = Settings { placement, ..self.settings.clone() };
        self.backend = open_ivf(&mut settings)?;
        self.settings = settings;
        self.coders = Arc::default();
        Ok(())
    }
}

impl<T: Element> Ivf<T> {
    fn train(&mut self, rows: &[T], watch: &Watch<'_>) -> Result<()> {
        if !self.is_empty() {
            return Err(Error::NotEmpty { len: self.len() as u64 });
        }
        let (trained, spread) = self.trained_by(rows, watch)?;
        self.install(trained, spread, self.no_vectors(), Clamped::default());
        Ok(())
    }

    /// The training by these vectors, and the mean squared distance of some of them from the centroids of their lists.
    pub(super) fn trained_by<E: Element>(&self, rows: &[E], watch: &Watch<'_>) -> Result<(Trained, f32)> {
        let (dim, lists, metric) = (self.dim(), self.settings.lists, self.metric());
        let have = check_whole(rows, dim)?;
        let scheme = self.settings.encoding.scheme();
        let need = lists.max(scheme.least_training());
        if have < need {
            return Err(Error::TooFewTrainingVectors { have, need });
        }
        let settings = &self.settings;
        let (placement, seed) = (&settings.placement, settings.seed);
        let device = placement.first();
        let wanted = lists.saturating_mul(settings.points_per_centroid.max(1)).max(scheme.most_training());
        let chosen = (wanted < have).then(|| Random::new(seed).sample(have, wanted));
        let sample = chosen.as_ref().map(|chosen| gather(rows, dim, chosen)).transpose()?;
        let sample = sample.as_deref().unwrap_or(rows);
        // Errors name rows of the sample; the caller needs the row of `rows`.
        let named = |error: Error| error.with_row(|row| chosen.as_ref().map_or(row, |chosen| chosen[row]));
        let spherical = metric.assigned_by().is_spherical();
        let mut kmeans = KMeans::new(lists)
            .iterations(settings.iterations)
            .seed(seed)
            .spherical(spherical)
            .points_per_centroid(Some(settings.points_per_centroid))
            .device(placement.clone());
        if let Some(bytes) = settings.budget {
            kmeans = kmeans.memory_budget(bytes);
        }
        let rows = VectorSlice::of(sample, dim);
        // k-means checks the vectors while it reads them, perhaps after they were transformed. Encodings may refuse
        // them before, by other errors.
        let trained = scheme.train(Training { kmeans, rows, metric, seed, device, watch });
        let trained = trained.or_else(|error| rows.check_finite(Input::Training).and(Err(error))).map_err(named)?;
        // Vectors that the codes cannot hold are refused when they are added; here they only leave the spread unknown.
        let spread = match self.spread_of(&trained, sample) {
            Err(error) if error.is_input() => 0.0,
            spread => spread?,
        };
        Ok((trained, spread))
    }

    /// Appends whole rows with ids that are new, different and not reserved.
    fn append(&mut self, rows: &[T], ids: &[u64], watch: &Watch<'_>) -> Result<()> {
        self.trained_for("add")?;
        self.check_room(ids.len())?;
        if ids.is_empty() {
            return Ok(());
        }
        let Coded { labels, codes, clamped } = self.coded(rows, "add", watch)?;
        self.change_lists(ids.len(), watch, |lists| lists.append(&labels, &codes, ids))?;
        self.clamped = self.clamped + clamped;
        self.note_changes(ids.len());
        Ok(())
    }

    /// Lists and codes of whole rows, for a public function `call`. The coders of few rows stay for the next call,
    /// unless this one fails.
    fn coded<'r>(&mut self, rows: &'r [T], call: &'static str, watch: &Watch<'_>) -> Result<Coded<'r>> {
        let stay = Coders::may_stay(size_of_val(rows));
        let coders = self.coders.take().filter(|_| stay).unwrap_or_else(|| Coders::new(&self.settings));
        let coder = Coder::new(&self.settings, self.trained_for(call)?, &coders);
        let coded = coded_in_batches(&coder, rows, watch)?;
        self.coders.put(if stay { coders.kept(&self.settings) } else { None });
        Ok(coded)
    }

    /// Appends the batches that `next` codes, in order, until it returns `None`: `expected` vectors, if that is known.
    /// The ids count up.
    fn stream(
        &mut self,
        mut expected: Option<u64>,
        mut next: impl FnMut(&Coder<'_, T>) -> Result<Option<Coded<'static>>>,
    ) -> Result<()> {
        self.trained_for("add")?;
        let before = self.len();
        // The batches may be large.
        self.coders.put(None);
        let Ivf { settings, trained, lists, clamped: all_clamped, .. } = self;
        let Some(trained) = trained else { return Ok(()) };
        let coders = Coders::new(settings);
        let coder = Coder::new(settings, trained, &coders);
        let lists = Lists::own(lists)?;
        let mut first = lists.greatest_id().map_or(0, |id| id + 1);
        let mut room = MAX_ROWS - lists.len() as u64;
        let mut numbered = || -> Result<Option<(Coded<'static>, Range<u64>)>> {
            let Some(coded) = next(&coder)? else { return Ok(None) };
            let count = coded.labels.len() as u64;
            let Some(end) = first.checked_add(count) else { return Err(Error::ReservedId) };
            if count > room {
                return Err(Error::TooMany { what: "rows", asked: MAX_ROWS - room + count, limit: MAX_ROWS });
            }
            room -= count;
            let ids = first..end;
            first = end;
            Ok(Some((coded, ids)))
        };
        // One batch is appended to the lists while `next` codes the following one.
        let mut ready = numbered()?;
        while let Some((Coded { labels, codes, clamped }, ids)) = ready {
            // Both are done also if the coding of the following batch panics.
            let list = || -> Result<()> {
                lists.append(&labels, &codes, &ids.collect::<Vec<u64>>())?;
                *all_clamped = *all_clamped + clamped;
                let added = (lists.len() - before) as u64;
                if let Some(rows) = expected.take_if(|rows| added >= *rows / SAMPLE_SHARE) {
                    lists.expect(rows.saturating_sub(added));
                }
                Ok(())
            };
            let (listed, coded) = meanwhile(list, &mut numbered);
            listed?;
            ready = coded?;
        }
        self.note_changes(self.len() - before);
        Ok(())
    }

    fn check_room(&self, more: usize) -> Result<()> {
        check_rows(self.len() as u64 + more as u64, MAX_ROWS)
    }

    /// Writes the vector for which the code of vector `id` stands to `to`. O(len) in the first call after very many
    /// vectors were added.
    pub(super) fn decode(&self, id: u64, to: &mut [f32]) -> Result<()> {
        let unknown = Error::UnknownId { id, len: self.len() as u64 };
        let Some(trained) = &self.trained else { return Err(unknown) };
        let Some((list, place)) = self.lists.find(id) else { return Err(unknown) };
        trained.restore(list, self.lists.codes(list).get(place), to)
    }

    /// The vectors for which the codes of these vectors stand.
    pub(super) fn decoded(&self, rows: &[T]) -> Result<Vec<f32>> {
        let trained = self.trained_for("tune")?;
        let coders = Coders::new(&self.settings);
        let Coded { labels, codes, .. } = Coder::new(&self.settings, trained, &coders).code(rows)?;
        let mut vectors = host_memory::zeroed(rows.len())?;
        let codes = codes.chunks_exact(self.lists.code_bytes()).zip(labels);
        let mut each = vectors.chunks_exact_mut(self.dim()).zip(codes);
        each.try_for_each(|(to, (code, label))| trained.restore(label as usize, code, to))?;
        Ok(vectors)
    }
}

impl Trained {
    /// Writes the vector for which a code in a list stands to `to`.
    pub(super) fn restore(&self, list: usize, code: &[u8], to: &mut [f32]) -> Result<()> {
        let mut vector = vec![0.0; self.dim];
        self.codec.decode_into(code, &self.centroids[list * self.dim..][..self.dim], &mut vector);
        to.copy_from_slice(&self.codec.restored(vector)?);
        Ok(())
    }
}

/// Number of rows of a batch of generated vectors: large enough that each list gets several rows of a batch.
const GENERATED_BATCH: u64 = if cfg!(test) { 100 } else { 1 << 22 };
/// Lists get room for all vectors of a stream when this part of them has come.
const SAMPLE_SHARE: u64 = 16;

impl IvfIndex<f32> {
    /// Appends the rows `rows` of `generator`, which are generated in batches on the device that codes them. If a GPU
    /// encodes ([`Encoding::Pq`](super::Encoding::Pq) without rotation, not cosine), the rows never cross the bus. Ids
    /// count up as in [`add_batches`](Self::add_batches).
    ///
    /// # Errors
    /// As [`add_batches`](Self::add_batches), and [`Error::WrongDimension`].
    pub fn add_generated(&mut self, generator: &Generator, rows: Range<u64>) -> Result<()> {
        if generator.dim() != self.dim() {
            return Err(Error::WrongDimension { expected: self.dim(), actual: generator.dim() });
        }
        let mut first = rows.start;
        // Vectors are generated where they are coded once the index has trained itself.
        while let Some(vectors) = self.kind.waits_for.filter(|_| first < rows.end) {
            let count = (rows.end - first).min(GENERATED_BATCH).min((vectors - self.len()).max(1) as u64);
            let added = self.add(&generator.rows(first, count as usize));
            added.map_err(|error| error.after_rows((first - rows.start) as usize))?;
            first += count;
        }
        self.kind.stream(Some(rows.end.saturating_sub(first)), |coder| {
            if first >= rows.end {
                return Ok(None);
            }
            let count = (rows.end - first).min(GENERATED_BATCH);
            let coded = coder.code_generated(generator, first, count as usize);
            let coded = coded.map_err(|error| error.after_rows((first - rows.start) as usize))?;
            first += count;
            Ok(Some(coded))
        })
    }
}

/// Lists and codes of whole rows, which are coded in batches if somebody watches.
pub(super) fn coded_in_batches<'r, T: Element>(
    coder: &Coder<'_, T>,
    rows: &'r [T],
    watch: &Watch<'_>,
) -> Result<Coded<'r>> {
    if !watch.is_some() {
        return coder.code(rows);
    }
    let (dim, count) = (coder.dim(), rows.len() / coder.dim());
    let (mut labels, mut codes, mut clamped) = (host_memory::with_room(count)?, Vec::new(), Clamped::default());
    watch.report(Stage::Adding, 0, count)?;
    for batch in rows.chunks(WATCHED_ROWS * dim) {
        let coded = coder.code(batch).map_err(|error| error.after_rows(labels.len()))?;
        if codes.is_empty() {
            codes = host_memory::with_room(coded.codes.len() / coded.labels.len() * count)?;
        }
        labels.extend_from_slice(&coded.labels);
        codes.extend_from_slice(&coded.codes);
        clamped = clamped + coded.clamped;
        watch.report(Stage::Adding, labels.len(), count)?;
    }
    Ok(Coded { labels, codes: Cow::Owned(codes), clamped })
}
