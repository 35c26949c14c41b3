use std::collections::{BTreeMap, BTreeSet};

use super::rows_by_list::FEW;
use super::*;
use test_random::Random;

/// The contents of lists in the simplest form: the list and the code of each id.
#[derive(Default, Clone)]
struct Plain(BTreeMap<u64, (u32, [u8; 3])>);

/// The id, code and rank at each place of each list.
type Snapshot = Vec<Vec<(u64, Vec<u8>, u32)>>;

fn snapshot(lists: &Lists) -> Snapshot {
    let of_list = |list: usize| {
        let mut ranks = vec![0; lists.length(list)];
        lists.ranks_into(list, 0..ranks.len(), &mut ranks);
        let codes = (0..lists.codes(list).len()).map(|place| lists.codes(list).get(place).to_vec());
        lists.ids(list).iter().copied().zip(codes).zip(ranks).map(|((id, code), rank)| (id, code, rank)).collect()
    };
    (0..lists.count()).map(of_list).collect()
}

impl Plain {
    fn ids(&self) -> Vec<u64> {
        self.0.keys().copied().collect()
    }

    fn same(&self, lists: &Lists) {
        let ids = self.ids();
        assert_eq!((lists.len(), lists.greatest_id()), (ids.len(), ids.last().copied()));
        assert_eq!((lists.all_ids(), lists.stamp()), (ids.clone(), stamp(&ids)));
        let mut seen = BTreeMap::new();
        for (list, members) in snapshot(lists).into_iter().enumerate() {
            assert_eq!(lists.length(list), members.len());
            for (place, (id, code, rank)) in members.into_iter().enumerate() {
                assert_eq!(lists.find(id), Some((list, place)));
                let directory = lists.directory();
                assert_eq!((directory.id(rank), directory.ranks(list)[place]), (id, rank));
                assert_eq!(self.0.get(&id), Some(&(list as u32, [code[0], code[1], code[2]])));
                assert_eq!(seen.insert(rank, id), None, "two vectors have a rank");
            }
        }
        // Ranks compare as ids do.
        assert!(seen.into_values().eq(ids.iter().copied()));
        for id in [0, 5, 1 << 40, u64::MAX] {
            assert_eq!(lists.find(id).is_some(), self.0.contains_key(&id));
        }
        assert_eq!(lists.find_any(&ids).is_some(), !ids.is_empty());
    }

    fn insert(&mut self, labels: &[u32], ids: &[u64], salt: u8) -> Vec<u8> {
        let codes: Vec<[u8; 3]> = ids.iter().map(|&id| [id as u8, (id >> 8) as u8, salt]).collect();
        self.0.extend(ids.iter().copied().zip(labels.iter().copied().zip(codes.iter().copied())));
        codes.into_flattened()
    }

    fn append(&mut self, lists: &mut Lists, labels: &[u32], ids: &[u64]) {
        let codes = self.insert(labels, ids, 7);
        lists.append(labels, &codes, ids).unwrap();
        self.same(lists);
    }

    fn put(&mut self, lists: &mut Lists, labels: &[u32], ids: &[u64]) {
        let codes = self.insert(labels, ids, 9);
        lists.put(labels, &codes, ids).unwrap();
        self.same(lists);
    }

    fn remove(&mut self, lists: &mut Lists, ids: &[u64]) {
        lists.remove(ids).unwrap();
        for id in ids {
            self.0.remove(id);
        }
        self.same(lists);
    }
}

fn some_lists() -> (Plain, Lists) {
    let (mut plain, mut lists) = (Plain::default(), Lists::new(5, 3));
    plain.same(&lists);
    plain.append(&mut lists, &[1, 1, 4, 0, 1], &[0, 1, 2, 3, 4]);
    plain.append(&mut lists, &[4, 2, 1], &[5, 6, 7]);
    plain.append(&mut lists, &[], &[]);
    plain.append(&mut lists, &[2, 2, 0], &[1 << 40, 9, 1000]);
    (plain, lists)
}

#[test]
fn lists_hold_what_was_appended_and_not_removed() {
    let (mut plain, mut lists) = some_lists();
    plain.remove(&mut lists, &[0, 9]);
    assert!(matches!(lists.remove(&[1, 9, 1000]), Err(Error::UnknownId { id: 9, len: 9 })));
    plain.same(&lists);
    plain.remove(&mut lists, &[1, 4, 7]);
    plain.append(&mut lists, &[3, 1], &[0, 8]);
    plain.remove(&mut lists, &[0, 2, 3, 5, 6, 8, 1000, 1 << 40]);
    plain.append(&mut lists, &[3], &[0]);
}

