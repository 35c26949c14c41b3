//! The options of a search, which are the same for all indexes.

use std::ops::Range;

use crate::filter::FilterGroup;
use crate::names::named;
use crate::validate::check_radius;
use crate::vectors::VectorSlice;
use crate::{Bitset, Error, Filter, Result};

/// The order in which a search reads the lists.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Scan {
    /// The order that is expected to be faster.
    #[default]
    Auto,
    /// Reads each probed list once, for all queries that probe it. For batches.
    ListMajor,
    /// Reads the probed lists of each query separately. For few queries, or few queries that probe the same lists.
    QueryMajor,
}

impl Scan {
    /// All orders, in the order of the enum.
    pub const ALL: [Scan; 3] = [Self::Auto, Self::ListMajor, Self::QueryMajor];

    /// Name in configuration: `auto`, `list-major`, `query-major`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::ListMajor => "list-major",
            Self::QueryMajor => "query-major",
        }
    }
}

named!(Scan, name, "an order of a scan");

/// The proof that a refined search needs that no vector which it did not compare can be among its results
/// ([`IvfIndex::search_refined`](crate::IvfIndex::search_refined)).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Proof {
    /// Nothing: the results are the best of the candidates.
    #[default]
    None,
    /// It takes more candidates until no other vector of the lists that it reads can be better. No chance is involved.
    Certain,
    /// As `Certain`, by a bound that a random rotation makes likely: of the k best vectors of the lists, each is missed
    /// with a chance below 1 in 2,900 (cosine 1 in 1,400), over all rotations. Codes of a few bits need far fewer
    /// candidates for it. For whole vectors, which leave nothing out, it is the same.
    Probable,
}

impl Proof {
    /// All proofs, in the order of the enum.
    pub const ALL: [Proof; 3] = [Self::None, Self::Certain, Self::Probable];

    /// Name in configuration: `none`, `certain`, `probable`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Certain => "certain",
            Self::Probable => "probable",
        }
    }
}

named!(Proof, name, "a proof");

/// [`Proof::Certain`] or none.
impl From<bool> for Proof {
    fn from(certain: bool) -> Proof {
        if certain { Proof::Certain } else { Proof::None }
    }
}

/// The options of a search: all arguments except the queries and k, or the radius of a range search. A
/// [`FlatIndex`](crate::FlatIndex) has no lists, so only the filter and the radius have an effect there.
///
/// ```
/// use warpann::ivf::IvfIndex;
/// use warpann::SearchOptions;
///
/// let base: Vec<f32> = (0..100).map(|i| i as f32).collect();
/// let mut index = IvfIndex::<f32>::builder(1, 4).device(warpann::Device::Cpu).build()?;
/// index.train(&base)?;
/// index.add(&base)?;
/// let even = index.filter(|id| id % 2 == 0);
/// let options = SearchOptions::new().probes(4).filter(&even);
/// assert_eq!(index.search_with(&[50.9], 3, &options)?.ids, [50, 52, 48]);
/// let near = index.range_search(&[50.9], 5.0, &options)?;
/// assert_eq!(near.row(0).0, [50, 52]);
/// let options = SearchOptions::new().filter_by(&|id| id % 10 == 0);
/// assert_eq!(index.search_with(&[50.9], 2, &options)?.ids, [50, 60]);
/// assert_eq!(index.search_with(&[50.9], 2, &options.radius(50.0))?.ids, [50, warpann::NONE]);
/// # Ok::<(), warpann::Error>(())
/// ```
#[derive(Debug, Clone, Copy)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(default))]
#[non_exhaustive]
pub struct SearchOptions<'a> {
    /// Number of lists to search for each query; unless set, the number stored in the index
    /// ([`IvfIndex::probes`](crate::IvfIndex::probes)). A number above the number of lists means all lists.
    pub probes: Option<usize>,
    /// The vectors that the search may return; unless set, all.
    ///
    /// Options with a filter cannot be serialised, because a filter belongs to an index in memory.
    #[cfg_attr(
        feature = "serde",
        serde(skip_deserializing, skip_serializing_if = "Option::is_none", serialize_with = "no_filter")
    )]
    pub filter: Option<Filter<'a>>,
    /// Whether a search under a filter may read more lists than `probes`; true unless set to false. It then reads about
    /// as many lists as hold as many accepted vectors as `probes` lists hold vectors, and more for each query that has
    /// fewer than k results: at the end every query has k results, or all that the filter accepts. The recall is about
    /// that of a search without filter, and the time grows with the lists. If the filter accepts few vectors, the
    /// search compares them all instead of reading lists: from 8 vectors of lists for each accepted one on, or 32 for
    /// encodings that keep codes. Its results are then those of all lists. Of no effect without a filter, and for
    /// [`IvfIndex::range_search`](crate::IvfIndex::range_search), whose recall does not depend on a filter.
    pub widen: bool,
    /// The order in which lists are read; results do not depend on it.
    pub scan: Scan,
    /// Number of vectors that a walk in a graph keeps, at least k; unless set, the number that the index stores
    /// ([`GraphIndex::beam`](crate::GraphIndex::beam)). A wider beam finds more of the true neighbours and takes
    /// longer.
    pub beam: Option<usize>,
    /// Number of candidates for each of the k results of [`IvfIndex::search_refined`](crate::IvfIndex::search_refined),
    /// at least 1; 4 unless set. It need not be whole: 1.2 are 12 candidates for 10 results
    /// ([`candidates`](Self::candidates)). Of no effect for searches without a refiner.
    #[cfg_attr(feature = "serde", serde(with = "crate::serialised::Numbers"))]
    pub refine: f64,
    /// Whether [`IvfIndex::search_refined`](crate::IvfIndex::search_refined) takes more candidates until no other
    /// vector of the lists that it reads can be among the k best; [`Proof::None`] unless set. Of no effect for searches
    /// without a refiner.
    pub prove: Proof,
    /// The largest distance of a neighbour (similarity: the smallest); unless set, none. The row of a query ends with
    /// [`NONE`](crate::NONE) where its neighbours are farther. It is the distance that the search returns: squared
    /// under [`Metric::L2`](crate::Metric::L2). The search reads as much as without it. Of no effect for a range
    /// search, whose radius is an argument.
    #[cfg_attr(feature = "serde", serde(with = "crate::serialised::Numbers"))]
    pub radius: Option<f32>,
}

