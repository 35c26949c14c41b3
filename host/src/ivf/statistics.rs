//! How an index is filled.

use super::IvfIndex;
use crate::Element;

/// How the vectors of an [`IvfIndex`] are spread over its lists, and what they take.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct IvfStatistics {
    /// Vectors in the index.
    pub vectors: u64,
    /// Lists.
    pub lists: usize,
    /// Lists without a vector.
    pub empty_lists: usize,
    /// Vectors in the shortest list.
    pub shortest: usize,
    /// Vectors in a list, on average.
    pub mean: f64,
    /// Vectors in the longest list.
    pub longest: usize,
    /// lists · Σ length² / vectors²: how many times as many vectors a search looks at as it would with lists of one length, if queries
    /// are spread as vectors are. 1 where all lists are alike, and for an empty index.
    pub imbalance: f64,
    /// Bytes of a vector's code.
    pub code_bytes: usize,
    /// Bytes of all codes, ids and centroids.
    pub bytes: u64,
}

impl<T: Element> IvfIndex<T> {
    /// How the vectors are spread over the lists, and what they take. O(lists).
    pub fn statistics(&self) -> IvfStatistics {
        let lists = self.lists();
        let lengths = || (0..self.lists.count()).map(|list| self.lists.length(list));
        let vectors = self.len() as u64;
        let squares: f64 = lengths().map(|length| (length as f64).powi(2)).sum();
        let imbalance = if vectors == 0 { 1.0 } else { lists as f64 * squares / (vectors as f64).powi(2) };
        let code_bytes = self.lists.code_bytes();
        let centroids = size_of_val(self.centroids()) as u64;
        IvfStatistics {
            vectors,
            lists,
            // Before training there are no lists to look at: all are empty.
            empty_lists: lists - lengths().filter(|&length| length > 0).count(),
            shortest: lengths().min().unwrap_or(0),
            mean: vectors as f64 / lists as f64,
            longest: lengths().max().unwrap_or(0),
            imbalance,
            code_bytes,
            bytes: vectors * (code_bytes as u64).saturating_add(8) + centroids,
        }
    }
}
