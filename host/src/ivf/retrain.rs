//! An index that trains itself, and one that is trained again with the vectors that it has.
//!
//! # Problem
//! A service starts without vectors, and lists need thousands for their centroids. Later vectors may come from
//! elsewhere: then some lists get long, and each search reads more.
//!
//! # Algorithm
//! ```text
//! before training: one list, whose centroid is 0, and vectors as they are: every search reads all, so it is exact
//! training:        all vectors, in the order of their ids; new centroids and tables; each vector gets a list and a code
//! ```
//! One list of whole vectors is an inverted file as any other: searches, filters, changes, snapshots, images on devices
//! and files need nothing of their own. Training makes other lists beside those that there are, and replaces them at
//! the end. So snapshots keep the former lists, and a training that fails or is cancelled leaves the index as it was.
//!
//! # Cost
//! Training: that of [`IvfIndex::train`] and of adding all vectors, a copy of the vectors (4 bytes a component of a
//! code), and the lists twice until the former ones are dropped. A device gets all lists anew with the next search.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::age::Age;
use super::coder::{Coded, Coder, Coders};
use super::encoding::{Clamped, FileParts};
use super::update::coded_in_batches;
use super::{Encoding, Ivf, IvfIndex, Lists, Settings, Trained};
use crate::index::private::Stored;
use crate::kmeans::assign_on_cpu;
use crate::parallel::{Loop, ParallelSlice, owned};
use crate::pq::encode::Residuals;
use crate::random::gather;
use crate::undo::undone_unless_ok;
use crate::vectors::VectorSlice;
use crate::{Device, Element, Error, Metric, Result, Watch, events, host_memory};

/// Vectors for each list with which an index trains itself unless it is told another number. FAISS warns below it.
const POINTS_OF_A_LIST: usize = 39;
/// Above this imbalance, or this drift, an event says that the lists should be trained again.
const MOST_IMBALANCE: f64 = 4.0;
const MOST_DRIFT: f64 = 1.5;
/// Both are measured after changes of one in this number of vectors, so that this is little of the work of changes.
const VECTORS_A_CHANGED_ONE: usize = 8;
/// The most vectors of which the distance from their centroids is measured.
const MEASURED: usize = 1 << 12;

impl<T: Element> IvfIndex<T> {
    /// Trains the index again with the vectors that it has, all of them or a sample
    /// ([`points_per_centroid`](super::IvfIndexBuilder::points_per_centroid)), and gives each vector its new list and
    /// code. Ids stay. It is for an index whose lists have become unequal
    /// ([`IvfStatistics::imbalance`](super::IvfStatistics::imbalance)) or whose vectors have moved
    /// ([`drift`](Self::drift), [`IvfStatistics::clamped_vectors`](super::IvfStatistics::clamped_vectors)).
    ///
    /// With [`Encoding::Flat`] the vectors are those that were added, and the index is that which training with them in
    /// the order of their ids, and adding them, makes. An encoding that keeps codes has only the vectors for which
    /// codes stand, so each call adds the error of new codes to that of the old ones. Who has the original vectors
    /// loses nothing by [`clear`](Self::clear), [`train`](Self::train) and [`add_with_ids`](Self::add_with_ids)
    /// instead.
    ///
    /// Other lists need another number of probes for the same recall: call [`tune`](Self::tune) afterwards. Beside
    /// readers both are one change, so that none sees lists that are not tuned:
    ///
    /// ```
    /// use warpann::{Device, IndexWriter, IvfIndex};
    ///
    /// let base: Vec<f32> = (0..2000).map(|i| (i as f32 * 0.37).sin()).collect();
    /// let mut index = IvfIndex::<f32>::builder(2, 10).train_at(0).device(Device::Cpu).build()?;
    /// index.add(&base[..1000])?;
    /// let mut writer = IndexWriter::new(index);
    /// writer.change(|index| {
    ///     index.add(&base[1000..])?;
    ///     index.retrain()?;
    ///     index.tune(&base[..200], 10, 0.95)
    /// })?;
    /// assert!(writer.current().drift().is_some_and(|drift| drift < 1.1));
    /// # Ok::<(), warpann::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::NotTrained`], unless the index [trains itself](super::IvfIndexBuilder::train_at); then it is trained
    /// now. [`Error::TooFewTrainingVectors`], and those of [`train`](Self::train) and [`add`](Self::add). The index is
    /// then as it was.
    pub fn retrain(&mut self) -> Result<()> {
        self.retrain_watched(&Watch::none())
    }

    /// As [`retrain`](Self::retrain), with a [`Watch`].
    ///
    /// # Errors
    /// As [`retrain`](Self::retrain); [`Error::Cancelled`].
    pub fn retrain_watched(&mut self, watch: &Watch<'_>) -> Result<()> {
        self.kind.trained_for("retrain")?;
        self.kind.retrain(watch)
    }