/// Radii and numbers of candidates are equal if they have the same bits.
impl PartialEq for SearchOptions<'_> {
    fn eq(&self, other: &Self) -> bool {
        let parts = |options: &Self| {
            let &Self { probes, filter: _, widen, scan, beam, refine, prove, radius } = options;
            (probes, widen, scan, beam, refine.to_bits(), prove, radius.map(f32::to_bits))
        };
        parts(self) == parts(other) && self.filter == other.filter
    }
}

impl Eq for SearchOptions<'_> {}

impl Default for SearchOptions<'_> {
    fn default() -> Self {
        Self {
            probes: None,
            filter: None,
            widen: true,
            scan: Scan::Auto,
            beam: None,
            refine: 4.0,
            prove: Proof::None,
            radius: None,
        }
    }
}

/// Refuses to serialise a filter.
#[cfg(feature = "serde")]
fn no_filter<S: serde::Serializer>(_: &Option<Filter<'_>>, _: S) -> Result<S::Ok, S::Error> {
    Err(serde::ser::Error::custom("a filter belongs to an index in memory and cannot be serialised"))
}

impl<'a> SearchOptions<'a> {
    /// The default options: the number of probes that the index stores, no filter, [`Scan::Auto`]. A
    /// filter widens a search.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the number of lists to search for each query; `None` means the number that the index stores.
    pub fn probes(mut self, probes: impl Into<Option<usize>>) -> Self {
        self.probes = probes.into();
        self
    }

    /// Sets the vectors that the search may return: a [`Filter`], or a reference to a [`Bitset`](crate::Bitset). `None`
    /// means all.
    pub fn filter(mut self, filter: impl Into<Option<Filter<'a>>>) -> Self {
        self.filter = filter.into();
        self
    }

    /// Lets the search return only vectors with these ids: [`Filter::Ids`].
    pub fn filter_ids(self, ids: &'a [u64]) -> Self {
        self.filter(Filter::Ids(ids))
    }

    /// Lets the search return no vector with one of these ids: [`Filter::Except`].
    pub fn filter_except(self, ids: &'a [u64]) -> Self {
        self.filter(Filter::Except(ids))
    }

    /// Lets the search return only vectors whose ids the function accepts: [`Filter::Function`].
    pub fn filter_by(self, accepts: &'a (dyn Fn(u64) -> bool + Sync)) -> Self {
        self.filter(Filter::Function(accepts))
    }

