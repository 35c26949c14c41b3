//! Statistics of an index: lengths of its lists and bytes of memory.

use super::IvfIndex;
use crate::Element;

/// The distribution of the vectors of an [`IvfIndex`] over its lists, and the memory of the index.
#[derive(Debug, Clone, Copy, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct IvfStatistics {
    /// Number of vectors in the index.
    pub vectors: u64,
    /// Number of lists; 1 if the index has not [trained itself](super::IvfIndexBuilder::train_at) yet.
    pub lists: usize,
    /// Number of lists without a vector.
    pub empty_lists: usize,
    /// Number of vectors in the shortest list.
    pub shortest: usize,
    /// Mean number of vectors in a list.
    #[cfg_attr(feature = "serde", serde(with = "crate::serialised::Numbers"))]
    pub mean: f64,
    /// Number of vectors in the longest list.
    pub longest: usize,
    /// lists · Σ length² / vectors²: the factor by which a search reads more vectors than with lists of equal length,
    /// if queries are distributed as vectors are. 1 if all lists have the same length, and for an empty index.
    #[cfg_attr(feature = "serde", serde(with = "crate::serialised::Numbers"))]
    pub imbalance: f64,
    /// Bytes of one vector's code.
    pub code_bytes: usize,
    /// Bytes of all codes, ids and centroids together.
    pub bytes: u64,
    /// Number of vectors that were added beyond the reach of the codes since training: with a clamped component
    /// ([`clamped_components`](Self::clamped_components)). If they are many, the vectors have moved away from the
    /// training, and an index that is trained again finds more. Removing vectors does not subtract from the number;
    /// [`IvfIndex::clear`] and training start again, and merging adds. Files have it; those of versions before have 0.
    /// Vectors that a device generates are not counted.
    #[cfg_attr(feature = "serde", serde(default))]
    pub clamped_vectors: u64,
    /// Number of components of these vectors that were clamped. [`Encoding::Scalar8`](super::Encoding::Scalar8):
    /// components more than half a step outside of the range that training found.
    /// [`Encoding::Pq`](super::Encoding::Pq): all components of a vector that is farther from the centroid of its list
    /// than any code can be, √(Σ over sub-quantizers of the squared length of the longest codeword). Other encodings:
    /// 0.
    #[cfg_attr(feature = "serde", serde(default))]
    pub clamped_components: u64,
}

impl<T: Element> IvfIndex<T> {
    /// Computes the distribution of the vectors over the lists, and the memory of the index. O(lists).
    pub fn statistics(&self) -> IvfStatistics {
        let lists = self.kind.lists();
        let lengths = || (0..self.kind.lists.count()).map(|list| self.kind.lists.length(list));
        let vectors = self.len() as u64;
        let code_bytes = self.kind.lists.code_bytes();
        let centroids = self.kind.trained().map_or(0, |trained| size_of_val(&trained.centroids[..])) as u64;
        IvfStatistics {
            vectors,
            lists,
            // An untrained index has no `Lists` yet: all lists are empty.
            empty_lists: lists - lengths().filter(|&length| length > 0).count(),
            shortest: lengths().min().unwrap_or(0),
            mean: vectors as f64 / lists as f64,
            longest: lengths().max().unwrap_or(0),
            imbalance: self.kind.imbalance(),
            code_bytes,
            bytes: vectors * (code_bytes as u64).saturating_add(8) + centroids,
            clamped_vectors: self.kind.clamped.vectors,
            clamped_components: self.kind.clamped.components,
        }
    }
}