    /// How far the vectors have moved since training: the mean squared distance of the stored vectors from the
    /// centroids of their lists, divided by that of the training vectors. About 1 if both are alike. Far above 1, lists
    /// are no longer near what they hold; [`retrain`](Self::retrain) makes others. `None` without training, without
    /// vectors, for an index from a file of a version that did not keep the second distance, and if codes cannot hold
    /// all training vectors.
    ///
    /// Under cosine, vectors count with the length 1. Of codes, the vectors for which they stand count: these lie
    /// nearer to the centroids than vectors beyond the reach of codes do, so there
    /// [`IvfStatistics::clamped_vectors`](super::IvfStatistics::clamped_vectors) tells more. Of many vectors an even
    /// sample of about 4,096 is measured. O(lists + min(len, 4096) · dim).
    pub fn drift(&self) -> Option<f64> {
        self.kind.drift()
    }
}

impl Settings {
    /// The number of vectors with which an index trains itself; `None` if it does not.
    ///
    /// # Errors
    /// [`Error::TooFewTrainingVectors`] if training needs more.
    pub(super) fn trains_at(&self) -> Result<Option<usize>> {
        let need = self.lists.max(self.encoding.scheme().least_training());
        match self.train_at {
            Some(0) => Ok(Some(self.lists.saturating_mul(POINTS_OF_A_LIST).max(need))),
            Some(have) if have < need => Err(Error::TooFewTrainingVectors { have, need }),
            given => Ok(given),
        }
    }
}

impl Trained {
    /// One list of whole vectors of `dim` elements, whose centroid is 0.
    pub(super) fn one_list<T: Element>(dim: usize, metric: Metric) -> Result<Trained> {
        let file = FileParts { dim, element: T::TYPE, metric, codebooks: &[], rotation: &[], form: 0 };
        let codec = Encoding::Flat.scheme().codec(file);
        let codec = codec.unwrap_or_else(|_| unreachable!("whole vectors need no tables"));
        let dim = metric.components(dim);
        Ok(Trained { dim, centroids: host_memory::zeroed(dim)?, codec })
    }

    /// The mean squared distance of coded vectors, each with its list, from the centroids of their lists; 0 without
    /// vectors. `spherical`: whole vectors count with the length 1. Codes stand for such vectors already.
    fn mean_distance<'a>(&self, spherical: bool, coded: impl Iterator<Item = (usize, &'a [u8])>) -> f64 {
        let (dim, mut sum, mut count) = (self.dim, 0.0, 0usize);
        let mut vector = vec![0.0; dim];
        for (list, code) in coded {
            let centroid = &self.centroids[list * dim..][..dim];
            self.codec.decode_into(code, centroid, &mut vector);
            let square: f64 = vector.iter().map(|&x| f64::from(x).powi(2)).sum();
            let length = if spherical && self.codec.in_place() && square > 0.0 { square.sqrt() } else { 1.0 };
            let difference = |(&x, &c): (&f32, &f32)| (f64::from(x) / length - f64::from(c)).powi(2);
            sum += vector.iter().zip(centroid).map(difference).sum::<f64>();
            count += 1;
        }
        sum / count.max(1) as f64
    }
}

impl<T: Element> Ivf<T> {
    /// Changes the lists, which get `more` vectors, and then trains if there are enough of them for the first time. On
    /// error, or after a panic of the watch, the lists are as they were.
    pub(super) fn change_lists(
        &mut self,
        more: usize,
        watch: &Watch<'_>,
        change: impl FnOnce(&mut Lists) -> Result<()>,
    ) -> Result<()> {
        if self.waits_for.is_none_or(|vectors| self.len() + more < vectors) {
            return change(Lists::own(&mut self.lists)?);
        }
        let before = Arc::clone(&self.lists);
        let undo = |index: &mut Self| index.lists = before;
        undone_unless_ok(self, undo, |index| {
            change(Lists::own(&mut index.lists)?)?;
            index.retrain(watch)
        })
    }

    /// Trains with the vectors of the index, and gives each of them its new list and code.
    fn retrain(&mut self, watch: &Watch<'_>) -> Result<()> {
        let (trained, ids) = (self.trained_for("retrain")?, self.lists.all_ids());
        if trained.codec.in_place() {
            return self.retrain_with(&self.whole_rows(&ids)?, &ids, watch);
        }
        let mut rows: Vec<f32> = host_memory::zeroed(host_memory::count::<f32>(&[ids.len(), self.dim()])?)?;
        let to: Vec<(&mut [f32], &u64)> = rows.chunks_exact_mut(self.dim()).zip(&ids).collect();
        let restored = owned(to).map(|(to, &id)| self.decode(id, to));
        restored.collect().into_iter().collect::<Result<()>>()?;
        self.retrain_with(&rows, &ids, watch)
    }

    /// The vectors with these ids, which the index has, as they were added. The encoding keeps them.
    pub(super) fn whole_rows(&self, ids: &[u64]) -> Result<Vec<T>> {
        let mut rows: Vec<T> = host_memory::zeroed(host_memory::count::<T>(&[ids.len(), self.dim()])?)?;
        let to = rows.par_chunks_exact_mut(self.dim()).zip(ids.par_iter());
        to.for_each(|(to, &id)| {
            let (to, found): (&mut [u8], _) = (bytemuck::cast_slice_mut(to), self.lists.find(id));
            found.into_iter().for_each(|(list, place)| to.copy_from_slice(self.lists.codes(list).get(place)));
        });
        Ok(rows)
    }

