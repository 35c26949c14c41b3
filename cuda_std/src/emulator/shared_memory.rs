//! The shared memory of a block: its bytes, and for each word who touched it last (see [`super::records`]), so that
//! races, reads of nothing and unfinished copies are found.
//!
//! The blocks of a cluster access each other's memory. Only the barrier of the cluster orders their accesses, so the
//! memory keeps the accesses of peers since the last one, and compares accesses with them.

use super::{
    records::{Accessor, Cell, Record, Splits, WORD, Who},
    violation::{Access, ViolationKind},
};
use crate::Site;
use std::collections::HashMap;

/// First address of static arrays: 0 and its neighbours stay invalid.
const STATIC_BASE: u32 = 0x400;
/// First address of dynamic memory.
pub const DYNAMIC_BASE: u32 = 0x1_0000;
/// Bytes of static arrays that a kernel can have.
const STATIC_LIMIT: u32 = 48 * 1024;
/// Bytes between static arrays that belong to none.
const GAP: u32 = 16;
/// A static array of shared memory, and the call in the source that declares it.
struct Array {
    site: usize,
    bytes: u32,
    address: u32,
}

/// The memory and its records.
pub struct SharedMemory {
    /// From address 0; aligned so that a value is where its address says.
    bytes: Vec<Line>,
    cells: Vec<Cell>,
    splits: Splits,
    arrays: Vec<Array>,
    static_end: u32,
    dynamic_len: u32,
    epoch: u32,
    /// Epoch at the start of the block.
    born: u32,
    /// The epochs of each thread's writes and of their publication to products of warpgroups.
    published: Vec<Published>,
    /// Rank of the block in its cluster.
    rank: u32,
    /// Epoch at the last barrier of the cluster.
    phase: u32,
    /// Accesses by peers since the last barrier of the cluster, by the address of the word.
    by_peers: HashMap<u32, ByPeer>,
}

/// The thread of another block that accesses this block's memory.
#[derive(Clone, Copy)]
pub struct Peer {
    /// Rank of its block in the cluster.
    pub rank: u32,
    /// Number in its block.
    pub thread: u32,
    /// Epoch of its block's own shared memory.
    pub epoch: u32,
}

/// An access by a peer.
#[derive(Clone, Copy)]
pub struct ByPeer {
    pub peer: Peer,
    pub kind: Access,
    pub site: Site,
}

/// Epochs in which a thread first wrote what it has not published, and in which it last published; 0: none.
#[derive(Clone, Copy, Default)]
struct Published {
    dirty_since: u32,
    last: u32,
}

#[derive(Clone, Copy)]
#[repr(C, align(128))]
struct Line([u8; 128]);

impl SharedMemory {
    pub fn new() -> Self {
        Self {
            bytes: Vec::new(),
            cells: Vec::new(),
            splits: Vec::new(),
            arrays: Vec::new(),
            static_end: STATIC_BASE,
            dynamic_len: 0,
            epoch: 0,
            born: 0,
            published: Vec::new(),
            rank: 0,
            phase: 0,
            by_peers: HashMap::new(),
        }
    }

    /// Forgets everything: a new block, with `dynamic` bytes of dynamic memory and this rank in its cluster.
    pub fn start_block(&mut self, dynamic: u32, rank: u32) {
        let lines = (DYNAMIC_BASE + dynamic).div_ceil(128) as usize;
        if lines > self.bytes.len() {
            self.bytes.resize(lines, Line([0; 128]));
            // A cell for every word of the last line: a later block may use more of it.
            self.cells.resize(lines * (128 / WORD), Cell::default());
        }
        if self.epoch == u32::MAX {
            self.cells.fill(Cell::default());
            self.epoch = 0;
        }
        self.splits.clear();
        self.arrays.clear();
        self.published.clear();
        self.static_end = STATIC_BASE;
        self.dynamic_len = dynamic;
        self.epoch += 1;
        self.born = self.epoch;
        self.rank = rank;
        self.phase = self.epoch;
        self.by_peers.clear();
    }

    /// The epoch: the number of barriers, of all blocks that used the memory.
    pub fn epoch(&self) -> u32 {
        self.epoch
    }

    /// All threads of the cluster met. [`Self::pass_barrier`] was called for the barrier.
    pub fn pass_cluster_barrier(&mut self) {
        self.phase = self.epoch;
        self.by_peers.clear();
    }

