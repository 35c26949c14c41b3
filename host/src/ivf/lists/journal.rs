//! The changes of lists since some version, by which a copy of the lists is brought up to date.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};

use super::address::Address;

/// A journal keeps this many places, or an eighth of the vectors if they are more: those of two changes of 1,000
/// vectors that move between lists, of which each has three.
const KEPT: usize = 1 << 13;
const SHARE_KEPT: usize = 8;

/// The places that hold other vectors than at some version, ascending; places past the end of a list hold nothing any
/// more.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Changes {
    pub(crate) places: Vec<Address>,
    /// Whether vectors have new ranks, also those in other places.
    pub(crate) renumbered: bool,
}

/// The last changes of lists. A version is a number that no lists have had before.
#[derive(Debug)]
pub(super) struct Journal {
    version: u64,
    /// The journal has all changes after this version.
    since: u64,
    /// The places of these changes, with the version that each led to; versions ascend.
    places: VecDeque<(u64, Address)>,
    /// The last version that gave vectors new ranks.
    renumbered: u64,
}

/// A number that no lists have had before.
fn next_version() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

impl Journal {
    /// No changes, and a new version.
    pub(super) fn new() -> Journal {
        let version = next_version();
        Journal { version, since: version, places: VecDeque::new(), renumbered: version }
    }

    /// The same version, with the last [`KEPT`] places at most.
    pub(super) fn copied(&self) -> Journal {
        let left_out = self.places.len().saturating_sub(KEPT);
        let since = left_out.checked_sub(1).map_or(self.since, |last| self.places[last].0);
        Journal { since, places: self.places.range(left_out..).copied().collect(), ..*self }
    }

    /// The version of the lists.
    pub(super) fn version(&self) -> u64 {
        self.version
    }

    /// Starts a new version, whose changes are told by the other functions.
    pub(super) fn begin(&mut self) {
        self.version = next_version();
    }

    /// Notes that places have changed, in lists of `len` vectors.
    pub(super) fn changed(&mut self, places: impl IntoIterator<Item = Address>, len: usize) {
        let most = KEPT.max(len / SHARE_KEPT);
        for place in places {
            if self.places.len() >= most
                && let Some((version, _)) = self.places.pop_front()
            {
                self.since = version;
            }
            self.places.push_back((self.version, place));
        }
    }

    /// Notes that vectors have new ranks.
    pub(super) fn renumbered(&mut self) {
        self.renumbered = self.version;
    }

    /// Notes that everything has changed.
    pub(super) fn everything_changed(&mut self) {
        self.places.clear();
        self.since = self.version;
    }

    /// The number of places that were noted since `version`, some several times; `None` where [`since`](Self::since)
    /// is.
    pub(super) fn count_since(&self, version: u64) -> Option<usize> {
        let first = self.places.partition_point(|&(then, _)| then <= version);
        let led_here = first.checked_sub(1).is_some_and(|last| self.places[last].0 == version);
        (led_here || version == self.since || version == self.version).then(|| self.places.len() - first)
    }

    /// The changes since `version`; `None` if the journal does not reach back to it, or if it is a version of other
    /// lists, such as another snapshot that changed as well.
    pub(super) fn since(&self, version: u64) -> Option<Changes> {
        let first = self.places.len() - self.count_since(version)?;
        let mut places: Vec<Address> = self.places.range(first..).map(|&(_, place)| place).collect();
        // By one number, which is compared faster than two.
        places.sort_unstable_by_key(|at| u64::from(at.list) << 32 | u64::from(at.place));
        places.dedup();
        Some(Changes { places, renumbered: self.renumbered > version })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_journal_knows_the_last_changes() {
        let mut journal = Journal::new();
        let at = |place| Address { list: 1, place };
        let first = journal.version();
        assert_eq!(journal.since(first), Some(Changes { places: vec![], renumbered: false }));
        journal.begin();
        journal.changed([at(7), at(3), at(7)], 0);
        let second = journal.version();
        journal.begin();
        journal.changed([at(3)], 0);
        journal.renumbered();
        assert_eq!(journal.since(first), Some(Changes { places: vec![at(3), at(7)], renumbered: true }));
        assert_eq!(journal.since(second), Some(Changes { places: vec![at(3)], renumbered: true }));
        let third = journal.version();
        assert_eq!(journal.since(third), Some(Changes { places: vec![], renumbered: false }));
        // No version of these lists; a later version is one of other lists.
        assert_eq!((journal.since(first - 1), journal.since(third + 1)), (None, None));
        // As many places as are kept, and one more, which costs the oldest version.
        journal.begin();
        journal.changed((0..KEPT as u32 - 4).map(at), 0);
        assert!(journal.since(first).is_some());
        journal.changed([at(0)], 0);
        assert_eq!(journal.since(first), None);
        assert!(journal.since(second).is_some_and(|changes| changes.places.len() == KEPT - 4));
        journal.changed((0..KEPT as u32).map(at), 0);
        assert_eq!(journal.since(third), None);
        assert!(journal.since(journal.version()).is_some());
        // Two copies that both change: neither has been a version of the other.
        let (mut one, mut other) = (journal.copied(), journal.copied());
        for copy in [&mut one, &mut other] {
            copy.begin();
            copy.changed([at(1)], 0);
        }
        let between = one.version();
        other.begin();
        other.changed([at(2)], 0);
        assert!((journal.version()..other.version()).contains(&between) && other.since(between).is_none());
        assert!(other.since(journal.version()).is_some() && one.since(journal.version()).is_some());
        // A copy has the last places only.
        let (before, fourth) = (journal.version(), journal.copied());
        assert_eq!((fourth.version(), fourth.since(before)), (before, journal.since(before)));
        journal.begin();
        journal.changed((0..KEPT as u32 + 3).map(at), 100 * KEPT);
        let copy = journal.copied();
        assert!(journal.since(before).is_some());
        assert_eq!((copy.places.len(), copy.since(before)), (KEPT, None));
        assert_eq!(copy.since(journal.version()), journal.since(journal.version()));
        journal.begin();
        journal.everything_changed();
        assert_eq!(journal.since(journal.version() - 1), None);
        assert_eq!(journal.since(journal.version()), Some(Changes { places: vec![], renumbered: false }));
    }
}
