//! Host memory that an index shares with its snapshots until one of them changes it.
//!
//! A snapshot copies an [`Arc`]. The first change of a value that others have as well copies the value ([`own`]).
//! [`Blocks`] are many values in blocks of [`BLOCK`]: a change copies the blocks that it touches. Where changes touch a
//! few values of all blocks, an older copy becomes the new one ([`catch_up`]): [`former`] says where it comes from.

pub(crate) mod former;
pub(crate) mod journal;

use std::cmp::Ordering;
use std::sync::Arc;

use crate::parallel::{Loop, ParallelSlice};
use crate::threads::work_off;
use crate::{Result, host_memory};

/// The value, which nobody else has. If others have it, `copy` makes another one for the caller; if that fails, nothing
/// changes.
pub(crate) fn own<V>(value: &mut Arc<V>, copy: impl FnOnce(&V) -> Result<V>) -> Result<&mut V> {
    // Nobody can copy the Arc meanwhile: that takes a reference to one of its copies, and the caller has the only one.
    if Arc::strong_count(value) > 1 {
        *value = Arc::new(copy(value)?);
    }
    Ok(Arc::get_mut(value).unwrap_or_else(|| unreachable!("there are no weak references, and no other Arc")))
}

/// As [`own`], for a vector that then has room for `more` further elements.
pub(crate) fn own_with_room<V: Copy>(values: &mut Arc<Vec<V>>, more: usize) -> Result<&mut Vec<V>> {
    let own = own(values, |values| {
        let mut copy = host_memory::with_room(values.len() + more)?;
        copy.extend_from_slice(values);
        Ok(copy)
    })?;
    host_memory::reserve(own, more)?;
    Ok(own)
}

/// A vector that has copies of these Arcs, or of values with an Arc inside.
pub(crate) fn shared<V: Clone>(values: &[V]) -> Result<Vec<V>> {
    let mut copies = host_memory::with_room(values.len())?;
    copies.extend_from_slice(values);
    Ok(copies)
}

/// Makes values those of `current`, `width` of each row: `rows`, which ascend, have changed, and those after the last
/// are new. There may be listed rows that `current` does not have.
pub(crate) fn catch_up<V: Copy + Send + Sync>(
    values: &mut Vec<V>,
    current: &[V],
    rows: &[u32],
    width: usize,
) -> Result<()> {
    values.truncate(current.len());
    let before = values.len();
    host_memory::extend(values, &current[before..])?;
    let rows = &rows[..rows.partition_point(|&row| (row as usize) < before / width)];
    replace_rows(values, rows, width, |_, row| &current[row as usize * width..][..width]);
    Ok(())
}

/// Number of rows that a thread replaces at a time.
const REPLACED: usize = 512;

/// Replaces listed rows, which ascend, of `width` values each: row number i of the list, `rows[i]`, by `with(i,
/// rows[i])`. Rows that lie far apart are not in the cache, so all threads replace some.
pub(crate) fn replace_rows<'a, V: Copy + Send + Sync + 'a>(
    values: &mut [V],
    rows: &[u32],
    width: usize,
    with: impl Fn(usize, u32) -> &'a [V] + Sync,
) {
    let (mut rest, mut end) = (values, 0);
    let mut parts: Vec<(usize, usize, &mut [V], &[u32])> = Vec::new();
    for (number, rows) in rows.chunks(REPLACED).enumerate() {
        let first = rows[0] as usize * width;
        let (_, later) = std::mem::take(&mut rest).split_at_mut(first - end);
        end = (rows[rows.len() - 1] as usize + 1) * width;
        let (part, later) = later.split_at_mut(end - first);
        rest = later;
        parts.push((number * REPLACED, first, part, rows));
    }
    parts.par_iter_mut().for_each(|(number, first, part, rows)| {
        for (at, &row) in rows.iter().enumerate() {
            part[row as usize * width - *first..][..width].copy_from_slice(with(*number + at, row));
        }
    });
}

/// Number of values of a block. Its memory is small for every index, so copying one needs no error.
const BLOCK: usize = 1 << 12;

/// A vector in blocks.
#[derive(Debug)]
pub(crate) struct Blocks<V> {
    /// All but the last in use have [`BLOCK`] values; those after the last are empty.
    blocks: Vec<Arc<Vec<V>>>,
    len: usize,
}

impl<V> Default for Blocks<V> {
    fn default() -> Self {
        Blocks { blocks: Vec::new(), len: 0 }
    }
}

impl<V: Copy + Send + Sync> Blocks<V> {
    /// These values in blocks.
    pub(crate) fn of(values: &[V]) -> Result<Self> {
        let block = |values: &[V]| host_memory::copied(values).map(Arc::new);
        let blocks = host_memory::collected_in_parallel(values.par_chunks(BLOCK).map(block))?;
        Ok(Blocks { blocks: blocks.into_iter().collect::<Result<_>>()?, len: values.len() })
    }

