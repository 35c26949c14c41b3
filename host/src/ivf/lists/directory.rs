//! The ids of the vectors in ascending order, and where each vector is.
//!
//! A vector's *rank* is the row of its id ([`RowIds`]): ranks are u32 and compare as ids do. Ranks of removed vectors
//! may be left between them, so a removal gives no other vector a new rank. A vector whose id lies between two others
//! that have adjacent ranks gives new ranks to all vectors after it: O(n).

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::address::Address;
use super::list::List;
use crate::ids::row_ids::{Room, RowIds};
use crate::parallel::{Loop, ParallelSlice};
use crate::shared::{Blocks, catch_up, own_with_room, shared};
use crate::validate::MAX_ROWS;
use crate::{Result, host_memory};

/// Removed vectors leave their ranks behind until there is one such rank for this many others.
const RANKS_A_REMOVED_ONE: usize = 4;

/// Ranks, ids and addresses of the vectors of [`Lists`](super::Lists).
#[derive(Debug)]
pub(crate) struct Directory {
    /// The id of each rank.
    ids: RowIds,
    /// The ranks of the vectors of each list, in their order.
    ranks: Vec<Arc<Vec<u32>>>,
    /// The address of each rank. That of a removed vector means nothing.
    addresses: Blocks<Address>,
}

impl Directory {
    /// The directory of lists with `len` vectors. O(len) if the ids are 0, 1, 2, .. (`dense`), otherwise O(len · log
    /// len).
    pub(super) fn new(lists: &[Arc<List>], len: usize, dense: bool) -> Directory {
        let (ids, ranks): (_, Vec<Vec<u32>>) = if dense {
            let ranks = |list: &Arc<List>| list.ids().iter().map(|&id| id as u32).collect();
            (RowIds::counting(len), lists.par_iter().map(ranks).collect())
        } else {
            let mut pairs: Vec<(u64, u32)> = Vec::with_capacity(len);
            lists
                .iter()
                .for_each(|list| pairs.extend(list.ids().iter().zip(pairs.len() as u32..).map(|(&id, at)| (id, at))));
            pairs.par_sort_unstable();
            let ranks: Vec<AtomicU32> = pairs.par_iter().map(|_| AtomicU32::new(0)).collect();
            pairs.par_iter().enumerate().for_each(|(rank, &(_, at))| {
                ranks[at as usize].store(rank as u32, Ordering::Relaxed);
            });
            let mut end = 0;
            let parts: Vec<Range<usize>> = lists
                .iter()
                .map(|list| {
                    end += list.ids().len();
                    end - list.ids().len()..end
                })
                .collect();
            let ranks_of = |part: &Range<usize>| {
                ranks[part.clone()].iter().map(|rank| rank.load(Ordering::Relaxed)).collect::<Vec<u32>>()
            };
            (RowIds::of_blocks(Blocks::mapped(&pairs, |&(id, _)| id)), parts.par_iter().map(ranks_of).collect())
        };
        let addresses = addresses_of(&ranks, len);
        Directory { ids, ranks: ranks.into_iter().map(Arc::new).collect(), addresses }
    }

    /// The same directory, in the same memory as far as neither changes. O(lists + len / 64) at most.
    pub(super) fn shared(&self) -> Result<Directory> {
        Ok(Directory { ids: self.ids.shared()?, ranks: shared(&self.ranks)?, addresses: self.addresses.shared()? })
    }

    /// Makes the ranks of a list of a former version those of `current`, which has others at the places `rows`.
    pub(super) fn catch_up_ranks(ranks: &mut Arc<Vec<u32>>, current: &[u32], rows: &[u32]) -> Result<()> {
        let Some(ranks) = Arc::get_mut(ranks) else {
            *ranks = Arc::new(host_memory::copied(current)?);
            return Ok(());
        };
        catch_up(ranks, current, rows, 1)
    }

    /// Makes this directory of a former version, whose lists have the ranks of `current` already, equal to `current`.
    /// Other vectors are at these places, and no vector has a new rank.
    pub(super) fn catch_up(&mut self, current: &Directory, places: &[Address]) -> Result<()> {
        let count = current.addresses.len();
        self.addresses.truncate(count);
        self.addresses.reserve(count - self.addresses.len())?;
        self.addresses.extend((self.addresses.len()..count).map(|_| Address::default()));
        let rank = |at: &Address| self.ranks[at.list as usize].get(at.place as usize);
        let moved: Vec<u32> = places.iter().filter_map(rank).copied().collect();
        self.own_addresses(&moved);
        self.place(places);
        self.ids = current.ids.shared()?;
        Ok(())
    }

    /// Whether every rank is the id of its vector.
    pub(crate) fn ranks_are_ids(&self) -> bool {
        self.ids.are_rows()
    }

    /// The id of each rank, and the ranks that removed vectors left.
    pub(crate) fn ids(&self) -> &RowIds {
        &self.ids
    }

    /// The id of a rank.
    #[inline]
    pub(crate) fn id(&self, rank: u32) -> u64 {
        self.ids.id(rank as usize)
    }

    /// The ranks of the vectors of a list, in their order.
    #[inline]
    pub(crate) fn ranks(&self, list: usize) -> &[u32] {
        &self.ranks[list]
    }

    /// The rank of the vector with an id.
    pub(super) fn rank(&self, id: u64) -> Option<usize> {
        self.ids.find(id)
    }

    /// The address of the vector with an id.
    pub(super) fn find(&self, id: u64) -> Option<Address> {
        self.rank(id).map(|rank| self.address(rank))
    }

    /// The address of the vector of a rank.
    pub(super) fn address(&self, rank: usize) -> Address {
        self.addresses.get(rank)
    }

