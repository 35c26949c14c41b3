//! An index that one thread changes while others search it.

use std::fmt;
use std::mem::replace;
use std::sync::{Arc, PoisonError, RwLock};

use crate::{Index, Kind};

/// A value that can be changed while others use it as it was: an index, or a program's own data with an index inside.
///
/// ```
/// use std::sync::Arc;
/// use warpann::{Device, FlatIndex, IndexWriter, Metric, Snapshot};
///
/// /// Vectors, and beside them the titles of what they stand for.
/// struct Library {
///     vectors: FlatIndex<f32>,
///     titles: Arc<Vec<String>>,
/// }
///
/// impl Snapshot for Library {
///     fn snapshot(&self) -> Self {
///         Library { vectors: self.vectors.snapshot(), titles: Arc::clone(&self.titles) }
///     }
/// }
///
/// let vectors = FlatIndex::<f32>::new(1, Metric::L2, Device::Cpu)?;
/// let mut writer = IndexWriter::new(Library { vectors, titles: Arc::default() });
/// // Both change, or none: `change` returns the errors of its caller's type.
/// let result: Result<(), Box<dyn std::error::Error>> = writer.change(|library| {
///     library.vectors.add(&[0.5])?;
///     Arc::make_mut(&mut library.titles).push("Solaris".into());
///     Ok(())
/// });
/// result?;
/// let library = writer.current();
/// let nearest = library.vectors.search(&[0.4], 1)?.ids[0];
/// assert_eq!((writer.version(), &library.titles[nearest as usize][..]), (1, "Solaris"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait Snapshot: Sized {
    /// A value of its own that is equal now: later changes of one of the two do not show in the other. It should cost
    /// little, for example because both share memory until one changes.
    fn snapshot(&self) -> Self;
}

impl<K: Kind> Snapshot for Index<K> {
    fn snapshot(&self) -> Self {
        Index::snapshot(self)
    }
}

/// Changes an index of any kind, or anything else that has snapshots ([`Snapshot`]), version after version, while any
/// number of threads search it through [`IndexReader`]s.
///
/// A version never changes once it is published. [`change`](Self::change) changes a snapshot of the last version
/// ([`snapshot`](Index::snapshot)) and then publishes the snapshot. So a search never waits for a change, and its
/// result is right for one version: a search sees all of a change or nothing of it.
///
/// The memory that two versions share exists once. The writer frees the rest of a version, because that takes time that
/// no search should lose: when it publishes the next version if no reader has the former one any more, otherwise at a
/// later change or [`release`](Self::release). Without the writer the last reader does.
///
/// A change costs what the first change after a snapshot costs: for inverted files a copy of the codes that change and
/// of the ids of their lists. A flat index in host memory and a graph take over the memory of the version before the
/// last one if no reader has it any more, and copy what has changed since; otherwise they copy all vectors. So they
/// take the memory of two versions. A flat index on a GPU copies all vectors there: give `change` many at a time. On a
/// GPU the first search of a version also brings the vectors there that have
/// changed. A change may search its own version before that is published, so that no reader waits for it.
///
/// ```
/// use warpann::{Device, FlatIndex, IndexWriter, Metric};
///
/// let mut index = FlatIndex::<f32>::new(1, Metric::L2, Device::Cpu)?;
/// index.add(&[0.0, 1.0, 2.0])?;
/// let mut writer = IndexWriter::new(index);
///
/// let reader = writer.reader();
/// let searching = std::thread::spawn(move || reader.current().search(&[1.2], 1));
/// writer.change(|index| {
///     index.remove(&[1])?;
///     index.add_with_ids(&[1.1], &[7])
/// })?;
/// // The search came before the change, or after it.
/// let found = searching.join().unwrap()?;
/// assert!(found.ids == [1] || found.ids == [7]);
/// assert_eq!(writer.current().search(&[1.2], 1)?.ids, [7]);
///
/// // A failed change publishes nothing.
/// assert!(writer.change(|index| { index.clear(); index.remove(&[1]) }).is_err());
/// assert_eq!(writer.current().len(), 3);
/// # Ok::<(), warpann::Error>(())
/// ```
pub struct IndexWriter<I> {
    reader: IndexReader<I>,
    /// Former versions that readers had when the version after them was published.
    former: Vec<Arc<I>>,
}

/// Gives threads the last version of an index that an [`IndexWriter`] changes. Readers can be cloned, and live longer
/// than the writer.
pub struct IndexReader<I> {
    published: Arc<RwLock<Published<I>>>,
}

/// A version and its number.
struct Published<I> {
    number: u64,
    value: Arc<I>,
}

impl<I> IndexWriter<I> {
    /// Publishes the first version, number 0.
    pub fn new(index: I) -> Self {
        IndexWriter { reader: IndexReader::from(index), former: Vec::new() }
    }

    /// A reader for another thread.
    pub fn reader(&self) -> IndexReader<I> {
        self.reader.clone()
    }

    /// The last version, as [`IndexReader::current`].
    pub fn current(&self) -> Arc<I> {
        self.reader.current()
    }

    /// The number of the last version: the number of changes that were published.
    pub fn version(&self) -> u64 {
        self.reader.version()
    }

    /// Frees the memory of former versions that no reader has any more. Every change begins with this, so only a
    /// program that has no more changes for a while needs to call it.
    pub fn release(&mut self) {
        // Nobody can take a former version any more, so one that only the writer has stays so.
        self.former.retain(|version| Arc::strong_count(version) > 1);
    }
}

