//! The shared memory of a block: its bytes, and for each word who touched it last, so that races, reads of nothing and
//! unfinished copies are found.
//!
//! # Order of accesses
//! The *epoch* counts the barriers of the block; a new block starts a new one too, so nothing needs clearing between
//! blocks. Accesses of different epochs are ordered. Within an epoch, accesses of different warps are not; those of one
//! warp are ordered by its clock ([`WarpClock`]), which ticks at each collective.
//!
//! # Precision
//! Words are followed as a whole until someone touches a part of one; then each of its bytes is. Of several unordered
//! readers of one warp the earliest tick is kept, of readers of several warps only that there are several: both are
//! enough to find a race, and never report one that is not.

use super::{
    context::{LANES, Lane, WarpClock, lanes},
    violation::{Access, ViolationKind},
};
use crate::Site;

/// First address of static arrays: 0 and its neighbours stay invalid.
const STATIC_BASE: u32 = 0x400;
/// First address of dynamic memory.
pub const DYNAMIC_BASE: u32 = 0x1_0000;
/// Bytes of static arrays that a kernel can have.
const STATIC_LIMIT: u32 = 48 * 1024;
/// Bytes between static arrays that belong to none.
const GAP: u32 = 16;
/// Several warps.
const MANY: u16 = u16::MAX;
/// Bytes of a word.
const WORD: u32 = 4;

/// The last access of a kind to a word or byte.
#[derive(Clone, Copy, Default)]
struct Record {
    epoch: u32,
    /// Earliest unordered tick.
    tick: u32,
    /// Lanes of the warp that made it.
    lanes: u32,
    warp: u16,
    kind: Option<Access>,
    site: Option<Site>,
}

/// What is known about a word or byte.
#[derive(Clone, Copy, Default)]
struct Cell {
    write: Record,
    read: Record,
    /// Index of the four byte cells, valid if they were made in this block.
    split: u32,
    split_in: u32,
}

/// Who accesses, and what is ordered before.
struct Who<'a> {
    epoch: u32,
    lane: u32,
    warp: u16,
    clock: &'a WarpClock,
    site: Site,
}

impl Who<'_> {
    /// Whether an access of this block is ordered before what this thread does now.
    #[inline(always)]
    fn follows(&self, record: &Record) -> bool {
        if record.epoch != self.epoch {
            return true;
        }
        if record.warp != self.warp {
            return false;
        }
        let others = record.lanes & !(1 << self.lane);
        others == 0 || record.tick < self.clock.all || self.follows_pairwise(record.tick, others)
    }

    #[cold]
    fn follows_pairwise(&self, tick: u32, others: u32) -> bool {
        let Some(pairs) = &self.clock.pairs else { return false };
        lanes(others).all(|other| tick < pairs[self.lane as usize][other])
    }

    fn record(&self, kind: Access) -> Record {
        Record {
            epoch: self.epoch,
            tick: self.clock.tick,
            lanes: 1 << self.lane,
            warp: self.warp,
            kind: Some(kind),
            site: Some(self.site),
        }
    }

    /// Adds this access to a record of the same kind.
    #[inline(always)]
    fn join(&self, record: &mut Record, kind: Access) {
        if record.epoch != self.epoch || record.kind != Some(kind) {
            *record = self.record(kind);
        } else if record.warp != self.warp {
            record.warp = MANY;
            record.site = Some(self.site);
        } else if record.tick < self.clock.all {
            *record = self.record(kind);
        } else {
            record.lanes |= 1 << self.lane;
            record.site = Some(self.site);
        }
    }
}

