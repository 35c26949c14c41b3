//! Filters: the vectors that a search may return, in the form that the caller has.

use std::fmt;

use crate::{Bitset, Result};

/// The vectors that a search may return: an option of every search
/// ([`SearchOptions::filter`](crate::SearchOptions::filter)).
///
/// All forms are by id. A search first turns a filter into one bit for each vector. For n vectors and m ids that takes
/// O(n / 64) for [`Bits`](Filter::Bits), O(n / 64 + m · log n) for ids, and O(n) for a function. Results depend on the
/// accepted vectors alone, not on the form. To search many times under the same function or many ids, make the bits
/// once, for example by [`FlatIndex::filter`](crate::FlatIndex::filter). Bits combine: [`Bitset::and`], [`Bitset::or`],
/// [`Bitset::without`].
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
}

impl Filter<'_> {
    /// Checks that this is a filter for an index of `vectors` vectors whose ids have this stamp, which is computed if
    /// it matters. Only bits can be stale.
    ///
    /// # Errors
    /// [`Error::WrongLength`](crate::Error::WrongLength), [`Error::StaleFilter`](crate::Error::StaleFilter).
    #[inline]
    pub(crate) fn check(self, vectors: usize, stamp: impl FnOnce() -> u64) -> Result<()> {
        match self {
            Filter::Bits(bits) => bits.check(vectors, stamp),
            Filter::Ids(_) | Filter::Except(_) | Filter::Function(_) => Ok(()),
        }
    }
}

impl fmt::Debug for Filter<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Filter::Bits(bits) => f.debug_tuple("Bits").field(bits).finish(),
            Filter::Ids(ids) => f.debug_tuple("Ids").field(ids).finish(),
            Filter::Except(ids) => f.debug_tuple("Except").field(ids).finish(),
            Filter::Function(function) => f.debug_tuple("Function").field(&std::ptr::from_ref(*function)).finish(),
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
            (Filter::Bits(_) | Filter::Ids(_) | Filter::Except(_) | Filter::Function(_), _) => false,
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