    /// Sets whether a search under a filter may read more lists than `probes`.
    pub fn widen(mut self, widen: bool) -> Self {
        self.widen = widen;
        self
    }

    /// Sets the order in which lists are read.
    pub fn scan(mut self, scan: Scan) -> Self {
        self.scan = scan;
        self
    }

    /// Sets the number of vectors that a walk in a graph keeps; `None` means the number that the index stores.
    pub fn beam(mut self, beam: impl Into<Option<usize>>) -> Self {
        self.beam = beam.into();
        self
    }

    /// Sets the number of candidates for each result of a refined search.
    pub fn refine(mut self, candidates: impl Into<f64>) -> Self {
        self.refine = candidates.into();
        self
    }

    /// Number of candidates of each query of a refined search for `k` results: [`refine`](Self::refine) · `k`, rounded
    /// to the nearest number.
    ///
    /// ```
    /// let options = warpann::SearchOptions::new().refine(1.25);
    /// assert_eq!((options.candidates(10)?, options.candidates(100)?), (13, 125));
    /// # Ok::<(), warpann::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::BadNumber`] if the number for each result is below 1, infinite or NaN.
    pub fn candidates(&self, k: usize) -> Result<usize> {
        if !(1.0..f64::INFINITY).contains(&self.refine) {
            return Err(Error::BadNumber { what: "refine", value: self.refine, least: 1.0 });
        }
        // The cast saturates: no search has room for so many results.
        Ok(((k as f64 * self.refine).round() as usize).max(k))
    }

    /// Sets whether a refined search takes more candidates until its results are proved to be the best: a [`Proof`], or
    /// true for [`Proof::Certain`].
    pub fn prove(mut self, prove: impl Into<Proof>) -> Self {
        self.prove = prove.into();
        self
    }

    /// Sets the largest distance of a neighbour (similarity: the smallest); `None` means any distance. Under
    /// [`Metric::L2`](crate::Metric::L2) it is a squared distance, as all distances are.
    pub fn radius(mut self, radius: impl Into<Option<f32>>) -> Self {
        self.radius = radius.into();
        self
    }

    /// Refuses a radius that is not a number.
    ///
    /// # Errors
    /// [`Error::BadNumber`] for NaN.
    pub(crate) fn check_radius(&self) -> Result<()> {
        self.radius.map_or(Ok(()), check_radius)
    }
}

/// A search for queries in groups that have one filter each.
#[derive(Debug, Clone, Copy)]
pub struct GroupedSearch<'a, T> {
    /// The queries, group by group.
    pub(crate) queries: &'a [T],
    /// Number of neighbours of each.
    pub(crate) k: usize,
    /// The options of all, which have no filter.
    pub(crate) options: &'a SearchOptions<'a>,
    /// The groups, whose places are those of all queries, and ascend.
    pub(crate) groups: &'a [FilterGroup<'a>],
}

/// The queries and the options of a search, checked, on their way from the index to the devices of any kind; k or the
/// radius is passed with it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SearchRequest<'a> {
    /// The queries, of the element type and dimension of the index unless a device has transformed them.
    pub(crate) queries: VectorSlice<'a>,
    /// Number of lists to search for each query, from 1 to the number of lists. Exact search and graphs have one list.
    pub(crate) probes: usize,
    /// The vectors that a search may return, a bit for each: bit r for the vector in row r, or of rank r in inverted
    /// files. `None` means all.
    pub(crate) filter: Option<&'a Bitset>,
    /// How the lists are read.
    pub(crate) scan: Scan,
}

impl<'a> SearchRequest<'a> {
    /// A search of one list with these options, among the vectors that `filter` has instead of the options' filter.
    pub(crate) fn new(queries: VectorSlice<'a>, options: &SearchOptions<'_>, filter: Option<&'a Bitset>) -> Self {
        SearchRequest { queries, probes: 1, filter, scan: options.scan }
    }

    /// A search of one list among all vectors.
    pub(crate) fn among_all(queries: VectorSlice<'a>) -> Self {
        Self::new(queries, &SearchOptions::new(), None)
    }

    /// The same request for a part of the queries.
    pub(crate) fn part(&self, queries: Range<usize>) -> Self {
        SearchRequest { queries: self.queries.part(queries), ..*self }
    }
}
