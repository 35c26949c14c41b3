//! The lists of an inverted file: the master copy in host memory, from which devices make their images.
//!
//! A list holds the codes of its vectors one after the other, `code_bytes` each, and their ids in the same order. Both
//! are either owned memory or a range of a file, mapped or read. Snapshots of an index share all of this until one of
//! them changes ([`Lists::own`]). A change then takes over the memory of a former version ([`former`]), or copies the
//! ids of the lists that change, and of their codes those that change ([`codes`]).
//!
//! The order of the vectors in a list has no meaning. New ones come to the end. If one is removed, the last one takes
//! its place, so no list has holes. Searches know a vector by its *rank*, a u32 that compares as the id does
//! ([`Directory`]), so they keep four bytes for each candidate, not eight. If the ids are 0, 1, 2, .., ranks and ids
//! are equal, and a device needs no directory ([`Lists::sparse_directory`], [`Lists::ranks_into`]).
//!
//! # Cost
//! Adding n vectors is a counting sort by list, O(n), and one copy of each code, both in parallel. It allocates nothing
//! for each vector, and does not read the vectors that the lists already hold. Few vectors are sorted and
//! copied by the calling thread.
//!
//! The directory is made by the first call that needs it: a search, a removal, a look for an id that may be known.
//! Changes keep it right: a vector that is added, replaced or removed costs O(log n), and so do its entries in the
//! journal ([`Changes`]), by which images learn what they lack. Many vectors drop the directory instead
//! ([`Lists::are_many`]).

mod address;
mod bytes;
mod codes;
mod directory;
mod former;
mod list;
mod log;
mod moves;
mod rows_by_list;

use std::borrow::Cow;
use std::iter;
use std::mem::take;
use std::ops::Range;
use std::sync::{Arc, OnceLock};

pub(crate) use self::address::Address;
pub(crate) use self::bytes::Bytes;
pub(crate) use self::codes::CodeRows;
use self::codes::Codes;
pub(crate) use self::directory::Directory;
use self::list::List;
use self::moves::Moves;
use self::rows_by_list::RowsByList;
use crate::ids::row_ids::RowIds;
use crate::ids::{ascending, stamp, twice};
use crate::ivf::rest::Rest;
use crate::parallel::{Loop, ParallelSlice, turns};
use crate::shared::former::Former;
use crate::shared::journal::Journal;
use crate::threads::work_off;
use crate::validate::{MAX_ROWS, check_rows};
use crate::{Bitset, Error, Filter, Result, host_memory};

/// Number of lists that a thread frees at a time, and the bytes of memory whose copy takes as long as to free a list.
const FREED_TOGETHER: usize = 1 << 6;
const FREED_BYTES: usize = 1 << 10;
/// More vectors than this, and more than a share of those in the lists, drop the directory.
const MANY: usize = 1 << 12;
const SHARE_OF_MANY: usize = 8;

/// Lists get room for more vectors than their share by this factor, because shares are those of a sample.
const MORE_EXPECTED: f64 = 1.1;

/// The places that hold other vectors than at some version, ascending; places past the end of a list hold nothing any
/// more.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Changes {
    pub(crate) places: Vec<Address>,
    /// Whether vectors have new ranks, also those in other places.
    pub(crate) renumbered: bool,
}

/// All lists of an index; see the module documentation.
#[derive(Debug)]
pub(crate) struct Lists {
    code_bytes: usize,
    lists: Vec<Arc<List>>,
    len: usize,
    /// The greatest id of all lists.
    greatest: Option<u64>,
    /// The [`stamp`] of all ids.
    stamp: u64,
    directory: OnceLock<Directory>,
    journal: Journal<Address>,
    /// The last version that gave vectors new ranks.
    renumbered: u64,
    /// The lists of a former version, whose memory the next change takes over.
    former: Former<Arc<Lists>>,
}

/// The greatest of `ids`.
fn greatest(ids: &[u64]) -> Option<u64> {
    ids.par_iter().with_min_len(1 << 14).map(|&id| Some(id)).reduce(|| None, Option::max)
}

