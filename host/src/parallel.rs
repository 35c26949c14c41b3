//! Parallel loops over slices, chunks of slices and numbers, on rayon's pool.
//!
//! # Why not rayon's iterators
//! Rayon compiles a parallel loop as a dozen generic functions for each place where one is written and each type that
//! the place is generic over: the recursion that halves the loop, the two jobs of each half, how a job is stolen, how a
//! panic comes back. In November 2026 the library had 562 copies of that, half of the code that LLVM was given. Here
//! the halving exists once ([`for_ranges`]): a loop is a number of turns and a function that does a range of them. Only
//! the inner loop over a range is compiled for each place, with the work inlined.
//!
//! Loops are cut as rayon cuts them, by its own code: shared out anew where a thread steals, never below `with_min_len`
//! turns, never above `with_max_len`.
//!
//! # What is here
//! Slices and numbers have the methods that rayon gives them ([`ParallelSlice`], [`turns`]), and loops are combined and
//! run by the methods of [`Loop`], with rayon's names. Loops that compile once in all may as well use rayon.
//!
//! If work panics, the panic goes on in the caller as it does in rayon. What a [`Loop::collect`] had already collected
//! is leaked then.

use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use rayon::iter::plumbing::{Consumer, Folder, Producer, Reducer, bridge_producer_consumer};

/// How many turns of a loop a thread does one after the other.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Lengths {
    /// Smallest number of turns of a range, unless the loop is shorter.
    min: usize,
    /// Largest number of turns of a range.
    max: usize,
}

impl Lengths {
    const ANY: Lengths = Lengths { min: 1, max: usize::MAX };

    fn and(self, other: Lengths) -> Lengths {
        Lengths { min: self.min.max(other.min), max: self.max.min(other.max) }
    }
}

/// Does `work` for ranges that are disjoint and together 0..`count`, at the same time where threads are free. One range
/// and no other thread where `count` is not worth a cut.
#[inline(never)]
pub(crate) fn for_ranges(count: usize, lengths: Lengths, work: &(dyn Fn(Range<usize>) + Sync)) {
    if count > 0 {
        bridge_producer_consumer(count, Ranges { range: 0..count, lengths }, Work(work));
    }
}

/// A part of a loop; gives its range as one item.
struct Ranges {
    range: Range<usize>,
    lengths: Lengths,
}

impl Producer for Ranges {
    type Item = Range<usize>;
    type IntoIter = std::iter::Once<Range<usize>>;

    fn into_iter(self) -> Self::IntoIter {
        std::iter::once(self.range)
    }

    fn min_len(&self) -> usize {
        self.lengths.min
    }

    fn max_len(&self) -> usize {
        self.lengths.max
    }

    fn split_at(self, index: usize) -> (Self, Self) {
        let middle = self.range.start + index;
        let part = |range| Ranges { range, lengths: self.lengths };
        (part(self.range.start..middle), part(middle..self.range.end))
    }
}

/// The work for each range.
#[derive(Clone, Copy)]
struct Work<'a>(&'a (dyn Fn(Range<usize>) + Sync));

impl Consumer<Range<usize>> for Work<'_> {
    type Folder = Self;
    type Reducer = Nothing;
    type Result = ();

    fn split_at(self, _: usize) -> (Self, Self, Nothing) {
        (self, self, Nothing)
    }

    fn into_folder(self) -> Self {
        self
    }

    fn full(&self) -> bool {
        false
    }
}

impl Folder<Range<usize>> for Work<'_> {
    type Result = ();

    fn consume(self, range: Range<usize>) -> Self {
        (self.0)(range);
        self
    }

    fn complete(self) {}

    fn full(&self) -> bool {
        false
    }
}

/// The results of ranges put together: there are none.
struct Nothing;

impl Reducer<()> for Nothing {
    fn reduce(self, (): (), (): ()) {}
}

/// A loop: `count` turns, each of which has an item.
pub(crate) trait Loop: Sized + Sync {
    /// The item of a turn.
    type Item;

