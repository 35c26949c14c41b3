//! An index whose kind is known at run time only: the one that a file has, or that a text names.

mod info;

use std::fmt;
use std::path::Path;
use std::str::FromStr;

pub use self::info::IndexInfo;
use crate::error::FileDefect;
use crate::graph::file as graph;
use crate::index::kind::GRAPH;
#[cfg(feature = "cuda")]
use crate::index::private::OnDevice;
use crate::index::private::{Changed, Filed, Searched, Searching, Stored};
use crate::index::{Index, IndexKind};
use crate::io::Open;
use crate::ivf::Encoding;
use crate::ivf::file as lists;
use crate::search_options::GroupedSearch;
use crate::{
    Element, Error, FlatIndex, GraphIndex, IvfIndex, Metric, Placement, RangeNeighbors, Result, SearchOptions,
    SearchStatistics, UnknownName, Watch,
};
#[cfg(feature = "cuda")]
use crate::{
    search::PlannedSearch,
    search::workspace::{OnGpu, PlannedVersion},
    select::device::CUstream,
    views::DeviceVectors,
};

/// An index of any kind. It has the methods of every index; those of one kind are those of the index inside
/// ([`AnyIndex::inside`]).
///
/// ```
/// use warpann::{Any, AnyIndex, Device, Recipe};
///
/// let recipe: Recipe = "ivf:4".parse()?;
/// let mut index: AnyIndex<f32> = recipe.build(1, warpann::Metric::L2, Device::Cpu)?;
/// let base: Vec<f32> = (0..100).map(|i| i as f32).collect();
/// if let Any::Ivf(index) = index.inside_mut() {
///     index.train(&base)?;
/// }
/// index.add(&base)?;
/// assert_eq!(index.search(&[50.2], 1)?.ids, [50]);
///
/// // Bytes and files are opened as what they are.
/// let opened = AnyIndex::<f32>::from_bytes(&index.to_bytes()?, Device::Cpu, None)?;
/// assert!(matches!(opened.inside(), Any::Ivf(_)));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub type AnyIndex<T = f32> = Index<Any<T>>;

/// The index inside of an [`AnyIndex`], by its kind.
pub enum Any<T: Element> {
    /// Exact search; nothing to train or to tune.
    Flat(FlatIndex<T>),
    /// Inverted files, which are trained before vectors are added.
    Ivf(IvfIndex<T>),
    /// Walks in a graph, which grows with the vectors.
    Graph(GraphIndex<T>),
}

impl<T: Element> AnyIndex<T> {
    /// The index by its kind, for the methods that only this kind has.
    pub fn inside(&self) -> &Any<T> {
        &self.kind
    }

    /// As [`inside`](Self::inside), to change it.
    pub fn inside_mut(&mut self) -> &mut Any<T> {
        &mut self.kind
    }

    /// The index inside, alone.
    pub fn into_inside(self) -> Any<T> {
        self.kind
    }

    /// The kind of the index inside.
    pub fn kind(&self) -> IndexKind {
        match &self.kind {
            Any::Flat(_) => IndexKind::Flat,
            Any::Ivf(_) => IndexKind::Ivf,
            Any::Graph(_) => IndexKind::Graph,
        }
    }
}

impl<T: Element> From<FlatIndex<T>> for AnyIndex<T> {
    fn from(index: FlatIndex<T>) -> Self {
        Index::of(Any::Flat(index))
    }
}

impl<T: Element> From<IvfIndex<T>> for AnyIndex<T> {
    fn from(index: IvfIndex<T>) -> Self {
        Index::of(Any::Ivf(index))
    }
}

impl<T: Element> From<GraphIndex<T>> for AnyIndex<T> {
    fn from(index: GraphIndex<T>) -> Self {
        Index::of(Any::Graph(index))
    }
}

/// A kind of index, with the settings that only this kind has in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub enum KindInfo {
    /// A [`FlatIndex`](crate::FlatIndex).
    Flat,
    /// An [`IvfIndex`](crate::IvfIndex).
    Ivf {
        /// Encoding of the vectors: the form in which the index keeps them.
        encoding: Encoding,
        /// Number of lists.
        lists: usize,
        /// Number of lists that a search probes unless its options set another.
        probes: usize,
        /// As [`IvfStatistics::clamped_vectors`](crate::ivf::IvfStatistics::clamped_vectors).
        clamped_vectors: u64,
        /// As [`IvfStatistics::clamped_components`](crate::ivf::IvfStatistics::clamped_components).
        clamped_components: u64,
    },
    /// A [`GraphIndex`](crate::GraphIndex).
    Graph {
        /// Largest number of edges of a vector.
        degree: usize,
        /// Number of vectors that a walk keeps unless its options set another.
        beam: u64,
        /// Number of vectors at which walks can begin; 0 if searches are exact.
        starts: u64,
    },
}