    /// The results of `map` for all values. A lack of memory ends the program.
    pub(crate) fn mapped<W: Sync>(values: &[W], map: impl Fn(&W) -> V + Sync) -> Self {
        let block = |values: &[W]| Arc::new(values.iter().map(&map).collect());
        Blocks { blocks: values.par_chunks(BLOCK).map(block).collect(), len: values.len() }
    }

    /// The same values, in the same blocks until one of the two changes. O(len / [`BLOCK`]).
    pub(crate) fn shared(&self) -> Result<Self> {
        Ok(Blocks { blocks: shared(&self.blocks)?, len: self.len })
    }

    /// Number of values.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no values.
    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The value at a place.
    #[inline]
    pub(crate) fn get(&self, at: usize) -> V {
        self.blocks[at / BLOCK][at % BLOCK]
    }

    /// Replaces the value at a place.
    #[inline]
    pub(crate) fn set(&mut self, at: usize, value: V) {
        Arc::make_mut(&mut self.blocks[at / BLOCK])[at % BLOCK] = value;
    }

    /// Makes the blocks with these places our own, in parallel, ahead of changes there: alone, each change would copy
    /// its block. O(places) if nobody shares them.
    pub(crate) fn own(&mut self, places: impl IntoIterator<Item = usize>) {
        let mut shared: Vec<usize> = places.into_iter().map(|place| place / BLOCK).collect();
        shared.retain(|&number| Arc::strong_count(&self.blocks[number]) > 1);
        if shared.is_empty() {
            return;
        }
        shared.sort_unstable();
        shared.dedup();
        let bytes = shared.len() * BLOCK * size_of::<V>();
        let is_shared = |(number, _): &(usize, &mut Arc<Vec<V>>)| shared.binary_search(number).is_ok();
        work_off(self.blocks.iter_mut().enumerate().filter(is_shared), bytes, |(_, block)| {
            Arc::make_mut(block);
        });
    }

    /// All values, in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = V> {
        self.blocks.iter().flat_map(|block| block.iter().copied())
    }

    /// Makes room for `more` values, so that [`Blocks::extend`] does not fail.
    pub(crate) fn reserve(&mut self, more: usize) -> Result<()> {
        let end = self.len + more;
        let missing = end.div_ceil(BLOCK).saturating_sub(self.blocks.len());
        host_memory::reserve(&mut self.blocks, missing)?;
        self.blocks.extend((0..missing).map(|_| Arc::default()));
        for at in self.len / BLOCK..end.div_ceil(BLOCK) {
            let values = end.min((at + 1) * BLOCK) - self.len.max(at * BLOCK);
            own_with_room(&mut self.blocks[at], values)?;
        }
        Ok(())
    }

    /// Appends values, for which [`Blocks::reserve`] has made room.
    pub(crate) fn extend(&mut self, values: impl IntoIterator<Item = V>) {
        let mut values = values.into_iter().peekable();
        while values.peek().is_some() {
            let at = self.len / BLOCK;
            if at == self.blocks.len() {
                self.blocks.push(Arc::default());
            }
            let block = Arc::make_mut(&mut self.blocks[at]);
            let before = block.len();
            block.extend(values.by_ref().take(BLOCK - before));
            self.len += block.len() - before;
        }
    }

    /// Keeps the first `len` values.
    pub(crate) fn truncate(&mut self, len: usize) {
        if len >= self.len {
            return;
        }
        self.blocks.truncate(len.div_ceil(BLOCK));
        if !len.is_multiple_of(BLOCK)
            && let Some(last) = self.blocks.last_mut()
        {
            Arc::make_mut(last).truncate(len % BLOCK);
        }
        self.len = len;
    }

    /// Bytes of memory that the blocks take, with their room; those shared with other vectors are counted by each.
    pub(crate) fn bytes(&self) -> u64 {
        (self.blocks.iter().map(|block| block.capacity()).sum::<usize>() * size_of::<V>()) as u64
    }
}

impl<V: Copy + Ord + Send + Sync> Blocks<V> {
    /// The place of a value among values that ascend.
    pub(crate) fn binary_search(&self, value: V) -> Option<usize> {
        let used = &self.blocks[..self.len.div_ceil(BLOCK)];
        let block = used.partition_point(|block| block[0] <= value).checked_sub(1)?;
        used[block].binary_search(&value).ok().map(|at| block * BLOCK + at)
    }