    /// Number of turns: the same in each call.
    fn count(&self) -> usize;

    /// How the loop may be cut.
    fn lengths(&self) -> Lengths {
        Lengths::ANY
    }

    /// The item of turn `at`.
    ///
    /// # Safety
    /// `at` is below [`count`](Loop::count), and it is taken once.
    unsafe fn item(&self, at: usize) -> Self::Item;

    /// At least `min` turns of the loop one after the other.
    fn with_min_len(self, min: usize) -> Bounded<Self> {
        let lengths = self.lengths().and(Lengths { min, max: usize::MAX });
        Bounded { of: self, lengths }
    }

    /// At most `max` turns of the loop one after the other.
    fn with_max_len(self, max: usize) -> Bounded<Self> {
        let lengths = self.lengths().and(Lengths { min: 1, max });
        Bounded { of: self, lengths }
    }

    /// Both items in each turn; as many turns as the shorter loop has.
    fn zip<L: Loop>(self, other: L) -> Zip<Self, L> {
        Zip(self, other)
    }

    /// The number of each turn, and its item.
    fn enumerate(self) -> Enumerate<Self> {
        Enumerate(self)
    }

    /// A loop whose items are the results of `work` for the items of this one.
    fn map<V, F: Fn(Self::Item) -> V + Sync>(self, work: F) -> Map<Self, F> {
        Map(self, work)
    }

    /// Does `work` with each item.
    #[inline]
    fn for_each(self, work: impl Fn(Self::Item) + Sync) {
        for_ranges(self.count(), self.lengths(), &|range| {
            for at in range {
                // SAFETY: ranges are disjoint and below `count`.
                work(unsafe { self.item(at) });
            }
        });
    }

    /// Does `work` with each item and with what `init` makes for each range of turns.
    #[inline]
    fn for_each_init<S>(self, init: impl Fn() -> S + Sync, work: impl Fn(&mut S, Self::Item) + Sync) {
        for_ranges(self.count(), self.lengths(), &|range| {
            let mut state = init();
            for at in range {
                // SAFETY: ranges are disjoint and below `count`.
                work(&mut state, unsafe { self.item(at) });
            }
        });
    }

    /// All items, in order.
    #[inline]
    fn collect(self) -> Vec<Self::Item>
    where
        Self::Item: Send,
    {
        let mut values = Vec::new();
        self.collect_into_vec(&mut values);
        values
    }

    /// Replaces what `values` holds by all items, in order. Its memory is kept if it is large enough.
    #[inline]
    fn collect_into_vec(self, values: &mut Vec<Self::Item>)
    where
        Self::Item: Send,
    {
        self.map_init(|| (), |(), item| item, values);
    }

    /// Replaces what `values` holds by what `work` makes of all items, in order, with what `init` makes for each range
    /// of turns.
    #[inline]
    fn map_init<S, V: Send>(
        self,
        init: impl Fn() -> S + Sync,
        work: impl Fn(&mut S, Self::Item) -> V + Sync,
        values: &mut Vec<V>,
    ) {
        let count = self.count();
        values.clear();
        values.reserve_exact(count);
        let slots = &mut values.spare_capacity_mut()[..count];
        self.zip(slots.par_iter_mut()).for_each_init(init, |state, (item, slot): (_, &mut MaybeUninit<V>)| {
            slot.write(work(state, item));
        });
        // SAFETY: each of the `count` turns wrote its slot.
        unsafe { values.set_len(count) };
    }

    /// `combine` over all items, which must not depend on how they are grouped. Items are combined in order.
    #[inline]
    fn reduce(
        self,
        identity: impl Fn() -> Self::Item + Sync,
        combine: impl Fn(Self::Item, Self::Item) -> Self::Item + Sync,
    ) -> Self::Item
    where
        Self::Item: Send,
    {
        self.fold(identity, &combine, &combine)
    }

