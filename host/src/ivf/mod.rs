//! Inverted-file indexes: approximate search that looks only where neighbours are likely to be.
//!
//! # Problem and algorithm
//! Exact search reads every vector for every query. An inverted file (Johnson, Douze and Jégou, "Billion-scale similarity search
//! with GPUs", section 2) divides the vectors into lists, one for each centroid of a k-means clustering:
//!
//! ```text
//! train: centroids = k-means(sample); with product quantization: codebooks = train(residuals of the sample)
//! add:   list = nearest centroid; append the vector, or the code of its residual, and its id to the list
//! search: the probes nearest centroids; the k best vectors of their lists
//! ```
//!
//! The [`Encoding`] of an [`IvfIndex`] says what it keeps of each vector: the vector as it is, or a code of fewer bytes.
//!
//! # Results
//! Which lists a query probes is defined exactly: the `probes` best centroids by canonical distance ([`crate::metric`]; squared L2, or
//! inner product for the other metrics), ties by lower list number. Of the vectors in these lists a search returns exactly the k
//! best by (canonical distance, lower id), the same bits on every device. With PQ the distance is that of the query from what the
//! code stands for, evaluated in float64: no lookup table's rounding shows. Only two things are approximate: lists that are not
//! probed, and the codes themselves. [`Refiner`] removes the second, given the original vectors.
//!
//! # Cost
//! Training: the k-means of `lists` · `points_per_centroid` vectors. Adding: n · lists · dim operations. A search: lists · dim for the
//! probes of a query, and dim · (vectors in the probed lists), about probes / lists of all, more where lists differ in length
//! ([`IvfStatistics::imbalance`] says how much more). Memory: 8 bytes for the id and the code ([`Encoding`]) of each vector. Vectors
//! that are more than memory holds come in batches ([`IvfIndex::add_batches`]), or are made where they are coded
//! ([`IvfIndex::add_generated`]); a device needs 12 bytes a vector beside the code (16 under squared L2).

mod backend;
mod bitset;
mod coder;
mod cpu;
mod encoding;
mod file;
mod gpu;
pub(crate) mod grid;
mod lists;
mod refine;
mod search;
mod statistics;
mod tune;
mod update;

use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

pub(crate) use self::backend::{IvfBackend, SearchRequest, View};
pub use self::bitset::Bitset;
use self::encoding::Codec;
pub use self::encoding::Encoding;
pub use self::file::IndexInfo;
#[doc(hidden)]
pub use self::file::{mend_index_bytes, read_any_index_bytes};
use self::grid::IvfGrid;
pub(crate) use self::lists::Lists;
pub use self::refine::Refiner;
pub use self::search::{Scan, SearchOptions};
pub use self::statistics::IvfStatistics;
pub use self::tune::recall;
use crate::device::open::open;
pub use crate::neighbors::RangeNeighbors;
use crate::pq::{ProductQuantizer, Rotation};
use crate::validate::check_dim;
use crate::{Device, Element, ElementType, Error, Metric, Placement, Result};

/// What an index is made for; all but the element type.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    pub(crate) dim: usize,
    pub(crate) lists: usize,
    pub(crate) metric: Metric,
    pub(crate) encoding: Encoding,
    /// As asked; once built without [`Device::Auto`].
    pub(crate) placement: Placement,
    pub(crate) budget: Option<u64>,
    pub(crate) seed: u64,
    pub(crate) iterations: usize,
    pub(crate) points_per_centroid: usize,
    pub(crate) simd: bool,
}

impl Settings {
    fn check(&self, element: ElementType) -> Result<()> {
        check_dim(self.dim)?;
        if self.lists == 0 {
            return Err(Error::ZeroClusters { what: "lists" });
        }
        self.encoding.scheme().check(self.dim, element)
    }

    fn open_on(&self, device: Device) -> Result<(Device, Box<dyn IvfBackend>)> {
        let Settings { budget, simd, .. } = *self;
        Ok(match open(device)? {
            (device, Some(runtime)) => (device, Box::new(gpu::IvfDevice::new(runtime, device, budget)?)),
            (device, None) => (device, Box::new(cpu::IvfCpu::new(budget, simd))),
        })
    }
}

