//! The lists of an inverted file: the master copy in host memory, from which devices make their images.
//!
//! A list holds the codes of its vectors one after the other, `code_bytes` each, and their ids in the same order. Both are either owned
//! memory or a range of a file, mapped or read; the first change of a list copies it to owned memory. Adding n vectors is a counting sort
//! by list, O(n), and one copy of each code, both in parallel. It allocates nothing for each vector, and does not read the vectors that the
//! lists already hold.
//!
//! A vector's *location* is its number in the order of the lists. A vector's *rank* is the number of smaller ids in the index. Both are
//! u32. Ranks compare as ids do, so searches keep four bytes for each candidate, not eight. If the ids are 0, 1, 2, .., ranks and ids are
//! equal, and a device needs no directory ([`Lists::sparse_directory`], [`Lists::ranks_into`]).

mod bytes;
mod directory;

use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

pub(crate) use self::bytes::Bytes;
pub(crate) use self::directory::Directory;
use crate::ids::{stamp, twice};
use crate::parallel::{Loop, ParallelSlice, owned};
use crate::validate::{MAX_ROWS, check_rows};
use crate::{Error, Result, host_memory};

/// Codes and ids of one list.
#[derive(Debug, Clone, Default)]
struct List {
    codes: Bytes,
    ids: Bytes,
}

impl List {
    fn ids(&self) -> &[u64] {
        bytemuck::cast_slice(self.ids.get())
    }

    fn reserve(&mut self, code_bytes: usize, more: usize) -> Result<()> {
        self.codes.reserve(more * code_bytes)?;
        self.ids.reserve(more * size_of::<u64>())
    }
}

/// All lists of an index; see the module documentation.
#[derive(Debug)]
pub(crate) struct Lists {
    code_bytes: usize,
    lists: Vec<List>,
    len: usize,
    /// The greatest id of all lists.
    greatest: Option<u64>,
    /// The [`stamp`] of all ids.
    stamp: u64,
    directory: OnceLock<Directory>,
}

/// The greatest of `ids`.
fn greatest(ids: &[u64]) -> Option<u64> {
    ids.par_iter().with_min_len(1 << 14).map(|&id| Some(id)).reduce(|| None, Option::max)
}

impl Lists {
    /// Makes `count` empty lists of vectors whose codes have `code_bytes` bytes, at least one.
    pub(crate) fn new(count: usize, code_bytes: usize) -> Lists {
        Lists {
            code_bytes,
            lists: vec![List::default(); count],
            len: 0,
            greatest: None,
            stamp: 0,
            directory: OnceLock::new(),
        }
    }