impl<I: Snapshot> IndexWriter<I> {
    /// Changes a snapshot of the last version, and publishes it if `change` succeeds. Returns the result of `change`.
    ///
    /// There is one writer, and this call borrows it: changes come one after the other. To change an index from several
    /// threads, put the writer into a lock.
    ///
    /// # Errors
    /// Those of `change`. Then nothing is published, and the last version is as it was; so it is after a panic of
    /// `change`.
    pub fn change<V, E>(&mut self, change: impl FnOnce(&mut I) -> Result<V, E>) -> Result<V, E> {
        // Before the change, so that it can use the memory.
        self.release();
        let mut next = self.current().snapshot();
        let result = change(&mut next)?;
        let next = Arc::new(next);
        let mut published = self.reader.published.write().unwrap_or_else(PoisonError::into_inner);
        published.number += 1;
        let before = replace(&mut published.value, next);
        drop(published);
        // Without the lock. Readers that have the version must not be the ones that free it.
        self.former.push(before);
        self.release();
        Ok(result)
    }
}

impl<I> IndexReader<I> {
    /// The last version that was published. It stays as it is for as long as the caller keeps it. O(1): no search and
    /// no change makes this call wait.
    pub fn current(&self) -> Arc<I> {
        self.current_with_version().1
    }

    /// The number of the last version that was published: the first has 0, and each change counts one up.
    pub fn version(&self) -> u64 {
        self.published.read().unwrap_or_else(PoisonError::into_inner).number
    }

    /// The last version that was published, with its number. O(1).
    pub fn current_with_version(&self) -> (u64, Arc<I>) {
        let published = self.published.read().unwrap_or_else(PoisonError::into_inner);
        (published.number, Arc::clone(&published.value))
    }
}

/// A reader of something that does not change.
impl<I> From<Arc<I>> for IndexReader<I> {
    fn from(value: Arc<I>) -> Self {
        IndexReader { published: Arc::new(RwLock::new(Published { number: 0, value })) }
    }
}

/// As from an [`Arc`] of the value.
impl<I> From<I> for IndexReader<I> {
    fn from(value: I) -> Self {
        Arc::new(value).into()
    }
}

impl<I> Clone for IndexReader<I> {
    fn clone(&self) -> Self {
        IndexReader { published: Arc::clone(&self.published) }
    }
}

impl<I: fmt::Debug> fmt::Debug for IndexWriter<I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IndexWriter").field("current", &self.current()).finish()
    }
}

impl<I: fmt::Debug> fmt::Debug for IndexReader<I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IndexReader").field("current", &self.current()).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;
    use crate::{Device, Error, GraphIndex, IvfIndex};

    fn ids<I: Kind<Element = f32>>(index: &Index<I>) -> Vec<u64> {
        index.search_with(&[0.0], 4, &crate::SearchOptions::new().probes(2)).unwrap().ids
    }

    /// The last reader of a version frees nothing while there is a writer.
    #[test]
    fn the_writer_frees_former_versions() {
        struct Counted(Arc<()>);
        impl Snapshot for Counted {
            fn snapshot(&self) -> Self {
                Counted(Arc::clone(&self.0))
            }
        }
        let count = Arc::new(());
        let versions = || Arc::strong_count(&count) - 1;
        let mut writer = IndexWriter::new(Counted(Arc::clone(&count)));
        let change = |writer: &mut IndexWriter<Counted>| writer.change(|_| Ok::<_, ()>(())).unwrap();
        change(&mut writer);
        assert_eq!(versions(), 1, "nobody had the first version");
        let (second, reader) = (writer.current(), writer.reader());
        change(&mut writer);
        drop(second);
        assert_eq!(versions(), 2);
        let third = reader.current();
        change(&mut writer);
        assert_eq!(versions(), 2, "the second version is free, the third has a reader");
        drop(third);
        writer.release();
        assert_eq!(versions(), 1);
        let fourth = reader.current();
        change(&mut writer);
        drop((writer, reader));
        assert_eq!(versions(), 1);
        drop(fourth);
        assert_eq!(versions(), 0);
    }

    /// Every kind of index: old versions stay, and failures and panics publish nothing.
    fn check<I: Kind<Element = f32>>(index: Index<I>) {
        let mut writer = IndexWriter::new(index);
        let (reader, first) = (writer.reader(), writer.current());
        assert_eq!(writer.change(|index| index.upsert(&[5.0, 0.5], &[0, 9])).unwrap(), 1);
        let second = reader.clone().current();
        assert_eq!((ids(&*first), ids(&*second)), (vec![0, 1, 2, 3], vec![9, 1, 2, 3]));
        let failed = writer.change(|index| {
            index.add(&[8.0])?;
            index.remove(&[77])
        });
        assert!(matches!(failed, Err(Error::UnknownId { id: 77, .. })));
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            writer.change(|index| -> crate::Result<()> {
                index.clear();
                panic!("a panic of the caller")
            })
        }));
        assert!(panicked.is_err() && Arc::ptr_eq(&reader.current(), &second));
        drop(writer);
        assert_eq!((second.len(), first.len()), (5, 4));
    }

    #[test]
    fn every_kind_of_index_has_versions() {
        let rows = [1.0, 2.0, 3.0, 4.0];
        let mut flat = crate::FlatIndex::<f32>::new(1, crate::Metric::L2, Device::Cpu).unwrap();
        flat.add(&rows).unwrap();
        check(flat);
        let mut ivf = IvfIndex::<f32>::builder(1, 2).device(Device::Cpu).build().unwrap();
        ivf.train(&rows).unwrap();
        ivf.add(&rows).unwrap();
        check(ivf);
        let mut graph = GraphIndex::<f32>::builder(1).device(Device::Cpu).exact_ratio(0).build().unwrap();
        graph.add(&rows).unwrap();
        check(graph);
    }
}