/// The back end of the settings' placement, in which [`Device::Auto`] gives way to what it means.
fn open_ivf(settings: &mut Settings) -> Result<Box<dyn IvfBackend>> {
    let devices = settings.placement.devices().iter();
    let opened = devices.map(|&device| settings.open_on(device)).collect::<Result<Vec<_>>>()?;
    let (devices, mut backends): (Vec<_>, Vec<_>) = opened.into_iter().unzip();
    settings.placement = settings.placement.resolved(devices);
    if settings.placement.single().is_some()
        && let Some(backend) = backends.pop()
    {
        return Ok(backend);
    }
    Ok(Box::new(IvfGrid::new(&settings.placement, backends)))
}

/// What training finds.
#[derive(Debug, Clone)]
pub(crate) struct Trained {
    /// Lists × dim, row-major; in rotated space where the codec rotates.
    pub(crate) centroids: Vec<f32>,
    pub(crate) codec: Arc<dyn Codec>,
}

/// An inverted-file index over vectors of one dimension and element type. See the [module](self) for what it promises.
///
/// Ids are u64 of the user's choice, or count up from 0. The index is `Send + Sync`; any number of threads may search at once. Vectors
/// live in host memory; a GPU keeps an image of them, or of its shard ([`Placement`]), made by the first search after a change.
///
/// ```
/// use warpann::ivf::{Encoding, IvfIndex};
/// use warpann::{Device, Metric};
///
/// // 2000 vectors of dimension 16 on a curve; row-major.
/// let base: Vec<f32> = (0..2000).flat_map(|i| (0..16).map(move |j| (i as f32 * 0.01 + j as f32).sin())).collect();
///
/// let mut index = IvfIndex::<f32>::builder(16, 20).metric(Metric::L2).device(Device::Cpu).build()?;
/// index.train(&base)?;
/// index.add(&base)?;
///
/// // 5 of the 20 lists are searched.
/// let found = index.search(&base[500 * 16..501 * 16], 3, 5)?;
/// assert_eq!((found.ids[0], found.distances[0]), (500, 0.0));
///
/// // 4 bytes a vector instead of 64; distances are now those of what the codes stand for.
/// let pq = Encoding::Pq { sub_quantizers: 4, bits: 8, rotate: false };
/// let mut small = IvfIndex::<f32>::builder(16, 20).encoding(pq).device(Device::Cpu).build()?;
/// small.train(&base)?;
/// small.add(&base)?;
/// assert!(small.search(&base[500 * 16..501 * 16], 10, 5)?.ids.contains(&500));
/// # Ok::<(), warpann::Error>(())
/// ```
pub struct IvfIndex<T: Element = f32> {
    settings: Settings,
    trained: Option<Trained>,
    lists: Lists,
    probes: usize,
    version: u64,
    backend: Box<dyn IvfBackend>,
    element: PhantomData<T>,
}

impl<T: Element> std::fmt::Debug for IvfIndex<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("IvfIndex")
            .field("element", &T::TYPE)
            .field("dim", &self.dim())
            .field("lists", &self.lists())
            .field("metric", &self.metric())
            .field("encoding", &self.encoding())
            .field("is_trained", &self.is_trained())
            .field("len", &self.len())
            .field("device", &self.device())
            .finish()
    }
}

/// Settings of an [`IvfIndex`] before it is built; see [`IvfIndex::builder`].
#[derive(Debug, Clone)]
pub struct IvfIndexBuilder<T: Element = f32> {
    settings: Settings,
    element: PhantomData<T>,
}

impl<T: Element> IvfIndexBuilder<T> {
    /// The metric; [`Metric::L2`] unless set. L2 and inner product assign vectors to the nearest centroid; cosine, whose centroids
    /// have length 1, to the one of the greatest inner product.
    pub fn metric(mut self, metric: Metric) -> Self {
        self.settings.metric = metric;
        self
    }

    /// What is kept of each vector; [`Encoding::Flat`] unless set.
    pub fn encoding(mut self, encoding: Encoding) -> Self {
        self.settings.encoding = encoding;
        self
    }

    /// The [`Device`], or the [`Placement`] over several, that trains, encodes and searches; [`Device::Auto`] unless set. Several devices
    /// share the work whether they are replicas or shards: of training the k-means that finds the centroids, of adding the vectors.
    pub fn device(mut self, device: impl Into<Placement>) -> Self {
        self.settings.placement = device.into();
        self
    }

