//! Filters: the vectors that a search may return, in the form that the caller has.

use std::collections::HashMap;
use std::fmt;
use std::ops::Range;

use crate::{Bitset, Error, Result};

/// The vectors that a search may return: an option of every search
/// ([`SearchOptions::filter`](crate::SearchOptions::filter)).
///
/// All forms are by id. A search first turns a filter into one bit for each vector. For n vectors and m ids that takes
/// O(n / 64) for [`Bits`](Filter::Bits), O(n / 64 + m · log n) for ids, and O(n) for a function. Results depend on the
/// accepted vectors alone, not on the form. To search many times under the same function or many ids, make the bits
/// once, for example by [`FlatIndex::filter`](crate::FlatIndex::filter). Bits combine: [`Bitset::and`], [`Bitset::or`],
/// [`Bitset::without`].
///
/// Queries of one call can have a filter each: [`Each`](Filter::Each). The results are those of one search for each
/// query. Equal references are one filter, whose bits are made once, so queries with a common filter pass the same
/// reference.
///
/// ```
/// use warpann::{Device, Filter, FlatIndex, Metric, SearchOptions};
///
/// let mut index = FlatIndex::<f32>::new(1, Metric::L2, Device::Cpu)?;
/// index.add_with_ids(&[0.0, 1.0, 2.0, 3.0], &[10, 20, 30, 45])?;
/// let ids_under = |filter: Filter<'_>| Ok(index.search_with(&[2.9], 2, &SearchOptions::new().filter(filter))?.ids);
/// let tens = index.filter(|id| id % 10 == 0);
/// assert_eq!(ids_under(Filter::Bits(&tens))?, [30, 20]);
/// assert_eq!(ids_under(Filter::Ids(&[30, 7, 20, 30]))?, [30, 20]);
/// assert_eq!(ids_under(Filter::Except(&[45, 7]))?, [30, 20]);
/// assert_eq!(ids_under(Filter::Function(&|id| id % 10 == 0))?, [30, 20]);
/// // A filter for each of two queries.
/// let filters = [Filter::Bits(&tens), Filter::Ids(&[45])];
/// let options = SearchOptions::new().filter(Filter::Each(&filters));
/// assert_eq!(index.search_with(&[2.9, 0.1], 1, &options)?.ids, [30, 45]);
/// # Ok::<(), warpann::Error>(())
/// ```
#[derive(Clone, Copy)]
#[non_exhaustive]
pub enum Filter<'a> {
    /// The vectors whose bits are set. Bit r stands for the r-th id of the index in ascending order; see [`Bitset`],
    /// and for stale ones [`Error::StaleFilter`](crate::Error::StaleFilter).
    Bits(&'a Bitset),
    /// The vectors with these ids, in any order. An id may occur twice. Ids that the index does not hold accept
    /// nothing.
    Ids(&'a [u64]),
    /// All vectors except those with these ids, in any order. An id may occur twice. Ids that the index does not hold
    /// exclude nothing.
    Except(&'a [u64]),
    /// The vectors whose ids the function accepts. A search calls it once for each vector of the index, in any order
    /// and from several threads.
    Function(&'a (dyn Fn(u64) -> bool + Sync)),
    /// A filter for each query, in the order of the queries. They may have any form but this one. A query that may find
    /// every vector has the filter `Except(&[])`.
    Each(&'a [Filter<'a>]),
}

/// The error of filters for each query where one filter is needed: inside of [`Filter::Each`], and for a plan of
/// searches whose queries are not known.
pub(crate) fn not_one() -> Error {
    Error::Mismatch { what: "filter", expected: "one filter", actual: "a filter for each query" }
}

impl<'a> Filter<'a> {
    /// Checks that this is one filter for an index of `vectors` vectors whose ids have this stamp, which is computed if
    /// it matters. Only bits can be stale.
    ///
    /// # Errors
    /// [`Error::WrongLength`], [`Error::StaleFilter`]; [`Error::Mismatch`] for a filter for each query.
    #[inline]
    pub(crate) fn check(self, vectors: usize, stamp: impl FnOnce() -> u64) -> Result<()> {
        match self {
            Filter::Bits(bits) => bits.check(vectors, stamp),
            Filter::Ids(_) | Filter::Except(_) | Filter::Function(_) => Ok(()),
            Filter::Each(_) => Err(not_one()),
        }
    }

    /// Whether both are the same filter: of one form, at one place in memory.
    pub(crate) fn is(self, other: Self) -> bool {
        match (self, other) {
            (Filter::Bits(a), Filter::Bits(b)) => std::ptr::eq(a, b),
            (Filter::Ids(a), Filter::Ids(b)) | (Filter::Except(a), Filter::Except(b)) => std::ptr::eq(a, b),
            // With the metadata: closures without captures may share an address.
            (Filter::Function(a), Filter::Function(b)) => std::ptr::eq(a, b),
            (Filter::Each(a), Filter::Each(b)) => std::ptr::eq(a, b),
            _ => false,
        }
    }

    /// The address in memory, which may be that of other filters as well.
    fn address(self) -> usize {
        match self {
            Filter::Bits(bits) => std::ptr::from_ref(bits).addr(),
            Filter::Ids(ids) | Filter::Except(ids) => ids.as_ptr().addr(),
            Filter::Function(function) => std::ptr::from_ref(function).cast::<u8>().addr(),
            Filter::Each(filters) => filters.as_ptr().addr(),
        }
    }
}

/// Queries that have a filter each, in groups that have the same one.
pub(crate) struct FilterGroups<'a> {
    /// The numbers of the queries, group by group, ascending in a group.
    pub(crate) order: Vec<usize>,
    /// The filter of each group, and the places of its queries in `order`.
    pub(crate) groups: Vec<FilterGroup<'a>>,
}

/// A filter, and the places of the queries that have it.
pub(crate) type FilterGroup<'a> = (Filter<'a>, Range<usize>);