impl KindInfo {
    /// Decodes the first bytes of an index file of `bytes` bytes: what all kinds have, and the rest.
    ///
    /// # Errors
    /// The defect of the header.
    fn of_header(header: &[u8], bytes: u64) -> Result<(lists::Shape, KindInfo), FileDefect> {
        if header.starts_with(&GRAPH) {
            let (graph, shape) = graph::headers(header, bytes)?;
            let (degree, beam, starts) = (graph.degree as usize, graph.beam, graph.starts);
            return Ok((shape, KindInfo::Graph { degree, beam, starts }));
        }
        let shape = lists::shape_of(header, bytes)?;
        if shape.kind == Some(IndexKind::Flat) {
            return Ok((shape, KindInfo::Flat));
        }
        let of_kind = KindInfo::Ivf {
            encoding: shape.encoding,
            lists: shape.lists as usize,
            probes: shape.probes as usize,
            clamped_vectors: shape.clamped.vectors,
            clamped_components: shape.clamped.components,
        };
        Ok((shape, of_kind))
    }

    /// The kind of index that has these settings.
    fn kind(&self) -> IndexKind {
        match self {
            KindInfo::Flat => IndexKind::Flat,
            KindInfo::Ivf { .. } => IndexKind::Ivf,
            KindInfo::Graph { .. } => IndexKind::Graph,
        }
    }
}

/// How an index is made, as a text can say it: `flat`, `ivf:4096`, `ivf:4096:pq:32x8` (lists and [`Encoding`]),
/// `graph`, `graph:48` (degree).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Recipe {
    /// A [`FlatIndex`].
    Flat,
    /// An [`IvfIndex`].
    Ivf {
        /// Number of lists.
        lists: usize,
        /// Encoding of the vectors: the form in which the index keeps them.
        encoding: Encoding,
    },
    /// A [`GraphIndex`].
    Graph {
        /// Largest number of edges of a vector.
        degree: usize,
    },
}

/// The degree of graphs whose text has none.
const DEGREE: usize = 32;
/// The forms of texts.
const RECIPES: [&str; 5] = ["flat", "ivf:LISTS", "ivf:LISTS:ENCODING", "graph", "graph:DEGREE"];

impl Recipe {
    /// Opens the device and creates an empty index over vectors of `dim` components, with the other settings of its
    /// builder. Inverted files must be trained before vectors are added.
    ///
    /// # Errors
    /// Those of the builder.
    pub fn build<T: Element>(self, dim: usize, metric: Metric, device: impl Into<Placement>) -> Result<AnyIndex<T>> {
        Ok(match self {
            Recipe::Flat => FlatIndex::builder(dim).metric(metric).device(device).build()?.into(),
            Recipe::Ivf { lists, encoding } => {
                IvfIndex::builder(dim, lists).encoding(encoding).metric(metric).device(device).build()?.into()
            }
            Recipe::Graph { degree } => {
                GraphIndex::builder(dim).degree(degree).metric(metric).device(device).build()?.into()
            }
        })
    }
}

impl fmt::Display for Recipe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Recipe::Flat => f.write_str("flat"),
            Recipe::Ivf { lists, encoding: Encoding::Flat } => write!(f, "ivf:{lists}"),
            Recipe::Ivf { lists, encoding } => write!(f, "ivf:{lists}:{encoding}"),
            Recipe::Graph { degree } => write!(f, "graph:{degree}"),
        }
    }
}

impl FromStr for Recipe {
    type Err = UnknownName;

    fn from_str(text: &str) -> Result<Self, UnknownName> {
        let bad = || UnknownName::new(text, "a recipe of an index", &RECIPES);
        let (kind, rest) = text.split_once(':').map_or((text, None), |(kind, rest)| (kind, Some(rest)));
        let number = |text: &str| text.parse::<usize>().map_err(|_| bad());
        match (kind, rest) {
            ("flat", None) => Ok(Recipe::Flat),
            ("graph", rest) => Ok(Recipe::Graph { degree: rest.map_or(Ok(DEGREE), number)? }),
            ("ivf", Some(rest)) => {
                let (lists, encoding) = rest.split_once(':').map_or((rest, None), |(lists, name)| (lists, Some(name)));
                let encoding = encoding.map_or(Ok(Encoding::Flat), |name| name.parse().map_err(|_| bad()))?;
                Ok(Recipe::Ivf { lists: number(lists)?, encoding })
            }
            _ => Err(bad()),
        }
    }
}