/// A static array.
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
    splits: Vec<[Cell; WORD as usize]>,
    arrays: Vec<Array>,
    static_end: u32,
    dynamic_len: u32,
    epoch: u32,
    /// Epoch at the start of the block.
    born: u32,
    /// What each thread has published to products of warpgroups.
    published: Vec<Published>,
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
        }
    }

    /// Forgets everything: a new block, with `dynamic` bytes of dynamic memory.
    pub fn start_block(&mut self, dynamic: u32) {
        let lines = (DYNAMIC_BASE + dynamic).div_ceil(128) as usize;
        if lines > self.bytes.len() {
            self.bytes.resize(lines, Line([0; 128]));
            // A cell for every word of the last line: a later block may use more of it.
            self.cells.resize(lines * (128 / WORD as usize), Cell::default());
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
        for word in address / WORD..(address + bytes).div_ceil(WORD) {
            let cell = &mut self.cells[word as usize];
            if bytes >= WORD && cell.split_in != self.born {
                visit(cell, word * WORD)?;
                continue;
            }
            if cell.split_in != self.born {
                cell.split_in = self.born;
                cell.split = self.splits.len() as u32;
                self.splits.push([*cell; WORD as usize]);
            }
            let split = &mut self.splits[cell.split as usize];
            for (byte, cell) in (word * WORD..).zip(split) {
                if (address..address + bytes).contains(&byte) {
                    visit(cell, byte)?;
                }
            }
        }
        Ok(())
    }

    fn race(record: &Record, address: u32, access: Access, who: &Who<'_>) -> ViolationKind {
        let others = record.lanes & !(1 << who.lane);
        let lane = if record.warp == who.warp && others != 0 { others } else { record.lanes }.trailing_zeros();
        let warp = if record.warp == MANY { 0 } else { u32::from(record.warp) };
        ViolationKind::SharedRace {
            address,
            access,
            other_access: record.kind.unwrap_or(Access::Read),
            other_thread: warp * LANES as u32 + lane,
            other: record.site.unwrap_or(who.site).into(),
        }
    }

    /// What is published of thread `thread`.
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
            thread: u32::from(record.warp) * LANES as u32 + record.lanes.trailing_zeros(),
            started: record.site.unwrap_or(who.site).into(),
        }
    }

    /// Checks and records a read by `lane`.
    ///
    /// # Safety
    /// `lane` is the running thread.
    pub unsafe fn read<const BYTES: u32>(
        &mut self,
        lane: *const Lane,
        address: u32,
        site: Site,
    ) -> Result<(), ViolationKind> {
        self.check(address, BYTES)?;
        let born = self.born;
        // SAFETY: same contract.
        let who = unsafe { who(lane, self.epoch, site) };
        self.visit(address, BYTES, |cell, byte| {
            if cell.write.epoch < born {
                return Err(ViolationKind::SharedUninitialised { address: byte });
            }
            if cell.write.kind == Some(Access::AsyncCopy) {
                return Err(Self::unfinished(&cell.write, byte, &who));
            }
            if !who.follows(&cell.write) {
                return Err(Self::race(&cell.write, byte, Access::Read, &who));
            }
            who.join(&mut cell.read, Access::Read);
            Ok(())
        })
    }

    /// Checks and records a read of 16 bytes by a product of a warpgroup that `lane` takes part in.
    ///
    /// Of a write in the epoch in which its thread published, and later wrote again, it is not known which came first, nor who published the
    /// atomic operations of several warps: these pass.
    ///
    /// # Safety
    /// `lane` is the running thread.
    pub unsafe fn read_by_group(&mut self, lane: *const Lane, address: u32, site: Site) -> Result<(), ViolationKind> {
        // SAFETY: same contract.
        unsafe { self.read::<16>(lane, address, site)? };
        let mut writer = Record::default();
        let mut byte = address;
        self.visit(address, 16, |cell, at| {
            if cell.write.epoch > writer.epoch {
                (writer, byte) = (cell.write, at);
            }
            Ok(())
        })?;
        if writer.warp == MANY {
            return Ok(());
        }
        let thread = u32::from(writer.warp) * LANES as u32 + writer.lanes.trailing_zeros();
        let Published { dirty_since, last } = *self.published(thread);
        let published = dirty_since == 0 || writer.epoch < dirty_since || writer.epoch == last;
        match writer.site {
            Some(written) if !published => {
                Err(ViolationKind::NotPublished { address: byte, thread, written: written.into() })
            }
            _ => Ok(()),
        }
    }

    /// Checks and records a write (or the start of an asynchronous copy) by `lane`.
    ///
    /// # Safety
    /// `lane` is the running thread.
    pub unsafe fn write<const BYTES: u32>(
        &mut self,
        lane: *const Lane,
        address: u32,
        kind: Access,
        site: Site,
    ) -> Result<(), ViolationKind> {
        self.check(address, BYTES)?;
        // SAFETY: same contract.
        self.soil(unsafe { (*lane).thread });
        let born = self.born;
        // SAFETY: same contract.
        let who = unsafe { who(lane, self.epoch, site) };
        self.visit(address, BYTES, |cell, byte| {
            if cell.write.epoch >= born && cell.write.kind == Some(Access::AsyncCopy) {
                return Err(Self::unfinished(&cell.write, byte, &who));
            }
            if !who.follows(&cell.write) {
                return Err(Self::race(&cell.write, byte, kind, &who));
            }
            if !who.follows(&cell.read) {
                return Err(Self::race(&cell.read, byte, kind, &who));
            }
            cell.write = who.record(kind);
            cell.read = Record::default();
            Ok(())
        })
    }

    /// Checks and records an atomic operation by `lane`.
    ///
    /// # Safety
    /// `lane` is the running thread.
    pub unsafe fn atomic<const BYTES: u32>(
        &mut self,
        lane: *const Lane,
        address: u32,
        site: Site,
    ) -> Result<(), ViolationKind> {
        self.check(address, BYTES)?;
        let born = self.born;
        // SAFETY: same contract.
        let who = unsafe { who(lane, self.epoch, site) };
        self.visit(address, BYTES, |cell, byte| {
            if cell.write.epoch < born {
                return Err(ViolationKind::SharedUninitialised { address: byte });
            }
            if cell.write.kind == Some(Access::AsyncCopy) {
                return Err(Self::unfinished(&cell.write, byte, &who));
            }
            if cell.write.kind != Some(Access::Atomic) && !who.follows(&cell.write) {
                return Err(Self::race(&cell.write, byte, Access::Atomic, &who));
            }
            if !who.follows(&cell.read) {
                return Err(Self::race(&cell.read, byte, Access::Atomic, &who));
            }
            who.join(&mut cell.write, Access::Atomic);
            cell.read = Record::default();
            Ok(())
        })
    }

    /// Records that an asynchronous copy to `address` is complete: from now on a write of `lane`'s.
    ///
    /// # Safety
    /// `lane` is the running thread.
    pub unsafe fn complete(&mut self, lane: *const Lane, address: u32, bytes: u32, site: Site) {
        // SAFETY: same contract.
        self.soil(unsafe { (*lane).thread });
        // SAFETY: same contract.
        let who = unsafe { who(lane, self.epoch, site) };
        // The visitor never fails.
        let _ = self.visit(address, bytes, |cell, _| {
            cell.write = who.record(Access::Write);
            cell.write.site = Some(site);
            Ok(())
        });
    }

    /// Where the byte at `address`, which was checked, lies.
    #[inline(always)]
    pub fn place(&mut self, address: u32) -> *mut u8 {
        self.bytes.as_mut_ptr().cast::<u8>().wrapping_add(address as usize)
    }
}

/// The running thread, as far as accesses go.
///
/// # Safety
/// `lane` is the running thread.
#[inline(always)]
unsafe fn who<'a>(lane: *const Lane, epoch: u32, site: Site) -> Who<'a> {
    // SAFETY: the lane and its warp outlive the access that is being checked, and their clocks stand still meanwhile.
    unsafe {
        let warp = (*lane).warp;
        Who { epoch, lane: (*lane).lane, warp: (*warp).number as u16, clock: &(*warp).clock, site }
    }
}
