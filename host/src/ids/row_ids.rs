//! The ids of the rows of an index.
//!
//! Rows are in the order of their ids, so that a back end, which breaks ties by the lower row, breaks them by the lower
//! id. A row of a flat index is a place in memory. A row of inverted files is a rank: the number by which searches know
//! a vector, wherever it is.
//!
//! A removed vector leaves its row behind until the rows are compacted: removing one of n vectors costs a binary search
//! and one bit, and a search skips the row. Rows at the end are dropped at once. If an id comes back before that, its
//! vector takes the old row.
//!
//! Without ids of the caller's and without removals the id of a row is its number, and nothing is stored.

use std::sync::OnceLock;

use super::stamp;
use crate::parallel::{Loop, ParallelSlice};
use crate::shared::Blocks;
use crate::{Bitset, NONE, Result, host_memory};

/// Number of ids whose stamps are computed at a time.
const STAMPED: usize = 1 << 16;

/// Ids of rows, ascending, and the rows that hold a vector.
#[derive(Debug, Default)]
pub(crate) struct RowIds {
    /// The id of each row; empty if the ids are the row numbers.
    ids: Blocks<u64>,
    /// Number of rows.
    rows: usize,
    /// The rows that hold a vector; `None` if all do.
    live: Option<Bitset>,
    /// Number of rows that hold a vector.
    len: usize,
    /// The [`stamp`] of the ids of these rows; `None` until it is asked for.
    stamp: OnceLock<u64>,
}

/// The place of new vectors among the rows.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Room {
    /// All of them after the last row.
    AtTheEnd,
    /// Some into rows that removed vectors left, the others after the last row.
    InRows,
    /// Some between other rows: the rows must be arranged anew.
    Between,
}

impl RowIds {
    /// Number of rows, with those that removed vectors left.
    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    /// Number of vectors.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Number of rows that removed vectors left.
    pub(crate) fn removed(&self) -> usize {
        self.rows - self.len
    }

    /// The rows that hold a vector; `None` if all do.
    pub(crate) fn live(&self) -> Option<&Bitset> {
        self.live.as_ref()
    }

    /// The id of a row.
    pub(crate) fn id(&self, row: usize) -> u64 {
        if self.ids.is_empty() { row as u64 } else { self.ids.get(row) }
    }

    /// The id of each row; `None` if the ids are the row numbers.
    pub(crate) fn names(&self) -> Result<Option<Vec<u64>>> {
        if self.ids.is_empty() {
            return Ok(None);
        }
        let mut names = host_memory::with_room(self.ids.len())?;
        names.extend(self.ids.iter());
        Ok(Some(names))
    }

    /// The same ids and rows, in the same memory as far as neither changes. O(rows / 64) at most.
    pub(crate) fn shared(&self) -> Result<RowIds> {
        let live = self.live.as_ref().map(Bitset::copied).transpose()?;
        Ok(RowIds { ids: self.ids.shared()?, live, stamp: self.stamp.clone(), ..*self })
    }

    /// Whether the rows of `before` still have their ids. O(rows / 4096) if few have changed.
    pub(crate) fn start_with(&self, before: &RowIds) -> bool {
        match (self.ids.is_empty(), before.ids.is_empty()) {
            (true, true) => before.rows <= self.rows,
            (false, false) => self.ids.start_with(&before.ids),
            _ => before.rows <= self.rows && (0..before.rows).all(|row| self.id(row) == before.id(row)),
        }
    }

    /// Whether a row holds a vector.
    fn is_live(&self, row: usize) -> bool {
        self.live.as_ref().is_none_or(|live| live.get(row))
    }

    /// The row with an id, whether it holds a vector or not.
    fn row(&self, id: u64) -> Option<usize> {
        if self.ids.is_empty() {
            return usize::try_from(id).ok().filter(|&row| row < self.rows);
        }
        self.ids.binary_search(id)
    }

    /// The greatest id. The last row always holds a vector.
    pub(crate) fn last(&self) -> Option<u64> {
        self.rows.checked_sub(1).map(|last| self.id(last))
    }

    /// Whether every id is the number of its row.
    pub(crate) fn are_rows(&self) -> bool {
        self.ids.is_empty()
    }