    /// An access by a peer since the last barrier of the cluster, if there was one.
    pub fn accessed_by_peer(&self) -> Option<ByPeer> {
        self.by_peers.values().min_by_key(|by| (by.peer.rank, by.peer.thread)).copied()
    }

    fn peer_race(&self, address: u32, access: Access, other: ByPeer) -> ViolationKind {
        ViolationKind::PeerRace {
            address,
            owner: self.rank,
            access,
            other_access: other.kind,
            other_block: other.peer.rank,
            other_thread: other.peer.thread,
            other: other.site.into(),
        }
    }

    /// Fails if an access by a thread of this block races with one of a peer.
    #[inline(always)]
    fn check_peers(&self, address: u32, bytes: u32, access: Access) -> Result<(), ViolationKind> {
        if self.by_peers.is_empty() { Ok(()) } else { self.find_race_with_peer(address, bytes, access) }
    }

    #[cold]
    fn find_race_with_peer(&self, address: u32, bytes: u32, access: Access) -> Result<(), ViolationKind> {
        let word = WORD as u32;
        for at in (address / word..(address + bytes).div_ceil(word)).map(|at| at * word) {
            if let Some(&other) = self.by_peers.get(&at)
                && (access.writes() || other.kind.writes())
                && !(access.is_strong() && other.kind.is_strong())
            {
                return Err(self.peer_race(at, access, other));
            }
        }
        Ok(())
    }

    /// Checks and records an access by a thread of a peer.
    pub fn access_by_peer(
        &mut self,
        peer: Peer,
        address: u32,
        bytes: u32,
        kind: Access,
        site: Site,
    ) -> Result<(), ViolationKind> {
        self.check(address, bytes)?;
        let (born, phase, epoch) = (self.born, self.phase, self.epoch);
        let (rank, writes, strong) = (self.rank, kind.writes(), kind.is_strong());
        let reads = kind != Access::Write;
        self.visit(address, bytes, |cell, byte| {
            let race = |record: &Record| ViolationKind::PeerRace {
                address: byte,
                owner: rank,
                access: kind,
                other_access: record.kind.unwrap_or(Access::Read),
                other_block: rank,
                other_thread: record.thread(),
                other: record.site.unwrap_or(site).into(),
            };
            if reads && cell.write.epoch < born {
                return Err(ViolationKind::SharedUninitialised { address: byte });
            }
            let here = |record: &Record| record.epoch >= phase.max(born) && record.kind.is_some();
            if here(&cell.write) && !(strong && cell.write.is_strong()) {
                return Err(race(&cell.write));
            }
            if writes && here(&cell.read) && !(strong && cell.read.is_strong()) {
                return Err(race(&cell.read));
            }
            Ok(())
        })?;
        for at in (address..address + bytes).step_by(WORD) {
            if let Some(&other) = self.by_peers.get(&at) {
                let same_thread = (other.peer.rank, other.peer.thread) == (peer.rank, peer.thread);
                let ordered = same_thread || other.peer.rank == peer.rank && other.peer.epoch != peer.epoch;
                let compatible = !(writes || other.kind.writes()) || strong && other.kind.is_strong();
                if !ordered && !compatible {
                    return Err(self.peer_race(at, kind, other));
                }
                if other.kind.writes() && !writes {
                    continue;
                }
            }
            self.by_peers.insert(at, ByPeer { peer, kind, site });
        }
        if writes {
            // From now on the word is written. The order is that of the table above, so no access of this block races
            // with the record.
            self.visit(address, bytes, |cell, _| {
                if cell.write.epoch < born {
                    cell.write = Record::default();
                    cell.write.epoch = epoch;
                }
                Ok(())
            })?;
        }
        Ok(())
    }

    /// All threads of the block met.
    pub fn pass_barrier(&mut self) {
        if self.epoch == u32::MAX - 1 {
            // Everything is ordered here, so a fresh start only has to keep what was written.
            let born = self.born;
            for cell in self.cells.iter_mut().chain(self.splits.iter_mut().flatten()) {
                cell.write.epoch = u32::from(cell.write.epoch >= born);
                cell.read = Record::default();
                cell.split_in = u32::from(cell.split_in == born);
            }
            self.published.fill(Published::default());
            (self.born, self.epoch) = (1, 1);
            self.phase = 1;
        }
        self.epoch += 1;
    }