    /// All items added by `add` to what `empty` makes for each range of turns, and the results of ranges by `combine`,
    /// in order. The result must not depend on how the loop is cut.
    #[inline]
    fn fold<V: Send>(
        self,
        empty: impl Fn() -> V + Sync,
        add: impl Fn(V, Self::Item) -> V + Sync,
        combine: impl Fn(V, V) -> V,
    ) -> V {
        let parts = Mutex::new(Vec::new());
        for_ranges(self.count(), self.lengths(), &|range| {
            let start = range.start;
            // SAFETY: ranges are disjoint and below `count`.
            let part = range.fold(empty(), |part, at| add(part, unsafe { self.item(at) }));
            parts.lock().unwrap_or_else(PoisonError::into_inner).push((start, part));
        });
        let mut parts = parts.into_inner().unwrap_or_else(PoisonError::into_inner);
        parts.sort_unstable_by_key(|&(start, _)| start);
        parts.into_iter().map(|(_, part)| part).reduce(combine).unwrap_or_else(empty)
    }

    /// The first turn whose item `found` holds for. Turns behind one that was found may be left out.
    #[inline]
    fn position_first(self, found: impl Fn(Self::Item) -> bool + Sync) -> Option<usize> {
        let first = AtomicUsize::new(usize::MAX);
        for_ranges(self.count(), self.lengths(), &|range| {
            for at in range {
                // SAFETY: ranges are disjoint and below `count`.
                if at >= first.load(Ordering::Relaxed) || found(unsafe { self.item(at) }) {
                    first.fetch_min(at, Ordering::Relaxed);
                    return;
                }
            }
        });
        Some(first.into_inner()).filter(|&first| first != usize::MAX)
    }
}

/// See [`Loop::with_min_len`] and [`Loop::with_max_len`].
pub(crate) struct Bounded<L> {
    of: L,
    lengths: Lengths,
}

impl<L: Loop> Loop for Bounded<L> {
    type Item = L::Item;

    fn count(&self) -> usize {
        self.of.count()
    }

    fn lengths(&self) -> Lengths {
        self.lengths
    }

    #[inline(always)]
    unsafe fn item(&self, at: usize) -> L::Item {
        // SAFETY: the same contract.
        unsafe { self.of.item(at) }
    }
}

/// See [`Loop::zip`].
pub(crate) struct Zip<A, B>(A, B);

impl<A: Loop, B: Loop> Loop for Zip<A, B> {
    type Item = (A::Item, B::Item);

    fn count(&self) -> usize {
        self.0.count().min(self.1.count())
    }

    fn lengths(&self) -> Lengths {
        self.0.lengths().and(self.1.lengths())
    }

    #[inline(always)]
    unsafe fn item(&self, at: usize) -> (A::Item, B::Item) {
        // SAFETY: below both counts, and each of the two is taken as often as this.
        unsafe { (self.0.item(at), self.1.item(at)) }
    }
}

/// See [`Loop::enumerate`].
pub(crate) struct Enumerate<L>(L);

impl<L: Loop> Loop for Enumerate<L> {
    type Item = (usize, L::Item);

    fn count(&self) -> usize {
        self.0.count()
    }

    fn lengths(&self) -> Lengths {
        self.0.lengths()
    }

    #[inline(always)]
    unsafe fn item(&self, at: usize) -> (usize, L::Item) {
        // SAFETY: the same contract.
        (at, unsafe { self.0.item(at) })
    }
}

/// See [`Loop::map`].
pub(crate) struct Map<L, F>(L, F);

impl<L: Loop, V, F: Fn(L::Item) -> V + Sync> Loop for Map<L, F> {
    type Item = V;

    fn count(&self) -> usize {
        self.0.count()
    }

    fn lengths(&self) -> Lengths {
        self.0.lengths()
    }

    #[inline(always)]
    unsafe fn item(&self, at: usize) -> V {
        // SAFETY: the same contract.
        (self.1)(unsafe { self.0.item(at) })
    }
}

/// The numbers of a range, one a turn.
pub(crate) fn turns(numbers: Range<usize>) -> Turns {
    Turns(numbers)
}

