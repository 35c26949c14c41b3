//! Inverted-file indexes: approximate search that reads only the lists nearest to each query.
//!
//! # Problem and algorithm
//! Exact search reads every vector for every query. An inverted file (Johnson, Douze and Jégou, "Billion-scale
//! similarity search with GPUs", section 2) divides the vectors into lists, one for each centroid of a k-means
//! clustering:
//!
//! ```text
//! train: centroids = k-means(sample); with product quantization: codebooks = train(residuals of the sample)
//! add:   list = nearest centroid; append the vector, or the code of its residual, and its id to the list
//! search: the probes nearest centroids; the k best vectors of their lists
//! ```
//!
//! The [`Encoding`] of an [`IvfIndex`] determines what the index keeps of each vector: the vector itself, or a code of
//! fewer bytes.
//!
//! # Results
//! The lists that a query probes are defined exactly: the `probes` best centroids by canonical distance
//! ([`crate::metric`]; squared L2 for it and for bits, of which each is a component, 0 or 1; inner product for the
//! other metrics), ties by lower list number. Of the vectors
//! in these lists, a search returns exactly the k best by (canonical distance, lower id), with the same bits on every
//! device. With a code, the distance is that of the query from the vector that the code stands for
//! ([`IvfIndex::reconstruct`] returns it), evaluated in float64, so it has no rounding error of a lookup table. Under
//! cosine it is divided by the lengths of both, so it is at most 1. Only two things are approximate: lists that are not
//! probed, and the codes themselves. [`Refiner`] removes the second error if it has the original vectors.
//!
//! # Cost
//! Training: the k-means of `lists` · `points_per_centroid` vectors. Adding: n · lists · dim operations. A search:
//! lists · dim for the probes of a query, and dim · (vectors in the probed lists). These are about probes / lists of
//! all vectors, and more if the lists differ in length ([`IvfStatistics::imbalance`] is this factor). Memory: 8 bytes
//! for the id and the bytes of the code ([`Encoding`]) for each vector. The first search or change adds a table of 12
//! bytes for each vector, or 20 if the ids are not 0, 1, 2, ..; with it a vector is found, replaced and removed in
//! O(log n). Vectors that do not fit into memory can be added in batches ([`IvfIndex::add_batches`]) or generated on
//! the device that codes them ([`IvfIndex::add_generated`]). A device needs 12 bytes for each vector in addition to the
//! code (16 under squared L2).

mod age;
mod backend;
mod coder;
mod cpu;
#[cfg(feature = "cuda")]
mod device;
mod encoding;
pub(crate) mod file;
mod filtered;
mod gathered;
mod gpu;
pub(crate) mod grid;
pub(crate) mod held;
mod lists;
mod proof;
mod refine;
mod rest;
mod retrain;
#[cfg(test)]
mod retrain_tests;
mod search;
mod settings;
mod statistics;
mod tune;
mod update;
mod view;

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use self::age::Age;
pub(crate) use self::backend::{IvfBackend, RowSearch};
use self::coder::KeptCoders;
pub use self::encoding::Encoding;
use self::encoding::{Clamped, Trained};
pub use self::file::FaissInfo;
#[doc(hidden)]
pub use self::file::{mend_index_bytes, read_any_faiss_bytes, read_any_index_bytes};
use self::grid::IvfGrid;
pub(crate) use self::lists::Lists;
pub use self::refine::Refiner;
use self::settings::Settings;
pub use self::statistics::IvfStatistics;
pub(crate) use self::view::View;
pub(crate) use crate::bitset::Bitset;
use crate::device::open::open;
use crate::index::Index;
use crate::index::private::Stored;
pub(crate) use crate::neighbors::RangeNeighbors;
use crate::pq::turn::Turn;
use crate::pq::{ProductQuantizer, Rotation};
pub(crate) use crate::search_options::{Scan, SearchOptions, SearchRequest};
use crate::{Device, Element, Error, Metric, Placement, Result};

/// Opens the back end of a device, and says which device was opened.
fn open_on(settings: &Settings, device: Device) -> Result<(Device, Box<dyn IvfBackend>)> {
    let Settings { budget, simd, .. } = *settings;
    Ok(match open(device)? {
        (device, Some(runtime)) => (device, Box::new(gpu::IvfDevice::new(runtime, device, budget)?)),
        (device, None) => (device, Box::new(cpu::IvfCpu::new(budget, simd))),
    })
}

