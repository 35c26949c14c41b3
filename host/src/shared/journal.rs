//! The changes of a set of vectors since some version, by which a copy of the vectors is brought up to date: images of
//! inverted files, the memory of their lists, and the rows of exact indexes on devices.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};

/// A journal keeps this many places, or an eighth of the vectors if they are more: those of two changes of 1,000
/// vectors that move between lists, of which each has three.
const KEPT: usize = 1 << 13;
const SHARE_KEPT: usize = 8;

/// The last changes of vectors at places, which ascend as their numbers do. A version is a number that no vectors have
/// had before.
#[derive(Debug, Clone)]
pub(crate) struct Journal<P> {
    version: u64,
    /// The journal has all changes after this version.
    since: u64,
    /// The places of these changes, with the version that each led to; versions ascend.
    places: VecDeque<(u64, P)>,
}

/// A number that no vectors have had before.
fn next_version() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

impl<P: Copy + PartialEq + Into<u64>> Journal<P> {
    /// No changes, and a new version.
    pub(crate) fn new() -> Self {
        let version = next_version();
        Journal { version, since: version, places: VecDeque::new() }
    }

    /// The same version, with the last [`KEPT`] places at most.
    pub(crate) fn copied(&self) -> Self {
        let left_out = self.places.len().saturating_sub(KEPT);
        let since = left_out.checked_sub(1).map_or(self.since, |last| self.places[last].0);
        Journal { since, places: self.places.range(left_out..).copied().collect(), version: self.version }
    }

    /// The version of the vectors.
    pub(crate) fn version(&self) -> u64 {
        self.version
    }

    /// Starts a new version, whose changes are told by the other functions.
    pub(crate) fn begin(&mut self) {
        self.version = next_version();
    }

    /// Notes that places have changed, of `len` vectors.
    pub(crate) fn changed(&mut self, places: impl IntoIterator<Item = P>, len: usize) {
        let (most, places) = (KEPT.max(len / SHARE_KEPT), places.into_iter());
        if places.size_hint().0 > most {
            return self.everything_changed();
        }
        for place in places {
            if self.places.len() >= most
                && let Some((version, _)) = self.places.pop_front()
            {
                self.since = version;
            }
            self.places.push_back((self.version, place));
        }
    }

    /// Notes that everything has changed.
    pub(crate) fn everything_changed(&mut self) {
        self.places.clear();
        self.since = self.version;
    }

    /// The number of places that were noted since `version`, some several times; `None` where [`since`](Self::since)
    /// is.
    pub(crate) fn count_since(&self, version: u64) -> Option<usize> {
        let first = self.places.partition_point(|&(then, _)| then <= version);
        let led_here = first.checked_sub(1).is_some_and(|last| self.places[last].0 == version);
        (led_here || version == self.since || version == self.version).then(|| self.places.len() - first)
    }

    /// The places that hold other vectors than at `version`, ascending; `None` if the journal does not reach back to
    /// it, or if it is a version of other vectors, such as another snapshot that changed as well.
    pub(crate) fn since(&self, version: u64) -> Option<Vec<P>> {
        let first = self.places.len() - self.count_since(version)?;
        let mut places: Vec<P> = self.places.range(first..).map(|&(_, place)| place).collect();
        // By one number, which is compared faster than the list and the place of an address.
        places.sort_unstable_by_key(|&place| -> u64 { place.into() });
        places.dedup();
        Some(places)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_journal_knows_the_last_changes() {
        let mut journal = Journal::<u32>::new();
        let first = journal.version();
        assert_eq!(journal.since(first), Some(vec![]));
        journal.begin();
        journal.changed([7, 3, 7], 0);
        let second = journal.version();
        journal.begin();
        journal.changed([3], 0);
        assert_eq!(journal.since(first), Some(vec![3, 7]));
        assert_eq!(journal.since(second), Some(vec![3]));
        let third = journal.version();
        assert_eq!(journal.since(third), Some(vec![]));
        // No version of these vectors; a later version is one of others.
        assert_eq!((journal.since(first - 1), journal.since(third + 1)), (None, None));
        // As many places as are kept, and one more, which costs the oldest version.
        journal.begin();
        journal.changed(0..KEPT as u32 - 4, 0);
        assert!(journal.since(first).is_some());
        journal.changed([0], 0);
        assert_eq!(journal.since(first), None);
        assert!(journal.since(second).is_some_and(|changes| changes.len() == KEPT - 4));
        journal.changed(0..KEPT as u32, 0);
        assert_eq!(journal.since(third), None);
        assert!(journal.since(journal.version()).is_some());
        // Two copies that both change: neither has been a version of the other.
        let (mut one, mut other) = (journal.copied(), journal.copied());
        for copy in [&mut one, &mut other] {
            copy.begin();
            copy.changed([1], 0);
        }
        let between = one.version();
        other.begin();
        other.changed([2], 0);
        assert!((journal.version()..other.version()).contains(&between) && other.since(between).is_none());
        assert!(other.since(journal.version()).is_some() && one.since(journal.version()).is_some());
        // A copy has the last places only.
        let (before, fourth) = (journal.version(), journal.copied());
        assert_eq!((fourth.version(), fourth.since(before)), (before, journal.since(before)));
        journal.begin();
        journal.changed(0..KEPT as u32 + 3, 100 * KEPT);
        let copy = journal.copied();
        assert!(journal.since(before).is_some());
        assert_eq!((copy.places.len(), copy.since(before)), (KEPT, None));
        assert_eq!(copy.since(journal.version()), journal.since(journal.version()));
        journal.begin();
        journal.everything_changed();
        assert_eq!(journal.since(journal.version() - 1), None);
        assert_eq!(journal.since(journal.version()), Some(vec![]));
    }
}