/// See [`turns`].
pub(crate) struct Turns(Range<usize>);

impl Loop for Turns {
    type Item = usize;

    fn count(&self) -> usize {
        self.0.len()
    }

    #[inline(always)]
    unsafe fn item(&self, at: usize) -> usize {
        self.0.start + at
    }
}

/// Values that a loop takes from their owner, one a turn.
pub(crate) fn owned<T: Send>(values: Vec<T>) -> Owned<T> {
    Owned(values.into_iter().map(|value| Mutex::new(Some(value))).collect())
}

/// See [`owned`].
pub(crate) struct Owned<T>(Vec<Mutex<Option<T>>>);

impl<T: Send> Loop for Owned<T> {
    type Item = T;

    fn count(&self) -> usize {
        self.0.len()
    }

    #[inline]
    unsafe fn item(&self, at: usize) -> T {
        let value = self.0[at].lock().unwrap_or_else(PoisonError::into_inner).take();
        value.expect("an item is taken once")
    }
}

/// Loops over a slice.
pub(crate) trait ParallelSlice<T> {
    /// A loop over references to the elements.
    fn par_iter(&self) -> Items<'_, T>;
    /// A loop over mutable references to the elements.
    fn par_iter_mut(&mut self) -> ItemsMut<'_, T>;
    /// Chunks of `size` elements, the last of what is left.
    fn par_chunks(&self, size: usize) -> Chunks<'_, T>;
    /// Chunks of `size` elements; what is left is left out.
    fn par_chunks_exact(&self, size: usize) -> Chunks<'_, T>;
    /// As [`par_chunks`](ParallelSlice::par_chunks), to change.
    fn par_chunks_mut(&mut self, size: usize) -> ChunksMut<'_, T>;
    /// As [`par_chunks_exact`](ParallelSlice::par_chunks_exact), to change.
    fn par_chunks_exact_mut(&mut self, size: usize) -> ChunksMut<'_, T>;
    /// Sorts the elements, equal ones in any order.
    fn par_sort_unstable(&mut self)
    where
        T: Ord + Send;
}

impl<T> ParallelSlice<T> for [T] {
    fn par_iter(&self) -> Items<'_, T> {
        Items(self)
    }

    fn par_iter_mut(&mut self) -> ItemsMut<'_, T> {
        ItemsMut(Places::new(self))
    }

    fn par_chunks(&self, size: usize) -> Chunks<'_, T> {
        assert_ne!(size, 0, "a chunk has elements");
        Chunks { values: self, size }
    }

    fn par_chunks_exact(&self, size: usize) -> Chunks<'_, T> {
        assert_ne!(size, 0, "a chunk has elements");
        Chunks { values: &self[..self.len() / size * size], size }
    }

    fn par_chunks_mut(&mut self, size: usize) -> ChunksMut<'_, T> {
        assert_ne!(size, 0, "a chunk has elements");
        ChunksMut { places: Places::new(self), size }
    }

    fn par_chunks_exact_mut(&mut self, size: usize) -> ChunksMut<'_, T> {
        assert_ne!(size, 0, "a chunk has elements");
        let whole = self.len() / size * size;
        ChunksMut { places: Places::new(&mut self[..whole]), size }
    }

    fn par_sort_unstable(&mut self)
    where
        T: Ord + Send,
    {
        rayon::slice::ParallelSliceMut::par_sort_unstable(self);
    }
}

/// See [`ParallelSlice::par_iter`].
pub(crate) struct Items<'a, T>(&'a [T]);

impl<'a, T: Sync> Loop for Items<'a, T> {
    type Item = &'a T;

    fn count(&self) -> usize {
        self.0.len()
    }

    #[inline(always)]
    unsafe fn item(&self, at: usize) -> &'a T {
        // SAFETY: the caller keeps `at` below `count`.
        unsafe { self.0.get_unchecked(at) }
    }
}