    /// The row of the vector with an id. O(log rows).
    pub(crate) fn find(&self, id: u64) -> Option<usize> {
        self.row(id).filter(|&row| self.is_live(row))
    }

    /// The rows that hold vectors, in order.
    pub(crate) fn live_rows(&self) -> impl Iterator<Item = usize> {
        (0..self.rows).filter(|&row| self.is_live(row))
    }

    /// The ids of all vectors, ascending.
    pub(crate) fn all(&self) -> Result<Vec<u64>> {
        let mut all = host_memory::with_room(self.len)?;
        all.extend(self.live_rows().map(|row| self.id(row)));
        Ok(all)
    }

    /// The least id above all others: one past the greatest, 0 without vectors.
    pub(crate) fn next(&self) -> u64 {
        self.last().map_or(0, |last| last + 1)
    }

    /// A number that identifies the set of ids.
    pub(crate) fn stamp(&self) -> u64 {
        *self.stamp.get_or_init(|| {
            let mut rows = self.live_rows();
            let mut sum = 0u64;
            let mut ids = Vec::with_capacity(STAMPED);
            loop {
                ids.clear();
                ids.extend(rows.by_ref().take(STAMPED).map(|row| self.id(row)));
                if ids.is_empty() {
                    return sum;
                }
                sum = sum.wrapping_add(stamp(&ids));
            }
        })
    }

    /// Replaces row numbers in results by ids.
    pub(crate) fn name(&self, rows: &mut [u64]) {
        if !self.ids.is_empty() {
            let named = |row: &mut u64| *row = if *row == NONE { NONE } else { self.ids.get(*row as usize) };
            rows.par_iter_mut().with_min_len(1 << 14).for_each(named);
        }
    }

    /// The place of vectors with these ids, which are ascending and of which the index has none.
    pub(crate) fn room(&self, ids: &[u64]) -> Room {
        let Some(&first) = ids.first() else { return Room::AtTheEnd };
        let next = self.next();
        if first >= next {
            return Room::AtTheEnd;
        }
        let below = &ids[..ids.partition_point(|&id| id < next)];
        if below.iter().all(|&id| self.row(id).is_some()) { Room::InRows } else { Room::Between }
    }

    /// Reserves memory for `more` rows with ids of the caller's, so that [`RowIds::append`] does not fail.
    pub(crate) fn reserve(&mut self, ids: &[u64]) -> Result<()> {
        if self.ids.is_empty() && !self.continues(ids) {
            let mut own = Blocks::default();
            own.reserve(self.rows + ids.len())?;
            own.extend(0..self.rows as u64);
            self.ids = own;
        }
        if !self.ids.is_empty() || !self.continues(ids) {
            self.ids.reserve(ids.len())?;
        }
        if let Some(live) = &mut self.live {
            live.reserve(ids.len())?;
        }
        Ok(())
    }

    /// Whether these ids are the numbers of the next rows.
    fn continues(&self, ids: &[u64]) -> bool {
        ids.iter().copied().eq(self.rows as u64..self.rows as u64 + ids.len() as u64)
    }

    /// Appends rows with these ids, which are ascending and above all others. Call [`RowIds::reserve`] first.
    pub(crate) fn append(&mut self, ids: &[u64]) {
        if !self.ids.is_empty() || !self.continues(ids) {
            self.ids.extend(ids.iter().copied());
        }
        if let Some(live) = &mut self.live {
            live.extend_ones(ids.len());
        }
        self.rows += ids.len();
        self.len += ids.len();
        if let Some(sum) = self.stamp.get_mut() {
            *sum = sum.wrapping_add(stamp(ids));
        }
    }

    /// The rows for `ids` that removed vectors left.
    pub(crate) fn old_rows(&self, ids: &[u64]) -> Vec<usize> {
        ids.iter().filter_map(|&id| self.row(id)).collect()
    }

    /// Marks rows as holding vectors again.
    pub(crate) fn revive(&mut self, rows: &[usize]) {
        if let Some(live) = &mut self.live {
            rows.iter().for_each(|&row| live.set(row, true));
            self.len += rows.len();
        }
        if self.len == self.rows {
            self.live = None;
        }
        let added = self.stamp_of(rows);
        if let Some(sum) = self.stamp.get_mut() {
            *sum = sum.wrapping_add(added);
        }
    }

