//! The requests that wait, in groups that one search can answer.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use super::answer::Ticket;
use super::request::{Request, SharedFilter};
use crate::{Element, Filter, Scan, SearchOptions};

/// A request that waits for its search.
pub(super) struct Pending<T> {
    pub request: Request<T>,
    pub slot: Ticket,
    /// Whether one search may have it together with requests under other filters.
    pub shares_filters: bool,
}

/// Equal for requests that one search can answer.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Group {
    /// The power of two that has room for k: results of a search for 100 are not made for requests of 10.
    k: usize,
    probes: Option<usize>,
    beam: Option<usize>,
    widen: bool,
    scan: Scan,
    filter: Option<Place>,
}

/// The form of a filter and its place in memory. Filters in one place are the same one, because requests that wait hold
/// theirs.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Place {
    /// Any filter: one search may have several.
    Shared,
    Bits(usize),
    Ids(usize, usize),
    Except(usize, usize),
    Function(usize),
    /// The filter of the request with this number alone: functions without captured values may share a place, and a
    /// list of one filter for each query says nothing of it.
    Alone(u64),
}

impl Group {
    /// The group of the request with this number.
    fn of<T: Element>(pending: &Pending<T>, number: u64) -> Group {
        let request = &pending.request;
        // Each row is cut to its radius afterwards, and without a refiner the candidates of one have no effect.
        let SearchOptions { probes, filter, widen, scan, beam, refine: _, prove: _, radius: _ } =
            request.search_options();
        let filter = filter.map(|filter| match (filter, &request.filter) {
            _ if pending.shares_filters => Place::Shared,
            (Filter::Bits(bits), _) => Place::Bits(std::ptr::from_ref(bits).addr()),
            (Filter::Ids(ids), _) => Place::Ids(ids.as_ptr().addr(), ids.len()),
            (Filter::Except(ids), _) => Place::Except(ids.as_ptr().addr(), ids.len()),
            (Filter::Function(_), Some(SharedFilter::Function(function))) => {
                // In an Arc there are counters before the function, so no two have one place.
                Place::Function(Arc::as_ptr(function).cast::<u8>().addr())
            }
            (Filter::Function(_) | Filter::Each(_), _) => Place::Alone(number),
        });
        Group { k: request.k.checked_next_power_of_two().unwrap_or(request.k), probes, beam, widen, scan, filter }
    }
}

/// The requests that wait. The oldest is served first, with the others of its group.
pub(super) struct Queue<T> {
    /// Each request with its number; groups are not empty.
    groups: HashMap<Group, VecDeque<(u64, Pending<T>)>>,
    /// The groups by the number of their oldest request.
    oldest: BTreeMap<u64, Group>,
    /// Number of requests that have come.
    arrived: u64,
}

impl<T> Default for Queue<T> {
    fn default() -> Self {
        Queue { groups: HashMap::new(), oldest: BTreeMap::new(), arrived: 0 }
    }
}

impl<T: Element> Queue<T> {
    pub fn push(&mut self, pending: Pending<T>) {
        let number = self.arrived;
        let group = Group::of(&pending, number);
        let waiting = self.groups.entry(group).or_default();
        if waiting.is_empty() {
            self.oldest.insert(number, group);
        }
        waiting.push_back((number, pending));
        self.arrived = number + 1;
    }

