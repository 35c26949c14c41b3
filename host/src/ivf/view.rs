//! An index, or one shard of it, as a back end sees it.

use std::borrow::Cow;
use std::ops::Range;

use super::encoding::{Codec, to_f32};
use super::lists::{Changes, CodeRows, Directory, Lists};
use crate::shards::share;
use crate::vectors::VectorSlice;
use crate::{Device, ElementType, Metric, Result};

/// An index, or one shard of it, as a back end sees it: trained, with at least one vector.
///
/// A shard has a contiguous part of every list ([`part_of_list`]). The shards with the longer parts change from list to
/// list, so that all have about the same number of vectors. Ranks and ids are those of the whole index.
#[derive(Debug, Clone, Copy)]
pub(crate) struct View<'a> {
    /// Number of elements of an added vector: of bytes, if they hold bits.
    pub(crate) elements: usize,
    /// Number of components of a centroid, and of a transformed vector.
    pub(crate) dim: usize,
    /// The metric of the index.
    pub(crate) metric: Metric,
    /// Row-major, lists × dim; in rotated space if the codec rotates.
    pub(crate) centroids: &'a [f32],
    /// The codec, which defines the meaning of a code's bytes.
    pub(crate) codec: &'a dyn Codec,
    /// The type of added vectors and of queries.
    pub(crate) element: ElementType,
    /// Codes and ids of the whole index.
    pub(super) lists: &'a Lists,
    /// Number of this shard, and number of shards.
    pub(super) shard: (usize, usize),
}

impl<'a> View<'a> {
    /// Shard `shard` of `shards` of an index. The back end of the shard must see no other shard of the same version.
    pub(crate) fn part(&self, shard: usize, shards: usize) -> View<'a> {
        View { shard: (shard, shards), ..*self }
    }

    /// Whether this is the whole index, not a shard of several.
    pub(crate) fn is_whole(&self) -> bool {
        self.shard.1 == 1
    }

    /// Number of lists.
    pub(crate) fn list_count(&self) -> usize {
        self.lists.count()
    }

    /// A number that changes with every change of the index, and differs between indexes: an image of another version
    /// is stale.
    pub(crate) fn version(&self) -> u64 {
        self.lists.version()
    }

    /// The changes of the whole index since `version`; `None` if the journal does not reach back to it.
    pub(crate) fn changes_since(&self, version: u64) -> Option<Changes> {
        self.lists.changes_since(version)
    }

    /// The number of places that were noted for [`changes_since`](Self::changes_since), some several times.
    pub(crate) fn changed_since(&self, version: u64) -> Option<usize> {
        self.lists.changed_since(version)
    }

    /// Ranks and addresses of all vectors of the index.
    pub(crate) fn directory(&self) -> &'a Directory {
        self.lists.directory()
    }

    /// The directory that maps ranks to ids; `None` if ranks and ids are equal.
    pub(crate) fn sparse_directory(&self) -> Option<&'a Directory> {
        self.lists.sparse_directory()
    }

    /// Writes the ranks of the vectors at the places `part` of this shard's part of a list, in the order of the places.
    pub(crate) fn ranks_into(&self, list: usize, part: Range<usize>, to: &mut [u32]) {
        let first = self.places(list).start;
        self.lists.ranks_into(list, first + part.start..first + part.end, to);
    }

    /// Number of vectors here. O(1) for a whole index, O(lists) for a shard.
    pub(crate) fn len(&self) -> usize {
        if self.is_whole() {
            return self.lists.len();
        }
        (0..self.list_count()).map(|list| self.length(list)).sum()
    }

    /// The places, in a list of the whole index, of the vectors that are here.
    #[inline]
    pub(super) fn places(&self, list: usize) -> Range<usize> {
        let (shard, shards) = self.shard;
        let length = self.lists.length(list);
        if shards == 1 {
            return 0..length;
        }
        part_of_list(length, (shard + list) % shards, shards)
    }

    /// Number of vectors of a list that are here.
    #[inline]
    pub(crate) fn length(&self, list: usize) -> usize {
        self.places(list).len()
    }

    /// The codes of a list's vectors that are here.
    #[inline]
    pub(crate) fn codes(&self, list: usize) -> CodeRows<'a> {
        self.lists.codes(list).part(self.places(list))
    }

    /// The ranks of a list's vectors that are here, in the order of the codes.
    #[inline]
    pub(crate) fn ranks(&self, list: usize) -> &'a [u32] {
        &self.directory().ranks(list)[self.places(list)]
    }

    /// The metric by which queries are compared with centroids.
    pub(crate) fn probe_metric(&self) -> Metric {
        self.metric.probed_by().metric()
    }

    /// The queries as [`queries`](Self::queries) transforms them, but for the rotation, for a codec that rotates.
    pub(crate) fn unrotated<'q>(&self, queries: VectorSlice<'q>) -> Result<Cow<'q, [f32]>> {
        to_f32(queries, self.metric.divides_by_norms())
    }

    /// Whether f32 surely holds the rotated vectors of these, whose components are at most √dim times the greatest one.
    /// Not so if a component is not finite.
    pub(crate) fn rotates_safely(&self, rows: &[f32]) -> bool {
        let limit = f32::MAX / (2.0 * (self.dim as f32).sqrt());
        rows.iter().fold(true, |all, x| all & (x.abs() <= limit))
    }

    /// The queries, transformed for comparison with centroids and stored vectors ([`Codec::transform`]).
    pub(crate) fn queries<'q>(&self, queries: VectorSlice<'q>, device: Device) -> Result<Cow<'q, [f32]>> {
        self.codec.transform(queries, self.metric, device)
    }
}

/// The places of part `part` of `parts` of a list of `length` vectors: contiguous, one part after the other.
///
/// The parts are equal shares of a rounded length, and the last part also has the rest, which is less than a sixteenth
/// of the list. So the cuts stay while a list changes by less than about a thirty-second, and a device gets only the
/// vectors that have changed. Equal shares of the length itself would move nearly all vectors of a part by one place
/// with every vector that comes or goes.
fn part_of_list(length: usize, part: usize, parts: usize) -> Range<usize> {
    let step = 1 << length.max(1).ilog2().saturating_sub(4);
    let places = share(length - length % step, part, parts);
    if part + 1 == parts { places.start..length } else { places }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_cover_a_list_and_are_about_equal() {
        for (length, parts) in (0..700).flat_map(|length| (1..9).map(move |parts| (length, parts))) {
            let all: Vec<_> = (0..parts).map(|part| part_of_list(length, part, parts)).collect();
            assert_eq!((all[0].start, all[parts - 1].end), (0, length));
            assert!(all.windows(2).all(|pair| pair[0].end == pair[1].start), "{all:?}");
            let (least, most) =
                ((length / parts).saturating_sub(length.div_ceil(16 * parts)), length / parts + length / 16 + 1);
            assert!(all.iter().all(|part| (least..=most).contains(&part.len())), "{all:?}");
        }
    }

    #[test]
    fn cuts_move_seldom() {
        for parts in 2..9 {
            let cuts = |length| (1..parts).map(|part| part_of_list(length, part, parts).start).collect::<Vec<_>>();
            let moves = (1024..2048).filter(|&length| cuts(length) != cuts(length + 1)).count();
            assert_eq!(moves, 16, "{parts} parts");
        }
    }
}