impl Lists {
    /// Makes `count` empty lists of vectors whose codes have `code_bytes` bytes, at least one.
    pub(crate) fn new(count: usize, code_bytes: usize) -> Lists {
        let empty = Arc::new(List::new(code_bytes));
        let journal = Journal::new();
        Lists {
            code_bytes,
            lists: vec![empty; count],
            len: 0,
            greatest: None,
            stamp: 0,
            directory: OnceLock::new(),
            renumbered: journal.version(),
            journal,
            former: Former::default(),
        }
    }

    /// Lists of vectors that are elsewhere: vector i, whose id is i, belongs to list `labels[i]` of `count`. The lists
    /// have no codes.
    ///
    /// # Errors
    /// [`Error::OutOfHostMemory`].
    pub(crate) fn without_codes(count: usize, code_bytes: usize, labels: &[u32]) -> Result<Lists> {
        let mut lists = Lists::new(count, code_bytes);
        let ids = host_memory::collected_in_parallel(turns(0..labels.len()).map(|row| row as u64))?;
        RowsByList::new(labels, count)?.each(&mut lists.lists, &|list, rows| {
            let mut of_list = Bytes::default();
            of_list.reserve(rows.len() * size_of::<u64>())?;
            of_list.append(size_of::<u64>(), rows.len(), |at| bytemuck::bytes_of(&ids[rows[at] as usize]));
            *list = Arc::new(List::of(Codes::new(code_bytes), of_list));
            Ok(())
        })?;
        (lists.len, lists.greatest) = (labels.len(), ids.last().copied());
        Ok(lists)
    }

    /// Makes lists of codes and ids from a file, one pair for each list. Codes are aligned to their elements, ids to 8
    /// bytes. O(len), or O(len · log len) if the ids are far apart.
    ///
    /// # Errors
    /// [`Error::TooMany`]; [`Error::WrongLength`] if codes are not whole rows or their number differs from that of the
    /// ids; [`Error::DuplicateId`], [`Error::ReservedId`].
    pub(crate) fn from_parts(code_bytes: usize, parts: Vec<(Bytes, Bytes)>) -> Result<Lists> {
        let mut lists = Lists::new(0, code_bytes);
        for (codes, ids) in parts {
            let (rows, count) = (codes.get().len() / code_bytes, ids.get().len() / size_of::<u64>());
            if rows != count || !codes.get().len().is_multiple_of(code_bytes) || !ids.get().len().is_multiple_of(8) {
                return Err(Error::WrongLength { what: "ids", expected: rows, actual: count });
            }
            lists.len += rows;
            lists.lists.push(Arc::new(List::of(Codes::of(codes, code_bytes), ids)));
        }
        check_rows(lists.len as u64, MAX_ROWS)?;
        lists.greatest = lists.greatest_of_all();
        if lists.greatest == Some(crate::NONE) {
            return Err(Error::ReservedId);
        }
        lists.stamp = lists.lists.par_iter().map(|list| stamp(list.ids())).reduce(|| 0, u64::wrapping_add);
        match lists.duplicate()? {
            Some(id) => Err(Error::DuplicateId { id }),
            None => Ok(lists),
        }
    }

    /// Puts the codes of each list in one place. O(bytes of the lists that are not). After an error some are.
    pub(crate) fn compact(lists: &mut Arc<Lists>) -> Result<()> {
        if !lists.lists.iter().any(|list| list.codes.is_scattered()) {
            return Ok(());
        }
        let compact = |list: &mut Arc<List>| {
            if list.codes.is_scattered() {
                List::reserve(list, 0)?;
                List::own(list).codes.compact()?;
            }
            Ok(())
        };
        Lists::own(lists)?.lists.par_iter_mut().map(compact).collect().into_iter().collect()
    }

    /// The greatest rest of all codes, by the function of their codec for some of them: a number that the codes have.
    /// O(1) for a list that did not change since the last call.
    pub(crate) fn rest(&self, of_codes: &(dyn Fn(&[u8]) -> Option<Rest> + Sync)) -> Option<Rest> {
        let rests = self.lists.par_iter().map(|list| list.rest(of_codes));
        rests.reduce(|| Some(Rest::default()), |a, b| Some(a?.and(b?)))
    }

    /// The greatest id, found by reading all ids.
    fn greatest_of_all(&self) -> Option<u64> {
        self.lists.par_iter().map(|list| list.ids().iter().copied().max()).reduce(|| None, Option::max)
    }