    /// Whether the first values are those of `other`. O(len / [`BLOCK`]), and O([`BLOCK`]) for each block that the two
    /// do not share.
    pub(crate) fn start_with(&self, other: &Self) -> bool {
        let same = |(own, other): (&Arc<Vec<V>>, &Arc<Vec<V>>)| {
            Arc::ptr_eq(own, other) || own.get(..other.len()).is_some_and(|own| own.cmp(other) == Ordering::Equal)
        };
        other.len <= self.len && self.blocks.iter().zip(&other.blocks).all(same)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Error;
    use crate::random::Random;

    /// Older values of which some rows have changed, and to which some were added, become the new ones; no other row is
    /// touched.
    #[test]
    fn older_values_catch_up() {
        let mut random = Random::new(7);
        for (rows, more, width) in [(0, 3, 2), (5, 0, 1), (4_000, 700, 3), (3_000, 0, 4)] {
            let older: Vec<u64> = (0..rows * width).map(|_| random.bits()).collect();
            let mut current = older.clone();
            current.extend((0..more * width).map(|_| random.bits()));
            let changed: Vec<u32> = (0..(rows + more) as u32).filter(|_| random.below(2) == 0).collect();
            for &row in &changed {
                current[row as usize * width..][..width].iter_mut().for_each(|value| *value = random.bits());
            }
            let mut values = older.clone();
            catch_up(&mut values, &current, &changed, width).unwrap();
            assert!(values == current, "{rows} rows of {width}");
            // Only what is listed is copied.
            let mut values = older.clone();
            catch_up(&mut values, &vec![1; (rows + more) * width], &changed, width).unwrap();
            for (row, values) in values.chunks(width).enumerate() {
                let listed = row >= rows || changed.contains(&(row as u32));
                let expected = if listed { &vec![1; width] } else { &older[row * width..][..width] };
                assert_eq!(values, expected, "row {row}");
            }
        }
    }

    #[test]
    fn a_value_is_copied_if_others_have_it() {
        let mut value = Arc::new(vec![1, 2]);
        let place = value.as_ptr();
        own_with_room(&mut value, 0).unwrap()[0] = 3;
        assert_eq!((value.as_ptr(), value.as_slice()), (place, [3, 2].as_slice()));
        let mut other = Arc::clone(&value);
        own_with_room(&mut other, 5).unwrap().push(4);
        assert_eq!((value.as_slice(), other.as_slice()), ([3, 2].as_slice(), [3, 2, 4].as_slice()));
        let third = Arc::clone(&other);
        let failed = own(&mut other, |_| Err(Error::OutOfHostMemory { asked: 1 }));
        assert!(failed.is_err() && Arc::ptr_eq(&other, &third));
    }

    /// Random changes of several copies, each against a vector.
    #[test]
    fn blocks_are_a_vector_and_copies_are_independent() {
        let mut random = Random::new(5);
        let mut all: Vec<(Vec<u64>, Blocks<u64>)> = vec![(Vec::new(), Blocks::default())];
        for step in 0..600 {
            let at = random.below(all.len());
            let before = all.iter().map(|(values, _)| values.clone()).collect::<Vec<_>>();
            let (values, blocks) = &mut all[at];
            match random.below(6) {
                0 | 1 => {
                    let count = [1, 3, BLOCK - 1, BLOCK, 2 * BLOCK + 5][random.below(5)];
                    let first = values.last().map_or(0, |&last| last + 1);
                    blocks.reserve(count).unwrap();
                    let capacity: u64 = blocks.bytes();
                    blocks.extend((0..count as u64).map(|more| first + 2 * more));
                    assert_eq!(blocks.bytes(), capacity, "the room was there");
                    values.extend((0..count as u64).map(|more| first + 2 * more));
                }
                2 if !values.is_empty() => {
                    // A value that keeps the order.
                    let place = random.below(values.len());
                    let next = values.get(place + 1).copied().unwrap_or(u64::MAX);
                    values[place] = (values[place] + 1).min(next - 1);
                    blocks.set(place, values[place]);
                }
                3 if random.below(2) == 0 => {
                    let place = |random: &mut Random| random.below(values.len().max(1));
                    let places: Vec<usize> = (0..values.len().min(3)).map(|_| place(&mut random)).collect();
                    blocks.own(places.iter().copied());
                    assert!(places.iter().all(|place| Arc::strong_count(&blocks.blocks[place / BLOCK]) == 1));
                }
                3 => {
                    let len = random.below(values.len() + 2);
                    values.truncate(len);
                    blocks.truncate(len);
                }
                _ => {
                    let copy = (values.clone(), blocks.shared().unwrap());
                    if all.len() < 5 {
                        all.push(copy)
                    } else {
                        all[(at + 1) % 5] = copy
                    }
                    continue;
                }
            }
            let (values, blocks) = &all[at];
            assert!(blocks.len() == values.len() && blocks.is_empty() == values.is_empty(), "step {step}");
            assert!(blocks.iter().eq(values.iter().copied()), "step {step}");
            for place in [0, BLOCK - 1, BLOCK, values.len().saturating_sub(1)] {
                if let Some(&value) = values.get(place) {
                    assert_eq!((blocks.get(place), blocks.binary_search(value)), (value, Some(place)));
                    assert_eq!(blocks.binary_search(value + 1), values.binary_search(&(value + 1)).ok());
                }
            }
            for (other, (values, others)) in all.iter().enumerate().filter(|&(other, _)| other != at) {
                assert!(values == &before[other] && others.iter().eq(values.iter().copied()), "step {step}, {other}");
                assert_eq!(blocks.start_with(others), all[at].0.starts_with(values), "step {step}, {other}");
            }
            assert!(Blocks::of(values).unwrap().start_with(blocks));
        }
    }
}
