//! Vectors of the lists that get other codes, and perhaps other lists.
//!
//! Each list does all of its steps at once, so threads work on different lists: a vector's list, place and rank lie in
//! a dozen places of memory that no cache has. The steps of 1,000 vectors took 1.3 ms of one thread (16 cores beside an
//! H200, 2026-11-28).

use std::sync::Arc;

use super::address::Address;
use super::directory::Directory;
use super::list::List;
use super::rows_by_list::RowsByList;
use crate::Result;

/// A step of a list with one vector. `row` is its number among those that change.
#[derive(Clone, Copy)]
enum Step {
    /// It gets another code.
    Replace { place: u32, row: usize },
    /// It goes to another list.
    Leave { place: u32 },
    /// It comes from another list.
    Arrive { row: usize },
}

/// The steps of some vectors.
pub(super) struct Moves {
    steps: Vec<Step>,
    by_list: RowsByList,
}

impl Moves {
    /// Those that bring the vectors `rows` with these ids, which are in the `lists` lists and differ, to the lists
    /// `labels`.
    ///
    /// # Errors
    /// [`Error::OutOfHostMemory`](crate::Error::OutOfHostMemory).
    pub(super) fn new(
        directory: &Directory,
        lists: usize,
        rows: &[usize],
        labels: &[u32],
        ids: &[u64],
    ) -> Result<Moves> {
        let (mut steps, mut of_lists) = (Vec::with_capacity(2 * rows.len()), Vec::with_capacity(2 * rows.len()));
        for (row, at) in rows.iter().filter_map(|&row| Some((row, directory.find(ids[row])?))) {
            if at.list == labels[row] {
                steps.push(Step::Replace { place: at.place, row });
                of_lists.push(at.list);
            } else {
                steps.extend([Step::Leave { place: at.place }, Step::Arrive { row }]);
                of_lists.extend([at.list, labels[row]]);
            }
        }
        Ok(Moves { steps, by_list: RowsByList::new(&of_lists, lists)? })
    }

    /// The steps of a list: the places that leave it, the last ones first, and the rows that come.
    fn of_list(&self, numbers: &[u32]) -> (Vec<usize>, Vec<usize>) {
        let steps = numbers.iter().map(|&number| self.steps[number as usize]);
        let leave = |step| if let Step::Leave { place } = step { Some(place as usize) } else { None };
        let arrive = |step| if let Step::Arrive { row } = step { Some(row) } else { None };
        let mut leaving: Vec<usize> = steps.clone().filter_map(leave).collect();
        leaving.sort_unstable_by(|a, b| b.cmp(a));
        (leaving, steps.filter_map(arrive).collect())
    }

    /// Moves vectors that get these codes, one for each id. The memory of their lists is our own and reserved. Returns
    /// the places that hold other vectors then.
    pub(super) fn carry_out(
        &self,
        lists: &mut [Arc<List>],
        directory: &mut Directory,
        codes: &[u8],
        ids: &[u64],
    ) -> Result<Vec<Address>> {
        let (by_list, bytes) = (&self.by_list, codes.len() / ids.len().max(1));
        let code = |row: usize| &codes[row * bytes..][..bytes];
        let lengths: Vec<usize> = by_list.lists().map(|(list, _)| lists[list].ids().len()).collect();
        by_list.each(lists, &|list, numbers| {
            let List { codes, ids: ids_of_list, .. } = List::own(list);
            for &number in numbers {
                if let Step::Replace { place, row } = self.steps[number as usize] {
                    codes.replace(place as usize, code(row));
                }
            }
            let (leaving, arriving) = self.of_list(numbers);
            for place in leaving {
                codes.swap_remove(place);
                ids_of_list.swap_remove(size_of::<u64>(), place);
            }
            codes.append(arriving.len(), |at| code(arriving[at]));
            ids_of_list.append(size_of::<u64>(), arriving.len(), |at| bytemuck::bytes_of(&ids[arriving[at]]));
            Ok(())
        })?;
        let (ranks_of, ranks) = directory.ids_and_lists();
        by_list.each(ranks, &|ranks, numbers| {
            let (leaving, arriving) = self.of_list(numbers);
            let ranks = Arc::make_mut(ranks);
            for place in leaving {
                ranks.swap_remove(place);
            }
            ranks.extend(arriving.into_iter().filter_map(|row| ranks_of.find(ids[row])).map(|rank| rank as u32));
            Ok(())
        })?;
        let mut changed = Vec::with_capacity(2 * self.steps.len());
        for ((list, numbers), before) in by_list.lists().zip(lengths) {
            let after = lists[list].ids().len();
            let leaving = numbers.iter().filter(|&&number| matches!(self.steps[number as usize], Step::Leave { .. }));
            // Behind the vectors that were there and stay, all are new or gone.
            let kept = before - leaving.count();
            let places = numbers.iter().filter_map(|&number| match self.steps[number as usize] {
                Step::Replace { place, .. } | Step::Leave { place } => {
                    Some(place as usize).filter(|&place| place < kept)
                }
                Step::Arrive { .. } => None,
            });
            let places = places.chain(kept..before.max(after));
            changed.extend(places.map(|place| Address { list: list as u32, place: place as u32 }));
        }
        directory.place(&changed);
        Ok(changed)
    }
}