/// Does `$body` with the kind inside.
macro_rules! inside {
    ($any:expr, $index:ident => $body:expr) => {
        match $any {
            Any::Flat($index) => $body,
            Any::Ivf($index) => $body,
            Any::Graph($index) => $body,
        }
    };
}

/// Methods of traits that call those of the kind inside.
macro_rules! forwarded {
    ($(fn $name:ident(&self $(, $argument:ident: $type:ty)*) $(-> $result:ty)?;)*) => {
        $(fn $name(&self $(, $argument: $type)*) $(-> $result)? {
            inside!(self, index => index.kind.$name($($argument),*))
        })*
    };
}

/// As [`forwarded`], for methods that change the index.
macro_rules! forwarded_mut {
    ($(fn $name:ident(&mut self $(, $argument:ident: $type:ty)*) $(-> $result:ty)?;)*) => {
        $(fn $name(&mut self $(, $argument: $type)*) $(-> $result)? {
            inside!(self, index => index.kind.$name($($argument),*))
        })*
    };
}

impl<T: Element> Stored for Any<T> {
    type Element = T;
    const NAME: &'static str = "AnyIndex";

    forwarded! {
        fn dim(&self) -> usize;
        fn metric(&self) -> Metric;
        fn device(&self) -> String;
        fn len(&self) -> usize;
        fn contains(&self, id: u64) -> bool;
        fn find_any(&self, ids: &[u64]) -> Option<u64>;
        fn ids(&self) -> Vec<u64>;
        fn stamp(&self) -> u64;
        fn greatest_id(&self) -> Option<u64>;
        fn identity(&self) -> Result<String>;
        fn describe(&self, to: &mut fmt::DebugStruct<'_, '_>);
        fn reconstruct_into(&self, id: u64, to: &mut [f32]) -> Result<()>;
    }

    fn snapshot(&self) -> Self {
        match self {
            Any::Flat(index) => Any::Flat(index.snapshot()),
            Any::Ivf(index) => Any::Ivf(index.snapshot()),
            Any::Graph(index) => Any::Graph(index.snapshot()),
        }
    }
}