/// See [`ParallelSlice::par_chunks`].
pub(crate) struct Chunks<'a, T> {
    values: &'a [T],
    size: usize,
}

impl<'a, T: Sync> Loop for Chunks<'a, T> {
    type Item = &'a [T];

    fn count(&self) -> usize {
        self.values.len().div_ceil(self.size)
    }

    #[inline(always)]
    unsafe fn item(&self, at: usize) -> &'a [T] {
        let start = at * self.size;
        &self.values[start..start + self.size.min(self.values.len() - start)]
    }
}

/// A borrowed slice whose elements are handed out one by one.
struct Places<'a, T> {
    first: *mut T,
    len: usize,
    borrowed: PhantomData<&'a mut [T]>,
}

// SAFETY: a `Places` gives each element to one thread at most (the contract of `Loop::item`), as `&mut T`, which
// `T: Send` allows.
unsafe impl<T: Send> Sync for Places<'_, T> {}

impl<'a, T> Places<'a, T> {
    fn new(values: &'a mut [T]) -> Self {
        Places { first: values.as_mut_ptr(), len: values.len(), borrowed: PhantomData }
    }

    /// Elements `start` to `start` + `count`.
    ///
    /// # Safety
    /// They are elements of the slice, and none of them is taken twice.
    #[inline(always)]
    unsafe fn take(&self, start: usize, count: usize) -> &'a mut [T] {
        // SAFETY: the elements are there, borrowed mutably for 'a, and nobody else has a reference to them (the
        // contract).
        unsafe { std::slice::from_raw_parts_mut(self.first.add(start), count) }
    }
}

/// See [`ParallelSlice::par_iter_mut`].
pub(crate) struct ItemsMut<'a, T>(Places<'a, T>);

impl<'a, T: Send> Loop for ItemsMut<'a, T> {
    type Item = &'a mut T;

    fn count(&self) -> usize {
        self.0.len
    }

    #[inline(always)]
    unsafe fn item(&self, at: usize) -> &'a mut T {
        // SAFETY: `at` is below the length and taken once: the contract.
        unsafe { &mut *self.0.first.add(at) }
    }
}

/// See [`ParallelSlice::par_chunks_mut`].
pub(crate) struct ChunksMut<'a, T> {
    places: Places<'a, T>,
    size: usize,
}

impl<'a, T: Send> Loop for ChunksMut<'a, T> {
    type Item = &'a mut [T];

    fn count(&self) -> usize {
        self.places.len.div_ceil(self.size)
    }

    #[inline(always)]
    unsafe fn item(&self, at: usize) -> &'a mut [T] {
        let start = at * self.size;
        // SAFETY: `at` is below `count`, so the chunk starts inside the slice and ends there; chunks of two numbers
        // share no element, and each is taken once.
        unsafe { self.places.take(start, self.size.min(self.places.len - start)) }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::thread;

    use super::*;

    /// In pools of one thread and of several.
    fn in_pools(work: impl Fn() + Sync) {
        for threads in [1, 4] {
            rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap().install(&work);
        }
    }

    #[test]
    fn every_turn_is_done_once() {
        in_pools(|| {
            for count in [0, 1, 2, 7, 1_000] {
                let mut values = vec![0u32; count];
                values.par_iter_mut().enumerate().for_each(|(at, value)| *value += at as u32);
                assert_eq!(values, (0..count as u32).collect::<Vec<_>>());
                assert_eq!(turns(3..3 + count).collect(), (3..3 + count).collect::<Vec<_>>());
                for size in [1, 3, 2_000] {
                    let expected: Vec<Vec<u32>> = values.chunks(size).map(<[u32]>::to_vec).collect();
                    assert_eq!(values.par_chunks(size).map(<[u32]>::to_vec).collect(), expected);
                    assert_eq!(values.par_chunks_mut(size).map(|chunk| chunk.to_vec()).collect(), expected);
                    let expected: Vec<Vec<u32>> = values.chunks_exact(size).map(<[u32]>::to_vec).collect();
                    assert_eq!(values.par_chunks_exact(size).map(<[u32]>::to_vec).collect(), expected);
                    assert_eq!(values.par_chunks_exact_mut(size).map(|chunk| chunk.to_vec()).collect(), expected);
                }
                let names: Vec<String> = values.iter().map(u32::to_string).collect();
                assert_eq!(owned(names.clone()).collect(), names);
                let pairs =
                    names.par_iter().zip(values.par_iter()).zip(turns(0..500)).map(|((a, &b), c)| (a.len(), b, c));
                let expected: Vec<_> =
                    names.iter().zip(&values).zip(0..500).map(|((a, &b), c)| (a.len(), b, c)).collect();
                assert_eq!(pairs.collect(), expected);
            }
        });
    }