    /// Takes the oldest request and those of its group that follow it, `most` in all, in the order of arrival.
    pub fn take(&mut self, most: usize, to: &mut Vec<Pending<T>>) {
        let Some((_, group)) = self.oldest.pop_first() else { return };
        let Some(waiting) = self.groups.get_mut(&group) else { return };
        let count = most.min(waiting.len());
        to.extend(waiting.drain(..count).map(|(_, pending)| pending));
        match waiting.front() {
            Some(&(number, _)) => drop(self.oldest.insert(number, group)),
            None => drop(self.groups.remove(&group)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Bitset;
    use crate::serving::answer::Slot;

    fn request(query: f32, k: usize) -> Request<f32> {
        Request::new([query], k)
    }

    fn pushed(requests: impl IntoIterator<Item = Request<f32>>, shares_filters: bool) -> Queue<f32> {
        let mut queue = Queue::default();
        for request in requests {
            queue.push(Pending { request, slot: Ticket(Slot::new(None)), shares_filters });
        }
        queue
    }

    /// The first components of the batches in the order in which they are taken.
    fn batches(mut queue: Queue<f32>, most: usize) -> Vec<Vec<f32>> {
        let mut all = Vec::new();
        let len = |queue: &Queue<f32>| queue.groups.values().map(VecDeque::len).sum::<usize>();
        while !queue.groups.is_empty() {
            let (before, mut batch) = (len(&queue), Vec::new());
            queue.take(most, &mut batch);
            assert_eq!(len(&queue) + batch.len(), before);
            all.push(batch.iter().map(|pending| pending.request.query[0]).collect());
        }
        assert!(queue.oldest.is_empty());
        all
    }

    #[test]
    fn the_oldest_request_is_served_first_with_those_of_its_group() {
        let probes = |query, probes| request(query, 10).options(SearchOptions::new().probes(probes));
        let all = [probes(0.0, 1), probes(1.0, 2), probes(2.0, 1), probes(3.0, 3), probes(4.0, 2), probes(5.0, 1)];
        assert_eq!(batches(pushed(all.clone(), false), 9), [vec![0.0, 2.0, 5.0], vec![1.0, 4.0], vec![3.0]]);
        // What a batch leaves keeps its turn.
        assert_eq!(batches(pushed(all, false), 2), [vec![0.0, 2.0], vec![1.0, 4.0], vec![3.0], vec![5.0]]);
        assert_eq!(batches(pushed([], false), 2), Vec::<Vec<f32>>::new());
    }

    #[test]
    fn a_group_has_one_search() {
        let bits = SharedFilter::from(Bitset::new(3));
        let even = SharedFilter::Function(Arc::new(|id| id % 2 == 0));
        let ids: Arc<[u64]> = [1, 2].into();
        static FUNCTION: fn(u64) -> bool = |id| id > 2;
        let fixed = SearchOptions::new().filter_by(&FUNCTION);
        let all = [
            request(0.0, 10),
            request(1.0, 16).options(SearchOptions::new().radius(2.0)),
            request(2.0, 17),
            request(3.0, 10).filter(bits.clone()),
            request(4.0, 10).filter(Bitset::new(3)),
            request(5.0, 10).filter(bits),
            request(6.0, 10).filter(even.clone()),
            request(7.0, 10).filter(even),
            request(8.0, 10).filter(SharedFilter::Ids(Arc::clone(&ids))),
            request(9.0, 10).filter(SharedFilter::Except(Arc::clone(&ids))),
            request(10.0, 10).filter(SharedFilter::Ids(ids)),
            request(11.0, 10).options(fixed),
            request(12.0, 10).options(fixed),
            request(13.0, 10).options(SearchOptions::new().beam(20)),
            request(14.0, usize::MAX),
        ];
        let expected = [
            vec![0.0, 1.0],
            vec![2.0],
            vec![3.0, 5.0],
            vec![4.0],
            vec![6.0, 7.0],
            vec![8.0, 10.0],
            vec![9.0],
            vec![11.0],
            vec![12.0],
            vec![13.0],
            vec![14.0],
        ];
        assert_eq!(batches(pushed(all.clone(), false), 99), expected);
        // Where filters share a search, those without one and those of other options still have their own.
        let expected =
            [vec![0.0, 1.0], vec![2.0], (3..=12).map(|query| query as f32).collect(), vec![13.0], vec![14.0]];
        assert_eq!(batches(pushed(all, true), 99), expected);
    }
}