    /// Replaces training and lists by those of these vectors.
    fn retrain_with<E: Element>(&mut self, rows: &[E], ids: &[u64], watch: &Watch<'_>) -> Result<()> {
        let (trained, spread) = self.trained_by(rows, watch)?;
        let settings = &self.settings;
        let coders = Coders::new(settings);
        let Coded { labels, codes, clamped } = coded_in_batches(&Coder::new(settings, &trained, &coders), rows, watch)?;
        let mut lists = self.no_vectors();
        lists.append(&labels, &codes, ids)?;
        events::lists_trained(|| self.device(), ids.len(), settings.lists);
        self.install(trained, spread, lists, clamped);
        Ok(())
    }

    /// Lists without vectors, as those of the trained index.
    pub(super) fn no_vectors(&self) -> Lists {
        let Settings { lists, dim, encoding, .. } = self.settings;
        Lists::new(lists, encoding.scheme().code_bytes(dim, T::TYPE))
    }

    /// Whether the index has been trained, by its caller or by itself.
    pub(super) fn is_trained(&self) -> bool {
        self.trained.is_some() && self.waits_for.is_none()
    }

    /// Makes the index one of another training, with the lists of its vectors.
    pub(super) fn install(&mut self, trained: Trained, spread: f32, lists: Lists, clamped: Clamped) {
        self.lists = Arc::new(lists);
        self.trained = Some(Arc::new(trained));
        (self.clamped, self.spread, self.waits_for) = (clamped, spread, None);
        (self.coders, self.age) = (Arc::default(), Age::default());
    }

    /// The factor by which searches read more than with equal lists. O(lists).
    pub(super) fn imbalance(&self) -> f64 {
        let lengths = (0..self.lists.count()).map(|list| self.lists.length(list) as f64);
        let squares: f64 = lengths.map(|length| length.powi(2)).sum();
        if self.is_empty() { 1.0 } else { self.lists() as f64 * squares / (self.len() as f64).powi(2) }
    }

    /// Notes that vectors have come, changed or gone. Tells once, by an event, that the lists no longer suit the
    /// vectors.
    pub(super) fn note_changes(&mut self, vectors: usize) {
        self.age.changed += vectors;
        let is_due =
            self.age.changed >= self.len() / VECTORS_A_CHANGED_ONE && !self.age.is_told.load(Ordering::Relaxed);
        // With fewer vectors than lists, these are unequal by chance.
        if !is_due || !self.is_trained() || self.len() < self.lists() || !events::warnings_are_wanted() {
            return;
        }
        self.age.changed = 0;
        let (imbalance, drift) = (self.imbalance(), self.drift());
        let is_old = imbalance > MOST_IMBALANCE || drift.is_some_and(|drift| drift > MOST_DRIFT);
        if is_old && !self.age.is_told.swap(true, Ordering::Relaxed) {
            events::lists_are_old(|| self.device(), self.len(), self.lists(), imbalance, drift);
        }
    }

    /// The mean squared distance of training vectors from the centroids of their lists. All work is the CPU's, so that
    /// the number has the same bits on every device.
    pub(super) fn spread_of<E: Element>(&self, trained: &Trained, rows: &[E]) -> Result<f32> {
        let (dim, metric) = (self.dim(), self.metric());
        let count = rows.len() / dim;
        let measured: Vec<usize> = (0..count).step_by(count.div_ceil(MEASURED).max(1)).collect();
        let rows = gather(rows, dim, &measured)?;
        let (vectors, by) = (VectorSlice::of(&rows, dim), metric.assigned_by());
        let transformed = trained.codec.transform(vectors, metric, Device::Cpu)?;
        let labels = assign_on_cpu(by, VectorSlice::of(&transformed[..], trained.dim), &trained.centroids)?;
        let codes = match trained.codec.in_place() {
            true => bytemuck::cast_slice(&rows).to_vec(),
            false => {
                trained.codec.encode(&transformed, Residuals { labels: &labels, centroids: &trained.centroids })?
            }
        };
        let coded = codes.chunks_exact((codes.len() / labels.len().max(1)).max(1));
        let listed = labels.iter().map(|&label| label as usize).zip(coded);
        // Of components near the end of the range it may exceed f32.
        Ok((trained.mean_distance(by.is_spherical(), listed) as f32).min(f32::MAX))
    }

    fn drift(&self) -> Option<f64> {
        let trained = self.trained().filter(|_| self.is_trained() && self.spread > 0.0 && !self.is_empty())?;
        let (lists, step) = (&self.lists, self.len().div_ceil(MEASURED));
        let mut passed = 0;
        let measured = (0..lists.count()).flat_map(|list| {
            // Every step-th vector of all lists, one list after the other.
            let first = (step - passed % step) % step;
            passed += lists.length(list);
            (first..lists.length(list)).step_by(step).map(move |place| (list, lists.codes(list).get(place)))
        });
        let spherical = self.metric().assigned_by().is_spherical();
        Some(trained.mean_distance(spherical, measured) / f64::from(self.spread))
    }
}
