//! A request: one query with its options.

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use crate::index::private::Searching;
use crate::validate::check_vectors;
use crate::{Bitset, Element, Error, Filter, Input, Result, SearchOptions};

/// A query for a [`Batcher`](crate::Batcher), with `k`, options, a filter and a deadline of its own.
///
/// ```
/// use std::time::{Duration, Instant};
/// use warpann::{Request, SearchOptions, SharedFilter};
///
/// let request = Request::new(vec![0.5f32, 0.25], 10)
///     .options(SearchOptions::new().probes(16))
///     .filter(SharedFilter::Except([7, 12].into()))
///     .deadline(Instant::now() + Duration::from_millis(20));
/// # drop(request);
/// ```
#[derive(Debug, Clone)]
pub struct Request<T> {
    pub(super) query: Vec<T>,
    pub(super) k: usize,
    pub(super) options: SearchOptions<'static>,
    pub(super) filter: Option<SharedFilter>,
    pub(super) deadline: Option<Instant>,
}

impl<T: Element> Request<T> {
    /// A request for the `k` best vectors of a query of the index's dimension, with the settings of the index.
    pub fn new(query: impl Into<Vec<T>>, k: usize) -> Self {
        Request { query: query.into(), k, options: SearchOptions::new(), filter: None, deadline: None }
    }

    /// Sets the options of the search.
    pub fn options(mut self, options: SearchOptions<'static>) -> Self {
        self.options = options;
        self
    }

    /// Sets the vectors that the search may return, instead of a filter of the options. Requests whose filters are
    /// clones of one share a search everywhere, and its bits are made once; those with other filters share one where it
    /// costs less ([`Batcher`](crate::Batcher)).
    pub fn filter(mut self, filter: impl Into<SharedFilter>) -> Self {
        self.filter = Some(filter.into());
        self
    }

    /// Sets the time by which the search must have begun: after it the request is refused
    /// ([`Refusal::Expired`](crate::Refusal::Expired)).
    pub fn deadline(mut self, deadline: Instant) -> Self {
        self.deadline = Some(deadline);
        self
    }

    /// The components of the query.
    pub fn query(&self) -> &[T] {
        &self.query
    }

    /// Number of neighbours of the query.
    pub fn k(&self) -> usize {
        self.k
    }

    /// The options of the search, with the filter: [`Index::search_one`](crate::Index::search_one) with these has the
    /// same result.
    pub fn search_options(&self) -> SearchOptions<'_> {
        let filter = self.filter.as_ref().map(SharedFilter::as_filter).or(self.options.filter);
        SearchOptions { filter, ..self.options }
    }

    /// Checks all that a search checks of a single query, except the filter.
    pub(super) fn check(&self, kind: &impl Searching<Element = T>) -> Result<()> {
        if self.k == 0 {
            return Err(Error::Zero { what: "k" });
        }
        self.options.check_radius()?;
        if self.query.len() != kind.dim() {
            return Err(Error::WrongDimension { expected: kind.dim(), actual: self.query.len() });
        }
        check_vectors(&self.query, kind.dim(), Input::Queries)?;
        kind.check_queries(&self.query, "search")
    }
}

/// A [`Filter`] that a request owns together with others.
#[derive(Clone)]
#[non_exhaustive]
pub enum SharedFilter {
    /// As [`Filter::Bits`].
    Bits(Arc<Bitset>),
    /// As [`Filter::Ids`].
    Ids(Arc<[u64]>),
    /// As [`Filter::Except`].
    Except(Arc<[u64]>),
    /// As [`Filter::Function`].
    Function(Arc<dyn Fn(u64) -> bool + Send + Sync>),
}

impl SharedFilter {
    /// The filter for a search.
    pub fn as_filter(&self) -> Filter<'_> {
        match self {
            SharedFilter::Bits(bits) => Filter::Bits(bits),
            SharedFilter::Ids(ids) => Filter::Ids(ids),
            SharedFilter::Except(ids) => Filter::Except(ids),
            SharedFilter::Function(function) => Filter::Function(&**function),
        }
    }
}

impl From<Bitset> for SharedFilter {
    fn from(bits: Bitset) -> Self {
        SharedFilter::Bits(Arc::new(bits))
    }
}

impl From<Arc<Bitset>> for SharedFilter {
    fn from(bits: Arc<Bitset>) -> Self {
        SharedFilter::Bits(bits)
    }
}

impl fmt::Debug for SharedFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_filter().fmt(f)
    }
}