/// Opens the back end of the settings' placement, and replaces each [`Device::Auto`] in the placement by the device
/// that was opened.
fn open_ivf(settings: &mut Settings) -> Result<Box<dyn IvfBackend>> {
    let devices = settings.placement.devices().iter();
    let opened = devices.map(|&device| open_on(settings, device)).collect::<Result<Vec<_>>>()?;
    let (devices, mut backends): (Vec<_>, Vec<_>) = opened.into_iter().unzip();
    settings.placement = settings.placement.resolved(devices);
    if settings.placement.single().is_some()
        && let Some(backend) = backends.pop()
    {
        return Ok(backend);
    }
    Ok(Box::new(IvfGrid::new(&settings.placement, backends)))
}

/// An inverted-file index over vectors of one dimension and element type. The [module](self) defines its results.
///
/// Ids are u64 of the caller's choice, or count up from 0. The index is `Send + Sync`; any number of threads may search
/// at the same time. The vectors are in host memory. A GPU has an image of all vectors, or of its shard
/// ([`Placement`]), which the first search makes. The first search after a change sends the changed vectors; all of
/// them if they are many, or if their lists have no room left. With shards each vector goes to one of them; a list that
/// has changed by about a twentieth is divided anew, and sent whole.
///
/// ```
/// use warpann::ivf::Encoding;
/// use warpann::{Device, IvfIndex, Metric, SearchOptions};
///
/// // 2000 vectors of dimension 16 on a curve; row-major.
/// let base: Vec<f32> = (0..2000).flat_map(|i| (0..16).map(move |j| (i as f32 * 0.01 + j as f32).sin())).collect();
///
/// let mut index = IvfIndex::<f32>::builder(16, 20).metric(Metric::L2).device(Device::Cpu).build()?;
/// index.train(&base)?;
/// index.add(&base)?;
///
/// // 5 of the 20 lists are searched.
/// let options = SearchOptions::new().probes(5);
/// let found = index.search_with(&base[500 * 16..501 * 16], 3, &options)?;
/// assert_eq!((found.ids[0], found.distances[0]), (500, 0.0));
///
/// // 4 bytes for each vector instead of 64; distances are now those of the vectors that the codes stand for.
/// let pq = Encoding::Pq { sub_quantizers: 4, bits: 8, rotate: false };
/// let mut small = IvfIndex::<f32>::builder(16, 20).encoding(pq).device(Device::Cpu).build()?;
/// small.train(&base)?;
/// small.add(&base)?;
/// assert!(small.search_with(&base[500 * 16..501 * 16], 10, &options)?.ids.contains(&500));
/// # Ok::<(), warpann::Error>(())
/// ```
pub type IvfIndex<T = f32> = Index<Ivf<T>>;

/// The vectors of an [`IvfIndex`].
pub struct Ivf<T: Element> {
    settings: Settings,
    trained: Option<Arc<Trained>>,
    /// Shared with snapshots until one of the indexes changes: [`Lists::own`].
    lists: Arc<Lists>,
    probes: usize,
    /// Numbers of vectors and components that were added beyond the reach of the codes.
    clamped: Clamped,
    /// The number of vectors with which the index trains itself. Until then it has one list of whole vectors.
    waits_for: Option<usize>,
    /// The mean squared distance of training vectors from the centroids of their lists; 0 if it is not known.
    spread: f32,
    age: Age,
    backend: Box<dyn IvfBackend>,
    /// Shared with snapshots until one of the indexes is trained or moved.
    coders: Arc<KeptCoders>,
    element: PhantomData<T>,
}

/// Settings of an [`IvfIndex`] before it is built; see [`IvfIndex::builder`].
#[derive(Debug, Clone)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(transparent, bound = ""))]
pub struct IvfIndexBuilder<T: Element = f32> {
    settings: Settings,
    #[cfg_attr(feature = "serde", serde(skip))]
    element: PhantomData<T>,
}

impl<T: Element> IvfIndexBuilder<T> {
    /// Sets the metric; [`Metric::L2`] unless set. L2 and inner product assign each vector to the nearest centroid.
    /// Cosine, whose centroids have length 1, assigns it to the centroid with the greatest inner product. Hamming, for
    /// u8 and [`Encoding::Flat`] only, assigns it to the nearest mean of bits.
    pub fn metric(mut self, metric: Metric) -> Self {
        self.settings.metric = metric;
        self
    }