    /// Makes lists of codes and ids from a file, one pair for each list. Codes are aligned to their elements, ids to 8 bytes. O(len), or
    /// O(len · log len) if the ids are far apart.
    ///
    /// # Errors
    /// [`Error::TooManyRows`]; [`Error::WrongIds`] if codes are not whole rows or their number differs from that of the ids;
    /// [`Error::DuplicateId`], [`Error::ReservedId`].
    pub(crate) fn from_parts(code_bytes: usize, parts: Vec<(Bytes, Bytes)>) -> Result<Lists> {
        let mut lists = Lists::new(0, code_bytes);
        for (codes, ids) in parts {
            let (rows, count) = (codes.get().len() / code_bytes, ids.get().len() / size_of::<u64>());
            if rows != count || !codes.get().len().is_multiple_of(code_bytes) || !ids.get().len().is_multiple_of(8) {
                return Err(Error::WrongIds { ids: count, rows });
            }
            lists.len += rows;
            lists.lists.push(List { codes, ids });
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
            return Ok(self.lists.iter().flat_map(List::ids).copied().find(|&id| {
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
    pub(crate) fn codes(&self, list: usize) -> &[u8] {
        self.lists[list].codes.get()
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

    /// Whether the ids are 0, 1, 2, ... Ids are unique, so comparing the greatest id with their number is enough.
    fn dense(&self) -> bool {
        self.greatest.map_or(0, |id| id as u128 + 1) == self.len as u128
    }

    /// All ids in the order of locations.
    fn all_ids(&self) -> Vec<u64> {
        let mut ids = Vec::with_capacity(self.len);
        self.lists.iter().for_each(|list| ids.extend_from_slice(list.ids()));
        ids
    }

    /// Finds one of the ascending `ids` that a list holds.
    pub(crate) fn find_any(&self, ids: &[u64]) -> Option<u64> {
        let (&first, &last) = (ids.first()?, ids.last()?);
        if self.greatest.is_none_or(|greatest| greatest < first) {
            return None;
        }
        let known = |id: &&u64| (first..=last).contains(*id) && ids.binary_search(id).is_ok();
        let list = self.lists.par_iter().position_first(|list| list.ids().iter().any(|id| known(&id)))?;
        self.lists[list].ids().iter().find(known).copied()
    }

    /// Appends vectors: row i, with code i of `codes` and id `ids[i]`, to list `labels[i]`. Ids are new, all different and not reserved;
    /// labels are below [`Lists::count`]; the total is within [`MAX_ROWS`]. On error nothing changes.
    pub(crate) fn append(&mut self, labels: &[u32], codes: &[u8], ids: &[u64]) -> Result<()> {
        let bytes = self.code_bytes;
        let (starts, order) = self.by_list(labels)?;
        let rows_of = |list: usize| &order[starts[list] as usize..starts[list + 1] as usize];
        // All memory is reserved first, so that nothing fails after the first change.
        let each = |lists: &mut Vec<List>, work: &(dyn Fn(usize, &mut List) -> Result<()> + Sync)| {
            let each = |(list, to): (usize, &mut List)| if rows_of(list).is_empty() { Ok(()) } else { work(list, to) };
            lists.par_iter_mut().enumerate().map(each).collect().into_iter().collect::<Result<()>>()
        };
        each(&mut self.lists, &|list, to| to.reserve(bytes, rows_of(list).len()))?;
        each(&mut self.lists, &|list, to| {
            let rows = rows_of(list);
            to.codes.append(bytes, rows.len(), |at| &codes[rows[at] as usize * bytes..][..bytes]);
            to.ids.append(size_of::<u64>(), rows.len(), |at| bytemuck::bytes_of(&ids[rows[at] as usize]));
            Ok(())
        })?;
        self.len += labels.len();
        self.greatest = self.greatest.max(greatest(ids));
        self.stamp = self.stamp.wrapping_add(stamp(ids));
        self.directory = OnceLock::new();
        Ok(())
    }

    /// Counting sort: the rows of each list, in their order in `labels`, and the start of each list among them (returned first).
    fn by_list(&self, labels: &[u32]) -> Result<(Vec<u32>, Vec<u32>)> {
        let lists = self.lists.len();
        // Each part has separate counters, one for each list, so a part has at least as many rows as lists.
        let parts = (labels.len() / lists.max(1)).clamp(1, rayon::current_num_threads());
        let part_rows = labels.len().div_ceil(parts).max(1);
        let mut places: Vec<Vec<u32>> = labels
            .par_chunks(part_rows)
            .map(|labels| {
                let mut counts = host_memory::zeroed(lists)?;
                labels.iter().for_each(|&label| counts[label as usize] += 1);
                Ok(counts)
            })
            .collect()
            .into_iter()
            .collect::<Result<_>>()?;
        let mut starts = vec![0u32];
        let mut end = 0;
        for list in 0..lists {
            for places in &mut places {
                (places[list], end) = (end, end + places[list]);
            }
            starts.push(end);
        }
        let order = host_memory::collected_in_parallel(labels.par_iter().map(|_| AtomicU32::new(0)))?;
        owned(places).zip(labels.par_chunks(part_rows)).enumerate().for_each(|(part, (mut places, labels))| {
            for (row, &label) in (part * part_rows..).zip(labels) {
                let place = &mut places[label as usize];
                order[*place as usize].store(row as u32, Ordering::Relaxed);
                *place += 1;
            }
        });
        Ok((starts, host_memory::collected_in_parallel(order.par_iter().map(|row| row.load(Ordering::Relaxed)))?))
    }

    /// Appends the vectors of `other`, which has the same number of lists and bytes of a code, and no id of these lists. On error nothing
    /// changes.
    pub(crate) fn append_lists(&mut self, other: &Lists) -> Result<()> {
        let bytes = self.code_bytes;
        let pairs = |lists: &mut Vec<List>, work: &(dyn Fn(&mut List, &List) -> Result<()> + Sync)| {
            let each = |(to, from): (&mut List, &List)| if from.ids().is_empty() { Ok(()) } else { work(to, from) };
            lists.par_iter_mut().zip(other.lists.par_iter()).map(each).collect().into_iter().collect::<Result<()>>()
        };
        pairs(&mut self.lists, &|to, from| to.reserve(bytes, from.ids().len()))?;
        pairs(&mut self.lists, &|to, from| {
            to.codes.append(from.codes.get().len(), 1, |_| from.codes.get());
            to.ids.append(from.ids.get().len(), 1, |_| from.ids.get());
            Ok(())
        })?;
        self.len += other.len;
        self.greatest = self.greatest.max(other.greatest);
        self.stamp = self.stamp.wrapping_add(other.stamp);
        self.directory = OnceLock::new();
        Ok(())
    }

    /// The lists and the codes of the vectors with these ids, which the lists hold.
    pub(crate) fn coded(&self, ids: &[u64]) -> Result<(Vec<u32>, Vec<u8>)> {
        let mut labels = host_memory::with_room(ids.len())?;
        let mut codes = host_memory::with_room(host_memory::count::<u8>(&[ids.len(), self.code_bytes])?)?;
        for (list, place) in ids.iter().filter_map(|&id| self.directory().find(id)) {
            labels.push(list as u32);
            codes.extend_from_slice(&self.codes(list)[place * self.code_bytes..][..self.code_bytes]);
        }
        Ok((labels, codes))
    }

    /// Removes the vectors with these ids, ascending and all different; the other vectors keep their order. O(vectors · log ids).
    ///
    /// # Errors
    /// [`Error::UnknownId`] with the smallest unknown id; [`Error::OutOfHostMemory`] for lists that were mapped. On error nothing changes.
    pub(crate) fn remove(&mut self, ids: &[u64]) -> Result<()> {
        let (Some(&first), Some(&last)) = (ids.first(), ids.last()) else { return Ok(()) };
        let places = |list: &List| -> Vec<u32> {
            let gone = |id: &u64| (first..=last).contains(id) && ids.binary_search(id).is_ok();
            (0..).zip(list.ids()).filter(|(_, id)| gone(id)).map(|(place, _)| place).collect()
        };
        let places: Vec<Vec<u32>> = self.lists.par_iter().map(places).collect();
        if places.iter().map(Vec::len).sum::<usize>() < ids.len() {
            let id_of = |(list, places): (&List, &Vec<u32>)| -> Vec<u64> {
                places.iter().map(|&place| list.ids()[place as usize]).collect()
            };
            let mut found: Vec<u64> = self.lists.iter().zip(&places).flat_map(id_of).collect();
            found.sort_unstable();
            let unknown = ids.iter().find(|id| found.binary_search(id).is_err());
            return Err(Error::UnknownId { id: unknown.copied().unwrap_or(first), len: self.len as u64 });
        }
        let bytes = self.code_bytes;
        let each = |lists: &mut Vec<List>, work: &(dyn Fn(&mut List, &[u32]) -> Result<()> + Sync)| {
            let each =
                |(list, places): (&mut List, &Vec<u32>)| if places.is_empty() { Ok(()) } else { work(list, places) };
            lists.par_iter_mut().zip(places.par_iter()).map(each).collect().into_iter().collect::<Result<()>>()
        };
        each(&mut self.lists, &|list, _| list.reserve(bytes, 0))?;
        each(&mut self.lists, &|list, places| {
            list.codes.remove(bytes, places);
            list.ids.remove(size_of::<u64>(), places);
            Ok(())
        })?;
        self.len -= ids.len();
        self.stamp = self.stamp.wrapping_sub(stamp(ids));
        self.greatest = self.greatest_of_all();
        self.directory = OnceLock::new();
        Ok(())
    }

    /// The directory that maps ranks to ids; `None` if ranks and ids are equal.
    pub(crate) fn sparse_directory(&self) -> Option<&Directory> {
        (!self.dense()).then(|| self.directory())
    }

    /// Writes the ranks of the vectors at these places of a list, in the order of the places.
    pub(crate) fn ranks_into(&self, list: usize, places: Range<usize>, to: &mut [u32]) {
        match self.sparse_directory() {
            None => to.iter_mut().zip(&self.ids(list)[places]).for_each(|(rank, &id)| *rank = id as u32),
            Some(directory) => {
                let first = directory.range(list).start as usize;
                to.copy_from_slice(&directory.ranks()[first + places.start..first + places.end]);
            }
        }
    }

    /// Locations and ranks of all vectors; the first call after a change makes them. O(len), or O(len · log len) if the ids are not 0, 1,
    /// 2, ...
    pub(crate) fn directory(&self) -> &Directory {
        // The directory is not made inside the initialiser: while its parallel parts wait, this thread may start another search that comes
        // here.
        self.directory.get().unwrap_or_else(|| {
            let made = Directory::new(self);
            self.directory.get_or_init(|| made)
        })
    }
}