    /// The stamp of the ids of these rows; 0 if the stamp of all ids is not known, and thus of no use.
    fn stamp_of(&self, rows: &[usize]) -> u64 {
        if self.stamp.get().is_none() {
            return 0;
        }
        rows.chunks(STAMPED)
            .map(|rows| stamp(&rows.iter().map(|&row| self.id(row)).collect::<Vec<u64>>()))
            .fold(0, u64::wrapping_add)
    }

    /// Removes the vectors of these rows, which hold some, and drops rows at the end.
    pub(crate) fn remove(&mut self, rows: &[usize]) -> Result<()> {
        if rows.is_empty() {
            return Ok(());
        }
        let removed = self.stamp_of(rows);
        let live = match &mut self.live {
            Some(live) => live,
            None => self.live.insert(Bitset::ones(self.rows)?),
        };
        rows.iter().for_each(|&row| live.set(row, false));
        self.len -= rows.len();
        while self.rows > 0 && !live.get(self.rows - 1) {
            self.rows -= 1;
        }
        live.truncate(self.rows);
        if !self.ids.is_empty() {
            self.ids.truncate(self.rows);
        }
        if self.len == self.rows {
            self.live = None;
        }
        if let Some(sum) = self.stamp.get_mut() {
            *sum = sum.wrapping_sub(removed);
        }
        Ok(())
    }

    /// The ids after the rows that removed vectors left are gone.
    pub(crate) fn compacted(&self) -> Result<RowIds> {
        Ok(RowIds { stamp: self.stamp.clone(), ..RowIds::of(&self.all()?)? })
    }

    /// Rows with these ids, which are ascending.
    pub(crate) fn of(ids: &[u64]) -> Result<RowIds> {
        Blocks::of(ids).map(RowIds::of_blocks)
    }

    /// As [`RowIds::of`], for ids that are in blocks.
    pub(crate) fn of_blocks(ids: Blocks<u64>) -> RowIds {
        let rows = ids.len();
        let are_rows = rows == 0 || ids.get(rows - 1) == rows as u64 - 1;
        let ids = if are_rows { Blocks::default() } else { ids };
        RowIds { ids, rows, live: None, len: rows, stamp: OnceLock::new() }
    }

    /// `rows` rows, whose ids are their numbers.
    pub(crate) fn counting(rows: usize) -> RowIds {
        RowIds { rows, len: rows, ..RowIds::default() }
    }