/// Random changes of lists and of copies that share memory with them, few and many at a time. Between two versions, a
/// place that the journal does not name holds the same vector.
#[test]
fn the_journal_names_every_place_that_changed() {
    let mut random = Random::new(11);
    let (mut renumberings, mut forgotten) = (0, 0);
    let (mut plain, lists) = some_lists();
    let mut shared = Arc::new(lists);
    let mut others: Vec<(Plain, Arc<Lists>)> = Vec::new();
    let (mut version, mut before) = (shared.version(), snapshot(&shared));
    for step in 0..300 {
        match random.below(8) {
            // The lists as they are now stay, while these change.
            0 if others.len() < 3 => others.push((plain.clone(), Arc::clone(&shared))),
            1 if !others.is_empty() => {
                let at = random.below(others.len());
                std::mem::swap(&mut others[at].0, &mut plain);
                std::mem::swap(&mut others[at].1, &mut shared);
                (version, before) = (shared.version(), snapshot(&shared));
            }
            _ => others.iter().for_each(|(plain, lists)| plain.same(lists)),
        }
        let lists = Lists::own(&mut shared).unwrap();
        // Rarely more rows than the calling thread appends, and than the journal keeps.
        let count = if step % 60 == 59 { random.pick(&[FEW + 10, MANY + 2]) } else { 1 + random.below(5) };
        let range = if count > FEW { 50_000 } else { 400 };
        let drawn: BTreeSet<u64> = (0..count).map(|_| random.below(range) as u64 + 1_000 * (step / 60)).collect();
        let mut ids: Vec<u64> = drawn.into_iter().collect();
        let known = plain.ids();
        match random.below(5) {
            0 | 1 => {
                let mut gone: Vec<u64> = (0..2 * count).map(|_| random.pick(&known)).collect();
                gone.sort_unstable();
                gone.dedup();
                plain.remove(lists, &gone[..gone.len().min(known.len() - 1)]);
            }
            kind => {
                if kind < 4 {
                    ids.retain(|id| !plain.0.contains_key(id));
                }
                let labels: Vec<u32> = ids.iter().map(|_| random.below(5) as u32).collect();
                if random.below(2) == 0 {
                    ids.reverse();
                }
                if kind < 4 {
                    plain.append(lists, &labels, &ids);
                } else {
                    plain.put(lists, &labels, &ids);
                }
            }
        }
        let now = snapshot(lists);
        if let Some(changes) = lists.changes_since(version) {
            renumberings += usize::from(changes.renumbered);
            let named: BTreeSet<Address> = changes.places.iter().copied().collect();
            for list in 0..5 {
                for place in 0..before[list].len().max(now[list].len()) {
                    if named.contains(&Address { list: list as u32, place: place as u32 }) {
                        continue;
                    }
                    let (then, now) = (before[list].get(place), now[list].get(place));
                    let without_rank = |at: Option<&(u64, Vec<u8>, u32)>| at.map(|at| (at.0, at.1.clone()));
                    assert_eq!(without_rank(then), without_rank(now), "step {step}");
                    assert!(changes.renumbered || then == now, "step {step}");
                }
            }
        } else {
            forgotten += 1;
        }
        // Several changes between two looks.
        if random.below(3) == 0 {
            (version, before) = (lists.version(), now);
        }
    }
    assert!(renumberings > 20 && forgotten > 0, "{renumberings}, {forgotten}");
}