    /// The address of the array of `bytes` bytes that `site` declares.
    pub fn array(&mut self, site: usize, bytes: u32) -> Result<u32, ViolationKind> {
        if let Some(array) = self.arrays.iter().find(|array| array.site == site && array.bytes == bytes) {
            return Ok(array.address);
        }
        let asked = self.arrays.iter().map(|array| u64::from(array.bytes)).sum::<u64>() + u64::from(bytes);
        let address = self.static_end;
        let end = u64::from(address) + u64::from(bytes).next_multiple_of(16) + u64::from(GAP);
        if asked > STATIC_LIMIT.into() || end > DYNAMIC_BASE.into() {
            return Err(ViolationKind::StaticSharedTooLarge { asked, limit: STATIC_LIMIT.into() });
        }
        self.static_end = end as u32;
        self.arrays.push(Array { site, bytes, address });
        Ok(address)
    }

    /// Checks that `bytes` bytes at `address` exist and are aligned.
    #[inline(always)]
    fn check(&self, address: u32, bytes: u32) -> Result<(), ViolationKind> {
        if !address.is_multiple_of(bytes) {
            return Err(ViolationKind::SharedMisaligned { address, alignment: bytes });
        }
        let inside = |start: u32, len: u32| bytes <= len && address.wrapping_sub(start) <= len - bytes;
        if inside(DYNAMIC_BASE, self.dynamic_len)
            || address < DYNAMIC_BASE && self.arrays.iter().any(|array| inside(array.address, array.bytes))
        {
            return Ok(());
        }
        Err(ViolationKind::SharedOutOfBounds { address, bytes, base: DYNAMIC_BASE, dynamic: self.dynamic_len })
    }

    /// Applies `visit` to the cell of each word, or of each byte where words are split; `visit` gets the first byte.
    #[inline(always)]
    fn visit(
        &mut self,
        address: u32,
        bytes: u32,
        mut visit: impl FnMut(&mut Cell, u32) -> Result<(), ViolationKind>,
    ) -> Result<(), ViolationKind> {
        let (first, end) = (address as usize, (address + bytes) as usize);
        for word in first / WORD..end.div_ceil(WORD) {
            let splits = (&mut self.splits, self.born);
            // Accesses are aligned to their size, so one of a word or more covers words.
            let whole = bytes as usize >= WORD;
            self.cells[word]
                .visit(splits, word * WORD, first..end, whole, &mut |cell, byte| visit(cell, byte as u32))?;
        }
        Ok(())
    }

    fn race(record: &Record, address: u32, access: Access, who: &Who<'_>) -> ViolationKind {
        ViolationKind::SharedRace {
            address,
            access,
            other_access: record.kind.unwrap_or(Access::Read),
            other_thread: record.other_thread(who),
            other: record.site.unwrap_or(who.site).into(),
        }
    }

    /// The entry of thread `thread` in `published`, which is added if it is absent.
    #[inline(always)]
    fn published(&mut self, thread: u32) -> &mut Published {
        let thread = thread as usize;
        if thread >= self.published.len() {
            self.published.resize(thread + 1, Published::default());
        }
        &mut self.published[thread]
    }

    /// Thread `thread` has written something.
    #[inline(always)]
    fn soil(&mut self, thread: u32) {
        let epoch = self.epoch;
        let published = self.published(thread);
        if published.dirty_since == 0 {
            published.dirty_since = epoch;
        }
    }

    /// Thread `thread` publishes what it wrote.
    pub fn publish(&mut self, thread: u32) {
        *self.published(thread) = Published { dirty_since: 0, last: self.epoch };
    }

    fn unfinished(record: &Record, address: u32, who: &Who<'_>) -> ViolationKind {
        ViolationKind::AsyncCopyUnfinished {
            address,
            thread: record.thread(),
            started: record.site.unwrap_or(who.site).into(),
        }
    }