    /// Bytes that the ids and the bits of removed rows take.
    pub(crate) fn bytes(&self) -> u64 {
        self.ids.bytes() + self.live.as_ref().map_or(0, |live| size_of_val(live.words()) as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use test_random::Random;

    /// The rows as pairs of an id and whether the row holds a vector.
    type Model = Vec<(u64, bool)>;

    fn live_ids(model: &Model) -> Vec<u64> {
        model.iter().filter(|(_, live)| *live).map(|&(id, _)| id).collect()
    }

    fn check(rows: &RowIds, model: &Model) {
        let all = live_ids(model);
        assert_eq!((rows.rows(), rows.len(), rows.removed()), (model.len(), all.len(), model.len() - all.len()));
        assert_eq!(rows.all().unwrap(), all);
        let live: Vec<usize> = (0..model.len()).filter(|&row| model[row].1).collect();
        assert_eq!(rows.live_rows().collect::<Vec<_>>(), live);
        assert_eq!(rows.live().is_some(), all.len() < model.len());
        assert_eq!(
            (rows.last(), rows.next()),
            (model.last().map(|last| last.0), model.last().map_or(0, |last| last.0 + 1))
        );
        for (row, &(id, live)) in model.iter().enumerate() {
            assert_eq!((rows.id(row), rows.find(id)), (id, live.then_some(row)));
            if !model.iter().any(|other| other.0 == id + 1) {
                assert_eq!(rows.find(id + 1), None);
            }
        }
        let names: Vec<u64> = model.iter().map(|row| row.0).collect();
        match rows.names().unwrap() {
            None => assert!(rows.are_rows() && names.iter().copied().eq(0..names.len() as u64)),
            Some(own) => assert!(!rows.are_rows() && own == names),
        }
        let least = if rows.are_rows() { 0 } else { 8 * model.len() };
        let bits = rows.live().map_or(0, |_| 8 * model.len().div_ceil(64));
        assert!(rows.bytes() >= (least + bits) as u64, "{} bytes", rows.bytes());
        assert_eq!(rows.stamp(), all.iter().fold(0u64, |sum, &id| sum.wrapping_add(stamp(&[id]))));
    }

    /// Adds vectors as an index does.
    fn add(rows: &mut RowIds, model: &mut Model, ids: &[u64]) {
        let next = model.last().map_or(0, |last| last.0 + 1);
        let place = |id: u64| model.iter().position(|row| row.0 == id);
        let below: Vec<u64> = ids.iter().copied().filter(|&id| id < next).collect();
        let expected = match below.iter().all(|&id| place(id).is_some()) {
            _ if below.is_empty() => Room::AtTheEnd,
            true => Room::InRows,
            false => Room::Between,
        };
        assert_eq!(rows.room(ids), expected, "{ids:?} into {model:?}");
        if expected == Room::Between {
            let mut all = [live_ids(model), ids.to_vec()].concat();
            all.sort_unstable();
            *rows = RowIds::of(&all).unwrap();
            *model = all.into_iter().map(|id| (id, true)).collect();
            return;
        }
        let old: Vec<usize> = below.iter().filter_map(|&id| place(id)).collect();
        assert_eq!(rows.old_rows(ids), old);
        let above = &ids[below.len()..];
        rows.reserve(above).unwrap();
        rows.revive(&old);
        rows.append(above);
        old.into_iter().for_each(|row| model[row].1 = true);
        model.extend(above.iter().map(|&id| (id, true)));
    }

    #[test]
    fn rows_follow_additions_and_removals() {
        for seed in 0..200 {
            let mut random = Random::new(seed);
            let (mut rows, mut model) = if seed % 3 == 0 {
                (RowIds::counting(70), (0..70).map(|id| (id, true)).collect())
            } else {
                (RowIds::default(), Model::new())
            };
            for _ in 0..30 {
                let next = model.last().map_or(0, |last| last.0 + 1);
                match random.below(6) {
                    // After the last row, with and without gaps.
                    0 | 1 => {
                        let (count, step) = (random.below(40) as u64, random.pick(&[1, 1, 3]));
                        let ids: Vec<u64> = (0..count).map(|at| next + at * step).collect();
                        add(&mut rows, &mut model, &ids);
                    }
                    // Ids of removed vectors, others, and the next one.
                    2 => {
                        let held = live_ids(&model);
                        let share = random.pick(&[1, 2, 8]);
                        let dead = model.iter().map(|row| row.0).filter(|id| !held.contains(id));
                        let mut ids: Vec<u64> = dead.filter(|_| random.below(share) == 0).collect();
                        ids.extend([next, random.below(next as usize + 9) as u64].iter().take(random.below(3)));
                        ids.retain(|id| !held.contains(id));
                        ids.sort_unstable();
                        ids.dedup();
                        add(&mut rows, &mut model, &ids);
                    }
                    3 | 4 => {
                        let share = random.pick(&[1, 2, 8, 40]);
                        let live = (0..model.len()).filter(|&row| model[row].1);
                        let removed: Vec<usize> = live.filter(|_| random.below(share) == 0).collect();
                        rows.remove(&removed).unwrap();
                        removed.into_iter().for_each(|row| model[row].1 = false);
                        while model.last().is_some_and(|last| !last.1) {
                            model.pop();
                        }
                    }
                    _ => {
                        rows = if random.below(2) == 0 { rows.compacted().unwrap() } else { rows.shared().unwrap() };
                        if rows.removed() == 0 {
                            model.retain(|row| row.1);
                        }
                    }
                }
                // The stamp is carried on from time to time, and computed anew otherwise.
                if random.below(2) == 0 {
                    check(&rows, &model);
                } else {
                    check(&RowIds { stamp: OnceLock::new(), ..rows.shared().unwrap() }, &model);
                }
            }
        }
    }
}