    /// Bytes that searches may use on the device, of several on each: on a GPU for the image of the index and scratch, on the CPU for the scratch of one
    /// search (at least the candidates of one query are kept however small the budget). Unless set, each device uses a share of
    /// what is free.
    pub fn memory_budget(mut self, bytes: u64) -> Self {
        self.settings.budget = Some(bytes);
        self
    }

    /// Seed of the training: the same seed and vectors give the same index, to the bit, on every device. 1 unless set.
    pub fn seed(mut self, seed: u64) -> Self {
        self.settings.seed = seed;
        self
    }

    /// Iterations of the k-means that finds the centroids; 20 unless set. The better the lists, the fewer must be searched: 8 of 4,096 had
    /// 0.92 of the ten nearest among a million clustered vectors after 10 iterations, 0.95 after 20; in a model of it 0.96 after 40.
    pub fn iterations(mut self, iterations: usize) -> Self {
        self.settings.iterations = iterations;
        self
    }

    /// Training vectors that are used for each centroid, of as many as there are; 256 unless set. The rest is left out, evenly.
    pub fn points_per_centroid(mut self, points: usize) -> Self {
        self.settings.points_per_centroid = points;
        self
    }

    /// Whether the CPU searches with the widest SIMD instructions that it has, as unless set, or with what every processor of its
    /// kind has. Results are the same; for measurements.
    pub fn simd(mut self, simd: bool) -> Self {
        self.settings.simd = simd;
        self
    }

    /// Checks the settings, opens the device and makes an empty, untrained index.
    ///
    /// # Errors
    /// [`Error::ZeroDimension`], [`Error::TooManyDimensions`], [`Error::ZeroClusters`] (no lists), [`Error::NotDivisible`], [`Error::BadCodeBits`],
    /// [`Error::EncodingOfElement`]; and what opening
    /// the device can meet, as [`FlatIndexBuilder::build`](crate::FlatIndexBuilder::build). [`Device::Auto`] falls back to the CPU
    /// only where there is no usable device.
    pub fn build(mut self) -> Result<IvfIndex<T>> {
        self.settings.check(T::TYPE)?;
        let backend = open_ivf(&mut self.settings)?;
        let lists = Lists::new(0, self.settings.encoding.scheme().code_bytes(self.settings.dim, T::TYPE));
        let probes = self.settings.lists.isqrt().div_ceil(2);
        let (settings, version) = (self.settings, next_version());
        Ok(IvfIndex { settings, trained: None, lists, probes, version, backend, element: PhantomData })
    }

    /// An index of these settings with what was kept in a file.
    pub(crate) fn restore(self, trained: Trained, lists: Lists, probes: usize) -> Result<IvfIndex<T>> {
        let mut index = self.build()?;
        index.trained = Some(trained);
        index.lists = lists;
        index.probes = probes;
        Ok(index)
    }
}

/// A number that no index had before.
fn next_version() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