    /// Checks and records a read by a thread.
    pub fn read<const BYTES: u32>(&mut self, by: Accessor<'_>, address: u32, site: Site) -> Result<(), ViolationKind> {
        self.check(address, BYTES)?;
        self.check_peers(address, BYTES, Access::Read)?;
        let born = self.born;
        let who = Who::new(by, self.epoch, site);
        self.visit(address, BYTES, |cell, byte| {
            if cell.write.epoch < born {
                return Err(ViolationKind::SharedUninitialised { address: byte });
            }
            if cell.write.kind == Some(Access::AsyncCopy) {
                return Err(Self::unfinished(&cell.write, byte, &who));
            }
            cell.read(&who, Access::Read).map_err(|other| Self::race(&other, byte, Access::Read, &who))
        })
    }

    /// Checks and records a read of `BYTES` bytes by a product of a warpgroup that the thread takes part in.
    ///
    /// Of a write in the epoch in which its thread published, and later wrote again, it is not known which came first,
    /// nor who published the atomic operations of several warps: these pass.
    pub fn read_by_group<const BYTES: u32>(
        &mut self,
        by: Accessor<'_>,
        address: u32,
        site: Site,
    ) -> Result<(), ViolationKind> {
        self.read::<BYTES>(by, address, site)?;
        // Apart from the cells, of which one is borrowed at a time.
        let published = std::mem::take(&mut self.published);
        // One thread mostly wrote several words of a row.
        let mut last_seen = (0, u32::MAX);
        let found = self.visit(address, BYTES, |cell, byte| {
            let writer = &cell.write;
            let thread = writer.thread();
            if last_seen == (writer.epoch, thread) || writer.several_warps() {
                return Ok(());
            }
            last_seen = (writer.epoch, thread);
            let Published { dirty_since, last } = published.get(thread as usize).copied().unwrap_or_default();
            let is_published = dirty_since == 0 || writer.epoch < dirty_since || writer.epoch == last;
            match writer.site {
                Some(written) if !is_published => {
                    Err(ViolationKind::NotPublished { address: byte, thread, written: written.into() })
                }
                _ => Ok(()),
            }
        });
        self.published = published;
        found
    }

    /// Checks and records a write (or the start of an asynchronous copy) by a thread.
    pub fn write<const BYTES: u32>(
        &mut self,
        by: Accessor<'_>,
        address: u32,
        kind: Access,
        site: Site,
    ) -> Result<(), ViolationKind> {
        self.check(address, BYTES)?;
        self.check_peers(address, BYTES, kind)?;
        self.soil(by.thread());
        let born = self.born;
        let who = Who::new(by, self.epoch, site);
        self.visit(address, BYTES, |cell, byte| {
            if cell.write.epoch >= born && cell.write.kind == Some(Access::AsyncCopy) {
                return Err(Self::unfinished(&cell.write, byte, &who));
            }
            cell.write(&who, kind).map_err(|other| Self::race(&other, byte, kind, &who))
        })
    }

    /// Checks and records an atomic operation by a thread.
    pub fn atomic<const BYTES: u32>(
        &mut self,
        by: Accessor<'_>,
        address: u32,
        site: Site,
    ) -> Result<(), ViolationKind> {
        self.check(address, BYTES)?;
        self.check_peers(address, BYTES, Access::Atomic)?;
        let born = self.born;
        let who = Who::new(by, self.epoch, site);
        self.visit(address, BYTES, |cell, byte| {
            if cell.write.epoch < born {
                return Err(ViolationKind::SharedUninitialised { address: byte });
            }
            if cell.write.kind == Some(Access::AsyncCopy) {
                return Err(Self::unfinished(&cell.write, byte, &who));
            }
            cell.write(&who, Access::Atomic).map_err(|other| Self::race(&other, byte, Access::Atomic, &who))
        })
    }

    /// Records that an asynchronous copy to `address` is complete: from now on a write of the thread.
    pub fn complete(&mut self, by: Accessor<'_>, address: u32, bytes: u32, site: Site) {
        self.soil(by.thread());
        let who = Who::new(by, self.epoch, site);
        // The visitor never fails.
        let _ = self.visit(address, bytes, |cell, _| {
            cell.write = who.record(Access::Write);
            cell.write.site = Some(site);
            Ok(())
        });
    }

    /// The host address of the byte at shared address `address`, which was checked.
    #[inline(always)]
    pub fn place(&mut self, address: u32) -> *mut u8 {
        self.bytes.as_mut_ptr().cast::<u8>().wrapping_add(address as usize)
    }
}
