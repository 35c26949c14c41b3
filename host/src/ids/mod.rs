//! Sets of ids that callers choose, and the ids of the rows of an index.

mod accepted;
pub(crate) mod row_ids;

use std::borrow::Cow;

use crate::parallel::{Loop, ParallelSlice};
use crate::{Error, Result, host_memory};

/// A number that identifies a set of ids: the sum of a hash of each id, modulo 2⁶⁴. It does not depend on the order of
/// the ids. The stamp of a union of disjoint sets is the sum of their stamps. Two sets that nobody chose for it have
/// the same stamp with a probability of 2⁻⁶⁴.
pub(crate) fn stamp(ids: &[u64]) -> u64 {
    // The finalizer of splitmix64. It maps 0 to 0, so 1 is added to the id.
    let hash = |&id: &u64| {
        let id = id.wrapping_add(1);
        let id = (id ^ (id >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let id = (id ^ (id >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        id ^ (id >> 31)
    };
    ids.par_iter().with_min_len(1 << 14).map(hash).reduce(|| 0, u64::wrapping_add)
}

/// The smallest id that occurs twice in the ascending `ids`.
pub(crate) fn twice(ids: &[u64]) -> Option<u64> {
    let pairs = ids.par_iter().zip(ids.get(1..).unwrap_or_default().par_iter());
    pairs.position_first(|(id, next)| id == next).map(|at| ids[at])
}

/// Returns `ids` in ascending order, or the error that one occurs twice. Copies them only if they are not in this
/// order.
pub(crate) fn ascending(ids: &[u64]) -> Result<Cow<'_, [u64]>> {
    if ids.is_sorted_by(|a, b| a < b) {
        return Ok(Cow::Borrowed(ids));
    }
    let mut sorted = host_memory::copied(ids)?;
    sorted.par_sort_unstable();
    match twice(&sorted) {
        Some(id) => Err(Error::DuplicateId { id }),
        None => Ok(Cow::Owned(sorted)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_sorted_and_stamped() {
        assert!(matches!(ascending(&[1, 2, 9]), Ok(Cow::Borrowed([1, 2, 9]))));
        assert!(matches!(ascending(&[9, 1, 2]), Ok(Cow::Owned(ids)) if ids == [1, 2, 9]));
        for ids in [&[4, 4][..], &[7, 4, 1, 4]] {
            assert!(matches!(ascending(ids), Err(Error::DuplicateId { id: 4 })), "{ids:?}");
        }
        // Sums of the finalizer of splitmix64.
        assert_eq!((stamp(&[]), stamp(&[0]), stamp(&[1])), (0, 0x5692_161d_100b_05e5, 0xdbd2_3897_3a2b_148a));
        assert_eq!(stamp(&[1_000_000_000_000_000_000, 1, 0]), 0x4ae8_2775_284e_1cb0);
    }
}