    /// Finds an id that occurs twice.
    fn duplicate(&self) -> Result<Option<u64>> {
        let Some(greatest) = self.greatest else { return Ok(None) };
        if greatest / 64 < self.len as u64 {
            // One bit for each possible id: not more memory than a sorted copy of all ids, and no sorting.
            let mut seen: Vec<u64> = host_memory::zeroed(greatest as usize / 64 + 1)?;
            return Ok(self.lists.iter().flat_map(|list| list.ids()).copied().find(|&id| {
                let (word, bit) = (&mut seen[id as usize / 64], 1 << (id % 64));
                let known = *word & bit != 0;
                *word |= bit;
                known
            }));
        }
        let mut ids = host_memory::with_room(self.len)?;
        self.lists.iter().for_each(|list| ids.extend_from_slice(list.ids()));
        ids.par_sort_unstable();
        Ok(twice(&ids))
    }

    /// Number of lists.
    pub(crate) fn count(&self) -> usize {
        self.lists.len()
    }

    /// Number of vectors in all lists.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Bytes of one vector's code.
    pub(crate) fn code_bytes(&self) -> usize {
        self.code_bytes
    }

    /// Number of vectors in a list.
    pub(crate) fn length(&self, list: usize) -> usize {
        self.lists[list].ids.get().len() / size_of::<u64>()
    }