impl<T: Element> IvfIndex<T> {
    /// Starts an index over vectors of `dim` components in `lists` lists. As a rule of thumb take between √n and 16 √n lists for n
    /// vectors.
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
            },
            element: PhantomData,
        }
    }

    /// Vectors in the index.
    pub fn len(&self) -> usize {
        self.lists.len()
    }

    /// True where the index holds no vector.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether [`train`](Self::train) has succeeded; only then can vectors be added.
    pub fn is_trained(&self) -> bool {
        self.trained.is_some()
    }

    /// Components of a vector.
    pub fn dim(&self) -> usize {
        self.settings.dim
    }

    /// Number of lists.
    pub fn lists(&self) -> usize {
        self.settings.lists
    }

    /// The metric.
    pub fn metric(&self) -> Metric {
        self.settings.metric
    }

    /// What is kept of each vector.
    pub fn encoding(&self) -> Encoding {
        self.settings.encoding
    }

    /// The device in use, in words; of several each, and which have failed.
    pub fn device(&self) -> String {
        self.backend.describe()
    }

    /// Moves the index to other devices: to more or fewer replicas or shards, or away from a device that has failed. The copy in host memory
    /// stays where it is; the devices make their images of it at the next search. On error nothing changes.
    ///
    /// # Errors
    /// What opening the devices can meet, as [`IvfIndexBuilder::build`].
    ///
    /// ```
    /// use warpann::{Device, IvfIndex};
    ///
    /// let base: Vec<f32> = (0..100).map(|i| i as f32).collect();
    /// let mut index = IvfIndex::<f32>::builder(1, 4).device(Device::Cpu).build()?;
    /// index.train(&base)?;
    /// index.add(&base)?;
    /// let found = index.search(&[50.2], 3, 2)?;
    /// index.move_to("cpu+cpu,cpu+cpu".parse::<warpann::Placement>()?)?;
    /// assert_eq!(index.search(&[50.2], 3, 2)?, found);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn move_to(&mut self, device: impl Into<Placement>) -> Result<()> {
        let mut settings = Settings { placement: device.into(), ..self.settings.clone() };
        self.backend = open_ivf(&mut settings)?;
        self.settings = settings;
        Ok(())
    }

    /// The centroids of the lists, row-major: lists × dim components, in rotated space where the encoding rotates. Empty until trained.
    pub fn centroids(&self) -> &[f32] {
        self.trained.as_ref().map_or(&[], |trained| &trained.centroids)
    }

    /// The product quantizer of residuals; none for other encodings than [`Encoding::Pq`] and until trained.
    pub fn quantizer(&self) -> Option<&ProductQuantizer> {
        self.trained.as_ref()?.codec.quantizer()
    }

    /// The numbers that codes are made of: the codebooks of [`Encoding::Pq`]; for [`Encoding::Scalar8`] the least value of each component of a
    /// residual, then the step of each. Empty for other encodings and until trained.
    pub fn code_tables(&self) -> &[f32] {
        self.trained.as_ref().map_or(&[], |trained| trained.codec.sections()[0])
    }

    /// The rotation that vectors and queries go through first; none where the encoding does not rotate, and until trained.
    pub fn rotation(&self) -> Option<&Rotation> {
        self.trained.as_ref()?.codec.rotation()
    }

    /// Lists that a search probes where the caller does not say ([`SearchOptions::probes`]); kept in index files. At first half the
    /// square root of the number of lists.
    pub fn probes(&self) -> usize {
        self.probes
    }

    /// Sets [`probes`](Self::probes).
    ///
    /// # Errors
    /// [`Error::ZeroProbes`].
    pub fn set_probes(&mut self, probes: usize) -> Result<()> {
        if probes == 0 {
            return Err(Error::ZeroProbes);
        }
        self.probes = probes;
        Ok(())
    }

    /// All ids, ascending: bit r of a filter stands for the r-th of them. O(len).
    pub fn ids(&self) -> Vec<u64> {
        self.lists.directory().ids()
    }

    /// The filter that lets a search return the vectors whose ids `keep` accepts. It is for the ids that the index holds now: searches
    /// refuse it after ids were added or removed ([`Error::StaleFilter`]), and accept it again when the ids are the same again. An index
    /// with the same ids accepts it too. O(len).
    pub fn filter(&self, keep: impl FnMut(u64) -> bool) -> Bitset {
        self.ids().into_iter().map(keep).collect::<Bitset>().for_ids(self.lists.stamp())
    }

    /// The devices in use, and the budget that was asked for.
    pub(crate) fn place(&self) -> (Placement, Option<u64>) {
        (self.settings.placement.clone(), self.settings.budget)
    }

    /// What training found.
    pub(crate) fn trained(&self) -> Option<&Trained> {
        self.trained.as_ref()
    }

    /// Codes and ids.
    pub(crate) fn master(&self) -> &Lists {
        &self.lists
    }

    /// The index as a back end sees it.
    fn view<'a>(&'a self, trained: &'a Trained) -> View<'a> {
        View {
            dim: self.settings.dim,
            metric: self.settings.metric,
            centroids: &trained.centroids,
            codec: &*trained.codec,
            element: T::TYPE,
            lists: &self.lists,
            shard: (0, 1),
            version: self.version,
        }
    }

    /// A CPU as a device, for tests of others that stand on it.
    #[cfg(test)]
    pub(crate) fn open_cpu(&self) -> Box<dyn IvfBackend> {
        Box::new(cpu::IvfCpu::new(None, true))
    }

    /// Has another back end search.
    #[cfg(test)]
    pub(crate) fn replace_backend(&mut self, backend: Box<dyn IvfBackend>) {
        self.backend = backend;
    }

    fn trained_for(&self, call: &'static str) -> Result<&Trained> {
        self.trained.as_ref().ok_or(Error::NotTrained { call })
    }
}

#[cfg(test)]
mod tests;