    /// Sets what the index keeps of each vector; [`Encoding::Flat`] unless set.
    pub fn encoding(mut self, encoding: Encoding) -> Self {
        self.settings.encoding = encoding;
        self
    }

    /// Sets the [`Device`], or the [`Placement`] over several devices, that trains, encodes and searches;
    /// [`Device::Auto`] unless set. Several devices divide the k-means of training and the adding of vectors among
    /// them, whether they are replicas or shards.
    pub fn device(mut self, device: impl Into<Placement>) -> Self {
        self.settings.placement = device.into();
        self
    }

    /// Sets the bytes that searches may use on each device. On a GPU they hold the image of the index and scratch. On
    /// the CPU they hold the scratch of one search, which always has room for the candidates of one query. Unless set,
    /// each device uses a share of its free memory. Adding vectors may use as much for itself, and afterwards a GPU
    /// keeps a sixteenth of it, at most 64 MiB, for the next vectors.
    pub fn memory_budget(mut self, bytes: u64) -> Self {
        self.settings.budget = Some(bytes);
        self
    }

    /// Sets the seed of the training; 1 unless set. The same seed and vectors give the same index, to the bit, on every
    /// device.
    pub fn seed(mut self, seed: u64) -> Self {
        self.settings.seed = seed;
        self
    }

    /// Sets the number of iterations of the k-means that finds the centroids; 20 unless set. Better lists need fewer
    /// probes: with 8 of 4,096 lists and a million clustered vectors, searches found 0.92 of the ten nearest after 10
    /// iterations and 0.95 after 20; in a model of this data, 0.96 after 40.
    pub fn iterations(mut self, iterations: usize) -> Self {
        self.settings.iterations = iterations;
        self
    }

    /// Sets the largest number of training vectors for each centroid; 256 unless set. Training uses an even sample of
    /// larger sets.
    pub fn points_per_centroid(mut self, points: usize) -> Self {
        self.settings.points_per_centroid = points;
        self
    }

    /// Lets the index train itself when it has `vectors` vectors; 0 chooses 39 for each list. Until then it keeps
    /// vectors as they are, and every search is exact. Vectors can be added, replaced, removed and saved from the
    /// start. The call that adds the last of these vectors trains the index with all of them, and takes as long; it
    /// fails if training does, and has then added nothing. Searches find as many true neighbours as before only with
    /// enough probes: call [`tune`](IvfIndex::tune) when [`is_trained`](IvfIndex::is_trained) has become true.
    ///
    /// A file of an index that is not trained yet keeps `vectors`, but neither seed, nor iterations, nor points per
    /// centroid: a loaded index trains itself with their defaults.
    ///
    /// ```
    /// use warpann::{Device, IvfIndex};
    ///
    /// let rows = |first: usize, count: usize| (first..first + count).map(|i| (i as f32).sin()).collect::<Vec<f32>>();
    /// let mut index = IvfIndex::<f32>::builder(1, 4).train_at(100).device(Device::Cpu).build()?;
    /// index.add(&rows(0, 99))?;
    /// assert_eq!((index.is_trained(), index.search(&rows(7, 1), 1)?.ids[0]), (false, 7));
    /// index.add(&rows(99, 1))?;
    /// assert_eq!((index.is_trained(), index.len(), index.statistics().lists), (true, 100, 4));
    /// # Ok::<(), warpann::Error>(())
    /// ```
    pub fn train_at(mut self, vectors: usize) -> Self {
        self.settings.train_at = Some(vectors);
        self
    }

    /// Sets whether the CPU searches with its widest SIMD instructions (`true` unless set) or only with those that
    /// every processor of its architecture has. Results are the same; the setting is for measurements.
    pub fn simd(mut self, simd: bool) -> Self {
        self.settings.simd = simd;
        self
    }

    /// Checks the settings, opens the device and makes an empty, untrained index.
    ///
    /// # Errors
    /// [`Error::Zero`] (no components, or no lists), [`Error::TooMany`] (components, or bits under
    /// [`Metric::Hamming`]), [`Error::NotDivisible`], [`Error::OutOfRange`], [`Error::Mismatch`];
    /// [`Error::TooFewTrainingVectors`] if the index cannot train itself with so few; and the errors of opening the
    /// device, as in [`FlatIndexBuilder::build`](crate::FlatIndexBuilder::build). [`Device::Auto`] falls back to the
    /// CPU only if there is no usable device.
    pub fn build(self) -> Result<IvfIndex<T>> {
        self.open().map(Index::of)
    }