impl<'a> FilterGroups<'a> {
    /// Groups queries by their filters, in the order in which the filters first occur. O(filters).
    pub(crate) fn new(filters: &[Filter<'a>]) -> Self {
        // Most addresses belong to one filter.
        let mut at_address: HashMap<usize, Vec<usize>> = HashMap::new();
        let mut of_groups: Vec<(Filter<'a>, Vec<usize>)> = Vec::new();
        for (query, &filter) in filters.iter().enumerate() {
            let here = at_address.entry(filter.address()).or_default();
            match here.iter().find(|&&group| of_groups[group].0.is(filter)) {
                Some(&group) => of_groups[group].1.push(query),
                None => {
                    here.push(of_groups.len());
                    of_groups.push((filter, vec![query]));
                }
            }
        }
        let mut order = Vec::with_capacity(filters.len());
        let group = |(filter, queries): (Filter<'a>, Vec<usize>)| {
            let first = order.len();
            order.extend(queries);
            (filter, first..order.len())
        };
        let groups = of_groups.into_iter().map(group).collect();
        FilterGroups { order, groups }
    }
}

impl fmt::Debug for Filter<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Filter::Bits(bits) => f.debug_tuple("Bits").field(bits).finish(),
            Filter::Ids(ids) => f.debug_tuple("Ids").field(ids).finish(),
            Filter::Except(ids) => f.debug_tuple("Except").field(ids).finish(),
            Filter::Function(function) => f.debug_tuple("Function").field(&std::ptr::from_ref(*function)).finish(),
            Filter::Each(filters) => f.debug_tuple("Each").field(filters).finish(),
        }
    }
}

/// Filters of the same form with equal contents are equal. Functions are equal if they are the same reference; other
/// references to a function may be unequal to it.
impl PartialEq for Filter<'_> {
    fn eq(&self, other: &Self) -> bool {
        match (*self, *other) {
            (Filter::Bits(a), Filter::Bits(b)) => a == b,
            (Filter::Ids(a), Filter::Ids(b)) | (Filter::Except(a), Filter::Except(b)) => a == b,
            // With the metadata: closures without captures may share an address.
            (Filter::Function(a), Filter::Function(b)) => std::ptr::eq(a, b),
            (Filter::Each(a), Filter::Each(b)) => a == b,
            (Filter::Bits(_) | Filter::Ids(_) | Filter::Except(_) | Filter::Function(_) | Filter::Each(_), _) => false,
        }
    }
}

impl Eq for Filter<'_> {}

impl<'a> From<&'a Bitset> for Filter<'a> {
    fn from(bits: &'a Bitset) -> Self {
        Filter::Bits(bits)
    }
}

impl<'a> From<&'a Bitset> for Option<Filter<'a>> {
    fn from(bits: &'a Bitset) -> Self {
        Some(Filter::Bits(bits))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_are_grouped_by_the_place_of_their_filters() {
        let (bits, equal_bits, ids) = ([Bitset::new(3)], [Bitset::new(3)], [1, 2, 3]);
        let limit = 7;
        let (even, small) = (|id: u64| id.is_multiple_of(2), |id: u64| id < limit);
        let (bits, equal_bits) = (Filter::Bits(&bits[0]), Filter::Bits(&equal_bits[0]));
        let (all, first, except) = (Filter::Ids(&ids), Filter::Ids(&ids[..1]), Filter::Except(&ids));
        let (even, small) = (Filter::Function(&even), Filter::Function(&small));
        let filters = [all, bits, first, bits, even, all, except, equal_bits, small, even, bits];
        let FilterGroups { order, groups } = FilterGroups::new(&filters);
        assert_eq!(order, [0, 5, 1, 3, 10, 2, 4, 9, 6, 7, 8]);
        let expected = [
            (all, 0..2),
            (bits, 2..5),
            (first, 5..6),
            (even, 6..8),
            (except, 8..9),
            (equal_bits, 9..10),
            (small, 10..11),
        ];
        assert_eq!(groups.len(), expected.len());
        for ((filter, places), (expected, expected_places)) in groups.iter().zip(&expected) {
            assert!(filter.is(*expected) && places == expected_places, "{filter:?}");
        }
        let FilterGroups { order, groups } = FilterGroups::new(&[]);
        assert!(order.is_empty() && groups.is_empty());
    }
}