#[test]
fn lists_of_a_mapped_file_become_our_own_when_they_change() {
    let (plain, lists) = some_lists();
    let mut bytes = vec![0; 8];
    let mut ranges = Vec::new();
    for list in 0..lists.count() {
        bytes.resize(bytes.len().next_multiple_of(8), 0);
        let ids = bytes.len();
        bytes.extend_from_slice(bytemuck::cast_slice(lists.ids(list)));
        let codes = bytes.len();
        lists.codes(list).runs().for_each(|run| bytes.extend_from_slice(run));
        ranges.push((codes..bytes.len(), ids..codes));
    }
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), &bytes).unwrap();
    let map = crate::io::open(file.path(), crate::io::Open::Map).unwrap().unwrap();
    let mapped = |ranges: &[(std::ops::Range<usize>, std::ops::Range<usize>)]| {
        let bytes = |range: &std::ops::Range<usize>, align| Bytes::of_file(&map, range.clone(), align).unwrap();
        let parts = ranges.iter().map(|(codes, ids)| (bytes(codes, 1), bytes(ids, 8))).collect();
        Lists::from_parts(3, parts)
    };
    plain.same(&mapped(&ranges).unwrap());
    let (mut changed, mut lists) = (plain.clone(), mapped(&ranges).unwrap());
    changed.append(&mut lists, &[1, 3], &[50, 51]);
    changed.remove(&mut lists, &[6, 1000]);
    let (mut put, mut lists) = (plain.clone(), mapped(&ranges).unwrap());
    put.put(&mut lists, &[2, 0, 4], &[9, 2, 60]);
    let mut other = mapped(&ranges[..]).unwrap();
    other.remove(&[0, 1, 2, 3, 4, 5, 6, 7, 9, 1000]).unwrap();
    let mut third = Lists::new(5, 3);
    third.append_lists(&other).unwrap();
    assert_eq!((third.len(), third.ids(2)), (1, [1u64 << 40].as_slice()));
    // Ranges that are outside of the file, not aligned, or not whole, and ids that occur twice.
    assert!(Bytes::of_file(&map, 8..bytes.len() + 1, 1).is_none());
    assert!(Bytes::of_file(&map, 9..17, 8).is_none());
    let mut bad = ranges.clone();
    bad[1].0.end -= 1;
    assert!(matches!(mapped(&bad), Err(Error::WrongLength { what: "ids", .. })));
    let mut twice = ranges.clone();
    twice.push(ranges[1].clone());
    assert!(matches!(mapped(&twice), Err(Error::DuplicateId { .. })));
}

/// Each version is changed while the version before is published, as an index writer does. Readers keep some versions,
/// and some versions are changed twice.
#[test]
fn versions_take_over_the_memory_of_a_former_one() {
    let mut random = Random::new(12);
    let (mut taken, mut copied) = (0, 0);
    let (mut plain, mut lists) = (Plain::default(), Lists::new(12, 3));
    let (labels, ids): (Vec<u32>, Vec<u64>) = (0..600).map(|id| (random.below(12) as u32, 3 * id)).unzip();
    plain.append(&mut lists, &labels, &ids);
    let mut current = Arc::new(lists);
    let mut readers: Vec<(Plain, Arc<Lists>)> = Vec::new();
    for step in 0..600 {
        let published = (plain.clone(), Arc::clone(&current));
        let former = published.1.former.get().as_ref().map(|former| former.lists.as_ptr());
        // The other one of two that change the same version has no former version.
        if random.below(12) == 0 {
            let mut other = Arc::clone(&current);
            let mut plain = plain.clone();
            plain.remove(Lists::own(&mut other).unwrap(), &[published.0.ids()[random.below(300)]]);
            plain.same(&other);
        }
        let lists = Lists::own(&mut current).unwrap();
        let is_taken = former == Some(lists.lists.as_ptr());
        (taken, copied) = (taken + usize::from(is_taken), copied + usize::from(!is_taken));
        for _ in 0..1 + random.below(2) {
            let known = plain.ids();
            let mut some: Vec<u64> = (0..1 + random.below(4)).map(|_| random.pick(&known)).collect();
            some.sort_unstable();
            some.dedup();
            let labels: Vec<u32> = some.iter().map(|_| random.below(12) as u32).collect();
            match random.below(8) {
                0 if known.len() > 500 => plain.remove(lists, &some),
                // New ids between others and behind them.
                1 => plain.append(lists, &labels[..1], &[known[known.len() - 1] + 1]),
                2 if !plain.0.contains_key(&(some[0] + 1)) => plain.append(lists, &labels[..1], &[some[0] + 1]),
                _ => plain.put(lists, &labels, &some),
            }
        }
        if random.below(5) == 0 {
            readers.push(published);
        }
        if readers.len() > 3 {
            readers.swap_remove(random.below(4));
        }
        if step % 9 == 0 {
            readers.iter().for_each(|(plain, lists)| plain.same(lists));
        }
        // An older version goes on.
        if random.below(40) == 0 && !readers.is_empty() {
            (plain, current) = readers.swap_remove(0);
        }
    }
    assert!(taken > 150 && copied > 50, "{taken}, {copied}");
}