    fn open(mut self) -> Result<Ivf<T>> {
        self.settings.check(T::TYPE)?;
        let (dim, waits_for) = (self.settings.dim, self.settings.trains_at()?);
        let trained = waits_for.map(|_| Trained::one_list::<T>(dim, self.settings.metric).map(Arc::new)).transpose()?;
        let backend = open_ivf(&mut self.settings)?;
        let encoding = if waits_for.is_some() { Encoding::Flat } else { self.settings.encoding };
        let lists = Lists::new(usize::from(waits_for.is_some()), encoding.scheme().code_bytes(dim, T::TYPE));
        let probes = self.settings.lists.isqrt().div_ceil(2);
        let settings = self.settings;
        let clamped = Clamped::default();
        Ok(Ivf {
            settings,
            trained,
            lists: Arc::new(lists),
            probes,
            clamped,
            waits_for,
            spread: 0.0,
            age: Age::default(),
            backend,
            coders: Arc::default(),
            element: PhantomData,
        })
    }

    /// Builds an index of these settings with the contents of a file.
    pub(crate) fn restore(self, trained: Trained, lists: Lists, probes: usize, clamped: Clamped) -> Result<Ivf<T>> {
        let mut index = self.open()?;
        index.clamped = clamped;
        index.trained = Some(Arc::new(trained));
        index.lists = Arc::new(lists);
        index.probes = probes;
        Ok(index)
    }
}

impl<T: Element> IvfIndex<T> {
    /// Starts an index over vectors of `dim` components in `lists` lists. As a rule of thumb, use between √n and 16 √n
    /// lists for n vectors.
    pub fn builder(dim: usize, lists: usize) -> IvfIndexBuilder<T> {
        IvfIndexBuilder {
            settings: Settings {
                dim,
                lists,
                metric: Metric::default(),
                encoding: Encoding::default(),
                placement: Placement::default(),
                budget: None,
                seed: 1,
                iterations: 20,
                points_per_centroid: 256,
                simd: true,
                train_at: None,
            },
            element: PhantomData,
        }
    }

    /// Whether [`train`](Self::train) has succeeded, or the index has [trained itself](IvfIndexBuilder::train_at). Only
    /// then, and to an index that trains itself, can vectors be added.
    pub fn is_trained(&self) -> bool {
        self.kind.is_trained()
    }

    /// Number of lists. An index that has not trained itself yet has one ([`IvfStatistics::lists`]), and will have
    /// these.
    pub fn lists(&self) -> usize {
        self.kind.settings.lists
    }

    /// The encoding, which determines what the index keeps of each vector once it is trained.
    pub fn encoding(&self) -> Encoding {
        self.kind.settings.encoding
    }

    /// The centroids of the lists, row-major: lists × dim components, in rotated space if the encoding rotates. Under
    /// [`Metric::Hamming`] lists × 8 · dim: component 8 · j + i is the share of ones among the bits of value 2^i in
    /// byte j. Empty until trained.
    pub fn centroids(&self) -> &[f32] {
        let trained = self.kind.trained().filter(|_| self.is_trained());
        trained.map_or(&[], |trained| &trained.centroids)
    }

    /// The product quantizer of residuals; `None` until trained, and for all encodings except [`Encoding::Pq`].
    pub fn quantizer(&self) -> Option<&ProductQuantizer> {
        self.kind.trained.as_ref()?.codec.quantizer()
    }

    /// The trained values by which codes are decoded: for [`Encoding::Pq`] the codebooks; for [`Encoding::Scalar8`] the
    /// least value of each component of a residual or vector, then the step of each component, and then 1 if codes are
    /// of residuals and 0 if they are of vectors; for [`Encoding::F16`] the number by which halves are multiplied; for
    /// [`Encoding::Bits`] the signs of the four rounds of the rotation, dim each. Empty for [`Encoding::Flat`] and
    /// until trained.
    pub fn code_tables(&self) -> &[f32] {
        self.kind.trained.as_ref().map_or(&[], |trained| trained.codec.tables())
    }