    /// The ranks of each list, for [`Directory::reserve`].
    pub(super) fn lists(&mut self) -> &mut [Arc<Vec<u32>>] {
        &mut self.ranks
    }

    /// The id of each rank, and the ranks of each list.
    pub(super) fn ids_and_lists(&mut self) -> (&RowIds, &mut [Arc<Vec<u32>>]) {
        (&self.ids, &mut self.ranks)
    }

    /// Notes that the vectors at these places have them, as the ranks of the lists say. There may be none at a place.
    pub(super) fn place(&mut self, places: &[Address]) {
        for at in places {
            if let Some(&rank) = self.ranks[at.list as usize].get(at.place as usize) {
                self.addresses.set(rank as usize, *at);
            }
        }
    }

    /// The same, and nothing else of the directory.
    pub(super) fn into_lists(self) -> Vec<Arc<Vec<u32>>> {
        self.ranks
    }

    /// Makes the memory of a list our own, with room for `more` vectors.
    pub(super) fn reserve(list: &mut Arc<Vec<u32>>, more: usize) -> Result<()> {
        own_with_room(list, more).map(|_| ())
    }

    /// Makes the addresses of these ranks our own, ahead of changes.
    pub(super) fn own_addresses(&mut self, ranks: &[u32]) {
        self.addresses.own(ranks.iter().map(|&rank| rank as usize));
    }

    /// Gives ranks to ids, which are ascending and new. Returns whether other vectors have new ranks. On error nothing
    /// changes. The caller tells the addresses by [`Directory::push`].
    pub(super) fn admit(&mut self, ids: &[u64]) -> Result<bool> {
        let too_many = (self.ids.rows() + ids.len()) as u64 > MAX_ROWS;
        if too_many || self.ids.room(ids) == Room::Between {
            self.renumber(ids)?;
            return Ok(true);
        }
        let next = self.ids.next();
        let (old, new) = ids.split_at(ids.partition_point(|&id| id < next));
        self.ids.reserve(new)?;
        self.addresses.reserve(new.len())?;
        self.ids.append(new);
        self.ids.revive(&self.ids.old_rows(old));
        self.addresses.extend(new.iter().map(|_| Address::default()));
        Ok(false)
    }

    /// Gives all vectors new ranks, with room for new ids among theirs and none for removed vectors. On error nothing
    /// changes. O(n).
    fn renumber(&mut self, ids: &[u64]) -> Result<()> {
        let mut merged = host_memory::with_room(self.ids.len() + ids.len())?;
        let mut ranks = host_memory::filled(0u32, self.ids.rows())?;
        let mut addresses = host_memory::with_room(self.ids.len() + ids.len())?;
        let mut new = ids.iter().copied().peekable();
        for row in self.ids.live_rows() {
            let id = self.ids.id(row);
            while let Some(id) = new.next_if(|&new| new < id) {
                merged.push(id);
                addresses.push(Address::default());
            }
            ranks[row] = merged.len() as u32;
            merged.push(id);
            addresses.push(self.addresses.get(row));
        }
        merged.extend(new);
        addresses.resize(merged.len(), Address::default());
        let renumbered = (RowIds::of(&merged)?, Blocks::of(&addresses)?);
        // All lists become our own first: from there on nothing fails.
        self.ranks.iter_mut().try_for_each(|list| Directory::reserve(list, 0))?;
        self.ranks.par_iter_mut().for_each(|list| {
            Arc::make_mut(list).iter_mut().for_each(|rank| *rank = ranks[*rank as usize]);
        });
        (self.ids, self.addresses) = renumbered;
        Ok(())
    }

    /// Notes that a vector is now the last of a list. Call [`Directory::reserve`] first.
    pub(super) fn push(&mut self, rank: usize, list: usize) {
        let ranks = Arc::make_mut(&mut self.ranks[list]);
        let place = ranks.len() as u32;
        ranks.push(rank as u32);
        self.addresses.set(rank, Address { list: list as u32, place });
    }

    /// Notes that the last vector of a list has taken the place of another one, which is no longer there. Call
    /// [`Directory::reserve`] first.
    pub(super) fn swap_remove(&mut self, at: Address) {
        let ranks = Arc::make_mut(&mut self.ranks[at.list as usize]);
        ranks.swap_remove(at.place as usize);
        if let Some(&moved) = ranks.get(at.place as usize) {
            self.addresses.set(moved as usize, at);
        }
    }

    /// Removes the ids of some ranks. The addresses stay until [`Directory::forget`]. On error nothing changes.
    pub(super) fn remove(&mut self, ranks: &[usize]) -> Result<()> {
        self.ids.remove(ranks)
    }

    /// Drops what removed vectors have left, if it is much. Returns whether vectors have new ranks. O(n) then, and
    /// rarely.
    pub(super) fn forget(&mut self) -> bool {
        self.addresses.truncate(self.ids.rows());
        // Without memory for new ranks the old ones stay.
        self.ids.removed() * RANKS_A_REMOVED_ONE > self.ids.rows() && self.renumber(&[]).is_ok()
    }
}

/// The address of each of `count` ranks.
fn addresses_of(ranks: &[Vec<u32>], count: usize) -> Blocks<Address> {
    let pack = |list: usize, place: usize| (list as u64) << 32 | place as u64;
    let mut packed = Vec::new();
    packed.resize_with(count, AtomicU64::default);
    ranks.par_iter().enumerate().for_each(|(list, ranks)| {
        for (place, &rank) in ranks.iter().enumerate() {
            packed[rank as usize].store(pack(list, place), Ordering::Relaxed);
        }
    });
    let unpacked = |at: u64| Address { list: (at >> 32) as u32, place: at as u32 };
    Blocks::mapped(&packed, |at| unpacked(at.load(Ordering::Relaxed)))
}