    #[test]
    fn results_are_combined_in_order() {
        in_pools(|| {
            let text = turns(0..300).with_max_len(7).map(|at| at.to_string()).reduce(String::new, |a, b| a + &b);
            assert_eq!(text, (0..300).map(|at| at.to_string()).collect::<String>());
            assert_eq!(turns(0..0).reduce(|| 7, usize::max), 7);
            let mut lengths = Vec::new();
            turns(0..300).map_init(
                Vec::new,
                |seen, at| {
                    seen.push(at);
                    seen.len()
                },
                &mut lengths,
            );
            assert_eq!((lengths.len(), lengths[0]), (300, 1));
        });
    }

    #[test]
    fn the_first_turn_is_found() {
        in_pools(|| {
            for first in [0, 1, 499, 998, 999] {
                assert_eq!(turns(0..1_000).with_max_len(3).position_first(|at| at >= first), Some(first));
            }
            assert_eq!(turns(0..1_000).position_first(|at| at == 1_000), None);
        });
    }

    /// How a loop was cut.
    fn ranges(count: usize, lengths: Lengths) -> Vec<Range<usize>> {
        let ranges = Mutex::new(Vec::new());
        for_ranges(count, lengths, &|range| ranges.lock().unwrap().push(range));
        let mut ranges = ranges.into_inner().unwrap();
        ranges.sort_by_key(|range| range.start);
        ranges
    }

    #[test]
    fn loops_are_cut_as_they_say() {
        in_pools(|| {
            let numbers = turns(0..1_000);
            assert_eq!(
                ranges(1_000, numbers.with_max_len(1).lengths()),
                (0..1_000).map(|at| at..at + 1).collect::<Vec<_>>()
            );
            for range in ranges(1_000, turns(0..1_000).with_min_len(300).zip(turns(0..2_000)).enumerate().lengths()) {
                assert!(range.len() >= 300, "{range:?}");
            }
            assert_eq!(ranges(1_000, turns(0..1_000).with_min_len(501).lengths()).len(), 1);
            let both = turns(0..9).with_max_len(5).zip(turns(0..9).with_min_len(2).with_max_len(8)).lengths();
            assert_eq!((both.min, both.max), (2, 5));
            assert!(ranges(0, Lengths::ANY).is_empty());
        });
    }

    #[test]
    fn a_loop_that_is_worth_no_cut_stays_on_its_thread() {
        let here = thread::current().id();
        turns(0..100).with_min_len(100).for_each(|_| assert_eq!(thread::current().id(), here));
        let threads: HashSet<_> =
            turns(0..100).with_max_len(1).map(|_| thread::current().id()).collect().into_iter().collect();
        assert!(!threads.contains(&here), "a loop that is cut goes into the pool");
    }

    #[test]
    fn a_panic_goes_on_in_the_caller() {
        in_pools(|| {
            let found = catch_unwind(AssertUnwindSafe(|| {
                turns(0..100)
                    .with_max_len(1)
                    .map(|at| if at == 57 { panic!("turn {at}") } else { at.to_string() })
                    .collect()
            }));
            assert_eq!(found.unwrap_err().downcast_ref::<String>().map(String::as_str), Some("turn 57"));
        });
    }
}