    /// The matrix by which vectors and queries are rotated first; `None` until trained, and for encodings that do not
    /// rotate, or by other means ([`code_tables`](Self::code_tables)).
    pub fn rotation(&self) -> Option<&Rotation> {
        match self.kind.trained.as_ref()?.codec.turn()? {
            Turn::Matrix(rotation) => Some(rotation),
            Turn::Mixing(_) => None,
        }
    }

    /// Number of lists that a search probes if [`SearchOptions::probes`] is not set; stored in index files. The initial
    /// value is half the square root of the number of lists, rounded up.
    pub fn probes(&self) -> usize {
        self.kind.probes
    }

    /// Sets [`probes`](Self::probes), at least 1.
    ///
    /// # Errors
    /// [`Error::Zero`] for 0.
    pub fn set_probes(&mut self, probes: usize) -> Result<()> {
        if probes == 0 {
            return Err(Error::Zero { what: "probes" });
        }
        self.kind.probes = probes;
        Ok(())
    }
}

impl<T: Element> Ivf<T> {
    /// Number of lists; one if the index has not trained itself yet.
    pub(crate) fn lists(&self) -> usize {
        if self.waits_for.is_some() { 1 } else { self.settings.lists }
    }

    /// The devices in use, and the memory budget that the caller set.
    pub(crate) fn place(&self) -> (Placement, Option<u64>) {
        (self.settings.placement.clone(), self.settings.budget)
    }

    /// The result of training.
    pub(crate) fn trained(&self) -> Option<&Trained> {
        self.trained.as_deref()
    }

    /// Codes and ids of all lists.
    pub(crate) fn master(&self) -> &Lists {
        &self.lists
    }

    /// The index as a back end sees it.
    fn view<'a>(&'a self, trained: &'a Trained) -> View<'a> {
        View {
            elements: self.settings.dim,
            dim: trained.dim,
            metric: self.settings.metric,
            centroids: &trained.centroids,
            codec: &*trained.codec,
            element: T::TYPE,
            lists: &self.lists,
            shard: (0, 1),
        }
    }

    /// A CPU back end, on which the test devices of other modules are built.
    #[cfg(test)]
    pub(crate) fn open_cpu(&self) -> Box<dyn IvfBackend> {
        Box::new(cpu::IvfCpu::new(None, true))
    }

    /// Replaces the back end that searches.
    #[cfg(test)]
    pub(crate) fn replace_backend(&mut self, backend: Box<dyn IvfBackend>) {
        self.backend = backend;
    }

    fn trained_for(&self, call: &'static str) -> Result<&Trained> {
        self.trained().ok_or(Error::NotTrained { call })
    }
}

impl<T: Element> Stored for Ivf<T> {
    type Element = T;
    const NAME: &'static str = "IvfIndex";

    fn dim(&self) -> usize {
        self.settings.dim
    }

    fn metric(&self) -> Metric {
        self.settings.metric
    }

    fn device(&self) -> String {
        self.backend.describe()
    }

    fn len(&self) -> usize {
        self.lists.len()
    }

    fn contains(&self, id: u64) -> bool {
        self.lists.find(id).is_some()
    }

    fn find_any(&self, ids: &[u64]) -> Option<u64> {
        self.lists.find_any(ids)
    }

    fn ids(&self) -> Vec<u64> {
        self.lists.all_ids()
    }

    fn stamp(&self) -> u64 {
        self.lists.stamp()
    }

    fn greatest_id(&self) -> Option<u64> {
        self.lists.greatest_id()
    }

    fn identity(&self) -> Result<String> {
        Ok(format!("ivf-{:016x}-probes-{}", self.fingerprint()?, self.probes))
    }

    fn describe(&self, to: &mut fmt::DebugStruct<'_, '_>) {
        to.field("lists", &self.settings.lists).field("encoding", &self.settings.encoding);
        to.field("is_trained", &self.is_trained());
    }

    fn snapshot(&self) -> Self {
        Ivf {
            settings: self.settings.clone(),
            trained: self.trained.clone(),
            lists: Arc::clone(&self.lists),
            probes: self.probes,
            clamped: self.clamped,
            waits_for: self.waits_for,
            spread: self.spread,
            age: self.age.clone(),
            backend: self.backend.snapshot(),
            coders: Arc::clone(&self.coders),
            element: PhantomData,
        }
    }

    fn reconstruct_into(&self, id: u64, to: &mut [f32]) -> Result<()> {
        self.decode(id, to)
    }
}

#[cfg(test)]
mod tests;