    /// The codes of a list.
    #[inline]
    pub(crate) fn codes(&self, list: usize) -> CodeRows<'_> {
        self.lists[list].codes.rows()
    }

    /// The ids of a list, in the order of the codes.
    pub(crate) fn ids(&self, list: usize) -> &[u64] {
        self.lists[list].ids()
    }

    /// The greatest id of all lists.
    pub(crate) fn greatest_id(&self) -> Option<u64> {
        self.greatest
    }

    /// The [`stamp`] of all ids.
    pub(crate) fn stamp(&self) -> u64 {
        self.stamp
    }

    /// The version of the lists, which changes with every change, and differs between lists.
    pub(crate) fn version(&self) -> u64 {
        self.journal.version()
    }

    /// The changes since `version`; `None` if the journal does not reach back to it, or if it is that of other lists.
    pub(crate) fn changes_since(&self, version: u64) -> Option<Changes> {
        let places = self.journal.since(version)?;
        Some(Changes { places, renumbered: self.renumbered > version })
    }

    /// The number of places that were noted for [`changes_since`](Self::changes_since), some several times. O(log
    /// places).
    pub(crate) fn changed_since(&self, version: u64) -> Option<usize> {
        self.journal.count_since(version)
    }

    /// Whether ranks and ids are equal.
    fn ranks_are_ids(&self) -> bool {
        match self.directory.get() {
            Some(directory) => directory.ranks_are_ids(),
            // The ids are 0, 1, 2, ..: they are unique, so comparing the greatest one with their number is enough.
            None => self.greatest.map_or(0, |id| id as u128 + 1) == self.len as u128,
        }
    }

    /// The list and the code of the vector of a rank.
    pub(crate) fn code(&self, rank: u32) -> (usize, &[u8]) {
        let Address { list, place } = self.directory().address(rank as usize);
        (list as usize, self.codes(list as usize).get(place as usize))
    }

    /// List and place of the vector with an id; `None` if there is none. O(log len).
    pub(crate) fn find(&self, id: u64) -> Option<(usize, usize)> {
        // Ids above all others are most ids that are looked for before vectors are added. They need no directory.
        self.greatest.filter(|&greatest| id <= greatest)?;
        self.directory().find(id).map(|Address { list, place }| (list as usize, place as usize))
    }

    /// Finds one of `ids` that the lists hold. O(ids · log len).
    pub(crate) fn find_any(&self, ids: &[u64]) -> Option<u64> {
        ids.iter().copied().find(|&id| self.find(id).is_some())
    }

    /// All ids, ascending. O(len).
    pub(crate) fn all_ids(&self) -> Vec<u64> {
        if self.directory.get().is_none() && self.ranks_are_ids() {
            return (0..self.len as u64).collect();
        }
        let ids = self.directory().ids();
        ids.live_rows().map(|rank| ids.id(rank)).collect()
    }

    /// The ranks of the vectors that a filter accepts. Makes the directory if the filter names ids that are not 0, 1,
    /// 2, ...
    ///
    /// # Errors
    /// Those of [`Filter::check`]; [`Error::OutOfHostMemory`].
    pub(crate) fn accepted<'a>(&self, filter: Filter<'a>) -> Result<Cow<'a, Bitset>> {
        filter.check(self.len, || self.stamp)?;
        match (self.directory.get(), filter) {
            (Some(directory), _) => directory.ids().accepted(filter),
            (None, Filter::Bits(bits)) => Ok(Cow::Borrowed(bits)),
            (None, _) if self.ranks_are_ids() => RowIds::counting(self.len).accepted(filter),
            (None, _) => self.directory().ids().accepted(filter),
        }
    }

    /// The directory that maps ranks to ids; `None` if ranks and ids are equal.
    pub(crate) fn sparse_directory(&self) -> Option<&Directory> {
        (!self.ranks_are_ids()).then(|| self.directory())
    }

    /// Writes the ranks of the vectors at these places of a list, in the order of the places.
    pub(crate) fn ranks_into(&self, list: usize, places: Range<usize>, to: &mut [u32]) {
        match self.sparse_directory() {
            None => to.iter_mut().zip(&self.ids(list)[places]).for_each(|(rank, &id)| *rank = id as u32),
            Some(directory) => to.copy_from_slice(&directory.ranks(list)[places]),
        }
    }

    /// Ranks and addresses of all vectors; the first call makes them. O(len), or O(len · log len) if the ids are not 0,
    /// 1, 2, ...
    pub(crate) fn directory(&self) -> &Directory {
        // The directory is not made inside the initialiser: while its parallel parts wait, this thread may start
        // another search that comes here.
        self.directory.get().unwrap_or_else(|| {
            let made = Directory::new(&self.lists, self.len, self.ranks_are_ids());
            self.directory.get_or_init(|| made)
        })
    }

    /// Whether a change of `vectors` vectors drops the directory: making it again costs less than noting each of them.
    fn are_many(&self, vectors: usize) -> bool {
        vectors > MANY.max(self.len / SHARE_OF_MANY)
    }

    /// Appends vectors: row i, with code i of `codes` and id `ids[i]`, to list `labels[i]`. Ids are new, all different
    /// and not reserved; labels are below [`Lists::count`]; the total is within [`MAX_ROWS`]. On error nothing changes.
    pub(crate) fn append(&mut self, labels: &[u32], codes: &[u8], ids: &[u64]) -> Result<()> {
        if ids.is_empty() {
            return Ok(());
        }
        let rows = RowsByList::new(labels, self.lists.len())?;
        self.reserve(&rows)?;
        let mut renumbered = false;
        if self.are_many(ids.len()) {
            self.directory.take();
        } else if let Some(directory) = self.directory.get_mut() {
            renumbered = directory.admit(&ascending(ids)?)?;
        }
        // From here on nothing fails.
        self.begin_change(renumbered);
        let bytes = self.code_bytes;
        let lengths: Vec<u32> = rows.lists().map(|(list, _)| self.length(list) as u32).collect();
        rows.each(&mut self.lists, &|list, rows| {
            let list = List::own(list);
            list.codes.append(rows.len(), |at| &codes[rows[at] as usize * bytes..][..bytes]);
            list.ids.append(size_of::<u64>(), rows.len(), |at| bytemuck::bytes_of(&ids[rows[at] as usize]));
            Ok(())
        })?;
        if let Some(directory) = self.directory.get_mut() {
            for (list, rows) in rows.lists() {
                for &row in rows {
                    // The ids were admitted above.
                    directory.rank(ids[row as usize]).into_iter().for_each(|rank| directory.push(rank, list));
                }
            }
        }
        if self.are_many(ids.len()) {
            self.journal.everything_changed();
        } else {
            let new = rows.lists().zip(lengths).flat_map(|((list, rows), length)| {
                (length..length + rows.len() as u32).map(move |place| Address { list: list as u32, place })
            });
            self.journal.changed(new, self.len);
        }
        self.len += labels.len();
        self.greatest = self.greatest.max(greatest(ids));
        self.stamp = self.stamp.wrapping_add(stamp(ids));
        Ok(())
    }

    /// Makes room for `more` vectors, if as many of them belong to each list as of those that are there. A list that
    /// grows batch by batch is moved when it has doubled, which costs copies, and leaves holes in the memory of the
    /// process. Room that is not used costs no memory. O(lists).
    pub(crate) fn expect(&mut self, more: u64) {
        let times = more as f64 / self.len.max(1) as f64 * MORE_EXPECTED;
        self.lists.par_iter_mut().for_each(|list| {
            let more = (list.ids().len() as f64 * times) as usize;
            // The memory of a batch is asked for again, and refused then.
            let _ = List::reserve(list, more);
        });
    }

    /// Reserves memory for rows, in the lists and in the directory.
    fn reserve(&mut self, rows: &RowsByList) -> Result<()> {
        rows.each(&mut self.lists, &|list, rows| List::reserve(list, rows.len()))?;
        match self.directory.get_mut() {
            Some(directory) => rows.each(directory.lists(), &|list, rows| Directory::reserve(list, rows.len())),
            None => Ok(()),
        }
    }

    /// Starts a new version of the lists. `renumbered`: other vectors get new ranks.
    fn begin_change(&mut self, renumbered: bool) {
        self.journal.begin();
        if renumbered {
            self.renumbered = self.journal.version();
        }
    }

    /// Appends the vectors of `other`, which has the same number of lists and bytes of a code, and no id of these
    /// lists. On error nothing changes.
    pub(crate) fn append_lists(&mut self, other: &Lists) -> Result<()> {
        if !self.are_many(other.len) {
            let labels: Vec<u32> = (0..other.count()).flat_map(|list| vec![list as u32; other.length(list)]).collect();
            let codes: Vec<&[u8]> = (0..other.count()).flat_map(|list| other.codes(list).runs()).collect();
            let ids: Vec<&[u64]> = (0..other.count()).map(|list| other.ids(list)).collect();
            return self.append(&labels, &codes.concat(), &ids.concat());
        }
        type Append<'a> = &'a (dyn Fn(&mut Arc<List>, &List) -> Result<()> + Sync);
        let pairs = |lists: &mut Vec<Arc<List>>, work: Append<'_>| {
            let each =
                |(to, from): (&mut Arc<List>, &Arc<List>)| if from.ids().is_empty() { Ok(()) } else { work(to, from) };
            lists.par_iter_mut().zip(other.lists.par_iter()).map(each).collect().into_iter().collect::<Result<()>>()
        };
        pairs(&mut self.lists, &|to, from| List::reserve(to, from.ids().len()))?;
        self.begin_change(false);
        self.directory.take();
        pairs(&mut self.lists, &|to, from| {
            let to = List::own(to);
            from.codes.rows().runs().for_each(|run| to.codes.extend(run));
            to.ids.append(from.ids.get().len(), 1, |_| from.ids.get());
            Ok(())
        })?;
        self.journal.everything_changed();
        self.len += other.len;
        self.greatest = self.greatest.max(other.greatest);
        self.stamp = self.stamp.wrapping_add(other.stamp);
        Ok(())
    }

    /// As [`Lists::append`], but ids, which differ, may be known: such a vector gets a new code, and perhaps a new
    /// list. On error nothing changes.
    pub(crate) fn put(&mut self, labels: &[u32], codes: &[u8], ids: &[u64]) -> Result<()> {
        let (known, new): (Vec<usize>, Vec<usize>) = (0..ids.len()).partition(|&row| self.find(ids[row]).is_some());
        if known.is_empty() {
            return self.append(labels, codes, ids);
        }
        let bytes = self.code_bytes;
        let code = |row: usize| &codes[row * bytes..][..bytes];
        let new_codes: Vec<u8> = new.iter().flat_map(|&row| code(row)).copied().collect();
        let of_new = (pick(labels, &new), pick(ids, &new));
        // All memory is reserved first, so that after the append nothing fails.
        self.reserve(&RowsByList::new(labels, self.lists.len())?)?;
        self.own_lists_of(&pick(ids, &known))?;
        let moves = Moves::new(self.directory(), self.lists.len(), &known, labels, ids)?;
        self.append(&of_new.0, &new_codes, &of_new.1)?;
        // Many new vectors drop the directory.
        self.directory();
        self.begin_change(false);
        let Lists { lists, directory, .. } = self;
        let Some(directory) = directory.get_mut() else { return Ok(()) };
        let changed = moves.carry_out(lists, directory, codes, ids)?;
        self.journal.changed(changed, self.len);
        Ok(())
    }

    /// Makes the memory of lists that have some of these ids our own.
    fn own_lists_of(&mut self, ids: &[u64]) -> Result<()> {
        // The look for the ids has made the directory, unless there is none of them.
        let Some(directory) = self.directory.get_mut() else { return Ok(()) };
        let mut moving: Vec<u32> = ids.iter().filter_map(|&id| directory.rank(id)).map(|rank| rank as u32).collect();
        let labels: Vec<u32> = moving.iter().map(|&rank| directory.address(rank as usize).list).collect();
        let rows = RowsByList::new(&labels, self.lists.len())?;
        rows.each(&mut self.lists, &|list, _| List::reserve(list, 0))?;
        rows.each(directory.lists(), &|list, _| Directory::reserve(list, 0))?;
        // The vectors may leave their lists, and the last ones of the lists take their places.
        for (list, rows) in rows.lists() {
            let ranks = directory.ranks(list);
            moving.extend_from_slice(&ranks[ranks.len().saturating_sub(rows.len())..]);
        }
        directory.own_addresses(&moving);
        Ok(())
    }

    /// Removes a vector from its list, and notes the places that change.
    fn swap_remove(&mut self, at: Address, changed: &mut Vec<Address>) {
        let list = List::own(&mut self.lists[at.list as usize]);
        list.codes.swap_remove(at.place as usize);
        list.ids.swap_remove(size_of::<u64>(), at.place as usize);
        changed.extend([at, Address { place: list.ids().len() as u32, ..at }]);
        self.directory.get_mut().into_iter().for_each(|directory| directory.swap_remove(at));
    }

    /// Removes the vectors with these ids, ascending and all different; the last vectors of their lists take their
    /// places. O(ids · log len) amortised.
    ///
    /// # Errors
    /// [`Error::UnknownId`] with the smallest unknown id; [`Error::OutOfHostMemory`]. On error nothing changes.
    pub(crate) fn remove(&mut self, ids: &[u64]) -> Result<()> {
        let unknown = |&&id: &&u64| self.find(id).is_none();
        if let Some(&id) = ids.iter().find(unknown) {
            return Err(Error::UnknownId { id, len: self.len as u64 });
        }
        self.own_lists_of(ids)?;
        // The look for the ids has made the directory, unless there is none of them.
        let Some(directory) = self.directory.get_mut() else { return Ok(()) };
        let ranks: Vec<usize> = ids.iter().filter_map(|&id| directory.rank(id)).collect();
        directory.remove(&ranks)?;
        self.begin_change(false);
        let mut changed = Vec::with_capacity(2 * ranks.len());
        for rank in ranks {
            // An earlier removal may have moved the vector.
            if let Some(at) = self.directory.get().map(|directory| directory.address(rank)) {
                self.swap_remove(at, &mut changed);
            }
        }
        self.journal.changed(changed, self.len);
        self.len -= ids.len();
        self.stamp = self.stamp.wrapping_sub(stamp(ids));
        if let Some(directory) = self.directory.get_mut() {
            self.greatest = directory.ids().last();
            if directory.forget() {
                self.renumbered = self.journal.version();
            }
        }
        Ok(())
    }
}

/// Versions that share lists have thousands of them that are their own. To free these one after the other took longer
/// than to change them.
impl Drop for Lists {
    fn drop(&mut self) {
        let mut lists = take(&mut self.lists);
        let mut ranks = self.directory.take().map(Directory::into_lists).unwrap_or_default();
        let bytes = lists.len() * FREED_BYTES;
        let rest = |len: usize| len.saturating_sub(FREED_TOGETHER);
        let parts = iter::from_fn(|| {
            let more = !lists.is_empty();
            more.then(|| (lists.split_off(rest(lists.len())), ranks.split_off(rest(ranks.len()))))
        });
        work_off(parts, bytes, drop);
    }
}

/// The elements at these places.
fn pick<V: Copy>(from: &[V], places: &[usize]) -> Vec<V> {
    places.iter().map(|&place| from[place]).collect()
}

#[cfg(test)]
mod tests;