impl<T: Element> Changed for Any<T> {
    forwarded_mut! {
        fn add(&mut self, rows: &[T], ids: Option<&[u64]>, watch: &Watch<'_>) -> Result<()>;
        fn replace(&mut self, rows: &[T], ids: &[u64]) -> Result<()>;
        fn remove(&mut self, ids: &[u64]) -> Result<()>;
        fn clear(&mut self);
        fn compact(&mut self) -> Result<()>;
        fn move_to(&mut self, placement: Placement) -> Result<()>;
    }

    fn merge(&mut self, other: &Self) -> Result<()> {
        match (self, other) {
            (Any::Flat(index), Any::Flat(other)) => index.kind.merge(&other.kind),
            (Any::Ivf(index), Any::Ivf(other)) => index.kind.merge(&other.kind),
            (Any::Graph(index), Any::Graph(other)) => index.kind.merge(&other.kind),
            _ => Err(Error::Incompatible { what: "kind" }),
        }
    }
}

impl<T: Element> Searching for Any<T> {
    forwarded! {
        fn check_queries(&self, queries: &[T], call: &'static str) -> Result<()>;
        fn range_search(&self, queries: &[T], radius: f32, options: &SearchOptions<'_>) -> Result<RangeNeighbors>;
        fn search_groups(
            &self,
            search: &GroupedSearch<'_, T>,
            results: (&mut [u64], &mut [f32])
        ) -> Result<Option<SearchStatistics>>;
        fn shares_filters(&self) -> bool;
        fn prefixes(&self, options: &SearchOptions<'_>) -> bool;
        fn most_effort(&self) -> Option<(usize, &'static str)>;
        fn search_all(&self, queries: &[T], k: usize, results: (&mut [u64], &mut [f32])) -> Result<()>;
        fn search_plainly(&self, queries: &[T], k: usize, results: (&mut [u64], &mut [f32])) -> Result<()>;
        fn with_effort(&self, effort: usize) -> SearchOptions<'static>;
        fn kept(&self, vectors: &[T]) -> Result<Vec<f32>>;
    }

    forwarded_mut! {
        fn set_effort(&mut self, effort: usize) -> usize;
    }

    fn search<'a>(
        &'a self,
        queries: &[T],
        k: usize,
        options: &SearchOptions<'a>,
        results: (&mut [u64], &mut [f32]),
    ) -> Result<Searched<'a>> {
        inside!(self, index => index.kind.search(queries, k, options, results))
    }
}

impl<T: Element> Filed for Any<T> {
    forwarded! {
        fn save(&self, path: &Path, watch: &Watch<'_>) -> Result<()>;
        fn to_bytes(&self) -> Result<Vec<u8>>;
    }

    fn load(path: &Path, placement: Placement, budget: Option<u64>, how: Open) -> Result<Self> {
        Ok(match IndexKind::of_file(path)? {
            IndexKind::Flat => Any::Flat(Index::load_with(path, placement, budget, how)?),
            IndexKind::Ivf => Any::Ivf(Index::load_with(path, placement, budget, how)?),
            IndexKind::Graph => Any::Graph(Index::load_with(path, placement, budget, how)?),
        })
    }

    fn from_bytes(bytes: &[u8], placement: Placement, budget: Option<u64>) -> Result<Self> {
        Ok(match IndexKind::of_bytes(bytes) {
            IndexKind::Flat => Any::Flat(Index::from_bytes(bytes, placement, budget)?),
            IndexKind::Ivf => Any::Ivf(Index::from_bytes(bytes, placement, budget)?),
            IndexKind::Graph => Any::Graph(Index::from_bytes(bytes, placement, budget)?),
        })
    }
}

#[cfg(feature = "cuda")]
impl<T: Element> OnDevice for Any<T> {
    forwarded! {
        fn planned_version(&self) -> PlannedVersion;
        fn plan(&self, queries: usize, k: usize, options: &SearchOptions<'_>) -> Result<PlannedSearch>;
    }

    fn on_gpu(&self) -> Result<OnGpu<'_>> {
        inside!(self, index => index.kind.on_gpu())
    }

    unsafe fn add_on_device(&mut self, stream: CUstream, rows: &DeviceVectors<T>, ids: Option<&[u64]>) -> Result<bool> {
        // SAFETY: as the caller promises.
        inside!(self, index => unsafe { index.kind.add_on_device(stream, rows, ids) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Device, FileDefect};
    use test_random::Random;

    const DIM: usize = 2;

    fn vectors() -> Vec<f32> {
        let mut random = Random::new(4);
        (0..200 * DIM).map(|_| random.signed_unit()).collect()
    }

    /// An index of each kind with the same vectors.
    fn each() -> Vec<AnyIndex<f32>> {
        let recipes = ["flat", "ivf:6", "ivf:6:sq8", "graph:8"].map(|text| text.parse::<Recipe>().unwrap());
        recipes
            .into_iter()
            .map(|recipe| {
                let mut index: AnyIndex<f32> = recipe.build(DIM, Metric::L2, Device::Cpu).unwrap();
                if let Any::Ivf(index) = index.inside_mut() {
                    index.train(&vectors()).unwrap();
                }
                index.add(&vectors()).unwrap();
                index
            })
            .collect()
    }

    #[test]
    fn texts_name_recipes() {
        for text in ["flat", "ivf:4096", "ivf:16:pq:32x8", "ivf:7:f16", "graph:48"] {
            assert_eq!(text.parse::<Recipe>().unwrap().to_string(), text);
        }
        assert_eq!("graph".parse(), Ok(Recipe::Graph { degree: 32 }));
        assert_eq!("ivf:9:flat".parse(), Ok(Recipe::Ivf { lists: 9, encoding: Encoding::Flat }));
        for text in [
            "",
            "Flat",
            "flat:1",
            "ivf",
            "ivf:",
            "ivf:x",
            "ivf:-1",
            "ivf:4:pq",
            "ivf:4:none",
            "graph:",
            "graph:a",
            "hnsw",
        ] {
            let error = text.parse::<Recipe>().unwrap_err();
            assert_eq!((error.text(), error.known().len()), (text, 5));
        }
        let none = Recipe::Ivf { lists: 0, encoding: Encoding::Flat }.build::<f32>(DIM, Metric::L2, Device::Cpu);
        assert!(matches!(none, Err(Error::Zero { what: "lists" })));
    }

    #[test]
    fn files_are_opened_as_what_they_are_and_as_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let queries = &vectors()[..6 * DIM];
        for index in each() {
            let path = folder.path().join(index.kind().name());
            index.save(&path).unwrap();
            assert_eq!(IndexKind::of_file(&path).unwrap(), index.kind());
            let bytes = index.to_bytes().unwrap();
            assert_eq!(std::fs::read(&path).unwrap(), bytes);
            assert_eq!(IndexInfo::of_bytes(&bytes).unwrap(), IndexInfo::read(&path).unwrap());
            for opened in [
                AnyIndex::<f32>::load(&path, Device::Cpu, None).unwrap(),
                AnyIndex::<f32>::from_bytes(&bytes, Device::Cpu, None).unwrap(),
            ] {
                assert_eq!(opened.kind(), index.kind());
                assert_eq!(opened.search(queries, 5).unwrap(), index.search(queries, 5).unwrap());
                assert_eq!(opened.to_bytes().unwrap(), bytes);
            }
            let refused = |kind: IndexKind, error: Option<Error>| match error {
                None => assert_eq!(index.kind(), kind),
                Some(Error::BadFile { defect: FileDefect::WrongKind { actual, expected }, .. }) => {
                    assert_eq!((actual, expected), (index.kind().name(), kind.name()));
                    assert!(index.kind() != kind);
                }
                Some(other) => panic!("{other}"),
            };
            refused(IndexKind::Flat, FlatIndex::<f32>::load(&path, Device::Cpu, None).err());
            refused(IndexKind::Flat, FlatIndex::<f32>::from_bytes(&bytes, Device::Cpu, None).err());
            refused(IndexKind::Ivf, IvfIndex::<f32>::load(&path, Device::Cpu, None).err());
            refused(IndexKind::Ivf, IvfIndex::<f32>::from_bytes(&bytes, Device::Cpu, None).err());
            refused(IndexKind::Graph, GraphIndex::<f32>::load(&path, Device::Cpu, None).err());
            refused(IndexKind::Graph, GraphIndex::<f32>::from_bytes(&bytes, Device::Cpu, None).err());
        }
        let nothing = AnyIndex::<f32>::from_bytes(b"wpn", Device::Cpu, None);
        assert!(matches!(nothing, Err(Error::BadFile { defect: FileDefect::BadHeader(_), .. })));
        let nothing = IndexInfo::of_bytes(b"wpn");
        assert!(matches!(nothing, Err(Error::BadFile { defect: FileDefect::BadHeader(_), .. })));
    }

    /// A file without the word for the kind, as earlier versions wrote it, is inverted files or exact.
    #[test]
    fn files_of_earlier_versions_open_as_before() {
        for index in each() {
            let mut bytes = index.to_bytes().unwrap();
            if index.kind() == IndexKind::Graph {
                continue;
            }
            bytes[crate::index::kind::WORD..][..4].fill(0);
            crate::ivf::mend_index_bytes(&mut bytes);
            let whole = index.reconstruct(3).unwrap() == vectors()[3 * DIM..4 * DIM];
            let ivf = IvfIndex::<f32>::from_bytes(&bytes, Device::Cpu, None).unwrap();
            assert_eq!(ivf.len(), 200);
            assert_eq!(FlatIndex::<f32>::from_bytes(&bytes, Device::Cpu, None).is_ok(), whole);
            let any = AnyIndex::<f32>::from_bytes(&bytes, Device::Cpu, None).unwrap();
            assert_eq!(any.kind(), IndexKind::Ivf);
            bytes[crate::index::kind::WORD] = 3;
            crate::ivf::mend_index_bytes(&mut bytes);
            let unknown = IvfIndex::<f32>::from_bytes(&bytes, Device::Cpu, None);
            assert!(matches!(
                unknown,
                Err(Error::BadFile { defect: FileDefect::BadHeader("unknown kind of index"), .. })
            ));
        }
    }

    #[test]
    fn indexes_of_two_kinds_do_not_merge() {
        let all = each();
        for (at, index) in all.iter().enumerate() {
            for (other_at, other) in all.iter().enumerate() {
                let mut merged = index.snapshot();
                merged.clear();
                let result = merged.merge(other);
                if index.kind() == other.kind() && at == other_at {
                    result.unwrap();
                    assert_eq!(merged.ids(), other.ids());
                } else {
                    let expected = if index.kind() == other.kind() { "encoding" } else { "kind" };
                    assert!(matches!(result, Err(Error::Incompatible { what }) if what == expected), "{result:?}");
                    assert!(merged.is_empty());
                }
            }
        }
    }
}
